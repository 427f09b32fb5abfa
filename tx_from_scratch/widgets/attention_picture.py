"""The picture of an attention map for paper, and for pages without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from tx_from_scratch.plots import COLORS, heat_map
from tx_from_scratch.widgets.tokens import visible

THUMBNAIL = 48
"""Cells of a small map, at most, in each direction."""
MOST_LABELS = 26
LONGEST_LABEL = 14


def pooled(matrix: NDArray[np.float32], rows: int, columns: int) -> NDArray[np.float32]:
    """A smaller matrix of which every entry is the largest of those in its place: no peak is lost.

    Args:
        matrix: (query, key).
        rows: at most this many; fewer when the matrix has fewer.
        columns: the same for columns.
    """
    for axis, most in enumerate((rows, columns)):
        count = matrix.shape[axis]
        if count > most:
            starts = -(-np.arange(most) * count // most)  # rounded up
            matrix = np.maximum.reduceat(matrix, starts, axis=axis)
    return matrix


def draw(
    maps: NDArray[np.float32],
    tokens: Sequence[str],
    key_tokens: Sequence[str],
    *,
    chosen: tuple[int, int],
    layers: Sequence[int],
    heads: Sequence[int],
    high: float | None,
    title: str,
) -> Figure:
    """All heads as small maps on the left, the chosen one with its tokens on the right.

    Args:
        maps: (layers, heads, query, key).
        tokens: of the queries.
        key_tokens: of the keys.
        chosen: layer and head to draw large.
        layers: their numbers.
        heads: their numbers.
        high: the weight of the brightest color; each map's largest when None.
        title: of the large map.
    """
    if maps.shape[:2] == (1, 1):
        figure, right = plt.subplots(figsize=(7, 4.6))
    else:
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.6), width_ratios=(2, 3))
        _small_maps(left, maps, layers, heads, high, chosen)
    large = maps[chosen]
    down, across = _labels(tokens), _labels(key_tokens)
    image = heat_map(right, pooled(large, 600, 600), high=high)
    image.set_extent((-0.5, len(key_tokens) - 0.5, len(tokens) - 0.5, -0.5))
    right.set_xticks(list(across), list(across.values()), rotation=60, ha="right", rotation_mode="anchor")
    right.set_yticks(list(down), list(down.values()))
    right.set(xlabel="key", ylabel="query", title=title)
    figure.colorbar(image, ax=right, label="weight")
    return figure


def _small_maps(
    axes: Axes,
    maps: NDArray[np.float32],
    layers: Sequence[int],
    heads: Sequence[int],
    high: float | None,
    chosen: tuple[int, int],
) -> None:
    """Every head in a cell of one image, with a gap between them."""
    small = [[pooled(head, THUMBNAIL, THUMBNAIL) for head in layer] for layer in maps]
    tall, wide = small[0][0].shape
    gap_down, gap_across = max(1, tall // 12), max(1, wide // 12)
    down, across = tall + gap_down, wide + gap_across
    sheet = np.full((len(layers) * down - gap_down, len(heads) * across - gap_across), np.nan)
    for layer, row in enumerate(small):
        for head, weights in enumerate(row):
            scale = high or float(weights.max()) or 1.0
            sheet[layer * down :, head * across :][:tall, :wide] = weights / scale
    image = heat_map(axes, sheet, high=1.0)
    image.set_extent((0, sheet.shape[1], sheet.shape[0], 0))
    shape = min(1.5, max(0.5, maps.shape[-2] / maps.shape[-1]))  # of a map that is long or wide, at most
    axes.set_aspect(shape * wide / tall, anchor="N")
    layer, head = chosen
    frame = Rectangle((head * across, layer * down), wide, tall, fill=False, color=COLORS[5], linewidth=2)
    axes.add_patch(frame)
    axes.set_xticks([index * across + wide / 2 for index in range(len(heads))], list(map(str, heads)))
    axes.set_yticks([index * down + tall / 2 for index in range(len(layers))], list(map(str, layers)))
    axes.set(xlabel="head", ylabel="layer", title="all heads")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _labels(tokens: Sequence[str]) -> dict[int, str]:
    """Where labels stand, and what they say: every token, or as many as there is room for."""
    every = -(-len(tokens) // MOST_LABELS)
    shown = range(0, len(tokens), every)
    return {index: _printable(visible(tokens[index], LONGEST_LABEL)) for index in shown}


def _printable(text: str) -> str:
    """The text without what the font lacks, and with dollar signs that start no formula."""
    return "".join(character if _has_glyph(character) else "□" for character in text).replace("$", r"\$")


@cache
def _has_glyph(character: str) -> bool:
    return bool(get_font(findfont(FontProperties())).get_char_index(ord(character)))
