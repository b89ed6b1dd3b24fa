# SPDX-License-Identifier: MIT
"""The C engine as two typed classes: `Engine` (a model file) and `Session` (one sequence).

Standard library only: logits are a float memoryview; with numpy present `logits_array` gives an
array. Errors are `ColibriError` with the library's pinned codes.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from os import PathLike, fsencode
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from colibri import _ffi
from colibri._spec import DEFAULT_TEXT_BYTES, Code
from colibri.errors import ColibriError
from colibri.plan import RESIDENCIES, MemoryPlan
from colibri.verify import KEY_BYTES, SIGNED_ONLY_VARIABLE, environment_word, load_public_key

if TYPE_CHECKING:
    from colibri.operators import F32

KV_NAMES = ("f16", "f32")
VERIFY_NAMES = ("auto", "open", "first", "always")
LOCK_NAMES = ("try", "require", "off")
DIRECT_IO_NAMES = ("auto", "off")
DEFAULT_PREFETCH_DEPTH = 3


@dataclass(frozen=True)
class ModelInfo:
    """Dimensions and sizes of an open model."""

    family: int
    layers: int
    hidden: int
    vocabulary: int
    context_tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    intermediate: int
    has_tokenizer: bool
    has_chat: bool
    parameters: int
    file_bytes: int
    trunk_bytes: int
    expert_bytes: int
    root: bytes


@dataclass(frozen=True)
class Report:
    """What could and could not be had when the model was opened."""

    threads: int
    locked_bytes: int
    unlocked_bytes: int
    lock_errno: int
    lock_message: str
    verified_extents: int
    extents: int
    isa: str
    direct_io: bool
    direct_io_errno: int
    residency_message: str


@dataclass(frozen=True)
class ResidencyStats:
    """What streaming did since the model was opened; zero in the other modes."""

    slots_used: int
    hits: int
    misses: int
    reads: int
    read_bytes: int
    failed_reads: int
    prefetch_reads: int
    prefetch_hits: int
    prefetch_wasted: int
    io_wait_ns: int
    io_idle_ns: int
    read_ns: int
    hash_ns: int
    barriers: int


@dataclass(frozen=True)
class LayerTelemetry:
    """How the experts of a layer were used; drift is None without a calibration profile."""

    layer: int
    experts: int
    top_k: int
    choices: int
    entropy_bits: float
    hottest: int
    hottest_percent: int
    hot: int
    drift: float | None


def _choice(name: str, value: str, allowed: tuple[str, ...]) -> int:
    if value not in allowed:
        raise ColibriError(Code.ARGUMENT, f"{name} is {value!r}; use one of {', '.join(allowed)}")
    return allowed.index(value)


def _unsigned(name: str, value: int, bits: int = 32) -> int:
    """A value that fits the field; ctypes would cut it without a word."""
    if not 0 <= value < 1 << bits:
        raise ColibriError(Code.ARGUMENT, f"{name} is {value}; the limit is 0..2^{bits} - 1")
    return value


def isas_compiled() -> list[str]:
    """Instruction sets that the library was built with, ascending."""
    return bytes(_ffi.load().colibri_isas_compiled()).decode().split()


def isas_available() -> list[str]:
    """The subset of `isas_compiled` that this CPU runs."""
    return bytes(_ffi.load().colibri_isas_available()).decode().split()


def build_forced() -> list[str]:
    """The macros that the build forces and no option lowers, e.g. `COLIBRI_SECURE_MODE`."""
    return bytes(_ffi.load().colibri_build_forced()).decode().split()


def build_info() -> str:
    """colibri_v<version>_<arch>_<compiler><version>."""
    return bytes(_ffi.load().colibri_build_info()).decode()


def selftest(isa: str | None = None) -> None:
    """Run the golden vectors built into the library; raises when one differs."""
    error = _ffi.ErrorStruct()
    name = None if isa is None else isa.encode()
    _ffi.check(_ffi.load().colibri_selftest(name, ctypes.byref(error)), error)


class _Closing(ABC):
    """A context manager that closes at the end of its block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Free what the object holds. Closing twice is allowed."""


class Engine(_Closing):
    """An open model: mapped weights, memory plan, worker threads. A context manager."""

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        threads: int = 0,
        context_tokens: int = 0,
        batch_tokens: int = 0,
        max_sessions: int = 0,
        kv: str = "f16",
        verify: str = "auto",
        lock: str = "try",
        budget_bytes: int = 0,
        max_text_bytes: int = 0,
        residency: str = "auto",
        expert_slots: int = 0,
        io_threads: int = 0,
        prefetch_depth: int = DEFAULT_PREFETCH_DEPTH,
        direct_io: str = "auto",
        isa: str | None = None,
        public_key: bytes | None = None,
        require_signature: bool = False,
        secure_mode: bool = False,
    ) -> None:
        """Open a `.colibri` file; the options are those of colibri.h, 0 = default.

        `public_key`: 32 bytes (`colibri.verify.load_public_key`); what it did not sign is refused.
        """
        if public_key is not None and len(public_key) != KEY_BYTES:
            raise ColibriError(Code.ARGUMENT, f"public_key has {len(public_key)} bytes, must have {KEY_BYTES}")
        self._library = _ffi.load()
        options = _ffi.ModelOptions()
        self._library.colibri_model_options_default(ctypes.byref(options))
        options.threads = _unsigned("threads", threads)
        options.context_tokens = _unsigned("context_tokens", context_tokens)
        options.batch_tokens = _unsigned("batch_tokens", batch_tokens)
        options.max_sessions = _unsigned("max_sessions", max_sessions)
        options.kv = _choice("kv", kv, KV_NAMES)
        options.verify = _choice("verify", verify, VERIFY_NAMES)
        options.lock = _choice("lock", lock, LOCK_NAMES)
        options.budget_bytes = _unsigned("budget_bytes", budget_bytes, 64)
        options.max_text_bytes = _unsigned("max_text_bytes", max_text_bytes)
        options.residency = _choice("residency", residency, RESIDENCIES)
        options.expert_slots = _unsigned("expert_slots", expert_slots)
        options.io_threads = _unsigned("io_threads", io_threads)
        options.prefetch_depth = _unsigned("prefetch_depth", prefetch_depth)
        options.direct_io = _choice("direct_io", direct_io, DIRECT_IO_NAMES)
        options.isa = None if isa is None else isa.encode()
        options.public_key = public_key
        options.require_signature = int(require_signature)
        options.secure_mode = int(secure_mode)
        handle = ctypes.c_void_p()
        error = _ffi.ErrorStruct()
        code = self._library.colibri_model_open(
            fsencode(path), ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error)
        )
        try:
            _ffi.check(code, error)
        except ColibriError as failure:
            failure.file = Path(path)
            raise
        self._handle: ctypes.c_void_p | None = handle
        self._sessions: list[Session] = []
        self._max_text_bytes = max_text_bytes or DEFAULT_TEXT_BYTES
        self.info = self._read_info()

    # -- lifetime ---------------------------------------------------------------------------

    @property
    def handle(self) -> ctypes.c_void_p:
        """The open model, for `Session`; raises after close."""
        if self._handle is None:
            raise ColibriError(Code.ARGUMENT, "engine is closed; open the model again")
        return self._handle

    def close(self) -> None:
        """Free the sessions and the model. Closing twice is allowed."""
        for session in list(self._sessions):
            session.close()
        if self._handle is not None:
            self._library.colibri_model_close(self._handle)
            self._handle = None

    def session(self) -> Session:
        """A new sequence; at most max_sessions at a time."""
        session = Session(self)
        self._sessions.append(session)
        return session

    def forget(self, session: Session) -> None:
        """Called by a session that closes."""
        if session in self._sessions:
            self._sessions.remove(session)

    # -- information ------------------------------------------------------------------------

    def _read_info(self) -> ModelInfo:
        raw = _ffi.ModelInfoStruct()
        raw.struct_size = ctypes.sizeof(raw)
        self._code(self._library.colibri_model_info_get(self.handle, ctypes.byref(raw)))
        return ModelInfo(
            family=raw.family,
            layers=raw.layers,
            hidden=raw.hidden,
            vocabulary=raw.vocabulary,
            context_tokens=raw.context_tokens,
            heads=raw.heads,
            kv_heads=raw.kv_heads,
            head_dim=raw.head_dim,
            experts=raw.experts,
            top_k=raw.top_k,
            intermediate=raw.intermediate,
            has_tokenizer=bool(raw.has_tokenizer),
            has_chat=bool(raw.has_chat),
            parameters=raw.parameters,
            file_bytes=raw.file_bytes,
            trunk_bytes=raw.trunk_bytes,
            expert_bytes=raw.expert_bytes,
            root=bytes(raw.root),
        )

    def plan(self) -> MemoryPlan:
        """The memory plan the engine allocated by."""
        raw = _ffi.PlanStruct()
        raw.struct_size = ctypes.sizeof(raw)
        self._code(self._library.colibri_model_plan(self.handle, ctypes.byref(raw)))
        names = {"kv": KV_NAMES[raw.kv], "residency": RESIDENCIES[raw.residency]}
        values = {field.name: names.get(field.name, getattr(raw, field.name)) for field in fields(MemoryPlan)}
        return MemoryPlan(**values)

    def residency(self) -> ResidencyStats:
        """Hits, misses, reads and waits of streaming; not while a call runs."""
        raw = _ffi.ResidencyStruct()
        raw.struct_size = ctypes.sizeof(raw)
        self._code(self._library.colibri_model_residency(self.handle, ctypes.byref(raw)))
        return ResidencyStats(**{field.name: getattr(raw, field.name) for field in fields(ResidencyStats)})

    def report(self) -> Report:
        """Locks, threads and kernels that were had."""
        raw = _ffi.ReportStruct()
        raw.struct_size = ctypes.sizeof(raw)
        self._code(self._library.colibri_model_report(self.handle, ctypes.byref(raw)))
        return Report(
            threads=raw.threads,
            locked_bytes=raw.locked_bytes,
            unlocked_bytes=raw.unlocked_bytes,
            lock_errno=raw.lock_errno,
            lock_message=bytes(raw.lock_message).decode("utf-8", "replace"),
            verified_extents=raw.verified_extents,
            extents=raw.extents,
            isa=bytes(raw.isa or b"").decode(),
            direct_io=bool(raw.direct_io),
            direct_io_errno=raw.direct_io_errno,
            residency_message=bytes(raw.residency_message).decode("utf-8", "replace"),
        )

    def expert_counts(self, layer: int) -> list[int]:
        """Times each expert of a layer was chosen: [experts]; empty for a dense layer."""
        experts = ctypes.c_uint32()
        counts = self._library.colibri_expert_counts(self.handle, layer, ctypes.byref(experts))
        return [int(counts[i]) for i in range(experts.value)] if counts else []

    def layer_telemetry(self, layer: int) -> LayerTelemetry | None:
        """How the experts of a layer were used since the model was opened; None for a dense layer."""
        raw = _ffi.LayerTelemetryStruct()
        raw.struct_size = ctypes.sizeof(raw)
        code = self._library.colibri_layer_telemetry_get(self.handle, layer, ctypes.byref(raw))
        if code == Code.ARGUMENT:
            return None
        self._code(code)
        return LayerTelemetry(
            layer=raw.layer,
            experts=raw.experts,
            top_k=raw.top_k,
            choices=raw.choices,
            entropy_bits=raw.entropy_millibits / 1000,
            hottest=raw.hottest,
            hottest_percent=raw.hottest_percent,
            hot=raw.hot,
            drift=raw.drift_permille / 1000 if raw.has_profile else None,
        )

    def _code(self, code: int) -> None:
        if code < 0:
            text = bytes(self._library.colibri_strerror(code)).decode()
            raise ColibriError(Code(code), text)

    # -- text -------------------------------------------------------------------------------

    def tokenize(self, text: str | bytes, *, chat: bool = False) -> list[int]:
        """Token ids of a text; chat wraps it in the model's chat prefix and suffix."""
        data = text.encode() if isinstance(text, str) else text
        capacity = len(data) + 4096  # every token has at least a byte; the rest is chat form
        ids = (ctypes.c_int32 * capacity)()
        count = ctypes.c_size_t(capacity)
        error = _ffi.ErrorStruct()
        code = self._library.colibri_tokenize(
            self.handle, data, len(data), int(chat), ids, ctypes.byref(count), ctypes.byref(error)
        )
        _ffi.check(code, error)
        return list(ids[: count.value])

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token stands for; empty for an id without text."""
        length = ctypes.c_size_t()
        address = self._library.colibri_token_bytes(self.handle, token, ctypes.byref(length))
        return ctypes.string_at(address, length.value) if address else b""

    def is_end(self, token: int) -> bool:
        """Whether a token ends a text."""
        return bool(self._library.colibri_token_is_end(self.handle, token))

    def is_special(self, token: int) -> bool:
        """Whether a token is a special one, which has no text of its own."""
        return bool(self._library.colibri_token_is_special(self.handle, token))

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of some tokens; bytes that are not UTF-8 become U+FFFD."""
        decoder = Utf8Decoder()
        return "".join(decoder.feed(self.token_bytes(i)) for i in ids) + decoder.flush()


