"""Greedy decoding of 200 tokens with a key/value cache.

Batch 1, 4 layers that write, d_model 256, 8 heads, d_ff 1024, a vocabulary of 1,000, float32, random weights.
Nobody can stop early. Ours and Marian first read a source of 16 tokens through 4 encoder layers, and then
attend to it in every layer at every step; GPT-2 has one token as its prompt, no encoder, no cross-attention.
So our parts also stand here without an encoder (`DecoderOnly`), which does what GPT-2 does.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, MarianConfig, MarianMTModel
from transformers.utils import logging

from benchmarks.measure import Contender, count_parameters
from tx_from_scratch.attention import KeyValueCache, MultiHeadAttention
from tx_from_scratch.decoding import greedy_decode
from tx_from_scratch.feedforward import FeedForward
from tx_from_scratch.positions import SinusoidalPositions, sinusoidal_table
from tx_from_scratch.residuals import PostNorm
from tx_from_scratch.transformer import TiedEmbedding, Transformer, TransformerConfig

NEW_TOKENS, SOURCE_LENGTH = 200, 16
N_LAYERS, D_MODEL, N_HEADS, D_FF, VOCAB_SIZE = 4, 256, 8, 1024, 1000


class DecoderOnly(nn.Module):
    """The library's parts as a language model: no source, no cross-attention, one token as prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(pad_id=0, bos_id=1, eos_id=2)
        self.embedding = TiedEmbedding(VOCAB_SIZE, D_MODEL)
        self.positions = SinusoidalPositions()
        self.layers = nn.ModuleList(DecoderOnlyLayer() for _ in range(N_LAYERS))

    def start_decoding(self, source: Tensor) -> DecoderOnlyState:
        """The source only says how many rows there are."""
        return DecoderOnlyState(self)


class DecoderOnlyLayer(nn.Module):
    """The library's decoder layer without its cross-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(D_MODEL, N_HEADS)
        self.attention_connection = PostNorm(D_MODEL)
        self.feedforward = FeedForward(D_MODEL, D_FF)
        self.feedforward_connection = PostNorm(D_MODEL)

    def forward(self, x: Tensor, cache: KeyValueCache) -> Tensor:
        x = self.attention_connection(x, lambda x: self.attention(x, causal=True, cache=cache))
        return self.feedforward_connection(x, self.feedforward)


class DecoderOnlyState:
    """One cache for each layer, and the table of all positions that will be written."""

    def __init__(self, model: DecoderOnly) -> None:
        self.model = model
        self.caches = [KeyValueCache() for _ in model.layers]
        self.table = sinusoidal_table(torch.arange(NEW_TOKENS), D_MODEL)

    def next_logits(self, tokens: Tensor) -> Tensor:
        """Logits behind the last token, (batch, vocab)."""
        model, start = self.model, self.caches[0].length
        positions = torch.arange(start, start + tokens.shape[1])[None]
        x = model.positions(model.embedding(tokens), positions, table=self.table)
        for layer, cache in zip(model.layers, self.caches, strict=True):
            x = layer(x, cache)
        return model.embedding.logits(x)[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        for cache in self.caches:
            cache.select(rows)


def contenders() -> list[Contender]:
    """GPT-2 as the reference, Marian as the same architecture as ours, ours, and our parts as in GPT-2."""
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
    decoder_only = DecoderOnly()
    for model in (gpt2, marian, ours, decoder_only):
        model.train(False)
    with torch.no_grad():  # its logit is 0 then, which is never the largest of a thousand
        for model in (ours, decoder_only):
            model.embedding.weight[model.config.eos_id] = 0.0

    def generate(model: GPT2LMHeadModel | MarianMTModel, tokens: Tensor) -> None:
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
            lambda: generate(gpt2, torch.ones(1, 1, dtype=torch.int64)),
            count_parameters(gpt2),
            "decoder only: no source, no cross-attention",
        ),
        Contender(
            "transformers Marian generate",
            lambda: generate(marian, source),
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
            "tx_from_scratch parts, decoder only",
            lambda: _check_length(greedy_decode(decoder_only, source, max_new_tokens=NEW_TOKENS)),
            count_parameters(decoder_only),
            "as GPT-2; sinusoids, Post-LN, ReLU",
        ),
    ]


def _check_length(tokens: Tensor) -> None:
    """A contender that writes less would look fast."""
    if tokens.shape != (1, NEW_TOKENS):
        raise RuntimeError(f"expected (1, {NEW_TOKENS}) new tokens, got {tuple(tokens.shape)}")
