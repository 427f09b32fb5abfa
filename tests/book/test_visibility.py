"""The masks and visibility widget in Chromium: its numbers are the library's, and every control works."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import expect

from tx_from_scratch.widgets import Visibility

pytestmark = pytest.mark.browser

GRID = """({ used, compose, layersToReach, reach, known, code }) => (grid) => grid.map((given) => {
    const settings = used(given);
    const mask = compose(settings);
    const layers = layersToReach(mask.bits, settings.length);
    const followed = known(layers, settings);
    return { ...mask, layers, ...reach(layers, settings), known: followed, code: code(settings) };
})"""


def settings_grid() -> list[Visibility]:
    """All combinations of parts at lengths around the 32 of a word, and the largest at its slowest."""
    widgets = [
        Visibility(
            length=length,
            causal=causal,
            padding=padding,
            windowed=windowed,
            window=window,
            n_global=n_global,
            n_random=n_random,
            seed=length,
            query=length // 2,
        )
        for length in (4, 31, 33, 64)
        for causal, windowed in itertools.product([False, True], repeat=2)
        for padding, window in ((0, 1), (5, 0), (127, 7))
        for n_global, n_random in ((0, 0), (2, 0), (0, 1), (32, 3))
    ]
    longest = [
        {"window": 1},
        {"window": 0, "n_random": 1},
        {"windowed": False},
        {"windowed": False, "n_random": 32},
    ]
    for causal, options in itertools.product([False, True], longest):
        widgets.append(Visibility(length=128, causal=causal, query=127, seed=9999, **options))
    return widgets


def test_browser_computes_what_the_library_does(compute: Callable[..., Any]) -> None:
    """Mask, parts, layers, every figure of the read-out and the line of code, over a grid of settings."""
    widgets = settings_grid()
    computed = compute(Visibility, GRID, [widget.settings() for widget in widgets])
    ends = set()
    for widget, browser in zip(widgets, computed, strict=True):
        library, n = widget.measure(), widget.length
        np.testing.assert_array_equal(browser["parts"].reshape(n, n), library.parts, err_msg=repr(widget))
        bits = np.unpackbits(browser["bits"].view("u1"), bitorder="little").reshape(n, -1)
        np.testing.assert_array_equal(bits[:, :n], library.mask, err_msg=repr(widget))
        assert not bits[:, n:].any()
        layers = np.where(browser["layers"] == 255, -1, browser["layers"].astype(int)).reshape(n, n)
        np.testing.assert_array_equal(layers, library.layers, err_msg=repr(widget))
        np.testing.assert_allclose(browser["share"], library.share, atol=1e-12, err_msg=repr(widget))
        for figure in ("visible", "full", "empty", "all_after"):
            assert browser[figure] == getattr(library, figure), (figure, widget)
        row = library.layers[widget.used()["query"]]
        assert browser["known"] == int(((row >= 0) & (row <= widget.n_layers)).sum())
        assert browser["code"] == widget.code()
        ends.add(library.all_after)
    # The grid has masks that connect everything late, and some that never do.
    assert {None, 1, 127} <= ends


def test_controls_change_what_is_shown(show: Callable[..., Any]) -> None:
    """Every control, by keyboard; the numbers are the library's after each."""
    visited = show(Visibility())
    page = visited.page
    widget = page.get_by_role("group", name="Masks and visibility")
    readout = page.locator(".txw-readout")
    settings: dict[str, Any] = {}

    def shows(**changes: Any) -> None:
        settings.update(changes)
        wanted = Visibility(**settings)
        here, used = wanted.measure(), wanted.used()
        row = here.layers[used["query"]]
        known = int(((row >= 0) & (row <= wanted.n_layers)).sum())
        end = "and some never are" if here.all_after is None else f"all after {here.all_after}"
        expect(readout).to_contain_text(f"Visible: {here.visible:,} of {wanted.length**2:,} pairs")
        expect(readout).to_contain_text(f"Full attention computes {here.full:,} scores")
        expect(readout).to_contain_text(f"costs {here.visible / here.full:.3g} of it")
        pairs = "pairs of real tokens" if wanted.padding else "pairs"
        reached = f"{100 * here.share[wanted.n_layers - 1]:.3g} % of the {pairs} are reached"
        expect(readout).to_contain_text(f"{reached}, {end}")
        expect(readout).to_contain_text(
            f"token {used['query']} is influenced by {known} token{'s' * (known != 1)}"
        )
        empty = f"{here.empty} {'query' if here.empty == 1 else 'queries'} may attend to nothing."
        expect(readout).to_contain_text(empty if here.empty else "Every query may attend to something.")
        expect(page.locator(".txw-code code")).to_have_text(wanted.code())

    def type_in(label: str, value: int) -> None:
        widget.get_by_role("spinbutton", name=label, exact=True).fill(str(value))

    shows()
    widget.get_by_role("slider", name="tokens", exact=True).press("ArrowRight")
    shows(length=33)
    widget.get_by_role("checkbox", name="causal").press("Space")
    shows(causal=False)
    type_in("padding at the end", 5)
    shows(padding=5)
    type_in("window to either side", 0)
    shows(window=0)  # padding now sees nothing but padding
    widget.get_by_role("slider", name="global tokens").press("ArrowRight")
    shows(n_global=1)
    type_in("random keys", 2)
    shows(n_random=2)
    type_in("seed", 77)
    shows(seed=77)
    widget.get_by_role("slider", name="layers").press("Home")
    shows(n_layers=1)
    widget.get_by_role("checkbox", name="window").press("Space")
    shows(windowed=False)
    type_in("token to follow", 3)
    shows(query=3)
    for label in ("global tokens", "random keys"):
        type_in(label, 0)
    shows(n_global=0, n_random=0)  # all three parts are off: everything is visible
    type_in("padding at the end", 127)  # at least one token stays
    shows(padding=127)
    widget.get_by_role("slider", name="tokens", exact=True).press("End")
    shows(length=128)
    type_in("padding at the end", 0)
    shows(padding=0)
    type_in("tokens", 500)  # out of range: nothing changes
    shows()
    widget.get_by_role("button", name="draw again").press("Enter")
    shows(seed=int(widget.get_by_role("spinbutton", name="seed").input_value()))
    assert visited.errors == []
    assert visited.foreign == []


