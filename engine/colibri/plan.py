# SPDX-License-Identifier: MIT
"""The memory plan of docs/format.md section 8, to the byte.

Standard library only. The engine computes the same rows from the same records and allocates
exactly these buffers, so a plan made on the host is the peak on the device.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from colibri._spec import (
    GROUP_COLUMNS,
    PANEL_ROWS,
    AttentionBlock,
    Code,
    FfnBlock,
    LayerBlock,
    ModelBlock,
    MoeBlock,
    RopeBlock,
    Section,
    SharedBlock,
)
from colibri.errors import ColibriError

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
DEFAULT_CONTEXT_TOKENS = 2048
DEFAULT_BATCH_TOKENS = 32
DEFAULT_THREADS = 4
DEFAULT_MAX_TEXT_BYTES = 65536
MERGE_SCRATCH_PER_BYTE = 24
KV_ELEMENT_BYTES = {"f16": 2, "f32": 4}
MAX_BATCH_TOKENS = 512
MAX_SESSIONS = 64
MAX_THREADS = 64


@dataclass(frozen=True)
class FileSizes:
    """What the plan needs to know about a file besides its records."""

    file_bytes: int
    records_bytes: int
    directory_bytes: int
    has_tokenizer: bool


@dataclass(frozen=True)
class PlanOptions:
    """Run-time options; 0 means the default that colibri.h states."""

    context_tokens: int = 0
    batch_tokens: int = 0
    max_sessions: int = 0
    threads: int = 0
    kv: str = "f16"
    max_text_bytes: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """The rows of docs/format.md section 8; everything in bytes unless the name says tokens."""

    context_tokens: int
    batch_tokens: int
    threads: int
    max_sessions: int
    kv: str
    mapped_bytes: int
    kv_bytes: int
    activation_bytes: int
    table_bytes: int
    stack_bytes: int
    arena_bytes: int
    process_bytes: int
    total_bytes: int

    def rows(self) -> list[tuple[str, int]]:
        """(name, bytes) of every row, in the order of the document."""
        return [
            (name, int(getattr(self, f"{name}_bytes")))
            for name in (
                "mapped",
                "kv",
                "activation",
                "table",
                "stack",
                "arena",
                "process",
                "total",
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
    pairs: int = 0  # P
    inner: int = 0  # F
    experts: int = 0  # X
    top_k: int = 1  # R
    layers: int = 0  # L
    extents: int = 1


def _measure(blocks: Iterable[object]) -> tuple[_Shape, list[AttentionBlock]]:
    shape = _Shape()
    attentions: list[AttentionBlock] = []
    for block in blocks:
        if isinstance(block, ModelBlock):
            shape.hidden = up(block.hidden, GROUP_COLUMNS)
            shape.vocabulary = up(block.vocabulary, PANEL_ROWS)
            shape.context = block.context_tokens
        elif isinstance(block, LayerBlock):
            shape.layers += 1
            shape.extents += 1
        elif isinstance(block, RopeBlock):
            shape.pairs += block.pairs
        elif isinstance(block, AttentionBlock):
            attentions.append(block)
            keys = up(block.kv_heads * block.head_dim, GROUP_COLUMNS)
            values = up(block.kv_heads * block.value_dim, GROUP_COLUMNS)
            shape.q = max(shape.q, up(block.heads * block.head_dim, GROUP_COLUMNS))
            shape.o = max(shape.o, up(block.heads * block.value_dim, GROUP_COLUMNS))
            shape.k = max(shape.k, keys + values)
        if isinstance(block, FfnBlock | MoeBlock | SharedBlock):
            experts = block.top_k if isinstance(block, MoeBlock) else 1
            shape.inner = max(shape.inner, experts * up(block.intermediate, GROUP_COLUMNS))
        if isinstance(block, MoeBlock):
            shape.experts = max(shape.experts, block.experts)
            shape.top_k = max(shape.top_k, block.top_k)
            shape.extents += block.experts
    if shape.layers == 0 or shape.hidden == 0:
        raise ColibriError(Code.RECORD, "plan: the records have no model or no layer block; verify the file first")
    return shape, attentions


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
    )
    scratch = (
        2 * buf(4 * b * h)  # x, normed
        + buf(4 * b * shape.q)
        + buf(4 * b * shape.k)  # k, v
        + buf(4 * b * shape.o)  # heads' outputs
        + 2 * buf(4 * b * shape.pairs)  # cos, sin
        + buf(b * d)  # quantised input: values, scales, sums
        + 2 * buf(4 * b * (d // GROUP_COLUMNS))
        + n * buf(4 * t)  # attention scores
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


def plan(blocks: Iterable[object], sizes: FileSizes, options: PlanOptions) -> MemoryPlan:
    """The memory plan of a model.

    blocks: the record stream in file order (dataclasses of colibri._spec).
    """
    shape, attentions = _measure(blocks)
    if options.kv not in KV_ELEMENT_BYTES:
        raise ColibriError(Code.ARGUMENT, f"plan: kv is {options.kv!r}; use one of {', '.join(KV_ELEMENT_BYTES)}")
    element = KV_ELEMENT_BYTES[options.kv]
    context = min(shape.context, DEFAULT_CONTEXT_TOKENS)
    t = _option("context_tokens", options.context_tokens, context, shape.context)
    b = _option("batch_tokens", options.batch_tokens, DEFAULT_BATCH_TOKENS, MAX_BATCH_TOKENS)
    s = _option("max_sessions", options.max_sessions, 1, MAX_SESSIONS)
    n = _option("threads", options.threads, DEFAULT_THREADS, MAX_THREADS)
    text = options.max_text_bytes or DEFAULT_MAX_TEXT_BYTES

    buf = buffer_bytes
    kv = s * sum(
        buf(a.kv_heads * t * a.head_dim * element) + buf(a.kv_heads * t * a.value_dim * element) for a in attentions
    )
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
    mapped = up(sizes.file_bytes, PAGE)
    stack = (n - 1) * STACK_BYTES
    arena = up(kv + activation + table, PAGE)
    return MemoryPlan(
        context_tokens=t,
        batch_tokens=b,
        threads=n,
        max_sessions=s,
        kv=options.kv,
        mapped_bytes=mapped,
        kv_bytes=kv,
        activation_bytes=activation,
        table_bytes=table,
        stack_bytes=stack,
        arena_bytes=arena,
        process_bytes=PROCESS_BYTES,
        total_bytes=mapped + arena + stack + PROCESS_BYTES,
    )


def plan_file(file: ModelFile, options: PlanOptions | None = None) -> MemoryPlan:
    """The memory plan of an open model file."""
    sizes = FileSizes(
        file_bytes=file.file_bytes,
        records_bytes=file.sections[Section.RECORDS].size,
        directory_bytes=file.sections[Section.DIRECTORY].size,
        has_tokenizer=file.has_tokenizer,
    )
    return plan(file.records.blocks(), sizes, options or PlanOptions())
