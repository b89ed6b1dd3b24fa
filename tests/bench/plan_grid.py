# SPDX-License-Identifier: MIT
"""Predictions of `colibri plan` against measurements, over memory budgets and storage limits (make bench-plan).

    build/venv/bin/python tests/bench/plan_grid.py                    # measure what is missing, print the table
    build/venv/bin/python tests/bench/plan_grid.py --table            # print only
    build/venv/bin/python tests/bench/plan_grid.py --shape a --again

The machine is calibrated first (build/bench/this-machine-SHAPE.toml, kept). Then each cell of the grid runs
`colibrictl bench` in a control group with the budget as its memory limit and a limit on reads of the
device, and is compared with the prediction for that board, that budget and that limit. Cells that are
in the file of results are not measured again, so an interrupted run goes on. Needs root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from cgroups import Group, GroupError, ReadAhead
from colibri.boards import Board, Storage, read_board
from colibri.calibrate_machine import storage_speed
from colibri.engine import Engine
from colibri.format import open_model
from colibri.plan import MemoryPlan, PlanOptions, plan_file
from colibri.predict import ModelWork, Prediction, model_work, predict
from isolation import CommandError, evict, raise_priority, run
from results import REPOSITORY, Results, options
from shapes import colibri_file

MIB = 1 << 20
TABLE = "plan"
CONTEXT = 512
PROMPT = 8
PROFILE_TOKENS = 2048
GOAL_ERROR, GOAL_SHARE = 0.15, 0.80
# budgets in MiB (0: enough for every expert), limits on reads in MiB/s (0: none); 192 experts of 0.9 MB
# a token for shape a, 128 of 3.5 MB for shape b
GRIDS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "a": ((320, 448, 576, 0), (64, 128, 256, 0)),
    "b": ((1024, 1536, 2048, 3072), (256, 512, 0)),
}
READ_AHEAD_KIB = 128  # what boards have
DISK_SECONDS = 1.0  # its speed is measured that long before and after
SECONDS = 10.0  # a cell decodes about that long
WARM_SECONDS = 6.0


def calibrated(path: Path, model: Path, storage_file: Path) -> Board:
    """The board file of this machine, measured when it is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "colibri", "plan", str(model), "--calibrate", str(path)]
        run([*command, "--storage-file", str(storage_file)])
    return read_board(path)


def routing(path: Path, model: Path) -> list[list[int]]:
    """How often each expert is chosen by random ids, [sparse layer][expert]: what a calibration profile holds.

    The ids are not those that are timed, but drawn like them.
    """
    if not path.exists():
        with Engine(model, context_tokens=CONTEXT, residency="resident", lock="off") as engine:
            rng = random.Random(7)
            session = engine.session()
            for _ in range(PROFILE_TOKENS // CONTEXT):
                session.reset()
                session.append([rng.randrange(engine.info.vocabulary) for _ in range(CONTEXT)])
            counts = [engine.expert_counts(layer) for layer in range(engine.info.layers)]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([row for row in counts if row]), encoding="utf-8")
    found: list[list[int]] = json.loads(path.read_text(encoding="utf-8"))
    return found


def limited(board: Board, storage: Storage, rate: int) -> Board:
    """The board with the storage as it is now, and as the control group leaves it."""
    if rate:
        storage = replace(storage, read_mbps=min(storage.read_mbps, rate / 1e6))
    return replace(board, storages={"disk": storage})


class Cell:
    """One budget, one limit on reads, one number of threads."""

    def __init__(self, shape: str, budget: int, rate: int, threads: int) -> None:
        self.shape, self.budget, self.rate, self.threads = shape, budget, rate, threads

    @property
    def name(self) -> str:
        """Of the row."""
        budget = f"{self.budget // MIB} MiB" if self.budget else "enough"
        storage = f"{self.rate // MIB} MiB/s" if self.rate else "no limit"
        return f"{self.shape}, {budget}, {storage}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def plan(self, model: Path) -> MemoryPlan:
        """The plan that the engine will make."""
        choice = PlanOptions(context_tokens=CONTEXT, threads=self.threads, budget_bytes=self.budget)
        with open_model(model) as file:
            return plan_file(file, choice)

    def measure(self, colibrictl: Path, model: Path, guess: Prediction) -> dict[str, Any]:
        """Run the engine; what it and its control group say."""
        rate = guess.tokens_per_second
        tokens = max(8, min(200, round(SECONDS * rate)))
        warm = max(8, min(100, round(WARM_SECONDS * rate)))
        evict(model)
        group = Group(memory_bytes=self.budget, read_bytes_per_s=self.rate, device_of=model)
        command = [
            str(colibrictl), "bench", str(model), "--json", "--prompt", str(PROMPT), "--rounds", "1",
            "--context", str(CONTEXT), "--threads", str(self.threads), "--tokens", str(tokens), "--warm", str(warm),
        ]  # fmt: skip
        if self.budget:
            command += ["--budget", str(self.budget)]
        else:
            command += ["--residency", "resident"]
        with ReadAhead(model, READ_AHEAD_KIB), group:
            result: dict[str, Any] = json.loads(run(command, group))
            result["group_peak_bytes"] = group.peak_bytes()
            result["oom_kills"] = group.oom_kills()
        return result


