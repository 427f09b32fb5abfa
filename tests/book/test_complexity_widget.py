"""The complexity widget in Chromium: its numbers are the library's, and every control works."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tx_from_scratch.widgets import Complexity

pytestmark = pytest.mark.browser

GRID = """({ costs, crossovers }) => (grid) =>
    grid.map((settings) => ({ costs: costs(settings), crossovers: crossovers(settings) }))"""


def settings_grid() -> list[Complexity]:
    """Sizes at both ends and between, powers of the kernel among the lengths, with every switch both ways."""
    sizes = [
        (16, 64, 1, 8, 1),
        (125, 65, 5, 125, 7),  # 5³: logarithms of floating point would say four layers
        (126, 500, 5, 4096, 8),
        (1024, 512, 2, 100, 16),
        (29_791, 768, 31, 29, 12),  # 31³
        (131_072, 8192, 31, 4096, 128),
    ]
    options = itertools.product([False, True], ["plain", "GRU", "LSTM"], [False, True], [False, True])
    return [
        Complexity(
            length=length,
            d_model=d_model,
            kernel_size=kernel_size,
            n_neighbors=n_neighbors,
            n_heads=n_heads,
            projections=projections,
            cell=cell,
            dilated=dilated,
            materialized=materialized,
        )
        for projections, cell, dilated, materialized in options
        for length, d_model, kernel_size, n_neighbors, n_heads in sizes
    ]


def test_browser_computes_what_the_library_does(compute: Callable[..., Any]) -> None:
    """Every count exactly, whole numbers that they are, and every crossover."""
    widgets = settings_grid()
    computed = compute(Complexity, GRID, [widget.settings() for widget in widgets])
    for widget, browser in zip(widgets, computed, strict=True):
        for cost, wanted in zip(browser["costs"], widget.costs().values(), strict=True):
            assert cost == vars(wanted), widget
        assert browser["crossovers"] == dict(widget.crossovers()), widget


def with_prefix(value: float) -> str:
    """Three digits and a decimal prefix, as the table writes them."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if value < 999.5 or prefix == "P":
            return f"{float(f'{value:.3g}'):,g} {prefix}"
        value /= 1000
    raise AssertionError


def test_prefixes(compute: Callable[..., Any]) -> None:
    """Also just below and above a power of a thousand."""
    values = [0, 1, 999, 999.4, 999.5, 1000, 1234, 999_499, 999_500, 4.29e9, 5.6e14, 7.2e16]
    shown = compute(Complexity, "({ withPrefix }) => (values) => values.map(withPrefix)", values)
    assert shown == [with_prefix(value) for value in values]
    assert shown[-3:] == ["4.29 G", "560 T", "72 P"]


def shows(page: Page, **settings: Any) -> None:
    """Table and read-out give the library's figures for these settings."""
    widget = Complexity(**settings)
    scale = {"fp32": 4, "bf16": 2}[widget.number_format]
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(5)
    for index, cost in enumerate(widget.costs().values()):
        wanted = [
            with_prefix(cost.flops).strip(),
            f"{with_prefix(scale * cost.activations)}B",
            f"{cost.sequential:,}",
            "∞" if cost.path is None else f"{cost.path:,}",
        ]
        figures: Locator = rows.nth(index + 1).locator("td > span")
        expect(figures).to_have_text(wanted)
    crossovers = widget.crossovers()
    readout = page.locator(".txw-readout")

    def below(name: str) -> str:
        value = crossovers[name]
        return "at no length" if value is None else f"below n = {value:,g}"

    cell = {"plain": "a plain recurrence", "GRU": "a GRU", "LSTM": "an LSTM"}[widget.cell]
    expect(readout).to_contain_text(f"It takes fewer than {cell} {below('recurrence')}, fewer than")
    expect(readout).to_contain_text(f"with k = {widget.kernel_size} {below('convolution')}. ")
    if widget.projections:
        expect(readout).to_contain_text(f"outweigh from n = 2d = {2 * widget.d_model:,} on.")
    else:
        expect(readout).to_contain_text("without its projections, which would add")
    weights = crossovers["weights"]
    if weights is None:
        expect(readout).not_to_contain_text("Its weights")
    else:
        expect(readout).to_contain_text(f"than all else from n = {math.ceil(weights):,} on.")


