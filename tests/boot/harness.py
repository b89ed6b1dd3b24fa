# SPDX-License-Identifier: MIT
"""Boot an image folder in QEMU and run commands in it over the serial console.

An image folder holds fixed names, whoever built it:

    Image                                   the kernel
    rootfs.cpio[.gz|.xz|.zst]               an initramfs, or
    rootfs.erofs|.squashfs|.ext4            a root file system (first disk, read-only)
    models.erofs|.squashfs|.ext4            the model partition (disk with the serial number
                                            "colibri-models", read-only); may be missing
    board.toml                              a board file (see configs/boards/)

docs/testing.md describes the layout for those who build images.

Every command ends in a marker made of random numbers which the echo of the typed line cannot
contain, with the exit code in the same match. A guest that died, crashed or answers something
else raises; there is no way to pass without the guest's own answer.

Kernel messages and other noise may come in between at any character. A marker that noise has
broken is asked for again, and what `value`, `capture` and `read_file` bring over is checked and
fetched again until it is whole. `output` asks again when there is a kernel's time stamp in it;
`run` returns the console's text as it came.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
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
_PROMPT_SECONDS = 30.0  # a prompt that does not come may have been broken by noise
_SYNC_TRIES = 6
_UPLOAD_CHUNK = 1020  # bytes per typed line, before encoding: whole groups of base64 and base32, room for a long path
_FETCH_CHUNK = 1536  # bytes that are fetched at once when noise has broken a whole file
_FETCH_TRIES = 40
# A lost end marker is asked for again after this time, then each time after three times as long: what
# is typed while a command runs waits in a buffer of 4096 characters.
_ASK_AGAIN_SECONDS = 20.0
_SYSTEM_LOG = "/var/log/messages"  # and .0, where it was rotated
_HUSH = 'read level rest <F; [ "$level" -le 5 ] || echo 5 >F'.replace("F", "/proc/sys/kernel/printk")
_INITRAMFS = ("rootfs.cpio", "rootfs.cpio.gz", "rootfs.cpio.xz", "rootfs.cpio.zst")
_DISK_TYPES = ("erofs", "squashfs", "ext4")
_KERNEL_STAMP = re.compile(r"\[ *\d+\.\d{6}\] ")
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

    @property
    def page_bytes(self) -> int:
        """Page size of the kernel, from kernel.config; 4096 when the folder has no such file."""
        config = self.folder / "kernel.config"
        return page_bytes(config.read_text(encoding="utf-8")) if config.is_file() else 4096


def page_bytes(kernel_config: str) -> int:
    """Page size that an arm64 configuration chooses."""
    found = re.search(r"^CONFIG_ARM64_(16|64)K_PAGES=y$", kernel_config, re.MULTILINE)
    return int(found.group(1)) * 1024 if found else 4096


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
        # The kernel meets the lowest transport first: the root disk stays /dev/vda, whatever else there is.
        place = ",bus=virtio-mmio-bus.0" if serial == "colibri-root" else ""
        command += ["-device", f"virtio-blk-device,drive={serial},serial={serial}{place}"]
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
    log: str | None = None  # what it wrote to the system log; None in an image whose build does not force that

    @property
    def messages(self) -> str:
        """What it said, wherever the build of the image sends it."""
        return self.stderr + (self.log or "")


class Shell:
    """Runs commands in the guest."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._log_forced: bool | None = None
        self._codec: str | None = None

    @property
    def codec(self) -> str:
        """What brings bytes over as text: base64, or base32 where a small busybox has no other."""
        if self._codec is None:
            self._codec = self.value("type base64 >/dev/null 2>&1 && echo base64 || echo base32", "base64|base32")
        return self._codec

    def synchronise(self, *, interrupt: bool = True) -> None:
        """Bring the shell to a known state, whatever ran in it before (interrupt: control-C)."""
        for attempt in range(_SYNC_TRIES):
            left, right = secrets.token_hex(8), secrets.token_hex(8)
            # Only for a shell that does not answer: one that waits for a line may leave at a control-C
            # (busybox with musl, seldom; then a login prompt takes what is typed).
            if interrupt and attempt:
                self.console.send("\x03\n")
            # Without echo, shells with line editing read plain lines and draw nothing. busybox's then takes
            # the end of a background job, when nothing was typed yet, for the end of its input, and leaves.
            plain = "set -o ignoreeof; stty -echo; PS1=; PS2="
            self.console.send(f"{plain}; printf '%s%s\\n' '{left}' '{right}'\n")
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
        noise: bool = False,
    ) -> Result:
        """Run a command and return its output and exit code.

        timeout: seconds; check: another exit code than 0 raises CommandFailed; allow: names of
        console.CRASH_PATTERNS that the command provokes on purpose; noise: the caller does not
        rely on the output, its begin may be lost.
        """
        left, right = secrets.token_hex(8), secrets.token_hex(8)
        self.console.note(f"$ {command}")
        # The quotes split the marker in what is typed, so that no echo can match it. eval keeps
        # a syntax error inside, /dev/null keeps the command from eating the next line.
        ask = f"printf '\\n%s%s>%d.\\n' '{left}' '{right}' \"$harness_code\"\n"
        self.console.send(
            f"printf '%s%s<\\n' '{left}' '{right}'; eval {shlex.quote(command)} </dev/null\n"
            f"harness_code=$?; {ask}"
        )
        marker = left + right
        text, code = self._until_end(marker, ask, timeout, f"{_shorten(command)!r} to end", allow)
        begin = re.search(rf"{marker}<\r*\n", text)
        if begin is None and not noise:
            raise UnexpectedOutput(f"the begin of the output of {_shorten(command)!r} is lost", self.console.log_path)
        printed = text[begin.end() :] if begin is not None else text
        result = Result(command, _unix_lines(re.sub(r"\r*\n\Z", "", printed)), code)
        if check and result.exit_code != 0:
            raise CommandFailed(
                f"{_shorten(command)!r} ended with exit code {result.exit_code}: {result.output.strip()[-400:]}",
                self.console.log_path,
            )
        return result

    def _until_end(
        self, marker: str, ask: str, timeout: float, what: str, allow: Sequence[str]
    ) -> tuple[str, int]:
        """What came before the end marker, and the exit code in it; asks again when it does not come."""
        deadline = time.monotonic() + timeout
        patience = _ASK_AGAIN_SECONDS
        while True:
            left = deadline - time.monotonic()
            try:
                # Begins with plain text: the search through a long output must be fast.
                pattern, wait = rf"{marker}>(\d+)\.\r*\n", max(0.0, min(left, patience))
                match = self.console.expect(pattern, timeout=wait, what=what, allow=allow)
            except ConsoleTimeout as error:
                if left > patience:
                    self.console.send(ask)
                    patience *= 3
                    continue
                raise ConsoleTimeout(f"waiting for {what}: nothing after {timeout:.0f} s", error.log_path) from None
            return self.console.before, int(match.group(1))

    def value(self, command: str, pattern: str, *, timeout: float = COMMAND_SECONDS) -> str:
        """One line that a command prints and that matches a pattern, whatever noise there is.

        pattern: a regular expression for the whole line, without groups.
        """
        for _ in range(_FETCH_TRIES):
            left, right = secrets.token_hex(4), secrets.token_hex(4)
            frame = f"printf '%s%s[%s]%s%s\\n' '{left}' '{right}' \"$v\" '{left}' '{right}'"
            text = self.run(f"v=$({command}) && {frame}", timeout=timeout, check=True, noise=True).output
            mark = left + right
            match = re.search(rf"{mark}\[({pattern})\]{mark}", text)
            if match is not None:
                return match.group(1)
            if f"{mark}[" in text and f"]{mark}" in text and not self._noisy(text, mark):
                break
        raise UnexpectedOutput(
            f"{_shorten(command)!r} printed nothing that matches {pattern!r}: {text.strip()[-200:]!r}",
            self.console.log_path,
        )

    @staticmethod
    def _noisy(text: str, mark: str) -> bool:
        """Whether there is more on the line than the framed value."""
        return re.fullmatch(rf"\s*{mark}\[[^\n]*\]{mark}\s*", text) is None

    def output(self, command: str, *, timeout: float = COMMAND_SECONDS) -> str:
        """The output, without the ends of its last lines, of a command that must succeed.

        The shell keeps it, and prints it again when the kernel may have said something in the middle.
        """
        print_it = "printf '%s\\n' \"$harness_text\""
        keep = f"harness_text=$({{ {command}\n}} 2>&1); harness_kept=$?; {print_it}; ( exit $harness_kept )"
        text = self.run(keep, timeout=timeout, check=True).output
        for _ in range(_FETCH_TRIES):
            if _KERNEL_STAMP.search(text) is None:
                break
            again = self.run(print_it, check=True).output
            if again == text:  # what the command itself printed
                break
            text = again
        return text.rstrip("\n")

    def capture(self, command: str, *, timeout: float = COMMAND_SECONDS, allow: Sequence[str] = ()) -> Captured:
        """Run a command with its streams in files and bring these over unchanged.

        The console adds carriage returns and may carry kernel messages in between; exact text
        goes another way. In an image whose build forces messages into the system log they come from there.
        """
        out, err = "/tmp/.captured.out", "/tmp/.captured.err"
        begin, end = secrets.token_hex(8), secrets.token_hex(8)
        line = f"{{ {command}\n}} >{out} 2>{err}"
        if self.log_forced:
            line = f"logger {begin}; {line}; harness_code=$?; logger {end}; ( exit $harness_code )"
        result = self.run(line, timeout=timeout, allow=allow, noise=True)
        log = self._logged(begin, end) if self.log_forced else None
        stdout, stderr = self.read_file(out), self.read_file(err)
        text = stderr.decode("utf-8", errors="replace")
        return Captured(command, stdout, text, result.exit_code, log)

    @property
    def log_forced(self) -> bool:
        """Whether the image's build of the engine says that its messages go to the system log alone."""
        if self._log_forced is None:
            asked = "colibrictl info 2>/dev/null | grep -q COLIBRI_NO_LOGGING"
            self._log_forced = self.run(asked, noise=True).exit_code == 0
        return self._log_forced

    def _logged(self, begin: str, end: str) -> str:
        """Messages of colibrictl between two marks in the system log, each as it would stand on stderr."""
        log, part = f"cat {_SYSTEM_LOG}.0 {_SYSTEM_LOG} 2>/dev/null", "/tmp/.captured.log"
        self.run(f"i=0; until {log} | grep -q {end} || [ $i -ge 100 ]; do i=$((i + 1)); sleep 0.1; done", noise=True)
        text = r"s/^.* colibrictl\[[0-9]*\]: //p"
        found = self.run(f"{log} | sed -n '/{begin}/,/{end}/{text}' >{part}; {log} | grep -q {end}", noise=True)
        if found.exit_code != 0:
            raise UnexpectedOutput(
                f"the image's build sends messages to the system log, but {_SYSTEM_LOG} does not get them; "
                "start syslogd in the image",
                self.console.log_path,
            )
        return self.read_file(part).decode("utf-8", errors="replace")

    def read_file(self, path: str) -> bytes:
        """The contents of a file of the guest."""
        quoted = shlex.quote(path)
        facts = self.value(f"echo $(wc -c <{quoted}) $(sha256sum <{quoted})", r"\d+ [0-9a-f]{64} +-").split()
        size, digest = int(facts[0]), facts[1]
        data = _decoded(self.run(f"{self.codec} {quoted}", check=True, noise=True).output, self.codec)
        if data is None or (len(data), hashlib.sha256(data).hexdigest()) != (size, digest):
            self.console.note(f"{path} came over broken; fetching it in pieces")
            data = b"".join(self._fetch(quoted, at, size) for at in range(0, size, _FETCH_CHUNK))
        if hashlib.sha256(data).hexdigest() != digest:
            raise UnexpectedOutput(f"reading {path}: another hash than in the guest", self.console.log_path)
        return data

    def _fetch(self, quoted: str, at: int, size: int) -> bytes:
        """One piece of a file; noise adds characters and never exchanges any, so the length tells."""
        wanted = min(_FETCH_CHUNK, size - at)
        piece = f"dd if={quoted} bs={_FETCH_CHUNK} skip={at // _FETCH_CHUNK} count=1 2>/dev/null"
        command = f"{piece} | {self.codec} | tr -d '\\n'"
        for _ in range(_FETCH_TRIES):
            data = _decoded(self.value(command, r"[A-Za-z0-9+/=]*"), self.codec)
            if data is not None and len(data) == wanted:
                return data
        raise UnexpectedOutput(f"reading {quoted}: the piece at byte {at} never came whole", self.console.log_path)

    def read_file_part(self, path: str, size: int) -> bytes:
        """The first `size` bytes of a file of the guest."""
        part = "/tmp/.part"
        self.run(f"head -c {size} {shlex.quote(path)} >{part}", check=True)
        return self.read_file(part)

    def write_file(self, path: str, data: bytes, *, mode: str = "644") -> None:
        """Make a small file in the guest (a few dozen KiB at most; it goes over the console)."""
        quoted = shlex.quote(path)
        self.run(f": >{quoted}.text", check=True)
        encode = base64.b64encode if self.codec == "base64" else base64.b32encode
        for start in range(0, len(data), _UPLOAD_CHUNK):
            text = encode(data[start : start + _UPLOAD_CHUNK]).decode()
            self.run(f"echo {text} >>{quoted}.text", check=True)
        self.run(
            f"{self.codec} -d {quoted}.text >{quoted} && rm {quoted}.text && chmod {mode} {quoted}",
            check=True,
        )
        if (size := int(self.value(f"wc -c <{quoted}", r" *\d+"))) != len(data):
            raise UnexpectedOutput(f"writing {path}: {size} of {len(data)} bytes arrived", self.console.log_path)

    def prove_alive(self) -> None:
        """Have the guest compute something that nobody else on the line knows."""
        first, second = secrets.randbelow(30000) + 2, secrets.randbelow(30000) + 2
        answer = self.value(f"echo $(({first} * {second}))", r"\d+")
        if answer != str(first * second):
            raise UnexpectedOutput(f"the guest says {first} * {second} = {answer!r}", self.console.log_path)


