# SPDX-License-Identifier: MIT
"""GGUF files of every family that has an architecture there, against the checkpoint that they are made from.

The files are written as llama.cpp's converter writes them: names from the map of the gguf package, which
knows nothing of families.toml, experts stacked, Q and K of some architectures with rotation pairs side by
side. Converted with f32 weights, both must be the same model, to the last byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import CASES, make_checkpoint
from colibri._families import GGUF
from colibri._spec import Code, DType, MoeBlock, Role, RouterNormalise, Scope
from colibri.convert import convert
from colibri.errors import ColibriError
from colibri.format import ModelFile, open_model
from colibri.reference import ReferenceModel
from figures import FLOAT, converted
from safetensors.numpy import load_file

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Written:
    """How a case becomes a GGUF file."""

    case: str
    architecture: str
    neighbours: bool


FILES = [
    Written("mixtral-grouped heads", "LLAMA", True),
    Written("mixtral-tied", "LLAMA", True),
    Written("mixtral-5 experts, top-3", "LLAMA", True),
    Written("granite_moe-tied, top-2", "GRANITE_MOE", True),
    Written("granite_moe-biases", "GRANITE_MOE", True),
    Written("granite_moe-shared expert, untied", "GRANITE_MOE", True),
    Written("olmoe-16 experts, top-4", "OLMOE", False),
    Written("olmoe-clipped", "OLMOE", False),
    Written("qwen2_moe-biases, shared expert", "QWEN2MOE", False),
    Written("qwen3_moe-grouped heads", "QWEN3MOE", False),
]


def side_by_side(rows: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of Q or K, or a bias, with the two channels of each rotation pair as neighbours."""
    pairs = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def stacked(tensors: Arrays) -> Arrays:
    """Experts of one layer as one tensor, their number left out of the name; joined halves apart."""
    found: dict[str, list[np.ndarray[Any, Any]]] = {}
    for name, tensor in tensors.items():
        before, dot, after = name.partition(".experts.")
        number, _, rest = after.partition(".")
        found.setdefault(f"{before}{dot}{rest}" if dot and number.isdigit() else name, []).append(tensor)
    result: Arrays = {}
    for name, parts in found.items():
        tensor = np.stack(parts) if len(parts) > 1 else parts[0]
        if name.endswith("input_linear.weight"):
            stem = "ffn_{}_exps" if ".block_sparse_moe." in name else "ffn_{}_shexp"
            layer = name.split(".")[2]
            for half, part in zip(("gate", "up"), np.split(tensor, 2, axis=-2), strict=True):
                result[f"blk.{layer}.{stem.format(half)}.weight"] = np.ascontiguousarray(part)
        else:
            result[name] = tensor
    return result


def ordered(tensors: Arrays) -> Arrays:
    """Experts by number: a file of safetensors has them by name."""

    def place(name: str) -> tuple[Any, ...]:
        return tuple(int(part) if part.isdigit() else part for part in name.split("."))

    def key(name: str) -> list[tuple[int, Any]]:
        return [(1, part) if isinstance(part, str) else (0, part) for part in place(name)]

    return {name: tensors[name] for name in sorted(tensors, key=key)}


