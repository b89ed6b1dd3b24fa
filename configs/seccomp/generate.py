# SPDX-License-Identifier: MIT
"""Generate every form of the system-call policy from configs/seccomp/colibri.json.

    python3 configs/seccomp/generate.py             # write the files
    python3 configs/seccomp/generate.py --check     # exit 1 when a committed file differs
    python3 configs/seccomp/generate.py --numbers   # numbers.json anew, from libseccomp

Written: engine/native/src/sandbox_filters.h (BPF for each architecture and phase),
engine/units/systemd/colibri-syscalls.conf (SystemCallFilter of the service), the table in
docs/sandbox.md. The compiler is here, so that the bytes do not depend on the version of a library;
tests/unit/test_sandbox.py evaluates its output for every number and compares it with libseccomp's.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
SOURCE = HERE / "colibri.json"
NUMBERS = HERE / "numbers.json"
HEADER = REPOSITORY / "engine" / "native" / "src" / "sandbox_filters.h"
UNIT = REPOSITORY / "engine" / "units" / "systemd" / "colibri-syscalls.conf"
DOCUMENT = REPOSITORY / "docs" / "sandbox.md"
BEGIN, END = "<!-- begin generated: system calls -->", "<!-- end generated -->"

PHASES = ("start", "steady")  # of the library; "load" is what comes before, under somebody else's filter
KEYS = {"names", "action", "errnoRet", "args", "x-phase", "comment"}
EQUAL, MASKED = "SCMP_CMP_EQ", "SCMP_CMP_MASKED_EQ"
ALLOW, ERRNO = "SCMP_ACT_ALLOW", "SCMP_ACT_ERRNO"
WORD = 0xFFFFFFFF
STEADY_GOAL = 25  # system calls; more are refused here
# Never allowed behind colibri_sandbox_enter, whatever the arguments; and never without a condition on them.
NEVER = frozenset((
    "fork", "vfork", "execve", "execveat", "ptrace", "process_vm_readv", "process_vm_writev", "pkey_mprotect",
    "memfd_create", "uselib", "personality", "modify_ldt", "bpf", "userfaultfd", "io_uring_setup",
    "perf_event_open", "keyctl", "mount", "unshare", "setns", "kill", "tkill", "tgkill", "socketcall",
    "socketpair", "sendmsg", "remap_file_pages", "shmat", "chmod", "fchmod", "fchmodat", "chown", "fchown", "fchownat",
    "bind", "listen", "connect",
))  # fmt: skip
CONDITIONAL = frozenset(("clone", "mmap", "mmap2", "mprotect", "socket", "prctl", "prlimit64", "ioctl", "sendto"))
NOT_STEADY = frozenset(
    ("clone", "clone3", "socket", "open", "openat", "openat2", "prctl", "ioctl", "seccomp", "connect")
)

# What the kernel calls the classes, returns and offsets (linux/filter.h, linux/seccomp.h).
LOAD, AND, RETURN, JUMP_EQUAL, JUMP_SET = 0x20, 0x54, 0x06, 0x15, 0x45
WORDS = {LOAD: "LOAD", AND: "AND", RETURN: "RETURN", JUMP_EQUAL: "EQUAL", JUMP_SET: "SET"}  # of the C header
SMALL_OPERANDS = 4096  # the header packs an instruction into 32 bits; larger operands are in a table
AT_NUMBER, AT_ARCHITECTURE, AT_ARGUMENTS = 0, 4, 16
RETURN_ALLOW, RETURN_ERRNO = 0x7FFF0000, 0x00050000
RETURN_REFUSE = 0  # replaced by the action when the filter is installed; no other return is 0


@dataclass(frozen=True)
class Architecture:
    """One target: its names here, in OCI and in C, and AUDIT_ARCH_*."""

    name: str
    oci: str
    audit: int
    words: int  # 32-bit words of an argument that the kernel can fill
    condition: str


ARCHITECTURES = (
    Architecture("aarch64", "SCMP_ARCH_AARCH64", 0xC00000B7, 2, "defined(__aarch64__) && defined(__LP64__)"),
    Architecture("arm", "SCMP_ARCH_ARM", 0x40000028, 1, "defined(__arm__) && defined(__ARM_EABI__)"),
    Architecture("x86-64", "SCMP_ARCH_X86_64", 0xC000003E, 2, "defined(__x86_64__) && defined(__LP64__)"),
)


@dataclass(frozen=True)
class Condition:
    """(argument & mask) == value, all of its 64 bits."""

    index: int
    mask: int
    value: int


@dataclass(frozen=True)
class Rule:
    """One group of the profile."""

    names: tuple[str, ...]
    error: int  # 0: allowed, else the errno it gives
    conditions: tuple[Condition, ...]  # all must hold
    phases: tuple[str, ...]
    comment: str


class ProfileError(Exception):
    """The profile says something that this generator does not understand."""


def read_condition(data: dict[str, Any], where: str) -> Condition:
    """One entry of `args`."""
    operation, value, second = data.get("op"), data.get("value"), data.get("valueTwo", 0)
    if set(data) - {"index", "value", "valueTwo", "op"} or operation not in (EQUAL, MASKED):
        raise ProfileError(f"{where}: argument {data}: use {EQUAL} or {MASKED} with index, value, valueTwo")
    for number in (value, second):
        if not isinstance(number, int) or not 0 <= number < 1 << 64:
            raise ProfileError(f"{where}: argument value {number!r} is no number of 64 bits")
    if data.get("index") not in range(6):
        raise ProfileError(f"{where}: argument index {data.get('index')!r} is outside 0..5")
    if operation == EQUAL:
        return Condition(data["index"], (1 << 64) - 1, int(value or 0))
    if int(second) & ~int(value or 0):
        raise ProfileError(f"{where}: valueTwo {second} has bits outside of the mask {value}: never equal")
    return Condition(data["index"], int(value or 0), int(second))


def check_names(group: dict[str, Any], error: int, phases: tuple[str, ...], conditions: tuple[Condition, ...],
                where: str) -> None:  # fmt: skip
    """What the sandbox is for: these calls stay refused, whoever edits the profile."""
    names = set(group["names"])
    if error or phases == ("load",):
        return
    wrong = names & (NEVER | {"clone3"})
    wrong |= set() if conditions else names & CONDITIONAL
    wrong |= names & NOT_STEADY if "steady" in phases else set()
    if wrong:
        raise ProfileError(f"{where}: {sorted(wrong)} may not be allowed like this in x-phase {phases}")


def read_rules(text: str) -> list[Rule]:
    """The groups of a profile, in their order; everything unknown is refused."""
    data = json.loads(text)
    if set(data) != {"defaultAction", "architectures", "syscalls"}:
        raise ProfileError(f"keys {sorted(data)}: need defaultAction, architectures, syscalls")
    if data["defaultAction"] != "SCMP_ACT_KILL_PROCESS":
        raise ProfileError("defaultAction must be SCMP_ACT_KILL_PROCESS: this is a list of what is allowed")
    if data["architectures"] != [architecture.oci for architecture in ARCHITECTURES]:
        raise ProfileError(f"architectures must be {[architecture.oci for architecture in ARCHITECTURES]}")
    rules = []
    for group in data["syscalls"]:
        where = f"group {group.get('names')}"
        if set(group) - KEYS or not group.get("names") or len(group.get("comment", "")) < 10:
            raise ProfileError(f"{where}: needs names, action, x-phase and a comment with the reason; knows {KEYS}")
        phases = tuple(group.get("x-phase", ()))
        if not phases or set(phases) - {"load", *PHASES}:
            raise ProfileError(f"{where}: x-phase {phases} must name load, start or steady")
        if "steady" in phases and "start" not in phases:
            raise ProfileError(f"{where}: steady without start: filters stack, so it would never be allowed")
        error = group.get("errnoRet", 0)
        if (group["action"], error > 0) not in ((ALLOW, False), (ERRNO, True)) or not 0 <= error < 4096:
            raise ProfileError(f"{where}: action must be {ALLOW}, or {ERRNO} with errnoRet 1..4095")
        conditions = tuple(read_condition(item, where) for item in group.get("args", []))
        check_names(group, error, phases, conditions, where)
        rules.append(Rule(tuple(group["names"]), error, conditions, phases, group["comment"]))
    return rules


# ---- numbers ---------------------------------------------------------------------------------------


def library() -> ctypes.CDLL | None:
    """libseccomp, when this machine has it."""
    try:
        return ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None


def resolve(names: list[str]) -> dict[str, dict[str, int]]:
    """Numbers of names for each architecture that has them, from libseccomp's tables."""
    seccomp = library()
    if seccomp is None:
        raise ProfileError("libseccomp.so.2 is not installed: apt-get install libseccomp2")
    call = seccomp.seccomp_syscall_resolve_name_arch
    call.argtypes, call.restype = [ctypes.c_uint32, ctypes.c_char_p], ctypes.c_int
    out: dict[str, dict[str, int]] = {}
    for name in names:
        found = {one.name: call(one.audit, name.encode()) for one in ARCHITECTURES}
        out[name] = {key: number for key, number in found.items() if number >= 0}
        if not out[name]:
            raise ProfileError(f"system call {name!r} is unknown on every architecture: a wrong name?")
    return out


