# SPDX-License-Identifier: MIT
"""The plot of docs/benchmarks.md: speed beside llama.cpp, goal and result, as an SVG of text and rectangles.

    build/venv/bin/python tests/bench/plot.py --record build/bench/results.json   # keep what was measured
    build/venv/bin/python tests/bench/plot.py                                     # draw what was kept
    build/venv/bin/python tests/bench/plot.py --check                             # is the committed plot that?

Only the figures that are drawn are kept, in recorded.json beside this file. The same figures give the same
bytes: no dates, no fonts of this machine, no library.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

FOLDER = Path(__file__).resolve().parent
RECORDED = FOLDER / "recorded.json"
PLOT = FOLDER.parents[1] / "docs" / "benchmarks.svg"

WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 860, 300, 120, 64, 26, 14
LARGEST = 3.0
COLORS = {"reached": "#2f7d4f", "missed": "#b3592b", "none": "#6b7280"}


class PlotError(Exception):
    """There is nothing to draw; the message says why."""


def keep(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of speed.py that were compared with the peer: name, goal, ratio, and both speeds."""
    rows = results["tables"].get("speed", {})
    kept = [
        {"name": name, "goal": row["goal"], "ratio": round(row["ratio"], 3), "ours": round(row["ours"], 1),
         "peer": round(row["peer"], 1), "commit": row["commit"]}
        for name, row in rows.items() if row["ratio"] is not None
    ]  # fmt: skip
    if not kept:
        raise PlotError("no row of table 'speed' has a ratio: run make bench PEER=1 first")
    order = {"decode": 0, "prefill": 1}
    return sorted(kept, key=lambda row: (order.get(row["name"].split()[0], 2), row["name"]))


def across(ratio: float) -> str:
    """Where a ratio is, in pixels from the left."""
    return f"{LEFT + min(ratio, LARGEST) / LARGEST * (WIDTH - LEFT - RIGHT):.1f}"


def text(x: float | str, y: float, words: str, anchor: str = "start", color: str = "#1f2937", size: int = 12) -> str:
    """One line of words."""
    return f'<text x="{x}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}" fill="{color}">{escape(words)}</text>'


def draw(rows: list[dict[str, Any]]) -> str:
    """The picture."""
    height = TOP + ROW * len(rows) + 40
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        "<!-- SPDX-License-Identifier: MIT; made by tests/bench/plot.py -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text(16, 24, "Speed as a multiple of llama.cpp's, measured in the same run", size=15),
        text(
            16, 44, "bar: median ratio of the pairs; black mark: goal; tokens per second, ours and llama.cpp's, behind"
        ),
    ]
    bottom = TOP + ROW * len(rows)
    for tick in range(int(LARGEST) + 1):
        x = across(tick)
        lines.append(
            f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="{"#9ca3af" if tick == 1 else "#e5e7eb"}"/>'
        )
        lines.append(text(x, bottom + 18, f"{tick}", "middle", "#4b5563"))
    for i, row in enumerate(rows):
        y = TOP + ROW * i
        state = "none" if row["goal"] is None else "reached" if row["ratio"] >= row["goal"] else "missed"
        end = float(across(row["ratio"]))
        lines.append(text(LEFT - 8, y + 18, row["name"], "end"))
        lines.append(f'<rect x="{LEFT}" y="{y + 6}" width="{end - LEFT:.1f}" height="{BAR}" fill="{COLORS[state]}"/>')
        if row["goal"] is not None:
            x = across(row["goal"])
            lines.append(f'<line x1="{x}" y1="{y + 3}" x2="{x}" y2="{y + 23}" stroke="#111827" stroke-width="2"/>')
        lines.append(text(f"{end + 6:.1f}", y + 18, f"{row['ratio']:.2f}"))
        lines.append(text(WIDTH - 12, y + 18, f"{row['ours']:,g} : {row['peer']:,g}", "end", "#4b5563"))
    legend = [("reached", "goal reached"), ("missed", "goal missed"), ("none", "no goal")]
    for i, (state, words) in enumerate(legend):
        left = 16 + 130 * i
        lines.append(f'<rect x="{left}" y="{bottom + 22}" width="12" height="12" fill="{COLORS[state]}"/>')
        lines.append(text(left + 18, bottom + 32, words, color="#4b5563"))
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--record", type=Path, metavar="RESULTS", help="take the figures from a file of results")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the committed plot is another one")
    given = parser.parse_args()
    if given.record:
        rows = keep(json.loads(given.record.read_text(encoding="utf-8")))
        RECORDED.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    picture = draw(json.loads(RECORDED.read_text(encoding="utf-8")))
    if given.check:
        if not PLOT.is_file() or PLOT.read_text(encoding="utf-8") != picture:
            print(f"plot: {PLOT} is not what {RECORDED.name} gives; run: {Path(__file__).name}", file=sys.stderr)
            return 1
        return 0
    PLOT.write_text(picture, encoding="utf-8")
    print(f"plot: {PLOT}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PlotError as error:
        print(f"plot: error: {error}", file=sys.stderr)
        sys.exit(1)
