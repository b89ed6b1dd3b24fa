# SPDX-License-Identifier: MIT
"""Prepare a Debian machine: packages by name and the project's own Python in build/venv.

    python3 tests/support/setup_machine.py build|demo|test

Each level contains the ones before it: `build` compiles the engine, `demo` also converts the demo
model and boots the image, `test` also runs every test. Nothing is done twice: a level that is
complete returns at once. Runs under a bare python3 (>= 3.11), standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
VENV = REPOSITORY / "build" / "venv"
REQUIREMENTS = REPOSITORY / "tests" / "requirements"
LEVELS = ("build", "demo", "test")

# Debian packages of each level.
PACKAGES: dict[str, tuple[str, ...]] = {
    "build": ("gcc", "libc6-dev", "libsodium-dev", "pkg-config"),
    "demo": (
        "bc", "bison", "build-essential", "cpio", "e2fsprogs", "erofs-utils", "flex", "gcc-aarch64-linux-gnu",
        "libc6-dev-arm64-cross", "linux-source-6.1", "perl", "qemu-system-arm", "xz-utils",
    ),
    "test": ("binutils", "busybox", "clang", "dash", "g++", "gcc-arm-linux-gnueabihf", "git",
             "libc6-dev-armhf-cross", "libclang-rt-dev", "libseccomp2", "qemu-user", "systemd"),
}  # fmt: skip


class SetupError(Exception):
    """The machine cannot be prepared; the message says what to do."""


def say(text: str) -> None:
    """One line of progress, at once."""
    print(f"setup: {text}", flush=True)


def installed(packages: list[str]) -> set[str]:
    """Those of `packages` that dpkg has installed."""
    result = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n", *packages],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    pairs = (line.split() for line in result.stdout.splitlines())
    return {pair[0] for pair in pairs if len(pair) == 2 and pair[1] == "installed"}


def install_packages(packages: list[str]) -> None:
    """Install Debian packages that are missing, through root or sudo."""
    if shutil.which("dpkg-query") is None:
        say("not a Debian machine; install the equivalents of: " + " ".join(packages))
        return
    missing = sorted(set(packages) - installed(packages))
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
    line = " ".join(command)
    prefix: list[str] = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise SetupError(f"packages are missing and this is not root; run as root: {line}")
        prefix = ["sudo"]
    say("installing Debian packages: " + " ".join(missing))
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    quiet = {"env": environment, "stdout": subprocess.DEVNULL, "check": False}
    subprocess.run([*prefix, "apt-get", "-q", "update"], **quiet)  # type: ignore[call-overload]
    if subprocess.run([*prefix, *command], **quiet).returncode:  # type: ignore[call-overload]
        raise SetupError(f"apt-get failed; run it by hand to see why: {line}")


def make_venv() -> None:
    """Create build/venv with this interpreter; Debian's python3 keeps venv in its own package."""
    if (VENV / "bin" / "pip").exists():
        return
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        install_packages(["python3-venv"])
    say(f"creating {VENV.relative_to(REPOSITORY)} with {sys.executable}")
    shutil.rmtree(VENV, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)


def install_requirements(level: str) -> None:
    """Install the pinned list of one level. The lists are complete, so pip resolves nothing."""
    say(f"installing Python packages of tests/requirements/{level}.txt")
    python = str(VENV / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile",
           "--disable-pip-version-check"]  # fmt: skip
    file = REQUIREMENTS / f"{level}.txt"
    result = subprocess.run([*pip, "-r", str(file)], capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [text for text in result.stderr.splitlines() if "is ignored" not in text]
        raise SetupError("pip failed:\n" + "\n".join(lines[-20:]))
    if level == "test":
        probe = [python, "-c", "import torch"]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            # An index whose plain torch is the CUDA build: it does not load without its libraries.
            say("this torch needs its accelerator libraries; installing them (large)")
            with_dependencies = [word for word in pip if word != "--no-deps"]
            subprocess.run([*with_dependencies, "-r", str(file)], check=True)


def fingerprint(level: str) -> str:
    """What a finished level depends on: interpreter, package names, pinned versions."""
    digest = hashlib.sha256(sys.version.encode())
    digest.update(" ".join(PACKAGES[level]).encode())
    digest.update((REQUIREMENTS / f"{level}.txt").read_bytes())
    return digest.hexdigest()


def prepare(level: str) -> None:
    """Bring the machine to `level`."""
    start = time.monotonic()
    wanted = LEVELS[: LEVELS.index(level) + 1]
    stamps = {name: VENV / f".{name}" for name in wanted}
    todo = [
        name for name in wanted
        if not stamps[name].exists() or stamps[name].read_text() != fingerprint(name)
    ]  # fmt: skip
    if not todo:
        return
    install_packages([package for name in todo for package in PACKAGES[name]])
    make_venv()
    for name in todo:
        install_requirements(name)
        stamps[name].write_text(fingerprint(name))
    say(f"{level}: ready after {time.monotonic() - start:.0f} s")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("level", choices=LEVELS)
    arguments = parser.parse_args()
    try:
        prepare(arguments.level)
    except (SetupError, subprocess.CalledProcessError) as error:
        print(f"setup: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
