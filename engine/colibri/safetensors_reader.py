# SPDX-License-Identifier: MIT
"""safetensors files: a bounded JSON header, then the tensors without a gap.

Read here directly: the numpy binding of the format has no bf16, and parts of a tensor are all
that is needed. The rules are those of the format, each with a refusal of its own: data that
overlaps, lies outside the file, leaves bytes over or does not have the size that its shape needs.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

from colibri._spec import Code
from colibri.checkpoint import MAX_RANK, STORED, Place, TensorFiles, read_exactly, row_major
from colibri.errors import ColibriError, shown
from colibri.files import parse_json

# The format allows 100 MB, which parsed as JSON would be several times as much. A tensor takes about 100 bytes:
# this is enough for 250,000 in one file, and files are cut into shards long before.
MAX_HEADER_BYTES = 25_000_000
MAX_HEADER_OBJECTS = 1 << 20  # braces and brackets; a tensor has three
MAX_HEADER_COMMAS = 1 << 22


class Safetensors(TensorFiles):
    """The tensors of model.safetensors, or of the shards that its index names."""

    single = "model.safetensors"

    def _read(self, path: Path, descriptor: int, size: int) -> dict[str, Place]:
        if size < 8:
            raise ColibriError(Code.TRUNCATED, f"{path} has {size} bytes, no safetensors header", 0)
        (length,) = struct.unpack("<Q", read_exactly(descriptor, 8, 0, str(path)))
        if length > size - 8:
            raise ColibriError(Code.TRUNCATED, f"{path}: header of {length} bytes in a file of {size}", 0)
        if length > MAX_HEADER_BYTES:
            raise ColibriError(Code.LIMIT, f"{path}: header of {length} bytes, limit {MAX_HEADER_BYTES}", 0)
        header = _header(bytes(read_exactly(descriptor, length, 8, str(path))), path)
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        base = 8 + length
        places: dict[str, Place] = {}
        ranges: list[tuple[int, int, str]] = []
        for name, entry in header.items():
            place, first, end = _place(path, descriptor, name, entry, base, size)
            places[name] = place
            ranges.append((first, end, name))
        _check_cover(path, ranges, size - base)
        return places


def _header(text: bytes, path: Path) -> dict[str, Any]:
    """The JSON object of a header; its metadata are an object of strings."""
    if not text.startswith(b"{"):
        raise ColibriError(Code.HEADER, f"{path}: the header does not begin with a brace", 8)
    objects, commas = text.count(b"[") + text.count(b"{"), text.count(b",")
    if objects > MAX_HEADER_OBJECTS or commas > MAX_HEADER_COMMAS:
        raise ColibriError(
            Code.LIMIT,
            f"{path}: header of {objects} lists and objects and {commas} commas, "
            f"limits {MAX_HEADER_OBJECTS} and {MAX_HEADER_COMMAS}",
            8,
        )
    try:
        header = parse_json(text, f"{path}: header", 8, unique=True)
    except ColibriError as error:
        raise ColibriError(Code.HEADER, error.message, error.offset) from error
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ColibriError(Code.HEADER, f"{path}: __metadata__ is no object of strings", 8)
    for word in (*header, *metadata, *metadata.values()):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            raise ColibriError(Code.HEADER, f"{path}: {shown(word)} has half a surrogate pair", 8) from error
    return header


def _place(path: Path, descriptor: int, name: str, entry: Any, base: int, size: int) -> tuple[Place, int, int]:
    """The place of one tensor, and its range behind the header."""
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        first, end = entry["data_offsets"]
        numbers = (*shape, first, end)
        good = len(entry) == 3 and isinstance(dtype, str) and len(shape) <= MAX_RANK
        good = good and isinstance(entry["shape"], list)  # {} and "" would be a scalar
        good = good and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)
    except (TypeError, KeyError, ValueError):
        good = False
    if not good:
        raise ColibriError(Code.TENSOR, f"{path}: malformed entry of tensor {shown(name)}", 8)
    if dtype not in STORED:
        raise ColibriError(
            Code.UNSUPPORTED, f"{path}: tensor {shown(name)} is {shown(dtype)}, supported: {', '.join(STORED)}"
        )
    expected = STORED[dtype][1]
    for n in shape:
        expected *= n
    if end - first != expected or end > size - base:
        raise ColibriError(
            Code.TENSOR,
            f"{path}: tensor {shown(name)} lies at {first}..{end} of {size - base} bytes, "
            f"its shape {list(shape)} of {dtype} needs {expected} bytes",
            8,
        )
    return Place(descriptor, dtype, shape, row_major(shape), base + first), first, end


def _check_cover(path: Path, ranges: list[tuple[int, int, str]], size: int) -> None:
    """The tensors lie side by side from the first byte to the last."""
    ranges = [(0, 0, ""), *sorted(ranges), (size, size, "")]
    for (_, end, name), (first, _, following) in pairwise(ranges):
        if first < end:
            raise ColibriError(
                Code.TENSOR,
                f"{path}: tensor {shown(following)} begins at {first}, inside tensor {shown(name)} up to {end}",
                8,
            )
        if first > end:
            raise ColibriError(
                Code.TENSOR, f"{path}: the bytes {end}..{first} behind the header belong to no tensor", 8
            )
