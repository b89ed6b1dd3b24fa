# SPDX-License-Identifier: MIT
"""Snapshots in files: `colibrictl snapshot` and `run --prefix`; the library's own rules are in test_snapshot.c."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest
from colibri._spec import Code
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.job import run_job
from colibri.recipe import load_recipe
from native_cases import assert_passes, program

RECIPE = Path(__file__).resolve().parents[2] / "configs" / "models" / "tiny.toml"
PREFIX = "5,6,7,8,9"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.colibri"
    run_job(load_recipe(RECIPE), path, quiet=True)
    return path


def ctl(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run colibrictl."""
    return subprocess.run(
        [program("colibrictl"), *arguments], capture_output=True, text=True, errors="replace", check=False, timeout=60
    )


def results(*arguments: str | Path) -> list[str]:
    """The lines with ids and hash of a run."""
    done = ctl("run", *arguments, "--print-ids", "--logits-sha256", "-q", "-n", "8", "--ignore-end")
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if line.startswith(("ids:", "logits-sha256:"))]


@pytest.fixture(scope="module")
def snapshot(tiny: Path) -> Path:
    """A snapshot of five ids."""
    path = tiny.parent / "prefix.snapshot"
    assert ctl("snapshot", tiny, "--ids", PREFIX, "-o", path).returncode == 0
    return path


@pytest.mark.parametrize("options", [[], ["--residency", "stream", "--slots", "2"], ["-t", "3", "-c", "40"]])
def test_a_run_behind_a_prefix_gives_the_same_bits(tiny: Path, snapshot: Path, options: list[str]) -> None:
    assert results(tiny, "--prefix", snapshot, "--ids", "3,4", *options) == results(tiny, "--ids", f"{PREFIX},3,4")


def test_a_prefix_needs_no_prompt(tiny: Path, snapshot: Path) -> None:
    assert results(tiny, "--prefix", snapshot) == results(tiny, "--ids", PREFIX)


def test_sampling_behind_a_prefix_gives_the_same_text(tiny: Path, snapshot: Path) -> None:
    sampler = ["--temp", "1", "--seed", "9"]
    assert results(tiny, "--prefix", snapshot, *sampler) == results(tiny, "--ids", PREFIX, *sampler)


