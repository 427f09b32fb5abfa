"""Greedy and beam search: against brute force, against a slow literal search, and at every kind of end."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stub_models import BOS, EOS, PAD, Stub, Written, random_stub, scripted_stub, source_of
from torch import Tensor

from tx_from_scratch.decoding import beam_search, greedy_decode, sequence_log_probability
from tx_from_scratch.transformer import Transformer, TransformerConfig

SEARCHES = [greedy_decode, beam_search]


def log_probabilities(model: Stub, row: int, written: Written) -> list[float]:
    logits = model.logits(row, written)
    total = math.log(sum(math.exp(logit) for logit in logits))
    return [logit - total for logit in logits]


def penalized(total: float, length: int, alpha: float) -> float:
    """Equation 14 of Wu et al. 2016."""
    return total / ((5 + length) ** alpha / (5 + 1) ** alpha)


def best_of_all(model: Stub, row: int, alpha: float, limit: int, vocab_size: int) -> Written:
    """Brute force: every sequence that ends within the limit."""
    scored = []
    for length in range(1, limit + 1):
        for beginning in itertools.product([t for t in range(1, vocab_size) if t != EOS], repeat=length - 1):
            sequence = (*beginning, EOS)
            total = sum(
                log_probabilities(model, row, sequence[:step])[token] for step, token in enumerate(sequence)
            )
            scored.append((penalized(total, length, alpha), sequence))
    return max(scored)[1]


def literal_beam_search(
    model: Stub, row: int, beam_size: int, alpha: float, limit: int
) -> tuple[Written, int]:
    """One row, lists of tuples, no early stop: the answer, and the first step after which it was certain."""
    live: list[tuple[float, Written]] = [(0.0, ())]
    finished: list[tuple[float, Written]] = []
    certain = limit
    for length in range(1, limit + 1):
        grown = [
            (total + step, (*written, token))
            for total, written in live
            for token, step in enumerate(log_probabilities(model, row, written))
            if token != PAD
        ]
        grown = sorted(grown, reverse=True)[: 2 * beam_size]
        finished += [(penalized(total, length, alpha), seq) for total, seq in grown if seq[-1] == EOS]
        live = [(total, sequence) for total, sequence in grown if sequence[-1] != EOS][:beam_size]
        if finished and penalized(live[0][0], limit, alpha) <= max(finished)[0]:
            certain = min(certain, length)
    return (max(finished)[1] if finished else live[0][1]), certain


def rows_of(output: Tensor) -> list[Written]:
    """Each row up to its end; asserts that nothing but padding follows, and that no column is empty."""
    found = []
    for row in output.tolist():
        length = row.index(EOS) + 1 if EOS in row else len([token for token in row if token != PAD])
        assert all(token == PAD for token in row[length:])
        assert PAD not in row[:length]
        found.append(tuple(row[:length]))
    assert max(map(len, found)) == output.shape[1]
    return found


class TestBeamSearch:
    @pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
    @pytest.mark.parametrize("limit", [1, 2, 4])
    def test_wide_beam_equals_brute_force(self, alpha, limit):
        """A beam that drops nothing finds the best of all sequences, whatever the length penalty."""
        model, rows = random_stub(5), list(range(3, 11))
        output = beam_search(
            model, source_of(rows), beam_size=3**limit, length_penalty=alpha, max_new_tokens=limit
        )
        expected = [best_of_all(model, row, alpha, limit, 5) for row in rows]
        assert rows_of(output) == expected

    @given(
        rows=st.lists(st.integers(3, 500), min_size=1, max_size=4),
        vocab_size=st.integers(4, 7),
        beam_size=st.integers(1, 4),
        alpha=st.sampled_from([0.0, 0.3, 0.6, 1.0, 2.0]),
        limit=st.integers(1, 6),
    )
    def test_narrow_beam_equals_the_literal_search(self, rows, vocab_size, beam_size, alpha, limit):
        """A batch gives what each row gives alone, and stops as soon as no row can change any more."""
        model = random_stub(vocab_size)
        output = beam_search(
            model, source_of(rows), beam_size=beam_size, length_penalty=alpha, max_new_tokens=limit
        )
        expected = [literal_beam_search(model, row, beam_size, alpha, limit) for row in rows]
        assert rows_of(output) == [sequence for sequence, _ in expected]
        assert model.steps == max(steps for _, steps in expected)

    def test_a_greater_penalty_never_shortens_the_best(self):
        """Among all sequences: -log p / lp(n)^alpha favors the longer one more, the greater alpha is."""
        model, rows = random_stub(5), list(range(20, 40))
        lengths = [
            [
                len(row)
                for row in rows_of(
                    beam_search(model, source_of(rows), beam_size=27, length_penalty=alpha, max_new_tokens=4)
                )
            ]
            for alpha in (0.0, 0.6, 1.2, 3.0)
        ]
        for shorter, longer in itertools.pairwise(lengths):
            assert all(a <= b for a, b in zip(shorter, longer, strict=True))
        assert sum(lengths[0]) < sum(lengths[-1])

    def test_it_finds_what_greedy_search_misses(self):
        """A hesitant first step pays: 0.4 * 0.9 beats 0.6 * 0.3."""

        def logits(row: int, written: Written) -> list[float]:
            table = {
                (): {3: 0.6, 4: 0.4},
                (3,): {EOS: 0.3, 3: 0.25, 4: 0.25, 5: 0.2},
                (4,): {EOS: 0.9, 3: 0.1},
            }
            chances = table.get(written, {EOS: 1.0})
            return [math.log(chances.get(token, 1e-9)) for token in range(6)]

        source = source_of([3])
        assert rows_of(beam_search(Stub(logits), source, beam_size=2, max_new_tokens=4)) == [(4, EOS)]
        assert rows_of(greedy_decode(Stub(logits), source, max_new_tokens=4)) == [(3, EOS)]

    def test_the_real_model_is_searched_by_its_own_probabilities(self):
        """An exhaustive beam returns the best sequence by `sequence_log_probability` and penalty."""
        config = TransformerConfig(
            vocab_size=5, d_model=12, n_heads=3, d_ff=20, n_encoder_layers=1, n_decoder_layers=2
        )
        model = Transformer(config)
        with torch.no_grad():
            model.embedding.weight.mul_(3)  # far from uniform
        source = torch.tensor([[3, 4, 4, 0], [4, 3, 3, 4], [3, 0, 0, 0]])
        others = [BOS, 3, 4]
        sequences = [
            (*beginning, EOS) for length in range(3) for beginning in itertools.product(others, repeat=length)
        ]
        targets = torch.tensor([sequence + (PAD,) * (3 - len(sequence)) for sequence in sequences])
        for alpha in (0.0, 0.6, 2.0):
            output = beam_search(model, source, beam_size=9, length_penalty=alpha, max_new_tokens=3)
            for row, found in enumerate(rows_of(output)):
                totals = sequence_log_probability(model, source[row].expand(len(targets), -1), targets)
                scores = [
                    penalized(total, len(sequence), alpha)
                    for total, sequence in zip(totals.tolist(), sequences, strict=True)
                ]
                assert found == sequences[scores.index(max(scores))]


class TestGreedyDecoding:
    @given(rows=st.lists(st.integers(3, 500), min_size=1, max_size=5), limit=st.integers(1, 8))
    def test_it_writes_the_most_probable_token(self, rows, limit):
        """Row by row from the definition; it stops as soon as the last row has ended."""
        model, expected = random_stub(5), []
        for row in rows:
            written: Written = ()
            while len(written) < limit and EOS not in written:
                logits = model.logits(row, written)
                written = (*written, max(range(1, 5), key=lambda token: logits[token]))
            expected.append(written)
        output = greedy_decode(model, source_of(rows), max_new_tokens=limit)
        assert rows_of(output) == expected
        assert model.steps == output.shape[1]

    @pytest.mark.parametrize("decode", [greedy_decode, beam_search])
    def test_what_it_writes_can_be_trained_on(self, model, source, decode):
        """Decoding runs in inference mode, whose tensors can't take part in a backward pass; ours can."""
        written = decode(model, source, max_new_tokens=4)
        assert not written.is_inference()
        model(source, written).sum().backward()
        assert model.embedding.weight.grad.isfinite().all()

    def test_it_equals_full_passes_without_a_cache(self, model, tiny, source):
        """The argmax of the whole forward pass at every step, over rows of unequal length."""
        written = torch.full((2, 1), tiny.bos_id)
        with torch.no_grad():
            for _ in range(9):
                logits = model(source, written)[:, -1]
                logits[:, tiny.pad_id] = -torch.inf
                written = torch.cat([written, logits.argmax(dim=-1, keepdim=True)], dim=1)
        output = greedy_decode(model, source, max_new_tokens=9)
        for row in range(2):
            expected = written[row, 1:].tolist()
            if tiny.eos_id in expected:
                expected = expected[: expected.index(tiny.eos_id) + 1]
            assert output[row].tolist()[: len(expected)] == expected
            assert all(token == tiny.pad_id for token in output[row].tolist()[len(expected) :])


