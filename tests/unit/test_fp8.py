# SPDX-License-Identifier: MIT
"""Checkpoints with matrices in floats of 8 bits and scales of blocks: the same model as from their floats."""

from __future__ import annotations

import json
import struct
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri._spec import MAX_HIDDEN, Code
from colibri.checkpoint import as_f32
from colibri.convert import convert
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.fp8 import Fp8
from colibri.layout import to_bf16_bits
from colibri.safetensors_reader import Safetensors
from synthetic import FLOAT

HIDDEN, INNER, DENSE, HEADS, NOPE, ROPE, VALUE, RANK, EXPERTS, VOCABULARY = 160, 136, 200, 3, 48, 16, 40, 72, 4, 50
BLOCK = (128, 128)
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "intermediate_size": DENSE, "moe_intermediate_size": INNER, "num_hidden_layers": 2, "first_k_dense_replace": 1,
    "num_attention_heads": HEADS, "n_routed_experts": EXPERTS, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "n_group": 1, "topk_group": 1, "q_lora_rank": None, "kv_lora_rank": RANK, "qk_nope_head_dim": NOPE,
    "qk_rope_head_dim": ROPE, "v_head_dim": VALUE, "max_position_embeddings": 64, "rope_theta": 10000.0,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(BLOCK)},
}  # fmt: skip
Stored = dict[str, tuple[str, tuple[int, ...], bytes]]


def test_every_code_is_its_value() -> None:
    """From the definition: 4 bits of exponent with the bias 7, 3 of mantissa; no infinities."""
    found = as_f32(bytes(range(256)), "F8_E4M3", "x")
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        if code & 127 == 127:
            assert np.isnan(found[code])
            continue
        whole = Fraction(mantissa, 8) + (1 if exponent else 0)
        value = whole * Fraction(2) ** (exponent - 7 if exponent else -6)
        assert Fraction(float(found[code])) == (-value if code & 128 else value)
    assert float(found[0x7E]) == 448.0


def file_of(folder: Path, tensors: Stored, config: dict[str, Any]) -> Path:
    """A checkpoint folder; tensors are (dtype, shape, bytes)."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def names() -> dict[str, tuple[int, ...]]:
    """Matrices that are stored in 8 bits, and their shapes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(2):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}self_attn.q_proj": (HEADS * (NOPE + ROPE), HIDDEN),
            f"{at}self_attn.kv_a_proj_with_mqa": (RANK + ROPE, HIDDEN),
            f"{at}self_attn.kv_b_proj": (HEADS * (NOPE + VALUE), RANK),
            f"{at}self_attn.o_proj": (HIDDEN, HEADS * VALUE),
        }
        parts = {"mlp.": DENSE} if layer == 0 else {f"mlp.experts.{expert}.": INNER for expert in range(EXPERTS)}
        for part, inner in {**parts, **({"mlp.shared_experts.": INNER} if layer else {})}.items():
            shapes |= {f"{at}{part}{name}_proj": (inner, HIDDEN) for name in ("gate", "up")}
            shapes[f"{at}{part}down_proj"] = (HIDDEN, inner)
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def f32(values: Any) -> tuple[str, tuple[int, ...], bytes]:
    """A tensor of f32."""
    return "F32", values.shape, np.ascontiguousarray(values, "<f4").tobytes()


