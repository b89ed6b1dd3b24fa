# SPDX-License-Identifier: MIT
"""The numpy forward pass: any split gives the same bits, and records choose the pieces."""

from __future__ import annotations

import argparse
import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri import operators as ops
from colibri._spec import Code, Role, RouterNormalise, RouterScore, Scope
from colibri.errors import ColibriError
from colibri.operators import F32
from colibri.reference import (
    GOLDEN_FORMAT,
    ReferenceModel,
    add_golden_arguments,
    golden_command,
    greedy,
)
from colibri.verify import golden_path
from synthetic import SHAPES, Shape, tensor_values, write_model

PROMPT = [int(token) for token in np.random.default_rng(11).integers(0, 101, 24)]


def same_bits(a: F32, b: F32) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.fixture
def make(tmp_path: Path) -> Any:
    """make(shape) writes a model and opens it."""

    def build(shape: Shape | str, seed: int = 1) -> ReferenceModel:
        shape = SHAPES[shape] if isinstance(shape, str) else shape
        return ReferenceModel(write_model(tmp_path / "m.colibri", shape, seed))

    return build


@pytest.mark.parametrize("name", SHAPES)
def test_a_prompt_in_one_call_and_token_by_token_gives_the_same_bits(make: Any, name: str) -> None:
    model = make(name)
    whole = model.session().append(PROMPT)
    split = model.session()
    parts = [split.append(piece) for piece in (PROMPT[:1], PROMPT[1:2], PROMPT[2:9], PROMPT[9:])]
    same_bits(whole.logits, np.concatenate([part.logits for part in parts]))
    assert whole.routing.keys() == {i for i in range(len(model.records.layers)) if model.records.layers[i].experts}
    for layer, ids in whole.routing.items():
        np.testing.assert_array_equal(ids, np.concatenate([part.routing[layer] for part in parts]))
    assert whole.logits.std() > 1  # else nothing above would tell right from wrong


def test_the_last_logits_alone_equal_those_of_all_positions(make: Any) -> None:
    model = make("mixtral")
    last = model.session().append(PROMPT, all_logits=False).logits
    same_bits(last, model.session().append(PROMPT).logits[-1:])


def test_the_type_of_the_kv_cache_changes_the_logits(make: Any) -> None:
    model = make("mixtral")
    assert not np.array_equal(model.session("f16").append(PROMPT).logits, model.session("f32").append(PROMPT).logits)


@pytest.mark.parametrize(("window", "same"), [(24, True), (23, False)])
def test_a_window_counts_the_current_token(make: Any, window: int, same: bool) -> None:
    full = make(Shape()).session().append(PROMPT).logits[-1]
    narrow = make(Shape(attention={"window_tokens": window})).session().append(PROMPT).logits[-1]
    assert np.array_equal(full, narrow) == same


def test_a_threshold_leaves_weak_experts_out(make: Any) -> None:
    weak = {"router_score": RouterScore.SOFTMAX_ALL, "router_normalise": RouterNormalise.NONE, "threshold": 1.5}
    none = make(Shape(layers=1, moe=weak)).session().append(PROMPT).logits
    shape = Shape(layers=1, moe={**weak, "threshold": 0.0})
    all_of_them = make(shape).session().append(PROMPT).logits
    silent = make(replace(shape, moe={**weak, "threshold": 0.0, "routed_scale": 0.0})).session().append(PROMPT).logits
    assert not np.array_equal(none, all_of_them)
    np.testing.assert_array_equal(none, silent)


def test_a_parallel_layer_feeds_its_experts_the_input_of_its_mixer(tmp_path: Path) -> None:
    seen = []

    class Spy(ReferenceModel):
        def experts(self, moe: Any, layer: int, x: Any, ids: Any, weights: Any) -> F32:
            seen.append(x.x)
            return super().experts(moe, layer, x, ids, weights)

    model = Spy(write_model(tmp_path / "m.colibri", SHAPES["parallel"]))
    model.session().append(PROMPT)
    weight = model.weights.needed(Role.PRE_MIXER_NORM, 0)
    same_bits(seen[0], ops.rmsnorm(model.embed(PROMPT, 0), weight, 1e-5))


