"""Additive attention: a small network compares query and key, where the dot product multiplies them.

    dot product    score(q, k) = q · k / sqrt(d_k)             Vaswani et al. 2017, arXiv:1706.03762
    additive       score(q, k) = v · tanh(W q + U k)           Bahdanau et al. 2014, arXiv:1409.0473

tanh keeps every summand between -|v| and |v|, so the scores need no division. But each pair of positions has
a vector of its own inside the network, (batch, heads, query, key, d_hidden), which no matrix product avoids.
"""

from __future__ import annotations

import torch
from torch import nn

from tx_from_scratch.attention import (
    Attended,
    Key,
    Query,
    Value,
    Weights,
    check_attention_inputs,
    hide_unreadable,
    masked_softmax,
)
from tx_from_scratch.masks import Mask


class AdditiveAttention(nn.Module):
    """softmax over the keys of v · tanh(W q + U k), then the weighted mean of the values.

    All heads share W, U and v. Queries and keys are mapped once each; their sum is formed for every pair.
    W and U start with entries of variance 1 / d_head, v with variance 1 / d_hidden: for queries and keys of
    unit variance the size of the scores then depends on neither width.

    Args:
        d_head: width of queries and keys.
        d_hidden: width of the network that compares them; `d_head` when left out.

    Raises:
        TypeError: a width is not an integer.
        ValueError: a width is not positive.

    Source: Bahdanau et al. 2014, appendix A.1.2, arXiv:1409.0473.
    """

    def __init__(self, d_head: int, d_hidden: int | None = None) -> None:
        super().__init__()
        d_hidden = d_head if d_hidden is None else d_hidden
        if not all(isinstance(width, int) for width in (d_head, d_hidden)):
            raise TypeError(f"d_head and d_hidden must be integers, got {d_head!r} and {d_hidden!r}")
        if d_head < 1 or d_hidden < 1:
            raise ValueError(
                f"d_head and d_hidden must be positive, got d_head={d_head}, d_hidden={d_hidden}"
            )
        self.map_query = nn.Linear(d_head, d_hidden, bias=False)
        self.map_key = nn.Linear(d_head, d_hidden, bias=False)
        self.direction = nn.Parameter(torch.empty(d_hidden))
        for weight, width in (
            (self.map_query.weight, d_head),
            (self.map_key.weight, d_head),
            (self.direction, d_hidden),
        ):
            nn.init.normal_(weight, std=width**-0.5)

    def scores(self, query: Query, key: Key) -> Weights:
        """v · tanh(W q + U k) for every pair, (batch, heads, query, key)."""
        pairs = self.map_query(query)[..., :, None, :] + self.map_key(key)[..., None, :, :]
        return torch.tanh(pairs) @ self.direction  # (batch, heads, query, key, d_hidden) -> (..., query, key)

    def forward(
        self, query: Query, key: Key, value: Value, *, mask: Mask | None = None
    ) -> tuple[Attended, Weights]:
        """The attended values, (batch, heads, query, d_value), and the weights, (batch, heads, query, key).

        Args:
            query: (batch, heads, query, d_head).
            key: (batch, heads, key, d_head).
            value: (batch, heads, key, d_value).
            mask: Boolean, True = may attend, broadcastable to (batch, heads, query, key). A query that may
                attend to nothing yields zeros.

        Raises:
            TypeError: `mask` is not Boolean.
            ValueError: the shapes do not fit each other, or the width is not `d_head`.
        """
        check_attention_inputs(query, key, value, mask)
        d_head = self.map_query.in_features
        if query.shape[3] != d_head:
            raise ValueError(f"query and key must have width d_head={d_head}, got {query.shape[3]}")
        key, value = hide_unreadable(key, value, mask)
        weights = masked_softmax(self.scores(query, key), mask)
        return weights @ value, weights
