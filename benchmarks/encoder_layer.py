"""One encoder layer, forward and backward.

Batch 4, length 256, d_model 512, 8 heads, d_ff 2048, float32, training mode with dropout 0, no padding.
Every layer attends in both directions through PyTorch's fused kernel.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from x_transformers import Encoder  # type: ignore[import-untyped]

from benchmarks.measure import Contender, count_parameters, train_step
from tx_from_scratch.transformer import EncoderLayer

BATCH, LENGTH, D_MODEL, N_HEADS, D_FF = 4, 256, 512, 8, 2048


def contenders() -> list[Contender]:
    """The reference, ours, and two popular layers that are not the same function."""
    torch.manual_seed(0)
    x, gradient = torch.randn(2, BATCH, LENGTH, D_MODEL)

    reference = nn.TransformerEncoderLayer(D_MODEL, N_HEADS, D_FF, dropout=0.0, batch_first=True)
    ours = EncoderLayer(D_MODEL, N_HEADS, D_FF)
    xtransformers = Encoder(
        dim=D_MODEL,
        depth=1,
        heads=N_HEADS,
        attn_dim_head=D_MODEL // N_HEADS,
        attn_flash=True,
        ff_mult=D_FF // D_MODEL,
        ff_custom_activation=nn.ReLU(),
    )
    config = LlamaConfig(
        hidden_size=D_MODEL,
        num_attention_heads=N_HEADS,
        num_key_value_heads=N_HEADS,
        intermediate_size=D_FF * 2 // 3,
        attn_implementation="sdpa",  # type: ignore[call-arg]
    )
    llama = LlamaDecoderLayer(config, layer_idx=0)
    llama.self_attn.is_causal = False
    angles = LlamaRotaryEmbedding(config)(x, torch.arange(LENGTH)[None])

    def contender(name: str, model: nn.Module, note: str, **arguments: object) -> Contender:
        model.train()
        return Contender(
            name,
            lambda: train_step(model, lambda x: model(x, **arguments), x, gradient),
            count_parameters(model),
            note,
        )

    return [
        contender("torch.nn.TransformerEncoderLayer", reference, "biases in its projections"),
        contender("tx_from_scratch EncoderLayer", ours, "the paper's layer, projections without biases"),
        contender("x-transformers Encoder(depth=1)", xtransformers, "Pre-LN, one norm more at the end"),
        contender(
            "transformers LlamaDecoderLayer",
            llama,
            f"Pre-RMSNorm, RoPE, SwiGLU of width {config.intermediate_size} (as many parameters), not causal",
            position_embeddings=angles,
        ),
    ]
