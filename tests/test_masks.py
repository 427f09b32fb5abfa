"""Masks: True = may attend, whatever convention they came from."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tx_from_scratch.attention import fused_attention, scaled_dot_product_attention
from tx_from_scratch.masks import (
    causal_mask,
    combine_masks,
    from_additive_mask,
    from_ignore_mask,
    from_integer_mask,
    padding_mask,
)

TOKENS = torch.tensor([[4, 9, 3, 3, 3], [3, 5, 3, 8, 6]])  # 3 is padding, once inside and once in front
REAL = torch.tensor([[True, True, False, False, False], [False, True, False, True, True]])


def test_padding_mask_lets_real_tokens_be_read():
    """One row per sequence, the same for all heads and queries; padding may stand anywhere."""
    mask = padding_mask(TOKENS, pad_id=3)
    assert mask.shape == (2, 1, 1, 5)
    assert torch.equal(mask[:, 0, 0], REAL)


@pytest.mark.parametrize(("query", "key"), [(5, 5), (1, 5), (2, 6), (3, 7), (5, 2), (1, 1), (0, 3), (3, 0)])
def test_causal_mask_is_aligned_at_the_bottom_right(query, key):
    """Written out from the definition: query i is position key - query + i, and reads up to itself (A10)."""
    mask = causal_mask(query, key)
    assert mask.shape == (query, key)
    for i, j in itertools.product(range(query), range(key)):
        assert mask[i, j].item() == (j <= key - query + i)


def test_square_causal_mask_is_pytorchs():
    """At equal lengths PyTorch's alignment and ours are the same, so its own `is_causal` is an oracle."""
    query, key, value = (torch.randn(2, 3, 6, 4) for _ in range(3))
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    actual = F.scaled_dot_product_attention(query, key, value, attn_mask=causal_mask(6))
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)


def test_causal_mask_is_built_where_asked():
    assert causal_mask(3, device="meta").is_meta


@given(st.data())
def test_combination_allows_what_all_allow(data):
    """Any number of masks of any broadcastable shapes, None among them, in any order."""
    sizes = (2, 3, 5, 7)
    masks: list[Tensor | None] = []
    for _ in range(data.draw(st.integers(0, 4))):
        shape = [data.draw(st.sampled_from([1, size])) for size in sizes[data.draw(st.integers(0, 3)) :]]
        masks.append(data.draw(st.sampled_from([None, torch.rand(shape) > 0.4])))
    expected = torch.ones(sizes, dtype=torch.bool)
    for mask in masks:
        expected = expected if mask is None else expected.logical_and(mask)
    for order in (masks, masks[::-1]):
        combined = combine_masks(*order)
        if combined is None:
            assert all(mask is None for mask in masks)
        else:
            assert torch.equal(combined.expand(sizes), expected)


def test_combination_leaves_its_arguments_alone():
    first, second = REAL.clone(), REAL.flip(0).clone()
    combine_masks(first, second)
    assert torch.equal(first, REAL)
    assert torch.equal(second, REAL.flip(0))


# Every way in which the field writes the same mask down, and how it comes to be ours.
CONVENTIONS = {
    "Boolean, True = attend": lambda allowed: allowed,
    "Boolean, True = ignore": lambda allowed: from_ignore_mask(~allowed),
    "uint8, 1 = ignore": lambda allowed: from_ignore_mask((~allowed).to(torch.uint8)),
    "uint8, 1 = attend": lambda allowed: from_integer_mask(allowed.to(torch.uint8)),
    "int64, 1 = attend": lambda allowed: from_integer_mask(allowed.long()),
    "float32, -inf": lambda allowed: from_additive_mask(
        torch.zeros(allowed.shape).where(allowed, -torch.inf)
    ),
    "float32, -1e9": lambda allowed: from_additive_mask(torch.zeros(allowed.shape).where(allowed, -1e9)),
    "float16, finfo.min": lambda allowed: from_additive_mask(
        torch.zeros(allowed.shape, dtype=torch.float16).where(allowed, torch.finfo(torch.float16).min)
    ),
    "bfloat16, -1e4": lambda allowed: from_additive_mask(
        torch.zeros(allowed.shape, dtype=torch.bfloat16).where(allowed, -1e4)
    ),
}


@pytest.mark.parametrize("padding", CONVENTIONS)
@pytest.mark.parametrize("causal", CONVENTIONS)
def test_every_convention_gives_the_same_output(padding, causal):
    """A03: a mask of another kind is neither ignored nor read the wrong way round, in any combination.

    Warnings are errors in these tests, so a spurious one fails here too.
    """
    query, key, value = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 6)
    triangle = torch.ones(5, 5).tril().bool()
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=REAL[:, None, None] & triangle)
    mask = combine_masks(CONVENTIONS[padding](REAL)[:, None, None], CONVENTIONS[causal](triangle))
    explicit, _ = scaled_dot_product_attention(query, key, value, mask=mask)
    torch.testing.assert_close(explicit, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(fused_attention(query, key, value, mask=mask), expected, atol=1e-6, rtol=0)


@pytest.mark.usefixtures("without_shape_checks")
class TestErrors:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32, torch.float16])
    @pytest.mark.parametrize("attend", [scaled_dot_product_attention, fused_attention])
    def test_attention_takes_boolean_masks_only(self, attend, dtype):
        """A03: the message names the dtype, what True means, and the way out."""
        query = torch.randn(2, 3, 5, 4)
        with pytest.raises(TypeError, match=rf"(?s)True = may attend.*{dtype}.*from_additive_mask"):
            attend(query, query, query, mask=torch.ones(5, 5, dtype=dtype))

    def test_a_mask_must_be_a_tensor(self):
        with pytest.raises(TypeError, match=r"masks\[1\].*list"):
            combine_masks(None, [[True, False]])

    def test_combination_names_the_mask_that_does_not_fit(self):
        with pytest.raises(ValueError, match=r"masks\[2\] of shape \(5, 7\).*\(4, 7\)"):
            combine_masks(torch.ones(4, 7) > 0, None, torch.ones(5, 7) > 0)

    @pytest.mark.parametrize("convert", [from_ignore_mask, from_integer_mask])
    def test_zeros_and_ones_only(self, convert):
        with pytest.raises(ValueError, match="0 and 1, got values from -1 to 3"):
            convert(torch.tensor([0, 1, 3, -1]))
        with pytest.raises(TypeError, match=r"float32.*from_additive_mask"):
            convert(torch.zeros(3))

    @pytest.mark.parametrize("value", [-5.0, 1.0, torch.inf, torch.nan, -9_999.0])
    def test_a_bias_is_no_mask(self, value):
        with pytest.raises(ValueError, match="bias="):
            from_additive_mask(torch.tensor([0.0, -torch.inf, value]))

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
    def test_what_is_added_must_be_a_float(self, dtype):
        with pytest.raises(TypeError, match=rf"{dtype}.*from_ignore_mask"):
            from_additive_mask(torch.ones(3, dtype=dtype))

    def test_tokens_must_be_rows(self):
        with pytest.raises(ValueError, match=r"\(batch, length\), got \(4,\)"):
            padding_mask(torch.arange(4), pad_id=0)

    def test_lengths_must_not_be_negative(self):
        with pytest.raises(ValueError, match="query=-1, key=4"):
            causal_mask(-1, 4)
