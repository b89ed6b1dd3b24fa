# SPDX-License-Identifier: MIT
"""A decoder in plain torch for the families that `transformers` does not have.

Written from the published descriptions: RMSNorm in front of attention and experts, grouped-query
attention with rotation of half-heads, per layer a sliding window or no positions at all, and the
routers of SmallThinker, LLaMA-MoE, Switch and face-moe. Its loops are plain on purpose: a token, an
expert, a product. Names of parameters are those of each family's checkpoints.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional


@dataclass
class Plan:
    """What the arithmetic of a model is; made from its config.json by the functions below."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    theta: float
    experts: int
    top_k: int
    activation: str
    score: str  # of the router: chosen, sigmoid, all, logits
    early: bool = False
    scale: float = 1.0
    threshold: float = 0.0
    windows: list[int] = field(default_factory=list)  # per layer, 0: none
    rotated: list[bool] = field(default_factory=list)
    dense: list[bool] = field(default_factory=list)
    router: str = ""
    gate: str = ""  # empty: plain experts
    up: str = ""
    down: str = ""
    dense_up: str = ""
    dense_down: str = ""

    def __post_init__(self) -> None:
        self.windows = self.windows or [0] * self.layers
        self.rotated = self.rotated or [True] * self.layers
        self.dense = self.dense or [False] * self.layers


def _dimensions(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "kv_heads": config["num_key_value_heads"],
        "head_dim": config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        "eps": config.get("rms_norm_eps", 1e-6),
        "theta": config.get("rope_theta", 10000.0),
    }


def small_thinker(config: dict[str, Any]) -> Plan:
    """SmallThinker: the router reads what attention reads, before the norm."""
    windows = [config.get("sliding_window_size", 4096) * flag for flag in config.get("sliding_window_layout", [])]
    return Plan(
        **_dimensions({"rope_theta": 1e6, **config}),
        experts=config["moe_num_primary_experts"],
        top_k=config["moe_num_active_primary_experts"],
        activation="relu",
        score="chosen" if config.get("moe_primary_router_apply_softmax") else "sigmoid",
        early=config.get("moe_enable_early_router", True),
        windows=windows,
        rotated=[bool(flag) for flag in config.get("rope_layout", [])],
        router="block_sparse_moe.primary_router.weight",
        gate="block_sparse_moe.experts.{}.gate.weight",
        up="block_sparse_moe.experts.{}.up.weight",
        down="block_sparse_moe.experts.{}.down.weight",
    )


def llama_moe(config: dict[str, Any]) -> Plan:
    """LLaMA-MoE with a gate of one layer."""
    return Plan(
        **_dimensions(config),
        experts=config["num_experts"],
        top_k=config["num_selects"],
        activation=config.get("hidden_act", "silu"),
        score="chosen",
        scale=config.get("score_scale_factor", 1.0),
        router="mlp.gate.gate_network.weight",
        gate="mlp.calculator.experts.weight_gate.{}",
        up="mlp.calculator.experts.weight_up.{}",
        down="mlp.calculator.experts.weight_down.{}",
    )


def switch(config: dict[str, Any]) -> Plan:
    """Top-1 with a threshold, plain experts, dense layers between."""
    step = config.get("decoder_sparse_step", 1)
    return Plan(
        **_dimensions(config),
        experts=config["num_experts"],
        top_k=1,
        activation=config.get("hidden_act", "relu"),
        score="all",
        threshold=config.get("switch_threshold", 0.0),
        dense=[(index + 1) % step != 0 for index in range(config["num_hidden_layers"])],
        router="mlp.router.classifier.weight",
        up="mlp.experts.expert_{}.wi.weight",
        down="mlp.experts.expert_{}.wo.weight",
        dense_up="mlp.wi.weight",
        dense_down="mlp.wo.weight",
    )


def face_moe(config: dict[str, Any]) -> Plan:
    """Plain experts weighted by the router's logits."""
    return Plan(
        **_dimensions(config),
        experts=config["num_experts"],
        top_k=config.get("num_experts_per_tok", 2),
        activation=config.get("hidden_act", "silu"),
        score="logits",
        router="gate.weight",
        up="expert.{}.w1.weight",
        down="expert.{}.w2.weight",
    )


PLANS = {"smallthinker": small_thinker, "llama_moe": llama_moe, "switch": switch, "face_moe": face_moe}
_ACTIVATIONS: dict[str, Any] = {
    "silu": functional.silu,
    "relu": functional.relu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
}


