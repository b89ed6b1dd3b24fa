# SPDX-License-Identifier: MIT
"""Synthetic models of the sizes that benchmarks compare: the same shape as `.colibri` and as GGUF.

    build/venv/bin/python tests/bench/shapes.py a b c            # both recipes and the peer's file
    build/venv/bin/python tests/bench/shapes.py b --recipes matched

Weights are random with zero mean: a common offset would pull all hidden states the same way, all
tokens would share their experts and a cache of experts would look better than it is. They are cut
from a pool of random blocks, a different place for each tensor, so a file is written as fast as
it is hashed. What attention finds in the context is nearly the same for all tokens, and it would
grow from layer to layer: the embedding has deviation 1 and attention's output a gain of 0.1, so
that it is the token at hand that decides where it is routed.

Files are deterministic and cached under ${XDG_CACHE_HOME:-~/.cache}/colibri/bench, named by a
digest of everything that they depend on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from colibri import _spec as spec
from colibri._spec import DType, Family, Layout, Role, Scope
from colibri.families import DecoderShape, decoder_records
from colibri.job import Precision
from colibri.layout import pack_int4, pack_int8, unpack_int4, unpack_int8
from colibri.records import Records, required_tensors, tensor_bytes
from colibri.writer import ModelWriter, Slot
from numpy.typing import NDArray

GENERATOR = 4  # part of every digest: raise it when the bytes of a shape change
ATTENTION_GAIN = 0.1
POOL_BLOCKS = 131_071  # prime: a tensor that goes round the pool never meets itself in step
INT4_DEVIATION = 4.3205  # of a uniform value of -7..7
INT8_DEVIATION = 73.32  # of a uniform value of -127..127
VERSION = [spec.VERSION_MAJOR, spec.VERSION_MINOR]  # of the container
U8 = NDArray[np.uint8]


@dataclass(frozen=True)
class BenchShape:
    """Dimensions of a decoder with Mixtral's records."""

    name: str
    title: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    top_k: int
    intermediate: int
    vocabulary: int
    tied_head: bool
    context_tokens: int = 4096


SHAPES = {
    "a": BenchShape("a", "Granite-3.0-1B-A400M", 1024, 24, 16, 8, 64, 32, 8, 512, 49155, True),
    "b": BenchShape("b", "OLMoE-1B-7B", 2048, 16, 16, 16, 128, 64, 8, 1024, 50304, False),
    "c": BenchShape("c", "small Mixtral", 512, 8, 8, 8, 64, 8, 2, 1024, 32000, False),
    # Not a benchmark: small enough to try the programs of this folder in seconds.
    "t": BenchShape("t", "trial", 256, 4, 4, 2, 64, 16, 2, 512, 1003, False, 512),
}
RECIPES = ("matched", "default")


def precision(shape: BenchShape, recipe: str) -> Precision:
    """`matched`: int4 but for an int8 head, what the peer's Q4_0 and Q6_K come to; `default`: int8 trunk."""
    if recipe == "default":
        return Precision(DType.INT4, DType.INT8, DType.F32)
    embeddings = DType.INT8 if shape.tied_head else DType.INT4
    return Precision(DType.INT4, DType.INT4, DType.F32, head=DType.INT8, embeddings=embeddings)


def records(shape: BenchShape) -> Records:
    """Mixtral's records with the dimensions of `shape`."""
    return decoder_records(
        DecoderShape(
            family=Family.MIXTRAL,
            hidden=shape.hidden,
            vocabulary=shape.vocabulary,
            layers=shape.layers,
            context_tokens=shape.context_tokens,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            intermediate=shape.intermediate,
            experts=shape.experts,
            top_k=shape.top_k,
            rope_theta=1e4,
            norm_eps=1e-5,
            tied_head=shape.tied_head,
        )
    )


