# SPDX-License-Identifier: MIT
"""How hardened ELF files are: position independence, RELRO, stacks, canaries, branch protection, leaks.

    python3 tests/firmware/elf_check.py build/host/colibrictl build/host/libcolibri.so
    python3 tests/firmware/elf_check.py --root image/ --only 'usr/bin/colibri*'
    python3 tests/firmware/elf_check.py --require canary,fortify,branch --json program

Exit code 0: every required check holds; 1: one does not; 2: a file cannot be read. Works on programs
of any little-endian machine, static or not, stripped or not; needs Python alone. A check that a file
cannot answer says so ("n/a" where it has no meaning, "unknown" where strip took the evidence); only
"no" fails. docs/hardening.md says what each one is good for.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import struct
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}
ET_REL, ET_EXEC, ET_DYN = 1, 2, 3
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_NOTE = 1, 2, 3, 4
PT_GNU_STACK, PT_GNU_RELRO, PT_GNU_PROPERTY = 0x6474E551, 0x6474E552, 0x6474E553
PF_X, PF_W = 1, 2
SHT_SYMTAB, SHT_DYNSYM = 2, 11
DT_NEEDED, DT_PLTRELSZ, DT_STRTAB, DT_STRSZ, DT_RPATH = 1, 2, 5, 10, 15
DT_TEXTREL, DT_BIND_NOW, DT_RUNPATH, DT_FLAGS, DT_FLAGS_1 = 22, 24, 29, 30, 0x6FFFFFFB
DF_TEXTREL, DF_BIND_NOW, DF_1_NOW, DF_1_PIE = 4, 8, 1, 0x08000000
NT_GNU_PROPERTY = 5
# Property of a machine: its type, the meaning of its bits, the instruction that marks a landing place.
PROPERTIES = {
    "aarch64": (0xC0000000, {1: "BTI", 2: "PAC"}, {"paciasp": b"\x3f\x23\x03\xd5", "bti": b"\x5f\x24\x03\xd5"}),
    "x86_64": (0xC0000002, {1: "IBT", 2: "SHSTK"}, {"endbr64": b"\xf3\x0f\x1e\xfa"}),
}
# Loads of the canary from where x86-64 keeps it, %fs:0x28: mov, xor, sub, cmp into any register.
X86_CANARY = re.compile(rb"\x64[\x48\x4c][\x8b\x33\x2b\x3b].\x25\x28\x00\x00\x00", re.DOTALL)
# What names the machine of a build; a folder must follow, so that "/home" as a word passes.
BUILD_PATHS = (rb"/(?:home|root|builds?)/[\w.-]+/", rb"/tmp/[\w.-]+/[\w./-]+\.[ch]\b")

MUST = ("pie", "relro", "bind_now", "stack", "rwx", "rpath", "textrel", "paths")
MAY = ("canary", "fortify", "branch", "stripped")


class ElfError(Exception):
    """The file is not an ELF file that this program reads; the message says why."""


@dataclass(frozen=True)
class Segment:
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    file_bytes: int


@dataclass(frozen=True)
class Section:
    """A section header."""

    name: str
    kind: int
    offset: int
    size: int
    link: int
    entry_bytes: int


@dataclass(frozen=True)
class Answer:
    """What one check found: `yes` (as it should be), `no`, `n/a` or `unknown`, and in which way."""

    state: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.state} ({self.detail})" if self.detail else self.state


class Elf:
    """A parsed ELF file. Every read is checked against the size of the file."""

    def __init__(self, data: bytes) -> None:
        if data[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if len(data) < 64 or data[4] not in (1, 2) or data[5] != 1:
            raise ElfError("not a little-endian ELF file of 32 or 64 bits")
        self.data = data
        self.wide = data[4] == 2
        kind, machine = self._unpack("<HH", 16)
        self.kind: int = kind
        self.machine = MACHINES.get(machine, str(machine))
        head = self._unpack("<IQQQIHHHHHH" if self.wide else "<IIIIIHHHHHH", 20)
        _, self.entry, segments, sections, _, _, segment_bytes, count, section_bytes, section_count, names = head
        self.segments = [self._segment(segments + i * segment_bytes) for i in range(count)]
        self.sections = self._sections(sections, section_bytes, section_count, names)

    def _unpack(self, form: str, offset: int) -> tuple[int, ...]:
        size = struct.calcsize(form)
        if offset < 0 or offset + size > len(self.data):
            raise ElfError(f"{size} bytes at offset {offset} lie behind the end of the file ({len(self.data)})")
        return struct.unpack_from(form, self.data, offset)

    def _segment(self, at: int) -> Segment:
        if self.wide:
            kind, flags, offset, address, _, file_bytes = self._unpack("<IIQQQQ", at)
        else:
            kind, offset, address, _, file_bytes, _, flags = self._unpack("<IIIIIII", at)
        return Segment(kind, flags, offset, address, file_bytes)

    def _sections(self, start: int, each: int, count: int, names: int) -> list[Section]:
        form = "<IIQQQQIIQQ" if self.wide else "<IIIIIIIIII"
        rows = [self._unpack(form, start + i * each) for i in range(count if start else 0)]
        if names >= len(rows):
            return []
        text = self._slice(rows[names][4], rows[names][5])
        return [
            Section(text_at(text, row[0]), row[1], row[4], row[5], row[6], row[9]) for row in rows
        ]

    def _slice(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]

    def of_kind(self, kind: int) -> list[Segment]:
        """The segments of a kind."""
        return [segment for segment in self.segments if segment.kind == kind]

    def at_address(self, address: int) -> int:
        """Offset in the file of an address of the loaded program."""
        for segment in self.of_kind(PT_LOAD):
            if segment.address <= address < segment.address + segment.file_bytes:
                return address - segment.address + segment.offset
        raise ElfError(f"address {address:#x} lies in no loaded segment")

    @cached_property
    def dynamic(self) -> dict[int, list[int]]:
        """Values of the dynamic section by tag; empty for a program without one."""
        found: dict[int, list[int]] = {}
        form = "<qQ" if self.wide else "<iI"
        for segment in self.of_kind(PT_DYNAMIC):
            for at in range(segment.offset, segment.offset + segment.file_bytes, struct.calcsize(form)):
                tag, value = self._unpack(form, at)
                if tag == 0:
                    break
                found.setdefault(tag & 0xFFFFFFFF, []).append(value)
        return found

    @cached_property
    def dynamic_text(self) -> bytes:
        """String table of the dynamic section."""
        if DT_STRTAB not in self.dynamic or DT_STRSZ not in self.dynamic:
            return b""
        return self._slice(self.at_address(self.dynamic[DT_STRTAB][0]), self.dynamic[DT_STRSZ][0])

    def dynamic_names(self, tag: int) -> list[str]:
        """The strings that a tag names: needed libraries, run paths."""
        return [text_at(self.dynamic_text, offset) for offset in self.dynamic.get(tag, [])]

    @cached_property
    def symbols(self) -> set[str]:
        """Names of all symbols that are left, without versions."""
        names = {name.decode("ascii", "replace") for name in self.dynamic_text.split(b"\0")}
        for section in self.sections:
            if section.kind not in (SHT_SYMTAB, SHT_DYNSYM) or section.link >= len(self.sections):
                continue
            table = self.sections[section.link]
            text = self._slice(table.offset, table.size)
            each = 24 if self.wide else 16
            for at in range(section.offset, section.offset + section.size, each):
                names.add(text_at(text, self._unpack("<I", at)[0]))
        return names - {""}

    @property
    def has_symbol_table(self) -> bool:
        """Whether strip has left the table that linkers and debuggers read."""
        return any(section.kind == SHT_SYMTAB for section in self.sections)

    @property
    def is_static(self) -> bool:
        """A program that brings its libc."""
        return not self.of_kind(PT_INTERP) and DT_NEEDED not in self.dynamic

    @property
    def is_program(self) -> bool:
        """A program, not a shared library."""
        flags = self.dynamic.get(DT_FLAGS_1, [0])[0]
        return self.kind == ET_EXEC or bool(self.of_kind(PT_INTERP)) or bool(flags & DF_1_PIE)

    @property
    def sort(self) -> str:
        """In words: what kind of program or library this is."""
        if self.kind == ET_EXEC:
            return "static program" if self.is_static else "program"
        if not self.is_program:
            return "library"
        return "static-pie program" if self.is_static else "pie program"

    @cached_property
    def code(self) -> bytes:
        """All bytes that may be executed."""
        return b"".join(self._slice(s.offset, s.file_bytes) for s in self.of_kind(PT_LOAD) if s.flags & PF_X)

    @cached_property
    def libc(self) -> str:
        """`glibc`, `musl` or `unknown`."""
        if "libc.so.6" in self.dynamic_names(DT_NEEDED) or b"GLIBC_" in self.dynamic_text:
            return "glibc"
        interpreters = b"".join(self._slice(s.offset, s.file_bytes) for s in self.of_kind(PT_INTERP))
        if b"ld-musl" in interpreters or any("musl" in name for name in self.dynamic_names(DT_NEEDED)):
            return "musl"
        if self.is_static and (b"GNU C Library" in self.data or b"glibc" in self.data):
            return "glibc"
        return "musl" if self.is_static and self.is_program else "unknown"

    @cached_property
    def properties(self) -> int:
        """Bits of the GNU property that the machine defines: what the whole file promises."""
        wanted = PROPERTIES.get(self.machine)
        bits = 0
        for segment in self.of_kind(PT_GNU_PROPERTY) or self.of_kind(PT_NOTE):
            for kind, name, body in self._notes(segment):
                if wanted and name == b"GNU\0" and kind == NT_GNU_PROPERTY:
                    bits |= self._property(body, wanted[0])
        return bits

    def _notes(self, segment: Segment) -> Iterator[tuple[int, bytes, bytes]]:
        at, end = segment.offset, segment.offset + segment.file_bytes
        while at + 12 <= end:
            name_bytes, body_bytes, kind = self._unpack("<III", at)
            name = self._slice(at + 12, name_bytes)
            body = at + 12 + (name_bytes + 3) // 4 * 4
            yield kind, name, self._slice(body, body_bytes)
            at = body + (body_bytes + 3) // 4 * 4

    def _property(self, body: bytes, wanted: int) -> int:
        align, at = 8 if self.wide else 4, 0
        while at + 12 <= len(body):
            kind, size, bits = struct.unpack_from("<III", body, at)
            if kind == wanted and size == 4:
                return int(bits)
            at += 8 + (size + align - 1) // align * align
        return 0


def text_at(table: bytes, offset: int) -> str:
    """A terminated string of a string table."""
    end = table.find(b"\0", offset)
    return table[offset : end if end >= 0 else len(table)].decode("utf-8", "replace")


# ---- the checks ----------------------------------------------------------------------------------------


def check_pie(elf: Elf) -> Answer:
    """The loader may put the program anywhere."""
    return Answer("no" if elf.kind == ET_EXEC else "yes", elf.sort)


def check_relro(elf: Elf) -> Answer:
    """Relocated data is read-only once the program runs."""
    if elf.of_kind(PT_GNU_RELRO):
        return Answer("yes")
    return Answer("no", "no PT_GNU_RELRO")


def check_bind_now(elf: Elf) -> Answer:
    """No function is looked up at its first call, so RELRO covers all of the GOT."""
    flags = elf.dynamic.get(DT_FLAGS, [0])[0] & DF_BIND_NOW or elf.dynamic.get(DT_FLAGS_1, [0])[0] & DF_1_NOW
    if flags or DT_BIND_NOW in elf.dynamic:
        return Answer("yes")
    if not elf.dynamic:
        return Answer("n/a", "nothing is bound at run time")
    if elf.is_static and elf.is_program:
        return Answer("n/a", "relocates itself before it starts")
    return Answer("no", "lazy binding" if DT_PLTRELSZ in elf.dynamic else "not linked with -z now")


def check_stack(elf: Elf) -> Answer:
    """The kernel makes the stack not executable."""
    stacks = elf.of_kind(PT_GNU_STACK)
    if not stacks:
        return Answer("no", "no PT_GNU_STACK: the kernel decides")
    return Answer("no", "executable") if stacks[0].flags & PF_X else Answer("yes")


def check_rwx(elf: Elf) -> Answer:
    """Nothing is writable and executable."""
    bad = [s for s in elf.of_kind(PT_LOAD) if s.flags & PF_X and s.flags & PF_W]
    return Answer("no", ", ".join(f"at {s.address:#x}" for s in bad)) if bad else Answer("yes")


def check_rpath(elf: Elf) -> Answer:
    """Libraries come from where the system has them."""
    paths = [*elf.dynamic_names(DT_RPATH), *elf.dynamic_names(DT_RUNPATH)]
    return Answer("no", ":".join(paths)) if paths else Answer("yes")


def check_textrel(elf: Elf) -> Answer:
    """No code is written to when the program starts."""
    if DT_TEXTREL in elf.dynamic or elf.dynamic.get(DT_FLAGS, [0])[0] & DF_TEXTREL:
        return Answer("no", "text relocations")
    return Answer("yes" if elf.dynamic else "n/a")


def check_canary(elf: Elf) -> Answer:
    """Functions with buffers check their frame before they return."""
    if any(name.startswith("__stack_chk_") for name in elf.symbols):
        return Answer("yes", "__stack_chk_fail")
    if elf.machine == "x86_64" and (count := len(X86_CANARY.findall(elf.code))) > 0:
        return Answer("yes", f"{count} loads of %fs:0x28")
    if elf.is_static and not elf.has_symbol_table:
        return Answer("unknown", "stripped")
    return Answer("no", "no function has one")


def check_fortify(elf: Elf) -> Answer:
    """Calls into libc know the size of their buffers."""
    if elf.libc == "musl":
        return Answer("n/a", "musl has none")
    names = sorted(n for n in elf.symbols if re.fullmatch(r"__\w+_chk", n) and not n.startswith("__stack_chk"))
    if elf.is_static and not elf.has_symbol_table:
        return Answer("unknown", "stripped")
    if elf.is_static:  # libc brings others of its own, but never calls these
        names = [name for name in names if name.endswith("printf_chk")]
    return Answer("yes", f"{len(names)} functions") if names else Answer("no", "none of them")


def check_branch(elf: Elf) -> Answer:
    """Indirect branches land only where the compiler says, return addresses are signed or shadowed."""
    if elf.machine not in PROPERTIES:
        return Answer("n/a", f"{elf.machine} has none")
    _, names, marks = PROPERTIES[elf.machine]
    have = [name for bit, name in names.items() if elf.properties & bit]
    counts = [f"{elf.code.count(mark)} {name}" for name, mark in marks.items()]
    detail = f"property {'+'.join(have) or 'none'}; {', '.join(counts)}"
    if len(have) == len(names):
        return Answer("yes", detail)
    if any(elf.code.count(mark) >= 20 for mark in marks.values()):
        return Answer("unknown", f"{detail}: linked with objects that do not have it")
    return Answer("no", detail)


def check_stripped(elf: Elf) -> Answer:
    """Neither symbols nor debugging information."""
    debug = any(section.name.startswith(".debug_") for section in elf.sections)
    what = [word for word, have in (("symbols", elf.has_symbol_table), ("debugging information", debug)) if have]
    return Answer("no", " and ".join(what)) if what else Answer("yes")


def find_paths(elf: Elf, more: tuple[str, ...] = ()) -> Answer:
    """Nothing names a folder of the machine that built it."""
    patterns = [re.compile(pattern) for pattern in BUILD_PATHS]
    patterns += [re.compile(re.escape(text.encode())) for text in more]
    for pattern in patterns:
        if found := pattern.search(elf.data):
            text = elf.data[found.start() : found.start() + 80].split(b"\0")[0]
            return Answer("no", text.decode("ascii", "replace"))
    return Answer("yes")


CHECKS: dict[str, Callable[[Elf], Answer]] = {
    "pie": check_pie, "relro": check_relro, "bind_now": check_bind_now, "stack": check_stack, "rwx": check_rwx,
    "rpath": check_rpath, "textrel": check_textrel, "canary": check_canary, "fortify": check_fortify,
    "branch": check_branch, "stripped": check_stripped,
}  # fmt: skip


def check(path: Path, more_paths: tuple[str, ...] = ()) -> dict[str, Answer]:
    """All checks of a file, by name. `more_paths`: further texts that it must not contain."""
    elf = Elf(path.read_bytes())
    if elf.kind not in (ET_EXEC, ET_DYN):
        raise ElfError("an object or a core file, not a program or a library")
    return {**{name: function(elf) for name, function in CHECKS.items()}, "paths": find_paths(elf, more_paths)}


def failures(answers: dict[str, Answer], required: tuple[str, ...] = MUST) -> list[str]:
    """The required checks that do not hold, with the reason."""
    return [f"{name}: {answers[name]}" for name in required if answers[name].state == "no"]


def elf_files(root: Path, only: str) -> list[Path]:
    """Programs and libraries below a folder whose path in it matches a pattern; links are not followed."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file() or not fnmatch.fnmatch(str(path.relative_to(root)), only):
            continue
        with path.open("rb") as file:
            head = file.read(18)
        if head[:4] == b"\x7fELF" and len(head) == 18 and head[16] in (ET_EXEC, ET_DYN):
            found.append(path)
    return found


