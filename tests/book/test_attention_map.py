"""The attention map in Chromium: every control by pointer, keyboard and touch, from 1 token to 2,000."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets
import numpy as np
import pytest
import torch
from attention_examples import names, softmax
from playwright.sync_api import Locator, Page, expect
from torch import Tensor

from tx_from_scratch.widgets import AttentionMap

pytestmark = pytest.mark.browser


def single_cells(layers: int, heads: int, rows: int, columns: int) -> Tensor:
    """Each head looks at one key from one query, another pair in every head: nothing in them is symmetric."""
    weights = torch.zeros(layers, heads, rows, columns)
    for layer in range(layers):
        for head in range(heads):
            weights[layer, head, (2 * layer + head + 1) % rows, (layer + 3 * head) % columns] = 1
    return weights


def widget_parts(page: Page) -> tuple[Locator, Locator, Locator, Locator]:
    """The grid of heads, the large map, the text below it, and the read-out."""
    grid = page.get_by_role("application", name="Heads; arrow keys choose one")
    large = page.get_by_role("application", name="Attention weights; arrow keys move a cursor")
    return grid, large, page.locator(".txw-attention-cursor"), page.locator(".txw-readout")


def cell(area: Locator, row: float, column: float, rows: int, columns: int) -> dict[str, float]:
    """The middle of a cell, from the upper left corner of what is divided into them."""
    box = area.bounding_box()
    assert box is not None
    return {"x": (column + 0.5) * box["width"] / columns, "y": (row + 0.5) * box["height"] / rows}


def turn(page: Page | Locator, view: str) -> None:
    """Choose a view by its label."""
    page.locator(".txw-options").get_by_text(view, exact=True).click()


COLORS = """(canvas, [rows, columns]) => {
    const context = canvas.getContext("2d");
    return Array.from({ length: rows }, (_, row) => Array.from({ length: columns }, (_, column) => {
        const [x, y] = [(column + 0.5) * canvas.width / columns, (row + 0.5) * canvas.height / rows];
        return [...context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data].slice(0, 3).join(" ");
    }));
}"""


def bright(canvas: Locator, rows: int, columns: int) -> list[tuple[int, int]]:
    """The cells that have another color than most."""
    colors = canvas.evaluate(COLORS, [rows, columns])
    flat = [color for row in colors for color in row]
    ground = max(set(flat), key=flat.count)
    return [(index // columns, index % columns) for index, color in enumerate(flat) if color != ground]


def test_every_head_is_drawn_where_it_belongs(show: Callable[..., Any]) -> None:
    """Layers down, heads across, queries down, keys across; no head shows anything of another."""
    layers, heads, rows, columns = 2, 3, 4, 7
    weights = single_cells(layers, heads, rows, columns)
    visited = show(AttentionMap(weights, names(rows), names(columns, "k")))
    grid, large, _, readout = widget_parts(visited.page)
    wanted = [
        (layer * rows + row, head * columns + column)
        for layer in range(layers)
        for head in range(heads)
        for row, column in weights[layer, head].nonzero().tolist()
    ]
    assert sorted(bright(grid, layers * rows, heads * columns)) == sorted(wanted)
    for layer in range(layers):
        for head in range(heads):
            grid.click(position=cell(grid, layer, head, layers, heads))
            expect(readout).to_contain_text(f"Layer {layer}, head {head}, 4 × 7")
            assert bright(large, rows, columns) == [
                tuple(place) for place in weights[layer, head].nonzero().tolist()
            ]
    assert visited.errors == []


def test_controls_change_what_is_shown(show: Callable[..., Any]) -> None:
    """Lists, grid and choices by keyboard; original numbers in all texts; figures are the library's."""
    weights = softmax(5, 4, 6, 9)
    widget = AttentionMap(weights, names(6), names(9, "k"), layers=[1, 4], heads=[0, 2, 3])
    visited = show(widget)
    page = visited.page
    grid, _, _, readout = widget_parts(page)
    group = page.get_by_role("group", name="Attention map")

    def shows(layer: int, head: int) -> None:
        here = widget.statistics(layer, head)
        query, key = here.brightest
        expect(readout).to_contain_text(f"Layer {[1, 4][layer]}, head {[0, 2, 3][head]}, 6 × 9: entropy ")
        expect(readout).to_contain_text(f"entropy {here.entropy:.3g} of 2.2 nats")
        expect(readout).to_contain_text(f"diagonal share {here.diagonal_share:.3g}, ")
        expect(readout).to_contain_text(f"t{query} ({query}) → k{key} ({key}): {here.largest:.3g}.")

    shows(0, 0)
    grid.press("ArrowRight")
    shows(0, 1)
    expect(page.locator(".txw-cursor").first).to_contain_text("Layer 1, head 2: entropy")
    grid.press("ArrowDown")
    shows(1, 1)
    grid.press("End")
    shows(1, 2)
    grid.press("ArrowRight")  # nothing is there
    shows(1, 2)
    grid.press("Home")
    shows(1, 0)
    group.get_by_label("layer", exact=True).select_option("layer 1")
    shows(0, 0)
    group.get_by_label("head", exact=True).select_option("head 3")
    shows(0, 2)
    expect(page.locator(".txw-legend")).to_contain_text(f"{widget.statistics(0, 2).largest:.3g}")
    group.get_by_role("radio", name="each map").press("ArrowRight")
    expect(page.locator(".txw-legend")).to_have_text("weight 01")
    group.get_by_role("radio", name="map", exact=True).press("ArrowRight")
    expect(page.get_by_role("listbox", name="query tokens")).to_be_visible()
    shows(0, 2)
    expect(page.get_by_role("status")).to_contain_text("Layer 1, head 3")
    assert visited.errors == []
    assert visited.foreign == []


