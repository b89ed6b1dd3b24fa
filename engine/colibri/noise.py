# SPDX-License-Identifier: MIT
"""Seeded numbers that are equal on every machine: SplitMix64 over a counter, integer normals.

numpy's generators may change between versions and libm differs between systems; what a seed
means here is fixed by integer arithmetic and one exact product.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_BLOCK = 1 << 16
# Sum of four bytes: mean 510, variance 4 * (256**2 - 1) / 12.
_BYTE_MEAN = np.int16(510)
_BYTE_SCALE = np.float32(float.fromhex("0x1.bb67aep-8"))
# Sum of four 16-bit words: mean 131070, variance 4 * (65536**2 - 1) / 12.
_WORD_MEAN = np.int32(131070)
_WORD_SCALE = np.float32(float.fromhex("0x1.bb67aep-16"))


def stream_seed(seed: int, name: str) -> int:
    """A seed of its own for each named tensor of a model."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little")


def splitmix64(seed: int, start: int, count: int) -> npt.NDArray[np.uint64]:
    """Outputs `start` .. `start + count` of the counter-based generator, shape (count,)."""
    with np.errstate(over="ignore"):
        z = np.arange(start + 1, start + count + 1, dtype=np.uint64)
        z *= _GAMMA
        z += np.uint64(seed & 0xFFFFFFFFFFFFFFFF)
        z ^= z >> np.uint64(30)
        z *= _MIX_1
        z ^= z >> np.uint64(27)
        z *= _MIX_2
        z ^= z >> np.uint64(31)
    return z


def normal(seed: int, start: int, count: int) -> npt.NDArray[np.float32]:
    """Nearly normal values of mean 0 and deviation 1, shape (count,); reach +-3.46."""
    words = splitmix64(seed, start, count).astype("<u8", copy=False).view("<u2")
    sums = words.reshape(count, 4).astype(np.int32)
    total = (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3]) - _WORD_MEAN
    return total.astype(np.float32) * _WORD_SCALE


def coarse_normal(seed: int, start: int, count: int) -> npt.NDArray[np.float32]:
    """As `normal`, two values from each output, in steps of 0.007; for perturbations.

    `start` and `count` are even. Values are independent of how a range is cut.
    """
    assert start % 2 == 0
    assert count % 2 == 0
    result = np.empty(count, dtype=np.float32)
    for at in range(0, count, _BLOCK):  # stay in the cache
        n = min(_BLOCK, count - at)
        z = splitmix64(seed, (start + at) // 2, n // 2).astype("<u8", copy=False)
        # Bytes added in pairs inside 16-bit lanes, then lanes in pairs inside 32-bit lanes.
        low = np.uint64(0x00FF00FF00FF00FF)
        z = (z & low) + ((z >> np.uint64(8)) & low)
        z = (z & np.uint64(0x0000FFFF0000FFFF)) + ((z >> np.uint64(16)) & np.uint64(0x0000FFFF0000FFFF))
        sums = z.view("<u4").astype(np.int16) - _BYTE_MEAN
        np.multiply(sums, _BYTE_SCALE, out=result[at : at + n], dtype=np.float32)
    return result
