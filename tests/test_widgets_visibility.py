"""The masks and visibility widget in Python: its masks, its line of code, its picture, its errors."""

from __future__ import annotations

import itertools
import json

import pytest
import torch

import tx_from_scratch.masks
import tx_from_scratch.sparse
from tx_from_scratch.widgets import Visibility
from tx_from_scratch.widgets.base import MAX_STATE
from tx_from_scratch.widgets.visibility import PARTS

SETTINGS = [
    {},
    {"length": 8, "padding": 3, "window": 0},
    {"length": 9, "causal": False, "windowed": False},
    {"length": 9, "windowed": False},
    {"length": 10, "causal": False, "windowed": False, "padding": 4},
    {"length": 12, "n_global": 2, "n_random": 3, "seed": 5, "window": 1},
    {"length": 11, "causal": False, "n_random": 2, "windowed": False, "seed": 1},
    {"length": 4, "n_global": 32, "n_random": 32, "padding": 127, "query": 127},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_mask_is_the_rule_that_is_stated(settings: dict[str, int]) -> None:
    """Written out pair by pair: opened by a part, or by none being on, and closed by neither limit."""
    widget = Visibility(**settings)
    n, here = widget.length, widget.measure()
    random = tx_from_scratch.sparse.random_mask(n, min(widget.n_random, n), widget.seed)
    real = n - min(widget.padding, n - 1)
    for i, j in itertools.product(range(n), repeat=2):
        opened = {
            "window": widget.windowed and abs(i - j) <= widget.window,
            "global": i < widget.n_global or j < widget.n_global,
            "random": bool(random[i, j]),
            "everything": not (widget.windowed or widget.n_global or widget.n_random),
        }
        closed = j >= real or (widget.causal and j > i)
        assert here.mask[i, j].item() == (any(opened.values()) and not closed)
        part = PARTS[here.parts[i, j]]
        if j >= real:
            assert part == "padding"
        elif here.mask[i, j]:
            assert part == next(name for name, is_open in opened.items() if is_open)
        else:
            assert part == "hidden"


@pytest.mark.parametrize("settings", SETTINGS)
def test_line_of_code_builds_the_mask(settings: dict[str, int]) -> None:
    """Run as a reader would who copies it: with the library's names, and no others."""
    widget = Visibility(**settings)
    names = {"torch": torch, **vars(tx_from_scratch.masks), **vars(tx_from_scratch.sparse)}
    exec(widget.code(), names)
    mask = names["mask"]
    assert mask is not None or not (widget.causal or widget.padding)
    mask = torch.ones(1, dtype=torch.bool) if mask is None else mask
    assert torch.equal(mask.expand(widget.length, widget.length), widget.mask())


def test_figures_of_a_window_known_by_hand() -> None:
    """Six tokens, a causal window of 1: 6 + 5 pairs of 6 · 7 / 2, and one diagonal more with every layer."""
    here = Visibility(length=6, window=1).measure()
    assert here.visible == 11
    assert here.full == 21
    assert here.all_after == 5
    assert here.empty == 0
    torch.testing.assert_close(here.share[:5], torch.tensor([11, 15, 18, 20, 21], dtype=torch.float64) / 21)
    assert here.share[5:].tolist() == [1.0] * 7
    assert here.layers[5].tolist() == [5, 4, 3, 2, 1, 0]


def test_queries_that_see_nothing_are_counted() -> None:
    """With a window of 0 a padded query would see itself alone, and that is padding."""
    assert Visibility(length=9, padding=4, window=0).measure().empty == 4
    # A causal random draw: the first query sees something only if it drew itself.
    drawn = tx_from_scratch.sparse.random_mask(9, 1, seed=2)
    assert Visibility(length=9, windowed=False, n_random=1, seed=2).measure().empty == (drawn.triu(1)).sum()


def test_padding_counts_in_no_share() -> None:
    """What real tokens know does not depend on how much padding follows them."""
    alone = Visibility(length=10, window=2).measure()
    padded = Visibility(length=25, padding=15, window=2).measure()
    assert torch.equal(alone.share, padded.share)
    assert alone.all_after == padded.all_after
    assert torch.equal(alone.layers, padded.layers[:10, :10])


@pytest.mark.parametrize(
    ("setting", "value", "error", "message"),
    [
        ("length", 3, ValueError, "length must be from 4 to 128, got 3"),
        ("length", 129, ValueError, "length must be from 4 to 128, got 129"),
        ("n_layers", 0, ValueError, "n_layers must be from 1 to 12, got 0"),
        ("padding", -1, ValueError, "padding must be from 0 to 127, got -1"),
        ("window", 1.5, TypeError, "window must be an integer from 0 to 127"),
        ("causal", 1, TypeError, "causal must be True or False, got 1"),
        ("seed", "0", TypeError, "seed must be an integer"),
        ("dilation", 2, TypeError, "Visibility has no setting 'dilation'; it has causal, length"),
    ],
)
def test_bad_settings_are_named(setting: str, value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Visibility(**{setting: value})


@pytest.mark.parametrize("settings", SETTINGS)
def test_picture_and_its_description(settings: dict[str, int]) -> None:
    """Both are there for every kind of mask, and the description has the numbers."""
    widget = Visibility(**settings)
    data, metadata = widget._repr_mimebundle_()
    assert data["image/png"].startswith(b"\x89PNG")
    assert metadata["image/png"]["alt"] == widget.describe() == data["text/plain"]
    here = widget.measure()
    assert f"{here.visible:,} of {widget.length**2:,} pairs are visible" in widget.describe()


def test_description_in_words() -> None:
    """Rows of 1, 2, 3, 3 real tokens and of 2, 1 for the padding, which sees token 0 and its neighbors."""
    widget = Visibility(length=6, window=1, n_layers=2, query=5, padding=2, n_global=1)
    assert widget.describe() == (
        "Attention mask of 6 tokens, causal, the last 2 are padding: a window of 1 to either side, "
        "1 global token. 12 of 36 pairs are visible; full attention would compute 18. After 2 layers "
        "100.0 % of the pairs of real tokens are reached, all are after 2; "
        "token 5 is influenced by 2 tokens. "
        "0 queries may attend to nothing."
    )


def test_state_is_small_and_repr_is_stable() -> None:
    widget = Visibility(length=128, n_random=32)
    assert len(json.dumps(widget.get_state(), default=str)) < MAX_STATE / 10
    assert repr(Visibility()) == repr(Visibility())
    assert "0x" not in repr(widget)
