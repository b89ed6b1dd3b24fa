# SPDX-License-Identifier: MIT
"""20,000 mutations of a file with every section: both readers say the same, quickly, within memory.

The C side is a program that reads the mutations from a pipe; the Python side runs in processes of
its own. A mutation is the file's new size and patches, so each costs its patches and not a copy.
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import pytest
from colibri._spec import Code
from colibri.errors import ColibriError
from colibri.format import open_model
from corpus import CASES
from forge import CALIBRATION, DIRECTORY, RECORDS, SIGNATURE, TOKENIZER, TRUNK, Forge
from native_cases import program
from tiny_file import everything, mixers

COUNT = 20000
SEED = 20261129
PARTS = 2
HANG_SECONDS = 1.0
SLACK_BYTES = 1 << 20  # allocations stay below the file's size and this
TRACED = 40  # every n-th mutation is measured by tracemalloc, which is slow
WORDS = [
    0, 1, 2, 3, 7, 31, 32, 33, 255, 256, 512, 513, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 0xFFFFFF, 0x7FFFFFFF,
    0x80000000, 0xFFFFFFF8, 0xFFFFFFFE, 0xFFFFFFFF, 0x7F800000, 0x7FC00000, 0x3F800000, 0x3F800001,
]  # fmt: skip
LONGS = [
    *WORDS, 1 << 32, 1 << 40, 1 << 61, 1 << 62, (1 << 62) + 4096, (1 << 63) - 1, 1 << 63, (1 << 64) - 4096,
    (1 << 64) - 1,
]  # fmt: skip
PythonResult = tuple[int, bool, float, int]
CResult = tuple[int, int, float, int]
Results = list[tuple[PythonResult, CResult]]


@dataclass
class Mutation:
    """A file that differs from the good one: its size, and (offset, bytes) in the order of writing."""

    size: int
    patches: list[tuple[int, bytes]] = field(default_factory=list)

    def encode(self) -> bytes:
        """For the C program."""
        head = struct.pack("<QI", self.size, len(self.patches))
        return head + b"".join(struct.pack("<QI", at, len(data)) + data for at, data in self.patches)

    def apply(self, good: bytes) -> bytes:
        """The file."""
        out = bytearray(good) + bytes(max(0, self.size - len(good)))
        for at, data in self.patches:
            out[at : at + len(data)] = data
        return bytes(out[: self.size])


class Recorder(Forge):
    """A forge that can say how it differs from the good file."""

    def difference(self, good: bytes) -> Mutation:
        """Runs of bytes that differ, as patches; far shorter than the file."""
        changed = bytes(self.data)
        mutation = Mutation(len(changed))
        step = 256
        for at in range(0, max(len(changed), 1), step):
            piece = changed[at : at + step]
            if piece != good[at : at + step] and piece.strip(b"\0") + good[at : at + step]:
                mutation.patches.append((at, piece))
        return mutation


def good_file(number: int) -> bytes:
    """The file that mutation `number` changes: every fourth time the one with every mixer."""
    return mixers() if number % 4 == 3 else everything()


@cache
def places(good: bytes) -> list[tuple[int, int]]:
    """(first, end) of what mutations aim at: every section's structure, and the file as a whole."""
    forge = Forge(good)
    found = [(0, 128), (128, 128 + 64 * 8)]
    for kind in (kind for kind in (RECORDS, DIRECTORY, TOKENIZER, CALIBRATION, SIGNATURE) if kind in forge.kinds()):
        offset, size = forge.section(kind)
        found += [(offset, offset + size)] * 3
    found += [(e.offset, e.offset + e.size + 64) for e in forge.extents()]
    found.append((0, len(forge.data)))
    return found


