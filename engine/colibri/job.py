# SPDX-License-Identifier: MIT
"""A conversion: records, a source of f32 rows for every tensor, and the writing of the file.

`convert` builds jobs from checkpoints and `recipe` from recipes; `run_job` streams one to disk.
Tensors are cut into parts of a few million values: threads quantise parts while the writer takes
them in order, so memory is bounded by the window of parts in flight, whatever the model's size,
and the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import astuple, dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

from colibri._spec import Code, DType, Layout, Role, Scope
from colibri.errors import ColibriError, printable, shown
from colibri.format import tensor_groups
from colibri.layout import F32
from colibri.quantize import INT4_METHODS, ErrorStats, encode, part_rows
from colibri.records import Records, encode_records, required_tensors
from colibri.resume import Journal, identity_of
from colibri.writer import ModelWriter, Slot

DTYPE_NAMES = {name.lower(): DType[name] for name in ("INT4", "INT8", "F16", "BF16", "F32")}
RowSource = Callable[[Slot, int, int], F32]
"""(slot, first row, end row) to f32 values, shape (rows, columns of the slot)."""


SCALE_FACTORS = (0.5, 1.5)
_DTYPE_KEYS = ("experts", "trunk", "router", "head", "embeddings")


def tensor_label(layer: int | None, role: Role) -> str:
    """What overrides match, as `inspect` and messages write it: `layer 3 expert_down`, `global embedding`."""
    return f"{'global' if layer is None else f'layer {layer}'} {role.name.lower()}"


@dataclass(frozen=True)
class Precision:
    """Which dtype each kind of matrix is stored in; norms and biases are always f32."""

    experts: DType = DType.INT4
    trunk: DType = DType.INT8
    router: DType = DType.F32
    head: DType | None = None  # None: as the trunk
    embeddings: DType | None = None
    int4_method: str = "mse"
    scale_factor: float = 1.0  # every scale of int4 and int8 is multiplied by it
    overrides: tuple[tuple[str, DType], ...] = ()  # (pattern of tensor names, dtype); the last that matches counts

    @classmethod
    def from_names(cls, names: dict[str, Any], overrides: dict[str, Any] | None = None) -> Precision:
        """From option or recipe values; unknown keys and names are refused.

        overrides: pattern of tensor names -> dtype, the last that matches counts.
        """
        values: dict[str, Any] = {}
        for pattern, name in (overrides or {}).items():
            if name not in DTYPE_NAMES:
                raise ColibriError(
                    Code.ARGUMENT, f"override {pattern!r}: dtype {name!r}, known: {', '.join(DTYPE_NAMES)}"
                )
            values["overrides"] = (*values.get("overrides", ()), (pattern, DTYPE_NAMES[name]))
        for key, name in names.items():
            if key == "quant_scale_factor":
                low, high = SCALE_FACTORS
                if type(name) not in (int, float) or not low <= name <= high:
                    raise ColibriError(Code.ARGUMENT, f"quant_scale_factor {name!r}, must be {low} to {high}")
                values["scale_factor"] = float(name)
            elif key == "int4_method":
                if name not in INT4_METHODS:
                    raise ColibriError(Code.ARGUMENT, f"int4_method {name!r}, known: {', '.join(INT4_METHODS)}")
                values[key] = name
            elif key not in _DTYPE_KEYS:
                known = ", ".join((*_DTYPE_KEYS, "int4_method", "quant_scale_factor"))
                raise ColibriError(Code.ARGUMENT, f"dtype of {key!r} asked for, known: {known}")
            elif name not in DTYPE_NAMES:
                known = ", ".join(DTYPE_NAMES)
                raise ColibriError(Code.ARGUMENT, f"{key} dtype {name!r}, known: {known}")
            else:
                values[key] = DTYPE_NAMES[name]
        return cls(**values)

    def choose(self, scope: Scope, layer: int | None, role: Role) -> DType:
        """Dtype of one matrix."""
        name = tensor_label(layer, role)
        for pattern, dtype in reversed(self.overrides):
            if fnmatchcase(name, pattern):
                return dtype
        return self._by_kind(scope, role)

    def _by_kind(self, scope: Scope, role: Role) -> DType:
        if scope == Scope.EXPERT:
            return self.experts
        if role in (Role.EMBEDDING, Role.POSITION_EMBEDDING) and self.embeddings is not None:
            return self.embeddings
        if role == Role.HEAD and self.head is not None:
            return self.head
        if role in (Role.ROUTER, Role.SHARED_ROUTER):
            return self.router
        return self.trunk

    def names(self) -> dict[str, Any]:
        """For the provenance; what was not asked for is left out."""
        more: dict[str, Any] = {}
        if self.scale_factor != 1.0:
            more["quant_scale_factor"] = self.scale_factor
        if self.overrides:
            more["overrides"] = {pattern: dtype.name.lower() for pattern, dtype in self.overrides}
        return {
            "experts": self.experts.name.lower(),
            "trunk": self.trunk.name.lower(),
            "router": self.router.name.lower(),
            "head": (self.head if self.head is not None else self.trunk).name.lower(),
            "embeddings": (self.embeddings if self.embeddings is not None else self.trunk).name.lower(),
            "int4_method": self.int4_method,
            **more,
        }


@dataclass
class Job:
    """Everything that a `.colibri` file is made from."""

    records: Records
    rows: RowSource
    precision: Precision
    tokenizer: bytes | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # for whoever converts: what was ignored
    importance: Callable[[Slot], F32 | None] = lambda slot: None  # (columns): what errors in a column count
    kept: dict[int, list[int]] = field(default_factory=dict)  # layer -> ids of the experts that pruning left

    def __post_init__(self) -> None:
        """Refuse an override that no matrix of the model heeds."""
        names = [
            tensor_label(layer, role)
            for scope, layer in tensor_groups(self.records)
            for role, shape in required_tensors(self.records, scope, layer).items()
            if shape.layout != Layout.ROWS  # vectors have no dtype to choose
        ]
        for pattern, _ in self.precision.overrides:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ColibriError(
                    Code.ARGUMENT,
                    f"override {shown(repr(pattern))} matches no matrix of the model; give a name of "
                    f"`colibri inspect --tensors`, e.g. {names[-1]!r} (norms and biases are always f32)",
                )

    def print_notes(self) -> None:
        """Say on stderr what was ignored."""
        for line in self.notes:
            print(f"note: {printable(line)}", file=sys.stderr)


@dataclass
class Report:
    """What a conversion did: errors by tensor name, in file order."""

    path: Path
    file_bytes: int
    root: str
    seconds: float
    errors: dict[str, tuple[DType, ErrorStats]]

    def by_role(self) -> dict[tuple[str, DType], tuple[int, ErrorStats]]:
        """(role, dtype) to (tensors, error over all of them)."""
        table: dict[tuple[str, DType], tuple[int, ErrorStats]] = {}
        for name, (dtype, stats) in self.errors.items():
            key = (name.rsplit(" ", 1)[-1], dtype)
            count, total = table.get(key, (0, ErrorStats()))
            total.add(stats)
            table[key] = (count + 1, total)
        return table

    def lines(self) -> Iterator[str]:
        """The error report as text, a line per role."""
        yield f"{'role':<16} {'dtype':<5} {'tensors':>7} {'values':>12} {'rel. rms error':>14} {'largest':>10}"
        for (role, dtype), (count, stats) in self.by_role().items():
            yield (
                f"{role:<16} {dtype.name.lower():<5} {count:>7} {stats.elements:>12} "
                f"{stats.relative:>14.6f} {stats.largest:>10.6f}"
            )


def _amount(size: int) -> str:
    """A number of bytes in the unit that leaves it a few digits."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 10 << shift:
            return f"{size / (1 << shift):,.0f} {unit}"
    return f"{size} bytes"