def test_maps_say_what_is_under_the_cursor(show: Callable[..., Any]) -> None:
    """By arrow keys and by pointer; Enter and a click choose the token to follow."""
    visited = show(Visibility(length=8, window=1, padding=1, n_layers=2))
    page = visited.page
    mask, layers = page.get_by_role("application").all()
    texts = page.locator(".txw-cursor")
    mask.press("ArrowDown")
    mask.press("ArrowDown")
    expect(texts.first).to_have_text("query 1, key 0: window")
    for _ in range(2):
        mask.press("ArrowRight")
    expect(texts.first).to_have_text("query 1, key 2: hidden, it comes later")
    for _ in range(5):
        mask.press("ArrowRight")
    expect(texts.first).to_have_text("query 1, key 7: padding")
    mask.press("Enter")
    query = page.get_by_role("spinbutton", name="token to follow")
    expect(query).to_have_value("1")

    box = layers.bounding_box()
    assert box is not None
    cell = box["width"] / 8

    def point(row: int, column: int) -> dict[str, float]:
        return {"x": (column + 0.5) * cell, "y": (row + 0.5) * cell}

    layers.hover(position=point(4, 2))
    expect(texts.last).to_have_text("query 4, key 2: reached after 2 layers")
    layers.hover(position=point(6, 0))
    expect(texts.last).to_have_text("query 6, key 0: reached after 6 layers, more than there are")
    layers.hover(position=point(2, 5))
    expect(texts.last).to_have_text("query 2, key 5: never reached")
    layers.click(position=point(6, 5))
    expect(query).to_have_value("6")
    expect(page.locator(".txw-readout")).to_contain_text("token 6 is influenced by 3 tokens")
    assert visited.errors == []


def test_map_is_painted_by_part(show: Callable[..., Any]) -> None:
    """The pixels have the colors that the legend explains, in both themes."""
    widget = Visibility(length=16, window=1, n_global=1, n_random=1, padding=2, seed=3)
    parts = widget.measure().parts
    names = ["hidden", "window", "global token", "random", "padding"]
    for dark in (False, True):
        visited = show(widget, dark=dark)
        page = visited.page
        legend = page.locator(".txw-legend").first
        expect(legend.locator("span")).to_have_text(names)
        fills = [square.get_attribute("fill") for square in legend.locator("rect").all()]
        colors = dict(zip((0, 1, 2, 3, 5), fills, strict=True))
        pixels = page.locator("canvas").first.evaluate(
            """(canvas) => Array.from({ length: 256 }, (_, index) => {
                const side = canvas.width / 16;
                const [x, y] = [(index % 16) + 0.5, Math.floor(index / 16) + 0.5];
                const { data } = canvas.getContext("2d").getImageData(x * side, y * side, 1, 1);
                const parts = [...data.slice(0, 3)].map((part) => part.toString(16).padStart(2, "0"));
                return data[3] ? `#${parts.join("")}` : "none";
            })"""
        )
        assert pixels == [colors[part] for part in parts.flatten().tolist()]
        assert len(set(pixels)) == 5
        assert visited.errors == []


@pytest.mark.parametrize("width", [390, 1280])
def test_fits_the_page(show: Callable[..., Any], width: int) -> None:
    """At the largest size nothing sticks out, on a phone as on a wide screen."""
    page = show(Visibility(length=128, n_global=32, n_random=32, n_layers=12), width=width).page
    expect(page.locator(".txw-readout")).to_contain_text("Visible:")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    panels = page.locator(".txw-panel")
    for panel in panels.all():
        inside, outside = panel.locator(".txw-figure svg").bounding_box(), panel.bounding_box()
        assert inside is not None
        assert outside is not None
        assert inside["x"] + inside["width"] <= outside["x"] + outside["width"] + 1
