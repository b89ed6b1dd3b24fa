# SPDX-License-Identifier: MIT
"""colibrictl serve and ask where limits, files and descriptors are not what they expect."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from colibri._spec import ERROR_EXIT, Code
from serving import Server, is_sanitized, request
from test_colibrictl import TIMEOUT_SECONDS, Outcome, assert_fails, colibri, environment, program, run
from test_install import SHIM
from test_serve import writable_memory

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model, converted from its recipe."""
    path = tmp_path_factory.mktemp("surroundings") / "tiny.colibri"
    colibri("convert", "--recipe", REPOSITORY / "configs" / "models" / "tiny.toml", "-o", path)
    return path


def eventually(what: Callable[[], object], seconds: float = 20) -> None:
    """Wait until what() is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def limited(limits: str, *arguments: str | Path) -> Outcome:
    """Run colibrictl below these words of a shell, e.g. ulimit."""
    done = subprocess.run(
        ["bash", "-c", f'{limits}; exec "$@"', "bash", program(), *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=TIMEOUT_SECONDS, env=environment(),
    )  # fmt: skip
    return Outcome(done.returncode, done.stdout, done.stderr.decode())


# ---- descriptors -----------------------------------------------------------------------------------


def test_fewer_descriptors_than_the_clients_need_are_refused_with_the_number(tiny: Path, tmp_path: Path) -> None:
    options = ("serve", tiny, "--socket", tmp_path / "s", "--sandbox", "off", "--lock", "off")
    for limit in (8, 12):
        outcome = limited(f"ulimit -n {limit}", *options)
        assert_fails(outcome, Code.MEMORY, f"RLIMIT_NOFILE is {limit}, 8 clients need", "LimitNOFILE=", "--clients")
        assert list(tmp_path.iterdir()) == []
    needed = int(outcome.err.partition("`ulimit -n ")[2].partition("`")[0])
    assert needed >= 3 + 8
    with Server(tiny, tmp_path).start("bash", "-c", f'ulimit -n {needed}; exec "$@"', "bash") as server:
        clients = [server.client() for _ in range(8)]
        assert ["done" in client.ask(request("a", "a", tokens=1))[-1] for client in clients] == [True] * 8
        for client in clients:
            client.close()


def test_a_server_that_cannot_wait_any_more_ends_with_an_error(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path, watchdog_seconds=0.2) as server:
        server.expected_exit = ERROR_EXIT[int(Code.IO)]
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (8, 8))  # fewer than poll has places
        assert server.wait() == ERROR_EXIT[int(Code.IO)]
        assert "cannot wait for 8 clients: Invalid argument" in server.text()


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library between a command and libc."""
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", folder / "shim.so", folder / "shim.c", "-ldl"], check=True)
    return folder / "shim.so"


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer wants to be the first library")
@pytest.mark.parametrize("words", [("serve",), ("run", "-")])
def test_a_closed_standard_input_is_an_error_where_there_is_no_dev_null(
    words: tuple[str, ...], tiny: Path, shim: Path
) -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", program(), words[0], tiny, *words[1:], "--lock", "off"],
        capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS,
        env=environment({"LD_PRELOAD": str(shim), "NO_ACCESS": "null"}),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (ERROR_EXIT[int(Code.IO)], "")
    assert "standard input: cannot read " in done.stderr
    assert "Invalid argument" in done.stderr


# ---- signals ---------------------------------------------------------------------------------------


