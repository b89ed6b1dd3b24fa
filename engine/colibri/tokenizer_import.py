# SPDX-License-Identifier: MIT
"""Tokenizers of checkpoints, reduced to what the tokenizer section can express.

Two sources: a Hugging Face folder (tokenizer.json, else a SentencePiece model file, and the files beside it) and the
metadata of a GGUF file. Here is what is byte-level BPE; colibri.tokenizer_sentencepiece has the other kind. What the
section cannot express is refused by name, because ids that differ silently cost answers, not errors.

Chat: the template is rendered once, here, around a marker; what stands on its two sides becomes the ids that the
device puts around the user's text. So a device needs no template language.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from colibri import tokenizer_sentencepiece as sentencepiece
from colibri._spec import MAX_TOKENIZER_BYTES, MAX_VOCABULARY, Code, Pretokenizer, TokenizerFlag
from colibri._unicode import UNICODE_VERSION
from colibri.errors import ColibriError, MissingPackage
from colibri.files import load_json, read_regular
from colibri.tokenizer import Merge, TokenizerSpec
from colibri.tokenizer_patterns import GPT2, NUMBER, class_ranges, known
from colibri.tokenizer_sentencepiece import Spacing, is_marker, members

MARKER = "ColibriUserTextMarker"
UNKNOWN_DATE = "unknown"  # what a template is told that asks for the date: a device has none when it is converted

_SUPPORTED = (
    "byte-level BPE with the pre-tokenizers gpt2, smollm, llama3, qwen2, o200k, deepseek_v2, deepseek_v3, and BPE with "
    "byte_fallback"
)
GGUF_PRETOKENIZERS = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "olmo", "mpt"), Pretokenizer.GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), Pretokenizer.SMOLLM),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "lfm2"), Pretokenizer.LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), Pretokenizer.QWEN2),
    "gpt-4o": Pretokenizer.O200K,
    "deepseek-llm": Pretokenizer.DEEPSEEK_V2,
    "deepseek-v3": Pretokenizer.DEEPSEEK_V3,
}
# token_type of GGUF
_NORMAL, _USER_DEFINED, _BYTE = sentencepiece.NORMAL, sentencepiece.USER_DEFINED, sentencepiece.BYTE
# A GGUF file names one end of sequence; a text also ends where a control token of these names appears.
_END_NAMES = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<|eom_id|>", "</s>")


def _refuse(what: str, fix: str = f"supported: {_SUPPORTED}") -> NoReturn:
    raise ColibriError(Code.UNSUPPORTED, f"{what}; {fix}")


# What Python raises when a value is not of the kind that the code expects.
_WRONG_KIND = (
    ArithmeticError, AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError,
)  # fmt: skip


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """What goes wrong with values of the wrong kind is an error of `what`, not of this program."""
    try:
        yield
    except _WRONG_KIND as error:
        raise ColibriError(
            Code.ARGUMENT, f"{what} is malformed: {type(error).__name__}: {error}; save the checkpoint again"
        ) from error


def _alphabet() -> dict[str, int]:
    """Byte of each character of the GPT-2 alphabet: printable bytes stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(value): value for value in printable}
    hidden = [value for value in range(256) if value not in set(printable)]
    table.update({chr(0x100 + n): value for n, value in enumerate(hidden)})
    return table


_BYTE_OF = _alphabet()


def _token_bytes(name: str, token_id: int) -> bytes:
    try:
        return bytes(_BYTE_OF[char] for char in name)
    except KeyError as error:
        _refuse(f"token {token_id} {name!r} has {error.args[0]!r}, which is no byte of the GPT-2 alphabet")


