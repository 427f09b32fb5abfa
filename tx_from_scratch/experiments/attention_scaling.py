"""What leaving out the division by sqrt(d_k) does to training, at several widths of a head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from tx_from_scratch.attention import MultiHeadAttention, observe_weights
from tx_from_scratch.data import NumberWords
from tx_from_scratch.experiments.number_words import RECIPE, fit_model, held_out, make_model, mean_loss
from tx_from_scratch.experiments.study import Figures, Settings, Study
from tx_from_scratch.transformer import Transformer
from tx_from_scratch.translator import exact_match
from tx_from_scratch.weight_statistics import entropy

WIDTHS = (16, 128, 512)
BASE: Settings = {**RECIPE, "n_heads": 2}


def arm(d_head: int, divided: bool, *, small_start: bool = False, factor: float = 0.15) -> Settings:
    """One arm: the width of a head, whether scores are divided by its root, and where the projections start.

    Args:
        d_head: width of queries and keys; the stream keeps its width.
        divided: the factor 1 / sqrt(d_head) on the scores, or none.
        small_start: start the query projection 1 / sqrt(d_head) times smaller, as T5 does, which divides
            nothing: the scores then start as they would with the division.
        factor: of the learning rate.
    """
    return {
        **BASE,
        "d_head": d_head,
        "attention_scale": None if divided else 1.0,
        "small_start": small_start,
        "factor": factor,
    }


def start_unit_variance(model: Transformer, *, small_start: bool = False) -> None:
    """Let the entries of queries and keys start with unit variance, whatever the width of a head.

    The stream has unit variance, and each entry sums d_model products: weights of variance 1 / d_model do it.
    """
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            d_head = module.project_query.out_features // module.n_heads
            factor = d_head**-0.5 if small_start else 1.0
            nn.init.normal_(module.project_query.weight, std=factor * module.d_model**-0.5)
            nn.init.normal_(module.project_key.weight, std=module.d_model**-0.5)


class Probe:
    """What reaches the softmax, and what leaves it, in every attention that reads the whole source.

    Attributes:
        spread: standard deviation of a query's scores over its keys.
        entropy: of its weights, as a share of the most it could be, log(keys).
        Both are means over queries, heads and layers, on validation sentences of one length.
    """

    def __init__(self, model: Transformer) -> None:
        batches = NumberWords().batches("validation", max_tokens=1024, shuffle=False)
        whole = next(batch for batch in batches if bool((batch.source != model.config.pad_id).all()))
        batch = whole.to(model.embedding.weight.device)
        spreads: list[Tensor] = []
        entropies: list[Tensor] = []
        projected: dict[nn.Module, Tensor] = {}

        def watch(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            projected[module] = output

        def look(module: nn.Module, weights: Tensor) -> None:
            if isinstance(module, MultiHeadAttention) and module not in causal:
                query, key = (
                    torch.unflatten(projected[part], 2, (module.n_heads, -1)).transpose(1, 2)
                    for part in (module.project_query, module.project_key)
                )
                scale = module.scale or query.shape[-1] ** -0.5
                spreads.append((query @ key.mT * scale).std(dim=-1).mean())
                entropies.append(entropy(weights).mean() / math.log(weights.shape[-1]))

        causal = {layer.attention for layer in model.decoder.layers}
        linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
        handles = [module.register_forward_hook(watch) for module in linear]
        model.eval()
        with torch.no_grad(), observe_weights(look):
            model(batch.source, batch.target[:, :-1])
        for handle in handles:
            handle.remove()
        self.spread = float(torch.stack(spreads).mean())
        self.entropy = float(torch.stack(entropies).mean())


def measure(settings: Settings, seed: int) -> Figures:
    """Train with one arm's settings; measure on the 1,000 unseen test numbers.

    Returns:
        nll: nats per target token. exact: share of numbers that greedy decoding gets right to the last token.
        gradient_start, gradient_largest: norm of the gradient, mean of the first 10 steps and largest of all.
        spread_start, spread_end: standard deviation of a query's scores before and after training.
        entropy_start, entropy_end: of its weights, as a share of what it could be.
        loss: mean training loss of every 20 steps.
    """
    model = make_model(settings, seed)
    start_unit_variance(model, small_start=settings["small_start"])
    start = Probe(model)
    history = fit_model(model, settings, seed)
    end = Probe(model)
    test = NumberWords().batches("test", max_tokens=4096, shuffle=False)
    nll, _ = held_out(model, test)
    return {
        "nll": round(nll, 5),
        "exact": exact_match(model, test),
        "gradient_start": round(sum(history.gradient_norm[:10]) / 10, 4),
        "gradient_largest": round(max(history.gradient_norm), 4),
        "spread_start": round(start.spread, 4),
        "spread_end": round(end.spread, 4),
        "entropy_start": round(start.entropy, 4),
        "entropy_end": round(end.entropy, 4),
        "loss": mean_loss(history),
    }


STUDY = Study(
    name="attention_scaling",
    question="What does training lose without the division by sqrt(d_k), and what can the model make up for?",
    arms={
        name: settings
        for d_head in WIDTHS
        for name, settings in {
            f"divided, d_k {d_head}": arm(d_head, True),
            f"not divided, d_k {d_head}": arm(d_head, False),
            f"not divided, small start, d_k {d_head}": arm(d_head, False, small_start=True),
        }.items()
    }
    | {
        "divided, a third of the rate, d_k 128": arm(128, True, factor=0.05),
        "not divided, a third of the rate, d_k 128": arm(128, False, factor=0.05),
    },
    seeds=(0, 1, 2),
    measure=measure,
)
