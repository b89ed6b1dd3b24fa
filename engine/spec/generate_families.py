# SPDX-License-Identifier: MIT
"""Generate colibri/_families.py from families.toml, so that an installed package needs no TOML.

    python3 engine/spec/generate_families.py           # write the file
    python3 engine/spec/generate_families.py --check   # exit 1 when the committed file differs
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from generated import literal, write_or_check

ENGINE = Path(__file__).resolve().parent.parent
SOURCE = ENGINE / "spec" / "families.toml"
TARGET = ENGINE / "colibri" / "_families.py"
HEAD = '''# SPDX-License-Identifier: MIT
"""Generated from engine/spec/families.toml by engine/spec/generate_families.py; do not edit."""

from __future__ import annotations

from typing import Any

'''

# The tables that all architectures of GGUF have in common stand in the file once.
TAIL = '''for _name, _table in GGUF.items():
    _keys = {**_COMMON["config"], **_table.get("config", {})}
    _table["config"] = {_field: _key.replace("{arch}", _name) for _field, _key in _keys.items()}
    for _part in ("tensors", "refused"):
        _table[_part] = {**_COMMON[_part], **_table.get(_part, {})}
    _table.setdefault("gating", _COMMON["gating"])
    _table.setdefault("layer", {})
'''


def completed(family: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """The family with the tables and keys that it has in common with others; its own count."""
    found = dict(common[family.pop("common")] if "common" in family else {})
    for key, value in family.items():
        found[key] = found.get(key, {}) | value if isinstance(value, dict) else value
    return found


def generate() -> str:
    """The text of _families.py."""
    families = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    activations, shared, gguf = families.pop("activations"), families.pop("common"), families.pop("gguf")
    families = {name: completed(family, shared) for name, family in families.items()}
    common = gguf.pop("common")
    return (
        f"{HEAD}ACTIVATIONS: dict[str, str] = {literal(activations)}\n\n"
        f"FAMILIES: dict[str, dict[str, Any]] = {literal(families)}\n\n"
        f"_COMMON: dict[str, dict[str, Any]] = {literal(common)}\n\n"
        f"GGUF: dict[str, dict[str, Any]] = {literal(gguf)}\n\n{TAIL}"
    )


def main() -> int:
    """Write or check."""
    return write_or_check(__doc__, TARGET, generate(), "families.toml")


if __name__ == "__main__":
    sys.exit(main())
