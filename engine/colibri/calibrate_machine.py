# SPDX-License-Identifier: MIT
"""`colibri plan --calibrate`: measure this machine and write its board file.

Standard library and libcolibri only. Memory is read by libc's memchr in one thread and in several,
storage by reads of one expert with O_DIRECT, hashes by the library's SHA-256, and the arithmetic by
decoding with the model: the rate is the one with which `colibri.predict` gives the time that was
measured. So a calibrated board predicts this model in memory exactly, and everything else follows.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import errno
import mmap
import os
import platform
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colibri import _ffi
from colibri._spec import DEFAULT_IO_THREADS, DEFAULT_THREADS, Code
from colibri.boards import MIB, Bandwidth, Board, Compute, Storage, board_text, parse_board
from colibri.engine import Engine, Session
from colibri.errors import ColibriError
from colibri.files import refuse_output, write_file
from colibri.format import open_model
from colibri.plan import MemoryPlan
from colibri.plan_command import rounded
from colibri.predict import Machine, ModelWork, decode_seconds, model_work, prompt_seconds

SCAN_BYTES = 256 * MIB  # several times the last cache of a board
SCAN_PASSES = 3
HASH_BYTES = 8 * MIB
READ_SECONDS = 2.0  # of timed storage reads
LEAST_READS = 16
READ_BYTES = 3_538_944  # when the model has no experts
SMALL_READ_BYTES = 4096
DECODE_TOKENS = 24
DECODE_WARM_UP = 8
PROMPT_TOKENS = 64
MIN_STEP_US = 0.1
F32_SHARE = 0.25  # of the int rate; routers and attention are too small to be timed alone


@dataclass(frozen=True)
class DecodeTimes:
    """Seconds per decoded token by number of threads, and of a prompt with one thread."""

    token: dict[int, float]
    prompt: float
    position: int
    plan: MemoryPlan


# --------------------------------------------------------------------------- memory and hashes


def _run_threads(count: int, work: Callable[[], object]) -> float:
    """Seconds from a common start until `count` threads have done `work`; foreign calls drop the lock."""
    gate = threading.Barrier(count + 1)

    def body() -> None:
        gate.wait()
        work()

    threads = [threading.Thread(target=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    gate.wait()
    start = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - start


def scan_mbps(threads: int, size: int = SCAN_BYTES) -> list[float]:
    """MB/s of reading memory with 1..threads threads, best of three passes each; never falling."""
    libc = ctypes.CDLL(None)
    scan = libc.memchr
    scan.restype = ctypes.c_void_p
    scan.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    buffer = mmap.mmap(-1, size)
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    ctypes.memset(address, 1, size)
    found: list[float] = []
    for count in range(1, threads + 1):
        part = size // count // mmap.PAGESIZE * mmap.PAGESIZE
        places = iter([address + i * part for i in range(count)] * SCAN_PASSES)
        lock = threading.Lock()

        def one(places: Any = places, lock: Any = lock, part: int = part) -> None:
            with lock:
                place = next(places)
            scan(place, 0, part)

        seconds = min(_run_threads(count, one) for _ in range(SCAN_PASSES))
        found.append(max([count * part / seconds / 1e6, *found]))
    return found


def hash_mbps(size: int = HASH_BYTES) -> float:
    """MB/s of the library's SHA-256 in one thread."""
    library = _ffi.load()
    data = ctypes.create_string_buffer(size)
    state = ctypes.create_string_buffer(16 * 8)
    out = ctypes.create_string_buffer(32)
    update = library.colibri_sha256_update
    update.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    best = float("inf")
    for _ in range(3):
        library.colibri_sha256_init(ctypes.byref(state))
        start = time.perf_counter()
        update(ctypes.byref(state), ctypes.byref(data), size)
        best = min(best, time.perf_counter() - start)
        library.colibri_sha256_final(ctypes.byref(state), ctypes.byref(out))
    return size / best / 1e6


# --------------------------------------------------------------------------- storage


