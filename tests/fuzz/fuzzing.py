# SPDX-License-Identifier: MIT
"""What the fuzz targets of the checkpoint readers share: how they are driven, and what counts as a finding.

    build/venv/bin/python tests/fuzz/fuzz_pickle.py --seconds 60        # coverage-guided, with atheris
    build/venv/bin/python tests/fuzz/fuzz_pickle.py --mutations 500     # seeded mutations, standard library only
    build/venv/bin/python tests/fuzz/fuzz_pickle.py FILE ...            # inputs of earlier findings

A target is a function of bytes. A finding is: an exception other than ColibriError, an input that
takes more than a second of processor time, memory beyond LIMIT_BYTES and 200 times the input (what
the readers may take for values is bounded by their budgets), or a module that was imported.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

REPOSITORY = Path(__file__).resolve().parents[2]
if str(REPOSITORY / "engine") not in sys.path:
    sys.path.insert(0, str(REPOSITORY / "engine"))

MAX_INPUT_BYTES = 1 << 16
MAX_SECONDS = 1.0
HANG_SECONDS = 2
LIMIT_BYTES = 1 << 20
LIMIT_FACTOR = 200
RSS_LIMIT_MB = 2048
Check = Callable[[bytes], None]
"""Reads an input; raises ColibriError for a bad one and anything else for a bug."""


class FoundError(Exception):
    """An input that breaks a promise; the message says which."""


@dataclass
class Target:
    """A reader under test: `load` imports it and gives the check, `seeds` gives good inputs."""

    name: str
    load: Callable[[], Check]
    seeds: Callable[[], Sequence[bytes]]
    words: Sequence[bytes] = ()  # what mutations put in


class Folder:
    """A checkpoint folder in memory where there is one, with one file that changes."""

    def __init__(self, name: str) -> None:
        memory = Path("/dev/shm")
        self.path = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
        self.file = self.path / name

    def put(self, data: bytes) -> Path:
        """The folder with `data` in the file."""
        self.file.write_bytes(data)
        return self.path

    def __del__(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def guarded(check: Check, data: bytes, memory: bool = False) -> bool:
    """Run one input; whether it was accepted. FoundError for what takes too long or too much."""
    from colibri.errors import ColibriError

    modules = set(sys.modules)
    start = time.process_time()
    accepted = True
    if memory:
        tracemalloc.start()
    try:
        check(data)
    except ColibriError as error:
        accepted = False
        if not error.message or "\n" in error.message or len(error.message) > 2000:
            raise FoundError(f"a message that nobody can read: {error.message[:200]!r}") from error
    finally:
        peak = tracemalloc.get_traced_memory()[1] if memory else 0
        if memory:
            tracemalloc.stop()
    seconds = time.process_time() - start
    if not memory and seconds > MAX_SECONDS:
        raise FoundError(f"{seconds:.1f} s of processor time, limit {MAX_SECONDS:g}")
    if peak > LIMIT_BYTES + LIMIT_FACTOR * len(data):
        raise FoundError(f"{peak} bytes of memory for an input of {len(data)}")
    loaded = sorted(name for name in set(sys.modules) - modules if not name.startswith("encodings."))
    if loaded:
        raise FoundError(f"the input had modules imported: {loaded}")
    return accepted


def mutated(dice: random.Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """A seed with a few changes of the kinds that find bugs in parsers."""
    data = bytearray(dice.choice(seeds))
    for _ in range(1 + dice.randrange(4)):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << dice.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = dice.randrange(256)
        elif kind == 2:
            width = dice.choice((1, 2, 4, 8))
            data[at : at + width] = dice.choice((b"\0", b"\xff", b"\x7f")) * width
        elif kind == 3:
            del data[at : at + dice.randrange(1, 64)]
        elif kind == 4:
            data[at:at] = data[at : at + dice.randrange(1, 64)] * dice.choice((1, 2, 50))
        elif kind == 5 and words:
            word = dice.choice(words)
            data[at : at + dice.choice((0, len(word)))] = word
        elif kind == 6:
            other = dice.choice(seeds)
            cut = dice.randrange(len(other) + 1)
            data[at:] = other[cut:]
        else:
            data[at:at] = dice.randbytes(dice.randrange(1, 8))
    return bytes(data[:MAX_INPUT_BYTES])


def hanging(number: int, frame: FrameType | None) -> NoReturn:
    """The signal of a run that does not end."""
    raise FoundError(f"no end after {HANG_SECONDS} s of processor time")


def run_mutations(target: Target, count: int, seed: int) -> int:
    """Seeded mutations; every eighth is also measured for memory."""
    check = target.load()
    seeds = list(target.seeds())
    for i, data in enumerate(seeds):
        guarded(check, data)  # also loads what is loaded on first use
        if not guarded(check, data):
            raise FoundError(f"seed {i} is refused: the target tests nothing")
    dice = random.Random(seed)
    accepted = 0
    signal.signal(signal.SIGVTALRM, hanging)
    for i in range(count):
        data = mutated(dice, seeds, target.words)
        signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
        try:
            accepted += guarded(check, data, memory=i % 8 == 0)
        except Exception:
            kept = Path(tempfile.gettempdir()) / f"{target.name}-{hashlib.sha256(data).hexdigest()[:16]}"
            kept.write_bytes(data)
            print(f"{target.name}: mutation {i} of seed {seed} is a finding; input kept as {kept}", file=sys.stderr)
            raise
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    print(f"{target.name}: {count} mutations, {accepted} accepted, no finding")
    return 0


def run_atheris(target: Target, seconds: int, corpus: Path) -> int:
    """Coverage-guided, until the time is over or a finding ends the process."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["colibri"]):
        check = target.load()
    corpus.mkdir(parents=True, exist_ok=True)
    for data in target.seeds():
        guarded(check, data)
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    words = corpus.with_suffix(".dict")
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words if word))

    def one(data: bytes) -> None:
        guarded(check, data)

    arguments = [
        sys.argv[0], f"-max_total_time={seconds}", f"-max_len={MAX_INPUT_BYTES}", "-timeout=20",
        f"-rss_limit_mb={RSS_LIMIT_MB}", f"-artifact_prefix={corpus}.finding-", f"-dict={words}",
        "-print_final_stats=1", str(corpus),
    ]  # fmt: skip
    atheris.Setup(arguments, one, enable_python_coverage=True)
    atheris.Fuzz()
    return 0


