# SPDX-License-Identifier: MIT
"""Ids of every kind of tokenizer on texts in many scripts: those of `tokenizers`, `transformers` and `sentencepiece`.

Vocabularies are trained here, on a part of the texts, so that the others have characters without a token.
"""

from __future__ import annotations

import io
import json
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from colibri._spec import Pretokenizer, TokenizerKind
from colibri.errors import ColibriError
from colibri.tokenizer import TokenizerSpec
from test_tokenizer_parity import KINDS, peer_pretokenizer
from tokenizer_corpus import HARD, INVALID, LANGUAGES, LONG, mixed, texts
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import LlamaTokenizer, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
from native_cases import assert_agrees

SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
TRAINING = [line for text in LANGUAGES[:14] for line in (text, f"  {text}   ")]


def compare(spec: TokenizerSpec, expected: Callable[[str], list[int]], folder: Path, every: list[str]) -> None:
    """Ids of the peer, of the Python tokenizer and of the C one; of texts that are not UTF-8 of our two."""
    section = folder / "section"
    section.write_bytes(spec.to_section())
    spec = TokenizerSpec.from_section(section.read_bytes(), len(spec.tokens))
    cases = [f"section {section} {len(spec.tokens)} 0"]
    for text in every:
        ids = expected(text)
        if len(text) < 20_000:  # a longer one takes the C tokenizer alone
            assert spec.encode(text) == ids, repr(text[:200])
        cases.append(f"encode plain {text.encode().hex() or '-'} 0 {' '.join(map(str, ids))}")
    for data in INVALID:
        ids = spec.encode(data)
        cases.append(f"encode plain {data.hex()} 0 {' '.join(map(str, ids))}")
        said = spec.decode(ids)
        assert said in (data, b" " + data) or len(spec.literals) == 0
    assert_agrees("test_tokenizer", cases, folder / "cases.txt")


