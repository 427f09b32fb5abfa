"""Shaw and Transformer-XL: loops written from the definitions, and the shift."""

from __future__ import annotations

import math

import pytest
import torch
from position_inputs import (
    ANYWHERE,
    BATCH,
    CONSECUTIVE,
    D_HEAD,
    D_MODEL,
    HEADS,
    KEY,
    LAYERS,
    PLACES,
    QUERY,
    attend,
    heads,
)
from torch import Tensor

from tx_from_scratch.positions import (
    Places,
    PositionScheme,
    ShawRelativePositions,
    TransformerXLPositions,
    relative_shift,
    row_positions,
)
from tx_from_scratch.positions.relative import Distances
from tx_from_scratch.self_attention import SelfAttention

# A column for each of the million distances between them would be waste.
FAR_APART = Places(
    torch.tensor([[0, 3, 10**6, 4, 5, 10**6 + 1, 9], [7, 0, 1, 2, 5 * 10**5, 3, 8]]), QUERY, KEY
)
PLACES = {**PLACES, "far apart": FAR_APART}
PAIRS = torch.cartesian_prod(*map(torch.arange, (BATCH, HEADS, QUERY, KEY))).tolist()


def positions_of(places: Places) -> tuple[list[list[int]], list[list[int]]]:
    """Positions of the queries and of the keys, both of the batch's rows."""
    keys = places.key.expand(BATCH, -1)
    return keys[:, -places.n_query :].tolist(), keys.tolist()


