# SPDX-License-Identifier: MIT
"""Speed of a model on a board, predicted from bytes, multiplications and the board's figures.

Standard library only. docs/plan.md derives the formulas and compares them with measurements. What
is computed here is a *prediction*: every figure is labelled so, and says which limit decided it.

The work of a token is a list of parts (mixer, router and shared experts of a layer, its experts,
the head). A part takes as long as the slower one of reading its weights from DRAM and multiplying.
Experts that are not in memory are read from storage while those that are present are computed; the
layer's other parts cannot hide its own misses, because which experts are needed is known after them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from colibri._spec import AttentionBlock, DType, ExtentKind, MlaBlock, MoeBlock, Scope
from colibri.boards import Bandwidth, Board, BoardError, Compute, Storage
from colibri.plan import KV_ELEMENT_BYTES, MemoryPlan
from colibri.records import chunk_table_bytes, round_up

if TYPE_CHECKING:
    from colibri.format import ModelFile

STEPS_PER_LAYER = 14  # times the threads of a layer meet: norms, projections, attention, router, experts, sums
STEPS_PER_PASS = 3  # embedding, final norm, head
PROMPT_TOKENS = 4  # kernels that take several tokens at a time begin here
DRAM_SHARE = 0.85  # of the bandwidth that decoding reaches over a whole token
PROMPT_LENGTHS = (1, 32, 128, 512)
_RATE = {DType.INT4: "int4", DType.INT8: "int8"}  # the others compute as f32


@dataclass
class Work:
    """Weights that a part reads once, and multiplications per token by kind of kernel."""

    nbytes: int = 0
    macs: dict[str, int] = field(default_factory=dict)

    def add(self, nbytes: int, dtype: DType, macs: int) -> None:
        """Count a tensor."""
        self.nbytes += nbytes
        name = _RATE.get(dtype, "f32")
        self.macs[name] = self.macs.get(name, 0) + macs


@dataclass
class LayerWork:
    """One layer: what every token needs, and its experts."""

    trunk: Work = field(default_factory=Work)
    expert: Work = field(default_factory=Work)  # one expert
    experts: int = 0
    top_k: int = 0
    extent_bytes: int = 0  # one read: expert and chunk table
    kv_row_bytes: int = 0  # of one position
    attention_macs: int = 0  # per position looked at


@dataclass
class ModelWork:
    """What the prediction needs to know about a model."""

    layers: list[LayerWork]
    head: Work
    file_bytes: int
    trunk_bytes: int  # the file without its experts
    profile: list[list[int]] | None = None  # [sparse layer][expert] counts of a calibration text

    @property
    def active_bytes(self) -> int:
        """Weights that one token reads."""
        return self.head.nbytes + sum(w.trunk.nbytes + w.top_k * w.expert.nbytes for w in self.layers)

    @property
    def expert_count(self) -> int:
        """Experts of all layers."""
        return sum(w.experts for w in self.layers)

    @property
    def routed_bytes(self) -> int:
        """Bytes of a token's experts as storage delivers them."""
        return sum(w.top_k * w.extent_bytes for w in self.layers)


def model_work(model: ModelFile, kv: str = "f16") -> ModelWork:
    """Count the work of an open model file."""
    records = model.records
    layers = [LayerWork() for _ in records.layers]
    head = Work()
    for tensor in model.tensors:
        macs = round_up(tensor.rows, 8) * round_up(tensor.columns, 32) if tensor.rows > 1 else 0
        if tensor.layer is None:
            # The embedding is a row per token, and the head when it is tied.
            is_head = tensor.role.name == "HEAD" or (tensor.role.name == "EMBEDDING" and records.model.tied_head)
            if is_head:
                head.add(tensor.size, tensor.dtype, macs)
        elif tensor.scope == Scope.EXPERT:
            layers[tensor.layer].expert.add(tensor.size, tensor.dtype, macs)
        else:
            layers[tensor.layer].trunk.add(tensor.size, tensor.dtype, macs)
    for work, layer in zip(layers, records.layers, strict=True):
        if isinstance(layer.ffn, MoeBlock):
            work.experts, work.top_k = layer.ffn.experts, layer.ffn.top_k
        if isinstance(layer.mixer, AttentionBlock):
            mixer = layer.mixer
            work.kv_row_bytes = mixer.kv_heads * (mixer.head_dim + mixer.value_dim) * KV_ELEMENT_BYTES[kv]
            work.attention_macs = mixer.heads * (mixer.head_dim + mixer.value_dim)
        elif isinstance(layer.mixer, MlaBlock):  # the cache holds plain heads
            latent = layer.mixer
            work.attention_macs = latent.heads * (latent.nope_dim + latent.rope_dim + latent.value_dim)
            work.kv_row_bytes = work.attention_macs * KV_ELEMENT_BYTES[kv]
    experts_bytes = 0
    for extent in model.extents:
        if extent.kind == ExtentKind.EXPERT and extent.layer is not None:
            size = extent.size + chunk_table_bytes(extent.size)
            experts_bytes += size
            layers[extent.layer].extent_bytes = max(layers[extent.layer].extent_bytes, size)
    return ModelWork(layers, head, model.file_bytes, model.file_bytes - experts_bytes, profile_counts(model))


