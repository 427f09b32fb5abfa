"""Random numbers from a counter: number i of a seed is a hash of both, and depends on none before it.

The widgets make the same numbers in the browser (widgets/kit/random.js), so a reader without Python and the
library see the same samples. The hash is "lowbias32", found and put into the public domain by Chris Wellons
(2018); it is a permutation of the 32-bit integers, so no number of a seed occurs twice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def _hash(value: NDArray[np.uint32]) -> NDArray[np.uint32]:
    value = (value ^ (value >> np.uint32(16))) * np.uint32(0x7FEB352D)
    value = (value ^ (value >> np.uint32(15))) * np.uint32(0x846CA68B)
    return value ^ (value >> np.uint32(16))


def uniforms(seed: int, count: int) -> NDArray[np.float64]:
    """`count` numbers in (0, 1), never 0 or 1, all different, (count,)."""
    start = _hash(np.array([(seed + 0x9E3779B9) % 2**32], dtype=np.uint32))
    index = np.arange(count, dtype=np.uint32)
    return (_hash(start + index) + 0.5) / 2**32


def normals(seed: int, count: int) -> NDArray[np.float32]:
    """`count` numbers of the standard normal distribution, float32, (count,) (Box & Muller 1958)."""
    uniform = uniforms(seed, count + count % 2).reshape(-1, 2)
    radius, angle = np.sqrt(-2 * np.log(uniform[:, 0])), 2 * np.pi * uniform[:, 1]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return pairs.reshape(-1)[:count].astype(np.float32)
