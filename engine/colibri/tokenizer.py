# SPDX-License-Identifier: MIT
"""The tokenizer section of a model file: built, written, read with every check, and executed.

`TokenizerSpec` is the section in memory. Two loaders make one (`from_huggingface`, `from_gguf_metadata`),
`to_section` and `from_section` are its bytes (docs/format.md, section 6), and `encode` and `decode` run it.
The encoder here shares nothing with the C one but the section: a regex engine over character classes instead of
tables of a matcher, a lazy priority queue instead of an indexed heap. Tests compare the two for equality.
"""

from __future__ import annotations

import heapq
import re
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from pathlib import Path
from typing import NoReturn

from colibri import _spec
from colibri._spec import CharacterClass, Code, Normalizer, Pretokenizer, TokenizerFlag, TokenizerHeader, TokenizerKind
from colibri.errors import ColibriError

HEADER = struct.Struct(TokenizerHeader.STRUCT)
BYTE_TOKENS = 256
KINDS_BUILT = (TokenizerKind.BYTE_BPE, TokenizerKind.SENTENCEPIECE_BPE)
FLAGS_KNOWN = sum(int(flag) for flag in TokenizerFlag)
_BYTE_FLAGS = int(TokenizerFlag.ADD_BOS | TokenizerFlag.IGNORE_MERGES)
_FALLBACK = int(TokenizerFlag.BYTE_FALLBACK)
FLAGS_BUILT: dict[TokenizerKind, list[int]] = {
    TokenizerKind.BYTE_BPE: [flags for flags in range(FLAGS_KNOWN + 1) if not flags & ~_BYTE_FLAGS],
    TokenizerKind.SENTENCEPIECE_BPE: [
        flags for flags in range(FLAGS_KNOWN + 1) if flags & _FALLBACK and not flags & TokenizerFlag.IGNORE_MERGES
    ],
}
PRETOKENIZERS_BUILT: dict[TokenizerKind, list[Pretokenizer]] = {
    TokenizerKind.BYTE_BPE: list(Pretokenizer),
    TokenizerKind.SENTENCEPIECE_BPE: [Pretokenizer.NONE],
}
BLANK = "\u2581".encode()  # how vocabularies of SentencePiece write the space
_LETTER, _NUMBER, _SPACE = (int(k) for k in (CharacterClass.LETTER, CharacterClass.NUMBER, CharacterClass.SPACE))
_MARK, _UPPER, _LOWER = (int(k) for k in (CharacterClass.MARK, CharacterClass.UPPER, CharacterClass.LOWER))
_SIGN, _ASIAN, _BASIC = (int(k) for k in (CharacterClass.PUNCTUATION, CharacterClass.ASIAN, CharacterClass.BASIC))
_PLAIN = (_LETTER, _NUMBER, _SPACE)
_ALL_SPACES = (_SPACE, _SPACE + _ASIAN, _SPACE + _ASIAN + _BASIC)
CLASSES_BUILT: dict[Pretokenizer, tuple[int, ...]] = {
    **dict.fromkeys(Pretokenizer, _PLAIN),
    Pretokenizer.O200K: (*_PLAIN, _MARK, _UPPER, _LOWER),
    Pretokenizer.DEEPSEEK_V2: (
        _LETTER, _LETTER + _ASIAN, _LETTER + _BASIC, _NUMBER, _NUMBER + _ASIAN, *_ALL_SPACES, _SIGN, _SIGN + _ASIAN,
        _ASIAN,
    ),
    Pretokenizer.DEEPSEEK_V3: (
        *_PLAIN, _LETTER + _ASIAN, _LETTER + _BASIC, _SIGN, _SIGN + _ASIAN, _SIGN + _BASIC, _ASIAN,
    ),
}  # fmt: skip

# A text is turned into one symbol per character before the regexes see it: the one of its class, for characters of
# contractions one of their class and of themselves, and for those that every pattern names the character.
_SYMBOLS = {kind: chr(0x2460 + kind) for kind in range(32)}
_SHORTENED = "'STREMVLDstremvld\u017f"


