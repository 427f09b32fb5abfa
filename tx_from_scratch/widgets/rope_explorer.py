"""RoPE: which angles training has shown, which ones longer texts bring, and what scores make of distance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from tx_from_scratch.counter_random import normals
from tx_from_scratch.plots import COLORS
from tx_from_scratch.positions import (
    DynamicNTKScaling,
    LinearScaling,
    NTKScaling,
    RoPEScaling,
    YaRNScaling,
    rope_frequencies,
    rotate,
)
from tx_from_scratch.positions.rope_scaling import ntk_base
from tx_from_scratch.widgets.base import Choice, RealNumber, WholeNumber, Widget

MAX_WIDTH, MAX_LENGTH = 128, 4096
MAP_ROWS = 240  # more positions than that share rows
METHODS = {
    "none": "no scaling",
    "linear": "linear scaling (position interpolation)",
    "ntk": "NTK-aware scaling",
    "dynamic_ntk": "dynamic NTK scaling",
    "yarn_index": "YaRN with the ramp of its code",
    "yarn_rotations": "YaRN with the ramp of the paper",
}
VECTORS = ("constant", "random", "chosen")
LIMIT: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1}
"""Lines where training ends."""
UNSEEN = LinearSegmentedColormap.from_list("unseen", ["#f6cdc9", "#b3261e"])
"""Colors of angles that training has never shown, by their cosine."""


def scaling(method: str, *, trained_length: int, target_length: int) -> RoPEScaling:
    """The library's scaling of that name, for a text of `target_length` positions; factor 1 if it fits."""
    factor = max(1.0, target_length / trained_length)
    match method:
        case "none":
            return RoPEScaling()
        case "linear":
            return LinearScaling(factor)
        case "ntk":
            return NTKScaling(factor)
        case "dynamic_ntk":
            return DynamicNTKScaling(trained_length)
        case "yarn_index":
            return YaRNScaling(factor, trained_length, ramp="index")
        case "yarn_rotations":
            return YaRNScaling(factor, trained_length, ramp="rotations")
        case _:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")


def unseen_angles(
    turns: Float[Tensor, "positions pairs"], trained: Float[Tensor, " pairs"]
) -> Bool[Tensor, "positions pairs"]:
    """Which angles lie outside of what training has shown.

    In training pair i went from angle 0 through L θ_i. If that is a full turn or more, it was everywhere. If
    not, it never was at the angles beyond; whole turns are taken off first, since a rotation by them is none.
    The last trained position counts for the whole step that it begins, so that interpolated
    positions between L − 1 and L are seen.

    Args:
        turns: angles, in turns, (positions, pairs).
        trained: L θ_i in turns, (pairs,).
    """
    return (turns % 1 >= trained) & (trained < 1)


@dataclass(frozen=True)
class RoPEFacts:
    """What a setting of the widget amounts to, in float64.

    Attributes:
        theta: frequencies as trained, radians per position, (pairs,).
        frequencies: those in use at every position, (positions, pairs). For dynamic NTK row p is that of a
            text that ends at position p; for the others all rows are alike.
        trained: how far each pair turned in training, L θ_i, in turns, (pairs,). Pairs below 1 are slow: they
            have angles that training has never shown.
        unseen: those angles, (positions, pairs).
        factor: s at the position that is looked at.
        base: the base there, changed by NTK scaling only.
        attention_factor: multiplies cosines and sines.
        scores: of a query behind a key at distances 0, 1, ..., (positions,): as a share of q·k for constant
            vectors, else divided by √d.
        bound: RoFormer's upper bound for constant vectors, as a share of q·k, (positions,).
    """

    theta: Float[Tensor, " pairs"]
    frequencies: Float[Tensor, "positions pairs"]
    trained: Float[Tensor, " pairs"]
    unseen: Bool[Tensor, "positions pairs"]
    factor: float
    base: float
    attention_factor: float
    scores: Float[Tensor, " positions"]
    bound: Float[Tensor, " positions"]