def test_map_shows_a_weight_its_row_and_its_column(show: Callable[..., Any]) -> None:
    """By pointer and by keyboard, on cells and on tokens beside the map; a click stays, Escape lets go."""
    widget = AttentionMap(softmax(1, 1, 4, 7), names(4), names(7, "k"))
    weights = widget.maps[0, 0]
    visited = show(widget)
    page = visited.page
    _, large, cursor, readout = widget_parts(page)

    def shows(query: int, key: int) -> None:
        if query >= 0 and key >= 0:
            expect(cursor).to_contain_text(
                f"t{query} ({query}) → k{key} ({key}): {weights[query, key]:.3g}. "
            )
        if query >= 0:
            best = int(weights[query].argmax())
            expect(cursor).to_contain_text(
                f"Query t{query} ({query}) looks most at k{best} ({best}) {weights[query, best]:.3g}"
            )
        if key >= 0:
            best = int(weights[:, key].argmax())
            expect(cursor).to_contain_text(
                f"Key k{key} ({key}) is looked at most by t{best} ({best}) {weights[best, key]:.3g}"
            )

    hint = "Point at a cell or a token"
    expect(cursor).to_contain_text(hint)
    large.hover(position=cell(large, 2, 5, 4, 7))
    shows(2, 5)
    box = large.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] - 8, box["y"] + 1.5 * box["height"] / 4)  # the token beside row 1
    shows(1, -1)
    expect(cursor).not_to_contain_text("Key")
    page.mouse.move(
        box["x"] + 3.5 * box["width"] / 7, box["y"] + box["height"] + 8
    )  # the token below column 3
    shows(-1, 3)
    expect(cursor).not_to_contain_text("Query")
    page.mouse.move(2, 2)
    expect(cursor).to_contain_text(hint)
    large.click(position=cell(large, 3, 6, 4, 7))
    page.mouse.move(2, 2)
    shows(3, 6)
    expect(readout).to_contain_text("t3 (3) → k6 (6)")  # for the screen reader
    large.press("ArrowUp")
    shows(2, 6)
    large.press("ArrowRight")  # the last one already
    shows(2, 6)
    large.press("Home")
    shows(2, 0)
    large.press("Escape")
    expect(cursor).to_contain_text(hint)
    large.press("ArrowDown")
    shows(0, 0)
    large.click(position=cell(large, 1, 1, 4, 7))
    large.click(position=cell(large, 1, 1, 4, 7))  # again: let go
    page.mouse.move(2, 2)
    expect(cursor).to_contain_text(hint)
    assert visited.errors == []


def line_count(page: Page) -> int:
    """Lines drawn between the columns; the first path holds bars."""
    return page.locator(".txw-lines-drawing path:not(:first-child)").evaluate_all(
        "(paths) => paths.reduce((sum, path) => sum + path.getAttribute('d').split('L').length - 1, 0)"
    )


