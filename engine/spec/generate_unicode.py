# SPDX-License-Identifier: MIT
"""Generate colibri/_unicode.py: the Unicode classes that pre-tokenizers ask for.

    python3.11 engine/spec/generate_unicode.py           # write the file
    python3.11 engine/spec/generate_unicode.py --check   # exit 1 when the committed file differs

What a pre-tokenizer needs of the table travels in its model file, so it must not depend on the interpreter that
converts: it is made once from one Unicode version and committed. Only an interpreter with that version may make it.
"""

from __future__ import annotations

import argparse
import sys
import unicodedata
from pathlib import Path

ENGINE = Path(__file__).resolve().parent.parent
UNICODE = "14.0.0"  # of Python 3.11, the oldest interpreter the project runs on
# character_classes of format.toml
LETTER, NUMBER, SPACE, MARK, UPPER, LOWER, PUNCTUATION = 1, 2, 3, 4, 5, 6, 7
CASES = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER}
CLASSES = {"L": LETTER, "N": NUMBER, "Z": SPACE, "M": MARK, "P": PUNCTUATION, "S": PUNCTUATION}
ROWS_PER_LINE = 4


def class_of(code: int) -> int:
    """Class of one code point, or 0."""
    # The White_Space property is not in unicodedata; it is exactly Z* and these controls.
    if code in (0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x85):
        return SPACE
    category = unicodedata.category(chr(code))
    return CASES.get(category, CLASSES.get(category[0], 0))


def ranges() -> list[tuple[int, int, int]]:
    """Maximal runs (first, last, class) over all code points, ascending, class 0 left out."""
    rows: list[tuple[int, int, int]] = []
    first, kind = 0, class_of(0)
    for code in range(1, 0x110001):
        now = class_of(code) if code < 0x110000 else -1
        if now != kind:
            if kind != 0:
                rows.append((first, code - 1, kind))
            first, kind = code, now
    return rows


def module() -> str:
    """Text of colibri/_unicode.py."""
    major, minor, patch = (int(part) for part in UNICODE.split("."))
    rows = [f"({a:#x}, {b:#x}, {c})" for a, b, c in ranges()]
    lines = [
        "# SPDX-License-Identifier: MIT",
        f'"""Generated from Unicode {UNICODE} by engine/spec/generate_unicode.py; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        f"UNICODE_VERSION = 0x{major << 16 | minor << 8 | patch:06x}",
        "",
        "# first code point, last code point, class: 1 letter without case (Lm, Lo), 2 number (N*), 3 space (White_Space),",
        "# 4 mark (M*), 5 upper (Lu, Lt), 6 lower (Ll), 7 punctuation (P*, S*)",
        "CATEGORY_RANGES: tuple[tuple[int, int, int], ...] = (",
    ]
    lines += [
        "    " + ", ".join(rows[i : i + ROWS_PER_LINE]) + ","
        for i in range(0, len(rows), ROWS_PER_LINE)
    ]
    return "\n".join([*lines, ")", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the file differs")
    args = parser.parse_args()
    if unicodedata.unidata_version != UNICODE:
        print(
            f"generate_unicode: this interpreter has Unicode {unicodedata.unidata_version}, the table is made "
            f"from {UNICODE}: run it with Python 3.11",
            file=sys.stderr,
        )
        return 1
    path = ENGINE / "colibri" / "_unicode.py"
    text = module()
    if not args.check:
        path.write_text(text, encoding="utf-8")
        return 0
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        print(f"generate_unicode: {path.name} differs from what it is generated from", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
