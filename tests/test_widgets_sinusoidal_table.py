"""The sinusoidal table widget in Python: settings, facts of both exponents, picture and alternative text."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding

from tx_from_scratch.plots import style
from tx_from_scratch.positions import sinusoidal_table
from tx_from_scratch.widgets import SinusoidalTable
from tx_from_scratch.widgets.base import MAX_STATE
from tx_from_scratch.widgets.sinusoidal_table import (
    EXPONENTS,
    exact_table,
    frequencies,
    much_copied_table,
    table_facts,
)


@pytest.mark.parametrize(("d_model", "base"), [(2, 100.0), (7, 1e4), (64, 1e4), (256, 1e6)])
def test_exact_table_is_the_librarys(d_model: int, base: float) -> None:
    """With the paper's exponent, in float64 where the library rounds to float32."""
    positions = torch.arange(300)
    exact = exact_table(positions.double().numpy(), d_model, base, "paper")
    np.testing.assert_allclose(exact, sinusoidal_table(positions, d_model, base=base), atol=1e-7)


def test_exact_table_is_transformers() -> None:
    """Marian's table has all sines first, then all cosines."""
    marian = MarianSinusoidalPositionalEmbedding(256, 64)
    theirs = marian.create_weight().detach()  # type: ignore[no-untyped-call]
    ours = exact_table(np.arange(256.0), 64, 10_000.0, "paper")
    np.testing.assert_allclose(np.concatenate([ours[:, 0::2], ours[:, 1::2]], axis=1), theirs, atol=1e-6)


def test_much_copied_table_is_the_literal_loop() -> None:
    """Entry by entry, as tutorials write it: i counts columns by twos, and is doubled all the same."""
    rows, d_model, base = 9, 10, 1000.0
    table = much_copied_table(torch.arange(rows), d_model, base=base)
    for position in range(rows):
        for i in range(0, d_model, 2):
            sine = math.sin(position / base ** (2 * i / d_model))
            cosine = math.cos(position / base ** (2 * (i + 1) / d_model))
            assert table[position, i] == pytest.approx(sine, abs=1e-6)
            assert table[position, i + 1] == pytest.approx(cosine, abs=1e-6)


