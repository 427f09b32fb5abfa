"""The original Transformer against PyTorch's own modules, and against the published counts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from tx_from_scratch.attention import MultiHeadAttention
from tx_from_scratch.positions import sinusoidal_table
from tx_from_scratch.residuals import PostNorm
from tx_from_scratch.transformer import (
    DecoderLayer,
    EncoderLayer,
    Transformer,
    TransformerConfig,
)


def perturb(module: nn.Module) -> None:
    """Make every parameter different: stacks start with equal layers, norms as the identity."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)


def pairs(theirs: nn.Module, ours: nn.Module) -> list[tuple[Tensor, list[Tensor]]]:
    """PyTorch's parameters of a layer or model, and ours that they correspond to (several: stacked rows).

    PyTorch's attention biases have no counterpart; they start at zero and are left out.
    """

    def attention(theirs: nn.MultiheadAttention, ours: MultiHeadAttention) -> list:
        rows = [part.weight for part in (ours.project_query, ours.project_key, ours.project_value)]
        return [(theirs.in_proj_weight, rows), (theirs.out_proj.weight, [ours.project_out.weight])]

    def norm(theirs: nn.LayerNorm, ours: PostNorm) -> list:
        return [(theirs.weight, [ours.norm.weight]), (theirs.bias, [ours.norm.bias])]

    if isinstance(ours, Transformer):
        layers = zip(
            [*theirs.encoder.layers, *theirs.decoder.layers],
            [*ours.encoder.layers, *ours.decoder.layers],
            strict=True,
        )
        return [pair for their_layer, our_layer in layers for pair in pairs(their_layer, our_layer)]
    found = attention(theirs.self_attn, ours.attention) + norm(theirs.norm1, ours.attention_connection)
    last = theirs.norm2
    if isinstance(ours, DecoderLayer):
        found += attention(theirs.multihead_attn, ours.cross_attention)
        found += norm(theirs.norm2, ours.cross_attention_connection)
        last = theirs.norm3
    found += norm(last, ours.feedforward_connection)
    for linear, part in ((theirs.linear1, ours.feedforward.widen), (theirs.linear2, ours.feedforward.narrow)):
        found += [(linear.weight, [part.weight]), (linear.bias, [part.bias])]
    return found


def copy_weights(theirs: nn.Module, ours: nn.Module) -> None:
    perturb(ours)
    with torch.no_grad():
        for target, sources in pairs(theirs, ours):
            target.copy_(torch.cat(sources))
    assert sum(target.numel() for target, _ in pairs(theirs, ours)) == sum(
        parameter.numel() for name, parameter in ours.named_parameters() if name != "embedding.weight"
    )


def assert_equal_gradients(theirs: nn.Module, ours: nn.Module) -> None:
    for target, sources in pairs(theirs, ours):
        torch.testing.assert_close(
            torch.cat([source.grad for source in sources]), target.grad, atol=1e-5, rtol=1e-5
        )


def test_encoder_layer_equals_pytorch():
    """nn.TransformerEncoderLayer, Post-LN, in training mode without dropout; its mask is inverted."""
    ours = EncoderLayer(12, 3, 20)
    theirs = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
    copy_weights(theirs, ours)
    x, real = torch.randn(2, 5, 12), torch.tensor([[True] * 5, [True, True, False, True, False]])
    x_ours, x_theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    output = ours(x_ours, mask=real[:, None, None])
    expected = theirs(x_theirs, src_key_padding_mask=~real)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction)
    torch.testing.assert_close(x_ours.grad, x_theirs.grad, atol=1e-5, rtol=0)
    assert_equal_gradients(theirs, ours)


def test_decoder_layer_equals_pytorch():
    """nn.TransformerDecoderLayer, with padding in the memory and the causal rule as an explicit mask."""
    ours = DecoderLayer(12, 3, 20)
    theirs = nn.TransformerDecoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
    copy_weights(theirs, ours)
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    real = torch.rand(2, 7) > 0.4
    leaves = [tensor.clone().requires_grad_() for tensor in (x, memory)]
    their_leaves = [tensor.clone().requires_grad_() for tensor in (x, memory)]
    output = ours(*leaves, memory_mask=real[:, None, None])
    later = torch.ones(5, 5).triu(1).bool()
    expected = theirs(*their_leaves, tgt_mask=later, memory_key_padding_mask=~real)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    direction = torch.randn_like(output)
    output.backward(direction)
    expected.backward(direction)
    for leaf, theirs_ in zip(leaves, their_leaves, strict=True):
        torch.testing.assert_close(leaf.grad, theirs_.grad, atol=1e-5, rtol=0)
    assert_equal_gradients(theirs, ours)


