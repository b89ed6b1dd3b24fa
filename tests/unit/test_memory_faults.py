# SPDX-License-Identifier: MIT
"""Storage that fails under a session that stays open: errors, short and interrupted reads, no answer,
a file that is cut or overwritten. The error names the extent; when the storage is back the same
session goes on, with the logits of a model in memory.

Needs the native build ($COLIBRI_NATIVE_BUILD) and the tiny model ($COLIBRI_MODELS). The same in the
booted image, with a disk that really fails: tests/boot/test_faults_boot.py.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_reads import FAIL, HEALTHY, INTERRUPT, SHORT, SLOW, STALL, Faults, build
from native_cases import program
from session_answer import Answer

OK, TRUNCATED, MISMATCH, IO = 0, -4, -14, -54
RESIDENT, STREAM = 1, 2
VERIFY_OPEN, VERIFY_FIRST = 1, 2
DIRECT_AUTO, DIRECT_OFF = 0, 1
CHUNK_BYTES = 65536


class Session:
    """A program that keeps a model and a session open."""

    def __init__(self, variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [program("session_driver")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"PATH": os.environ["PATH"], **variables},
        )  # fmt: skip

    def ask(self, line: str) -> Answer:
        """A command and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        command, code, text = [*self._process.stdout.readline().rstrip("\n").split(" ", 2), "", ""][:3]
        return Answer(command, int(code), text)

    def close(self) -> None:
        """End it; it must end well."""
        self._process.communicate("quit\n", timeout=60)
        assert self._process.returncode == 0


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that makes reads fail."""
    return build(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def faults(tmp_path: Path) -> Faults:
    """What happens to reads."""
    return Faults(tmp_path / "control")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may damage."""
    source = Path(os.environ.get("COLIBRI_MODELS", "")) / "tiny.colibri"
    assert source.is_file(), f"{source}: no such file; run: make models"
    return Path(shutil.copy(source, tmp_path / "tiny.colibri"))


@pytest.fixture
def session(library: Path, faults: Faults) -> Iterator[Session]:
    """The program under test."""
    opened = Session(faults.variables(library))
    yield opened
    faults.set(HEALTHY)
    opened.close()


@pytest.fixture(scope="module")
def prompt() -> list[int]:
    """Ids of a golden case."""
    golden = json.loads((Path(os.environ.get("COLIBRI_MODELS", "")) / "tiny.golden.json").read_text())
    case = golden["cases"][0]
    return [*case["prompt_ids"], *case["ids"]][:24]


@pytest.fixture(scope="module")
def expected(prompt: list[int]) -> list[str]:
    """Hash of the logits after each id, everything in memory."""
    resident = Session({})
    path = Path(os.environ["COLIBRI_MODELS"]) / "tiny.colibri"
    assert resident.ask(f"open {path} residency={RESIDENT}").code == OK
    hashes = [resident.ask(f"append {token}").field("logits") for token in prompt]
    resident.close()
    return hashes


def start(session: Session, model: Path, prompt: list[int], expected: list[str], options: str = "") -> None:
    """Open with few slots, so that experts are read again and again, and append three ids."""
    answer = session.ask(f"open {model} residency={STREAM} slots=2 prefetch=0 {options}")
    assert answer.code == OK, answer
    for index in range(3):
        assert session.ask(f"append {prompt[index]}").field("logits") == expected[index]


def fail(session: Session, prompt: list[int], begin: int) -> tuple[int, Answer]:
    """The index of the id that could not be appended, and why."""
    for index in range(begin, len(prompt)):
        answer = session.ask(f"append {prompt[index]}")
        if answer.code != OK:
            return index, answer
    raise AssertionError("no read failed")


def go_on(session: Session, prompt: list[int], expected: list[str], begin: int) -> None:
    """The rest of the sequence gives the logits of the model in memory."""
    for index in range(begin, len(prompt)):
        answer = session.ask(f"append {prompt[index]}")
        assert (answer.code, answer.field("position")) == (OK, str(index + 1)), answer
        assert answer.field("logits") == expected[index], f"id {index}"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENODEV])
@pytest.mark.parametrize("options", ["threads=1 io=1", "threads=2 io=3"])
@pytest.mark.parametrize("direct", [DIRECT_AUTO, DIRECT_OFF])
def test_a_read_error_names_the_extent_and_the_session_goes_on(
    session: Session, faults: Faults, model: Path, prompt: list[int], expected: list[str],
    number: int, options: str, direct: int,
) -> None:  # fmt: skip
    start(session, model, prompt, expected, f"{options} direct={direct}")
    faults.set(FAIL, number)
    failed, answer = fail(session, prompt, 3)
    assert answer.code == IO
    assert re.search(r"in the expert extent of layer \d+, expert \d+: ", answer.text), answer
    assert os.strerror(number) in answer.text
    assert 0 < int(answer.field("offset")) < model.stat().st_size
    assert session.ask(f"append {prompt[failed]}").code == IO
    faults.set(HEALTHY)
    go_on(session, prompt, expected, failed)


