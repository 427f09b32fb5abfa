"""How the benchmarks measure: interleaved rounds, and the median over rounds of the ratio to one reference.

A machine's speed drifts with heat, with its clock and with whoever else is using it. Seconds of two runs can
therefore not be compared, and neither can those of two halves of one run. So every contender runs once in
each round, in an order drawn anew, and is divided by the reference *of the same round*; the median over the
rounds then forgets those in which something else happened.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True)
class Contender:
    """One implementation of the task at hand.

    Attributes:
        name: as the table shows it.
        run: does the task once.
        parameters: how many the model has; None where there is no model.
        note: how its work differs from the others'.
    """

    name: str
    run: Callable[[], object]
    parameters: int | None = None
    note: str = ""


@dataclass(frozen=True)
class Ratio:
    """How long a contender takes, in units of the reference.

    Attributes:
        name, parameters, note: as in `Contender`.
        ratio: median over the rounds of its wall time divided by the reference's.
        quartiles: the first and the third quartile of that ratio.
        processor_ratio: the median for processor time, summed over threads; differs where threads wait.
        seconds: median wall time, only good for a sense of scale.
    """

    name: str
    ratio: float
    quartiles: tuple[float, float]
    processor_ratio: float
    seconds: float
    parameters: int | None
    note: str


def compare(contenders: Sequence[Contender], *, rounds: int, seed: int = 0) -> list[Ratio]:
    """Run every contender once in each round; the first one is the reference, 1.00 by definition.

    One round more, at the start, is not counted: caches fill, kernels are chosen, modules are imported.

    Raises:
        ValueError: there is nothing to compare, or `rounds` is below 3 (a median of fewer forgets nothing).
    """
    if len(contenders) < 2:
        raise ValueError(f"contenders must hold a reference and at least one more, got {len(contenders)}")
    if rounds < 3:
        raise ValueError(f"rounds must be at least 3, got {rounds}")
    order = random.Random(seed)
    wall: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    processor: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    for round_ in range(rounds + 1):
        for contender in order.sample(contenders, len(contenders)):
            started = time.perf_counter(), time.process_time()
            contender.run()
            ended = time.perf_counter(), time.process_time()
            if round_:
                wall[contender.name].append(ended[0] - started[0])
                processor[contender.name].append(ended[1] - started[1])

    reference = contenders[0].name
    results = []
    for contender in contenders:
        ratios = _divide(wall[contender.name], wall[reference])
        first, _, third = statistics.quantiles(ratios, n=4, method="inclusive")
        results.append(
            Ratio(
                name=contender.name,
                ratio=statistics.median(ratios),
                quartiles=(first, third),
                processor_ratio=statistics.median(_divide(processor[contender.name], processor[reference])),
                seconds=statistics.median(wall[contender.name]),
                parameters=contender.parameters,
                note=contender.note,
            )
        )
    return results


def _divide(times: Sequence[float], reference: Sequence[float]) -> list[float]:
    return [ours / theirs for ours, theirs in zip(times, reference, strict=True)]


def peak_bytes(task: Callable[[], object]) -> int:
    """The most bytes that the tensors made by `task` hold at once, on the CPU; the same in every run."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        task()
    trace: Any = profiler.profiler
    changes = sorted(
        (event.start_ns(), event.nbytes())
        for event in trace.kineto_results.events()
        if event.name() == "[memory]"
    )
    held = peak = 0
    for _, change in changes:  # negative where memory is given back
        held += change
        peak = max(peak, held)
    return peak


def count_parameters(model: nn.Module) -> int:
    """Every parameter once, also those that are tied."""
    return sum(parameter.numel() for parameter in model.parameters())


def train_step(model: nn.Module, call: Callable[[Tensor], Tensor], x: Tensor, gradient: Tensor) -> None:
    """Forward and backward, down to the gradients of the parameters and of the input."""
    model.zero_grad(set_to_none=True)
    torch.autograd.backward(call(x.detach().requires_grad_()), gradient)
