"""The sinusoidal table widget in Chromium: its numbers are the library's, and every control works."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Locator, expect
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from tx_from_scratch.positions import sinusoidal_table
from tx_from_scratch.widgets import SinusoidalTable
from tx_from_scratch.widgets.sinusoidal_table import EXPONENTS, exact_table, frequencies, much_copied_table

pytestmark = pytest.mark.browser

GRID = """({ sinusoids, similarities, rotations }) => (grid) => grid.map((settings) => {
    const table = sinusoids(settings);
    const { matrix, squaredNorm, spread, lowest } = similarities(table, settings.length);
    const turns = rotations(table.values, settings);
    return { ...table, ...turns, matrix, squaredNorm, spread, lowest };
})"""


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize(("d_model", "length"), [(2, 8), (7, 37), (64, 256), (255, 33), (256, 256)])
def test_browser_computes_what_the_library_does(
    compute: Callable[..., Any], exponent: str, d_model: int, length: int
) -> None:
    """Table, products, rotations and every figure of the read-out, for several bases and offsets."""
    grid: list[dict[str, Any]] = [
        {"d_model": d_model, "length": length, "base": base, "exponent": exponent, "offset": offset}
        for base, offset in ((100.0, 1), (10_000.0, 8), (1_000_000.0, 64))
    ]
    for settings, browser in zip(grid, compute(SinusoidalTable, GRID, grid), strict=True):
        base, offset = settings["base"], settings["offset"]
        table = browser["values"].reshape(-1, d_model)
        exact = exact_table(np.arange(length + 64.0), d_model, base, exponent)
        np.testing.assert_allclose(table, exact, atol=1e-12)  # 320 turns in a row lose three digits of 15
        library = sinusoidal_table if exponent == "paper" else much_copied_table
        np.testing.assert_allclose(
            table[:length], library(torch.arange(length), d_model, base=base), atol=1e-6
        )
        products = exact[:length] @ exact[:length].T
        np.testing.assert_allclose(browser["matrix"].reshape(length, length), products, atol=1e-5)
        assert browser["lowest"] == pytest.approx(products.min(), abs=1e-9)
        facts = SinusoidalTable().measure(**settings)
        np.testing.assert_allclose(browser["wavelengths"], facts.wavelengths, rtol=1e-12)
        assert browser["nearlyConstant"] == facts.nearly_constant, (settings, offset)
        assert browser["squaredNorm"] == pytest.approx(facts.squared_norm, abs=1e-9)
        assert browser["spread"] == pytest.approx(facts.similarity_spread, abs=1e-9)
        np.testing.assert_allclose(np.exp(1j * browser["angles"]), np.exp(1j * facts.angles), atol=1e-9)
        np.testing.assert_allclose(browser["errors"], facts.errors, atol=1e-9)


def test_table_is_transformers(compute: Callable[..., Any]) -> None:
    """Marian's table has all sines first, then all cosines."""
    settings = {"d_model": 48, "length": 200, "base": 10_000.0, "exponent": "paper"}
    table = compute(SinusoidalTable, "sinusoids", settings)["values"].reshape(-1, 48)
    marian = MarianSinusoidalPositionalEmbedding(264, 48)
    theirs = marian.create_weight().detach()  # type: ignore[no-untyped-call]
    np.testing.assert_allclose(np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1), theirs, atol=1e-6)


def test_papers_rotation_is_exact(compute: Callable[..., Any]) -> None:
    """k times the frequency, whatever the position, up to rounding; no such thing for the copied exponent."""
    settings = {"d_model": 64, "length": 256, "base": 10_000.0, "offset": 21}
    right, wrong = compute(SinusoidalTable, GRID, [{**settings, "exponent": name} for name in EXPONENTS])
    wanted = np.exp(21j * frequencies(64, 10_000.0, "paper")[::2])
    np.testing.assert_allclose(np.exp(1j * right["angles"]), wanted, atol=1e-12)
    assert right["errors"].max() < 1e-12
    assert right["spread"] == 0
    assert (right["nearlyConstant"], wrong["nearlyConstant"]) == (9, 36)
    assert wrong["errors"].max() > 1


def shown(value: float, digits: int = 3) -> str:
    """A number of the table's size as the read-out writes it."""
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{float(mantissa):g}·10{raised}"
    return f"{float(f'{value:.{digits}g}'):,.6f}".rstrip("0").rstrip(".")


def says(readout: Locator, **settings: Any) -> None:
    """The read-out gives the library's figures for these settings."""
    widget = SinusoidalTable(**settings)
    facts = widget.measure()
    _, pair = widget.place
    expect(readout).to_contain_text(
        f"Wavelengths from 6.28 to {shown(facts.wavelengths[-1])} positions; "
        f"{facts.nearly_constant} of {widget.d_model} columns are nearly constant."
    )
    angle = shown(math.degrees(facts.angles[pair]) % 360)
    expect(readout).to_contain_text(f"k = {widget.offset} turns pair {pair} by {angle}°")
    low, high = facts.squared_norm
    if widget.exponent == "much-copied":
        expect(readout).to_contain_text(f"‖PE(p)‖² runs from {shown(low, 4)} to {shown(high, 4)},")
        here, worst = shown(facts.errors[pair], 2), shown(facts.errors.max(), 2)
        expect(readout).to_contain_text(f"off by up to {here}; the worst pair is off by {worst}.")
        expect(readout).to_contain_text(f"differs by up to {shown(facts.similarity_spread, 2)} at the same")
    else:
        expect(readout).to_contain_text("the worst pair is off by ")
        expect(readout.locator("strong").last).to_contain_text("·10⁻¹")  # 1e-10 or less


