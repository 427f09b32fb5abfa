"""Interactive figures: they compute in the browser, on a static page as in JupyterLab.

SoftmaxSaturation   why attention divides by sqrt(d_k)
SinusoidalTable     positions as clock hands, and what one wrong exponent breaks
AttentionMap        where every token looks, in every layer and head
Visibility          who may attend to whom, what that costs, how far information travels
Complexity          what attention, recurrence and convolution cost, and where they meet
RoPEExplorer        which angles longer texts bring, how scaling takes them back, what scores make of it
BiasExplorer        what position schemes add to scores, by distance, and what that attends to
"""

from tx_from_scratch.widgets.attention_map import AttentionMap
from tx_from_scratch.widgets.bias_explorer import BiasExplorer
from tx_from_scratch.widgets.complexity import Complexity
from tx_from_scratch.widgets.rope_explorer import RoPEExplorer
from tx_from_scratch.widgets.sinusoidal_table import SinusoidalTable
from tx_from_scratch.widgets.softmax_saturation import SoftmaxSaturation
from tx_from_scratch.widgets.visibility import Visibility

__all__ = [
    "AttentionMap",
    "BiasExplorer",
    "Complexity",
    "RoPEExplorer",
    "SinusoidalTable",
    "SoftmaxSaturation",
    "Visibility",
]
