"""RoPE: against transformers' rotations in both layouts, and what makes it a position scheme."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from position_inputs import heads
from torch import Tensor

from tx_from_scratch.positions import (
    Places,
    RotaryEmbedding,
    half_split_order,
    rope_frequencies,
    rotate,
)

OWN_ROWS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 0, 3, 900, 5, 17, 2]])


def gpt_j(x: Tensor, positions: Tensor, base_width: int) -> Tensor:
    """GPT-J's rotation of x, (batch, heads, seq, d_head): interleaved pairs, positions from 0 to 999."""
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb, create_sinusoidal_positions

    sine, cosine = create_sinusoidal_positions(1_000, base_width)[positions].chunk(2, dim=-1)
    return apply_rotary_pos_emb(x.transpose(1, 2), sine, cosine).transpose(1, 2)


@pytest.mark.parametrize("base", [10_000.0, 500.0])
@pytest.mark.parametrize("positions", [OWN_ROWS, OWN_ROWS[1:], OWN_ROWS - 450])
def test_half_split_equals_llama(base, positions):
    """transformers' Llama. Its angles are float32's, which costs up to 900 · 2⁻²⁴ ≈ 5e-5 radians here."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(
        hidden_size=24, num_attention_heads=3, rope_parameters={"rope_type": "default", "rope_theta": base}
    )
    query, key = heads(7, 8), heads(7, 8)
    expected = apply_rotary_pos_emb(query, key, *LlamaRotaryEmbedding(config)(query, positions))
    rope = RotaryEmbedding(8, base=base)
    for ours, theirs in zip((rope(query, positions), rope(key, positions)), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=0)
        near = positions.expand(2, -1).abs() < 20  # where float32 angles are as good as ours
        picked = near[:, None, :, None].expand_as(ours)
        torch.testing.assert_close(ours[picked], theirs[picked], atol=1e-5, rtol=0)


def test_interleaved_equals_gpt_j():
    x, positions = heads(7, 8), OWN_ROWS.clamp_max(20)
    ours = RotaryEmbedding(8, layout="interleaved")(x, positions)
    torch.testing.assert_close(ours, gpt_j(x, positions, 8), atol=1e-5, rtol=0)


def test_part_of_a_head_rotates_as_in_gpt_neox():
    """The leading quarter turns, with frequencies of its own width; the rest is left bit for bit."""
    from transformers import GPTNeoXConfig
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding, apply_rotary_pos_emb

    rope_parameters = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}
    config = GPTNeoXConfig(hidden_size=48, num_attention_heads=3, rope_parameters=rope_parameters)
    query, key, positions = heads(7, 16), heads(7, 16), OWN_ROWS.clamp_max(20)
    expected = apply_rotary_pos_emb(query, key, *GPTNeoXRotaryEmbedding(config)(query, positions))
    rope = RotaryEmbedding(16, rotated=4)
    actual = rope(query, positions), rope(key, positions)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert torch.equal(actual[0][..., 4:], query[..., 4:])


def test_part_of_a_head_rotates_as_in_gpt_j():
    x, positions = heads(7, 16), OWN_ROWS.clamp_max(20)
    ours = RotaryEmbedding(16, rotated=6, layout="interleaved")(x, positions)
    torch.testing.assert_close(ours[..., :6], gpt_j(x[..., :6], positions, 6), atol=1e-5, rtol=0)
    assert torch.equal(ours[..., 6:], x[..., 6:])


@pytest.mark.parametrize("layout", ["half_split", "interleaved"])
def test_a_pair_turns_by_position_times_frequency(layout):
    """Pair by pair as complex numbers in Python: z becomes z · exp(i m θ), far and negative positions too."""
    d_head, places = 6, [0, 1, -3, 100_003, -70_000]
    x = torch.randn(1, 1, 5, d_head, dtype=torch.float64)
    output = RotaryEmbedding(d_head, layout=layout)(x, torch.tensor([places]))
    for row, place in enumerate(places):
        for pair in range(d_head // 2):
            split = layout == "half_split"
            first, second = (pair, pair + d_head // 2) if split else (2 * pair, 2 * pair + 1)
            angle = place * 10_000.0 ** (-2 * pair / d_head)
            turned = complex(*x[0, 0, row, [first, second]].tolist()) * complex(
                math.cos(angle), math.sin(angle)
            )
            expected = torch.tensor([turned.real, turned.imag], dtype=torch.float64)
            torch.testing.assert_close(output[0, 0, row, [first, second]], expected, atol=1e-6, rtol=0)


def test_reordered_weights_make_one_layout_the_other():
    """Row order evens | odds in W_Q and W_K alike: equal scores. In one of them, or in none: other scores."""
    order, x, positions = half_split_order(8), torch.randn(2, 7, 12), OWN_ROWS
    weight_query, weight_key = torch.randn(2, 8, 12)

    def scores(layout: str, weight_query: Tensor, weight_key: Tensor) -> Tensor:
        rope = RotaryEmbedding(8, layout=layout)
        query, key = ((x @ weight.T)[:, None] for weight in (weight_query, weight_key))
        return rope(query, positions) @ rope(key, positions).mT

    expected = scores("interleaved", weight_query, weight_key)
    converted = scores("half_split", weight_query[order], weight_key[order])
    torch.testing.assert_close(converted, expected, atol=1e-4, rtol=1e-5)
    for mixed in [(weight_query, weight_key), (weight_query[order], weight_key)]:
        assert (scores("half_split", *mixed) - expected).abs().max() > 1
    assert order.tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


@pytest.mark.parametrize("layout", ["half_split", "interleaved"])
@given(
    query_place=st.integers(-100_000, 100_000),
    distance=st.integers(-100_000, 100_000),
    shift=st.integers(-100_000, 100_000),
    seed=st.integers(0, 2**31),
)
def test_score_depends_on_the_distance_only(layout, query_place, distance, shift, seed):
    """Unit vectors at positions up to 3e5: the same score, within what float32 can tell."""
    vectors = torch.randn(2, 1, 1, 1, 64, generator=torch.Generator().manual_seed(seed))
    query, key = vectors / vectors.norm(dim=-1, keepdim=True)
    rope = RotaryEmbedding(64, layout=layout)

    def score(first: int, second: int) -> Tensor:
        return (rope(query, torch.tensor([[first]])) * rope(key, torch.tensor([[second]]))).sum()

    here = score(query_place, query_place + distance)
    there = score(query_place + shift, query_place + distance + shift)
    torch.testing.assert_close(there, here, atol=1e-5, rtol=0)


def test_float32_angles_are_wrong_far_out():
    """Why angles are float64's: in float32 they err by about 1e-2 at position 10⁵, ours by 1e-7."""
    d_head, places = 64, torch.arange(99_000, 100_000)
    exponent = torch.arange(0, d_head, 2, dtype=torch.float64) / d_head
    exact = torch.outer(places.double(), 10_000.0**-exponent)
    in_float32 = torch.outer(places.float(), 1.0 / 10_000.0 ** exponent.float())
    error = (in_float32.cos().double() - exact.cos()).abs().max().item()
    assert 3e-3 < error < 3e-2
    angles = RotaryEmbedding(d_head).prepare(Places.of(places[None]))[0][0, 0]
    assert (angles.double() - exact.cos()).abs().max() < 1e-7


