# SPDX-License-Identifier: MIT
"""Running a converted checkpoint in both engines, and the figures of docs/models.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from checkpoints import Oracle
from colibri._spec import DType
from colibri.convert import convert
from colibri.engine import Engine
from colibri.job import Precision
from colibri.reference import Forward, ReferenceModel

FLOAT = Precision(DType.F32, DType.F32, DType.F32)
INT8 = Precision(DType.INT8, DType.INT8, DType.F32)
INT4 = Precision(DType.INT4, DType.INT8, DType.F32)
LIMIT = 1e-5  # of the largest logit; the requirement is 1e-4, float32 noise is near 1e-6
RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Figures:
    """How far quantised weights are from the float checkpoint; rms in the logits' own size."""

    rms: float
    same_experts: float
    same_best_token: float

    def __str__(self) -> str:
        return (
            f"error {self.rms:.3f} of the logits' size (rms), same experts {self.same_experts:.1%}, "
            f"same best token {self.same_best_token:.1%}"
        )


def converted(folder: Path, target: Path, precision: Precision) -> Path:
    """The checkpoint in `folder` as `target`/m.colibri."""
    path = target / "m.colibri"
    convert(folder, path, precision, tokenizer=False, quiet=True)
    return path


def run_engine(path: Path, ids: list[int], kv: str, isa: str | None = None) -> Forward:
    """The C engine, token by token; the whole prompt in one call must end with the same logits."""
    logits: list[Any] = []
    routing: dict[int, list[Any]] = {}
    with Engine(path, kv=kv, threads=2, lock="off", isa=isa) as engine, engine.session() as session:
        moe = [index for index in range(engine.info.layers) if engine.layer_telemetry(index) is not None]
        for token in ids:
            session.append([token])
            logits.append(session.logits_array())
            for layer in moe:
                routing.setdefault(layer, []).append(session.routing(layer)[0])
        session.reset()
        session.append(ids)
        np.testing.assert_array_equal(session.logits_array().view(np.uint32), logits[-1].view(np.uint32))
    return Forward(np.stack(logits), {layer: np.array(rows, np.int32) for layer, rows in routing.items()})


def run_reference(path: Path, ids: list[int], kv: str) -> Forward:
    """The numpy reference, at once."""
    return ReferenceModel(path).session(kv).append(ids)


def float_error(found: Forward, oracle: Oracle) -> float:
    """Largest difference of a logit, in parts of the largest logit."""
    assert found.logits.shape == oracle.logits.shape
    return float(np.abs(found.logits - oracle.logits).max() / np.abs(oracle.logits).max())


def measure(found: Forward, oracle: Oracle) -> Figures:
    """What quantisation changed."""
    difference = found.logits - oracle.logits
    rms = float(np.sqrt((difference**2).mean() / (oracle.logits**2).mean()))
    layers = [found.routing[layer] for layer in sorted(found.routing)]
    same = [np.mean(np.sort(ours) == np.sort(theirs)) for ours, theirs in zip(layers, oracle.routing, strict=True)]
    best = float(np.mean(found.logits.argmax(1) == oracle.logits.argmax(1)))
    return Figures(rms, float(np.mean(same)), best)


def recorded() -> dict[str, dict[str, dict[str, float]]]:
    """The figures of results.json: case -> f32, int8, int4."""
    result: dict[str, dict[str, dict[str, float]]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return result
