"""Residual connections: how a sublayer's output joins the stream.

Every connection wraps a sublayer F and maps the stream x, (batch, seq, d_model), to the next one:

    PostNorm    norm(x + dropout(F(x)))    Vaswani et al. 2017, arXiv:1706.03762
    PreNorm     x + dropout(F(norm(x)))    Xiong et al. 2020, arXiv:2002.04745
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

Stream = Float[Tensor, "batch seq d_model"]
Sublayer = Callable[[Stream], Stream]
Norm = Callable[[int], nn.Module]
"""Makes a normalization for a width: a class such as `nn.LayerNorm`."""


class PostNorm(nn.Module):
    """Add what the sublayer found, then bring every position back to mean 0 and variance 1.

    norm(x + dropout(F(x))): the stream keeps its scale at any depth, but no path runs from the output to
    the input without passing a normalization, so deep stacks of these need warm-up.
    """

    leaves_normalized = True
    """Whether the stream is normalized where it leaves, so that whoever reads it need not do so."""

    def __init__(self, d_model: int, *, norm: Norm = nn.LayerNorm, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Stream, sublayer: Sublayer) -> Stream:
        change = sublayer(x)
        if self.dropout.training:  # asking costs less than a call that does nothing
            change = self.dropout(change)
        return self.norm(x + change)

    def reads(self, x: Stream) -> Stream:
        """What a sublayer is given of the stream: the stream itself."""
        return x


class PreNorm(nn.Module):
    """Normalize what the sublayer reads; leave the stream itself untouched.

    x + dropout(F(norm(x))): the gradient always has the identity path. The stream's variance grows with
    depth, so a stack of these needs one more normalization before whatever reads its end.
    """

    leaves_normalized = False

    def __init__(self, d_model: int, *, norm: Norm = nn.LayerNorm, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm(d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Stream, sublayer: Sublayer) -> Stream:
        change = sublayer(self.reads(x))
        if self.dropout.training:
            change = self.dropout(change)
        return x + change

    def reads(self, x: Stream) -> Stream:
        """What a sublayer is given of the stream: all of it, normalized."""
        return self.norm(x)
