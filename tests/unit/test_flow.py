# SPDX-License-Identifier: MIT
"""`colibri_quantize` and `colibri_pack`: the same weights as in one step, and what is refused between them."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri._spec import DType, Role, Scope
from colibri.cli import main
from colibri.flow import FORMAT, pack_main, quantize_main
from colibri.format import ModelFile, open_model
from safetensors import safe_open
from safetensors.numpy import save_file
from test_convert import CONFIG, checkpoint, mixtral_weights
from test_tokenizer import huggingface


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A Mixtral checkpoint of two layers of three experts."""
    return checkpoint(tmp_path / "hf")


def quantize(source: Path, output: Path, *options: str) -> int:
    return main(["quantize", "--input", str(source), "--output", str(output), *options])


def pack(weights: Path, source: Path, output: Path, *options: str) -> int:
    files = ["--weights", str(weights), "--config", str(source / "config.json"), "--output", str(output)]
    return main(["pack", *files, *options])


def same_weights(a: ModelFile, b: ModelFile) -> bool:
    if [vars(layer.layer) for layer in a.records.layers] != [vars(layer.layer) for layer in b.records.layers]:
        return False
    return all(
        a.tensor_bytes(entry, expert) == b.tensor_bytes(entry, expert)
        for entry in a.tensors
        for expert in (range(a.records.layers[entry.layer or 0].experts) if entry.scope == Scope.EXPERT else (None,))
    )


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_two_steps_give_the_weights_of_one(source: Path, tmp_path: Path, kind: str) -> None:
    middle, two, one = (tmp_path / name for name in ("mixtral.quant.bin", "two.colibri", "one.colibri"))
    assert quantize(source / "model.safetensors", middle, "--quant-type", kind) == 0
    assert pack(middle, source, two, "--target-arch", "arm64") == 0
    assert main(["convert", str(source), "-o", str(one), "--experts", kind, "--no-tokenizer", "-q"]) == 0
    with open_model(two) as a, open_model(one) as b:
        a.verify()
        assert same_weights(a, b)
        assert a.tensors == b.tensors
        assert a.provenance()["source"] == b.provenance()["source"]
        assert a.provenance()["packed"].keys() == {"config.json"}


def test_the_file_between_is_safetensors_whatever_its_name(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "weights.any"
    assert quantize(source, path) == 0
    with safe_open(path, "numpy") as file:
        assert file.metadata()["format"] == FORMAT
        assert file.get_tensor("layer 1 expert 2 expert_down").dtype == np.uint8


def test_options_of_the_first_step_reach_the_model(source: Path, tmp_path: Path) -> None:
    middle, two, one = (tmp_path / name for name in ("q", "two.colibri", "one.colibri"))
    options = ["--expert-prune-ratio", "1/3", "--quant-scale-factor", "0.9"]
    assert quantize(source, middle, *options) == 0
    assert pack(middle, source, two, "--context", "64") == 0
    assert main(["convert", str(source), "-o", str(one), "--no-tokenizer", "-q", *options]) == 0
    with open_model(two) as a, open_model(one) as b:
        assert a.records.model.context_tokens == 64
        assert a.records.layers[0].experts == 2
        assert same_weights(a, b)


def test_packing_a_checkpoint_quantises_on_the_way(source: Path, tmp_path: Path) -> None:
    two, one = tmp_path / "two.colibri", tmp_path / "one.colibri"
    assert pack(source / "model.safetensors", source, two, "--quant-scale-factor", "0.95") == 0
    options = ["--no-tokenizer", "-q", "--quant-scale-factor", "0.95"]
    assert main(["convert", str(source), "-o", str(one), *options]) == 0
    assert two.read_bytes() == one.read_bytes()


def test_the_commands_take_the_articles_names(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    middle, output = tmp_path / "mixtral-8x7b.quant.bin", tmp_path / "m.colibri"
    words = ["colibri_quantize", "--input", str(source), "--output", str(middle), "--quant-type", "int4"]
    monkeypatch.setattr(sys, "argv", [*words, "--expert-prune-ratio", "0.3"])
    assert quantize_main() == 0
    words = ["colibri_pack", "--weights", str(middle), "--config", str(source / "config.json")]
    monkeypatch.setattr(sys, "argv", [*words, "--output", str(output), "--target-arch", "arm64"])
    assert pack_main() == 0
    with open_model(output) as model:
        entry = model.tensor(Role.EXPERT_UP, 0, Scope.EXPERT)
        assert entry is not None
        assert entry.dtype == DType.INT4
        model.verify()


def test_a_scale_factor_for_quantised_weights_is_refused_with_the_reason(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quantize(source, tmp_path / "q") == 0
    assert pack(tmp_path / "q", source, tmp_path / "m.colibri", "--quant-scale-factor", "0.9") == 2
    assert "would round its weights a second time; give it to colibri_quantize" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "hidden_size is 64, the weights are of a model of 48"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, the weights are of a model of 2"),
    ],
)
def test_the_configuration_of_another_model_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, int], message: str
) -> None:
    assert quantize(source, tmp_path / "q") == 0
    (source / "config.json").write_text(json.dumps({**CONFIG, **change}))
    assert pack(tmp_path / "q", source, tmp_path / "m.colibri") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m.colibri").exists()


