# SPDX-License-Identifier: MIT
"""colibrictl doctor: every check on machines that exist only as a folder of /proc and /sys files, and
the probes under real limits and system call filters.

Needs the native build ($COLIBRI_NATIVE_BUILD, default build/host) and the tiny model ($COLIBRI_MODELS).
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import resource
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from native_cases import program

OK, ENVIRONMENT, BUDGET = 0, 5, 4
MIB = 1 << 20
ORDINARY_ID = 1000
TIMEOUT_SECONDS = 120
# System calls by architecture: the numbers of the kernel's tables.
CALLS = {
    "x86_64": {"madvise": 28, "fadvise64": 221, "mlock": 149, "mlock2": 325, "capget": 125, "prlimit64": 302,
               "fstatfs": 138, "ioctl": 16, "sched_getaffinity": 204, "getrlimit": 97},
    "aarch64": {"madvise": 233, "fadvise64": 223, "mlock": 228, "mlock2": 284, "capget": 90, "prlimit64": 261,
                "fstatfs": 44, "ioctl": 29, "sched_getaffinity": 123, "getrlimit": 163},
}  # fmt: skip

# A healthy machine. Tests replace single files.
HEALTHY = {
    "proc/meminfo": "MemTotal: 1048576 kB\nMemFree: 9 kB\nMemAvailable: 917504 kB\nSwapTotal: 0 kB\n"
    "CommitLimit: 524288 kB\nCommitted_AS: 1024 kB\n",
    "proc/self/cgroup": "0::/\n",
    "proc/swaps": "Filename Type Size Used Priority\n",
    "proc/sys/kernel/osrelease": "6.1.0\n",
    "proc/sys/vm/max_map_count": "65530\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/vm/swappiness": "60\n",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "schedutil\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "boot/config-6.1.0": "CONFIG_MMU=y\nCONFIG_ADVISE_SYSCALLS=y\nCONFIG_SECCOMP_FILTER=y\nCONFIG_MEMCG=y\n",
}


@dataclass(frozen=True)
class Check:
    """One row of a report."""

    severity: str
    value: str
    fix: str


@dataclass(frozen=True)
class Report:
    """What doctor said."""

    exit_code: int
    checks: dict[str, Check]

    def __getitem__(self, name: str) -> Check:
        return self.checks[name]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that every user may enter, with copies of the command and the tiny model."""
    models = Path(os.environ.get("COLIBRI_MODELS", ""))
    folder = Path(tempfile.mkdtemp(prefix="doctor-"))
    folder.chmod(0o755)
    for source in (program("colibrictl"), models / "tiny.colibri"):
        assert source.is_file(), f"{source}: no such file; run: make models"
        shutil.copy(source, folder / source.name)
        (folder / source.name).chmod(0o755)
    yield folder
    shutil.rmtree(folder)


Doctor = Callable[..., Report]


@pytest.fixture
def doctor(place: Path) -> Doctor:
    """doctor(*options, model=…, prepare=…): run it with --json and read the report."""

    def run(*options: str, model: bool = False, prepare: Callable[[], None] | None = None) -> Report:
        command = [str(place / "colibrictl"), "doctor", *([str(place / "tiny.colibri")] if model else []), "--json"]
        done = subprocess.run(
            [*command, *options], capture_output=True, timeout=TIMEOUT_SECONDS, check=False, preexec_fn=prepare,
            env={"PATH": os.environ["PATH"]}, cwd=place,
        )  # fmt: skip
        data = json.loads(done.stdout)
        checks = {row["name"]: Check(row["severity"], row["value"], row["fix"]) for row in data["checks"]}
        assert len(checks) == len(data["checks"]), "a check is listed twice"
        assert data["exit_code"] == done.returncode
        assert data["errors"] == sum(check.severity == "error" for check in checks.values())
        return Report(done.returncode, checks)

    return run


