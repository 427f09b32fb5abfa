"""What training shows, in a terminal and in a notebook."""

import pytest
from tiny_translator import sorting_task, tiny, train

from tx_from_scratch.data import GeneratedTask
from tx_from_scratch.history import History
from tx_from_scratch.progress import ALTERNATIVE_TEXT, COMPARISON_TEXT, Comparison, LiveCurve, describe, draw


@pytest.fixture(scope="module")
def task() -> GeneratedTask:
    return sorting_task()


def test_terminal_gets_lines_on_the_error_stream(task, capsys):
    model, optimizer = tiny()
    train(model, optimizer, task.batches(), steps=3, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1].startswith("step 3   loss ")


@pytest.fixture
def notebook(monkeypatch) -> tuple[list[dict], list[dict]]:
    """What a notebook would be shown: outputs, and updates of them."""
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
    monkeypatch.setattr("tx_from_scratch.progress.in_notebook", lambda: True)
    return shown, updates


def test_notebook_gets_one_picture_that_is_replaced_and_one_line(task, notebook, capsys):
    """Display calls recorded: one output with one text that never changes, then only updates of it."""
    shown, updates = notebook
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


def test_comparison_shows_all_runs_in_one_picture(task, notebook, capsys):
    """Two runs, one output; the second run's picture still holds the first run's lines."""
    shown, updates = notebook
    comparison = Comparison(interval=0.0)
    for label, steps in (("one", 5), ("other", 3)):
        model, optimizer = tiny()
        train(model, optimizer, task.batches(), steps=steps, progress=comparison.run(label))
    assert len(shown) == 1
    assert len(updates) >= 2
    assert {bundle["text/plain"] for bundle in shown + updates} == {COMPARISON_TEXT}
    assert [len(history) for history in comparison.histories.values()] == [5, 3]
    assert capsys.readouterr().out == "one: 5 steps\nother: 3 steps\n"
    with pytest.raises(ValueError, match="label must be new, got 'one' again"):
        comparison.run("one")


def test_comparison_in_a_terminal(task, capsys):
    """Lines on the error stream, as without a comparison."""
    model, optimizer = tiny()
    train(model, optimizer, task.batches(), steps=2, progress=Comparison().run("one"))
    assert capsys.readouterr().err.splitlines()[-1].startswith("step 2   loss ")
