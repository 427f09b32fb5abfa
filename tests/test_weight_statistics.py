"""Statistics of attention weights against PyTorch's distributions and automatic differentiation."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical

from tx_from_scratch.weight_statistics import diagonal_share, entropy, softmax_jacobian_norm


def weights(*shape):
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(dim=-1)


def test_entropy_equals_pytorchs():
    drawn = weights(2, 3, 5, 7)
    torch.testing.assert_close(entropy(drawn), Categorical(probs=drawn).entropy())
    assert float(entropy(torch.tensor([0.0, 1.0, 0.0]))) == 0.0
    assert float(entropy(torch.full((8,), 1 / 8))) == pytest.approx(math.log(8))
    assert float(entropy(torch.zeros(4))) == 0.0  # a query that may attend to nothing


def test_jacobian_norm_equals_automatic_differentiation():
    """The Jacobian that PyTorch derives of its own softmax, and its norm, at scores of several sizes."""
    for size in (0.1, 1.0, 10.0):
        scores = size * torch.randn(6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(lambda s: s.softmax(dim=-1), scores)
        norm = softmax_jacobian_norm(scores.softmax(dim=-1))
        torch.testing.assert_close(norm, torch.linalg.matrix_norm(jacobian))
    nearly_one = torch.tensor([12.0, 0.0, -1.0]).softmax(dim=-1)  # single precision
    exact = torch.diag(nearly_one.double()) - torch.outer(nearly_one.double(), nearly_one.double())
    assert float(softmax_jacobian_norm(nearly_one)) == pytest.approx(float(exact.norm()), rel=1e-5)
    assert float(softmax_jacobian_norm(torch.tensor([0.0, 1.0]))) == 0.0
    assert float(softmax_jacobian_norm(torch.tensor([0.5, 0.5, 0.0]))) == pytest.approx(0.5)


@pytest.mark.parametrize(("n_query", "n_key"), [(5, 5), (3, 7), (7, 3), (1, 4)])
def test_diagonal_share_equals_a_loop(n_query, n_key):
    drawn = weights(2, n_query, n_key)
    for row in range(2):
        wanted = 0.0
        for query in range(n_query):
            key = math.floor((query + 0.5) * n_key / n_query)
            wanted += float(drawn[row, query, key]) / n_query
        assert float(diagonal_share(drawn)[row]) == pytest.approx(wanted)
    assert float(diagonal_share(torch.eye(n_query))) == 1.0