@pytest.mark.skipif(is_sanitized(), reason="a sanitizer wants to be the first library")
@pytest.mark.parametrize("waits_for", ["a request", "a reader"])
def test_a_signal_right_in_front_of_a_wait_is_not_lost(waits_for: str, tiny: Path, shim: Path) -> None:
    end, other_end = os.pipe()
    variables = environment({"LD_PRELOAD": str(shim), "FAULT": "wait:1:term"})
    if waits_for == "a request":
        done = subprocess.run(
            [program(), "serve", tiny, "--lock", "off"], stdin=end, capture_output=True, text=True, check=False,
            timeout=TIMEOUT_SECONDS, env=variables,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, "")
    else:
        os.set_blocking(other_end, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(other_end, bytes(4096))
        done = subprocess.run(
            [program(), "run", tiny, "--ids", "1", "-n", "4", "--lock", "off"], stdin=subprocess.DEVNULL,
            stdout=other_end, stderr=subprocess.PIPE, text=True, check=False, timeout=TIMEOUT_SECONDS, env=variables,
        )  # fmt: skip
        assert done.returncode == ERROR_EXIT[int(Code.CANCELLED)]
        assert "interrupted by signal 15" in done.stderr
    os.close(end)
    os.close(other_end)


# ---- files that are there already ------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes | None]:
    """Name and bytes of everything in a folder; None: it is no regular file."""
    return {
        path.name: path.read_bytes() if path.is_file() and not path.is_symlink() else None for path in folder.iterdir()
    }


def make(path: Path, kind: str) -> None:
    """Something that is in the way."""
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(path.parent / "m")
    elif kind == "hard link":
        path.hardlink_to(path.parent / "m")
    else:
        path.write_text(kind)


@pytest.mark.parametrize(
    ("place", "kind", "options"),
    [
        ("p", "hard link", ("--pid-file", "p")),
        ("m.golden.json", '{"golden": 1}', ("--pid-file", "m.golden.json")),
        ("p", "123 and more", ("--pid-file", "p")),
        ("p", "1" * 24, ("--pid-file", "p")),
        ("p", "fifo", ("--pid-file", "p")),
        ("p", "folder", ("--pid-file", "p")),
        ("p", "link", ("--pid-file", "p")),
        ("p.new", "hard link", ("--pid-file", "p")),
        ("p.new", "fifo", ("--pid-file", "p")),
        ("p.new", "link", ("--pid-file", "p")),
        ("p.new", "folder", ("--pid-file", "p")),
        ("s.new", "precious", ()),
        ("s.new", "hard link", ()),
        ("s.new", "link", ()),
        ("s.new", "fifo", ()),
        ("s.lock", "precious", ()),
        ("s.lock", "fifo", ()),
        ("s.lock", "folder", ()),
        ("other", "", ("--pid-file", "m")),
        ("other", "", ("--pid-file", "s")),
        ("other", "", ("--pid-file", "./s")),
        ("other", "", ("--pid-file", "s.lock")),
        ("other", "", ("--pid-file", "s.new")),
        ("other", "", ("--socket", "x.new", "--pid-file", "x")),
        ("other", "", ("--socket", "m")),
    ],
)
def test_no_file_is_lost_because_a_server_makes_one_of_its_name(
    tiny: Path, tmp_path: Path, place: str, kind: str, options: tuple[str, ...]
) -> None:
    (tmp_path / "m").write_bytes(tiny.read_bytes())
    make(tmp_path / place, kind)
    before = contents(tmp_path)
    command = ("serve", "m", "--lock", "off", "--sandbox", "off", "--socket", "s", *options)
    outcome = limited(f"cd {tmp_path}", *command)
    assert_fails(outcome, Code.ARGUMENT, "give another --pid-file" if "--pid-file" in options else "--socket")
    after = contents(tmp_path)
    assert after == {**({"s.lock": b""} if "s.lock" in after else {}), **before}  # the lock stays


def test_files_of_a_server_that_died_are_replaced(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "p").write_text("123\n")
    (tmp_path / "p.new").write_text("12")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(tmp_path / "s.new"))
    with Server(tiny, tmp_path, "--pid-file", tmp_path / "p") as server, server.client() as client:
        assert (tmp_path / "p").read_text() == f"{server.pid}\n"
        assert "done" in client.ask(request("a", "a", tokens=1))[-1]
        assert not {"p.new", "s.new"} & set(contents(tmp_path))


