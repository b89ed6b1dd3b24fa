# SPDX-License-Identifier: MIT
"""The smallest files that have everything: every section, every dtype, padded rows and columns; every mixer.

The parts that the converter does not write are made here from docs/format.md with structs of
their own, as `forge` does it, so that a mistake of the package is not repeated.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from colibri._spec import (
    NONE_INDEX,
    Activation,
    DType,
    GroupScore,
    MlaBlock,
    Pretokenizer,
    RouterScore,
    ShortConvBlock,
    TokenizerFlag,
)
from colibri.job import Job, Precision, run_job
from colibri.layout import F32
from colibri.tokenizer import TokenizerSpec
from colibri.writer import Slot
from forge import CALIBRATION, SIGNATURE, Forge
from synthetic import Shape, records_of, tensor_values

# Two layers, so that the calibration has pairs; every expert is used by every token.
SHAPE = Shape(
    hidden=24, vocabulary=19, layers=2, heads=2, kv_heads=1, head_dim=8, value_dim=8, rope_pairs=4,
    intermediate=20, experts=2, top_k=2, context=16,
    precision=Precision(DType.INT4, DType.F16, DType.F32, head=DType.INT8, embeddings=DType.BF16),
)  # fmt: skip

# Latent attention with and without a latent query and positions, a convolution, sinks; experts in groups.
MIXERS = replace(
    SHAPE, layers=4, experts=4, top_k=2,
    mixers={
        0: MlaBlock(heads=2, q_rank=9, kv_rank=10, nope_dim=6, rope_dim=8, value_dim=7, scale=0.25, norm_eps=1e-6),
        1: ShortConvBlock(width=20, taps=3, bias=1),
        3: MlaBlock(heads=3, kv_rank=12, nope_dim=5, rope_dim=4, value_dim=8, scale=0.3, norm_eps=1e-6,
                    rope_table=NONE_INDEX, window_tokens=2),
    },
    attention={"sinks": 1, "window_tokens": 2, "q_bias": 1, "kv_bias": 1, "o_bias": 1},
    moe={"router_score": RouterScore.SIGMOID, "selection_bias": 1, "router_bias": 1, "bias": 1, "groups": 2,
         "groups_chosen": 1, "group_score": GroupScore.TOP2_SUM, "activation": Activation.SWIGLU_CLAMPED,
         "clamp": 7.0, "alpha": 1.702},
    shared={"intermediate": 12},
)  # fmt: skip


def tokenizer() -> bytes:
    """A tokenizer with every array of the section."""
    spec = TokenizerSpec(
        tokens=[b"<s>", b"</s>", *(bytes((b,)) for b in b"ab c1\n"), b"ab", b"abc", b"  ", b"", b"cc"],
        merges=[(2, 3, 0, 8), (8, 5, 1, 9)],
        pretokenizer=Pretokenizer.QWEN2,
        flags=int(TokenizerFlag.ADD_BOS | TokenizerFlag.IGNORE_MERGES),
        specials=[0, 1],
        ends=[1],
        bos_id=0,
        unk_id=4,
        literals=[10, 12],
        class_ranges=[(9, 13, 3), (32, 32, 3), (48, 57, 2), (97, 122, 1)],
        chat_prefix=[0, 2],
        chat_suffix=[1],
        unicode_version=0x0E0000,
    )
    return spec.to_section()


def calibration(layers: int, experts: int, tokens: int = 7) -> bytes:
    """Both experts of every layer are chosen by every token; each is followed by both."""
    pairs = experts * experts * (layers - 1)
    data = struct.pack("<IIII", layers, tokens, pairs, 0)
    for index in range(layers):
        data += struct.pack("<IIII", index, experts, experts, pairs if index == 0 else 0)
    data += struct.pack("<I", tokens) * (layers * experts)
    for expert in range(experts):
        for following in range(experts if layers > 1 else 0):
            data += struct.pack("<II", expert << 16 | following, tokens)
    return data


def signature() -> bytes:
    """A section whose structure is right; no key made the signature."""
    data = struct.pack("<II", 1, 0) + bytes(range(32)) + bytes(range(100, 132)) + bytes(range(64))
    return data + hashlib.sha256(data).digest()


@cache
def everything(layers: int = 2, experts: int = 2) -> bytes:
    """The file with every section."""
    job = Job(
        records_of(replace(SHAPE, layers=layers, experts=experts, top_k=experts)),
        lambda slot, first, end: _rows(slot)[first:end],
        SHAPE.precision,
        tokenizer(),
        {"recipe": "tiny", "licence": "MIT"},
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.colibri"
        run_job(job, path, threads=1, quiet=True)
        forge = Forge(path.read_bytes())
    forge.add_section(CALIBRATION, calibration(layers, experts))
    forge.add_section(SIGNATURE, signature())
    forge.u64(24, 3)  # optional features: signed, calibrated
    forge.rehash_weights()
    forge.rehash_root()
    return bytes(forge.data)


@cache
def mixers() -> bytes:
    """A file whose layers mix tokens in every way there is: no two that follow each other in the same."""
    job = Job(
        records_of(MIXERS), lambda slot, first, end: _rows(slot)[first:end], MIXERS.precision, tokenizer(),
        {"recipe": "tiny"},
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        path = Path(folder) / "mixers.colibri"
        run_job(job, path, threads=1, quiet=True)
        return path.read_bytes()


def _rows(slot: Slot) -> F32:
    return tensor_values(slot, 3)


if __name__ == "__main__":
    import sys

    Path(sys.argv[1]).write_bytes(everything(int(sys.argv[2])))
