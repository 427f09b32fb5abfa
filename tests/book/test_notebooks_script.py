"""book/notebooks.py: what it stores depends on the code alone, and it knows when that has changed."""

from __future__ import annotations

import base64
import io
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
import notebooks
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from normalize import dumps, final_lines, normalize, strip_png
from PIL import Image

CODE = [
    "import time, anywidget, traitlets\nimport matplotlib.pyplot as plt\nfrom ipywidgets import jslink\n"
    "from tx_from_scratch import masks",
    "figure, axes = plt.subplots()\naxes.plot([1, 2, 4])\n"
    "display(figure, metadata={'image/png': {'alt': 'A growing line'}})\nplt.close(figure)",
    """class Counter(anywidget.AnyWidget):
    _esm = "export default { render() {} }"
    value = traitlets.Int().tag(sync=True)
    data = traitlets.Bytes(b"ab").tag(sync=True)
    __repr__ = lambda self: "Counter()"
first, second = Counter(value=1), Counter(value=2)
link = jslink((first, "value"), (second, "value"))
display(first)""",
    "second",
    "for step in range(3):\n    print('step', step, end='\\r', flush=True)\n    time.sleep(0.3)\nprint()",
    "object()",
    "print('out'); print('more')",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A small notebook with a figure, linked widgets and progress output, executed and stored."""
    path = tmp_path_factory.mktemp("chapters") / "small.ipynb"
    cells = [new_markdown_cell("# Small"), *map(new_code_cell, CODE)]
    nbformat.write(new_notebook(cells=cells), path)
    assert notebooks.update(path, run=True)
    return path, path.read_text(encoding="utf-8")


def test_second_execution_changes_nothing(executed: tuple[Path, str]) -> None:
    """Figure, widgets, links, stream and addresses are the same file, byte for byte."""
    path, first = executed
    assert not notebooks.update(path, run=True)
    assert path.read_text(encoding="utf-8") == first
    assert notebooks.faults(path) == []


def test_what_is_stored(executed: tuple[Path, str]) -> None:
    """The picture, its alternative text and the widgets are there; times, versions and addresses are not."""
    notebook = json.loads(executed[1])
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert [output["metadata"]["image/png"]["alt"] for output in pictures] == ["A growing line"]
    views = [output["data"] for output in outputs if "model_id" in str(output.get("data"))]
    state = notebook["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    shown = [view["application/vnd.jupyter.widget-view+json"]["model_id"] for view in views]
    assert [state[name]["state"]["value"] for name in shown] == [1, 2]
    kinds = {model["model_name"] for model in state.values()}
    assert kinds >= {"AnyModel", "LinkModel"}
    link = next(model["state"] for model in state.values() if model["model_name"] == "LinkModel")
    assert link["source"] == [f"IPY_MODEL_{shown[0]}", "value"]
    streams = [output["text"] for output in outputs if output["output_type"] == "stream"]
    assert streams == [["step 2\n"], ["out\n", "more\n"]]
    assert ["<object at 0x0>"] in [output["data"].get("text/plain") for output in outputs if "data" in output]
    assert set(notebook["metadata"]) == {"kernelspec", "language_info", "tx", "widgets"}
    assert "version" not in notebook["metadata"]["language_info"]
    assert 'execution"' not in executed[1].replace("execution_count", "")


def test_normalizing_is_idempotent(executed: tuple[Path, str]) -> None:
    """The stored form of the stored form is the same."""
    notebook = json.loads(executed[1])
    again = normalize(notebook)
    assert dumps(again) == executed[1]
    assert dumps(normalize(again)) == executed[1]


def test_stored_form_is_what_jupyter_writes(executed: tuple[Path, str]) -> None:
    """Saving the file in Jupyter without running it gives no difference."""
    assert nbformat.writes(nbformat.reads(executed[1], as_version=4)) + "\n" == executed[1]


def test_argument_is_left_alone(executed: tuple[Path, str]) -> None:
    """`normalize` returns a copy."""
    notebook = json.loads(executed[1])
    before = deepcopy(notebook)
    normalize(notebook)
    assert notebook == before


def test_changed_code_is_stale(executed: tuple[Path, str], tmp_path: Path) -> None:
    """An edited cell, an output cleared, and metadata that an editor left are each noticed."""
    notebook = json.loads(executed[1])
    path = tmp_path / "changed.ipynb"

    def faults(change: Any) -> list[str]:
        changed = normalize(notebook)
        change(changed)
        path.write_text(dumps(changed), encoding="utf-8")
        return notebooks.faults(path)

    assert faults(lambda changed: changed["cells"][1].update(source="pass")) == ["stale"]
    assert faults(lambda changed: changed["cells"][0].update(source="# Large")) == []
    assert faults(lambda changed: changed["cells"][1].update(execution_count=None)) == ["not executed"]
    assert faults(lambda changed: changed["metadata"].update(vscode={})) == ["not in stored form"]


def test_changed_library_is_stale(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A module that the code reaches through imports counts; one that it doesn't reach does not."""
    package = tmp_path / "tx_from_scratch"
    package.mkdir()
    files = {
        "__init__.py": "",
        "one.py": "from tx_from_scratch.two import x",
        "two.py": "from . import three\nx = 1",
        "three.py": "",
        "other.py": "",
    }
    for name, text in files.items():
        (package / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    notebook = {
        "cells": [{"cell_type": "code", "source": ["%matplotlib inline\n", "import tx_from_scratch.one"]}]
    }
    reached = notebooks.library_files(notebooks.code_of(notebook))
    assert [path.name for path in reached] == ["__init__.py", "one.py", "three.py", "two.py"]
    before = notebooks.digest(notebook)
    (package / "other.py").write_text("changed = True", encoding="utf-8")
    assert notebooks.digest(notebook) == before
    (package / "three.py").write_text("changed = True", encoding="utf-8")
    assert notebooks.digest(notebook) != before


def test_failing_chapter_keeps_its_stored_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    """The error is shown, the file is unchanged, and the status says so."""
    path = tmp_path / "bad.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    monkeypatch.setattr(notebooks, "select", lambda names: [path])
    assert notebooks.main([]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_unknown_chapter_is_named(tmp_path: Path) -> None:
    """A name that fits nothing is an error that lists what there is."""
    (tmp_path / "01_first.ipynb").touch()
    assert [path.name for path in notebooks.select(["01"], tmp_path)] == ["01_first.ipynb"]
    assert [path.name for path in notebooks.select(["chapters/01_first.ipynb"], tmp_path)] == [
        "01_first.ipynb"
    ]
    with pytest.raises(ValueError, match=r"no chapter begins with '02'; there are: 01_first"):
        notebooks.select(["02"], tmp_path)


def test_png_keeps_its_picture() -> None:
    """matplotlib's version goes, every pixel and the resolution stay."""
    buffer = io.BytesIO()
    figure = plt.figure(figsize=(1, 1))
    figure.savefig(buffer, format="png", dpi=90)
    plt.close(figure)
    data = buffer.getvalue()
    assert b"matplotlib" in data
    stripped = strip_png(data)
    assert b"matplotlib" not in stripped
    before, after = Image.open(io.BytesIO(data)), Image.open(io.BytesIO(stripped))
    assert before.tobytes() == after.tobytes()
    assert before.info["dpi"] == after.info["dpi"]
    assert strip_png(stripped) == stripped
    with pytest.raises(ValueError, match="data must be a PNG"):
        strip_png(base64.b64decode("R0lGODlhAQABAAAAACw="))


# BertViz leaves the file of its script to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_third_party_code_is_not_stored() -> None:
    """A BertViz view shown live carries its libraries; stored, it holds placeholders."""
    import torch

    from tx_from_scratch import bertviz_views

    weights = [torch.full((1, 2, 3, 3), 1 / 3)]
    live = bertviz_views.head_view(weights, ["a", "b", "c"]).data
    output = {"output_type": "display_data", "metadata": {}, "data": {"text/html": live}}
    cell = {"cell_type": "code", "execution_count": 1, "source": "", "metadata": {}, "outputs": [output]}
    cell["source"] = "head_view(weights, tokens)"
    stored = normalize({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    view = stored["cells"][0]["outputs"][0]["data"]["text/html"]
    assert "d3js.org" in live
    assert "d3js.org" not in view
    assert len(view) < 10_000 < len(live)


@pytest.mark.parametrize(
    ("printed", "stored"),
    [("1 %\r50 %\r100 %\n", "100 %\n"), ("a\r\nb\r\n", "a\nb\n"), ("plain\n", "plain\n"), ("step\r", "step")],
)
def test_final_lines(printed: str, stored: str) -> None:
    """Progress that overwrites itself leaves its last state."""
    assert final_lines(printed) == stored


def test_digest_covers_the_scripts_of_widgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored widget holds its script and its kit, so a chapter is stale when one of them changes."""
    package = tmp_path / "tx_from_scratch" / "widgets"
    (package / "kit").mkdir(parents=True)
    for name in (
        "../__init__.py",
        "__init__.py",
        "base.py",
        "dial.js",
        "other.js",
        "kit/frame.js",
        "kit/widget.css",
    ):
        (package / name).write_text("", encoding="utf-8")
    (package / "dial.py").write_text("from tx_from_scratch.widgets.base import Widget", encoding="utf-8")
    monkeypatch.setattr(notebooks, "ROOT", tmp_path)
    code = "from tx_from_scratch.widgets.dial import Dial"
    reached = [
        path.relative_to(package).as_posix()
        for path in notebooks.library_files(code)
        if package in path.parents
    ]
    assert reached == ["__init__.py", "base.py", "dial.js", "dial.py", "kit/frame.js", "kit/widget.css"]
