"""The attention map without a browser: what it takes and refuses, what it keeps, its picture and its text."""

from __future__ import annotations

import json
import math
import warnings
from base64 import b64encode
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from attention_examples import HOSTILE, names, softmax
from ipywidgets.embed import embed_data

from tx_from_scratch.inspection import AttentionMaps, capture_attention
from tx_from_scratch.transformer import Transformer, TransformerConfig
from tx_from_scratch.weight_statistics import diagonal_share, entropy
from tx_from_scratch.widgets import AttentionMap
from tx_from_scratch.widgets.attention_picture import pooled
from tx_from_scratch.widgets.base import MAX_STATE
from tx_from_scratch.widgets.tokens import visible

HALF_A_STEP = 1 / 131_070

# A page can't hold half of a surrogate pair; a string in Python can.
STRANGE = [*HOSTILE, "\ud83d", "IPY_MODEL_1", "中"]


def test_maps_are_the_weights_within_half_a_step() -> None:
    """Layers, heads, queries and keys keep their places: all four sizes differ."""
    weights = softmax(2, 3, 5, 7)
    widget = AttentionMap(weights, names(5), names(7))
    assert widget.maps.dtype == np.float32
    np.testing.assert_allclose(widget.maps, weights, atol=HALF_A_STEP + 1e-7, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_form_of_the_same_weights(dtype: torch.dtype) -> None:
    """Tensor, array, batched tensor, list of layers, tuple, nested lists: one result; no form is averaged."""
    weights = softmax(2, 3, 5, 7).to(dtype)
    forms: list[Any] = [
        weights,
        weights.float().numpy(),
        weights[:, None],
        list(weights[:, None]),
        tuple(weights[:, None]),
        [layer.float().numpy() for layer in weights[:, None]],
        weights.float().tolist(),
        weights.clone().requires_grad_(),
    ]
    for form in forms:
        maps = AttentionMap(form, names(5), names(7)).maps
        np.testing.assert_allclose(maps, weights.float(), atol=HALF_A_STEP + 1e-7, rtol=0)


def test_output_of_capture_attention() -> None:
    """Encoder, decoder and cross-attention of a model, each sequence of the batch by itself."""
    config = TransformerConfig(
        vocab_size=11, d_model=12, n_heads=3, n_encoder_layers=2, n_decoder_layers=2, d_ff=16
    )
    model = Transformer(config).eval()
    source, target = torch.randint(3, 11, (2, 7)), torch.randint(3, 11, (2, 5))
    with torch.no_grad(), capture_attention(model) as maps:
        model(source, target)
    for pattern, n_queries, n_keys in (
        ("encoder.layers.*.attention", 7, 7),
        ("decoder.layers.*.attention", 5, 5),
        ("decoder.layers.*.cross_attention", 5, 7),
    ):
        for row in (0, 1):
            widget = AttentionMap(maps, names(n_queries), names(n_keys), pattern=pattern, row=row, layers=[1])
            wanted = maps.stack(pattern)[1:, row]
            np.testing.assert_allclose(widget.maps, wanted, atol=HALF_A_STEP + 1e-7, rtol=0)
            assert f"sequence {row} of a batch of 2" in widget.describe()
    with pytest.raises(ValueError, match=r"pattern must say which.*encoder\.layers\.0\.attention"):
        AttentionMap(maps, names(7))
    with pytest.raises(ValueError, match="matches none of the captured paths"):
        AttentionMap(maps, names(7), pattern="encoder.*.nothing")
    with pytest.raises(ValueError, match="different shapes"):
        AttentionMap(maps, names(5), pattern="decoder.*")
    with pytest.raises(ValueError, match="row must be one of the batch, an integer from 0 to 1, got 2"):
        AttentionMap(maps, names(7), pattern="encoder.*", row=2)


def test_choosing_layers_heads_and_a_window() -> None:
    """The maps are those asked for, and labels keep the model's own numbers."""
    weights = softmax(4, 5, 6, 9)
    widget = AttentionMap(
        weights,
        names(6),
        names(9, "k"),
        layers=[3, 0],
        heads=slice(1, 4),
        queries=slice(2, 5),
        keys=slice(1, 8, 2),
    )
    wanted = weights[[3, 0]][:, 1:4, 2:5, 1:8:2]
    np.testing.assert_allclose(widget.maps, wanted, atol=HALF_A_STEP + 1e-7, rtol=0)
    widget.layer, widget.head = 1, 2
    text = widget.describe()
    assert "layer 0, head 3" in text
    assert "3 queries by 4 keys (a window into 6 by 9 from 2 and 1, in steps of 1 and 2)" in text
    query, key = divmod(int(wanted[1, 2].argmax()), 4)
    assert text.endswith(f"from query t{2 + query} to key k{1 + 2 * key}.")
    np.testing.assert_allclose(
        AttentionMap(weights, names(6), names(9), layers=-1, heads=0).maps, weights[-1:, :1], atol=1e-5
    )


def test_statistics_are_the_librarys() -> None:
    """Over every head; the diagonal of a window is the part of the whole one that it shows."""
    weights = softmax(2, 3, 6, 9)
    widget = AttentionMap(weights, names(6), names(9))
    for layer, head in np.ndindex(2, 3):
        here, exact = widget.statistics(layer, head), torch.from_numpy(widget.maps[layer, head]).double()
        assert here.entropy == pytest.approx(float(entropy(exact).mean()), abs=1e-9)
        assert here.diagonal_share == pytest.approx(float(diagonal_share(exact)), abs=1e-6)
        assert here.largest == pytest.approx(float(exact.max()))
        assert here.held == pytest.approx(1, abs=9 * HALF_A_STEP)
        assert exact[here.brightest] == exact.max()
    # Query i of 6 is paired with key floor((i + 1/2) · 9 / 6): 0, 2, 3, 5, 6, 8.
    cut = AttentionMap(weights, names(6), names(9), queries=slice(1, 5), keys=slice(3, 7))
    wanted = np.mean([weights[0, 0, 2, 3], weights[0, 0, 3, 5], weights[0, 0, 4, 6]])
    assert cut.statistics().diagonal_share == pytest.approx(wanted, abs=1e-5)
    assert cut.statistics().held == pytest.approx(float(weights[0, 0, 1:5, 3:7].sum(-1).mean()), abs=1e-4)
    none = AttentionMap(weights, names(6), names(9), queries=slice(0, 2), keys=slice(5, 9))
    assert math.isnan(none.statistics().diagonal_share)
    assert "none of the diagonal is shown" in none.describe()


def test_masked_rows_and_one_token() -> None:
    """A row of zeros stays one; a single token has entropy 0 and all its weight on the diagonal."""
    weights = softmax(1, 1, 3, 3)
    weights[..., 1, :] = 0
    widget = AttentionMap(weights, names(3))
    assert (widget.maps[0, 0, 1] == 0).all()
    assert widget.statistics().held == pytest.approx(2 / 3, abs=1e-4)
    zeros = AttentionMap(torch.zeros(1, 2, 3, 3), names(3))
    zeros._repr_mimebundle_()
    assert zeros.statistics().largest == 0
    one = AttentionMap(torch.ones(1, 1, 1, 1), ["a"])
    assert "entropy 0.00 nats" in one.describe()
    assert "diagonal share 1.00" in one.describe()
    one._repr_mimebundle_()


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "too few tokens": (
        softmax(1, 1, 3, 3),
        {"tokens": names(2)},
        "tokens has 2 tokens, but the weights have 3 queries",
    ),
    "too many key tokens": (
        softmax(1, 1, 3, 5),
        {"key_tokens": names(6)},
        "key_tokens has 6 tokens, but the weights have 5 keys",
    ),
    "no key tokens": (softmax(1, 1, 3, 5), {}, "key_tokens must name the 5 keys, since there are 3 queries"),
    "no tokens": (softmax(1, 1, 3, 3), {"tokens": []}, "tokens must hold at least one token, got none"),
    "one text": (softmax(1, 1, 3, 3), {"tokens": "abc"}, "tokens must be a list of strings, got 'abc'"),
    "a number": (softmax(1, 1, 3, 3), {"tokens": ["a", 2, "c"]}, "tokens must be strings, got 2 at index 1"),
    "bytes": (
        softmax(1, 1, 3, 3),
        {"key_tokens": ["a", b"b", "c"]},
        "key_tokens must be strings, got b'b' at index 1",
    ),
    "NaN": (
        torch.full((1, 1, 3, 3), torch.nan),
        {},
        "must be finite, got NaN or infinity in layer 0, head 0",
    ),
    "infinity": (torch.full((1, 1, 3, 3), torch.inf), {}, "must be finite"),
    "negative": (torch.full((1, 1, 3, 3), -0.25), {}, "must not be negative, got -0.25 in layer 0, head 0"),
    "dropout": (torch.full((1, 1, 3, 3), 1.25), {}, r"at most 1, got 1.25.*model\.eval\(\)"),
    "three axes": (softmax(1, 3, 3), {}, r"must have shape \(layers, heads, query, key\).*got \(1, 3, 3\)"),
    "six axes": (softmax(1, 1, 1, 1, 3, 3), {}, r"got \(1, 1, 1, 1, 3, 3\)"),
    "list of maps": ([softmax(3, 3)], {}, r"given as a list.*got \(3, 3\) for layer 0"),
    "uneven list": ([softmax(1, 1, 3, 3), softmax(1, 2, 3, 3)], {}, "one shape in all layers"),
    "empty": (torch.zeros(1, 1, 0, 0), {"tokens": []}, "at least one head, query and key"),
    "no layer": (torch.zeros(0, 1, 3, 3), {}, "at least one layer"),
    "words": ("weights", {}, "weights must be a tensor"),
    "none": ((None, None), {}, "weights must be a tensor"),
    "complex": (torch.ones(1, 1, 3, 3) * 1j, {}, "weights must be real"),
    "a layer too far": (softmax(2, 1, 3, 3), {"layers": [2]}, r"layers must be from 0 to 1, got \[2\]"),
    "a head too far": (softmax(2, 1, 3, 3), {"heads": -2}, "heads must be from 0 to 0, got -2"),
    "a head twice": (softmax(2, 3, 3, 3), {"heads": [0, -3]}, "heads must choose each at most once"),
    "half a head": (softmax(2, 3, 3, 3), {"heads": [0.5]}, r"heads must be integers or a slice, got \[0.5\]"),
    "no heads": (softmax(2, 3, 3, 3), {"heads": []}, "heads must choose at least one of 3"),
    "no queries": (softmax(2, 3, 3, 3), {"queries": slice(3, 9)}, "queries must choose at least one of 3"),
    "a list of keys": (softmax(2, 3, 3, 3), {"keys": [0]}, r"keys must be a slice, such as slice\(0, 100\)"),
    "backward": (softmax(2, 3, 3, 3), {"keys": slice(None, None, -1)}, "keys must go forward"),
    "pattern": (
        softmax(2, 3, 3, 3),
        {"pattern": "encoder.*"},
        "pattern goes with the output of capture_attention",
    ),
    "row": (softmax(2, 3, 3, 3), {"row": 1}, "row must be one of the batch, an integer from 0 to 0, got 1"),
    "nothing captured": (AttentionMaps(), {}, "captured: nothing yet"),
}


