"""Feed-forward networks: what each position computes on its own.

FeedForward    max(0, x W_1 + b_1) W_2 + b_2        Vaswani et al. 2017, arXiv:1706.03762
SwiGLU         (silu(x W_gate) ⊙ x W_up) W_down     Shazeer 2020, arXiv:2002.05202
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tx_from_scratch.residuals import Stream


class FeedForward(nn.Module):
    """Widen, keep what is positive, narrow again: two matrices and a ReLU, the same at every position.

    Args:
        d_model: width of the stream.
        d_ff: width inside, four times `d_model` in the paper.
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        if d_ff < 1:
            raise ValueError(f"d_ff must be positive, got {d_ff}")
        self.widen = nn.Linear(d_model, d_ff)
        self.narrow = nn.Linear(d_ff, d_model)

    def forward(self, x: Stream) -> Stream:
        return self.narrow(torch.relu(self.widen(x)))


class SwiGLU(nn.Module):
    """Widen twice, and let one half decide how much of the other passes. No biases.

    Three matrices instead of two: for as many parameters as `FeedForward`, take two thirds of its `d_ff`.

    Args:
        d_model: width of the stream.
        d_ff: width inside.

    Raises:
        ValueError: `d_ff` is not positive.

    Source: Shazeer 2020, arXiv:2002.05202.
    """

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        if d_ff < 1:
            raise ValueError(f"d_ff must be positive, got {d_ff}")
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Stream) -> Stream:
        return self.down(F.silu(self.gate(x)) * self.up(x))