def tensors(seed: int, block: tuple[int, int] = BLOCK) -> tuple[Stored, Stored]:
    """The checkpoint in 8 bits, and with the values that they stand for."""
    rng = np.random.default_rng(seed)
    common: Stored = {}
    for layer in range(2):
        at = f"model.layers.{layer}."
        vectors = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN, "self_attn.kv_a_layernorm": RANK}
        common |= {f"{at}{name}.weight": f32(rng.standard_normal(size)) for name, size in vectors.items()}
    common["model.layers.1.mlp.gate.weight"] = f32(rng.standard_normal((EXPERTS, HIDDEN)))
    common["model.layers.1.mlp.gate.e_score_correction_bias"] = f32(rng.standard_normal(EXPERTS))
    common |= {
        "model.embed_tokens.weight": f32(rng.standard_normal((VOCABULARY, HIDDEN))),
        "lm_head.weight": f32(rng.standard_normal((VOCABULARY, HIDDEN))),
        "model.norm.weight": f32(rng.standard_normal(HIDDEN)),
    }
    packed, plain = dict(common), dict(common)
    for name, shape in names().items():
        codes = rng.integers(0, 255, shape, dtype=np.uint8)
        codes -= codes % 128 == 127  # no number
        grid = tuple(-(-n // size) for n, size in zip(shape, block, strict=True))
        scales = (rng.random(grid) / 500 + 1e-4).astype(np.float32)
        packed[name] = "F8_E4M3", shape, codes.tobytes()
        packed[f"{name}_scale_inv"] = f32(scales)
        values = as_f32(codes.tobytes(), "F8_E4M3", name).reshape(shape)
        for row in range(grid[0]):
            for column in range(grid[1]):
                part = np.s_[row * block[0] : (row + 1) * block[0], column * block[1] : (column + 1) * block[1]]
                values[part] *= scales[row, column]
        plain[name] = f32(values)
    return packed, plain


@pytest.mark.parametrize("block", [BLOCK, (64, 32)])
@pytest.mark.parametrize("rows", [0, 56])  # of a part: as usual, or such that parts begin inside a block
def test_matrices_of_8_bits_are_converted_as_their_floats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: tuple[int, int], rows: int
) -> None:
    if rows:
        monkeypatch.setattr("colibri.job.part_rows", lambda columns: rows)
    config = {**CONFIG, "quantization_config": {"quant_method": "fp8", "weight_block_size": list(block)}}
    hashes = []
    for name, content in zip(("packed", "plain"), tensors(3, block), strict=True):
        path = tmp_path / f"{name}.colibri"
        convert(file_of(tmp_path / name, content, config), path, FLOAT, tokenizer=False, quiet=True)
        with open_model(path) as model:
            hashes.append([extent.hash for extent in model.extents])
    assert hashes[0] == hashes[1]


def test_rows_and_columns_are_those_of_the_matrix(tmp_path: Path) -> None:
    packed, plain = tensors(4)
    name = "model.layers.0.mlp.down_proj.weight"
    source = Fp8(Safetensors(file_of(tmp_path / "packed", packed, CONFIG)), BLOCK)
    whole = np.frombuffer(plain[name][2], "<f4").reshape(HIDDEN, DENSE)
    assert source.shapes()[name] == (HIDDEN, DENSE)
    np.testing.assert_array_equal(source.rows(name, 120, 137), whole[120:137])
    np.testing.assert_array_equal(source.columns(name, np.array([0, 127, 128, 199])), whole[:, [0, 127, 128, 199]].T)


def test_blocks_far_wider_than_the_matrix_take_no_memory_for_what_is_not_there(tmp_path: Path) -> None:
    packed: Stored = {
        "x": ("F8_E4M3", (1024, 8), b"\x38" * (1024 * 8)),
        "x_scale_inv": f32(np.arange(1024, dtype=np.float32)[:, None]),
    }
    source = Fp8(Safetensors(file_of(tmp_path / "hf", packed, CONFIG)), (1, MAX_HIDDEN))
    tracemalloc.start()
    values = source.rows("x", 0, 1024)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_array_equal(values, np.repeat(np.arange(1024, dtype=np.float32)[:, None], 8, axis=1))
    assert peak < 1 << 20  # a scale for each column of the blocks: 256 MiB


NAME = "model.layers.1.self_attn.o_proj.weight"
SHAPE = (HIDDEN, HEADS * VALUE)


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ({f"{NAME}_scale_inv": None}, Code.UNSUPPORTED, f"tensor {NAME} is F8_E4M3 and there is no {NAME}_scale_inv"),
        ({f"{NAME}_scale_inv": f32(np.ones((1, 2)))}, Code.TENSOR, "for each block of 128 x 128 of a matrix"),
        ({f"{NAME}_scale_inv": f32(np.ones(2))}, Code.TENSOR, "_scale_inv has the shape [2] and"),
        ({f"{NAME}_scale_inv": ("U8", (2, 1), bytes(2))}, Code.TENSOR, "is stored as U8, must be F32, BF16, F16"),
        ({f"{NAME}_scale_inv": f32(np.array([[1], [np.inf]]))}, Code.WEIGHTS, "layer 1 o: the value at ["),
        ({NAME: ("F8_E4M3", SHAPE, b"\x7f" * (SHAPE[0] * SHAPE[1]))}, Code.WEIGHTS, "layer 1 o: the value at ["),
        ({"x_scale_inv": f32(np.ones((1, 1)))}, Code.UNSUPPORTED, "the checkpoint has x_scale_inv"),
        ({NAME: ("F32", SHAPE, bytes(4 * SHAPE[0] * SHAPE[1]))}, Code.UNSUPPORTED, f"has {NAME}_scale_inv"),
    ],
)
def test_matrices_of_8_bits_that_cannot_be_are_refused(tmp_path: Path, change: Any, code: Code, message: str) -> None:
    packed, _ = tensors(5)
    packed = {name: content for name, content in {**packed, **change}.items() if content is not None}
    with pytest.raises(ColibriError) as caught:
        convert(file_of(tmp_path / "hf", packed, CONFIG), tmp_path / "m.colibri", FLOAT, tokenizer=False, quiet=True)
    assert caught.value.code == code, caught.value
    assert message in caught.value.message


@pytest.mark.parametrize("size", [[128], [0, 128], ["128", 128], 128, 0, {}])
def test_sizes_of_blocks_that_cannot_be_are_refused(tmp_path: Path, size: Any) -> None:
    config = {**CONFIG, "quantization_config": {"weight_block_size": size}}
    source = file_of(tmp_path / "hf", tensors(6)[0], config)
    with pytest.raises(ColibriError, match="weight_block_size is") as caught:
        convert(source, tmp_path / "m.colibri", FLOAT, tokenizer=False, quiet=True)
    assert caught.value.code == Code.ARGUMENT


def test_scales_in_bf16_are_read(tmp_path: Path) -> None:
    packed, _ = tensors(7)
    kind, shape, data = packed[f"{NAME}_scale_inv"]
    scales = to_bf16_bits(np.frombuffer(data, "<f4"))
    packed[f"{NAME}_scale_inv"] = "BF16", shape, scales.astype("<u2").tobytes()
    source = Fp8(Safetensors(file_of(tmp_path / "hf", packed, CONFIG)), BLOCK)
    codes = as_f32(packed[NAME][2], "F8_E4M3", NAME).reshape(SHAPE)
    first = (np.uint32(scales[0]) << np.uint32(16)).view(np.float32)
    np.testing.assert_array_equal(source.rows(NAME, 0, 1), codes[:1] * first)
    assert kind == "F32"
