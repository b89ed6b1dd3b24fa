# SPDX-License-Identifier: MIT
"""Checkpoints on disk as named tensors of f32 rows, read a few rows at a time.

safetensors files are read here directly: their numpy binding has no bf16, and reads of a part of
a tensor are all that is needed. The header is bounded and checked like any hostile input.
"""

from __future__ import annotations

import hashlib
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from colibri._spec import Code
from colibri.errors import ColibriError
from colibri.files import load_json, open_regular, parse_json
from colibri.layout import F32, from_bf16_bits

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format
_MAX_RANK = 8  # no weight has more dimensions; bounds the product of a shape
_DTYPES = {"F32": ("<f4", 4), "F16": ("<f2", 2), "BF16": ("<u2", 2), "F64": ("<f8", 8)}


class Source(Protocol):
    """Named tensors; rows are f32 whatever the checkpoint stores."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        ...

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """Rows first..end of a matrix, or of matrix `index` of a stack; a vector is one row."""
        ...

    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        ...


class _Place(NamedTuple):
    descriptor: int
    dtype: str
    shape: tuple[int, ...]
    offset: int


def digest_of(path: Path) -> str:
    """SHA-256 of a file, hex."""
    with os.fdopen(open_regular(path), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_file_name(name: str) -> bool:
    """Whether a name is one plain part of a path."""
    try:
        name.encode()  # half a surrogate pair names no file
    except UnicodeEncodeError:
        return False
    return Path(name).name == name and name not in ("", ".", "..") and "\0" not in name


class Safetensors:
    """The tensors of one .safetensors file, or of the shards that an index names."""

    def __init__(self, directory: Path) -> None:
        self._places: dict[str, _Place] = {}
        self._descriptors: list[int] = []
        single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
        wanted: dict[str, str] | None = None
        if index.is_file():
            weight_map = load_json(index).get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(v, str) for v in weight_map.values()):
                raise ColibriError(Code.ARGUMENT, f"{index} has no weight_map of file names")
            wanted = weight_map
            names = sorted(set(weight_map.values()))
            for name in names:
                if not _is_file_name(name):
                    raise ColibriError(Code.ARGUMENT, f"{index} names the shard {name!r}, not a file beside it")
            self._files = [directory / name for name in names]
        elif single.is_file():
            self._files = [single]
        else:
            raise ColibriError(
                Code.OPEN,
                f"{directory} has neither model.safetensors nor model.safetensors.index.json; "
                "checkpoints in other formats can be saved again with save_pretrained",
            )
        try:
            for path in self._files:
                self._open(path)
        except BaseException:
            self.close()
            raise
        if wanted is not None:
            absent = sorted(set(wanted) - set(self._places))
            if absent:
                self.close()
                raise ColibriError(Code.MISSING_TENSOR, f"{absent[0]} is in {index.name} and in no shard")

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def __enter__(self) -> Safetensors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, path: Path) -> None:
        descriptor = open_regular(path)
        self._descriptors.append(descriptor)
        size = os.fstat(descriptor).st_size
        if size < 8:
            raise ColibriError(Code.ARGUMENT, f"{path} has {size} bytes, no safetensors header", 0)
        (length,) = struct.unpack("<Q", os.pread(descriptor, 8, 0))
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise ColibriError(Code.ARGUMENT, f"{path}: header of {length} bytes in a file of {size}", 0)
        header = parse_json(os.pread(descriptor, length, 8), f"{path}: header", 8, unique=True)
        header.pop("__metadata__", None)
        ranges: list[tuple[int, int, str]] = []
        for name, entry in header.items():
            if name in self._places:
                raise ColibriError(Code.ARGUMENT, f"{path}: tensor {name} is in two shards")
            place = self._places[name] = self._place(path, descriptor, name, entry, 8 + length, size)
            if 0 not in place.shape:
                ranges.append((*entry["data_offsets"], name))
        ranges.sort()
        for (_, end, name), (first, _, following) in pairwise(ranges):
            if first < end:
                raise ColibriError(
                    Code.ARGUMENT, f"{path}: tensor {following} begins at {first}, inside tensor {name} up to {end}", 8
                )

    @staticmethod
    def _place(path: Path, descriptor: int, name: str, entry: Any, base: int, size: int) -> _Place:
        try:
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            first, end = entry["data_offsets"]
            numbers = (*shape, first, end)
            good = isinstance(dtype, str) and len(shape) <= _MAX_RANK
            good = good and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)
        except (TypeError, KeyError, ValueError):
            good = False
        if not good:
            raise ColibriError(Code.ARGUMENT, f"{path}: malformed entry of tensor {name}", 8)
        if dtype not in _DTYPES:
            raise ColibriError(Code.UNSUPPORTED, f"{path}: tensor {name} is {dtype}, supported: {', '.join(_DTYPES)}")
        expected = _DTYPES[dtype][1]
        for n in shape:
            expected *= n
        if end - first != expected or end > size - base:
            raise ColibriError(
                Code.ARGUMENT, f"{path}: tensor {name} lies at {first}..{end}, its shape needs {expected} bytes", 8
            )
        return _Place(descriptor, dtype, shape, base + first)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        return {name: place.shape for name, place in self._places.items()}

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """Rows first..end of a matrix, or of matrix `index` of a stack; a vector is one row."""
        place = self._places[name]
        columns = place.shape[-1]
        per_matrix = place.shape[-2] if len(place.shape) > 1 else 1
        kind, width = _DTYPES[place.dtype]
        start = place.offset + (index * per_matrix + first) * columns * width
        wanted = (end - first) * columns * width
        data = bytearray(wanted)
        done = 0
        while done < wanted:
            got = os.preadv(place.descriptor, [memoryview(data)[done:]], start + done)
            if got == 0:
                raise ColibriError(Code.IO, f"tensor {name}: the file became shorter while read", start + done)
            done += got
        stored = np.frombuffer(data, dtype=kind).reshape(end - first, columns)
        if place.dtype == "BF16":
            return from_bf16_bits(stored.astype(np.uint16, copy=False))
        return stored.astype(np.float32)

    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return list(self._files)
