# SPDX-License-Identifier: MIT
"""Check meta-colibri against upstream trees: full parse, the graph of both images, the layer's linter tests.

    make yocto-check OECORE=DIR BITBAKE=DIR

BitBake refuses to run as root. Any python3 >= 3.11 runs this: what the tests need is installed from PyPI, pinned,
into a folder of the cache (yocto_tools.py). The build folder is build/yocto-check, or --build-dir; nothing is built.
Every line BitBake prints with WARNING or ERROR that names this layer fails the check.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yocto_tools

REPOSITORY = Path(__file__).resolve().parents[2]
LAYER = REPOSITORY / "meta-colibri"
IMAGES = ("colibri-image", "colibri-image-dev")
# What test_yocto.py needs besides the tools.
PACKAGES = ("iniconfig", "numpy", "packaging", "pluggy", "Pygments", "pytest")
# As configs/kas/development.yml builds the engine.
DEVELOPMENT = 'PACKAGECONFIG:pn-colibri = ""\n'
LOCAL = """\
MACHINE = "qemuarm64"
DISTRO_FEATURES:append = " colibri"
BB_NO_NETWORK = "1"
CONNECTIVITY_CHECK_URIS = ""
"""


def prepare(folder: Path, oecore: Path) -> None:
    """The two configuration files of a build folder."""
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    (folder / "conf" / "local.conf").write_text(LOCAL)
    (folder / "conf" / "development.conf").write_text(DEVELOPMENT)
    layers = f'BBPATH = "${{TOPDIR}}"\nBBFILES ?= ""\nBBLAYERS ?= "{oecore / "meta"} {LAYER}"\n'
    (folder / "conf" / "bblayers.conf").write_text(layers)


def run(folder: Path, bitbake: Path, *words: str) -> tuple[int, str, float]:
    """Exit code, output and seconds of a bitbake command."""
    path = f"{bitbake / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "PATH": path, "BUILDDIR": str(folder), "BBPATH": str(folder)}
    start = time.monotonic()
    result = subprocess.run(
        ["bitbake", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return result.returncode, result.stdout + result.stderr, time.monotonic() - start


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--oecore", type=Path, required=True, help="an openembedded-core work tree")
    parser.add_argument("--bitbake", type=Path, required=True, help="a bitbake work tree")
    parser.add_argument("--build-dir", type=Path, default=REPOSITORY / "build" / "yocto-check")
    arguments = parser.parse_args()
    if os.geteuid() == 0:
        print("yocto-check: bitbake does not run as root; run this as another user", file=sys.stderr)
        return 2
    oecore, bitbake = arguments.oecore.resolve(), arguments.bitbake.resolve()
    for tree, file in ((oecore, "meta/conf/bitbake.conf"), (bitbake, "bin/bitbake")):
        if not (tree / file).is_file():
            print(f"yocto-check: {tree} has no {file}; give OECORE=DIR BITBAKE=DIR (docs/yocto.md)", file=sys.stderr)
            return 2
    folder = arguments.build_dir.resolve()
    prepare(folder, oecore)
    failed = False
    # BitBake parses everything again in the second run: its cache is for one configuration.
    runs = (
        ("parse, graphs of both images", ("-g", *IMAGES)),
        ("parse, graph without the macros", ("-g", "-R", "conf/development.conf", IMAGES[1])),
    )
    for name, words in runs:
        code, output, seconds = run(folder, bitbake, *words)
        ours = [line for line in output.splitlines() if re.search(r"(WARNING|ERROR): .*colibri", line)]
        tasks = re.findall(r"Parsing of .*|Tasks Summary: .*", output)
        print(f"{name}: {'FAILED' if code or ours else 'ok'} after {seconds:.0f} s; {' '.join(tasks)}", flush=True)
        if code or ours:
            failed = True
            print("\n".join(ours or output.splitlines()[-20:]))
    start = time.monotonic()
    try:
        tools = yocto_tools.environment(PACKAGES)
    except yocto_tools.ToolsError as error:
        print(f"yocto-check: {error}", file=sys.stderr)
        return 2
    tests = [str(tools / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/firmware/test_yocto.py"]
    environment = {**os.environ, yocto_tools.VARIABLE: str(tools)}
    passed = subprocess.run(tests, cwd=REPOSITORY, env=environment, check=False).returncode == 0
    print(f"tests of the layer: {'ok' if passed else 'FAILED'} after {time.monotonic() - start:.0f} s")
    failed |= not passed
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