def test_controls_change_what_is_shown(show: Callable[..., Any]) -> None:
    """Every slider, typed value, switch and choice by keyboard, each with the library's numbers."""
    visited = show(Complexity())
    page = visited.page
    shows(page)
    settings: dict[str, Any] = {}
    for label, name, key, value in (
        ("length n", "length", "End", 131_072),
        ("width d", "d_model", "Home", 64),
        ("kernel k", "kernel_size", "Home", 1),
        ("neighbors r", "n_neighbors", "End", 4096),
        ("heads h", "n_heads", "End", 128),
        ("kernel k", "kernel_size", "End", 31),
        ("length n", "length", "Home", 16),
    ):
        page.get_by_role("slider", name=label).press(key)
        settings[name] = value
        shows(page, **settings)
    for label, name, typed, taken in (
        ("length n", "length", "1000", 1000),
        ("length n", "length", "15", 16),
        ("width d", "d_model", "300", 300),
        ("heads h", "n_heads", "2.5", 3),
        ("kernel k", "kernel_size", "5", 5),
    ):
        page.get_by_role("spinbutton", name=label).fill(typed)
        page.get_by_role("spinbutton", name=label).press("Tab")  # then the nearest that it can be
        settings[name] = taken
        shows(page, **settings)
    for label, name in (
        ("count the projections", "projections"),
        ("dilated", "dilated"),
        ("attention weights kept", "materialized"),
    ):
        page.get_by_role("checkbox", name=label).press("Space")
        settings[name] = False
        shows(page, **settings)
    page.get_by_role("radio", name="LSTM").press("ArrowLeft")
    settings["cell"] = "GRU"
    shows(page, **settings)
    page.get_by_role("radio", name="fp32").press("ArrowRight")
    settings["number_format"] = "bf16"
    shows(page, **settings)
    assert visited.errors == []
    assert visited.foreign == []


def test_table_is_a_table(show: Callable[..., Any]) -> None:
    """Headers for columns and rows, changed in place; what is least is stressed."""
    page = show(Complexity(length=1024, d_model=512, kernel_size=3)).page
    headers = page.get_by_role("columnheader")
    expect(headers).to_have_text(["Layer", "FLOPs", "Kept", "Sequential", "Longest path"])
    expect(page.get_by_role("rowheader")).to_have_count(4)
    expect(page.get_by_role("rowheader").locator("span")).to_have_text(
        ["Self-attention", "Recurrence", "Convolution", "Attention to neighbors"]
    )
    first = page.get_by_role("rowheader").first.element_handle()
    expect(page.get_by_role("row").nth(3).locator("td").first).to_have_attribute("data-best", "")
    page.get_by_role("spinbutton", name="length n").fill("64")
    shows(page, length=64, d_model=512, kernel_size=3)
    assert first is not None
    assert first.evaluate("node => node.isConnected")


def test_plots_mark_where_costs_meet(show: Callable[..., Any]) -> None:
    """A point for every crossover inside the plot, and what is shown in words."""
    page = show(Complexity(d_model=512, cell="LSTM", n_neighbors=128, kernel_size=3)).page
    flops, memory = (
        page.get_by_role("img", name=name) for name in ("FLOPs over length", "Memory over length")
    )
    expect(flops.locator("circle")).to_have_count(2)  # the LSTM at 1024, the neighbors at 128
    expect(memory.locator("circle")).to_have_count(2)  # the LSTM at 192, the neighbors at 128
    expect(flops).to_have_accessible_name(re.compile("self-attention 4.29 G, LSTM 4.29 G, convolution"))
    page.get_by_role("radio", name="LSTM").press("ArrowRight")  # around to the plain one
    expect(flops.locator("circle")).to_have_count(1)
    expect(memory.locator("circle")).to_have_count(1)
    page.get_by_role("checkbox", name="attention weights kept").press("Space")
    expect(memory.locator("circle")).to_have_count(0)


@pytest.mark.parametrize(
    "settings",
    [
        {"length": 16, "d_model": 64, "kernel_size": 1, "n_neighbors": 8, "n_heads": 1, "cell": "plain"},
        {"length": 131_072, "d_model": 8192, "kernel_size": 31, "n_neighbors": 4096, "n_heads": 128},
    ],
)
def test_extremes_are_drawn(show: Callable[..., Any], settings: dict[str, Any]) -> None:
    """On a phone, in the dark, at both ends of every setting: no error, no NaN, nothing too wide."""
    visited = show(Complexity(**settings), width=390, dark=True)
    shows(visited.page, **settings)
    assert "NaN" not in visited.page.locator(".txw").inner_html()
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 390
    region = visited.page.get_by_role("region", name="Cost of the four layers")
    assert region.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert visited.errors == []
