# SPDX-License-Identifier: MIT
"""Checkpoints with experts in MXFP4: the same model as from their floats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri._spec import Code
from colibri.convert import convert
from colibri.errors import ColibriError
from colibri.mxfp4 import Mxfp4, dequantise
from colibri.safetensors_reader import Safetensors
from safetensors.numpy import save_file
from synthetic import FLOAT

EXPERTS, HIDDEN, INNER, HEADS, DIM, VOCABULARY = 3, 64, 32, 2, 16, 40
CONFIG = {
    "architectures": ["GptOssForCausalLM"], "hidden_size": HIDDEN, "intermediate_size": INNER, "vocab_size": VOCABULARY,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": DIM,
    "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "max_position_embeddings": 64, "sliding_window": 8,
    "layer_types": ["sliding_attention"], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip


def value_of(code: int, exponent: int) -> float:
    """A value from its definition: a sign, two bits of exponent with the bias 1, one bit of mantissa."""
    sign, power, half = (-1.0 if code & 8 else 1.0), code >> 1 & 3, code & 1
    size = half * 0.5 if power == 0 else (1 + half / 2) * 2.0 ** (power - 1)
    return float(sign * size * 2.0 ** (exponent - 127))


def test_every_code_and_exponent_is_its_value() -> None:
    exponents = np.arange(253, dtype=np.uint8)
    halves = np.array([16 * code + 15 - code for code in range(16)], dtype=np.uint8)
    blocks = np.tile(halves, 253).reshape(253, 1, 16)
    found = dequantise(blocks, exponents[:, None])
    for row, exponent in enumerate(exponents):
        codes = [half for byte in blocks[row, 0] for half in (int(byte) & 15, int(byte) >> 4)]
        assert found[row].tolist() == [np.float32(value_of(code, int(exponent))) for code in codes]


def tensors(rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    """The checkpoint packed, and with the same values in floats, stored [expert][column][row]."""

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    at = "model.layers.0."
    common = {
        "model.embed_tokens.weight": normal(VOCABULARY, HIDDEN), "lm_head.weight": normal(VOCABULARY, HIDDEN),
        "model.norm.weight": normal(HIDDEN), f"{at}input_layernorm.weight": normal(HIDDEN),
        f"{at}post_attention_layernorm.weight": normal(HIDDEN), f"{at}self_attn.sinks": normal(HEADS),
        f"{at}mlp.router.weight": normal(EXPERTS, HIDDEN), f"{at}mlp.router.bias": normal(EXPERTS),
        f"{at}mlp.experts.gate_up_proj_bias": normal(EXPERTS, 2 * INNER),
        f"{at}mlp.experts.down_proj_bias": normal(EXPERTS, HIDDEN),
    }  # fmt: skip
    widths = {"q": (HEADS * DIM, HIDDEN), "k": (DIM, HIDDEN), "v": (DIM, HIDDEN), "o": (HIDDEN, HEADS * DIM)}
    for name, shape in widths.items():
        common[f"{at}self_attn.{name}_proj.weight"] = normal(*shape)
        common[f"{at}self_attn.{name}_proj.bias"] = normal(shape[0])
    packed, plain = dict(common), dict(common)
    for name, rows, columns in (("gate_up_proj", 2 * INNER, HIDDEN), ("down_proj", HIDDEN, INNER)):
        blocks = rng.integers(0, 256, (EXPERTS, rows, columns // 32, 16), dtype=np.uint8)
        scales = rng.integers(118, 124, (EXPERTS, rows, columns // 32), dtype=np.uint8)
        packed[f"{at}mlp.experts.{name}_blocks"], packed[f"{at}mlp.experts.{name}_scales"] = blocks, scales
        values = [dequantise(blocks[expert], scales[expert]).T for expert in range(EXPERTS)]
        plain[f"{at}mlp.experts.{name}"] = np.ascontiguousarray(values)
    return packed, plain


def written(folder: Path, content: dict[str, Any]) -> Path:
    """A checkpoint folder."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(content, folder / "model.safetensors")
    return folder


def test_packed_experts_are_converted_as_their_floats(tmp_path: Path) -> None:
    packed, plain = tensors(np.random.default_rng(5))
    found = []
    for name, content in (("packed", packed), ("plain", plain)):
        path = tmp_path / f"{name}.colibri"
        convert(written(tmp_path / name, content), path, FLOAT, tokenizer=False, quiet=True)
        data = path.read_bytes()
        found.append(data[data.index(b"huggingface") :].split(b"\0" * 64, 1)[1])  # behind the provenance
    assert found[0] == found[1]


def test_gates_and_ups_take_turns_in_the_rows_of_their_stack(tmp_path: Path) -> None:
    packed, plain = tensors(np.random.default_rng(6))
    source = Mxfp4(Safetensors(written(tmp_path / "packed", packed)))
    name = "model.layers.0.mlp.experts.gate_up_proj"
    assert source.shapes()[name] == (EXPERTS, HIDDEN, 2 * INNER)
    np.testing.assert_array_equal(source.columns(name, np.array([1, 5, 63]), 2), plain[name][2].T[[1, 5, 63]])


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({"_scales": np.full((EXPERTS, HIDDEN, 1), 253, np.uint8)}, Code.WEIGHTS, "holds 253, must be 0..252"),
        ({"_scales": np.zeros((EXPERTS, HIDDEN), np.uint8)}, Code.TENSOR, "has the shape [3, 64, 1, 16] and"),
        ({"_scales": np.full((EXPERTS, HIDDEN, 1), np.nan, np.float32)}, Code.TENSOR, "as F32, must be U8"),
        ({"_blocks": np.zeros((EXPERTS, HIDDEN, 1, 16), np.int8)}, Code.TENSOR, "is stored as I8 and"),
        ({"": np.zeros((EXPERTS, HIDDEN, HIDDEN), np.float32)}, Code.DIRECTORY, "are names of one tensor; keep one"),
        ({"_blocks": np.zeros((EXPERTS, HIDDEN, 1, 8), np.uint8)}, Code.TENSOR, "must be [experts, rows, groups, 16]"),
    ],
)
def test_malformed_packed_experts_are_refused(tmp_path: Path, change: Any, code: Code, message: str) -> None:
    packed, _ = tensors(np.random.default_rng(7))
    packed |= {f"model.layers.0.mlp.experts.down_proj{suffix}": value for suffix, value in change.items()}
    with pytest.raises(ColibriError) as caught:
        convert(written(tmp_path / "hf", packed), tmp_path / "m.colibri", FLOAT, tokenizer=False, quiet=True)
    assert caught.value.code == code
    assert message in caught.value.message


def test_dtypes_are_asked_for_once_whatever_the_number_of_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer lists every tensor: asked for each stack, a file of many would keep the converter busy for hours."""
    packed: dict[str, Any] = {}
    for stack in range(50):
        packed[f"{stack}_blocks"] = np.zeros((1, 1, 1, 16), np.uint8)
        packed[f"{stack}_scales"] = np.zeros((1, 1, 1), np.uint8)
    source = Safetensors(written(tmp_path / "hf", packed))
    answers: list[dict[str, str]] = []
    ask = source.dtypes

    def dtypes() -> dict[str, str]:
        answers.append(ask())
        return answers[-1]

    monkeypatch.setattr(source, "dtypes", dtypes)
    assert len(Mxfp4(source).shapes()) == 50
    assert len(answers) == 1
