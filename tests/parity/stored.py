# SPDX-License-Identifier: MIT
"""The stored weights of a .colibri file in a model of `transformers`, dequantised, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from colibri import layout
from colibri._spec import AttentionBlock, MoeBlock, Role, Scope
from colibri.format import ModelFile


def tensor(file: ModelFile, role: Role, layer: int | None = None, expert: int | None = None) -> torch.Tensor:
    """A stored tensor, dequantised: float32 (rows, columns)."""
    entry = file.tensor(role, layer, Scope.TRUNK if expert is None else Scope.EXPERT)
    assert entry is not None
    data = file.tensor_bytes(entry, expert, verify=False)
    return torch.from_numpy(np.array(layout.unpack(data, entry.dtype, entry.layout, entry.rows, entry.columns)))


def decoder_options(file: ModelFile) -> tuple[dict[str, Any], MoeBlock]:
    """What every configuration of a decoder asks for, and the experts of the file's layers."""
    records = file.records
    mixer, moe = records.layers[0].mixer, records.layers[0].ffn
    assert isinstance(mixer, AttentionBlock)
    assert isinstance(moe, MoeBlock)
    options = {
        "hidden_size": records.model.hidden,
        "intermediate_size": moe.intermediate,
        "num_hidden_layers": records.model.layers,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "vocab_size": records.model.vocabulary,
        "tie_word_embeddings": bool(records.model.tied_head),
        "max_position_embeddings": 256,
    }
    return options, moe


def load_trunk(file: ModelFile, kind: Any, config: Any) -> Any:
    """A model of the class `kind` with everything but its feed-forward blocks; its heads are not tied yet."""
    records = file.records
    make: Any = kind._from_config
    with torch.device("meta"):
        model = make(config, attn_implementation="eager", dtype=torch.float32)
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.model.rotary_emb.inv_freq.copy_(torch.tensor(records.ropes[0].inv_freq))
        model.model.embed_tokens.weight.copy_(tensor(file, Role.EMBEDDING))
        model.model.norm.weight.copy_(tensor(file, Role.FINAL_NORM)[0])
        if not records.model.tied_head:
            model.lm_head.weight.copy_(tensor(file, Role.HEAD))
        for index, layer in enumerate(model.model.layers):
            attention = layer.self_attn
            for role, module in (
                (Role.Q, attention.q_proj),
                (Role.K, attention.k_proj),
                (Role.V, attention.v_proj),
                (Role.O, attention.o_proj),
            ):
                module.weight.copy_(tensor(file, role, index))
            layer.input_layernorm.weight.copy_(tensor(file, Role.PRE_MIXER_NORM, index)[0])
            layer.post_attention_layernorm.weight.copy_(tensor(file, Role.PRE_FFN_NORM, index)[0])
    return model
