# SPDX-License-Identifier: MIT
"""Rules that hold for the tree as a whole."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE = REPOSITORY / "engine"
SOURCE_SUFFIXES = {".c", ".h", ".cpp", ".py", ".toml", ".sh", ".build", ".options", ".cfg", ".map", ".ini", ".yml"}
VERSION = (ENGINE / "VERSION").read_text().strip()


def tracked() -> list[Path]:
    """Files of the tree: those git knows, or all when this is no clone (a release tarball)."""
    result = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, check=False,
    )  # fmt: skip
    names = result.stdout.decode().split("\0") if result.returncode == 0 else []
    return [REPOSITORY / name for name in names if name and (REPOSITORY / name).is_file()]


FILES = tracked()


def text_files() -> list[tuple[Path, str]]:
    out = []
    for path in FILES:
        if not path.exists():  # removed since the list was made
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            out.append((path.relative_to(REPOSITORY), data.decode()))
    return out


def test_every_source_file_begins_with_its_licence() -> None:
    sources = [path for path in FILES if path.suffix in SOURCE_SUFFIXES or path.name == "Makefile"]
    sources = [path for path in sources if path.exists()]
    assert len(sources) > 40
    missing = []
    for path in sources:
        lines = path.read_text().splitlines()[:2]
        if not any("SPDX-License-Identifier: MIT" in line for line in lines):
            missing.append(str(path.relative_to(REPOSITORY)))
    assert missing == []


def test_version_has_one_home() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert "files('VERSION')" in (ENGINE / "meson.build").read_text()
    project = tomllib.loads((ENGINE / "pyproject.toml").read_text())["project"]
    assert project["dynamic"] == ["version"]
    assert "version" not in project
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\d+\.\d+\.\d+)", changelog, re.MULTILINE)
    assert newest is not None
    assert newest[1] == VERSION


@pytest.mark.parametrize("generator", ["generate.py", "generate_families.py", "generate_boards.py"])
def test_generated_files_are_what_their_source_says(generator: str) -> None:
    result = subprocess.run(
        [sys.executable, ENGINE / "spec" / generator, "--check"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_text_files_name_no_build_machine() -> None:
    here = "|".join(re.escape(f"{folder}/") for folder in (REPOSITORY, Path.home()))
    leaks = re.compile(here + r"|/home/\w+/|march=nativ[e]\b(?! )")
    found = []
    for path, text in text_files():
        if path == Path(__file__).resolve().relative_to(REPOSITORY):
            continue
        found += [f"{path}: {match[0]}" for match in leaks.finditer(text)]
    assert found == []


def test_no_work_is_left_marked_in_the_sources() -> None:
    marks = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|TO-" r"FILL)\b|raise NotImplemented" r"Error")
    found = [f"{path}: {match[0]}" for path, text in text_files() for match in marks.finditer(text)]
    assert found == []


def test_planted_bugs_still_fit_the_sources() -> None:
    folder = str(Path(__file__).parent)
    sys.path.insert(0, folder)
    try:
        from planted_bugs import BUGS
    finally:
        sys.path.remove(folder)
    found = {bug.name: (ENGINE / "native" / bug.file).read_text().count(bug.old) for bug in BUGS}
    assert found == {bug.name: bug.count for bug in BUGS}


def test_meson_names_every_c_file() -> None:
    build = (ENGINE / "meson.build").read_text()
    listed = set(re.findall(r"'(native/[\w/]+\.(?:c|map))'", build))
    native = ENGINE / "native"
    folders = [native / part for part in ("src", "kernels", "tools", "tests")]
    files = {str(path.relative_to(ENGINE)) for folder in folders for path in folder.glob("*.c")}
    by_hand = {"native/tests/header_test.c", "native/tests/test_inference.c"}  # compiled by test_build.py
    assert files - by_hand == {name for name in listed if name.endswith(".c")}


def test_every_error_code_has_a_row_with_its_fix() -> None:
    document = (REPOSITORY / "docs" / "cli.md").read_text()
    codes = re.findall(r"COLIBRI_ERR_(\w+) = (-\d+)", (ENGINE / "native/include/colibri.h").read_text())
    assert len(codes) > 30
    assert [name for name, number in codes if f"| {number} | {name.lower()} |" not in document] == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = []
    for path, text in text_files():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not (REPOSITORY / path.parent / target).exists():
                broken.append(f"{path}: {target}")
    assert broken == []


def test_make_targets_named_in_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    missing = []
    for path, text in text_files():
        if path.suffix == ".md":
            for name in re.findall(r"`make ([a-z][a-z-]*)", text):
                if name not in targets:
                    missing.append(f"{path}: make {name}")
    assert missing == []