class Utf8Decoder:
    """Streaming detokenizer: keeps an incomplete character back until it is complete."""

    def __init__(self) -> None:
        self._library = _ffi.load()
        self._state = _ffi.Utf8Struct()

    def feed(self, data: bytes) -> str:
        """The whole characters that the bytes complete."""
        out = ctypes.create_string_buffer(3 * len(data) + 16)
        written = ctypes.c_size_t()
        code = self._library.colibri_utf8_feed(
            ctypes.byref(self._state), data, len(data), out, len(out), ctypes.byref(written)
        )
        if code < 0:
            raise ColibriError(Code(code), f"detokenizing {len(data)} bytes")
        return out.raw[: written.value].decode("utf-8")

    def flush(self) -> str:
        """End of the text: an incomplete character comes out as U+FFFD."""
        out = ctypes.create_string_buffer(16)
        written = self._library.colibri_utf8_flush(ctypes.byref(self._state), out, len(out))
        return out.raw[:written].decode("utf-8")


class Session(_Closing):
    """One sequence: KV cache, position, sampler. Made by `Engine.session`."""

    def __init__(self, engine: Engine) -> None:
        self._library = _ffi.load()
        self._engine = engine
        self._handle: ctypes.c_void_p | None = None
        handle = ctypes.c_void_p()
        error = _ffi.ErrorStruct()
        code = self._library.colibri_session_create(engine.handle, ctypes.byref(handle), ctypes.byref(error))
        _ffi.check(code, error)
        self._handle = handle

    @property
    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise ColibriError(Code.ARGUMENT, "session is closed; create another one")
        return self._handle

    def close(self) -> None:
        """Free the session. Closing twice is allowed."""
        if self._handle is not None:
            self._library.colibri_session_free(self._handle)
            self._handle = None
            self._engine.forget(self)

    def reset(self) -> None:
        """Forget the sequence; buffers stay."""
        self._library.colibri_session_reset(self._open)

    @property
    def position(self) -> int:
        """Tokens appended so far."""
        return int(self._library.colibri_session_position(self._open))

    def append(self, ids: Sequence[int]) -> None:
        """Append token ids and compute. Any split over calls gives the same bits."""
        for token in ids:
            if not -(2**31) <= token < 2**31:
                raise ColibriError(
                    Code.TOKEN_RANGE,
                    f"token id {token}; the limit is 0..{self._engine.info.vocabulary - 1}; "
                    "use ids of this model's tokenizer",
                )
        data = (ctypes.c_int32 * len(ids))(*ids)
        error = _ffi.ErrorStruct()
        code = self._library.colibri_session_append(self._open, data, len(ids), ctypes.byref(error))
        _ffi.check(code, error)

    def logits(self) -> memoryview[float]:
        """Logits of the last position: float32 [vocabulary], valid until the next call."""
        pointer = self._library.colibri_session_logits(self._open)
        if not pointer:
            raise ColibriError(Code.ARGUMENT, "no logits yet; append at least one token first")
        address = ctypes.addressof(pointer.contents)
        raw = (ctypes.c_float * self._engine.info.vocabulary).from_address(address)
        return memoryview(raw).cast("B").cast("f").toreadonly()

    def logits_array(self) -> F32:
        """A copy of the logits as a numpy array, float32 (vocabulary)."""
        import numpy as np

        return np.array(self.logits(), dtype=np.float32)

    def set_sampler(
        self,
        *,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
    ) -> None:
        """Choose how `sample` picks; temperature 0 is greedy."""
        sampler = _ffi.SamplerStruct()
        self._library.colibri_sampler_default(ctypes.byref(sampler))
        sampler.temperature = temperature
        sampler.top_k = _unsigned("top_k", top_k)
        sampler.top_p = top_p
        sampler.min_p = min_p
        sampler.seed = _unsigned("seed", seed, 64)
        error = _ffi.ErrorStruct()
        code = self._library.colibri_session_set_sampler(self._open, ctypes.byref(sampler), ctypes.byref(error))
        _ffi.check(code, error)

    def sample(self) -> int:
        """The next id by the sampler, from the current logits; it is not appended."""
        token = ctypes.c_int32()
        error = _ffi.ErrorStruct()
        code = self._library.colibri_session_sample(self._open, ctypes.byref(token), ctypes.byref(error))
        _ffi.check(code, error)
        return token.value

    def ids(self) -> list[int]:
        """Token ids of the sequence."""
        count = ctypes.c_uint32()
        ids = self._library.colibri_session_ids(self._open, ctypes.byref(count))
        return [int(ids[i]) for i in range(count.value)]

    def save(self) -> bytes:
        """A snapshot: ids, logits and KV cache. It belongs to this model file and KV type."""
        size = int(self._library.colibri_session_snapshot_bytes(self._open))
        buffer = ctypes.create_string_buffer(max(size, 1))
        error = _ffi.ErrorStruct()
        code = self._library.colibri_session_save(self._open, buffer, size, ctypes.byref(error))
        _ffi.check(code, error)
        return buffer.raw[:size]

    def restore(self, snapshot: bytes) -> None:
        """Go on from a snapshot, with the same bits as if its tokens had been computed."""
        error = _ffi.ErrorStruct()
        code = self._library.colibri_session_restore(self._open, snapshot, len(snapshot), ctypes.byref(error))
        _ffi.check(code, error)

    def cancel(self) -> None:
        """Make a running append return COLIBRI_ERR_CANCELLED; any thread may call."""
        self._library.colibri_session_cancel(self._open)

    def routing(self, layer: int) -> list[list[int]]:
        """Expert ids of the last batch: [tokens][top_k]; empty for a dense layer."""
        tokens, ranks = ctypes.c_uint32(), ctypes.c_uint32()
        ids = self._library.colibri_session_routing(self._open, layer, ctypes.byref(tokens), ctypes.byref(ranks))
        if not ids:
            return []
        k = ranks.value
        return [[int(ids[t * k + r]) for r in range(k)] for t in range(tokens.value)]

    def generate(
        self,
        n: int,
        *,
        stop_at_end: bool = True,
        on_logits: Callable[[memoryview[float]], None] | None = None,
    ) -> Iterator[int]:
        """Up to n sampled ids, each appended before the next is chosen.

        An end token is yielded, then the iteration ends. on_logits sees the logits that choose
        each token.
        """
        for index in range(n):
            if on_logits is not None:
                on_logits(self.logits())
            token = self.sample()
            yield token
            if stop_at_end and self._engine.is_end(token):
                return
            if index + 1 < n:
                self.append([token])


