# SPDX-License-Identifier: MIT
"""Tokenizers of SentencePiece's kind: what is read, what is refused, and the C tokenizer against the Python one.

tests/parity/test_tokenizer_corpus.py compares them with `tokenizers` and `sentencepiece`; here the standard library
is enough.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from colibri._spec import Code, Pretokenizer, TokenizerFlag, TokenizerKind
from colibri.convert import tokenizer_files
from colibri.errors import ColibriError
from colibri.tokenizer import TokenizerSpec
from colibri.tokenizer_sentencepiece import read_model
from native_cases import assert_agrees, assert_passes

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ["▁", "a", "b", "c", "é", "中", "▁a", "ab", "▁ab", "bc", "abc", "▁▁", "▁▁▁▁", "b▁", "éa"]
NAMES = ["<unk>", "<s>", "</s>", *BYTES, *WORDS]
SPECIALS = NAMES[:3]
FIRST = 3 + 256
IDS = {name: i for i, name in enumerate(NAMES)}
MERGES = [pair.split() for pair in ("a b", "▁ ab", "▁ a", "b c", "a bc", "▁ ▁", "▁▁ ▁▁", "b ▁", "é a")]
PREPEND = {"type": "Prepend", "prepend": "▁"}
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
MISTRAL = "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m.content + ' [/INST]' }}{% endfor %}"


def metaspace(scheme: str, split: bool) -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def folder(path: Path, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A checkpoint's tokenizer.json; changes replace its values, those of the model when they are its own."""
    model: dict[str, Any] = {
        "type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": IDS, "merges": MERGES,
    }  # fmt: skip
    data: dict[str, Any] = {
        "added_tokens": [{"id": IDS[name], "content": name, "special": True, "normalized": False} for name in SPECIALS],
        "normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, STRIP]},
    }
    for key, value in changes.items():
        (model if key in ("vocab", "merges", "ignore_merges") else data)[key] = value
    path.mkdir(exist_ok=True)
    (path / "tokenizer.json").write_text(json.dumps({**data, "model": model}))
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return path


def names(spec: TokenizerSpec, text: str | bytes, chat: bool = False) -> list[str]:
    """The pieces of a text, by the names of the vocabulary."""
    return [NAMES[i] for i in spec.encode(text, chat)]


# ---- tokenizer.json -----------------------------------------------------------------------------------


def test_a_vocabulary_of_characters_becomes_a_tokenizer(tmp_path: Path) -> None:
    spec = TokenizerSpec.from_huggingface(folder(tmp_path))
    assert (spec.kind, spec.pretokenizer) == (TokenizerKind.SENTENCEPIECE_BPE, Pretokenizer.NONE)
    assert spec.flags == TokenizerFlag.BYTE_FALLBACK | TokenizerFlag.ADD_PREFIX_SPACE
    assert (spec.unk_id, spec.specials) == (3, [0, 1, 2])
    assert spec.tokens[IDS["▁ab"]] == b" ab"
    assert names(spec, "ab abc") == ["▁ab", "▁ab", "c"]
    assert names(spec, "") == []
    assert names(spec, " a") == ["▁", "▁a"]
    assert names(spec, "ж\n") == ["▁", "<0xD0>", "<0xB6>", "<0x0A>"]
    assert names(spec, b"\xc3a\xe4\xb8") == ["▁", "<0xC3>", "a", "<0xE4>", "<0xB8>"]
    assert names(spec, "\u2581b") == ["▁▁", "b"]
    assert TokenizerSpec.from_section(spec.to_section()) == spec


