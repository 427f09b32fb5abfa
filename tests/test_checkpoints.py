"""Saving, resuming, and being interrupted."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_translator import TinyTranslator, assert_same_weights, sorting_task, tiny, train
from torch import nn

from tx_from_scratch.checkpointing import load_checkpoint, save_checkpoint
from tx_from_scratch.data import Batch, GeneratedTask
from tx_from_scratch.training import (
    NoamSchedule,
    SequenceLoss,
    fit,
)


@pytest.fixture(scope="module")
def task() -> GeneratedTask:
    return sorting_task()


@pytest.mark.parametrize("stop_at", [1, 7, 13])
@pytest.mark.usefixtures("without_shape_checks")  # the checker draws from Python's generator as it likes
def test_resumed_run_repeats_the_uninterrupted_one_bit_by_bit(task, tmp_path, stop_at):
    """Dropout, NumPy and Python randomness in the loss included, and whatever the caller did in between."""

    class NoisyLoss(SequenceLoss):
        def __call__(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            total, tokens = super().__call__(model, batch)
            return total * (1 + 0.1 * random.random() + 0.1 * np.random.rand()), tokens  # noqa: NPY002

    def settings(path: Path) -> dict:
        schedule = NoamSchedule(16, warmup=5)
        return {"schedule": schedule, "checkpoint": path, "seed": 3, "accumulate": 2}

    batches = task.batches(max_tokens=150)
    whole, optimizer = tiny(0.3)
    expected = train(whole, optimizer, batches, NoisyLoss(), steps=20, **settings(tmp_path / "whole.pt"))

    model, optimizer = tiny(0.3)
    train(model, optimizer, batches, NoisyLoss(), steps=stop_at, **settings(tmp_path / "part.pt"))
    torch.rand(17), random.random(), np.random.rand()  # noqa: NPY002
    model = TinyTranslator(0.3)  # other weights, another rate: all that matters is in the file
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)
    history = train(
        model,
        optimizer,
        task.batches(max_tokens=150),
        NoisyLoss(),
        steps=20,
        resume=True,
        **settings(tmp_path / "part.pt"),
    )
    assert history.loss == expected.loss
    assert history.gradient_norm == expected.gradient_norm
    assert history.learning_rate == expected.learning_rate
    assert_same_weights(model, whole)


def test_resuming_under_other_settings_is_refused(task, tmp_path):
    path = tmp_path / "run.pt"
    model, optimizer = tiny()
    arguments = (model, optimizer, task.batches())
    train(*arguments, steps=1, checkpoint=path)
    with pytest.raises(ValueError, match=r"accumulate must be 1 to resume .*run\.pt, got 2"):
        train(*arguments, steps=2, checkpoint=path, resume=True, accumulate=2)
    with pytest.raises(ValueError, match="schedule must be NoneType to resume"):
        train(*arguments, steps=2, checkpoint=path, resume=True, schedule=NoamSchedule(16))
    other = nn.Linear(2, 3)
    with pytest.raises(ValueError, match="another model or optimizer"):
        train(
            other, torch.optim.Adam(other.parameters()), task.batches(), steps=2, checkpoint=path, resume=True
        )


def test_resuming_a_finished_run_does_nothing(task, tmp_path):
    model, optimizer = tiny()
    settings = {"optimizer": optimizer, "steps": 2, "checkpoint": tmp_path / "run.pt"}
    first = fit(model, task.batches(), SequenceLoss(), **settings)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert fit(model, task.batches(), SequenceLoss(), resume=True, **settings).loss == first.loss
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def test_resume_without_a_file_starts_anew(task, tmp_path):
    model, optimizer = tiny()
    history = train(
        model, optimizer, task.batches(), steps=2, checkpoint=tmp_path / "new" / "run.pt", resume=True
    )
    assert len(history) == 2
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.pt"]


def test_checkpoints_are_written_when_due(task, tmp_path):
    """At step 2 and 4 by the interval, at 5 because it is the last; read back in the evaluations between."""
    path, seen = tmp_path / "run.pt", []

    def saved_steps(_: nn.Module) -> float:
        seen.append(len(load_checkpoint(path, kind="training")["history"]["loss"]) if path.exists() else 0)
        return 0.0

    model, optimizer = tiny()
    train(
        model,
        optimizer,
        task.batches(),
        steps=5,
        checkpoint=path,
        checkpoint_every=2,
        evaluate=saved_steps,
        evaluate_every=1,
    )
    assert seen == [0, 0, 2, 2, 4]
    assert len(load_checkpoint(path, kind="training")["history"]["loss"]) == 5


def test_a_failing_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file.pt"
    save_checkpoint(path, {"kind": "training", "value": 1})

    def full_disk(content: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(path, {"kind": "training", "value": 2})
    monkeypatch.undo()
    assert load_checkpoint(path, kind="training")["value"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file.pt"]


def test_loading_runs_no_code_and_names_what_is_wrong(tmp_path):
    class Evil:
        def __reduce__(self) -> tuple:
            return (os.mkdir, (str(tmp_path / "attacked"),))

    torch.save({"kind": "training", "value": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "text.pt").write_text("no checkpoint")
    torch.save({"kind": "translator"}, tmp_path / "other.pt")
    for name, message in {
        "evil.pt": "must be a whole checkpoint file, got .*evil.pt",
        "text.pt": "must be a whole checkpoint file, got .*text.pt",
        "other.pt": "kind 'training', got .*other.pt of kind 'translator'",
    }.items():
        with pytest.raises(ValueError, match=message):
            load_checkpoint(tmp_path / name, kind="training")
    assert not (tmp_path / "attacked").exists()
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "missing.pt", kind="training")


INTERRUPTIBLE = """
import sys, time
sys.path.insert(0, {tests!r})
from tiny_translator import sorting_task, tiny, train
from tx_from_scratch.training import NoamSchedule, SequenceLoss

