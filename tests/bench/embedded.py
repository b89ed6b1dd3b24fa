# SPDX-License-Identifier: MIT
"""A static AArch64 program with a model of a million parameters inside it (make embedded-demo).

    build/venv/bin/python tests/bench/embedded.py [--library DIR] [--output FILE] [--run]

The library is the one of `make engine-musl`; the model is made from configs/models/embedded.toml, which
takes a second. What comes out needs no file and no shared library: `--run` runs it under qemu-aarch64.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("embedded.c")
RECIPE = REPOSITORY / "configs" / "models" / "embedded.toml"
LIBRARY = REPOSITORY / "build" / "aarch64-linux-musl"
OUTPUT = REPOSITORY / "build" / "embedded" / "embedded"
COMPILER = f"{shlex.quote(sys.executable)} -m ziglang cc -target aarch64-linux-musl"
STRIP = "aarch64-linux-gnu-strip"
UNWIND = REPOSITORY / "engine" / "native" / "no_unwind.ld"
CFLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Os", "-Wall", "-Wextra", "-Werror", "-c")
# Those of the engine's programs, and linked in a folder as theirs: zig then has their libc already. It makes
# another one, for a minute, where its own files lie below the working directory.
LDFLAGS = (
    "-Wl,--as-needed", "-Wl,--no-undefined", "-Wl,--gc-sections", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,-z,noexecstack",
    "-static", f"-Wl,-T,{UNWIND}", "-pthread",
)  # fmt: skip
LIMIT_BYTES = 1_200_000


class DemoError(Exception):
    """The program cannot be made or run; the message says why and what to do."""


def run(command: list[str], cwd: Path | None = None, **environment: str) -> str:
    """Standard output of a command."""
    variables = {**os.environ, **environment}
    try:
        result = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise DemoError(f"{command[0]} is missing; run: make setup") from error
    if result.returncode:
        raise DemoError(f"{shlex.join(command)} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


def make_model(model: Path) -> None:
    """Convert the recipe."""
    command = [sys.executable, "-m", "colibri", "convert", str(RECIPE), "-o", str(model), "-q"]
    run(command, PYTHONPATH=str(REPOSITORY / "engine"))


def build(model: Path, library: Path, output: Path, compiler: str = COMPILER) -> int:
    """Link the model and the library into one program; its size in bytes."""
    archive, model, output = library.resolve() / "libcolibri.a", model.resolve(), output.resolve()
    if not archive.is_file():
        raise DemoError(f"{archive} is missing; build it with: make engine-musl")
    if any(character in str(model) for character in '"\\\n'):
        raise DemoError(f"the path of the model, {model}, has a quote or backslash; give a plainer folder")
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent) as name:
        program = Path(name) / output.name
        part = f"{program}.o"
        include = f"-I{REPOSITORY / 'engine' / 'native' / 'include'}"
        run([*shlex.split(compiler), *CFLAGS, f'-DMODEL="{model}"', include, str(SOURCE), "-o", part], Path(name))
        run([*shlex.split(compiler), "-o", str(program), part, str(archive), *LDFLAGS], Path(name))
        run([STRIP, str(program)])
        program.replace(output)
    return output.stat().st_size


def generated(program: Path, tokens: int) -> tuple[list[int], str]:
    """The ids that the program prints under emulation, and its text."""
    if shutil.which("qemu-aarch64") is None:
        raise DemoError("qemu-aarch64 is missing; install it with: apt-get install qemu-user")
    command = ["qemu-aarch64", str(program), str(tokens)]
    result = subprocess.run(command, cwd="/", capture_output=True, check=False)
    if result.returncode:
        raise DemoError(f"{shlex.join(command)} ended with {result.returncode}: {result.stderr.decode()}")
    ids, _, text = result.stdout.decode("utf-8", "replace").partition("\n")
    return [int(word) for word in ids.split(",")], text.rstrip("\n")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--library", type=Path, default=LIBRARY, metavar="DIR", help="build with libcolibri.a")
    parser.add_argument("--output", type=Path, default=OUTPUT, metavar="FILE")
    parser.add_argument("--run", action="store_true", help="run it under qemu-aarch64")
    given = parser.parse_args()
    output: Path = given.output.resolve()
    model = output.with_suffix(".colibri")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        make_model(model)
        size = build(model, given.library, output)
        print(f"embedded: {output}: {size} bytes, {model.stat().st_size} of them the model, gate {LIMIT_BYTES}")
        if size > LIMIT_BYTES:
            raise DemoError(f"{output} has {size} bytes, the gate is {LIMIT_BYTES}")
        if given.run:
            ids, text = generated(output, 32)
            print(f"embedded: ids {','.join(map(str, ids))}\nembedded: text {text}")
    except DemoError as error:
        print(f"embedded: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
