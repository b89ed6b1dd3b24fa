# SPDX-License-Identifier: MIT
"""Static programs carry a stdio of their own: every format of the sources through it and through libc."""

from __future__ import annotations

import ctypes
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "engine" / "native"
SMALL = (NATIVE / "tools" / "small_stdio.c", NATIVE / "tools" / "small_libc.c")
SOURCES = [
    path for folder in ("tools", "src", "kernels") for path in sorted((NATIVE / folder).glob("*.[ch]"))
    if path not in SMALL
]  # fmt: skip

# What a static program would take from libc and hand a FILE or memory of ours to, or the other way round.
REFUSED = (
    "asprintf|clearerr|dprintf|err|errx|error|feof|fgetc|fgetpos|fileno|flockfile|fmemopen|fputws|"
    "fread|freopen|fscanf|fseek|fseeko|fsetpos|ftell|ftello|funlockfile|fwide|fwprintf|getc|"
    "getchar|getdelim|getline|getopt|getopt_long|getpass|malloc_usable_size|memalign|open_memstream|"
    "pclose|perror|popen|psignal|putw|pvalloc|reallocarray|rewind|scanf|setbuf|setbuffer|setlinebuf|"
    "setvbuf|sprintf|sscanf|syslog|tmpfile|ungetc|valloc|vasprintf|vdprintf|vprintf|vscanf|vsprintf|"
    "vsscanf|vsyslog|warn|warnx|wprintf"
)
DIRECTIVE = re.compile(
    r"%(?P<flags>[-+ #0']*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d*))?"
    r"(?P<length>hh|h|ll|l|q|j|z|t|L)?(?P<conversion>[a-zA-Z%])"
)
WIDTHS = {"64": {"d": "lld", "u": "llu", "x": "llx", "X": "llX"}, "32": {"d": "d", "u": "u", "x": "x", "X": "X"}}
TOKENS = re.compile(
    r"""/\*.*?\*/|//[^\n]*|"((?:[^"\\\n]|\\.)*)"|'(?:[^'\\\n]|\\.)*'|\bPRI([duxX])(64|32)\b|\w+|\s+|.""", re.DOTALL
)
ESCAPES = {
    "n": "\n", "t": "\t", "r": "\r", "0": "\0", '"': '"', "\\": "\\", "'": "'", "a": "\a", "b": "\b", "e": "\x1b"
}  # fmt: skip


def unescaped(body: str) -> str:
    def one(match: re.Match[str]) -> str:
        word = match[1]
        return chr(int(word[1:], 16)) if word[0] == "x" else ESCAPES.get(word, word)

    return re.sub(r"\\(x[0-9A-Fa-f]{2}|.)", one, body)


def literals(text: str) -> Iterator[str]:
    """String literals with their neighbours joined on, but for those of inline assembly."""
    text = re.sub(r"__asm__[^;]*;", "", text)
    whole: list[str] = []
    for token in TOKENS.finditer(text):
        word = token[0]
        if token[1] is not None:
            whole.append(unescaped(token[1]))
        elif token[2] is not None:
            whole.append(WIDTHS[token[3]][token[2]])
        elif not word.isspace() and not word.startswith(("/*", "//")):
            if whole:
                yield "".join(whole)
            whole = []


def formats() -> dict[str, str]:
    """Literals in which something is converted, and the file of each."""
    found = {}
    for path in SOURCES:
        for literal in literals(path.read_text()):
            if any(match["conversion"] != "%" for match in DIRECTIVE.finditer(literal)):
                found[literal] = path.name
    return found


def is_supported(match: re.Match[str]) -> bool:
    integer = match["conversion"] in "diuxXo"
    return (
        set(match["flags"]) <= set("-0")
        and match["length"] in ((None, "hh", "h", "l", "ll", "z") if integer else (None,))
        and match["conversion"] in "diuxXocspfg%"
        and not (integer and match["precision"] is not None)
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The two files as a shared library of this machine; their functions are named small_*."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.fail("no C compiler: apt-get install gcc", pytrace=False)
    library = tmp_path_factory.mktemp("small") / "small.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-std=c11", "-D_GNU_SOURCE=", "-D_FILE_OFFSET_BITS=64", "-fno-builtin",
         NATIVE / "tests" / "test_small_libc.c", "-o", library],
        check=True,
    )  # fmt: skip
    return ctypes.CDLL(str(library))


def random_arguments(literal: str, generator: random.Random) -> list[object]:
    out: list[object] = []
    for match in DIRECTIVE.finditer(literal):
        conversion = match["conversion"]
        out += [ctypes.c_int(generator.randrange(-12, 13)) for part in ("width", "precision") if match[part] == "*"]
        wide = match["length"] in ("l", "ll", "z")
        bits = generator.getrandbits(64) >> generator.randrange(64)
        if conversion in "di":
            out.append(ctypes.c_int64(bits) if wide else ctypes.c_int32(bits & 0xFFFFFFFF))
        elif conversion in "uxXo":
            out.append(ctypes.c_uint64(bits) if wide else ctypes.c_uint32(bits & 0xFFFFFFFF))
        elif conversion in "fg":
            sign, exponent = generator.choice((1, -1)), generator.randrange(-9, 21)
            out.append(ctypes.c_double(sign * generator.random() * 10**exponent))
        elif conversion == "c":
            out.append(ctypes.c_int(generator.randrange(33, 127)))
        elif conversion == "p":
            out.append(ctypes.c_void_p(bits | 1))
        elif conversion == "s":
            text = "".join(generator.choice("abc é\n") for _ in range(generator.randrange(90)))
            out.append(ctypes.c_char_p(text.encode()))
    return out


def test_the_formats_of_the_sources_need_nothing_that_is_not_there() -> None:
    every = formats()
    assert len(every) > 200
    refused = {
        (path, match[0]) for literal, path in every.items() for match in DIRECTIVE.finditer(literal)
        if not is_supported(match)
    }  # fmt: skip
    assert refused == set()


def test_every_format_of_the_sources_gives_the_text_of_libc(small: ctypes.CDLL) -> None:
    libc = ctypes.CDLL(None)
    generator = random.Random(1)
    for literal in formats():
        for _ in range(20):
            arguments = random_arguments(literal, generator)
            ours, theirs = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(4096)
            encoded = literal.encode()
            length = libc.snprintf(theirs, ctypes.c_size_t(4096), encoded, *arguments)
            assert small.small_snprintf(ours, ctypes.c_size_t(4096), encoded, *arguments) == length
            assert ours.raw == theirs.raw, literal


def test_nothing_of_stdio_is_called_that_a_static_program_would_take_from_libc() -> None:
    calls = re.compile(rf"\b({REFUSED})\s*\(")
    found = []
    for path in SOURCES:
        text = re.sub(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"', "", path.read_text(), flags=re.DOTALL)
        found += [f"{path.name}: {match[1]}" for match in calls.finditer(text)]
        found += [f"{path.name}: stdin" for _ in re.finditer(r"\bstdin\b", text)]
        found += [
            f"{path.name}: sysconf({name})" for name in re.findall(r"\bsysconf\((\w+)\)", text)
            if name not in ("_SC_PAGESIZE", "_SC_NPROCESSORS_ONLN")
        ]  # fmt: skip
    assert found == []