@pytest.mark.parametrize("search", SEARCHES)
class TestEnds:
    """A11: rows that end early, late, at once and never."""

    @pytest.mark.parametrize("others", [-20.0, -math.inf])
    def test_rows_end_each_in_its_time(self, search, others):
        scripts = {3: [4, EOS], 4: [5, 5, 4, 4, EOS]}
        output = search(scripted_stub(scripts, others), source_of([3, 4]), max_new_tokens=8)
        assert rows_of(output) == [(4, EOS), (5, 5, 4, 4, EOS)]

    @pytest.mark.parametrize("order", [[3, 4, 5], [5, 3, 4]])
    def test_a_row_may_never_end(self, search, order):
        """Where the end has probability 0, the best unfinished sequence is the answer."""
        expected = {3: (4, EOS), 4: (5, 5, 4, 4, EOS), 5: (3,) * 8}
        scripts = {row: list(script) for row, script in expected.items()}
        output = search(scripted_stub(scripts), source_of(order), max_new_tokens=8)
        assert rows_of(output) == [expected[row] for row in order]

    def test_the_search_stops_when_every_row_has_ended(self, search):
        model = scripted_stub({3: [4, EOS], 4: [5, 5, 4, 4, EOS]})
        output = search(model, source_of([3, 4]), max_new_tokens=40)
        assert output.shape == (2, 5)
        assert model.steps == 5

    @pytest.mark.parametrize("row", [3, 4, 5])
    def test_a_batch_of_one(self, search, row):
        scripts = {3: [EOS], 4: [5, 4, EOS], 5: []}
        output = search(scripted_stub(scripts), source_of([row]), max_new_tokens=4)
        assert rows_of(output) == [{3: (EOS,), 4: (5, 4, EOS), 5: (3, 3, 3, 3)}[row]]

    def test_an_empty_sentence_is_one_end_token(self, search):
        output = search(scripted_stub({3: [EOS], 4: [EOS]}), source_of([3, 4]), max_new_tokens=8)
        assert output.tolist() == [[EOS], [EOS]]

    def test_an_end_at_the_limit_counts(self, search):
        output = search(scripted_stub({3: [4, 4, EOS]}), source_of([3]), max_new_tokens=3)
        assert output.tolist() == [[4, 4, EOS]]

    def test_one_token_at_most(self, search):
        output = search(scripted_stub({3: [4, EOS], 4: [EOS]}), source_of([3, 4]), max_new_tokens=1)
        assert output.tolist() == [[4], [EOS]]

    def test_each_row_has_its_own_limit_by_default(self, search):
        """Section 6.1: source length + 50; padding does not count."""
        output = search(scripted_stub({3: [], 4: []}), source_of([3, 4], [2, 5]))
        assert [len(row) for row in rows_of(output)] == [52, 55]

    def test_padding_is_never_written(self, search):
        """A model that would rather write padding than anything else writes its second choice."""

        def logits(row: int, written: Written) -> list[float]:
            second = 3 if len(written) < 3 else EOS
            return [{PAD: 9.0, second: 8.0}.get(token, -30.0) for token in range(5)]

        assert rows_of(search(Stub(logits), source_of([3]), max_new_tokens=9)) == [(3, 3, 3, EOS)]


