"""The generated tasks, the number words, the vocabulary, and the batches."""

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from num2words import num2words

from tx_from_scratch.data import GeneratedTask, LengthBatches, NumberWords, Vocabulary
from tx_from_scratch.number_words import (
    english_words,
    german_words,
    join_compound,
    number_vocabulary,
    parse_digits,
    parse_english,
    split_compound,
)

UNITS = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
TEENS = [
    "zehn",
    "elf",
    "zwölf",
    "dreizehn",
    "vierzehn",
    "fünfzehn",
    "sechzehn",
    "siebzehn",
    "achtzehn",
    "neunzehn",
]
TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]


@pytest.fixture(scope="module")
def numbers() -> NumberWords:
    return NumberWords()


@pytest.fixture(scope="module")
def few_numbers() -> NumberWords:
    return NumberWords(sizes=(1_500, 300, 200))


def german_by_grammar(n: int) -> list[str]:
    """The pieces of 1 <= n < 1,000, built up from the digits instead of taken out of the word."""
    hundreds, rest = divmod(n, 100)
    pieces = [["ein", *UNITS[1:]][hundreds - 1], "hundert"] if hundreds else []
    if rest >= 20:
        tens, units = divmod(rest, 10)
        pieces += [["ein", *UNITS[1:]][units - 1], "und"] if units else []
        return [*pieces, TENS[tens - 2]]
    if rest >= 10:
        return [*pieces, TEENS[rest - 10]]
    return [*pieces, UNITS[rest - 1]] if rest else pieces


def test_compounds_come_apart_as_the_grammar_says():
    """All 999 words of a group of three digits; the expected pieces never touch num2words."""
    for n in range(1, 1_000):
        assert split_compound(num2words(n, lang="de")) == german_by_grammar(n)


