# SPDX-License-Identifier: MIT
"""Checkpoints to jobs: Hugging Face directories and GGUF files.

Every tensor that the records ask for must be in the checkpoint with the shape they ask for, and
nothing else may be there: a tensor that is left over means arithmetic that would be left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri import __version__
from colibri._families import FAMILIES, GGUF
from colibri._spec import Code, Layout, Role
from colibri.checkpoint import Source, TensorFiles, digest_of
from colibri.errors import ColibriError, shown
from colibri.families import (
    TensorName,
    architectures_of,
    config_notes,
    decoder_records,
    family_of,
    model_type_of,
    shape_from_config,
)
from colibri.files import inside, load_json, refuse_output
from colibri.format import tensor_groups
from colibri.fp8 import Fp8, block_sizes
from colibri.gguf_model import gguf_names, gguf_shape, unpermuted
from colibri.gguf_reader import Gguf
from colibri.job import Job, Precision, Report, RowSource, run_job
from colibri.layout import F32
from colibri.mxfp4 import Mxfp4
from colibri.provenance import digests, gguf_license, license_of, provenance
from colibri.records import Records, required_tensors
from colibri.safetensors_reader import Safetensors
from colibri.tokenizer import TokenizerSpec
from colibri.torch_reader import TorchFiles
from colibri.writer import Slot

# What the tokenizer's reader may open beside the weights; the model file only where tokenizer.json is not there.
TOKENIZER_MODEL = "tokenizer.model"
TOKENIZER_FILES = (
    "tokenizer.json",
    TOKENIZER_MODEL,
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "special_tokens_map.json",
)


def expected_names(
    records: Records, names: dict[str, str], sizes: dict[str, int] | None = None
) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor that a checkpoint must have; sizes: DecoderShape.part_rows, for names that need them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for scope, layer in tensor_groups(records):
        for role, shape in required_tensors(records, scope, layer).items():
            name = _tensor_name(names, role)
            experts = records.layers[layer].experts if layer is not None else 0
            vector = shape.rows == 1 and shape.layout == Layout.ROWS
            rows = name.stored_rows(shape.columns if vector else shape.rows, sizes or {})
            matrix: tuple[int, ...] = (rows,) if vector else (rows, shape.columns)
            if name.kernels:
                matrix = (shape.columns, 1, rows)
            elif name.transposed:
                matrix = matrix[::-1]
            if name.heads:
                per_head = (sizes or {})[name.heads]
                inner = (shape.columns, per_head) if name.transposed else (per_head, shape.columns)
                matrix = (rows // per_head, *inner)
            if not name.stacked:
                for expert in range(experts):
                    shapes[name.template.format(layer=layer, expert=expert)] = matrix
            elif role.name.startswith("EXPERT_"):
                shapes[name.template.format(layer=layer)] = (experts, *matrix)
            else:
                shapes[name.template.format(layer=layer)] = matrix
    return shapes


def _tensor_name(names: dict[str, str], role: Role) -> TensorName:
    key = role.name.lower()
    if key not in names:
        raise ColibriError(
            Code.UNSUPPORTED, f"the configuration asks for {key}, a tensor that this family's checkpoints do not have"
        )
    return TensorName.parse(names[key])


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A matrix of one row is a vector to some writers."""
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape


