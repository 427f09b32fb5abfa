"""The language model that the experiments vary: one stack of layers, every part of it a choice by name.

    tokens ─ embed · √d ─ positions ─► [ self-attention, feed-forward ] × n_layers ─ norm ─► logits = x Eᵀ

    POSITIONS        which token stands where       none sinusoidal learned shaw transformer_xl t5 rope alibi
    FEEDFORWARDS     what a position computes       relu swiglu
    NORMALIZATIONS   what keeps the scale           layer_norm rms_norm
    RESIDUALS        how sublayers join the stream  pre_norm post_norm

Causal by default (a decoder, as in GPT); `causal=False` makes an encoder, which reads in both directions.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tx_from_scratch.attention import KeyValueCache, check_heads, check_scale
from tx_from_scratch.embeddings import TiedEmbedding, check_tokens
from tx_from_scratch.feedforward import FeedForward, SwiGLU
from tx_from_scratch.masks import Mask
from tx_from_scratch.normalization import RMSNorm
from tx_from_scratch.past import Cache, Past, PastStream, SegmentMemory, key_mask
from tx_from_scratch.positions import (
    ALiBi,
    LayerPositions,
    LearnedPositions,
    NoPositions,
    PositionScheme,
    RotaryEmbedding,
    ShawRelativePositions,
    SinusoidalPositions,
    T5RelativeBias,
    TransformerXLPositions,
)
from tx_from_scratch.positions.base import check_sizes
from tx_from_scratch.residuals import PostNorm, PreNorm, Stream
from tx_from_scratch.self_attention import SelfAttention

Tokens = Int[Tensor, "batch seq"]
Logits = Float[Tensor, "batch seq vocab"]
Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes of a language model, and one choice for each of its parts.

    Attributes:
        vocab_size: number of tokens.
        d_model: width of the stream.
        n_heads: attention heads in every layer; must divide `d_model`, unless `d_head` is given.
        n_layers: layers.
        d_ff: width inside the feed-forward networks, 4 · d_model when None.
        d_head: width of a head, d_model / n_heads when None.
        max_length: rows of a learned table of positions; other schemes have no longest length.
        causal: whether a token reads only itself and what stands before it.
        positions: a name in POSITIONS, or a scheme made with other settings; the model takes a copy of it.
        feedforward: a name in FEEDFORWARDS.
        normalization: a name in NORMALIZATIONS.
        residual: a name in RESIDUALS.
        attention_scale: the factor on attention's scores, 1 / sqrt(d_head) when None.
        dropout: share dropped of the embeddings and of every sublayer's output, while training.

    Raises:
        TypeError: a size is not an integer, or a choice is neither a name nor a part.
        ValueError: a size is not positive, `n_heads` does not divide `d_model`, `dropout` is not in [0, 1),
            or a name is unknown.
    """

    vocab_size: int
    d_model: int = 256
    n_heads: int = 4
    n_layers: int = 4
    d_ff: int | None = None
    d_head: int | None = None
    max_length: int = 1024
    causal: bool = True
    positions: str | PositionScheme = "rope"
    feedforward: str = "relu"
    normalization: str = "layer_norm"
    residual: str = "pre_norm"
    attention_scale: float | None = None
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_heads(self.d_model, self.n_heads, self.d_head)
        check_scale(self.attention_scale)
        check_sizes(
            vocab_size=self.vocab_size,
            n_layers=self.n_layers,
            d_ff=self.inner_width,
            max_length=self.max_length,
        )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        if not isinstance(self.positions, PositionScheme):
            _choose("positions", POSITIONS, self.positions)
        _choose("feedforward", FEEDFORWARDS, self.feedforward)
        _choose("normalization", NORMALIZATIONS, self.normalization)
        _choose("residual", RESIDUALS, self.residual)

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.d_head or self.d_model // self.n_heads

    @property
    def inner_width(self) -> int:
        """Width inside the feed-forward networks."""
        return 4 * self.d_model if self.d_ff is None else self.d_ff


def _choose(field: str, registry: Mapping[str, Part], name: object) -> Part:
    """The part of this name.

    Raises:
        TypeError: `name` is no name.
        ValueError: there is no such part; the message lists those there are.
    """
    if not isinstance(name, str):
        raise TypeError(f"{field} must be one of the names {', '.join(registry)}; got {name!r}")
    if name not in registry:
        raise ValueError(f"{field} must be one of {', '.join(registry)}; got {name!r}")
    return registry[name]


