# SPDX-License-Identifier: MIT
"""Macros that the build forces: listed, and lowered by no option and no variable (docs/security.md)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from colibri.cli import main
from test_logging import TINY, logged

REPOSITORY = Path(__file__).resolve().parents[2]
SECURITY = ("COLIBRI_NO_LOGGING", "COLIBRI_RESTRICTED_SYSCALLS", "COLIBRI_SECURE_MODE", "COLIBRI_VERIFY_MODEL_HASH")
OTHERS = ("COLIBRI_DEBUG_MEMORY", "COLIBRI_PREFETCH_DEPTH", "COLIBRI_VERIFY_CHUNKS")
LOWER = dict.fromkeys((*SECURITY, *OTHERS, "COLIBRI_SANDBOX"), "0") | {"COLIBRI_SANDBOX": "off"}


def build(folder: Path, *options: str, cflags: str = "") -> Path:
    """The folder of a build of its own, not optimised: only these tests run it."""
    script = REPOSITORY / "tests" / "support" / "build_engine.py"
    for source, target in ((REPOSITORY / "engine", "engine"), (script.parent, "tests/support")):
        shutil.copytree(source, folder / target, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    words = ["--name=out", f"--cflags={cflags}", "--option=-Dtests=false", "--option=-Doptimization=0", *options]
    done = subprocess.run(
        [sys.executable, folder / "tests/support/build_engine.py", *words], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "out"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forced") / "tiny.colibri"
    assert main(["convert", str(TINY), "-o", str(path), "-q"]) == 0
    return path


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four that a production image forces, through the option that recipes give."""
    return build(tmp_path_factory.mktemp("production"), f"--option=-Dforced={','.join(SECURITY)}")


