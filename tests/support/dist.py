# SPDX-License-Identifier: MIT
"""Write the release tarball: engine/ and the licence, the same bytes for the same commit.

    python3 tests/support/dist.py [--output DIR]

Files are those git tracks, sorted, owned by root, dated SOURCE_DATE_EPOCH (else the last commit).
Beside it lies colibri.hash, its hash in the form that Buildroot reads.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "smoke"))

from support import write_atomically  # noqa: E402


def git(*arguments: str) -> str:
    """Output of git in this repository."""
    command = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def members() -> list[tuple[str, Path]]:
    """(name inside the tarball's folder, file), sorted by name."""
    names = [name for name in git("ls-files", "-z", "engine").split("\0") if name]
    pairs = [(name.removeprefix("engine/"), REPOSITORY / name) for name in names]
    return sorted([*pairs, ("LICENSE", REPOSITORY / "LICENSE")])


def tarball(prefix: str, epoch: int) -> bytes:
    """The bytes of the .tar.gz."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, path in members():
            info = tarfile.TarInfo(f"{prefix}/{name}")
            data = path.read_bytes()
            info.size, info.mtime = len(data), epoch
            info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            info.uname = info.gname = "root"
            archive.addfile(info, io.BytesIO(data))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(raw.getvalue())
    return packed.getvalue()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=REPOSITORY / "dist")
    arguments = parser.parse_args()
    version = (REPOSITORY / "engine" / "VERSION").read_text().strip()
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct"))
    data = tarball(f"colibri-{version}", epoch)
    arguments.output.mkdir(parents=True, exist_ok=True)
    target = arguments.output / f"colibri-{version}.tar.gz"
    digest = hashlib.sha256(data).hexdigest()
    write_atomically(arguments.output / "colibri.hash", f"sha256  {digest}  {target.name}\n".encode())
    write_atomically(target, data)
    print(f"{digest}  {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
