"""Every stored chapter has the parts that a reader relies on, in the form in which it must be stored."""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from tx_from_scratch.widgets.base import MAX_STATE

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "book"), str(ROOT / "book" / "_ext")]

from normalize import dumps, normalize  # noqa: E402
from tx_book.ledger import Chapter, cell_tags, load_ledger, problems, read_notebook, stored_verdicts  # noqa: E402

CHAPTERS = sorted((ROOT / "chapters").glob("*.ipynb"))
LEDGER = {chapter.notebook: chapter for chapter in load_ledger(ROOT / "book" / "claims.yml")}

# A path of somebody's machine: in a traceback, a warning, a printed file name.
MACHINE_PATH = re.compile(
    r"(?<![\w.])(?:/(?:home|Users|root|tmp|usr|var|private)/\w|[A-Za-z]:\\\w|site-packages)"
)
EXERCISE = re.compile(r"^(`{3,}|:{3,})\{exercise[^}]*\}(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
SOLUTION = re.compile(r"^(`{3,}|:{3,})\{solution[^}]*\} *(\S+)(.*?)^\1\s*$", re.MULTILINE | re.DOTALL)
# Sections in the order in which a reader meets them.
SECTIONS = ("train it", "cost", "exercises", "further reading")

TEXTS = ("text/plain", "text/html", "text/markdown", "text/latex")

Cell = dict[str, Any]
chapter = pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])


@cache
def cells(path: Path) -> list[Cell]:
    """The cells of a stored notebook, each source as one text."""
    found: list[Cell] = read_notebook(path)["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in found]


def code(path: Path) -> list[Cell]:
    """Its code cells."""
    return [cell for cell in cells(path) if cell["cell_type"] == "code"]


def prose(path: Path) -> str:
    """All of its Markdown."""
    return "\n\n".join(cell["source"] for cell in cells(path) if cell["cell_type"] == "markdown")


def outputs(path: Path) -> list[dict[str, Any]]:
    """All of its outputs."""
    return [output for cell in code(path) for output in cell["outputs"]]


def in_ledger(path: Path) -> Chapter:
    """The chapter's claims."""
    return LEDGER[f"chapters/{path.stem}"]


def asserts(cell: Cell) -> bool:
    """Whether a cell checks something."""
    return bool(re.search(r"^\s*(assert\b|(np|torch)\.testing\.assert)", cell["source"], re.MULTILINE))


def test_chapters_contents_and_ledger_agree() -> None:
    """What is stored, what the table of contents lists, and what has claims are the same chapters."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    files = {entry["file"] for part in toc["parts"] for entry in part["chapters"]}
    stored = {f"chapters/{path.stem}" for path in CHAPTERS}
    assert stored == {file for file in files if file.startswith("chapters/")} == set(LEDGER)


@chapter
def test_opening(path: Path) -> None:
    """A title, a question, what to know before, how long it takes; then one cell with imports and a seed."""
    first = cells(path)[0]
    assert first["cell_type"] == "markdown"
    assert first["source"].startswith("# ")
    opening = first["source"]
    for cell in cells(path)[1:]:
        if cell["cell_type"] == "code":
            break
        opening += "\n" + cell["source"]
    assert "?" in opening
    assert re.search(r"\bknow\b", opening)
    assert re.search(r"\b(minutes|hours?)\b", opening)
    setup = code(path)[0]["source"]
    assert "import" in setup
    assert "seed" in setup


@chapter
def test_sections_are_in_order(path: Path) -> None:
    """Training, costs, exercises and further reading follow one another under headings of their own."""
    headings = [line.lower() for line in re.findall(r"^##? +(.+)$", prose(path), re.MULTILINE)]
    places = {name: [place for place, line in enumerate(headings) if name in line] for name in SECTIONS}
    assert [name for name in SECTIONS if not places[name]] == []
    assert [places[name][-1] for name in SECTIONS] == sorted(places[name][-1] for name in SECTIONS)


@chapter
def test_source_is_shown_and_not_pasted(path: Path) -> None:
    """The library's own source stands in the chapter, through the helper that reads it."""
    assert any("show_source(" in cell["source"] for cell in code(path))


@chapter
def test_exactly_one_training_cell(path: Path) -> None:
    """One cell trains; its output is not compared, so the next one asserts the result."""
    every = code(path)
    tagged = [i for i, cell in enumerate(every) if "gpu-training" in cell_tags(cell)]
    assert len(tagged) == 1
    assert "nbval-ignore-output" in cell_tags(every[tagged[0]])
    assert asserts(every[tagged[0] + 1])


@chapter
def test_uncompared_output_is_asserted(path: Path) -> None:
    """A cell whose output no test compares asserts by itself, or the next one does."""
    every = code(path)
    for cell, after in zip(every, [*every[1:], None], strict=True):
        if "nbval-ignore-output" in cell_tags(cell):
            assert asserts(cell) or (after is not None and asserts(after)), cell["source"][:200]


@chapter
def test_every_claim_is_measured(path: Path) -> None:
    """Each claim of the chapter has one verdict with evidence, in a cell that carries its tag and asserts."""
    chapter = in_ledger(path)
    assert list(problems([chapter], {chapter.notebook: stored_verdicts(read_notebook(path))})) == []
    tags = {tag: cell for cell in code(path) for tag in cell_tags(cell) if tag.startswith("claim:")}
    assert set(tags) == {f"claim:{claim.id}" for claim in chapter.claims}
    assert [tag for tag, cell in tags.items() if not asserts(cell)] == []


@chapter
def test_exercises(path: Path) -> None:
    """Five or more, each with difficulty and minutes and a folded solution; one finds a published bug."""
    text = prose(path)
    exercises = [match[2] for match in EXERCISE.finditer(text)]
    labels = [re.findall(r"^:label: *(\S+)", body, re.MULTILINE) for body in exercises]
    assert len(exercises) >= 5
    assert all(len(found) == 1 for found in labels)
    solved = {match[2]: match[3] for match in SOLUTION.finditer(text)}
    assert set(solved) == {label for found in labels for label in found}
    assert all(re.search(r"^:class: .*\bdropdown\b", body, re.MULTILINE) for body in solved.values())
    for body in exercises:
        assert re.search(r"\b(easy|medium|hard|open)\b", body, re.IGNORECASE), body[:200]
        assert re.search(r"\b\d+ min(utes?)?\b", body), body[:200]
    hunts = [body for body in exercises if re.search(r"find the bug", body, re.IGNORECASE)]
    assert any("{cite" in body or "arXiv" in body or "https://" in body for body in hunts)


@chapter
def test_further_reading_is_cited(path: Path) -> None:
    """References go through the bibliography."""
    reading = prose(path).lower().rpartition("further reading")[2]
    assert "{cite" in reading


@chapter
def test_every_picture_has_alternative_text(path: Path) -> None:
    """Stored figures carry it in their metadata, where Jupyter and the book look; pictures in prose, too."""
    for output in outputs(path):
        for kind in output.get("data", {}):
            if kind.startswith("image/"):
                alternative = output["metadata"].get(kind, {}).get("alt", "")
                assert len(alternative.split()) >= 4, f"{kind} with alternative text {alternative!r}"
    for cell in cells(path):
        pictures = re.findall(r"!\[([^\]]*)\]\(", cell["source"]) if cell["cell_type"] == "markdown" else []
        assert all(len(alternative.split()) >= 4 for alternative in pictures), pictures


@chapter
def test_ran_cleanly_from_top_to_bottom(path: Path) -> None:
    """Every cell has run, in order, without error, warning or the stub of a progress bar."""
    counts = [cell["execution_count"] for cell in code(path) if cell["source"].strip()]
    assert counts == list(range(1, len(counts) + 1))
    for output in outputs(path):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]
        assert "HBox(" not in "".join(output.get("data", {}).get("text/plain", ""))


