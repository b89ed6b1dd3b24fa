# SPDX-License-Identifier: MIT
"""Decode and prefill of the bench shapes against llama.cpp, alternating in one run (make bench).

    build/venv/bin/python tests/bench/speed.py --shapes c a --threads 1 2

Both programs get the same shape, random token ids and as many threads. `matched` is what the peer
stores too (4-bit weights, a wider head); `default` has an int8 trunk. The bandwidth is what the
same number of threads reads per second, measured by colibrictl at the end of each of its runs, so
on both sides of each run of the peer; `share` is the bytes that a token reads, weights and KV cache
at the middle of the run, times its rate, divided by it. Two threads say something only when their
bandwidth is 1.7 times that of one.
"""

from __future__ import annotations

import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from isolation import evict, run
from peer import Peer, describe, wanted
from results import Results, options, spread
from shapes import RECIPES, SHAPES, active_bytes, colibri_file, gguf_file, kv_bytes

PREFILL_TOKENS = 512
WARM_TOKENS = 4
DECODE_TOKENS = {"a": 64, "b": 32, "c": 256, "t": 256}
# (measure, shape, recipe, threads) -> goal against the peer in the same run
GOALS = {
    ("decode", "a", "matched", 1): 1.6,
    ("decode", "b", "matched", 1): 1.4,
    ("decode", "c", "matched", 1): 1.8,
    ("decode", "a", "default", 1): 1.45,
    ("decode", "a", "matched", 2): 2.0,
    ("decode", "b", "matched", 2): 1.6,
    **{("prefill", name, "matched", threads): 2.0 for name in "abc" for threads in (1, 2)},
}


def measure_ours(colibrictl: Path, model: Path, threads: int, tokens: int) -> dict[str, Any]:
    """One run of colibrictl bench."""
    command = [
        str(colibrictl), "bench", str(model), "--threads", str(threads), "--prompt", str(PREFILL_TOKENS),
        "--batch", str(PREFILL_TOKENS), "--rounds", "2", "--warm", str(WARM_TOKENS), "--tokens", str(tokens),
        "--context", "1024", "--bandwidth", "--json",
    ]  # fmt: skip
    result: dict[str, Any] = json.loads(run(command))
    result["decode"] = 1e3 / result["token_ms"]["mean"]
    result["prefill"] = 1e3 * PREFILL_TOKENS / result["first_token_ms"]["best"]
    return result


def measure_peer(peer: Peer, threads: int, tokens: int) -> dict[str, float]:
    """One turn of the peer."""
    prefill = min(peer.ask(op="prefill", tokens=PREFILL_TOKENS, threads=threads)["seconds"] for _ in range(2))
    times = peer.ask(op="decode", tokens=tokens, threads=threads, warm=WARM_TOKENS)["times"]
    return {"decode": len(times) / sum(times), "prefill": PREFILL_TOKENS / prefill}


def rows_of(
    name: str, threads: int, ours: dict[str, list[dict[str, Any]]], peer: list[dict[str, float]]
) -> dict[str, dict[str, Any]]:
    """Rows by name: best of the rounds, median ratio of the pairs."""
    rows = {}
    for recipe, samples in ours.items():
        bandwidth = max(sample["bandwidth_bytes_per_s"] for sample in samples)
        for measure in ("decode", "prefill"):
            values = [sample[measure] for sample in samples]
            others = [sample[measure] for sample in peer]
            row: dict[str, Any] = {
                "goal": GOALS.get((measure, name, recipe, threads)),
                "ours": max(values),
                "peer": max(others, default=None),
                "ratio": statistics.median(a / b for a, b in zip(values, others, strict=True)) if peer else None,
                "unit": "tok/s",
                "spread": spread(values),
                "bandwidth_gb_s": bandwidth / 1e9,
                "samples": {"ours": values, "peer": others},
            }
            if measure == "decode":
                share = max(s["decode"] / s["bandwidth_bytes_per_s"] for s in samples)
                position = PREFILL_TOKENS + WARM_TOKENS + DECODE_TOKENS[name] // 2
                row["share"] = (active_bytes(SHAPES[name], recipe) + position * kv_bytes(SHAPES[name])) * share
                row["note"] = f"{samples[0]['barriers'] / samples[0]['tokens']:.0f} barriers per token"
            rows[f"{measure} {name} {recipe}, {threads} thread{'s' * (threads > 1)}"] = row
    return rows


def measure_shape(results: Results, name: str, threads: int, arguments: Any) -> None:
    """All rows of a shape with one number of threads."""
    recipes = [recipe for recipe in arguments.recipes if recipe == "matched" or name in "at"]
    wanted = [f"decode {name} {recipe}, {threads} thread{'s' * (threads > 1)}" for recipe in recipes]
    if not any(results.wanted("speed", row) for row in wanted):
        return
    models = {recipe: colibri_file(name, recipe) for recipe in recipes}
    for model in models.values():
        evict(model)  # the engine reads it as on a device that has just started, in the pages that it asks for
    ours: dict[str, list[dict[str, Any]]] = {recipe: [] for recipe in recipes}
    theirs: list[dict[str, float]] = []
    tokens = DECODE_TOKENS[name]
    with ExitStack() as stack:
        peer = None if arguments.no_peer else stack.enter_context(Peer(gguf_file(name)))
        for _ in range(arguments.rounds):
            for recipe, model in models.items():
                ours[recipe].append(measure_ours(arguments.colibrictl, model, threads, tokens))
            if peer is not None:
                theirs.append(measure_peer(peer, threads, tokens))
    for row, values in rows_of(name, threads, ours, theirs).items():
        results.put("speed", row, values)


def main() -> int:
    """Command line."""
    parser = options(__doc__ or "")
    parser.add_argument("--shapes", nargs="+", default=["c", "a", "b"], choices=sorted(SHAPES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    results = Results(arguments.results, arguments.again)
    arguments.no_peer = not wanted(arguments.no_peer)
    if not arguments.no_peer:
        results.data["peer"] = describe()
    for name in arguments.shapes:
        for threads in arguments.threads:
            measure_shape(results, name, threads, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
