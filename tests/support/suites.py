# SPDX-License-Identifier: MIT
"""Run test suites in order, with a time budget each, and close with one line of counts.

    build/venv/bin/python tests/support/suites.py [setup] [host] [parity] [qemu-user] [boot]

Each step writes its whole output to build/test-logs/SUITE-STEP.log, failures show the end of it, and a
JUnit file beside it, SUITE-STEP.xml: that of pytest or meson, else one with the step as its only case.
Everything that was skipped is listed with its reason, and which instruction sets and images ran.
The exit code is 0 only when nothing failed. Going over a budget is shown, not failed: machines
are shared.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import steps

REPOSITORY = Path(__file__).resolve().parents[2]
LOGS = REPOSITORY / "build" / "test-logs"
SHOWN_LINES = 60


@dataclass
class Counts:
    """Results of some tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    reasons: list[str] = field(default_factory=list)  # one line per skip

    def add(self, other: Counts) -> None:
        """Sum."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.reasons += other.reasons


@dataclass
class SuiteResult:
    """One row of the closing table."""

    name: str
    budget_minutes: float
    seconds: float
    counts: Counts


def read_junit(path: Path) -> Counts:
    """Counts of a JUnit file, by pytest or by meson.

    A C test prints a line "ok   NAME" or "FAIL NAME" for each of its tests: those are counted.
    """
    counts = Counts()
    for case in ET.parse(path).getroot().iter("testcase"):
        name = "::".join(filter(None, (case.get("classname"), case.get("name"))))
        skip = case.find("skipped")
        inner = re.findall(r"^(ok  |FAIL) test_\w+$", case.findtext("system-out") or "", re.MULTILINE)
        if inner and "FAIL" not in inner and case.find("failure") is None and case.find("error") is None:
            counts.passed += len(inner)
        elif case.find("failure") is not None or case.find("error") is not None:
            counts.failed += 1
        elif skip is not None:
            counts.skipped += 1
            said = re.findall(r"^skip: (.*)$", case.findtext("system-out") or "", re.MULTILINE)  # a C test's
            reason = skip.get("message") or skip.text or "; ".join(said) or "no reason given"
            counts.reasons.append(f"{name}: {reason}")
        else:
            counts.passed += 1
    return counts


def write_junit(path: Path, suite: str, name: str, seconds: float, code: int, log: Path) -> None:
    """A JUnit file with one case: a command that succeeded or not."""
    root = ET.Element("testsuites")
    facts = {"name": suite, "tests": "1", "failures": str(int(code != 0)), "time": f"{seconds:.3f}"}
    case = ET.SubElement(ET.SubElement(root, "testsuite", facts), "testcase", classname=suite, name=name)
    case.set("time", facts["time"])
    if code != 0:
        end = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
        # XML cannot hold most control characters.
        text = re.sub(r"[^\t\n\x20-\ud7ff\ue000-\ufffd]", "?", end)
        ET.SubElement(case, "failure", message=f"exit code {code}, output in {log}").text = text
    ET.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


@dataclass
class Running:
    """A step that was started."""

    step: steps.Step
    log: Path
    junit: Path
    process: subprocess.Popen[bytes]
    begin: float


def start_step(suite: str, step: steps.Step) -> Running:
    """Start the command of a step."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = LOGS / f"{suite}-{step.name}.log"
    junit = Path(step.junit) if step.junit else LOGS / f"{suite}-{step.name}.xml"
    junit.unlink(missing_ok=True)
    with log.open("w") as output:
        process = subprocess.Popen(
            [part.replace(steps.JUNIT, str(junit)) for part in step.command],
            cwd=REPOSITORY, env={**os.environ, **step.environment}, stdout=output,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, process_group=0 if step.beside else None,
        )  # fmt: skip
    return Running(step, log, junit, process, time.monotonic())


