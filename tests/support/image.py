# SPDX-License-Identifier: MIT
"""Put the smoke image together from what make has built: build/image.

    build/venv/bin/python tests/support/image.py [--board FILE] [--output DIR]

The AArch64 programs come from build/aarch64 (built here when they are missing or old),
the models from build/models. tests/smoke/build_image.py does the work and keeps its own cache.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import build_engine
import models

REPOSITORY = Path(__file__).resolve().parents[2]
BUILDER = REPOSITORY / "tests" / "smoke" / "build_image.py"
CROSS = "aarch64-linux-gnu-"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--board", default=str(REPOSITORY / "configs" / "boards" / "qemu-aarch64.toml"))
    parser.add_argument("--output", default=str(REPOSITORY / "build" / "image"))
    arguments = parser.parse_args()
    folder = REPOSITORY / "build" / "aarch64"
    print("image: building the engine for AArch64", flush=True)
    try:
        chain = build_engine.toolchain(CROSS, "", "", "")
        build_engine.build(chain, folder, ["-Dwerror=true", *build_engine.STATIC_OPTIONS], jobs=2, quiet=True)
    except build_engine.BuildError as error:
        print(f"image: error: {error}", file=sys.stderr)
        return 1
    command = [sys.executable, str(BUILDER), "--colibrictl", str(folder / "colibrictl"),
               "--board", arguments.board, "--output", arguments.output]  # fmt: skip
    for name in ("tiny", models.DEMO):
        command += ["--model", str(models.OUTPUT / f"{name}.colibri")]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