def test_lines_of_one_token(show: Callable[..., Any]) -> None:
    """Without a token all lines, with one only its own: pointed at, clicked, and by arrow keys."""
    widget = AttentionMap(torch.full((1, 1, 4, 7), 1 / 7), names(4), names(7, "k"), view="lines")
    visited = show(widget)
    page = visited.page
    _, _, cursor, _ = widget_parts(page)
    queries = page.get_by_role("listbox", name="query tokens")
    keys = page.get_by_role("listbox", name="key tokens")
    assert queries.get_by_role("option").all_inner_texts() == names(4)
    assert keys.get_by_role("option").all_inner_texts() == names(7, "k")
    assert line_count(page) == 28
    queries.get_by_role("option").nth(2).hover()
    assert line_count(page) == 7
    expect(cursor).to_contain_text("Query t2 (2) looks most at k0 (0) 0.143")
    keys.get_by_role("option").nth(5).hover()
    assert line_count(page) == 4
    expect(cursor).to_contain_text("Key k5 (5) is looked at most by t0 (0) 0.143")
    page.mouse.move(2, 2)
    assert line_count(page) == 28
    keys.get_by_role("option").nth(1).click()
    page.mouse.move(2, 2)
    assert line_count(page) == 4
    expect(keys.get_by_role("option", selected=True)).to_have_text("k1")
    keys.press("ArrowDown")
    expect(keys.get_by_role("option", selected=True)).to_have_text("k2")
    active = keys.get_attribute("aria-activedescendant")
    expect(page.locator(f"#{active}")).to_have_text("k2")
    keys.press("ArrowLeft")
    expect(queries).to_be_focused()
    queries.press("End")
    expect(queries.get_by_role("option", selected=True)).to_have_text("t3")
    expect(keys.get_by_role("option", selected=True)).to_have_count(0)
    assert line_count(page) == 7
    queries.press("Escape")
    assert line_count(page) == 28
    assert visited.errors == []


def test_faint_lines_are_counted(show: Callable[..., Any]) -> None:
    """What is too weak to be seen is not drawn, and said."""
    weights = torch.tensor([[0.9, 0.099, 0.001], [0.5, 0.5, 0.0]])[None, None]
    page = show(AttentionMap(weights, names(2), names(3), view="lines")).page
    assert line_count(page) == 4
    expect(page.locator(".txw-attention-cursor")).to_contain_text(
        "The 4 strongest lines; 1 hidden, of at most 0.00101 each, 0.05 % of the weight together."
    )


def test_a_window_keeps_tokens_at_one_height(show: Callable[..., Any]) -> None:
    """Attention to oneself is level, also where only some of the queries are shown."""
    weights = torch.eye(40)[None, None]
    page = show(AttentionMap(weights, names(40), queries=slice(10, 20), view="lines")).page
    drawn = page.locator(".txw-lines-drawing path").last.get_attribute("d")
    assert drawn is not None
    ends = [[point.split()[1] for point in line.split("L")] for line in drawn.split("M")[1:]]
    assert ends == [[f"{24 * query + 12}"] * 2 for query in range(10, 20)]
    own, other = (page.get_by_role("option", name="t12").nth(side).bounding_box() for side in (0, 1))
    assert own is not None
    assert other is not None
    assert own["y"] == other["y"]


def test_two_thousand_tokens(show: Callable[..., Any]) -> None:
    """A window of a long sequence: drawn in both views, and what is hidden is counted."""
    weights = torch.randn(1, 1, 2000, 2000).mul(3).tril().softmax(-1)
    widget = AttentionMap(weights, names(2000), queries=slice(900, 1080))
    visited = show(widget)
    page = visited.page
    _, large, cursor, readout = widget_parts(page)
    expect(readout).to_contain_text("180 × 2,000")
    expect(readout).to_contain_text("A window into 2,000 queries and 2,000 keys.")
    expect(cursor).to_contain_text("More cells than pixels: a pixel shows the largest weight of its cells.")
    turn(page, "lines")
    expect(cursor).to_contain_text("The 1,500 strongest lines; ")
    assert line_count(page) == 1500
    hidden = int((np.frombuffer(widget._weights, "<u2") > 0).sum()) - 1500
    expect(cursor).to_contain_text(f"{hidden:,} hidden, of at most ")
    # Places are those in the whole sequence. The box scrolls to the first query, then to the one chosen.
    queries = page.get_by_role("listbox", name="query tokens")
    expect(queries.get_by_role("option").first).to_be_in_viewport()
    queries.press("End")
    expect(queries.get_by_role("option", selected=True)).to_be_in_viewport()
    best = int(widget.maps[0, 0, 179].argmax())
    expect(cursor).to_contain_text(f"Query t1079 (1079) looks most at t{best} ({best})")
    assert page.locator(".txw-scroll").bounding_box()["height"] <= 440  # type: ignore[index]
    turn(page, "map")
    expect(large).to_be_visible()
    assert visited.errors == []