def rope_facts(
    *,
    d_head: int,
    base: float,
    trained_length: int,
    target_length: int,
    method: str,
    position: int,
    vectors: str,
    seed: int,
    peak: int,
) -> RoPEFacts:
    """Measure what `RoPEExplorer` shows; `position` and `peak` are below `target_length`."""
    stretched = scaling(method, trained_length=trained_length, target_length=target_length)
    theta = rope_frequencies(d_head, base=base)
    places = torch.arange(target_length)[:, None]
    frequencies = stretched.frequencies(d_head, base, places + 1).expand(target_length, -1)
    trained = trained_length * (theta / (2 * math.pi))
    reached = position + 1 if method == "dynamic_ntk" else target_length
    factor = max(1.0, reached / trained_length)
    query, key = chosen_vectors(d_head, vectors, seed=seed, peak_angles=peak * frequencies[peak])
    scores = rotated_scores(query, key, places * frequencies) * stretched.attention_factor**2
    # Abel summation, the 2 entries of each pair being 1: |Σ_i 2 exp(i n θ_i)| ≤ 2 Σ_j |S_j|, and q·k is d.
    partial = torch.polar(torch.ones(()).double(), places * frequencies).cumsum(dim=-1)
    return RoPEFacts(
        theta=theta,
        frequencies=frequencies,
        trained=trained,
        unseen=unseen_angles(places * (frequencies / (2 * math.pi)), trained),
        factor=factor,
        base=float(ntk_base(d_head, base, factor)) if method.endswith("ntk") else base,
        attention_factor=stretched.attention_factor,
        scores=scores / (d_head if vectors == "constant" else math.sqrt(d_head)),
        bound=2 / d_head * partial.abs().sum(dim=-1) * stretched.attention_factor**2,
    )


def chosen_vectors(
    d_head: int, vectors: str, *, seed: int, peak_angles: Float[Tensor, " pairs"]
) -> tuple[Float[Tensor, " d_head"], Float[Tensor, " d_head"]]:
    """Query and key before the rotation: all ones, random, or turned apart by `peak_angles`.

    Of the last kind the key is (1, 0) in every pair and the query the same, turned back by the angles of some
    distance. At that distance the rotation brings all pairs together, and no other score can be larger.
    """
    if vectors == "constant":
        return torch.ones(d_head).double(), torch.ones(d_head).double()
    if vectors == "random":
        query, key = torch.from_numpy(normals(seed, 2 * MAX_WIDTH)).double().view(2, MAX_WIDTH)[:, :d_head]
        return query, key
    key = torch.cat([torch.ones_like(peak_angles), torch.zeros_like(peak_angles)])
    turned = rotate(
        key.view(1, 1, 1, -1), *(part.view(1, 1, 1, -1) for part in (peak_angles.cos(), -peak_angles.sin()))
    )
    return turned.flatten(), key


def rotated_scores(
    query: Float[Tensor, " d_head"], key: Float[Tensor, " d_head"], angles: Float[Tensor, "positions pairs"]
) -> Float[Tensor, " positions"]:
    """Products of the key, at position 0, with the query turned by each position's angles, (positions,)."""
    asking = query.expand(1, 1, len(angles), -1)
    return rotate(asking, angles.cos()[None, None], angles.sin()[None, None])[0, 0] @ key


def row_means(values: Float[Tensor, "positions pairs"]) -> NDArray[np.float64]:
    """What a map of at most MAP_ROWS rows shows, each the mean of its positions, (rows, pairs)."""
    positions = len(values)
    rows = min(positions, MAP_ROWS)
    starts = np.arange(rows + 1) * positions // rows
    means: NDArray[np.float64] = np.add.reduceat(values.numpy(), starts[:-1]) / np.diff(starts)[:, None]
    return means


