# SPDX-License-Identifier: MIT
"""Build the smoke image's kernel from Debian's kernel source and the fragments in configs/kernel/.

The result is cached under a key made of everything that goes into it: the source archive, the
requested options, the compiler and the commands below. Editing a comment in a fragment rebuilds
nothing; changing an option does.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import (
    REPOSITORY,
    BuildError,
    Tool,
    cache_folder,
    content_key,
    require_tools,
    sha256_file,
    write_atomically,
)

ARCH = "arm64"
CROSS_COMPILE = "aarch64-linux-gnu-"
FRAGMENT_FOLDER = REPOSITORY / "configs" / "kernel"
CHECKER = FRAGMENT_FOLDER / "kconfig_check.py"
SOURCE_PATTERN = "linux-source-*.tar.xz"
SOURCE_FOLDER = Path("/usr/src")
PREFERRED_SOURCE = "linux-source-6.1.tar.xz"

TOOLS = (
    Tool("make", "make"),
    Tool("gcc", "build-essential"),
    Tool("flex", "flex"),
    Tool("bison", "bison"),
    Tool("bc", "bc"),
    Tool("perl", "perl"),
    Tool("tar", "tar"),
    Tool("xz", "xz-utils"),
    Tool("gzip", "gzip"),
    Tool(CROSS_COMPILE + "gcc", "gcc-aarch64-linux-gnu"),
)

# Half of the archive is drivers, boards and tests that this configuration never compiles; all
# Kconfig and make files stay, because the configuration step reads them.
_UNUSED_SOURCE = (
    "*/Documentation/[a-z]*",
    "*/arch/arm64/boot/dts/*/*",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/*/*.[ch]",
    "*/drivers/staging/*.[ch]",
    "*/sound/*.[ch]",
    "*/tools/perf/*",
    "*/tools/testing/*",
)

# A fixed identity: the kernel's banner must not name the machine or the day it was built on.
_MAKE_ARGUMENTS = (
    f"ARCH={ARCH}",
    f"CROSS_COMPILE={CROSS_COMPILE}",
    "KBUILD_BUILD_TIMESTAMP=1970-01-01",
    "KBUILD_BUILD_USER=colibri",
    "KBUILD_BUILD_HOST=colibri",
    "KBUILD_BUILD_VERSION=1",
)
_STEPS_EXPECTED = 1150  # lines of build output, for the progress display only
_REPORT_SECONDS = 15.0


@dataclass(frozen=True)
class Kernel:
    """A built kernel in the cache."""

    key: str
    image: Path
    config: Path
    source: Path
    compiler: str
    built_seconds: float | None  # None: it came from the cache


def find_source() -> Path:
    """Debian's kernel source archive."""
    preferred = SOURCE_FOLDER / PREFERRED_SOURCE
    if preferred.is_file():
        return preferred
    others = sorted(SOURCE_FOLDER.glob(SOURCE_PATTERN))
    if others:
        return others[-1]
    raise BuildError(f"no kernel source: {preferred} does not exist; install it with: apt-get install linux-source-6.1")


def build_kernels(
    fragments: list[Path], vendor_fragments: list[Path], variants: Mapping[str, Path | None], jobs: int
) -> dict[str, Kernel]:
    """Kernels for these fragments, each with a file of lines that replace some of theirs (None: none).

    variants: name -> that file. All that are missing are built one after another in one tree, so that a
    variant that differs little costs little.
    """
    require_tools(TOOLS)
    source = find_source()
    compiler = _compiler_version()
    digest = sha256_file(source)
    requests = _requested_options([*fragments, *vendor_fragments])
    keys = {}
    for name, override in variants.items():
        parts = [digest, compiler, requests, *([] if override is None else [_requested_options([override])])]
        keys[name] = content_key("kernel", *parts, *_MAKE_ARGUMENTS, *_UNUSED_SOURCE)
    folders = {name: cache_folder("kernel") / key for name, key in keys.items()}
    seconds: dict[str, float] = {}
    with ExitStack() as stack:
        for folder in sorted(set(folders.values())):
            stack.enter_context(_locked(folder.with_suffix(".lock")))
        missing = [name for name, folder in folders.items() if not (folder / "complete").is_file()]
        work = folders[missing[0]].with_suffix(".build") if missing else None
        try:
            for name in missing:
                assert work is not None
                started = time.monotonic()
                if name == missing[0]:
                    _unpack(source, work)
                print(f"kernel: building {name or 'the image of the board'}", flush=True)
                _build(work, [*fragments, *vendor_fragments], variants[name], jobs)
                folder = folders[name]
                folder.mkdir(exist_ok=True)
                built = work / "arch" / ARCH / "boot" / "Image"
                write_atomically(folder / "Image", built.read_bytes())
                write_atomically(folder / "config", (work / ".config").read_bytes())
                write_atomically(folder / "complete", b"")
                seconds[name] = time.monotonic() - started
        finally:
            if work is not None:
                shutil.rmtree(work, ignore_errors=True)
    return {
        name: Kernel(keys[name], folder / "Image", folder / "config", source, compiler, seconds.get(name))
        for name, folder in folders.items()
    }


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _compiler_version() -> str:
    result = subprocess.run([CROSS_COMPILE + "gcc", "--version"], check=True, capture_output=True, text=True)
    return result.stdout.splitlines()[0]


