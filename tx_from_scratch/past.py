"""What a language model keeps of tokens that it has seen, so that a pass computes only new ones.

    Cache            keys and values of everything so far, for decoding
    SegmentMemory    what each layer read of the last tokens, for training on segments of a long text
                     Dai et al. 2019, section 3.2, arXiv:1901.02860

Both remember where their tokens stand, and which are padding.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tx_from_scratch.attention import KeyValueCache
from tx_from_scratch.masks import Mask, check_mask
from tx_from_scratch.positions import Places, row_positions
from tx_from_scratch.positions.base import check_positions, check_sizes, holds_integers, kind

Tokens = Int[Tensor, "batch seq"]
Real = Bool[Tensor, "batch seq"]
RealKeys = Bool[Tensor, "batch key"]  # the past's and these
Positions = Int[Tensor, "#batch seq"]
Stream = Float[Tensor, "batch seq d_model"]
PastStream = Float[Tensor, "batch past d_model"]


class Past:
    """Where the tokens of the past stand, and which of them are padding. This base class remembers none."""

    def __init__(self) -> None:
        self.positions: Tensor | None = None  # (batch or 1, past)
        self.real: Tensor | None = None  # (batch, past); None: no padding
        self.consecutive = True
        self.next: int | Tensor = 0  # the position behind each row's last real token, (batch or 1, 1)
        self.rows: int | None = None

    @property
    def length(self) -> int:
        """How many tokens are remembered."""
        return 0 if self.positions is None else self.positions.shape[1]

    def locate(
        self,
        tokens: Tokens,
        real: Real | None,
        positions: Positions | None,
        longest: int | Int[Tensor, "batch"] | None,
    ) -> tuple[Places, RealKeys | None]:
        """Where these tokens and all before them stand, and which are real; nothing is remembered yet.

        Arguments as in `LanguageModel.forward`.

        Raises:
            TypeError: `real` is not Boolean, or `positions` are not integers.
            ValueError: they have not the shape of `tokens`, the past has another number of rows, or a row is
                longer than `longest` already.
        """
        if self.rows not in (None, len(tokens)):
            raise ValueError(f"tokens must have the {self.rows} rows of their past, got {len(tokens)}")
        if real is not None:
            check_mask(real, name="real")
            if real.shape != tokens.shape:
                raise ValueError(
                    f"real must have the shape of tokens, {tuple(tokens.shape)}, got {tuple(real.shape)}"
                )
        padded = real is not None or self.real is not None
        consecutive = self.consecutive and positions is None and not padded
        if positions is None:
            positions = self._count(tokens, real)
        check_positions(positions)
        positions = positions.long()  # differences of unsigned ones would wrap around
        if positions.shape[1] != tokens.shape[1] or positions.shape[0] not in (1, tokens.shape[0]):
            raise ValueError(
                f"positions must have shape {tuple(tokens.shape)} or (1, {tokens.shape[1]}), "
                f"got {tuple(positions.shape)}"
            )
        if padded:
            now = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
            real = now if self.positions is None else torch.cat([self._was_real(tokens), now], dim=1)
        keys = positions
        if self.positions is not None:
            rows = max(len(self.positions), len(positions))
            keys = torch.cat([self.positions.expand(rows, -1), positions.expand(rows, -1)], dim=1)
        new = self.n_new(tokens.shape[1])
        column = _column(longest, tokens)
        if longest is not None and column is not None:
            self._check_room(longest, column, keys, real)
        return Places(keys, tokens.shape[1], new, consecutive, column), real

    def remember(self, places: Places, real: RealKeys | None, rows: int) -> None:
        """Keep what `locate` found, once the pass over so many rows is done."""
        self.positions, self.real, self.consecutive = places.key, real, places.consecutive
        self.rows = rows
        if places.consecutive and isinstance(self.next, int):
            self.next += places.n_query  # no look at the positions, for which a GPU would have to wait
        else:
            asking = places.query if real is None else places.query.where(real[:, -places.n_query :], -1)
            self.next = (asking.amax(dim=1, keepdim=True) + 1).clamp_min(self.next)

    def _check_room(
        self,
        longest: int | Int[Tensor, "batch"],
        column: Int[Tensor, "#batch 1"],
        keys: Positions,
        real: RealKeys | None,
    ) -> None:
        """Refuse a row that holds more real tokens than it is ever to hold.

        Raises:
            ValueError: one does.
        """
        if torch.compiler.is_compiling() or keys.is_meta or self._least(longest) >= keys.shape[1]:
            return
        lengths = torch.full_like(column, keys.shape[1]) if real is None else real.sum(dim=1, keepdim=True)
        if (lengths > column).any():
            raise ValueError(
                f"longest must be at least the length of each row so far, {lengths.flatten().tolist()}, "
                f"got {column.flatten().tolist()}"
            )

    def _least(self, longest: int | Int[Tensor, "batch"]) -> int:
        """The smallest of them."""
        return int(longest.amin()) if isinstance(longest, Tensor) else longest

    def n_new(self, n_query: int) -> int:
        """How many keys a pass over so many tokens computes."""
        return n_query

    def _count(self, tokens: Tokens, real: Real | None) -> Positions:
        """Positions that go on where each row's real tokens ended; padding gets 0, which every scheme has."""
        if real is None and isinstance(self.next, int):
            return torch.arange(self.next, self.next + tokens.shape[1], device=tokens.device)[None]
        now = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        return (row_positions(now) + self.next).where(now, 0)

    def _was_real(self, tokens: Tokens) -> Bool[Tensor, "batch past"]:
        if self.real is not None:
            return self.real
        return torch.ones(len(tokens), self.length, dtype=torch.bool, device=tokens.device)


