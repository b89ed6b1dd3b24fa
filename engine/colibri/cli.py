# SPDX-License-Identifier: MIT
"""The `colibri` command: convert, inspect, verify, plan, run, eval and golden.

A subcommand's module is imported when it is called, so that the base install, which has no
dependency, can inspect, verify and run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from colibri import __version__
from colibri._spec import Code
from colibri.errors import ColibriError, MissingPackage, for_people

_DTYPES = ("int4", "int8", "f16", "bf16", "f32")
_PRECISION_OPTIONS = (
    ("experts", "routed experts (default int4)"),
    ("trunk", "attention, dense and shared feed-forward blocks (default int8)"),
    ("head", "output head (default: as the trunk)"),
    ("embeddings", "token embeddings, and the head when it is tied (default: as the trunk)"),
    ("router", "routers (default f32)"),
)


@contextlib.contextmanager
def _needs_numpy(what: str, extra: str) -> Iterator[None]:
    """Imports that an install without numpy refuses, naming the extra that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "numpy":
            raise
        raise MissingPackage(f"{what} needs", "numpy", extra) from error


def _convert_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="?",
        metavar="SOURCE",
        help="a Hugging Face directory (config.json with safetensors or pytorch_model.bin), a GGUF file, "
        "or a recipe (.toml)",
    )
    parser.add_argument("--recipe", metavar="FILE", type=Path, help="the same as a recipe as SOURCE")
    parser.add_argument(
        "--recipe-source", metavar="FILE", type=Path, help="the recipe's checkpoint, when it is not installed"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the .colibri file to write")
    for name, text in _PRECISION_OPTIONS:
        parser.add_argument(f"--{name}", choices=_DTYPES, help=f"dtype of {text}")
    parser.add_argument(
        "--int4-method",
        choices=("mse", "absmax"),
        help="int4 scales: mse searches the one of least error (default), absmax is the rule of Q4_0",
    )
    parser.add_argument(
        "--override",
        action="append",
        default=[],
        metavar="NAME=DTYPE",
        help="dtype of the tensors whose name (of `colibri inspect --tensors`) matches a pattern, e.g. "
        "'layer 0 expert_*=int8'; repeatable, the last that matches counts",
    )
    parser.add_argument(
        "--importance", metavar="FILE", type=Path, help="weight the search of int4 scales (`colibri importance`)"
    )
    parser.add_argument(
        "--quant-scale-factor", type=float, metavar="F", help="multiply every scale of int4 and int8 (default 1)"
    )
    parser.add_argument(
        "--expert-prune-ratio",
        metavar="R",
        help="leave floor(R x experts) experts of every layer out, ranked by --prune-by or else by the sum of squares "
        "of their weights",
    )
    parser.add_argument(
        "--prune-by", metavar="FILE", type=Path, help="a .colibri file of the model with a calibration profile"
    )
    parser.add_argument(
        "--context", type=int, metavar="N", help="store a context of N tokens (at most the trained one)"
    )
    parser.add_argument("--no-tokenizer", action="store_true", help="a model that takes and gives ids only")
    parser.add_argument("--no-chat", action="store_true", help="leave the chat form out")
    parser.add_argument(
        "--drop-nfc",
        action="store_true",
        help="accept a tokenizer that normalises to NFC, which devices do not: texts that are not NFC get other ids",
    )
    parser.add_argument(
        "-j", "--jobs", type=int, default=0, metavar="N", help="threads (default: processors, at most 4)"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep FILE.partial when the conversion is interrupted or killed, and go on with one that is there; "
        "another source or other options are refused",
    )
    parser.add_argument("--report", metavar="FILE", type=Path, help="write the error of every tensor as JSON")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress and no error report")


def _convert(args: argparse.Namespace) -> int:
    if (args.source is None) == (args.recipe is None):
        raise ColibriError(Code.ARGUMENT, "give either SOURCE or --recipe FILE")
    if args.source is not None and args.source.endswith(".toml"):
        args.recipe = Path(args.source)
    if args.jobs < 0:
        raise ColibriError(Code.ARGUMENT, f"-j {args.jobs}; give 1 or more threads, or 0 for all")
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        raise MissingPackage("converting needs", "numpy", "convert") from error
    from colibri.convert import checkpoint_job
    from colibri.files import refuse_output, write_file
    from colibri.job import Precision, run_job
    from colibri.recipe import change_job, load_recipe, recipe_files

    given = (args.source, args.recipe, args.recipe_source, args.importance, args.prune_by)
    sources = [Path(path) for path in given if path is not None]
    if args.recipe is not None:
        sources += recipe_files(args.recipe, args.recipe_source)
    sources += [path for folder in sources if folder.is_dir() for path in folder.iterdir()]
    refuse_output(args.output, sources)
    if args.report is not None:
        refuse_output(args.report, sources)
        if args.report.resolve() == args.output.resolve():
            raise ColibriError(Code.ARGUMENT, f"--report and -o both name {args.output}; give two names")
    names: dict[str, Any] = {name: getattr(args, name) for name, _ in _PRECISION_OPTIONS if getattr(args, name)}
    if args.int4_method:
        names["int4_method"] = args.int4_method
    if args.quant_scale_factor is not None:
        names["quant_scale_factor"] = args.quant_scale_factor
    overrides: dict[str, str] = {}
    for text in args.override:
        pattern, equals, dtype = text.rpartition("=")
        if not equals or not pattern:
            raise ColibriError(Code.ARGUMENT, f"--override {text!r}; write NAME=DTYPE, e.g. 'layer 0 *=int8'")
        overrides.pop(pattern, None)  # a pattern that is given again stands where it is given last
        overrides[pattern] = dtype
    if args.prune_by is not None and args.expert_prune_ratio is None:
        raise ColibriError(Code.ARGUMENT, "--prune-by belongs to --expert-prune-ratio")
    if args.recipe is not None:
        for option in ("context", "no_tokenizer", "no_chat", "drop_nfc"):
            if getattr(args, option):
                raise ColibriError(Code.ARGUMENT, f"--{option.replace('_', '-')} is for SOURCE; the recipe says it")
        job = load_recipe(args.recipe, names, args.recipe_source, overrides)
    elif args.recipe_source is not None:
        raise ColibriError(Code.ARGUMENT, "--recipe-source belongs to --recipe")
    else:
        precision = Precision.from_names(names, overrides)
        job = checkpoint_job(
            args.source, precision, args.context, not args.no_tokenizer, not args.no_chat, args.drop_nfc
        )
    job.print_notes()
    for line in change_job(job, args.importance, args.expert_prune_ratio, args.prune_by):
        print(line, file=sys.stderr)
    report = run_job(job, args.output, args.jobs, args.quiet, args.resume)
    if args.report is not None:
        table = {
            name: {"dtype": dtype.name.lower(), "relative_rms_error": stats.relative, "largest_error": stats.largest}
            for name, (dtype, stats) in report.errors.items()
        }
        write_file(args.report, (json.dumps(table, indent=1) + "\n").encode())
    if not args.quiet:
        for line in report.lines():
            print(line, file=sys.stderr)
        print(f"{report.file_bytes:,} bytes in {report.seconds:.1f} s, root {report.root}", file=sys.stderr)
    print(args.output)
    return 0


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    from colibri.plan import RESIDENCIES
    from colibri.plan_command import parse_size

    parser.add_argument("model", metavar="MODEL", help="a .colibri file")
    parser.add_argument("--json", action="store_true", help="everything, for programs")
    parser.add_argument("--tensors", action="store_true", help="every tensor and hash; else equal layers are folded")
    parser.add_argument("-c", "--context", type=int, default=0, help="tokens of the KV cache, for the plan")
    parser.add_argument("-b", "--batch", type=int, default=0, help="prompt tokens per batch, for the plan")
    parser.add_argument(
        "-t", "--threads", type=int, default=0, help="threads, for the plan (default: processors, at most 4)"
    )
    parser.add_argument("--max-text", type=int, default=0, metavar="BYTES", help="longest text, for the plan")
    parser.add_argument("--sessions", type=int, default=0, help="sessions, for the plan")
    parser.add_argument("--kv", choices=("f16", "f32"), default="f16", help="type of the KV cache, for the plan")
    parser.add_argument("--residency", choices=RESIDENCIES, default="auto", help="where experts live, for the plan")
    parser.add_argument("--slots", type=int, default=0, help="expert slots of stream, for the plan")
    parser.add_argument("--io-threads", type=int, default=0, help="threads that read experts, for the plan")
    parser.add_argument("--budget", type=parse_size, default=0, metavar="SIZE", help="memory budget, for the plan")


def _inspect(args: argparse.Namespace) -> int:
    from colibri._spec import DEFAULT_THREADS
    from colibri.format import open_model
    from colibri.inspect_model import as_json, as_text
    from colibri.plan import PlanOptions

    options = PlanOptions(
        context_tokens=args.context,
        batch_tokens=args.batch,
        max_sessions=args.sessions,
        threads=args.threads or min(len(os.sched_getaffinity(0)), DEFAULT_THREADS),
        kv=args.kv,
        max_text_bytes=args.max_text,
        residency=args.residency,
        expert_slots=args.slots,
        io_threads=args.io_threads,
        budget_bytes=args.budget,
    )
    with open_model(args.model) as model:
        if args.json:
            print(json.dumps(as_json(model, options), indent=1))
        else:
            for line in as_text(model, options, args.tensors):
                print(line)
    return 0


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    from colibri.verify import add_verify_arguments

    add_verify_arguments(parser)


def _verify(args: argparse.Namespace) -> int:
    from colibri.verify import verify_command

    return verify_command(args)


def _sign_arguments(parser: argparse.ArgumentParser) -> None:
    from colibri.signing import add_sign_arguments

    add_sign_arguments(parser)


def _sign(args: argparse.Namespace) -> int:
    from colibri.signing import sign_command

    return sign_command(args)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    from colibri.engine import add_run_arguments

    add_run_arguments(parser)


def _run(args: argparse.Namespace) -> int:
    from colibri.engine import run_command

    return run_command(args)


def _calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    from colibri.calibrate import add_calibrate_arguments

    add_calibrate_arguments(parser)


def _calibrate(args: argparse.Namespace) -> int:
    from colibri.calibrate import calibrate_command

    return calibrate_command(args)


def _quantize_arguments(parser: argparse.ArgumentParser) -> None:
    _flow().add_quantize_arguments(parser)


def _quantize(args: argparse.Namespace) -> int:
    return int(_flow().quantize_command(args))


def _pack_arguments(parser: argparse.ArgumentParser) -> None:
    _flow().add_pack_arguments(parser)


def _pack(args: argparse.Namespace) -> int:
    return int(_flow().pack_command(args))


def _flow() -> Any:
    with _needs_numpy("converting", "convert"):
        from colibri import flow
    return flow


def _importance_arguments(parser: argparse.ArgumentParser) -> None:
    with _needs_numpy("importance", "reference"):
        from colibri.importance import add_importance_arguments
    add_importance_arguments(parser)


def _importance(args: argparse.Namespace) -> int:
    from colibri.importance import importance_command

    return importance_command(args)


def _eval_arguments(parser: argparse.ArgumentParser) -> None:
    with _needs_numpy("eval", "reference"):
        from colibri.evaluate import add_eval_arguments
    add_eval_arguments(parser)


def _eval(args: argparse.Namespace) -> int:
    from colibri.evaluate import eval_command

    return eval_command(args)


def _golden_arguments(parser: argparse.ArgumentParser) -> None:
    with _needs_numpy("the reference", "reference"):
        from colibri.reference import add_golden_arguments
    add_golden_arguments(parser)


def _golden(args: argparse.Namespace) -> int:
    from colibri.reference import golden_command

    return golden_command(args)


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    from colibri.plan_command import add_plan_arguments

    add_plan_arguments(parser)


def _plan(args: argparse.Namespace) -> int:
    from colibri.plan_command import plan_command

    return plan_command(args)


def _units_arguments(parser: argparse.ArgumentParser) -> None:
    from colibri.units import add_units_arguments

    add_units_arguments(parser)


def _units(args: argparse.Namespace) -> int:
    from colibri.units import units_command

    return units_command(args)


_Arguments = Callable[[argparse.ArgumentParser], None]
_Command = Callable[[argparse.Namespace], int]
_COMMANDS: dict[str, tuple[str, str, _Arguments, _Command]] = {
    "convert": (
        "make a .colibri file from a checkpoint or a recipe",
        "Convert a Mixture-of-Experts checkpoint. Progress and the quantisation error of every kind of tensor go to "
        "stderr, the name of the file to stdout. The file appears when it is complete, or not at all.",
        _convert_arguments,
        _convert,
    ),
    "quantize": (
        "quantise a checkpoint into a file for pack",
        "The first half of convert: every tensor as the model will hold it, in a safetensors file of any name.",
        _quantize_arguments,
        _quantize,
    ),
    "pack": (
        "make a .colibri file of quantised weights",
        "The second half of convert: nothing is rounded again. A tokenizer.json beside config.json is packed too.",
        _pack_arguments,
        _pack,
    ),
    "inspect": (
        "show what is in a .colibri file, and the memory it needs",
        "Read header, records and directory (not the weights): dimensions, tensors, hashes, provenance, memory plan.",
        _inspect_arguments,
        _inspect,
    ),
    "verify": (
        "check every hash, padding byte and weight of a .colibri file",
        "Read the whole file. Exit code 0: it is what its root hash says, and signed as asked; 3: it is damaged, "
        "malformed or not signed so.",
        _verify_arguments,
        _verify,
    ),
    "sign": (
        "write a copy of a .colibri file that carries a signature, or none any more",
        "Verify MODEL and write a copy with an ed25519 signature over its root. Golden results beside MODEL come "
        "along and are covered. The same model and key give the same bytes.",
        _sign_arguments,
        _sign,
    ),
    "run": (
        "generate text with the C engine",
        "Generate text. The text goes to stdout as it comes, everything else to stderr.",
        _run_arguments,
        _run,
    ),
    "plan": (
        "say what a model needs on a board, and how fast it will be",
        "Memory plan of a model on a board, which residency mode fits, and a prediction of its speed: from the bytes "
        "and multiplications of a token and the board's bandwidths. Below the floor: exit code 4.",
        _plan_arguments,
        _plan,
    ),
    "units": (
        "write the settings of the service for a model on a board",
        "Write what the units and init scripts take from the memory plan: colibri.conf with the options of the model, "
        "and drop-ins with MemoryMax=. docs/deploy.md says where they go. Below the floor: exit code 4.",
        _units_arguments,
        _units,
    ),
    "calibrate": (
        "record how experts are used on a text, in a new file",
        "Run the model over a text and write a new file with a calibration profile: which experts are worth a slot "
        "from the start, and what drift is measured against. A signature is left out: sign the new file.",
        _calibrate_arguments,
        _calibrate,
    ),
    "importance": (
        "measure which inputs of the matrices matter, for convert",
        "Run the numpy reference over a text and write the mean square of what every matrix reads; "
        "convert --importance weights the errors of int4 by it.",
        _importance_arguments,
        _importance,
    ),
    "eval": (
        "measure perplexity, and what quantisation changed",
        "Run the model over a text and print its perplexity; --against a base also the KL divergence of the "
        "next-token distributions and the share of equal best tokens.",
        _eval_arguments,
        _eval,
    ),
    "golden": (
        "write golden results with the numpy reference",
        "Compute with the numpy reference what every engine must answer, bit by bit.",
        _golden_arguments,
        _golden,
    ),
}
# Their errors are about checkpoints: the general texts of the codes speak of .colibri files.
_OF_CHECKPOINTS = ("convert", "quantize", "pack")
_EPILOG = "exit codes: 0 ok, 1 run-time error, 2 usage, 3 damaged or malformed model, 4 memory budget, 5 environment"


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The parser; only `command` gets its options, because others may need packages that are not there."""
    parser = argparse.ArgumentParser(
        prog="colibri",
        description="Convert, inspect, verify and run Mixture-of-Experts models for small boards.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"colibri {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (short, long, arguments, _) in _COMMANDS.items():
        subparser = subparsers.add_parser(name, help=short, description=long, epilog=_EPILOG)
        if name == command:
            arguments(subparser)
    return parser


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """SIGTERM unwinds the stack, so that no temporary file stays."""
    raise SystemExit(128 + number)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit code of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    previous: Any = None
    with contextlib.suppress(ValueError):  # not the main thread: signals are the caller's business
        previous = signal.signal(signal.SIGTERM, _terminate)
    try:
        args = build_parser(command).parse_args(arguments)
        return _COMMANDS[args.command][3](args)
    except ColibriError as error:
        # The general texts of the codes speak of .colibri files; a checkpoint's error says it all itself.
        print(f"colibri: {for_people(error, command not in _OF_CHECKPOINTS)}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader went away (`| head`): leave quietly, and keep the interpreter from flushing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"colibri: {where}{error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("colibri: interrupted", file=sys.stderr)
        return 130
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)
