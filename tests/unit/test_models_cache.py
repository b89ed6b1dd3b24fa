# SPDX-License-Identifier: MIT
"""The cache of converted models that `make models` keeps (tests/support/models.py)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "support" / "models.py"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with folders of its own, and a converter that counts how often it is asked."""
    spec = importlib.util.spec_from_file_location("models_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    calls: list[str] = []

    def colibri(*arguments: str) -> None:
        calls.append(arguments[0])
        Path(arguments[-1]).write_text(f"made by {arguments[0]}")

    monkeypatch.setattr(module, "colibri", colibri)
    monkeypatch.setattr(module, "imports", lambda name, seen: {name})  # all of the package takes seconds to parse
    monkeypatch.setattr(module, "OUTPUT", tmp_path / "models")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "calls", calls, raising=False)
    return module


def make(script: ModuleType, tmp_path: Path) -> Path:
    recipe = tmp_path / "small.toml"
    recipe.write_text("a recipe")
    script.make(recipe, ())
    model: Path = script.OUTPUT / "small.colibri"
    return model


def test_a_model_that_is_there_is_not_made_again(script: ModuleType, tmp_path: Path) -> None:
    make(script, tmp_path)
    make(script, tmp_path).unlink()
    assert make(script, tmp_path).read_text() == "made by convert"
    assert script.calls == ["convert", "golden"]


@pytest.mark.parametrize(("name", "again"), [("small.colibri", "convert"), ("small.golden.json", "golden")])
def test_what_was_tampered_with_is_made_again(script: ModuleType, tmp_path: Path, name: str, again: str) -> None:
    """The file in build/models and the cached one may be one and the same."""
    model = make(script, tmp_path)
    with (model.parent / name).open("r+") as file:
        file.write("MADE")
    make(script, tmp_path)
    assert (model.parent / name).read_text() == f"made by {again}"
    assert script.calls == ["convert", "golden", again]


def test_what_came_from_the_cache_is_told_from_what_was_made(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(script, tmp_path)
    assert capsys.readouterr().out.splitlines()[-1].startswith("models: small.colibri 15 bytes, made (")
    make(script, tmp_path)
    assert capsys.readouterr().out.startswith("models: small.colibri 15 bytes, from the cache (")
