"""Learning-rate schedules: functions of the step, which is counted from 1.

    NoamSchedule      factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)
    CosineSchedule    a rise, then half a cosine down

A pure function of the step has no state: a resumed run that knows its step has the right rate.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class NoamSchedule:
    """Rise linearly for `warmup` steps, then fall with the inverse square root of the step.

        lr(step) = factor · d_model^-0.5 · min(step^-0.5, step · warmup^-1.5)

    The two branches meet at step = warmup, at the highest rate, factor · (d_model · warmup)^-0.5: 6.99e-4 for
    the base model, 4.94e-4 for the big one. tensor2tensor later took factor 2 and 8,000 steps.

    With PyTorch's own schedulers, which count from 0 and multiply the optimizer's rate:
    `LambdaLR(Adam(parameters, lr=1.0), lambda epoch: schedule(epoch + 1))`.

    Source: Vaswani et al. 2017, section 5.3, arXiv:1706.03762.

    Attributes:
        d_model: width of the model.
        warmup: steps of the rise, at least 1.
        factor: multiplies the whole.
    """

    d_model: int
    warmup: int = 4_000
    factor: float = 1.0

    def __post_init__(self) -> None:
        if self.d_model < 1:
            raise ValueError(f"d_model must be positive, got {self.d_model}")
        if self.warmup < 1:
            raise ValueError(f"warmup must be at least 1 step, got {self.warmup}")
        if not self.factor > 0:
            raise ValueError(f"factor must be positive, got {self.factor}")

    def __call__(self, step: int) -> float:
        """The learning rate of a step >= 1."""
        if step < 1:
            raise ValueError(f"step must be at least 1 (steps are counted from 1), got {step}")
        return self.factor * self.d_model**-0.5 * min(step**-0.5, step * self.warmup**-1.5)

    @property
    def peak(self) -> float:
        """The highest rate, reached at step = warmup."""
        return self(self.warmup)


@dataclass(frozen=True)
class CosineSchedule:
    """Rise linearly for `warmup` steps, then fall along half a cosine to a share of the highest rate.

        lr(step) = peak · step / warmup                                        while step <= warmup
        lr(step) = peak · (end + (1 - end) · (1 + cos(π · progress)) / 2)      progress from 0 to 1 at `steps`

    Source: Loshchilov & Hutter 2016, arXiv:1608.03983, without restarts.

    Attributes:
        peak: the highest rate, reached at step = warmup.
        steps: where the fall ends; later steps keep the last rate.
        warmup: steps of the rise.
        end: the last rate as a share of the highest.
    """

    peak: float
    steps: int
    warmup: int = 0
    end: float = 0.1

    def __post_init__(self) -> None:
        if not self.peak > 0:
            raise ValueError(f"peak must be positive, got {self.peak}")
        if not 0 <= self.warmup < self.steps:
            raise ValueError(
                f"warmup must be at least 0 and below steps, got warmup={self.warmup}, steps={self.steps}"
            )
        if not 0 <= self.end <= 1:
            raise ValueError(f"end must be a share from 0 to 1, got {self.end}")

    def __call__(self, step: int) -> float:
        """The learning rate of a step >= 1."""
        if step < 1:
            raise ValueError(f"step must be at least 1 (steps are counted from 1), got {step}")
        if step <= self.warmup:
            return self.peak * step / self.warmup
        progress = min(1.0, (step - self.warmup) / (self.steps - self.warmup))
        return self.peak * (self.end + (1 - self.end) * (1 + math.cos(math.pi * progress)) / 2)