def test_a_text_goes_on_behind_a_text(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "text.snapshot"
    done = ctl("snapshot", tiny, "-p", "the cat", "-o", path)
    with Engine(tiny) as engine:
        first, second = engine.tokenize("the cat"), engine.tokenize(" sat on")
        bos = engine.tokenize("")
    assert done.stderr == f"snapshot: tokens={len(first)} bytes={path.stat().st_size}\n"
    ids = ",".join(map(str, first + second[len(bos) :]))
    assert results(tiny, "--prefix", path, "-p", " sat on") == results(tiny, "--ids", ids)


def test_the_library_and_the_command_write_the_same_bytes(tiny: Path, snapshot: Path) -> None:
    with Engine(tiny, context_tokens=17) as engine, engine.session() as session:
        session.append([5, 6, 7, 8, 9])
        assert session.save() == snapshot.read_bytes()
        session.append([1])
        session.restore(snapshot.read_bytes())
        assert (session.position, session.ids()) == (5, [5, 6, 7, 8, 9])


@pytest.mark.parametrize("arguments", [("snapshot", "-o"), ("run", "-q", "--telemetry")])
def test_golden_results_of_the_same_name_stay(tiny: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    golden = tmp_path / "tiny.golden.json"
    golden.write_text("{}")
    command, *options = arguments
    assert ctl(command, tiny, "--ids", "1", *options, tmp_path / "tiny.out").returncode == 0
    assert (tmp_path / "tiny.out").is_file()
    assert golden.read_text() == "{}"


def test_a_snapshot_is_for_its_owner_only_and_keeps_what_it_replaces(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.snapshot"
    assert ctl("snapshot", tiny, "--ids", "1", "-o", path).returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    assert ctl("snapshot", tiny, "--ids", "1,2", "-o", path).returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["own.snapshot"]


def test_a_failed_snapshot_keeps_the_old_file(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "old.snapshot"
    path.write_text("old")
    assert ctl("snapshot", tiny, "--ids", "1,99999", "-o", path).returncode == 2
    assert path.read_text() == "old"
    assert ctl("snapshot", tiny, "--ids", "1", "-o", tmp_path / "missing" / "new").returncode != 0
    assert os.listdir(tmp_path) == ["old.snapshot"]


def refusal(tiny: Path, *options: str | Path) -> tuple[int, str]:
    """Exit code and message of a run that is refused; it prints no text."""
    done = ctl("run", tiny, "-n", "2", *options)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_what_does_not_fit_is_named(tiny: Path, snapshot: Path, tmp_path: Path) -> None:
    code, message = refusal(tiny, "--prefix", snapshot, "--kv", "f32")
    assert (code, "KV cache is of type 1, the session's of 0" in message) == (2, True)
    code, message = refusal(tiny, "--prefix", snapshot, "-c", "4")
    assert (code, "has 5 tokens, the context 4" in message) == (1, True)
    code, message = refusal(tiny, "--prefix", snapshot, "-c", "6", "--ids", "1,2")
    assert (code, "the prefix has 5 tokens, the prompt 2, the context holds 6" in message) == (2, True)
    code, message = refusal(tiny, "--prefix", tmp_path / "missing")
    assert (code, "cannot open the snapshot" in message) == (1, True)
    code, message = refusal(tiny, "--prefix", tmp_path)
    assert (code, "not a regular file" in message) == (1, True)
    code, message = refusal(tiny, "--prefix", tiny)
    assert (code, "more than a session of this model" in message) == (3, True)


def test_a_snapshot_of_another_model_is_refused(tiny: Path, snapshot: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.colibri"
    run_job(load_recipe(RECIPE.with_name("tiny-f32.toml")), other, quiet=True)
    code, message = refusal(other, "--prefix", snapshot)
    assert (code, "the snapshot is of another model" in message) == (2, True)


def test_a_damaged_or_cut_snapshot_is_refused(tiny: Path, snapshot: Path, tmp_path: Path) -> None:
    data = bytearray(snapshot.read_bytes())
    path = tmp_path / "bad.snapshot"
    data[-1] ^= 1
    path.write_bytes(data)
    code, message = refusal(tiny, "--prefix", path)
    assert (code, "does not match its hash" in message) == (3, True)
    for size in (0, 111, len(data) - 1):
        path.write_bytes(snapshot.read_bytes()[:size])
        assert refusal(tiny, "--prefix", path)[0] == 3


def test_the_options_of_snapshot_are_checked(tiny: Path, tmp_path: Path) -> None:
    assert ctl("snapshot", tiny, "--ids", "1").returncode == 2
    assert ctl("snapshot", tiny, "-o", tmp_path / "new").returncode == 2
    assert ctl("snapshot", tiny, "-p", "a", "--ids", "1", "-o", tmp_path / "new").returncode == 2
    assert os.listdir(tmp_path) == []


def test_an_output_that_is_read_is_refused_and_left_alone(tiny: Path, snapshot: Path, tmp_path: Path) -> None:
    """Under its own name and another one: the model, the prompt file, the prefix."""
    model, prompt, prefix = tmp_path / "m.colibri", tmp_path / "prompt", tmp_path / "prefix"
    for path, content in ((model, tiny.read_bytes()), (prompt, b"hello"), (prefix, snapshot.read_bytes())):
        path.write_bytes(content)
    link = tmp_path / "link"
    os.link(model, link)
    before = {path: path.read_bytes() for path in (model, prompt, prefix, link)}
    for arguments in (
        ("snapshot", model, "-p", "a", "-o", model), ("snapshot", model, "-p", "a", "-o", link),
        ("snapshot", model, "-f", prompt, "-o", prompt), ("run", model, "-p", "a", "--telemetry", link),
        ("run", model, "-f", prompt, "--telemetry", prompt), ("run", model, "--prefix", prefix, "--telemetry", prefix),
    ):  # fmt: skip
        done = ctl(*arguments)
        assert done.returncode == 2
        assert "is the same file as" in done.stderr
    assert {path: path.read_bytes() for path in before} == before


def test_python_gets_the_pinned_codes(tiny: Path, snapshot: Path) -> None:
    with Engine(tiny, kv="f32") as engine, engine.session() as session:
        with pytest.raises(ColibriError) as caught:
            session.restore(snapshot.read_bytes())
        assert caught.value.code == Code.SNAPSHOT_OTHER
        with pytest.raises(ColibriError) as caught:
            session.restore(b"")
        assert caught.value.code == Code.SNAPSHOT
        with pytest.raises(ColibriError, match="append at least one token"):
            session.save()


def test_mutated_snapshots_are_refused_or_compute() -> None:
    assert_passes("fuzz_snapshot", "--mutations", "3000", "--seed", "5")
