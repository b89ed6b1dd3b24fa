# SPDX-License-Identifier: MIT
"""One home for every number of the format: engine/spec. Sources and documents do not have their own."""

from __future__ import annotations

import io
import re
import tokenize
import tomllib
from pathlib import Path

import pytest
from colibri import _spec
from corpus import CASES, rules

REPOSITORY = Path(__file__).resolve().parents[2]
ENGINE = REPOSITORY / "engine"
SPEC = tomllib.loads((ENGINE / "spec" / "format.toml").read_text())
RULES = tomllib.loads((ENGINE / "spec" / "rules.toml").read_text())
TABLES = ("constants", "limits", "run_limits")
VALUES = {row["value"]: key for table in TABLES for key, row in SPEC[table].items()}
SMALLEST = 136  # numbers below stand for too many things to be told apart
READERS = [
    *(ENGINE / "colibri" / f"{name}.py" for name in ("format", "records", "tokenizer", "weights", "writer")),
    *(ENGINE / "native" / "src" / f"{name}.c" for name in (
        "cursor", "directory", "format", "options", "records", "tokenizer", "verify")),
    ENGINE / "native" / "tools" / "model.c",
]  # fmt: skip
# Numbers of the document that are no constants: byte places of layouts, code points, examples.
PROSE_NAMES: set[str] = {"max_text_bytes"}  # an option of the plan
PROSE = {"200", "256", "512", "240", "2048", "8032", "20000"}


def numbers(path: Path) -> set[int]:
    """Literals of a source file, without those in comments and strings."""
    text = path.read_text()
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        return {int(t.string, 0) for t in tokens if t.type == tokenize.NUMBER and re.fullmatch(r"\w+", t.string)}
    text = re.sub(r'/\*.*?\*/|"(?:\\.|[^"\\])*"', " ", text, flags=re.DOTALL)
    return {int(n, 0) for n in re.findall(r"\b(0x[0-9a-fA-F]+|[1-9]\d*)[uUlL]*\b", text)}


@pytest.mark.parametrize("path", READERS, ids=lambda path: path.name)
def test_readers_and_writers_have_no_constants_of_their_own(path: Path) -> None:
    own = {n: VALUES[n] for n in numbers(path) if n >= SMALLEST and n in VALUES}
    assert own == {}


def test_every_constant_and_rule_has_a_reason() -> None:
    for table in TABLES:
        for key, row in SPEC[table].items():
            assert set(row) == {"value", "why"}, key
            assert len(row["why"]) > 4, key
    for table, rows in RULES.items():
        for name, row in rows.items():
            assert len(row) == 3, f"{table}.{name}"
            assert all(row), f"{table}.{name}"


def prose() -> str:
    """docs/format.md without generated tables and without the memory plan, which is at home there."""
    text = (REPOSITORY / "docs" / "format.md").read_text()
    text = re.sub(r"<!-- begin generated: (\w+) -->.*?<!-- end generated: \1 -->", "", text, flags=re.DOTALL)
    return re.sub(r"\n## 8\. .*?\n## 9\. ", "\n", text, flags=re.DOTALL)


def test_numbers_in_the_document_are_those_of_the_specification() -> None:
    found = {n.replace(",", "") for n in re.findall(r"(?<![\w.^-])\d{1,3}(?:,\d{3})+\b|(?<![\w.^-])\d+\b", prose())}
    unknown = {n for n in found if int(n) >= SMALLEST and int(n) not in VALUES and n not in PROSE}
    assert unknown == set()


def test_names_in_the_document_are_those_of_the_specification() -> None:
    """A name in code style that looks like a constant is one."""
    names = set(re.findall(r"\b\w+_(?:bytes|offset|index|oldest|major|minor)\b", prose()))
    blocks = [*SPEC["blocks"].values(), SPEC["tokenizer_header"]]
    known = {text.split()[1].removesuffix("[]") for block in blocks for text in block.get("fields", [])}
    known |= {key for table in TABLES for key in SPEC[table]}
    assert names - known - PROSE_NAMES == set()


def test_the_document_lists_every_rule_constant_and_code() -> None:
    text = (REPOSITORY / "docs" / "format.md").read_text()
    for rule, code in rules().items():
        assert f"| {rule} | " in text
        assert f"`{code.name.lower()}`" in text
    for table in TABLES:
        for key, row in SPEC[table].items():
            assert f"`{key}` | {row['value']} |" in text
    assert {case.rule for case in CASES} == set(rules())


def test_the_header_states_the_limits_of_options() -> None:
    text = (ENGINE / "native" / "include" / "colibri.h").read_text()
    for field, key in (("threads", "threads"), ("batch_tokens", "batch_tokens"), ("max_sessions", "sessions")):
        line = next(line for line in text.splitlines() if re.search(rf"uint32_t {field};", line))
        assert f"1..{SPEC['run_limits'][key]['value']}" in line


def test_version_1_reads_itself_only_and_later_ones_the_previous_major() -> None:
    assert (_spec.VERSION_MAJOR, _spec.VERSION_OLDEST) == (1, 1)
    assert _spec.VERSION_OLDEST in (_spec.VERSION_MAJOR, _spec.VERSION_MAJOR - 1)