@pytest.fixture(scope="module")
def debugging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The others, through CFLAGS; and one that forces nothing."""
    flags = "-DCOLIBRI_DEBUG_MEMORY -DCOLIBRI_PREFETCH_DEPTH=0 -DCOLIBRI_VERIFY_CHUNKS -DCOLIBRI_ROUTING_LOGITS"
    return build(tmp_path_factory.mktemp("debugging"), cflags=flags)


def python(library: Path, program: str, *arguments: str | Path) -> str:
    """Standard output of a Python program that uses a library."""
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=True,
        env={**os.environ, "COLIBRI_LIBRARY": str(library / "libcolibri.so"), "PYTHONPATH": str(REPOSITORY / "engine")},
    ).stdout.strip()  # fmt: skip


def damaged(model: Path, path: Path) -> Path:
    """A byte of the last expert changed: nothing that opening a model would touch by itself."""
    data = bytearray(model.read_bytes())
    with_model = json.loads(logged("info", model, "--json").out)
    data[with_model["model"]["file_bytes"] - 20000] ^= 1
    path.write_bytes(data)
    return path


def test_info_and_python_list_what_is_forced(production: Path, debugging: Path) -> None:
    for folder, names in ((production, SECURITY), (debugging, OTHERS)):
        shown = json.loads(logged("info", "--json", program=folder / "colibrictl").out)
        assert shown["build"]["forced"].split() == list(names)
        assert python(folder, "import colibri.engine as e; print(*e.build_forced())").split() == list(names)


def test_nothing_brings_the_logging_back(production: Path, tiny: Path) -> None:
    line: list[str | Path] = ["run", tiny, "-p", "x", "-n", "2", "--log", "stderr"]
    done = logged(*line, variables=LOWER, program=production / "colibrictl")
    assert (done.exit_code, done.err) == (0, "")
    assert any("timing: " in message for message in done.messages)
    done = logged("run", variables=LOWER, program=production / "colibrictl")
    assert (done.exit_code, done.err, len(done.messages)) == (2, "", 1)


def test_nothing_keeps_memory_from_being_wiped(production: Path, tiny: Path) -> None:
    shown = logged("info", tiny, "--json", variables=LOWER, program=production / "colibrictl").out
    assert json.loads(shown)["model"]["secure_mode"] is True
    program = "import sys; from colibri.engine import Engine; Engine(sys.argv[1], secure_mode=False)"
    assert python(production, program, tiny) == ""


def test_nothing_keeps_a_model_from_being_verified(production: Path, tiny: Path, tmp_path: Path) -> None:
    bad = damaged(tiny, tmp_path / "bad.colibri")
    assert logged("info", bad, "--verify", "first").exit_code == 0
    done = logged("info", bad, "--verify", "first", variables=LOWER, program=production / "colibrictl")
    assert (done.exit_code, "chunk_mismatch" in "".join(done.messages)) == (3, True)


def test_nothing_keeps_the_sandbox_open(production: Path, tiny: Path) -> None:
    for word in ("off", "log", "errno"):
        line: list[str | Path] = ["run", tiny, "-p", "x", "-n", "2", "--sandbox", word]
        done = logged(*line, variables=LOWER, program=production / "colibrictl")
        assert (done.exit_code, done.err) == (0, "")
        assert any("sandbox: phase=steady action=kill" in message for message in done.messages), done


def test_nothing_takes_the_guards_away(debugging: Path, tiny: Path) -> None:
    done = logged("run", tiny, "-p", "x", "-n", "2", variables=LOWER, program=debugging / "colibrictl")
    assert done.exit_code == 0
    assert "debug-memory: guards=" in done.err


def test_nothing_reads_further_ahead(debugging: Path, tiny: Path) -> None:
    line: list[str | Path] = ["run", tiny, "-p", "x", "-n", "20", "--ignore-end", "--residency", "stream",
                              "--slots", "6"]  # fmt: skip
    for depth in ("0", "8"):
        done = logged(*line, "--prefetch", depth, program=debugging / "colibrictl")
        assert (done.exit_code, " ahead=0 " in done.err) == (0, True), done.err


# A byte changes when an expert is read again: what mode first, which trusts what it read once, does not see.
CHANGES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/types.h>
static off64_t seen[4096];
static int count;
ssize_t pread64(int fd, void *to, size_t n, off64_t at)
{
    ssize_t (*real)(int, void *, size_t, off64_t) = (__typeof__(real))dlsym(RTLD_NEXT, "pread64");
    ssize_t done = real(fd, to, n, at);
    int times = 0;
    for (int i = 0; i < count; i++)
        times += seen[i] == at;
    if (times >= 2 && done > 100) /* an extent may be read once more when the model is opened */
        ((char *)to)[100] ^= 1;
    if (count < 4096)
        seen[count++] = at;
    return done;
}
"""


def test_nothing_verifies_less_than_always(debugging: Path, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "changes.c").write_text(CHANGES)
    library = tmp_path / "changes.so"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "changes.c", "-o", library, "-ldl"], check=True)
    line: list[str | Path] = ["run", tiny, "-p", "x", "-n", "20", "--ignore-end", "--residency", "stream",
                              "--slots", "6", "--io-threads", "1", "--verify", "first"]  # fmt: skip
    preload = {"LD_PRELOAD": str(library)}
    assert logged(*line, variables=preload).exit_code == 0
    done = logged(*line, variables=preload | LOWER, program=debugging / "colibrictl")
    assert (done.exit_code, "chunk_mismatch" in done.err) == (3, True), done


def test_the_way_of_routing_is_the_models_alone(debugging: Path, tiny: Path) -> None:
    """COLIBRI_ROUTING_LOGITS is a field of the model file: as a macro it changes and forces nothing."""
    line: list[str | Path] = ["run", tiny, "-p", "routing", "-n", "4", "--logits-sha256", "-q"]
    assert logged(*line, program=debugging / "colibrictl").out == logged(*line).out


def test_a_macro_that_does_not_exist_is_refused_when_the_build_is_made(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there is no macro COLIBRI_SECURE_MODES"):
        build(tmp_path / "copy", "--option=-Dforced=COLIBRI_SECURE_MODES")
