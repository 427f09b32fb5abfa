"""One training step of a language model: forward, cross-entropy, backward, AdamW.

Batch 8, length 256, 4 layers, d_model 256, 8 heads, SwiGLU of width 688, RMSNorm, RoPE, no biases, tied
embeddings, a vocabulary of 1,024, float32, causal attention through PyTorch's fused kernel. The two models
are the same function with as many parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.measure import Contender, count_parameters
from tx_from_scratch.model import LanguageModel, ModelConfig

BATCH, LENGTH, VOCAB_SIZE = 8, 256, 1024
N_LAYERS, D_MODEL, N_HEADS, D_FF = 4, 256, 8, 688


def contenders() -> list[Contender]:
    """transformers' Llama as the reference, and ours."""
    torch.manual_seed(0)
    tokens = torch.randint(VOCAB_SIZE, (BATCH, LENGTH + 1))
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=D_MODEL,
            intermediate_size=D_FF,
            num_hidden_layers=N_LAYERS,
            num_attention_heads=N_HEADS,
            num_key_value_heads=N_HEADS,
            max_position_embeddings=LENGTH,
            tie_word_embeddings=True,
            attn_implementation="sdpa",  # type: ignore[call-arg]
        )
    )
    ours = LanguageModel(
        ModelConfig(
            vocab_size=VOCAB_SIZE,
            d_model=D_MODEL,
            n_heads=N_HEADS,
            n_layers=N_LAYERS,
            d_ff=D_FF,
            feedforward="swiglu",
            normalization="rms_norm",
        )
    )

    def contender(name: str, model: nn.Module, logits: Callable[[Tensor], Tensor], note: str) -> Contender:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(logits(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()

        return Contender(name, step, count_parameters(model.train()), note)

    return [
        contender(
            "transformers LlamaForCausalLM, sdpa",
            llama,
            lambda tokens: llama(tokens, use_cache=False).logits,
            "logits only, the loss is computed outside",
        ),
        contender("tx_from_scratch LanguageModel", ours, ours, "multiplies embeddings by √d_model"),
    ]
