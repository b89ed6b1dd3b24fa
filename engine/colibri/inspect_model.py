# SPDX-License-Identifier: MIT
"""What `colibri inspect` shows of a file, as text or as JSON. Standard library only.

Both read header, records, directory and the small sections; hashes are shown, not checked against
the weights, and a signature is shown, not verified: that is `colibri verify`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from colibri._spec import Code, DType, Scope, ShortConvBlock, SignatureAlgorithm
from colibri.calibration import Profile
from colibri.errors import ColibriError, printable
from colibri.format import ModelFile, TensorEntry
from colibri.plan import MemoryPlan, PlanOptions, plan_file

SCHEMA = 1  # of the JSON: keys are only added while this stays
_MAX_DEPTH = 32  # of the provenance; what the converter writes has 3
_LONG_TEXT = 160


def _block(block: Any) -> dict[str, Any]:
    """Fields of a block without the reserved one."""
    return {key: value for key, value in asdict(block).items() if key != "reserved"}


def _layer(number: int, model: ModelFile) -> dict[str, Any]:
    layer = model.records.layers[number]
    parts = {"layer": layer.layer, "mixer": layer.mixer, "ffn": layer.ffn, "shared": layer.shared}
    return {name: {"block": type(part).__name__, **_block(part)} for name, part in parts.items() if part is not None}


def _tensor(entry: TensorEntry) -> dict[str, Any]:
    return {
        "scope": entry.scope.name.lower(),
        "layer": entry.layer,
        "role": entry.role.name.lower(),
        "dtype": entry.dtype.name.lower(),
        "layout": entry.layout.name.lower(),
        "rows": entry.rows,
        "columns": entry.columns,
        "offset": entry.offset,
        "size": entry.size,
    }


def parameter_count(model: ModelFile) -> tuple[int, int]:
    """(all weights, weights that one token uses)."""
    total = active = 0
    for tensor in model.tensors:
        count = tensor.rows * tensor.columns
        if tensor.scope == Scope.TRUNK:
            total += count
            active += count
            continue
        ffn: Any = model.records.layers[tensor.layer or 0].ffn
        total += count * ffn.experts
        active += count * ffn.top_k
    return total, active


def dtype_bytes(model: ModelFile) -> dict[DType, int]:
    """Bytes of tensors by dtype, every expert counted."""
    sizes: dict[DType, int] = {}
    for tensor in model.tensors:
        copies = 1 if tensor.scope == Scope.TRUNK else model.records.layers[tensor.layer or 0].experts
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size * copies
    return sizes


def _plain(value: Any, depth: int = 0) -> Any:
    """JSON of a foreign file as JSON that every reader takes: no NaN, no infinity, not too deep."""
    if depth > _MAX_DEPTH:
        raise ColibriError(Code.SECTION, f"the provenance is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _signature(model: ModelFile) -> dict[str, Any] | None:
    """State of the signature; None: the file has none."""
    found = model.signature
    if found is None:
        return None
    golden = found.golden.hex() if any(found.golden) else None
    return {"algorithm": SignatureAlgorithm.ED25519.name.lower(), "key_id": found.key_id.hex(), "golden_sha256": golden}


def _busiest(profile: Profile) -> tuple[float, int, int] | None:
    """(share of the mean, layer, expert) of the expert that was chosen most for its layer."""
    best: tuple[float, int, int] | None = None
    for layer, counts in zip(profile.layers, profile.counts, strict=True):
        for expert, count in enumerate(counts):
            share = count * len(counts) / sum(counts) if count else 0.0
            if count and (best is None or share > best[0]):
                best = (share, layer, expert)
    return best


def _calibration(profile: Profile | None) -> dict[str, Any] | None:
    """Summary and counts of the calibration profile; None: the file has none."""
    if profile is None:
        return None
    busiest = _busiest(profile)
    return {
        "tokens": profile.tokens,
        "layers": [
            {"layer": layer, "counts": list(counts), "unused": sum(1 for count in counts if not count)}
            for layer, counts in zip(profile.layers, profile.counts, strict=True)
        ],
        "followers": sum(len(table) for table in profile.followers),
        "busiest": None
        if busiest is None
        else {"layer": busiest[1], "expert": busiest[2], "of_the_mean": round(busiest[0], 4)},
    }


def as_json(model: ModelFile, options: PlanOptions) -> dict[str, Any]:
    """Everything the file says, for programs."""
    total, active = parameter_count(model)
    return {
        "schema": SCHEMA,
        "file": {
            "bytes": model.file_bytes,
            "version": ".".join(map(str, model.version)),
            "root": model.root.hex(),
            "required_features": model.required_features,
            "optional_features": model.optional_features,
        },
        "signature": _signature(model),
        "calibration": _calibration(model.calibration()),
        "parameters": {"total": total, "active": active},
        "bytes_by_dtype": {dtype.name.lower(): size for dtype, size in sorted(dtype_bytes(model).items())},
        "sections": [
            {"kind": s.kind.name.lower(), "offset": s.offset, "size": s.size, "hash": s.hash.hex()}
            for s in model.sections.values()
        ],
        "model": _block(model.records.model),
        "ropes": [_block(rope) for rope in model.records.ropes],
        "layers": [_layer(i, model) for i in range(len(model.records.layers))],
        "extents": [
            {
                "kind": e.kind.name.lower(),
                "layer": e.layer,
                "expert": e.expert,
                "offset": e.offset,
                "size": e.size,
                "hash": e.hash.hex(),
            }
            for e in model.extents
        ],
        "tensors": [_tensor(t) for t in model.tensors],
        "provenance": _plain(model.provenance()),
        "plan": asdict(plan_file(model, options)),
    }


def _size(count: int) -> str:
    return f"{count:>14,}"


def _tensor_line(t: TensorEntry, indent: str) -> str:
    name = f"{indent}{t.role.name.lower()}"
    kind = f"{t.dtype.name.lower():<5} {t.layout.name.lower():<7}"
    return f"{name:<25}{kind}{t.rows:>7} x {t.columns:<7}{_size(t.size)}"


def _groups(model: ModelFile) -> dict[int | None, list[tuple[str, list[str]]]]:
    """By layer (None: global): what is in it, and the lines of its tensors."""
    groups: dict[int | None, list[tuple[str, list[str]]]] = {}
    tensors: dict[tuple[int | None, Scope], list[str]] = {}
    for t in model.tensors:
        indent = "    " if t.scope == Scope.TRUNK else "      "
        tensors.setdefault((t.layer, t.scope), []).append(_tensor_line(t, indent))
    for (layer, scope), lines in sorted(tensors.items(), key=lambda item: (item[0][0] is not None, item[0])):
        experts = 0 if scope == Scope.TRUNK or layer is None else model.records.layers[layer].experts
        groups.setdefault(layer, []).append((f"each of {experts} experts" if experts else "", lines))
    return groups


def _tensor_lines(model: ModelFile, every: bool) -> Iterator[str]:
    """Tensors as a tree by layer; unless `every`, layers that are equal to the one before are folded."""
    groups = _groups(model)
    layers = list(groups)
    at = 0
    while at < len(layers):
        layer = layers[at]
        last = at
        while not every and layer is not None and last + 1 < len(layers) and groups[layers[last + 1]] == groups[layer]:
            last += 1
        yield "  global" if layer is None else f"  layer {layer}" + (f" .. layer {layers[last]}" if last > at else "")
        for name, lines in groups[layer]:
            if name:
                yield f"    {name}"
            yield from lines
        if every:
            for extent in model.extents:
                if extent.layer == layer:
                    which = "trunk" if extent.expert is None else f"expert {extent.expert}"
                    yield f"    {which:<12} sha256 {extent.hash.hex()} {extent.size:,} bytes at {extent.offset}"
        at = last + 1


def _plan_lines(plan: MemoryPlan) -> Iterator[str]:
    yield (
        f"memory plan: context {plan.context_tokens}, batch {plan.batch_tokens}, threads {plan.threads}, "
        f"KV cache {plan.kv}"
    )
    slots = f", {plan.expert_slots} of {plan.max_expert_slots} expert slots" if plan.expert_slots else ""
    yield f"  residency {plan.residency}{slots}"
    for name, size in plan.rows():
        yield f"  {name:<22}{_size(size)}"


def _state_lines(model: ModelFile) -> Iterator[str]:
    """Signature and calibration in a line each."""
    found = model.signature
    if found is None:
        yield "signature: none"
    else:
        covered = "with its golden results" if any(found.golden) else "without golden results"
        yield f"signature: ed25519, {covered}, key id {found.key_id.hex()} (colibri verify checks it)"
    profile = model.calibration()
    if profile is None:
        yield "calibration: none"
        return
    busiest = _busiest(profile)
    text = "" if busiest is None else f"; busiest: layer {busiest[1]} expert {busiest[2]}, {busiest[0]:.0%} of the mean"
    unused = sum(1 for counts in profile.counts for count in counts if not count)
    total = sum(map(len, profile.counts))
    yield f"calibration: {profile.tokens} tokens, {unused} of {total} experts never chosen{text}"


def _provenance_lines(value: Any, name: str = "") -> Iterator[str]:
    """One line per value; a long text is counted, not shown (`--json` has it)."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _provenance_lines(item, f"{name}.{key}" if name else str(key))
        return
    text = str(value)
    if "\n" in text.strip() or len(text) > _LONG_TEXT:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        text = f"{len(text)} characters: {first[:60]} ..."
    yield f"  {printable(name)}: {printable(text.strip())}"


