# SPDX-License-Identifier: MIT
"""A block device in memory, for storage of a known speed: ext4 on a loop device over a file in tmpfs.

Control groups limit its reads and its read-ahead can be set without touching the disk of the
machine. Copying costs processor time that a disk does not take: figures on it are on the safe side.
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SPARE_BYTES = 3 << 30  # left for the commands that are measured
SHARED_MEMORY = Path("/dev/shm")


class RamDiskError(Exception):
    """The device cannot be had; the message says why."""


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RamDiskError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}; needs root")
    return done.stdout.strip()


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def direct_rate(path: Path, blocks: int = 64, block_bytes: int = 4 << 20) -> float:
    """Bytes per second of one reader past the page cache, in blocks all over the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, block_bytes) as buffer:
            steps = max(1, path.stat().st_size // block_bytes)
            begin = time.monotonic()
            for i in range(blocks):
                os.preadv(descriptor, [buffer], i * 29 % steps * block_bytes)
            return blocks * block_bytes / (time.monotonic() - begin)
    finally:
        os.close(descriptor)


class RamDisk:
    """A mounted disk with copies of `files`, while the `with` block runs; `path(file)` is the copy."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files
        self._image: Path | None = None
        self._folder: Path | None = None
        self._device = ""
        self._mounted = False

    def __enter__(self) -> Self:
        size = sum(file.stat().st_size for file in self._files)
        size += size // 64 + (64 << 20)  # tables of the file system
        if _available_bytes() < size + SPARE_BYTES:
            raise RamDiskError(
                f"a disk of {size} bytes in memory leaves less than {SPARE_BYTES}: "
                f"{_available_bytes()} are available"
            )
        try:
            self._make(size)
        except BaseException:
            self._remove()
            raise
        return self

    def _make(self, size: int) -> None:
        with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY, prefix="colibri-bench-", delete=False) as image:
            self._image = Path(image.name)
            image.truncate(size)
        _run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-m", "0", str(self._image))
        self._device = _run("losetup", "--find", "--show", str(self._image))
        self._folder = Path(tempfile.mkdtemp(prefix="colibri-bench-"))
        _run("mount", self._device, str(self._folder))
        self._mounted = True
        for file in self._files:
            shutil.copyfile(file, self.path(file))
        _run("sync", "-f", str(self._folder))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        if self._mounted:
            _run("umount", str(self._folder))
            self._mounted = False
        if self._folder is not None:
            self._folder.rmdir()
            self._folder = None
        if self._device:
            _run("losetup", "--detach", self._device)
            self._device = ""
        if self._image is not None:
            self._image.unlink()
            self._image = None

    def path(self, file: Path) -> Path:
        """The copy of a file."""
        assert self._folder is not None
        return self._folder / file.name