def active_bytes(shape: BenchShape, recipe: str) -> int:
    """Bytes of weights that one decoded token reads: all but the experts it skips and the embedding's other rows."""
    model = records(shape)
    choose = precision(shape, recipe).choose
    total = 0
    for scope, layer in ((Scope.TRUNK, None), (Scope.TRUNK, 0), (Scope.EXPERT, 0)):
        times = 1 if layer is None else shape.layers
        times *= shape.top_k if scope == Scope.EXPERT else 1
        for role, tensor in required_tensors(model, scope, layer).items():
            if role == Role.EMBEDDING and not shape.tied_head:
                continue
            dtype = DType.F32 if tensor.layout == Layout.ROWS else choose(scope, layer, role)
            total += times * tensor_bytes(dtype, tensor.layout, tensor.rows, tensor.columns)
    return total


def kv_bytes(shape: BenchShape) -> int:
    """Bytes of the KV cache of one position, f16: a decoded token reads those of all before it."""
    return shape.layers * shape.kv_heads * shape.head_dim * 2 * 2


def expert_bytes(shape: BenchShape) -> int:
    """Bytes of one expert's extent, int4."""
    one = tensor_bytes(DType.INT4, Layout.PANEL8, shape.intermediate, shape.hidden)
    down = tensor_bytes(DType.INT4, Layout.PANEL8, shape.hidden, shape.intermediate)
    return 2 * one + down


# --------------------------------------------------------------------------- pools of random blocks


