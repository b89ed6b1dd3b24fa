# SPDX-License-Identifier: MIT
"""GGUF files of every family that has an architecture there, against the checkpoint that they are made from.

The files are written as llama.cpp's converter writes them: names from the map of the gguf package, which
knows nothing of families.toml, experts stacked, Q and K of some architectures with rotation pairs side by
side. Converted with f32 weights, both must be the same model, to the last byte.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
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
from safetensors.numpy import load_file, save_file

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Written:
    """How a case becomes a GGUF file; `more` changes its configuration."""

    case: str
    architecture: str
    neighbours: bool
    more: dict[str, Any] = field(default_factory=dict)
    split: bool = True  # of latent attention: k_b and v_b apart


def yarn(mscale: float) -> dict[str, Any]:
    """YaRN of DeepSeek; files say one of the two numbers."""
    more = {"factor": 4.0, "original_max_position_embeddings": 32, "mscale": mscale, "mscale_all_dim": mscale}
    return {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, **more}}


SMALL = {"rope_theta": 1.5e6, "rms_norm_eps": 1e-6}
ONE_IN_FOUR = {**SMALL, "sliding_window_layout": [0, 1, 1, 1], "rope_layout": [0, 1, 1, 1]}
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
    Written("mixtral-rope linear", "LLAMA", True),
    Written("qwen3_moe-rope yarn", "QWEN3MOE", False),
    Written("gpt_oss-window 11 on two layers, rope yarn", "GPT_OSS", False, {"swiglu_limit": 7.0}),
    Written("gpt_oss-no biases of attention, tied, rope default", "GPT_OSS", False),
    Written("lfm2_moe-tied, 3 taps", "LFM2MOE", False),
    Written(
        "lfm2_moe-4 taps, biases, not normalised, scaled", "LFM2MOE", False,
        {"conv_bias": False, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "tie_word_embeddings": True},
    ),
    Written("smallthinker-window 11 and no positions on some layers", "SMALLTHINKER", False, ONE_IN_FOUR),
    Written("smallthinker-softmax", "SMALLTHINKER", False, SMALL),
    Written("deepseek_v2-no q rank, greedy", "DEEPSEEK2", False, {"n_group": 1, "topk_group": 1}),
    Written("deepseek_v2-no q rank, greedy", "DEEPSEEK2", False, {"n_group": 1, "topk_group": 1}, split=False),
    Written("deepseek_v2-q rank, groups, rope yarn", "DEEPSEEK2", False, yarn(0.707)),
    Written("deepseek_v3-groups, q rank, rope yarn", "DEEPSEEK2", False),
    Written("deepseek_v3-groups, q rank, rope yarn", "DEEPSEEK2", False, yarn(0.301), split=False),
    Written(
        "deepseek_v3-no groups, no q rank, halves", "DEEPSEEK2", False,
        {"rope_interleave": True, "first_k_dense_replace": 2},
    ),
]  # fmt: skip


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
        elif "gate_up_proj" in name:
            stem, bias = name.replace("_bias", ""), name.endswith("_bias")
            turned = tensor if bias else tensor.swapaxes(1, 2)
            for half, first in (("gate_proj", 0), ("up_proj", 1)):
                known = f"{stem.replace('gate_up_proj', half)}.{'bias' if bias else 'weight'}"
                result[known] = np.ascontiguousarray(turned[:, first::2])
        elif name.endswith("experts.down_proj"):
            result[f"{name}.weight"] = np.ascontiguousarray(tensor.swapaxes(1, 2))
        else:
            known = name.replace("down_proj_bias", "down_proj.bias").replace(".expert_bias", ".expert_bias.bias")
            known = f"{known}.weight" if known.endswith(".sinks") else known
            known = known.removeprefix("model.") if ".feed_forward.experts." in known else known
            result[known.replace(".e_score_correction_bias", ".e_score_correction.bias")] = tensor
    return result


def apart(tensors: Arrays, config: dict[str, Any]) -> Arrays:
    """Latent attention as newer files have it: keys and values of the heads in stacks, the keys' columns first."""
    result: Arrays = {}
    for name, tensor in tensors.items():
        if ".kv_b_proj." in name:
            nope = config["qk_nope_head_dim"]
            heads = tensor.reshape(config["num_attention_heads"], nope + config["v_head_dim"], -1)
            result[name.replace("kv_b", "k_b")] = np.ascontiguousarray(heads[:, :nope].swapaxes(1, 2))
            result[name.replace("kv_b", "v_b")] = np.ascontiguousarray(heads[:, nope:])
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