class PlainDecoder:
    """Parameters by name, and a forward pass over one sequence."""

    last_norm = ("model.norm.weight",)

    def __init__(self, family: str, config: dict[str, Any]) -> None:
        self.family, self.config = family, config
        self.plan = PLANS[family](config)
        self.parameters = {name: torch.empty(shape) for name, shape in self._shapes()}

    def _shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        config, plan = self.config, self.plan
        hidden, vocabulary = config["hidden_size"], config["vocab_size"]
        shared = config.get("intermediate_size", 0)
        inner = config.get("moe_ffn_hidden_size", shared // plan.experts if "num_selects" in config else shared)
        found: list[tuple[str, tuple[int, ...]]] = [
            ("model.embed_tokens.weight", (vocabulary, hidden)),
            ("model.norm.weight", (hidden,)),
        ]
        if not config.get("tie_word_embeddings", self.family == "smallthinker"):
            found.append(("lm_head.weight", (vocabulary, hidden)))
        for index in range(plan.layers):
            base = f"model.layers.{index}."
            width, kv = plan.heads * plan.head_dim, plan.kv_heads * plan.head_dim
            rows = {
                "input_layernorm.weight": (hidden,),
                "post_attention_layernorm.weight": (hidden,),
                "self_attn.q_proj.weight": (width, hidden),
                "self_attn.k_proj.weight": (kv, hidden),
                "self_attn.v_proj.weight": (kv, hidden),
                "self_attn.o_proj.weight": (hidden, width),
            }
            if plan.dense[index]:
                rows |= {plan.dense_up: (shared, hidden), plan.dense_down: (hidden, shared)}
            else:
                rows[plan.router] = (plan.experts, hidden)
                for expert in range(plan.experts):
                    if plan.gate:
                        rows[plan.gate.format(expert)] = (inner, hidden)
                    rows[plan.up.format(expert)] = (inner, hidden)
                    rows[plan.down.format(expert)] = (hidden, inner)
            found += [(base + name, shape) for name, shape in rows.items()]
        return found

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """As a torch module's."""
        return list(self.parameters.items())

    def save_pretrained(self, folder: Path) -> None:
        """Write config.json and model.safetensors."""
        save_file(self.parameters, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.plan.eps)
        return self.parameters[name] * (x * scale)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        """x: (tokens, heads, head_dim)."""
        half = self.plan.head_dim // 2
        frequency = 1.0 / self.plan.theta ** (torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(len(x), dtype=torch.float32)[:, None] * frequency
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        first, second = x[..., :half], x[..., half:]
        return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)

    def _attention(self, index: int, x: torch.Tensor) -> torch.Tensor:
        plan, tokens = self.plan, len(x)
        base = f"model.layers.{index}.self_attn."

        def project(name: str, heads: int) -> torch.Tensor:
            return (x @ self.parameters[f"{base}{name}_proj.weight"].T).view(tokens, heads, plan.head_dim)

        q, k, v = project("q", plan.heads), project("k", plan.kv_heads), project("v", plan.kv_heads)
        if plan.rotated[index]:
            q, k = self._rotate(q), self._rotate(k)
        k, v = (part.repeat_interleave(plan.heads // plan.kv_heads, 1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / plan.head_dim**0.5
        position = torch.arange(tokens)
        distance = position[:, None] - position[None, :]
        hidden = distance < 0
        if plan.windows[index]:
            hidden |= distance >= plan.windows[index]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", weights, v).reshape(tokens, -1)
        return mixed @ self.parameters[base + "o_proj.weight"].T

    def _expert(self, index: int, x: torch.Tensor, gate: str, up: str, down: str) -> torch.Tensor:
        base, act = f"model.layers.{index}.", _ACTIVATIONS[self.plan.activation]
        inner = x @ self.parameters[base + up].T
        inner = act(x @ self.parameters[base + gate].T) * inner if gate else act(inner)
        result: torch.Tensor = inner @ self.parameters[base + down].T
        return result

    def _mixture(self, index: int, x: torch.Tensor, router_input: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        plan = self.plan
        logits = router_input @ self.parameters[f"model.layers.{index}.{plan.router}"].T
        best, ids = torch.topk(logits, plan.top_k, dim=-1)
        if plan.score == "chosen":
            weights = best.softmax(-1)
        elif plan.score == "sigmoid":
            weights = best.sigmoid()
            weights = weights / weights.sum(-1, keepdim=True)
        elif plan.score == "all":
            weights = logits.softmax(-1).gather(-1, ids)
        else:
            weights = best
        output = torch.zeros_like(x)
        for token in range(len(x)):
            for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
                if plan.threshold and weight < plan.threshold:
                    continue
                names = (part.format(expert) for part in (plan.gate, plan.up, plan.down))
                output[token] += plan.scale * weight * self._expert(index, x[token], *names)
        return output, ids

    def run(self, ids: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits (tokens, vocabulary), and per layer with experts the chosen ones (tokens, top_k) by rank."""
        plan, routing = self.plan, []
        x = self.parameters["model.embed_tokens.weight"][ids]
        for index in range(plan.layers):
            base = f"model.layers.{index}."
            before = x
            x = x + self._attention(index, self._norm(base + "input_layernorm.weight", x))
            inner = self._norm(base + "post_attention_layernorm.weight", x)
            if plan.dense[index]:
                x = x + self._expert(index, inner, "", plan.dense_up, plan.dense_down)
                continue
            output, chosen = self._mixture(index, inner, before if plan.early else inner)
            routing.append(chosen)
            x = x + output
        head = self.parameters.get("lm_head.weight", self.parameters["model.embed_tokens.weight"])
        return self._norm("model.norm.weight", x) @ head.T, routing
