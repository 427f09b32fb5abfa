"""Greedy decoding of 200 tokens with a key/value cache.

Batch 1, 4 layers that write, d_model 256, 8 heads, d_ff 1024, a vocabulary of 1,000, float32, random weights.
Nobody can stop early. Ours and Marian first read a source of 16 tokens through 4 encoder layers, and then
attend to it in every layer at every step; GPT-2 has one token as its prompt, no encoder, no cross-attention,
and so has our `LanguageModel`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel
from transformers.utils import logging

from benchmarks.measure import Contender, count_parameters
from tx_from_scratch.decoding import greedy_decode
from tx_from_scratch.generation import generate
from tx_from_scratch.model import LanguageModel, ModelConfig
from tx_from_scratch.transformer import Transformer, TransformerConfig

NEW_TOKENS, SOURCE_LENGTH = 200, 16
N_LAYERS, D_MODEL, N_HEADS, D_FF, VOCAB_SIZE = 4, 256, 8, 1024, 1000


def contenders() -> list[Contender]:
    """GPT-2 as the reference, Marian as the same architecture as our Transformer, and both of our models."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    torch.manual_seed(0)
    source = torch.randint(3, VOCAB_SIZE, (1, SOURCE_LENGTH))  # 0, 1, 2 stand for padding, start and end

    gpt2 = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB_SIZE,
            n_positions=NEW_TOKENS + 1,
            n_embd=D_MODEL,
            n_layer=N_LAYERS,
            n_head=N_HEADS,
            n_inner=D_FF,
            bos_token_id=1,
            eos_token_id=None,
            pad_token_id=0,
        )
    )
    marian = MarianMTModel(
        MarianConfig(
            vocab_size=VOCAB_SIZE,
            max_position_embeddings=NEW_TOKENS + 1,
            d_model=D_MODEL,
            encoder_layers=N_LAYERS,
            decoder_layers=N_LAYERS,
            encoder_attention_heads=N_HEADS,
            decoder_attention_heads=N_HEADS,
            encoder_ffn_dim=D_FF,
            decoder_ffn_dim=D_FF,
            activation_function="relu",
            scale_embedding=True,
            decoder_start_token_id=1,
            bos_token_id=1,
            eos_token_id=None,
            forced_eos_token_id=None,
            pad_token_id=0,
        )
    )
    ours = Transformer(
        TransformerConfig(
            vocab_size=VOCAB_SIZE,
            d_model=D_MODEL,
            n_heads=N_HEADS,
            n_encoder_layers=N_LAYERS,
            n_decoder_layers=N_LAYERS,
            d_ff=D_FF,
        )
    )
    language_model = LanguageModel(
        ModelConfig(
            vocab_size=VOCAB_SIZE,
            d_model=D_MODEL,
            n_heads=N_HEADS,
            n_layers=N_LAYERS,
            d_ff=D_FF,
            max_length=NEW_TOKENS + 1,
            positions="learned",
        )
    )
    for model in (gpt2, marian, ours, language_model):
        model.train(False)
    with torch.no_grad():  # its logit is 0 then, which is never the largest of a thousand
        ours.embedding.weight[ours.config.eos_id] = 0.0
    prompt = torch.ones(1, 1, dtype=torch.int64)

    def theirs(model: GPT2LMHeadModel | MarianMTModel, tokens: Tensor) -> None:
        output = model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            num_beams=1,
            use_cache=True,
        )
        _check_length(output[:, 1:])  # both put the start token first

    return [
        Contender(
            "transformers GPT-2 generate",
            lambda: theirs(gpt2, prompt),
            count_parameters(gpt2),
            "decoder only: no source, no cross-attention",
        ),
        Contender(
            "transformers Marian generate",
            lambda: theirs(marian, source),
            count_parameters(marian),
            "encoder and decoder, as ours",
        ),
        Contender(
            "tx_from_scratch greedy_decode",
            lambda: _check_length(greedy_decode(ours, source, max_new_tokens=NEW_TOKENS)),
            count_parameters(ours),
            "encoder and decoder",
        ),
        Contender(
            "tx_from_scratch LanguageModel, generate",
            lambda: _check_length(generate(language_model, prompt, max_new_tokens=NEW_TOKENS)),
            count_parameters(language_model),
            "as GPT-2, with ReLU for GELU and without biases in attention",
        ),
    ]


def _check_length(tokens: Tensor) -> None:
    """A contender that writes less would look fast."""
    if tokens.shape != (1, NEW_TOKENS):
        raise RuntimeError(f"expected (1, {NEW_TOKENS}) new tokens, got {tuple(tokens.shape)}")
