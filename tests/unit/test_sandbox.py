# SPDX-License-Identifier: MIT
"""The sandbox: what the generated filters answer, for every number, and what a process behind them can do.

The filters are read back from sandbox_filters.h and interpreted here, as the kernel would, and compared
with the profile, which is evaluated from its JSON by code of its own, and with libseccomp's filters.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import json
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from native_cases import program

REPOSITORY = Path(__file__).resolve().parents[2]
SECCOMP = REPOSITORY / "configs" / "seccomp"
PROFILE: dict[str, Any] = json.loads((SECCOMP / "colibri.json").read_text())
NUMBERS: dict[str, dict[str, int]] = json.loads((SECCOMP / "numbers.json").read_text())
AUDIT = {"aarch64": 0xC00000B7, "arm": 0x40000028, "x86-64": 0xC000003E}
OTHER_ARCHITECTURES = (0, 3, 8, 40, 62, 0x40000003, 0x4000002A, 0x80000015, 0xC00000F3, *AUDIT.values())
PHASES = ("start", "steady")
STEADY_GOAL = 25
ALLOW, REFUSE, ENOSYS = 0x7FFF0000, 0, 0x00050000 | errno.ENOSYS
MASK64 = (1 << 64) - 1
SIGCHLD = 17
# Every number a kernel knows is far below 1,024; then x32, private ones of ARM, and the ends of 32 bits.
ALL_NUMBERS = [
    *range(2048), *range(0x40000000, 0x40000000 + 1024), *range(0xF0000 - 16, 0xF0000 + 64),
    0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF,
]  # fmt: skip
CASES = [(name, phase) for name in AUDIT for phase in PHASES]
REFUSED_EVERYWHERE = {  # numbers by hand, not from the files under test: aarch64, arm, x86-64
    "fork": (None, 2, 57), "vfork": (None, 190, 58), "execve": (221, 11, 59), "execveat": (281, 387, 322),
    "ptrace": (117, 26, 101), "kill": (129, 37, 62), "bpf": (280, 386, 321), "memfd_create": (279, 385, 319),
    "pkey_mprotect": (288, 394, 329), "io_uring_setup": (425, 425, 425), "process_vm_writev": (271, 377, 311),
    "unshare": (97, 337, 272), "mount": (40, 21, 165), "openat2": (437, 437, 437), "socketpair": (199, 288, 53),
}  # fmt: skip
CLONE, SOCKET, MPROTECT, OPENAT = (220, 120, 56), (198, 281, 41), (226, 125, 10), (56, 322, 257)

CODES = {"LOAD": 0x20, "AND": 0x54, "RETURN": 0x06, "EQUAL": 0x15, "SET": 0x45}

Program = list[tuple[int, int, int, int]]


def load_generator() -> Any:
    """configs/seccomp/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("seccomp_generate", SECCOMP / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


generate = load_generator()


def committed_filters() -> dict[tuple[str, str], Program]:
    """The arrays of sandbox_filters.h, by architecture and phase."""
    text = (REPOSITORY / "engine/native/src/sandbox_filters.h").read_text()
    found: dict[tuple[str, str], Program] = {}
    for part in re.split(r"^#(?:el)?if ", text, flags=re.MULTILINE)[1:]:
        name = re.search(r"^/\* ([\w-]+) \*/$", part, re.MULTILINE)
        large = re.search(r"large_operands\[\] = \{(.*?)\};", part)
        assert name is not None
        assert large is not None
        operands = [int(word, 16) for word in large[1].split(", ")]
        for phase, rows in re.findall(r"uint32_t (start|steady)_filter\[\] = \{\n(.*?)\};", part, re.DOTALL):
            assert len(re.findall(r"^    CB_BPF", rows, re.MULTILINE)) == rows.count("\n")
            found[name[1], phase] = [
                (CODES[word], int(true), int(false), operands[int(index)] if index else int(k))
                for word, true, false, k, index in re.findall(
                    r"CB_BPF\((\w+), (\d+), (\d+), (?:(\d+)|CB_BPF_LARGE\((\d+)\))\)", rows
                )
            ]
    return found


FILTERS = committed_filters()


def interpret(code: Program, architecture: int, number: int, arguments: tuple[int, ...] = (0,) * 6) -> int:
    """What the kernel's machine answers for struct seccomp_data."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments)
    accumulator = at = 0
    while True:
        operation, true, false, k = code[at]
        at += 1
        if operation == 0x20:  # load a word
            assert k % 4 == 0
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif operation == 0x54:
            accumulator &= k
        elif operation == 0x15:
            at += true if accumulator == k else false
        elif operation == 0x45:
            at += true if accumulator & k else false
        elif operation == 0x06:
            return k
        else:
            raise AssertionError(f"instruction {operation:#x} is none that the filters use")


def holds(condition: dict[str, Any], arguments: tuple[int, ...]) -> bool:
    """One entry of args, as the OCI runtime specification defines it."""
    argument = arguments[condition["index"]]
    if condition["op"] == "SCMP_CMP_MASKED_EQ":
        return bool(argument & condition["value"] == condition.get("valueTwo", 0))
    assert condition["op"] == "SCMP_CMP_EQ"
    return bool(argument == condition["value"])


def profile_rules(architecture: str, phase: str) -> dict[int, list[dict[str, Any]]]:
    """The groups of the profile that speak of a number."""
    rules: dict[int, list[dict[str, Any]]] = {}
    for group in PROFILE["syscalls"]:
        for name in group["names"] if phase in group["x-phase"] else ():
            if architecture in NUMBERS[name]:
                rules.setdefault(NUMBERS[name][architecture], []).append(group)
    return rules


def wanted(rules: dict[int, list[dict[str, Any]]], number: int, arguments: tuple[int, ...]) -> int:
    """The answer that the profile asks for."""
    for group in rules.get(number, ()):
        if all(holds(condition, arguments) for condition in group.get("args", ())):
            return ALLOW if group["action"] == "SCMP_ACT_ALLOW" else 0x00050000 | int(group["errnoRet"])
    return REFUSE


def argument_sets(groups: list[dict[str, Any]], bits: int) -> Iterator[tuple[int, ...]]:
    """Arguments around every condition: what fits, each bit flipped, all ones, and other arguments filled."""
    values: dict[int, set[int]] = {}
    for group in groups:
        for condition in group.get("args", ()):
            masked = condition["op"] == "SCMP_CMP_MASKED_EQ"
            fits = condition.get("valueTwo", 0) if masked else condition["value"]
            free = ~condition["value"] & MASK64 if masked else 0
            base = {fits, fits | free, 0, MASK64, 1, SIGCHLD}
            values.setdefault(condition["index"], set()).update(
                (value ^ flip) & ((1 << bits) - 1) for value in base for flip in (0, *(1 << bit for bit in range(bits)))
            )
    for index, choices in values.items():
        for value in choices:
            for rest in (0, (1 << bits) - 1):
                arguments = [rest] * 6
                arguments[index] = value
                yield tuple(arguments)


@pytest.mark.parametrize(("architecture", "phase"), CASES)
def test_filter_answers_what_the_profile_says_for_every_number(architecture: str, phase: str) -> None:
    code, rules = FILTERS[architecture, phase], profile_rules(architecture, phase)
    top = 0xFFFFFFFF if architecture == "arm" else MASK64
    assert len(rules) > 15
    for number in ALL_NUMBERS:
        for arguments in ((0,) * 6, (top,) * 6):
            assert interpret(code, AUDIT[architecture], number, arguments) == wanted(rules, number, arguments), number


@pytest.mark.parametrize(("architecture", "phase"), CASES)
def test_filter_looks_at_every_bit_of_the_arguments(architecture: str, phase: str) -> None:
    code, rules = FILTERS[architecture, phase], profile_rules(architecture, phase)
    tried = 0
    for number, groups in rules.items():
        for arguments in argument_sets(groups, 32 if architecture == "arm" else 64):
            answer = interpret(code, AUDIT[architecture], number, arguments)
            assert answer == wanted(rules, number, arguments), (number, [hex(value) for value in arguments])
            tried += 1
    assert tried > 400


@pytest.mark.parametrize(("architecture", "phase"), CASES)
def test_calls_of_another_architecture_are_refused(architecture: str, phase: str) -> None:
    code = FILTERS[architecture, phase]
    for other in OTHER_ARCHITECTURES:
        if other != AUDIT[architecture]:
            assert {interpret(code, other, number) for number in range(1024)} == {REFUSE}, hex(other)


@pytest.mark.parametrize(("architecture", "phase"), CASES)
def test_calls_that_start_or_watch_a_process_are_refused(architecture: str, phase: str) -> None:
    code, place = FILTERS[architecture, phase], list(AUDIT).index(architecture)
    top = 0xFFFFFFFF if architecture == "arm" else MASK64
    fill = [(value,) * 6 for value in (0, 1, top)]
    answers = {
        name: {interpret(code, AUDIT[architecture], number, arguments) for arguments in fill}
        for name, numbers in REFUSED_EVERYWHERE.items()
        if (number := numbers[place]) is not None
    }
    assert {name for name, found in answers.items() if found != {REFUSE}} == set()
    assert len(answers) > 10


@pytest.mark.parametrize("architecture", AUDIT)
def test_start_makes_threads_and_no_processes(architecture: str) -> None:
    number = CLONE[list(AUDIT).index(architecture)]
    thread = 0x3D0F00  # what pthread_create of glibc gives; musl adds CLONE_DETACHED

    def answer(flags: int, phase: str = "start") -> int:
        return interpret(FILTERS[architecture, phase], AUDIT[architecture], number, (flags, 0, 0, 0, 0, 0))

    assert [answer(flags) for flags in (thread, thread | 0x400000)] == [ALLOW, ALLOW]
    assert {answer(flags) for flags in (SIGCHLD, 0, thread | SIGCHLD, thread & ~0x10000, 0x4111)} == {REFUSE}
    for name in range(7, 32):  # every namespace and CLONE_VFORK, CLONE_PTRACE, CLONE_UNTRACED beside a thread
        if not thread >> name & 1 and name != 22:
            assert answer(thread | 1 << name) == REFUSE, name
    assert answer(thread, "steady") == REFUSE
    clone3 = {phase: interpret(FILTERS[architecture, phase], AUDIT[architecture], 435) for phase in PHASES}
    assert clone3 == {"start": ENOSYS, "steady": REFUSE}


@pytest.mark.parametrize("architecture", AUDIT)
def test_sockets_memory_and_files_are_what_the_phase_says(architecture: str) -> None:
    place = list(AUDIT).index(architecture)

    def answer(phase: str, numbers: tuple[int, int, int], *arguments: int) -> int:
        filled = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
        return interpret(FILTERS[architecture, phase], AUDIT[architecture], numbers[place], filled)

    for phase in PHASES:  # every socket is there before the first phase
        assert [answer(phase, SOCKET, family) for family in (1, 2, 10, 16, 17, 40)] == [REFUSE] * 6
    for phase in PHASES:
        assert [answer(phase, MPROTECT, 0, 4096, prot) for prot in range(8)] == [ALLOW] * 4 + [REFUSE] * 4
    assert [answer(phase, OPENAT) for phase in PHASES] == [ALLOW, REFUSE]


@pytest.mark.parametrize("architecture", AUDIT)
def test_what_steady_allows_start_allows_too(architecture: str) -> None:
    rules = profile_rules(architecture, "steady")
    for number, groups in rules.items():
        for arguments in ((0,) * 6, *argument_sets(groups, 32)):
            start, steady = (interpret(FILTERS[architecture, phase], AUDIT[architecture], number, arguments)
                             for phase in PHASES)  # fmt: skip
            assert start == ALLOW or steady == REFUSE, (number, arguments)


@pytest.mark.parametrize("architecture", AUDIT)
def test_few_calls_are_left_in_phase_steady(architecture: str, note: Callable[[str], None]) -> None:
    counts = [len([rule for rule in profile_rules(architecture, phase).values()
                   if any(group["action"] == "SCMP_ACT_ALLOW" for group in rule)]) for phase in PHASES]  # fmt: skip
    note(f"{architecture}: {counts[0]} system calls in phase start, {counts[1]} in steady (goal {STEADY_GOAL})")
    assert counts[1] <= STEADY_GOAL
    text = (REPOSITORY / "engine/native/src/sandbox_filters.h").read_text()
    defined = re.findall(r"#define CB_SANDBOX_(\w+)_CALLS (\d+)u", text)
    place = 2 * list(AUDIT).index(architecture)
    assert defined[place : place + 2] == [("START", str(counts[0])), ("STEADY", str(counts[1]))]


# ---- libseccomp ------------------------------------------------------------------------------------


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp."""

    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


def seccomp_library() -> ctypes.CDLL:
    """libseccomp with its signatures."""
    library = generate.library()
    if library is None:
        pytest.fail("libseccomp.so.2 is missing: apt-get install libseccomp2 (make setup does)", pytrace=False)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_release.restype = None
    library.seccomp_arch_add.argtypes = library.seccomp_arch_remove.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(Comparison),
    ]  # fmt: skip
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return library  # type: ignore[no-any-return]


