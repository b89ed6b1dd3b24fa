#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Boot an image in QEMU, ask its model a question and print the answer with the measurements.

The end of ``make demo``. With --interactive it only boots and gives the console to the caller.
Exit codes: 0 the answer came (and equals the golden result, where there is one for this prompt),
1 it did not, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "boot"))

from harness import (  # noqa: E402
    Board,
    ConsoleError,
    Image,
    Machine,
    MachineOptions,
    Shell,
    UnexpectedOutput,
    qemu_command,
)

DEFAULT_PROMPT = "What is the capital of France?"
DEFAULT_TOKENS = 24
GENERATION_SECONDS = 1200.0
GROUP = "/sys/fs/cgroup/demo"
ERRORS = "/tmp/demo.err"
_MARKER_CHARACTERS = 33  # 32 hex digits and "<" or ">", see harness.Shell.run


class Progress:
    """Shows the console to a person: passes text on at once, leaves the harness's marks out."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._line = ""
        self._shown = 0

    def write(self, text: str) -> int:
        """Take console text, in pieces of any length."""
        for character in text:
            self._line += character
            if character == "\n":
                self._show(complete=True)
                self._line, self._shown = "", 0
        self._show(complete=False)
        return len(text)

    def _show(self, *, complete: bool) -> None:
        line = self._line
        if re.match(r"[0-9a-f]{32}[<>]|\[harness\]", line) or (complete and line == "\n"):
            return
        undecided = not complete and len(line) < _MARKER_CHARACTERS
        if undecided and (re.fullmatch(r"[0-9a-f]+", line) or "[harness]".startswith(line[:9])):
            return
        self._stream.write(line[self._shown :])
        self._shown = len(line)

    def flush(self) -> None:
        """Pass it on."""
        self._stream.flush()


@dataclass(frozen=True)
class Measured:
    """What the demo reports."""

    answer: str
    tokens_per_second: str
    first_token_ms: str
    vmhwm_bytes: int
    group_peak_bytes: int
    plan_bytes: int


def choose_model(shell: Shell, wanted: str | None) -> str:
    """The path of the named model, or of the largest one."""
    listing = shell.output("ls -S /models/*.colibri").split()
    if wanted is None:
        return listing[0]
    path = f"/models/{Path(wanted).name}"
    if path not in listing:
        raise ValueError(f"the image has no {path}; it has {', '.join(listing)}")
    return path


def ask(shell: Shell, model: str, prompt: str, tokens: int, threads: int, progress: Progress) -> Measured:
    """Run the model in a control group of its own; the text streams over the console."""
    shell.run(f"mkdir -p {GROUP}", check=True)
    run = f"exec colibrictl run {model} --chat -p {shlex.quote(prompt)} -n {tokens} --threads {threads} 2>{ERRORS}"
    command = f"sh -c {shlex.quote(f'echo $$ >{GROUP}/cgroup.procs; {run}')}"
    shell.console.tee(progress)
    result = shell.run(command, timeout=GENERATION_SECONDS)
    shell.console.tee(None)
    errors = shell.read_file(ERRORS).decode("utf-8", "replace")
    log = shell.console.log_path
    if result.exit_code != 0:
        raise UnexpectedOutput(f"colibrictl ended with exit code {result.exit_code}: {errors.strip()}", log)
    answer = result.output.strip()
    if not answer:
        raise UnexpectedOutput(f"the model said nothing: {errors.strip()}", log)

    def field(name: str) -> str:
        match = re.search(rf"\b{name}=(\S+)", errors)
        if match is None:
            raise UnexpectedOutput(f"colibrictl printed no {name}=: {errors.strip()}", log)
        return match.group(1)

    return Measured(
        answer=answer,
        tokens_per_second=field("tok_s"),
        first_token_ms=field("first_token_ms"),
        vmhwm_bytes=int(field("vmhwm_bytes")),
        group_peak_bytes=int(shell.output(f"cat {GROUP}/memory.peak")),
        plan_bytes=int(field("plan_bytes")),
    )


def golden_text(shell: Shell, model: str, prompt: str, tokens: int) -> str | None:
    """The text that the numpy reference computed for this prompt, when the image has it."""
    path = model.removesuffix(".colibri") + ".golden.json"
    if shell.run(f"test -r {path}").exit_code != 0:
        return None
    cases: list[dict[str, Any]] = json.loads(shell.read_file(path))["cases"]
    for case in cases:
        if case["chat"] and case["prompt"] == prompt and case["n"] <= tokens:
            return str(case["text"]).strip()
    return None


def megabytes(count: int) -> str:
    """A size for people."""
    return f"{count / 1e6:.1f} MB"


def run_demo(options: argparse.Namespace, machine: Machine) -> int:
    """Boot, ask, report."""
    progress = Progress(sys.stdout)
    started = time.monotonic()
    shell = machine.start(tee=progress)
    model = choose_model(shell, options.model)
    expected = golden_text(shell, model, options.prompt, options.tokens)
    cores = machine.options.cores or machine.board.cores
    # An emulated core needs a real one; more threads than those would wait for each other.
    threads = min(cores, os.cpu_count() or 1)
    print(f"\ndemo: {model} is asked: {options.prompt}", flush=True)
    measured = ask(shell, model, options.prompt, options.tokens, threads, progress)
    shell.prove_alive()
    machine.power_off()
    seconds = time.monotonic() - started
    same = expected is not None and measured.answer.startswith(expected)
    rows = {
        "question": options.prompt,
        "answer": measured.answer,
        "golden result": "none for this prompt" if expected is None else "equal" if same else "DIFFERS",
        "speed": f"{measured.tokens_per_second} tokens/s with {threads} threads (emulated processor)",
        "first token": f"{float(measured.first_token_ms) / 1000:.1f} s",
        "peak memory": f"{megabytes(measured.vmhwm_bytes)} (VmHWM), "
        f"{megabytes(measured.group_peak_bytes)} (control group), "
        f"planned {megabytes(measured.plan_bytes)}",
        "boot to login": f"{machine.boot_seconds:.1f} s of {seconds:.1f} s",
        "console log": str(machine.log_path),
    }
    print()
    for name, value in rows.items():
        print(f"{name + ':':<15}{value}")
    if expected is not None and not same:
        print(f"demo: the numpy reference says: {expected!r}", file=sys.stderr)
        return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(
        description="Boot an image in QEMU and ask its model a question.",
        epilog="exit codes: 0 answered, 1 no answer or not the golden one, 2 usage",
    )
    parser.add_argument("--image", type=Path, required=True, metavar="DIR", help="image folder")
    parser.add_argument("--board", type=Path, metavar="FILE", help="default: DIR/board.toml")
    parser.add_argument("--model", metavar="NAME", help="file in /models (default: the largest)")
    parser.add_argument("--prompt", "-p", default=DEFAULT_PROMPT, metavar="TEXT")
    parser.add_argument("--tokens", "-n", type=int, default=DEFAULT_TOKENS, metavar="N")
    parser.add_argument("--cpu", help="QEMU's -cpu (default: the board's)")
    parser.add_argument("--cores", type=int, metavar="N", help="default: the board's")
    parser.add_argument("--ram", type=int, metavar="MIB", help="default: the board's")
    parser.add_argument("--log", type=Path, metavar="FILE", help="default: DIR/../boot-logs/demo.log")
    parser.add_argument("--interactive", action="store_true", help="only boot; the console is yours (Ctrl-A X ends)")
    options = parser.parse_args(argv)
    try:
        image = Image.load(options.image)
        board = Board.load(options.board or options.image / "board.toml")
    except ValueError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    chosen = MachineOptions(cpu=options.cpu, cores=options.cores, ram_mib=options.ram)
    if options.interactive:
        command = qemu_command(image, board, chosen, interactive=True)
        os.execvp(command[0], command)
    log = options.log or options.image.resolve().parent / "boot-logs" / "demo.log"
    machine = Machine(image, board, log, chosen)
    try:
        return run_demo(options, machine)
    except (ConsoleError, ValueError, FileNotFoundError) as error:
        print(f"\ndemo: no answer: {error}", file=sys.stderr)
        return 1
    finally:
        machine.close()


if __name__ == "__main__":
    sys.exit(main())
