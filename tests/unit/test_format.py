# SPDX-License-Identifier: MIT
"""The container: one test per rule, one code per rule, and the same code from both readers."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
from colibri import _spec as spec
from colibri._spec import Code, DType, Layout, Role, Scope, Section, TokenizerHeader
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.format import ModelFile, open_model
from colibri.job import Job, run_job
from colibri.layout import unpack
from colibri.recipe import load_recipe
from colibri.records import LayerRecords, Records, encode_records, parse_records, required_tensors, tensor_bytes
from colibri.writer import ModelWriter
from forge import CHUNK, DIRECTORY, EXPERTS, PROVENANCE, RECORDS, TOKENIZER, TRUNK, Forge, tree

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


def field_offset(block: type, name: str) -> int:
    """Offset of a field in a block's payload."""
    return 4 * [f.name for f in fields(block)].index(name)


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


# ---- the cases ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A change to a good file and the code that both readers must give."""

    name: str
    change: Callable[[Forge], None]
    code: Code
    rehash: bool = True  # make chunk, extent and section hashes right
    reroot: bool = True


def header(at: int, layout: str, value: int) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        struct.pack_into(layout, f.data, at, value)

    return change


def entry(kind: int, at: int, layout: str, value: int) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        struct.pack_into(layout, f.data, f.section_entry(kind) + at, value)

    return change


def record(block: str, name: str, value: float, number: int = 0) -> Callable[[Forge], None]:
    cls = {
        "model": spec.ModelBlock,
        "rope": spec.RopeBlock,
        "layer": spec.LayerBlock,
        "attention": spec.AttentionBlock,
        "moe": spec.MoeBlock,
    }[block]

    def change(f: Forge) -> None:
        at = f.block(block, number) + field_offset(cls, name)
        struct.pack_into("<f" if isinstance(value, float) else "<I", f.data, at, value)

    return change


def directory(at: int, layout: str, value: int) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        struct.pack_into(layout, f.data, f.section(DIRECTORY)[0] + at, value)

    return change


def extent(number: int, at: int, layout: str, value: int) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        struct.pack_into(layout, f.data, f.extents()[number].at + at, value)

    return change


def tensor(role: Role, at: int, layout: str, value: int, layer: int = GLOBAL) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        struct.pack_into(layout, f.data, f.tensor(role, layer).at + at, value)

    return change


def weight(role: Role, at: int, value: bytes, layer: int = GLOBAL, expert: int = GLOBAL) -> Callable[[Forge], None]:
    """Bytes of a tensor's data; a negative offset counts from its end."""

    def change(f: Forge) -> None:
        where = at if at >= 0 else f.tensor(role, layer).size + at
        f.put(f.stored(role, layer, expert) + where, value)

    return change


def grow(f: Forge) -> None:
    f.data += bytes(4096)


def shrink_experts(f: Forge) -> None:
    f.u64(f.section_entry(EXPERTS) + 16, f.section(EXPERTS)[1] - 8192)


def swap_sections(f: Forge) -> None:
    one, two = f.section_entry(TOKENIZER), f.section_entry(PROVENANCE)
    f.data[one : one + 64], f.data[two : two + 64] = f.data[two : two + 64], f.data[one : one + 64]


def drop_record_block(f: Forge) -> None:
    at = f.block("attention") - 8
    f.remove(RECORDS, at, 8 + 4 * len(fields(spec.AttentionBlock)))


def add_unknown_block(flags: int) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        f.insert(RECORDS, f.block("layer") - 8, struct.pack("<HHII", 99, flags, 4, 7))

    return change


def add_rope_tables(f: Forge) -> None:
    at = f.block("rope") - 8
    size = 8 + struct.unpack_from("<I", f.data, at + 4)[0]
    for _ in range(8):
        f.insert(RECORDS, at, bytes(f.data[at : at + size]))


def add_layer(f: Forge) -> None:
    at = f.block("layer") - 8
    end = sum(f.section(RECORDS))
    f.insert(RECORDS, end, bytes(f.data[at : at + 8 + 4 * len(fields(spec.LayerBlock))]))