def all_names(rules: list[Rule]) -> list[str]:
    """Every name of the profile, sorted."""
    return sorted({name for rule in rules for name in rule.names})


def read_numbers(rules: list[Rule]) -> dict[str, dict[str, int]]:
    """numbers.json; it must have exactly the names of the profile."""
    numbers: dict[str, dict[str, int]] = json.loads(NUMBERS.read_text(encoding="utf-8"))
    if sorted(numbers) != all_names(rules):
        odd = set(numbers) ^ set(all_names(rules))
        raise ProfileError(f"{NUMBERS.name} and {SOURCE.name} differ in {sorted(odd)}: run generate.py --numbers")
    return numbers


# ---- the compiler ----------------------------------------------------------------------------------


@dataclass
class Instruction:
    """One of a classic BPF program; jumps by label until they are placed."""

    code: int
    k: int
    true: str = ""
    false: str = ""
    label: str = ""
    note: str = ""


def alternatives(rules: list[Rule], phase: str, architecture: Architecture,
                 numbers: dict[str, dict[str, int]]) -> dict[int, tuple[str, list[Rule]]]:  # fmt: skip
    """Number -> name and the rules that allow it in a phase, in the order of the profile."""
    table: dict[int, tuple[str, list[Rule]]] = {}
    for rule in rules:
        for name in rule.names if phase in rule.phases else ():
            number = numbers[name].get(architecture.name)
            if number is not None:
                table.setdefault(number, (name, []))[1].append(rule)
    return table