@given(n=st.integers(0, 10**12 - 1))
@settings(max_examples=1_500)
def test_joined_german_is_what_num2words_writes(n):
    """num2words is the oracle; where a group ends in 01 it writes eins for ein, which is mended here."""
    joined = join_compound(german_words(n))
    theirs = num2words(n, lang="de")
    assert join_compound(split_compound(theirs)) == theirs
    for scale in range(1, 4):
        if (group := n // 1000**scale % 1000) % 100 == 1 and group > 1:
            theirs = theirs.replace("einstausend", "eintausend")
            theirs = theirs.replace("eins Million", "eine Million").replace("eins Milliard", "eine Milliard")
    assert joined == theirs


def test_mended_numbers_below_a_million_are_those_with_thousands_ending_in_01():
    differing = [
        n for n in range(1_000, 10**6, 500) if join_compound(german_words(n)) != num2words(n, lang="de")
    ]
    assert differing == [t * 1_000 + r for t in range(101, 1_000, 100) for r in (0, 500)]
    assert join_compound(german_words(101_000)) == "einhunderteintausend"


@given(n=st.integers(0, 10**12 - 1))
@settings(max_examples=500)
def test_english_is_what_num2words_writes_without_hyphens_and_commas(n):
    assert english_words(n) == num2words(n).replace(",", "").replace("-", " ").split()
    assert english_words(n) == parse_english(num2words(n)) == parse_english(str(n)) == parse_english(f"{n:,}")


@pytest.mark.parametrize(
    ("n", "german"),
    [
        (1, "eins"),
        (21, "ein und zwanzig"),
        (101, "ein hundert eins"),
        (723, "sieben hundert drei und zwanzig"),
        (1_001, "ein tausend eins"),
        (616_017, "sechs hundert sechzehn tausend siebzehn"),
        (1_000_000, "eine Million"),
        (21_000_001, "ein und zwanzig Millionen eins"),
        (2_000_000_030, "zwei Milliarden dreißig"),
    ],
)
def test_german_pieces(n, german):
    assert german_words(n) == german.split()


def test_every_word_is_in_the_vocabulary_of_its_range():
    for high in (1_000, 10**6, 10**9, 10**12):
        words = number_vocabulary(high)
        assert len(words) == len(set(words))
        sample = (*range(1, 1_200), *(int(high * k / 997) for k in range(1, 997)))
        used = {w for n in sample if n < high for w in (*english_words(n), *german_words(n))}
        assert used <= set(words)
    assert "Million" not in number_vocabulary(10**6)


@pytest.mark.parametrize("text", ["1,00", "7-up", "12.5", "one", "1 2"])
def test_what_is_no_whole_number_in_digits(text):
    assert parse_digits(text) is None


@pytest.mark.parametrize(("text", "n"), [("723", 723), (" 1,000 ", 1_000), ("12 345", 12_345), ("-5", -5)])
def test_digits(text, n):
    assert parse_digits(text) == n


@pytest.mark.parametrize("n", [-1, 10**12])
@pytest.mark.usefixtures("without_shape_checks")
def test_numbers_without_words(n):
    with pytest.raises(ValueError, match=r"n must be at least 0 and below 1,000,000,000,000, got"):
        german_words(n)


@pytest.mark.usefixtures("without_shape_checks")
def test_split_compound_names_what_is_no_number():
    with pytest.raises(ValueError, match="'blau' in 'dreiundblau'"):
        split_compound("dreiundblau")


def test_vocabulary_round_trip():
    vocabulary = Vocabulary(["drei", "und", "zwanzig"])
    ids = vocabulary.encode(["drei", "und", "zwanzig"], bos=True, eos=True)
    assert ids == [1, 3, 4, 5, 2]
    assert vocabulary.decode(torch.tensor([*ids, 0, 0, 4])) == ["drei", "und", "zwanzig"]
    assert vocabulary.decode([2, 3]) == []


@pytest.mark.usefixtures("without_shape_checks")
def test_vocabulary_names_the_unknown_word_and_close_ones():
    vocabulary = NumberWords(sizes=(10, 1, 1)).vocabulary
    with pytest.raises(ValueError, match="'sevn'; did you mean 'seven'"):
        vocabulary.encode(["sevn"])
    with pytest.raises(ValueError, match="<eos>"):
        vocabulary.encode(["<eos>"])
    with pytest.raises(TypeError, match="split it first"):
        vocabulary.encode("seven")
    with pytest.raises(ValueError, match="below 64, got 64"):
        vocabulary.decode([64])
    with pytest.raises(ValueError, match="got -1"):
        vocabulary.decode([-1])
    with pytest.raises(ValueError, match="'a' twice"):
        Vocabulary(["a", "b", "a"])


def test_splits_are_disjoint_and_complete(numbers):
    assert (len(numbers.train), len(numbers.validation), len(numbers.test)) == (13_000, 1_000, 1_000)
    assert len(set(numbers.train) | set(numbers.validation) | set(numbers.test)) == 15_000
    assert all(1 <= n < 10**6 for n in numbers.numbers)
    assert {len(str(n)) for n in numbers.numbers[-1_000:]} >= {2, 3, 4, 5, 6}


def test_pairs_belong_to_their_numbers(numbers):
    pairs = (*numbers.train, *numbers.validation, *numbers.test)
    assert all(
        (list(source), list(target)) == (english_words(n), german_words(n))
        for n, (source, target) in zip(numbers.numbers, pairs, strict=True)
    )


def test_splits_are_the_same_in_every_process(numbers):
    """The shipped model is only tested on unseen numbers as long as this never changes."""
    code = (
        "import hashlib; from tx_from_scratch.data import NumberWords;"
        "print(hashlib.sha256(str(NumberWords().numbers).encode()).hexdigest())"
    )
    digest = hashlib.sha256(str(numbers.numbers).encode()).hexdigest()
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert run.stdout.strip() == digest, run.stderr
    assert digest.startswith("87d4f2e34830783a")


def test_another_seed_makes_other_splits(numbers):
    assert NumberWords(seed=1).numbers != numbers.numbers


@pytest.mark.parametrize(
    ("rule", "target"),
    [("copy", tuple), ("reverse", lambda s: s[::-1]), ("sort", lambda s: tuple(sorted(s)))],
)
def test_generated_tasks_follow_their_rule(rule, target):
    task = GeneratedTask(rule, length=7, shortest=4, n_symbols=5, sizes=(200, 30, 20), seed=3)
    pairs = task.train + task.validation + task.test
    assert len(set(pairs)) == 250
    assert all(after == target(before) for before, after in pairs)
    assert {len(before) for before, _ in pairs} == {4, 5, 6, 7}
    assert (
        pairs
        == (
            again := GeneratedTask(rule, length=7, shortest=4, n_symbols=5, sizes=(200, 30, 20), seed=3)
        ).train
        + again.validation
        + again.test
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "shuffle"}, "copy, reverse, sort, got 'shuffle'"),
        ({"rule": "copy", "length": 0}, "length=0, got 0"),
        ({"rule": "copy", "length": 3, "shortest": 4}, "length=3, got 4"),
        ({"rule": "copy", "n_symbols": 27}, "at most 26, got 27"),
        ({"rule": "copy", "length": 2, "n_symbols": 3}, "half of the 9 sequences"),
        ({"rule": "copy", "sizes": (0, 1, 1)}, "sizes must be three counts"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_generated_task_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        GeneratedTask(**arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 0}, "got 0 and"),
        ({"high": 10**12 + 1}, "1 <= low < high"),
        ({"high": 20_000}, "half of the 19,999"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_number_words_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        NumberWords(**arguments)


def rows(batches: LengthBatches, epoch: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """All pairs of an epoch as token ids without padding."""
    first = epoch * len(batches)
    return [
        (tuple(s[s > 0].tolist()), tuple(t[t > 0].tolist()))
        for index in range(first, first + len(batches))
        for s, t in zip(*batches[index], strict=True)
    ]


def test_an_epoch_holds_every_pair_once(few_numbers):
    batches = few_numbers.batches(max_tokens=500, seed=7)
    expected = sorted(
        (
            tuple(few_numbers.vocabulary.encode(source, eos=True)),
            tuple(few_numbers.vocabulary.encode(target, bos=True, eos=True)),
        )
        for source, target in few_numbers.train
    )
    assert sorted(rows(batches, 0)) == sorted(rows(batches, 1)) == expected
    assert rows(batches, 0) != rows(batches, 1)


@pytest.mark.parametrize(("bucket_width", "low", "high"), [(1, 0.02, 0.1), (4, 0.1, 0.16), (100, 0.2, 0.4)])
def test_batches_keep_to_their_size_and_their_bucket(few_numbers, bucket_width, low, high):
    """Narrow buckets waste little; no batch holds lengths of two buckets but those cut across the border."""
    batches = few_numbers.batches(max_tokens=200, bucket_width=bucket_width)
    padding = total = mixed = 0
    for batch in batches:
        assert max(batch.source.numel(), batch.target.numel()) <= 200
        assert batch.source.ne(0).any(dim=0).all()
        assert batch.target.ne(0).any(dim=0).all()
        lengths = torch.maximum(batch.source.ne(0).sum(dim=1), batch.target.ne(0).sum(dim=1))
        mixed += len(((lengths - 1) // bucket_width).unique()) > 1
        padding += int(batch.target.eq(0).sum() + batch.source.eq(0).sum())
        total += batch.target.numel() + batch.source.numel()
    buckets = -(-13 // bucket_width)
    assert mixed < buckets
    assert low < padding / total < high


def test_a_batch_depends_on_its_number_alone(few_numbers):
    """Backwards, from another object: the same batches."""
    one, other = (few_numbers.batches(max_tokens=900, seed=4) for _ in range(2))
    indices = [0, 1, len(one) - 1, len(one), 5 * len(one) + 3]
    forward = [one[i] for i in indices]
    backward = [other[i] for i in reversed(indices)]
    for a, b in zip(forward, reversed(backward), strict=True):
        assert torch.equal(a.source, b.source)
        assert torch.equal(a.target, b.target)
    assert not torch.equal(few_numbers.batches(max_tokens=900, seed=5)[0].source, one[0].source)


def test_without_shuffling_lengths_rise(few_numbers):
    lengths = [
        max(b.source.shape[1], b.target.shape[1])
        for b in few_numbers.batches("test", max_tokens=90, shuffle=False)
    ]
    assert lengths == sorted(lengths)


@pytest.mark.usefixtures("without_shape_checks")
def test_batches_errors(few_numbers):
    with pytest.raises(ValueError, match=r"max_tokens must be at least \d+, the longest pair, got 5"):
        few_numbers.batches(max_tokens=5)
    with pytest.raises(ValueError, match="train, validation or test, got 'dev'"):
        few_numbers.batches("dev")
    with pytest.raises(IndexError, match="got -1"):
        few_numbers.batches()[-1]
    with pytest.raises(ValueError, match="bucket_width must be at least 1, got 0"):
        few_numbers.batches(bucket_width=0)
    with pytest.raises(ValueError, match="at least one pair"):
        LengthBatches([], few_numbers.vocabulary, max_tokens=10)
