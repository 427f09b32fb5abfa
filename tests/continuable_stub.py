"""A model for the tests of generation: whatever next-token logits a test wants, without a network."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tx_from_scratch.past import Cache


class Stub:
    """A model whose next-token logits are any function of a row's real tokens.

    It keeps its calls, and is shown what a `LanguageModel` is: with a cache the new tokens alone, without one
    all of them.
    """

    def __init__(self, logits: Callable[[list[int]], list[float]]) -> None:
        self.logits = logits
        self.calls: list[tuple[int, ...]] = []

    def start_cache(self, *, longest: object = None) -> StubCache:
        return StubCache()

    def __call__(
        self,
        tokens: Tensor,
        *,
        real: Tensor | None = None,
        cache: StubCache | None = None,
        longest: object = None,
        trusted: bool = False,
    ) -> Tensor:
        self.calls.append(tuple(tokens.shape))
        real = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
        rows = [row[kept].tolist() for row, kept in zip(tokens, real, strict=True)]
        if cache is not None:
            rows = cache.rows = [
                past + new for past, new in zip(cache.rows or [[]] * len(rows), rows, strict=True)
            ]
        return torch.tensor([self.logits(row) for row in rows])[:, None].expand(-1, tokens.shape[1], -1)


class StubCache(Cache):
    def __init__(self) -> None:
        super().__init__(1)
        self.rows: list[list[int]] = []


def scripted(scripts: dict[int, list[int]]) -> Stub:
    """A row that begins with token r writes script r, then token 3 for ever."""

    def logits(row: list[int]) -> list[float]:
        script, written = scripts[row[0]], len(row) - 1
        wanted = script[written] if written < len(script) else 3
        return [5.0 if token == wanted else 0.0 for token in range(8)]

    return Stub(logits)
