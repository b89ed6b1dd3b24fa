# SPDX-License-Identifier: MIT
"""The smoke image's builders, on the host: no kernel is built here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import build_image
import initramfs
import pytest
import support
from initramfs import Entry, directory, regular, smoke_entries, write_newc
from support import BuildError, Tool

BOARD = support.REPOSITORY / "configs" / "boards" / "qemu-aarch64.toml"


def small_image() -> list[Entry]:
    """The smoke image's entries with stand-ins for the programs."""
    return smoke_entries(
        busybox=b"busybox", colibrictl=b"engine", console="ttyAMA0", baud=115200, filesystem="erofs",
        units=build_image.UNITS, model="tiny.colibri",
    )  # fmt: skip


def test_two_archives_of_the_same_entries_are_equal_in_any_order() -> None:
    entries = small_image()
    assert write_newc(entries) == write_newc(entries[::-1])


def test_cpio_reads_the_archive() -> None:
    support.require_tools([Tool("cpio", "cpio")])
    result = subprocess.run(
        ["cpio", "--list", "--verbose", "--quiet", "--numeric-uid-gid"],
        input=write_newc(small_image()),
        capture_output=True,
        check=True,
    )
    lines = result.stdout.decode().splitlines()
    listing = {line.split(" -> ")[0].rsplit(" ", 1)[1]: line for line in lines}
    assert sorted(listing) == sorted(entry.path for entry in small_image())
    assert listing["dev/console"].startswith("crw-------")
    assert "5,   1" in listing["dev/console"]
    assert listing["etc/init.d/rcS"].startswith("-rwxr-xr-x")
    assert listing["usr/bin/colibri_test"].endswith("-> colibrictl")
    assert listing["tmp"].startswith("drwxrwxrwt")


def test_an_entry_listed_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="etc listed twice"):
        write_newc([directory("etc"), directory("etc")])


def test_an_entry_without_its_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="etc/issue lies in etc, which is not listed"):
        write_newc([regular("etc/issue", "x")])


def test_init_scripts_are_valid_shell() -> None:
    scripts = {entry.path: entry.data for entry in small_image() if entry.data.startswith(b"#!/bin/sh")}
    assert {"etc/init.d/rcS", "etc/init.d/rcK", "etc/init.d/S95colibri"} <= set(scripts)
    for data in scripts.values():
        subprocess.run(["sh", "-n"], input=data, check=True)
    assert initramfs.MODELS_SERIAL.encode() in scripts["etc/init.d/rcS"]


def test_the_service_has_its_paths_and_its_model() -> None:
    entries = {entry.path: entry.data.decode("utf-8", "replace") for entry in small_image()}
    assert 'COLIBRI_MODEL="/models/tiny.colibri"' in entries["etc/colibri/colibri.conf"]
    assert "/usr/libexec/colibri/functions.sh" in entries["etc/init.d/S95colibri"]
    assert 'EXECUTABLE="/usr/bin/colibrictl"' in entries["usr/libexec/colibri/functions.sh"]


def test_a_place_that_the_image_does_not_have_is_named(tmp_path: Path) -> None:
    (tmp_path / "init").mkdir()
    for name in ("S95colibri.in", "functions.sh.in"):
        (tmp_path / "init" / name).write_text("exec @nowhere@/x\n")
    with pytest.raises(ValueError, match=r"S95colibri\.in: @nowhere@ has no place"):
        initramfs.service_entries(tmp_path, "tiny.colibri")


def test_harness_and_image_agree_on_the_models_disk() -> None:
    harness = (support.REPOSITORY / "tests" / "boot" / "harness.py").read_text()
    assert f'MODELS_SERIAL = "{initramfs.MODELS_SERIAL}"' in harness


def test_missing_tools_come_with_the_command_that_installs_them() -> None:
    tools = [Tool("no-such-flex", "flex"), Tool("sh", "dash"), Tool("no-such-bison", "bison")]
    with pytest.raises(BuildError, match="no-such-bison; install with: apt-get install bison flex"):
        support.require_tools(tools)


def test_content_keys_depend_on_where_one_input_ends() -> None:
    assert support.content_key("ab", "c") != support.content_key("a", "bc")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    support.write_atomically(path, b"old")

    def broken(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        support.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_board_file_names_fragments_that_exist() -> None:
    board = build_image.load_board(BOARD)
    assert [p for p in board.fragments + board.vendor_fragments if not p.is_file()] == []


def test_a_board_file_with_a_missing_key_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(BOARD.read_text().replace("device = ", "devise = "))
    with pytest.raises(BuildError, match=r"board\.toml: \[console\] device must be a str"):
        build_image.load_board(path)


def test_golden_results_are_found_under_both_names(tmp_path: Path) -> None:
    model = tmp_path / "tiny.colibri"
    assert build_image.golden_file(model) is None
    long_name = tmp_path / "tiny.colibri.golden.json"
    long_name.touch()
    assert build_image.golden_file(model) == long_name
    short_name = tmp_path / "tiny.golden.json"
    short_name.touch()
    assert build_image.golden_file(model) == short_name


def test_two_models_of_one_name_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "m.colibri", tmp_path / "b" / "m.colibri"]
    for path in paths:
        path.parent.mkdir()
        path.touch()
    with pytest.raises(BuildError, match=r"m\.colibri: two files of this name"):
        build_image.model_files(paths)


@pytest.mark.parametrize("epoch", [None, "1700000000"])
def test_the_models_disk_has_the_same_bytes_whoever_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: str | None
) -> None:
    if epoch is None:
        monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    else:
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    disks = []
    for name, permissions in (("one", 0o644), ("two", 0o600)):
        folder = tmp_path / name
        folder.mkdir()
        model = folder / "m.colibri"
        model.write_bytes(b"weights" * 3000)
        model.chmod(permissions)
        os.utime(model, (permissions, permissions))
        disk = folder / "models.erofs"
        build_image.build_models_disk(disk, [model])
        disks.append(disk.read_bytes())
        assert sorted(path.name for path in folder.iterdir()) == ["m.colibri", "models.erofs"]
    assert disks[0] == disks[1]


def test_the_command_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--colibrictl", str(tmp_path / "none"), "--model", "m", "--output", str(tmp_path)]
    assert build_image.main(arguments) == 1
    assert "none: no such file; build it with: make" in capsys.readouterr().err
