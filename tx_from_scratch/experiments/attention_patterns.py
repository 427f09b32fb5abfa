"""What the attention of a trained number-word translator looks at, and what happens when that is taken away.

Rows are queries. In the decoder, row t is the position that has read the words before target word t and
predicts that word; so the row of `drei` is where the decoder stands when it writes `drei`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tx_from_scratch.data import Pair, Vocabulary
from tx_from_scratch.inspection import capture_attention
from tx_from_scratch.number_words import english_words, german_words
from tx_from_scratch.transformer import Transformer

# Single English words and the German ones that translate them. "and" has no counterpart: it stands behind the
# hundreds in English, between units and tens in German.
TRANSLATIONS: dict[str, set[str]] = {
    english_words(n)[-1]: {german_words(n)[-1]} for n in (*range(1, 21), *range(30, 100, 10), 100, 1000)
}
TRANSLATIONS["one"] |= {"ein", "eine"}

KINDS = {
    "encoder": "encoder.*.attention",
    "decoder": "decoder.layers.*.attention",
    "cross": "decoder.*.cross_attention",
}


class Reading(NamedTuple):
    """One pair, with what every head of the model looked at."""

    source: list[str]
    """Words read, `<eos>` last."""
    target: list[str]
    """Words predicted, `<eos>` last."""
    weights: dict[str, Float[Tensor, "layers heads query key"]]
    """By kind: encoder, decoder, cross."""


@torch.no_grad()
def read(model: Transformer, vocabulary: Vocabulary, pair: Pair) -> Reading:
    """Run the model over a pair, the true target given, and collect the attention weights."""
    source, target = _tokens(vocabulary, pair, model.embedding.weight.device)
    with capture_attention(model.eval()) as maps:
        model(source, target[:, :-1])
    weights = {kind: maps.stack(pattern)[:, 0].cpu() for kind, pattern in KINDS.items()}
    return Reading([*pair[0], "<eos>"], [*pair[1], "<eos>"], weights)


def translated(source: Sequence[str], target: Sequence[str]) -> list[tuple[int, int]]:
    """(target position, source position) of every word whose translation is beyond doubt.

    Only words that occur once on each side count: in "three thousand and three" nobody can say which.
    """
    found = []
    for row, word in enumerate(target):
        columns = [i for i, english in enumerate(source) if word in TRANSLATIONS.get(english, ())]
        if len(columns) == 1:
            rows = [i for i, german in enumerate(target) if german in TRANSLATIONS[source[columns[0]]]]
            if rows == [row]:
                found.append((row, columns[0]))
    return found


def aligned_share(readings: Sequence[Reading]) -> Float[Tensor, "layers"]:
    """How often the source word with the largest weight, heads averaged, is the one being translated."""
    hits = []
    for reading in readings:
        weights = reading.weights["cross"].mean(dim=1)  # (layers, query, key)
        hits += [weights[:, row].argmax(dim=-1) == column for row, column in _pairs(reading)]
    return torch.stack(hits).float().mean(dim=0)


def head_patterns(readings: Sequence[Reading]) -> dict[str, dict[str, tuple[NDArray[np.float64], float]]]:
    """For each kind of attention and each pattern: every head's share, (layers, heads), and an even head's.

    Patterns: the position itself, the one before, the one after, the delimiter (`<eos>` of the source,
    `<bos>` of what is written), and in cross-attention the word that is being translated.
    """
    sums: dict[str, dict[str, list[tuple[NDArray[np.float64], float]]]] = {kind: {} for kind in KINDS}
    for reading in readings:
        for kind, weights in reading.weights.items():
            for pattern, cells in _patterns(kind, reading).items():
                rows = cells.any(dim=-1)
                if not rows.any():
                    continue
                share = (weights * cells).sum(dim=-1)[..., rows].mean(dim=-1)
                visible = torch.ones_like(cells).tril() if kind == "decoder" else torch.ones_like(cells)
                even = ((cells & visible).sum(dim=-1) / visible.sum(dim=-1))[rows].mean()
                sums[kind].setdefault(pattern, []).append((share.double().numpy(), float(even)))
    return {
        kind: {
            pattern: (
                np.mean([share for share, _ in found], axis=0),
                float(np.mean([even for _, even in found])),
            )
            for pattern, found in patterns.items()
        }
        for kind, patterns in sums.items()
    }


@torch.no_grad()
def leave_one_out(
    model: Transformer, vocabulary: Vocabulary, pair: Pair
) -> tuple[Float[Tensor, "target source"], Float[Tensor, "target source"]]:
    """What hiding each source word does to each target word, and the attention weights to compare it with.

    A hidden word is turned into padding, which encoder and decoder can't see; the others keep their places.

    Returns:
        The drop of log p(target word), the true words before it given, for every hidden source word; and the
        cross-attention weights of the undisturbed model, averaged over layers and heads. Both leave out the
        `<eos>` of the source.
    """
    source, target = _tokens(vocabulary, pair, model.embedding.weight.device)
    words = len(pair[0])
    sources = source.repeat(words + 1, 1)
    sources[torch.arange(words), torch.arange(words)] = model.config.pad_id
    logits = model.eval()(sources, target[:, :-1].repeat(words + 1, 1))
    chosen = logits.log_softmax(dim=-1).gather(-1, target[:, 1:, None].expand(words + 1, -1, 1))[..., 0]
    drop = (chosen[-1] - chosen[:-1]).mT  # the last row is undisturbed
    weights = read(model, vocabulary, pair).weights["cross"].mean(dim=(0, 1))[:, :words]
    return drop.cpu(), weights


def rank_correlation(a: Float[Tensor, "items"], b: Float[Tensor, "items"]) -> float:
    """Spearman's: the correlation of the ranks; 1 for the same order, -1 for the reverse."""
    ranks = torch.stack([a.argsort().argsort(), b.argsort().argsort()]).double()
    return float(torch.corrcoef(ranks)[0, 1])


def _patterns(kind: str, reading: Reading) -> dict[str, Tensor]:
    """Which cells, (query, key), belong to a pattern."""
    rows, columns = reading.weights[kind].shape[-2:]
    if kind == "cross":
        delimiter, word = torch.zeros(2, rows, columns, dtype=torch.bool)
        delimiter[:, -1] = True
        for row, column in _pairs(reading):
            word[row, column] = True
        return {"delimiter": delimiter, "translated word": word}
    square = torch.ones(rows, columns, dtype=torch.bool)
    delimiter = torch.zeros_like(square)
    delimiter[:, -1 if kind == "encoder" else 0] = True
    patterns = {"itself": _diagonal(square, 0), "the one before": _diagonal(square, -1)}
    if kind == "encoder":
        patterns["the one after"] = _diagonal(square, 1)
    return {**patterns, "delimiter": delimiter}


def _diagonal(square: Tensor, offset: int) -> Tensor:
    return square.triu(offset) & square.tril(offset)


def _pairs(reading: Reading) -> list[tuple[int, int]]:
    return translated(reading.source, reading.target)


def _tokens(vocabulary: Vocabulary, pair: Pair, device: torch.device) -> tuple[Tensor, Tensor]:
    source = torch.tensor([vocabulary.encode(pair[0], eos=True)], device=device)
    target = torch.tensor([vocabulary.encode(pair[1], bos=True, eos=True)], device=device)
    return source, target