@pytest.mark.parametrize(
    ("changes", "text", "expected"),
    [
        ({"normalizer": REPLACE}, "ab", ["ab"]),
        ({"normalizer": None, "pre_tokenizer": metaspace("always", False)}, "a", ["▁a"]),
        ({"normalizer": None, "pre_tokenizer": metaspace("always", False)}, " a", ["▁a"]),
        ({"normalizer": None, "pre_tokenizer": metaspace("first", False)}, "\u2581a", ["▁a"]),
        ({"normalizer": None, "pre_tokenizer": metaspace("never", False)}, "a", ["a"]),
        ({"normalizer": None, "pre_tokenizer": metaspace("never", False)}, "ab   c", ["ab", "▁▁", "▁", "c"]),
        ({"normalizer": None, "pre_tokenizer": metaspace("never", True)}, "ab   c", ["ab", "▁", "▁", "▁", "c"]),
        ({"normalizer": None, "pre_tokenizer": {"type": "Metaspace", "add_prefix_space": False}}, "ab", ["ab"]),
        ({"pre_tokenizer": metaspace("always", True)}, " a", ["▁", "▁a"]),
    ],
)
def test_spaces_go_where_normalizer_and_pre_tokenizer_put_them(
    tmp_path: Path, changes: dict[str, Any], text: str, expected: list[str]
) -> None:
    spec = TokenizerSpec.from_huggingface(folder(tmp_path, **changes))
    assert names(spec, text) == expected
    assert TokenizerSpec.from_section(spec.to_section()) == spec


SPLIT_AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
WITHOUT_LAST = {name: i for name, i in IDS.items() if name != "<0xFF>"}
EXCHANGED = {**IDS, "<0x00>": IDS["<0x01>"], "<0x01>": IDS["<0x00>"]}
OF_BYTES = {**IDS, "<0x0A>a": len(IDS)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"normalizer": {"type": "NFC"}}, "normalizer 'NFC'"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, PREPEND]}}, "normalizer 'NFKC'"),
        ({"normalizer": {"type": "Precompiled"}}, "normalizer 'Precompiled'"),
        ({"normalizer": {**PREPEND, "prepend": "_"}}, "normalizer 'Prepend'"),
        ({"normalizer": None}, "nothing that writes spaces as U\\+2581"),
        ({"pre_tokenizer": SPLIT_AT_SPACES}, r"pre-tokenizer \['Split'\] with byte_fallback"),
        ({"pre_tokenizer": metaspace("last", True)}, "pre-tokenizer .*'last'"),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "_"}}, "pre-tokenizer .*'_'"),
        ({"decoder": {"type": "WordPiece"}}, "decoder .*'WordPiece'"),
        ({"decoder": {**STRIP, "stop": 1}}, "decoder .*'stop': 1"),
        ({"ignore_merges": True}, "byte_fallback and ignore_merges"),
        ({"vocab": WITHOUT_LAST}, "lacks 1 of 256 tokens, the first is <0xFF>"),
        ({"vocab": EXCHANGED}, "token <0x01> has id 3, not 5; the tokens of byte_fallback must follow"),
        ({"vocab": {**IDS, "a b": len(IDS)}}, "'a b' has a space that is not written as"),
        ({"vocab": {name: i for name, i in IDS.items() if "▁" not in name}, "merges": []}, "no token for a space"),
        ({"vocab": OF_BYTES, "merges": [["<0x0A>", "a"]]}, "makes '<0x0A>a' of '<0x0A>' and 'a', tokens of bytes"),
        ({"added_tokens": [{"id": 400, "content": "tool", "special": False}]}, "400 'tool' is ordinary text"),
    ],
)
def test_vocabularies_that_the_section_cannot_express_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ColibriError, match=message) as caught:
        TokenizerSpec.from_huggingface(folder(tmp_path, **changes))
    assert caught.value.code == Code.UNSUPPORTED


def test_nfc_in_a_sequence_can_be_dropped_on_request(tmp_path: Path) -> None:
    path = folder(tmp_path, normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, PREPEND, REPLACE]})
    assert names(TokenizerSpec.from_huggingface(path, drop_nfc=True), "ab") == ["▁ab"]


# ---- chat ---------------------------------------------------------------------------------------------


def test_the_text_of_a_chat_is_encoded_together_with_what_stands_around_it(tmp_path: Path) -> None:
    template = "{{ bos_token }}a {{ messages[0].content }}bc"
    spec = TokenizerSpec.from_huggingface(folder(tmp_path, {"bos_token": "<s>", "chat_template": template}))
    assert names(spec, "ab", chat=True) == ["<s>", "▁a", "▁ab", "bc"]
    assert names(spec, "a", chat=True) == ["<s>", "▁a", "▁ab", "c"]
    assert names(spec, " ", chat=True) == ["<s>", "▁a", "▁▁", "bc"]
    assert names(spec, "", chat=True) == ["<s>", "▁a", "▁", "bc"]
    assert TokenizerSpec.from_section(spec.to_section()) == spec


