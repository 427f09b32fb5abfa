"""Multi-head attention and its cache: the module around the function."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn

from tx_from_scratch import attention as attention_module
from tx_from_scratch.attention import KeyValueCache, MultiHeadAttention, observe_weights
from tx_from_scratch.masks import causal_mask
from tx_from_scratch.transformer import Transformer, TransformerConfig


def attention(d_model: int = 12, n_heads: int = 3, *, bias: bool = False) -> MultiHeadAttention:
    return MultiHeadAttention(d_model, n_heads, bias=bias)


@pytest.fixture(params=[False, True], ids=["fused", "explicit"])
def looked_at(request):
    """Both paths of the module: somebody looking at the weights makes it take the explicit one."""
    if not request.param:
        yield None
        return
    seen: list[Tensor] = []
    with observe_weights(lambda module, weights: seen.append(weights)):
        yield seen
    assert seen


def reference(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's module with our weights: its in_proj stacks the rows of W_Q, W_K and W_V."""
    theirs = nn.MultiheadAttention(12, ours.n_heads, batch_first=True, bias=ours.project_out.bias is not None)
    parts = (ours.project_query, ours.project_key, ours.project_value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.out_proj.weight.copy_(ours.project_out.weight)
        if theirs.in_proj_bias is not None:
            theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
            theirs.out_proj.bias.copy_(ours.project_out.bias)
    return theirs


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("crossed", [False, True])
def test_multi_head_attention_equals_pytorch(crossed, bias, looked_at):
    """nn.MultiheadAttention with copied weights: outputs, weights, all gradients; its mask is inverted."""
    ours = attention(bias=bias)
    theirs = reference(ours)
    x = torch.randn(2, 5, 12, requires_grad=True)
    context = torch.randn(2, 7, 12, requires_grad=True) if crossed else x
    n_key = context.shape[1]
    real = torch.ones(2, n_key, dtype=torch.bool)
    real[0, 3:] = False
    visible = torch.rand(5, n_key) > 0.3
    visible[:, 0] = True  # theirs turns NaN where nothing may be read
    output = ours(x, context if crossed else None, mask=real[:, None, None] & visible)
    expected, expected_weights = theirs(
        x, context, context, key_padding_mask=~real, attn_mask=~visible, average_attn_weights=False
    )
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    if looked_at:
        torch.testing.assert_close(looked_at[0], expected_weights, atol=1e-5, rtol=0)

    direction = torch.randn_like(output)
    inputs = (x, context) if crossed else (x,)
    parts = (ours.project_query, ours.project_key, ours.project_value)
    weights = [part.weight for part in parts] + [ours.project_out.weight]
    actual = torch.autograd.grad(output, [*inputs, *weights], direction)
    wanted = torch.autograd.grad(
        expected, [*inputs, theirs.in_proj_weight, theirs.out_proj.weight], direction
    )
    torch.testing.assert_close(actual[: len(inputs)], wanted[: len(inputs)], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.cat(actual[len(inputs) : -1]), wanted[-2], atol=1e-5, rtol=0)
    torch.testing.assert_close(actual[-1], wanted[-1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [1.0, 0.1, 2])
def test_scale_is_a_factor_on_the_queries(scale, looked_at):
    """Theirs has no such argument, but its queries can carry the factor, and sqrt(d_head) = 2 too."""
    ours = MultiHeadAttention(12, 3, scale=scale)
    theirs = reference(ours)
    with torch.no_grad():
        theirs.in_proj_weight[:12] *= 2 * scale
    x, context = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    expected, expected_weights = theirs(x, context, context, average_attn_weights=False)
    torch.testing.assert_close(ours(x, context), expected, atol=1e-5, rtol=0)
    if looked_at:
        torch.testing.assert_close(looked_at[0], expected_weights, atol=1e-5, rtol=0)


def test_without_a_scale_it_is_one_over_sqrt_d_head(looked_at):
    ours, explained = attention(), MultiHeadAttention(12, 3, scale=0.5)
    explained.load_state_dict(ours.state_dict())
    x = torch.randn(2, 5, 12)
    torch.testing.assert_close(explained(x, causal=True), ours(x, causal=True), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_padding_spoils_no_gradient(dtype, looked_at):
    """A01, the open report of 2020: one sample whose keys are all padding, in a loss that ignores it.

    nn.MultiheadAttention gives NaN for the whole batch's projections, but only when weights are asked for.
    """
    ours = attention().to(dtype)
    x = torch.randn(2, 4, 12).to(dtype).requires_grad_()
    mask = torch.tensor([[True] * 4, [False] * 4])[:, None, None]
    output = ours(x, mask=mask)
    output[0].sum().backward()
    assert not output[1].any()
    assert not x.grad[1].any()
    for parameter in ours.parameters():
        assert parameter.grad.isfinite().all()
    alone = copy.deepcopy(ours)
    alone.zero_grad()
    single = alone(x.detach()[:1], mask=mask[:1])
    single.sum().backward()
    torch.testing.assert_close(output[:1], single)
    for ours_, theirs in zip(ours.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours_.grad, theirs.grad)


@pytest.mark.parametrize("length", [2, 5])
def test_rows_of_a_batch_do_not_mix(length, looked_at):
    """A09: also where batch and length are equal, so that a swapped axis would fit."""
    ours, x = attention(), torch.randn(5, length, 12)
    context = torch.randn(5, 7, 12)
    mask = torch.rand(5, 1, length, 7) > 0.4
    together = ours(x, context, mask=mask)
    for row in range(5):
        alone = ours(x[row : row + 1], context[row : row + 1], mask=mask[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-6, rtol=0)
    order = torch.tensor([3, 0, 4, 2, 1])
    torch.testing.assert_close(
        ours(x[order], context[order], mask=mask[order]), together[order], atol=1e-6, rtol=0
    )


def test_heads_see_slices_of_the_projections():
    """Equation of section 3.2.2: head h alone, with its own slice of W_Q, W_K, W_V and W_O, and summed."""
    ours, x = attention(), torch.randn(2, 5, 12)
    total = torch.zeros(2, 5, 12)
    for head in range(3):
        columns = slice(4 * head, 4 * head + 4)
        query, key, value = (
            x @ part.weight[columns].T for part in (ours.project_query, ours.project_key, ours.project_value)
        )
        weights = (query @ key.mT / 2).softmax(dim=-1)  # sqrt(d_head) = 2
        total += weights @ value @ ours.project_out.weight[:, columns].T
    torch.testing.assert_close(ours(x), total, atol=1e-5, rtol=0)


@pytest.mark.parametrize("chunks", [[5, *[1] * 7], [3, 3], [1] * 6, [6], [1, 4, 2]])
def test_cached_self_attention_equals_the_full_pass(chunks, looked_at):
    """A05 and A10: a prefill, then single steps; or chunks of more than one token."""
    ours, x = attention(), torch.randn(2, sum(chunks), 12)
    full = ours(x, causal=True)
    cache = KeyValueCache(capacity=2)
    with torch.no_grad():
        steps = [ours(chunk, causal=True, cache=cache) for chunk in x.split(chunks, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, atol=1e-5, rtol=0)
    assert cache.length == x.shape[1]


def test_cached_cross_attention_reads_its_context_once():
    """The memory's keys and values are projected at the first step; later steps take them from the cache."""
    ours, x, context = attention(), torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    mask = torch.rand(2, 1, 1, 7) > 0.3
    full = ours(x, context, mask=mask)
    calls = []
    ours.project_key.register_forward_hook(lambda *_: calls.append("key"))
    ours.project_value.register_forward_hook(lambda *_: calls.append("value"))
    cache = KeyValueCache()
    with torch.no_grad():
        steps = [ours(step, context, mask=mask, cache=cache) for step in x.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(steps, dim=1), full, atol=1e-5, rtol=0)
    assert calls == ["key", "value"]
    assert cache.length == 7


def test_cache_returns_all_that_was_stored():
    """Whatever the capacity: what comes out is the concatenation of what went in."""
    for capacity in (1, 3, 64):
        cache = KeyValueCache(capacity)
        keys, values = torch.randn(2, 3, 11, 4), torch.randn(2, 3, 11, 6)
        start = 0
        for size in (2, 1, 1, 0, 5, 2):
            part = slice(start, start + size)
            key, value = cache.append(keys[:, :, part], values[:, :, part])
            start += size
            assert torch.equal(key, keys[:, :, :start])
            assert torch.equal(value, values[:, :, :start])
            assert cache.length == start
            assert all(map(torch.equal, cache.contents(), (key, value)))


def test_cache_grows_by_doubling():
    """A thousand steps allocate ten times, not a thousand times."""
    cache = KeyValueCache(capacity=1)
    step = torch.randn(1, 2, 1, 4)
    buffers = set()
    for _ in range(1_000):
        buffers.add(cache.append(step, step)[0].untyped_storage().data_ptr())
    assert cache.capacity == 1_024
    assert len(buffers) <= 11


def test_cache_keeps_the_rows_it_is_told_to():
    """Beam search repeats, drops and reorders rows; what is appended later goes to the new rows."""
    cache = KeyValueCache(capacity=2)
    cache.select(torch.tensor([1, 0]))  # nothing stored yet: nothing to do
    key, value = torch.randn(3, 2, 5, 4), torch.randn(3, 2, 5, 6)
    cache.append(key, value)
    rows = torch.tensor([2, 2, 0, 1])
    cache.select(rows)
    new_key, new_value = torch.randn(4, 2, 1, 4), torch.randn(4, 2, 1, 6)
    keys, values = cache.append(new_key, new_value)
    assert torch.equal(keys, torch.cat([key[rows], new_key], dim=2))
    assert torch.equal(values, torch.cat([value[rows], new_value], dim=2))


def test_observers_see_every_attention_in_order():
    first, second = attention(), attention()
    seen = []
    with observe_weights(lambda module, weights: seen.append((module, weights))):
        output = first(second(torch.randn(2, 5, 12)), torch.randn(2, 7, 12))
        assert isinstance(output, Tensor)
    first(output)  # nobody looks any more
    assert [module for module, _ in seen] == [second, first]
    assert [tuple(weights.shape) for _, weights in seen] == [(2, 3, 5, 5), (2, 3, 5, 7)]


def test_weights_are_not_materialized_when_nobody_looks(monkeypatch):
    """The fused path is the usual one; one look away from the explicit one, and back."""
    calls = []
    explicit = attention_module.scaled_dot_product_attention

    def record(*arguments, **options):
        calls.append("explicit")
        return explicit(*arguments, **options)

    monkeypatch.setattr(attention_module, "scaled_dot_product_attention", record)
    ours, x = attention(), torch.randn(2, 5, 12)
    ours(x, causal=True)
    assert not calls
    with observe_weights(lambda module, weights: None):
        ours(x, causal=True)
    ours(x, causal=True)
    assert calls == ["explicit"]


def test_observers_leave_after_an_error():
    seen = []
    with pytest.raises(ZeroDivisionError), observe_weights(lambda *arguments: seen.append(arguments)):
        raise ZeroDivisionError
    attention()(torch.randn(2, 5, 12))
    assert not seen


def test_gradients_are_right(looked_at):
    """A15: against finite differences in float64, and the input is left as it was."""
    ours = attention(4, 2, bias=True).double()
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    before = x.detach().clone()
    assert torch.autograd.gradcheck(lambda x: ours(x, causal=True), x)
    assert torch.equal(x, before)


def test_module_is_copied_and_stored_after_use(looked_at):
    """A14: nothing of a forward pass stays behind that could not be copied or pickled."""
    ours, x = attention(), torch.randn(2, 5, 12)
    expected = ours(x)
    expected.sum().backward()
    for twin in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(twin(x), expected, atol=0, rtol=0)
    assert set(ours.state_dict()) == {f"project_{part}.weight" for part in ("query", "key", "value", "out")}


def test_a_bias_shifts_the_scores(looked_at):
    """Position schemes add to the scores: a bias of 0 and minus a lot is the mask it stands for."""
    ours, x = attention(), torch.randn(2, 5, 12)
    bias = torch.zeros(5, 5).masked_fill(~causal_mask(5), -1e4)
    torch.testing.assert_close(ours(x, bias=bias), ours(x, causal=True), atol=1e-6, rtol=0)


@pytest.mark.usefixtures("without_shape_checks")
class TestErrors:
    @pytest.mark.parametrize(
        ("d_model", "n_heads", "nearest"),
        [(1600, 48, "32, 40, 50"), (10, 3, "2, 5"), (12, 0, "1, 2, 3"), (12, -2, "1, 2, 3"), (7, 9, "1, 7")],
    )
    def test_heads_must_divide_the_width(self, d_model, n_heads, nearest):
        """A07: both values and the numbers of heads that would do."""
        with pytest.raises(ValueError, match="n_heads must be positive and divide d_model") as error:
            MultiHeadAttention(d_model, n_heads)
        assert f"d_model={d_model}, n_heads={n_heads}" in str(error.value)
        assert nearest in str(error.value)

    def test_width_must_be_positive(self):
        with pytest.raises(ValueError, match="d_model must be positive, got d_model=0"):
            MultiHeadAttention(0, 1)

    @pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan"), True, "0.5"])
    def test_scale_must_be_a_finite_positive_number(self, scale):
        with pytest.raises(ValueError, match="scale must be a finite positive number") as error:
            MultiHeadAttention(12, 3, scale=scale)
        assert f"got {scale!r}" in str(error.value)

    def test_another_batch_is_refused_by_the_cache(self):
        cache = KeyValueCache()
        cache.append(torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4))
        with pytest.raises(ValueError, match=r"holds 2 rows, 3 heads, width 4; got 1 rows, 3 heads, width 4"):
            cache.append(torch.randn(1, 3, 1, 4), torch.randn(1, 3, 1, 4))
        assert cache.length == 5

    def test_an_empty_cache_has_no_contents(self):
        with pytest.raises(ValueError, match="cache is empty"):
            KeyValueCache().contents()

    def test_capacity_must_be_positive(self):
        with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
            KeyValueCache(0)

    def test_context_of_another_batch_is_refused(self):
        with pytest.raises(ValueError, match="must agree in batch"):
            attention()(torch.randn(2, 5, 12), torch.randn(3, 7, 12))


@pytest.mark.usefixtures("without_shape_checks")
def test_a_stream_of_the_wrong_kind_is_refused_before_any_product():
    """Width, axes and dtype, by name."""
    attention = MultiHeadAttention(12, 3)
    good = torch.randn(2, 5, 12)
    for x in (torch.randn(2, 5, 10), torch.randn(5, 12), torch.ones(2, 5, 12, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"x must be .*d_model=12"):
            attention(x)
        with pytest.raises(ValueError, match=r"context must be .*d_model=12"):
            attention(good, x)
    with pytest.raises(TypeError, match=r"n_heads=2\.0"):
        MultiHeadAttention(10, 2.0)


def test_heads_may_have_a_width_of_their_own():
    """Like T5's: heads times d_head need not be d_model. Equal to T5Attention with copied weights."""
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    theirs = T5Attention(T5Config(d_model=10, num_heads=3, d_kv=8, dropout_rate=0.0), layer_idx=0).eval()
    ours = MultiHeadAttention(10, 3, d_head=8, scale=1.0)  # T5 does not divide
    with torch.no_grad():
        for mine, other in (
            (ours.project_query, theirs.q),
            (ours.project_key, theirs.k),
            (ours.project_value, theirs.v),
            (ours.project_out, theirs.o),
        ):
            other.weight.copy_(torch.randn_like(other.weight))
            mine.weight.copy_(other.weight)
    x = torch.randn(2, 5, 10)
    cache_position = torch.arange(5)
    wanted = theirs(x, cache_position=cache_position)[0]
    torch.testing.assert_close(ours(x), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bad", [{"d_head": 0}, {"d_head": -3}, {"n_heads": 0, "d_head": 4}])
def test_width_of_heads_must_be_positive(bad):
    with pytest.raises(ValueError, match="n_heads and d_head must be positive"):
        MultiHeadAttention(**{"d_model": 12, "n_heads": 3, **bad})
    with pytest.raises(ValueError, match="n_heads and d_head must be positive"):
        TransformerConfig(**{"vocab_size": 9, "d_model": 12, "n_heads": 3, **bad})


def test_configuration_hands_scale_and_width_to_every_attention():
    """All three kinds of attention of the encoder-decoder get what the configuration says."""
    config = TransformerConfig(
        vocab_size=9,
        d_model=10,
        n_heads=3,
        d_head=8,
        attention_scale=0.5,
        d_ff=6,
        n_encoder_layers=1,
        n_decoder_layers=1,
    )
    attentions = [
        module for module in Transformer(config).modules() if isinstance(module, MultiHeadAttention)
    ]
    assert len(attentions) == 3
    for attention in attentions:
        assert attention.scale == 0.5
        assert attention.project_query.weight.shape == (24, 10)
        assert attention.project_out.weight.shape == (10, 24)
