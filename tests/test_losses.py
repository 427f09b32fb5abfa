"""The learning-rate schedules and the loss."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiny_translator import VOCAB
from torch import nn

from tx_from_scratch.data import Batch
from tx_from_scratch.schedules import CosineSchedule
from tx_from_scratch.training import (
    NoamSchedule,
    SequenceLoss,
    label_smoothed_cross_entropy,
)


@pytest.mark.parametrize(("d_model", "peak"), [(512, 6.99e-4), (1024, 4.94e-4)])
def test_peak_rate_of_base_and_big(d_model, peak):
    """Values of the paper's models, 4,000 steps of warm-up."""
    schedule = NoamSchedule(d_model)
    assert schedule.peak == pytest.approx(peak, rel=1e-3)
    assert schedule.peak == pytest.approx((d_model * 4_000) ** -0.5)
    assert max(range(1, 12_000), key=schedule) == 4_000


@given(d_model=st.integers(1, 4096), warmup=st.integers(1, 10_000), step=st.integers(1, 10**6))
def test_rise_is_linear_and_fall_is_inverse_square_root(d_model, warmup, step):
    schedule = NoamSchedule(d_model, warmup=warmup, factor=2.0)
    expected = step / warmup if step <= warmup else math.sqrt(warmup / step)
    assert schedule(step) / schedule.peak == pytest.approx(expected)


def test_schedule_drives_pytorchs_own_scheduler():
    schedule = NoamSchedule(64, warmup=5)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: schedule(epoch + 1))
    for step in range(1, 20):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(schedule(step))
        optimizer.step()
        scheduler.step()


@pytest.mark.usefixtures("without_shape_checks")
def test_schedule_errors():
    with pytest.raises(ValueError, match=r"step must be at least 1 .*got 0"):
        NoamSchedule(512)(0)
    with pytest.raises(ValueError, match="warmup must be at least 1 step, got 0"):
        NoamSchedule(512, warmup=0)
    with pytest.raises(ValueError, match="d_model must be positive, got 0"):
        NoamSchedule(0)
    with pytest.raises(ValueError, match="factor must be positive, got nan"):
        NoamSchedule(512, factor=math.nan)


@given(
    warmup=st.integers(0, 50),
    fall=st.integers(1, 400),
    end=st.sampled_from([0.0, 0.1, 1.0]),
    step=st.integers(1, 600),
)
def test_cosine_equals_pytorchs_own_schedulers(warmup, fall, end, step):
    """LinearLR, then CosineAnnealingLR: their rates at every step of the rise and of the fall."""
    schedule = CosineSchedule(2e-3, warmup + fall, warmup=warmup, end=end)
    if step <= warmup:
        assert schedule(step) == pytest.approx(2e-3 * step / warmup)
        return
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=2e-3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, fall, eta_min=2e-3 * end)
    after = min(step - warmup, fall)  # PyTorch's goes up again, ours keeps the last rate
    optimizer.step()
    for _ in range(after):
        cosine.step()
    assert schedule(step) == pytest.approx(cosine.get_last_lr()[0], rel=1e-6, abs=1e-9)


def test_cosine_at_known_steps():
    """Half of the fall is half of the way, a third of it three quarters; then the last rate stays."""
    schedule = CosineSchedule(1.0, 130, warmup=10, end=0.2)
    rates = [schedule(step) for step in (1, 5, 10, 50, 70, 130, 131, 10_000)]
    assert rates == pytest.approx([0.1, 0.5, 1.0, 0.8, 0.6, 0.2, 0.2, 0.2])
    assert max(range(1, 200), key=schedule) == 10
    falling = [schedule(step) for step in range(10, 131)]
    assert all(later < earlier for earlier, later in itertools.pairwise(falling))
    assert CosineSchedule(1.0, 4)(1) < 1.0  # without a rise the first step is on the way down


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"peak": 0.0}, "peak must be positive, got 0.0"),
        ({"peak": math.nan}, "peak must be positive, got nan"),
        ({"warmup": -1}, "warmup must be at least 0 and below steps, got warmup=-1, steps=9"),
        ({"warmup": 9}, "warmup must be at least 0 and below steps, got warmup=9, steps=9"),
        ({"steps": 0}, "warmup must be at least 0 and below steps, got warmup=0, steps=0"),
        ({"end": 1.5}, "end must be a share from 0 to 1, got 1.5"),
        ({"end": math.nan}, "end must be a share from 0 to 1, got nan"),
    ],
)
def test_cosine_errors(settings, shown):
    with pytest.raises(ValueError, match=shown):
        CosineSchedule(**{"peak": 1e-3, "steps": 9, **settings})
    with pytest.raises(ValueError, match=r"step must be at least 1 .*got 0"):
        CosineSchedule(1e-3, 9)(0)


