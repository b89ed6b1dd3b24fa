# SPDX-License-Identifier: MIT
"""Reader of the .colibri container (docs/format.md 2, 4 and 5); `colibri.writer` writes it.

Standard library only. The reader checks in the order of the document: header page, section
table, root hash, records, directory, padding; the weights are looked at only when they are
read or when `ModelFile.verify` is called.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from colibri import _spec as spec
from colibri._spec import Code, DType, ExtentKind, Layout, Role, Scope, Section
from colibri.calibration import Profile, decode_profile
from colibri.errors import ColibriError
from colibri.files import open_regular
from colibri.records import (
    Records,
    Shape,
    chunk_table_bytes,
    extent_keys,
    parse_records,
    required_features,
    required_tensors,
    round_up,
    tensor_bytes,
)
from colibri.signature import read_signature
from colibri.weights import check_weights

HEADER = struct.Struct("<8sHHIQQQII32s48s")
_SECTION = struct.Struct("<IIQQQ32s")
_DIRECTORY = struct.Struct("<IIQ")
_EXTENT = struct.Struct("<IIIIQQ32s")
_TENSOR = struct.Struct("<IIIIIIQQII")
NO_HASH = bytes(spec.HASH_BYTES)

SECTION_LIMITS = {
    Section.RECORDS: spec.MAX_RECORDS_BYTES,
    Section.DIRECTORY: spec.DIRECTORY_HEADER_BYTES
    + spec.MAX_EXTENTS * spec.EXTENT_ENTRY_BYTES
    + spec.MAX_TENSORS * spec.TENSOR_ENTRY_BYTES,
    Section.TOKENIZER: spec.MAX_TOKENIZER_BYTES,
    Section.PROVENANCE: spec.MAX_PROVENANCE_BYTES,
    Section.CALIBRATION: spec.MAX_CALIBRATION_BYTES,
    Section.SIGNATURE: spec.MAX_SIGNATURE_BYTES,
}
_MANDATORY = (
    Section.RECORDS,
    Section.DIRECTORY,
    Section.PROVENANCE,
    Section.TRUNK,
    Section.EXPERTS,
)
HASHED_SECTIONS = (Section.TOKENIZER, Section.PROVENANCE, Section.CALIBRATION)


def _none(index: int) -> int | None:
    return None if index == spec.NONE_INDEX else index


def _index(value: int | None) -> int:
    return spec.NONE_INDEX if value is None else value


def section_align(kind: Section) -> int:
    """Alignment of a section in the file."""
    return spec.TRUNK_ALIGN_BYTES if kind == Section.TRUNK else spec.SECTION_ALIGN_BYTES


def sha256(*parts: bytes) -> bytes:
    """SHA-256 of the parts, one after another."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()


def chunk_hashes(data: bytes) -> list[bytes]:
    """SHA-256 of each chunk of `data`, counted from its start."""
    view = memoryview(data)
    step = spec.CHUNK_BYTES
    return [hashlib.sha256(view[i : i + step]).digest() for i in range(0, len(data), step)]


@dataclass(frozen=True)
class SectionEntry:
    """One line of the section table."""

    kind: Section
    offset: int
    size: int
    hash: bytes