class _Steps:
    """A pre-tokenizer over symbols: regexes one after another, each isolates what it matches."""

    def __init__(self, classes: Sequence[int], patterns: Sequence[str]) -> None:
        """patterns: regexes in which {name} is a set of symbols."""
        kinds = (int(CharacterClass.OTHER), *classes)

        def every(wanted: Iterable[int]) -> str:
            return "".join(self.symbol(char, kind) for kind in wanted for char in ("", *_SHORTENED))

        def of(*wanted: int) -> str:
            return every(kind for kind in kinds if kind & 7 in wanted)

        def without(excluded: str) -> str:
            return "".join(symbol for symbol in every(kinds) + " \r\n/" if symbol not in excluded)

        newlines, numbers, signs = "\r\n", of(_NUMBER), of(_SIGN) + "/"
        spaces, letters = of(_SPACE) + " " + newlines, of(_LETTER, _UPPER, _LOWER)
        self.sets = {
            "space": spaces,
            "letter": letters,
            "number": numbers,
            "other": without(spaces + letters + numbers),
            "lead": without(newlines + letters + numbers),
            "big": of(_UPPER, _LETTER, _MARK),
            "small": of(_LOWER, _LETTER, _MARK),
            "sign": signs,
            "sign_or_basic": signs + every(kind for kind in kinds if kind & _BASIC),
            "asian": every(kind for kind in kinds if kind & _ASIAN),
            "ascii_sign": every([_SIGN + _BASIC]) + "/",
            "ascii_letter": every([_LETTER + _BASIC]),
            "v3_lead": without(newlines + letters + signs),
        }
        for char in _SHORTENED:
            self.sets[char] = "".join(self.symbol(char, kind) for kind in kinds)
        for char in "stremvld":  # ignoring case, 's' is also U+017F, the long s
            self.sets[f"any_{char}"] = self.sets[char] + self.sets[char.upper()] + self.sets["\u017f"] * (char == "s")
        self.regexes = [re.compile(re.sub(r"\{([a-z']\w*)\}", self._set, pattern)) for pattern in patterns]

    @staticmethod
    def symbol(char: str, kind: int) -> str:
        """Of a character; of one that no pattern names when char is empty."""
        if char and char in " \r\n/":
            return char
        return chr(0xE000 + 32 * kind + _SHORTENED.index(char)) if char and char in _SHORTENED else _SYMBOLS[kind]

    def _set(self, name: re.Match[str]) -> str:
        return f"[{re.escape(self.sets[name[1]])}]"

    def split(self, symbols: str) -> list[tuple[int, int]]:
        """First and last place of each piece."""
        spans = [(0, len(symbols))]
        for regex in self.regexes:
            spans = [(a + c, a + d) for a, b in spans for c, d in self._isolated(regex, symbols[a:b])]
        return [(a, b) for a, b in spans if a < b]

    def _isolated(self, regex: re.Pattern[str], symbols: str) -> Iterator[tuple[int, int]]:
        at = 0
        for match in regex.finditer(symbols):
            yield at, match.start()
            yield match.span()
            at = match.end()
        yield at, len(symbols)


