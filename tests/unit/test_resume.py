# SPDX-License-Identifier: MIT
"""`colibri convert --resume`: killed conversions go on, and what is not the same conversion does not."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from colibri._spec import Code
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.job import run_job
from colibri.recipe import load_recipe
from colibri.writer import ModelWriter

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPE = REPOSITORY / "configs" / "models" / "tiny.toml"
# Converts with --resume and is killed at the write of a given number.
KILLED = """
import os, signal, sys
from colibri.cli import main
left = int(sys.argv[1])
write = os.pwrite
def counted(*arguments):
    global left
    left -= 1
    if left == 0:
        write(arguments[0], bytes(arguments[1])[:7], *arguments[2:])
        os.kill(os.getpid(), signal.SIGKILL)
    return write(*arguments)
os.pwrite = counted
raise SystemExit(main(sys.argv[2:]))
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def command(output: Path, *more: str) -> list[str]:
    return ["convert", str(RECIPE), "-o", str(output), "-j", "1", "--resume", *more]


def killed(output: Path, write: int, *more: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(write), *command(output, *more)],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "engine")},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """Digest of the file that an undisturbed conversion writes, and the errors of its tensors."""
    output = tmp_path_factory.mktemp("whole") / "m.colibri"
    report = run_job(load_recipe(RECIPE), output, 1, quiet=True)
    return hashlib.sha256(output.read_bytes()).hexdigest(), report.errors


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_conversion_killed_again_and_again_ends_with_the_same_bytes_and_report(
    tmp_path: Path, whole: tuple[str, Any]
) -> None:
    output = tmp_path / "m.colibri"
    output.write_bytes(b"an old file")
    dice, lines, kills = np.random.default_rng(5), 0, 0
    while killed(output, int(dice.integers(3, 40))) == -signal.SIGKILL:
        kills += 1
        assert output.read_bytes() == b"an old file"
        assert names(tmp_path) == ["m.colibri", "m.colibri.partial", "m.colibri.partial.journal"]
        found = (tmp_path / "m.colibri.partial.journal").read_bytes().count(b"\n")
        assert found >= lines  # never less than the run before had
        lines = found
        assert kills < 100
    assert kills >= 5
    assert names(tmp_path) == ["m.colibri"]
    assert digest(output) == whole[0]


def test_the_report_of_a_resumed_conversion_is_that_of_a_whole_one(tmp_path: Path, whole: tuple[str, Any]) -> None:
    output = tmp_path / "m.colibri"
    assert killed(output, 60) == -signal.SIGKILL
    begun = (tmp_path / "m.colibri.partial.journal").read_bytes().count(b"\n")
    assert begun > 5
    report = run_job(load_recipe(RECIPE), output, 2, quiet=True, resume=True)
    assert report.errors == whole[1]
    assert list(report.errors) == list(whole[1])
    assert digest(output) == whole[0]


@pytest.mark.parametrize("left", [b"", b'{"format": "colibri-par'])
def test_without_the_first_line_of_its_journal_no_byte_of_a_file_counts(
    tmp_path: Path, whole: tuple[str, Any], left: bytes
) -> None:
    output = tmp_path / "m.colibri"
    (tmp_path / "m.colibri.partial").write_bytes(b"\xff" * 3_000_000)
    (tmp_path / "m.colibri.partial.journal").write_bytes(left)
    run_job(load_recipe(RECIPE), output, 1, quiet=True, resume=True)
    assert digest(output) == whole[0]


def test_gaps_behind_what_is_complete_are_zeros(tmp_path: Path, whole: tuple[str, Any]) -> None:
    output = tmp_path / "m.colibri"
    assert killed(output, 60) == -signal.SIGKILL
    partial = tmp_path / "m.colibri.partial"
    data = partial.read_bytes()
    end = len(data.rstrip(b"\0"))
    partial.write_bytes(data[:end] + b"\xff" * (len(data) - end))
    run_job(load_recipe(RECIPE), output, 1, quiet=True, resume=True)
    assert digest(output) == whole[0]


