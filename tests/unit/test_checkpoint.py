# SPDX-License-Identifier: MIT
"""Checkpoints as rows: safetensors, shards, GGUF, and files that lie."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from colibri._spec import Code
from colibri.checkpoint import Safetensors, digest_of
from colibri.errors import ColibriError
from colibri.files import MAX_JSON_BYTES, load_json
from colibri.gguf_reader import Gguf
from colibri.layout import F32, to_bf16_bits
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


BAD_HEADERS: dict[str, tuple[Any, bytes, int | None, str]] = {
    "header longer than the file": ({}, b"", 1 << 40, "header of 1099511627776 bytes"),
    "header that is not JSON": (b"{", b"", None, "not JSON"),
    "header that is a list": ([], b"", None, "no JSON object"),
    "entry without a dtype": ({"x": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4), None, "malformed entry"),
    "entry that is a number": ({"x": 3}, b"", None, "malformed entry"),
    "negative dimension": ({"x": entry("F32", [-1, -1], 0, 4)}, bytes(4), None, "malformed entry"),
    "boolean dimension": ({"x": entry("F32", [True], 0, 4)}, bytes(4), None, "malformed entry"),
    "three offsets": (
        {"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}, bytes(8), None, "malformed entry",
    ),
    "data behind the end": ({"x": entry("F32", [4], 0, 16)}, bytes(12), None, "needs 16 bytes"),
    "data of another size": ({"x": entry("F32", [4], 0, 12)}, bytes(16), None, "needs 16 bytes"),
    "dtype that is a list": ({"x": {**entry("F32", [1], 0, 4), "dtype": ["F32"]}}, bytes(4), None, "malformed entry"),
    "shape of many dimensions": ({"x": entry("F32", [1] * 9, 0, 4)}, bytes(4), None, "malformed entry"),
    "dimension beyond 63 bits": ({"x": entry("F32", [1 << 63], 0, 4)}, bytes(4), None, "malformed entry"),
    "header nested deeply": (b"[" * 100000, b"", None, "nested too deeply"),
    "name that stands twice": (
        b'{"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, '
        b'"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        bytes(8), None, "the key 'x' stands twice",
    ),
    "tensors that overlap": (
        {"y": entry("F32", [2], 4, 12), "x": entry("F32", [2], 0, 8)}, bytes(12), None,
        "tensor y begins at 4, inside tensor x up to 8",
    ),
    "tensors at one place": (
        {"x": entry("F32", [2], 0, 8), "y": entry("F32", [2], 0, 8)}, bytes(8), None, "inside tensor x",
    ),
    "shape whose product is huge": ({"x": entry("F32", [1 << 62, 1 << 62], 0, 0)}, b"", None, "its shape needs"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(BAD_HEADERS))
def test_malformed_safetensors_are_refused(name: str, tmp_path: Path) -> None:
    header, data, length, message = BAD_HEADERS[name]
    write_raw(tmp_path / "model.safetensors", header, data, length)
    with pytest.raises(ColibriError, match=message) as caught:
        Safetensors(tmp_path)
    assert caught.value.code == Code.ARGUMENT


def test_integer_tensors_are_refused_by_name(tmp_path: Path) -> None:
    write_raw(tmp_path / "model.safetensors", {"x": entry("I8", [4], 0, 4)}, bytes(4))
    with pytest.raises(ColibriError, match="tensor x is I8, supported: F32, F16, BF16, F64") as caught:
        Safetensors(tmp_path)
    assert caught.value.code == Code.UNSUPPORTED


def test_a_file_shorter_than_its_length_field_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\x01\x02")
    with pytest.raises(ColibriError, match="has 2 bytes"):
        Safetensors(tmp_path)


@pytest.mark.parametrize("shard", ["../a.safetensors", "/etc/passwd", "", "..", "a\0b", "a\ud800"])
def test_an_index_cannot_name_files_elsewhere(shard: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(ColibriError, match="not a file beside it"):
        Safetensors(tmp_path)


def test_shards_that_miss_or_repeat_a_tensor_are_refused(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    save_file({"x": values(2, 2)}, tmp_path / "a.safetensors")
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}))
    with pytest.raises(ColibriError, match="y is in") as caught:
        Safetensors(tmp_path)
    assert caught.value.code == Code.MISSING_TENSOR
    save_file({"x": values(2, 2)}, tmp_path / "b.safetensors")
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    with pytest.raises(ColibriError, match="x is in two shards"):
        Safetensors(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "c.safetensors"}}))
    with pytest.raises(ColibriError, match=r"c\.safetensors: No such file") as caught:
        Safetensors(tmp_path)
    assert caught.value.code == Code.OPEN


def test_a_folder_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match=r"neither model\.safetensors nor"):
        Safetensors(tmp_path)


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
    assert caught.value.code == Code.ARGUMENT
