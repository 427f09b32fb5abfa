"""The attention function: against the definition, against PyTorch, and where others break."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tx_from_scratch.attention import fused_attention, scaled_dot_product_attention
from tx_from_scratch.masks import causal_mask

LENGTHS = [(5, 7), (1, 7), (7, 7), (7, 5), (2, 6), (1, 1)]  # (query, key)


def explicit(*args: Tensor, **kwargs: object) -> Tensor:
    """The explicit path without its weights, so that both paths have one signature."""
    return scaled_dot_product_attention(*args, **kwargs)[0]


PATHS = [explicit, fused_attention]


def inputs(query: int = 5, key: int = 7, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    """Random queries, keys and values; batch 2, heads 3, widths 4 and 6."""
    shapes = (query, 4), (key, 4), (key, 6)
    return tuple(torch.randn(2, 3, *shape).to(dtype).requires_grad_() for shape in shapes)


def masks(query: int, key: int) -> dict[str, Tensor | None]:
    """All kinds of masks, those with queries that may attend to nothing among them."""
    padding = torch.ones(2, 1, 1, key, dtype=torch.bool)
    padding[0, ..., key // 2 :] = False
    whole_row = padding.clone()
    whole_row[1] = False
    return {
        "none": None,
        "padding": padding,
        "a row of nothing but padding": whole_row,
        "keys": torch.rand(key) > 0.4,
        "queries and keys": torch.rand(query, key) > 0.4,
        "heads": torch.rand(1, 3, query, key) > 0.4,
        "everything": torch.rand(2, 3, query, key) > 0.7,
        "queries": torch.rand(2, 1, query, 1) > 0.4,
        "nothing allowed": torch.zeros((), dtype=torch.bool),
    }


def dot(left: list[float], right: list[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def literal_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, bias: Tensor | None, causal: bool
) -> tuple[Tensor, Tensor]:
    """The definition, one score at a time, in Python's floats."""
    (batch, heads, n_query, d_head), n_key = query.shape, key.shape[2]
    shape = (batch, heads, n_query, n_key)
    allowed = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
    added = torch.zeros(shape) if bias is None else bias.expand(shape)
    asked, offered, added = query.tolist(), key.tolist(), added.tolist()
    weights = torch.zeros(shape)
    for b, h, i in itertools.product(range(batch), range(heads), range(n_query)):
        readable = [
            j for j in range(n_key) if allowed[b, h, i, j] and not (causal and j > n_key - n_query + i)
        ]
        scores = {
            j: dot(asked[b][h][i], offered[b][h][j]) / math.sqrt(d_head) + added[b][h][i][j] for j in readable
        }
        total = sum(math.exp(score) for score in scores.values())
        for j, score in scores.items():
            weights[b, h, i, j] = math.exp(score) / total
    return torch.einsum("bhqk,bhkv->bhqv", weights, value), weights


@pytest.mark.parametrize("mask", masks(5, 7))
def test_attention_equals_pytorch(mask):
    """F.scaled_dot_product_attention has the same convention, and zeros for a query without keys."""
    query, key, value = inputs()
    allowed = masks(5, 7)[mask]
    expected = F.scaled_dot_product_attention(
        query, key, value, attn_mask=None if allowed is None else allowed.expand(2, 3, 5, 7)
    )
    torch.testing.assert_close(explicit(query, key, value, mask=allowed), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [None, 1.0, 0.125, 3])
