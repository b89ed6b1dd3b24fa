# SPDX-License-Identifier: MIT
"""Memory in the booted image: lock limits of an ordinary user, residency modes, a kernel without
advice calls, and a model larger than the machine's memory. Whatever the machine refuses, doctor says
it, and the tokens stay the same to the last bit.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

import pytest
from boot_run import BootRun
from harness import Image, MachineOptions, Shell
from test_inference_boot import ENVIRONMENT, GENERATION_SECONDS, OK, Model, answer_of, models, run_case, small_model

__all__ = ["models", "small_model"]  # fixtures

MIB = 1 << 20
RESIDENCIES = ("resident", "stream", "mapped", "mapped-guarded")
NO_ADVICE_KERNEL = "Image.no-advise"  # beside Image in the image folder
SMALL_RAM_MIB = 256


@dataclass(frozen=True)
class Report:
    """What doctor said: the exit code, and severity, value and fix of each check."""

    exit_code: int
    checks: dict[str, tuple[str, str, str]]

    def severity(self, name: str) -> str:
        """Of one check."""
        return self.checks[name][0]

    def value(self, name: str) -> str:
        """Of one check."""
        return self.checks[name][1]

    def fix(self, name: str) -> str:
        """Of one check."""
        return self.checks[name][2]


def as_user(command: str, limit: str) -> str:
    """The command as uid 1000 with this `ulimit -l` (KiB, or unlimited)."""
    inside = f"exec su colibri -s /bin/sh -c {shlex.quote(command)}"
    return f"sh -c {shlex.quote(f'ulimit -l {limit}; {inside}')}"


def doctor(shell: Shell, arguments: str, limit: str | None = None) -> Report:
    """The report of `colibrictl doctor`, as root or as an ordinary user with a lock limit."""
    command = f"colibrictl doctor {arguments} --json"
    captured = shell.capture(command if limit is None else as_user(command, limit))
    data: dict[str, Any] = json.loads(captured.stdout)
    assert data["exit_code"] == captured.exit_code
    rows = {row["name"]: (row["severity"], row["value"], row["fix"]) for row in data["checks"]}
    return Report(captured.exit_code, rows)


def test_doctor_finds_nothing_wrong_with_the_image(shell: Shell, small_model: Model) -> None:
    report = doctor(shell, small_model.path)
    wrong = {name: row for name, row in report.checks.items() if row[0] in ("warning", "error")}
    assert (report.exit_code, wrong) == (OK, {})
    kind = shell.output("sed -n 's/^[^ ]* \\/models \\([^ ]*\\) .*/\\1/p' /proc/mounts")
    assert report.value("file-system") == {"ext4": "ext2/3/4"}.get(kind, kind)
    assert report.value("direct-io") == "works in pieces of 4096 bytes"
    assert report.value("advice") == "madvise: works, posix_fadvise: works"
    assert report.value("seccomp").startswith("supported")


def test_the_pages_have_the_size_that_the_kernel_was_built_for(boot_run: BootRun, shell: Shell) -> None:
    config = boot_run.image.folder / "kernel.config"
    sizes = re.findall(r"^CONFIG_ARM64_(4|16|64)K_PAGES=y$", config.read_text() if config.is_file() else "", re.M)
    report = doctor(shell, "")
    assert report.value("page-size").startswith(tuple(f"{int(size) * 1024} bytes" for size in sizes or ["4"]))


@pytest.mark.parametrize(
    ("limit", "reason"), [("0", "Operation not permitted"), ("64", "Cannot allocate memory|Out of memory")]
)
def test_a_lock_limit_that_is_too_small_is_reported_and_changes_no_token(
    shell: Shell, small_model: Model, limit: str, reason: str
) -> None:
    report = doctor(shell, small_model.path, limit)
    assert report.exit_code == ENVIRONMENT
    bytes_ = 1024 * int(limit)
    assert report.value("memlock").startswith(f"RLIMIT_MEMLOCK is {bytes_} (hard limit {bytes_}), CAP_IPC_LOCK: no")
    assert report.severity("memlock") == report.severity("lock") == "error"
    assert re.fullmatch(rf"mlock of \d+ bytes: ({reason})", report.value("lock"))
    assert re.search(r"`ulimit -l \d+`.*LimitMEMLOCK=\d+.*cap_ipc_lock", report.fix("memlock"))
    answer = run_as_user(shell, small_model, limit)
    assert "RLIMIT_MEMLOCK" in answer


@pytest.mark.parametrize("limit", ["8192", "unlimited"])
def test_a_lock_limit_that_is_large_enough_locks_the_model(shell: Shell, small_model: Model, limit: str) -> None:
    report = doctor(shell, small_model.path, limit)
    assert report.exit_code == OK, report
    assert report.severity("memlock") == report.severity("lock") == "ok"
    assert "RLIMIT_MEMLOCK" not in run_as_user(shell, small_model, limit, "--lock require")


def run_as_user(shell: Shell, model: Model, limit: str, options: str = "") -> str:
    """Run the first case as uid 1000 and compare everything; what was printed to stderr."""
    case = model.cases[0]
    command = f"colibrictl run {model.path} {case.arguments()} --print-ids --logits-sha256 {options}"
    captured = shell.capture(as_user(command, limit), timeout=GENERATION_SECONDS)
    answer = answer_of(captured)
    assert (answer.ids, answer.logits_sha256) == (case.ids, case.logits_sha256)
    return captured.messages


def test_the_line_that_doctor_prints_puts_it_right(shell: Shell, small_model: Model) -> None:
    fix = doctor(shell, small_model.path, "64").fix("memlock")
    line = re.search(r"`ulimit -l (\d+)`", fix)
    assert line is not None, fix
    report = doctor(shell, small_model.path, line.group(1))
    assert (report.exit_code, report.severity("lock")) == (OK, "ok")


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_residency_changes_no_bit(shell: Shell, small_model: Model, residency: str) -> None:
    for case in small_model.cases:
        answer = run_case(shell, small_model, case, f"--residency {residency}")
        assert answer.peak_bytes <= answer.plan_bytes


@pytest.mark.parametrize("options", ["--slots 1", "--slots 3 --prefetch 0", "--io-threads 1", "--direct-io off"])
def test_streaming_options_change_no_bit(shell: Shell, small_model: Model, options: str) -> None:
    run_case(shell, small_model, small_model.cases[0], f"--residency stream {options}")


def test_a_kernel_without_advice_calls_is_reported_and_changes_no_token(
    boot_run: BootRun, small_model: Model, subtests: pytest.Subtests
) -> None:
    kernel = boot_run.image.folder / NO_ADVICE_KERNEL
    if not kernel.is_file():
        pytest.skip(f"the image has no {NO_ADVICE_KERNEL}; the smoke image does")
    image: Image = dataclasses.replace(boot_run.image, kernel=kernel)
    machine = boot_run.machine(image=image)
    try:
        shell = machine.start()
        report = doctor(shell, small_model.path)
        assert report.exit_code == OK  # a warning: everything works
        assert report.severity("advice") == "warning"
        assert report.value("advice") == "madvise: ENOSYS, posix_fadvise: ENOSYS"
        assert "CONFIG_ADVISE_SYSCALLS=y" in report.fix("advice")
        assert report.severity("lock") == "ok"  # mlock is not behind that option
        for residency in RESIDENCIES:
            with subtests.test(residency=residency):
                run_case(shell, small_model, small_model.cases[0], f"--residency {residency}")
        with subtests.test(residency="stream, through the page cache"):
            run_case(shell, small_model, small_model.cases[0], "--residency stream --direct-io off")
        shell.prove_alive()
        boot_run.proofs += 1
    finally:
        machine.close()


def test_a_model_larger_than_the_memory_streams_with_the_same_logits(
    boot_run: BootRun, boot_machine: Any, models: list[Model]
) -> None:
    large = max(models, key=lambda model: model.size)
    if large.size <= SMALL_RAM_MIB * MIB:
        pytest.skip(f"the image has no model above {SMALL_RAM_MIB} MiB")
    _, shell = boot_machine(MachineOptions(ram_mib=SMALL_RAM_MIB))
    report = doctor(shell, large.path)
    assert report.exit_code == OK, report
    assert report.value("model").startswith("stream: ")  # nobody asked for it: it is what fits
    answer = run_case(shell, large, large.cases[0], "--isa neon --lock require")
    assert answer.peak_bytes <= answer.plan_bytes < SMALL_RAM_MIB * MIB
    refused = shell.capture(f"colibrictl run {large.path} --ids 1 -n 1 --residency resident --lock require")
    assert refused.exit_code in (ENVIRONMENT, 4), refused.messages
    boot_run.proofs += 1