def cut_records(f: Forge) -> None:
    size = f.section(RECORDS)[1]
    f.remove(RECORDS, f.section(RECORDS)[0] + size - 4, 4)


def drop_tensor(f: Forge) -> None:
    f.remove(DIRECTORY, f.tensors()[-1].at, 48)
    offset = f.section(DIRECTORY)[0]
    f.u32(offset + 4, len(f.tensors()) - 1)


def extra_tensor(f: Forge) -> None:
    last = f.tensors()[-1].at
    f.insert(DIRECTORY, last + 48, bytes(f.data[last : last + 48]))
    offset = f.section(DIRECTORY)[0]
    f.u32(offset + 4, len(f.tensors()) + 1)


def tensor_of_no_layer(f: Forge) -> None:
    extra_tensor(f)
    f.u32(f.tensors()[-1].at + 4, 77)


def drop_extent(f: Forge) -> None:
    f.remove(DIRECTORY, f.extents()[-1].at, 64)
    offset = f.section(DIRECTORY)[0]
    f.u32(offset, len(f.extents()) - 1)


def gap(kind: int) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        f.data[sum(f.section(kind))] = 1

    return change


def chunk_table_padding(f: Forge) -> None:
    last = f.extents()[0]
    f.data[last.offset + last.size + 4095] = 1


def chunk_hash(f: Forge) -> None:
    first = f.extents()[0]
    f.put(first.offset + first.size, b"12")


def tensor_gap(f: Forge) -> None:
    last = f.extents()[1]
    f.data[last.offset + last.size - 1] = 1


def tensor_gap_before(role: Role) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        f.u64(f.tensor(role).at + 24, f.tensor(role).offset + 64)

    return change


def break_section(kind: int) -> Callable[[Forge], None]:
    def change(f: Forge) -> None:
        f.data[f.section(kind)[0]] ^= 1

    return change


def tokenizer(name: str, value: int) -> Callable[[Forge], None]:
    """Change a field of the tokenizer's head; its hash is right again."""

    def change(f: Forge) -> None:
        offset, size = f.section(TOKENIZER)
        f.u32(offset + field_offset(TokenizerHeader, name), value)
        f.put(f.section_entry(TOKENIZER) + 32, tree(f.data[offset : offset + size])[1])

    return change


