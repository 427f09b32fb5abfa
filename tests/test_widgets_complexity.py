"""The complexity widget in Python: settings, costs by the library, picture and alternative text."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest

from tx_from_scratch.complexity import convolution, recurrence, restricted_attention, self_attention
from tx_from_scratch.plots import style
from tx_from_scratch.widgets import Complexity

SETTINGS: list[dict[str, Any]] = [
    {},
    {"length": 16, "d_model": 64, "kernel_size": 1, "n_neighbors": 4096, "n_heads": 128, "cell": "plain"},
    {"length": 131_072, "d_model": 8192, "kernel_size": 31, "projections": False, "cell": "GRU"},
    {"length": 1000, "materialized": False, "number_format": "bf16", "dilated": False},
]


def test_costs_are_the_librarys() -> None:
    """With the widget's settings, each handed to the layer it belongs to."""
    widget = Complexity(
        length=300, d_model=96, kernel_size=5, n_neighbors=20, n_heads=3, projections=False, cell="GRU"
    )
    attention: dict[str, Any] = {"n_heads": 3, "projections": False, "materialized": True}
    assert list(widget.costs().values()) == [
        self_attention(300, 96, **attention),
        recurrence(300, 96, cell="GRU"),
        convolution(300, 96, kernel_size=5, dilated=True),
        restricted_attention(300, 96, n_neighbors=20, **attention),
    ]
    widget.dilated, widget.materialized = False, False
    costs = list(widget.costs(7).values())
    assert costs[2] == convolution(7, 96, kernel_size=5)
    assert costs[0] == self_attention(7, 96, **(attention | {"materialized": False}))


@pytest.mark.parametrize("settings", SETTINGS)
def test_crossovers_are_where_the_costs_meet(settings: dict[str, Any]) -> None:
    """One below, self-attention takes less; one above, more."""
    widget = Complexity(**settings)
    for name, what, other in (
        ("recurrence", "flops", 1),
        ("convolution", "flops", 2),
        ("neighbors", "flops", 3),
        ("recurrence_memory", "activations", 1),
    ):
        crossover = widget.crossovers()[name]
        if crossover is None:
            assert name != "neighbors"
            continue
        for length in (int(crossover) - 1, int(crossover) + 1):
            costs = [getattr(cost, what) for cost in widget.costs(length).values()]
            if name == "neighbors" and length < crossover:
                assert costs[0] == costs[other]
            else:
                assert (costs[0] < costs[other]) == (length < crossover)


def test_crossovers_that_do_not_apply_are_none() -> None:
    """Without projections nothing outweighs them; without stored weights these outweigh nothing."""
    assert Complexity(projections=False).crossovers()["projections"] is None
    crossovers = Complexity(materialized=False).crossovers()
    assert crossovers["weights"] is None
    assert crossovers["recurrence_memory"] is None
    assert Complexity(cell="plain").crossovers()["recurrence"] is None
    assert Complexity(cell="LSTM", d_model=512).crossovers()["recurrence"] == 1024


BAD = [
    ({"length": 15}, ValueError, "length must be from 16 to 131072"),
    ({"length": 20.5}, TypeError, "length must be an integer from 16 to 131072"),
    ({"d_model": 8193}, ValueError, "d_model must be from 64 to 8192"),
    ({"kernel_size": 0}, ValueError, "kernel_size must be from 1 to 31"),
    ({"n_neighbors": 7}, ValueError, "n_neighbors must be from 8 to 4096"),
    ({"n_heads": "8"}, TypeError, "n_heads must be an integer"),
    ({"projections": 1}, TypeError, "projections must be True or False"),
    ({"cell": "lstm"}, ValueError, "cell must be one of plain, GRU, LSTM; got 'lstm'"),
    ({"number_format": "fp8"}, ValueError, "number_format must be one of fp32, bf16"),
    ({"n": 4}, TypeError, "no setting 'n'"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD)
def test_bad_settings_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    """At construction and later, by name, with the range; the setting stays as it was."""
    with pytest.raises(error, match=message):
        Complexity(**settings)
    name, value = next(iter(settings.items()))
    widget = Complexity()
    if widget.has_trait(name):
        before = getattr(widget, name)
        with pytest.raises(error, match=message):
            setattr(widget, name, value)
        assert getattr(widget, name) == before


@pytest.mark.parametrize("settings", SETTINGS)
def test_picture_and_words(settings: dict[str, Any]) -> None:
    """Four curves through the library's costs in both panels; the words give the table."""
    widget = Complexity(**settings)
    with style():
        figure = widget.figure()
    flops, memory = figure.axes
    scale = {"fp32": 4, "bf16": 2}[widget.number_format]
    for index, cost in enumerate(widget.costs().values()):
        for axes, wanted in ((flops, cost.flops), (memory, scale * cost.activations)):
            x, y = (np.asarray(data) for data in axes.lines[index].get_data())
            assert y[x == widget.length] == [wanted]
    plt.close(figure)
    words = widget.describe()
    for name, cost in widget.costs().items():
        assert f"{name} {cost.flops:.3g} FLOPs, {scale * cost.activations:.3g} bytes" in words
        assert f"longest path {'none' if cost.path is None else cost.path}" in words
    assert ("with the four projections" in words) == widget.projections


def test_words_say_where_the_costs_meet() -> None:
    """A length, or that there is none."""
    words = Complexity(cell="LSTM", d_model=512, kernel_size=4).describe()
    assert "fewer FLOPs than the recurrence below n = 1,024, than the convolution at no length." in words


def test_bundle_and_state_are_small() -> None:
    """Settings are all that travels."""
    widget = Complexity()
    data, metadata = widget._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == data["text/plain"] == widget.describe()
    assert data["image/png"].startswith(b"\x89PNG")
    state = widget.get_state()
    assert sum(len(str(value)) for name, value in state.items() if name not in ("_esm", "_css")) < 2_000
    assert repr(Complexity(length=99)).startswith("Complexity(cell='LSTM', d_model=512, dilated=True, ")
