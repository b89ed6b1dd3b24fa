# SPDX-License-Identifier: MIT
"""The dense SmolLM2 as a Mixture of one expert, in f16, against `transformers`' Llama in float32.

A router of one expert gives the weight 1, so nothing of the mixture is left and the answer must be
that of the dense model, token for token, over 64 tokens of each prompt. Both use the same f16
weights. No logit may differ by more than LIMIT, so two that `transformers` sees at most twice as far
apart are a tie: either may be chosen, and each such choice is noted. The suite takes the first
3 prompts, `make eval` all 10 (COLIBRI_PROMPTS).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoints import deterministic
from colibri._spec import Role
from colibri.engine import Engine
from colibri.format import open_model
from colibri.job import run_job
from colibri.recipe import load_recipe
from stored import decoder_options, load_trunk, tensor
from transformers import LlamaConfig, LlamaForCausalLM

RECIPE = Path(__file__).resolve().parents[2] / "configs" / "models" / "smollm2-moe.toml"
PROMPTS = (
    ("What is the capital of France?", True),
    ("Once upon a time, in a small village by the sea,", False),
    ("Ein Kolibri ist ein kleiner Vogel, der", False),
    ("Name three colours.", True),
    ("Write one sentence about the moon.", True),
    ("How do I boil an egg?", True),
    ("Why is the sky blue?", True),
    ("The three most important rules of cooking are", False),
    ("def fibonacci(n):\n", False),
    ("1, 2, 3, 5, 8,", False),
)
WANTED = int(os.environ.get("COLIBRI_PROMPTS", "3"))
TOKENS = 64
LIMIT = 5e-4  # of a logit; the largest that was measured is 2e-4
TIE = 2 * LIMIT  # one logit may be so much too high, the other so much too low


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo recipe with one expert that is the dense block itself, everything f16."""
    text = RECIPE.read_text(encoding="utf-8")
    changes = {
        "experts = 8": "experts = 1",
        "top_k = 2": "top_k = 1",
        "perturbation = 0.05": "perturbation = 0.0",
        "router_deviation = 0.05": "router_deviation = 0.0",
        'file = "licenses/Apache-2.0.txt"': "",
    }
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    folder = tmp_path_factory.mktemp("dense")
    (folder / "dense.toml").write_text(text, encoding="utf-8")
    job = load_recipe(folder / "dense.toml", {"experts": "f16", "trunk": "f16"})
    run_job(job, folder / "dense.colibri", quiet=True)
    return folder / "dense.colibri"


def load_dense(path: Path) -> Any:
    """The weights of the file in a LlamaForCausalLM, float32."""
    with open_model(path) as file:
        options, moe = decoder_options(file)
        assert (moe.experts, moe.top_k) == (1, 1)
        config = LlamaConfig(**options, rms_norm_eps=file.records.model.norm_eps)
        model = load_trunk(file, LlamaForCausalLM, config)
        with torch.no_grad():
            for index, layer in enumerate(model.model.layers):
                for role, module in (
                    (Role.EXPERT_GATE, layer.mlp.gate_proj),
                    (Role.EXPERT_UP, layer.mlp.up_proj),
                    (Role.EXPERT_DOWN, layer.mlp.down_proj),
                ):
                    module.weight.copy_(tensor(file, role, index, 0))
        model.tie_weights()
    return model.eval()


@pytest.mark.demo
@pytest.mark.usefixtures("native_library")
def test_greedy_text_of_the_dense_model_is_that_of_transformers(dense: Path, note: Callable[[str], None]) -> None:
    oracle = load_dense(dense)
    largest = 0.0
    with Engine(dense, kv="f32", batch_tokens=128, lock="off") as engine, engine.session() as session:
        for text, chat in PROMPTS[:WANTED]:
            prompt = engine.tokenize(text, chat=chat)
            session.reset()
            session.append(prompt)
            rows: list[Any] = []
            ids = list(
                session.generate(
                    TOKENS, stop_at_end=False, on_logits=lambda row, rows=rows: rows.append(np.array(row))  # type: ignore[misc]
                )
            )
            ours = np.stack(rows)
            with torch.no_grad(), deterministic():  # every step is given our ids: equal choices are an equal text
                theirs = oracle(torch.tensor([prompt + ids[:-1]]), use_cache=False).logits[0, len(prompt) - 1 :].numpy()
            largest = max(largest, float(np.abs(ours - theirs).max()))
            gaps = theirs.max(axis=1) - theirs[np.arange(TOKENS), ids]
            for step in np.flatnonzero(gaps):
                note(f"{text!r}, step {step}: we choose {ids[step]}, {gaps[step]:.6f} below transformers' best")
            assert gaps.max() <= TIE
    done = len(PROMPTS[:WANTED])
    note(f"dense SmolLM2 in f16: {done} prompts x {TOKENS} tokens, largest difference of a logit {largest:.1e}")
    assert largest <= LIMIT
