"""What a layer costs: the paper's Table 1 with its constants, and with the projections that it leaves out.

    layer                FLOPs           kept for the backward pass   sequential   longest path
    self-attention       4n²d (+ 8nd²)   3nd + hn² (5nd + hn²)        1            1
    recurrence           4gnd²           2nd; GRU 6nd, LSTM 8nd       n            n − 1
    convolution          2knd²           nd                           1            (n − 1)/(k − 1), log_k n
    attention to r       4rnd (+ 8nd²)   3nd + hrn (5nd + hrn)        1            (n − 1)/(r − 1)

for one sequence of n positions of width d, with h heads and kernels of width k; g is 1 for a plain
recurrence, 3 for a GRU, 4 for an LSTM; in brackets with the four projections. Only matrix products are
counted, and a multiplication with its addition as two FLOPs, as PyTorch's FlopCounterMode does. A position
sees itself and what comes before it; the path is counted in layers, or in steps of the recurrence, from the
first input to the last output.

Source: Vaswani et al. 2017, section 4 and table 1, arXiv:1706.03762, which gives n²d, nd², knd² and rnd.
"""

from __future__ import annotations

from dataclasses import dataclass

GATES = {"plain": 1, "GRU": 3, "LSTM": 4}
"""How many times as many products a recurrence needs as a plain one."""
KEPT_BY_CELL = {"plain": 2, "GRU": 6, "LSTM": 8}
"""Numbers per position and unit of width that a recurrence keeps for its backward pass, its input included.

plain: input, state. GRU: input, state, two gates, the candidate, the part of it that the reset gate scales.
LSTM: input, state, three gates, the candidate, the cell and its tanh.
"""


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs for one sequence.

    Attributes:
        flops: of its matrix products, forward; a multiplication with its addition counts as two.
        activations: numbers kept for the backward pass, parameters aside.
        sequential: steps that have to wait for each other.
        path: layers (or steps of a recurrence) from the first input to the last output; None: no way.
    """

    flops: int
    activations: int
    sequential: int
    path: int | None


def self_attention(
    n: int, d: int, *, n_heads: int = 8, projections: bool = True, materialized: bool = True
) -> LayerCost:
    """Every position reads every other: 4n²d for scores and weighted sum, 8nd² for the four projections.

    Args:
        n: positions.
        d: width of the stream.
        n_heads: multiplies the weights that are kept, not the FLOPs.
        projections: count W_Q, W_K, W_V and W_O, which the paper's table leaves out.
        materialized: keep the weights, n_heads · n² of them; a fused kernel keeps its output and one number
            for each row of weights instead.

    Raises:
        TypeError: an argument is no integer.
        ValueError: an argument is not positive.
    """
    check_sizes(n=n, d=d, n_heads=n_heads)
    return LayerCost(
        flops=4 * n**2 * d + (8 * n * d**2 if projections else 0),
        activations=_kept_by_attention(n, d, n, n_heads, projections, materialized),
        sequential=1,
        path=1,
    )


def restricted_attention(
    n: int,
    d: int,
    *,
    n_neighbors: int,
    n_heads: int = 8,
    projections: bool = True,
    materialized: bool = True,
) -> LayerCost:
    """Every position reads itself and `n_neighbors` − 1 before it: 4rnd, and 8nd² for the projections.

    As in the table the first positions count as if they had all their neighbors, but no more than n. Kernels
    read the neighbors where they are: no copy of them is counted.

    Args:
        n: positions.
        d: width of the stream.
        n_neighbors: positions that each one reads, itself included.
        n_heads: as in `self_attention`, like the two that follow.
        projections: count the four projections.
        materialized: keep the weights, n_heads · n · n_neighbors of them.

    Raises:
        TypeError: an argument is no integer.
        ValueError: an argument is not positive.
    """
    check_sizes(n=n, d=d, n_neighbors=n_neighbors, n_heads=n_heads)
    read = min(n_neighbors, n)
    return LayerCost(
        flops=4 * read * n * d + (8 * n * d**2 if projections else 0),
        activations=_kept_by_attention(n, d, read, n_heads, projections, materialized),
        sequential=1,
        path=_layers_by_steps(n, read - 1),
    )


def recurrence(n: int, d: int, *, cell: str = "plain") -> LayerCost:
    """One position after the other: each gate reads the input, 2d², and the state, 2d².

    Args:
        n: positions.
        d: width of input and state.
        cell: plain (tanh), GRU or LSTM.

    Raises:
        TypeError: a size is no integer.
        ValueError: a size is not positive, or there is no such cell.
    """
    check_sizes(n=n, d=d)
    check_cell(cell)
    return LayerCost(
        flops=4 * GATES[cell] * n * d**2, activations=KEPT_BY_CELL[cell] * n * d, sequential=n, path=n - 1
    )


def convolution(n: int, d: int, *, kernel_size: int, dilated: bool = False) -> LayerCost:
    """Every position reads itself and `kernel_size` − 1 before it, each through a d x d matrix of its own.

    The padding before the first position is multiplied too. A stack with dilations 1, k, k², ... reaches
    k times as far with every layer, one without k − 1 positions further: only the former has the table's
    log_k n.

    Args:
        n: positions.
        d: channels in and out.
        kernel_size: width k of the kernel.
        dilated: whether layers have growing dilations; changes the path alone.

    Raises:
        TypeError: an argument is no integer.
        ValueError: an argument is not positive.
    """
    check_sizes(n=n, d=d, kernel_size=kernel_size)
    path = _layers_by_factor(n, kernel_size) if dilated else _layers_by_steps(n, kernel_size - 1)
    return LayerCost(flops=2 * kernel_size * n * d**2, activations=n * d, sequential=1, path=path)


def projections_crossover(d: int) -> int:
    """The length from which scores and weighted sum, 4n²d, outweigh the projections, 8nd²: n = 2d."""
    check_sizes(d=d)
    return 2 * d


def recurrence_crossover(d: int, *, cell: str = "plain", projections: bool = True) -> float | None:
    """The length below which self-attention takes fewer FLOPs than a recurrence; None: at no length.

    4n²d + 8nd² < 4gnd² where n < (g − 2)d; without the projections where n < gd.
    """
    check_sizes(d=d)
    check_cell(cell)
    return _crossover(4 * d, 8 * d**2 if projections else 0, 4 * GATES[cell] * d**2)


def convolution_crossover(d: int, *, kernel_size: int, projections: bool = True) -> float | None:
    """The length below which self-attention takes fewer FLOPs than a convolution; None: at no length.

    4n²d + 8nd² < 2knd² where n < (k − 4)d/2; without the projections where n < kd/2.
    """
    check_sizes(d=d, kernel_size=kernel_size)
    return _crossover(4 * d, 8 * d**2 if projections else 0, 2 * kernel_size * d**2)


def recurrence_memory_crossover(
    d: int, *, n_heads: int = 8, cell: str = "plain", projections: bool = True
) -> float | None:
    """The length below which attention that keeps its weights keeps less than a recurrence; None: at none.

    hn² + 5nd < 8nd, what an LSTM keeps, where n < 3d/h; without the projections hn² + 3nd, so where n < 5d/h.
    """
    check_sizes(d=d, n_heads=n_heads)
    check_cell(cell)
    return _crossover(n_heads, (5 if projections else 3) * d, KEPT_BY_CELL[cell] * d)


def weights_crossover(d: int, *, n_heads: int = 8, projections: bool = True) -> float:
    """The length from which the weights, hn², outweigh all else that attention keeps: n = 5d/h, or 3d/h."""
    check_sizes(d=d, n_heads=n_heads)
    return (5 if projections else 3) * d / n_heads


def check_sizes(**sizes: int) -> None:
    """Refuse sizes that no layer has.

    Raises:
        TypeError: one of them is no integer.
        ValueError: one of them is not positive.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name} must be an integer, got {size!r}")
        if size < 1:
            raise ValueError(f"{name} must be positive, got {size}")