@pytest.mark.parametrize("search", SEARCHES)
class TestRealModel:
    def test_rows_do_not_depend_on_their_batch(self, search, model, tiny, tokens):
        """Sources of unequal length, each decoded alone without its padding, and in any order."""
        source = tokens(4, 6)
        for row, length in enumerate((6, 2, 5, 1)):
            source[row, length:] = tiny.pad_id
        together = search(model, source, max_new_tokens=7)
        for row, length in enumerate((6, 2, 5, 1)):
            alone = search(model, source[row : row + 1, :length], max_new_tokens=7)
            assert torch.equal(together[row, : alone.shape[1]], alone[0])
            assert (together[row, alone.shape[1] :] == tiny.pad_id).all()
        assert torch.equal(search(model, source.flip(0), max_new_tokens=7), together.flip(0))

    def test_every_module_gets_its_mode_back(self, search, tiny, source):
        """Dropout rests while decoding; the model is then as it was, half frozen, and also after an error."""
        model = Transformer(TransformerConfig(**{**vars(tiny), "dropout": 0.5})).train()
        model.encoder.eval()
        modes = [module.training for module in model.modules()]
        first, second = search(model, source, max_new_tokens=6), search(model, source, max_new_tokens=6)
        assert torch.equal(first, second)
        assert [module.training for module in model.modules()] == modes
        with pytest.raises(ValueError, match="source must hold ids"):
            search(model, source + 100, max_new_tokens=6)
        assert [module.training for module in model.modules()] == modes
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_tokens_keep_their_type(self, search, model, source):
        output = search(model, source.int(), max_new_tokens=4)
        assert output.dtype == torch.int32
        assert torch.equal(output, search(model, source, max_new_tokens=4))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_other_precisions(self, search, model, source, dtype):
        """No NaN chooses a token, and the whole search runs in the model's own precision."""
        output = search(model.to(dtype), source, max_new_tokens=4)
        assert output.shape[0] == 2
        assert ((output >= 0) & (output < 13)).all()

    def test_arguments_are_left_alone(self, search, model, source):
        before = source.clone()
        search(model, source, max_new_tokens=4)
        assert torch.equal(source, before)


