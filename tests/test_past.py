"""Caches, memories and padding: a model that has a past computes what one pass over everything would."""

from __future__ import annotations

import pytest
import torch
from tiny_language_models import N_LAYERS, RELATIVE, SCHEMES, VOCAB, build, draw, masked_pass
from torch import Tensor

from tx_from_scratch.generation import left_pad
from tx_from_scratch.model import LanguageModel
from tx_from_scratch.past import Cache, Past, SegmentMemory

# Of one row each: a prompt, and how it goes on.
PROMPTS = ([3, 9, 1, 1, 7, 12, 4], [5, 8, 2], [6])
ANSWERS = ([2, 11, 2], [10, 0, 4], [9, 9, 5])


@pytest.fixture(autouse=True)
def _shapes_of_one_scheme(request):
    """Checking shapes takes most of the time: here one scheme passes the checks, elsewhere all of them do."""
    case = getattr(request.node, "callspec", None)
    if case is not None and case.params.get("scheme", "transformer_xl") != "transformer_xl":
        request.getfixturevalue("without_shape_checks")


def read_in_chunks(model: LanguageModel, tokens: Tensor, chunks: list[int], **given: Tensor) -> Tensor:
    """All logits, computed with a cache, chunk by chunk."""
    cache = model.start_cache(longest=tokens.shape[1])
    parts = zip(*(tensor.split(chunks, dim=1) for tensor in (tokens, *given.values())), strict=True)
    with torch.no_grad():
        steps = [model(part, cache=cache, **dict(zip(given, others, strict=True))) for part, *others in parts]
    assert cache.length == tokens.shape[1]
    return torch.cat(steps, dim=1)


def read_answers(
    model: LanguageModel, prompt: Tensor, real: Tensor | None, answers: Tensor, cached: bool
) -> Tensor:
    """Logits after the prompt and after every token of the answers, (batch, 1 + answer, vocab)."""
    lengths = torch.full((len(prompt),), prompt.shape[1]) if real is None else real.sum(dim=1)
    longest = lengths + answers.shape[1]
    if not cached:
        if real is not None:
            real = torch.cat([real, torch.ones_like(answers, dtype=torch.bool)], dim=1)
        logits = model(torch.cat([prompt, answers], dim=1), real=real, longest=longest)
        return logits[:, -answers.shape[1] - 1 :]
    cache = model.start_cache(longest=longest)
    logits = [model(prompt, real=real, cache=cache)[:, -1:]]
    logits += [model(token, cache=cache) for token in answers.split(1, dim=1)]
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("scheme", SCHEMES)
class TestPadding:
    @pytest.mark.parametrize("cached", [False, True])
    def test_a_padded_prompt_goes_on_as_if_alone(self, scheme, cached):
        """Rows of 7, 3 and 1 tokens in one batch, whatever the padding in front of them is."""
        model, answers = build(scheme), torch.tensor(ANSWERS)
        with torch.no_grad():
            alone = [
                read_answers(model, torch.tensor([row]), None, answers[index : index + 1], cached)
                for index, row in enumerate(PROMPTS)
            ]
            for filling in (0, 12):
                prompt, real = left_pad(PROMPTS, pad_id=filling)
                together = read_answers(model, prompt, real, answers, cached)
                torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("chunks", [[12], [5, *[1] * 7]])
    def test_padding_may_stand_anywhere(self, scheme, chunks):
        """Scattered over the rows, at their ends too, in one pass and with a cache."""
        model, tokens = build(scheme), draw(3, 12)
        real = torch.rand(3, 12) > 0.4
        real[0, :2], real[1, -3:], real[2, 0] = False, False, True
        logits = read_in_chunks(model, tokens, chunks, real=real)
        for row in range(3):
            kept = real[row]
            alone = model(tokens[row : row + 1, kept], longest=12)
            torch.testing.assert_close(logits[row, kept], alone[0], atol=1e-5, rtol=0)

    def test_an_encoder_ignores_padding_too(self, scheme):
        if scheme == "t5, shared buckets":
            pytest.skip("made for the past alone")
        model, tokens = build(scheme, causal=False), draw(2, 8)
        real = torch.tensor([[True] * 8, [False, True, True, False, True, True, False, False]])
        logits = model(tokens, real=real)
        alone = model(tokens[1:, real[1]])
        torch.testing.assert_close(logits[1, real[1]], alone[0], atol=1e-5, rtol=0)

    def test_a_row_of_padding_spoils_nothing(self, scheme):
        """A01: neither the other rows nor any gradient."""
        model, tokens = build(scheme), draw(2, 6)
        real = torch.tensor([[False] * 6, [True] * 6])
        logits = model(tokens, real=real)
        assert logits.isfinite().all()
        logits[1].logsumexp(dim=-1).sum().backward()
        together = [parameter.grad for parameter in model.parameters()]
        model.zero_grad()
        alone = model(tokens[1:])
        torch.testing.assert_close(logits[1:], alone, atol=1e-5, rtol=0)
        alone.logsumexp(dim=-1).sum().backward()
        for gradient, parameter in zip(together, model.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad, atol=1e-4, rtol=1e-4)

    @pytest.mark.parametrize("cached", [False, True])
    def test_what_the_padding_embeds_to_does_not_matter(self, scheme, cached):
        """NaN in the padding token's vector reaches no real position."""
        model, answers = build(scheme), torch.tensor(ANSWERS).clamp_max(11)
        prompt, real = left_pad([[min(token, 11) for token in row] for row in PROMPTS], pad_id=12)
        with torch.no_grad():
            expected = read_answers(model, prompt, real, answers, cached)
            model.embedding.weight[12] = torch.nan
            actual = read_answers(model, prompt, real, answers, cached)
        torch.testing.assert_close(actual[..., :12], expected[..., :12], atol=1e-5, rtol=0)


