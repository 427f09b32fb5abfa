"""Attention weights from wherever they were captured, cut to what is asked for, in 16 bits each.

choose      the heads, queries and keys asked for, whatever form the weights come in; nothing is copied before
quantize    weights from 0 to 1 as integers from 0 to 65,535; the error is at most 1 / 131,070
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tx_from_scratch.inspection import AttentionMaps

STEPS = 65_535
ROUNDING = 1e-6
"""What a softmax in fp32 may give above 1."""
ROW_ROUNDING = 0.02
"""What the weights of a query may sum to above 1; in 16 bits a long row misses it by a percent."""

Indices = int | slice | Sequence[int] | None


@dataclass(frozen=True)
class Chosen:
    """Views of the weights to show, and where they stood.

    Attributes:
        layers: for each layer, (heads, query, key), all heads of the model.
        layer_numbers: which layers these are.
        head_numbers: which heads to take of each.
        queries: positions of the queries shown, among `n_queries`.
        keys: positions of the keys shown, among `n_keys`.
        batch: how many sequences there were to choose from.
    """

    layers: list[Tensor]
    layer_numbers: list[int]
    head_numbers: list[int]
    queries: range
    keys: range
    n_queries: int
    n_keys: int
    batch: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(layers, heads, query, key) of what is shown."""
        return len(self.layer_numbers), len(self.head_numbers), len(self.queries), len(self.keys)


def choose(
    weights: Any,
    *,
    pattern: str | None = None,
    row: int = 0,
    layers: Indices = None,
    heads: Indices = None,
    queries: slice | None = None,
    keys: slice | None = None,
) -> Chosen:
    """What to show of the weights; the arguments are those of `AttentionMap`.

    Raises:
        ValueError: the weights have another form, or what is asked for is not among them.
    """
    every = _layers_of(weights, pattern)
    shapes = {tuple(layer.shape) for layer in every}
    if len(shapes) > 1:
        raise ValueError(f"weights must have one shape in all layers, got {sorted(shapes)}")
    batch, n_heads, n_queries, n_keys = shapes.pop()
    if 0 in (batch, n_heads, n_queries, n_keys):
        raise ValueError(
            "weights must hold at least one head, query and key, got (batch, heads, query, key) = "
            f"{(batch, n_heads, n_queries, n_keys)}"
        )
    if isinstance(row, bool) or not isinstance(row, int) or not 0 <= row < batch:
        raise ValueError(f"row must be one of the batch, an integer from 0 to {batch - 1}, got {row!r}")
    layer_numbers = _indices("layers", layers, len(every))
    return Chosen(
        layers=[every[number][row] for number in layer_numbers],
        layer_numbers=layer_numbers,
        head_numbers=_indices("heads", heads, n_heads),
        queries=_window("queries", queries, n_queries),
        keys=_window("keys", keys, n_keys),
        n_queries=n_queries,
        n_keys=n_keys,
        batch=batch,
    )


def quantize(chosen: Chosen) -> NDArray[np.uint16]:
    """The weights that were chosen, (layers, heads, query, key), times 65,535 and rounded.

    Raises:
        ValueError: one of them is NaN, infinite, negative or above 1, or those of a query sum to more than 1.
    """
    result = np.empty(chosen.shape, dtype="<u2")
    across, down = (slice(part.start, part.stop, part.step) for part in (chosen.keys, chosen.queries))
    for layer, number, place in zip(chosen.layers, chosen.layer_numbers, result, strict=True):
        for head, target in zip(chosen.head_numbers, place, strict=True):
            weights = layer[head, down, across].detach().to("cpu", torch.float64).numpy()
            where = f"in layer {number}, head {head}"
            if not np.isfinite(weights).all():
                raise ValueError(f"weights must be finite, got NaN or infinity {where}")
            low, high = float(weights.min()), float(weights.max())
            if low < 0:
                raise ValueError(
                    f"weights must not be negative, got {low:g} {where}; scores, before the softmax, are"
                )
            if high > 1 + ROUNDING:
                raise ValueError(
                    f"weights must be at most 1, got {high:g} {where}; dropout divides weights in training, "
                    "so call model.eval() before you capture them"
                )
            most = float(layer[head, down].detach().to("cpu", torch.float64).sum(dim=-1).max())
            if most > 1 + ROW_ROUNDING:
                raise ValueError(
                    f"weights of a query must sum to 1, or to 0 where it may read nothing, got {most:g} "
                    f"{where}"
                )
            target[...] = np.rint(weights.clip(max=1) * STEPS)
    return result


