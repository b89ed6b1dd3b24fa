# SPDX-License-Identifier: MIT
"""Shared options and fixtures: where built things are, and which instruction sets really ran.

Nothing is skipped because something was not built: a missing environment variable fails the test
with the command that makes it. `--host-only` is the one way to leave the emulated machines out, and
the summary then says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# Before numpy is loaded: the reference's products are small, BLAS threads only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_RAN = pytest.StashKey[dict[str, set[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the whole test tree."""
    parser.addoption("--host-only", action="store_true", help="leave out what runs under qemu-aarch64")


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a process of pytest-xdist, which has no terminal of its own."""
    return hasattr(config, "workerinput")


def pytest_configure(config: pytest.Config) -> None:
    """Markers, and the record of what ran."""
    config.addinivalue_line("markers", "demo: needs the demo model; takes minutes")
    config.addinivalue_line("markers", "planted: rebuilds the engine with planted bugs; takes minutes")
    config.stash[_RAN] = {}
    if not is_worker(config):
        config.pluginmanager.register(NotePrinter(config))


def need_path(variable: str, what: str, command: str) -> Path:
    """The existing path in an environment variable; fails with the command that makes it."""
    value = os.environ.get(variable, "")
    if not value or not Path(value).exists():
        state = f"is {value!r}, which does not exist" if value else "is not set"
        pytest.fail(f"${variable} ({what}) {state}; run `{command}`, or set it to such a build", pytrace=False)
    return Path(value)


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Show a measurement to whoever runs the suite: on the terminal and in the JUnit file."""

    def show(text: str) -> None:
        request.node.user_properties.append(("note", text))

    return show


class NotePrinter:
    """Prints what tests noted, when they are over: also for the tests of other processes."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The last report of a test has the notes of all its phases."""
        notes = [text for name, text in report.user_properties if name == "note"]
        if report.when == "teardown" and notes:
            writer: pytest.TerminalReporter = self.config.pluginmanager.getplugin("terminalreporter")
            writer.line("")  # ends the row of dots
            for text in notes:
                writer.write_line(f"note: {text}")


@pytest.fixture(scope="session")
def native_library() -> Path:
    """The shared library for this machine, which colibri.engine loads."""
    return need_path("COLIBRI_LIBRARY", "libcolibri.so for this machine", "make test-host")


@pytest.fixture(scope="session")
def aarch64_colibrictl() -> Path:
    """A static colibrictl for AArch64, run by qemu-aarch64."""
    path = need_path("COLIBRI_AARCH64_BIN", "folder of the static AArch64 build", "make test-qemu-user")
    program = path / "colibrictl" if path.is_dir() else path
    if not program.is_file():
        pytest.fail(f"{program}: no such file; run `make test-qemu-user`, or give --host-only", pytrace=False)
    return program


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model; its golden results lie beside it."""
    folder = need_path("COLIBRI_MODELS", "folder of the converted models", "make models")
    path = folder / "smollm2-moe.colibri"
    if not path.is_file():
        pytest.fail(f"{path}: no such file; run `make models`", pytrace=False)
    return path


@pytest.fixture(scope="session")
def tiny_models() -> list[Path]:
    """The tiny models of configs/models; their golden results lie beside them."""
    folder = need_path("COLIBRI_MODELS", "folder of the converted models", "make models")
    found = sorted(folder.glob("tiny*.colibri"))
    if not found:
        pytest.fail(f"{folder}: no tiny models; run `make models`", pytrace=False)
    return found


@pytest.fixture(scope="session")
def ran(request: pytest.FixtureRequest) -> dict[str, set[str]]:
    """Machine -> instruction sets whose results were compared; printed at the end."""
    return request.config.stash[_RAN]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker's record goes to the process that prints the summary."""
    if is_worker(session.config):
        ran = {machine: sorted(isas) for machine, isas in session.config.stash[_RAN].items()}
        session.config.workeroutput["ran"] = ran  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Records of the workers, added up."""
    for machine, isas in getattr(node, "workeroutput", {}).get("ran", {}).items():
        node.config.stash[_RAN].setdefault(machine, set()).update(isas)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Names the instruction sets that ran, so that a missing one is seen."""
    for machine, isas in sorted(config.stash[_RAN].items()):
        terminalreporter.write_line(f"note: compared bit for bit on {machine}: {' '.join(sorted(isas))}")
    if config.getoption("--host-only"):
        terminalreporter.write_line("note: --host-only: nothing ran under qemu-aarch64")
