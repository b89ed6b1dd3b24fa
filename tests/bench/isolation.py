# SPDX-License-Identifier: MIT
"""Running a command that is being measured: in its own session, ahead of what else the machine does.

With autogroup scheduling a session is scheduled as a whole, so `nice` changes little: the value of
the session's autogroup does. What cannot be kept away is the other load on caches and memory: the
loads and the bandwidth measured beside every row say how much of it there was.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from cgroups import Group


class CommandError(Exception):
    """A measured command failed; the message holds the end of its output."""


def raise_priority() -> bool:
    """Give the calling session the largest share of the processors; False where that is not allowed."""
    try:
        Path("/proc/self/autogroup").write_text("-20")
    except OSError:
        with contextlib.suppress(OSError):
            os.nice(-20)
            return True
        return False
    return True


def start(command: list[str], group: Group | None = None, **options: Any) -> subprocess.Popen[str]:
    """Start a command in its own session, at high priority, in `group`."""

    def prepare() -> None:
        raise_priority()
        if group is not None:
            group.join()

    return subprocess.Popen(command, start_new_session=True, preexec_fn=prepare, text=True, **options)


def run(command: list[str], group: Group | None = None, timeout: float = 3600) -> str:
    """Run a command to its end; its standard output."""
    process = start(command, group, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, err = process.communicate(timeout=timeout)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        raise CommandError(f"{' '.join(command)} ended with {process.returncode}:\n{err[-2000:]}")
    return out


# --------------------------------------------------------------------------- page cache


def read_whole(path: Path) -> None:
    """Bring a file into the page cache."""
    buffer = bytearray(4 << 20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def evict(path: Path) -> None:
    """Drop a file from the page cache, so that the next reader is charged for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def cached_bytes(path: Path) -> int:
    """How much of a file is in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = path.stat().st_size
    with open(path, "rb") as file, mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE) as view:
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        pages = -(-size // mmap.PAGESIZE)
        resident = (ctypes.c_ubyte * pages)()
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), resident):
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(value & 1 for value in bytes(resident)) * mmap.PAGESIZE


# --------------------------------------------------------------------------- the machine


def loads() -> str:
    """Load averages and runnable tasks, as the kernel prints them."""
    return " ".join(Path("/proc/loadavg").read_text().split()[:4])


def machine() -> dict[str, Any]:
    """What a table of results says about where it was measured."""
    text = Path("/proc/cpuinfo").read_text()

    def field(name: str) -> str:
        found = re.search(rf"^{name}\s*:\s*(.*)$", text, re.MULTILINE)
        return found.group(1) if found else "unknown"

    flags = field("flags").split()
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    return {
        "cpu": field("model name"),
        "family": f"family {field('cpu family')} model {field('model')}",
        "cpus": os.sched_getaffinity(0).__len__(),
        "isa": [name for name in ("avx2", "avx512_vnni", "sha_ni") if name in flags],
        "memory_bytes": int(memory.group(1)) * 1024 if memory else 0,
        "kernel": os.uname().release,
    }
