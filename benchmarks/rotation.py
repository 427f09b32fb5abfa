"""Turning queries and keys by RoPE, forward and backward.

Batch 4, 8 heads, length 1,024, width 64, float32, as they come out of the projections: (batch, seq, heads,
width) with two axes exchanged. Cosines and sines are computed beforehand in both cases.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from benchmarks.measure import Contender
from tx_from_scratch.positions import Places, RotaryEmbedding

BATCH, HEADS, LENGTH, WIDTH = 4, 8, 1024, 64


def contenders() -> list[Contender]:
    """transformers' function for Llama, and both of our layouts."""
    torch.manual_seed(0)
    query, key, *gradients = torch.randn(4, BATCH, LENGTH, HEADS, WIDTH).transpose(2, 3)
    positions = torch.arange(LENGTH)[None]
    config = LlamaConfig(hidden_size=HEADS * WIDTH, num_attention_heads=HEADS)
    cosine, sine = LlamaRotaryEmbedding(config)(query, positions)

    def step(turn: object) -> None:
        asked, offered = query.detach().requires_grad_(), key.detach().requires_grad_()
        turned: tuple[Tensor, Tensor] = turn(asked, offered)  # type: ignore[operator]
        torch.autograd.backward(turned, gradients)

    def ours(layout: str) -> Contender:
        rope = RotaryEmbedding(WIDTH, layout=layout)  # type: ignore[arg-type]
        prepared = rope.prepare(Places.of(positions))
        return Contender(f"tx_from_scratch, {layout}", lambda: step(lambda q, k: rope.rotate(q, k, prepared)))

    return [
        Contender(
            "transformers apply_rotary_pos_emb",
            lambda: step(lambda q, k: apply_rotary_pos_emb(q, k, cosine, sine)),
            note="half-split",
        ),
        ours("half_split"),
        ours("interleaved"),
    ]