def _decoded(text: str, codec: str) -> bytes | None:
    """What base64 or base32 text says; None when it is not that."""
    plain = "".join(text.split())
    try:
        return base64.b64decode(plain, validate=True) if codec == "base64" else base64.b32decode(plain)
    except (binascii.Error, ValueError):
        return None


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
    # Once logged in, notices of the kernel stay in its log, whatever the image shows; warnings are watched for.
    hushed: bool = False
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
            self._expect_asking(r"login: ", "\n", BOOT_SECONDS, "the login prompt")
            self.boot_seconds = time.monotonic() - started
            self._console.tee(None)
            shell = self._log_in()
            if self.hushed:
                shell.run(_HUSH, check=True, noise=True)
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
        match = self._expect_asking(
            rf"Password: ?|Login incorrect|{_PROMPT}", "\n", COMMAND_SECONDS, "the shell's prompt"
        )
        if not re.match(r"[#$]", match.group(0)):
            raise BootFailure(
                f"the login of {self.user!r} answers {match.group(0)!r}; test images log in without a password",
                self.log_path,
            )
        shell = Shell(self.console)
        shell.synchronise(interrupt=False)
        return shell

    def _expect_asking(self, pattern: str, typed: str, timeout: float, what: str) -> re.Match[str]:
        """Wait for a pattern; type something now and then, in case noise has broken it."""
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                return self.console.expect(pattern, timeout=max(0.0, min(left, _PROMPT_SECONDS)), what=what)
            except ConsoleTimeout as error:
                if left <= _PROMPT_SECONDS:
                    raise ConsoleTimeout(f"waiting for {what}: nothing after {timeout:.0f} s", error.log_path) from None
                self.console.send(typed)

    def alive(self) -> bool:
        """Whether it runs."""
        return self._console is not None and self._console.alive()

    def power_off(self) -> int:
        """Shut down in order and return QEMU's exit code."""
        self.console.note("power off")
        self.console.send("poweroff\n")
        self.console.expect(r"reboot: Power down", timeout=COMMAND_SECONDS, what="the kernel's power-off message")
        return self.console.expect_end(timeout=COMMAND_SECONDS, what="the machine to go off")

    def cut_power(self) -> None:
        """Kill QEMU at once: nothing of it runs on, nothing is written any more."""
        self.console.note("power cut")
        self.console.kill()

    def close(self) -> None:
        """Switch it off the hard way; harmless when it is off already."""
        if self._console is not None:
            self._console.close()
