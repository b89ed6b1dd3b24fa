# SPDX-License-Identifier: MIT
"""colibrictl serve: the strict request parser against Python's json, answers, errors, endings."""

from __future__ import annotations

import json
import random
import signal
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from native_cases import assert_passes
from native_cases import program as native_program
from test_colibrictl import TIMEOUT_SECONDS, Outcome, colibri, environment, program, run

REPOSITORY = Path(__file__).resolve().parents[2]
SEED = 20

FIELDS: dict[str, tuple[type, float, float]] = {
    "tokens": (int, 1, 1048576), "top_k": (int, 0, 1048576), "seed": (int, 0, 2**64 - 1),
    "temperature": (float, 0, 100), "top_p": (float, 0, 1), "min_p": (float, 0, 1),
}  # fmt: skip
DEFAULTS: dict[str, Any] = {
    "id": "", "chat": False, "ignore_end": False, "tokens": 128, "temperature": 0.0, "top_k": 0,
    "top_p": 1.0, "min_p": 0.0, "seed": 0,
}  # fmt: skip


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model, converted from its recipe."""
    path = tmp_path_factory.mktemp("serve") / "tiny.colibri"
    colibri("convert", "--recipe", REPOSITORY / "configs" / "models" / "tiny.toml", "-o", path)
    return path


# ---- the parser, against another one ---------------------------------------------------------------


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ."""
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


class Literal(str):
    """A number as it is written."""


def refuse_constant(name: str) -> None:
    raise ValueError(name)


def expected(line: bytes) -> dict[str, Any] | None:
    """What docs/protocol.md says of a line; None: an error."""
    try:
        value = json.loads(
            line.decode("utf-8"), object_pairs_hook=once, parse_int=Literal, parse_float=Literal,
            parse_constant=refuse_constant,
        )  # fmt: skip
        if not isinstance(value, dict) or not value.keys() <= {"prompt", *DEFAULTS}:
            return None
        for name, item in value.items():
            if name in FIELDS:
                kind, low, high = FIELDS[name]
                if type(item) is not Literal or len(item) > 30:
                    return None
                number = single(float(item)) if kind is float else int(item)
                if (kind is int and not item.isdigit()) or not low <= number <= high:
                    return None
                value[name] = number
            elif type(item) is not (bool if name in ("chat", "ignore_end") else str):
                return None
        strings = [value.get("id", ""), value["prompt"]]
        if any(0xD800 <= ord(c) < 0xE000 for text in strings for c in text):
            return None
        if len(strings[0].encode()) > 64 or "\0" in strings[0]:
            return None
    except (ValueError, KeyError, OverflowError):
        return None
    return {**DEFAULTS, **value}


def single(number: float) -> float:
    """Rounded to binary32, as the sampler keeps it."""
    rounded: float = struct.unpack("<f", struct.pack("<f", number))[0]
    return rounded


