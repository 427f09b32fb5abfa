"""Sampling: the filters against transformers' own, the frequencies against the probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from continuable_stub import Stub
from tiny_language_models import VOCAB, build, draw

from tx_from_scratch.generation import generate, next_token_probabilities


class TestProbabilities:
    @pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
    @pytest.mark.parametrize("top_k", [None, 1, 3, 13, 53])
    @pytest.mark.parametrize("top_p", [None, 0.05, 0.5, 0.9, 1.0])
    def test_they_equal_transformers(self, temperature, top_k, top_p):
        """Its three logits warpers, in the order in which its generate applies them."""
        from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        logits = 3 * torch.randn(40, VOCAB)
        scores = TemperatureLogitsWarper(temperature)(None, logits)
        if top_k is not None:
            scores = TopKLogitsWarper(top_k)(None, scores)
        if top_p is not None:
            scores = TopPLogitsWarper(top_p)(None, scores)
        actual = next_token_probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p)
        torch.testing.assert_close(actual, scores.softmax(dim=-1), atol=1e-6, rtol=0)

    def test_an_example_by_hand(self):
        """0.5, 0.3, 0.15, 0.05: of the two likeliest 5/8 and 3/8; of those that reach 0.9, three."""
        logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()
        for settings, expected in (
            ({"top_k": 2}, [0, 5 / 8, 0, 3 / 8]),
            ({"top_p": 0.9}, [0, 0.5 / 0.95, 0.15 / 0.95, 0.3 / 0.95]),
            ({"top_p": 0.45}, [0, 1, 0, 0]),
            ({"top_k": 2, "top_p": 0.6}, [0, 1, 0, 0]),  # 5/8 of what top-k left reaches 0.6
            ({"temperature": 0.5}, [0.0025 / 0.365, 0.25 / 0.365, 0.0225 / 0.365, 0.09 / 0.365]),
        ):
            actual = next_token_probabilities(logits, **settings)
            torch.testing.assert_close(actual, torch.tensor([expected], dtype=torch.float32))

    @pytest.mark.parametrize("temperature", [0.0, 1e-8, 1e-30, 1e-45])
    def test_no_temperature_is_greedy(self, temperature):
        """A12: 0 is allowed, and no temperature is too small; never NaN."""
        logits = torch.randn(5, VOCAB)
        logits[:, 4] = -math.inf
        expected = torch.zeros(5, VOCAB).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
        assert torch.equal(next_token_probabilities(logits, temperature=temperature), expected)

    @pytest.mark.parametrize("settings", [{"top_k": 400}, {"top_k": 440}, {"top_p": 1.0}])
    def test_filters_that_let_everything_through(self, settings):
        """A12: as many tokens as there are, or more, and all of the probability: the softmax itself.

        In the first row one token alone reaches 1 by rounding; the others are possible all the same.
        """
        logits = torch.randn(4, 400)
        logits[0, 7] = 40.0
        actual = next_token_probabilities(logits, **settings)
        assert (actual > 0).all()
        torch.testing.assert_close(actual, logits.softmax(dim=-1), atol=0, rtol=1e-4)

    @pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 1e-6}, {"top_k": 9, "top_p": 1.0}])
    def test_impossible_tokens_stay_impossible(self, settings):
        """A12: with columns of -inf, and with a single possible token."""
        logits = torch.randn(3, VOCAB)
        logits[:, 2:6] = -math.inf
        logits[2] = -math.inf
        logits[2, 8] = -700.0
        probabilities = next_token_probabilities(logits, **settings)
        assert not probabilities[:, 2:6].any()
        assert probabilities[2, 8] == 1
        torch.testing.assert_close(probabilities.sum(dim=-1), torch.ones(3))

    def test_of_equally_likely_tokens_the_first_stay(self):
        probabilities = next_token_probabilities(torch.zeros(1, 100), top_k=3)
        assert probabilities[0].nonzero().flatten().tolist() == [0, 1, 2]

    def test_half_precision_is_left_behind(self):
        """bf16 logits are turned into probabilities in float32."""
        logits = torch.randn(3, VOCAB, dtype=torch.bfloat16)
        actual = next_token_probabilities(logits, top_p=0.9)
        assert actual.dtype == torch.float32
        assert torch.equal(actual, next_token_probabilities(logits.float(), top_p=0.9))


class TestSampling:
    @pytest.mark.parametrize(
        "settings", [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.8}, {"top_k": 5, "top_p": 0.7}]
    )
    def test_tokens_come_as_often_as_they_should(self, settings):
        """8,000 drawn tokens within 4.5 standard deviations; what was filtered out, never."""
        settings = {"temperature": 1.0, **settings}
        logits = torch.randn(8).tolist()
        generator = torch.Generator().manual_seed(5)
        drawn = generate(
            Stub(lambda row: logits),
            torch.zeros(4_000, 1, dtype=torch.int64),
            max_new_tokens=2,
            generator=generator,
            **settings,
        )
        expected = next_token_probabilities(torch.tensor([logits]), **settings)[0].double()
        share = torch.bincount(drawn.flatten(), minlength=8).double() / 8_000
        deviation = (expected * (1 - expected) / 8_000).sqrt()
        assert ((share - expected).abs() <= 4.5 * deviation).all()
        assert not share[expected == 0].any()

    def test_a_generator_decides_alone(self):
        """The same seed gives the same text, with a cache or without; PyTorch's own generator rests."""
        model, prompt = build(), draw(3, 4)
        state = torch.get_rng_state()
        texts = [
            generate(
                model,
                prompt,
                max_new_tokens=8,
                temperature=1.3,
                generator=torch.Generator().manual_seed(seed),
                cached=cached,
            )
            for seed, cached in ((1, True), (1, False), (2, True))
        ]
        assert torch.equal(texts[0], texts[1])
        assert not torch.equal(texts[0], texts[2])
        assert torch.equal(torch.get_rng_state(), state)

    def test_one_likeliest_token_is_greedy(self):
        """Temperature 0, nearly 0, and top-k of 1."""
        model, prompt = build(), draw(3, 4)
        greedy = generate(model, prompt, max_new_tokens=8)
        for settings in (
            {"temperature": 1e-8},
            {"temperature": 1.0, "top_k": 1},
            {"temperature": 1.0, "top_p": 1e-9},
        ):
            assert torch.equal(generate(model, prompt, max_new_tokens=8, **settings), greedy)


@pytest.mark.usefixtures("without_shape_checks")
class TestErrors:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("temperature", -1),
            ("temperature", math.inf),
            ("temperature", math.nan),
            ("top_k", 0),
            ("top_k", -3),
            ("top_k", 2.5),
            ("top_k", True),
            ("top_p", 0),
            ("top_p", 1.5),
            ("top_p", -0.1),
            ("top_p", math.nan),
        ],
    )
    def test_settings_out_of_range(self, name, value):
        """A12: named, with the value, before anything is computed."""
        with pytest.raises(ValueError, match=f"{name} must be .*got {value}"):
            next_token_probabilities(torch.zeros(1, 5), **{name: value})
        model = Stub(lambda row: [0.0])
        with pytest.raises(ValueError, match=f"{name} must be .*got {value}"):
            generate(model, draw(1, 3), max_new_tokens=2, **{name: value})
        assert not model.calls

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_row_without_a_possible_token(self, bad, temperature):
        logits = torch.zeros(2, 5)
        logits[1] = bad
        with pytest.raises(ValueError, match="logits must hold a finite number in every row"):
            next_token_probabilities(logits, temperature=temperature)