def finish_step(suite: str, running: Running) -> Counts:
    """Wait for a step, report it in one line, return its counts; the time is what was waited for it here."""
    step, log, junit = running.step, running.log, running.junit
    waited = time.monotonic()
    code = running.process.wait()
    seconds = time.monotonic() - (waited if step.beside else running.begin)
    kept = LOGS / f"{suite}-{step.name}.xml"
    if not junit.exists():
        write_junit(kept, suite, step.name, seconds, code, log)
    elif junit != kept:
        shutil.copyfile(junit, kept)
    if junit.exists() and step.writes_junit:
        counts = read_junit(junit)
        total = counts.passed + counts.failed + counts.skipped
        if total == 0 or (code and not counts.failed):
            counts.failed += 1
    elif step.counts:
        counts = Counts(failed=1) if code else Counts(passed=1)
    else:
        counts = Counts(failed=1) if code else Counts()
    words = "FAILED" if counts.failed else "ok"
    detail = f"{counts.passed} passed" if step.counts or counts.passed else "done"
    if counts.failed:
        detail += f", {counts.failed} failed"
    if counts.skipped:
        detail += f", {counts.skipped} skipped"
    if step.beside:
        detail += ", begun with the suite"
    print(f"  {step.name:<22} {words:<7} {detail:<34} {seconds:6.1f} s", flush=True)
    text = log.read_text(errors="replace").splitlines()
    for line in text:
        if line.startswith(steps.NOTE):
            print(f"      {line.removeprefix(steps.NOTE)}", flush=True)
    if counts.failed:
        print(f"      ---- end of {log.relative_to(REPOSITORY)}")
        for line in text[-SHOWN_LINES:]:
            print(f"      {line}")
        print(f"      ---- {' '.join(step.command)}", flush=True)
    return counts


def run_step(suite: str, step: steps.Step) -> Counts:
    """Start a step and finish it."""
    return finish_step(suite, start_step(suite, step))


def run_suite(name: str, budget: float, make: Callable[[], list[steps.Step]]) -> SuiteResult:
    """Run all steps of a suite; a failed step that later ones need ends it."""
    print(f"{name}: budget {budget:g} min" if budget else f"{name}:", flush=True)
    start = time.monotonic()
    counts = Counts()
    made = make()
    begun = {step.name: start_step(name, step) for step in made if step.beside}
    try:
        for step in made:
            got = finish_step(name, begun[step.name] if step.name in begun else start_step(name, step))
            counts.add(got)
            if got.failed and step.needed:
                print(f"  the steps after {step.name} need it and are not run", flush=True)
                break
    finally:
        for left in begun.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(left.process.pid, signal.SIGTERM)  # and what it started; nobody when it ended
            left.process.wait()
    return SuiteResult(name, budget, time.monotonic() - start, counts)


def report(results: list[SuiteResult], seconds: float) -> int:
    """Print skips, the table of budgets and the closing line; the exit code."""
    total = Counts()
    for result in results:
        total.add(result.counts)
    print()
    if total.reasons:
        print("skipped:")
        for reason in total.reasons:
            print(f"  {reason}")
    print(f"{'suite':<12} {'passed':>7} {'failed':>7} {'skipped':>8} {'minutes':>8} {'budget':>7}")
    for result in results:
        minutes = result.seconds / 60
        over = "  over its budget" if 0 < result.budget_minutes < minutes else ""
        counts = result.counts
        print(
            f"{result.name:<12} {counts.passed:>7} {counts.failed:>7} {counts.skipped:>8} "
            f"{minutes:>8.1f} {result.budget_minutes:>7g}{over}"
        )
    print(f"{'all':<12} {'':>7} {'':>7} {'':>8} {seconds / 60:>8.1f}")
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return 1 if total.failed or not total.passed else 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(steps.SUITES))
    parser.add_argument("--only", metavar="STEP", help="run the steps whose name contains this")
    arguments = parser.parse_args()
    names = arguments.suites or list(steps.SUITES)
    known = {**steps.SUITES, **{name: (0.0, make) for name, make in steps.PARTS.items()}}
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"unknown suite {unknown[0]!r}; known: {', '.join(known)}")
    start = time.monotonic()
    results = []
    for name in names:
        budget, make = known[name]
        if arguments.only:
            chosen = [step for step in make() if arguments.only in step.name]
            results.append(run_suite(name, budget, lambda chosen=chosen: chosen))  # type: ignore[misc]
        else:
            results.append(run_suite(name, budget, make))
        if name == "setup" and results[-1].counts.failed:
            break
    return report(results, time.monotonic() - start)


if __name__ == "__main__":
    sys.exit(main())