def edit(rng: random.Random, forge: Recorder, good: bytes) -> None:
    """One change: a bit, a byte, a word or long of a boundary value, a copied stretch."""
    first, end = rng.choice(places(good))
    end = min(end, len(forge.data))
    if end - first < 16:
        return
    kind = rng.randrange(8)
    at = rng.randrange(first, end)
    if kind == 0:
        forge.data[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        forge.data[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
    elif kind in (2, 3, 4):
        at = min(at - at % 4, len(forge.data) - 4)
        old = struct.unpack_from("<I", forge.data, at)[0]
        forge.u32(at, rng.choice([*WORDS, old + 1 & 0xFFFFFFFF, old - 1 & 0xFFFFFFFF, old ^ 1 << rng.randrange(32)]))
    elif kind in (5, 6):
        at = min(at - at % 8, len(forge.data) - 8)
        old = struct.unpack_from("<Q", forge.data, at)[0]
        step = rng.choice([1, 64, 4096])
        forge.u64(at, rng.choice([*LONGS, old + step & (1 << 64) - 1, old - step & (1 << 64) - 1]))
    else:  # splice: a stretch of one place over another, aligned so that fields meet fields
        length = rng.choice([4, 8, 16, 48, 64, 100])
        other_first, other_end = rng.choice(places(good))
        source = rng.randrange(other_first, max(other_first + 1, min(other_end, len(forge.data)) - length))
        at -= at % 4
        source -= source % 4
        piece = bytes(forge.data[source : source + length])
        if at + len(piece) <= len(forge.data):
            forge.put(at, piece)


def make(number: int) -> Mutation:
    """Mutation `number`: the same on every machine."""
    rng = random.Random(SEED * 1000003 + number)
    good = good_file(number)
    forge = Recorder(good if number % 10 else rng.choice(bad_files()))
    for _ in range(rng.choice([1, 1, 1, 2, 3, 5])):
        edit(rng, forge, good)
    if rng.random() < 0.05:
        del forge.data[rng.choice([rng.randrange(len(forge.data)), 4096, 4095, 8, 7, 65536]) :]
    if rng.random() < 0.03:
        forge.data += bytes(rng.choice([1, 4096, 65536]))
        if rng.random() < 0.5 and len(forge.data) >= 4096:
            forge.u64(32, len(forge.data))
    repair = rng.random()
    if repair < 0.9 and len(forge.data) > 4096:  # as a hostile author would; a broken table has nothing to repair
        try:
            if repair < 0.6:
                forge.rehash_weights()
            forge.rehash_root()
        except (IndexError, KeyError, MemoryError, OverflowError, struct.error):
            pass
    return forge.difference(good)


@cache
def bad_files() -> list[bytes]:
    """Files that break a rule, for a second change on top."""
    return [data for data in (case.make() for case in CASES) if len(data) > 4096]


# ---- the two readers -----------------------------------------------------------------------------


def python_result(number: int, path: str) -> PythonResult:
    """(code, whether open accepts, CPU seconds, peak bytes or 0) of the Python reader."""
    data = make(number).apply(good_file(number))
    with open(path, "wb") as out:
        out.write(data)
    traced = number % TRACED == 0
    if traced:
        tracemalloc.start()
    code, opened = Code.OK, False
    start = time.process_time()
    try:
        with open_model(path) as model:
            opened = True
            if not traced:  # verification reads every extent whole
                model.verify()
    except ColibriError as error:
        code = error.code
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1] - len(data) if traced else 0
    if traced:
        tracemalloc.stop()
        try:
            with open_model(path) as model:
                model.verify()
        except ColibriError as error:
            code = error.code
    return int(code), opened, seconds, peak


def python_part(first: int, end: int, folder: str) -> list[PythonResult]:
    """A share of the mutations."""
    path = os.path.join(folder, f"python-{first}")
    return [python_result(number, path) for number in range(first, end)]


@contextmanager
def judging(good: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The C program that takes mutations of a file; it ends well."""
    with subprocess.Popen([program("judge"), good], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as judge:
        yield judge
        assert judge.stdin is not None
        judge.stdin.close()
        assert judge.wait(60) == 0


def c_results(folder: Path, count: int) -> list[CResult]:
    """(code, largest allocation, CPU seconds, bytes of the file) of the C reader."""
    with ExitStack() as stack:
        judges = {}
        for number in (0, 3):
            path = folder / f"good-{number}.colibri"
            path.write_bytes(good_file(number))
            judges[good_file(number)] = stack.enter_context(judging(path))
        lines: list[CResult] = []
        for number in range(count):
            judge, mutation = judges[good_file(number)], make(number)
            assert judge.stdin is not None
            assert judge.stdout is not None
            judge.stdin.write(mutation.encode())
            judge.stdin.flush()
            line = judge.stdout.readline()
            assert line, f"mutation {number} ended the program"
            assert not line.startswith(b"broken"), f"mutation {number}: {line!r}"
            code, largest, microseconds = map(int, line.split())
            lines.append((code, largest, microseconds / 1e6, mutation.size))
    return lines


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """What both readers say of every mutation."""
    folder = tmp_path_factory.mktemp("mutations")
    bounds = [COUNT * part // PARTS for part in range(PARTS + 1)]
    with ProcessPoolExecutor(PARTS, mp_context=get_context("fork")) as pool:
        parts = [pool.submit(python_part, a, b, str(folder)) for a, b in pairwise(bounds)]
        c = c_results(folder, COUNT)
        python = [result for part in parts for result in part.result()]
    return list(zip(python, c, strict=True))


def test_both_readers_give_the_same_code(results: Results, note: Callable[[str], None]) -> None:
    codes: Counter[str] = Counter()
    differences = []
    for number, ((python, opened, _, _), (c, *_)) in enumerate(results):
        codes[Code(c).name.lower()] += 1
        # a valid file that the engine cannot run: it says so before it looks at tokenizer and weights
        refused = c == Code.UNSUPPORTED and opened
        if python != c and not refused:
            differences.append(f"mutation {number}: Python {Code(python).name}, C {Code(c).name}")
    assert not differences, "\n".join(differences[:20])
    note(f"{COUNT} mutations with seed {SEED}: " + ", ".join(f"{name} {n}" for name, n in codes.most_common()))
    # deep rules are reached: every code that a file alone can cause
    assert len(codes) >= 20, codes


def test_no_mutation_keeps_a_reader_busy_for_a_second(results: Results) -> None:
    assert max(python[2] for python, _ in results) < HANG_SECONDS
    assert max(c[2] for _, c in results) < HANG_SECONDS


def test_nothing_large_is_allocated_for_a_file_that_is_not_verified(results: Results) -> None:
    """Beside the file itself: 1 MiB. A file of 160 bytes is among them."""
    over = []
    for number, (python, c) in enumerate(results):
        if c[1] > c[3] + SLACK_BYTES or (not python[1] and python[3] > SLACK_BYTES):
            over.append((number, python, c))
    assert over[:10] == []
    assert sum(1 for python, _ in results if python[3]) >= COUNT // TRACED // 2
    assert max(len(everything()), len(mixers())) < SLACK_BYTES


@pytest.mark.parametrize("size", [1, 8, 160, 4096, 8192])
def test_a_short_file_allocates_less_than_a_mebibyte(size: int, tmp_path: Path) -> None:
    path = tmp_path / "short.colibri"
    good = tmp_path / "good.colibri"
    good.write_bytes(everything())
    path.write_bytes(everything()[:size])
    tracemalloc.start()
    with pytest.raises(ColibriError):
        open_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < SLACK_BYTES
    run = subprocess.run(
        [program("judge"), good], input=Mutation(size).encode(), stdout=subprocess.PIPE, check=True, timeout=60
    )
    assert int(run.stdout.split()[1]) < SLACK_BYTES


def test_few_records_that_ask_for_many_extents_allocate_nothing_for_them(tmp_path: Path) -> None:
    """512 layers of 1024 experts fit into the records of a small file; their extents do not."""
    forge = Forge(everything())
    layer, body = forge.block("layer") - 8, forge.section(RECORDS)[0]
    one = bytearray(forge.data[layer : forge.block("layer", 1) - 8])
    blocks = bytearray()
    for index in range(512):
        struct.pack_into("<I", one, 8, index)
        struct.pack_into("<I", one, len(one) - 80, 1024)  # experts, in front of the block's other fields
        blocks += one
    records = bytes(forge.data[body:layer]) + bytes(blocks)
    shift = -(-len(records) // 4096) * 4096 - 4096
    last = sum(forge.section(CALIBRATION)) + shift
    trunk = -(-last // 65536) * 65536
    head = bytes(forge.data[:body]) + records + bytes(-len(records) % 4096) + bytes(forge.data[8192 : last - shift])
    big = Forge(head + bytes(trunk - last) + bytes(forge.data[65536:]))
    for kind in forge.kinds()[1:]:
        moved = trunk - 65536 if kind >= TRUNK else shift
        big.u64(big.section_entry(kind) + 8, forge.section(kind)[0] + moved)
    big.u64(big.section_entry(RECORDS) + 16, len(records))
    big.u64(32, len(big.data))
    big.u32(body + 8 + 12, 512)
    big.rehash_root()
    path = tmp_path / "wide.colibri"
    path.write_bytes(big.data)
    tracemalloc.start()
    with pytest.raises(ColibriError, match="7 extents, the records ask for 524801") as caught:
        open_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.code == Code.EXTENT
    assert peak < len(big.data) + SLACK_BYTES
