"""Attention: every position asks a question and reads a weighted mean of the answers.

    attention      softmax(Q Kᵀ / sqrt(d_k)) V                     Vaswani et al. 2017, arXiv:1706.03762
    multi-head     the same in h slices of width d_model / h, joined by one more projection
    cache          keys and values of the past, kept so that decoding computes only the new ones

Two paths compute the same thing. The explicit one materializes the weights, (batch, heads, query, key),
so that somebody can look at them. The fused one never does, and is taken when nobody looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from tx_from_scratch.masks import Mask, causal_mask, check_mask, combine_masks

Query = Float[Tensor, "batch heads query d_head"]
Key = Float[Tensor, "batch heads key d_head"]
Value = Float[Tensor, "batch heads key d_value"]
Attended = Float[Tensor, "batch heads query d_value"]
Weights = Float[Tensor, "batch heads query key"]
Bias = Float[Tensor, "..."]


def scaled_dot_product_attention(
    query: Query,
    key: Key,
    value: Value,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> tuple[Attended, Weights]:
    """softmax(Q Kᵀ / sqrt(d_k) + bias) V, with the weights shown.

    A query that may attend to nothing yields zeros, and zero gradients. Keys and values that no query may
    see (padding) reach nothing, whatever they hold, NaN and infinity included.

    Args:
        query: what each position asks, (batch, heads, query, d_head).
        key: what each position offers to be found by, (batch, heads, key, d_head).
        value: what is read there, (batch, heads, key, d_value).
        mask: Boolean, True = may attend, broadcastable to (batch, heads, query, key).
        bias: finite, added to the scaled scores, broadcastable likewise (position schemes use it).
        causal: no query reads a later key; unequal lengths are aligned at the bottom right.
        scale: the factor on the scores, 1 / sqrt(d_head) when left out.

    Returns:
        The attended values, (batch, heads, query, d_value), and the weights, (batch, heads, query, key).
        Each row of weights sums to 1, or to 0 where the query may attend to nothing.

    Raises:
        TypeError: `mask` is not Boolean, or `bias` is not a float.
        ValueError: the shapes do not fit each other, or `scale` is not a finite positive number.

    Source: Vaswani et al. 2017, section 3.2.1, arXiv:1706.03762.
    """
    check_attention_inputs(query, key, value, mask, bias)
    check_scale(scale)
    if scale is None:
        scale = 1 / math.sqrt(query.shape[-1])
    if causal:
        mask = combine_masks(mask, causal_mask(query.shape[-2], key.shape[-2], device=query.device))
    key, value = hide_unreadable(key, value, mask)

    # Q is scaled, not the product: in fp16 the unscaled product overflows first.
    scores = (query * scale) @ key.mT  # (batch, heads, query, key)
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    weights = masked_softmax(scores, mask)
    return weights @ value, weights


def masked_softmax(scores: Weights, mask: Mask | None) -> Weights:
    """Softmax over the keys that a query may read; a query that may read none gets zeros."""
    if mask is None:
        return scores.softmax(dim=-1)
    # Not -inf: a row of nothing but -inf has no softmax. The second filling then turns the uniform row that
    # finfo.min leaves there into zeros; a product with the mask would do so too, but where a gradient
    # overflows, 0 times infinity is NaN.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1).masked_fill(~mask, 0.0)


def fused_attention(
    query: Query,
    key: Key,
    value: Value,
    *,
    mask: Mask | None = None,
    bias: Bias | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Attended:
    """What `scaled_dot_product_attention` returns first, by PyTorch's kernels, without the weights.

    Arguments and errors are the same. Without mask and bias, `causal=True` materializes no mask for equal
    lengths or a single query, which keeps the fast kernel.
    """
    check_attention_inputs(query, key, value, mask, bias)
    check_scale(scale)
    n_query, n_key = query.shape[-2], key.shape[-2]
    # The last position may read everything, so a single query needs no triangle. (A conjunction would be a
    # symbol instead of a truth value where torch.compile traces many lengths.)
    if n_query == 1:
        causal = False
    if causal and (mask is not None or bias is not None or n_query != n_key):
        mask = combine_masks(mask, causal_mask(n_query, n_key, device=query.device))
        causal = False
    key, value = hide_unreadable(key, value, mask)
    if bias is not None:
        # Rows of nothing but -inf: PyTorch returns zeros for them, with zero gradients.
        bias = bias.to(query.dtype)
        bias = bias if mask is None else torch.where(mask, bias, -math.inf)
    attn_mask = mask if bias is None else bias
    if attn_mask is not None:
        attn_mask = _with_four_axes(attn_mask)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=causal, scale=scale
    )


def hide_unreadable(key: Key, value: Value, mask: Mask | None) -> tuple[Key, Value]:
    """Zero the keys and values that no query may read, since 0 times NaN would still be NaN."""
    if mask is None:
        return key, value
    unreadable = ~_with_four_axes(mask).any(dim=-2).unsqueeze(-1)  # (batch, heads, key, 1)
    return key.masked_fill(unreadable, 0.0), value.masked_fill(unreadable, 0.0)


def _with_four_axes(tensor: Tensor) -> Tensor:
    """The same as (batch, heads, query, key), with length 1 where it broadcasts."""
    return tensor[(None,) * (4 - tensor.ndim)]


def check_attention_inputs(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None = None
) -> None:
    """Raise before any kernel runs, naming the argument and what would be right."""
    asking, offering, read = query.shape, key.shape, value.shape
    if not len(asking) == len(offering) == len(read) == 4:
        raise ValueError(
            "query, key and value must have shape (batch, heads, length, width), got "
            f"{tuple(asking)}, {tuple(offering)} and {tuple(read)}"
        )
    if asking[:2] != offering[:2] or offering[:3] != read[:3] or asking[3] != offering[3]:
        raise ValueError(
            "query, key and value must agree in batch and heads, query and key in width, "
            "key and value in length; "
            f"got {tuple(asking)}, {tuple(offering)} and {tuple(read)}"
        )
    if mask is not None:
        check_mask(mask)
        _check_broadcast("mask", mask, query, key)
    if bias is not None:
        if not bias.dtype.is_floating_point:
            raise TypeError(f"bias must be a float that is added to the scores, got {bias.dtype}")
        _check_broadcast("bias", bias, query, key)


def _check_broadcast(name: str, tensor: Tensor, query: Tensor, key: Tensor) -> None:
    wanted = (*query.shape[:3], key.shape[2])
    given = (1,) * (4 - tensor.ndim) + tuple(tensor.shape)
    if len(given) != 4 or any(size not in (1, full) for size, full in zip(given, wanted, strict=True)):
        raise ValueError(
            f"{name} must broadcast to (batch, heads, query, key) = {wanted}, got {tuple(tensor.shape)}"
        )


class KeyValueCache:
    """The keys and values of one attention layer so far, so that a new token computes only its own.

    The buffers are allocated ahead and grow by doubling, so that a step copies one position, not all of
    them. Meant for decoding under `torch.no_grad()`: a later step writes into the tensors of an earlier one.

    Args:
        capacity: how many positions to allocate at first.
    """

    def __init__(self, capacity: int = 64) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(
        self, key: Float[Tensor, "batch heads new d_head"], value: Float[Tensor, "batch heads new d_value"]
    ) -> tuple[Key, Value]:
        """Store new positions behind the old ones; return all of them, (batch, heads, length, width)."""
        start, end = self.length, self.length + key.shape[2]
        self._keys = self._with_room(self._keys, key, end)
        self._values = self._with_room(self._values, value, end)
        self._keys[:, :, start:end] = key
        self._values[:, :, start:end] = value
        self.length = end
        return self.contents()

    def contents(self) -> tuple[Key, Value]:
        """Views of all keys and values so far.

        Raises:
            ValueError: nothing has been stored yet.
        """
        if self._keys is None or self._values is None:
            raise ValueError("the cache is empty: append() keys and values first")
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]

    def select(self, rows: Tensor) -> None:
        """Keep the given batch rows, in this order; a row may be repeated (beam search does)."""
        if self._keys is not None and self._values is not None:
            self._keys = self._keys.index_select(0, rows)
            self._values = self._values.index_select(0, rows)

    def _with_room(self, buffer: Tensor | None, new: Tensor, length: int) -> Tensor:
        """A buffer that holds `length` positions, with the old contents at its start."""
        given = new.shape
        if buffer is None:
            self.capacity = max(self.capacity, length)
        else:
            held = buffer.shape
            if held[:2] != given[:2] or held[3] != given[3]:
                raise ValueError(
                    f"the cache holds {held[0]} rows, {held[1]} heads, width {held[3]}; "
                    f"got {given[0]} rows, {given[1]} heads, width {given[3]}"
                )
            if held[2] >= length:
                return buffer
            self.capacity = max(2 * held[2], length)
        grown = new.new_empty(given[0], given[1], self.capacity, given[3])
        if buffer is not None:
            grown[:, :, : self.length] = buffer[:, :, : self.length]
        return grown


# While somebody looks, attention takes the explicit path and reports its weights here. A plain list, so
# that nothing is ever stored on a module, and torch.compile can guard on its being empty.
Observer = Callable[[nn.Module, Tensor], None]
_observers: list[Observer] = []


@contextmanager
def observe_weights(observer: Observer) -> Iterator[None]:
    """Call `observer(module, weights)` for each attention computed inside the block, in order."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


