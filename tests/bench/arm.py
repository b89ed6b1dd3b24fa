# SPDX-License-Identifier: MIT
"""Instructions per decoded token on AArch64, counted by QEMU's user-mode emulation (make bench-arm).

    build/venv/bin/python tests/bench/arm.py --shapes c a

A run of few tokens is taken from one of more: what is left are whole decoded tokens, one thread, without
opening and without the prompt. The counts are exact and the same on every machine; they say nothing of
memory and caches. What llama.cpp needs (llama-cpp-python 0.3.36, the same shapes in Q4_0) was counted once
in the same way and stands in PEER; the goals are shares of that. `--functions` shows where they go.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from results import REPOSITORY, Results, options
from shapes import SHAPES, colibri_file

SOURCE = Path(__file__).with_name("count_instructions.c")
PROGRAM = REPOSITORY / "build" / "aarch64-bench" / "colibrictl"
PROMPT = ",".join(str(7 * i + 3) for i in range(4))
# kernels -> core that has no better ones, share of the peer's count that is the goal
CORES = {"dotprod": ("cortex-a76", 0.55), "neon": ("cortex-a72", 0.33)}
# (kernels, shape) -> llama.cpp's instructions per token
PEER = {("dotprod", "a"): 161.9e6, ("dotprod", "c"): 20.1e6, ("neon", "a"): 434.7e6, ("neon", "c"): 52.2e6}
FEW, MORE = 8, 24


class CountError(Exception):
    """Instructions could not be counted; the message says why and what to do."""


def build_plugin(folder: Path) -> Path:
    """The counting plugin."""
    plugin = folder / "count_instructions.so"
    flags = [
        "-std=c11",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-Werror",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
    ]
    subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", str(plugin), str(SOURCE)], check=True)
    return plugin


def executed(plugin: Path, program: Path, model: Path, core: str, isa: str, tokens: int) -> Counter[str]:
    """Instructions of one run, all of it, by function."""
    output = plugin.with_name("executed")
    output.unlink(missing_ok=True)
    command = ["qemu-aarch64", "-cpu", core, "-plugin", f"{plugin},output={output}", str(program), "run", str(model)]
    command += ["--ids", PROMPT, "-n", str(tokens), "-t", "1", "--isa", isa, "--verify", "open", "--lock", "off"]
    command += ["--context", "64", "--ignore-end", "-q"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode or not output.is_file():
        raise CountError(f"{' '.join(command)} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    counts: Counter[str] = Counter()
    for line in output.read_text(encoding="utf-8").splitlines():
        count, _, function = line.partition(" ")
        counts[function] += int(count)
    return counts


def per_token(plugin: Path, program: Path, model: Path, core: str, isa: str) -> Counter[str]:
    """Instructions of one decoded token, by function, at a position around 20."""
    few, more = (executed(plugin, program, model, core, isa, tokens) for tokens in (FEW, MORE))
    return Counter({name: round((more[name] - few[name]) / (MORE - FEW)) for name in more})


def main() -> int:
    """Count what is not in the results yet."""
    parser = options(__doc__ or "")
    parser.set_defaults(colibrictl=PROGRAM)
    parser.add_argument("--shapes", nargs="+", choices=sorted(SHAPES), default=["c", "a"])
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="print the N largest of each row")
    given = parser.parse_args()
    if shutil.which("qemu-aarch64") is None:
        print("arm: qemu-aarch64 is missing; install it with: apt-get install qemu-user", file=sys.stderr)
        return 5
    if not given.colibrictl.is_file():
        print(f"arm: {given.colibrictl} is missing; build it with: make bench-arm", file=sys.stderr)
        return 5
    results = Results(given.results, given.again)
    with tempfile.TemporaryDirectory() as name:
        plugin = build_plugin(Path(name))
        for shape in given.shapes:
            for isa, (core, share) in CORES.items():
                row = f"{shape}, {isa} ({core})"
                if not results.wanted("arm", row):
                    continue
                functions = per_token(plugin, given.colibrictl, colibri_file(shape), core, isa)
                count = functions.total()
                peer = PEER.get((isa, shape))
                results.put("arm", row, {
                    "goal": share if peer else None, "ours": count, "peer": peer,
                    "ratio": count / peer if peer else None, "unit": "instructions per token",
                })  # fmt: skip
                for function, part in functions.most_common(given.functions):
                    print(f"    {part / count:6.1%} {part:12,} {function}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CountError as error:
        print(f"arm: {error}", file=sys.stderr)
        sys.exit(1)