@pytest.mark.parametrize(
    ("scheme", "template", "text", "expected"),
    [
        ("always", "<s>{{ messages[0].content }}</s>", "a", ["<s>", "▁a", "</s>"]),
        ("always", "<s>{{ messages[0].content }}</s>", " a", ["<s>", "▁a", "</s>"]),
        ("always", "<s>{{ messages[0].content }}</s>b", "", ["<s>", "</s>", "▁", "b"]),
        ("always", "<s>{{ messages[0].content }}b", "", ["<s>", "▁", "b"]),
        ("first", "<s>{{ messages[0].content }}</s>b", "a", ["<s>", "a", "</s>", "b"]),
        ("first", "{{ messages[0].content }}</s>", "a", ["▁a", "</s>"]),
        ("first", "c{{ messages[0].content }}</s>", "a", ["▁", "c", "a", "</s>"]),
        ("never", "{{ messages[0].content }}</s>", "a", ["a", "</s>"]),
    ],
)
def test_a_space_comes_behind_special_tokens_of_a_chat_where_the_scheme_says_so(
    tmp_path: Path, scheme: str, template: str, text: str, expected: list[str]
) -> None:
    changes = {"normalizer": None, "pre_tokenizer": metaspace(scheme, False)}
    spec = TokenizerSpec.from_huggingface(folder(tmp_path, {"chat_template": template}, **changes))
    assert names(spec, text, chat=True) == expected


def test_a_template_with_a_token_that_is_found_behind_the_normalizer_is_refused(tmp_path: Path) -> None:
    added = [{"id": 1, "content": "<s>", "special": True, "normalized": True}]
    path = folder(tmp_path, {"bos_token": "<s>", "chat_template": MISTRAL}, added_tokens=added)
    with pytest.raises(ColibriError, match="looked for behind a normalizer that adds some; convert with --no-chat"):
        TokenizerSpec.from_huggingface(path)
    assert not TokenizerSpec.from_huggingface(path, chat=False).has_chat


# ---- model files --------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def model_file(
    pieces: list[tuple[str, float, int]] | None = None,
    trainer: dict[int, int] | None = None,
    normalizer: dict[int, int | bytes] | None = None,
) -> bytes:
    """A SentencePiece model of the small vocabulary: the score of a piece is minus its place."""
    if pieces is None:
        types = [2, 3, 3, *[6] * 256, *[1] * len(WORDS)]
        pieces = [(name, -float(i), kind) for i, (name, kind) in enumerate(zip(NAMES, types, strict=True))]
    data = b""
    for name, score, kind in pieces:
        data += field(1, field(1, name.encode()) + b"\x15" + struct.pack("<f", score) + field(3, kind))
    data += field(2, b"".join(field(*item) for item in ({3: 2, 35: 1} | (trainer or {})).items()))
    settings: dict[int, int | bytes] = {1: b"identity", 4: 0}
    return data + field(3, b"".join(field(*item) for item in (settings | (normalizer or {})).items()))


def with_model(path: Path, data: bytes, config: dict[str, Any] | None = None) -> TokenizerSpec:
    (path / "tokenizer.model").write_bytes(data)
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    return TokenizerSpec.from_huggingface(path)


def test_a_model_file_merges_by_the_scores_of_its_pieces(tmp_path: Path) -> None:
    spec = with_model(tmp_path, model_file(), {"chat_template": MISTRAL})
    assert (spec.bos_id, spec.ends, spec.unk_id) == (1, [2], 3)
    assert names(spec, "xabc") == ["<s>", "▁", "<0x78>", "abc"]
    assert names(spec, "xab  bc") == ["<s>", "▁", "<0x78>", "ab", "▁▁", "bc"]  # bc stands before b▁, ▁▁ too
    assert names(spec, "a", chat=True)[0] == "<s>"
    rows = {(NAMES[left], NAMES[right]): rank for left, right, rank, _ in spec.merges}
    assert rows["ab", "c"] == rows["a", "bc"]
    assert rows["▁", "ab"] == rows["▁a", "b"] > rows["a", "b"] > rows["▁", "a"]
    assert TokenizerSpec.from_section(spec.to_section()) == spec


