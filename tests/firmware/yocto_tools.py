# SPDX-License-Identifier: MIT
"""The environment of the layer's tools: BitBake's parser, the linter of recipes, kas.

Made once in ${XDG_CACHE_HOME:-~/.cache}/colibri from tests/requirements/yocto.txt, apart from the environment
of the tests: versions of shared packages differ. Standard library only: `make yocto-check` runs it with a bare
python3, because it needs neither compilers nor PyTorch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parents[1] / "requirements"
OWN = "yocto.txt"
VARIABLE = "COLIBRI_YOCTO_TOOLS"  # bin/ of an environment that exists already


class ToolsError(Exception):
    """The environment cannot be made; the message says why."""


def pinned(name: str) -> str:
    """The line of a package in the requirements of the tests, e.g. "pytest==9.2.0"."""
    for path in sorted(REQUIREMENTS.glob("*.txt")):
        found = re.search(rf"^{re.escape(name)}==\S+", path.read_text(encoding="utf-8"), re.MULTILINE)
        if found is not None:
            return found[0]
    raise ToolsError(f"{REQUIREMENTS}: no list pins {name}")


def environment(more: Sequence[str] = ()) -> Path:
    """bin/ of the environment. more: names of packages of the tests' lists that it has besides."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    lines = [pinned(name) for name in more]
    text = (REQUIREMENTS / OWN).read_bytes() + sys.version.encode() + "\n".join(lines).encode()
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "colibri"
    name = f"yocto-{hashlib.sha256(text).hexdigest()[:16]}"
    folder = base / name
    base.mkdir(parents=True, exist_ok=True)
    with (base / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run("python3-venv", sys.executable, "-m", "venv", str(folder))
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps"]
            _run("pip", *pip, "--disable-pip-version-check", "-r", str(REQUIREMENTS / OWN), *lines)
            (folder / "ready").touch()
    return folder / "bin"


def _run(what: str, *command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ToolsError(f"{what} failed: {(done.stdout + done.stderr)[-600:]}")