def test_the_socket_of_a_live_server_is_not_removed_as_a_leftover(tiny: Path, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as live:
        live.bind(str(tmp_path / "s.new"))
        live.listen()
        outcome = limited("true", "serve", tiny, "--socket", tmp_path / "s", "--sandbox", "off")
        assert_fails(outcome, Code.BUSY, "s.new", "another server")
        assert (tmp_path / "s.new").is_socket()


def test_the_files_of_a_server_are_of_use_whatever_the_umask_is(tiny: Path, tmp_path: Path) -> None:
    server = Server(tiny, tmp_path, "--pid-file", tmp_path / "p")
    with server.start("bash", "-c", 'umask 0777; exec "$@"', "bash"):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert (modes["s"], modes["s.lock"], modes["p"]) == (0o660, 0o600, 0o644)


def test_the_lock_of_a_server_is_open_for_reading_alone(tiny: Path, tmp_path: Path) -> None:
    with Server(tiny, tmp_path) as server:
        (number,) = (
            entry.name for entry in Path(f"/proc/{server.pid}/fd").iterdir() if os.readlink(entry).endswith("/s.lock")
        )
        (flags,) = re.findall(r"^flags:\s+(\d+)$", Path(f"/proc/{server.pid}/fdinfo/{number}").read_text(), re.M)
        assert int(flags, 8) & os.O_ACCMODE == os.O_RDONLY


# ---- what ask sends and prints ---------------------------------------------------------------------


def sent_by_ask(folder: Path, prompt: bytes) -> bytes:
    """The line that it writes for a prompt."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "a"))
        listener.listen()
        with subprocess.Popen(
            [program(), "ask", folder / "a", "-"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
        ) as process:
            assert process.stdin is not None
            process.stdin.write(prompt)
            process.stdin.close()
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as file:
                return file.readline()


def test_ask_writes_no_character_longer_than_json_needs(tmp_path: Path) -> None:
    every = bytes(range(0x80)) + "é€😀".encode()
    line = sent_by_ask(tmp_path, every)
    assert json.loads(line)["prompt"].encode() == every
    wanted = json.dumps(every.decode(), ensure_ascii=False).encode()
    assert line.partition(b'"prompt":')[2] == wanted + b"}\n"


def test_ask_takes_a_text_of_lines_as_long_as_the_server_does(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("1\t2\n" * 16384)  # 64 KiB, the largest: half of it is escaped
    with Server(tiny, tmp_path) as server:
        assert_fails(run("ask", server.path, "-f", tmp_path / "text"), Code.PROMPT_LONG, "--context")


@pytest.mark.parametrize("options", [("--json",), ()])
def test_no_line_of_a_server_steers_the_terminal_of_ask(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Neither an answer, nor what is none."""
    lines = (b'{"id":"","text":"a\xc2\x9b2Jb\x7f"}\n', b'\x1b]0;title\x07{"id":\xc2\x9b\n')
    ours, terminal = os.openpty()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "a"))
        listener.listen()
        with subprocess.Popen(
            [program(), "ask", tmp_path / "a", "-p", "x", *options], stdout=terminal, stderr=subprocess.DEVNULL,
            env=environment(),
        ) as process:  # fmt: skip
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"".join(lines))
            assert process.wait(TIMEOUT_SECONDS) == ERROR_EXIT[int(Code.IO)]
    os.set_blocking(ours, False)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    os.close(terminal)
    assert "a\ufffd2Jb" in shown
    assert [c for c in shown if c not in "\r\n" and (c < " " or "\x7f" <= c < "\xa0")] == []


# ---- sockets and descriptors of others -------------------------------------------------------------


@pytest.mark.parametrize("how", [socket.SHUT_RDWR, socket.SHUT_RD])
def test_a_listener_that_its_owner_shut_down_ends_the_server_behind_a_drain(
    tiny: Path, tmp_path: Path, how: int
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as passed:
        passed.bind(str(tmp_path / "s"))
        passed.listen()
        server = Server(tiny, tmp_path, "--socket-fd", str(passed.fileno())).start(pass_fds=[passed.fileno()])
        server.expected_exit = ERROR_EXIT[int(Code.IO)]
        with server, server.client() as client:
            client.send(request("a", "a", tokens=200, ignore_end=True))
            client.line()
            passed.shutdown(how)
            assert client.answer()[-1]["done"] == "length"
            assert server.wait() == ERROR_EXIT[int(Code.IO)]
            assert "shut down the listening socket" in server.text()


# ---- memory of requests ----------------------------------------------------------------------------


def flags_of_memory_with(pid: int, secret: bytes) -> list[set[str]]:
    """The kernel's flags of each mapping that has these bytes."""
    found = []
    with open(f"/proc/{pid}/smaps", encoding="ascii") as rows, open(f"/proc/{pid}/mem", "rb") as memory:
        span, mode = "", ""
        for row in rows:
            words = row.split()
            if "-" in words[0]:
                span, mode = words[:2]
            if words[0] == "VmFlags:" and mode.startswith("rw"):
                low, high = (int(word, 16) for word in span.split("-"))
                memory.seek(low)
                if secret in memory.read(high - low):
                    found.append(set(words[1:]))
    return found


@pytest.mark.skipif(is_sanitized(), reason="the shadow of a sanitizer has terabytes")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--lock", "off"), set()),
        (("--lock", "require"), {"lo"}),
        (("--lock", "off", "--secure"), {"dd"}),
        (("--lock", "require", "--secure"), {"lo", "dd"}),
    ],
)
def test_memory_of_requests_is_locked_and_left_out_of_dumps_as_the_model_is(
    tiny: Path, tmp_path: Path, options: tuple[str, ...], expected: set[str]
) -> None:
    server = Server(tiny, tmp_path)
    at = server.command.index("--lock")
    server.command[at : at + 2] = options
    with server, server.client() as client:
        client.send(b'{"prompt":"zebra-QUARTZ-83471')
        eventually(lambda: flags_of_memory_with(server.pid, b"zebra-QUARTZ-83471"))
        assert [flags & {"lo", "dd"} for flags in flags_of_memory_with(server.pid, b"zebra-QUARTZ-83471")] == [expected]