POSITIONS: dict[str, Callable[[ModelConfig], PositionScheme]] = {
    "none": lambda config: NoPositions(),
    "sinusoidal": lambda config: SinusoidalPositions(),
    # As large as the token embeddings beside it, which TiedEmbedding gives unit scale.
    "learned": lambda config: LearnedPositions(config.max_length, config.d_model, std=1.0),
    "shaw": lambda config: ShawRelativePositions(config.n_layers, config.head_width),
    "transformer_xl": lambda config: TransformerXLPositions(
        config.n_layers, config.d_model, config.n_heads, config.head_width, dropout=config.dropout
    ),
    "t5": lambda config: T5RelativeBias(config.n_heads, bidirectional=not config.causal),
    "rope": lambda config: RotaryEmbedding(config.head_width),
    "alibi": lambda config: ALiBi(config.n_heads),
}
FEEDFORWARDS: dict[str, Callable[[int, int], nn.Module]] = {"relu": FeedForward, "swiglu": SwiGLU}
NORMALIZATIONS: dict[str, Callable[[int], nn.Module]] = {"layer_norm": nn.LayerNorm, "rms_norm": RMSNorm}
RESIDUALS: dict[str, type[PreNorm] | type[PostNorm]] = {"pre_norm": PreNorm, "post_norm": PostNorm}


def _check_fit(scheme: PositionScheme, config: ModelConfig) -> None:
    """Refuse a scheme made for another model: broadcast over the heads, say, it would raise no error.

    Raises:
        ValueError: a size that the scheme has is not the model's, or it knows both directions where the model
            reads one, or one where the model reads both.
    """
    made_for = type(scheme).__name__
    sizes = {
        "n_layers": config.n_layers,
        "d_model": config.d_model,
        "n_heads": config.n_heads,
        "d_head": config.head_width,
    }
    for name, size in sizes.items():
        made = getattr(scheme, name, size)
        if made != size:
            raise ValueError(
                f"positions must fit the model: this {made_for} is made for {name}={made}, "
                f"the model has {name}={size}"
            )
    bidirectional = getattr(scheme, "bidirectional", not config.causal)
    if bidirectional == config.causal:
        why = "half of its table would never be used" if bidirectional else "it knows nothing of the future"
        raise ValueError(
            f"positions must fit the model: this {made_for} is made for bidirectional={bidirectional}, the "
            f"model has causal={config.causal}, so {why}"
        )


