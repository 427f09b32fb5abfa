"""Embeddings: from token numbers to vectors, and back from vectors to the scores of tokens.

    TiedEmbedding    E[token] · sqrt(d_model) on the way in, x Eᵀ on the way out
                     Press & Wolf 2016, arXiv:1608.05859

One matrix does both.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from tx_from_scratch.residuals import Stream


class TiedEmbedding(nn.Module):
    """One matrix (vocab, d_model): its rows are the token vectors, and also what logits are measured against.

    The rows are drawn with standard deviation d_model^-0.5, which suits the logits; multiplied by
    sqrt(d_model) on the way in, they get the unit scale that the positions beside them have.

    Source: Press & Wolf 2016, arXiv:1608.05859; Vaswani et al. 2017, section 3.4, arXiv:1706.03762.
    """

    def __init__(self, vocab_size: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Stream:
        return F.embedding(tokens, self.weight) * math.sqrt(self.weight.shape[1])

    def logits(self, x: Stream) -> Float[Tensor, "batch seq vocab"]:
        return F.linear(x, self.weight)


def check_tokens(tokens: Tensor, vocab_size: int, *, name: str) -> None:
    """Refuse tokens that no embedding row belongs to, before a kernel crashes on them.

    Raises:
        TypeError: `tokens` are no tensor of integers.
        ValueError: they are not (batch, length), or lie outside the vocabulary.
    """
    if not isinstance(tokens, Tensor):
        raise TypeError(f"{name} must be a tensor of token ids, got {type(tokens).__name__}")
    if tokens.ndim != 2:
        raise ValueError(f"{name} must have shape (batch, length), got {tuple(tokens.shape)}")
    if tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must hold int64 or int32 token ids, got {tokens.dtype}")
    if torch.compiler.is_compiling() or tokens.is_meta or not tokens.numel():
        return  # there are no values to look at
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= vocab_size:
        raise ValueError(
            f"{name} must hold ids from 0 to {vocab_size - 1} (vocab_size={vocab_size}), "
            f"got {low if low < 0 else high}"
        )
