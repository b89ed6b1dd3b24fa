# SPDX-License-Identifier: MIT
"""GGUF files as named tensors of f32 rows.

The container is read here, as a hostile file; only the block formats of quantised tensors are
decoded by the `gguf` package, and only it needs to be there for them. Layout, all little-endian:
"GGUF", version, counts, key-value pairs, one entry per tensor, padding, data.
"""

from __future__ import annotations

import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from colibri._spec import Code
from colibri.checkpoint import as_f32, columns_of, read_exactly
from colibri.errors import ColibriError, MissingPackage, shown
from colibri.files import open_regular
from colibri.layout import F32

MAX_TENSORS = 1 << 18
MAX_PAIRS = 1 << 16
MAX_TEXT_BYTES = 1 << 24  # chat templates and licences
MAX_NAME_BYTES = 1024
BUDGET_BYTES = 1 << 28  # of memory for metadata; a vocabulary of 262,144 texts and merges takes 60 MB
_VERSIONS = (2, 3)
_MAX_RANK = 4
_BUFFER_BYTES = 1 << 20
_VALUE_COST = 64
# type of a value -> layout; 8 is a text, 9 a list
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_BOOL, _TEXT, _LIST = 7, 8, 9
# ids of tensor types that are plain arrays -> dtype of checkpoint.STORED
_PLAIN = {0: ("F32", 4), 1: ("F16", 2), 24: ("I8", 1), 25: ("I16", 2), 26: ("I32", 4), 27: ("I64", 8),
          28: ("F64", 8), 30: ("BF16", 2)}  # fmt: skip


class _Tensor(NamedTuple):
    shape: tuple[int, ...]  # rows first
    kind: int
    offset: int
    row_bytes: int


