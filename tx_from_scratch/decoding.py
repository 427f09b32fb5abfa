"""Decoding: turning next-token probabilities into a sequence.

    greedy    at each step the most probable token
    beam      the K most probable beginnings at each step; finished ones compete by
              log p(Y | X) / ((5 + |Y|) / 6)^alpha          Wu et al. 2016, arXiv:1609.08144

Both take any model that can `start_decoding(source)`, stop as soon as no row can change any more, and treat
every row as if it were alone. Padding fills rows up behind their end; it is never written before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Source = Int[Tensor, "batch source"]
Written = Int[Tensor, "batch written"]


@runtime_checkable
class State(Protocol):
    """A half-written batch: see `transformer.DecodingState`."""

    def next_logits(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch vocab"]: ...

    def select(self, rows: Int[Tensor, "new_batch"]) -> None: ...


@runtime_checkable
class SpecialTokens(Protocol):
    """The three tokens that decoding must know."""

    @property
    def pad_id(self) -> int: ...

    @property
    def bos_id(self) -> int: ...

    @property
    def eos_id(self) -> int: ...


@runtime_checkable
class Decodable(Protocol):
    """What a model must offer to be decoded from: see `transformer.Transformer`."""

    @property
    def config(self) -> SpecialTokens: ...

    def start_decoding(self, source: Source) -> State: ...


@runtime_checkable
class Scorable(Protocol):
    """What a model must offer to have its probabilities read off: logits of every next token at once."""

    @property
    def config(self) -> SpecialTokens: ...

    def __call__(self, source: Source, target: Written) -> Float[Tensor, "batch written vocab"]: ...


def greedy_decode(model: Decodable, source: Source, *, max_new_tokens: int | None = None) -> Written:
    """Write the most probable token, again and again, until every row has ended.

    Args:
        model: in whatever mode; it is in evaluation mode while decoding and gets its mode back.
        source: tokens to read, (batch, source), filled up with `pad_id`.
        max_new_tokens: the longest output, its end token included; by default, as in the paper, each row's
            own source length + 50.

    Returns:
        (batch, length) tokens without the start token, up to and including `eos_id`, then `pad_id`.

    Raises:
        ValueError: `max_new_tokens` is not positive, or `source` holds no token.
    """
    pad, bos, eos = model.config.pad_id, model.config.bos_id, model.config.eos_id
    limits = _limits(source, pad, max_new_tokens)
    with evaluating(model), torch.inference_mode():
        state = model.start_decoding(source)
        never = torch.tensor([pad], device=source.device)
        token = torch.full_like(source[:, :1], bos)
        written: list[Tensor] = []
        ended = torch.zeros_like(token, dtype=torch.bool)
        first_limit = int(limits.min())
        while not ended.all():
            logits = state.next_logits(token).index_fill(-1, never, -torch.inf)
            token = logits.argmax(dim=-1, keepdim=True).to(source.dtype).masked_fill(ended, pad)
            written.append(token)
            ended = ended | (token == eos)
            if len(written) >= first_limit:
                ended = ended | (limits <= len(written))[:, None]
    # Joined out here, so that the caller gets an ordinary tensor, which autograd may save.
    return torch.cat(written, dim=1)


def beam_search(
    model: Decodable,
    source: Source,
    *,
    beam_size: int = 4,
    length_penalty: float = 0.6,
    max_new_tokens: int | None = None,
) -> Written:
    """Keep the `beam_size` best beginnings; return the best finished sequence of each row.

    A finished sequence Y is scored log p(Y | X) / ((5 + |Y|) / 6)^length_penalty, where |Y| counts the end
    token. A row is settled once no beginning, even if it ended for free at the longest length, could still
    beat its best finished sequence. Where nothing ends in time, the best unfinished one is returned.

    Args:
        model: in whatever mode; it is in evaluation mode while decoding and gets its mode back.
        source: tokens to read, (batch, source), filled up with `pad_id`.
        beam_size: beginnings kept for each row (the paper: 4). Even 1 can beat `greedy_decode`, which must
            end where the end token is the most probable one.
        length_penalty: 0 compares plain log probabilities and favors short output; the paper uses 0.6.
        max_new_tokens: as for `greedy_decode`.

    Returns:
        (batch, length) tokens without the start token, up to and including `eos_id`, then `pad_id`.

    Raises:
        ValueError: `beam_size` or `max_new_tokens` is not positive, `length_penalty` is negative, or `source`
            holds no token.

    Source: Wu et al. 2016, section 7, arXiv:1609.08144; Vaswani et al. 2017, section 6.1, arXiv:1706.03762.
    """
    if not isinstance(beam_size, int) or beam_size < 1:
        raise ValueError(f"beam_size must be a positive integer, got {beam_size!r}")
    if length_penalty < 0:
        raise ValueError(f"length_penalty must not be negative, got {length_penalty}")
    pad, bos, eos = model.config.pad_id, model.config.bos_id, model.config.eos_id
    limits = _limits(source, pad, max_new_tokens)
    batch, device = source.shape[0], source.device
    first_row = torch.arange(batch, device=device)[:, None] * beam_size  # of each row's beams

    with evaluating(model), torch.inference_mode():
        state = model.start_decoding(source)
        state.select(torch.arange(batch, device=device).repeat_interleave(beam_size))
        # All beams start alike, so only the first may go on; the others would repeat it.
        live = torch.full((batch, beam_size), -torch.inf, device=device)
        live[:, 0] = 0.0
        written = torch.empty(batch, beam_size, 0, dtype=source.dtype, device=device)
        best = torch.full((batch,), -torch.inf, device=device)  # score of the best finished sequence
        lengths = torch.ones_like(limits)
        answer = torch.full((batch, int(limits.max())), pad, dtype=source.dtype, device=device)
        token = torch.full((batch * beam_size, 1), bos, dtype=source.dtype, device=device)
        never = torch.tensor([pad], device=device)

        for length in range(1, int(limits.max()) + 1):
            steps = state.next_logits(token).float().log_softmax(dim=-1)
            steps = steps.index_fill(-1, never, -torch.inf)  # (batch * beam, vocab)
            vocab_size = steps.shape[-1]
            totals = (live.view(-1, 1) + steps).view(batch, beam_size * vocab_size)
            # Twice the beam: even if every beam's best continuation ends, enough go on.
            totals, index = totals.topk(min(2 * beam_size, totals.shape[1]), dim=-1)
            beam, token = index // vocab_size, (index % vocab_size).to(source.dtype)
            grown = torch.cat(
                [written.gather(1, beam[..., None].expand(-1, -1, length - 1)), token[..., None]], -1
            )

            # Sequences that end here compete; a row that reaches its limit with none takes what it has.
            score = totals / ((5 + length) / 6) ** length_penalty
            finished = (token == eos) & (limits >= length)[:, None] & ~totals.isneginf()
            cut_off = (limits == length) & best.isneginf() & ~finished.any(dim=-1)
            value, which = score.where(finished | cut_off[:, None], -torch.inf).max(dim=-1)
            better = value > best
            lengths = torch.where(better, length, lengths)
            best = torch.where(better, value, best)
            winner = grown.gather(1, which[:, None, None].expand(-1, 1, length))[:, 0]
            answer[:, :length] = torch.where(better[:, None], winner, answer[:, :length])
            answer[:, length:] = answer[:, length:].masked_fill(better[:, None], pad)

            live, keep = totals.masked_fill(token == eos, -torch.inf).topk(beam_size, dim=-1)
            attainable = live[:, 0] / ((5 + limits) / 6) ** length_penalty
            if bool(((attainable <= best) | (limits <= length)).all()):
                break
            written = grown.gather(1, keep[..., None].expand(-1, -1, length))
            token = written[..., -1].reshape(-1, 1)
            state.select((first_row + beam.gather(1, keep)).view(-1))
    # Copied out here, so that the caller gets an ordinary tensor, which autograd may save.
    return answer[:, : int(lengths.max())].clone()


def sequence_log_probability(model: Scorable, source: Source, target: Written) -> Float[Tensor, "batch"]:
    """log p(target | source) of each row in one parallel pass; what `beam_search` adds up step by step.

    Args:
        model: maps (source, shifted target) to logits.
        source: (batch, source) tokens.
        target: (batch, target) tokens as decoding returns them: no start token, `pad_id` after the end.
    """
    pad, bos = model.config.pad_id, model.config.bos_id
    with evaluating(model), torch.no_grad():
        shifted = torch.cat([torch.full_like(target[:, :1], bos), target[:, :-1]], dim=1)
        steps = model(source, shifted).float().log_softmax(dim=-1)
        chosen = steps.gather(-1, target[..., None])[..., 0]
        return chosen.masked_fill(target == pad, 0.0).sum(dim=1)


def _limits(source: Source, pad_id: int, max_new_tokens: int | None) -> Int[Tensor, "batch"]:
    """The longest output of each row."""
    if source.ndim != 2 or not source.numel():
        raise ValueError(
            f"source must have shape (batch, length) and hold at least one token, got {tuple(source.shape)}"
        )
    if max_new_tokens is None:
        return (source != pad_id).sum(dim=1) + 50
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be a positive integer, got {max_new_tokens!r}")
    return torch.full_like(source[:, 0], max_new_tokens)


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """Evaluation mode inside the block; every module gets its own mode back."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    if isinstance(model, nn.Module):
        model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
