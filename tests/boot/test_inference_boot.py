# SPDX-License-Identifier: MIT
"""Inference in the booted image: exact tokens, exact logits, within the planned memory.

The expected results lie beside each model (NAME.golden.json); the numpy reference computed them.
Nothing here looks for a word in a text: ids, text and the hash of the logits must be equal.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import dataclass
from typing import Any

import pytest
from boot_run import BootRun, SharedMachine
from harness import Captured, Shell

MODELS = "/models"
SMALL_BYTES = 16 << 20  # models up to this size run every variant, larger ones run once per case
ISAS = ("ref", "neon", "dotprod", "i8mm")
THREADS = (1, 2, 3, 4)
SPLITS = ("each", "1", "5", "2,3")
GENERATION_SECONDS = 900.0  # a large model on an emulated machine that others use, too

# Exit codes of the command, as docs/api and engine/spec/format.toml state them.
OK, RUN_TIME, USAGE, UNVERIFIED, BUDGET, ENVIRONMENT = range(6)


@dataclass(frozen=True)
class Case:
    """One golden case of a model."""

    name: str
    prompt: str
    chat: bool
    prompt_ids: tuple[int, ...]
    kv: str
    n: int
    ids: tuple[int, ...]
    text: str
    logits_sha256: str

    def arguments(self) -> str:
        """Options that ask for this case."""
        if self.prompt:
            source = f"-p {shlex.quote(self.prompt)}" + (" --chat" if self.chat else "")
        else:
            source = "--ids " + ",".join(map(str, self.prompt_ids))
        return f"{source} -n {self.n} --kv {self.kv}"


@dataclass(frozen=True)
class Model:
    """A model of the image."""

    path: str
    size: int
    root: str
    cases: tuple[Case, ...]

    @property
    def small(self) -> bool:
        """Whether every variant can be run in a test's time."""
        return self.size <= SMALL_BYTES


@dataclass(frozen=True)
class Answer:
    """What a run gave."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    text: str
    logits_sha256: str
    plan_bytes: int
    peak_bytes: int
    locked_bytes: int


@pytest.fixture(scope="session")
def models(shared_machine: SharedMachine) -> list[Model]:
    """All models of the image with their golden results."""
    shell = shared_machine.shell()
    paths = shell.output(f"ls {MODELS}/*.colibri").split()
    return [_load_model(shell, path) for path in paths]


def _load_model(shell: Shell, path: str) -> Model:
    golden = json.loads(shell.read_file(path.removesuffix(".colibri") + ".golden.json"))
    cases = tuple(_load_case(case) for case in golden["cases"])
    assert cases, f"{path} has no golden case"
    return Model(path, int(shell.output(f"stat -c %s {path}")), golden["root"], cases)


def _load_case(case: dict[str, Any]) -> Case:
    return Case(
        name=case["name"],
        prompt=case["prompt"],
        chat=case["chat"],
        prompt_ids=tuple(case["prompt_ids"]),
        kv=case["kv"],
        n=case["n"],
        ids=tuple(case["ids"]),
        text=case["text"],
        logits_sha256=case["logits_sha256"],
    )


@pytest.fixture
def small_model(models: list[Model]) -> Model:
    """A model small enough for every variant."""
    small = [model for model in models if model.small]
    assert small, f"the image has no model of at most {SMALL_BYTES} bytes"
    return small[0]


@pytest.fixture
def available(shell: Shell) -> frozenset[str]:
    """The instruction sets of ISAS that the guest's CPU has; every AArch64 CPU has the first two."""
    found = frozenset(field(r"isas_available\s+(.*)$", shell.output("colibrictl info")).split())
    assert {"ref", "neon"} <= found <= set(ISAS)
    return found


