# SPDX-License-Identifier: MIT
"""Generate the C and Python tables of the container format from format.toml, and the tables of its document.

    python3 engine/spec/generate.py           # write the files
    python3 engine/spec/generate.py --check   # exit 1 when a committed file differs

Written: native/src/spec.h, the error list inside native/include/colibri.h, colibri/_spec.py, and in
docs/format.md (not part of a release tarball) the tables of rules, constants and error codes.
"""

from __future__ import annotations

import argparse
import difflib
import sys
import tomllib
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).resolve().parent.parent
SOURCE = "engine/spec/format.toml"
BEGIN = "/* begin generated: error codes */"
END = "/* end generated: error codes */"
DOCUMENT = ENGINE.parent / "docs/format.md"

# table in format.toml -> (C prefix, Python class)
ENUMS = {
    "section_kinds": ("CB_SECTION", "Section"),
    "signature_algorithms": ("CB_SIGNATURE", "SignatureAlgorithm"),
    "dtypes": ("CB_DTYPE", "DType"),
    "layouts": ("CB_LAYOUT", "Layout"),
    "extent_kinds": ("CB_EXTENT", "ExtentKind"),
    "tensor_scopes": ("CB_SCOPE", "Scope"),
    "kv_dtypes": ("CB_KV", "KvType"),
    "tensor_roles": ("CB_ROLE", "Role"),
    "norm_kinds": ("CB_NORM", "NormKind"),
    "norm_places": ("CB_NORM_AT", "NormPlace"),
    "position_kinds": ("CB_POSITION", "PositionKind"),
    "rope_styles": ("CB_ROPE", "RopeStyle"),
    "mixer_kinds": ("CB_MIXER", "MixerKind"),
    "ffn_kinds": ("CB_FFN", "FfnKind"),
    "qk_norm_kinds": ("CB_QK_NORM", "QkNormKind"),
    "activations": ("CB_ACT", "Activation"),
    "router_scores": ("CB_SCORE", "RouterScore"),
    "router_normalise": ("CB_NORMALISE", "RouterNormalise"),
    "router_inputs": ("CB_ROUTER_INPUT", "RouterInput"),
    "router_group_scores": ("CB_GROUP_SCORE", "GroupScore"),
    "shared_gates": ("CB_SHARED_GATE", "SharedGate"),
    "families": ("CB_FAMILY", "Family"),
    "tokenizer_kinds": ("CB_TOKENIZER", "TokenizerKind"),
    "pretokenizers": ("CB_PRETOKENIZER", "Pretokenizer"),
    "normalizers": ("CB_NORMALIZER", "Normalizer"),
    "character_classes": ("CB_CLASS", "CharacterClass"),
    "tokenizer_flags": ("CB_TOKENIZER_FLAG", "TokenizerFlag"),
}
HEADS = ("tokenizer_header", "calibration_header", "calibration_layer")  # fixed parts of sections
C_TYPES = {"u32": "uint32_t", "f32": "float"}
PY_TYPES = {"u32": "int", "f32": "float"}


def _fields(block: dict[str, Any]) -> list[tuple[str, str, bool]]:
    out = []
    for text in block["fields"]:
        kind, name = text.split()
        out.append((kind, name.removesuffix("[]"), name.endswith("[]")))
    return out


def _literal(value: int) -> str:
    if value > 0xFFFFFFFF:
        return f"UINT64_C({value})"
    return f"{value}u"


def _limit_name(prefix: str, table: str, key: str) -> str:
    """MAX_ in front of a limit; the defaults of the run limits keep their own word."""
    word = "" if table == "run_limits" and key.startswith("default_") else "MAX_"
    return f"{prefix}{word}{key.upper()}"