# ---- command line --------------------------------------------------------------------------------------


def words(text: str) -> tuple[str, ...]:
    """Names of checks, with commas between."""
    names = tuple(word for word in text.split(",") if word)
    if unknown := [name for name in names if name not in (*MUST, *MAY)]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not a check; there are {', '.join((*MUST, *MAY))}")
    return names


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--root", type=Path, help="check all programs and libraries below a folder")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="of those, the ones whose path matches")
    parser.add_argument("--require", type=words, default=(), metavar="CHECK,…", help=f"beside {', '.join(MUST)}")
    parser.add_argument("--waive", type=words, default=(), metavar="CHECK,…", help="do not require")
    parser.add_argument("--path", action="append", default=[], metavar="TEXT", help="a text that no file may hold")
    parser.add_argument("--json", action="store_true", help="one object: file -> check -> state, detail")
    given = parser.parse_args(arguments)
    files = [*given.files, *(elf_files(given.root, given.only) if given.root else [])]
    if not files:
        parser.error("no ELF file: name some, or a folder that has some with --root")
    required = tuple(name for name in (*MUST, *given.require) if name not in given.waive)
    table: dict[str, dict[str, Answer]] = {}
    for file in files:
        try:
            table[str(file)] = check(file, tuple(given.path))
        except (ElfError, OSError) as error:
            print(f"elf_check: {file}: {error}", file=sys.stderr)
            return 2
    if given.json:
        shown = {file: {name: vars(answer) for name, answer in row.items()} for file, row in table.items()}
        print(json.dumps(shown, indent=1))
    bad = 0
    for file, row in table.items():
        wrong = failures(row, required)
        bad += bool(wrong)
        if not given.json:
            print(f"{file}: {'FAILED' if wrong else 'ok'}")
            print("\n".join(f"  {'!' if f'{name}: {answer}' in wrong else ' '} {name:9} {answer}"
                            for name, answer in row.items()))  # fmt: skip
    print(f"elf_check: {len(table)} files, {bad} below what is required", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
