# SPDX-License-Identifier: MIT
"""A conversion that goes on where it was interrupted, however it ended.

Beside OUTPUT stand OUTPUT.partial, which becomes OUTPUT, and OUTPUT.partial.journal: a JSON object per
line, first what the conversion is made of, then every extent that is complete, with its hash and the
errors of its tensors. The next run goes on behind the last extent whose bytes have the hash of its line;
what follows is written again. With another source or other options it refuses to go on.

Standard library only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from colibri._spec import Code
from colibri.errors import ColibriError, WriteError
from colibri.files import read_regular, sync_folder, writing

FORMAT = "colibri-partial-1"
MAX_JOURNAL_BYTES = 1 << 30  # half a million extents, each with three tensors


class Line(NamedTuple):
    """A complete extent: its place in the directory, hash of its chunk table, errors by tensor name."""

    extent: int
    digest: bytes
    errors: dict[str, list[float]]


def identity_of(parts: dict[str, Any]) -> dict[str, str]:
    """SHA-256 of each thing that a conversion is made of, hex."""
    found = {}
    for name, value in parts.items():
        data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
        found[name] = hashlib.sha256(data).hexdigest()
    return found


def _parse(text: bytes) -> Line | None:
    """A line of the journal, or None where a run was killed while it wrote."""
    try:
        table = json.loads(text)
        errors = {str(name): [float(value) for value in stats] for name, stats in table["errors"].items()}
        line = Line(int(table["extent"]), bytes.fromhex(table["sha256"]), errors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return line if all(len(stats) == 4 for stats in errors.values()) else None


def _open(path: Path) -> int:
    """A file to read and write, made when there is none; a link or a device is refused and never waited for."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ColibriError(Code.OPEN, f"{path} is not a regular file; remove it")
    return descriptor


class Journal:
    """The unfinished file of a conversion to `output`. identity: what identity_of says of the conversion."""

    def __init__(self, output: Path, identity: dict[str, str]) -> None:
        self.partial = output.with_name(output.name + ".partial")
        self.path = output.with_name(output.name + ".partial.journal")
        self.identity = identity
        self.errors_of: Callable[[], dict[str, list[float]]] = dict  # those of the tensors since the last line
        self._file = -1
        self._end = 0  # of the lines that count

    def open(self) -> int:
        """A locked descriptor of the unfinished file; refused when it was begun with something else."""
        descriptor = -1
        there = os.path.lexists(self.partial)
        try:
            descriptor = self._locked()
            self._file = _open(self.path)
            self._begin(descriptor)
        except BaseException as error:
            self.close()
            if descriptor >= 0:
                if not there:
                    self.partial.unlink(missing_ok=True)
                os.close(descriptor)
            if isinstance(error, OSError):
                raise WriteError(Path(error.filename or self.partial), error, Code.OPEN) from error
            raise
        return descriptor

    def _locked(self) -> int:
        """The unfinished file, opened and locked; not one that another run completed in between."""
        while True:
            descriptor = _open(self.partial)
            try:
                self._lock(descriptor)
                if os.path.samestat(os.fstat(descriptor), os.stat(self.partial)):
                    return descriptor
            except FileNotFoundError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ColibriError(
                Code.BUSY, f"{self.partial} is being written by another conversion; wait for it, or give another output"
            ) from error
        except OSError:
            return  # a file system without locks

    def _begin(self, descriptor: int) -> None:
        """The first line: written when there is none, else compared. Without it, no byte of the file counts."""
        head, end, _ = read_regular(self.path, MAX_JOURNAL_BYTES).partition(b"\n")
        if not end:  # nothing, or a run that was killed in its first line
            os.ftruncate(descriptor, 0)
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps({"format": FORMAT, "identity": self.identity}).encode() + b"\n", 0)
            return
        try:
            table = json.loads(head)
            begun = dict(table["identity"]) if table["format"] == FORMAT else None
        except (ValueError, KeyError, TypeError, RecursionError):
            begun = None
        again = f"; remove {self.partial.name} and {self.path.name} to start over"
        if begun is None:
            raise ColibriError(Code.ARGUMENT, f"{self.path} is no journal of this version{again}")
        other = [name for name, digest in self.identity.items() if begun.get(name) != digest]
        if other:
            raise ColibriError(
                Code.ARGUMENT,
                f"{self.partial} was begun with another {' and '.join(other)}; give what it was begun with, "
                f"or{again.removeprefix(';')}",
            )

    def lines(self) -> Iterator[Line]:
        """Complete extents in the order of the file; whoever stops early calls `cut`."""
        data = read_regular(self.path, MAX_JOURNAL_BYTES)
        self._end = data.index(b"\n") + 1
        for text in data[self._end :].splitlines(keepends=True):
            line = _parse(text) if text.endswith(b"\n") else None
            if line is None:
                return
            yield line
            self._end += len(text)  # the caller took it

    def cut(self) -> None:
        """Forget the lines that were not taken."""
        os.ftruncate(self._file, self._end)

    def add(self, extent: int, digest: bytes) -> None:
        """Note that an extent is complete."""
        table = {"extent": extent, "sha256": digest.hex(), "errors": self.errors_of()}
        data = json.dumps(table).encode() + b"\n"
        with writing(self.path):
            self._end += os.pwrite(self._file, data, self._end)

    def close(self) -> None:
        """Close the journal; its files stay."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def remove(self, target: Path) -> None:
        """The file is complete and has its name: the journal goes."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        sync_folder(target)
