"""What a position scheme adds to attention's scores, by distance, and what that alone would attend to."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
import traitlets
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from tx_from_scratch.plots import COLORS
from tx_from_scratch.positions import alibi_slopes, sinusoidal_table, t5_bucket
from tx_from_scratch.widgets.base import Choice, Switch, WholeNumber, Widget

MAX_HEADS, MAX_LENGTH = 16, 512
MAX_COLUMNS = {"t5": 1024, "transformer_xl": 4096, "shaw": 1023}
MAX_DISTANCE = 65_536
HELD = 0.9
"""Share of the weight that the counted keys hold."""
ROUNDING = 1e-9
"""So that ten equal weights are held by nine keys, however their sum is rounded."""
NAMES = {"alibi": "ALiBi", "t5": "T5", "transformer_xl": "Transformer-XL", "shaw": "Shaw"}


class Scheme(Choice):
    """One of the schemes that a widget has the numbers of."""

    def validate(self, obj: Any, value: Any) -> str:
        """Refuse a scheme without its learned table, and any other word."""
        if value not in obj.schemes:
            raise ValueError(
                f"scheme must be one of {', '.join(obj.schemes)} (learned ones have to be given); "
                f"got {value!r}"
            )
        return str(value)


class BiasExplorer(Widget):
    """Biases by distance as a map, as curves of all heads, and as the attention that they alone would give.

    ALiBi's are computed, for any number of heads. Learned ones are given, with heads first, as they are added
    to the scores, so with the attention's factor where the scheme has one:

        t5               scheme.gain * scheme.weight.T
        transformer_xl   torch.einsum("dhe,he->hd", scheme.project_distance[layer], scheme.distance_bias)
                         / math.sqrt(d_head)
        shaw             mean_query @ scheme.keys[layer].T / math.sqrt(d_head)

    Curves are dashed where no pair in training was as far apart. There ALiBi goes straight on, T5 ends in its
    last bucket and Shaw in its last entry, and the sinusoids of Transformer-XL go on oscillating.

    Args:
        t5: the table, (heads, buckets), 1 to 16 heads. Raffel et al. 2019, arXiv:1910.10683.
        transformer_xl: of the term v · W_R R that depends on the distance alone, the coefficients of R's
            sines and then of its cosines, (heads, d_model), d_model even. Dai et al. 2019, arXiv:1901.02860.
        shaw: products of a typical query with the table of keys, for key − query from −k to k,
            (heads, 2k + 1). Shaw et al. 2018, arXiv:1803.02155.
        t5_bidirectional: whether the second half of T5's buckets is for later keys.
        t5_max_distance: where T5's last bucket begins at the latest.
        settings: `scheme`, "alibi" (Press et al. 2021, arXiv:2108.12409) or one that is given as "t5",
            "transformer_xl" or "shaw"; `n_heads`, heads of ALiBi, 1 to 16; `head`, the one looked at, 0 to
            15; `length`, positions, 8 to 512; `causal`, whether later keys are hidden; `query` and `key`,
            the pair looked at, 0 to 511; `trained_length`, positions in training, 8 to 512. A head, query or
            key that there is not gives way to the last one that there is.

    Raises:
        ValueError: a table has another shape, holds NaN or infinity, or a setting is out of range.
        TypeError: a table holds no real numbers, a setting has the wrong type, or there is none of that name.
    """

    script = "bias_explorer.js"

    scheme = Scheme("alibi", tuple(NAMES), "scheme that is shown")
    n_heads = WholeNumber(8, 1, MAX_HEADS, "heads of ALiBi")
    head = WholeNumber(0, 0, MAX_HEADS - 1, "head that is looked at")
    length = WholeNumber(64, 8, MAX_LENGTH, "positions")
    causal = Switch(True, "whether later keys are hidden")
    query = WholeNumber(MAX_LENGTH - 1, 0, MAX_LENGTH - 1, "query that is looked at")
    key = WholeNumber(40, 0, MAX_LENGTH - 1, "key that is looked at")
    trained_length = WholeNumber(32, 8, MAX_LENGTH, "positions in training")

    _t5 = traitlets.Bytes(help="(heads, buckets), float32").tag(sync=True)
    _transformer_xl = traitlets.Bytes(help="(heads, d_model), float32").tag(sync=True)
    _shaw = traitlets.Bytes(help="(heads, 2k + 1), float32").tag(sync=True)
    _shapes = traitlets.Dict(help="shapes of the tables that are given, by scheme").tag(sync=True)
    _t5_rule = traitlets.Dict(help="how T5 makes buckets of distances").tag(sync=True)

    def __init__(
        self,
        *,
        t5: Any = None,
        transformer_xl: Any = None,
        shaw: Any = None,
        t5_bidirectional: bool = False,
        t5_max_distance: int = 128,
        **settings: Any,
    ) -> None:
        given = {"t5": t5, "transformer_xl": transformer_xl, "shaw": shaw}
        self.tables = {name: _table(name, table) for name, table in given.items() if table is not None}
        """What was given, by scheme, (heads, columns), in float32."""
        self._t5_options = _t5_options(self.tables.get("t5"), t5_bidirectional, t5_max_distance)
        super().__init__(
            **{f"_{name}": table.tobytes() for name, table in self.tables.items()},
            _shapes={name: list(table.shape) for name, table in self.tables.items()},
            _t5_rule={"bidirectional": t5_bidirectional, "max_distance": t5_max_distance},
            **settings,
        )

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes that can be shown: ALiBi, and those that were given."""
        return "alibi", *self.tables

    @property
    def heads(self) -> int:
        """How many heads the scheme has here."""
        return self.n_heads if self.scheme == "alibi" else len(self.tables[self.scheme])

    @property
    def place(self) -> tuple[int, int, int]:
        """The head, the query and the key that are shown: those asked for, or the last there are."""
        query = min(self.query, self.length - 1)
        return min(self.head, self.heads - 1), query, min(self.key, query if self.causal else self.length - 1)

    def by_distance(self, distances: Int[Tensor, " distances"]) -> Float[Tensor, "heads distances"]:
        """The bias of every head at these distances, query minus key, in float64."""
        if self.scheme == "alibi":
            return 0 - alibi_slopes(self.n_heads).double()[:, None] * distances.abs()  # never −0
        table = torch.from_numpy(self.tables[self.scheme]).double()
        if self.scheme == "t5":
            return table[:, t5_bucket(-distances, **self._t5_options)]
        if self.scheme == "shaw":
            farthest = table.shape[1] // 2
            return table[:, (-distances).clamp(-farthest, farthest) + farthest]
        codes = sinusoidal_table(distances, table.shape[1]).double()  # sine and cosine alternate
        return table @ torch.cat([codes[:, 0::2], codes[:, 1::2]], dim=1).T

    def bias(self) -> Float[Tensor, "query key"]:
        """What is added to the scores of the head shown, in float64; −infinity where a key is hidden."""
        head, positions = self.place[0], torch.arange(self.length)
        distances = positions[:, None] - positions  # (query, key)
        by_distance = self.by_distance(torch.arange(1 - self.length, self.length))[head]
        bias = by_distance[distances + self.length - 1]
        return bias.masked_fill(distances < 0, -math.inf) if self.causal else bias

    def weights(self) -> Float[Tensor, "heads key"]:
        """The attention of the query shown if its scores were the bias alone, over the keys it sees."""
        query = self.place[1]
        return self.by_distance(query - torch.arange(query + 1 if self.causal else self.length)).softmax(-1)

    def holding(self) -> list[int]:
        """For every head how many keys, the heaviest first, hold 90 % of these weights."""
        held = self.weights().sort(dim=-1, descending=True).values.cumsum(dim=-1)
        return [int(number) for number in (held < HELD - ROUNDING).sum(dim=-1) + 1]

    def figure(self) -> Figure:
        """The bias of one head as a map, that of all heads by distance, and the weights of one query."""
        head, query, key = self.place
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9.5, 3.1), width_ratios=(1.1, 1, 1))
        bias = self.bias().numpy()
        image = left.imshow(np.where(np.isfinite(bias), bias, np.nan), cmap="Blues", interpolation="nearest")
        left.set_facecolor("#dddddd")  # hidden
        left.axhline(query, color="black", linewidth=0.8)
        left.grid(visible=False)
        figure.colorbar(image, ax=left, shrink=0.7)
        left.set(title=f"{NAMES[self.scheme]}, head {head}", xlabel="key j", ylabel="query i")

        distances = torch.arange(0 if self.causal else 1 - self.length, self.length)
        curves = self.by_distance(distances).numpy()
        known = (distances.abs() < self.trained_length).numpy()
        self._draw_curves(middle, distances.numpy(), curves, known)
        ranged = curves[head : head + 1] if self.scheme == "alibi" else curves
        margin = 0.04 * float(np.ptp(ranged)) or 1.0
        middle.set_ylim(ranged.min() - margin, ranged.max() + margin)
        middle.plot(query - key, curves[head, query - key - int(distances[0])], "o", color="black")
        middle.set(title="bias, all heads", xlabel="distance i − j")

        weights = self.weights().numpy()
        keys = np.arange(weights.shape[1])
        self._draw_curves(right, keys, weights, np.abs(query - keys) < self.trained_length)
        right.plot(key, weights[head, key], "o", color="black")
        right.axhline(1 / len(keys), color=COLORS[1], linestyle=":", label="without a bias")
        right.set(title=f"weights of query {query}", xlabel="key j", ylim=(0, 1.08 * weights[head].max()))
        right.legend(fontsize=7)
        return figure

    def _draw_curves(
        self, axes: Axes, x: NDArray[np.int64], curves: NDArray[np.float64], known: NDArray[np.bool_]
    ) -> None:
        """The shown head in color over the others in gray, dashed where it is farther than in training."""
        chosen = self.place[0]
        # Neighbors of what is known belong to the dashed part too, so that it begins where the other ends.
        far = ~known
        far[:-1] |= ~known[1:]
        far[1:] |= ~known[:-1]
        for head in [*(head for head in range(self.heads) if head != chosen), chosen]:
            first = head == chosen
            look: dict[str, Any] = {
                "color": COLORS[0] if first else "#9a9a9a",
                "linewidth": 2 if first else 0.7,
            }
            axes.plot(
                x, np.where(known, curves[head], np.nan), label=f"head {head}" if first else None, **look
            )
            axes.plot(x, np.where(far, curves[head], np.nan), linestyle="--", **look)

    def describe(self) -> str:
        """The figures that the widget's read-out gives."""
        head, query, key = self.place
        distance, weights, holding = query - key, self.weights()[head], self.holding()[head]
        n_keys = len(weights)
        bias = float(self.by_distance(torch.tensor([distance]))[head])
        far = ""
        if abs(distance) >= self.trained_length:
            far = f", farther than any pair of {self.trained_length} training positions"
        return (
            f"{'Causal' if self.causal else 'Bidirectional'} attention over {self.length} positions. "
            f"{NAMES[self.scheme]}, head {head} of {self.heads}: {self._about(head, distance)}. "
            f"Query {query} and key {key}, distance {distance}: bias {bias:.4g}{far}. If the scores were the "
            f"bias alone, that key would get weight {float(weights[key]):.3g}, the last one "
            f"(key {n_keys - 1}) {float(weights[-1]):.3g}; without a bias each of {n_keys} gets "
            f"{1 / n_keys:.3g}. {holding} {'key holds' if holding == 1 else 'keys hold'} 90 % of the weight."
        )

    def _about(self, head: int, distance: int) -> str:
        """What the scheme says about the head and the distance."""
        if self.scheme == "alibi":
            return f"slope {float(alibi_slopes(self.n_heads)[head]):.3g}"
        columns = self.tables[self.scheme].shape[1]
        if self.scheme == "t5":
            bucket = int(t5_bucket(torch.tensor(-distance), **self._t5_options))
            return f"distance {distance} is in bucket {bucket} of {columns}"
        if self.scheme == "shaw":
            farthest = columns // 2
            entry = max(-farthest, min(farthest, -distance))
            return f"distance {distance} has entry {entry} of {-farthest} to {farthest}"
        return f"a sum of {columns // 2} sines and as many cosines"


