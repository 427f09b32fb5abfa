"""Bad arguments of all schemes: the error names the argument, the value, and what would be right."""

from __future__ import annotations

import math
import re

import pytest
import torch
from tiny_language_models import build

from tx_from_scratch.positions import (
    ALiBi,
    DynamicNTKScaling,
    LearnedPositions,
    LinearScaling,
    NTKScaling,
    Places,
    RotaryEmbedding,
    ShawRelativePositions,
    T5RelativeBias,
    TransformerXLPositions,
    YaRNScaling,
    alibi_slopes,
    half_split_order,
    relative_shift,
    rope_frequencies,
    rotate,
    t5_bucket,
)

pytestmark = pytest.mark.usefixtures("without_shape_checks")

HEADS = torch.zeros(2, 3, 5, 8)
ANGLES = torch.zeros(1, 1, 5, 4)
STREAM = torch.zeros(2, 5, 6)
PLACES = torch.arange(5)[None]

SIZES = {
    "max_length": lambda size: LearnedPositions(size, 6),
    "d_model": lambda size: TransformerXLPositions(2, size, 3, 4),
    "n_layers": lambda size: ShawRelativePositions(size, 4),
    "n_heads": lambda size: T5RelativeBias(size),
    "max_distance": lambda size: ShawRelativePositions(2, 4, max_distance=size),
    "n_buckets": lambda size: T5RelativeBias(3, n_buckets=size),
    "d_head": lambda size: RotaryEmbedding(size),
    "rotated": lambda size: RotaryEmbedding(8, rotated=size),
    "trained_length": lambda size: YaRNScaling(2.0, size),
}


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", [0, -2])
def test_sizes_that_are_not_positive(name, size):
    with pytest.raises(ValueError, match=f"^{name} must be positive, got {size}"):
        SIZES[name](size)


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("size", [2.0, "4", True])
def test_sizes_that_are_no_integers(name, size):
    with pytest.raises(TypeError, match=f"^{name} must be an integer, got {size!r}"):
        SIZES[name](size)