def parse(lines: list[bytes]) -> list[dict[str, Any] | None]:
    """What the C parser makes of them."""
    done = subprocess.run(
        [native_program("fuzz_request")], input=b"".join(line + b"\n" for line in lines),
        capture_output=True, check=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    answers: list[dict[str, Any] | None] = []
    for row in done.stdout.decode().splitlines():
        if row.startswith("refused: "):
            answers.append(None)
            continue
        tokens, chat, ignore_end, top_k, seed, temperature, top_p, min_p, name, prompt = row.split(" ")
        answers.append({
            "tokens": int(tokens), "chat": chat == "1", "ignore_end": ignore_end == "1",
            "top_k": int(top_k), "seed": int(seed), "temperature": single(float(temperature)),
            "top_p": single(float(top_p)), "min_p": single(float(min_p)),
            "id": bytes.fromhex(name[1:]).decode(), "prompt": bytes.fromhex(prompt[1:]).decode(),
        })  # fmt: skip
    return answers


ACCEPTED = [
    b'{"prompt":"a"}',
    b' { "prompt" : "a" , "id" : "7" } \r',
    b'{"prompt":"","chat":true,"ignore_end":false}',
    '{"prompt":"é€😀 \\u00e9\\u20AC\\ud83d\\uDE00 \\"\\\\\\/\\b\\f\\n\\r\\t\\u0000"}'.encode(),
    b'{"prompt":"a","tokens":1,"seed":18446744073709551615,"top_k":1048576}',
    b'{"prompt":"a","temperature":1e1,"top_p":0.25,"min_p":5E-2,"temperature2":1}'.replace(b',"temperature2":1', b""),
    b'{"prompt":"a","temperature":100.0,"top_p":0,"min_p":-0.0}',
    b'{"\\u0070rompt":"a key may be escaped"}',
    b'{"prompt":"a","id":"' + b"x" * 64 + b'"}',
]
REFUSED = [
    b"", b"{", b"{}", b"[]", b'"prompt"', b"null", b'{"prompt":"a"', b'{"prompt":"a",}', b'{,"prompt":"a"}',
    b'{"prompt":"a"}x', b'{"prompt":"a"}{"prompt":"a"}', b'{"prompt":"a","prompt":"a"}', b'{"prompt":null}',
    b'{"prompt":1}', b'{"prompt":["a"]}', b'{"prompt":{"a":1}}', b'{"prompt":"a","tokens":0}',
    b'{"prompt":"a","tokens":1.0}', b'{"prompt":"a","tokens":"1"}', b'{"prompt":"a","tokens":-1}',
    b'{"prompt":"a","tokens":01}', b'{"prompt":"a","tokens":1048577}', b'{"prompt":"a","tokens":4294967297}',
    b'{"prompt":"a","seed":18446744073709551616}', b'{"prompt":"a","temperature":100.1}',
    b'{"prompt":"a","temperature":NaN}', b'{"prompt":"a","temperature":Infinity}',
    b'{"prompt":"a","temperature":1e999}',
    b'{"prompt":"a","temperature":.5}', b'{"prompt":"a","temperature":1.}', b'{"prompt":"a","temperature":+1}',
    b'{"prompt":"a","temperature":1e}', b'{"prompt":"a","temperature":0x1}', b'{"prompt":"a","top_p":1.0000001}',
    b'{"prompt":"a","chat":1}', b'{"prompt":"a","chat":True}', b'{"prompt":"a","id":7}', b'{"prompt":"a","stop":"b"}',
    b'{"prompt":"a","id":"' + b"x" * 65 + b'"}', b'{"prompt":"a","id":"\\u0000"}', b'{"prompt":"\\ud800"}',
    b'{"prompt":"\\udc00\\ud800"}', b'{"prompt":"\\ud800\\u0041"}', b'{"prompt":"\\x41"}', b'{"prompt":"\\u12g4"}',
    b'{"prompt":"\x01"}', b'{"prompt":"\t"}', b'{"prompt":"\xff"}', b'{"prompt":"\xc0\x80"}',
    b'{"prompt":"\xed\xa0\x80"}',
    b'{"prompt":"\xf4\x90\x80\x80"}', b'{"prompt":"\xe2\x82"}', b"{'prompt':'a'}", b'{"prompt":"a"/**/}',
    b"\xef\xbb\xbf{}",
    b'{"prompt":"a","temperature":0.1234567890123456789012345678901}',
]  # fmt: skip


def test_requests_that_the_protocol_allows_are_read() -> None:
    answers = parse(ACCEPTED)
    assert None not in answers
    assert answers == [expected(line) for line in ACCEPTED]


def test_requests_that_the_protocol_forbids_are_refused() -> None:
    assert [expected(line) for line in REFUSED] == [None] * len(REFUSED)
    assert parse(REFUSED) == [None] * len(REFUSED)


def mutated(generator: random.Random) -> bytes:
    """A request with a few characters changed, left out or put in."""
    line = bytearray(generator.choice(ACCEPTED))
    for _ in range(generator.randrange(4)):
        at = generator.randrange(len(line) + 1)
        piece = generator.choice(
            [b"\\", b'"', b"{", b"}", b",", b":", b"0", b"1e5", b" ", b"\\u0041", b"\xc3\xa9", b"\x80", b"true"]
        )
        line[at : at + generator.randrange(2)] = piece
    return bytes(line).replace(b"\n", b"")


def test_both_parsers_agree_on_changed_requests() -> None:
    generator = random.Random(SEED)
    lines = [mutated(generator) for _ in range(20000)]
    answers = parse(lines)
    wanted = [expected(line) for line in lines]
    for line, answer, want in zip(lines, answers, wanted, strict=True):
        assert answer == want, line
    assert 2000 < sum(want is not None for want in wanted) < 18000, "the mutations reach one side only"


def test_no_mutation_breaks_the_promises_of_the_fuzz_target() -> None:
    assert_passes("fuzz_request", "--mutations", "50000", "--seed", "5")


# ---- the command -----------------------------------------------------------------------------------


def serve(model: Path, *requests: bytes, arguments: tuple[str, ...] = ()) -> tuple[Outcome, list[dict[str, Any]]]:
    """Give it all the lines at once: what it left, and its answers."""
    outcome = run("serve", model, "--lock", "off", *arguments, stdin=b"".join(line + b"\n" for line in requests))
    return outcome, [json.loads(line) for line in outcome.out.decode().splitlines()]


def request(name: str, prompt: str, **values: Any) -> bytes:
    return json.dumps({"id": name, "prompt": prompt, **values}).encode()


def test_an_answer_has_the_text_and_the_hash_of_run(tiny: Path) -> None:
    outcome, answers = serve(tiny, request("a", "hello", tokens=12, ignore_end=True))
    assert outcome.exit_code == 0, outcome.err
    alone = run("run", tiny, "-p", "hello", "-n", "12", "--ignore-end", "--logits-sha256", "--lock", "off")
    assert "".join(answer.get("text", "") for answer in answers).encode() == alone.out
    last = answers[-1]
    assert (last["id"], last["done"], last["tokens"]) == ("a", "length", 12)
    assert last["logits_sha256"] == alone.line("logits-sha256")
    assert all(answer.keys() == {"id", "text"} for answer in answers[:-1])


def test_requests_do_not_see_each_other(tiny: Path) -> None:
    """The same request first, and behind one with another text, sampler and an error."""
    _, first = serve(tiny, request("x", "abc", tokens=8))
    _, later = serve(
        tiny, request("1", "something else", tokens=9, temperature=2.0, seed=4), b'{"prompt":1}', b"", b"  \r",
        request("x", "abc", tokens=8),
    )  # fmt: skip
    assert [answer for answer in later if answer["id"] == "x"] == first


def test_sampling_follows_the_seed_as_in_run(tiny: Path) -> None:
    _, answers = serve(
        tiny, request("s", "hello", tokens=16, temperature=1.5, top_k=50, top_p=0.9, seed=77, ignore_end=True)
    )
    alone = run(
        "run", tiny, "-p", "hello", "-n", "16", "--temp", "1.5", "--top-k", "50", "--top-p", "0.9", "--seed", "77",
        "--ignore-end", "--logits-sha256", "--lock", "off",
    )  # fmt: skip
    assert answers[-1]["logits_sha256"] == alone.line("logits-sha256")


def test_errors_name_the_request_and_the_next_one_is_answered(tiny: Path) -> None:
    outcome, answers = serve(
        tiny, b'{"id":"bad","prompt":"a","tokens":0}', b"garbage", request("empty", ""), request("ok", "a", tokens=1),
        arguments=("--context", "64"),
    )  # fmt: skip
    assert outcome.exit_code == 0
    errors = [(answer["id"], answer["name"]) for answer in answers if "error" in answer]
    assert errors == [("bad", "argument"), ("", "argument"), ("empty", "argument")]
    assert "byte 34: tokens is 0, not a whole number in 1..1048576" in answers[0]["message"]
    assert answers[-1]["id"] == "ok"
    assert "done" in answers[-1]


def test_a_prompt_or_a_line_that_is_too_long_is_an_error_and_no_more(tiny: Path) -> None:
    _, answers = serve(
        tiny, request("text", "x" * 101), b'{"id":"line","prompt":"' + b"x" * 20000 + b'"}',
        request("context", "q" * 60), request("ok", "a", tokens=1), arguments=("--max-text", "100", "--context", "16"),
    )  # fmt: skip
    assert [answer.get("name") for answer in answers if "error" in answer] == ["text_long", "text_long", "prompt_long"]
    assert [answer["id"] for answer in answers if "error" in answer] == ["text", "", "context"]
    assert answers[-1]["id"] == "ok"


def test_a_full_context_ends_with_an_error_behind_the_text(tiny: Path) -> None:
    _, answers = serve(tiny, request("f", "abc", tokens=8, ignore_end=True), arguments=("--context", "8"))
    assert answers[-1]["name"] == "context_full"


def test_a_last_line_without_an_end_is_answered(tiny: Path) -> None:
    outcome = run("serve", tiny, "--lock", "off", stdin=request("z", "a", tokens=1))
    assert json.loads(outcome.out.decode().splitlines()[-1])["id"] == "z"


def test_lines_that_come_in_pieces_are_put_together(tiny: Path) -> None:
    with subprocess.Popen(
        [program(), "serve", tiny, "--lock", "off"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = request("p", "a", tokens=1) + b"\n"
        for at in range(0, len(line), 7):
            process.stdin.write(line[at : at + 7])
            process.stdin.flush()
            time.sleep(0.002)
        answers: list[dict[str, Any]] = []
        while not answers or "done" not in answers[-1]:
            answers.append(json.loads(process.stdout.readline()))
        assert answers[-1]["id"] == "p"
        process.stdin.close()
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_a_signal_cancels_the_request_and_ends_the_process(tiny: Path) -> None:
    with subprocess.Popen(
        [program(), "serve", tiny, "--lock", "off", "--context", "256"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environment(),
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request("p", "a", tokens=1) + b"\n")
        process.stdin.flush()
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0


def test_a_reader_that_left_ends_the_process(tiny: Path) -> None:
    with subprocess.Popen(
        [program(), "serve", tiny, "--lock", "off"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(request("p", "a", tokens=4) + b"\n")
        process.stdin.close()
        assert process.wait(TIMEOUT_SECONDS) == 1
        assert b"the reader closed it" in process.stderr.read()


def test_the_prompt_does_not_stay_in_memory(tiny: Path) -> None:
    """The text of an answered request is in no writable page of the waiting process."""
    secret = "zebra-QUARTZ-83471"
    with subprocess.Popen(
        [program(), "serve", tiny, "--lock", "off"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request("p", secret, tokens=1) + b"\n")
        process.stdin.flush()
        while b'"done"' not in process.stdout.readline():
            pass
        time.sleep(0.2)
        assert secret.encode() not in writable_memory(process.pid)
        process.stdin.close()
        assert process.wait(TIMEOUT_SECONDS) == 0


def writable_memory(pid: int) -> bytes:
    """The contents of every private writable mapping."""
    pieces = []
    with open(f"/proc/{pid}/maps", encoding="ascii") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for row in maps:
            span, mode, *_ = row.split()
            if mode.startswith("rw"):
                low, high = (int(word, 16) for word in span.split("-"))
                memory.seek(low)
                pieces.append(memory.read(high - low))
    return b"".join(pieces)
