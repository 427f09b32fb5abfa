"""Generation: against transformers, against a stub whose every step is known, and at every kind of end."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from continuable_stub import scripted
from tiny_language_models import SCHEMES, VOCAB, build, draw, llama

from tx_from_scratch.generation import generate, left_pad

PAD, STOP = 0, 2
SCRIPTS = {4: [7, STOP], 5: [6, 6, 7, 6, STOP], 6: [STOP], 7: []}
PROMPTS = ([3, 9, 1, 1, 7, 12, 4], [5, 8, 2], [6])


@pytest.fixture(autouse=True)
def _shapes_of_one_scheme(request):
    """Checking shapes takes most of the time: here one scheme passes the checks, elsewhere all of them do."""
    case = getattr(request.node, "callspec", None)
    if case is not None and case.params.get("scheme", "transformer_xl") != "transformer_xl":
        request.getfixturevalue("without_shape_checks")


@pytest.mark.parametrize("cached", [True, False])
class TestEnds:
    """A11: rows that end early, late, at once and never."""

    def expected(self, row: int, width: int) -> list[int]:
        """Up to the stop token, then padding."""
        script = SCRIPTS[row]
        return (script + [PAD] * width if STOP in script else script + [3] * width)[:width]

    @pytest.mark.parametrize("rows", [[4, 5, 7], [7, 4, 5], [6, 4], [4], [5], [6], [7]])
    def test_rows_end_each_in_its_time(self, rows, cached):
        """The loop stops as soon as every row has ended, else at the limit; rows alone give the same."""
        steps = max(len(SCRIPTS[row]) if STOP in SCRIPTS[row] else 8 for row in rows)
        model = scripted(SCRIPTS)
        prompt = torch.tensor(rows)[:, None]
        output = generate(model, prompt, max_new_tokens=8, stop_id=STOP, pad_id=PAD, cached=cached)
        assert output.tolist() == [self.expected(row, steps) for row in rows]
        assert len(model.calls) == steps

    def test_with_a_cache_only_new_tokens_are_computed(self, cached):
        model = scripted(SCRIPTS)
        generate(model, torch.tensor([[7, 3, 3], [7, 3, 3]]), max_new_tokens=4, cached=cached)
        assert model.calls == [(2, 3), *([(2, 1)] * 3 if cached else [(2, 4), (2, 5), (2, 6)])]

    def test_each_row_has_its_own_stop_token(self, cached):
        scripts = {4: [6, 5, 1, 7], 5: [6, 5, 1, 7], 6: [6, 5, 1, 7]}
        output = generate(
            scripted(scripts),
            torch.tensor([[4], [5], [6]]),
            max_new_tokens=6,
            stop_id=torch.tensor([5, 1, 2]),
            pad_id=0,
            cached=cached,
        )
        assert output.tolist() == [[6, 5, 0, 0, 0, 0], [6, 5, 1, 0, 0, 0], [6, 5, 1, 7, 3, 3]]

    def test_without_a_stop_token_nothing_ends(self, cached):
        output = generate(scripted(SCRIPTS), torch.tensor([[4]]), max_new_tokens=5, pad_id=PAD, cached=cached)
        assert output.tolist() == [[7, STOP, 3, 3, 3]]

    @pytest.mark.parametrize("pad_id", [-100, VOCAB, 3, STOP])
    def test_padding_may_be_any_number(self, pad_id, cached):
        """It is written behind a row's end, and read by nobody."""
        model, prompt = build(), draw(2, 4)
        first = generate(model, prompt, max_new_tokens=6, cached=cached)
        stop = first[:, 1]
        output = generate(model, prompt, max_new_tokens=6, stop_id=stop, pad_id=pad_id, cached=cached)
        for row in range(2):
            end = first[row].tolist().index(stop[row].item()) + 1
            assert output[row].tolist() == (first[row, :end].tolist() + [pad_id] * 6)[: output.shape[1]]

    def test_a_row_that_has_ended_needs_no_more_places(self, cached):
        """A learned table that ends with the longer row's last token: the other row's end is no matter."""
        model = build("learned", max_length=12)
        prompt, real = left_pad([draw(1, 11)[0].tolist(), draw(1, 4)[0].tolist()])
        alone = [
            generate(model, row[kept][None], max_new_tokens=1 if kept.all() else 8, cached=cached)[0]
            for row, kept in zip(prompt, real, strict=True)
        ]
        never = next(token for token in range(VOCAB) if token not in alone[1])
        stop = torch.stack([alone[0][-1], torch.tensor(never)])  # the first row ends at once, the other never
        output = generate(model, prompt, real=real, max_new_tokens=8, stop_id=stop, pad_id=PAD, cached=cached)
        assert output[0].tolist() == [alone[0].item(), *[PAD] * 7]
        assert output[1].tolist() == alone[1].tolist()