def test_the_browser_sets_what_python_reads() -> None:
    """What arrives from the page is checked as what is set in Python, and what is set in Python is sent."""
    widget = AttentionMap(softmax(2, 3, 5, 7), names(5), names(7))
    widget.set_state({"layer": 1, "head": 2, "query": 4, "key": -1, "view": "lines", "normalize": "0 to 1"})
    assert (widget.layer, widget.head, widget.query, widget.key) == (1, 2, 4, -1)
    assert (widget.view, widget.normalize) == ("lines", "0 to 1")
    with pytest.raises(ValueError, match="head must be from 0 to 2, got 3"):
        widget.set_state({"head": 3})
    assert widget.head == 2
    widget.key = np.int64(3)
    assert widget.get_state("key") == {"key": 3}


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_refused(case: str) -> None:
    """With the argument, its value, and what would be right."""
    weights, options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        AttentionMap(weights, **({"tokens": names(3)} | options))


def test_settings_are_checked_against_what_is_shown() -> None:
    """At construction and later; the range is that of these weights."""
    widget = AttentionMap(softmax(2, 3, 5, 7), names(5), names(7), layer=1, head=2, query=4, key=6)
    for name, count in (("layer", 2), ("head", 3), ("query", 5), ("key", 7)):
        low = 0 if name in ("layer", "head") else -1
        for bad in (count, low - 1):
            with pytest.raises(ValueError, match=f"{name} must be from {low} to {count - 1}, got {bad}"):
                setattr(widget, name, bad)
        with pytest.raises(TypeError, match=f"{name} must be from"):
            setattr(widget, name, 0.5)
        with pytest.raises(ValueError, match=f"{name} must be from"):
            AttentionMap(softmax(2, 3, 5, 7), names(5), names(7), **{name: count})
    with pytest.raises(ValueError, match="view must be one of map, lines"):
        widget.view = "table"
    with pytest.raises(ValueError, match="normalize must be one of each map, 0 to 1"):
        widget.normalize = "log"
    with pytest.raises(
        TypeError, match=r"no setting 'color'; it has head, key, layer, normalize, query, view$"
    ):
        AttentionMap(softmax(1, 1, 2, 2), names(2), color="red")
    for part in ("AttentionMap(", "layer=1", "head=2", "view='map'", "query=4", "key=6"):
        assert part in repr(widget)
    assert "_weights" not in repr(widget)


