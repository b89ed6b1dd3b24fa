# SPDX-License-Identifier: MIT
"""What the commands write: refused before the work, named as the user named it, progress that arrives."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.files import refuse_output
from colibri.job import Progress

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = str(REPOSITORY / "configs" / "models" / "tiny.toml")
MISSING = "No such file or directory; make its folder first, or give another path"
FULL = "No space left on device; free space, or give a path on another disk"
Command = Callable[[Path], list[str]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    assert main(["convert", TINY, "-o", str(folder / "tiny.colibri"), "-q"]) == 0
    (folder / "text").write_text("the cat sat on the mat")
    return folder / "tiny.colibri"


@pytest.fixture
def commands(tiny: Path) -> dict[str, Command]:
    """Arguments of every command that writes one file, by its name."""
    text = str(tiny.parent / "text")
    model = str(tiny)
    return {
        "convert": lambda path: ["convert", TINY, "-q", "-o", str(path)],
        "report": lambda path: ["convert", TINY, "-q", "-o", str(tiny.parent / "other"), "--report", str(path)],
        "calibrate": lambda path: [
            "calibrate", model, "--text", text, "--engine", "reference", "-q", "-o", str(path),
        ],
        "importance": lambda path: ["importance", model, "--text", text, "-q", "-o", str(path)],
        "golden": lambda path: ["golden", model, "--ids", "1", "-n", "1", "-o", str(path)],
        "plan": lambda path: ["plan", model, "--calibrate", str(path)],
        "sign": lambda path: ["sign", model, "-k", str(tiny.parent / "key.pem"), "-o", str(path)],
    }  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def key(tiny: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    pem, raw = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    data = Ed25519PrivateKey.generate().private_bytes(pem, raw, serialization.NoEncryption())
    (tiny.parent / "key.pem").write_bytes(data)


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that fails to write says on stderr."""
    capsys.readouterr()
    assert main(words) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


# What each command would begin to do: to reach it is to have looked at the output too late.
WORK = {
    "convert": "colibri.job.encoded",
    "report": "colibri.job.run_job",
    "calibrate": "colibri.calibrate.measure",
    "importance": "colibri.importance.measure",
    "golden": "colibri.reference.ReferenceModel",
    "plan": "colibri.calibrate_machine.calibrate",
    "sign": "colibri.signing._copy_body",
}


@pytest.mark.parametrize("name", list(WORK))
def test_an_output_that_cannot_be_made_is_refused_before_the_work(
    name: str,
    commands: dict[str, Command],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(WORK[name], lambda *_, **__: pytest.fail("the work began"))
    output = tmp_path / "none" / "file"
    assert refused(commands[name](output), capsys) == f"colibri: cannot write {output}: {MISSING}\n"


@pytest.mark.parametrize("name", [name for name in WORK if name != "plan"])  # plan measures for half a minute
def test_a_disk_that_becomes_full_is_named_by_the_path_of_the_user(
    name: str,
    commands: dict[str, Command],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    real = os.fsync

    def full(descriptor: int) -> None:
        if str(tmp_path) in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    said = refused(commands[name](tmp_path / "file"), capsys)
    assert said.splitlines()[-1] == f"colibri: cannot write {tmp_path}/file: {FULL}"
    assert ".tmp" not in said
    assert list(tmp_path.iterdir()) == []


def test_the_two_steps_of_a_conversion_say_write_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from colibri import flow
    from colibri.recipe import load_recipe

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ColibriError) as caught:
        flow.write_quantized(load_recipe(Path(TINY)), tmp_path / "m.quant")
    assert str(caught.value) == f"cannot write {tmp_path}/m.quant: {FULL}"
    for option in ("--weights", "--config"):
        words = {"--weights": TINY, "--config": TINY, option: str(tmp_path / "none")}
        given = [word for pair in words.items() for word in pair]
        assert main(["pack", *given, "--output", str(tmp_path / "m.colibri")]) == 1
        assert capsys.readouterr().err == f"colibri: {tmp_path}/none: no such file\n"
    assert list(tmp_path.iterdir()) == []


def test_settings_in_a_folder_that_cannot_be_made_name_their_file(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "file" / "out"
    assert main(["units", str(tiny), "--board", "rk3588", "--output-dir", str(folder)]) == 1
    assert capsys.readouterr().err.startswith(f"colibri: cannot write {folder}/colibri.conf: Not a directory; give ")


def without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that makes no file without a name."""
    real = os.open

    def refuse(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("prepare", [lambda _: None, without_names], ids=["new file", "permissions"])
def test_a_folder_that_others_own_is_refused(
    prepare: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)  # permissions do not bind root
        try:
            prepare(monkeypatch)
            fix = "Permission denied; give a path in a folder that you may write to"
            with pytest.raises(ColibriError, match=f"^cannot write {name}/file: {fix}$"):
                refuse_output(Path(name) / "file")
        finally:
            if root:
                os.seteuid(0)
        Path(name).chmod(0o755)


def test_an_output_that_can_be_made_is_not_made_yet(tmp_path: Path) -> None:
    refuse_output(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------- progress


def test_the_progress_of_a_conversion_arrives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", TINY, "-o", str(tmp_path / "m.colibri")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if " %  " in line]
    assert [line.split(" %")[0].strip() for line in lines] == [str(tenth) for tenth in range(10, 101, 10)]
    assert all(re.fullmatch(r" *\d+ %  [1-9]\d* KiB", line) for line in lines)


def test_progress_is_in_units_of_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    for total in (9, 100 << 10, 100 << 20, 100 << 30):
        progress = Progress(total)
        progress.skip(total)
    err = capsys.readouterr().err.splitlines()
    assert err[1::2] == ["100 %  9 bytes", "100 %  100 KiB", "100 %  100 MiB", "100 %  100 GiB"]
    assert err[6] == "going on behind 100 GiB of an earlier run"
