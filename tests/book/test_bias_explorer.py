"""The bias explorer in Chromium: its numbers are the library's, and every control works."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Locator, expect
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

from tx_from_scratch.positions import alibi_slopes, t5_bucket
from tx_from_scratch.widgets import BiasExplorer

pytestmark = pytest.mark.browser

REACH = 511
ALL = torch.arange(-REACH, REACH + 1)
SCHEMES = {"alibi": "ALiBi", "t5": "T5", "transformer_xl": "Transformer-XL", "shaw": "Shaw"}

GRID = """({ biases, used, attend, mapOf }) => (grid) => grid.map(({ settings, table }) => {
    const bias = biases(settings.scheme, table);
    const heads = bias.length / 1023;
    const counted = used(settings, heads);
    const { values, low, high } = mapOf(bias, counted);
    return { bias, counted, ...attend(bias, counted), values, low, high };
})"""


def tables() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Learned tables of different numbers of heads, the widest with as many sinusoids as a large model."""
    generator = np.random.default_rng(5)
    shapes = {"t5": (5, 32), "transformer_xl": (3, 1024), "shaw": (4, 33)}
    return {
        name: (generator.normal(size=shape) / shape[1] ** 0.3).astype(np.float32)
        for name, shape in shapes.items()
    }


def given(widget: BiasExplorer) -> dict[str, Any]:
    """The widget's settings and its table as the script's functions take them."""
    if widget.scheme == "alibi":
        return {"settings": widget.settings(), "table": widget.n_heads}
    values = widget.tables[widget.scheme]
    heads, columns = values.shape
    rule = {**widget._t5_rule, "n_buckets": columns}
    table = {"heads": heads, "columns": columns, "values": values.reshape(-1), "rule": rule}
    return {"settings": widget.settings(), "table": table}


def test_browser_computes_what_the_library_does(compute: Callable[..., Any]) -> None:
    """Biases, weights, keys that hold 90 %, the map and what counts, for every scheme and many sizes."""
    widgets = [
        BiasExplorer(
            **tables(),
            t5_bidirectional=not causal,
            scheme=scheme,
            n_heads=n_heads,
            head=head,
            length=length,
            causal=causal,
            query=query,
            key=key,
        )
        for scheme in SCHEMES
        for length, n_heads, head in ((8, 1, 15), (63, 12, 2), (512, 16, 1))
        for causal in (False, True)
        for query, key in ((0, 5), (40, 3), (511, 511))
    ]
    for widget, browser in zip(widgets, compute(BiasExplorer, GRID, list(map(given, widgets))), strict=True):
        name = repr(widget)
        bias = browser["bias"].reshape(widget.heads, -1)
        np.testing.assert_allclose(bias, widget.by_distance(ALL), atol=1e-5, rtol=0, err_msg=name)
        counted = browser["counted"]
        assert (counted["head"], counted["query"], counted["key"]) == widget.place
        weights = widget.weights()
        assert browser["keys"] == weights.shape[1]
        np.testing.assert_allclose(
            browser["weights"].reshape(weights.shape), weights, atol=1e-5, err_msg=name
        )
        assert browser["holding"].tolist() == widget.holding(), name
        shown = widget.bias().numpy()
        seen = np.isfinite(shown)
        assert browser["low"] == pytest.approx(shown[seen].min(), abs=1e-5)
        assert browser["high"] == pytest.approx(shown[seen].max(), abs=1e-5)
        shades = browser["values"].reshape(shown.shape).astype(float)
        assert (shades[~seen] == 255).all(), name
        extent = browser["high"] - browser["low"]
        back = browser["low"] + shades[seen] / 254 * extent
        np.testing.assert_allclose(back, shown[seen], atol=extent / 508 + 1e-5, err_msg=name)


