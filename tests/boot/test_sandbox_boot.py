# SPDX-License-Identifier: MIT
"""The closed box in the booted image: what a sandboxed process cannot do, and what it still answers.

The probe (engine/native/tests/sandbox_probe.c) tries every number of the system call table from inside
the sandbox; it comes in two builds, glibc and musl. The server is looked at from outside while it runs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from boot_run import BootRun
from guest_tools import LIBCS, SOURCES, TOOLS, built_program, compile_freestanding, guest_with, make_tools_disk
from harness import Shell
from test_inference_boot import GENERATION_SECONDS, OK, Case, Model, models, small_model

__all__ = ["models", "small_model"]  # fixtures

STEADY_CALLS = 25  # no phase behind the opening of files may allow more
SYSTEM_CALLS = 400  # AArch64 has more than that
FOLDER = "/run/boxed"
SOCKET = f"{FOLDER}/socket"
SERVER_LOG = f"{FOLDER}/log"
PID_FILE = f"{FOLDER}/pid"
SHORT_CLIENTS, SHORT_ROUNDS = 3, 8
WARM_ROUNDS = 8  # until each client has done everything once: then every buffer has been used
LONG_CLIENTS, LONG_ROUNDS = 8, 125
RSS_GROWTH_KIB = 64  # allowed between then and the end


@pytest.fixture(scope="module")
def tools(boot_run: BootRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with the probes, both builds of colibrictl and the client without manners."""
    folder = tmp_path_factory.mktemp("boxed")
    programs = [SOURCES / "soak.sh"]
    for libc in LIBCS:
        for name in ("sandbox_probe", "colibrictl"):
            copy = folder / f"{name}-{libc}"
            copy.write_bytes(built_program(name, libc).read_bytes())
            programs.append(copy)
    compile_freestanding(SOURCES / "talk.c", folder / "talk")
    return make_tools_disk(folder, boot_run.image.page_bytes, programs=[*programs, folder / "talk"])


@pytest.fixture(scope="module")
def guest(boot_run: BootRun, tools: Path) -> Iterator[Shell]:
    """A machine with that disk."""
    with guest_with(boot_run, tools=tools) as shell:
        yield shell


@pytest.fixture
def shell(guest: Shell) -> Shell:
    """The shell of that machine in a known state."""
    guest.synchronise()
    return guest


def golden_case(model: Model, kv: str) -> Case:
    """A case with this KV cache that is asked with plain text."""
    return next(case for case in model.cases if case.kv == kv and case.prompt and not case.chat)


# ---- the probe ------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["root", "colibri"])
@pytest.mark.parametrize("libc", LIBCS)
def test_every_call_outside_the_list_is_refused(
    shell: Shell, small_model: Model, libc: str, user: str, note: Callable[[str], None]
) -> None:
    case = golden_case(small_model, "f16")
    ids = ",".join(map(str, case.prompt_ids))
    command = f"{TOOLS}/sandbox_probe-{libc} {small_model.path} {ids} {case.n} {case.logits_sha256}"
    if user != "root":
        command = f"su {user} -s /bin/sh -c {shlex.quote(command)}"
    captured = shell.capture(command, timeout=GENERATION_SECONDS)
    said = captured.stdout.decode()
    assert captured.exit_code == OK, said + captured.stderr
    numbers = re.findall(r"^numbers phase=(\w+) allowed_calls=(\d+) refused=(\d+) .*worker_refused=(\d+)", said, re.M)
    assert [phase for phase, *_ in numbers] == ["start", "steady"]
    for phase, allowed, refused, by_worker in numbers:
        assert int(refused) == int(by_worker) >= SYSTEM_CALLS - (STEADY_CALLS if phase == "steady" else 100)
        assert int(allowed) <= (STEADY_CALLS if phase == "steady" else 100)
    kills = re.findall(r"^kill call=(\w+) phase=(\w+) signal=(\d+)$", said, re.M)
    assert {signal for _, _, signal in kills} == {"31"}  # SIGSYS
    wanted = {"fork", "vfork", "clone", "clone3", "execve", "execveat", "ptrace", "openat", "mprotect_exec"}
    assert wanted | {"socket_inet", "socket_unix", "kill"} <= {call for call, phase, _ in kills if phase == "steady"}
    residencies = re.findall(rf"^model residency=(\S+) tokens={len(case.ids)} .* ok$", said, re.M)
    assert residencies == ["resident", "stream", "mapped", "mapped-guarded"]
    landlock = re.findall(r"^files landlock_abi=(\d+)$", said, re.M)
    assert int(landlock[0]) >= 1  # the kernel of the image has it
    refused = int(numbers[1][2])
    note(
        f"sandbox in the guest, {libc}, {user}: {numbers[1][1]} calls allowed in the steady phase, {refused} numbers "
        f"refused to each of two threads, {len(kills)} attempts killed, Landlock ABI {landlock[0]}"
    )