class TestCache:
    @pytest.mark.parametrize("scheme", SCHEMES)
    @pytest.mark.parametrize("chunks", [[5, *[1] * 7], [3, 3], [2, 5, 1, 3]])
    def test_reading_in_steps_equals_one_pass(self, scheme, chunks):
        """A05, A10: prefill 5 and 7 single steps, or any chunks, at every position."""
        model, tokens = build(scheme), draw(2, sum(chunks))
        torch.testing.assert_close(read_in_chunks(model, tokens, chunks), model(tokens), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_two_caches_of_one_model_are_apart(self, scheme):
        """A05: nothing of one text's positions is left behind for another."""
        model, one, other = build(scheme), draw(2, 6), draw(1, 4)
        caches = model.start_cache(longest=6), model.start_cache(longest=4)
        with torch.no_grad():
            first = [model(one[:, :3], cache=caches[0]), model(other[:, :1], cache=caches[1])]
            second = [model(one[:, 3:], cache=caches[0]), model(other[:, 1:], cache=caches[1])]
        for part, rest, tokens in zip(first, second, (one, other), strict=True):
            torch.testing.assert_close(torch.cat([part, rest], dim=1), model(tokens), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_given_positions_go_on(self, scheme):
        """After positions that were given, each row is counted on from its own last one."""
        model, tokens = build(scheme), draw(2, 7)
        positions = torch.tensor([[0, 1, 2, 5, 6, 7, 8], [3, 4, 7, 9, 10, 11, 12]])
        longest = torch.tensor([9, 13])
        cache = model.start_cache(longest=longest)
        with torch.no_grad():
            steps = [model(tokens[:, :4], positions=positions[:, :4], cache=cache)]
            steps += [model(part, cache=cache) for part in (tokens[:, 4:5], tokens[:, 5:])]
        expected = model(tokens, positions=positions, longest=longest)
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=0)
        assert torch.equal(cache.positions, positions)

    def test_dynamic_ntk_must_know_how_long_the_text_will_be(self):
        """Told, it equals the pass over the whole text. Not told, cached keys would stay at old angles."""
        model, tokens = build("rope, dynamic NTK"), draw(2, 12)
        full = model(tokens)
        with torch.no_grad():
            cache = model.start_cache(longest=torch.tensor([12, 12]))
            told = torch.cat([model(part, cache=cache) for part in tokens.split(4, dim=1)], dim=1)
        torch.testing.assert_close(told, full, atol=1e-5, rtol=0)
        with pytest.raises(ValueError, match="longest must be given"):
            model.start_cache()

    def test_only_trusted_tokens_go_unchecked(self):
        """Looking at their values at every step would make a GPU wait each time."""
        model, good, bad = build(), draw(2, 3), torch.full((2, 1), VOCAB)
        with pytest.raises(ValueError, match="tokens must hold ids"):
            model(bad)
        with pytest.raises(IndexError):  # PyTorch's own
            model(bad, trusted=True)
        assert torch.equal(model(good, trusted=True), model(good))


def read_segments(model: LanguageModel, tokens: Tensor, lengths: list[int], memory: SegmentMemory) -> Tensor:
    """All logits, segment by segment."""
    return torch.cat([model(part, memory=memory) for part in tokens.split(lengths, dim=1)], dim=1)


def told(scheme: str) -> dict[str, int]:
    """Dynamic NTK turns a segment by the length of the whole text."""
    return {"longest": 12} if scheme == "rope, dynamic NTK" else {}


class TestSegmentMemory:
    @pytest.mark.parametrize("residual", ["pre_norm", "post_norm"])
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_a_long_memory_equals_one_pass(self, scheme, residual):
        """Where nothing is forgotten or dropped, absolute schemes too: the positions go on."""
        model, tokens = build(scheme, residual=residual), draw(2, 12)
        for lengths in ([6, 6], [4, 5, 3]):
            memory = SegmentMemory(N_LAYERS, 12)
            parts = [model(part, memory=memory, **told(scheme)) for part in tokens.split(lengths, dim=1)]
            torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "rope, dynamic NTK"])
    @pytest.mark.parametrize("lengths", [[6, 6], [2, 2, 5, 3]])
    def test_a_short_memory_is_a_mask(self, scheme, lengths):
        """Each segment reads itself and the 3 tokens before it: one pass with that mask."""
        model, tokens = build(scheme), draw(2, 12)
        begins = torch.tensor(
            [end - length for end, length in zip(torch.tensor(lengths).cumsum(0), lengths, strict=True)]
        )
        begin = begins.repeat_interleave(torch.tensor(lengths))[:, None]  # of each query's segment
        query, key = torch.arange(12)[:, None], torch.arange(12)
        mask = (key <= query) & (key >= begin - 3)
        actual = read_segments(model, tokens, lengths, SegmentMemory(N_LAYERS, 3))
        torch.testing.assert_close(actual, masked_pass(model, tokens, mask), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scheme", RELATIVE)
    @pytest.mark.parametrize("length", [3, 12])
    def test_padding_is_remembered_as_padding(self, scheme, length):
        """A row whose first segment has padding in it reads, afterwards, what it would read alone."""
        model, tokens = build(scheme), draw(2, 10)
        real = torch.ones(2, 10, dtype=torch.bool)
        real[1, :4] = False
        memory = SegmentMemory(N_LAYERS, length)
        first = model(tokens[:, :6], real=real[:, :6], memory=memory, **told(scheme))
        second = model(tokens[:, 6:], memory=memory, **told(scheme))
        for row, begin in ((0, 0), (1, 4)):
            alone, kept = SegmentMemory(N_LAYERS, length), tokens[row : row + 1]
            expected = [model(part, memory=alone, **told(scheme)) for part in (kept[:, begin:6], kept[:, 6:])]
            torch.testing.assert_close(first[row : row + 1, begin:], expected[0], atol=1e-5, rtol=0)
            torch.testing.assert_close(second[row : row + 1], expected[1], atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scheme", ["transformer_xl", "rope"])
    def test_no_gradient_goes_into_the_memory(self, scheme):
        """Tokens seen only in the first segment get none, those of the second do; the keys of both count."""
        model, memory = build(scheme), SegmentMemory(N_LAYERS, 6)
        model(draw(2, 6, low=0) % 4, memory=memory)
        assert not any(state.requires_grad for state in memory.states)
        second = draw(2, 6) % 4 + 4
        model(second, memory=memory)[..., 9].sum().backward()
        touched = model.embedding.weight.grad.abs().sum(dim=1) > 0
        assert set(touched.nonzero().flatten().tolist()) == {*second.flatten().tolist(), 9}
        with_past = model.blocks[0].attention.project_key.weight.grad.clone()
        model.zero_grad()
        model(second, positions=torch.arange(6, 12)[None])[..., 9].sum().backward()
        assert (with_past - model.blocks[0].attention.project_key.weight.grad).abs().max() > 1e-3

    def test_it_holds_no_more_than_it_should(self):
        model, memory = build("transformer_xl"), SegmentMemory(N_LAYERS, 5)
        assert memory.length == 0
        for length, held in ((3, 3), (4, 5), (9, 5), (1, 5)):
            model(draw(2, length), memory=memory)
            assert memory.length == held
            assert all(state.shape == (2, held, 24) for state in memory.states)
        assert memory.positions.tolist() == [[12, 13, 14, 15, 16]]

    def test_an_encoder_reads_its_memory(self):
        """Without the causal rule a segment reads the past, and all of itself."""
        model, tokens, memory = build("transformer_xl", causal=False), draw(2, 10), SegmentMemory(N_LAYERS, 6)
        actual = read_segments(model, tokens, [6, 4], memory)
        mask = torch.ones(10, 10, dtype=torch.bool)
        mask[:6, 6:] = False
        torch.testing.assert_close(actual, masked_pass(model, tokens, mask), atol=1e-5, rtol=0)


def state_of(past: Past) -> list[Tensor]:
    """Copies of everything that a cache or memory holds."""
    held = [past.positions, past.real]
    if isinstance(past, Cache):
        held += [tensor for layer in past.layers for tensor in layer.contents()]
    if isinstance(past, SegmentMemory):
        held += past.states
    return [tensor.clone() for tensor in held if tensor is not None]


@pytest.mark.usefixtures("without_shape_checks")
class TestErrors:
    @pytest.mark.parametrize("name", ["cache", "memory"])
    @pytest.mark.parametrize(
        "wrong",
        [
            {"tokens": torch.full((2, 2), VOCAB)},
            {"tokens": torch.zeros(2, 12, dtype=torch.int64)},
            {"positions": torch.tensor([[15, 16]])},
            {"positions": torch.zeros(2, 3, dtype=torch.int64)},
            {"real": torch.ones(3, 2, dtype=torch.bool)},
            {"tokens": torch.zeros(3, 2, dtype=torch.int64)},
        ],
    )
    def test_a_refused_call_leaves_the_past_as_it_was(self, name, wrong):
        """A08: outside the vocabulary, beyond the table, of a wrong shape; then the text goes on."""
        model, tokens = build("learned", max_length=16), draw(2, 8)
        past = model.start_cache() if name == "cache" else SegmentMemory(N_LAYERS, 16)
        with torch.no_grad():
            first = model(tokens[:, :6], **{name: past})
            before = state_of(past)
            with pytest.raises(ValueError, match=r"tokens|positions|real"):
                model(**{"tokens": tokens[:, 6:], name: past, **wrong})
            assert past.length == 6
            assert all(torch.equal(a, b) for a, b in zip(before, state_of(past), strict=True))
            second = model(tokens[:, 6:], **{name: past})
        torch.testing.assert_close(torch.cat([first, second], dim=1), model(tokens), atol=1e-5, rtol=0)

    def test_cache_and_memory_exclude_each_other(self):
        model = build()
        with pytest.raises(ValueError, match="cache and memory must not both be given"):
            model(draw(2, 3), cache=model.start_cache(), memory=SegmentMemory(N_LAYERS, 4))

    @pytest.mark.parametrize(
        ("longest", "error", "shown"),
        [
            (0, ValueError, "longest must be positive, got 0"),
            (-3, ValueError, "longest must be positive, got -3"),
            (torch.tensor([5, 0]), ValueError, "longest must be positive, got 0"),
            (torch.tensor(5), ValueError, r"longest must be an integer, or have shape \(batch,\), got \(\)"),
            (torch.tensor([[5]]), ValueError, r"have shape \(batch,\), got \(1, 1\)"),
            (5.0, TypeError, "longest must be an integer, got 5.0"),
            ([5, 5], TypeError, "longest must be an integer, got"),
            (torch.tensor([5.0, 5.0]), TypeError, "or a tensor of integers, got torch.float32"),
            (torch.tensor([True, True]), TypeError, "or a tensor of integers, got torch.bool"),
        ],
    )
    def test_lengths_that_no_text_has(self, longest, error, shown):
        with pytest.raises(error, match=shown):
            Cache(N_LAYERS, longest)

    @pytest.mark.parametrize("longest", [5, torch.tensor([9, 5])])
    @pytest.mark.parametrize("padding", [0, 2])
    def test_no_row_grows_beyond_its_length(self, longest, padding):
        """Five real tokens fit, whatever padding there is in front of them; a sixth does not."""
        model, tokens = build("rope, dynamic NTK"), draw(2, 6 + padding)
        real = (torch.arange(6 + padding) >= padding).expand(2, -1)
        shown = r"longest must be at least the length of each row so far, \[6.*\], got \[(5|9, 5)\]"
        cache = model.start_cache(longest=longest)
        model(tokens[:, :-1], real=real[:, :-1], cache=cache)
        with pytest.raises(ValueError, match=shown):
            model(tokens[:, -1:], cache=cache)
        with pytest.raises(ValueError, match=shown):
            model(tokens, real=real, longest=longest)

    def test_an_encoder_has_no_cache(self):
        with pytest.raises(ValueError, match="causal must be True for a cache"):
            build(causal=False).start_cache()

    @pytest.mark.parametrize(("n_layers", "length", "name"), [(0, 4, "n_layers"), (2, 0, "length")])
    def test_sizes_are_positive(self, n_layers, length, name):
        with pytest.raises(ValueError, match=f"{name} must be positive, got 0"):
            SegmentMemory(n_layers, length)