def test_more_than_a_notebook_should_hold_is_refused_at_once() -> None:
    """By shape alone, before any copy: these would be terabytes, so a copy could only fail."""
    endless = torch.zeros(1).expand(12, 12, 512, 512)
    with pytest.raises(
        ValueError,
        match=r"12 layers x 12 heads x 512.*100,.*more than the 1,000,000.*at most 1 of the 144 maps",
    ):
        AttentionMap(endless, names(512))
    huge = AttentionMaps({f"layers.{n}": [torch.zeros(1).expand(1, 64, 32768, 32768)] for n in range(96)})
    with pytest.raises(ValueError, match="96 layers x 64 heads x 32768 queries"):
        AttentionMap(huge, names(32768), pattern="layers.*")
    AttentionMap(
        huge, names(32768), pattern="layers.*", layers=5, heads=7, queries=slice(9, 12), keys=slice(90)
    )
    with pytest.raises(ValueError, match="choose at most 9 of the 144 maps with layers= and heads="):
        AttentionMap(torch.zeros(1).expand(12, 12, 200, 200), names(200))


def test_state_stays_within_its_limit() -> None:
    """As it is stored, in base64; what is just too large is refused, what just fits is not."""
    fitting = AttentionMap(torch.zeros(1).expand(12, 12, 50, 50), names(50))
    assert stored(fitting) <= MAX_STATE
    with pytest.raises(ValueError, match="choose at most 138 of the 144 maps"):
        AttentionMap(torch.zeros(1).expand(12, 12, 52, 52), names(52))
    tokens = names(2000)
    with pytest.raises(ValueError, match=r"such as queries=slice\(0, 1\d\d\)") as refusal:
        AttentionMap(torch.zeros(1).expand(1, 1, 2000, 2000), tokens)
    advice = str(refusal.value).rsplit("slice(0, ", 1)[1].rstrip(")")
    taken = AttentionMap(torch.zeros(1).expand(1, 1, 2000, 2000), tokens, queries=slice(0, int(advice)))
    assert 0.97 * MAX_STATE < stored(taken) <= MAX_STATE