def check_cell(cell: str) -> None:
    """Refuse a recurrence that is not known.

    Raises:
        ValueError: names those that are.
    """
    if cell not in GATES:
        raise ValueError(f"cell must be one of {', '.join(GATES)}; got {cell!r}")


def _kept_by_attention(n: int, d: int, read: int, n_heads: int, projections: bool, materialized: bool) -> int:
    """Queries, keys, values and the weights; with projections also their input and that of the last one."""
    if materialized:
        return (5 if projections else 3) * n * d + n_heads * n * read
    # A fused kernel keeps its output, which is the last projection's input, to make the weights again.
    return (5 if projections else 4) * n * d + n_heads * n


def _layers_by_steps(n: int, step: int) -> int | None:
    """Layers to get n − 1 positions further when each gets `step` further."""
    if n == 1:
        return 1
    return None if step == 0 else -(-(n - 1) // step)


def _layers_by_factor(n: int, factor: int) -> int | None:
    """Layers until one position's view of 1, factor, factor², ... positions takes in all n."""
    if n == 1:
        return 1
    if factor == 1:
        return None
    layers, seen = 0, 1
    while seen < n:
        layers, seen = layers + 1, seen * factor
    return layers


def _crossover(quadratic: int, linear: int, other: int) -> float | None:
    """Where quadratic · n² + linear · n meets other · n, if that is at a positive n."""
    return (other - linear) / quadratic if other > linear else None
