"""Every widget in a live JupyterLab: mounted, in step with Python both ways, linked, in the page's theme."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import Visit, visiting
from jupyter_lab import jupyter_lab
from playwright.sync_api import Browser, Locator, expect
from widget_examples import NAMES

pytestmark = pytest.mark.browser

SETTINGS: dict[str, object] = {
    "@jupyterlab/apputils-extension:themes": {"theme": "JupyterLab Dark"},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}
# Two of each kind, all of whose settings are linked in the browser.
SETUP = """\
from ipywidgets import jslink
from widget_examples import example

pairs = {}

def pair(name):
    first, second = pairs[name] = example(name), example(name)
    for setting in first.settings():
        jslink((first, setting), (second, setting))
    display(first, second)
"""
EXECUTE = """async (code) => {
    const { kernel } = jupyterapp.shell.currentWidget.sessionContext.session;
    const future = kernel.requestExecute({ code, store_history: false });
    let text = "";
    future.onIOPub = ({ header, content }) => {
        if (header.msg_type === "stream") text += content.text;
    };
    const { content } = await future.done;
    if (content.status !== "ok") throw new Error(`${content.ename}: ${content.evalue}`);
    return text;
}"""
RUN_ALL = """async () => {
    const panel = jupyterapp.shell.currentWidget;
    await panel.sessionContext.ready;
    await jupyterapp.commands.execute("notebook:run-all-cells");
    const cells = [...panel.content.model.sharedModel.cells].filter((cell) => cell.cell_type === "code");
    return cells.flatMap((cell) => cell.outputs).filter(({ output_type }) => output_type === "error");
}"""


@dataclass
class Lab:
    """A notebook that has run, in a browser."""

    visit: Visit
    failures: list[dict[str, Any]]

    def run(self, code: str) -> str:
        """Run code in the notebook's kernel; returns what it printed."""
        return str(self.visit.page.evaluate(EXECUTE, code))

    def settings(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings of both widgets of a kind, as Python has them."""
        printed = self.run(f"print([widget.settings() for widget in pairs[{name!r}]])")
        first, second = ast.literal_eval(printed)
        return first, second

    def widgets(self, name: str) -> tuple[Locator, Locator]:
        """Both widgets of a kind, as the page has them."""
        roots = self.visit.page.locator(".jp-CodeCell").nth(1 + NAMES.index(name)).locator(".txw")
        return roots.nth(0), roots.nth(1)


@pytest.fixture(scope="module")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab in its dark theme, with a notebook of one cell for each kind of widget, run once."""
    folder = tmp_path_factory.mktemp("lab")
    sources = [SETUP, *(f"pair({name!r})" for name in NAMES)]
    cells = [
        {"cell_type": "code", "id": f"c{index}", "source": source, "metadata": {}, "outputs": []}
        | {"execution_count": None}
        for index, source in enumerate(sources)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (folder / "notebooks").mkdir()
    (folder / "notebooks" / "widgets.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    with jupyter_lab(folder, SETTINGS) as address, visiting(browser) as open_page:
        visit = open_page(f"{address}/lab/tree/widgets.ipynb")
        # So high that the notebook keeps every cell in the page; it takes out those that are far from view.
        visit.page.set_viewport_size({"width": 1280, "height": 1200 * 2 * len(NAMES)})
        visit.page.wait_for_function(
            "window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel"
        )
        yield Lab(visit, visit.page.evaluate(RUN_ALL))


def eventually(read: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """What `read` gives once it is as wanted, or at the latest after ten seconds."""
    end = time.monotonic() + 10
    while not wanted(value := read()) and time.monotonic() < end:
        time.sleep(0.05)
    return value


def numbers_shown(root: Locator) -> list[float]:
    return [float(field.input_value()) for field in root.locator("input[type=number]").all()]


@pytest.mark.parametrize("name", NAMES)
def test_widget_is_mounted_in_the_dark_theme(lab: Lab, name: str) -> None:
    """Both of them, with a read-out that has numbers; the cell ran without an error."""
    assert lab.failures == []
    for root in lab.widgets(name):
        expect(root).to_be_visible()
        expect(root).to_have_attribute("data-dark", "")
        expect(root.locator(".txw-readout")).to_contain_text("0")


@pytest.mark.parametrize("name", NAMES)
def test_settings_travel_both_ways_and_along_links(lab: Lab, name: str) -> None:
    """From a control to Python and to the linked widget; from Python, on the other one, back to both."""
    first, second = lab.widgets(name)
    readouts = [root.locator(".txw-readout") for root in (first, second)]
    text, numbers = readouts[0].inner_text(), numbers_shown(first)
    expect(readouts[1]).to_have_text(text)
    before = lab.settings(name)[0]

    sliders = first.locator("input[type=range]")
    if sliders.count():
        sliders.first.press("End")
        shown = float(first.locator(".txw-slider input[type=number]").first.input_value())
    else:
        first.locator("select").first.select_option(index=1)
        shown = 1.0
    ours, theirs = eventually(
        lambda: lab.settings(name), lambda pair: pair[0] == pair[1] and pair[0] != before
    )
    assert ours == theirs
    assert [value for setting, value in ours.items() if value != before[setting]] == [shown]
    expect(readouts[0]).not_to_have_text(text)
    expect(readouts[1]).to_have_text(readouts[0].inner_text())
    assert numbers_shown(second) == numbers_shown(first) != numbers or not sliders.count()

    lab.run(f"for setting, value in {before!r}.items(): setattr(pairs[{name!r}][1], setting, value)")
    for root, readout in zip((first, second), readouts, strict=True):
        expect(readout).to_have_text(text)
        assert numbers_shown(root) == numbers
    ours, theirs = eventually(lambda: lab.settings(name), lambda pair: pair[0] == before)
    assert ours == theirs == before


@pytest.mark.parametrize("name", NAMES)
def test_bad_value_in_python_changes_nothing(lab: Lab, name: str) -> None:
    """The error is Python's; the page keeps what it shows."""
    code = f"""
widget = pairs[{name!r}][0]
for setting, (low, high, _) in widget._limits.items():
    try:
        setattr(widget, setting, low - 2)
    except ValueError as error:
        print(error)
"""
    before = lab.settings(name)
    printed = lab.run(code)
    assert "must be from" in printed
    assert lab.settings(name) == before


def test_theme_is_followed(lab: Lab) -> None:
    """Light when the reader changes JupyterLab's theme, and dark again."""
    page = lab.visit.page
    roots = [root for name in NAMES for root in lab.widgets(name)]
    change = "(theme) => jupyterapp.commands.execute('apputils:change-theme', { theme })"
    page.evaluate(change, "JupyterLab Light")
    for root in roots:
        expect(root).not_to_have_attribute("data-dark", "")
    page.evaluate(change, "JupyterLab Dark")
    for root in roots:
        expect(root).to_have_attribute("data-dark", "")


def test_page_asked_nothing_and_no_widget_complained(lab: Lab) -> None:
    """No request to another host, by JupyterLab or by a widget; no error on the console."""
    assert lab.visit.foreign == []
    assert lab.visit.errors == []
