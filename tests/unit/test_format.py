# SPDX-License-Identifier: MIT
"""The container: one test per rule, one code per rule, and the same code from both readers."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from colibri import _spec as spec
from colibri._spec import Code, DType, Layout, Role, Scope, Section
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.format import ModelFile, open_model
from colibri.job import Job, run_job
from colibri.layout import unpack
from colibri.recipe import load_recipe
from colibri.records import LayerRecords, Records, encode_records, parse_records, required_tensors, tensor_bytes
from colibri.writer import ModelWriter
from corpus import CASES, Case, Change, add_block, header, rules, write
from forge import CHUNK, Forge, tree
from tiny_file import everything, mixers

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"
GLOBAL = 0xFFFFFFFF


@pytest.fixture(scope="module")
def job() -> Job:
    """A model with every dtype: bf16 embedding, int4 head, f16 trunk, int8 experts, f32 norms."""
    return load_recipe(MODELS / "tiny-mixed.toml")


@pytest.fixture(scope="module")
def good(job: Job, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good file."""
    path = tmp_path_factory.mktemp("good") / "good.colibri"
    run_job(job, path, quiet=True)
    return path.read_bytes()


def python_code(path: Path) -> Code:
    """What the Python reader says of a file, OK when it is good."""
    try:
        with open_model(path) as model:
            model.verify()
    except ColibriError as error:
        return error.code
    return Code.OK


def c_code(path: Path) -> Code:
    """What the C reader says of a file, OK when it is good."""
    try:
        with Engine(path, threads=1, verify="open"):
            return Code.OK
    except ColibriError as error:
        return error.code


# ---- every rule -----------------------------------------------------------------------------


def file_of(case: Case, path: Path) -> Path:
    """The file of a case."""
    path.write_bytes(case.make())
    return path


def test_every_rule_is_broken_by_a_file_of_the_corpus() -> None:
    assert {case.rule for case in CASES} == set(rules())
    assert len({case.name for case in CASES}) == len(CASES)


def test_every_code_of_a_reader_belongs_to_a_rule() -> None:
    reader = {code for code in Code if Code.ARGUMENT < code < Code.OPEN}
    assert set(rules().values()) == reader - {Code.SNAPSHOT, Code.SNAPSHOT_OTHER}  # of another file


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_python_reader_names_the_broken_rule(case: Case, tmp_path: Path) -> None:
    assert python_code(file_of(case, tmp_path / "bad.colibri")) == case.code


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_c_reader_names_the_same_rule(case: Case, tmp_path: Path, native_library: Path) -> None:
    assert c_code(file_of(case, tmp_path / "bad.colibri")) == case.code


@pytest.mark.parametrize("make", [everything, mixers])
def test_the_files_that_the_corpus_starts_from_are_good(
    make: Callable[[], bytes], tmp_path: Path, native_library: Path
) -> None:
    path = tmp_path / "good.colibri"
    path.write_bytes(make())
    assert (python_code(path), c_code(path)) == (Code.OK, Code.OK)


@pytest.mark.parametrize("bits", [0, 0b11, 0b1011, 0b111011])
def test_both_readers_say_which_features_a_model_uses(bits: int, tmp_path: Path, native_library: Path) -> None:
    forge = Forge(mixers())
    forge.u64(16, bits)
    forge.rehash_root()
    path = tmp_path / "bits.colibri"
    path.write_bytes(forge.data)
    for reader in (open_model, Engine):
        with pytest.raises(ColibriError) as caught:
            reader(path)
        assert (caught.value.code, caught.value.offset) == (Code.FEATURE, 16)
        assert f"required features {bits:#x}, must be 0x13" in caught.value.message


def test_the_corpus_is_written_with_a_file_for_each_case(tmp_path: Path) -> None:
    assert write(tmp_path) == len(CASES)
    names = {path.stem for path in tmp_path.iterdir()}
    assert len(names) == len(CASES) + 1
    assert all(any(name.startswith(rule) for name in names) for rule in rules())


TRUNCATED = [
    (0, Code.EMPTY),
    (7, Code.TRUNCATED),
    (8, Code.TRUNCATED),
    (4095, Code.TRUNCATED),
    (4096, Code.TRUNCATED),
    (-1, Code.TRUNCATED),
    (-4096, Code.TRUNCATED),
]


@pytest.mark.parametrize(("size", "code"), TRUNCATED)
def test_truncated_files_are_told_apart_from_foreign_ones(
    size: int, code: Code, good: bytes, tmp_path: Path, native_library: Path
) -> None:
    path = tmp_path / "cut.colibri"
    path.write_bytes(good[:size])
    assert (python_code(path), c_code(path)) == (code, code)
    if 0 < size < 4096:
        path.write_bytes(b"x" + good[1:size])
        assert (python_code(path), c_code(path)) == (Code.BAD_MAGIC, Code.BAD_MAGIC)


