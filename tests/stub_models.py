"""Models for the tests of decoding: whatever next-token logits a test wants, without a network."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch
from torch import Tensor

PAD, BOS, EOS = 0, 1, 2
Written = tuple[int, ...]


class Stub:
    """A model whose next-token logits are any function of the source row and what is written so far.

    Args:
        logits: maps the first token of a source row and the tokens written to a list of logits.
    """

    def __init__(self, logits: Callable[[int, Written], list[float]]) -> None:
        self.logits = logits
        self.config = SimpleNamespace(pad_id=PAD, bos_id=BOS, eos_id=EOS)
        self.steps = 0

    def start_decoding(self, source: Tensor) -> StubState:
        return StubState(self, source[:, 0].tolist())


class StubState:
    def __init__(self, model: Stub, rows: list[int]) -> None:
        self.model = model
        self.rows: list[tuple[int, Written]] = [(row, ()) for row in rows]

    def next_logits(self, tokens: Tensor) -> Tensor:
        self.model.steps += 1
        self.rows = [
            (row, (*written, *new)) for (row, written), new in zip(self.rows, tokens.tolist(), strict=True)
        ]
        assert all(written[0] == BOS for _, written in self.rows)
        return torch.tensor([self.model.logits(row, written[1:]) for row, written in self.rows])

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[row] for row in rows.tolist()]


def random_stub(vocab_size: int) -> Stub:
    """Every beginning has a distribution of its own, the same whenever it is asked for."""

    def logits(row: int, written: Written) -> list[float]:
        draw = random.Random(repr((vocab_size, row, written)))
        return [draw.gauss(0, 2) for _ in range(vocab_size)]

    return Stub(logits)


def scripted_stub(scripts: dict[int, list[int]], others: float = -math.inf) -> Stub:
    """Row r writes its script, then token 3 for ever; what the others get is their logit."""

    def logits(row: int, written: Written) -> list[float]:
        script = scripts[row]
        wanted = script[len(written)] if len(written) < len(script) else 3
        return [0.0 if token == wanted else others for token in range(6)]

    return Stub(logits)


def source_of(rows: Sequence[int], lengths: Sequence[int] | None = None) -> Tensor:
    """Sources that begin with the given tokens and have the given lengths (2, when left out)."""
    lengths = lengths or [2] * len(rows)
    source = torch.full((len(rows), max(lengths)), PAD)
    for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        source[index, :length] = row
    return source
