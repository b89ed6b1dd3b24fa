# SPDX-License-Identifier: MIT
"""How long opening a model of 8 GiB takes, and how fast it is hashed.

    make bench-open

The file is valid: its int8 weights are zeros, which are holes on disk, and all hashes are right. Open
reads header, records and directory, so its time depends on the number of tensors, not on the weights.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from colibri import _spec as spec
from colibri._spec import DType
from colibri.engine import Engine
from colibri.errors import ColibriError
from colibri.format import chunk_hashes, open_model, sha256
from colibri.job import Precision
from colibri.writer import ModelWriter
from synthetic import Shape, records_of

GIB = 1 << 30
LIMIT_MS = 20.0
OPENS = 15
# Layers and experts of the large models for boards: 2,048 experts of 4 MiB.
SHAPE = Shape(
    hidden=1536, vocabulary=32000, layers=32, heads=12, kv_heads=2, head_dim=128, value_dim=128, rope_pairs=64,
    intermediate=864, experts=64, top_k=8, context=4096, precision=Precision(DType.INT8, DType.INT8, DType.F32),
)  # fmt: skip


class SparseWriter(ModelWriter):
    """Writes everything but the weights, which are holes."""

    def fill(self) -> None:
        """The chunk tables of extents of zeros."""
        zero = chunk_hashes(bytes(spec.CHUNK_BYTES))[0]
        for index, extent in enumerate(self._extents):
            whole, rest = divmod(extent.size, spec.CHUNK_BYTES)
            table = zero * whole + b"".join(chunk_hashes(bytes(rest)))
            self._put(extent.offset + extent.size, table)
            self._extents[index] = replace(extent, hash=sha256(table))
        self._next = len(self.slots)


def write(path: Path) -> Path:
    """The sparse model."""
    with SparseWriter(path, records_of(SHAPE), SHAPE.precision.choose) as writer:
        writer.fill()
    return path


def milliseconds(path: Path, residency: str, verify: str) -> list[float]:
    """Times of warm opens; closing is not counted."""
    times = []
    for _ in range(OPENS + 1):
        start = time.perf_counter()
        engine = Engine(path, threads=1, context_tokens=128, lock="off", residency=residency, verify=verify)
        times.append(1000 * (time.perf_counter() - start))
        engine.close()
    return times[1:]  # the first brings the directory into the page cache


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--folder", help="where the sparse file goes; default: a temporary folder")
    parser.add_argument("--judge", help="the C program that measures the hash functions")
    arguments = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = write(Path(folder) / "sparse.colibri")
        size, disk = path.stat().st_size, 512 * path.stat().st_blocks
        with open_model(path) as model:
            print(f"{size / GIB:.2f} GiB ({disk >> 20} MiB on disk), {len(model.extents)} extents, "
                  f"{len(model.tensors)} tensors")
        assert size >= 8 * GIB, size
        modes = [("resident", "first"), ("stream", "first"), ("stream", "always"), ("mapped", "first")]
        for residency, verify in modes:
            try:
                times = milliseconds(path, residency, verify)
            except ColibriError as error:
                print(f"open {residency}, verify {verify}: {error}")
                worst = float("inf")
                continue
            median = statistics.median(times)
            worst = max(worst, median)
            print(f"open {residency}, verify {verify}: median {median:.2f} ms, best {min(times):.2f} ms")
    if arguments.judge:
        print(subprocess.run([arguments.judge, "--sha"], capture_output=True, text=True, check=True).stdout, end="")
    print(f"limit {LIMIT_MS:g} ms: {'kept' if worst <= LIMIT_MS else 'EXCEEDED'}")
    return 0 if worst <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