@pytest.fixture
def machine(tmp_path: Path, doctor: Doctor) -> Callable[..., Report]:
    """machine({file: text or None}): the report of a healthy machine with these files replaced."""

    def run(changes: dict[str, str | None] | None = None, *options: str, model: bool = False) -> Report:
        for name, text in {**HEALTHY, **(changes or {})}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text is not None:
                path.write_text(text)
        return doctor("--root", str(tmp_path), *options, model=model)

    return run


def as_ordinary_user(limit: int) -> Callable[[], None]:
    """Give up every capability, with this RLIMIT_MEMLOCK in bytes."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(ORDINARY_ID)
            os.setuid(ORDINARY_ID)

    return prepare


def refuse(calls: Sequence[str], number: int) -> Callable[[], None]:
    """Answer these system calls with an error number, as a kernel without them or a sandbox would."""
    numbers = [CALLS[platform.machine()][name] for name in calls]

    def prepare() -> None:
        load, jump_equal, give = 0x20, 0x15, 0x06
        rows = [(load, 0, 0, 0)]  # the number of the call
        rows += [(jump_equal, len(numbers) - i, 0, call) for i, call in enumerate(numbers)]
        rows += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | number)]
        code = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *row) for row in rows))
        header = struct.pack("@HP", len(rows), ctypes.addressof(code))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(header)):
            os._exit(99)

    return prepare


def test_a_healthy_machine_has_no_error_and_no_warning(machine: Callable[..., Report]) -> None:
    report = machine()
    found = {name: check.severity for name, check in report.checks.items() if name not in ("memlock", "lock", "isa")}
    assert set(found.values()) <= {"ok", "info"}, found
    assert {name for name, check in report.checks.items() if check.severity == "error" and not check.fix} == set()


def test_every_check_is_explained_in_the_documentation(machine: Callable[..., Report]) -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "doctor.md").read_text()
    rows = {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")}
    assert rows == set(machine(model=True).checks)


@pytest.mark.parametrize(
    ("release", "severity"),
    [("5.9.16-old", "warning"), ("5.10.0", "ok"), ("4.19.0", "warning"), ("6.1.0", "ok"), ("strange", "info")],
)
def test_kernels_before_5_10_are_warned_about(machine: Callable[..., Report], release: str, severity: str) -> None:
    assert machine({"proc/sys/kernel/osrelease": release + "\n"})["kernel"].severity == severity


def test_memory_below_the_plan_is_an_error_with_the_shortfall(machine: Callable[..., Report]) -> None:
    report = machine({"proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB\nSwapTotal: 0 kB\n"}, model=True)
    check = report["memory"]
    assert (report.exit_code, check.severity) == (ENVIRONMENT, "error")
    assert "1048576 are available of 2097152" in check.value
    assert machine({}, "--budget", "900M")["memory"].severity == "error"  # 896 MiB are available
    assert machine({}, "--budget", "800M")["memory"].severity == "ok"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/memory.max": "4194304\n",
          "sys/fs/cgroup/a/memory.current": "1048576\n", "sys/fs/cgroup/a/b/memory.max": "max\n"}, "version 2"),
        ({"proc/self/cgroup": "3:memory:/a\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4194304\n",
          "sys/fs/cgroup/memory/a/memory.usage_in_bytes": "1048576\n"}, "version 1"),
    ],
)  # fmt: skip
def test_a_control_group_that_is_too_small_is_an_error(
    machine: Callable[..., Report], changes: dict[str, str | None], words: str
) -> None:
    check = machine(changes, "--budget", "64M")["memory-cgroup"]
    assert check.severity == "error"
    assert check.value.startswith(f"{words}: the limit of 4194304 leaves ")
    assert "MemoryMax=" in check.fix
    assert machine(changes)["memory-cgroup"].severity == "ok"  # nothing is asked of it


def test_the_unlimited_of_version_1_is_no_limit(machine: Callable[..., Report]) -> None:
    changes = {
        "proc/self/cgroup": "3:memory:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "4096\n",
    }
    assert machine(changes)["memory-cgroup"] == Check("ok", "version 1 groups, no limit", "")


@pytest.mark.parametrize(
    ("changes", "grant"),
    [
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, "0.5"),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "150000 100000\n"}, "1.5"),
        ({"proc/self/cgroup": "4:cpu,cpuacct:/a\n", "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "50000\n",
          "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n"}, "0.5"),
    ],
)  # fmt: skip
def test_a_cpu_quota_below_the_threads_is_a_warning(
    machine: Callable[..., Report], changes: dict[str, str | None], grant: str
) -> None:
    threads = len(os.sched_getaffinity(0))
    if threads < 2 and grant == "1.5":
        grant = ""  # one thread has enough
    check = machine(changes, "--threads", str(min(threads, 2)))["cpus"]
    expected = f"a control group grants {grant} CPUs to {min(threads, 2)} threads"
    assert check.value == (expected if grant else "1 CPUs for 1 threads")


def test_a_cpu_group_without_quota_is_no_limit(machine: Callable[..., Report]) -> None:
    assert machine({"sys/fs/cgroup/cpu.max": "max 100000\n"}, "--threads", "1")["cpus"].severity == "ok"


def test_more_threads_than_cpus_are_a_warning(machine: Callable[..., Report]) -> None:
    assert machine({}, "--threads", "64")["cpus"].severity == "warning"


@pytest.mark.parametrize(
    ("swaps", "severity"), [("/dev/sda2 partition 1 0 -2", "warning"), ("/dev/zram0 partition 1 0 100", "info")]
)
def test_swap_on_a_disk_is_a_warning(machine: Callable[..., Report], swaps: str, severity: str) -> None:
    changes = {
        "proc/meminfo": HEALTHY["proc/meminfo"].replace("SwapTotal: 0", "SwapTotal: 2048"),
        "proc/swaps": HEALTHY["proc/swaps"] + swaps + "\n",
    }
    check = machine(changes)["swap"]
    assert check.severity == severity
    assert check.value.startswith("2097152 bytes")
    assert "swappiness 60" in check.value


def test_strict_overcommit_below_the_arena_is_an_error(machine: Callable[..., Report]) -> None:
    full = HEALTHY["proc/meminfo"].replace("Committed_AS: 1024", "Committed_AS: 524287")
    changes = {"proc/sys/vm/overcommit_memory": "2\n", "proc/meminfo": full}
    assert machine(changes, model=True)["overcommit"].severity == "error"
    assert machine({"proc/sys/vm/overcommit_memory": "2\n"}, model=True)["overcommit"].severity == "ok"


def test_too_few_mappings_for_guarded_experts_are_a_warning(machine: Callable[..., Report]) -> None:
    check = machine({"proc/sys/vm/max_map_count": "100\n"}, model=True)["max-map-count"]
    assert check.severity == "warning"
    assert "sysctl vm.max_map_count=" in check.fix


def test_a_missing_kernel_option_is_named(machine: Callable[..., Report]) -> None:
    config = HEALTHY["boot/config-6.1.0"].replace("CONFIG_ADVISE_SYSCALLS=y", "# CONFIG_ADVISE_SYSCALLS is not set")
    check = machine({"boot/config-6.1.0": config})["kernel-config"]
    assert (check.severity, check.value) == ("warning", "/boot/config-6.1.0 lacks CONFIG_ADVISE_SYSCALLS")


def test_a_packed_kernel_configuration_is_only_reported(machine: Callable[..., Report]) -> None:
    check = machine({"boot/config-6.1.0": None, "proc/config.gz": "\x1f"})["kernel-config"]
    assert check.severity == "info"
    assert "/proc/config.gz" in check.value


def test_a_slow_governor_is_a_warning(machine: Callable[..., Report]) -> None:
    name = "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    assert machine({name: "powersave\n"})["cpu-governor"].severity == "warning"


def test_large_read_ahead_is_a_warning(machine: Callable[..., Report], place: Path) -> None:
    device = place.stat().st_dev
    queue = f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    changes = {f"{queue}/queue/read_ahead_kb": "8192\n", f"{queue}/uevent": "MAJOR=1\nDEVNAME=mmcblk0\n"}
    check = machine(changes, model=True)
    assert check["read-ahead"].value.startswith("8192 KiB on mmcblk0")
    assert check["read-ahead"].severity == "warning"
    assert machine({f"{queue}/queue/read_ahead_kb": "128\n"}, model=True)["read-ahead"].severity == "ok"


def test_a_machine_that_hides_everything_is_not_called_unfit(doctor: Doctor) -> None:
    report = doctor("--root", "/nonexistent", model=True)
    hidden = ("memory", "memory-cgroup", "overcommit", "swap", "max-map-count", "huge-pages", "read-ahead")
    assert {report[name].severity for name in hidden} == {"info"}


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_a_sandbox_that_refuses_every_probe_gets_a_whole_report(doctor: Doctor, number: int) -> None:
    whole = doctor(model=True)
    report = doctor("--root", "/nonexistent", model=True, prepare=refuse(list(CALLS[platform.machine()]), number))
    assert set(report.checks) == set(whole.checks)
    assert report["lock"].severity == "error"
    assert report["advice"].severity == "warning"
    assert report.exit_code == ENVIRONMENT


def test_missing_advice_calls_are_named(doctor: Doctor) -> None:
    report = doctor(model=True, prepare=refuse(["madvise", "fadvise64"], errno.ENOSYS))
    check = report["advice"]
    assert (check.severity, check.value) == ("warning", "madvise: ENOSYS, posix_fadvise: ENOSYS")
    assert "CONFIG_ADVISE_SYSCALLS=y" in check.fix
    assert doctor()["advice"].value == "madvise: works, posix_fadvise: works"


@pytest.mark.parametrize("limit", [0, 64 << 10])
def test_a_lock_limit_below_the_model_is_an_error_with_the_line_to_type(doctor: Doctor, limit: int) -> None:
    report = doctor(model=True, prepare=as_ordinary_user(limit))
    check = report["memlock"]
    assert (report.exit_code, check.severity) == (ENVIRONMENT, "error")
    assert f"RLIMIT_MEMLOCK is {limit} (hard limit {limit}), CAP_IPC_LOCK: no" in check.value
    needed = int(check.value.split("; ")[1].split()[0])
    assert f"`ulimit -l {(needed + 1023) // 1024}`" in check.fix
    assert f"LimitMEMLOCK={needed}" in check.fix
    assert report["lock"].severity == "error"
    # and the line is right: with it the same user has no lock error any more
    kib = int(check.fix.split("`ulimit -l ")[1].split("`")[0])
    healed = doctor(model=True, prepare=as_ordinary_user(kib * 1024))
    assert (healed["memlock"].severity, healed["lock"].severity) == ("ok", "ok")


def test_without_a_model_a_limit_that_fits_none_is_an_error(doctor: Doctor) -> None:
    assert doctor(prepare=as_ordinary_user(64 << 10)).exit_code == ENVIRONMENT
    report = doctor(prepare=as_ordinary_user(8 * MIB))
    assert (report["memlock"].severity, report["lock"].severity) == ("info", "ok")


def test_a_kernel_that_accepts_locks_and_makes_none_is_found(doctor: Doctor) -> None:
    report = doctor(prepare=refuse(["mlock", "mlock2"], 0))
    assert report["lock"].severity == "error"
    assert "VmLck counts 0: nothing is locked" in report["lock"].value


def test_a_budget_below_the_floor_ends_with_its_own_exit_code(doctor: Doctor) -> None:
    report = doctor("--budget", "64K", model=True)
    assert report.exit_code == BUDGET
    assert report["model"].severity == "error"


def test_a_missing_instruction_set_is_an_error(doctor: Doctor) -> None:
    report = doctor("--isa", "none-such")
    assert (report.exit_code, report["isa"].severity) == (ENVIRONMENT, "error")


def test_the_report_for_people_has_the_same_rows(place: Path, doctor: Doctor) -> None:
    command = [str(place / "colibrictl"), "doctor", str(place / "tiny.colibri")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    rows = [line.split()[:2] for line in done.stdout.splitlines() if not line.startswith(" ")][:-1]
    report = doctor(model=True)
    assert [name for _, name in rows] == list(report.checks)
    assert done.returncode == report.exit_code