# ---- the server -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A server that runs in the guest."""

    shell: Shell
    pid: int
    kv: str

    def status(self, name: str) -> list[str]:
        """A line of /proc/PID/task/*/status, once per thread."""
        lines = self.shell.output(f"sed -n 's/^{name}:[[:space:]]*//p' /proc/{self.pid}/task/*/status")
        return [" ".join(line.split()) for line in lines.splitlines()]

    def kib(self, name: str, table: str = "status") -> int:
        """A size that a file of /proc/PID has, in KiB."""
        return int(self.shell.output(f"sed -n 's/^{name}:[[:space:]]*\\([0-9]*\\) kB/\\1/p' /proc/{self.pid}/{table}"))

    def resident(self) -> dict[str, int]:
        """What it has in memory, in KiB, counted page by page.

        The counters behind VmRSS of /proc/PID/status lag, each thread's by up to 64 pages.
        """
        return {name: self.kib(name, "smaps_rollup") for name in ("Rss", "Anonymous")}


def wait_for(shell: Shell, condition: str) -> None:
    """Until a test of the guest's shell holds, a minute at most."""
    shell.run(f"i=0; until {{ {condition}; }} || [ $i -ge 600 ]; do i=$((i + 1)); sleep 0.1; done")


def start_server(shell: Shell, model: Model, libc: str, kv: str, options: str = "--sandbox kill") -> Server:
    """As user colibri, everything locked; returns when it is closed in, which is some time behind its socket."""
    shell.run(f"rm -rf {FOLDER} && mkdir -p {FOLDER} && chown colibri {FOLDER}", check=True)
    serve = (
        f"exec {TOOLS}/colibrictl-{libc} serve {model.path} --socket {SOCKET} --pid-file {PID_FILE} "
        f"--lock require --kv {kv} {options}"
    )
    as_user = f"ulimit -l unlimited; exec su colibri -s /bin/sh -c {shlex.quote(serve)}"
    shell.run(f"(sh -c {shlex.quote(as_user)} >{SERVER_LOG} 2>&1; echo $? >{FOLDER}/code) &", check=True)
    wait_for(shell, f"grep -q phase=steady {SERVER_LOG} || [ -e {FOLDER}/code ]")
    log = shell.output(f"cat {SERVER_LOG}")
    assert shell.run(f"test -S {SOCKET}").exit_code == 0, f"no socket; the server said: {log}"
    server = Server(shell, int(shell.output(f"cat {PID_FILE}")), kv)
    assert shell.output(f"cat /proc/{server.pid}/comm").startswith("colibrictl")
    return server


def stop_server(server: Server) -> int:
    """SIGTERM; its exit code."""
    shell = server.shell
    shell.run(f"kill -TERM {server.pid}")
    wait_for(shell, f"[ -e {FOLDER}/code ]")
    return int(shell.output(f"cat {FOLDER}/code"))


