# SPDX-License-Identifier: MIT
"""Who signed a model: public keys, the check of a signature, and the policy of `colibri verify`.

Reading keys and files needs nothing; checking a signature needs the package cryptography
(the extra `sign`).
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import os
import re
from pathlib import Path

from colibri import _spec as spec
from colibri._spec import Code, Section
from colibri.errors import ColibriError, MissingPackage
from colibri.files import parse_json, read_regular
from colibri.format import ModelFile, open_model
from colibri.signature import NO_GOLDEN, Signature, key_id

KEY_BYTES = 32
MAX_KEY_FILE_BYTES = 4096
SIGNED_ONLY_VARIABLE = "COLIBRI_SIGNED_ONLY"
_PEM_BEGIN, _PEM_END = b"-----BEGIN PUBLIC KEY-----", b"-----END PUBLIC KEY-----"
# SubjectPublicKeyInfo of RFC 8410: SEQUENCE { SEQUENCE { 1.3.101.112 }, BIT STRING of 256 bits }
_SPKI_PREFIX = bytes.fromhex("302a300506032b6570032100")

_P = 2**255 - 19
_L = 2**252 + 27742317777372353535851937790883648493
# y of the points whose order divides 8: what is "signed" by such a key holds for many messages.
_SMALL_ORDER_Y = {
    0,
    1,
    _P - 1,
    2707385501144840649318225287225658788936804267575313519463743609750303402022,
    55188659117513257062467267217118295137698188065244968500265048394206261417927,
}


def _invalid(path: Path, reason: str) -> ColibriError:
    return ColibriError(
        Code.ARGUMENT,
        f"{path}: {reason}; give a public key of 32 raw bytes, 64 hexadecimal digits, or PEM as "
        "`openssl pkey -in key.pem -pubout` writes it",
    )


def load_public_key(path: Path) -> bytes:
    """The 32 bytes of a public key file: raw, hexadecimal, or PEM."""
    data = read_regular(path, MAX_KEY_FILE_BYTES)
    if len(data) == KEY_BYTES:
        return data
    text = data.strip(b" \t\r\n")
    if b"PRIVATE KEY" in text:
        raise _invalid(path, "this is a private key, which no device may see")
    if text.startswith(_PEM_BEGIN) and text.endswith(_PEM_END):
        body = b"".join(text[len(_PEM_BEGIN) : -len(_PEM_END)].split())
        try:
            der = base64.b64decode(body, validate=True)
        except binascii.Error as error:
            raise _invalid(path, f"its base64 is wrong ({error})") from error
        canonical = base64.b64encode(der) == body
        if not canonical or len(der) != len(_SPKI_PREFIX) + KEY_BYTES or not der.startswith(_SPKI_PREFIX):
            raise _invalid(path, "this PEM file holds no ed25519 key")
        return der[len(_SPKI_PREFIX) :]
    if len(text) == 2 * KEY_BYTES:
        try:
            return binascii.unhexlify(text)
        except binascii.Error:
            pass
    raise _invalid(path, f"{len(data)} bytes are no public key")


def need_cryptography() -> None:
    """Fail with the name of the extra when cryptography is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise MissingPackage("signatures need", "cryptography", "sign") from error


def _weak_point(encoded: bytes) -> bool:
    """Whether 32 bytes are no canonical encoding of a point, or one of a point of small order."""
    y = int.from_bytes(encoded, "little") & (2**255 - 1)
    return y >= _P or y in _SMALL_ORDER_Y


