# SPDX-License-Identifier: MIT
"""Results of the benchmarks: one JSON file that grows row by row, and the Markdown tables of it.

    build/venv/bin/python tests/bench/results.py build/bench/results.json

A program of this folder writes each row when it is measured and skips the rows that are there, so
an interrupted run goes on where it stopped. `--again` measures them anew.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isolation import loads, machine

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "build" / "bench" / "results.json"
COLIBRICTL = REPOSITORY / "build" / "host" / "colibrictl"


def commit() -> str:
    """The commit that is measured, with a + when C sources differ from it."""
    git = ["git", "-C", str(REPOSITORY)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "engine/native"], check=False)
    return name.stdout.strip() + ("+" if changed.returncode else "")


class Results:
    """Rows by table and name."""

    def __init__(self, path: Path, again: bool = False) -> None:
        self.path = path
        self.again = again
        self.data: dict[str, Any] = {"machine": machine(), "tables": {}}
        if path.exists():
            self.data = json.loads(path.read_text(encoding="utf-8"))

    def wanted(self, table: str, name: str) -> bool:
        """Whether a row is still to be measured."""
        return self.again or name not in self.data["tables"].get(table, {})

    def put(self, table: str, name: str, row: dict[str, Any]) -> None:
        """Keep a row; the file is replaced at once."""
        row = {**row, "commit": commit(), "time": time.strftime("%Y-%m-%d %H:%M"), "loads": loads()}
        self.data["tables"].setdefault(table, {})[name] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(self.data, indent=1), encoding="utf-8")
        os.replace(temporary, self.path)
        print(f"{table} | {name} | {summary(row)}", flush=True)


def spread(values: Sequence[float]) -> float:
    """(largest - smallest) / median."""
    return (max(values) - min(values)) / statistics.median(values) if len(values) > 1 else 0.0


def figure(value: object) -> str:
    """A number with three or four digits."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value)
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def summary(row: dict[str, Any]) -> str:
    """One line for the terminal."""
    hidden = ("samples", "detail", "commit", "time")
    return ", ".join(f"{key} {figure(value)}" for key, value in row.items() if key not in hidden)


COLUMNS = ("goal", "ours", "peer", "ratio", "unit", "spread", "bandwidth_gb_s", "share", "note")
TITLES = {"bandwidth_gb_s": "bandwidth GB/s", "share": "share of it"}


def markdown(data: dict[str, Any]) -> str:
    """All tables."""
    lines = [f"Machine: {json.dumps(data['machine'])}", ""]
    for table, rows in data["tables"].items():
        used = [name for name in COLUMNS if any(row.get(name) not in (None, "") for row in rows.values())]
        lines += [f"## {table}", "", "| what | " + " | ".join(TITLES.get(name, name) for name in used) + " | commit |"]
        lines.append("|---|" + "---|" * (len(used) + 1))
        for name, row in rows.items():
            cells = [figure(row.get(column)) for column in used]
            lines.append(f"| {name} | " + " | ".join(cells) + f" | {row['commit']} |")
        lines.append("")
    return "\n".join(lines)


def options(description: str) -> argparse.ArgumentParser:
    """What the programs of this folder have in common."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--colibrictl", type=lambda text: Path(text).resolve(), default=COLIBRICTL)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="measure rows that are there already")
    parser.add_argument("--no-peer", action="store_true", help="without llama.cpp")
    return parser


def main() -> int:
    """Print the tables of a file of results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, nargs="?", default=RESULTS)
    print(markdown(json.loads(parser.parse_args().file.read_text(encoding="utf-8"))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
