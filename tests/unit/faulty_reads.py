# SPDX-License-Identifier: MIT
"""Reads that fail, come short or wait in a program under test: faulty_reads.c, and how a test steers it."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path

HEALTHY, FAIL, SHORT, INTERRUPT, STALL, SLOW = range(6)
EVERYWHERE = (0, 1 << 62)


class Faults:
    """The file that tells the preloaded library what to do."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(40))
        self._path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 40)

    def set(self, mode: int, number: int = 0, where: tuple[int, int] = EVERYWHERE) -> None:
        """From now on; where: first byte of the file, and the one behind the last."""
        self._memory[8:32] = struct.pack("<3q", number, *where)
        self._memory[0:8] = struct.pack("<q", mode)

    @property
    def hits(self) -> int:
        """Reads that were touched."""
        return int(struct.unpack("<q", self._memory[32:40])[0])

    def variables(self, library: Path) -> dict[str, str]:
        """The environment of a program whose reads they are."""
        return {"LD_PRELOAD": str(library), "FAULTY_READS": str(self._path)}


def build(folder: Path) -> Path:
    """Compile the library into a folder."""
    path = folder / "faulty_reads.so"
    compiler = shutil.which("cc") or "gcc"
    flags = ["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *flags, "-o", path, Path(__file__).with_suffix(".c"), "-ldl"], check=True)
    return path