# ---- byte-level BPE -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_byte_level_tokenizers_give_the_ids_of_the_library(kind: Pretokenizer, tmp_path: Path) -> None:
    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer = peer_pretokenizer(kind)
    trainer = trainers.BpeTrainer(
        vocab_size=1200, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    peer.train_from_iterator(TRAINING, trainer)
    peer.encode_special_tokens = True
    peer.save(str(tmp_path / "tokenizer.json"))
    spec = TokenizerSpec.from_huggingface(tmp_path)
    assert spec.pretokenizer == kind
    compare(spec, lambda text: peer.encode(text, add_special_tokens=False).ids, tmp_path, texts(int(kind)))


# ---- BPE of characters: tokenizers --------------------------------------------------------------------


@pytest.fixture(scope="module")
def characters() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Vocabulary and merges; some tokens begin, some end with spaces, some have one inside."""
    peer = Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    peer.train_from_iterator(TRAINING, trainers.BpeTrainer(vocab_size=1500, show_progress=False))
    model = json.loads(peer.to_str())["model"]
    names = dict.fromkeys([*SPECIALS, *BYTES, *sorted(model["vocab"], key=model["vocab"].__getitem__)])
    assert any("\u2581" in name[1:-1] for name in names)
    return {name: i for i, name in enumerate(names)}, [(left, right) for left, right in model["merges"]]


PREPEND = normalizers.Prepend("\u2581")
REPLACE = normalizers.Replace(" ", "\u2581")
SPACINGS: dict[str, tuple[Any, Any]] = {
    "prepend": (normalizers.Sequence([PREPEND, REPLACE]), None),
    "replace": (REPLACE, None),
    **{
        f"{scheme}-{form}": (None, pre_tokenizers.Metaspace(prepend_scheme=scheme, split=form == "split"))
        for scheme in ("always", "first", "never")
        for form in ("split", "whole")
    },
    "both": (normalizers.Sequence([PREPEND, REPLACE]), pre_tokenizers.Metaspace(prepend_scheme="first", split=True)),
}


def of_characters(characters: tuple[dict[str, int], list[tuple[str, str]]], spacing: str) -> Tokenizer:
    """The tokenizer as checkpoints of Llama 2 and Mixtral have it."""
    vocabulary, merges = characters
    model = models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    peer = Tokenizer(model)
    normalizer, pre_tokenizer = SPACINGS[spacing]
    if normalizer is not None:
        peer.normalizer = normalizer
    if pre_tokenizer is not None:
        peer.pre_tokenizer = pre_tokenizer
    strip = [] if spacing.startswith(("never", "replace")) else [decoders.Strip(" ", 1, 0)]
    replace = decoders.Replace("\u2581", " ")
    peer.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), *strip])
    peer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in SPECIALS])
    return peer


@pytest.mark.parametrize("spacing", SPACINGS)
def test_tokenizers_of_characters_give_the_ids_of_the_library(
    characters: tuple[dict[str, int], list[tuple[str, str]]], spacing: str, tmp_path: Path
) -> None:
    peer = of_characters(characters, spacing)
    peer.encode_special_tokens = True
    peer.save(str(tmp_path / "tokenizer.json"))
    spec = TokenizerSpec.from_huggingface(tmp_path)
    assert spec.kind == TokenizerKind.SENTENCEPIECE_BPE
    compare(spec, lambda text: peer.encode(text, add_special_tokens=False).ids, tmp_path, texts(len(spacing)))
    for text in [*LANGUAGES, *mixed(3, 100)]:
        ids = spec.encode(text)
        said = spec.decode(ids).decode()
        stripped = said if spacing.startswith(("never", "replace")) else said.removeprefix(" ")
        assert stripped == peer.decode(ids), repr(text)


TEMPLATES = {
    "mixtral": "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m['content'] + ' [/INST]' }}{% endfor %}",
    "mistral-spaced": "{{ bos_token }}{% for m in messages %}{{ ' [INST] ' + m['content'] + ' [/INST]' }}{% endfor %}",
    "zephyr": "{% for m in messages %}{{ '<|user|>\n' + m['content'] + eos_token + '\n' }}{% endfor %}<|assistant|>\n",
    "bare": "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }} answer:",
    "behind-text": "{{ bos_token }}User: {{ messages[0]['content'] }}\nAssistant:",
    "nothing-in-front": "{{ messages[0]['content'] }}{{ eos_token }}",
}


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("spacing", ["prepend", "replace", "always-whole", "first-whole", "first-split", "both"])
def test_chats_have_the_ids_of_the_rendered_whole(
    characters: tuple[dict[str, int], list[tuple[str, str]]], spacing: str, template: str, tmp_path: Path
) -> None:
    peer = PreTrainedTokenizerFast(
        tokenizer_object=of_characters(characters, spacing), chat_template=TEMPLATES[template],
        unk_token="<unk>", bos_token="<s>", eos_token="</s>",
    )  # fmt: skip
    peer.save_pretrained(tmp_path)
    spec = TokenizerSpec.from_huggingface(tmp_path)
    section = tmp_path / "section"
    section.write_bytes(spec.to_section())
    cases = [f"section {section} {len(spec.tokens)} 0"]
    for text in [*LANGUAGES, *HARD, *mixed(4, 100)]:
        if any(name in text for name in SPECIALS):
            continue  # characters for us, ids for the library
        messages = [{"role": "user", "content": text}]
        ids = peer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert spec.encode(text, chat=True) == ids, repr(text)
        cases.append(f"encode chat {text.encode().hex() or '-'} 0 {' '.join(map(str, ids))}")
    assert_agrees("test_tokenizer", cases, tmp_path / "cases.txt")


@pytest.mark.parametrize("legacy", [False, True])
def test_what_llama_tokenizer_saves_is_read(
    characters: tuple[dict[str, int], list[tuple[str, str]]], legacy: bool, tmp_path: Path
) -> None:
    vocabulary, merges = characters
    peer = LlamaTokenizer(vocab=vocabulary, merges=merges, legacy=legacy)
    peer.save_pretrained(tmp_path)
    spec = TokenizerSpec.from_huggingface(tmp_path)
    every = [text for text in [*LANGUAGES, *HARD, *mixed(5, 50)] if not any(name in text for name in SPECIALS)]
    bos = spec.encode("")
    compare(spec, lambda text: bos + peer.encode(text, add_special_tokens=False), tmp_path, every)


# ---- BPE of characters: sentencepiece -----------------------------------------------------------------


def trained_model(**options: Any) -> bytes:
    """A SentencePiece model file."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed; run: make setup")
    out = io.BytesIO()
    settings = {
        "vocab_size": 1300, "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "character_coverage": 0.98, "num_threads": 1, "minloglevel": 2, **options,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TRAINING), model_writer=out, **settings)
    return out.getvalue()


def against_sentencepiece(data: bytes, folder: Path, seed: int, prefix: bool = True) -> TokenizerSpec:
    """Compare with the library on every text; the tokenizer without BOS."""
    import sentencepiece

    (folder / "tokenizer.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}')
    peer = sentencepiece.SentencePieceProcessor(model_proto=data)
    spec = TokenizerSpec.from_huggingface(folder)
    # its own merging takes minutes for a word of 100,000 characters
    every = [text for text in texts(seed) if len(text) < 20_000]
    assert len(every) > len(LONG) + 200
    compare(spec, peer.encode, folder, every)
    for text in [*LANGUAGES, *mixed(seed, 50)]:
        ids = spec.encode(text)
        said = spec.decode(ids).decode()
        assert (said.removeprefix(" ") if prefix else said) == peer.decode(ids), repr(text)
    return spec


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_dummy_prefix": False},
        {"split_by_whitespace": False, "allow_whitespace_only_pieces": True},
        {"split_digits": True, "user_defined_symbols": "<tool>", "control_symbols": "<|im_start|>"},
    ],
    ids=["llama", "no-prefix", "whitespace-in-pieces", "symbols"],
)
def test_model_files_give_the_ids_of_sentencepiece(options: dict[str, Any], tmp_path: Path) -> None:
    against_sentencepiece(trained_model(**options), tmp_path, 6, options.get("add_dummy_prefix", True))


