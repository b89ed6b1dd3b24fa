# SPDX-License-Identifier: MIT
"""What one run of the boot suite shares: image, board, options, and the machine of the session."""

from __future__ import annotations

import itertools
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness import Board, Image, Machine, MachineOptions, Shell


@dataclass
class BootRun:
    """What one run of the suite boots, and whether a guest ever proved to be alive."""

    image: Image
    board: Board
    options: MachineOptions
    logs: Path
    long: bool = False  # the whole matrix, all rounds, the soak
    seed: int = 0  # of everything that is chosen at random
    proofs: int = 0
    machines: list[Machine] = field(default_factory=list)  # every one that was made, in order
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def machine(self, options: MachineOptions | None = None, image: Image | None = None) -> Machine:
        """A machine that is not started yet, with a log file named for the test that asks for it."""
        chosen = options or self.options
        cpu = chosen.cpu_argument(self.board).split(",")[0]
        worker = os.environ.get("PYTEST_XDIST_WORKER", "")  # each counts its own machines
        number = f"{worker}{'-' if worker else ''}{next(self._numbers):03}"
        log = self.logs / f"console-{number}-{cpu}-{_current_test()}.log"
        made = Machine(image or self.image, self.board, log, chosen, hushed=True)
        self.machines.append(made)
        return made

    def random(self, purpose: str) -> random.Random:
        """A source of choices that this run's seed and the purpose alone decide."""
        return random.Random(f"{self.seed} {purpose}")


def _current_test() -> str:
    """The test that runs, as part of a file name."""
    name = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].rpartition(" (")[0]
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:80] or "session"


@dataclass
class SharedMachine:
    """The machine of the session; a test that killed it leaves a fresh one to the next."""

    run: BootRun
    machine: Machine | None = None
    session_shell: Shell | None = None

    def shell(self) -> Shell:
        """A shell in a known state on a machine that runs."""
        if self.machine is None or self.session_shell is None or not self.machine.alive():
            self.close()
            self.machine = self.run.machine()
            self.session_shell = self.machine.start()
        else:
            self.session_shell.synchronise()
        return self.session_shell

    def close(self) -> None:
        """Switch it off."""
        if self.machine is not None:
            self.machine.close()
        self.machine = self.session_shell = None
