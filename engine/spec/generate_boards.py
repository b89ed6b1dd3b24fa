# SPDX-License-Identifier: MIT
"""Generate colibri/_boards.py from configs/boards, so that an installed package knows the boards.

    python3 engine/spec/generate_boards.py           # write the file
    python3 engine/spec/generate_boards.py --check   # exit 1 when the committed file differs

Every file is read as strictly as `colibri plan --board FILE.toml` reads it. What only the image
builders need is left out.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).resolve().parent.parent
SOURCE = ENGINE.parent / "configs" / "boards"
TARGET = ENGINE / "colibri" / "_boards.py"
HEAD = '''# SPDX-License-Identifier: MIT
"""Generated from configs/boards/*.toml by engine/spec/generate_boards.py; do not edit."""
# ruff: noqa: E501

from __future__ import annotations

from typing import Any

'''


def _literal(value: Any, indent: int = 0) -> str:
    """A value as Python source; tables over several lines."""
    space = "    " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{space}{_literal(key)}: {_literal(item, indent + 1)},\n" for key, item in value.items()]
        return "{\n" + "".join(lines) + "    " * indent + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def generate() -> str:
    """The text of _boards.py."""
    sys.path.insert(0, str(ENGINE))
    from colibri.boards import BUILDER_TABLES, read_board

    boards: dict[str, Any] = {}
    for path in sorted(SOURCE.glob("*.toml")):
        board = read_board(path)
        if board.name != path.stem:
            raise SystemExit(f"{path}: its name is {board.name!r}; it must be that of the file")
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        boards[board.name] = {key: value for key, value in data.items() if key not in BUILDER_TABLES}
    if not boards:
        raise SystemExit(f"{SOURCE}: has no board files")
    return f"{HEAD}BOARDS: dict[str, dict[str, Any]] = {_literal(boards)}\n"


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    text = generate()
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != text:
        print(f"{TARGET} differs from configs/boards; run engine/spec/generate_boards.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
