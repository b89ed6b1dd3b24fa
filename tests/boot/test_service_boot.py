# SPDX-License-Identifier: MIT
"""The service as the image starts it: behind its health gate, under its own user, in its sandbox."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

import pytest
from guest_tools import SERVICE_SCRIPTS, SERVICE_SOCKET, await_service, service_script
from harness import Shell
from test_inference_boot import GENERATION_SECONDS, OK, UNVERIFIED, Case, Model, models

__all__ = ["models"]  # fixture

HEALTH = "/run/colibri/health.json"
CONFIGURATION = "/etc/colibri/colibri.conf"
USER = "colibri"
LEFT_OUT = "the budget does not hold the KV type of the others"


@dataclass(frozen=True)
class Service:
    """The running service."""

    pid: int
    model: Model
    options: str

    @property
    def kv(self) -> str:
        """The type of its KV cache."""
        return str([*re.findall(r"--kv (\w+)", self.options), "f16"][0])

    @property
    def case(self) -> Case:
        """A golden case with its KV cache that is asked with plain text."""
        return next(case for case in self.model.cases if case.kv == self.kv and case.prompt and not case.chat)

    @property
    def golden(self) -> str:
        """The golden results beside its model."""
        return self.model.path.removesuffix(".colibri") + ".golden.json"


def wait_for_service(shell: Shell) -> None:
    """The gate verifies the model and runs its golden cases first."""
    await_service(shell)
    said = shell.run("cat /run/log/services 2>&1").output
    assert shell.run(f"test -S {SERVICE_SOCKET}").exit_code == 0, f"no {SERVICE_SOCKET}; the init scripts said: {said}"


@pytest.fixture
def service(shell: Shell, models: list[Model]) -> Service:
    """The service of the image, which nobody but its init script has started."""
    wait_for_service(shell)
    said = shell.output(f'. {CONFIGURATION}; echo "$COLIBRI_MODEL"; echo "$COLIBRI_OPTIONS"')
    path, _, options = said.partition("\n")  # there may be no options
    model = next(model for model in models if model.path == path)
    pid = int(shell.output("pidof colibrictl").split()[0])
    return Service(pid, model, options)


def ask(shell: Shell, service: Service) -> None:
    """Exactly the golden answer."""
    case = service.case
    command = f"colibrictl ask {SERVICE_SOCKET} -p {shlex.quote(case.prompt)} --tokens {case.n} --json"
    captured = shell.capture(command, timeout=GENERATION_SECONDS)
    assert captured.exit_code == OK, captured.messages
    lines = [json.loads(line) for line in captured.stdout.decode().splitlines()]
    assert "".join(line.get("text", "") for line in lines) == case.text
    assert lines[-1]["logits_sha256"] == case.logits_sha256


def found(result: dict[str, Any], name: str) -> tuple[str, str]:
    """Status and detail of a check of the gate."""
    check = next(check for check in result["checks"] if check["name"] == name)
    return check["status"], check["detail"]


def test_the_gate_has_found_the_machine_healthy(shell: Shell, service: Service) -> None:
    result = json.loads(shell.read_file(HEALTH))
    assert (result["exit_code"], result["root"]) == (OK, service.model.root)
    assert 0 < result["peak_bytes"] <= result["plan_bytes"]
    status, detail = found(result, "golden")
    count = len(service.model.cases)
    if status == "warn" and "--budget" in service.options:  # what it holds are the cases that the service can give
        own = sum(case.kv == service.kv for case in service.model.cases)
        assert detail == f"{own} of {count} cases are right; {LEFT_OUT}"
    else:
        assert (status, detail) == ("ok", f"{count} of {count} cases are right")
    assert result["status"] == status
    assert {check["status"] for check in result["checks"] if check["name"] != "golden"} <= {"ok", "skipped"}


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
    captured = shell.capture(f"colibrictl health {copy} --golden {service.golden} --output /tmp/health.json")
    result = json.loads(shell.read_file("/tmp/health.json"))
    shell.run(f"rm {copy} /tmp/health.json", check=True)
    assert captured.exit_code == result["exit_code"] == UNVERIFIED, captured.messages
    assert result["status"] != "ok"


def gate_with(shell: Shell, service: Service, golden: object, options: str = "") -> dict[str, Any]:
    """The result of the gate with other golden results."""
    shell.write_file("/tmp/other.golden.json", json.dumps(golden).encode())
    command = f"colibrictl health {service.model.path} --golden /tmp/other.golden.json --output /tmp/health.json"
    captured = shell.capture(f"{command} {options}", timeout=GENERATION_SECONDS)
    result: dict[str, Any] = json.loads(shell.read_file("/tmp/health.json"))
    shell.run("rm -f /tmp/other.golden.json /tmp/health.json", check=True)
    assert captured.exit_code == result["exit_code"], captured.messages
    return result


def test_wrong_golden_results_do_not_pass_the_gate(shell: Shell, service: Service) -> None:
    golden = json.loads(shell.read_file(service.golden))
    golden["cases"][0]["ids"][0] ^= 1
    assert gate_with(shell, service, golden)["exit_code"] == UNVERIFIED


def test_a_budget_that_leaves_golden_results_out_is_said(shell: Shell, service: Service) -> None:
    golden = json.loads(shell.read_file(service.golden))
    case = next(case for case in golden["cases"] if case["kv"] == "f16")
    golden["cases"] = [case, {**case, "kv": "f32"}]  # whose logits are others: it fails if it is run
    plan = json.loads(shell.output(f"colibrictl info {service.model.path} --json --kv f16"))["plan"]
    result = gate_with(shell, service, golden, f"--kv f16 --budget {plan['total_bytes']}")
    assert found(result, "golden") == ("warn", f"1 of 2 cases are right; {LEFT_OUT}")
    assert (result["exit_code"], result["status"]) == (OK, "warn")
    assert gate_with(shell, service, golden, "--kv f16")["exit_code"] == UNVERIFIED


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
