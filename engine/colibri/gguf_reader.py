# SPDX-License-Identifier: MIT
"""GGUF files as named tensors of f32 rows, through the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from colibri._spec import Code
from colibri.errors import ColibriError
from colibri.layout import F32


class Gguf:
    """Tensors and metadata of one GGUF file; the data stays in a read-only mapping."""

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGUFReader
            from gguf.quants import dequantize
        except ImportError as error:
            raise ColibriError(
                Code.UNSUPPORTED, f"{path}: reading GGUF needs the gguf package; install colibri-moe[convert]"
            ) from error
        self.path = path
        self._dequantize: Any = dequantize
        try:
            reader: Any = GGUFReader(path, "r")
        except OSError as error:
            raise ColibriError(Code.OPEN, f"{path}: {error.strerror}") from error
        except (ValueError, KeyError, IndexError) as error:
            raise ColibriError(Code.ARGUMENT, f"{path} is not a readable GGUF file: {error}") from error
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        self._fields: dict[str, Any] = dict(reader.fields)

    def metadata(self) -> dict[str, object]:
        """Key-value pairs as str, int, float, bool and lists of them."""
        return {key: field.contents() for key, field in self._fields.items() if not key.startswith("GGUF.")}

    def value(self, key: str) -> Any:
        """One value of the metadata, None where it is absent."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, rows first (GGUF counts columns first)."""
        return {name: tuple(int(n) for n in reversed(tensor.shape)) for name, tensor in self._tensors.items()}

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """Rows first..end of a matrix, or of matrix `index` of a stack; a vector is one row."""
        tensor = self._tensors[name]
        data = tensor.data
        if data.ndim == 1:
            data = data[np.newaxis]
        elif data.ndim == 3:
            data = data[index]
        try:
            values = self._dequantize(data[first:end], tensor.tensor_type)
        except NotImplementedError as error:
            raise ColibriError(
                Code.UNSUPPORTED, f"tensor {name} is {tensor.tensor_type.name}, which the gguf package cannot read"
            ) from error
        return np.ascontiguousarray(values, dtype=np.float32)

    def files(self) -> list[Path]:
        """The file itself."""
        return [self.path]
