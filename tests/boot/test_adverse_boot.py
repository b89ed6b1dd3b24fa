# SPDX-License-Identifier: MIT
"""Circumstances that a device meets: no clock, a root file system that is read-only, a noisy console."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from boot_run import BootRun
from guest_tools import DATA, TOOLS, guest_with, make_data_disk, make_tools_disk, versions
from harness import Shell
from test_inference_boot import OK, RUN_TIME, Model, models, run_case, small_model

__all__ = ["models", "small_model"]  # fixtures

FIRST_SECOND = "1970-01-01T00:00:00"  # of a board whose clock has lost its battery


@pytest.fixture
def board_shell(boot_run: BootRun) -> Iterator[Shell]:
    """A machine of the test's own."""
    with guest_with(boot_run) as shell:
        yield shell


def test_without_a_clock_everything_works(
    boot_run: BootRun, tmp_path_factory: pytest.TempPathFactory, small_model: Model
) -> None:
    folder = tmp_path_factory.mktemp("clock")
    disk = make_data_disk(folder / "data.ext4", boot_run.image.page_bytes)
    tools = make_tools_disk(folder, boot_run.image.page_bytes, versions())
    with guest_with(boot_run, "-rtc", f"base={FIRST_SECOND}", tools=tools, data=disk) as shell:
        assert int(shell.output("date +%s")) < 86400  # the first day
        for case in small_model.cases:
            run_case(shell, small_model, case)
        assert shell.capture(f"colibrictl doctor {small_model.path}").exit_code == OK
        for version in versions():
            shell.run(f"colibrictl install {version.guest_path} {DATA}/model.colibri", check=True)
            said = json.loads(shell.capture(f"colibrictl verify {DATA}/model.colibri --json").stdout)
            assert (said["ok"], said["root"]) == (True, version.root)
        # The clock is set while a model is there, to the last second of 32 bits and beyond.
        shell.run("date -u -s @2147483647 && sleep 2", check=True)
        assert int(shell.output("date +%s")) > 2147483647
        run_case(shell, small_model, small_model.cases[0])
        shell.run(f"colibrictl install {TOOLS}/tiny.colibri {DATA}/model.colibri", check=True)


def test_a_read_only_root_is_enough(board_shell: Shell, small_model: Model) -> None:
    shell = board_shell
    shell.run("mount -o remount,ro /", check=True)
    assert shell.run(": >/new").exit_code != 0
    for case in small_model.cases:
        run_case(shell, small_model, case)
    assert shell.capture(f"colibrictl doctor {small_model.path}").exit_code == OK
    assert shell.capture("colibrictl selftest").exit_code == OK
    there = shell.output("ls -A /")
    refused = shell.capture(f"cd / && colibrictl install {small_model.path} model.colibri")
    assert refused.exit_code == RUN_TIME
    assert "read-only" in refused.messages.lower()
    assert shell.output("ls -A /") == there


def test_noise_on_the_console_changes_no_answer(boot_run: BootRun, board_shell: Shell, small_model: Model) -> None:
    shell = board_shell
    console = f"/dev/{boot_run.board.console}"
    shell.run("echo on >/proc/sys/kernel/printk_devkmsg", check=True)
    garbage = f"head -c 24 /dev/urandom >{console}; sleep 0.03; echo '<1>noise: a message of the kernel' >/dev/kmsg"
    # The process ends with the file, so that no test leaves noise behind.
    shell.run(f": >/run/noise; (while [ -e /run/noise ]; do {garbage}; sleep 0.03; done) &", check=True)
    for case in small_model.cases:
        run_case(shell, small_model, case)
    golden = shell.read_file(small_model.path.removesuffix(".colibri") + ".golden.json")
    assert json.loads(golden)["root"] == small_model.root
    shell.prove_alive()
    shell.run("rm /run/noise; wait", noise=True, check=True)
    assert "a message of the kernel" in shell.console.log_path.read_text(encoding="utf-8", errors="replace")
