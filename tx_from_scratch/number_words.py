"""Number words in English and German, and how a German compound comes apart.

    723   seven hundred and twenty-three   siebenhundertdreiundzwanzig

German writes a number below a million as one word and says the units before the tens: three and twenty.
Taken apart, the word is a sentence whose order differs from the English one, which is what makes it
a translation task:

    seven hundred and twenty three  ->  sieben hundert drei und zwanzig

The words of every group of three digits come from num2words; the groups are joined here.
"""

import re
from functools import cache

from num2words import num2words

LIMIT = 10**12
"""Numbers from here on have no words here."""

_ENGLISH_SCALES = ("", "thousand", "million", "billion")
_GERMAN_SCALES = (("", ""), ("tausend", "tausend"), ("Million", "Millionen"), ("Milliarde", "Milliarden"))
_NOUNS = {noun for forms in _GERMAN_SCALES[2:] for noun in forms}

# Round numbers and everything up to twenty are single words; the others are compounds of these pieces.
_PIECES = (
    *(num2words(n, lang="de") for n in (*range(21), *range(30, 100, 10))),
    *("ein", "eine", "und", "hundert", "tausend", *_NOUNS),
)
# The longest piece first: dreizehn (13) is a word of its own and not drei + zehn, eins is not ein + s.
_PIECE = re.compile("|".join(sorted(_PIECES, key=len, reverse=True)))


def split_compound(word: str) -> list[str]:
    """Take a German number word apart: siebenhundertdreiundzwanzig -> sieben hundert drei und zwanzig.

    Spaces separate words that are apart already (eine Million zwei). `join_compound` is the inverse.

    Raises:
        ValueError: some part of the word is no German number word.
    """
    pieces = []
    for part in word.split():
        position = 0
        while position < len(part):
            match = _PIECE.match(part, position)
            if match is None:
                raise ValueError(
                    f"word must be made of German number words, got {part[position:]!r} in {word!r}"
                )
            pieces.append(match.group())
            position = match.end()
    return pieces


def join_compound(pieces: list[str]) -> str:
    """Write the pieces of a German number as German does: one word, and a noun (Million) stands alone."""
    words: list[str] = []
    for index, piece in enumerate(pieces):
        begins_word = index == 0 or piece in _NOUNS or pieces[index - 1] in _NOUNS
        words.append(f" {piece}" if begins_word else piece)
    return "".join(words).strip()


def english_words(n: int) -> list[str]:
    """The English words of n, no hyphens, no commas: 1723 -> one thousand seven hundred and twenty three.

    Raises:
        ValueError: n is negative or LIMIT or above.
    """
    words: list[str] = []
    for scale, group in _groups(n):
        # "one thousand and five", but "one thousand, seven hundred and five": a comma is no word.
        if words and scale == 0 and group < 100:
            words.append("and")
        words += _english_group(group)
        if scale > 0:
            words.append(_ENGLISH_SCALES[scale])
    return words


def german_words(n: int) -> list[str]:
    """The German words of n, compounds taken apart: 1723 -> ein tausend sieben hundert drei und zwanzig.

    One is "eins" where it ends the number, "ein" before another piece, and "eine" before a noun. num2words
    0.5.14 misses that where a group ends in 01 (it has 101,000 as einhunderteinstausend); elsewhere
    `join_compound(german_words(n)) == num2words(n, lang="de")`.

    Raises:
        ValueError: n is negative or LIMIT or above.
    """
    words: list[str] = []
    for scale, group in _groups(n):
        words += _german_group(group)
        if scale > 0:
            if words[-1] == "eins":
                words[-1] = "ein" if scale == 1 else "eine"
            words.append(_GERMAN_SCALES[scale][group > 1])
    return words


def parse_digits(text: str) -> int | None:
    """The number that a person typed in digits (723, 1,000, 12 345); None if it is not in digits."""
    digits = re.sub(r"(?<=[0-9])[ ,_](?=[0-9]{3}(?![0-9]))", "", text.strip())
    return int(digits) if re.fullmatch(r"[+-]?[0-9]{1,30}", digits) else None


def parse_english(text: str) -> list[str]:
    """English words out of what a person typed in words or digits: "twenty-three", "Twenty three", "23".

    Whether the words are known, and whether they make a number, is not checked here.

    Raises:
        ValueError: the text is empty, or its digits make a number outside 0 <= n < LIMIT.
    """
    n = parse_digits(text)
    words = re.findall(r"[^\s,-]+", text.lower()) if n is None else english_words(n)
    if not words:
        raise ValueError(f"text must hold digits (723) or words (seven hundred), got {text!r}")
    return words


def number_vocabulary(high: int) -> list[str]:
    """All English, then all German words that the numbers 1 <= n < high can need, in a fixed order."""
    german = [word for n in _covering(high) for word in german_words(n)]
    return list(dict.fromkeys(english_vocabulary(high) + german))


def english_vocabulary(high: int) -> list[str]:
    """All English words that the numbers 1 <= n < high can need, in a fixed order."""
    return list(dict.fromkeys(word for n in _covering(high) for word in english_words(n)))


def _covering(high: int) -> list[int]:
    """Numbers below `high` that together need every word."""
    small = [n for n in (*range(1, 21), *range(30, 100, 10), 21, 100, 101) if n < high]
    scales = [count * 1000**scale for scale in range(1, 4) for count in (1, 2)]
    return small + [n for n in scales if n < high] + [n + 1 for n in scales if n + 1 < high]


def _groups(n: int) -> list[tuple[int, int]]:
    """(power of 1,000, number below 1,000) from the largest power down, groups of zero left out."""
    if not 0 <= n < LIMIT:
        raise ValueError(f"n must be at least 0 and below {LIMIT:,}, got {n:,}")
    if n == 0:
        return [(0, 0)]
    groups = [(scale, n // 1000**scale % 1000) for scale in (3, 2, 1, 0)]
    return [(scale, group) for scale, group in groups if group]


@cache
def _english_group(n: int) -> tuple[str, ...]:
    return tuple(num2words(n).replace("-", " ").split())


@cache
def _german_group(n: int) -> tuple[str, ...]:
    return tuple(split_compound(num2words(n, lang="de")))