class TestRealModel:
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_rows_do_not_depend_on_their_batch(self, scheme):
        """Prompts of 7, 3 and 1 tokens together, each alone, and all without a cache."""
        model = build(scheme)
        prompt, real = left_pad(PROMPTS, pad_id=11)
        together = generate(model, prompt, real=real, max_new_tokens=6)
        alone = [generate(model, torch.tensor([row]), max_new_tokens=6) for row in PROMPTS]
        assert torch.equal(together, torch.cat(alone))
        assert torch.equal(generate(model, prompt, real=real, max_new_tokens=6, cached=False), together)

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_it_writes_the_likeliest_token(self, scheme):
        """The argmax of the whole pass at every step, the scheme told how long the text will be."""
        model, prompt = build(scheme), draw(2, 5)
        text = prompt
        with torch.no_grad():
            for _ in range(7):
                token = model(text, longest=12)[:, -1].argmax(dim=-1, keepdim=True)
                text = torch.cat([text, token], dim=1)
        assert torch.equal(generate(model, prompt, max_new_tokens=7), text[:, 5:])

    @pytest.mark.parametrize("scheme", ["rope", "rope, YaRN"])
    def test_it_writes_what_transformers_writes(self, scheme):
        """LlamaForCausalLM.generate with our weights, prompts padded in front, a stop token in reach."""
        ours, theirs = llama(scheme)
        prompt, real = left_pad(PROMPTS, pad_id=11)
        free = generate(ours, prompt, real=real, max_new_tokens=10)
        stop = free[0, 3].item()
        expected = theirs.generate(
            prompt,
            attention_mask=real.long(),
            max_new_tokens=10,
            do_sample=False,
            eos_token_id=stop,
            pad_token_id=11,
        )[:, prompt.shape[1] :]
        output = generate(ours, prompt, real=real, max_new_tokens=10, stop_id=stop, pad_id=11)
        assert torch.equal(output, expected)
        assert (output == stop).any()

    def test_the_model_gets_its_mode_back(self):
        """Dropout rests while writing; every module is then as it was, also after an error."""
        model, prompt = build(dropout=0.5).train(), draw(2, 4)
        model.blocks[0].eval()
        modes = [module.training for module in model.modules()]
        first, second = (generate(model, prompt, max_new_tokens=6) for _ in range(2))
        assert torch.equal(first, second)
        assert [module.training for module in model.modules()] == modes
        with pytest.raises(ValueError, match="tokens must hold ids"):
            generate(model, prompt + 100, max_new_tokens=6)
        assert [module.training for module in model.modules()] == modes

    def test_what_it_writes_can_be_trained_on(self):
        """Writing runs in inference mode, whose tensors can't take part in a backward pass; ours can."""
        model = build()
        written = generate(model, draw(2, 4), max_new_tokens=4)
        assert not written.is_inference()
        model(written).sum().backward()
        assert model.embedding.weight.grad.isfinite().all()

    @pytest.mark.parametrize("cached", [True, False])
    def test_arguments_are_left_alone(self, cached):
        model = build()
        prompt, real = left_pad(PROMPTS)
        before = prompt.clone(), real.clone()
        narrow = generate(model, prompt.int(), real=real, max_new_tokens=4, cached=cached)
        assert narrow.dtype == torch.int32
        assert torch.equal(narrow, generate(model, prompt, real=real, max_new_tokens=4).int())
        assert torch.equal(prompt, before[0])
        assert torch.equal(real, before[1])

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    @pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "top_k": 5, "top_p": 0.9}])
    def test_other_precisions(self, dtype, settings):
        output = generate(build().to(dtype), draw(2, 4), max_new_tokens=5, **settings)
        assert output.shape == (2, 5)
        assert ((output >= 0) & (output < VOCAB)).all()


