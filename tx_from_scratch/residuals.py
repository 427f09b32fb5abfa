"""Residual connections: how a sublayer's output joins the stream.

Every connection wraps a sublayer F and maps the stream x, (batch, seq, d_model), to the next one:

    PostNorm    norm(x + dropout(F(x)))    Vaswani et al. 2017, arXiv:1706.03762
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

Stream = Float[Tensor, "batch seq d_model"]
Sublayer = Callable[[Stream], Stream]


class PostNorm(nn.Module):
    """Add what the sublayer found, then bring every position back to mean 0 and variance 1.

    norm(x + dropout(F(x))): the stream keeps its scale at any depth, but no path runs from the output to
    the input without passing a normalization, so deep stacks of these need warm-up.
    """

    def __init__(self, d_model: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Stream, sublayer: Sublayer) -> Stream:
        change = sublayer(x)
        if self.dropout.training:  # asking costs less than a call that does nothing
            change = self.dropout(change)
        return self.norm(x + change)
