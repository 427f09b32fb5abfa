"""Residual connections and feed-forward networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tx_from_scratch.feedforward import FeedForward, SwiGLU
from tx_from_scratch.normalization import RMSNorm
from tx_from_scratch.residuals import PostNorm, PreNorm


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


def test_pre_norm_equals_its_formula():
    """x + F(norm(x)): the sublayer reads the normalized stream, which itself goes on as it was."""
    connection = PreNorm(6)
    nn.init.normal_(connection.norm.weight)
    nn.init.normal_(connection.norm.bias)
    x, weight = torch.randn(2, 5, 6), torch.randn(6, 6)
    centered = x - x.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    read = centered / (variance + 1e-5).sqrt() * connection.norm.weight + connection.norm.bias
    torch.testing.assert_close(connection(x, lambda x: x @ weight), x + read @ weight, atol=1e-5, rtol=0)
    torch.testing.assert_close(connection.reads(x), read, atol=1e-5, rtol=0)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_equal_pytorchs(norm):
    """nn.TransformerEncoderLayer with norm_first on and off, its two sublayers borrowed."""
    theirs = nn.TransformerEncoderLayer(6, 2, 11, dropout=0.0, batch_first=True, norm_first=norm == "pre")
    part = PreNorm if norm == "pre" else PostNorm
    around_attention, around_feedforward = part(6), part(6)
    for ours, theirs_ in ((around_attention, theirs.norm1), (around_feedforward, theirs.norm2)):
        nn.init.normal_(theirs_.weight)
        nn.init.normal_(theirs_.bias)
        ours.norm.load_state_dict(theirs_.state_dict())
    x = torch.randn(2, 5, 6)
    output = around_attention(x, lambda x: theirs.self_attn(x, x, x, need_weights=False)[0])
    output = around_feedforward(output, lambda x: theirs.linear2(theirs.linear1(x).relu()))
    torch.testing.assert_close(output, theirs(x), atol=1e-5, rtol=0)


def test_only_what_leaves_unnormalized_needs_a_last_norm():
    """PostNorm's output has mean 0 and variance 1; PreNorm's keeps whatever the stream has grown to."""
    x = 7 + 5 * torch.randn(2, 50, 6)
    for part in (PostNorm, PreNorm):
        output = part(6)(x, torch.tanh)
        normalized = output.mean(dim=-1).abs().max() < 1e-4
        assert part.leaves_normalized == normalized
    stream = torch.randn(2, 5, 6)
    assert PostNorm(6).reads(stream) is stream


@pytest.mark.parametrize("part", [PostNorm, PreNorm])
def test_any_norm_may_be_chosen(part):
    connection, x = part(6, norm=RMSNorm), torch.randn(2, 5, 6)
    assert isinstance(connection.norm, RMSNorm)
    expected = connection.norm(x + torch.tanh(x)) if part is PostNorm else x + torch.tanh(connection.norm(x))
    torch.testing.assert_close(connection(x, torch.tanh), expected, atol=1e-6, rtol=0)


def test_the_identity_path_carries_the_gradient():
    """PreNorm: whatever the sublayer does, the gradient arrives as it was sent; PostNorm's does not."""
    x = torch.randn(2, 5, 6, requires_grad=True)
    direction = torch.randn(2, 5, 6)
    [arrived] = torch.autograd.grad(PreNorm(6)(x, lambda x: 0.0 * x), x, direction)
    torch.testing.assert_close(arrived, direction, atol=1e-6, rtol=0)
    [arrived] = torch.autograd.grad(PostNorm(6)(x, lambda x: 0.0 * x), x, direction)
    assert (arrived - direction).abs().max() > 0.1


@pytest.mark.parametrize("part", [PostNorm, PreNorm])
def test_dropout_follows_its_own_mode(part):
    """Off in evaluation; and Monte Carlo dropout, which switches on nothing but dropout, works."""
    torch.manual_seed(0)
    connection, x = part(6, dropout=0.5).eval(), torch.randn(2, 5, 6)
    assert torch.equal(connection(x, torch.tanh), connection(x, torch.tanh))
    torch.testing.assert_close(connection(x, torch.tanh), part(6)(x, torch.tanh))
    connection.dropout.train()
    assert not torch.equal(connection(x, torch.tanh), connection(x, torch.tanh))


@pytest.mark.parametrize("part", [PostNorm, PreNorm])
def test_dropout_falls_on_the_sublayer_alone(part):
    """Section 5.4 of the paper: what the sublayer returns is dropped, the stream itself never is."""
    connection = part(6, dropout=0.4)
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


def test_swiglu_equals_llamas():
    """transformers' LlamaMLP with the same three matrices; it is the gate that passes through silu."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    network = SwiGLU(6, 11)
    theirs = LlamaMLP(LlamaConfig(hidden_size=6, num_attention_heads=2, intermediate_size=11))
    for name in ("gate", "up", "down"):
        getattr(theirs, f"{name}_proj").load_state_dict(getattr(network, name).state_dict())
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(network(x), theirs(x), atol=1e-6, rtol=0)
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_swiglu_equals_its_formula():
    """(silu(x W_gate) * x W_up) W_down, with silu(z) = z / (1 + exp(-z)) written out."""
    network, x = SwiGLU(6, 11), torch.randn(2, 5, 6)
    gate = x @ network.gate.weight.T
    inside = gate / (1 + (-gate).exp()) * (x @ network.up.weight.T)
    torch.testing.assert_close(network(x), inside @ network.down.weight.T, atol=1e-6, rtol=0)


def test_two_thirds_of_the_width_cost_the_same():
    """Three matrices of width 2/3 d_ff: as many parameters as two of width d_ff, biases aside."""
    relu, gated = FeedForward(24, 96), SwiGLU(24, 64)
    assert sum(p.numel() for p in gated.parameters()) == sum(p.numel() for p in relu.parameters()) - 96 - 24


@pytest.mark.parametrize("part", [FeedForward, SwiGLU])
def test_feed_forward_works_on_each_position_alone(part):
    network, x = part(6, 11), torch.randn(2, 5, 6)
    for position in range(5):
        torch.testing.assert_close(
            network(x[:, position : position + 1]), network(x)[:, position : position + 1], atol=1e-6, rtol=0
        )


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("part", [FeedForward, SwiGLU])
@pytest.mark.parametrize("d_ff", [0, -4])
def test_empty_networks_are_refused(part, d_ff):
    with pytest.raises(ValueError, match=f"d_ff must be positive, got {d_ff}"):
        part(6, d_ff)


@pytest.mark.parametrize("part", [PostNorm(4), PreNorm(4), FeedForward(4, 7), SwiGLU(4, 7)])
def test_gradients_are_right(part):
    """A15: against finite differences in float64."""
    part = part.double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    call = (lambda x: part(x, torch.tanh)) if isinstance(part, PostNorm | PreNorm) else part
    assert torch.autograd.gradcheck(call, x)
