"""Relative positions: the distance between two tokens joins the comparison of their contents.

    Shaw             q_i · (k_j + a^K_{j−i}),  and a^V_{j−i} is read with v_j    arXiv:1803.02155
    Transformer-XL   (q_i + u) · k_j + (q_i + v) · W_R R_{i−j}                   arXiv:1901.02860

Both are multiplied by 1 / sqrt(d_head) as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tx_from_scratch.attention import Key, Query, Weights
from tx_from_scratch.positions.absolute import sinusoidal_table
from tx_from_scratch.positions.base import (
    Attended,
    Places,
    PositionScheme,
    ScoreBias,
    check_sizes,
)


@dataclass(frozen=True)
class Distances:
    """The distances j − i that occur in one pass, and where.

    Attributes:
        values: the distances, ascending, (distances,); some of them may belong to no pair.
        index: which of `values` belongs to each pair, (batch, query, key); None if shifting finds it.
    """

    values: Int[Tensor, " distances"]
    index: Int[Tensor, "#batch query key"] | None

    def spread(self, scores: Float[Tensor, "batch heads query distances"], n_key: int) -> Weights:
        """Scores of queries and distances as scores of queries and keys."""
        if self.index is None:
            return relative_shift(scores, n_key)
        index = self.index[:, None].expand(*scores.shape[:3], n_key)
        return scores.gather(-1, index)

    @classmethod
    def of(cls, places: Places) -> Distances:
        """All distances of the pass, j − i ascending: the oldest key first, as the shift wants them."""
        if places.consecutive:
            n_query, n_key = places.n_query, places.key.shape[1]
            return cls(torch.arange(1 - n_key, n_query, device=places.key.device), None)
        relative = places.relative()
        low, high = (int(bound) for bound in relative.aminmax())
        if high - low >= relative.numel():  # far apart: most distances between them don't occur
            return cls(*torch.unique(relative, return_inverse=True))
        return cls(torch.arange(low, high + 1, device=relative.device), relative - low)


def relative_shift(
    scores: Float[Tensor, "batch heads query distances"], n_key: int
) -> Float[Tensor, "batch heads query key"]:
    """From a column for every distance to a column for every key, without an index.

    The columns hold the distances j − i = 1 − key, ..., query − 1, the queries being the last of the keys, so
    each row wants its `n_key` columns from one place further left than the row above. A column of zeros in
    front, read as if rows were one longer, does that for all rows at once. Every entry is exact, those of the
    future included.

    Args:
        scores: (batch, heads, query, key + query − 1).
        n_key: number of keys.

    Raises:
        ValueError: the number of columns is not key + query − 1.

    Source: Dai et al. 2019, appendix B, arXiv:1901.02860.
    """
    batch, heads, n_query, n_distances = scores.shape
    if n_distances != n_key + n_query - 1:
        raise ValueError(
            f"scores must have a column for each of {n_key} + {n_query} - 1 distances, got {n_distances}"
        )
    padded = torch.nn.functional.pad(scores, (1, 0))  # (batch, heads, query, key + query)
    shifted = padded.view(batch, heads, n_key + n_query, n_query)[:, :, 1:]
    return shifted.reshape(batch, heads, n_query, n_distances)[..., :n_key]


class ShawRelativePositions(PositionScheme):
    """Learn a vector for every distance up to k, to compare queries with, and another to read.

    e_ij = q_i · (k_j + a^K_{clip(j − i)}) / sqrt(d_head),   z_i = Σ_j α_ij (v_j + a^V_{clip(j − i)})

    Distances beyond ±k share the last vector. The heads share the vectors, the layers don't. What is read
    depends on the weights, so attention must materialize them.

    Args:
        n_layers: layers that have a table of their own.
        d_head: width of a head.
        max_distance: k; there are 2k + 1 vectors.
        values: whether a^V is there; without it nothing is read, and the fast kernels serve.

    Raises:
        TypeError, ValueError: a size is not a positive integer.

    Source: Shaw et al. 2018, section 3, arXiv:1803.02155.
    """

    def __init__(self, n_layers: int, d_head: int, *, max_distance: int = 16, values: bool = True) -> None:
        super().__init__()
        check_sizes(n_layers=n_layers, d_head=d_head, max_distance=max_distance)
        self.n_layers, self.d_head, self.max_distance = n_layers, d_head, max_distance
        self.reads_weights = values
        shape = (n_layers, 2 * max_distance + 1, d_head)
        self.keys = nn.Parameter(torch.empty(shape))
        self.values = nn.Parameter(torch.empty(shape)) if values else None
        for table in self.parameters():
            nn.init.normal_(table, std=d_head**-0.5)

    def rows(self, relative: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The row of the tables for these distances, key minus query."""
        return relative.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def prepare(self, places: Places) -> Int[Tensor, "#batch query key"]:
        return self.rows(places.relative())

    def bias(
        self, query: Query, key: Key, scale: float, prepared: Int[Tensor, "#batch query key"], layer: int
    ) -> ScoreBias:
        compared = query @ self.keys[layer].mT  # with every vector, (batch, heads, query, 2k + 1)
        return scale * compared.gather(-1, prepared[:, None].expand(*compared.shape[:3], key.shape[2]))

    def read(
        self, weights: Weights, prepared: Int[Tensor, "#batch query key"], layer: int
    ) -> Attended | None:
        if self.values is None:
            return None
        # Weights of equal distance are summed first: 2k + 1 vectors are read, not one for each pair.
        shares = weights.new_zeros(*weights.shape[:3], self.values.shape[1])
        shares = shares.scatter_add(-1, prepared[:, None].expand_as(weights), weights)
        return shares @ self.values[layer]


