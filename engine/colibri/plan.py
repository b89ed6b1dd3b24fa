# SPDX-License-Identifier: MIT
"""The memory plan of docs/format.md section 8, to the byte.

Standard library only. The engine computes the same rows from the same records and allocates
exactly these buffers, so a plan made on the host is the peak on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from colibri._spec import (
    DEFAULT_BATCH_TOKENS,
    DEFAULT_CONTEXT_TOKENS,
    DEFAULT_IO_THREADS,
    DEFAULT_TEXT_BYTES,
    DEFAULT_THREADS,
    GROUP_COLUMNS,
    MAX_BATCH_TOKENS,
    MAX_EXTENTS,
    MAX_IO_THREADS,
    MAX_SESSIONS,
    MAX_THREADS,
    PANEL_ROWS,
    AttentionBlock,
    Code,
    ExtentKind,
    FfnBlock,
    LayerBlock,
    MlaBlock,
    ModelBlock,
    MoeBlock,
    RopeBlock,
    Section,
    SharedBlock,
    ShortConvBlock,
)
from colibri.errors import ColibriError
from colibri.records import chunk_table_bytes

if TYPE_CHECKING:
    from colibri.format import ModelFile

BUFFER_ALIGN = 64
BUFFER_GUARD = 128
PAGE = 4096
LAYER_DESCRIPTOR_BYTES = 1024
MODEL_BYTES = 16384
SESSION_BYTES = 512
STACK_BYTES = 256 * 1024
PROCESS_BYTES = 4 * 1024 * 1024
KERNEL_BYTES = 2 * 1024 * 1024
TABLE_SPAN = 2 * 1024 * 1024  # what one page of page table maps
READER_BYTES = 4096
READ_BYTES = 64
NEED_BYTES = 16
CACHE_EXPERT_BYTES = CACHE_SLOT_BYTES = 12
RESIDENCIES = ("auto", "resident", "stream", "mapped", "mapped-guarded")
MERGE_SCRATCH_PER_BYTE = 24
KV_ELEMENT_BYTES = {"f16": 2, "f32": 4}


@dataclass(frozen=True)
class FileSizes:
    """What the plan needs to know about a file besides its records."""

    file_bytes: int
    records_bytes: int
    directory_bytes: int
    has_tokenizer: bool
    experts_bytes: int = 0  # the experts section
    slot_bytes: int = 0  # largest expert extent with its chunk table


@dataclass(frozen=True)
class PlanOptions:
    """Run-time options; 0 means the default that colibri.h states. Without budget nothing is refused."""

    context_tokens: int = 0
    batch_tokens: int = 0
    max_sessions: int = 0
    threads: int = 0
    kv: str = "f16"
    max_text_bytes: int = 0
    residency: str = "auto"
    expert_slots: int = 0
    io_threads: int = 0
    budget_bytes: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """The rows of docs/format.md section 8; everything in bytes unless the name says tokens."""

    context_tokens: int
    batch_tokens: int
    threads: int
    max_sessions: int
    kv: str
    residency: str
    expert_slots: int
    io_threads: int
    max_expert_slots: int
    mapped_bytes: int
    trunk_mapped_bytes: int
    kv_bytes: int
    activation_bytes: int
    table_bytes: int
    slot_bytes: int
    slots_bytes: int
    stack_bytes: int
    io_stack_bytes: int
    arena_bytes: int
    process_bytes: int
    kernel_bytes: int
    total_bytes: int
    floor_bytes: int
    recommended_bytes: int

    def rows(self) -> list[tuple[str, int]]:
        """(name, bytes) of every row, in the order of the document."""
        return [
            (name, int(getattr(self, f"{name}_bytes")))
            for name in (
                "trunk_mapped",
                "mapped",
                "kv",
                "activation",
                "table",
                "slot",
                "slots",
                "stack",
                "io_stack",
                "arena",
                "process",
                "kernel",
                "total",
                "recommended",
                "floor",
            )
        ]


def up(x: int, a: int) -> int:
    """x rounded up to a multiple of a."""
    return -(-x // a) * a


def buffer_bytes(x: int) -> int:
    """A buffer of x bytes in the arena: cache-line aligned, with a guard behind it."""
    return up(x, BUFFER_ALIGN) + BUFFER_GUARD


@dataclass
class _Shape:
    """The maxima and sums of section 8 over a record stream; the letters are the document's."""

    context: int = 0
    vocabulary: int = 0  # V
    hidden: int = 0  # H
    q: int = 0  # Q
    k: int = 0  # K
    o: int = 0  # O
    sinks: int = 0  # 1: a score more than there are positions
    pairs: int = 0  # P
    inner: int = 0  # F
    experts: int = 0  # X
    top_k: int = 1  # R
    layers: int = 0  # L
    slots: int = 0  # A

    @property
    def extents(self) -> int:
        """The global trunk, the trunk of each layer, the experts."""
        return 1 + self.layers + self.slots