def test_controls_change_what_is_shown(show: Callable[..., Any]) -> None:
    """Exponent, sliders, typed values: each by keyboard, each with the library's numbers."""
    visited = show(SinusoidalTable())
    widget = visited.page.get_by_role("group", name="Sinusoidal table")
    readout = widget.locator(".txw-readout")
    says(readout)
    expect(readout).to_contain_text("‖PE(p)‖² is 32 everywhere")
    settings: dict[str, Any] = {"exponent": "much-copied"}
    widget.get_by_role("radio", name="paper").press("ArrowRight")
    says(readout, **settings)
    for label, name, key, value in (
        ("positions", "length", "End", 256),
        ("width d", "d_model", "Home", 2),
        ("width d", "d_model", "End", 256),
        ("base", "base", "Home", 100.0),
        ("pair of columns i", "pair", "End", 127),
        ("offset k", "offset", "End", 64),
        ("position p", "position", "End", 255),
    ):
        widget.get_by_role("slider", name=label).press(key)
        settings[name] = value
        says(readout, **settings)
    for label, name, typed, taken in (
        ("base", "base", "1234.5", 1234.5),
        ("width d", "d_model", "63", 63),
        ("width d", "d_model", "513", 256),
        ("positions", "length", "100", 100),
        ("positions", "length", "7.5", 8),
        ("offset k", "offset", "0", 1),
    ):
        widget.get_by_role("spinbutton", name=label).fill(typed)
        widget.get_by_role("spinbutton", name=label).press("Tab")  # then the nearest that it can be
        settings[name] = taken
        says(readout, **settings)
    assert visited.errors == []
    assert visited.foreign == []


def test_sliders_end_where_the_table_ends(show: Callable[..., Any]) -> None:
    """Position and pair show no more than there is, and come back when there is more again."""
    visited = show(SinusoidalTable(length=256, position=200, pair=30))
    page = visited.page
    position = page.get_by_role("spinbutton", name="position p")
    expect(position).to_have_value("200")
    page.get_by_role("spinbutton", name="positions").fill("50")
    expect(position).to_have_value("49")
    expect(position).to_have_attribute("max", "49")
    expect(page.get_by_role("slider", name="position p")).to_have_value("49")
    page.get_by_role("spinbutton", name="width d").fill("8")
    expect(page.get_by_role("spinbutton", name="pair of columns i")).to_have_value("3")
    page.get_by_role("spinbutton", name="positions").fill("256")
    expect(position).to_have_value("200")
    expect(position).to_have_js_property("validity.valid", True)
    assert visited.errors == []


def test_cursor_tells_value_and_wavelength(show: Callable[..., Any]) -> None:
    """By arrow keys and by pointer; the read-out follows, and Enter makes the cell the chosen one."""
    visited = show(SinusoidalTable(exponent="much-copied", d_model=16, length=64))
    page = visited.page
    canvas = page.get_by_role("application", name="Table;")
    readout, under = page.locator(".txw-readout"), page.locator(".txw-cursor").first
    exact = exact_table(np.arange(64.0), 16, 10_000.0, "much-copied")
    wavelengths = 2 * math.pi / frequencies(16, 10_000.0, "much-copied")

    def at(row: int, column: int) -> None:
        value = shown(exact[row, column]).replace("-", "−")
        expect(under).to_have_text(
            f"p = {row}, c = {column}: {value}; wavelength {shown(wavelengths[column])} positions"
        )
        expect(readout).to_contain_text(f"turns pair {column // 2} by")

    canvas.press("ArrowDown")
    at(0, 0)
    for _ in range(3):
        canvas.press("ArrowDown")
        canvas.press("ArrowRight")
    at(3, 3)
    canvas.press("Enter")
    expect(page.get_by_role("spinbutton", name="position p")).to_have_value("3")
    expect(page.get_by_role("spinbutton", name="pair of columns i")).to_have_value("1")
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 10.5 / 16, box["y"] + box["height"] * 40.5 / 64)
    at(40, 10)
    page.mouse.move(0, 0)
    expect(readout).to_contain_text("turns pair 1 by")
    matrix = page.get_by_role("application", name="Similarity matrix")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        matrix.press(key)
    expect(page.locator(".txw-cursor").nth(1)).to_have_text(
        f"p = 0, q = 2, p − q = −2: {shown(exact[0] @ exact[2], 4)}"
    )
    assert visited.errors == []


@pytest.mark.parametrize(
    "settings",
    [
        {"d_model": 2, "length": 8, "position": 255, "pair": 127, "offset": 64},
        {"d_model": 7, "length": 9, "base": 1_000_000.0, "exponent": "much-copied"},
        {"d_model": 255, "length": 256, "base": 100.0},
    ],
)
def test_extremes_are_drawn(show: Callable[..., Any], settings: dict[str, Any]) -> None:
    """On a phone, in the dark, at both ends of every setting: no error, no NaN, nothing too wide."""
    visited = show(SinusoidalTable(**settings), width=390, dark=True)
    readout = visited.page.locator(".txw-readout")
    says(readout, **settings)
    expect(readout).not_to_contain_text("NaN")
    assert "NaN" not in visited.page.locator(".txw").inner_html()
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visited.errors == []
