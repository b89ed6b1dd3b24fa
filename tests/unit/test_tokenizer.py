# SPDX-License-Identifier: MIT
"""The tokenizer section, its two readers, and the C tokenizer against the Python one.

The tokenizers here are trained by a few lines in this file, so nothing but the standard library is needed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import struct
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from colibri import tokenizer_import
from colibri._spec import NONE_INDEX, CharacterClass, Code, Pretokenizer, TokenizerFlag
from colibri._unicode import UNICODE_VERSION
from colibri.errors import ColibriError
from colibri.tokenizer import CLASSES_BUILT, HEADER, TokenizerSpec
from colibri.tokenizer_patterns import PATTERNS, class_ranges
from native_cases import REPOSITORY, assert_agrees, assert_passes, outcome

BUILT = list(Pretokenizer)
CORPUS = (
    "The quick brown fox doesn't jump over 12 lazy dogs; they'll've jumped 345678 times.\n\n"
    "\tif (x == 0) {\r\n\t\treturn y;\r\n\t}\n   Where  are   we?  \n"
    "Größe, señor, naïve, Œuvre. Что это такое? Это тест. これは試験です。 我们在这里 12 天。 مرحبا بالعالم ١٢٣ ٤٥٦\n"
    "नमस्ते दुनिया। สวัสดีชาวโลก 안녕하세요 세계! e\u0301a\u0308 👩\u200d👩\u200d👧 🐦🐦 ½ ² Ⅷ x\u00a0y\u3000z ... !!! ---\n"
)
POOL = [
    *"abcstremvlxyzSTREMVLD", *"0123456789", *"    ", "\n", "\r\n", "\r", "\t", "'", "'s", "'S", "'re", "'LL", "'ve",
    "'\u017f", "\u017f", *".,;!?-_/<>|()", "\u00a0", "\u2003", "\u3000", "\u0085", "\u2028", "\x1c", "\x00", "\x04",
    "é", "e\u0301", "ß", "İ", "ж", "ы", "中", "文", "の", "ア", "한", "ع", "ر", "\u0660", "٣", "²", "½", "Ⅷ", "०", "๓",
    "/", "É", "ǅ", "ª", "ʰ", "Ω", "Ա", "あ", "ー", "・", "\u3099", "゛", "\u3040", "ㄱ", "Ａ", "！", "‘", "、", "②",
    "$", "©", "\u00ad", "\x01", "𞤀", "नम", "\u094d", "👍", "👍🏽", "\u200d", "\ufe0f", "🐦",
    "\U00010400", "\U000e0001", "\ufffd", "\ufeff", "\u0378",
]  # fmt: skip
INVALID = [b"\x80", b"\xff", b"\xc3", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf0\x9f\x90", b"\xf4\x90\x80\x80", b"\xc0\xaf"]


def train(
    pretokenizer: Pretokenizer, merges: int, flags: int = 0, absent: bytes = b"", corpus: str = CORPUS
) -> TokenizerSpec:
    """A tokenizer of every byte but `absent`, the most frequent merges of the corpus, and two special tokens."""
    spec = TokenizerSpec(
        tokens=[b"<s>", b"</s>", *(bytes((b,)) for b in range(256) if b not in absent)],
        merges=[],
        pretokenizer=pretokenizer,
        flags=flags,
        specials=[0, 1],
        ends=[1],
        bos_id=0,
        class_ranges=list(class_ranges(pretokenizer)),
        unicode_version=UNICODE_VERSION,
    )
    ids = {token: i for i, token in enumerate(spec.tokens)}
    words = Counter(spec.split(corpus.encode()))
    pieces = {word: [ids[bytes((b,))] for b in word if b not in absent] for word in words}
    pairs: list[tuple[int, int]] = []
    while len(pairs) < merges:
        counts: Counter[tuple[int, int]] = Counter()
        for word, piece in pieces.items():
            for pair in pairwise(piece):
                counts[pair] += words[word]
        if not counts:
            break
        left, right = max(counts, key=lambda pair: (counts[pair], pair))
        text = spec.tokens[left] + spec.tokens[right]
        merged = ids.setdefault(text, len(spec.tokens))
        if merged == len(spec.tokens):
            spec.tokens.append(text)
        pairs.append((left, right))
        for word, piece in pieces.items():
            out: list[int] = []
            for i in piece:
                if out and (out[-1], i) == (left, right):
                    out[-1] = merged
                else:
                    out.append(i)
            pieces[word] = out
    ranked = [
        (left, right, rank, ids[spec.tokens[left] + spec.tokens[right]]) for rank, (left, right) in enumerate(pairs)
    ]
    spec.merges = sorted(ranked)
    spec.chat_prefix = spec.encode_marked("<s>user\n")
    spec.chat_suffix = spec.encode_marked("</s>\n")
    return spec


def shuffled(spec: TokenizerSpec, rng: random.Random) -> TokenizerSpec:
    """The same merges in ranks that no training gives, some of them equal."""
    half = len(spec.merges) // 2
    merges = [(left, right, rng.randrange(half), merged) for left, right, _, merged in spec.merges]
    return dataclasses.replace(spec, merges=merges)


def with_literals(spec: TokenizerSpec) -> TokenizerSpec:
    """The same tokenizer with added tokens that are ordinary text: they overlap each other and every word."""
    texts = (b"  ", b"   ", b"\t\t", b"ing ", "é".encode(), b"ab", b"aab", b"abcab", b"a a", b"1", b"\xff", b"\n ")
    first = len(spec.tokens)
    literals = sorted(range(first, first + len(texts)), key=lambda i: texts[i - first])
    return dataclasses.replace(spec, tokens=[*spec.tokens, *texts], literals=literals)


def touching(rng: random.Random, length: int) -> str:
    """Characters that patterns tell apart, each beside each other one: the merges of such a text cross every border."""
    return "".join(rng.choices("asSlLvde'1٣ \n\r\t!/éſ ", k=length))


def letters(rng: random.Random, length: int) -> str:
    """Words of three letters only, so that every merge competes with others."""
    return "".join(rng.choices("aaabbc  ", k=length))


def texts(rng: random.Random, count: int) -> list[bytes]:
    """Texts of every kind, some with invalid bytes."""
    made = [b"", b" ", b"\n", b"a", b"\xff", CORPUS.encode(), b"a" * 3000, b" " * 500, b"\n " * 200, b"ab" * 700]
    for _ in range(count):
        parts = [rng.choice(POOL).encode() * rng.choice([1, 1, 1, 2, 3, 9]) for _ in range(rng.randrange(1, 40))]
        if rng.random() < 0.3:
            parts.insert(rng.randrange(len(parts)), rng.choice(INVALID))
        made.append(b"".join(parts))
    return made


def hexadecimal(data: bytes) -> str:
    return data.hex() or "-"


def encode_case(spec: TokenizerSpec, text: bytes, chat: bool = False) -> str:
    ids = " ".join(map(str, spec.encode(text, chat=chat)))
    return f"encode {'chat' if chat else 'plain'} {hexadecimal(text)} 0 {ids}"


def write_section(spec: TokenizerSpec, path: Path) -> str:
    """Write the section; the case that opens it."""
    path.write_bytes(spec.to_section())
    return f"section {path} {len(spec.tokens)} 0"


# ---- the C tokenizer against the Python one ---------------------------------------------------------


def test_the_c_tests_of_the_tokenizer_pass() -> None:
    assert_passes("test_tokenizer")


def test_mutated_sections_and_texts_keep_the_promises_of_the_fuzz_target(tmp_path: Path) -> None:
    rng = random.Random(3)
    seeds = []
    for pretokenizer in BUILT:
        spec = train(pretokenizer, 40, int(TokenizerFlag.IGNORE_MERGES) * (pretokenizer % 2))
        spec.class_ranges = spec.class_ranges[:50]
        text = texts(rng, 1)[-1] + letters(rng, 100).encode()
        if pretokenizer % 2:
            spec = with_literals(spec)
        seeds.append(tmp_path / pretokenizer.name)
        seeds[-1].write_bytes(len(text).to_bytes(2, "little") + text + spec.to_section())
    assert_passes("fuzz_tokenizer", "--mutations", "1500", "--seed", "11", *seeds)


@pytest.mark.parametrize("pretokenizer", BUILT)
def test_the_c_tokenizer_gives_the_ids_of_the_python_one(pretokenizer: Pretokenizer, tmp_path: Path) -> None:
    rng = random.Random(pretokenizer)
    variants = [
        train(pretokenizer, 300),
        train(pretokenizer, 120, int(TokenizerFlag.ADD_BOS | TokenizerFlag.IGNORE_MERGES)),
        train(pretokenizer, 80, absent=b"\x04\xf1qe"),
        shuffled(train(pretokenizer, 200), rng),
        shuffled(train(pretokenizer, 200, int(TokenizerFlag.IGNORE_MERGES)), rng),
        shuffled(train(pretokenizer, 60, corpus=letters(rng, 3000)), rng),
        dataclasses.replace(
            train(Pretokenizer.NONE, 500, corpus=touching(rng, 5000)),
            pretokenizer=pretokenizer, class_ranges=list(class_ranges(pretokenizer)),
        ),
    ]
    variants[3].unk_id = 5
    variants += [with_literals(variants[0]), with_literals(variants[4])]
    cases = []
    for n, spec in enumerate(variants):
        cases.append(write_section(spec, tmp_path / f"section{n}"))
        few = [make(rng, rng.randrange(200)).encode() for make in (letters, touching) for _ in range(80)]
        for text in texts(rng, 250) + few:
            cases.append(encode_case(spec, text))
            cases.append(encode_case(spec, text, chat=True))
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


@pytest.mark.parametrize("pretokenizer", BUILT)
def test_any_table_of_classes_gives_the_same_ids_in_c_and_python(pretokenizer: Pretokenizer, tmp_path: Path) -> None:
    """Letters that are numbers, spaces that are signs, surrogates with a class: both read alike what a file says."""
    rng = random.Random(100 + pretokenizer)
    spec = train(Pretokenizer.NONE, 400, corpus=touching(rng, 5000))
    characters = sorted(set(touching(rng, 3000)) | set("0123456789,.-STREMVLDtrem\u00a0"))
    cases = []
    for n in range(25):
        rows = [(ord(c), ord(c), rng.choice(CLASSES_BUILT[pretokenizer])) for c in characters if rng.random() < 0.8]
        rows.append((0xD800, 0xDFFF, rng.choice(CLASSES_BUILT[pretokenizer])))  # no text has such a character
        changed = dataclasses.replace(spec, pretokenizer=pretokenizer, class_ranges=rows)
        cases.append(write_section(changed, tmp_path / f"section{n}"))
        pieces = [*(text.encode() for text in [*characters, "'s", "'LL", "\n\n", "  "]), *INVALID]
        for _ in range(60):
            cases.append(encode_case(changed, b"".join(rng.choices(pieces, k=rng.randrange(60)))))
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


def test_c_and_python_have_the_same_classes_in_each_pretokenizer_and_refuse_the_others(tmp_path: Path) -> None:
    cases = []
    for pretokenizer in BUILT:
        spec = dataclasses.replace(train(pretokenizer, 0), class_ranges=[(0xABCDE, 0xABCDF, CharacterClass.SPACE)])
        assert {kind for _, _, kind in class_ranges(pretokenizer)} == set(CLASSES_BUILT[pretokenizer])
        before, after = spec.to_section().split(struct.pack("<II", 0xABCDE | CharacterClass.SPACE << 24, 0xABCDF))
        for kind in range(256):
            section = before + struct.pack("<II", 0xABCDE | kind << 24, 0xABCDF) + after
            path = tmp_path / f"{pretokenizer.name}-{kind}"
            path.write_bytes(section)
            code = 0 if kind in CLASSES_BUILT[pretokenizer] else int(Code.TOKENIZER)
            cases.append(f"section {path} {len(spec.tokens)} {code}")
            if code == 0:
                TokenizerSpec.from_section(section)
            else:
                with pytest.raises(ColibriError, match=f"class range 0 has class {kind}, which its pre-tokenizer"):
                    TokenizerSpec.from_section(section)
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


def test_a_wrong_id_is_seen(tmp_path: Path) -> None:
    spec = train(Pretokenizer.GPT2, 5)
    opened = write_section(spec, tmp_path / "section")
    code, output = outcome("test_tokenizer", [opened, "encode plain 61 0 98"], tmp_path / "cases.txt")
    assert code == 1
    assert "id 0 of 1 differs" in output


def test_both_readers_give_one_code_for_damaged_sections(tmp_path: Path) -> None:
    rng = random.Random(9)
    spec = with_literals(train(Pretokenizer.LLAMA3, 12, int(TokenizerFlag.IGNORE_MERGES)))
    spec.class_ranges = spec.class_ranges[:40]
    section = spec.to_section()
    arrays = len(section) - len(b"".join(spec.tokens))
    cases, codes = [], Counter[Code]()
    for n in range(900):
        damaged = bytearray(section)
        kind = rng.randrange(5)
        if kind == 0:  # a bit of the head
            damaged[rng.randrange(HEADER.size)] ^= 1 << rng.randrange(8)
        elif kind == 1:  # a word of the head or of an array
            at = 4 * rng.randrange(arrays // 4)
            value = rng.choice([0, 1, 2, 3, 7, 260, 2000, NONE_INDEX, 0x110000, 1 << 24])
            damaged[at : at + 4] = value.to_bytes(4, "little")
        elif kind == 2:  # two words change places
            a, b = (4 * rng.randrange(HEADER.size // 4, arrays // 4) for _ in range(2))
            damaged[a : a + 4], damaged[b : b + 4] = damaged[b : b + 4], damaged[a : a + 4]
        elif kind == 3:  # a byte of the text
            damaged[rng.randrange(arrays, len(section))] ^= 1 << rng.randrange(8)
        else:  # cut off, or something appended
            damaged = damaged[: rng.randrange(len(section))] if rng.random() < 0.7 else damaged + b"\0" * 4
        path = tmp_path / f"damaged{n}"
        path.write_bytes(damaged)
        vocabulary = len(spec.tokens) - rng.choice([0, 0, 0, 1])
        code = Code.OK
        try:
            TokenizerSpec.from_section(bytes(damaged), vocabulary)
        except ColibriError as error:
            code = error.code
        codes[code] += 1
        cases.append(f"section {path} {vocabulary} {int(code)}")
    assert set(codes) == {Code.OK, Code.TOKENIZER, Code.UNSUPPORTED, Code.LIMIT}
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


def test_the_detokenizer_replaces_what_python_replaces_wherever_the_text_is_cut(tmp_path: Path) -> None:
    rng = random.Random(4)
    leads = bytes.fromhex("20212223 7f808f909fa0bf c0c1c2df e0e1ecedeeef f0f1f3f4f5f8feff")
    streams = [bytes((a, b)) for a in range(256) for b in range(256)]
    streams += [bytes((a, b, c, d)) for a in leads for b in leads for c in leads[5:20:3] for d in leads[::6]]
    streams += [bytes(rng.choices(leads, k=rng.randrange(1, 60))) for _ in range(4000)]
    streams += texts(rng, 300)
    cases = []
    for stream in streams:
        cuts = sorted(rng.randrange(len(stream) + 1) for _ in range(rng.randrange(0, 6)))
        bounds = [0, *cuts, len(stream)]
        chunks = [stream[a:b] for a, b in pairwise(bounds)]
        expected = stream.decode("utf-8", "replace").encode()
        cases.append(f"utf8 {','.join(map(hexadecimal, chunks))} {hexadecimal(expected)}")
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


# ---- the section ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [0, int(TokenizerFlag.IGNORE_MERGES), int(TokenizerFlag.ADD_BOS)])
def test_reading_and_writing_a_section_gives_the_same_bytes(flags: int) -> None:
    spec = train(Pretokenizer.QWEN2, 40, flags)
    section = spec.to_section()
    read = TokenizerSpec.from_section(section, len(spec.tokens))
    assert read == spec
    assert read.to_section() == section


def test_ids_decode_to_the_text_they_come_from() -> None:
    spec = train(Pretokenizer.LLAMA3, 200)
    for text in texts(random.Random(1), 100):
        assert spec.decode(spec.encode(text)) == text


def test_special_tokens_in_plain_text_are_characters_and_in_a_template_ids() -> None:
    spec = train(Pretokenizer.GPT2, 0)
    assert spec.encode("<s>") == [ord(c) + 2 for c in "<s>"]
    assert spec.encode_marked("a<s></s>b") == [ord("a") + 2, 0, 1, ord("b") + 2]
    assert spec.encode("</s>", chat=True)[:-2] == [*spec.chat_prefix, *(ord(c) + 2 for c in "</s>")]


def test_added_tokens_of_ordinary_text_are_found_before_the_text_is_split() -> None:
    spec = with_literals(train(Pretokenizer.GPT2, 0))
    ids = {spec.tokens[i]: i for i in spec.literals}
    assert spec.encode("    x") == [ids[b"   "], ord(" ") + 2, ord("x") + 2]  # the longest, then what is left
    assert spec.encode("aabcab") == [ids[b"aab"], ord("c") + 2, ids[b"ab"]]  # the leftmost wins over a longer one
    assert spec.encode("<s>", chat=False)[0] == ord("<") + 2
    assert spec.encode_marked("ab<s>ab") == [ids[b"ab"], 0, ids[b"ab"]]
    assert spec.decode(spec.encode(CORPUS)) == CORPUS.encode()


@pytest.mark.parametrize(
    ("literals", "what"),
    [([9000], "out of range"), ([0], "special"), ([5, 5], "ascending order"), ([6, 5], "ascending order")],
)
def test_literals_that_break_a_rule_are_refused(literals: list[int], what: str) -> None:
    spec = train(Pretokenizer.GPT2, 0)
    spec.literals = literals
    with pytest.raises(ColibriError, match=what) as caught:
        spec.to_section()
    assert caught.value.code == Code.TOKENIZER


def test_a_literal_without_text_is_refused() -> None:
    spec = train(Pretokenizer.GPT2, 0)
    spec.tokens.append(b"")
    spec.literals = [258]
    with pytest.raises(ColibriError, match="empty"):
        spec.to_section()


def test_a_merge_to_a_special_token_is_refused() -> None:
    spec = train(Pretokenizer.GPT2, 5)
    spec.specials = [0, 1, spec.merges[0][3]]
    with pytest.raises(ColibriError, match="gives special token") as caught:
        spec.to_section()
    assert caught.value.code == Code.TOKENIZER


def test_an_id_without_text_is_refused() -> None:
    with pytest.raises(ColibriError, match=r"token id 258 has no text: the tokenizer has ids 0\.\.257") as caught:
        train(Pretokenizer.GPT2, 0).decode([3, 258])
    assert caught.value.code == Code.TOKEN_RANGE


def test_a_chat_without_a_chat_form_is_refused() -> None:
    spec = train(Pretokenizer.GPT2, 0)
    spec.chat_prefix, spec.chat_suffix = [], []
    with pytest.raises(ColibriError) as caught:
        spec.encode("a", chat=True)
    assert caught.value.code == Code.NO_CHAT


def test_the_unicode_table_is_what_its_generator_gives() -> None:
    generator = REPOSITORY / "engine" / "spec" / "generate_unicode.py"
    done = subprocess.run([sys.executable, generator, "--check"], capture_output=True, text=True, check=False)
    if sys.version_info[:2] == (3, 11):
        assert done.returncode == 0, done.stderr
    else:
        assert "run it with Python 3.11" in done.stderr


# ---- loaders --------------------------------------------------------------------------------------------


def gguf(**changes: object) -> dict[str, object]:
    """Metadata of a small GGUF tokenizer."""
    byte_names = {byte: char for char, byte in tokenizer_import._BYTE_OF.items()}
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(byte_names[b] for b in range(256)), "in", "ing", "Ġt"]
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": names,
        "merges": ["i n", "Ġ t", "in g"],
        "token_type": [3, 3, 3, *[1] * (len(names) - 3)],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "add_bos_token": False,
        **changes,
    }
    metadata = {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
    metadata["general.name"] = "not looked at"
    return metadata


def test_gguf_metadata_becomes_a_tokenizer() -> None:
    spec = TokenizerSpec.from_gguf_metadata(gguf())
    assert spec.pretokenizer == Pretokenizer.SMOLLM
    assert spec.ends == [0, 2]
    assert not spec.has_chat
    assert [spec.tokens[i] for i in spec.encode("doing t 42")] == [b"d", b"o", b"ing", b" t", b" ", b"4", b"2"]
    assert TokenizerSpec.from_section(spec.to_section()) == spec


def test_user_defined_tokens_of_gguf_are_literals() -> None:
    spec = TokenizerSpec.from_gguf_metadata(gguf(token_type=[3, 3, 3, *[1] * 256, 4, 1, 1]))
    assert (spec.specials, spec.literals) == ([0, 1, 2], [259])
    assert spec.encode("kin") == [3 + ord("k"), 259]


def test_llama3_of_gguf_takes_whole_words_and_begins_with_bos() -> None:
    spec = TokenizerSpec.from_gguf_metadata(gguf(pre="llama-bpe", add_bos_token=None))
    assert spec.flags == TokenizerFlag.ADD_BOS | TokenizerFlag.IGNORE_MERGES
    assert spec.encode("ing") == [1, spec.tokens.index(b"ing")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "t5"}, "GGUF tokenizer model is 't5'; supported: byte-level BPE"),
        ({"model": "llama"}, "not as many tokenizer.ggml.scores"),
        ({"model": "bert"}, "GGUF tokenizer model is 'bert'"),
        ({"pre": "deepseek-coder"}, "GGUF pre-tokenizer is 'deepseek-coder'; supported: .*deepseek-llm.*smollm"),
        ({"pre": None}, "GGUF pre-tokenizer is None"),
        ({"add_space_prefix": True}, "add_space_prefix is set"),
        ({"tokens": None}, "lacks tokenizer.ggml.tokens"),
        ({"tokens": "abc"}, "tokens is a str; it must be a list"),
        ({"merges": ["i x y"]}, "needs the token 'x y'"),
        ({"token_type": [1]}, "1 token types"),
        ({"token_type": [6] * 262}, "token 0 .* has GGUF token type 6"),
    ],
)
def test_gguf_tokenizers_that_the_section_cannot_express_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ColibriError, match=message) as caught:
        TokenizerSpec.from_gguf_metadata(gguf(**changes))
    assert caught.value.code == Code.UNSUPPORTED


def huggingface(folder: Path, config: dict[str, Any] | None = None, **changes: Any) -> Path:
    """A folder with a small tokenizer.json; changes replace its top-level values."""
    byte_names = {byte: char for char, byte in tokenizer_import._BYTE_OF.items()}
    names = [*(byte_names[b] for b in range(256)), "in", "ing", "Ġt"]
    special = [{"id": 260 + n, "content": name, "special": True} for n, name in enumerate(("<s>", "</s>", "<|end|>"))]
    data: dict[str, Any] = {
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": None,
        "model": {
            "type": "BPE",
            "vocab": {name: i for i, name in enumerate(names)},
            "merges": [["i", "n"], ["Ġ", "t"], ["in", "g"]],
        },
        **changes,
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}[{{ m.content }}]{% else %}"
    "({{ m.content }}{{ eos_token }}{% endif %}{% endfor %}{% if add_generation_prompt %}){% endif %}"
)
TOKENS = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}


def test_a_folder_of_hugging_face_becomes_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [262, 261]}')
    spec = TokenizerSpec.from_huggingface(huggingface(tmp_path, {**TOKENS, "chat_template": TEMPLATE}), system="in")
    assert spec.pretokenizer == Pretokenizer.GPT2
    assert spec.tokens[259] == b""  # an id that the file leaves out
    assert (spec.specials, spec.ends, spec.bos_id, spec.flags) == ([260, 261, 262], [261, 262], 260, 0)
    assert spec.decode(spec.encode("hi", chat=True)) == b"<s>[in](hi</s>)"
    assert spec.chat_prefix == [260, ord("["), 256, ord("]"), ord("(")]
    assert spec.chat_suffix == [261, ord(")")]
    assert TokenizerSpec.from_section(spec.to_section()) == spec


def test_added_tokens_of_hugging_face_that_are_ordinary_text_become_literals(tmp_path: Path) -> None:
    marker = {"id": 261, "content": "<tool>", "special": False}
    spec = TokenizerSpec.from_huggingface(huggingface(tmp_path, added_tokens=[ADDED, marker]))
    assert (spec.literals, spec.specials) == ([260], [261])
    assert spec.encode("a      in") == [ord("a"), 260, ord(" "), ord(" "), 256]
    assert TokenizerSpec.from_section(spec.to_section()) == spec


def test_a_template_in_its_own_file_is_found_and_no_chat_leaves_it_out(tmp_path: Path) -> None:
    folder = huggingface(tmp_path, TOKENS)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert TokenizerSpec.from_huggingface(folder).decode(TokenizerSpec.from_huggingface(folder).chat_suffix) == b"!"
    assert not TokenizerSpec.from_huggingface(folder, chat=False).has_chat


def test_without_jinja2_a_template_is_refused_with_the_two_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    folder = huggingface(tmp_path, {**TOKENS, "chat_template": TEMPLATE})
    with pytest.raises(ColibriError, match=r"pip install jinja2, or in .*, or convert with --no-chat") as caught:
        TokenizerSpec.from_huggingface(folder)
    assert caught.value.code == Code.UNSUPPORTED


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ messages[0].content }}{{ messages[0].content }}", "repeats the user's text 2 times"),
        ("hello", "repeats the user's text 0 times"),
        ("{{ raise_exception('only two roles') }}", "TemplateError: only two roles"),
        ("{% if %}", "cannot be rendered: TemplateSyntaxError"),
        ("{{ 1 // 0 }}", "cannot be rendered: ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "cannot be rendered: TypeError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "cannot be rendered: RecursionError"),
        ("{{ messages[0].content }}\ud800", "the text of the chat template is malformed: UnicodeEncodeError"),
        ("{{ strftime_now('%Y') }}{{ today() }}{{ messages[0].content }}", "'today' is undefined"),
    ],
)
def test_templates_that_cannot_be_split_are_refused(tmp_path: Path, template: str, message: str) -> None:
    with pytest.raises(ColibriError, match=message):
        TokenizerSpec.from_huggingface(huggingface(tmp_path, {"chat_template": template}))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("<s>{{ strftime_now('%Y-%m-%d') }}</s>{{ messages[0].content }}", b"<s>unknown</s>"),
        ("{{ strftime_now('%d') if strftime_now is defined else '26 Jul' }}{{ messages[0].content }}", b"26 Jul"),
    ],
)
def test_a_template_that_asks_for_the_date_is_told_the_same_every_day(
    tmp_path: Path, template: str, expected: bytes
) -> None:
    spec = TokenizerSpec.from_huggingface(huggingface(tmp_path, {"chat_template": template}))
    assert spec.decode(spec.chat_prefix) == expected


HARMONY = """
{%- macro system() -%}
    {%- if identity is not defined %}{% set identity = "A model." %}{% endif %}
    {{- identity + "\\nDate: " + strftime_now("%Y-%m-%d") + "\\n" }}
    {%- if tools -%}{{ "tools" }}{%- endif -%}
{%- endmacro -%}
{{- "<s>system" + system() + "</s>" }}
{%- if messages[0].role in ("developer", "system") -%}
    {{- "<s>developer" + messages[0].content + "</s>" }}
    {%- set turns = messages[1:] -%}
{%- else -%}{%- set turns = messages -%}{%- endif -%}
{%- for message in turns -%}{{ "<s>" + message.role + message.content + "</s>" }}{%- endfor -%}
{%- if add_generation_prompt -%}<s>assistant{%- endif -%}
"""
DEEPSEEK = (
    "{% set ns = namespace(first=true, prompt='') %}{%- for message in messages %}{%- if message['role'] == 'system' %}"
    "{% set ns.prompt = ns.prompt + message['content'] %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.prompt }}"
    "{%- for message in messages %}{%- if message['role'] == 'user' %}{{ '<|end|>' + message['content'] }}{%- endif %}"
    "{%- if message['role'] == 'assistant' and message['content'] is not none %}{{ message['content'] }}{%- endif %}"
    "{%- endfor %}{% if add_generation_prompt %}{{ '</s>' }}{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "system", "prefix", "suffix"),
    [
        (HARMONY, None, "<s>systemA model.\nDate: unknown\n</s><s>user", "</s><s>assistant"),
        (HARMONY, "B.", "<s>systemA model.\nDate: unknown\n</s><s>developerB.</s><s>user", "</s><s>assistant"),
        (DEEPSEEK, None, "<s><|end|>", "</s>"),
        (DEEPSEEK, "B.", "<s>B.<|end|>", "</s>"),
    ],
)
def test_templates_in_the_manner_of_gpt_oss_and_deepseek_are_rendered(
    tmp_path: Path, template: str, system: str | None, prefix: str, suffix: str
) -> None:
    folder = huggingface(tmp_path, {"bos_token": "<s>", "chat_template": template})
    spec = TokenizerSpec.from_huggingface(folder, system=system)
    assert spec.decode(spec.chat_prefix).decode() == prefix
    assert spec.decode(spec.chat_suffix).decode() == suffix
    assert spec.tokens[spec.chat_suffix[0]] == b"</s>"


def test_bos_comes_from_the_post_processor_and_the_configuration_decides(tmp_path: Path) -> None:
    processor = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    }
    folder = huggingface(tmp_path, post_processor=processor)
    assert TokenizerSpec.from_huggingface(folder).encode("t") == [260, ord("t")]
    huggingface(tmp_path, {"add_bos_token": False}, post_processor=processor)
    assert TokenizerSpec.from_huggingface(folder).encode("t") == [ord("t")]


LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def steps_of(kind: Pretokenizer, digits: object = True, **options: Any) -> dict[str, Any]:
    """A pre_tokenizer of tokenizer.json: a Split for each pattern, Digits for single numbers."""
    steps: list[dict[str, Any]] = [
        {"type": "Digits", "individual_digits": digits} if pattern == r"\p{N}" else
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **options}
        for pattern in PATTERNS[kind]
    ]  # fmt: skip
    return {"type": "Sequence", "pretokenizers": [*steps, LEVEL]}


@pytest.mark.parametrize("kind", BUILT)
def test_split_patterns_are_recognised(tmp_path: Path, kind: Pretokenizer) -> None:
    spec = TokenizerSpec.from_huggingface(huggingface(tmp_path, pre_tokenizer=steps_of(kind)))
    assert spec.pretokenizer == kind
    assert spec.class_ranges == list(class_ranges(kind))


def test_patterns_with_written_out_line_breaks_are_recognised(tmp_path: Path) -> None:
    node = steps_of(Pretokenizer.DEEPSEEK_V3)
    for step in node["pretokenizers"][:-1]:
        step["pattern"]["Regex"] = step["pattern"]["Regex"].replace(r"\r\n", "\r\n")
    assert "\r\n" in node["pretokenizers"][2]["pattern"]["Regex"]
    spec = TokenizerSpec.from_huggingface(huggingface(tmp_path, pre_tokenizer=node))
    assert spec.pretokenizer == Pretokenizer.DEEPSEEK_V3


def test_removing_what_does_not_match_is_isolating_where_everything_matches(tmp_path: Path) -> None:
    options = {"behavior": "Removed", "invert": True}
    for kind in (Pretokenizer.LLAMA3, Pretokenizer.O200K):
        folder = huggingface(tmp_path, pre_tokenizer=steps_of(kind, **options))
        assert TokenizerSpec.from_huggingface(folder).pretokenizer == kind
    with pytest.raises(ColibriError, match="not known"):  # control characters would be lost
        TokenizerSpec.from_huggingface(
            huggingface(tmp_path, pre_tokenizer=steps_of(Pretokenizer.DEEPSEEK_V3, **options))
        )


def test_steps_in_another_order_or_number_are_refused(tmp_path: Path) -> None:
    node = steps_of(Pretokenizer.DEEPSEEK_V2)
    *steps, level = node["pretokenizers"]
    for changed in (steps[:-1], steps[::-1], [*steps, steps[-1]]):
        folder = huggingface(tmp_path, pre_tokenizer={**node, "pretokenizers": [*changed, level]})
        with pytest.raises(ColibriError, match=r"pre-tokenizers .*'Split', .* not known"):
            TokenizerSpec.from_huggingface(folder)


def test_a_tokenizer_as_lfm2_has_it_is_read(tmp_path: Path) -> None:
    """Llama 3's pattern, whole words, a BOS of the post-processor, chats in ChatML behind it."""
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    processors = [
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
        {"type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}]},
    ]
    byte_names = {byte: char for char, byte in tokenizer_import._BYTE_OF.items()}
    names = [*(byte_names[b] for b in range(256)), "in", "Ġt", "doing"]
    model = {
        "type": "BPE", "vocab": {name: i for i, name in enumerate(names)}, "merges": [["i", "n"], ["Ġ", "t"]],
        "ignore_merges": True, "byte_fallback": False,
    }  # fmt: skip
    template = (
        "{{- bos_token -}}{%- for message in messages -%}{{ '</s>' + message['role'] + '\n' + message['content'] "
        "+ '<|end|>\n' }}{%- endfor -%}{%- if add_generation_prompt -%}{{ '</s>assistant\n' }}{%- endif -%}"
    )
    folder = huggingface(
        tmp_path, {"bos_token": "<s>", "eos_token": "<|end|>", "chat_template": template}, model=model,
        post_processor={"type": "Sequence", "processors": processors},
        pre_tokenizer=steps_of(Pretokenizer.LLAMA3),
    )  # fmt: skip
    spec = TokenizerSpec.from_huggingface(folder)
    assert (spec.pretokenizer, spec.flags) == (Pretokenizer.LLAMA3, TokenizerFlag.ADD_BOS | TokenizerFlag.IGNORE_MERGES)
    assert [spec.tokens[i] for i in spec.encode("doing t 1234")] == [
        b"<s>", b"doing", b" t", b" ", b"1", b"2", b"3", b"4",
    ]  # fmt: skip
    assert spec.decode(spec.chat_prefix) == b"<s></s>user\n"
    assert spec.decode(spec.chat_suffix) == b"<|end|>\n</s>assistant\n"
    assert spec.ends == [262]


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        (Pretokenizer.O200K, "2d1b8dc11e89af71"),
        (Pretokenizer.DEEPSEEK_V2, "687136ee8f8698b7"),
        (Pretokenizer.DEEPSEEK_V3, "082e6512781039c9"),
    ],
)
def test_patterns_are_those_of_the_published_tokenizers(kind: Pretokenizer, digest: str) -> None:
    """Digests of the patterns of published files: a mistyped range would agree with itself everywhere else."""
    joined = "\n".join(PATTERNS[kind])
    assert hashlib.sha256(joined.encode()).hexdigest()[:16] == digest


