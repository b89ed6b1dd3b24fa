# SPDX-License-Identifier: MIT
"""Changes a good .colibri file into a bad one, and makes its hashes right again.

Written from docs/format.md with its own structs, so that it does not share the reader's mistakes.
A bad field under right hashes reaches the rule that it breaks instead of the root check.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

PAGE = 4096
CHUNK = 65536
RECORDS, DIRECTORY, TOKENIZER, PROVENANCE, CALIBRATION, TRUNK, EXPERTS, SIGNATURE = range(1, 9)
HASHED = (TOKENIZER, PROVENANCE, CALIBRATION)
BLOCK_IDS = {"model": 1, "rope": 2, "layer": 3, "attention": 4, "mla": 5, "moe": 8}


def sha(data: bytes | bytearray) -> bytes:
    """SHA-256."""
    return hashlib.sha256(data).digest()


def tree(data: bytes | bytearray) -> tuple[bytes, bytes]:
    """(chunk hashes one after another, hash of them)."""
    hashes = b"".join(sha(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))
    return hashes, sha(hashes)


@dataclass
class Extent:
    """An extent entry: where the entry is, and what it says."""

    at: int
    layer: int
    expert: int
    offset: int
    size: int


@dataclass
class Tensor:
    """A tensor entry: where the entry is, and what it says."""

    at: int
    role: int
    layer: int
    offset: int
    size: int
    scope: int


class Forge:
    """The bytes of a file, with names for its places."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def u32(self, at: int, value: int) -> None:
        """Write a u32."""
        struct.pack_into("<I", self.data, at, value)

    def u64(self, at: int, value: int) -> None:
        """Write a u64."""
        struct.pack_into("<Q", self.data, at, value)

    def put(self, at: int, value: bytes) -> None:
        """Write bytes."""
        self.data[at : at + len(value)] = value

    def section_entry(self, kind: int) -> int:
        """Offset of a section's entry in the table."""
        (count,) = struct.unpack_from("<I", self.data, 40)
        for at in range(128, 128 + 64 * count, 64):
            if struct.unpack_from("<I", self.data, at)[0] == kind:
                return at
        raise KeyError(kind)

    def section(self, kind: int) -> tuple[int, int]:
        """(offset, size) of a section."""
        offset, size = struct.unpack_from("<QQ", self.data, self.section_entry(kind) + 8)
        return offset, size

    def kinds(self) -> list[int]:
        """Kinds of the sections, in the order of the table."""
        (count,) = struct.unpack_from("<I", self.data, 40)
        return [struct.unpack_from("<I", self.data, 128 + 64 * i)[0] for i in range(count)]

    def add_section(self, kind: int, data: bytes) -> None:
        """Put a section into the gap in front of the trunk, or behind everything; hashes are left alone."""
        kinds = self.kinds()
        at = sum(1 for other in kinds if other < kind)
        offset = -(-sum(self.section(kinds[at - 1])) // PAGE) * PAGE
        if at == len(kinds):
            self.data += bytes(-len(self.data) % PAGE) + data + bytes(-len(data) % PAGE)
            self.u64(32, len(self.data))
        else:
            assert offset + len(data) <= self.section(kinds[at])[0], "there is no room in front of the next section"
            self.put(offset, data)
        entry, end = 128 + 64 * at, 128 + 64 * len(kinds)
        self.put(entry + 64, bytes(self.data[entry:end]))
        self.put(entry, struct.pack("<IIQQQ32s", kind, 0, offset, len(data), 0, bytes(32)))
        self.u32(40, len(kinds) + 1)

    def drop_entry(self, kind: int) -> None:
        """Take a section out of the table; its bytes stay."""
        at, end = self.section_entry(kind), 128 + 64 * len(self.kinds())
        self.put(at, bytes(self.data[at + 64 : end]) + bytes(64))
        self.u32(40, len(self.kinds()) - 1)

    def block(self, name: str, number: int = 0) -> int:
        """Offset of the payload of the number-th block of a type."""
        at, size = self.section(RECORDS)
        end = at + size
        while at < end:
            kind, _, length = struct.unpack_from("<HHI", self.data, at)
            if kind == BLOCK_IDS[name]:
                if number == 0:
                    return at + 8
                number -= 1
            at += 8 + length
        raise KeyError(name)

    def insert(self, kind: int, at: int, value: bytes) -> None:
        """Insert bytes into the records or directory section; the next section must stay in place."""
        offset, size = self.section(kind)
        room = -(offset + size) % PAGE
        assert len(value) <= room, "the section's page has no room"
        end = offset + size
        self.data[at : end + len(value)] = value + self.data[at:end]
        self.u64(self.section_entry(kind) + 16, size + len(value))

    def remove(self, kind: int, at: int, count: int) -> None:
        """Remove bytes of the records or directory section."""
        offset, size = self.section(kind)
        assert size % PAGE > count, "the section would end on an earlier page"
        end = offset + size
        self.data[at:end] = self.data[at + count : end] + bytes(count)
        self.u64(self.section_entry(kind) + 16, size - count)

    def extents(self) -> list[Extent]:
        """Every extent."""
        offset, _ = self.section(DIRECTORY)
        (count,) = struct.unpack_from("<I", self.data, offset)
        result = []
        for i in range(count):
            at = offset + 16 + 64 * i
            _, layer, expert, _, where, size = struct.unpack_from("<IIIIQQ", self.data, at)
            result.append(Extent(at, layer, expert, where, size))
        return result

    def tensors(self) -> list[Tensor]:
        """Every tensor entry."""
        offset, _ = self.section(DIRECTORY)
        extents, count = struct.unpack_from("<II", self.data, offset)
        result = []
        for i in range(count):
            at = offset + 16 + 64 * extents + 48 * i
            role, layer, _, _, _, _, where, size, scope = struct.unpack_from("<IIIIIIQQI", self.data, at)
            result.append(Tensor(at, role, layer, where, size, scope))
        return result

    def tensor(self, role: int, layer: int = 0xFFFFFFFF) -> Tensor:
        """The entry of a role."""
        return next(t for t in self.tensors() if (t.role, t.layer) == (role, layer))

    def stored(self, role: int, layer: int = 0xFFFFFFFF, expert: int = 0xFFFFFFFF) -> int:
        """Offset in the file of a tensor's data."""
        extent = next(e for e in self.extents() if (e.layer, e.expert) == (layer, expert))
        return extent.offset + self.tensor(role, layer).offset

    def rehash_weights(self) -> None:
        """Chunk tables, extent hashes and section hashes of what the file now holds."""
        for extent in self.extents():
            hashes, digest = tree(self.data[extent.offset : extent.offset + extent.size])
            self.put(extent.offset + extent.size, hashes)
            self.put(extent.at + 32, digest)
        for kind in (kind for kind in self.kinds() if kind in HASHED):
            offset, size = self.section(kind)
            self.put(self.section_entry(kind) + 32, tree(self.data[offset : offset + size])[1])

    def rehash_root(self) -> None:
        """The root over header, records and directory."""
        page = self.data[:48] + bytes(32) + self.data[80:PAGE]
        parts = [page]
        for kind in (RECORDS, DIRECTORY):
            offset, size = self.section(kind)
            parts.append(self.data[offset : offset + size])
        self.put(48, sha(b"".join(parts)))
