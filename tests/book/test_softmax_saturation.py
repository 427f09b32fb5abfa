"""The softmax saturation widget in Chromium: its numbers are the library's, and every control works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

from tx_from_scratch.counter_random import normals
from tx_from_scratch.widgets import SoftmaxSaturation
from tx_from_scratch.widgets.softmax_saturation import CURVE_WIDTHS, MAX_KEYS, MAX_WIDTH, N_QUERIES

pytestmark = pytest.mark.browser

ROUNDING = {"fp32": 1e-6, "fp16": 2**-11, "bf16": 2**-8}  # half a unit in the last place, relative


GRID = """({ inputs, saturation, spreadOf }) => (samples, grid) => grid.map((settings) => {
    const here = saturation({ ...settings, numbers: inputs({ ...settings, samples }) });
    return { ...here, ...spreadOf(here.scores) };
})"""


@pytest.mark.parametrize("number_format", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("scaled", [True, False])
def test_browser_computes_what_the_library_does(
    compute: Callable[..., Any], number_format: str, scaled: bool
) -> None:
    """Scores, weights and every figure of the read-out, over a grid of settings."""
    grid = [
        {
            "number_format": number_format,
            "scaled": scaled,
            "d_k": d_k,
            "n_keys": n_keys,
            "activation": activation,
        }
        for d_k in (1, 3, 64, 1000, 1024)
        for n_keys, activation in ((2, 1.0), (7, 0.25), (64, 2.0))
    ]
    widget = SoftmaxSaturation()
    computed = compute(SoftmaxSaturation, GRID, np.frombuffer(widget.samples, "<f4"), grid)
    for settings, browser in zip(grid, computed, strict=True):
        library = widget.measure(**settings)
        scores = browser["scores"].reshape(library.scores.shape)
        # Sums in another order may fall on the other side of a rounding boundary: one step of the format.
        np.testing.assert_allclose(scores, library.scores, rtol=2 * ROUNDING[number_format], atol=1e-12)
        rows = np.isclose(scores, library.scores, rtol=1e-6, atol=1e-12).all(axis=-1)
        assert rows.mean() > 0.8
        weights = browser["weights"].reshape(library.weights.shape)
        np.testing.assert_allclose(weights[rows], library.weights[torch.from_numpy(rows)], atol=1e-5)
        for figure in ("spread", "predicted", "entropy", "largest", "jacobian"):
            tolerance = 1e-5 if rows.all() else 1e-2
            assert browser[figure] == pytest.approx(getattr(library, figure), abs=tolerance), (
                figure,
                settings,
            )
        assert browser["overflown"] == library.overflown


@pytest.mark.parametrize("number_format", ["fp32", "fp16", "bf16"])
def test_curves_are_the_librarys_at_each_width(compute: Callable[..., Any], number_format: str) -> None:
    """They are computed in another way, from sums that grow with the width."""
    widget = SoftmaxSaturation(number_format=number_format, n_keys=9)
    call = "({ inputs, curves }) => (all) => curves({ ...all, numbers: inputs(all) })"
    samples = np.frombuffer(widget.samples, "<f4")
    curves = compute(SoftmaxSaturation, call, {**widget.settings(), "samples": samples})
    # Where a sum falls on the other side of a rounding boundary, a row differs by a step of the format.
    tolerance = 1e-5 if number_format == "fp32" else ROUNDING[number_format]
    for name, scaled in (("divided", True), ("plain", False)):
        wanted = [widget.measure(d_k=d_k, scaled=scaled).jacobian for d_k in CURVE_WIDTHS]
        np.testing.assert_allclose(curves[name], wanted, atol=tolerance)


def test_full_precision_agrees_with_torch(compute: Callable[..., Any]) -> None:
    """PyTorch's own attention, on the same numbers, gives the same weights."""
    widget = SoftmaxSaturation(d_k=48, n_keys=9, scaled=True)
    settings = widget.settings()
    numbers = compute(
        SoftmaxSaturation, "inputs", {**settings, "samples": np.frombuffer(widget.samples, "<f4")}
    )
    weights = compute(SoftmaxSaturation, "saturation", {**settings, "numbers": numbers})["weights"]
    query, key = widget.numbers()[:N_QUERIES, :48], widget.numbers()[N_QUERIES : N_QUERIES + 9, :48]
    # With the identity as values, attention returns its own weights.
    wanted = torch.nn.functional.scaled_dot_product_attention(query[None], key[None], torch.eye(9)[None])[0]
    np.testing.assert_allclose(weights.reshape(N_QUERIES, 9), wanted, atol=1e-5)


