# SPDX-License-Identifier: MIT
"""The booted image: kernel options live, file systems, locks, control groups, orderly power-off."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from boot_run import BootRun
from guest_tools import SOURCES, compile_freestanding
from harness import KernelCrash, Machine, MachineOptions, Shell

REPOSITORY = Path(__file__).resolve().parents[2]
FRAGMENT_FOLDER = REPOSITORY / "configs" / "kernel"
PROBE = "/run/probe"  # /tmp may forbid programs
MIB = 1 << 20

sys.path.insert(0, str(FRAGMENT_FOLDER))
import kconfig_check  # noqa: E402

BootMachine = Callable[..., tuple[Machine, Shell]]


@pytest.fixture(scope="session")
def probe_program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The probe, compiled for the guest."""
    program = tmp_path_factory.mktemp("probe") / "probe"
    compile_freestanding(SOURCES / "probe.c", program, "-Wl,-z,max-page-size=4096")  # small: it is typed
    return program.read_bytes()


@pytest.fixture
def probe(shell: Shell, probe_program: bytes) -> Iterator[Callable[..., list[str]]]:
    """probe(ARGUMENTS): lines that the probe prints in the guest."""
    if shell.run(f"test -x {PROBE}").exit_code != 0:
        shell.write_file(PROBE, probe_program, mode="755")

    def run(arguments: str) -> list[str]:
        # Through a file: what a filter logs is on the console of an image that shows all of the kernel's messages.
        shell.run(f"{PROBE} {arguments} >{PROBE}.out", check=True, noise=True)
        return [" ".join(line.split()) for line in shell.read_file(f"{PROBE}.out").decode().splitlines()]

    yield run


def dropped_options(boot_run: BootRun, shell: Shell) -> list[str]:
    """Lines of the board's kernel fragments that the running kernel does not have."""
    names = [*boot_run.board.fragments, *boot_run.board.vendor_fragments]
    requests = kconfig_check.load_fragments(FRAGMENT_FOLDER / f"{name}.cfg" for name in names)
    config = kconfig_check.parse_config(shell.read_file("/proc/config.gz"), "/proc/config.gz")
    answers = kconfig_check.check(requests, config)
    assert len(answers) > 40  # the layer for Yocto asks for 41: linux-yocto brings what `base` and `arm64` hold
    return [f"{answer.request.text}: {answer.note}" for answer in answers if answer.dropped]


def test_every_requested_kernel_option_is_live(boot_run: BootRun, shell: Shell) -> None:
    assert dropped_options(boot_run, shell) == []


def test_the_boot_log_reports_no_failure(shell: Shell) -> None:
    log = shell.console.log_path.read_text(encoding="utf-8", errors="replace")
    assert "Linux version" in log
    assert [line for line in log.splitlines() if line.startswith("colibri-init: FAILED")] == []


def test_all_cores_and_the_memory_of_the_board_are_there(boot_run: BootRun, shell: Shell) -> None:
    assert shell.output("nproc") == str(boot_run.options.cores or boot_run.board.cores)
    kilobytes = int(shell.output("sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo"))
    ram_mib = boot_run.options.ram_mib or boot_run.board.ram_mib
    assert 0.9 * ram_mib <= kilobytes / 1024 <= ram_mib


def test_the_model_partition_is_read_only(shell: Shell) -> None:
    mount = shell.output("grep ' /models ' /proc/mounts").split()
    options = mount[3].split(",")
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(options)
    refused = shell.run("touch /models/new")
    assert refused.exit_code == 1
    assert "Read-only file system" in refused.output
    disk = mount[0].removeprefix("/dev/")
    assert shell.output(f"cat /sys/block/{disk}/ro") == "1"


def test_ordinary_file_systems_are_up(shell: Shell) -> None:
    mounted = {line.split()[1] for line in shell.output("cat /proc/mounts").splitlines()}
    assert {"/proc", "/sys", "/dev", "/dev/shm", "/run", "/tmp", "/sys/fs/cgroup"} <= mounted
    shell.run("echo 17 >/dev/shm/file && rm /dev/shm/file", check=True)


def test_a_control_group_measures_the_peak_and_enforces_the_limit(shell: Shell) -> None:
    group = "/sys/fs/cgroup/limit-test"
    shell.run(f"mkdir {group} && echo {16 * MIB} >{group}/memory.max", check=True)
    fill = "dd if=/dev/zero of=/dev/shm/fill bs=1048576 count="
    join = f"echo $$ >{group}/cgroup.procs"
    shell.run(f"sh -c '{join}; {fill}8'; rm /dev/shm/fill", check=True)
    peak = int(shell.output(f"cat {group}/memory.peak"))
    assert 8 * MIB <= peak <= 16 * MIB
    refused = shell.run(f"sh -c '{join}; {fill}64'", allow=["oom"])
    assert refused.exit_code == 137  # killed
    shell.run(f"rm -f /dev/shm/fill; rmdir {group}", check=True)


def test_memory_locks_hold_for_root(probe: Callable[..., list[str]]) -> None:
    assert probe(f"lock {4 * MIB}") == ["lock: OK", "VmLck: 4096 kB"]


@pytest.mark.parametrize(
    ("limit", "answer"),
    [
        (0, [f"lock: {errno.EPERM}", "VmLck: 0 kB"]),
        (64 << 10, [f"lock: {errno.ENOMEM}", "VmLck: 0 kB"]),
        (8 * MIB, ["lock: OK", "VmLck: 4096 kB"]),
    ],
)
def test_memory_locks_of_other_users_end_at_their_limit(
    probe: Callable[..., list[str]], limit: int, answer: list[str]
) -> None:
    assert probe(f"lock {4 * MIB} {limit}") == answer


def test_advice_is_taken(probe: Callable[..., list[str]]) -> None:
    assert probe("advise") == ["madvise: OK", "fadvise: OK"]


def test_system_call_filters_work(probe: Callable[..., list[str]]) -> None:
    assert probe("seccomp") == ["seccomp: OK", "NoNewPrivs: 1", "Seccomp: 2"]


def test_calls_that_a_filter_logs_are_in_the_kernels_log(shell: Shell, probe: Callable[..., list[str]]) -> None:
    assert probe("seccomp log") == ["seccomp: OK", "NoNewPrivs: 1", "Seccomp: 2"]
    logged = shell.output("dmesg | grep 'type=1326 .* comm=\"probe\"' | tail -n 1")  # AUDIT_SECCOMP
    assert " syscall=" in logged


def test_huge_pages_are_given_to_those_who_ask(shell: Shell) -> None:
    assert "[madvise]" in shell.output("cat /sys/kernel/mm/transparent_hugepage/enabled")


def test_the_machine_powers_off_in_order(boot_machine: BootMachine) -> None:
    machine, shell = boot_machine()
    shell.prove_alive()
    assert machine.power_off() == 0
    assert not machine.alive()


def test_the_image_boots_on_one_old_core_with_little_memory(boot_machine: BootMachine, boot_run: BootRun) -> None:
    _, shell = boot_machine(MachineOptions(cpu="cortex-a53", cores=1, ram_mib=128))
    shell.prove_alive()
    boot_run.proofs += 1
    features = shell.output("sed -n 's/^Features.*: //p' /proc/cpuinfo").split()
    assert "asimd" in features
    assert "asimddp" not in features


def test_a_real_kernel_panic_is_noticed(boot_machine: BootMachine) -> None:
    machine, shell = boot_machine()
    with pytest.raises(KernelCrash, match="Kernel panic - not syncing: sysrq triggered crash"):
        shell.run("echo c >/proc/sysrq-trigger")
    assert not machine.alive()
