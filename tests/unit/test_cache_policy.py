# SPDX-License-Identifier: MIT
"""The expert cache: the C code hits exactly what its simulation hits, and keeps what the policy promises."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from colibri.engine import Engine
from colibri.traces import Draws, Trace, record, synthetic, write_trace
from native_cases import assert_passes, run_native
from synthetic import Shape, write_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from cache_policy import Learned, Lru, Opt, Pinned, Policy

TRACES = [
    synthetic("uniform", 5, 16, 3, 40),
    synthetic("zipf", 6, 32, 4, 40, exponent=1.0),
    synthetic("local", 3, 24, 4, 60, exponent=0.5, repeat_percent=50, seed=3),
    synthetic("topics", 4, 40, 6, 50, exponent=0.9, repeat_percent=20, topic_tokens=20, seed=4),
    synthetic("one layer", 1, 20, 2, 120, exponent=0.7, seed=5),
    synthetic("two experts", 7, 2, 1, 100, seed=6),
]


def engine_hits(trace: Trace, slots: int, folder: Path) -> int:
    """Hits of the C code."""
    path = folder / "trace"
    write_trace(path, trace)
    done = run_native("test_cache", "--trace", path, str(slots))
    assert done.returncode == 0, done.stdout
    hits, _, _, needs = done.stdout.split()
    assert int(needs) == trace.needs
    return int(hits)


def batches(trace: Trace, seed: int) -> Trace:
    """Some steps of several tokens: their needs together."""
    draws = Draws(seed)
    steps, at = [], 0
    while at < len(trace.steps):
        count = 1 + draws.below(2) * draws.below(9)
        parts = trace.steps[at : at + count]
        steps.append([sorted({e for part in parts for e in part[layer]}) for layer in range(trace.layers)])
        at += count
    return Trace(trace.name, trace.layers, trace.experts, trace.top_k, steps)


@pytest.mark.parametrize("trace", TRACES, ids=lambda trace: trace.name.replace(" ", "-"))
@pytest.mark.parametrize("batched", [False, True], ids=["tokens", "batches"])
def test_the_engine_hits_what_the_simulation_hits(trace: Trace, batched: bool, tmp_path: Path) -> None:
    if batched:
        trace = batches(trace, 9)
    experts = trace.layers * trace.experts
    for slots in sorted({1, trace.top_k, experts // 10 + 1, experts // 4 + 1, experts // 2, experts - 1, experts}):
        assert engine_hits(trace, slots, tmp_path) == Learned(trace, slots).play(trace), slots


def test_recorded_routing_is_replayed_alike(tmp_path: Path, native_library: Path) -> None:
    model = write_model(tmp_path / "model.colibri", Shape(layers=4, experts=12, top_k=3, dense_layers=(1,)))
    with Engine(model, batch_tokens=8) as engine:
        prompts = [[(i * 7 + j) % 101 for i in range(20)] for j in (1, 2)]
        trace = record(engine, "recorded", prompts, 30, 8)
        assert record(engine, "recorded", prompts, 30, 8) == trace
    assert (trace.layers, trace.experts, trace.top_k, len(trace.steps)) == (3, 12, 3, 2 * (3 + 30))
    assert all(len(ids) == 3 for ids in trace.steps[-1])
    for slots in (5, 12, 20):
        assert engine_hits(trace, slots, tmp_path) == Learned(trace, slots).play(trace)


def test_slots_for_all_miss_each_expert_once(tmp_path: Path) -> None:
    for trace in TRACES:
        seen = {(layer, e) for step in trace.steps for layer, ids in enumerate(step) for e in ids}
        assert engine_hits(trace, trace.layers * trace.experts, tmp_path) == trace.needs - len(seen)


def test_no_policy_beats_the_one_that_knows_the_future() -> None:
    policies: list[type[Policy]] = [Lru, Pinned, Learned]
    for trace in TRACES:
        for slots in (trace.top_k + 1, trace.layers * trace.experts // 3):
            best = Opt(trace, slots).play(trace)
            assert all(policy(trace, slots).play(trace) <= best for policy in policies)


def test_fewer_slots_than_a_token_needs_are_no_cliff(tmp_path: Path) -> None:
    """LRU throws out what is needed next and hits little or nothing; what fits evenly is the least we want."""
    for trace in TRACES[:4]:
        slots = trace.layers * trace.top_k * 3 // 4
        fair = slots * trace.needs // (trace.layers * trace.experts)
        hits = engine_hits(trace, slots, tmp_path)
        assert hits > fair * 3 // 4
        assert hits > 2 * Lru(trace, slots).play(trace)


def test_more_slots_never_cost_many_hits(tmp_path: Path) -> None:
    for trace in TRACES[:4]:
        experts = trace.layers * trace.experts
        hits = [engine_hits(trace, slots, tmp_path) for slots in range(trace.top_k, experts + 1, max(1, experts // 12))]
        assert all(after >= before - trace.needs // 50 for before, after in pairwise(hits))


def test_the_native_tests_pass() -> None:
    assert_passes("test_cache")