def c_header(spec: dict[str, Any]) -> str:
    fmt = spec["format"]
    magic = bytes.fromhex(fmt["magic_hex"])
    lines = [
        "/* SPDX-License-Identifier: MIT */",
        f"/* Generated from {SOURCE} by engine/spec/generate.py; do not edit. */",
        "#ifndef CB_SPEC_H",
        "#define CB_SPEC_H",
        "",
        "#include <stdint.h>",
        "",
        "#define CB_MAGIC_BYTES { " + ", ".join(f"0x{b:02x}" for b in magic) + " }",
        f'#define CB_SIGNATURE_DOMAIN "{fmt["signature_domain"]}" /* its zero byte is part of it */',
    ]
    for key, row in spec["constants"].items():
        lines.append(f"#define CB_{key.upper()} {_literal(row['value'])}")
    lines.append("")
    for table in ("limits", "run_limits"):
        for key, row in spec[table].items():
            lines.append(f"#define {_limit_name('CB_', table, key)} {_literal(row['value'])}")
        lines.append("")
    for table, prefix in (("required_features", "CB_REQUIRED"), ("optional_features", "CB_OPTIONAL")):
        for key, bit in spec[table].items():
            lines.append(f"#define {prefix}_{key.upper()} (UINT64_C(1) << {bit})")
    known = sum(1 << bit for bit in spec["required_features"].values())
    lines += [f"#define CB_REQUIRED_KNOWN UINT64_C({known})", ""]
    for table, (prefix, _) in ENUMS.items():
        lines.append(f"/* {table} */")
        lines.append("enum {")
        for key, value in spec[table].items():
            lines.append(f"    {prefix}_{key.upper()} = {value},")
        lines += ["};", ""]
    lines.append("/* blocks of the records section */")
    lines.append("enum {")
    for name, block in spec["blocks"].items():
        lines.append(f"    CB_BLOCK_{name.upper()} = {block['id']},")
    lines += ["};", ""]
    structs = [(f"cb_block_{n}", b) for n, b in spec["blocks"].items() if not b.get("reserved")]
    structs += [(f"cb_{n}", spec[n]) for n in HEADS]
    for name, block in structs:
        fields = _fields(block)
        fixed = [f for f in fields if not f[2]]
        lines.append(f"struct {name} {{")
        lines += [f"    {C_TYPES[k]} {n};" for k, n, _ in fixed]
        lines.append("};")
        for _, array, is_array in fields:
            if is_array:
                lines.append(f"/* followed by {array}[] up to the end of the block */")
        lines.append(f'_Static_assert(sizeof(struct {name}) == {4 * len(fixed)}, "{name}: no padding");')
        lines.append("")
    lines += ["#endif", ""]
    return "\n".join(lines)


def error_list(spec: dict[str, Any]) -> str:
    lines = [BEGIN, f"/* from {SOURCE}: pinned, never reused */", "enum colibri_code {", "    COLIBRI_OK = 0,"]
    for key, row in spec["errors"].items():
        lines.append(f"    COLIBRI_ERR_{key.upper()} = {row['code']}, /* {row['text']} */")
    lines += ["};", END]
    return "\n".join(lines)


def error_table(spec: dict[str, Any]) -> str:
    """The X-macro behind colibri_strerror and colibri_exit_code."""
    lines = ["#define CB_ERROR_TABLE(X) \\"]
    rows = [f'    X({r["code"]}, {r["exit"]}, "{k}", "{r["text"]}")' for k, r in spec["errors"].items()]
    lines.append(" \\\n".join(rows))
    return "\n".join(lines)


def python_module(spec: dict[str, Any]) -> str:
    fmt = spec["format"]
    lines = [
        "# SPDX-License-Identifier: MIT",
        f'"""Generated from {SOURCE} by engine/spec/generate.py; do not edit."""',
        "",
        "from __future__ import annotations",
        "",
        "import enum",
        "from dataclasses import dataclass, field",
        "from typing import ClassVar",
        "",
        f'MAGIC = bytes.fromhex("{fmt["magic_hex"]}")',
        f'SIGNATURE_DOMAIN = b"{fmt["signature_domain"]}\\0"',
    ]
    for key, row in spec["constants"].items():
        lines.append(f"{key.upper()} = {row['value']}")
    lines.append("")
    for table in ("limits", "run_limits"):
        for key, row in spec[table].items():
            lines.append(f"{_limit_name('', table, key)} = {row['value']}  # {row['why']}")
        lines.append("")
    for table, prefix in (("required_features", "REQUIRED"), ("optional_features", "OPTIONAL")):
        for key, bit in spec[table].items():
            lines.append(f"{prefix}_{key.upper()} = 1 << {bit}")
    known = sum(1 << bit for bit in spec["required_features"].values())
    lines += [f"REQUIRED_KNOWN = {known}", ""]
    for table, (_, name) in ENUMS.items():
        lines += ["", f"class {name}(enum.IntEnum):", f'    """{table} of format.toml."""', ""]
        lines += [f"    {k.upper()} = {v}" for k, v in spec[table].items()]
        lines.append("")
    blocks = [(n, b) for n, b in spec["blocks"].items() if not b.get("reserved")]
    blocks += [(n, spec[n]) for n in HEADS]
    for name, block in blocks:
        cls = "".join(p.capitalize() for p in name.split("_")) + ("" if name in HEADS else "Block")
        fields = _fields(block)
        code = "".join({"u32": "I", "f32": "f"}[k] for k, _, arr in fields if not arr)
        array = next((n for _, n, arr in fields if arr), "")
        lines += ["", "@dataclass", f"class {cls}:", f'    """Block `{name}`: fixed fields of 4 bytes each."""', ""]
        if "id" in block:
            lines.append(f"    ID: ClassVar[int] = {block['id']}")
        lines.append(f'    STRUCT: ClassVar[str] = "<{code}"')
        lines.append(f'    ARRAY: ClassVar[str] = "{array}"')
        for kind, fname, is_array in fields:
            if is_array:
                lines.append(f"    {fname}: list[{PY_TYPES[kind]}] = field(default_factory=list)")
            else:
                lines.append(f"    {fname}: {PY_TYPES[kind]} = {'0' if kind == 'u32' else '0.0'}")
        lines.append("")
    reserved = {b["id"]: n for n, b in spec["blocks"].items() if b.get("reserved")}
    lines += ["", f"RESERVED_BLOCKS: dict[int, str] = {reserved!r}".replace("'", '"'), ""]
    lines += ["", "class Code(enum.IntEnum):", '    """Pinned error codes, the same as in colibri.h."""', "", "    OK = 0"]
    lines += [f"    {k.upper()} = {r['code']}" for k, r in spec["errors"].items()]
    lines += ["", "", "ERROR_TEXT: dict[int, str] = {"]
    lines += [f'    {r["code"]}: "{r["text"]}",' for r in spec["errors"].values()]
    lines += ["}", "ERROR_EXIT: dict[int, int] = {"]
    lines += [f"    {r['code']}: {r['exit']}," for r in spec["errors"].values()]
    lines += ["}", ""]
    return "\n".join(lines)


