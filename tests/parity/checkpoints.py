# SPDX-License-Identifier: MIT
"""Tiny checkpoints with random weights that make every part of a family matter, and what the family's own code says.

A case is a configuration of one family. Those that `transformers` has are written by its own
`save_pretrained`, the others by the decoders of oracles.py and oracle_deepspeed.py; their configurations
vary what published models vary: ratios of heads, tied embeddings, biases, windows shorter than the prompt,
RoPE scaling, sizes that are no multiple of anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from oracle_deepspeed import DeepSpeedDecoder
from oracles import PlainDecoder

PROMPT_TOKENS = 64
LOGITS_DEVIATION = 2.0  # above 1: an error of 1e-4 of the largest logit would be seen
# Every configuration; a case adds to it. Sizes are odd on purpose, heads * head_dim is not hidden.
SIZES: dict[str, Any] = {
    "hidden_size": 72,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 131,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Case:
    """One configuration of a family of families.toml; `more` changes `SIZES`."""

    family: str
    name: str
    configuration: str  # class names of transformers; empty: the decoder of oracles.py
    model: str
    more: dict[str, Any] = field(default_factory=dict)
    gains: dict[str, float] = field(default_factory=dict)  # part of a parameter's name -> factor

    @property
    def id(self) -> str:
        """Name in test ids and in docs/models.md."""
        return f"{self.family}-{self.name}"

    def config(self) -> dict[str, Any]:
        """The arguments of the configuration."""
        return {**SIZES, **self.more}


def _cases(family: str, model: str, base: dict[str, Any], variants: dict[str, dict[str, Any]]) -> list[Case]:
    """Cases of a family: each variant on top of `base`."""
    gains = base.pop("gains", {})
    return [
        Case(family, name, f"{model}Config", f"{model}ForCausalLM", {**base, **more}, gains)
        for name, more in variants.items()
    ]


def _plain(family: str, architecture: str, base: dict[str, Any], variants: dict[str, dict[str, Any]]) -> list[Case]:
    """Cases of a family that `transformers` does not have."""
    gains = base.pop("gains", {})
    base = {"architectures": [architecture], "model_type": family, "head_dim": 16, **base}
    return [Case(family, name, "", "", {**base, **more}, gains) for name, more in variants.items()]


def _rope(kind: str, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=32)
LLAMA3 = _rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
GRANITE = {
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "attention_multiplier": 0.0625,
    "logits_scaling": 6.0,
}
LATENT = {  # no width is a multiple of a group
    "num_key_value_heads": 4,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "moe_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}

CASES: list[Case] = [
    *_cases(
        "mixtral",
        "Mixtral",
        {"head_dim": 16, "num_local_experts": 8},
        {
            "grouped heads": {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 128},
            "one kv head": {"num_attention_heads": 6, "num_key_value_heads": 1, "head_dim": 8},
            "all kv heads, top-1": {"num_key_value_heads": 4, "num_local_experts": 4, "num_experts_per_tok": 1},
            "tied": {"tie_word_embeddings": True, "vocab_size": 99},
            "5 experts, top-3": {"head_dim": 24, "num_local_experts": 5, "num_experts_per_tok": 3},
            "16 experts, top-6": {"num_local_experts": 16, "num_experts_per_tok": 6},
            "window 11": {"sliding_window": 11, "num_hidden_layers": 4},
            "theta 1e4, eps 1e-6": {**_rope("default"), "rms_norm_eps": 1e-6},
            "rope linear": _rope("linear", factor=4.0),
        },
    ),
    *_cases(
        "granite_moe",
        "GraniteMoe",
        {**GRANITE, "num_local_experts": 8, "gains": {"embed_tokens": 1 / 12}},
        {
            "tied, top-2": {"tie_word_embeddings": True},
            "40 experts, top-8": {"num_local_experts": 40, "num_experts_per_tok": 8, "num_key_value_heads": 1},
            "biases": {"attention_bias": True, "num_key_value_heads": 4},
            "theta 1.5e6": {
                "rope_parameters": {"rope_type": "default", "rope_theta": 1.5e6},
                "hidden_size": 64,
                "intermediate_size": 32,
                "tie_word_embeddings": True,
            },
            "rope linear": {**_rope("linear", factor=2.0), "tie_word_embeddings": True},
        },
    ),
    *_cases(
        "granite_moe",
        "GraniteMoeShared",
        {**GRANITE, "num_local_experts": 6, "shared_intermediate_size": 40, "gains": {"embed_tokens": 1 / 12}},
        {"shared expert": {"tie_word_embeddings": True}, "shared expert, untied": {"num_experts_per_tok": 3}},
    ),
    *_cases(
        "olmoe",
        "Olmoe",
        {"num_experts": 16, "num_experts_per_tok": 4, "num_key_value_heads": 4},
        {
            "16 experts, top-4": {},
            "64 experts, top-8": {"num_experts": 64, "num_experts_per_tok": 8, "intermediate_size": 32},
            "grouped heads, tied": {"num_key_value_heads": 2, "tie_word_embeddings": True},
            "clipped": {"clip_qkv": 1.5},
            "normalised, biases": {"norm_topk_prob": True, "attention_bias": True, "clip_qkv": 2.0},
            "rope llama3": LLAMA3,
        },
    ),
    *_cases(
        "qwen2_moe",
        "Qwen2Moe",
        {"num_experts": 8, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 104},
        {
            "biases, shared expert": {"num_key_value_heads": 4},
            "no biases, normalised": {"qkv_bias": False, "norm_topk_prob": True},
            "60 experts, top-4": {"num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 24},
            "dense layers": {"decoder_sparse_step": 2, "mlp_only_layers": [1], "num_hidden_layers": 4},
            "window 11 on two layers": {
                "use_sliding_window": True,
                "sliding_window": 11,
                "max_window_layers": 3,
                "num_hidden_layers": 4,
            },
            "tied, rope yarn": {"tie_word_embeddings": True, **YARN},
        },
    ),
    *_cases(
        "qwen3_moe",
        "Qwen3Moe",
        {"num_experts": 8, "moe_intermediate_size": 40, "head_dim": 24, "norm_topk_prob": True},
        {
            "grouped heads": {},
            "128 experts, top-8": {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 16},
            "biases, not normalised": {"attention_bias": True, "norm_topk_prob": False, "head_dim": 32},
            "dense layers, tied": {"mlp_only_layers": [0], "tie_word_embeddings": True},
            "window 11": {"use_sliding_window": True, "sliding_window": 11, "num_attention_heads": 8},
            "rope yarn": YARN,
        },
    ),
    *_plain(
        "smallthinker",
        "SmallThinkerForCausalLM",
        {"moe_ffn_hidden_size": 40, "moe_num_primary_experts": 8, "moe_num_active_primary_experts": 3},
        {
            "sigmoid, tied": {"tie_word_embeddings": True, "rope_theta": 1.5e6},
            "softmax": {"moe_primary_router_apply_softmax": True, "moe_layer_layout": [1, 1, 1]},
            "32 experts, top-4, one kv head": {
                "moe_num_primary_experts": 32,
                "moe_num_active_primary_experts": 4,
                "num_key_value_heads": 1,
                "moe_ffn_hidden_size": 24,
            },
            "window 11 and no positions on some layers": {
                "num_hidden_layers": 4,
                "rope_layout": [0, 1, 1, 1],
                "sliding_window_layout": [0, 1, 1, 0],
                "sliding_window_size": 11,
            },
            "late router": {"moe_enable_early_router": False, "head_dim": 24},
        },
    ),
    *_plain(
        "llama_moe",
        "LlamaMoEForCausalLM",
        {"intermediate_size": 320, "num_experts": 8, "num_selects": 2, "gate_network": "linear"},
        {
            "8 experts, top-2, scaled": {"score_scale_factor": 4.0},
            "16 experts, top-4": {"num_experts": 16, "num_selects": 4, "num_key_value_heads": 4},
        },
    ),
    *_plain(
        "switch",
        "SwitchDecoderForCausalLM",
        {"num_experts": 6, "num_experts_per_tok": 1},
        {
            "top-1": {},
            "threshold 0.3, dense layers": {
                "switch_threshold": 0.3,
                "decoder_sparse_step": 2,
                "num_hidden_layers": 4,
                "hidden_act": "gelu_new",
            },
        },
    ),
    *_plain(
        "face_moe",
        "FaceMoeForCausalLM",
        {"num_experts": 4},
        {
            "top-2": {},
            "5 experts, top-1, tied": {"num_experts": 5, "num_experts_per_tok": 1, "tie_word_embeddings": True},
        },
    ),
    *_plain(
        "deepspeed_moe",
        "DeepSpeedMoEForCausalLM",
        {
            "num_experts": 8,
            "num_hidden_layers": 4,
            "tie_word_embeddings": True,
            "num_key_value_heads": 4,
            "gains": {"4h_to_h.weight": 4.0},  # else the two forms of GELU are hard to tell apart
        },
        {
            "top-2, tanh GELU": {},
            "top-1, GELU": {"num_experts_per_tok": 1, "hidden_act": "gelu", "num_experts": 5},
            "experts in every layer, GELU, untied": {
                "expert_interval": 1,
                "hidden_act": "gelu",
                "tie_word_embeddings": False,
                "num_hidden_layers": 3,
            },
            "16 experts, top-3, eps 1e-3": {
                "num_experts": 16,
                "num_experts_per_tok": 3,
                "layer_norm_eps": 1e-3,
                "head_dim": 24,
                "num_key_value_heads": 6,
                "num_attention_heads": 6,
            },
        },
    ),
    *_cases(
        "gpt_oss",
        "GptOss",
        {"head_dim": 16, "num_local_experts": 8, "sliding_window": 11, "swiglu_limit": 1.0, "gains": {"sinks": 3.0}},
        {
            "window 11 on two layers, rope yarn": {"num_experts_per_tok": 4},
            "no biases of attention, tied, rope default": {
                **_rope("default"),
                "attention_bias": False,
                "tie_word_embeddings": True,
                "num_key_value_heads": 1,
                "swiglu_limit": 7.0,
            },
        },
    ),
    *_cases(
        "lfm2_moe",
        "Lfm2Moe",
        {
            "num_hidden_layers": 4,
            "num_dense_layers": 1,
            "num_experts": 8,
            "moe_intermediate_size": 40,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
        {
            "tied, 3 taps": {"tie_word_embeddings": True},
            "4 taps, biases, not normalised, scaled": {
                "conv_L_cache": 4,
                "conv_bias": True,
                "norm_topk_prob": False,
                "routed_scaling_factor": 1.5,
                "num_dense_layers": 2,
                "num_experts_per_tok": 3,
                "num_key_value_heads": 1,
            },
        },
    ),
    *_cases(
        "deepseek_v2",
        "DeepseekV2",
        {**LATENT, "n_routed_experts": 8},
        {
            "no q rank, greedy": {"q_lora_rank": None, "n_shared_experts": 2},
            "q rank, groups, rope yarn": {
                "topk_method": "group_limited_greedy",
                "n_group": 4,
                "topk_group": 2,
                "num_experts_per_tok": 3,
                "routed_scaling_factor": 4.0,
                **_rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=0.7, mscale_all_dim=0.9),
            },
        },
    ),
    *_cases(
        "deepseek_v3",
        "DeepseekV3",
        {**LATENT, "n_routed_experts": 16, "num_experts_per_tok": 4, "num_nextn_predict_layers": 0},
        {
            "groups, q rank, rope yarn": {
                "n_group": 4,
                "topk_group": 2,
                **_rope("yarn", factor=4.0, original_max_position_embeddings=32, mscale=1.0, mscale_all_dim=1.0),
            },
            "no groups, no q rank, halves": {
                "n_group": 1,
                "topk_group": 1,
                "q_lora_rank": None,
                "rope_interleave": False,
                "norm_topk_prob": False,
                "tie_word_embeddings": True,
            },
        },
    ),
]  # fmt: skip


@dataclass
class Oracle:
    """What the family's own code computes for a prompt."""

    ids: list[int]
    logits: np.ndarray[Any, np.dtype[np.float32]]  # (positions, vocabulary)
    routing: list[np.ndarray[Any, np.dtype[np.int64]]]  # per MoE layer (positions, top_k), by rank