def _measure(blocks: Iterable[object]) -> tuple[_Shape, list[tuple[int, int]], list[int]]:
    """The maxima, the widths of keys and values of each layer with attention, and the bytes of convolution states."""
    shape = _Shape()
    caches: list[tuple[int, int]] = []
    states: list[int] = []

    def heads(queries: int, keys: int, values: int, outputs: int) -> None:
        """Widths of all heads together."""
        caches.append((keys, values))
        shape.q = max(shape.q, up(queries, GROUP_COLUMNS))
        shape.o = max(shape.o, up(outputs, GROUP_COLUMNS))
        shape.k = max(shape.k, up(keys, GROUP_COLUMNS) + up(values, GROUP_COLUMNS))

    for block in blocks:
        if isinstance(block, ModelBlock):
            shape.hidden = up(block.hidden, GROUP_COLUMNS)
            shape.vocabulary = up(block.vocabulary, PANEL_ROWS)
            shape.context = block.context_tokens
        elif isinstance(block, LayerBlock):
            shape.layers += 1
        elif isinstance(block, RopeBlock):
            shape.pairs += block.pairs
        elif isinstance(block, AttentionBlock):
            kv_heads = block.kv_heads
            wide, narrow = block.heads * block.head_dim, block.heads * block.value_dim
            heads(wide, kv_heads * block.head_dim, kv_heads * block.value_dim, narrow)
            shape.sinks |= block.sinks
        elif isinstance(block, MlaBlock):
            wide, narrow = block.heads * (block.nope_dim + block.rope_dim), block.heads * block.value_dim
            heads(wide, wide, narrow, narrow)
            latent = (block.q_rank, block.kv_rank, block.kv_rank + block.rope_dim)
            shape.o = max(shape.o, sum(up(width, GROUP_COLUMNS) for width in latent))
        elif isinstance(block, ShortConvBlock):
            states.append(4 * (block.taps - 1) * block.width)
            shape.o = max(shape.o, up(block.width, GROUP_COLUMNS))
            shape.k = max(shape.k, up(3 * block.width, GROUP_COLUMNS))
        if isinstance(block, FfnBlock | MoeBlock | SharedBlock):
            experts = block.top_k if isinstance(block, MoeBlock) else 1
            shape.inner = max(shape.inner, experts * up(block.intermediate, GROUP_COLUMNS))
        if isinstance(block, MoeBlock):
            shape.experts = max(shape.experts, block.experts)
            shape.top_k = max(shape.top_k, block.top_k)
            shape.slots += block.experts
    if shape.layers == 0 or shape.hidden == 0:
        raise ColibriError(Code.RECORD, "plan: the records have no model or no layer block; verify the file first")
    return shape, caches, states


def _option(name: str, value: int, default: int, limit: int) -> int:
    if value < 0 or value > limit:
        raise ColibriError(
            Code.ARGUMENT,
            f"plan: {name} is {value}; the limit is 1..{limit}, or 0 for the default of {default}",
        )
    return value or default


