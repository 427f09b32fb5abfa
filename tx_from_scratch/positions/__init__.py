"""Positions: what tells attention where a token stands. Each scheme acts in one place, and only there.

    scheme                    acts on            module            source
    SinusoidalPositions       embeddings         absolute.py       Vaswani et al. 2017, arXiv:1706.03762
    LearnedPositions          embeddings         absolute.py       Gehring et al. 2017, arXiv:1705.03122
    ShawRelativePositions     scores, values     relative.py       Shaw et al. 2018, arXiv:1803.02155
    TransformerXLPositions    scores             relative.py       Dai et al. 2019, arXiv:1901.02860
    T5RelativeBias            scores             bias.py           Raffel et al. 2019, arXiv:1910.10683
    RotaryEmbedding           queries, keys      rotary.py         Su et al. 2021, arXiv:2104.09864
    ALiBi                     scores             bias.py           Press et al. 2021, arXiv:2108.12409
    NoPositions               nothing            absolute.py       Haviv et al. 2022, arXiv:2203.16634

What a scheme may do is defined in base.py; how RoPE is stretched to longer texts, in rope_scaling.py.
"""

from tx_from_scratch.positions.absolute import (
    LearnedPositions,
    NoPositions,
    SinusoidalPositions,
    sinusoidal_table,
)
from tx_from_scratch.positions.base import LayerPositions, Places, PositionScheme, row_positions
from tx_from_scratch.positions.bias import ALiBi, T5RelativeBias, alibi_slopes, t5_bucket
from tx_from_scratch.positions.relative import (
    ShawRelativePositions,
    TransformerXLPositions,
    relative_shift,
)
from tx_from_scratch.positions.rope_scaling import (
    DynamicNTKScaling,
    LinearScaling,
    NTKScaling,
    RoPEScaling,
    YaRNScaling,
    rope_frequencies,
)
from tx_from_scratch.positions.rotary import RotaryEmbedding, half_split_order, rotate

__all__ = [
    "ALiBi",
    "DynamicNTKScaling",
    "LayerPositions",
    "LearnedPositions",
    "LinearScaling",
    "NTKScaling",
    "NoPositions",
    "Places",
    "PositionScheme",
    "RoPEScaling",
    "RotaryEmbedding",
    "ShawRelativePositions",
    "SinusoidalPositions",
    "T5RelativeBias",
    "TransformerXLPositions",
    "YaRNScaling",
    "alibi_slopes",
    "half_split_order",
    "relative_shift",
    "rope_frequencies",
    "rotate",
    "row_positions",
    "sinusoidal_table",
    "t5_bucket",
]
