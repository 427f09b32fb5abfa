"""The studies of positions measure what they say: against literal loops, and in short runs on random text."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
import torch.nn.functional as F
from tiny_language_models import D_HEAD, N_HEADS, build, draw
from torch import Tensor

from tx_from_scratch.experiments import (
    language_model,
    positions_extrapolation,
    positions_offset,
    positions_stretching,
)
from tx_from_scratch.experiments.language_model import RECIPE, averaged, loss_by_position
from tx_from_scratch.experiments.positions_stretching import ClippedRotary
from tx_from_scratch.positions import Places, RotaryEmbedding

POSITIONS = torch.tensor([[0, 1, 2, 3, 5, 8, 13], [7, 4, 9, 6, 2, 20, 11]])


@pytest.fixture
def random_text(monkeypatch):
    """Random tokens in place of the plays, whose encoding takes seconds to train."""

    class RandomText:
        def __init__(self, vocab_size: int) -> None:
            self.drawn = torch.randint(vocab_size, (3_000,), generator=torch.Generator().manual_seed(1))

        def tokens(self, split: str) -> Tensor:
            return self.drawn

    monkeypatch.setattr(language_model, "TextTokens", RandomText)


@pytest.fixture
def small(monkeypatch):
    """One layer with two heads, as wide as those of the studies."""
    sizes = {**language_model.SIZES, "d_model": 64, "n_heads": 2, "n_layers": 1, "d_ff": 64}
    monkeypatch.setattr(language_model, "SIZES", sizes)


class TestMeasures:
    def test_loss_by_position_equals_a_literal_loop(self):
        """Minus the log-probability of each next token; more windows than one part holds."""
        model, tokens = build(), draw(9, 7)
        total = torch.zeros(6, dtype=torch.float64)
        with torch.no_grad():
            for window in tokens:
                for position in range(6):
                    logits = model(window[None, : position + 1])[0, -1]
                    total[position] -= logits.double().log_softmax(dim=0)[window[position + 1]]
        actual = loss_by_position(model.train(), tokens)
        torch.testing.assert_close(actual, total / 9, atol=1e-5, rtol=0)

    def test_means_of_neighbors(self):
        assert averaged(torch.tensor([1.0, 3.0, 5.0, 6.0, 9.0]), 2) == [2.0, 5.5]

    def test_a_longer_table_keeps_the_trained_rows(self):
        """Extended, nothing changes within the trained length; stretched, only the ends stay."""
        model, tokens = build("learned", max_length=8), draw(2, 8)
        longer = positions_extrapolation.extended(model, 20)
        assert torch.equal(longer(tokens), model(tokens))
        assert longer(draw(1, 20)).isfinite().all()
        stretched = positions_extrapolation.interpolated(model, 15).positions.table
        torch.testing.assert_close(stretched[::2], model.positions.table, atol=1e-6, rtol=0)
        assert len(model.positions.table) == 8
        assert positions_extrapolation.extended(other := build("rope"), 20) is other

    @pytest.mark.parametrize("scheme", ["t5", "transformer_xl", "shaw"])
    def test_bias_numbers_are_what_the_scheme_adds(self, scheme, random_text):
        """At every distance back to 15, by the scheme's own `bias` with the query they stand for."""
        model = build(scheme, vocab_size=512)
        numbers = positions_extrapolation.bias_numbers(model)
        query, key = torch.zeros(1, N_HEADS, 16, D_HEAD), torch.zeros(1, N_HEADS, 16, D_HEAD)
        if scheme == "shaw":
            query += positions_extrapolation.mean_query(model)[:, None]
        places = Places.of(torch.arange(16)[None])
        added = model.positions.bias(query, key, D_HEAD**-0.5, model.positions.prepare(places), 0)
        for distance in range(16):
            if scheme == "t5":
                shown = numbers[:, distance]
            elif scheme == "shaw":
                shown = numbers[:, 16 - distance]
            else:
                shown = numbers @ model.positions.codes(torch.tensor([distance]))[0]
            torch.testing.assert_close(added[0, :, -1, 15 - distance], shown, atol=1e-5, rtol=0)

    def test_fixed_schemes_have_no_bias_numbers(self):
        assert positions_extrapolation.bias_numbers(build("alibi")) is None

    def test_the_mean_query_is_the_mean_of_all_queries(self, random_text):
        model = build("shaw", vocab_size=512)
        windows = language_model.test_windows(positions_extrapolation.TRAINED, 64)[:, :-1]
        block = model.blocks[0]
        query = block.attention.project_query(block.attention_connection.norm(model.embedding(windows)))
        expected = query.reshape(-1, N_HEADS, D_HEAD).mean(dim=0)
        torch.testing.assert_close(positions_extrapolation.mean_query(model), expected, atol=1e-5, rtol=0)