def _activation(shape: _Shape, t: int, b: int, s: int, n: int) -> int:
    """Row `activation`: context t, batch b, sessions s, threads n."""
    buf = buffer_bytes
    h, f, r, x = shape.hidden, shape.inner, shape.top_k, shape.experts
    d = max(h, shape.o)
    session = (
        buf(4 * shape.vocabulary)  # logits
        + buf(8 * shape.vocabulary)  # sampler: weight and id
        + buf(4 * shape.layers * b * r)  # routing
        + buf(4 * t)  # ids
    )
    scratch = (
        2 * buf(4 * b * h)  # x, normed
        + buf(4 * b * shape.q)
        + buf(4 * b * shape.k)  # k, v
        + buf(4 * b * shape.o)  # heads' outputs
        + 2 * buf(4 * b * shape.pairs)  # cos, sin
        + buf(b * d)  # quantised input: values, scales, sums
        + 2 * buf(4 * b * (d // GROUP_COLUMNS))
        + n * buf(4 * (t + shape.sinks))  # attention scores
        + buf(4 * b * up(x, PANEL_ROWS))  # router logits
        + 4 * buf(4 * b * r)  # ids, weights, slot of a choice, token of a slot
        + buf(4 * (x + 1))  # first slot of an expert
        + 2 * buf(4 * b * f)  # gate, up
        + buf(b * f)  # quantised hidden
        + 2 * buf(4 * b * (f // GROUP_COLUMNS))
        + buf(4 * b * r * h)  # grouped inputs, then expert outputs
        + buf(4 * b * h)  # accumulator
    )
    return s * session + scratch


def _stream_activation(shape: _Shape, b: int) -> int:
    """What experts in slots add to the row `activation`."""
    buf = buffer_bytes
    h, r, x = shape.hidden, shape.top_k, shape.experts
    return (
        buf(b * r * h)  # grouped inputs: values
        + 2 * buf(4 * b * r * (h // GROUP_COLUMNS))  # scales, sums
        + buf(NEED_BYTES * x)  # experts of a layer
        + buf(4 * h)  # look-ahead: normed
        + buf(h)  # quantised
        + 2 * buf(4 * (h // GROUP_COLUMNS))
        + buf(4 * up(x, PANEL_ROWS))  # router logits
        + buf(4 * r)  # ids
    )


def _stream_table(shape: _Shape, slots: int) -> int:
    """What experts in slots add to the row `table`."""
    buf = buffer_bytes
    cache = shape.layers * (CACHE_EXPERT_BYTES * shape.experts + 4) + CACHE_SLOT_BYTES * slots
    return buf(READER_BYTES) + buf(READ_BYTES * slots) + buf(cache)


def _most_slots(total: Callable[[int], int], most: int, budget: int) -> int:
    """The largest number of slots in 1..most whose total is within the budget; 1 when none is."""
    low, high = 1, most
    while low < high:
        middle = low + (high - low + 1) // 2
        low, high = (middle, high) if total(middle) <= budget else (low, middle - 1)
    return min(low, most)


def plan(blocks: Iterable[object], sizes: FileSizes, options: PlanOptions) -> MemoryPlan:
    """The memory plan of a model; raises `budget` when it does not fit the budget that was given.

    blocks: the record stream in file order (dataclasses of colibri._spec).
    """
    shape, caches, states = _measure(blocks)
    for name, value, words in (("kv", options.kv, KV_ELEMENT_BYTES), ("residency", options.residency, RESIDENCIES)):
        if value not in words:
            raise ColibriError(Code.ARGUMENT, f"plan: {name} is {value!r}; use one of {', '.join(words)}")
    element = KV_ELEMENT_BYTES[options.kv]
    context = min(shape.context, DEFAULT_CONTEXT_TOKENS)
    t = _option("context_tokens", options.context_tokens, context, shape.context)
    b = _option("batch_tokens", options.batch_tokens, DEFAULT_BATCH_TOKENS, MAX_BATCH_TOKENS)
    s = _option("max_sessions", options.max_sessions, 1, MAX_SESSIONS)
    n = _option("threads", options.threads, DEFAULT_THREADS, MAX_THREADS)
    readers = _option("io_threads", options.io_threads, DEFAULT_IO_THREADS, MAX_IO_THREADS)
    slots = _option("expert_slots", options.expert_slots, 0, MAX_EXTENTS)
    budget = options.budget_bytes
    if not 0 <= budget < 1 << 64:
        raise ColibriError(Code.ARGUMENT, f"plan: budget_bytes is {budget}; the limit is 0..2^64 - 1, 0 for none")
    text = options.max_text_bytes or DEFAULT_TEXT_BYTES

    buf = buffer_bytes
    kv = s * sum(buf(keys * t * element) + buf(values * t * element) for keys, values in caches)
    kv += s * 2 * buf(sum(states)) if sum(states) else 0
    activation = _activation(shape, t, b, s, n)
    table = (
        buf(MODEL_BYTES)
        + s * buf(SESSION_BYTES)
        + buf(sizes.records_bytes)
        + buf(sizes.directory_bytes)
        + shape.layers * buf(LAYER_DESCRIPTOR_BYTES)
        + buf(shape.extents)  # state
        + buf(8 * shape.layers * shape.experts)  # counts
    )
    if sizes.has_tokenizer:
        table += buf(MERGE_SCRATCH_PER_BYTE * text)
    whole = up(sizes.file_bytes, PAGE)
    trunk = whole - sizes.experts_bytes
    stack = (n - 1) * STACK_BYTES

    def rows(stream: bool, slots: int) -> MemoryPlan:
        rows_activation = activation + (_stream_activation(shape, b) if stream else 0)
        rows_table = table + (_stream_table(shape, slots) if stream else 0)
        mapped = trunk if stream else whole
        io_stack = readers * STACK_BYTES if stream else 0
        arena = up(kv + rows_activation + rows_table, PAGE) + slots * sizes.slot_bytes
        own = mapped + arena + stack + io_stack
        kernel = up(own, TABLE_SPAN) // 512 + KERNEL_BYTES
        return MemoryPlan(
            context_tokens=t,
            batch_tokens=b,
            threads=n,
            max_sessions=s,
            kv=options.kv,
            residency="stream" if stream else "resident",
            expert_slots=slots,
            io_threads=readers if stream else 0,
            max_expert_slots=shape.slots,
            mapped_bytes=mapped,
            trunk_mapped_bytes=trunk,
            kv_bytes=kv,
            activation_bytes=rows_activation,
            table_bytes=rows_table,
            slot_bytes=sizes.slot_bytes,
            slots_bytes=slots * sizes.slot_bytes,
            stack_bytes=stack,
            io_stack_bytes=io_stack,
            arena_bytes=arena,
            process_bytes=PROCESS_BYTES,
            kernel_bytes=kernel,
            total_bytes=own + PROCESS_BYTES + kernel,
            floor_bytes=0,
            recommended_bytes=0,
        )

    recommended = rows(False, 0).total_bytes
    least = rows(True, min(1, shape.slots)).total_bytes
    floor = min(least, recommended)
    limit = budget or (1 << 64) - 1
    mode = options.residency
    if mode == "auto":
        resident = least >= recommended or (slots == 0 and recommended <= limit)
        mode = "resident" if resident else "stream"
    if mode != "stream":
        slots = 0
    elif slots == 0:
        slots = _most_slots(lambda count: rows(True, count).total_bytes, shape.slots, limit)
    found = replace(
        rows(mode == "stream", min(slots, shape.slots)),
        residency=mode,
        floor_bytes=floor,
        recommended_bytes=recommended,
    )
    if found.total_bytes > limit:
        raise ColibriError(
            Code.BUDGET,
            f"the plan needs {found.total_bytes} bytes, the budget is {budget}, the floor {floor}; lower "
            f"context_tokens ({t}), batch_tokens ({b}), max_text_bytes ({text})"
            f"{', expert_slots' if found.expert_slots > 1 else ''} or raise budget_bytes to {found.total_bytes}, "
            "if that much is free",
        )
    return found


def file_sizes(file: ModelFile) -> FileSizes:
    """What the plan needs to know about an open model file besides its records."""
    experts = file.sections[Section.EXPERTS].size
    slots = [e.size + chunk_table_bytes(e.size) for e in file.extents if e.kind == ExtentKind.EXPERT]
    return FileSizes(
        file_bytes=file.file_bytes,
        records_bytes=file.sections[Section.RECORDS].size,
        directory_bytes=file.sections[Section.DIRECTORY].size,
        has_tokenizer=file.has_tokenizer,
        experts_bytes=experts,
        slot_bytes=max(slots, default=0),
    )


def plan_file(file: ModelFile, options: PlanOptions | None = None) -> MemoryPlan:
    """The memory plan of an open model file."""
    return plan(file.records.blocks(), file_sizes(file), options or PlanOptions())
