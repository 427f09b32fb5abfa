"""What all widgets share: traits that refuse bad values, one self-contained script, a picture for paper.

A widget is one Python file and one JavaScript file of the same name. Its script and the parts of the drawing
kit that it imports are joined here into one module without imports, so that the same text runs in JupyterLab
and on a static page, with nothing to build and nothing to load.
"""

from __future__ import annotations

import io
import math
import re
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar

import anywidget
import matplotlib.pyplot as plt
import traitlets
from matplotlib.figure import Figure

from tx_from_scratch.plots import style

FOLDER = Path(__file__).parent
MAX_STATE = 1_000_000
"""Bytes that the data of one widget may take in a notebook."""

IMPORT = re.compile(r'^import \{[^}]*\} from "(\./[^"]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=function|const|let|class)", re.MULTILINE)


def join(script: Path) -> str:
    """A JavaScript module and all that it imports, as one module without imports.

    The imported modules lose their exports, so their top-level names must differ from each other's.

    Raises:
        ValueError: two modules import each other.
    """
    parts: dict[Path, str] = {}

    def add(path: Path, importers: tuple[Path, ...]) -> None:
        if path in importers:
            raise ValueError(f"script must not import itself, but {path.name} does, by way of others")
        if path in parts:
            return
        source = path.read_text(encoding="utf-8")
        for name in IMPORT.findall(source):
            add((path.parent / name).resolve(), (*importers, path))
        parts[path] = IMPORT.sub("", source)

    add(script.resolve(), ())
    *kit, own = parts.values()
    return "\n".join([*(EXPORT.sub("", part) for part in kit), own])


class WholeNumber(traitlets.Int[int, int]):
    """An integer from `low` to `high`, both included; only every `step`-th of them, counted from `low`."""

    def __init__(self, default: int, low: int, high: int, help: str, step: int = 1) -> None:
        super().__init__(default, help=f"{help}, {low} to {high}" + (f" by {step}" if step > 1 else ""))
        self.limits = [low, high, step]
        self.tag(sync=True)

    def validate(self, obj: Any, value: Any) -> int:
        """Refuse what is no integer or out of range."""
        if isinstance(value, bool) or not isinstance(value, Integral | Real) or value != value // 1:
            raise TypeError(
                f"{self.name} must be an integer from {self.limits[0]} to {self.limits[1]}, got {value!r}"
            )
        low, high, step = self.limits
        whole = int(_within(self.name, value, self.limits))
        if (whole - low) % step:
            raise ValueError(f"{self.name} must be from {low} to {high} in steps of {step}, got {value!r}")
        return whole


class RealNumber(traitlets.Float[float, float]):
    """A number from `low` to `high`, both included; a slider goes by `step`."""

    def __init__(self, default: float, low: float, high: float, step: float, help: str) -> None:
        super().__init__(default, help=f"{help}, {low:g} to {high:g}")
        self.limits = [low, high, step]
        self.tag(sync=True)

    def validate(self, obj: Any, value: Any) -> float:
        """Refuse what is no number or out of range."""
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(
                f"{self.name} must be a number from {self.limits[0]:g} to {self.limits[1]:g}, got {value!r}"
            )
        return float(_within(self.name, value, self.limits))


class Choice(traitlets.TraitType[str, str]):
    """One of a few words."""

    def __init__(self, default: str, options: tuple[str, ...], help: str) -> None:
        super().__init__(default, help=f"{help}: {', '.join(options)}")
        self.options = options
        self.tag(sync=True)

    def validate(self, obj: Any, value: Any) -> str:
        """Refuse any other word."""
        if value not in self.options:
            raise ValueError(f"{self.name} must be one of {', '.join(self.options)}; got {value!r}")
        return str(value)


class Switch(traitlets.TraitType[bool, bool]):
    """True or False."""

    def __init__(self, default: bool, help: str) -> None:
        super().__init__(default, help=help)
        self.tag(sync=True)

    def validate(self, obj: Any, value: Any) -> bool:
        """Refuse anything but True and False."""
        if not isinstance(value, bool):
            raise TypeError(f"{self.name} must be True or False, got {value!r}")
        return value


def _within(name: str | None, value: Any, limits: list[Any]) -> Any:
    low, high = limits[:2]
    if not (math.isfinite(value) and low <= value <= high):
        raise ValueError(f"{name} must be from {low:g} to {high:g}, got {value!r}")
    return value


class Widget(anywidget.AnyWidget):
    """An interactive figure that computes in the browser, with or without Python behind it.

    A subclass names its `script`, declares its traits, and draws the picture that stands for it on paper and
    where no script runs. Keyword arguments set traits; an unknown one is a TypeError.
    """

    script: ClassVar[str]
    _css = (FOLDER / "kit" / "widget.css").read_text(encoding="utf-8")
    _limits = traitlets.Dict().tag(sync=True)

    def __init_subclass__(cls, **options: Any) -> None:
        if "script" in cls.__dict__:  # not the classes that traitlets derives for itself
            cls._esm = join(FOLDER / cls.script)
        super().__init_subclass__(**options)

    def __init__(self, **settings: Any) -> None:
        for name in settings:
            if not self.has_trait(name):
                own = set(self.class_trait_names()) - set(anywidget.AnyWidget.class_trait_names())
                known = ", ".join(sorted(name for name in own if not name.startswith("_")))
                raise TypeError(f"{type(self).__name__} has no setting {name!r}; it has {known}")
        limits = {name: trait.limits for name, trait in self.traits().items() if hasattr(trait, "limits")}
        super().__init__(_limits=limits, **settings)

    def settings(self) -> dict[str, Any]:
        """The traits that a reader sets, by name."""
        kinds = (WholeNumber, RealNumber, Choice, Switch)
        return {
            name: getattr(self, name) for name, trait in self.traits().items() if isinstance(trait, kinds)
        }

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self.settings().items())
        return f"{type(self).__name__}({settings})"

    def figure(self) -> Figure:
        """What the widget shows now, as a picture."""
        raise NotImplementedError

    def describe(self) -> str:
        """What the picture shows, in words and numbers, for readers who can't see it."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """The live view, and beside it the picture with its alternative text."""
        bundle = super()._repr_mimebundle_(**options)
        assert bundle is not None  # it is when a widget has no view, and these have one
        picture = io.BytesIO()
        with style():
            figure = self.figure()
            figure.savefig(picture, format="png", metadata={"Software": None})
            plt.close(figure)
        data, metadata = bundle
        text = self.describe()
        return (
            {**data, "image/png": picture.getvalue(), "text/plain": text},
            {**metadata, "image/png": {"alt": text}},
        )
