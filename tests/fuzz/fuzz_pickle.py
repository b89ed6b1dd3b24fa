# SPDX-License-Identifier: MIT
"""Fuzz target: the pickle of a state_dict, straight into the interpreter, and whole streams of torch."""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Sequence

from fuzzing import Check, Folder, FoundError, Target, main, read_all


def load() -> Check:
    """The check: the first byte says which reader the rest is for."""
    from colibri.checkpoint import STORED
    from colibri.pickle_reader import PickleReader, Tensor, state_dict
    from colibri.torch_reader import TorchFiles

    folder = Folder("pytorch_model.bin")

    def check(data: bytes) -> None:
        if data[:1] == b"S":
            with TorchFiles(folder.put(data[1:])) as source:
                read_all(source)
            return
        reader = PickleReader(data[1:], "the input")
        for name, tensor in state_dict(reader.load(), "the input").items():
            # What was accepted is a view inside its storage, and nothing else.
            if type(name) is not str or type(tensor) is not Tensor or tensor.storage.dtype not in STORED:
                raise FoundError(f"{name!r}: {type(tensor)}")
            last = tensor.offset + sum(
                (n - 1) * step for n, step in zip(tensor.shape, tensor.strides, strict=True)
            )
            if 0 not in tensor.shape and not 0 <= last < tensor.storage.numel:
                raise FoundError(f"{name!r} ends at element {last} of {tensor.storage.numel}")

    return check


REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n("


def text(value: str) -> bytes:
    """A text instruction."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def state(names: Sequence[str], key: str = "0") -> bytes:
    """Pickle of a dictionary of 2 x 2 tensors of one storage, as torch writes it."""
    storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + b"K\4tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    tensor = REBUILD + storage + b"K\0K\2K\2\x86K\2K\1\x86\x89" + hooks + b"tR"
    items = b"".join(text(name) + tensor for name in names)
    return b"\x80\x02ccollections\nOrderedDict\nq\0)Rq\1(" + items + b"u}" + text("_metadata") + b"h\0)Rsb."


def seeds() -> Sequence[bytes]:
    """Good pickles and streams."""
    numbers: list[object] = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    front = b"".join(pickle.dumps(value, 2) for value in numbers)
    stream = front + state(["x"]) + pickle.dumps(["0"], 2) + struct.pack("<q", 4) + bytes(16)
    wrapped = state(["x"]).replace(REBUILD, b"ctorch._utils\n_rebuild_parameter\n(" + REBUILD, 1)
    wrapped = wrapped.replace(b")RtR", b")RtR\x88ccollections\nOrderedDict\n)RtR", 1)
    return [b"P" + state(["x", "y"]), b"P\x80\x02}.", b"P" + wrapped, b"S" + stream]


OPCODES = [bytes([code]) for code in range(256)]
WORDS = [
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nHalfStorage\n",
    b"ccollections\nOrderedDict\n", b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f", b"J\xff\xff\xff\xff", b"(t", b"]h\0a",
    b"q\0", b"h\0", b"2", b"\x94", b"\x93", b"\x95\xff\xff\xff\xff\xff\xff\xff\xff", b"X\xff\xff\xff\x7f", b"L9L\n",
    b"ios\nsystem\n", b"\x81", b"\x92", b"R", b"b", b"Q", *OPCODES,
]  # fmt: skip
TARGET = Target("fuzz_pickle", load, seeds, WORDS)

if __name__ == "__main__":
    sys.exit(main(TARGET))