def _merge_rows(pairs: Iterable[Sequence[str]], ids: Mapping[str, int]) -> list[Merge]:
    """Rows sorted by (left, right); ranks count up from 0. Of a pair that stands twice the later rank holds."""
    ranked: dict[tuple[int, int], tuple[int, int]] = {}
    for rank, (left, right) in enumerate(pairs):
        for name in (left, right, left + right):
            if name not in ids:
                _refuse(f"merge {rank} ({left!r}, {right!r}) needs the token {name!r}, which is not in the vocabulary",
                        "the checkpoint's vocabulary and merges do not belong together")
        ranked[ids[left], ids[right]] = (rank, ids[left + right])
    dense = {pair: n for n, pair in enumerate(sorted(ranked, key=lambda pair: ranked[pair][0]))}
    return sorted((left, right, dense[left, right], merged) for (left, right), (_, merged) in ranked.items())


def _check_literal(token: Mapping[str, Any], token_id: int) -> None:
    """An added token that is ordinary text is matched wherever it stands, and takes nothing with it."""
    for option in ("single_word", "lstrip", "rstrip"):
        if token.get(option):
            _refuse(f"added token {token_id} {token['content']!r} is ordinary text with the option {option}",
                    "ordinary text is matched as it stands")


# ---- chat template --------------------------------------------------------------------------------


