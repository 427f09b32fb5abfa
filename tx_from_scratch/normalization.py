"""Normalization: what keeps every position of the stream at one scale.

    LayerNorm    (x − mean) / sqrt(variance + ε) · γ + β    Ba et al. 2016, arXiv:1607.06450 (PyTorch's own)
    RMSNorm      x / sqrt(mean(x²) + ε) · γ                 Zhang & Sennrich 2019, arXiv:1910.07467

Neither mixes positions.
"""

from __future__ import annotations

import torch
from torch import nn

from tx_from_scratch.residuals import Stream


class RMSNorm(nn.Module):
    """Divide every position by its root mean square: a LayerNorm that neither centers nor shifts.

    The mean square is taken in at least float32, since squares of half-precision numbers overflow.

    Args:
        d_model: width of the stream.
        eps: keeps a position of zeros finite.

    Raises:
        ValueError: `d_model` or `eps` is not positive.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        if d_model < 1 or not eps > 0:
            raise ValueError(f"d_model and eps must be positive, got d_model={d_model}, eps={eps}")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Stream) -> Stream:
        precise = x if x.dtype == torch.float64 else x.float()
        scale = (precise.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return (precise * scale).to(x.dtype) * self.weight.to(x.dtype)
