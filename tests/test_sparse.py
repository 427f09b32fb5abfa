"""Sparse visibility: masks against loops from their definitions, reach against a walk over the graph."""

from __future__ import annotations

import itertools
from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tx_from_scratch.attention import scaled_dot_product_attention
from tx_from_scratch.counter_random import normals, uniforms
from tx_from_scratch.masks import causal_mask, combine_masks
from tx_from_scratch.sparse import global_mask, layers_to_reach, random_mask, reachable, window_mask

MASKS = [
    window_mask(9, 9, 1),
    causal_mask(7),
    global_mask(8, 2) | window_mask(8, 8, 0),
    random_mask(11, 2, seed=5),
    combine_masks(random_mask(10, 1, seed=3), causal_mask(10)),
    torch.zeros(4, 4, dtype=torch.bool),
    torch.ones(3, 3, dtype=torch.bool),
]


@pytest.mark.parametrize(("query", "key"), [(6, 6), (1, 7), (3, 8), (7, 4), (0, 3), (3, 0)])
@pytest.mark.parametrize("window", [0, 1, 3, 20])
def test_window_is_the_definition(query: int, key: int, window: int) -> None:
    """The last query stands at the last key, as under `causal_mask`."""
    mask = window_mask(query, key, window)
    assert mask.shape == (query, key)
    for i, j in itertools.product(range(query), range(key)):
        assert mask[i, j].item() == (abs((key - query + i) - j) <= window)


@pytest.mark.parametrize("window", [0, 2])
def test_window_while_decoding_is_the_last_row(window: int) -> None:
    """One query against a cache sees what the last row of the full mask sees, causal or not."""
    assert torch.equal(window_mask(1, 9, window), window_mask(9, 9, window)[-1:])
    cached = combine_masks(window_mask(2, 9, window), causal_mask(2, 9))
    full = combine_masks(window_mask(9, 9, window), causal_mask(9))
    assert cached is not None
    assert full is not None
    assert torch.equal(cached, full[-2:])


def test_longformer_counts_both_sides() -> None:
    """Its attention_window of 4 opens 4 + 1 keys: a window of 2 here."""
    assert window_mask(9, 9, 2)[4].sum() == 4 + 1


@pytest.mark.parametrize(("n", "n_global"), [(6, 0), (6, 2), (6, 6), (1, 1), (0, 0)])
def test_global_tokens_see_all_and_are_seen_by_all(n: int, n_global: int) -> None:
    mask = global_mask(n, n_global)
    assert mask.shape == (n, n)
    for i, j in itertools.product(range(n), repeat=2):
        assert mask[i, j].item() == (i < n_global or j < n_global)


