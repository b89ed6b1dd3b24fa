# SPDX-License-Identifier: MIT
"""Boot the production image of the Yocto layer: what nobody can log into still shows what it is.

    python tests/firmware/yocto_production.py DIR [LOGS]

DIR: an image folder as meta-colibri/scripts/boot-folder makes it of colibri-image. Two boots: as the image
starts itself, where the console must tell that the service is up and refuse every login; and with a shell in
place of init, which looks at the same root file system from inside and runs the image's own init script.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "boot"))

from console import Console  # noqa: E402
from harness import Board, Image, MachineOptions, Shell, qemu_command  # noqa: E402

USERS = ("root", "colibri", "nobody")
MACROS = {"SECURE_MODE", "NO_LOGGING", "VERIFY_MODEL_HASH", "RESTRICTED_SYSCALLS"}
SOCKET = "/run/colibri/colibri.sock"
SERVICE_SECONDS = 300.0


class NotAsItMustBe(Exception):
    """The image is not one for production."""


def demand(holds: bool, what: str) -> None:
    """Print a line for what holds; raise for what does not."""
    print(f"{'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        raise NotAsItMustBe(what)


def open_console(folder: Path, logs: Path, name: str, cmdline: str = "") -> Console:
    """A machine that runs the image."""
    command = qemu_command(Image.load(folder), Board.load(folder / "board.toml"), MachineOptions(cmdline=cmdline))
    return Console(command, logs / f"production-{name}.log")


def as_it_starts_itself(console: Console) -> None:
    """The service behind its gate, then a login that takes nobody."""
    console.expect(r"Starting colibri: ", timeout=SERVICE_SECONDS, what="the service")
    # The kernel may say something in between.
    end = console.expect(r"\bOK\r*\n|FAIL \(", timeout=SERVICE_SECONDS, what="the service to start")
    demand(end.group(0).startswith("OK"), "the init of the image started the service behind its health gate")
    for user in USERS:
        for password in ("", user):
            console.send("\n")
            console.expect(r"login: $", timeout=120.0, what="the login prompt")
            console.send(f"{user}\n")
            answer = console.expect(r"Password: $|Login incorrect|[#$] $", timeout=60.0, what="an answer to the name")
            if answer.group(0) == "Password: ":
                console.send(f"{password}\n")
                answer = console.expect(r"Login incorrect|[#$] $", timeout=60.0, what="an answer to the password")
            demand("incorrect" in answer.group(0), f"{user} with the password {password!r} is not let in")


def from_inside(shell: Shell) -> None:
    """The same root file system with a shell as its first process."""
    device, _, kind, options = shell.output("grep ' / ' /proc/mounts").split()[:4]
    demand("ro" in options.split(","), f"the root file system ({kind} on {device}) is read-only")
    refused = shell.run(": >/new")
    demand(refused.exit_code != 0 and "Read-only" in refused.output, "it takes no file")
    accounts = shell.output("cat /etc/passwd; [ ! -f /etc/shadow ] || cat /etc/shadow")
    passwords = [line.split(":")[1] for line in accounts.splitlines() if ":" in line]
    locked = {"*", "x", "!", "!!", "!*"}
    demand(set(passwords) <= locked, f"none of {len(passwords)} accounts has a password or lacks one")
    forced = set(re.findall(r"COLIBRI_(\w+)", shell.output("colibrictl info | grep forced")))
    demand(forced >= MACROS, f"the macros of production are forced: {', '.join(sorted(forced))}")
    for folder in ("/usr/lib/colibri/ptest", "/usr/sbin/dropbear", "/usr/sbin/sshd", "/usr/bin/gdbserver"):
        demand(shell.run(f"test -e {folder}").exit_code != 0, f"the image has no {folder}")


def service_from_inside(shell: Shell) -> None:
    """The init script of the image, its gate, its sandbox and its answer."""
    started = shell.run("/etc/init.d/colibri start", timeout=SERVICE_SECONDS)
    demand(started.exit_code == 0 and "OK" in started.output, "/etc/init.d/colibri start")
    health = json.loads(shell.read_file("/run/colibri/health.json"))
    golden = [check["status"] for check in health["checks"] if check["name"] == "golden"]
    demand((health["status"], health["exit_code"], golden) == ("ok", 0, ["ok"]), f"the gate says {health['status']}")
    demand(0 < health["peak_bytes"] <= health["plan_bytes"], f"{health['peak_bytes']} of {health['plan_bytes']} bytes")
    pid = shell.output("pidof colibrictl").split()[0]
    for name, value in (("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapEff", "0" * 16)):
        lines = shell.output(f"sed -n 's/^{name}:[[:space:]]*//p' /proc/{pid}/task/*/status").split()
        demand(set(lines) == {value}, f"{len(lines)} threads of the service have {name} {value}")
    model = shell.output(". /etc/colibri/colibri.conf; echo $COLIBRI_MODEL")
    expected = json.loads(shell.read_file(model.removesuffix(".colibri") + ".golden.json"))
    demand(health["root"] == expected["root"], f"the model is {expected['root']}")
    case = next(case for case in expected["cases"] if case["kv"] == "f16" and case["prompt"] and not case["chat"])
    ask = f"colibrictl ask {SOCKET} -p {shlex.quote(case['prompt'])} --tokens {case['n']} --json"
    shell.run(f"{ask} >/run/answer", check=True, noise=True)
    answer = [json.loads(line) for line in shell.read_file("/run/answer").decode().splitlines()]
    text = "".join(line.get("text", "") for line in answer)
    demand((text, answer[-1]["logits_sha256"]) == (case["text"], case["logits_sha256"]), "golden text and logits")


def main() -> int:
    """Command line."""
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(sys.argv[1])
    logs = Path(sys.argv[2]) if len(sys.argv) == 3 else REPOSITORY / "build" / "boot-logs"
    boots: tuple[tuple[str, str, Callable[[Console], None]], ...] = (
        ("itself", "", as_it_starts_itself),
        ("inside", "init=/bin/sh", look_inside),
    )
    for name, cmdline, check in boots:
        start = time.monotonic()
        console = open_console(folder, logs, name, cmdline)
        try:
            check(console)
        except NotAsItMustBe:
            print(f"console log: {console.log_path}")
            return 1
        finally:
            console.close()
        print(f"{name}: {time.monotonic() - start:.0f} s")
    return 0


def look_inside(console: Console) -> None:
    """What init would mount, and then the checks."""
    console.expect(r"[#$] ", timeout=180.0, what="the shell in place of init")
    # Without /dev/null no command of the harness runs.
    console.send("export PATH=/usr/sbin:/usr/bin:/sbin:/bin; mount -t devtmpfs devtmpfs /dev\n")
    shell = Shell(console)
    shell.synchronise(interrupt=False)
    shell.run("mount -t proc proc /proc && mount -t sysfs sysfs /sys && mkdir -p /dev/pts /dev/shm", check=True)
    shell.run("mount -a")  # init ignores what fails, too
    from_inside(shell)
    service_from_inside(shell)


if __name__ == "__main__":
    sys.exit(main())
