"""Weights and tokens for the tests of the attention map."""

from __future__ import annotations

import torch
from torch import Tensor

HOSTILE = [
    *[
        "<s>",
        "</s>",
        "a<b<c",
        "&amp;",
        '"q"',
        "<img src=x onerror=alert(1)>",
        "▁the",
        " ",
        "\n",
        "🙂",
        "\u202eabc",
    ],
    *[
        "</script>",
        "</SCRIPT >",
        "<!--<script>",
        "",
        "\t",
        " two  words ",
        "a\nb\n",
        "\u0301",
        "\u200b",
        "אבג",
        "$x$",
    ],
]


def softmax(*shape: int) -> Tensor:
    """Random attention weights."""
    return torch.randn(*shape).mul(2).softmax(dim=-1)


def names(count: int, prefix: str = "t") -> list[str]:
    """So many different tokens."""
    return [f"{prefix}{index}" for index in range(count)]
