# SPDX-License-Identifier: MIT
"""What hashing every read of an expert costs while streaming (make bench-verify).

    build/venv/bin/python tests/bench/verify_cost.py

Shape b in a control group, storage on a disk in memory with a limit on reads and without one, once
with the SHA instructions of this CPU and once with a build that leaves them out. `--verify always`
(every read is hashed) and `--verify first` (an expert is hashed once) alternate; both are warmed up
until most experts have been read, so that `first` hashes next to nothing. The cost is the median of
the pairs, as a share of the time of a token. Needs root.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from cgroups import Group, GroupError
from isolation import CommandError, evict, run
from ramdisk import RamDisk, RamDiskError
from results import REPOSITORY, Results, options, spread
from shapes import SHAPES, colibri_file

GIB = 1 << 30
TABLE = "verify"
GOAL = 0.05
PORTABLE = REPOSITORY / "build" / "portable-sha" / "colibrictl"


def measure(colibrictl: Path, model: Path, rate: int, verify: str, arguments: Any) -> dict[str, Any]:
    """One run; milliseconds per token in `mean`."""
    evict(model)
    with Group(memory_bytes=arguments.cap, read_bytes_per_s=rate, device_of=model) as group:
        command = [
            str(colibrictl), "bench", str(model), "--json", "--residency", "stream", "--budget", str(arguments.cap),
            "--verify", verify, "--tokens", str(arguments.tokens), "--warm", str(arguments.warm), "--rounds", "1",
            "--context", "512", "--threads", str(arguments.threads),
        ]  # fmt: skip
        result: dict[str, Any] = json.loads(run(command, group))
    result["mean"] = result["token_ms"]["mean"]
    return result


def main() -> int:
    """Measure the four rows that are missing."""
    parser = options(__doc__ or "")
    parser.add_argument("--shape", default="b", choices=sorted(SHAPES))
    parser.add_argument("--cap", type=int, default=3 * GIB // 2)
    parser.add_argument("--rate", type=int, default=GIB, help="bytes per second of the limited storage")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--warm", type=int, default=24)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--portable", type=Path, default=PORTABLE, help="colibrictl without SHA instructions")
    arguments = parser.parse_args()
    results = Results(arguments.results, arguments.again)
    model = colibri_file(arguments.shape)
    programs = {"SHA instructions": arguments.colibrictl, "portable SHA": arguments.portable}
    try:
        with RamDisk([model]) as disk:
            for sha, program in programs.items():
                for rate in (arguments.rate, 0):
                    limit = f"{rate / GIB:.2g} GiB/s" if rate else "no limit"
                    name = f"{arguments.shape}, {sha}, storage {limit}"
                    if not results.wanted(TABLE, name):
                        continue
                    file = disk.path(model)
                    runs: dict[str, list[dict[str, Any]]] = {"always": [], "first": []}
                    for _ in range(arguments.pairs):
                        for verify, found in runs.items():
                            found.append(measure(program, file, rate, verify, arguments))
                    times = {verify: [result["mean"] for result in found] for verify, found in runs.items()}
                    costs = [a / b - 1 for a, b in zip(times["always"], times["first"], strict=True)]
                    results.put(TABLE, name, {
                        "goal": GOAL if program == arguments.colibrictl else None,
                        "ours": statistics.median(costs),
                        "unit": "of a token's time",
                        "spread": spread(times["always"]),
                        "note": f"{1e3 / min(times['always']):.2f} against {1e3 / min(times['first']):.2f} tok/s",
                        "samples": times,
                        "detail": runs["always"][-1],
                    })  # fmt: skip
    except (GroupError, CommandError, RamDiskError) as error:
        print(f"verify_cost: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
