# SPDX-License-Identifier: MIT
"""Mixtral checkpoints written by `transformers`, converted by us, against `transformers` in float32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import MixtralShape, Oracle, make_mixtral, run_oracle
from colibri._spec import DType
from colibri.convert import convert
from colibri.engine import Engine
from colibri.job import Precision
from colibri.reference import Forward, ReferenceModel

SHAPES = {
    "grouped_heads": MixtralShape(),
    "one_kv_head": MixtralShape(heads=6, kv_heads=1, head_dim=8, layers=2),
    "all_kv_heads": MixtralShape(heads=4, kv_heads=4, experts=4, top_k=1),
    "tied": MixtralShape(tied=True, vocabulary=99),
    "odd_sizes": MixtralShape(hidden=72, intermediate=104, heads=3, kv_heads=3, head_dim=24, vocabulary=131, experts=5),
    "many_experts": MixtralShape(experts=16, top_k=6, layers=2),
    "short_window": MixtralShape(window=11, layers=4),
    "other_theta": MixtralShape(more={"rope_theta": 1e4, "rms_norm_eps": 1e-6}),
}
FLOAT = Precision(DType.F32, DType.F32, DType.F32)
INT8 = Precision(DType.INT8, DType.INT8, DType.F32)
INT4 = Precision(DType.INT4, DType.INT8, DType.F32)
PROMPT_TOKENS = 64
LIMIT = 1e-5  # of the largest logit; the requirement is 1e-4, float32 noise is below 1e-6


@pytest.fixture(scope="module", params=SHAPES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], Oracle]:
    """(checkpoint folder, prompt, what transformers says)."""
    shape = SHAPES[request.param]
    seed = list(SHAPES).index(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    model = make_mixtral(shape, folder, seed)
    ids = [int(token) for token in np.random.default_rng(seed).integers(0, shape.vocabulary, PROMPT_TOKENS)]
    oracle = run_oracle(model, ids)
    assert oracle.logits.std() >= 1
    return folder, ids, oracle


def run_engine(path: Path, ids: list[int], kv: str) -> Forward:
    """The C engine, token by token."""
    logits, routing = [], {}  # type: ignore[var-annotated]
    with Engine(path, kv=kv, threads=2, lock="off") as engine, engine.session() as session:
        for token in ids:
            session.append([token])
            logits.append(session.logits_array())
            for layer in range(engine.info.layers):
                routing.setdefault(layer, []).append(session.routing(layer)[0])
    return Forward(np.stack(logits), {layer: np.array(rows, np.int32) for layer, rows in routing.items()})


def run_reference(path: Path, ids: list[int], kv: str) -> Forward:
    """The numpy reference, at once."""
    return ReferenceModel(path).session(kv).append(ids)


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("run", [run_reference, run_engine])
def test_float_weights_give_the_logits_of_transformers(
    case: Any, tmp_path: Path, run: Any, note: Callable[[str], None]
) -> None:
    folder, ids, oracle = case
    convert(folder, tmp_path / "m.colibri", FLOAT, tokenizer=False, quiet=True)
    found = run(tmp_path / "m.colibri", ids, "f32")
    error = np.abs(found.logits - oracle.logits).max() / np.abs(oracle.logits).max()
    note(f"Mixtral, f32 weights, {run.__name__}: largest error {error:.2e} of the largest logit")
    assert found.logits.shape == oracle.logits.shape
    assert error <= LIMIT


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("run", [run_reference, run_engine])
def test_every_layer_routes_as_transformers_does(case: Any, tmp_path: Path, run: Any) -> None:
    folder, ids, oracle = case
    convert(folder, tmp_path / "m.colibri", FLOAT, tokenizer=False, quiet=True)
    found = run(tmp_path / "m.colibri", ids, "f32")
    assert len(found.routing) == len(oracle.routing)
    for layer, expected in enumerate(oracle.routing):
        assert len(np.unique(expected)) > 1
        np.testing.assert_array_equal(found.routing[layer], expected)


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize(("precision", "allowed"), [(INT8, 0.25), (INT4, 1.0)], ids=["int8", "int4"])
def test_quantised_weights_give_equal_bits_and_a_bounded_error(
    case: Any, tmp_path: Path, precision: Precision, allowed: float, note: Callable[[str], None]
) -> None:
    folder, ids, oracle = case
    convert(folder, tmp_path / "m.colibri", precision, tokenizer=False, quiet=True)
    reference = run_reference(tmp_path / "m.colibri", ids, "f16")
    engine = run_engine(tmp_path / "m.colibri", ids, "f16")
    np.testing.assert_array_equal(reference.logits.view(np.uint32), engine.logits.view(np.uint32))
    for layer, expected in reference.routing.items():
        np.testing.assert_array_equal(engine.routing[layer], expected)
    difference = reference.logits - oracle.logits
    rms = float(np.sqrt((difference**2).mean() / (oracle.logits**2).mean()))
    same = np.mean([np.mean(np.sort(reference.routing[i]) == np.sort(r)) for i, r in enumerate(oracle.routing)])
    top = np.mean(reference.logits.argmax(1) == oracle.logits.argmax(1))
    what = f"Mixtral, {precision.experts.name.lower()} experts: error {rms:.3f} of the logits' size (rms)"
    note(f"{what}, same experts {same:.1%}, same best token {top:.1%}")
    assert rms < allowed
