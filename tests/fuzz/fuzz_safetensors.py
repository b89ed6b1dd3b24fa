# SPDX-License-Identifier: MIT
"""Fuzz target: a safetensors file. What is accepted here, the package of the format must accept too.

The first byte of an input says what the rest is: R a whole file, H a header behind two bytes with
the number of data bytes; so changes of the header do not all end at its length.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Sequence
from typing import Any

from fuzzing import Check, Folder, FoundError, Target, main, read_all


def load() -> Check:
    """The check."""
    import safetensors
    from colibri.safetensors_reader import Safetensors

    deserialize: Any = safetensors.deserialize
    folder = Folder("model.safetensors")

    def check(data: bytes) -> None:
        if data[:1] == b"H" and len(data) >= 3:
            (size,) = struct.unpack_from("<H", data, 1)
            data = struct.pack("<Q", len(data) - 3) + data[3:] + bytes(size)
        else:
            data = data[1:]
        with Safetensors(folder.put(data)) as source:
            try:
                theirs = {name: tuple(table["shape"]) for name, table in deserialize(data)}
            except safetensors.SafetensorError as error:
                raise FoundError(f"accepted here, refused by the safetensors package: {error}") from error
            if theirs != source.shapes():
                raise FoundError(f"{source.shapes()} here, {theirs} in the safetensors package")
            from colibri.errors import ColibriError

            try:
                read_all(source)
            except ColibriError as error:  # a bool of 2, an integer beyond f32
                if "tensor" not in error.message:
                    raise

    return check


def file_of(header: Any, data: bytes) -> bytes:
    """A file with a header."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def seeds() -> Sequence[bytes]:
    """Good files."""
    one = {"x": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    kinds = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
    many: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for kind, width in kinds.items():
        many[f"a.{kind}"] = {"dtype": kind, "shape": [1, 2, 2], "data_offsets": [at, at + 4 * width]}
        at += 4 * width
    empty = {"e": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]},
             "s": {"dtype": "F16", "shape": [], "data_offsets": [0, 2]}}  # fmt: skip
    good: list[tuple[Any, int]] = [(one, 24), (many, at), (empty, 2), ({}, 0)]
    return [
        *(b"R" + file_of(header, bytes(size)) for header, size in good),
        *(b"H" + struct.pack("<H", size) + json.dumps(header).encode() for header, size in good),
    ]


WORDS = [
         b'"dtype"', b'"shape"', b'"data_offsets"', b"[0,0]", b"[]", b"-1", b"1e5", b"9223372036854775808",
         b'"F32"', b'"BF16"', b'"__metadata__"', b"null", b"true", b"{}", b"NaN", b'"\\ud800"', b"\\u0000", b"[" * 64,
]  # fmt: skip
TARGET = Target("fuzz_safetensors", load, seeds, WORDS)

if __name__ == "__main__":
    sys.exit(main(TARGET))
