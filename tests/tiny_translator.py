"""A model that trains in milliseconds, for tests of training."""

from typing import Any

import torch
from torch import nn

from tx_from_scratch.data import GeneratedTask
from tx_from_scratch.history import History
from tx_from_scratch.training import Batches, Loss, SequenceLoss, fit

VOCAB = 13


class TinyTranslator(nn.Module):
    """The smallest thing with the interface of a sequence-to-sequence model, and with dropout."""

    def __init__(self, dropout: float = 0.1) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCAB, 16), nn.Embedding(VOCAB, 16)
        self.mix = nn.Linear(16, 16)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(16, VOCAB)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.target(target) + self.source(source).mean(dim=1, keepdim=True)
        return self.out(self.dropout(torch.tanh(self.mix(x))))


def sorting_task() -> GeneratedTask:
    return GeneratedTask("sort", length=8, shortest=2, n_symbols=10, sizes=(600, 50, 50))


def tiny(dropout: float = 0.1) -> tuple[TinyTranslator, torch.optim.Adam]:
    torch.manual_seed(0)
    model = TinyTranslator(dropout)
    return model, torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98), eps=1e-9)


def assert_same_weights(one: nn.Module, other: nn.Module, **tolerance: float) -> None:
    for (name, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(
            a, b, **(tolerance or {"rtol": 0, "atol": 0}), msg=lambda m, n=name: f"{n}: {m}"
        )


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    loss: Loss | None = None,
    **settings: Any,
) -> History:
    """`fit`, silent unless told otherwise."""
    return fit(model, batches, loss or SequenceLoss(), optimizer=optimizer, **{"progress": False, **settings})
