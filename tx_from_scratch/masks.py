"""Masks: who may read whom.

One rule throughout: a mask is Boolean, True means *may attend*, and it broadcasts to
(batch, heads, query, key). That is the convention of `torch.nn.functional.scaled_dot_product_attention`;
`torch.nn.MultiheadAttention` and fairseq use the opposite one, and older code adds 0 and -inf.
The `from_*` functions convert; attention itself takes nothing but this one kind.

    padding_mask     (batch, 1, 1, key)   real tokens may be read, padding may not
    causal_mask      (query, key)         nobody reads what comes later
    combine_masks    all of them at once  allowed only where every mask allows it
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Mask = Bool[Tensor, "..."]

_CONVERTERS = (
    "True or 1 = masked: from_ignore_mask; 0 and -inf added to the scores: from_additive_mask; "
    "1 = may attend: from_integer_mask"
)


def check_mask(mask: Tensor, *, name: str = "mask") -> None:
    """Refuse whatever is not a Boolean mask.

    Raises:
        TypeError: `mask` is not a Boolean tensor; the message names the converters.
    """
    if not isinstance(mask, Tensor):
        raise TypeError(f"{name} must be a Boolean tensor (True = may attend), got {type(mask).__name__}")
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be a Boolean tensor (True = may attend), got {mask.dtype}. "
            f"Convert it first with tx_from_scratch.masks: {_CONVERTERS}"
        )


def padding_mask(tokens: Int[Tensor, "batch key"], pad_id: int) -> Bool[Tensor, "batch 1 1 key"]:
    """May attend where the token is a real one; the same for all heads and queries.

    The two axes of length 1 matter: a mask of shape (batch, key) would be read as (query, key), without an
    error where the batch happens to be as large as the number of queries.
    """
    if tokens.ndim != 2:
        raise ValueError(f"tokens must have shape (batch, length), got {tuple(tokens.shape)}")
    return (tokens != pad_id)[:, None, None, :]


def causal_mask(
    query: int, key: int | None = None, *, device: torch.device | str | None = None
) -> Bool[Tensor, "query key"]:
    """Query i may attend to keys 0 ... key - query + i: the last query reads everything.

    With as many keys as queries this is the usual lower triangle. With more keys, as when the first
    ones come from a key/value cache, the queries are the *last* positions, so the triangle is aligned
    at the bottom right. (`is_causal=True` in PyTorch aligns it at the top left: there a single new
    query would read only the first key.)

    Args:
        query: number of queries.
        key: number of keys; as many as queries when left out.
        device: where to build the mask.
    """
    key = query if key is None else key
    if not (isinstance(query, int) and isinstance(key, int)):
        raise TypeError(f"query and key must be integers, got query={query!r}, key={key!r}")
    if query < 0 or key < 0:
        raise ValueError(f"query and key must not be negative, got query={query}, key={key}")
    return torch.ones(query, key, dtype=torch.bool, device=device).tril(diagonal=key - query)


def combine_masks(*masks: Mask | None) -> Mask | None:
    """Allow what every mask allows. None stands for "everything allowed", also as the result.

    Raises:
        TypeError: one of them is not Boolean.
        ValueError: their shapes do not broadcast against each other.
    """
    combined: Tensor | None = None
    for index, mask in enumerate(masks):
        if mask is None:
            continue
        check_mask(mask, name=f"masks[{index}]")
        if combined is None:
            combined = mask
            continue
        try:
            combined = combined & mask
        except RuntimeError:
            raise ValueError(
                f"masks[{index}] of shape {tuple(mask.shape)} does not broadcast against the ones before it, "
                f"{tuple(combined.shape)}"
            ) from None
    return combined


def from_ignore_mask(mask: Tensor) -> Mask:
    """From True (or 1) = ignore: `nn.MultiheadAttention`'s `key_padding_mask`, fairseq.

    Raises:
        TypeError: `mask` is a float; those are added to the scores and need `from_additive_mask`.
        ValueError: an integer mask holds something other than 0 and 1.
    """
    if mask.dtype.is_floating_point:
        raise TypeError(
            f"mask must be Boolean or 0/1 integers (1 = ignore), got {mask.dtype}; "
            "a float mask of 0 and -inf needs from_additive_mask"
        )
    return ~_zeros_and_ones(mask)


def from_integer_mask(mask: Tensor) -> Mask:
    """From 1 = may attend, 0 = ignore: the `attention_mask` that tokenizers return.

    Raises:
        TypeError: `mask` is a float; those are added to the scores and need `from_additive_mask`.
        ValueError: it holds something other than 0 and 1.
    """
    if mask.dtype.is_floating_point:
        raise TypeError(
            f"mask must be 0/1 integers (1 = may attend), got {mask.dtype}; "
            "a float mask of 0 and -inf needs from_additive_mask"
        )
    return _zeros_and_ones(mask)


def from_additive_mask(mask: Tensor) -> Mask:
    """From a float mask that is added to the scores: 0 = may attend, -inf or a huge negative = ignore.

    Anything at or below -10,000 counts as "ignore": -1e4, -1e9 and the smallest finite number of a
    format are all in use. What lies between is a bias, not a mask, and is refused.

    Raises:
        TypeError: `mask` is not a float.
        ValueError: it holds values other than 0 and those below -10,000.
    """
    if not mask.dtype.is_floating_point:
        raise TypeError(
            f"mask must be a float that is added to the scores (0 = may attend, -inf = ignore), "
            f"got {mask.dtype}; other conventions: {_CONVERTERS}"
        )
    ignored = mask <= -1e4
    if not bool((ignored | (mask == 0)).all()):
        raise ValueError(
            "mask must hold only 0 (may attend) and -inf or values below -10,000 (ignore); "
            "finite values between them are a bias: pass those as bias="
        )
    return ~ignored


def _zeros_and_ones(mask: Tensor) -> Mask:
    if mask.dtype == torch.bool:
        return mask
    if not bool(((mask == 0) | (mask == 1)).all()):
        low, high = mask.min().item(), mask.max().item()
        raise ValueError(f"mask must hold only 0 and 1, got values from {low} to {high}")
    return mask == 1