class Block(nn.Module):
    """Look around, then think: self-attention and a feed-forward network, each in a residual connection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        connection = partial(
            _choose("residual", RESIDUALS, config.residual),
            config.d_model,
            norm=_choose("normalization", NORMALIZATIONS, config.normalization),
            dropout=config.dropout,
        )
        make_feedforward = _choose("feedforward", FEEDFORWARDS, config.feedforward)
        self.attention = SelfAttention(
            config.d_model, config.n_heads, d_head=config.d_head, scale=config.attention_scale
        )
        self.attention_connection = connection()
        self.feedforward = make_feedforward(config.d_model, config.inner_width)
        self.feedforward_connection = connection()

    def forward(
        self,
        x: Stream,
        *,
        positions: LayerPositions,
        mask: Mask | None = None,
        causal: bool = True,
        cache: KeyValueCache | None = None,
        past: PastStream | None = None,
    ) -> Stream:
        """One layer. `past` is what it read of earlier segments; that is looked at, not computed again."""

        def attend(read: Stream) -> Stream:
            context = (
                read if past is None else torch.cat([self.attention_connection.reads(past), read], dim=1)
            )
            return self.attention(read, context, mask=mask, causal=causal, cache=cache, positions=positions)

        x = self.attention_connection(x, attend)
        return self.feedforward_connection(x, self.feedforward)


class LanguageModel(nn.Module):
    """A decoder-only Transformer, or with `causal=False` an encoder, whose parts the configuration chooses.

    One matrix embeds tokens and reads off the logits. Matrices start with standard deviation
    1 / sqrt(columns), those that write to the stream divided by sqrt(2 · n_layers), so that the stream does
    not grow with the number of layers.

    Raises:
        TypeError: see `ModelConfig`.
        ValueError: see there; or `config.positions` is a scheme made for a model of other sizes.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if isinstance(config.positions, PositionScheme):
            _check_fit(config.positions, config)
        self.config = config
        self.embedding = TiedEmbedding(config.vocab_size, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        normalized = _choose("residual", RESIDUALS, config.residual).leaves_normalized
        make_norm = _choose("normalization", NORMALIZATIONS, config.normalization)
        self.norm = nn.Identity() if normalized else make_norm(config.d_model)
        for name, module in self.blocks.named_modules():
            if isinstance(module, nn.Linear):
                writes = name.endswith(("project_out", "narrow", "down"))
                shrink = math.sqrt(2 * config.n_layers) if writes else 1.0
                nn.init.normal_(module.weight, std=module.in_features**-0.5 / shrink)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        # Last, so that the other weights of a seed are the same whatever the scheme is.
        self.positions = (
            copy.deepcopy(config.positions)
            if isinstance(config.positions, PositionScheme)
            else _choose("positions", POSITIONS, config.positions)(config)
        )

    def forward(
        self,
        tokens: Tokens,
        *,
        real: Bool[Tensor, "batch seq"] | None = None,
        positions: Int[Tensor, "#batch seq"] | None = None,
        cache: Cache | None = None,
        memory: SegmentMemory | None = None,
        longest: int | Int[Tensor, "batch"] | None = None,
        trusted: bool = False,
    ) -> Logits:
        """Logits of the token that follows each token (or, in an encoder, of the token itself).

        Args:
            tokens: (batch, seq); with a cache only those that it has not seen yet.
            real: True where a token is no padding. Padding may stand anywhere; nobody reads it.
            positions: integers, (batch, seq) or (1, seq). By default real tokens are counted from 0, so that
                a row has the same positions however much padding stands before it.
            cache: keys and values of the past, see `start_cache`.
            memory: what the layers read of earlier segments, see `SegmentMemory`.
            longest: how long each row is going to be, for schemes that ask (dynamic NTK). With a cache, what
                it was started with.
            trusted: the tokens were read off this model's logits; nobody looks for unknown ones.

        Returns:
            (batch, seq, vocab_size).

        Raises:
            TypeError: `tokens` or `positions` are not integers, or `real` is not Boolean.
            ValueError: there is no token, one lies outside the vocabulary, a shape does not fit, a learned
                table ends before the last position, a row is longer than `longest`, or cache and memory are
                used together.
        """
        if not trusted:
            check_tokens(tokens, self.config.vocab_size, name="tokens")
        if not tokens.shape[1]:
            raise ValueError(f"tokens must hold at least one token, got shape {tuple(tokens.shape)}")
        if cache is not None and memory is not None:
            raise ValueError("cache and memory must not both be given: a cache holds all of the past already")
        past = cache if cache is not None else memory if memory is not None else Past()
        if cache is not None:
            longest = cache.longest
        places, real = past.locate(tokens, real, positions, longest)
        mask = key_mask(real)
        x = self.dropout(self.positions.embed(self.embedding(tokens), places.query))
        prepared = self.positions.prepare(places)
        for layer, block in enumerate(self.blocks):
            remembered = memory.extend(layer, x) if memory is not None else None
            x = block(
                x,
                positions=LayerPositions(self.positions, prepared, layer),
                mask=mask,
                causal=self.config.causal,
                cache=cache.layers[layer] if cache is not None else None,
                past=remembered,
            )
        past.remember(places, real, len(tokens))
        return self.embedding.logits(self.norm(x))

    def start_cache(self, *, longest: int | Int[Tensor, "batch"] | None = None) -> Cache:
        """An empty cache, with which each call computes only what is new.

        Args:
            longest: how long each row is going to be, prompt and answer. Dynamic NTK fixes its base by it
                before the first key is cached; other schemes don't ask.

        Raises:
            TypeError: `longest` is no integer.
            ValueError: the model is an encoder, whose early tokens read later ones, or `longest` is not
                positive, or missing where the scheme asks.
        """
        if not self.config.causal:
            raise ValueError("causal must be True for a cache: an encoder's early tokens read later ones")
        if longest is None and self.positions.needs_length:
            raise ValueError(
                "longest must be given, how long each row is going to be: these positions depend on it, and "
                "cached keys would stay at the angles of a shorter text"
            )
        return Cache(self.config.n_layers, longest)