class SlowLoss(SequenceLoss):
    def __call__(self, model, batch):
        print("working", flush=True)
        time.sleep(0.02)
        return super().__call__(model, batch)

path, steps = sys.argv[1], int(sys.argv[2])
batches = sorting_task().batches(max_tokens=150)
schedule = NoamSchedule(16, warmup=5)
history = train(
    *tiny(0.3), batches, SlowLoss(), steps=steps, schedule=schedule, checkpoint=path, resume=True
)
print("result", len(history), history.interrupted, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_loses_nothing(task, tmp_path, number):
    """A real process is signalled while it trains, exits with a history, and goes on to the same weights."""
    if sys.platform == "win32":
        pytest.skip("Windows has no such signals")
    script, path = tmp_path / "script.py", tmp_path / "run.pt"
    script.write_text(INTERRUPTIBLE.format(tests=str(Path(__file__).parent)))
    command = [sys.executable, str(script), str(path)]
    process = subprocess.Popen([*command, "100000"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(8):
        assert process.stdout.readline() == "working\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    label, made, interrupted = output.splitlines()[-1].split()
    assert (label, interrupted) == ("result", "True")
    assert 8 <= int(made) < 1_000
    assert len(load_checkpoint(path, kind="training")["history"]["loss"]) == int(made)

    settings = {"steps": int(made) + 5, "schedule": NoamSchedule(16, warmup=5)}
    resumed, optimizer = tiny(0.3)
    batches = task.batches(max_tokens=150)
    history = train(resumed, optimizer, batches, checkpoint=path, resume=True, **settings)
    uninterrupted, optimizer = tiny(0.3)
    assert train(uninterrupted, optimizer, batches, **settings).loss == history.loss
    assert not history.interrupted
    assert_same_weights(resumed, uninterrupted)


@pytest.fixture
def heeded_interrupts():
    """SIGINT raises KeyboardInterrupt, as in a terminal; a shell's background jobs start out ignoring it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeded_interrupts")
def test_handlers_are_put_back_and_a_second_signal_is_not_swallowed(task):
    """The second Ctrl-C within one step interrupts at once, as it would without `fit`."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    class Impatient(SequenceLoss):
        def __call__(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not reached")

    model, optimizer = tiny()
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, task.batches(), Impatient(), steps=5)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
