# SPDX-License-Identifier: MIT
"""What the configurations of gpt-oss, LFM2-MoE and DeepSeek become; sizes are those of published models."""

from __future__ import annotations

import math
from typing import Any

import pytest
from colibri._spec import (
    Activation,
    AttentionBlock,
    Code,
    FfnBlock,
    GroupScore,
    MlaBlock,
    MoeBlock,
    RopeStyle,
    RouterNormalise,
    RouterScore,
    ShortConvBlock,
)
from colibri.errors import ColibriError
from colibri.families import decoder_records, shape_from_config
from colibri.plan import FileSizes, PlanOptions, plan
from colibri.records import Records

GPT_OSS: dict[str, Any] = {
    "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 4,
    "max_position_embeddings": 131072, "sliding_window": 128, "rope_theta": 150000, "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 12, "swiglu_limit": 7.0, "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    },
}  # fmt: skip
LFM2: dict[str, Any] = {
    "vocab_size": 65536, "hidden_size": 2048, "intermediate_size": 7168, "moe_intermediate_size": 1792,
    "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 8, "num_experts": 32, "conv_L_cache": 3,
    "num_experts_per_tok": 4, "num_dense_layers": 2, "max_position_embeddings": 128000, "norm_eps": 1e-5,
    "layer_types": ["conv", "conv", "full_attention", "conv"], "rope_theta": 1000000.0, "use_expert_bias": True,
}  # fmt: skip
V2_LITE: dict[str, Any] = {
    "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1,
    "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax", "norm_topk_prob": False, "q_lora_rank": None,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rope_theta": 10000,
    "max_position_embeddings": 163840, "rms_norm_eps": 1e-6, "attention_bias": False, "routed_scaling_factor": 1.0,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
    },
}  # fmt: skip
V3: dict[str, Any] = {
    **V2_LITE, "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "first_k_dense_replace": 3,
    "n_group": 8, "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
    "q_lora_rank": 1536, "routed_scaling_factor": 2.5, "num_hidden_layers": 5,
}  # fmt: skip


def records(family: str, config: dict[str, Any], **more: Any) -> Records:
    return decoder_records(shape_from_config(family, {**config, **more}))


def refusal(family: str, config: dict[str, Any], **more: Any) -> ColibriError:
    with pytest.raises(ColibriError) as caught:
        records(family, config, **more)
    return caught.value


def test_gpt_oss_has_sinks_and_windows_on_every_second_layer_and_clamped_experts() -> None:
    found = records("gpt_oss", GPT_OSS)
    assert found.ropes[0].attention_factor == pytest.approx(0.1 * math.log(32) + 1)
    for index, layer in enumerate(found.layers):
        mixer, moe = layer.mixer, layer.ffn
        assert isinstance(mixer, AttentionBlock)
        assert isinstance(moe, MoeBlock)
        assert (mixer.sinks, mixer.q_bias, mixer.kv_bias, mixer.o_bias) == (1, 1, 1, 1)
        assert mixer.window_tokens == (0 if index % 2 else 128)
        assert moe.activation == Activation.SWIGLU_CLAMPED
        assert moe.clamp == 7.0
        assert moe.alpha == pytest.approx(1.702)
        assert (moe.router_score, moe.router_bias, moe.bias) == (RouterScore.SOFTMAX_CHOSEN, 1, 1)


def windows(found: Records) -> list[int]:
    return [layer.mixer.window_tokens for layer in found.layers if isinstance(layer.mixer, AttentionBlock)]


def test_a_window_of_null_is_none_and_an_absent_one_is_that_of_the_family() -> None:
    full = ["full_attention"] * 24
    assert windows(records("gpt_oss", GPT_OSS, sliding_window=None, layer_types=full)) == [0] * 24
    absent = {key: value for key, value in GPT_OSS.items() if key != "sliding_window"}
    assert windows(records("gpt_oss", absent)) == [128, 0] * 12


def test_layers_with_a_window_that_is_null_are_refused() -> None:
    error = refusal("gpt_oss", GPT_OSS, sliding_window=None)
    assert error.code == Code.ARGUMENT
    assert "layer_types has sliding_attention, and sliding_window is null or 0" in error.message


@pytest.mark.parametrize("nothing", [None, {}])
def test_gpt_oss_without_a_table_of_rope_has_that_of_its_family(nothing: Any) -> None:
    assert records("gpt_oss", GPT_OSS, rope_scaling=nothing).ropes == records("gpt_oss", GPT_OSS).ropes
    plain = records("gpt_oss", GPT_OSS, rope_scaling=None, rope_parameters={"rope_type": "default"})
    assert plain.ropes[0].attention_factor == 1.0


def test_the_trained_context_beside_the_table_counts_before_that_in_it() -> None:
    beside = records("gpt_oss", GPT_OSS, original_max_position_embeddings=8192)
    table = {**GPT_OSS["rope_scaling"], "original_max_position_embeddings": 8192}
    within = records("gpt_oss", GPT_OSS, rope_scaling=table)
    assert beside.ropes == within.ropes != records("gpt_oss", GPT_OSS).ropes