def randomise(model: Any, gains: dict[str, float]) -> None:
    """Weights of deviation 1 / sqrt(inputs), so activations keep their size through the layers."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.1 * noise)
                continue
            if name.endswith("bias"):
                parameter.copy_(0.5 * noise)
                continue
            gain = 2.0 if any(part in name for part in ("gate.weight", "router", "gate_network", "gate.wg")) else 1.0
            for part, factor in gains.items():
                gain *= factor if part in name else 1.0
            fan_in = 1 if "embed" in name or "sinks" in name else parameter.shape[-1]
            parameter.copy_(noise * (gain / math.sqrt(fan_in)))
        for name, buffer in model.named_buffers() if hasattr(model, "named_buffers") else ():
            if name.endswith("bias"):  # of a selection of experts
                buffer.copy_(0.1 * torch.randn_like(buffer))


def make_checkpoint(case: Case, folder: Path) -> Oracle:
    """Writes the checkpoint of a case into `folder` and runs a prompt through the model."""
    seed = [other.id for other in CASES].index(case.id)
    torch.manual_seed(seed)
    if not case.configuration:
        return _make_plain(case, folder, seed)
    configuration: Any = getattr(transformers, case.configuration)(**case.config())
    make: Any = getattr(transformers, case.model)._from_config
    model = make(configuration, attn_implementation="eager", dtype=torch.float32)
    model.eval()
    randomise(model, case.gains)
    vocabulary = configuration.vocab_size
    ids = [int(token) for token in np.random.default_rng(seed).integers(0, vocabulary, PROMPT_TOKENS)]
    with torch.no_grad(), deterministic():  # the logits are linear in the last norm's weights
        deviation = float(model(torch.tensor([ids]), use_cache=False).logits.std())
        last = getattr(model.model, "norm", None) or model.model.embedding_norm
        last.weight.mul_(LOGITS_DEVIATION / deviation)
    model.save_pretrained(folder)
    return run_oracle(model, ids)


def _make_plain(case: Case, folder: Path, seed: int) -> Oracle:
    """As make_checkpoint, with the decoder of oracles.py."""
    deepspeed = case.family == "deepspeed_moe"
    model: Any = DeepSpeedDecoder(case.config()) if deepspeed else PlainDecoder(case.family, case.config())
    randomise(model, case.gains)
    ids = [int(token) for token in np.random.default_rng(seed).integers(0, case.config()["vocab_size"], PROMPT_TOKENS)]
    with torch.no_grad(), deterministic():
        factor = LOGITS_DEVIATION / float(model.run(ids)[0].std())
        for name in model.last_norm:
            model.parameters[name].mul_(factor)
        logits, routing = model.run(ids)
    model.save_pretrained(folder)
    return Oracle(ids, logits.numpy(), [layer.numpy() for layer in routing])


def run_oracle(model: Any, ids: list[int]) -> Oracle:
    """Logits of all positions and the chosen experts of every MoE layer."""
    if model.config.model_type in ("lfm2_moe", "deepseek_v2", "deepseek_v3"):
        return _run_selecting(model, ids)
    with torch.no_grad(), deterministic():
        out = model(torch.tensor([ids]), output_router_logits=True, use_cache=False)
    k = model.config.num_experts_per_tok
    routing = [torch.topk(layer.reshape(len(ids), -1), k, dim=-1).indices.numpy() for layer in out.router_logits]
    return Oracle(ids, out.logits[0].float().numpy(), routing)


def _run_selecting(model: Any, ids: list[int]) -> Oracle:
    """Where the logits alone do not say which experts are chosen: what the routers say, best score first."""
    chosen: list[Any] = []

    def keep(module: Any, inputs: Any, outputs: Any) -> None:
        logits, _, indices = outputs
        bias = getattr(module, "e_score_correction_bias", None)
        bias = inputs[1] if bias is None and len(inputs) > 1 else bias
        scores = logits if bias is None else logits.sigmoid() + bias
        order = torch.gather(scores, 1, indices).argsort(dim=1, descending=True)
        chosen.append(torch.gather(indices, 1, order).numpy())

    hooks = [
        module.register_forward_hook(keep)
        for module in model.modules()
        if type(module).__name__.lower().endswith("topkrouter")
    ]
    with torch.no_grad(), deterministic():
        out = model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return Oracle(ids, out.logits[0].float().numpy(), chosen)


@contextmanager
def deterministic() -> Iterator[None]:
    """One thread: the same sums in every run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
