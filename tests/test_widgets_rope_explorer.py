"""The RoPE explorer in Python: settings, what counts as unseen, scores, picture and alternative text."""

from __future__ import annotations

import cmath
import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from tx_from_scratch.plots import style
from tx_from_scratch.positions import RotaryEmbedding
from tx_from_scratch.widgets import RoPEExplorer
from tx_from_scratch.widgets.base import MAX_STATE
from tx_from_scratch.widgets.rope_explorer import (
    METHODS,
    VECTORS,
    chosen_vectors,
    rotated_scores,
    scaling,
    unseen_angles,
)


def test_unseen_is_what_no_trained_position_comes_near() -> None:
    """By brute force: without scaling, an angle is seen if a trained one lies at most a step before it."""
    facts = RoPEExplorer().measure(d_head=16, base=500.0, trained_length=40, target_length=300)
    for pair, theta in enumerate(facts.theta.tolist()):
        for position in range(300):
            behind = [(position * theta - trained * theta) % (2 * math.pi) for trained in range(40)]
            # Rounding may make an angle that is reached exactly one that is missed by a whole turn.
            near = min(min(gap, 2 * math.pi - gap if gap > 6.28318 else gap) for gap in behind) < theta - 1e-9
            assert bool(facts.unseen[position, pair]) != near, (pair, position)


def test_without_scaling_slow_pairs_are_lost_where_training_ends() -> None:
    """Nothing is unseen up to L; at L all slow pairs are, and none of the fast ones ever is."""
    facts = RoPEExplorer().measure(trained_length=512, target_length=4096)
    slow = facts.trained < 1
    assert int(slow.sum()) == 16
    assert not facts.unseen[:512].any()
    torch.testing.assert_close(facts.unseen[512], slow)
    assert not facts.unseen[:, ~slow].any()
    assert facts.unseen[512:, -1].all()
    # A pair that comes full circle later points where it did in training.
    first = int(slow.nonzero()[0])
    around = math.ceil(2 * math.pi / facts.theta[first])
    assert facts.unseen[around - 1, first]
    assert not facts.unseen[around, first]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "none"])
@pytest.mark.parametrize("target_length", [513, 2048, 4096])
def test_every_scaling_takes_the_slowest_pair_back(method: str, target_length: int) -> None:
    """Its angles end where those of training did; with all methods but NTK nothing else is new either."""
    facts = RoPEExplorer().measure(method=method, target_length=target_length)
    assert not facts.unseen[:, -1].any()
    if method in ("linear", "yarn_index", "yarn_rotations"):
        assert not facts.unseen.any()


def test_ntk_leaves_some_angles_unseen() -> None:
    """Only the slowest pair is divided by s; slow ones before it still go further than in training."""
    facts = RoPEExplorer().measure(method="ntk", trained_length=512, target_length=4096)
    unscaled = RoPEExplorer().measure(method="none", trained_length=512, target_length=4096)
    assert 0 < int(facts.unseen.sum()) < int(unscaled.unseen.sum())


def test_unseen_angles_by_hand() -> None:
    """A pair that made a quarter of a turn, and one that made two."""
    turns = torch.tensor([[0.0, 0.0], [0.24, 1.9], [0.25, 2.5], [0.99, 0.75], [1.1, 7.3]])
    expected = [[False, False], [False, False], [True, False], [True, False], [False, False]]
    assert unseen_angles(turns, torch.tensor([0.25, 2.0])).tolist() == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("vectors", VECTORS)
