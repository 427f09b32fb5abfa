"""Figures: alternative text, stable files, labels that fit."""

from __future__ import annotations

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from tx_from_scratch.plots import COLORS, heat_map, show, style, use_style


@pytest.fixture(autouse=True)
def clean_pyplot():
    """A backend without windows; no figure and no setting outlives its test."""
    plt.switch_backend("agg")
    with plt.rc_context():
        yield
    plt.close("all")


def drawn() -> Figure:
    figure, axes = plt.subplots(figsize=(2, 1.5))
    axes.plot([0, 1, 3], [2, 5, 4])
    return figure


def test_a_figure_is_shown_with_its_alternative_text(outputs):
    """In the bundle's metadata, where notebook and page look for it, and as the text version."""
    figure = drawn()
    show(figure, alt="A line that rises and falls.", caption="What to look for.")
    picture = outputs[0]
    assert picture["data"]["image/png"].startswith(b"\x89PNG")
    assert picture["data"]["text/plain"] == "A line that rises and falls."
    assert picture["metadata"]["image/png"]["alt"] == "A line that rises and falls."
    assert "What to look for." in outputs[1]["data"]["text/markdown"]
    assert not plt.get_fignums()  # closed, so that the notebook does not show it twice


def test_the_same_figure_is_the_same_file(outputs):
    """Neither date nor version inside: a notebook run again stores the same bytes."""
    for _ in range(2):
        show(drawn(), alt="A line.", caption="The same line.")
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output["data"]]
    assert len(pictures) == 2
    assert pictures[0] == pictures[1]
    assert b"matplotlib" not in pictures[0].lower()


def test_a_figure_without_words_is_refused(outputs):
    with pytest.raises(ValueError, match="alt must describe the figure"):
        show(drawn(), alt=" ", caption="Something.")
    assert not outputs


def test_the_style_ends_with_its_block():
    before = plt.rcParams["axes.spines.top"], plt.rcParams["axes.prop_cycle"]
    with style():
        assert not plt.rcParams["axes.spines.top"]
        assert plt.rcParams["axes.prop_cycle"].by_key()["color"] == list(COLORS)
    assert (plt.rcParams["axes.spines.top"], plt.rcParams["axes.prop_cycle"]) == before
    use_style()
    assert plt.rcParams["figure.facecolor"] == "white"


def test_colors_differ_in_lightness():
    """Neighbors in the cycle can be told apart in gray, by readers who see no color."""
    channels = np.array([[int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)] for color in COLORS])
    lightness = channels @ [0.2126, 0.7152, 0.0722]
    assert (np.abs(np.diff(lightness)) > 0.05).all()
    assert len(set(COLORS)) == len(COLORS)


class TestHeatMap:
    def test_rows_run_down_and_columns_to_the_right(self):
        """A 2 x 3 matrix, so that a transposed one would show; labels stand at their cells."""
        _, axes = plt.subplots()
        matrix = torch.tensor([[0.0, 0.25, 0.5], [0.75, 1.0, 0.1]])
        image = heat_map(axes, matrix, rows=["a", "b"], columns=["x", "y", "z"])
        assert np.allclose(image.get_array(), matrix)
        assert image.get_clim() == (0.0, 1.0)
        assert axes.yaxis_inverted()
        assert axes.get_yticks().tolist() == [0, 1]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y", "z"]

    def test_numbers_stand_in_their_cells_and_can_be_read(self):
        """Dark ink on bright cells, white on dark ones."""
        _, axes = plt.subplots()
        heat_map(axes, [[0.0, 1.0, 0.5]], numbers=".1f")
        texts = {text.get_position(): (text.get_text(), text.get_color()) for text in axes.texts}
        assert texts[(0, 0)] == ("0.0", "white")
        assert texts[(1, 0)] == ("1.0", "black")
        assert texts[(2, 0)][0] == "0.5"

    def test_limits_follow_what_is_asked(self):
        _, axes = plt.subplots()
        assert heat_map(axes, [[-2.0, 3.0]], low=None).get_clim() == (-2.0, 3.0)
        assert heat_map(axes, [[-2.0, 3.0]], low=-5.0, high=5.0).get_clim() == (-5.0, 5.0)

    def test_long_labels_are_turned(self):
        _, axes = plt.subplots()
        heat_map(axes, [[0.0, 1.0]], columns=["three", "drei"])
        assert {label.get_rotation() for label in axes.get_xticklabels()} == {60.0}

    def test_it_draws_inside_the_style(self):
        with style():
            figure, axes = plt.subplots()
            heat_map(axes, np.eye(3), numbers=".0f")
            figure.savefig(io.BytesIO(), format="png")

    @pytest.mark.usefixtures("without_shape_checks")
    def test_what_does_not_fit_is_refused(self):
        _, axes = plt.subplots()
        with pytest.raises(ValueError, match=r"matrix must have shape \(rows, columns\), got \(3,\)"):
            heat_map(axes, [1.0, 2.0, 3.0])
        with pytest.raises(ValueError, match="rows must hold 2 labels, got 3"):
            heat_map(axes, [[1.0], [2.0]], rows=["a", "b", "c"])
        with pytest.raises(ValueError, match="columns must hold 1 labels, got 2"):
            heat_map(axes, [[1.0], [2.0]], columns=["a", "b"])