def render_template(template: str, variables: Mapping[str, object], system: str | None) -> tuple[str, str]:
    """What the template puts before and after the text of a first user message."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        other = "convert with --no-chat to leave the chat form out"
        raise MissingPackage("the chat template of the checkpoint needs", "jinja2", "convert", other) from error

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def tojson(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    messages = [{"role": "user", "content": MARKER}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    try:
        try:
            text = environment.from_string(template).render(messages=messages, add_generation_prompt=True, **variables)
        except jinja2.UndefinedError as error:
            if "'strftime_now' is undefined" not in str(error):
                raise
            # It asks for the date at which a chat begins, and has no other statement for where there is none.
            environment.globals["strftime_now"] = lambda _: UNKNOWN_DATE
            text = environment.from_string(template).render(messages=messages, add_generation_prompt=True, **variables)
    except Exception as error:  # the template is a program of its own: it may raise anything
        _refuse(f"the chat template cannot be rendered: {type(error).__name__}: {error}",
                "convert with --no-chat to leave the chat form out")
    parts = text.split(MARKER)
    if len(parts) != 2:
        _refuse(f"the chat template repeats the user's text {len(parts) - 1} times, once is supported",
                "convert with --no-chat to leave the chat form out")
    return parts[0], parts[1]


def _add_chat(
    spec: TokenizerSpec,
    template: str | None,
    variables: Mapping[str, object],
    system: str | None,
    stripping: Sequence[str] = (),
    spacing: Spacing | None = None,
) -> None:
    if template is None:
        if system is not None:
            _refuse("a system message was given and the checkpoint has no chat template", "leave the message out")
        return
    prefix, suffix = render_template(template, variables, system)
    with _reading("the text of the chat template"):
        _set_chat(spec, prefix, suffix, stripping, spacing)


def _set_chat(
    spec: TokenizerSpec, prefix: str, suffix: str, stripping: Sequence[str], spacing: Spacing | None
) -> None:
    for name in stripping:
        if name in prefix + suffix:
            _refuse(f"the chat template uses token {name!r}, which swallows the spaces around it (lstrip, rstrip), or "
                    "is looked for behind a normalizer that adds some",
                    "convert with --no-chat to leave the chat form out")
    if spacing is not None:
        sentencepiece.set_chat(spec, prefix, suffix, spacing)
        return
    spec.chat_prefix = spec.encode_marked(prefix)
    spec.chat_suffix = spec.encode_marked(suffix)


# ---- GGUF -----------------------------------------------------------------------------------------


def from_gguf_metadata(metadata: Mapping[str, object], *, chat: bool, system: str | None) -> TokenizerSpec:
    """See TokenizerSpec.from_gguf_metadata."""
    with _reading("the tokenizer of the GGUF file"):
        return _from_gguf(metadata, chat, system)


def _from_gguf(metadata: Mapping[str, object], chat: bool, system: str | None) -> TokenizerSpec:
    def take(key: str, kind: type, default: Any = None) -> Any:
        value = metadata.get(f"tokenizer.ggml.{key}", default)
        if value is not None and not isinstance(value, kind):
            _refuse(f"GGUF key tokenizer.ggml.{key} is a {type(value).__name__}", f"it must be a {kind.__name__}")
        return value

    model = take("model", str)
    names = take("tokens", list)
    if names is None:
        _refuse("GGUF metadata lacks tokenizer.ggml.tokens", "give a complete file")
    types = take("token_type", list, [_NORMAL] * len(names))
    if len(types) != len(names):
        _refuse(f"GGUF file has {len(names)} tokens and {len(types)} token types", "the counts must be equal")
    spacing: Spacing | None = None
    if model == "llama":
        scores = take("scores", list)
        if scores is None or len(scores) != len(names):
            _refuse(f"GGUF file has {len(names)} tokens and not as many tokenizer.ggml.scores", "give a complete file")
        pieces = sentencepiece.from_scores(names, scores, types, take("add_space_prefix", bool, True))
        spec, spacing = pieces.spec(), pieces.spacing
        default_bos = True
    elif model == "gpt2":
        spec = _gguf_byte_level(take, names, types)
        default_bos = spec.pretokenizer == Pretokenizer.LLAMA3
    else:
        _refuse(f"GGUF tokenizer model is {model!r}")
    spec.bos_id = take("bos_token_id", int)
    spec.flags |= int(TokenizerFlag.ADD_BOS) * bool(take("add_bos_token", bool, default_bos))
    ends = {take(f"{key}_token_id", int) for key in ("eos", "eot", "eom")}
    ends |= {i for i in spec.specials if names[i] in _END_NAMES}
    spec.ends = sorted(i for i in ends if i is not None)
    if chat:
        template = metadata.get("tokenizer.chat_template")
        eos = take("eos_token_id", int)
        variables = {key: names[i] for key, i in (("bos_token", spec.bos_id), ("eos_token", eos)) if i is not None}
        _add_chat(spec, str(template) if template else None, variables, system, spacing=spacing)
    return spec


def _gguf_byte_level(take: Callable[..., Any], names: list[str], types: list[int]) -> TokenizerSpec:
    """The tokenizer of the model gpt2, without BOS, ends and chat form."""
    pre = take("pre", str)
    if pre not in GGUF_PRETOKENIZERS:
        _refuse(f"GGUF pre-tokenizer is {pre!r}", f"supported: {', '.join(sorted(GGUF_PRETOKENIZERS))}")
    if take("add_space_prefix", bool, False):
        _refuse("GGUF key tokenizer.ggml.add_space_prefix is set")
    merges = take("merges", list)
    if merges is None:
        _refuse("GGUF metadata lacks tokenizer.ggml.merges", "give a complete file")
    tokens: list[bytes] = []
    specials: list[int] = []
    literals: list[int] = []
    for i, (name, kind) in enumerate(zip(names, types, strict=True)):
        if kind == _BYTE or not _NORMAL <= kind <= _BYTE:
            _refuse(f"token {i} {name!r} has GGUF token type {kind}", "a gpt2 tokenizer has types 1 to 5")
        if kind == _USER_DEFINED and not is_marker(name):
            literals.append(i)
        elif kind != _NORMAL:
            specials.append(i)
        tokens.append(_token_bytes(name, i) if kind == _NORMAL else name.encode())
    pretokenizer = GGUF_PRETOKENIZERS[pre]
    whole = pretokenizer in (Pretokenizer.LLAMA3, Pretokenizer.O200K)  # what their tokenizer.json says
    return TokenizerSpec(
        tokens=tokens,
        merges=_merge_rows((merge.split(" ", 1) for merge in merges), {name: i for i, name in enumerate(names)}),
        pretokenizer=pretokenizer,
        flags=int(TokenizerFlag.IGNORE_MERGES) * whole,
        specials=specials,
        literals=sorted(literals, key=lambda i: tokens[i]),
        class_ranges=list(class_ranges(pretokenizer)),
        unicode_version=UNICODE_VERSION,
    )


# ---- Hugging Face ---------------------------------------------------------------------------------


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; nothing where there is no file."""
    return load_json(path) if path.exists() else {}


