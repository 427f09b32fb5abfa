"""Biases: a number for every distance, added to the scores.

    T5       a learned table; far distances share a row          Raffel et al. 2019, arXiv:1910.10683
    ALiBi    −m_h · |i − j|, a fixed slope for each head         Press et al. 2021, arXiv:2108.12409

The same in every layer, for every query.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tx_from_scratch.attention import Key, Query
from tx_from_scratch.positions.base import Places, PositionScheme, ScoreBias, check_sizes


def t5_bucket(
    relative: Int[Tensor, "*shape"], *, bidirectional: bool, n_buckets: int = 32, max_distance: int = 128
) -> Int[Tensor, "*shape"]:
    """The row of T5's table for a distance: near distances have a row each, far ones share.

    Of the rows for one direction (all of them if only the past can be read, half of them otherwise) the first
    half is exact. The others divide the distances from there to `max_distance` evenly in the logarithm, and
    the last one takes everything beyond. So 32 rows for the past alone begin at distances
    0, 1, ..., 16, 19, 21, ..., 113.

    Args:
        relative: position of the key minus position of the query.
        bidirectional: rows for the future too, in the second half of the table; without it the future gets
            row 0.
        n_buckets: rows of the table.
        max_distance: where the logarithm ends.

    Raises:
        ValueError: too few rows for an exact half, or `max_distance` lies within it.

    Source: Raffel et al. 2019, section 2.1, arXiv:1910.10683.
    """
    rows = n_buckets // 2 if bidirectional else n_buckets
    exact = rows // 2
    if exact < 1 or max_distance <= exact:
        raise ValueError(
            f"n_buckets must be at least {4 if bidirectional else 2} and max_distance above the {exact} "
            f"exact distances, got n_buckets={n_buckets}, max_distance={max_distance}"
        )
    distance = relative.abs() if bidirectional else (-relative).clamp_min(0)
    # The logarithm of near distances is never used; 1 in their place keeps it finite.
    share = (distance.clamp_min(1).float() / exact).log() / math.log(max_distance / exact)
    shared = (exact + (share * (rows - exact)).long()).clamp_max(rows - 1)
    bucket = torch.where(distance < exact, distance, shared)
    return bucket + rows * (relative > 0) if bidirectional else bucket


class T5RelativeBias(PositionScheme):
    """Add a learned number to every score, by head and by bucket of the distance. All layers share the table.

    T5 itself does without 1 / sqrt(d_head), by a smaller start of the query matrix; that is the attention's
    `scale`, not a matter of positions.

    Args:
        n_heads: heads of every layer.
        bidirectional: whether the future can be read, and has rows of its own.
        n_buckets: rows of the table.
        max_distance: from here on all distances share the last row (in effect from a little before).
        gain: multiplies the table. An optimizer such as Adam moves every number by about its rate, so a bias
            of several units takes thousands of steps; x-transformers takes sqrt(d_head), T5 itself 1.

    Raises:
        TypeError, ValueError: a size is not a positive integer, `gain` is not positive, or see `t5_bucket`.

    Source: Raffel et al. 2019, section 2.1, arXiv:1910.10683.
    """

    def __init__(
        self,
        n_heads: int,
        *,
        bidirectional: bool = False,
        n_buckets: int = 32,
        max_distance: int = 128,
        gain: float = 1.0,
    ) -> None:
        super().__init__()
        check_sizes(n_heads=n_heads, n_buckets=n_buckets, max_distance=max_distance)
        if not 0 < gain < math.inf:
            raise ValueError(f"gain must be a finite positive number, got {gain}")
        self.n_heads, self.gain = n_heads, gain
        self.bidirectional = bidirectional
        self.n_buckets, self.max_distance = n_buckets, max_distance
        self.buckets(torch.zeros(1, dtype=torch.long))  # refuses sizes that don't fit each other
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))
        nn.init.normal_(self.weight, std=0.02)

    def buckets(self, relative: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The rows of the table for these distances, key minus query."""
        return t5_bucket(
            relative,
            bidirectional=self.bidirectional,
            n_buckets=self.n_buckets,
            max_distance=self.max_distance,
        )

    def prepare(self, places: Places) -> ScoreBias:
        table = self.gain * self.weight
        return table[self.buckets(places.relative())].movedim(-1, 1)  # (batch, heads, query, key)

    def bias(self, query: Query, key: Key, scale: float, prepared: ScoreBias, layer: int) -> ScoreBias:
        return prepared


def alibi_slopes(n_heads: int) -> Float[Tensor, "heads"]:
    """How fast each head's bias falls with the distance.

    For a power of two n, head k = 1, ..., n has slope 2^(−8k/n). Other numbers take the slopes of the largest
    power of two below, and then every other slope of the next one: 12 heads have 1/2, 1/4, ..., 1/256 and
    then 2^-0.5, 2^-1.5, 2^-2.5, 2^-3.5.

    Raises:
        TypeError, ValueError: `n_heads` is not a positive integer.

    Source: Press et al. 2021, section 3, arXiv:2108.12409, and its code for other numbers of heads.
    """
    check_sizes(n_heads=n_heads)
    power = 2 ** (n_heads.bit_length() - 1)  # the largest power of two that is not above n_heads
    slopes = [2 ** (-8 * k / power) for k in range(1, power + 1)]
    between = [2 ** (-8 * k / (2 * power)) for k in range(1, 2 * power, 2)]
    return torch.tensor(slopes + between[: n_heads - power])


class ALiBi(PositionScheme):
    """Lower every score in proportion to the distance: near is good, at a different rate in each head.

    score − m_h · |i − j|, after the division by sqrt(d_head). Nothing is learned. Causal implementations
    often add +m_h · j instead, which differs by a number that all keys of a query share; for attention in
    both directions only the distance itself is right.

    Args:
        n_heads: any number of heads.

    Raises:
        TypeError, ValueError: `n_heads` is not a positive integer.

    Source: Press et al. 2021, arXiv:2108.12409.
    """

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        check_sizes(n_heads=n_heads)
        self.n_heads = n_heads

    def prepare(self, places: Places) -> ScoreBias:
        slopes = alibi_slopes(self.n_heads).to(places.key.device)
        return -slopes[:, None, None] * places.relative().abs()[:, None]  # (batch, heads, query, key)

    def bias(self, query: Query, key: Key, scale: float, prepared: ScoreBias, layer: int) -> ScoreBias:
        return prepared