class ObservableAttention(nn.Module):
    """What every attention module derives from: while somebody looks, it reports the weights it computes.

    Its forward pass asks whether somebody does:

        if self.observed:
            ...  # the explicit path
            self.report(weights)
    """

    @property
    def observed(self) -> bool:
        """Whether somebody looks; only then are weights worth their memory."""
        return bool(_observers)

    def report(self, weights: Weights) -> None:
        """Show the weights of one call, (batch, heads, query, key), to everybody who looks."""
        for observe in _observers:
            observe(self, weights)


class MultiHeadAttention(ObservableAttention):
    """Several small attentions side by side, each with its own view of the stream.

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O,  head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i)

    The h projections of width d_head are slices of one matrix. With d_head = d_model / h, as in the paper,
    the number of heads changes neither parameters nor the cost of the projections. As in the paper's count
    of parameters there are no biases unless asked for.

    Args:
        d_model: width of the stream.
        n_heads: number of heads; must divide `d_model`, unless `d_head` is given.
        d_head: width of a head's queries, keys and values, d_model / n_heads when left out.
        bias: whether the four projections have biases.
        scale: the factor on the scores, 1 / sqrt(d_head) when left out.

    Raises:
        TypeError: a size is not an integer.
        ValueError: `n_heads` does not divide `d_model`, a size is not positive, or `scale` is not a finite
            positive number.

    Source: Vaswani et al. 2017, section 3.2.2, arXiv:1706.03762.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        d_head: int | None = None,
        bias: bool = False,
        scale: float | None = None,
    ) -> None:
        super().__init__()
        check_heads(d_model, n_heads, d_head)
        check_scale(scale)
        self.d_model = d_model
        self.n_heads = n_heads
        self.scale = scale
        width = n_heads * (d_head or d_model // n_heads)  # all heads together
        self.project_query = nn.Linear(d_model, width, bias=bias)
        self.project_key = nn.Linear(d_model, width, bias=bias)
        self.project_value = nn.Linear(d_model, width, bias=bias)
        self.project_out = nn.Linear(width, d_model, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "batch query d_model"],
        context: Float[Tensor, "batch key d_model"] | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch query d_model"]:
        """Let every position of `x` attend to `context`, or to `x` itself.

        Args:
            x: the stream that asks, (batch, query, d_model).
            context: the stream that answers, (batch, key, d_model); `x` when left out (self-attention).
            mask: Boolean, True = may attend, broadcastable to (batch, heads, query, key).
            bias: added to the scores, broadcastable likewise.
            causal: no query reads a later key.
            cache: holds the keys and values of the past. In self-attention those of `x` are appended; in
                cross-attention those of `context` are computed once and read from then on.
        """
        self.check_stream(x, "x")
        query = self.split(self.project_query(x))
        if context is not None and cache is not None and cache.length:
            key, value = cache.contents()
        else:
            source = x if context is None else context
            self.check_stream(source, "context")
            key, value = self.split(self.project_key(source)), self.split(self.project_value(source))
            if cache is not None:
                key, value = cache.append(key, value)

        return self.join(self.attend(query, key, value, mask=mask, bias=bias, causal=causal))

    def attend(
        self,
        query: Query,
        key: Key,
        value: Value,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        causal: bool = False,
    ) -> Attended:
        """All heads' attention: by the path that shows its weights if somebody looks, else the fast one."""
        if not self.observed:
            return fused_attention(query, key, value, mask=mask, bias=bias, causal=causal, scale=self.scale)
        attended, weights = scaled_dot_product_attention(
            query, key, value, mask=mask, bias=bias, causal=causal, scale=self.scale
        )
        self.report(weights)
        return attended

    def split(self, x: Float[Tensor, "batch seq width"]) -> Float[Tensor, "batch heads seq d_head"]:
        """All heads' projections, side by side in the last axis, with an axis of their own."""
        return torch.unflatten(x, 2, (self.n_heads, -1)).transpose(1, 2)

    def join(self, attended: Attended) -> Float[Tensor, "batch query d_model"]:
        """What the heads have read, side by side again, through the last projection."""
        return self.project_out(attended.transpose(1, 2).flatten(2))  # (batch, query, heads * d_head)

    def check_stream(self, x: Tensor, name: str) -> None:
        """Refuse what is no stream of this width, naming the argument."""
        if x.ndim != 3 or x.shape[2] != self.d_model or not x.dtype.is_floating_point:
            raise ValueError(
                f"{name} must be a float tensor of shape (batch, seq, d_model={self.d_model}), "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )


def check_heads(d_model: int, n_heads: int, d_head: int | None = None) -> None:
    """Refuse a number of heads that does not divide the width, unless heads have a width of their own.

    Raises:
        TypeError: one of them is not an integer.
        ValueError: names the values and, where it helps, the nearest numbers of heads that would do.
    """
    given = (d_model, n_heads) if d_head is None else (d_model, n_heads, d_head)
    if any(isinstance(size, bool) or not isinstance(size, int) for size in given):
        raise TypeError(
            f"d_model, n_heads and d_head must be integers, got d_model={d_model!r}, n_heads={n_heads!r}, "
            f"d_head={d_head!r}"
        )
    if d_model < 1:
        raise ValueError(f"d_model must be positive, got d_model={d_model}, n_heads={n_heads}")
    if d_head is not None:
        if d_head < 1 or n_heads < 1:
            raise ValueError(f"n_heads and d_head must be positive, got n_heads={n_heads}, d_head={d_head}")
        return
    if n_heads < 1 or d_model % n_heads:
        divisors = [heads for heads in range(1, d_model + 1) if d_model % heads == 0]
        nearest = sorted(sorted(divisors, key=lambda heads: abs(heads - n_heads))[:3])
        raise ValueError(
            f"n_heads must be positive and divide d_model, got d_model={d_model}, n_heads={n_heads}; "
            f"nearest that do: {', '.join(map(str, nearest))}"
        )


def check_scale(scale: float | None) -> None:
    """Refuse a factor on the scores that would turn attention around, off, or into NaN.

    Raises:
        ValueError: `scale` is neither None nor a finite positive number.
    """
    if scale is None:
        return
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < math.inf:
        raise ValueError(
            f"scale must be a finite positive number, or None for 1 / sqrt(d_head), got {scale!r}"
        )
