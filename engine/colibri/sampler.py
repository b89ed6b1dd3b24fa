# SPDX-License-Identifier: MIT
"""The sampler in numpy, from docs/arithmetic.md ("Logits and sampler"): the oracle of native/src/sampler.c.

It sorts everything and then applies the rules as they are written; the C one filters and takes from a heap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from colibri._spec import Code
from colibri.errors import ColibriError
from colibri.operators import F32, exp

_MASK = (1 << 64) - 1


def random(seed: int, counter: int) -> int:
    """64 bits for the counter-th choice of a session: the output function of SplitMix64."""
    z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@dataclass(frozen=True)
class Sampler:
    """How the next id is chosen. temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 keep all."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, good, rule in (
            ("temperature", self.temperature, 0.0 <= self.temperature <= 3.4028235e38, "finite and 0 or more"),
            ("top_p", self.top_p, 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", self.min_p, 0.0 <= self.min_p <= 1.0, "in 0 to 1"),
            ("top_k", self.top_k, 0 <= self.top_k < 1 << 32, "an unsigned 32-bit integer"),
            ("seed", self.seed, 0 <= self.seed <= _MASK, "an unsigned 64-bit integer"),
        ):
            if not good:
                raise ColibriError(Code.ARGUMENT, f"sampler: {name} is {value}, must be {rule}")

    def choose(self, logits: F32, counter: int) -> int:
        """The id chosen from logits: float32 array, shape (vocabulary,), finite."""
        order = np.lexsort((np.arange(len(logits)), -logits))
        temperature = np.float32(self.temperature)
        if temperature == 0:
            return int(order[0])
        if self.top_k:
            order = order[: self.top_k]
        with np.errstate(over="ignore"):  # minus infinity is below every bound
            scaled = (logits[order] - logits[order[0]]) / temperature
        weights = exp(np.asarray(scaled, dtype=np.float32))
        weights = weights[: _first(weights == 0)]
        weights = weights[: _first(weights < np.float32(self.min_p))]
        running = np.cumsum(weights, dtype=np.float32)
        if self.top_p < 1:
            enough = np.float32(self.top_p) * running[-1]
            running = running[: _first(running >= enough) + 1]
        fraction = np.float32(random(self.seed, counter) >> 40) * np.float32(2.0**-24)
        above = _first(running > fraction * running[-1])
        return int(order[min(above, len(running) - 1)])


def _first(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> int:
    """Index of the first true element, or the length."""
    return int(np.argmax(mask)) if bool(mask.any()) else len(mask)
