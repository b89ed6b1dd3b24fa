# SPDX-License-Identifier: MIT
"""A running `colibrictl serve` and clients of its socket, for tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from test_colibrictl import TIMEOUT_SECONDS, environment, program

Answer = list[dict[str, Any]]  # the lines of one answer


def is_sanitized() -> bool:
    """Whether the program was compiled with a sanitizer, which makes system calls of its own."""
    data = program().read_bytes()
    return b"__asan_init" in data or b"__tsan_init" in data


def request(name: str, prompt: str, **values: Any) -> bytes:
    """A line."""
    return json.dumps({"id": name, "prompt": prompt, **values}).encode() + b"\n"


class HungUp(Exception):
    """The server closed the connection; what came before is in .lines."""

    def __init__(self, lines: Answer) -> None:
        super().__init__(f"the server hung up behind {lines}")
        self.lines = lines


class Client:
    """One connection."""

    def __init__(self, path: Path | str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(TIMEOUT_SECONDS)
        try:
            self.socket.connect(str(path))
        except OSError:
            self.socket.close()
            raise
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """All of it."""
        self.socket.sendall(data)

    def line(self) -> dict[str, Any]:
        """The next line of an answer."""
        try:
            text = self.file.readline()
        except ConnectionResetError:
            text = b""
        if not text.endswith(b"\n"):
            raise HungUp([])
        value: dict[str, Any] = json.loads(text)
        return value

    def answer(self) -> Answer:
        """The lines up to the one that ends an answer."""
        lines: Answer = []
        while not lines or "text" in lines[-1]:
            try:
                lines.append(self.line())
            except HungUp:
                raise HungUp(lines) from None
        return lines

    def ask(self, line: bytes) -> Answer:
        """Send a request, wait for its answer."""
        self.send(line)
        return self.answer()

    def half_close(self) -> None:
        """Send no more, go on reading."""
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Leave."""
        self.file.close()
        self.socket.close()


@dataclass
class Usage:
    """What the kernel counts of a process."""

    rss_kib: int
    descriptors: int
    cpu_seconds: float


class Server:
    """A server in a folder of its own, ready when the block begins; stopped and checked at its end."""

    def __init__(self, model: Path, folder: Path, *arguments: str | Path, watchdog_seconds: float = 0,
                 variables: dict[str, str] | None = None, abstract: bool = False) -> None:  # fmt: skip
        self.path = folder / "s"
        self.errors = folder / "stderr"
        name = f"@colibri-test-{os.getpid()}-{id(self)}" if abstract else str(folder / "notify")
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if not abstract:
            Path(name).unlink(missing_ok=True)
        self.manager.bind("\0" + name[1:] if abstract else name)
        self.manager.settimeout(TIMEOUT_SECONDS)
        self.variables = {"NOTIFY_SOCKET": name, **(variables or {})}
        if watchdog_seconds:
            self.variables["WATCHDOG_USEC"] = str(int(1e6 * watchdog_seconds))
        where = [] if "--socket-fd" in arguments else ["--socket", self.path]
        sandbox = ["--sandbox", "off"] if is_sanitized() and "--sandbox" not in arguments else []
        # One thread: no barriers to wait at while others use the machine.
        self.command = [program(), "serve", model, "--lock", "off", "--threads", "1", *where, *sandbox, *arguments]
        self.process: subprocess.Popen[bytes] | None = None
        self.expected_exit = 0

    def start(self, *before: str, pass_fds: Sequence[int] = ()) -> Server:
        """Start it (before: words in front of the command) and wait until it is ready."""
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*before, *map(str, self.command)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=errors, env=environment(self.variables), pass_fds=pass_fds,
            )  # fmt: skip
        ready = self.message()
        assert ready.startswith("READY=1\n"), ready
        return self

    def __enter__(self) -> Server:
        return self if self.process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process is not None
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(TIMEOUT_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()
            self.manager.close()
        if kind is None:
            assert code == self.expected_exit, self.text()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self.process is not None
        return self.process.pid

    def text(self) -> str:
        """What it said on stderr."""
        return self.errors.read_text(errors="replace")

    def message(self) -> str:
        """The next datagram to the service manager; an early end fails at once."""
        self.manager.settimeout(0.1)
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end:
            try:
                return self.manager.recv(4096).decode()
            except TimeoutError:
                assert self.process is not None
                assert self.process.poll() is None, f"exit {self.process.returncode}: {self.text()}"
        raise AssertionError("no message came")

    def messages(self) -> Iterator[str]:
        """The datagrams that are there."""
        self.manager.settimeout(0)
        while True:
            try:
                yield self.manager.recv(4096).decode()
            except BlockingIOError:
                return

    def client(self) -> Client:
        """A new connection."""
        return Client(self.path)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """To the process."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self) -> int:
        """Its exit code."""
        assert self.process is not None
        return self.process.wait(TIMEOUT_SECONDS)

    def usage(self) -> Usage:
        """Memory, descriptors and time of the process so far."""
        # Counted page by page: VmRSS of /proc/PID/status is the sum of counters that lag.
        rollup = Path(f"/proc/{self.pid}/smaps_rollup").read_text()
        rss = next(int(row.split()[1]) for row in rollup.splitlines() if row.startswith("Rss:"))
        times = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return Usage(
            rss, len(os.listdir(f"/proc/{self.pid}/fd")), sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
        )
