# SPDX-License-Identifier: MIT
"""The published patterns of pre-tokenizers, and the character classes that each of them asks for.

A pre-tokenizer is a list of steps. Each isolates what its pattern matches, and the next one goes through every piece
that the steps before it left, whether it matched or not. The class ranges of a model file are made here, so a device
knows no Unicode and no list of characters.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache

from colibri._spec import CharacterClass, Pretokenizer
from colibri._unicode import CATEGORY_RANGES

Range = tuple[int, int, int]
"""First code point, last code point, class."""

NUMBER = r"\p{N}"  # also what Digits with individual_digits does
_END = r"\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|" + _END
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_MODERN = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + _END
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_BIG, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_O200K = (
    rf"{_LEAD}{_BIG}*{_SMALL}+{_SHORT}?|{_LEAD}{_BIG}+{_SMALL}*{_SHORT}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + _END
)

# DeepSeek V2: cased letters of an older Unicode, with some left out.
_V2_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556"
    "\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943"
)
# [:-~] holds the letters of ASCII, [\uff1a-\uff5e] those of full width: so both are punctuation as well.
_V2_PUNCTUATION = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_V2_ASIAN = "\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff"
_V3_ASIAN = "\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff"
_V3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"""
    r"|\s*[\r\n]+|" + _END
)

PATTERNS: dict[Pretokenizer, tuple[str, ...]] = {
    Pretokenizer.NONE: (),
    Pretokenizer.GPT2: (GPT2,),
    Pretokenizer.SMOLLM: (NUMBER, GPT2),
    Pretokenizer.LLAMA3: (_MODERN % r"\p{N}{1,3}",),
    Pretokenizer.QWEN2: (_MODERN % r"\p{N}",),
    Pretokenizer.O200K: (_O200K,),
    Pretokenizer.DEEPSEEK_V2: (
        r"[\r\n]", rf"\s?[{_V2_LETTERS}]+", rf"\s?[{_V2_PUNCTUATION}]+", r"\s+$", f"[{_V2_ASIAN}]+", NUMBER,
    ),
    Pretokenizer.DEEPSEEK_V3: (r"\p{N}{1,3}", f"[{_V3_ASIAN}]+", _V3),
}  # fmt: skip
"""The patterns of a pre-tokenizer's steps, with line breaks written as escapes."""

_CASED = (CharacterClass.UPPER, CharacterClass.LOWER)
_UNUSED = (CharacterClass.MARK, CharacterClass.PUNCTUATION)


def known(steps: Sequence[str]) -> Pretokenizer | None:
    """The pre-tokenizer that has these patterns."""
    plain = tuple(step.replace("\r", r"\r").replace("\n", r"\n") for step in steps)
    return next((kind for kind, patterns in PATTERNS.items() if patterns == plain), None)


def listed(members: str) -> list[range]:
    """Code points of the inside of a bracket: characters and ranges, no escapes."""
    return [range(ord(m[0]), ord(m[-1]) + 1) for m in re.findall("(?s).-.|.", members)]


@cache
def class_ranges(kind: Pretokenizer) -> tuple[Range, ...]:
    """Class ranges of a model file with this pre-tokenizer: maximal runs, ascending."""
    letters = listed(_V2_LETTERS)
    punctuation = listed(_V2_PUNCTUATION)
    asian = listed(_V2_ASIAN if kind == Pretokenizer.DEEPSEEK_V2 else _V3_ASIAN)
    rows = CATEGORY_RANGES
    starts = [first for first, _, _ in rows]

    def category(code: int) -> int:
        at = bisect_right(starts, code) - 1
        return rows[at][2] if at >= 0 and code <= rows[at][1] else int(CharacterClass.OTHER)

    def within(code: int, spans: list[range]) -> bool:
        return any(code in span for span in spans)

    def class_of(code: int) -> int:
        found = category(code)
        if kind == Pretokenizer.O200K:
            return 0 if found == CharacterClass.PUNCTUATION else found
        if kind == Pretokenizer.DEEPSEEK_V2:
            is_letter, is_listed = within(code, letters), within(code, punctuation)
            if found not in (CharacterClass.NUMBER, CharacterClass.SPACE):
                rest = CharacterClass.PUNCTUATION if is_listed else CharacterClass.OTHER
                found = CharacterClass.LETTER if is_letter else rest
            if is_listed and found != CharacterClass.PUNCTUATION:
                found += CharacterClass.BASIC
            return found + CharacterClass.ASIAN * within(code, asian)
        if kind == Pretokenizer.DEEPSEEK_V3:
            if found in (*_CASED, CharacterClass.MARK):
                found = CharacterClass.LETTER
            if code < 128 and found in (CharacterClass.LETTER, CharacterClass.PUNCTUATION):
                found += CharacterClass.BASIC
            return found + CharacterClass.ASIAN * within(code, asian)
        if found in _CASED:
            return CharacterClass.LETTER
        return 0 if found in _UNUSED else found

    spans = [*letters, *punctuation, *asian, range(128)]
    cuts = {first for first, _, _ in rows} | {last + 1 for _, last, _ in rows}
    cuts |= {0, 0x110000} | {span.start for span in spans} | {span.stop for span in spans}
    found: list[Range] = []
    first, last_class = 0, class_of(0)
    for cut in sorted(cuts)[1:]:
        now = class_of(cut) if cut < 0x110000 else -1
        if now != last_class:
            if last_class:
                found.append((first, cut - 1, int(last_class)))
            first, last_class = cut, now
    return tuple(found)
