# SPDX-License-Identifier: MIT
"""Generate colibri/_families.py from families.toml, so that an installed package needs no TOML.

    python3 engine/spec/generate_families.py           # write the file
    python3 engine/spec/generate_families.py --check   # exit 1 when the committed file differs
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from generated import literal, write_or_check

ENGINE = Path(__file__).resolve().parent.parent
SOURCE = ENGINE / "spec" / "families.toml"
TARGET = ENGINE / "colibri" / "_families.py"
HEAD = '''# SPDX-License-Identifier: MIT
"""Generated from engine/spec/families.toml by engine/spec/generate_families.py; do not edit."""

from __future__ import annotations

from typing import Any

'''


def generate() -> str:
    """The text of _families.py."""
    families = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    activations, gguf = families.pop("activations"), families.pop("gguf")
    common = gguf.pop("common")
    for name, table in gguf.items():
        keys = common["config"] | table.get("config", {})
        table["config"] = {field: key.replace("{arch}", name) for field, key in keys.items()}
        table["tensors"] = common["tensors"] | table["tensors"]
    return (
        f"{HEAD}ACTIVATIONS: dict[str, str] = {literal(activations)}\n\n"
        f"FAMILIES: dict[str, dict[str, Any]] = {literal(families)}\n\n"
        f"GGUF: dict[str, dict[str, Any]] = {literal(gguf)}\n"
    )


def main() -> int:
    """Write or check."""
    return write_or_check(__doc__, TARGET, generate(), "families.toml")


if __name__ == "__main__":
    sys.exit(main())
