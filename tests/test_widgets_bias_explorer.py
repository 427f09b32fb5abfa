"""The bias explorer in Python: biases as of the library's modules, settings, tables, picture, words."""

from __future__ import annotations

import math
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from tx_from_scratch.plots import style
from tx_from_scratch.positions import (
    ALiBi,
    Places,
    ShawRelativePositions,
    T5RelativeBias,
    TransformerXLPositions,
)
from tx_from_scratch.widgets import BiasExplorer
from tx_from_scratch.widgets.base import MAX_STATE

LENGTH = 40


def places() -> Places:
    return Places.of(torch.arange(LENGTH)[None])


def shown(widget: BiasExplorer) -> torch.Tensor:
    """The maps of all heads, (heads, query, key)."""
    maps = []
    for head in range(widget.heads):
        widget.head = head
        maps.append(widget.bias())
    return torch.stack(maps)


def tables(seed: int = 0) -> dict[str, torch.Tensor]:
    """Learned tables of different numbers of heads."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"t5": (5, 12), "transformer_xl": (3, 18), "shaw": (4, 7)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.mark.parametrize("n_heads", [1, 6, 8, 16])
def test_alibi_is_the_librarys_and_blooms(n_heads: int) -> None:
    """The module's own bias; and transformers' causal one, up to a number for each query."""
    widget = BiasExplorer(n_heads=n_heads, length=LENGTH, causal=False)
    scheme = ALiBi(n_heads)
    torch.testing.assert_close(shown(widget).float(), scheme.prepare(places())[0], atol=1e-5, rtol=0)
    theirs = build_alibi_tensor(torch.ones(1, LENGTH), n_heads, torch.float32)  # type: ignore[no-untyped-call]
    ours = shown(BiasExplorer(n_heads=n_heads, length=LENGTH))[:, -1]
    difference = ours - theirs.reshape(n_heads, LENGTH)
    torch.testing.assert_close(difference, difference[:, :1].expand_as(ours), atol=1e-5, rtol=0)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_t5_is_the_librarys(bidirectional: bool) -> None:
    """The module's own bias, by the recipe of the docstring."""
    scheme = T5RelativeBias(3, bidirectional=bidirectional, n_buckets=10, max_distance=30, gain=2.5)
    table = scheme.gain * scheme.weight.T
    options: dict[str, Any] = {"t5_bidirectional": bidirectional, "t5_max_distance": 30}
    widget = BiasExplorer(t5=table, scheme="t5", length=LENGTH, causal=False, **options)
    with torch.no_grad():
        torch.testing.assert_close(shown(widget).float(), scheme.prepare(places())[0], atol=1e-6, rtol=0)


@torch.no_grad()
def test_transformer_xl_is_the_librarys() -> None:
    """With neither query nor key, what is left of the scores is v · W_R R: the recipe of the docstring."""
    d_head = 6
    scheme = TransformerXLPositions(2, 18, 3, d_head)
    for parameter in scheme.parameters():
        torch.nn.init.normal_(parameter)
    nothing = torch.zeros(1, 3, LENGTH, d_head)
    scale = 1 / math.sqrt(d_head)
    wanted = scheme.bias(nothing, nothing, scale, scheme.prepare(places()), 1)[0]
    table = torch.einsum("dhe,he->hd", scheme.project_distance[1], scheme.distance_bias) * scale
    widget = BiasExplorer(transformer_xl=table, scheme="transformer_xl", length=LENGTH, causal=False)
    torch.testing.assert_close(shown(widget).float(), wanted, atol=1e-5, rtol=0)