def check(condition: Condition, words: int, failed: str, passed: str) -> list[Instruction]:
    """Compare one argument; the upper half too where there is one."""
    out = []
    for half in reversed(range(words)):
        mask, value = condition.mask >> 32 * half & WORD, condition.value >> 32 * half & WORD
        if mask == 0:
            continue
        out.append(Instruction(LOAD, 0, note=f"argument {condition.index}" + (", upper half" if half else "")))
        out[-1].k = AT_ARGUMENTS + 8 * condition.index + 4 * half
        if value == 0 and mask != WORD:
            out.append(Instruction(JUMP_SET, mask, true=failed))
            continue
        if mask != WORD:
            out.append(Instruction(AND, mask))
        out.append(Instruction(JUMP_EQUAL, value, false=failed))
    if out[-1].code == JUMP_SET:
        out[-1].false = passed
    else:
        out[-1].true = passed
    return out


def compile_filter(rules: list[Rule], phase: str, architecture: Architecture,
                   numbers: dict[str, dict[str, int]]) -> list[Instruction]:  # fmt: skip
    """A filter: architecture, number, arguments; what is not listed is refused.

    The order of the list is that of the profile: the calls of every token come first.
    """
    table = alternatives(rules, phase, architecture, numbers)
    program = [
        Instruction(LOAD, AT_ARCHITECTURE, note="architecture"),
        Instruction(JUMP_EQUAL, architecture.audit, false="refuse"),
        Instruction(LOAD, AT_NUMBER, note="number"),
    ]
    blocks: list[Instruction] = []
    targets: set[str] = {"refuse"}
    for number, (name, choices) in table.items():
        if any(rule.error == 0 and not rule.conditions for rule in choices):
            target = "allow"
        elif len(choices) == 1 and not choices[0].conditions:
            target = f"error {choices[0].error}"
        else:
            target = f"{name} 0"
            for index, rule in enumerate(choices):
                passed = "allow" if rule.error == 0 else f"error {rule.error}"
                failed = f"{name} {index + 1}" if index + 1 < len(choices) else "refuse"
                first = len(blocks)
                for place, condition in enumerate(rule.conditions):
                    last = place + 1 == len(rule.conditions)
                    blocks += check(condition, architecture.words, failed, passed if last else "")
                blocks[first].label = f"{name} {index}"
                targets.add(passed)
        targets.add(target)
        program.append(Instruction(JUMP_EQUAL, number, true=target, note=name))
    program[-1].false = "refuse"
    program += blocks
    program.append(Instruction(RETURN, RETURN_REFUSE, label="refuse", note="refuse"))
    program.append(Instruction(RETURN, RETURN_ALLOW, label="allow", note="allow"))
    errors = sorted(int(target.split()[1]) for target in targets if target.startswith("error "))
    program += [Instruction(RETURN, RETURN_ERRNO | error, label=f"error {error}", note=f"errno {error}")
                for error in errors]  # fmt: skip
    return program


