"""ALiBi and T5: transformers' biases, the paper's numbers, and whole layers."""

from __future__ import annotations

import math

import pytest
import torch
from position_inputs import ANYWHERE, BATCH, CONSECUTIVE, HEADS, KEY, QUERY, attend

from tx_from_scratch.positions import ALiBi, Places, T5RelativeBias, alibi_slopes, t5_bucket
from tx_from_scratch.self_attention import SelfAttention


@pytest.mark.parametrize("n_heads", range(1, 41))
def test_alibi_equals_bloom_and_mpt(n_heads):
    """Both add m · j; seen from the last query, differences along the keys are those of −m |i − j|."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    ours = ALiBi(n_heads).prepare(Places(torch.arange(KEY)[None], 1, 1)).diff(dim=-1)
    bloom = build_alibi_tensor(torch.ones(1, KEY, dtype=torch.long), n_heads, torch.float32)
    mpt = build_mpt_alibi_tensor(n_heads, KEY)
    for theirs in (bloom.view(1, n_heads, 1, KEY), mpt.view(1, n_heads, 1, KEY)):
        torch.testing.assert_close(ours, theirs.diff(dim=-1), atol=1e-6, rtol=0)


def test_slopes_are_the_published_ones():
    """A06: the plain power rule would be wrong for 12 and 6 heads."""
    eight = [2.0**-k for k in range(1, 9)]
    assert alibi_slopes(1).tolist() == [2.0**-8]
    assert alibi_slopes(8).tolist() == eight
    assert alibi_slopes(12).tolist() == pytest.approx(
        [*eight, *(2**-k for k in (0.5, 1.5, 2.5, 3.5))], rel=1e-7
    )
    assert alibi_slopes(12)[8:].tolist() == pytest.approx([0.7071, 0.3536, 0.1768, 0.0884], abs=5e-5)
    assert alibi_slopes(6).tolist() == pytest.approx([2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3], rel=1e-7)
    for n_heads in range(1, 41):
        slopes = alibi_slopes(n_heads)
        assert len(slopes) == n_heads
        assert ((slopes > 0) & (slopes < 1)).all()
        assert len(set(slopes.tolist())) == n_heads


def test_alibi_is_minus_slope_times_distance():
    """One pair at a time, in both directions and with positions of each row's own."""
    bias = ALiBi(HEADS).prepare(ANYWHERE)
    assert bias.shape == (BATCH, HEADS, QUERY, KEY)
    slopes, places = alibi_slopes(HEADS).tolist(), ANYWHERE.key.tolist()
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, bias.shape)).tolist():
        expected = -slopes[h] * abs(places[b][KEY - QUERY + i] - places[b][j])
        assert bias[b, h, i, j].item() == pytest.approx(expected, rel=1e-6)


def test_alibi_is_symmetric_and_zero_on_the_diagonal():
    bias = ALiBi(HEADS).prepare(Places.of(torch.arange(KEY)[None]))
    assert torch.equal(bias, bias.mT)
    assert not bias.diagonal(dim1=-2, dim2=-1).any()
    assert (bias.tril().diff(dim=-1)[..., 1:, :].tril() >= 0).all()  # rises toward the query


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (8, 20), (10, 128), (64, 1_000)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_buckets_equal_transformers(bidirectional, n_buckets, max_distance, dtype):
    from transformers.models.t5.modeling_t5 import T5Attention

    relative = torch.arange(-1_100, 1_101, dtype=dtype).view(1, -1)
    expected = T5Attention._relative_position_bucket(relative, bidirectional, n_buckets, max_distance)
    actual = t5_bucket(relative, bidirectional=bidirectional, n_buckets=n_buckets, max_distance=max_distance)
    assert torch.equal(actual, expected)
    assert int(actual.max()) == n_buckets - 1


def first_distances(bucket: torch.Tensor) -> list[int]:
    """For buckets of the distances 0, 1, 2, ...: where each new bucket begins."""
    return [0, *(bucket.diff().nonzero()[:, 0] + 1).tolist()]


