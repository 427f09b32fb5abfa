"""What training shows while it runs: a live loss curve in a notebook, a line now and then in a terminal.

The notebook's picture is drawn into one output that is replaced in place, so that a single static figure and
one line of text stay behind, and nothing that needs a running kernel.
"""

import base64
import io
import sys
import time
from typing import Any

import numpy as np

from tx_from_scratch.history import History

ALTERNATIVE_TEXT = "Curve of the loss per token at every step of training, with its running mean."


class Progress:
    """Something that is told about a run. This one shows nothing."""

    def update(self, history: History) -> None:
        """Called after every step."""

    def close(self, history: History) -> None:
        """Called once at the end, whatever the end is."""


class Lines(Progress):
    """A line on the error stream every few seconds, after every evaluation, and at the end."""

    def __init__(self, *, interval: float = 5.0) -> None:
        self.interval = interval
        self._next = 0.0
        self._shown = (0, 0)  # steps and evaluations of the line before

    def update(self, history: History) -> None:
        if time.monotonic() >= self._next or len(history.evaluations) > self._shown[1]:
            self.close(history)

    def close(self, history: History) -> None:
        state = (len(history), len(history.evaluations))
        if state != self._shown:
            print(describe(history), file=sys.stderr, flush=True)
        self._next, self._shown = time.monotonic() + self.interval, state


class LiveCurve(Progress):
    """A loss curve in the notebook's output cell, redrawn in place."""

    def __init__(self, *, interval: float = 2.0) -> None:
        self.interval = interval
        self._next = 0.0
        self._handle: Any = None

    def update(self, history: History) -> None:
        began = time.monotonic()
        if began < self._next:
            return
        self._show(history)
        # Drawing may take a twentieth of the time at most.
        self._next = time.monotonic() + max(self.interval, 20 * (time.monotonic() - began))

    def close(self, history: History) -> None:
        self._show(history)
        # What differs from run to run stands in the picture, which notebook tests don't compare.
        print(f"{len(history):,} steps{', interrupted' if history.interrupted else ''}")

    def _show(self, history: History) -> None:
        from IPython.display import display

        # The text is the same in every run and at every update: notebook tests compare it.
        bundle = {"image/png": base64.b64encode(draw(history)).decode(), "text/plain": ALTERNATIVE_TEXT}
        metadata = {"image/png": {"alt": ALTERNATIVE_TEXT}}
        if self._handle is None:
            self._handle = display(bundle, raw=True, metadata=metadata, display_id=True)
        else:
            self._handle.update(bundle, raw=True, metadata=metadata)


def choose_progress() -> Progress:
    """A live curve in a notebook, lines elsewhere."""
    if "IPython" in sys.modules:
        from IPython.core.getipython import get_ipython

        if hasattr(get_ipython(), "kernel"):
            return LiveCurve()
    return Lines()


def describe(history: History) -> str:
    """One line: step, loss, rate, tokens per second, the newest evaluation."""
    if not len(history):
        return "step 0"
    speed = sum(history.tokens) / max(history.seconds[-1], 1e-9)
    line = (
        f"step {len(history):,}   loss {float(np.mean(history.loss[-20:])):.3f}   "
        f"rate {history.learning_rate[-1]:.2e}   {history.seconds[-1]:.0f} s   {speed:,.0f} tokens/s"
    )
    if history.evaluations:
        step, result = history.evaluations[-1]
        line += (
            "   " + "   ".join(f"{name} {value:.4g}" for name, value in result.items()) + f" (step {step:,})"
        )
    return line


def draw(history: History) -> bytes:
    """The loss of every step, and its running mean, as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from tx_from_scratch.plots import COLORS, style

    steps, loss = np.arange(1, len(history) + 1), np.array(history.loss)
    with style():
        figure = Figure(figsize=(6.4, 3.0))
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.plot(steps, loss, color=COLORS[4], linewidth=0.8, label="each step")
        axes.plot(steps, _running_mean(loss), color=COLORS[0], label="running mean")
        axes.set(xlabel="step", ylabel="loss per token (nats)", title=describe(history))
        axes.legend()
        picture = io.BytesIO()
        canvas.print_png(picture, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return picture.getvalue()


def _running_mean(values: np.ndarray, window: int = 25) -> np.ndarray:
    """The mean of each value and up to window - 1 before it."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))