def encode(program: list[Instruction]) -> list[tuple[int, int, int, int]]:
    """(code, jt, jf, k) of each instruction. Jumps go forward, at most 255."""
    places = {one.label: at for at, one in enumerate(program) if one.label}
    out = []
    for at, one in enumerate(program):
        jumps = [places[label] - at - 1 if label else 0 for label in (one.true, one.false)]
        if not all(0 <= jump <= 255 for jump in jumps):
            raise ProfileError(f"a jump of {max(jumps)} instructions: BPF has 8 bits for it; shorten the list")
        out.append((one.code, jumps[0], jumps[1], one.k))
    return out


def call_count(rules: list[Rule], phase: str, architecture: Architecture, numbers: dict[str, dict[str, int]]) -> int:
    """System calls that are ever executed in a phase."""
    table = alternatives(rules, phase, architecture, numbers)
    return sum(any(rule.error == 0 for rule in choices) for _, choices in table.values())


# ---- outputs ---------------------------------------------------------------------------------------


def c_program(program: list[Instruction], phase: str, large: list[int]) -> str:
    """One array of C; `large` collects the operands that do not fit."""
    lines = []
    for one, (code, true, false, k) in zip(program, encode(program), strict=True):
        note = f" /* {one.note} */" if one.note else ""
        operand = str(k)
        if k >= SMALL_OPERANDS:
            if k not in large:
                large.append(k)
            operand = f"CB_BPF_LARGE({large.index(k)})"
        lines.append(f"    CB_BPF({WORDS[code]}, {true}, {false}, {operand}),{note}\n")
    return f"static const uint32_t {phase}_filter[] = {{\n{''.join(lines)}}};\n"


C_HEAD = f"""/* SPDX-License-Identifier: MIT */
/* Generated from configs/seccomp/colibri.json by configs/seccomp/generate.py; do not edit. */
#ifndef CB_SANDBOX_FILTERS_H
#define CB_SANDBOX_FILTERS_H

#include <stdint.h>

/*
 * Instructions of classic BPF, packed: which, jump if true, if false, operand. RETURN of 0 stands for the
 * action. Filters are linear: architecture, number, then arguments, then the returns.
 */
#define CB_BPF(word, jt, jf, k) (CB_BPF_##word << 29 | (uint32_t)(jt) << 21 | (uint32_t)(jf) << 13 | (uint32_t)(k))
#define CB_BPF_LARGE(index) (CB_BPF_SMALL + (index))
#define CB_BPF_SMALL {SMALL_OPERANDS}u
#define CB_BPF_WORD(packed) ((packed) >> 29)
#define CB_BPF_JT(packed) ((uint8_t)((packed) >> 21))
#define CB_BPF_JF(packed) ((uint8_t)((packed) >> 13))
#define CB_BPF_OPERAND(packed) ((packed) & 0x1fffu)

"""


def c_header(rules: list[Rule], numbers: dict[str, dict[str, int]]) -> str:
    """sandbox_filters.h."""
    out = [C_HEAD]
    out += [f"#define CB_BPF_{word} {index}u\n" for index, word in enumerate(WORDS.values())]
    codes = ", ".join(f"0x{code:02x}" for code in WORDS)
    out.append(f"#define CB_BPF_CODES {{{codes}}} /* as the kernel has them */\n\n")
    for index, one in enumerate(ARCHITECTURES):
        out.append(f"#{'el' if index else ''}if {one.condition}\n\n/* {one.name} */\n#define CB_SANDBOX_FILTERS 1\n")
        for phase in PHASES:
            out.append(f"#define CB_SANDBOX_{phase.upper()}_CALLS {call_count(rules, phase, one, numbers)}u\n")
        large: list[int] = []
        out += ["\n" + c_program(compile_filter(rules, phase, one, numbers), phase, large) for phase in PHASES]
        values = ", ".join(f"0x{value:08x}" for value in large)
        out.append(f"\nstatic const uint32_t large_operands[] = {{{values}}};\n\n")
    return "".join(out) + "#endif\n\n#endif\n"


