"""The RoPE explorer in Chromium: its numbers are the library's, and every control works."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Locator, expect
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tx_from_scratch.counter_random import normals
from tx_from_scratch.widgets import RoPEExplorer
from tx_from_scratch.widgets.rope_explorer import MAX_WIDTH, METHODS, VECTORS

pytestmark = pytest.mark.browser

GRID = """(compute) => (grid) => grid.map((settings) => {
    const length = settings.method === "dynamic_ntk" ? settings.position + 1 : settings.target_length;
    const factor = compute.scalingFactor(settings, length);
    const frequencies = compute.scaledFrequencies(settings, length);
    const table = compute.angleTable(settings, 240);
    return {
        ...table, ...compute.rotaryScores(table, settings), bound: compute.abelBound(table, settings),
        ...compute.handsAt(table, frequencies, settings.position), frequencies, factor,
        attentionFactor: compute.attentionFactor(settings, factor),
        base: compute.scaledBase(settings, factor),
    };
})"""
SIZES = [
    {"d_head": 8, "base": 10_000_000.0, "trained_length": 16, "target_length": 4096, "position": 4095},
    {"d_head": 64, "base": 10_000.0, "trained_length": 512, "target_length": 2048, "position": 1000},
    {"d_head": 30, "base": 500.0, "trained_length": 100, "target_length": 777, "position": 99},
    {"d_head": 128, "base": 100.0, "trained_length": 4096, "target_length": 241, "position": 0},
]


def grid(**more: Any) -> list[dict[str, Any]]:
    """Settings of all sizes, with `more`."""
    seeds = (
        {"seed": 0, "peak": 0},
        {"seed": 1, "peak": 777},
        {"seed": 2, "peak": 333},
        {"seed": 3, "peak": 240},
    )
    return [{**sizes, **vectors, **more} for sizes, vectors in zip(SIZES, seeds, strict=True)]


@pytest.mark.parametrize("method", METHODS)
def test_browser_computes_what_the_library_does(compute: Callable[..., Any], method: str) -> None:
    """Frequencies, angles, what is unseen, scores and bound: every figure that is drawn or read out."""
    settings = [one for vectors in VECTORS for one in grid(method=method, vectors=vectors)]
    for one, browser in zip(settings, compute(RoPEExplorer, GRID, settings), strict=True):
        facts = RoPEExplorer().measure(**one)
        positions, pairs = facts.unseen.shape
        here = facts.frequencies[one["position"]]
        np.testing.assert_allclose(browser["theta"], facts.theta, rtol=1e-12)
        np.testing.assert_allclose(browser["frequencies"], here, rtol=1e-12)
        np.testing.assert_allclose(browser["seen"], facts.trained.clamp_max(1), rtol=1e-12)
        for name, ours in (("factor", facts.factor), ("base", facts.base)):
            assert browser[name] == pytest.approx(ours, rel=1e-12), one
        assert browser["attentionFactor"] == pytest.approx(facts.attention_factor, rel=1e-12)

        angles = torch.arange(positions)[:, None] * facts.frequencies
        for name, exact in (("cosine", angles.cos()), ("sine", angles.sin())):
            np.testing.assert_allclose(browser[name].reshape(positions, pairs), exact, atol=1e-7)
        assert browser["unseen"] == float(facts.unseen.double().mean())
        assert browser["outside"] == facts.unseen[one["position"]].tolist()
        np.testing.assert_allclose(browser["turns"], (one["position"] * here / (2 * math.pi)) % 1, atol=1e-11)

        np.testing.assert_allclose(browser["scores"], facts.scores, atol=1e-6)
        np.testing.assert_allclose(browser["bound"], facts.bound, atol=1e-5)
        assert float(facts.scores[browser["largest"]]) == pytest.approx(float(facts.scores.max()), abs=1e-6)
        rising = float((facts.scores.diff() > 0).double().mean())
        assert browser["rising"] == pytest.approx(rising, abs=0.002)  # steps of less than rounding


def test_rows_of_the_map_are_means(compute: Callable[..., Any]) -> None:
    """Where positions share a row of the map: bin by bin, from the library's angles."""
    for one in grid(method="none", vectors="constant"):
        [browser] = compute(RoPEExplorer, GRID, [one])
        facts = RoPEExplorer().measure(**one)
        positions, pairs = facts.unseen.shape
        rows = min(positions, 240)
        assert browser["rows"] == rows
        cosine = (torch.arange(positions)[:, None] * facts.frequencies).cos()
        means, unseen = browser["means"].reshape(rows, pairs), browser["mostlyUnseen"].reshape(rows, pairs)
        for row in range(rows):
            bin_ = slice(row * positions // rows, (row + 1) * positions // rows)
            np.testing.assert_allclose(means[row], cosine[bin_].mean(dim=0), atol=1e-6)
            np.testing.assert_array_equal(unseen[row], facts.unseen[bin_].double().mean(dim=0) > 0.5)


@pytest.mark.parametrize(
    ("method", "kind", "given"),
    [
        ("linear", "linear", {"factor": 4.0}),
        ("dynamic_ntk", "dynamic", {"factor": 1.0}),
        ("yarn_index", "yarn", {"factor": 4.0, "original_max_position_embeddings": 512}),
    ],
)
def test_frequencies_are_transformers(
    compute: Callable[..., Any], method: str, kind: str, given: dict[str, Any]
) -> None:
    """Those of the scalings that transformers has too, at 2,048 positions after 512."""
    config = LlamaConfig(
        hidden_size=128,
        num_attention_heads=1,
        head_dim=128,
        max_position_embeddings=512,
        rope_parameters={"rope_type": kind, "rope_theta": 10_000.0, **given},
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"), seq_len=2048)
    settings = {
        "d_head": 128,
        "base": 10_000.0,
        "trained_length": 512,
        "target_length": 2048,
        "method": method,
    }
    ours = compute(RoPEExplorer, "scaledFrequencies", settings, 2048)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)  # theirs are float32
    assert compute(RoPEExplorer, "attentionFactor", settings, 4.0) == pytest.approx(factor)


def test_scores_are_transformers(compute: Callable[..., Any]) -> None:
    """Llama's rotation of the same random query and key, at every distance."""
    [settings] = [one for one in grid(method="none", vectors="random") if one["d_head"] == 30]
    [browser] = compute(RoPEExplorer, GRID, [settings])
    query, key = torch.from_numpy(normals(settings["seed"], 2 * MAX_WIDTH)).view(2, 1, 1, 1, -1)[..., :30]
    theta = 500.0 ** (-torch.arange(0, 30, 2).double() / 30)
    angles = torch.arange(settings["target_length"])[:, None] * torch.cat([theta, theta])
    cosine, sine = angles.cos()[None].float(), angles.sin()[None].float()
    turned, _ = apply_rotary_pos_emb(query.expand(-1, -1, len(angles), -1), key, cosine, sine)
    np.testing.assert_allclose(browser["scores"], (turned @ key.mT).flatten() / math.sqrt(30), atol=1e-5)


def test_envelope_keeps_every_extreme(compute: Callable[..., Any]) -> None:
    """Few points for a dense curve: in order, and among them the lowest and the highest of every column."""
    values = normals(5, 4096).astype(np.float64)
    thin = compute(RoPEExplorer, "envelope", values, 100)
    index = thin["x"].astype(int)
    assert len(index) == 200
    assert (np.diff(index) > 0).all()
    np.testing.assert_array_equal(thin["y"], values[index])
    for column in range(100):
        inside = values[column * 4096 // 100 : (column + 1) * 4096 // 100]
        assert sorted(thin["y"][2 * column : 2 * column + 2]) == [inside.min(), inside.max()]
    few = compute(RoPEExplorer, "envelope", values[:200], 100)
    np.testing.assert_array_equal(few["y"], values[:200])


def shown(value: float, digits: int = 3) -> str:
    """A number as the read-out writes it."""
    if abs(value) >= 1e6 or 0 < abs(value) < 1e-3:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        raised = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        text = f"{float(mantissa):g}·10{raised}"
    else:
        text = f"{float(f'{value:.{digits}g}'):,.6f}".rstrip("0").rstrip(".")
    return text.replace("-", "−")


def says(readout: Locator, **settings: Any) -> None:
    """The read-out gives the library's figures for these settings."""
    widget = RoPEExplorer(**settings)
    facts, place, pairs = widget.measure(), widget.place, widget.d_head // 2
    slowest = shown(2 * math.pi / float(facts.theta[-1]))
    expect(readout).to_contain_text(f"Wavelengths from 6.28 to {slowest} positions; ")
    expect(readout).to_contain_text(f"{int((facts.trained < 1).sum())} of {pairs} pairs turn less than once")
    expect(readout).to_contain_text(f"{shown(100 * float(facts.unseen.double().mean()))} % of the angles")
    outside = int(facts.unseen[place].sum())
    expect(readout).to_contain_text(f"at position {place:,} those of {outside} of {pairs} pairs")
    expect(readout).to_contain_text(f"At distance {place:,} the score is {shown(float(facts.scores[place]))}")
    if widget.method != "none":
        scaled = shown(2 * math.pi / float(facts.frequencies[place, -1]))
        expect(readout).to_contain_text(f"s = {shown(facts.factor)} the slowest wavelength is {scaled}")
    if widget.method.endswith("ntk"):
        expect(readout).to_contain_text(f"base′ = {shown(facts.base, 4)}")
    if widget.method.startswith("yarn"):
        expect(readout).to_contain_text(f"multiplied by {shown(facts.attention_factor, 4)}, scores by ")
    if widget.vectors == "constant":
        expect(readout).to_contain_text(
            f"RoFormer’s bound allows up to {shown(float(facts.bound[place]))} times q·k;"
        )
    else:
        largest = int(facts.scores.argmax())
        expect(readout).to_contain_text(
            f"largest, {shown(float(facts.scores.max()))}, is at distance {largest:,}."
        )


def test_controls_change_what_is_shown(show: Callable[..., Any]) -> None:
    """Sliders, list, options and typed values: each by keyboard, each with the library's numbers."""
    visited = show(RoPEExplorer())
    widget = visited.page.get_by_role("group", name="RoPE explorer")
    readout = widget.locator(".txw-readout")
    says(readout)
    settings: dict[str, Any] = {}
    for method in list(METHODS)[::-1]:
        widget.get_by_role("combobox", name="scaling for longer texts").select_option(
            index=list(METHODS).index(method)
        )
        settings["method"] = method
        says(readout, **settings)
    settings["method"] = "dynamic_ntk"
    widget.get_by_role("combobox", name="scaling for longer texts").select_option(index=3)
    for label, name, key, value in (
        ("position p", "position", "End", 2047),
        ("width d", "d_head", "Home", 8),
        ("width d", "d_head", "End", 128),
        ("base", "base", "End", 10_000_000.0),
        ("target length", "target_length", "End", 4096),
        ("trained length", "trained_length", "Home", 16),
        ("position p", "position", "Home", 0),
    ):
        widget.get_by_role("slider", name=label).press(key)
        settings[name] = value
        says(readout, **settings)
    expect(widget.get_by_role("slider", name="seed")).to_be_hidden()
    widget.get_by_role("radio", name="constant").press("ArrowRight")
    widget.get_by_role("slider", name="seed").press("ArrowRight")
    settings |= {"vectors": "random", "seed": 1}
    says(readout, **settings)
    widget.get_by_role("radio", name="random").press("ArrowRight")
    expect(widget.get_by_role("slider", name="seed")).to_be_hidden()
    widget.get_by_role("slider", name="distance of the largest score").press("End")
    settings |= {"vectors": "chosen", "peak": 4095}
    says(readout, **settings)
    for label, name, typed, taken in (
        ("base", "base", "1234.6", 1234.6),
        ("width d", "d_head", "63", 64),
        ("width d", "d_head", "1000", 128),
        ("target length", "target_length", "99.5", 100),
        ("trained length", "trained_length", "-1", 16),
        ("trained length", "trained_length", "", 16),
        ("position p", "position", "77", 77),
        ("distance of the largest score", "peak", "55", 55),
    ):
        widget.get_by_role("spinbutton", name=label).fill(typed)
        widget.get_by_role("spinbutton", name=label).press("Tab")  # then the nearest that it can be
        settings[name] = taken
        says(readout, **settings)
    assert visited.errors == []
    assert visited.foreign == []


def test_cursor_tells_what_a_cell_is(show: Callable[..., Any]) -> None:
    """By arrow keys and by pointer; Enter makes its position the chosen one."""
    visited = show(RoPEExplorer())
    page = visited.page
    canvas, under = page.get_by_role("application", name="Angles;"), page.locator(".txw-cursor")
    facts = RoPEExplorer().measure()
    cosine = (torch.arange(2048)[:, None] * facts.frequencies).cos()

    def at(row: int, pair: int) -> None:
        first, after = row * 2048 // 240, (row + 1) * 2048 // 240
        verdict = "never seen" if facts.unseen[first:after, pair].double().mean() > 0.5 else "seen"
        mean, wavelength = float(cosine[first:after, pair].mean()), 2 * math.pi / float(facts.theta[pair])
        expect(under).to_have_text(
            f"p = {first:,} to {after - 1:,}, i = {pair}: cosine on average {shown(mean)}, "
            f"λ {shown(wavelength)}, {verdict} in training"
        )

    canvas.press("ArrowDown")
    at(0, 0)
    for _ in range(2):
        canvas.press("ArrowDown")
        canvas.press("ArrowRight")
    at(2, 2)
    canvas.press("Enter")
    expect(page.get_by_role("spinbutton", name="position p")).to_have_value("17")
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 30.5 / 32, box["y"] + box["height"] * 200.5 / 240)
    at(200, 30)
    assert visited.errors == []


def test_warning_is_drawn_where_angles_are_unseen(show: Callable[..., Any]) -> None:
    """As many warning hands as unseen angles among the clocks; interpolation takes them all back."""
    visited = show(RoPEExplorer())
    page = visited.page
    facts = RoPEExplorer().measure()
    pairs = [round(clock * 31 / 7) for clock in range(8)]
    outside = int(facts.unseen[1000, pairs].sum())
    assert outside > 2
    clocks = page.get_by_role("img", name="Clock hands")
    expect(clocks).to_have_accessible_name(
        f"Clock hands: {outside} of the 8 shown point where they never were in training"
    )
    captions = clocks.locator("text")
    expect(captions).to_have_count(16)
    expect(captions.nth(14)).to_have_text("i = 31")
    expect(captions.nth(15)).to_have_text(f"λ {2 * math.pi / float(facts.theta[31]) / 1000:.3g}k")
    alarm = page.locator(".txw").evaluate(
        "(root) => getComputedStyle(root).getPropertyValue('--txw-alarm').trim()"
    )
    hands = clocks.locator(f'path[stroke="{alarm}"]')
    assert (hands.get_attribute("d") or "").count("M") == outside
    page.get_by_role("combobox", name="scaling").select_option(label="linear (position interpolation)")
    expect(clocks).to_have_accessible_name(
        "Clock hands: 0 of the 8 shown point where they never were in training"
    )
    expect(hands).to_have_attribute("d", "")
    assert visited.errors == []


def test_bound_is_drawn_as_a_shape(show: Callable[..., Any]) -> None:
    """The legend says that it is scaled, also where YaRN lets the score begin above 1."""
    visited = show(RoPEExplorer(), RoPEExplorer(method="yarn_index"))
    for root in visited.page.locator(".txw").all():
        expect(root.locator(".txw-wide .txw-legend")).to_contain_text(
            "shape of the upper bound, scaled to start at 1"
        )
    assert visited.errors == []


@pytest.mark.parametrize("width", [390, 700, 1000])
@pytest.mark.parametrize(
    "settings",
    [
        {"d_head": 110, "base": 500_000.0},
        {"d_head": 128, "base": 1e7, "method": "linear", "trained_length": 16, "target_length": 4096},
    ],
)
def test_captions_keep_apart(show: Callable[..., Any], settings: dict[str, Any], width: int) -> None:
    """However long the wavelengths, what is written under one clock ends before the next one's begins."""
    visited = show(RoPEExplorer(**settings), width=width)
    boxes = [text.bounding_box() for text in visited.page.locator("[aria-label^='Clock hands'] text").all()]
    places = sorted((round(box["y"]), box["x"], box["x"] + box["width"]) for box in boxes if box)
    assert len(places) == 16
    for (row, _, end), (next_row, start, _) in itertools.pairwise(places):
        assert row != next_row or end + 4 <= start
    assert visited.errors == []


@pytest.mark.parametrize(
    "settings",
    [
        {"d_head": 8, "target_length": 16, "trained_length": 4096, "position": 4095, "vectors": "chosen"},
        {"d_head": 128, "target_length": 4096, "trained_length": 16, "base": 1e7, "method": "yarn_rotations"},
        {"d_head": 128, "target_length": 4096, "trained_length": 16, "base": 100.0, "vectors": "random"},
        {"target_length": 17, "trained_length": 16, "method": "dynamic_ntk", "position": 16},
    ],
)
def test_extremes_are_drawn(show: Callable[..., Any], settings: dict[str, Any]) -> None:
    """On a phone, in the dark, at both ends of every setting: no error, no NaN, nothing too wide."""
    visited = show(RoPEExplorer(**settings), width=390, dark=True)
    readout = visited.page.locator(".txw-readout")
    says(readout, **settings)
    assert "NaN" not in visited.page.locator(".txw").inner_html()
    assert visited.page.evaluate("document.documentElement.scrollWidth") <= 390
    assert visited.errors == []