def main(target: Target) -> int:
    """Command line of one target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("inputs", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--seconds", type=int, default=0, help="coverage-guided, with atheris")
    parser.add_argument("--mutations", type=int, default=0, help="seeded mutations")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=REPOSITORY / "build" / "fuzz", help="folder that is kept")
    arguments = parser.parse_args()
    if not (arguments.inputs or arguments.seconds or arguments.mutations):
        parser.error("give --seconds, --mutations or files")
    if arguments.inputs:
        check = target.load()
        for path in arguments.inputs:
            print(f"{path}: {'accepted' if guarded(check, path.read_bytes()) else 'refused'}")
    if arguments.mutations:
        run_mutations(target, arguments.mutations, arguments.seed)
    if arguments.seconds:
        return run_atheris(target, arguments.seconds, arguments.corpus / target.name)
    return 0


def read_all(source: Any) -> None:
    """Rows of every tensor of a source, first and last, as the converter reads them."""
    for name, shape in source.shapes().items():
        rows = shape[-2] if len(shape) > 1 else 1
        columns = shape[-1] if shape else 1
        matrices = 1
        for n in shape[:-2]:
            matrices *= n
        if rows == 0 or matrices == 0 or columns > MAX_INPUT_BYTES:
            continue
        for first, index in ((0, 0), (rows - 1, matrices - 1)):
            found = source.rows(name, first, first + 1, index)
            if found.shape != (1, columns):
                raise FoundError(f"{name!r}: rows of {found.shape} where the shape is {shape}")