def profile_counts(model: ModelFile) -> list[list[int]] | None:
    """Counts of the calibration profile, [sparse layer][expert]; None when the file has none."""
    profile = model.calibration()
    return None if profile is None else profile.counts


# --------------------------------------------------------------------------- hit rate


def popularity(work: ModelWork) -> list[list[float]]:
    """Probability that a token needs an expert, [sparse layer][expert]: the profile's, else all the same."""
    sparse = [w for w in work.layers if w.experts]
    found = []
    for index, w in enumerate(sparse):
        counts = work.profile[index] if work.profile is not None else []
        total = sum(counts)
        if total and len(counts) == w.experts:
            found.append([min(1.0, w.top_k * count / total) for count in counts])
        else:
            found.append([w.top_k / w.experts] * w.experts)
    return found


def layer_hits(work: ModelWork, slots: int) -> list[float]:
    """Share of a token's experts that are in memory, by layer, when the most popular ones of the model are.

    With all experts equally likely this is slots / experts, whatever the replacement policy.
    """
    if work.profile is None:
        return [min(1.0, slots / work.expert_count) if w.experts else 1.0 for w in work.layers]
    chances = popularity(work)
    cells = sorted(((p, layer) for layer, row in enumerate(chances) for p in row), reverse=True)
    present = [0.0] * len(chances)
    for p, layer in cells[:slots]:
        present[layer] += p
    rates = iter([min(1.0, have / sum(row)) for have, row in zip(present, chances, strict=True)])
    return [next(rates) if w.experts else 1.0 for w in work.layers]


def _distinct(chances: Sequence[float], tokens: int) -> float:
    """Expected number of different experts that a batch of tokens needs in a layer."""
    return sum(1 - (1 - p) ** tokens for p in chances)


# --------------------------------------------------------------------------- time


@dataclass(frozen=True)
class Machine:
    """The figures of a board that a run uses."""

    bandwidth: Bandwidth
    compute: Compute
    storage: Storage
    cores: int
    threads: int
    io_threads: int

    @property
    def dram(self) -> float:
        """Bytes per second of DRAM."""
        return self.bandwidth.bytes_per_second(self.threads)

    @property
    def hash_seconds(self) -> float:
        """Seconds to verify a byte, one thread."""
        return 1 / (self.compute.hash_mbps * 1e6)

    def rate(self, kind: str, tokens: float) -> float:
        """Multiply-accumulates per second of all threads."""
        table = self.compute.prompt_gmacs if tokens >= PROMPT_TOKENS else self.compute.decode_gmacs
        return table[kind] * 1e9 * self.threads

    def steps(self, count: float) -> float:
        """Seconds of starting and ending `count` pieces of work; one thread has nobody to wait for."""
        return count * self.compute.step_us * 1e-6 if self.threads > 1 else 0.0

    def read_seconds(self, experts: float, nbytes: int) -> float:
        """Reading experts, several at a time; they are computed while they are verified."""
        if experts <= 0:
            return 0.0
        bus = experts * nbytes / (self.storage.read_mbps * 1e6)
        at_once = max(1.0, min(self.io_threads, experts))
        waits = experts / at_once * self.storage.request_us * 1e-6
        return max(bus, waits) + self.storage.request_us * 1e-6


def machine(board: Board, storage: str | None, plan: MemoryPlan) -> Machine:
    """The machine of a plan; raises when the board has no speeds."""
    if board.bandwidth is None or board.compute is None:
        raise BoardError(
            f"{board.name}: has no [memory.bandwidth] or no [compute]; speed is not predicted without them. "
            "Run colibri plan --calibrate on the machine"
        )
    return Machine(
        board.bandwidth,
        board.compute,
        board.storage(storage)[1],
        board.cores,
        plan.threads,
        plan.io_threads or 4,
    )


