# SPDX-License-Identifier: MIT
"""The one exception of the package: a pinned code, a sentence, and where in the file."""

from __future__ import annotations

from colibri._spec import ERROR_EXIT, ERROR_TEXT, Code


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
    in the file, where there is one.
    """

    def __init__(self, code: Code, message: str, offset: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.offset = offset

    @property
    def exit_code(self) -> int:
        """Exit code that a command gives for this error."""
        return ERROR_EXIT[int(self.code)]

    def __str__(self) -> str:
        where = "" if self.offset is None else f" (byte {self.offset})"
        return f"{ERROR_TEXT[int(self.code)]}: {self.message}{where}"
