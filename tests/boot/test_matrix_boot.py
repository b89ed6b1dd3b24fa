# SPDX-License-Identifier: MIT
"""The same bits on every processor and number of cores, with the board's memory.

The short run takes each processor once and each number of cores once; --boot-long takes them all.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from boot_run import BootRun
from harness import Machine, MachineOptions, Shell
from test_boot import dropped_options
from test_inference_boot import GENERATION_SECONDS, OK, UNVERIFIED, Model, field, models, run_case, small_model

__all__ = ["models", "small_model"]  # fixtures

CORES = (1, 2, 4)
# The instruction sets that the engine must find on each processor.
CPUS = {
    "cortex-a53": {"ref", "neon"},
    "cortex-a72": {"ref", "neon"},
    "cortex-a76": {"ref", "neon", "dotprod"},
    "max": {"ref", "neon", "dotprod", "i8mm"},
}
SHORT = (("cortex-a53", 1), ("cortex-a72", 2), ("cortex-a76", 4))  # and the board's own, in all other tests


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the cells of the matrix."""
    if "cpu" in metafunc.fixturenames:
        whole = [(cpu, cores) for cpu in CPUS for cores in CORES]
        metafunc.parametrize(("cpu", "cores"), whole if metafunc.config.getoption("--boot-long") else SHORT)


def test_each_machine_gives_the_golden_bits(
    boot_run: BootRun,
    boot_machine: Callable[..., tuple[Machine, Shell]],
    small_model: Model,
    cpu: str,
    cores: int,
) -> None:
    _, shell = boot_machine(MachineOptions(cpu=cpu, cores=cores))
    assert shell.output("nproc") == str(cores)
    assert dropped_options(boot_run, shell) == []
    found = set(field(r"isas_available\s+(.*)$", shell.output("colibrictl info")).split())
    assert found == CPUS[cpu]
    assert shell.capture("colibrictl selftest", timeout=GENERATION_SECONDS).exit_code == OK
    for case in small_model.cases:
        run_case(shell, small_model, case, f"--threads {cores}")
    for threads in range(1, cores + 1):
        answer = run_case(shell, small_model, small_model.cases[0], f"--threads {threads} --lock require")
        assert answer.locked_bytes >= small_model.size
    refuse_tampered(shell, small_model)
    shell.prove_alive()
    boot_run.proofs += 1


def refuse_tampered(shell: Shell, model: Model) -> None:
    """One bit in the middle of the weights."""
    copy, offset = "/tmp/tampered.colibri", model.size // 2
    old = int(shell.output(f"od -An -tu1 -j {offset} -N 1 {model.path}"))
    bent = f"printf '\\{old ^ 1:03o}' | dd of={copy} bs=1 seek={offset} conv=notrunc"
    shell.run(f"cp {model.path} {copy} && {bent}", check=True)
    captured = shell.capture(f"colibrictl run {copy} {model.cases[0].arguments()} --verify open")
    shell.run(f"rm {copy}", check=True)
    assert (captured.exit_code, captured.stdout) == (UNVERIFIED, b""), captured.messages
