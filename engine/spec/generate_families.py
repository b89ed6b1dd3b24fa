# SPDX-License-Identifier: MIT
"""Generate colibri/_families.py from families.toml, so that an installed package needs no TOML.

    python3 engine/spec/generate_families.py           # write the file
    python3 engine/spec/generate_families.py --check   # exit 1 when the committed file differs
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).resolve().parent.parent
SOURCE = ENGINE / "spec" / "families.toml"
TARGET = ENGINE / "colibri" / "_families.py"
HEAD = '''# SPDX-License-Identifier: MIT
"""Generated from engine/spec/families.toml by engine/spec/generate_families.py; do not edit."""

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
    """The text of _families.py."""
    families = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    gguf = families.pop("gguf")
    return (
        f"{HEAD}FAMILIES: dict[str, dict[str, Any]] = {_literal(families)}\n\n"
        f"GGUF: dict[str, dict[str, Any]] = {_literal(gguf)}\n"
    )


def main() -> int:
    """Write or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only")
    text = generate()
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") != text:
        print(f"{TARGET.name} differs from families.toml: run engine/spec/generate_families.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
