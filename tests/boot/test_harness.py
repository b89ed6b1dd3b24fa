# SPDX-License-Identifier: MIT
"""The harness itself, on the host, against a fake guest: it must not be possible to pass unheard."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import console
import harness
import pytest
from console import find_crash
from harness import (
    Board,
    BootFailure,
    CommandFailed,
    ConsoleTimeout,
    Image,
    KernelCrash,
    Machine,
    MachineDied,
    MachineOptions,
    Shell,
    UnexpectedOutput,
    qemu_command,
)

FAKE_GUEST = Path(__file__).with_name("fake_guest.py")
BOARD_FILE = Path(__file__).parents[2] / "configs" / "boards" / "qemu-aarch64.toml"
FakeMachine = Callable[[str], Machine]


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake guest answers at once; waits for what must not come are short."""
    monkeypatch.setattr(harness, "_SYNC_SECONDS", 5.0)
    monkeypatch.setattr(harness, "_SYNC_TRIES", 2)
    monkeypatch.setattr(harness, "BOOT_SECONDS", 5.0)
    monkeypatch.setattr(console, "_DRAIN_SECONDS", 0.2)


@pytest.fixture
def fake_machine(tmp_path: Path) -> Iterator[FakeMachine]:
    """A machine whose QEMU is the fake guest with the given behaviour."""
    machines: list[Machine] = []

    class FakeQemu(Machine):
        behaviour = ""

        def command(self) -> list[str]:
            return [sys.executable, str(FAKE_GUEST), self.behaviour]

    def make(behaviour: str) -> Machine:
        (tmp_path / "Image").touch()
        (tmp_path / "rootfs.cpio").touch()
        machine = FakeQemu(Image.load(tmp_path), Board.load(BOARD_FILE), tmp_path / f"{behaviour}.log")
        machine.behaviour = behaviour
        machines.append(machine)
        return machine

    yield make
    for machine in machines:
        machine.close()


@pytest.fixture
def shell(fake_machine: FakeMachine) -> Shell:
    """A shell in a healthy fake guest."""
    return fake_machine("healthy").start()


def test_output_and_exit_code_come_together(shell: Shell) -> None:
    result = shell.run("printf 'one\\ntwo'; (exit 3)")
    assert (result.output, result.exit_code) == ("one\ntwo", 3)


def test_empty_output_is_empty(shell: Shell) -> None:
    assert shell.run("true").output == ""


def test_commands_follow_each_other_without_mixing(shell: Shell) -> None:
    assert [shell.output(f"echo {n}") for n in range(20)] == [str(n) for n in range(20)]


def test_a_message_of_the_kernel_in_an_output_is_left_out(shell: Shell) -> None:
    message = "[   47.517295] hrtimer: interrupt took 34880400 ns"
    # It comes when the output is printed, once.
    once = f"""case $1 in '%s\\n') unset -f printf; echo '{message}';; esac; command printf "$@" """
    shell.run(f"printf() {{ {once}; }}", check=True)
    assert shell.output("echo append 0; echo position") == "append 0\nposition"
    assert message in shell.console.log_path.read_text()
    assert shell.output(f"echo '{message}'") == message  # a kernel's log is an output, too


def test_a_failing_command_that_had_to_succeed_is_an_error_that_names_the_log(shell: Shell) -> None:
    with pytest.raises(CommandFailed, match=r"exit code 1[\s\S]*console log: .*healthy\.log"):
        shell.run("false", check=True)


def test_a_syntax_error_is_an_exit_code_and_not_a_hang(shell: Shell) -> None:
    assert shell.run("if then fi", timeout=10).exit_code == 2
    shell.prove_alive()


def test_background_jobs_that_end_while_nothing_is_typed_leave_the_shell_there(fake_machine: FakeMachine) -> None:
    shell = fake_machine("busybox").start()
    for _ in range(5):
        shell.run("(sleep 0.05) &", check=True)
        time.sleep(0.1)
    shell.prove_alive()


def test_a_command_that_reads_its_input_gets_none(shell: Shell) -> None:
    assert shell.run("cat", timeout=10).output == ""
    shell.prove_alive()


def test_streams_are_captured_byte_for_byte(shell: Shell) -> None:
    captured = shell.capture("printf 'a\\r\\n\\000\\377'; echo problem >&2; (exit 4)")
    assert captured.stdout == b"a\r\n\x00\xff"
    assert (captured.stderr, captured.exit_code) == ("problem\n", 4)