def _flag(node: Mapping[str, Any], key: str, default: bool) -> bool:
    """A switch that changes ids: anything but true, false and absent is refused."""
    value = node.get(key)
    if value is not None and not isinstance(value, bool):
        raise ColibriError(Code.ARGUMENT, f"tokenizer.json: {key} is {value!r}, must be true or false")
    return default if value is None else value


def _step(part: Mapping[str, Any]) -> str | None:
    """The pattern that a pre-tokenizer in front of ByteLevel isolates; None when it does something else."""
    if part.get("type") == "Digits":
        return NUMBER if _flag(part, "individual_digits", False) else None
    regex = part.get("pattern", {}).get("Regex") if part.get("type") == "Split" else None
    if not isinstance(regex, str):
        return None
    kept = (part.get("behavior"), _flag(part, "invert", False))
    # A pattern that is a pre-tokenizer alone leaves nothing over that could be removed.
    isolates = kept == ("Isolated", False) or (kept == ("Removed", True) and known([regex]) is not None)
    return regex if isolates else None


def _pretokenizer(node: dict[str, Any] | None) -> Pretokenizer:
    parts = members(node, "pretokenizers")
    kinds = [part.get("type") for part in parts]
    if not kinds or kinds[-1] != "ByteLevel":
        _refuse(f"tokenizer.json has the pre-tokenizer {kinds or None}")
    last = parts[-1]
    if last.get("add_prefix_space"):
        _refuse("the ByteLevel pre-tokenizer adds a space in front (add_prefix_space)")
    steps = [_step(part) for part in parts[:-1]]
    if _flag(last, "use_regex", True):
        steps.append(GPT2)
    patterns = [step for step in steps if step is not None]
    found = known(patterns) if len(patterns) == len(steps) else None
    if found is None:
        if kinds == ["Split", "ByteLevel"]:
            regex = parts[0].get("pattern", {}).get("Regex")
            _refuse(f"tokenizer.json splits with the pattern {regex!r} ({parts[0].get('behavior')})")
        _refuse(f"tokenizer.json has the pre-tokenizers {kinds} with patterns or options that are not known: {parts}")
    return found


def _adds_bos(node: dict[str, Any] | None, added: Mapping[str, int]) -> int | None:
    """Id that the post-processor puts in front of a text."""
    found: int | None = None
    for part in members(node, "processors"):
        if part.get("type") == "ByteLevel":
            continue
        if part.get("type") != "TemplateProcessing":
            _refuse(f"tokenizer.json has the post-processor {part.get('type')!r}")
        names = [next(iter(item.items())) for item in part.get("single", [])]
        kinds = [kind for kind, _ in names]
        if kinds == ["Sequence"]:
            continue
        if kinds != ["SpecialToken", "Sequence"]:
            _refuse(f"the post-processor's template is {kinds}",
                    "supported: one special token in front of the text")
        found = added.get(names[0][1]["id"])
    return found


