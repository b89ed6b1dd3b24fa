# SPDX-License-Identifier: MIT
"""Boot an image folder in QEMU and run commands in it over the serial console.

An image folder holds fixed names, whoever built it:

    Image                                   the kernel
    rootfs.cpio[.gz|.xz|.zst]               an initramfs, or
    rootfs.erofs|.squashfs|.ext4            a root file system (first disk, read-only)
    models.erofs|.squashfs|.ext4            the model partition (disk with the serial number
                                            "colibri-models", read-only); may be missing
    board.toml                              a board file (see configs/boards/)

Every command ends in a marker made of random numbers which the echo of the typed line cannot
contain, with the exit code in the same match. A guest that died, crashed or answers something
else raises; there is no way to pass without the guest's own answer.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import shlex
import shutil
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from console import (
    BootFailure,
    CommandFailed,
    Console,
    ConsoleError,
    ConsoleTimeout,
    KernelCrash,
    MachineDied,
    Tee,
    UnexpectedOutput,
)

__all__ = [
    "Board",
    "BootFailure",
    "CommandFailed",
    "ConsoleError",
    "ConsoleTimeout",
    "Image",
    "KernelCrash",
    "Machine",
    "MachineDied",
    "MachineOptions",
    "Result",
    "Shell",
    "UnexpectedOutput",
]

MODELS_SERIAL = "colibri-models"
# Test machines are shared and the guest is emulated: no wait is shorter than this.
BOOT_SECONDS = 180.0
COMMAND_SECONDS = 120.0
_SYNC_SECONDS = 20.0
_SYNC_TRIES = 6
_UPLOAD_CHUNK = 1024  # bytes per typed line, before base64; leaves room for a long path
_INITRAMFS = ("rootfs.cpio", "rootfs.cpio.gz", "rootfs.cpio.xz", "rootfs.cpio.zst")
_DISK_TYPES = ("erofs", "squashfs", "ext4")
_PROMPT = r"[#$] (?:\x1b\[6n)?$"


# signal=off: a control-C typed into the console is for the guest. Only a person has a monitor.
_HARNESS = ["-monitor", "none", "-chardev", "stdio,id=console,signal=off", "-serial", "chardev:console"]
_PERSON = ["-serial", "mon:stdio"]


@dataclass(frozen=True)
class Board:
    """The parts of a board file that a boot needs."""

    name: str
    ram_mib: int
    cores: int
    console: str
    cmdline: str
    fragments: tuple[str, ...]
    vendor_fragments: tuple[str, ...]
    qemu: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> Board:
        """Read a board file; raises ValueError that names what is missing."""
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"{path}: cannot read the board file ({error.strerror})") from error
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"{path}: not a TOML file: {error}") from error
        if data.get("schema") != 1:
            raise ValueError(f"{path}: schema is {data.get('schema')!r}; this reads schema 1")
        try:
            return cls(
                name=data["name"],
                ram_mib=data["memory"]["ram_mib"],
                cores=data["cpu"]["cores"],
                console=data["console"]["device"],
                cmdline=data["kernel"]["cmdline"],
                fragments=tuple(data["kernel"]["fragments"]),
                vendor_fragments=tuple(data["kernel"].get("vendor_fragments", ())),
                qemu=data["qemu"],
            )
        except KeyError as error:
            raise ValueError(f"{path}: {error} is missing; see configs/boards/") from error


@dataclass(frozen=True)
class Image:
    """The files of an image folder."""

    folder: Path
    kernel: Path
    initramfs: Path | None
    root_disk: Path | None
    models_disk: Path | None

    @classmethod
    def load(cls, folder: Path) -> Image:
        """Find the files by their names; raises ValueError that names what is missing."""
        kernel = folder / "Image"
        if not kernel.is_file():
            raise ValueError(f"{folder}: holds no Image; give a folder made by an image builder")
        initramfs = _first_file(folder, _INITRAMFS)
        root_disk = _first_file(folder, [f"rootfs.{kind}" for kind in _DISK_TYPES])
        if initramfs is None and root_disk is None:
            raise ValueError(f"{folder}: holds neither rootfs.cpio nor rootfs.erofs|squashfs|ext4")
        models = _first_file(folder, [f"models.{kind}" for kind in _DISK_TYPES])
        return cls(folder, kernel, initramfs, None if initramfs else root_disk, models)


def _first_file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


@dataclass(frozen=True)
class MachineOptions:
    """What a test overrides of the board; None keeps the board's value."""

    cpu: str | None = None
    cores: int | None = None
    ram_mib: int | None = None
    cmdline: str = ""  # added to the board's
    qemu_args: tuple[str, ...] = ()

    def cpu_argument(self, board: Board) -> str:
        """QEMU's -cpu value. "max" alone would emulate a very slow pointer authentication."""
        cpu = self.cpu or str(board.qemu["cpu"])
        return "max,pauth-impdef=on" if cpu == "max" else cpu