def test_forging_nothing_gives_the_same_file(good: bytes) -> None:
    forge = Forge(good)
    forge.rehash_weights()
    forge.rehash_root()
    assert bytes(forge.data) == good


@pytest.mark.parametrize(
    "change", [header(10, "H", 7), header(24, "Q", 1 << 50 | 3), add_block(99, 1)], ids=["minor", "optional", "block"]
)
def test_optional_things_are_skipped(change: Change, tmp_path: Path, native_library: Path) -> None:
    path = file_of(Case("optional", change), tmp_path / "good.colibri")
    assert (python_code(path), c_code(path)) == (Code.OK, Code.OK)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ColibriError, match="pipe is not a regular file") as caught:
        open_model(tmp_path / "pipe")
    assert caught.value.code == Code.OPEN


def test_missing_file_cannot_be_opened(tmp_path: Path) -> None:
    assert python_code(tmp_path / "none.colibri") == Code.OPEN


def test_errors_carry_the_offset_of_what_is_wrong(good: bytes, tmp_path: Path) -> None:
    forge = Forge(good)
    at = forge.stored(Role.EXPERT_UP, 2, 4) + 5
    forge.put(at, b"\x7e")
    path = tmp_path / "bad.colibri"
    path.write_bytes(forge.data)
    with open_model(path) as model, pytest.raises(ColibriError, match="layer 2 expert 4") as caught:
        model.verify()
    assert caught.value.offset is not None
    assert caught.value.offset <= at < caught.value.offset + CHUNK


# ---- reading --------------------------------------------------------------------------------


@pytest.fixture
def model(good: bytes, tmp_path: Path) -> ModelFile:
    path = tmp_path / "good.colibri"
    path.write_bytes(good)
    return open_model(path)


def test_opening_does_not_read_the_weights(good: bytes, tmp_path: Path) -> None:
    forge = Forge(good)
    for extent in forge.extents():
        forge.put(extent.offset, b"\xff" * extent.size)
    path = tmp_path / "weights.colibri"
    path.write_bytes(forge.data)
    with open_model(path) as model:
        entry = model.tensor(Role.HEAD)
        assert entry is not None
        with pytest.raises(ColibriError, match="chunk") as caught:
            model.tensor_bytes(entry)
    assert caught.value.code == Code.CHUNK_MISMATCH


def test_a_tensor_is_verified_when_it_is_read(good: bytes, tmp_path: Path) -> None:
    forge = Forge(good)
    at = forge.stored(Role.EXPERT_DOWN, 1, 2)
    forge.data[at] ^= 1
    path = tmp_path / "bad.colibri"
    path.write_bytes(forge.data)
    with open_model(path) as model:
        entry = model.tensor(Role.EXPERT_DOWN, 1, Scope.EXPERT)
        assert entry is not None
        model.tensor_bytes(entry, expert=1)
        with pytest.raises(ColibriError, match="layer 1 expert 2"):
            model.tensor_bytes(entry, expert=2)
        assert len(model.tensor_bytes(entry, expert=2, verify=False)) == entry.size


def test_ranges_of_an_extent_are_its_bytes(model: ModelFile, good: bytes) -> None:
    extent = model.extent(None)
    whole = good[extent.offset : extent.offset + extent.size]
    for offset, size in ((0, extent.size), (1, 10), (CHUNK - 3, 6), (extent.size - 1, 1), (5, 0)):
        assert model.read_extent(extent, offset, size) == whole[offset : offset + size]
    with pytest.raises(ColibriError, match="bytes at"):
        model.read_extent(extent, extent.size, 1)


def test_hashes_are_the_tree_that_the_document_describes(model: ModelFile, good: bytes) -> None:
    for extent in model.extents:
        hashes, digest = tree(good[extent.offset : extent.offset + extent.size])
        assert good[extent.offset + extent.size :][: len(hashes)] == hashes
        assert extent.hash == digest
    for kind in (Section.TOKENIZER, Section.PROVENANCE):
        section = model.sections[kind]
        assert section.hash == tree(good[section.offset : section.offset + section.size])[1]
    page = good[:48] + bytes(32) + good[80:4096]
    parts = [good[s.offset : s.offset + s.size] for s in list(model.sections.values())[:2]]
    assert hashlib.sha256(page + parts[0] + parts[1]).digest() == model.root


def test_verification_counts_what_it_read(model: ModelFile) -> None:
    seen: list[int] = []
    report = model.verify(seen.append)
    assert seen == [extent.size for extent in model.extents]
    assert report.hashed_bytes == sum(seen) + sum(
        model.sections[kind].size for kind in (Section.TOKENIZER, Section.PROVENANCE)
    )


