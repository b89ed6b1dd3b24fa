# SPDX-License-Identifier: MIT
"""Checkpoints on disk as named tensors of f32 rows, read a few rows at a time.

What a reader of a container has to find out is where each tensor lies: file, offset, dtype, shape
and strides (`Place`). Reading rows from there, for every container, is done here with pread into
buffers of bounded size; nothing is mapped, so a file that shrinks is an error and no signal.
"""

from __future__ import annotations

import hashlib
import math
import os
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from colibri._spec import Code
from colibri.errors import ColibriError, shown
from colibri.files import inside, is_file_name, load_json, open_regular
from colibri.layout import F32, from_bf16_bits

MAX_RANK = 8  # no weight has more dimensions; bounds the product of a shape
# dtype -> (numpy kind without byte order, bytes of an element)
STORED = {
    "F64": ("f8", 8),
    "F32": ("f4", 4),
    "F16": ("f2", 2),
    "BF16": ("u2", 2),
    "F8_E4M3": ("u1", 1),
    "I64": ("i8", 8),
    "I32": ("i4", 4),
    "I16": ("i2", 2),
    "I8": ("i1", 1),
    "U8": ("u1", 1),
    "BOOL": ("u1", 1),
}
_MAX_INTEGER = 1 << 24  # every integer up to here is an f32
_GATHER_BYTES = 1 << 20  # span of a strided read
_STRIP_ELEMENTS = 1 << 20  # of a matrix that is read by columns


def _e4m3(code: int) -> float:
    """Value of the bits of F8_E4M3, which has no infinities: 0x7f and 0xff are no number."""
    exponent, fraction = code >> 3 & 15, (code & 7) / 8
    size = math.nan if code & 127 == 127 else 2.0 ** (max(exponent, 1) - 7) * (fraction + (exponent > 0))
    return -size if code & 128 else size


_E4M3: F32 = np.array([_e4m3(code) for code in range(256)], dtype=np.float32)


class Source(Protocol):
    """Named tensors; rows are f32 whatever the checkpoint stores."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        ...

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """Rows first..end of a matrix, or of matrix `index` of a stack; a vector is one row."""
        ...

    def columns(self, name: str, wanted: npt.NDArray[np.int64], index: int = 0) -> F32:
        """Columns of a matrix, or of matrix `index` of a stack, as rows: (len(wanted), rows)."""
        ...

    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        ...


class Place(NamedTuple):
    """Where a tensor lies; strides in elements, offset in bytes. The reader has checked the bounds."""

    descriptor: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    byte_order: str = "<"


def columns_of(source: Source, name: str, wanted: npt.NDArray[np.int64], index: int) -> F32:
    """As Source.columns, for a source that stores rows: a strip of bounded size at a time."""
    *_, rows, columns = (1, *source.shapes()[name])  # a matrix of one row may be stored as a vector
    found = np.empty((len(wanted), rows), np.float32)
    step = max(1, _STRIP_ELEMENTS // columns)
    for at in range(0, rows, step):
        end = min(at + step, rows)
        found[:, at:end] = source.rows(name, at, end, index)[:, wanted].T
    return found


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor without gaps, in elements."""
    strides = []
    step = 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def digest_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_exactly(descriptor: int, size: int, offset: int, what: str) -> bytearray:
    """`size` bytes at `offset`."""
    data = bytearray(size)
    done = 0
    while done < size:
        try:
            got = os.preadv(descriptor, [memoryview(data)[done:]], offset + done)
        except OSError as error:
            raise ColibriError(Code.IO, f"{what}: {error.strerror}", offset + done) from error
        if got == 0:
            raise ColibriError(Code.IO, f"{what}: the file became shorter while read", offset + done)
        done += got
    return data


def as_f32(data: bytes | bytearray, dtype: str, what: str, byte_order: str = "<") -> F32:
    """Stored elements as f32; integers beyond those that f32 holds are refused."""
    kind, _ = STORED[dtype]
    stored: Any = np.frombuffer(data, dtype=byte_order + kind)
    if dtype == "BF16":
        return from_bf16_bits(stored.astype(np.uint16, copy=False))
    if dtype == "F8_E4M3":
        small: F32 = _E4M3[stored]
        return small
    with np.errstate(over="ignore"):  # f64 beyond f32 becomes infinite, which the quantiser refuses by its place
        values: F32 = stored.astype(np.float32)
    if dtype == "BOOL" and stored.max(initial=0) > 1:
        raise ColibriError(Code.WEIGHTS, f"{what}: a bool is stored as {int(stored.max())}, must be 0 or 1")
    if dtype in ("I64", "I32"):
        wrong = np.flatnonzero((stored > _MAX_INTEGER) | (stored < -_MAX_INTEGER))
        if wrong.size:
            raise ColibriError(
                Code.WEIGHTS, f"{what}: {int(stored[wrong[0]])} is beyond {_MAX_INTEGER}, up to which f32 is exact"
            )
    return values


