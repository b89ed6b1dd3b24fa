# SPDX-License-Identifier: MIT
"""`colibri units`: the settings of the service for one model on one board.

The units and init scripts of engine/units are the same for every model. What differs is written here
when an image is built: the options of the model, and the memory that its plan takes.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from colibri._spec import Code
from colibri.boards import MIB
from colibri.errors import ColibriError
from colibri.files import write_file, writing
from colibri.format import open_model
from colibri.plan import PROCESS_BYTES, MemoryPlan
from colibri.plan_command import add_memory_arguments, plan_memory, print_notes

CONFIGURATION = "colibri.conf"
DROP_IN = "memory.conf"
SERVICES = ("colibri.service", "colibri-health.service")
SERVE_OPTIONS = "--clients 8 --request-seconds 300"
DEVICE_MODEL = "/usr/share/colibri/model.colibri"
# Read by systemd and by a shell, both within double quotes.
_SAFE = re.compile(r"[A-Za-z0-9 /._,:=+@-]*")


def memory_max(plan: MemoryPlan) -> int:
    """Bytes for MemoryMax= or memory.max.

    The plan, and what the program holds already when `doctor` compares the plan with what the group
    leaves: at most the plan's own allowance for a process.
    """
    return -(-(plan.total_bytes + PROCESS_BYTES) // MIB) * MIB


def options_of(plan: MemoryPlan, max_text_bytes: int) -> str:
    """The options of colibrictl that make the device plan what the host planned."""
    words = [
        f"--context {plan.context_tokens}", f"--batch {plan.batch_tokens}", f"--threads {plan.threads}",
        f"--kv {plan.kv}", f"--residency {plan.residency}", f"--budget {plan.total_bytes}",
    ]  # fmt: skip
    if plan.residency == "stream":
        words += [f"--slots {plan.expert_slots}", f"--io-threads {plan.io_threads}"]
    if max_text_bytes:
        words.append(f"--max-text {max_text_bytes}")
    return " ".join(words)


def settings(model: str, options: str, serve: str, health: str, limit: int) -> str:
    """The text of colibri.conf."""
    rows = (
        ("COLIBRI_MODEL", model),
        ("COLIBRI_OPTIONS", options),
        ("COLIBRI_SERVE_OPTIONS", serve),
        ("COLIBRI_HEALTH_OPTIONS", health),
        ("COLIBRI_LOCK", "require"),
        ("COLIBRI_MEMORY_MAX", str(limit)),
    )
    for name, value in rows:
        if _SAFE.fullmatch(value) is None:
            raise ColibriError(
                Code.ARGUMENT,
                f"{name} would be {value!r}: systemd and a shell read it differently; use letters, digits, spaces "
                "and /._,:=+@- alone",
            )
    return "".join(f'{name}="{value}"\n' for name, value in rows)


def drop_in(limit: int) -> str:
    """The text of the drop-in of both services."""
    return f"[Service]\nMemoryMax={limit}\nMemorySwapMax=0\n"


def add_units_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri units`: those of the memory plan, and where to."""
    add_memory_arguments(parser)
    parser.add_argument(
        "--output-dir", type=Path, required=True, metavar="DIR", help="colibri.conf and the drop-ins go there"
    )
    parser.add_argument(
        "--device-model", default=DEVICE_MODEL, metavar="PATH", help=f"the model on the device (default {DEVICE_MODEL})"
    )
    parser.add_argument("--serve-options", default=SERVE_OPTIONS, metavar="TEXT", help="more for colibrictl serve")
    parser.add_argument("--health-options", default="", metavar="TEXT", help="more for colibrictl health")


def units_command(args: argparse.Namespace) -> int:
    """`colibri units`."""
    if args.model is None or args.board is None:
        raise ColibriError(Code.ARGUMENT, "give MODEL, a .colibri file, and --board NAME or FILE.toml")
    if args.sessions > 1:
        raise ColibriError(Code.ARGUMENT, f"--sessions {args.sessions}; the service computes for one client at a time")
    with open_model(args.model) as model:
        answer = plan_memory(model, args)
    print_notes(answer)
    plan = answer.plan
    limit = memory_max(plan)
    options = options_of(plan, args.max_text)
    text = settings(args.device_model, options, args.serve_options, args.health_options, limit)
    files = {args.output_dir / CONFIGURATION: text}
    files |= {args.output_dir / f"{name}.d" / DROP_IN: drop_in(limit) for name in SERVICES}
    for path, content in files.items():
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content.encode())
        print(path)
    return 0
