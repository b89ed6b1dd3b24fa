# SPDX-License-Identifier: MIT
"""colibrictl serve and ask where limits, files and descriptors are not what they expect."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest
from colibri._spec import ERROR_EXIT, Code
from serving import Server, request
from test_colibrictl import TIMEOUT_SECONDS, Outcome, assert_fails, colibri, environment, program

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny random model, converted from its recipe."""
    path = tmp_path_factory.mktemp("surroundings") / "tiny.colibri"
    colibri("convert", "--recipe", REPOSITORY / "configs" / "models" / "tiny.toml", "-o", path)
    return path


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