def stored(widget: AttentionMap) -> int:
    """Characters that the data of a widget takes in a notebook."""
    state = widget.get_state(["_weights", "_tokens", "_layers", "_heads", "_window"])
    return sum(
        len(b64encode(value)) if isinstance(value, bytes) else len(json.dumps(value))
        for value in state.values()
    )


def test_tokens_can_not_break_the_page() -> None:
    """The stored state holds no character of a token that HTML could read, and the tokens all the same."""
    size = len(STRANGE)
    widget = AttentionMap(softmax(1, 2, size, size), STRANGE)
    state = embed_data(views=[widget])["manager_state"]["state"][widget.model_id]
    for part in ({**state["state"], "_esm": "", "_css": ""}, state["buffers"]):
        assert "<" not in json.dumps(part)
    assert json.loads(widget._tokens) == [STRANGE, STRANGE]


@pytest.mark.filterwarnings("error")
def test_picture_of_any_token() -> None:
    """No token starts a formula or lacks a glyph, and the whole bundle can be written to a file."""
    size = len(STRANGE)
    widget = AttentionMap(softmax(2, 2, size, size), STRANGE, layer=1, head=1)
    bundle, metadata = widget._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG")
    json.dumps(metadata, ensure_ascii=False).encode()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = widget.figure()
        figure.canvas.draw()
    thumbnails, large, bar = figure.axes
    labels = [label.get_text() for label in large.get_yticklabels()]
    assert labels[:3] == ["<s>", "</s>", "a<b<c"]
    assert r"\$x\$" in labels
    assert (large.get_xlabel(), large.get_ylabel(), large.get_title()) == ("key", "query", "layer 1, head 1")
    np.testing.assert_allclose(large.images[0].get_array(), widget.maps[1, 1])
    assert (thumbnails.get_xlabel(), thumbnails.get_ylabel()) == ("head", "layer")
    assert bar.get_ylabel() == "weight"
    plt.close(figure)


