# SPDX-License-Identifier: MIT
"""Fuzz target: a GGUF file, its metadata and the shape of the model in it."""

from __future__ import annotations

import contextlib
import struct
import sys
from collections.abc import Sequence

from fuzzing import Check, Folder, Target, main, read_all


def load() -> Check:
    """The check."""
    import colibri.tokenizer_import  # noqa: F401
    import gguf.quants  # noqa: F401  (what is loaded on first use is no finding)
    from colibri.errors import ColibriError
    from colibri.families import decoder_records
    from colibri.gguf_model import gguf_shape
    from colibri.gguf_reader import Gguf
    from colibri.provenance import gguf_license
    from colibri.tokenizer import TokenizerSpec

    folder = Folder("m.gguf")

    def check(data: bytes) -> None:
        source = Gguf(folder.put(data) / "m.gguf")
        try:
            gguf_license(source.value)
            with contextlib.suppress(ColibriError):  # most inputs are no model; their tensors are read all the same
                decoder_records(gguf_shape(source))
            with contextlib.suppress(ColibriError):
                TokenizerSpec.from_gguf_metadata(source.metadata())
            try:
                read_all(source)
            except ColibriError as error:
                if "tensor" not in error.message:
                    raise
        finally:
            source.close()

    return check


def text(value: str) -> bytes:
    """A text with its length."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def file_of(pairs: dict[str, bytes], tensors: dict[str, tuple[tuple[int, ...], int, int]], data: bytes) -> bytes:
    """A file; pairs are encoded values with their type, tensors (shape, type, offset)."""
    out = b"GGUF" + struct.pack("<I2Q", 3, len(tensors), len(pairs))
    out += b"".join(text(key) + value for key, value in pairs.items())
    for name, (shape, kind, offset) in tensors.items():
        out += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return out + bytes(-len(out) % 32) + data


def number(value: int) -> bytes:
    """A u32 value."""
    return struct.pack("<2I", 4, value)


def real(value: float) -> bytes:
    """An f32 value."""
    return struct.pack("<If", 6, value)


def word(value: str) -> bytes:
    """A text value."""
    return struct.pack("<I", 8) + text(value)


# What an architecture says beside the sizes of every model.
YARN = {"type": word("yarn"), "factor": real(4.0), "original_context_length": number(16),
        "yarn_log_multiplier": real(0.1)}  # fmt: skip
MORE = {
    "gpt-oss": {"attention.sliding_window": number(8), "rope.scaling.type": word("linear"),
                "rope.scaling.factor": real(2.0)},
    "smallthinker": {"attention.sliding_window": number(8), "expert_gating_func": number(2)},
    "lfm2moe": {"attention.head_count_kv": struct.pack("<2IQ2I", 9, 4, 2, 0, 1), "block_count": number(2),
                "shortconv.l_cache": number(3), "leading_dense_block_count": number(0),
                "expert_gating_func": number(2)},
    "deepseek2": {"attention.kv_lora_rank": number(16), "attention.q_lora_rank": number(16),
                  "attention.key_length": number(24), "attention.value_length": number(16),
                  "attention.key_length_mla": number(16), "attention.value_length_mla": number(8),
                  "rope.dimension_count": number(8), "expert_group_count": number(2), "expert_shared_count": number(1),
                  "expert_group_used_count": number(1), "expert_gating_func": number(2),
                  **{f"rope.scaling.{key}": value for key, value in YARN.items()}},
}  # fmt: skip


def model(architecture: str) -> bytes:
    """The metadata of a small model."""
    sizes = {
        "embedding_length": number(32), "block_count": number(1), "context_length": number(64),
        "attention.head_count": number(2), "attention.head_count_kv": number(1), "feed_forward_length": number(32),
        "expert_feed_forward_length": number(32), "expert_count": number(2), "expert_used_count": number(1),
        "vocab_size": number(8), "attention.layer_norm_rms_epsilon": real(1e-5), "rope.freq_base": real(1e4),
    }  # fmt: skip
    pairs = {f"{architecture}.{key}": value for key, value in {**sizes, **MORE[architecture]}.items()}
    return file_of({"general.architecture": word(architecture), **pairs}, {}, b"")


def seeds() -> Sequence[bytes]:
    """Good files."""
    words = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "general.license": struct.pack("<I", 8) + text("mit"),
        "llama.embedding_length": number(32), "llama.block_count": number(1), "llama.context_length": number(64),
        "llama.attention.head_count": number(2), "llama.attention.head_count_kv": number(1),
        "llama.feed_forward_length": number(32), "llama.expert_count": number(2), "llama.expert_used_count": number(1),
        "llama.vocab_size": number(8),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", 6, 1e-5),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("gpt2"),
        "tokenizer.ggml.pre": struct.pack("<I", 8) + text("smollm"),
        "tokenizer.ggml.merges": struct.pack("<IIQ", 9, 8, 1) + text("a b"),
        "llama.rope.freq_base": struct.pack("<If", 6, 1e4),
        "tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b"),
        "tokenizer.ggml.scores": struct.pack("<IIQ2f", 9, 6, 2, 0, 1),
        "flag": struct.pack("<IB", 7, 1), "wide": struct.pack("<Iq", 11, -1), "real": struct.pack("<Id", 12, 0.5),
    }  # fmt: skip
    tensors = {"token_embd.weight": ((32, 8), 0, 0), "q8": ((32, 2), 8, 1024), "q4": ((32,), 2, 1120),
               "bf": ((2, 2, 2), 30, 1152), "i": ((4,), 26, 1184)}  # fmt: skip
    plain = [file_of(words, tensors, bytes(1216)), file_of({}, {}, b""), file_of({}, {"x": ((4,), 0, 0)}, bytes(16))]
    return plain + [model(architecture) for architecture in MORE]


WORDS = [b"general.alignment", b"GGUF", b"\xff" * 8, b"\0" * 8, struct.pack("<I", 9), struct.pack("<I", 8),
         struct.pack("<Q", 1 << 60), struct.pack("<Q", 1 << 32), b"llama.rope.scaling.type"]  # fmt: skip
TARGET = Target("fuzz_gguf", load, seeds, WORDS)

if __name__ == "__main__":
    sys.exit(main(TARGET))
