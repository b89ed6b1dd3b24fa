# SPDX-License-Identifier: MIT
"""The service as the image starts it: behind its health gate, under its own user, in its sandbox."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

import pytest
from guest_tools import SERVICE_SCRIPTS, SERVICE_SOCKET, await_service, service_script
from harness import Shell
from test_inference_boot import GENERATION_SECONDS, OK, UNVERIFIED, Case, Model, models

__all__ = ["models"]  # fixture

HEALTH = "/run/colibri/health.json"
CONFIGURATION = "/etc/colibri/colibri.conf"
USER = "colibri"


@dataclass(frozen=True)
class Service:
    """The running service."""

    pid: int
    model: Model

    @property
    def case(self) -> Case:
        """A golden case with the KV cache that the service has by default."""
        return next(case for case in self.model.cases if case.kv == "f16" and case.prompt and not case.chat)


def wait_for_service(shell: Shell) -> None:
    """The gate verifies the model and runs its golden cases first."""
    await_service(shell)
    said = shell.run("cat /run/log/services 2>&1").output
    assert shell.run(f"test -S {SERVICE_SOCKET}").exit_code == 0, f"no {SERVICE_SOCKET}; the init scripts said: {said}"


@pytest.fixture
def service(shell: Shell, models: list[Model]) -> Service:
    """The service of the image, which nobody but its init script has started."""
    wait_for_service(shell)
    path = shell.output(f". {CONFIGURATION}; echo $COLIBRI_MODEL")
    model = next(model for model in models if model.path == path)
    pid = int(shell.output("pidof colibrictl").split()[0])
    return Service(pid, model)


def ask(shell: Shell, service: Service) -> None:
    """Exactly the golden answer."""
    case = service.case
    command = f"colibrictl ask {SERVICE_SOCKET} -p {shlex.quote(case.prompt)} --tokens {case.n} --json"
    captured = shell.capture(command, timeout=GENERATION_SECONDS)
    assert captured.exit_code == OK, captured.messages
    lines = [json.loads(line) for line in captured.stdout.decode().splitlines()]
    assert "".join(line.get("text", "") for line in lines) == case.text
    assert lines[-1]["logits_sha256"] == case.logits_sha256


def test_the_gate_has_found_the_machine_healthy(shell: Shell, service: Service) -> None:
    result = json.loads(shell.read_file(HEALTH))
    assert (result["status"], result["exit_code"], result["root"]) == ("ok", OK, service.model.root)
    assert 0 < result["peak_bytes"] <= result["plan_bytes"]
    checks = {check["name"]: check["status"] for check in result["checks"]}
    assert checks["golden"] == "ok"
    assert set(checks.values()) <= {"ok", "skipped"}


def test_it_runs_under_its_own_user_in_its_sandbox(shell: Shell, service: Service) -> None:
    wanted = {"Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0000000000000000", "CapPrm": "0000000000000000"}
    threads = int(shell.output(f"ls /proc/{service.pid}/task | wc -l"))
    for name, value in wanted.items():
        lines = shell.output(f"sed -n 's/^{name}:[[:space:]]*//p' /proc/{service.pid}/task/*/status").split()
        assert lines == [value] * threads, name
    uid = shell.output(f"id -u {USER}")
    assert shell.output(f"sed -n 's/^Uid:[[:space:]]*//p' /proc/{service.pid}/status").split() == [uid] * 4
    mode, group = shell.output(f"stat -c '%a %G' {SERVICE_SOCKET}").split()
    assert (mode, group) == ("660", USER)


def test_it_answers_with_the_golden_bits(shell: Shell, service: Service) -> None:
    ask(shell, service)


def test_others_may_not_ask(shell: Shell, service: Service) -> None:
    refused = shell.capture(f"su nobody -s /bin/sh -c 'colibrictl ask {SERVICE_SOCKET} -p x'")
    if shell.run("id nobody").exit_code != 0:
        pytest.skip("the image has no user nobody")
    assert refused.exit_code != OK
    assert "Permission denied" in refused.messages


def test_a_tampered_model_does_not_pass_the_gate(shell: Shell, service: Service) -> None:
    copy, offset = "/tmp/tampered.colibri", service.model.size // 2
    old = int(shell.output(f"od -An -tu1 -j {offset} -N 1 {service.model.path}"))
    bent = f"printf '\\{old ^ 1:03o}' | dd of={copy} bs=1 seek={offset} conv=notrunc"
    shell.run(f"cp {service.model.path} {copy} && {bent}", check=True)
    golden = service.model.path.removesuffix(".colibri") + ".golden.json"
    captured = shell.capture(f"colibrictl health {copy} --golden {golden} --output /tmp/health.json")
    result = json.loads(shell.read_file("/tmp/health.json"))
    shell.run(f"rm {copy} /tmp/health.json", check=True)
    assert captured.exit_code == result["exit_code"] == UNVERIFIED, captured.messages
    assert result["status"] != "ok"


def test_wrong_golden_results_do_not_pass_the_gate(shell: Shell, service: Service) -> None:
    golden = json.loads(shell.read_file(service.model.path.removesuffix(".colibri") + ".golden.json"))
    golden["cases"][0]["ids"][0] ^= 1
    shell.write_file("/tmp/bent.golden.json", json.dumps(golden).encode())
    command = f"colibrictl health {service.model.path} --golden /tmp/bent.golden.json --output /tmp/health.json"
    captured = shell.capture(command, timeout=GENERATION_SECONDS)
    shell.run("rm -f /tmp/bent.golden.json /tmp/health.json", check=True)
    assert captured.exit_code == UNVERIFIED, captured.messages


def test_it_stops_and_starts_again(shell: Shell, service: Service) -> None:
    script = service_script(shell)
    if script is None:
        pytest.skip(f"the image has no init script of the service ({' or '.join(SERVICE_SCRIPTS)})")
    stopped = shell.run(f"{script} stop", check=True)
    assert "OK" in stopped.output
    assert shell.run(f"test -e /proc/{service.pid}").exit_code == 1
    assert shell.run(f"test -e {SERVICE_SOCKET}").exit_code == 1
    shell.run(f"{script} start", check=True, timeout=GENERATION_SECONDS)
    wait_for_service(shell)
    ask(shell, service)
