# SPDX-License-Identifier: MIT
"""What reading ahead gains and what it costs while streaming (make bench-look-ahead).

    build/venv/bin/python tests/bench/look_ahead.py

`--prefetch 3` (the default) and `--prefetch 0` alternate on shape b in a control group, on a disk in
memory with limits on reads and without one. Gain is the median ratio of the pairs; bytes are what was
read, of the experts that were needed. Reads ahead must never cost more than 2 % of either. Needs root.
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
from results import Results, options, spread
from shapes import SHAPES, colibri_file

GIB = 1 << 30
TABLE = "look-ahead"
GOAL = 0.98


def measure(model: Path, rate: int, depth: int, arguments: Any) -> dict[str, Any]:
    """One run; tokens per second and what was read, of what was needed."""
    evict(model)
    with Group(memory_bytes=arguments.cap, read_bytes_per_s=rate, device_of=model) as group:
        command = [
            str(arguments.colibrictl), "bench", str(model), "--json", "--residency", "stream", "--context", "512",
            "--budget", str(arguments.cap), "--tokens", str(arguments.tokens), "--warm", "24", "--rounds", "1",
            "--threads", str(arguments.threads), "--prefetch", str(depth),
        ]  # fmt: skip
        result: dict[str, Any] = json.loads(run(command, group))
    result["tok_s"] = 1e3 / result["token_ms"]["mean"]
    needed = result["misses"] + result["prefetch_hits"]  # a read ahead that was right counts as a hit
    result["bytes"] = result["reads"] / needed  # all reads are as long as an expert
    return result


def main() -> int:
    """Measure the rows that are missing."""
    parser = options(__doc__ or "")
    parser.add_argument("--shape", default="b", choices=sorted(SHAPES))
    parser.add_argument("--cap", type=int, default=3 * GIB // 2)
    parser.add_argument("--rates", type=int, nargs="*", default=[GIB, 2 * GIB, 0], help="bytes per second; 0: no limit")
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    results = Results(arguments.results, arguments.again)
    model = colibri_file(arguments.shape)
    try:
        with RamDisk([model]) as disk:
            for rate in arguments.rates:
                limit = f"{rate / GIB:.2g} GiB/s" if rate else "no limit"
                name = f"{arguments.shape}, {arguments.threads} threads, storage {limit}"
                if not results.wanted(TABLE, name):
                    continue
                runs: dict[int, list[dict[str, Any]]] = {3: [], 0: []}
                for _ in range(arguments.pairs):
                    for depth, found in runs.items():
                        found.append(measure(disk.path(model), rate, depth, arguments))
                ratios = [a["tok_s"] / b["tok_s"] for a, b in zip(runs[3], runs[0], strict=True)]
                last = runs[3][-1]
                results.put(TABLE, name, {
                    "goal": GOAL,
                    "ours": statistics.median(ratios),
                    "unit": "of the speed without reads ahead",
                    "spread": spread(ratios),
                    "note": f"{last['bytes']:.3f} of the needed bytes read; {last['prefetch_reads']} reads ahead, "
                    f"{last['prefetch_hits']} of them right, in {last['reads']} reads; {last['tok_s']:.2f} tok/s",
                    "samples": {str(depth): [result["tok_s"] for result in found] for depth, found in runs.items()},
                    "detail": last,
                })  # fmt: skip
    except (GroupError, CommandError, RamDiskError) as error:
        print(f"look_ahead: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
