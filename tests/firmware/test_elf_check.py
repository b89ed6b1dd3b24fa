# SPDX-License-Identifier: MIT
"""elf_check.py: each check finds what it is for, and what the engine's builds are like."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import elf_check
import pytest
from elf_check import Answer, ElfError

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = REPOSITORY / "build"
HOST = Path(os.environ.get("COLIBRI_NATIVE_BUILD", BUILD / "host"))
AARCH64 = Path(os.environ.get("COLIBRI_AARCH64_BIN", BUILD / "aarch64"))
SOURCE = """
#include <stdio.h>
#include <string.h>
static const char *const words[] = {"one", "two", "three"};
int main(int argc, char **argv)
{
    char text[64];
    snprintf(text, sizeof text, "%s %s", words[argc % 3], argv[0]);
    return (int)strlen(text) + printf("%s", text) == 1;
}
"""
HARDENED = ["-O2", "-fPIE", "-pie", "-fstack-protector-strong", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2",
            "-Wl,-z,relro,-z,now,-z,noexecstack"]  # fmt: skip


def compiled(folder: Path, *flags: str, source: str = SOURCE, compiler: str = "gcc") -> Path:
    """A program of these flags."""
    (folder / "program.c").write_text(source)
    output = folder / "program"
    subprocess.run([compiler, *flags, "program.c", "-o", output.name], cwd=folder, check=True, capture_output=True)
    return output


def test_a_hardened_program_passes(tmp_path: Path) -> None:
    answers = elf_check.check(compiled(tmp_path, *HARDENED, "-s"))
    assert elf_check.failures(answers) == []
    assert {name for name, answer in answers.items() if answer.state == "no"} <= {"branch"}
    assert answers["pie"] == Answer("yes", "pie program")


# Flags behind the hardened ones that take one thing away: the check that must see it.
WEAKER = {
    "pie": ["-fno-pie", "-no-pie"],
    "relro": ["-Wl,-z,norelro"],
    "bind_now": ["-Wl,-z,lazy"],
    "stack": ["-Wl,-z,execstack"],
    "rpath": ["-Wl,-rpath,/opt/engine/lib"],
    "canary": ["-fno-stack-protector"],
    "fortify": ["-U_FORTIFY_SOURCE"],
    "stripped": ["-g"],
}


@pytest.mark.parametrize("name", WEAKER)
def test_what_one_flag_takes_away_is_seen(name: str, tmp_path: Path) -> None:
    answer = elf_check.check(compiled(tmp_path, *HARDENED, "-s" if name != "stripped" else "-O2", *WEAKER[name]))[name]
    assert answer.state == "no", answer


def test_code_that_can_be_written_to_is_seen(tmp_path: Path) -> None:
    program = compiled(tmp_path, *HARDENED)
    data = bytearray(program.read_bytes())
    (start,) = struct.unpack_from("<Q", data, 32)
    count = struct.unpack_from("<H", data, 56)[0]
    for at in range(start, start + 56 * count, 56):
        kind, flags = struct.unpack_from("<II", data, at)
        if kind == elf_check.PT_LOAD and flags & elf_check.PF_X:
            struct.pack_into("<I", data, at + 4, flags | elf_check.PF_W)
    program.write_bytes(data)
    assert elf_check.check(program)["rwx"].state == "no"


def test_text_relocations_are_seen(tmp_path: Path) -> None:
    source = 'extern int outside(void); __asm__(".text\\n.quad outside\\n"); int f(void) { return outside(); }'
    library = compiled(tmp_path, "-shared", "-fPIC", "-Wl,-z,notext", source=source)
    assert elf_check.check(library)["textrel"].state == "no"


@pytest.mark.parametrize("words", ["home somebody src", "root project", "builds group project", "tmp x1 y.c"])
def test_a_folder_of_the_build_machine_is_seen(words: str, tmp_path: Path) -> None:
    text = "/" + "/".join([*words.split(), "x.c"])
    leaky = SOURCE.replace('"two"', f'"{text}"')
    assert text in elf_check.check(compiled(tmp_path, *HARDENED, source=leaky))["paths"].detail


def test_words_that_only_look_like_folders_pass(tmp_path: Path) -> None:
    harmless = SOURCE.replace('"two"', '"/home", "/root", "/tmp/colibri.sock"')
    assert elf_check.check(compiled(tmp_path, *HARDENED, source=harmless))["paths"] == Answer("yes")


def test_a_further_text_is_looked_for(tmp_path: Path) -> None:
    program = compiled(tmp_path, *HARDENED)
    assert elf_check.main([str(program)]) == 0
    assert elf_check.main([str(program), "--path", "three"]) == 1


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="an x86-64 host makes the note")
def test_the_note_of_shadow_stacks_is_read(tmp_path: Path) -> None:
    source = "int f(int x) { return x + 1; }"
    library = compiled(tmp_path, "-shared", "-fPIC", "-nostdlib", "-fcf-protection=full", source=source)
    assert elf_check.check(library)["branch"] == Answer("yes", "property IBT+SHSTK; 1 endbr64")
    library = compiled(tmp_path, "-shared", "-fPIC", "-nostdlib", "-fcf-protection=none", source=source)
    assert elf_check.check(library)["branch"] == Answer("no", "property none; 0 endbr64")


def test_the_note_of_branch_targets_is_read(tmp_path: Path) -> None:
    source = "int g(int); int f(int x) { return g(x + 1) + 1; } int g(int x) { return x; }"
    flags = ["-shared", "-fPIC", "-nostdlib", "-O2", "-fno-inline"]
    cross = "aarch64-linux-gnu-gcc"
    answer = elf_check.check(
        compiled(tmp_path, *flags, "-mbranch-protection=standard", source=source, compiler=cross)
    )["branch"]
    assert (answer.state, answer.detail[:16]) == ("yes", "property BTI+PAC")
    answer = elf_check.check(compiled(tmp_path, *flags, "-mbranch-protection=none", source=source, compiler=cross))[
        "branch"
    ]
    assert answer == Answer("no", "property none; 0 paciasp, 0 bti")


# ---- files that are none -------------------------------------------------------------------------------


def test_a_file_that_ends_early_is_an_error_at_every_length(tmp_path: Path) -> None:
    data = compiled(tmp_path, *HARDENED, "-s").read_bytes()
    for length in [*range(64), 64, 100, 500, 900]:
        with pytest.raises(ElfError):
            elf_check.Elf(data[:length])


def test_what_is_no_program_is_an_error(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("hello")
    assert elf_check.main([str(text)]) == 2
    assert elf_check.main([str(tmp_path / "missing")]) == 2
    (tmp_path / "program.c").write_text(SOURCE)
    subprocess.run(["gcc", "-c", "program.c"], cwd=tmp_path, check=True)
    assert elf_check.main([str(tmp_path / "program.o")]) == 2


# ---- the command ---------------------------------------------------------------------------------------


def test_a_folder_is_walked_and_links_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "image"
    (root / "usr" / "bin").mkdir(parents=True)
    good = root / "usr" / "bin" / "good"
    compiled(tmp_path, *HARDENED).rename(good)
    compiled(tmp_path, *HARDENED, "-Wl,-z,execstack").rename(root / "bad")
    (root / "usr" / "bin" / "link").symlink_to("good")
    (root / "script").write_text("#!/bin/sh\n")
    assert elf_check.main(["--root", str(root), "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {str(root / "bad"), str(good)}
    assert shown[str(good)]["stack"] == {"state": "yes", "detail": ""}
    assert elf_check.main(["--root", str(root), "--only", "usr/bin/*"]) == 0
    assert elf_check.main(["--root", str(root), "--waive", "stack"]) == 0
    assert elf_check.main([str(good), "--require", "stripped"]) == 1
    command = [sys.executable, str(REPOSITORY / "tests" / "firmware" / "elf_check.py"), str(root / "bad")]
    script = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (script.returncode, "! stack     no (executable)" in script.stdout) == (1, True)


# ---- the engine ----------------------------------------------------------------------------------------


def built(path: Path) -> dict[str, Answer]:
    if not path.exists():
        pytest.fail(f"{path} is not there: build the engine first (make engine)", pytrace=False)
    return elf_check.check(path, (str(REPOSITORY), "native/src/"))


@pytest.mark.parametrize("name", ["colibrictl", "libcolibri.so"])
def test_what_runs_on_this_machine_is_hardened(name: str, note: Callable[[str], None]) -> None:
    answers = built(HOST / name)
    assert elf_check.failures(answers, (*elf_check.MUST, "canary", "fortify")) == []
    note(f"{name} (host): branch protection {answers['branch']}")


def test_the_static_program_for_aarch64_is_hardened(note: Callable[[str], None]) -> None:
    answers = built(AARCH64 / "colibrictl")
    assert elf_check.failures(answers, (*elf_check.MUST, "canary", "fortify", "branch")) == []
    assert answers["pie"] == Answer("yes", "static-pie program")
    assert " 0 paciasp" not in answers["branch"].detail
    note(f"colibrictl (aarch64, static glibc): branch protection {answers['branch']}")