def unit(rules: list[Rule]) -> str:
    """The drop-in for the service: no arguments, from before execve to the end of the process."""
    names = sorted({name for rule in rules for name in rule.names})
    lines, line = [], "SystemCallFilter="
    for name in names:
        if len(line) + len(name) > 110:
            lines.append(line.rstrip())
            line = "SystemCallFilter="
        line += f"{name} "
    lines.append(line.rstrip())
    return (
        "# SPDX-License-Identifier: MIT\n"
        "# Generated from configs/seccomp/colibri.json by configs/seccomp/generate.py; do not edit.\n"
        "# All phases together, without conditions on arguments: the program narrows it down itself.\n"
        "[Service]\nSystemCallArchitectures=native\n" + "\n".join(lines) + "\n"
    )


def describe(rule: Rule) -> str:
    """A rule's condition in words of the table."""
    words = []
    for one in rule.conditions:
        if one.mask == (1 << 64) - 1:
            words.append(f"argument {one.index} = {one.value}")
        else:
            left = f"~0x{~one.mask & (1 << 64) - 1:x}" if one.mask >> 63 else f"0x{one.mask:x}"
            words.append(f"(argument {one.index} & {left}) = 0x{one.value:x}")
    if rule.error:
        words.append(f"gives errno {rule.error}")
    return "; ".join(words)


def table(rules: list[Rule], numbers: dict[str, dict[str, int]]) -> str:
    """The part of docs/sandbox.md."""
    rows = ["| system calls | load | start | steady | only if | why |", "|---|---|---|---|---|---|"]
    for rule in rules:
        marks = ["yes", *("yes" if phase in rule.phases else "" for phase in PHASES)]
        names = " ".join(f"`{name}`" for name in rule.names)
        rows.append(f"| {names} | {' | '.join(marks)} | {describe(rule)} | {rule.comment} |")
    rows += [
        "",
        "| architecture | allowed in start | allowed in steady | instructions of the filters |",
        "|---|---|---|---|",
    ]
    for one in ARCHITECTURES:
        counts = [call_count(rules, phase, one, numbers) for phase in PHASES]
        sizes = [len(compile_filter(rules, phase, one, numbers)) for phase in PHASES]
        rows.append(f"| {one.name} | {counts[0]} | {counts[1]} | {sizes[0]}, {sizes[1]} |")
    return f"{BEGIN}\n" + "\n".join(rows) + f"\n{END}"


def document(text: str, part: str) -> str:
    """docs/sandbox.md with its table replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ProfileError(f"{DOCUMENT}: needs the lines {BEGIN} and {END} once each")
    return text[: text.index(BEGIN)] + part + text[text.index(END) + len(END) :]


def generate() -> dict[Path, str]:
    """Every generated file."""
    rules = read_rules(SOURCE.read_text(encoding="utf-8"))
    numbers = read_numbers(rules)
    for one in ARCHITECTURES:
        count = call_count(rules, "steady", one, numbers)
        if count > STEADY_GOAL:
            raise ProfileError(f"{one.name}: {count} system calls in phase steady, at most {STEADY_GOAL} are wanted")
    return {
        HEADER: c_header(rules, numbers),
        UNIT: unit(rules),
        DOCUMENT: document(DOCUMENT.read_text(encoding="utf-8"), table(rules, numbers)),
    }


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a committed file differs")
    parser.add_argument("--numbers", action="store_true", help="write numbers.json anew, from libseccomp")
    arguments = parser.parse_args()
    try:
        if arguments.numbers:
            numbers = resolve(all_names(read_rules(SOURCE.read_text(encoding="utf-8"))))
            rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in numbers.items())
            NUMBERS.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")
        files = generate()
    except ProfileError as error:
        print(f"generate.py: {error}", file=sys.stderr)
        return 1
    wrong = [path for path, text in files.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    for path in wrong:
        if arguments.check:
            print(f"{path} differs from {SOURCE.name}; run configs/seccomp/generate.py", file=sys.stderr)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path], encoding="utf-8")
    return 1 if wrong and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