def _table(name: str, given: Any) -> NDArray[np.float32]:
    """A learned table as (heads, columns) in float32, if that is what it is."""
    columns = {"t5": "buckets", "transformer_xl": "d_model", "shaw": "2k + 1"}[name]
    wanted = f"{name} must have shape (heads, {columns})"
    values = given.detach().cpu() if isinstance(given, Tensor) else given
    if isinstance(values, Tensor):
        values = values.double().numpy() if values.is_floating_point() else values.numpy()
    try:
        table = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{wanted}, got rows of different lengths: {error}") from None
    if table.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got {table.dtype}")
    if table.ndim != 2:
        raise ValueError(f"{wanted}, got {table.shape}")
    heads, width = table.shape
    if not 1 <= heads <= MAX_HEADS:
        hint = "; scheme.weight is (buckets, heads), so pass its transpose" if name == "t5" else ""
        raise ValueError(f"{wanted} with 1 to {MAX_HEADS} heads, got {table.shape}{hint}")
    if not 2 <= width <= MAX_COLUMNS[name]:
        raise ValueError(f"{wanted}, {columns} from 2 to {MAX_COLUMNS[name]}, got {table.shape}")
    if name == "transformer_xl" and width % 2:
        raise ValueError(f"{wanted}, d_model even: as many sines as cosines; got {table.shape}")
    if name == "shaw" and width % 2 == 0:
        raise ValueError(f"{wanted}, odd: one for each distance from -k to k; got {table.shape}")
    with np.errstate(over="ignore"):
        table = table.astype("<f4")
    if not np.isfinite(table).all():
        raise ValueError(f"{name} must be finite in float32, got NaN or infinity")
    return table


def _t5_options(table: NDArray[np.float32] | None, bidirectional: Any, max_distance: Any) -> dict[str, Any]:
    """The arguments of `t5_bucket`, if they go with each other."""
    if not isinstance(bidirectional, bool):
        raise TypeError(f"t5_bidirectional must be True or False, got {bidirectional!r}")
    if isinstance(max_distance, bool) or not isinstance(max_distance, int):
        raise TypeError(f"t5_max_distance must be an integer, got {max_distance!r}")
    if not 1 <= max_distance <= MAX_DISTANCE:
        raise ValueError(f"t5_max_distance must be from 1 to {MAX_DISTANCE}, got {max_distance}")
    if table is None:
        return {}
    options = {"bidirectional": bidirectional, "n_buckets": table.shape[1], "max_distance": max_distance}
    try:
        t5_bucket(torch.zeros(1, dtype=torch.long), **options)
    except ValueError as error:
        raise ValueError(f"t5 and t5_max_distance don't go together: {error}") from None
    return options