@dataclass
class Seconds:
    """Time of a pass and what it would take if only one limit existed."""

    total: float = 0.0
    dram: float = 0.0
    compute: float = 0.0
    flash: float = 0.0
    steps: float = 0.0

    @property
    def limit(self) -> str:
        """The limit that decides."""
        return max(("dram", "flash", "compute", "steps"), key=lambda name: float(getattr(self, name)))


def _part(m: Machine, nbytes: float, macs: dict[str, float], tokens: float, out: Seconds) -> float:
    """Seconds of a part; its single limits are added to `out`."""
    dram = nbytes / m.dram
    compute = sum(count / m.rate(kind, tokens) for kind, count in macs.items())
    out.dram += dram
    out.compute += compute
    return max(dram, compute)


def _scaled(work: Work, times: float) -> dict[str, float]:
    return {kind: count * times for kind, count in work.macs.items()}


def _binomial(n: int, p: float) -> Iterator[tuple[int, float]]:
    """(k, probability of k successes) of n trials."""
    for k in range(n + 1):
        yield k, math.comb(n, k) * p**k * (1 - p) ** (n - k)


def _trunk_seconds(m: Machine, w: LayerWork, tokens: int, position: float, out: Seconds) -> float:
    """Norms, attention, router, shared and dense feed-forward of a batch that begins at `position`."""
    rows = position + (tokens + 1) / 2
    spent = _part(m, w.trunk.nbytes, _scaled(w.trunk, tokens), tokens, out)
    macs = {"f32": w.attention_macs * rows * tokens}
    return spent + _part(m, w.kv_row_bytes * rows, macs, tokens, out)


def _finish(m: Machine, present: float, missing: float, one: float, extent: int) -> float:
    """Experts of a layer: those present are computed while the others come; the last one waits."""
    if missing <= 0:
        return present
    load = m.read_seconds(missing, extent)
    compute = present + missing * one
    # Verifying takes processors from computing when there are no others.
    work = (compute * m.threads + missing * extent * m.hash_seconds) / m.cores
    return max(load + one, compute, work)


def decode_seconds(work: ModelWork, m: Machine, position: int, hits: Sequence[float] | None) -> Seconds:
    """One token behind `position` others. hits: hit rate per layer, None when all experts are in memory."""
    out = Seconds()
    for index, w in enumerate(work.layers):
        spent = _trunk_seconds(m, w, 1, position, out)
        if w.experts:
            one = _part(m, w.expert.nbytes, _scaled(w.expert, 1), 1, Seconds())
            _part(m, w.top_k * w.expert.nbytes, _scaled(w.expert, w.top_k), 1, out)
            miss = 0.0 if hits is None else 1 - hits[index]
            for missing, chance in _binomial(w.top_k, miss):
                spent += chance * _finish(m, (w.top_k - missing) * one, missing, one, w.extent_bytes)
            out.flash += w.top_k * miss * w.extent_bytes / (
                m.storage.read_mbps * 1e6
            )
        out.total += spent
    out.total += _part(m, work.head.nbytes, _scaled(work.head, 1), 1, out)
    out.steps = m.steps(STEPS_PER_LAYER * len(work.layers) + STEPS_PER_PASS)
    out.total += out.steps
    return out


def prompt_seconds(work: ModelWork, m: Machine, plan: MemoryPlan, tokens: int, warm: bool) -> Seconds:
    """From the prompt to the logits of its last token; cold also verifies and loads what it touches first."""
    out = Seconds()
    chances = iter(popularity(work))
    stream = plan.residency == "stream"
    share = min(1.0, plan.expert_slots / work.expert_count) if stream and work.expert_count else 1.0
    batches = [min(plan.batch_tokens, tokens - first) for first in range(0, tokens, plan.batch_tokens)]
    for w in work.layers:
        likely = next(chances) if w.experts else []
        present = share if warm else 0.0
        for number, batch in enumerate(batches):
            spent = _trunk_seconds(m, w, batch, number * plan.batch_tokens, out)
            if w.experts:
                distinct = _distinct(likely, batch)
                macs = _scaled(w.expert, batch * w.top_k)
                all_of_them = _part(m, distinct * w.expert.nbytes, macs, batch * w.top_k / distinct, out)
                missing = distinct * (1 - present)
                if stream:
                    one = all_of_them / distinct
                    spent += _finish(m, (distinct - missing) * one, missing, one, w.extent_bytes)
                    out.flash += missing * w.extent_bytes / (m.storage.read_mbps * 1e6)
                    present = min(share, present + missing / w.experts)
                else:
                    # The mapping is locked when the model is opened; what is left is to verify.
                    spent += all_of_them
                    if not warm:
                        spent += missing * w.extent_bytes * m.hash_seconds / m.threads
                    present = min(1.0, present + missing / w.experts)
            out.total += spent
    if not warm:
        out.total += work.trunk_bytes * m.hash_seconds / m.threads
    out.total += _part(m, work.head.nbytes, _scaled(work.head, 1), 1, out)
    out.steps = m.steps(len(batches) * (STEPS_PER_LAYER * len(work.layers) + STEPS_PER_PASS))
    out.total += out.steps
    return out


