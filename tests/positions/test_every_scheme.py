"""What holds for all schemes: gradients, precision, state, and that the way of computing is no matter."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest
import torch
from position_inputs import (
    ANYWHERE,
    BATCH,
    CONSECUTIVE,
    D_MODEL,
    HEADS,
    KEY,
    PLACES,
    QUERY,
    SCHEMES,
    attend,
)
from torch import Tensor, nn

from tx_from_scratch.attention import KeyValueCache
from tx_from_scratch.positions import LayerPositions, Places, PositionScheme
from tx_from_scratch.self_attention import SelfAttention

every_scheme = pytest.mark.parametrize("name", SCHEMES)
all_places = pytest.mark.parametrize("places", PLACES)


def drawn(name: str) -> tuple[PositionScheme, SelfAttention, Tensor]:
    """A scheme whose parameters all matter, a layer and a stream for it."""
    scheme, attention = SCHEMES[name](), SelfAttention(D_MODEL, HEADS)
    with torch.no_grad():
        for parameter in scheme.parameters():
            parameter.normal_(std=0.5)
    return scheme, attention, torch.randn(BATCH, KEY, D_MODEL)


@every_scheme
@all_places
def test_gradients_are_right(name, places):
    """Finite differences in float64: the stream and every parameter of the scheme."""
    scheme, attention, x = drawn(name)
    scheme, attention, x = scheme.double(), attention.double(), x.double().requires_grad_()

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        return attend(scheme, attention, x, PLACES[places])

    assert torch.autograd.gradcheck(run, (x, *scheme.parameters()), fast_mode=True)


@every_scheme
@all_places
def test_gradients_reach_every_parameter(name, places):
    scheme, attention, x = drawn(name)
    (attend(scheme, attention, x, PLACES[places]) * torch.randn(BATCH, QUERY, D_MODEL)).sum().backward()
    for parameter in [*scheme.parameters(), *attention.parameters()]:
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.any()


@every_scheme
@all_places
def test_nothing_that_is_given_is_changed(name, places):
    """A15: a second run on the same tensors gives the same, and all of them are what they were."""
    places = dataclasses.replace(PLACES[places], key=PLACES[places].key.clone())
    scheme, attention, x = drawn(name)
    before = x.clone(), places.key.clone(), copy.deepcopy(scheme.state_dict())
    first = attend(scheme, attention, x, places)
    assert torch.equal(attend(scheme, attention, x, places), first)
    assert torch.equal(x, before[0])
    assert torch.equal(places.key, before[1])
    torch.testing.assert_close(dict(scheme.state_dict()), dict(before[2]), atol=0, rtol=0)


@every_scheme
def test_no_scheme_keeps_tensors(name):
    """A13, A14: after a pass with gradients it holds parameters, no buffers, and nothing else."""
    scheme, attention, x = drawn(name)
    attend(scheme, attention, x, ANYWHERE).sum().backward()
    assert not list(scheme.buffers())
    assert set(scheme.state_dict()) == {name for name, _ in scheme.named_parameters()}
    for module in scheme.modules():
        assert not [key for key, value in vars(module).items() if isinstance(value, Tensor)]


@every_scheme
def test_copies_give_the_same(name):
    """A14: deepcopy and pickle after a pass, and a state that goes into a new object."""
    scheme, attention, x = drawn(name)
    expected = attend(scheme, attention, x, ANYWHERE)
    fresh = SCHEMES[name]()
    fresh.load_state_dict(scheme.state_dict())
    for other in (copy.deepcopy(scheme), pickle.loads(pickle.dumps(scheme)), fresh):
        assert torch.equal(attend(other, attention, x, ANYWHERE), expected)
        assert not {id(p) for p in other.parameters()} & {id(p) for p in scheme.parameters()}


@every_scheme
def test_schemes_live_on_any_device(name):
    """A13: moved as a whole, with nothing left behind on the CPU."""
    scheme, attention, x = drawn(name)
    places = dataclasses.replace(CONSECUTIVE, key=CONSECUTIVE.key.to("meta"))
    output = attend(scheme.to("meta"), attention.to("meta"), x.to("meta"), places)
    assert output.is_meta
    assert output.shape == (BATCH, QUERY, D_MODEL)


@every_scheme
@all_places
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(name, places, dtype):
    """The whole layer in the format, and gradients: finite, and the float32 ones to its precision."""
    scheme, attention, x = drawn(name)
    expected = attend(scheme, attention, x, PLACES[places])
    output = attend(scheme.to(dtype), attention.to(dtype), x.to(dtype), PLACES[places])
    assert output.dtype == dtype
    torch.testing.assert_close(output.float(), expected, atol=0.1, rtol=0.1)
    output.sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in scheme.parameters())


@every_scheme
@all_places
def test_autocast_stays_close(name, places):
    """Parameters in float32, products in bfloat16, causal and not."""
    scheme, attention, x = drawn(name)
    for causal in (False, True):
        expected = attend(scheme, attention, x, PLACES[places], causal=causal)
        with torch.autocast("cpu", torch.bfloat16):
            output = attend(scheme, attention, x, PLACES[places], causal=causal)
        torch.testing.assert_close(output.float(), expected, atol=0.1, rtol=0.1)
        scheme.zero_grad()
        output.float().sum().backward()
        assert all(parameter.grad.isfinite().all() for parameter in scheme.parameters())


@every_scheme
@pytest.mark.parametrize("causal", [False, True])
def test_consecutive_positions_need_not_be_said(name, causal):
    """The shift and the index agree, and so do positions of one row for all and of every row."""
    scheme, attention, x = drawn(name)
    expected = attend(scheme, attention, x, CONSECUTIVE, causal=causal)
    for key in (CONSECUTIVE.key, CONSECUTIVE.key.expand(BATCH, -1)):
        actual = attend(scheme, attention, x, Places(key, QUERY, KEY), causal=causal)
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@every_scheme
def test_a_row_is_read_as_if_it_were_alone(name):
    """Rows with positions of their own: no row's positions reach another."""
    scheme, attention, x = drawn(name)
    together = attend(scheme, attention, x, ANYWHERE)
    for row in range(BATCH):
        places = Places(ANYWHERE.key[row : row + 1], QUERY, KEY)
        alone = attend(scheme, attention, x[row : row + 1], places)
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=0)


