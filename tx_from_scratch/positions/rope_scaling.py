"""Stretching RoPE: other frequencies for texts longer than those of training, by a factor s = L' / L.

    linear        θ_i / s: all distances shrink                  Chen et al. 2023, arXiv:2306.15595
    NTK-aware     b' = b · s^(d / (d − 2)): the fastest pair stays, the slowest is divided by s
    dynamic NTK   the same with s = max(1, length / L), so that short texts keep what they know
    YaRN          fast pairs stay, slow ones are divided by s, those between in part; scores are
                  sharpened by (0.1 ln s + 1)²                   Peng et al. 2023, arXiv:2309.00071

None of them needs another weight; most need some fine-tuning to be worth it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tx_from_scratch.positions.base import check_sizes, precise_dtype

Frequencies = Float[Tensor, "*rows pairs"]
Length = int | Int[Tensor, "rows 1"]


def rope_frequencies(
    d_head: int, *, base: float | Tensor = 10_000.0, device: torch.device | None = None
) -> Frequencies:
    """θ_i = base^(−2i / d), i = 0, ..., d/2 − 1: how far each pair turns from one position to the next.

    Args:
        d_head: how many dimensions are rotated, an even number.
        base: a number, or one for each row, (rows, 1).
        device: where to compute.

    Returns:
        Radians in float64 where the device has it, (d_head / 2,), or (rows, d_head / 2).

    Raises:
        TypeError, ValueError: `d_head` is not a positive even integer, or `base` is not above 1.

    Source: Su et al. 2021, section 3.2.2, arXiv:2104.09864.
    """
    check_sizes(d_head=d_head)
    if d_head % 2:
        raise ValueError(f"d_head must be even, since dimensions are rotated in pairs, got {d_head}")
    if not isinstance(base, Tensor) and not 1 < base < math.inf:
        raise ValueError(f"base must be a finite number above 1, got {base!r}")
    device = base.device if isinstance(base, Tensor) else (device or torch.device("cpu"))
    exponent = torch.arange(0, d_head, 2, dtype=precise_dtype(device), device=device) / d_head
    return base**-exponent


@dataclass(frozen=True)
class RoPEScaling:
    """How the frequencies change for longer texts. This base class leaves them as they are."""

    def frequencies(
        self, d_head: int, base: float, length: Length | None = None, device: torch.device | None = None
    ) -> Frequencies:
        """The frequencies to use.

        Args:
            d_head: how many dimensions are rotated.
            base: RoPE's own base.
            length: how long the text is going to be, (rows, 1) for rows of different lengths. Only dynamic
                NTK asks for it.
            device: where to compute.

        Returns:
            Radians per position in float64, (d_head / 2,), or (rows, d_head / 2).
        """
        return rope_frequencies(d_head, base=base, device=device)

    @property
    def attention_factor(self) -> float:
        """Multiplies every cosine and sine, so that the scores get its square."""
        return 1.0


@dataclass(frozen=True)
class _ByFactor(RoPEScaling):
    factor: float

    def __post_init__(self) -> None:
        if not 1 <= self.factor < math.inf:
            raise ValueError(
                f"factor must be at least 1, the target over the trained length, got {self.factor}"
            )


@dataclass(frozen=True)
class LinearScaling(_ByFactor):
    """Position interpolation: divide all frequencies by the factor.

    No angle is new, but neighbors stand closer together than they ever did.

    Attributes:
        factor: target length over trained length.

    Source: Chen et al. 2023, arXiv:2306.15595.
    """

    def frequencies(
        self, d_head: int, base: float, length: Length | None = None, device: torch.device | None = None
    ) -> Frequencies:
        return rope_frequencies(d_head, base=base, device=device) / self.factor


def ntk_base(d_head: int, base: float, factor: float | Tensor) -> float | Tensor:
    """base · factor^(d / (d − 2)), with which the slowest pair is exactly `factor` times slower.

    Source: the "NTK-aware" proposal of 2023 (bloc97); Peng et al. 2023, section 3.1, arXiv:2309.00071.
    """
    if d_head < 4:
        raise ValueError(f"d_head must be at least 4, two pairs, to change the base, got {d_head}")
    return base * factor ** (d_head / (d_head - 2))


@dataclass(frozen=True)
class NTKScaling(_ByFactor):
    """NTK-aware scaling: a larger base, which slows a pair down the more, the slower it is.

    Attributes:
        factor: target length over trained length.

    Source: Peng et al. 2023, section 3.1, arXiv:2309.00071.
    """

    def frequencies(
        self, d_head: int, base: float, length: Length | None = None, device: torch.device | None = None
    ) -> Frequencies:
        return rope_frequencies(d_head, base=ntk_base(d_head, base, self.factor), device=device)


@dataclass(frozen=True)
class DynamicNTKScaling(RoPEScaling):
    """NTK-aware scaling by as much as each text needs: nothing up to the trained length.

    The length is that of the whole text, decoded part included, and is fixed before the first key is rotated:
    a base that grows with the text would leave cached keys behind at their old angles. So a cache is told
    how long its texts are going to be (`LanguageModel.start_cache(longest=...)`).

    Attributes:
        trained_length: L.

    Source: Peng et al. 2023, section 3.3, arXiv:2309.00071.
    """

    trained_length: int

    def __post_init__(self) -> None:
        check_sizes(trained_length=self.trained_length)

    def frequencies(
        self, d_head: int, base: float, length: Length | None = None, device: torch.device | None = None
    ) -> Frequencies:
        if length is None:
            raise ValueError("length must be given: dynamic NTK scales each text by its own length")
        if not isinstance(length, Tensor):
            factor = max(1.0, length / self.trained_length)
            return rope_frequencies(d_head, base=ntk_base(d_head, base, factor), device=device)
        precise = length.to(precise_dtype(length.device))
        return rope_frequencies(
            d_head, base=ntk_base(d_head, base, (precise / self.trained_length).clamp_min(1))
        )


@dataclass(frozen=True)
class YaRNScaling(_ByFactor):
    """Leave the pairs that turned often in training, divide those by the factor that turned less than once.

    A pair made r_i = L θ_i / 2π turns within the trained length L. Between r = `slow` and r = `fast` a ramp
    mixes both. The paper's ramp is linear in r. The code published with it, and with it every model trained
    by it, has another: linear in the pair's number i, between the rounded numbers at which r is `fast` and
    `slow`. The end points agree; between them most of the paper's frequencies are lower, for width 128,
    L = 4096 and s = 8 by up to 57 %.

    Attributes:
        factor: target length over trained length, s.
        trained_length: L.
        ramp: "index" for the code's ramp, "rotations" for the paper's.
        fast: pairs with more turns than this stay as they are (β in the paper).
        slow: pairs with fewer turns are divided by the factor (α in the paper).

    Source: Peng et al. 2023, sections 3.2 and 3.4, arXiv:2309.00071.
    """

    trained_length: int
    ramp: Literal["index", "rotations"] = "index"
    fast: float = 32.0
    slow: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(trained_length=self.trained_length)
        if self.ramp not in ("index", "rotations"):
            raise ValueError(f"ramp must be 'index' or 'rotations', got {self.ramp!r}")
        if not 0 < self.slow < self.fast:
            raise ValueError(f"slow must be above 0 and below fast, got slow={self.slow}, fast={self.fast}")

    def frequencies(
        self, d_head: int, base: float, length: Length | None = None, device: torch.device | None = None
    ) -> Frequencies:
        theta = rope_frequencies(d_head, base=base, device=device)
        kept = self.kept(theta, base)
        return theta * kept + theta / self.factor * (1 - kept)

    def kept(self, theta: Frequencies, base: float) -> Frequencies:
        """The share of each pair's own frequency that is kept, 1 for fast pairs, 0 for slow ones."""
        if self.ramp == "rotations":
            turns = self.trained_length * theta / (2 * math.pi)
            return ((turns - self.slow) / (self.fast - self.slow)).clamp(0, 1)
        pairs = theta.shape[-1]
        first = max(math.floor(self._pair_with(self.fast, 2 * pairs, base)), 0)
        last = min(math.ceil(self._pair_with(self.slow, 2 * pairs, base)), 2 * pairs - 1)
        index = torch.arange(pairs, dtype=theta.dtype, device=theta.device)
        # Where both ends fall together the published code steps within a thousandth of a pair.
        return 1 - ((index - first) / max(last - first, 0.001)).clamp(0, 1)

    def _pair_with(self, turns: float, d_head: int, base: float) -> float:
        """The (fractional) number of the pair that makes so many turns within the trained length."""
        return d_head * math.log(self.trained_length / (2 * math.pi * turns)) / (2 * math.log(base))

    @property
    def attention_factor(self) -> float:
        return 0.1 * math.log(self.factor) + 1.0
