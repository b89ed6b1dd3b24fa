# SPDX-License-Identifier: MIT
"""What tests bring into the guest: programs and models on a disk, an empty writable disk, a session;
and machines with such disks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from boot_run import BootRun
from harness import Machine, Shell
from session_answer import Answer

CROSS_GCC = "aarch64-linux-gnu-gcc"
TOOLS_SERIAL = "colibri-tools"
TOOLS = "/run/tools"
DATA_SERIAL = "colibri-data"
DATA = "/run/data"
DATA_BLOCKS = 2048
EROFS_BLOCK = 4096
TOOLS_BYTES = 128 << 20  # a sparse file
SOURCES = Path(__file__).parent
LIBCS = {"glibc": "COLIBRI_AARCH64_BIN", "musl": "COLIBRI_AARCH64_MUSL_BIN"}
SERVICE_SCRIPTS = ("/etc/init.d/S95colibri", "/etc/init.d/colibri")  # busybox's init, System V's
SERVICE_SOCKET = "/run/colibri/colibri.sock"
# Without a C library: a few KiB, and nothing of the toolchain's runtime in the guest.
FREESTANDING = (
    "-std=c11 -Os -Wall -Wextra -Wconversion -Werror -ffreestanding -fno-stack-protector "
    "-fno-tree-loop-distribute-patterns -fno-pie -no-pie -nostdlib -static -s "
    "-Wl,--build-id=none -Wl,-z,max-page-size=65536"
)


def compile_freestanding(source: Path, program: Path, *options: str) -> None:
    """Compile one C file for the guest. options: more of the compiler's."""
    command = [CROSS_GCC, *FREESTANDING.split(), *options, "-o", str(program), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.fail(f"{CROSS_GCC} is missing: apt-get install gcc-aarch64-linux-gnu", pytrace=False)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{source.name} does not compile:\n{error.stderr}", pytrace=False)


def built_program(name: str, libc: str = "glibc") -> Path:
    """A static AArch64 program of one of the two builds."""
    folder = os.environ.get(LIBCS[libc], "")
    program = Path(folder) / name
    if not folder or not program.is_file():
        pytest.fail(f"${LIBCS[libc]}/{name} ({program}) is missing; run: make test-boot", pytrace=False)
    return program


@dataclass(frozen=True)
class Version:
    """A small model that tests install, one after another."""

    name: str
    path: Path
    root: str

    @property
    def guest_path(self) -> str:
        """Where the tools disk has it."""
        return f"{TOOLS}/{self.path.name}"


def versions() -> list[Version]:
    """The small models of $COLIBRI_MODELS, golden results beside each."""
    folder = Path(os.environ.get("COLIBRI_MODELS", ""))
    found = []
    for name in ("tiny", "tiny-mixed", "tiny-bf16"):
        golden = folder / f"{name}.golden.json"
        if not folder.name or not golden.is_file():
            pytest.fail(f"$COLIBRI_MODELS/{name}.golden.json ({golden}) is missing; run: make models", pytrace=False)
        found.append(Version(name, folder / f"{name}.colibri", json.loads(golden.read_text())["root"]))
    return found


def make_tools_disk(folder: Path, block: int, models: Sequence[Version] = (), programs: Sequence[Path] = ()) -> Path:
    """A read-only disk with dm, session_driver, and more programs and models as wanted.

    block: bytes, the page size of the kernel.
    """
    content, disk = folder / "tools", folder / "tools.disk"
    content.mkdir()
    compile_freestanding(SOURCES / "dm.c", content / "dm")
    for program in (built_program("session_driver"), *programs):
        shutil.copy(program, content / program.name)
    for program in content.iterdir():
        program.chmod(0o755)
    for version in models:
        for path in (version.path, version.path.with_suffix(".golden.json")):
            shutil.copyfile(path, content / path.name)
    if block == EROFS_BLOCK:
        # Whole blocks: what lies here can be read with O_DIRECT, like a model of the image.
        mkfs = [host_program("mkfs.erofs", "erofs-utils"), "--quiet", "--all-root", "-Enoinline_data"]
        command = [*mkfs, str(disk), str(content)]
    else:  # erofs of Linux 6.1 has blocks of one page, and the build machine's tool makes no larger ones
        mkfs = [host_program("mke2fs", "e2fsprogs"), "-q", "-F", "-t", "ext4", "-b", str(block), "-m", "0"]
        command = [*mkfs, "-O", "^has_journal", "-d", str(content), str(disk), str(TOOLS_BYTES // block)]
    subprocess.run(command, check=True, capture_output=True)
    return disk


def host_program(name: str, package: str) -> str:
    """The path of a program of the build machine; fails with the package that has it."""
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    found = shutil.which(name, path=search)
    if found is None:
        pytest.fail(f"{name} is missing: apt-get install {package}", pytrace=False)
    return found


def make_data_disk(path: Path, block: int, *options: str) -> Path:
    """An empty ext4 file system that can seal files. options: more of mkfs.ext4's.

    block: bytes, the page size of the kernel: before Linux 6.3 it mounts no other file system with fs-verity.
    """
    mkfs = host_program("mkfs.ext4", "e2fsprogs")
    with path.open("wb") as file:
        file.truncate(DATA_BLOCKS * block)
    # Whole tables now: nothing writes in the background while a test counts writes or blocks.
    lazy = "lazy_itable_init=0,lazy_journal_init=0"
    common = ["-q", "-F", "-O", "verity", "-b", str(block), "-m", "0", "-E", lazy]
    subprocess.run([mkfs, *common, *options, str(path)], check=True, capture_output=True)
    return path


def disk_arguments(path: Path, serial: str, *, writable: bool = False) -> tuple[str, ...]:
    """QEMU's options for one more disk."""
    escaped = str(path).replace(",", ",,")
    readonly = "off" if writable else "on"
    return (
        "-drive", f"if=none,id={serial},format=raw,readonly={readonly},file={escaped}",
        "-device", f"virtio-blk-device,drive={serial},serial={serial}",
    )  # fmt: skip


def logged_disk_arguments(path: Path, log: Path, serial: str) -> tuple[str, ...]:
    """QEMU's options for a writable disk whose writes go into a log, too (see writelog.py)."""

    def node(**values: str) -> str:
        return ",".join(f"{name.replace('_', '-')}={value.replace(',', ',,')}" for name, value in values.items())

    return (
        "-blockdev", node(driver="file", node_name="data-file", filename=str(path)),
        "-blockdev", node(driver="raw", node_name="data", file="data-file"),
        "-blockdev", node(driver="file", node_name="log-file", filename=str(log)),
        "-blockdev", node(driver="raw", node_name="log", file="log-file"),
        "-blockdev", node(driver="blklogwrites", node_name="logged", file="data", log="log", log_sector_size="512"),
        "-device", f"virtio-blk-device,drive=logged,serial={serial}",
    )  # fmt: skip


def disk_names(shell: Shell) -> dict[str, str]:
    """Serial number -> name of the guest's disk, e.g. vda."""
    found = shell.output('for d in /sys/block/vd*; do echo "$(cat $d/serial) ${d##*/}"; done')
    return dict(line.split() for line in found.splitlines() if len(line.split()) == 2)


def find_disk(shell: Shell, serial: str) -> str:
    """Name of the guest's disk with this serial number."""
    found = disk_names(shell)
    assert serial in found, f"the guest has no disk with the serial number {serial}, only {sorted(found)}"
    return found[serial]


def mount_data(shell: Shell, serial: str = DATA_SERIAL, folder: str = DATA) -> None:
    """Mount a writable disk; an unclean one is recovered by the guest's kernel."""
    shell.run(f"mkdir -p {folder} && mount -t ext4 /dev/{find_disk(shell, serial)} {folder}", check=True)


def await_service(shell: Shell) -> None:
    """Until the image's own service has its socket, 90 seconds at most: it starts behind the login."""
    found = f"[ -S {SERVICE_SOCKET} ]"
    shell.run(f"i=0; until {found} || [ $i -ge 900 ]; do i=$((i + 1)); sleep 0.1; done", timeout=300.0)


def service_script(shell: Shell) -> str | None:
    """The init script of the image's service; None where units start it."""
    return next((path for path in SERVICE_SCRIPTS if shell.run(f"[ -x {path} ]").exit_code == 0), None)


def stop_service(shell: Shell) -> None:
    """Stop the image's own service, which holds a model, where the image has an init script for it."""
    script = service_script(shell)
    if script is not None:
        await_service(shell)
        shell.run(f"{script} stop", check=True)


def mount_tools(shell: Shell) -> None:
    """Make the programs of the tools disk available in TOOLS."""
    disk = find_disk(shell, TOOLS_SERIAL)
    shell.run(f"mkdir -p {TOOLS} && mount -o ro /dev/{disk} {TOOLS}", check=True)


def boot_with(
    run: BootRun, *arguments: str, tools: Path | None = None, data: Path | None = None
) -> tuple[Machine, Shell]:
    """A machine of the test's own with further QEMU arguments; the tools and the writable disk are mounted."""
    disks: tuple[str, ...] = () if tools is None else disk_arguments(tools, TOOLS_SERIAL)
    disks += () if data is None else disk_arguments(data, DATA_SERIAL, writable=True)
    machine = run.machine(replace(run.options, qemu_args=(*run.options.qemu_args, *disks, *arguments)))
    shell = machine.start()
    if tools is not None:
        mount_tools(shell)
    if data is not None:
        mount_data(shell)
    return machine, shell


@contextmanager
def guest_with(run: BootRun, *arguments: str, tools: Path | None = None, data: Path | None = None) -> Iterator[Shell]:
    """Such a machine, which must prove to be alive when it is no longer needed."""
    machine, shell = boot_with(run, *arguments, tools=tools, data=data)
    yield shell
    shell.prove_alive()
    run.proofs += 1
    machine.close()


class GuestSession:
    """A session that stays open in the guest while its storage comes and goes."""

    def __init__(self, machine: Machine, shell: Shell) -> None:
        self.machine = machine
        self.shell = shell
        self.asked = 0
        shell.run("rm -f /run/in /run/out; mkfifo /run/in; : >/run/out", check=True)
        shell.run(f"{TOOLS}/session_driver </run/in >/run/out 2>&1 & exec 3>/run/in", check=True)

    def send(self, line: str) -> None:
        """Give a command without waiting for its answer."""
        self.asked += 1
        self.shell.run(f"echo {line!r} >&3", check=True)

    def receive(self, timeout: float = 240.0) -> Answer:
        """The answer of the last command; timeout in seconds."""
        line = self.shell.output(
            f"while [ $(wc -l </run/out) -lt {self.asked} ]; do sleep 0.1; done; sed -n {self.asked}p /run/out",
            timeout=timeout,
        )
        command, code, text = [*line.split(" ", 2), "", ""][:3]
        return Answer(command, int(code), text)

    def ask(self, line: str, timeout: float = 240.0) -> Answer:
        """A command and its answer."""
        self.send(line)
        return self.receive(timeout)

    def close(self) -> None:
        """End the program."""
        self.shell.run("echo quit >&3; exec 3>&-; wait", check=True)
