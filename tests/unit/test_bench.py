# SPDX-License-Identifier: MIT
"""The benchmarks' rig: shapes that are what they claim, control groups, rows of results, colibrictl bench."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri._spec import DType, Role, Scope
from colibri.engine import Engine
from colibri.format import open_model
from colibri.layout import unpack
from gguf import GGUFReader

BENCH = Path(__file__).resolve().parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import cgroups  # noqa: E402
import gemv  # noqa: E402
import plot  # noqa: E402
import results  # noqa: E402
import shapes  # noqa: E402
import speed  # noqa: E402
from native_cases import program  # noqa: E402


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small shape, in a cache of its own."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return shapes.colibri_file("t", "matched")


# --------------------------------------------------------------------------- shapes


def test_a_shape_passes_verification_and_is_the_same_twice(
    trial: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with open_model(trial) as model:
        model.verify()
    assert shapes.colibri_file("t", "matched").read_bytes() == trial.read_bytes()


def test_a_shape_in_the_cache_is_not_written_again_and_older_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old = shapes.cache_folder() / "t-matched-000000000000.colibri"
    old.write_bytes(b"")
    path = shapes.colibri_file("t", "matched")
    assert not old.exists()
    path.write_bytes(b"kept")
    assert shapes.colibri_file("t", "matched").read_bytes() == b"kept"


def test_weights_have_zero_mean_and_rows_that_differ(trial: Path) -> None:
    with open_model(trial) as model:
        for tensor in model.tensors:
            if tensor.rows == 1 or tensor.layer not in (None, 0):
                continue
            data = model.tensor_bytes(tensor, 0 if tensor.scope == Scope.EXPERT else None)
            values = unpack(data, tensor.dtype, tensor.layout, tensor.rows, tensor.columns)[: tensor.rows]
            inputs = {Role.EMBEDDING: 1, Role.O: shapes.weak_inputs(tensor.columns)}.get(tensor.role, tensor.columns)
            assert abs(float(values.std()) * np.sqrt(inputs) - 1) < 0.1, tensor.name
            assert abs(float(values.mean())) < 5 * float(values.std()) / np.sqrt(values.size), tensor.name
            assert len(np.unique(values, axis=0)) == tensor.rows, tensor.name


def test_active_bytes_are_those_of_the_directory(trial: Path) -> None:
    shape = shapes.SHAPES["t"]
    with open_model(trial) as model:
        total = sum(
            tensor.size * (shape.top_k if tensor.scope == Scope.EXPERT else 1)
            for tensor in model.tensors
            if tensor.role != Role.EMBEDDING
        )
        dtypes = {tensor.role: tensor.dtype for tensor in model.tensors}
    assert shapes.active_bytes(shape, "matched") == total
    assert (dtypes[Role.HEAD], dtypes[Role.EMBEDDING], dtypes[Role.Q]) == (DType.INT8, DType.INT4, DType.INT4)


def test_tokens_spread_over_the_experts(trial: Path) -> None:
    """A common direction of the weights would send all of them to the same few."""
    rng = np.random.default_rng(3)
    with Engine(trial, lock="off") as engine, engine.session() as session:
        session.append([int(token) for token in rng.integers(0, 1003, 400)])
        for layer in range(shapes.SHAPES["t"].layers):
            counts = engine.expert_counts(layer)
            assert sum(counts) == 400 * shapes.SHAPES["t"].top_k
            assert min(counts) > 0.4 * statistics.mean(counts), counts
            assert max(counts) < 1.8 * statistics.mean(counts), counts


def test_the_peers_file_has_the_same_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shape = shapes.SHAPES["t"]
    reader = GGUFReader(shapes.gguf_file("t"))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    gate = tensors["blk.3.ffn_gate_exps.weight"]
    assert [int(n) for n in gate.shape] == [shape.hidden, shape.intermediate, shape.experts]
    assert gate.tensor_type.name == "Q4_0"
    assert tensors["output.weight"].tensor_type.name == "Q6_K"
    blocks = np.asarray(gate.data).reshape(-1, 18)
    values = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4]).astype(np.int64) - 8
    assert abs(values.mean()) < 0.02
    assert len(tensors) == 3 + 10 * shape.layers


# --------------------------------------------------------------------------- control groups


def test_groups_of_version_2_are_made_limited_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    (tmp_path / "cgroup.controllers").write_text("cpu io memory\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory io\n")
    monkeypatch.setattr(cgroups, "device_number", lambda path: "8:16")
    monkeypatch.setattr(Path, "rmdir", lambda self: None)  # a real one has no files to remove
    with cgroups.Group(memory_bytes=1 << 30, read_bytes_per_s=1 << 20, device_of="model") as group:
        folder = next(tmp_path.glob("colibri-bench-*"))
        assert (folder / "memory.max").read_text() == str(1 << 30)
        assert (folder / "io.max").read_text() == "8:16 rbps=1048576"
        (folder / "memory.peak").write_text("123456\n")
        (folder / "memory.events").write_text("low 0\noom 2\noom_kill 1\n")
        (folder / "io.stat").write_text("8:0 rbytes=1 wbytes=2\n8:16 rbytes=4096 wbytes=0\n")
        assert (group.peak_bytes(), group.oom_kills(), group.read_bytes()) == (123456, 1, 4096)


def test_groups_of_version_1_are_made_limited_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    for name in ("memory", "blkio"):
        (tmp_path / name).mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("0")
    monkeypatch.setattr(cgroups, "device_number", lambda path: "254:0")
    monkeypatch.setattr(Path, "rmdir", lambda self: None)
    with cgroups.Group(memory_bytes=1 << 29, read_bytes_per_s=1 << 30, device_of="model") as group:
        memory, io = (next((tmp_path / name).glob("colibri-bench-*")) for name in ("memory", "blkio"))
        assert (memory / "memory.limit_in_bytes").read_text() == str(1 << 29)
        assert (io / "blkio.throttle.read_bps_device").read_text() == f"254:0 {1 << 30}"
        (memory / "memory.max_usage_in_bytes").write_text("77\n")
        (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
        (io / "blkio.throttle.io_service_bytes").write_text("254:0 Read 8192\n254:0 Write 1\nTotal 8193\n")
        assert (group.peak_bytes(), group.oom_kills(), group.read_bytes()) == (77, 3, 8192)


def test_a_machine_without_a_memory_controller_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)
    with pytest.raises(cgroups.GroupError, match="no memory controller"):
        cgroups.Group(memory_bytes=1)


def test_a_limit_on_reads_needs_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "version", lambda: 2)
    with pytest.raises(cgroups.GroupError, match="device_of"):
        cgroups.Group(read_bytes_per_s=1)


# --------------------------------------------------------------------------- rows


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    results.Results(path).put("speed", "decode c", {"ours": 2.0, "peer": 1.0})
    again = results.Results(path)
    assert not again.wanted("speed", "decode c")
    assert again.wanted("speed", "decode a")
    assert results.Results(path, again=True).wanted("speed", "decode c")
    assert "| decode c | 2 | 1 |" in results.markdown(again.data)


def test_ratios_are_those_of_neighbours_and_figures_the_best() -> None:
    def sample(decode: float, prefill: float) -> dict[str, Any]:
        return {"decode": decode, "prefill": prefill, "bandwidth_bytes_per_s": 1e10, "barriers": 80, "tokens": 10}

    ours = {"matched": [sample(10, 100), sample(30, 300), sample(20, 100)]}
    peer = [{"decode": 10.0, "prefill": 50.0}, {"decode": 10.0, "prefill": 50.0}, {"decode": 20.0, "prefill": 100.0}]
    rows = speed.rows_of("t", 2, ours, peer)
    decode, prefill = rows["decode t matched, 2 threads"], rows["prefill t matched, 2 threads"]
    assert (decode["ours"], decode["peer"], decode["ratio"], decode["spread"]) == (30, 20, 1, 1)
    assert (prefill["ours"], prefill["ratio"]) == (300, 2)
    position = speed.PREFILL_TOKENS + speed.WARM_TOKENS + speed.DECODE_TOKENS["t"] // 2
    trial = shapes.SHAPES["t"]
    read = shapes.active_bytes(trial, "matched") + position * trial.layers * 2 * trial.kv_heads * trial.head_dim * 2
    assert decode["share"] == pytest.approx(read * 30 / 1e10)
    assert decode["note"] == "8 barriers per token"


# --------------------------------------------------------------------------- colibrictl bench


def bench(*arguments: str | Path) -> dict[str, Any]:
    """One run with --json."""
    command = [program("colibrictl"), "bench", *arguments, "--json", "--lock", "off"]
    result: dict[str, Any] = json.loads(run(command))
    return result


def run(command: list[str | Path]) -> str:
    """Standard output of a command that succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_committed_plot_is_what_the_script_makes_of_the_figures() -> None:
    rows = json.loads(plot.RECORDED.read_text(encoding="utf-8"))
    assert plot.PLOT.read_text(encoding="utf-8") == plot.draw(rows)
    changed = [{**row, "ratio": row["ratio"] + 0.1} for row in rows]
    assert plot.draw(changed) != plot.draw(rows)