# --------------------------------------------------------------------------- the answer


@dataclass(frozen=True)
class Prediction:
    """Predicted speed of a plan on a board; seconds and tokens per second."""

    storage: str
    tokens_per_second: float
    position: int
    limit: str
    hit_rate: float
    hit_source: str
    misses_per_token: float
    flash_bytes_per_token: float
    active_bytes: int
    seconds: Seconds
    start_seconds: float
    first_token_cold: dict[int, float]
    first_token_warm: dict[int, float]


def _hits(work: ModelWork, plan: MemoryPlan, forced: float | None) -> tuple[list[float] | None, str]:
    """Hit rate of every layer and where it comes from."""
    if plan.residency != "stream":
        return None, "all experts in memory"
    if forced is not None:
        return [forced] * len(work.layers), "given"
    source = "assumed: every expert equally likely" if work.profile is None else "calibration profile of the model"
    return layer_hits(work, plan.expert_slots), source


def predict(
    work: ModelWork,
    board: Board,
    plan: MemoryPlan,
    storage: str | None = None,
    position: int = 128,
    hit: float | None = None,
) -> Prediction:
    """Predict decoding behind `position` tokens and the time to the first token of some prompts."""
    m = machine(board, storage, plan)
    position = min(position, plan.context_tokens - 1)
    hits, source = _hits(work, plan, hit)
    seconds = decode_seconds(work, m, position, hits)
    missed = [0.0 if hits is None else (1 - hits[i]) * w.top_k for i, w in enumerate(work.layers)]
    misses = sum(missed)
    flash = sum(count * w.extent_bytes for count, w in zip(missed, work.layers, strict=True))
    routed = sum(w.top_k for w in work.layers)
    lengths = [n for n in PROMPT_LENGTHS if n <= plan.context_tokens]
    return Prediction(
        storage=board.storage(storage)[0],
        tokens_per_second=1 / seconds.total,
        position=position,
        limit=seconds.limit,
        hit_rate=1 - misses / routed if routed else 1.0,
        hit_source=source,
        misses_per_token=misses,
        flash_bytes_per_token=flash,
        active_bytes=work.active_bytes,
        seconds=seconds,
        start_seconds=plan.mapped_bytes / (m.storage.read_mbps * 1e6),
        first_token_cold={n: prompt_seconds(work, m, plan, n, warm=False).total for n in lengths},
        first_token_warm={n: prompt_seconds(work, m, plan, n, warm=True).total for n in lengths},
    )


@dataclass(frozen=True)
class Side:
    """One condition of a wished speed."""

    name: str
    holds: bool
    needed: float
    available: float
    text: str


def wanted(work: ModelWork, board: Board, plan: MemoryPlan, prediction: Prediction, wish: float) -> list[Side]:
    """Which conditions of `wish` tokens per second hold, and by how much the others fail."""
    m = machine(board, prediction.storage, plan)

    def side(name: str, needed: float, available: float, unit: str, why: str) -> Side:
        ratio = needed / available if available else math.inf
        verdict = "holds" if ratio <= 1 else f"fails by {ratio:.1f}x"
        return Side(name, ratio <= 1, needed, available, f"{verdict}: {needed:,.4g} of {available:,.4g} {unit}; {why}")

    mb = 1e6
    compute = prediction.seconds.compute + prediction.seconds.steps
    return [
        side(
            "dram", work.active_bytes / mb, DRAM_SHARE * m.dram / wish / mb, "MB per token",
            f"active bytes against {DRAM_SHARE:g} x DRAM / {wish:g}",
        ),
        side(
            "compute", compute * 1e3, 1e3 / wish, "ms per token", "multiplications of all threads against the wish",
        ),
        side(
            "flash", prediction.flash_bytes_per_token / mb, m.storage.read_mbps / wish, "MB per token",
            f"misses against flash / {wish:g}",
        ),
        side("together", wish, prediction.tokens_per_second, "tokens/s", "the wish against the prediction"),
    ]  # fmt: skip
