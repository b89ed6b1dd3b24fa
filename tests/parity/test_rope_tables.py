# SPDX-License-Identifier: MIT
"""Which table of RoPE a configuration means: frequencies and factor, against what transformers makes of it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from colibri.families import decoder_records, shape_from_config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": 50, "max_position_embeddings": 512, "num_local_experts": 4,
    "num_experts_per_tok": 2, "rope_theta": 10000.0,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CONFIGS: list[dict[str, Any]] = [
    {},
    {"rope_scaling": {}},
    {"rope_parameters": {}},
    {"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_scaling": {"rope_type": "default"}, "rope_parameters": LINEAR},
    {"rope_scaling": {**LINEAR, "rope_theta": 700.0}, "rope_parameters": {"rope_theta": 500.0}},
    {"rope_scaling": {}, "rope_parameters": {**YARN, "rope_theta": 500.0}},
    {"rope_scaling": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    {"rope_scaling": YARN, "original_max_position_embeddings": 128},
    {"rope_scaling": YARN},
    {"rope_scaling": {"type": "yarn", "factor": 4.0}},
]


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("more", CONFIGS, ids=str)
def test_the_table_that_counts_is_that_of_transformers(family: str, more: dict[str, Any]) -> None:
    config = {**SIZES, **more}
    kind: Any = transformers.MixtralConfig if family == "mixtral" else transformers.GptOssConfig
    own = kind(**copy.deepcopy(config))
    name = own.rope_parameters["rope_type"]
    if name == "default":
        theta = own.rope_parameters["rope_theta"]
        wanted, factor = theta ** (-torch.arange(0, 16, 2, dtype=torch.float64) / 16), 1.0
    else:
        wanted, factor = ROPE_INIT_FUNCTIONS[name](own, torch.device("cpu"))
    layers = {"layer_types": ["sliding_attention", "full_attention"]} if family == "gpt_oss" else {}
    rope = decoder_records(shape_from_config(family, {**config, **layers})).ropes[0]
    np.testing.assert_allclose(rope.inv_freq, wanted.numpy(), rtol=1e-6)
    assert rope.attention_factor == pytest.approx(factor, rel=1e-6)
