# SPDX-License-Identifier: MIT
"""colibrictl serve on a unix socket: many clients, queue, limits, life cycle; colibrictl ask."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faulty_reads
import pytest
from colibri._spec import ERROR_EXIT, Code
from faulty_reads import HEALTHY, STALL, Faults
from serving import Answer, Client, HungUp, Server, is_sanitized, request
from test_colibrictl import Outcome, assert_fails, colibri, environment, program, run
from test_serve import writable_memory

REPOSITORY = Path(__file__).resolve().parents[2]
SEED = 55
REQUESTS = 1000
THREADS = 8
LONG = {"tokens": 240, "ignore_end": True}  # nearly the whole context of the model
FULL = request("x" * 64, "a", **LONG)  # a few such answers fill a socket that nobody reads
RSS_SLACK_KIB = 64 if not is_sanitized() else 16384  # a sanitizer keeps what was freed


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model, converted from its recipe."""
    path = tmp_path_factory.mktemp("socket") / "tiny.colibri"
    colibri("convert", "--recipe", REPOSITORY / "configs" / "models" / "tiny.toml", "-o", path)
    return path


@pytest.fixture
def server(tiny: Path, tmp_path: Path) -> Iterator[Server]:
    """A server with its defaults."""
    with Server(tiny, tmp_path) as running:
        yield running


def alone(model: Path, lines: list[bytes]) -> list[Answer]:
    """What standard input answers to these lines, one by one."""
    outcome = run("serve", model, "--lock", "off", "--threads", "1", stdin=b"".join(lines))
    assert outcome.exit_code == 0, outcome.err
    answers: list[Answer] = [[]]
    for text in outcome.out.decode().splitlines():
        answers[-1].append(json.loads(text))
        if "text" not in answers[-1][-1]:
            answers.append([])
    return answers[:-1]


def assert_is_of_run(model: Path, line: bytes, answer: Answer) -> None:
    """The text and the hash of an answer are those of the other command."""
    values = json.loads(line)
    words = {"tokens": "-n", "temperature": "--temp", "top_k": "--top-k", "top_p": "--top-p", "min_p": "--min-p",
             "seed": "--seed"}  # fmt: skip
    options = [word for name, value in values.items() if name in words for word in (words[name], str(value))]
    flags = ["--ignore-end"] if values.get("ignore_end") else []
    outcome = run("run", model, "-p", values["prompt"], *options, *flags, "--logits-sha256", "--lock", "off")
    assert "".join(part.get("text", "") for part in answer).encode() == outcome.out
    assert answer[-1]["logits_sha256"] == outcome.line("logits-sha256")


def error(answer: Answer) -> str:
    """The name of the error that an answer is."""
    assert len(answer) == 1, answer
    name: str = answer[0]["name"]
    return name