def libseccomp_filter(architecture: str, phase: str) -> Program:
    """The same profile, compiled by libseccomp."""
    library = seccomp_library()
    context = library.seccomp_init(0x80000000)  # SCMP_ACT_KILL_PROCESS
    native = {"x86_64": "x86-64", "aarch64": "aarch64"}.get(os.uname().machine, "")
    if architecture != native:
        assert library.seccomp_arch_add(context, AUDIT[architecture]) == 0
        assert library.seccomp_arch_remove(context, AUDIT[native]) == 0
    for groups in profile_rules(architecture, phase).values():
        for group in groups:
            names = [name for name in group["names"] if architecture in NUMBERS[name]]
            conditions = [
                Comparison(item["index"], 7 if "MASKED" in item["op"] else 4, item["value"], item.get("valueTwo", 0))
                for item in group.get("args", ())
            ]
            action = ALLOW if group["action"] == "SCMP_ACT_ALLOW" else 0x00050000 | group["errnoRet"]
            for name in names:
                number = library.seccomp_syscall_resolve_name(name.encode())
                array = (Comparison * max(1, len(conditions)))(*conditions)
                code = library.seccomp_rule_add_array(context, action, number, len(conditions), array)
                assert code in (0, -errno.EEXIST), (name, code)
    with tempfile.TemporaryFile() as file:
        assert library.seccomp_export_bpf(context, file.fileno()) == 0
        file.seek(0)
        data = file.read()
    library.seccomp_release(context)
    return list(struct.iter_unpack("<HBBI", data))