def gguf_of(folder: Path, written: Written, path: Path, kind: str = "F32") -> Path:
    """The checkpoint in `folder` as a GGUF file; matrices of `kind` where their rows allow it."""
    config = json.loads((folder / "config.json").read_text())
    architecture = gguf.MODEL_ARCH[written.architecture]
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    kv_heads = config["num_key_value_heads"]
    names = gguf.get_tensor_name_map(architecture, layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_name("test")
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(layers)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config)["rope_theta"])
    writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
    for key, add in (
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", writer.add_expert_shared_feed_forward_length),
        ("shared_intermediate_size", writer.add_expert_shared_feed_forward_length),
        ("attention_multiplier", writer.add_attention_scale),
        ("embedding_multiplier", writer.add_embedding_scale),
        ("residual_multiplier", writer.add_residual_scale),
        ("logits_scaling", writer.add_logit_scale),
        ("clip_qkv", writer.add_clamp_kqv),
    ):
        if config.get(key):
            add(config[key])
    wanted = gguf.GGMLQuantizationType[kind]
    for name, tensor in stacked(ordered(load_file(folder / "model.safetensors"))).items():
        stem, _, ending = name.rpartition(".")
        known = name if name.startswith("blk.") else f"{names.get_name(stem)}.{ending}"
        assert not known.startswith("None"), name
        if written.neighbours and ".attn_q." in known:
            tensor = side_by_side(tensor, heads)
        if written.neighbours and ".attn_k." in known:
            tensor = side_by_side(tensor, kv_heads)
        tensor = tensor.squeeze()
        if kind != "F32" and tensor.ndim > 1 and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0:
            writer.add_tensor(known, gguf.quants.quantize(tensor, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(known, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def from_gguf(path: Path, precision: Any = FLOAT) -> ModelFile:
    """The file converted and opened."""
    output = path.with_suffix(".colibri")
    convert(path, output, precision, tokenizer=False, quiet=True)
    return open_model(output)


def case_of(written: Written) -> Any:
    return next(case for case in CASES if case.id == written.case)


@pytest.mark.parametrize("written", FILES, ids=lambda written: written.case.replace(" ", "_"))
def test_a_gguf_file_is_the_same_model_as_its_checkpoint(written: Written, tmp_path: Path) -> None:
    make_checkpoint(case_of(written), tmp_path)
    found = from_gguf(gguf_of(tmp_path, written, tmp_path / "g.gguf"))
    with open_model(converted(tmp_path, tmp_path, FLOAT)) as original:
        assert list(found.records.blocks()) == list(original.records.blocks())
        assert [extent.hash for extent in found.extents] == [extent.hash for extent in original.extents]


def test_every_architecture_is_compared() -> None:
    names = {gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[written.architecture]] for written in FILES}
    assert names == set(GGUF)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_are_stored_as_the_values_that_they_stand_for(kind: str, tmp_path: Path) -> None:
    written = FILES[0]
    make_checkpoint(case_of(written), tmp_path)
    wanted = gguf.GGMLQuantizationType[kind]
    model = from_gguf(gguf_of(tmp_path, written, tmp_path / "g.gguf", kind))
    weights = load_file(tmp_path / "model.safetensors")
    reference = ReferenceModel(model).weights
    for expert in (0, 7):
        original = weights[f"model.layers.1.block_sparse_moe.experts.{expert}.w2.weight"]
        expected = gguf.quants.dequantize(gguf.quants.quantize(original, wanted), wanted)
        found: Any = reference.matrix(Role.EXPERT_DOWN, 1, expert)
        np.testing.assert_array_equal(found.transposed.T, expected)
        assert not np.array_equal(expected, original)


K_KINDS = ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ4_NL", "MXFP4"]


@pytest.mark.parametrize("kind", K_KINDS)
def test_blocks_that_only_llama_cpp_writes_are_read(kind: str, tmp_path: Path) -> None:
    """Random bytes as blocks, with scales that are numbers: what they stand for is what the gguf package says."""
    from colibri.gguf_reader import Gguf

    wanted = gguf.GGMLQuantizationType[kind]
    elements, size = gguf.GGML_QUANT_SIZES[wanted]
    rng = np.random.default_rng(K_KINDS.index(kind))
    blocks = rng.integers(0, 256, (2, 3, 512 // elements, size), dtype=np.uint8)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}.get(kind, (0,)):
        if kind == "MXFP4":
            blocks[..., 0] = 120 + blocks[..., 0] % 8
        else:
            blocks[..., at + 1] = blocks[..., at + 1] % 0x40 & 0xBB  # exponent of an f16 below its highest
    stored = blocks.reshape(2, 3, -1)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("x", stored, raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = gguf.quants.dequantize(stored, wanted)
    assert expected.shape == (2, 3, 512)
    assert np.isfinite(expected).all()
    assert expected.std() > 0
    np.testing.assert_array_equal(Gguf(tmp_path / "k.gguf").rows("x", 1, 3, 1), expected[1, 1:3])


def test_the_loss_of_quantising_again_is_reported(tmp_path: Path) -> None:
    written = FILES[0]
    make_checkpoint(case_of(written), tmp_path)
    report = convert(
        gguf_of(tmp_path, written, tmp_path / "g.gguf", "Q8_0"), tmp_path / "g.colibri", tokenizer=False, quiet=True
    )
    (count, stats) = report.by_role()["expert_down", DType.INT4]
    assert count == 24
    assert 0.05 < stats.relative < 0.15


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("expert_gating_func", 2, "expert_gating_func is 2, supported: 1"),
        ("expert_weights_norm", False, "expert_weights_norm is False, supported: True"),
        ("expert_weights_scale", 2.5, "expert_weights_scale is 2.5, supported: 1.0"),
        ("rope.scaling.type", "yarn", "scaling yarn"),
    ],
)
def test_what_a_gguf_file_asks_for_and_the_records_do_not_get_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any, message: str
) -> None:
    written = FILES[-1]
    make_checkpoint(case_of(written), tmp_path)
    path = gguf_of(tmp_path, written, tmp_path / "g.gguf")
    from colibri import gguf_reader

    ask = gguf_reader.Gguf.value
    monkeypatch.setattr(
        gguf_reader.Gguf, "value", lambda self, name: value if name == f"qwen3moe.{key}" else ask(self, name)
    )
    with pytest.raises(ColibriError) as caught:
        from_gguf(path)
    assert message in caught.value.message
    assert caught.value.code == Code.UNSUPPORTED


def test_routers_of_gguf_files_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """It normalises for qwen3moe and not for qwen2moe and olmoe, whatever a configuration once said."""
    kinds = {"OLMOE": RouterNormalise.NONE, "QWEN2MOE": RouterNormalise.NONE, "QWEN3MOE": RouterNormalise.SUM}
    for written in (FILES[6], FILES[8], FILES[9]):
        kind = kinds[written.architecture]
        folder = tmp_path / written.architecture
        folder.mkdir()
        make_checkpoint(case_of(written), folder)
        found = from_gguf(gguf_of(folder, written, folder / "g.gguf"))
        assert found.tensor(Role.EXPERT_UP, 0, Scope.EXPERT) is not None
        for layer in found.records.layers:
            assert isinstance(layer.ffn, MoeBlock)
            assert layer.ffn.router_normalise == kind
