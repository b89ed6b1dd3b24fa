# SPDX-License-Identifier: MIT
"""`colibrictl run --telemetry`: the JSON against counts that Python makes, and the warning."""

from __future__ import annotations

import json
import math
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri.calibrate import write_calibrated
from colibri.calibration import Profile
from colibri.engine import Engine
from colibri.format import open_model
from native_cases import program
from synthetic import Shape, write_model

IDS = [(i * 13 + 5) % 101 for i in range(60)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, the first one dense, eight experts, top 2."""
    path = tmp_path_factory.mktemp("model") / "model.colibri"
    return write_model(path, Shape(dense_layers=(0,), experts=8))


def run(model: Path, target: str | Path, ids: Sequence[int] = IDS) -> subprocess.CompletedProcess[str]:
    """Generate four tokens behind the ids."""
    prompt = ",".join(map(str, ids))
    return subprocess.run(
        [program("colibrictl"), "run", model, "--ids", prompt, "-n", "4", "-q", "--telemetry", target, "--ignore-end"],
        capture_output=True, text=True, errors="replace", check=False, timeout=60,
    )  # fmt: skip


def entropy(counts: list[int]) -> float:
    """Bits, in binary64."""
    total = sum(counts)
    return -sum(n / total * math.log2(n / total) for n in counts if n)


def test_the_json_is_what_the_routing_was(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "t.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "t.json").read_text())
    with Engine(model) as engine, engine.session() as session:
        counts = np.zeros((3, 8), dtype=int)
        for index in range(63):  # the last of four tokens is not appended
            session.append([IDS[index] if index < 60 else session.sample()])
            for layer in (1, 2):
                counts[layer][session.routing(layer)[0]] += 1
        assert found["root"] == engine.info.root.hex()
    assert [layer["layer"] for layer in found["layers"]] == [1, 2]
    for layer in found["layers"]:
        mine = counts[layer["layer"]].tolist()
        assert layer["counts"] == mine
        assert (layer["experts"], layer["top_k"], layer["choices"]) == (8, 2, 63 * 2)
        assert abs(layer["entropy_bits"] - entropy(mine)) <= 0.001
        assert layer["counts"][layer["hottest"]] == max(mine)
        assert layer["hottest_percent"] == max(mine) * 100 * 8 // (63 * 2)
        assert layer["hot"] == sum(n * 8 > 3 * 63 * 2 for n in mine)
        assert layer["drift"] is None
    assert found["hot"] == sum(layer["hot"] for layer in found["layers"])


def test_a_dash_means_standard_output(model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "t.json").returncode == 0
    assert json.loads(run(model, "-").stdout) == json.loads((tmp_path / "t.json").read_text())


def test_a_file_that_cannot_be_written_is_named(model: Path, tmp_path: Path) -> None:
    done = run(model, tmp_path / "missing" / "t.json")
    assert done.returncode != 0
    assert str(tmp_path / "missing") in done.stderr


def profiled(model: Path, target: Path, counts: list[int]) -> Path:
    """The model with a profile of these counts in both layers."""
    with open_model(model) as file:
        tokens = sum(counts) // 2
        write_calibrated(file, target, Profile(tokens, [1, 2], [counts, counts], [{}, {}]))
    return target


def test_drift_is_half_the_sum_of_the_differences(model: Path, tmp_path: Path) -> None:
    counts = [40, 0, 25, 25, 10, 0, 0, 0]
    found: Any = json.loads(run(profiled(model, tmp_path / "new.colibri", counts), "-").stdout)
    for layer in found["layers"]:
        shares = [(n / layer["choices"], m / 100) for n, m in zip(layer["counts"], counts, strict=True)]
        assert abs(layer["drift"] - sum(abs(a - b) for a, b in shares) / 2) <= 0.001
        assert layer["drift"] > 0.05


def test_an_expert_above_300_percent_is_warned_of(model: Path) -> None:
    """One token for ever is routed alike: two of eight experts get nearly all, 400 % of the mean each."""
    done = run(model, "-", ids=[7] * 60)
    found = json.loads(done.stdout)
    assert found["hot"] > 0
    for layer in found["layers"]:
        assert layer["hot"] == sum(n * 8 > 3 * layer["choices"] for n in layer["counts"])
    worst = max(found["layers"], key=lambda layer: int(layer["hottest_percent"]))
    assert (
        f"warning: experts used above 300 % of the mean: {found['hot']}, most of all layer {worst['layer']} "
        f"expert {worst['hottest']} at {worst['hottest_percent']} %; run colibri calibrate"
    ) in done.stderr
    assert "warning" not in run(model, "-").stderr


def test_entropy_and_drift_agree_with_binary64_on_random_counts(model: Path) -> None:
    """The integer arithmetic, through the library: errors stay within the thousandth that is stated."""
    draws = random.Random(3)
    with Engine(model) as engine, engine.session() as session:
        for _ in range(30):
            session.append([draws.randrange(101) for _ in range(draws.randrange(1, 4))])
            for layer in (1, 2):
                telemetry = engine.layer_telemetry(layer)
                assert telemetry is not None
                assert abs(telemetry.entropy_bits - entropy(engine.expert_counts(layer))) <= 0.001