def first_of(config: dict[str, Any], *keys: str) -> Any:
    """The value of the first key that is there, else None."""
    return next((config[key] for key in keys if config.get(key) is not None), None)


def add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], split: bool) -> None:
    """What every architecture says, and keys that some configurations have."""
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads")
    writer.add_name("test")
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_head_count(heads)
    writer.add_feed_forward_length(first_of(config, "intermediate_size", "moe_ffn_hidden_size"))
    writer.add_layer_norm_rms_eps(first_of(config, "rms_norm_eps", "norm_eps"))
    rope = config.get("rope_parameters") or config
    writer.add_rope_freq_base(rope["rope_theta"])
    experts = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_primary_experts")
    writer.add_expert_count(first_of(config, *experts))
    writer.add_expert_used_count(first_of(config, "moe_num_active_primary_experts", "num_experts_per_tok"))
    kind = rope.get("rope_type", "default")
    if kind != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if rope.get("beta_fast"):
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if rope.get("mscale_all_dim"):
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if "kv_lora_rank" in config:
        add_latent(writer, config, split)
    elif config["model_type"] == "lfm2_moe":
        writer.add_head_count_kv([kv_heads if kind == "full_attention" else 0 for kind in config["layer_types"]])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    else:
        writer.add_head_count_kv(kv_heads)
        if config.get("head_dim"):
            writer.add_key_length(config["head_dim"])
            writer.add_value_length(config["head_dim"])
    if config["model_type"] == "smallthinker":
        softmax = config.get("moe_primary_router_apply_softmax")
        kinds = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(kinds.SOFTMAX if softmax else kinds.SIGMOID)
        if config.get("sliding_window_layout"):
            writer.add_sliding_window(config["sliding_window_size"])
    if config["model_type"] == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    for key, add in (
        ("moe_intermediate_size", writer.add_expert_feed_forward_length),
        ("moe_ffn_hidden_size", writer.add_expert_feed_forward_length),
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


def add_latent(writer: gguf.GGUFWriter, config: dict[str, Any], split: bool) -> None:
    """Latent attention and the router of DeepSeek; files whose keys and values are apart describe one wide head."""
    rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    writer.add_kv_lora_rank(rank)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_rope_dimension_count(rope)
    writer.add_head_count_kv(1 if split else config["num_attention_heads"])
    whole, value = config["qk_nope_head_dim"] + rope, config["v_head_dim"]
    writer.add_key_length(rank + rope if split else whole)
    writer.add_value_length(rank if split else value)
    if split:
        writer.add_key_length_mla(whole)
        writer.add_value_length_mla(value)
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    if config["model_type"] == "deepseek_v3":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        if config["norm_topk_prob"]:
            writer.add_expert_weights_norm(True)


def gguf_of(
    folder: Path, written: Written, path: Path, kind: str = "F32", raw: Arrays | None = None, raw_kind: Any = None
) -> Path:
    """The checkpoint in `folder` as a GGUF file; matrices of `kind` where their rows allow it.

    raw: tensors by their names in the file, as blocks of `raw_kind`.
    """
    config = json.loads((folder / "config.json").read_text())
    architecture = gguf.MODEL_ARCH[written.architecture]
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    add_sizes(writer, config, written.split)
    wanted = gguf.GGMLQuantizationType[kind]
    tensors = stacked(ordered(load_file(folder / "model.safetensors")))
    for name, tensor in (apart(tensors, config) if written.split else tensors).items():
        stem, _, ending = name.rpartition(".")
        known = name if name.startswith("blk.") else f"{names.get_name(stem)}.{ending}"
        assert not known.startswith("None"), name
        if written.neighbours and ".attn_q." in known:
            tensor = side_by_side(tensor, config["num_attention_heads"])
        if written.neighbours and ".attn_k." in known:
            tensor = side_by_side(tensor, config["num_key_value_heads"])
        tensor = tensor.squeeze()
        if kind != "F32" and tensor.ndim > 1 and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0:
            writer.add_tensor(known, gguf.quants.quantize(tensor, wanted), raw_dtype=wanted)
        else:
            writer.add_tensor(known, tensor)
    for name, blocks in (raw or {}).items():
        writer.add_tensor(name, blocks, raw_dtype=raw_kind)
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
    case = next(case for case in CASES if case.id == written.case)
    return replace(case, more={**case.more, **written.more})


@pytest.mark.parametrize("written", FILES, ids=lambda written: written.case.replace(" ", "_"))
def test_a_gguf_file_is_the_same_model_as_its_checkpoint(written: Written, tmp_path: Path) -> None:
    make_checkpoint(case_of(written), tmp_path)
    found = from_gguf(gguf_of(tmp_path, written, tmp_path / "g.gguf"))
    with open_model(converted(tmp_path, tmp_path, FLOAT)) as original:
        assert list(found.records.blocks()) == list(original.records.blocks())
        assert [extent.hash for extent in found.extents] == [extent.hash for extent in original.extents]


def test_heads_that_are_stored_apart_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = next(written for written in FILES if written.case.startswith("deepseek_v3-groups"))
    make_checkpoint(case_of(written), tmp_path)
    monkeypatch.setattr("colibri.job.part_rows", lambda columns: 8)  # heads have 12 and 20 rows
    found = from_gguf(gguf_of(tmp_path, written, tmp_path / "g.gguf"))
    with open_model(converted(tmp_path, tmp_path, FLOAT)) as original:
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


def written_as(architecture: str) -> Written:
    """The first file of an architecture."""
    return next(written for written in FILES if written.architecture == architecture)


REFUSED = [
    ("QWEN3MOE", "expert_gating_func", 2, "expert_gating_func is 2, supported: 1"),
    ("QWEN3MOE", "expert_weights_norm", False, "expert_weights_norm is False, supported: True"),
    ("QWEN3MOE", "expert_weights_scale", 2.5, "expert_weights_scale is 2.5, supported: 1.0"),
    ("QWEN3MOE", "expert_group_scale", 2.0, "expert_group_scale is 2.0, supported: 1.0"),
    ("QWEN3MOE", "rope.scaling.type", "longrope", "RoPE scaling longrope, supported: none, linear, yarn"),
    ("QWEN3MOE", "attention.sliding_window", 11, "attention.sliding_window is 11, supported: none"),
    ("QWEN3MOE", "attention.value_length", 8, "attention.value_length is 8, supported: 24"),
    ("QWEN3MOE", "attention.scale", 0.5, "attention.scale is 0.5, supported: none"),
    ("QWEN3MOE", "final_logit_softcapping", 30.0, "final_logit_softcapping is 30.0, supported: 0.0"),
    ("QWEN3MOE", "nextn_predict_layers", 1, "nextn_predict_layers is 1, supported: 0"),
    ("QWEN3MOE", "attention.clamp_kqv", 8.0, "attention.clamp_kqv is 8.0, supported: 0.0"),
    ("QWEN3MOE", "rope.scaling.attn_factor", 2.0, "rope.scaling.attn_factor is 2.0, supported: 1.0"),
    ("GPT_OSS", "attention.sliding_window_pattern", 3, "attention.sliding_window_pattern is 3, supported: 2"),
    ("GPT_OSS", "attention.sliding_window_pattern", [True, True, False], "[True, True, False], supported: 2"),
    ("GPT_OSS", "rope.freq_base_swa", 5.0, "rope.freq_base_swa is 5.0, supported: that of rope.freq_base, 150000.0"),
    ("GPT_OSS", "rope.scaling.yarn_ext_factor", 0.5, "rope.scaling.yarn_ext_factor is 0.5, supported: 1.0"),
    ("GPT_OSS", "rope.scaling.yarn_log_multiplier", 0.1, "rope.scaling.yarn_log_multiplier is 0.1, supported: 0.0"),
    ("GPT_OSS", "rope.scaling.original_context_length", None, "original_context_length is None, supported: 1.."),
    ("GPT_OSS", "rope.scaling.factor", None, "gpt-oss.rope.scaling.factor is None, must be 1..1e+06"),
    ("GPT_OSS", "swiglu_clamp_exp", [7.0] * 3, "swiglu_clamp_exp is [7.0, 7.0, 7.0], supported: none"),
    ("LFM2MOE", "attention.head_count_kv", [0, 2, 1, 0], "head_count_kv is [0, 2, 1, 0], supported: 0 or one number"),
    ("LFM2MOE", "attention.head_count_kv", 2, "head_count_kv is 2, supported: 0 or one number for each of 4 layers"),
    ("LFM2MOE", "expert_gating_func", 1, "expert_gating_func is 1, supported: 2"),
    ("LFM2MOE", "expert_weights_scale", 2.5, "expert_weights_scale is 2.5, supported: 1.0"),
    ("SMALLTHINKER", "expert_gating_func", None, "expert_gating_func is None, supported: 1, 2"),
    ("DEEPSEEK2", "expert_group_count", None, "has no deepseek2.expert_group_count"),
    ("DEEPSEEK2", "expert_weights_norm", True, "expert_weights_norm is True, supported: False"),
    ("DEEPSEEK2", "attention.temperature_scale", 0.1, "attention.temperature_scale is 0.1, supported: 0.0"),
    ("DEEPSEEK2", "attention.key_length_mla", 8, "rope.dimension_count is 8, supported: below 8"),
    ("DEEPSEEK2", "expert_group_used_count", 0, "do not go together"),
]

INCOMPLETE = {  # what is missing, or cannot be
    "rope.scaling.original_context_length", "rope.scaling.factor", "expert_group_count", "expert_group_used_count",
    "attention.key_length_mla",
}  # fmt: skip


@pytest.mark.parametrize(("architecture", "key", "value", "message"), REFUSED)
def test_what_a_gguf_file_asks_for_and_the_records_do_not_get_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str, key: str, value: Any, message: str
) -> None:
    written = written_as(architecture)
    case = case_of(written)
    more = {"n_group": 4} if "used_count" in key else {}
    make_checkpoint(replace(case, more={**case.more, **more}), tmp_path)
    path = gguf_of(tmp_path, written, tmp_path / "g.gguf")
    from colibri import gguf_reader

    name = f"{gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH[architecture]]}.{key}"
    ask = gguf_reader.Gguf.value
    monkeypatch.setattr(gguf_reader.Gguf, "value", lambda self, asked: value if asked == name else ask(self, asked))
    with pytest.raises(ColibriError) as caught:
        from_gguf(path)
    assert message in caught.value.message
    assert caught.value.code == (Code.ARGUMENT if key in INCOMPLETE else Code.UNSUPPORTED)


