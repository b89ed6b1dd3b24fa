# SPDX-License-Identifier: MIT
"""Stacks of experts that a checkpoint stores in MXFP4, as if they were stored in floats.

A value is a float of 4 bits (a sign and one of eight sizes), 32 of them share a power of two. Beside
`x_blocks` [experts][rows][groups][16], two values a byte with the first in the low half, lies `x_scales`
[experts][rows][groups], the exponents, 127 too high.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from colibri._spec import Code
from colibri.checkpoint import TensorFiles
from colibri.errors import ColibriError, shown
from colibri.layout import F32

_SIZES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_SIZES, *(-size for size in _SIZES)], dtype=np.float32)
_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES = 16  # of the 32 values of a group
_LARGEST = 127 + 125  # 6 * 2^125 is a finite f32, 6 * 2^126 is not


def dequantise(blocks: npt.NDArray[np.uint8], scales: npt.NDArray[np.uint8]) -> F32:
    """blocks: (rows, groups, 16); scales: (rows, groups). Exact float32 (rows, 32 * groups)."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:2], 2 * _BYTES)
    values = np.ldexp(_VALUES[codes], (scales.astype(np.int32) - 127)[:, :, None])
    return values.reshape(len(blocks), -1).astype(np.float32, copy=False)


class Mxfp4:
    """A checkpoint whose packed stacks [rows][columns] appear as plain ones, stored [columns][rows]."""

    def __init__(self, source: TensorFiles) -> None:
        self.source = source
        shapes, kinds = source.shapes(), source.dtypes()
        self._packed: dict[str, tuple[int, ...]] = {}
        for blocks, shape in shapes.items():
            name = blocks.removesuffix(_BLOCKS)
            scales = name + _SCALES
            if name == blocks or scales not in shapes:
                continue
            if len(shape) != 4 or shape[3] != _BYTES or shapes[scales] != shape[:3]:
                raise ColibriError(
                    Code.TENSOR,
                    f"{shown(blocks)} has the shape {list(shape)} and {shown(scales)} {list(shapes[scales])}, must be "
                    "[experts, rows, groups, 16] and [experts, rows, groups]",
                )
            if {kinds[blocks], kinds[scales]} != {"U8"}:
                raise ColibriError(
                    Code.TENSOR,
                    f"{shown(blocks)} is stored as {kinds[blocks]} and {shown(scales)} as {kinds[scales]}, must be U8",
                )
            if name in shapes:
                raise ColibriError(
                    Code.DIRECTORY, f"{shown(name)} and {shown(blocks)} are names of one tensor; keep one"
                )
            self._packed[name] = shape

    @property
    def present(self) -> bool:
        """Whether there is a packed tensor."""
        return bool(self._packed)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, packed ones as plain stacks [experts][columns][rows]."""
        parts = {name + suffix for name in self._packed for suffix in (_BLOCKS, _SCALES)}
        plain = {name: shape for name, shape in self.source.shapes().items() if name not in parts}
        return plain | {name: (shape[0], 32 * shape[2], shape[1]) for name, shape in self._packed.items()}

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """As those of the checkpoint; packed stacks are read by `columns`."""
        if name in self._packed:
            raise ColibriError(Code.INTERNAL, f"{shown(name)} is packed: it is read by columns")
        return self.source.rows(name, first, end, index)

    def columns(self, name: str, wanted: npt.NDArray[np.int64], index: int = 0) -> F32:
        """Columns of the plain stack, which are rows of the packed one."""
        if name not in self._packed:
            return self.source.columns(name, wanted, index)
        _, rows, groups, _ = self._packed[name]
        first, end = int(wanted.min()), int(wanted.max()) + 1
        at, count = (index * rows + first) * groups, (end - first) * groups
        blocks = self.source.elements(name + _BLOCKS, at * _BYTES, count * _BYTES)
        scales = self.source.elements(name + _SCALES, at, count)
        if scales.max() > _LARGEST:
            raise ColibriError(
                Code.WEIGHTS,
                f"{shown(name + _SCALES)} holds {int(scales.max())}, must be 0..{_LARGEST}: the values are beyond f32",
            )
        chosen = wanted - first
        return dequantise(
            blocks.astype(np.uint8).reshape(-1, groups, _BYTES)[chosen],
            scales.astype(np.uint8).reshape(-1, groups)[chosen],
        )

    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return self.source.files()