class Progress:
    """Progress on stderr: a bar when tqdm is there and stderr is a terminal, else plain lines.

    total: bytes of all tensors, those of an earlier run included; the last line says 100 %.
    """

    def __init__(self, total: int, quiet: bool = False) -> None:
        self._done, self._total, self._shown = 0, total, 0
        self._quiet = quiet
        self._bar: Any = None
        if not quiet and sys.stderr.isatty():
            try:
                tqdm: Any = importlib.import_module("tqdm").tqdm
            except ImportError:
                return
            self._bar = tqdm(total=total, unit="B", unit_scale=True, file=sys.stderr)

    def skip(self, size: int) -> None:
        """`size` bytes were done by an earlier run."""
        if size and not self._quiet:
            print(f"going on behind {_amount(size)} of an earlier run", file=sys.stderr, flush=True)
        self.add(size)

    def add(self, size: int) -> None:
        """`size` more bytes are done."""
        self._done += size
        if self._bar is not None:
            self._bar.update(size)
        elif not self._quiet and self._total:
            tenth = self._done * 10 // self._total
            if tenth > self._shown:
                self._shown = tenth
                print(f"{tenth * 10:3d} %  {_amount(self._done)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.close()


@dataclass(frozen=True)
class _Part:
    slot: Slot
    first: int
    end: int


def _parts(slot: Slot) -> list[_Part]:
    rows = slot.tensor.rows
    step = part_rows(slot.tensor.columns)
    return [_Part(slot, at, min(at + step, rows)) for at in range(0, rows, step)]


def part_count(slot: Slot) -> int:
    """How many parts of `encoded` a tensor has."""
    return len(_parts(slot))


def encoded(
    job: Job, slots: Sequence[Slot], threads: int, errors: dict[str, tuple[DType, ErrorStats]]
) -> Generator[bytes, None, None]:
    """The stored bytes of the parts of all tensors, in order; the error of each tensor is added to `errors`.

    `threads` 0 = the processors of this machine, at most 4.
    """
    threads = threads or min(len(os.sched_getaffinity(0)), 4)

    def work(part: _Part) -> tuple[bytes, ErrorStats]:
        tensor = part.slot.tensor
        values = job.rows(part.slot, part.first, part.end)
        shape = (part.end - part.first, tensor.columns)
        if values.shape != shape:
            raise ColibriError(Code.INTERNAL, f"{part.slot.name}: rows of {values.shape}, not {shape}")
        weights = job.importance(part.slot) if tensor.dtype == DType.INT4 else None
        method, factor = job.precision.int4_method, job.precision.scale_factor
        return encode(values, tensor.dtype, tensor.layout, part.slot.name, method, weights, factor)

    pool = ThreadPoolExecutor(threads)
    try:
        queue: deque[tuple[_Part, Future[tuple[bytes, ErrorStats]]]] = deque()
        parts = (part for slot in slots for part in _parts(slot))
        for part in islice(parts, threads + 2):
            queue.append((part, pool.submit(work, part)))
        while queue:
            part, future = queue.popleft()
            data, stats = future.result()
            for following in islice(parts, 1):
                queue.append((following, pool.submit(work, following)))
            name = part.slot.name
            errors.setdefault(name, (part.slot.tensor.dtype, ErrorStats()))[1].add(stats)
            yield data
    finally:
        pool.shutdown(cancel_futures=True)


def _journal(job: Job, output: Path, errors: dict[str, tuple[DType, ErrorStats]]) -> Journal:
    """The journal of a job that may be resumed; it takes the errors of the tensors from `errors`."""
    more = {name: value for name, value in job.provenance.items() if name not in ("source", "converter")}
    parts = {
        "version of the converter": job.provenance.get("converter"),
        "source": job.provenance.get("source"),
        "set of options": more,
        "tokenizer": job.tokenizer or b"",
        "model": encode_records(job.records),
    }
    journal = Journal(output, identity_of(parts))
    noted = 0

    def fresh() -> dict[str, list[float]]:
        nonlocal noted
        names, noted = list(errors)[noted:], len(errors)
        return {name: list(astuple(errors[name][1])) for name in names}

    journal.errors_of = fresh
    return journal


def run_job(
    job: Job, output: str | os.PathLike[str], threads: int = 0, quiet: bool = False, resume: bool = False
) -> Report:
    """Write the file of `job`; `threads` 0 = the processors of this machine, at most 4.

    resume: keep the unfinished file when it is interrupted, and go on with one that is there.
    """
    begin = time.monotonic()
    errors: dict[str, tuple[DType, ErrorStats]] = {}
    fresh: dict[str, tuple[DType, ErrorStats]] = {}
    journal = _journal(job, Path(output), fresh) if resume else None
    writer = ModelWriter(output, job.records, job.precision.choose, job.tokenizer, job.provenance, journal)
    progress = Progress(sum(slot.tensor.size for slot in writer.slots), quiet)
    try:
        with writer, closing(encoded(job, writer.slots, threads, fresh)) as stream:
            for slot in writer.done:
                squared_error, squared_value, largest, elements = writer.errors.get(slot.name, [0.0] * 4)
                stats = ErrorStats(squared_error, squared_value, largest, int(elements))
                errors[slot.name] = (slot.tensor.dtype, stats)
            progress.skip(sum(slot.tensor.size for slot in writer.done))
            for slot in writer.slots:
                writer.write(slot, islice(stream, part_count(slot)))
                progress.add(slot.tensor.size)
    finally:
        progress.close()
    errors |= fresh
    seconds = time.monotonic() - begin
    return Report(Path(output), writer.file_bytes, writer.root.hex(), seconds, errors)
