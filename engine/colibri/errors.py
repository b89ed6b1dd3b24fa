# SPDX-License-Identifier: MIT
"""The one exception of the package: a pinned code, a sentence, and where in the file."""

from __future__ import annotations

import errno
from pathlib import Path

from colibri._spec import ERROR_EXIT, ERROR_TEXT, Code

ENVIRONMENT_EXIT = 5  # exit code of what this machine lacks
_DAMAGED = "the file is damaged or was changed: copy it again from a source you trust"
# What to do about a model file, where the message does not say it; any other code of exit code 3: _DAMAGED.
_MODEL_FIXES = {
    Code.BAD_MAGIC: "give a file that `colibri convert` wrote",
    Code.TRUNCATED: "copy it again and compare its size",
    Code.EMPTY: "copy it again; was the disk full?",
    Code.FEATURE: "update this package",
    Code.UNSUPPORTED: "",
    Code.SIGNATURE: "",
    Code.WEIGHTS: "convert the model again from a checkpoint without NaN or infinity",
}
# What an option of the library is called on the command line, as in engine/native/tools/output.c.
_OPTIONS = {
    "context_tokens": "--context",
    "batch_tokens": "--batch",
    "max_text_bytes": "--max-text",
    "expert_slots": "--slots",
    "budget_bytes": "--budget",
}
_NOT_ALLOWED = "give a path in a folder that you may write to"
_WRITE_FIXES = {
    errno.ENOENT: "make its folder first, or give another path",
    errno.ENOTDIR: "give a path in a folder",
    errno.ENOSPC: "free space, or give a path on another disk",
    errno.EDQUOT: "free space, or give a path on another disk",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or give a path on another file system",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: _NOT_ALLOWED,
}


def printable(value: object) -> str:
    """Text of a stranger's file for a terminal: control characters and half surrogate pairs are escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(value)
    )


def shown(name: str) -> str:
    """A name out of a stranger's file for a message: printable, and cut where it would fill the screen."""
    text = printable(name[:200])
    return text if len(text) <= 120 else f"{text[:117]}..."


class ColibriError(Exception):
    """An error with the same pinned code that the C library gives for the same cause.

    `message` names the thing, the value, the limit and the fix. `offset` is the byte offset
    in the file, where there is one; `file` the model that was being read, for whoever prints it.
    """

    file: Path | None = None

    def __init__(self, code: Code, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.offset = offset

    @property
    def exit_code(self) -> int:
        """Exit code that a command gives for this error."""
        return ERROR_EXIT[int(self.code)]

    def _kind(self) -> str:
        """The general text of the code, unless the message begins with it."""
        text = ERROR_TEXT[int(self.code)]
        return "" if self.message.startswith(text) else f"{text}: "

    def __str__(self) -> str:
        where = "" if self.offset is None else f" (byte {self.offset})"
        return f"{self._kind()}{self.message}{where}"


class WriteError(ColibriError):
    """A file that cannot be written, under the name that the user gave it: the temporary one says nothing."""

    def __init__(self, path: Path, error: OSError, code: Code = Code.IO, offset: int | None = None) -> None:
        fix = _WRITE_FIXES.get(error.errno or 0)
        reason = f"{error.strerror or error}" + (f"; {fix}" if fix else "")
        super().__init__(code, f"cannot write {path}: {reason}", offset)

    def _kind(self) -> str:
        return ""


class MissingPackage(ColibriError):
    """A Python package that is not installed: this machine lacks it, no model is at fault."""

    def __init__(self, what: str, package: str, extra: str, otherwise: str = "") -> None:
        super().__init__(
            Code.UNSUPPORTED,
            f"{what} the Python package {package}, which is not installed; pip install {package}, or in the source "
            f"folder pip install './engine[{extra}]'" + (f", or {otherwise}" if otherwise else ""),
        )

    @property
    def exit_code(self) -> int:
        """That of the environment."""
        return ENVIRONMENT_EXIT

    def _kind(self) -> str:
        return ""


def for_people(error: ColibriError, kind: bool = True) -> str:
    """The line of a command: the model's file, what is wrong, what to do. kind: with the general text of the code."""
    text = str(error) if kind else error.message
    if error.code == Code.BUDGET:
        for name, option in _OPTIONS.items():
            text = text.replace(name, option)
    if error.file is not None and error.exit_code == ERROR_EXIT[Code.TRUNCATED]:
        fix = _MODEL_FIXES.get(error.code, _DAMAGED)
        if fix and ";" not in error.message:
            text = f"{text}; {fix}"
        if str(error.file) not in text:
            text = f"{error.file}: {text}"
    return printable(text)