# ---- writing --------------------------------------------------------------------------------


def test_stored_values_are_those_of_the_job(model: ModelFile, job: Job) -> None:
    writer = ModelWriter("unused", job.records, job.precision.choose)
    for slot in writer.slots:
        entry = slot.tensor
        stored = unpack(model.tensor_bytes(entry, slot.expert), entry.dtype, entry.layout, entry.rows, entry.columns)
        values = job.rows(slot, 0, entry.rows)
        error = np.abs(stored - values).max() / np.abs(values).max()
        limit = {DType.F32: 0, DType.F16: 2**-11, DType.BF16: 2**-8, DType.INT8: 0.005, DType.INT4: 0.15}
        assert error <= limit[entry.dtype], slot.name


def test_the_same_job_gives_the_same_bytes_for_any_number_of_threads(job: Job, good: bytes, tmp_path: Path) -> None:
    for threads in (1, 3):
        run_job(job, tmp_path / "again.colibri", threads, quiet=True)
        assert (tmp_path / "again.colibri").read_bytes() == good


def test_parts_of_a_tensor_give_the_same_bytes(
    job: Job, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri.job.part_rows", lambda columns: 8)
    run_job(job, tmp_path / "parts.colibri", quiet=True)
    assert (tmp_path / "parts.colibri").read_bytes() == good


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "model.colibri"
    path.write_bytes(b"old")
    writer = ModelWriter(path, job.records, job.precision.choose)

    def interrupted() -> Iterator[bytes]:
        yield bytes(8)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), writer:
        writer.write(writer.slots[0], interrupted())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["model.colibri"]


def test_an_incomplete_write_is_an_error(job: Job, tmp_path: Path) -> None:
    writer = ModelWriter(tmp_path / "model.colibri", job.records, job.precision.choose)
    with pytest.raises(ColibriError, match="was not written"), writer:
        writer.write(writer.slots[0], bytes(writer.slots[0].tensor.size))
    assert os.listdir(tmp_path) == []


def test_tensors_out_of_order_or_of_a_wrong_size_are_refused(job: Job, tmp_path: Path) -> None:
    writer = ModelWriter(tmp_path / "model.colibri", job.records, job.precision.choose)
    first = writer.slots[0]
    with pytest.raises(ColibriError, match="out of order"), writer:
        writer.write(writer.slots[1], b"")
    with pytest.raises(ColibriError, match="shorter"), writer:
        writer.write(first, bytes(first.tensor.size - 1))
    writer = ModelWriter(tmp_path / "model.colibri", job.records, job.precision.choose)
    with pytest.raises(ColibriError, match="longer"), writer:
        writer.write(first, [bytes(first.tensor.size), b"x"])
    assert os.listdir(tmp_path) == []


def test_what_is_no_file_is_never_replaced(job: Job, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "null").symlink_to("/dev/null")
    for name in ("pipe", "folder", "null"):
        with pytest.raises(ColibriError, match=f"{name} exists and is not a regular file") as caught:
            run_job(job, tmp_path / name, quiet=True)
        assert caught.value.code == Code.ARGUMENT
    with pytest.raises(ColibriError, match="has no file name"):
        run_job(job, "", quiet=True)
    assert sorted(os.listdir(tmp_path)) == ["folder", "null", "pipe"]


@pytest.mark.parametrize("text", [b"{", b"[" * 100000])
def test_a_provenance_that_is_no_json_is_refused(
    text: bytes, model: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "section_bytes", lambda kind: text)
    with pytest.raises(ColibriError, match="provenance is not JSON") as caught:
        model.provenance()
    assert caught.value.code == Code.SECTION