class TransformerXLPositions(PositionScheme):
    """Compare the query with the distance as well, and let every head prefer some contents and distances.

    A_ij = [ q_i · k_j + q_i · W_R R_{i−j} + u · k_j + v · W_R R_{i−j} ] / sqrt(d_head)

    R is the sinusoidal code of the distance, [sines | cosines]. W_R belongs to a layer; u and v, one vector
    for each head, are shared by all layers. Made for `past.SegmentMemory`: with absolute positions a
    remembered segment would claim the places of the current one.

    Args:
        n_layers: layers.
        d_model: width of R.
        n_heads: heads of every layer.
        d_head: width of a head.
        dropout: share of R dropped while training.

    Raises:
        TypeError, ValueError: a size is not a positive integer.

    Source: Dai et al. 2019, section 3.3, arXiv:1901.02860.
    """

    def __init__(
        self, n_layers: int, d_model: int, n_heads: int, d_head: int, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_sizes(n_layers=n_layers, d_model=d_model, n_heads=n_heads, d_head=d_head)
        self.n_layers, self.d_model, self.n_heads, self.d_head = n_layers, d_model, n_heads, d_head
        self.project_distance = nn.Parameter(torch.empty(n_layers, d_model, n_heads, d_head))  # W_R
        self.content_bias = nn.Parameter(torch.empty(n_heads, d_head))  # u
        self.distance_bias = nn.Parameter(torch.empty(n_heads, d_head))  # v
        self.dropout = nn.Dropout(dropout)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def codes(self, distance: Int[Tensor, " distances"]) -> Float[Tensor, "distances d_model"]:
        """R of these distances i − j: all sines, then all cosines."""
        table = sinusoidal_table(distance, self.d_model)
        return torch.cat([table[:, 0::2], table[:, 1::2]], dim=-1)

    def prepare(self, places: Places) -> tuple[Distances, Float[Tensor, "distances d_model"]]:
        distances = Distances.of(places)
        return distances, self.dropout(self.codes(-distances.values))

    def bias(
        self,
        query: Query,
        key: Key,
        scale: float,
        prepared: tuple[Distances, Float[Tensor, "distances d_model"]],
        layer: int,
    ) -> ScoreBias:
        distances, codes = prepared
        weight = self.project_distance[layer]  # W_R, (d_model, heads, d_head)
        projected = torch.einsum("nd,dhe->hen", codes.to(weight.dtype), weight)  # (heads, d_head, distances)
        asking = query + self.distance_bias[:, None].to(query.dtype)  # q + v
        by_distance = asking @ projected.to(query.dtype)
        by_content = key @ self.content_bias[..., None].to(key.dtype)  # u · k_j, (batch, heads, key, 1)
        return scale * (distances.spread(by_distance, key.shape[2]) + by_content.mT)