def row(cell: Cell, plan: MemoryPlan, guess: Prediction, measured: dict[str, Any]) -> dict[str, Any]:
    """A row of the table."""
    found = 1e3 / measured["token_ms"]["mean"]
    total = measured.get("hits", 0) + measured.get("misses", 0)
    return {
        "predicted": guess.tokens_per_second,
        "ours": found,
        "error": guess.tokens_per_second / found - 1,
        "unit": "tokens/s",
        "limit": guess.limit,
        "residency": plan.residency,
        "slots": plan.expert_slots,
        "experts": plan.max_expert_slots,
        "hit_predicted": guess.hit_rate,
        "hit_measured": measured["hits"] / total if total else 1.0,
        "plan_bytes": plan.total_bytes,
        "engine_plan_bytes": measured["plan_bytes"],
        "peak_bytes": measured["vmhwm_bytes"],
        "group_peak_bytes": measured["group_peak_bytes"],
        "oom_kills": measured["oom_kills"],
        "tokens": measured["tokens"],
        "detail": measured,
    }


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The table of docs/plan.md, and how much of the grid is within the goal."""
    lines = [
        "| shape, budget, storage, threads | experts in memory | hit rate predicted, measured | limit | "
        "tok/s predicted | measured | error | plan MiB | peak MiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    good = 0
    for name, r in rows.items():
        good += abs(r["error"]) <= GOAL_ERROR
        slots = f"{r['slots']} of {r['experts']}" if r["residency"] == "stream" else "all"
        lines.append(
            f"| {name} | {slots} | {r['hit_predicted']:.3f}, {r['hit_measured']:.3f} | {r['limit']} | "
            f"{r['predicted']:.2f} | {r['ours']:.2f} | {100 * r['error']:+.0f} % | "
            f"{r['plan_bytes'] / MIB:,.0f} | {r['peak_bytes'] / MIB:,.0f} |"
        )
    if rows:
        share = good / len(rows)
        over = sum(r["peak_bytes"] > r["plan_bytes"] for r in rows.values())
        goal = "reached" if share >= GOAL_SHARE else "missed"
        lines.append(
            f"\n{good} of {len(rows)} cells ({100 * share:.0f} %) within {100 * GOAL_ERROR:.0f} % "
            f"(goal {100 * GOAL_SHARE:.0f} %: {goal}); peak above the plan in {over}."
        )
    return "\n".join(lines)


def measure(shape: str, arguments: argparse.Namespace, results: Results) -> None:
    """The cells of a shape that are not there yet."""
    model = colibri_file(shape)
    board_file = arguments.folder / f"this-machine-{shape}.toml"
    board = calibrated(arguments.board or board_file, colibri_file(arguments.calibrate_with), model)
    with open_model(model) as file:
        work: ModelWork = model_work(file)
    work.profile = routing(arguments.folder / f"routing-{model.stem}.json", model)
    budgets, rates = GRIDS[shape]
    cells = [
        Cell(shape, budget * MIB, rate * MIB, threads)
        for threads in arguments.threads
        for budget in budgets
        for rate in (rates if budget else (0,))
    ]
    for cell in cells:
        if results.wanted(TABLE, cell.name):
            plan = cell.plan(model)
            # Others use the disk too: its speed is taken just before a run and just after.
            extent = max(layer.extent_bytes for layer in work.layers)
            before = storage_speed(model, extent, seconds=DISK_SECONDS)
            guess = predict(work, limited(board, before, cell.rate), plan, position=PROMPT + 64)
            measured = cell.measure(arguments.colibrictl, model, guess)
            after = storage_speed(model, extent, seconds=DISK_SECONDS)
            between = replace(
                before,
                read_mbps=(before.read_mbps + after.read_mbps) / 2,
                request_us=(before.request_us + after.request_us) / 2,
            )
            guess = predict(work, limited(board, between, cell.rate), plan, position=PROMPT + 64)
            found = row(cell, plan, guess, measured)
            results.put(TABLE, cell.name, {**found, "disk_mbps": [before.read_mbps, after.read_mbps]})


def main() -> int:
    """Measure the grid."""
    parser = options(__doc__ or "")
    parser.add_argument("--shape", choices=tuple(GRIDS), nargs="*", default=list(GRIDS))
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "bench", help="board files and profiles")
    parser.add_argument("--board", type=Path, help="a board file to predict with, instead of a calibration")
    parser.add_argument("--calibrate-with", choices=tuple(GRIDS), default="a", help="shape that fits into memory")
    parser.add_argument("--table", action="store_true", help="print the table of what was measured, measure nothing")
    arguments = parser.parse_args()
    results = Results(arguments.results, arguments.again)
    if not arguments.table:
        with contextlib.suppress(PermissionError):
            os.setsid()  # already a leader: the session is ours
        raise_priority()  # the disk is timed in this process
        for shape in arguments.shape:
            measure(shape, arguments, results)
    print(table(results.data["tables"].get(TABLE, {})))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (CommandError, GroupError) as problem:
        sys.exit(f"plan_grid: {problem}")