def test_buckets_are_the_librarys_and_transformers(compute: Callable[..., Any]) -> None:
    """Both kinds of table, at many numbers of buckets and distances; every distance that can be shown."""
    rules = [
        {"bidirectional": bidirectional, "n_buckets": n_buckets, "max_distance": max_distance}
        for bidirectional, n_buckets, max_distance in itertools.product(
            [False, True], [4, 5, 7, 8, 20, 31, 32, 64, 128, 512], [65, 100, 128, 256, 512, 4096]
        )
        if max_distance > n_buckets // (4 if bidirectional else 2)
    ]
    called = """({ bucketOf }) => (rules, distances) =>
        rules.map((rule) => Int32Array.from(distances, (distance) => bucketOf(distance, rule)))"""
    computed = compute(BiasExplorer, called, rules, ALL.numpy().astype(np.int32))
    for rule, buckets in zip(rules, computed, strict=True):
        np.testing.assert_array_equal(buckets, t5_bucket(-ALL, **rule), err_msg=str(rule))
        theirs = T5Attention._relative_position_bucket(  # type: ignore[no-untyped-call]
            -ALL, rule["bidirectional"], rule["n_buckets"], rule["max_distance"]
        )
        np.testing.assert_array_equal(buckets, theirs, err_msg=str(rule))


def test_range_of_a_bucket_is_all_of_it(compute: Callable[..., Any]) -> None:
    """Every distance whose bucket is the same, and no other; infinite where it goes on for ever."""
    far = torch.arange(-2000, 2001)
    for bidirectional, max_distance in ((False, 128), (True, 128), (False, 1500), (True, 17)):
        rule = {"bidirectional": bidirectional, "n_buckets": 32, "max_distance": max_distance}
        called = (
            "({ bucketRange }) => (distances, rule) => Array.from(distances, (at) => bucketRange(at, rule))"
        )
        ranges = compute(BiasExplorer, called, ALL.numpy().astype(np.int32), rule)
        buckets = t5_bucket(-far, **rule)
        for distance, (low, high) in zip(ALL.tolist(), ranges, strict=True):
            same = far[buckets == buckets[far == distance]]
            assert (low, high) == (
                -np.inf if same[0] == far[0] else same[0],
                np.inf if same[-1] == far[-1] else same[-1],
            )


def test_slopes_are_the_librarys_and_blooms(compute: Callable[..., Any]) -> None:
    for n_heads, slopes in zip(
        range(1, 17),
        compute(BiasExplorer, "({ slopes }) => (counts) => counts.map(slopes)", list(range(1, 17))),
        strict=True,
    ):
        np.testing.assert_allclose(slopes, alibi_slopes(n_heads), rtol=1e-6)
        theirs = build_alibi_tensor(torch.ones(1, 2), n_heads, torch.float32)  # type: ignore[no-untyped-call]
        np.testing.assert_allclose(slopes, theirs[:, 0, 1], rtol=1e-6)


def shown(value: float) -> str:
    """A number as the read-out writes it."""
    if value != 0 and abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        text = f"{float(mantissa):g}·10{raised}"
    else:
        text = f"{value:.3g}"
    return text.replace("-", "−")


def says(readout: Locator, widget: BiasExplorer) -> None:
    """The read-out has the library's numbers for what the widget would show."""
    head, query, key = widget.place
    distance, weights, holding = query - key, widget.weights()[head], widget.holding()[head]
    bias = float(widget.by_distance(torch.tensor([distance]))[head])
    expect(readout).to_contain_text(f"{SCHEMES[widget.scheme]}, head {head}: ")
    far = f", farther than any pair of {widget.trained_length} training positions"
    signed = str(distance).replace("-", "−")
    expect(readout).to_contain_text(
        f"Query {query} and key {key}, distance {signed}: bias {shown(bias)}"
        f"{far if abs(distance) >= widget.trained_length else ''}. "
        f"If the scores were the bias alone, that key would get weight {shown(float(weights[key]))}, "
        f"the last one (key {len(weights) - 1}) {shown(float(weights[-1]))}; without a bias each of "
        f"{len(weights)} {'key' if len(weights) == 1 else 'keys'} gets {shown(1 / len(weights))}. "
        f"{holding} {'key holds' if holding == 1 else 'keys hold'} 90 % of the weight"
    )


