"""The original Transformer, exactly as published: an encoder that reads, a decoder that writes.

    source ─ embed · √d ─ + positions ─┐                    target ─ embed · √d ─ + positions ─┐
                                       │                                                       │
              ┌────────────────────────┴─┐                       ┌─────────────────────────────┴─┐
              │ self-attention           │ N layers              │ self-attention, causal        │ N layers
              │ feed-forward             │ ──────── memory ────► │ cross-attention to the memory │
              └──────────────────────────┘                       │ feed-forward                  │
                                                                 └─────────────┬─────────────────┘
                                                       logits = output · (embedding matrix)ᵀ

Each sublayer sits in LayerNorm(x + dropout(sublayer(x))). One matrix embeds source and target and also
reads off the logits. Vaswani et al. 2017, arXiv:1706.03762.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tx_from_scratch.attention import KeyValueCache, MultiHeadAttention, check_heads, check_scale
from tx_from_scratch.embeddings import TiedEmbedding, check_tokens
from tx_from_scratch.feedforward import FeedForward
from tx_from_scratch.masks import Mask, padding_mask
from tx_from_scratch.positions import SinusoidalPositions, sinusoidal_table
from tx_from_scratch.residuals import PostNorm, Stream

SourceTokens = Int[Tensor, "batch source"]
TargetTokens = Int[Tensor, "batch target"]
Memory = Float[Tensor, "batch source d_model"]
MemoryMask = Bool[Tensor, "batch 1 1 source"]
Logits = Float[Tensor, "batch target vocab"]


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes of an encoder-decoder Transformer. The defaults are the paper's base model.

    Attributes:
        vocab_size: number of tokens; source and target share them.
        d_model: width of the stream.
        n_heads: attention heads in every layer; must divide `d_model`, unless `d_head` is given.
        d_head: width of a head, d_model / n_heads when None. The paper varies it in Table 3, rows (B).
        attention_scale: the factor on attention's scores, 1 / sqrt(d_head) when None, as in the paper.
        n_encoder_layers: layers that read.
        n_decoder_layers: layers that write.
        d_ff: width inside the feed-forward networks.
        dropout: share dropped of every sublayer's output and of the embeddings, while training.
        pad_id: the token that fills short rows up.
        bos_id: the token that starts every target.
        eos_id: the token that ends every target.

    Raises:
        ValueError: a size is not positive, `n_heads` does not divide `d_model`, `dropout` is not in [0, 1),
            or the three special tokens are not different tokens of the vocabulary.
    """

    vocab_size: int
    d_model: int = 512
    n_heads: int = 8
    d_head: int | None = None
    attention_scale: float | None = None
    n_encoder_layers: int = 6
    n_decoder_layers: int = 6
    d_ff: int = 2048
    dropout: float = 0.1
    pad_id: int = 0
    bos_id: int = 1
    eos_id: int = 2

    def __post_init__(self) -> None:
        check_heads(self.d_model, self.n_heads, self.d_head)
        check_scale(self.attention_scale)
        for name in ("vocab_size", "n_encoder_layers", "n_decoder_layers", "d_ff"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, got {self.dropout}")
        special = (self.pad_id, self.bos_id, self.eos_id)
        if len(set(special)) < 3 or min(special) < 0 or max(special) >= self.vocab_size:
            raise ValueError(
                "pad_id, bos_id and eos_id must be three different tokens of the vocabulary, got "
                f"{special} with vocab_size={self.vocab_size}"
            )

    @classmethod
    def base(cls, vocab_size: int = 37_000) -> TransformerConfig:
        """The paper's base model: 63,045,632 parameters with a vocabulary of 37,000."""
        return cls(vocab_size=vocab_size)

    @classmethod
    def big(cls, vocab_size: int = 37_000) -> TransformerConfig:
        """The paper's big model for English-German: 214,171,648 parameters with a vocabulary of 37,000."""
        return cls(vocab_size=vocab_size, d_model=1024, n_heads=16, d_ff=4096, dropout=0.3)


class EncoderLayer(nn.Module):
    """Look around, then think: self-attention and a feed-forward network, each in a PostNorm connection."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        d_head: int | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_heads, d_head=d_head, scale=scale)
        self.attention_connection = PostNorm(d_model, dropout=dropout)
        self.feedforward = FeedForward(d_model, d_ff)
        self.feedforward_connection = PostNorm(d_model, dropout=dropout)

    def forward(self, x: Stream, *, mask: Mask | None = None) -> Stream:
        x = self.attention_connection(x, lambda x: self.attention(x, mask=mask))
        return self.feedforward_connection(x, self.feedforward)


class DecoderLayer(nn.Module):
    """Look back at what is written, look across at what is read, then think."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_ff: int,
        *,
        d_head: int | None = None,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(d_model, n_heads, d_head=d_head, scale=scale)
        self.attention_connection = PostNorm(d_model, dropout=dropout)
        self.cross_attention = MultiHeadAttention(d_model, n_heads, d_head=d_head, scale=scale)
        self.cross_attention_connection = PostNorm(d_model, dropout=dropout)
        self.feedforward = FeedForward(d_model, d_ff)
        self.feedforward_connection = PostNorm(d_model, dropout=dropout)

    def forward(
        self, x: Stream, memory: Memory, *, memory_mask: Mask | None = None, cache: LayerCache | None = None
    ) -> Stream:
        past, read = (cache.past, cache.memory) if cache else (None, None)
        x = self.attention_connection(x, lambda x: self.attention(x, causal=True, cache=past))
        x = self.cross_attention_connection(
            x, lambda x: self.cross_attention(x, memory, mask=memory_mask, cache=read)
        )
        return self.feedforward_connection(x, self.feedforward)


class Encoder(nn.Module):
    """A stack of encoder layers: every position of the output has read every position of the input."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            EncoderLayer(
                config.d_model,
                config.n_heads,
                config.d_ff,
                d_head=config.d_head,
                scale=config.attention_scale,
                dropout=config.dropout,
            )
            for _ in range(config.n_encoder_layers)
        )

    def forward(self, x: Stream, *, mask: Mask | None = None) -> Stream:
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x


class Decoder(nn.Module):
    """A stack of decoder layers: every position has read the whole memory and all positions before it."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            DecoderLayer(
                config.d_model,
                config.n_heads,
                config.d_ff,
                d_head=config.d_head,
                scale=config.attention_scale,
                dropout=config.dropout,
            )
            for _ in range(config.n_decoder_layers)
        )

    def forward(
        self, x: Stream, memory: Memory, *, memory_mask: Mask | None = None, cache: DecoderCache | None = None
    ) -> Stream:
        for index, layer in enumerate(self.layers):
            layer_cache = cache.layers[index] if cache else None
            x = layer(x, memory, memory_mask=memory_mask, cache=layer_cache)
        return x


