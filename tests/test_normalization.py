"""RMSNorm against PyTorch's, against Llama's, and where half precision would overflow."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tx_from_scratch.normalization import RMSNorm


@pytest.fixture
def norm() -> RMSNorm:
    norm = RMSNorm(12, eps=1e-3)
    nn.init.normal_(norm.weight)
    return norm


def test_it_equals_pytorchs(norm):
    """nn.RMSNorm with the same weight: output and gradients; an epsilon that can be seen."""
    theirs = nn.RMSNorm(12, eps=1e-3)
    theirs.load_state_dict(norm.state_dict())
    x = (0.05 * torch.randn(2, 5, 12)).requires_grad_()
    output, expected = norm(x), theirs(x)
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-6)
    direction = torch.randn_like(output)
    torch.testing.assert_close(
        torch.autograd.grad(output, (x, norm.weight), direction),
        torch.autograd.grad(expected, (x, theirs.weight), direction),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_it_equals_llamas(norm, dtype):
    """transformers' LlamaRMSNorm, to the last bit: in half precision both square in float32."""
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    theirs = LlamaRMSNorm(12, eps=1e-3)
    theirs.load_state_dict(norm.state_dict())
    x = torch.randn(2, 5, 12).to(dtype)
    assert torch.equal(norm.to(dtype)(x), theirs.to(dtype)(x))


def test_its_epsilon_is_llamas_by_default():
    from transformers import LlamaConfig

    assert RMSNorm(12).eps == LlamaConfig().rms_norm_eps == 1e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_numbers_do_not_overflow(dtype):
    """The square of 1,000 is beyond half precision's largest number."""
    x = torch.tensor([1_000.0, -2_000.0, 500.0, 0.0], dtype=dtype).expand(1, 2, 4)
    actual = RMSNorm(4).to(dtype)(x)
    expected = x.double() / x.double().square().mean(dim=-1, keepdim=True).sqrt()
    torch.testing.assert_close(actual.double(), expected, atol=1e-2, rtol=0)


def test_each_position_gets_a_root_mean_square_of_one():
    """At any scale; the direction stays, and so does the mean, unlike in LayerNorm."""
    x = torch.randn(2, 5, 12) * torch.tensor([1e-2, 1.0, 30.0, 1e4, 7.0])[:, None] + 0.5
    output = RMSNorm(12)(x)
    torch.testing.assert_close(output.square().mean(dim=-1), torch.ones(2, 5), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        torch.cosine_similarity(output, x, dim=-1), torch.ones(2, 5), atol=1e-5, rtol=0
    )
    assert output.mean(dim=-1).abs().max() > 0.1


def test_nothing_stays_nothing():
    """A position of zeros, and its gradient, are finite."""
    x = torch.zeros(1, 2, 12, requires_grad=True)
    output = RMSNorm(12)(x)
    output.sum().backward()
    assert not output.any()
    assert x.grad.isfinite().all()


def test_gradients_are_right():
    """A15: against finite differences in float64, which it keeps."""
    norm = RMSNorm(4).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert norm(x).dtype == torch.float64
    assert torch.autograd.gradcheck(norm, x)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "settings", [{"d_model": 0}, {"d_model": -3}, {"eps": 0.0}, {"eps": -1e-6}, {"eps": float("nan")}]
)
def test_sizes_are_positive(settings):
    with pytest.raises(ValueError, match="d_model and eps must be positive, got d_model="):
        RMSNorm(**{"d_model": 4, **settings})
