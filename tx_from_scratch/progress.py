"""What training shows while it runs: a live loss curve in a notebook, a line now and then in a terminal.

The notebook's picture is drawn into one output that is replaced in place, so that a single static figure and
one line of text stay behind, and nothing that needs a running kernel.
"""

from __future__ import annotations

import base64
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tx_from_scratch.history import History

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALTERNATIVE_TEXT = "Curve of the loss per token at every step of training, with its running mean."
COMPARISON_TEXT = (
    "Curves of the loss per token and of the gradient's norm at every step, one line for each run."
)
DASHES = ("-", "--", "-.", ":")


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


class LivePicture:
    """A picture in the notebook's output cell, redrawn in place. Drawing takes a twentieth of the time."""

    def __init__(self, alternative: str, interval: float) -> None:
        # The text is the same in every run and at every update: notebook tests compare it.
        self.alternative = alternative
        self.interval = interval
        self._next = 0.0
        self._handle: Any = None

    def update(self, draw: Callable[[], bytes]) -> None:
        """Show what `draw` gives, a PNG, if the last time is long enough ago."""
        began = time.monotonic()
        if began >= self._next:
            self.show(draw())
            self._next = time.monotonic() + max(self.interval, 20 * (time.monotonic() - began))

    def show(self, picture: bytes) -> None:
        """Show the picture in the place of the one before."""
        from IPython.display import display

        bundle = {"image/png": base64.b64encode(picture).decode(), "text/plain": self.alternative}
        metadata = {"image/png": {"alt": self.alternative}}
        if self._handle is None:
            self._handle = display(bundle, raw=True, metadata=metadata, display_id=True)
        else:
            self._handle.update(bundle, raw=True, metadata=metadata)


class LiveCurve(Progress):
    """A loss curve in the notebook's output cell, redrawn in place."""

    def __init__(self, *, interval: float = 2.0) -> None:
        self._picture = LivePicture(ALTERNATIVE_TEXT, interval)

    def update(self, history: History) -> None:
        self._picture.update(lambda: draw(history))

    def close(self, history: History) -> None:
        self._picture.show(draw(history))
        # What differs from run to run stands in the picture, which notebook tests don't compare.
        print(f"{len(history):,} steps{', interrupted' if history.interrupted else ''}")


class Comparison:
    """Several runs in one picture: the loss and the gradient's norm of each, beside those before it.

    One comparison serves all runs:

        comparison = Comparison()
        for label, model in models.items():
            fit(model, ..., progress=comparison.run(label))
    """

    def __init__(self, *, interval: float = 2.0) -> None:
        self.histories: dict[str, History] = {}
        self._picture = LivePicture(COMPARISON_TEXT, interval)

    def run(self, label: str) -> Progress:
        """What `fit` is given as `progress` for the run of this name.

        Raises:
            ValueError: a run of this name has been shown already.
        """
        if label in self.histories:
            raise ValueError(f"label must be new, got {label!r} again")
        self.histories[label] = History()
        return _ComparedRun(self, label)

    def draw(self) -> bytes:
        """The picture of all runs so far, as a PNG."""
        return draw_comparison({label: history for label, history in self.histories.items() if len(history)})


class _ComparedRun(Lines):
    """One run of a comparison: lines in a terminal, the picture of all in a notebook."""

    def __init__(self, comparison: Comparison, label: str) -> None:
        super().__init__()
        self.comparison, self.label = comparison, label

    def update(self, history: History) -> None:
        self.comparison.histories[self.label] = history
        if in_notebook():
            self.comparison._picture.update(self.comparison.draw)
        else:
            super().update(history)

    def close(self, history: History) -> None:
        self.comparison.histories[self.label] = history
        if in_notebook():
            self.comparison._picture.show(self.comparison.draw())
            print(f"{self.label}: {len(history):,} steps{', interrupted' if history.interrupted else ''}")
        else:
            super().close(history)


def in_notebook() -> bool:
    """Whether output goes to a notebook's cell."""
    if "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")


def choose_progress() -> Progress:
    """A live curve in a notebook, lines elsewhere."""
    return LiveCurve() if in_notebook() else Lines()


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
    from tx_from_scratch.plots import COLORS

    steps, loss = np.arange(1, len(history) + 1), np.array(history.loss)
    with _figure(6.4, 3.0) as (figure, picture):
        axes = figure.add_subplot()
        axes.plot(steps, loss, color=COLORS[4], linewidth=0.8, label="each step")
        axes.plot(steps, _running_mean(loss), color=COLORS[0], label="running mean")
        axes.set(xlabel="step", ylabel="loss per token (nats)", title=describe(history))
        axes.legend()
    return picture.getvalue()


def draw_comparison(histories: dict[str, History]) -> bytes:
    """Running means of the loss and of the gradient's norm, one line for each run, as a PNG."""
    with _figure(8.0, 3.2) as (figure, picture):
        left, right = figure.subplots(1, 2)
        for number, (label, history) in enumerate(histories.items()):
            steps, dash = np.arange(1, len(history) + 1), DASHES[number % len(DASHES)]
            left.plot(steps, _running_mean(np.array(history.loss), 10), dash, label=label)
            right.plot(steps, _running_mean(np.array(history.gradient_norm), 10), dash)
        left.set(xlabel="step", ylabel="loss per token (nats)")
        right.set(xlabel="step", ylabel="norm of the gradient", yscale="log")
        left.legend(fontsize=8)
    return picture.getvalue()


@contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Figure, io.BytesIO]]:
    """A figure in the book's style, outside pyplot, so that no open figure is disturbed; then its PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from tx_from_scratch.plots import style

    picture = io.BytesIO()
    with style():
        figure = Figure(figsize=(width, height))
        canvas = FigureCanvasAgg(figure)
        yield figure, picture
        canvas.print_png(picture, metadata={"Software": None})  # type: ignore[no-untyped-call]


def _running_mean(values: np.ndarray, window: int = 25) -> np.ndarray:
    """The mean of each value and up to window - 1 before it."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))