def test_offset_is_not_cached():
    """A05: the same object at another offset, in another precision, back again, and once with no history."""
    rope, x = RotaryEmbedding(8), heads(5, 8)
    full = RotaryEmbedding(8)(x[:, :, :1].expand(-1, -1, 12, -1), torch.arange(12)[None])
    same = x[:, :, :1].expand(-1, -1, 5, -1)
    first, later = rope(same, torch.arange(5)[None]), rope(same, torch.arange(7, 12)[None])
    torch.testing.assert_close(first, full[:, :, :5], atol=0, rtol=0)
    torch.testing.assert_close(later, full[:, :, 7:], atol=0, rtol=0)
    in_double = rope(same.double(), torch.arange(7, 12)[None])
    assert in_double.dtype == torch.float64
    torch.testing.assert_close(in_double.float(), later, atol=1e-6, rtol=0)
    assert torch.equal(rope(same, torch.arange(5)[None]), first)


def test_cached_keys_keep_their_angles():
    """Prefill of 5 tokens, then 7 single steps: the keys and scores of one pass over all 12."""
    rope, query, key = RotaryEmbedding(8), heads(12, 8), heads(12, 8)
    everything = torch.arange(12)[None]
    full_query, full_key = rope.rotate(query, key, rope.prepare(Places.of(everything)))
    cached, start = [], 0
    for size in [5, *[1] * 7]:
        end = start + size
        places = Places.of(everything[:, :end], n_query=size, n_new=size)
        asking, new = rope.rotate(query[:, :, start:end], key[:, :, start:end], rope.prepare(places))
        cached.append(new)
        seen = torch.cat(cached, dim=2)
        torch.testing.assert_close(
            asking @ seen.mT, full_query[:, :, start:end] @ full_key[:, :, :end].mT, atol=1e-5, rtol=0
        )
        start = end


