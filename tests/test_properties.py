"""Properties that hold for every input: who can reach whom, what may be reordered, what bounds what.

Sizes, lengths, masks and the place that is disturbed are drawn by hypothesis, the numbers by a generator.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tx_from_scratch.attention import MultiHeadAttention, fused_attention, scaled_dot_product_attention
from tx_from_scratch.decoding import beam_search, greedy_decode
from tx_from_scratch.masks import causal_mask
from tx_from_scratch.positions import sinusoidal_table
from tx_from_scratch.transformer import (
    Decoder,
    DecoderCache,
    EncoderLayer,
    Transformer,
    TransformerConfig,
)

few = settings(max_examples=12)  # where a whole model runs
lengths = st.integers(1, 9)
seeds = st.integers(0, 2**31)
CONFIG = TransformerConfig(
    vocab_size=11, d_model=12, n_heads=3, n_encoder_layers=2, n_decoder_layers=2, d_ff=20, dropout=0.0
)


def explicit(*args: Tensor, **kwargs: object) -> Tensor:
    return scaled_dot_product_attention(*args, **kwargs)[0]


@pytest.fixture(scope="module")
def transformer() -> Transformer:
    torch.manual_seed(3)
    return Transformer(CONFIG).eval()


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def drawn_tokens(seed: int, *shape: int) -> Tensor:
    return torch.randint(3, 11, shape, generator=torch.Generator().manual_seed(seed))


class TestCausality:
    @pytest.mark.parametrize("attend", [explicit, fused_attention])
    @given(n_query=lengths, n_key=lengths, data=st.data(), seed=seeds)
    def test_a_later_key_changes_no_earlier_query(self, attend, n_query, n_key, data, seed):
        """Bottom right: a key at position p reaches the queries at p and later, and all of those."""
        query, key, value = (
            drawn(seed, 2, 3, n_query, 4),
            drawn(seed + 1, 2, 3, n_key, 4),
            drawn(seed + 2, 2, 3, n_key, 6),
        )
        place = data.draw(st.integers(0, n_key - 1))
        before = attend(query, key, value, causal=True)
        key, value = key.clone(), value.clone()
        key[:, :, place] += 5.0
        value[:, :, place] -= 7.0
        after = attend(query, key, value, causal=True)
        positions = torch.arange(n_query) + n_key - n_query
        moved = (after - before).abs().amax(dim=(0, 1, 3)) > 1e-5
        assert torch.equal(moved, positions >= place)

    @few
    @given(length=lengths, data=st.data(), seed=seeds)
    def test_a_later_token_changes_no_earlier_logit(self, transformer, length, data, seed):
        """The whole model, several layers deep; the gradient agrees that nothing flows back."""
        source, target = drawn_tokens(seed, 2, 5), drawn_tokens(seed + 1, 2, length)
        place = data.draw(st.integers(0, length - 1))
        before = transformer(source, target)
        changed = target.clone()
        changed[:, place] = (target[:, place] - 2) % 8 + 3  # another one of the tokens from 3 to 10
        after = transformer(source, changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], atol=1e-6, rtol=0)
        assert ((after - before)[:, place:].abs().amax(dim=-1) > 1e-5).all()

    @few
    @given(length=lengths, data=st.data(), seed=seeds)
    def test_no_gradient_flows_to_a_later_position(self, length, data, seed):
        torch.manual_seed(seed)
        decoder = Decoder(CONFIG)
        x, memory = drawn(seed, 2, length, 12).requires_grad_(), drawn(seed + 1, 2, 5, 12)
        place = data.draw(st.integers(0, length - 1))
        (decoder(x, memory)[:, place] * drawn(seed + 2, 2, 12)).sum().backward()
        assert not x.grad[:, place + 1 :].any()
        assert (x.grad[:, : place + 1].abs().amax(dim=-1) > 0).all()


class TestEquivariance:
    @given(length=lengths, data=st.data(), seed=seeds)
    def test_without_positions_an_encoder_does_not_know_the_order(self, length, data, seed):
        """Reordered input, reordered output: only positions tell the encoder what stands where."""
        torch.manual_seed(seed)
        layer, x = EncoderLayer(12, 3, 20), drawn(seed, 2, length, 12)
        mask = torch.rand(2, 1, 1, length) > 0.3
        order = torch.tensor(data.draw(st.permutations(range(length))))
        actual = layer(x[:, order], mask=mask[..., order])
        torch.testing.assert_close(actual, layer(x, mask=mask)[:, order], atol=1e-5, rtol=0)

    @few
    @given(length=st.integers(2, 9), seed=seeds)
    def test_with_positions_it_does(self, transformer, length, seed):
        source = torch.arange(3, 3 + min(length, 8))[None]
        memory = transformer.encode(source)
        assert not torch.allclose(transformer.encode(source.flip(1)).flip(1), memory, atol=1e-3)

    @pytest.mark.parametrize("attend", [explicit, fused_attention])
    @given(n_query=lengths, n_key=lengths, data=st.data(), seed=seeds)
    def test_the_order_of_keys_does_not_matter(self, attend, n_query, n_key, data, seed):
        """Attention reads a set: keys, values, mask and bias reordered together give the same."""
        query, key, value = (
            drawn(seed, 2, 3, n_query, 4),
            drawn(seed + 1, 2, 3, n_key, 4),
            drawn(seed + 2, 2, 3, n_key, 6),
        )
        mask, bias = drawn(seed + 3, 2, 1, n_query, n_key) > -0.5, drawn(seed + 4, 3, n_query, n_key)
        order = torch.tensor(data.draw(st.permutations(range(n_key))))
        expected = attend(query, key, value, mask=mask, bias=bias)
        actual = attend(
            query, key[:, :, order], value[:, :, order], mask=mask[..., order], bias=bias[..., order]
        )
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


class TestBounds:
    @pytest.mark.parametrize("attend", [explicit, fused_attention])
    @given(n_query=lengths, n_key=lengths, causal=st.booleans(), seed=seeds)
    def test_what_is_read_lies_between_the_values(self, attend, n_query, n_key, causal, seed):
        """A weighted mean never leaves the range of the values that may be read."""
        query, key, value = (
            drawn(seed, 2, 3, n_query, 4),
            drawn(seed + 1, 2, 3, n_key, 4),
            drawn(seed + 2, 2, 3, n_key, 6),
        )
        mask = drawn(seed + 3, 2, 3, n_query, n_key) > -0.3
        output = attend(query, key, value, mask=mask, causal=causal)
        allowed = (mask & causal_mask(n_query, n_key) if causal else mask)[..., None]
        spread = value[:, :, None].expand(-1, -1, n_query, -1, -1)
        low = spread.masked_fill(~allowed, math.inf).amin(dim=3)
        high = spread.masked_fill(~allowed, -math.inf).amax(dim=3)
        nothing = ~allowed.any(dim=3)
        assert ((output >= low - 1e-5) & (output <= high + 1e-5) | (nothing & (output == 0))).all()

    @given(n_query=lengths, n_key=lengths, seed=seeds)
    def test_a_query_without_direction_reads_the_mean(self, n_query, n_key, seed):
        """All scores equal: the plain mean of what may be read."""
        value = drawn(seed, 2, 3, n_key, 6)
        query, key = torch.zeros(2, 3, n_query, 4), drawn(seed + 1, 2, 3, n_key, 4)
        output, weights = scaled_dot_product_attention(query, key, value)
        torch.testing.assert_close(
            output, value.mean(dim=2, keepdim=True).expand_as(output), atol=1e-5, rtol=0
        )
        torch.testing.assert_close(weights, torch.full_like(weights, 1 / n_key))

    @given(n_key=lengths, shift=st.floats(-50, 50), seed=seeds)
    def test_what_all_scores_share_changes_nothing(self, n_key, shift, seed):
        """A bias that is the same for all keys of a query drops out of the softmax."""
        query, key, value = (
            drawn(seed, 2, 3, 5, 4),
            drawn(seed + 1, 2, 3, n_key, 4),
            drawn(seed + 2, 2, 3, n_key, 6),
        )
        bias = torch.full((3, 5, 1), shift)
        torch.testing.assert_close(
            explicit(query, key, value, bias=bias), explicit(query, key, value), atol=1e-5, rtol=0
        )


class TestPositions:
    @given(
        d_model=st.integers(1, 8).map(lambda half: 2 * half),
        p=st.integers(-900, 900),
        k=st.integers(-900, 900),
    )
    def test_a_shift_is_a_rotation(self, d_model, p, k):
        """PE(p + k) is PE(p) with every clock hand turned by k times its frequency, whatever p is."""
        here, there = sinusoidal_table(torch.tensor([p, p + k]), d_model).double()
        frequency = 10_000.0 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        sine, cosine = here[0::2], here[1::2]
        turn = k * frequency
        torch.testing.assert_close(there[0::2], sine * turn.cos() + cosine * turn.sin(), atol=1e-6, rtol=0)
        torch.testing.assert_close(there[1::2], cosine * turn.cos() - sine * turn.sin(), atol=1e-6, rtol=0)

    @given(
        d_model=st.integers(1, 8).map(lambda half: 2 * half),
        p=st.integers(0, 900),
        q=st.integers(0, 900),
        shift=st.integers(0, 5_000),
    )
    def test_similarity_depends_on_the_distance_only(self, d_model, p, q, shift):
        """And every position has the same length: d_model / 2."""
        table = sinusoidal_table(torch.tensor([p, q, p + shift, q + shift]), d_model)
        torch.testing.assert_close(table[0] @ table[1], table[2] @ table[3], atol=1e-4, rtol=0)
        torch.testing.assert_close(
            table.square().sum(dim=1), torch.full((4,), d_model / 2), atol=1e-4, rtol=0
        )


class TestCacheAndBatch:
    @few
    @given(chunks=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=seeds)
    def test_any_way_of_cutting_a_target_gives_the_same(self, transformer, chunks, seed):
        """A05, A10: prefill and steps of any sizes equal the full pass, with padding in the source."""
        source, target = drawn_tokens(seed, 2, 6), drawn_tokens(seed + 1, 2, sum(chunks))
        source[1, 2:] = 0
        memory, mask = transformer.encode(source), transformer.memory_mask(source)
        cache = DecoderCache(CONFIG.n_decoder_layers)
        with torch.no_grad():
            steps = [
                transformer.decode(chunk, memory, memory_mask=mask, cache=cache)
                for chunk in target.split(chunks, dim=1)
            ]
        torch.testing.assert_close(torch.cat(steps, dim=1), transformer(source, target), atol=1e-5, rtol=0)

    @few
    @given(
        rows=st.lists(lengths, min_size=1, max_size=4),
        search=st.sampled_from([greedy_decode, beam_search]),
        seed=seeds,
    )
    def test_a_row_is_decoded_as_if_it_were_alone(self, transformer, rows, search, seed):
        """Sources of any lengths in one batch."""
        source = drawn_tokens(seed, len(rows), max(rows))
        for row, length in enumerate(rows):
            source[row, length:] = 0
        together = search(transformer, source, max_new_tokens=4)
        for row, length in enumerate(rows):
            alone = search(transformer, source[row : row + 1, :length], max_new_tokens=4)[0]
            assert torch.equal(together[row, : len(alone)], alone)
            assert not together[row, len(alone) :].any()

    @given(n_heads=st.sampled_from([1, 2, 3, 4, 6]), n_query=lengths, n_key=lengths, seed=seeds)
    def test_every_size_keeps_its_shape(self, n_heads, n_query, n_key, seed):
        layer = MultiHeadAttention(12, n_heads)
        output = layer(drawn(seed, 2, n_query, 12), drawn(seed + 1, 2, n_key, 12))
        assert output.shape == (2, n_query, 12)
        assert output.isfinite().all()
