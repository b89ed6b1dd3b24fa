# SPDX-License-Identifier: MIT
"""Build the engine with any compiler: writes meson's machine file, configures, compiles.

    python3 tests/support/build_engine.py                                        # this machine: build/host
    python3 tests/support/build_engine.py --cross-compile aarch64-linux-gnu- --ldflags=-static
    python3 tests/support/build_engine.py --cc 'zig cc -target aarch64-linux-musl' --name aarch64-musl

Only the flags given here reach the compiler: CC, CFLAGS and the like are not read from the
environment, so that a build depends on its command line alone.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE = REPOSITORY / "engine"
VENV_BIN = REPOSITORY / "build" / "venv" / "bin"
DROPPED_VARIABLES = ("CC", "CFLAGS", "CPPFLAGS", "LDFLAGS", "AR", "CROSS_COMPILE", "MAKEFLAGS")
STATIC_OPTIONS = ("-Dstatic_tools=true", "-Ddefault_library=static")
# macro the compiler defines -> meson's cpu_family, qemu-user's name
FAMILIES = (
    ("__aarch64__", "aarch64", "qemu-aarch64"),
    ("__arm__", "arm", "qemu-arm"),
    ("__x86_64__", "x86_64", "qemu-x86_64"),
    ("__i386__", "x86", "qemu-i386"),
    ("__riscv", "riscv64", "qemu-riscv64"),
)


class BuildError(Exception):
    """The engine cannot be built; the message says why and what to do."""


@dataclass
class Toolchain:
    """A compiler, its flags, and what it makes programs for."""

    compiler: list[str]
    archiver: list[str]
    cflags: list[str] = field(default_factory=list)
    ldflags: list[str] = field(default_factory=list)
    pkg_config: list[str] = field(default_factory=list)
    family: str = ""
    runner: str = ""
    triple: str = ""
    native: bool = False


def environment() -> dict[str, str]:
    """The environment of meson and ninja: ours, without compiler settings, build/venv first."""
    kept = {name: value for name, value in os.environ.items() if name not in DROPPED_VARIABLES}
    kept["PATH"] = f"{VENV_BIN}{os.pathsep}{kept.get('PATH', os.defpath)}"
    return kept


def tool(name: str) -> str:
    """Path of meson or ninja: build/venv first, then PATH."""
    found = shutil.which(name, path=environment()["PATH"])
    if found is None:
        raise BuildError(f"{name} is missing; run: make setup")
    return found


def probe(compiler: list[str], *arguments: str) -> str:
    """Standard output of the compiler."""
    try:
        result = subprocess.run(
            [*compiler, *arguments], input="", capture_output=True, text=True, check=False,
            env=environment(),
        )  # fmt: skip
    except FileNotFoundError:
        raise BuildError(
            f"compiler {compiler[0]!r} is not in PATH; install it or give another one with CC=…"
        ) from None
    if result.returncode:
        raise BuildError(f"{shlex.join(compiler)} failed: {result.stderr.strip()[-400:]}")
    return result.stdout


def detect(compiler: list[str], archiver: list[str], cflags: list[str], ldflags: list[str],
           cross: bool) -> Toolchain:  # fmt: skip
    """Ask a compiler what it compiles for."""
    macros = probe(compiler, *cflags, "-dM", "-E", "-x", "c", "-")
    chain = Toolchain(compiler, archiver, cflags, ldflags)
    for macro, family, runner in FAMILIES:
        if f"#define {macro} " in macros:
            chain.family, chain.runner = family, runner
            break
    else:
        raise BuildError(f"{shlex.join(compiler)}: unknown architecture; add it to FAMILIES")
    if "#define __BYTE_ORDER__ __ORDER_LITTLE_ENDIAN__" not in macros:
        raise BuildError(f"{shlex.join(compiler)}: big-endian targets are not supported")
    chain.triple = probe(compiler, "-dumpmachine").strip()
    chain.native = not cross and chain.family == os.uname().machine
    return chain


def quoted(words: list[str]) -> str:
    """A list in meson's machine file syntax."""
    return "[" + ", ".join("'" + word.replace("'", "\\'") + "'" for word in words) + "]"


def machine_file(chain: Toolchain) -> str:
    """Text of a meson native or cross file."""
    lines = [
        "[binaries]",
        f"c = {quoted(chain.compiler)}",
        f"ar = {quoted(chain.archiver)}",
    ]
    if chain.pkg_config:
        lines.append(f"pkg-config = {quoted(chain.pkg_config)}")
    runner = None if chain.native else shutil.which(chain.runner)
    if runner:
        libraries = Path("/usr") / chain.triple.replace("-none-", "-")
        where = ["-L", str(libraries)] if libraries.is_dir() else []
        lines.append(f"exe_wrapper = {quoted([runner, *where])}")
    lines += [
        "[built-in options]",
        f"c_args = {quoted(chain.cflags)}",
        f"c_link_args = {quoted(chain.cflags + chain.ldflags)}",
    ]
    if not chain.native:
        lines += [
            "[properties]",
            "skip_sanity_check = true",
            "[host_machine]",
            "system = 'linux'",
            f"cpu_family = '{chain.family}'",
            f"cpu = '{chain.family}'",
            "endian = 'little'",
        ]
    return "\n".join(lines) + "\n"


