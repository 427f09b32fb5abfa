"""One small language model of Shakespeare, trained briefly: what the studies of positions vary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tx_from_scratch.experiments.study import Settings
from tx_from_scratch.history import History
from tx_from_scratch.losses import NextTokenLoss
from tx_from_scratch.model import LanguageModel, ModelConfig
from tx_from_scratch.positions import T5RelativeBias
from tx_from_scratch.progress import Progress
from tx_from_scratch.schedules import CosineSchedule
from tx_from_scratch.text import TextBatches, TextTokens, windows
from tx_from_scratch.training import best_device, fit, seed_everything

VOCAB_SIZE = 512
SIZES: Mapping[str, Any] = {
    "d_model": 128,
    "n_heads": 4,
    "n_layers": 3,
    "d_ff": 256,
    "feedforward": "swiglu",
    "normalization": "rms_norm",
}
RECIPE: Settings = {"positions": "rope", "length": 64, "tokens": 2048, "steps": 400, "rate": 4e-3}
"""An arm changes one thing. 400 steps of 2,048 tokens read a third of the training plays once."""


def make_model(settings: Settings, seed: int) -> LanguageModel:
    """The untrained model: width 128, three layers, four heads of width 32."""
    seed_everything(seed)
    positions = settings["positions"]
    if "t5_gain" in settings:
        positions = T5RelativeBias(SIZES["n_heads"], gain=settings["t5_gain"])
    config = ModelConfig(vocab_size=VOCAB_SIZE, positions=positions, max_length=settings["length"], **SIZES)
    return LanguageModel(config).to(best_device())


def fit_model(
    model: LanguageModel,
    settings: Settings,
    seed: int,
    *,
    steps: int | None = None,
    progress: bool | Progress = False,
) -> History:
    """Train on windows of the training plays, as many steps as the settings say unless `steps` says less."""
    length = settings["length"]
    history = fit(
        model,
        TextBatches(
            TextTokens(VOCAB_SIZE).tokens("train"),
            rows=settings["tokens"] // length,
            length=length,
            seed=seed,
        ),
        NextTokenLoss(),
        optimizer=torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01),
        schedule=CosineSchedule(settings["rate"], settings["steps"], warmup=settings["steps"] // 10),
        steps=steps or settings["steps"],
        clip_norm=1.0,
        seed=seed,
        progress=progress,
    )
    if history.interrupted:  # `fit` returns what it has; a study must not store that as a whole run
        raise KeyboardInterrupt
    return history


def test_windows(length: int, count: int) -> Int[Tensor, "count window"]:
    """Windows of `length` + 1 tokens, spread evenly over the test plays."""
    return windows(TextTokens(VOCAB_SIZE).tokens("test"), length=length, count=count)


@torch.no_grad()
def loss_by_position(
    model: LanguageModel, tokens: Int[Tensor, "count window"], *, longest: int | None = None
) -> Float[Tensor, " length"]:
    """Mean loss in nats of the token that follows each position, over all windows.

    Args:
        model: a causal model.
        tokens: (count, length + 1).
        longest: what dynamic NTK is told; the length of the windows when None.
    """
    model.eval()
    device = model.embedding.weight.device
    losses = []
    for part in torch.split(tokens.to(device), 8):
        logits = model(part[:, :-1], longest=longest)
        losses.append(F.cross_entropy(logits.mT, part[:, 1:], reduction="none"))
    return torch.cat(losses).double().mean(dim=0).cpu()


def averaged(losses: Float[Tensor, " window"], size: int) -> list[float]:
    """Means of `size` positions each."""
    return [round(value, 4) for value in losses.unfold(0, size, size).mean(dim=1).tolist()]