def interpret_any(code: Program, architecture: int, number: int, arguments: tuple[int, ...]) -> int:
    """libseccomp's programs have a few more instructions."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *arguments)
    accumulator = at = 0
    while True:
        operation, true, false, k = code[at]
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif operation == 0x54:
            accumulator &= k
        elif operation == 0x05:
            at += k
        elif operation in (0x15, 0x25, 0x35, 0x45):
            more = {0x15: accumulator == k, 0x25: accumulator > k, 0x35: accumulator >= k, 0x45: accumulator & k != 0}
            at += true if more[operation] else false
        elif operation == 0x06:
            return k
        else:
            raise AssertionError(f"instruction {operation:#x} is unknown")


@pytest.mark.parametrize(("architecture", "phase"), CASES)
def test_filter_answers_as_the_one_that_libseccomp_makes(architecture: str, phase: str) -> None:
    ours, theirs = FILTERS[architecture, phase], libseccomp_filter(architecture, phase)
    rules, bits = profile_rules(architecture, phase), 32 if architecture == "arm" else 64
    compared = 0
    for number in ALL_NUMBERS:
        for arguments in ((0,) * 6, ((1 << bits) - 1,) * 6, *argument_sets(rules.get(number, []), bits)):
            other = interpret_any(theirs, AUDIT[architecture], number, arguments)
            other = other if other in (ALLOW, ENOSYS) else REFUSE
            assert interpret(ours, AUDIT[architecture], number, arguments) == other, (number, arguments)
            compared += 1
    assert compared > 2 * len(ALL_NUMBERS)


def test_numbers_are_those_of_libseccomp() -> None:
    seccomp_library()
    assert generate.resolve(sorted(NUMBERS)) == NUMBERS


# ---- the generator ---------------------------------------------------------------------------------


def changed_profile(change: Callable[[list[dict[str, Any]]], object]) -> str:
    """The profile with its groups changed."""
    profile = json.loads(json.dumps(PROFILE))
    change(profile["syscalls"])
    return json.dumps(profile)


def allow(*names: str, phases: tuple[str, ...] = ("start",), **more: Any) -> dict[str, Any]:
    """A group."""
    return {"names": list(names), "action": "SCMP_ACT_ALLOW", "x-phase": list(phases),
            "comment": "a reason that is long enough", **more}  # fmt: skip


@pytest.mark.parametrize(
    ("group", "word"),
    [
        (allow("fork"), "fork"),
        (allow("vfork", args=[{"index": 0, "value": 0, "op": "SCMP_CMP_EQ"}]), "vfork"),
        (allow("execve"), "execve"),
        (allow("ptrace", phases=("start", "steady")), "ptrace"),
        (allow("clone"), "clone"),
        (allow("clone3"), "clone3"),
        (allow("mprotect", phases=("start", "steady")), "mprotect"),
        (allow("openat", phases=("start", "steady")), "openat"),
        (allow("getpid", phases=("steady",)), "without start"),
        (allow("getpid", phases=("later",)), "x-phase"),
        (allow("getpid", comment=""), "comment"),
        (allow("getpid", reason="x"), "comment"),
        (allow("getpid", args=[{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}]), "index"),
        (allow("getpid", args=[{"index": 0, "value": 1 << 64, "op": "SCMP_CMP_EQ"}]), "64 bits"),
        (allow("getpid", args=[{"index": 0, "value": 1, "op": "SCMP_CMP_GT"}]), "SCMP_CMP_EQ"),
        (allow("getpid", args=[{"index": 0, "value": 1, "valueTwo": 2, "op": "SCMP_CMP_MASKED_EQ"}]), "outside"),
        (allow("getpid", errnoRet=1), "errnoRet"),
    ],
)
def test_a_profile_that_opens_the_sandbox_or_is_not_understood_is_refused(group: dict[str, Any], word: str) -> None:
    with pytest.raises(generate.ProfileError, match=word):
        generate.read_rules(changed_profile(lambda groups: groups.append(group)))


def test_a_name_without_a_number_is_refused() -> None:
    rules = generate.read_rules(changed_profile(lambda groups: groups.append(allow("getsid"))))
    with pytest.raises(generate.ProfileError, match="getsid"):
        generate.read_numbers(rules)


def test_every_form_of_the_policy_is_up_to_date() -> None:
    command = [sys.executable, str(SECCOMP / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_services_filter_has_every_name_of_the_profile() -> None:
    text = (REPOSITORY / "engine/units/systemd/colibri-syscalls.conf").read_text()
    names = {name for line in re.findall(r"^SystemCallFilter=(.*)$", text, re.MULTILINE) for name in line.split()}
    assert names == {name for group in PROFILE["syscalls"] for name in group["names"]}
    assert "SystemCallArchitectures=native" in text.splitlines()


# ---- processes -------------------------------------------------------------------------------------


def models() -> Path:
    """Folder of the converted models."""
    folder = Path(os.environ.get("COLIBRI_MODELS", REPOSITORY / "build" / "models"))
    assert (folder / "tiny.colibri").is_file(), f"{folder}: no tiny.colibri; run: make models"
    return folder


def golden_case() -> tuple[str, int, str]:
    """Ids, number of tokens, hash of the logits of a golden case with KV cache f16."""
    cases = json.loads((models() / "tiny.golden.json").read_text())["cases"]
    case = next(case for case in cases if case["kv"] == "f16")
    return ",".join(map(str, case["prompt_ids"])), case["n"], case["logits_sha256"]


def clean(**variables: str) -> dict[str, str]:
    """The environment without COLIBRI_ variables, and these."""
    return {**{key: value for key, value in os.environ.items() if not key.startswith("COLIBRI_")}, **variables}


def colibrictl(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run([program("colibrictl"), *arguments], capture_output=True, text=True, check=False,
                          errors="replace", env=clean(**variables), timeout=120)  # fmt: skip


def run_golden(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`colibrictl run` of the golden case."""
    ids, count, _ = golden_case()
    return colibrictl("run", models() / "tiny.colibri", "--ids", ids, "-n", str(count), "--logits-sha256",
                      "--print-ids", *arguments, **variables)  # fmt: skip


