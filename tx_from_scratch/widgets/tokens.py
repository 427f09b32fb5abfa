"""Tokens as people can read them: what is invisible gets a mark. The browser's half is kit/tokens.js."""

from __future__ import annotations

import unicodedata

MARKS = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍", "\u00a0": "⍽"}
BLANKS = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and symbols without ink."""
JOINERS = "\u200c\u200d"
"""They shape the letters and emoji between which they stand; alone, or at an end, they show nothing."""


def visible(token: str, most: int | None = None) -> str:
    """The token with marks for what can't be seen, such as spaces and direction characters; ∅ when empty.

    Args:
        token: any text.
        most: characters to keep; what is longer ends in "…".
    """
    text = "".join(
        _mark(character)
        if is_invisible(character) and not (character in JOINERS and 0 < index < len(token) - 1)
        else character
        for index, character in enumerate(token)
    )
    if not token:
        text = "∅"
    elif unicodedata.category(text[0]).startswith("M"):
        text = f"◌{text}"  # an accent needs a letter to stand on
    return text if most is None or len(text) <= most else f"{text[: most - 1]}…"


def is_invisible(character: str) -> bool:
    """Whether a character has no ink of its own, or changes the direction of others."""
    return character in BLANKS or unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zs", "Zl", "Zp")


def _mark(character: str) -> str:
    return MARKS.get(character) or f"⟨{ord(character):04X}⟩"