def dequantize(integers: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The weights again, float32."""
    return (integers / STEPS).astype(np.float32)


def _layers_of(weights: Any, pattern: str | None) -> list[Tensor]:
    """One (batch, heads, query, key) for each layer; views, not copies."""
    if isinstance(weights, AttentionMaps):
        if pattern is None:
            captured = ", ".join(map(repr, weights)) or "nothing yet"
            raise ValueError(
                "pattern must say which attention to show, such as 'encoder.layers.*.attention'; "
                f"captured: {captured}"
            )
        # On the meta device tensors have shapes and no content: the checks of `stack`, without its copy.
        paths = {path: [call.to("meta") for call in calls] for path, calls in weights.items()}
        AttentionMaps(paths).stack(pattern)
        return [calls[0] for path, calls in weights.items() if fnmatchcase(path, pattern)]
    if pattern is not None:
        raise ValueError(
            f"pattern goes with the output of capture_attention, got {pattern!r} with weights of type "
            f"{type(weights).__name__}"
        )
    if isinstance(weights, list | tuple) and any(isinstance(layer, Tensor | np.ndarray) for layer in weights):
        layers = [_tensor(layer) for layer in weights]
        for number, layer in enumerate(layers):
            if layer.ndim != 4:
                raise ValueError(
                    "weights, given as a list, must hold a (batch, heads, query, key) for each layer, got "
                    f"{tuple(layer.shape)} for layer {number}"
                )
        return layers
    whole = _tensor(weights)
    if whole.ndim not in (4, 5):
        raise ValueError(
            "weights must have shape (layers, heads, query, key) or (layers, batch, heads, query, key), got "
            f"{tuple(whole.shape)}"
        )
    if not len(whole):
        raise ValueError("weights must hold at least one layer, got none")
    return list(whole[:, None] if whole.ndim == 4 else whole)


def _tensor(weights: Any) -> Tensor:
    """A real tensor that shares the memory of what was given, where there is any to share."""
    try:
        tensor = weights if isinstance(weights, Tensor) else torch.as_tensor(np.asarray(weights))
    except (TypeError, ValueError) as error:
        raise ValueError(
            "weights must be a tensor, an array, a list of one tensor for each layer, or the output of "
            f"capture_attention, got {type(weights).__name__}: {error}"
        ) from None
    if tensor.is_complex():
        raise ValueError(f"weights must be real, got {tensor.dtype}")
    return tensor


def _indices(name: str, chosen: Indices, count: int) -> list[int]:
    """Which of `count` are meant; negative ones count from the end."""
    if chosen is None:
        return list(range(count))
    if isinstance(chosen, slice):
        numbers = list(range(count)[chosen])
    else:
        given = [chosen] if isinstance(chosen, int) else list(chosen)
        if any(isinstance(number, bool) or not isinstance(number, int | np.integer) for number in given):
            raise ValueError(f"{name} must be integers or a slice, got {chosen!r}")
        if any(not -count <= number < count for number in given):
            raise ValueError(f"{name} must be from 0 to {count - 1}, got {chosen!r}")
        numbers = [int(number) % count for number in given]
    if not numbers:
        raise ValueError(f"{name} must choose at least one of {count}, got {chosen!r}")
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{name} must choose each at most once, got {chosen!r}")
    return numbers


def _window(name: str, part: slice | None, count: int) -> range:
    if part is None:
        return range(count)
    if not isinstance(part, slice):
        raise ValueError(f"{name} must be a slice, such as slice(0, 100), got {part!r}")
    if part.step is not None and part.step < 1:
        raise ValueError(f"{name} must go forward, got a slice with step {part.step}")
    chosen = range(count)[part]
    if not chosen:
        raise ValueError(f"{name} must choose at least one of {count}, got {part}")
    return chosen
