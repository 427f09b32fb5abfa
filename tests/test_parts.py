"""Residual connections and feed-forward networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tx_from_scratch.feedforward import FeedForward
from tx_from_scratch.residuals import PostNorm


def test_post_norm_equals_its_formula():
    """norm(x + F(x)) with the layer normalization written out: biased variance, epsilon inside the root."""
    connection = PostNorm(6)
    nn.init.normal_(connection.norm.weight)
    nn.init.normal_(connection.norm.bias)
    x, weight = torch.randn(2, 5, 6), torch.randn(6, 6)
    total = x + x @ weight
    centered = total - total.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    expected = centered / (variance + 1e-5).sqrt() * connection.norm.weight + connection.norm.bias
    actual = connection(x, lambda x: x @ weight)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_dropout_follows_its_own_mode():
    """Off in evaluation; and Monte Carlo dropout, which switches on nothing but dropout, works."""
    torch.manual_seed(0)
    connection, x = PostNorm(6, dropout=0.5).eval(), torch.randn(2, 5, 6)
    assert torch.equal(connection(x, torch.tanh), connection(x, torch.tanh))
    torch.testing.assert_close(connection(x, torch.tanh), connection.norm(x + torch.tanh(x)))
    connection.dropout.train()
    assert not torch.equal(connection(x, torch.tanh), connection(x, torch.tanh))


def test_dropout_falls_on_the_sublayer_alone():
    """Section 5.4 of the paper: what the sublayer returns is dropped, the stream itself never is."""
    connection = PostNorm(6, dropout=0.4)
    connection.norm = nn.Identity()
    x = torch.randn(4, 50, 6)
    added = connection(x, lambda x: torch.full_like(x, 3.0)) - x
    kept = added.abs() > 1e-4
    torch.testing.assert_close(added[kept], torch.full_like(added[kept], 3.0 / 0.6), atol=1e-4, rtol=0)
    assert 0.5 < kept.float().mean() < 0.7
    connection.eval()
    torch.testing.assert_close(connection(x, lambda x: torch.full_like(x, 3.0)), x + 3.0)


def test_connection_hands_the_stream_to_its_sublayer_untouched():
    x = torch.randn(2, 5, 6)
    before = x.clone()
    seen = []
    PostNorm(6)(x, lambda x: seen.append(x) or x)
    assert seen[0] is x
    assert torch.equal(x, before)


def test_feed_forward_equals_its_formula():
    """max(0, x W_1 + b_1) W_2 + b_2, from the module's own matrices."""
    network = FeedForward(6, 11)
    x = torch.randn(2, 5, 6)
    inside = (x @ network.widen.weight.T + network.widen.bias).clamp(min=0)
    assert inside.shape == (2, 5, 11)
    torch.testing.assert_close(
        network(x), inside @ network.narrow.weight.T + network.narrow.bias, atol=1e-6, rtol=0
    )


def test_feed_forward_works_on_each_position_alone():
    network, x = FeedForward(6, 11), torch.randn(2, 5, 6)
    for position in range(5):
        torch.testing.assert_close(
            network(x[:, position : position + 1]), network(x)[:, position : position + 1], atol=1e-6, rtol=0
        )


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("d_ff", [0, -4])
def test_empty_networks_are_refused(d_ff):
    with pytest.raises(ValueError, match=f"d_ff must be positive, got {d_ff}"):
        FeedForward(6, d_ff)


@pytest.mark.parametrize("part", [PostNorm(4), FeedForward(4, 7)])
def test_gradients_are_right(part):
    """A15: against finite differences in float64."""
    part = part.double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    call = (lambda x: part(x, torch.tanh)) if isinstance(part, PostNorm) else part
    assert torch.autograd.gradcheck(call, x)
