"""Additive attention against a literal loop written from Bahdanau et al.'s definition."""

from __future__ import annotations

import math

import pytest
import torch

from tx_from_scratch.additive_attention import AdditiveAttention


def inputs(batch=2, heads=3, n_query=5, n_key=7, d_head=4, d_value=6):
    generator = torch.Generator().manual_seed(0)
    sizes = ((n_query, d_head), (n_key, d_head), (n_key, d_value))
    return [torch.randn(batch, heads, *size, generator=generator) for size in sizes]


def test_equals_a_loop_over_pairs():
    """Score, softmax and mean, one number at a time in Python floats."""
    query, key, value = inputs()
    attention = AdditiveAttention(4, 9)
    w, u = attention.map_query.weight.tolist(), attention.map_key.weight.tolist()
    v = attention.direction.tolist()
    with torch.no_grad():
        output, weights = attention(query, key, value)
    for b, h, i in [(0, 0, 0), (1, 2, 4), (1, 0, 3)]:
        asked, offered, read = (tensor[b, h].tolist() for tensor in (query, key, value))
        scores = [
            sum(
                v[unit] * math.tanh(sum(w[unit][c] * asked[i][c] + u[unit][c] * k[c] for c in range(4)))
                for unit in range(9)
            )
            for k in offered
        ]
        total = sum(map(math.exp, scores))
        wanted = [math.exp(score) / total for score in scores]
        assert weights[b, h, i].tolist() == pytest.approx(wanted, abs=1e-6)
        means = [sum(p * row[c] for p, row in zip(wanted, read, strict=True)) for c in range(6)]
        assert output[b, h, i].tolist() == pytest.approx(means, abs=1e-5)


def test_masked_keys_reach_nothing():
    """The same as leaving them out, NaN included; a query without keys gets zeros and zero gradients."""
    query, key, value = inputs()
    attention = AdditiveAttention(4)
    mask = torch.tensor([True] * 4 + [False] * 3)[None, None, None]
    short, _ = attention(query, key[:, :, :4], value[:, :, :4])
    key[:, :, 4:], value[:, :, 4:] = torch.nan, torch.inf
    output, weights = attention(query, key, value, mask=mask)
    torch.testing.assert_close(output, short, atol=1e-6, rtol=0)
    assert (weights[..., 4:] == 0).all()

    query.requires_grad_()
    nothing, weights = attention(query, key, value, mask=torch.zeros(1, 1, 5, 7, dtype=torch.bool))
    nothing.sum().backward()
    assert (nothing == 0).all()
    assert (weights == 0).all()
    assert (query.grad == 0).all()


def test_scores_keep_their_size_at_any_width():
    """With unit-variance inputs the spread is below 1 from width 4 to 1024, and scores never exceed Σ |v|."""
    for width in (4, 64, 1024):
        torch.manual_seed(width)
        attention = AdditiveAttention(width)
        with torch.no_grad():
            scores = attention.scores(torch.randn(1, 4, 16, width), torch.randn(1, 4, 16, width))
        assert 0.3 < float(scores.std()) < 1.0
        assert float(scores.abs().max()) <= float(attention.direction.detach().abs().sum())


@pytest.mark.parametrize("widths", [(0, 4), (4, 0), (-1, None)])
def test_widths_must_be_positive(widths):
    with pytest.raises(ValueError, match=f"must be positive, got d_head={widths[0]}"):
        AdditiveAttention(*widths)


def test_mask_must_be_boolean():
    query, key, value = inputs()
    with pytest.raises(TypeError, match="mask"):
        AdditiveAttention(4)(query, key, value, mask=torch.ones(5, 7))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[0], k, v, None), r"must have shape \(batch, heads, length, width\)"),
        (lambda q, k, v: (q, k, v[:, :, :3], None), "key and value in length"),
        (lambda q, k, v: (q[..., :3], k[..., :3], v, None), "width d_head=4, got 3"),
        (lambda q, k, v: (q, k, v, torch.ones(4, 7, dtype=torch.bool)), "mask must broadcast"),
    ],
)
def test_shapes_that_do_not_fit_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        AdditiveAttention(4)(*change(*inputs())[:3], mask=change(*inputs())[3])


@pytest.mark.usefixtures("without_shape_checks")
def test_widths_must_be_integers():
    with pytest.raises(TypeError, match=r"must be integers, got 4\.5 and 4\.5"):
        AdditiveAttention(4.5)
