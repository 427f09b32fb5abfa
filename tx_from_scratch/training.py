"""Training: one loop for every model in this book.

    fit                            the loop, in one process or, under torchrun, in several
    best_device                    where to train
    NoamSchedule                   the learning rate of the original paper
    label_smoothed_cross_entropy   its loss

A step takes the gradient of  Σ loss / Σ tokens  over all micro-batches and all processes together. So neither
splitting a batch up nor spreading it over processes changes what is learned, however unequal the parts are.
"""

import math
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import is_dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from tx_from_scratch.checkpointing import TrainingCheckpoint
from tx_from_scratch.devices import best_device
from tx_from_scratch.distributed import ProcessGroup, process_group, without_exchange
from tx_from_scratch.history import History
from tx_from_scratch.interruption import stop_signals
from tx_from_scratch.losses import NextTokenLoss, SequenceLoss, label_smoothed_cross_entropy
from tx_from_scratch.progress import Progress, choose_progress
from tx_from_scratch.schedules import NoamSchedule

__all__ = [
    "Batches",
    "History",
    "NextTokenLoss",
    "NoamSchedule",
    "SequenceLoss",
    "best_device",
    "fit",
    "label_smoothed_cross_entropy",
    "seed_everything",
]

Precision = Literal["auto", "fp32", "bf16"]
Loss = Callable[[nn.Module, Any], tuple[Tensor, Tensor | int]]
"""Maps a model and a batch to the loss summed over its tokens, and to how many tokens these are."""


@runtime_checkable
class Batches(Protocol):
    """An endless sequence of batches: `batches[i]` depends on i alone. See `data.LengthBatches`."""

    def __getitem__(self, index: int, /) -> Any: ...


