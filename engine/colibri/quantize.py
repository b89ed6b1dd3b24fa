# SPDX-License-Identifier: MIT
"""Quantisers: f32 weights to int4 or int8 with one f16 scale per 32 inputs.

Stored bytes are equal on every machine: only correctly rounded operations on arrays, and sums
over a group by a fixed tree (numpy's own sums depend on the vector width of the build). For the
search, groups are columns of a (32, groups) array: a sum is five additions of contiguous rows.

int4 searches the scale: for each candidate the weights are rounded to -8..7 and the scale is
refitted by least squares, d = sum(w q) / sum(q q); the candidate that leaves the smallest squared
error wins. The grid holds both signs because the range is not symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri._spec import GROUP_COLUMNS, PANEL_ROWS, Code, DType, Layout
from colibri.errors import ColibriError
from colibri.layout import (
    F16,
    F32,
    I8,
    from_bf16_bits,
    pack_float,
    pack_int4,
    pack_int8,
    pack_rows,
    pad,
    to_bf16_bits,
)
from colibri.records import round_up

INT4_METHODS = ("mse", "absmax")
# What the value of largest magnitude is mapped to before the refit.
_GRID = tuple(np.float32(x) for x in (-8.25, -7.75, -8.75, -7.25, -6.5, 7.25))
# With weights the best scale is often far from that of the largest value: a finer and wider grid.
_FINE_GRID = tuple(
    np.float32(x)
    for x in (
        -8.3, -8.0, -7.7, -7.4, -8.6, -8.9, -9.2, -9.5, -7.1, -6.8, -6.5, -6.2, -5.9, -5.6, -5.3,
        7.25, 7.5, 7.0, 6.5, 8.0, 6.0,
    )
)  # fmt: skip
_GROUPS_PER_PASS = 4096  # 512 KiB of f32: the arrays of one pass stay in the cache
_F16_MAX = np.float32(65504.0)


@dataclass
class ErrorStats:
    """Difference between a tensor and what is stored of it; sums over real elements."""

    squared_error: float = 0.0
    squared_value: float = 0.0
    largest: float = 0.0
    elements: int = 0

    def add(self, other: ErrorStats) -> None:
        """Take in the part of a larger tensor, or another tensor."""
        self.squared_error += other.squared_error
        self.squared_value += other.squared_value
        self.largest = max(self.largest, other.largest)
        self.elements += other.elements

    @property
    def relative(self) -> float:
        """Root mean square of the error over that of the values."""
        if self.squared_value == 0.0:
            return 0.0
        return float((self.squared_error / self.squared_value) ** 0.5)


def _tree_sum(values: F32) -> F32:
    """Sum over axis 0 (32 rows) in halves: 16 + 16, 8 + 8, …; `values` is overwritten."""
    rows = values.shape[0]
    while rows > 1:
        rows //= 2
        np.add(values[:rows], values[rows : 2 * rows], out=values[:rows])
    first: F32 = values[0].copy()
    return first


def _f16(scales: F32, what: str) -> F16:
    if np.any(np.abs(scales) > _F16_MAX):
        worst = float(np.max(np.abs(scales)))
        raise ColibriError(Code.WEIGHTS, f"{what}: a scale of {worst:g} does not fit f16 (65504); store it as f32")
    return scales.astype(np.float16)


def _safe_divisor(scales: F32) -> F32:
    """Scales with 1 in place of 0; the values of such a group round to what they are told to."""
    return np.where(scales == 0, np.float32(1), scales)


def _signed_extreme(x: F32) -> F32:
    """The value of largest magnitude of each group, with its sign; positive on a tie."""
    high, low = x.max(axis=0), x.min(axis=0)
    extreme: F32 = np.where(high >= -low, high, low)
    return extreme


def _search_scale(x: F32, weights: F32 | None = None) -> F32:
    """Best scale of each column of `x` (32, n); 0 for a column of zeros.

    weights: (32, n), what a squared error of each value counts; None: 1.
    """
    weighted = x if weights is None else x * weights
    extreme = _signed_extreme(x)
    nonzero = extreme != 0
    divisor = np.where(nonzero, extreme, np.float32(1))
    best_gain = np.zeros(x.shape[1], dtype=np.float32)
    best = np.zeros(x.shape[1], dtype=np.float32)
    q, product = np.empty_like(x), np.empty_like(x)
    for target in _GRID if weights is None else _FINE_GRID:
        np.multiply(x, target / divisor, out=q)
        np.rint(q, out=q)
        np.clip(q, np.float32(-8), np.float32(7), out=q)
        np.multiply(weighted, q, out=product)
        wq = _tree_sum(product)
        np.multiply(q, q, out=q)
        if weights is not None:
            np.multiply(q, weights, out=q)
        qq = _tree_sum(q)
        qq = np.where(qq == 0, np.float32(1), qq)
        scale = wq / qq
        gain = wq * scale  # what the squared error shrinks by
        better = gain > best_gain
        best_gain = np.where(better, gain, best_gain)
        best = np.where(better, scale, best)
    return np.where(nonzero, best, np.float32(0))


def _group_stats(x: F32, steps: F32, wide: F32, axis: int) -> ErrorStats:
    """Error of groups; padding is zero on both sides and adds nothing. `steps` is overwritten."""
    np.multiply(steps, wide if axis == 0 else wide[:, None], out=steps)
    error = np.subtract(x, steps, out=steps)
    largest = max(float(error.max(initial=0.0)), -float(error.min(initial=0.0)))
    return ErrorStats(float(np.vdot(error, error)), float(np.vdot(x, x)), largest, 0)


def quantize_int4(
    w: F32,
    method: str = "mse",
    what: str = "tensor",
    importance: F32 | None = None,
    factor: float = 1.0,
) -> tuple[I8, F16, ErrorStats]:
    """w: (rows, columns) f32. Gives q (rows, C) in -8..7 and scales (rows, C / 32) f16.

    importance: (columns), what a squared error in each column counts in the search; the mean square
    of the activations there makes the error of the product smallest. factor: every scale times this.
    """
    if method not in INT4_METHODS:
        raise ColibriError(Code.ARGUMENT, f"int4 method {method}, known: {', '.join(INT4_METHODS)}")
    rows, columns = w.shape
    padded = round_up(columns, GROUP_COLUMNS)
    flat = pad(w, rows, padded).reshape(-1, GROUP_COLUMNS)
    q = np.empty(flat.shape, dtype=np.int8)
    scales = np.empty(len(flat), dtype=np.float16)
    stats = ErrorStats()
    by_group = None
    if importance is not None:
        by_group = pad(importance.reshape(1, columns), 1, padded).reshape(-1, GROUP_COLUMNS).T  # (32, groups of a row)
    for at in range(0, len(flat), _GROUPS_PER_PASS):
        x = np.ascontiguousarray(flat[at : at + _GROUPS_PER_PASS].T)
        if method == "mse":
            weights = None
            if by_group is not None:
                weights = by_group[:, np.arange(at, at + x.shape[1]) % by_group.shape[1]]
            exact = _search_scale(x, weights)
        else:
            exact = _signed_extreme(x) / np.float32(-8)
        part = _f16(exact * np.float32(factor), what)
        wide = part.astype(np.float32)
        steps = np.divide(x, _safe_divisor(wide))
        np.rint(steps, out=steps)
        np.clip(steps, np.float32(-8), np.float32(7), out=steps)
        steps[:, wide == 0] = 0
        q[at : at + _GROUPS_PER_PASS] = steps.astype(np.int8).T
        scales[at : at + _GROUPS_PER_PASS] = part
        stats.add(_group_stats(x, steps, wide, 0))
    stats.elements = w.size
    return q.reshape(rows, padded), scales.reshape(rows, padded // GROUP_COLUMNS), stats


def quantize_int8(w: F32, what: str = "tensor", factor: float = 1.0) -> tuple[I8, F16, ErrorStats]:
    """w: (rows, columns) f32. Gives q (rows, C) in -127..127 and scales (rows, C / 32) f16, times `factor`."""
    rows, columns = w.shape
    padded = round_up(columns, GROUP_COLUMNS)
    flat = pad(w, rows, padded).reshape(-1, GROUP_COLUMNS)
    q = np.empty(flat.shape, dtype=np.int8)
    scales = np.empty(len(flat), dtype=np.float16)
    stats = ErrorStats()
    for at in range(0, len(flat), _GROUPS_PER_PASS):
        x = flat[at : at + _GROUPS_PER_PASS]
        amax = np.maximum(x.max(axis=1), -x.min(axis=1)) * np.float32(factor)
        part = _f16(amax / np.float32(127), what)
        # A subnormal scale may round far down: take the next one up where values would be cut.
        with np.errstate(over="ignore"):
            up = np.nextafter(part, np.float16(np.inf))
        part = np.where(amax > np.float32(127.5) * part.astype(np.float32), up, part)
        wide = part.astype(np.float32)
        steps = np.divide(x, _safe_divisor(wide)[:, None])
        np.rint(steps, out=steps)
        np.clip(steps, np.float32(-127), np.float32(127), out=steps)
        steps[wide == 0] = 0
        q[at : at + _GROUPS_PER_PASS] = steps
        scales[at : at + _GROUPS_PER_PASS] = part
        stats.add(_group_stats(x, steps, wide, 1))
    stats.elements = w.size
    return q.reshape(rows, padded), scales.reshape(rows, padded // GROUP_COLUMNS), stats


def _exact(w: F32) -> ErrorStats:
    return ErrorStats(0.0, float(np.vdot(w, w)), 0.0, w.size)


def _stats(w: F32, stored: F32) -> ErrorStats:
    error = w - stored
    return ErrorStats(
        float(np.vdot(error, error)), float(np.vdot(w, w)), float(np.max(np.abs(error), initial=0.0)), w.size
    )


def _check_finite(w: npt.NDArray[Any], what: str) -> None:
    if not np.isfinite(w).all():
        row, column = (int(i) for i in np.argwhere(~np.isfinite(w))[0])
        raise ColibriError(Code.WEIGHTS, f"{what}: the value at [{row}][{column}] is {w[row, column]}")


def encode(
    w: F32,
    dtype: DType,
    layout: Layout,
    what: str = "tensor",
    int4_method: str = "mse",
    importance: F32 | None = None,
    factor: float = 1.0,
) -> tuple[bytes, ErrorStats]:
    """Stored bytes of (rows, columns) f32 weights, and the error made.

    For a part of a matrix, rows must be a multiple of 8 unless it is the last part.
    """
    _check_finite(w, what)
    if layout == Layout.ROWS:
        return pack_rows(w), _exact(w)
    if dtype == DType.INT4:
        q, scales, stats = quantize_int4(w, int4_method, what, importance, factor)
        return pack_int4(q, scales), stats
    if dtype == DType.INT8:
        q, scales, stats = quantize_int8(w, what, factor)
        return pack_int8(q, scales), stats
    if dtype == DType.F32:
        return pack_float(w, dtype), _exact(w)
    with np.errstate(over="ignore"):
        stored = w.astype(np.float16).astype(np.float32) if dtype == DType.F16 else from_bf16_bits(to_bf16_bits(w))
    if not np.isfinite(stored).all():
        raise ColibriError(
            Code.WEIGHTS,
            f"{what}: {float(np.max(np.abs(w))):g} does not fit {dtype.name.lower()}; store it as f32",
        )
    return pack_float(w, dtype), _stats(w, stored)


def part_rows(columns: int, target_elements: int = 1 << 21) -> int:
    """Rows of a part of a matrix so that a part has about `target_elements` values."""
    return max(PANEL_ROWS, target_elements // max(columns, 1) // PANEL_ROWS * PANEL_ROWS)