def qemu_command(image: Image, board: Board, options: MachineOptions, *, interactive: bool = False) -> list[str]:
    """The command line that boots the image (interactive: a person has the terminal)."""
    qemu = board.qemu
    cmdline = board.cmdline
    disks: list[tuple[Path, str]] = []
    if image.root_disk is not None:
        disks.append((image.root_disk, "colibri-root"))
        cmdline += " root=/dev/vda ro"
    if image.models_disk is not None:
        disks.append((image.models_disk, MODELS_SERIAL))
    if options.cmdline:
        cmdline += " " + options.cmdline
    command = [
        str(qemu["binary"]),
        "-machine",
        str(qemu["machine"]),
        "-accel",
        str(qemu["accel"]),
        "-cpu",
        options.cpu_argument(board),
        "-smp",
        str(options.cores or board.cores),
        "-m",
        f"{options.ram_mib or board.ram_mib}M",
        "-display",
        "none",
        *(_PERSON if interactive else _HARNESS),
        "-no-reboot",
        "-kernel",
        str(image.kernel),
    ]
    if image.initramfs is not None:
        command += ["-initrd", str(image.initramfs)]
    for path, serial in disks:
        escaped = str(path).replace(",", ",,")
        command += ["-drive", f"if=none,id={serial},format=raw,readonly=on,file={escaped}"]
        command += ["-device", f"virtio-blk-device,drive={serial},serial={serial}"]
    command += ["-append", cmdline, *(str(arg) for arg in qemu["args"]), *options.qemu_args]
    return command


@dataclass(frozen=True)
class Result:
    """What a command printed on the console (both streams) and its exit code."""

    command: str
    output: str
    exit_code: int


@dataclass(frozen=True)
class Captured:
    """The two streams of a command, byte for byte, and its exit code."""

    command: str
    stdout: bytes
    stderr: str
    exit_code: int


class Shell:
    """Runs commands in the guest."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def synchronise(self, *, interrupt: bool = True) -> None:
        """Bring the shell to a known state, whatever ran in it before (interrupt: control-C)."""
        for _ in range(_SYNC_TRIES):
            left, right = secrets.token_hex(8), secrets.token_hex(8)
            if interrupt:
                self.console.send("\x03\n")
            # Without echo, shells with line editing read plain lines and draw nothing.
            self.console.send(f"stty -echo; PS1=; PS2=; printf '%s%s\\n' '{left}' '{right}'\n")
            try:
                self.console.expect(left + right + r"\r*\n", timeout=_SYNC_SECONDS, what="the shell's answer")
            except ConsoleTimeout:
                continue
            return
        raise ConsoleTimeout(
            f"the shell gave no answer in {_SYNC_TRIES * _SYNC_SECONDS:.0f} s",
            self.console.log_path,
        )

    def run(
        self,
        command: str,
        *,
        timeout: float = COMMAND_SECONDS,
        check: bool = False,
        allow: Sequence[str] = (),
    ) -> Result:
        """Run a command and return its output and exit code.

        timeout: seconds; check: another exit code than 0 raises CommandFailed; allow: names of
        console.CRASH_PATTERNS that the command provokes on purpose.
        """
        left, right = secrets.token_hex(8), secrets.token_hex(8)
        self.console.note(f"$ {command}")
        # The quotes split the marker in what is typed, so that no echo can match it. eval keeps
        # a syntax error inside, /dev/null keeps the command from eating the next line.
        self.console.send(
            f"printf '%s%s<\\n' '{left}' '{right}'; eval {shlex.quote(command)} </dev/null\n"
            f"printf '\\n%s%s>%d.\\n' '{left}' '{right}' \"$?\"\n"
        )
        marker = left + right
        match = self.console.expect(
            rf"(?s){marker}<\r*\n(.*?)\r*\n{marker}>(\d+)\.\r*\n",
            timeout=timeout,
            what=f"{_shorten(command)!r} to end",
            allow=allow,
        )
        result = Result(command, _unix_lines(match.group(1)), int(match.group(2)))
        if check and result.exit_code != 0:
            raise CommandFailed(
                f"{_shorten(command)!r} ended with exit code {result.exit_code}: {result.output.strip()[-400:]}",
                self.console.log_path,
            )
        return result

    def output(self, command: str, *, timeout: float = COMMAND_SECONDS) -> str:
        """The output, without the last line's end, of a command that must succeed."""
        return self.run(command, timeout=timeout, check=True).output.removesuffix("\n")

    def capture(self, command: str, *, timeout: float = COMMAND_SECONDS, allow: Sequence[str] = ()) -> Captured:
        """Run a command with its streams in files and bring these over unchanged.

        The console adds carriage returns and may carry kernel messages in between; exact text
        goes another way.
        """
        out, err = "/tmp/.captured.out", "/tmp/.captured.err"
        result = self.run(f"{{ {command}\n}} >{out} 2>{err}", timeout=timeout, allow=allow)
        stdout, stderr = self.read_file(out), self.read_file(err)
        text = stderr.decode("utf-8", errors="replace")
        return Captured(command, stdout, text, result.exit_code)

    def read_file(self, path: str) -> bytes:
        """The contents of a file of the guest."""
        quoted = shlex.quote(path)
        size = int(self.output(f"wc -c <{quoted}"))
        encoded = self.run(f"base64 {quoted}", check=True).output
        try:
            data = base64.b64decode("".join(encoded.split()), validate=True)
        except binascii.Error as error:
            raise UnexpectedOutput(f"reading {path}: not base64 ({error})", self.console.log_path) from error
        if len(data) != size:
            raise UnexpectedOutput(f"reading {path}: {len(data)} of {size} bytes came over", self.console.log_path)
        return data

    def read_file_part(self, path: str, size: int) -> bytes:
        """The first `size` bytes of a file of the guest."""
        part = "/tmp/.part"
        self.run(f"head -c {size} {shlex.quote(path)} >{part}", check=True)
        return self.read_file(part)

    def write_file(self, path: str, data: bytes, *, mode: str = "644") -> None:
        """Make a small file in the guest (a few dozen KiB at most; it goes over the console)."""
        quoted = shlex.quote(path)
        self.run(f": >{quoted}.b64", check=True)
        for start in range(0, len(data), _UPLOAD_CHUNK):
            text = base64.b64encode(data[start : start + _UPLOAD_CHUNK]).decode()
            self.run(f"echo {text} >>{quoted}.b64", check=True)
        self.run(
            f"base64 -d {quoted}.b64 >{quoted} && rm {quoted}.b64 && chmod {mode} {quoted}",
            check=True,
        )
        if (size := int(self.output(f"wc -c <{quoted}"))) != len(data):
            raise UnexpectedOutput(f"writing {path}: {size} of {len(data)} bytes arrived", self.console.log_path)

    def prove_alive(self) -> None:
        """Have the guest compute something that nobody else on the line knows."""
        first, second = secrets.randbelow(30000) + 2, secrets.randbelow(30000) + 2
        answer = self.output(f"echo $(({first} * {second}))")
        if answer != str(first * second):
            raise UnexpectedOutput(f"the guest says {first} * {second} = {answer!r}", self.console.log_path)