def fit(
    model: nn.Module,
    batches: Batches,
    loss: Loss,
    *,
    optimizer: torch.optim.Optimizer,
    schedule: Callable[[int], float] | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    accumulate: int = 1,
    clip_norm: float | None = None,
    precision: Precision = "auto",
    seed: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    evaluate: Callable[[nn.Module], float | Mapping[str, float]] | None = None,
    evaluate_every: int | None = None,
    progress: bool | Progress = True,
) -> History:
    """Train `model` in place, on the device where it is.

    Under torchrun every process makes the same call. In step s, micro-batch j of process r is
    `batches[((s - 1) · accumulate + j) · processes + r]`, so two processes do what one does with twice the
    `accumulate`. Before every step the global generators of Python, NumPy and PyTorch are seeded from
    (seed, step, process): a resumed run repeats the uninterrupted one bit by bit, dropout included.

    A checkpoint is written every `checkpoint_every` steps, at the end, and on Ctrl-C or SIGTERM, which let
    the running step finish; a second Ctrl-C does not wait. Process 0 writes it, all processes read it.

    Args:
        model: its parameters must be on one device.
        batches: `batches[i]` is micro-batch i; tensors, or anything with `.to(device)`, or tuples of these.
        loss: called as loss(model, batch), gives the sum over the batch's tokens and their number.
        optimizer: over the parameters of `model`.
        schedule: learning rate of a step, counted from 1; without it the optimizer keeps its own.
        steps: how many to make, those before a resume included.
        seconds: begin no step after this time in this call. At least one of `steps` and `seconds` is needed.
        accumulate: micro-batches of each process in a step.
        clip_norm: scale the gradient down to this norm where it is larger.
        precision: "bf16" computes under autocast; "auto" does so on CUDA GPUs that have it, else "fp32".
        seed: of everything random in training.
        checkpoint: file to save to.
        checkpoint_every: steps between two saves.
        resume: go on from `checkpoint` if it exists; otherwise it is replaced.
        evaluate: called with the model in evaluation mode and without gradients, by process 0 only.
        evaluate_every: steps between two evaluations; the last step is always followed by one.
        progress: a live curve in a notebook, lines in a terminal; False shows nothing.

    Returns:
        The history of the whole run, resumed parts included.

    Raises:
        ValueError: an argument is out of range, or the checkpoint to resume is from other settings.
        TypeError: `batches` can't be indexed.
        FloatingPointError: the loss or the gradient is not finite. The weights are those before that step.
    """
    _check(model, batches, optimizer, steps, seconds, accumulate, clip_norm, seed)
    _check_intervals(checkpoint, checkpoint_every, resume, evaluate, evaluate_every)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = parameters[0].device
    autocast = _autocast(precision, device)
    was_training = model.training

    group = process_group(device)

    with stop_signals() as stop:
        settings = _settings(schedule, accumulate * group.size, clip_norm, seed)
        run = TrainingCheckpoint(model, optimizer, settings, checkpoint)
        history = run.load(device) if resume else History()
        _check_same_start(history, checkpoint, group)
        begun = time.monotonic() - (history.seconds[-1] if history.seconds else 0.0)
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        shown = _progress(progress, group)
        trained = group.wrap(model)
        model.train()
        try:
            last = history.interrupted = False
            while not last and (steps is None or len(history) < steps):
                step = len(history) + 1
                seed_everything(seed, step, group.rank)
                first = (step - 1) * accumulate
                own = [(first + micro) * group.size + group.rank for micro in range(accumulate)]

                optimizer.zero_grad()
                mean_loss, tokens = _gradients(trained, loss, [batches[i] for i in own], group, autocast)
                norm = float(nn.utils.clip_grad_norm_(parameters, clip_norm or math.inf))
                _check_finite(step, mean_loss, norm)
                if schedule is not None:
                    for parameter_group in optimizer.param_groups:
                        parameter_group["lr"] = schedule(step)
                optimizer.step()

                rate = float(optimizer.param_groups[0]["lr"])
                history.append(mean_loss, rate, norm, tokens, time.monotonic() - begun)
                stopped = group.any(stop.is_set())
                last = stopped or group.any(time.monotonic() >= deadline) or step == steps
                history.interrupted = stopped and step != steps
                if evaluate is not None and group.rank == 0 and (last or _due(step, evaluate_every)):
                    history.evaluations.append((step, _evaluated(evaluate, model)))
                if group.rank == 0 and (last or _due(step, checkpoint_every)):
                    run.save(history)
                shown.update(history)
            group.wait()  # nobody goes on, to read the checkpoint say, before process 0 has written it
        finally:
            model.train(was_training)
            shown.close(history)
    return history


def _settings(
    schedule: Callable[[int], float] | None, micro_batches: int, clip_norm: float | None, seed: int
) -> dict[str, Any]:
    name = getattr(schedule, "__qualname__", type(schedule).__qualname__)
    name = repr(schedule) if is_dataclass(schedule) else name
    return {"schedule": name, "accumulate": micro_batches, "clip_norm": clip_norm, "seed": seed}