def test_picture_shows_the_range_that_is_set() -> None:
    """Each map's own largest weight, or 1."""
    weights = softmax(1, 2, 4, 6)
    for normalize, high in (("each map", float(weights[0, 1].max())), ("0 to 1", 1.0)):
        figure = AttentionMap(weights, names(4), names(6), head=1, normalize=normalize).figure()
        assert figure.axes[1].images[0].get_clim() == pytest.approx((0, high), abs=1e-5)
        plt.close(figure)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (5, 7), (13, 9), (9, 13)])
def test_pooling_keeps_the_peaks(size: tuple[int, int]) -> None:
    """Against a loop over all cells."""
    matrix = np.random.default_rng(0).random((13, 9), dtype=np.float32)
    rows, columns = min(size[0], 13), min(size[1], 9)
    wanted = np.zeros((rows, columns), np.float32)
    for (row, column), value in np.ndenumerate(matrix):
        place = row * rows // 13, column * columns // 9
        wanted[place] = max(wanted[place], value)
    np.testing.assert_array_equal(pooled(matrix, *size), wanted)


@pytest.mark.parametrize(
    ("token", "shown"),
    [
        ("cat", "cat"),
        ("", "∅"),
        (" the", "␣the"),
        ("a\n\tb\r", "a⏎⇥b␍"),
        ("\u00a0", "⍽"),
        ("\u202eabc", "⟨202E⟩abc"),
        ("\x00", "⟨0000⟩"),
        ("\u200d", "⟨200D⟩"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("\u0301", "◌\u0301"),
        ("\ud83d", "⟨D83D⟩"),
        ("<b>&amp;", "<b>&amp;"),
        ("ש", "ש"),
    ],
)
def test_marks(token: str, shown: str) -> None:
    """What can't be seen is marked; everything else stays."""
    assert visible(token) == shown


def test_long_tokens_are_cut_for_labels() -> None:
    """With a sign that there is more."""
    assert visible("x" * 20, 5) == "xxxx…"
    assert visible("xxxxx", 5) == "xxxxx"


def test_weights_of_a_query_sum_to_one_at_most() -> None:
    """Rows of ones are something else: a mask, or scores."""
    with pytest.raises(ValueError, match="must sum to 1, or to 0 where it may read nothing, got 3"):
        AttentionMap(torch.ones(1, 1, 3, 3), ["a", "b", "c"])
