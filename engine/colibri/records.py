# SPDX-License-Identifier: MIT
"""The model's records (docs/format.md 3) and what they ask for: extents, tensors, sizes.

Standard library only. The parser trusts nothing; the encoder writes what the parser accepts.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from colibri import _spec as spec
from colibri._spec import (
    AttentionBlock,
    Code,
    DType,
    ExtentKind,
    FfnBlock,
    LayerBlock,
    Layout,
    MlaBlock,
    ModelBlock,
    MoeBlock,
    NormPlace,
    Role,
    RopeBlock,
    Scope,
    SharedBlock,
    ShortConvBlock,
)
from colibri.errors import ColibriError

Mixer = AttentionBlock | MlaBlock | ShortConvBlock
Ffn = FfnBlock | MoeBlock
OPTIONAL_BLOCK = 1  # flag bit 0 of a block


@dataclass
class LayerRecords:
    """The blocks of one layer."""

    layer: LayerBlock
    mixer: Mixer | None = None
    ffn: Ffn | None = None
    shared: SharedBlock | None = None

    @property
    def experts(self) -> int:
        """Routed experts of the layer; 0 for a dense layer."""
        return self.ffn.experts if isinstance(self.ffn, MoeBlock) else 0


@dataclass
class Records:
    """Everything the records section says."""

    model: ModelBlock
    ropes: list[RopeBlock] = field(default_factory=list)
    layers: list[LayerRecords] = field(default_factory=list)

    def blocks(self) -> Iterator[Any]:
        """Every block in file order."""
        yield self.model
        yield from self.ropes
        for layer in self.layers:
            parts = (layer.layer, layer.mixer, layer.ffn, layer.shared)
            yield from (block for block in parts if block is not None)


class Shape(NamedTuple):
    """What a role must look like: a matrix [rows][columns], or f32 rows."""

    rows: int
    columns: int
    layout: Layout


def round_up(value: int, align: int) -> int:
    """`value` rounded up to a multiple of `align`."""
    return -(-value // align) * align


def chunk_count(size: int) -> int:
    """Chunks of `size` bytes of a section or extent."""
    return -(-size // spec.CHUNK_BYTES)


def chunk_table_bytes(size: int) -> int:
    """Bytes of the chunk table behind an extent of `size` bytes, with its padding."""
    return round_up(chunk_count(size) * spec.HASH_BYTES, spec.EXTENT_ALIGN_BYTES)


_BLOCK_BYTES = {
    DType.INT4: spec.INT4_BLOCK_BYTES,
    DType.INT8: spec.INT8_BLOCK_BYTES,
    DType.MXFP4: spec.MXFP4_BLOCK_BYTES,
}
_ELEMENT_BYTES = {DType.F32: 4, DType.F16: 2, DType.BF16: 2}


def tensor_bytes(dtype: DType, layout: Layout, rows: int, columns: int) -> int:
    """Bytes of a tensor as stored (docs/format.md 4)."""
    padded_columns = round_up(columns, spec.GROUP_COLUMNS)
    if layout == Layout.ROWS:
        return rows * padded_columns * 4
    padded_rows = round_up(rows, spec.PANEL_ROWS)
    if dtype in _BLOCK_BYTES:
        blocks = padded_rows // spec.PANEL_ROWS * (padded_columns // spec.GROUP_COLUMNS)
        return blocks * _BLOCK_BYTES[dtype]
    return padded_rows * padded_columns * _ELEMENT_BYTES[dtype]


# --------------------------------------------------------------------------- what records ask for


def extent_keys(records: Records) -> Iterator[tuple[ExtentKind, int | None, int | None]]:
    """(kind, layer, expert) of every extent, in file order; None = global or no expert."""
    yield ExtentKind.TRUNK, None, None
    for index in range(len(records.layers)):
        yield ExtentKind.TRUNK, index, None
    for index, layer in enumerate(records.layers):
        for expert in range(layer.experts):
            yield ExtentKind.EXPERT, index, expert


def _mlp(prefix: str, hidden: int, block: Ffn | SharedBlock) -> dict[Role, Shape]:
    """Tensors of one gated or plain MLP; `prefix` is ffn, shared or expert."""
    shapes: dict[Role, Shape] = {}
    parts = [
        ("gate", block.intermediate, hidden),
        ("up", block.intermediate, hidden),
        ("down", hidden, block.intermediate),
    ]
    for part, rows, columns in parts if block.gated else parts[1:]:
        name = f"{prefix}_{part}".upper()
        shapes[Role[name]] = Shape(rows, columns, Layout.PANEL8)
        if block.bias:
            shapes[Role[name + "_BIAS"]] = Shape(1, rows, Layout.ROWS)
    return shapes


def _attention(hidden: int, block: AttentionBlock) -> dict[Role, Shape]:
    q_rows = block.heads * block.head_dim
    k_rows = block.kv_heads * block.head_dim
    v_rows = block.kv_heads * block.value_dim
    shapes = {
        Role.Q: Shape(q_rows, hidden, Layout.PANEL8),
        Role.K: Shape(k_rows, hidden, Layout.PANEL8),
        Role.V: Shape(v_rows, hidden, Layout.PANEL8),
        Role.O: Shape(hidden, block.heads * block.value_dim, Layout.PANEL8),
    }
    biases = ((Role.Q, block.q_bias), (Role.K, block.kv_bias), (Role.V, block.kv_bias))
    for role, present in (*biases, (Role.O, block.o_bias)):
        if present:
            shapes[Role[role.name + "_BIAS"]] = Shape(1, shapes[role].rows, Layout.ROWS)
    if block.qk_norm_kind == spec.QkNormKind.PER_HEAD:
        shapes[Role.Q_NORM] = Shape(1, block.head_dim, Layout.ROWS)
        shapes[Role.K_NORM] = Shape(1, block.head_dim, Layout.ROWS)
    elif block.qk_norm_kind != spec.QkNormKind.NONE:
        shapes[Role.Q_NORM] = Shape(1, q_rows, Layout.ROWS)
        shapes[Role.K_NORM] = Shape(1, k_rows, Layout.ROWS)
    if block.sinks:
        shapes[Role.SINKS] = Shape(1, block.heads, Layout.ROWS)
    if block.output_gate:
        shapes[Role.ATTENTION_GATE] = Shape(block.heads * block.value_dim, hidden, Layout.PANEL8)
    return shapes


def _mla(hidden: int, block: MlaBlock) -> dict[Role, Shape]:
    q_rows = block.heads * (block.nope_dim + block.rope_dim)
    shapes: dict[Role, Shape] = {}
    if block.q_rank:
        shapes[Role.MLA_Q_A] = Shape(block.q_rank, hidden, Layout.PANEL8)
        shapes[Role.MLA_Q_A_NORM] = Shape(1, block.q_rank, Layout.ROWS)
    shapes[Role.MLA_Q_B] = Shape(q_rows, block.q_rank or hidden, Layout.PANEL8)
    shapes[Role.MLA_KV_A] = Shape(block.kv_rank + block.rope_dim, hidden, Layout.PANEL8)
    shapes[Role.MLA_KV_A_NORM] = Shape(1, block.kv_rank, Layout.ROWS)
    shapes[Role.MLA_K_B] = Shape(block.heads * block.nope_dim, block.kv_rank, Layout.PANEL8)
    shapes[Role.MLA_V_B] = Shape(block.heads * block.value_dim, block.kv_rank, Layout.PANEL8)
    # Rows of the output projection's input: the heads' values.
    shapes[Role.O] = Shape(hidden, block.heads * block.value_dim, Layout.PANEL8)
    return shapes


def _short_conv(hidden: int, block: ShortConvBlock) -> dict[Role, Shape]:
    shapes = {
        Role.CONV_IN: Shape(3 * block.width, hidden, Layout.PANEL8),
        Role.CONV_WEIGHT: Shape(block.taps, block.width, Layout.ROWS),
        Role.CONV_OUT: Shape(hidden, block.width, Layout.PANEL8),
    }
    if block.bias:
        shapes[Role.CONV_IN_BIAS] = Shape(1, 3 * block.width, Layout.ROWS)
        shapes[Role.CONV_BIAS] = Shape(1, block.width, Layout.ROWS)
        shapes[Role.CONV_OUT_BIAS] = Shape(1, hidden, Layout.ROWS)
    return shapes


_NORM_ROLES = (
    (NormPlace.PRE_MIXER, Role.PRE_MIXER_NORM),
    (NormPlace.POST_MIXER, Role.POST_MIXER_NORM),
    (NormPlace.PRE_FFN, Role.PRE_FFN_NORM),
    (NormPlace.POST_FFN, Role.POST_FFN_NORM),
)


def required_tensors(records: Records, scope: Scope, layer: int | None) -> dict[Role, Shape]:
    """Roles and shapes that the extent of (`scope`, `layer`) must hold, in ascending role."""
    model = records.model
    hidden = model.hidden
    shapes: dict[Role, Shape] = {}
    if layer is None:
        shapes[Role.EMBEDDING] = Shape(model.vocabulary, hidden, Layout.PANEL8)
        if model.position_kind == spec.PositionKind.LEARNED:
            rows = model.context_tokens + model.position_offset
            shapes[Role.POSITION_EMBEDDING] = Shape(rows, hidden, Layout.PANEL8)
        if model.embedding_norm_kind != spec.NormKind.NONE:
            shapes[Role.EMBEDDING_NORM] = Shape(1, hidden, Layout.ROWS)
        if model.embedding_norm_kind == spec.NormKind.LAYER:
            shapes[Role.EMBEDDING_NORM_BIAS] = Shape(1, hidden, Layout.ROWS)
        if model.head_bias:
            shapes[Role.HEAD_BIAS] = Shape(1, model.vocabulary, Layout.ROWS)
        if model.norm_kind != spec.NormKind.NONE:
            shapes[Role.FINAL_NORM] = Shape(1, hidden, Layout.ROWS)
            if model.norm_kind == spec.NormKind.LAYER:
                shapes[Role.FINAL_NORM_BIAS] = Shape(1, hidden, Layout.ROWS)
        if not model.tied_head:
            shapes[Role.HEAD] = Shape(model.vocabulary, hidden, Layout.PANEL8)
        return dict(sorted(shapes.items()))
    block = records.layers[layer]
    if scope == Scope.EXPERT:
        return _mlp("expert", hidden, block.ffn) if isinstance(block.ffn, MoeBlock) else {}
    for place, role in _NORM_ROLES:
        if block.layer.norm_places & place:
            shapes[role] = Shape(1, hidden, Layout.ROWS)
            if block.layer.norm_bias:
                shapes[Role[role.name + "_BIAS"]] = Shape(1, hidden, Layout.ROWS)
    if isinstance(block.mixer, AttentionBlock):
        shapes |= _attention(hidden, block.mixer)
    elif isinstance(block.mixer, MlaBlock):
        shapes |= _mla(hidden, block.mixer)
    elif isinstance(block.mixer, ShortConvBlock):
        shapes |= _short_conv(hidden, block.mixer)
    if isinstance(block.ffn, FfnBlock):
        shapes |= _mlp("ffn", hidden, block.ffn)
    elif isinstance(block.ffn, MoeBlock):
        shapes[Role.ROUTER] = Shape(block.ffn.experts, hidden, Layout.PANEL8)
        if block.ffn.router_bias:
            shapes[Role.ROUTER_BIAS] = Shape(1, block.ffn.experts, Layout.ROWS)
        if block.ffn.selection_bias:
            shapes[Role.ROUTER_SELECTION_BIAS] = Shape(1, block.ffn.experts, Layout.ROWS)
    if block.shared is not None:
        shapes |= _mlp("shared", hidden, block.shared)
        if block.shared.gate == spec.SharedGate.SIGMOID:
            shapes[Role.SHARED_ROUTER] = Shape(1, hidden, Layout.PANEL8)
    return dict(sorted(shapes.items()))


# --------------------------------------------------------------------------- encoding


def encode_struct(block: Any) -> bytes:
    """Fixed fields of a block, then its array when it has one; every field is 4 bytes."""
    names = [f.name for f in fields(block)]
    array = block.ARRAY
    values = [getattr(block, name) for name in names if name != array]
    data = struct.pack(block.STRUCT, *values)
    if array:
        items = getattr(block, array)
        data += struct.pack(f"<{len(items)}f", *items)
    return data


def _encode_block(block: Any) -> bytes:
    payload = encode_struct(block)
    return struct.pack("<HHI", block.ID, 0, len(payload)) + payload


def encode_records(records: Records) -> bytes:
    """The records section."""
    return b"".join(map(_encode_block, records.blocks()))


def required_features(records: Records, dtypes: set[DType]) -> int:
    """Feature bits that a reader must know to read this model."""
    bits = spec.REQUIRED_MXFP4 if DType.MXFP4 in dtypes else 0
    for layer in records.layers:
        if isinstance(layer.mixer, MlaBlock):
            bits |= spec.REQUIRED_MLA
        elif isinstance(layer.mixer, ShortConvBlock):
            bits |= spec.REQUIRED_SHORT_CONV
        elif isinstance(layer.mixer, AttentionBlock) and layer.mixer.sinks:
            bits |= spec.REQUIRED_ATTENTION_SINKS
    return bits


# --------------------------------------------------------------------------- parsing

_BLOCKS: dict[int, Any] = {
    block.ID: block
    for block in (
        ModelBlock,
        RopeBlock,
        LayerBlock,
        AttentionBlock,
        MlaBlock,
        ShortConvBlock,
        FfnBlock,
        MoeBlock,
        SharedBlock,
    )
}
_ENUM_FIELDS: dict[str, Any] = {
    "family": spec.Family,
    "position_kind": spec.PositionKind,
    "norm_kind": spec.NormKind,
    "embedding_norm_kind": spec.NormKind,
    "style": spec.RopeStyle,
    "mixer_kind": spec.MixerKind,
    "ffn_kind": spec.FfnKind,
    "qk_norm_kind": spec.QkNormKind,
    "activation": spec.Activation,
    "router_score": spec.RouterScore,
    "router_normalise": spec.RouterNormalise,
    "router_input": spec.RouterInput,
    "group_score": spec.GroupScore,
    "gate": spec.SharedGate,
}
_BOOLEAN_FIELDS = {
    "tied_head",
    "head_bias",
    "norm_bias",
    "parallel",
    "q_bias",
    "kv_bias",
    "o_bias",
    "sinks",
    "output_gate",
    "bias",
    "gated",
    "router_bias",
    "selection_bias",
}
# field -> (smallest, largest)
_RANGES: dict[str, tuple[int, int]] = {
    "hidden": (1, spec.MAX_HIDDEN),
    "vocabulary": (1, spec.MAX_VOCABULARY),
    "layers": (1, spec.MAX_LAYERS),
    "context_tokens": (1, spec.MAX_CONTEXT_TOKENS),
    "position_offset": (0, spec.MAX_CONTEXT_TOKENS),
    "pairs": (1, spec.MAX_HEAD_DIM // 2),
    "norm_places": (0, 15),
    "heads": (1, spec.MAX_HEADS),
    "kv_heads": (1, spec.MAX_HEADS),
    "head_dim": (1, spec.MAX_HEAD_DIM),
    "value_dim": (1, spec.MAX_HEAD_DIM),
    "window_tokens": (0, spec.MAX_CONTEXT_TOKENS),
    "q_rank": (0, spec.MAX_HIDDEN),
    "kv_rank": (1, spec.MAX_HIDDEN),
    "nope_dim": (1, spec.MAX_HEAD_DIM),
    "rope_dim": (1, spec.MAX_HEAD_DIM),
    "width": (1, spec.MAX_HIDDEN),
    "taps": (1, spec.MAX_HEAD_DIM),
    "intermediate": (1, spec.MAX_INTERMEDIATE),
    "experts": (1, spec.MAX_EXPERTS),
    "top_k": (1, spec.MAX_TOP_K),
    "groups": (0, spec.MAX_EXPERTS),
    "groups_chosen": (0, spec.MAX_EXPERTS),
}
_BIT_FIELDS = {"norm_places"}


def _record_error(message: str, offset: int) -> ColibriError:
    return ColibriError(Code.RECORD, message, offset)


def _check_fields(block: Any, offset: int) -> None:
    """The rules that concern one field alone."""
    position = offset
    for item in fields(block):
        name, value = item.name, getattr(block, item.name)
        where = f"{type(block).__name__}.{name}"
        if isinstance(value, float):
            if not math.isfinite(value):
                raise _record_error(f"{where} is {value}, not finite", position)
        elif name == "reserved":
            if value:
                raise _record_error(f"{where} is {value}, must be 0", position)
        elif name in _ENUM_FIELDS:
            if value not in set(_ENUM_FIELDS[name]):
                raise _record_error(f"{where} is {value}, an unknown kind", position)
        elif name in _BOOLEAN_FIELDS:
            if value > 1:
                raise _record_error(f"{where} is {value}, must be 0 or 1", position)
        elif name in _RANGES:
            low, high = _RANGES[name]
            if value > high and name not in _BIT_FIELDS:
                raise ColibriError(Code.LIMIT, f"{where} is {value}, limit {high}", position)
            if not low <= value <= high:
                raise _record_error(f"{where} is {value}, must be in {low}..{high}", position)
        position += 4


class _Stream:
    """Blocks of the records section, one after another; unknown optional ones are skipped."""

    def __init__(self, data: bytes, base: int) -> None:
        self.data, self.base, self.position = data, base, 0
        self.block: Any = None
        self.offset = base
        self.advance()

    def advance(self) -> None:
        while True:
            left = len(self.data) - self.position
            self.offset = self.base + self.position
            if left == 0:
                self.block = None
                return
            if left < spec.BLOCK_HEADER_BYTES:
                raise _record_error(f"{left} bytes left, a block header needs 8", self.offset)
            kind, flags, size = struct.unpack_from("<HHI", self.data, self.position)
            left -= spec.BLOCK_HEADER_BYTES
            if flags & ~OPTIONAL_BLOCK:
                raise _record_error(f"block {kind} has unknown flags {flags:#x}", self.offset)
            if size % 4 or size > left:
                raise _record_error(
                    f"block {kind} claims {size} bytes, {left} are left (multiples of 4)",
                    self.offset,
                )
            start = self.position + spec.BLOCK_HEADER_BYTES
            self.position = start + size
            cls = _BLOCKS.get(kind)
            if kind in spec.RESERVED_BLOCKS:
                raise ColibriError(
                    Code.UNSUPPORTED,
                    f"block {spec.RESERVED_BLOCKS[kind]} is reserved; this version has no reader for it",
                    self.offset,
                )
            if cls is not None:
                self.block = self._decode(cls, self.data[start : self.position])
                return
            if not flags & OPTIONAL_BLOCK:
                raise _record_error(f"block type {kind} is unknown and required", self.offset)

    def _decode(self, cls: Any, payload: bytes) -> Any:
        fixed = struct.calcsize(cls.STRUCT)
        name = cls.__name__
        if len(payload) < fixed or (len(payload) != fixed and not cls.ARRAY):
            raise _record_error(f"{name} has {len(payload)} bytes, needs {fixed}", self.offset)
        block = cls(*struct.unpack_from(cls.STRUCT, payload))
        start = self.offset + spec.BLOCK_HEADER_BYTES
        count = (len(payload) - fixed) // 4
        if cls.ARRAY and count != block.pairs:
            raise _record_error(f"{name} says {block.pairs} pairs and holds {count}", self.offset)
        _check_fields(block, start)  # before the array: its length is bounded by a field
        if cls.ARRAY:  # inv_freq: angles beyond 1 rad per token leave the exact range
            values = list(struct.unpack_from(f"<{count}f", payload, fixed))
            if not all(0.0 <= x <= 1.0 for x in values):
                raise _record_error(f"{name}.{cls.ARRAY} holds a value that is not within 0..1", start + fixed)
            setattr(block, cls.ARRAY, values)
        return block

    def take(self, cls: Any, what: str) -> tuple[Any, int]:
        """The next block, which must be a `cls`, and its offset."""
        block, offset = self.block, self.offset
        if not isinstance(block, cls):
            found = "the end" if block is None else type(block).__name__
            raise _record_error(f"{what} needs {cls.__name__}, found {found}", offset)
        self.advance()
        return block, offset


def _check_rope(records: Records, table: int, width: int, what: str, offset: int) -> None:
    if table == spec.NONE_INDEX:
        return
    if table >= len(records.ropes):
        raise _record_error(f"{what} names rope table {table}, the model has {len(records.ropes)}", offset)
    if 2 * records.ropes[table].pairs > width:
        raise _record_error(
            f"{what}: rope table {table} rotates {2 * records.ropes[table].pairs} channels of {width}",
            offset,
        )


def _check_moe(moe: MoeBlock, what: str, offset: int) -> None:
    if moe.top_k > moe.experts:
        raise _record_error(f"{what}: top_k {moe.top_k} of {moe.experts} experts", offset)
    if moe.groups and moe.experts % moe.groups:
        raise _record_error(f"{what}: {moe.groups} groups of {moe.experts} experts", offset)
    chosen = moe.groups_chosen
    if chosen > moe.groups or (chosen and moe.top_k > chosen * (moe.experts // moe.groups)):
        raise _record_error(f"{what}: {chosen} groups chosen of {moe.groups}, top_k {moe.top_k}", offset)


_MIXERS: dict[int, Any] = {
    spec.MixerKind.ATTENTION: AttentionBlock,
    spec.MixerKind.MLA: MlaBlock,
    spec.MixerKind.SHORT_CONV: ShortConvBlock,
}


def _parse_layer(stream: _Stream, records: Records, index: int) -> LayerRecords:
    what = f"layer {index}"
    layer, offset = stream.take(LayerBlock, what)
    if layer.index != index:
        raise _record_error(f"{what} is numbered {layer.index}", offset)
    result = LayerRecords(layer)
    if layer.mixer_kind in (spec.MixerKind.STATE_SPACE, spec.MixerKind.DELTA_NET):
        kind = spec.MixerKind(layer.mixer_kind).name.lower()
        raise ColibriError(Code.UNSUPPORTED, f"{what} has a {kind} mixer", offset)
    if layer.mixer_kind != spec.MixerKind.NONE:
        mixer, offset = stream.take(_MIXERS[layer.mixer_kind], what)
        result.mixer = mixer
        if isinstance(mixer, AttentionBlock):
            if mixer.heads % mixer.kv_heads:
                raise _record_error(
                    f"{what}: {mixer.heads} heads are no multiple of {mixer.kv_heads} KV heads",
                    offset,
                )
            _check_rope(records, mixer.rope_table, mixer.head_dim, what, offset)
        elif isinstance(mixer, MlaBlock):
            _check_rope(records, mixer.rope_table, mixer.rope_dim, what, offset)
    if layer.ffn_kind == spec.FfnKind.DENSE:
        result.ffn, _ = stream.take(FfnBlock, what)
    elif layer.ffn_kind == spec.FfnKind.MOE:
        moe, offset = stream.take(MoeBlock, what)
        result.ffn = moe
        _check_moe(moe, what, offset)
        if isinstance(stream.block, SharedBlock):
            result.shared, _ = stream.take(SharedBlock, what)
    return result


def parse_records(data: bytes, base: int = 0) -> Records:
    """Parse and check the records section; `base` is its offset in the file."""
    stream = _Stream(data, base)
    model, _ = stream.take(ModelBlock, "the records section")
    records = Records(model)
    while isinstance(stream.block, RopeBlock):
        if len(records.ropes) == spec.MAX_ROPE_TABLES:
            raise ColibriError(Code.LIMIT, f"more than {spec.MAX_ROPE_TABLES} rope tables", stream.offset)
        records.ropes.append(stream.block)
        stream.advance()
    for index in range(model.layers):
        records.layers.append(_parse_layer(stream, records, index))
    if stream.block is not None:
        name = type(stream.block).__name__
        raise _record_error(f"{name} behind the last layer", stream.offset)
    return records
