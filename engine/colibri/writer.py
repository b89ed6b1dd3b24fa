# SPDX-License-Identifier: MIT
"""Writer of the .colibri container; `colibri.format` is its reader.

Standard library only. The layout follows from the records and the dtypes alone, so the file is
written front to back in one pass: tensor parts go through the hashes to a temporary file, which
replaces the target when everything is on disk.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from colibri import _spec as spec
from colibri._spec import Code, DType, ExtentKind, Layout, Role, Scope, Section
from colibri.errors import ColibriError, WriteError
from colibri.files import create_temporary, refuse_output, sync_folder
from colibri.format import (
    HASHED_SECTIONS,
    HEADER,
    NO_HASH,
    SECTION_LIMITS,
    ExtentEntry,
    SectionEntry,
    TensorEntry,
    chunk_hashes,
    encode_directory,
    encode_section,
    section_align,
    sha256,
    tensor_groups,
)
from colibri.records import (
    Records,
    chunk_table_bytes,
    encode_records,
    extent_keys,
    parse_records,
    required_features,
    required_tensors,
    round_up,
    tensor_bytes,
)
from colibri.resume import Journal

_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class Slot:
    """One tensor of one extent, in the order in which the writer wants them."""

    tensor: TensorEntry
    expert: int | None = None

    @property
    def name(self) -> str:
        """For messages: `layer 3 expert 1 expert_gate`."""
        if self.expert is None:
            return self.tensor.name
        return f"layer {self.tensor.layer} expert {self.expert} {self.tensor.role.name.lower()}"


@dataclass
class _Hasher:
    """Chunk hashes of a stream of bytes."""

    hashes: list[bytes] = field(default_factory=list)
    filled: int = 0

    def __post_init__(self) -> None:
        self._digest = hashlib.sha256()

    def update(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        while len(view):
            part = view[: spec.CHUNK_BYTES - self.filled]
            self._digest.update(part)
            self.filled += len(part)
            view = view[len(part) :]
            if self.filled == spec.CHUNK_BYTES:
                self.flush()

    def flush(self) -> None:
        if self.filled:
            self.hashes.append(self._digest.digest())
            self._digest = hashlib.sha256()
            self.filled = 0


DTypeChoice = Callable[[Scope, int | None, Role], DType]


class ModelWriter:
    """Writes a `.colibri` file; the layout follows from the records and the dtypes alone.

    Use as a context manager: `for slot in writer.slots: writer.write(slot, parts)`, in exactly
    that order. On leaving, the file replaces `path` atomically; on an exception nothing stays.
    `choose_dtype` is asked for matrices only, vectors are always f32. With a journal the unfinished
    file stays on an exception, and `slots` begins behind what an earlier run completed: `done` has it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        records: Records,
        choose_dtype: DTypeChoice,
        tokenizer: bytes | None = None,
        provenance: dict[str, Any] | None = None,
        journal: Journal | None = None,
    ) -> None:
        self.path = Path(path)
        self.done: list[Slot] = []
        self.errors: dict[str, list[float]] = {}  # of `done`, as the journal has them
        self._journal = journal
        self.records = records
        self._tensors: list[TensorEntry] = []
        self._extent_sizes: dict[tuple[Scope, int | None], int] = {}
        self._place_tensors(choose_dtype)
        text = json.dumps(provenance or {}, sort_keys=True, ensure_ascii=False, indent=1)
        self._contents: dict[Section, bytes] = {Section.RECORDS: encode_records(records)}
        if tokenizer is not None:
            self._contents[Section.TOKENIZER] = tokenizer
        self._contents[Section.PROVENANCE] = text.encode("utf-8", "backslashreplace") + b"\n"
        for kind, data in self._contents.items():
            if len(data) > SECTION_LIMITS[kind]:
                raise ColibriError(
                    Code.LIMIT,
                    f"section {kind.name.lower()} would have {len(data)} bytes, limit {SECTION_LIMITS[kind]}",
                )
        parse_records(self._contents[Section.RECORDS])  # never write what no reader accepts
        self._place_sections()
        self.slots = list(self._make_slots())
        self._next = 0
        self._descriptor = -1
        self._temporary: Path | None = None
        self._hasher = _Hasher()
        self._position = 0

    def _place_tensors(self, choose_dtype: DTypeChoice) -> None:
        for scope, layer in tensor_groups(self.records):
            end = 0
            for role, shape in required_tensors(self.records, scope, layer).items():
                vector = shape.layout == Layout.ROWS
                dtype = DType.F32 if vector else choose_dtype(scope, layer, role)
                offset = round_up(end, spec.TENSOR_ALIGN_BYTES)
                size = tensor_bytes(dtype, shape.layout, shape.rows, shape.columns)
                self._tensors.append(
                    TensorEntry(
                        role,
                        layer,
                        dtype,
                        shape.layout,
                        shape.rows,
                        shape.columns,
                        offset,
                        size,
                        scope,
                    )
                )
                end = offset + size
            self._extent_sizes[scope, layer] = round_up(end, spec.EXTENT_ALIGN_BYTES)

    def _place_sections(self) -> None:
        keys = list(extent_keys(self.records))
        sizes: dict[Section, int] = {kind: len(data) for kind, data in self._contents.items()}
        sizes[Section.DIRECTORY] = (
            spec.DIRECTORY_HEADER_BYTES
            + len(keys) * spec.EXTENT_ENTRY_BYTES
            + len(self._tensors) * spec.TENSOR_ENTRY_BYTES
        )
        placed: list[tuple[Section, int]] = []
        for kind, layer, _ in keys:
            trunk = kind == ExtentKind.TRUNK
            size = self._extent_sizes[Scope.TRUNK if trunk else Scope.EXPERT, layer]
            placed.append((Section.TRUNK if trunk else Section.EXPERTS, size))
        for section in (Section.TRUNK, Section.EXPERTS):
            sizes[section] = sum(s + chunk_table_bytes(s) for k, s in placed if k == section)
        self._sections: list[SectionEntry] = []
        end = spec.HEADER_BYTES
        for section in sorted(sizes):
            data = self._contents.get(section, b"") if section in HASHED_SECTIONS else b""
            digest = sha256(*chunk_hashes(data)) if data else NO_HASH
            offset = round_up(end, section_align(section))
            self._sections.append(SectionEntry(section, offset, sizes[section], digest))
            end = offset + sizes[section]
        self.file_bytes = round_up(end, spec.SECTION_ALIGN_BYTES)
        cursor = {s.kind: s.offset for s in self._sections}
        self._extents: list[ExtentEntry] = []
        for (kind, layer, expert), (section, size) in zip(keys, placed, strict=True):
            digest = NO_HASH if size else sha256()
            self._extents.append(ExtentEntry(kind, layer, expert, cursor[section], size, digest))
            cursor[section] += size + chunk_table_bytes(size)

    def _make_slots(self) -> Iterator[Slot]:
        groups: dict[tuple[Scope, int | None], list[TensorEntry]] = {}
        for tensor in self._tensors:
            groups.setdefault((tensor.scope, tensor.layer), []).append(tensor)
        for extent in self._extents:
            scope = Scope.TRUNK if extent.kind == ExtentKind.TRUNK else Scope.EXPERT
            for tensor in groups.get((scope, extent.layer), []):
                yield Slot(tensor, extent.expert)

    def __enter__(self) -> Self:
        refuse_output(self.path)
        try:
            if self._journal is not None:
                self._descriptor = self._journal.open()
                os.ftruncate(self._descriptor, self.file_bytes)
                self._take_up(self._journal)
                return self
            descriptor, self._temporary = create_temporary(self.path)
            self._descriptor = descriptor
            os.ftruncate(self._descriptor, self.file_bytes)
        except OSError as error:
            self._discard()
            raise WriteError(self.path, error, Code.OPEN) from error
        except BaseException:
            self._discard()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as failure:
            raise WriteError(self.path, failure) from failure
        finally:
            self._discard()

    def _discard(self) -> None:
        """Close the temporary file and remove it when it still exists."""
        if self._journal is not None:
            self._journal.close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None

    def _take_up(self, journal: Journal) -> None:
        """Go on behind the extents of the journal whose bytes are there."""
        extents = iter(sorted({self._extent_index(slot) for slot in self.slots}))
        complete = set()
        for line in journal.lines():
            if line.extent != next(extents, None) or not self._holds(self._extents[line.extent], line.digest):
                break
            self._extents[line.extent] = replace(self._extents[line.extent], hash=line.digest)
            complete.add(line.extent)
            self.errors |= line.errors
        journal.cut()
        # What lies behind them is written again, but for the gaps, which are zeros.
        held = (self._extents[index] for index in complete)
        end = max((extent.offset + extent.size + chunk_table_bytes(extent.size) for extent in held), default=0)
        os.ftruncate(self._descriptor, end)
        os.ftruncate(self._descriptor, self.file_bytes)
        count = sum(self._extent_index(slot) in complete for slot in self.slots)
        self.done, self.slots = self.slots[:count], self.slots[count:]

    def _holds(self, extent: ExtentEntry, digest: bytes) -> bool:
        """Whether an extent of the unfinished file has the bytes that its chunk table and `digest` say."""
        table = self._read(extent.offset + extent.size, chunk_table_bytes(extent.size))
        used = -(-extent.size // spec.CHUNK_BYTES) * spec.HASH_BYTES
        if sha256(table[:used]) != digest or any(table[used:]):
            return False
        chunks = (
            self._read(extent.offset + at, min(spec.CHUNK_BYTES, extent.size - at))
            for at in range(0, extent.size, spec.CHUNK_BYTES)
        )
        return all(sha256(data) == table[n * spec.HASH_BYTES :][: spec.HASH_BYTES] for n, data in enumerate(chunks))

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        return data if len(data) == size else b""

    def _put(self, offset: int, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B")
        try:
            while len(view):
                done = os.pwrite(self._descriptor, view[:_COPY_BYTES], offset)
                view, offset = view[done:], offset + done
        except OSError as error:
            raise WriteError(self.path, error, Code.IO, offset) from error

    def _extent_index(self, slot: Slot) -> int:
        """Position of the slot's extent in the directory."""
        layers = len(self.records.layers)
        if slot.tensor.layer is None:
            return 0
        if slot.expert is None:
            return 1 + slot.tensor.layer
        before = sum(layer.experts for layer in self.records.layers[: slot.tensor.layer])
        return 1 + layers + before + slot.expert

    def write(self, slot: Slot, parts: bytes | Iterable[bytes]) -> None:
        """Write one tensor, whole or in consecutive parts, as `tensor_bytes` lays it out."""
        if self._next >= len(self.slots) or slot != self.slots[self._next]:
            raise ColibriError(Code.INTERNAL, f"{slot.name} is written out of order")
        index = self._extent_index(slot)
        extent = self._extents[index]
        self._advance(extent.offset + slot.tensor.offset - self._position, extent)
        end = self._position + slot.tensor.size
        for part in (parts,) if isinstance(parts, bytes) else parts:
            if len(part) > end - self._position:
                raise ColibriError(Code.INTERNAL, f"{slot.name} is longer than its entry")
            self._put(self._position, part)
            self._hasher.update(part)
            self._position += len(part)
        if self._position != end:
            raise ColibriError(Code.INTERNAL, f"{slot.name} is shorter than its entry")
        self._next += 1
        last = self._next == len(self.slots)
        if last or self._extent_index(self.slots[self._next]) != index:
            self._close_extent(index)

    def _advance(self, zeros: int, extent: ExtentEntry) -> None:
        """Hash the zeros before the next tensor; a new extent starts a new count of chunks."""
        if not self._hasher.hashes and not self._hasher.filled:
            self._position = extent.offset
            return
        self._hasher.update(bytes(zeros))
        self._position += zeros

    def _close_extent(self, index: int) -> None:
        extent = self._extents[index]
        self._hasher.update(bytes(extent.offset + extent.size - self._position))
        self._hasher.flush()
        table = b"".join(self._hasher.hashes)
        self._put(extent.offset + extent.size, table)
        self._extents[index] = ExtentEntry(
            extent.kind, extent.layer, extent.expert, extent.offset, extent.size, sha256(table)
        )
        self._hasher = _Hasher()
        if self._journal is not None:
            self._journal.add(index, self._extents[index].hash)

    def _finish(self) -> None:
        if self._next != len(self.slots):
            raise ColibriError(Code.INTERNAL, f"{self.slots[self._next].name} was not written")
        directory = encode_directory(self._extents, self._tensors)
        contents = self._contents | {Section.DIRECTORY: directory}
        features = required_features(self.records, {tensor.dtype for tensor in self._tensors})
        header = HEADER.pack(
            spec.MAGIC,
            spec.VERSION_MAJOR,
            spec.VERSION_MINOR,
            spec.HEADER_BYTES,
            features,
            0,
            self.file_bytes,
            len(self._sections),
            spec.CHUNK_BYTES,
            NO_HASH,
            bytes(48),
        )
        page = (header + b"".join(map(encode_section, self._sections))).ljust(spec.HEADER_BYTES, b"\0")
        self.root = sha256(page, contents[Section.RECORDS], directory)
        page = page[: spec.ROOT_OFFSET] + self.root + page[spec.ROOT_OFFSET + spec.HASH_BYTES :]
        for section in self._sections:
            if section.kind in contents:
                self._put(section.offset, contents[section.kind])
        self._put(0, page)
        os.fsync(self._descriptor)
        if self._journal is not None:
            os.replace(self._journal.partial, self.path)
            self._journal.remove(self.path)
            return
        assert self._temporary is not None
        os.replace(self._temporary, self.path)
        sync_folder(self.path)
