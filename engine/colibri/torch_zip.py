# SPDX-License-Identifier: MIT
"""The zip container of torch.save, read as a hostile file: stored entries only, nothing ambiguous.

The zip format says most things twice and leaves room between them, which is where archives lie to
one reader and not to another. Accepted is what torch writes: no comment, one disk, one central
directory right before the end, every entry stored as it is (no compression, so no bomb), entries
that do not overlap, names that are plain relative paths and all different, and local headers that
agree with the directory. Sizes of torch's local headers may be 0, with a descriptor behind the data.
"""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from colibri._spec import Code
from colibri.checkpoint import read_exactly
from colibri.errors import ColibriError, shown

MAX_ENTRIES = 1 << 18
MAX_DIRECTORY_BYTES = 1 << 26
_MAX_NAME_BYTES = 1024
_END = struct.Struct("<4s4HIIH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_ZIP64_EXTRA = 1
_MASK32, _MASK16 = 0xFFFFFFFF, 0xFFFF
_FLAG_DESCRIPTOR, _FLAG_UTF8 = 1 << 3, 1 << 11


class Entry(NamedTuple):
    """One stored file: where its bytes are."""

    offset: int
    size: int
    crc: int


class _Central(NamedTuple):
    name: bytes
    flags: int
    size: int
    crc: int
    header: int


class ZipArchive:
    """Entries of a zip file by name."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self._path, self._descriptor = path, descriptor
        first, length, count = self._end(size)
        directory = bytes(self._read(first, length))
        ranges: list[tuple[int, int, str]] = []
        self.entries: dict[str, Entry] = {}
        at = 0
        for _ in range(count):
            central, at = self._central(directory, at, first)
            name = self._name(central, first)
            if name in self.entries:
                raise self._error(f"the entry {shown(name)} is there twice", first + at)
            data = self._local(central, name, first)
            self.entries[name] = Entry(data, central.size, central.crc)
            ranges.append((central.header, data + central.size, name))
        if at != length:
            raise self._error(f"{length - at} bytes of the central directory belong to no entry", first + at)
        ranges.sort()
        for (_, end, name), (begin, _, following) in pairwise(ranges):
            if begin < end:
                raise self._error(f"the entries {shown(name)} and {shown(following)} overlap", begin)

    def read(self, name: str, limit: int) -> bytes:
        """The whole of a small entry, its CRC checked."""
        entry = self.entries.get(name)
        if entry is None:
            raise self._error(f"there is no entry {shown(name)}")
        if entry.size > limit:
            raise ColibriError(
                Code.LIMIT, f"{self._path}: {shown(name)} has {entry.size} bytes, limit {limit}", entry.offset
            )
        data = bytes(self._read(entry.offset, entry.size))
        if zlib.crc32(data) != entry.crc:
            raise self._error(f"{shown(name)} does not have the CRC that is written beside it", entry.offset)
        return data

    def _error(self, message: str, offset: int | None = None) -> ColibriError:
        return ColibriError(Code.HEADER, f"{self._path}: {message}; save the model again with torch.save", offset)

    def _read(self, offset: int, size: int) -> bytearray:
        return read_exactly(self._descriptor, size, offset, str(self._path))

    def _end(self, size: int) -> tuple[int, int, int]:
        """Offset and size of the central directory, and its number of entries."""
        at = size - _END.size
        if at < 0:
            raise self._error(f"{size} bytes are no zip file", 0)
        magic, disk, first_disk, here, count, length, first, comment = _END.unpack(self._read(at, _END.size))
        if magic != b"PK\5\6":
            raise self._error("the zip file does not end with its end record (it is cut, or has a comment)", at)
        if comment or disk or first_disk or here != count:
            raise self._error("a zip file with a comment or of several disks", at)
        end = at
        locator_at = at - _LOCATOR.size
        if locator_at >= _END64.size and bytes(self._read(locator_at, 4)) == b"PK\6\7":
            end = locator_at - _END64.size
            _, disk, end_at, disks = _LOCATOR.unpack(self._read(locator_at, _LOCATOR.size))
            wide = _END64.unpack(self._read(end, _END64.size))
            if wide[0] != b"PK\6\6" or wide[1] != _END64.size - 12 or end_at != end or disk or disks > 1:
                raise self._error("the zip64 end record is not where its locator says", locator_at)
            if wide[4] or wide[5] or wide[6] != wide[7]:
                raise self._error("a zip file of several disks", end)
            narrow = ((count, wide[7], _MASK16), (length, wide[8], _MASK32), (first, wide[9], _MASK32))
            if any(small not in (large, mask) for small, large, mask in narrow):
                raise self._error("the two end records differ", at)
            count, length, first = wide[7:]
        if first > end or length != end - first:
            raise self._error(f"a central directory of {length} bytes at {first} does not end at {end}", at)
        if count > MAX_ENTRIES or length > MAX_DIRECTORY_BYTES:
            raise ColibriError(
                Code.LIMIT,
                f"{self._path}: {count} entries in {length} bytes, limits {MAX_ENTRIES} and {MAX_DIRECTORY_BYTES}",
                at,
            )
        if count * _CENTRAL.size > length:
            raise self._error(f"{count} entries do not fit into {length} bytes", at)
        return first, length, count

    def _central(self, directory: bytes, at: int, base: int) -> tuple[_Central, int]:
        """One entry of the central directory, and where the next begins."""
        where = base + at
        if len(directory) - at < _CENTRAL.size:
            raise self._error("the central directory ends inside an entry", where)
        fields = _CENTRAL.unpack_from(directory, at)
        magic, _, _, flags, method, _, _, crc, packed, size = fields[:10]
        name_bytes, extra_bytes, comment, disk, _, _, header = fields[10:]
        at += _CENTRAL.size
        if magic != b"PK\1\2" or len(directory) - at < name_bytes + extra_bytes + comment:
            raise self._error("malformed entry of the central directory", where)
        name = directory[at : at + name_bytes]
        at += name_bytes
        extra = directory[at : at + extra_bytes]
        at += extra_bytes
        label = shown(name[:100].decode("utf-8", "replace"))
        if flags & ~(_FLAG_DESCRIPTOR | _FLAG_UTF8):
            raise self._error(f"{label} is encrypted or patched (flags {flags:#x})", where)
        if method:
            raise self._error(f"{label} is compressed (method {method}), torch.save stores", where)
        if comment or disk:
            raise self._error(f"{label} has a comment or is on another disk", where)
        wanted = [value == _MASK32 for value in (size, packed, header)]
        if any(wanted):
            wide = self._zip64(extra, sum(wanted), label, where)
            size, packed, header = (
                wide.pop(0) if absent else value
                for absent, value in zip(wanted, (size, packed, header), strict=True)
            )
        if packed != size:
            raise self._error(f"{label} has {packed} bytes stored for {size}", where)
        return _Central(name, flags, size, crc, header), at

    def _zip64(self, extra: bytes, count: int, label: str, where: int) -> list[int]:
        """The 64-bit values that stand in place of `count` 32-bit ones."""
        at = 0
        while len(extra) - at >= 4:
            kind, length = struct.unpack_from("<2H", extra, at)
            at += 4
            if kind == _ZIP64_EXTRA and 8 * count <= length <= len(extra) - at:
                return list(struct.unpack_from(f"<{count}Q", extra, at))
            at += length
        raise self._error(f"{label} lacks its 64-bit sizes", where)

    def _name(self, central: _Central, base: int) -> str:
        """The entry's name: a relative path without tricks."""
        if len(central.name) > _MAX_NAME_BYTES:
            raise self._error(f"an entry's name has {len(central.name)} bytes, limit {_MAX_NAME_BYTES}", base)
        try:
            name = central.name.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._error("an entry's name is not UTF-8", base) from error
        parts = name.split("/")
        if any(part in ("", ".", "..") for part in parts) or any(c in name for c in "\\:\0"):
            raise self._error(f"the entry {shown(repr(name))} is no relative path", base)
        return name

    def _local(self, central: _Central, name: str, end: int) -> int:
        """Where the data of an entry begins; its local header must say the same as the directory."""
        at = central.header
        length = len(central.name)
        if at > end or end - at < _LOCAL.size + length:
            raise self._error(f"the header of {shown(name)} at {at} is not in front of the directory", at)
        head = bytes(self._read(at, _LOCAL.size + length))
        magic, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = _LOCAL.unpack_from(head)
        same = magic == b"PK\3\4" and name_bytes == length and head[_LOCAL.size :] == central.name
        if not same or flags != central.flags or method:
            raise self._error(f"the header of {shown(name)} is not what the directory says", at)
        allowed = (central.size, _MASK32, 0) if flags & _FLAG_DESCRIPTOR else (central.size, _MASK32)
        if packed not in allowed or size not in allowed or crc not in (central.crc, 0):
            raise self._error(f"the header of {shown(name)} gives other sizes than the directory", at)
        data: int = at + _LOCAL.size + length + extra_bytes
        if data > end or central.size > end - data:
            raise self._error(f"{shown(name)} of {central.size} bytes at {data} runs into the directory", at)
        return data
