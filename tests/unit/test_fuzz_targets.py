# SPDX-License-Identifier: MIT
"""The fuzz targets of the checkpoint readers: a short run of each, and what they would find."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
NAMES = sorted(path.stem for path in FUZZ.glob("fuzz_*.py"))
PLANTED = '''
import sys
sys.path.insert(0, {fuzz!r})
from fuzzing import Target, main

def load():
    from colibri.errors import ColibriError
    from colibri._spec import Code
    def check(data):
        {bug}
        if data != b"good":
            raise ColibriError(Code.HEADER, "not good")
    return check

sys.argv = ["planted", *sys.argv[1:]]
sys.exit(main(Target("planted", load, lambda: [b"good"], [b"bad"])))
'''
BUGS = {
    "an exception of its own": ("if b'b' in data: raise ValueError('found')", "ValueError: found"),
    "a hang": ("while b'b' in data: pass", "no end after 2 s of processor time"),
    "half a second too much": (
        "import time; end = time.process_time() + 1.5 * (b'b' in data)\n"
        "        while time.process_time() < end: pass",
        "s of processor time, limit 1",
    ),
    "memory": ("hold = bytes(1 << 24) if data != b'good' else b''", "bytes of memory for an input of"),
    "an import": ("if b'b' in data: import antigravity_of_nobody", "ModuleNotFoundError"),
    "an import that works": ("if b'b' in data: import this_is_planted", "had modules imported: ['this_is_planted']"),
    "a message of two lines": (
        "if b'b' in data: raise ColibriError(Code.HEADER, 'one\\ntwo')", "a message that nobody can read",
    ),
    "a seed that is refused": ("raise ColibriError(Code.HEADER, 'always')", "seed 0 is refused"),
}  # fmt: skip


def run(*command: object, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, **environment}
    words = [sys.executable, *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout, env=variables)


def test_every_reader_of_checkpoints_has_a_target() -> None:
    assert NAMES == ["fuzz_config", "fuzz_gguf", "fuzz_pickle", "fuzz_quantized", "fuzz_safetensors", "fuzz_zip"]


@pytest.mark.parametrize("name", NAMES)
def test_seeded_mutations_find_nothing(name: str) -> None:
    done = run(FUZZ / f"{name}.py", "--mutations", 400, "--seed", 7)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{name}: 400 mutations, ")
    accepted = int(done.stdout.split(", ")[1].split()[0])
    assert 0 < accepted < 400


@pytest.mark.parametrize("name", NAMES)
def test_coverage_guided_inputs_find_nothing_in_a_few_seconds(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        assert platform.machine() != "x86_64" or sys.version_info >= (3, 14), "atheris is missing; run: make setup"
        pytest.skip(f"atheris has no wheel for {platform.machine()} and this Python")
    done = run(FUZZ / f"{name}.py", "--seconds", 3, "--corpus", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "stat::number_of_executed_units" in done.stderr
    assert not list(tmp_path.glob("*finding*"))
    # More than the seeds: new paths through the reader were found, so it is watched.
    assert len(list((tmp_path / name).iterdir())) > 10


@pytest.mark.parametrize("bug", list(BUGS))
def test_planted_bugs_are_findings(bug: str, tmp_path: Path) -> None:
    code, message = BUGS[bug]
    (tmp_path / "this_is_planted.py").touch()
    script = tmp_path / "planted.py"
    script.write_text(PLANTED.format(fuzz=str(FUZZ), bug=code))
    done = run(script, "--mutations", 60, PYTHONPATH=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode != 0
    assert message in done.stderr
    if bug != "a seed that is refused":
        assert [path.name for path in tmp_path.glob("planted-*")]  # the input is kept


def test_inputs_of_earlier_findings_can_be_run_again(tmp_path: Path) -> None:
    seed: Any = tmp_path / "input"
    seed.write_bytes(b"P\x80\x02}.")
    done = run(FUZZ / "fuzz_pickle.py", seed)
    assert done.stdout == f"{seed}: accepted\n"
    seed.write_bytes(b"P\x80\x02].")
    assert run(FUZZ / "fuzz_pickle.py", seed).stdout == f"{seed}: refused\n"
    assert run(FUZZ / "fuzz_pickle.py").returncode == 2
