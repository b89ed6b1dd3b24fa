# SPDX-License-Identifier: MIT
"""Matrices that a checkpoint stores in floats of 8 bits with a scale for each block, as if they were stored in floats.

`x` holds values of e4m3 (a sign, four bits of exponent, three of mantissa), `x_scale_inv` what the values of each block
are multiplied with; the block sizes are in config.json. The product is rounded to f32 once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri._spec import MAX_HIDDEN, Code
from colibri.checkpoint import TensorFiles, columns_of
from colibri.errors import ColibriError, shown
from colibri.layout import F32

KIND = "F8_E4M3"
_SCALES = "_scale_inv"
_FLOATS = ("F32", "BF16", "F16")


def block_sizes(config: dict[str, Any]) -> tuple[int, int]:
    """Rows and columns of a block: those of `quantization_config`, 128 of each where it says none."""
    table = config.get("quantization_config")
    said = table.get("weight_block_size") if isinstance(table, dict) else None
    found = [128, 128] if said is None else said
    sizes = found if isinstance(found, list) else []
    if len(sizes) != 2 or not all(type(n) is int and 1 <= n <= MAX_HIDDEN for n in sizes):
        raise ColibriError(
            Code.ARGUMENT,
            f"config.json: quantization_config.weight_block_size is {shown(repr(found))}, must be two numbers, "
            f"1..{MAX_HIDDEN}",
        )
    return sizes[0], sizes[1]


class Fp8:
    """A checkpoint whose matrices of blocks appear as plain ones."""

    def __init__(self, source: TensorFiles, block: tuple[int, int]) -> None:
        self.source = source
        self._rows, self._columns = block
        shapes, kinds = source.shapes(), source.dtypes()
        self._packed = {name for name, kind in kinds.items() if kind == KIND}
        for name in sorted(self._packed):
            shape, scales = shapes[name], name + _SCALES
            if scales not in shapes:
                raise ColibriError(
                    Code.UNSUPPORTED,
                    f"tensor {shown(name)} is {KIND} and there is no {shown(scales)}; supported: scales of blocks",
                )
            expected = (-(-shape[0] // block[0]), -(-shape[1] // block[1])) if len(shape) == 2 else None
            if shapes[scales] != expected:
                raise ColibriError(
                    Code.TENSOR,
                    f"{shown(scales)} has the shape {list(shapes[scales])} and {shown(name)} {list(shape)}, must be a "
                    f"scale for each block of {block[0]} x {block[1]} of a matrix",
                )
            if kinds[scales] not in _FLOATS:
                raise ColibriError(
                    Code.TENSOR, f"{shown(scales)} is stored as {kinds[scales]}, must be {', '.join(_FLOATS)}"
                )

    @property
    def present(self) -> bool:
        """Whether there is such a matrix."""
        return bool(self._packed)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, without those of the scales."""
        scales = {name + _SCALES for name in self._packed}
        return {name: shape for name, shape in self.source.shapes().items() if name not in scales}

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """As those of the checkpoint, values multiplied with the scales of their blocks."""
        values = self.source.rows(name, first, end, index)
        if name not in self._packed:
            return values
        at = first // self._rows
        scales = self.source.rows(name + _SCALES, at, -(-end // self._rows))
        columns = values.shape[1]
        wide = np.repeat(scales, min(self._columns, columns), axis=1)[:, :columns]  # a block may be far wider
        with np.errstate(over="ignore", invalid="ignore"):  # the quantiser refuses by place
            result: F32 = values * wide[np.arange(first, end) // self._rows - at]
        return result

    def columns(self, name: str, wanted: npt.NDArray[np.int64], index: int = 0) -> F32:
        """As those of a Source."""
        return columns_of(self, name, wanted, index)

    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return self.source.files()