def test_messages_come_from_the_system_log_where_the_build_forces_them_there(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "messages"
    monkeypatch.setattr(harness, "_SYSTEM_LOG", str(log))
    # The log was rotated in between, other daemons write to it, and an older message is not this command's.
    line = "echo \"Jan  1 00:00:00 board daemon.err $1: $2\""
    shell.run(
        f"colibrictl() {{ echo 'forced COLIBRI_NO_LOGGING'; }}; say() {{ {line} >>{log}; }}; "
        f'logger() {{ say root "$1"; mv -n {log} {log}.0; }}; say "colibrictl[1]" old',
        check=True,
    )
    captured = shell.capture("say 'colibrictl[22]' 'THING: refused'; say syslogd other; echo result; (exit 3)")
    assert (captured.stdout, captured.stderr, captured.exit_code) == (b"result\n", "", 3)
    assert captured.log == captured.messages == "THING: refused\n"


def test_a_system_log_that_does_not_come_is_no_silence(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_SYSTEM_LOG", str(tmp_path / "none"))
    shell.run("colibrictl() { echo 'forced COLIBRI_NO_LOGGING'; }; logger() { :; }; sleep() { :; }", check=True)
    with pytest.raises(UnexpectedOutput, match="start syslogd in the image"):
        shell.capture("true")


def test_files_survive_the_way_to_the_guest_and_back(shell: Shell, tmp_path: Path) -> None:
    data = bytes(range(256)) * 20
    path = str(tmp_path / "with space")
    shell.write_file(path, data, mode="755")
    assert shell.read_file(path) == data
    assert shell.output(f"stat -c %a '{path}'") == "755"


def test_files_survive_the_way_without_base64(shell: Shell, tmp_path: Path) -> None:
    shell.run('type() { [ "$1" != base64 ]; }; base64() { return 127; }', check=True)
    data = bytes(range(256)) * 9 + b"end"
    shell.write_file(str(tmp_path / "file"), data)
    assert shell.read_file(str(tmp_path / "file")) == data
    assert shell.codec == "base32"


def test_an_echo_cannot_pass_for_an_answer(fake_machine: FakeMachine) -> None:
    with pytest.raises(BootFailure, match="the shell gave no answer"):
        fake_machine("echo").start()


def test_the_typed_line_does_not_contain_what_is_waited_for(fake_machine: FakeMachine) -> None:
    # The shell's echo stays on here, so that the typed lines do come back first.
    machine = fake_machine("healthy")
    shell = machine.start()
    shell.run("stty echo </dev/tty", check=True)
    assert shell.run("echo quiet", timeout=10).output.endswith("quiet\n")
    assert "eval" in machine.log_path.read_text()
    assert shell.run("false", timeout=10).exit_code == 1


def test_answers_come_whole_through_noise(
    fake_machine: FakeMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "_ASK_AGAIN_SECONDS", 2.0)
    noisy = fake_machine("noisy").start()
    path = tmp_path / "data"
    path.write_bytes(bytes(range(256)) * 40)
    for number in range(10):
        assert noisy.value(f"echo {number} {number}", r"\d+ \d+") == f"{number} {number}"
    assert noisy.read_file(str(path)) == path.read_bytes()
    captured = noisy.capture("printf 'exact\\n'; printf 'text' >&2; (exit 4)")
    assert (captured.stdout, captured.stderr, captured.exit_code) == (b"exact\n", "text", 4)
    noisy.prove_alive()


def test_a_file_that_came_over_broken_is_fetched_in_pieces(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(range(251)) * 40)
    # A kernel message lands in the middle of the first transfer.
    spoil = "unset -f base64; command base64 \"$@\" | sed '3s/^/[ 1.0] usb 1-1: new device/'"
    shell.run(f"base64() {{ {spoil}; }}", check=True)
    assert shell.read_file(str(path)) == path.read_bytes()
    assert "in pieces" in shell.console.log_path.read_text()


def test_a_lost_end_marker_is_asked_for_again(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_ASK_AGAIN_SECONDS", 0.3)
    # The first end marker comes out broken, as if a kernel message had cut it.
    broken = """printf() { unset -f printf; command printf '%s' "$2"; echo ' [ 1.0] noise'; }"""
    assert shell.run(broken, timeout=20).exit_code == 0
    shell.prove_alive()


def test_a_value_of_another_form_is_an_error(shell: Shell) -> None:
    with pytest.raises(UnexpectedOutput, match="printed nothing that matches"):
        shell.value("echo many", r"\d+")


def test_a_power_cut_leaves_no_process(fake_machine: FakeMachine) -> None:
    machine = fake_machine("healthy")
    shell = machine.start()
    machine.cut_power()
    assert not machine.alive()
    with pytest.raises(MachineDied):
        shell.run("true", timeout=10)


def test_a_killed_machine_that_takes_long_to_be_gone_is_waited_for(
    fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = fake_machine("healthy")
    process = machine.start().console._child.ptyproc

    def killed_and_not_gone_yet(force: bool) -> bool:
        os.kill(process.pid, signal.SIGKILL)
        return not force

    with monkeypatch.context() as patch:
        patch.setattr(process, "isalive", lambda: True)
        patch.setattr(process, "terminate", killed_and_not_gone_yet)
        machine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_panic_at_boot_is_reported_as_a_crash(fake_machine: FakeMachine) -> None:
    with pytest.raises(KernelCrash, match=r"Kernel panic - not syncing: VFS: no root[\s\S]*panic\.log"):
        fake_machine("panic").start()


def test_a_machine_that_ends_before_the_login_is_a_boot_failure(fake_machine: FakeMachine) -> None:
    with pytest.raises(BootFailure, match=r"exit code 7"):
        fake_machine("dies").start()


def test_a_silent_machine_is_a_boot_failure(fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "BOOT_SECONDS", 0.5)
    with pytest.raises(BootFailure, match=r"waiting for the login prompt: nothing after"):
        fake_machine("silent").start()


@pytest.mark.parametrize(
    "line",
    [
        "[   12.345678] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000009",
        "[   12.345678] Internal error: Oops: 0000000096000045 [#1] SMP",
        "Unable to handle kernel NULL pointer dereference at virtual address 0000000000000000",
        "[    1.000000] BUG: scheduling while atomic: swapper/0/1/0x00000002",
        "[    1.000000] WARNING: CPU: 1 PID: 42 at mm/page_alloc.c:5534",
        "[    9.100000] Out of memory: Killed process 61 (colibrictl) total-vm:1048576kB",
        "[    9.100000] Memory cgroup out of memory: Killed process 61 (colibrictl)",
    ],
)
def test_a_crash_during_a_command_is_noticed(shell: Shell, line: str) -> None:
    with pytest.raises(KernelCrash) as error:
        shell.run(f"echo '{line[:3]}''{line[3:]}'; sleep 30", timeout=20)
    assert line in str(error.value)
    assert find_crash(line) == line


def test_a_crash_report_inside_a_finished_command_is_noticed(shell: Shell) -> None:
    with pytest.raises(KernelCrash):
        shell.run("printf '%s %s\\n' '[ 1.0] Kernel panic -' 'not syncing: late'")


def test_a_provoked_crash_can_be_allowed_by_name(shell: Shell) -> None:
    command = "printf '%s %s\\n' 'Out of' 'memory: Killed process 1 (x)'"
    assert shell.run(command, allow=["oom"]).exit_code == 0
    with pytest.raises(KernelCrash):
        shell.run(command, allow=["oops"])


def test_ordinary_text_is_no_crash() -> None:
    assert find_crash("The kernel did not panic.\nNo BUG: 0 found\nWARNING: low battery") is None


def test_a_machine_that_dies_during_a_command_cannot_pass(shell: Shell) -> None:
    with pytest.raises(MachineDied, match=r"the machine ended"):
        shell.run("kill -9 $$", timeout=10)


def test_a_dead_machine_answers_no_further_command(shell: Shell) -> None:
    with pytest.raises(MachineDied):
        shell.run("exit 0", timeout=10)
    with pytest.raises(MachineDied):
        shell.run("true", timeout=10)


def test_a_command_that_does_not_end_is_a_timeout_and_the_shell_recovers(shell: Shell) -> None:
    with pytest.raises(ConsoleTimeout, match=r"'sleep 60' to end: nothing after 1 s"):
        shell.run("sleep 60", timeout=1)
    shell.synchronise()
    shell.prove_alive()


def test_a_guest_that_cannot_compute_is_not_alive(shell: Shell) -> None:
    shell.run("alias echo='echo 1'; true")
    with pytest.raises(UnexpectedOutput):
        shell.prove_alive()


def test_a_line_too_long_for_a_terminal_is_refused(shell: Shell) -> None:
    with pytest.raises(ValueError, match="upload it"):
        shell.run("x" * 5000)


def test_machine_options_replace_the_boards_values(tmp_path: Path) -> None:
    for name in ("Image", "rootfs.cpio", "models.erofs"):
        (tmp_path / name).touch()
    options = MachineOptions(cpu="cortex-a53", cores=2, ram_mib=256, cmdline="quiet")
    command = qemu_command(Image.load(tmp_path), Board.load(BOARD_FILE), options)

    def value(name: str) -> str:
        return command[command.index(name) + 1]

    assert (value("-cpu"), value("-smp"), value("-m")) == ("cortex-a53", "2", "256M")
    assert value("-append").endswith(" quiet")
    assert value("-initrd") == str(tmp_path / "rootfs.cpio")
    assert value("-nic") == "none"
    assert "readonly=on" in value("-drive")


def test_cpu_max_always_gets_the_cheap_pointer_authentication() -> None:
    board = Board.load(BOARD_FILE)
    assert MachineOptions(cpu="max").cpu_argument(board) == "max,pauth-impdef=on"
    assert MachineOptions().cpu_argument(board) == "max,pauth-impdef=on"


def test_a_root_disk_comes_before_the_models(tmp_path: Path) -> None:
    for name in ("Image", "rootfs.squashfs", "models.erofs"):
        (tmp_path / name).touch()
    command = qemu_command(Image.load(tmp_path), Board.load(BOARD_FILE), MachineOptions())
    drives = [command[i + 1] for i, word in enumerate(command) if word == "-drive"]
    assert [drive.rsplit("/", 1)[1] for drive in drives] == ["rootfs.squashfs", "models.erofs"]
    assert "-initrd" not in command


def test_an_incomplete_image_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no Image"):
        Image.load(tmp_path)
    (tmp_path / "Image").touch()
    with pytest.raises(ValueError, match=r"neither rootfs\.cpio nor"):
        Image.load(tmp_path)


def test_an_incomplete_board_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text('schema = 1\nname = "x"\n')
    with pytest.raises(ValueError, match="'memory' is missing"):
        Board.load(path)
