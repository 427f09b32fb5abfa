"""`python -m tx_from_scratch.experiments [NAME]`: list the studies, or run one."""

from __future__ import annotations

import argparse

from tx_from_scratch.experiments.attention_scaling import STUDY as ATTENTION_SCALING
from tx_from_scratch.experiments.original_heads import STUDY as ORIGINAL_HEADS
from tx_from_scratch.experiments.original_recipe import STUDY as ORIGINAL_RECIPE
from tx_from_scratch.experiments.positions_extrapolation import STUDY as POSITIONS_EXTRAPOLATION
from tx_from_scratch.experiments.positions_offset import STUDY as POSITIONS_OFFSET
from tx_from_scratch.experiments.positions_stretching import STUDY as POSITIONS_STRETCHING
from tx_from_scratch.experiments.study import Study

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        ORIGINAL_HEADS,
        ORIGINAL_RECIPE,
        ATTENTION_SCALING,
        POSITIONS_EXTRAPOLATION,
        POSITIONS_STRETCHING,
        POSITIONS_OFFSET,
    )
}


def main() -> None:
    """Parse the command line."""
    listing = "\n".join(f"  {name}\n      {study.question}" for name, study in STUDIES.items())
    parser = argparse.ArgumentParser(
        prog="python -m tx_from_scratch.experiments",
        description="Run a stored study again. Runs that are stored already are kept.",
        epilog=f"studies:\n{listing}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=[*STUDIES], help="the study to run; without it, list them")
    parser.add_argument("--again", action="store_true", help="discard the stored runs first")
    arguments = parser.parse_args()
    if arguments.name is None:
        parser.print_help()
        return
    STUDIES[arguments.name].run(again=arguments.again)


if __name__ == "__main__":
    main()
