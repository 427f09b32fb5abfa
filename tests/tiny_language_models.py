"""Tiny language models, one for every way of telling positions, and Llama with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tx_from_scratch.model import POSITIONS, LanguageModel, ModelConfig
from tx_from_scratch.positions import (
    DynamicNTKScaling,
    LayerPositions,
    LinearScaling,
    NTKScaling,
    Places,
    PositionScheme,
    RotaryEmbedding,
    ShawRelativePositions,
    T5RelativeBias,
    YaRNScaling,
)

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

VOCAB, D_MODEL, N_HEADS, D_HEAD, N_LAYERS = 13, 24, 3, 8, 2

VARIANTS: dict[str, Callable[[], PositionScheme]] = {
    "rope, linear": lambda: RotaryEmbedding(D_HEAD, scaling=LinearScaling(3.0)),
    "rope, NTK": lambda: RotaryEmbedding(D_HEAD, scaling=NTKScaling(3.0)),
    "rope, dynamic NTK": lambda: RotaryEmbedding(D_HEAD, scaling=DynamicNTKScaling(4)),
    "rope, YaRN": lambda: RotaryEmbedding(D_HEAD, scaling=YaRNScaling(4.0, 64)),
    "rope, YaRN as printed": lambda: RotaryEmbedding(D_HEAD, scaling=YaRNScaling(4.0, 64, ramp="rotations")),
    "rope, half of each head": lambda: RotaryEmbedding(D_HEAD, rotated=4, layout="interleaved"),
    "t5, shared buckets": lambda: T5RelativeBias(N_HEADS, n_buckets=4, max_distance=5),
    "shaw, clipped": lambda: ShawRelativePositions(N_LAYERS, D_HEAD, max_distance=2),
    "shaw, keys only": lambda: ShawRelativePositions(N_LAYERS, D_HEAD, values=False),
}
SCHEMES = (*POSITIONS, *VARIANTS)
ABSOLUTE = ("sinusoidal", "learned")
RELATIVE = tuple(scheme for scheme in SCHEMES if scheme not in ABSOLUTE)


def build(scheme: str = "rope", **changes: Any) -> LanguageModel:
    """In evaluation mode, every parameter perturbed: no two layers or heads look alike, no bias is small."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "d_model": D_MODEL,
        "n_heads": N_HEADS,
        "n_layers": N_LAYERS,
        "d_ff": 20,
        "max_length": 32,
        "positions": VARIANTS[scheme]() if scheme in VARIANTS else scheme,
    }
    model = LanguageModel(ModelConfig(**{**settings, **changes})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return model


def draw(batch: int, length: int, *, low: int = 0) -> Tensor:
    """Random tokens."""
    return torch.randint(low, VOCAB, (batch, length))


def masked_pass(model: LanguageModel, tokens: Tensor, mask: Tensor) -> Tensor:
    """Logits of one pass in which a mask alone, (query, key), says who reads whom."""
    places = Places.of(torch.arange(tokens.shape[1])[None])
    x = model.positions.embed(model.embedding(tokens), places.query)
    prepared = model.positions.prepare(places)
    for layer, block in enumerate(model.blocks):
        x = block(x, positions=LayerPositions(model.positions, prepared, layer), mask=mask, causal=False)
    return model.embedding.logits(model.norm(x))


LLAMA_ROPE: Mapping[str, Mapping[str, Any]] = {
    "rope": {"rope_type": "default"},
    "rope, linear": {"rope_type": "linear", "factor": 3.0},
    "rope, YaRN": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
}


def llama(scheme: str = "rope") -> tuple[LanguageModel, LlamaForCausalLM]:
    """Our model with Llama's parts, and transformers' own with the same weights.

    Llama does not multiply its embeddings by sqrt(d_model). Its matrix holds ours times that factor, and its
    last norm, divided by it, gives logits of the same size again.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    ours = build(scheme, feedforward="swiglu", normalization="rms_norm", residual="pre_norm")
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=D_MODEL,
            intermediate_size=20,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            rms_norm_eps=ours.norm.eps,
            tie_word_embeddings=True,
            rope_parameters={**LLAMA_ROPE[scheme], "rope_theta": 10_000.0},
            bos_token_id=None,
            eos_token_id=None,
        )
    ).eval()
    with torch.no_grad():
        for parameter, copied in llama_parameters(ours, theirs):
            copied.copy_(parameter)
        theirs.model.embed_tokens.weight.copy_(ours.embedding.weight * math.sqrt(D_MODEL))
        theirs.model.norm.weight.copy_(ours.norm.weight / math.sqrt(D_MODEL))
    return ours, theirs


def llama_parameters(ours: LanguageModel, theirs: LlamaForCausalLM) -> list[tuple[Tensor, Tensor]]:
    """The parameters of the layers, each beside its counterpart."""
    pairs = []
    for block, layer in zip(ours.blocks, theirs.model.layers, strict=True):
        attention, feedforward = block.attention, block.feedforward
        pairs += [
            (attention.project_query, layer.self_attn.q_proj),
            (attention.project_key, layer.self_attn.k_proj),
            (attention.project_value, layer.self_attn.v_proj),
            (attention.project_out, layer.self_attn.o_proj),
            (feedforward.gate, layer.mlp.gate_proj),
            (feedforward.up, layer.mlp.up_proj),
            (feedforward.down, layer.mlp.down_proj),
            (block.attention_connection.norm, layer.input_layernorm),
            (block.feedforward_connection.norm, layer.post_attention_layernorm),
        ]
    return [(one.weight, other.weight) for one, other in pairs]
