"""The training loop: every promise of `fit` that one process can keep, checkpoints apart."""

import math
import random
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny_translator import TinyTranslator, assert_same_weights, sorting_task, tiny, train
from torch import nn

from tx_from_scratch.data import Batch, GeneratedTask
from tx_from_scratch.training import (
    NoamSchedule,
    SequenceLoss,
    seed_everything,
)


@pytest.fixture(scope="module")
def task() -> GeneratedTask:
    return sorting_task()


def test_training_learns_and_is_recorded(task):
    model, optimizer = tiny()
    schedule = NoamSchedule(16, warmup=20, factor=0.2)
    batches = task.batches(max_tokens=200)
    history = train(model, optimizer, batches, schedule=schedule, steps=80)
    assert len(history) == 80
    assert np.mean(history.loss[-10:]) < np.mean(history.loss[:10]) - 0.3
    assert history.learning_rate == [schedule(step) for step in range(1, 81)]
    assert history.tokens == [int((batches[i].target[:, 1:] != 0).sum()) for i in range(80)]
    assert all(norm > 0 for norm in history.gradient_norm)
    assert history.seconds == sorted(history.seconds)
    assert not history.interrupted
    assert "80 steps" in repr(history)


def test_fit_equals_the_textbook_loop(task):
    """The loop everybody would write, with PyTorch's own loss over one batch."""
    (ours, our_optimizer), (theirs, their_optimizer) = tiny(0.0), tiny(0.0)
    batches = task.batches(max_tokens=150)
    history = train(ours, our_optimizer, batches, SequenceLoss(smoothing=0.1), steps=12, clip_norm=0.5)
    for index in range(12):
        batch = batches[index]
        logits = theirs(batch.source, batch.target[:, :-1])
        loss = F.cross_entropy(
            logits.flatten(0, 1), batch.target[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1
        )
        their_optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        their_optimizer.step()
        assert history.loss[index] == pytest.approx(loss.item(), abs=1e-5)
        assert history.gradient_norm[index] == pytest.approx(norm.item(), rel=1e-4)
    assert_same_weights(ours, theirs, atol=1e-5, rtol=1e-5)


def joined(parts: list[Batch]) -> Batch:
    """Several batches as one, filled up to the longest."""

    def pad(tensors: list[torch.Tensor]) -> torch.Tensor:
        longest = max(t.shape[1] for t in tensors)
        return torch.cat([F.pad(t, (0, longest - t.shape[1])) for t in tensors])

    return Batch(pad([p.source for p in parts]), pad([p.target for p in parts]))


class MaskedMean(TinyTranslator):
    """Like its parent, but blind to how far the source is padded."""

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        real = (source != 0)[..., None]
        mean = (self.source(source) * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        return self.out(torch.tanh(self.mix(self.target(target) + mean)))


@pytest.mark.parametrize("empty", [False, True])
def test_accumulated_parts_equal_the_joint_batch(task, empty):
    """Parts of very unequal token counts, one of them nothing but padding if `empty`."""
    small, large = list(task.batches(max_tokens=60, seed=1)), list(task.batches(max_tokens=300, seed=2))
    parts = [part for pair in zip(small, large, small[5:], strict=False) for part in pair][:12]
    if empty:
        parts[4] = parts[4]._replace(target=torch.zeros_like(parts[4].target))
    assert len({int((p.target != 0).sum()) for p in parts}) > 3
    results = []
    for batches, accumulate in ((parts, 3), ([joined(parts[i : i + 3]) for i in range(0, 12, 3)], 1)):
        torch.manual_seed(0)
        model = MaskedMean()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        history = train(model, optimizer, batches, steps=4, accumulate=accumulate)
        results.append((model, history))
    (one, accumulated), (other, joint) = results
    assert accumulated.tokens == joint.tokens
    np.testing.assert_allclose(accumulated.loss, joint.loss, rtol=1e-6)
    np.testing.assert_allclose(accumulated.gradient_norm, joint.gradient_norm, rtol=1e-5)
    assert_same_weights(one, other, atol=1e-6, rtol=1e-6)


def test_a_step_of_nothing_but_padding_moves_nothing(task):
    model, _ = tiny()
    before = [p.clone() for p in model.parameters()]
    batch = task.batches(max_tokens=100)[0]
    empty = batch._replace(target=torch.zeros_like(batch.target))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    history = train(model, optimizer, [empty], steps=1)
    assert (history.loss, history.tokens, history.gradient_norm) == ([0.0], [0], [0.0])
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_gradients_are_clipped(task):
    """Plain SGD with rate 1: the length of the step is the norm after clipping."""
    model, _ = tiny()
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    history = train(model, optimizer, task.batches(), steps=1, clip_norm=0.01)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert history.gradient_norm[0] > 0.1
    assert (after - before).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_another_seed_drops_other_units(task):
    losses = []
    for seed in (0, 0, 1):
        model, optimizer = tiny(0.5)
        history = train(model, optimizer, task.batches(), steps=3, seed=seed)
        losses.append(history.loss)
    assert losses[0] == losses[1] != losses[2]


def test_time_budget(task):
    """At least one step; none begins after the time is over."""
    model, optimizer = tiny()
    began = time.monotonic()
    history = train(model, optimizer, task.batches(), seconds=0.2)
    assert len(history) >= 1
    assert history.seconds[-1] >= 0.2
    assert len(history) == 1 or history.seconds[-2] < 0.2
    assert time.monotonic() - began < 30
    assert not history.interrupted
    short = train(model, optimizer, task.batches(), seconds=1e9, steps=2)
    assert len(short) == 2


def test_bf16_autocast_on_the_cpu(task):
    """The products are computed in bf16, loss and weights stay in fp32, and training works."""
    dtypes = []

    class Watching(TinyTranslator):
        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            logits = super().forward(source, target)
            dtypes.append(logits.dtype)
            return logits

    torch.manual_seed(0)
    model = Watching()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    history = train(model, optimizer, task.batches(), steps=30, precision="bf16")
    train(model, optimizer, task.batches(), steps=1)
    assert dtypes == [torch.bfloat16] * 30 + [torch.float32]
    assert np.mean(history.loss[-5:]) < history.loss[0] - 0.2
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_non_finite_loss_stops_before_it_spoils_the_weights(task, poison):
    class Spoiled(SequenceLoss):
        calls = 0

        def __call__(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls += 1
            total, tokens = super().__call__(model, batch)
            return total * (poison if self.calls == 4 else 1.0), tokens

    model, optimizer = tiny()
    with pytest.raises(FloatingPointError, match=r"step 4: the loss is (nan|inf)"):
        train(model, optimizer, task.batches(), Spoiled(), steps=9)
    other, optimizer = tiny()
    train(other, optimizer, task.batches(), steps=3)
    assert_same_weights(model, other)


def test_evaluation_sees_the_model_at_rest(task):
    """Evaluation mode, no gradients; afterwards the caller's mode is back."""
    modes = []

    def evaluate(model: nn.Module) -> dict[str, float]:
        modes.append((model.training, torch.is_grad_enabled()))
        return {"accuracy": 0.5}

    model, optimizer = tiny()
    model.eval()
    history = train(model, optimizer, task.batches(), steps=5, evaluate=evaluate, evaluate_every=2)
    assert history.evaluations == [(step, {"accuracy": 0.5}) for step in (2, 4, 5)]
    assert modes == [(False, False)] * 3
    assert not model.training


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "steps or seconds must be given"),
        ({"steps": 0}, "steps must be positive, got 0"),
        ({"seconds": -1.0}, "seconds must be positive, got -1"),
        ({"steps": 1, "accumulate": 0}, "accumulate must be at least 1 micro-batch, got 0"),
        ({"steps": 1, "clip_norm": 0.0}, "clip_norm must be positive, got 0.0"),
        ({"steps": 1, "seed": -1}, "seed must not be negative, got -1"),
        ({"steps": 1, "precision": "fp8"}, "'auto', 'fp32' or 'bf16', got 'fp8'"),
        ({"steps": 1, "resume": True}, "checkpoint must name a file"),
        ({"steps": 1, "checkpoint_every": 1}, "checkpoint must name a file"),
        ({"steps": 1, "evaluate_every": 1}, "evaluate must be given"),
        (
            {"steps": 1, "checkpoint": "x", "checkpoint_every": 0},
            "checkpoint_every must be at least 1 step, got 0",
        ),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_fit_errors(task, settings, message):
    model, optimizer = tiny()
    with pytest.raises(ValueError, match=message):
        train(model, optimizer, task.batches(), **settings)


@pytest.mark.usefixtures("without_shape_checks")
def test_fit_errors_about_objects(task):
    model, optimizer = tiny()
    with pytest.raises(TypeError, match=r"batches must allow batches\[i\].*got generator"):
        train(model, optimizer, (b for b in task.batches()), steps=1)
    with pytest.raises(ValueError, match="optimizer must hold parameters of model"):
        train(tiny()[0], optimizer, task.batches(), steps=1)
    with pytest.raises(ValueError, match="require gradients, got none"):
        train(model.requires_grad_(False), optimizer, task.batches(), steps=1)
    with pytest.raises(TypeError, match=r"batches must yield tensors.*got <class 'str'>"):
        train(model.requires_grad_(True), optimizer, ["text"], steps=1)


def test_seed_everything_seeds_all_three():
    def draw_three() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), torch.rand(1).item()  # noqa: NPY002

    seed_everything(1, 2)
    first = draw_three()
    seed_everything(1, 2)
    assert draw_three() == first
    seed_everything(2, 1)
    assert not set(draw_three()) & set(first)