@pytest.mark.parametrize("weights", [torch.ones(1, 1, 1, 1), torch.zeros(2, 2, 1, 1)])
def test_one_token(weights: Tensor, show: Callable[..., Any]) -> None:
    """One cell, one line or, where nothing may be attended to, none."""
    visited = show(AttentionMap(weights, ["<only>"]))
    page = visited.page
    _, large, cursor, readout = widget_parts(page)
    expect(readout).to_contain_text("1 × 1: entropy 0 of 0 nats")
    large.press("ArrowDown")
    expect(cursor).to_contain_text(f"<only> (0) → <only> (0): {int(weights.max())}.")
    turn(page, "lines")
    assert line_count(page) == int(weights.max())
    assert visited.errors == []


def test_linked_maps(show: Callable[..., Any]) -> None:
    """Traits of two maps can be linked; a value that one of them lacks takes its nearest."""
    small = AttentionMap(softmax(2, 2, 3, 3), names(3))
    large = AttentionMap(softmax(2, 4, 5, 5), names(5))
    links = [
        ipywidgets.jslink((small, name), (large, name)) for name in ("layer", "head", "query", "key", "view")
    ]
    page = show(small, large).page
    groups = page.get_by_role("group", name="Attention map")
    groups.nth(1).get_by_label("head", exact=True).select_option("head 3")
    expect(groups.nth(1).locator(".txw-readout")).to_contain_text("Layer 0, head 3, 5 × 5")
    expect(groups.nth(0).locator(".txw-readout")).to_contain_text("Layer 0, head 1, 3 × 3")
    groups.nth(1).get_by_role("application").last.press("ArrowDown")
    expect(groups.nth(0).locator(".txw-attention-cursor")).to_contain_text("t0 (0) → t0 (0)")
    turn(groups.nth(0), "lines")
    expect(groups.nth(1).get_by_role("listbox", name="query tokens")).to_be_visible()
    for link in links:
        link.unlink()


def test_phone(show: Callable[..., Any]) -> None:
    """On 390 pixels nothing overflows, and fingers choose heads, cells and tokens."""
    weights = softmax(2, 4, 9, 12)
    visited = show(AttentionMap(weights, names(9), names(12, "a rather long token ")), width=390)
    page = visited.page
    grid, large, cursor, readout = widget_parts(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    grid.tap(position=cell(grid, 1, 3, 2, 4))
    expect(readout).to_contain_text("Layer 1, head 3")
    large.tap(position=cell(large, 4, 7, 9, 12))
    expect(cursor).to_contain_text("t4 (4) → a rather long token 7 (7)")
    turn(page, "lines")
    page.get_by_role("listbox", name="query tokens").get_by_role("option").nth(2).tap()
    expect(cursor).to_contain_text("Query t2 (2) looks most at")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visited.errors == []


def test_dark(show: Callable[..., Any]) -> None:
    """In the dark zero is dark and the largest weight is light, in the grid as in the large map."""
    weights = single_cells(1, 2, 4, 7)
    for dark in (False, True):
        page = show(AttentionMap(weights, names(4), names(7)), dark=dark).page
        _, large, _, _ = widget_parts(page)
        colors = [[sum(map(int, color.split())) for color in row] for row in large.evaluate(COLORS, [4, 7])]
        row, column = weights[0, 0].nonzero()[0].tolist()
        assert (colors[row][column] > 600) == dark
        assert (colors[row - 1][column] > 600) != dark
