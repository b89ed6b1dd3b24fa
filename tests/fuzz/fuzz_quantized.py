# SPDX-License-Identifier: MIT
"""Fuzz target: the file between `colibri quantize` and `colibri pack`. What is accepted must be a model.

An input is a file behind two bytes with the length of its header in units of eight; so changes of
the header do not all end at its length.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fuzzing import Check, Folder, Target, main


def load() -> Check:
    """The check."""
    from colibri.flow import QuantizedFile
    from colibri.writer import ModelWriter

    folder = Folder("model.quant.bin")

    def check(data: bytes) -> None:
        header = 8 * int.from_bytes(data[:2], "little")
        folder.put(struct.pack("<Q", header) + data[2:])
        with QuantizedFile(folder.file) as source:
            writer = ModelWriter(folder.path / "m.colibri", source.records, source.choice(), None, source.provenance)
            for slot in writer.slots:
                source.stored(slot)

    return check


def seeds() -> Sequence[bytes]:
    """A model of one layer and two experts, and one with a dense layer and biases."""
    import numpy as np
    from colibri._spec import Family
    from colibri.families import DecoderShape, decoder_records
    from colibri.flow import write_quantized
    from colibri.job import Job, Precision
    from colibri.layout import F32
    from colibri.writer import Slot

    def rows(slot: Slot, first: int, end: int) -> F32:
        count = (end - first) * slot.tensor.columns
        return np.linspace(-1, 1, count, dtype=np.float32).reshape(end - first, slot.tensor.columns)

    small = DecoderShape(
        family=Family.QWEN2_MOE, hidden=24, vocabulary=9, layers=1, context_tokens=8, heads=2, kv_heads=1, head_dim=8,
        intermediate=16, experts=2, top_k=1, rope_theta=1e4, norm_eps=1e-5, tied_head=True,
    )  # fmt: skip
    found = []
    for shape in (small, replace(small, layers=2, dense_layers=frozenset({0}), dense_intermediate=12, qkv_bias=True)):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "q"
            write_quantized(Job(decoder_records(shape), rows, Precision()), path, 1)
            data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        found.append((length // 8).to_bytes(2, "little") + data[8:])
    return found


WORDS = [
    b'"U8"', b'"F32"', b'"shape"', b"[]", b"-1", b"null", b"\\u0000", b'"int8"', b'\\"int4\\"', b'\\"mxfp4\\"',
    b"colibri-quantized-1", b"00000000", b"ffffffff", b"[" * 64, b'"layer 0 expert 9 expert_up"', b"\x00\x7c",
]  # fmt: skip
TARGET = Target("fuzz_quantized", load, seeds, WORDS)

if __name__ == "__main__":
    sys.exit(main(TARGET))
