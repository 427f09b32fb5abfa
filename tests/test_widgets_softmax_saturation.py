"""The softmax saturation widget in Python: its picture and its words at the ends of every setting."""

from __future__ import annotations

import itertools

import pytest

from tx_from_scratch.widgets import SoftmaxSaturation


@pytest.mark.parametrize("number_format", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("scaled", [True, False])
def test_every_corner_has_a_picture_and_a_description(number_format: str, scaled: bool) -> None:
    """Where all scores overflow, too."""
    for d_k, n_keys, activation in itertools.product((1, 1024), (2, 64), (1 / 16, 256.0)):
        settings = {"d_k": d_k, "n_keys": n_keys, "activation": activation}
        widget = SoftmaxSaturation(**settings, scaled=scaled, number_format=number_format)
        data, metadata = widget._repr_mimebundle_()
        assert data["image/png"].startswith(b"\x89PNG")
        assert f"Attention scores of width {d_k} in {number_format}" in metadata["image/png"]["alt"]


def test_numbers_of_ones_own() -> None:
    """They replace the random ones, and must fit."""
    widget = SoftmaxSaturation()
    numbers = widget.numbers()
    widget.use(2 * numbers[:8].numpy(), numbers[8:].numpy())
    assert widget.measure().spread == pytest.approx(2 * SoftmaxSaturation().measure().spread)
    with pytest.raises(ValueError, match=r"queries must have shape \(8, 1024\), got \(16, 1024\)"):
        widget.use(numbers[:16].numpy(), numbers[8:].numpy())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"d_k": 0}, ValueError, "d_k must be from 1 to 1024, got 0"),
        ({"d_k": 2.5}, TypeError, "d_k must be an integer"),
        ({"activation": float("nan")}, ValueError, r"activation must be from 0.0625 to 256, got nan"),
        ({"number_format": "fp8"}, ValueError, "number_format must be one of fp32, fp16, bf16; got 'fp8'"),
        ({"scaled": 1}, TypeError, "scaled must be True or False, got 1"),
        ({"samples": b""}, ValueError, "samples must be 294912 bytes of float32, got 0"),
        ({"width": 3}, TypeError, "SoftmaxSaturation has no setting 'width'; it has activation, d_k"),
    ],
)
def test_bad_settings_are_named(settings, error, message) -> None:
    with pytest.raises(error, match=message):
        SoftmaxSaturation(**settings)
