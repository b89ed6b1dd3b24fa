# SPDX-License-Identifier: MIT
"""Model recipes (configs/models/*.toml): models that are made rather than downloaded.

Three kinds. `random`: a seeded tiny decoder with really different experts and odd sizes, for tests.
`upcycled`: a dense checkpoint whose feed-forward block becomes several experts, each a copy with a
seeded relative perturbation, so that the text stays good and the memory behaves like a real MoE.
`checkpoint`: a published checkpoint, with the dtypes that the recipe gives its tensors.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np

from colibri._families import GGUF
from colibri._spec import Code, Family, Pretokenizer, Role, Scope
from colibri._unicode import UNICODE_VERSION
from colibri.checkpoint import digest_of
from colibri.convert import (
    check_names,
    checkpoint_job,
    limit_context,
    named_rows,
    tokenizer_section,
)
from colibri.errors import ColibriError
from colibri.families import DecoderShape, decoder_records
from colibri.format import open_model, tensor_groups
from colibri.gguf_model import gguf_shape, unpermuted
from colibri.gguf_reader import Gguf
from colibri.job import Job, Precision, RowSource
from colibri.layout import F32
from colibri.noise import coarse_normal, normal, stream_seed
from colibri.provenance import provenance
from colibri.records import required_tensors
from colibri.tokenizer import Merge, TokenizerSpec
from colibri.tokenizer_patterns import class_ranges
from colibri.writer import Slot

# What a recipe may hold at its top, and in its [source].
_KEYS = ("kind", "dtypes", "overrides", "importance", "expert_prune_ratio", "prune_by", "model")
_KINDS: dict[str, tuple[str, ...]] = {
    "random": (*_KEYS, "name", "seed", "license", "weights", "tokenizer"),
    "upcycled": (*_KEYS, "name", "seed", "license", "source"),
    "checkpoint": (*_KEYS, "source"),
}
_SOURCE_KEYS = {"upcycled": ("file", "package", "sha256"), "checkpoint": ("path",)}
_EXPERT_SOURCE = {"expert_gate": "ffn_gate", "expert_up": "ffn_up", "expert_down": "ffn_down"}
_RANDOM_FIELDS = {
    "hidden": int,
    "vocabulary": int,
    "layers": int,
    "context_tokens": int,
    "heads": int,
    "kv_heads": int,
    "head_dim": int,
    "intermediate": int,
    "experts": int,
    "top_k": int,
    "rope_theta": float,
    "norm_eps": float,
    "tied_head": bool,
}
_UPCYCLED_FIELDS = {
    "context_tokens": int,
    "experts": int,
    "top_k": int,
    "perturbation": float,
    "router_deviation": float,
}


def _error(path: Path, message: str) -> ColibriError:
    return ColibriError(Code.ARGUMENT, f"{path}: {message}")


def _table(path: Path, recipe: dict[str, Any], name: str) -> dict[str, Any]:
    table = recipe.get(name, {})
    if not isinstance(table, dict):
        raise _error(path, f"{name} must be a table")
    return table


def _fields(path: Path, table: dict[str, Any], known: dict[str, type], optional: dict[str, Any]) -> dict[str, Any]:
    """Values of a [model] table; unknown, missing and mistyped keys are refused."""
    for key, value in table.items():
        kind = known.get(key, type(optional.get(key)))
        if key not in known and key not in optional:
            raise _error(path, f"model.{key} is unknown; known: {', '.join([*known, *optional])}")
        if type(value) is not kind and not (kind is float and type(value) is int):
            raise _error(path, f"model.{key} is {value!r}, must be a {kind.__name__}")
    missing = [key for key in known if key not in table]
    if missing:
        raise _error(path, f"model.{missing[0]} is missing")
    return {**optional, **table}


# --------------------------------------------------------------------------- random


def byte_tokenizer(specials: list[str], merges: list[str], end: str, user: str, assistant: str) -> TokenizerSpec:
    """A byte-level BPE of 256 bytes, merged tokens and special tokens, in this order of ids."""
    tokens = [bytes([value]) for value in range(256)]
    ids = {token: i for i, token in enumerate(tokens)}
    rows: list[Merge] = []
    for rank, line in enumerate(merges):
        left, right = (part.replace("_", " ").encode() for part in line.split())
        if left not in ids or right not in ids:
            raise ColibriError(Code.ARGUMENT, f"merge {line!r} uses a token that no earlier merge made")
        merged = left + right
        if merged in ids:
            raise ColibriError(Code.ARGUMENT, f"merge {line!r} makes a token that exists")
        ids[merged] = len(tokens)
        rows.append((ids[left], ids[right], rank, len(tokens)))
        tokens.append(merged)
    base = len(tokens)
    tokens += [name.encode() for name in specials]
    special_ids = {name: base + i for i, name in enumerate(specials)}
    return TokenizerSpec(
        tokens=tokens,
        merges=sorted(rows),
        pretokenizer=Pretokenizer.SMOLLM,
        specials=sorted(special_ids.values()),
        ends=[special_ids[end]],
        chat_prefix=[special_ids[user]],
        chat_suffix=[special_ids[end], special_ids[assistant]],
        class_ranges=list(class_ranges(Pretokenizer.SMOLLM)),
        unicode_version=UNICODE_VERSION,
    )


def random_rows(seed: int, scales: dict[str, float], hidden: int) -> RowSource:
    """Seeded normal values: norms around 1, matrices of deviation scale / sqrt(inputs)."""

    def rows(slot: Slot, first: int, end: int) -> F32:
        tensor = slot.tensor
        role = tensor.role.name.lower()
        stream = stream_seed(seed, slot.name)
        values = normal(stream, first * tensor.columns, (end - first) * tensor.columns)
        values = values.reshape(end - first, tensor.columns)
        if role.endswith("_norm"):
            return np.float32(1) + values * np.float32(scales["norm"])
        # sqrt is correctly rounded everywhere, unlike pow.
        root = np.sqrt(np.float32(tensor.columns))
        scale = np.float32(scales.get(role, scales["default"])) / root
        result: F32 = values * scale
        return result

    return rows


def random_job(path: Path, recipe: dict[str, Any], precision: Precision) -> Job:
    """The job of a `random` recipe."""
    model = _fields(path, _table(path, recipe, "model"), _RANDOM_FIELDS, {"window_tokens": 0})
    records = decoder_records(DecoderShape(family=Family.MIXTRAL, **model))
    scales = {"default": 1.0, "norm": 0.1, **_table(path, recipe, "weights")}
    section = None
    if "tokenizer" in recipe:
        table = _table(path, recipe, "tokenizer")
        try:
            section = tokenizer_section(lambda: byte_tokenizer(**table), records)
        except (TypeError, KeyError, ValueError) as error:
            raise _error(path, f"tokenizer table: {error}") from error
    seed = int(recipe.get("seed", 0))
    origin = {"kind": "random", "seed": seed, "weights": scales}
    rows = random_rows(seed, scales, records.model.hidden)
    more = {"name": recipe.get("name", path.stem), "license": _license(path, recipe)}
    return Job(records, rows, precision, section, provenance(origin, precision.names(), **more))


# --------------------------------------------------------------------------- upcycled


def _package_file(package: str, name: str) -> Path | None:
    """A data file of an installed Python package."""
    spec = importlib.util.find_spec(package) if package else None
    folders = list(spec.submodule_search_locations or []) if spec is not None else []
    return next((Path(folder) / name for folder in folders if (Path(folder) / name).is_file()), None)


def find_source(path: Path, table: dict[str, Any], override: Path | None) -> Path:
    """The checkpoint of a recipe: `override`, or a data file of an installed Python package."""
    name, package, digest = (table.get(key, "") for key in ("file", "package", "sha256"))
    if override is None:
        override = _package_file(package, name)
        if override is None:
            raise ColibriError(
                Code.OPEN,
                f"{path}: the source {name} of the Python package {package} is not there; "
                f"pip install {package.replace('_', '-')}, or give the file with --recipe-source",
            )
    elif not override.is_file():
        raise ColibriError(Code.OPEN, f"{override}: no such file")
    if digest and digest_of(override) != digest:
        raise ColibriError(
            Code.ARGUMENT, f"{override} is not the file that {path.name} names: its SHA-256 is not {digest}"
        )
    return override


def upcycled_rows(
    base: RowSource, source: Gguf, names: dict[str, str], seed: int, perturbation: float, router_deviation: float
) -> RowSource:
    """Experts are w * (1 + perturbation * noise) of the dense block, routers are noise."""
    amount = np.float32(perturbation)
    router = np.float32(router_deviation)

    def rows(slot: Slot, first: int, end: int) -> F32:
        tensor = slot.tensor
        role = tensor.role.name.lower()
        columns = tensor.columns
        if tensor.role == Role.ROUTER:
            values = normal(stream_seed(seed, slot.name), first * columns, (end - first) * columns)
            noise: F32 = values.reshape(end - first, columns) * router
            return noise
        if tensor.scope != Scope.EXPERT:
            return base(slot, first, end)
        dense = source.rows(names[_EXPERT_SOURCE[role]].format(layer=tensor.layer), first, end)
        values = coarse_normal(stream_seed(seed, slot.name), first * columns, (end - first) * columns)
        values *= amount
        values += np.float32(1)
        perturbed: F32 = values.reshape(dense.shape)
        perturbed *= dense  # `dense` may be a read-only view of the file
        return perturbed

    return rows


def upcycled_job(path: Path, recipe: dict[str, Any], precision: Precision, override: Path | None) -> Job:
    """The job of an `upcycled` recipe."""
    model = _fields(path, _table(path, recipe, "model"), _UPCYCLED_FIELDS, {})
    table = _table(path, recipe, "source")
    file = find_source(path, table, override)
    source = Gguf(file)
    records = decoder_records(gguf_shape(source, model["experts"], model["top_k"]))
    limit_context(records, model["context_tokens"])
    names: dict[str, str] = GGUF[source.value("general.architecture")]["tensors"]
    expected: dict[str, tuple[int, ...]] = {}
    for scope, layer in tensor_groups(records):
        for role, shape in required_tensors(records, scope, layer).items():
            key = _EXPERT_SOURCE.get(role.name.lower(), role.name.lower())
            if role != Role.ROUTER:
                matrix = (shape.rows, shape.columns) if shape.layout else (shape.columns,)
                expected[names[key].format(layer=layer)] = matrix
    check_names(source, expected, [])
    section = tokenizer_section(lambda: TokenizerSpec.from_gguf_metadata(source.metadata()), records)
    seed = int(recipe.get("seed", 0))
    base = unpermuted(named_rows(source, names), records)
    rows = upcycled_rows(base, source, names, seed, model["perturbation"], model["router_deviation"])
    origin = {
        "kind": "upcycled",
        "name": source.value("general.name"),
        "sha256": {file.name: digest_of(file)},
        "seed": seed,
        **{key: model[key] for key in ("experts", "top_k", "perturbation", "router_deviation")},
    }
    more = {"name": recipe.get("name", path.stem), "license": _license(path, recipe)}
    return Job(records, rows, precision, section, provenance(origin, precision.names(), **more))


def _license(path: Path, recipe: dict[str, Any]) -> dict[str, str]:
    """SPDX identifier, notice and full text of the licence of the weights."""
    table = dict(_table(path, recipe, "license"))
    name = table.pop("file", None)
    if name is not None:
        try:
            table["text"] = (path.parent / name).read_text(encoding="utf-8")
        except OSError as error:
            raise ColibriError(Code.OPEN, f"{path.parent / name}: {error.strerror}") from error
    return table


def _parse(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The bytes and the tables of a recipe; a key that its kind does not read is refused."""
    try:
        raw = path.read_bytes()
        recipe = tomllib.loads(raw.decode("utf-8"))
    except OSError as error:
        raise ColibriError(Code.OPEN, f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise _error(path, f"not TOML: {error}") from error
    kind = recipe.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _error(path, f"kind is {kind!r}, known: {', '.join(_KINDS)}")
    for key in recipe:
        if key not in _KINDS[kind]:
            raise _error(path, f"{key} is unknown in a recipe of kind {kind!r}; known: {', '.join(_KINDS[kind])}")
    for key in _table(path, recipe, "source"):
        if key not in _SOURCE_KEYS[kind]:
            raise _error(path, f"source.{key} is unknown, known: {', '.join(_SOURCE_KEYS[kind])}")
    if "prune_by" in recipe and "expert_prune_ratio" not in recipe:
        raise _error(path, "prune_by belongs to expert_prune_ratio; give both or neither")
    return raw, recipe


def recipe_files(path: Path, source: Path | None = None) -> list[Path]:
    """Files and folders that a recipe names, for an output that must be none of them."""
    _, recipe = _parse(path)
    table = _table(path, recipe, "source")
    names = [recipe.get("importance"), recipe.get("prune_by"), _table(path, recipe, "license").get("file")]
    if source is None:
        names.append(table.get("path"))
        package, file = table.get("package"), table.get("file")
        if isinstance(package, str) and isinstance(file, str):
            source = _package_file(package, file)
    found = [path.parent / name for name in names if isinstance(name, str) and name]
    return [path, *found, *([] if source is None else [source])]


def load_recipe(
    path: str | os.PathLike[str],
    dtypes: dict[str, Any] | None = None,
    source: Path | None = None,
    overrides: dict[str, str] | None = None,
) -> Job:
    """The job of a recipe file; `dtypes` and `overrides` replace entries of its tables, and add to them."""
    where = Path(path)
    raw, recipe = _parse(where)
    more = overrides or {}
    own = {pattern: name for pattern, name in _table(where, recipe, "overrides").items() if pattern not in more}
    precision = Precision.from_names(
        {**_table(where, recipe, "dtypes"), **(dtypes or {})},
        {**own, **more},  # a pattern of both stands where it is given last: the last that matches counts
    )
    kind = recipe["kind"]
    if kind == "random":
        job = random_job(where, recipe, precision)
    elif kind == "upcycled":
        job = upcycled_job(where, recipe, precision, source)
    else:
        job = _checkpoint_job(where, recipe, precision, source)
    job.provenance["recipe"] = {"file": where.name, "sha256": hashlib.sha256(raw).hexdigest()}
    files = {key: _text(where, recipe, key) for key in ("importance", "prune_by")}
    importance, profile = (None if name is None else where.parent / name for name in files.values())
    for line in change_job(job, importance, _text(where, recipe, "expert_prune_ratio"), profile):
        print(line, file=sys.stderr)
    return job


def _text(path: Path, recipe: dict[str, Any], key: str) -> str | None:
    value = recipe.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise _error(path, f"{key} is {value!r}, must be a text")
    return value


def change_job(
    job: Job, importance: Path | None = None, prune_ratio: str | None = None, prune_by: Path | None = None
) -> list[str]:
    """Give a job the importance of a file, leave experts out of it; the lines that say what was pruned."""
    if importance is not None:
        from colibri.importance import load_importance
        from colibri.prune import selected_importance

        found, digest = load_importance(importance)
        job.importance = selected_importance(found.of, job.kept)
        job.provenance["importance"] = {"sha256": digest, "tokens": found.tokens, "text_sha256": found.text_sha256}
    if prune_ratio is None:
        return []
    from colibri.prune import parse_ratio, prune

    profile = None
    if prune_by is not None:
        with open_model(prune_by) as model:
            profile = model.calibration()
        if profile is None:
            raise ColibriError(
                Code.ARGUMENT, f"{prune_by} has no calibration profile; make one with `colibri calibrate`"
            )
    return prune(job, parse_ratio(prune_ratio), profile)


# --------------------------------------------------------------------------- checkpoint


def _checkpoint_job(path: Path, recipe: dict[str, Any], precision: Precision, override: Path | None) -> Job:
    """The job of a `checkpoint` recipe: a published checkpoint with the recipe's dtypes."""
    source = _table(path, recipe, "source")
    name = source.get("path")
    if override is None and (not isinstance(name, str) or not name):
        raise _error(path, "source.path names no checkpoint; give one there or with --recipe-source")
    optional = {"context_tokens": 0, "tokenizer": True, "chat": True, "drop_nfc": False}
    model = _fields(path, _table(path, recipe, "model"), {}, optional)
    where = override if override is not None else path.parent / str(name)
    context = model["context_tokens"] or None
    return checkpoint_job(where, precision, context, model["tokenizer"], model["chat"], model["drop_nfc"])
