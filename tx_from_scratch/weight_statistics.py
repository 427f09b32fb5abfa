"""What attention weights are like: how spread out, how close to the diagonal, how open to change.

entropy                 −Σ p ln p, in nats: 0 for one key alone, ln n for n keys alike
softmax_jacobian_norm   ‖diag(p) − p pᵀ‖, what is left of a gradient that passes the softmax
diagonal_share          the weight on the key that stands where the query stands
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

Weights = Float[Tensor, "*batch key"]


def entropy(weights: Weights) -> Float[Tensor, "*batch"]:
    """−Σ p ln p of every row, in nats; weights of 0 contribute nothing."""
    return torch.special.entr(weights).sum(dim=-1)


def softmax_jacobian_norm(weights: Weights) -> Float[Tensor, "*batch"]:
    """The Frobenius norm of the softmax's Jacobian, diag(p) − p pᵀ, at every row of weights p.

    A gradient with respect to the weights is multiplied by this matrix on its way to the scores. With
    s_k = Σ pᵏ the squared norm is s_2 − 2 s_3 + s_2². It is 0 when one key takes all the weight, and at most
    1/2, for two keys with half of it each.
    """
    # Three numbers near 1 leave a small one: in single precision only its rounding error would be left.
    precise = weights if weights.device.type == "mps" else weights.double()
    second, third = precise.square().sum(dim=-1), precise.pow(3).sum(dim=-1)
    return (second - 2 * third + second.square()).clamp_min(0).sqrt().to(weights.dtype)


def diagonal_share(weights: Float[Tensor, "*batch query key"]) -> Float[Tensor, "*batch"]:
    """The mean weight on the diagonal, from the first query and key to the last.

    Query i of T is paired with key floor((i + 1/2) · S / T) of S, which for equal lengths is key i.
    """
    n_query, n_key = weights.shape[-2:]
    query = torch.arange(n_query, device=weights.device)
    key = (2 * query + 1) * n_key // (2 * n_query)
    return weights[..., query, key].mean(dim=-1)
