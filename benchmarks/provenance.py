"""Where and with what a run was made: numbers without that mean nothing later."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("torch", "transformers", "x-transformers", "numpy")


def provenance() -> dict[str, object]:
    """Date, commit, machine, threads, versions; no name of host or user."""
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_at_start": _load(),
        "python": platform.python_version(),
        "versions": {package: metadata.version(package) for package in PACKAGES},
    }


def _commit() -> str | None:
    """The commit that is checked out, marked where the tree differs from it; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    """The processor's name, which `platform.processor()` leaves out on Linux."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _load() -> float | None:
    """Processes that wanted to run, averaged over the last minute; far above zero, distrust the run."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