@pytest.mark.parametrize("layers", [(2, 1), (1, 3)])
def test_whole_model_equals_pytorch(layers):
    """nn.Transformer between the paper's embeddings: logits and the gradient of every parameter.

    Built without its final norms, which the paper does not have; the tied matrix is written out here.
    """
    config = TransformerConfig(
        vocab_size=13,
        d_model=12,
        n_heads=3,
        d_ff=20,
        n_encoder_layers=layers[0],
        n_decoder_layers=layers[1],
        dropout=0.0,
    )
    ours = Transformer(config).train()
    sizes = {"d_model": 12, "nhead": 3, "dim_feedforward": 20, "dropout": 0.0, "batch_first": True}
    encoder_layer, decoder_layer = nn.TransformerEncoderLayer(**sizes), nn.TransformerDecoderLayer(**sizes)
    theirs = nn.Transformer(
        12,
        3,
        custom_encoder=nn.TransformerEncoder(encoder_layer, layers[0], enable_nested_tensor=False),
        custom_decoder=nn.TransformerDecoder(decoder_layer, layers[1]),
        batch_first=True,
    )
    copy_weights(theirs, ours)
    table = ours.embedding.weight.detach().clone().requires_grad_()

    source = torch.tensor([[3, 9, 4, 2, 0, 0, 0], [5, 3, 12, 11, 6, 8, 2]])
    target = torch.tensor([[1, 5, 5, 0, 0], [1, 10, 4, 7, 9]])

    def embed(tokens: Tensor) -> Tensor:
        return table[tokens] * math.sqrt(12) + sinusoidal_table(torch.arange(tokens.shape[1]), 12)

    padding = source == 0
    hidden = theirs(
        embed(source),
        embed(target),
        tgt_mask=torch.ones(5, 5).triu(1).bool(),
        src_key_padding_mask=padding,
        memory_key_padding_mask=padding,
    )
    expected = hidden @ table.T
    logits = ours(source, target)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    direction = torch.randn_like(logits)
    logits.backward(direction)
    expected.backward(direction)
    assert_equal_gradients(theirs, ours)
    torch.testing.assert_close(ours.embedding.weight.grad, table.grad, atol=1e-4, rtol=1e-5)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("config", "parameters"),
    [(TransformerConfig.base(37_000), 63_045_632), (TransformerConfig.big(37_000), 214_171_648)],
)
def test_parameters_are_the_published_ones(config, parameters):
    """With 37,000 shared tokens (section 5.1); no memory is spent on the meta device."""
    with torch.device("meta"):
        model = Transformer(config)
    assert count(model) == parameters
    d, d_ff = config.d_model, config.d_ff
    encoder_layer = 4 * d * d + 2 * d * d_ff + d_ff + d + 4 * d
    decoder_layer = 8 * d * d + 2 * d * d_ff + d_ff + d + 6 * d
    assert parameters == 37_000 * d + 6 * encoder_layer + 6 * decoder_layer


def test_stacks_count_what_pytorch_counts():
    """nn.Transformer base: 44,140,544, of which 36,864 are attention biases and 2,048 two final norms."""
    with torch.device("meta"):
        theirs = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
        ours = Transformer(TransformerConfig.base())
    assert count(theirs) == 44_140_544
    assert count(ours) - count(ours.embedding) == 44_140_544 - 36_864 - 2_048


def test_configurations_are_the_papers():
    """Table 3: base and big."""
    base, big = TransformerConfig.base(), TransformerConfig.big()
    fields = ("vocab_size", "d_model", "n_heads", "n_encoder_layers", "n_decoder_layers", "d_ff", "dropout")
    assert [getattr(base, field) for field in fields] == [37_000, 512, 8, 6, 6, 2048, 0.1]
    assert [getattr(big, field) for field in fields] == [37_000, 1024, 16, 6, 6, 4096, 0.3]