def test_gpt_oss_without_the_width_of_its_windows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = written_as("GPT_OSS")
    make_checkpoint(case_of(written), tmp_path)
    monkeypatch.setattr(gguf.GGUFWriter, "add_sliding_window", lambda writer, value: None)
    with pytest.raises(ColibriError, match=r"has no gpt-oss\.attention\.sliding_window") as caught:
        from_gguf(gguf_of(tmp_path, written, tmp_path / "g.gguf"))
    assert caught.value.code == Code.ARGUMENT


def test_yarn_of_deepseek_without_its_multiplier_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = next(written for written in FILES if written.case.startswith("deepseek_v3-groups"))
    make_checkpoint(case_of(written), tmp_path)
    monkeypatch.setattr(gguf.GGUFWriter, "add_rope_scaling_yarn_log_mul", lambda writer, value: None)
    with pytest.raises(ColibriError, match="yarn_log_multiplier is None, must be") as caught:
        from_gguf(gguf_of(tmp_path, written, tmp_path / "g.gguf"))
    assert caught.value.code == Code.ARGUMENT


def repacked(blocks: np.ndarray[Any, Any], scales: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """MXFP4 of a checkpoint as that of GGUF: the exponent before its block, values 0..15 in the low halves."""
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    halves = codes[..., :16] | codes[..., 16:] << 4
    joined = np.concatenate([scales[..., None], halves], axis=-1)
    return np.ascontiguousarray(joined.reshape(*joined.shape[:-2], -1))


def test_experts_in_mxfp4_are_the_same_in_both_kinds_of_file(tmp_path: Path) -> None:
    written = written_as("GPT_OSS")
    case = case_of(written)
    make_checkpoint(replace(case, more={**case.more, "hidden_size": 64, "intermediate_size": 96}), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    rng = np.random.default_rng(8)
    packed: Arrays = {}
    for name in [name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        codes = rng.integers(0, 15, (2, experts, rows, columns // 32, 16), dtype=np.uint8)
        codes += codes > 7  # not 8, a zero with a sign, which the gguf package drops
        blocks = codes[0] | codes[1] << 4
        scales = rng.integers(118, 124, (experts, rows, columns // 32), dtype=np.uint8)
        packed |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save_file(tensors, tmp_path / "model.safetensors")
    wanted = gguf.GGMLQuantizationType.MXFP4
    raw: Arrays = {}
    for name in [name.removesuffix("_blocks") for name in packed if name.endswith("_blocks")]:
        stored = repacked(packed[f"{name}_blocks"], packed[f"{name}_scales"])
        at = f"blk.{name.split('.')[2]}.ffn_"
        parts = {"gate": stored[:, ::2], "up": stored[:, 1::2]} if "gate_up" in name else {"down": stored}
        raw |= {f"{at}{part}_exps.weight": np.ascontiguousarray(rows) for part, rows in parts.items()}
    found = from_gguf(gguf_of(tmp_path, written, tmp_path / "g.gguf", raw=raw, raw_kind=wanted))
    save_file(tensors | packed, tmp_path / "model.safetensors")
    with open_model(converted(tmp_path, tmp_path, FLOAT)) as original:
        assert [extent.hash for extent in found.extents] == [extent.hash for extent in original.extents]


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