@pytest.mark.skipif(is_sanitized(), reason="the shadow of a sanitizer has terabytes")
@pytest.mark.parametrize(
    "line",
    [
        b'{"QUARTZ-zebra-83":1}\n',
        b'{"prompt":"a","tokens":31415926535897932384}\n',
        b'{"prompt":"a","temperature":31415926535897932384}\n',
        b'{"id":"QUARTZ-zebra-83","prompt":"a","tokens":2}\n',
        b'{"id":"QUARTZ-zebra-83","prompt":"a","tokens":0}\n',
    ],
    ids=["key", "integer", "number", "id", "id of a refused one"],  # the environment has the name of the test
)
def test_nothing_of_a_request_stays_on_the_stack(tiny: Path, tmp_path: Path, line: bytes) -> None:
    with Server(tiny, tmp_path) as server, server.client() as client:
        client.ask(line)
        time.sleep(0.05)  # it waits again
        memory = writable_memory(server.pid)
        assert b"QUARTZ-zebra" not in memory
        assert b"31415926535" not in memory


def test_standard_input_and_output_that_do_not_block_are_waited_for(tiny: Path, tmp_path: Path) -> None:
    """Whoever shares them may have said so: what reads late and writes late is served all the same."""
    lines = request("a", "a", tokens=240, ignore_end=True) * 20  # more than a pipe holds
    expected = run("serve", tiny, "--lock", "off", "--threads", "1", stdin=lines).out
    assert len(expected) > 65536
    from_us, to_it = os.pipe()
    to_us, from_it = os.pipe()
    os.set_blocking(from_us, False)
    os.set_blocking(from_it, False)
    command: list[str | Path] = [program(), "serve", tiny, "--lock", "off", "--threads", "1"]
    with subprocess.Popen(
        command, stdin=from_us, stdout=from_it, stderr=subprocess.PIPE, env=environment()
    ) as process, os.fdopen(to_us, "rb") as answers:  # fmt: skip
        os.close(from_us)
        os.close(from_it)
        time.sleep(0.2)
        os.write(to_it, lines)
        os.close(to_it)
        time.sleep(1)
        assert answers.read() == expected
        assert process.stderr is not None
        assert (process.wait(TIMEOUT_SECONDS), process.stderr.read()) == (0, b"")


def test_ask_waits_for_a_prompt_that_comes_late(tiny: Path, tmp_path: Path) -> None:
    late, ours = os.pipe()
    os.set_blocking(late, False)
    with Server(tiny, tmp_path) as server, subprocess.Popen(
        [program(), "ask", server.path, "-", "-n", "2"], stdin=late, stdout=subprocess.DEVNULL, env=environment()
    ) as process:  # fmt: skip
        time.sleep(0.2)
        os.write(ours, b"hello")
        os.close(ours)
        assert process.wait(TIMEOUT_SECONDS) == 0
    os.close(late)


def test_a_parent_that_blocks_the_signals_does_not_make_a_server_that_cannot_be_stopped(
    tiny: Path, tmp_path: Path
) -> None:
    code = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT]); "
    with Server(tiny, tmp_path).start(sys.executable, "-c", code + "os.execv(sys.argv[1], sys.argv[1:])") as server:
        server.signal()
        assert server.wait() == 0


def test_a_stack_that_is_too_small_is_refused_with_the_number(tiny: Path, tmp_path: Path) -> None:
    for limit in (32, 127):
        outcome = limited(f"ulimit -s {limit}", "serve", tiny, "--socket", tmp_path / "s", "--sandbox", "off")
        assert_fails(outcome, Code.MEMORY, f"RLIMIT_STACK is {1024 * limit}, ", "`ulimit -s 128`")
    if is_sanitized():
        return  # its frames are larger
    small = ("bash", "-c", 'ulimit -s 128; exec "$@"', "bash")
    with Server(tiny, tmp_path).start(*small) as server, server.client() as client:
        long = request("a", "ab " * 60, tokens=9, temperature=1.5, top_k=50, seed=4)
        assert "done" in client.ask(long)[-1]
        assert client.ask(b'{"prompt":"a","unknown":1}\n')[-1]["name"] == "argument"
