"""Self-attention that knows where its tokens stand: multi-head attention with a position scheme."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from tx_from_scratch.attention import (
    Attended,
    Bias,
    Key,
    KeyValueCache,
    MultiHeadAttention,
    Query,
    Value,
    scaled_dot_product_attention,
)
from tx_from_scratch.masks import Mask
from tx_from_scratch.positions import LayerPositions


class SelfAttention(MultiHeadAttention):
    """Multi-head attention of a stream to itself, in which a position scheme has its say.

    The scheme turns queries and keys before they are compared (and before keys are cached), adds to the
    scores, and adds to what is read. See `positions.PositionScheme`; arguments as in `MultiHeadAttention`.
    """

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        context: Float[Tensor, "batch key d_model"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
        positions: LayerPositions | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Let every position of `x` attend to all of `context`, of which `x` is the end.

        Args:
            x: the stream that asks, (batch, query, d_model).
            context: the same stream with its past in front, (batch, key, d_model); `x` alone when left out.
            mask: Boolean, True = may attend, broadcastable to (batch, heads, query, key).
            bias: added to the scores, broadcastable likewise.
            causal: no query reads a later key.
            cache: keys and values of the past; those of this pass are appended.
            positions: the scheme in this layer, with what it has prepared for this pass.
        """
        if positions is None:
            return super().forward(x, context, mask=mask, bias=bias, causal=causal, cache=cache)
        source = x if context is None else context
        self.check_stream(x, "x")
        self.check_stream(source, "context")
        query, key, value = (
            self.split(self.project_query(x)),
            self.split(self.project_key(source)),
            self.split(self.project_value(source)),
        )
        query, key = positions.rotate(query, key)
        if cache is not None:
            key, value = cache.append(key, value)
        own = positions.bias(query, key, self.scale or query.shape[-1] ** -0.5)
        if own is not None:
            bias = own if bias is None else bias + own
        if positions.reads_weights:
            attended = self._attend_and_read(query, key, value, mask, bias, causal, positions)
        else:
            attended = self.attend(query, key, value, mask=mask, bias=bias, causal=causal)
        return self.join(attended)

    def _attend_and_read(
        self,
        query: Query,
        key: Key,
        value: Value,
        mask: Mask | None,
        bias: Bias | None,
        causal: bool,
        positions: LayerPositions,
    ) -> Attended:
        attended, weights = scaled_dot_product_attention(
            query, key, value, mask=mask, bias=bias, causal=causal, scale=self.scale
        )
        self.report(weights)
        read = positions.read(weights)
        return attended if read is None else attended + read