@pytest.mark.parametrize(("d_model", "base", "name"), [(0, 1e4, "d_model"), (4, 0.0, "base")])
def test_much_copied_table_refuses_nonsense(d_model: int, base: float, name: str) -> None:
    """As the right table does."""
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        much_copied_table(torch.arange(3), d_model, base=base)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_rotation_is_the_best_of_all(exponent: str) -> None:
    """No angle on a fine grid has a smaller squared error than the closed form's."""
    d_model, length, base, offset = 12, 40, 500.0, 7
    facts = table_facts(d_model=d_model, length=length, base=base, exponent=exponent, offset=offset)
    table = exact_table(np.arange(float(length + offset)), d_model, base, exponent)
    grid = np.linspace(0, 2 * math.pi, 5000)

    def squared_error(pair: int, angle: Any) -> Any:
        hands = (
            table[:, 2 * pair] + 1j * table[:, 2 * pair + 1]
        )  # turning clockwise multiplies by exp(−i angle)
        missed = hands[:length] * np.exp(-1j * np.asarray(angle))[..., None] - hands[offset:]
        return (np.abs(missed) ** 2).sum(axis=-1), np.abs(missed).max(axis=-1)

    for pair in range(d_model // 2):
        best, worst = squared_error(pair, facts.angles[pair])
        assert best <= squared_error(pair, grid)[0].min() + 1e-12
        assert facts.errors[pair] == pytest.approx(worst, abs=1e-13)


def test_papers_exponent_is_a_rotation() -> None:
    """k positions on, every hand has turned by k times its frequency; norms and products stay the same."""
    facts = table_facts(d_model=64, length=256, base=1e4, exponent="paper", offset=13)
    wanted = 13 * frequencies(64, 1e4, "paper")[::2]
    np.testing.assert_allclose(np.exp(1j * facts.angles), np.exp(1j * wanted), atol=1e-13)
    assert facts.errors.max() < 1e-12
    assert facts.squared_norm == pytest.approx((32, 32), abs=1e-12)
    assert facts.similarity_spread < 1e-12
    assert facts.wavelengths.max() == pytest.approx(4.7e4, rel=0.01)
    assert facts.nearly_constant == 9


def test_much_copied_exponent_loses_all_that() -> None:
    """What breaks, at width 64 and 256 positions."""
    facts = table_facts(d_model=64, length=256, base=1e4, exponent="much-copied", offset=8)
    assert facts.wavelengths.max() == pytest.approx(4.7e8, rel=0.01)
    assert facts.nearly_constant == 36
    low, high = facts.squared_norm
    assert high - low > 5
    assert facts.similarity_spread > 5
    assert facts.errors.max() > 1
    # Not even a linear map of all the columns together takes each position to the one 8 further on.
    table = exact_table(np.arange(264.0), 64, 1e4, "much-copied")
    fitted = np.linalg.lstsq(table[:256], table[8:], rcond=None)[0]
    assert np.abs(table[:256] @ fitted - table[8:]).max() > 1
    right = exact_table(np.arange(256.0), 64, 1e4, "paper")
    assert (np.abs(right - table[:256]) > 0.1).mean() == pytest.approx(0.62, abs=0.005)


BAD = [
    ({"d_model": 1}, ValueError, "d_model must be from 2 to 256"),
    ({"d_model": 2.5}, TypeError, "d_model must be an integer"),
    ({"length": 257}, ValueError, "length must be from 8 to 256"),
    ({"base": 99.0}, ValueError, "base must be from 100 to 1e"),
    ({"base": math.nan}, ValueError, "base must be from 100"),
    ({"base": "10000"}, TypeError, "base must be a number"),
    ({"exponent": "2c/d"}, ValueError, "exponent must be one of paper, much-copied"),
    ({"position": -1}, ValueError, "position must be from 0 to 255"),
    ({"offset": 0}, ValueError, "offset must be from 1 to 64"),
    ({"pair": 128}, ValueError, "pair must be from 0 to 127"),
    ({"width": 64}, TypeError, "no setting 'width'"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD)
def test_bad_settings_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    """At construction and later, by name, with the range; the setting stays as it was."""
    with pytest.raises(error, match=message):
        SinusoidalTable(**settings)
    name, value = next(iter(settings.items()))
    widget = SinusoidalTable()
    if widget.has_trait(name):
        before = getattr(widget, name)
        with pytest.raises(error, match=message):
            setattr(widget, name, value)
        assert getattr(widget, name) == before


def test_place_stays_inside_the_table() -> None:
    """A position or pair that the table has not got gives way to its last one."""
    assert SinusoidalTable(length=64, position=200, d_model=9, pair=100).place == (63, 3)
    assert SinusoidalTable(length=64, position=20, d_model=9, pair=2).place == (20, 2)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("d_model", [2, 7, 64])
def test_picture_and_words(exponent: str, d_model: int) -> None:
    """The picture shows the library's table; the words give its figures."""
    widget = SinusoidalTable(d_model=d_model, exponent=exponent, length=40)
    with style():
        figure = widget.figure()
    shown = figure.axes[0].images[0].get_array()
    np.testing.assert_allclose(np.asarray(shown), widget.table(), atol=1e-7)
    products = figure.axes[1].images[0].get_array()
    np.testing.assert_allclose(np.asarray(products), widget.table() @ widget.table().T, atol=1e-4)
    plt.close(figure)
    facts, words = widget.measure(), widget.describe()
    assert f"{facts.nearly_constant} of {d_model} columns nearly constant" in words
    assert f"{facts.wavelengths.max():.3g} positions" in words
    assert ("wrong exponent" in words) == (exponent == "much-copied")
    assert f"over all pairs by at most {facts.errors.max():.2g}." in words


def test_bundle_and_state_are_small() -> None:
    """The table is computed where it is shown; it does not travel."""
    widget = SinusoidalTable(d_model=256, length=256)
    data, metadata = widget._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == data["text/plain"] == widget.describe()
    assert data["image/png"].startswith(b"\x89PNG")
    state = widget.get_state()
    assert sum(len(str(value)) for name, value in state.items() if name not in ("_esm", "_css")) < 2_000
    assert len(str(state)) < MAX_STATE
    assert repr(SinusoidalTable(pair=3)) == (
        "SinusoidalTable(base=10000.0, d_model=64, exponent='paper', "
        "length=128, offset=8, pair=3, position=20)"
    )