class _Cursor:
    """Bounded reads of the front of a file, a buffer at a time."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path, self.size = path, size
        self._descriptor = descriptor
        self._buffer = b""
        self._start = 0  # of the buffer in the file
        self.at = 0
        self._budget = BUDGET_BYTES

    def error(self, message: str, code: Code = Code.HEADER) -> ColibriError:
        return ColibriError(code, f"{self.path} is not a readable GGUF file: {message}", self.at)

    def charge(self, size: int) -> None:
        """Count memory that values will take."""
        self._budget -= size
        if self._budget < 0:
            raise self.error(f"its metadata takes more than {BUDGET_BYTES} bytes of memory", Code.LIMIT)

    def take(self, size: int) -> bytes:
        if size > self.size - self.at:
            raise self.error(f"{size} bytes of a value where {self.size - self.at} are left", Code.TRUNCATED)
        first = self.at - self._start
        if first + size > len(self._buffer):
            wanted = min(max(size, _BUFFER_BYTES), self.size - self.at)
            self._buffer = bytes(read_exactly(self._descriptor, wanted, self.at, str(self.path)))
            self._start, first = self.at, 0
        self.at += size
        return self._buffer[first : first + size]

    def number(self, layout: str) -> Any:
        return struct.unpack(f"<{layout}", self.take(struct.calcsize(f"<{layout}")))[0]

    def text(self, limit: int) -> str:
        size = self.number("Q")
        if size > limit:
            raise self.error(f"a text of {size} bytes, limit {limit}", Code.LIMIT)
        self.charge(_VALUE_COST + 4 * size)
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.error("a text that is not UTF-8") from error

    def value(self, kind: int) -> Any:
        """A scalar or a text."""
        if kind == _TEXT:
            return self.text(MAX_TEXT_BYTES)
        if kind not in _SCALARS:
            raise self.error(f"a value of type {kind}")
        self.charge(_VALUE_COST)
        found = self.number(_SCALARS[kind])
        return bool(found) if kind == _BOOL else found

    def values(self) -> list[Any]:
        """A list of scalars or texts."""
        kind, count = self.number("I"), self.number("Q")
        if kind == _TEXT:
            if count > (self.size - self.at) // 8:
                raise self.error(f"a list of {count} texts in {self.size - self.at} bytes")
            return [self.text(MAX_TEXT_BYTES) for _ in range(count)]
        if kind not in _SCALARS:
            raise self.error(f"a list of values of type {kind}")
        width = struct.calcsize(f"<{_SCALARS[kind]}")
        if count > (self.size - self.at) // width:
            raise self.error(f"a list of {count} values in {self.size - self.at} bytes")
        self.charge(count * _VALUE_COST)
        found = list(struct.unpack(f"<{count}{_SCALARS[kind]}", self.take(count * width)))
        return [bool(item) for item in found] if kind == _BOOL else found


def _block_sizes(kind: int, path: Path) -> tuple[int, int]:
    """Elements and bytes of a block of a quantised type, from the gguf package."""
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError as error:
        raise MissingPackage(f"{path}: quantised GGUF tensors need", "gguf", "convert") from error
    try:
        elements, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except (ValueError, KeyError) as error:
        raise ColibriError(Code.UNSUPPORTED, f"{path}: a tensor of type {kind}, unknown to the gguf package") from error
    return int(elements), int(size)


class Gguf:
    """Tensors and metadata of one GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_regular(path)
        try:
            self._fields: dict[str, Any] = {}
            self._tensors: dict[str, _Tensor] = {}
            self._parse(_Cursor(path, self._descriptor, os.fstat(self._descriptor).st_size))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            self.close()

    def _parse(self, cursor: _Cursor) -> None:
        if cursor.size < 24 or cursor.take(4) != b"GGUF":
            raise cursor.error("it does not begin with GGUF", Code.BAD_MAGIC)
        version = cursor.number("I")
        if version not in _VERSIONS:
            known = " and ".join(map(str, _VERSIONS))
            raise cursor.error(f"version {version}, known: {known} (little-endian)", Code.UNSUPPORTED)
        tensors, pairs = cursor.number("Q"), cursor.number("Q")
        if tensors > MAX_TENSORS or pairs > MAX_PAIRS:
            raise cursor.error(
                f"{tensors} tensors and {pairs} pairs, limits {MAX_TENSORS} and {MAX_PAIRS}", Code.LIMIT
            )
        for _ in range(pairs):
            key = cursor.text(MAX_NAME_BYTES)
            if key in self._fields:
                raise cursor.error(f"the key {shown(key)} is there twice")
            kind = cursor.number("I")
            self._fields[key] = cursor.values() if kind == _LIST else cursor.value(kind)
        alignment = self._fields.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 8 or alignment > 1 << 20 or alignment & (alignment - 1):
            raise cursor.error(f"general.alignment is {shown(repr(alignment))}, must be a power of two from 8")
        found = [self._entry(cursor, alignment) for _ in range(tensors)]
        base = (cursor.at + alignment - 1) & -alignment
        ranges = []
        for name, tensor in found:
            size = tensor.row_bytes
            for n in tensor.shape[:-1]:
                size *= n
            start = base + tensor.offset
            if start > cursor.size or size > cursor.size - start:
                raise cursor.error(
                    f"tensor {shown(name)} of {size} bytes at {start} in a file of {cursor.size}", Code.TENSOR
                )
            if name in self._tensors:
                raise cursor.error(f"tensor {shown(name)} is there twice", Code.TENSOR)
            self._tensors[name] = tensor._replace(offset=start)
            if size:
                ranges.append((start, start + size, name))
        ranges.sort()
        for (_, end, name), (begin, _, following) in pairwise(ranges):
            if begin < end:
                raise cursor.error(f"the tensors {shown(name)} and {shown(following)} overlap", Code.TENSOR)

    def _entry(self, cursor: _Cursor, alignment: int) -> tuple[str, _Tensor]:
        """Name and place of one tensor; the offset still counts from the start of the data."""
        cursor.charge(8 * _VALUE_COST)
        name = cursor.text(MAX_NAME_BYTES)
        rank = cursor.number("I")
        if not 1 <= rank <= _MAX_RANK:
            raise cursor.error(f"tensor {shown(name)} has {rank} dimensions, must be 1..{_MAX_RANK}", Code.TENSOR)
        shape = tuple(reversed([cursor.number("Q") for _ in range(rank)]))
        if 0 in shape:
            raise cursor.error(f"tensor {shown(name)} has no values: its shape is {shape}", Code.TENSOR)
        kind, offset = cursor.number("I"), cursor.number("Q")
        elements, size = (1, _PLAIN[kind][1]) if kind in _PLAIN else _block_sizes(kind, self.path)
        if shape[-1] % elements:
            raise cursor.error(
                f"tensor {shown(name)} has rows of {shape[-1]} values in blocks of {elements}", Code.TENSOR
            )
        if offset % alignment:
            raise cursor.error(f"tensor {shown(name)} lies at {offset}, alignment {alignment}", Code.TENSOR)
        return name, _Tensor(shape, kind, offset, shape[-1] // elements * size)

    def metadata(self) -> dict[str, object]:
        """Key-value pairs as str, int, float, bool and lists of them."""
        return dict(self._fields)

    def value(self, key: str) -> Any:
        """One value of the metadata, None where it is absent."""
        return self._fields.get(key)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, rows first (GGUF counts columns first)."""
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """Rows first..end of a matrix, or of matrix `index` of a stack; a vector is one row."""
        tensor = self._tensors[name]
        per_matrix = tensor.shape[-2] if len(tensor.shape) > 1 else 1
        count = end - first
        start = tensor.offset + (index * per_matrix + first) * tensor.row_bytes
        data = read_exactly(self._descriptor, count * tensor.row_bytes, start, f"tensor {shown(name)}")
        if tensor.kind in _PLAIN:
            return as_f32(data, _PLAIN[tensor.kind][0], f"tensor {shown(name)}").reshape(count, tensor.shape[-1])
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        blocks = np.frombuffer(data, np.uint8).reshape(count, tensor.row_bytes)
        kind = GGMLQuantizationType(tensor.kind)
        try:
            values = dequantize(blocks, kind)
        except NotImplementedError as error:
            raise ColibriError(
                Code.UNSUPPORTED, f"tensor {shown(name)} is {kind.name}, which the gguf package cannot read"
            ) from error
        return np.ascontiguousarray(values, dtype=np.float32)

    def columns(self, name: str, wanted: npt.NDArray[np.int64], index: int = 0) -> F32:
        """As those of a checkpoint's Source."""
        return columns_of(self, name, wanted, index)

    def files(self) -> list[Path]:
        """The file itself."""
        return [self.path]
