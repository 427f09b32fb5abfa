"""Checkpoints: files that are whole or not there, written beside the old one and then put in its place."""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tx_from_scratch.history import History


def save_checkpoint(path: str | os.PathLike[str], content: Mapping[str, Any]) -> None:
    """Write tensors and plain Python values so that a crash at any moment leaves the old file or the new one.

    Missing folders are made.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            torch.save(dict(content), file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def load_checkpoint(
    path: str | os.PathLike[str], *, kind: str, device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote; only tensors and plain values are ever unpacked, never code.

    Args:
        path: the file.
        kind: what its entry "kind" must say.
        device: where the tensors go.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is no checkpoint, or one of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}")
    try:
        content = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        # torch.load has no exception of its own: EOFError, RuntimeError, UnpicklingError, ...
        problem = f"path must be a whole checkpoint file, got {path} ({type(error).__name__})"
        raise ValueError(problem) from error
    found = content.get("kind") if isinstance(content, dict) else type(content).__name__
    if found != kind:
        raise ValueError(f"path must be a checkpoint of kind {kind!r}, got {path} of kind {found!r}")
    return dict(content)


class TrainingCheckpoint:
    """What a checkpoint holds, and under which settings it may be continued."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        settings: dict[str, Any],
        path: str | os.PathLike[str] | None,
    ) -> None:
        self.model, self.optimizer, self.settings, self.path = model, optimizer, settings, path

    def save(self, history: History) -> None:
        if self.path is None:
            return
        content = {
            "kind": "training",
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": asdict(history),
            "settings": self.settings,
        }
        save_checkpoint(self.path, content)

    def load(self, device: torch.device) -> History:
        if self.path is None or not Path(self.path).exists():
            return History()
        content = load_checkpoint(self.path, kind="training", device=device)
        for name, value in self.settings.items():
            if content["settings"].get(name) != value:
                raise ValueError(
                    f"{name} must be {content['settings'].get(name)} to resume {self.path}, got {value}; "
                    "resume=False starts anew"
                )
        try:
            self.model.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"checkpoint {self.path} is of another model or optimizer: {error}") from error
        return History(**content["history"])