class TestClippedRotary:
    @pytest.mark.parametrize("clipped", [[False, True, True, False], [True] * 4, [False] * 4])
    def test_it_equals_a_loop_over_complex_numbers(self, clipped):
        """Every pair a complex number, turned by its distance; clipped pairs by no more than the furthest."""
        scheme = ClippedRotary(D_HEAD, clipped=torch.tensor(clipped), furthest=4)
        query, key = torch.randn(2, N_HEADS, 7, D_HEAD), torch.randn(2, N_HEADS, 7, D_HEAD)
        prepared = scheme.prepare(Places.of(POSITIONS))
        turned = scheme.rotate(query, key, prepared)
        actual = 0.3 * turned[0] @ turned[1].mT + scheme.bias(*turned, 0.3, prepared, layer=0)

        expected = torch.zeros_like(actual)
        for batch, head, i, j in torch.cartesian_prod(*map(torch.arange, actual.shape)).tolist():
            distance = (POSITIONS[batch, i] - POSITIONS[batch, j]).item()
            for pair in range(4):
                kept = min(distance, 4) if clipped[pair] else distance
                angle = kept * 10_000 ** (-2 * pair / D_HEAD)
                asks = complex(query[batch, head, i, pair], query[batch, head, i, pair + 4])
                offers = complex(key[batch, head, j, pair], key[batch, head, j, pair + 4])
                expected[batch, head, i, j] += 0.3 * (asks * offers.conjugate() * cmath.exp(1j * angle)).real
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)

    def test_within_the_trained_length_the_model_is_as_it_was(self):
        """Whatever is clipped; beyond it, only what is clipped makes a difference."""
        model, tokens = build(), draw(2, 12)
        for clipped in positions_stretching.clippings(D_HEAD).values():
            changed = positions_stretching.with_clipped(model, clipped)
            changed.positions.furthest = 7
            torch.testing.assert_close(changed(tokens)[:, :8], model(tokens)[:, :8], atol=1e-5, rtol=0)
            differs = (changed(tokens) - model(tokens))[:, 8:].abs().max() > 1e-4
            assert differs == bool(clipped.any())
        assert type(model.positions) is RotaryEmbedding

    def test_pair_by_pair_clips_one_pair_or_all_others(self, monkeypatch):
        """Against the losses behind twice the trained length of models that are clipped by hand."""
        monkeypatch.setattr(positions_stretching, "TRAINED", 4)
        model, tokens = build(), draw(3, 13)
        only, without = positions_stretching.pair_by_pair(model, tokens)
        for pair in range(4):
            one = torch.arange(4) == pair
            for figures, clipped in ((only, ~one), (without, one)):
                changed = positions_stretching.with_clipped(model, clipped)
                expected = loss_by_position(changed, tokens)[8:].mean().item()
                assert figures[pair] == pytest.approx(expected, abs=1e-4)
        assert len({*only, *without}) == 8

    def test_slow_pairs_are_those_of_less_than_a_turn(self):
        """By the wavelengths 2π · 10000^(i/16) of width 32, trained at 128."""
        slow = [2 * math.pi * 10_000 ** (pair / 16) > 128 for pair in range(16)]
        chosen = positions_stretching.clippings(32)
        assert chosen["slow"].tolist() == slow
        assert chosen["fast"].tolist() == [not pair for pair in slow]
        assert chosen["slower_half"].tolist() == [False] * 8 + [True] * 8
        assert torch.equal(chosen["faster_half"], ~chosen["slower_half"])
        assert chosen["all"].all()


