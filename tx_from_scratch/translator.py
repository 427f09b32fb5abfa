"""A trained number-word translator: model, vocabulary, and where they came from, in one file."""

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.resources import as_file, files
from typing import Any

import torch
from torch import Tensor

from tx_from_scratch.checkpointing import load_checkpoint, save_checkpoint
from tx_from_scratch.data import LengthBatches, Vocabulary
from tx_from_scratch.decoding import beam_search, greedy_decode
from tx_from_scratch.number_words import english_vocabulary, parse_digits, parse_english
from tx_from_scratch.transformer import Transformer, TransformerConfig

MAX_NEW_TOKENS = 64
"""No number below 10**12 needs as many German words."""
LONGEST = 60
"""Characters of a wrong word that an error message repeats."""


class Translator:
    """Translates numbers, in digits or English words, into German words.

    `Translator.pretrained()` is the one that comes with this package.
    """

    def __init__(
        self,
        model: Transformer,
        vocabulary: Vocabulary,
        *,
        high: int,
        provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """Bind a model to its words.

        Args:
            model: trained on `vocabulary`.
            vocabulary: of source and target.
            high: the model was trained on numbers below this.
            provenance: how it was made; plain values only.
        """
        if len(vocabulary) != model.config.vocab_size:
            needed = model.config.vocab_size
            raise ValueError(f"vocabulary must have the model's {needed} words, got {len(vocabulary)}")
        for name, value in (provenance or {}).items():
            if type(value) not in (str, int, float, bool):  # a subclass of str would not be loaded again
                raise ValueError(f"provenance must hold plain values, got {type(value)} for {name!r}")
        self.model, self.vocabulary, self.high = model, vocabulary, high
        # The model's own vocabulary holds German words too, which are no source.
        self._source_words = Vocabulary(english_vocabulary(high))
        self.provenance = dict(provenance or {})

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Numbers as digits or English words -> source tokens, (batch, source), padded.

        Raises:
            ValueError: a text is empty, or holds a word that is not in the vocabulary, or digits of a number
                that the model was not trained for.
        """
        if isinstance(texts, str) or not texts:
            raise ValueError(f"texts must be a sequence of at least one text, got {texts!r}")
        rows = [self.vocabulary.encode(self._words(text), eos=True) for text in texts]
        longest = max(map(len, rows))
        padded = [row + [self.vocabulary.pad_id] * (longest - len(row)) for row in rows]
        return torch.tensor(padded, device=self.model.embedding.weight.device)

    def translate(self, texts: Sequence[str], *, beam_size: int = 1) -> list[list[str]]:
        """The German words of each text: ["723"] -> [["sieben", "hundert", "drei", "und", "zwanzig"]].

        Args:
            texts: numbers as digits or English words.
            beam_size: 1 decodes greedily, more by beam search.

        Raises:
            ValueError: as for `encode`, or beam_size below 1.
        """
        if beam_size < 1:
            raise ValueError(f"beam_size must be at least 1, got {beam_size}")
        source = self.encode(texts)
        if beam_size == 1:
            tokens = greedy_decode(self.model, source, max_new_tokens=MAX_NEW_TOKENS)
        else:
            tokens = beam_search(self.model, source, beam_size=beam_size, max_new_tokens=MAX_NEW_TOKENS)
        return [self.vocabulary.decode(row) for row in tokens]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the translator to a file, whole or not at all."""
        content = {
            "kind": "translator",
            "config": asdict(self.model.config),
            "words": list(self.vocabulary.words[len(Vocabulary.SPECIAL) :]),
            "high": self.high,
            "weights": {name: weight.detach().cpu() for name, weight in self.model.state_dict().items()},
            "provenance": self.provenance,
        }
        save_checkpoint(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> "Translator":
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file holds something else.
        """
        content = load_checkpoint(path, kind="translator", device=device)
        model = Transformer(TransformerConfig(**content["config"])).to(device)
        model.load_state_dict(content["weights"])
        vocabulary = Vocabulary(content["words"])
        return cls(model.eval(), vocabulary, high=content["high"], provenance=content["provenance"])

    @classmethod
    def pretrained(cls, *, device: torch.device | str = "cpu") -> "Translator":
        """The translator of numbers below 10**6 that comes with this package."""
        with as_file(files("tx_from_scratch") / "checkpoints" / "number_words.pt") as path:
            return cls.load(path, device=device)

    def _words(self, text: str) -> list[str]:
        if not isinstance(text, str):
            raise TypeError(f"texts must hold strings, such as '723', got {text!r}")
        n = parse_digits(text)
        if n is not None and not 1 <= n < self.high:
            raise ValueError(f"text must be a number from 1 to {self.high - 1:,}, got {text.strip()}")
        if not any(map(str.isalnum, text)):
            text = text[:LONGEST]  # holds no word; the beginning says enough
        # No known word is that long: cut, it is as unknown as before, and fits into the message.
        words = [word if len(word) <= LONGEST else f"{word[:LONGEST]}…" for word in parse_english(text)]
        self._source_words.encode(words)
        return words


def exact_match(model: Transformer, batches: LengthBatches) -> float:
    """Share of an epoch's pairs whose target greedy decoding gets right to the last token."""
    right = total = 0
    for batch in batches:
        moved = batch.to(model.embedding.weight.device)
        wanted = moved.target[:, 1:]
        written = greedy_decode(model, moved.source, max_new_tokens=wanted.shape[1])
        missing = wanted.shape[1] - written.shape[1]
        written = torch.nn.functional.pad(written, (0, missing), value=model.config.pad_id)
        right += int((written == wanted).all(dim=1).sum())
        total += len(wanted)
    return right / total


def machine() -> dict[str, str]:
    """Versions and hardware, for a record of how something was made."""
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": str(torch.get_num_threads()),
    }
