"""Self-attention with a position scheme: against a literal double loop, whatever the scheme does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tx_from_scratch.attention import KeyValueCache, MultiHeadAttention
from tx_from_scratch.inspection import capture_attention
from tx_from_scratch.positions import LayerPositions, Places, PositionScheme
from tx_from_scratch.self_attention import SelfAttention

D_MODEL, N_HEADS, D_HEAD = 12, 3, 5


class Everything(PositionScheme):
    """Acts wherever a scheme may act, by random tables: no symmetry that could hide a mistake."""

    reads_weights = True

    def __init__(self, length: int) -> None:
        super().__init__()
        self.stretch = torch.randn(length, D_HEAD)  # of queries and keys
        self.table = torch.randn(2, N_HEADS, length, length)  # of scores, by layer
        self.read_table = torch.randn(2, length, D_HEAD)  # of what a key's place adds to what is read

    def prepare(self, places: Places) -> Places:
        return places

    def rotate(self, query: Tensor, key: Tensor, prepared: Places) -> tuple[Tensor, Tensor]:
        return query * self.stretch[prepared.query][:, None], key * self.stretch[prepared.new][:, None]

    def bias(self, query: Tensor, key: Tensor, scale: float, prepared: Places, layer: int) -> Tensor:
        rows, columns = prepared.query[:, :, None], prepared.key[:, None, :]
        table = self.table[layer][:, rows, columns].movedim(0, 1)  # (batch, heads, query, key)
        return table + scale * query.sum(dim=-1, keepdim=True)

    def read(self, weights: Tensor, prepared: Places, layer: int) -> Tensor:
        return weights @ self.read_table[layer][prepared.key][:, None]


def literal(
    attention: SelfAttention,
    scheme: Everything,
    x: Tensor,
    positions: Tensor,
    layer: int,
    seen: Tensor,
    bias: Tensor,
) -> Tensor:
    """Query by query and key by key, from the definition."""
    batch, length = x.shape[:2]
    scale = attention.scale or D_HEAD**-0.5
    output = torch.zeros(batch, length, N_HEADS * D_HEAD)
    for b in range(batch):
        for head in range(N_HEADS):
            rows = slice(head * D_HEAD, (head + 1) * D_HEAD)
            query, key, value = (
                x[b] @ part.weight[rows].T
                for part in (attention.project_query, attention.project_key, attention.project_value)
            )
            for i in range(length):
                at_i = positions[b, i]
                turned = query[i] * scheme.stretch[at_i]
                readable = [j for j in range(length) if seen[b, i, j]]
                scores = torch.stack(
                    [
                        scale * (turned @ (key[j] * scheme.stretch[positions[b, j]]) + turned.sum())
                        + scheme.table[layer, head, at_i, positions[b, j]]
                        + bias[head, i, j]
                        for j in readable
                    ]
                )
                for weight, j in zip(scores.softmax(dim=0), readable, strict=True):
                    read = value[j] + scheme.read_table[layer, positions[b, j]]
                    output[b, i, rows] += weight * read
    return output @ attention.project_out.weight.T


@pytest.fixture(params=[None, 0.6])
def attention(request: pytest.FixtureRequest) -> SelfAttention:
    return SelfAttention(D_MODEL, N_HEADS, d_head=D_HEAD, scale=request.param)


POSITIONS = torch.tensor([[0, 1, 2, 4, 5, 8, 3], [6, 1, 7, 0, 2, 3, 8]])


def in_layer(scheme: PositionScheme, places: Places, layer: int = 1) -> LayerPositions:
    return LayerPositions(scheme, scheme.prepare(places), layer)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layer", [0, 1])
def test_all_four_places_equal_a_double_loop(attention, causal, layer):
    """Queries and keys changed, scores shifted, values added, with a mask and a bias besides."""
    scheme, x = Everything(9), torch.randn(2, 7, D_MODEL)
    real = torch.rand(2, 7) > 0.3
    real[:, 0] = True
    bias = torch.randn(N_HEADS, 7, 7)
    seen = real[:, None, :] & (torch.ones(7, 7).tril().bool() if causal else torch.tensor(True))
    actual = attention(
        x,
        mask=real[:, None, None],
        bias=bias[None],
        causal=causal,
        positions=in_layer(scheme, Places.of(POSITIONS), layer),
    )
    expected = literal(attention, scheme, x, POSITIONS, layer, seen.expand(2, 7, 7), bias)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_the_path_that_is_watched_equals_the_fast_one(attention):
    """A scheme that does not read the weights takes the fused kernel, until somebody looks."""
    scheme, x = Everything(9), torch.randn(2, 7, D_MODEL)
    for reads in (True, False):
        scheme.reads_weights = reads
        positions = in_layer(scheme, Places.of(POSITIONS))
        fast = attention(x, causal=True, positions=positions)
        with capture_attention(attention) as maps:
            watched = attention(x, causal=True, positions=positions)
        torch.testing.assert_close(watched, fast, atol=1e-5, rtol=1e-5)
        [[weights]] = maps.values()
        assert weights.shape == (2, N_HEADS, 7, 7)
        assert not weights.triu(1).any()
        assert not weights.requires_grad


@pytest.mark.parametrize("chunks", [[3, 3], [4, 1, 1, 1], [1, 6]])
def test_cached_keys_keep_their_places(attention, chunks):
    """Keys are changed once, when they are cached; queries read all of them."""
    scheme, x = Everything(9), torch.randn(2, sum(chunks), D_MODEL)
    positions = POSITIONS[:, : sum(chunks)]
    cache, steps, end = KeyValueCache(), [], 0
    with torch.no_grad():
        for part in x.split(chunks, dim=1):
            end += part.shape[1]
            places = Places.of(positions[:, :end], n_query=part.shape[1], n_new=part.shape[1])
            steps.append(attention(part, causal=True, cache=cache, positions=in_layer(scheme, places)))
    expected = attention(x, causal=True, positions=in_layer(scheme, Places.of(positions)))
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n_query", [1, 3, 7])
def test_a_context_holds_the_past_in_front(attention, n_query):
    """The stream's end asks all of it: the last rows of one pass."""
    scheme, x = Everything(9), torch.randn(2, 7, D_MODEL)
    places = Places.of(POSITIONS, n_query=n_query)
    actual = attention(x[:, -n_query:], x, causal=True, positions=in_layer(scheme, places))
    full = attention(x, causal=True, positions=in_layer(scheme, Places.of(POSITIONS)))
    torch.testing.assert_close(actual, full[:, -n_query:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_without_a_scheme_it_is_multi_head_attention(attention, causal):
    """Also with the scheme that does nothing."""
    plain = MultiHeadAttention(D_MODEL, N_HEADS, d_head=D_HEAD, scale=attention.scale)
    plain.load_state_dict(attention.state_dict())
    x, mask = torch.randn(2, 7, D_MODEL), torch.rand(2, 1, 1, 7) > 0.3
    expected = plain(x, mask=mask, causal=causal)
    nothing = in_layer(PositionScheme(), Places.of(POSITIONS))
    assert torch.equal(attention(x, mask=mask, causal=causal), expected)
    assert torch.equal(attention(x, mask=mask, causal=causal, positions=nothing), expected)


def test_gradients_are_right():
    """A15: against finite differences in float64, through queries, keys, scores and what is read."""
    attention, scheme = SelfAttention(4, 2, d_head=D_HEAD).double(), Everything(9)
    scheme.table = scheme.table[:, :2]
    for name, table in list(vars(scheme).items()):
        if isinstance(table, Tensor):
            setattr(scheme, name, table.double())
    x = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    positions = in_layer(scheme, Places.of(POSITIONS[:1, :3]))
    assert torch.autograd.gradcheck(lambda x: attention(x, causal=True, positions=positions), x)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("x", "context", "name"),
    [
        (torch.zeros(2, 3, 11), None, "x"),
        (torch.zeros(3, D_MODEL), None, "x"),
        (torch.zeros(2, 3, D_MODEL), torch.zeros(2, 3, 11), "context"),
    ],
)
def test_streams_have_the_models_width(attention: SelfAttention, x: Any, context: Any, name: str):
    positions = in_layer(PositionScheme(), Places.of(POSITIONS[:, :3]))
    with pytest.raises(ValueError, match=rf"{name} must be .*shape \(batch, seq, d_model=12\)"):
        attention(x, context, positions=positions)
