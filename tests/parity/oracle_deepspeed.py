# SPDX-License-Identifier: MIT
"""The decoder of DeepSpeed-MoE in plain torch, for the parity tests.

Written from the published descriptions of Megatron's decoder and of DeepSpeed's gate: LayerNorm in
front of attention and of the feed-forward block, learned positions, biases in every linear layer,
experts (two layers and GELU) in every second block, top-1 weighted by its share of the softmax and
top-k by shares of the chosen. The rows of q, k and v of one head are neighbours in one matrix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import functional

_ACTIVATIONS: dict[str, Any] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}
EMBEDDING, ENCODER = "language_model.embedding.", "language_model.encoder."
MOE = "mlp.deepspeed_moe."


class DeepSpeedDecoder:
    """Parameters by name, and a forward pass over one sequence."""

    last_norm = (f"{ENCODER}final_layernorm.weight", f"{ENCODER}final_layernorm.bias")

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.heads = config["num_attention_heads"]
        self.dim = config.get("head_dim") or config["hidden_size"] // self.heads
        self.top_k = config.get("num_experts_per_tok", 2)
        self.act = _ACTIVATIONS[config.get("hidden_act", "gelu_new")]
        self.eps = config.get("layer_norm_eps", 1e-5)
        self.parameters = {name: torch.empty(shape) for name, shape in self._shapes().items()}

    def _is_sparse(self, index: int) -> bool:
        step: int = self.config.get("expert_interval", 2)
        return (index + 1) % step == 0

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        config = self.config
        hidden, inner, width = config["hidden_size"], config["intermediate_size"], self.heads * self.dim
        shapes: dict[str, tuple[int, ...]] = {
            f"{EMBEDDING}word_embeddings.weight": (config["vocab_size"], hidden),
            f"{EMBEDDING}position_embeddings.weight": (config["max_position_embeddings"], hidden),
        }

        def linear(name: str, rows: int, columns: int) -> None:
            shapes.update({f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)})

        def norm(name: str) -> None:
            shapes.update({f"{name}.weight": (hidden,), f"{name}.bias": (hidden,)})

        for index in range(config["num_hidden_layers"]):
            base = f"{ENCODER}layers.{index}."
            norm(f"{base}input_layernorm")
            norm(f"{base}post_attention_layernorm")
            linear(f"{base}self_attention.query_key_value", 3 * width, hidden)
            linear(f"{base}self_attention.dense", hidden, width)
            blocks = [f"{base}mlp."]
            if self._is_sparse(index):
                shapes[f"{base}{MOE}gate.wg.weight"] = (config["num_experts"], hidden)
                blocks = [f"{base}{MOE}experts.deepspeed_experts.{i}." for i in range(config["num_experts"])]
            for block in blocks:
                linear(f"{block}dense_h_to_4h", inner, hidden)
                linear(f"{block}dense_4h_to_h", hidden, inner)
        norm(f"{ENCODER}final_layernorm")
        if not config.get("tie_word_embeddings", True):
            shapes["language_model.output_layer.weight"] = (config["vocab_size"], hidden)
        return shapes

    def named_parameters(self) -> list[tuple[str, torch.Tensor]]:
        """As a torch module's."""
        return list(self.parameters.items())

    def save_pretrained(self, folder: Path) -> None:
        """Write config.json and model.safetensors."""
        save_file(self.parameters, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"])

    def _norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        weight, bias = self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        return functional.layer_norm(x, weight.shape, weight, bias, self.eps)

    def _attention(self, base: str, x: torch.Tensor) -> torch.Tensor:
        joined = self._linear(f"{base}query_key_value", x).view(len(x), self.heads, 3, self.dim)
        q, k, v = (joined[:, :, part].transpose(0, 1) for part in range(3))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self._linear(f"{base}dense", mixed.transpose(0, 1).reshape(len(x), -1))

    def _block(self, base: str, x: torch.Tensor) -> torch.Tensor:
        return self._linear(f"{base}dense_4h_to_h", self.act(self._linear(f"{base}dense_h_to_4h", x)))

    def _mixture(self, base: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shares = (x @ self.parameters[f"{base}gate.wg.weight"].T).softmax(-1)
        weights, ids = torch.topk(shares, self.top_k, dim=-1)
        if self.top_k > 1:
            weights = weights / weights.sum(-1, keepdim=True)
        output = torch.zeros_like(x)
        for token in range(len(x)):
            for expert, weight in zip(ids[token].tolist(), weights[token], strict=True):
                output[token] += weight * self._block(f"{base}experts.deepspeed_experts.{expert}.", x[token])
        return output, ids

    def run(self, ids: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Logits (tokens, vocabulary), and per layer with experts the chosen ones (tokens, top_k) by rank."""
        routing = []
        words = self.parameters[f"{EMBEDDING}word_embeddings.weight"]
        x = words[ids] + self.parameters[f"{EMBEDDING}position_embeddings.weight"][: len(ids)]
        for index in range(self.config["num_hidden_layers"]):
            base = f"{ENCODER}layers.{index}."
            x = x + self._attention(f"{base}self_attention.", self._norm(f"{base}input_layernorm", x))
            inner = self._norm(f"{base}post_attention_layernorm", x)
            if self._is_sparse(index):
                output, chosen = self._mixture(f"{base}{MOE}", inner)
                routing.append(chosen)
                x = x + output
            else:
                x = x + self._block(f"{base}mlp.", inner)
        head = self.parameters.get("language_model.output_layer.weight", words)
        return self._norm(f"{ENCODER}final_layernorm", x) @ head.T, routing