def check_names(source: Source, expected: dict[str, tuple[int, ...]], ignored: list[str]) -> None:
    """Refuse missing, surplus and misshapen tensors by name."""
    found = source.shapes()
    missing = [name for name in expected if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ColibriError(Code.MISSING_TENSOR, f"the checkpoint has no {missing[0]}{more}")
    for name, shape in expected.items():
        if _squeezed(found[name]) != _squeezed(shape):
            raise ColibriError(
                Code.TENSOR, f"{name} has the shape {list(found[name])}, the configuration says {list(shape)}"
            )
    surplus = sorted(name for name in found if name not in expected and not any(fnmatchcase(name, p) for p in ignored))
    if surplus:
        more = f" and {len(surplus) - 1} more" if len(surplus) > 1 else ""
        raise ColibriError(
            Code.UNSUPPORTED,
            f"the checkpoint has {shown(surplus[0])}{more}, which the architecture has no use for; "
            "leaving it out would change the results",
        )


class Renamed:
    """Tensors of a checkpoint under the names that families.toml has for them."""

    def __init__(self, source: Source, pairs: list[list[str]]) -> None:
        self.source = source
        self._names: dict[str, str] = {}
        for name in source.shapes():
            known = name
            for old, new in pairs:
                known = known.replace(old, new)
            if known in self._names:
                raise ColibriError(
                    Code.DIRECTORY, f"{shown(name)} and {shown(self._names[known])} are names of one tensor; keep one"
                )
            self._names[known] = name

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor."""
        shapes = self.source.shapes()
        return {known: shapes[name] for known, name in self._names.items()}

    def rows(self, name: str, first: int, end: int, index: int = 0) -> F32:
        """As those of the checkpoint."""
        return self.source.rows(self._names[name], first, end, index)

    def columns(self, name: str, wanted: npt.NDArray[np.int64], index: int = 0) -> F32:
        """As those of the checkpoint."""
        return self.source.columns(self._names[name], wanted, index)

    def files(self) -> list[Path]:
        """The files that hold the tensors."""
        return self.source.files()


def _part_of(source: Source, name: TensorName, slot: Slot, first: int, end: int, sizes: dict[str, int]) -> F32:
    """Rows first..end of what `name` means; a vector is one row, of which all is meant."""
    tensor = slot.tensor
    template = name.template.format(layer=tensor.layer, expert=slot.expert)
    index = (slot.expert or 0) if name.stacked else 0
    if tensor.layout == Layout.ROWS and tensor.rows == 1:
        values = source.rows(template, index, index + 1)
        runs = name.runs(0, tensor.columns, tensor.columns, sizes)
        return np.concatenate([values[:, at:to] for at, to in runs], axis=1)
    if name.heads:
        return _of_heads(source, template, name, first, end, sizes[name.heads])
    if name.kernels:
        taps = np.concatenate([source.rows(template, 0, 1, channel) for channel in range(tensor.columns)])
        return np.ascontiguousarray(taps[:, first:end].T)
    runs = name.runs(first, end, tensor.rows, sizes)
    if name.transposed:
        return source.columns(template, np.concatenate([np.arange(at, to) for at, to in runs]), index)
    parts = [source.rows(template, at, to, index) for at, to in runs]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _of_heads(source: Source, template: str, name: TensorName, first: int, end: int, size: int) -> F32:
    """Rows first..end of a matrix that is stored as a stack of heads of `size` rows."""
    parts = []
    for head in range(first // size, -(-end // size)):
        at, to = max(first - head * size, 0), min(end - head * size, size)
        if name.transposed:
            parts.append(source.columns(template, np.arange(at, to), head))
        else:
            parts.append(source.rows(template, at, to, head))
    return np.concatenate(parts)


def named_rows(source: Source, names: dict[str, str], sizes: dict[str, int] | None = None) -> RowSource:
    """Rows by the names of the checkpoint; sizes: DecoderShape.part_rows, for names that need them."""

    def rows(slot: Slot, first: int, end: int) -> F32:
        return _part_of(source, _tensor_name(names, slot.tensor.role), slot, first, end, sizes or {})

    return rows


def limit_context(records: Records, context_tokens: int | None) -> None:
    """Store a smaller context than the checkpoint was trained for."""
    if context_tokens is None:
        return
    trained = records.model.context_tokens
    if not 1 <= context_tokens <= trained:
        raise ColibriError(
            Code.ARGUMENT, f"context of {context_tokens} tokens, the checkpoint was trained for {trained}"
        )
    records.model.context_tokens = context_tokens


def tokenizer_files(directory: Path) -> list[str]:
    """Those of TOKENIZER_FILES that are read; nothing where there is no tokenizer."""
    for name in TOKENIZER_FILES:
        inside(directory, name)
    if (directory / "tokenizer.json").is_file():
        return [name for name in TOKENIZER_FILES if name != TOKENIZER_MODEL]
    return [*TOKENIZER_FILES[1:]] if (directory / TOKENIZER_MODEL).is_file() else []


def tokenizer_section(load: Callable[[], TokenizerSpec], records: Records) -> bytes:
    """The tokenizer section, checked against the vocabulary."""
    tokenizer = load()
    vocabulary = records.model.vocabulary
    if len(tokenizer.tokens) > vocabulary:
        raise ColibriError(
            Code.TOKENIZER, f"the tokenizer has {len(tokenizer.tokens)} tokens, the model's vocabulary {vocabulary}"
        )
    return tokenizer.to_section()


# --------------------------------------------------------------------------- Hugging Face


def container(directory: Path) -> type[TensorFiles] | None:
    """Which weights of a folder are read: safetensors, else a pickled state_dict."""
    kinds: tuple[type[TensorFiles], ...] = (Safetensors, TorchFiles)
    return next((kind for kind in kinds if kind.present(directory)), None)


def open_checkpoint(directory: Path) -> TensorFiles:
    """The weights of a folder."""
    kind = container(directory)
    if kind is not None:
        return kind(directory)
    raise ColibriError(
        Code.OPEN,
        f"{directory} has neither model.safetensors nor pytorch_model.bin, nor an index of one; "
        "checkpoints in other formats can be saved again with save_pretrained",
    )


def huggingface_job(
    directory: Path,
    precision: Precision,
    context_tokens: int | None = None,
    tokenizer: bool = True,
    chat: bool = True,
    drop_nfc: bool = False,
) -> Job:
    """A job from a directory with config.json and safetensors or pytorch_model.bin."""
    path = inside(directory, "config.json")
    if not os.path.lexists(path):
        raise ColibriError(
            Code.OPEN, f"{directory} has no config.json; give the folder of a checkpoint, as save_pretrained writes it"
        )
    config = load_json(path)
    architectures = architectures_of(config)
    key = family_of(architectures, model_type_of(config))
    family = FAMILIES[key]
    shape = shape_from_config(key, config)
    records = decoder_records(shape)
    names: dict[str, str] = family["tensors"]
    # Of the whole context: a table of positions is cut behind it.
    expected = expected_names(records, names, shape.part_rows)
    limit_context(records, context_tokens)
    source = open_checkpoint(directory)
    ignored = [pattern.format(layers=records.model.layers) for pattern in family.get("ignored", [])]
    if "ignored_if" in family and not config.get(family["ignored_if"]):
        ignored = []
    if records.model.tied_head and "head" in names:
        ignored.append(names["head"])  # some writers store the tied matrix twice
    packed: tuple[Mxfp4 | Fp8, ...] = (Mxfp4(source), Fp8(source, block_sizes(config)))
    plain = next((found for found in packed if found.present), source)
    tensors = Renamed(plain, family.get("renamed", []))
    check_names(tensors, expected, ignored)
    section = None
    read = ["config.json", f"{source.single}.index.json", *(path.name for path in source.files())]
    if tokenizer:
        files = tokenizer_files(directory)
        if not files:
            raise ColibriError(
                Code.TOKENIZER,
                f"{directory} has neither tokenizer.json nor {TOKENIZER_MODEL}; add one, or give --no-tokenizer for a "
                "model that takes ids only",
            )
        section = tokenizer_section(
            lambda: TokenizerSpec.from_huggingface(directory, chat=chat, drop_nfc=drop_nfc), records
        )
        read += files
    terms, more = license_of(directory)
    origin: dict[str, Any] = {
        "kind": "huggingface",
        "format": "safetensors" if isinstance(source, Safetensors) else "torch",
        "architecture": architectures,
        "sha256": digests(directory, [*read, *more]),
    }
    said = {**_options(records, tokenizer, chat), **({"drop_nfc": True} if drop_nfc and tokenizer else {})}
    return Job(
        records,
        named_rows(tensors, names, shape.part_rows),
        precision,
        section,
        provenance(origin, precision.names(), options=said, license=terms),
        config_notes(config, __version__),
    )


def _options(records: Records, tokenizer: bool, chat: bool) -> dict[str, Any]:
    """The options of a conversion, for the provenance."""
    return {"context_tokens": records.model.context_tokens, "tokenizer": tokenizer, "chat": tokenizer and chat}


# --------------------------------------------------------------------------- GGUF


def gguf_job(
    path: Path,
    precision: Precision,
    context_tokens: int | None = None,
    tokenizer: bool = True,
    chat: bool = True,
) -> Job:
    """A job from a GGUF file of a Mixture-of-Experts model."""
    source = Gguf(path)
    shape = gguf_shape(source)
    records = decoder_records(shape)
    limit_context(records, context_tokens)
    names = gguf_names(source, shape)
    check_names(source, expected_names(records, names, shape.part_rows), [])
    section = None
    if tokenizer:
        section = tokenizer_section(lambda: TokenizerSpec.from_gguf_metadata(source.metadata(), chat=chat), records)
    origin = {
        "kind": "gguf",
        "name": source.value("general.name"),
        "sha256": {path.name: digest_of(path)},
    }
    rows = named_rows(source, names, shape.part_rows)
    if GGUF[source.value("general.architecture")]["neighbours"]:
        rows = unpermuted(rows, records)
    said, terms = _options(records, tokenizer, chat), gguf_license(source.value)
    made = provenance(origin, precision.names(), options=said, license=terms)
    return Job(records, rows, precision, section, made)


def checkpoint_job(
    source: str | os.PathLike[str],
    precision: Precision,
    context_tokens: int | None = None,
    tokenizer: bool = True,
    chat: bool = True,
    drop_nfc: bool = False,
) -> Job:
    """The job of a Hugging Face directory or a GGUF file."""
    path = Path(source)
    if path.is_dir():
        return huggingface_job(path, precision, context_tokens, tokenizer, chat, drop_nfc)
    if path.suffix == ".gguf" and path.is_file():
        if drop_nfc:
            raise ColibriError(
                Code.ARGUMENT,
                f"--drop-nfc is for a tokenizer.json; {path} names no normaliser, so there is nothing to drop: "
                "leave the option out",
            )
        return gguf_job(path, precision, context_tokens, tokenizer, chat)
    if path.exists():
        raise ColibriError(
            Code.ARGUMENT,
            f"{path} is neither a directory with config.json nor a .gguf file; give one of them "
            "(of a checkpoint the folder, not a file in it)",
        )
    raise ColibriError(
        Code.OPEN, f"{path}: no such file or directory; nothing is downloaded: give a path on this machine"
    )


def convert(
    source: str | os.PathLike[str],
    output: str | os.PathLike[str],
    precision: Precision | None = None,
    context_tokens: int | None = None,
    tokenizer: bool = True,
    chat: bool = True,
    threads: int = 0,
    quiet: bool = False,
) -> Report:
    """Convert a Hugging Face directory or a GGUF file to `output`; `colibri.recipe` has recipes."""
    path, output = Path(source), Path(output)
    refuse_output(output, [item for item in path.iterdir() if item.is_file()] if path.is_dir() else [path])
    job = checkpoint_job(path, precision or Precision(), context_tokens, tokenizer, chat)
    return run_job(job, output, threads, quiet)