@pytest.fixture(params=list(LIBCS))
def server(shell: Shell, small_model: Model, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of either build; it must end in order."""
    running = start_server(shell, small_model, request.param, "f16")
    yield running
    assert stop_server(running) == OK, shell.output(f"cat {SERVER_LOG}")


def ask(server: Server, case: Case) -> None:
    """The client of the image gets the golden text and the hash of the golden logits."""
    command = f"colibrictl ask {SOCKET} -p {shlex.quote(case.prompt)} --tokens {case.n} --json"
    captured = server.shell.capture(command, timeout=GENERATION_SECONDS)
    assert captured.exit_code == OK, captured.stderr
    answer = [json.loads(line) for line in captured.stdout.decode().splitlines()]
    assert "".join(line.get("text", "") for line in answer) == case.text
    assert answer[-1]["logits_sha256"] == case.logits_sha256
    assert answer[-1]["tokens"] == len(case.ids)


def test_the_server_is_closed_in_and_answers(server: Server, small_model: Model) -> None:
    case = golden_case(small_model, server.kv)
    for _ in range(2):
        threads = server.status("Seccomp")
        assert len(threads) >= 2  # workers, too
        assert set(threads) == {"2"}
        assert set(server.status("NoNewPrivs")) == {"1"}
        assert len(server.status("NoNewPrivs")) == len(threads)
        assert set(server.status("Uid")) != {"0 0 0 0"}
        assert set(server.status("CapEff")) == {"0000000000000000"}
        ask(server, case)
    assert server.kib("VmLck") * 1024 >= small_model.size


def test_the_arena_of_the_server_is_locked(server: Server, small_model: Model) -> None:
    ask(server, golden_case(small_model, server.kv))
    smaps = server.shell.capture(f"cat /proc/{server.pid}/smaps").stdout.decode()
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", smaps, flags=re.M)[1:]

    def kib(mapping: str, name: str) -> int:
        return int(re.search(rf"^{name}:\s+(\d+) kB", mapping, re.M)[1])  # type: ignore[index]

    anonymous = [m for m in mappings if re.match(r"\S+ rw-p 00000000 00:00 0 +$", m.split("\n", 1)[0])]
    largest = max(anonymous, key=lambda mapping: kib(mapping, "Size"))
    model = [mapping for mapping in mappings if small_model.path in mapping.split("\n", 1)[0]]
    assert sum(kib(mapping, "Size") for mapping in model) * 1024 >= small_model.size
    for mapping in (largest, *model):  # the arena: KV cache, activations, texts
        # The flag, because "Locked" divides pages by the number of those who share them.
        assert re.search(r"^VmFlags:.* lo\b", mapping, re.M), mapping
        assert kib(mapping, "Rss") == kib(mapping, "Size"), mapping


GETPPID = 173  # on AArch64


def audited(shell: Shell, program: str) -> list[str]:
    """Numbers of the calls of that program that the kernel's log names; it was emptied before."""
    # Not more than ten messages in five seconds are kept, and their turn comes a little later.
    lines = shell.capture("sleep 1; dmesg").stdout.decode().splitlines()
    pattern = rf'type=1326 .* comm="{program[:15]}" .* syscall=(\d+) .* code=0x7ffc0000'
    return [found[1] for found in (re.search(pattern, line) for line in lines) if found]


@pytest.mark.parametrize("libc", LIBCS)
def test_the_audit_mode_names_what_is_not_on_the_list_and_the_server_needs_nothing_else(
    shell: Shell, small_model: Model, libc: str
) -> None:
    if shell.run("zcat /proc/config.gz | grep -qx CONFIG_AUDIT=y").exit_code != 0:
        pytest.skip("the kernel has no CONFIG_AUDIT: it logs no calls")
    assert "log" in shell.output("cat /proc/sys/kernel/seccomp/actions_logged").split()
    shell.run("sleep 6; dmesg -c >/dev/null", check=True)
    assert shell.run(f"{TOOLS}/sandbox_probe-{libc} audit").exit_code == OK  # the call was made
    assert audited(shell, f"sandbox_probe-{libc}") == [str(GETPPID)]
    running = start_server(shell, small_model, libc, "f16", "--sandbox log")
    assert "action=log" in shell.output(f"cat {SERVER_LOG}")
    assert set(running.status("Seccomp")) == {"2"}
    for _ in range(2):
        ask(running, golden_case(small_model, running.kv))
    assert stop_server(running) == OK
    assert audited(shell, f"colibrictl-{libc}") == []


def prepare_soak(shell: Shell, model: Model, kv: str) -> None:
    """Requests and what each must be answered, byte for byte: as the server answers when nobody else asks."""
    shell.run("rm -rf /run/soak && mkdir -p /run/soak", check=True)
    case = golden_case(model, kv)
    for number, tokens in enumerate((case.n, 1, 5)):
        request = json.dumps({"id": str(number), "prompt": case.prompt, "tokens": tokens}) + "\n"
        path = f"/run/soak/request.{number}"
        shell.write_file(path, request.encode())
        shell.run(f"{TOOLS}/talk {SOCKET} <{path} >/run/soak/answer.{number}", check=True, timeout=GENERATION_SECONDS)
    answer = [json.loads(line) for line in shell.read_file("/run/soak/answer.0").decode().splitlines()]
    assert "".join(line.get("text", "") for line in answer) == case.text
    assert answer[-1]["logits_sha256"] == case.logits_sha256


def test_many_clients_at_once_get_the_same_answers_and_leave_nothing_behind(
    boot_run: BootRun,
    shell: Shell,
    small_model: Model,
    request: pytest.FixtureRequest,
    note: Callable[[str], None],
) -> None:
    clients, rounds = (LONG_CLIENTS, LONG_ROUNDS) if boot_run.long else (SHORT_CLIENTS, SHORT_ROUNDS)
    rounds = request.config.getoption("--boot-rounds") or rounds
    # One thread: where machines are emulated on fewer cores, four that wait for each other take ten times as long.
    running = start_server(shell, small_model, "glibc", "f16", f"--sandbox kill --threads 1 --clients {clients}")
    prepare_soak(shell, small_model, running.kv)

    def soak(count: int) -> None:
        command = f"sh {TOOLS}/soak.sh {SOCKET} {TOOLS}/talk {clients} {count}"
        said = shell.output(command, timeout=60 + 15.0 * clients * count)
        found = re.findall(r"^client (\d+) right (\d+) wrong (\d+)$", said, re.M)
        expected = [(str(client), str(count), "0") for client in range(clients)]
        wrong = shell.run("cat /run/soak/wrong.* | head -c 1000").output
        assert sorted(found) == sorted(expected), f"{said}\n{wrong}"

    soak(WARM_ROUNDS)
    before, files = running.resident(), shell.output(f"ls /proc/{running.pid}/fd | wc -l")
    soak(rounds)
    after = running.resident()
    assert shell.output(f"ls /proc/{running.pid}/fd | wc -l") == files
    for kind, kib in before.items():
        assert after[kind] - kib <= RSS_GROWTH_KIB, f"{kind} grew: {before} KiB before, {after} KiB after"
    assert set(running.status("Seccomp")) == {"2"}
    assert stop_server(running) == OK, shell.output(f"cat {SERVER_LOG}")
    note(f"soak in the guest: {clients} clients, {clients * rounds} exact answers; KiB before {before}, after {after}")
