"""Explicit against fused attention: what it costs to have the weights, in time and in memory.

Batch 1, 8 heads, d_head 64, float32, forward and backward; full and causal. Memory is the most that the
tensors made on the way hold at once: gradients are counted, inputs are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.measure import Contender, compare, peak_bytes
from tx_from_scratch.attention import fused_attention, scaled_dot_product_attention

N_HEADS, D_HEAD = 8, 64
LENGTHS = (128, 256, 512, 1024, 2048)


@dataclass(frozen=True)
class PathRatio:
    """Explicit divided by fused at one length; above 1 means that the fused path needs less."""

    length: int
    causal: bool
    time_ratio: float
    memory_ratio: float
    fused_mebibytes: float


def measure(*, rounds: int) -> list[PathRatio]:
    """Both paths at every length, full and causal."""
    return [_at(length, causal, rounds) for causal in (False, True) for length in LENGTHS]


def _at(length: int, causal: bool, rounds: int) -> PathRatio:
    torch.manual_seed(0)
    qkv = torch.randn(3, 1, N_HEADS, length, D_HEAD)
    gradient = torch.randn(1, N_HEADS, length, D_HEAD)

    def explicit(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, causal=causal)[0]

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return fused_attention(query, key, value, causal=causal)

    def step(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[], None]:
        return lambda: torch.autograd.backward(attend(*(x.detach().requires_grad_() for x in qkv)), gradient)

    torch.testing.assert_close(explicit(*qkv), fused(*qkv), atol=1e-5, rtol=0)
    time = compare([Contender("fused", step(fused)), Contender("explicit", step(explicit))], rounds=rounds)
    memory = {attend: peak_bytes(step(attend)) for attend in (fused, explicit)}
    return PathRatio(
        length=length,
        causal=causal,
        time_ratio=time[1].ratio,
        memory_ratio=memory[explicit] / memory[fused],
        fused_mebibytes=memory[fused] / 2**20,
    )
