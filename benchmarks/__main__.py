"""Run the benchmarks, print their tables, and keep them.

    python -m benchmarks                        all of them, then write results.json and README.md
    python -m benchmarks decoding --rounds 5    one of them, quickly; nothing is written

Only a full run is kept, so that all numbers in the README come from one machine at one time.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks import attention_paths, decoding, encoder_layer, language_model, rotation
from benchmarks.measure import compare
from benchmarks.provenance import provenance
from benchmarks.report import insert, to_markdown

HERE = Path(__file__).parent

# How to run each benchmark, and for how many rounds.
BENCHMARKS: dict[str, tuple[Callable[[int], list[Any]], int]] = {
    "encoder_layer": (lambda rounds: compare(encoder_layer.contenders(), rounds=rounds), 40),
    "decoding": (lambda rounds: compare(decoding.contenders(), rounds=rounds), 21),
    "rotation": (lambda rounds: compare(rotation.contenders(), rounds=rounds), 40),
    "language_model": (lambda rounds: compare(language_model.contenders(), rounds=rounds), 30),
    "attention_paths": (lambda rounds: attention_paths.measure(rounds=rounds), 7),
}


def main(arguments: list[str] | None = None) -> None:
    """See `python -m benchmarks --help`."""
    options = _parse(arguments)
    torch.set_num_threads(options.threads)
    chosen = options.names or list(BENCHMARKS)
    results: dict[str, Any] = {"provenance": provenance()}
    for name in chosen:
        measure, rounds = BENCHMARKS[name]
        print(f"{name} ...", flush=True)
        results[name] = [asdict(row) for row in measure(options.rounds or rounds)]
    tables = to_markdown(results)
    print(f"\n{tables}")
    if options.names or options.rounds:
        print("\nNothing written: only a full run, all benchmarks with their own number of rounds, is kept.")
        return
    readme = HERE / "README.md"
    page = insert(readme.read_text(encoding="utf-8"), tables)
    (HERE / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    readme.write_text(page, encoding="utf-8")
    print("\nWritten: benchmarks/results.json and the tables of benchmarks/README.md")


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Ratios against peers, in one run."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these: {', '.join(BENCHMARKS)}")
    parser.add_argument(
        "--threads", type=int, default=min(2, os.cpu_count() or 1), help="default: %(default)s"
    )
    parser.add_argument("--rounds", type=int, help="for every benchmark, instead of its own number")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if options.threads < 1:
        parser.error(f"--threads must be positive, got {options.threads}")
    if options.rounds is not None and options.rounds < 3:
        parser.error(f"--rounds must be at least 3, got {options.rounds}")
    return options


if __name__ == "__main__":
    main()