def test_controls_change_what_is_shown(show: Callable[..., Any]) -> None:
    """Every control, by keyboard; the numbers are the library's after each."""
    expected = BiasExplorer(**tables())
    visited = show(BiasExplorer(**tables()))
    widget = visited.page.get_by_role("group", name="Position biases")
    readout = widget.locator(".txw-readout")
    says(readout, expected)
    expect(readout).to_contain_text("slope 0.5.")
    for label, name, key, value in (
        ("heads of ALiBi", "n_heads", "End", 16),
        ("head", "head", "ArrowRight", 1),
        ("positions", "length", "End", 512),
        ("key j", "key", "Home", 0),
        ("query i", "query", "Home", 0),
        ("query i", "query", "End", 511),
        ("trained length", "trained_length", "End", 512),
        ("trained length", "trained_length", "Home", 8),
        ("positions", "length", "Home", 8),
        ("heads of ALiBi", "n_heads", "Home", 1),
    ):
        widget.get_by_role("slider", name=label, exact=True).press(key)
        setattr(expected, name, value)
        says(readout, expected)
    for label, name, typed, taken in (
        ("positions", "length", "100", 100),
        ("positions", "length", "513", 512),
        ("query i", "query", "70.4", 70),
        ("key j", "key", "33", 33),
        ("heads of ALiBi", "n_heads", "-2", 1),
        ("heads of ALiBi", "n_heads", "12", 12),
        ("trained length", "trained_length", "30", 30),
    ):
        field = widget.get_by_role("spinbutton", name=label, exact=True)
        field.fill(typed)
        field.press("Tab")  # then the nearest that it can be
        setattr(expected, name, taken)
        says(readout, expected)
    widget.get_by_role("checkbox", name="causal").press("Space")
    expected.causal = False
    says(readout, expected)
    expect(readout).to_contain_text("of the weight, to both sides.")
    widget.get_by_role("spinbutton", name="key j").fill("90")
    expected.key = 90
    says(readout, expected)
    for scheme, text in (
        ("t5", "T5, head 1: bucket 0 of 32, shared by distances 0 and less."),
        ("transformer_xl", "Transformer-XL, head 1: a sum of 512 sines and as many cosines."),
        ("shaw", "Shaw, head 1: entry 16 of −16 to 16, the entry of all beyond 16."),
    ):
        widget.get_by_role("radio", checked=True).press("ArrowRight")
        expected.scheme = scheme
        says(readout, expected)
        expect(readout).to_contain_text(text)
        expect(widget.get_by_role("slider", name="heads of ALiBi")).to_be_hidden()
    widget.get_by_role("radio", name="ALiBi").press("Space")
    expect(widget.get_by_role("slider", name="heads of ALiBi")).to_be_visible()
    assert visited.errors == []
    assert visited.foreign == []


def test_readout_names_the_bucket(show: Callable[..., Any]) -> None:
    """The bucket of the pair looked at and all that share it, in a causal and in a bidirectional table."""
    options: dict[str, Any] = {"t5": tables()["t5"], "scheme": "t5", "length": 200, "query": 150}
    visited = show(
        BiasExplorer(**options, key=127), BiasExplorer(**options, t5_bidirectional=True, causal=False)
    )
    first, second = visited.page.locator(".txw").all()
    for root, key, text in (
        (first, 127, "bucket 18 of 32, shared by distances 21 to 23."),
        (first, 145, "bucket 5 of 32, shared by distance 5 alone."),
        (first, 37, "bucket 31 of 32, shared by distances 113 and more."),
        (second, 163, "bucket 25 of 32, shared by distances −15 to −12."),
        (second, 151, "bucket 17 of 32, shared by distance −1 alone."),
        (second, 59, "bucket 15 of 32, shared by distances 91 and more."),
        (second, 60, "bucket 14 of 32, shared by distances 64 to 90."),
    ):
        root.get_by_role("spinbutton", name="key j").fill(str(key))
        expect(root.locator(".txw-readout")).to_contain_text(text)
    second.get_by_role("spinbutton", name="query i").fill("0")
    expect(second.locator(".txw-readout")).to_contain_text("shared by distances −63 to −46.")
    assert visited.errors == []


