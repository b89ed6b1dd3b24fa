# SPDX-License-Identifier: MIT
"""What `colibri inspect` shows of a file, as text or as JSON. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from colibri._spec import DType, Scope
from colibri.format import ModelFile, TensorEntry
from colibri.plan import MemoryPlan, PlanOptions, plan_file


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


def as_json(model: ModelFile, options: PlanOptions) -> dict[str, Any]:
    """Everything the file says, for programs."""
    total, active = parameter_count(model)
    return {
        "file": {
            "bytes": model.file_bytes,
            "version": ".".join(map(str, model.version)),
            "root": model.root.hex(),
            "required_features": model.required_features,
            "optional_features": model.optional_features,
        },
        "parameters": {"total": total, "active": active},
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
        "provenance": model.provenance(),
        "plan": asdict(plan_file(model, options)),
    }


def _size(count: int) -> str:
    return f"{count:>14,}"


def _tensor_lines(model: ModelFile) -> Iterator[str]:
    """Tensors as a tree; layers that are equal to the one before are folded."""
    groups: dict[tuple[Scope, int | None], list[TensorEntry]] = {}
    for tensor in model.tensors:
        groups.setdefault((tensor.scope, tensor.layer), []).append(tensor)
    shown: list[tuple[str, list[str]]] = []
    for (scope, layer), tensors in groups.items():
        lines = [
            f"    {t.role.name.lower():<22} {t.dtype.name.lower():<5} {t.rows:>7} x {t.columns:<7}{_size(t.size)}"
            for t in tensors
        ]
        experts = 0 if scope == Scope.TRUNK or layer is None else model.records.layers[layer].experts
        name = "global" if layer is None else f"layer {layer}"
        if experts:
            name += f", each of {experts} experts"
        if shown and layer is not None and shown[-1][1] == lines:
            first = shown[-1][0].split(" .. ")[0]
            shown[-1] = (f"{first} .. {name}", lines)
        else:
            shown.append((name, lines))
    for name, lines in shown:
        yield f"  {name}"
        yield from lines


def _plan_lines(plan: MemoryPlan) -> Iterator[str]:
    yield (
        f"memory plan: context {plan.context_tokens}, batch {plan.batch_tokens}, threads {plan.threads}, "
        f"KV cache {plan.kv}"
    )
    slots = f", {plan.expert_slots} of {plan.max_expert_slots} expert slots" if plan.expert_slots else ""
    yield f"  residency {plan.residency}{slots}"
    for name, size in plan.rows():
        yield f"  {name:<22}{_size(size)}"


def _printable(value: object) -> str:
    """Text of a stranger's file for a terminal: control characters and half surrogate pairs are escaped."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in str(value)
    )


def as_text(model: ModelFile, options: PlanOptions) -> Iterator[str]:
    """The same for people, line by line."""
    block = model.records.model
    total, active = parameter_count(model)
    yield f"{model.path.name}: {model.file_bytes:,} bytes, format {model.version[0]}.{model.version[1]}"
    yield f"root {model.root.hex()}"
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
            parts.append(f"{type(mixer).__name__.removesuffix('Block').lower()} of {getattr(mixer, 'heads', 0)} heads")
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
        yield f"  {section.kind.name.lower():<22}{_size(section.size)}  at {section.offset}"
    yield "tensors:"
    yield from _tensor_lines(model)
    yield "bytes by dtype:"
    for dtype, size in sorted(dtype_bytes(model).items()):
        yield f"  {dtype.name.lower():<22}{_size(size)}"
    yield from _plan_lines(plan_file(model, options))
    yield "provenance:"
    for key, value in model.provenance().items():
        if isinstance(value, dict):
            for name, item in value.items():
                text = str(item).split("\n", 1)[0].strip() if name != "text" else f"{len(str(item))} characters"
                yield f"  {_printable(key)}.{_printable(name)}: {_printable(text)}"
        else:
            yield f"  {_printable(key)}: {_printable(value)}"