F16_INF, F32_NAN, BF16_INF = b"\x00\x7c", b"\x00\x00\xc0\x7f", b"\x80\x7f"
E, H, R, S = Code.EXTENT, Code.HEADER, Code.RECORD, Code.SECTION
CASES = [
    # header page
    Case("magic", header(0, "<B", 0x44), Code.BAD_MAGIC),
    Case("version", header(8, "<H", 9), Code.VERSION),
    Case("header size", header(12, "<I", 8192), H),
    Case("required feature", header(16, "<Q", 1 << 40), Code.FEATURE),
    Case("file said to be longer", header(32, "<Q", 1 << 30), Code.TRUNCATED),
    Case("file said to be beyond the limit", header(32, "<Q", (1 << 62) + 4096), Code.LIMIT),
    Case("bytes behind the end", grow, H),
    Case("four sections", header(40, "<I", 4), S),
    Case("seventeen sections", header(40, "<I", 17), S),
    Case("chunk size", header(44, "<I", 4096), H),
    Case("reserved header byte", header(127, "<B", 1), H),
    Case("byte behind the section table", header(4095, "<B", 1), H),
    # section table
    Case("section of kind 0", entry(RECORDS, 0, "<I", 0), S, False, False),
    Case("section of an unknown kind", entry(EXPERTS, 0, "<I", 9), S, False, False),
    Case("sections out of order", swap_sections, S),
    Case("section flags", entry(TRUNK, 4, "<I", 1), S),
    Case("section reserved field", entry(TRUNK, 24, "<Q", 1), S),
    Case("section hash that must be zero", entry(TRUNK, 32, "<Q", 1), S, False),
    Case("section too early", entry(TRUNK, 8, "<Q", 8192), S, False),
    Case("sections with a gap", lambda f: f.u64(f.section_entry(EXPERTS) + 8, f.section(EXPERTS)[0] + 4096), S, False),
    Case("section off its alignment", entry(EXPERTS, 8, "<Q", 4097), S, False),
    Case("section that leaves the file", entry(EXPERTS, 16, "<Q", 1 << 40), S, False),
    Case("section whose end wraps", entry(EXPERTS, 16, "<Q", (1 << 62) - 4096), S, False),
    Case("provenance beyond its limit", entry(PROVENANCE, 16, "<Q", (1 << 20) + 1), Code.LIMIT, False),
    Case("records beyond their limit", entry(RECORDS, 16, "<Q", (1 << 24) + 1), Code.LIMIT, False, False),
    Case("no provenance", entry(PROVENANCE, 0, "<I", 5), S, False),
    Case("file longer than its sections", shrink_experts, S, False),
    # root
    Case("root hash", header(48, "<B", 0x55), Code.ROOT_MISMATCH, True, False),
    Case("optional features under an old root", header(24, "<Q", 1), Code.ROOT_MISMATCH, True, False),
    Case("records under an old root", record("model", "hidden", 81), Code.ROOT_MISMATCH, True, False),
    Case("directory under an old root", directory(8, "<Q", 1), Code.ROOT_MISMATCH, True, False),
    # records
    Case("unknown required block", add_unknown_block(0), R),
    Case("unknown block flags", add_unknown_block(3), R),
    Case("records cut", cut_records, R),
    Case("attention block missing", drop_record_block, R),
    Case("block behind the last layer", add_layer, R),
    Case("nine rope tables", add_rope_tables, Code.LIMIT),
    Case("family", record("model", "family", 1000), R),
    Case("hidden 0", record("model", "hidden", 0), R),
    Case("hidden beyond its limit", record("model", "hidden", 65537), Code.LIMIT),
    Case("vocabulary beyond its limit", record("model", "vocabulary", 1 << 31), Code.LIMIT),
    Case("layers beyond their limit", record("model", "layers", 513), Code.LIMIT),
    Case("one layer more than there are", record("model", "layers", 4), R),
    Case("one layer less than there are", record("model", "layers", 2), R),
    Case("context beyond its limit", record("model", "context_tokens", (1 << 20) + 1), Code.LIMIT),
    Case("boolean 2", record("model", "tied_head", 2), R),
    Case("norm eps not a number", record("model", "norm_eps", math.nan), R),
    Case("multiplier infinite", record("model", "embedding_multiplier", math.inf), R),
    Case("model reserved field", record("model", "reserved", 1), R),
    Case("rope style", record("rope", "style", 2), R),
    Case("rope pairs that are not there", record("rope", "pairs", 13), R),
    Case("inv_freq not a number", lambda f: f.put(f.block("rope") + 16, F32_NAN), R),
    Case("inv_freq above 1", lambda f: f.put(f.block("rope") + 16, struct.pack("<f", 1.5)), R),
    Case("layer index", record("layer", "index", 5, 1), R),
    Case("mixer kind", record("layer", "mixer_kind", 6), R),
    Case("norm places", record("layer", "norm_places", 16), R),
    Case("heads no multiple of KV heads", record("attention", "kv_heads", 3), R),
    Case("heads beyond their limit", record("attention", "heads", 513), Code.LIMIT),
    Case("rope table that is not there", record("attention", "rope_table", 1), R),
    Case("rope wider than the head", record("attention", "head_dim", 22), R),
    Case("top_k above experts", record("moe", "top_k", 6), R),
    Case("top_k 0", record("moe", "top_k", 0), R),
    Case("top_k beyond its limit", record("moe", "top_k", 33), Code.LIMIT),
    Case("experts beyond their limit", record("moe", "experts", 1025), Code.LIMIT),
    Case("groups that do not divide", record("moe", "groups", 2), R),
    Case("more groups chosen than there are", record("moe", "groups_chosen", 1), R),
    Case("activation", record("moe", "activation", 6), R),
    Case("a mixer without a reader", record("layer", "mixer_kind", 4), Code.UNSUPPORTED),
    # directory
    Case("tensors beyond their limit", directory(4, "<I", 65537), Code.LIMIT, False),
    Case("extents beyond their limit", directory(0, "<I", 524802), Code.LIMIT, False),
    Case("directory reserved field", directory(8, "<Q", 1), Code.DIRECTORY),
    Case("directory size", directory(4, "<I", 10), Code.DIRECTORY, False),
    Case("extent kind", extent(0, 0, "<I", 2), E),
    Case("extent layer", extent(1, 4, "<I", 1), E),
    Case("extent expert", extent(6, 8, "<I", 0), E),
    Case("extent reserved field", extent(1, 12, "<I", 1), E),
    Case("extents that overlap", extent(2, 16, "<Q", 65536), E, False),
    Case("extents with a gap", lambda f: f.u64(f.extents()[2].at + 16, f.extents()[2].offset + 4096), E, False),
    Case("extent size no multiple", extent(1, 24, "<Q", 4097), E, False),
    Case("extent that leaves its section", extent(1, 24, "<Q", 1 << 40), E, False),
    Case("extent whose end wraps", extent(1, 24, "<Q", (1 << 64) - 4096), E, False),
    Case("extent missing", drop_extent, E, False),
    Case("experts of different sizes", extent(5, 24, "<Q", 4096), E, False),
    Case("role unknown", tensor(Role.HEAD, 0, "<I", 6), Code.TENSOR),
    Case("role beyond all ids", tensor(Role.HEAD, 0, "<I", 0xFFFFFFFF), Code.TENSOR),
    Case("role twice", tensor(Role.HEAD, 0, "<I", Role.EMBEDDING), Code.TENSOR),
    Case("tensor layer", tensor(Role.Q, 4, "<I", 2, 0), Code.MISSING_TENSOR),
    Case("dtype unknown", tensor(Role.HEAD, 8, "<I", 6), Code.TENSOR),
    Case("norm in f16", tensor(Role.FINAL_NORM, 8, "<I", DType.F16), Code.TENSOR),
    Case("matrix in rows", tensor(Role.HEAD, 12, "<I", Layout.ROWS), Code.TENSOR),
    Case("rows", tensor(Role.HEAD, 16, "<I", 330), Code.TENSOR),
    Case("columns", tensor(Role.HEAD, 20, "<I", 96), Code.TENSOR),
    Case("tensors that overlap", tensor(Role.HEAD, 24, "<Q", 0), Code.TENSOR),
    Case("tensors with a gap", tensor_gap_before(Role.HEAD), Code.TENSOR),
    Case("tensor offset wraps", tensor(Role.HEAD, 24, "<Q", (1 << 64) - 64), Code.TENSOR),
    Case("tensor size", tensor(Role.HEAD, 32, "<Q", 64), Code.TENSOR),
    Case("scope", tensor(Role.HEAD, 40, "<I", 2), Code.MISSING_TENSOR),
    Case("tensor reserved field", tensor(Role.HEAD, 44, "<I", 1), Code.TENSOR),
    Case("tensor missing", drop_tensor, Code.MISSING_TENSOR),
    Case("tensor too many", extra_tensor, Code.TENSOR),
    Case("tensor of a layer that is not there", tensor_of_no_layer, Code.TENSOR),
    # padding and hashes
    Case("padding behind the records", gap(RECORDS), Code.PADDING),
    Case("padding behind the provenance", gap(PROVENANCE), Code.PADDING),
    Case("tokenizer under an old hash", break_section(TOKENIZER), Code.CHUNK_MISMATCH, False),
    Case("provenance under an old hash", break_section(PROVENANCE), Code.CHUNK_MISMATCH, False),
    Case("weights under an old hash", weight(Role.EMBEDDING, 70000, b"\x01\x02"), Code.CHUNK_MISMATCH, False),
    Case("expert under an old hash", weight(Role.EXPERT_UP, 5, b"\x7e", 2, 4), Code.CHUNK_MISMATCH, False),
    Case("chunk hash", chunk_hash, Code.CHUNK_MISMATCH, False),
    Case("extent hash", extent(3, 32, "<Q", 1), Code.CHUNK_MISMATCH, False),
    Case("padding of a chunk table", chunk_table_padding, Code.PADDING),
    # weights
    Case("int4 scale infinite", weight(Role.HEAD, 128, F16_INF), Code.WEIGHTS),
    Case("int8 scale infinite", weight(Role.EXPERT_GATE, 256 + 14, F16_INF, 1, 3), Code.WEIGHTS),
    Case("last int8 scale infinite", weight(Role.EXPERT_DOWN, -2, F16_INF, 2, 4), Code.WEIGHTS),
    Case("f16 weight infinite", weight(Role.Q, 10, F16_INF, 0), Code.WEIGHTS),
    Case("bf16 weight infinite", weight(Role.EMBEDDING, 20, BF16_INF), Code.WEIGHTS),
    Case("f32 norm not a number", weight(Role.FINAL_NORM, 4, F32_NAN), Code.WEIGHTS),
    Case("padded f32 column", weight(Role.FINAL_NORM, 80 * 4, b"\x01"), Code.PADDING),
    Case("padded f16 column", weight(Role.Q, 80 * 16 + 3, b"\x01", 0), Code.PADDING),
    Case("padded bf16 row", weight(Role.EMBEDDING, -96 * 16 + 6, b"\x01"), Code.PADDING),
    Case("padded int4 column", weight(Role.HEAD, 2 * 144 + 3, b"\x08"), Code.PADDING),
    Case("padded int4 row", weight(Role.HEAD, -3 * 144 + 4 * 3, b"\x98"), Code.PADDING),
    Case("scale of a padded int4 row", weight(Role.HEAD, -2, b"\x01"), Code.PADDING),
    Case("padded int8 column", weight(Role.EXPERT_GATE, 2 * 272 + 32 * 4 + 1, b"\x01", 0, 0), Code.PADDING),
    Case("padded int8 row", weight(Role.ROUTER, 4 * 5, b"\x01", 0), Code.PADDING),
    Case("bytes behind the last tensor", tensor_gap, Code.PADDING),
    # tokenizer
    Case("unknown tokenizer kind", tokenizer("kind", 99), Code.TOKENIZER),
    Case("unknown tokenizer flags", tokenizer("flags", 1 << 31), Code.TOKENIZER),
    Case("tokens beyond the limit", tokenizer("tokens", 0xFFFFFFF0), Code.LIMIT),
    Case("tokens beyond the vocabulary", tokenizer("tokens", 332), Code.TOKENIZER),
    Case("normalizer that is not built in", tokenizer("normalizer", 1), Code.UNSUPPORTED),
]


