"""The cost of layers: counted on real ones, by PyTorch's counter, its saved tensors, and who hears whom."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from tx_from_scratch.attention import MultiHeadAttention, observe_weights, scaled_dot_product_attention
from tx_from_scratch.complexity import (
    GATES,
    LayerCost,
    convolution,
    convolution_crossover,
    projections_crossover,
    recurrence,
    recurrence_crossover,
    recurrence_memory_crossover,
    restricted_attention,
    self_attention,
    weights_crossover,
)

SIZES = [(7, 12), (33, 24), (64, 6)]
Layer = Callable[..., Tensor]


class PlainCell(nn.Module):
    """h' = tanh(W x + U h), without the biases that no counter sees."""

    gates = 1

    def __init__(self, d: int) -> None:
        super().__init__()
        self.read, self.carry = (nn.Linear(d, self.gates * d, bias=False) for _ in range(2))

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        return torch.tanh(x + self.carry(state))

    def forward(self, x: Tensor) -> Tensor:
        state, states = torch.zeros_like(x[:, 0]), []
        for read in self.read(x).unbind(dim=1):
            state = self.step(read, state)
            states.append(state)
        return torch.stack(states, dim=1)


class GatedCell(PlainCell):
    """Cho et al. 2014, with the reset gate behind the product, as in cuDNN."""

    gates = 3

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        (read_reset, read_update, read_new), (reset, update, new) = (
            product.chunk(3, dim=-1) for product in (x, self.carry(state))
        )
        reset, update = torch.sigmoid(read_reset + reset), torch.sigmoid(read_update + update)
        # A copy of its own: the other two thirds of that product are needed no more.
        return torch.lerp(torch.tanh(read_new + reset * new.clone()), state, update)


class LongShortTermMemory(PlainCell):
    """Hochreiter & Schmidhuber 1997, with a forget gate."""

    gates = 4

    def forward(self, x: Tensor) -> Tensor:
        self.cell = torch.zeros_like(x[:, 0])
        return super().forward(x)

    def step(self, x: Tensor, state: Tensor) -> Tensor:
        gates = (x + self.carry(state)).chunk(4, dim=-1)
        read, forget, write = (torch.sigmoid(gate) for gate in gates[:3])
        self.cell = forget * self.cell + read * torch.tanh(gates[3])
        return write * torch.tanh(self.cell)


CELLS: dict[str, type[PlainCell]] = {"plain": PlainCell, "GRU": GatedCell, "LSTM": LongShortTermMemory}


def watched(layer: nn.Module) -> Layer:
    """Attention on its explicit path."""

    def call(x: Tensor) -> Tensor:
        with observe_weights(lambda module, weights: None):
            return layer(x)

    return call