def test_lfm2_has_convolutions_where_its_layers_say_so_and_leading_dense_layers() -> None:
    found = records("lfm2_moe", LFM2)
    kinds = [ShortConvBlock, ShortConvBlock, AttentionBlock, ShortConvBlock]
    assert [type(layer.mixer) for layer in found.layers] == kinds
    assert [type(layer.ffn) for layer in found.layers] == [FfnBlock, FfnBlock, MoeBlock, MoeBlock]
    conv, moe = found.layers[0].mixer, found.layers[2].ffn
    assert isinstance(conv, ShortConvBlock)
    assert isinstance(moe, MoeBlock)
    assert (conv.width, conv.taps, conv.bias, found.model.tied_head) == (2048, 3, 0, 1)
    assert (moe.router_score, moe.selection_bias, moe.router_normalise) == (RouterScore.SIGMOID, 1, RouterNormalise.SUM)
    assert moe.router_normalise_eps == pytest.approx(1e-6)


def test_layers_of_lfm2_that_are_neither_kind_are_refused() -> None:
    error = refusal("lfm2_moe", LFM2, layer_types=["conv", "conv", "sliding_attention", "conv"])
    assert "must be conv or full_attention for each of 4 layers" in error.message
    assert error.code == Code.ARGUMENT


def test_deepseek_v2_lite_has_latent_attention_without_a_latent_query() -> None:
    found = records("deepseek_v2", V2_LITE)
    assert [type(layer.ffn) for layer in found.layers] == [FfnBlock] + [MoeBlock] * 26
    mixer, moe, shared = found.layers[1].mixer, found.layers[1].ffn, found.layers[1].shared
    assert isinstance(mixer, MlaBlock)
    assert isinstance(moe, MoeBlock)
    assert shared is not None
    assert (mixer.q_rank, mixer.kv_rank, mixer.nope_dim, mixer.rope_dim, mixer.value_dim) == (0, 512, 128, 64, 128)
    growth = 0.1 * 0.707 * math.log(40) + 1
    assert mixer.scale == pytest.approx(growth**2 / math.sqrt(192))
    rope = found.ropes[0]
    assert (rope.pairs, rope.style, rope.attention_factor) == (32, RopeStyle.INTERLEAVED, 1.0)
    assert (moe.groups, moe.groups_chosen, moe.router_normalise) == (0, 0, RouterNormalise.NONE)
    assert shared.intermediate == 2 * 1408


def test_the_cache_of_latent_attention_is_planned_as_plain_heads() -> None:
    found = plan(records("deepseek_v2", V2_LITE).blocks(), FileSizes(1 << 30, 4096, 4096, False), PlanOptions())
    planes = 2048 * 16 * 192 * 2 + 128 + 2048 * 16 * 128 * 2 + 128
    assert found.kv_bytes == 27 * planes


def test_deepseek_v3_chooses_groups_by_their_two_best_experts() -> None:
    found = records("deepseek_v3", V3)
    moe = found.layers[3].ffn
    assert isinstance(moe, MoeBlock)
    assert (moe.groups, moe.groups_chosen, moe.group_score) == (8, 4, GroupScore.TOP2_SUM)
    assert (moe.router_score, moe.selection_bias, moe.routed_scale) == (RouterScore.SIGMOID, 1, 2.5)
    assert moe.router_normalise_eps == pytest.approx(1e-20)
    halves = records("deepseek_v3", V3, rope_interleave=False)
    assert halves.ropes[0].style == RopeStyle.HALF


def test_groups_of_deepseek_v2_are_worth_their_best_expert() -> None:
    moe = records("deepseek_v2", V2_LITE, topk_method="group_limited_greedy", n_group=8, topk_group=3).layers[1].ffn
    assert isinstance(moe, MoeBlock)
    assert (moe.groups, moe.groups_chosen, moe.group_score) == (8, 3, GroupScore.MAX)


@pytest.mark.parametrize(("groups", "chosen"), [(7, 4), (8, 9), (8, 0), (64, 1)])
def test_groups_that_do_not_hold_the_experts_of_a_token_are_refused(groups: int, chosen: int) -> None:
    error = refusal("deepseek_v3", V3, n_group=groups, topk_group=chosen)
    assert error.code == Code.ARGUMENT
    assert "do not go together" in error.message


@pytest.mark.parametrize(
    ("family", "config", "key", "value"),
    [
        ("deepseek_v2", V2_LITE, "attention_bias", True),
        ("deepseek_v2", V2_LITE, "moe_layer_freq", 2),
        ("deepseek_v2", V2_LITE, "norm_topk_prob", True),
        ("deepseek_v2", V2_LITE, "topk_method", "noaux_tc"),
        ("deepseek_v3", V3, "scoring_func", "softmax"),
        ("deepseek_v3", V3, "topk_method", "greedy"),
        ("gpt_oss", GPT_OSS, "hidden_act", "gelu"),
    ],
)
def test_what_the_records_cannot_say_is_refused(family: str, config: dict[str, Any], key: str, value: object) -> None:
    error = refusal(family, config, **{key: value})
    assert error.code == Code.UNSUPPORTED
    assert f"{key} is {value!r}" in error.message