def test_a_model_file_may_say_that_no_space_comes_in_front(tmp_path: Path) -> None:
    assert names(with_model(tmp_path, model_file(normalizer={3: 0})), "ab") == ["<s>", "ab"]
    assert names(with_model(tmp_path, model_file(), {"add_bos_token": False}), "ab") == ["▁ab"]


def test_tokenizer_json_comes_before_a_model_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"not looked at")
    assert names(TokenizerSpec.from_huggingface(folder(tmp_path)), "ab") == ["▁ab"]


def test_the_model_file_is_looked_at_only_without_tokenizer_json(tmp_path: Path) -> None:
    assert tokenizer_files(tmp_path) == []
    (tmp_path / "tokenizer.model").touch()
    assert tokenizer_files(tmp_path)[0] == "tokenizer.model"
    (tmp_path / "tokenizer.json").touch()
    assert tokenizer_files(tmp_path)[0] == "tokenizer.json"
    assert "tokenizer.model" not in tokenizer_files(tmp_path)


def pieces_with(**changes: tuple[float, int]) -> list[tuple[str, float, int]]:
    types = [2, 3, 3, *[6] * 256, *[1] * len(WORDS)]
    rows = [(name, -float(i), kind) for i, (name, kind) in enumerate(zip(NAMES, types, strict=True))]
    return rows + [(name, score, kind) for name, (score, kind) in changes.items()]


@pytest.mark.parametrize(
    ("data", "code", "message"),
    [
        (model_file(trainer={3: 1}), Code.UNSUPPORTED, "is a Unigram model"),
        (model_file(trainer={3: 3}), Code.UNSUPPORTED, "is a word model"),
        (model_file(trainer={35: 0}), Code.UNSUPPORTED, "has no byte_fallback"),
        (model_file(trainer={24: 1}), Code.UNSUPPORTED, "treat_whitespace_as_suffix"),
        (model_file(normalizer={2: b"map"}), Code.UNSUPPORTED, "normalises texts"),
        (model_file(normalizer={4: 1}), Code.UNSUPPORTED, "remove_extra_whitespaces"),
        (model_file(normalizer={5: 0}), Code.UNSUPPORTED, "escape_whitespaces"),
        (model_file([*pieces_with(), ("a" * 1025, 0, 1)]), Code.LIMIT, "has 1025 bytes, the limit is 1024"),
        (model_file([*pieces_with(), ("a" * 10**7, 0, 1)]), Code.LIMIT, "has 10000000 bytes"),  # and in no time
        (model_file(pieces_with(x=(0, 5))), Code.UNSUPPORTED, "274 'x' is of the type unused"),
        (model_file(pieces_with(xy=(0, 4))), Code.UNSUPPORTED, "274 'xy' is ordinary text that is found before"),
        (model_file(pieces_with(x=(0, 3))), Code.UNSUPPORTED, "274 'x' is a character and special"),
        (model_file(pieces_with(x=(0, 6))), Code.UNSUPPORTED, "274 'x' has the type 6, which belongs to"),
        (model_file(pieces_with(x=(0, 9))), Code.UNSUPPORTED, "274 'x' has the type 9"),
        (model_file(pieces_with(ax=(0, 1))), Code.UNSUPPORTED, "'ax' has the character 'x', which is no piece"),
        (model_file([*pieces_with(), ("ab", 0, 1)]), Code.UNSUPPORTED, "274 'ab' is empty or stands twice"),
        (model_file(pieces_with(ca=(float("nan"), 1))), Code.UNSUPPORTED, "'ca' has no number as score"),
        (b"", Code.ARGUMENT, "has no pieces"),
        (model_file()[:-3], Code.ARGUMENT, "malformed at byte .* bytes, .* are left"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", Code.ARGUMENT, "more than 64 bits"),
        (b"\x0b", Code.ARGUMENT, "wire type 3"),
        (b"\x08\x01", Code.ARGUMENT, "must be bytes"),
        (field(1, field(1, b"\xff")), Code.ARGUMENT, "not UTF-8"),
        (field(1, field(2, 7)), Code.ARGUMENT, "must be bytes is a number"),
    ],
)
def test_model_files_that_the_section_cannot_express_are_refused(
    tmp_path: Path, data: bytes, code: Code, message: str
) -> None:
    with pytest.raises(ColibriError, match=message) as caught:
        with_model(tmp_path, data)
    assert caught.value.code == code


def test_tokens_that_only_the_configuration_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match=r"adds token 400 '<tool>', which tokenizer\.model lacks"):
        with_model(tmp_path, model_file(), {"added_tokens_decoder": {"400": {"content": "<tool>"}}})


