"""The sinusoidal table: clock hands at many speeds, their products, and what one wrong exponent breaks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray
from torch import Tensor

from tx_from_scratch.plots import COLORS
from tx_from_scratch.positions import sinusoidal_table
from tx_from_scratch.widgets.base import Choice, RealNumber, WholeNumber, Widget

MAX_WIDTH, MAX_LENGTH, MAX_OFFSET = 256, 256, 64
NEARLY_CONSTANT = 0.01
"""A column counts as nearly constant when its standard deviation over the positions is below this."""
EXPONENTS = ("paper", "much-copied")
Numbers = NDArray[np.float64]


def frequencies(d_model: int, base: float, exponent: str) -> Numbers:
    """How far the hand of each column turns from one position to the next, in radians, (d_model,).

    Column c turns by base^(−2⌊c/2⌋ / d_model) in the paper, by base^(−2c / d_model) in the much-copied error.
    """
    column = np.arange(d_model)
    doubled = 2 * (column // 2) if exponent == "paper" else 2 * column
    turns: Numbers = float(base) ** (-doubled / d_model)
    return turns


def exact_table(positions: Numbers, d_model: int, base: float, exponent: str) -> Numbers:
    """The table in float64, (seq, d_model): the sine in even columns, the cosine in odd ones."""
    angle = positions[:, None] * frequencies(d_model, base, exponent)
    return np.where(np.arange(d_model) % 2 == 0, np.sin(angle), np.cos(angle))


def much_copied_table(
    positions: Int[Tensor, " seq"], d_model: int, *, base: float = 10_000.0
) -> Float[Tensor, "seq d_model"]:
    """An error, kept to be looked at: the table with the exponent 2c / d_model, c being the column.

    Tutorials loop over i = 0, 2, 4, ..., which is the column already, and double it again, for the cosine
    with another value than for the sine. Then no two columns share a frequency, half of them hardly change,
    and what the paper wants of the table is lost: a shift of the position is no rotation of it anymore. The
    table that the paper defines (Vaswani et al. 2017, section 3.5, arXiv:1706.03762) is
    `positions.sinusoidal_table`.

    Args:
        positions: integers, (seq,).
        d_model: width of the table.
        base: 10,000 in the paper.

    Returns:
        The table in float32, (seq, d_model).

    Raises:
        ValueError: `d_model` or `base` is not positive.
    """
    if d_model < 1:
        raise ValueError(f"d_model must be positive, got {d_model}")
    if base <= 0:
        raise ValueError(f"base must be positive, got {base}")
    return torch.from_numpy(
        exact_table(positions.numpy().astype(np.float64), d_model, base, "much-copied")
    ).float()


@dataclass(frozen=True)
class TableFacts:
    """What the table is like.

    Attributes:
        wavelengths: positions until each column repeats, (d_model,).
        nearly_constant: columns whose standard deviation over the positions is below NEARLY_CONSTANT.
        squared_norm: smallest and largest ‖PE(p)‖² over the positions.
        similarity_spread: how far PE(p)·PE(q) differs, at most, between positions at the same distance.
        angles: the rotation that takes each pair from p to p + k with the least squared error, in radians,
            (pairs,).
        errors: the largest distance over all p from the rotated hand to the hand at p + k, (pairs,).
    """

    wavelengths: Numbers
    nearly_constant: int
    squared_norm: tuple[float, float]
    similarity_spread: float
    angles: Numbers
    errors: Numbers


def table_facts(*, d_model: int, length: int, base: float, exponent: str, offset: int) -> TableFacts:
    """Measure a table of `length` positions; for the rotation it goes on for `offset` more."""
    table = exact_table(np.arange(length + offset, dtype=np.float64), d_model, base, exponent)
    here, there = table[:length], table[offset:]
    similarity = here @ here.T
    spread = max(float(np.ptp(similarity.diagonal(distance))) for distance in range(length))
    pairs = d_model // 2
    sine, cosine = here[:, 0 : 2 * pairs : 2], here[:, 1 : 2 * pairs : 2]  # (seq, pairs)
    next_sine, next_cosine = there[:, 0 : 2 * pairs : 2], there[:, 1 : 2 * pairs : 2]
    # Orthogonal Procrustes in the plane: of all rotations, the one with the least squared error.
    angles = np.arctan2(
        (next_sine * cosine - next_cosine * sine).sum(axis=0),
        (next_sine * sine + next_cosine * cosine).sum(axis=0),
    )
    turned_sine = sine * np.cos(angles) + cosine * np.sin(angles)
    turned_cosine = cosine * np.cos(angles) - sine * np.sin(angles)
    errors = np.hypot(turned_sine - next_sine, turned_cosine - next_cosine).max(axis=0)
    norms = np.diagonal(similarity)
    return TableFacts(
        wavelengths=2 * math.pi / frequencies(d_model, base, exponent),
        nearly_constant=int((here.std(axis=0) < NEARLY_CONSTANT).sum()),
        squared_norm=(float(norms.min()), float(norms.max())),
        similarity_spread=spread,
        angles=angles,
        errors=errors,
    )


class SinusoidalTable(Widget):
    """The sinusoidal position table, the products of its rows, and the rotation from p to p + k.

    Every pair of columns is a clock hand. With the paper's exponent its sine and cosine turn at one speed, so
    a step of k positions turns it by the same angle everywhere. The much-copied exponent loses that.

    Args:
        d_model: width of the table, 2 to 256. An odd one leaves its last sine without a cosine.
        length: positions in the table, 8 to 256.
        base: of the exponent, 100 to 1,000,000.
        exponent: "paper" for 2⌊c/2⌋/d_model, "much-copied" for 2c/d_model.
        position: the position p that is looked at; beyond the table its last one.
        offset: how many positions k the rotation goes on, 1 to 64.
        pair: which pair of columns, 2i and 2i + 1, is looked at; beyond the table the last one.

    Raises:
        ValueError: a setting is out of range.
        TypeError: a setting has the wrong type, or there is none of that name.
    """

    script = "sinusoidal_table.js"

    d_model = WholeNumber(64, 2, MAX_WIDTH, "width of the table")
    length = WholeNumber(128, 8, MAX_LENGTH, "positions in the table")
    base = RealNumber(10_000.0, 100.0, 1_000_000.0, 0.1, "base of the exponent")
    exponent = Choice("paper", EXPONENTS, "exponent")
    position = WholeNumber(20, 0, MAX_LENGTH - 1, "position p that is looked at")
    offset = WholeNumber(8, 1, MAX_OFFSET, "positions k that the rotation goes on")
    pair = WholeNumber(4, 0, MAX_WIDTH // 2 - 1, "pair of columns that is looked at")

    @property
    def place(self) -> tuple[int, int]:
        """The position and the pair that are shown: those asked for, or the last there are."""
        return min(self.position, self.length - 1), min(self.pair, self.d_model // 2 - 1)

    def table(self) -> Float[Tensor, "seq d_model"]:
        """The table in float32, as the library computes it."""
        positions = torch.arange(self.length)
        if self.exponent == "paper":
            return sinusoidal_table(positions, self.d_model, base=self.base)
        return much_copied_table(positions, self.d_model, base=self.base)

    def measure(self, **changes: Any) -> TableFacts:
        """What the library computes from the widget's settings, or from these with `changes`."""
        names = ("d_model", "length", "base", "exponent", "offset")
        return table_facts(**({name: getattr(self, name) for name in names} | changes))

    def figure(self) -> Figure:
        """The table, the products of its rows, and the chosen pair's hand turning."""
        table = self.table()
        similarity = (table @ table.T).numpy()
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.5, 3), width_ratios=(1.2, 1, 1))
        for axes, values, colors in ((left, table.numpy(), "PuOr_r"), (middle, similarity, "Blues")):
            low = -1 if axes is left else values.min()
            image = axes.imshow(
                values, cmap=colors, vmin=low, vmax=values.max(), aspect="auto", interpolation="nearest"
            )
            axes.grid(visible=False)
            figure.colorbar(image, ax=axes, shrink=0.8)
        name = "2⌊c/2⌋/d" if self.exponent == "paper" else "2c/d, an error"
        left.set(xlabel="column c", ylabel="position p", title=f"exponent {name}")
        middle.set(xlabel="position q", ylabel="position p", title="PE(p)·PE(q)")
        self._draw_clock(right)
        return figure

    def _draw_clock(self, axes: Axes) -> None:
        position, pair = self.place
        facts = self.measure()
        rows = np.arange(self.length + self.offset, dtype=np.float64)
        hands = exact_table(rows, self.d_model, self.base, self.exponent)[:, 2 * pair : 2 * pair + 2]
        (sine, cosine), there = hands[position], hands[position + self.offset]
        turn = facts.angles[pair]
        rotated = (
            sine * math.cos(turn) + cosine * math.sin(turn),
            cosine * math.cos(turn) - sine * math.sin(turn),
        )
        axes.add_patch(Circle((0, 0), 1, fill=False, color="gray"))
        axes.plot(*hands[: self.length].T, ".", markersize=3, color="gray", alpha=0.6)
        shown = (
            ((sine, cosine), "-", COLORS[0], f"p = {position}"),
            (there, "-", COLORS[1], f"p + k = {position + self.offset}"),
            (rotated, "--", COLORS[6], "p, rotated"),
        )
        for hand, line, color, label in shown:
            axes.plot([0, hand[0]], [0, hand[1]], line, color=color, label=label)
        axes.set(xlim=(-1.3, 1.3), ylim=(-2.1, 1.2), aspect="equal", xlabel="sine", ylabel="cosine")
        axes.set_title(f"pair {pair}, error at most {facts.errors[pair]:.2g}")
        axes.legend(fontsize=7, loc="lower center", ncols=2, handlelength=1.5, columnspacing=1.0)

    def describe(self) -> str:
        """The figures that the widget's read-out gives."""
        facts = self.measure()
        position, pair = self.place
        low, high = facts.squared_norm
        paper = self.exponent == "paper"
        name = "the paper's exponent 2⌊c/2⌋/d" if paper else "the much-copied wrong exponent 2c/d"
        return (
            f"Sinusoidal table of {self.length} positions and {self.d_model} columns with {name}, "
            f"base {self.base:,.0f}: wavelengths from {facts.wavelengths.min():.3g} to "
            f"{facts.wavelengths.max():.3g} positions, {facts.nearly_constant} of {self.d_model} columns "
            f"nearly constant. Squared norm of a position from {low:.4g} to {high:.4g}; products of "
            f"positions at the same distance differ by at most {facts.similarity_spread:.2g}. Pair {pair} at "
            f"position {position}: the best rotation for {self.offset} more positions turns by "
            f"{math.degrees(facts.angles[pair]) % 360:.1f} degrees and misses by at most "
            f"{facts.errors[pair]:.2g}; over all pairs by at most {facts.errors.max():.2g}."
        )