def _generator(*words: object) -> np.random.Generator:
    digest = hashlib.sha256(repr(words).encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def _f16_scales(rng: np.random.Generator, shape: tuple[int, ...], deviation: float, columns: int) -> U8:
    """Scales that give a row product of deviation about 1 over inputs of deviation 1."""
    unit = 1.0 / (deviation * float(np.sqrt(columns)))
    scales = (unit * rng.uniform(0.7, 1.3, shape)).astype("<f2")
    return np.ascontiguousarray(scales).view(np.uint8).reshape(*shape[:-1], 2 * shape[-1])


def _zero_mean_nibbles(rng: np.random.Generator, shape: tuple[int, int]) -> U8:
    """Bytes of two +8 coded values of -7..7: 0 (-8) becomes 8 (0), so that the mean is zero."""
    table = np.arange(256, dtype=np.uint8)
    table[(table & 15) == 0] |= 8
    table[(table >> 4) == 0] |= 128
    return table[rng.integers(0, 256, shape, dtype=np.uint8)]


def weak_inputs(inputs: int) -> int:
    """What `Pools.take` is given for a matrix of gain ATTENTION_GAIN."""
    return round(inputs / ATTENTION_GAIN**2)


class Pools:
    """Random blocks of each storage type, one pool per type and number of inputs."""

    def __init__(self) -> None:
        self._pools: dict[tuple[str, int], bytes] = {}

    def _make(self, kind: str, inputs: int) -> bytes:
        rng = _generator("pool", GENERATOR, kind, inputs)
        n = POOL_BLOCKS
        if kind == "int4":
            out = np.empty((n, spec.INT4_BLOCK_BYTES), np.uint8)
            out[:, :128] = _zero_mean_nibbles(rng, (n, 128))
            out[:, 128:] = _f16_scales(rng, (n, 8), INT4_DEVIATION, inputs)
        elif kind == "int8":
            out = np.empty((n, spec.INT8_BLOCK_BYTES), np.uint8)
            values = rng.integers(-127, 128, (n, 256), dtype=np.int8)
            out[:, :256] = values.view(np.uint8)
            out[:, 256:] = _f16_scales(rng, (n, 8), INT8_DEVIATION, inputs)
        elif kind == "f32":
            out = (rng.standard_normal((n, 8)) / np.sqrt(inputs)).astype("<f4").view(np.uint8)
        elif kind == "q4_0":  # 32 values: f16 scale, then the nibbles
            out = np.empty((n, 18), np.uint8)
            out[:, :2] = _f16_scales(rng, (n, 1), INT4_DEVIATION, inputs)
            out[:, 2:] = _zero_mean_nibbles(rng, (n, 16))
        elif kind == "q6_k":  # 256 values of -32..31 in 16 groups; scales of both signs give zero mean
            out = rng.integers(0, 256, (n, 210), dtype=np.uint8)
            signs = rng.choice(np.array([-1, 1], np.int8), (n, 16))
            out[:, 192:208] = (signs * rng.integers(40, 80, (n, 16), dtype=np.int8)).view(np.uint8)
            out[:, 208:] = _f16_scales(rng, (n, 1), 18.5 * 60, inputs)
        else:
            raise ValueError(kind)
        return out.tobytes()

    def take(self, kind: str, inputs: int, name: str, size: int) -> Iterator[bytes]:
        """`size` bytes of blocks from the place in the pool that belongs to `name`.

        The blocks' rows have deviation 1 / sqrt(inputs).
        """
        pool = self._pools.get((kind, inputs))
        if pool is None:
            pool = self._pools[kind, inputs] = self._make(kind, inputs)
        block = len(pool) // POOL_BLOCKS
        at = zlib.crc32(name.encode()) % POOL_BLOCKS * block
        while size:
            part = pool[at : at + min(size, 4 << 20)]
            yield part
            size -= len(part)
            at = (at + len(part)) % len(pool)


def _norm(name: str, columns: int) -> bytes:
    values = 1 + 0.1 * _generator("norm", name).standard_normal(columns)
    return values.astype("<f4").tobytes()


def _last_panel(data: bytes, dtype: DType, rows: int, columns: int) -> bytes:
    """A panel of random rows with those behind `rows` made padding."""
    unpack, pack = (unpack_int4, pack_int4) if dtype == DType.INT4 else (unpack_int8, pack_int8)
    q, scales = unpack(data, spec.PANEL_ROWS, columns)
    return pack(q[:rows], scales[:rows])


def _tensor(pools: Pools, slot: Slot) -> Iterator[bytes]:
    tensor = slot.tensor
    if tensor.layout == Layout.ROWS:
        yield _norm(slot.name, tensor.columns)
        return
    kind = tensor.dtype.name.lower()
    inputs = {Role.EMBEDDING: 1, Role.O: weak_inputs(tensor.columns)}.get(tensor.role, tensor.columns)
    extra = tensor.rows % spec.PANEL_ROWS
    panel = tensor_bytes(tensor.dtype, tensor.layout, spec.PANEL_ROWS, tensor.columns)
    yield from pools.take(kind, inputs, slot.name, tensor.size - (panel if extra else 0))
    if extra:
        data = b"".join(pools.take(kind, inputs, f"{slot.name}, last panel", panel))
        yield _last_panel(data, tensor.dtype, extra, tensor.columns)


# --------------------------------------------------------------------------- files


def cache_folder() -> Path:
    """Where files are kept; made when missing."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "colibri" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _forget_older(path: Path, pattern: str) -> None:
    """Files of the same shape that nothing names any more: they are gigabytes."""
    for old in path.parent.glob(pattern):
        if old != path:
            old.unlink(missing_ok=True)


def _say(path: Path, start: float) -> None:
    seconds = time.monotonic() - start
    print(f"shapes: wrote {path.name}, {path.stat().st_size / 1e6:.0f} MB, {seconds:.0f} s", file=sys.stderr)


def _digest(*words: object) -> str:
    text = json.dumps([GENERATOR, *words], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def colibri_file(name: str, recipe: str = "matched") -> Path:
    """The shape as a `.colibri` file, written when it is not in the cache."""
    shape = SHAPES[name]
    choice = precision(shape, recipe)
    path = cache_folder() / f"{name}-{recipe}-{_digest(VERSION, asdict(shape), choice.names())}.colibri"
    if path.exists():
        return path
    start = time.monotonic()
    pools = Pools()
    origin = {"kind": "bench", "shape": asdict(shape), "recipe": choice.names(), "generator": GENERATOR}
    with ModelWriter(path, records(shape), choice.choose, None, {"source": origin}) as writer:
        for slot in writer.slots:
            writer.write(slot, _tensor(pools, slot))
    _forget_older(path, f"{name}-{recipe}-*.colibri")
    _say(path, start)
    return path


def gguf_file(name: str) -> Path:
    """The shape for llama.cpp: Q4_0, and Q6_K for the head, as its own quantisation tool chooses."""
    shape = SHAPES[name]
    path = cache_folder() / f"{name}-{_digest('gguf', asdict(shape))}.gguf"
    if path.exists():
        return path
    start = time.monotonic()
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        _write_gguf(shape, temporary)
        os.replace(temporary, path)
        _forget_older(path, f"{name}-*.gguf")
    finally:
        temporary.unlink(missing_ok=True)
    _say(path, start)
    return path


def _gguf_tensors(shape: BenchShape) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """(name, shape with the columns last, storage) of every tensor."""
    hidden, inner, experts = shape.hidden, shape.intermediate, shape.experts
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (shape.vocabulary, hidden), "q6_k" if shape.tied_head else "q4_0"
    for i in range(shape.layers):
        yield f"blk.{i}.attn_norm.weight", (hidden,), "norm"
        yield f"blk.{i}.attn_q.weight", (q, hidden), "q4_0"
        yield f"blk.{i}.attn_k.weight", (kv, hidden), "q4_0"
        yield f"blk.{i}.attn_v.weight", (kv, hidden), "q4_0"
        yield f"blk.{i}.attn_output.weight", (hidden, q), "q4_0"
        yield f"blk.{i}.ffn_norm.weight", (hidden,), "norm"
        yield f"blk.{i}.ffn_gate_inp.weight", (experts, hidden), "f32"
        yield f"blk.{i}.ffn_gate_exps.weight", (experts, inner, hidden), "q4_0"
        yield f"blk.{i}.ffn_up_exps.weight", (experts, inner, hidden), "q4_0"
        yield f"blk.{i}.ffn_down_exps.weight", (experts, hidden, inner), "q4_0"
    yield "output_norm.weight", (hidden,), "norm"
    if not shape.tied_head:
        yield "output.weight", (shape.vocabulary, hidden), "q6_k"


def _write_gguf(shape: BenchShape, path: Path) -> None:
    import gguf

    block_bytes = {"q4_0": (18, 32), "q6_k": (210, 256), "f32": (32, 8), "norm": (4, 1)}
    types = gguf.GGMLQuantizationType
    kinds = {"q4_0": types.Q4_0, "q6_k": types.Q6_K, "f32": types.F32, "norm": types.F32}

    def size(dims: tuple[int, ...], kind: str) -> int:
        width, values = block_bytes[kind]
        return int(np.prod(dims)) // values * width

    writer: Any = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"bench shape {shape.name}")
    writer.add_vocab_size(shape.vocabulary)
    writer.add_context_length(shape.context_tokens)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(1e4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.top_k)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    tensors = list(_gguf_tensors(shape))
    for name, dims, kind in tensors:
        nbytes = size(dims, kind)
        if kind in ("f32", "norm"):
            writer.add_tensor_info(name, dims, np.dtype(np.float32), nbytes)
        else:
            width, values = block_bytes[kind]
            raw = (*dims[:-1], dims[-1] // values * width)
            writer.add_tensor_info(name, raw, np.dtype(np.uint8), nbytes, raw_dtype=kinds[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    pools = Pools()
    for name, dims, kind in tensors:
        if kind == "norm":
            data = _norm(name, dims[0])
        else:
            inputs = 1 if name.startswith("token_embd") else dims[-1]
            inputs = weak_inputs(inputs) if "attn_output" in name else inputs
            data = b"".join(pools.take(kind, inputs, name, size(dims, kind)))
        writer.write_tensor_data(np.frombuffer(data, np.uint8))
    writer.close()


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("shapes", nargs="+", choices=sorted(SHAPES))
    parser.add_argument("--recipes", default="matched,default", help="comma-separated; gguf is the peer's file")
    parser.add_argument("--no-peer", action="store_true", help="do not write the GGUF file")
    arguments = parser.parse_args()
    for name in arguments.shapes:
        for recipe in arguments.recipes.split(","):
            path = colibri_file(name, recipe)
            active = active_bytes(SHAPES[name], recipe)
            print(f"{path}  {path.stat().st_size} bytes, {active} read per token")
        if not arguments.no_peer:
            path = gguf_file(name)
            print(f"{path}  {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