@pytest.mark.usefixtures("without_shape_checks")
class TestErrors:
    @pytest.mark.parametrize("limit", [0, -3, 2.0, True])
    def test_there_must_be_room(self, limit):
        with pytest.raises(ValueError, match=f"max_new_tokens must be a positive integer, got {limit}"):
            generate(build(), draw(1, 3), max_new_tokens=limit)

    @pytest.mark.parametrize("shape", [(2, 0), (0, 3), (4,)])
    def test_there_must_be_a_prompt(self, shape):
        with pytest.raises(ValueError, match="prompt must have shape"):
            generate(build(), torch.zeros(shape, dtype=torch.int64), max_new_tokens=2)

    @pytest.mark.parametrize(
        ("real", "kind", "shown"),
        [
            (torch.tensor([[True, True, False]]), ValueError, "put the padding in front"),
            (torch.tensor([True, True, True]), ValueError, "real must have the shape of"),
            (torch.tensor([[True, True]]), ValueError, "real must have the shape of"),
            (torch.ones(1, 3, dtype=torch.int64), TypeError, "real must be a Boolean tensor"),
        ],
    )
    def test_padding_that_does_not_fit(self, real, kind, shown):
        with pytest.raises(kind, match=shown):
            generate(build(), draw(1, 3), real=real, max_new_tokens=2)

    @pytest.mark.parametrize(
        "stop", [torch.tensor([1, 2, 3]), torch.tensor([1.0, 2.0]), torch.zeros(2, 1).long(), 2.5]
    )
    def test_stop_tokens_that_do_not_fit(self, stop):
        with pytest.raises(ValueError, match="stop_id must be a token, or one for each of the 2 rows"):
            generate(build(), draw(2, 3), stop_id=stop, max_new_tokens=2)

    @pytest.mark.parametrize("stop", [-1, VOCAB, torch.tensor([1, VOCAB])])
    def test_stop_tokens_are_in_the_vocabulary(self, stop):
        with pytest.raises(ValueError, match=r"stop_id must be from 0 to 12 \(vocab_size=13\), got"):
            generate(build(), draw(2, 3), stop_id=stop, max_new_tokens=2)

    @pytest.mark.parametrize("cached", [True, False])
    def test_an_encoder_continues_nothing(self, cached):
        with pytest.raises(ValueError, match="causal must be True to continue a text"):
            generate(build(causal=False), draw(2, 3), max_new_tokens=2, cached=cached)

    def test_a_list_is_no_prompt(self):
        with pytest.raises(TypeError, match="prompt must be a tensor of token ids, got list"):
            generate(build(), [[1]], max_new_tokens=2)

    @pytest.mark.parametrize("item", [2.0, "2", None, True, torch.tensor(2.0)])
    def test_only_integers_are_padded(self, item):
        with pytest.raises(TypeError, match="rows must hold integers, got"):
            left_pad([[1, item], [3]])
        with pytest.raises(TypeError, match="pad_id must hold integers, got"):
            left_pad([[1], [3]], pad_id=item)

    def test_prompts_are_tokens(self):
        with pytest.raises(TypeError, match="prompt must hold int64 or int32"):
            generate(build(), torch.ones(1, 3), max_new_tokens=2)

    @pytest.mark.parametrize("rows", [[], [[1, 2], []]])
    def test_no_prompt_is_empty(self, rows):
        with pytest.raises(ValueError, match="rows must hold at least one row"):
            left_pad(rows)


def test_padding_stands_in_front():
    tokens, real = left_pad([[1, 2, 3], [4]], pad_id=9)
    assert tokens.tolist() == [[1, 2, 3], [9, 9, 4]]
    assert real.tolist() == [[True] * 3, [False, False, True]]


@pytest.mark.usefixtures("without_shape_checks")
def test_integers_of_other_libraries_are_padded_too():
    tokens, _ = left_pad([torch.tensor([1, 2, 3]), np.array([4])], pad_id=9)
    assert tokens.tolist() == [[1, 2, 3], [9, 9, 4]]