def eventually(what: Any, seconds: float = 20) -> None:
    """Wait until what() is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


# ---- answers ---------------------------------------------------------------------------------------


def test_an_answer_has_the_text_and_the_hash_of_run(tiny: Path, server: Server) -> None:
    alone_out = run("run", tiny, "-p", "hello", "-n", "12", "--ignore-end", "--logits-sha256", "--lock", "off")
    with server.client() as client:
        answer = client.ask(request("a", "hello", tokens=12, ignore_end=True))
    assert "".join(line.get("text", "") for line in answer).encode() == alone_out.out
    assert (answer[-1]["id"], answer[-1]["done"], answer[-1]["tokens"]) == ("a", "length", 12)
    assert answer[-1]["logits_sha256"] == alone_out.line("logits-sha256")


def test_a_prompt_in_pieces_of_the_batch_has_the_bits_of_one_piece(tiny: Path, tmp_path: Path) -> None:
    line = request("l", "a long prompt, " * 9, tokens=8)
    with Server(tiny, tmp_path, "--batch", "3") as server, server.client() as client:
        assert client.ask(line) == alone(tiny, [line])[0]


def test_requests_of_a_client_are_answered_in_order(tiny: Path, server: Server) -> None:
    lines = [request(str(i), "abc" * i, tokens=1 + i) for i in range(12)]
    with server.client() as client:
        client.send(b"".join(lines))
        assert [client.answer() for _ in lines] == alone(tiny, lines)


def test_lines_that_come_in_pieces_are_put_together(tiny: Path, server: Server) -> None:
    line = request("p", "a", tokens=2)
    with server.client() as client:
        for byte in line:
            client.send(bytes([byte]))
        assert client.answer() == alone(tiny, [line])[0]


def test_garbage_and_blank_lines_keep_the_connection(tiny: Path, server: Server) -> None:
    good = request("ok", "a", tokens=1)
    with server.client() as client:
        client.send(b"\n \r\n\xff\xfe{}\n" + b'{"id":"x","prompt":"a","tokens":0}\n' + good)
        assert error(client.answer()) == "argument"
        refused = client.answer()
        assert (refused[0]["id"], refused[0]["error"]) == ("x", int(Code.ARGUMENT))
        assert client.answer() == alone(tiny, [good])[0]


def test_a_line_that_is_too_long_is_skipped_and_answered(tiny: Path, tmp_path: Path) -> None:
    good = request("ok", "a", tokens=1)
    with Server(tiny, tmp_path, "--max-text", "100") as server, server.client() as client:
        for size in (4295, 4296, 4297, 100000):  # 2 * 100 + 4096 with its end
            client.send(b" " * size + b"\n" + good)
            if size >= 4296:
                assert error(client.answer()) == "text_long"
            assert client.answer() == alone(tiny, [good])[0]


def test_a_half_closed_client_gets_its_answers(tiny: Path, server: Server) -> None:
    lines = [request("1", "abc", tokens=3), request("2", "xyz", tokens=4)]
    with server.client() as client:
        client.send(b"".join(lines).rstrip(b"\n"))  # the last line has no end
        client.half_close()
        assert [client.answer(), client.answer()] == alone(tiny, lines)
        with pytest.raises(HungUp):
            client.line()


def test_waiting_requests_are_answered_first_come_first_served(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(6)]
        clients[0].send(FULL * 6)  # the server waits until somebody reads its answers
        time.sleep(0.5)
        order = [3, 1, 5, 2, 4]
        times: dict[int, float] = {}

        def read(number: int) -> None:
            clients[number].answer()
            times[number] = time.monotonic()

        for number in order:
            clients[number].send(request(str(number), "b", **LONG))
            time.sleep(0.02)
        threads = [threading.Thread(target=read, args=(number,)) for number in order]
        for thread in threads:
            thread.start()
        for _ in range(6):
            clients[0].answer()
        for thread in threads:
            thread.join()
        assert sorted(order, key=lambda number: times[number]) == order


def test_more_clients_than_allowed_are_told_and_a_place_is_free_again(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, "--clients", "2") as server:
        first, second = server.client(), server.client()
        assert "done" in first.ask(request("1", "a", tokens=1))[-1]
        descriptors = server.usage().descriptors
        with server.client() as third:
            busy = third.answer()
            assert (busy[0]["error"], busy[0]["name"]) == (int(Code.BUSY), "busy")
            assert "2 clients" in busy[0]["message"]
            with pytest.raises(HungUp):
                third.line()
        assert server.usage().descriptors == descriptors
        first.close()
        with server.client() as fourth:
            assert "done" in fourth.ask(request("4", "a", tokens=1))[-1]
        second.close()


def test_an_idle_client_makes_room_for_another(tiny: Path, tmp_path: Path) -> None:
    """The one who asked nothing for longest, and not before the limit."""
    with Server(tiny, tmp_path, "--clients", "2", "--idle-seconds", "2") as server, server.client() as first:
        assert "done" in first.ask(request("1", "a", tokens=1))[-1]
        with server.client() as second:
            second.send(b'{"id":"half')  # no request yet
            with server.client() as early:
                assert error(early.answer()) == "busy"
            time.sleep(1)
            assert "done" in first.ask(request("2", "a", tokens=1))[-1]
            time.sleep(1.5)  # the second one is idle for 2.5 s, the first for 1.5
            with server.client() as third:
                assert "done" in third.ask(request("3", "a", tokens=1))[-1]
                with pytest.raises(HungUp):
                    second.line()
                assert "done" in first.ask(request("4", "a", tokens=1))[-1]


def test_a_client_that_waits_for_its_answer_is_not_idle(tiny: Path, tmp_path: Path) -> None:
    options = ("--clients", "2", "--idle-seconds", "1", "--write-seconds", "60")
    with Server(tiny, tmp_path, *options) as server, server.client() as deaf, server.client() as waiting:
        deaf.send(FULL * 6)  # the server waits for its reader
        time.sleep(0.2)
        waiting.send(request("w", "a", tokens=1))
        time.sleep(1.5)
        with server.client() as third:
            assert error(third.answer()) == "busy"
        for _ in range(6):
            assert "done" in deaf.answer()[-1]
        assert "done" in waiting.answer()[-1]


# ---- clients that leave or do not read -----------------------------------------------------------------


@pytest.mark.parametrize("phase", ["answer", "queue"])
def test_requests_of_clients_who_left_are_cancelled(tiny: Path, tmp_path: Path, phase: str) -> None:
    """The server spends no time on them."""
    with Server(tiny, tmp_path, "--batch", "1") as server, server.client() as steady:

        def seconds(*, leave: bool) -> float:
            start = server.usage().cpu_seconds
            for _ in range(8):
                with server.client() as client, server.client() as waiting:
                    client.send(FULL)
                    client.line()
                    if phase == "queue":
                        waiting.send(FULL)
                        if leave:
                            waiting.close()
                    if phase == "queue" or not leave:
                        client.answer()
                    if phase == "queue" and not leave:
                        waiting.answer()
            assert "done" in steady.ask(request("s", "a", tokens=1))[-1]
            return server.usage().cpu_seconds - start

        assert seconds(leave=True) < 0.75 * seconds(leave=False)


SLOW_CONTEXT = 2048


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with larger matrices and a longer context: a prompt takes seconds on the reference kernels."""
    folder = tmp_path_factory.mktemp("slow")
    recipe = (REPOSITORY / "configs" / "models" / "tiny.toml").read_text()
    for name, value in {"hidden": 256, "intermediate": 512, "context_tokens": SLOW_CONTEXT}.items():
        recipe, count = re.subn(rf"^{name} = \d+", f"{name} = {value}", recipe, flags=re.MULTILINE)
        assert count == 1, name
    (folder / "slow.toml").write_text(recipe)
    colibri("convert", "--recipe", folder / "slow.toml", "-o", folder / "slow.colibri")
    return folder / "slow.colibri"