def seed_everything(*seeds: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch (all devices) from non-negative integers."""
    derived = np.random.SeedSequence(seeds).generate_state(2, np.uint64)
    random.seed(int(derived[0]))
    np.random.seed(int(derived[0] >> np.uint64(32)))  # noqa: NPY002
    torch.manual_seed(int(derived[1] >> np.uint64(1)))


def _gradients(
    model: nn.Module, loss: Loss, batches: list[Any], group: ProcessGroup, autocast: torch.autocast
) -> tuple[float, int]:
    """Leave the gradient of  Σ loss / Σ tokens  in the parameters; return the quotient and Σ tokens."""
    sums: list[tuple[Tensor, Tensor]] = []
    for number, batch in enumerate(batches, start=1):
        with nullcontext() if number == len(batches) else without_exchange(model):
            with autocast:
                loss_sum, tokens = loss(model, _move(batch, group.device))
            loss_sum.backward()  # type: ignore[no-untyped-call]
        sums.append((loss_sum.detach(), torch.as_tensor(tokens, device=group.device)))
    losses, counts = zip(*sums, strict=True)
    total_loss, total_tokens = group.sum(torch.stack(losses).sum(), torch.stack(counts).sum())
    divisor = max(total_tokens, 1)  # nothing but padding: zero loss, zero gradient
    for parameter in model.parameters():
        if parameter.grad is not None:
            # DistributedDataParallel has averaged the processes' sums; what is wanted is their sum.
            parameter.grad.mul_(group.size / divisor)
    return total_loss / divisor, int(total_tokens)


def _evaluated(
    evaluate: Callable[[nn.Module], float | Mapping[str, float]], model: nn.Module
) -> dict[str, float]:
    model.eval()
    with torch.no_grad():
        result = evaluate(model)
    model.train()
    named = result if isinstance(result, Mapping) else {"evaluation": result}
    return {name: float(value) for name, value in named.items()}


def _move(batch: Any, device: torch.device) -> Any:
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, tuple | list):
        return type(batch)(_move(part, device) for part in batch)
    raise TypeError(f"batches must yield tensors, tuples of tensors, or objects with .to, got {type(batch)}")


def _autocast(precision: Precision, device: torch.device) -> torch.autocast:
    if precision not in ("auto", "fp32", "bf16"):
        raise ValueError(f"precision must be 'auto', 'fp32' or 'bf16', got {precision!r}")
    automatic = precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=automatic or precision == "bf16")


def _progress(progress: bool | Progress, group: ProcessGroup) -> Progress:
    if group.rank > 0 or progress is False:
        return Progress()
    return choose_progress() if progress is True else progress


def _due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0


def _check_same_start(history: History, path: object, group: ProcessGroup) -> None:
    (total,) = group.sum(torch.tensor(float(len(history))))
    if total != group.size * len(history):
        raise ValueError(
            f"checkpoint {path} must be one file that all {group.size} processes see; process {group.rank} "
            f"has found {len(history)} steps, all together {total:.0f}"
        )


def _check_finite(step: int, loss: float, norm: float) -> None:
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(
            f"step {step}: the loss is {loss} and the gradient norm {norm}. The weights are still those "
            "before this step; try a lower learning rate, a longer warm-up, or clip_norm"
        )


def _check(
    model: nn.Module,
    batches: Batches,
    optimizer: torch.optim.Optimizer,
    steps: int | None,
    seconds: float | None,
    accumulate: int,
    clip_norm: float | None,
    seed: int,
) -> None:
    if not hasattr(batches, "__getitem__"):
        raise TypeError(f"batches must allow batches[i] for every i >= 0, got {type(batches).__name__}")
    trainable = {parameter for parameter in model.parameters() if parameter.requires_grad}
    if not trainable:
        raise ValueError("model must have parameters that require gradients, got none")
    optimized = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not trainable & optimized:
        raise ValueError("optimizer must hold parameters of model; make it after the model is on its device")
    if len({parameter.device for parameter in trainable}) > 1:
        raise ValueError("model must have all its parameters on one device, got several")
    if steps is None and seconds is None:
        raise ValueError("steps or seconds must be given; training would never end without")
    for name, value in {"steps": steps, "seconds": seconds, "clip_norm": clip_norm}.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    if seed < 0:
        raise ValueError(f"seed must not be negative, got {seed}")
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1 micro-batch, got {accumulate}")


def _check_intervals(
    checkpoint: object,
    checkpoint_every: int | None,
    resume: bool,
    evaluate: object,
    evaluate_every: int | None,
) -> None:
    if checkpoint is None and (resume or checkpoint_every is not None):
        raise ValueError("checkpoint must name a file when resume or checkpoint_every is given")
    if evaluate is None and evaluate_every is not None:
        raise ValueError("evaluate must be given when evaluate_every is")
    for name, value in {"checkpoint_every": checkpoint_every, "evaluate_every": evaluate_every}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1 step, got {value}")