def test_damaged_model_files_are_read_or_refused_and_nothing_else() -> None:
    rng = random.Random(5)
    whole = model_file()
    accepted, codes = 0, set()
    for _ in range(1000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            data[at] = rng.choice([data[at] ^ (1 << rng.randrange(8)), 0, 0x7F, 0x80, 0xFF])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data)) :]
        try:
            spec = read_model(bytes(data), "x").spec()
        except ColibriError as error:
            codes.add(error.code)
            continue
        accepted += 1
        spec.to_section()
    assert codes == {Code.ARGUMENT, Code.UNSUPPORTED}
    assert 0 < accepted < 1000


# ---- GGUF ---------------------------------------------------------------------------------------------


def gguf(**changes: object) -> dict[str, object]:
    values: dict[str, object] = {
        "model": "llama",
        "tokens": NAMES,
        "scores": [-float(i) for i in range(len(NAMES))],
        "token_type": [2, 3, 3, *[6] * 256, *[1] * len(WORDS)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


def test_scores_of_gguf_give_what_the_model_file_gives(tmp_path: Path) -> None:
    spec = TokenizerSpec.from_gguf_metadata(gguf())
    assert spec == with_model(tmp_path, model_file())
    assert names(TokenizerSpec.from_gguf_metadata(gguf(add_space_prefix=False, add_bos_token=False)), "ab") == ["ab"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "not as many tokenizer.ggml.scores"),
        ({"scores": [0.0]}, "274 tokens and not as many"),
        ({"token_type": [2, 3, 3, *[6] * 256, *[1] * (len(WORDS) - 1), 4]}, "ordinary text that is found before"),
        ({"tokens": [*NAMES[:3], "<0x0>", *NAMES[4:]]}, "'<0x0>' has the type 6, which belongs to <0x00> to <0xFF>"),
        ({"token_type": [2, 3, 3, *[6] * 255, *[1] * (len(WORDS) + 1)]}, "'<0xFF>' has the type 1, which"),
    ],
)
def test_gguf_vocabularies_that_the_section_cannot_express_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ColibriError, match=message) as caught:
        TokenizerSpec.from_gguf_metadata(gguf(**changes))
    assert caught.value.code == Code.UNSUPPORTED


# ---- the C tokenizer against the Python one -----------------------------------------------------------


def variants(path: Path) -> list[TokenizerSpec]:
    """Tokenizers with every flag, with and without a chat form, and one whose vocabulary has no space."""
    made = []
    for n, (scheme, template) in enumerate(
        [("never", None), ("always", "<s>{{ messages[0].content }}</s>"), ("first", "a {{ messages[0].content }} b"),
         ("always", "{{ messages[0].content }}"), (None, "<s>a {{ messages[0].content }}é</s> b<s>"),
         (None, "<s>{{ messages[0].content }} \U0001f426"), (None, "<s>{{ messages[0].content }}</s>b")]
    ):  # fmt: skip
        spaces = {} if scheme is None else {"normalizer": None, "pre_tokenizer": metaspace(scheme, n == 3)}
        bos = {"add_bos_token": n % 2 == 1, "bos_token": "<s>"}
        config = {**bos, **({} if template is None else {"chat_template": template})}
        made.append(TokenizerSpec.from_huggingface(folder(path / f"v{n}", config, **spaces)))
    blind = TokenizerSpec.from_huggingface(folder(path / "blind", {"chat_template": MISTRAL}))
    blind = replace(blind, literals=[i for i in blind.literals if blind.tokens[i] != b" "])
    plain = TokenizerSpec.from_huggingface(folder(path / "plain"))
    longer = sorted([*plain.literals, IDS["▁▁"], IDS["abc"]], key=lambda i: plain.tokens[i])
    return [*made, blind, replace(plain, literals=longer)]


