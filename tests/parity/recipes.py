# SPDX-License-Identifier: MIT
"""What recipes cost on the demo model: size, perplexity, KL divergence, same best token.

    make eval                       every row, build/eval/results.json and a Markdown table
    … recipes.py --only default     one row again

The text is prose that every Python carries: the help topics of `pydoc`. Every second topic is for
measuring importance, the others are read by the models. Importance, the f32 model, its logits and the
results are kept in build/eval with the hash of what they come from: recipe, text, and the sources of the
converter and of the reference, whose bits the C engine has.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from colibri.calibrate import tokens_of
from colibri.evaluate import Predictor, measure, windows
from colibri.importance import MeasuredModel, load_importance
from colibri.importance import measure as measure_importance
from colibri.job import run_job
from colibri.operators import F32
from colibri.recipe import change_job, load_recipe

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY / "tests" / "support"))

from models import imports, key  # noqa: E402

RECIPE = REPOSITORY / "configs" / "models" / "smollm2-moe.toml"
FOLDER = REPOSITORY / "build" / "eval"
TOKENS = 1024
IMPORTANCE_TOKENS = 512
WINDOW = 512

# name -> dtypes, overrides, other changes of the job
ROWS: dict[str, tuple[dict[str, Any], dict[str, str], dict[str, Any]]] = {
    "int8": ({"experts": "int8"}, {}, {}),
    "int4 experts, int8 trunk (default)": ({}, {}, {}),
    "the same, with importance": ({}, {}, {"importance": True}),
    "the same, signed absmax": ({"int4_method": "absmax"}, {}, {}),
    "the same, scale factor 0.95": ({"quant_scale_factor": 0.95}, {}, {}),
    "down matrices int8": ({}, {"* expert_down": "int8"}, {}),
    "down matrices int8, with importance": (
        {}, {"* expert_down": "int8"}, {"importance": True},
    ),
    "int4 everywhere": ({"trunk": "int4"}, {}, {}),
    "a quarter of the experts pruned": ({}, {}, {"prune_ratio": "0.25"}),
}  # fmt: skip


def text(part: int) -> bytes:
    """Every second help topic: part 0 is for evaluation, 1 for importance."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics)[part::2]).encode()


class Base:
    """The f32 model: its windows of the text and the logits of every position, from a file."""

    def __init__(self, model: Path) -> None:
        predictor = Predictor(model, "library", 0, WINDOW, "f32")
        self.parts = windows(tokens_of(predictor.tokenize, text(0), TOKENS), WINDOW, TOKENS)
        positions = sum(len(part) - 1 for part in self.parts)
        path = FOLDER / f"base-{sources('recipe', 'evaluate', 'reference')}.npy"
        if not path.exists():
            print("eval: logits of the f32 model", file=sys.stderr, flush=True)
            for old in FOLDER.glob("base-*.npy"):  # 200 MB each
                old.unlink()
            partial = path.with_suffix(".tmp")
            rows = [row for part in self.parts for row in predictor.logits(part[:-1])]
            with partial.open("wb") as file:
                np.save(file, np.stack(rows))
            partial.replace(path)
        predictor.close()
        self._logits = np.load(path, mmap_mode="r")
        assert len(self._logits) == positions
        self._next = 0

    def logits(self, ids: Sequence[int]) -> Iterator[F32]:
        """The kept rows in order; asked for once each."""
        for _ in ids:
            self._next += 1  # before the row is given: the last of a window is asked for and not gone on from
            yield np.array(self._logits[self._next - 1])

    def rewind(self) -> None:
        """Begin anew for another model."""
        self._next = 0


def sources(*modules: str) -> str:
    """A short name for the recipe, the texts and the sources of the package's modules."""
    names: set[str] = set()
    for module in modules:
        imports(module, names)
    parts = (RECIPE.read_text(), text(0).decode(), text(1).decode(), f"{TOKENS} {IMPORTANCE_TOKENS} {WINDOW}")
    return key(names, *parts)


def importance_file() -> Path:
    """Where the importance is kept."""
    return FOLDER / f"importance-{sources('recipe', 'importance')}.json"


def convert(name: str, target: Path) -> Path:
    """A row's model."""
    dtypes, overrides, more = ROWS[name]
    changes = dict(more)
    job = load_recipe(RECIPE, dtypes, overrides=overrides)
    if changes.pop("importance", False):
        changes["importance"] = importance_file()
    change_job(job, **changes)
    run_job(job, target, quiet=True)
    return target


def base_model() -> Path:
    """The f32 model, made once of the same sources."""
    path = FOLDER / f"f32-{sources('recipe')}.colibri"
    if not path.exists():
        for old in FOLDER.glob("f32*.colibri"):  # 2.8 GB each
            old.unlink()
        run_job(load_recipe(RECIPE, overrides={"*": "f32"}), path, quiet=True)
    return path


def importance() -> None:
    """The importance of every second topic, measured once, with an int8 model."""
    path = importance_file()
    if path.exists():
        load_importance(path)
        return
    print("eval: importance, by the numpy reference (minutes)", file=sys.stderr, flush=True)
    model = convert("int8", FOLDER / "row.colibri")
    found = measure_importance(MeasuredModel(model), text(1), IMPORTANCE_TOKENS, WINDOW, pool=True)
    partial = path.with_suffix(".tmp")
    partial.write_bytes(found.document())
    partial.replace(path)


def table(results: dict[str, Any]) -> Iterator[str]:
    """The rows as Markdown."""
    yield "| recipe | MB | perplexity | change | KL divergence | same best token |"
    yield "|---|---:|---:|---:|---:|---:|"
    for row in results["rows"].values():
        change = row["perplexity"] / row["base_perplexity"] - 1
        yield (
            f"| {row['name']} | {row['bytes'] / 1e6:,.1f} | {row['perplexity']:.3f} | {change:+.1%} | "
            f"{row['kl']:.4f} ± {row['kl_error']:.4f} | {row['same_best']:.1%} |"
        )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=list(ROWS), default=[], help="measure these rows again")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / "results.json"
    made_of = sources("recipe", "importance", "evaluate", "reference")
    digest = hashlib.sha256(text(0)).hexdigest()
    results: dict[str, Any] = {"made_of": made_of, "text_sha256": digest, "tokens": TOKENS, "rows": {}}
    with contextlib.suppress(FileNotFoundError, KeyError):
        kept = json.loads(file.read_text())
        results = kept if kept["made_of"] == made_of else results
    base = Base(base_model())
    for name in arguments.only or [name for name in ROWS if name not in results["rows"]]:
        if "importance" in ROWS[name][2]:
            importance()
        begin = time.monotonic()
        model = convert(name, FOLDER / "row.colibri")
        predictor = Predictor(model, "library", 0, WINDOW, "f16")
        base.rewind()
        found = measure(predictor.logits, base.logits, base.parts).comparison()
        predictor.close()
        results["rows"][name] = {
            "name": name,
            "bytes": model.stat().st_size,
            "perplexity": found.model.perplexity,
            "base_perplexity": found.base.perplexity,
            "kl": found.divergence,
            "kl_error": found.divergence_error,
            "same_best": found.same_best,
        }
        file.write_text(json.dumps(results, indent=1))
        seconds = time.monotonic() - begin
        print(f"eval: {name}: KL {found.divergence:.4f} ({seconds:.0f} s)", file=sys.stderr, flush=True)
    print("\n".join(table(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
