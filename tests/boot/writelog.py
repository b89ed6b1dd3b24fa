# SPDX-License-Identifier: MIT
"""What a disk may hold after a power cut: replay of a log of its writes.

QEMU's block driver blklogwrites writes the log, in the format of the Linux device mapper target
dm-log-writes (Documentation/admin-guide/device-mapper/log-writes.rst); all numbers are
little-endian, everything is counted in sectors of the size that the first one states:

    sector 0        u64 magic, u64 version, u64 number of entries, u32 bytes of a sector
    then, for each  u64 sector, u64 sectors, u64 flags, u64 length of a remark; padded to a sector
    entry           then its data, unless it is a discard

Sector 0 is written at the first flush and brought up to date now and then, so the log is also read
beyond what it counts, to the first sector of zeros: give QEMU an empty sparse file.

A disk with a volatile cache keeps, when the power goes, everything before the last completed flush
and any part of what came after it. `states` makes such disks: one at every flush and every forced
(FUA) write, and between two flushes some with a random part of the writes, in which the last write
may be torn at a sector.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MAGIC = 0x6A736677736872
VERSION = 1
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
KNOWN_FLAGS = FLUSH | FUA | DISCARD | MARK | 16  # 16: metadata, a hint
_SUPER = struct.Struct("<QQQI")
_ENTRY = struct.Struct("<QQQQ")
SECTOR = 512


class LogError(Exception):
    """A log that does not follow the format; the message names the place."""


@dataclass(frozen=True)
class Entry:
    """One request that reached the disk."""

    index: int
    offset: int  # bytes
    data: bytes  # empty for a flush, a mark and a discard
    flags: int
    discarded: int = 0  # bytes, from offset

    @property
    def flush(self) -> bool:
        """Whether everything before it is safe when it is done (the request's own data is not)."""
        return bool(self.flags & FLUSH)

    @property
    def fua(self) -> bool:
        """Whether its own data is safe when it is done."""
        return bool(self.flags & FUA)


def create(path: Path, size: int) -> None:
    """An empty log file for QEMU, sparse. size: bytes that it may grow to."""
    with path.open("wb") as file:
        file.truncate(size)


def read(path: Path) -> list[Entry]:
    """All complete entries of a log, also those that sector 0 does not count yet."""
    entries: list[Entry] = []
    with path.open("rb") as file:
        end = path.stat().st_size
        head = file.read(_SUPER.size)
        if len(head) < _SUPER.size:
            raise LogError(f"{path}: {end} bytes, the head of a log has {_SUPER.size}")
        unflushed = _SUPER.pack(MAGIC, VERSION, 0, SECTOR)  # QEMU's, as it is asked for here
        magic, version, counted, sector_bytes = _SUPER.unpack(head if any(head) else unflushed)
        if (magic, version) != (MAGIC, VERSION):
            raise LogError(f"{path}: magic {magic:#x} version {version}; a log has {MAGIC:#x} and {VERSION}")
        if sector_bytes < SECTOR or sector_bytes & (sector_bytes - 1):
            raise LogError(f"{path}: sectors of {sector_bytes} bytes; a power of two from {SECTOR} is expected")
        at = sector_bytes
        while at + sector_bytes <= end:
            file.seek(at)
            sector, sectors, flags, remark = _ENTRY.unpack(file.read(_ENTRY.size))
            if (sector, sectors, flags, remark) == (0, 0, 0, 0):
                break
            if flags & ~KNOWN_FLAGS:
                raise LogError(f"{path}: entry {len(entries)} at byte {at}: flags {flags:#x} are unknown")
            at += sector_bytes
            length = sectors * sector_bytes
            carried = 0 if flags & DISCARD else length
            if at + carried > end:
                raise LogError(f"{path}: entry {len(entries)}: {carried} bytes of data from {at}, the file has {end}")
            file.seek(at)
            data = file.read(carried)
            at += carried
            discarded = length if flags & DISCARD else 0
            entries.append(Entry(len(entries), sector * sector_bytes, data, flags, discarded))
    if len(entries) < counted:
        raise LogError(f"{path}: {len(entries)} entries, sector 0 counts {counted}")
    return entries


def apply(disk: bytearray, entry: Entry, length: int | None = None) -> None:
    """Write an entry to the disk. length: only that many of its bytes arrived."""
    end = entry.offset + max(len(entry.data), entry.discarded)
    if end > len(disk):
        raise LogError(f"entry {entry.index} ends at byte {end}, the disk has {len(disk)}")
    data = bytes(entry.discarded) if entry.discarded else entry.data
    data = data[:length]
    disk[entry.offset : entry.offset + len(data)] = data


@dataclass(frozen=True)
class State:
    """A disk as a power cut may leave it, at any moment between two entries of the log."""

    name: str
    since: int  # nothing of entry `since` and later ones is on the disk
    until: int  # the power may have gone at the latest when this entry was under way
    disk: bytes


def epochs(entries: Sequence[Entry]) -> list[list[Entry]]:
    """The entries in groups; each but the last ends in a flush."""
    groups: list[list[Entry]] = [[]]
    for entry in entries:
        if entry.flush:
            # A flush with data first saves what came before, then writes: its data is of the next group.
            groups[-1].append(Entry(entry.index, entry.offset, b"", FLUSH))
            groups.append([entry] if entry.data else [])
        else:
            groups[-1].append(entry)
    return groups


def states(
    initial: bytes, entries: Sequence[Entry], source: random.Random, cuts: int, whole: range = range(0)
) -> Iterator[State]:
    """Disks that a power cut may leave, in the order of time.

    initial: the disk before entry 0; source: chooses the parts; cuts: disks between two flushes;
    whole: bytes of the disk inside of which no write is torn.
    """
    disk = bytearray(initial)
    groups = epochs(entries)
    since = 0
    for number, group in enumerate(groups):
        flushed = bool(group) and group[-1].flush
        end = group[-1].index if flushed else len(entries)
        writes = [entry for entry in group if entry.data or entry.discarded]
        name = f"at flush {number - 1}" if number else "before the first flush"
        yield State(name, since, _first_forced(writes, end), bytes(disk))
        for cut in range(cuts if writes else 0):
            yield _cut(disk, number, writes, source, end, cut, whole)
        for entry in group:
            apply(disk, entry)
            if entry.fua:
                until = _first_forced([other for other in writes if other.index > entry.index], end)
                yield State(f"behind forced write {entry.index}", entry.index + 1, until, bytes(disk))
        since = end + 1 if flushed else end
    if groups[-1]:
        yield State("at the end of the log", len(entries), len(entries), bytes(disk))


def _first_forced(lost: Sequence[Entry], end: int) -> int:
    """The power went before the first forced write that the disk does not have, or before the flush."""
    return min([entry.index for entry in lost if entry.fua] + [end])


def _tear(entry: Entry, source: random.Random, whole: range) -> int:
    """How many bytes of a torn write arrived: whole sectors, and of the bytes in `whole` all or none."""
    last = entry.offset + len(entry.data)
    ends = [end for end in range(entry.offset + SECTOR, last, SECTOR) if not whole.start < end < whole.stop]
    return source.choice(ends or [last]) - entry.offset


def _cut(
    disk: bytearray, number: int, writes: Sequence[Entry], source: random.Random, end: int, cut: int, whole: range
) -> State:
    """Part of a group: a run from its start, or any subset; forced writes are never lost."""
    partial = bytearray(disk)
    # Every second cut keeps the order; the others let the disk choose.
    kept = list(writes[: source.randint(1, len(writes))])
    if cut % 2:
        kept = [entry for entry in writes if entry.fua or source.random() < 0.5]
    torn = source.randrange(4) == 0
    for entry in kept:
        length = None
        if torn and entry is kept[-1] and not entry.fua and len(entry.data) > SECTOR:
            length = _tear(entry, source, whole)
        apply(partial, entry, length)
    numbers = ",".join(str(entry.index) for entry in kept)
    name = f"after flush {number - 1} with {len(kept)} of {len(writes)} writes ({numbers}{' torn' if torn else ''})"
    indices = {entry.index for entry in kept}
    lost = [entry for entry in writes if entry.index not in indices]
    since = max(indices, default=writes[0].index - 1) + 1
    return State(name, since, _first_forced(lost, end), bytes(partial))
