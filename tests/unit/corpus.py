# SPDX-License-Identifier: MIT
"""The hostile corpus: for every rule of engine/spec/rules.toml, files that break that rule.

    PYTHONPATH=engine:tests/unit python tests/unit/corpus.py build/corpus

Hashes around a change are right again, as a hostile author would have them, so that the file reaches
the rule that it breaks. Files are named after the rule; both readers must give the rule's code.
"""

from __future__ import annotations

import math
import struct
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path

from colibri import _spec as spec
from colibri._spec import Code, DType, Layout, Role, TokenizerHeader
from forge import CALIBRATION, DIRECTORY, EXPERTS, PROVENANCE, RECORDS, SIGNATURE, TOKENIZER, TRUNK, Forge
from tiny_file import SHAPE, everything, mixers

RULES_FILE = Path(__file__).resolve().parents[2] / "engine" / "spec" / "rules.toml"
GLOBAL = 0xFFFFFFFF
Change = Callable[[Forge], None]


@cache
def rules() -> dict[str, Code]:
    """Rule id -> the code of a file that breaks it."""
    tables = tomllib.loads(RULES_FILE.read_text())
    return {f"{table}.{name}": Code[row[0].upper()] for table, rows in tables.items() for name, row in rows.items()}


@dataclass(frozen=True)
class Case:
    """A file that breaks a rule."""

    name: str  # RULE or RULE,VARIANT
    change: Change
    rehash: bool = True  # make chunk, extent and section hashes right
    reroot: bool = True
    good: Callable[[], bytes] = everything

    @property
    def rule(self) -> str:
        """Id in rules.toml."""
        return self.name.partition(",")[0]

    @property
    def code(self) -> Code:
        """What both readers must say."""
        return rules()[self.rule]

    def make(self) -> bytes:
        """The file."""
        forge = Forge(self.good())
        self.change(forge)
        if self.rehash:
            forge.rehash_weights()
        if self.reroot:
            forge.rehash_root()
        return bytes(forge.data)


# ---- changes -----------------------------------------------------------------------------------


def put(where: Callable[[Forge], int], layout: str, value: float) -> Change:
    """Write a value at a place."""

    def change(f: Forge) -> None:
        struct.pack_into("<" + layout, f.data, where(f), value)

    return change


def header(at: int, layout: str, value: int) -> Change:
    """A field of the header page."""
    return put(lambda f: at, layout, value)


def entry(kind: int, at: int, layout: str, value: int) -> Change:
    """A field of an entry of the section table."""
    return put(lambda f: f.section_entry(kind) + at, layout, value)


def record(block: str, name: str, value: float, number: int = 0) -> Change:
    """A field of a block."""
    cls = getattr(spec, block.capitalize() + "Block")
    at = 4 * [f.name for f in fields(cls)].index(name)
    return put(lambda f: f.block(block, number) + at, "f" if isinstance(value, float) else "I", value)


def block_head(block: str, at: int, layout: str, value: int, number: int = 0) -> Change:
    """A field of a block's head."""
    return put(lambda f: f.block(block, number) - 8 + at, layout, value)


def inside(kind: int, at: int, layout: str, value: int) -> Change:
    """A field of a section, counted from its start, or from its end when negative."""
    return put(lambda f: f.section(kind)[0] + at if at >= 0 else sum(f.section(kind)) + at, layout, value)


def extent(number: int, at: int, layout: str, value: int) -> Change:
    """A field of an extent entry."""
    return put(lambda f: f.extents()[number].at + at, layout, value)


def tensor(role: Role, at: int, layout: str, value: int, layer: int = GLOBAL) -> Change:
    """A field of a tensor entry."""
    return put(lambda f: f.tensor(role, layer).at + at, layout, value)


BLOCK_BYTES = {DType.INT4: spec.INT4_BLOCK_BYTES, DType.INT8: spec.INT8_BLOCK_BYTES}


