# SPDX-License-Identifier: MIT
"""`colibri plan`: the prediction worked out by hand, the answers of the command, and its refusals."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from colibri import predict as predicting
from colibri._spec import DType
from colibri.boards import MIB, Bandwidth, Board, BoardError, Compute, Storage, board_text, find_board, read_board
from colibri.calibrate import write_calibrated
from colibri.calibrate_machine import DecodeTimes, _read_size, fit_compute, hash_mbps, scan_mbps, storage_speed
from colibri.calibration import Profile
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.plan import MemoryPlan, PlanOptions, plan_file
from colibri.plan_command import parse_size, reserve_of, rounded
from colibri.predict import (
    LayerWork,
    Machine,
    ModelWork,
    Work,
    decode_seconds,
    layer_hits,
    model_work,
    predict,
    prompt_seconds,
    wanted,
)
from synthetic import Shape, write_model

STORAGE = Storage(100.0, 1000.0, "estimate", "a made-up disk of round figures")
RATES = {"int4": 1.0, "int8": 2.0, "f32": 0.5}
COMPUTE = Compute(RATES, {"int4": 4.0, "int8": 4.0, "f32": 0.5}, 500.0, 10.0, "estimate", "made-up round figures")
BANDWIDTH = Bandwidth((1000.0, 1600.0), "estimate", "made-up round figures")
BOARD = Board("toy", "a toy", "aarch64", 1024, (1024,), 2, (), "", BANDWIDTH, COMPUTE, {"disk": STORAGE})


def machine(threads: int = 1, **changes: object) -> Machine:
    return replace(Machine(BANDWIDTH, COMPUTE, STORAGE, 2, threads, 4), **changes)  # type: ignore[arg-type]


def layer(experts: int = 4, top_k: int = 2) -> LayerWork:
    """1 MB of int8 trunk, experts of 1 MB int4 and 2 million weights; 1 kB of KV per position."""
    return LayerWork(
        Work(1_000_000, {"int8": 1_000_000}), Work(1_000_000, {"int4": 2_000_000}), experts, top_k, 1_000_000, 1000, 0
    )


def toy(layers: int = 2, **changes: object) -> ModelWork:
    head = Work(2_000_000, {"int8": 2_000_000})
    sparse = [layer() for _ in range(layers)]
    return replace(ModelWork(sparse, head, 20_000_000, 4_000_000), **changes)  # type: ignore[arg-type]


def test_a_part_takes_the_slower_of_dram_and_arithmetic() -> None:
    # trunk: 1 ms DRAM, 0.5 ms arithmetic; experts: 2 x (1 ms DRAM, 2 ms arithmetic); head: 2 ms, 1 ms; one thread
    # has no meeting points
    found = decode_seconds(toy(1), machine(), 0, None)
    assert found.total == pytest.approx(0.001 + 2 * 0.002 + 0.002 + 1000 / 1e9, rel=1e-12)
    assert found.dram == pytest.approx(0.001 + 0.002 + 0.002 + 1000 / 1e9, rel=1e-12)
    assert found.compute == pytest.approx(0.0005 + 0.004 + 0.001, rel=1e-12)
    assert found.flash == 0
    assert found.limit == "compute"


def test_threads_share_arithmetic_and_bandwidth_and_meet() -> None:
    found = decode_seconds(toy(1), machine(2), 0, None)
    assert found.dram == pytest.approx((5_000_000 + 1000) / 1.6e9, rel=1e-12)
    assert found.compute == pytest.approx((0.0005 + 0.004 + 0.001) / 2, rel=1e-12)
    assert found.steps == pytest.approx((14 + 3) * 10e-6, rel=1e-12)


def test_the_kv_cache_is_read_up_to_the_position() -> None:
    near, far = (decode_seconds(toy(1), machine(), position, None) for position in (0, 999))
    assert far.dram - near.dram == pytest.approx(999 * 1000 / 1e9, rel=1e-9)


def test_misses_wait_for_storage_and_present_experts_are_computed_meanwhile() -> None:
    m = machine()
    # one read: 10 ms of bus, 1 ms request; two reads: 20 ms of bus
    assert m.read_seconds(1, 1_000_000) == pytest.approx(0.010 + 0.001, rel=1e-12)
    assert m.read_seconds(2, 1_000_000) == pytest.approx(0.020 + 0.001, rel=1e-12)
    assert m.read_seconds(0, 1_000_000) == 0
    dense = 0.001 + 1000 / 1e9 + 0.002  # trunk, KV, head
    none = decode_seconds(toy(1), m, 0, [1.0])
    all_of_them = decode_seconds(toy(1), m, 0, [0.0])
    half = decode_seconds(toy(1), m, 0, [0.5])
    assert none.total == pytest.approx(dense + 0.004, rel=1e-12)
    # the last expert is computed when it has come
    assert all_of_them.total == pytest.approx(dense + 0.021 + 0.002, rel=1e-12)
    assert half.total == pytest.approx(dense + 0.25 * 0.004 + 0.5 * (0.011 + 0.002) + 0.25 * 0.023, rel=1e-12)
    assert half.flash == pytest.approx(0.010, rel=1e-12)
    assert (none.limit, half.limit, all_of_them.limit) == ("compute", "flash", "flash")


def test_slow_hashes_are_the_limit_of_fast_storage() -> None:
    m = machine(storage=replace(STORAGE, read_mbps=1e6, request_us=1.0))
    # eight hashes of 2 ms on two cores
    assert predicting._finish(m, 0.0, 8, 0.0, 1_000_000) == pytest.approx(8 * 0.002 / 2, rel=1e-12)


def test_slow_requests_overlap_as_far_as_there_are_readers() -> None:
    m = machine(storage=replace(STORAGE, read_mbps=1e6, request_us=10_000.0))
    assert m.read_seconds(8, 1000) == pytest.approx(8 / 4 * 0.010 + 0.010, rel=1e-9)


def test_verifying_takes_processors_from_computing() -> None:
    # fast storage, hashes of 20 ms beside experts of 2 ms: two of them and two hashes on one core
    slow_hash = replace(COMPUTE, hash_mbps=50.0)
    m = machine(cores=1, storage=replace(STORAGE, read_mbps=1e6, request_us=1.0), compute=slow_hash)
    found = decode_seconds(toy(1), m, 0, [0.0]).total - decode_seconds(toy(1), m, 0, [1.0]).total
    assert found == pytest.approx(2 * 0.020, rel=1e-3)
    busy = machine(2, cores=1, compute=slow_hash)
    assert predicting._finish(busy, 0.05, 1, 0.01, 1_000_000) == pytest.approx(2 * 0.06 + 0.020, rel=1e-12)


def test_prompt_kernels_begin_at_four_tokens() -> None:
    assert [machine().rate("int4", tokens) for tokens in (1, 3, 4, 5)] == [1e9, 1e9, 4e9, 4e9]


@pytest.mark.parametrize(("slots", "rate"), [(0, 0.0), (1, 0.125), (4, 0.5), (8, 1.0), (9, 1.0)])
def test_without_a_profile_the_hit_rate_is_the_share_of_slots(slots: int, rate: float) -> None:
    assert layer_hits(toy(), slots) == [rate, rate]


def test_dense_layers_always_hit() -> None:
    work = toy()
    work.layers.insert(0, LayerWork())
    assert layer_hits(work, 2) == [1.0, 0.25, 0.25]
    work.profile = [[1, 1, 1, 1], [1, 1, 1, 1]]
    assert layer_hits(work, 8) == [1.0, 1.0, 1.0]


def test_a_profile_keeps_the_popular_experts() -> None:
    work = toy(profile=[[6, 2, 0, 0], [3, 2, 2, 1]])
    # chances 1 (capped at certain), 0.5, 0, 0 and 0.75, 0.5, 0.5, 0.25
    assert predicting.popularity(work) == [[1.0, 0.5, 0.0, 0.0], [0.75, 0.5, 0.5, 0.25]]
    assert layer_hits(work, 1) == pytest.approx([1 / 1.5, 0])
    assert layer_hits(work, 2) == pytest.approx([1 / 1.5, 0.75 / 2])
    assert layer_hits(work, 6) == pytest.approx([1.0, 1.0])


def test_a_profile_that_does_not_fit_the_layer_is_not_used() -> None:
    assert predicting.popularity(toy(1, profile=[[0, 0, 0, 0]])) == [[0.5] * 4]
    assert predicting.popularity(toy(1, profile=[[1, 2]])) == [[0.5] * 4]


def small_plan(**changes: object) -> MemoryPlan:
    names = dict.fromkeys(MemoryPlan.__dataclass_fields__, 0)
    plan = MemoryPlan(**{**names, "kv": "f16", "residency": "resident"})  # type: ignore[arg-type]
    settings = {"context_tokens": 600, "batch_tokens": 32, "threads": 1, "max_expert_slots": 8, **changes}
    return replace(plan, **settings)  # type: ignore[arg-type]


def test_a_batch_reads_each_expert_once() -> None:
    found = prompt_seconds(toy(1), machine(), small_plan(), 8, warm=True)
    distinct = 4 * (1 - 0.5**8)
    macs = 8 * 1e6 / 4e9 + 16 * 2e6 / 4e9 + 2e6 / 2e9
    kv = 1000 * 4.5 / 1e9
    assert found.compute == pytest.approx(macs, rel=1e-12)
    assert found.dram == pytest.approx(0.001 + kv + distinct * 0.001 + 0.002, rel=1e-12)
    assert found.total == pytest.approx(0.002 + kv + 0.008 + 0.002, rel=1e-9)


def test_a_prompt_is_cut_into_batches() -> None:
    one = prompt_seconds(toy(1), machine(), small_plan(batch_tokens=8), 8, warm=True)
    two = prompt_seconds(toy(1), machine(), small_plan(batch_tokens=8), 16, warm=True)
    head = 0.002
    assert two.total - head == pytest.approx(2 * (one.total - head) + 8 * 1000 / 1e9, rel=1e-9)


def test_a_cold_start_reads_and_verifies_what_it_touches_first() -> None:
    m = machine()
    resident = small_plan()
    warm, cold = (prompt_seconds(toy(1), m, resident, 8, warm=state) for state in (True, False))
    distinct = 4 * (1 - 0.5**8)
    assert cold.total - warm.total == pytest.approx((distinct * 1e6 + 4e6) / 500e6, rel=1e-9)
    stream = small_plan(residency="stream", expert_slots=4)
    cold = prompt_seconds(toy(1), m, stream, 8, warm=False)
    assert cold.flash == pytest.approx(distinct * 1e6 / 100e6, rel=1e-9)
    warm = prompt_seconds(toy(1), m, stream, 8, warm=True)
    assert warm.flash == pytest.approx(0.0, abs=1e-12)  # 4 slots hold the 4 experts of the only layer
    half = prompt_seconds(toy(2), m, stream, 8, warm=True)
    assert half.flash == pytest.approx(2 * distinct * 0.5 * 1e6 / 100e6, rel=1e-9)


def test_slots_fill_from_batch_to_batch() -> None:
    stream = small_plan(residency="stream", expert_slots=3, batch_tokens=1)
    found = prompt_seconds(toy(1), machine(), stream, 3, warm=False)
    # two of four experts a token; 0, then 0.5, then 0.75 (as many as there are slots) are in memory
    assert found.flash == pytest.approx(2 * (1 + 0.5 + 0.25) * 1e6 / 100e6, rel=1e-9)


def test_a_prediction_says_what_it_assumes() -> None:
    plan = small_plan(residency="stream", expert_slots=4, mapped_bytes=4_000_000)
    found = predict(toy(), BOARD, plan, position=10)
    assert (found.hit_rate, found.hit_source) == (0.5, "assumed: every expert equally likely")
    assert (found.misses_per_token, found.flash_bytes_per_token) == (2.0, 2_000_000.0)
    assert found.tokens_per_second == 1 / decode_seconds(toy(), machine(), 10, [0.5, 0.5]).total
    assert found.start_seconds == pytest.approx(0.04)
    assert list(found.first_token_cold) == [1, 32, 128, 512]
    assert list(predict(toy(), BOARD, replace(plan, context_tokens=100)).first_token_warm) == [1, 32]
    assert predict(toy(), BOARD, plan, hit=0.75).hit_source == "given"
    profile = predict(toy(profile=[[1, 0, 0, 0], [1, 1, 1, 1]]), BOARD, replace(plan, expert_slots=1))
    assert profile.hit_source == "calibration profile of the model"
    assert profile.hit_rate == pytest.approx(0.5)
    resident = predict(toy(), BOARD, small_plan())
    assert (resident.hit_rate, resident.misses_per_token) == (1.0, 0.0)


def test_a_wish_names_the_side_that_fails_and_by_how_much() -> None:
    plan = small_plan(residency="stream", expert_slots=4)
    sides = {s.name: s for s in wanted(toy(), BOARD, plan, predict(toy(), BOARD, plan), 50)}
    # 8 MB active of 0.85 x 1000 / 50 = 17 MB; 2 MB of misses of 100 / 50 = 2 MB
    assert (sides["dram"].holds, sides["dram"].needed, sides["dram"].available) == (True, 8.0, 17.0)
    assert (sides["flash"].holds, sides["flash"].needed, sides["flash"].available) == (True, 2.0, 2.0)
    assert not sides["together"].holds
    failed = {s.name: s for s in wanted(toy(), BOARD, plan, predict(toy(), BOARD, plan), 200)}
    assert failed["flash"].text.startswith("fails by 4.0x: 2 of 0.5 MB per token")
    assert failed["dram"].text.startswith("fails by 1.9x: 8 of 4.25 MB per token")


def test_a_board_without_speeds_predicts_nothing() -> None:
    with pytest.raises(BoardError, match="toy: has no"):
        predict(toy(), replace(BOARD, compute=None), small_plan())


# --------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("plan") / "m.colibri", Shape(layers=3, dense_layers=(0,), experts=8))


def test_the_work_of_a_file_is_counted_from_its_tensors(model: Path) -> None:
    with open_model(model) as file:
        work = model_work(file)
        inspected = {(t.layer, t.role.name): t for t in file.tensors}
    head = inspected[None, "HEAD"]
    assert (work.head.nbytes, work.head.macs) == (head.size, {"int8": 104 * 96})
    assert [w.experts for w in work.layers] == [0, 8, 8]
    assert work.layers[1].expert.macs == {"int4": 2 * 88 * 96 + 72 * 96}
    assert work.layers[1].trunk.macs["f32"] == 8 * 96  # the router
    assert work.layers[1].kv_row_bytes == 2 * (16 + 16) * 2
    assert work.layers[1].extent_bytes % 4096 == 0
    assert work.trunk_bytes + 16 * work.layers[1].extent_bytes == work.file_bytes
    assert {t.dtype for t in inspected.values() if t.role.name == "ROUTER"} == {DType.F32}
    assert work.profile is None


def test_the_calibration_profile_of_a_file_gives_the_hit_rate(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "calibrated.colibri"
    counts = [[8, 2, 1, 1, 1, 1, 1, 1], [2] * 8]
    with open_model(model) as file:
        write_calibrated(file, path, Profile(8, [1, 2], counts, [{}, {}]))
    with open_model(path) as file:
        assert model_work(file).profile == counts
    arguments = ("--board", "rk3588", "--residency", "stream", "--slots", "2", "--json")
    predicted = json.loads(run(capsys, path, *arguments)[1])["predicted"]
    assert predicted["hit_source"] == "calibration profile of the model"
    assert predicted["hit_rate"] == pytest.approx((1 + 0.25) / 4)
    assert json.loads(run(capsys, model, *arguments)[1])["predicted"]["hit_rate"] == 2 / 16


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = main(["plan", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_plan_prints_memory_mode_and_prediction(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, model, "--board", "rk3588", "--ram", "1.5G", "--storage", "emmc", "-c", "64")
    assert (code, err) == (0, "note: rk3588 is not sold with 1.5 GiB of RAM, but with 4, 8, 16, 32\n")
    assert run(capsys, model, "--board", "rk3588", "--ram", "8G")[2] == ""
    with open_model(model) as file:
        plan = plan_file(file, PlanOptions(context_tokens=64, threads=4))
    for part in (
        "budget 1,440.0 MiB of 1,536.0 MiB RAM; context 64, batch 32, sessions 1, threads 4",
        f"{plan.total_bytes:,}",
        "residency: resident",
        "predicted, not measured (model on emmc; the board's figures are estimate, published)",
        "first token, prompt 32 ",
    ):
        assert part in out


def test_plan_streams_within_a_budget_and_names_missing_ram(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_model(model) as file:
        plan = plan_file(file, PlanOptions(threads=4, residency="stream", expert_slots=5))
    arguments = (model, "--board", "rk3588", "--residency", "stream", "--budget", str(plan.total_bytes), "--json")
    code, out, _ = run(capsys, *arguments)
    data = json.loads(out)
    assert code == 0
    assert data["plan"]["expert_slots"] == 5
    assert data["plan"]["total_bytes"] == plan.total_bytes == data["budget_bytes"]
    assert data["predicted"]["hit_rate"] == pytest.approx(5 / 16)
    assert data["predicted"]["limit"] == "flash"
    assert data["predicted"]["relieved_by"] == "RAM"
    code, out, _ = run(capsys, *arguments[:-1])
    assert "residency: stream, 5 of 16 experts in memory" in out
    assert "for want of RAM" in out
    assert f"  5 slots, {plan.slot_bytes:,} bytes each\n" in out


def test_plan_below_the_floor_is_refused_with_the_number(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open_model(model) as file:
        floor = plan_file(file, PlanOptions(threads=4)).floor_bytes
    code, out, err = run(capsys, model, "--board", "rk3588", "--budget", str(floor - 1))
    assert (code, out) == (4, "")
    assert f"the budget is {floor - 1}, the floor {floor}; lower --context (" in err
    assert "), --batch (" in err
    assert "), --max-text (" in err
    assert f" or raise --budget to {floor}, if that much is free" in err
    assert run(capsys, model, "--board", "rk3588", "--budget", str(floor))[0] == 0


def test_want_exits_with_1_when_a_side_fails(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, model, "--board", "rk3588", "--want", "1")
    assert code == 0
    assert "1 tokens/s:" in out
    assert "answer    predicted to hold" in out
    code, out, _ = run(capsys, model, "--board", "rk3588", "--want", "1e6")
    assert code == 1
    assert "answer    fails on dram, compute, together" in out


def test_a_board_that_states_no_speeds_plans_memory_alone(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bare.toml"
    path.write_text(board_text(replace(find_board("rk3588"), bandwidth=None, compute=None, storages={})))
    code, out, _ = run(capsys, model, "--board", path)
    assert code == 0
    assert "no prediction: board rk3588 states no speeds" in out
    assert json.loads(run(capsys, model, "--board", path, "--json")[1])["predicted"] is None
    code, _, err = run(capsys, model, "--board", path, "--want", "3")
    assert (code, "--want has no answer" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give --board NAME or FILE.toml"),
        (["--board", "rk3589"], 2, "board 'rk3589' is unknown"),
        (["--board", "rk3588", "--storage", "tape"], 2, "has no storage 'tape'"),
        (["--board", "rk3588", "--ram", "40M"], 4, "for the system is nothing"),
        (["--board", "rk3588", "--ram", "1G", "--budget", "2G"], 2, "is above the RAM"),
        (["--board", "rk3588", "--position", "-1"], 2, "--position -1"),
        (["--board", "rk3588", "-c", "129"], 2, "context_tokens is 129"),
        (["--board", "rk3588", "--storage-file", "x"], 2, "--storage-file belongs to --calibrate"),
        (["--list-boards"], 2, "--list-boards stands alone"),
    ],
)
def test_questions_without_an_answer_are_refused(
    model: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out, err = run(capsys, model, *arguments)
    assert (found, out) == (code, "")
    assert message in err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--ram", "1.5X"), ("--budget", "-5"), ("--budget", "0"), ("--hit", "1.5"), ("--want", "0"), ("--want", "nan")],
)
def test_values_out_of_range_are_usage_errors(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "m", "--board", "rk3588", f"{option}={value}"])
    assert caught.value.code == 2
    assert value in capsys.readouterr().err


def test_plan_without_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys)[0] == 2
    assert run(capsys, "--calibrate", "x.toml") == (
        2, "", "colibri: invalid argument: --calibrate times a model: give MODEL, a .colibri file that fits the memory "
        "of this machine\n",
    )  # fmt: skip


def test_boards_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--list-boards")
    assert code == 0
    assert "raspberry-pi-zero-2-w" in out
    assert "DRAM 18,000 MB/s; MB/s of emmc 250, sd 80, nvme 3000" in out


@pytest.mark.parametrize(
    ("text", "size"), [("1.5G", 3 << 29), ("512M", 512 * MIB), ("4096", 4096), ("0.5K", 512), ("1T", 1 << 40)]
)
def test_sizes_have_endings(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (9108.13, "9,110"),
        (999.6, "1,000"),
        (123.4, "123"),
        (12.34, "12.3"),
        (9.996, "10.0"),
        (0.01234, "0.0123"),
        (0, "0"),
    ],
)
def test_predictions_are_shown_with_three_digits(value: float, text: str) -> None:
    assert rounded(value) == text


def test_the_system_keeps_48_mib_and_a_share() -> None:
    assert reserve_of(1536 * MIB) == 96 * MIB


# --------------------------------------------------------------------------- calibration


def test_the_fit_gives_back_the_rates_that_made_the_times() -> None:
    work, threads = toy(), 2
    rates = {"int4": 0.8, "int8": 0.8, "f32": 0.2}
    prompt_rates = {"int4": 3.0, "int8": 3.0, "f32": 0.75}
    compute = Compute(rates, prompt_rates, 500.0, 25.0, "measured", "made up")
    plan = small_plan()
    token = {
        n: decode_seconds(work, machine(n, compute=compute, cores=n), 70, None).total for n in (1, threads)
    }
    prompt = prompt_seconds(work, machine(compute=compute), plan, 64, warm=True).total
    bandwidth, found = fit_compute(work, DecodeTimes(token, prompt, 70, plan), BANDWIDTH, 500.0)
    assert bandwidth == BANDWIDTH
    assert found.decode_gmacs == pytest.approx(rates, rel=1e-3)
    assert found.prompt_gmacs == pytest.approx(prompt_rates, rel=1e-3)
    assert found.step_us == pytest.approx(25.0, rel=1e-2)


def test_decoding_that_beats_the_scan_raises_the_bandwidth() -> None:
    work, plan = toy(), small_plan()
    fast = replace(BANDWIDTH, read_mbps=(2000.0, 4000.0))
    compute = Compute(dict.fromkeys(RATES, 1e5), dict.fromkeys(RATES, 1e5), 500.0, 0.1, "measured", "made up")
    token = {n: decode_seconds(work, machine(n, bandwidth=fast, compute=compute), 70, None).total for n in (1, 2)}
    prompt = prompt_seconds(work, machine(bandwidth=fast, compute=compute), plan, 64, warm=True).total
    bandwidth, _ = fit_compute(work, DecodeTimes(token, prompt, 70, plan), BANDWIDTH, 500.0)
    assert bandwidth.read_mbps == pytest.approx((2000.0, 4000.0), rel=0.02)


def test_memory_is_scanned_with_every_number_of_threads() -> None:
    found = scan_mbps(2, 4 * MIB)
    assert len(found) == 2
    assert 0 < found[0] <= found[1] < math.inf


def test_storage_is_timed_with_reads_of_the_size_of_an_expert(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(bytes(4 * MIB))
    found = storage_speed(path, 70_000, threads=2, seconds=0.05)
    assert found.read_mbps > 0
    assert found.source.startswith("reads of 69632 bytes, 2 at a time, ")
    with pytest.raises(ColibriError, match="must be larger than one read of 8388608"):
        storage_speed(path, 8 * MIB)
    with pytest.raises(ColibriError, match="absent: No such file"):
        storage_speed(tmp_path / "absent", 4096)


@pytest.mark.usefixtures("native_library")
def test_calibrating_writes_a_board_that_plans_this_machine(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri.calibrate_machine.SCAN_BYTES", 8 * MIB)
    monkeypatch.setattr("colibri.calibrate_machine.READ_SECONDS", 0.05)
    path = tmp_path / "here.toml"
    code, out, err = run(capsys, model, "--calibrate", path)
    assert (code, out) == (0, f"{path}\n")
    assert "tokens/s with 1" in err
    board = read_board(path)
    assert board.has_speeds
    assert list(board.storages) == ["disk"]
    assert [name.name for name in tmp_path.iterdir()] == ["here.toml"]
    assert run(capsys, model, "--board", path)[0] == 0
    code, out, err = run(capsys, model, "--calibrate", model)
    assert (code, out) == (2, "")


def test_storage_is_read_in_the_size_of_the_experts_that_lie_there(model: Path, tmp_path: Path) -> None:
    with open_model(model) as file:
        size = model_work(file).layers[1].extent_bytes
    assert _read_size(model, toy()) == size != 1_000_000
    other = tmp_path / "other"
    other.write_bytes(b"no model")
    assert _read_size(other, toy()) == 1_000_000
    assert _read_size(other, toy(0)) == 3_538_944


@pytest.mark.usefixtures("native_library")
def test_hashes_are_timed_with_the_library() -> None:
    assert 1 < hash_mbps(MIB) < 1e6
