# SPDX-License-Identifier: MIT
"""Texts in many scripts, written for these tests, and texts that are hard for tokenizers.

Characters are those of Unicode 14, the version whose classes model files carry.
"""

from __future__ import annotations

import random

LANGUAGES = [
    "The quick brown fox doesn't jump over the lazy dogs; they'll've jumped 345678 times in 2024.",
    "Der Fuß des Gebirges liegt südlich; übermorgen gäbe es Ärger über Öl, sagte sie.",
    "L'été où naïve Zoë mangea un gâteau à l'œuf, ça coûtait 12,50 € près du château.",
    "El pingüino señaló: «¿Dónde está mañana el niño?» ¡Qué lástima, se marchó!",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Đường phố Hà Nội rất đẹp.",
    "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Η γάτα κοιμάται πάνω στο τραπέζι.",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Їжак і ґудзик, ўсё добра.",
    "الكتاب على الطاولة، والقلم في الحقيبة. مرحبًا بالعالم ١٢٣ ٤٥٦؟",
    "שלום עולם, הספר נמצא על השולחן. בְּרֵאשִׁית בָּרָא",
    "नमस्ते दुनिया, यह एक छोटा वाक्य है। क्षत्रिय और ज्ञान १२३।",
    "สวัสดีชาวโลก วันนี้อากาศดีมาก ราคา ๑๒๐ บาท",
    "我们在这里学习机器学习。今天是12月3日，天气很好！「引号」、……",
    "これは試験です。東京都でラーメンを食べた。ｶﾀｶﾅと全角１２３。",
    "안녕하세요 세계! 오늘은 날씨가 좋습니다. 한글 ㄱㄴㄷ",
    "ქართული ენა, հայերեն, አማርኛ, ខ្មែរ, မြန်မာ, বাংলা, தமிழ், తెలుగు",
    "👩\u200d👩\u200d👧\u200d👦 👍🏽👍🏿 🏳\ufe0f\u200d🌈 🇩🇪🇫🇷 ❤\ufe0f 1\ufe0f\u20e3 🐦🐦🐦 (╯°□°)╯︵ ┻━┻",
    "def f(x, *, y=0x1F):\n\treturn {k: v[::-1] for k, v in x.items() if k != '__init__'}  # ok?\n",
    "#include <stdio.h>\r\nint main(void)\r\n{\r\n\tprintf(\"%d\\n\", a[i] >> 2);\r\n\treturn 0;\r\n}\r\n",
    "SELECT a.id, COUNT(*) FROM t AS a WHERE a.b <> 'x''y' GROUP BY 1; -- https://example.org/a?b=c&d=%20",
    "e\u0301 a\u0308 \u1e9b\u0323 ﬁ ﬀ Å Å Ω Ω ½ ² Ⅷ ㊿ ① x\u00a0y\u3000z\u2003w\u200bv\ufeffu\u2028t",
]  # fmt: skip
HARD = [
    "", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n\n", " \n ", "\t\t  \t", "a", " a", "a ", "  a", "a  ",
    " a b  c   d ",
    "\u2581", "\u2581\u2581", " \u2581", "\u2581 a", "a\u2581b", "a \u2581 b", "\u2581a", "a\u2581",
    "".join(map(chr, range(1, 32))), "\x00", "a\x00b", "\x7f\x80\x9f", "<0x0A>", "<0x41>a", "<unk>x", "</", "[INST",
    "[/INST]",
    "   leading and trailing   ", "word\n\n\nword", "a\tb\tc", "0123456789" * 3, "!" * 40,
    "\ud7ff\ue000\ufffd\U0010fffd",
    "ǅungla ǈ ǋ ªº ʰʷʲ ᴬᴮ CamelCase XMLHttp iOS ÀÉÎõ Արմեն ა Ꭰꭰ 𐐀𐐨 𞤀𞤢 Ŀŀ ﬁﬂ",
    "a\u0300A\u0300\u0300b \u0300 क\u0947\u094d\u0300 \u20dd\u20e3 \u3099か\u3099゛ー・ヽヾ\u3040x",
    "中A中B中 東京TOKYO東京 한글ABC한글 あいうAあ ﾊﾟﾋﾟ ＡＢＣａｂｃ１２３！？（）～ 、。〃〄々〆〇",
    "''s 'S x's X'LL y'\u017f 'd'D're'VE it''s \u2018s\u2019s 中's あ'll e\u0301't",
    "a/b//c\n/d /\r\n/ !/\n\n/ http://x.y/z?q=1&r=_s #tag @user $x €5 £ ¥ ± × ÷ ≤ ∑ © ® ™ ♥",
    "\u3000 \u3000a\u3000。\u3000中\u3000\u3000 \u2003\u2018x\u2019\u2003 \u1680a\u1680 a\u3000",
    "0१2३ ٣٤ 12345 ⅧⅨ ²³ ½¾ ①② ১২৩ 𝟎𝟏 ༠༡ 〇一二三 1a2b3c",
    "x\x01\x02y \x01 \x01A \u00ad\u200d\u2060x \ue000z \U000e0001q",
    "Hello", "Hello ", " Hello", "hello world", "hello  world", "IT'S WE'LL 'tis rock'n'roll could've '\u017f",
]  # fmt: skip
LONG = ["x" * 100_000, "ab" * 5000, "é" * 5000, "中" * 3000, " " * 3000, "\n" * 3000, "a " * 3000, "\u2581" * 2000]
LONG += ["A" * 5000, "aA" * 3000, "中A" * 2000, "\u0301" * 3000, "\u3000" * 3000, " \u3000" * 2000, "!a" * 3000]
LONG += [" " * 3000 + "x", " \n" * 2000 + "x", "1" * 3000, "\x01" * 3000, "\x01 " * 2000, "あ・" * 2000, "/" * 3000]
INVALID = [
    b"\x80", b"\xff", b"\xc3", b"a\xc3", b"\xc3a", b"\xe4\xb8", b"\xed\xa0\x80", b"\xf0\x9f\x90", b"\xf4\x90\x80\x80",
    b"\xc0\xaf", b"\xe2\x96", b"\xe2\x96\x20", b"ok \xf0\x9f \xe4\xb8\xad \xff end", bytes(range(256)),
]  # fmt: skip


def mixed(seed: int, count: int) -> list[str]:
    """Pieces of all texts, one after another."""
    rng = random.Random(seed)
    sources = [*LANGUAGES, *filter(None, HARD)]
    made = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(1, 20)):
            source = rng.choice(sources)
            start = rng.randrange(len(source))
            parts.append(source[start : start + rng.randrange(1, 12)])
            if rng.random() < 0.3:
                parts.append(rng.choice([" ", "  ", "\n", "\t", "\u2581", "\r\n", "   "]))
        made.append("".join(parts))
    return made


def texts(seed: int, count: int = 300) -> list[str]:
    """Every text of this file, and mixes of them."""
    return [*LANGUAGES, *HARD, *LONG, *mixed(seed, count)]