def test_two_writers_of_one_file_do_not_meet(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "model.colibri"
    writers = [ModelWriter(path, job.records, job.precision.choose) for _ in range(2)]
    for writer in writers:
        writer.__enter__()
    assert len(os.listdir(tmp_path)) == 2
    for writer in writers:
        writer.__exit__(KeyboardInterrupt, None, None)
    assert os.listdir(tmp_path) == []


def test_an_interrupt_while_the_file_is_made_leaves_nothing(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(descriptor: int, size: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.ftruncate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ModelWriter(tmp_path / "model.colibri", job.records, job.precision.choose).__enter__()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(job: Job, tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match="No such file") as caught:
        run_job(job, tmp_path / "none" / "model.colibri", quiet=True)
    assert caught.value.code == Code.OPEN


# ---- records --------------------------------------------------------------------------------


def other_records() -> Records:
    """A model with the blocks that Mixtral has not."""
    base = {"norm_kind": 1, "norm_eps": 1e-6, "norm_places": 5, "residual_multiplier": 1.0}
    model = spec.ModelBlock(
        hidden=64, vocabulary=100, layers=3, context_tokens=64, position_kind=1, norm_kind=2, embedding_multiplier=1.0
    )
    rope = spec.RopeBlock(pairs=8, attention_factor=1.0, inv_freq=[0.5] * 8)
    mla = spec.MlaBlock(heads=2, kv_rank=32, nope_dim=16, rope_dim=16, value_dim=24, scale=0.25)
    conv = spec.ShortConvBlock(width=64, taps=3, bias=1)
    full = spec.AttentionBlock(
        heads=4, kv_heads=2, head_dim=16, value_dim=16, scale=0.25, qk_norm_kind=2, sinks=1, o_bias=1
    )
    moe = spec.MoeBlock(experts=4, top_k=2, intermediate=32, selection_bias=1, router_bias=1)
    shared = spec.SharedBlock(intermediate=40, gated=1, gate=1)
    layers = [
        LayerRecords(spec.LayerBlock(index=0, mixer_kind=2, ffn_kind=1, **base), mla, spec.FfnBlock(96, 0, 1, 1)),  # type: ignore[arg-type]
        LayerRecords(spec.LayerBlock(index=1, mixer_kind=3, ffn_kind=2, **base), conv, moe, shared),  # type: ignore[arg-type]
        LayerRecords(spec.LayerBlock(index=2, mixer_kind=1, ffn_kind=0, **base), full),  # type: ignore[arg-type]
    ]
    return Records(model, [rope], layers)


def test_records_survive_a_round_trip() -> None:
    records = other_records()
    data = encode_records(records)
    assert encode_records(parse_records(data)) == data
    assert [type(block).__name__ for block in parse_records(data).blocks()] == [
        type(block).__name__ for block in records.blocks()
    ]


def test_every_block_asks_for_its_tensors() -> None:
    records = other_records()

    def shapes(layer: int | None, scope: Scope = Scope.TRUNK) -> dict[str, tuple[int, int]]:
        return {r.name.lower(): (s.rows, s.columns) for r, s in required_tensors(records, scope, layer).items()}

    assert shapes(None) == {
        "embedding": (100, 64), "final_norm": (1, 64), "final_norm_bias": (1, 64), "head": (100, 64),
    }  # fmt: skip
    assert shapes(0) == {
        "pre_mixer_norm": (1, 64), "pre_ffn_norm": (1, 64), "o": (64, 48), "mla_q_b": (64, 64), "mla_kv_a": (48, 64),
        "mla_kv_a_norm": (1, 32), "mla_k_b": (32, 32), "mla_v_b": (48, 32), "ffn_gate": (96, 64),
        "ffn_gate_bias": (1, 96), "ffn_up": (96, 64), "ffn_up_bias": (1, 96), "ffn_down": (64, 96),
        "ffn_down_bias": (1, 64),
    }  # fmt: skip
    assert shapes(1) == {
        "pre_mixer_norm": (1, 64), "pre_ffn_norm": (1, 64), "conv_in": (192, 64), "conv_in_bias": (1, 192),
        "conv_weight": (3, 64), "conv_bias": (1, 64), "conv_out": (64, 64), "conv_out_bias": (1, 64),
        "shared_gate": (40, 64), "shared_up": (40, 64), "shared_down": (64, 40), "shared_router": (1, 64),
        "router": (4, 64), "router_bias": (1, 4), "router_selection_bias": (1, 4),
    }  # fmt: skip
    assert shapes(1, Scope.EXPERT) == {"expert_up": (32, 64), "expert_down": (64, 32)}
    assert shapes(2) == {
        "pre_mixer_norm": (1, 64), "pre_ffn_norm": (1, 64), "q": (64, 64), "k": (32, 64), "v": (32, 64), "o": (64, 64),
        "o_bias": (1, 64), "q_norm": (1, 64), "k_norm": (1, 32), "sinks": (1, 4),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "layout", "size"),
    [
        (DType.INT4, Layout.PANEL8, 2 * 2 * 144),
        (DType.INT8, Layout.PANEL8, 2 * 2 * 272),
        (DType.MXFP4, Layout.PANEL8, 2 * 2 * 136),
        (DType.F16, Layout.PANEL8, 16 * 64 * 2),
        (DType.BF16, Layout.PANEL8, 16 * 64 * 2),
        (DType.F32, Layout.PANEL8, 16 * 64 * 4),
        (DType.F32, Layout.ROWS, 9 * 64 * 4),
    ],
)
def test_sizes_of_odd_matrices(dtype: DType, layout: Layout, size: int) -> None:
    assert tensor_bytes(dtype, layout, 9, 33) == size
