# SPDX-License-Identifier: MIT
"""Tokenizers of SentencePiece's kind: BPE of characters, where a character without a token becomes its bytes.

Three sources give one: tokenizer.json with byte_fallback, a SentencePiece model file, and GGUF metadata of the model
`llama`. The vocabulary writes the space as U+2581; the section has a space there. Model files have no merges but
scores: SentencePiece merges the pair whose joined piece has the highest score. As ranks: every way to cut a piece into
two pieces is a merge, and its rank is the place of the piece's score among all scores, equal ones sharing a place.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from colibri._spec import (
    MAX_TOKEN_BYTES,
    MAX_TOKENIZER_BYTES,
    MAX_VOCABULARY,
    Code,
    Pretokenizer,
    TokenizerFlag,
    TokenizerKind,
)
from colibri.errors import ColibriError
from colibri.tokenizer import BYTE_TOKENS, Merge, TokenizerSpec

BLANK = "\u2581"
BYTE_NAMES = {f"<0x{byte:02X}>": byte for byte in range(BYTE_TOKENS)}
SUPPORTED = "BPE with byte_fallback, U+2581 for spaces, and a space in front of the text or none"
# The types of pieces, in model files as in GGUF
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
_BPE, _UNIGRAM = 2, 1
_KINDS = {_UNIGRAM: "Unigram", 3: "word", 4: "char"}


def _refuse(what: str, fix: str = f"supported: {SUPPORTED}") -> NoReturn:
    raise ColibriError(Code.UNSUPPORTED, f"{what}; {fix}")


@dataclass(frozen=True)
class Spacing:
    """Where a space comes in front of a text.

    lead: in front of the text ("first"), of what follows a special token too ("always"), or "never".
    keep: not in front of a space. split: no token reaches across the beginning of a space.
    """

    lead: str
    keep: bool = False
    split: bool = False

    def flags(self) -> int:
        """The flags of the section for texts that are not chats."""
        wanted = int(TokenizerFlag.BYTE_FALLBACK)
        if self.lead != "never":
            wanted |= TokenizerFlag.ADD_PREFIX_SPACE
        if self.keep:
            wanted |= TokenizerFlag.KEEP_PREFIX_SPACE
        return int(wanted)


# ---- pieces -> section --------------------------------------------------------------------------------


def piece_bytes(name: str) -> bytes:
    """The bytes of a token of ordinary text."""
    return name.replace(BLANK, " ").encode()


def first_byte_token(ids: Mapping[str, int]) -> int:
    """Id of the token of byte 0; the others follow it."""
    found = [ids.get(name) for name in BYTE_NAMES]
    missing = [byte for byte, i in enumerate(found) if i is None]
    if missing:
        _refuse(f"byte_fallback lacks {len(missing)} of 256 tokens, the first is <0x{missing[0]:02X}>")
    first = found[0] or 0
    for byte, i in enumerate(found):
        if i != first + byte:
            _refuse(f"token <0x{byte:02X}> has id {i}, not {first + byte}",
                    "the tokens of byte_fallback must follow one another")
    return first


def build(
    names: Sequence[str], ordinary: Sequence[int], specials: Sequence[int], merges: list[Merge], spacing: Spacing
) -> TokenizerSpec:
    """names: of every id, "" where there is none. ordinary: ids of text that are neither special nor of bytes."""
    first = first_byte_token({name: i for i, name in enumerate(names)})
    tokens = [name.encode() for name in names]
    for byte in range(BYTE_TOKENS):
        tokens[first + byte] = bytes((byte,))
    for i in ordinary:
        if " " in names[i]:
            _refuse(f"token {i} {names[i]!r} has a space that is not written as U+2581")
        tokens[i] = piece_bytes(names[i])
    characters = [i for i in ordinary if len(names[i]) == 1]
    if not any(names[i] == BLANK for i in characters):
        _refuse("the vocabulary has no token for a space (U+2581)")
    of_bytes = range(first, first + BYTE_TOKENS)
    for i in specials:
        if i in of_bytes:
            _refuse(f"token {i} {names[i]!r} is special and stands for a byte")
    for left, right, _, merged in merges:
        if left in of_bytes or right in of_bytes or merged in of_bytes:
            _refuse(f"a merge makes {names[merged]!r} of {names[left]!r} and {names[right]!r}, tokens of bytes")
    return TokenizerSpec(
        kind=TokenizerKind.SENTENCEPIECE_BPE,
        tokens=tokens,
        merges=merges,
        pretokenizer=Pretokenizer.NONE,
        flags=spacing.flags(),
        specials=sorted(specials),
        unk_id=first,
        literals=sorted(characters, key=lambda i: tokens[i]),
    )


@dataclass
class Pieces:
    """A vocabulary with scores. names, scores, types: of every id."""

    names: list[str]
    scores: list[float]
    types: list[int]
    spacing: Spacing
    unk: int | None = None
    bos: int | None = None
    eos: int | None = None

    def spec(self) -> TokenizerSpec:
        """The tokenizer without ends, BOS and chat form."""
        ids: dict[str, int] = {}
        for i, (name, kind) in enumerate(zip(self.names, self.types, strict=True)):
            if not name or name in ids:
                _refuse(f"piece {i} {name!r} is empty or stands twice", "save the tokenizer again")
            size = len(name.encode("utf-8", "surrogatepass"))
            if size > MAX_TOKEN_BYTES:
                raise ColibriError(
                    Code.LIMIT,
                    f"piece {i} {name[:32]!r}… has {size} bytes, the limit is {MAX_TOKEN_BYTES}; train the tokenizer "
                    "with a smaller max_sentencepiece_length",
                )
            if kind == UNUSED:
                _refuse(f"piece {i} {name!r} is of the type unused")
            if kind == USER_DEFINED and not is_marker(name):
                _refuse(f"piece {i} {name!r} is ordinary text that is found before merging (user_defined)")
            if not NORMAL <= kind <= BYTE:
                _refuse(f"piece {i} {name!r} has the type {kind}", "the types are 1 to 6")
            if (kind == BYTE) != (name in BYTE_NAMES):
                _refuse(f"piece {i} {name!r} has the type {kind}, which belongs to <0x00> to <0xFF> and no others",
                        "save the tokenizer again")
            ids[name] = i
        ordinary = [i for i, kind in enumerate(self.types) if kind == NORMAL]
        specials = [i for i, kind in enumerate(self.types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)]
        for i in specials:
            if len(self.names[i]) == 1:
                _refuse(f"piece {i} {self.names[i]!r} is a character and special")
        return build(self.names, ordinary, specials, self._merges({self.names[i]: i for i in ordinary}), self.spacing)

    def _merges(self, ids: Mapping[str, int]) -> list[Merge]:
        """Every cut of every piece, by (left, right)."""
        rows: list[tuple[int, int, int]] = []
        for name, i in ids.items():
            if len(name) > 1:
                for char in name:
                    if char not in ids:
                        _refuse(f"piece {i} {name!r} has the character {char!r}, which is no piece")
                if self.scores[i] != self.scores[i]:
                    _refuse(f"piece {i} {name!r} has no number as score", "save the tokenizer again")
            for cut in range(1, len(name)):
                left, right = ids.get(name[:cut]), ids.get(name[cut:])
                if left is not None and right is not None:
                    rows.append((left, right, i))
        scores = sorted({self.scores[i] for _, _, i in rows}, reverse=True)
        ranks = {score: rank for rank, score in enumerate(scores)}
        return sorted((left, right, ranks[self.scores[i]], i) for left, right, i in rows)


def is_marker(text: str) -> bool:
    """Whether a token that is not marked as special looks like one: <name> or [NAME]."""
    return len(text) > 2 and (text[0], text[-1]) in (("<", ">"), ("[", "]"))


# ---- tokenizer.json -----------------------------------------------------------------------------------


def members(node: Mapping[str, Any] | None, key: str) -> list[Mapping[str, Any]]:
    """The members of a Sequence, or the one node itself."""
    if node is None:
        return []
    return list(node[key]) if node.get("type") == "Sequence" else [node]


def spacing_of(data: Mapping[str, Any], dropped: Sequence[str] = ()) -> Spacing:
    """The spacing that normalizer and pre-tokenizer of a tokenizer.json make; dropped: normalizers to leave out."""
    prepends = replaces = False
    for part in members(data.get("normalizer"), "normalizers"):
        kind = part.get("type")
        if kind == "Prepend" and part.get("prepend") == BLANK:
            prepends = True
        elif kind == "Replace" and part.get("pattern") == {"String": " "} and part.get("content") == BLANK:
            replaces = True
        elif kind not in dropped:
            _refuse(f"tokenizer.json has the normalizer {kind!r} {dict(part)}")
    parts = members(data.get("pre_tokenizer"), "pretokenizers")
    kinds = [part.get("type") for part in parts]
    if kinds not in ([], ["Metaspace"]):
        _refuse(f"tokenizer.json has the pre-tokenizer {kinds} with byte_fallback")
    if not parts:
        if not replaces:
            _refuse("tokenizer.json has byte_fallback and nothing that writes spaces as U+2581")
        return Spacing("always" if prepends else "never")
    part = parts[0]
    scheme = part.get("prepend_scheme", "always" if part.get("add_prefix_space", True) else "never")
    split = part.get("split", True)
    if part.get("replacement", BLANK) != BLANK or scheme not in ("always", "first", "never") or split not in (0, 1):
        _refuse(f"tokenizer.json has the pre-tokenizer {dict(part)}")
    if prepends:
        return Spacing("always", split=split)  # what Metaspace sees begins with U+2581 already
    return Spacing(scheme, keep=scheme != "never", split=split)


def check_decoder(node: Mapping[str, Any] | None) -> None:
    """Decoding is: bytes of the tokens, U+2581 as space, one space less at the beginning."""
    known: dict[str, dict[str, Any]] = {
        "Replace": {"pattern": {"String": BLANK}, "content": " "},
        "ByteFallback": {},
        "Fuse": {},
        "Strip": {"content": " ", "start": 1, "stop": 0},
        "Metaspace": {"replacement": BLANK},
    }
    for part in members(node, "decoders"):
        options = known.get(str(part.get("type")))
        if options is None or any(part.get(key) != value for key, value in options.items()):
            _refuse(f"tokenizer.json has the decoder {dict(part)} with byte_fallback")


def within_words(merges: Sequence[Sequence[str]], spacing: Spacing) -> list[Sequence[str]]:
    """The merges that a split in front of every space leaves possible."""
    return [merge for merge in merges if not (spacing.split and merge[1].startswith(BLANK))]


# ---- chat ---------------------------------------------------------------------------------------------


def set_chat(spec: TokenizerSpec, prefix: str, suffix: str, spacing: Spacing) -> None:
    """Ids around a text. The device encodes those that are not special together with the text, as one."""

    def pieces(text: str, at_start: bool) -> list[int]:
        ids: list[int] = []
        for n, piece in enumerate(re.split(pattern, text) if marks else [text]):
            if piece in marks:
                ids.append(marks[piece])
            elif piece:
                lead = spacing.lead == "always" or (spacing.lead == "first" and n == 0)
                ids += spec.merged(piece.encode(), lead and (at_start or n > 0))
        return ids

    marks = {spec.tokens[i].decode(): i for i in reversed(spec.specials) if spec.tokens[i]}
    pattern = "(" + "|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True)) + ")"
    spec.chat_prefix = pieces(prefix, True)
    spec.chat_suffix = pieces(suffix, False)
    joined = bool(spec.chat_prefix) and spec.chat_prefix[-1] not in spec.specials
    if not joined and (spacing.lead == "always" or (spacing.lead == "first" and not prefix)):
        spec.flags |= int(TokenizerFlag.CHAT_PREFIX_SPACE)


# ---- model files --------------------------------------------------------------------------------------


class _Message:
    """The fields of a protobuf message, one after another; every length is checked before it is used."""

    def __init__(self, data: memoryview, what: str) -> None:
        self.data = data
        self.what = what
        self.at = 0

    def fail(self, why: str) -> NoReturn:
        raise ColibriError(Code.ARGUMENT, f"{self.what} is malformed at byte {self.at}: {why}; copy the file again")

    def _varint(self) -> int:
        value = shift = 0
        while shift < 64:
            if self.at >= len(self.data):
                self.fail("it ends inside a number")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        self.fail("a number has more than 64 bits")

    def fields(self) -> Iterator[tuple[int, int | memoryview]]:
        """(field number, value): a number, or the bytes of a fixed or counted field."""
        while self.at < len(self.data):
            tag = self._varint()
            wire = tag & 7
            if tag >> 3 == 0 or wire not in (0, 1, 2, 5):
                self.fail(f"field {tag >> 3} has wire type {wire}")
            if wire == 0:
                yield tag >> 3, self._varint()
                continue
            count = self._varint() if wire == 2 else 8 if wire == 1 else 4
            if count > len(self.data) - self.at:
                self.fail(f"field {tag >> 3} has {count} bytes, {len(self.data) - self.at} are left")
            self.at += count
            yield tag >> 3, self.data[self.at - count : self.at]

    def number(self, value: int | memoryview) -> int:
        """A field that must be a number; negative ones are stored as 64 bits."""
        if not isinstance(value, int):
            self.fail("a field that must be a number is none")
        return value - (1 << 64) if value >> 63 else value

    def bytes(self, value: int | memoryview, count: int | None = None) -> memoryview:
        """A field that must be bytes."""
        if isinstance(value, int) or (count is not None and len(value) != count):
            self.fail("a field that must be bytes is a number, or of another length")
        return value


def _piece(message: _Message) -> tuple[str, float, int]:
    name, score, kind = "", 0.0, NORMAL
    for field, value in message.fields():
        if field == 1:
            try:
                name = bytes(message.bytes(value)).decode()
            except UnicodeDecodeError:
                message.fail("a piece is not UTF-8")
        elif field == 2:
            score = struct.unpack("<f", message.bytes(value, 4))[0]
        elif field == 3:
            kind = message.number(value)
    return name, score, kind


def _settings(message: _Message, names: Mapping[int, str]) -> dict[str, Any]:
    """The fields that have a name here; of one that stands twice the last holds."""
    return {names[field]: value for field, value in message.fields() if field in names}


def read_model(data: bytes, what: str) -> Pieces:
    """A SentencePiece model file (the message ModelProto). what: names the file in errors."""
    if len(data) > MAX_TOKENIZER_BYTES:
        raise ColibriError(Code.LIMIT, f"{what} has {len(data)} bytes, the limit is {MAX_TOKENIZER_BYTES}")
    message = _Message(memoryview(data), what)
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[str, Any] = {}
    normalizer: dict[str, Any] = {}
    for field, value in message.fields():
        if field not in (1, 2, 3):
            continue
        part = _Message(message.bytes(value), what)
        if field == 1:
            if len(pieces) >= MAX_VOCABULARY:
                raise ColibriError(Code.LIMIT, f"{what} has more than {MAX_VOCABULARY} pieces")
            pieces.append(_piece(part))
        elif field == 2:
            trainer |= _settings(part, {3: "model", 24: "suffix", 35: "fallback", 40: "unk", 41: "bos", 42: "eos"})
        else:
            normalizer |= _settings(part, {2: "map", 3: "prefix", 4: "strip", 5: "escape", 6: "rules"})
    if not pieces:
        message.fail("it has no pieces")
    model = message.number(trainer.get("model", _UNIGRAM))
    if model != _BPE:
        _refuse(f"{what} is a {_KINDS.get(model, model)} model")
    if not message.number(trainer.get("fallback", 0)):
        _refuse(f"{what} has no byte_fallback")
    if message.number(trainer.get("suffix", 0)):
        _refuse(f"{what} writes spaces behind words (treat_whitespace_as_suffix)")
    for key in ("map", "rules"):
        if len(message.bytes(normalizer.get(key, memoryview(b"")))):
            _refuse(f"{what} normalises texts (its map is not that of the name identity)")
    if message.number(normalizer.get("strip", 1)):
        _refuse(f"{what} removes spaces (remove_extra_whitespaces)")
    if not message.number(normalizer.get("escape", 1)):
        _refuse(f"{what} does not write spaces as U+2581 (escape_whitespaces)")
    ids = {key: message.number(trainer.get(key, default)) for key, default in (("unk", 0), ("bos", 1), ("eos", 2))}
    known = {key: i if 0 <= i < len(pieces) else None for key, i in ids.items()}
    names, scores, types = ([piece[n] for piece in pieces] for n in range(3))
    lead = "always" if message.number(normalizer.get("prefix", 1)) else "never"
    return Pieces(names, scores, types, Spacing(lead), **known)  # type: ignore[arg-type]


def from_scores(names: Sequence[str], scores: Sequence[float], types: Sequence[int], lead: bool) -> Pieces:
    """GGUF metadata of the model llama."""
    return Pieces(list(names), list(scores), list(types), Spacing("always" if lead else "never"))
