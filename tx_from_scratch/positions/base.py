"""What a position scheme may change, and where the tokens of one pass stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tx_from_scratch.attention import Key, Query, Weights

Stream = Float[Tensor, "batch seq d_model"]
Rows = Int[Tensor, "#batch seq"]
Attended = Float[Tensor, "batch heads query d_head"]
ScoreBias = Float[Tensor, "#batch #heads #query key"]


@dataclass(frozen=True)
class Places:
    """Where the tokens of one pass stand. Self-attention only: the queries are the last of the keys.

    Attributes:
        key: positions of everything that may be read, (batch, key), or (1, key) for all rows alike.
        n_query: how many tokens ask; they stand at the last `n_query` of `key`.
        n_new: how many keys are computed in this pass, the last ones too; the others come from a cache.
        consecutive: every position is one more than the one before it, in all rows alike.
        longest: how long each row is going to be, (batch, 1), or (1, 1); None: as long as it is now.

    Raises:
        ValueError: there is no position, or `n_query` and `n_new` count more than there are.
    """

    key: Rows
    n_query: int
    n_new: int
    consecutive: bool = False
    longest: Int[Tensor, "#batch 1"] | None = None

    @classmethod
    def of(cls, positions: Rows, *, n_query: int | None = None, n_new: int | None = None) -> Places:
        """The places of tokens at these positions, (batch, seq), the last of which may be asking."""
        check_positions(positions)
        length = positions.shape[1]
        positions = positions.long()  # differences of unsigned ones would wrap around
        return cls(positions, length if n_query is None else n_query, length if n_new is None else n_new)

    def __post_init__(self) -> None:
        length = self.key.shape[1]
        if not 1 <= self.n_query <= self.n_new <= length:
            raise ValueError(
                f"n_query and n_new must be 1 <= n_query <= n_new <= {length}, the number of positions, got "
                f"n_query={self.n_query}, n_new={self.n_new}"
            )

    @property
    def query(self) -> Rows:
        """Positions of the tokens that ask, (batch, query)."""
        return self.key[:, -self.n_query :]

    @property
    def new(self) -> Rows:
        """Positions of the keys that are computed in this pass, (batch, new)."""
        return self.key[:, -self.n_new :]

    def relative(self) -> Int[Tensor, "#batch query key"]:
        """Position of the key minus position of the query: negative for the past."""
        return self.key[:, None, :] - self.query[:, :, None]

    def row_lengths(self) -> Int[Tensor, "#batch 1"]:
        """How long each row is going to be, as far as is known."""
        return self.key.amax(dim=1, keepdim=True) + 1 if self.longest is None else self.longest


class PositionScheme(nn.Module):
    """Tells attention where tokens stand. This base class tells it nothing.

    A scheme acts in one of four places, and overrides only the method that belongs to it:

        embed     the embeddings, before the first layer       sinusoidal, learned
        rotate    queries and keys, in every layer             RoPE
        bias      the scores, in every layer                   T5, ALiBi, Transformer-XL, Shaw
        read      what attention reads, in every layer         Shaw

    One scheme serves all layers; one with parameters for each layer is told the layer's number. What all
    layers share in one pass is computed once, by `prepare`, and handed to the methods.
    """

    reads_weights = False
    """Whether `read` has something to add, for which the attention weights must be materialized."""

    needs_length = False
    """Whether a key depends on how long its text is going to be, which a cache must know from the start."""

    def embed(self, x: Stream, positions: Rows) -> Stream:
        """The embeddings, (batch, seq, d_model), with their positions, (batch, seq) or (1, seq)."""
        return x

    def prepare(self, places: Places) -> Any:
        """What the layers of one pass share: angles, distances, biases."""
        return None

    def rotate(self, query: Query, key: Key, prepared: Any) -> tuple[Query, Key]:
        """Queries, and the keys computed in this pass, as they are compared (and cached)."""
        return query, key

    def bias(self, query: Query, key: Key, scale: float, prepared: Any, layer: int) -> ScoreBias | None:
        """What is added to the scores, which are `scale` times the products of `query` and all of `key`."""
        return None

    def read(self, weights: Weights, prepared: Any, layer: int) -> Attended | None:
        """What is added to the attended values, (batch, heads, query, d_head)."""
        return None


class LayerPositions(NamedTuple):
    """A scheme in one layer of one pass: what attention is given."""

    scheme: PositionScheme
    prepared: Any
    layer: int

    @property
    def reads_weights(self) -> bool:
        """Whether `read` needs the attention weights."""
        return self.scheme.reads_weights

    def rotate(self, query: Query, key: Key) -> tuple[Query, Key]:
        """See `PositionScheme.rotate`."""
        return self.scheme.rotate(query, key, self.prepared)

    def bias(self, query: Query, key: Key, scale: float) -> ScoreBias | None:
        """See `PositionScheme.bias`."""
        return self.scheme.bias(query, key, scale, self.prepared, self.layer)

    def read(self, weights: Weights) -> Attended | None:
        """See `PositionScheme.read`."""
        return self.scheme.read(weights, self.prepared, self.layer)


def row_positions(real: Bool[Tensor, "batch seq"]) -> Int[Tensor, "batch seq"]:
    """Positions of the real tokens of every row, counted from 0; padding before them gets 0 too.

        real   0 0 1 1 1     positions   0 0 0 1 2

    So a token's position does not depend on how much padding stands before it.
    """
    return (real.cumsum(dim=1) - 1).clamp_min(0)


def precise_dtype(device: torch.device) -> torch.dtype:
    """The most precise float type that a device computes with: float64, except on Apple's GPUs."""
    return torch.float32 if device.type == "mps" else torch.float64


def holds_integers(tensor: Tensor) -> bool:
    """Whether these are whole numbers by their type: neither fractions, nor complex, nor Boolean."""
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def kind(value: object) -> str:
    """What error messages call this: the dtype of a tensor, in other cases the type."""
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__


def check_positions(positions: Tensor) -> None:
    """Refuse positions that are no integers, or no rows of them.

    Raises:
        TypeError: `positions` are no tensor of integers.
        ValueError: they have not the shape (batch, seq).
    """
    if not isinstance(positions, Tensor) or not holds_integers(positions):
        raise TypeError(f"positions must be integers, got {kind(positions)}")
    if positions.ndim != 2:
        raise ValueError(f"positions must have shape (batch, seq), got {tuple(positions.shape)}")


def check_sizes(**sizes: int) -> None:
    """Refuse sizes that are not positive integers.

    Raises:
        TypeError: one is no integer.
        ValueError: one is not positive.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name} must be an integer, got {size!r}")
        if size < 1:
            raise ValueError(f"{name} must be positive, got {size}")