@every_scheme
def test_tokens_may_come_one_by_one(name):
    """A05: a prefill of 4 and 6 single steps with cached keys read what one causal pass reads."""
    scheme, attention, _ = drawn(name)
    x, positions = torch.randn(BATCH, 10, D_MODEL), torch.arange(10)[None]
    everything = Places(positions, 10, 10, consecutive=True)
    expected = attend(scheme, attention, x, everything, causal=True)
    cache, outputs, start = KeyValueCache(), [], 0
    for size in [4, *[1] * 6]:
        end = start + size
        places = Places(positions[:, :end], size, size, consecutive=True, longest=torch.tensor([[10]]))
        layer = LayerPositions(scheme, scheme.prepare(places), 1)
        new = scheme.embed(x[:, start:end], positions[:, start:end])
        outputs.append(attention(new, positions=layer, cache=cache, causal=True))
        start = end
    torch.testing.assert_close(torch.cat(outputs, dim=1), expected, atol=1e-5, rtol=0)


@every_scheme
def test_every_scheme_but_none_knows_the_order(name):
    """Swapping the first two tokens changes what the last one reads, unless nothing tells it of positions."""
    scheme, attention, x = drawn(name)
    swapped = x[:, [1, 0, *range(2, KEY)]]
    places = Places(torch.arange(KEY)[None], 1, KEY, consecutive=True)
    outputs = [attend(scheme, attention, stream, places) for stream in (x, swapped)]
    unaware = torch.allclose(outputs[0], outputs[1], atol=1e-5)
    # Beyond its limit of 3, Shaw's scheme does not tell the two apart.
    assert unaware == (name == "none" or name.startswith("Shaw"))


def test_the_base_class_does_nothing():
    scheme, x, key = PositionScheme(), torch.randn(BATCH, KEY, D_MODEL), torch.randn(BATCH, HEADS, KEY, 4)
    assert isinstance(scheme, nn.Module)
    layer = LayerPositions(scheme, scheme.prepare(CONSECUTIVE), 0)
    assert scheme.embed(x, CONSECUTIVE.key) is x
    assert layer.rotate(key, key) == (key, key)
    assert layer.bias(key, key, 1.0) is None
    assert layer.read(key @ key.mT) is None
    assert not layer.reads_weights
