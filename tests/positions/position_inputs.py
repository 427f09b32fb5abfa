"""What the tests of positions share: sizes that all differ, positions of each row's own, every scheme."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tx_from_scratch.positions import (
    ALiBi,
    DynamicNTKScaling,
    LayerPositions,
    LearnedPositions,
    NoPositions,
    Places,
    PositionScheme,
    RotaryEmbedding,
    ShawRelativePositions,
    SinusoidalPositions,
    T5RelativeBias,
    TransformerXLPositions,
    YaRNScaling,
)
from tx_from_scratch.self_attention import SelfAttention

BATCH, HEADS, QUERY, KEY, D_HEAD = 2, 3, 5, 7, 4
D_MODEL, LAYERS = HEADS * D_HEAD, 2

SCHEMES: dict[str, Callable[[], PositionScheme]] = {
    "none": NoPositions,
    "sinusoidal": SinusoidalPositions,
    "learned": lambda: LearnedPositions(11, D_MODEL),
    "Shaw": lambda: ShawRelativePositions(LAYERS, D_HEAD, max_distance=3),
    "Shaw without values": lambda: ShawRelativePositions(LAYERS, D_HEAD, max_distance=3, values=False),
    "Transformer-XL": lambda: TransformerXLPositions(LAYERS, D_MODEL, HEADS, D_HEAD),
    "T5": lambda: T5RelativeBias(HEADS),
    "T5, both directions": lambda: T5RelativeBias(HEADS, bidirectional=True),
    "RoPE": lambda: RotaryEmbedding(D_HEAD),
    "RoPE, interleaved and partial": lambda: RotaryEmbedding(D_HEAD, layout="interleaved", rotated=2),
    "RoPE, dynamic NTK": lambda: RotaryEmbedding(D_HEAD, scaling=DynamicNTKScaling(3)),
    "RoPE, YaRN": lambda: RotaryEmbedding(D_HEAD, scaling=YaRNScaling(4.0, 50)),
    "ALiBi": lambda: ALiBi(HEADS),
}

CONSECUTIVE = Places(torch.arange(KEY)[None], QUERY, KEY, consecutive=True)
ANYWHERE = Places(torch.tensor([[4, 0, 9, 3, 3, 10, 1], [0, 0, 0, 1, 2, 3, 4]]), QUERY, KEY)
PLACES = {"consecutive": CONSECUTIVE, "anywhere": ANYWHERE}


def heads(length: int, d_head: int = D_HEAD) -> Tensor:
    """Random queries or keys, (2, 3, length, d_head)."""
    return torch.randn(BATCH, HEADS, length, d_head)


def attend(
    scheme: PositionScheme,
    attention: SelfAttention,
    x: Tensor,
    places: Places,
    *,
    layer: int = 1,
    causal: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """One layer of self-attention over `x`, the last tokens of which ask, as a model runs it."""
    x = scheme.embed(x, places.key)
    positions = LayerPositions(scheme, scheme.prepare(places), layer)
    return attention(x[:, -places.n_query :], x, positions=positions, causal=causal, mask=mask)