@pytest.mark.parametrize("damage", ["bit", "table", "short", "gone", "line", "torn", "order"])
def test_what_is_damaged_is_written_again(tmp_path: Path, whole: tuple[str, Any], damage: str) -> None:
    output = tmp_path / "m.colibri"
    assert killed(output, 60) == -signal.SIGKILL
    partial, journal = tmp_path / "m.colibri.partial", tmp_path / "m.colibri.partial.journal"
    data, lines = bytearray(partial.read_bytes()), journal.read_bytes().splitlines(keepends=True)
    if damage in ("bit", "table"):
        job = load_recipe(RECIPE)
        extent = ModelWriter(output, job.records, job.precision.choose, job.tokenizer, job.provenance)._extents[1]
        data[extent.offset + (extent.size if damage == "table" else 77)] ^= 1
        partial.write_bytes(data)
    elif damage == "short":
        os.truncate(partial, 1 << 17)
    elif damage == "gone":
        partial.unlink()
    elif damage == "line":
        lines[3] = lines[3].replace(b'"sha256": "', b'"sha256": "00')
    elif damage == "torn":
        lines[-1] = lines[-1][: len(lines[-1]) // 2]
    else:
        lines[2], lines[3] = lines[3], lines[2]
    journal.write_bytes(b"".join(lines))
    run_job(load_recipe(RECIPE), output, 2, quiet=True, resume=True)
    assert digest(output) == whole[0]
    assert names(tmp_path) == ["m.colibri"]


@pytest.mark.parametrize(
    ("options", "what"), [(["--experts", "int8"], "set of options"), (["--int4-method", "absmax"], "set of options")]
)
def test_other_options_are_refused_and_the_unfinished_file_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], what: str
) -> None:
    output = tmp_path / "m.colibri"
    assert killed(output, 60) == -signal.SIGKILL
    before = {name: digest(tmp_path / name) for name in names(tmp_path)}
    assert main(command(output, *options)) == 2
    said = capsys.readouterr().err
    assert f"m.colibri.partial was begun with another {what}" in said
    assert "remove m.colibri.partial and m.colibri.partial.journal to start over" in said
    assert {name: digest(tmp_path / name) for name in names(tmp_path)} == before


def test_another_source_is_refused_by_name(tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    assert killed(output, 60) == -signal.SIGKILL
    job = load_recipe(RECIPE)
    job.provenance["source"] = {**job.provenance["source"], "seed": 99}
    with pytest.raises(ColibriError, match=r"m\.colibri\.partial was begun with another source; give"):
        run_job(job, output, 1, quiet=True, resume=True)


def test_a_conversion_that_is_at_work_is_left_alone(tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    partial = tmp_path / "m.colibri.partial"
    with partial.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ColibriError, match="is being written by another conversion") as caught:
            run_job(load_recipe(RECIPE), output, 1, quiet=True, resume=True)
    assert caught.value.code == Code.BUSY
    assert partial.read_bytes() == b""


@pytest.mark.parametrize("text", ["{}\n", "[1]\n", '{"format": "colibri-partial-0", "identity": {}}\n', "x\n"])
def test_a_journal_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.colibri.partial.journal").write_text(text)
    with pytest.raises(ColibriError, match="is no journal of this version; remove"):
        run_job(load_recipe(RECIPE), tmp_path / "m.colibri", 1, quiet=True, resume=True)
    assert (tmp_path / "m.colibri.partial.journal").read_text() == text
    assert names(tmp_path) == ["m.colibri.partial.journal"]


def test_a_file_that_another_run_completed_before_the_lock_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[str, Any]
) -> None:
    output = tmp_path / "m.colibri"
    flock = fcntl.flock
    calls: list[int] = []

    def late(descriptor: int, operation: int) -> None:
        if not calls:  # the other run ends between open and lock
            (tmp_path / "m.colibri.partial").replace(tmp_path / "done")
            (tmp_path / "done").write_bytes(b"complete")
        calls.append(operation)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    run_job(load_recipe(RECIPE), output, 1, quiet=True, resume=True)
    assert (tmp_path / "done").read_bytes() == b"complete"
    assert len(calls) == 2
    assert digest(output) == whole[0]


@pytest.mark.parametrize("name", ["m.colibri.partial", "m.colibri.partial.journal"])
def test_links_and_folders_in_the_way_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "other").write_text("keep")
    (tmp_path / name).symlink_to(tmp_path / "other")
    with pytest.raises(ColibriError) as caught:
        run_job(load_recipe(RECIPE), tmp_path / "m.colibri", 1, quiet=True, resume=True)
    assert caught.value.code == Code.OPEN
    assert (tmp_path / "other").read_text() == "keep"


def test_without_the_option_nothing_of_it_is_read_or_left(tmp_path: Path, whole: tuple[str, Any]) -> None:
    (tmp_path / "m.colibri.partial.journal").write_text("{}\n")
    run_job(load_recipe(RECIPE), tmp_path / "m.colibri", 1, quiet=True)
    assert digest(tmp_path / "m.colibri") == whole[0]
    assert names(tmp_path) == ["m.colibri", "m.colibri.partial.journal"]


def test_lines_hold_the_errors_of_their_tensors(tmp_path: Path) -> None:
    assert killed(tmp_path / "m.colibri", 60) == -signal.SIGKILL
    head, *lines = (tmp_path / "m.colibri.partial.journal").read_text().splitlines()
    assert set(json.loads(head)) == {"format", "identity"}
    tables = [json.loads(line) for line in lines]
    assert [table["extent"] for table in tables] == list(range(len(tables)))
    assert any("global embedding" in table["errors"] for table in tables)