def element(dtype: DType, columns: int, row: int, column: int) -> int:
    """Offset in a tensor of the byte that holds an element of a panel."""
    groups = -(-columns // 32)
    group, k = divmod(column, 32)
    if dtype in BLOCK_BYTES:
        within = k % 16 if dtype == DType.INT4 else k
        block = ((row // 8) * groups + group) * BLOCK_BYTES[dtype]
        return block + 32 * (within // 4) + 4 * (row % 8) + within % 4
    width = 4 if dtype == DType.F32 else 2
    return ((row // 8) * 32 * groups * 8 + column * 8 + row % 8) * width


def scale(dtype: DType, columns: int, row: int, group: int = 0) -> int:
    """Offset in a tensor of a row's scale."""
    groups = -(-columns // 32)
    block = (row // 8) * groups + group
    return (block + 1) * BLOCK_BYTES[dtype] - 16 + 2 * (row % 8)


def weight(role: Role, at: int, value: bytes, layer: int = GLOBAL, expert: int = GLOBAL) -> Change:
    """Bytes of a tensor's data."""

    def change(f: Forge) -> None:
        f.put(f.stored(role, layer, expert) + at, value)

    return change


def replace_section(kind: int, make: Callable[[bytes], bytes]) -> Change:
    """New contents of a section whose page has room for them."""

    def change(f: Forge) -> None:
        offset, size = f.section(kind)
        data = make(bytes(f.data[offset : offset + size]))
        assert len(data) <= size + -size % 4096
        f.put(offset, data + bytes(max(0, size - len(data))))
        f.u64(f.section_entry(kind) + 16, len(data))

    return change


HEAD = [f.name for f in fields(TokenizerHeader)]


def head(name: str, value: int) -> Change:
    """A field of the tokenizer's head."""
    return inside(TOKENIZER, 4 * HEAD.index(name), "I", value)


def token_array(name: str, index: int, value: int) -> Change:
    """A word of an array of the tokenizer."""

    def place(f: Forge) -> int:
        start = f.section(TOKENIZER)[0]
        counts = dict(zip(HEAD, struct.unpack_from(TokenizerHeader.STRUCT, f.data, start), strict=True))
        lengths = {"offsets": counts["tokens"] + 1, "merges": 4 * counts["merges"]}
        lengths |= {key: counts[key] for key in ("specials", "ends", "literals")}
        lengths["class_ranges"] = 2 * counts["class_ranges"]
        lengths |= {key: counts[key] for key in ("chat_prefix", "chat_suffix")}
        at = start + 64
        for key, length in lengths.items():
            if key == name:
                return at + 4 * index
            at += 4 * length
        return at + 4 * index  # by_text

    return put(place, "I", value)


def long_token(section: bytes) -> bytes:
    """The last token grows beyond the limit."""
    more = spec.MAX_TOKEN_BYTES
    out = bytearray(section + b"x" * more)
    tokens, text = struct.unpack_from("<I", section, 20)[0], struct.unpack_from("<I", section, 48)[0]
    struct.pack_into("<I", out, 48, text + more)
    struct.pack_into("<I", out, 64 + 4 * tokens, text + more)
    return bytes(out)


def grow(f: Forge) -> None:
    """A page of zeros behind the end."""
    f.data += bytes(4096)


def cut(size: int) -> Change:
    """The beginning of the file only."""

    def change(f: Forge) -> None:
        del f.data[size:]

    return change


def foreign_beginning(f: Forge) -> None:
    """Seven bytes that are not those of the magic."""
    f.data[:] = b"COLIBRx"


def grow_with_header(f: Forge) -> None:
    """A page more, and the header says so."""
    grow(f)
    f.u64(32, len(f.data))


def drop_block(f: Forge) -> None:
    """The first attention block is not there."""
    f.remove(RECORDS, f.block("attention") - 8, 8 + 4 * len(fields(spec.AttentionBlock)))


def add_block(kind: int, flags: int, payload: bytes = bytes(4)) -> Change:
    """A block in front of the first layer."""

    def change(f: Forge) -> None:
        f.insert(RECORDS, f.block("layer") - 8, struct.pack("<HHI", kind, flags, len(payload)) + payload)

    return change


def add_layer(f: Forge) -> None:
    """One more layer block at the end."""
    at = f.block("layer") - 8
    f.insert(RECORDS, sum(f.section(RECORDS)), bytes(f.data[at : at + 8 + 4 * len(fields(spec.LayerBlock))]))


def add_rope_tables(f: Forge) -> None:
    """One table more than the limit."""
    at = f.block("rope") - 8
    size = 8 + struct.unpack_from("<I", f.data, at + 4)[0]
    for _ in range(spec.MAX_ROPE_TABLES):
        f.insert(RECORDS, at, bytes(f.data[at : at + size]))


def cut_block_header(f: Forge) -> None:
    """Half a block header at the end."""
    f.insert(RECORDS, sum(f.section(RECORDS)), bytes(4))


def drop_tensor(f: Forge) -> None:
    """The last tensor entry is not there."""
    f.remove(DIRECTORY, f.tensors()[-1].at, 48)
    f.u32(f.section(DIRECTORY)[0] + 4, len(f.tensors()) - 1)


def stray_tensor(f: Forge) -> None:
    """A tensor of a layer that is not there."""
    last = f.tensors()[-1].at
    f.insert(DIRECTORY, last + 48, bytes(f.data[last : last + 48]))
    f.u32(f.section(DIRECTORY)[0] + 4, len(f.tensors()) + 1)
    f.u32(last + 48 + 4, 77)


def twice(f: Forge) -> None:
    """The last tensor entry stands twice."""
    stray_tensor(f)
    f.u32(f.tensors()[-1].at + 4, 1)


def drop_extent(f: Forge) -> None:
    """The last extent entry is not there."""
    f.remove(DIRECTORY, f.extents()[-1].at, 64)
    f.u32(f.section(DIRECTORY)[0], len(f.extents()) - 1)


def no_directory(f: Forge) -> None:
    """Half a directory header."""
    f.u64(f.section_entry(DIRECTORY) + 16, 8)


def wide_calibration(f: Forge) -> None:
    """A profile whose experts have more followers than allowed needs as many experts: the records say so."""
    experts = spec.MAX_CALIBRATION_FOLLOWERS + 1
    wide = Forge(everything(experts=experts))
    f.data[:] = wide.data


def gap(kind: int) -> Change:
    """A byte behind a section."""
    return put(lambda f: sum(f.section(kind)), "B", 1)


def flip(kind: int) -> Change:
    """A bit of a section."""

    def change(f: Forge) -> None:
        f.data[f.section(kind)[0] + 5] ^= 1

    return change


def both(*changes: Change) -> Change:
    """One change after another."""

    def change(f: Forge) -> None:
        for one in changes:
            one(f)

    return change


def two_sizes(f: Forge) -> None:
    """The second expert of a layer takes the pages of its table, and the next one gives its own up."""
    one, two = f.extents()[3], f.extents()[4]
    f.u64(one.at + 24, 0)
    f.u64(two.at + 16, one.offset)
    f.u64(two.at + 24, 12288)


def grow_with_section(f: Forge) -> None:
    """The last section gets a page more, which no extent covers."""
    offset = f.section(SIGNATURE)[0]
    page = bytes(f.data[offset : offset + 4096])
    f.data += page
    f.put(offset, bytes(4096))
    f.u64(f.section_entry(EXPERTS) + 16, f.section(EXPERTS)[1] + 4096)
    f.u64(f.section_entry(SIGNATURE) + 8, offset + 4096)
    f.u64(32, len(f.data))


def empty_trunk(f: Forge) -> None:
    """A layer's trunk without data; the next one takes its pages."""
    one, two = f.extents()[1], f.extents()[2]
    f.u64(one.at + 24, 0)
    f.u64(two.at + 16, one.offset)
    f.u64(two.at + 24, one.size + 4096 + two.size)


def no_provenance(f: Forge) -> None:
    """Its entry becomes that of a calibration, which ends where the gap in front of the trunk is."""
    f.drop_entry(CALIBRATION)
    f.u32(f.section_entry(PROVENANCE), CALIBRATION)


def two_ends(f: Forge) -> None:
    """One more end, which is the same id; the section is made longer at that place."""
    offset, size = f.section(TOKENIZER)
    data = bytearray(f.data[offset : offset + size])
    tokens, merges, specials = struct.unpack_from("<III", data, 20)
    at = 64 + 4 * (tokens + 1 + 4 * merges + specials)
    struct.pack_into("<I", data, 32, 2)
    data[at:at] = data[at : at + 4]
    replace_section(TOKENIZER, lambda _: bytes(data))(f)


def no_byte_tokens(f: Forge) -> None:
    """The tokenizer says that it is one of characters; it has no tokens of bytes, and the list by text goes."""
    offset, size = f.section(TOKENIZER)
    data = bytearray(f.data[offset : offset + size])
    values = dict(zip(HEAD, struct.unpack_from(TokenizerHeader.STRUCT, data), strict=True))
    listed = 4 * (values["tokens"] - values["specials"])
    end = size - values["text_bytes"]
    del data[end - listed : end]
    values |= {"kind": 2, "pretokenizer": 0, "flags": 4}
    struct.pack_into(TokenizerHeader.STRUCT, data, 0, *values.values())
    replace_section(TOKENIZER, lambda _: bytes(data))(f)


def characters(f: Forge) -> None:
    """A tokenizer of characters without the flag that they need."""
    head("kind", 2)(f)
    head("pretokenizer", 0)(f)


def o200k_with_a_sign(f: Forge) -> None:
    """A class that only the patterns of DeepSeek know."""
    head("pretokenizer", 5)(f)
    token_array("class_ranges", 0, 9 | 7 << 24)(f)


def signed_feature(f: Forge) -> None:
    """The feature says that there is no signature."""
    f.u64(24, 2)


F16_INF, F32_NAN, BF16_INF = b"\x00\x7c", b"\x00\x00\xc0\x7f", b"\x80\x7f"
C, V, INNER = SHAPE.hidden, SHAPE.vocabulary, SHAPE.intermediate
no_hash = partial(Case, rehash=False)
bare = partial(Case, rehash=False, reroot=False)

CASES = [
    bare("header.empty", cut(0)),
    bare("header.magic", header(0, "B", 0x44)),
    bare("header.magic,short", foreign_beginning),
    bare("header.short", cut(4095)),
    bare("header.short,within the magic", cut(7)),
    Case("header.version,0", header(8, "H", 0)),
    Case("header.version,next", header(8, "H", spec.VERSION_MAJOR + 1)),
    Case("header.size", header(12, "I", 8192)),
    Case("header.features", header(16, "Q", 1 << 40)),
    Case("header.file-limit", header(32, "Q", (1 << 62) + 4096)),
    Case("header.truncated", header(32, "Q", 1 << 30)),
    bare("header.truncated,cut", cut(100000)),
    Case("header.longer", grow),
    Case("header.sections,4", header(40, "I", 4)),
    Case("header.sections,17", header(40, "I", 17)),
    Case("header.chunk-size", header(44, "I", 4096)),
    Case("header.reserved", header(127, "B", 1)),
    bare("section.kind,0", entry(RECORDS, 0, "I", 0)),
    bare("section.kind,9", entry(SIGNATURE, 0, "I", 9)),
    bare("section.order", entry(PROVENANCE, 0, "I", RECORDS)),
    bare("section.order,twice", entry(PROVENANCE, 0, "I", TOKENIZER)),
    Case("section.flags", entry(TRUNK, 4, "I", 1)),
    Case("section.flags,reserved", entry(TRUNK, 24, "Q", 1)),
    bare("section.limit", entry(RECORDS, 16, "Q", spec.MAX_RECORDS_BYTES + 1)),
    bare("section.limit,provenance", entry(PROVENANCE, 16, "Q", spec.MAX_PROVENANCE_BYTES + 1)),
    bare("section.limit,tokenizer", entry(TOKENIZER, 16, "Q", spec.MAX_TOKENIZER_BYTES + 1)),
    no_hash("section.place", entry(EXPERTS, 8, "Q", 4097)),
    no_hash("section.place,early", entry(TRUNK, 8, "Q", 24576)),
    no_hash("section.inside", entry(EXPERTS, 16, "Q", 1 << 40)),
    no_hash("section.inside,wraps", entry(EXPERTS, 16, "Q", (1 << 62) - 4096)),
    no_hash("section.hash", entry(TRUNK, 32, "Q", 1)),
    no_hash("section.hash,signature", entry(SIGNATURE, 63, "B", 1)),
    Case("section.table-end", header(4095, "B", 1)),
    bare("section.mandatory", no_provenance),
    Case("section.file-end", grow_with_header),
    Case("root.hash", header(48, "B", 0x55), reroot=False),
    Case("root.hash,records", record("model", "hidden", 81), reroot=False),
    Case("root.hash,directory", inside(DIRECTORY, 8, "Q", 1), reroot=False),
    Case("root.hash,features", header(24, "Q", 7), reroot=False),
    Case("signature.feature", signed_feature),
    no_hash("signature.size", entry(SIGNATURE, 16, "Q", 167)),
    Case("signature.algorithm", inside(SIGNATURE, 0, "I", 2)),
    Case("signature.reserved", inside(SIGNATURE, 4, "I", 1)),
    Case("signature.checksum", inside(SIGNATURE, 80, "B", 0xFF)),
    Case("record.block-header", cut_block_header),
    Case("record.block-flags", add_block(99, 3)),
    Case("record.block-size", block_head("layer", 4, "I", 41)),
    Case("record.block-size,left", block_head("moe", 4, "I", 0xFFFFFFFC, 1)),
    Case("record.block-unknown", add_block(99, 0)),
    Case("record.block-reserved", add_block(10, 0)),
    Case("record.block-struct", block_head("layer", 4, "I", 36)),
    Case("record.order", drop_block),
    Case("record.order,layers", record("model", "layers", 3)),
    Case("record.rest", add_layer),
    Case("record.rope-tables", add_rope_tables),
    Case("record.rope-pairs", record("rope", "pairs", 5)),
    Case("record.float", record("model", "norm_eps", math.nan)),
    Case("record.float,infinite", record("moe", "routed_scale", math.inf)),
    Case("record.reserved", record("model", "reserved", 1)),
    Case("record.enum", record("model", "family", 1000)),
    Case("record.enum,norm places", record("layer", "norm_places", 16)),
    Case("record.enum,mixer", record("layer", "mixer_kind", 6)),
    Case("record.boolean", record("model", "tied_head", 2)),
    Case("record.low", record("model", "hidden", 0)),
    Case("record.low,top_k", record("moe", "top_k", 0)),
    Case("record.limit,hidden", record("model", "hidden", spec.MAX_HIDDEN + 1)),
    Case("record.limit,vocabulary", record("model", "vocabulary", 1 << 31)),
    Case("record.limit,layers", record("model", "layers", spec.MAX_LAYERS + 1)),
    Case("record.limit,context", record("model", "context_tokens", spec.MAX_CONTEXT_TOKENS + 1)),
    Case("record.limit,heads", record("attention", "heads", spec.MAX_HEADS + 1)),
    Case("record.limit,top_k", record("moe", "top_k", spec.MAX_TOP_K + 1)),
    Case("record.limit,experts", record("moe", "experts", spec.MAX_EXPERTS + 1)),
    Case("record.limit,intermediate", record("moe", "intermediate", spec.MAX_INTERMEDIATE + 1)),
    Case("record.inv-freq", put(lambda f: f.block("rope") + 16, "f", 1.5)),
    Case("record.inv-freq,not a number", put(lambda f: f.block("rope") + 16, "f", math.nan)),
    Case("record.layer-index", record("layer", "index", 5, 1)),
    Case("record.kv-heads", both(record("attention", "heads", 3), record("attention", "kv_heads", 2))),
    Case("record.rope-table", record("attention", "rope_table", 1)),
    Case("record.rope-width", record("attention", "head_dim", 7)),
    Case("record.top-k", record("moe", "top_k", 3)),
    Case("record.groups", record("moe", "groups", 3)),
    Case("record.groups-chosen", record("moe", "groups_chosen", 1)),
    Case("record.groups-chosen,few", both(record("moe", "groups", 2), record("moe", "groups_chosen", 1))),
    Case("record.mixer-reserved", record("layer", "mixer_kind", 4)),
    no_hash("directory.header", no_directory),
    no_hash("directory.limit", inside(DIRECTORY, 4, "I", spec.MAX_TENSORS + 1)),
    no_hash("directory.limit,extents", inside(DIRECTORY, 0, "I", spec.MAX_EXTENTS + 1)),
    Case("directory.reserved", inside(DIRECTORY, 8, "Q", 1)),
    no_hash("directory.size", inside(DIRECTORY, 4, "I", 10)),
    no_hash("extent.count", drop_extent),
    Case("extent.key,kind", extent(0, 0, "I", 2)),
    Case("extent.key,layer", extent(1, 4, "I", 1)),
    Case("extent.key,expert", extent(3, 8, "I", 1)),
    Case("extent.reserved", extent(1, 12, "I", 1)),
    no_hash("extent.place,overlap", extent(2, 16, "Q", 65536)),
    no_hash("extent.place,gap", lambda f: f.u64(f.extents()[2].at + 16, f.extents()[2].offset + 4096)),
    no_hash("extent.multiple", extent(1, 24, "Q", 4097)),
    no_hash("extent.inside", extent(1, 24, "Q", 1 << 40)),
    no_hash("extent.inside,wraps", extent(1, 24, "Q", (1 << 64) - 4096)),
    no_hash("extent.table", extent(6, 24, "Q", 8192)),
    no_hash("extent.siblings", two_sizes),
    no_hash("extent.section-end", grow_with_section),
    no_hash("extent.size", empty_trunk),
    Case("tensor.order", tensor(Role.HEAD, 0, "I", Role.EMBEDDING)),
    Case("tensor.role", tensor(Role.HEAD, 0, "I", 6)),
    Case("tensor.role,beyond all ids", tensor(Role.HEAD, 0, "I", 0xFFFFFFFF)),
    Case("tensor.order,twice", twice),
    Case("tensor.dtype", tensor(Role.HEAD, 8, "I", 6)),
    Case("tensor.layout", tensor(Role.HEAD, 12, "I", Layout.ROWS)),
    Case("tensor.shape,rows", tensor(Role.HEAD, 16, "I", V + 1)),
    Case("tensor.shape,columns", tensor(Role.HEAD, 20, "I", C + 1)),
    Case("tensor.rows-f32", tensor(Role.FINAL_NORM, 8, "I", DType.F16)),
    Case("tensor.place,overlap", tensor(Role.HEAD, 24, "Q", 0)),
    Case("tensor.place,gap", lambda f: f.u64(f.tensor(Role.HEAD).at + 24, f.tensor(Role.HEAD).offset + 64)),
    Case("tensor.place,wraps", tensor(Role.HEAD, 24, "Q", (1 << 64) - 64)),
    Case("tensor.size", tensor(Role.HEAD, 32, "Q", 64)),
    Case("tensor.reserved", tensor(Role.HEAD, 44, "I", 1)),
    Case("tensor.missing", drop_tensor),
    Case("tensor.missing,layer", tensor(Role.Q, 4, "I", 1, 0)),
    Case("tensor.missing,scope", tensor(Role.HEAD, 40, "I", 2)),
    Case("tensor.stray", stray_tensor),
    Case("features.used,latent attention", header(16, "Q", 1)),
    Case("features.used,dtypes", header(16, "Q", 8)),
    *(Case(f"features.used,without {bit}", header(16, "Q", 0b10011 & ~bit), good=mixers) for bit in (1, 2, 16)),
    Case("features.used,state space", header(16, "Q", 0b10111), good=mixers),
    Case("padding.sections,records", gap(RECORDS)),
    Case("padding.sections,provenance", gap(PROVENANCE)),
    Case("padding.sections,end", put(lambda f: len(f.data) - 1, "B", 1)),
    Case("padding.chunk-table", put(lambda f: f.extents()[0].offset + f.extents()[0].size + 4095, "B", 1)),
    Case("padding.columns,f32", weight(Role.FINAL_NORM, C * 4, b"\x01")),
    Case("padding.columns,f16", weight(Role.Q, element(DType.F16, C, 1, C), b"\x01", 0)),
    Case("padding.columns,int8", weight(Role.HEAD, element(DType.INT8, C, 0, C), b"\x01")),
    Case("padding.columns,int4", weight(Role.EXPERT_GATE, element(DType.INT4, C, 0, 31), b"\x98", 0, 0)),
    Case("padding.rows,bf16", weight(Role.EMBEDDING, element(DType.BF16, C, V, 3), b"\x01")),
    Case("padding.rows,int8", weight(Role.HEAD, element(DType.INT8, C, V, 3), b"\x01")),
    Case("padding.rows,int8 scale", weight(Role.HEAD, scale(DType.INT8, C, V), b"\x01")),
    Case("padding.rows,int4", weight(Role.EXPERT_UP, element(DType.INT4, C, INNER, 0), b"\x89", 1, 1)),
    Case("padding.rows,int4 scale", weight(Role.EXPERT_UP, scale(DType.INT4, C, INNER), b"\x01", 1, 1)),
    Case("padding.rows,f32", weight(Role.ROUTER, element(DType.F32, C, 2, 0), b"\x01", 0)),
    Case("padding.tensors", put(lambda f: f.extents()[1].offset + f.extents()[1].size - 1, "B", 1)),
    Case("padding.tensors,between", put(lambda f: f.stored(Role.EXPERT_UP, 0, 0) - 1, "B", 1)),
    Case("hash.section,tokenizer", flip(TOKENIZER), rehash=False),
    Case("hash.section,provenance", flip(PROVENANCE), rehash=False),
    Case("hash.section,calibration", flip(CALIBRATION), rehash=False),
    no_hash("hash.extent", extent(3, 32, "Q", 1)),
    no_hash("hash.extent,table", put(lambda f: f.extents()[0].offset + f.extents()[0].size, "H", 0x3231)),
    no_hash("hash.chunk,embedding", weight(Role.EMBEDDING, 70, b"\x01\x02")),
    no_hash("hash.chunk,expert", weight(Role.EXPERT_UP, 5, b"\x7e", 1, 1)),
    Case("weights.scale,int8", weight(Role.HEAD, scale(DType.INT8, C, V - 1), F16_INF)),
    Case("weights.scale,int4", weight(Role.EXPERT_DOWN, scale(DType.INT4, INNER, C - 1), F16_INF, 1, 1)),
    Case("weights.float,f16", weight(Role.Q, element(DType.F16, C, 3, 3), F16_INF, 0)),
    Case("weights.float,bf16", weight(Role.EMBEDDING, element(DType.BF16, C, 3, 3), BF16_INF)),
    Case("weights.float,f32", weight(Role.FINAL_NORM, 4, F32_NAN)),
    Case("tokenizer.head", replace_section(TOKENIZER, lambda data: data[:60])),
    Case("tokenizer.kind", head("kind", 99)),
    Case("tokenizer.kind-built", head("kind", 3)),
    Case("tokenizer.pretokenizer", head("pretokenizer", 99)),
    Case("tokenizer.pretokenizer-built", head("kind", 2)),
    Case("tokenizer.normalizer", head("normalizer", 99)),
    Case("tokenizer.normalizer-built", head("normalizer", 1)),
    Case("tokenizer.flags", head("flags", 1 << 31)),
    Case("tokenizer.flags-built", head("flags", 4)),
    Case("tokenizer.flags-built,characters", characters),
    Case("tokenizer.no-tokens", head("tokens", 0)),
    Case("tokenizer.tokens-limit", head("tokens", 0xFFFFFFF0)),
    Case("tokenizer.vocabulary", head("tokens", V + 1)),
    Case("tokenizer.counts,specials", head("specials", V)),
    Case("tokenizer.counts,literals", head("literals", V)),
    Case("tokenizer.size", head("merges", 3)),
    Case("tokenizer.size,text", head("text_bytes", 0xFFFFFFFF)),
    Case("tokenizer.offset-first", token_array("offsets", 0, 1)),
    Case("tokenizer.offset-order", token_array("offsets", 2, 1)),
    Case("tokenizer.token-limit", replace_section(TOKENIZER, long_token)),
    Case("tokenizer.offset-last", token_array("offsets", 13, 23)),
    Case("tokenizer.special-range", token_array("specials", 1, 13)),
    Case("tokenizer.special-order", token_array("specials", 1, 0)),
    Case("tokenizer.end-range", token_array("ends", 0, 13)),
    Case("tokenizer.end-order", two_ends),
    Case("tokenizer.literal,range", token_array("literals", 0, 13)),
    Case("tokenizer.literal,special", token_array("literals", 0, 0)),
    Case("tokenizer.literal,empty", token_array("literals", 0, 11)),
    Case("tokenizer.literal-order", token_array("literals", 0, 12)),
    Case("tokenizer.bos", head("bos_id", 13)),
    Case("tokenizer.unk", head("unk_id", 13)),
    Case("tokenizer.add-bos", head("bos_id", spec.NONE_INDEX)),
    Case("tokenizer.byte-tokens", no_byte_tokens),
    Case("tokenizer.class-kind", token_array("class_ranges", 0, 9 | 5 << 24)),
    Case("tokenizer.class-kind,other", token_array("class_ranges", 0, 9)),
    Case("tokenizer.class-kind,o200k", o200k_with_a_sign),
    Case("tokenizer.class-kind,large", token_array("class_ranges", 0, 9 | 35 << 24)),
    Case("tokenizer.class-range", token_array("class_ranges", 7, spec.MAX_CODE_POINT + 1)),
    Case("tokenizer.class-order", token_array("class_ranges", 2, 10 | 3 << 24)),
    Case("tokenizer.chat-prefix", token_array("chat_prefix", 1, 13)),
    Case("tokenizer.chat-suffix", token_array("chat_suffix", 0, 13)),
    Case("tokenizer.merge-range", token_array("merges", 0, 13)),
    Case("tokenizer.merge-rank", token_array("merges", 2, 2)),
    Case("tokenizer.merge-order", token_array("merges", 4, 1)),
    Case("tokenizer.merge-special", token_array("merges", 3, 0)),
    Case("tokenizer.merge-bytes", token_array("merges", 3, 9)),
    Case("tokenizer.by-text", token_array("by_text", 0, 0)),
    Case("tokenizer.by-text-order", token_array("by_text", 1, 9)),
    Case("calibration.head", replace_section(CALIBRATION, lambda data: data[:12])),
    Case("calibration.tokens", inside(CALIBRATION, 4, "I", 0)),
    Case("calibration.reserved", inside(CALIBRATION, 12, "I", 1)),
    Case("calibration.layers", inside(CALIBRATION, 0, "I", 3)),
    Case("calibration.layer", inside(CALIBRATION, 20, "I", 3)),
    Case("calibration.total", inside(CALIBRATION, 8, "I", 5)),
    Case("calibration.size", replace_section(CALIBRATION, lambda data: data + bytes(4))),
    Case("calibration.count", inside(CALIBRATION, 48, "I", 8)),
    Case("calibration.sum", inside(CALIBRATION, 48, "I", 6)),
    Case("calibration.last-layer", both(inside(CALIBRATION, 28, "I", 3), inside(CALIBRATION, 44, "I", 1))),
    Case("calibration.expert", inside(CALIBRATION, 88, "I", 2 << 16)),
    Case("calibration.following", inside(CALIBRATION, 88, "I", 1 << 16 | 2)),
    Case("calibration.order", inside(CALIBRATION, 72, "I", 0)),
    Case("calibration.run", wide_calibration),
    Case("calibration.pair-count", inside(CALIBRATION, 68, "I", 8)),
    Case("calibration.pair-count,0", inside(CALIBRATION, 68, "I", 0)),
]


def write(folder: Path) -> int:
    """Write the corpus: one file per case, and the good file; how many."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.colibri"):
        old.unlink()
    (folder / "good.colibri").write_bytes(everything())
    for case in CASES:
        name = case.name.replace(",", "-").replace(" ", "-")
        (folder / f"{name}.colibri").write_bytes(case.make())
    return len(CASES)


if __name__ == "__main__":
    print(f"{write(Path(sys.argv[1]))} files in {sys.argv[1]}, each named for the rule that it breaks")