def _content(value: object) -> str | None:
    """A token of tokenizer_config.json: a string, or an object with one."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _template(directory: Path, config: Mapping[str, Any]) -> str | None:
    path = directory / "chat_template.jinja"
    if path.exists():
        with _reading(str(path)):
            return read_regular(path).decode("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {str(item.get("name")): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _check_model(data: Mapping[str, Any], drop_nfc: bool) -> dict[str, Any]:
    model: dict[str, Any] = data.get("model") or {}
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        _refuse(f"tokenizer.json has a {model.get('type')} model")
    for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key):
            _refuse(f"tokenizer.json has the BPE option {key} = {model[key]!r}")
    if _flag(model, "byte_fallback", False):
        if _flag(model, "ignore_merges", False):
            _refuse("tokenizer.json has byte_fallback and ignore_merges")
        return model
    kinds = [part.get("type") for part in members(data.get("normalizer"), "normalizers")]
    if kinds == ["NFC"]:
        if not drop_nfc:
            _refuse("tokenizer.json normalises texts to NFC, which the device cannot do",
                    "give --drop-nfc: texts that are not in NFC then get other ids; or --no-tokenizer")
    elif kinds:
        _refuse(f"tokenizer.json has the normalizer {kinds}")
    return model


def from_huggingface(directory: Path, *, chat: bool, system: str | None, drop_nfc: bool) -> TokenizerSpec:
    """See TokenizerSpec.from_huggingface."""
    path = directory / "tokenizer.json"
    model = directory / "tokenizer.model"
    if not path.exists() and not model.exists():
        _refuse(f"{directory.name} has neither tokenizer.json nor tokenizer.model",
                "save it with the fast tokenizer of transformers (save_pretrained)")
    data = _json(path)
    config = _json(directory / "tokenizer_config.json")
    named = {key: _content(config.get(key)) for key in ("bos_token", "eos_token", "unk_token", "pad_token")}
    stripping: list[str] = []
    spacing: Spacing | None = None
    if path.exists():
        with _reading(f"{path}"):
            spec, every, stripping, spacing = _from_tokenizer_json(data, config, named, drop_nfc)
    else:
        with _reading(f"{model}"):
            spec, every, spacing = _from_model_file(model, config, named)
    spec.ends = _end_ids(directory, every, named["eos_token"])
    if chat:
        variables = {key: name for key, name in named.items() if name is not None}
        _add_chat(spec, _template(directory, config), variables, system, stripping, spacing)
    return spec


def _from_model_file(
    path: Path, config: Mapping[str, Any], named: dict[str, str | None]
) -> tuple[TokenizerSpec, dict[str, int], Spacing]:
    """A SentencePiece model file: names that the configuration leaves out come from it, and a BOS goes in front."""
    pieces = sentencepiece.read_model(read_regular(path, MAX_TOKENIZER_BYTES), str(path))
    if config.get("added_tokens_decoder"):
        _check_added(config["added_tokens_decoder"], pieces.names)
    spec = pieces.spec()
    for key, i in (("bos_token", pieces.bos), ("eos_token", pieces.eos), ("unk_token", pieces.unk)):
        if named[key] is None and i is not None:
            named[key] = pieces.names[i]
    every = {name: i for i, name in enumerate(pieces.names)}
    spec.bos_id = every.get(named["bos_token"] or "")
    add_bos = config.get("add_bos_token", True)
    if spec.bos_id is not None and add_bos:
        spec.flags |= int(TokenizerFlag.ADD_BOS)
    return spec, every, pieces.spacing


def _check_added(added: Mapping[str, Any], names: Sequence[str]) -> None:
    """Tokens beside the model file must be pieces of it: others are only in a tokenizer.json."""
    for key, token in added.items():
        i = int(key)
        if not 0 <= i < len(names) or names[i] != _content(token):
            _refuse(f"tokenizer_config.json adds token {i} {_content(token)!r}, which tokenizer.model lacks",
                    "save the fast tokenizer (tokenizer.json) of transformers beside it")


def _check_id(name: str, value: object) -> int:
    """An id of tokenizer.json; the table of tokens is as long as the highest, so it is bounded first."""
    if type(value) is not int or value < 0:
        raise ColibriError(Code.ARGUMENT, f"tokenizer.json: the id of token {name!r} is {value!r}, not a number")
    if value >= MAX_VOCABULARY:
        raise ColibriError(
            Code.LIMIT, f"tokenizer.json: the id of token {name!r} is {value}, limit {MAX_VOCABULARY - 1}"
        )
    return value


def _from_tokenizer_json(
    data: Mapping[str, Any], config: Mapping[str, Any], named: Mapping[str, str | None], drop_nfc: bool
) -> tuple[TokenizerSpec, dict[str, int], list[str], Spacing | None]:
    """The tokenizer without ends and chat form, the id of every token, those that no template may use, the spacing."""
    model = _check_model(data, drop_nfc)
    spacing: Spacing | None = None
    if model.get("byte_fallback"):
        spacing = sentencepiece.spacing_of(data, ("NFC",) if drop_nfc else ())
        sentencepiece.check_decoder(data.get("decoder"))
    vocabulary: dict[str, int] = model["vocab"]
    names = {_check_id(name, i): name for name, i in vocabulary.items()}
    added: dict[str, int] = {}
    literals: list[int] = []
    stripping: list[str] = []
    for token in data.get("added_tokens") or []:
        name, i = token["content"], _check_id(token["content"], token["id"])
        if not token.get("special") and not is_marker(name):
            _check_literal(token, i)
            if spacing is not None:
                _refuse(f"added token {i} {name!r} is ordinary text, which is not supported with byte_fallback")
            literals.append(i)
        added[name] = i
        normalised = spacing is not None and bool(data.get("normalizer")) and token.get("normalized")
        if token.get("lstrip") or token.get("rstrip") or normalised:
            stripping.append(name)
    if not names:
        _refuse("tokenizer.json has no tokens", "save the checkpoint again")
    names.update({i: name for name, i in added.items()})
    texts = [names.get(i, "") for i in range(max(names) + 1)]
    every = {**vocabulary, **added}
    unk = every.get(model.get("unk_token") or "")
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    if spacing is not None:
        specials = {*added.values()} if unk is None else {*added.values(), unk}
        ordinary = [i for name, i in vocabulary.items() if i not in specials and name not in sentencepiece.BYTE_NAMES]
        merges = _merge_rows(sentencepiece.within_words(pairs, spacing), vocabulary)
        spec = sentencepiece.build(texts, ordinary, sorted(specials), merges, spacing)
    else:
        raw = set(added.values())  # their texts are not in the GPT-2 alphabet
        tokens = [name.encode() if i in raw or not name else _token_bytes(name, i) for i, name in enumerate(texts)]
        pretokenizer = _pretokenizer(data.get("pre_tokenizer"))
        spec = TokenizerSpec(
            tokens=tokens,
            merges=_merge_rows(pairs, vocabulary),
            pretokenizer=pretokenizer,
            flags=int(TokenizerFlag.IGNORE_MERGES) * _flag(model, "ignore_merges", False),
            specials=sorted(raw - set(literals)),
            literals=sorted(literals, key=lambda i: tokens[i]),
            unk_id=unk,
            class_ranges=list(class_ranges(pretokenizer)),
            unicode_version=UNICODE_VERSION,
        )
    spec.bos_id = _adds_bos(data.get("post_processor"), every)
    add_bos = config.get("add_bos_token")
    if not isinstance(add_bos, bool):
        add_bos = spec.bos_id is not None
    if spec.bos_id is None and named["bos_token"] is not None:
        spec.bos_id = every.get(named["bos_token"])
    spec.flags |= int(TokenizerFlag.ADD_BOS) * add_bos
    return spec, every, stripping, spacing


def _end_ids(directory: Path, ids: Mapping[str, int], eos: str | None) -> list[int]:
    """Ids of generation_config.json, else of config.json, and the tokenizer's own end of sequence."""
    ends = {ids[eos]} if eos is not None and eos in ids else set()
    for name in ("generation_config.json", "config.json"):
        value = _json(directory / name).get("eos_token_id")
        if value is not None:
            values = value if isinstance(value, list) else [value]
            for i in values:
                if type(i) is not int or not 0 <= i < MAX_VOCABULARY:
                    raise ColibriError(
                        Code.ARGUMENT, f"{name}: eos_token_id has {i!r}, must be ids of 0..{MAX_VOCABULARY - 1}"
                    )
            ends.update(values)
            break
    return sorted(ends)
