# SPDX-License-Identifier: MIT
"""What generators share: values as Python source, and writing or checking a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def literal(value: Any, indent: int = 0) -> str:
    """A value as Python source; tables over several lines."""
    space = "    " * (indent + 1)
    if isinstance(value, dict):
        lines = [f"{space}{literal(key)}: {literal(item, indent + 1)},\n" for key, item in value.items()]
        return "{\n" + "".join(lines) + "    " * indent + "}"
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def write_or_check(description: str | None, target: Path, text: str, source: str) -> int:
    """Write a generated file; with --check on the command line compare it: 1 when it differs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the committed file differs")
    if not parser.parse_args().check:
        target.write_text(text, encoding="utf-8")
        return 0
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        print(f"{target} differs from {source}; run {sys.argv[0]}", file=sys.stderr)
        return 1
    return 0