def forged(case: Case, good: bytes, path: Path) -> Path:
    """The file of a case."""
    forge = Forge(good)
    case.change(forge)
    if case.rehash:
        forge.rehash_weights()
    if case.reroot:
        forge.rehash_root()
    path.write_bytes(forge.data)
    return path


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_python_reader_names_the_broken_rule(case: Case, good: bytes, tmp_path: Path) -> None:
    assert python_code(forged(case, good, tmp_path / "bad.colibri")) == case.code


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_c_reader_names_the_same_rule(case: Case, good: bytes, tmp_path: Path, native_library: Path) -> None:
    assert c_code(forged(case, good, tmp_path / "bad.colibri")) == case.code


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
    "change", [header(10, "<H", 7), header(24, "<Q", 1 << 50), add_unknown_block(1)], ids=["minor", "optional", "block"]
)
def test_optional_things_are_skipped(
    change: Callable[[Forge], None], good: bytes, tmp_path: Path, native_library: Path
) -> None:
    path = forged(Case("optional", change, Code.OK), good, tmp_path / "good.colibri")
    assert (python_code(path), c_code(path)) == (Code.OK, Code.OK)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ColibriError, match="pipe is not a regular file") as caught:
        open_model(tmp_path / "pipe")
    assert caught.value.code == Code.OPEN


def test_missing_file_cannot_be_opened(tmp_path: Path) -> None:
    assert python_code(tmp_path / "none.colibri") == Code.OPEN


def test_errors_carry_the_offset_of_what_is_wrong(good: bytes, tmp_path: Path) -> None:
    case = Case("", weight(Role.EXPERT_UP, 5, b"\x7e", 2, 4), Code.CHUNK_MISMATCH, False)
    path = forged(case, good, tmp_path / "bad.colibri")
    at = Forge(good).stored(Role.EXPERT_UP, 2, 4) + 5
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