def test_the_rest_of_a_long_prompt_is_not_computed_when_its_client_has_left(slow: Path, tmp_path: Path) -> None:
    """Three clients leave in theirs: together they cost less than a hundred tokens that somebody waits for."""
    some, long = 100, SLOW_CONTEXT - 48
    with Server(slow, tmp_path, "--batch", "4", "--isa", "ref") as server, server.client() as steady:

        def cost(prompt_tokens: int) -> float:
            """Processor seconds up to an answer to this many tokens."""
            start = server.usage().cpu_seconds
            answer = steady.ask(request("s", "q" * prompt_tokens, tokens=1))
            assert answer[-1]["prompt_tokens"] == prompt_tokens
            return server.usage().cpu_seconds - start

        wanted = cost(some)
        before = server.usage().cpu_seconds
        for _ in range(3):
            with server.client() as client:
                client.send(request("first", "q", tokens=1) + request("long", "q" * long, tokens=1))
                client.answer()  # and the long one begins
                begun = server.usage().cpu_seconds
                while server.usage().cpu_seconds - begun < 0.02:  # it has
                    time.sleep(0.005)
        cost(1)
        assert server.usage().cpu_seconds - before < wanted


def test_a_client_that_does_not_read_is_dropped_and_the_next_one_answered(tiny: Path, tmp_path: Path) -> None:
    expected = alone(tiny, [FULL])[0]
    with Server(tiny, tmp_path, "--write-seconds", "1") as server, server.client() as deaf, server.client() as client:
        deaf.send(FULL * 6)
        time.sleep(0.5)
        assert client.ask(FULL) == expected
        with pytest.raises(HungUp):
            [deaf.answer() for _ in range(6)]


def test_a_client_that_reads_slowly_gets_everything(tiny: Path, tmp_path: Path) -> None:
    """More slowly than the socket's buffer runs empty within the limit."""
    expected = alone(tiny, [FULL])[0]
    with Server(tiny, tmp_path, "--write-seconds", "2") as server, server.client() as slow:
        slow.send(FULL * 3)
        for i in range(3):
            for line in expected:
                assert slow.line() == line
                time.sleep(0.014 if i == 0 else 0)


def test_a_request_that_takes_too_long_is_cancelled_with_the_limit(tiny: Path, tmp_path: Path) -> None:
    """It waits for its reader, which counts."""
    with Server(tiny, tmp_path, "--request-seconds", "1") as server, server.client() as client:
        client.send(FULL * 4)
        time.sleep(2)
        answers = [client.answer() for _ in range(4)]
        failed = [answer[-1] for answer in answers if "error" in answer[-1]]
        assert {(last["id"], last["name"]) for last in failed} == {("x" * 64, "cancelled")}
        assert "took 1 seconds" in failed[0]["message"]
        assert "--request-seconds" in failed[0]["message"]


def test_the_number_of_tokens_is_limited(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, "--max-tokens", "5") as server, server.client() as client:
        assert error(client.ask(request("6", "a", tokens=6))) == "argument"
        assert client.ask(request("5", "a", tokens=5, ignore_end=True))[-1]["tokens"] == 5
        assert client.ask(request("default", "a", ignore_end=True))[-1]["tokens"] == 5


@pytest.mark.skipif(is_sanitized(), reason="the shadow of a sanitizer has terabytes")
def test_prompts_do_not_stay_in_memory(server: Server) -> None:
    """Neither those that were answered, nor those of clients who left, nor refused ones."""
    secret = "zebra-QUARTZ-83471"
    with server.client() as client, server.client() as other:
        client.ask(request("p", secret + " answered", tokens=2))
        client.ask(request(secret, "answered", tokens=2))
        client.ask(b'{"prompt":"' + secret.encode() + b'","tokens":0}\n')
        client.send(b'{"prompt":"' + b" " * 300 + secret.encode())
        other.send(request("w", secret + " left", **LONG))
        other.line()
        other.send(request("w", secret + " waits", **LONG))
        time.sleep(0.05)
    with server.client() as client:
        client.ask(request("n", "a", tokens=1))
        assert secret.encode() not in writable_memory(server.pid)


# ---- a thousand requests -----------------------------------------------------------------------------------