def field(pattern: str, text: str) -> str:
    """The group of a pattern that the command's last lines must contain."""
    match = re.search(pattern, text, re.MULTILINE)
    assert match is not None, f"no {pattern!r} in: {text!r}"
    return match.group(1)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers of a line."""
    return tuple(int(word) for word in text.split())


def answer_of(captured: Captured) -> Answer:
    """The parts of a successful run, whose results stand on stderr, or behind the text where no log may have them."""
    assert captured.exit_code == OK, captured.messages
    text, results = captured.stdout.decode("utf-8", "replace"), captured.stderr
    if captured.log is not None:
        assert captured.stderr == ""
        lines = text.splitlines(keepends=True)
        text, results = "".join(lines[:-3]), "".join(lines[-3:])
    return Answer(
        prompt_ids=numbers(field(r"^prompt-ids:(.*)$", results)),
        ids=numbers(field(r"^ids:(.*)$", results)),
        text=text,
        logits_sha256=field(r"^logits-sha256: ([0-9a-f]{64})$", results),
        plan_bytes=int(field(r"^memory: .*\bplan_bytes=(\d+)", captured.messages)),
        peak_bytes=int(field(r"^memory: .*\bvmhwm_bytes=(\d+)", captured.messages)),
        locked_bytes=int(field(r"^memory: .*\blocked_bytes=(\d+)", captured.messages)),
    )


def printed(text: str, captured: Captured) -> str:
    """How a text of an answer is printed: a result behind it begins on a line of its own."""
    return text if captured.log is None or text.endswith("\n") or not text else text + "\n"


def run_case(shell: Shell, model: Model, case: Case, options: str = "", group: str | None = None) -> Answer:
    """Run one case in the guest and compare everything that is pinned.

    group: folder of a control group to run in.
    """
    if model.small and "--threads" not in options:
        # Emulated cores that share real ones wait long for each other: 4 s with one thread, 44 s with four.
        options = f"--threads 1 {options}"
    command = f"colibrictl run {model.path} {case.arguments()} --print-ids --logits-sha256 {options}"
    if group is not None:
        inside = f"echo $$ >{group}/cgroup.procs; exec {command}"
        command = f"sh -c {shlex.quote(inside)}"
    captured = shell.capture(command, timeout=GENERATION_SECONDS)
    answer = answer_of(captured)
    found = (answer.prompt_ids, answer.ids, answer.text, answer.logits_sha256)
    expected = (case.prompt_ids, case.ids, printed(case.text, captured), case.logits_sha256)
    assert found == expected, f"{model.path} {case.name} {options}"
    return answer


def test_every_model_gives_its_golden_tokens_and_logits_within_its_plan(
    boot_run: BootRun, shell: Shell, models: list[Model], subtests: pytest.Subtests
) -> None:
    # An emulated core needs a real one; more threads than those would wait for each other.
    threads = min(boot_run.options.cores or boot_run.board.cores, os.cpu_count() or 1)
    for number, model in enumerate(models):
        for case in model.cases:
            group = f"/sys/fs/cgroup/plan-{number}-{case.name}"
            # What earlier runs read is charged to nobody; now it must be charged to this group.
            shell.run(f"echo 3 >/proc/sys/vm/drop_caches; mkdir {group}", check=True)
            with subtests.test(model=model.path, case=case.name):
                options = f"--isa neon --threads {threads}"
                answer = run_case(shell, model, case, options, group=group)
                assert answer.peak_bytes <= answer.plan_bytes
                group_peak = int(shell.output(f"cat {group}/memory.peak"))
                assert model.size // 2 <= group_peak
                if boot_run.image.page_bytes == 4096:
                    assert group_peak <= answer.plan_bytes
                else:
                    assert_enough(shell, model, case, options, answer.plan_bytes)
            shell.run(f"rmdir {group}", check=True)


def assert_enough(shell: Shell, model: Model, case: Case, options: str, limit: int) -> None:
    """A group with the plan as its limit kills nothing.

    Its peak says that only with small pages: the kernel charges a group 64 pages per processor ahead,
    16 MiB with 4 processors and pages of 64 KiB, and gives them back when the limit is near.
    """
    group = f"/sys/fs/cgroup/limited-{case.name}"
    shell.run(f"echo 3 >/proc/sys/vm/drop_caches; mkdir {group} && echo {limit} >{group}/memory.max", check=True)
    answer = run_case(shell, model, case, f"{options} --budget {limit}", group=group)
    assert answer.peak_bytes <= limit
    assert int(shell.output(f"cat {group}/memory.peak")) <= limit
    assert re.search(r"^oom_kill 0$", shell.output(f"cat {group}/memory.events"), re.MULTILINE)
    shell.run(f"rmdir {group}", check=True)


def test_the_portable_kernels_give_the_same_bits(shell: Shell, small_model: Model, subtests: pytest.Subtests) -> None:
    for case in small_model.cases:
        with subtests.test(case=case.name):
            run_case(shell, small_model, case, "--isa ref")


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("isa", ISAS)
def test_threads_change_no_bit(
    shell: Shell, small_model: Model, available: frozenset[str], isa: str, threads: int
) -> None:
    case, options = small_model.cases[0], f"--isa {isa} --threads {threads}"
    if isa in available:
        run_case(shell, small_model, case, options)
    else:  # a CPU without it says so
        captured = shell.capture(f"colibrictl run {small_model.path} {case.arguments()} {options}")
        assert captured.exit_code == ENVIRONMENT


@pytest.mark.parametrize("split", SPLITS)
def test_prompt_splits_change_no_bit(shell: Shell, small_model: Model, split: str) -> None:
    run_case(shell, small_model, small_model.cases[0], f"--batch-split {split}")


def test_the_operators_pass_their_self_test(shell: Shell, available: frozenset[str]) -> None:
    captured = shell.capture("colibrictl selftest")
    assert captured.exit_code == OK, captured.messages
    assert {f"selftest: {isa} ok" for isa in available} <= set(captured.stdout.decode().splitlines())


def test_info_prints_the_root_of_every_model(shell: Shell, models: list[Model]) -> None:
    for model in models:
        assert model.root in shell.output(f"colibrictl info {model.path}")


def test_the_model_is_locked_in_memory(shell: Shell, small_model: Model) -> None:
    answer = run_case(shell, small_model, small_model.cases[0], "--lock require")
    assert answer.locked_bytes >= small_model.size


def test_a_lock_that_cannot_be_had_is_refused_when_it_is_required(shell: Shell, small_model: Model) -> None:
    run = f"colibrictl run {small_model.path} {small_model.cases[0].arguments()} --lock require"
    limited = f"ulimit -l 64; {run}"
    captured = shell.capture(f"su colibri -s /bin/sh -c {shlex.quote(limited)}")
    assert captured.exit_code == ENVIRONMENT, captured.messages
    assert "RLIMIT_MEMLOCK" in captured.messages


def test_a_budget_below_the_floor_is_refused_with_the_number(shell: Shell, small_model: Model) -> None:
    case = small_model.cases[0]
    captured = shell.capture(f"colibrictl run {small_model.path} {case.arguments()} --budget 64K")
    assert captured.exit_code == BUDGET, captured.messages
    assert "65536" in captured.messages
    assert captured.stdout == b""


@pytest.mark.parametrize("place", ["header", "middle", "end"])
def test_a_tampered_model_is_refused(shell: Shell, small_model: Model, place: str) -> None:
    offset = {"header": 100, "middle": small_model.size // 2, "end": small_model.size - 1}[place]
    copy = "/tmp/tampered.colibri"
    old = int(shell.output(f"od -An -tu1 -j {offset} -N 1 {small_model.path}"))
    shell.run(
        f"cp {small_model.path} {copy} && printf '\\{old ^ 0x40:03o}' | dd of={copy} bs=1 seek={offset} conv=notrunc",
        check=True,
    )
    assert shell.run(f"cmp {small_model.path} {copy}").exit_code == 1
    captured = shell.capture(f"colibrictl run {copy} {small_model.cases[0].arguments()} --verify open")
    shell.run(f"rm {copy}", check=True)
    assert captured.exit_code == UNVERIFIED, captured.messages
    assert captured.stdout == b""


def test_a_truncated_model_is_refused(shell: Shell, small_model: Model) -> None:
    copy = "/tmp/short.colibri"
    shell.run(f"dd if={small_model.path} of={copy} bs=4096 count=20", check=True)
    captured = shell.capture(f"colibrictl run {copy} {small_model.cases[0].arguments()}")
    shell.run(f"rm {copy}", check=True)
    assert captured.exit_code == UNVERIFIED, captured.messages
    assert "truncated" in captured.messages


def test_a_missing_model_is_named(shell: Shell) -> None:
    captured = shell.capture("colibrictl run /models/none.colibri -p x")
    assert captured.exit_code == RUN_TIME
    assert "/models/none.colibri" in captured.messages
    assert captured.log is None or captured.stderr == ""  # the system log alone has it


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--ids 0,1,2,3,4,5,6,7,8,9 --context 8", "prompt_long"),
        ("--ids 0,1000000", "token_range"),
        ("--ids 0 --no-such-option", "no-such-option"),
        ("", "prompt"),
    ],
)
def test_a_request_that_cannot_be_met_is_a_usage_error(
    shell: Shell, small_model: Model, options: str, word: str
) -> None:
    captured = shell.capture(f"colibrictl run {small_model.path} {options}")
    assert captured.exit_code == USAGE, captured.messages
    hidden = captured.log is not None and word in options  # words of a command line may be those of a prompt
    assert (word in captured.messages) != hidden
    assert re.search(r"\(error -\d+ \w+\)", captured.messages)
    assert captured.stdout == b""


def test_the_articles_name_for_the_benchmark_works(shell: Shell, small_model: Model) -> None:
    captured = shell.capture(f"colibri_test {small_model.path}", timeout=GENERATION_SECONDS)
    assert captured.exit_code == OK, captured.messages