def test_map_tells_what_is_under_the_cursor(show: Callable[..., Any]) -> None:
    """By arrow keys and pointer; Enter and a click choose the pair, for a hidden key the query's own."""
    visited = show(BiasExplorer(length=16, head=1))
    page = visited.page
    canvas = page.get_by_role("application", name="Bias;")
    under = page.locator(".txw-cursor")
    canvas.press("ArrowDown")
    for _ in range(3):
        canvas.press("ArrowDown")
    expect(under).to_have_text("query 3, key 0: distance 3, bias −0.75")
    canvas.press("Enter")
    query, key = (page.get_by_role("spinbutton", name=name) for name in ("query i", "key j"))
    expect(query).to_have_value("3")
    expect(key).to_have_value("0")
    box = canvas.bounding_box()
    assert box is not None
    cell = box["width"] / 16
    canvas.hover(position={"x": 12.5 * cell, "y": 5.5 * cell})
    expect(under).to_have_text("query 5, key 12: hidden, it comes later")
    canvas.click(position={"x": 12.5 * cell, "y": 5.5 * cell})
    expect(query).to_have_value("5")
    expect(key).to_have_value("5")
    canvas.click(position={"x": 2.5 * cell, "y": 14.5 * cell})
    says(page.locator(".txw-readout"), BiasExplorer(length=16, head=1, query=14, key=2))
    assert visited.errors == []


PIXELS = """(canvas, length) => Array.from({ length: length ** 2 }, (_, index) => {
    const side = canvas.width / length;
    const [x, y] = [(index % length) + 0.5, Math.floor(index / length) + 0.5];
    return [...canvas.getContext("2d").getImageData(x * side, y * side, 1, 1).data];
})"""


def test_map_is_painted(show: Callable[..., Any]) -> None:
    """One color for each distance, none for hidden keys; the legend has the two ends; in both themes."""
    for dark in (False, True):
        visited = show(BiasExplorer(length=12, n_heads=2), dark=dark)
        pixels = np.array(visited.page.locator("canvas").first.evaluate(PIXELS, 12)).reshape(12, 12, 4)
        query, key = np.indices((12, 12))
        assert (pixels[key > query][:, 3] == 0).all()
        for distance in range(12):
            diagonal = pixels[query - key == distance]
            assert (diagonal == diagonal[0]).all()
            assert diagonal[0, 3] == 255
        colors = [f"#{''.join(f'{part:02x}' for part in pixels[place][:3])}" for place in ((11, 0), (0, 0))]
        legend = visited.page.locator(".txw-legend").first
        assert [square.get_attribute("fill") for square in legend.locator("rect").all()[:2]] == colors
        lowest = shown(-11 * float(alibi_slopes(2)[0]))
        expect(legend.locator("span")).to_have_text([lowest, "0", "hidden: comes later"])
        assert len(np.unique(pixels[query >= key], axis=0)) == 12
        assert visited.errors == []


def test_sliders_end_where_there_is_no_more(show: Callable[..., Any]) -> None:
    """Head, query and key end at the last that there is, and come back when there is more again."""
    visited = show(BiasExplorer(n_heads=16, head=13, length=200, query=150, key=120))
    page = visited.page
    field = {
        name: page.get_by_role("spinbutton", name=name, exact=True) for name in ("head", "query i", "key j")
    }
    count, length = (page.get_by_role("spinbutton", name=name) for name in ("heads of ALiBi", "positions"))
    count.fill("4")
    length.fill("50")
    for name, last in (("head", "3"), ("query i", "49"), ("key j", "49")):
        expect(field[name]).to_have_value(last)
        expect(field[name]).to_have_attribute("max", last)
    says(page.locator(".txw-readout"), BiasExplorer(n_heads=4, head=13, length=50, query=150, key=120))
    count.fill("16")
    length.fill("200")
    for name, value in (("head", "13"), ("query i", "150"), ("key j", "120")):
        expect(field[name]).to_have_value(value)
    field["query i"].fill("30")
    expect(field["key j"]).to_have_value("30")
    page.get_by_role("checkbox", name="causal").press("Space")
    expect(field["key j"]).to_have_value("120")
    assert visited.errors == []


BLUE = """(canvas) => {
    const legend = canvas.closest(".txw-panel").querySelector(".txw-legend line");
    const color = legend.getAttribute("stroke").match(/[0-9a-f]{2}/g).map((part) => parseInt(part, 16));
    const { width, height } = canvas;
    const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
    const found = Array.from({ length: width }, () => []);
    for (let pixel = 0; pixel < width * height; pixel += 1) {
        const far = Math.max(...color.map((part, index) => Math.abs(data[4 * pixel + index] - part)));
        if (far < 30 && data[4 * pixel + 3] > 100) found[pixel % width].push(Math.floor(pixel / width));
    }
    return found;
}"""
"""For every column of pixels the rows that the curve that is looked at covers."""