def test_a_float_model_follows_a_float64_transcription(make: Any) -> None:
    """One layer, written out again in binary64 from the description of the family."""
    shape = replace(SHAPES["mixtral_f32"], layers=1)
    model = make(shape)
    weights = {}
    for entry in model.file.tensors:
        experts = range(shape.experts) if entry.scope == Scope.EXPERT else [None]
        for expert in experts:
            slot = argparse.Namespace(tensor=entry, name="", expert=expert)
            slot.name = entry.name if expert is None else f"layer 0 expert {expert} {entry.role.name.lower()}"
            weights[entry.role, expert] = tensor_values(slot, 1).astype(np.float64)  # type: ignore[arg-type]
    found = model.session("f32").append(PROMPT)

    def norm(x: Any, role: Role) -> Any:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5) * weights[role, None][0]

    def rotate(x: Any) -> Any:
        inverse = shape.theta ** (-np.arange(8) / 8)
        angle = np.arange(len(x))[:, None, None] * inverse
        a, b = x[..., :8], x[..., 8:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)

    x = weights[Role.EMBEDDING, None][PROMPT]
    n = norm(x, Role.PRE_MIXER_NORM)
    q = rotate((n @ weights[Role.Q, None].T).reshape(-1, 4, 16))
    k = np.repeat(rotate((n @ weights[Role.K, None].T).reshape(-1, 2, 16)), 2, axis=1)
    v = np.repeat((n @ weights[Role.V, None].T).reshape(-1, 2, 16), 2, axis=1)
    scores = np.einsum("thd,uhd->htu", q, k) / 4
    scores = np.where(np.tril(np.ones((24, 24)))[None] > 0, scores, -np.inf)
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = np.einsum("htu,uhd->thd", e / e.sum(axis=-1, keepdims=True), v).reshape(24, -1)
    x = x + mixed @ weights[Role.O, None].T
    n = norm(x, Role.PRE_FFN_NORM)
    router = n @ weights[Role.ROUTER, None].T
    chosen = np.argsort(-router, axis=1)[:, :2]
    np.testing.assert_array_equal(found.routing[0], chosen)
    for t in range(24):
        e = np.exp(router[t, chosen[t]])
        for weight, expert in zip(e / e.sum(), chosen[t], strict=True):
            gate = weights[Role.EXPERT_GATE, expert] @ n[t]
            hidden = gate / (1 + np.exp(-gate)) * (weights[Role.EXPERT_UP, expert] @ n[t])
            x[t] += weight * (weights[Role.EXPERT_DOWN, expert] @ hidden)
    expected = norm(x, Role.FINAL_NORM) @ weights[Role.HEAD, None].T
    assert np.abs(found.logits - expected).max() < 1e-5 * np.abs(expected).max()


def test_greedy_prefers_the_lower_id() -> None:
    assert greedy(np.array([0, 2, 1, 2], dtype=np.float32), 0) == 1


def test_generated_ids_and_their_hash_follow_from_single_appends(make: Any) -> None:
    model = make("mixtral")
    result = model.session().generate(PROMPT, 5)
    session = model.session()
    digest = hashlib.sha256()
    logits = session.append(PROMPT).logits[-1]
    ids = []
    for _ in range(5):
        digest.update(logits.astype("<f4").tobytes())
        ids.append(int(logits.argmax()))
        logits = session.append(ids[-1:]).logits[-1]
    assert result.ids == ids
    assert result.logits_sha256 == digest.hexdigest()


def test_generation_stops_behind_an_end_token(make: Any) -> None:
    model = make("mixtral")
    free = model.session().generate(PROMPT, 8).ids
    stopped = model.session().generate(PROMPT, 8, is_end=lambda token: token == free[3])
    assert stopped.ids == free[: free.index(free[3]) + 1]


