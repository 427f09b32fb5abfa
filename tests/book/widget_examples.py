"""One of each widget that the library exports, for what all of them must be able to do."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tx_from_scratch import widgets
from tx_from_scratch.widgets.base import Widget

NAMES = tuple(widgets.__all__)


def _attention_map() -> Widget:
    generator = torch.Generator().manual_seed(1)
    weights = torch.randn(2, 2, 4, 4, generator=generator).softmax(dim=-1)
    return widgets.AttentionMap(weights, ["one", "two", "three", "four"])


def _bias_explorer() -> Widget:
    generator = torch.Generator().manual_seed(2)
    return widgets.BiasExplorer(
        t5=torch.randn(3, 8, generator=generator), transformer_xl=torch.randn(2, 6, generator=generator)
    )


# Widgets that need something to show, or show more if they get it; the others show something by themselves.
SPECIAL: dict[str, Callable[[], Widget]] = {"AttentionMap": _attention_map, "BiasExplorer": _bias_explorer}


def example(name: str) -> Widget:
    """A widget of this class."""
    made: Widget = SPECIAL.get(name, getattr(widgets, name))()
    return made
