"""Eight position schemes in the same language model: trained at 64 tokens, tested to 1,024."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor

from tx_from_scratch.attention import MultiHeadAttention
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
    LearnedPositions,
    ShawRelativePositions,
    T5RelativeBias,
    TransformerXLPositions,
)

TRAINED, TESTED, WINDOWS, BUCKET = 64, 1024, 96, 32
SCHEMES = ("sinusoidal", "learned", "shaw", "transformer_xl", "t5", "rope", "alibi", "none")


def measure(settings: Settings, seed: int) -> Figures:
    """Train with one scheme; measure on windows of 1,024 tokens of the test plays.

    Returns:
        inside: nats per token at positions below 64. by_position: the same for every 32 positions to 1,024; a
        learned table is extended by untrained rows. loss: mean training loss of every 20 steps. For a
        learned table, interpolated_N: nats per token below position N with the table stretched to N rows. For
        schemes with a learned bias, curve: what `BiasExplorer` shows of the first layer, head after head.
    """
    model = make_model(settings, seed)
    history = fit_model(model, settings, seed)
    tokens = test_windows(TESTED, WINDOWS)
    torch.manual_seed(seed)  # for the untrained rows of a longer table
    losses = loss_by_position(extended(model, TESTED), tokens)
    figures: dict[str, float | list[float]] = {
        "inside": round(float(losses[:TRAINED].mean()), 5),
        "by_position": averaged(losses, BUCKET),
        "loss": mean_loss(history),
    }
    for length in (128, 256, 512):
        if isinstance(model.positions, LearnedPositions):
            stretched = loss_by_position(interpolated(model, length), tokens[:, : length + 1])
            figures[f"interpolated_{length}"] = round(float(stretched.mean()), 5)
    curve = bias_numbers(model)
    if curve is not None:
        figures["curve"] = [round(value, 4) for value in curve.flatten().tolist()]
    return figures


def extended(model: LanguageModel, length: int) -> LanguageModel:
    """The same model; a learned table goes on with rows that were never trained."""
    if not isinstance(model.positions, LearnedPositions):
        return model
    longer = copy.deepcopy(model)
    longer.positions = model.positions.extended(length)
    return longer


def interpolated(model: LanguageModel, length: int) -> LanguageModel:
    """The same model with its learned table stretched."""
    assert isinstance(model.positions, LearnedPositions)
    longer = copy.deepcopy(model)
    longer.positions = model.positions.interpolated(length)
    return longer


@torch.no_grad()
def bias_numbers(model: LanguageModel) -> Float[Tensor, "heads numbers"] | None:
    """What a learned scheme adds to the scores of the first layer, as `widgets.BiasExplorer` takes it.

    T5: its table. Transformer-XL: W_Rᵀ v / sqrt(d_head). Shaw: a^K times the mean query of the test plays,
    over sqrt(d_head).
    """
    scheme = model.positions
    scale = model.config.head_width**-0.5
    if isinstance(scheme, T5RelativeBias):
        return scheme.gain * scheme.weight.mT
    if isinstance(scheme, TransformerXLPositions):
        return scale * torch.einsum("dhe,he->hd", scheme.project_distance[0], scheme.distance_bias)
    if isinstance(scheme, ShawRelativePositions):
        return scale * mean_query(model) @ scheme.keys[0].mT
    return None


def mean_query(model: LanguageModel) -> Float[Tensor, "heads d_head"]:
    """The mean query of the first layer over windows of the trained length."""
    attention = model.blocks[0].attention
    assert isinstance(attention, MultiHeadAttention)
    seen: list[Tensor] = []
    handle = attention.project_query.register_forward_hook(lambda module, inputs, output: seen.append(output))
    model(test_windows(TRAINED, 64)[:, :-1].to(model.embedding.weight.device))
    handle.remove()
    return torch.unflatten(seen[0].mean(dim=(0, 1)), 0, (model.config.n_heads, -1))


STUDY = Study(
    name="positions_extrapolation",
    question="Which position schemes keep their loss beyond the 64 tokens that they were trained on?",
    arms={scheme: {**RECIPE, "positions": scheme, "length": TRAINED} for scheme in SCHEMES}
    # T5's table moves slowly at this rate; x-transformers multiplies it by sqrt(d_head).
    | {"t5_gain": {**RECIPE, "positions": "t5", "length": TRAINED, "t5_gain": 32**0.5}},
    seeds=(0, 1, 2),
    measure=measure,
)
