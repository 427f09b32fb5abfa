"""Studies are resumable and not stale; what reads attention maps reads them right."""

import json

import numpy as np
import pytest
import torch

from tx_from_scratch.data import NumberWords
from tx_from_scratch.experiments import Study, load_results
from tx_from_scratch.experiments.__main__ import STUDIES
from tx_from_scratch.experiments.attention_patterns import (
    Reading,
    aligned_share,
    head_patterns,
    leave_one_out,
    rank_correlation,
    read,
    translated,
)
from tx_from_scratch.experiments.number_words import RECIPE, schedule, train
from tx_from_scratch.transformer import Transformer, TransformerConfig


@pytest.fixture
def counted():
    """A study whose runs are counted, and cost nothing."""
    made = []

    def measure(settings, seed):
        made.append((settings["x"], seed))
        return {"double": 2.0 * settings["x"] + seed, "curve": [1.0, 2.0]}

    arms = {"one": {"x": 1}, "two": {"x": 2}}
    return Study("tiny", "Does it run?", arms, (0, 1), measure), made


def test_a_study_makes_every_arm_with_every_seed_and_stores_it(counted, tmp_path):
    study, made = counted
    results = study.run(folder=tmp_path, report=lambda line: None)
    assert sorted(made) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    np.testing.assert_array_equal(results.values("two", "double"), [4.0, 5.0])
    assert results.values("one", "curve").shape == (2, 2)
    assert results.arms == ["one", "two"]
    stored = json.loads((tmp_path / "tiny.json").read_text(encoding="utf-8"))
    assert stored["provenance"]["command"].endswith("tiny")
    assert stored["provenance"]["torch"] == torch.__version__


def test_a_stopped_study_goes_on_where_it_was(counted, tmp_path):
    study, made = counted
    interrupted = iter(range(2))

    def stop_after_two(settings, seed):
        if next(interrupted, None) is None:
            raise KeyboardInterrupt
        return study.measure(settings, seed)

    broken = Study(study.name, study.question, study.arms, study.seeds, stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        broken.run(folder=tmp_path, report=lambda line: None)
    study.run(folder=tmp_path, report=lambda line: None)
    assert len(made) == 4  # two before, two after: none twice


def test_a_run_with_other_settings_is_made_again(counted, tmp_path):
    study, made = counted
    study.run(folder=tmp_path, report=lambda line: None)
    changed = Study(study.name, study.question, {"one": {"x": 5}, "two": {"x": 2}}, (0, 1), study.measure)
    results = changed.run(folder=tmp_path, report=lambda line: None)
    assert made[4:] == [(5, 0), (5, 1)]
    np.testing.assert_array_equal(results.values("one", "double"), [10.0, 11.0])
    study.run(again=True, folder=tmp_path, report=lambda line: None)
    assert len(made) == 10


@pytest.mark.usefixtures("without_shape_checks")
def test_unknown_names_are_errors_that_list_the_known_ones(counted, tmp_path):
    study, _ = counted
    results = study.run(folder=tmp_path, report=lambda line: None)
    with pytest.raises(ValueError, match="one, two"):
        results.values("three", "double")
    with pytest.raises(ValueError, match="double, curve"):
        results.values("one", "treble")
    with pytest.raises(ValueError, match="tiny"):
        load_results("huge", folder=tmp_path)


@pytest.mark.parametrize("name", STUDIES)
def test_stored_results_are_those_of_the_study_as_it_is_now(name):
    study, results = STUDIES[name], load_results(name)
    assert [(run.arm, run.seed) for run in results.runs] == [
        (arm, seed) for arm in study.arms for seed in study.seeds
    ]
    assert all(run.settings == dict(study.arms[run.arm]) for run in results.runs)
    assert results.question == study.question


def test_training_a_run_again_gives_the_same_losses():
    _, first = train(RECIPE, seed=3, steps=20)
    _, second = train(RECIPE, seed=3, steps=20)
    _, other = train(RECIPE, seed=4, steps=20)
    assert first == second != other


def test_without_the_rise_the_rate_starts_at_its_highest_and_then_agrees():
    with_rise, without = schedule(RECIPE), schedule({**RECIPE, "rise": False})
    assert without(1) == with_rise(100) > with_rise(99) > with_rise(1)
    assert [without(step) for step in (100, 150, 300)] == [with_rise(step) for step in (100, 150, 300)]


def test_translated_words_cross():
    source = ["seven", "hundred", "and", "twenty", "three", "<eos>"]
    target = ["sieben", "hundert", "drei", "und", "zwanzig", "<eos>"]
    assert translated(source, target) == [(0, 0), (1, 1), (2, 4), (4, 3)]


def test_a_word_that_occurs_twice_is_nobodys_translation():
    source = ["three", "thousand", "and", "three", "<eos>"]
    target = ["drei", "tausend", "drei", "<eos>"]
    assert translated(source, target) == [(1, 1)]


def test_one_is_recognized_in_all_its_forms():
    assert translated(["one", "thousand"], ["ein", "tausend"]) == [(0, 0), (1, 1)]
    assert translated(["one"], ["eins"]) == [(0, 0)]


def synthetic_reading():
    """Head 0 of each kind follows a pattern exactly, head 1 spreads evenly."""
    source = ["twenty", "three", "<eos>"]
    target = ["drei", "und", "zwanzig", "<eos>"]
    cross = torch.full((1, 2, 4, 3), 1 / 3)
    cross[0, 0] = torch.eye(3)[[1, 2, 0, 2]]  # drei <- three, zwanzig <- twenty, the rest <- <eos>
    encoder = torch.full((1, 2, 3, 3), 1 / 3)
    encoder[0, 0] = torch.eye(3)[[0, 0, 1]]  # the one before; the first row has none
    decoder = torch.ones(4, 4).tril().expand(1, 2, 4, 4).clone()
    decoder /= decoder.sum(dim=-1, keepdim=True)
    decoder[0, 0] = torch.eye(4)[[0, 0, 0, 0]]  # the delimiter
    return Reading(source, target, {"encoder": encoder, "decoder": decoder, "cross": cross})


def test_head_patterns_tell_a_pattern_from_an_even_spread():
    found = head_patterns([synthetic_reading()])
    for kind, pattern in (
        ("encoder", "the one before"),
        ("decoder", "delimiter"),
        ("cross", "translated word"),
    ):
        share, even = found[kind][pattern]
        assert share.shape == (1, 2)
        np.testing.assert_allclose(share[0], [1.0, even], atol=1e-6)
    assert found["encoder"]["itself"][0][0, 0] == pytest.approx(1 / 3)  # only in the first row
    assert found["decoder"]["delimiter"][1] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)