def shard_names(directory: Path, single: str) -> tuple[list[str], dict[str, str] | None]:
    """Files of a checkpoint and, when there is an index, which file each tensor is said to be in."""
    index = f"{single}.index.json"
    path = directory / index
    if not (path.is_file() or path.is_symlink()):
        return [single], None
    weight_map = load_json(inside(directory, index)).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
        raise ColibriError(Code.DIRECTORY, f"{path} has no weight_map of file names")
    names = sorted(set(weight_map.values()))
    for name in names:
        if not is_file_name(name):
            raise ColibriError(Code.DIRECTORY, f"{path} names the shard {shown(repr(name))}, not a file beside it")
    return names, weight_map


class TensorFiles:
    """The tensors of one file, or of the shards that an index names. Subclasses read one container."""

    single = ""  # name of the one file; the index is beside it with .index.json

    def __init__(self, directory: Path) -> None:
        self._places: dict[str, Place] = {}
        self._descriptors: list[int] = []
        names, wanted = shard_names(directory, self.single)
        self._files = [inside(directory, name) for name in names]
        try:
            for path in self._files:
                descriptor = open_regular(path)
                self._descriptors.append(descriptor)
                found = self._read(path, descriptor, os.fstat(descriptor).st_size)
                for name, place in found.items():
                    if name in self._places:
                        raise ColibriError(Code.DIRECTORY, f"{path}: tensor {shown(name)} is in two shards")
                    if wanted is not None and wanted.get(name, path.name) != path.name:
                        raise ColibriError(
                            Code.DIRECTORY, f"{shown(name)} is in {path.name}, the index says {wanted[name]}"
                        )
                    self._places[name] = place
            absent = sorted(set(wanted or ()) - set(self._places))
            if absent:
                raise ColibriError(
                    Code.MISSING_TENSOR, f"{shown(absent[0])} is in {self.single}.index.json and in no shard"
                )
        except BaseException:
            self.close()
            raise

    @classmethod
    def present(cls, directory: Path) -> bool:
        """Whether the folder has a checkpoint of this kind."""
        return any(os.path.lexists(directory / name) for name in (cls.single, f"{cls.single}.index.json"))

    def _read(self, path: Path, descriptor: int, size: int) -> dict[str, Place]:
        """Where the tensors of one file lie."""
        raise ColibriError(Code.INTERNAL, f"{type(self).__name__} reads no container")

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def __del__(self) -> None:
        if hasattr(self, "_descriptors"):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: place.shape for name, place in self._places.items()}

    def dtypes(self) -> dict[str, str]:
        """Stored dtype of every tensor, a key of STORED."""
        return {name: place.dtype for name, place in self._places.items()}

    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return list(self._files)

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """Rows first..end of a matrix, or of matrix `index` of a stack; a vector is one row."""
        place = self._places[name]
        what = f"tensor {shown(name)}"
        *lead, rows, columns = (1, 1, *place.shape)[-max(2, len(place.shape)) :]
        *lead_strides, row_step, column_step = (0, 0, *place.strides)[-max(2, len(place.shape)) :]
        start = first * row_step
        for n, step in zip(reversed(lead), reversed(lead_strides), strict=True):
            index, at = divmod(index, n)
            start += at * step
        count = end - first
        if index or not 0 <= first <= end <= rows:
            raise ColibriError(Code.INTERNAL, f"{what}: rows {first}..{end} of {rows}")
        if count == 0 or columns == 0:
            return np.empty((count, columns), np.float32)
        if columns == 1:
            column_step = 1
        if count == 1:
            row_step = columns * column_step
        if column_step == 1 and row_step == columns:
            return self._gather(place, what, start, count * columns, 1).reshape(count, columns)
        values = np.empty((count, columns), np.float32)
        if column_step >= row_step > 0:  # transposed: the runs in the file are columns
            for column in range(columns):
                values[:, column] = self._gather(place, what, start + column * column_step, count, row_step)
        else:
            for row in range(count):
                values[row] = self._gather(place, what, start + row * row_step, columns, column_step)
        return values

    def columns(self, name: str, wanted: npt.NDArray[np.int64], index: int = 0) -> F32:
        """As those of Source."""
        return columns_of(self, name, wanted, index)

    def elements(self, name: str, first: int, count: int) -> F32:
        """`count` elements of a tensor without gaps, in the order of its shape, from element `first` on."""
        place = self._places[name]
        if tuple(place.strides) != row_major(place.shape):
            raise ColibriError(Code.UNSUPPORTED, f"tensor {shown(name)} is not stored row by row; save it again")
        return self._gather(place, f"tensor {shown(name)}", first, count, 1)

    @staticmethod
    def _gather(place: Place, what: str, start: int, count: int, step: int) -> F32:
        """`count` elements, `step` apart, from element `start` of the tensor's storage."""
        width = STORED[place.dtype][1]
        if step == 1:
            data = read_exactly(place.descriptor, count * width, place.offset + start * width, what)
            return as_f32(data, place.dtype, what, place.byte_order)
        values = np.empty(count, np.float32)
        at_once = max(1, _GATHER_BYTES // max(step * width, 1))
        for at in range(0, count, at_once):
            n = min(at_once, count - at)
            offset = place.offset + (start + at * step) * width
            data = read_exactly(place.descriptor, ((n - 1) * step + 1) * width, offset, what)
            # A step of 0 repeats one element, as in a row of an expanded tensor.
            spaced = as_f32(data, place.dtype, what, place.byte_order)
            values[at : at + n] = spaced[::step] if step else spaced[0]
        return values