@torch.no_grad()
def test_shaw_is_the_librarys() -> None:
    """With one query at every position, and no key: the recipe of the docstring."""
    d_head = 6
    scheme = ShawRelativePositions(2, d_head, max_distance=5)
    query = torch.randn(3, d_head)
    scale = 1 / math.sqrt(d_head)
    everywhere = query[None, :, None].expand(1, 3, LENGTH, d_head)
    wanted = scheme.bias(everywhere, torch.zeros_like(everywhere), scale, scheme.prepare(places()), 1)
    table = query @ scheme.keys[1].T * scale
    widget = BiasExplorer(shaw=table, scheme="shaw", length=LENGTH, causal=False)
    assert wanted is not None
    torch.testing.assert_close(shown(widget).float(), wanted[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scheme", ["alibi", "t5", "transformer_xl", "shaw"])
def test_weights_are_the_softmax_of_the_row(scheme: str, causal: bool) -> None:
    """Of the map's own row, hidden keys included; and no smaller set of keys holds 90 % of them."""
    widget = BiasExplorer(**tables(), scheme=scheme, length=LENGTH, causal=causal, query=29, head=1)
    row = widget.bias()[29].softmax(dim=-1)
    weights = widget.weights()[1]
    torch.testing.assert_close(weights, row[: len(weights)], atol=1e-12, rtol=0)
    assert len(weights) == (30 if causal else LENGTH)
    assert row[len(weights) :].sum() == 0
    for head_weights, holding in zip(widget.weights(), widget.holding(), strict=True):
        heaviest = sorted(head_weights.tolist(), reverse=True)
        assert sum(heaviest[:holding]) >= 0.9 - 1e-9 > sum(heaviest[: holding - 1])


def test_equal_weights() -> None:
    """Without any preference nine of ten equal keys hold 90 %, however the sum is rounded."""
    widget = BiasExplorer(t5=np.zeros((1, 4)), scheme="t5", length=10, causal=False)
    torch.testing.assert_close(widget.weights(), torch.full((1, 10), 0.1, dtype=torch.float64))
    assert widget.holding() == [9]


def test_alibi_reaches_a_fixed_number_of_keys() -> None:
    """Geometric weights q^d with q = exp(−slope): n hold 90 % when 1 − q^n >= 0.9, however long the text."""
    wanted = [math.ceil(math.log(10) * 2**k) for k in range(1, 5)]  # slopes 1/2 ... 1/16 of eight heads
    for length in (256, 512):
        assert BiasExplorer(length=length).holding()[:4] == wanted == [5, 10, 19, 37]


def test_what_is_beyond_the_end_gives_way_to_the_last() -> None:
    widget = BiasExplorer(**tables(), head=15, length=20, query=300, key=300)
    assert widget.place == (7, 19, 19)
    widget.query = 4
    assert widget.place == (7, 4, 4)
    widget.causal = False
    assert widget.place == (7, 4, 19)
    widget.scheme = "shaw"
    assert widget.place == (3, 4, 19)
    assert widget.schemes == ("alibi", "t5", "transformer_xl", "shaw")


BAD_SETTINGS = [
    (
        {"scheme": "t5"},
        ValueError,
        r"scheme must be one of alibi \(learned ones have to be given\); got 't5'",
    ),
    ({"scheme": "rope"}, ValueError, "scheme must be one of alibi"),
    ({"n_heads": 17}, ValueError, "n_heads must be from 1 to 16, got 17"),
    ({"n_heads": 0}, ValueError, "n_heads must be from 1 to 16, got 0"),
    ({"head": -1}, ValueError, "head must be from 0 to 15, got -1"),
    ({"length": 513}, ValueError, "length must be from 8 to 512, got 513"),
    ({"length": 64.5}, TypeError, "length must be an integer from 8 to 512, got 64.5"),
    ({"query": 512}, ValueError, "query must be from 0 to 511"),
    ({"key": "0"}, TypeError, "key must be an integer from 0 to 511"),
    ({"trained_length": math.nan}, TypeError, "trained_length must be an integer from 8 to 512"),
    ({"causal": 1}, TypeError, "causal must be True or False, got 1"),
    ({"slope": 1}, TypeError, "BiasExplorer has no setting 'slope'; it has causal, head"),
]


@pytest.mark.parametrize(("settings", "error", "message"), BAD_SETTINGS)
def test_bad_settings_are_refused(settings: dict[str, Any], error: type[Exception], message: str) -> None:
    """At construction and later; what was set before stays."""
    with pytest.raises(error, match=message):
        BiasExplorer(**settings)
    widget = BiasExplorer()
    name, value = next(iter(settings.items()))
    if widget.has_trait(name):
        with pytest.raises(error, match=message):
            setattr(widget, name, value)
        assert widget.settings() == BiasExplorer().settings()


BAD_TABLES = [
    ({"t5": torch.zeros(32, 8)}, ValueError, r"1 to 16 heads, got \(32, 8\); scheme.weight is \(buckets, h"),
    ({"t5": torch.zeros(32)}, ValueError, r"t5 must have shape \(heads, buckets\), got \(32,\)"),
    ({"t5": [[1.0, 2.0], [3.0]]}, ValueError, "rows of different lengths"),
    ({"t5": np.zeros((0, 32))}, ValueError, "with 1 to 16 heads"),
    ({"t5": np.zeros((2, 1025))}, ValueError, "buckets from 2 to 1024"),
    ({"t5": [["a", "b"]]}, TypeError, "t5 must hold real numbers"),
    ({"shaw": torch.zeros(2, 5, dtype=torch.complex64)}, TypeError, "shaw must hold real numbers"),
    ({"shaw": np.zeros((2, 5), dtype=bool)}, TypeError, "shaw must hold real numbers, got bool"),
    ({"shaw": torch.zeros(2, 6)}, ValueError, "odd: one for each distance from -k to k"),
    ({"transformer_xl": torch.zeros(2, 7)}, ValueError, "d_model even"),
    ({"transformer_xl": torch.zeros(2, 8, 3)}, ValueError, r"got \(2, 8, 3\)"),
    ({"transformer_xl": torch.full((2, 8), math.nan)}, ValueError, "transformer_xl must be finite"),
    ({"transformer_xl": np.full((2, 8), 1e300)}, ValueError, "finite in float32"),
    ({"t5": np.zeros((2, 32)), "t5_max_distance": 16}, ValueError, "don't go together: n_buckets must be"),
    ({"t5": np.zeros((2, 3)), "t5_bidirectional": True}, ValueError, "n_buckets must be at least 4"),
    ({"t5_max_distance": 0}, ValueError, "t5_max_distance must be from 1 to 65536, got 0"),
    ({"t5_max_distance": 128.0}, TypeError, "t5_max_distance must be an integer, got 128.0"),
    ({"t5_bidirectional": 1}, TypeError, "t5_bidirectional must be True or False, got 1"),
]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("given", "error", "message"), BAD_TABLES)
def test_bad_tables_are_refused(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BiasExplorer(**given)


def test_every_kind_of_table_is_taken() -> None:
    """Parameters, half precision, arrays and lists of integers; none of them is changed or kept."""
    given = torch.nn.Parameter(torch.tensor([[0.5, -1.0, 2.0]]))
    for table in (given, given.detach().bfloat16(), given.detach().numpy(), given.tolist()):
        assert BiasExplorer(shaw=table).tables["shaw"].tolist() == [[0.5, -1.0, 2.0]]
    assert BiasExplorer(shaw=[[0, 1, 2]]).tables["shaw"].dtype == np.float32
    widget = BiasExplorer(shaw=given)
    with torch.no_grad():
        given.zero_()
    assert widget.tables["shaw"].tolist() == [[0.5, -1.0, 2.0]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scheme", ["alibi", "t5", "transformer_xl", "shaw"])
def test_picture_and_words(scheme: str, causal: bool) -> None:
    """The picture shows the bias where a key is seen; the words give the figures."""
    widget = BiasExplorer(
        **tables(), scheme=scheme, causal=causal, length=50, trained_length=20, head=2, key=3
    )
    with style():
        figure = widget.figure()
    image = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    bias = widget.bias().numpy()
    np.testing.assert_allclose(image, np.where(np.isfinite(bias), bias, np.nan), atol=1e-12)
    assert np.isnan(image).any() == causal
    plt.close(figure)
    words = widget.describe()
    assert f"distance 46: bias {bias[49, 3]:.4g}, farther than any pair of 20 training positions." in words
    assert f"weight {float(widget.weights()[2, 3]):.3g}, the last one (key 49) " in words
    assert f"{widget.holding()[2]} keys hold 90 % of the weight." in words


def test_words_of_each_scheme() -> None:
    options = {"length": 64, "key": 40, "trained_length": 64}
    t5 = BiasExplorer(t5=np.zeros((2, 32)), scheme="t5", **options)
    assert "T5, head 0 of 2: distance 23 is in bucket 18 of 32." in t5.describe()
    assert "farther" not in t5.describe()
    shaw = BiasExplorer(shaw=np.zeros((2, 9)), scheme="shaw", **options)
    assert "Shaw, head 0 of 2: distance 23 has entry -4 of -4 to 4." in shaw.describe()
    shaw.key = 61
    assert "distance 2 has entry -2 of -4 to 4." in shaw.describe()
    alibi = BiasExplorer(head=2, **options)
    assert (
        "ALiBi, head 2 of 8: slope 0.125. Query 63 and key 40, distance 23: bias -2.875." in alibi.describe()
    )
    assert "distance 0: bias 0. If" in BiasExplorer(key=63).describe()  # no minus before it


def test_extremes_are_drawn() -> None:
    """The first query, which sees one key; one head; a table without any differences; a bidirectional end."""
    for settings in (
        {"length": 8, "query": 0, "n_heads": 1},
        {"length": 512, "n_heads": 16, "head": 15, "causal": False, "query": 0, "key": 511},
        {"t5": np.zeros((16, 2)), "scheme": "t5", "length": 8, "t5_max_distance": 2},
    ):
        widget = BiasExplorer(**settings)
        data, metadata = widget._repr_mimebundle_()
        assert data["image/png"].startswith(b"\x89PNG")
        assert metadata["image/png"]["alt"] == data["text/plain"] == widget.describe()
        assert "nan" not in widget.describe()


def test_state_is_small_and_repr_is_stable() -> None:
    """The largest tables there may be; and the settings alone in the representation."""
    largest = {"t5": (16, 1024), "transformer_xl": (16, 4096), "shaw": (16, 1023)}
    given = {name: torch.zeros(shape) for name, shape in largest.items()}
    widget = BiasExplorer(**given, t5_max_distance=65_536)
    state = widget.get_state()
    assert sum(len(value) for value in state.values() if isinstance(value, bytes)) * 4 / 3 < MAX_STATE / 1.5
    assert repr(BiasExplorer(head=3)) == (
        "BiasExplorer(causal=True, head=3, key=40, length=64, n_heads=8, query=511, scheme='alibi', "
        "trained_length=32)"
    )