_TAIL = r"{space}+(?={space}|\Z)|{space}+"
_LINES = r"{space}*[\r\n]+"
_SHORT = "{'}(?:{s}|{t}|{r}{e}|{v}{e}|{m}|{l}{l}|{d})"
_FOLDED = re.sub(r"\{(\w)", r"{any_\1", _SHORT)
_GPT2 = _SHORT + r"| ?{letter}+| ?{number}+| ?{other}+|" + _TAIL
_MODERN = _FOLDED + rf"|{{lead}}?{{letter}}+|%s| ?{{other}}+[\r\n]*|{_LINES}|{_TAIL}"
_CASED = rf"{{lead}}?{{big}}*{{small}}+(?:{_FOLDED})?|{{lead}}?{{big}}+{{small}}*(?:{_FOLDED})?"
_V3 = r"{ascii_sign}{ascii_letter}+|{v3_lead}?{letter}+| ?{sign}+[\r\n]*"
_PATTERNS: dict[Pretokenizer, tuple[str, ...]] = {
    Pretokenizer.NONE: (),
    Pretokenizer.GPT2: (_GPT2,),
    Pretokenizer.SMOLLM: ("{number}", _GPT2),
    Pretokenizer.LLAMA3: (_MODERN % "{number}{1,3}",),
    Pretokenizer.QWEN2: (_MODERN % "{number}",),
    Pretokenizer.O200K: (rf"{_CASED}|{{number}}{{1,3}}| ?{{other}}+[\r\n/]*|{_LINES}|{_TAIL}",),
    Pretokenizer.DEEPSEEK_V2: (
        r"[\r\n]", "{space}?{letter}+", "{space}?{sign_or_basic}+",
        r"(?<!{space}){space}+\Z",  # only where a run begins can one begin that reaches the end
        "{asian}+", "{number}",
    ),
    Pretokenizer.DEEPSEEK_V3: ("{number}{1,3}", "{asian}+", f"{_V3}|{_LINES}|{_TAIL}"),
}  # fmt: skip


@cache
def _steps(kind: Pretokenizer) -> _Steps:
    return _Steps(CLASSES_BUILT[kind], _PATTERNS[kind])


Merge = tuple[int, int, int, int]
"""Left id, right id, rank (lower merges first), id of the merged token."""


def _malformed(message: str, offset: int | None = None) -> NoReturn:
    raise ColibriError(Code.TOKENIZER, message, offset)


def _words(values: Iterable[int]) -> bytes:
    words = array("I", values)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


