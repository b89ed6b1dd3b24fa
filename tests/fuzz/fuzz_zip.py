# SPDX-License-Identifier: MIT
"""Fuzz target: pytorch_model.bin in zip form. Checksums of the pickle are repaired, so that it is reached."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
import zlib
from collections.abc import Sequence

from fuzz_pickle import state
from fuzzing import Check, Folder, FoundError, Target, main, read_all


def repaired(data: bytes) -> bytes:
    """The archive with right checksums in its central directory, as an attacker would write them."""
    changed = bytearray(data)
    at = changed.find(b"PK\1\2")
    while 0 <= at <= len(changed) - 46:
        size, = struct.unpack_from("<I", changed, at + 24)
        names, extra, comment = struct.unpack_from("<3H", changed, at + 28)
        local, = struct.unpack_from("<I", changed, at + 42)
        if local <= len(changed) - 30:
            start = local + 30 + sum(struct.unpack_from("<2H", changed, local + 26))
            if start + size <= len(changed):
                checksum = zlib.crc32(changed[start : start + size])
                struct.pack_into("<I", changed, at + 16, checksum)
                if changed[local : local + 4] == b"PK\3\4":
                    struct.pack_into("<I", changed, local + 14, checksum)
        at = changed.find(b"PK\1\2", at + 46 + names + extra + comment)
    return bytes(changed)


def load() -> Check:
    """The check."""
    from colibri.torch_reader import TorchFiles
    from colibri.torch_zip import ZipArchive

    folder = Folder("pytorch_model.bin")

    def check(data: bytes) -> None:
        data = repaired(data)
        path = folder.put(data) / "pytorch_model.bin"
        with path.open("rb") as file:
            archive = ZipArchive(path, file.fileno(), len(data))
            total = 0
            for name, entry in archive.entries.items():
                if entry.offset + entry.size > len(data) or name.startswith("/") or ".." in name.split("/"):
                    raise FoundError(f"{name!r} at {entry}")
                total += entry.size
            if total > len(data):
                raise FoundError(f"entries of {total} bytes in {len(data)}")
        with TorchFiles(folder.path) as source:
            read_all(source)

    return check


def archive_of(entries: dict[str, bytes], wide: bool = False) -> bytes:
    """A zip file of stored entries."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=wide) as file:
                file.write(data)
    return buffer.getvalue()


def zip64(data: bytes) -> bytes:
    """The same with zip64 end records."""
    _, _, _, count, _, length, first, _ = struct.unpack("<4s4HIIH", data[-22:])
    end = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, first)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, first + length, 1)
    return data[:-22] + end + locator + data[-22:]


def seeds() -> Sequence[bytes]:
    """Good archives."""
    entries = {"m/data.pkl": state(["x"]), "m/byteorder": b"little", "m/version": b"3\n", "m/data/0": bytes(16)}
    plain = archive_of(entries)
    return [plain, zip64(plain), archive_of({"m/data.pkl": b"\x80\x02}."}), archive_of(entries, wide=True)]


WORDS = [b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"PK\7\x08", b"\xff\xff\xff\xff", b"../", b"/", b"\\",
         b"big", b"\x08\x08", b"\1\0\x18\0", b"data.pkl", b"constants.pkl"]  # fmt: skip
TARGET = Target("fuzz_zip", load, seeds, WORDS)

if __name__ == "__main__":
    sys.exit(main(TARGET))
