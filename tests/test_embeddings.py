"""Token embeddings: one matrix on the way in and on the way out, and which tokens it refuses."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from tx_from_scratch.embeddings import TiedEmbedding, check_tokens


class TestTiedEmbedding:
    def test_one_tensor_serves_three_purposes(self, model, source, target):
        """Tied weights are one tensor, also in the state dict and after a deep copy."""
        assert sum(tuple(p.shape) == (13, 12) for p in model.parameters()) == 1
        assert [name for name in model.state_dict() if "embed" in name] == ["embedding.weight"]
        twin = copy.deepcopy(model)
        with torch.no_grad():
            twin.embedding.weight.zero_()
        assert not twin(source, target).any()  # the logits read the same matrix

    def test_gradients_of_all_three_add_up(self, model, source, target):
        """A token seen only in the source, only in the target, and nowhere: each has a gradient."""
        source, target = torch.full_like(source, 3), torch.full_like(target, 5)
        model(source, target)[..., 9].sum().backward()
        touched = model.embedding.weight.grad.abs().sum(dim=1) > 0
        assert touched.nonzero().flatten().tolist() == [3, 5, 9]

    def test_embeddings_have_unit_scale_and_logits_have_none(self):
        """Section 3.4: times sqrt(d_model) on the way in only; rows drawn with deviation d_model^-0.5."""
        embedding, drawn = TiedEmbedding(2_000, 64), torch.arange(2_000)[None]
        torch.testing.assert_close(embedding(drawn)[0], embedding.weight * math.sqrt(64), atol=1e-6, rtol=0)
        assert abs(embedding(drawn).std().item() - 1) < 0.02
        x = torch.randn(2, 3, 64)
        torch.testing.assert_close(embedding.logits(x), x @ embedding.weight.T, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("without_shape_checks")
class TestCheckTokens:
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_rows_of_known_tokens_pass(self, dtype):
        for rows in ([[0, 12]], [[5]], [[], []]):
            check_tokens(torch.tensor(rows, dtype=dtype), 13, name="prompt")

    @pytest.mark.parametrize(("bad", "shown"), [(13, "got 13"), (-1, "got -1"), (2**40, f"got {2**40}")])
    def test_unknown_tokens_are_named(self, bad, shown):
        """A08: with the vocabulary's size, before any kernel runs."""
        with pytest.raises(
            ValueError, match=rf"prompt must hold ids from 0 to 12 \(vocab_size=13\), {shown}"
        ):
            check_tokens(torch.tensor([[3, bad], [0, 5]]), 13, name="prompt")

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.uint8])
    def test_numbers_of_another_kind(self, dtype):
        with pytest.raises(TypeError, match=f"prompt must hold int64 or int32 token ids, got {dtype}"):
            check_tokens(torch.zeros(2, 3, dtype=dtype), 13, name="prompt")

    @pytest.mark.parametrize("shape", [(3,), (2, 3, 1), ()])
    def test_tokens_are_rows(self, shape):
        with pytest.raises(ValueError, match=r"prompt must have shape \(batch, length\)"):
            check_tokens(torch.zeros(shape, dtype=torch.int64), 13, name="prompt")