def changed(path: Path, change: Any) -> Path:
    """The file between with a changed header; `change` gets header and data."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header, data = json.loads(raw[8 : 8 + length]), bytearray(raw[8 + length :])
    change(header, data)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


EXPERT = "layer 1 expert 2 expert_down"


def rename(header: dict[str, Any], data: bytearray) -> None:
    header["layer 9 expert 2 expert_down"] = header.pop(EXPERT)


def reshape(header: dict[str, Any], data: bytearray) -> None:
    header[EXPERT]["shape"] = [header[EXPERT]["shape"][0] // 2, 2]


def infinite_scale(header: dict[str, Any], data: bytearray) -> None:
    first = header[EXPERT]["data_offsets"][0]
    data[first + 128 : first + 130] = b"\x00\x7c"


def padded(header: dict[str, Any], data: bytearray) -> None:
    first = header[EXPERT]["data_offsets"][0]
    data[first + 144 + 32 * 3 : first + 144 + 32 * 3 + 4] = b"\x11" * 4  # columns 44 to 47 of 40


def other_records(header: dict[str, Any], data: bytearray) -> None:
    header["__metadata__"]["records"] = header["__metadata__"]["records"][:-8]


def no_dtype(header: dict[str, Any], data: bytearray) -> None:
    dtypes = json.loads(header["__metadata__"]["dtypes"])
    del dtypes["layer 0 q"]
    header["__metadata__"]["dtypes"] = json.dumps(dtypes)


def bad_dtypes(header: dict[str, Any], data: bytearray) -> None:
    header["__metadata__"]["dtypes"] = "[1]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (rename, "which no record of it asks for"),
        (reshape, f"{EXPERT} is U8"),
        (infinite_scale, f"a scale of {EXPERT} holds a value that is not finite"),
        (padded, f"padded rows or columns of {EXPERT}"),
        (other_records, ""),
        (no_dtype, "has no layer 0 q"),
        (bad_dtypes, "malformed metadata"),
    ],
)
def test_a_damaged_file_between_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, message: str
) -> None:
    assert quantize(source, tmp_path / "q") == 0
    assert pack(changed(tmp_path / "q", change), source, tmp_path / "m.colibri") == 3
    assert message in capsys.readouterr().err
    assert not (tmp_path / "m.colibri").exists()


def test_weights_that_are_no_checkpoint_are_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(mixtral_weights(), tmp_path / "other.safetensors")
    assert pack(tmp_path / "other.safetensors", source, tmp_path / "m.colibri") == 2
    assert "give a checkpoint folder" in capsys.readouterr().err
    assert quantize(tmp_path / "other.safetensors", tmp_path / "q") == 2
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert pack(source / "model.safetensors", tmp_path, tmp_path / "m.colibri") == 2
    assert "a checkpoint needs its own" in capsys.readouterr().err


def test_an_interrupted_step_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("colibri.flow.os.fsync", fail)
    assert quantize(source, tmp_path / "q") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


def test_a_tokenizer_beside_the_configuration_is_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = mixtral_weights()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.ones((263, 48), np.float32)
    source = checkpoint(tmp_path / "hf", weights, vocab_size=263)
    huggingface(source, normalizer={"type": "NFC"})
    assert quantize(source, tmp_path / "q") == 0
    two, one = tmp_path / "two.colibri", tmp_path / "one.colibri"
    assert pack(tmp_path / "q", source, two) == 3
    assert "give --drop-nfc" in capsys.readouterr().err
    assert main(["convert", str(source), "-o", str(one), "-q"]) == 3
    assert "give --drop-nfc" in capsys.readouterr().err
    assert pack(tmp_path / "q", source, two, "--drop-nfc") == 0
    assert main(["convert", str(source), "-o", str(one), "-q", "--drop-nfc"]) == 0
    with open_model(two) as a, open_model(one) as b:
        assert a.tokenizer_bytes() == b.tokenizer_bytes() is not None
        assert b.provenance()["options"]["drop_nfc"] is True
        assert a.provenance()["packed"].keys() == {"config.json", "tokenizer.json"}


def with_tokenizer(folder: Path, **options: Any) -> Path:
    """A checkpoint with a tokenizer of its own."""
    weights = mixtral_weights()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.ones((263, 48), np.float32)
    source = checkpoint(folder, weights, vocab_size=263)
    huggingface(source, **options)
    return source


def test_packing_never_replaces_a_file_that_it_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = with_tokenizer(tmp_path / "hf")
    assert quantize(source, tmp_path / "q") == 0
    read = {path: path.read_bytes() for path in (tmp_path / "q", *source.glob("*.json"))}
    assert source / "tokenizer.json" in read
    for path in read:
        assert pack(tmp_path / "q", source, path) == 2
        assert f"is {path}, a file that is read" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in read} == read


@pytest.mark.parametrize("option", ["--importance", "--prune-by"])
def test_quantising_never_replaces_a_file_that_an_option_names(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    path = tmp_path / "named"
    path.write_text("kept")
    assert quantize(source, path, option, str(path), "--expert-prune-ratio", "1/3") == 2
    assert "a file that is read" in capsys.readouterr().err
    assert path.read_text() == "kept"


@pytest.mark.parametrize("named", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_named_file_that_would_not_be_read_is_refused(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    (source / named).write_bytes(b"{}")
    said = f"{source / named} would not be read: {source / 'model.safetensors'} comes first"
    assert quantize(source / named, tmp_path / "q") == 2
    assert said in capsys.readouterr().err
    assert pack(source / named, source, tmp_path / "m.colibri") == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "q").exists()
    assert quantize(source, tmp_path / "q") == 0  # of a folder no file was named


def test_an_index_comes_before_the_file_beside_it(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(mixtral_weights(), "shard.safetensors")}))
    assert quantize(source / "model.safetensors", tmp_path / "q") == 2
    assert f"{index} comes first" in capsys.readouterr().err
    index.write_text(json.dumps({"weight_map": dict.fromkeys(mixtral_weights(), "model.safetensors")}))
    assert quantize(source / "model.safetensors", tmp_path / "q") == 0


def test_packing_a_checkpoint_says_what_was_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkpoint(tmp_path / "hf", router_jitter=0.1)
    assert pack(source / "model.safetensors", source, tmp_path / "m.colibri") == 0
    assert "note: config.json: router_jitter 0.1 is for training; ignored" in capsys.readouterr().err