class Cache(Past):
    """Keys and values of all layers: decoding computes one token at a time and reads all before it.

    Args:
        n_layers: layers of the model.
        longest: how long each row is going to be, prompt and answer, for schemes that must know before they
            turn the first key (dynamic NTK).

    Raises:
        TypeError: `n_layers` or `longest` is no integer.
        ValueError: one of them is not positive, or `longest` has not the shape (batch,).
    """

    def __init__(self, n_layers: int, longest: int | Int[Tensor, "batch"] | None = None) -> None:
        super().__init__()
        check_sizes(n_layers=n_layers)
        self.layers = [KeyValueCache() for _ in range(n_layers)]
        self.longest = longest
        self._shortest = None if longest is None else check_longest(longest)

    def _least(self, longest: int | Int[Tensor, "batch"]) -> int:
        # Known from the start: a GPU need not be asked at every step.
        return super()._least(longest) if self._shortest is None else self._shortest


class SegmentMemory(Past):
    """What each layer read of the last tokens: a longer past for training, at the price of a forward pass.

    No gradient goes into it. With it a text is read segment by segment, each reading the one before:

        memory = SegmentMemory(n_layers, 64)
        for segment in segments:  # (batch, 64) each, following each other
            logits = model(segment, memory=memory)

    The positions go on from segment to segment, so a scheme must know distances rather than places: what was
    remembered with absolute positions in its embeddings still carries them.

    Args:
        n_layers: layers of the model.
        length: how many tokens to remember.

    Source: Dai et al. 2019, section 3.2, arXiv:1901.02860.
    """

    def __init__(self, n_layers: int, length: int) -> None:
        super().__init__()
        check_sizes(n_layers=n_layers, length=length)
        self.longest_memory = length
        self.states: list[Tensor | None] = [None] * n_layers

    def n_new(self, n_query: int) -> int:
        # Memory holds what the layers read, not keys: those are computed, and turned, anew.
        return self.length + n_query

    def extend(self, layer: int, x: Stream) -> PastStream | None:
        """What this layer read of the past, if anything; what it reads now is remembered."""
        past = self.states[layer]
        seen = x.detach() if past is None else torch.cat([past, x.detach()], dim=1)
        self.states[layer] = seen[:, -self.longest_memory :]
        return past

    def remember(self, places: Places, real: RealKeys | None, rows: int) -> None:
        super().remember(places, real, rows)
        self.positions = places.key[:, -self.longest_memory :]
        self.real = None if real is None else real[:, -self.longest_memory :]


def key_mask(real: RealKeys | None) -> Mask | None:
    """May attend where a token is real, (batch, 1, 1, key)."""
    return None if real is None else real[:, None, None, :]


def check_longest(longest: int | Int[Tensor, "batch"]) -> int:
    """Refuse lengths that no text can have, and return the smallest of them.

    Raises:
        TypeError: `longest` is neither an integer nor a tensor of integers.
        ValueError: it is not positive, or has not the shape (batch,).
    """
    if not isinstance(longest, Tensor):
        check_sizes(longest=longest)
        return longest
    if not holds_integers(longest):
        raise TypeError(f"longest must be an integer, or a tensor of integers, got {kind(longest)}")
    if longest.ndim != 1 or not len(longest):
        raise ValueError(f"longest must be an integer, or have shape (batch,), got {tuple(longest.shape)}")
    least = int(longest.amin())
    check_sizes(longest=least)
    return least


def _column(longest: int | Tensor | None, tokens: Tokens) -> Int[Tensor, "#batch 1"] | None:
    if longest is None:
        return None
    if not isinstance(longest, Tensor):
        check_sizes(longest=longest)
        return torch.tensor([[longest]], device=tokens.device)
    if longest.shape != tokens.shape[:1] or not holds_integers(longest):
        raise ValueError(
            f"longest must be an integer, or one for each of the {len(tokens)} rows, got "
            f"{longest.dtype} of shape {tuple(longest.shape)}"
        )
    return longest[:, None]
