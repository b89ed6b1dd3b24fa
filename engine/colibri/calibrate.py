# SPDX-License-Identifier: MIT
"""`colibri calibrate`: run a model over a text and write a new file that knows how its experts were used.

The C engine computes; without the library the numpy reference does, with the same choices, since
both give the same bits. The new file differs in the calibration section and in what that moves; a
signature is left out, because what it covers changed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from colibri import _spec as spec
from colibri._spec import Code, Section
from colibri.calibration import Profile, decode_profile, encode_profile, keep_followers, moe_layers
from colibri.errors import ColibriError, MissingPackage
from colibri.files import (
    create_temporary,
    open_regular,
    read_regular,
    refuse_output,
    sync_folder,
    write_file,
    writing,
)
from colibri.format import (
    HASHED_SECTIONS,
    HEADER,
    NO_HASH,
    SECTION_LIMITS,
    ModelFile,
    SectionEntry,
    chunk_hashes,
    encode_directory,
    encode_section,
    open_model,
    section_align,
    sha256,
)
from colibri.records import round_up
from colibri.verify import golden_path, golden_under_root, refuse_golden_of_others

PIECE_BYTES = 16384  # of the text that is tokenized at once
WINDOW_TOKENS = 512  # a sequence begins anew after so many
BATCH_TOKENS = 32
MAX_TEXT_BYTES = 1 << 30
_COPY_BYTES = 1 << 20

# ids of a batch -> routing: [layer with experts][token][rank]
Append = Callable[[Sequence[int]], list[list[list[int]]]]


# --------------------------------------------------------------------------- the run


def has_library() -> bool:
    """Whether libcolibri can be loaded."""
    from colibri.engine import build_info

    try:
        build_info()
    except ColibriError:
        return False
    return True


class Runner:
    """A model that can be run: by the C engine, or by the numpy reference."""

    def __init__(self, model: ModelFile, engine: str, threads: int, window: int) -> None:
        self.layers = [index for index, _ in moe_layers(model.records)]
        self._stack: list[Callable[[], None]] = []
        self.name = engine
        self.tokenize: Callable[[bytes], list[int]]
        self.reset: Callable[[], None]
        self.append: Append
        if engine == "reference" or (engine == "auto" and not has_library()):
            self._open_reference(model)
        else:
            self._open_library(model, threads, window)

    def _open_library(self, model: ModelFile, threads: int, window: int) -> None:
        from colibri.engine import Engine

        engine = Engine(
            model.path, threads=threads, context_tokens=window, batch_tokens=BATCH_TOKENS, lock="off"
        )
        self._stack.append(engine.close)
        session = engine.session()
        self.tokenize = lambda text: engine.tokenize(text)
        self.reset = session.reset
        self.name = "library"

        def append(ids: Sequence[int]) -> list[list[list[int]]]:
            session.append(ids)
            return [session.routing(layer) for layer in self.layers]

        self.append = append

    def _open_reference(self, model: ModelFile) -> None:
        try:
            from colibri.reference import ReferenceModel
        except ImportError as error:
            raise MissingPackage("without libcolibri, calibrating needs", "numpy", "reference") from error

        reference = ReferenceModel(model)
        tokenizer = reference.tokenizer()
        self.name = "reference"
        session = reference.session()

        def tokenize(text: bytes) -> list[int]:
            if tokenizer is None:
                raise ColibriError(Code.NO_TOKENIZER, f"{model.path} has no tokenizer; calibrate a model with one")
            return list(tokenizer.encode(text, False))

        def reset() -> None:
            nonlocal session
            session = reference.session()

        def append(ids: Sequence[int]) -> list[list[list[int]]]:
            routing = session.append(list(ids), all_logits=False).routing
            return [routing[layer].tolist() for layer in self.layers]

        self.tokenize, self.reset, self.append = tokenize, reset, append

    def close(self) -> None:
        """Free the engine."""
        while self._stack:
            self._stack.pop()()


def text_pieces(text: bytes, limit: int = PIECE_BYTES) -> Iterator[bytes]:
    """The text in pieces of at most `limit` bytes, cut behind a line or a space where there is one."""
    at = 0
    while at < len(text):
        end = min(at + limit, len(text))
        if end < len(text):
            cut = max(text.rfind(b"\n", at, end), text.rfind(b" ", at, end))
            while cut < 0 and end - at > 4 and text[end] & 0xC0 == 0x80:
                end -= 1  # not inside a character
            end = cut + 1 if cut >= 0 else end
        yield text[at:end]
        at = end


def tokens_of(tokenize: Callable[[bytes], list[int]], text: bytes, limit: int) -> list[int]:
    """Token ids of the text, cut into pieces that the tokenizer takes; at least `limit` of them where it is not 0."""
    ids: list[int] = []
    for piece in text_pieces(text):
        ids += tokenize(piece)
        if limit and len(ids) >= limit:
            break
    return ids


def measure(runner: Runner, experts: Sequence[int], text: bytes, window: int, limit: int, quiet: bool) -> Profile:
    """Counts over the first `limit` tokens of the text (0: all); `experts` of each layer."""
    counts = [[0] * n for n in experts]
    pairs: list[Counter[tuple[int, int]]] = [Counter() for _ in experts]
    tokens = done = 0
    for piece in text_pieces(text):
        ids = runner.tokenize(piece)
        if limit:
            ids = ids[: limit - tokens]
        for start in range(0, len(ids), window):
            runner.reset()
            part = ids[start : start + window]
            for at in range(0, len(part), BATCH_TOKENS):
                _count(runner.append(part[at : at + BATCH_TOKENS]), counts, pairs)
        tokens += len(ids)
        done += len(piece)
        if not quiet:
            print(f"\r{done:,} of {len(text):,} bytes, {tokens:,} tokens", end="", file=sys.stderr, flush=True)
        if limit and tokens >= limit:
            break
    if not quiet:
        print(file=sys.stderr)
    if tokens == 0:
        raise ColibriError(Code.ARGUMENT, "the text has no tokens; give a longer text")
    return Profile(tokens, list(runner.layers), counts, [keep_followers(table) for table in pairs])


def _count(
    routing: list[list[list[int]]], counts: list[list[int]], pairs: list[Counter[tuple[int, int]]]
) -> None:
    for layer, rows in enumerate(routing):
        following = routing[layer + 1] if layer + 1 < len(routing) else []
        for token, chosen in enumerate(rows):
            for expert in chosen:
                counts[layer][expert] += 1
            if following:
                pairs[layer].update((expert, after) for expert in chosen for after in following[token])


# --------------------------------------------------------------------------- the new file


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done


def _place(model: ModelFile, profile: bytes) -> tuple[list[SectionEntry], int]:
    """The new section table and the size of the file: without a signature, trunk and experts moved."""
    sizes = {s.kind: s.size for s in model.sections.values() if s.kind != Section.SIGNATURE}
    sizes[Section.CALIBRATION] = len(profile)
    hashes = {s.kind: s.hash for s in model.sections.values()}
    hashes[Section.CALIBRATION] = sha256(*chunk_hashes(profile))
    placed, end = [], spec.HEADER_BYTES
    for kind in sorted(sizes):
        offset = round_up(end, section_align(kind))
        placed.append(SectionEntry(kind, offset, sizes[kind], hashes[kind] if kind in HASHED_SECTIONS else NO_HASH))
        end = offset + sizes[kind]
    return placed, round_up(end, spec.SECTION_ALIGN_BYTES)


def _copy_extents(model: ModelFile, moved: dict[Section, int], descriptor: int) -> None:
    """Weights with their chunk tables, every chunk checked on the way."""
    for extent in model.extents:
        kind = Section.EXPERTS if extent.expert is not None else Section.TRUNK
        target = extent.offset + moved[kind]
        hashes = []
        for at in range(0, extent.size, _COPY_BYTES):
            data = model.read_extent(extent, at, min(_COPY_BYTES, extent.size - at))
            hashes += chunk_hashes(data)
            _write(descriptor, data, target + at)
        _write(descriptor, b"".join(hashes), target + extent.size)


def write_calibrated(model: ModelFile, target: Path, profile: Profile) -> bytes:
    """Write `target`: the model with this profile; its root. Golden results come along."""
    section = encode_profile(profile, model.records)
    if len(section) > SECTION_LIMITS[Section.CALIBRATION]:
        raise ColibriError(
            Code.LIMIT, f"the profile has {len(section)} bytes, limit {SECTION_LIMITS[Section.CALIBRATION]}"
        )
    decode_profile(section, model.records)  # never write what no reader accepts
    sections, size = _place(model, section)
    moved = {s.kind: s.offset - model.sections[s.kind].offset for s in sections if s.kind in model.sections}
    extents = [
        replace(e, offset=e.offset + moved[Section.TRUNK if e.expert is None else Section.EXPERTS])
        for e in model.extents
    ]
    contents: dict[Section, bytes] = {
        kind: model.section_bytes(kind)
        for kind in (Section.RECORDS, Section.TOKENIZER, Section.PROVENANCE)
        if kind in model.sections
    }
    contents[Section.DIRECTORY] = encode_directory(extents, model.tensors)
    contents[Section.CALIBRATION] = section
    features = model.optional_features & ~spec.OPTIONAL_SIGNED | spec.OPTIONAL_CALIBRATED
    head = HEADER.pack(
        spec.MAGIC, *model.version, spec.HEADER_BYTES, model.required_features, features, size, len(sections),
        spec.CHUNK_BYTES, NO_HASH, bytes(spec.SECTION_TABLE_OFFSET - spec.HEADER_RESERVED_OFFSET),
    )  # fmt: skip
    page = (head + b"".join(map(encode_section, sections))).ljust(spec.HEADER_BYTES, b"\0")
    root = sha256(page, contents[Section.RECORDS], contents[Section.DIRECTORY])
    page = page[: spec.ROOT_OFFSET] + root + page[spec.ROOT_OFFSET + spec.HASH_BYTES :]
    golden = _golden_text(model, root)
    refuse_golden_of_others(golden_path(target), target)
    with writing(target):
        descriptor, temporary = create_temporary(target)
        try:
            os.ftruncate(descriptor, size)
            _write(descriptor, page, 0)
            for entry in sections:
                _write(descriptor, contents.get(entry.kind, b""), entry.offset)
            _copy_extents(model, moved, descriptor)
            os.fsync(descriptor)
            # Whatever is interrupted, no golden results lie beside a model that is not theirs.
            golden_path(target).unlink(missing_ok=True)
            sync_folder(target)
            os.replace(temporary, target)
            sync_folder(target)
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)
        if golden is not None:
            write_file(golden_path(target), golden)
    return root


def _golden_text(model: ModelFile, root: bytes) -> bytes | None:
    """The golden results beside the model under the new root: the weights, and so the logits, are the same."""
    return golden_under_root(model, root) if golden_path(model.path).exists() else None


# --------------------------------------------------------------------------- the command


def add_calibrate_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri calibrate`."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .colibri file with experts and a tokenizer")
    parser.add_argument("--text", metavar="FILE", type=Path, required=True, help="what the device will read: UTF-8")
    parser.add_argument("-o", "--output", metavar="NEW", type=Path, required=True, help="the .colibri file to write")
    parser.add_argument("-n", "--tokens", type=int, default=0, metavar="N", help="stop after N tokens; 0 = all")
    parser.add_argument(
        "--window", type=int, default=WINDOW_TOKENS, metavar="N", help=f"tokens of a sequence (default {WINDOW_TOKENS})"
    )
    parser.add_argument("-t", "--threads", type=int, default=0, help="0 = CPUs, at most 4")
    parser.add_argument(
        "--engine",
        choices=("auto", "library", "reference"),
        default="auto",
        help="the C library, the numpy reference (same result, slow), or the first that is here",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def calibrate_command(args: argparse.Namespace) -> int:
    """`colibri calibrate`."""
    if args.tokens < 0 or args.window < 1:
        raise ColibriError(Code.ARGUMENT, f"-n {args.tokens}, --window {args.window}; give at least 0 and 1")
    os.close(open_regular(args.text))
    refuse_output(args.output, (args.model, args.text, golden_path(args.model)))
    refuse_output(golden_path(args.output))
    refuse_golden_of_others(golden_path(args.output), args.output)
    text = read_regular(args.text, MAX_TEXT_BYTES)
    with open_model(args.model) as model:
        layers = moe_layers(model.records)
        if not layers:
            raise ColibriError(Code.ARGUMENT, f"{args.model} has no experts; there is nothing to calibrate")
        if not model.has_tokenizer:
            raise ColibriError(Code.NO_TOKENIZER, f"{args.model} has no tokenizer; calibrate a model with one")
        window = min(args.window, model.records.model.context_tokens)
        runner = Runner(model, args.engine, args.threads, window)
        try:
            profile = measure(runner, [moe.experts for _, moe in layers], text, window, args.tokens, args.quiet)
        finally:
            runner.close()
        if model.signature is not None:
            print(
                f"colibri: {args.model} is signed; {args.output} is not: sign it with `colibri sign`", file=sys.stderr
            )
        root = write_calibrated(model, args.output, profile)
    if not args.quiet:
        print(f"{profile.tokens:,} tokens by the {runner.name}, root {root.hex()}", file=sys.stderr)
    print(args.output)
    return 0
