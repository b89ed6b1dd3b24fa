# SPDX-License-Identifier: MIT
"""Generate colibri/_boards.py from configs/boards, so that an installed package knows the boards.

    python3 engine/spec/generate_boards.py           # write the file
    python3 engine/spec/generate_boards.py --check   # exit 1 when the committed file differs

Every file is read as strictly as `colibri plan --board FILE.toml` reads it. What only the image
builders need is left out.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from generated import literal, write_or_check

ENGINE = Path(__file__).resolve().parent.parent
SOURCE = ENGINE.parent / "configs" / "boards"
TARGET = ENGINE / "colibri" / "_boards.py"
HEAD = '''# SPDX-License-Identifier: MIT
"""Generated from configs/boards/*.toml by engine/spec/generate_boards.py; do not edit."""
# ruff: noqa: E501

from __future__ import annotations

from typing import Any

'''


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
    return f"{HEAD}BOARDS: dict[str, dict[str, Any]] = {literal(boards)}\n"


def main() -> int:
    """Write or check."""
    return write_or_check(__doc__, TARGET, generate(), "configs/boards")


if __name__ == "__main__":
    sys.exit(main())
