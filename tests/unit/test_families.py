# SPDX-License-Identifier: MIT
"""What a config.json of each family says of the records, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from colibri._families import FAMILIES
from colibri._spec import (
    NONE_INDEX,
    Activation,
    AttentionBlock,
    Code,
    FfnBlock,
    MoeBlock,
    NormKind,
    PositionKind,
    RouterInput,
    RouterNormalise,
    RouterScore,
)
from colibri.convert import expected_names
from colibri.errors import ColibriError
from colibri.families import TensorName, config_notes, decoder_records, family_of, shape_from_config
from colibri.records import Records

COMMON: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
SMALL_THINKER = {
    **COMMON, "moe_ffn_hidden_size": 40, "moe_num_primary_experts": 4, "moe_num_active_primary_experts": 2,
}  # fmt: skip
LLAMA_MOE = {**COMMON, "intermediate_size": 160, "num_experts": 4, "num_selects": 2}
SWITCH = {**COMMON, "intermediate_size": 40, "num_experts": 4}
DEEPSPEED = {key: value for key, value in SWITCH.items() if key != "num_key_value_heads"}


def records(family: str, config: dict[str, Any], **more: Any) -> Records:
    return decoder_records(shape_from_config(family, {**config, **more}))


def mixtures(found: Records) -> list[MoeBlock]:
    return [layer.ffn for layer in found.layers if isinstance(layer.ffn, MoeBlock)]


def mixers(found: Records) -> list[AttentionBlock]:
    return [layer.mixer for layer in found.layers if isinstance(layer.mixer, AttentionBlock)]


def refusal(family: str, config: dict[str, Any], **more: Any) -> ColibriError:
    with pytest.raises(ColibriError) as caught:
        records(family, config, **more)
    return caught.value


def test_the_router_of_smallthinker_reads_the_residual_before_attention() -> None:
    for moe in mixtures(records("smallthinker", SMALL_THINKER)):
        assert moe.router_input == RouterInput.RESIDUAL_BEFORE_MIXER
        assert moe.router_score == RouterScore.SIGMOID
        assert (moe.activation, moe.gated) == (Activation.RELU, 1)
    more = {"moe_enable_early_router": False, "moe_primary_router_apply_softmax": True}
    for moe in mixtures(records("smallthinker", SMALL_THINKER, **more)):
        assert moe.router_input == RouterInput.FFN_INPUT
        assert moe.router_score == RouterScore.SOFTMAX_CHOSEN


def test_layouts_of_smallthinker_are_per_layer() -> None:
    found = records(
        "smallthinker", SMALL_THINKER, rope_layout=[0, 1, 1], sliding_window_layout=[1, 0, 1], sliding_window_size=9
    )
    assert [mixer.rope_table for mixer in mixers(found)] == [NONE_INDEX, 0, 0]
    assert [mixer.window_tokens for mixer in mixers(found)] == [9, 0, 9]


@pytest.mark.parametrize("more", [{}, {"sliding_window_layout": [0, 0, 0]}])
def test_without_a_layout_no_layer_of_smallthinker_has_a_window(more: dict[str, Any]) -> None:
    found = records("smallthinker", SMALL_THINKER, sliding_window_size=9, **more)
    assert [mixer.window_tokens for mixer in mixers(found)] == [0, 0, 0]
    assert [mixer.rope_table for mixer in mixers(found)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        ({"rope_layout": [1, 1]}, Code.ARGUMENT, "rope_layout is [1, 1], must be 0 or 1 for each of 3 layers"),
        ({"sliding_window_layout": [0, 1, 2]}, Code.ARGUMENT, "window_layout is [0, 1, 2], must be 0 or 1"),
        ({"rope_layout": [True, 1, 1]}, Code.ARGUMENT, "must be 0 or 1"),
        ({"rope_layout": 1}, Code.ARGUMENT, "rope_layout is 1, must be a list"),
        ({"moe_enable_early_router": 1}, Code.ARGUMENT, "moe_enable_early_router is 1, must be true or false"),
        ({"moe_enable_secondary_experts": True}, Code.UNSUPPORTED, "moe_enable_secondary_experts is True"),
        ({"moe_shared_primary_experts": 1}, Code.UNSUPPORTED, "moe_shared_primary_experts is 1"),
        ({"use_qk_norm": True}, Code.UNSUPPORTED, "use_qk_norm is True"),
        ({"moe_layer_layout": [0, 1, 1]}, Code.ARGUMENT, "dense intermediate is 0"),
    ],
)
def test_what_smallthinker_records_cannot_say_is_refused(more: dict[str, Any], code: Code, message: str) -> None:
    error = refusal("smallthinker", SMALL_THINKER, **more)
    assert message in error.message
    assert error.code in (code, Code.LIMIT)


def test_experts_of_llama_moe_share_the_size_of_the_dense_block() -> None:
    for moe in mixtures(records("llama_moe", LLAMA_MOE, score_scale_factor=4.0)):
        assert (moe.intermediate, moe.routed_scale, moe.router_score) == (40, 4.0, RouterScore.SOFTMAX_CHOSEN)
    assert "160 is no multiple of 3 experts" in refusal("llama_moe", LLAMA_MOE, num_experts=3).message


@pytest.mark.parametrize(
    ("key", "value"),
    [("gate_network", "mlp"), ("gate_use_softmax", False), ("multiply_gate_scores", False), ("gate_type", "Switch")],
)
def test_other_gates_of_llama_moe_are_refused_by_name(key: str, value: object) -> None:
    error = refusal("llama_moe", LLAMA_MOE, **{key: value})
    assert error.code == Code.UNSUPPORTED
    assert f"{key} is {value!r}" in error.message


def test_a_switch_decoder_has_one_plain_expert_a_token_and_a_threshold() -> None:
    found = records("switch", SWITCH, switch_threshold=0.3, decoder_sparse_step=2)
    assert [type(layer.ffn) for layer in found.layers] == [FfnBlock, MoeBlock, FfnBlock]
    (moe,) = mixtures(found)
    assert (moe.top_k, moe.gated, moe.activation) == (1, 0, Activation.RELU)
    assert moe.threshold == pytest.approx(0.3)
    dense = found.layers[0].ffn
    assert isinstance(dense, FfnBlock)
    assert (dense.gated, dense.intermediate) == (0, 40)


def test_weights_of_face_moe_are_the_logits() -> None:
    for moe in mixtures(records("face_moe", SWITCH)):
        assert (moe.top_k, moe.gated, moe.router_score, moe.router_normalise) == (2, 0, RouterScore.LOGITS, 0)


def test_deepspeed_has_layer_norms_learned_positions_biases_and_experts_in_every_second_layer() -> None:
    found = records("deepspeed_moe", DEEPSPEED, num_hidden_layers=4)
    model = found.model
    assert (model.norm_kind, model.position_kind, model.tied_head, found.ropes) == (2, PositionKind.LEARNED, 1, [])
    assert [type(layer.ffn) for layer in found.layers] == [FfnBlock, MoeBlock, FfnBlock, MoeBlock]
    for layer in found.layers:
        assert (layer.layer.norm_kind, layer.layer.norm_bias) == (NormKind.LAYER, 1)
        assert isinstance(layer.ffn, FfnBlock | MoeBlock)
        assert (layer.ffn.gated, layer.ffn.bias, layer.ffn.activation) == (0, 1, Activation.GELU_TANH)
    for mixer in mixers(found):
        assert (mixer.q_bias, mixer.kv_bias, mixer.o_bias, mixer.rope_table) == (1, 1, 1, NONE_INDEX)
        assert (mixer.heads, mixer.kv_heads) == (4, 4)


@pytest.mark.parametrize(("top_k", "kind"), [(1, RouterNormalise.NONE), (2, RouterNormalise.SUM)])
def test_one_expert_of_deepspeed_keeps_its_share_and_several_are_normalised(top_k: int, kind: int) -> None:
    for moe in mixtures(records("deepspeed_moe", DEEPSPEED, num_experts_per_tok=top_k)):
        assert (moe.top_k, moe.router_score, moe.router_normalise) == (top_k, RouterScore.SOFTMAX_ALL, kind)


@pytest.mark.parametrize(
    ("key", "value"),
    [("mlp_type", "residual"), ("add_bias_linear", False), ("use_rotary_position_embeddings", True)],
)
def test_what_deepspeed_records_cannot_say_is_refused(key: str, value: object) -> None:
    error = refusal("deepspeed_moe", DEEPSPEED, **{key: value})
    assert error.code == Code.UNSUPPORTED
    assert f"{key} is {value!r}" in error.message


def test_experts_per_layer_of_different_number_are_refused() -> None:
    assert "experts is [4, 8], not a whole number" in refusal("deepspeed_moe", DEEPSPEED, num_experts=[4, 8]).message


def test_parts_of_every_head_are_runs_of_rows() -> None:
    name = TensorName.parse("qkv[1/3 of every head]")
    assert (name.template, name.part, name.period) == ("qkv", 1, ("head",) * 3)
    assert name.runs(0, 8, 8, {"head": 4}) == [(4, 8), (16, 20)]
    assert name.runs(3, 6, 8, {"head": 4}) == [(7, 8), (16, 18)]
    assert name.stored_rows(8, {"head": 4}) == 24
    assert TensorName.parse("x[1/2]").runs(3, 6, 8, {}) == [(11, 14)]
    assert TensorName.parse("x").runs(3, 6, 8, {}) == [(3, 6)]


def test_parts_of_a_tensor_take_turns_row_by_row_or_by_sizes_of_their_own() -> None:
    every_second = TensorName.parse("x[transposed, 1/2 alternating]")
    assert every_second.transposed
    assert every_second.runs(1, 3, 4, {}) == [(3, 4), (5, 6)]
    assert every_second.stored_rows(4, {}) == 8
    values = TensorName.parse("kv[value of nope+value]")
    assert not values.transposed
    assert values.runs(3, 9, 12, {"nope": 3, "value": 4}) == [(6, 7), (10, 14), (17, 18)]
    assert values.stored_rows(12, {"nope": 3, "value": 4}) == 21
    assert TensorName.parse("x[transposed]").runs(0, 2, 4, {}) == [(0, 2)]
    stack = TensorName.parse("k_b[transposed, heads of nope]")
    assert (stack.template, stack.heads, stack.transposed) == ("k_b", "nope", True)


def test_only_the_kernels_of_a_convolution_have_a_dimension_of_one_between() -> None:
    config = {
        **COMMON, "intermediate_size": 40, "moe_intermediate_size": 40, "num_experts": 4, "num_experts_per_tok": 2,
        "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3, "num_dense_layers": 1,
    }  # fmt: skip
    expected = expected_names(records("lfm2_moe", config), FAMILIES["lfm2_moe"]["tensors"])
    assert expected["model.layers.0.conv.conv.weight"] == (48, 1, 3)
    assert not [name for name, shape in expected.items() if 1 in shape and ".conv.conv." not in name]


@pytest.mark.parametrize(
    ("architecture", "model_type", "family"),
    [
        ("SmallThinkerForCausalLM", "", "smallthinker"),
        ("", "face-moe-v3", "face_moe"),
        ("", "ds-moe-12b", "deepspeed_moe"),
        ("", "switch_decoder", "switch"),
        ("LlamaMoEForCausalLM", "llama_moe", "llama_moe"),
    ],
)
def test_families_are_found_by_architecture_or_type(architecture: str, model_type: str, family: str) -> None:
    assert family_of([architecture] if architecture else [], model_type) == family


@pytest.mark.parametrize("architecture", ["SwitchTransformersForConditionalGeneration", "AfmoeForCausalLM"])
def test_known_families_without_a_converter_are_refused_by_name(architecture: str) -> None:
    with pytest.raises(ColibriError, match="a family that this version does not convert") as caught:
        family_of([architecture], "")
    assert architecture in caught.value.message


def test_what_is_for_training_is_ignored_with_a_note() -> None:
    found = config_notes({"expert_capacity": 64, "router_jitter": 0.01, "colibri_version": "0.4.2"}, "0.1.0")
    assert found == [
        "config.json: expert_capacity 64 is for training; ignored",
        "config.json: router_jitter 0.01 is for training; ignored",
    ]


def test_another_major_version_is_noted() -> None:
    (note,) = config_notes({"colibri_version": "2.0"}, "0.1.0")
    assert note.startswith("config.json was written for colibri 2.0")


@pytest.mark.parametrize("version", [2, "two", "", "1.", [1]])
def test_a_version_that_is_none_is_refused(version: object) -> None:
    with pytest.raises(ColibriError, match="colibri_version is"):
        config_notes({"colibri_version": version}, "0.1.0")
