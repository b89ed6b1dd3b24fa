# SPDX-License-Identifier: MIT
"""Opening the files that others made, and JSON from them. Standard library only."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from colibri._spec import Code
from colibri.errors import ColibriError

MAX_JSON_BYTES = 1 << 28  # ten times the largest published tokenizer.json


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
    return descriptor


def read_regular(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The contents of a regular file of at most `limit` bytes."""
    with os.fdopen(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise ColibriError(Code.LIMIT, f"{path} has {size} bytes, limit {limit}")
        try:
            return file.read(limit)
        except OSError as error:
            raise ColibriError(Code.IO, f"{path}: {error.strerror}") from error


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key!r} stands twice in one object")
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
    """Refuse an output that would replace something other than a file, or one of the sources."""
    if not output.name:
        raise ColibriError(Code.ARGUMENT, f"the output {str(output)!r} has no file name; give one")
    try:
        found = os.stat(output)
    except ValueError as error:  # a zero byte in the name
        raise ColibriError(Code.ARGUMENT, f"the output {str(output)!r}: {error}") from error
    except OSError:
        return  # nothing there; whether it can be made is seen when it is opened
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
