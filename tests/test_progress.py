"""What training shows, in a terminal and in a notebook."""

import pytest
from tiny_translator import sorting_task, tiny, train

from tx_from_scratch.data import GeneratedTask
from tx_from_scratch.history import History
from tx_from_scratch.progress import ALTERNATIVE_TEXT, LiveCurve, describe, draw


@pytest.fixture(scope="module")
def task() -> GeneratedTask:
    return sorting_task()


def test_terminal_gets_lines_on_the_error_stream(task, capsys):
    model, optimizer = tiny()
    train(model, optimizer, task.batches(), steps=3, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("step 3   loss ")


def test_notebook_gets_one_picture_that_is_replaced_and_one_line(task, monkeypatch, capsys):
    """Display calls recorded: one output with one text that never changes, then only updates of it."""
    shown: list[dict] = []
    updates: list[dict] = []

    class Handle:
        def update(self, bundle: dict, *, raw: bool, metadata: dict) -> None:
            assert metadata == {"image/png": {"alt": bundle["text/plain"]}}
            updates.append(bundle)

    def display(bundle: dict, *, raw: bool, metadata: dict, display_id: bool) -> Handle:
        shown.append(bundle)
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    model, optimizer = tiny()
    curve = LiveCurve(interval=0.0)
    train(model, optimizer, task.batches(), steps=25, progress=curve)
    assert len(shown) == 1
    assert len(updates) >= 1
    assert {bundle["text/plain"] for bundle in shown + updates} == {ALTERNATIVE_TEXT}
    assert capsys.readouterr().out == "25 steps\n"


def test_picture_of_few_and_many_steps():
    history = History()
    assert draw(history).startswith(b"\x89PNG")
    assert describe(history) == "step 0"
    for step in range(1, 201):
        history.append(3.0 / step, 1e-3, 1.0, 100, 0.01 * step)
        history.evaluations = [(step, {"exact": 0.25})]
        if step in (1, 2, 200):
            assert draw(history).startswith(b"\x89PNG")
    assert describe(history).endswith("exact 0.25 (step 200)")
    assert "10,000 tokens/s" in describe(history)