@pytest.mark.parametrize("most", [512, 4096, 10000])
@pytest.mark.parametrize("direct", [DIRECT_AUTO, DIRECT_OFF])
def test_short_reads_change_no_bit(
    session: Session, faults: Faults, model: Path, prompt: list[int], expected: list[str], most: int, direct: int
) -> None:
    start(session, model, prompt, expected, f"direct={direct}")
    # A disk read past the page cache comes in sectors; anything else is read again through it.
    faults.set(SHORT, most)
    go_on(session, prompt, expected, 3)
    assert faults.hits > 0


def test_interrupted_reads_change_no_bit(
    session: Session, faults: Faults, model: Path, prompt: list[int], expected: list[str]
) -> None:
    start(session, model, prompt, expected)
    faults.set(INTERRUPT)
    go_on(session, prompt, expected, 3)
    assert faults.hits > 0


def test_storage_that_does_not_answer_is_an_error_with_the_extent(
    session: Session, faults: Faults, model: Path, prompt: list[int], expected: list[str]
) -> None:
    start(session, model, prompt, expected, "stall=300")
    faults.set(STALL)
    failed, answer = fail(session, prompt, 3)
    assert answer.code == IO
    assert re.search(r"does not answer .*in the expert extent of layer \d+, expert \d+", answer.text), answer
    assert session.ask(f"append {prompt[failed]}").code == IO
    faults.set(HEALTHY)
    go_on(session, prompt, expected, failed)


def test_storage_that_is_slow_but_answers_is_waited_for(session: Session, faults: Faults, model: Path) -> None:
    stall_ms = 200
    faults.set(SLOW, stall_ms // 4)
    answer = session.ask(f"open {model} residency={STREAM} slots=2 io=1 verify={VERIFY_OPEN} stall={stall_ms}")
    assert answer.code == OK, answer
    assert faults.hits > 5, "verifying took less than the patience that is tested"


def test_a_file_that_is_cut_is_an_error_and_its_return_is_noticed(
    session: Session, model: Path, prompt: list[int], expected: list[str], tmp_path: Path
) -> None:
    whole = Path(shutil.copy(model, tmp_path / "whole"))
    start(session, model, prompt, expected)
    os.truncate(model, model.stat().st_size // 2)
    failed, answer = fail(session, prompt, 3)
    assert answer.code == TRUNCATED
    assert "Prefetch failed: invalid chunk offset" in answer.text
    whole.rename(model)  # put back as files are replaced: by rename
    go_on(session, prompt, expected, failed)


def test_a_file_that_is_overwritten_is_a_mismatch_and_its_return_is_noticed(
    session: Session, model: Path, prompt: list[int], expected: list[str], tmp_path: Path
) -> None:
    good = model.read_bytes()
    whole = Path(shutil.copy(model, tmp_path / "whole"))
    start(session, model, prompt, expected)
    with model.open("r+b") as file:
        file.seek(len(good) // 2)
        file.write(bytes(byte ^ 1 for byte in good[len(good) // 2 : -CHUNK_BYTES]))
    failed, answer = fail(session, prompt, 3)
    assert answer.code == MISMATCH
    whole.rename(model)
    go_on(session, prompt, expected, failed)


def test_a_file_that_returns_damaged_is_not_taken_for_verified(
    session: Session, model: Path, prompt: list[int], expected: list[str], tmp_path: Path
) -> None:
    good = model.read_bytes()
    whole, damaged = (Path(shutil.copy(model, tmp_path / name)) for name in ("whole", "damaged"))
    with damaged.open("r+b") as file:
        file.seek(len(good) // 2)
        file.write(bytes(byte ^ 1 for byte in good[len(good) // 2 : -CHUNK_BYTES]))
    # Every expert that these ids need was verified once.
    assert session.ask(f"open {model} residency={STREAM} slots=2 prefetch=0 verify={VERIFY_FIRST}").code == OK
    go_on(session, prompt, expected, 0)
    assert session.ask("reset").code == OK
    os.truncate(model, len(good) // 2)
    failed, answer = fail(session, prompt, 0)
    assert answer.code == TRUNCATED
    damaged.rename(model)
    assert session.ask(f"append {prompt[failed]}").code == MISMATCH
    whole.rename(model)
    go_on(session, prompt, expected, failed)


def test_a_file_that_is_replaced_by_rename_changes_nothing(
    session: Session, model: Path, prompt: list[int], expected: list[str], tmp_path: Path
) -> None:
    start(session, model, prompt, expected)
    other = tmp_path / "other"
    other.write_bytes(b"not a model")
    other.rename(model)
    go_on(session, prompt, expected, 3)


def test_the_faults_reach_the_program(
    session: Session, faults: Faults, model: Path, prompt: list[int], expected: list[str]
) -> None:
    start(session, model, prompt, expected)
    before = faults.hits
    faults.set(SHORT, 1 << 30)  # touches nothing, only counts
    go_on(session, prompt, expected, 3)
    assert faults.hits > before