def split_prompt(ids: Sequence[int], split: str) -> list[list[int]]:
    """Pieces of a prompt: "each" gives single tokens, "5,3" pieces of 5, 3 and the rest."""
    if split in ("each", "1*"):
        return [[token] for token in ids]
    try:
        sizes = [int(part) for part in split.split(",")] if split else []
    except ValueError:
        sizes = [0]
    if any(size < 1 for size in sizes):
        raise ColibriError(
            Code.ARGUMENT,
            f"--batch-split {split!r}; write sizes of at least 1 with commas (5,3), or each",
        )
    pieces: list[list[int]] = []
    rest = list(ids)
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    pieces.append(rest)
    return [piece for piece in pieces if piece]


def _budget(text: str) -> int:
    """Bytes of a size such as 512M; 0 leaves it to the engine."""
    from colibri.plan_command import parse_size

    return 0 if text == "0" else parse_size(text)


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri run`, the same as those of `colibrictl run`."""
    parser.add_argument("model", metavar="MODEL", help="a .colibri file")

    def number(*names: str, default: float = 0, metavar: str = "N", text: str) -> None:
        parser.add_argument(
            *names, type=type(default), default=default, metavar=metavar, help=f"{text} (default %(default)s)"
        )

    def choice(name: str, names: tuple[str, ...], default: str, text: str) -> None:
        parser.add_argument(name, choices=names, default=default, help=f"{text} (default %(default)s)")

    parser.add_argument("-p", "--prompt", metavar="TEXT", help="the prompt")
    parser.add_argument("--ids", metavar="1,2,3", help="the prompt as token ids")
    number("-n", "--tokens", default=128, text="generate at most N tokens")
    parser.add_argument("--chat", action="store_true", help="wrap the prompt in the model's chat form")
    number("--temp", default=0.0, metavar="T", text="temperature of the sampler; 0 = always the likeliest token")
    number("--top-k", metavar="K", text="choose among the K likeliest; 0 = all")
    number("--top-p", default=1.0, metavar="P", text="choose among the likeliest whose sum reaches P; 1 = all")
    number("--min-p", default=0.0, metavar="P", text="drop tokens below P times the likeliest; 0 = none")
    number("-s", "--seed", metavar="S", text="same seed, same text")
    number("-t", "--threads", text="threads that compute; 0 = CPUs this process may use, at most 4")
    number("-c", "--context", text="tokens the KV cache holds; 0 = the model's own, at most 2048")
    number("-b", "--batch", text="prompt tokens per batch; 0 = 32")
    parser.add_argument(
        "--batch-split", default="", metavar="5,3|each", help="append the prompt in pieces of these sizes (a test aid)"
    )
    choice("--kv", KV_NAMES, "f16", "type of the KV cache")
    choice("--verify", VERIFY_NAMES, "auto", "when weights are checked")
    choice("--lock", LOCK_NAMES, "try", "lock the model in memory: warn when it fails, refuse, or do not try")
    parser.add_argument(
        "--budget", type=_budget, default=0, metavar="SIZE",
        help="memory to keep within, or refuse, e.g. 512M; 0 = what cgroup and system leave (default 0)",
    )  # fmt: skip
    choice("--residency", RESIDENCIES, "auto", "all experts in memory, or read into slots as they are needed")
    number("--slots", text="experts in memory when streaming; 0 = what fits")
    number("--io-threads", text="threads that read experts; 0 = 4")
    number("--prefetch", default=DEFAULT_PREFETCH_DEPTH, text="experts read ahead; 0 = none")
    choice("--direct-io", DIRECT_IO_NAMES, "auto", "read past the page cache")
    parser.add_argument("--isa", metavar="NAME", help="kernels to use (default: the best that this CPU has)")
    parser.add_argument("--public-key", metavar="FILE", type=Path, help="refuse a model that this key did not sign")
    parser.add_argument("--signed-only", action="store_true", help="refuse a model without a signature")
    parser.add_argument("--ignore-end", action="store_true", help="go on behind the token that ends a text")
    parser.add_argument("--print-ids", action="store_true", help="print the ids on stderr")
    parser.add_argument("--logits-sha256", action="store_true", help="print the hash of the logits on stderr")


def parse_ids(text: str) -> list[int]:
    """Ids of "1,2,3"."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ColibriError(Code.ARGUMENT, f"--ids {text!r}; write integers with commas: 1,2,3") from None


def run_command(args: argparse.Namespace) -> int:
    """`colibri run`: the C engine on a prompt. The text goes to stdout as it comes."""
    if (args.prompt is None) == (args.ids is None):
        raise ColibriError(Code.ARGUMENT, "give the prompt either with -p TEXT or with --ids 1,2,3")
    if args.tokens < 1:
        raise ColibriError(Code.ARGUMENT, f"-n {args.tokens}; generate at least 1 token")
    if environment_word("COLIBRI_VERIFY_CHUNKS") and args.verify != "open":
        args.verify = "always"
    if environment_word("COLIBRI_VERIFY_MODEL_HASH"):
        args.verify = "open"
    if environment_word("COLIBRI_LOCK", "require", "try"):
        args.lock = "require"
    with Engine(
        args.model,
        public_key=None if args.public_key is None else load_public_key(args.public_key),
        require_signature=args.signed_only or environment_word(SIGNED_ONLY_VARIABLE),
        threads=args.threads,
        context_tokens=args.context,
        batch_tokens=args.batch,
        kv=args.kv,
        residency=args.residency,
        expert_slots=args.slots,
        io_threads=args.io_threads,
        prefetch_depth=args.prefetch,
        direct_io=args.direct_io,
        isa=args.isa,
        verify=args.verify,
        lock=args.lock,
        budget_bytes=args.budget,
    ) as engine:
        message = engine.report().lock_message
        if message:
            print(f"warning: {message}", file=sys.stderr)
        prompt = engine.tokenize(args.prompt, chat=args.chat) if args.ids is None else parse_ids(args.ids)
        session = engine.session()
        session.set_sampler(
            temperature=args.temp,
            top_k=args.top_k,
            top_p=args.top_p,
            min_p=args.min_p,
            seed=args.seed,
        )
        for piece in split_prompt(prompt, args.batch_split):
            session.append(piece)
        digest = hashlib.sha256()
        decoder = Utf8Decoder()
        ids: list[int] = []
        for token in session.generate(args.tokens, stop_at_end=not args.ignore_end, on_logits=digest.update):
            ids.append(token)
            if not (engine.is_end(token) or engine.is_special(token)):
                sys.stdout.write(decoder.feed(engine.token_bytes(token)))
                sys.stdout.flush()
        sys.stdout.write(decoder.flush())
        sys.stdout.write("\n" if sys.stdout.isatty() else "")
        sys.stdout.flush()
        if args.print_ids:
            print("prompt-ids:", *prompt, file=sys.stderr)
            print("ids:", *ids, file=sys.stderr)
        if args.logits_sha256:
            print("logits-sha256:", digest.hexdigest(), file=sys.stderr)
    return 0