def _requested_options(fragments: list[Path]) -> str:
    lines = []
    for path in fragments:
        if not path.is_file():
            raise BuildError(f"{path}: no such kernel fragment; correct [kernel] in the board file")
        text = path.read_text(encoding="utf-8")
        lines += [line for line in text.splitlines() if re.match(r"(# )?CONFIG_\w+[ =]", line)]
    return "\n".join(sorted(lines))


def _unpack(source: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    print(f"kernel: unpacking {source.name}", flush=True)
    excludes = [f"--exclude={pattern}" for pattern in _UNUSED_SOURCE]
    _run(["tar", "-xf", str(source), "-C", str(work), "--strip-components=1", *excludes], work)


def _build(work: Path, fragments: list[Path], override: Path | None, jobs: int) -> None:
    """Configure the unpacked source and compile it; objects of an earlier configuration that still fit are kept."""
    arguments = [str(path) for path in fragments]
    if override is not None:
        arguments += ["--override", str(override)]
    tree = ["--kconfig-tree", str(work), "--arch", ARCH]
    wanted = work / "colibri.config"
    checker = [sys.executable, str(CHECKER)]
    _run([*checker, *tree, "--write-applicable", str(wanted), *arguments], work)
    # What "make tinyconfig" does, with our lines on top: everything that nobody asked for is off.
    tiny = [work / "kernel" / "configs" / name for name in ("tiny-base.config", "tiny.config")]
    ours = wanted.read_text(encoding="utf-8")
    merged = work / "all.config"
    merged.write_text("".join(p.read_text(encoding="utf-8") for p in tiny) + ours, encoding="utf-8")
    make = ["make", f"-j{jobs}", *_MAKE_ARGUMENTS]
    _run([*make, f"KCONFIG_ALLCONFIG={merged}", "allnoconfig"], work)
    _run([*checker, *tree, "--config", str(work / ".config"), *arguments], work)
    _compile([*make, "Image"], work)


def _environment() -> dict[str, str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KBUILD", "MAKE"))}
    for name in ("CC", "CFLAGS", "LDFLAGS", "ARCH", "CROSS_COMPILE", "MFLAGS", "GNUMAKEFLAGS"):
        environment.pop(name, None)
    environment["LC_ALL"] = "C"
    return environment


def _run(command: list[str], work: Path) -> None:
    result = subprocess.run(
        command,
        cwd=work,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if result.returncode != 0:
        tail = "\n".join(result.stdout.splitlines()[-40:])
        raise BuildError(f"{tail}\n{Path(command[0]).name} ended with code {result.returncode}")


def _compile(command: list[str], work: Path) -> None:
    """Run the long build and say every now and then how far it is."""
    started = reported = time.monotonic()
    steps, tail = 0, [""] * 40
    process = subprocess.Popen(
        command,
        cwd=work,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            steps += 1
            tail = [*tail[1:], line.rstrip()]
            now = time.monotonic()
            if now - reported >= _REPORT_SECONDS:
                reported = now
                share = min(99, 100 * steps // _STEPS_EXPECTED)
                print(f"kernel: {share} % after {now - started:.0f} s", flush=True)
    finally:
        if process.poll() is None and sys.exc_info()[0] is not None:
            process.terminate()
        code = process.wait()
    if code != 0:
        text = "\n".join(line for line in tail if line)
        raise BuildError(f"{text}\nthe kernel build ended with code {code}")
    print(f"kernel: built in {time.monotonic() - started:.0f} s", flush=True)