WRONG = {
    "d_head odd": (lambda: RotaryEmbedding(7), "d_head must be even", "got 7"),
    "rotated odd": (lambda: RotaryEmbedding(8, rotated=3), "rotated must be even", "got 3"),
    "rotated too wide": (lambda: RotaryEmbedding(8, rotated=10), "at most d_head=8", "got 10"),
    "frequencies of an odd width": (lambda: rope_frequencies(7), "d_head must be even", "got 7"),
    "order of an odd width": (lambda: half_split_order(7), "d_head must be even", "got 7"),
    "base of one": (lambda: RotaryEmbedding(8, base=1.0), "base must be a finite number above 1", "got 1.0"),
    "base infinite": (lambda: rope_frequencies(8, base=math.inf), "base must be a finite", "got inf"),
    "base NaN": (lambda: rope_frequencies(8, base=math.nan), "base must be a finite", "got nan"),
    "layout": (lambda: RotaryEmbedding(8, layout="half"), "layout must be 'half_split'", "got 'half'"),
    "layout of a rotation": (
        lambda: rotate(HEADS, ANGLES, ANGLES, layout="interleave"),
        "layout must be 'half_split' or 'interleaved'",
        "got 'interleave'",
    ),
    "one angle for many pairs": (
        lambda: rotate(HEADS, ANGLES[..., :1], ANGLES[..., :1]),
        "cosine must have a column for every two dimensions",
        "got 1 columns for 8",
    ),
    "other width": (
        lambda: RotaryEmbedding(6)(HEADS, PLACES),
        "queries and keys must have width d_head=6",
        "got 8",
    ),
    "one position for many": (
        lambda: RotaryEmbedding(8)(HEADS, PLACES[:, :1]),
        "positions must have shape (2, 5) or (1, 5)",
        "got (1, 1)",
    ),
    "three rows for two": (
        lambda: RotaryEmbedding(8)(HEADS, PLACES.expand(3, -1)),
        "positions must have shape (2, 5)",
        "got (3, 5)",
    ),
    "three dimensions": (
        lambda: RotaryEmbedding(8)(HEADS[0], PLACES),
        "x must have shape (batch, heads, seq, d_head)",
        "got (3, 5, 8)",
    ),
    "factor below one": (lambda: LinearScaling(0.5), "factor must be at least 1", "got 0.5"),
    "factor NaN": (lambda: NTKScaling(math.nan), "factor must be at least 1", "got nan"),
    "factor infinite": (lambda: YaRNScaling(math.inf, 512), "factor must be at least 1", "got inf"),
    "ramp": (lambda: YaRNScaling(2.0, 512, ramp="linear"), "ramp must be 'index' or", "got 'linear'"),
    "slow above fast": (
        lambda: YaRNScaling(2.0, 512, fast=1.0, slow=2.0),
        "slow must be above 0 and below fast",
        "got slow=2.0, fast=1.0",
    ),
    "slow zero": (lambda: YaRNScaling(2.0, 512, slow=0.0), "slow must be above 0", "got slow=0.0"),
    "one pair and another base": (
        lambda: RotaryEmbedding(2, scaling=NTKScaling(2.0)),
        "d_head must be at least 4",
        "got 2",
    ),
    "no length": (
        lambda: DynamicNTKScaling(512).frequencies(8, 10_000.0),
        "length must be given",
        "dynamic NTK",
    ),
    "no exact buckets": (
        lambda: T5RelativeBias(3, n_buckets=1),
        "n_buckets must be at least 2",
        "got n_buckets=1",
    ),
    "no exact buckets on either side": (
        lambda: t5_bucket(PLACES, bidirectional=True, n_buckets=3),
        "n_buckets must be at least 4",
        "got n_buckets=3",
    ),
    "nothing beyond the exact ones": (
        lambda: T5RelativeBias(3, max_distance=16),
        "max_distance above the 16 exact distances",
        "max_distance=16",
    ),
    "gain zero": (lambda: T5RelativeBias(3, gain=0.0), "gain must be a finite positive number", "got 0.0"),
    "gain infinite": (lambda: T5RelativeBias(3, gain=math.inf), "gain must be a finite positive", "got inf"),
    "too few distances": (
        lambda: relative_shift(torch.zeros(2, 3, 5, 7), 7),
        "scores must have a column for each of 7 + 5 - 1 distances",
        "got 7",
    ),
    "shorter than trained": (
        lambda: LearnedPositions(16, 6).extended(15),
        "max_length must be at least the 16 rows",
        "got 15",
    ),
    "interpolated to nothing": (
        lambda: LearnedPositions(16, 6).interpolated(0),
        "max_length must be positive",
        "got 0",
    ),
    "negative spread": (lambda: LearnedPositions(16, 6, std=-0.1), "std must be a finite number", "got -0.1"),
    "stream of another width": (
        lambda: LearnedPositions(16, 6).embed(STREAM[..., :1], PLACES),
        "x must have width d_model=6",
        "got 1",
    ),
    "dropout above one": (lambda: TransformerXLPositions(2, 12, 3, 4, dropout=1.5), "dropout", "1.5"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values(case):
    call, message, value = WRONG[case]
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        call()
    assert value in str(caught.value)


WRONG_TYPES = {
    "heads of ALiBi": (lambda: ALiBi(2.5), "n_heads must be an integer, got 2.5"),
    "slopes": (lambda: alibi_slopes(True), "n_heads must be an integer, got True"),
    "scaling": (lambda: RotaryEmbedding(8, scaling=2.0), "scaling must be a RoPEScaling such as"),
    "trained length": (lambda: DynamicNTKScaling(512.0), "trained_length must be an integer, got 512.0"),
    "fractions of positions": (
        lambda: RotaryEmbedding(8)(HEADS, PLACES / 2),
        "positions must be integers, got torch.float32",
    ),
    "learned fractions": (
        lambda: LearnedPositions(16, 6).embed(STREAM, PLACES / 2),
        "positions must be integers, got torch.float32",
    ),
    "integers to be turned": (
        lambda: RotaryEmbedding(8)(HEADS.long(), PLACES),
        "x must be a tensor of floating-point numbers, got torch.int64",
    ),
    "a list to be turned": (
        lambda: RotaryEmbedding(8)([[1.0]], PLACES),
        "x must be a tensor of floating-point numbers, got list",
    ),
}


@pytest.mark.parametrize("case", WRONG_TYPES)
def test_wrong_types(case):
    call, message = WRONG_TYPES[case]
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("positions", "shown"),
    [
        ([[0, 1]], "list"),
        (PLACES.float(), "torch.float32"),
        (PLACES.to(torch.complex128), "torch.complex128"),
        (PLACES.bool(), "torch.bool"),
    ],
)
def test_positions_that_are_no_integers(positions, shown):
    for call in (
        lambda: Places.of(positions),
        lambda: RotaryEmbedding(8)(HEADS, positions),
        lambda: LearnedPositions(16, 6).embed(STREAM, positions),
    ):
        with pytest.raises(TypeError, match=f"^positions must be integers, got {shown}"):
            call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_positions_may_be_narrow_integers(dtype):
    narrow = PLACES.to(dtype)
    assert torch.equal(Places.of(narrow).relative(), Places.of(PLACES).relative())
    x = torch.randn_like(HEADS)
    assert torch.equal(RotaryEmbedding(8)(x, narrow), RotaryEmbedding(8)(x, PLACES))
    learned = LearnedPositions(16, 6)
    assert torch.equal(learned.embed(STREAM, narrow), learned.embed(STREAM, PLACES))


MADE_FOR = {  # a model of 2 layers of width 24, with 3 heads of width 8
    "n_heads=1": lambda causal: ALiBi(1),
    "n_heads=4": lambda causal: T5RelativeBias(4, bidirectional=not causal),
    "n_layers=3": lambda causal: ShawRelativePositions(3, 8),
    "d_head=4": lambda causal: ShawRelativePositions(2, 4),
    "n_layers=1": lambda causal: TransformerXLPositions(1, 24, 3, 8),
    "n_heads=2": lambda causal: TransformerXLPositions(2, 24, 2, 8),
    "d_head=1": lambda causal: TransformerXLPositions(2, 24, 3, 1),
    "d_head=6": lambda causal: RotaryEmbedding(6),
    "d_model=12": lambda causal: LearnedPositions(16, 12),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("size", MADE_FOR)
def test_schemes_made_for_another_model(size, causal):
    scheme, name = MADE_FOR[size](causal), size.split("=")[0]
    has = {"n_layers": 2, "d_model": 24, "n_heads": 3, "d_head": 8}[name]
    shown = f"^positions must fit the model: this {type(scheme).__name__} is made for {size}, the model has "
    with pytest.raises(ValueError, match=f"{shown}{name}={has}$"):
        build(positions=scheme, causal=causal)


@pytest.mark.parametrize("causal", [True, False])
def test_a_table_reads_in_the_directions_of_its_model(causal):
    """The past's alone is wrong in an encoder; both directions' leaves half its rows unused in a decoder."""
    wrong = f"^positions must fit .* bidirectional={causal}, the model has causal={causal}, so "
    with pytest.raises(ValueError, match=wrong):
        build(positions=T5RelativeBias(3, bidirectional=causal), causal=causal)
    build(positions=T5RelativeBias(3, bidirectional=not causal), causal=causal)