@dataclass
class Crowd:
    """Eight clients that behave in every way, against answers that are known."""

    server: Server
    known: list[tuple[bytes, Answer]]
    lock: threading.Lock = field(default_factory=threading.Lock)
    begun: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    early: int = 0  # resident memory behind the first hundred

    def next(self) -> bool:
        """Whether there is one more to do."""
        with self.lock:
            self.begun += 1
            if self.begun == REQUESTS // 10:
                self.early = self.server.usage().rss_kib
            return self.begun <= REQUESTS and not self.failures

    def compare(self, got: object, expected: object) -> None:
        """Record a difference."""
        if got != expected:
            self.failures.append(f"{got} is not {expected}")

    def step(self, client: Client, dice: random.Random) -> str:
        """One request; the name of what was done, which ends in "leaves" when the connection is of no more use."""
        line, expected = dice.choice(self.known)
        other, other_expected = dice.choice(self.known)
        kind = dice.choices(
            ["complete", "two at once", "garbage", "oversize", "half close leaves", "slow", "before leaves",
             "in line leaves", "in prompt leaves", "mid answer leaves"],
            [30, 8, 8, 4, 8, 6, 8, 8, 10, 10],
        )[0]  # fmt: skip
        if kind == "complete":
            self.compare(client.ask(line), expected)
        elif kind == "two at once":
            client.send(line + other)
            self.compare([client.answer(), client.answer()], [expected, other_expected])
        elif kind == "garbage":
            client.send(bytes(dice.choices(range(11, 256), k=dice.randrange(1, 300))) + b"!\n" + line)
            self.compare(error(client.answer()), "argument")
            self.compare(client.answer(), expected)
        elif kind == "oversize":
            client.send(b'{"prompt":"' + b"x" * 150000 + b'"}\n' + line)
            self.compare(error(client.answer()), "text_long")
            self.compare(client.answer(), expected)
        elif kind == "half close leaves":
            client.send(line)
            client.half_close()
            self.compare(client.answer(), expected)
        elif kind == "slow":
            client.send(line)
            for wanted in expected:
                time.sleep(0.001)
                self.compare(client.line(), wanted)
        elif kind == "in line leaves":
            client.send(line[: dice.randrange(len(line))])
        elif kind == "in prompt leaves":
            client.send(request("gone", "many words and more " * 10, **LONG))
            time.sleep(dice.random() * 0.003)
        elif kind == "mid answer leaves":
            client.send(request("gone", "a", **LONG))
            self.compare(client.line().get("id"), "gone")
        return kind

    def live(self, seed: int) -> None:
        """One of the eight."""
        dice = random.Random(seed)
        client: Client | None = None
        try:
            while self.next():
                client = client or self.server.client()
                kind = self.step(client, dice)
                with self.lock:
                    self.counts[kind] += 1
                if kind.endswith("leaves"):
                    client.close()
                    client = None
        except (OSError, HungUp, AssertionError) as problem:
            self.failures.append(f"{problem!r}: {getattr(problem, 'lines', '')}")
        finally:
            if client is not None:
                client.close()


