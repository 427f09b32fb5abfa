"""Where every token looks: attention weights of all layers and heads, one of them large, with its tokens.

A map for each head, as in Vig 2019, arXiv:1906.05714 (BertViz), read on two axes instead of by lines alone,
with the figures that tell heads apart: how spread out the weights are, and how much lies on the diagonal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import traitlets
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tx_from_scratch.weight_statistics import entropy
from tx_from_scratch.widgets.attention_picture import draw
from tx_from_scratch.widgets.attention_weights import Chosen, Indices, choose, dequantize, quantize
from tx_from_scratch.widgets.base import FOLDER, MAX_STATE, Choice, WholeNumber, Widget
from tx_from_scratch.widgets.tokens import visible


class Position(WholeNumber):
    """An index into what a widget shows, of which every widget shows another number."""

    def __init__(self, default: int, help: str) -> None:
        super().__init__(default, default, 2**31 - 1, help)

    def validate(self, obj: Any, value: Any) -> int:
        """Refuse what is no integer or beyond what is shown."""
        low, high = self.limits[0], obj.counts[self.name] - 1
        error = f"{self.name} must be from {low} to {high}, got {value!r}"
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(error)
        if not low <= value <= high:
            raise ValueError(error)
        return int(value)


@dataclass(frozen=True)
class HeadStatistics:
    """What one head's weights are like.

    Attributes:
        entropy: nats, mean over the queries.
        diagonal_share: mean weight on the diagonal; NaN when none of it is shown.
        held: what the weights of a query sum to, mean over the queries; below 1 where keys are cut off.
        brightest: the query and the key with the largest weight.
        largest: that weight.
    """

    entropy: float
    diagonal_share: float
    held: float
    brightest: tuple[int, int]
    largest: float


class AttentionMap(Widget):
    """All heads as small maps, one of them large: as a map with its tokens, or as lines between them.

    Every head is shown by itself; nothing is ever averaged over heads, layers or the batch. Weights are kept
    in 16 bits each, and a notebook holds about 370,000 of them: choose layers, heads, or a window of a long
    sequence.

        with torch.no_grad(), capture_attention(model) as maps:
            model(source, target)
        AttentionMap(maps, target_words, source_words, pattern="decoder.layers.*.cross_attention")

    Args:
        weights: (layers, heads, query, key) or (layers, batch, heads, query, key), each weight from 0 to 1;
            or a list of one (batch, heads, query, key) for each layer; or the output of `capture_attention`.
            A row may sum to 0, as it does for a query that may attend to nothing.
        tokens: one for each query of the weights, also of those that `queries` cuts off.
        key_tokens: the same for the keys; those of the queries when left out.
        pattern: which of the captured modules, such as `encoder.layers.*.attention`.
        row: which sequence of the batch.
        layers: numbers of the layers to show, or a slice; all when left out.
        heads: numbers of the heads to show, or a slice; all when left out.
        queries: a slice of the queries to show.
        keys: a slice of the keys to show.
        settings: `layer` and `head`, counted among those shown, choose the large one; `view`, "map" or
            "lines"; `normalize`, which weight takes the brightest color: the largest of "each map", or 1 for
            "0 to 1"; `query` and `key`, counted among those shown, the tokens looked at, -1 for none.

    Raises:
        ValueError: weights and tokens differ in number, weights are no weights, a token is no string, a
            choice is out of range, or what is chosen takes more than a notebook should hold.
        TypeError: a setting has the wrong type, or there is none of that name.
    """

    script = "attention_map.js"
    _css = Widget._css + (FOLDER / "kit" / "tokens.css").read_text(encoding="utf-8")

    layer = Position(0, "the layer that is shown large, among those chosen")
    head = Position(0, "the head that is shown large, among those chosen")
    view = Choice("map", ("map", "lines"), "how the large one is drawn")
    normalize = Choice("each map", ("each map", "0 to 1"), "range of the colors")
    query = Position(-1, "the query that is looked at, -1 for none")
    key = Position(-1, "the key that is looked at, -1 for none")

    _weights = traitlets.Bytes(help="(layers, heads, query, key), uint16").tag(sync=True)
    # As bytes, which are stored in base64, a token can't end the script that holds the state of a page.
    _tokens = traitlets.Bytes(help="JSON: those of the queries shown, and those of the keys").tag(sync=True)
    _layers = traitlets.List(traitlets.Int(), help="numbers of the layers shown").tag(sync=True)
    _heads = traitlets.List(traitlets.Int(), help="numbers of the heads shown").tag(sync=True)
    _window = traitlets.Dict(
        help="queries and keys as [first, step, how many there are]; row of the batch as [row, batch]"
    ).tag(sync=True)

    def __init__(
        self,
        weights: Any,
        tokens: Iterable[str],
        key_tokens: Iterable[str] | None = None,
        *,
        pattern: str | None = None,
        row: int = 0,
        layers: Indices = None,
        heads: Indices = None,
        queries: slice | None = None,
        keys: slice | None = None,
        **settings: Any,
    ) -> None:
        chosen = choose(
            weights, pattern=pattern, row=row, layers=layers, heads=heads, queries=queries, keys=keys
        )
        if key_tokens is None and chosen.n_queries != chosen.n_keys:
            raise ValueError(
                f"key_tokens must name the {chosen.n_keys} keys, since there are {chosen.n_queries} queries; "
                "got none"
            )
        read = _checked("tokens", tokens, "queries", chosen.n_queries)
        seen = read if key_tokens is None else _checked("key_tokens", key_tokens, "keys", chosen.n_keys)
        self._names = [read[index] for index in chosen.queries], [seen[index] for index in chosen.keys]
        names = json.dumps(self._names).encode()
        _check_size(chosen, len(names))
        self.counts = dict(zip(("layer", "head", "query", "key"), chosen.shape, strict=True))
        super().__init__(
            _weights=quantize(chosen).tobytes(),
            _tokens=names,
            _layers=chosen.layer_numbers,
            _heads=chosen.head_numbers,
            _window={
                "queries": [chosen.queries.start, chosen.queries.step, chosen.n_queries],
                "keys": [chosen.keys.start, chosen.keys.step, chosen.n_keys],
                "batch": [row, chosen.batch],
            },
            **settings,
        )

    @property
    def maps(self) -> NDArray[np.float32]:
        """The weights as they are shown, (layers, heads, query, key), to 1 / 131,070."""
        integers = np.frombuffer(self._weights, "<u2").reshape(tuple(self.counts.values()))
        return dequantize(integers)

    def statistics(self, layer: int | None = None, head: int | None = None) -> HeadStatistics:
        """What the weights of a head are like; of the one that is shown large when left out.

        The diagonal is that of the whole map: a window shows a part of it, or none.

        Raises:
            IndexError: there is no such layer or head.
        """
        weights = self.maps[self.layer if layer is None else layer, self.head if head is None else head]
        query, key = np.unravel_index(weights.argmax(), weights.shape)
        rows, columns = self._diagonal()
        return HeadStatistics(
            entropy=float(entropy(torch.from_numpy(weights).double()).mean()),
            diagonal_share=float(weights[rows, columns].mean(dtype=float)) if len(rows) else math.nan,
            held=float(weights.sum(axis=-1, dtype=float).mean()),
            brightest=(int(query), int(key)),
            largest=float(weights[query, key]),
        )

    def _diagonal(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Where the diagonal of the whole map runs through what is shown, as in `diagonal_share`."""
        first, step, n_queries = self._window["queries"]
        first_key, key_step, n_keys = self._window["keys"]
        query = np.arange(self.counts["query"])
        key = (2 * (first + step * query) + 1) * n_keys // (2 * n_queries) - first_key
        shown = (key % key_step == 0) & (key >= 0) & (key < key_step * self.counts["key"])
        return query[shown], key[shown] // key_step

    def figure(self) -> Figure:
        """The head that is shown large, beside all heads as small maps."""
        high = None if self.normalize == "each map" else 1.0
        numbers = [str(self._layers[self.layer]), str(self._heads[self.head])]
        return draw(
            self.maps,
            *self._names,
            chosen=(self.layer, self.head),
            layers=self._layers,
            heads=self._heads,
            high=high,
            title="layer {}, head {}".format(*numbers),
        )

    def describe(self) -> str:
        """Sizes, the figures of the head that is shown large, and its strongest pair."""
        layers, heads, n_queries, n_keys = self.counts.values()
        here = self.statistics()
        query, key = (visible(names[index]) for names, index in zip(self._names, here.brightest, strict=True))
        share = (
            "none of the diagonal is shown"
            if math.isnan(here.diagonal_share)
            else (f"diagonal share {here.diagonal_share:.2f}")
        )
        return (
            f"Attention weights of {_count(layers, 'layer')} with {_count(heads, 'head')} each: "
            f"{_count(n_queries, 'query', 'queries')} by {_count(n_keys, 'key')}{self._cut()}. "
            f"Shown large: layer {self._layers[self.layer]}, head {self._heads[self.head]}: entropy "
            f"{here.entropy:.2f} nats, mean over the queries, of {math.log(n_keys):.2f} at most; {share}; "
            f"the largest weight is {here.largest:.2f}, from query {query} to key {key}."
        )

    def _cut(self) -> str:
        first, step, n_queries = self._window["queries"]
        first_key, key_step, n_keys = self._window["keys"]
        row, batch = self._window["batch"]
        whole = (n_queries, n_keys) == (self.counts["query"], self.counts["key"])
        parts = [] if whole else [f"a window into {n_queries:,} by {n_keys:,} from {first} and {first_key}"]
        if max(step, key_step) > 1:
            parts.append(f"in steps of {step} and {key_step}")
        if batch > 1:
            parts.append(f"sequence {row} of a batch of {batch}")
        return f" ({', '.join(parts)})" if parts else ""


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def _checked(name: str, tokens: Iterable[str], of: str, count: int) -> list[str]:
    """The tokens as a list of as many strings as the weights have rows or columns."""
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise ValueError(f"{name} must be a list of strings, got {tokens!r:.60}")
    tokens = list(tokens)
    for index, token in enumerate(tokens):
        if not isinstance(token, str):
            raise ValueError(f"{name} must be strings, got {token!r:.60} at index {index}")
    if not tokens:
        raise ValueError(f"{name} must hold at least one token, got none; the weights have {count} {of}")
    if len(tokens) != count:
        raise ValueError(f"{name} has {len(tokens)} tokens, but the weights have {count} {of}")
    return tokens


def _check_size(chosen: Chosen, token_bytes: int) -> None:
    """Refuse what a notebook should not hold, before anything of it is copied."""
    layers, heads, n_queries, n_keys = chosen.shape
    rest = _stored(token_bytes) + len(json.dumps([chosen.layer_numbers, chosen.head_numbers]))
    count = math.prod(chosen.shape)
    fits = max(0, (MAX_STATE - rest) // 4 * 3 // 2)
    if count <= fits:
        return
    one = n_queries * n_keys
    if one <= fits:
        advice = f"choose at most {fits // one} of the {layers * heads} maps with layers= and heads="
    else:
        advice = (
            "choose one map with layers= and heads=, and a part of it with queries= and keys=, such as "
            f"queries=slice(0, {max(1, fits // n_keys)})"
        )
    raise ValueError(
        f"weights of {layers} layers x {heads} heads x {n_queries} queries x {n_keys} keys and their tokens "
        f"take {rest + _stored(2 * count):,} bytes in a notebook, more than the {MAX_STATE:,} that a widget "
        f"may; {fits:,} weights fit. Please {advice}"
    )


def _stored(count: int) -> int:
    """Characters that so many bytes take in a notebook, which holds them in base64."""
    return (count + 2) // 3 * 4
