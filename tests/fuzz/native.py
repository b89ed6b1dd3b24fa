# SPDX-License-Identifier: MIT
"""The C fuzz targets (engine/native/tests/fuzz_*.c) with libFuzzer.

    build/venv/bin/python tests/fuzz/native.py --seconds 60 [golden] [model] [request] [snapshot] [tokenizer]

The engine is compiled by clang into build/libfuzzer with the coverage that libFuzzer reads, under
AddressSanitizer and UndefinedBehaviorSanitizer; each target is then compiled again without its own
main and linked with libFuzzer's. The corpus grows in build/fuzz and is kept for the next run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY / "engine"), str(REPOSITORY / "tests" / "unit")]
BUILD = REPOSITORY / "build" / "libfuzzer"
CORPUS = REPOSITORY / "build" / "fuzz"
MODELS = REPOSITORY / "build" / "models"
SANITIZERS = "address,undefined"
RSS_LIMIT_MB = 2048  # what the sanitizers shadow counts too


def models() -> list[bytes]:
    """The smallest files with every section and mixer, and one that breaks each rule: seeds next to every check."""
    from corpus import CASES
    from tiny_file import everything, mixers

    return [everything(), mixers(), *(case.make() for case in CASES)]


def tokenizer_inputs() -> list[bytes]:
    """A text and a tokenizer section, as the target takes them: one of a model, one with every array, and the
    pre-tokenizers with classes of their own."""
    from dataclasses import replace

    from colibri._spec import Pretokenizer, Section
    from colibri.format import open_model
    from colibri.tokenizer import TokenizerSpec
    from colibri.tokenizer_patterns import class_ranges
    from tiny_file import tokenizer

    small = b"abc  ab cc 1\n"
    text = b"the cat sat on 1200 hats, and that \xc3\xa9\xff<|end|>"
    signs = "aBC'll a/b\r\n  \u3000x\u0301 \u4e2d\u30fb12\u0966!e \x01".encode()
    spec = TokenizerSpec.from_section(tokenizer())
    kinds = (Pretokenizer.O200K, Pretokenizer.DEEPSEEK_V2, Pretokenizer.DEEPSEEK_V3)
    rows = {kind: [row for row in class_ranges(kind) if row[0] < 0x180 or 0x300 <= row[0] <= 0x4E00] for kind in kinds}
    made = [replace(spec, pretokenizer=kind, class_ranges=rows[kind][:200]).to_section() for kind in kinds]
    with open_model(MODELS / "tiny.colibri") as model:
        sections = [(text, model.section_bytes(Section.TOKENIZER)), (small, tokenizer())]
        sections += [(signs, section) for section in made]
        return [struct.pack("<H", len(text)) + text + section for text, section in sections]


REQUESTS = (
    b'{"prompt": "a \\u00e9\\ud83d\\ude00", "tokens": 5, "temp": 0.5, "seed": 18446744073709551615}',
    b'{"ids": "1,2,3", "chat": true}', b'{"op": "health"}', b"{}",
)  # fmt: skip
HASH = b"0123456789abcdef" * 4
GOLDEN = (
    b'{"format": 1, "root": "' + HASH + b'", "cases": [{"name": "\\u00e9", "prompt": "", "chat": false,'
    b' "prompt_ids": [1, 20], "kv": "f16", "n": 3, "ids": [0], "text": "", "logits_sha256": "' + HASH + b'"}]}'
)
SEEDS: dict[str, Callable[[], Sequence[bytes]]] = {
    "golden": lambda: [GOLDEN],
    "model": models,
    "request": lambda: REQUESTS,
    "snapshot": lambda: [b"#", b"$", b"%\0", b"%\1" + bytes(12), bytes(256)],
    "tokenizer": tokenizer_inputs,
}


def build() -> None:
    """Compile the engine and all targets."""
    script = REPOSITORY / "tests" / "support" / "build_engine.py"
    flags = "-g -O1 -fsanitize=fuzzer-no-link -fno-sanitize-recover=all"
    options = [f"-Db_sanitize={SANITIZERS}", "-Db_lundef=false", "-Ddefault_library=static", "-Dtools=false"]
    subprocess.run(
        [sys.executable, str(script), "--name", BUILD.name, "--cc=clang", f"--cflags={flags}",
         *(f"--option={option}" for option in options)],
        check=True,
    )  # fmt: skip
    commands = json.loads((BUILD / "compile_commands.json").read_text())
    for name in SEEDS:
        source = f"native/tests/fuzz_{name}.c"
        found = next(item for item in commands if item["file"].endswith(source))
        words = shlex.split(found["command"])
        main = Path(words[words.index("-o") + 1])
        output = main.with_name(f"libfuzzer_{main.name}")
        words[words.index("-o") + 1] = str(output)
        subprocess.run([*words, "-DCOLIBRI_LIBFUZZER"], cwd=found["directory"], check=True)
        folder = BUILD / main.parent
        others = [path for path in folder.glob("*.o") if not path.name.endswith(main.name)]
        subprocess.run(
            ["clang", f"-fsanitize=fuzzer,{SANITIZERS}", "-o", str(BUILD / f"libfuzzer_{name}"),
             str(BUILD / output), *map(str, others), str(BUILD / "libcolibri.a"), "-lpthread"],
            check=True,
        )  # fmt: skip


def run(name: str, seconds: int) -> int:
    """One target for some time; 0 when there was no finding."""
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    for data in SEEDS[name]():
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    command = [
        str(BUILD / f"libfuzzer_{name}"), f"-max_total_time={seconds}", "-timeout=20", f"-rss_limit_mb={RSS_LIMIT_MB}",
        f"-artifact_prefix={corpus}.finding-", "-print_final_stats=1", "-use_value_profile=1", str(corpus),
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="TARGET", help=", ".join(SEEDS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--build", action="store_true", help="compile only")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in SEEDS]
    if unknown:
        parser.error(f"unknown target {unknown[0]!r}; known: {', '.join(SEEDS)}")
    if arguments.build or not all((BUILD / f"libfuzzer_{name}").exists() for name in SEEDS):
        build()
    if arguments.build:
        return 0
    return max(run(name, arguments.seconds) for name in arguments.names or SEEDS)


if __name__ == "__main__":
    sys.exit(main())