def test_a_thousand_requests_of_eight_clients(tiny: Path, tmp_path: Path) -> None:
    lines = [
        request("a", "hello", tokens=6, ignore_end=True), request("b", "", tokens=3),
        request("c", "The quick brown fox", tokens=9, temperature=1.5, top_k=40, seed=7, ignore_end=True),
        request("d", "é€😀\n", tokens=4, temperature=0.7, top_p=0.9, seed=2**63), request("e", "x" * 300, tokens=2),
        request("f", "word " * 30, tokens=3), request('"\\', "quoted", tokens=3), request("h", "a", tokens=40),
        request("i", "q" * 5000, tokens=1), request("", "no id", tokens=1, min_p=0.1, temperature=2.0, seed=1),
    ]  # fmt: skip
    known = list(zip(lines, alone(tiny, lines), strict=True))
    assert {answer[-1].get("name", "done") for _, answer in known} == {"done", "argument", "prompt_long"}
    for line, answer in known:
        if "done" in answer[-1]:
            assert_is_of_run(tiny, line, answer)
    with Server(tiny, tmp_path, watchdog_seconds=2) as server:
        crowd = Crowd(server, known)
        before = server.usage().descriptors
        warm = [server.client() for _ in range(THREADS)]  # every line buffer was used once
        for client in warm:
            client.ask(b"x" * 140000 + b"\n")
            client.close()
        threads = [threading.Thread(target=crowd.live, args=(SEED + i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert crowd.failures == []
        assert sum(crowd.counts.values()) == REQUESTS
        assert min(crowd.counts.values()) > 10, crowd.counts
        with server.client() as client:
            line, expected = known[0]
            assert client.ask(line) == expected
        eventually(lambda: server.usage().descriptors == before)
        late = server.usage().rss_kib
        assert late - crowd.early <= RSS_SLACK_KIB, f"Rss {crowd.early} KiB after 100, {late} KiB after 1,000"
        planned = int(server.text().split("plan_bytes=")[1].split()[0])
        assert is_sanitized() or 1024 * late <= planned


# ---- life cycle ----------------------------------------------------------------------------------------------


def test_the_service_manager_hears_ready_signs_of_life_and_stopping(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, watchdog_seconds=0.2) as server, server.client() as client:
        for busy in (False, True):
            list(server.messages())
            count = 0
            start = time.monotonic()
            while time.monotonic() - start < 0.6:
                if busy:
                    client.ask(FULL)
                else:
                    time.sleep(0.01)
                count += list(server.messages()).count("WATCHDOG=1")
            periods = (time.monotonic() - start) / 0.1
            assert min(periods / 2, 10) <= count <= periods + 2  # a socket keeps no more than ten or so
        server.signal()
        assert server.wait() == 0
        assert "STOPPING=1" in list(server.messages())


def test_a_manager_at_an_abstract_address_hears_too(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, abstract=True):
        pass


def test_the_watchdog_of_another_process_is_not_fed(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, watchdog_seconds=0.02, variables={"WATCHDOG_PID": "1"}) as server:
        time.sleep(0.1)
        assert list(server.messages()) == []


def test_a_manager_that_cannot_be_reached_is_an_error(tiny: Path, tmp_path: Path) -> None:
    for path, code in ((str(tmp_path / "nobody"), Code.OPEN), ("relative", Code.ARGUMENT), ("/" * 200, Code.ARGUMENT)):
        outcome = run("serve", tiny, "--socket", tmp_path / "s", variables={"NOTIFY_SOCKET": path})
        assert_fails(outcome, code, "NOTIFY_SOCKET")
        assert not (tmp_path / "s").exists()


def test_a_server_that_waits_takes_no_time(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, watchdog_seconds=1) as server, server.client() as idle, server.client() as half:
        assert "done" in idle.ask(request("i", "a", tokens=1))[-1]
        half.send(b'{"prompt":')
        time.sleep(0.1)
        start = server.usage().cpu_seconds
        time.sleep(1)
        assert server.usage().cpu_seconds - start <= 0.02


def test_a_server_that_waits_for_a_reader_takes_no_time(server: Server) -> None:
    with server.client() as deaf:
        deaf.send(FULL * 6)
        deaf.half_close()
        time.sleep(0.5)
        start = server.usage().cpu_seconds
        time.sleep(1)
        assert server.usage().cpu_seconds - start <= 0.05


def send_together(server: Server, clients: list[Client], lines: list[bytes]) -> None:
    """All lines are there before the server reads one: else it may have answered the first when the others come."""
    server.signal(signal.SIGSTOP)
    for client, line in zip(clients, lines, strict=True):
        client.send(line)
    server.signal(signal.SIGCONT)


def test_a_stop_finishes_what_runs_and_what_waits(tiny: Path, tmp_path: Path) -> None:
    lines = [request(str(i), "abc" * (i + 1), **LONG) for i in range(4)]
    expected = alone(tiny, lines)
    with Server(tiny, tmp_path, "--drain-seconds", "100") as server:
        clients = [server.client() for _ in lines]
        send_together(server, clients, lines)
        first = clients[0].line()
        server.signal()
        assert [[first, *clients[0].answer()], *(client.answer() for client in clients[1:])] == expected
        for client in clients:
            with pytest.raises(HungUp):
                client.line()
            client.close()
        assert server.wait() == 0
        with pytest.raises(OSError, match=r"refused|No such file"):
            server.client()


def test_a_stop_without_time_cancels_and_says_so(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, "--drain-seconds", "0") as server:
        clients = [server.client() for _ in range(3)]
        send_together(server, clients, [request("d", "a", **LONG)] * 3)
        clients[0].line()
        server.signal(signal.SIGINT)
        lasts = [client.answer()[-1] for client in clients]
        assert {last.get("name") for last in lasts} <= {"cancelled", None}
        assert lasts[2]["name"] == "cancelled"
        assert "the server stops" in lasts[2]["message"]
        assert server.wait() == 0
        for client in clients:
            client.close()


def test_a_second_signal_cancels_at_once(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, "--drain-seconds", "600", "--write-seconds", "600") as server, server.client() as deaf:
        deaf.send(FULL * 6)  # the server waits for ever
        time.sleep(0.5)
        server.signal()
        time.sleep(0.3)
        assert server.process is not None
        assert server.process.poll() is None, "the first signal lets it finish"
        start = time.monotonic()
        server.signal()
        assert server.wait() == 0
        assert time.monotonic() - start < 5


def test_a_stop_right_at_the_start_of_waiting_is_not_lost(tiny: Path, tmp_path: Path) -> None:
    """Signals around the moment in which the server goes to sleep."""
    for i in range(12):
        with Server(tiny, tmp_path) as server, server.client() as client:
            client.send(request("a", "a", tokens=1))
            time.sleep(0.0005 * i)
            server.signal()
            assert server.wait() == 0


def test_a_socket_of_a_dead_server_is_replaced_and_has_the_mode(tiny: Path, tmp_path: Path) -> None:
    line = request("k", "a", tokens=2)
    with Server(tiny, tmp_path, "--socket-mode", "0600") as server:
        server.expected_exit = -signal.SIGKILL
        with server.client() as client:
            client.send(request("l", "a", **LONG))
            server.signal(signal.SIGKILL)
            server.wait()
    assert server.path.is_socket()
    with Server(tiny, tmp_path, "--socket-mode", "0640") as server, server.client() as client:
        assert stat.S_IMODE(server.path.stat().st_mode) == 0o640
        assert client.ask(line) == alone(tiny, [line])[0]


def test_the_socket_of_a_live_server_is_left_alone(tiny: Path, server: Server) -> None:
    assert_fails(run("serve", tiny, "--socket", server.path), Code.BUSY, str(server.path), "another server answers")
    with server.client() as client:
        assert "done" in client.ask(request("a", "a", tokens=1))[-1]


def bare(model: Path, path: Path) -> list[str]:
    """The command of a server that nobody manages."""
    sandbox = ["--sandbox", "off"] if is_sanitized() else []
    return [str(program()), "serve", str(model), "--socket", str(path), "--lock", "off", "--threads", "1", *sandbox]


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer wants to be the first library")
def test_the_socket_has_its_name_when_requests_are_answered(tiny: Path, tmp_path: Path) -> None:
    faults = Faults(tmp_path / "control")
    faults.set(STALL, where=(16384, 1 << 62))  # the model does not come; smaller files do
    variables = environment(faults.variables(faulty_reads.build(tmp_path)))
    process = subprocess.Popen(bare(tiny, tmp_path / "s"), stdin=subprocess.DEVNULL, env=variables)
    try:
        eventually(lambda: faults.hits > 0)
        # Another one that starts now must not take the name away.
        assert_fails(run("serve", tiny, "--socket", tmp_path / "s"), Code.BUSY, "another server")
        assert (tmp_path / "s.new").is_socket()
        assert not (tmp_path / "s").exists()
        faults.set(HEALTHY)
        eventually((tmp_path / "s").exists)
        with Client(tmp_path / "s") as client:
            assert "done" in client.ask(request("a", "a", tokens=1))[-1]
        assert not (tmp_path / "s.new").exists()
    finally:
        process.kill()
        process.wait()


def test_servers_that_start_at_once_leave_one_that_answers(tiny: Path, tmp_path: Path) -> None:
    for _ in range(5):
        command = bare(tiny, tmp_path / "s")
        many = [subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) for _ in range(6)]
        try:
            eventually(lambda many=many: sum(process.poll() is None for process in many) == 1)
            (left,) = (process for process in many if process.poll() is None)
            eventually(lambda: (tmp_path / "s").exists())
            with Client(tmp_path / "s") as client:
                assert "done" in client.ask(request("a", "a", tokens=1))[-1]
            for process in many:
                if process is not left:
                    assert process.returncode == ERROR_EXIT[Code.BUSY]
                    assert process.stderr is not None
                    assert b"another server" in process.stderr.read()
        finally:
            for process in many:
                process.kill()
                with process:  # closes the pipe, too
                    process.wait()
        assert (tmp_path / "s").is_socket()  # of a dead server: the next round replaces it


def test_a_server_that_cannot_serve_shows_no_socket(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(tiny.read_bytes()[:-1])
    outcome = run("serve", tmp_path / "broken", "--socket", tmp_path / "s", "--pid-file", tmp_path / "pid")
    assert outcome.exit_code != 0
    assert {path.name for path in tmp_path.iterdir()} == {"broken", "s.lock"}


def test_a_pid_file_that_cannot_be_written_leaves_nothing(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "pid").mkdir()
    outcome = run("serve", tiny, "--socket", tmp_path / "s", "--pid-file", tmp_path / "pid")
    assert_fails(outcome, Code.ARGUMENT, "pid file")
    assert {path.name for path in tmp_path.iterdir()} == {"pid"}


def test_what_is_no_socket_is_left_alone(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        assert_fails(run("serve", tiny, "--socket", tmp_path / name), Code.ARGUMENT, name, "no socket")
    assert (tmp_path / "file").read_text() == "precious"
    for path in (tmp_path / ("x" * 120), Path("")):
        assert_fails(run("serve", tiny, "--socket", str(path) if path.name else ""), Code.ARGUMENT, "1..103 bytes")
    assert_fails(run("serve", tiny, "--socket", tmp_path / "none" / "s"), Code.OPEN, "folder")
    for mode in ("8", "77777", "0o660", ""):
        outcome = run("serve", tiny, "--socket", tmp_path / "s", "--socket-mode", mode)
        assert_fails(outcome, Code.ARGUMENT, "--socket-mode")
    assert not (tmp_path / "s").exists()


def test_buffers_beyond_the_memory_plan_are_refused(tiny: Path, tmp_path: Path) -> None:
    outcome = run("serve", tiny, "--socket", tmp_path / "s", "--clients", "64", "--sandbox", "off")
    assert_fails(outcome, Code.ARGUMENT, "64 clients", "lower --clients to 13, or --max-text")
    one_more = run("serve", tiny, "--socket", tmp_path / "s", "--clients", "14", "--sandbox", "off")
    assert_fails(one_more, Code.ARGUMENT, "14 clients", "lower --clients to 13")
    assert not (tmp_path / "s").exists()
    with Server(tiny, tmp_path, "--clients", "13"):
        pass
    with Server(tiny, tmp_path, "--clients", "64", "--max-text", "4K") as server, server.client() as client:
        assert "done" in client.ask(request("a", "a", tokens=1))[-1]


def listening(path: Path) -> socket.socket:
    """A socket as a service manager makes it."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    made.listen(4)
    return made


def test_a_socket_that_is_passed_by_number_is_used(tiny: Path, tmp_path: Path) -> None:
    with listening(tmp_path / "s") as passed:
        number = passed.fileno()
        server = Server(tiny, tmp_path, "--socket-fd", str(number)).start(pass_fds=[number])
        with server, server.client() as client:
            assert "done" in client.ask(request("a", "a", tokens=1))[-1]
    assert (tmp_path / "s").is_socket(), "it belongs to who made it"


def test_socket_activation(tiny: Path, tmp_path: Path) -> None:
    """The manager's first descriptor, for the process that it names."""
    with listening(tmp_path / "s") as passed, Client(tmp_path / "s") as early:
        server = Server(tiny, tmp_path, "--socket-fd", "3", variables={"LISTEN_FDS": "1"})
        server.command = [word for word in server.command if word not in ("--socket-fd", "3")]
        early.send(request("early", "a", tokens=1))
        number = passed.fileno()
        shell = ["bash", "-c", f'export LISTEN_PID=$$; exec 3<&{number}; exec "$@"', "bash"]
        with server.start(*shell, pass_fds=[number]):
            assert early.answer()[-1]["id"] == "early"


def test_a_descriptor_that_is_no_listening_socket_is_refused(tiny: Path, tmp_path: Path) -> None:
    left, right = socket.socketpair()
    with left, right, (tmp_path / "file").open("w") as file, socket.socket() as network:
        network.bind(("127.0.0.1", 0))
        network.listen()
        for number in (left.fileno(), file.fileno(), network.fileno(), 1000):
            done = subprocess.run(
                [program(), "serve", tiny, "--socket-fd", str(number)], capture_output=True, text=True, check=False,
                pass_fds=[number] if number != 1000 else [],
            )  # fmt: skip
            assert done.returncode == ERROR_EXIT[int(Code.ARGUMENT)]
            assert f"descriptor {number} is no listening unix stream socket" in done.stderr


def test_the_pid_file_names_the_process(tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with Server(tiny, tmp_path, "--pid-file", file, "--sandbox", "off") as server:
        assert file.read_text() == f"{server.pid}\n"
    assert not file.exists()
    assert not server.path.exists()
    assert_fails(run("serve", tiny, "--socket", tmp_path / "s", "--pid-file", tmp_path / "no" / "pid"), Code.IO, "pid")
    assert not server.path.exists()


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer makes system calls of its own")
def test_a_server_closes_itself_in(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, "--threads", "4", "--pid-file", tmp_path / "pid") as server, server.client() as client:
        assert "done" in client.ask(request("a", "a", tokens=1))[-1]
        status = dict(row.split(":\t") for row in Path(f"/proc/{server.pid}/status").read_text().splitlines())
        assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    assert (tmp_path / "s").is_socket(), "nothing can be removed from inside: the next server does it"


# ---- colibrictl ask --------------------------------------------------------------------------------------------


def ask(server: Server, *arguments: str | bytes, stdin: bytes = b"") -> Outcome:
    """The client."""
    return run("ask", server.path, *arguments, stdin=stdin)


def test_ask_prints_what_run_prints(tiny: Path, server: Server, tmp_path: Path) -> None:
    sampler = ("--temp", "1.3", "--top-k", "50", "--top-p", "0.9", "--min-p", "0.01", "--seed", "77")
    options = ("-n", "16", "--ignore-end", *sampler)
    prompt = 'a "quoted" \\ prompt\n\twith é€😀 and \x01'
    expected = run("run", tiny, "-p", prompt, *options, "--lock", "off", "-q").out
    (tmp_path / "prompt").write_text(prompt, encoding="utf-8")
    for how in (("-p", prompt), ("-f", str(tmp_path / "prompt")), ("-",)):
        outcome = ask(server, *how, *options, stdin=prompt.encode())
        assert (outcome.exit_code, outcome.out, outcome.err) == (0, expected, "")
    chat = ask(server, "-p", "hello", "-n", "4", "--chat")
    assert chat.out == run("run", tiny, "-p", "hello", "-n", "4", "--chat", "--lock", "off", "-q").out


def test_ask_passes_lines_on(tiny: Path, server: Server) -> None:
    outcome = ask(server, "-p", "hello", "-n", "3", "--json")
    lines = [json.loads(line) for line in outcome.out.decode().splitlines()]
    assert lines == alone(tiny, [request("", "hello", tokens=3)])[0]
    refused = ask(server, "-p", "", "--json")
    assert refused.exit_code == ERROR_EXIT[int(Code.ARGUMENT)]
    assert json.loads(refused.out)["name"] == "argument"


def test_ask_ends_with_the_exit_code_of_the_error(tiny: Path, server: Server) -> None:
    assert_fails(ask(server, "-p", ""), Code.ARGUMENT, "no tokens")
    assert_fails(ask(server, "-p", "x" * 5000), Code.PROMPT_LONG, "--context")
    assert_fails(ask(server, "-p", "x" * 70000), Code.TEXT_LONG, "--max-text")
    assert_fails(ask(server, "-p", b"\xff"), Code.ARGUMENT, "invalid UTF-8")
    assert_fails(ask(server, "-p", "a", "-n", "300"), Code.ARGUMENT, "tokens is 300, more than 256")
    full = ask(server, "-p", "abc", "-n", "256", "--ignore-end")
    assert_fails(full, Code.CONTEXT_FULL)
    assert full.out != b""


def test_ask_says_when_nobody_answers(tiny: Path, tmp_path: Path) -> None:
    assert_fails(run("ask", tmp_path / "s", "-p", "a"), Code.OPEN, "does colibrictl serve --socket run?")
    with listening(tmp_path / "s"):
        pass
    assert_fails(run("ask", tmp_path / "s", "-p", "a"), Code.OPEN, "refused")
    for arguments in ((), ("-p", "a", "-"), ("a",), ("-p", "a", "-f", "b")):
        assert_fails(run("ask", tmp_path / "s", *arguments), Code.ARGUMENT, "one prompt")
    assert_fails(run("ask", "x" * 200, "-p", "a"), Code.ARGUMENT, "1..107 bytes")


@pytest.mark.parametrize(
    ("reply", "code", "fragment"),
    [
        (b"", Code.IO, "hung up"),
        (b'{"id":"","text":"a"}\n', Code.IO, "hung up"),
        (b'{"id":"","text":"a"', Code.IO, "hung up"),
        (b"HTTP/1.1 400 Bad Request\r\n", Code.IO, "no answer of colibrictl serve"),
        (b'{"id":"","error":5,"name":"x","message":"y"}\n', Code.IO, "no answer of colibrictl serve"),
        (b'{"id":"","text":"a","done":"end"}\n', Code.IO, "no answer of colibrictl serve"),
        (b"x" * 100000 + b"\n", Code.IO, "too long"),
        (b'{"id":"","error":-61,"name":"busy","message":"later \\u001b[31m"}\n', Code.BUSY, "later ?[31m"),
        (b'{"id":"","error":-2147483647,"name":"new"}\n', None, "-2147483647 unknown"),
    ],
)
def test_ask_bears_whatever_a_server_says(tmp_path: Path, reply: bytes, code: Code | None, fragment: str) -> None:
    with listening(tmp_path / "s") as hostile:

        def answer() -> None:
            connection, _ = hostile.accept()
            with connection:
                connection.recv(4096)
                with contextlib.suppress(OSError):
                    connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        outcome = run("ask", tmp_path / "s", "-p", "a")
        thread.join()
    assert outcome.exit_code != 0
    assert fragment in outcome.err
    if code is not None:
        assert_fails(outcome, code)


def test_ask_gives_up_in_time(tmp_path: Path) -> None:
    with listening(tmp_path / "s"):
        start = time.monotonic()
        outcome = run("ask", tmp_path / "s", "-p", "a", "--timeout-seconds", "1")
        assert_fails(outcome, Code.CANCELLED, "after 1 seconds", "--timeout-seconds")
        assert 0.9 < time.monotonic() - start < 20


def test_ask_gives_up_in_time_where_nobody_takes_clients(tmp_path: Path) -> None:
    with listening(tmp_path / "s"), contextlib.ExitStack() as stack:
        for _ in range(1000):  # until the queue of the socket is full
            client = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.setblocking(False)
            try:
                client.connect(str(tmp_path / "s"))
            except BlockingIOError:
                break
        start = time.monotonic()
        outcome = run("ask", tmp_path / "s", "-p", "a", "--timeout-seconds", "1")
        assert_fails(outcome, Code.OPEN, "takes no clients", "--timeout-seconds")
        assert 0.9 < time.monotonic() - start < 20


def test_the_prompt_of_ask_is_not_in_the_list_of_processes(tmp_path: Path) -> None:
    secret = "zebra-QUARTZ-83471"
    with (
        listening(tmp_path / "s") as deaf,
        subprocess.Popen([program(), "ask", tmp_path / "s", "-p", secret], stderr=subprocess.DEVNULL) as process,
    ):
        connection, _ = deaf.accept()
        with connection:
            assert secret.encode() in connection.recv(4096)
            assert secret.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.wait()
    assert os.path.exists(tmp_path / "s")