def test_equal_and_shuffled_scores_merge_as_sentencepiece_merges(tmp_path: Path) -> None:
    """No trainer gives such scores; a pair of the merged piece's score, the leftmost of equals, is all that decides."""
    data = trained_model()
    rng = random.Random(7)
    for n in range(4):
        changed, at = bytearray(data), 0
        while data[at] == 0x0A:  # a piece: its length, the counted name, then the score
            score = at + 4 + data[at + 3]
            if data[score] == 0x15:
                struct.pack_into("<f", changed, score + 1, -float(rng.randrange(3 + 40 * n)))
            at += 2 + data[at + 1]
        assert changed != data
        folder = tmp_path / str(n)
        folder.mkdir()
        spec = against_sentencepiece(bytes(changed), folder, n)
        assert len({rank for _, _, rank, _ in spec.merges}) <= 3 + 40 * n


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "unigram", "vocab_size": 600}, "is a Unigram model"),
        ({"model_type": "char"}, "is a char model"),
        ({"byte_fallback": False}, "has no byte_fallback"),
        ({"normalization_rule_name": "nmt_nfkc"}, "normalises texts"),
        ({"remove_extra_whitespaces": True}, "removes spaces"),
        ({"treat_whitespace_as_suffix": True}, "writes spaces behind words"),
        ({"user_defined_symbols": "abc"}, "'abc' is ordinary text"),
    ],
)
def test_model_files_of_other_kinds_are_refused_by_name(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained_model(**options))
    with pytest.raises(ColibriError, match=message):
        TokenizerSpec.from_huggingface(tmp_path)