def as_text(model: ModelFile, options: PlanOptions, every: bool = False) -> Iterator[str]:
    """The same for people, line by line; `every`: all tensors and hashes of all layers."""
    block = model.records.model
    total, active = parameter_count(model)
    yield f"{model.path.name}: {model.file_bytes:,} bytes, format {model.version[0]}.{model.version[1]}"
    yield f"root {model.root.hex()}"
    yield from _state_lines(model)
    yield f"parameters: {total:,}, of which a token uses {active:,}"
    yield (
        f"model: hidden {block.hidden}, vocabulary {block.vocabulary}, layers {block.layers}, "
        f"context {block.context_tokens}, {'tied' if block.tied_head else 'untied'} head"
    )
    kinds: dict[str, int] = {}
    for layer in model.records.layers:
        parts = []
        mixer: Any = layer.mixer
        ffn: Any = layer.ffn
        if mixer is not None:
            taps = isinstance(mixer, ShortConvBlock)
            kind = "short convolution" if taps else type(mixer).__name__.removesuffix("Block").lower()
            parts.append(f"{kind} of {f'{mixer.taps} taps' if taps else f'{mixer.heads} heads'}")
        if layer.experts:
            parts.append(f"{ffn.experts} experts of width {ffn.intermediate}, top {ffn.top_k}")
        elif ffn is not None:
            parts.append(f"dense of width {ffn.intermediate}")
        text = ", ".join(parts)
        kinds[text] = kinds.get(text, 0) + 1
    for text, count in kinds.items():
        yield f"  {count} x {text}"
    yield "sections:"
    for section in model.sections.values():
        digest = f"  sha256 {section.hash.hex()[: None if every else 16]}" if any(section.hash) else ""
        yield f"  {section.kind.name.lower():<22}{_size(section.size)}  at {section.offset}{digest}"
    yield "tensors:"
    yield from _tensor_lines(model, every)
    yield "bytes by dtype:"
    for dtype, size in sorted(dtype_bytes(model).items()):
        yield f"  {dtype.name.lower():<22}{_size(size)}"
    yield from _plan_lines(plan_file(model, options))
    yield "provenance:"
    yield from _provenance_lines(_plain(model.provenance()))