def test_every_figure_of_the_plot_stands_in_the_document() -> None:
    document = (plot.PLOT.parent / "benchmarks.md").read_text(encoding="utf-8")
    table = [[cell.strip() for cell in line.split("|")] for line in document.splitlines() if line.startswith("| ")]
    rows = json.loads(plot.RECORDED.read_text(encoding="utf-8"))
    ratios = {cells[1]: cells[5] for cells in table if len(cells) > 6}
    assert {row["name"]: f"{row['ratio']:.2f}" for row in rows}.items() <= ratios.items()


def test_the_plot_keeps_only_rows_that_were_compared() -> None:
    row = {"goal": 2.0, "ours": 30.04, "peer": 10.0, "ratio": 3.0044, "commit": "0000000", "samples": {}}
    speeds = {"prefill c": {**row, "ratio": None}, "prefill a": row, "decode a": {**row, "goal": None}}
    kept = plot.keep({"tables": {"speed": speeds}})
    found = [(row["name"], row["goal"], row["ratio"]) for row in kept]
    assert found == [("decode a", None, 3.004), ("prefill a", 2.0, 3.004)]
    with pytest.raises(plot.PlotError, match="make bench PEER=1"):
        plot.keep({"tables": {}})


def test_the_kernel_figures_are_those_of_the_best_instruction_set() -> None:
    line = "  matmul_int4   1 token  {} {:8.2f} GB/s {:8.2f} GMAC/s"
    text = "\n".join(
        ["ref:", line.format(" memory", 1, 2), line.format(" cached", 3, 4), "avx2:", line.format(" memory", 5, 6),
         "  matmul_int4   4 tokens  cached     9.00 GB/s     9.00 GMAC/s", line.format(" cached", 7, 8), "done"]
    )  # fmt: skip
    assert gemv.parse_kernels(text) == {"isa": "avx2", "memory": 6.0, "cached": 8.0}
    with pytest.raises(gemv.BlasError, match="no int4 rows"):
        gemv.parse_kernels("avx2:\n")


