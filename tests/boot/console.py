# SPDX-License-Identifier: MIT
"""The serial console of a machine under test: every wait also watches for a crash.

Nothing here knows QEMU. A console is a process whose terminal is the guest's serial line, so a
board behind a serial program works the same way, and so does the fake guest of the host tests.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pexpect  # type: ignore[import-untyped]

# Kernel messages that mean that whatever runs in the guest can no longer be trusted. Each may
# follow a time stamp; "oom" can be allowed by a test that provokes it.
_STAMP = r"(?:\[ *\d+\.\d+\] ?)?"
CRASH_PATTERNS: dict[str, str] = {
    "panic": _STAMP + r"Kernel panic - not syncing",
    "oops": _STAMP + r"(?:Internal error: |Unable to handle kernel |kernel BUG at |BUG: [a-z])",
    "warning": _STAMP + r"WARNING: CPU: ",
    "oom": _STAMP + r"(?:Memory cgroup out of memory|Out of memory)(?:: Killed process| and )",
}
_TAIL_LINES = 15
_DRAIN_SECONDS = 3.0
MAX_TYPED_LINE = 2048  # a terminal in line mode drops what exceeds 4095 characters


class ConsoleError(Exception):
    """Something went wrong on the console; the message ends with the log's path."""

    def __init__(self, message: str, log_path: Path) -> None:
        tail = _tail(log_path)
        super().__init__(f"{message}\n--- last lines ---\n{tail}\n--- console log: {log_path}")
        self.log_path = log_path


class ConsoleTimeout(ConsoleError):
    """The expected output did not come in time."""


class BootFailure(ConsoleError):
    """The machine did not reach its login."""


class KernelCrash(ConsoleError):
    """The kernel reported a panic, an oops, a warning or that it ran out of memory."""


class MachineDied(ConsoleError):
    """The machine ended although nobody asked it to."""


class UnexpectedOutput(ConsoleError):
    """The guest answered, but not as it must."""


class CommandFailed(ConsoleError):
    """A command that had to succeed ended with another exit code than 0."""


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(lines[-_TAIL_LINES:])


class Tee(Protocol):
    """A second place for console text: a text stream, or something like one."""

    def write(self, text: str, /) -> int:
        """Take text."""

    def flush(self) -> None:
        """Pass it on."""


class _Log:
    """Writes what is read to the log file, and to a second stream when one is set."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", encoding="utf-8", newline="")
        self.tee: Tee | None = None

    def write(self, text: str) -> None:
        plain = text.replace("\r", "")
        self._file.write(plain)
        if self.tee is not None:
            self.tee.write(plain)

    def flush(self) -> None:
        self._file.flush()
        if self.tee is not None:
            self.tee.flush()

    def close(self) -> None:
        self._file.close()


def find_crash(text: str, allow: Sequence[str] = ()) -> str | None:
    """The first line of console text that reports a crash, or None."""
    for line in text.splitlines():
        for name, pattern in CRASH_PATTERNS.items():
            if name not in allow and re.search(pattern, line):
                return line.strip()
    return None


class Console:
    """A process on a terminal, with a log and a watch for crashes.

    argv: the command; log_path: everything that it prints is kept there.
    """

    def __init__(self, argv: Sequence[str], log_path: Path) -> None:
        self.log_path = log_path
        self._log = _Log(log_path)
        self._child: Any = pexpect.spawn(
            argv[0],
            list(argv[1:]),
            encoding="utf-8",
            codec_errors="replace",
            echo=False,
            timeout=None,
            maxread=65536,
        )
        self._child.delaybeforesend = None
        self._child.logfile_read = self._log

    @property
    def before(self) -> str:
        """What came before the last match, from the end of the match before it."""
        return str(self._child.before)

    def tee(self, stream: Tee | None) -> None:
        """Also copy the console to a stream (None stops it)."""
        self._log.tee = stream

    def note(self, text: str) -> None:
        """Add a remark of the harness to the log."""
        self._log.write(f"\n[harness] {text}\n")
        self._log.flush()

    def alive(self) -> bool:
        """Whether the process still runs."""
        return bool(self._child.isalive())

    def send(self, text: str) -> None:
        """Type text; the caller ends a line with a newline."""
        if any(len(line) > MAX_TYPED_LINE for line in text.split("\n")):
            raise ValueError(f"a typed line exceeds {MAX_TYPED_LINE} characters; upload it instead")
        try:
            self._child.send(text)
        except OSError as error:
            raise MachineDied(f"the console took no input ({error})", self.log_path) from error

    def expect(self, pattern: str, *, timeout: float, what: str, allow: Sequence[str] = ()) -> re.Match[str]:
        """Wait for a pattern; a crash, the end of the machine and silence raise errors.

        timeout: seconds; what: completes "waiting for …"; allow: names of CRASH_PATTERNS that
        the caller provokes on purpose.
        """
        watched = [text for name, text in CRASH_PATTERNS.items() if name not in allow]
        patterns = [pattern, *watched, pexpect.EOF, pexpect.TIMEOUT]
        compiled = self._child.compile_pattern_list(patterns)
        index = self._child.expect_list(compiled, timeout=timeout)
        if index == 0:
            match: re.Match[str] = self._child.match
            # Both may be in the buffer at once, the crash inside what was waited for.
            crash = find_crash(match.group(0), allow)
            if crash is not None:
                self._raise_crash(what, crash)
            return match
        if index <= len(watched):
            self._raise_crash(what, str(self._child.match.group(0)))
        if patterns[index] is pexpect.EOF:
            status = self._exit_status()
            raise MachineDied(f"waiting for {what}: the machine ended ({status})", self.log_path)
        raise ConsoleTimeout(f"waiting for {what}: nothing after {timeout:.0f} s", self.log_path)

    def expect_end(self, *, timeout: float, what: str) -> int:
        """Wait until the process ends by itself and return its exit code."""
        watched = list(CRASH_PATTERNS.values())
        patterns = [pexpect.EOF, *watched, pexpect.TIMEOUT]
        compiled = self._child.compile_pattern_list(patterns)
        index = self._child.expect_list(compiled, timeout=timeout)
        if index == 0:
            self._child.close()
            code = self._child.exitstatus
            return int(code) if code is not None else -int(self._child.signalstatus or 0)
        if index <= len(watched):
            self._raise_crash(what, str(self._child.match.group(0)))
        raise ConsoleTimeout(f"waiting for {what}: still there after {timeout:.0f} s", self.log_path)

    def kill(self) -> None:
        """End the process without a warning, as a power cut does, and wait until it is gone."""
        self._child.kill(signal.SIGKILL)
        self._child.wait()
        self._log.flush()

    def close(self) -> None:
        """End the process if it still runs, and close the log."""
        try:
            self._child.close(force=True)
        except pexpect.ExceptionPexpect:  # it gives a killed process a tenth of a second to be gone
            self._child.wait()
        self._log.close()

    def _exit_status(self) -> str:
        self._child.close()
        if self._child.signalstatus is not None:
            return f"signal {self._child.signalstatus}"
        return f"exit code {self._child.exitstatus}"

    def _raise_crash(self, what: str, matched: str) -> None:
        self._drain()
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        full = next((line for line in text.splitlines() if matched in line), matched)
        raise KernelCrash(f"waiting for {what}: the guest's kernel reported: {full.strip()}", self.log_path)

    def _drain(self) -> None:
        """Let the rest of a crash report reach the log."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._child.read_nonblocking(size=65536, timeout=left)
            except (pexpect.EOF, pexpect.TIMEOUT, OSError):
                break
        self._log.flush()
