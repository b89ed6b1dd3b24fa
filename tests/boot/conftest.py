# SPDX-License-Identifier: MIT
"""Options and fixtures of the boot suite: ``pytest tests/boot --image DIR``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from boot_run import BootRun, SharedMachine
from harness import Board, Image, Machine, MachineOptions, Shell

DEFAULT_LOGS = Path("build") / "boot-logs"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The image under test and the machine to boot it on."""
    group = parser.getgroup("boot", "firmware image under test")
    group.addoption("--image", metavar="DIR", help="image folder (see tests/boot/harness.py)")
    group.addoption("--board", metavar="FILE", help="board file (default: DIR/board.toml)")
    group.addoption("--boot-cpu", metavar="CPU", help="QEMU's -cpu (default: the board's)")
    group.addoption("--boot-cores", metavar="N", type=int, help="cores (default: the board's)")
    group.addoption("--boot-ram", metavar="MIB", type=int, help="RAM (default: the board's)")
    group.addoption("--boot-logs", metavar="DIR", default=str(DEFAULT_LOGS), help="where console logs are kept")


_RUN_KEY = pytest.StashKey[BootRun]()


@pytest.fixture(scope="session")
def boot_run(request: pytest.FixtureRequest) -> BootRun:
    """Image, board and options of this run."""
    config = request.config
    folder = config.getoption("--image")
    if folder is None:
        pytest.fail("no image: give --image DIR (make one with tests/smoke/build_image.py)", pytrace=False)
    board = config.getoption("--board") or str(Path(folder) / "board.toml")
    run = BootRun(
        image=Image.load(Path(folder)),
        board=Board.load(Path(board)),
        options=MachineOptions(
            cpu=config.getoption("--boot-cpu"),
            cores=config.getoption("--boot-cores"),
            ram_mib=config.getoption("--boot-ram"),
        ),
        logs=Path(config.getoption("--boot-logs")).resolve(),
    )
    config.stash[_RUN_KEY] = run
    return run


@pytest.fixture(scope="session")
def shared_machine(boot_run: BootRun) -> Iterator[SharedMachine]:
    """Boots once for the whole run."""
    shared = SharedMachine(boot_run)
    yield shared
    shared.close()


@pytest.fixture
def shell(shared_machine: SharedMachine) -> Iterator[Shell]:
    """A root shell in the guest; the guest must prove to be alive after the test, too."""
    session_shell = shared_machine.shell()
    session_shell.console.note("---- next test ----")
    yield session_shell
    session_shell.synchronise()
    session_shell.prove_alive()
    shared_machine.run.proofs += 1


@pytest.fixture
def boot_machine(boot_run: BootRun) -> Iterator[Callable[..., tuple[Machine, Shell]]]:
    """A function that boots a machine of the test's own: boot_machine(cpu=…, cores=…, …)."""
    machines: list[Machine] = []

    def boot(options: MachineOptions | None = None) -> tuple[Machine, Shell]:
        machine = boot_run.machine(options)
        machines.append(machine)
        return machine, machine.start()

    yield boot
    for machine in machines:
        machine.close()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that was given an image but never heard from a guest has not passed."""
    run = session.config.stash.get(_RUN_KEY, None)
    if run is not None and run.proofs == 0 and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_report_header(config: pytest.Config) -> str | None:
    """Names the image and where the logs go."""
    if config.getoption("--image") is None:
        return None
    return f"image: {config.getoption('--image')}, console logs: {config.getoption('--boot-logs')}"
