"""Data that needs no download: sequence pairs, their vocabulary, and their batches.

    reverse, copy, sort    a b c -> c b a          generated: a first task for attention
    NumberWords            English -> German       generated from num2words: a first translation task

Every task is made from a seed alone: the same pairs and the same splits in every process and on every
machine. Batches are addressed by number, `batches[step]`, so that whoever knows the step knows the batch:
a resumed run and several processes need no other state.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from tx_from_scratch.number_words import LIMIT, english_words, german_words, number_vocabulary

Words = tuple[str, ...]
Pair = tuple[Words, Words]
"""A source and its target."""
Split = Literal["train", "validation", "test"]
Item = TypeVar("Item")


class Vocabulary:
    """Words and their numbers; the first three are padding, begin of sequence, end of sequence."""

    pad_id, bos_id, eos_id = 0, 1, 2
    SPECIAL = ("<pad>", "<bos>", "<eos>")

    def __init__(self, words: Iterable[str]) -> None:
        """Number the words in the order given, after the special ones; doubles are an error."""
        self.words: Words = (*self.SPECIAL, *words)
        ids = {word: index for index, word in enumerate(self.words)}
        if len(ids) < len(self.words):
            double = next(word for index, word in enumerate(self.words) if ids[word] != index)
            raise ValueError(f"words must be different from each other, got {double!r} twice")
        self._ids = {word: index for word, index in ids.items() if word not in self.SPECIAL}

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} words)"

    def encode(self, words: Iterable[str], *, bos: bool = False, eos: bool = False) -> list[int]:
        """Numbers of the words, between <bos> and <eos> where asked for.

        Raises:
            ValueError: a word is not in the vocabulary, or a special word is written out in the text.
            TypeError: one string instead of a sequence of words.
        """
        if isinstance(words, str):
            raise TypeError(f"words must be a sequence of words, got the string {words!r}; split it first")
        try:
            ids = [self._ids[word] for word in words]
        except KeyError as error:
            raise ValueError(self._unknown(error.args[0])) from None
        return [self.bos_id] * bos + ids + [self.eos_id] * eos

    def decode(self, ids: Tensor | Iterable[int]) -> list[str]:
        """Words up to the first <eos>, without the special ones.

        Raises:
            ValueError: an id is negative or not below the size of the vocabulary.
        """
        words = []
        for index in ids.tolist() if isinstance(ids, Tensor) else ids:
            if not 0 <= index < len(self):
                raise ValueError(f"ids must be at least 0 and below {len(self)}, got {index}")
            if index == self.eos_id:
                break
            if index >= len(self.SPECIAL):
                words.append(self.words[index])
        return words

    def _unknown(self, word: str) -> str:
        close = difflib.get_close_matches(word, self._ids, n=3)
        hint = (
            f"did you mean {' or '.join(map(repr, close))}?" if close else f"words are {', '.join(self._ids)}"
        )
        return f"words must be among the {len(self._ids)} of the vocabulary, got {word!r}; {hint}"


class Batch(NamedTuple):
    """Pairs of about the same length, padded at the right. Sources end, and targets begin and end, marked."""

    source: Int64[Tensor, "batch source"]
    target: Int64[Tensor, "batch target"]

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return self._replace(source=self.source.to(device), target=self.target.to(device))


class LengthBatches:
    """Batches of pairs of about equal length; `batches[i]` is batch i of an endless sequence.

    Pairs are sorted into buckets by the length of their longer side, and batches are cut out of buckets.
    Narrow buckets save padding; wide ones make every batch a fairer sample, since a step on short sentences
    alone makes a model worse at long ones.

    An epoch has `len(batches)` batches and holds every pair once. For every epoch the pairs of a bucket are
    shuffled anew, and so is the order of the batches; both depend on (seed, epoch) alone.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        vocabulary: Vocabulary,
        *,
        max_tokens: int,
        bucket_width: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        """Cut `pairs` into batches.

        Args:
            pairs: sources and targets as words.
            vocabulary: numbers the words.
            max_tokens: how many tokens of the longer side a batch may hold, padding and marks included.
            bucket_width: how many lengths a bucket holds: 1 mixes no lengths, a large number mixes all.
            seed: of the order.
            shuffle: without it, batches go from short to long in every epoch.

        Raises:
            ValueError: no pairs, one alone exceeds max_tokens, or bucket_width is not positive.
        """
        if not pairs:
            raise ValueError("pairs must hold at least one pair, got none")
        if bucket_width < 1:
            raise ValueError(f"bucket_width must be at least 1, got {bucket_width}")
        sources = [vocabulary.encode(source, eos=True) for source, _ in pairs]
        targets = [vocabulary.encode(target, bos=True, eos=True) for _, target in pairs]
        self.seed, self.shuffle = seed, shuffle
        self._source, self._target = _pad(sources, vocabulary.pad_id), _pad(targets, vocabulary.pad_id)
        self._lengths = np.array([(len(s), len(t)) for s, t in zip(sources, targets, strict=True)])
        longest = int(self._lengths.max())
        if longest > max_tokens:
            raise ValueError(f"max_tokens must be at least {longest}, the longest pair, got {max_tokens}")
        # The length that stands for a bucket is its largest: no batch of it can exceed max_tokens.
        upper = (self._lengths.max(axis=1) - 1) // bucket_width * bucket_width + bucket_width
        self._buckets = np.minimum(upper, longest)
        self._bounds = self._cut(max_tokens)
        self._epoch: tuple[int, list[np.ndarray]] | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> Batch:
        """Batch number `index` >= 0 of an endless sequence of epochs."""
        if index < 0:
            raise IndexError(f"index must be at least 0 (batches have no end to count from), got {index}")
        epoch, number = divmod(index, len(self))
        if self._epoch is None or self._epoch[0] != epoch:
            self._epoch = (epoch, self._order(epoch))
        rows = self._epoch[1][number]
        source_length, target_length = self._lengths[rows].max(axis=0)
        return Batch(self._source[rows, :source_length], self._target[rows, :target_length])

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the first epoch."""
        return (self[index] for index in range(len(self)))

    def _cut(self, max_tokens: int) -> list[int]:
        """Where batches begin in the order of buckets, which is the same for every epoch."""
        bounds = [0]
        for row, length in enumerate(np.sort(self._buckets).tolist()):
            if (row + 1 - bounds[-1]) * length > max_tokens:
                bounds.append(row)
        return [*bounds, len(self._buckets)]

    def _order(self, epoch: int) -> list[np.ndarray]:
        """The rows of each batch of an epoch."""
        rng = np.random.default_rng((self.seed, epoch))
        rows = rng.permutation(len(self._buckets)) if self.shuffle else np.arange(len(self._buckets))
        rows = rows[np.argsort(self._buckets[rows], kind="stable")]  # within a bucket they stay shuffled
        batches = np.split(rows, self._bounds[1:-1])
        return [batches[i] for i in rng.permutation(len(batches))] if self.shuffle else batches


class SequencePairs:
    """A task: pairs in three disjoint splits, and the vocabulary that sources and targets share."""

    def __init__(self, pairs: Sequence[Pair], sizes: tuple[int, int, int], vocabulary: Vocabulary) -> None:
        """Split `pairs`, which are distinct and in random order, into train, validation and test."""
        first, second, third = np.cumsum(sizes).tolist()
        self.vocabulary = vocabulary
        self.train, self.validation, self.test = pairs[:first], pairs[first:second], pairs[second:third]

    def __repr__(self) -> str:
        sizes = f"{len(self.train):,} train, {len(self.validation):,} validation, {len(self.test):,} test"
        return f"{type(self).__name__}({sizes}; {len(self.vocabulary)} words)"

    def batches(
        self,
        split: Split = "train",
        *,
        max_tokens: int = 624,
        bucket_width: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> LengthBatches:
        """The pairs of a split in batches; see `LengthBatches`.

        Without a `bucket_width`, shuffled batches mix all lengths, and those in order mix none.
        """
        if split not in ("train", "validation", "test"):
            raise ValueError(f"split must be train, validation or test, got {split!r}")
        pairs: Sequence[Pair] = getattr(self, split)
        if bucket_width is None:
            bucket_width = max_tokens if shuffle else 1
        return LengthBatches(
            pairs,
            self.vocabulary,
            max_tokens=max_tokens,
            bucket_width=bucket_width,
            seed=seed,
            shuffle=shuffle,
        )


RULES: dict[str, Callable[[Words], Words]] = {
    "copy": lambda letters: letters,
    "reverse": lambda letters: letters[::-1],
    "sort": lambda letters: tuple(sorted(letters)),
}


class GeneratedTask(SequencePairs):
    """Random sequences of letters and what a simple rule makes of them: a b c -> c b a."""

    def __init__(
        self,
        rule: Literal["copy", "reverse", "sort"],
        *,
        length: int = 10,
        shortest: int | None = None,
        n_symbols: int = 10,
        sizes: tuple[int, int, int] = (10_000, 1_000, 1_000),
        seed: int = 0,
    ) -> None:
        """Draw distinct sequences and apply the rule.

        Args:
            rule: copy, reverse or sort.
            length: letters in the longest sequence.
            shortest: letters in the shortest one; by default all have `length`.
            n_symbols: how many letters of the alphabet occur, 1 to 26.
            sizes: pairs in train, validation and test.
            seed: of the sequences.

        Raises:
            ValueError: an unknown rule, a size out of range, or fewer sequences exist than are asked for.
        """
        if rule not in RULES:
            raise ValueError(f"rule must be one of {', '.join(RULES)}, got {rule!r}")
        shortest = length if shortest is None else shortest
        if not 1 <= shortest <= length:
            raise ValueError(f"shortest must be at least 1 and at most length={length}, got {shortest}")
        if not 1 <= n_symbols <= 26:
            raise ValueError(f"n_symbols must be at least 1 and at most 26, got {n_symbols}")
        total = _total(sizes)
        available = sum(n_symbols**n for n in range(shortest, length + 1))
        if total > available // 2:
            raise ValueError(f"sizes must add up to at most half of the {available:,} sequences, got {sizes}")
        rng = np.random.default_rng(seed)
        alphabet = np.array(list("abcdefghijklmnopqrstuvwxyz"[:n_symbols]))
        sources: dict[Words, None] = {}
        while len(sources) < total:
            letters = alphabet[rng.integers(n_symbols, size=rng.integers(shortest, length + 1))]
            sources[tuple(letters.tolist())] = None
        pairs = [(source, RULES[rule](source)) for source in _shuffled(sources, rng)]
        super().__init__(pairs, sizes, Vocabulary(alphabet.tolist()))
        self.rule = rule


class NumberWords(SequencePairs):
    """Numbers in English words, and in German ones with compounds taken apart.

        seven hundred and twenty three -> sieben hundert drei und zwanzig

    A number with few digits is as likely as one with many, as far as there are enough of them, so that
    short and long sentences both occur. No number is in two splits.
    """

    def __init__(
        self,
        *,
        low: int = 1,
        high: int = 10**6,
        sizes: tuple[int, int, int] = (13_000, 1_000, 1_000),
        seed: int = 0,
    ) -> None:
        """Draw distinct numbers low <= n < high.

        Args:
            low: the smallest number, at least 1.
            high: above the largest number, at most 10**12.
            sizes: pairs in train, validation and test.
            seed: of the numbers and the splits.

        Raises:
            ValueError: bounds out of range, or fewer numbers exist than are asked for.
        """
        if not 1 <= low < high <= LIMIT:
            raise ValueError(
                f"low and high must satisfy 1 <= low < high <= {LIMIT:,}, got {low:,} and {high:,}"
            )
        total = _total(sizes)
        if total > (high - low) // 2:
            raise ValueError(f"sizes must add up to at most half of the {high - low:,} numbers, got {sizes}")
        rng = np.random.default_rng(seed)
        ranges = [(max(low, 10**k), min(high, 10 ** (k + 1))) for k in range(12)]
        ranges = [(first, end) for first, end in ranges if first < end]
        drawn: dict[int, None] = {}
        while len(drawn) < total:
            first, end = ranges[rng.integers(len(ranges))]
            drawn[int(rng.integers(first, end))] = None
        self.numbers = _shuffled(drawn, rng)
        self.low, self.high = low, high
        pairs = [(tuple(english_words(n)), tuple(german_words(n))) for n in self.numbers]
        super().__init__(pairs, sizes, Vocabulary(number_vocabulary(high)))


def _shuffled(items: Iterable[Item], rng: np.random.Generator) -> list[Item]:
    # What was drawn first is not a fair sample: of the few short ones, most come early.
    ordered = list(items)
    return [ordered[i] for i in rng.permutation(len(ordered))]


def _total(sizes: tuple[int, int, int]) -> int:
    if len(sizes) != 3 or min(sizes) < 0 or sizes[0] < 1:
        raise ValueError(f"sizes must be three counts, train (at least 1), validation and test, got {sizes}")
    return sum(sizes)


def _pad(rows: list[list[int]], pad_id: int) -> Int64[Tensor, "rows longest"]:
    longest = max(map(len, rows))
    return torch.tensor([row + [pad_id] * (longest - len(row)) for row in rows])
