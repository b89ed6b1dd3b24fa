# SPDX-License-Identifier: MIT
"""Show that the boot suite turns red: plant one fault at a time in an image and boot it.

    build/venv/bin/python tests/boot/planted_faults.py [--only NAME]

Each fault is a change of one C file in a copy of the engine, which is then built into an image of its
own, or a kernel that lacks an option. The tests that are named must fail with a comparison, for every
fault, and must pass for the image without one. Exit code 0 means that all were found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = REPOSITORY / "tests" / "support"
MODELS = REPOSITORY / "build" / "models"
PROGRAMS = ("colibrictl", "sandbox_probe", "session_driver")
CLONE = 220  # on AArch64

sys.path.insert(0, str(SUPPORT))
import build_engine  # noqa: E402
import steps  # noqa: E402


def replaced(old: str, new: str, count: int = 1) -> Callable[[str], str]:
    """A change of text that must occur `count` times."""

    def change(text: str) -> str:
        if text.count(old) != count:
            raise SystemExit(f"planted_faults: {old!r} is there {text.count(old)} times, not {count}: write it anew")
        return text.replace(old, new)

    return change


def clone_allowed(text: str) -> str:
    """The filters for AArch64 with clone, whatever its arguments, on both lists."""
    begin, end = text.index("/* aarch64 */"), text.index("#elif", text.index("/* aarch64 */"))
    lines = text[begin:end].splitlines()
    allow = changed = 0
    for at, line in enumerate(lines):
        match = re.fullmatch(r" *CB_BPF\(EQUAL, (\d+), \d+, \d+\), /\* (\w+) \*/", line)
        if match is None:
            continue
        if match[2] == "futex":  # allowed without a condition: its jump leads to the end that allows
            allow = at + int(match[1])
        # clone itself in the first phase; in the second, in the place of one that is not needed at once
        if match[2] == "clone" or (match[2] == "restart_syscall" and "steady_filter" in "".join(lines[:at])):
            lines[at] = f"    CB_BPF(EQUAL, {allow - at}, 0, {CLONE}), /* clone */"
            changed += 1
    if changed != 2:
        raise SystemExit(f"planted_faults: {changed} places for clone in sandbox_filters.h, must be 2: write it anew")
    return text[:begin] + "\n".join(lines) + "\n" + text[end:]


@dataclass(frozen=True)
class Fault:
    """A fault, and the tests of tests/boot that must find it."""

    name: str
    tests: str  # pytest's -k
    file: str = ""  # of engine/native
    change: Callable[[str], str] | None = None
    variant: str = ""  # of the kernel


FAULTS = (
    Fault(
        "a wrong token",
        "test_the_portable_kernels_give_the_same_bits",
        "src/sampler.c",
        replaced("return best;", "return best ^ 1u;"),
    ),
    Fault("a dropped kernel option", "test_every_requested_kernel_option_is_live", variant="no-advise"),
    Fault(
        "an unlocked arena, reported as locked",
        "test_the_arena_of_the_server_is_locked and glibc",
        "src/model.c",
        replaced("cb_lock(&m->lock, m->arena.mapping.base, m->arena.mapping.bytes);", ""),
    ),
    Fault(
        "fork allowed",
        "test_every_call_outside_the_list_is_refused and glibc and root",
        "src/sandbox_filters.h",
        clone_allowed,
    ),
    Fault(
        "an install that does not bring its renames to the disk",
        "test_every_disk_that_a_volatile_cache_may_leave",
        "tools/placing.c",
        replaced("fsync(place->folder)", "0", 3),
    ),
    Fault(
        "an install that does not bring its files to the disk",
        "test_every_disk_that_a_volatile_cache_may_leave",
        "tools/placing.c",
        replaced("return fsync(fd) != 0 ?", "return fd < 0 ?"),
    ),
)


def configure(engine: Path, folder: Path) -> None:
    """A build folder for AArch64 of that copy of the engine."""
    chain = build_engine.toolchain("aarch64-linux-gnu-", "", "", "")
    machine = folder.with_suffix(".ini")
    machine.write_text(build_engine.machine_file(chain))
    options = [*build_engine.STATIC_OPTIONS, "--cross-file", str(machine)]
    build_engine.run([build_engine.tool("meson"), "setup", *options, str(folder), str(engine)], subprocess.PIPE)


def compile_programs(folder: Path) -> None:
    """What goes into the image and into the guest."""
    build_engine.run([build_engine.tool("ninja"), "-C", str(folder), "-j", "2", *PROGRAMS], subprocess.PIPE)


def build_image(folder: Path, output: Path, variant: str) -> None:
    """A smoke image with the tiny model and those programs."""
    command = [sys.executable, str(REPOSITORY / "tests" / "smoke" / "build_image.py"), "--output", str(output)]
    command += ["--colibrictl", str(folder / "colibrictl"), "--model", str(MODELS / "tiny.colibri")]
    if variant:
        command += ["--variant", variant]
    subprocess.run(command, check=True, capture_output=True)


def run_tests(folder: Path, image: Path, tests: str) -> tuple[int, str]:
    """Exit code and output of some tests on an image."""
    logs = REPOSITORY / "build" / "boot-logs-planted"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--boot-seed=1", f"--image={image}"]
    command += [f"--boot-logs={logs}", str(REPOSITORY / "tests" / "boot"), "-k", tests]
    environment = {**os.environ, **steps.ENVIRONMENT, "COLIBRI_AARCH64_BIN": str(folder)}
    result = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def check(fault: Fault, engine: Path, work: Path) -> bool:
    """Plant, build, boot, restore. True when a comparison failed as it must."""
    start = time.monotonic()
    folder, path = work / "build", engine / "native" / fault.file
    saved = path.read_text() if fault.change is not None else ""
    try:
        if fault.change is not None:
            path.write_text(fault.change(saved))
            compile_programs(folder)
        build_image(folder, work / "image", fault.variant)
        code, output = run_tests(folder, work / "image", fault.tests)
    finally:
        if fault.change is not None:
            path.write_text(saved)
    errors = re.findall(r"^E +(?:AssertionError|assert)\b.*", output, re.MULTILINE)
    found = code == 1 and bool(errors)
    red = ", ".join(sorted(set(re.findall(r"^FAILED \S*::(\S+)", output, re.MULTILINE))))
    seconds = time.monotonic() - start
    print(f"  {'found ' if found else 'MISSED'} {fault.name} ({seconds:.0f} s) -> {red or fault.tests}", flush=True)
    print("\n".join(f"      {line[:160]}" for line in errors[:2]) if found else output[-3000:], flush=True)
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="plant only the faults whose name contains this")
    arguments = parser.parse_args()
    chosen = [fault for fault in FAULTS if arguments.only is None or arguments.only in fault.name]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        engine = work / "engine"
        shutil.copytree(REPOSITORY / "engine", engine, ignore=shutil.ignore_patterns("__pycache__"))
        configure(engine, work / "build")
        compile_programs(work / "build")
        build_image(work / "build", work / "image", "")
        code, output = run_tests(work / "build", work / "image", " or ".join(f"({f.tests})" for f in chosen))
        if code:
            print(output)
            print("planted_faults: the image without a planted fault does not pass; fix that first")
            return 1
        print("the image without a planted fault passes; with one:", flush=True)
        missed = [fault.name for fault in chosen if not check(fault, engine, work)]
    print(f"note: planted faults: {len(chosen) - len(missed)} of {len(chosen)} found")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
