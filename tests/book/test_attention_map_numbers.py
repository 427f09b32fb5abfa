"""What the attention map computes in Chromium equals the library, or a definition written out here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from attention_examples import HOSTILE, names, softmax

from tx_from_scratch.weight_statistics import diagonal_share, entropy
from tx_from_scratch.widgets import AttentionMap
from tx_from_scratch.widgets.attention_picture import pooled
from tx_from_scratch.widgets.tokens import visible

pytestmark = pytest.mark.browser

STATISTICS = """({ statistics, diagonalKeys }) => (grid) => grid.map(({ weights, window, ...sizes }) =>
    statistics(weights, { ...sizes, diagonal: diagonalKeys(window, sizes.rows, sizes.columns) }))"""


def test_browser_computes_what_the_library_does(compute: Callable[..., Any]) -> None:
    """Entropy, diagonal share, weight held and brightest pair of every head, whole and in windows."""
    widgets = [
        AttentionMap(softmax(2, 3, rows, columns), names(rows), names(columns))
        for rows, columns in ((1, 1), (5, 5), (5, 9), (9, 5), (1, 7), (7, 1), (60, 61))
    ]
    weights = softmax(2, 3, 20, 30)
    weights[..., 4, :] = 0
    widgets.append(AttentionMap(weights, names(20), names(30)))
    for queries, keys in (
        (slice(3, 17), slice(2, 29)),
        (slice(0, 20, 3), slice(1, 30, 2)),
        (slice(5), slice(20, 30)),
    ):
        widgets.append(AttentionMap(weights, names(20), names(30), queries=queries, keys=keys))
    grid = []
    for widget in widgets:
        layers, heads, rows, columns = widget.maps.shape
        integers = np.frombuffer(widget._weights, "<u2")
        sizes = {"count": layers * heads, "rows": rows, "columns": columns, "window": widget._window}
        grid.append({"weights": integers, **sizes})
    heads_seen = 0
    for widget, computed in zip(widgets, compute(AttentionMap, STATISTICS, grid), strict=True):
        whole = widget._window["queries"][2] == widget.maps.shape[2]
        for place, browser in zip(np.ndindex(widget.maps.shape[:2]), computed, strict=True):
            library, exact = widget.statistics(*place), torch.from_numpy(widget.maps[place]).double()
            assert browser["entropy"] == pytest.approx(float(entropy(exact).mean()), abs=1e-6)
            assert browser["diagonalShare"] == pytest.approx(library.diagonal_share, abs=1e-6, nan_ok=True)
            if whole:
                assert browser["diagonalShare"] == pytest.approx(float(diagonal_share(exact)), abs=1e-6)
            assert browser["held"] == pytest.approx(float(exact.sum(-1).mean()), abs=1e-6)
            assert browser["largest"] == pytest.approx(float(exact.max()), abs=1e-6)
            assert tuple(browser["brightest"]) == library.brightest
            heads_seen += 1
    assert heads_seen == 6 * len(widgets)


POOLED = (
    "({ pooled }) => (weights, grid) => grid.map(([tall, wide]) => pooled(weights, 5, 13, 9, tall, wide))"
)


def test_pooling_is_the_same_on_both_sides(compute: Callable[..., Any]) -> None:
    """The largest weight of each group of cells; what stands before the map is left alone."""
    weights = np.random.default_rng(0).integers(0, 65536, 5 + 13 * 9, dtype=np.uint16)
    weights[:5] = 65535
    grid = [[1, 1], [3, 2], [13, 9], [13, 4], [7, 9], [12, 8]]
    matrix = weights[5:].reshape(13, 9).astype(np.float32)
    for (tall, wide), result in zip(grid, compute(AttentionMap, POOLED, weights, grid), strict=True):
        np.testing.assert_array_equal(result.reshape(tall, wide), pooled(matrix, tall, wide))


STRONGEST = (
    "({ strongest }) => (weights, grid) => grid.map((choice) => strongest(weights, 4, 11, 17, choice))"
)


def test_the_strongest_lines_are_drawn(compute: Callable[..., Any]) -> None:
    """Against sorting: of all, of a query, of a key, of both; ties, zeros and faint ones too."""
    matrix = np.random.default_rng(0).integers(0, 40, (11, 17), dtype=np.uint16) * 1000
    weights = np.concatenate([np.full(4, 65535, np.uint16), matrix.ravel()])
    grid = [
        {"query": query, "key": key, "most": most, "faint": faint}
        for query in (-1, 0, 10)
        for key in (-1, 0, 16)
        for most in (1, 5, 60, 1000)
        for faint in (0, 7000, 7500.5, 50000)
    ]
    for choice, result in zip(grid, compute(AttentionMap, STRONGEST, weights, grid), strict=True):
        query, key = choice["query"], choice["key"]
        wanted = np.zeros((11, 17), bool)
        if query < 0 and key < 0:
            wanted[:] = True
        if query >= 0:
            wanted[query] = True
        if key >= 0:
            wanted[:, key] = True
        everything = np.sort(matrix[wanted & (matrix > 0)].astype(int))[::-1]
        kept = everything[everything >= choice["faint"]][: choice["most"]]
        drawn = matrix.ravel()[result["indices"]]
        assert len(set(result["indices"].tolist())) == len(drawn)
        assert wanted.ravel()[result["indices"]].all()
        np.testing.assert_array_equal(np.sort(drawn)[::-1], kept)
        rest = everything[len(kept) :]
        assert result["hidden"] == len(rest)
        assert result["largest"] == (rest.max() if len(rest) else 0)
        assert result["share"] == pytest.approx(rest.sum() / everything.sum())


RANKING = "({ ranking }) => (weights) => [ranking(weights, 3, 1, 40, 3), ranking(weights, 1, 5, 8, 5)]"


def test_ranking_against_sorting(compute: Callable[..., Any]) -> None:
    """The largest first, the earlier of two alike before the later, no zeros; along rows and columns."""
    weights = np.random.default_rng(1).integers(0, 6, 43, dtype=np.uint16)
    for part, most, result in zip(
        (weights[3:], weights[1:41:5]), (3, 5), compute(AttentionMap, RANKING, weights), strict=True
    ):
        order = [int(index) for index in np.argsort(-part.astype(int), kind="stable") if part[index]][:most]
        assert [entry["index"] for entry in result] == order
        assert [entry["weight"] for entry in result] == pytest.approx(
            [part[index] / 65535 for index in order]
        )


def test_marks_are_the_same_on_both_sides(compute: Callable[..., Any]) -> None:
    """Every character of the first planes that has a mark, alone, at either end and in the middle."""
    marked = [chr(code) for code in range(0x3100) if visible(chr(code)) != chr(code)]
    assert len(marked) > 200
    tokens = HOSTILE + [pattern.format(c) for c in marked for pattern in ("{}", "{}b", "a{}", "a{}b")]
    computed = compute(
        AttentionMap, "({ visible }) => (tokens) => tokens.map((token) => visible(token))", tokens
    )
    assert computed == [visible(token) for token in tokens]
    cut = compute(
        AttentionMap, "({ visible }) => (tokens) => tokens.map((token) => visible(token, 6))", tokens
    )
    assert cut == [visible(token, 6) for token in tokens]
