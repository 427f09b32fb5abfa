"""The widget runtime, on a page of its own: real anywidget models, some of which fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import ipywidgets
import pytest
import traitlets
from playwright.sync_api import expect
from serving import ROOT

pytestmark = pytest.mark.browser

COUNTER = """
let initialized = 0;
export default {
  initialize({ model }) { model.set("initialized", ++initialized); },
  render({ model, el }) {
    const button = document.createElement("button");
    const bytes = model.get("data");
    const numbers = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + 8));
    const draw = () => {
      button.textContent = `${model.get("name")} ${model.get("value")} of ${numbers.join(" ")}`;
    };
    button.addEventListener("click", () => {
      model.set("value", model.get("value") + 1);
      model.save_changes();
    });
    model.on("change:value", draw);
    draw();
    el.append(button);
  },
};
"""


class Counter(anywidget.AnyWidget):
    """Counts clicks; its numbers travel as bytes, as in JupyterLab."""

    _esm = COUNTER
    _css = "button { color: rgb(1, 2, 3); }"
    name = traitlets.Unicode("first").tag(sync=True)
    value = traitlets.Int(3).tag(sync=True)
    initialized = traitlets.Int(0).tag(sync=True)
    data = traitlets.Bytes(b"\x00\x00\x80\x3f\x00\x00\x20\x40").tag(sync=True)  # 1.0, 2.5


def failing(source: str) -> anywidget.AnyWidget:
    """A widget whose module is `source`."""

    class Failing(anywidget.AnyWidget):
        _esm = source

    return Failing()


FAILURES = {
    "its rendering": 'export default { render() { throw new Error("no luck"); } }',
    "its initialization": 'export default { async initialize() { throw new Error("no luck"); } }',
    "its module": 'throw new Error("no luck");',
    "its syntax": "export default {",
    "its end": "export default { render() { return new Promise(() => {}); } }",
}


def test_widget_shows_its_state_and_counts(show: Callable[..., Any]) -> None:
    """State, bytes, style and events; the picture makes room."""
    visited = show(Counter())
    button = visited.page.get_by_role("button")
    expect(button).to_have_text("first 3 of 1 2.5")
    button.click()
    expect(button).to_have_text("first 4 of 1 2.5")
    expect(button).to_have_css("color", "rgb(1, 2, 3)")
    expect(visited.page.get_by_alt_text("picture")).to_be_hidden()
    assert visited.errors == []
    assert visited.foreign == []


@pytest.mark.parametrize("what", list(FAILURES))
def test_failing_widget_takes_no_other_down(what: str, show: Callable[..., Any]) -> None:
    """Before and after one that fails, the others work; it keeps its picture and says why."""
    page = show(Counter(), failing(FAILURES[what]), Counter(name="last")).page
    buttons = page.get_by_role("button")
    expect(buttons).to_have_text(["first 3 of 1 2.5", "last 3 of 1 2.5"])
    buttons.last.click()
    expect(buttons.last).to_have_text("last 4 of 1 2.5")
    expect(page.get_by_alt_text("picture").nth(1)).to_be_visible()
    if what != "its end":
        expect(page.locator(".tx-widget-failed")).to_have_count(1)
        expect(page.locator(".tx-widget-failed")).to_contain_text("This widget could not start: ")
    if "luck" in FAILURES[what]:
        expect(page.locator(".tx-widget-failed")).to_have_text("This widget could not start: no luck.")


def test_widget_that_needs_a_kernel_says_so(show: Callable[..., Any]) -> None:
    """ipywidgets' own controls have no code on the page."""
    page = show(ipywidgets.IntSlider(), Counter()).page
    expect(page.locator(".tx-widget-failed")).to_contain_text("a IntSliderModel needs a running kernel")
    expect(page.get_by_role("button")).to_have_count(1)


@pytest.mark.parametrize(("link", "back"), [(ipywidgets.jslink, True), (ipywidgets.jsdlink, False)])
def test_links_between_widgets(link: Any, back: bool, show: Callable[..., Any]) -> None:
    """jslink goes both ways, jsdlink one way; the target starts at the source's value."""
    first, second = Counter(value=7), Counter(name="second")
    kept = link((first, "value"), (second, "value"))
    buttons = show(first, second).page.get_by_role("button")
    expect(buttons).to_have_text(["first 7 of 1 2.5", "second 7 of 1 2.5"])
    buttons.first.click()
    expect(buttons.last).to_have_text("second 8 of 1 2.5")
    buttons.last.click()
    expect(buttons.first).to_have_text(f"first {9 if back else 8} of 1 2.5")
    kept.unlink()


def test_listener_that_throws_stops_no_other(show: Callable[..., Any]) -> None:
    """An error in one listener is reported; the ones behind it still run."""
    throwing = 'model.on("change:value", () => { throw new Error("listener"); });'

    class Throwing(Counter):
        _esm = COUNTER.replace(
            'model.on("change:value", draw);', f'{throwing} model.on("change:value", draw);'
        )

    visited = show(Throwing())
    button = visited.page.get_by_role("button")
    button.click()
    expect(button).to_have_text("first 4 of 1 2.5")
    assert any("listener" in error for error in visited.errors)


def test_picture_without_scripts_and_on_paper(show: Callable[..., Any]) -> None:
    """Without JavaScript, and in print, the picture stands for the widget."""
    page = show(Counter(), javascript=False).page
    expect(page.get_by_alt_text("picture")).to_be_visible()
    page = show(Counter()).page
    expect(page.get_by_role("button")).to_be_visible()
    page.emulate_media(media="print")
    expect(page.get_by_alt_text("picture")).to_be_visible()
    expect(page.get_by_role("button")).to_be_hidden()


def test_runtime_is_small() -> None:
    """A few kilobytes, against the 3.6 MB of the usual one."""
    assert (ROOT / "book" / "_ext" / "tx_book" / "static" / "tx-widgets.js").stat().st_size < 8_000