@pytest.mark.parametrize("seed", [0, 1, 9999])
def test_samples_are_the_same_on_both_sides(compute: Callable[..., Any], seed: int) -> None:
    """The browser resamples on its own where no Python runs."""
    count = (N_QUERIES + MAX_KEYS) * MAX_WIDTH
    np.testing.assert_allclose(
        compute(SoftmaxSaturation, "normals", seed, count), normals(seed, count), rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_rounding_is_exact(compute: Callable[..., Any], name: str, dtype: torch.dtype) -> None:
    """All 65,536 patterns stay; what lies between two goes where PyTorch sends it, ties included."""
    patterns = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    values = patterns.double()
    finite = values[values.isfinite()].unique()
    middles = (finite[1:] + finite[:-1]) / 2
    largest = float(finite.max())
    beyond = torch.tensor(
        [largest * (1 + 2**-12), largest * 1.001, largest * 1.01, largest * 2, torch.inf, torch.nan]
    )
    # Middles have at most 12 significant bits, so float32 holds them; its neighbors fall to either side.
    exact = torch.cat([values, middles, beyond.double(), -beyond.double()]).float()
    tried = torch.cat(
        [exact, exact.nextafter(torch.tensor(torch.inf)), exact.nextafter(torch.tensor(-torch.inf))]
    )
    rounded = compute(SoftmaxSaturation, "roundAll", tried.double().numpy(), name)
    wanted = tried.to(dtype).double().numpy()
    np.testing.assert_array_equal(rounded, wanted)
    np.testing.assert_array_equal(np.signbit(rounded[wanted == 0]), np.signbit(wanted[wanted == 0]))


def test_controls_change_what_is_shown(show: Callable[..., Any]) -> None:
    """Slider, typed value, switch, format, resample: each by keyboard, each with the library's numbers."""
    visited = show(SoftmaxSaturation(d_k=16))
    page = visited.page
    widget = page.get_by_role("group", name="Softmax saturation")
    readout = page.locator(".txw-readout")

    def shows(**settings: Any) -> None:
        wanted = SoftmaxSaturation(**settings).measure()
        expect(readout).to_contain_text(f"Standard deviation {wanted.spread:.3g} ")
        expect(readout).to_contain_text(f"Largest weight {wanted.largest:.3g},")

    shows(d_k=16)
    slider = widget.get_by_role("slider", name="width dₖ")
    slider.press("End")
    shows(d_k=1024)
    expect(widget.get_by_label("width dₖ").last).to_have_value("1024")
    slider.press("Home")
    shows(d_k=1)
    field = widget.get_by_role("spinbutton", name="width dₖ")
    field.fill("100")
    shows(d_k=100)
    field.fill("2000")  # out of range: nothing changes, and the field says so
    shows(d_k=100)
    expect(field).to_have_js_property("validity.valid", False)
    field.press("Tab")  # the nearest number that it can be
    expect(field).to_have_value("1024")
    shows(d_k=1024)
    field.fill("")
    field.press("Tab")
    expect(field).to_have_value("1024")
    field.fill("100")
    field.press("Tab")
    widget.get_by_role("checkbox", name="divide by √dₖ").press("Space")
    shows(d_k=100, scaled=True)
    widget.get_by_role("radio", name="fp32").press("ArrowRight")
    shows(d_k=100, scaled=True, number_format="fp16")
    widget.get_by_role("spinbutton", name="seed").fill("7")
    shows(d_k=100, scaled=True, number_format="fp16", seed=7)
    widget.get_by_role("button", name="resample").press("Enter")
    seed = int(widget.get_by_role("spinbutton", name="seed").input_value())
    shows(d_k=100, scaled=True, number_format="fp16", seed=seed)
    expect(page.get_by_role("status")).to_have_text(readout.inner_text())  # once the reader pauses
    assert visited.errors == []
    assert visited.foreign == []


def test_typed_zero_comes_back_when_the_field_is_emptied(show: Callable[..., Any]) -> None:
    """An empty text and the number 0 are not the same."""
    field = show(SoftmaxSaturation()).page.get_by_role("spinbutton", name="seed")
    field.fill("")
    field.press("Tab")
    expect(field).to_have_value("0")


def test_overflow_is_said(show: Callable[..., Any]) -> None:
    """Half precision overflows where theory says, and the read-out counts what was lost."""
    widget = SoftmaxSaturation(d_k=1024, activation=64.0, number_format="fp16")
    overflown = widget.measure().overflown
    assert overflown > 0
    visited = show(widget)
    expect(visited.page.locator(".txw-readout")).to_contain_text(f"{overflown} overflow")
    assert visited.errors == []
