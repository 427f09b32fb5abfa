"""Figures: one style for the whole book, legible to color-blind readers and on dark pages.

show        a figure with its alternative text
heat_map    a matrix as colored cells, with labels and readable numbers where there is room
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from IPython.display import Markdown, display
from matplotlib import style as matplotlib_style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import ArrayLike

# Okabe & Ito's palette, ordered so that neighbors differ in lightness too.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")

STYLE = {
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    # A white ground of its own, so that a figure reads the same on a light and on a dark page.
    "figure.facecolor": "white",
    "font.size": 9,
    "grid.alpha": 0.3,
    "image.cmap": "viridis",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
}


@contextmanager
def style() -> Iterator[None]:
    """The book's style inside the block."""
    with matplotlib_style.context(STYLE):
        yield


def use_style() -> None:
    """The book's style for the rest of the session; a chapter's setup cell calls it."""
    matplotlib_style.use(STYLE)


def show(figure: Figure, *, alt: str, caption: str) -> None:
    """Show a figure with its caption and alternative text, and close it.

    Args:
        figure: what to show.
        alt: what a reader who can't see it needs to know; the screen reader reads it out.
        caption: what to look for, in Markdown; stands below the figure.

    Raises:
        ValueError: `alt` or `caption` is empty.
    """
    if not alt.strip():
        raise ValueError("alt must describe the figure for readers who can't see it, got an empty text")
    if not caption.strip():
        raise ValueError("caption must say what to look for in the figure, got an empty text")
    picture = io.BytesIO()
    # No software version or date inside, so that the same figure is the same file.
    figure.savefig(picture, format="png", metadata={"Software": None})
    plt.close(figure)
    display(
        {"image/png": picture.getvalue(), "text/plain": alt},
        raw=True,
        metadata={"image/png": {"alt": alt}},
    )
    display(Markdown(f"*{caption}*"))


def heat_map(
    axes: Axes,
    matrix: ArrayLike,
    *,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    low: float | None = 0.0,
    high: float | None = None,
    numbers: str | None = None,
) -> AxesImage:
    """Draw a matrix as cells, row 0 on top.

    Args:
        axes: where to draw.
        matrix: (rows, columns).
        rows: labels, one for each row.
        columns: labels, one for each column.
        low: value of the darkest color; the smallest entry when None.
        high: value of the brightest color; the largest entry when None.
        numbers: a format such as ".2f", to print every value into its cell.

    Raises:
        ValueError: `matrix` is not a matrix, or a list of labels has another length.
    """
    values = np.asarray(matrix, dtype=float)
    if values.ndim != 2:
        raise ValueError(f"matrix must have shape (rows, columns), got {values.shape}")
    image = axes.imshow(values, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    axes.grid(False)
    for name, labels, size, axis in (
        ("rows", rows, values.shape[0], axes.yaxis),
        ("columns", columns, values.shape[1], axes.xaxis),
    ):
        if labels is None:
            continue
        if len(labels) != size:
            raise ValueError(f"{name} must hold {size} labels, got {len(labels)}")
        axis.set_ticks(range(size), labels=list(labels))
    if columns is not None and max(map(len, columns), default=0) > 2:
        axes.tick_params(axis="x", rotation=60)
    if numbers is not None:
        for (row, column), value in np.ndenumerate(values):
            red, green, blue, _ = image.cmap(image.norm(value))
            ink = "black" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "white"
            axes.text(column, row, format(value, numbers), ha="center", va="center", color=ink, fontsize=8)
    return image