class TestSequenceLogProbability:
    def test_it_sums_the_steps(self, model, tiny, source):
        """Written out token by token from full passes; padding behind the end counts nothing."""
        target = torch.tensor([[3, 9, tiny.eos_id, tiny.pad_id], [5, 2, 0, tiny.eos_id]])
        actual = sequence_log_probability(model, source, target)
        for row, length in enumerate((3, 4)):
            written, total = [tiny.bos_id], 0.0
            for token in target[row, :length].tolist():
                logits = model(source[row : row + 1], torch.tensor([written]))[0, -1]
                total += logits.log_softmax(dim=-1)[token].item()
                written.append(token)
            assert abs(actual[row].item() - total) < 1e-4
        assert not actual.requires_grad

    def test_probabilities_of_all_next_tokens_sum_to_one(self, model, tiny, source):
        """Over all tokens but padding, whose probability is what is missing."""
        others = torch.tensor([[token] for token in range(13) if token != tiny.pad_id])
        totals = sequence_log_probability(model, source[:1].expand(12, -1), others)
        padding = model(source[:1], torch.tensor([[tiny.bos_id]])).softmax(dim=-1)[0, 0, tiny.pad_id]
        torch.testing.assert_close(totals.exp().sum() + padding, torch.tensor(1.0))


@pytest.mark.usefixtures("without_shape_checks")
class TestErrors:
    @pytest.mark.parametrize("search", SEARCHES)
    @pytest.mark.parametrize("limit", [0, -3])
    def test_there_must_be_room(self, search, limit):
        with pytest.raises(ValueError, match=f"max_new_tokens must be a positive integer, got {limit}"):
            search(random_stub(5), source_of([3]), max_new_tokens=limit)

    @pytest.mark.parametrize("search", SEARCHES)
    @pytest.mark.parametrize("limit", [None, 4])
    @pytest.mark.parametrize("shape", [(2, 0), (0, 3), (4,)])
    def test_there_must_be_a_source(self, search, shape, limit):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            search(random_stub(5), torch.zeros(shape, dtype=torch.int64), max_new_tokens=limit)
        assert f"hold at least one token, got {shape}" in str(error.value)

    @pytest.mark.parametrize(
        ("name", "value"), [("beam_size", 0), ("beam_size", -1), ("length_penalty", -0.5)]
    )
    def test_a_beam_has_a_width_and_a_penalty(self, name, value):
        wanted = f"{name} must (be a positive integer|not be negative), got {value}"
        with pytest.raises(ValueError, match=wanted):
            beam_search(random_stub(5), source_of([3]), max_new_tokens=4, **{name: value})