def projections(attention: SelfAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of the last tokens, keys and values of all, (batch, heads, seq, d_head)."""
    query, key, value = (
        (x @ linear.weight.T).unflatten(-1, (HEADS, D_HEAD)).transpose(1, 2)
        for linear in (attention.project_query, attention.project_key, attention.project_value)
    )
    return query[:, :, -QUERY:], key, value


def perturbed(scheme: PositionScheme) -> PositionScheme:
    """Parameters of size 1, so that no term is too small to be missed."""
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.normal_()
    return scheme


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("places", PLACES)
def test_shaw_equals_the_definition(places, values, causal, layer):
    """Equations 3 and 4 of the paper, one pair at a time, clipped at ±3, with both tables."""
    places = PLACES[places]
    attention, x = SelfAttention(D_MODEL, HEADS), torch.randn(BATCH, KEY, D_MODEL)
    scheme = perturbed(ShawRelativePositions(LAYERS, D_HEAD, max_distance=3, values=values))
    query, key, value = projections(attention, x)
    query_places, key_places = positions_of(places)

    def row(b: int, i: int, j: int) -> int:
        return 3 + max(-3, min(3, key_places[b][j] - query_places[b][i]))

    scores = torch.full((BATCH, HEADS, QUERY, KEY), -torch.inf)
    for b, h, i, j in PAIRS:
        if not causal or j <= i + KEY - QUERY:
            compared = key[b, h, j] + scheme.keys[layer, row(b, i, j)]
            scores[b, h, i, j] = query[b, h, i] @ compared / math.sqrt(D_HEAD)
    weights = scores.softmax(dim=-1)
    attended = torch.zeros(BATCH, HEADS, QUERY, D_HEAD)
    for b, h, i, j in PAIRS:
        read = value[b, h, j] + (scheme.values[layer, row(b, i, j)] if values else 0)
        attended[b, h, i] += weights[b, h, i, j] * read
    expected = attended.transpose(1, 2).flatten(2) @ attention.project_out.weight.T
    actual = attend(scheme, attention, x, places, layer=layer, causal=causal)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_shaw_reads_the_last_vector_of_each_side_beyond_the_limit():
    """Clipping: changing a distance from 3 to 30 changes nothing, from 2 to 3 something."""
    scheme = perturbed(ShawRelativePositions(LAYERS, D_HEAD, max_distance=3))
    query, key = heads(1), heads(2)

    def bias(distance: int) -> Tensor:
        places = Places(torch.tensor([[100 - distance, 100]]), 1, 1)
        return scheme.bias(query, key, 1.0, scheme.prepare(places), 0)

    torch.testing.assert_close(bias(3), bias(30), atol=1e-6, rtol=0)
    torch.testing.assert_close(bias(-3), bias(-30), atol=1e-6, rtol=0)
    assert not torch.allclose(bias(2), bias(3), atol=1e-2)
    assert not torch.allclose(bias(3), bias(-3), atol=1e-2)


def literal_transformer_xl(
    scheme: TransformerXLPositions, query: Tensor, key: Tensor, places: Places, layer: int
) -> Tensor:
    """(q + u) · k + (q + v) · W_R R of the distance, over √d_head, in Python one pair at a time."""
    query_places, key_places = positions_of(places)
    scores = torch.zeros(BATCH, HEADS, QUERY, KEY)
    for b, h, i, j in PAIRS:
        distance = query_places[b][i] - key_places[b][j]
        angles = [distance / 10_000.0 ** (2 * c / D_MODEL) for c in range(D_MODEL // 2)]
        code = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)])
        projected = scheme.project_distance[layer, :, h].T @ code
        q, k = query[b, h, i], key[b, h, j]
        u, v = scheme.content_bias[h], scheme.distance_bias[h]
        scores[b, h, i, j] = (q @ k + q @ projected + u @ k + v @ projected) / math.sqrt(D_HEAD)
    return scores


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("places", PLACES)
def test_transformer_xl_equals_the_definition(places, layer):
    """Scores, those of the future among them, then a whole layer."""
    places = PLACES[places]
    attention, x = SelfAttention(D_MODEL, HEADS), torch.randn(BATCH, KEY, D_MODEL)
    scheme = perturbed(TransformerXLPositions(LAYERS, D_MODEL, HEADS, D_HEAD))
    query, key, value = projections(attention, x)
    expected = literal_transformer_xl(scheme, query, key, places, layer)
    scale = D_HEAD**-0.5
    bias = scheme.bias(query, key, scale, scheme.prepare(places), layer)
    torch.testing.assert_close(scale * query @ key.mT + bias, expected, atol=1e-4, rtol=1e-5)
    attended = (expected.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
    torch.testing.assert_close(
        attend(scheme, attention, x, places, layer=layer),
        attended @ attention.project_out.weight.T,
        atol=1e-5,
        rtol=0,
    )


def test_distances_far_apart_take_no_room():
    """Only those that occur get a column: here one for each pair would be the most."""
    assert len(Distances.of(FAR_APART).values) <= BATCH * QUERY * KEY
    assert len(Distances.of(Places.of(torch.tensor([[0, 10**12]]))).values) == 3


def test_shaw_needs_no_values_of_positions():
    """So it can be tried on the meta device, where there are none."""
    scheme = ShawRelativePositions(LAYERS, D_HEAD).to("meta")
    query, key = heads(KEY).to("meta"), heads(KEY).to("meta")
    prepared = scheme.prepare(Places.of(torch.zeros(BATCH, KEY, dtype=torch.long, device="meta")))
    assert scheme.bias(query, key, 1.0, prepared, 0).shape == (BATCH, HEADS, KEY, KEY)


def test_transformer_xl_codes_are_sines_then_cosines():
    """As XLNet's own table, at distances of both signs."""
    from transformers.models.xlnet.modeling_xlnet import XLNetModel

    scheme, distance = TransformerXLPositions(1, D_MODEL, HEADS, D_HEAD), torch.arange(6, -5, -1)
    frequency = 1 / 10_000 ** (torch.arange(0, D_MODEL, 2) / D_MODEL)
    expected = XLNetModel.positional_embedding(distance.float(), frequency)[:, 0]
    torch.testing.assert_close(scheme.codes(distance), expected, atol=1e-5, rtol=0)
    odd = TransformerXLPositions(1, 5, HEADS, D_HEAD).codes(distance)
    torch.testing.assert_close(odd[:, 0], distance.float().sin(), atol=1e-6, rtol=0)
    torch.testing.assert_close(odd[:, 3], distance.float().cos(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("n_padding", [1, 3])
@pytest.mark.parametrize("make", [TransformerXLPositions, ShawRelativePositions])
def test_left_padding_changes_nothing(make, n_padding):
    """A row with padding before it, whose content is noise, reads what it would read without."""
    sizes = (D_MODEL, HEADS, D_HEAD) if make is TransformerXLPositions else (D_HEAD,)
    scheme, attention = perturbed(make(LAYERS, *sizes)), SelfAttention(D_MODEL, HEADS)
    x = torch.randn(BATCH, KEY, D_MODEL)
    real = torch.ones(BATCH, KEY, dtype=torch.bool)
    real[1, :n_padding] = False
    padded = attend(
        scheme, attention, x, Places.of(row_positions(real)), causal=True, mask=real[:, None, None]
    )
    for row, start in [(0, 0), (1, n_padding)]:
        places = Places(torch.arange(KEY - start)[None], KEY - start, KEY - start, consecutive=True)
        alone = attend(scheme, attention, x[row : row + 1, start:], places, causal=True)
        torch.testing.assert_close(padded[row : row + 1, start:], alone, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("n_query", "n_key"), [(5, 7), (7, 7), (1, 7), (1, 1), (4, 4), (2, 9)])
def test_the_shift_is_an_index(n_query, n_key):
    """Row i, key j wants the column of distance j − i: column j − i − 1 + query of all of them."""
    scores = torch.randn(BATCH, HEADS, n_query, n_key + n_query - 1)
    shifted = relative_shift(scores, n_key)
    assert shifted.shape == (BATCH, HEADS, n_query, n_key)
    for i in range(n_query):
        columns = torch.arange(n_key) - i + n_query - 1
        assert torch.equal(shifted[:, :, i], scores[:, :, i, columns])


@pytest.mark.parametrize(("n_query", "n_key"), [(5, 7), (7, 7), (1, 7)])
def test_the_shift_equals_xlnets(n_query, n_key):
    """XLNet's table has one more distance in front, which its shift drops."""
    from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

    scores = torch.randn(BATCH, HEADS, n_query, n_key + n_query)
    expected = XLNetRelativeAttention.rel_shift_bnij(scores, klen=n_key)
    assert torch.equal(relative_shift(scores[..., 1:], n_key), expected)


def test_the_shift_has_a_gradient():
    scores = torch.randn(1, 2, 3, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda scores: relative_shift(scores, 4), scores)


@pytest.mark.parametrize("make", [TransformerXLPositions, ShawRelativePositions])
def test_every_layer_has_a_table_of_its_own(make):
    """Gradients reach the layer that was asked, the vectors that all layers share, and no other layer."""
    sizes = (D_MODEL, HEADS, D_HEAD) if make is TransformerXLPositions else (D_HEAD,)
    scheme, attention = make(LAYERS, *sizes), SelfAttention(D_MODEL, HEADS)
    if make is ShawRelativePositions:
        scheme = ShawRelativePositions(LAYERS, D_HEAD, max_distance=3)
    x = torch.randn(BATCH, KEY, D_MODEL)
    for places in (CONSECUTIVE, ANYWHERE):
        scheme.zero_grad()
        (attend(scheme, attention, x, places, layer=1) * torch.randn(BATCH, QUERY, D_MODEL)).sum().backward()
        for name, parameter in scheme.named_parameters():
            if name in ("content_bias", "distance_bias"):
                assert parameter.grad.all()
            else:
                assert not parameter.grad[0].any()
                assert parameter.grad[1].flatten(1).any(dim=1).all()


def test_dropout_acts_on_the_codes_and_only_in_training():
    """Half of R is dropped and the rest doubled; evaluation drops nothing."""
    scheme = TransformerXLPositions(LAYERS, D_MODEL, HEADS, D_HEAD, dropout=0.5)
    exact = scheme.codes(-scheme.prepare(CONSECUTIVE)[0].values)
    dropped = scheme.prepare(CONSECUTIVE)[1]
    kept = dropped != 0
    assert 0 < kept.float().mean() < 1
    torch.testing.assert_close(dropped[kept], 2 * exact[kept])
    assert torch.equal(scheme.eval().prepare(CONSECUTIVE)[1], exact)
