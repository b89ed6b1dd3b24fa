# SPDX-License-Identifier: MIT
"""pytorch_model.bin without torch: the zip form and the older stream of pickles.

zip:    ROOT/data.pkl is the pickle, ROOT/data/KEY the elements of each storage, ROOT/byteorder their order.
stream: five pickles (a magic number, a version, facts of the machine, the value, the keys of its
        storages), then for each key 8 bytes with the number of elements, and the elements.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from colibri._spec import Code
from colibri.checkpoint import STORED, Place, TensorFiles, read_exactly
from colibri.errors import ColibriError, shown
from colibri.pickle_reader import (
    MAX_PICKLE_BYTES,
    REFUSAL,
    Budget,
    PickleReader,
    Storage,
    Tensor,
    state_dict,
)
from colibri.torch_zip import ZipArchive

_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # of torch's streams
_PROTOCOL = 1001
_ORDERS = {b"little": "<", b"big": ">"}


class TorchFiles(TensorFiles):
    """The tensors of pytorch_model.bin, or of the shards that its index names."""

    single = "pytorch_model.bin"

    def _read(self, path: Path, descriptor: int, size: int) -> dict[str, Place]:
        head = bytes(read_exactly(descriptor, min(size, 512), 0, str(path)))
        if head.startswith(b"PK"):
            return _read_zip(path, descriptor, size)
        if head.startswith(b"\x80"):
            return _read_stream(path, descriptor, size)
        if head[257:262] == b"ustar":
            raise ColibriError(
                Code.UNSUPPORTED, f"{path} is the tar form of torch before 0.1.10; load it there and save it again"
            )
        raise ColibriError(
            Code.UNSUPPORTED, f"{REFUSAL}: {path} is neither a zip file nor a pickle; save model.state_dict()", 0
        )


def _places(
    tensors: dict[str, Tensor], starts: dict[str, tuple[Storage, int]], descriptor: int, order: str
) -> dict[str, Place]:
    """Places of tensors whose storages begin at `starts`."""
    places = {}
    for name, tensor in tensors.items():
        storage, start = starts[tensor.storage.key]
        offset = start + tensor.offset * STORED[storage.dtype][1]
        places[name] = Place(descriptor, storage.dtype, tensor.shape, tensor.strides, offset, order)
    return places


def _storages(tensors: dict[str, Tensor], path: Path) -> dict[str, Storage]:
    """The storages that tensors use; one key has one type and one size."""
    found: dict[str, Storage] = {}
    for name, tensor in tensors.items():
        first = found.setdefault(tensor.storage.key, tensor.storage)
        if first != tensor.storage:
            raise ColibriError(
                Code.TENSOR,
                f"{path}: tensor {shown(name)} takes the storage {shown(first.key)} for {tensor.storage.numel} "
                f"elements of {tensor.storage.dtype}, another for {first.numel} of {first.dtype}",
            )
    return found


def _read_zip(path: Path, descriptor: int, size: int) -> dict[str, Place]:
    archive = ZipArchive(path, descriptor, size)
    roots = [name.removesuffix("/data.pkl") for name in archive.entries if name.endswith("/data.pkl")]
    if len(roots) != 1 or "/" in roots[0]:
        found = ", ".join(shown(name) for name in list(archive.entries)[:3]) or "nothing"
        raise ColibriError(
            Code.UNSUPPORTED,
            f"{REFUSAL}: {path} is a zip file of {found}, with {len(roots)} of the one FOLDER/data.pkl that torch.save "
            "writes; save model.state_dict()",
        )
    root = roots[0]
    if f"{root}/constants.pkl" in archive.entries:
        raise ColibriError(Code.UNSUPPORTED, f"{REFUSAL}: {path} holds a TorchScript program; save model.state_dict()")
    order = "<"
    if f"{root}/byteorder" in archive.entries:
        word = archive.read(f"{root}/byteorder", 64)
        if word not in _ORDERS:
            raise ColibriError(
                Code.HEADER, f"{path}: the byte order is {shown(repr(word))}, must be little or big"
            )
        order = _ORDERS[word]
    data = archive.read(f"{root}/data.pkl", MAX_PICKLE_BYTES)
    reader = PickleReader(data, f"{path.name}, {root}/data.pkl" if root.isprintable() else path.name)
    tensors = state_dict(reader.load(), path.name)
    if reader.position != len(data):
        raise ColibriError(
            Code.UNSUPPORTED,
            f"{REFUSAL}: {path} holds {len(data) - reader.position} bytes behind the pickle; save model.state_dict()",
        )
    starts = {}
    for key, storage in _storages(tensors, path).items():
        entry = archive.entries.get(f"{root}/data/{key}")
        wanted = storage.numel * STORED[storage.dtype][1]
        if entry is None or entry.size != wanted:
            has = "is not there" if entry is None else f"has {entry.size} bytes"
            raise ColibriError(
                Code.TENSOR,
                f"{path}: the storage {shown(key)} {has}; {storage.numel} elements of {storage.dtype} are {wanted}",
            )
        starts[key] = storage, entry.offset
    return _places(tensors, starts, descriptor, order)


def _read_stream(path: Path, descriptor: int, size: int) -> dict[str, Place]:
    data = bytes(read_exactly(descriptor, min(size, MAX_PICKLE_BYTES), 0, str(path)))
    budget, at = Budget(), 0

    def following() -> Any:
        nonlocal at
        reader = PickleReader(data, path.name, at, budget)
        value = reader.load()
        at = reader.position
        return value

    magic = following()
    if type(magic) is not int or magic != _MAGIC_NUMBER:
        raise ColibriError(
            Code.UNSUPPORTED,
            f"{REFUSAL}: {path} holds a pickle that torch.save did not write; save model.state_dict() with torch.save",
            0,
        )
    version, machine, value, keys = following(), following(), following(), following()
    if type(version) is not int or version != _PROTOCOL:
        raise ColibriError(Code.UNSUPPORTED, f"{path}: a stream of torch of another version than {_PROTOCOL}", at)
    little = machine.get("little_endian") if isinstance(machine, dict) else None
    if type(little) is not bool:
        raise ColibriError(Code.HEADER, f"{path}: the byte order is not given", at)
    tensors = state_dict(value, path.name)
    storages = _storages(tensors, path)
    if type(keys) is not list or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
        raise ColibriError(Code.HEADER, f"{path}: the keys of the storages are no list of different texts", at)
    order = "<" if little else ">"
    starts = {}
    for key in keys:
        storage = storages.get(key)
        if storage is None:
            raise ColibriError(Code.TENSOR, f"{path}: the storage {shown(key)} belongs to no tensor", at)
        wanted = storage.numel * STORED[storage.dtype][1]
        if size - at < 8:
            raise ColibriError(Code.TRUNCATED, f"{path} ends in front of the storage {shown(key)}", at)
        (numel,) = struct.unpack(f"{order}q", read_exactly(descriptor, 8, at, str(path)))
        at += 8
        if numel != storage.numel or wanted > size - at:
            raise ColibriError(
                Code.TENSOR,
                f"{path}: the storage {shown(key)} has {numel} elements and {size - at} bytes up to the end; "
                f"{storage.numel} elements of {storage.dtype} are {wanted}",
                at,
            )
        starts[key] = storage, at
        at += wanted
    absent = sorted(set(storages) - set(starts))
    if absent or at != size:
        what = f"the storage {shown(absent[0])} is not there" if absent else f"{size - at} bytes belong to no storage"
        raise ColibriError(Code.TENSOR, f"{path}: {what}", at)
    return _places(tensors, starts, descriptor, order)
