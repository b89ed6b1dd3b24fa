# SPDX-License-Identifier: MIT
"""COLIBRI_NO_LOGGING and --log syslog: results on stdout, messages in the system log, nothing on stderr.

The commands run below a /dev of their own (a mount namespace), where this test is the system log.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from colibri.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COLIBRI_NATIVE_BUILD", REPOSITORY / "build" / "host"))
TINY = REPOSITORY / "configs" / "models" / "tiny.toml"
PROGRAM = BUILD / "colibrictl"
SECRET = "xylophone quartz"  # words that no message has by itself
NO_LOGGING = {"COLIBRI_NO_LOGGING": "1"}

# argv: 1 or 0 (is there a log?), then the command. Prints what came of it as JSON.
HARNESS = """
import json, socket, subprocess, sys
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
if sys.argv[1] == "1":
    log.bind("/dev/log")
log.setblocking(False)
done = subprocess.run(sys.argv[2:], capture_output=True, stdin=sys.stdin.buffer)
messages = []
while sys.argv[1] == "1":
    try:
        messages.append(log.recv(65536).decode())
    except BlockingIOError:
        break
print(json.dumps([done.returncode, done.stdout.decode(), done.stderr.decode(), messages]))
"""


@dataclass(frozen=True)
class Logged:
    """What a command did below a /dev of its own."""

    exit_code: int
    out: str
    err: str
    messages: list[str]


def logged(*arguments: str | Path, variables: dict[str, str] | None = None, log: bool = True,
           stdin: bytes = b"", program: Path = PROGRAM) -> Logged:  # fmt: skip
    """Run colibrictl where /dev/log is ours, or where there is none."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLIBRI_")}
    inside = ["sh", "-c", 'mount -t tmpfs tmpfs /dev && exec "$@"', "sh", sys.executable, "-c", HARNESS]
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", *inside, "1" if log else "0", program, *arguments],
        input=stdin, capture_output=True, env={**kept, **(variables or {})}, check=False, timeout=120,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.fail(f"no mount namespace of our own: {done.stderr.decode()}; allow user namespaces or be root")
    return Logged(*json.loads(done.stdout))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logging") / "tiny.colibri"
    assert main(["convert", str(TINY), "-o", str(path), "-q"]) == 0
    return path


def run_line(model: Path) -> list[str | Path]:
    return ["run", model, "-p", SECRET, "-n", "5", "--threads", "1", "--ignore-end"]


def test_the_text_is_the_same_and_the_figures_are_in_the_log(tiny: Path) -> None:
    usual = logged(*run_line(tiny))
    quiet = logged(*run_line(tiny), variables=NO_LOGGING)
    assert (usual.exit_code, usual.messages) == (0, [])
    assert "timing: prompt_tokens=" in usual.err
    assert (quiet.exit_code, quiet.out, quiet.err) == (0, usual.out, "")
    text = "\n".join(quiet.messages)
    assert re.search(r"^<30>colibrictl\[\d+\]: timing: prompt_tokens=\d+ ", text, re.M)
    assert re.search(r"^<30>colibrictl\[\d+\]: memory: plan_bytes=\d+ ", text, re.M)
    assert not [word for word in SECRET.split() if word in text]
    assert usual.out.strip() not in text


def test_the_option_does_what_the_variable_does(tiny: Path) -> None:
    by_option = logged(*run_line(tiny), "--log", "syslog")
    by_variable = logged(*run_line(tiny), variables=NO_LOGGING)
    assert (by_option.exit_code, by_option.out, by_option.err) == (0, by_variable.out, "")
    assert len(by_option.messages) == len(by_variable.messages)


def test_no_option_takes_the_variable_back(tiny: Path) -> None:
    assert logged(*run_line(tiny), "--log", "stderr", variables=NO_LOGGING).err == ""


def test_results_that_were_asked_for_come_behind_the_text(tiny: Path) -> None:
    options = ("--print-ids", "--logits-sha256", "-q")
    usual = logged(*run_line(tiny), *options)
    quiet = logged(*run_line(tiny), *options, variables=NO_LOGGING)
    assert (quiet.exit_code, quiet.err, quiet.messages) == (0, "", [])
    assert quiet.out.removesuffix(usual.err).rstrip("\n") == usual.out.rstrip("\n")
    assert quiet.out.endswith(usual.err)


