# SPDX-License-Identifier: MIT
"""Cycles of the quantised row products on ARM cores, as llvm-mca models them.

    python3 engine/native/tests/mca.py [--cc aarch64-linux-gnu-gcc] [--mca llvm-mca-19] [--loops]

Compiles neon.c, dotprod.c and i8mm.c with the flags of meson.build, finds the innermost loops that
multiply weights, and prints a line for each: cycles and instructions per 256 weights (one block of 8
rows and 32 columns) and token. Neoverse N1 stands for Cortex-A76, whose own model LLVM lacks. The
model knows no caches: what is printed is a bound of the arithmetic, not of the memory.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1]
ISAS = {
    "neon": (),
    "dotprod": ("-march=armv8.2-a+dotprod",),
    "i8mm": ("-march=armv8.2-a+dotprod+i8mm",),
}
CORES = {
    "neon": ("cortex-a53", "cortex-a72", "cortex-a55", "neoverse-n1"),
    "dotprod": ("cortex-a55", "neoverse-n1", "neoverse-n2"),
    "i8mm": ("cortex-a510", "neoverse-n2"),
}
FLAGS = ("-std=c11", "-O2", "-S", "-o", "-", "-D_GNU_SOURCE=", "-ffp-contract=off", "-fno-math-errno", "-fPIC")
OLDEST_LLVM = 16  # the first with a model of Neoverse N1
BLOCK_WEIGHTS = 256
# 8-bit products of one instruction
PRODUCTS = {"smull": 8, "smull2": 8, "smlal": 8, "smlal2": 8, "sdot": 16, "smmla": 32}
ITERATIONS = 200


class McaError(Exception):
    """The table cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class Loop:
    """An innermost loop of one function."""

    function: str
    lines: tuple[str, ...]  # instructions

    def count(self, mnemonic: str) -> int:
        """How often an instruction stands in the loop."""
        return sum(line.split()[0] == mnemonic for line in self.lines)

    @property
    def products(self) -> int:
        """8-bit multiplications of one iteration."""
        return sum(self.count(mnemonic) * n for mnemonic, n in PRODUCTS.items())

    @property
    def blocks(self) -> int:
        """Blocks of weights of one iteration: each widens its 8 scales once."""
        return self.count("fcvtl2")

    @property
    def dtype(self) -> str:
        """Only int4 takes nibbles apart."""
        return "int4" if self.count("ushr") else "int8"


def find_mca(name: str | None) -> tuple[str, int]:
    """llvm-mca and its major version: the one named, or the newest installed."""
    names = [name] if name else [f"llvm-mca-{n}" for n in range(40, OLDEST_LLVM - 1, -1)] + ["llvm-mca"]
    for path in filter(None, map(shutil.which, names)):
        text = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        match = re.search(r"version (\d+)", text)
        if match and int(match[1]) >= OLDEST_LLVM:
            return path, int(match[1])
    raise McaError(f"no llvm-mca of LLVM {OLDEST_LLVM} or later; apt-get install llvm-19, or name it with --mca")


def assembly(cc: str, isa: str) -> str:
    """What the compiler makes of the file of one instruction set."""
    include = [f"-I{NATIVE / folder}" for folder in ("include", "src", "kernels")]
    command = [*cc.split(), *FLAGS, *ISAS[isa], f"-DCB_HAVE_{isa.upper()}", *include, str(NATIVE / f"kernels/{isa}.c")]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError as error:
        raise McaError(f"no {cc.split()[0]}; apt-get install gcc-aarch64-linux-gnu, or name it with --cc") from error
    except subprocess.CalledProcessError as error:
        raise McaError(f"{' '.join(command)}: {error.stderr}") from error


def innermost_loops(text: str) -> list[Loop]:
    """Stretches from a label to a branch back to it that hold no other such stretch."""
    function, loops = "", []
    labels: dict[str, int] = {}
    body: list[str] = []
    newest = -1  # where the last loop found begins
    for raw in text.splitlines():
        line = raw.split("//")[0].strip()
        if match := re.fullmatch(r"([\w.$]+):", line):
            if re.match(r"[A-Za-z_]", match[1]):
                function, labels, body, newest = match[1], {}, [], -1
            else:
                labels[match[1]] = len(body)
            continue
        if not line or line.startswith("."):
            continue
        body.append(line)
        branch = re.fullmatch(r"(?:b|b\.?\w\w|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#?\d+,)\s*([\w.$]+)", line)
        if not branch:
            continue
        target = re.sub(r"^(\d+)b$", r"\1", branch[1])
        if labels.get(target, -1) > newest:
            newest = labels[target]
            loops.append(Loop(function, tuple(body[newest:])))
    return loops


def cycles(mca: str, isa: str, loop: Loop, core: str) -> float:
    """Cycles of one iteration."""
    *lines, branch = loop.lines
    source = "\n".join(["loop:", *lines, re.sub(r"[\w.$]+$", "loop", branch)]) + "\n"
    features = {"neon": "", "dotprod": "+dotprod", "i8mm": "+dotprod,+i8mm"}[isa]
    command = [mca, "-mtriple=aarch64", f"-mcpu={core}", f"-mattr={features}", f"-iterations={ITERATIONS}"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    match = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    if not match:
        raise McaError(f"{' '.join(command)}: {done.stderr.splitlines()[:1]}")
    return int(match[1]) / ITERATIONS


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cc", default="aarch64-linux-gnu-gcc", help="compiler for AArch64, with flags")
    parser.add_argument("--mca", help="llvm-mca to use; default the newest installed")
    parser.add_argument("--loops", action="store_true", help="print the instructions of the loops, too")
    parser.add_argument("isas", nargs="*", default=list(ISAS), help="instruction sets: neon dotprod i8mm")
    arguments = parser.parse_args()
    try:
        mca, version = find_mca(arguments.mca)
        print(f"llvm-mca of LLVM {version}, {arguments.cc} -O2; per 256 weights and token")
        for isa in arguments.isas:
            if isa not in ISAS:
                raise McaError(f"unknown instruction set '{isa}'; there are {' '.join(ISAS)}")
            print(f"{isa:8} {'':6}{'tokens':>6} {'instr.':>7}" + "".join(f"{core:>13}" for core in CORES[isa]))
            for loop in innermost_loops(assembly(arguments.cc, isa)):
                if not loop.products or not loop.blocks:
                    continue
                tokens = loop.products // (BLOCK_WEIGHTS * loop.blocks)
                share = loop.blocks * max(tokens, 1)
                found = [cycles(mca, isa, loop, core) / share for core in CORES[isa]]
                row = f"{'':8} {loop.dtype:6}{tokens:6} {len(loop.lines) / share:7.1f}"
                print(row + "".join(f"{value:13.1f}" for value in found) + f"   {loop.function}")
                if arguments.loops:
                    print("\n".join(f"    {line}" for line in loop.lines))
    except McaError as error:
        print(f"mca: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