class Transformer(nn.Module):
    """The encoder-decoder Transformer as published.

    Post-LN, ReLU, dropout on every sublayer's output and on the sum of embedding and position, one embedding
    matrix tied three ways, sinusoidal positions. Matrices start with Xavier's uniform distribution.

    The target's padding needs no mask: it stands at the end of a row, where the causal rule hides it from
    every real token, and the loss ignores what is computed there.

    Source: Vaswani et al. 2017, *Attention Is All You Need*, arXiv:1706.03762.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = TiedEmbedding(config.vocab_size, config.d_model)
        self.positions = SinusoidalPositions()
        self.dropout = nn.Dropout(config.dropout)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        for part in (self.encoder, self.decoder):
            for module in part.modules():
                if isinstance(module, nn.Linear):
                    nn.init.xavier_uniform_(module.weight)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)

    def forward(self, source: SourceTokens, target: TargetTokens) -> Logits:
        """Logits of the token that follows each target token, all positions at once.

        Args:
            source: tokens to read, (batch, source), filled up with `pad_id`.
            target: tokens written so far, starting with `bos_id`, (batch, target), filled up at the right.

        Raises:
            ValueError: a token lies outside the vocabulary, or the batches differ.
        """
        if source.shape[0] != target.shape[0]:
            raise ValueError(f"source and target must have as many rows, got {len(source)} and {len(target)}")
        return self.decode(target, self.encode(source), memory_mask=self.memory_mask(source))

    def encode(self, source: SourceTokens) -> Memory:
        """Read the source, (batch, source), into a memory, (batch, source, d_model)."""
        check_tokens(source, self.config.vocab_size, name="source")
        return self.encoder(self._embed(source), mask=self.memory_mask(source))

    def decode(
        self,
        target: TargetTokens,
        memory: Memory,
        *,
        memory_mask: MemoryMask | None = None,
        cache: DecoderCache | None = None,
        trusted: bool = False,
    ) -> Logits:
        """Logits of the token after each target token, given a memory.

        With a cache, `target` holds only the tokens that it has not seen yet. Tokens that were read off
        this model's logits can be `trusted`: nobody then looks for some outside the vocabulary.
        """
        if not trusted:
            check_tokens(target, self.config.vocab_size, name="target")
        x = self.decoder(self._embed(target, cache), memory, memory_mask=memory_mask, cache=cache)
        return self.embedding.logits(x)

    def memory_mask(self, source: SourceTokens) -> MemoryMask:
        """Which positions of the source may be read: all but padding."""
        return padding_mask(source, self.config.pad_id)

    def start_decoding(self, source: SourceTokens) -> DecodingState:
        """Read the source once; the state then yields the logits of one new token after another."""
        mask = self.memory_mask(source)
        # Without padding no step needs a mask, which spares each of them some work.
        return DecodingState(self, self.encode(source), None if mask.all() else mask)

    def _embed(self, tokens: Int[Tensor, "batch seq"], cache: DecoderCache | None = None) -> Stream:
        start = cache.length if cache else 0
        end = start + tokens.shape[1]
        positions = torch.arange(start, end, device=tokens.device)[None]
        embeddings = self.embedding(tokens)
        table = cache.position_table(end, like=embeddings) if cache else None
        return self.dropout(self.positions(embeddings, positions, table=table))


class LayerCache:
    """What one decoder layer remembers: keys and values of its own past, and those of the memory."""

    def __init__(self) -> None:
        self.past = KeyValueCache()
        self.memory = KeyValueCache(capacity=1)


class DecoderCache:
    """The caches of all decoder layers, and the positions computed so far."""

    def __init__(self, n_layers: int) -> None:
        self.layers = [LayerCache() for _ in range(n_layers)]
        self._table: Tensor | None = None

    @property
    def length(self) -> int:
        """How many target positions are stored."""
        return self.layers[0].past.length

    def position_table(self, end: int, *, like: Stream) -> Float[Tensor, "rows d_model"]:
        """Sinusoids of all positions below `end`, as wide as `like`, and of as many more, for later steps."""
        if self._table is None or len(self._table) < end:
            rows = torch.arange(max(64, 2 * end), device=like.device)
            self._table = sinusoidal_table(rows, like.shape[-1])
        return self._table

    def select(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these batch rows, in this order."""
        for layer in self.layers:
            layer.past.select(rows)
            layer.memory.select(rows)


class DecodingState:
    """A half-written batch of targets: the memory, its mask, and what the decoder has cached."""

    def __init__(self, model: Transformer, memory: Memory, memory_mask: MemoryMask | None) -> None:
        self.model = model
        self.memory = memory
        self.memory_mask = memory_mask
        self.cache = DecoderCache(model.config.n_decoder_layers)

    def next_logits(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocab"]:
        """Append tokens to every row; return the logits of the token that follows the last one.

        The tokens should be those that earlier logits led to: they are not checked again at every step.
        """
        logits = self.model.decode(
            tokens, self.memory, memory_mask=self.memory_mask, cache=self.cache, trusted=True
        )
        return logits[:, -1]

    def select(self, rows: Int[Tensor, "new_batch"]) -> None:
        """Keep these batch rows, in this order; a row may be repeated."""
        self.memory = self.memory[rows]
        self.memory_mask = None if self.memory_mask is None else self.memory_mask[rows]
        self.cache.select(rows)
