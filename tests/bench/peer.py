# SPDX-License-Identifier: MIT
"""llama.cpp, the peer of the benchmarks: its own virtual environment, and a process to talk to.

    build/venv/bin/python tests/bench/peer.py            # make bench-peer: install it

It is built from the source distribution of llama-cpp-python with the options that its authors
chose, for this machine, and lives under ${XDG_CACHE_HOME:-~/.cache}/colibri/bench: a tool of the
benchmarks, never a dependency. COLIBRI_PEER_PYTHON names another Python that has it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cgroups import Group
from isolation import CommandError, start
from shapes import cache_folder

FOLDER = Path(__file__).resolve().parent
REQUIREMENTS = FOLDER.parent / "requirements" / "peer.txt"


class PeerError(Exception):
    """The peer is not there; the message says how to get it."""


def _environment() -> Path:
    """Named by the pinned version, so that a new one is a new environment."""
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if line and not line.startswith("#")]
    return cache_folder() / f"peer-{lines[0].partition('==')[2]}"


def python() -> Path:
    """The Python that has llama_cpp."""
    given = os.environ.get("COLIBRI_PEER_PYTHON")
    found = Path(given) if given else _environment() / "bin" / "python"
    if not found.exists():
        raise PeerError(f"{found} does not exist; run: make bench-peer")
    return found


def install() -> Path:
    """Make the environment when it is missing: compiling takes a quarter of an hour on two cores."""
    if os.environ.get("COLIBRI_PEER_PYTHON"):
        return python()
    folder = _environment()
    stamp = folder / "installed"
    if not stamp.exists():
        begin = time.monotonic()
        print(f"peer: building llama.cpp in {folder}; this takes a while", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-binary",
                   "llama-cpp-python", "-r", str(REQUIREMENTS)]  # fmt: skip
        environment = {**os.environ, "CMAKE_BUILD_PARALLEL_LEVEL": str(len(os.sched_getaffinity(0)))}
        if subprocess.run(command, check=False, env=environment).returncode:
            raise PeerError("pip could not build llama-cpp-python; it needs a C++ compiler: apt-get install g++")
        stamp.write_text(f"{time.monotonic() - begin:.0f} s\n")
    return python()


def wanted(no_peer: bool) -> bool:
    """Whether to compare; says how to get the peer when it is not there."""
    if no_peer:
        return False
    try:
        python()
    except PeerError as error:
        print(f"peer: not compared with llama.cpp: {error}", file=sys.stderr)
        return False
    return True


def describe() -> str:
    """Version of the peer."""
    code = "import importlib.metadata as m; print('llama-cpp-python', m.version('llama-cpp-python'))"
    return subprocess.run([python(), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


class Peer:
    """A running llama.cpp with one model."""

    def __init__(self, model: Path, repack: bool = True, context: int = 1024, group: Group | None = None) -> None:
        command = [str(python()), str(FOLDER / "peer_worker.py"), str(model), "--context", str(context)]
        self._command = [*command, "--repack"] if repack else command
        self._group = group

    def __enter__(self) -> Self:
        self.process = start(
            self._command, self._group, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            self.load_seconds = float(self._answer()["load_seconds"])
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end()

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate()
            raise CommandError(f"the peer ended with {self.process.returncode}: {errors[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command of peer_worker.py and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._answer()


def main() -> int:
    """Install the peer."""
    try:
        print(f"peer: {install()}")
        print(f"peer: {describe()}")
    except (PeerError, subprocess.CalledProcessError) as error:
        print(f"peer: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