def test_probe_is_refused_everything_and_still_computes(note: Callable[[str], None]) -> None:
    ids, count, sha256 = golden_case()
    done = subprocess.run([program("sandbox_probe"), models() / "tiny.colibri", ids, str(count), sha256],
                          capture_output=True, text=True, check=False, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("numbers ")]
    assert len(rows) == 2
    for row in rows:
        note(row)
    assert done.stdout.count(sha256) == 4
    assert re.search(r"^sandbox_probe: ok checks=\d+$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("residency", ["resident", "stream", "mapped", "mapped-guarded"])
@pytest.mark.parametrize("action", ["kill", "errno", "log"])
def test_run_gives_the_golden_bits_in_the_sandbox(action: str, residency: str) -> None:
    done = run_golden("--sandbox", action, "--residency", residency, "--threads", "2")
    assert done.returncode == 0, done.stderr
    assert f"logits-sha256: {golden_case()[2]}" in done.stderr.splitlines()
    line = next(line for line in done.stderr.splitlines() if "sandbox: " in line)
    assert f"phase=steady action={action} allowed_calls=" in line
    assert re.search(r"vmhwm_bytes=\d+", done.stderr)


def test_selftest_runs_in_the_sandbox_and_closes_it_at_the_end() -> None:
    done = colibrictl("selftest", models() / "tiny.colibri", "-n", "2", "--sandbox", "kill")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^selftest: \w+ ok$", done.stdout, re.MULTILINE)
    assert "sandbox: phase=steady action=kill" in done.stderr


def test_run_is_outside_of_the_sandbox_unless_asked() -> None:
    done = run_golden()
    assert done.returncode == 0, done.stderr
    assert "sandbox" not in done.stderr


@pytest.mark.parametrize(
    ("option", "variables", "action"),
    [
        ("off", {"COLIBRI_SANDBOX": "errno"}, "errno"),
        ("errno", {"COLIBRI_SANDBOX": "off"}, "errno"),
        ("errno", {"COLIBRI_SANDBOX": "kill"}, "kill"),
        ("kill", {"COLIBRI_SANDBOX": "log"}, "kill"),
        ("auto", {"COLIBRI_SANDBOX": "log"}, "log"),
        ("auto", {"COLIBRI_SANDBOX": ""}, None),
        ("off", {"COLIBRI_RESTRICTED_SYSCALLS": "1"}, "kill"),
        ("log", {"COLIBRI_RESTRICTED_SYSCALLS": "1", "COLIBRI_SANDBOX": "off"}, "kill"),
        ("off", {"COLIBRI_RESTRICTED_SYSCALLS": "0"}, None),
    ],
)
def test_the_environment_only_tightens(option: str, variables: dict[str, str], action: str | None) -> None:
    done = run_golden("--sandbox", option, **variables)
    assert done.returncode == 0, done.stderr
    found = re.search(r"sandbox: phase=steady action=(\w+)", done.stderr)
    assert (found[1] if found else None) == action


@pytest.mark.parametrize(("name", "value"), [("COLIBRI_SANDBOX", "strict"), ("COLIBRI_RESTRICTED_SYSCALLS", "yes")])
def test_a_misspelt_word_in_the_environment_is_refused(name: str, value: str) -> None:
    done = run_golden(**{name: value})
    assert done.returncode == 2
    assert f"environment variable {name} is '{value}'" in done.stderr


def test_telemetry_into_a_file_is_refused_before_the_model_is_opened(tmp_path: Path) -> None:
    done = run_golden("--sandbox", "kill", "--telemetry", str(tmp_path / "t.json"))
    assert done.returncode == 2
    assert "--telemetry" in done.stderr
    assert not (tmp_path / "t.json").exists()


def test_results_beside_the_text_are_written_without_another_call() -> None:
    done = run_golden("--sandbox", "kill", "--log", "syslog") if "--log" in colibrictl("run", "--help").stdout else None
    done = done or run_golden("--sandbox", "kill", COLIBRI_NO_LOGGING="1")
    assert done.returncode == 0, (done.returncode, done.stderr)
    assert golden_case()[2] in done.stdout + done.stderr


def test_the_kernel_says_that_the_process_is_closed() -> None:
    ids, _, _ = golden_case()
    command = [str(program("colibrictl")), "run", str(models() / "tiny.colibri"), "--ids", ids, "-n", "1900",
               "--ignore-end", "--sandbox", "kill", "--threads", "3"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean()) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        tasks = [path / "status" for path in Path(f"/proc/{process.pid}/task").iterdir()]
        status = [dict(re.findall(r"^(\w+):\s*(.*)$", path.read_text(), re.MULTILINE)) for path in tasks]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert len(status) == 3
    assert {(one["Seccomp"], one["NoNewPrivs"]) for one in status} == {("2", "1")}
    assert process.returncode == 1  # stopped by a signal, not by the kernel: the handler and the way out are allowed


SERVICE = """
import ctypes, os, re, sys
text = open(sys.argv[1]).read()
library = ctypes.CDLL("libseccomp.so.2")
library.seccomp_init.restype = ctypes.c_void_p
context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(0x80000000)))
for line in re.findall("^SystemCallFilter=(.*)$", text, re.M):
    for name in line.split():
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0 and library.seccomp_rule_add(context, ctypes.c_uint32(0x7fff0000), number, 0):
            sys.exit(f"cannot add {name}")
arguments = sys.argv[2:]
if library.seccomp_load(context):
    sys.exit("cannot load")
os.execv(arguments[0], arguments)
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("run", ["--ids", "1,2,3", "-n", "4", "--sandbox", "kill", "--threads", "3"]),
        ("run", ["-p", "the cat", "-n", "4", "--sandbox", "kill", "--residency", "stream"]),
        ("serve", ["--sandbox", "kill"]),
        ("health", ["--output", "@/health.json", "--lock", "try"]),
        ("doctor", []),
    ],
)
def test_the_services_filter_lets_commands_do_their_work(command: str, words: list[str], tmp_path: Path) -> None:
    """What a service manager does: the filter of the drop-in, without arguments, then exec."""
    seccomp_library()
    filled = [word.replace("@", str(tmp_path)) for word in words]
    drop_in = REPOSITORY / "engine/units/systemd/colibri-syscalls.conf"
    arguments = [command, str(models() / "tiny.colibri"), *filled]
    done = subprocess.run([sys.executable, "-c", SERVICE, str(drop_in), str(program("colibrictl")), *arguments],
                          input="", capture_output=True, text=True, errors="replace", check=False, env=clean(),
                          timeout=120)  # fmt: skip
    assert done.returncode >= 0, f"ended by signal {-done.returncode}: {done.stderr}"
    assert done.returncode == 0 or command in ("health", "doctor"), done.stderr
    assert "Operation not permitted" not in done.stderr


ENTER = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
class Options(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("phase", ctypes.c_uint32), ("action", ctypes.c_uint32),
                ("read_paths", ctypes.c_void_p), ("read_path_count", ctypes.c_size_t),
                ("write_paths", ctypes.c_void_p), ("write_path_count", ctypes.c_size_t)]
class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("reserved", ctypes.c_int32), ("offset", ctypes.c_int64),
                ("message", ctypes.c_char * 256)]
size, phase, action, count, report_size = map(int, sys.argv[2:7])
options = Options(size or ctypes.sizeof(Options), phase, action, None, count, None, 0)
report = (ctypes.c_uint64 * 4)(report_size)
error = Error()
code = library.colibri_sandbox_enter(ctypes.byref(options), report, ctypes.byref(error))
print(code, error.message.decode())
"""


@pytest.mark.parametrize(
    ("values", "code", "word"),
    [
        ((8, 2, 0, 0, 32), -41, "colibri_sandbox.struct_size is 8"),
        ((0, 0, 0, 0, 32), -40, "phase 0"),
        ((0, 3, 0, 0, 32), -40, "phase 3"),
        ((0, 2, 3, 0, 32), -40, "action 3"),
        ((0, 2, 0, 1, 32), -40, "1 paths"),
        ((0, 2, 0, 0, 12), -41, "colibri_sandbox_report.struct_size is 12"),
    ],
)
def test_wrong_options_change_nothing(native_library: Path, values: tuple[int, ...], code: int, word: str) -> None:
    done = subprocess.run([sys.executable, "-c", ENTER, str(native_library), *map(str, values)],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    found, message = done.stdout.split(" ", 1)
    assert (int(found), word in message) == (code, True), done.stdout


def test_where_there_is_no_filter_the_command_says_so(aarch64_colibrictl: Path) -> None:
    command = ["qemu-aarch64", str(aarch64_colibrictl), "run", str(models() / "tiny.colibri"), "--ids", "1,2",
               "--sandbox", "kill"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean(), timeout=120)
    assert done.returncode == 5, done.stderr
    assert "(error -55 sandbox)" in done.stderr
    assert "CONFIG_SECCOMP_FILTER" in done.stderr
    assert done.stdout == ""