@dataclass(frozen=True)
class ExtentEntry:
    """`size` bytes of data at `offset`, its chunk table directly behind it."""

    kind: ExtentKind
    layer: int | None
    expert: int | None
    offset: int
    size: int
    hash: bytes = NO_HASH

    @property
    def table_bytes(self) -> int:
        """Bytes of the chunk table, padding included."""
        return chunk_table_bytes(self.size)

    @property
    def name(self) -> str:
        """For messages: `trunk`, `layer 3`, `layer 3 expert 1`."""
        if self.layer is None:
            return "global trunk"
        return f"layer {self.layer}" + ("" if self.expert is None else f" expert {self.expert}")


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of an extent, or (scope expert) of every expert extent of its layer."""

    role: Role
    layer: int | None
    dtype: DType
    layout: Layout
    rows: int
    columns: int
    offset: int
    size: int
    scope: Scope

    @property
    def name(self) -> str:
        """For messages: `layer 3 expert_gate`."""
        where = "global" if self.layer is None else f"layer {self.layer}"
        return f"{where} {self.role.name.lower()}"


@dataclass
class VerifyReport:
    """What `ModelFile.verify` looked at."""

    chunks: int = 0
    hashed_bytes: int = 0
    tensors: int = 0


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _names_its_file(
    method: Callable[Concatenate[ModelFile, _P], _T],
) -> Callable[Concatenate[ModelFile, _P], _T]:
    """Have the errors of a method of `ModelFile` say which file it read."""

    @functools.wraps(method)
    def call(model: ModelFile, /, *args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return method(model, *args, **named)
        except ColibriError as error:
            error.file = error.file or model.path
            raise

    return call


def encode_section(entry: SectionEntry) -> bytes:
    """One entry of the section table."""
    return _SECTION.pack(entry.kind, 0, entry.offset, entry.size, 0, entry.hash)


def encode_directory(extents: list[ExtentEntry], tensors: list[TensorEntry]) -> bytes:
    """The directory section."""
    parts = [_DIRECTORY.pack(len(extents), len(tensors), 0)]
    parts += [_EXTENT.pack(e.kind, _index(e.layer), _index(e.expert), 0, e.offset, e.size, e.hash) for e in extents]
    parts += [
        _TENSOR.pack(
            t.role,
            _index(t.layer),
            t.dtype,
            t.layout,
            t.rows,
            t.columns,
            t.offset,
            t.size,
            t.scope,
            0,
        )
        for t in tensors
    ]
    return b"".join(parts)


def tensor_groups(records: Records) -> Iterator[tuple[Scope, int | None]]:
    """(scope, layer) of every group of tensor entries, in directory order."""
    yield Scope.TRUNK, None
    for index in range(len(records.layers)):
        yield Scope.TRUNK, index
    for index, layer in enumerate(records.layers):
        if layer.experts:
            yield Scope.EXPERT, index


# --------------------------------------------------------------------------- reading


class ModelFile:
    """An open, validated `.colibri` file; `open_model` makes it. Weights are read on demand."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._tables: dict[int, bytes] = {}
        self.file_bytes = os.fstat(descriptor).st_size
        self.version = (0, 0)
        self.required_features = 0
        self.optional_features = 0
        self.root = b""
        self.sections: dict[Section, SectionEntry] = {}
        self.extents: list[ExtentEntry] = []
        self.tensors: list[TensorEntry] = []
        page = self._read_header()
        records, directory = (
            self._read(self.sections[kind].offset, self.sections[kind].size)
            for kind in (Section.RECORDS, Section.DIRECTORY)
        )
        blank = page[: spec.ROOT_OFFSET] + NO_HASH + page[spec.ROOT_OFFSET + spec.HASH_BYTES :]
        if sha256(blank, records, directory) != self.root:
            raise ColibriError(
                Code.ROOT_MISMATCH,
                f"{path}: header, records and directory do not hash to {self.root.hex()}",
                spec.ROOT_OFFSET,
            )
        signature = self.sections.get(Section.SIGNATURE)
        place = None if signature is None else (signature.offset, signature.size)
        self.signature = read_signature(self.optional_features, place, self._read)
        self.records = parse_records(records, self.sections[Section.RECORDS].offset)
        self._read_directory(directory)
        used = required_features(self.records, {tensor.dtype for tensor in self.tensors})
        if self.required_features != used:
            raise ColibriError(
                Code.FEATURE, f"required features {self.required_features:#x}, must be {used:#x}", 16
            )
        self._check_padding()
        self._extent_of = {(e.layer, e.expert): e for e in self.extents}
        self._tensor_of = {(t.scope, t.layer, t.role): t for t in self.tensors}

    def close(self) -> None:
        """Close the file; the tables stay readable."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, offset: int, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = os.pread(self._descriptor, min(size, 1 << 30), offset)
            except OSError as error:
                raise ColibriError(Code.IO, f"{self.path}: {error.strerror}", offset) from error
            if not part:
                raise ColibriError(Code.IO, f"{self.path} became shorter while read", offset)
            parts.append(part)
            offset += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_header(self) -> bytes:
        size = self.file_bytes
        if size == 0:
            raise ColibriError(Code.EMPTY, f"{self.path}", 0)
        page = self._read(0, min(size, spec.HEADER_BYTES))
        if page[:8] != spec.MAGIC[: len(page)]:
            raise ColibriError(Code.BAD_MAGIC, f"{self.path} begins with {page[:8].hex()}, not the magic", 0)
        if size < spec.HEADER_BYTES:
            need = spec.HEADER_BYTES
            raise ColibriError(Code.TRUNCATED, f"{self.path} has {size} bytes, the header page {need}", size)
        (_, major, minor, header, required, optional, said, count, chunk, root, rest) = HEADER.unpack_from(page)
        self.version = (major, minor)
        self.required_features, self.optional_features, self.root = required, optional, root
        if not spec.VERSION_OLDEST <= major <= spec.VERSION_MAJOR:
            raise ColibriError(
                Code.VERSION,
                f"format version {major}.{minor}, this reads {spec.VERSION_OLDEST}..{spec.VERSION_MAJOR}; "
                "convert the model again or update the package",
                8,
            )
        if header != spec.HEADER_BYTES:
            raise ColibriError(Code.HEADER, f"header size {header}, must be {spec.HEADER_BYTES}", 12)
        if required & ~spec.REQUIRED_KNOWN:
            unknown = required & ~spec.REQUIRED_KNOWN
            raise ColibriError(Code.FEATURE, f"unknown required feature bits {unknown:#x}", 16)
        if said > spec.MAX_FILE_BYTES:
            raise ColibriError(Code.LIMIT, f"file size {said}, limit {spec.MAX_FILE_BYTES}", 32)
        if said > size:
            raise ColibriError(Code.TRUNCATED, f"the header says {said} bytes, there are {size}", 32)
        if said < size:
            raise ColibriError(Code.HEADER, f"the header says {said} bytes, there are {size}", 32)
        if not spec.MIN_SECTIONS <= count <= spec.MAX_SECTIONS:
            raise ColibriError(Code.SECTION, f"{count} sections, must be {spec.MIN_SECTIONS}..{spec.MAX_SECTIONS}", 40)
        if chunk != spec.CHUNK_BYTES:
            raise ColibriError(Code.HEADER, f"chunk size {chunk}, must be {spec.CHUNK_BYTES}", 44)
        if any(rest):
            raise ColibriError(Code.HEADER, "reserved bytes of the header are not zero", spec.HEADER_RESERVED_OFFSET)
        self._read_sections(page, count)
        return page

    def _read_sections(self, page: bytes, count: int) -> None:
        last_kind, end = 0, spec.HEADER_BYTES
        for i in range(count):
            where = spec.SECTION_TABLE_OFFSET + i * spec.SECTION_ENTRY_BYTES

            def error(message: str, where: int = where) -> ColibriError:
                return ColibriError(Code.SECTION, message, where)

            kind, flags, offset, size, reserved, digest = _SECTION.unpack_from(page, where)
            if kind not in set(Section):
                raise error(f"section kind {kind} is unknown")
            if kind <= last_kind:
                raise error(f"section kind {kind} behind {last_kind}, kinds ascend")
            last_kind, section = kind, Section(kind)
            name = section.name.lower()
            if flags or reserved:
                raise error(f"flags or reserved field of section {name} are not zero")
            limit = SECTION_LIMITS.get(section, spec.MAX_FILE_BYTES)
            if size > limit:
                raise ColibriError(Code.LIMIT, f"section {name} has {size} bytes, limit {limit}", where)
            expected = round_up(end, section_align(section))
            if offset != expected:
                raise error(f"section {name} is at {offset}, must be at {expected}")
            if offset > self.file_bytes or size > self.file_bytes - offset:
                raise error(f"section {name} ends behind the file")
            if section not in HASHED_SECTIONS and digest != NO_HASH:
                raise error(f"section {name} carries a hash, must be zero")
            self.sections[section] = SectionEntry(section, offset, size, digest)
            end = offset + size
        rest = spec.SECTION_TABLE_OFFSET + count * spec.SECTION_ENTRY_BYTES
        if any(page[rest:]):
            raise ColibriError(Code.HEADER, "bytes behind the section table are not zero", rest)
        missing = [kind.name.lower() for kind in _MANDATORY if kind not in self.sections]
        if missing:
            raise ColibriError(Code.SECTION, f"no section {missing[0]}", spec.SECTION_TABLE_OFFSET)
        if round_up(end, spec.SECTION_ALIGN_BYTES) != self.file_bytes:
            raise ColibriError(
                Code.SECTION,
                f"the file has {self.file_bytes} bytes, its sections end at {end}",
                spec.SECTION_TABLE_OFFSET,
            )

    def _read_directory(self, data: bytes) -> None:
        base = self.sections[Section.DIRECTORY].offset
        if len(data) < spec.DIRECTORY_HEADER_BYTES:
            need = spec.DIRECTORY_HEADER_BYTES
            raise ColibriError(Code.DIRECTORY, f"{len(data)} bytes, its header needs {need}", base)
        extents, tensors, reserved = _DIRECTORY.unpack_from(data)
        for count, limit, what in (
            (extents, spec.MAX_EXTENTS, "extents"),
            (tensors, spec.MAX_TENSORS, "tensors"),
        ):
            if count > limit:
                raise ColibriError(Code.LIMIT, f"{count} {what}, limit {limit}", base)
        if reserved:
            raise ColibriError(Code.DIRECTORY, "reserved field is not zero", base + 8)
        tensor_base = spec.DIRECTORY_HEADER_BYTES + extents * spec.EXTENT_ENTRY_BYTES
        expected = tensor_base + tensors * spec.TENSOR_ENTRY_BYTES
        if len(data) != expected:
            raise ColibriError(Code.DIRECTORY, f"{len(data)} bytes, its counts need {expected}", base)
        self._read_extents(data, base, extents)
        self._read_tensors(data, base, tensor_base, tensors)

    def _read_extents(self, data: bytes, base: int, count: int) -> None:
        layers = self.records.layers
        wanted = 1 + len(layers) + sum(layer.experts for layer in layers)
        if count != wanted:  # before anything is made per extent: few records can ask for many
            raise ColibriError(Code.EXTENT, f"{count} extents, the records ask for {wanted}", base)
        ends = {}
        for section in (self.sections[Section.TRUNK], self.sections[Section.EXPERTS]):
            ends[section.kind] = [section.offset, section.offset + section.size]
        sizes: dict[int | None, int] = {}
        for i, (kind, layer, expert) in enumerate(extent_keys(self.records)):
            where = spec.DIRECTORY_HEADER_BYTES + i * spec.EXTENT_ENTRY_BYTES
            found = _EXTENT.unpack_from(data, where)
            where += base
            if found[:4] != (kind, _index(layer), _index(expert), 0):
                raise ColibriError(
                    Code.EXTENT,
                    f"extent {i} is kind, layer, expert, reserved {found[:4]}, "
                    f"must be {(int(kind), _index(layer), _index(expert), 0)}",
                    where,
                )
            entry = ExtentEntry(kind, layer, expert, found[4], found[5], found[6])
            section_kind = Section.TRUNK if kind == ExtentKind.TRUNK else Section.EXPERTS
            cursor = ends[section_kind]
            left = cursor[1] - cursor[0]
            if entry.offset != cursor[0]:
                odd = entry.offset % spec.EXTENT_ALIGN_BYTES
                text = f"weight chunk offset misaligned: {entry.offset:#x}; " if odd else ""
                raise ColibriError(
                    Code.EXTENT, f"{text}{entry.name} is at {entry.offset}, must be at {cursor[0]}", where
                )
            if entry.size % spec.EXTENT_ALIGN_BYTES or entry.size > left:
                raise ColibriError(
                    Code.EXTENT,
                    f"{entry.name} has {entry.size} bytes, must be a multiple of {spec.EXTENT_ALIGN_BYTES} "
                    f"and at most {left}",
                    where,
                )
            if entry.table_bytes > left - entry.size:
                raise ColibriError(Code.EXTENT, f"no room for the hashes of {entry.name}", where)
            if kind == ExtentKind.EXPERT and sizes.setdefault(layer, entry.size) != entry.size:
                raise ColibriError(
                    Code.EXTENT,
                    f"{entry.name} has {entry.size} bytes, its siblings {sizes[layer]}",
                    where,
                )
            cursor[0] += entry.size + entry.table_bytes
            self.extents.append(entry)
        for section_kind, (at, end) in ends.items():
            if at != end:
                raise ColibriError(
                    Code.EXTENT,
                    f"extents of section {section_kind.name.lower()} end at {at}, the section at {end}",
                    base,
                )

    def _read_tensors(self, data: bytes, base: int, start: int, count: int) -> None:
        sizes = {(e.layer, e.kind): e.size for e in self.extents}
        i = 0
        for scope, layer in tensor_groups(self.records):
            wanted = required_tensors(self.records, scope, layer)
            missing = dict(wanted)
            end = next_role = 0
            while i < count:
                where = start + i * spec.TENSOR_ENTRY_BYTES
                found = _TENSOR.unpack_from(data, where)
                if (found[8], found[1]) != (scope, _index(layer)):
                    break
                if found[0] < next_role:
                    group = "global" if layer is None else f"layer {layer}"
                    raise ColibriError(
                        Code.TENSOR,
                        f"{group}: role {found[0]} stands behind role {next_role - 1}; roles ascend",
                        base + where,
                    )
                next_role = found[0] + 1
                entry = self._tensor(found, wanted, base + where)
                expected = round_up(end, spec.TENSOR_ALIGN_BYTES)
                if entry.offset != expected:
                    raise ColibriError(
                        Code.TENSOR,
                        f"{entry.name} is at {entry.offset}, must be at {expected}",
                        base + where,
                    )
                end = entry.offset + entry.size
                del missing[entry.role]
                self.tensors.append(entry)
                i += 1
            where = base + start + i * spec.TENSOR_ENTRY_BYTES
            group = "global" if layer is None else f"layer {layer}"
            if missing:
                role = next(iter(missing)).name.lower()
                raise ColibriError(Code.MISSING_TENSOR, f"{group} has no {role}", where)
            kind = ExtentKind.TRUNK if scope == Scope.TRUNK else ExtentKind.EXPERT
            if round_up(end, spec.EXTENT_ALIGN_BYTES) != sizes[layer, kind]:
                raise ColibriError(
                    Code.EXTENT,
                    f"{kind.name.lower()} extent of {group} has {sizes[layer, kind]} bytes, its tensors end at {end}",
                    where,
                )
        if i != count:
            where = base + start + i * spec.TENSOR_ENTRY_BYTES
            raise ColibriError(Code.TENSOR, f"tensor entry {i} belongs to no extent", where)

    def _tensor(
        self,
        found: tuple[int, ...],
        wanted: dict[Role, Shape],
        where: int,
    ) -> TensorEntry:
        role, layer, dtype, layout, rows, columns, offset, size, scope, reserved = found
        group = "global" if layer == spec.NONE_INDEX else f"layer {layer}"

        def error(message: str) -> ColibriError:
            return ColibriError(Code.TENSOR, f"{group}: {message}", where)

        if role not in set(Role) or Role(role) not in wanted:
            raise error(f"role {role} is not one the records ask for")
        shape = wanted[Role(role)]
        name = Role(role).name.lower()
        if (rows, columns) != (shape.rows, shape.columns):
            raise error(f"{name} is {rows} x {columns}, must be {shape.rows} x {shape.columns}")
        if layout != shape.layout or dtype not in set(DType):
            raise error(f"{name} has dtype {dtype} in layout {layout}")
        if layout == Layout.ROWS and dtype != DType.F32:
            raise error(f"{name} has dtype {dtype}, must be f32")
        expected = tensor_bytes(DType(dtype), Layout(layout), rows, columns)
        if size != expected:
            raise error(f"{name} has {size} bytes, must have {expected}")
        if reserved:
            raise error(f"reserved field of {name} is not zero")
        return TensorEntry(
            Role(role),
            _none(layer),
            DType(dtype),
            Layout(layout),
            rows,
            columns,
            offset,
            size,
            Scope(scope),
        )

    def _check_padding(self) -> None:
        ordered = list(self.sections.values())
        ends = [section.offset for section in ordered[1:]] + [self.file_bytes]
        for section, end in zip(ordered, ends, strict=True):
            start = section.offset + section.size
            if any(self._read(start, end - start)):
                raise ColibriError(Code.PADDING, f"bytes behind section {section.kind.name.lower()}", start)

    # ----------------------------------------------------------------- access

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer section."""
        return Section.TOKENIZER in self.sections

    @_names_its_file
    def section_bytes(self, kind: Section) -> bytes:
        """Contents of a section without padding, verified where the section has a hash."""
        if kind not in self.sections:
            raise ColibriError(Code.SECTION, f"{self.path} has no section {kind.name.lower()}")
        section = self.sections[kind]
        data = self._read(section.offset, section.size)
        if kind in HASHED_SECTIONS and sha256(*chunk_hashes(data)) != section.hash:
            raise ColibriError(
                Code.CHUNK_MISMATCH,
                f"section {kind.name.lower()} does not hash to {section.hash.hex()}",
                section.offset,
            )
        return data

    def tokenizer_bytes(self) -> bytes | None:
        """The tokenizer section, or None."""
        return self.section_bytes(Section.TOKENIZER) if self.has_tokenizer else None

    def provenance(self) -> dict[str, Any]:
        """Where the weights come from: the JSON object of the provenance section."""
        data = self.section_bytes(Section.PROVENANCE)
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ColibriError(
                Code.SECTION,
                f"provenance is not JSON: {error}",
                self.sections[Section.PROVENANCE].offset,
            ) from error
        return value if isinstance(value, dict) else {"value": value}

    @_names_its_file
    def calibration(self) -> Profile | None:
        """How experts were used on a text, or None where the file does not say."""
        if Section.CALIBRATION not in self.sections:
            return None
        data = self.section_bytes(Section.CALIBRATION)
        return decode_profile(data, self.records, self.sections[Section.CALIBRATION].offset)

    def extent(self, layer: int | None, expert: int | None = None) -> ExtentEntry:
        """The trunk extent of `layer` (None = global), or that of one expert."""
        return self._extent_of[layer, expert]

    def tensor(self, role: Role, layer: int | None = None, scope: Scope = Scope.TRUNK) -> TensorEntry | None:
        """The entry of a role, or None where the model has no such tensor."""
        return self._tensor_of.get((scope, layer, role))

    def _table(self, extent: ExtentEntry) -> bytes:
        """The chunk table of an extent, checked against the directory."""
        table = self._tables.get(extent.offset)
        if table is None:
            where = extent.offset + extent.size
            data = self._read(where, extent.table_bytes)
            used = -(-extent.size // spec.CHUNK_BYTES) * spec.HASH_BYTES
            table = data[:used]
            if sha256(table) != extent.hash:
                raise ColibriError(Code.CHUNK_MISMATCH, f"chunk hashes of {extent.name} do not match", where)
            if any(data[used:]):
                raise ColibriError(Code.PADDING, f"bytes behind the chunk hashes of {extent.name}", where + used)
            self._tables[extent.offset] = table
        return table

    @_names_its_file
    def read_extent(self, extent: ExtentEntry, offset: int = 0, size: int | None = None, verify: bool = True) -> bytes:
        """`size` bytes of an extent from `offset` on (all by default), chunks verified."""
        size = extent.size - offset if size is None else size
        if offset < 0 or size < 0 or size > extent.size - offset:
            raise ColibriError(Code.ARGUMENT, f"{size} bytes at {offset} of {extent.name}")
        if not verify:
            return self._read(extent.offset + offset, size)
        table = self._table(extent)
        step, digest = spec.CHUNK_BYTES, spec.HASH_BYTES
        first = offset // step
        start = first * step
        end = min(round_up(offset + size, step), extent.size)
        data = self._read(extent.offset + start, end - start)
        for i, found in enumerate(chunk_hashes(data), first):
            if found != table[i * digest : (i + 1) * digest]:
                raise ColibriError(
                    Code.CHUNK_MISMATCH,
                    f"chunk {i} of {extent.name} does not match its hash",
                    extent.offset + i * step,
                )
        return data[offset - start : offset - start + size]

    def tensor_bytes(self, entry: TensorEntry, expert: int | None = None, verify: bool = True) -> bytes:
        """The stored bytes of a tensor; `expert` chooses the extent of an expert template."""
        extent = self.extent(entry.layer, expert)
        return self.read_extent(extent, entry.offset, entry.size, verify)

    @_names_its_file
    def verify(self, progress: Callable[[int], None] | None = None) -> VerifyReport:
        """Check every hash, tokenizer, calibration, every padding byte and every scale and float weight.

        `progress` is called with the bytes of each extent when it is done.
        """
        report = VerifyReport()
        for kind in (Section.TOKENIZER, Section.CALIBRATION, Section.PROVENANCE):  # what an engine uses comes first
            if kind not in self.sections:
                continue
            data = self.section_bytes(kind)
            report.hashed_bytes += len(data)
            report.chunks += len(chunk_hashes(data))
            if kind == Section.TOKENIZER:
                self._verify_tokenizer(data)
            if kind == Section.CALIBRATION:
                self.calibration()
        groups: dict[tuple[Scope, int | None], list[TensorEntry]] = {}
        for tensor in self.tensors:
            groups.setdefault((tensor.scope, tensor.layer), []).append(tensor)
        for extent in self.extents:
            data = self.read_extent(extent)
            scope = Scope.TRUNK if extent.kind == ExtentKind.TRUNK else Scope.EXPERT
            self._verify_extent(extent, data, groups.get((scope, extent.layer), []))
            report.tensors += len(groups.get((scope, extent.layer), []))
            report.chunks += -(-extent.size // spec.CHUNK_BYTES)
            report.hashed_bytes += extent.size
            if progress is not None:
                progress(extent.size)
        return report

    def _verify_tokenizer(self, data: bytes) -> None:
        from colibri.tokenizer import TokenizerSpec  # here, because inspecting needs no tokenizer

        try:
            TokenizerSpec.from_section(data, self.records.model.vocabulary)
        except ColibriError as error:
            offset = self.sections[Section.TOKENIZER].offset
            raise ColibriError(error.code, error.message, offset + (error.offset or 0)) from error

    @staticmethod
    def _verify_extent(extent: ExtentEntry, data: bytes, tensors: list[TensorEntry]) -> None:
        view = memoryview(data)
        starts = [tensor.offset for tensor in tensors[1:]] + [extent.size]
        for tensor, following in zip(tensors, starts, strict=True):
            end = tensor.offset + tensor.size
            name = f"{extent.name} {tensor.role.name.lower()}"
            check_weights(
                view[tensor.offset : end],
                tensor.dtype,
                Shape(tensor.rows, tensor.columns, tensor.layout),
                name,
                extent.offset + tensor.offset,
            )
            if any(view[end:following]):
                raise ColibriError(Code.PADDING, f"bytes behind {name}", extent.offset + end)


def open_model(path: str | os.PathLike[str]) -> ModelFile:
    """Open and validate a `.colibri` file; reads header, records and directory only."""
    where = Path(path)
    descriptor = open_regular(where)
    try:
        return ModelFile(where, descriptor)
    except OSError as error:
        os.close(descriptor)
        raise ColibriError(Code.IO, f"{where}: {error.strerror}") from error
    except ColibriError as error:
        os.close(descriptor)
        error.file = where
        raise
    except BaseException:
        os.close(descriptor)
        raise