@given(
    smoothing=st.sampled_from([0.0, 0.1, 0.4, 1.0]),
    pad_id=st.sampled_from([0, 3, -100]),
    reduction=st.sampled_from(["mean", "sum"]),
    seed=st.integers(0, 10**6),
)
def test_loss_and_gradient_equal_pytorchs(smoothing, pad_id, reduction, seed):
    """F.cross_entropy is written by others and in C++."""
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(4, 6, 7, generator=generator)).requires_grad_()
    target = torch.randint(7, (4, 6), generator=generator)
    target[1, 2:] = pad_id
    target[0, 0] = 5
    ours = label_smoothed_cross_entropy(
        logits, target, smoothing=smoothing, pad_id=pad_id, reduction=reduction
    )
    theirs = F.cross_entropy(
        logits.flatten(0, 1),
        target.flatten(),
        ignore_index=pad_id,
        label_smoothing=smoothing,
        reduction=reduction,
    )
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    for a, b in zip(torch.autograd.grad(ours, logits), torch.autograd.grad(theirs, logits), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


@given(smoothing=st.floats(0.01, 0.8), seed=st.integers(0, 10**6))
def test_tensor2tensors_form_is_the_same_with_another_smoothing(smoothing, seed):
    """Confidence 1 - e on the true class and e / (V - 1) on each other one, written out."""
    generator = torch.Generator().manual_seed(seed)
    vocab = 9
    logits, target = (
        torch.randn(5, vocab, generator=generator),
        torch.randint(1, vocab, (5,), generator=generator),
    )
    wanted = torch.full((5, vocab), smoothing / (vocab - 1)).scatter(1, target[:, None], 1 - smoothing)
    theirs = -(wanted * logits.log_softmax(dim=1)).sum(dim=1).mean()
    equivalent = smoothing * vocab / (vocab - 1)
    ours = label_smoothed_cross_entropy(logits, target, smoothing=equivalent)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("smooth_padding_class", [True, False])
@pytest.mark.parametrize("targets", [[2, 1, 0, 3, 3], [2, 1, 4, 3, 3], [0, 0, 0, 0, 1]])
def test_uniform_logits_cost_the_logarithm_of_the_vocabulary(targets, smooth_padding_class):
    """harvardnlp/annotated-transformer#109 and #39: with padding and without, finite and equal to ln 5."""
    logits = torch.zeros(5, 5, requires_grad=True)
    loss = label_smoothed_cross_entropy(
        logits, torch.tensor(targets), smoothing=0.4, smooth_padding_class=smooth_padding_class
    )
    loss.backward()
    assert loss.item() == pytest.approx(math.log(5), abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nothing_but_padding_costs_nothing(reduction):
    """PyTorch's own loss is NaN here."""
    logits = torch.randn(3, 4, 5, requires_grad=True)
    loss = label_smoothed_cross_entropy(logits, torch.zeros(3, 4, dtype=torch.int64), reduction=reduction)
    loss.backward()
    assert loss.item() == 0
    assert logits.grad is not None
    assert logits.grad.eq(0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smooth_padding_class", [True, False])
def test_any_amount_of_padding_gives_the_same_loss(reduction, smooth_padding_class):
    """huggingface/transformers#7546: the same sentence filled up to 8 and to 64 tokens."""
    sentence, scores = torch.tensor([2, 1, 3, 3, 4]), torch.randn(5, 5)
    losses = []
    for length in (5, 8, 64):
        target = F.pad(sentence, (0, length - 5))
        logits = F.pad(scores, (0, 0, 0, length - 5), value=1e4)
        losses.append(
            label_smoothed_cross_entropy(
                logits, target, smoothing=0.4, reduction=reduction, smooth_padding_class=smooth_padding_class
            )
        )
    assert losses[0].isfinite()
    torch.testing.assert_close(losses[1], losses[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(losses[2], losses[0], atol=1e-6, rtol=0)


def test_minimum_lies_at_the_smoothed_target():
    """Gradient zero at logits = log of the target distribution; the loss there is its entropy."""
    q = torch.full((5,), 0.1 / 5)
    q[3] += 0.9
    logits = q.log()[None].requires_grad_()
    loss = label_smoothed_cross_entropy(logits, torch.tensor([3]))
    loss.backward()
    assert logits.grad is not None
    torch.testing.assert_close(logits.grad, torch.zeros(1, 5), atol=1e-7, rtol=0)
    assert loss.item() == pytest.approx(-(q * q.log()).sum().item(), abs=1e-6)


def test_padding_class_gets_no_target_mass_where_asked():
    """Against the target distribution written out; by default it gets its share, as in PyTorch."""
    logits, target = torch.randn(1, 5), torch.tensor([3])
    q = torch.tensor([0.0, 0.1, 0.1, 0.7, 0.1])
    loss = label_smoothed_cross_entropy(logits, target, smoothing=0.4, smooth_padding_class=False)
    torch.testing.assert_close(loss, -(q * logits.log_softmax(1)).sum(), atol=1e-6, rtol=0)
    logits[0, 0] = -30.0  # a model that has learned never to write padding
    without = label_smoothed_cross_entropy(logits, target, smoothing=0.4, smooth_padding_class=False)
    assert label_smoothed_cross_entropy(logits, target, smoothing=0.4) > without + 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_of_half_precision_logits_is_computed_in_full(dtype):
    logits, target = (20 * torch.randn(4, 50)).to(dtype), torch.arange(1, 5)
    loss = label_smoothed_cross_entropy(logits, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, label_smoothed_cross_entropy(logits.float(), target), atol=1e-6, rtol=0)


@pytest.mark.usefixtures("without_shape_checks")
def test_loss_errors():
    logits, target = torch.zeros(2, 3, 5), torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\(2, 3\), got \(2, 4\)"):
        label_smoothed_cross_entropy(logits, torch.ones(2, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="classes from 0 to 4, got 5"):
        label_smoothed_cross_entropy(logits, 5 * target)
    with pytest.raises(ValueError, match="classes from 0 to 4, got -1"):
        label_smoothed_cross_entropy(logits, -target)
    with pytest.raises(ValueError, match=r"smoothing must be .*got 1.5"):
        label_smoothed_cross_entropy(logits, target, smoothing=1.5)
    with pytest.raises(ValueError, match="'mean' or 'sum', got 'none'"):
        label_smoothed_cross_entropy(logits, target, reduction="none")
    with pytest.raises(ValueError, match=r"pad_id must be a class.*got -100"):
        label_smoothed_cross_entropy(logits, target, pad_id=-100, smooth_padding_class=False)


def test_sequence_loss_predicts_the_next_token():
    """Only the model that knows the next token pays nothing; three of the four positions count."""

    class Oracle(nn.Module):
        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            assert target.tolist() == [[1, 5, 6, 2]]
            return 100 * F.one_hot(torch.tensor([[5, 6, 2, 0]]), VOCAB).float()

    batch = Batch(torch.tensor([[7, 2]]), torch.tensor([[1, 5, 6, 2, 0]]))
    total, tokens = SequenceLoss(smoothing=0.0)(Oracle(), batch)
    assert int(tokens) == 3
    assert total.item() == pytest.approx(0, abs=1e-6)
