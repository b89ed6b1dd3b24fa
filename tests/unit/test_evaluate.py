# SPDX-License-Identifier: MIT
"""`colibri eval`: figures against a short second computation, both engines, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri.cli import main
from colibri.evaluate import Meter, log_probabilities, windows
from colibri.job import run_job
from colibri.recipe import load_recipe
from synthetic import Shape, write_model
from test_convert import checkpoint, mixtral_weights
from test_tokenizer import TEMPLATE, huggingface

RECIPE = Path(__file__).resolve().parents[2] / "configs" / "models" / "tiny.toml"
TEXT = "the cat sat on 1200 hats, and that was the end of the hats and the cat. " * 3


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The tiny model in int4, the same in f32, and a text."""
    folder = tmp_path_factory.mktemp("eval")
    small, exact, text = folder / "tiny.colibri", folder / "exact.colibri", folder / "text.txt"
    run_job(load_recipe(RECIPE), small, quiet=True)
    run_job(load_recipe(RECIPE, {"experts": "f32", "trunk": "f32"}), exact, quiet=True)
    text.write_text(TEXT)
    return small, exact, text


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """The JSON object that the command prints."""
    assert main(["eval", *map(str, arguments), "--json", "-q"]) == 0
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    return result


def test_perplexity_and_divergence_follow_their_definitions() -> None:
    meter = Meter()
    rows = np.array([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]], dtype=np.float32)
    bases = np.array([[0.5, 1.0, 1.5], [0.0, 2.0, 1.0]], dtype=np.float32)
    for following, row, base in zip((2, 1), rows, bases, strict=True):
        meter.add(following, row, base)
    result = meter.comparison()

    def softmax(row: list[float]) -> list[float]:
        total = math.fsum(map(math.exp, row))
        return [math.exp(x) / total for x in row]

    p, q = [softmax(row.tolist()) for row in bases], [softmax(row.tolist()) for row in rows]
    divergences = [sum(a * math.log(a / b) for a, b in zip(*pair, strict=True)) for pair in zip(p, q, strict=True)]
    assert result.divergence == pytest.approx(sum(divergences) / 2, rel=1e-12)
    assert result.divergence_error == pytest.approx(abs(divergences[0] - divergences[1]) / 2, rel=1e-12)
    assert result.model.perplexity == pytest.approx(math.exp(-(math.log(q[0][2]) + math.log(q[1][1])) / 2), rel=1e-12)
    assert result.base.perplexity == pytest.approx(math.exp(-(math.log(p[0][2]) + math.log(p[1][1])) / 2), rel=1e-12)
    assert (result.same_best, result.model.correct, result.base.correct) == (0.5, 1, 2)


def test_large_logits_do_not_overflow() -> None:
    assert log_probabilities(np.array([2.0**99, 0.0], dtype=np.float32)).tolist() == [0.0, -(2.0**99)]


def test_windows_leave_out_a_token_that_predicts_nothing() -> None:
    assert windows(range(7), 3) == [[0, 1, 2], [3, 4, 5]]
    assert windows(range(8), 3, 5) == [[0, 1, 2], [3, 4]]


@pytest.mark.usefixtures("native_library")
def test_both_engines_measure_the_same(
    models: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    small, exact, text = models
    options = (small, "--text", text, "--against", exact, "-n", 40, "--window", 16)
    found = [evaluate(capsys, *options, "--engine", name) for name in ("library", "reference")]
    for result, name in zip(found, ("library", "reference"), strict=True):
        assert result.pop("engine") == name
    assert found[0] == found[1]
    assert found[0]["tokens"] == 40
    assert found[0]["kl_divergence"] > 0.001


@pytest.mark.usefixtures("native_library")
def test_a_model_does_not_differ_from_itself(
    models: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, exact, text = models
    result = evaluate(capsys, exact, "--text", text, "--against", exact, "-n", 30, "--kv", "f32")
    assert (result["kl_divergence"], result["same_best_token"]) == (0, 1)
    assert result["model"] == result["base"]


@pytest.mark.usefixtures("native_library")
def test_the_base_may_be_a_recipe(models: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    small, exact, text = models
    by_file, by_recipe = (
        evaluate(capsys, small, "--text", text, "--against", base, "-n", 30) for base in (exact, RECIPE)
    )
    assert by_file == by_recipe


@pytest.mark.parametrize("option", ["--drop-nfc", "--no-chat"])
def test_the_base_may_be_the_checkpoint_of_a_model_with_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    weights = mixtral_weights()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.random.default_rng(len(name)).standard_normal((263, 48)).astype(np.float32)
    source = checkpoint(tmp_path / "hf", weights, vocab_size=263)
    words = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    huggingface(source, words, normalizer={"type": "NFC"} if option == "--drop-nfc" else None)
    model, text = tmp_path / "m.colibri", tmp_path / "text.txt"
    text.write_text(TEXT)
    assert main(["convert", str(source), "-o", str(model), "-q", option]) == 0
    capsys.readouterr()
    options = ("--text", text, "--against", source, "-n", 8, "--engine", "reference")
    assert evaluate(capsys, model, *options)["kl_divergence"] > 0


@pytest.mark.usefixtures("native_library")
def test_without_a_base_the_perplexity_is_printed(
    models: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    small, _, text = models
    assert main(["eval", str(small), "--text", str(text), "-n", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "tokens          20, 19 predicted, by the library"
    assert lines[1].startswith("perplexity      ")
    assert len(lines) == 2


@pytest.mark.usefixtures("native_library")
def test_progress_is_a_line_per_tenth_where_no_terminal_is(
    models: tuple[Path, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    exact, _, text = models
    assert main(["eval", str(exact), "--text", str(text), "-n", "21", "--window", "21"]) == 0
    assert capsys.readouterr().err.split("\n") == [*(f"{done} of 20 tokens" for done in range(2, 21, 2)), ""]


def test_files_of_two_models_are_not_compared(
    models: tuple[Path, Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small, _, text = models
    other = write_model(tmp_path / "other.colibri", Shape())
    assert main(["eval", str(small), "--text", str(text), "--against", str(other)]) == 2
    assert "compare files of one model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-n", "1"), "-n 1"),
        (("--window", "1"), "--window 1"),
        (("--text", "/dev/null"), "not a regular file"),
        (("--text", "empty"), "fewer than 2 tokens"),
    ],
)
@pytest.mark.usefixtures("native_library")
def test_what_cannot_be_measured_is_refused(
    models: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").touch()
    assert main(["eval", str(models[0]), "--text", str(models[2]), *options]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("module", ["quantize", "reference"])
def test_figures_of_other_sources_are_not_kept(tmp_path: Path, module: str) -> None:
    """`make eval` names what it keeps by the sources that it was made with."""
    repository = Path(__file__).resolve().parents[2]
    for name in ("engine/colibri", "configs/models", "tests/parity/recipes.py", "tests/support/models.py"):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (repository / name).is_dir() else shutil.copy)(repository / name, target)
    program = "import sys; sys.path[:0] = sys.argv[1:]; import recipes; print(recipes.importance_file().name)"
    command = [sys.executable, "-c", program, str(tmp_path / "tests/parity"), str(tmp_path / "engine")]

    def kept() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    first = kept()
    assert kept() == first
    with (tmp_path / f"engine/colibri/{module}.py").open("a") as file:
        file.write("# changed\n")
    assert kept() != first
