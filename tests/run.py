"""Run everything that is checked: style, types, the library, the book in a browser, the chapters.

    python tests/run.py              all of it
    python tests/run.py book types   only these steps

A failed step does not stop the next; the summary at the end says which failed, and how long each took.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "book"))

from chromium import find_or_install  # noqa: E402

PYTEST = ("pytest", "-q", "--durations=5")


@dataclass(frozen=True)
class Step:
    """One command: a Python module, or a script by its path, with its arguments."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)


def outputs_are_comparable() -> bool:
    """Whether stored outputs can be compared word for word: they were made on Linux, x86, on the CPU."""
    return platform.system() == "Linux" and platform.machine() in {"x86_64", "AMD64"}


def steps() -> list[Step]:
    """Everything that is checked, the quick things first."""
    book_path = os.pathsep.join(str(ROOT / part) for part in ("book", "book/_ext", "tests/book"))
    compare = "--nbval" if outputs_are_comparable() else "--nbval-lax"
    # One after the other: a training cell uses all cores, and two of them at once take several times as long.
    chapters = (
        *(compare, "chapters", "--nbval-current-env", "--nbval-cell-timeout", "900"),
        *("--nbval-sanitize-with", "tests/nbval.cfg", "-p", "no:cacheprovider"),
    )
    return [
        Step("style", ("ruff", "check", ".")),
        Step("format", ("ruff", "format", "--check", ".")),
        Step("types", ("mypy",)),
        Step("book types", ("mypy", "--strict", "book", "tests/run.py"), {"MYPYPATH": book_path}),
        Step("library", (*PYTEST, "tests", "--ignore=tests/book", "-n", "2")),
        # Built here, so that no two workers below have to.
        Step("build", ("book/build.py",)),
        Step("book", (*PYTEST, "tests/book", "-n", "2", "--dist", "loadscope")),
        Step("chapters", (*PYTEST, *chapters), {"TX_DEVICE": "cpu", "PYTHONHASHSEED": "0"}),
    ]


def run(step: Step, environment: dict[str, str]) -> tuple[bool, float]:
    """Run one step from the root. Returns whether it passed, and its seconds."""
    print(f"\n=== {step.name}: {' '.join(step.command)}", flush=True)
    start = time.perf_counter()
    module = [] if step.command[0].endswith(".py") else ["-m"]
    command = [sys.executable, *module, *step.command]
    status = subprocess.run(command, cwd=ROOT, env=environment | step.environment, check=False).returncode
    return status == 0, time.perf_counter() - start


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 when any step failed."""
    known = {step.name: step for step in steps()}
    parser = argparse.ArgumentParser(description="Run everything that is checked.")
    parser.add_argument("names", nargs="*", metavar="STEP", help=f"one of: {', '.join(known)} (default: all)")
    names = parser.parse_args(arguments).names or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no step is called {unknown[0]!r}; choose from: {', '.join(known)}")
    environment = dict(os.environ)
    if "book" in names:
        browser = find_or_install()
        if browser:
            environment["CHROMIUM"] = browser
    results = [(name, *run(known[name], environment)) for name in names]
    print("\n=== summary")
    for name, passed, seconds in results:
        print(f"{'passed' if passed else 'FAILED'}  {seconds:6.0f} s  {name}")
    return 0 if all(passed for _, passed, _ in results) else 1


if __name__ == "__main__":
    sys.exit(main())