@dataclass
class TokenizerSpec:
    """A BPE tokenizer, of bytes or of characters (SentencePiece), with its chat form.

    tokens: the bytes of each id. merges: sorted by (left, right). specials, ends: ascending ids.
    class_ranges: (first code point, last code point, CharacterClass), ascending.
    literals: ids, by their bytes, of ordinary text that is matched before the text is split; of kind
    sentencepiece_bpe the tokens that a text is made of before merging: its characters.
    unk_id: with byte_fallback the token of byte 0; those of the other bytes follow it.
    chat_prefix, chat_suffix: ids around the user's text; both empty when the model has no chat form.
    Lookup tables are made at the first use: change tokens or merges with dataclasses.replace only.
    """

    tokens: list[bytes]
    merges: list[Merge]
    pretokenizer: Pretokenizer
    flags: int = 0
    specials: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    bos_id: int | None = None
    unk_id: int | None = None
    chat_prefix: list[int] = field(default_factory=list)
    chat_suffix: list[int] = field(default_factory=list)
    class_ranges: list[tuple[int, int, int]] = field(default_factory=list)
    unicode_version: int = 0
    literals: list[int] = field(default_factory=list)
    kind: TokenizerKind = TokenizerKind.BYTE_BPE

    # ---- loaders ----------------------------------------------------------------------------------

    @classmethod
    def from_huggingface(
        cls, directory: str | Path, *, chat: bool = True, system: str | None = None, drop_nfc: bool = False
    ) -> TokenizerSpec:
        """From tokenizer.json, tokenizer_config.json, generation_config.json and chat_template.jinja of a checkpoint.

        chat: render the chat template (needs jinja2). system: a system message instead of the template's own.
        drop_nfc: accept a tokenizer that normalises to NFC; texts that are not NFC then get other ids.
        """
        from colibri.tokenizer_import import from_huggingface

        return from_huggingface(Path(directory), chat=chat, system=system, drop_nfc=drop_nfc)

    @classmethod
    def from_gguf_metadata(
        cls, metadata: Mapping[str, object], *, chat: bool = True, system: str | None = None
    ) -> TokenizerSpec:
        """From the key-value pairs of a GGUF file (str, int, bool, list), keys `tokenizer.*`."""
        from colibri.tokenizer_import import from_gguf_metadata

        return from_gguf_metadata(metadata, chat=chat, system=system)

    # ---- section ----------------------------------------------------------------------------------

    @property
    def has_chat(self) -> bool:
        """Whether `encode(..., chat=True)` is possible."""
        return bool(self.chat_prefix or self.chat_suffix)

    def to_section(self) -> bytes:
        """The section's bytes; what the reader would refuse is refused here, with the reader's error."""
        try:
            section = self._pack()
        except (OverflowError, TypeError, struct.error) as error:
            raise ColibriError(Code.TOKENIZER, f"an id of the tokenizer is no number of 32 bits: {error}") from error
        TokenizerSpec.from_section(section)
        return section

    def _pack(self) -> bytes:
        text = b"".join(self.tokens)
        header = TokenizerHeader(
            kind=self.kind,
            pretokenizer=self.pretokenizer,
            normalizer=Normalizer.NONE,
            flags=self.flags,
            unicode_version=self.unicode_version,
            tokens=len(self.tokens),
            merges=len(self.merges),
            specials=len(self.specials),
            ends=len(self.ends),
            class_ranges=len(self.class_ranges),
            chat_prefix=len(self.chat_prefix),
            chat_suffix=len(self.chat_suffix),
            text_bytes=len(text),
            bos_id=_spec.NONE_INDEX if self.bos_id is None else self.bos_id,
            unk_id=_spec.NONE_INDEX if self.unk_id is None else self.unk_id,
            literals=len(self.literals),
        )
        offsets = [0]
        for token in self.tokens:
            offsets.append(offsets[-1] + len(token))
        parts = [
            HEADER.pack(*(getattr(header, f.name) for f in fields(header))),
            _words(offsets),
            _words(value for merge in self.merges for value in merge),
            _words(self.specials),
            _words(self.ends),
            _words(self.literals),
            _words(value for a, b, kind in self.class_ranges for value in (a | kind << 24, b)),
            _words(self.chat_prefix),
            _words(self.chat_suffix),
            _words(self._sorted_ids()) if self.flags & TokenizerFlag.IGNORE_MERGES else b"",
            text,
        ]
        return b"".join(parts)

    @classmethod
    def from_section(cls, section: bytes, vocabulary: int | None = None) -> TokenizerSpec:
        """Read and check every rule of docs/format.md, section 6, in the order of the C reader.

        vocabulary: size of the model's vocabulary; None leaves that one check out.
        """
        return _Reader(section).read(vocabulary)

    def _sorted_ids(self) -> list[int]:
        """Ids that are not special, by (bytes, id): what ignore_merges looks whole words up in."""
        special = set(self.specials)
        return sorted((i for i in range(len(self.tokens)) if i not in special), key=lambda i: (self.tokens[i], i))

    # ---- execution --------------------------------------------------------------------------------

    def encode(self, text: str | bytes, chat: bool = False) -> list[int]:
        """Ids of a text. Special tokens in it are ordinary characters; chat wraps it in prefix and suffix."""
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        if chat and not self.has_chat:
            raise ColibriError(Code.NO_CHAT, "the tokenizer has no chat form: use the text as it is")
        if self.of_characters and chat:
            return self._encode_chat(data)
        ids = list(self.chat_prefix) if chat else []
        if not chat and self.flags & TokenizerFlag.ADD_BOS and self.bos_id is not None:
            ids.append(self.bos_id)
        if self.of_characters:
            lead = bool(self.flags & TokenizerFlag.ADD_PREFIX_SPACE)
            return ids + self.merged(data, lead)
        for piece in self._cut(data):
            ids += [piece] if isinstance(piece, int) else self._encode_piece(piece)
        return ids + (list(self.chat_suffix) if chat else [])

    @property
    def of_characters(self) -> bool:
        """Whether the symbols before merging are characters, not bytes."""
        return self.kind == TokenizerKind.SENTENCEPIECE_BPE

    def _encode_chat(self, data: bytes) -> list[int]:
        """The text and what stands around it as one word: special tokens as such, the others as text."""
        special = set(self.specials)
        before: list[int] = []
        for i in self.chat_prefix:
            before += [i] if i in special else self._symbols_of(self.tokens[i], False)
        lead = bool(self.flags & TokenizerFlag.CHAT_PREFIX_SPACE)
        middle = self._symbols_of(data, lead)
        lead = lead and not data
        after: list[int] = []
        for i in self.chat_suffix:
            after += [i] if i in special else self._symbols_of(self.tokens[i], lead)
            lead = lead and not (i in special or self.tokens[i])
        return self._merge_symbols(before + middle + after)

    def merged(self, data: bytes, lead: bool) -> list[int]:
        """Ids of a text as one word of kind sentencepiece_bpe; lead: with a space in front."""
        return self._merge_symbols(self._symbols_of(data, lead))

    def _symbols_of(self, data: bytes, lead: bool) -> list[int]:
        """What a text is made of before merging: the longest literal at each place, else the token of the byte.

        lead: put a space in front, unless the text is empty or, with keep_prefix_space, begins with one.
        """
        space = self._literal_ids.get(b" ")
        ids: list[int] = []
        at = 0
        while at < len(data):
            found = next((n for n in self._literal_sizes if data[at : at + n] in self._literal_ids), 0)
            if found:
                ids.append(self._literal_ids[data[at : at + found]])
                at += found
            elif space is not None and data.startswith(BLANK, at):
                ids.append(space)
                at += len(BLANK)
            else:
                ids.append((self.unk_id or 0) + data[at])
                at += 1
        keep = self.flags & TokenizerFlag.KEEP_PREFIX_SPACE
        if lead and ids and space is not None and not (keep and ids[0] == space):
            ids.insert(0, space)
        return ids

    def _cut(self, data: bytes) -> Iterator[bytes | int]:
        """Stretches of text and, between them, the ids of literals: leftmost first, the longest of those."""
        if self._literal is None:
            yield data
            return
        at = 0
        for match in self._literal.finditer(data):
            yield data[at : match.start()]
            yield self._literal_ids[match.group()]
            at = match.end()
        yield data[at:]

    def _encode_piece(self, data: bytes) -> list[int]:
        return [i for word in self.split(data) for i in self._encode_word(word)]

    def encode_marked(self, text: str) -> list[int]:
        """Ids of a rendered template: special tokens in it, longest first, become their ids. No BOS is added.

        byte_bpe only; what kind sentencepiece_bpe needs is in colibri.tokenizer_sentencepiece.
        """
        marks = {self.tokens[i]: i for i in reversed(self.specials + self.literals) if self.tokens[i]}
        if not marks:
            return self._encode_piece(text.encode())
        pattern = b"|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True))
        ids: list[int] = []
        for piece in re.split(b"(" + pattern + b")", text.encode()):
            if piece in marks:
                ids.append(marks[piece])
            else:
                ids += self._encode_piece(piece)
        return ids

    def decode(self, ids: Sequence[int]) -> bytes:
        """Bytes of the ids, one after another, special tokens included."""
        for i in ids:
            if not 0 <= i < len(self.tokens):
                raise ColibriError(
                    Code.TOKEN_RANGE, f"token id {i} has no text: the tokenizer has ids 0..{len(self.tokens) - 1}"
                )
        return b"".join(self.tokens[i] for i in ids)

    def split(self, data: bytes) -> list[bytes]:
        """The pre-tokens of a text; an invalid byte is one character of class other."""
        text = data.decode("utf-8", "surrogateescape")
        steps = _steps(self.pretokenizer)
        spans = steps.split("".join(map(self._symbol, text)))
        return [text[a:b].encode("utf-8", "surrogateescape") for a, b in spans]

    def _symbol(self, char: str) -> str:
        known = self._symbols.get(char)
        if known is None:
            code = ord(char)
            i = bisect_right(self._range_starts, code) - 1
            kind = self.class_ranges[i][2] if i >= 0 and code <= self.class_ranges[i][1] else 0
            if 0xD800 <= code < 0xE000:  # what an invalid byte is decoded to
                kind = int(CharacterClass.OTHER)
            known = self._symbols[char] = _Steps.symbol(char, kind)
        return known

    @cached_property
    def _symbols(self) -> dict[str, str]:
        return {}

    @cached_property
    def _literal_ids(self) -> dict[bytes, int]:
        return {self.tokens[i]: i for i in self.literals}

    @cached_property
    def _literal_sizes(self) -> list[int]:
        return sorted({len(text) for text in self._literal_ids}, reverse=True)

    @cached_property
    def _literal(self) -> re.Pattern[bytes] | None:
        texts = sorted(self._literal_ids, key=len, reverse=True)
        return re.compile(b"|".join(map(re.escape, texts))) if texts else None

    @cached_property
    def _range_starts(self) -> list[int]:
        return [row[0] for row in self.class_ranges]

    @cached_property
    def _pairs(self) -> dict[tuple[int, int], tuple[int, int]]:
        return {(left, right): (rank, merged) for left, right, rank, merged in self.merges}

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """Lowest id of each text that is not special."""
        special = set(self.specials)
        return {t: i for i, t in reversed(list(enumerate(self.tokens))) if i not in special}

    @cached_property
    def _encoded(self) -> dict[bytes, list[int]]:
        return {}

    def _encode_word(self, word: bytes) -> list[int]:
        known = self._encoded.get(word)
        if known is None:
            known = self._merge(word)
            if len(word) <= 64:
                self._encoded[word] = known
        return known

    def _merge(self, word: bytes) -> list[int]:
        """Lowest rank first, leftmost among equals, one pair at a time."""
        if self.flags & TokenizerFlag.IGNORE_MERGES and word in self._ids:
            return [self._ids[word]]
        ids = []
        for value in word:
            found = self._ids.get(bytes((value,)), self.unk_id)
            if found is not None:
                ids.append(found)
        return self._merge_symbols(ids)

    def _merge_symbols(self, ids: list[int]) -> list[int]:
        count = len(ids)
        after = list(range(1, count + 1))
        before = list(range(-1, count - 1))
        queue: list[tuple[int, int, int, int, int]] = []

        def push(i: int) -> None:
            j = after[i]
            if j < count:
                pair = self._pairs.get((ids[i], ids[j]))
                if pair is not None:
                    heapq.heappush(queue, (pair[0], i, ids[i], ids[j], pair[1]))

        for i in range(count):
            push(i)
        while queue:
            _, i, left, right, merged = heapq.heappop(queue)
            j = after[i]
            if ids[i] != left or j >= count or ids[j] != right:
                continue  # one of the two was merged since this entry was made
            ids[i], ids[j] = merged, -1
            after[i] = after[j]
            if after[j] < count:
                before[after[j]] = i
            push(i)
            if before[i] >= 0:
                push(before[i])
        return [i for i in ids if i >= 0]