def test_scores_are_those_of_the_rotary_embedding(method: str, vectors: str) -> None:
    """The module that models use gives the same score to the last query and the first key of a text."""
    sizes: dict[str, Any] = {"d_head": 24, "base": 3000.0, "trained_length": 30, "target_length": 90}
    facts = RoPEExplorer().measure(method=method, vectors=vectors, peak=33, seed=4, **sizes)
    peak_angles = 33 * facts.frequencies[33]
    query, key = (
        vector.float().view(1, 1, 1, -1)
        for vector in chosen_vectors(24, vectors, seed=4, peak_angles=peak_angles)
    )
    rotary = RotaryEmbedding(24, base=3000.0, scaling=scaling(method, trained_length=30, target_length=90))
    divisor = 24 if vectors == "constant" else math.sqrt(24)
    for distance in (0, 1, 29, 30, 33, 89):
        places = torch.arange(distance + 1)[None]
        asking = rotary(query.expand(1, 1, distance + 1, -1), places)[0, 0, -1]
        asked = rotary(key.expand(1, 1, distance + 1, -1), places)[0, 0, 0]
        assert float(asking @ asked) / divisor == pytest.approx(float(facts.scores[distance]), abs=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("peak", [0, 1, 333, 1999])
def test_chosen_vectors_have_their_largest_score_where_asked(method: str, peak: int) -> None:
    """So a query can prefer any distance: RoPE as such does not make scores decay."""
    facts = RoPEExplorer().measure(method=method, vectors="chosen", peak=peak, target_length=2000)
    assert int(facts.scores.argmax()) == peak
    assert float(facts.scores[peak]) == pytest.approx(32 / 8 * facts.attention_factor**2)


def test_constant_vectors_decay_unevenly_below_the_bound() -> None:
    """The published picture: a falling trend, but half of the steps go up; the bound holds, and is loose."""
    facts = RoPEExplorer().measure(d_head=128, trained_length=4096, target_length=4096)
    assert [round(float(facts.scores[n]), 2) for n in (0, 1, 10, 100, 1000)] == [1, 0.97, 0.67, 0.48, 0.16]
    assert float((facts.scores.diff() > 0).double().mean()) == pytest.approx(0.49, abs=0.01)
    assert (facts.scores.abs() <= facts.bound + 1e-12).all()
    assert float(facts.bound[0]) == pytest.approx((64 + 1) / 2)


def test_bound_is_the_definition() -> None:
    """Term by term, with complex numbers: the mean size of the first j unit vectors' sum."""
    facts = RoPEExplorer().measure(d_head=10, base=200.0, trained_length=20, target_length=25)
    for distance in range(25):
        terms = [cmath.exp(1j * distance * theta) for theta in facts.theta.tolist()]
        sizes = [abs(sum(terms[:count])) for count in range(1, 6)]
        assert float(facts.bound[distance]) == pytest.approx(sum(sizes) / 5, abs=1e-12)


def test_random_scores_neither_decay_nor_grow() -> None:
    """Over many pairs of normal vectors the spread of q·k / √d is 1 at every distance."""
    theta = RoPEExplorer().measure(target_length=256).theta
    scores = torch.stack(
        [
            rotated_scores(*chosen_vectors(64, "random", seed=seed, peak_angles=theta), angles)
            for seed in range(1000)
            for angles in (torch.tensor([0, 1, 16, 255])[:, None] * theta,)
        ]
    )
    spread = scores.std(dim=0) / 8
    np.testing.assert_allclose(spread, 1, atol=0.1)  # four standard errors of a spread over 1000 pairs
    np.testing.assert_allclose(scores.mean(dim=0) / 8, 0, atol=0.13)


def test_dynamic_ntk_goes_by_the_text() -> None:
    """Up to the trained length nothing changes; at the target length it is NTK-aware scaling."""
    dynamic, fixed, none = (
        RoPEExplorer().measure(method=name, position=2047) for name in ("dynamic_ntk", "ntk", "none")
    )
    torch.testing.assert_close(dynamic.frequencies[:512], none.frequencies[:512], rtol=1e-12, atol=0)
    torch.testing.assert_close(dynamic.frequencies[2047], fixed.frequencies[2047], rtol=1e-12, atol=0)
    assert (dynamic.factor, fixed.factor, none.base) == (4, 4, 10_000)
    assert dynamic.base == fixed.base == pytest.approx(10_000 * 4 ** (64 / 62))
    assert RoPEExplorer().measure(method="dynamic_ntk", position=511).factor == 1


def test_unknown_method_is_refused() -> None:
    """By name, with the choices."""
    with pytest.raises(ValueError, match=r"method must be one of none, linear, ntk, .*; got 'pi'"):
        scaling("pi", trained_length=2, target_length=4)


BAD = [
    ({"d_head": 6}, ValueError, "d_head must be from 8 to 128, got 6"),
    ({"d_head": 65}, ValueError, "d_head must be from 8 to 128 in steps of 2, got 65"),
    ({"d_head": 64.5}, TypeError, "d_head must be an integer"),
    ({"base": 99.0}, ValueError, "base must be from 100 to 1e"),
    ({"base": math.nan}, ValueError, "base must be from 100"),
    ({"trained_length": 15}, ValueError, "trained_length must be from 16 to 4096"),
    ({"target_length": 4097}, ValueError, "target_length must be from 16 to 4096"),
    (
        {"method": "yarn"},
        ValueError,
        "method must be one of none, linear, ntk, dynamic_ntk, yarn_index, yarn_ro",
    ),
    ({"vectors": "fixed"}, ValueError, "vectors must be one of constant, random, chosen; got 'fixed'"),
    ({"seed": True}, TypeError, "seed must be an integer from 0 to 999, got True"),
    ({"peak": -1}, ValueError, "peak must be from 0 to 4095"),
    ({"distance": 3}, TypeError, "no setting 'distance'"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD)
def test_bad_settings_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    """At construction and later, by name, with the range; the setting stays as it was."""
    with pytest.raises(error, match=message):
        RoPEExplorer(**settings)
    name, value = next(iter(settings.items()))
    widget = RoPEExplorer()
    if widget.has_trait(name):
        before = getattr(widget, name)
        with pytest.raises(error, match=message):
            setattr(widget, name, value)
        assert getattr(widget, name) == before


def test_position_and_peak_stay_inside_the_text() -> None:
    """Beyond the target length they give way to its last position."""
    widget = RoPEExplorer(target_length=100, position=4000, peak=3000, vectors="chosen")
    assert widget.place == 99
    assert int(widget.measure().scores.argmax()) == 99


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("vectors", VECTORS)
def test_picture_and_words(method: str, vectors: str) -> None:
    """The picture shows the library's angles, those unseen in other colors; the words give its figures."""
    widget = RoPEExplorer(
        method=method, vectors=vectors, trained_length=64, target_length=200, position=150, peak=120
    )
    facts = widget.measure()
    with style():
        figure = widget.figure()
    images: list[Any] = [image.get_array() for image in figure.axes[0].images]
    seen, unseen = images
    cosine = (torch.arange(200)[:, None] * facts.frequencies).cos()
    np.testing.assert_array_equal(np.ma.getmaskarray(seen), facts.unseen)
    np.testing.assert_array_equal(np.ma.getmaskarray(unseen), ~facts.unseen)
    np.testing.assert_allclose(np.where(facts.unseen, unseen.data, seen.data), cosine, atol=1e-7)
    drawn = [np.asarray(line.get_ydata()) for line in figure.axes[2].lines]
    assert any(len(curve) == 200 and np.allclose(curve, facts.scores) for curve in drawn)
    bound = {line.get_label(): line.get_ydata() for line in figure.axes[2].lines}
    shape = bound.get("shape of the upper bound, scaled to start at 1")
    assert (shape is not None) == (vectors == "constant")
    if shape is not None:
        np.testing.assert_allclose(np.asarray(shape), facts.bound / facts.bound[0])
    plt.close(figure)
    words = widget.describe()
    assert METHODS[method] in words
    assert f"{int((facts.trained < 1).sum())} of 32 pairs turn less than once" in words
    assert f"at position 150 those of {int(facts.unseen[150].sum())} pairs" in words
    assert f"{float(facts.scores[150]):.3g}" in words
    assert ("cosines and sines are multiplied by 1.114" in words) == method.startswith("yarn")
    assert (f"the base {facts.base:,.0f}" in words) == method.endswith("ntk")
    assert ("RoFormer" in words) == (vectors == "constant")
    if vectors == "chosen":
        assert words.endswith("is at distance 120.")


def test_bundle_and_state_are_small() -> None:
    """The angles are computed where they are shown; they do not travel."""
    widget = RoPEExplorer(d_head=128, target_length=4096)
    data, metadata = widget._repr_mimebundle_()
    assert metadata["image/png"]["alt"] == data["text/plain"] == widget.describe()
    assert data["image/png"].startswith(b"\x89PNG")
    state = widget.get_state()
    assert sum(len(str(value)) for name, value in state.items() if name not in ("_esm", "_css")) < 2_000
    assert len(str(state)) < MAX_STATE
    assert repr(RoPEExplorer(peak=3)) == (
        "RoPEExplorer(base=10000.0, d_head=64, method='none', peak=3, position=1000, seed=0, "
        "target_length=2048, trained_length=512, vectors='constant')"
    )
