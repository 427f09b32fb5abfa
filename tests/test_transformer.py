"""The original Transformer as a module: what may be read, what stays as it was, what is refused."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import nn

from tx_from_scratch import transformer
from tx_from_scratch.attention import MultiHeadAttention
from tx_from_scratch.inspection import capture_attention
from tx_from_scratch.positions import sinusoidal_table
from tx_from_scratch.residuals import PostNorm
from tx_from_scratch.transformer import (
    DecoderCache,
    Transformer,
    TransformerConfig,
)


def test_matrices_start_with_xaviers_distribution():
    """Bound sqrt(6 / (fan_in + fan_out)) for each projection on its own; biases zero."""
    model = Transformer(
        TransformerConfig(vocab_size=5, d_model=64, d_ff=100, n_encoder_layers=2, n_decoder_layers=2)
    )
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(linears) == 2 * (4 + 2) + 2 * (8 + 2)
    for linear in linears:
        bound = math.sqrt(6 / sum(linear.weight.shape))
        assert 0.95 * bound < linear.weight.abs().max() <= bound
        assert abs(linear.weight.std() / (bound / math.sqrt(3)) - 1) < 0.05
        assert linear.bias is None or not linear.bias.any()


def test_layers_start_different():
    """Not N copies of one layer, as nn.TransformerEncoder starts."""
    model = Transformer(
        TransformerConfig(vocab_size=5, d_model=16, n_heads=2, n_encoder_layers=2, n_decoder_layers=2)
    )
    for layers in (model.encoder.layers, model.decoder.layers):
        assert not torch.equal(
            layers[0].attention.project_query.weight, layers[1].attention.project_query.weight
        )


def test_dropout_stands_where_the_paper_has_it(tiny, source, target):
    """Section 5.4: each sublayer's output, and the sum of embedding and position; nowhere else."""
    model = Transformer(dataclasses.replace(tiny, dropout=0.3))
    dropouts = {name: module for name, module in model.named_modules() if isinstance(module, nn.Dropout)}
    connections = {name for name, module in model.named_modules() if isinstance(module, PostNorm)}
    assert len(connections) == 2 * 2 + 3
    assert set(dropouts) == {"dropout"} | {f"{name}.dropout" for name in connections}
    assert {module.p for module in dropouts.values()} == {0.3}
    calls: list[str] = []
    for name, module in dropouts.items():
        module.register_forward_hook(lambda *_, name=name: calls.append(name))
    model(source, target)
    assert sorted(calls) == sorted([*dropouts, "dropout"])  # the embeddings of source and of target


def test_dropout_rests_in_evaluation(tiny, source, target):
    model = Transformer(dataclasses.replace(tiny, dropout=0.5))
    assert not torch.equal(model(source, target), model(source, target))
    model.eval()
    assert torch.equal(model(source, target), model(source, target))


class TestVisibility:
    def test_rows_of_a_batch_do_not_mix(self, model, tokens, source, target):
        """A09: each row as if it were alone, in any order; also where batch, lengths and heads are equal."""
        for rows, columns in ((source, target), (tokens(3, 3), tokens(3, 3))):
            together = model(rows, columns)
            for row in range(len(rows)):
                alone = model(rows[row : row + 1], columns[row : row + 1])
                torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=0)
            torch.testing.assert_close(
                model(rows.flip(0), columns.flip(0)), together.flip(0), atol=1e-5, rtol=0
            )

    @pytest.mark.parametrize("more", [1, 9])
    def test_padding_changes_nothing(self, model, tiny, source, target, more):
        """Filling up source and target at the right leaves the logits of the real positions alone."""
        pad = torch.full((2, more), tiny.pad_id)
        padded = model(torch.cat([source, pad], dim=1), torch.cat([target, pad], dim=1))
        torch.testing.assert_close(padded[:, :5], model(source, target), atol=1e-5, rtol=0)
        alone = model(source[1:, :4], target[1:])
        torch.testing.assert_close(model(source, target)[1:], alone, atol=1e-5, rtol=0)

    def test_what_the_padding_embeds_to_does_not_matter(self, model, tiny, source, target):
        """NaN in the padding token's vector reaches no real position of the other rows or this one."""
        expected = model(source, target)
        with torch.no_grad():
            model.embedding.weight[tiny.pad_id] = torch.nan
        actual = model(source, target)
        others = [token for token in range(13) if token != tiny.pad_id]  # its own logit is NaN, of course
        torch.testing.assert_close(actual[..., others], expected[..., others], atol=1e-6, rtol=0)

    def test_every_layer_reads_the_memory_and_the_past(self, model, source, target):
        """The last logits depend on every real source token and on every target token."""
        logits = model(source, target)
        for column in range(4):
            changed = source.clone()
            changed[:, column] = (changed[:, column] + 1) % 4
            assert (model(changed, target)[:, -1] - logits[:, -1]).abs().amax(dim=-1).min() > 1e-4
        for column in range(5):
            changed = target.clone()
            changed[:, column] = (changed[:, column] + 1) % 13
            assert (model(source, changed)[:, -1] - logits[:, -1]).abs().amax(dim=-1).min() > 1e-4

    def test_forward_is_encoding_and_decoding(self, model, source, target):
        memory = model.encode(source)
        assert memory.shape == (2, 7, 12)
        logits = model.decode(target, memory, memory_mask=model.memory_mask(source))
        assert torch.equal(logits, model(source, target))