def test_queries_turn_with_the_last_of_the_new_keys():
    """Three tokens of a cache, four remembered ones whose keys are computed anew, five that ask."""
    rope, query, key = RotaryEmbedding(8), heads(5, 8), heads(9, 8)
    positions = torch.stack([torch.arange(12), torch.arange(12) * 3 - 20])
    turned = rope.rotate(query, key, rope.prepare(Places.of(positions, n_query=5, n_new=9)))
    torch.testing.assert_close(
        turned, (rope(query, positions[:, 7:]), rope(key, positions[:, 3:])), atol=0, rtol=0
    )


@pytest.mark.parametrize("cast", [torch.nn.Module.half, torch.nn.Module.bfloat16])
def test_casting_the_model_leaves_the_frequencies(cast):
    """No buffer to be rounded: a vector at 3,001 is the exact rotation, rounded once to the format."""
    rope = cast(RotaryEmbedding(8))
    assert not list(rope.buffers())
    dtype = torch.float16 if cast is torch.nn.Module.half else torch.bfloat16
    positions = torch.arange(3_000, 3_007)[None]
    ones = torch.ones(2, 3, 7, 8, dtype=dtype)
    with torch.autocast("cpu", torch.bfloat16):
        angles = rope.angles(Places.of(positions))
    exact = torch.outer(positions[0].double(), rope_frequencies(8))
    assert torch.equal(angles[0, 0], exact)
    output = rope(ones, positions)
    assert output.dtype == dtype
    expected = torch.cat([exact.cos() - exact.sin(), exact.cos() + exact.sin()], dim=-1)
    tolerance = 3 * torch.finfo(dtype).eps  # cosine, sine and their sum are rounded, each below 2
    torch.testing.assert_close(output[0, 0].double(), expected, atol=tolerance, rtol=0)


def test_rotation_keeps_lengths():
    x = heads(7, 8)
    output = RotaryEmbedding(8)(x, OWN_ROWS)
    torch.testing.assert_close(output.norm(dim=-1), x.norm(dim=-1), atol=1e-5, rtol=0)
    assert torch.equal(output[:, :, 0], x[:, :, 0])  # position 0 turns nothing


def test_turning_back_undoes_it():
    """The gradient is the rotation by the negative angle, and so is the inverse."""
    x = heads(7, 8).requires_grad_()
    rope, cotangent = RotaryEmbedding(8), heads(7, 8)
    output = rope(x, OWN_ROWS)
    torch.testing.assert_close(rope(output, -OWN_ROWS), x, atol=1e-5, rtol=0)
    gradient = torch.autograd.grad(output, x, cotangent)[0]
    torch.testing.assert_close(gradient, rope(cotangent, -OWN_ROWS), atol=1e-5, rtol=0)


def test_frequencies_are_the_formula():
    expected = [500.0 ** (-2 * pair / 6) for pair in range(3)]
    assert rope_frequencies(6, base=500.0).dtype == torch.float64
    assert rope_frequencies(6, base=500.0).tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.usefixtures("without_shape_checks")
def test_a_device_without_float64_gets_float32(monkeypatch):
    """Apple's GPUs refuse float64: every tensor is made in the precision that the device has."""
    from tx_from_scratch.positions import base, rope_scaling

    monkeypatch.setattr(rope_scaling, "precise_dtype", lambda device: torch.float32)
    assert rope_frequencies(8).dtype == torch.float32
    assert RotaryEmbedding(8).angles(Places.of(torch.arange(3)[None])).dtype == torch.float32
    assert base.precise_dtype(SimpleNamespace(type="mps")) == torch.float32
    assert base.precise_dtype(torch.device("cpu")) == torch.float64


def test_rotate_takes_any_angles():
    """A quarter turn: (a, b) becomes (−b, a), in both layouts."""
    x, zero, one = torch.tensor([[[[1.0, 2.0, 3.0, 4.0]]]]), torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2)
    assert rotate(x, zero, one).flatten().tolist() == [-3.0, -4.0, 1.0, 2.0]
    assert rotate(x, zero, one, layout="interleaved").flatten().tolist() == [-2.0, 1.0, -4.0, 3.0]
