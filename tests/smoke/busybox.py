# SPDX-License-Identifier: MIT
"""Fetch the static AArch64 busybox of the distribution, without changing the host.

Debian builds it as ``busybox-static`` for arm64. apt is given folders of its own in the cache
and told that it is an arm64 system, so neither the package database nor the list of foreign
architectures of the machine is touched, and no privilege is needed. Where packages come from and
how they are verified is whatever the machine's apt is set up with.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support import BuildError, Tool, cache_folder, content_key, require_tools, write_atomically

PACKAGE = "busybox-static"
ARCH = "arm64"
WORK_FOLDERS = ("state", "cache", "download", "unpacked")  # below the cache folder; removed when done
TOOLS = (Tool("apt-get", "apt"), Tool("dpkg-deb", "dpkg"))
_ELF_AARCH64 = (b"\x7fELF\x02\x01", b"\xb7\x00")  # 64-bit little-endian; e_machine at byte 18


@dataclass(frozen=True)
class Busybox:
    """A busybox executable in the cache."""

    path: Path
    version: str


def fetch_busybox() -> Busybox:
    """The busybox of this machine's distribution, from the cache or from apt."""
    folder = cache_folder("busybox") / content_key("busybox", _distribution(), PACKAGE, ARCH)
    program, version = folder / "busybox", folder / "version"
    if not (program.is_file() and version.is_file()):
        folder.mkdir(parents=True, exist_ok=True)
        _download(folder, program, version)
    return Busybox(program, version.read_text(encoding="utf-8").strip())


def _distribution() -> str:
    try:
        return Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return ""


def _download(folder: Path, program: Path, version: Path) -> None:
    require_tools(TOOLS)
    print(f"busybox: fetching {PACKAGE} for {ARCH}", flush=True)
    for name in ("state/lists/partial", "cache/archives/partial", *WORK_FOLDERS):
        (folder / name).mkdir(parents=True, exist_ok=True)
    apt = [
        "apt-get",
        "-o",
        f"Dir::State={folder / 'state'}",
        "-o",
        f"Dir::Cache={folder / 'cache'}",
        "-o",
        "Dir::State::status=/dev/null",
        "-o",
        f"APT::Architecture={ARCH}",
        "-o",
        f"APT::Architectures={ARCH}",
        "-o",
        "APT::Sandbox::User=",
        "-o",
        "Acquire::Languages=none",
    ]
    # A source without arm64 packages makes the update fail although the rest of it is usable, so
    # that only the download decides.
    update = _run([*apt, "update"], folder)
    download = _run([*apt, "download", PACKAGE], folder / "download")
    packages = sorted((folder / "download").glob(f"{PACKAGE}_*_{ARCH}.deb"))
    if download.returncode != 0 or not packages:
        output = (update.stdout + download.stdout).strip()
        raise BuildError(
            f"{output}\napt cannot fetch {PACKAGE} for {ARCH}; check that the machine's package "
            "sources are reachable and offer it (they do on Debian), then run this again"
        )
    package = packages[-1]
    unpacked = folder / "unpacked"
    unpack = _run(["dpkg-deb", "-x", str(package), str(unpacked)], folder)
    found = [path for path in sorted(unpacked.rglob("busybox")) if path.parent.name == "bin"]
    if unpack.returncode != 0 or not found:
        raise BuildError(f"{package.name} holds no bin/busybox; remove {folder} and try again")
    data = found[0].read_bytes()
    if not (data.startswith(_ELF_AARCH64[0]) and data[18:20] == _ELF_AARCH64[1]):
        raise BuildError(f"{package.name}: bin/busybox is no AArch64 program; remove {folder}")
    for name in WORK_FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)
    write_atomically(program, data)
    write_atomically(version, package.name.split("_")[1].replace("%3a", ":").encode())


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