@pytest.mark.parametrize("seed", [0, 1, 9999])
@pytest.mark.parametrize("n", [1, 6, 33])
def test_random_keys_are_drawn_without_replacement(n: int, seed: int) -> None:
    """The winners of a tournament: key j is in when fewer than `n_random` keys drew a smaller number."""
    numbers = uniforms(seed, n * n)
    for n_random in {0, 1, n // 2, n}:
        mask = random_mask(n, n_random, seed)
        assert (mask.sum(dim=-1) == n_random).all()
        for i, j in itertools.product(range(n), repeat=2):
            ahead = sum(numbers[i * n + other] < numbers[i * n + j] for other in range(n))
            assert mask[i, j].item() == (ahead < n_random)


def test_random_keys_grow_and_differ() -> None:
    """More keys keep those there were; rows and seeds draw differently, and no key is preferred."""
    for fewer, more in itertools.pairwise(random_mask(20, n_random, 4) for n_random in range(21)):
        assert (more | ~fewer).all()
    mask = random_mask(64, 8, seed=0)
    assert len(mask.unique(dim=0)) == 64
    assert not torch.equal(mask, random_mask(64, 8, seed=1))
    chosen = torch.stack([random_mask(64, 8, seed) for seed in range(50)]).float().mean(dim=(0, 1))
    # 3,200 draws for each key: a share of 1/8 with a standard error of 0.006.
    torch.testing.assert_close(chosen, torch.full((64,), 1 / 8), atol=0.03, rtol=0)


def paths(mask: Tensor) -> Tensor:
    """Breadth-first search from every query over the keys that it may read."""
    n = len(mask)
    layers = torch.full((n, n), -1)
    for start in range(n):
        layers[start, start] = 0
        waiting = deque([start])
        while waiting:
            position = waiting.popleft()
            for key in range(n):
                if mask[position, key] and layers[start, key] < 0:
                    layers[start, key] = layers[start, position] + 1
                    waiting.append(key)
    return layers


@pytest.mark.parametrize("mask", MASKS)
def test_reach_is_the_shortest_path(mask: Tensor) -> None:
    """A layer is an edge from a query to each key it may read; a standstill is the residual connection."""
    wanted = paths(mask)
    assert torch.equal(layers_to_reach(mask), wanted)
    for n_layers in range(len(mask) + 2):
        assert torch.equal(reachable(mask, n_layers), (wanted >= 0) & (wanted <= n_layers))


@given(data=st.data(), n=st.integers(1, 7))
def test_reach_of_any_mask(data: st.DataObject, n: int) -> None:
    """Any Boolean matrix at all, and batches of them."""
    bits = data.draw(st.lists(st.booleans(), min_size=2 * n * n, max_size=2 * n * n))
    masks = torch.tensor(bits).reshape(2, n, n)
    wanted = torch.stack([paths(mask) for mask in masks])
    assert torch.equal(layers_to_reach(masks), wanted)
    assert torch.equal(reachable(masks, 2), (wanted >= 0) & (wanted <= 2))


@pytest.mark.parametrize("mask", [mask for mask in MASKS if len(mask) > 1])
@pytest.mark.parametrize("n_layers", [1, 2, 3])
def test_gradients_flow_where_reach_says(mask: Tensor, n_layers: int) -> None:
    """Attention stacked with residual connections: output i depends on input j where predicted."""
    n = len(mask)

    def stack(x: Tensor) -> Tensor:
        for _ in range(n_layers):
            x = x + scaled_dot_product_attention(x, x, x, mask=mask)[0]
        return x

    x = torch.randn(1, 1, n, 3, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(stack, x).reshape(n, 3, n, 3)
    assert torch.equal((jacobian != 0).any(dim=3).any(dim=1), reachable(mask, n_layers))


def test_reach_of_a_window_is_layers_times_window() -> None:
    """The receptive field: after L layers of a window w, up to L·w positions away."""
    assert torch.equal(reachable(window_mask(30, 30, 3), 4), window_mask(30, 30, 12))


def test_reach_leaves_its_mask_alone() -> None:
    mask = window_mask(5, 5, 1)
    before = mask.clone()
    reachable(mask, 1)[0, 4] = True
    reachable(mask, 0)[0, 4] = True
    layers_to_reach(mask)
    assert torch.equal(mask, before)


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_input_is_named() -> None:
    for call, message in [
        (lambda: window_mask(3, 3, -1), "window must not be negative, got -1"),
        (lambda: window_mask(-2, 3, 1), "n_query must not be negative, got -2"),
        (lambda: global_mask(3, 4), "n_global must be at most the number of tokens, 3, got 4"),
        (lambda: random_mask(3, 4), "n_random must be at most the number of tokens, 3, got 4"),
        (lambda: random_mask(3, 1, seed=-1), "seed must not be negative, got -1"),
        (lambda: reachable(causal_mask(3), -1), "n_layers must not be negative, got -1"),
        (lambda: reachable(causal_mask(2, 3), 1), r"mask must be square, .* got shape \(2, 3\)"),
        (lambda: layers_to_reach(torch.ones(3, dtype=torch.bool)), "mask must be square"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    for call, message in [
        (lambda: window_mask(3, 3, 1.0), r"window must be an integer, got 1\.0"),
        (lambda: window_mask(3, True, 1), "n_key must be an integer, got True"),
        (lambda: reachable(torch.ones(3, 3), 1), "mask must be a Boolean tensor"),
        (lambda: layers_to_reach(torch.ones(3, 3).int()), "mask must be a Boolean tensor"),
    ]:
        with pytest.raises(TypeError, match=message):
            call()


def test_masks_are_built_where_asked() -> None:
    assert window_mask(3, 3, 1, device="meta").is_meta
    assert global_mask(3, 1, device="meta").is_meta
    assert random_mask(3, 1, device="meta").is_meta


def test_counter_random_numbers() -> None:
    """All different, in the open interval, uniform; the same whether asked for one or for many."""
    numbers = uniforms(3, 100_000)
    assert len(set(numbers.tolist())) == 100_000
    assert 0 < numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    # The largest gap to the uniform distribution; 1.63 / sqrt(n) is its 1 % point (Kolmogorov-Smirnov).
    ranks = torch.arange(100_000) / 100_000
    assert (torch.from_numpy(numbers).sort().values - ranks).abs().max() < 1.63 / 100_000**0.5
    assert uniforms(3, 10).tolist() == numbers[:10].tolist()
    normal = torch.from_numpy(normals(3, 99_999)).double()
    assert normal.shape == (99_999,)
    for power, moment in [(1, 0.0), (2, 1.0), (3, 0.0), (4, 3.0)]:
        assert float((normal**power).mean()) == pytest.approx(moment, abs=0.1)