FAILURES: dict[str, tuple[list[str | Path], int, str]] = {
    "no such model": (["info", "no-such.colibri"], 1, "no-such.colibri: cannot open"),
    "a file that is none": (["verify", TINY], 3, "(error -"),
    "wrong value": (["run", "m", "-p", "x", "--tokens", "1x"], 2, "run: --tokens: ''"),
    "unknown option": (["run", "m", "--xylophone"], 2, "unknown option ''; the closest one is --"),
    "words without quotes": (["run", "m", "xylophone", "quartz"], 2, "unexpected argument ''"),
    "ids that are none": (["run", "m", "--ids", "1,xylophone"], 2, "--ids: item 2 of ''"),
    "unknown command": (["xylophone"], 2, "unknown command ''"),
    "no command": ([], 2, "a command is missing"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_errors_go_to_the_log_and_exit_codes_stay(name: str) -> None:
    arguments, exit_code, part = FAILURES[name]
    usual = logged(*arguments)
    quiet = logged(*arguments, variables=NO_LOGGING)
    assert (usual.exit_code, quiet.exit_code) == (exit_code, exit_code)
    assert usual.err.startswith("colibrictl: ")
    assert (quiet.out, quiet.err) == ("", "")
    assert len(quiet.messages) == 1
    assert quiet.messages[0].startswith("<27>colibrictl[")
    assert part in quiet.messages[0]
    assert not [word for word in SECRET.split() if word in quiet.messages[0]]


def test_without_a_log_messages_are_dropped_and_nothing_else_changes(tiny: Path) -> None:
    usual = logged(*run_line(tiny))
    alone = logged(*run_line(tiny), log=False, variables=NO_LOGGING)
    assert (alone.exit_code, alone.out, alone.err) == (0, usual.out, "")
    refused = logged("info", "no-such.colibri", log=False, variables=NO_LOGGING)
    assert (refused.exit_code, refused.out, refused.err) == (1, "", "")


COMMANDS: dict[str, list[str]] = {
    "info": ["info", "MODEL"],
    "verify": ["verify", "MODEL"],
    "snapshot": ["snapshot", "MODEL", "-p", SECRET, "-o", "OUT"],
    "install": ["install", "MODEL", "OUT"],
    "bench": ["bench", "MODEL", "-n", "2", "--rounds", "1"],
    "doctor": ["doctor"],
    "selftest": ["selftest", "--isa", "ref"],
    "serve": ["serve", "MODEL"],
    "version": ["--version"],
    "help": ["run", "--help"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_writes_to_stderr(name: str, tiny: Path, tmp_path: Path) -> None:
    places = {"MODEL": str(tiny), "OUT": str(tmp_path / "out")}
    arguments = [places.get(word, word) for word in COMMANDS[name]]
    request = json.dumps({"id": "1", "prompt": SECRET, "tokens": 3}).encode() + b"\n"
    usual = logged(*arguments, stdin=request)
    quiet = logged(*arguments, stdin=request, variables=NO_LOGGING)
    assert (quiet.exit_code, quiet.err) == (usual.exit_code, "")
    assert (quiet.out == "") == (usual.out == "")
    assert not [word for word in SECRET.split() if word in "\n".join(quiet.messages)]


def test_messages_get_through_a_closed_sandbox(tiny: Path) -> None:
    quiet = logged(*run_line(tiny), "--sandbox", "kill", variables=NO_LOGGING)
    assert (quiet.exit_code, quiet.err) == (0, "")
    sandbox, *behind = quiet.messages
    assert "sandbox: phase=steady action=kill" in sandbox
    assert any("timing: " in message for message in behind)


@pytest.mark.parametrize("word", ["yes", "true", "2"])
def test_a_word_that_is_no_switch_is_refused(word: str) -> None:
    refused = logged("info", variables={"COLIBRI_NO_LOGGING": word})
    assert (refused.exit_code, refused.out, refused.messages) == (2, "", [])
    assert f"COLIBRI_NO_LOGGING is '{word}': set it to 0|1" in refused.err


@pytest.mark.parametrize("word", ["0", ""])
def test_the_neutral_words_change_nothing(word: str, tiny: Path) -> None:
    assert "timing: " in logged(*run_line(tiny), variables={"COLIBRI_NO_LOGGING": word}).err
