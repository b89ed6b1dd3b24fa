# SPDX-License-Identifier: MIT
"""The command of the device: bad input of every kind, streams, signals, exit codes, one bit pattern.

Needs the native build ($COLIBRI_NATIVE_BUILD, default build/host) and the converter: the model is
configs/models/tiny.toml. Files are mutated here with struct and hashlib alone, so neither reader
helps to make the files that it is tested with.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from colibri._spec import ERROR_EXIT, ERROR_TEXT, Code, Family, Section

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COLIBRI_NATIVE_BUILD", REPOSITORY / "build" / "host")).resolve()
TIMEOUT_SECONDS = 120
HEADER_BYTES = 4096
CHUNK_BYTES = 65536
COMMANDS = ("run", "info", "verify", "selftest", "bench", "test")
PIPE_BYTES = 4096
MAX_TEXT_BYTES = 262144  # of --max-text
CONTROL_SEEDS = ("0", "34")  # texts of tiny.toml with ESC, BEL and a C1 character
IDS = "1,2,3,4,5,6,7,8,9"
END_ID = "318"  # <|end|> of tiny.toml: behind 256 bytes and 62 merges


@dataclass(frozen=True)
class Outcome:
    """What a command left behind."""

    exit_code: int
    out: bytes
    err: str

    def line(self, label: str) -> str:
        """The rest of the line of stderr that starts with this label."""
        found = [row for row in self.err.splitlines() if row.startswith(label + ":")]
        assert len(found) == 1, f"{label!r} must stand once in: {self.err}"
        return found[0].removeprefix(label + ":").strip()

    def numbers(self, label: str) -> dict[str, float]:
        """The name=number pairs of such a line."""
        return {name: float(value) for name, value in (pair.split("=") for pair in self.line(label).split())}


def program() -> Path:
    """Path of the command under test."""
    found = [path for path in (BUILD / "colibrictl", *sorted(BUILD.rglob("colibrictl"))) if path.is_file()]
    assert found, f"{BUILD}: no colibrictl; run: make engine"
    return found[0]


def environment(variables: dict[str, str] | None = None) -> dict[str, str]:
    """The caller's environment without its COLIBRI_ variables, and these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLIBRI_")}
    return {**kept, **(variables or {})}


def run(*arguments: str | bytes | Path, stdin: bytes = b"", variables: dict[str, str] | None = None) -> Outcome:
    """Run colibrictl to its end."""
    done = subprocess.run(
        [program(), *arguments], input=stdin, capture_output=True, timeout=TIMEOUT_SECONDS, check=False,
        env=environment(variables),
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr.decode())


def assert_fails(outcome: Outcome, code: Code, *fragments: str) -> None:
    """The pinned code, its exit code, and a message with these parts."""
    name = code.name.lower()
    assert f"(error {int(code)} {name}" in outcome.err, outcome.err
    assert outcome.exit_code == ERROR_EXIT[int(code)]
    assert re.search(r"^colibrictl: ", outcome.err, re.MULTILINE)
    for fragment in fragments:
        assert fragment in outcome.err


