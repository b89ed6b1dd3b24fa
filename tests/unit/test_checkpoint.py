# SPDX-License-Identifier: MIT
"""Checkpoints as rows: safetensors, shards, GGUF, and files that lie."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from colibri._spec import Code
from colibri.checkpoint import digest_of
from colibri.errors import ColibriError
from colibri.files import MAX_JSON_BYTES, load_json
from colibri.gguf_reader import Gguf
from colibri.layout import F32, to_bf16_bits
from colibri.safetensors_reader import MAX_HEADER_BYTES, Safetensors
from safetensors.numpy import save_file


def values(rows: int, columns: int) -> F32:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str, shape: list[int], first: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, end]}


# ---- safetensors ------------------------------------------------------------------------------


def test_rows_of_every_float_dtype_are_f32(tmp_path: Path) -> None:
    x = values(9, 5)
    bf16 = to_bf16_bits(x)
    parts = {"F64": x.astype("<f8"), "F32": x.astype("<f4"), "F16": x.astype("<f2"), "BF16": bf16.astype("<u2")}
    header, data = {}, b""
    for dtype, array in parts.items():
        header[dtype] = entry(dtype, [9, 5], len(data), len(data) + array.nbytes)
        data += array.tobytes()
    write_raw(tmp_path / "model.safetensors", header, data)
    with Safetensors(tmp_path) as source:
        for name in ("F64", "F32"):
            assert np.array_equal(source.rows(name, 0, 9), x)
        assert np.array_equal(source.rows("F16", 0, 9), x.astype(np.float16).astype(np.float32))
        assert np.array_equal(source.rows("BF16", 2, 7), (bf16.astype(np.uint32) << 16).view(np.float32)[2:7])
        assert all(source.rows(name, 0, 1).dtype == np.float32 for name in parts)


def test_files_of_the_safetensors_package_are_read(tmp_path: Path) -> None:
    x, vector, stack = values(6, 4), values(1, 3)[0], values(10, 4).reshape(2, 5, 4)
    save_file({"x": x, "vector": vector, "stack": stack}, tmp_path / "model.safetensors", {"format": "np"})
    with Safetensors(tmp_path) as source:
        assert source.shapes() == {"x": (6, 4), "vector": (3,), "stack": (2, 5, 4)}
        assert np.array_equal(source.rows("x", 1, 4), x[1:4])
        assert np.array_equal(source.rows("vector", 0, 1), vector[np.newaxis])
        assert np.array_equal(source.rows("stack", 2, 5, index=1), stack[1, 2:5])


def test_shards_are_one_checkpoint(tmp_path: Path) -> None:
    x, y = values(6, 4), values(3, 4)
    save_file({"x": x}, tmp_path / "a.safetensors")
    save_file({"y": y}, tmp_path / "b.safetensors")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with Safetensors(tmp_path) as source:
        assert np.array_equal(source.rows("x", 0, 6), x)
        assert np.array_equal(source.rows("y", 0, 3), y)
        assert [path.name for path in source.files()] == ["a.safetensors", "b.safetensors"]


BAD_HEADERS: dict[str, tuple[Code, Any, bytes, int | None, str]] = {
    "header longer than the file": (Code.TRUNCATED, {}, b"", 1 << 40, "header of 1099511627776 bytes in a file of"),
    "header that is not JSON": (Code.HEADER, b"{", b"", None, "not JSON"),
    "header that is a list": (Code.HEADER, [], b"", None, "does not begin with a brace"),
    "header behind a space": (Code.HEADER, b" {}", b"", None, "does not begin with a brace"),
    "header of two objects": (Code.HEADER, b"{}{}", b"", None, "not JSON"),
    "metadata that is a list": (Code.HEADER, {"__metadata__": []}, b"", None, "__metadata__ is no object of strings"),
    "metadata of numbers": (Code.HEADER, {"__metadata__": {"a": 1}}, b"", None, "__metadata__ is no object of strings"),
    "entry without a dtype": (
        Code.TENSOR, {"x": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4), None, "malformed entry",
    ),
    "entry with more": (
        Code.TENSOR, {"x": {**entry("F32", [1], 0, 4), "more": 1}}, bytes(4), None, "malformed entry of tensor x",
    ),
    "entry that is a number": (Code.TENSOR, {"x": 3}, b"", None, "malformed entry"),
    "name with half a surrogate pair": (
        Code.HEADER, {"\ud800": entry("F32", [], 0, 4)}, bytes(4), None, "has half a surrogate pair",
    ),
    "metadata with half a surrogate pair": (
        Code.HEADER, {"__metadata__": {"a": "\ud800"}}, b"", None, "has half a surrogate pair",
    ),
    "shape that is an object": (
        Code.TENSOR, {"x": {**entry("F32", [], 0, 4), "shape": {}}}, bytes(4), None, "malformed entry of tensor x",
    ),
    "shape that is a text": (
        Code.TENSOR, {"x": {**entry("F32", [], 0, 4), "shape": ""}}, bytes(4), None, "malformed entry of tensor x",
    ),
    "negative dimension": (Code.TENSOR, {"x": entry("F32", [-1, -1], 0, 4)}, bytes(4), None, "malformed entry"),
    "negative offsets": (Code.TENSOR, {"x": entry("F32", [1], -4, 0)}, bytes(4), None, "malformed entry"),
    "offsets in reverse": (Code.TENSOR, {"x": entry("F32", [1], 4, 0)}, bytes(4), None, "needs 4 bytes"),
    "boolean dimension": (Code.TENSOR, {"x": entry("F32", [True], 0, 4)}, bytes(4), None, "malformed entry"),
    "three offsets": (
        Code.TENSOR,
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, bytes(8), None, "malformed entry",
    ),
    "data behind the end": (Code.TENSOR, {"x": entry("F32", [4], 0, 16)}, bytes(12), None, "needs 16 bytes"),
    "data of another size": (Code.TENSOR, {"x": entry("F32", [4], 0, 12)}, bytes(16), None, "needs 16 bytes"),
    "a shape that lies": (
        Code.TENSOR, {"x": entry("F16", [3, 3], 0, 16)}, bytes(16), None,
        r"tensor x lies at 0\.\.16 of 16 bytes, its shape \[3, 3\] of F16 needs 18 bytes",
    ),
    "an empty tensor that has bytes": (Code.TENSOR, {"x": entry("F32", [0, 4], 0, 4)}, bytes(4), None, "needs 0 bytes"),
    "dtype that is a list": (
        Code.TENSOR, {"x": {**entry("F32", [1], 0, 4), "dtype": ["F32"]}}, bytes(4), None, "malformed entry",
    ),
    "shape of many dimensions": (Code.TENSOR, {"x": entry("F32", [1] * 9, 0, 4)}, bytes(4), None, "malformed entry"),
    "dimension beyond 63 bits": (Code.TENSOR, {"x": entry("F32", [1 << 63], 0, 4)}, bytes(4), None, "malformed entry"),
    "header nested deeply": (Code.HEADER, b'{"a":' + b"[" * 100000, b"", None, "nested too deeply"),
    "header of a million lists": (
        Code.LIMIT, b'{"a":[' + b"[]," * (1 << 20) + b"[]]}", b"", None, "1048579 lists and objects",
    ),
    "header of five million numbers": (
        Code.LIMIT, b'{"a":[' + b"1," * 5_000_000 + b"1]}", b"", None, "5000000 commas, limits",
    ),
    "name that stands twice": (
        Code.HEADER,
        b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
        b'"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        bytes(8), None, "the key 'x' stands twice",
    ),
    "tensors that overlap": (
        Code.TENSOR, {"y": entry("F32", [2], 4, 12), "x": entry("F32", [2], 0, 8)}, bytes(12), None,
        "tensor y begins at 4, inside tensor x up to 8",
    ),
    "tensors at one place": (
        Code.TENSOR, {"x": entry("F32", [2], 0, 8), "y": entry("F32", [2], 0, 8)}, bytes(8), None, "inside tensor x",
    ),
    "an empty tensor inside another": (
        Code.TENSOR, {"x": entry("F32", [2], 0, 8), "y": entry("F32", [0], 4, 4)}, bytes(8), None, "inside tensor x",
    ),
    "bytes in front of the first tensor": (
        Code.TENSOR, {"x": entry("F32", [1], 4, 8)}, bytes(8), None, r"bytes 0\.\.4 behind the header belong to no",
    ),
    "bytes between tensors": (
        Code.TENSOR, {"x": entry("F32", [1], 0, 4), "y": entry("F32", [1], 8, 12)}, bytes(12), None, r"bytes 4\.\.8 ",
    ),
    "bytes behind the last tensor": (
        Code.TENSOR, {"x": entry("F32", [1], 0, 4)}, bytes(5), None, r"bytes 4\.\.5 behind the header belong to no",
    ),
    "shape whose product is huge": (
        Code.TENSOR, {"x": entry("F32", [1 << 62, 1 << 62], 0, 0)}, b"", None, "its shape",
    ),
    "dtype that no reader knows": (
        Code.UNSUPPORTED, {"x": entry("F8_E5M2", [4], 0, 4)}, bytes(4), None, "tensor x is F8_E5M2, supported: F64, F3",
    ),
    "a name that a terminal would obey": (
        Code.TENSOR, {"\x1b[2J": 1}, b"", None, r"malformed entry of tensor \\x1b\[2J",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD_HEADERS))
def test_malformed_safetensors_are_refused(name: str, tmp_path: Path) -> None:
    code, header, data, length, message = BAD_HEADERS[name]
    write_raw(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(ColibriError, match=message) as caught:
        Safetensors(tmp_path)
    assert caught.value.code == code


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "model.safetensors", {}, b"", MAX_HEADER_BYTES + 1)
    os.truncate(path, 1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(ColibriError, match="header of 25000001 bytes, limit 25000000") as caught:
            Safetensors(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.code == Code.LIMIT


@pytest.mark.parametrize(
    ("dtype", "kind", "numbers"),
    [
        ("I8", "i1", [-128, 0, 127, 3]),
        ("U8", "u1", [0, 255, 1, 2]),
        ("I16", "<i2", [-32768, 32767, 0, 5]),
        ("I32", "<i4", [-(1 << 24), 1 << 24, 0, 7]),
        ("I64", "<i8", [-(1 << 24), 1 << 24, 0, 7]),
        ("BOOL", "u1", [0, 1, 1, 0]),
    ],
)
def test_integers_are_read_exactly(dtype: str, kind: str, numbers: list[int], tmp_path: Path) -> None:
    data = np.array(numbers, kind).tobytes()
    write_raw(tmp_path / "model.safetensors", {"x": entry(dtype, [2, 2], 0, len(data))}, data)
    with Safetensors(tmp_path) as source:
        assert source.rows("x", 0, 2).ravel().tolist() == numbers
        assert source.dtypes() == {"x": dtype}


@pytest.mark.parametrize(
    ("dtype", "kind", "number", "message"),
    [
        ("I32", "<i4", (1 << 24) + 1, "tensor x: 16777217 is beyond 16777216"),
        ("I64", "<i8", -(1 << 63), "tensor x: -9223372036854775808 is beyond"),
        ("BOOL", "u1", 2, "tensor x: a bool is stored as 2, must be 0 or 1"),
    ],
)
def test_numbers_that_f32_does_not_hold_are_refused(
    dtype: str, kind: str, number: int, message: str, tmp_path: Path
) -> None:
    data = np.array([0, number], kind).tobytes()
    write_raw(tmp_path / "model.safetensors", {"x": entry(dtype, [2], 0, len(data))}, data)
    with Safetensors(tmp_path) as source, pytest.raises(ColibriError, match=message) as caught:
        source.rows("x", 0, 1)
    assert caught.value.code == Code.WEIGHTS


def test_empty_tensors_and_scalars_have_rows(tmp_path: Path) -> None:
    header = {"none": entry("F32", [0, 3], 0, 0), "flat": entry("F32", [3, 0], 0, 0), "one": entry("F32", [], 0, 4)}
    write_raw(tmp_path / "model.safetensors", header, np.float32(2.5).tobytes())
    with Safetensors(tmp_path) as source:
        assert source.rows("none", 0, 0).shape == (0, 3)
        assert source.rows("flat", 1, 3).shape == (2, 0)
        assert source.rows("one", 0, 1).tolist() == [[2.5]]


def test_rows_that_a_tensor_does_not_have_are_not_read(tmp_path: Path) -> None:
    save_file({"x": values(3, 4).reshape(1, 3, 4), "y": values(3, 4)}, tmp_path / "model.safetensors")
    with Safetensors(tmp_path) as source:
        for first, end, index in ((0, 4, 0), (2, 1, 0), (0, 1, 1), (-1, 1, 0)):
            with pytest.raises(ColibriError, match="tensor x: rows"):
                source.rows("x", first, end, index)


def test_a_file_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    save_file({"x": values(64, 64)}, tmp_path / "model.safetensors")
    with Safetensors(tmp_path) as source:
        os.truncate(tmp_path / "model.safetensors", 1000)
        with pytest.raises(ColibriError, match="tensor x: the file became shorter while read") as caught:
            source.rows("x", 0, 64)
    assert caught.value.code == Code.IO


def test_reading_rows_of_a_large_tensor_takes_memory_for_the_rows(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "model.safetensors", {"x": entry("F32", [1 << 20, 1024], 0, 1 << 32)})
    os.truncate(path, path.stat().st_size + (1 << 32))
    with Safetensors(tmp_path) as source:
        tracemalloc.start()
        try:
            assert not source.rows("x", (1 << 20) - 64, 1 << 20).any()
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("wanted", [[0], [4, 2, 3], list(range(5))])
def test_columns_are_rows_of_the_matrix_turned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: Any) -> None:
    stack = values(14, 5).reshape(2, 7, 5)
    save_file({"stack": stack, "x": stack[0].copy(), "row": stack[0, 0].copy()}, tmp_path / "model.safetensors")
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "x")
    writer.add_tensor("stack", stack)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr("colibri.checkpoint._STRIP_ELEMENTS", 15)  # three rows, and one is left over
    with Safetensors(tmp_path) as source:
        assert np.array_equal(source.columns("x", np.array(wanted)), stack[0].T[wanted])
        assert np.array_equal(source.columns("stack", np.array(wanted), 1), stack[1].T[wanted])
        assert np.array_equal(source.columns("row", np.array(wanted)), stack[0, :1].T[wanted])
    assert np.array_equal(Gguf(tmp_path / "m.gguf").columns("stack", np.array(wanted), 1), stack[1].T[wanted])


def test_reading_columns_of_a_large_matrix_takes_memory_for_the_columns(tmp_path: Path) -> None:
    rows, columns = 4096, 4096
    header = {"x": entry("BF16", [rows, columns], 0, 2 * rows * columns)}
    write_raw(tmp_path / "model.safetensors", header)
    os.truncate(tmp_path / "model.safetensors", (tmp_path / "model.safetensors").stat().st_size + 2 * rows * columns)
    with Safetensors(tmp_path) as source:
        tracemalloc.start()
        assert source.columns("x", np.arange(0, 256)).shape == (256, rows)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 4 * 256 * rows + (20 << 20)  # the matrix is 64 MiB


def test_a_file_shorter_than_its_length_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x01\x02")
    with pytest.raises(ColibriError, match="has 2 bytes"):
        Safetensors(tmp_path)


@pytest.mark.parametrize("shard", ["../a.safetensors", "/etc/passwd", "", "..", "a\0b", "a\ud800"])
def test_an_index_cannot_name_files_elsewhere(shard: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(ColibriError, match="not a file beside it"):
        Safetensors(tmp_path)


def hub_cache(folder: Path) -> Path:
    """A checkpoint as the Hugging Face hub caches it: links to ../../blobs."""
    (folder / "blobs").mkdir(parents=True)
    snapshot = folder / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    save_file({"x": values(2, 2)}, folder / "blobs" / "abc")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    return snapshot


def test_the_cache_of_the_hub_is_read_through_its_links(tmp_path: Path) -> None:
    with Safetensors(hub_cache(tmp_path)) as source:
        assert source.shapes() == {"x": (2, 2)}


@pytest.mark.parametrize("single", [True, False])
def test_links_out_of_the_folder_are_refused(single: bool, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    (folder / "sub").mkdir(parents=True)
    save_file({"x": values(2, 2)}, tmp_path / "outside")
    name = "model.safetensors" if single else "a.safetensors"
    if not single:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": name}}))
    (folder / name).symlink_to("../outside")
    with pytest.raises(ColibriError, match=r"is a link to .*outside, out of the folder") as caught:
        Safetensors(folder)
    assert caught.value.code == Code.OPEN
    (folder / name).unlink()
    save_file({"x": values(2, 2)}, folder / "sub" / "inside")
    (folder / name).symlink_to("sub/inside")
    with Safetensors(folder) as source:
        assert source.shapes() == {"x": (2, 2)}


def test_an_index_that_is_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    (tmp_path / "index").write_text(json.dumps({"weight_map": {}}))
    (folder / "model.safetensors.index.json").symlink_to("../index")
    with pytest.raises(ColibriError, match="out of the folder"):
        Safetensors(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"x": 1}}])
def test_an_index_without_a_table_of_files_is_refused(index: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ColibriError, match="has no weight_map of file names") as caught:
        Safetensors(tmp_path)
    assert caught.value.code == Code.DIRECTORY


def test_a_tensor_in_another_shard_than_the_index_says_is_refused(tmp_path: Path) -> None:
    save_file({"x": values(2, 2)}, tmp_path / "a.safetensors")
    save_file({"y": values(2, 2)}, tmp_path / "b.safetensors")
    index = {"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ColibriError, match=r"x is in a\.safetensors, the index says b\.safetensors"):
        Safetensors(tmp_path)


def test_shards_that_miss_or_repeat_a_tensor_are_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    save_file({"x": values(2, 2)}, tmp_path / "a.safetensors")
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}))
    with pytest.raises(ColibriError, match="y is in") as caught:
        Safetensors(tmp_path)
    assert caught.value.code == Code.MISSING_TENSOR
    save_file({"x": values(2, 2)}, tmp_path / "b.safetensors")
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "z": "b.safetensors"}}))
    with pytest.raises(ColibriError, match="x is in two shards"):
        Safetensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "c.safetensors"}}))
    with pytest.raises(ColibriError, match=r"c\.safetensors: No such file") as caught:
        Safetensors(tmp_path)
    assert caught.value.code == Code.OPEN


def test_json_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ColibriError, match="No such file"):
        load_json(path)
    for text, message in (
        ("[1]", "no JSON object"),
        ("{", "not JSON"),
        ("\ufeff{}", "not JSON"),
        ('{"a":' * 100000, "nested too deeply"),
    ):
        path.write_text(text)
        with pytest.raises(ColibriError, match=message):
            load_json(path)


def test_pipes_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "pipe"}}))
    for read in (load_json, digest_of, lambda path: Safetensors(path.parent)):
        with pytest.raises(ColibriError, match="pipe is not a regular file") as caught:
            read(tmp_path / "pipe")
        assert caught.value.code == Code.OPEN


def test_a_json_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.touch()
    os.truncate(path, MAX_JSON_BYTES + 1)
    with pytest.raises(ColibriError, match="has 268435457 bytes, limit 268435456") as caught:
        load_json(path)
    assert caught.value.code == Code.LIMIT


def test_digests_are_sha256(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert digest_of(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


# ---- GGUF --------------------------------------------------------------------------------------

QUANTISED = {
    "F32": 0.0, "F16": 0.0005, "BF16": 0.004, "Q8_0": 0.005, "Q4_0": 0.1, "Q4_1": 0.1, "Q5_0": 0.05, "Q5_1": 0.05,
}  # fmt: skip


def test_gguf_rows_of_every_type_are_f32(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    x = values(7, 64)
    for name in QUANTISED:
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(name, gguf.quants.quantize(x, kind), raw_dtype=kind)
    writer.add_tensor("stack", gguf.quants.quantize(values(10, 32).reshape(2, 5, 32), gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    writer.add_tensor("vector", values(1, 6)[0])
    writer.add_name("a name")
    writer.add_uint32("count", 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    source = Gguf(path)
    for name, limit in QUANTISED.items():
        rows = source.rows(name, 0, 7)
        assert rows.dtype == np.float32
        assert np.abs(rows - x).max() <= limit * np.abs(x).max()
        assert np.array_equal(source.rows(name, 2, 5), rows[2:5])
    assert source.shapes()["Q4_0"] == (7, 64)
    assert source.shapes()["stack"] == (2, 5, 32)
    stack = values(10, 32).reshape(2, 5, 32)
    assert np.abs(source.rows("stack", 1, 4, index=1) - stack[1, 1:4]).max() < 0.02
    assert np.array_equal(source.rows("vector", 0, 1), values(1, 6))
    assert source.metadata()["general.name"] == "a name"
    assert source.value("count") == 3
    assert source.value("none") is None
    assert source.files() == [path]


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(ColibriError, match="No such file") as caught:
        Gguf(path)
    assert caught.value.code == Code.OPEN
    path.write_bytes(b"GGML" * 100)
    with pytest.raises(ColibriError, match="not a readable GGUF file") as caught:
        Gguf(path)
    assert caught.value.code == Code.BAD_MAGIC


def gguf_text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def gguf_pair(key: bytes, kind: int, data: bytes) -> bytes:
    return gguf_text(key) + struct.pack("<I", kind) + data


def gguf_tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf_file(
    pairs: bytes = b"", tensors: bytes = b"", counts: tuple[int, int] = (0, 0), data: bytes = b"", version: int = 3
) -> bytes:
    """A GGUF file of raw parts; counts of tensors and pairs."""
    front = b"GGUF" + struct.pack("<I2Q", version, *counts) + pairs + tensors
    return front + bytes(-len(front) % 32) + data


X = gguf_tensor(b"x", (4, 2), 0, 0)
BAD_GGUF: dict[str, tuple[Code, bytes, str]] = {
    "a version of the future": (Code.UNSUPPORTED, gguf_file(version=4), r"version 4, known: 2 and 3"),
    "big-endian": (Code.UNSUPPORTED, gguf_file(version=3 << 24), r"version 50331648"),
    "a count of 64 bits of tensors": (Code.LIMIT, gguf_file(counts=(1 << 63, 0)), "9223372036854775808 tensors"),
    "a count of 64 bits of pairs": (Code.LIMIT, gguf_file(counts=(0, 1 << 63)), "9223372036854775808 pairs"),
    "pairs that are not there": (Code.TRUNCATED, gguf_file(counts=(0, 5)), "bytes of a value where"),
    "a text of 2 ** 64 bytes": (
        Code.LIMIT, gguf_file(gguf_pair(b"k", 8, struct.pack("<Q", (1 << 64) - 1)), counts=(0, 1)),
        "a text of 18446744073709551615 bytes",
    ),
    "a text beyond the file": (
        Code.TRUNCATED, gguf_file(gguf_pair(b"k", 8, struct.pack("<Q", 1000)), counts=(0, 1)), "1000 bytes of a value",
    ),
    "a text that is not UTF-8": (
        Code.HEADER, gguf_file(gguf_pair(b"k", 8, gguf_text(b"\xff")), counts=(0, 1)), "not UTF-8",
    ),
    "a key that is there twice": (
        Code.HEADER, gguf_file(gguf_pair(b"k", 0, b"\1") * 2, counts=(0, 2)), "the key k is there twice",
    ),
    "a value of an unknown type": (Code.HEADER, gguf_file(gguf_pair(b"k", 13, b""), counts=(0, 1)), "of type 13"),
    "a list of lists": (
        Code.HEADER, gguf_file(gguf_pair(b"k", 9, struct.pack("<IQ", 9, 1)), counts=(0, 1)), "a list of values of type",
    ),
    "a list of 2 ** 60 numbers": (
        Code.HEADER, gguf_file(gguf_pair(b"k", 9, struct.pack("<IQ", 4, 1 << 60)), counts=(0, 1)), "a list of 11529215",
    ),
    "a list of 2 ** 60 texts": (
        Code.HEADER, gguf_file(gguf_pair(b"k", 9, struct.pack("<IQ", 8, 1 << 60)), counts=(0, 1)), "115292150460684697",
    ),
    "a list that takes too much memory": (
        Code.LIMIT, gguf_file(gguf_pair(b"k", 9, struct.pack("<IQ", 0, 5 << 20) + bytes(5 << 20)), counts=(0, 1)),
        "more than 268435456 bytes of memory",
    ),
    "an alignment of zero": (
        Code.HEADER, gguf_file(gguf_pair(b"general.alignment", 4, bytes(4)), counts=(0, 1)), "alignment is 0",
    ),
    "an alignment that is a text": (
        Code.HEADER, gguf_file(gguf_pair(b"general.alignment", 8, gguf_text(b"a")), counts=(0, 1)), "alignment is 'a'",
    ),
    "a tensor without dimensions": (
        Code.TENSOR, gguf_file(tensors=gguf_tensor(b"x", (), 0, 0), counts=(1, 0)), "x has 0 dimensions",
    ),
    "a tensor of five dimensions": (
        Code.TENSOR, gguf_file(tensors=gguf_tensor(b"x", (1,) * 5, 0, 0), counts=(1, 0)), "x has 5 dimensions",
    ),
    "a tensor without values": (
        Code.TENSOR, gguf_file(tensors=gguf_tensor(b"x", (0, 3), 2, 0), counts=(1, 0)), "x has no values",
    ),
    "a tensor behind the end": (
        Code.TENSOR, gguf_file(tensors=X, counts=(1, 0), data=bytes(31)), "tensor x of 32 bytes at 96 in a file of 127",
    ),
    "a tensor of 2 ** 252 values": (
        Code.TENSOR, gguf_file(tensors=gguf_tensor(b"x", (1 << 63,) * 4, 0, 0), counts=(1, 0)), "tensor x of",
    ),
    "a tensor between two alignments": (
        Code.TENSOR, gguf_file(tensors=gguf_tensor(b"x", (1,), 0, 8), counts=(1, 0), data=bytes(64)), "alignment 32",
    ),
    "a tensor that is there twice": (
        Code.TENSOR, gguf_file(tensors=X + X, counts=(2, 0), data=bytes(64)), "tensor x is there twice",
    ),
    "tensors that overlap": (
        Code.TENSOR, gguf_file(tensors=X + gguf_tensor(b"y", (4, 2), 0, 0), counts=(2, 0), data=bytes(64)),
        "the tensors x and y overlap",
    ),
    "a tensor of an unknown type": (
        Code.UNSUPPORTED, gguf_file(tensors=gguf_tensor(b"x", (32,), 99, 0), counts=(1, 0)), "a tensor of type 99",
    ),
    "rows that cut a block": (
        Code.TENSOR, gguf_file(tensors=gguf_tensor(b"x", (33,), 8, 0), counts=(1, 0), data=bytes(99)), "blocks of 32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD_GGUF))
def test_malformed_gguf_files_are_refused(name: str, tmp_path: Path) -> None:
    code, data, message = BAD_GGUF[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    with pytest.raises(ColibriError, match=message) as caught:
        Gguf(path)
    assert caught.value.code == code


def test_the_gguf_file_that_the_malformed_ones_differ_from_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pairs = gguf_pair(b"general.alignment", 4, struct.pack("<I", 64)) + gguf_pair(b"b", 7, b"\1")
    pairs += gguf_pair(b"n", 9, struct.pack("<IQ3h", 3, 3, -1, 0, 1)) + gguf_pair(b"d", 12, struct.pack("<d", 0.1))
    front = gguf_file(pairs, X, (1, 3 + 1))
    front += bytes(-len(front) % 64)
    path.write_bytes(front + values(2, 4).tobytes())
    source = Gguf(path)
    assert source.metadata() == {"general.alignment": 64, "b": True, "n": [-1, 0, 1], "d": 0.1}
    assert np.array_equal(source.rows("x", 0, 2), values(2, 4))
