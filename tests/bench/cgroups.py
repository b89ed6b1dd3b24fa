# SPDX-License-Identifier: MIT
"""Control groups for measurements: a memory limit with its peak, and a limit on reads of a device.

Works with cgroup v1 (the controllers `memory` and `blkio`) and v2. Page cache that the commands in
the group bring in is charged to it, as on a board whose whole memory is that small.

    with Group(memory_bytes=3 << 29, read_bytes_per_s=1 << 30, device_of=model) as group:
        process = run(command, group=group)     # see isolation.py
        print(group.peak_bytes(), group.oom_kills())
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Self

MOUNT = Path("/sys/fs/cgroup")
_count = itertools.count()


class GroupError(Exception):
    """A control group cannot be had; the message says why and what to do."""


def version() -> int:
    """2 when the memory controller is in the unified hierarchy, else 1."""
    if (MOUNT / "memory" / "memory.limit_in_bytes").exists():
        return 1
    controllers = MOUNT / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text().split():
        return 2
    raise GroupError(
        f"no memory controller below {MOUNT} (neither v1 nor v2); "
        "boot with cgroup_enable=memory, or run where cgroups are mounted"
    )


def device_number(path: str | os.PathLike[str]) -> str:
    """`MAJOR:MINOR` of the whole disk that holds a file: limits do not apply to partitions."""
    device = os.stat(path).st_dev
    name = f"{os.major(device)}:{os.minor(device)}"
    entry = Path("/sys/dev/block") / name
    if not entry.exists():
        raise GroupError(f"{path} is not on a block device ({name}): its reads cannot be limited")
    if (entry / "partition").exists():
        return (entry.resolve().parent / "dev").read_text().strip()
    return name


def read_ahead_file(path: str | os.PathLike[str]) -> Path:
    """The setting that decides how much a page fault reads."""
    return Path("/sys/dev/block") / device_number(path) / "queue" / "read_ahead_kb"


class ReadAhead:
    """Read-ahead of the device of a file, in KiB, for a while; the old value comes back."""

    def __init__(self, path: str | os.PathLike[str], kib: int) -> None:
        self._file = read_ahead_file(path)
        self._kib = kib

    def __enter__(self) -> Self:
        self._before = self._file.read_text()
        _write(self._file, str(self._kib))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _write(self._file, self._before.strip())


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        hint = "run as root" if os.geteuid() else "is the controller enabled and the file system writable?"
        raise GroupError(f"{file} cannot be set to {text!r}: {error.strerror}; {hint}") from error


class Group:
    """A control group that exists while the `with` block runs; processes join it with `join`."""

    def __init__(
        self,
        memory_bytes: int = 0,
        read_bytes_per_s: int = 0,
        device_of: str | os.PathLike[str] | None = None,
    ) -> None:
        self.version = version()
        self.memory_bytes = memory_bytes
        self.read_bytes_per_s = read_bytes_per_s
        self._device = device_number(device_of) if device_of is not None else ""
        if read_bytes_per_s and not self._device:
            raise GroupError("a limit on reads needs the file whose device is limited: give device_of")
        name = f"colibri-bench-{os.getpid()}-{next(_count)}"
        if self.version == 2:
            self._memory = self._io = MOUNT / name
        else:
            self._memory, self._io = MOUNT / "memory" / name, MOUNT / "blkio" / name
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def _make(self) -> None:
        if self.version == 2:
            have = (MOUNT / "cgroup.subtree_control").read_text().split()
            for controller in ("memory", "io") if self._device else ("memory",):
                if controller not in have:
                    _write(MOUNT / "cgroup.subtree_control", f"+{controller}")
        for folder in dict.fromkeys((self._memory, self._io) if self._device else (self._memory,)):
            try:
                folder.mkdir()
            except OSError as error:
                hint = "; run as root" if os.geteuid() else ""
                raise GroupError(f"{folder} cannot be made: {error.strerror}{hint}") from error
            self._made.append(folder)
        if self.memory_bytes:
            self._limit_memory()
        if self.read_bytes_per_s:
            if self.version == 2:
                _write(self._io / "io.max", f"{self._device} rbps={self.read_bytes_per_s}")
            else:
                _write(self._io / "blkio.throttle.read_bps_device", f"{self._device} {self.read_bytes_per_s}")

    def _limit_memory(self) -> None:
        if self.version == 2:
            _write(self._memory / "memory.max", str(self.memory_bytes))
            if (self._memory / "memory.swap.max").exists():
                _write(self._memory / "memory.swap.max", "0")
            return
        _write(self._memory / "memory.limit_in_bytes", str(self.memory_bytes))
        if (self._memory / "memory.memsw.limit_in_bytes").exists():
            _write(self._memory / "memory.memsw.limit_in_bytes", str(self.memory_bytes))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    def _remove(self) -> None:
        """The members have ended, but the kernel may take a moment to notice."""
        while self._made:
            folder = self._made.pop()
            for attempt in range(50):
                try:
                    folder.rmdir()
                    break
                except OSError:
                    if attempt == 49:
                        raise
                    time.sleep(0.1)

    def join(self) -> None:
        """Move the calling process into the group: for a child between fork and exec."""
        for folder in self._made:
            with open(folder / "cgroup.procs", "w") as file:
                file.write("0")

    def peak_bytes(self) -> int:
        """Most memory that the group had, page cache and kernel memory included."""
        name = "memory.peak" if self.version == 2 else "memory.max_usage_in_bytes"
        return int((self._memory / name).read_text())

    def usage(self) -> dict[str, int]:
        """Rows of memory.stat, in bytes."""
        rows = (line.split() for line in (self._memory / "memory.stat").read_text().splitlines())
        return {row[0]: int(row[1]) for row in rows}

    def oom_kills(self) -> int:
        """Processes of the group that the kernel killed for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        rows = (line.split() for line in (self._memory / name).read_text().splitlines())
        return next(int(row[1]) for row in rows if row[0] == "oom_kill")

    def read_bytes(self) -> int:
        """Bytes that the group has read from the device."""
        if not self._device:
            raise GroupError("the group was made without device_of: nothing counts its reads")
        if self.version == 2:
            for line in (self._io / "io.stat").read_text().splitlines():
                device, *fields = line.split()
                if device == self._device:
                    return int(dict(field.split("=") for field in fields)["rbytes"])
            return 0
        for line in (self._io / "blkio.throttle.io_service_bytes").read_text().splitlines():
            if line.startswith(f"{self._device} Read "):
                return int(line.split()[2])
        return 0