@pytest.mark.parametrize("attend", PATHS)
@pytest.mark.parametrize("mask", masks(5, 7))
def test_scale_means_what_it_means_in_pytorch(attend, mask, scale):
    """The same argument of F.scaled_dot_product_attention: output and gradients, with and without a bias."""
    query, key, value = inputs()
    cotangent = torch.randn(2, 3, 5, 6)
    allowed = masks(5, 7)[mask]
    readable = torch.ones((), dtype=torch.bool) if allowed is None else allowed
    for bias in (torch.zeros(5, 7), torch.randn(5, 7)):

        def pytorch(query: Tensor, key: Tensor, value: Tensor, bias: Tensor = bias) -> Tensor:
            added = bias.masked_fill(~readable, -math.inf).expand(2, 3, 5, 7)
            return F.scaled_dot_product_attention(query, key, value, attn_mask=added, scale=scale)

        actual = run(attend, query, key, value, cotangent, mask=allowed, bias=bias, scale=scale)
        expected = run(pytorch, query, key, value, cotangent)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attend", PATHS)
@pytest.mark.parametrize("n_query", [1, 5])
def test_scale_one_is_the_plain_product(attend, n_query):
    """Q Kᵀ itself goes into the softmax, causal or not."""
    query, key, value = inputs(n_query, 5)
    scores = query @ key.mT
    weights = scores.masked_fill(~causal_mask(n_query, 5), -math.inf).softmax(dim=-1)
    torch.testing.assert_close(
        attend(query, key, value, causal=True, scale=1.0), weights @ value, atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        attend(query, key, value, scale=1.0), scores.softmax(dim=-1) @ value, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("attend", PATHS)
def test_a_small_scale_keeps_large_queries_finite(attend):
    """A02: in float16 the unscaled product, 4 · 200 · 200 = 160,000, would be infinite, and NaN after it."""
    query = torch.full((1, 1, 1, 4), 200.0, dtype=torch.float16)
    key = torch.stack([query[0, 0, 0], query[0, 0, 0] - 50]).view(1, 1, 2, 4)
    value = torch.tensor([1.0, 0.0]).half().view(1, 1, 2, 1)
    output = attend(query, key, value, scale=2**-15)  # scores 4.88 and 3.66
    expected = torch.tensor([160_000.0, 120_000.0]).mul(2**-15).softmax(dim=0)[0]
    torch.testing.assert_close(output.flatten().float(), expected[None], atol=2e-3, rtol=0)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_the_definition(lengths, causal):
    """A slow loop written from equation 1 of the paper; unequal lengths aligned at the bottom right."""
    query, key, value = inputs(*lengths)
    bias = torch.randn(3, *lengths)
    for mask, added in itertools.product(masks(*lengths).values(), [None, bias]):
        arguments = {"mask": mask, "bias": added, "causal": causal}
        expected, expected_weights = literal_attention(query, key, value, **arguments)
        output, weights = scaled_dot_product_attention(query, key, value, **arguments)
        torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=0)
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", masks(5, 7))
def test_weights_are_distributions(mask, causal):
    """Each row sums to 1, or to 0 where nothing may be read; what is masked gets exactly nothing."""
    allowed = masks(5, 7)[mask]
    query, key, value = inputs()
    _, weights = scaled_dot_product_attention(query, key, value, mask=allowed, causal=causal)
    readable = torch.ones(2, 3, 5, 7, dtype=torch.bool) if allowed is None else allowed.expand(2, 3, 5, 7)
    readable = readable & causal_mask(5, 7) if causal else readable
    assert not weights[~readable].any()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(dim=-1), readable.any(dim=-1).float(), atol=1e-6, rtol=0)