ADDED = {"id": 260, "content": "    ", "special": False}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"type": "Unigram", "vocab": []}}, "has a Unigram model"),
        ({"model": {"type": "WordPiece", "vocab": {}}}, "has a WordPiece model"),
        ({"normalizer": {"type": "NFC"}}, "normalises texts to NFC"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend"}]}}, r"normalizer \['Prepend'\]"),
        ({"normalizer": {"type": "NFKC"}}, r"normalizer \['NFKC'\]"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, r"pre-tokenizer \['Metaspace'\]"),
        ({"pre_tokenizer": None}, "pre-tokenizer None"),
        ({"pre_tokenizer": {**LEVEL, "add_prefix_space": True}}, "add_prefix_space"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": r"\w+"}, "behavior": "Isolated"}, LEVEL]}},
            r"splits with the pattern '\\\\w\+'",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Punctuation"}, LEVEL]}},
            "pre-tokenizers .*Punctuation",
        ),
        ({"post_processor": {"type": "BertProcessing"}}, "post-processor 'BertProcessing'"),
        (
            {"post_processor": {"type": "TemplateProcessing", "single": [
                {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "</s>"}}]}},
            "template is",
        ),
        *(({"added_tokens": [{**ADDED, option: True}]}, f"added token 260 '    ' .* option {option}")
          for option in ("lstrip", "rstrip", "single_word")),
    ],
)  # fmt: skip
def test_hugging_face_tokenizers_that_the_section_cannot_express_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ColibriError, match=message) as caught:
        TokenizerSpec.from_huggingface(huggingface(tmp_path, **changes))
    assert caught.value.code == Code.UNSUPPORTED


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        ({"model": []}, Code.UNSUPPORTED, "has a None model"),
        ({"model": "BPE"}, Code.ARGUMENT, r"tokenizer\.json is malformed: AttributeError"),
        ({"model": {"vocab": [], "merges": []}}, Code.ARGUMENT, r"tokenizer\.json is malformed: AttributeError"),
        ({"model": {"vocab": {}, "merges": []}, "added_tokens": []}, Code.UNSUPPORTED, "has no tokens"),
        ({"model": {"vocab": {"a": "0"}, "merges": []}}, Code.ARGUMENT, "id of token 'a' is '0', not a number"),
        ({"model": {"vocab": {"a": -1}, "merges": []}}, Code.ARGUMENT, "id of token 'a' is -1, not a number"),
        ({"model": {"vocab": {"a": 1 << 40}, "merges": []}}, Code.LIMIT, "'a' is 1099511627776, limit 1048575"),
        ({"model": {"vocab": {"a": 0}, "merges": [[["a"], "a"]]}}, Code.ARGUMENT, "malformed: TypeError"),
        ({"model": {"vocab": {"a": 0}, "merges": ["a a a"]}}, Code.ARGUMENT, "malformed: ValueError"),
        ({"added_tokens": [3]}, Code.ARGUMENT, "malformed: TypeError"),
        ({"added_tokens": [{"content": "<a>"}]}, Code.ARGUMENT, "malformed: KeyError: 'id'"),
        ({"added_tokens": [{"content": "\ud800", "id": 260, "special": True}]}, Code.ARGUMENT, "UnicodeEncodeError"),
        ({"pre_tokenizer": {"type": "Sequence"}}, Code.ARGUMENT, "malformed: KeyError"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [{}]}}, Code.ARGUMENT, "malformed: StopIteration"),
        ({"model": {"vocab": {"a": 0}, "merges": [], "ignore_merges": "no"}}, Code.ARGUMENT, "ignore_merges is 'no'"),
        ({"pre_tokenizer": {"type": "ByteLevel", "use_regex": 0}}, Code.ARGUMENT, "use_regex is 0, must be true or"),
        (
            {"pre_tokenizer": steps_of(Pretokenizer.DEEPSEEK_V2, digits="no")}, Code.ARGUMENT,
            "individual_digits is 'no', must be",
        ),
        ({"pre_tokenizer": steps_of(Pretokenizer.LLAMA3, invert=0)}, Code.ARGUMENT, "invert is 0, must be true or"),
        ({"post_processor": [1]}, Code.ARGUMENT, "malformed: AttributeError"),
    ],
)
def test_values_of_the_wrong_kind_in_tokenizer_json_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], code: Code, message: str
) -> None:
    with pytest.raises(ColibriError, match=message) as caught:
        TokenizerSpec.from_huggingface(huggingface(tmp_path, **changes))
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_json_nested_too_deeply_is_refused(tmp_path: Path, name: str) -> None:
    folder = huggingface(tmp_path)
    (folder / name).write_text('{"a":' * 100000)
    with pytest.raises(ColibriError, match=f"{name} is not JSON of a checkpoint: nested too deeply"):
        TokenizerSpec.from_huggingface(folder)


