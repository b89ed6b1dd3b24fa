# SPDX-License-Identifier: MIT
"""Tiny checkpoints that `transformers` writes itself, with weights that make every part matter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import MixtralConfig, MixtralForCausalLM


@dataclass
class MixtralShape:
    """Arguments of a MixtralConfig."""

    hidden: int = 64
    intermediate: int = 96
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    experts: int = 8
    top_k: int = 2
    vocabulary: int = 128
    tied: bool = False
    window: int | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def config(self) -> MixtralConfig:
        """The configuration."""
        return MixtralConfig(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            num_local_experts=self.experts,
            num_experts_per_tok=self.top_k,
            vocab_size=self.vocabulary,
            tie_word_embeddings=self.tied,
            sliding_window=self.window,
            max_position_embeddings=256,
            **self.more,
        )


def make_mixtral(shape: MixtralShape, folder: Path, seed: int) -> Any:
    """A float32 model with random weights, also saved in `folder`.

    Weights have deviation 1 / sqrt(inputs), so activations keep their size through the layers and
    the logits have a deviation of at least 1: an error of 1e-4 would be seen.
    """
    torch.manual_seed(seed)
    make: Any = MixtralForCausalLM._from_config
    model = make(shape.config(), attn_implementation="eager", dtype=torch.float32)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
                continue
            gain = 2.0 if "gate.weight" in name or name.startswith("lm_head") else 1.0
            fan_in = 1 if "embed_tokens" in name else parameter.shape[-1]
            parameter.copy_(torch.randn_like(parameter) * (gain / math.sqrt(fan_in)))
        if shape.tied:
            model.model.norm.weight.mul_(0.25)  # the head is the embedding: deviation 1 per input
    model.save_pretrained(folder)
    return model


@dataclass
class Oracle:
    """What `transformers` computes for a prompt."""

    logits: np.ndarray[Any, np.dtype[np.float32]]  # (positions, vocabulary)
    routing: list[np.ndarray[Any, np.dtype[np.int64]]]  # per layer (positions, top_k), by rank


def run_oracle(model: Any, ids: list[int]) -> Oracle:
    """Logits of all positions and the chosen experts of every layer."""
    with torch.no_grad(), deterministic():
        out = model(torch.tensor([ids]), output_router_logits=True, use_cache=False)
    k = model.config.num_experts_per_tok
    routing = [torch.topk(layer.reshape(len(ids), -1), k, dim=-1).indices.numpy() for layer in out.router_logits]
    return Oracle(out.logits[0].float().numpy(), routing)


@contextmanager
def deterministic() -> Iterator[None]:
    """One thread: the same sums in every run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