def ed25519_verify(public_key: bytes, value: bytes, message: bytes) -> bool:
    """Whether `value` (64 bytes) is the key's signature over the message.

    As strict as libsodium, so that device and host agree: s below the order of the group, canonical
    encodings, no points of small order.
    """
    need_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if _weak_point(public_key) or _weak_point(value[:32]) or int.from_bytes(value[32:], "little") >= _L:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(value, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def check_signature(model: ModelFile, public_key: bytes | None, signed_only: bool = False) -> Signature | None:
    """Refuse a model that is not signed by the key; naming a key asks for a signature.

    Without a key and without `signed_only` nothing is checked: what the file carries is returned.
    """
    signature = model.signature
    if signed_only and public_key is None:
        raise ColibriError(Code.ARGUMENT, "signed-only needs the key to trust; give --public-key FILE")
    if public_key is None:
        return signature
    need_cryptography()
    if signature is None:
        raise ColibriError(
            Code.SIGNATURE,
            f"{model.path} is not signed and only signed models are accepted; sign it with `colibri sign`",
        )
    offset = model.sections[Section.SIGNATURE].offset
    trusted = key_id(public_key)
    if signature.key_id != trusted:
        raise ColibriError(
            Code.SIGNATURE,
            f"{model.path} is signed by the key with id {signature.key_id.hex()}, the trusted key has id "
            f"{trusted.hex()}",
            offset + 8,
        )
    if not ed25519_verify(public_key, signature.value, signature.message(model.root)):
        raise ColibriError(
            Code.SIGNATURE,
            f"the signature of {model.path} is not one of the trusted key over its root: it was changed or signed "
            "wrongly; fetch it again from a source you trust",
            offset + 72,
        )
    return signature


def golden_path(model: str | os.PathLike[str]) -> Path:
    """MODEL.golden.json beside MODEL.colibri."""
    return Path(model).with_suffix(".golden.json")


def _root_in_header(path: Path) -> bytes | None:
    """The root that a file's header names; None when it is no model, or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        head = os.pread(descriptor, spec.HEADER_BYTES, 0)
    except OSError:  # a folder
        return None
    finally:
        os.close(descriptor)
    return head[spec.ROOT_OFFSET : spec.ROOT_OFFSET + spec.HASH_BYTES] if head.startswith(spec.MAGIC) else None


def refuse_golden_of_others(golden: Path, model: Path) -> None:
    """Refuse to replace or remove golden results that are those of another model beside them.

    Names that differ in their last suffix alone have the same golden file.
    """
    try:
        root = parse_json(read_regular(golden), str(golden)).get("root")
    except ColibriError:
        return  # nothing there, or no golden results
    for path in sorted(golden.parent.iterdir()):
        if path.name == model.name and path.resolve() == model.resolve():
            continue
        found = _root_in_header(path) if golden_path(path) == golden else None
        if found is not None and found.hex() == root:
            raise ColibriError(
                Code.ARGUMENT,
                f"the golden results of {model} would replace {golden}, those of {path}: give the model a name that "
                "differs before its last suffix, or another folder",
            )


def golden_under_root(model: ModelFile, root: bytes) -> bytes | None:
    """The golden results beside the model, which must exist, with this root for the old one; None: of another model."""
    path, old = golden_path(model.path), model.root.hex()
    text = read_regular(path)
    if parse_json(text, str(path)).get("root") != old or text.count(old.encode()) != 1:
        return None
    return text.replace(old.encode(), root.hex().encode())


def check_golden(model: ModelFile, signature: Signature | None) -> bool:
    """Compare the golden results beside a model with the hash that its signature covers.

    False when there is nothing to compare: no signature, none covered, or no file.
    """
    path = golden_path(model.path)
    if signature is None or signature.golden == NO_GOLDEN or not path.exists():
        return False
    found = hashlib.sha256(read_regular(path)).digest()
    if found != signature.golden:
        raise ColibriError(
            Code.SIGNATURE, f"{path} has the SHA-256 {found.hex()}, the model was signed with {signature.golden.hex()}"
        )
    return True


def environment_word(name: str, tighten: str = "1", neutral: str = "0") -> bool:
    """Whether the environment tightens an option; a word that is neither is refused."""
    value = os.environ.get(name, "")
    if value not in ("", tighten, neutral):
        raise ColibriError(
            Code.ARGUMENT,
            f"environment variable {name} is {value!r}: set it to {tighten!r} or {neutral!r}, or unset it",
        )
    return value == tighten


def add_verify_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `colibri verify`."""
    parser.add_argument("model", metavar="MODEL", help="a .colibri file")
    parser.add_argument("--root", metavar="HEX", help="fail when the root hash is another one")
    parser.add_argument(
        "-k", "--public-key", metavar="FILE", type=Path, help="ed25519 key to trust: what it did not sign is refused"
    )
    parser.add_argument(
        "--signed-only", action="store_true", help="refuse a model without a signature of the trusted key"
    )


def verify_command(args: argparse.Namespace) -> int:
    """`colibri verify`."""
    public_key = None if args.public_key is None else load_public_key(args.public_key)
    signed_only = args.signed_only or environment_word(SIGNED_ONLY_VARIABLE)
    expected = None if args.root is None else args.root.lower()
    if expected is not None and re.fullmatch("[0-9a-f]{64}", expected) is None:
        raise ColibriError(
            Code.ARGUMENT, f"--root {args.root!r} is no root hash; give the 64 hexadecimal digits of `colibri inspect`"
        )
    with open_model(args.model) as model:
        if expected is not None and expected != model.root.hex():
            raise ColibriError(Code.ROOT_MISMATCH, f"{args.model} has the root {model.root.hex()}, not {args.root}")
        signature = check_signature(model, public_key, signed_only)
        golden = check_golden(model, signature)
        model.verify()
        state = "none" if signature is None else "unchecked" if public_key is None else "verified"
        counted = f"{model.file_bytes:,} bytes with {len(model.extents)} extents"  # as colibrictl counts
        print(f"{args.model}: ok, {counted}, root {model.root.hex()}")
        print(f"signature: {state}" + ("" if signature is None else f" key_id={signature.key_id.hex()}"))
        if golden:
            print(f"golden results: {golden_path(model.path)} is what was signed with the model")
    return 0