def colibri(*arguments: str | Path) -> str:
    """Run the host command; its standard output."""
    done = subprocess.run(
        [sys.executable, "-m", "colibri", *arguments],
        capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
        env=environment({"PYTHONPATH": str(REPOSITORY / "engine")}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model, converted from its recipe."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.colibri"
    colibri("convert", "--recipe", REPOSITORY / "configs" / "models" / "tiny.toml", "-o", path)
    return path


# ---- files that must be refused --------------------------------------------------------------------


def sections(data: bytes | bytearray) -> dict[int, tuple[int, int]]:
    """kind -> (offset, bytes) of the section table."""
    (count,) = struct.unpack_from("<I", data, 40)
    table = [struct.unpack_from("<IIQQ", data, 128 + 64 * i) for i in range(count)]
    return {kind: (offset, size) for kind, _, offset, size in table}


def with_root(data: bytearray) -> bytes:
    """The file with the root hash that its header, records and directory ask for."""
    data[48:80] = bytes(32)
    covered = bytes(data[:HEADER_BYTES])
    for kind in (Section.RECORDS, Section.DIRECTORY):
        offset, size = sections(data)[int(kind)]
        covered += data[offset : offset + size]
    data[48:80] = hashlib.sha256(covered).digest()
    return bytes(data)


def patched(layout: str, offset: int, value: int, *, reroot: bool) -> Callable[[bytes], bytes]:
    """A mutation: one header field has another value."""

    def mutate(original: bytes) -> bytes:
        data = bytearray(original)
        struct.pack_into(layout, data, offset, value)
        return with_root(data) if reroot else bytes(data)

    return mutate


def flipped(kind: Section) -> Callable[[bytes], bytes]:
    """A mutation: the lowest bit of a section's first byte is changed."""

    def mutate(original: bytes) -> bytes:
        data = bytearray(original)
        data[sections(data)[int(kind)][0]] ^= 1
        return bytes(data)

    return mutate


REFUSED: dict[str, tuple[Callable[[bytes], bytes], Code]] = {
    "empty": (lambda data: b"", Code.EMPTY),
    "cut inside the magic": (lambda data: data[:5], Code.TRUNCATED),
    "cut inside the header": (lambda data: data[:1000], Code.TRUNCATED),
    "cut inside the records": (lambda data: data[: HEADER_BYTES + 8], Code.TRUNCATED),
    "cut by one page": (lambda data: data[:-4096], Code.TRUNCATED),
    "longer than it says": (lambda data: data + bytes(4096), Code.HEADER),
    "text": (lambda data: b"# a read-me, not a model\n" * 400, Code.BAD_MAGIC),
    "short text": (lambda data: b"hello", Code.BAD_MAGIC),
    "wrong magic": (lambda data: b"COLIBRI\x1b" + data[8:], Code.BAD_MAGIC),
    "next major version": (patched("<H", 8, 9, reroot=True), Code.VERSION),
    "wrong header size": (patched("<I", 12, 8192, reroot=True), Code.HEADER),
    "unknown required feature": (patched("<Q", 16, 1 << 40, reroot=True), Code.FEATURE),
    "too many sections": (patched("<I", 40, 17, reroot=False), Code.SECTION),
    "wrong chunk size": (patched("<I", 44, 4096, reroot=True), Code.HEADER),
    "reserved byte in the header": (patched("<B", 81, 1, reroot=True), Code.HEADER),
    "unknown optional feature without a new root": (patched("<Q", 24, 1 << 40, reroot=False), Code.ROOT_MISMATCH),
    "tampered records": (flipped(Section.RECORDS), Code.ROOT_MISMATCH),
    "tampered directory": (flipped(Section.DIRECTORY), Code.ROOT_MISMATCH),
    "tampered trunk": (flipped(Section.TRUNK), Code.CHUNK_MISMATCH),
    "tampered experts": (flipped(Section.EXPERTS), Code.CHUNK_MISMATCH),
    "tampered provenance": (flipped(Section.PROVENANCE), Code.CHUNK_MISMATCH),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_a_bad_file_is_refused_with_its_own_code(name: str, tiny: Path, tmp_path: Path) -> None:
    mutate, code = REFUSED[name]
    path = tmp_path / "bad.colibri"
    path.write_bytes(mutate(tiny.read_bytes()))
    outcome = run("verify", path)
    assert_fails(outcome, code, str(path))
    assert ERROR_EXIT[int(code)] == 3
    assert outcome.out == b""


def test_a_file_with_a_new_root_and_no_other_change_is_accepted(tiny: Path, tmp_path: Path) -> None:
    """The mutations above are refused for their change, not for how this test computes the root."""
    path = tmp_path / "same.colibri"
    path.write_bytes(with_root(bytearray(tiny.read_bytes())))
    assert path.read_bytes() == tiny.read_bytes()
    path.write_bytes(patched("<Q", 24, 1 << 40, reroot=True)(tiny.read_bytes()))
    assert run("verify", path).exit_code == 0


def test_a_missing_file_is_named() -> None:
    for command in (("verify",), ("info",), ("test",), ("run", "--ids", "1")):
        outcome = run(*command, "/nowhere/model.colibri")
        assert_fails(outcome, Code.OPEN, "/nowhere/model.colibri")
        assert outcome.exit_code == 1


def test_a_directory_is_no_model(tmp_path: Path) -> None:
    outcome = run("verify", tmp_path)
    assert outcome.exit_code in (1, 3)
    assert str(tmp_path) in outcome.err


def test_a_tampered_chunk_is_named_with_its_file_offset(tiny: Path, tmp_path: Path) -> None:
    data = bytearray(tiny.read_bytes())
    offset, size = sections(data)[int(Section.EXPERTS)]
    data[offset + 100] ^= 0x10
    path = tmp_path / "tampered.colibri"
    path.write_bytes(data)
    outcome = run("verify", path)
    assert_fails(outcome, Code.CHUNK_MISMATCH, "chunk 0", f"file offset {offset})")
    assert size > 0


@pytest.mark.parametrize(
    ("options", "variables"),
    [(("--verify", "open"), {}), ((), {"COLIBRI_VERIFY_MODEL_HASH": "1"})],
    ids=["option", "environment"],
)
def test_verifying_at_open_refuses_before_any_token(
    tiny: Path, tmp_path: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    """The provenance is never read while computing: only a full verification sees the change."""
    path = tmp_path / "tampered.colibri"
    path.write_bytes(flipped(Section.PROVENANCE)(tiny.read_bytes()))
    assert run("run", path, "--ids", "1", "-n", "1").exit_code == 0
    outcome = run("run", path, "--ids", "1", "-n", "1", *options, variables=variables)
    assert_fails(outcome, Code.CHUNK_MISMATCH)
    assert outcome.out == b""


def test_an_expert_is_verified_when_it_is_first_used(tiny: Path, tmp_path: Path) -> None:
    data = bytearray(tiny.read_bytes())
    offset, size = sections(data)[int(Section.EXPERTS)]
    for at in range(offset, offset + size, 4096):
        data[at] ^= 1  # every extent, whichever is routed
    path = tmp_path / "tampered.colibri"
    path.write_bytes(data)
    assert run("info", path).exit_code == 0
    outcome = run("run", path, "--ids", "1", "-n", "1")
    assert_fails(outcome, Code.CHUNK_MISMATCH, "file offset")
    assert outcome.out == b""


def test_mutated_files_never_crash_the_reader(tiny: Path, tmp_path: Path) -> None:
    """Seeded changes with a recomputed root: every one is refused with a pinned code, or works."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "tiny").write_bytes(tiny.read_bytes())
    for name, (mutate, _) in REFUSED.items():
        (corpus / name.replace(" ", "-")).write_bytes(mutate(tiny.read_bytes()))
    fuzz = BUILD / "fuzz_model"
    assert fuzz.is_file(), f"{fuzz} is missing; run: make engine"
    done = subprocess.run(
        [fuzz, "--mutations", "40", "--seed", "1", corpus], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # an empty file has nothing to mutate
    expected = 41 * (len(REFUSED) + 1) - 40
    assert done.stdout == f"fuzz_model: {expected} inputs, none crashed\n"


# ---- arguments -------------------------------------------------------------------------------------

USAGE = {
    "no command": ((), "a command is missing"),
    "unknown command": (("rum",), "unknown command 'rum'; the closest one is 'run'"),
    "a command like none": (("help", "nothing"), "unknown command 'nothing'; the closest one is 'help'"),
    "unknown option": (("run", "MODEL", "--temprature=1"), "unknown option '--temprature'; the closest one is --temp"),
    "unknown short option": (("run", "MODEL", "-Z"), "unknown option '-Z'"),
    "no model": (("run", "-p", "x"), "MODEL is missing"),
    "no prompt": (("run", "MODEL"), "there is no prompt"),
    "two prompts": (("run", "MODEL", "-p", "x", "--ids", "1"), "there are 2 prompts"),
    "prompt and standard input": (("run", "MODEL", "-", "-p", "x"), "there are 2 prompts"),
    "prompt without option": (("run", "MODEL", "hello"), "unexpected argument 'hello'"),
    "three words": (("run", "MODEL", "-", "hello"), "unexpected argument 'hello'"),
    "chat of ids": (("run", "MODEL", "--ids", "1", "--chat"), "--chat wraps a text"),
    "value missing": (("run", "MODEL", "-p"), "--prompt needs a value"),
    "value for a flag": (("run", "MODEL", "--quiet=yes"), "--quiet takes no value"),
    "no tokens": (("run", "MODEL", "-p", "x", "-n", "0"), "--tokens: 0 is outside 1..1048576"),
    "negative tokens": (("run", "MODEL", "-p", "x", "-n", "-1"), "--tokens: '-1' is not a whole number"),
    "tokens with space": (("run", "MODEL", "-p", "x", "-n", " 1"), "--tokens: ' 1' is not a whole number"),
    "empty number": (("run", "MODEL", "-p", "x", "--tokens="), "--tokens: '' is not a whole number"),
    "2^32 threads": (("run", "MODEL", "-p", "x", "-t", "4294967296"), "--threads: 4294967296 is outside 0..64"),
    "2^64 tokens": (("run", "MODEL", "-p", "x", "-n", "18446744073709551616"), "fits 64 bits"),
    "2^64 seed": (("run", "MODEL", "-p", "x", "--seed", "18446744073709551616"), "--seed: '18446744073709551616'"),
    "too many threads": (("run", "MODEL", "-p", "x", "--threads", "65"), "--threads: 65 is outside 0..64"),
    "batch": (("run", "MODEL", "-p", "x", "--batch", "513"), "--batch: 513 is outside 0..512"),
    "context": (("run", "MODEL", "-p", "x", "--context", "1048577"), "--context: 1048577 is outside 0..1048576"),
    "temperature": (("run", "MODEL", "-p", "x", "--temp", "-0.5"), "--temp: -0.5 is outside 0..100"),
    "temperature nan": (("run", "MODEL", "-p", "x", "--temp", "nan"), "--temp: 'nan' is not a decimal number"),
    "temperature hex": (("run", "MODEL", "-p", "x", "--temp", "0x1"), "--temp: '0x1' is not a decimal number"),
    "temperature huge": (("run", "MODEL", "-p", "x", "--temp", "1e99"), "--temp: '1e99' is not a decimal number"),
    "top-p": (("run", "MODEL", "-p", "x", "--top-p", "1.5"), "--top-p: 1.5 is outside 0..1"),
    "min-p": (("run", "MODEL", "-p", "x", "--min-p", "2"), "--min-p: 2 is outside 0..1"),
    "kv": (("run", "MODEL", "-p", "x", "--kv", "f64"), "--kv: 'f64' is not one of f16|f32"),
    "verify": (("run", "MODEL", "-p", "x", "--verify", ""), "--verify: '' is not one of auto|open|first|always"),
    "lock": (("run", "MODEL", "-p", "x", "--lock", "yes"), "--lock: 'yes' is not one of try|require|off"),
    "budget": (("run", "MODEL", "-p", "x", "--budget", "12Q"), "--budget: '12Q' is not a whole number of bytes"),
    "budget overflow": (("run", "MODEL", "-p", "x", "--budget", "99999999999G"), "--budget: '99999999999G'"),
    "ids": (("run", "MODEL", "--ids", "1,x"), "--ids: item 2 of '1,x' is not a token id"),
    "empty id": (("run", "MODEL", "--ids", "1,,2"), "--ids: item 2 of '1,,2' is not a token id"),
    "no ids": (("run", "MODEL", "--ids", ""), "--ids: item 1 of '' is not a token id"),
    "2^31 id": (("run", "MODEL", "--ids", "2147483648"), "--ids: item 1 of '2147483648' is not a token id"),
    "empty piece": (("run", "MODEL", "--ids", "1", "--batch-split", "2,0"), "--batch-split: item 2 of '2,0'"),
    "pieces": (("run", "MODEL", "--ids", "1", "--batch-split", ",".join("1" * 65)), "--batch-split: item 65"),
    "info twice": (("info", "MODEL", "MODEL"), "unexpected argument"),
    "verify without model": (("verify",), "MODEL is missing"),
    "hash without model": (("selftest", "--expect-sha256", "0" * 64), "--expect-sha256 needs MODEL"),
    "negative seed": (("run", "MODEL", "-p", "x", "--seed", "-1"), "give one in 0..18446744073709551615 "),
    "long texts": (("run", "MODEL", "-p", "x", "--max-text", "257K"), "--max-text: 257K is outside 1..262144"),
    "-2^31-1 id": (("run", "MODEL", "--ids=-2147483649"), "--ids: item 1 of '-2147483649' is not a token id"),
    "short hash": (("selftest", "MODEL", "--expect-sha256", "0" * 63), "is not a hash of 64 digits"),
}


@pytest.mark.parametrize("name", list(USAGE))
def test_wrong_usage_is_explained(name: str) -> None:
    """None of them opens the model: MODEL does not exist."""
    arguments, message = USAGE[name]
    outcome = run(*arguments)
    assert_fails(outcome, Code.ARGUMENT, message, "--help'")
    assert outcome.exit_code == 2
    assert outcome.out == b""


def test_a_prompt_longer_than_the_context_names_both(tiny: Path) -> None:
    outcome = run("run", tiny, "--ids", IDS, "--context", "8")
    assert_fails(outcome, Code.PROMPT_LONG, "9 tokens", "context holds 8", "--context")
    assert outcome.exit_code == 2


def test_a_prompt_that_fills_the_context_still_gives_one_token(tiny: Path) -> None:
    outcome = run("run", tiny, "--ids", IDS, "--context", "9", "-n", "1", "--print-ids", "--ignore-end")
    assert outcome.exit_code == 0, outcome.err
    assert len(outcome.line("ids").split()) == 1


def test_a_full_context_ends_the_run_and_keeps_what_was_generated(tiny: Path) -> None:
    outcome = run("run", tiny, "--ids", IDS, "--context", "12", "-n", "20", "--print-ids", "--ignore-end")
    assert_fails(outcome, Code.CONTEXT_FULL)
    assert len(outcome.line("ids").split()) == 4
    assert outcome.numbers("timing")["generated"] == 4


@pytest.mark.parametrize("token", ["-1", "1048577", "2147483647", "-2147483648"])
def test_an_id_out_of_range_is_named(tiny: Path, token: str) -> None:
    outcome = run("run", tiny, "--ids", f"1,{token}")
    assert_fails(outcome, Code.TOKEN_RANGE, token)
    assert outcome.exit_code == 2
    assert outcome.out == b""


def test_a_long_text_is_refused_with_the_limit(tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "prompt.txt"
    text.write_bytes(b"word " * 100)
    for outcome in (
        run("run", tiny, "-f", text, "--max-text", "100"),
        run("run", tiny, "-", "--max-text", "100", stdin=text.read_bytes()),
        run("run", tiny, "-p", "word " * 100, "--max-text", "100"),
    ):
        assert_fails(outcome, Code.TEXT_LONG, "100 bytes", "--max-text")


def test_a_missing_prompt_file_is_named(tiny: Path) -> None:
    assert_fails(run("run", tiny, "-f", "/nowhere/prompt.txt"), Code.OPEN, "/nowhere/prompt.txt")


@pytest.mark.parametrize("command", [("run", "--telemetry"), ("snapshot", "--output")])
def test_a_file_that_cannot_be_made_is_refused_before_the_work(command: tuple[str, str], tmp_path: Path) -> None:
    """The model is not opened: it does not exist."""
    for path in (tmp_path / "none" / "file", tmp_path):
        outcome = run(command[0], "no-such-model", "--ids", "1", command[1], path)
        assert outcome.exit_code in (1, 2)
        assert f"colibrictl: {path}: " in outcome.err
    assert_fails(outcome, Code.ARGUMENT, "only an ordinary file is replaced")


def test_a_budget_error_names_the_options_and_a_budget_that_works(tiny: Path) -> None:
    outcome = run("run", tiny, "--ids", "1", "--budget", "100K")
    assert_fails(outcome, Code.BUDGET, "lower --context (", "), --batch (", "), --max-text (65536) or raise --budget ")
    assert "slots" not in outcome.err  # one, or none, is the least already
    enough = outcome.err.split("raise --budget to ")[1].split(",")[0]
    assert run("run", tiny, "--ids", "1", "-n", "1", "--budget", enough).exit_code == 0
    slots = run("run", tiny, "--ids", "1", "--budget", "100K", "--residency", "stream", "--slots", "3")
    assert_fails(slots, Code.BUDGET, "--max-text (65536), --slots or raise --budget to ")


def test_a_full_context_is_not_said_to_be_raised_beyond_the_model(tiny: Path) -> None:
    most = str(json.loads(run("info", tiny, "--json").out)["model"]["context_tokens"])
    full = run("run", tiny, "--ids", IDS, "-n", most, "--context", most, "--ignore-end")
    assert_fails(full, Code.CONTEXT_FULL, f"the model allows {most}): ask for fewer, reset the session (error")
    less = run("run", tiny, "--ids", IDS, "-n", most, "--context", "16", "--ignore-end")
    assert_fails(less, Code.CONTEXT_FULL, "reset the session or raise --context (error")


def test_an_option_beyond_the_model_is_named_as_it_was_given(tiny: Path) -> None:
    assert_fails(run("run", tiny, "--ids", "1", "--context", "100000"), Code.ARGUMENT, "option --context is 100000")


def test_a_budget_below_the_plan_is_refused(tiny: Path) -> None:
    plan = json.loads(run("info", tiny, "--json").out)["plan"]
    outcome = run("run", tiny, "--ids", "1", "--budget", str(plan["total_bytes"] - 1))
    assert_fails(outcome, Code.BUDGET, str(plan["total_bytes"]))
    assert outcome.exit_code == 4
    assert run("run", tiny, "--ids", "1", "-n", "1", "--budget", str(plan["total_bytes"])).exit_code == 0


def test_an_instruction_set_that_is_not_there_is_refused(tiny: Path) -> None:
    outcome = run("run", tiny, "--ids", "1", "--isa", "vector9000")
    assert_fails(outcome, Code.ISA, "vector9000", "ref")
    assert outcome.exit_code == 5
    assert_fails(run("selftest", "--isa", "vector9000"), Code.ISA, "vector9000")


@pytest.mark.parametrize(("variable", "value"), [("COLIBRI_LOCK", "requre"), ("COLIBRI_VERIFY_MODEL_HASH", "yes")])
def test_a_misspelt_switch_in_the_environment_is_refused(tiny: Path, variable: str, value: str) -> None:
    outcome = run("run", tiny, "--ids", "1", variables={variable: value})
    assert_fails(outcome, Code.ARGUMENT, variable, value)


def test_required_locks_that_fail_end_the_command(tiny: Path) -> None:
    """A limit of one page leaves no room; root ignores limits, so the test drops the capability."""
    limited = ["prlimit", "--memlock=4096:4096", *unprivileged(), str(program())]
    arguments = ["run", str(tiny), "--ids", "1", "-n", "1"]
    for extra, variables in ((["--lock", "require"], {}), ([], {"COLIBRI_LOCK": "require"})):
        done = subprocess.run(
            [*limited, *arguments, *extra], capture_output=True, text=True, check=False, env=environment(variables)
        )
        assert_fails(Outcome(done.returncode, b"", done.stderr), Code.LOCK, "MEMLOCK")
        assert done.returncode == 5
    done = subprocess.run([*limited, *arguments], capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0
    assert done.stderr.count("warning: ") == 1
    need, short = map(int, re.findall(r"needs (\d+) \(short by (\d+)\)", done.stderr)[0])
    assert short == need - 4096
    silent = subprocess.run([*limited, *arguments, "--lock=off"], capture_output=True, text=True, check=False)
    assert "warning: " not in silent.stderr


def unprivileged() -> list[str]:
    """A command prefix under which limits of locked memory hold."""
    return ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"] if os.geteuid() == 0 else []


# ---- help ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("--help",), ("-h",), ("help",), *((c, "--help") for c in COMMANDS)])
def test_help_goes_to_stdout_and_succeeds(arguments: tuple[str, ...]) -> None:
    outcome = run(*arguments)
    assert outcome.exit_code == 0
    assert outcome.err == ""
    assert outcome.out.startswith(b"usage: colibrictl ")
    assert b"Exit codes: 0 ok" in outcome.out


def test_help_of_run_names_ranges_defaults_and_examples() -> None:
    text = run("help", "run").out.decode()
    assert text == run("run", "--help").out.decode()
    for part in ("-n, --tokens N", "[1..1048576]", "(default 128)", "f16|f32", "Examples:", "--batch-split"):
        assert part in text


def test_the_version_is_the_one_of_the_repository() -> None:
    version = (REPOSITORY / "engine" / "VERSION").read_text().strip()
    lines = run("--version").out.decode().splitlines()
    assert lines[0] == f"colibrictl {version}"
    assert re.fullmatch(rf"colibri_v{re.escape(version)}_\w+_(gcc|clang)[\d.]+", lines[1])


def test_every_error_code_has_a_row_in_the_documentation() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text()
    rows = re.findall(r"^\| (-\d+) \| (\w+) \| (\d) \| .+ \|$", text, re.MULTILINE)
    expected = [(int(c), c.name.lower(), ERROR_EXIT[int(c)]) for c in Code if int(c) in ERROR_TEXT and int(c) < 0]
    assert [(int(code), name, int(exit_code)) for code, name, exit_code in rows] == expected


# ---- what it prints --------------------------------------------------------------------------------


def test_info_without_a_model_describes_the_build() -> None:
    facts = json.loads(run("info", "--json").out)
    assert set(facts) == {"build"}
    assert "ref" in facts["build"]["isas_available"].split()
    assert set(facts["build"]["isas_available"].split()) <= set(facts["build"]["isas_compiled"].split())
    assert facts["build"]["build_info"] in run("info").out.decode()


def test_info_prints_the_facts_and_the_plan_in_both_forms(tiny: Path) -> None:
    options = ("--context", "64", "--batch", "7", "--threads", "3", "--kv", "f32")
    facts = json.loads(run("info", tiny, "--json", *options).out)
    assert facts["model"]["file_bytes"] == tiny.stat().st_size
    assert facts["model"]["root"] == tiny.read_bytes()[48:80].hex()
    assert facts["model"]["file"] == str(tiny)
    plan = facts["plan"]
    assert (plan["context_tokens"], plan["batch_tokens"], plan["threads"], plan["kv"]) == (64, 7, 3, "f32")
    parts = ("mapped_bytes", "arena_bytes", "stack_bytes", "process_bytes", "kernel_bytes")
    assert plan["total_bytes"] == sum(plan[part] for part in parts)
    text = run("info", tiny, *options).out.decode()
    for group in facts.values():
        for name, value in group.items():
            shown = {True: "yes", False: "no"}[value] if isinstance(value, bool) else value
            assert re.search(rf"^  {name} +{re.escape(str(shown))}$", text, re.MULTILINE), name


def test_info_and_inspect_print_the_same_plan(tiny: Path) -> None:
    for options in (
        (),
        ("--threads", "1", "--max-text", "1000"),
        ("--threads", "4", "--context", "100", "--batch", "3", "--kv", "f32"),
        ("--threads", "64", "--context", "1", "--batch", "512"),
    ):
        inspected = json.loads(colibri("inspect", "--json", *options, tiny))
        assert json.loads(run("info", tiny, "--json", *options).out)["plan"] == inspected["plan"]


def test_info_names_every_family(tiny: Path, tmp_path: Path) -> None:
    """The family is informative: any known number is accepted and printed by its name."""
    original = tiny.read_bytes()
    offset = sections(original)[int(Section.RECORDS)][0] + 8
    for family in Family:
        data = bytearray(original)
        struct.pack_into("<I", data, offset, int(family))
        path = tmp_path / "family.colibri"
        path.write_bytes(with_root(data))
        assert json.loads(run("info", path, "--json").out)["model"]["family"] == family.name.lower()


def test_the_path_is_valid_json_whatever_its_bytes_are(tiny: Path, tmp_path: Path) -> None:
    link = os.fsencode(tmp_path) + b'/a"\\\n\xc3\xa9\xff.colibri'
    os.symlink(tiny, link)
    facts = json.loads(run("info", link, "--json").out.decode())
    assert facts["model"]["file"] == f'{tmp_path}/a"\\\n\u00e9\ufffd.colibri'


def test_verify_prints_the_root(tiny: Path) -> None:
    outcome = run("verify", tiny)
    assert outcome.exit_code == 0, outcome.err
    assert f"root: {tiny.read_bytes()[48:80].hex()}" in outcome.out.decode().splitlines()


def test_selftest_names_every_instruction_set() -> None:
    outcome = run("selftest")
    assert outcome.exit_code == 0, outcome.err
    available = json.loads(run("info", "--json").out)["build"]["isas_available"].split()
    assert outcome.out.decode().splitlines() == [f"selftest: {isa} ok" for isa in available]


def test_selftest_of_a_model_gives_one_hash_and_notices_another(tiny: Path) -> None:
    outcome = run("selftest", tiny, "--ids", IDS, "-n", "4")
    assert outcome.exit_code == 0, outcome.err
    hashes = re.findall(r"threads=(\d) prompt=(\w+) logits-sha256=(\w{64}) ok", outcome.out.decode())
    assert {(threads, prompt) for threads, prompt, _ in hashes} >= {
        (threads, prompt) for threads in "1234" for prompt in ("whole", "each")
    }
    assert len({digest for _, _, digest in hashes}) == 1
    wrong = run("selftest", tiny, "--ids", IDS, "-n", "4", "--expect-sha256", "0" * 64)
    assert_fails(wrong, Code.INTERNAL, hashes[0][2], "expected " + "0" * 64)


def test_colibri_test_runs_three_rounds(tiny: Path, tmp_path: Path) -> None:
    name = tmp_path / "colibri_test"
    name.symlink_to(program())
    done = subprocess.run([name, tiny, "--lock", "off"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rounds = [line for line in done.stdout.splitlines() if line.startswith("round ")]
    assert [line.split(":")[0] for line in rounds] == ["round 1", "round 2", "round 3"]
    assert float(rounds[0].split("first_token_ms=")[1].split()[0]) > 0
    assert float(rounds[1].split("tok_s=")[1].split()[0]) > 0
    assert int(rounds[2].split("vmrss_bytes=")[1].split()[0]) > 0


def test_the_peak_stays_within_the_plan(tiny: Path) -> None:
    outcome = run("run", tiny, "--ids", IDS, "-n", "16", "--ignore-end", "--lock", "off")
    assert outcome.exit_code == 0, outcome.err
    memory = outcome.numbers("memory")
    plan = json.loads(run("info", tiny, "--json").out)["plan"]
    assert memory["plan_bytes"] == plan["total_bytes"]
    assert 0 < memory["vmhwm_bytes"] <= memory["plan_bytes"]
    assert memory["locked_bytes"] == 0


def test_the_longest_prompt_stays_within_the_plan(tiny: Path, tmp_path: Path) -> None:
    """Its text and ids are held outside the arena; the message is what stops the process for a look."""
    text = tmp_path / "prompt.txt"
    text.write_bytes(bytes((7919 * i + i // 251) % 256 for i in range(MAX_TEXT_BYTES)))  # about an id per byte
    options = ("--max-text", str(MAX_TEXT_BYTES), "--threads", "1", "--context", "16")
    plan = json.loads(run("info", tiny, "--json", *options).out)["plan"]
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(write_end, bytes(PIPE_BYTES))
    command = [str(program()), "run", str(tiny), "-f", str(text), *options]  # locks: every page is there
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=write_end, env=environment())
    os.close(write_end)
    wait_until_asleep(process.pid)
    peak = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    err = Generation(process, read_end).rest()[PIPE_BYTES:].decode()
    assert_fails(Outcome(process.wait(TIMEOUT_SECONDS), b"", err), Code.PROMPT_LONG)
    assert int(re.findall(r"has (\d+) tokens", err)[0]) > MAX_TEXT_BYTES * 9 // 10
    assert MAX_TEXT_BYTES < 1024 * int(peak[0]) <= plan["total_bytes"]


def test_quiet_leaves_only_what_was_asked_for(tiny: Path) -> None:
    outcome = run("run", tiny, "--ids", "1", "-n", "1", "-q", "--lock", "off")
    assert (outcome.exit_code, outcome.err) == (0, "")


def test_timing_counts_the_tokens(tiny: Path) -> None:
    timing = run("run", tiny, "--ids", IDS, "-n", "5", "--ignore-end").numbers("timing")
    assert (timing["prompt_tokens"], timing["generated"]) == (9, 5)
    assert timing["prompt_s"] > 0
    assert timing["first_token_ms"] >= 1e3 * timing["prompt_s"] - 1e-3
    assert timing["tok_s"] > 0


# ---- one bit pattern -------------------------------------------------------------------------------

SPLITS = ("--threads=1", "--threads=2", "--threads=3", "--threads=4", "--batch=1", "--batch=3", "--batch-split=each",
          "--batch-split=5", "--batch-split=5,3", "--isa=ref", "--verify=open", "--lock=off")  # fmt: skip


def test_ids_and_logits_are_the_same_however_the_work_is_split(tiny: Path) -> None:
    fixed = ("run", tiny, "--ids", IDS, "-n", "12", "--ignore-end", "--print-ids", "--logits-sha256")
    expected = run(*fixed)
    assert expected.exit_code == 0, expected.err
    assert re.fullmatch(r"[0-9a-f]{64}", expected.line("logits-sha256"))
    assert expected.line("prompt-ids") == IDS.replace(",", " ")
    for option in SPLITS:
        outcome = run(*fixed, option)
        assert (outcome.out, outcome.line("ids"), outcome.line("logits-sha256")) == (
            expected.out, expected.line("ids"), expected.line("logits-sha256"),
        ), option  # fmt: skip


def test_golden_results_of_the_numpy_reference_are_met(tiny: Path, tmp_path: Path) -> None:
    golden = tmp_path / "golden.json"
    prompts = ("--prompt", "The sea, 120 sea\u00efls", "--chat-prompt", "and the rest?", "--ids", IDS)
    colibri("golden", tiny, "-o", golden, "-n", "12", *prompts)
    cases = json.loads(golden.read_text())["cases"]
    assert len(cases) == 3
    for case in cases:
        prompt = ("-p", case["prompt"]) if case["prompt"] else ("--ids", IDS)
        chat = ("--chat",) if case["chat"] else ()
        outcome = run("run", tiny, *prompt, *chat, "-n", "12", "--print-ids", "--logits-sha256")
        assert outcome.exit_code == 0, outcome.err
        assert outcome.line("prompt-ids") == " ".join(map(str, case["prompt_ids"]))
        assert outcome.line("ids") == " ".join(map(str, case["ids"]))
        assert outcome.line("logits-sha256") == case["logits_sha256"]
        assert outcome.out.decode() == case["text"]
        ids = ",".join(map(str, case["prompt_ids"]))
        expected = ("-n", "12", "--expect-sha256", case["logits_sha256"])
        assert run("selftest", tiny, "--ids", ids, *expected).exit_code == 0


def test_an_end_token_stops_the_text_and_counts(tiny: Path) -> None:
    """Sampling hot until the end token comes: it is the last id, and the same run goes on with --ignore-end."""
    stopped = 0
    for seed in range(16):
        hot = ("--ids", IDS, "-n", "100", "--temp", "20", "--seed", str(seed), "--print-ids", "--threads=1")
        short, long = run("run", tiny, *hot), run("run", tiny, *hot, "--ignore-end")
        ids = short.line("ids").split()
        assert long.line("ids").split()[: len(ids)] == ids
        assert len(long.line("ids").split()) == 100
        if len(ids) < 100:
            stopped += 1
            assert ids.index(END_ID) == len(ids) - 1
            assert long.out.startswith(short.out.decode().rstrip("\ufffd").encode())
    assert stopped > 0


def test_another_prompt_gives_another_hash(tiny: Path) -> None:
    hashes = {
        run("run", tiny, "--ids", ids, "-n", "4", "--logits-sha256", "--ignore-end").line("logits-sha256")
        for ids in ("1,2,3", "3,2,1", "1,2,4", "2,3")
    }
    assert len(hashes) == 4


def test_a_seed_repeats_its_text_and_another_differs(tiny: Path) -> None:
    def sample(*options: str) -> str:
        fixed = ("--ids", IDS, "-n", "16", "--ignore-end", "--print-ids")
        return run("run", tiny, *fixed, *options).line("ids")

    hot = ("--temp", "2", "--seed", "7")
    assert sample(*hot) == sample(*hot)
    assert sample(*hot) != sample("--temp", "2", "--seed", "8")
    assert sample("--temp", "2", "--seed", "18446744073709551615") == sample("--temp=2", "-s18446744073709551615")
    assert sample(*hot, "--top-k", "1") == sample()


# ---- text ------------------------------------------------------------------------------------------


def test_the_three_ways_to_give_a_text_are_one(tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "prompt.txt"
    text.write_bytes("Wörter, 12 and 3\n".encode())
    options = ("-n", "6", "--print-ids", "-q", "--lock", "off")
    outcomes = [
        run("run", tiny, "-p", text.read_text(), *options),
        run("run", tiny, "-f", text, *options),
        run("run", tiny, "--prompt-file=-", *options, stdin=text.read_bytes()),
        run("run", tiny, "-", *options, stdin=text.read_bytes()),
    ]
    assert outcomes[0].exit_code == 0, outcomes[0].err
    assert outcomes == [outcomes[0]] * 4


def test_a_prompt_that_is_not_utf8_is_taken_as_bytes(tiny: Path) -> None:
    outcome = run("run", tiny, "-", "-n", "4", "--print-ids", stdin=b"a\xff\xfe\x00\xc3")
    assert outcome.exit_code == 0, outcome.err
    assert len(outcome.line("prompt-ids").split()) >= 5
    assert run("run", tiny, "-p", b"\xff\xc3(", "-n", "4").exit_code == 0


def test_an_empty_prompt_is_refused(tiny: Path) -> None:
    outcome = run("run", tiny, "-p", "")
    assert_fails(outcome, Code.ARGUMENT, "prompt has no tokens")


def test_the_text_is_valid_utf8_at_every_length(tiny: Path) -> None:
    for tokens in range(1, 12):
        run("run", tiny, "--ids", "5", "-n", str(tokens), "--temp", "5", "--ignore-end").out.decode()


def on_a_terminal(*arguments: str | Path) -> bytes:
    """Standard output of a successful run when it is a terminal that changes nothing."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    command = [program(), *arguments]
    process = subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL, env=environment())
    os.close(slave)
    out = b""
    while True:
        try:
            out += os.read(master, 65536)
        except OSError:  # the last writer has closed it
            break
    os.close(master)
    assert process.wait(TIMEOUT_SECONDS) == 0
    return out


def test_control_characters_do_not_reach_a_terminal(tiny: Path) -> None:
    hot = ("run", tiny, "--ids", IDS, "-n", "200", "--temp", "100", "--ignore-end", "--lock", "off", "--seed")
    control = re.compile("[\0-\x08\x0b-\x1f\x7f\x80-\x9f]")
    seen = set()
    for seed in CONTROL_SEEDS:
        text = run(*hot, seed).out.decode()
        seen |= set(control.findall(text))
        shown = on_a_terminal(*hot, seed).decode()
        assert shown.removesuffix("\n") == control.sub("\ufffd", text).removesuffix("\n")
    assert seen & set("\x1b\x07\r\b")
    assert any(character >= "\x80" for character in seen)


def test_control_characters_of_a_file_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    outcome = run("run", tmp_path / "a\x1b[31m\x7f\x9b\u00e9", "--ids", "1")
    assert_fails(outcome, Code.OPEN, f"cannot open {tmp_path}/a?[31m??\u00e9: ")


# ---- streams and signals ---------------------------------------------------------------------------


@pytest.mark.parametrize("redirect", [">&-", "> /dev/full"])
def test_a_closed_or_full_stdout_is_an_error(tiny: Path, redirect: str) -> None:
    generate = f"run '{tiny}' --ids 1 -n 40 --ignore-end"
    for arguments in ("--help", "info", f"info '{tiny}'", f"verify '{tiny}'", generate):
        done = subprocess.run(
            ["sh", "-c", f"'{program()}' {arguments} {redirect}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1, arguments
        assert "standard output" in done.stderr
        assert f"(error {int(Code.IO)} io)" in done.stderr


def wait_until_asleep(pid: int) -> None:
    """Until the process sleeps at five looks in a row."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    asleep = 0
    while asleep < 5:
        assert time.monotonic() < deadline, "the process does not block"
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
        time.sleep(0.02)


@dataclass
class Generation:
    """A run that writes into a nearly full pipe: it stops behind its first tokens until the pipe is read."""

    process: subprocess.Popen[bytes]
    read_end: int

    def wait_for_text(self) -> None:
        """Until the first token has been written."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while self.pending() <= PIPE_BYTES - 16:
            assert time.monotonic() < deadline, "no token was written"
            assert self.process.poll() is None, self.process.communicate()[1].decode()
            time.sleep(0.005)

    def wait_until_blocked(self) -> None:
        """Until the pipe is full: with one thread the process sleeps nowhere but in write."""
        self.wait_for_text()
        wait_until_asleep(self.process.pid)

    def pending(self) -> int:
        """Bytes in the pipe."""
        answer = fcntl.ioctl(self.read_end, termios.FIONREAD, bytes(4))
        return int(struct.unpack("i", answer)[0])

    def rest(self) -> bytes:
        """What is in the pipe until the writer closes it."""
        out = b""
        while part := os.read(self.read_end, 65536):
            out += part
        os.close(self.read_end)
        return out

    def finish(self) -> Outcome:
        """Read the rest."""
        out = self.rest()
        err = self.process.communicate(timeout=TIMEOUT_SECONDS)[1].decode()
        return Outcome(self.process.returncode, out[PIPE_BYTES - 16 :], err)


def start_generation(model: Path, *options: str) -> Generation:
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    assert fcntl.fcntl(write_end, fcntl.F_GETPIPE_SZ) == PIPE_BYTES
    os.write(write_end, b"." * (PIPE_BYTES - 16))
    arguments = ["--ids", IDS, "-n", "200", "--temp", "5", "--ignore-end", "--print-ids", *options]
    command = [str(program()), "run", str(model), *arguments]
    process = subprocess.Popen(command, stdout=write_end, stderr=subprocess.PIPE, env=environment())
    os.close(write_end)
    return Generation(process, read_end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_generation_and_keeps_the_text(tiny: Path, number: signal.Signals) -> None:
    generation = start_generation(tiny, "--threads", "1", "--lock", "off")
    generation.wait_until_blocked()
    generation.process.send_signal(number)
    generation.process.wait(TIMEOUT_SECONDS)  # the pipe is full and nobody reads: the write must end too
    outcome = generation.finish()
    assert_fails(outcome, Code.CANCELLED, f"interrupted by signal {int(number)}")
    assert outcome.exit_code == 1
    assert outcome.out
    assert 0 < len(outcome.line("ids").split()) < 200


def test_a_reader_that_leaves_ends_the_run(tiny: Path) -> None:
    generation = start_generation(tiny)
    generation.wait_for_text()
    os.close(generation.read_end)
    err = generation.process.communicate(timeout=TIMEOUT_SECONDS)[1].decode()
    assert_fails(Outcome(generation.process.returncode, b"", err), Code.IO, "the reader closed it")


def test_a_model_file_that_shrinks_in_use_ends_with_a_message(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "shrinking.colibri"
    path.write_bytes(tiny.read_bytes())
    for threads in ("1", "4"):
        path.write_bytes(tiny.read_bytes())
        generation = start_generation(path, "--threads", threads)
        generation.wait_for_text()
        os.truncate(path, 4096)
        outcome = generation.finish()
        assert outcome.exit_code == 3
        assert "model file shrank while mapped" in outcome.err
        assert "by rename" in outcome.err