def run(attend, query, key, value, cotangent, **arguments):
    """Output and gradients for one fixed direction."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (query, key, value)]
    output = attend(*leaves, **arguments)
    return output, *torch.autograd.grad(output, leaves, cotangent.to(output.dtype))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("mask", masks(1, 1))
def test_both_paths_are_one_function(lengths, mask):
    """Output and gradients, for every kind of mask and bias, causal or not."""
    query, key, value = inputs(*lengths)
    cotangent = torch.randn(2, 3, lengths[0], 6)
    biases = [None, torch.randn(lengths), torch.randn(2, 3, *lengths), torch.randn(lengths[1])]
    for bias, causal in itertools.product(biases, [False, True]):
        arguments = {"mask": masks(*lengths)[mask], "bias": bias, "causal": causal}
        torch.testing.assert_close(
            run(fused_attention, query, key, value, cotangent, **arguments),
            run(explicit, query, key, value, cotangent, **arguments),
            atol=1e-5,
            rtol=0,
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("attend", PATHS)
@pytest.mark.parametrize("mask", masks(1, 1))
def test_half_precision_stays_close(attend, dtype, mask):
    """A02: no constant overflows, and the result is the float32 one to the precision of the format."""
    query, key, value = inputs(dtype=dtype)
    cotangent = torch.randn(2, 3, 5, 6).to(dtype)
    allowed, bias = masks(5, 7)[mask], torch.randn(5, 7)
    full = [tensor.float() for tensor in (query, key, value, cotangent)]
    for causal, added in itertools.product([False, True], [None, bias]):
        arguments = {"mask": allowed, "bias": added, "causal": causal}
        actual = run(attend, query, key, value, cotangent, **arguments)
        assert all(tensor.dtype == dtype for tensor in actual)
        expected = run(explicit, *full, **arguments)
        tolerance = 2e-2 if dtype == torch.float16 else 1e-1
        for ours, exact in zip(actual, expected, strict=True):
            torch.testing.assert_close(ours.float(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("attend", PATHS)
def test_large_scores_do_not_overflow(attend):
    """A02: scores of ±30,000 in float16 beside a padding and a causal mask: the largest readable one wins."""
    query = torch.full((1, 1, 4, 4), 122.5, dtype=torch.float16)
    sign = torch.tensor([-1.0, 1.0, -1.0, 1.0]).view(1, 1, 4, 1)
    key = (sign * 122.5).half().expand(1, 1, 4, 4)
    value = torch.arange(4.0).half().view(1, 1, 4, 1)
    padding = torch.tensor([True, True, True, False])
    output = attend(query, key, value, mask=padding, causal=True)
    torch.testing.assert_close(output.flatten().tolist(), [0.0, 1.0, 1.0, 1.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [None, torch.randn(5, 7)])
@pytest.mark.parametrize("attend", PATHS)
def test_a_query_without_keys_yields_zeros(attend, bias, dtype):
    """A01: neither NaN nor the mean of everything, nor any gradient; the others never notice."""
    query, key, value = inputs(dtype=dtype)
    cotangent = torch.randn(2, 3, 5, 6).to(dtype)
    mask = torch.rand(2, 3, 5, 7) > 0.3
    mask[0, 1, 2] = False  # one query of one head
    mask[1] = False  # a whole row of the batch
    output, to_query, to_key, to_value = run(attend, query, key, value, cotangent, mask=mask, bias=bias)
    for tensor in (output, to_query):
        assert not tensor[0, 1, 2].any()
        assert not tensor[1].any()
    assert not to_key[1].any()
    assert not to_value[1].any()
    cotangent[0, 1, 2] = 1e3  # nobody reads that direction
    again = run(attend, query, key, value, cotangent, mask=mask, bias=bias)
    torch.testing.assert_close(again, (output, to_query, to_key, to_value), atol=0, rtol=0)
    alone = run(attend, query[:1], key[:1], value[:1], cotangent[:1], mask=mask[:1], bias=bias)
    for ours, single in zip((output, to_query, to_key, to_value), alone, strict=True):
        torch.testing.assert_close(ours[:1], single)
        assert ours.isfinite().all()


@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("bias", [None, torch.randn(5, 7)])
@pytest.mark.parametrize("attend", PATHS)
def test_padding_may_hold_anything(attend, bias, causal, garbage):
    """NaN and infinity in keys and values that no query may read reach no output and no gradient."""
    query, key, value = inputs()
    cotangent = torch.randn(2, 3, 5, 6)
    mask = torch.ones(2, 1, 1, 7, dtype=torch.bool)
    mask[0, ..., 4:] = False
    mask[1, ..., 0] = False
    hidden = ~mask.mT  # (batch, 1, key, 1)
    arguments = {"mask": mask, "bias": bias, "causal": causal}
    expected = run(
        attend, query, key.masked_fill(hidden, 0), value.masked_fill(hidden, 0), cotangent, **arguments
    )
    actual = run(
        attend,
        query,
        key.masked_fill(hidden, garbage),
        value.masked_fill(hidden, garbage),
        cotangent,
        **arguments,
    )
    torch.testing.assert_close(actual, expected, atol=0, rtol=0)
    assert not actual[2].masked_select(hidden).any()
    assert not actual[3].masked_select(hidden).any()


@pytest.mark.parametrize("attend", PATHS)
def test_keys_that_different_masks_hide_together_may_hold_anything(attend):
    """A key is unreadable, too, when every query has a reason of its own not to read it, in one head only."""
    query, key, value = inputs()
    mask = torch.ones(2, 3, 5, 7, dtype=torch.bool)
    mask[1, 2, :, 3] = False
    key, value = key.detach().clone(), value.detach().clone()
    key[1, 2, 3] = value[1, 2, 3] = torch.nan
    assert attend(query, key, value, mask=mask).isfinite().all()


@pytest.mark.parametrize("attend", PATHS)
@pytest.mark.parametrize("size", [1.0, 1e4, 1e18])
def test_what_a_query_may_not_read_does_not_reach_it(attend, size):
    """Finite values behind a per-query mask, readable by others: neither the row nor its gradient moves."""
    query, key, value = inputs()
    mask = torch.rand(5, 7) > 0.3
    mask[2, 3], mask[0, 3] = False, True
    cotangent = torch.zeros(2, 3, 5, 6)
    cotangent[:, :, 2] = torch.randn(2, 3, 6)  # only the query that may not read key 3
    before = run(attend, query, key, value, cotangent, mask=mask)
    key, value = key.detach().clone(), value.detach().clone()
    key[:, :, 3], value[:, :, 3] = size, -size
    after = run(attend, query, key, value, cotangent, mask=mask)
    torch.testing.assert_close(after[0][:, :, 2], before[0][:, :, 2], atol=1e-6, rtol=0)
    torch.testing.assert_close(after[1][:, :, 2], before[1][:, :, 2], atol=1e-6, rtol=0)
    assert not after[2][:, :, 3].any()
    assert not after[3][:, :, 3].any()


@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.float32, 3e38), (torch.float16, 6e4), (torch.bfloat16, 3e38)]
)
def test_a_gradient_that_overflows_behind_the_mask_stays_there(dtype, size):
    """Weights times a zero mask would turn that overflow into NaN: 0 times infinity."""
    query, key, value = (tensor.detach().clone() for tensor in inputs(dtype=dtype))
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[1:, 3] = False
    value[:, :, 3] = size
    cotangent = torch.full((2, 3, 5, 6), 3.0)
    cotangent[:, :, 0] = 0.0
    assert all(
        tensor.isfinite().all() for tensor in run(explicit, query, key, value, cotangent, mask=mask)[1:]
    )


@pytest.mark.parametrize("lengths", [(1, 5), (2, 6), (3, 6), (6, 6)])
@pytest.mark.parametrize("attend", PATHS)
def test_late_queries_are_the_last_rows_of_the_full_pass(attend, lengths):
    """A10: PyTorch's `is_causal` aligns at the top left: one new query would see the first key only."""
    n_query, n_key = lengths
    query, key, value = inputs(n_key, n_key)
    full = attend(query, key, value, causal=True)
    late = attend(query[:, :, -n_query:], key, value, causal=True)
    torch.testing.assert_close(late, full[:, :, -n_query:], atol=1e-6, rtol=0)


