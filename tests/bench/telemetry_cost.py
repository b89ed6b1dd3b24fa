# SPDX-License-Identifier: MIT
"""What telemetry costs: the share of instructions that counting takes (`make bench-telemetry`).

    python tests/bench/telemetry_cost.py [--program colibrictl] [MODEL]

valgrind's callgrind counts every instruction of a run of the tiny model; what is shown is the share of
`cb_telemetry_count`, the one function that runs for telemetry while tokens are computed. The tiny model has
the least arithmetic per routing choice, so every real model is below it. Counts are exact and the same
in every run; nothing is timed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GOAL_PERCENT = 0.5
FUNCTION = "cb_telemetry_count"


def instructions(program: Path, model: Path, folder: Path) -> tuple[int, int]:
    """(all, of the function) over a prompt of 32 tokens and 96 generated ones, one thread."""
    data = folder / "callgrind"
    ids = ",".join(str(i * 7 % 300) for i in range(32))
    run: list[str | Path] = [
        program,
        "run",
        model,
        "--ids",
        ids,
        "-n",
        "96",
        "-t",
        "1",
        "--ignore-end",
        "-q",
        "--lock",
        "off",
    ]
    valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={data}"]
    subprocess.run([*valgrind, *run], capture_output=True, check=True)
    show = ["callgrind_annotate", "--inclusive=yes", "--threshold=100", str(data)]
    text = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    return parse(text)


def parse(text: str) -> tuple[int, int]:
    """Totals of callgrind_annotate's listing."""
    total = re.search(r"^\s*([\d,]+) \(100\.0%\)\s+PROGRAM TOTALS", text, re.MULTILINE)
    found = re.search(rf"^\s*([\d,]+) \([ \d.]+%\)\s+\S*:{FUNCTION}\b", text, re.MULTILINE)
    if total is None or found is None:
        raise SystemExit(f"callgrind shows no {FUNCTION}: is colibrictl stripped?")
    return int(total[1].replace(",", "")), int(found[1].replace(",", ""))


def main() -> int:
    """Print the share; 1 when it is above the goal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", type=Path, default=REPOSITORY / "build" / "models" / "tiny.colibri")
    parser.add_argument("--program", type=Path, default=REPOSITORY / "build" / "host" / "colibrictl")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        total, counting = instructions(args.program, args.model, Path(folder))
    share = 100 * counting / total
    print(
        f"{args.model.name}: {counting:,} of {total:,} instructions count choices: {share:.3f} % (goal {GOAL_PERCENT})"
    )
    return 0 if share < GOAL_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
