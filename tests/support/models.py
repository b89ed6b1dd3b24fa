# SPDX-License-Identifier: MIT
"""Make the models of the tests and the demo, each with its golden results, in build/models.

    build/venv/bin/python tests/support/models.py [tiny] [demo]

`tiny` is every recipe configs/models/tiny*.toml, `demo` is configs/models/smollm2-moe.toml. Models
are cached in ${XDG_CACHE_HOME:-~/.cache}/colibri/models under the hash of what they are made from:
the recipe (which pins the hash of its source) and the modules that the converter imports; golden
results also under those of the numpy reference.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = REPOSITORY / "engine" / "colibri"
RECIPES = REPOSITORY / "configs" / "models"
OUTPUT = REPOSITORY / "build" / "models"
DEMO = "smollm2-moe"
SEAL = 946_684_800 * 10**9  # modification time of cached files, in nanoseconds: the year 2000

# Arguments of `colibri golden`: what the reference computes once and every engine must repeat.
TINY_GOLDEN = (
    "--prompt=the cat sat on 1200 hats, and that", "--prompt=.", "--chat-prompt=Who is there?",
    "--ids=1,330,7,0,200", "--tokens=32",
)  # fmt: skip
DEMO_GOLDEN = ("--chat-prompt=What is the capital of France?", "--tokens=16")


class ModelError(Exception):
    """A model cannot be made; the message says why."""


def imports(module: str, seen: set[str]) -> set[str]:
    """Names of the package's modules that `module` needs, itself included."""
    if module in seen:
        return seen
    seen.add(module)
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "colibri":
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("colibri."):
            names = [node.module.removeprefix("colibri.")]
        for name in names:
            if (PACKAGE / f"{name}.py").exists():
                imports(name, seen)
    return seen


def key(modules: set[str], *parts: str) -> str:
    """A short name for the contents of modules and texts."""
    digest = hashlib.sha256()
    for text in (*((PACKAGE / f"{name}.py").read_text() for name in sorted(modules)), *parts):
        raw = text.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()[:24]


def colibri(*arguments: str) -> None:
    """Run the converter's command."""
    command = [sys.executable, "-m", "colibri", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "engine")}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        raise ModelError(f"colibri {' '.join(arguments)} failed:\n{result.stdout}{result.stderr}")


def cache() -> Path:
    """Folder of the cached models."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "colibri" / "models"


def place(source: Path, target: Path) -> None:
    """Make `target` the cached file, without a copy where the file system allows it."""
    target.unlink(missing_ok=True)
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)


def sealed(file: Path) -> bool:
    """A cached file that nobody has written to: build/models has the same file, and is there to be played with."""
    return file.exists() and file.stat().st_mtime_ns == SEAL


def seal(file: Path) -> None:
    """Give a cached file the time that any later write would change."""
    os.utime(file, ns=(SEAL, SEAL))


def make(recipe: Path, golden: tuple[str, ...]) -> None:
    """One model and its golden results."""
    name = recipe.stem
    start = time.monotonic()
    model_key = key(imports("recipe", set()), recipe.read_text())
    golden_key = key(imports("reference", set()), model_key, *golden)
    folder = cache() / f"{name}-{model_key}"
    model = folder / f"{name}.colibri"
    results = folder / f"{golden_key}.golden.json"
    folder.mkdir(parents=True, exist_ok=True)
    made = "from the cache"
    if not sealed(model):
        made = "made"
        model.unlink(missing_ok=True)
        print(f"models: converting {recipe.name} (the demo model takes about a minute)", flush=True)
        colibri("convert", str(recipe), "-o", str(model))
        seal(model)
    if not sealed(results):
        results.unlink(missing_ok=True)
        print(f"models: computing golden results of {name} with the numpy reference", flush=True)
        colibri("golden", str(model), *golden, "-o", str(results))
        seal(results)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    place(model, OUTPUT / model.name)
    place(results, OUTPUT / f"{name}.golden.json")
    seconds = time.monotonic() - start
    print(f"models: {name}.colibri {model.stat().st_size} bytes, {made} ({seconds:.1f} s)", flush=True)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="+", choices=("tiny", "demo"))
    arguments = parser.parse_args()
    try:
        if "tiny" in arguments.names:
            for recipe in sorted(RECIPES.glob("tiny*.toml")):
                make(recipe, TINY_GOLDEN)
        if "demo" in arguments.names:
            make(RECIPES / f"{DEMO}.toml", DEMO_GOLDEN)
    except ModelError as error:
        print(f"models: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