@pytest.mark.parametrize("value", [-1, True, "2", [[1]], 1 << 33])
def test_end_ids_of_the_wrong_kind_are_refused(tmp_path: Path, value: object) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(ColibriError, match=r"generation_config\.json: eos_token_id has"):
        TokenizerSpec.from_huggingface(huggingface(tmp_path))


def test_an_id_that_is_no_word_of_the_section_is_refused(tmp_path: Path) -> None:
    spec = TokenizerSpec.from_huggingface(huggingface(tmp_path))
    with pytest.raises(ColibriError, match="no number of 32 bits") as caught:
        dataclasses.replace(spec, bos_id=-1).to_section()
    assert caught.value.code == Code.TOKENIZER


@pytest.mark.parametrize("option", ["dropout", "continuing_subword_prefix", "end_of_word_suffix"])
def test_options_of_the_bpe_model_that_change_ids_are_refused(tmp_path: Path, option: str) -> None:
    model = {"type": "BPE", "vocab": {}, "merges": [], option: "##"}
    with pytest.raises(ColibriError, match=f"BPE option {option} = '##'"):
        TokenizerSpec.from_huggingface(huggingface(tmp_path, model=model))


def test_nfc_can_be_dropped_on_request(tmp_path: Path) -> None:
    folder = huggingface(tmp_path, normalizer={"type": "NFC"})
    assert TokenizerSpec.from_huggingface(folder, drop_nfc=True).encode("t") == [ord("t")]


def test_a_folder_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match=r"has neither tokenizer\.json nor tokenizer\.model; save it"):
        TokenizerSpec.from_huggingface(tmp_path)