@chapter
def test_holds_no_path_of_a_machine(path: Path) -> None:
    """Neither code nor output names a folder that only one machine has."""
    for cell in cells(path):
        text = readable(cell)
        found = MACHINE_PATH.search(text)
        assert found is None, text[max(0, found.start() - 80) : found.end() + 80]


def readable(cell: Cell) -> str:
    """What a cell says: its source and the text of its outputs, not the letters that encode a picture."""
    parts = [cell["source"]]
    for output in cell.get("outputs", []):
        shown = output.get("data", {})
        parts += ["".join(output.get("text", "")), *("".join(shown.get(kind, "")) for kind in TEXTS)]
    return "\n".join(parts)


@chapter
def test_is_stored_in_normal_form(path: Path) -> None:
    """As `python book/notebooks.py` writes it, and small enough to be read in a browser."""
    assert path.read_text(encoding="utf-8") == dumps(normalize(read_notebook(path)))
    assert path.stat().st_size < 2_000_000


WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
OWN_WIDGETS = "tx_from_scratch.widgets."


@chapter
def test_stored_widgets_are_the_present_ones(path: Path) -> None:
    """What a page runs is what the library holds: script, style, and no more data than a page should load."""
    state = read_notebook(path)["metadata"].get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    shown = [output["data"] for output in outputs(path) if WIDGET_VIEW in output.get("data", {})]
    assert all("image/png" in data for data in shown), "a widget has no picture for paper"
    for data in shown:
        assert data[WIDGET_VIEW]["model_id"] in state, "the notebook was stored without its widgets' state"
    for record in state.values():
        identity = record["state"].get("_anywidget_id", "")
        if not identity.startswith(OWN_WIDGETS):
            continue
        module, name = identity.rsplit(".", 1)
        widget = getattr(import_module(module), name)
        advice = f"{name} has changed; run: python book/notebooks.py {path.stem}"
        assert record["state"]["_esm"] == widget._esm, advice
        assert record["state"]["_css"] == widget._css, advice
        assert sum(len(buffer["data"]) for buffer in record.get("buffers", [])) <= MAX_STATE