def bare(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention with queries, keys and values as given."""
    return scaled_dot_product_attention(query, key, value)[0]


def neighbors(x: Tensor, n_neighbors: int) -> Tensor:
    """Each position's scores with itself and those before it, zeros where there are none, and their sum."""
    window = F.pad(x, (0, 0, n_neighbors - 1, 0)).unfold(1, n_neighbors, 1)  # (batch, n, d, neighbors)
    weights = torch.einsum("bnd,bndr->bnr", x, window).softmax(dim=-1)
    return torch.einsum("bnr,bndr->bnd", weights, window)


def causal_convolution(d: int, kernel_size: int) -> Layer:
    """Padded before the first position."""
    layer = nn.Conv1d(d, d, kernel_size)
    return lambda x: layer(F.pad(x.mT, (kernel_size - 1, 0))).mT


def counted_flops(layer: Layer, *shapes: tuple[int, ...]) -> int:
    """What PyTorch counts: matrix products and convolutions, two FLOPs a multiplication with its addition."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        layer(*(torch.randn(shape) for shape in shapes))
    total: int = counter.get_total_flops()
    return total


def kept(layer: Layer, *shapes: tuple[int, ...]) -> int:
    """Numbers that autograd keeps for the backward pass, each storage once, parameters aside."""
    storages: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and not isinstance(tensor._base, nn.Parameter):
            storages[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(*(torch.randn(shape, requires_grad=True) for shape in shapes))
    assert output.requires_grad
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in storages.values())


@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize("n_heads", [1, 3])
def test_attention_is_what_pytorch_counts(n: int, d: int, n_heads: int) -> None:
    """Our own layer with its projections, and the bare products, whatever the number of heads."""
    layer = watched(MultiHeadAttention(d, n_heads))
    assert self_attention(n, d, n_heads=n_heads).flops == counted_flops(layer, (1, n, d))
    assert self_attention(n, d, projections=False).flops == counted_flops(
        bare, *3 * [(1, n_heads, n, d // n_heads)]
    )


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_recurrence_is_what_pytorch_counts(n: int, d: int) -> None:
    """Loops over our cells, over PyTorch's, and its whole plain recurrence."""
    theirs: dict[str, Any] = {
        "plain": nn.RNNCell(d, d),
        "GRU": nn.GRUCell(d, d),
        "LSTM": nn.LSTMCell(d, d),
    }
    for cell, module in theirs.items():
        wanted = recurrence(n, d, cell=cell).flops
        assert wanted == counted_flops(CELLS[cell](d), (1, n, d))

        def loop(x: Tensor, module: Any = module) -> Tensor:
            state = None
            for step in x.unbind(dim=1):
                state = module(step, state)
            return x

        assert wanted == counted_flops(loop, (1, n, d))
    whole = nn.RNN(d, d, batch_first=True)
    assert recurrence(n, d).flops == counted_flops(lambda x: whole(x)[0], (1, n, d))


@pytest.mark.parametrize("cell", list(CELLS))
def test_counted_cells_are_pytorchs(cell: str) -> None:
    """What is counted here computes the same as PyTorch's own recurrences, from the same weights."""
    d, ours = 6, CELLS[cell](6)
    theirs: Any = {"plain": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}[cell](d, d, bias=False, batch_first=True)
    with torch.no_grad():
        for own, name in ((ours.read, "weight_ih_l0"), (ours.carry, "weight_hh_l0")):
            rows = getattr(theirs, name).chunk(ours.gates)
            # PyTorch's LSTM: input, forget, cell, output; ours has the cell's candidate last.
            own.weight.copy_(torch.cat([rows[0], rows[1], rows[3], rows[2]] if cell == "LSTM" else rows))
    x = torch.randn(2, 5, d)
    torch.testing.assert_close(ours(x), theirs(x)[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize("kernel_size", [1, 3, 5])
def test_convolution_and_neighbors_are_what_pytorch_counts(n: int, d: int, kernel_size: int) -> None:
    """A real convolution, and attention to neighbors by products over a window."""
    assert convolution(n, d, kernel_size=kernel_size).flops == counted_flops(
        causal_convolution(d, kernel_size), (1, n, d)
    )
    n_neighbors = kernel_size + 1  # einsum makes no matrix product for one neighbor alone
    restricted = restricted_attention(n, d, n_neighbors=n_neighbors, projections=False)
    assert restricted.flops == counted_flops(lambda x: neighbors(x, n_neighbors), (1, n, d))
    projected = restricted_attention(n, d, n_neighbors=n_neighbors)
    linear = nn.Linear(d, d, bias=False)
    assert projected.flops - restricted.flops == 4 * counted_flops(linear, (1, n, d))


@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize("n_heads", [1, 3])
def test_attention_keeps_what_autograd_keeps(n: int, d: int, n_heads: int) -> None:
    """Explicit and fused, with projections and without."""
    layer = MultiHeadAttention(d, n_heads)
    cost = self_attention(n, d, n_heads=n_heads)
    assert cost.activations == kept(watched(layer), (1, n, d))
    cost = self_attention(n, d, n_heads=n_heads, materialized=False)
    assert cost.activations == kept(layer, (1, n, d))


@pytest.mark.parametrize(("n", "d"), SIZES)
@pytest.mark.parametrize("n_heads", [1, 3])
def test_bare_attention_keeps_what_autograd_keeps(n: int, d: int, n_heads: int) -> None:
    """Queries, keys and values as given."""
    shapes = 3 * [(1, n_heads, n, d // n_heads)]
    explicit = self_attention(n, d, n_heads=n_heads, projections=False)
    assert explicit.activations == kept(bare, *shapes)
    fused = self_attention(n, d, n_heads=n_heads, projections=False, materialized=False)
    assert fused.activations == kept(F.scaled_dot_product_attention, *shapes)


@pytest.mark.parametrize(("n", "d"), SIZES)
def test_other_layers_keep_what_autograd_keeps(n: int, d: int) -> None:
    """A plain recurrence keeps its first state, zeros, on top; a convolution keeps nothing but its input."""
    extra = {"plain": d, "GRU": 0, "LSTM": 0}
    for cell, module in CELLS.items():
        assert recurrence(n, d, cell=cell).activations == kept(module(d), (1, n, d)) - extra[cell]
    assert convolution(n, d, kernel_size=1).activations == kept(causal_convolution(d, 1), (1, n, d))


def hops(n: int, sees: Callable[[int, int], list[int]]) -> int | None:
    """Layers until the last position has heard of all others, from who sees whom in layer 0, 1, 2, ..."""
    heard = {n - 1}
    for layer in range(n):
        heard = {source for position in heard for source in sees(layer, position) if source >= 0}
        if len(heard) == n:
            return layer + 1
    return None


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 10, 27, 28, 64, 128])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 9, 200])
def test_paths_are_those_of_a_search(n: int, width: int) -> None:
    """Position by position, layer by layer."""
    contiguous = hops(n, lambda layer, position: [position - step for step in range(width)])
    assert convolution(n, 4, kernel_size=width).path == contiguous
    assert restricted_attention(n, 4, n_neighbors=width).path == contiguous
    dilated = hops(n, lambda layer, position: [position - step * width**layer for step in range(width)])
    assert convolution(n, 4, kernel_size=width, dilated=True).path == dilated
    assert self_attention(n, 4).path == 1
    assert recurrence(n, 4).path == n - 1


def test_paths_are_those_of_chapter_one() -> None:
    """Measured there by gradients on real stacks, at 128 positions and width 3."""
    assert convolution(128, 32, kernel_size=3).path == 64
    assert convolution(128, 32, kernel_size=3, dilated=True).path == 5
    assert recurrence(128, 32, cell="LSTM").path == 127


def cheaper(cost: Callable[[int], LayerCost], than: Callable[[int], LayerCost], what: str) -> set[int]:
    """Lengths up to 200 at which the one layer takes less of something than the other."""
    return {n for n in range(1, 201) if getattr(cost(n), what) < getattr(than(n), what)}


def below(crossover: float | None) -> set[int]:
    """Lengths up to 200 below a crossover."""
    return {n for n in range(1, 201) if crossover is not None and n < crossover}


@pytest.mark.parametrize("projections", [True, False])
@pytest.mark.parametrize("d", [3, 16, 40])
def test_crossovers_are_where_the_costs_meet(projections: bool, d: int) -> None:
    """Against every length from 1 to 200."""

    def attention(n: int) -> LayerCost:
        return self_attention(n, d, n_heads=2, projections=projections)

    for cell in GATES:
        other = partial(recurrence, d=d, cell=cell)
        crossover = recurrence_crossover(d, cell=cell, projections=projections)
        assert below(crossover) == cheaper(attention, other, "flops"), (cell, crossover)
        memory = recurrence_memory_crossover(d, n_heads=2, cell=cell, projections=projections)
        assert below(memory) == cheaper(attention, other, "activations"), (cell, memory)
    for kernel_size in (1, 4, 5, 31):
        other = partial(convolution, d=d, kernel_size=kernel_size)
        crossover = convolution_crossover(d, kernel_size=kernel_size, projections=projections)
        assert below(crossover) == cheaper(attention, other, "flops"), (kernel_size, crossover)
    weights = weights_crossover(d, n_heads=2, projections=projections)
    assert below(weights) == {n for n in range(1, 201) if 2 * n**2 < attention(n).activations - 2 * n**2}


def test_crossovers_are_those_of_chapter_one() -> None:
    """Never cheaper than a plain recurrence, cheaper than an LSTM below n = 2d."""
    assert recurrence_crossover(64) is None
    assert recurrence_crossover(64, cell="GRU") == 64
    assert recurrence_crossover(64, cell="LSTM") == projections_crossover(64) == 128
    assert recurrence_crossover(64, projections=False) == 64
    assert self_attention(128, 64).flops == 2 * self_attention(128, 64, projections=False).flops


@pytest.mark.parametrize("materialized", [True, False])
@pytest.mark.parametrize("projections", [True, False])
def test_as_many_neighbors_as_positions_is_attention(projections: bool, materialized: bool) -> None:
    """And more of them change nothing."""
    options: dict[str, Any] = {"n_heads": 3, "projections": projections, "materialized": materialized}
    full = self_attention(20, 6, **options)
    for n_neighbors in (20, 21, 4096):
        restricted = restricted_attention(20, 6, n_neighbors=n_neighbors, **options)
        assert (restricted.flops, restricted.activations) == (full.flops, full.activations)
        assert restricted.path == 1


BAD: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: self_attention(0, 4), ValueError, "n must be positive, got 0"),
    (lambda: self_attention(4, 2.0), TypeError, "d must be an integer, got 2.0"),  # type: ignore[arg-type]
    (lambda: self_attention(4, 4, n_heads=True), TypeError, "n_heads must be an integer, got True"),
    (lambda: restricted_attention(4, 4, n_neighbors=-1), ValueError, "n_neighbors must be positive"),
    (lambda: recurrence(4, 4, cell="lstm"), ValueError, "cell must be one of plain, GRU, LSTM; got 'lstm'"),
    (lambda: recurrence_crossover(4, cell=""), ValueError, "cell must be one of"),
    (lambda: convolution(4, 4, kernel_size=0), ValueError, "kernel_size must be positive"),
    (lambda: convolution_crossover(-4, kernel_size=3), ValueError, "d must be positive"),
    (lambda: recurrence_memory_crossover(4, n_heads=0), ValueError, "n_heads must be positive"),
    (lambda: weights_crossover(4, n_heads=0), ValueError, "n_heads must be positive"),
    (lambda: projections_crossover(0), ValueError, "d must be positive"),
]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_sizes_are_refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    """By name, with the value."""
    with pytest.raises(error, match=message):
        call()
