"""The loss of a language model."""

import math

import pytest
import torch
from torch import nn

from tx_from_scratch.data import Batch
from tx_from_scratch.losses import NextTokenLoss, SequenceLoss
from tx_from_scratch.text import TextBatches, windows
from tx_from_scratch.training import fit


def test_loss_is_the_negative_log_probability_of_every_next_token():
    """Summed token by token from the definition; the model's answers depend on the place too."""
    logits, batch = torch.randn(3, 5, 7), torch.randint(7, (3, 6))
    seen: list[torch.Tensor] = []

    class Fixed(nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            seen.append(tokens)
            return logits

    loss, count = NextTokenLoss()(Fixed(), batch)
    expected = 0.0
    for row in range(3):
        for place in range(5):
            scores = logits[row, place].double()
            expected -= math.log(scores[batch[row, place + 1]].exp() / scores.exp().sum())
    assert count == 15
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert torch.equal(seen[0], batch[:, :5])


def test_loss_equals_the_translators_without_smoothing_and_padding():
    model, batch = nn.Embedding(11, 11), torch.randint(11, (2, 9))

    class Translator(nn.Module):
        def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return model(target)

    theirs, their_count = SequenceLoss(smoothing=0.0, pad_id=-1)(Translator(), Batch(batch, batch))
    loss, count = NextTokenLoss()(model, batch)
    torch.testing.assert_close(loss, theirs, atol=1e-5, rtol=0)
    assert count == their_count
    grads = [torch.autograd.grad(value, model.weight)[0] for value in (loss, theirs)]
    torch.testing.assert_close(grads[0], grads[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_loss_of_half_precision_logits_is_summed_in_full(dtype):
    """65,504 is the largest fp16 number; this sum is larger."""
    model = nn.Embedding(1000, 1000).to(dtype)
    batch = torch.randint(1000, (100, 101))
    loss, count = NextTokenLoss()(model, batch)
    assert loss.dtype == torch.float32
    reference, _ = NextTokenLoss()(model.double(), batch)
    assert reference.dtype == torch.float64
    assert loss.item() == pytest.approx(reference.item(), rel=1e-5)
    assert loss > 65_504 > count


def test_fit_learns_which_token_follows_which():
    """A table of bigrams on a Markov chain; its loss falls to the chain's entropy, which is known."""
    chance = torch.tensor([[0.1, 0.9, 0.0], [0.0, 0.2, 0.8], [0.5, 0.0, 0.5]])
    chain = [0]
    for draw in torch.rand(20_000).tolist():
        chain.append(int((chance[chain[-1]].cumsum(0) < draw).sum()))
    tokens = torch.tensor(chain)
    model = nn.Embedding(3, 3)
    batches = TextBatches(tokens, rows=32, length=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    fit(model, batches, NextTokenLoss(), optimizer=optimizer, steps=150, progress=False)
    loss, count = NextTokenLoss()(model, windows(tokens, length=16, count=1_250))
    share = tokens.bincount() / len(chain)
    entropy = (share * torch.special.entr(chance).sum(1)).sum()
    assert loss.item() / count == pytest.approx(entropy.item(), abs=0.03)
    torch.testing.assert_close(model.weight.softmax(-1), chance, atol=0.05, rtol=0)


@pytest.mark.usefixtures("without_shape_checks")
def test_errors_of_the_loss():
    model = nn.Embedding(5, 4)  # numbers up to 4 go in, classes up to 3 come out
    with pytest.raises(ValueError, match=r"batch must be windows of at least 2 tokens each, got \(3, 1\)"):
        NextTokenLoss()(model, torch.zeros(3, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"batch must be windows of at least 2 tokens each, got \(3,\)"):
        NextTokenLoss()(model, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="target must hold classes from 0 to 3, got 4"):
        NextTokenLoss()(model, torch.tensor([[0, 4]]))
    with pytest.raises(ValueError, match=r"model must give logits of shape \(2, 2, 'V'\) .*got \(2, 8\)"):
        NextTokenLoss()(nn.Sequential(model, nn.Flatten()), torch.zeros(2, 3, dtype=torch.int64))
