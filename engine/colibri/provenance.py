# SPDX-License-Identifier: MIT
"""The provenance of a model: what it was made from, how, and under which licence it may be used.

One JSON object, written by `provenance` and shown by `colibri inspect`:

    converter   name and version of the converter
    name        name of the recipe's model (recipes)
    recipe      file, sha256 of the recipe (recipes)
    dtypes      which dtype each kind of matrix was given
    options     what else was asked for: context_tokens, tokenizer, chat (checkpoints)
    source      kind, and what identifies it: format, architecture, name, seed, sha256 of every file that was read
    license     id (SPDX, or what the model card says), notice, text

There is no path and no date in it: equal inputs give equal files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from colibri import __version__
from colibri.checkpoint import digest_of
from colibri.files import inside, open_regular, read_regular

CONVERTER = f"colibri {__version__}"
MAX_LICENSE_BYTES = 1 << 18
_CARD_BYTES = 1 << 16  # the front matter of a model card lies in here
_LICENSES = re.compile(r"(LICEN[CS]E|COPYING|USE_POLICY)([._-].*)?", re.IGNORECASE)
_NOTICES = re.compile(r"NOTICE([._-].*)?", re.IGNORECASE)
_CARD = "README.md"


def provenance(source: dict[str, Any], dtypes: dict[str, str], **more: Any) -> dict[str, Any]:
    """The provenance section; `more` are further keys of the table above."""
    return {"converter": CONVERTER, "dtypes": dtypes, "source": source, **more}


def digests(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 of those of the files that are there."""
    return {name: digest_of(inside(directory, name)) for name in sorted(set(names)) if (directory / name).is_file()}


def _text_of(directory: Path, names: list[str]) -> str:
    """Contents of text files; of several, each under its name."""
    texts = [read_regular(inside(directory, name), MAX_LICENSE_BYTES).decode("utf-8", "replace") for name in names]
    if len(texts) == 1:
        return texts[0]
    return "\n".join(f"==== {name} ====\n{text}" for name, text in zip(names, texts, strict=True))


def card_license(text: str) -> dict[str, str]:
    """Licence fields of the front matter of a model card: `license`, `license_name`, `license_link`."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != "---":
        return {}
    found: dict[str, str] = {}
    key = ""
    for line in lines[1:]:
        if line.strip() == "---":
            return found
        match = re.fullmatch(r"(license|license_name|license_link):\s*(.*)", line)
        if match is not None:
            key = match.group(1)
            value = match.group(2).strip().strip("'\"")
            if value:
                found[key] = value
        elif key and re.fullmatch(r"\s*-\s+.*", line):
            item = line.strip().removeprefix("-").strip().strip("'\"")
            found[key] = f"{found[key]}, {item}" if key in found else item
        else:
            key = ""
    return {}  # the front matter has no end: it is none


def license_of(directory: Path) -> tuple[dict[str, str], list[str]]:
    """Licence of a checkpoint folder, and the files that say it."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    licenses = [name for name in names if _LICENSES.fullmatch(name)]
    notices = [name for name in names if _NOTICES.fullmatch(name)]
    table: dict[str, str] = {}
    read = [*licenses, *notices]
    if _CARD in names:
        descriptor = open_regular(inside(directory, _CARD))
        try:
            card = card_license(os.pread(descriptor, _CARD_BYTES, 0).decode("utf-8", "replace"))
        finally:
            os.close(descriptor)
        fields = {"license": "id", "license_name": "name", "license_link": "link"}
        table |= {fields[key]: value for key, value in card.items()}
        read += [_CARD] if card else []
    if notices:
        table["notice"] = _text_of(directory, notices)
    if licenses:
        table["text"] = _text_of(directory, licenses)
    return table, read


def gguf_license(value: Any) -> dict[str, str]:
    """Licence fields of a GGUF file; `value` looks a key of its metadata up."""
    fields = {"general.license": "id", "general.license.name": "name", "general.license.link": "link"}
    found = {name: value(key) for key, name in fields.items()}
    return {name: text for name, text in found.items() if isinstance(text, str) and text}

