"""Why attention divides by sqrt(d_k): scores grow with the width, the softmax saturates, gradients vanish."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import traitlets
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from tx_from_scratch.counter_random import normals
from tx_from_scratch.plots import COLORS
from tx_from_scratch.weight_statistics import entropy, softmax_jacobian_norm
from tx_from_scratch.widgets.base import Choice, RealNumber, Switch, WholeNumber, Widget

N_QUERIES, MAX_KEYS, MAX_WIDTH = 8, 64, 1024
FORMATS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CURVE_WIDTHS = tuple(4**power for power in range(6))


@dataclass(frozen=True)
class Saturation:
    """Scores and weights at one width, and what they are like.

    Attributes:
        scores: (query, key).
        weights: (query, key).
        spread: standard deviation of the scores.
        predicted: what theory says of it.
        entropy: nats, mean over the queries.
        largest: largest weight, mean over the queries.
        jacobian: norm of the softmax's Jacobian, mean over the queries.
        overflown: scores that are infinite.
        distinct: different values among the finite scores.
    """

    scores: Tensor
    weights: Tensor
    spread: float
    predicted: float
    entropy: float
    largest: float
    jacobian: float
    overflown: int
    distinct: int


def saturation(
    samples: Tensor, *, d_k: int, n_keys: int, scaled: bool, activation: float, number_format: str
) -> Saturation:
    """Attention scores of random queries and keys in a number format, and the softmax over each row.

    Numbers are rounded to the format where a GPU would: inputs, scores, weights; sums are more precise.
    As in `scaled_dot_product_attention` the query is divided, not the product.

    Args:
        samples: standard normal numbers, (N_QUERIES + MAX_KEYS, MAX_WIDTH): queries, then keys.
        d_k: how many entries of them to use.
        n_keys: how many keys to use.
        scaled: whether to divide by sqrt(d_k).
        activation: standard deviation of every entry of queries and keys.
        number_format: fp32, fp16 or bf16.
    """
    dtype = FORMATS[number_format]

    def rounded(numbers: Tensor) -> Tensor:
        return numbers.to(dtype).double()

    inputs = rounded(samples.double() * activation)[:, :d_k]
    query, key = inputs[:N_QUERIES], inputs[N_QUERIES : N_QUERIES + n_keys]
    if scaled:
        query = rounded(query / math.sqrt(d_k))
    scores = rounded(query @ key.T)
    weights = rounded(scores.softmax(dim=-1))
    finite = scores[scores.isfinite()]
    return Saturation(
        scores,
        weights,
        spread=float(scores.std(correction=0)),
        predicted=activation**2 * (1.0 if scaled else math.sqrt(d_k)),
        entropy=float(entropy(weights).mean()),
        largest=float(weights.amax(dim=-1).mean()),
        jacobian=float(softmax_jacobian_norm(weights).mean()),
        overflown=int(scores.isinf().sum()),
        distinct=len(torch.unique(finite)),
    )


class SoftmaxSaturation(Widget):
    """Scores of random queries and keys, the softmax over them, and what is left of its gradient.

    Move d_k from 1 to 1024 with and without the division by sqrt(d_k); change the number format to see scores
    overflow (fp16) or fall onto each other (bf16, of whose numbers there are few at any size).

    Args:
        d_k: width of queries and keys, 1 to 1024.
        n_keys: keys that share a query's attention, 2 to 64.
        scaled: divide by sqrt(d_k).
        activation: standard deviation of the entries of queries and keys, 1/16 to 256.
        number_format: fp32, fp16 or bf16.
        seed: of the random numbers, 0 to 9999.
        samples: the numbers themselves, float32, as bytes; made from `seed`, or set with `use`.

    Raises:
        ValueError: a setting is out of range.
        TypeError: a setting has the wrong type, or there is none of that name.
    """

    script = "softmax_saturation.js"

    d_k = WholeNumber(64, 1, MAX_WIDTH, "width of queries and keys")
    n_keys = WholeNumber(32, 2, MAX_KEYS, "keys that share a query's attention")
    scaled = Switch(False, "divide by sqrt(d_k)")
    activation = RealNumber(
        1.0, 1 / 16, 256.0, 1 / 16, "standard deviation of the entries of queries and keys"
    )
    number_format = Choice("fp32", tuple(FORMATS), "number format")
    seed = WholeNumber(0, 0, 9999, "seed of the random numbers")
    samples = traitlets.Bytes(help="float32, (N_QUERIES + MAX_KEYS, MAX_WIDTH)").tag(sync=True)

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if "samples" not in settings:
            self._draw_samples()

    @traitlets.observe("seed")
    def _draw_samples(self, change: object = None) -> None:
        numbers = normals(self.seed, (N_QUERIES + MAX_KEYS) * MAX_WIDTH)
        # The browser may have made them already; the last bit may differ between the two.
        if len(self.samples) != numbers.nbytes or not np.allclose(
            self.numbers().numpy().ravel(), numbers, atol=1e-5
        ):
            self.samples = numbers.astype("<f4").tobytes()

    @traitlets.validate("samples")
    def _check_samples(self, proposal: dict[str, Any]) -> bytes:
        samples = bytes(proposal["value"])
        wanted = 4 * (N_QUERIES + MAX_KEYS) * MAX_WIDTH
        if len(samples) != wanted:
            raise ValueError(f"samples must be {wanted} bytes of float32, got {len(samples)}")
        if not np.isfinite(np.frombuffer(samples, "<f4")).all():
            raise ValueError("samples must be finite, got NaN or infinity among them")
        return samples

    def use(self, queries: ArrayLike, keys: ArrayLike) -> None:
        """Show these queries, (8, 1024), and keys, (64, 1024), instead of random ones."""
        given = [np.asarray(numbers, dtype="<f4") for numbers in (queries, keys)]
        for name, numbers, rows in zip(("queries", "keys"), given, (N_QUERIES, MAX_KEYS), strict=True):
            if numbers.shape != (rows, MAX_WIDTH):
                raise ValueError(f"{name} must have shape {(rows, MAX_WIDTH)}, got {numbers.shape}")
        self.samples = np.concatenate(given).tobytes()

    def numbers(self) -> Tensor:
        """The samples, (N_QUERIES + MAX_KEYS, MAX_WIDTH)."""
        flat: NDArray[np.float32] = np.frombuffer(self.samples, "<f4").astype(np.float32)
        return torch.from_numpy(flat.reshape(N_QUERIES + MAX_KEYS, MAX_WIDTH))

    def measure(self, **changes: Any) -> Saturation:
        """What the library computes from the widget's settings, or from these with `changes`."""
        settings = {name: value for name, value in self.settings().items() if name != "seed"}
        return saturation(self.numbers(), **(settings | changes))

    def figure(self) -> Figure:
        """Scores, weights, and the Jacobian's norm over all widths."""
        here = self.measure()
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 2.6))
        finite = here.scores[here.scores.isfinite()].numpy()
        left.hist(finite, bins=31, color=COLORS[0])
        left.set(
            xlabel="score", ylabel="pairs", title=f"spread {here.spread:.3g}, predicted {here.predicted:.3g}"
        )
        middle.bar(range(self.n_keys), here.weights[0].numpy(), color=COLORS[1])
        middle.set(xlabel="key", ylabel="weight", ylim=(0, 1), title=f"entropy {here.entropy:.2f} nats")
        for divided, color in ((True, COLORS[2]), (False, COLORS[3])):
            curve = [self.measure(d_k=width, scaled=divided).jacobian for width in CURVE_WIDTHS]
            right.plot(
                CURVE_WIDTHS, curve, color=color, label="divided by sqrt(d_k)" if divided else "not divided"
            )
        right.plot(self.d_k, here.jacobian, "o", color="black")
        right.set(xlabel="d_k", ylabel="norm of the Jacobian", title="what a gradient keeps", ylim=(0, 0.5))
        right.legend(fontsize=8)
        right.set_xlim(1, MAX_WIDTH)  # where all scores overflow, there is no curve to take limits from
        right.set_xscale("log", base=2)
        return figure

    def describe(self) -> str:
        """The figures that the widget's read-out gives."""
        here = self.measure()
        division = "divided by sqrt(d_k)" if self.scaled else "not divided"
        return (
            f"Attention scores of width {self.d_k} in {self.number_format}, {division}: standard deviation "
            f"{here.spread:.3g} (predicted {here.predicted:.3g}). Softmax over {self.n_keys} keys: "
            f"largest weight {here.largest:.2f}, entropy {here.entropy:.2f} nats of "
            f"{math.log(self.n_keys):.2f} at most, norm of its Jacobian {here.jacobian:.3f}; "
            f"{here.overflown} of {here.scores.numel()} scores overflow."
        )
