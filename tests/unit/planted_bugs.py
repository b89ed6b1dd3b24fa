# SPDX-License-Identifier: MIT
"""Show that the bit comparison turns red: plant one bug at a time in a copy of the engine.

    build/venv/bin/python tests/unit/planted_bugs.py [--only NAME]

Each bug is a small change of one C file: a wrong expert, a wrong scale, a wrong position, another
order of a sum, a fused product, a mistake that only some threads or some batches see; or, in what
streams experts, a slot that is not given back, a hash that is not compared. The copy is compiled, and
tests/unit/test_onebit.py or a C test program runs on it; it must fail with a comparison, for every
bug, and must pass for the copy without one. Exit code 0 means that all were found.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
NATIVE = REPOSITORY / "engine" / "native"
COMPILER = os.environ.get("CC", "gcc")
RESIDENCY = "test_residency"
COMMON = "ref and (every_kind_of_records or threads_batches) and (mixtral or window_tied) and not mixtral_f32"


@dataclass(frozen=True)
class Bug:
    """`old` becomes `new` in `file`; the text must occur exactly once, or `count` times."""

    name: str
    file: str
    old: str
    new: str
    tests: str = COMMON  # of test_onebit.py, or the name of a C test program
    count: int = 1


BUGS = (
    Bug(
        "wrong expert",
        "src/experts.c",
        "part.base = p->l->experts + index * p->l->expert_stride;",
        "part.base = p->l->experts + (index ^ (index == 1)) * p->l->expert_stride;",
    ),
    Bug(
        "experts summed in another order",
        "src/experts.c",
        "for (r = t * k; r < (t + 1) * k; r++) {",
        "for (r = (t + 1) * k; r-- > t * k;) {",
        "ref and every_kind_of_records and olmoe",
    ),
    Bug(
        "weight of another rank",
        "src/experts.c",
        "p->k->add_scaled(sum, s->weights[r],",
        "p->k->add_scaled(sum, s->weights[r ^ 1],",
    ),
    Bug(
        "wrong scale",
        "kernels/ref.c",
        "uint16_t h = (uint16_t)(scales[2 * r] | (scales[2 * r + 1] << 8));",
        "uint16_t h = (uint16_t)(scales[2 * (r ^ 1)] | (scales[2 * (r ^ 1) + 1] << 8));",
    ),
    Bug(
        "scales multiplied in another order",
        "kernels/ref.c",
        "float product = (float)dot(w[r], q) * scale;",
        "(void)scale;\n        float product = (float)dot(w[r], q) * cb_f16(h);\n        product = product * d;",
    ),
    Bug(
        "wrong position",
        "src/forward.c",
        "cb_rope_angles(p->position + (uint32_t)t,",
        "cb_rope_angles(p->position + (uint32_t)t + (p->position > 0),",
    ),
    Bug(
        "window one too long",
        "src/attention.c",
        "from = position + 1 - a->window_tokens;",
        "from = position + 1 - a->window_tokens - (position + 1 > a->window_tokens);",
        "ref and every_kind_of_records and window_tied",
    ),
    Bug(
        "wrong KV head",
        "src/attention.c",
        "kv_head = head / (a->heads / a->kv_heads);",
        "kv_head = head % a->kv_heads;",
    ),
    Bug(
        "keys rounded towards zero",
        "kernels/scalar.c",
        "return (uint16_t)(sign | ((mantissa + half - 1u + odd) >> shift));",
        "(void)half; (void)odd;\n    return (uint16_t)(sign | (mantissa >> shift));",
    ),
    Bug(
        "fused product",
        "kernels/ref.c",
        "float product = scale * x[i];\n        acc[i] = acc[i] + product;",
        "acc[i] = __builtin_fmaf(scale, x[i], acc[i]);",
    ),
    Bug(
        "partial sums combined in another order",
        "kernels/ref.c",
        "return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));",
        "return ((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]));",
    ),
    Bug(
        "exponential without its last term",
        "kernels/scalar.c",
        "float p = CB_EXP_E6 * r;",
        "float p = 0.0f * r;",
    ),
    Bug(
        "third thread leaves its share out",
        "src/experts.c",
        "    begin = total * index / count;",
        "    if (index == 2)\n        return 0;\n    begin = total * index / count;",
    ),
    Bug(
        "grouped inputs of the wrong token",
        "src/experts.c",
        "        size_t token = s->tokens[slot];\n\n        if (!cb_mlp_quantizes",
        "        size_t token = s->tokens[slot] ^ (slot == 5);\n\n        if (!cb_mlp_quantizes",
    ),
    Bug(
        "sigmoid scores ranked by their logits without the bias",
        "src/router.c",
        "scores[i] += l->selection_bias[i];",
        "scores[i] += 0.0f * l->selection_bias[i];",
        "ref and every_kind_of_records and lfm2",
    ),
    Bug(
        "read of another expert",
        "src/residency.c",
        "read->offset = l->expert_offset + expert * l->expert_stride;",
        "read->offset = l->expert_offset + (expert ^ (layer & 1)) * l->expert_stride;",
        RESIDENCY,
    ),
    Bug(
        "reads are not verified",
        "src/residency.c",
        "    cb_cache_pin(&r->cache, slot);\n    r->in_flight++;",
        "    read->verify = 0;\n    cb_cache_pin(&r->cache, slot);\n    r->in_flight++;",
        RESIDENCY,
    ),
    Bug(
        "an expert that is read again is not hashed again",
        "src/residency.c",
        "else if (r->verify != COLIBRI_VERIFY_FIRST)",
        "else if (r->verify == COLIBRI_VERIFY_FIRST)",
        RESIDENCY,
    ),
    Bug(
        "logits are shown before the verdicts are in",
        "src/residency.c",
        "if (!cb_is_streamed(p->m) || (code != 0",
        "if (p->m != NULL || (code != 0",
        RESIDENCY,
    ),
    Bug(
        "an expert is computed before it is there",
        "src/residency.c",
        "atomic_load_explicit(&r->reads[n->slot].loaded, memory_order_acquire))",
        "r->reads != NULL)",
        RESIDENCY,
    ),
    Bug(
        "slots are not given back",
        "src/residency.c",
        "        if (n->state != CB_NEED_MISSING)\n            cb_cache_unpin(&r->cache, n->slot);",
        "        if (n->state == CB_NEED_MISSING)\n            cb_cache_unpin(&r->cache, n->slot);",
        RESIDENCY,
    ),
    Bug(
        "a file that was replaced is not opened again",
        "src/residency.c",
        "    r->suspect = 0;\n    if (!cb_reader_reopen",
        "    r->suspect = 0;\n    if (1 || !cb_reader_reopen",
        RESIDENCY,
    ),
    Bug(
        "guards stay open",
        "src/residency.c",
        "cb_protect(p->m->file.base + from, (size_t)(to - from), readable)",
        "cb_protect(p->m->file.base + from, (size_t)(to - from), readable | 1)",
        RESIDENCY,
    ),
    Bug(
        "a miss that is not counted",
        "src/residency.c",
        "            r->stats.misses++;",
        "            r->stats.misses += layer != 0;",
        RESIDENCY,
    ),
    Bug(
        "a slot more than the budget holds",
        "src/plan.c",
        "if (total_with(p, s, sizes, COLIBRI_RESIDENCY_STREAM, middle) <= budget)",
        "if (total_with(p, s, sizes, COLIBRI_RESIDENCY_STREAM, middle - 1) <= budget)",
        RESIDENCY,
    ),
)


def sources(native: Path) -> list[Path]:
    """C files of the library with the reference kernels only."""
    kernels = [native / "kernels" / f"{name}.c" for name in ("ref", "scalar", "fpu", "dispatch")]
    return [*sorted(p for p in (native / "src").glob("*.c") if p.name != "memory.c"), *kernels]


def compile_library(native: Path, objects: Path, library: Path, changed: str | None) -> None:
    """Compile what changed (None: everything) and link."""
    flags = [
        "-std=c11",
        "-O2",
        "-fPIC",
        "-ffp-contract=off",
        "-D_GNU_SOURCE",
        '-DCB_VERSION="planted"',
        "-fvisibility=hidden",
    ]
    if platform.machine() == "x86_64":
        flags.append("-msse2")
    includes = [f"-I{native / folder}" for folder in ("include", "src", "kernels")]
    for source in sources(native):
        if changed is None or str(source).endswith(changed):
            target = objects / f"{source.parent.name}-{source.stem}.o"
            subprocess.run([COMPILER, *flags, *includes, "-c", str(source), "-o", str(target)], check=True)
    parts = sorted(str(path) for path in objects.glob("*.o"))
    subprocess.run([COMPILER, "-shared", "-pthread", *parts, "-o", str(library), "-lm"], check=True)


def run_c_test(work: Path, name: str) -> tuple[int, str]:
    """Exit code and output of a C test program, linked with the copy."""
    program = work / name
    includes = [f"-I{work / 'native' / folder}" for folder in ("include", "src", "kernels")]
    source = NATIVE / "tests" / f"{name}.c"
    flags = ["-std=c11", "-O1", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-pthread"]
    parts = sorted(str(path) for path in (work / "objects").glob("*.o"))
    subprocess.run([COMPILER, *flags, *includes, str(source), *parts, "-o", str(program), "-lm"], check=True)
    try:
        result = subprocess.run([str(program)], cwd=work, capture_output=True, text=True, check=False, timeout=300)
    except subprocess.TimeoutExpired:
        return 1, "FAIL not over after 300 s"
    return result.returncode, result.stdout + result.stderr


def run_tests(library: Path, tests: str) -> tuple[int, str]:
    """Exit code and output of the bit comparison on a library."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--host-only",
        str(REPOSITORY / "tests" / "unit" / "test_onebit.py"), "-k", tests,
    ]  # fmt: skip
    environment = {**os.environ, "COLIBRI_LIBRARY": str(library), "PYTHONPATH": str(REPOSITORY / "engine")}
    result = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return result.returncode, result.stdout + result.stderr