@pytest.mark.parametrize("chunks", [[5, *[1] * 7], [3, 3], [1, 1], [4]])
def test_decoding_in_steps_equals_the_full_pass(model, tiny, source, chunks, tokens):
    """A05: prefill 5 and 7 single steps, or any chunks; the positions go on where the cache ends."""
    target = tokens(2, sum(chunks))
    full = model(source, target)
    memory, mask = model.encode(source), model.memory_mask(source)
    cache = DecoderCache(tiny.n_decoder_layers)
    with torch.no_grad():
        steps = [
            model.decode(chunk, memory, memory_mask=mask, cache=cache)
            for chunk in target.split(chunks, dim=1)
        ]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, atol=1e-5, rtol=0)
    assert cache.length == sum(chunks)


def test_positions_are_computed_once_in_a_while(model, tiny, source, monkeypatch):
    """While decoding, the table doubles when it runs out; behind its first 64 rows nothing changes."""
    made = []

    def record(positions, d_model):
        made.append(len(positions))
        return sinusoidal_table(positions, d_model)

    monkeypatch.setattr(transformer, "sinusoidal_table", record)
    target = torch.arange(150).remainder(10).add(3).expand(2, -1)
    memory, mask, cache = model.encode(source), model.memory_mask(source), DecoderCache(tiny.n_decoder_layers)
    with torch.no_grad():
        steps = [
            model.decode(token, memory, memory_mask=mask, cache=cache) for token in target.split(1, dim=1)
        ]
    torch.testing.assert_close(torch.cat(steps, dim=1), model(source, target), atol=1e-5, rtol=0)
    assert made == [64, 130, 262]


def test_only_trusted_tokens_go_unchecked(model, tiny, source):
    """Looking at their values at every step would make a GPU wait each time."""
    memory, good, bad = model.encode(source), torch.full((2, 1), 3), torch.full((2, 1), tiny.vocab_size)
    with pytest.raises(ValueError, match="target must hold ids"):
        model.decode(bad, memory)
    with pytest.raises(IndexError):  # PyTorch's own
        model.decode(bad, memory, trusted=True)
    assert torch.equal(model.decode(good, memory, trusted=True), model.decode(good, memory))


def test_decoding_state_follows_its_rows(tokens, model, source):
    """After select, each row goes on from the row that it was copied from: memory, mask and past."""
    rows = torch.tensor([1, 1, 0])
    first, second = tokens(2, 3), tokens(3, 2)
    with torch.no_grad():
        state = model.start_decoding(source)
        state.next_logits(first)
        state.select(rows)
        actual = state.next_logits(second)
    expected = model(source[rows], torch.cat([first[rows], second], dim=1))[:, -1]
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


class TestPrecision:
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("captured", [False, True])
    def test_half_precision_stays_close(self, model, tiny, source, target, dtype, captured):
        """A02, A13: one row of nothing but padding, a short one, causal and padding masks together."""
        source = torch.cat([source, torch.full((1, 7), tiny.pad_id)])
        target = torch.cat([target, target[:1]])
        expected = model(source, target).log_softmax(dim=-1)
        half = copy.deepcopy(model).to(dtype)
        if captured:
            with capture_attention(half) as maps:
                logits = half(source, target)
            assert all(weights.dtype == dtype for calls in maps.values() for weights in calls)
            assert not maps["decoder.layers.0.cross_attention"][0][2].any()
        else:
            logits = half(source, target)
        assert logits.dtype == dtype
        tolerance = 2e-2 if dtype == torch.float16 else 1e-1
        torch.testing.assert_close(logits.float().log_softmax(dim=-1), expected, atol=tolerance, rtol=2e-2)

    def test_autocast(self, model, source, target):
        """bf16 where it is safe; parameters and their gradients stay in float32."""
        expected = model(source, target)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(source, target)
        assert logits.dtype == torch.bfloat16
        torch.testing.assert_close(logits.float(), expected, atol=0.2, rtol=5e-2)
        logits.float().logsumexp(dim=-1).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad.dtype == torch.float32
            assert parameter.grad.isfinite().all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    @pytest.mark.parametrize("captured", [False, True])
    def test_a_source_of_padding_spoils_no_gradient(self, model, tiny, source, target, dtype, captured):
        """A01 in the whole model: the loss reads the other row only."""
        model.to(dtype)
        source[0] = tiny.pad_id
        if captured:
            with capture_attention(model):
                logits = model(source, target)
        else:
            logits = model(source, target)
        assert logits.isfinite().all()
        logits[1].float().logsumexp(dim=-1).sum().backward()
        together = {name: parameter.grad for name, parameter in model.named_parameters()}
        model.zero_grad()
        model(source[1:], target[1:]).float().logsumexp(dim=-1).sum().backward()
        for name, parameter in model.named_parameters():
            assert together[name].isfinite().all()
            torch.testing.assert_close(
                together[name], parameter.grad, atol=1e-1 if dtype != torch.float32 else 1e-5, rtol=1e-1
            )

    def test_gradients_are_right(self, tiny):
        """A15: the decoder layer against finite differences in float64, with padding in the memory."""
        layer = Transformer(tiny).decoder.double()
        x, memory = (torch.randn(1, n, 12, dtype=torch.float64, requires_grad=True) for n in (2, 3))
        mask = torch.tensor([True, False, True]).view(1, 1, 1, 3)
        assert torch.autograd.gradcheck(lambda x, memory: layer(x, memory, memory_mask=mask), (x, memory))


def test_attention_stands_at_its_published_paths(model):
    """Chapters, views and grades address attention by these names."""
    paths = [path for path, module in model.named_modules() if isinstance(module, MultiHeadAttention)]
    assert paths == [
        "encoder.layers.0.attention",
        "encoder.layers.1.attention",
        "decoder.layers.0.attention",
        "decoder.layers.0.cross_attention",
    ]
