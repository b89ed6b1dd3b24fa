# SPDX-License-Identifier: MIT
"""A static program with its model inside (make embedded-demo): its size, and what it generates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "bench"))

import embedded  # noqa: E402

PROMPT = "the cat sat on 1200 hats, and that"  # of tests/bench/embedded.c
TOKENS = 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("embedded") / "embedded.colibri"
    embedded.make_model(path)
    return path


@pytest.fixture(scope="module")
def program(model: Path) -> Path:
    library = Path(os.environ.get("COLIBRI_AARCH64_MUSL_BIN", embedded.LIBRARY))
    output = model.with_name("embedded")
    embedded.build(model, library, output)
    return output


def test_the_model_has_about_a_million_parameters(model: Path) -> None:
    command = [sys.executable, "-m", "colibri", "inspect", "--json", str(model)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "engine")}
    described = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert 900_000 <= json.loads(described)["parameters"]["total"] <= 1_100_000


def test_library_and_model_fit_into_the_gate(program: Path, model: Path, note: Callable[[str], None]) -> None:
    size = program.stat().st_size
    note(f"embedded demo, static musl, aarch64: {size} bytes with its model, gate {embedded.LIMIT_BYTES}")
    assert model.stat().st_size < size <= embedded.LIMIT_BYTES


def test_the_program_generates_what_the_reference_does(program: Path, model: Path, tmp_path: Path) -> None:
    results = tmp_path / "golden.json"
    words = ["golden", str(model), f"--prompt={PROMPT}", f"--tokens={TOKENS}", "-o", str(results)]
    command = [sys.executable, "-m", "colibri", *words]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "engine")}
    subprocess.run(command, env=environment, capture_output=True, check=True)
    (case,) = json.loads(results.read_text())["cases"]
    alone = tmp_path / "alone"
    shutil.copy(program, alone)
    assert bytes(model.parent) not in alone.read_bytes()  # so the file of the model is not looked for
    ids, text = embedded.generated(alone, TOKENS)
    assert ids == case["ids"]
    assert case["text"].strip()
    assert text == PROMPT + case["text"].rstrip("\n")  # as `generated` gives it