def build(chain: Toolchain, folder: Path, options: list[str], jobs: int,
          quiet: bool = False, targets: Sequence[str] = ()) -> None:  # fmt: skip
    """Configure `folder` when anything about it changed, then compile all of it or some targets."""
    text = machine_file(chain)
    command = [*options, f"--{'native' if chain.native else 'cross'}-file"]
    record = folder / "machine.ini"
    wanted = f"# {shlex.join(options)}\n{text}"
    output = subprocess.PIPE if quiet else None
    if not (folder / "build.ninja").exists() or not record.exists() or record.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        record.write_text(wanted)
        setup = [tool("meson"), "setup", *command, str(record), str(folder), str(ENGINE)]
        run(setup, output)
    run([tool("ninja"), "-C", str(folder), "-j", str(jobs), *targets], output)


def run(command: list[str], output: int | None) -> None:
    """Run a step of the build; when its output was kept back, show the end of it on failure."""
    result = subprocess.run(
        command, env=environment(), stdout=output, stderr=output and subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    if result.returncode:
        shown = "\n".join((result.stdout or "").splitlines()[-40:])
        raise BuildError(f"{Path(command[0]).name} failed ({result.returncode})\n{shown}")


def toolchain(cross_compile: str, cc: str, cflags: str, ldflags: str) -> Toolchain:
    """The toolchain that make's variables describe."""
    compiler = shlex.split(cc) or [f"{cross_compile}gcc" if cross_compile else "cc"]
    if compiler[0] == "cc" and not shutil.which("cc"):
        compiler[0] = "gcc"
    return detect(
        compiler, find_archiver(compiler, cross_compile), shlex.split(cflags), shlex.split(ldflags), bool(cross_compile)
    )


def find_archiver(compiler: list[str], cross_compile: str) -> list[str]:
    """The ar that understands what a compiler makes."""
    folder, _, name = compiler[0].rpartition("/")
    if name == "zig" or "ziglang" in compiler:
        return [*compiler[: compiler.index("cc")], "ar"]
    if cross_compile:
        return [f"{cross_compile}ar"]
    if name.endswith("-gcc"):
        return [f"{folder}/{name[:-3]}ar" if folder else f"{name[:-3]}ar"]
    triple = probe(compiler, "-dumpmachine").strip()
    choices = ("llvm-ar", f"{triple}-ar") if "clang" in name else ()
    return [next((choice for choice in choices if shutil.which(choice)), "ar")]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cross-compile", default="", help="prefix, e.g. aarch64-linux-gnu-")
    parser.add_argument("--cc", default="", help="compiler, may be several words")
    parser.add_argument("--cflags", default="")
    parser.add_argument("--ldflags", default="", help="-static makes static programs")
    parser.add_argument("--builtin-memcpy", default="", metavar="0|1")
    parser.add_argument("--signatures", default="", metavar="0|1", help="check signatures, with the target's libsodium")
    parser.add_argument("--pkg-config", default="", help="the target's pkg-config (default: with the prefix)")
    parser.add_argument("--name", default="", help="folder below build/ (default: host or triple)")
    parser.add_argument("--option", action="append", default=[], help="further meson options")
    parser.add_argument("--target", action="append", default=[], help="what to build (default: everything)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    try:
        chain = toolchain(
            arguments.cross_compile, arguments.cc, arguments.cflags, arguments.ldflags
        )
        options = list(arguments.option)
        if "-static" in chain.ldflags:
            chain.ldflags.remove("-static")
            options += STATIC_OPTIONS
        if arguments.builtin_memcpy not in ("", "0"):
            options.append("-Duse_builtin_memcpy=true")
        plain = chain.native and not (arguments.cc or chain.cflags or chain.ldflags)
        name = arguments.name or ("host" if plain else chain.triple)
        if arguments.signatures not in ("", "0"):
            chain.pkg_config = shlex.split(arguments.pkg_config) or [f"{arguments.cross_compile}pkg-config"]
            if not shutil.which(chain.pkg_config[0]):
                raise BuildError(f"SIGNATURES=1 asks pkg-config for libsodium, and there is no {chain.pkg_config[0]}: "
                                 "give PKG_CONFIG=… (docs/toolchains.md)")
            options.append("-Dsignatures=enabled")
        elif name == "host":
            options.append("-Dsignatures=auto")  # the core needs libc alone; this machine's build also tests them
        folder = REPOSITORY / "build" / name
        build(chain, folder, options, arguments.jobs, targets=arguments.target)
    except BuildError as error:
        print(f"engine: error: {error}", file=sys.stderr)
        return 1
    made = [file for file in ("libcolibri.a", "libcolibri.so", "colibrictl")
            if (folder / file).exists()]  # fmt: skip
    without = "" if any("signatures" in option for option in options) else "; checks no signatures (SIGNATURES=1 does)"
    print(f"engine: {chain.triple}: build/{name}: {', '.join(made)}{without}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
