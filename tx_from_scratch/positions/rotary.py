"""Rotary position embedding (RoPE): turn queries and keys by an angle that grows with the position.

    pair i of a query or key at position m is turned by m · θ_i,   θ_i = base^(−2i / d_head)

Turned by m and by n, two vectors have the product of the same vectors turned by m − n and 0: the score knows
the distance, and nothing else. Su et al. 2021, arXiv:2104.09864.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tx_from_scratch.attention import Key, Query
from tx_from_scratch.positions.base import (
    Places,
    PositionScheme,
    Rows,
    check_positions,
    check_sizes,
    kind,
)
from tx_from_scratch.positions.rope_scaling import DynamicNTKScaling, RoPEScaling

Layout = Literal["half_split", "interleaved"]
Angles = Float[Tensor, "#batch 1 seq pairs"]


def rotate(
    x: Float[Tensor, "batch heads seq d_head"], cosine: Angles, sine: Angles, *, layout: Layout = "half_split"
) -> Float[Tensor, "batch heads seq d_head"]:
    """Turn every pair of dimensions: (a, b) becomes (a cos − b sin, b cos + a sin).

    Args:
        x: queries or keys, (batch, heads, seq, d_head).
        cosine: of each pair's angle, broadcastable to (batch, heads, seq, d_head / 2).
        sine: likewise.
        layout: which dimensions form pair i: "half_split" takes i and i + d_head / 2 (GPT-NeoX; Llama, Qwen
            and Gemma in transformers), "interleaved" 2i and 2i + 1 (RoFormer, GPT-J, Meta's Llama code).

    Raises:
        ValueError: `layout` is unknown, or there is not one angle for every two dimensions.

    Source: Su et al. 2021, section 3.4.2, arXiv:2104.09864.
    """
    _check_layout(layout)
    if x.shape[-1] != 2 * cosine.shape[-1]:
        raise ValueError(
            f"cosine must have a column for every two dimensions of x, got {cosine.shape[-1]} columns for "
            f"{x.shape[-1]} dimensions"
        )
    cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
    a, b = x.chunk(2, dim=-1) if layout == "half_split" else (x[..., 0::2], x[..., 1::2])
    turned = (torch.addcmul(a * cosine, b, sine, value=-1), torch.addcmul(b * cosine, a, sine))
    return torch.cat(turned, dim=-1) if layout == "half_split" else torch.stack(turned, dim=-1).flatten(-2)


def _check_layout(layout: str) -> None:
    if layout not in ("half_split", "interleaved"):
        raise ValueError(f"layout must be 'half_split' or 'interleaved', got {layout!r}")


def half_split_order(d_head: int) -> Int[Tensor, " d_head"]:
    """The order of dimensions that turns interleaved weights into half-split ones: evens, then odds.

    With the rows of each head's W_Q and W_K put in this order, `weight[order]`, a model trained with one
    layout gives the same scores with the other. Mixing layouts without it raises no error, and is wrong.

    Raises:
        TypeError, ValueError: `d_head` is not a positive even integer.
    """
    check_sizes(d_head=d_head)
    if d_head % 2:
        raise ValueError(f"d_head must be even, got {d_head}")
    return torch.arange(d_head).view(-1, 2).mT.flatten()


class RotaryEmbedding(PositionScheme):
    """Turn queries and keys with their positions, in every layer; values and embeddings stay.

    Angles are computed in float64 where the device has it, for whatever integer positions are given, and
    rounded only as cosine and sine. There is no table that could be too short, cached for another offset, or
    cast to half precision along with the model.

    Args:
        d_head: width of a head.
        base: of the frequencies.
        layout: which dimensions form a pair, see `rotate`.
        rotated: how many leading dimensions are turned, an even number; all when None. GPT-J and GPT-NeoX
            leave part of each head as it is.
        scaling: other frequencies for longer texts, see `rope_scaling`.

    Raises:
        TypeError, ValueError: a size is not a positive even integer, `rotated` is above `d_head`, `base` is
            not above 1, or `layout` is unknown.

    Source: Su et al. 2021, arXiv:2104.09864.
    """

    def __init__(
        self,
        d_head: int,
        *,
        base: float = 10_000.0,
        layout: Layout = "half_split",
        rotated: int | None = None,
        scaling: RoPEScaling | None = None,
    ) -> None:
        super().__init__()
        self.d_head = d_head
        self.rotated = d_head if rotated is None else rotated
        self.base = base
        self.layout: Layout = layout
        self.scaling = RoPEScaling() if scaling is None else scaling
        check_sizes(d_head=d_head, rotated=self.rotated)
        if self.rotated % 2 or self.rotated > d_head:
            name = "d_head" if rotated is None else "rotated"
            raise ValueError(
                f"{name} must be even, since dimensions are rotated in pairs, and at most d_head={d_head}, "
                f"got {self.rotated}"
            )
        _check_layout(layout)
        if not isinstance(self.scaling, RoPEScaling):
            raise TypeError(f"scaling must be a RoPEScaling such as LinearScaling(2.0), got {scaling!r}")
        self.scaling.frequencies(self.rotated, base, 1)  # refuses what can't be rotated, or stretched
        self.needs_length = isinstance(self.scaling, DynamicNTKScaling)

    def forward(
        self, x: Float[Tensor, "batch heads seq d_head"], positions: Rows
    ) -> Float[Tensor, "batch heads seq d_head"]:
        """Turn queries or keys, (batch, heads, seq, d_head), at positions (batch, seq) or (1, seq).

        Raises:
            TypeError: `x` is no tensor of floating-point numbers, or `positions` are not integers.
            ValueError: `x` has not four dimensions, or `positions` are not one for every vector.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"x must be a tensor of floating-point numbers, got {kind(x)}")
        if x.ndim != 4:
            raise ValueError(f"x must have shape (batch, heads, seq, d_head), got {tuple(x.shape)}")
        check_positions(positions)
        if positions.shape[1] != x.shape[2] or positions.shape[0] not in (1, x.shape[0]):
            raise ValueError(
                f"positions must have shape ({x.shape[0]}, {x.shape[2]}) or (1, {x.shape[2]}), "
                f"got {tuple(positions.shape)}"
            )
        return self._turn(x, *self.prepare(Places.of(positions)))

    def angles(self, places: Places) -> Angles:
        """The angle of every pair at every new position, in radians, (batch, 1, seq, pairs)."""
        frequencies = self.scaling.frequencies(
            self.rotated, self.base, places.row_lengths(), device=places.key.device
        )
        if frequencies.ndim == 2:
            frequencies = frequencies[:, None, None]  # one row of frequencies for each row of the batch
        return places.new[:, None, :, None] * frequencies

    def prepare(self, places: Places) -> tuple[Angles, Angles]:
        angles = self.angles(places)
        factor = self.scaling.attention_factor
        return (angles.cos() * factor).float(), (angles.sin() * factor).float()

    def rotate(self, query: Query, key: Key, prepared: tuple[Angles, Angles]) -> tuple[Query, Key]:
        cosine, sine = prepared
        asking = slice(cosine.shape[2] - query.shape[2], None)  # the queries are the last of the new keys
        return self._turn(query, cosine[:, :, asking], sine[:, :, asking]), self._turn(key, cosine, sine)

    def _turn(
        self, x: Float[Tensor, "batch heads seq d_head"], cosine: Angles, sine: Angles
    ) -> Float[Tensor, "batch heads seq d_head"]:
        if x.shape[-1] != self.d_head:
            raise ValueError(f"queries and keys must have width d_head={self.d_head}, got {x.shape[-1]}")
        if self.rotated == self.d_head:
            return rotate(x, cosine, sine, layout=self.layout)
        turned = rotate(x[..., : self.rotated], cosine, sine, layout=self.layout)
        return torch.cat([turned, x[..., self.rotated :]], dim=-1)
