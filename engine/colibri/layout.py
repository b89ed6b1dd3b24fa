# SPDX-License-Identifier: MIT
"""Panel packing of weights (docs/format.md 4) and its inverse, in numpy.

A panel is 8 rows; R and C below are rows and columns rounded up to 8 and 32. Packing takes any
number of rows that is a multiple of 8 (or the end of the matrix), so a large matrix can be
packed part by part: the parts' bytes stand one after another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from colibri._spec import (
    GROUP_COLUMNS,
    INT4_BLOCK_BYTES,
    INT8_BLOCK_BYTES,
    PANEL_ROWS,
    DType,
    Layout,
)
from colibri.records import round_up, tensor_bytes

F32 = npt.NDArray[np.float32]
F16 = npt.NDArray[np.float16]
I8 = npt.NDArray[np.int8]
AnyArray = npt.NDArray[Any]


def pad(array: AnyArray, rows: int, columns: int) -> AnyArray:
    """`array`, shape (r, c), with zeros up to (rows, columns)."""
    if array.shape == (rows, columns):
        return array
    padded = np.zeros((rows, columns), dtype=array.dtype)
    padded[: array.shape[0], : array.shape[1]] = array
    return padded


def _padded_shape(rows: int, columns: int) -> tuple[int, int]:
    return round_up(rows, PANEL_ROWS), round_up(columns, GROUP_COLUMNS)


def _scale_bytes(scales: F16, panels: int, blocks: int) -> npt.NDArray[np.uint8]:
    """(rows, blocks) f16 to (panels, blocks, 16) bytes."""
    padded = pad(scales, panels * PANEL_ROWS, blocks).astype("<f2", copy=False)
    by_block = np.ascontiguousarray(padded.reshape(panels, PANEL_ROWS, blocks).swapaxes(1, 2))
    return by_block.view(np.uint8)


def pack_int4(q: I8, scales: F16) -> bytes:
    """q: (rows, columns) in -8..7; scales: (rows, ceil(columns / 32))."""
    r, c = _padded_shape(*q.shape)
    panels, blocks = r // PANEL_ROWS, c // GROUP_COLUMNS
    nibbles = (pad(q, r, c) + np.int8(8)).view(np.uint8)
    # (panel, row, block, half, i, b): column = 16 * half + 4 * i + b
    parts = nibbles.reshape(panels, PANEL_ROWS, blocks, 2, 4, 4)
    both = parts[:, :, :, 0] | (parts[:, :, :, 1] << 4)
    out = np.empty((panels, blocks, INT4_BLOCK_BYTES), dtype=np.uint8)
    # (panel, block, i, row, b)
    out[:, :, :128] = both.transpose(0, 2, 3, 1, 4).reshape(panels, blocks, 128)
    out[:, :, 128:] = _scale_bytes(scales, panels, blocks)
    return out.tobytes()


def unpack_int4(data: bytes, rows: int, columns: int) -> tuple[I8, F16]:
    """Inverse of `pack_int4`: (R, C) values in -8..7 and (R, C / 32) scales."""
    r, c = _padded_shape(rows, columns)
    panels, blocks = r // PANEL_ROWS, c // GROUP_COLUMNS
    raw = np.frombuffer(data, dtype=np.uint8).reshape(panels, blocks, INT4_BLOCK_BYTES)
    both = raw[:, :, :128].reshape(panels, blocks, 4, PANEL_ROWS, 4).transpose(0, 3, 1, 2, 4)
    halves = np.stack([both & 15, both >> 4], axis=3)
    q = halves.reshape(r, c).view(np.int8) - np.int8(8)
    return q, _unpack_scales(raw[:, :, 128:], r, blocks)


def _unpack_scales(raw: npt.NDArray[np.uint8], rows: int, blocks: int) -> F16:
    scales = np.ascontiguousarray(raw).view("<f2").astype(np.float16, copy=False)
    return np.ascontiguousarray(scales.swapaxes(1, 2).reshape(rows, blocks))


def pack_int8(q: I8, scales: F16) -> bytes:
    """q: (rows, columns) in -127..127; scales: (rows, ceil(columns / 32))."""
    r, c = _padded_shape(*q.shape)
    panels, blocks = r // PANEL_ROWS, c // GROUP_COLUMNS
    parts = pad(q, r, c).view(np.uint8).reshape(panels, PANEL_ROWS, blocks, 8, 4)
    out = np.empty((panels, blocks, INT8_BLOCK_BYTES), dtype=np.uint8)
    out[:, :, :256] = parts.transpose(0, 2, 3, 1, 4).reshape(panels, blocks, 256)
    out[:, :, 256:] = _scale_bytes(scales, panels, blocks)
    return out.tobytes()


def unpack_int8(data: bytes, rows: int, columns: int) -> tuple[I8, F16]:
    """Inverse of `pack_int8`: (R, C) values and (R, C / 32) scales."""
    r, c = _padded_shape(rows, columns)
    panels, blocks = r // PANEL_ROWS, c // GROUP_COLUMNS
    raw = np.frombuffer(data, dtype=np.uint8).reshape(panels, blocks, INT8_BLOCK_BYTES)
    parts = raw[:, :, :256].reshape(panels, blocks, 8, PANEL_ROWS, 4).transpose(0, 3, 1, 2, 4)
    q = np.ascontiguousarray(parts).reshape(r, c).view(np.int8)
    return q, _unpack_scales(raw[:, :, 256:], r, blocks)


def to_bf16_bits(values: F32) -> npt.NDArray[np.uint16]:
    """Upper halves of f32 values, rounded to nearest even; finite values only."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)).astype(np.uint16)


