# SPDX-License-Identifier: MIT
"""COLIBRI_SECURE_MODE: memory of real processes is searched for what a user wrote."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest
from colibri.cli import main
from colibri.engine import Engine
from native_cases import program, run_native

TINY = Path(__file__).resolve().parents[2] / "configs" / "models" / "tiny.toml"
PROMPT = "xylophone quartz and a violin of the best wood"
F_SETPIPE_SZ = 1031
PIPE_BYTES = 4096
WAIT_SECONDS = 60


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("secure") / "tiny.colibri"
    assert main(["convert", str(TINY), "-o", str(path), "-q"]) == 0
    return path


@pytest.fixture(scope="module")
def needles(tiny: Path) -> dict[str, bytes]:
    """What must not be found: the text, its ids."""
    with Engine(tiny, threads=1) as engine:
        ids = engine.tokenize(PROMPT)
    return {"text": PROMPT.encode(), "ids": struct.pack(f"<{len(ids) - 2}i", *ids[1:-1])}


def test_what_a_sequence_left_is_gone(tiny: Path, note: Callable[[str], None]) -> None:
    done = run_native("test_secure", tiny)
    assert done.returncode == 0, done.stdout
    cost = re.search(r"^note wiping (.*)$", done.stdout, re.M)
    assert cost is not None
    note(f"secure mode: wiping {cost[1]}")


# ---- processes ---------------------------------------------------------------------------------------


def regions(pid: int) -> Iterator[bytes]:
    """The contents of each writable mapping, the stack and the command line with it."""
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for row in maps:
            span, mode, *_ = row.split()
            if mode.startswith("rw"):
                low, high = (int(word, 16) for word in span.split("-"))
                memory.seek(low)
                yield memory.read(high - low)


def found(pid: int, needles: dict[str, bytes]) -> set[str]:
    """The needles that the memory of a process holds."""
    return {name for region in regions(pid) for name, needle in needles.items() if needle in region}


def core_limit(pid: int) -> str:
    match = re.search(r"^Max core file size +(\S+) +(\S+)", Path(f"/proc/{pid}/limits").read_text(), re.M)
    assert match is not None
    return match[2]


@contextmanager
def started(*arguments: str | Path, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A colibrictl with pipes, ended however the test ends."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COLIBRI_")}
    process = subprocess.Popen(
        [program("colibrictl"), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**kept, **variables},
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def answer(process: subprocess.Popen[bytes], request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Text and last line that `serve` gives for a request."""
    stdin, stdout = pipes(process)
    stdin.write(json.dumps(request).encode() + b"\n")
    stdin.flush()
    text = ""
    for line in stdout:
        fields = json.loads(line)
        if "done" in fields or "error" in fields:
            return text, fields
        text += fields["text"]
    raise AssertionError("serve ended without an answer")


def pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def settled(pid: int, needles: dict[str, bytes]) -> set[str]:
    """What is found once the process sleeps: the last line is out before the memory is wiped."""
    deadline = time.monotonic() + 5
    while True:
        left = found(pid, needles)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def request(**values: Any) -> dict[str, Any]:
    return {"id": "1", "prompt": PROMPT, "tokens": 12, "ignore_end": True, **values}


@pytest.mark.parametrize("how", ["option", "variable"])
def test_after_an_answer_the_server_holds_neither_text_nor_ids(how: str, tiny: Path, needles: dict[str, bytes]) -> None:
    options = ["--secure"] if how == "option" else []
    variables = {} if how == "option" else {"COLIBRI_SECURE_MODE": "1"}
    with started("serve", tiny, "--threads", "2", *options, **variables) as process:
        text, last = answer(process, request())
        assert last["done"] == "length"
        pieces = {**needles, "answer": text.encode()}
        assert settled(process.pid, pieces) == set()
        assert core_limit(process.pid) == "0"
        _, last = answer(process, request(id="2", tokens=0))  # an error path: no such number of tokens
        assert "error" in last
        assert settled(process.pid, needles) == set()
        long = "xylophone quartz " * 200
        _, last = answer(process, request(id="3", prompt=PROMPT + long))
        assert last["name"] == "prompt_long"
        assert settled(process.pid, needles) == set()


def test_without_secure_mode_the_search_finds_the_ids(tiny: Path, needles: dict[str, bytes]) -> None:
    with started("serve", tiny, "--threads", "2") as process:
        _, last = answer(process, request())
        assert last["done"] == "length"
        assert "ids" in found(process.pid, needles)
        assert core_limit(process.pid) == core_limit(os.getpid())


def blocked_run(tiny: Path, *options: str) -> list[str | Path]:
    return ["run", tiny, "-p", PROMPT, "-n", "200", "--ignore-end", "--threads", "1", "-q", *options]


@pytest.mark.parametrize("options", [["--secure"], []])
def test_run_keeps_the_text_neither_in_memory_nor_in_its_command_line(
    options: list[str], tiny: Path, needles: dict[str, bytes]
) -> None:
    """The pipe is full, so the process waits in the middle of its answer: ids are needed, the text is not."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, PIPE_BYTES)
    os.write(writer, b"." * PIPE_BYTES)
    process = subprocess.Popen([program("colibrictl"), *blocked_run(tiny, *options)], stdout=writer)
    try:
        os.close(writer)
        deadline = time.monotonic() + WAIT_SECONDS
        while "pipe" not in Path(f"/proc/{process.pid}/wchan").read_text() and time.monotonic() < deadline:
            if "ids" in found(process.pid, needles):  # a kernel that names no wait channel
                time.sleep(0.2)
                break
            time.sleep(0.02)
        assert "ids" in found(process.pid, needles)  # the answer has begun
        assert "text" not in found(process.pid, needles)
        assert PROMPT.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        with os.fdopen(reader, "rb") as pipe:
            assert len(pipe.read()) > PIPE_BYTES
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


# ---- how it is said ------------------------------------------------------------------------------------


def test_info_says_whether_memory_is_wiped(tiny: Path) -> None:
    def shown(*options: str, **variables: str) -> bool:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COLIBRI_")}
        out = subprocess.run([program("colibrictl"), "info", tiny, "--json", *options], env={**kept, **variables},
                             capture_output=True, check=True).stdout  # fmt: skip
        return bool(json.loads(out)["model"]["secure_mode"])

    assert not shown()
    assert shown("--secure")
    assert shown(COLIBRI_SECURE_MODE="1")
    assert shown("--secure", COLIBRI_SECURE_MODE="0")  # the environment only tightens


def test_python_opens_in_secure_mode_with_the_same_bits(tiny: Path) -> None:
    logits = []
    for secure in (False, True):
        with Engine(tiny, threads=1, secure_mode=secure) as engine, engine.session() as session:
            session.append(engine.tokenize(PROMPT))
            logits.append(bytes(session.logits()))
            session.reset()
            session.append(engine.tokenize(PROMPT))
            logits.append(bytes(session.logits()))
    assert len(set(logits)) == 1