def some_texts(rng: random.Random, count: int) -> list[bytes]:
    pool = [*"aaabbcé中", *" " * 5, "  ", "▁", "\n", "ж", "🐦", "<s>", "[INST]"]
    raw = [b"\x80", b"\xc3", b"\xe2\x96", b"\xe4\xb8", b"\xff"]
    made = [b"", b" ", b"  ", "▁".encode(), b"\xe2\x96 ", b"a" * 4000, b" " * 3000, "é中".encode() * 500]
    for _ in range(count):
        parts = [rng.choice(raw) if rng.random() < 0.05 else rng.choice(pool).encode() for _ in range(25)]
        made.append(b"".join(parts[rng.randrange(26) :]))
    return made


def test_the_c_tokenizer_gives_the_ids_of_the_python_one(tmp_path: Path) -> None:
    rng = random.Random(8)
    cases = []
    for n, spec in enumerate(variants(tmp_path)):
        section = tmp_path / f"section{n}"
        section.write_bytes(spec.to_section())
        cases.append(f"section {section} {len(spec.tokens)} 0")
        for text in some_texts(rng, 400):
            cases.append(f"encode plain {text.hex() or '-'} 0 {' '.join(map(str, spec.encode(text)))}")
            if spec.has_chat:
                cases.append(f"encode chat {text.hex() or '-'} 0 {' '.join(map(str, spec.encode(text, chat=True)))}")
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


def test_both_readers_give_one_code_for_damaged_sections(tmp_path: Path) -> None:
    rng = random.Random(10)
    spec = variants(tmp_path)[4]
    section = spec.to_section()
    cases, codes = [], set()
    for n in range(500):
        damaged = bytearray(section)
        if n % 2:
            damaged[rng.randrange(64)] ^= 1 << rng.randrange(8)
        else:
            at = 4 * rng.randrange((len(section) - len(b"".join(spec.tokens))) // 4)
            damaged[at : at + 4] = rng.choice([0, 1, 3, 4, 259, 274, 1 << 24, 0xFFFFFFFF]).to_bytes(4, "little")
        path = tmp_path / f"damaged{n}"
        path.write_bytes(damaged)
        code = Code.OK
        try:
            TokenizerSpec.from_section(bytes(damaged), len(spec.tokens))
        except ColibriError as error:
            code = error.code
        codes.add(code)
        cases.append(f"section {path} {len(spec.tokens)} {int(code)}")
    assert codes >= {Code.OK, Code.TOKENIZER, Code.UNSUPPORTED}
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


@pytest.mark.parametrize("text", [b"", b"B", b"AA"])
def test_a_token_that_is_not_its_byte_is_refused_by_both_readers(tmp_path: Path, text: bytes) -> None:
    spec = TokenizerSpec.from_huggingface(folder(tmp_path))
    spec.tokens[3 + ord("A")] = text
    section = spec._pack()
    with pytest.raises(ColibriError, match="id 68 is not the token of byte 65") as caught:
        TokenizerSpec.from_section(section)
    assert caught.value.code == Code.TOKENIZER
    (tmp_path / "section").write_bytes(section)
    case = f"section {tmp_path / 'section'} {len(spec.tokens)} {int(Code.TOKENIZER)}"
    assert_agrees("test_tokenizer", [case], tmp_path / "cases.txt")


def test_mutated_sections_keep_the_promises_of_the_fuzz_target(tmp_path: Path) -> None:
    rng = random.Random(12)
    seeds = []
    for n, spec in enumerate(variants(tmp_path)):
        text = b"".join(some_texts(rng, 12)[8:])
        seeds.append(tmp_path / f"seed{n}")
        seeds[-1].write_bytes(len(text).to_bytes(2, "little") + text + spec.to_section())
    assert_passes("fuzz_tokenizer", "--mutations", "1500", "--seed", "13", *seeds)


@pytest.mark.parametrize("flags", [0, 2 | 4, 64 | 4])
def test_flags_that_do_not_belong_to_the_kind_are_refused(tmp_path: Path, flags: int) -> None:
    spec = TokenizerSpec.from_huggingface(folder(tmp_path))
    spec.flags = flags
    with pytest.raises(ColibriError, match="tokenizer") as caught:
        spec.to_section()
    assert caught.value.code == (Code.TOKENIZER if flags >= 64 else Code.UNSUPPORTED)
