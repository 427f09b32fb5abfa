"""Two processes learn what one learns from the joint batch. Started by torchrun, talking through gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_translator import TinyTranslator, assert_same_weights, sorting_task, tiny, train

from tx_from_scratch.checkpointing import load_checkpoint
from tx_from_scratch.data import Batch
from tx_from_scratch.training import NoamSchedule

pytestmark = pytest.mark.distributed

STEPS = 6
SCRIPT = """
import json, shutil, signal, sys
sys.path.insert(0, {tests!r})
from test_distributed import STEPS, exact_settings, micro_batches, noisy_settings
from tiny_translator import tiny, train
from tx_from_scratch.distributed import rank
from tx_from_scratch.training import SequenceLoss

# Several runs in a row: joining and leaving the group must work more than once.
folder, batches, noisy = sys.argv[1], micro_batches(), noisy_settings()
exact = {{"steps": STEPS, "checkpoint": folder + "/exact.pt", **exact_settings()}}
train(*tiny(0.0), batches, progress=True, **exact)
whole = train(*tiny(0.3), batches, steps=STEPS, checkpoint=folder + "/whole.pt", **noisy)
train(*tiny(0.3), batches, steps=2, checkpoint=folder + "/parts.pt", **noisy)
parts = train(*tiny(0.3), batches, steps=STEPS, checkpoint=folder + "/parts.pt", resume=True, **noisy)

message = ""
if rank() == 0:
    shutil.copy(folder + "/parts.pt", folder + "/parts0.pt")
try:
    train(*tiny(0.3), batches, steps=STEPS, checkpoint=f"{{folder}}/parts{{rank()}}.pt", resume=True, **noisy)
except ValueError as error:
    message = str(error)

class Signalled(SequenceLoss):
    calls = 0

    def __call__(self, model, batch):
        self.calls += 1
        if rank() == 1 and self.calls == 5:
            signal.raise_signal(signal.SIGTERM)  # in one process alone
        return super().__call__(model, batch)

stopped = train(*tiny(), batches, Signalled(), steps=12, checkpoint=folder + "/signalled.pt")
same = whole.loss == parts.loss
result = json.dumps([rank(), same, whole.evaluations, message, len(stopped), stopped.interrupted])
# In one piece, with the end of the line: the other process writes to the same pipe at the same time.
sys.stdout.write(result + "\\n")
sys.stdout.flush()
"""


def exact_settings(processes: int = 2) -> dict:
    """What two processes do in one micro-batch each, one does in two."""
    return {"schedule": NoamSchedule(16, warmup=3), "accumulate": 4 // processes, "clip_norm": 1.0}


def noisy_settings() -> dict:
    """With dropout, so that only a faithful resume repeats the run."""
    return {"schedule": NoamSchedule(16, warmup=3), "evaluate": lambda model: 1.0, "evaluate_every": 3}


def micro_batches() -> list[Batch]:
    """Very unequal in tokens; every fourth one, a turn of process 0, is nothing but padding."""
    task = sorting_task()
    small, large = list(task.batches(max_tokens=40, seed=1)), list(task.batches(max_tokens=300, seed=2))
    batches = [part for pair in zip(small * 2, large * 2, strict=False) for part in pair][: 4 * STEPS]
    return [
        batch._replace(target=torch.zeros_like(batch.target)) if index % 4 == 2 else batch
        for index, batch in enumerate(batches)
    ]


def torchrun(script: Path, argument: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes."""
    # --standalone takes a free port.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TX_DEVICE": "cpu"}
    command = [*command, str(script), str(argument)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            output, errors = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its processes; killed, it would leave them behind
            raise
    assert process.returncode == 0, errors
    return subprocess.CompletedProcess(command, 0, output, errors)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder where two processes have saved their runs, and what they have written."""
    folder = tmp_path_factory.mktemp("distributed")
    script = folder / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    return folder, torchrun(script, folder)


def test_two_processes_equal_one_with_the_joint_batch(two_processes):
    """Same losses, gradient norms and weights, with unequal parts and one of them all padding."""
    saved = load_checkpoint(two_processes[0] / "exact.pt", kind="training")
    model, optimizer = tiny(0.0)
    alone = train(model, optimizer, micro_batches(), steps=STEPS, **exact_settings(processes=1))
    assert saved["history"]["tokens"] == alone.tokens
    np.testing.assert_allclose(saved["history"]["loss"], alone.loss, rtol=1e-6)
    np.testing.assert_allclose(saved["history"]["gradient_norm"], alone.gradient_norm, rtol=1e-5)
    together = TinyTranslator()
    together.load_state_dict(saved["model"])  # saved unwrapped: the names are the model's own
    assert_same_weights(together, model, atol=1e-6, rtol=1e-5)


def test_two_processes_resume_bit_by_bit(two_processes):
    """Every process drops out its own units, and does so again after a resume."""
    folder, run = two_processes
    lines = sorted(json.loads(line) for line in run.stdout.splitlines())
    assert [line[:2] for line in lines] == [[0, True], [1, True]]
    whole, parts = (load_checkpoint(folder / name, kind="training") for name in ("whole.pt", "parts.pt"))
    assert all(torch.equal(whole["model"][name], parts["model"][name]) for name in whole["model"])


def test_only_the_first_process_shows_evaluates_and_saves(two_processes):
    folder, run = two_processes
    lines = sorted(json.loads(line) for line in run.stdout.splitlines())
    assert lines[0][2] == [[3, {"evaluation": 1.0}], [6, {"evaluation": 1.0}]]
    assert lines[1][2] == []
    assert run.stderr.count("step 1   loss") == run.stderr.count(f"step {STEPS}   loss") == 1
    assert {path.name for path in folder.glob("*.pt")} == {
        "exact.pt",
        "whole.pt",
        "parts.pt",
        "parts0.pt",
        "signalled.pt",
    }


def test_a_checkpoint_that_not_all_processes_see_is_an_error(two_processes):
    """Where each machine has its own disk, one would start anew while the other resumes."""
    lines = sorted(json.loads(line) for line in two_processes[1].stdout.splitlines())
    assert "must be one file that all 2 processes see; process 0 has found 6 steps" in lines[0][3]
    assert "process 1 has found 0 steps" in lines[1][3]


def test_one_process_may_resume_what_two_began(two_processes, tmp_path):
    """With the same joint batch; with another one the settings don't match."""
    path = tmp_path / "run.pt"
    path.write_bytes((two_processes[0] / "exact.pt").read_bytes())
    model, optimizer = tiny(0.0)
    settings = exact_settings(processes=1)
    history = train(model, optimizer, micro_batches(), steps=STEPS, checkpoint=path, resume=True, **settings)
    assert len(history) == STEPS
    settings["accumulate"] = 2
    with pytest.raises(ValueError, match="accumulate must be 4 to resume"):
        train(model, optimizer, micro_batches(), steps=STEPS, checkpoint=path, resume=True, **settings)


def test_a_signal_to_one_process_stops_all_at_the_same_step(two_processes):
    """They agree on a last step, save, and end well."""
    folder, run = two_processes
    lines = sorted(json.loads(line) for line in run.stdout.splitlines())
    assert [line[4:] for line in lines] == [[5, True], [5, True]]
    assert len(load_checkpoint(folder / "signalled.pt", kind="training")["history"]["loss"]) == 5
