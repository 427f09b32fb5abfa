"""One run of the translation task of chapter 1, with any part of the paper's recipe changed."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from tx_from_scratch.data import LengthBatches, NumberWords
from tx_from_scratch.experiments.study import Figures, Settings
from tx_from_scratch.history import History
from tx_from_scratch.progress import Progress
from tx_from_scratch.training import NoamSchedule, SequenceLoss, best_device, fit, seed_everything
from tx_from_scratch.transformer import Transformer, TransformerConfig
from tx_from_scratch.translator import exact_match

RECIPE: Settings = {
    "steps": 300,
    "n_heads": 4,
    "dropout": 0.1,
    "smoothing": 0.1,
    "factor": 0.15,
    "warmup": 100,
    "rise": True,
    "betas": [0.9, 0.98],
    "eps": 1e-9,
}
"""The paper's recipe at the size of this task; an arm changes one thing.

300 steps are about half of what the task needs: where everything ends at 100 %, nothing can be compared.
"""


def train_once(settings: Settings, seed: int) -> Figures:
    """Train English to German number words; measure on the 1,000 unseen test numbers.

    Returns:
        nll: nats per target token, without smoothing. accuracy: share of target tokens predicted right given
        the true ones before. exact: share of numbers that greedy decoding gets right to the last token.
        loss: mean training loss of every 20 steps.
    """
    model, loss = train(settings, seed)
    test = NumberWords().batches("test", max_tokens=4096, shuffle=False)
    nll, accuracy = held_out(model, test)
    return {
        "nll": round(nll, 5),
        "accuracy": round(accuracy, 5),
        "exact": exact_match(model, test),
        "loss": loss,
    }


def train(settings: Settings, seed: int, *, steps: int | None = None) -> tuple[Transformer, list[float]]:
    """A model trained with these settings, and its mean loss of every 20 steps.

    Args:
        settings: `RECIPE`, or the same with something changed.
        seed: of the weights, the order of the data, and dropout.
        steps: fewer than the settings say, to repeat the beginning of a run.
    """
    model = make_model(settings, seed)
    return model, mean_loss(fit_model(model, settings, seed, steps=steps))


def make_model(settings: Settings, seed: int) -> Transformer:
    """The untrained model: width 128, two layers that read and two that write."""
    seed_everything(seed)
    config = TransformerConfig(
        vocab_size=len(NumberWords().vocabulary),
        d_model=128,
        n_heads=settings["n_heads"],
        d_head=settings.get("d_head"),
        attention_scale=settings.get("attention_scale"),
        n_encoder_layers=2,
        n_decoder_layers=2,
        d_ff=128,
        dropout=settings["dropout"],
    )
    return Transformer(config).to(best_device())


def fit_model(
    model: Transformer,
    settings: Settings,
    seed: int,
    *,
    steps: int | None = None,
    progress: bool | Progress = False,
) -> History:
    """Train the model by the recipe in `settings`, for as many steps as they say unless `steps` says less."""
    history = fit(
        model,
        NumberWords().batches("train", seed=seed),
        SequenceLoss(smoothing=settings["smoothing"]),
        optimizer=torch.optim.Adam(model.parameters(), betas=tuple(settings["betas"]), eps=settings["eps"]),
        schedule=schedule(settings),
        steps=steps or settings["steps"],
        seed=seed,
        progress=progress,
    )
    if history.interrupted:  # `fit` returns what it has; a study must not store that as a whole run
        raise KeyboardInterrupt
    return history


def mean_loss(history: History) -> list[float]:
    """Mean training loss of every 20 steps."""
    loss = torch.tensor(history.loss).unfold(0, 20, 20).mean(dim=1)
    return [round(value, 4) for value in loss.tolist()]


def schedule(settings: Settings) -> Callable[[int], float]:
    """The paper's learning rate, or the same without its rise: at its highest from the first step."""
    noam = NoamSchedule(128, warmup=settings["warmup"], factor=settings["factor"])
    return noam if settings["rise"] else lambda step: noam(max(step, settings["warmup"]))


@torch.no_grad()
def held_out(model: Transformer, batches: LengthBatches) -> tuple[float, float]:
    """Mean negative log likelihood (nats) and accuracy of the next token, padding left out."""
    model.eval()
    nll = right = tokens = 0.0
    for batch in batches:
        batch = batch.to(model.embedding.weight.device)
        logits, wanted = model(batch.source, batch.target[:, :-1]), batch.target[:, 1:]
        real = wanted != model.config.pad_id
        nll += float(F.cross_entropy(logits[real], wanted[real], reduction="sum"))
        right += int((logits.argmax(dim=-1) == wanted)[real].sum())
        tokens += int(real.sum())
    return nll / tokens, right / tokens
