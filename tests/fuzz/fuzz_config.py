# SPDX-License-Identifier: MIT
"""Fuzz target: the JSON files of a checkpoint (config.json, an index) and the front of its model card."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from fuzzing import Check, Folder, FoundError, Target, main


def load() -> Check:
    """The check: the first byte says which file the rest is."""
    from colibri._families import FAMILIES
    from colibri.checkpoint import shard_names
    from colibri.convert import expected_names
    from colibri.errors import ColibriError
    from colibri.families import (
        architectures_of,
        config_notes,
        decoder_records,
        family_of,
        model_type_of,
        shape_from_config,
    )
    from colibri.files import load_json
    from colibri.provenance import card_license

    config = Folder("config.json")
    index = Folder("model.safetensors.index.json")

    def check(data: bytes) -> None:
        kind, data = data[:1], data[1:]
        if kind == b"I":
            names, wanted = shard_names(index.put(data), "model.safetensors")
            if wanted is None or any("/" in name or name in ("", ".", "..") for name in names):
                raise FoundError(f"shards {names}")
        elif kind == b"R":
            fields = card_license(data.decode("utf-8", "replace"))
            if any("\n" in value for value in fields.values()):
                raise FoundError(f"licence {fields}")
        else:
            table = load_json(config.put(data) / "config.json")
            config_notes(table, "0.1.0")
            key = family_of(architectures_of(table), model_type_of(table))
            shape = shape_from_config(key, table)
            records = decoder_records(shape)
            if records.model.layers <= 4 and all(layer.experts <= 64 for layer in records.layers):
                expected_names(records, FAMILIES[key]["tensors"], shape.part_rows)

    # A refusal must name the file: messages of other readers would not help.
    def named(data: bytes) -> None:
        try:
            check(data)
        except ColibriError as error:
            if not error.message.strip():
                raise FoundError("an empty message") from error
            raise

    return named


CONFIG = {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "hidden_size": 48, "vocab_size": 61,
    "num_hidden_layers": 2, "max_position_embeddings": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 40, "num_local_experts": 3, "num_experts_per_tok": 2, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "sliding_window": None, "tie_word_embeddings": False, "hidden_act": "silu",
    "rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}  # fmt: skip
_COMMON = {
    key: CONFIG[key]
    for key in ("hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings", "num_attention_heads")
}
OTHERS = [
    {
        **_COMMON, "model_type": "smallthinker", "moe_ffn_hidden_size": 40, "moe_num_primary_experts": 4,
        "moe_num_active_primary_experts": 2, "rope_layout": [0, 1], "sliding_window_layout": [1, 0],
        "sliding_window_size": 9, "moe_layer_layout": [1, 1], "moe_enable_early_router": True,
        "moe_primary_router_apply_softmax": False,
    },
    {
        **_COMMON, "model_type": "llama_moe", "intermediate_size": 160, "num_experts": 4, "num_selects": 2,
        "score_scale_factor": 4.0, "gate_network": "linear",
    },
    {
        **_COMMON, "model_type": "switch_decoder", "intermediate_size": 40, "num_experts": 4, "switch_threshold": 0.3,
        "decoder_sparse_step": 2, "expert_capacity": 64, "router_jitter": 0.01, "colibri_version": "0.4.2",
    },
]  # fmt: skip


def seeds() -> Sequence[bytes]:
    """Good files."""
    index = {"metadata": {"total_size": 8}, "weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    card = b"---\nlicense: apache-2.0\nlicense_name: own\ntags:\n- moe\n---\n# A model\n"
    small = {key: value for key, value in CONFIG.items() if "rope" not in key and key != "head_dim"}
    return [b"C" + json.dumps(table).encode() for table in (CONFIG, small, *OTHERS)] + [
        b"I" + json.dumps(index).encode(), b"R" + card,
    ]  # fmt: skip


WORDS = [
    *(json.dumps(key).encode() for table in (CONFIG, *OTHERS) for key in table),
    b"null", b"true", b"-1", b"0", b"1e400", b"NaN", b"Infinity", b"[]", b"{}", b'""', b"9" * 40, b'"../x"',
    b'"/etc/passwd"', b'"\\ud800"', b'"a\\u0000b"', b"[" * 64, b'"yarn"', b"1.5", b"license:", b"---\n",
]  # fmt: skip
TARGET = Target("fuzz_config", load, seeds, WORDS)

if __name__ == "__main__":
    sys.exit(main(TARGET))