def test_buckets_begin_where_the_logarithm_says():
    """One direction: 16 · 8^(k / 16), rounded up, in Python's floats; the last row takes all from 113 on."""
    past = t5_bucket(-torch.arange(2_000), bidirectional=False)
    expected = [*range(16), *(math.ceil(16 * 8 ** (k / 16)) for k in range(16))]
    assert first_distances(past) == expected
    assert expected[16:19] == [16, 19, 21]
    assert expected[-1] == 113
    assert (past[113:] == 31).all()
    assert not t5_bucket(torch.arange(2_000), bidirectional=False).any()  # the future shares row 0


@pytest.mark.parametrize(("sign", "offset"), [(-1, 0), (1, 16)])
def test_each_direction_has_its_own_half(sign, offset):
    """Eight exact distances and eight shared ones; the future in rows 16 to 31."""
    bucket = t5_bucket(sign * torch.arange(2_000), bidirectional=True)
    assert first_distances(bucket) == [*range(9), 12, 16, 23, 32, 46, 64, 91]
    assert bucket[0] == 0
    assert (bucket[1:] >= offset + 1).all()
    assert (bucket[1:] <= offset + 15).all()


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_whole_layer_equals_transformers(bidirectional):
    """T5's own attention, which scales nothing, with the weights copied; far enough for shared buckets."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=10, d_kv=4, num_heads=HEADS, dropout_rate=0.0, is_decoder=not bidirectional)
    config._attn_implementation = "eager"
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = SelfAttention(10, HEADS, d_head=4, scale=1.0)
    scheme = T5RelativeBias(HEADS, bidirectional=bidirectional)
    with torch.no_grad():
        for copy, original in [
            (ours.project_query, theirs.q),
            (ours.project_key, theirs.k),
            (ours.project_value, theirs.v),
            (ours.project_out, theirs.o),
        ]:
            copy.weight.copy_(original.weight)
        theirs.relative_attention_bias.weight.normal_()
        scheme.weight.copy_(theirs.relative_attention_bias.weight)
    x = torch.randn(BATCH, 60, 10)
    hidden = torch.full((60, 60), -torch.inf).triu(1)[None, None] if not bidirectional else None
    expected = theirs(x, mask=hidden)[0]
    positions = torch.arange(100, 160)[None]  # only distances count
    actual = attend(scheme, ours, x, Places.of(positions), causal=not bidirectional)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_the_gain_multiplies_the_table_and_its_gradient():
    """The bias of the same table, times the gain; so one step of a given size moves it that much further."""
    plain, scheme = T5RelativeBias(HEADS), T5RelativeBias(HEADS, gain=2.5)
    scheme.load_state_dict(plain.state_dict())
    biases = [each.prepare(ANYWHERE) for each in (plain, scheme)]
    torch.testing.assert_close(biases[1], 2.5 * biases[0], atol=1e-7, rtol=1e-6)
    cotangent = torch.randn(BATCH, HEADS, QUERY, KEY)
    gradients = [
        torch.autograd.grad(bias, each.weight, cotangent)[0]
        for bias, each in zip(biases, (plain, scheme), strict=True)
    ]
    torch.testing.assert_close(gradients[1], 2.5 * gradients[0], atol=1e-5, rtol=0)


def test_t5_trains_the_rows_that_occur():
    """Distances −6 to 4 of the test's sizes: those of the past, and row 0 for the future."""
    scheme = T5RelativeBias(HEADS)
    weights = torch.randn(1, HEADS, QUERY, KEY)
    (scheme.prepare(CONSECUTIVE) * weights).sum().backward()
    expected = torch.zeros(32, HEADS)
    for i in range(QUERY):
        for j in range(KEY):
            expected[max(i + KEY - QUERY - j, 0)] += weights[0, :, i, j]
    torch.testing.assert_close(scheme.weight.grad, expected, atol=1e-5, rtol=0)
