# SPDX-License-Identifier: MIT
"""Programs that tests bring into the guest on a disk of their own, and a session kept open there."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import Machine, Shell
from session_answer import Answer

CROSS_GCC = "aarch64-linux-gnu-gcc"
TOOLS_SERIAL = "colibri-tools"
TOOLS = "/run/tools"
SOURCES = Path(__file__).parent
# Without a C library: a few KiB, and nothing of the toolchain's runtime in the guest.
FREESTANDING = (
    "-std=c11 -Os -Wall -Wextra -Wconversion -Werror -ffreestanding -fno-stack-protector "
    "-fno-tree-loop-distribute-patterns -fno-pie -no-pie -nostdlib -static -s "
    "-Wl,--build-id=none -Wl,-z,max-page-size=4096"
)


def compile_freestanding(source: Path, program: Path) -> None:
    """Compile one C file for the guest."""
    command = [CROSS_GCC, *FREESTANDING.split(), "-o", str(program), str(source)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.fail(f"{CROSS_GCC} is missing: apt-get install gcc-aarch64-linux-gnu", pytrace=False)
    except subprocess.CalledProcessError as error:
        pytest.fail(f"{source.name} does not compile:\n{error.stderr}", pytrace=False)


def session_driver() -> Path:
    """The static AArch64 program that keeps a session open (engine/native/tests/session_driver.c)."""
    folder = os.environ.get("COLIBRI_AARCH64_BIN", "")
    program = Path(folder) / "session_driver"
    if not folder or not program.is_file():
        pytest.fail(f"$COLIBRI_AARCH64_BIN/session_driver ({program}) is missing; run: make test-boot", pytrace=False)
    return program


def make_tools_disk(folder: Path) -> Path:
    """A read-only disk with dm and session_driver."""
    content, disk = folder / "tools", folder / "tools.erofs"
    content.mkdir()
    compile_freestanding(SOURCES / "dm.c", content / "dm")
    shutil.copy(session_driver(), content / "session_driver")
    for program in content.iterdir():
        program.chmod(0o755)
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    mkfs = shutil.which("mkfs.erofs", path=search)
    if mkfs is None:
        pytest.fail("mkfs.erofs is missing: apt-get install erofs-utils", pytrace=False)
    subprocess.run([mkfs, "--quiet", "--all-root", str(disk), str(content)], check=True, capture_output=True)
    return disk


def disk_arguments(path: Path, serial: str, *, writable: bool = False) -> tuple[str, ...]:
    """QEMU's options for one more disk."""
    escaped = str(path).replace(",", ",,")
    readonly = "off" if writable else "on"
    return (
        "-drive", f"if=none,id={serial},format=raw,readonly={readonly},file={escaped}",
        "-device", f"virtio-blk-device,drive={serial},serial={serial}",
    )  # fmt: skip


def find_disk(shell: Shell, serial: str) -> str:
    """Name of the guest's disk with this serial number, e.g. vda."""
    found = shell.output(
        f'for d in /sys/block/vd*; do [ "$(cat $d/serial)" = {serial} ] && echo "${{d##*/}}"; done; true'
    )
    assert found, f"the guest has no disk with the serial number {serial}"
    return found


def mount_tools(shell: Shell) -> None:
    """Make the programs of the tools disk available in TOOLS."""
    disk = find_disk(shell, TOOLS_SERIAL)
    shell.run(f"mkdir -p {TOOLS} && mount -t erofs -o ro /dev/{disk} {TOOLS}", check=True)


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