def _open_storage(path: Path) -> tuple[int, bool]:
    """(descriptor, direct): O_DIRECT where the file system allows it, else page cache that is dropped."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise ColibriError(Code.OPEN, f"{path}: {error.strerror}") from error
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def _read(descriptor: int, buffer: mmap.mmap, size: int, offset: int, direct: bool) -> None:
    if not direct:
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_DONTNEED)
    with memoryview(buffer) as view, view[:size] as part:
        got = os.preadv(descriptor, [part], offset)
    if got != size:
        raise ColibriError(Code.IO, f"storage read of {size} bytes at {offset} gave {got}")


def storage_speed(path: Path, size: int, threads: int = DEFAULT_IO_THREADS, seconds: float = READ_SECONDS) -> Storage:
    """Reads of `size` bytes at random places, several at a time; and what one small read takes."""
    size = max(SMALL_READ_BYTES, size // SMALL_READ_BYTES * SMALL_READ_BYTES)
    descriptor, direct = _open_storage(path)
    try:
        end = os.fstat(descriptor).st_size
        places = (end - size) // SMALL_READ_BYTES
        if places < 1:
            raise ColibriError(
                Code.ARGUMENT, f"--storage-file {path} has {end} bytes; it must be larger than one read of {size}"
            )
        rng = random.Random(1)
        buffer = mmap.mmap(-1, size)

        def alone(nbytes: int) -> float:
            """Median seconds of one read while nothing else is read."""
            waits = []
            for _ in range(LEAST_READS):
                start = time.perf_counter()
                _read(descriptor, buffer, nbytes, rng.randrange(places) * SMALL_READ_BYTES, direct)
                waits.append(time.perf_counter() - start)
            return statistics.median(waits)

        small, whole = alone(SMALL_READ_BYTES), alone(size)
        count, lock, failures = [0], threading.Lock(), list[ColibriError | OSError]()
        stop = time.perf_counter() + seconds

        def reader() -> None:
            own = mmap.mmap(-1, size)
            try:
                while time.perf_counter() < stop or count[0] < LEAST_READS:
                    with lock:
                        place = rng.randrange(places) * SMALL_READ_BYTES
                        count[0] += 1
                    _read(descriptor, own, size, place, direct)
            except (ColibriError, OSError) as error:
                failures.append(error)
            finally:
                own.close()

        spent = _run_threads(threads, reader)
        buffer.close()
        if failures:
            raise failures[0]
    finally:
        os.close(descriptor)
    rate = count[0] * size / spent
    # What a single read takes beyond its share of the full rate: few devices reach that one read at a time.
    request = max(small, whole - size / rate, MIN_STEP_US * 1e-6)
    way = "O_DIRECT" if direct else "page cache, dropped before each read (no O_DIRECT here)"
    return Storage(
        read_mbps=round(rate / 1e6, 1),
        request_us=round(request * 1e6, 1),
        basis="measured",
        source=f"reads of {size} bytes, {threads} at a time, {way}; request_us: one read alone beyond that rate",
    )


# --------------------------------------------------------------------------- arithmetic


def _prompt_ids(session: Session, count: int, vocabulary: int) -> float:
    """Seconds to append `count` random ids at once."""
    rng = random.Random(count)
    ids = [rng.randrange(vocabulary) for _ in range(count)]
    start = time.perf_counter()
    session.append(ids)
    return time.perf_counter() - start


def decode_times(path: Path, threads: Sequence[int]) -> DecodeTimes:
    """Time decoding with every expert in memory; random ids, so that experts are used evenly."""
    token: dict[int, float] = {}
    prompt = 0.0
    plan: MemoryPlan | None = None
    context = PROMPT_TOKENS + DECODE_WARM_UP + DECODE_TOKENS + 1
    position = PROMPT_TOKENS + DECODE_WARM_UP + DECODE_TOKENS // 2
    for count in threads:
        with Engine(
            path, threads=count, context_tokens=context, residency="resident", verify="open", lock="try"
        ) as engine, engine.session() as session:
            vocabulary = engine.info.vocabulary
            _prompt_ids(session, PROMPT_TOKENS, vocabulary)
            session.reset()
            seconds = _prompt_ids(session, PROMPT_TOKENS, vocabulary)
            if count == 1:
                prompt, plan = seconds, engine.plan()
            rng = random.Random(count)
            times = []
            for _ in range(DECODE_WARM_UP + DECODE_TOKENS):
                start = time.perf_counter()
                session.append([rng.randrange(vocabulary)])
                times.append(time.perf_counter() - start)
            token[count] = statistics.median(times[DECODE_WARM_UP:])
    assert plan is not None
    return DecodeTimes(token, prompt, position, plan)


def _solve(measured: float, predicted: Callable[[float], float], low: float, high: float) -> float:
    """The value in low..high at which a monotonous prediction meets the measurement, by bisection of the exponent."""
    rising = predicted(high) > predicted(low)
    for _ in range(60):
        middle = (low * high) ** 0.5
        if (predicted(middle) < measured) == rising:
            low = middle
        else:
            high = middle
    return float((low * high) ** 0.5)


def _rates(rate: float) -> dict[str, float]:
    return {"int4": rate, "int8": rate, "f32": rate * F32_SHARE}


def fit_compute(work: ModelWork, times: DecodeTimes, bandwidth: Bandwidth, hashes: float) -> tuple[Bandwidth, Compute]:
    """Rates and step time with which `predict` gives the measured times; bandwidth is raised where decoding beat it."""
    machine_of = _machine_of(hashes)

    def token(bandwidth: Bandwidth, rate: float, step: float, threads: int) -> float:
        m = machine_of(bandwidth, _rates(rate), _rates(rate), step, threads)
        return decode_seconds(work, m, times.position, None).total

    # Decoding that is faster than the scan allows read faster than the scan.
    values: list[float] = []
    for count, value in enumerate(bandwidth.read_mbps, 1):
        scale = 1.0
        if count in times.token:
            scale = max(1.0, token(bandwidth, 1e6, MIN_STEP_US, count) / times.token[count])
        values.append(max([round(value * scale, 1), *values]))
    raised = replace(bandwidth, read_mbps=tuple(values))
    rate = _solve(times.token[1], lambda r: token(raised, r, MIN_STEP_US, 1), 1e-3, 1e6)
    # Decoding that waits for DRAM says nothing about arithmetic: take the prompt's rate then.
    bound = rate > 1e4

    def prompt(r: float) -> float:
        m = machine_of(raised, _rates(min(rate, r)), _rates(r), MIN_STEP_US, 1)
        return prompt_seconds(work, m, times.plan, PROMPT_TOKENS, warm=True).total

    prompt_rate = _solve(times.prompt, prompt, 1e-3, 1e6)
    if bound:
        rate = prompt_rate
    most = max(times.token)
    step = MIN_STEP_US
    if most > 1:
        step = _solve(times.token[most], lambda s: token(raised, rate, s, most), MIN_STEP_US, 1e4)
    source = (
        f"decoding {DECODE_TOKENS} tokens and a prompt of {PROMPT_TOKENS} with {', '.join(map(str, times.token))} "
        "threads, every expert in memory; one rate for int4 and int8, a quarter of it for f32"
    )
    compute = Compute(
        {name: float(f"{value:.4g}") for name, value in _rates(rate).items()},
        {name: float(f"{value:.4g}") for name, value in _rates(prompt_rate).items()},
        round(hashes, 1),
        float(f"{step:.3g}"),
        "measured",
        source,
    )
    return raised, compute


def _machine_of(hashes: float) -> Callable[[Bandwidth, dict[str, float], dict[str, float], float, int], Machine]:
    storage = Storage(1000.0, 100.0, "measured", "not used")

    def build(
        bandwidth: Bandwidth, decode: dict[str, float], prompt: dict[str, float], step: float, threads: int
    ) -> Machine:
        compute = Compute(decode, prompt, hashes, step, "measured", "")
        return Machine(bandwidth, compute, storage, threads, threads, DEFAULT_IO_THREADS)

    return build


# --------------------------------------------------------------------------- the machine


def _memory_mib() -> int:
    """RAM of this machine."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemTotal:"):
            return max(1, int(line.split()[1]) // 1024)
    raise ColibriError(Code.UNSUPPORTED, "/proc/meminfo has no MemTotal; calibrate on a Linux machine")


def _processor() -> tuple[str, list[str]]:
    """(model name, flags) as /proc/cpuinfo says them."""
    name, flags = "", list[str]()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "CPU part") and not name:
            name = "".join(char for char in value.strip() if char.isprintable())[:80]
        if key.strip() in ("flags", "Features") and not flags:
            flags = value.split()
    known = ("asimd", "asimddp", "i8mm", "sha2", "neon", "avx2", "avx512_vnni", "sha_ni")
    return name, [flag for flag in flags if flag in known]


