# SPDX-License-Identifier: MIT
"""The demo model's stored weights in `transformers`, in float32, against what the engine says.

The weights are the dequantised ones of the very file, so what differs is arithmetic alone: the
contract quantises activations to 8 bits per group of 32 and keeps keys and values in f16. Greedy
ids must be equal, or the first difference must lie at a near tie; its gap is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import deterministic
from colibri._spec import Role
from colibri.engine import Engine
from colibri.format import ModelFile, open_model
from stored import decoder_options, load_trunk, tensor
from transformers import MixtralConfig, MixtralForCausalLM

PROMPTS = (
    ("What is the capital of France?", True),
    ("Once upon a time, in a small village by the sea,", False),
    ("Write one sentence about the moon.", True),
)
TOKENS = 32
# A token may differ where the two best logits are closer than this; the error of one logit is about
# 0.25 (rms). The experts of this model are perturbed copies of one another, so a wrong one would
# hardly show in the logits: the chosen experts are compared too, and test_mixtral.py has unlike ones.
NEAR_TIE = 0.5
RMS_BOUND = 0.1  # rms error of the logits, relative to their own deviation; measured 0.04 to 0.06
SAME_EXPERTS = 0.9  # share of the choices of the prompt; measured 0.96, the rest are near ties


def load(path: Path) -> Any:
    """The file as a MixtralForCausalLM in float32."""
    with open_model(path) as file:
        options, moe = decoder_options(file)
        config = MixtralConfig(
            **options,
            num_local_experts=moe.experts,
            num_experts_per_tok=moe.top_k,
            rms_norm_eps=file.records.layers[0].layer.norm_eps,
        )
        model = load_trunk(file, MixtralForCausalLM, config)
        with torch.no_grad():
            for index, layer in enumerate(model.model.layers):
                load_experts(file, index, layer.mlp, moe.experts)
        model.tie_weights()
    return model.eval()


def load_experts(file: ModelFile, index: int, mlp: Any, experts: int) -> None:
    """The router and the experts of one layer."""
    mlp.gate.weight.copy_(tensor(file, Role.ROUTER, index))
    for expert in range(experts):
        gate, up = (tensor(file, role, index, expert) for role in (Role.EXPERT_GATE, Role.EXPERT_UP))
        mlp.experts.gate_up_proj[expert].copy_(torch.cat([gate, up]))
        mlp.experts.down_proj[expert].copy_(tensor(file, Role.EXPERT_DOWN, index, expert))


@pytest.mark.demo
@pytest.mark.usefixtures("native_library")
def test_greedy_text_of_the_demo_model_is_that_of_transformers(
    demo_model: Path, note: Callable[[str], None]
) -> None:
    oracle = load(demo_model)
    equal_prompts = 0
    with Engine(demo_model, kv="f16", batch_tokens=512, lock="off") as engine, engine.session() as session:
        for text, chat in PROMPTS:
            prompt = engine.tokenize(text, chat=chat)
            session.reset()
            session.append(prompt)
            chosen = np.array([session.routing(layer) for layer in range(engine.info.layers)])
            rows: list[Any] = []
            ids = list(session.generate(TOKENS, on_logits=lambda row, rows=rows: rows.append(np.array(row))))  # type: ignore[misc]
            ours = np.stack(rows)
            # One pass over prompt and answer: the logits that chose each of the answer's tokens.
            with torch.no_grad(), deterministic():
                whole = oracle(torch.tensor([prompt + ids[:-1]]), use_cache=False, output_router_logits=True)
            theirs = whole.logits[0].numpy()[len(prompt) - 1 :]
            same = compare_experts(chosen, [layer[: len(prompt)] for layer in whole.router_logits])
            assert theirs.shape == ours.shape
            equal_prompts += compare(text, ids, ours, theirs, note)
            answer = engine.detokenize([i for i in ids if not engine.is_special(i)])
            note(f"  same experts {same:.4f}; answer {answer!r}")
    note(f"demo model against transformers: {equal_prompts} of {len(PROMPTS)} prompts have equal ids")


def compare_experts(ours: Any, router_logits: list[torch.Tensor]) -> float:
    """Share of equal choices. ours: (layers, tokens, top_k) ids; router_logits: per layer (tokens, experts)."""
    theirs = np.stack([torch.topk(logits, ours.shape[2], dim=-1).indices.numpy() for logits in router_logits])
    same = float(np.mean(np.sort(ours, axis=2) == np.sort(theirs, axis=2)))
    assert same >= SAME_EXPERTS
    return same


def compare(text: str, ids: list[int], ours: Any, theirs: Any, note: Callable[[str], None]) -> bool:
    """Whether all ids are equal; fails when a difference is no near tie or the logits are far apart."""
    error = ours - theirs
    rms = float(np.sqrt((error**2).mean()))
    scale = float(theirs.std())
    gaps = theirs.max(axis=1) - theirs[np.arange(len(ids)), ids]
    different = np.flatnonzero(theirs.argmax(axis=1) != np.array(ids))
    note(f"{text!r}: {len(ids) - len(different)} of {len(ids)} ids equal")
    note(f"  logits: rms error {rms:.4f} ({rms / scale:.4f} of their deviation), largest {np.abs(error).max():.4f}")
    for step in different:
        other = int(theirs[step].argmax())
        note(f"  step {step}: we choose {ids[step]}, transformers {other}, {gaps[step]:.4f} above it")
    assert rms < RMS_BOUND * scale
    assert gaps.max() < NEAR_TIE
    return len(different) == 0
