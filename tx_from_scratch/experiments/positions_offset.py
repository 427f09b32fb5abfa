"""Copy the token that stands k steps back: a task that knows exact offsets, and nothing else."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Int64
from torch import Tensor, nn

from tx_from_scratch.experiments.number_words import mean_loss
from tx_from_scratch.experiments.study import Figures, Settings, Study
from tx_from_scratch.history import History
from tx_from_scratch.model import LanguageModel, ModelConfig
from tx_from_scratch.schedules import CosineSchedule
from tx_from_scratch.training import best_device, fit, seed_everything

VOCAB_SIZE, LENGTH, ROWS = 32, 64, 32
TEST_SEED = 1_000_003  # apart from all training seeds
OFFSETS = (4, 24)
SCHEMES = ("rope", "alibi", "t5", "shaw", "sinusoidal", "none")


class RandomTokens:
    """Batches of tokens drawn evenly: `batches[i]` depends on the seed and i alone, (rows, length)."""

    def __init__(self, *, rows: int = ROWS, length: int = LENGTH, seed: int = 0) -> None:
        self.rows, self.length, self.seed = rows, length, seed

    def __getitem__(self, index: int) -> Int64[Tensor, "rows length"]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        return torch.randint(VOCAB_SIZE, (self.rows, self.length), generator=generator)


class OffsetLoss:
    """At every position predict the token that stands `offset` steps before it, where there is one."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def __call__(self, model: nn.Module, tokens: Int64[Tensor, "rows length"]) -> tuple[Tensor, int]:
        logits = model(tokens)[:, self.offset :]
        wanted = tokens[:, : tokens.shape[1] - self.offset]
        return F.cross_entropy(logits.mT, wanted, reduction="sum"), wanted.numel()


def make_model(settings: Settings, seed: int) -> LanguageModel:
    """Two layers of width 64 with four heads, untrained."""
    seed_everything(seed)
    config = ModelConfig(
        vocab_size=VOCAB_SIZE,
        d_model=64,
        n_heads=4,
        n_layers=2,
        d_ff=128,
        positions=settings["positions"],
        causal=settings["causal"],
        max_length=LENGTH,
    )
    return LanguageModel(config).to(best_device())


def fit_model(model: LanguageModel, settings: Settings, seed: int, *, steps: int | None = None) -> History:
    """Train on freshly drawn tokens."""
    history = fit(
        model,
        RandomTokens(seed=seed),
        OffsetLoss(settings["offset"]),
        optimizer=torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01),
        schedule=CosineSchedule(settings["rate"], settings["steps"], warmup=20),
        steps=steps or settings["steps"],
        clip_norm=1.0,
        seed=seed,
        progress=False,
    )
    if history.interrupted:
        raise KeyboardInterrupt
    return history


@torch.no_grad()
def accuracy(model: LanguageModel, offset: int) -> float:
    """Share of unseen tokens that are copied right; chance is 1 / 32."""
    tokens = RandomTokens(rows=256, seed=TEST_SEED)[0].to(model.embedding.weight.device)
    answers = model.eval()(tokens).argmax(dim=-1)[:, offset:]
    return float((answers == tokens[:, : tokens.shape[1] - offset]).double().mean())


def measure(settings: Settings, seed: int) -> Figures:
    """Train on one offset with one scheme.

    Returns:
        accuracy: share of 256 unseen rows' tokens copied right. loss: mean training loss of every 20 steps.
    """
    model = make_model(settings, seed)
    history = fit_model(model, settings, seed)
    return {"accuracy": round(accuracy(model, settings["offset"]), 5), "loss": mean_loss(history)}


def arm(scheme: str, offset: int, *, causal: bool = True) -> Settings:
    """One scheme on one offset."""
    return {"positions": scheme, "offset": offset, "causal": causal, "steps": 400, "rate": 3e-3}


STUDY = Study(
    name="positions_offset",
    question="Which position schemes can copy the token that stands exactly k steps back?",
    arms={f"{scheme}, {offset} back": arm(scheme, offset) for offset in OFFSETS for scheme in SCHEMES}
    | {f"{scheme}, 4 back, encoder": arm(scheme, 4, causal=False) for scheme in ("rope", "none")},
    seeds=(0, 1, 2),
    measure=measure,
)