def plant(bug: Bug, native: Path) -> str:
    """Change the file; returns its old contents."""
    path = native / bug.file
    text = path.read_text(encoding="utf-8")
    if text.count(bug.old) != bug.count:
        raise SystemExit(
            f"planted_bugs: {bug.name}: {bug.file} has {text.count(bug.old)} times {bug.old!r}, must have {bug.count}; "
            "the source changed: write the bug anew in tests/unit/planted_bugs.py"
        )
    path.write_text(text.replace(bug.old, bug.new), encoding="utf-8")
    return text


def check(bug: Bug, work: Path) -> bool:
    """Plant, compile, compare, restore. True when the comparison failed as it must."""
    native, objects, library = work / "native", work / "objects", work / "planted.so"
    start = time.monotonic()
    saved = plant(bug, native)
    try:
        compile_library(native, objects, library, bug.file)
        is_c_test = bug.tests.startswith("test_")
        code, output = run_c_test(work, bug.tests) if is_c_test else run_tests(library, bug.tests)
    finally:
        (native / bug.file).write_text(saved, encoding="utf-8")
        compile_library(native, objects, library, bug.file)
    # A failed comparison, not a broken build, a crash or an error of the engine.
    found = code == 1 and re.search(r"^(E +(AssertionError|assert)|FAIL )", output, re.MULTILINE) is not None
    print(f"  {'found ' if found else 'MISSED'} {bug.name} ({time.monotonic() - start:.1f} s)", flush=True)
    if not found:
        print("\n".join(output.splitlines()[-25:]))
    return found


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="plant only the bugs whose name contains this")
    arguments = parser.parse_args()
    chosen = [bug for bug in BUGS if arguments.only is None or arguments.only in bug.name]
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        shutil.copytree(NATIVE, work / "native", ignore=shutil.ignore_patterns("tests", "tools"))
        (work / "objects").mkdir()
        compile_library(work / "native", work / "objects", work / "planted.so", None)
        code, output = run_tests(work / "planted.so", COMMON)
        if not code:
            code, output = run_c_test(work, RESIDENCY)
        if code:
            print(output)
            print("planted_bugs: the engine without a planted bug does not pass; fix that first")
            return 1
        print("the engine without a planted bug passes; with one:")
        missed = [bug.name for bug in chosen if not check(bug, work)]
    print(f"note: planted bugs: {len(chosen) - len(missed)} of {len(chosen)} found")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
