"""What layers cost: the paper's table with its constants, and with the projections that it leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from tx_from_scratch.complexity import (
    GATES,
    LayerCost,
    convolution,
    convolution_crossover,
    projections_crossover,
    recurrence,
    recurrence_crossover,
    recurrence_memory_crossover,
    restricted_attention,
    self_attention,
    weights_crossover,
)
from tx_from_scratch.plots import COLORS
from tx_from_scratch.widgets.base import Choice, Switch, WholeNumber, Widget

MIN_LENGTH, MAX_LENGTH = 16, 131_072
BYTES = {"fp32": 4, "bf16": 2}
CURVE_LENGTHS = tuple(MIN_LENGTH * 2**power for power in range(14))
LINES = ("-", "--", ":", "-.")


class Complexity(Widget):
    """FLOPs, memory, sequential steps and path length of the four layers of the paper's Table 1.

    Move the length to see which layer is cheaper where; count the projections or leave them out, as the paper
    does; compare with the gates of a GRU or an LSTM.

    Args:
        length: positions n, 16 to 131,072.
        d_model: width d, 64 to 8192.
        kernel_size: width k of the convolution, 1 to 31.
        n_neighbors: positions r that restricted attention reads, 8 to 4096.
        n_heads: attention heads h, 1 to 128; they cost memory, not FLOPs.
        projections: count the four projections of attention.
        cell: the recurrence: plain, GRU or LSTM.
        dilated: whether stacked convolutions have growing dilations, as the paper's path length assumes.
        materialized: whether attention keeps its weights for the backward pass; a fused kernel does not.
        number_format: fp32 or bf16, for the memory.

    Raises:
        ValueError: a setting is out of range.
        TypeError: a setting has the wrong type, or there is none of that name.
    """

    script = "complexity.js"

    length = WholeNumber(1024, MIN_LENGTH, MAX_LENGTH, "positions n")
    d_model = WholeNumber(512, 64, 8192, "width d")
    kernel_size = WholeNumber(3, 1, 31, "width k of the convolution")
    n_neighbors = WholeNumber(128, 8, 4096, "positions r that restricted attention reads")
    n_heads = WholeNumber(8, 1, 128, "attention heads h")
    projections = Switch(True, "count the four projections of attention")
    cell = Choice("LSTM", tuple(GATES), "recurrence")
    dilated = Switch(True, "stacked convolutions have growing dilations")
    materialized = Switch(True, "attention keeps its weights")
    number_format = Choice("fp32", tuple(BYTES), "number format of the memory")

    def costs(self, length: int | None = None) -> dict[str, LayerCost]:
        """What the library computes for the four layers, at the widget's length or another."""
        n = self.length if length is None else length
        d = self.d_model
        attention: dict[str, Any] = {
            "n_heads": self.n_heads,
            "projections": self.projections,
            "materialized": self.materialized,
        }
        return {
            "self-attention": self_attention(n, d, **attention),
            f"recurrence ({self.cell})": recurrence(n, d, cell=self.cell),
            f"convolution (k = {self.kernel_size})": convolution(
                n, d, kernel_size=self.kernel_size, dilated=self.dilated
            ),
            f"attention to {self.n_neighbors} neighbors": restricted_attention(
                n, d, n_neighbors=self.n_neighbors, **attention
            ),
        }

    def crossovers(self) -> Mapping[str, float | None]:
        """Lengths at which the order changes; None where it never does.

        recurrence, convolution: below it self-attention takes fewer FLOPs.
        neighbors: up to here attention to neighbors is self-attention.
        projections: from here on scores and weighted sum outweigh the projections.
        recurrence_memory: below it self-attention keeps less, with its weights kept.
        weights: from here on the weights outweigh all else that self-attention keeps.
        """
        d, projections, heads = self.d_model, self.projections, self.n_heads
        memory = recurrence_memory_crossover(d, n_heads=heads, cell=self.cell, projections=projections)
        return {
            "recurrence": recurrence_crossover(d, cell=self.cell, projections=projections),
            "convolution": convolution_crossover(d, kernel_size=self.kernel_size, projections=projections),
            "neighbors": self.n_neighbors,
            "projections": projections_crossover(d) if projections else None,
            "recurrence_memory": memory if self.materialized else None,
            "weights": weights_crossover(d, n_heads=heads, projections=projections)
            if self.materialized
            else None,
        }

    def figure(self) -> Figure:
        """FLOPs and memory of the four layers over the length."""
        figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
        lengths = np.array(sorted({*CURVE_LENGTHS, self.length, min(self.n_neighbors, MAX_LENGTH)}))
        curves = [self.costs(int(length)) for length in lengths]
        scale = BYTES[self.number_format]
        for name, color, line in zip(self.costs(), COLORS, LINES, strict=False):
            left.loglog(lengths, [costs[name].flops for costs in curves], line, color=color, label=name)
            right.loglog(lengths, [scale * costs[name].activations for costs in curves], line, color=color)
        for axes, label in ((left, "FLOPs"), (right, f"bytes kept, {self.number_format}")):
            axes.axvline(self.length, color="black", linewidth=1)
            axes.set(xlabel="length n", ylabel=label)
            axes.set_xscale("log", base=2)
        figure.legend(loc="outside lower center", ncols=4, fontsize=8)
        return figure

    def describe(self) -> str:
        """The table, and where self-attention is the cheaper layer."""
        counted = "with the four projections" if self.projections else "without the projections"
        scale = BYTES[self.number_format]
        rows = "; ".join(
            f"{name} {cost.flops:.3g} FLOPs, {scale * cost.activations:.3g} bytes, "
            f"sequential steps {cost.sequential}, longest path {'none' if cost.path is None else cost.path}"
            for name, cost in self.costs().items()
        )
        crossovers = self.crossovers()

        def below(name: str) -> str:
            value = crossovers[name]
            return "at no length" if value is None else f"below n = {value:,g}"

        return (
            f"Cost of one layer for {self.length:,} positions of width {self.d_model:,}, attention "
            f"{counted}: {rows}. Self-attention takes fewer FLOPs than the recurrence {below('recurrence')}, "
            f"than the convolution {below('convolution')}."
        )
