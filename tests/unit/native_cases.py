# SPDX-License-Identifier: MIT
"""Runs the C tests of the native build on a file of cases that an oracle wrote."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COLIBRI_NATIVE_BUILD", REPOSITORY / "build" / "host"))
TIMEOUT_SECONDS = 300
LONG_TIMEOUT_SECONDS = 1800  # a million opens: 50 s of CPU, which a busy machine stretches


def program(name: str) -> Path:
    """Path of a C test of the build in $COLIBRI_NATIVE_BUILD (default build/host)."""
    found = [path for path in (BUILD / name, *sorted(BUILD.rglob(name))) if path.is_file()]
    assert found, f"{BUILD}: no {name}; run: make engine"
    return found[0]


def assert_passes(name: str, *arguments: str | Path) -> None:
    """A C program passes; without arguments a test runs the cases that are written in it."""
    environment = {**os.environ, "COLIBRI_GOLDEN": str(REPOSITORY / "engine" / "native" / "tests" / "golden")}
    done = subprocess.run(
        [program(name), *arguments], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]


def run_native(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a C program to its end, whatever that is."""
    return subprocess.run(
        [program(name), *arguments], capture_output=True, text=True, check=False, timeout=LONG_TIMEOUT_SECONDS
    )


def outcome(name: str, cases: Iterable[str], path: Path) -> tuple[int, str]:
    """Write the cases to a file, run the test on it: exit code and everything it printed."""
    path.write_text("\n".join(cases) + "\n", encoding="ascii")
    done = subprocess.run(
        [program(name), path],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    return done.returncode, done.stdout


def assert_agrees(name: str, cases: Iterable[str], path: Path) -> None:
    """The C test finds no difference."""
    code, output = outcome(name, cases, path)
    assert code == 0, output[-4000:]
