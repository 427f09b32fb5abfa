"""Stretched RoPE: transformers' frequencies, the formulas, and what each method promises."""

from __future__ import annotations

import math

import pytest
import torch
from position_inputs import heads
from torch import Tensor

from tx_from_scratch.positions import (
    DynamicNTKScaling,
    LinearScaling,
    NTKScaling,
    Places,
    RoPEScaling,
    RotaryEmbedding,
    YaRNScaling,
    rope_frequencies,
)

WIDTHS_AND_BASES = [(8, 10_000.0), (64, 10_000.0), (128, 10_000.0), (128, 500_000.0)]
FLOAT32 = 2e-6
"""transformers raises the base to float32 exponents: 2⁻²⁴ · ln(500,000) ≈ 8e-7 relative, and a division."""


def theirs(
    method: str,
    d_head: int,
    base: float,
    *,
    length: int | None = None,
    trained_length: int,
    **parameters: float,
) -> tuple[Tensor, float]:
    """transformers' frequencies and attention factor."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope_parameters = {"rope_type": method, "rope_theta": base, **parameters}
    config = LlamaConfig(
        hidden_size=3 * d_head,
        num_attention_heads=3,
        max_position_embeddings=trained_length,
        rope_parameters=rope_parameters,
    )
    return ROPE_INIT_FUNCTIONS[method](config, seq_len=length)


def assert_same_frequencies(ours: Tensor, expected: Tensor) -> None:
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, expected.double(), atol=0, rtol=FLOAT32)


@pytest.mark.parametrize(("d_head", "base"), WIDTHS_AND_BASES)
@pytest.mark.parametrize("factor", [1.0, 2.5, 16.0])
def test_linear_equals_transformers(d_head, base, factor):
    scaling = LinearScaling(factor)
    expected, attention_factor = theirs("linear", d_head, base, trained_length=512, factor=factor)
    assert_same_frequencies(scaling.frequencies(d_head, base), expected)
    assert scaling.attention_factor == attention_factor == 1


@pytest.mark.parametrize(("d_head", "base"), WIDTHS_AND_BASES)
@pytest.mark.parametrize("length", [1, 511, 512, 513, 5_000])
def test_dynamic_ntk_equals_transformers(d_head, base, length):
    """Their base has factor · length / L − (factor − 1) where the paper has length / L: the same for 1."""
    expected, attention_factor = theirs(
        "dynamic", d_head, base, length=length, trained_length=512, factor=1.0
    )
    scaling = DynamicNTKScaling(512)
    assert_same_frequencies(scaling.frequencies(d_head, base, length), expected)
    assert scaling.attention_factor == attention_factor == 1
    if length <= 512:
        assert torch.equal(scaling.frequencies(d_head, base, length), rope_frequencies(d_head, base=base))


@pytest.mark.parametrize(("d_head", "base"), WIDTHS_AND_BASES)
@pytest.mark.parametrize("trained_length", [40, 512, 4_096])
@pytest.mark.parametrize("turns", [{}, {"beta_fast": 20.0, "beta_slow": 3.0}])
def test_yarn_equals_transformers(d_head, base, trained_length, turns):
    """Down to a trained length within which no pair makes 32 turns: the ramp begins with the first pair."""
    expected, attention_factor = theirs(
        "yarn",
        d_head,
        base,
        trained_length=trained_length,
        factor=8.0,
        original_max_position_embeddings=trained_length,
        **turns,
    )
    scaling = YaRNScaling(
        8.0, trained_length, fast=turns.get("beta_fast", 32.0), slow=turns.get("beta_slow", 1.0)
    )
    # Where both parts of the mixture are of one size, their rounding errors add up.
    assert_same_frequencies(scaling.frequencies(d_head, base), expected)
    assert scaling.attention_factor == pytest.approx(attention_factor, rel=1e-12)
    assert scaling.attention_factor == pytest.approx(0.1 * math.log(8) + 1, rel=1e-12)


@pytest.mark.parametrize(("d_head", "base"), WIDTHS_AND_BASES)
@pytest.mark.parametrize("factor", [1.0, 2.5, 16.0])
def test_ntk_leaves_the_fastest_pair_and_divides_the_slowest(d_head, base, factor):
    """In between, each pair is slowed down by factor^(2i / (d − 2))."""
    ratio = rope_frequencies(d_head, base=base) / NTKScaling(factor).frequencies(d_head, base)
    pair = torch.arange(d_head // 2, dtype=torch.float64)
    torch.testing.assert_close(ratio, factor ** (2 * pair / (d_head - 2)), atol=0, rtol=1e-12)
    assert ratio[0] == 1
    assert ratio[-1].item() == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("ramp", ["index", "rotations"])
def test_both_ramps_keep_and_divide_the_same_pairs(ramp):
    """Width 128, trained on 4,096: 21 pairs turn more than 32 times, 18 less than once, 25 lie between."""
    theta = rope_frequencies(128)
    ratio = YaRNScaling(16.0, 4_096, ramp=ramp).frequencies(128, 10_000.0) / theta
    turns = 4_096 * theta / (2 * math.pi)
    kept, divided = turns > 32, turns < 1
    assert [int(kept.sum()), int(divided.sum())] == [21, 18]
    torch.testing.assert_close(ratio[kept], torch.ones(21).double(), atol=0, rtol=1e-12)
    torch.testing.assert_close(ratio[divided], torch.full((18,), 1 / 16).double(), atol=0, rtol=1e-12)
    between = ratio[~(kept | divided)]
    assert ((between > 1 / 16) & (between < 1)).all()
    assert (between.diff() < 0).all()


def test_the_rotations_ramp_is_the_papers():
    """Equations 18 to 20 of the paper, one pair at a time."""
    actual = YaRNScaling(4.0, 1_000, ramp="rotations", fast=20.0, slow=2.0).frequencies(16, 10_000.0)
    for pair, frequency in enumerate(actual.tolist()):
        theta = 10_000.0 ** (-2 * pair / 16)
        turns = 1_000 / (2 * math.pi / theta)
        gamma = 0.0 if turns < 2 else 1.0 if turns > 20 else (turns - 2) / 18
        assert frequency == pytest.approx((1 - gamma) * theta / 4 + gamma * theta, rel=1e-12)


@pytest.mark.parametrize(("factor", "lower"), [(2.0, 0.234), (4.0, 0.423), (8.0, 0.566), (16.0, 0.671)])
def test_the_ramps_differ_between_their_ends(factor, lower):
    """The paper's lie below the code's, by up to 57 % for a factor of 8, and hardly ever above."""
    published, paper = (
        YaRNScaling(factor, 4_096, ramp=ramp).frequencies(128, 10_000.0) for ramp in ("index", "rotations")
    )
    share = 1 - paper / published
    assert share.max().item() == pytest.approx(lower, abs=1e-3)
    assert -0.03 < share.min() < 0


@pytest.mark.parametrize("method", ["index", "rotations"])
def test_a_factor_of_one_changes_nothing(method):
    for scaling in (RoPEScaling(), LinearScaling(1.0), NTKScaling(1.0), YaRNScaling(1.0, 512, ramp=method)):
        torch.testing.assert_close(
            scaling.frequencies(64, 10_000.0), rope_frequencies(64), atol=0, rtol=1e-12
        )
        assert scaling.attention_factor == 1


def test_scores_get_the_square_of_the_attention_factor():
    """Against the same frequencies without a factor, as another scaling."""
    yarn = YaRNScaling(8.0, 100)

    class SameFrequencies(RoPEScaling):
        def frequencies(self, *arguments, **options):
            return yarn.frequencies(*arguments, **options)

    query, key, positions = heads(7), heads(7), torch.arange(7)[None]
    scores = []
    for scaling in (yarn, SameFrequencies()):
        rope = RotaryEmbedding(4, scaling=scaling)
        scores.append(rope(query, positions) @ rope(key, positions).mT)
    torch.testing.assert_close(scores[0], scores[1] * (0.1 * math.log(8) + 1) ** 2, atol=1e-5, rtol=0)


def test_dynamic_ntk_knows_each_row():
    """Rows of 3, 12 and 40 tokens, each with the frequencies of its own length, as if it were alone."""
    scaling, lengths = DynamicNTKScaling(10), torch.tensor([[3], [12], [40]])
    together = scaling.frequencies(8, 10_000.0, lengths)
    alone = torch.stack([scaling.frequencies(8, 10_000.0, length) for length in (3, 12, 40)])
    torch.testing.assert_close(together, alone, atol=0, rtol=1e-12)

    rope, x = RotaryEmbedding(8, scaling=scaling), torch.randn(3, 1, 7, 8)
    positions = torch.stack([torch.arange(length - 7, length) for length in (7, 12, 40)])
    output = rope(x, positions)
    for row in range(3):
        torch.testing.assert_close(output[row : row + 1], rope(x[row : row + 1], positions[row : row + 1]))
    plain = RotaryEmbedding(8)(x, positions)
    assert torch.equal(output[0], plain[0])  # shorter than the trained length
    assert not torch.allclose(output[1], plain[1], atol=1e-3)


def test_dynamic_ntk_takes_the_length_it_is_told():
    """So that keys cached early in a text have the angles that it ends with."""
    rope, x = RotaryEmbedding(8, scaling=DynamicNTKScaling(10)), heads(12, 8)
    positions, longest = torch.arange(12)[None], torch.tensor([[12]])
    whole = rope.rotate(x, x, rope.prepare(Places.of(positions)))[1]
    early = Places(positions[:, :5], 5, 5, longest=longest)
    first = rope.rotate(x[:, :, :5], x[:, :, :5], rope.prepare(early))[1]
    torch.testing.assert_close(first, whole[:, :, :5], atol=1e-6, rtol=0)
    untold = rope.rotate(x[:, :, :5], x[:, :, :5], rope.prepare(Places.of(positions[:, :5])))[1]
    assert not torch.allclose(untold, first, atol=1e-3)