def _unix_lines(text: str) -> str:
    """Undo what the terminals on the way add: the guest's, and QEMU's own on top of it."""
    return re.sub(r"\r+\n", "\n", text)


def _shorten(command: str) -> str:
    return command if len(command) <= 80 else command[:77] + "..."


@dataclass
class Machine:
    """One virtual machine, from power-on to power-off."""

    image: Image
    board: Board
    log_path: Path
    options: MachineOptions = field(default_factory=MachineOptions)
    user: str = "root"
    boot_seconds: float = field(default=0.0, init=False)
    _console: Console | None = field(default=None, init=False)

    @property
    def console(self) -> Console:
        """The console of the running machine."""
        if self._console is None:
            raise RuntimeError("the machine was not started")
        return self._console

    def command(self) -> list[str]:
        """The command that starts it."""
        return qemu_command(self.image, self.board, self.options)

    def start(self, *, tee: Tee | None = None) -> Shell:
        """Boot, log in and return a shell. tee: a text stream that sees the boot log, too."""
        command = self.command()
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(f"{command[0]} is not installed; install it with: apt-get install qemu-system-arm")
        started = time.monotonic()
        self._console = Console(command, self.log_path)
        self._console.tee(tee)
        self._console.note(shlex.join(command))
        try:
            self._console.expect(r"login: ", timeout=BOOT_SECONDS, what="the login prompt")
            self.boot_seconds = time.monotonic() - started
            self._console.tee(None)
            shell = self._log_in()
        except (MachineDied, ConsoleTimeout) as error:
            self.close()
            reason = str(error).split("\n", 1)[0]
            raise BootFailure(f"boot failed: {reason}", self.log_path) from error
        except ConsoleError:
            self.close()
            raise
        return shell

    def _log_in(self) -> Shell:
        self.console.send(f"{self.user}\n")
        match = self.console.expect(
            rf"Password: ?|Login incorrect|{_PROMPT}",
            timeout=COMMAND_SECONDS,
            what="the shell's prompt",
        )
        if not re.match(r"[#$]", match.group(0)):
            raise BootFailure(
                f"the login of {self.user!r} answers {match.group(0)!r}; test images log in without a password",
                self.log_path,
            )
        shell = Shell(self.console)
        shell.synchronise(interrupt=False)
        return shell

    def alive(self) -> bool:
        """Whether it runs."""
        return self._console is not None and self._console.alive()

    def power_off(self) -> int:
        """Shut down in order and return QEMU's exit code."""
        self.console.note("power off")
        self.console.send("poweroff\n")
        self.console.expect(r"reboot: Power down", timeout=COMMAND_SECONDS, what="the kernel's power-off message")
        return self.console.expect_end(timeout=COMMAND_SECONDS, what="the machine to go off")

    def close(self) -> None:
        """Switch it off the hard way; harmless when it is off already."""
        if self._console is not None:
            self._console.close()