class _Reader:
    """Checks a section in the order of engine/native/src/tokenizer.c, so that both give one code for one file."""

    def __init__(self, section: bytes) -> None:
        self.section = section
        self.at = HEADER.size

    def read(self, vocabulary: int | None) -> TokenizerSpec:
        size = len(self.section)
        if size < HEADER.size:
            _malformed(f"tokenizer section is {size} bytes, its head alone is {HEADER.size}")
        if size > _spec.MAX_TOKENIZER_BYTES:
            raise ColibriError(
                Code.LIMIT, f"tokenizer section is {size} bytes, the limit is {_spec.MAX_TOKENIZER_BYTES}"
            )
        head = TokenizerHeader(*HEADER.unpack_from(self.section))
        self._check_kinds(head)
        self._check_counts(head, vocabulary)
        tokens = self._tokens(head)
        merges = self._words(head.merges * 4)
        specials = self._ascending(head.specials, head.tokens, "special")
        ends = self._ascending(head.ends, head.tokens, "end")
        literals = self._literals(head, tokens, set(specials))
        bos, unk = (self._optional(value, head.tokens, name) for value, name in
                    ((head.bos_id, "bos"), (head.unk_id, "unk")))
        if head.flags & TokenizerFlag.ADD_BOS and bos is None:
            _malformed("flag add_bos is set and there is no bos_id: give one or clear the flag")
        self._byte_tokens(head, tokens, set(specials))
        ranges = self._classes(head.class_ranges, Pretokenizer(head.pretokenizer))
        prefix, suffix = (self._ids(n, head.tokens, name) for n, name in
                          ((head.chat_prefix, "chat prefix"), (head.chat_suffix, "chat suffix")))
        spec = TokenizerSpec(
            tokens=tokens,
            merges=self._merges(merges, tokens, set(specials)),
            pretokenizer=Pretokenizer(head.pretokenizer),
            flags=head.flags,
            specials=specials,
            ends=ends,
            bos_id=bos,
            unk_id=unk,
            chat_prefix=prefix,
            chat_suffix=suffix,
            class_ranges=ranges,
            unicode_version=head.unicode_version,
            literals=literals,
            kind=TokenizerKind(head.kind),
        )
        if head.flags & TokenizerFlag.IGNORE_MERGES:
            self._by_text(spec)
        return spec

    def _check_kinds(self, head: TokenizerHeader) -> None:
        self._choice("kind", head.kind, max(TokenizerKind), KINDS_BUILT, head.kind)
        kind = TokenizerKind(head.kind)
        self._choice("pre-tokenizer", head.pretokenizer, max(Pretokenizer), PRETOKENIZERS_BUILT[kind], kind)
        self._choice("normalizer", head.normalizer, max(Normalizer), (Normalizer.NONE,), kind)
        self._choice("flags", head.flags, FLAGS_KNOWN, FLAGS_BUILT[kind], kind)

    def _choice(self, name: str, value: int, known: int, built: Sequence[int], kind: int) -> None:
        """value is one of 0..known, of which `built` are built in."""
        if value > known:
            _malformed(f"tokenizer {name} {value} is unknown; known are 0..{known:d}")
        if value not in built:
            raise ColibriError(
                Code.UNSUPPORTED,
                f"tokenizer {name} {value} is not built in for kind {kind:d} (docs/format.md, section 6)",
            )

    def _byte_tokens(self, head: TokenizerHeader, tokens: list[bytes], special: set[int]) -> None:
        if head.kind != TokenizerKind.SENTENCEPIECE_BPE:
            return
        for byte in range(BYTE_TOKENS):
            i = head.unk_id + byte
            if i >= head.tokens or i in special or tokens[i] != bytes((byte,)):
                _malformed(f"id {i} is not the token of byte {byte}: byte_fallback has {BYTE_TOKENS} of them")

    def _check_counts(self, head: TokenizerHeader, vocabulary: int | None) -> None:
        if head.tokens == 0:
            _malformed("tokenizer has no tokens")
        if head.tokens > _spec.MAX_VOCABULARY:
            raise ColibriError(
                Code.LIMIT, f"tokenizer has {head.tokens} tokens, the limit is {_spec.MAX_VOCABULARY}"
            )
        if vocabulary is not None and head.tokens > vocabulary:
            _malformed(f"tokenizer has {head.tokens} tokens, the model's vocabulary is {vocabulary}")
        if max(head.specials, head.ends, head.literals) > head.tokens:
            _malformed(
                f"tokenizer has {head.specials} specials, {head.ends} ends and {head.literals} literals "
                f"of {head.tokens} tokens"
            )
        words = head.tokens + 1 + 4 * head.merges + head.specials + head.ends + head.literals + 2 * head.class_ranges
        words += head.chat_prefix + head.chat_suffix
        if head.flags & TokenizerFlag.IGNORE_MERGES:
            words += head.tokens - head.specials
        size = HEADER.size + 4 * words + head.text_bytes
        if size != len(self.section):
            _malformed(f"tokenizer section is {len(self.section)} bytes, its head asks for {size}")

    def _words(self, count: int) -> array[int]:
        words = array("I", self.section[self.at : self.at + 4 * count])
        if sys.byteorder == "big":
            words.byteswap()
        self.at += 4 * count
        return words

    def _tokens(self, head: TokenizerHeader) -> list[bytes]:
        offsets = self._words(head.tokens + 1)
        if offsets[0] != 0:
            _malformed(f"token 0 starts at text byte {offsets[0]}, must be 0")
        for i in range(head.tokens):
            if offsets[i + 1] < offsets[i]:
                _malformed(f"token {i} ends at text byte {offsets[i + 1]}, before its start {offsets[i]}")
            if offsets[i + 1] - offsets[i] > _spec.MAX_TOKEN_BYTES:
                raise ColibriError(
                    Code.LIMIT,
                    f"token {i} has {offsets[i + 1] - offsets[i]} bytes, the limit is {_spec.MAX_TOKEN_BYTES}",
                )
        if offsets[-1] != head.text_bytes:
            _malformed(f"the last token ends at text byte {offsets[-1]}, the text has {head.text_bytes}")
        text = self.section[len(self.section) - head.text_bytes :]
        return [text[offsets[i] : offsets[i + 1]] for i in range(head.tokens)]

    def _ascending(self, count: int, tokens: int, name: str) -> list[int]:
        ids = self._ids(count, tokens, name)
        for i in range(1, count):
            if ids[i] <= ids[i - 1]:
                _malformed(f"{name} ids do not ascend: {ids[i]} follows {ids[i - 1]}")
        return ids

    def _ids(self, count: int, tokens: int, name: str) -> list[int]:
        ids = self._words(count).tolist()
        for i in ids:
            if i >= tokens:
                _malformed(f"{name} id {i} is out of range: the tokenizer has {tokens} tokens")
        return ids

    def _literals(self, head: TokenizerHeader, tokens: list[bytes], special: set[int]) -> list[int]:
        ids = self._words(head.literals).tolist()
        for i, token in enumerate(ids):
            if token >= head.tokens or token in special or not tokens[token]:
                _malformed(f"literal {i} has id {token}, which is out of range, special or empty")
            if i and tokens[ids[i - 1]] >= tokens[token]:
                _malformed(f"literals are not in ascending order of their texts: {token} follows {ids[i - 1]}")
        return ids

    def _optional(self, value: int, tokens: int, name: str) -> int | None:
        if value == _spec.NONE_INDEX:
            return None
        if value >= tokens:
            _malformed(f"{name} id {value} is out of range: the tokenizer has {tokens} tokens")
        return value

    def _classes(self, count: int, pretokenizer: Pretokenizer) -> list[tuple[int, int, int]]:
        words = self._words(2 * count)
        rows: list[tuple[int, int, int]] = []
        for i in range(count):
            first, kind, last = words[2 * i] & 0xFFFFFF, words[2 * i] >> 24, words[2 * i + 1]
            if kind not in CLASSES_BUILT[pretokenizer]:
                _malformed(f"class range {i} has class {kind}, which its pre-tokenizer lacks")
            if first > last or last > _spec.MAX_CODE_POINT:
                _malformed(f"class range {i} is U+{first:04X}..U+{last:04X}, not a range of code points")
            if rows and first <= rows[-1][1]:
                _malformed(f"class range {i} starts at U+{first:04X}, inside the previous one")
            rows.append((first, last, kind))
        return rows

    def _merges(self, words: array[int], tokens: list[bytes], special: set[int]) -> list[Merge]:
        count = len(words) // 4
        rows: list[Merge] = []
        last = (-1, -1)
        for n in range(count):
            left, right, rank, merged = words[4 * n : 4 * n + 4]
            if max(left, right, merged) >= len(tokens):
                _malformed(f"merge {n} has ids {left} {right} {merged}: the tokenizer has {len(tokens)} tokens")
            if rank >= count:
                _malformed(f"merge {n} has rank {rank}: there are {count} merges")
            if (left, right) <= last:
                _malformed(f"merge {n} is not in ascending order of its pair")
            if merged in special:
                _malformed(f"merge {n} gives special token {merged}: plain text must not")
            if tokens[merged] != tokens[left] + tokens[right]:
                _malformed(f"merge {n}: the bytes of token {merged} are not those of {left} and {right}")
            last = (left, right)
            rows.append((left, right, rank, merged))
        return rows

    def _by_text(self, spec: TokenizerSpec) -> None:
        if self._words(len(spec.tokens) - len(spec.specials)).tolist() != spec._sorted_ids():
            _malformed("the ids sorted by text are not all ids that are not special in ascending order of (bytes, id)")