def rules_table(spec: dict[str, Any], rules: dict[str, dict[str, list[str]]]) -> str:
    """A row per rule, in the order in which readers check."""
    lines = ["| rule | what holds | error | why |", "|---|---|---|---|"]
    for table, rows in rules.items():
        for name, (code, what, why) in rows.items():
            assert code in spec["errors"], f"rules.toml: {table}.{name} has the unknown error {code}"
            lines.append(f"| {table}.{name} | {what} | `{code}` | {why} |")
    return "\n".join(lines)


def constants_table(spec: dict[str, Any]) -> str:
    """A row per constant and limit."""
    lines = ["| name | value | why |", "|---|---|---|"]
    for title, table in (("constant", "constants"), ("limit", "limits"), ("option", "run_limits")):
        lines += [f"| {title} `{key}` | {row['value']} | {row['why']} |" for key, row in spec[table].items()]
    return "\n".join(lines)


def errors_table(spec: dict[str, Any]) -> str:
    """A row per error code."""
    lines = ["| code | name | exit code | text |", "|---|---|---|---|"]
    lines += [f"| {row['code']} | `{key}` | {row['exit']} | {row['text']} |" for key, row in spec["errors"].items()]
    return "\n".join(lines)


def document(spec: dict[str, Any], text: str) -> str:
    """docs/format.md with its tables made anew."""
    rules = tomllib.loads((ENGINE / "spec/rules.toml").read_text())
    tables = {"rules": rules_table(spec, rules), "constants": constants_table(spec), "errors": errors_table(spec)}
    for name, table in tables.items():
        begin, end = f"<!-- begin generated: {name} -->", f"<!-- end generated: {name} -->"
        head, rest = text.split(begin, 1)
        text = f"{head}{begin}\n{table}\n{end}{rest.split(end, 1)[1]}"
    return text


def outputs(spec: dict[str, Any]) -> dict[Path, str]:
    header = ENGINE / "native/include/colibri.h"
    text = header.read_text()
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    table = error_table(spec)
    documents = {DOCUMENT: document(spec, DOCUMENT.read_text())} if DOCUMENT.exists() else {}
    return documents | {
        ENGINE / "native/src/spec.h": c_header(spec).replace("\n#endif\n", f"\n{table}\n\n#endif\n"),
        header: head + error_list(spec) + tail,
        ENGINE / "colibri/_spec.py": python_module(spec),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 on a difference")
    check = parser.parse_args().check
    spec = tomllib.loads((ENGINE / "spec/format.toml").read_text())
    stale = 0
    for path, text in outputs(spec).items():
        old = path.read_text() if path.exists() else ""
        if old == text:
            continue
        if check:
            stale += 1
            diff = difflib.unified_diff(old.splitlines(), text.splitlines(), str(path), "generated", lineterm="")
            print("\n".join(list(diff)[:40]))
        else:
            path.write_text(text)
    if stale:
        print(f"{stale} generated file(s) differ; run: python3 engine/spec/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
