"""Sparse visibility: masks that leave out most pairs, and how far information still travels.

Each mask is Boolean, True = may attend, as everywhere (masks.py). The union `|` of masks opens what any of
them opens; `combine_masks` then closes what causality and padding forbid:

    window_mask       (query, key)   neighbors                           Longformer, 2020, arXiv:2004.05150
    global_mask       (n, n)         a few see all and are seen by all   Longformer
    random_mask       (n, n)         some keys of each query, by lot     BigBird, 2020, arXiv:2007.14062
    reachable         (n, n)         who can influence whom after so many layers
    layers_to_reach   (n, n)         after how many layers

Full attention computes n² scores, a window of w to either side at most (2w + 1) n. What the window hides is
not lost: each layer carries information one window further. Longformer (Beltagy et al.) adds global tokens;
BigBird (Zaheer et al.) combines all three, in blocks of 64 tokens, where here every pair stands for itself.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tx_from_scratch.counter_random import uniforms
from tx_from_scratch.masks import check_mask

Device = torch.device | str | None


def window_mask(
    n_query: int, n_key: int, window: int, *, device: Device = None
) -> Bool[Tensor, "n_query n_key"]:
    """A query may attend to keys at most `window` positions away, on either side: |position − j| <= window.

    Query i stands at position n_key − n_query + i: with more keys than queries the queries are the *last*
    positions, as in `causal_mask`. A row in the middle sees 2·window + 1 keys, itself included; causality
    leaves window + 1 of them. Longformer counts both sides together: its window of 512 is 256 here.

    Args:
        n_query: number of queries.
        n_key: number of keys.
        window: how far a query sees to either side; 0 is itself alone.
        device: where to build the mask.

    Raises:
        TypeError: one of the numbers is not an integer.
        ValueError: one of them is negative.
    """
    _check_counts(n_query=n_query, n_key=n_key, window=window)
    position = torch.arange(n_query, device=device) + (n_key - n_query)
    return (position[:, None] - torch.arange(n_key, device=device)).abs() <= window


def global_mask(n: int, n_global: int, *, device: Device = None) -> Bool[Tensor, "n n"]:
    """The first `n_global` tokens may attend to all, and all to them.

    Two layers of this alone connect everything, through as many tokens as are global. Longformer gives those
    tokens projections of their own; a mask can't show that.

    Args:
        n: number of tokens, queries and keys alike.
        n_global: how many of them are global, 0 to n.
        device: where to build the mask.

    Raises:
        TypeError: one of the numbers is not an integer.
        ValueError: one of them is negative, or `n_global` above n.
    """
    _check_counts(n=n, n_global=n_global)
    _check_at_most(n, n_global=n_global)
    first = torch.arange(n, device=device) < n_global
    return first[:, None] | first


def random_mask(n: int, n_random: int, seed: int = 0, *, device: Device = None) -> Bool[Tensor, "n n"]:
    """Every query may attend to `n_random` different keys, drawn for each query on its own.

    Each pair of query and key draws a number, and the keys of a query's smallest numbers win. So the pairs of
    a smaller `n_random` are among those of a larger one, and the browser finds the same ones. The draw knows
    nothing of causality: what `combine_masks` then closes is not replaced by another key.

    Args:
        n: number of tokens, queries and keys alike.
        n_random: how many keys a query may attend to, 0 to n.
        seed: of the random numbers.
        device: where to build the mask.

    Raises:
        TypeError: one of the numbers is not an integer.
        ValueError: one of them is negative, or `n_random` above n.
    """
    _check_counts(n=n, n_random=n_random, seed=seed)
    _check_at_most(n, n_random=n_random)
    order = torch.from_numpy(uniforms(seed, n * n).reshape(n, n)).argsort(dim=-1)
    mask = torch.zeros(n, n, dtype=torch.bool).scatter_(-1, order[:, :n_random], True)
    return mask.to(device)


def reachable(mask: Bool[Tensor, "*batch n n"], n_layers: int) -> Bool[Tensor, "*batch n n"]:
    """Which inputs j can influence position i after `n_layers` layers with this mask: (I ∨ mask)^n_layers.

    The product is the Boolean one: i reaches j if some k lies between that i reaches and that reaches j. The
    identity stands for the residual connection: a position keeps what it knew, even where it may attend to
    nothing. That a path exists doesn't mean that a model uses it.

    Args:
        mask: True = may attend; as many queries as keys.
        n_layers: number of layers; after 0 each position knows itself alone.

    Raises:
        TypeError: `mask` is not Boolean, or `n_layers` not an integer.
        ValueError: `mask` is not square, or `n_layers` is negative.
    """
    step = _with_residual(mask)
    _check_counts(n_layers=n_layers)
    reached = torch.eye(mask.size(-1), dtype=torch.bool, device=mask.device).expand_as(step)
    remaining = n_layers
    while remaining:  # by squaring: layer counts add up as exponents do
        if remaining % 2:
            reached = _product(reached, step)
        step, remaining = _product(step, step), remaining // 2
    return reached.clone()


def layers_to_reach(mask: Bool[Tensor, "*batch n n"]) -> Int[Tensor, "*batch n n"]:
    """After how many layers input j can influence position i: 0 on the diagonal, −1 where it never can.

    Where this is at most L, `reachable(mask, L)` is True.

    Raises:
        TypeError: `mask` is not Boolean.
        ValueError: `mask` is not square.
    """
    step = _with_residual(mask)
    reached = torch.eye(mask.size(-1), dtype=torch.bool, device=mask.device).expand_as(step)
    layers = reached.long() - 1
    n_layers = 0
    while True:
        n_layers += 1
        further = _product(step, reached)
        if torch.equal(further, reached):
            return layers
        layers = layers.masked_fill(further & ~reached, n_layers)
        reached = further


def _product(left: Tensor, right: Tensor) -> Tensor:
    """The Boolean matrix product; counting paths in floating point is exact enough to tell none from some."""
    return (left.float() @ right.float()) > 0


def _with_residual(mask: Tensor) -> Tensor:
    check_mask(mask)
    if mask.ndim < 2 or mask.size(-1) != mask.size(-2):
        raise ValueError(f"mask must be square, (..., n, n), got shape {tuple(mask.shape)}")
    return mask | torch.eye(mask.size(-1), dtype=torch.bool, device=mask.device)


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"{name} must be an integer, got {count!r}")
        if count < 0:
            raise ValueError(f"{name} must not be negative, got {count}")


def _check_at_most(n: int, **counts: int) -> None:
    for name, count in counts.items():
        if count > n:
            raise ValueError(f"{name} must be at most the number of tokens, {n}, got {count}")
