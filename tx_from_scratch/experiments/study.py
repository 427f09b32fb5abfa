"""A study: arms (settings to compare) times seeds, each run stored as soon as it is done."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tx_from_scratch.translator import machine

Settings = Mapping[str, Any]
Figures = Mapping[str, float | list[float]]

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Run:
    """One training run: what was set, and what came out."""

    arm: str
    seed: int
    settings: dict[str, Any]
    seconds: float
    figures: dict[str, float | list[float]]


@dataclass(frozen=True)
class Results:
    """All runs of a study, and where they come from."""

    study: str
    question: str
    provenance: dict[str, str]
    runs: tuple[Run, ...]

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order of the study."""
        return list(dict.fromkeys(run.arm for run in self.runs))

    def values(self, arm: str, figure: str) -> NDArray[np.float64]:
        """A figure of all runs of an arm, (seeds,), or (seeds, points) if it is a list.

        Raises:
            ValueError: there is no such arm or figure.
        """
        runs = [run for run in self.runs if run.arm == arm]
        if not runs:
            raise ValueError(f"arm must be one of {', '.join(self.arms)}; got {arm!r}")
        if figure not in runs[0].figures:
            raise ValueError(f"figure must be one of {', '.join(runs[0].figures)}; got {figure!r}")
        return np.array([run.figures[figure] for run in runs], dtype=np.float64)


@dataclass(frozen=True)
class Study:
    """What is compared, and how one run is made.

    Attributes:
        name: of the script and of the results file.
        question: what the study asks, in a sentence.
        arms: settings by name; every one is run with every seed.
        seeds: as many runs of each arm.
        measure: makes one run, from an arm's settings and a seed.
    """

    name: str
    question: str
    arms: Mapping[str, Settings]
    seeds: tuple[int, ...]
    measure: Callable[[Settings, int], Figures]

    def run(
        self, *, again: bool = False, folder: Path = FOLDER, report: Callable[[str], None] = print
    ) -> Results:
        """Make the runs that the results file lacks, storing each one when it is done.

        A stored run counts only if it was made with the settings that the arm has now.

        Args:
            again: make all runs anew.
            folder: where the results file lies.
            report: is told a line about every run.
        """
        path = folder / f"{self.name}.json"
        kept = load_results(self.name, folder=folder).runs if path.exists() and not again else ()
        done = {(run.arm, run.seed): run for run in kept if run.settings == dict(self.arms.get(run.arm, {}))}
        todo = [(arm, seed) for seed in self.seeds for arm in self.arms if (arm, seed) not in done]
        report(f"{self.name}: {len(done)} runs stored, {len(todo)} to make")
        for arm, seed in todo:
            begun = time.perf_counter()
            figures = dict(self.measure(self.arms[arm], seed))
            seconds = round(time.perf_counter() - begun, 1)
            done[arm, seed] = Run(arm, seed, dict(self.arms[arm]), seconds, figures)
            numbers = ", ".join(f"{k} {v:.4g}" for k, v in figures.items() if isinstance(v, float | int))
            report(f"{arm}, seed {seed}: {numbers} ({seconds:.0f} s)")
            self._store(path, done)
        return load_results(self.name, folder=folder)

    def _store(self, path: Path, done: Mapping[tuple[str, int], Run]) -> None:
        ordered = [done[arm, seed] for arm in self.arms for seed in self.seeds if (arm, seed) in done]
        content = {
            "study": self.name,
            "question": self.question,
            "provenance": provenance(self.name),
            "runs": [vars(run) for run in ordered],
        }
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)


def provenance(name: str) -> dict[str, str]:
    """What a reader needs to repeat the study."""
    return {"command": f"python -m tx_from_scratch.experiments {name}", **machine()}


def load_results(name: str, *, folder: Path = FOLDER) -> Results:
    """The stored results of a study.

    Raises:
        ValueError: nothing is stored under this name; lists what is.
    """
    path = folder / f"{name}.json"
    if not path.exists():
        stored = ", ".join(sorted(file.stem for file in folder.glob("*.json"))) or "none"
        raise ValueError(f"name must be a stored study ({stored}), got {name!r}")
    content = json.loads(path.read_text(encoding="utf-8"))
    return Results(
        content["study"],
        content["question"],
        content["provenance"],
        tuple(Run(**run) for run in content["runs"]),
    )