def test_aligned_share_counts_where_the_mean_over_heads_is_largest():
    assert aligned_share([synthetic_reading()]).tolist() == [1.0]


@pytest.fixture(scope="module")
def untrained():
    data = NumberWords(sizes=(50, 5, 5))
    torch.manual_seed(0)
    config = TransformerConfig(
        vocab_size=len(data.vocabulary),
        d_model=16,
        n_heads=2,
        n_encoder_layers=2,
        n_decoder_layers=3,
        d_ff=32,
    )
    return Transformer(config).eval(), data


def test_read_collects_the_weights_of_all_heads(untrained):
    model, data = untrained
    source, target = data.test[0]
    reading = read(model, data.vocabulary, data.test[0])
    n_source, n_target = len(source) + 1, len(target) + 1
    assert reading.weights["encoder"].shape == (2, 2, n_source, n_source)
    assert reading.weights["decoder"].shape == (3, 2, n_target, n_target)
    assert reading.weights["cross"].shape == (3, 2, n_target, n_source)


def test_leave_one_out_equals_hiding_one_word_at_a_time(untrained):
    """Against a literal loop: one forward pass for every hidden word."""
    model, data = untrained
    pair = data.test[1]
    drop, weights = leave_one_out(model, data.vocabulary, pair)
    source = torch.tensor([data.vocabulary.encode(pair[0], eos=True)])
    target = torch.tensor([data.vocabulary.encode(pair[1], bos=True, eos=True)])
    assert drop.shape == weights.shape == (target.shape[1] - 1, len(pair[0]))

    def log_probability(source):
        steps = model(source, target[:, :-1]).log_softmax(dim=-1)[0]
        return steps[torch.arange(len(steps)), target[0, 1:]]

    with torch.no_grad():
        for hidden in range(len(pair[0])):
            without = source.clone()
            without[0, hidden] = model.config.pad_id
            expected = log_probability(source) - log_probability(without)
            torch.testing.assert_close(drop[:, hidden], expected, atol=1e-5, rtol=0)


def test_rank_correlation_at_known_values():
    """1 - 6 Σd² / (n(n² - 1)), by hand."""
    a = torch.tensor([0.1, 0.7, 0.3, 0.9])
    assert rank_correlation(a, a**3) == pytest.approx(1.0)
    assert rank_correlation(a, -a) == pytest.approx(-1.0)
    swapped = torch.tensor([0.1, 0.3, 0.7, 0.9])  # two neighbors in rank change places: Σd² = 2
    assert rank_correlation(a, swapped) == pytest.approx(1 - 6 * 2 / (4 * 15))
