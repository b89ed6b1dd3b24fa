# SPDX-License-Identifier: MIT
"""Small helpers shared by the smoke image's builders: cache, hashes, files, host tools."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


class BuildError(Exception):
    """The image cannot be built; the message says what is wrong and how to put it right."""


@dataclass(frozen=True)
class Tool:
    """A program of the build machine and the Debian package that has it."""

    program: str
    package: str


def require_tools(tools: Iterable[Tool]) -> None:
    """Fail with one line that installs everything that is missing."""
    search = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
    missing = [tool for tool in tools if shutil.which(tool.program, path=search) is None]
    if missing:
        programs = ", ".join(tool.program for tool in missing)
        packages = " ".join(sorted({tool.package for tool in missing}))
        raise BuildError(f"missing on this machine: {programs}; install with: apt-get install {packages}")


def cache_folder(name: str) -> Path:
    """A folder below ${XDG_CACHE_HOME:-~/.cache}/colibri, made when needed."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(base) / "colibri" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def content_key(*parts: str) -> str:
    """A short name for a list of inputs; lengths keep neighbours apart."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:24]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old contents or the new ones, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