def test_bench_counts_what_it_was_asked_for(trial: Path) -> None:
    result = bench(trial, "--prompt", "40", "--tokens", "30", "--rounds", "2", "--threads", "2", "--batch", "16")
    assert (result["prompt_tokens"], result["tokens"], result["threads"], result["batch_tokens"]) == (40, 30, 2, 16)
    assert result["file_bytes"] == trial.stat().st_size
    assert 0 < result["token_ms"]["best"] <= result["token_ms"]["p50"] <= result["token_ms"]["p99"]
    assert result["token_ms"]["p99"] <= result["token_ms"]["worst"]
    assert 0 < result["vmhwm_bytes"] <= result["plan_bytes"]
    assert result["barriers"] >= 30 * shapes.SHAPES["t"].layers
    assert "control_ms" not in result
    assert result["bandwidth_bytes_per_s"] == 0


def test_bench_starts_again_at_the_end_of_the_context(trial: Path) -> None:
    result = bench(trial, "--context", "16", "--prompt", "200", "--tokens", "100")
    assert (result["prompt_tokens"], result["tokens"]) == (16, 100)


def test_bench_times_work_of_a_fixed_size_and_the_memory(trial: Path) -> None:
    result = bench(trial, "--tokens", "20", "--control", "--bandwidth")
    assert 0 < result["control_ms"]["best"] <= result["control_ms"]["p99"]
    assert result["bandwidth_bytes_per_s"] > 1e8


def test_a_resident_token_faults_no_page(trial: Path) -> None:
    result = bench(trial, "--tokens", "50", "--warm", "200", "--context", "64", "--threads", "1")
    assert (result["minor_faults"], result["major_faults"]) == (0, 0)


def test_bench_prints_three_rounds(trial: Path) -> None:
    text = run([program("colibrictl"), "bench", trial, "--tokens", "5", "--lock", "off"])
    assert [line.split(":")[0] for line in text.splitlines()] == ["round 1", "round 2", "round 3"]
