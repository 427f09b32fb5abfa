"""RoPE trained at 128 tokens and read beyond: which frequencies break, what stretching them mends."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tx_from_scratch.attention import Key, Query
from tx_from_scratch.experiments.language_model import (
    RECIPE,
    averaged,
    fit_model,
    loss_by_position,
    make_model,
    test_windows,
)
from tx_from_scratch.experiments.number_words import mean_loss
from tx_from_scratch.experiments.study import Figures, Settings, Study
from tx_from_scratch.model import LanguageModel
from tx_from_scratch.positions import (
    DynamicNTKScaling,
    LinearScaling,
    NTKScaling,
    Places,
    RoPEScaling,
    RotaryEmbedding,
    YaRNScaling,
    rope_frequencies,
    rotate,
)
from tx_from_scratch.positions.base import ScoreBias

TRAINED, TESTED, WINDOWS, BUCKET = 128, 512, 64, 32
TARGETS = (256, 384)
PAIR_WINDOWS = 32  # fewer, for twice as many tests as there are pairs
TUNED_TARGET, TUNED_STEPS, TUNED_RATE = 384, 40, 1e-3


def methods(target: int) -> dict[str, RoPEScaling]:
    """Every way of stretching to this length."""
    factor = target / TRAINED
    return {
        "linear": LinearScaling(factor),
        "ntk": NTKScaling(factor),
        "dynamic_ntk": DynamicNTKScaling(TRAINED),
        "yarn": YaRNScaling(factor, TRAINED),
        "yarn_paper": YaRNScaling(factor, TRAINED, ramp="rotations"),
    }


class ClippedRotary(RotaryEmbedding):
    """RoPE in which some pairs never see a distance beyond the trained ones.

    Where two tokens are further apart than training ever had them, the clipped pairs are compared as if they
    stood at the longest trained distance; the other pairs turn on. So it shows which pairs break a model.

    Args:
        d_head: width of a head.
        clipped: which pairs, (d_head / 2,).
        furthest: the longest trained distance.
    """

    def __init__(self, d_head: int, *, clipped: Bool[Tensor, " pairs"], furthest: int) -> None:
        super().__init__(d_head)
        self.clipped: Tensor
        self.register_buffer("clipped", clipped, persistent=False)
        self.furthest = furthest

    def prepare(self, places: Places) -> Any:
        angles = self.angles(places)
        # Only the other pairs are turned where attention multiplies; `bias` puts the clipped ones right.
        free = angles * ~self.clipped
        end = self.furthest * rope_frequencies(self.d_head, base=self.base, device=angles.device)
        end = end.expand_as(angles)
        beyond = (-places.relative() > self.furthest)[:, None]  # (batch, 1, query, key)
        return free, angles, end, beyond

    def rotate(self, query: Query, key: Key, prepared: Any) -> tuple[Query, Key]:
        free, *_ = prepared
        return self._turned(query, free), self._turned(key, free)

    def bias(self, query: Query, key: Key, scale: float, prepared: Any, layer: int) -> ScoreBias:
        _, angles, end, beyond = prepared
        mask = torch.cat([self.clipped, self.clipped])
        query, key = query * mask, key * mask  # not turned so far
        near = self._turned(query, angles) @ self._turned(key, angles).mT
        far = self._turned(query, end) @ key.mT
        return scale * (torch.where(beyond, far, near) - query @ key.mT)

    def _turned(self, x: Tensor, angles: Tensor) -> Tensor:
        return rotate(x, angles.cos(), angles.sin())


def unseen_pairs(d_head: int) -> Bool[Tensor, " pairs"]:
    """Pairs that make less than one turn within the trained length: the only ones to meet new angles."""
    return rope_frequencies(d_head) * TRAINED < 2 * math.pi


def measure(settings: Settings, seed: int) -> Figures:
    """Train RoPE at 128 tokens; read windows of 512 tokens of the test plays in many ways.

    Returns:
        raw: nats per token of every 32 positions, as trained. METHOD_TARGET: the same with the frequencies
        stretched to a target length, up to that length. clipped_PAIRS: the same with the angles of some pairs
        kept to trained distances: those that make less than a turn in training (slow), the others (fast),
        the slower or faster half, or all. only: nats per token at positions 256 to 512 if one pair alone goes
        on and the others are kept to trained distances, for each pair; without: if one pair alone is kept.
        tuned_METHOD: stretched to 384 and trained for 40 more steps at
        that length; tuned_none: the same without stretching. loss: mean training loss of every 20 steps.
    """
    model = make_model(settings, seed)
    history = fit_model(model, settings, seed)
    tokens = test_windows(TESTED, WINDOWS)
    figures: dict[str, float | list[float]] = {"loss": mean_loss(history)}

    def read(name: str, model: LanguageModel, length: int) -> None:
        losses = loss_by_position(model, tokens[:, : length + 1])
        figures[name] = averaged(losses, BUCKET)

    read("raw", model, TESTED)
    for target in TARGETS:
        for name, scaling in methods(target).items():
            read(f"{name}_{target}", stretched(model, scaling), target)
    for name, clipped in clippings(model.config.head_width).items():
        read(f"clipped_{name}", with_clipped(model, clipped), TESTED)
    figures["only"], figures["without"] = pair_by_pair(model, tokens[:PAIR_WINDOWS])
    tuning = {**settings, "length": TUNED_TARGET, "steps": TUNED_STEPS, "rate": TUNED_RATE}
    tuning["tokens"] = settings["tokens"] // TUNED_TARGET * TUNED_TARGET
    candidates: Mapping[str, RoPEScaling] = {"none": RoPEScaling(), **methods(TUNED_TARGET)}
    for name, scaling in candidates.items():
        tuned = stretched(model, scaling)
        fit_model(tuned, tuning, seed + 1000)
        read(f"tuned_{name}", tuned, TUNED_TARGET)
    # Dynamic NTK leaves a short text as it was; the others don't.
    for name, scaling in candidates.items():
        read(f"short_{name}", stretched(model, scaling), TRAINED)
    return figures


def clippings(d_head: int) -> dict[str, Bool[Tensor, " pairs"]]:
    """Which pairs are kept to trained distances, by name."""
    slow = unseen_pairs(d_head)
    slower_half = torch.arange(d_head // 2) >= d_head // 4
    return {
        "slow": slow,
        "fast": ~slow,
        "slower_half": slower_half,
        "faster_half": ~slower_half,
        "all": torch.ones_like(slow),
    }


def pair_by_pair(
    model: LanguageModel, tokens: Int[Tensor, "count window"]
) -> tuple[list[float], list[float]]:
    """Losses far beyond training if one pair alone goes on, and if one pair alone does not, for each pair."""
    only: list[float] = []
    without: list[float] = []
    for pair in torch.eye(model.config.head_width // 2, dtype=torch.bool):
        for losses, clipped in ((only, ~pair), (without, pair)):
            loss = loss_by_position(with_clipped(model, clipped), tokens)[2 * TRAINED :].mean()
            losses.append(round(float(loss), 4))
    return only, without


def stretched(model: LanguageModel, scaling: RoPEScaling) -> LanguageModel:
    """A copy of the model with other frequencies."""
    changed = copy.deepcopy(model)
    changed.positions = RotaryEmbedding(model.config.head_width, scaling=scaling)
    return changed


def with_clipped(model: LanguageModel, clipped: Bool[Tensor, " pairs"]) -> LanguageModel:
    """A copy of the model whose chosen pairs are kept to trained distances."""
    changed = copy.deepcopy(model)
    changed.positions = ClippedRotary(model.config.head_width, clipped=clipped, furthest=TRAINED - 1)
    return changed.to(model.embedding.weight.device)


STUDY = Study(
    name="positions_stretching",
    question="Which of RoPE's frequencies break beyond the trained length, and what does stretching mend?",
    arms={"RoPE, trained at 128": {**RECIPE, "length": TRAINED}},
    seeds=(0, 1, 2),
    measure=measure,
)