@pytest.mark.parametrize("token", [-1, 101])
def test_an_id_outside_the_vocabulary_is_refused(make: Any, token: int) -> None:
    with pytest.raises(ColibriError, match=f"token id {token}; the limit is 0..100") as caught:
        make("mixtral").session().append([1, token])
    assert caught.value.code == Code.TOKEN_RANGE


def test_a_full_context_is_refused_and_the_sequence_stays(make: Any) -> None:
    session = make(Shape(context=24)).session()
    session.append(PROMPT[:20])
    with pytest.raises(ColibriError, match="the limit is 24") as caught:
        session.append(PROMPT[:5])
    assert caught.value.code == Code.CONTEXT_FULL
    session.append(PROMPT[20:24])
    assert session.position == 24


def test_an_overflow_is_an_error_and_not_an_infinity(make: Any) -> None:
    with pytest.raises(ColibriError) as caught:
        make(Shape(layer={"residual_multiplier": 3e38})).session().append(PROMPT)
    assert caught.value.code == Code.NON_FINITE


@pytest.mark.parametrize(
    "shape",
    [
        Shape(model={"logits_softcap": 30.0}),
        Shape(attention={"softcap": 50.0}),
        Shape(attention={"output_gate": 1}),
    ],
)
def test_records_that_ask_for_an_undefined_operator_are_refused(make: Any, shape: Shape) -> None:
    with pytest.raises(ColibriError) as caught:
        make(shape)
    assert caught.value.code == Code.UNSUPPORTED


# ---- golden files ---------------------------------------------------------------------------


def golden(model: Path, *arguments: str) -> Path:
    parser = argparse.ArgumentParser()
    add_golden_arguments(parser)
    assert golden_command(parser.parse_args([str(model), *arguments])) == 0
    return golden_path(model)


@pytest.mark.parametrize("arguments", [[], ["-o", "m.golden.json"]])
def test_golden_results_of_another_model_of_the_same_stem_are_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first, other = write_model(Path("m.colibri"), SHAPES["mixtral"]), write_model(Path("m.int8"), SHAPES["olmoe"])
    written = golden(first, "--ids", "1,2,3", "-n", "2")
    before = written.read_bytes()
    with pytest.raises(ColibriError, match=r"would replace m\.golden\.json, those of m\.colibri") as caught:
        golden(other, "--ids", "1,2,3", "-n", "2", *arguments)
    assert caught.value.code == Code.ARGUMENT
    assert written.read_bytes() == before
    golden(first, "--ids", "4,5", "-n", "2")  # its own
    first.unlink()
    golden(other, "--ids", "1,2,3", "-n", "2")  # nobody's


def test_a_golden_file_holds_the_cases_and_the_root(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES["mixtral"])
    written = golden(path, "--ids", "1,2,3", "--ids", "100", "-n", "4", "--kv", "f32")
    assert written == tmp_path / "m.golden.json"
    document = json.loads(written.read_text(encoding="utf-8"))
    model = ReferenceModel(path)
    assert document["format"] == GOLDEN_FORMAT
    assert document["root"] == model.file.root.hex()
    expected = model.session("f32").generate([1, 2, 3], 4)
    assert document["cases"][0] == {
        "name": "case-1",
        "prompt": "",
        "chat": False,
        "prompt_ids": [1, 2, 3],
        "kv": "f32",
        "n": 4,
        "ids": expected.ids,
        "text": "",
        "logits_sha256": expected.logits_sha256,
    }
    assert document["cases"][1]["prompt_ids"] == [100]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.colibri", "m.golden.json"]


def test_a_golden_file_is_the_same_every_time(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES["mixtral"])
    first = golden(path, "--ids", "1,2,3", "-n", "4").read_bytes()
    assert golden(path, "--ids", "1,2,3", "-n", "4").read_bytes() == first


def test_a_text_prompt_needs_a_tokenizer(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.colibri", SHAPES["mixtral"])
    with pytest.raises(ColibriError) as caught:
        golden(path, "-p", "hello")
    assert caught.value.code == Code.NO_TOKENIZER