def columns_crossed(canvas: Locator) -> str:
    """For every column of pixels whether the curve that is looked at runs through it, 1 or 0."""
    return "".join("1" if rows else "0" for rows in canvas.evaluate(BLUE))


def test_curves_are_dashed_beyond_training(show: Callable[..., Any]) -> None:
    """Every curve is drawn through up to the trained length, and in pieces behind it; its end is marked."""
    visited = show(BiasExplorer(length=101, trained_length=51))
    curves, weights = visited.page.locator("canvas[role=img]").all()

    drawn, mirrored = columns_crossed(curves), columns_crossed(weights)[::-1]  # by key: the nearest is last
    for columns in (drawn, mirrored):
        middle = len(columns) // 2
        assert "0" not in columns[2 : middle - 2]
        gaps = columns[middle + 2 :].count("1000")
        assert gaps == pytest.approx((len(columns) - middle) / 9, abs=2)
    legend = visited.page.locator(".txw-legend").nth(1)
    expect(legend.locator("span")).to_have_text(["this head", "other heads", "farther than in training"])
    visited.page.get_by_role("slider", name="trained length").press("End")
    expect(legend.locator("span")).to_have_text(["this head", "other heads"])
    assert "0" not in columns_crossed(curves)[2:-2]
    assert visited.errors == []


@pytest.mark.parametrize("length", [266, 267, 268, 512])
def test_steps_are_drawn_upright(show: Callable[..., Any], length: int) -> None:
    """A bias with one peak among constants, more points than pixels: level lines up to it and behind it."""
    table = np.full((1, 32), 1.0)
    table[0, :2] = 0.4, 3.2  # those of distance 0 and all later keys, and of distance 1
    visited = show(BiasExplorer(t5=table, scheme="t5", length=length, causal=False, trained_length=512))
    columns = visited.page.locator("canvas[role=img]").first.evaluate(BLUE)
    jump = len(columns) // 2
    last = max(max(rows) for rows in columns if rows)
    for low, high, value in ((2, jump - 4, 0.4), (jump + 8, len(columns) - 2, 1.0)):
        level = last * (3.2 - value) / (3.2 - 0.4)
        for column, rows in enumerate(columns[low:high], low):
            assert rows, f"nothing in column {column}"
            assert max(abs(row - level) for row in rows) < 4, f"not level in column {column}: {rows}"
    assert min(min(rows) for rows in columns[jump - 4 : jump + 8] if rows) <= 2  # the peak
    assert visited.errors == []


@pytest.mark.parametrize(
    "settings",
    [
        {"length": 8, "n_heads": 1, "query": 0},
        {"length": 512, "n_heads": 16, "head": 15, "causal": False},
        {"scheme": "transformer_xl", "length": 512, "head": 9, "causal": False, "query": 200},
        {"scheme": "shaw", "length": 9, "trained_length": 8},
        {"scheme": "t5", "causal": False, "trained_length": 512},
    ],
)
def test_extremes_are_drawn(show: Callable[..., Any], settings: dict[str, Any]) -> None:
    """On a phone, in the dark: the library's numbers, no error, no NaN, nothing too wide."""
    widget = BiasExplorer(**tables(), **settings)
    visited = show(widget, width=390, dark=True)
    says(visited.page.locator(".txw-readout"), widget)
    assert "NaN" not in visited.page.locator(".txw").inner_html()
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visited.errors == []


def test_flat_table_is_drawn(show: Callable[..., Any]) -> None:
    """Where no distance differs from another there is no range to draw in, and all weights are equal."""
    widget = BiasExplorer(shaw=np.full((2, 3), 0.25), scheme="shaw", length=10)
    visited = show(widget)
    says(visited.page.locator(".txw-readout"), widget)
    expect(visited.page.locator(".txw-readout")).to_contain_text("9 keys hold 90 %")
    assert "NaN" not in visited.page.locator(".txw").inner_html()
    assert visited.errors == []
