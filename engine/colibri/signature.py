# SPDX-License-Identifier: MIT
"""The signature section of a .colibri file (docs/format.md, 7): its bytes and its rules.

Standard library only: the structure is checked by every reader. `colibri.verify` checks the
signature itself, `colibri.signing` makes it.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass

from colibri import _spec as spec
from colibri._spec import Code, SignatureAlgorithm
from colibri.errors import ColibriError

_SECTION = struct.Struct("<II32s32s64s32s")
_SIGNED_BYTES = 72  # algorithm, reserved, key id, golden hash
_CHECKSUM_OFFSET = 136
_FEATURES_OFFSET = 24
NO_GOLDEN = bytes(spec.HASH_BYTES)
assert _SECTION.size == spec.SIGNATURE_SECTION_BYTES == _CHECKSUM_OFFSET + spec.HASH_BYTES


@dataclass(frozen=True)
class Signature:
    """A signature section whose structure is right.

    `key_id` is the SHA-256 of the public key, `golden` that of MODEL.golden.json (zero bytes: the
    signature does not cover one), `value` the 64 bytes of ed25519.
    """

    key_id: bytes
    golden: bytes = NO_GOLDEN
    value: bytes = bytes(64)

    def _head(self) -> bytes:
        return struct.pack("<II", SignatureAlgorithm.ED25519, 0) + self.key_id + self.golden

    def message(self, root: bytes) -> bytes:
        """What is signed: 128 bytes that begin with a domain no other use of the key has."""
        return spec.SIGNATURE_DOMAIN + self._head() + root

    def encode(self) -> bytes:
        """The section."""
        data = self._head() + self.value
        return data + hashlib.sha256(data).digest()


def key_id(public_key: bytes) -> bytes:
    """Id of a public key of 32 bytes."""
    return hashlib.sha256(public_key).digest()


def decode(data: bytes, offset: int) -> Signature:
    """The fields of a section of the right size; `offset` is its place in the file, for messages."""
    algorithm, reserved, identity, golden, value, checksum = _SECTION.unpack(data)
    if algorithm != SignatureAlgorithm.ED25519:
        raise ColibriError(Code.SIGNATURE, f"signature algorithm {algorithm} is unknown, must be 1 (ed25519)", offset)
    if reserved:
        raise ColibriError(Code.SIGNATURE, f"the reserved field of the signature is {reserved}, must be 0", offset + 4)
    if hashlib.sha256(data[:_CHECKSUM_OFFSET]).digest() != checksum:
        raise ColibriError(Code.SIGNATURE, "section signature does not match its checksum: copy the file again", offset)
    return Signature(identity, golden, value)


def read_signature(
    optional_features: int, place: tuple[int, int] | None, read: Callable[[int, int], bytes]
) -> Signature | None:
    """The signature of a file, or None; `place` is (offset, size) of its section, `read` takes the same.

    The optional feature `signed` is set exactly when the section is there.
    """
    if bool(optional_features & spec.OPTIONAL_SIGNED) != (place is not None):
        raise ColibriError(
            Code.SIGNATURE,
            "the optional feature `signed` and the signature section go together, only one is there",
            _FEATURES_OFFSET,
        )
    if place is None:
        return None
    offset, size = place
    if size != spec.SIGNATURE_SECTION_BYTES:
        raise ColibriError(
            Code.SIGNATURE, f"section signature has {size} bytes, must be {spec.SIGNATURE_SECTION_BYTES}", offset
        )
    return decode(read(offset, size), offset)
