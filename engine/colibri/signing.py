# SPDX-License-Identifier: MIT
"""`colibri sign`: a new file that carries a signature, or one that carries none any more.

What is signed is the root of the *signed* file: its header names the signature section, so signing
changes the root. The signature section is the last one and the root does not cover its bytes; all
other bytes of the body stay where they are, so removing a signature gives the first file again.
ed25519 is deterministic: the same model and key give the same bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colibri import _spec as spec
from colibri._spec import Code, Section
from colibri.errors import ColibriError
from colibri.files import (
    create_temporary,
    open_regular,
    read_regular,
    refuse_output,
    sync_folder,
    writing,
)
from colibri.format import HEADER, NO_HASH, ModelFile, SectionEntry, encode_section, open_model, sha256
from colibri.records import round_up
from colibri.signature import NO_GOLDEN, Signature, key_id
from colibri.verify import (
    MAX_KEY_FILE_BYTES,
    golden_path,
    golden_under_root,
    need_cryptography,
    refuse_golden_of_others,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_COPY_BYTES = 1 << 20


@dataclass(frozen=True)
class SignReport:
    """What was written: the root of the new file, the key's id, whether the golden results came along."""

    root: bytes
    key_id: bytes | None
    golden: bool


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """An ed25519 key from PEM, as `openssl genpkey -algorithm ed25519 -out key.pem` writes it."""
    need_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    data = read_regular(path, MAX_KEY_FILE_BYTES)
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError as error:
        raise ColibriError(
            Code.ARGUMENT, f"{path} is encrypted; decrypt it first: openssl pkey -in {path} -out plain.pem"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ColibriError(
            Code.ARGUMENT,
            f"{path} is no private key in PEM; make one with: openssl genpkey -algorithm ed25519 -out key.pem",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ColibriError(
            Code.ARGUMENT,
            f"{path} is a key of another kind; make one with: openssl genpkey -algorithm ed25519 -out key.pem",
        )
    return key


def _raw_public_key(key: Ed25519PrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)


def _body_end(model: ModelFile) -> int:
    """Where the last section but the signature ends, padding included."""
    last = max(s.offset + s.size for s in model.sections.values() if s.kind != Section.SIGNATURE)
    return round_up(last, spec.SECTION_ALIGN_BYTES)


def _header(model: ModelFile, signed: bool, records: bytes, directory: bytes) -> tuple[bytes, bytes]:
    """(header page, root) of the model with or without a signature section."""
    sections = [s for s in model.sections.values() if s.kind != Section.SIGNATURE]
    end = _body_end(model)
    features = model.optional_features & ~spec.OPTIONAL_SIGNED
    if signed:
        sections.append(SectionEntry(Section.SIGNATURE, end, spec.SIGNATURE_SECTION_BYTES, NO_HASH))
        features |= spec.OPTIONAL_SIGNED
        end += round_up(spec.SIGNATURE_SECTION_BYTES, spec.SECTION_ALIGN_BYTES)
    head = HEADER.pack(
        spec.MAGIC, *model.version, spec.HEADER_BYTES, model.required_features, features, end, len(sections),
        spec.CHUNK_BYTES, NO_HASH, bytes(spec.SECTION_TABLE_OFFSET - spec.HEADER_RESERVED_OFFSET),
    )  # fmt: skip
    page = (head + b"".join(map(encode_section, sections))).ljust(spec.HEADER_BYTES, b"\0")
    root = sha256(page, records, directory)
    return page[: spec.ROOT_OFFSET] + root + page[spec.ROOT_OFFSET + spec.HASH_BYTES :], root


def _golden_text(model: ModelFile, root: bytes) -> bytes | None:
    """The golden results beside the model, naming the new root instead of the old one; None: there are none."""
    path = golden_path(model.path)
    if not path.exists():
        return None
    text = golden_under_root(model, root)
    if text is None:
        raise ColibriError(
            Code.ARGUMENT,
            f"{path} has golden results of another model than {model.path}; make them again with `colibri golden`, "
            "or leave them out with --no-golden",
        )
    return text


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[tuple[Path, int]]:
    """A new file beside the target, removed when it was not renamed."""
    descriptor, path = create_temporary(target)
    try:
        yield path, descriptor
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)


def _put(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, offset)
        view, offset = view[done:], offset + done


def _copy_body(model: ModelFile, descriptor: int) -> None:
    """Everything between the header page and the signature; what was copied is verified afterwards."""
    end, offset = _body_end(model), spec.HEADER_BYTES
    source = open_regular(model.path)
    try:
        while offset < end:
            try:
                part = os.pread(source, min(_COPY_BYTES, end - offset), offset)
            except OSError as error:
                raise ColibriError(Code.IO, f"{model.path}: {error.strerror}", offset) from error
            if not part:
                raise ColibriError(Code.IO, f"{model.path} became shorter while read", offset)
            _put(descriptor, part, offset)
            offset += len(part)
    finally:
        os.close(source)


def _write(
    model: ModelFile, target: Path, page: bytes, signature: bytes, golden: bytes | None, root: bytes
) -> None:
    """Both files beside their names, the model verified as it was written, then the renames.

    The old golden results go first: whatever is interrupted, no golden results lie beside a model
    that is not theirs.
    """
    beside = golden_path(target)
    refuse_output(beside)
    refuse_golden_of_others(beside, target)
    try:
        with (
            writing(target),
            _temporary(target) as (path, descriptor),
            _temporary(beside) as (golden_file, golden_descriptor),
        ):
            _put(descriptor, page, 0)
            _copy_body(model, descriptor)
            end = _body_end(model)
            _put(descriptor, signature, end)
            os.ftruncate(descriptor, end + round_up(len(signature), spec.SECTION_ALIGN_BYTES))
            os.fsync(descriptor)
            with open_model(path) as written:
                if written.root != root:
                    raise ColibriError(Code.INTERNAL, f"{target} was written with the root {written.root.hex()}")
                written.verify()
            _put(golden_descriptor, golden or b"", 0)
            os.fsync(golden_descriptor)
            beside.unlink(missing_ok=True)
            sync_folder(target)
            path.replace(target)
            if golden is not None:
                golden_file.replace(beside)
            sync_folder(target)
    except ColibriError as error:
        if error.file is not None:
            error.file = model.path  # what was copied is as damaged as the model
        raise


def sign_model(source: Path, key: Path, target: Path, with_golden: bool = True) -> SignReport:
    """Write `target`: the model with a signature (an old one is replaced), and its golden results."""
    private = load_private_key(key)
    identity = key_id(_raw_public_key(private))
    refuse_output(target, (source, golden_path(source), key))
    with open_model(source) as model:
        records, directory = (model.section_bytes(kind) for kind in (Section.RECORDS, Section.DIRECTORY))
        page, root = _header(model, True, records, directory)
        golden = _golden_text(model, root) if with_golden else None
        covered = NO_GOLDEN if golden is None else hashlib.sha256(golden).digest()
        unsigned = Signature(identity, covered)
        signature = Signature(identity, covered, private.sign(unsigned.message(root)))
        _write(model, target, page, signature.encode(), golden, root)
    return SignReport(root, identity, golden is not None)


def remove_signature(source: Path, target: Path, with_golden: bool = True) -> SignReport:
    """Write `target`: the model without its signature, byte for byte as before it was signed."""
    refuse_output(target, (source, golden_path(source)))
    with open_model(source) as model:
        if model.signature is None:
            raise ColibriError(Code.SIGNATURE, f"{source} is not signed; there is nothing to remove")
        records, directory = (model.section_bytes(kind) for kind in (Section.RECORDS, Section.DIRECTORY))
        page, root = _header(model, False, records, directory)
        golden = _golden_text(model, root) if with_golden else None
        _write(model, target, page, b"", golden, root)
    return SignReport(root, None, golden is not None)


def add_sign_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri sign`."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a .colibri file")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "-k", "--key", metavar="FILE", type=Path, help="ed25519 private key: openssl genpkey -algorithm ed25519"
    )
    what.add_argument("--remove", action="store_true", help="write the model without its signature")
    parser.add_argument("-o", "--output", metavar="NEW", type=Path, required=True, help="the .colibri file to write")
    parser.add_argument("--no-golden", action="store_true", help="leave out the golden results beside MODEL")


def sign_command(args: argparse.Namespace) -> int:
    """`colibri sign`."""
    if args.remove:
        report = remove_signature(args.model, args.output, not args.no_golden)
    else:
        report = sign_model(args.model, args.key, args.output, not args.no_golden)
    print(f"root {report.root.hex()}", file=sys.stderr)
    if report.key_id is not None:
        print(f"signed by the key with id {report.key_id.hex()}", file=sys.stderr)
    if report.golden:
        print(f"golden results in {golden_path(args.output)}", file=sys.stderr)
    print(args.output)
    return 0
