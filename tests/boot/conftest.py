# SPDX-License-Identifier: MIT
"""Options and fixtures of the boot suite: ``pytest tests/boot --image DIR``."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

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
    group.addoption("--boot-long", action="store_true", help="the whole matrix, 50 power cuts, the soak (hours)")
    group.addoption(
        "--boot-rounds",
        metavar="N",
        type=int,
        help="power cuts (3, 50 with --boot-long), requests of each client of the soak (8, 125)",
    )
    group.addoption("--boot-seed", metavar="N", type=int, help="repeat the choices of an earlier run (printed)")
    group.addoption("--boot-logs", metavar="DIR", default=str(DEFAULT_LOGS), help="where console logs are kept")


_RUN_KEY = pytest.StashKey[BootRun]()
_SEED_KEY = pytest.StashKey[int]()
_MACHINES_KEY = pytest.StashKey[int]()
_PROOFS_KEY = pytest.StashKey[list[int]]()  # of the workers, when there are some


def pytest_configure(config: pytest.Config) -> None:
    """The seed of this run."""
    given: int | None = config.getoption("--boot-seed")
    given = getattr(config, "workerinput", {}).get("boot_seed", given)
    config.stash[_SEED_KEY] = secrets.randbelow(1 << 32) if given is None else given
    config.stash[_PROOFS_KEY] = []
    folder = config.getoption("--image")
    if folder is None:
        return
    try:  # a folder that holds no image is one error, not one for every test
        Image.load(Path(folder))
        Board.load(Path(config.getoption("--board") or Path(folder) / "board.toml"))
    except ValueError as error:
        raise pytest.UsageError(f"--image {folder}: {error}") from error


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes of a run choose by one seed."""
    node.workerinput["boot_seed"] = node.config.stash[_SEED_KEY]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """How often a worker heard from a guest; a worker without an image says nothing."""
    proofs = getattr(node, "workeroutput", {}).get("boot_proofs")
    if proofs is not None:
        node.config.stash[_PROOFS_KEY].append(proofs)


@pytest.fixture(scope="session")
def boot_run(request: pytest.FixtureRequest) -> Iterator[BootRun]:
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
        long=config.getoption("--boot-long"),
        seed=config.stash[_SEED_KEY],
    )
    config.stash[_RUN_KEY] = run
    yield run
    for machine in run.machines:  # those of failed tests may still run
        machine.close()


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Remember which machines there were, so that a report can name those of its test."""
    run = item.config.stash.get(_RUN_KEY, None)
    item.stash[_MACHINES_KEY] = 0 if run is None else len(run.machines)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test names the console logs of its machines, on the terminal and in the JUnit file."""
    run = item.config.stash.get(_RUN_KEY, None)
    logs = []
    if run is not None and call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
        first = item.stash.get(_MACHINES_KEY, 0)
        logs = [str(made.log_path) for number, made in enumerate(run.machines) if number >= first or made.alive()]
        item.user_properties += [("console_log", log) for log in logs]
    report = yield
    if run is not None and logs:
        report.sections.append(("console logs", "\n".join(logs) + f"\nrepeat with: --boot-seed {run.seed}"))
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A run that was given an image but never heard from a guest has not passed."""
    run = session.config.stash.get(_RUN_KEY, None)
    proofs = session.config.stash[_PROOFS_KEY] + ([] if run is None else [run.proofs])
    if hasattr(session.config, "workeroutput"):  # one of several: the process that started it decides
        if run is not None:
            session.config.workeroutput["boot_proofs"] = run.proofs
    elif proofs and sum(proofs) == 0 and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_report_header(config: pytest.Config) -> str | None:
    """Names the image and where the logs go."""
    if config.getoption("--image") is None:
        return None
    places = f"image: {config.getoption('--image')}, console logs: {config.getoption('--boot-logs')}"
    return f"{places}, seed: --boot-seed {config.stash[_SEED_KEY]}"
