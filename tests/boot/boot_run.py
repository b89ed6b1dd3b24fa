# SPDX-License-Identifier: MIT
"""What one run of the boot suite shares: image, board, options, and the machine of the session."""

from __future__ import annotations

import itertools
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
    proofs: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def machine(self, options: MachineOptions | None = None) -> Machine:
        """A machine that is not started yet, with a log file of its own."""
        chosen = options or self.options
        cpu = chosen.cpu_argument(self.board).split(",")[0]
        log = self.logs / f"console-{next(self._numbers):02}-{cpu}.log"
        return Machine(self.image, self.board, log, chosen)


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