class RoPEExplorer(Widget):
    """RoPE as clock hands: where each pair stands, where it has been in training, and what scores it makes.

    Let the text grow beyond the trained length: it is the slow pairs, those that never made a full turn,
    that come to angles the model has not seen. Scale the frequencies and they come back. Below, the score of
    a query with a key behind it: whether it falls with the distance depends on the two vectors.

    An angle counts as seen if training has shown the same rotation, whole turns taken off.

    Args:
        d_head: width of a head, an even number from 8 to 128.
        base: of the frequencies, 100 to 10,000,000.
        trained_length: positions L in training, 16 to 4096.
        target_length: positions L′ to read, 16 to 4096. The factor of the scaling is s = L′ / L, at least 1.
        method: "none", "linear", "ntk", "dynamic_ntk", "yarn_index" (the ramp of YaRN's code) or
            "yarn_rotations" (the ramp of its paper).
        position: the position that is looked at, and the distance; beyond the target length its last one.
        vectors: "constant", query and key are all ones; "random", both are normal; "chosen", the score is the
            largest at the distance `peak`.
        seed: of the random vectors, 0 to 999.
        peak: where the chosen vectors have their largest score; beyond the target length its last position.

    Raises:
        ValueError: a setting is out of range.
        TypeError: a setting has the wrong type, or there is none of that name.
    """

    script = "rope_explorer.js"

    d_head = WholeNumber(64, 8, MAX_WIDTH, "width of a head", step=2)
    base = RealNumber(10_000.0, 100.0, 10_000_000.0, 0.1, "base of the frequencies")
    trained_length = WholeNumber(512, 16, MAX_LENGTH, "positions in training")
    target_length = WholeNumber(2048, 16, MAX_LENGTH, "positions to read")
    method = Choice("none", tuple(METHODS), "scaling for longer texts")
    position = WholeNumber(1000, 0, MAX_LENGTH - 1, "position, or distance, that is looked at")
    vectors = Choice("constant", VECTORS, "query and key")
    seed = WholeNumber(0, 0, 999, "seed of the random vectors")
    peak = WholeNumber(777, 0, MAX_LENGTH - 1, "distance at which the chosen vectors' score is largest")

    def measure(self, **changes: Any) -> RoPEFacts:
        """What the library computes from the widget's settings, or from these with `changes`."""
        settings = self.settings() | changes
        for name in ("position", "peak"):
            settings[name] = min(settings[name], settings["target_length"] - 1)
        return rope_facts(**settings)

    @property
    def place(self) -> int:
        """The position that is shown: the one asked for, or the last there is."""
        return min(self.position, self.target_length - 1)

    def figure(self) -> Figure:
        """The angles, the frequencies' change, and the score against the distance."""
        facts = self.measure()
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.5, 3), width_ratios=(1, 1, 1.5))
        self._draw_angles(left, facts)
        self._draw_ratios(middle, facts)
        self._draw_scores(right, facts)
        return figure

    def _draw_angles(self, axes: Axes, facts: RoPEFacts) -> None:
        positions, pairs = facts.unseen.shape
        cosine = (torch.arange(positions)[:, None] * facts.frequencies).cos()
        unseen = row_means(facts.unseen.double()) > 0.5
        place: dict[str, Any] = {"aspect": "auto", "vmin": -1, "vmax": 1, "interpolation": "nearest"}
        place["extent"] = (-0.5, pairs - 0.5, positions, 0)
        for left_out, colors in ((unseen, "Blues"), (~unseen, UNSEEN)):
            axes.imshow(np.ma.masked_where(left_out, row_means(cosine)), cmap=colors, **place)
        if self.trained_length < positions:
            axes.axhline(self.trained_length, **LIMIT)
        axes.grid(visible=False)
        axes.set(xlabel="pair i", ylabel="position p", title="cosines; in red, angles never seen")

    def _draw_ratios(self, axes: Axes, facts: RoPEFacts) -> None:
        ratios = (facts.frequencies[self.place] / facts.theta).numpy()
        factor = max(1.0, self.target_length / self.trained_length)
        axes.plot(ratios, color=COLORS[0], label=METHODS[self.method].partition(" (")[0])
        axes.axhline(1 / factor, color=COLORS[2], linestyle=":", label=f"1/s = {1 / factor:.3g}")
        fast = int((facts.trained >= 1).sum())
        if fast < len(ratios):
            axes.axvline(fast, label="slower: under one turn", **LIMIT)
        axes.set(xlabel="pair i", ylabel="scaled θ / θ", ylim=(0, 1.5), title="frequencies")
        axes.legend(fontsize=7, loc="upper left")

    def _draw_scores(self, axes: Axes, facts: RoPEFacts) -> None:
        if self.vectors == "constant":
            # The bound is so loose that only its shape fits into the same plot; the words have its value.
            label = "shape of the upper bound, scaled to start at 1"
            axes.plot(facts.bound / facts.bound[0], color=COLORS[1], linestyle="--", label=label)
        axes.plot(facts.scores, color=COLORS[0], linewidth=0.8, label=f"{self.vectors} vectors")
        axes.plot(self.place, facts.scores[self.place], "o", color=COLORS[0])
        if self.trained_length < self.target_length:
            axes.axvline(self.trained_length, label="trained length", **LIMIT)
        name = "share of q·k" if self.vectors == "constant" else "q·k / √d"
        axes.set(xlabel="distance", ylabel=name, title="score of a query with a key behind it")
        axes.legend(fontsize=7, loc="upper right")

    def describe(self) -> str:
        """The figures that the widget's read-out gives."""
        facts, place = self.measure(), self.place
        wavelengths = 2 * math.pi / facts.theta
        slow, pairs = int((facts.trained < 1).sum()), len(facts.theta)
        share, outside = 100 * facts.unseen.double().mean(), int(facts.unseen[place].sum())
        return (
            f"RoPE of width {self.d_head}, base {self.base:,.0f}, {METHODS[self.method]}, trained on "
            f"{self.trained_length:,} positions and read to {self.target_length:,}: wavelengths from "
            f"{wavelengths[0]:.3g} to {wavelengths[-1]:,.0f} positions; {slow} of {pairs} pairs turn less "
            f"than once in training. {self._describe_scaling(facts)}{share:.3g} % of the angles were never "
            f"seen, at position {place} those of {outside} pairs. {self._describe_score(facts)}"
        )

    def _describe_scaling(self, facts: RoPEFacts) -> str:
        if self.method == "none":
            return ""
        slowest = 2 * math.pi / float(facts.frequencies[self.place, -1])
        text = f"In a text that ends at position {self.place}" if self.method == "dynamic_ntk" else "Scaled"
        words = f"{text} with s = {facts.factor:.3g}, the slowest wavelength is {slowest:,.0f}"
        if self.method.endswith("ntk"):
            words += f", the base {facts.base:,.0f}"
        if self.method.startswith("yarn"):
            words += f", cosines and sines are multiplied by {facts.attention_factor:.4g}"
        return f"{words}. "

    def _describe_score(self, facts: RoPEFacts) -> str:
        place, score = self.place, float(facts.scores[self.place])
        if self.vectors == "constant":
            rising = 100 * (facts.scores.diff() > 0).double().mean()
            return (
                f"At distance {place} the score of constant vectors is {score:.3g} of q·k, RoFormer's "
                f"bound allows up to {facts.bound[place]:.3g} times q·k; the score rises in {rising:.3g} % "
                f"of the steps to a longer distance."
            )
        largest = int(facts.scores.argmax())
        return (
            f"At distance {place} the score of {self.vectors} vectors is {score:.3g}; the largest, "
            f"{facts.scores[largest]:.3g}, is at distance {largest}."
        )
