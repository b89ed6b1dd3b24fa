# SPDX-License-Identifier: MIT
"""`colibri plan`: what a model needs on a board, and how fast it is predicted to be there."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colibri._spec import DEFAULT_THREADS, Code
from colibri.boards import MIB, Board, find_board, known_boards
from colibri.errors import ColibriError
from colibri.format import ModelFile, open_model
from colibri.plan import KV_ELEMENT_BYTES, RESIDENCIES, MemoryPlan, PlanOptions, plan_file
from colibri.predict import Prediction, Side, model_work, predict, wanted

RESERVE_BYTES = 48 * MIB  # kernel, init and shell of a small image
RESERVE_SHARE = 32  # and one part of this many of the RAM: page structures, page tables, caches
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([KMGT]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes of a size such as 1.5G, 512M or 4096: whole bytes."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write bytes, or a number with K, M, G or T: 1.5G")
    size = int(float(match[1]) * _UNITS[match[2]])
    if not 0 < size < 1 << 62:
        raise argparse.ArgumentTypeError(f"{text!r} is outside 1..2^62")
    return size


def _number(low: float, high: float, what: str) -> Any:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is no {what}; give a number in {low:g}..{high:g}")
        return value

    return parse


def add_memory_arguments(parser: argparse.ArgumentParser) -> None:
    """What a memory plan depends on: the options that `colibri plan` and `colibri units` share."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a .colibri file")
    parser.add_argument("--board", metavar="NAME|FILE.toml", help="the machine; see colibri plan --list-boards")
    parser.add_argument("--ram", type=parse_size, metavar="SIZE", help="its RAM, e.g. 1.5G (default: the board's)")
    parser.add_argument(
        "--budget", type=parse_size, metavar="SIZE", help="memory for the engine (default: RAM less --reserve)"
    )
    parser.add_argument(
        "--reserve", type=parse_size, metavar="SIZE", help="RAM for the system (default: 48M and 1/32 of the RAM)"
    )
    parser.add_argument(
        "-c",
        "--context",
        type=int,
        default=0,
        metavar="N",
        help="tokens of the KV cache (default: the model's own, at most 2048)",
    )
    parser.add_argument("-b", "--batch", type=int, default=0, metavar="N", help="prompt tokens per batch (default 32)")
    parser.add_argument(
        "-t", "--threads", type=int, default=0, metavar="N", help="threads (default: the board's cores, at most 4)"
    )
    parser.add_argument("--sessions", type=int, default=0, metavar="N", help="sessions (default 1)")
    parser.add_argument(
        "--kv", choices=tuple(KV_ELEMENT_BYTES), default="f16", help="type of the KV cache (default f16)"
    )
    parser.add_argument("--max-text", type=int, default=0, metavar="BYTES", help="longest text (default 65536)")
    parser.add_argument(
        "--residency", choices=RESIDENCIES, default="auto", help="where the experts live (default auto)"
    )
    parser.add_argument(
        "--slots", type=int, default=0, metavar="N", help="experts in memory when streaming (default: what fits)"
    )
    parser.add_argument("--io-threads", type=int, default=0, metavar="N", help="threads that read experts (default 4)")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri plan`."""
    add_memory_arguments(parser)
    parser.add_argument("--storage", metavar="NAME", help="where the model lies (default: the board's first)")
    parser.add_argument(
        "--hit", type=_number(0, 1, "hit rate"), metavar="0..1", help="assume this hit rate of the expert slots"
    )
    parser.add_argument(
        "--position", type=int, default=128, metavar="N", help="tokens before the one that is timed (default 128)"
    )
    parser.add_argument(
        "--want", type=_number(1e-6, 1e6, "speed"), metavar="TOK/S",
        help="say which condition of this speed holds; exit code 1 when one fails",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--list-boards", action="store_true", help="show the boards that are known")
    parser.add_argument(
        "--calibrate", metavar="OUT.toml", type=Path, help="measure this machine, and write its board file"
    )
    parser.add_argument(
        "--storage-file", metavar="PATH", type=Path, help="with --calibrate: time reads of this file (default: MODEL)"
    )


@dataclass(frozen=True)
class MemoryAnswer:
    """The memory plan of a model on a board."""

    board: Board
    ram_bytes: int
    budget_bytes: int
    plan: MemoryPlan


@dataclass(frozen=True)
class Answer(MemoryAnswer):
    """Everything that `colibri plan` says."""

    prediction: Prediction | None
    sides: list[Side]

    def as_json(self) -> dict[str, Any]:
        """For programs; predictions are under "predicted"."""
        predicted: dict[str, Any] | None = None
        if self.prediction is not None:
            predicted = asdict(self.prediction)
            predicted["relieved_by"] = relief(self.plan, self.prediction)
            for name in ("first_token_cold", "first_token_warm"):
                predicted[name] = {str(tokens): seconds for tokens, seconds in predicted[name].items()}
        return {
            "board": self.board.name,
            "ram_bytes": self.ram_bytes,
            "budget_bytes": self.budget_bytes,
            "plan": asdict(self.plan),
            "predicted": predicted,
            "want": [asdict(side) for side in self.sides],
        }


def relief(plan: MemoryPlan, prediction: Prediction) -> str | None:
    """RAM when storage is the limit only because not all experts fit."""
    return "RAM" if prediction.limit == "flash" and plan.residency == "stream" else None


def reserve_of(ram: int) -> int:
    """RAM that the system keeps, an estimate that docs/plan.md explains."""
    return RESERVE_BYTES + ram // RESERVE_SHARE


def plan_memory(model: ModelFile, args: argparse.Namespace) -> MemoryAnswer:
    """Memory plan; raises `budget` below the floor."""
    board = find_board(args.board)
    ram = args.ram or board.ram_mib * MIB
    reserve = reserve_of(ram) if args.reserve is None else args.reserve
    budget = args.budget or ram - reserve
    if budget <= 0:
        raise ColibriError(Code.BUDGET, f"{ram} bytes of RAM less {reserve} for the system is nothing; see --reserve")
    if args.budget and args.budget > ram:
        raise ColibriError(Code.ARGUMENT, f"--budget {args.budget} is above the RAM of {ram} bytes; give --ram too")
    options = PlanOptions(
        context_tokens=args.context,
        batch_tokens=args.batch,
        max_sessions=args.sessions,
        threads=args.threads or min(board.cores, DEFAULT_THREADS),
        kv=args.kv,
        max_text_bytes=args.max_text,
        residency=args.residency,
        expert_slots=args.slots,
        io_threads=args.io_threads,
        budget_bytes=budget,
    )
    return MemoryAnswer(board, ram, budget, plan_file(model, options))


def plan_model(model: ModelFile, args: argparse.Namespace) -> Answer:
    """Memory plan and prediction; raises `budget` below the floor."""
    if args.position < 0:
        raise ColibriError(Code.ARGUMENT, f"--position {args.position}; give 0 or more tokens")
    memory = plan_memory(model, args)
    board, plan = memory.board, memory.plan
    if args.storage is not None:
        board.storage(args.storage)
    if not board.has_speeds or not board.storages:
        if args.want is not None:
            raise ColibriError(Code.ARGUMENT, f"board {board.name} has no speeds: --want has no answer; calibrate it")
        return Answer(board, memory.ram_bytes, memory.budget_bytes, plan, None, [])
    work = model_work(model, args.kv)
    prediction = predict(work, board, plan, args.storage, args.position, args.hit)
    sides = wanted(work, board, plan, prediction, args.want) if args.want is not None else []
    return Answer(board, memory.ram_bytes, memory.budget_bytes, plan, prediction, sides)


# --------------------------------------------------------------------------- text


def unsold(board: Board, ram: int) -> str | None:
    """What to say when a board does not exist with so much RAM: the plan holds, the purchase does not."""
    if ram in (size * MIB for size in board.ram_sizes_mib):
        return None
    known = ", ".join(f"{size / 1024:g}" for size in board.ram_sizes_mib)
    return f"{board.name} is not sold with {ram / (1 << 30):.4g} GiB of RAM, but with {known}"


def print_notes(answer: MemoryAnswer) -> None:
    """Say on stderr what the plan takes for granted."""
    note = unsold(answer.board, answer.ram_bytes)
    if note is not None:
        print(f"note: {note}", file=sys.stderr)


def rounded(value: float) -> str:
    """A prediction for people, three significant digits: the figures behind it have no more. 9108.13 is 9,110."""
    if value <= 0:
        return "0"
    digits = 2 - math.floor(math.log10(value))
    near = round(value, digits)
    return f"{near:,.{max(0, 2 - math.floor(math.log10(near)))}f}"


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f} MiB"


def _row(name: str, size: int, note: str = "") -> str:
    return f"  {name:<24}{size:>16,}  {note}".rstrip()


def _plan_text(answer: Answer) -> Iterator[str]:
    plan = answer.plan
    budget = f"budget {_mib(answer.budget_bytes)} of {_mib(answer.ram_bytes)} RAM"
    yield (
        f"{answer.board.description}: {budget}; context {plan.context_tokens}, batch {plan.batch_tokens}, "
        f"sessions {plan.max_sessions}, threads {plan.threads}, KV cache {plan.kv}"
    )
    yield "memory plan in bytes"
    what = "the file without its experts" if plan.residency == "stream" else "the whole file"
    yield _row("mapped", plan.mapped_bytes, what)
    yield _row("KV cache", plan.kv_bytes)
    yield _row("activations", plan.activation_bytes)
    yield _row("tables", plan.table_bytes)
    if plan.residency == "stream":
        yield _row("expert slots", plan.slots_bytes, f"{plan.expert_slots} slots, {plan.slot_bytes:,} bytes each")
        yield _row("I/O", plan.io_stack_bytes, f"{plan.io_threads} threads")
    yield _row("stacks", plan.stack_bytes)
    yield _row("process", plan.process_bytes)
    yield _row("kernel", plan.kernel_bytes, "page tables and bookkeeping")
    yield _row("total", plan.total_bytes, "the peak, never exceeded")
    yield _row("floor", plan.floor_bytes, "the smallest budget that runs")
    yield _row("recommended", plan.recommended_bytes, "every expert in memory")
    experts = f", {plan.expert_slots} of {plan.max_expert_slots} experts in memory" if plan.expert_slots else ""
    yield f"residency: {plan.residency}{experts}"


_LIMITS = {
    "dram": "DRAM bandwidth",
    "flash": "storage",
    "compute": "compute",
    "steps": "the threads' meeting points",
}


def _seconds(value: float) -> str:
    return f"{rounded(value * 1e3)} ms" if value < 1 else f"{rounded(value)} s"


def _prediction_text(answer: Answer, p: Prediction) -> Iterator[str]:
    plan, board = answer.plan, answer.board
    assert board.bandwidth is not None
    assert board.compute is not None
    bases = {board.bandwidth.basis, board.compute.basis, board.storages[p.storage].basis}
    yield f"predicted, not measured (model on {p.storage}; the board's figures are {', '.join(sorted(bases))})"
    yield f"  tokens per second       {rounded(p.tokens_per_second):>16}  predicted, behind {p.position} tokens"
    limit = f"{_LIMITS[p.limit]}"
    if relief(plan, p) == "RAM":
        limit += f", for want of RAM: {_mib(plan.recommended_bytes)} hold every expert"
    yield f"  limited by              {limit}"
    parts = ", ".join(
        f"{name} {rounded(getattr(p.seconds, name) * 1e3)}" for name in ("dram", "compute", "flash", "steps")
    )
    yield f"  ms per token            {rounded(p.seconds.total * 1e3):>16}  alone: {parts}"
    yield f"  bytes per token         {p.active_bytes:>16,}  read from DRAM"
    if plan.residency == "stream":
        yield f"  hit rate                {p.hit_rate:>16.3f}  {p.hit_source}"
        storage = f"{p.flash_bytes_per_token:,.0f} bytes from storage"
        yield f"  misses per token        {p.misses_per_token:>16.2f}  {storage}"
    yield f"  ready after             {_seconds(p.start_seconds):>16}  reading what is mapped, nothing cached"
    for tokens in p.first_token_cold:
        cold, warm = p.first_token_cold[tokens], p.first_token_warm[tokens]
        yield f"  first token, prompt {tokens:<4}{_seconds(cold):>16}  predicted; again, warm: {_seconds(warm)}"


def answer_text(answer: Answer, wish: float | None) -> Iterator[str]:
    """The answer for people, line by line."""
    yield from _plan_text(answer)
    if answer.prediction is None:
        yield f"no prediction: board {answer.board.name} states no speeds; run colibri plan --calibrate on it"
        return
    yield from _prediction_text(answer, answer.prediction)
    if wish is not None:
        yield f"{wish:g} tokens/s:"
        for side in answer.sides:
            yield f"  {side.name:<10}{side.text}"
        failed = [side.name for side in answer.sides if not side.holds]
        yield "  answer    " + ("predicted to hold" if not failed else f"fails on {', '.join(failed)}")


def board_lines() -> Iterator[str]:
    """The boards that come with the package."""
    for board in known_boards().values():
        rams = "/".join(f"{size / 1024:g}" for size in board.ram_sizes_mib)
        storages = ", ".join(f"{name} {storage.read_mbps:g}" for name, storage in board.storages.items())
        dram = f"DRAM {max(board.bandwidth.read_mbps):,.0f} MB/s" if board.bandwidth is not None else "no speeds"
        yield f"{board.name:<24}{board.cores} x {board.core or board.arch}, {rams} GiB, {dram}; MB/s of {storages}"
        yield f"{'':<24}{board.description}"


def plan_command(args: argparse.Namespace) -> int:
    """`colibri plan`."""
    if args.list_boards:
        if args.model is not None or args.calibrate is not None:
            raise ColibriError(Code.ARGUMENT, "--list-boards stands alone; leave MODEL and --calibrate out")
        for line in board_lines():
            print(line)
        return 0
    if args.calibrate is not None:
        from colibri.calibrate_machine import calibrate_command

        return calibrate_command(args)
    if args.storage_file is not None:
        raise ColibriError(Code.ARGUMENT, "--storage-file belongs to --calibrate")
    if args.model is None:
        raise ColibriError(Code.ARGUMENT, "give MODEL, a .colibri file; or --list-boards, or --calibrate OUT.toml")
    if args.board is None:
        raise ColibriError(Code.ARGUMENT, "give --board NAME or FILE.toml; colibri plan --list-boards shows the names")
    with open_model(args.model) as model:
        answer = plan_model(model, args)
    print_notes(answer)
    if args.json:
        print(json.dumps(answer.as_json(), indent=1))
    else:
        for line in answer_text(answer, args.want):
            print(line)
    return 0 if all(side.holds for side in answer.sides) else 1
