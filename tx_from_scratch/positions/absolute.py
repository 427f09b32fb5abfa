"""Absolute positions: something is added to each embedding that depends on where it stands.

    sinusoidal   PE[p, 2i] = sin(p / 10000^(2i / d)),  PE[p, 2i + 1] = cos(the same angle)
                                                          Vaswani et al. 2017, arXiv:1706.03762
    learned      a row of a trained table                 Gehring et al. 2017, arXiv:1705.03122
    none         nothing at all                           Haviv et al. 2022, arXiv:2203.16634

All of them act once, before the first layer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tx_from_scratch.positions.base import (
    PositionScheme,
    Rows,
    Stream,
    check_positions,
    check_sizes,
    precise_dtype,
)


def sinusoidal_table(
    positions: Int[Tensor, "*batch seq"], d_model: int, *, base: float = 10_000.0
) -> Float[Tensor, "*batch seq d_model"]:
    """Sine and cosine of every position at geometrically spaced frequencies.

    Column 2i is sin(p / base^(2i / d_model)), column 2i + 1 the cosine of the same angle, so that two
    neighboring columns form one clock hand. An odd width ends with a sine that has no cosine beside it.

    Args:
        positions: integer positions of any shape; negative ones are fine.
        d_model: width of the table.
        base: the slowest wavelength is a little below 2π · base positions.

    Returns:
        The table in float32, (..., seq, d_model); angles are computed in float64 where the device has it.

    Source: Vaswani et al. 2017, section 3.5, arXiv:1706.03762.
    """
    if d_model < 1:
        raise ValueError(f"d_model must be positive, got {d_model}")
    if base <= 0:
        raise ValueError(f"base must be positive, got {base}")
    precise = precise_dtype(positions.device)
    exponent = torch.arange(0, d_model, 2, dtype=precise, device=positions.device) / d_model  # 2i / d_model
    angle = positions[..., None] / base**exponent  # (..., seq, columns 2i)
    hands = torch.stack([angle.sin(), angle.cos()], dim=-1)  # (..., seq, columns 2i, 2)
    return hands.flatten(-2)[..., :d_model].float()


class SinusoidalPositions(PositionScheme):
    """Add the sinusoidal table to the embeddings. No parameters, no state, no longest length."""

    def forward(
        self, embeddings: Stream, positions: Rows, *, table: Float[Tensor, "rows d_model"] | None = None
    ) -> Stream:
        """Tell every embedding its position.

        Args:
            embeddings: (batch, seq, d_model).
            positions: integers, (batch, seq), or (1, seq) for all rows alike.
            table: rows 0, 1, 2, ... of the sinusoidal table where they are known already, as in decoding.
        """
        rows = sinusoidal_table(positions, embeddings.shape[-1]) if table is None else table[positions.long()]
        return embeddings + rows.to(embeddings.dtype)

    def embed(self, x: Stream, positions: Rows) -> Stream:
        return self(x, positions)


class LearnedPositions(PositionScheme):
    """Add a row of a trained table to every embedding: as free as can be, and it ends with its last row.

    Args:
        max_length: rows of the table; positions 0 to max_length - 1 exist.
        d_model: width of the stream.
        std: of the rows at the start. BERT and GPT-2 take 0.02, for token embeddings of the same size.

    Raises:
        TypeError, ValueError: a size is not a positive integer, or `std` is negative.

    Source: Gehring et al. 2017, section 3.1, arXiv:1705.03122; Devlin et al. 2018, arXiv:1810.04805.
    """

    def __init__(self, max_length: int, d_model: int, *, std: float = 0.02) -> None:
        super().__init__()
        check_sizes(max_length=max_length, d_model=d_model)
        if not 0 <= std < math.inf:
            raise ValueError(f"std must be a finite number, at least 0, got {std!r}")
        self.d_model, self.std = d_model, std
        self.table = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.table, std=std)

    def embed(self, x: Stream, positions: Rows) -> Stream:
        """Add every position's row.

        Raises:
            TypeError: `positions` are not integers.
            ValueError: a position has no row, or `x` has another width; nothing has been computed then.
        """
        check_positions(positions)
        positions = positions.long()  # narrower integers can't index
        if x.shape[-1] != self.d_model:
            raise ValueError(f"x must have width d_model={self.d_model}, got {x.shape[-1]}")
        self._check(positions)
        return x + F.embedding(positions, self.table).to(x.dtype)

    def interpolated(self, max_length: int) -> LearnedPositions:
        """A longer (or shorter) table: the same path through space, walked in `max_length` steps.

        The first and the last row stay; those between are linear mixtures of two neighbors.
        """
        longer = self._with_rows(max_length)
        path = self.table.detach().mT[None]  # (1, d_model, rows)
        rows = F.interpolate(path, max_length, mode="linear", align_corners=True)
        longer.table.data.copy_(rows[0].mT)
        return longer

    def extended(self, max_length: int) -> LearnedPositions:
        """A longer table: the trained rows, and behind them rows as they were before any training."""
        trained = self.table.shape[0]
        if max_length < trained:
            raise ValueError(f"max_length must be at least the {trained} rows there are, got {max_length}")
        longer = self._with_rows(max_length)
        longer.table.data[:trained] = self.table.detach()
        return longer

    def _with_rows(self, max_length: int) -> LearnedPositions:
        """An untrained table of this width, dtype and device."""
        return LearnedPositions(max_length, self.d_model, std=self.std).to(self.table)

    def _check(self, positions: Tensor) -> None:
        if torch.compiler.is_compiling() or positions.is_meta or not positions.numel():
            return  # there are no values to look at
        low, high = (int(bound) for bound in positions.aminmax())
        rows = self.table.shape[0]
        if low < 0 or high >= rows:
            raise ValueError(
                f"positions must be 0 to {rows - 1} (max_length={rows}), got {low if low < 0 else high}; a "
                "learned table has no other rows: train with a larger max_length, or see interpolated()"
            )


class NoPositions(PositionScheme):
    """Tell attention nothing. A causal mask still does: the first token sees one key, the tenth ten.

    Source: Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466.
    """
