# SPDX-License-Identifier: MIT
"""One token through an expert's matrix: the int4 kernel beside sgemm of OpenBLAS (part of make bench).

    build/venv/bin/python tests/bench/gemv.py

Both multiply rows of 1,024 columns by one vector, with one thread, and are compared by multiply-adds per
second: from memory (more weights than any cache holds, in pages of 2 MiB) and with the 228 rows that are
128 KiB as int4. sgemm is called as it is, with one column; its weights are f32, so the same rows are seven
times as many bytes. OpenBLAS is the one inside numpy's wheel, a tool of the benchmarks.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from isolation import run
from results import REPOSITORY, Results, options, spread

COLUMNS = 1024
ROWS = 512
MEMORY_BYTES = 512 << 20
CACHED_ROWS = (128 << 10) // (COLUMNS // 32 * 144) * 8
ROW_MAJOR, NO_TRANS = 101, 111
LINE = re.compile(r"  matmul_int4 +1 token +(memory|cached) +([0-9.]+) GB/s +([0-9.]+) GMAC/s")


class BlasError(Exception):
    """OpenBLAS or the kernels cannot be measured; the message says why."""


def openblas() -> ctypes.CDLL:
    """The library inside numpy's wheel."""
    folder = Path(np.__file__).resolve().parent.parent / "numpy.libs"
    found = sorted(folder.glob("libscipy_openblas64_*"))
    if not found:
        raise BlasError(f"{folder} has no libscipy_openblas64_*: numpy must come from its wheel")
    return ctypes.CDLL(str(found[0]))


def measure_openblas() -> dict[str, Any]:
    """Multiply-adds per second of sgemm, in this process."""
    library = openblas()
    library.scipy_openblas_set_num_threads64_(1)
    library.scipy_openblas_get_corename64_.restype = ctypes.c_char_p
    sgemm = library.scipy_cblas_sgemm64_
    integer, real, pointer = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    sgemm.argtypes = [
        ctypes.c_int, ctypes.c_int, ctypes.c_int, integer, integer, integer, real, pointer, integer, pointer,
        integer, real, pointer, integer,
    ]  # fmt: skip
    sgemm.restype = None
    random = np.random.default_rng(1)
    x = random.standard_normal((COLUMNS, 1), np.float32)

    def rate(weights: np.ndarray, repeat: int) -> float:
        count, rows, columns = weights.shape
        y = np.empty((rows, 1), np.float32)
        best = float("inf")
        for _ in range(repeat):
            begin = time.perf_counter()
            for i in range(count):
                sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, rows, 1, columns, 1.0, weights[i].ctypes.data, columns,
                      x.ctypes.data, 1, 0.0, y.ctypes.data, 1)  # fmt: skip
            best = min(best, time.perf_counter() - begin)
        if not np.allclose(y, weights[-1] @ x, rtol=1e-3, atol=1e-3):
            raise BlasError("sgemm and numpy disagree: it was called wrongly")
        return float(count * rows * columns / best / 1e9)

    matrices = MEMORY_BYTES // (ROWS * COLUMNS * 4)
    memory = np.empty((matrices, ROWS, COLUMNS), np.float32)
    memory[:] = random.standard_normal((ROWS, COLUMNS), np.float32)
    cached = random.standard_normal((1, CACHED_ROWS, COLUMNS), np.float32)
    core = library.scipy_openblas_get_corename64_().decode()
    return {"core": core, "memory": rate(memory, 5), "cached": rate(cached, 600)}


def parse_kernels(text: str) -> dict[str, Any]:
    """The figures of the last (best) instruction set that checkkernels --bench printed."""
    best: dict[str, Any] = {}
    for line in text.splitlines():
        if re.fullmatch(r"\w+:", line):
            best = {"isa": line[:-1]}
        elif found := LINE.fullmatch(line):
            best[found[1]] = float(found[3])
    if not {"isa", "memory", "cached"} <= best.keys():
        raise BlasError("checkkernels --bench printed no int4 rows for one token")
    return best


def main() -> int:
    """Alternate the two, one thread each."""
    parser = options(__doc__ or "")
    parser.add_argument("--checkkernels", type=Path, default=REPOSITORY / "build" / "host" / "checkkernels")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--openblas", action="store_true", help="measure OpenBLAS in this process, print JSON")
    given = parser.parse_args()
    if given.openblas:
        print(json.dumps(measure_openblas()))
        return 0
    results = Results(given.results, given.again)
    names = {place: f"int4 GEMV, weights in {place}, 1 thread" for place in ("memory", "cache")}
    if not any(results.wanted("gemv", name) for name in names.values()):
        return 0
    ours, theirs = [], []
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    for _ in range(given.rounds):
        ours.append(parse_kernels(run([str(given.checkkernels), "--bench"])))
        theirs.append(json.loads(run([sys.executable, str(Path(__file__).resolve()), "--openblas"])))
    for place, key in (("memory", "memory"), ("cache", "cached")):
        values, others = [sample[key] for sample in ours], [sample[key] for sample in theirs]
        results.put("gemv", names[place], {
            "goal": None, "ours": max(values), "peer": max(others), "unit": "GMAC/s", "spread": spread(values),
            "ratio": statistics.median(a / b for a, b in zip(values, others, strict=True)),
            "note": f"{ours[0]['isa']}; OpenBLAS sgemm, {theirs[0]['core']}",
            "samples": {"ours": values, "peer": others},
        })  # fmt: skip
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BlasError as error:
        print(f"gemv: error: {error}", file=sys.stderr)
        sys.exit(1)