class TestOffsets:
    def test_batches_depend_on_seed_and_number_alone(self):
        one, same, other = (positions_offset.RandomTokens(seed=seed) for seed in (3, 3, 4))
        assert torch.equal(one[5], same[5])
        assert not torch.equal(one[5], one[6])
        assert not torch.equal(one[5], other[5])
        assert one[0].shape == (positions_offset.ROWS, positions_offset.LENGTH)
        assert torch.bincount(one[0].flatten(), minlength=32).min() > 30

    def test_the_loss_asks_for_the_token_some_steps_back(self):
        """Against a literal loop; tokens that stand further in front than that have none to copy."""
        model, tokens = build(), draw(3, 9)
        loss, count = positions_offset.OffsetLoss(4)(model, tokens)
        steps = model(tokens).log_softmax(dim=-1)
        expected = sum(-steps[row, at, tokens[row, at - 4]] for row in range(3) for at in range(4, 9))
        torch.testing.assert_close(loss, expected, atol=1e-4, rtol=0)
        assert count == 15

    @pytest.mark.usefixtures("without_shape_checks")  # which only a LanguageModel passes
    @pytest.mark.parametrize(("copied", "expected"), [(4, 1.0), (5, 1 / 32)])
    def test_accuracy_counts_right_copies(self, copied, expected):
        """A model that copies from 4 steps back is always right; from 5 back, by chance."""

        class Copies(torch.nn.Module):
            embedding = torch.nn.Embedding(1, 1)

            def forward(self, tokens: Tensor) -> Tensor:
                return F.one_hot(tokens.roll(copied, dims=1), 32).float()

        assert positions_offset.accuracy(Copies(), 4) == pytest.approx(expected, abs=0.01)


@pytest.mark.usefixtures("without_shape_checks")  # which would take most of the time
class TestShortRuns:
    """A few steps of each study: every figure it promises, finite, and the same when made again."""

    def test_extrapolation(self, random_text, small, monkeypatch):
        monkeypatch.setattr(positions_extrapolation, "WINDOWS", 2)
        monkeypatch.setattr(positions_extrapolation, "TESTED", 512)
        settings = {**RECIPE, "length": 64, "tokens": 128, "steps": 20}
        figures = {
            scheme: positions_extrapolation.measure({**settings, "positions": scheme}, 3)
            for scheme in ("learned", "t5")
        }
        common = {"inside", "by_position", "loss"}
        assert set(figures["learned"]) == common | {f"interpolated_{length}" for length in (128, 256, 512)}
        assert set(figures["t5"]) == common | {"curve"}
        assert len(figures["t5"]["by_position"]) == 16
        assert len(figures["t5"]["curve"]) == 2 * 32
        for figure in figures.values():
            assert figure["inside"] == pytest.approx(sum(figure["by_position"][:2]) / 2, abs=1e-3)
            assert figure["inside"] == pytest.approx(math.log(512), abs=0.7)  # of random tokens
        assert positions_extrapolation.measure({**settings, "positions": "t5"}, 3) == figures["t5"]

    def test_stretching(self, random_text, small, monkeypatch):
        monkeypatch.setattr(positions_stretching, "WINDOWS", 1)
        monkeypatch.setattr(positions_stretching, "TARGETS", (384,))
        monkeypatch.setattr(positions_stretching, "TUNED_STEPS", 1)
        settings = {**RECIPE, "length": 128, "tokens": 512, "steps": 20}
        figures = positions_stretching.measure(settings, 0)
        methods = ["linear", "ntk", "dynamic_ntk", "yarn", "yarn_paper"]
        clipped = ["slow", "fast", "slower_half", "faster_half", "all"]
        assert set(figures) == (
            {"loss", "raw", "only", "without"}
            | {f"{method}_384" for method in methods}
            | {f"clipped_{pairs}" for pairs in clipped}
            | {f"{kind}_{method}" for kind in ("tuned", "short") for method in ("none", *methods)}
        )
        assert len(figures["raw"]) == len(figures["clipped_all"]) == 16
        assert len(figures["only"]) == len(figures["without"]) == 16
        assert len(figures["yarn_384"]) == len(figures["tuned_yarn"]) == 12
        assert figures["clipped_all"][:4] == pytest.approx(figures["raw"][:4], abs=1e-3)
        assert figures["short_dynamic_ntk"] == figures["short_none"] == figures["raw"][:4]
        assert figures["tuned_none"] != figures["raw"][:12]
        assert all(math.isfinite(value) for values in figures.values() for value in values)

    def test_offset(self):
        figures = positions_offset.measure({**positions_offset.arm("rope", 1), "steps": 40}, 0)
        assert set(figures) == {"accuracy", "loss"}
        assert 0 <= figures["accuracy"] < 1
        first, last = figures["loss"]
        assert last < first < 5

    def test_an_encoder_is_asked_for(self):
        arms = positions_offset.STUDY.arms
        for name, settings in arms.items():
            model = positions_offset.make_model(settings, 0)
            assert model.config.causal == (not name.endswith("encoder"))
            assert model.config.positions == name.split(",")[0]
            assert settings["offset"] == int(name.split(" ")[1])