def from_bf16_bits(bits: npt.NDArray[np.uint16]) -> F32:
    """f32 values of bf16 bit patterns."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def pack_float(values: F32, dtype: DType) -> bytes:
    """values: (rows, columns); f32, f16 or bf16 panels, element (column, row) at column*8+row."""
    stored: AnyArray
    if dtype == DType.F16:
        with np.errstate(over="ignore"):  # an infinity is found by the caller's check
            stored = values.astype("<f2")
    elif dtype == DType.BF16:
        stored = to_bf16_bits(values).astype("<u2", copy=False)
    else:
        stored = values.astype("<f4", copy=False)
    r, c = _padded_shape(*values.shape)
    panels = pad(stored, r, c).reshape(r // PANEL_ROWS, PANEL_ROWS, c)
    return panels.swapaxes(1, 2).tobytes()


def unpack_float(data: bytes, dtype: DType, rows: int, columns: int) -> F32:
    """Inverse of `pack_float`: (R, C) f32, widened exactly."""
    r, c = _padded_shape(rows, columns)
    kind = {DType.F32: "<f4", DType.F16: "<f2", DType.BF16: "<u2"}[dtype]
    raw = np.frombuffer(data, dtype=kind).reshape(r // PANEL_ROWS, c, PANEL_ROWS)
    stored = np.ascontiguousarray(raw.swapaxes(1, 2)).reshape(r, c)
    if dtype == DType.BF16:
        return from_bf16_bits(stored.astype(np.uint16, copy=False))
    return stored.astype(np.float32, copy=False)


def pack_rows(values: F32) -> bytes:
    """values: (rows, columns) f32, each row padded with zeros to a multiple of 32 columns."""
    rows, columns = values.shape
    return pad(values.astype("<f4", copy=False), rows, round_up(columns, GROUP_COLUMNS)).tobytes()


def unpack_rows(data: bytes, rows: int, columns: int) -> F32:
    """Inverse of `pack_rows`, without the padding: (rows, columns)."""
    raw = np.frombuffer(data, dtype="<f4").reshape(rows, round_up(columns, GROUP_COLUMNS))
    return np.ascontiguousarray(raw[:, :columns]).astype(np.float32, copy=False)


def unpack(data: bytes, dtype: DType, layout: Layout, rows: int, columns: int) -> F32:
    """Any stored tensor as f32, shape (rows, columns), each value rounded once at most."""
    assert len(data) == tensor_bytes(dtype, layout, rows, columns)
    if layout == Layout.ROWS:
        return unpack_rows(data, rows, columns)
    if dtype in (DType.INT4, DType.INT8):
        q, scales = (unpack_int4 if dtype == DType.INT4 else unpack_int8)(data, rows, columns)
        wide = np.repeat(scales.astype(np.float32), GROUP_COLUMNS, axis=1)
        return (q.astype(np.float32) * wide)[:rows, :columns]
    return unpack_float(data, dtype, rows, columns)[:rows, :columns]
