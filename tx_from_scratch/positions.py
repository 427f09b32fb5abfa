"""Positions: what tells attention where a token stands.

sinusoidal    PE[p, 2i] = sin(p / 10000^(2i / d)),  PE[p, 2i + 1] = cos(the same angle)
              added to the embeddings                Vaswani et al. 2017, arXiv:1706.03762
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


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
    precise = torch.float32 if positions.device.type == "mps" else torch.float64
    exponent = torch.arange(0, d_model, 2, dtype=precise, device=positions.device) / d_model  # 2i / d_model
    angle = positions[..., None] / base**exponent  # (..., seq, columns 2i)
    hands = torch.stack([angle.sin(), angle.cos()], dim=-1)  # (..., seq, columns 2i, 2)
    return hands.flatten(-2)[..., :d_model].float()


class SinusoidalPositions(nn.Module):
    """Add the sinusoidal table to the embeddings. No parameters, no state, no longest length."""

    def forward(
        self,
        embeddings: Float[Tensor, "batch seq d_model"],
        positions: Int[Tensor, "#batch seq"],
        *,
        table: Float[Tensor, "rows d_model"] | None = None,
    ) -> Float[Tensor, "batch seq d_model"]:
        """Tell every embedding its position.

        Args:
            embeddings: (batch, seq, d_model).
            positions: integers, (batch, seq), or (1, seq) for all rows alike.
            table: rows 0, 1, 2, ... of the sinusoidal table where they are known already, as in decoding.
        """
        rows = sinusoidal_table(positions, embeddings.shape[-1]) if table is None else table[positions]
        return embeddings + rows.to(embeddings.dtype)