def test_causal_attention_materializes_no_mask(monkeypatch):
    """The fast kernel is taken only without a mask tensor: equal lengths, and a single query with a cache."""
    calls = []
    kernel = F.scaled_dot_product_attention

    def record(*args, attn_mask=None, is_causal=False, scale=None):
        calls.append((attn_mask is None, is_causal))
        return kernel(*args, attn_mask=attn_mask, is_causal=is_causal, scale=scale)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    for lengths in [(5, 5), (1, 7), (2, 7)]:
        fused_attention(*inputs(*lengths), causal=True)
    assert calls == [(True, True), (True, False), (False, False)]


@pytest.mark.parametrize("attend", PATHS)
def test_arguments_are_left_alone(attend):
    """A15: bit for bit, also where something is masked; and a second call gives the same."""
    query, key, value = inputs()
    mask, bias = torch.rand(2, 1, 5, 7) > 0.5, torch.randn(3, 5, 7)
    before = [tensor.detach().clone() for tensor in (query, key, value, mask, bias)]
    first = attend(query, key, value, mask=mask, bias=bias, causal=True)
    second = attend(query, key, value, mask=mask, bias=bias, causal=True)
    (first + second).sum().backward()
    assert torch.equal(first, second)
    for tensor, copy in zip((query, key, value, mask, bias), before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize("attend", PATHS)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_right(attend, causal):
    """Against finite differences in float64, with a query that may attend to nothing, and a learned bias."""
    query, key, value = (
        torch.randn(1, 2, *shape, dtype=torch.float64, requires_grad=True)
        for shape in ((3, 2), (4, 2), (4, 3))
    )
    bias = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(3, 4) > 0.3
    mask[1] = False

    def call(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        return attend(query, key, value, mask=mask, bias=bias, causal=causal)

    assert torch.autograd.gradcheck(call, (query, key, value, bias))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("attend", PATHS)
class TestErrors:
    @pytest.mark.parametrize(
        ("query", "key", "value"),
        [
            ((2, 3, 5, 4), (2, 3, 7, 8), (2, 3, 7, 6)),  # widths
            ((2, 3, 5, 4), (2, 2, 7, 4), (2, 2, 7, 6)),  # heads
            ((2, 3, 5, 4), (1, 3, 7, 4), (1, 3, 7, 6)),  # batch
            ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 8, 6)),  # lengths
            ((2, 5, 4), (2, 7, 4), (2, 7, 6)),  # no heads
        ],
    )
    def test_shapes_that_do_not_fit_are_named(self, attend, query, key, value):
        with pytest.raises(ValueError, match=r"must (agree in|have shape)") as error:
            attend(torch.zeros(query), torch.zeros(key), torch.zeros(value))
        for shape in (query, key, value):
            assert str(shape) in str(error.value)

    @pytest.mark.parametrize("shape", [(4, 7), (2, 5, 7), (3, 3, 5, 7), (1, 2, 3, 5, 7), (5, 7, 1)])
    def test_masks_and_biases_must_broadcast(self, attend, shape):
        query, key, value = inputs()
        with pytest.raises(ValueError, match="mask must broadcast") as error:
            attend(query, key, value, mask=torch.ones(shape) > 0)
        assert "mask must broadcast to (batch, heads, query, key) = (2, 3, 5, 7)" in str(error.value)
        assert str(shape) in str(error.value)
        with pytest.raises(ValueError, match="bias must broadcast to"):
            attend(query, key, value, bias=torch.ones(shape))

    @pytest.mark.parametrize("scale", [0, -0.5, math.inf, math.nan, True, "1", torch.ones(())])
    def test_a_scale_must_be_a_finite_positive_number(self, attend, scale):
        query, key, value = inputs()
        with pytest.raises(ValueError, match="scale must be a finite positive number") as error:
            attend(query, key, value, scale=scale)
        assert f"got {scale!r}" in str(error.value)

    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
    def test_a_bias_must_be_a_float(self, attend, dtype):
        query, key, value = inputs()
        with pytest.raises(TypeError, match=f"bias must be a float.*{dtype}"):
            attend(query, key, value, bias=torch.ones(5, 7, dtype=dtype))
