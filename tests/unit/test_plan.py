# SPDX-License-Identifier: MIT
"""The memory plan of docs/format.md section 8, worked out by hand once and against the engine."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from colibri._spec import Code
from colibri.cli import main
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.plan import FileSizes, MemoryPlan, PlanOptions, buffer_bytes, plan, plan_file, up
from native_cases import program
from synthetic import REFERENCE_ONLY, SHAPES, Shape, records_of, write_model

SIZES = FileSizes(
    file_bytes=1_000_001,
    records_bytes=777,
    directory_bytes=5000,
    has_tokenizer=True,
    experts_bytes=819_200,
    slot_bytes=81_920,
)


def test_a_buffer_is_aligned_and_guarded_even_when_empty() -> None:
    assert [buffer_bytes(x) for x in (0, 1, 64, 65)] == [128, 192, 192, 256]


def test_the_rows_of_a_small_model_are_those_of_the_document() -> None:
    shape = Shape(layers=2, dense_layers=(0,), shared={"intermediate": 300})
    found = plan(records_of(shape).blocks(), SIZES, PlanOptions(10, 4, 3, 2, "f32", 1000))

    def buf(x: int) -> int:
        return up(x, 64) + 128

    # hidden 72, q and o 64, k and v 32 each, vocabulary 101, 5 experts of 88, top 2, ffn 120
    assert found.kv_bytes == 3 * 2 * (2 * buf(2 * 10 * 16 * 4))
    session = buf(4 * 104) + buf(8 * 104) + buf(4 * 2 * 4 * 2) + buf(4 * 10)
    scratch = (
        2 * buf(4 * 4 * 96) + buf(4 * 4 * 64) + buf(4 * 4 * 64) + buf(4 * 4 * 64) + 2 * buf(4 * 4 * 8)
        + buf(4 * 96) + 2 * buf(4 * 4 * 3) + 2 * buf(4 * 10) + buf(4 * 4 * 8) + 4 * buf(4 * 4 * 2) + buf(4 * 6)
        + 2 * buf(4 * 4 * 320) + buf(4 * 320) + 2 * buf(4 * 4 * 10) + buf(4 * 4 * 2 * 96)
        + buf(4 * 4 * 96)
    )  # fmt: skip
    assert found.activation_bytes == 3 * session + scratch
    assert found.table_bytes == (
        buf(16384) + 3 * buf(512) + buf(777) + buf(5000) + 2 * buf(1024) + buf(1 + 2 + 5) + buf(8 * 2 * 5)
        + buf(24 * 1000)
    )  # fmt: skip
    assert found.stack_bytes == 262144
    assert found.mapped_bytes == 1_003_520
    assert found.arena_bytes == up(found.kv_bytes + found.activation_bytes + found.table_bytes, 4096)
    own = found.mapped_bytes + found.arena_bytes + 262144
    assert found.kernel_bytes == up(own, 2_097_152) // 512 + 2_097_152
    assert found.total_bytes == own + 4194304 + found.kernel_bytes
    assert found.trunk_mapped_bytes == 1_003_520 - 819_200
    assert (found.residency, found.expert_slots, found.io_threads) == ("resident", 0, 0)
    assert (found.slots_bytes, found.io_stack_bytes) == (0, 0)
    assert found.recommended_bytes == found.total_bytes
    assert [name for name, _ in found.rows()] == [
        "trunk_mapped", "mapped", "kv", "activation", "table", "slot", "slots", "stack", "io_stack", "arena",
        "process", "kernel", "total", "recommended", "floor",
    ]  # fmt: skip


def test_streaming_adds_the_rows_of_the_document() -> None:
    shape = Shape(layers=2, dense_layers=(0,), shared={"intermediate": 300})
    blocks = list(records_of(shape).blocks())
    resident = plan(blocks, SIZES, PlanOptions(10, 4, 3, 2, "f32", 1000, "resident"))
    found = plan(blocks, SIZES, PlanOptions(10, 4, 3, 2, "f32", 1000, "stream", 3, 2))

    def buf(x: int) -> int:
        return up(x, 64) + 128

    # hidden 72, 5 experts, top 2, batch 4, 2 layers of which 1 is sparse
    more = (
        buf(4 * 2 * 96) + 2 * buf(4 * 4 * 2 * 3) + buf(16 * 5)
        + buf(4 * 96) + buf(96) + 2 * buf(4 * 3) + buf(4 * 8) + buf(4 * 2)
    )  # fmt: skip
    assert found.activation_bytes == resident.activation_bytes + more
    assert found.table_bytes == resident.table_bytes + buf(4096) + buf(64 * 3) + buf(2 * (12 * 5 + 4) + 12 * 3)
    assert (found.expert_slots, found.max_expert_slots, found.slots_bytes) == (3, 5, 3 * 81_920)
    assert found.mapped_bytes == found.trunk_mapped_bytes == 1_003_520 - 819_200
    assert (found.io_threads, found.io_stack_bytes) == (2, 2 * 262_144)
    assert found.arena_bytes == up(found.kv_bytes + found.activation_bytes + found.table_bytes, 4096) + 3 * 81_920
    own = found.mapped_bytes + found.arena_bytes + 262_144 + 2 * 262_144
    assert found.kernel_bytes == up(own, 2_097_152) // 512 + 2_097_152
    assert found.total_bytes == own + 4_194_304 + found.kernel_bytes
    assert found.recommended_bytes == resident.total_bytes
    one = plan(blocks, SIZES, PlanOptions(10, 4, 3, 2, "f32", 1000, "stream", 1, 2))
    assert found.floor_bytes == one.total_bytes < resident.total_bytes


BIG = replace(SIZES, file_bytes=100_000_001, experts_bytes=90_112_000, slot_bytes=9_011_200)


def budget_plan(budget: int, **options: object) -> MemoryPlan:
    """The plan of two sparse layers of five experts within a budget."""
    return plan(records_of(Shape(layers=2)).blocks(), BIG, PlanOptions(budget_bytes=budget, **options))  # type: ignore[arg-type]


def test_auto_is_resident_exactly_when_the_budget_holds_every_expert() -> None:
    recommended = budget_plan(0).recommended_bytes
    assert budget_plan(recommended).residency == "resident"
    assert budget_plan(recommended).total_bytes == recommended
    assert budget_plan(recommended - 1).residency == "stream"
    assert budget_plan(0).residency == "resident"


def test_streaming_takes_as_many_slots_as_the_budget_holds() -> None:
    totals = [budget_plan(0, residency="stream", expert_slots=n).total_bytes for n in range(1, 11)]
    assert totals == sorted(totals)
    for n, total in enumerate(totals, 1):
        assert budget_plan(total, residency="stream").expert_slots == n
        if n > 1:
            assert budget_plan(total - 1, residency="stream").expert_slots == n - 1
    assert budget_plan(totals[-1] * 2, residency="stream").expert_slots == 10
    assert budget_plan(0, residency="stream").expert_slots == 10
    assert budget_plan(0, residency="stream", expert_slots=99).expert_slots == 10


def test_slots_that_are_asked_for_mean_streaming() -> None:
    assert budget_plan(0, expert_slots=2).residency == "stream"
    assert budget_plan(0, expert_slots=2).expert_slots == 2
    assert budget_plan(0, residency="mapped", expert_slots=2).expert_slots == 0


def test_a_budget_below_the_floor_is_refused_with_the_number() -> None:
    floor = budget_plan(0).floor_bytes
    assert budget_plan(floor).total_bytes == floor
    assert budget_plan(floor).expert_slots == 1
    with pytest.raises(ColibriError, match=rf"the budget is {floor - 1}, the floor {floor}; lower") as caught:
        budget_plan(floor - 1)
    assert caught.value.code == Code.BUDGET
    assert caught.value.exit_code == 4


def test_a_dense_model_has_nothing_to_stream() -> None:
    sizes = replace(SIZES, experts_bytes=0, slot_bytes=0)
    blocks = list(records_of(Shape(layers=2, dense_layers=(0, 1))).blocks())
    found = plan(blocks, sizes, PlanOptions(budget_bytes=1 << 40))
    assert (found.residency, found.max_expert_slots) == ("resident", 0)
    assert found.floor_bytes == found.recommended_bytes == found.total_bytes
    with pytest.raises(ColibriError, match="the plan needs"):
        plan(blocks, sizes, PlanOptions(budget_bytes=1 << 20))


@pytest.mark.parametrize("mode", ["resident", "mapped", "mapped-guarded"])
def test_modes_that_map_the_file_need_the_same(mode: str) -> None:
    found = budget_plan(0, residency=mode)
    assert found == replace(budget_plan(0, residency="resident"), residency=mode)
    with pytest.raises(ColibriError, match="the plan needs"):
        budget_plan(found.total_bytes - 1, residency=mode)


def test_defaults_are_those_of_the_header() -> None:
    found = plan(records_of(Shape(context=4096)).blocks(), SIZES, PlanOptions())
    assert (found.context_tokens, found.batch_tokens, found.max_sessions, found.threads) == (2048, 32, 1, 4)
    assert plan(records_of(Shape(context=99)).blocks(), SIZES, PlanOptions()).context_tokens == 99


def test_a_model_without_tokenizer_needs_no_merge_scratch() -> None:
    blocks = list(records_of(Shape()).blocks())
    with_tokenizer = plan(blocks, SIZES, PlanOptions()).table_bytes
    without = plan(blocks, replace(SIZES, has_tokenizer=False), PlanOptions()).table_bytes
    assert with_tokenizer - without == 24 * 65536 + 128


@pytest.mark.parametrize(
    "options",
    [
        PlanOptions(context_tokens=129),
        PlanOptions(context_tokens=-1),
        PlanOptions(batch_tokens=513),
        PlanOptions(max_sessions=65),
        PlanOptions(threads=65),
        PlanOptions(kv="int8"),
        PlanOptions(residency="disk"),
        PlanOptions(expert_slots=524_802),
        PlanOptions(io_threads=17),
        PlanOptions(budget_bytes=-1),
        PlanOptions(budget_bytes=1 << 64),
    ],
)
def test_options_out_of_range_are_refused(options: PlanOptions) -> None:
    with pytest.raises(ColibriError) as caught:
        plan(records_of(Shape()).blocks(), SIZES, options)
    assert caught.value.code == Code.ARGUMENT


OPTIONS = (
    PlanOptions(threads=1, residency="resident"),
    PlanOptions(33, 7, 3, 3, "f32", residency="resident"),
    PlanOptions(threads=2, budget_bytes=1 << 40),
    PlanOptions(threads=1, residency="mapped", expert_slots=3),
    PlanOptions(threads=1, residency="stream"),
    PlanOptions(33, 7, 3, 3, "f32", residency="stream", expert_slots=2, io_threads=7),
    PlanOptions(threads=2, residency="stream", expert_slots=1000, io_threads=16),
    PlanOptions(threads=1, expert_slots=1),
)


def open_plan(path: Path, options: PlanOptions) -> MemoryPlan:
    """The plan by which the C engine allocates."""
    names = {field.name: getattr(options, field.name) for field in fields(options)}
    with Engine(path, lock="off", **names) as engine:
        return engine.plan()


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("name", [name for name in SHAPES if name not in REFERENCE_ONLY])
def test_the_engine_plans_the_same_bytes(tmp_path: Path, name: str) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES[name])
    with open_model(path) as file:
        for options in OPTIONS:
            assert open_plan(path, options) == plan_file(file, options)


@pytest.mark.usefixtures("native_library")
def test_the_engine_chooses_the_same_mode_and_slots_for_every_budget(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES["mixtral"])
    with open_model(path) as file:
        whole = plan_file(file, PlanOptions(threads=1))
        step = (whole.recommended_bytes - whole.floor_bytes) // 23 + 1
        budgets = list(range(whole.floor_bytes - step, whole.recommended_bytes + 2 * step, step))
        for n in (1, 2, 7, 15):
            total = plan_file(file, PlanOptions(threads=1, residency="stream", expert_slots=n)).total_bytes
            budgets += [total - 1, total, total + 1]
        for budget in budgets:
            for residency, slots in (("auto", 0), ("stream", 0), ("stream", 3), ("resident", 0)):
                options = PlanOptions(threads=1, residency=residency, expert_slots=slots, budget_bytes=budget)
                expected: object
                found: object
                try:
                    expected = plan_file(file, options)
                except ColibriError as error:
                    expected = (error.code, error.message)
                try:
                    found = open_plan(path, options)
                except ColibriError as error:
                    found = (error.code, error.message)
                assert found == expected


def info(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`colibrictl info` of the native build."""
    command: list[str | Path] = [program("colibrictl"), "info", path, "--threads", "1", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_info_prints_mode_slots_floor_and_recommended_for_a_budget(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES["mixtral"])
    with open_model(path) as file:
        floor = plan_file(file, PlanOptions(threads=1)).floor_bytes
        for more in (0, 100_000, 1 << 30):
            expected = plan_file(file, PlanOptions(threads=1, budget_bytes=floor + more))
            done = info(path, "--json", "--budget", str(floor + more))
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["plan"] == asdict(expected)
            text = info(path, "--budget", str(floor + more)).stdout
            for name in ("residency", "expert_slots", "floor_bytes", "recommended_bytes"):
                assert f"  {name:<18} {getattr(expected, name)}\n" in text


def test_info_below_the_floor_exits_with_4_and_the_number(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES["mixtral"])
    with open_model(path) as file:
        floor = plan_file(file, PlanOptions(threads=1)).floor_bytes
    done = info(path, "--budget", str(floor - 1))
    assert (done.returncode, done.stdout) == (4, "")
    assert f"the budget is {floor - 1}, the floor {floor}" in done.stderr
    assert "(error -50 budget" in done.stderr


def test_inspect_and_info_print_the_same_plan_for_every_mode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES["qwen2"])
    for arguments in (
        ("--residency", "stream", "--slots", "2", "--io-threads", "3"),
        ("--residency", "mapped-guarded", "--context", "20"),
        ("--budget", "64M", "--kv", "f32", "--batch", "5"),
    ):
        done = info(path, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        assert main(["inspect", str(path), "--json", "--threads", "1", *arguments]) == 0
        assert json.loads(capsys.readouterr().out)["plan"] == json.loads(done.stdout)["plan"]
