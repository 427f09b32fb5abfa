"""Generation: continuing texts with a language model, token by token.

    temperature    softmax(logits / T): below 1 bolder choices get likelier still; 0 takes the likeliest
    top-k          only the k likeliest tokens                          Fan et al. 2018, arXiv:1805.04833
    top-p          only the likeliest that together reach p             Holtzman et al. 2019, arXiv:1904.09751

All settings at once: temperature first, then top-k, then top-p.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Protocol, SupportsIndex, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tx_from_scratch.decoding import evaluating
from tx_from_scratch.masks import check_mask
from tx_from_scratch.past import Cache

Prompt = Int[Tensor, "batch prompt"]


@runtime_checkable
class Continuable(Protocol):
    """What a model must offer to continue a text: see `model.LanguageModel`."""

    def start_cache(self, *, longest: int | Int[Tensor, "batch"] | None = None) -> Cache: ...

    def __call__(
        self,
        tokens: Int[Tensor, "batch new"],
        *,
        real: Bool[Tensor, "batch new"] | None = None,
        cache: Cache | None = None,
        longest: int | Int[Tensor, "batch"] | None = None,
        trusted: bool = False,
    ) -> Float[Tensor, "batch new vocab"]: ...


def left_pad(
    rows: Sequence[Sequence[int]], *, pad_id: int = 0
) -> tuple[Prompt, Bool[Tensor, "batch prompt"]]:
    """Prompts of different lengths in one batch, padding in front, so that all end at the same column.

    Returns:
        The tokens, (batch, longest row), and where they are real.

    Raises:
        TypeError: a token, or `pad_id`, is no integer.
        ValueError: there is no row, or one is empty.
    """
    if not rows or not all(len(row) for row in rows):
        raise ValueError("rows must hold at least one row, and every row at least one token")
    longest = max(map(len, rows))
    pad_id = _token(pad_id, "pad_id")
    tokens = torch.tensor(
        [[pad_id] * (longest - len(row)) + [_token(item, "rows") for item in row] for row in rows]
    )
    real = torch.tensor([[False] * (longest - len(row)) + [True] * len(row) for row in rows])
    return tokens, real


def _token(item: object, name: str) -> int:
    """The token as a plain integer, whichever kind of integer it was (NumPy's, a tensor's).

    Raises:
        TypeError: it is none; True and False are none either.
    """
    if isinstance(item, bool) or not isinstance(item, SupportsIndex):
        raise TypeError(f"{name} must hold integers, got {item!r}")
    try:
        return operator.index(item)
    except TypeError as error:  # a tensor of another type
        raise TypeError(f"{name} must hold integers, got {item!r}") from error


def next_token_probabilities(
    logits: Float[Tensor, "batch vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "batch vocab"]:
    """What the next token is drawn from. First the temperature, then top-k, then top-p.

    Args:
        logits: of the next token, (batch, vocab); some may be −infinity.
        temperature: 0 puts everything on the likeliest token; any positive number, however small, is fine.
        top_k: keep this many tokens; the whole vocabulary if it is smaller.
        top_p: keep the likeliest tokens until they reach this probability together; at least one.

    Returns:
        Probabilities in at least float32, (batch, vocab), which sum to 1.

    Raises:
        ValueError: a setting is out of range, or a row has no possible token.
    """
    check_sampling(temperature, top_k, top_p)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    highest = logits.amax(dim=-1, keepdim=True)
    if not highest.isfinite().all():
        raise ValueError("logits must hold a finite number in every row, and neither NaN nor +infinity")
    if temperature == 0:
        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    # The largest is subtracted first: then a tiny temperature makes −infinity of the others, not infinity.
    # Below float32's smallest normal number its inverse would be infinite, and GPUs multiply by that.
    temperature = max(temperature, torch.finfo(torch.float32).tiny)
    probabilities = ((logits - highest) / temperature).softmax(dim=-1)
    if top_k is None and top_p is None:
        return probabilities
    # Stable: of equally likely tokens the one with the lower number comes first, on every machine.
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    if top_k is not None:
        place = torch.arange(ordered.shape[-1], device=order.device)
        ordered = ordered.masked_fill(place >= top_k, 0.0)
    if top_p is not None and top_p < 1:  # at 1, a sum that reaches it by rounding would end the row early
        ordered = ordered / ordered.sum(dim=-1, keepdim=True)
        reached_before = ordered.cumsum(dim=-1) - ordered
        reached_before[..., 0] = 0.0
        ordered = ordered.masked_fill(reached_before >= top_p, 0.0)
    kept = torch.zeros_like(probabilities).scatter(-1, order, ordered)
    return kept / kept.sum(dim=-1, keepdim=True)


def generate(
    model: Continuable,
    prompt: Prompt,
    *,
    max_new_tokens: int,
    real: Bool[Tensor, "batch prompt"] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_id: int | Int[Tensor, "batch"] | None = None,
    pad_id: int = 0,
    generator: torch.Generator | None = None,
    cached: bool = True,
) -> Int[Tensor, "batch new"]:
    """Continue every row until it writes its stop token, or `max_new_tokens` are written.

    Rows don't influence each other: a row in a batch, padded or not, is continued as it would be alone (drawn
    tokens aside, which share one generator).

    Args:
        model: in whatever mode; it is in evaluation mode while writing and gets its mode back.
        prompt: tokens, (batch, prompt), short rows padded in front, see `left_pad`.
        max_new_tokens: the most to write, stop token included.
        real: where the prompt is no padding; everywhere when None.
        temperature: 0 takes the likeliest token at every step, see `next_token_probabilities`.
        top_k: see there.
        top_p: see there.
        stop_id: the token that ends a row, one for all or one for each; None: nothing does.
        pad_id: fills rows up behind their stop token.
        generator: draws the tokens; PyTorch's own when None.
        cached: keep keys and values; without, all of the text is computed at every step, to the same end.

    Returns:
        (batch, new) tokens without the prompt: each row up to and including its stop token, then `pad_id`.

    Raises:
        TypeError: `prompt` is no tensor of integers, or `real` is not Boolean.
        ValueError: a setting is out of range, the prompt is empty or ends with padding, shapes don't fit, a
            token lies outside the vocabulary, or the model is an encoder.
    """
    check_sampling(temperature, top_k, top_p)
    real = _check_prompt(prompt, real, max_new_tokens)
    config = getattr(model, "config", None)  # not part of what a model must offer
    if not getattr(config, "causal", True):
        raise ValueError("causal must be True to continue a text: an encoder's early tokens read later ones")
    stop = _stop_column(stop_id, prompt, getattr(config, "vocab_size", None))
    lengths = torch.full_like(prompt[:, 0], prompt.shape[1]) if real is None else real.sum(dim=1)
    longest = lengths + max_new_tokens
    with evaluating(model), torch.inference_mode():
        cache = model.start_cache(longest=longest) if cached else None
        tokens, written = prompt, prompt[:, :0]
        ended = torch.zeros_like(prompt[:, :1], dtype=torch.bool)
        for step in range(max_new_tokens):
            logits = model(
                tokens,
                real=real,
                cache=cache,
                longest=None if cached else longest,
                trusted=step > 0,
            )[:, -1]
            token = _draw(logits, temperature, top_k, top_p, generator).to(prompt.dtype)
            written = torch.cat([written, token.masked_fill(ended, pad_id)], dim=1)
            n_ended = 0
            if stop is not None:
                ended = ended | (token == stop)
                n_ended = int(ended.sum())
            if n_ended == len(prompt):
                break
            # What a row that has ended goes on to draw is padding: nobody reads it, and it takes no place.
            going = ~ended if n_ended else None
            if cached:
                tokens, real = token, going
            else:
                real = _extended(real, tokens, going)
                tokens = torch.cat([tokens, token], dim=1)
    return written.clone()  # out here, so that the caller gets an ordinary tensor, which autograd may save


def _extended(
    real: Bool[Tensor, "batch seq"] | None,
    tokens: Int[Tensor, "batch seq"],
    new: Bool[Tensor, "batch 1"] | None,
) -> Bool[Tensor, "batch longer"] | None:
    """Where tokens are real when one more stands behind them; None still means everywhere."""
    if real is None and new is None:
        return None
    real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
    return torch.cat([real, torch.ones_like(real[:, :1]) if new is None else new], dim=1)


def check_sampling(temperature: float, top_k: int | None, top_p: float | None) -> None:
    """Refuse settings that leave no token, or none but chance, before anything is computed.

    Raises:
        ValueError: `temperature` is negative or not finite, `top_k` is no positive integer, or `top_p` is not
            above 0 and at most 1.
    """
    if not 0 <= temperature < math.inf:
        raise ValueError(f"temperature must be finite and not negative, got {temperature}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise ValueError(f"top_k must be a positive integer, or None for no limit, got {top_k!r}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, or None for no limit, got {top_p}")


def _draw(
    logits: Float[Tensor, "batch vocab"],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Int[Tensor, "batch 1"]:
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    probabilities = next_token_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
    return torch.multinomial(probabilities, 1, generator=generator)


def _check_prompt(
    prompt: Tensor, real: Tensor | None, max_new_tokens: int
) -> Bool[Tensor, "batch prompt"] | None:
    if not isinstance(prompt, Tensor):
        raise TypeError(f"prompt must be a tensor of token ids, got {type(prompt).__name__}")
    if prompt.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"prompt must hold int64 or int32 token ids, got {prompt.dtype}")
    if prompt.ndim != 2 or not prompt.numel():
        raise ValueError(
            f"prompt must have shape (batch, length) and hold at least one token, got {tuple(prompt.shape)}"
        )
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be a positive integer, got {max_new_tokens!r}")
    if real is None:
        return None
    check_mask(real, name="real")
    if real.shape != prompt.shape:
        raise ValueError(
            f"real must have the shape of prompt, {tuple(prompt.shape)}, got {tuple(real.shape)}"
        )
    if not real[:, -1].all():
        raise ValueError("real must be True in the last column: put the padding in front, see left_pad")
    # Without padding no step needs a mask, which spares each of them some work.
    return None if real.all() else real


def _stop_column(
    stop_id: int | Tensor | None, prompt: Prompt, vocab_size: int | None
) -> Int[Tensor, "#batch 1"] | None:
    if stop_id is None:
        return None
    stop = torch.as_tensor(stop_id, device=prompt.device)
    if stop.dtype.is_floating_point or stop.dtype == torch.bool or stop.shape not in ((), prompt.shape[:1]):
        raise ValueError(
            f"stop_id must be a token, or one for each of the {len(prompt)} rows, got {stop_id!r}"
        )
    if vocab_size is not None and ((stop < 0) | (stop >= vocab_size)).any():
        raise ValueError(
            f"stop_id must be from 0 to {vocab_size - 1} (vocab_size={vocab_size}), got {stop_id!r}"
        )
    return stop.view(-1, 1)