def _read_size(storage_file: Path, work: ModelWork) -> int:
    """Bytes of an expert: of the storage file when it is a model, else of the model that is timed."""
    try:
        with open_model(storage_file) as file:
            work = model_work(file)
    except ColibriError:
        pass  # any file will do to read from
    return max((layer.extent_bytes for layer in work.layers), default=0) or READ_BYTES


def calibrate(model: Path, storage_file: Path, say: Callable[[str], None]) -> Board:
    """Measure this machine with a model; takes half a minute."""
    cores = len(os.sched_getaffinity(0))
    threads = min(cores, DEFAULT_THREADS)
    arch = {"armv7l": "arm", "armv8l": "arm"}.get(platform.machine(), platform.machine())
    with open_model(model) as file:
        work = model_work(file)
    expert = _read_size(storage_file, work)
    say(f"storage: reads of {expert} bytes from {storage_file}")
    storage = storage_speed(storage_file, expert)
    say(f"  {storage.read_mbps:,.0f} MB/s, {storage.request_us:,.0f} us for a small read")
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = max(8 * MIB, min(SCAN_BYTES, free // 4))
    say(f"memory: {size // MIB} MiB with 1 to {threads} threads")
    bandwidth = Bandwidth(
        tuple(round(value, 1) for value in scan_mbps(threads, size)),
        "measured",
        f"memchr of {size // MIB} MiB, best of {SCAN_PASSES}; raised to what decoding reads, if that is more",
    )
    say("  " + ", ".join(f"{value:,.0f}" for value in bandwidth.read_mbps) + " MB/s")
    hashes = hash_mbps()
    say(f"hashes: {hashes:,.0f} MB/s; decoding with {model}")
    times = decode_times(model, sorted({1, threads}))
    say("  " + ", ".join(f"{rounded(1 / seconds)} tokens/s with {n}" for n, seconds in times.token.items()))
    bandwidth, compute = fit_compute(work, times, bandwidth, hashes)
    name, features = _processor()
    ram = _memory_mib()
    board = Board(
        name="this-machine",
        description=f"measured by colibri plan --calibrate on {arch}",
        arch=arch,
        ram_mib=ram,
        ram_sizes_mib=(ram,),
        cores=min(cores, 64),
        features=tuple(features),
        core=name,
        bandwidth=bandwidth,
        compute=compute,
        storages={"disk": storage},
    )
    return board


def calibrate_command(args: argparse.Namespace) -> int:
    """`colibri plan --calibrate OUT.toml MODEL`."""
    if args.model is None:
        raise ColibriError(
            Code.ARGUMENT, "--calibrate times a model: give MODEL, a .colibri file that fits the memory of this machine"
        )
    model = Path(args.model)
    storage_file = args.storage_file or model
    refuse_output(args.calibrate, [model, storage_file])
    board = calibrate(model, storage_file, lambda line: print(line, file=sys.stderr))
    text = board_text(board)
    import tomllib

    parse_board(tomllib.loads(text), str(args.calibrate))  # what is written can be read
    write_file(args.calibrate, text.encode())
    print(args.calibrate)
    return 0
