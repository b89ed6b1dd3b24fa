# SPDX-License-Identifier: MIT
"""The runner of the test suites: every step leaves a JUnit file that says what happened."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import steps
import suites


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runner writes here."""
    monkeypatch.setattr(suites, "LOGS", tmp_path)
    monkeypatch.setattr(suites, "REPOSITORY", tmp_path)
    return tmp_path


def run(*command: str, counts: bool = True) -> suites.Counts:
    """Run a step of the suite "demo"."""
    return suites.run_step("demo", steps.Step("step", list(command), counts=counts))


def test_a_command_that_succeeds_is_one_case(logs: Path) -> None:
    assert run("true").passed == 1
    counts = suites.read_junit(logs / "demo-step.xml")
    assert (counts.passed, counts.failed, counts.skipped) == (1, 0, 0)


def test_a_command_that_fails_leaves_its_output_in_the_file(logs: Path) -> None:
    assert run("sh", "-c", "printf 'it broke \\033[1m<here>\\n'; exit 3").failed == 1
    assert suites.read_junit(logs / "demo-step.xml").failed == 1
    text = (logs / "demo-step.xml").read_text()
    assert "exit code 3" in text
    assert "it broke ?[1m&lt;here&gt;" in text


def test_a_preparation_is_not_counted_but_has_its_file(logs: Path) -> None:
    assert run("true", counts=False).passed == 0
    assert suites.read_junit(logs / "demo-step.xml").passed == 1


def test_the_file_of_the_command_itself_is_counted(logs: Path) -> None:
    cases = '<testsuite><testcase name="a"/><testcase name="b"><failure/></testcase></testsuite>'
    counts = run("sh", "-c", f"echo '{cases}' >{steps.JUNIT}; exit 1")
    assert (counts.passed, counts.failed) == (1, 1)


def test_a_file_with_a_fixed_place_is_kept_under_the_name_of_the_step(logs: Path, tmp_path: Path) -> None:
    fixed = tmp_path / "meson.xml"
    command = ["sh", "-c", f"echo '<testsuite><testcase name=\"a\"/></testsuite>' >{fixed}"]
    suites.run_step("demo", steps.Step("step", command, junit=str(fixed)))
    assert suites.read_junit(logs / "demo-step.xml").passed == 1


def test_a_command_that_should_have_written_a_file_and_failed_is_a_failure(logs: Path) -> None:
    assert run("sh", "-c", f": {steps.JUNIT}; exit 4").failed == 1


def test_a_step_beside_the_others_begins_with_the_suite_and_is_reported_in_its_place(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    waits = f"for i in $(seq 300); do [ -e {there} ] && exit 0; sleep 0.1; done; exit 1"
    first = steps.Step("first", ["sh", "-c", waits])
    beside = steps.Step("beside", ["touch", str(there)], counts=False, beside=True)
    result = suites.run_suite("demo", 0, lambda: [first, beside, steps.Step("last", ["false"])])
    assert (result.counts.passed, result.counts.failed) == (1, 1)
    reported = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert reported[:3] == [["first", "ok"], ["beside", "ok"], ["last", "FAILED"]]
    assert suites.read_junit(logs / "demo-beside.xml").passed == 1


def test_a_step_beside_the_others_ends_with_the_suite_that_gives_up(logs: Path) -> None:
    broken = steps.Step("broken", ["false"], needed=True)
    child = logs / "child"  # of the step: a build's compilers
    waits = ["sh", "-c", f"sleep 1000 & echo $! >{child}.new; mv {child}.new {child}; wait"]
    seen = steps.Step("seen", ["sh", "-c", f"until [ -e {child} ]; do sleep 0.1; done"])
    result = suites.run_suite("demo", 0, lambda: [seen, broken, steps.Step("beside", waits, beside=True)])
    assert result.counts.failed == 1
    assert result.seconds < 100
    state = Path(f"/proc/{child.read_text().strip()}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the child of the step runs on")


def test_the_boot_suite_takes_any_image_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("IMAGE", raising=False)
    assert f"--image={steps.IMAGE}" in steps.boot()[-1].command
    monkeypatch.setenv("IMAGE", str(tmp_path))
    given = steps.boot()
    assert f"--image={tmp_path}" in given[-1].command
    assert "image" not in {step.name for step in given}  # nothing is built that is not booted
    assert "--boot-long" in steps.boot_long()[-1].command


def test_the_reason_of_a_c_test_that_was_skipped_is_what_it_printed(logs: Path) -> None:
    case = '<testcase name="c"><skipped/><system-out>skip: no such device</system-out></testcase>'
    counts = run("sh", "-c", f"echo '<testsuite>{case}</testsuite>' >{steps.JUNIT}")
    assert counts.reasons == ["c: no such device"]
