# SPDX-License-Identifier: MIT
"""Opening the files that others made, JSON from them, and files that appear whole or not at all.

Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from colibri._spec import Code
from colibri.errors import ColibriError, WriteError, shown

MAX_JSON_BYTES = 1 << 28  # ten times the largest published tokenizer.json
_POINTER = b"version https://git-lfs.github.com/spec/"  # what a clone without git-lfs has in place of a large file


def open_regular(path: Path) -> int:
    """A descriptor to read a regular file; a pipe or a device is refused and never waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ColibriError(Code.OPEN, f"{path}: {error.strerror}") from error
    except ValueError as error:  # a zero byte in the name
        raise ColibriError(Code.OPEN, f"{str(path)!r}: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ColibriError(Code.OPEN, f"{path} is not a regular file; give the file itself")
    with contextlib.suppress(OSError):  # whoever reads it says so
        if os.pread(descriptor, len(_POINTER), 0) == _POINTER:
            os.close(descriptor)
            raise ColibriError(
                Code.BAD_MAGIC, f"{path} is a pointer of git-lfs, not the file; run `git lfs pull` in its folder"
            )
    return descriptor


def is_file_name(name: str) -> bool:
    """Whether a name is one plain part of a path."""
    try:
        name.encode()  # half a surrogate pair names no file
    except UnicodeEncodeError:
        return False
    return Path(name).name == name and name not in ("", ".", "..") and "\0" not in name


def inside(directory: Path, name: str) -> Path:
    """The file `name` of a checkpoint folder; a link that leads out of the folder is refused.

    Otherwise a foreign folder could have any file of this machine read, and a licence file be
    copied into the model. The cache of the Hugging Face hub is made of links to a folder of its
    own: snapshots/REVISION/FILE is ../../blobs/DIGEST, and that is accepted.
    """
    if not is_file_name(name):
        raise ColibriError(Code.OPEN, f"{shown(name)!r} is not the name of a file in {directory}")
    path = directory / name
    if not path.is_symlink():
        return path
    home, target = directory.resolve(), path.resolve()
    blobs = home.parent.parent / "blobs" if home.parent.name == "snapshots" else None
    if target.is_relative_to(home) or (blobs is not None and target.parent == blobs):
        return path
    raise ColibriError(Code.OPEN, f"{path} is a link to {target}, out of the folder; put the file itself there")


def read_regular(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The contents of a regular file of at most `limit` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ColibriError(Code.LIMIT, f"{path} has {size} bytes, limit {limit}")
        try:
            return file.read(size)  # not the limit: so much would be allocated at once
        except OSError as error:
            raise ColibriError(Code.IO, f"{path}: {error.strerror}") from error


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {shown(key)!r} stands twice in one object")
        table[key] = value
    return table


def parse_json(data: bytes, what: str, offset: int | None = None, unique: bool = False) -> dict[str, Any]:
    """The JSON object in `data`; `what` names it in errors, `unique` refuses a key that stands twice."""
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique if unique else None)
    except ValueError as error:
        raise ColibriError(Code.ARGUMENT, f"{what} is not JSON: {error}", offset) from error
    except RecursionError as error:
        raise ColibriError(Code.ARGUMENT, f"{what} is not JSON of a checkpoint: nested too deeply", offset) from error
    if not isinstance(value, dict):
        raise ColibriError(Code.ARGUMENT, f"{what} holds no JSON object", offset)
    return value


def load_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    return parse_json(read_regular(path), str(path))


def refuse_output(output: Path, sources: Iterable[Path] = ()) -> None:
    """Refuse an output that cannot be made, or that would replace something other than a file, or one of the sources.

    To be called before the work whose result is written: what cannot be written is not computed for hours first.
    """
    if not output.name:
        raise ColibriError(Code.ARGUMENT, f"the output {str(output)!r} has no file name; give one")
    try:
        found = os.stat(output)
    except ValueError as error:  # a zero byte in the name
        raise ColibriError(Code.ARGUMENT, f"the output {str(output)!r}: {error}") from error
    except OSError:
        _refuse_folder(output)
        return
    if not stat.S_ISREG(found.st_mode):
        raise ColibriError(
            Code.ARGUMENT, f"the output {output} exists and is not a regular file; give the name of a new file"
        )
    for source in sources:
        try:
            same = os.path.samestat(found, os.stat(source))
        except OSError:
            continue
        if same:
            raise ColibriError(
                Code.ARGUMENT, f"the output {output} is {source}, a file that is read; give the name of a new file"
            )
    _refuse_folder(output)


def _refuse_folder(output: Path) -> None:
    """Refuse an output in a folder in which no file can be made: every output is a new file until it is renamed."""
    with writing(output, Code.OPEN):
        try:
            # Without a name: nothing stays, whenever the command is interrupted.
            os.close(os.open(output.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
            if not os.access(output.parent, os.W_OK | os.X_OK, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from error


# --------------------------------------------------------------------------- output


def _temporaries(target: Path) -> list[Path]:
    """Names of temporary files for `target`, of this run and of others."""
    pattern = re.compile(re.escape(f".{target.name}.") + r"[0-9a-f]{16}\.tmp")
    try:
        return [target.parent / name for name in os.listdir(target.parent) if pattern.fullmatch(name)]
    except OSError:
        return []  # creating the file says what is wrong


def remove_stale(target: Path) -> None:
    """Remove temporary files that killed runs left beside `target`; a run that lives holds a lock on its own."""
    for path in _temporaries(target):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
            finally:
                os.close(descriptor)


@contextlib.contextmanager
def writing(target: Path, code: Code = Code.IO) -> Iterator[None]:
    """What the system refuses inside is the writing of `target`, whatever temporary name it has until then."""
    try:
        yield
    except OSError as error:
        raise WriteError(target, error, code) from error


def create_temporary(target: Path) -> tuple[int, Path]:
    """A descriptor and the name of a new, locked file beside `target`, to be renamed over it.

    The lock ends with the process, however that ends, so the next run can tell what is stale.
    """
    remove_stale(target)
    while True:
        # Random, not the process id: what a killed run of the same id left behind must not be in the way.
        path = target.parent / f".{target.name}.{secrets.token_hex(8)}.tmp"
        with writing(target, Code.OPEN):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is taken for stale either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor, path
        os.close(descriptor)  # another run found it before it was locked


def write_file(target: Path, data: bytes) -> None:
    """Make `target` hold `data`: temporary file, fsync, rename, fsync of the folder."""
    descriptor, temporary = create_temporary(target)
    try:
        with writing(target):
            view = memoryview(data)
            while len(view):
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
            os.replace(temporary, target)
            sync_folder(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def sync_folder(target: Path) -> None:
    """Have the name of `target` on disk."""
    folder = os.open(target.resolve().parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
