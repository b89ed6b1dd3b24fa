# SPDX-License-Identifier: MIT
"""Leaving experts out (`--expert-prune-ratio`): the ones that a text chose least, or of least norm.

The rule: every layer of E experts loses floor(ratio * E) of them, the lowest ranked; at least top-k
must stay. The others keep their order and get the ids 0, 1, …; the router loses the same rows. Ranks
come from the calibration profile of a file of the same model (`colibri calibrate`), or else from the
sum of squares of an expert's weights. Of equal experts the one of the higher id goes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from colibri._spec import Code, Role, Scope
from colibri.calibration import Profile, moe_layers
from colibri.errors import ColibriError
from colibri.format import TensorEntry
from colibri.job import Job, RowSource
from colibri.layout import F32
from colibri.quantize import part_rows
from colibri.records import encode_records, parse_records, required_tensors
from colibri.writer import Slot

_ROUTER_ROLES = (Role.ROUTER, Role.ROUTER_BIAS, Role.ROUTER_SELECTION_BIAS)


def parse_ratio(text: str) -> Fraction:
    """The ratio exactly as it is written: 0.29 of 100 experts are 29."""
    try:
        ratio = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise ColibriError(Code.ARGUMENT, f"--expert-prune-ratio {text!r}; give a number from 0 to below 1") from error
    if not 0 <= ratio < 1:
        raise ColibriError(Code.ARGUMENT, f"--expert-prune-ratio {text}; must be from 0 to below 1")
    return ratio


def kept_experts(scores: Sequence[float], removed: int) -> list[int]:
    """Ids of the experts that stay, ascending; `scores`: higher is better."""
    ranked = sorted(range(len(scores)), key=lambda expert: (-scores[expert], expert))
    return sorted(ranked[: len(scores) - removed])


def _entries(job: Job, layer: int, scope: Scope) -> Iterator[TensorEntry]:
    shapes = required_tensors(job.records, scope, layer)
    for role, shape in shapes.items():
        yield TensorEntry(
            scope=scope, layer=layer, role=role, dtype=job.precision.choose(scope, layer, role), layout=shape.layout,
            rows=shape.rows, columns=shape.columns, offset=0, size=0,
        )  # fmt: skip


def weight_norms(job: Job, layer: int, experts: int) -> list[float]:
    """Sum of squares of the weights of each expert, in an order that no processor changes."""
    norms = []
    for expert in range(experts):
        sums: list[float] = []
        for entry in _entries(job, layer, Scope.EXPERT):
            step = part_rows(entry.columns)
            for first in range(0, entry.rows, step):
                values = job.rows(Slot(entry, expert), first, min(first + step, entry.rows)).astype(np.float64)
                sums += np.add.reduce(values * values, axis=0).tolist()  # row by row: not pairwise
        norms.append(math.fsum(sums))
    return norms


def _scores(job: Job, profile: Profile | None) -> dict[int, list[float]]:
    layers = moe_layers(job.records)
    if profile is None:
        return {index: weight_norms(job, index, moe.experts) for index, moe in layers}
    counts = dict(zip(profile.layers, profile.counts, strict=True))
    for index, moe in layers:
        found = len(counts.get(index, []))
        if found != moe.experts:
            raise ColibriError(
                Code.ARGUMENT,
                f"the calibration profile has {found} experts in layer {index}, the model {moe.experts}; "
                "calibrate a file of this model without pruning",
            )
    return {index: [float(count) for count in counts[index]] for index, _ in layers}


def selected_rows(rows: RowSource, kept: dict[int, list[int]]) -> RowSource:
    """The rows of the model without the other experts."""

    def chosen(slot: Slot, first: int, end: int) -> F32:
        tensor = slot.tensor
        ids = kept.get(-1 if tensor.layer is None else tensor.layer)
        if ids is None:
            return rows(slot, first, end)
        if slot.expert is not None:
            return rows(replace(slot, expert=ids[slot.expert]), first, end)
        if tensor.role not in _ROUTER_ROLES:
            return rows(slot, first, end)
        if tensor.role == Role.ROUTER:
            whole = rows(replace(slot, tensor=replace(tensor, rows=max(ids) + 1)), 0, max(ids) + 1)
            return np.ascontiguousarray(whole[ids[first:end]])
        whole = rows(replace(slot, tensor=replace(tensor, columns=max(ids) + 1)), 0, 1)
        return np.ascontiguousarray(whole[:, ids])

    return chosen


def selected_importance(
    importance: Callable[[Slot], F32 | None], kept: dict[int, list[int]]
) -> Callable[[Slot], F32 | None]:
    """The importance of the experts that stay: a file has it by the ids of the whole model."""

    def chosen(slot: Slot) -> F32 | None:
        ids = kept.get(-1 if slot.tensor.layer is None else slot.tensor.layer)
        if ids is None or slot.expert is None:
            return importance(slot)
        return importance(replace(slot, expert=ids[slot.expert]))

    return chosen


def prune(job: Job, ratio: Fraction, profile: Profile | None = None) -> list[str]:
    """Leave experts out of a job; the lines that say what was done."""
    if "pruned" in job.provenance:
        raise ColibriError(Code.ARGUMENT, "the recipe leaves experts out already; give the ratio there or as an option")
    removed = {index: math.floor(ratio * moe.experts) for index, moe in moe_layers(job.records)}
    for index, moe in moe_layers(job.records):
        if moe.groups_chosen and removed[index]:
            raise ColibriError(
                Code.UNSUPPORTED,
                f"layer {index} chooses {moe.groups_chosen} of {moe.groups} groups of experts first, and groups of "
                "unequal size cannot be described; convert without --expert-prune-ratio",
            )
        left = moe.experts - removed[index]
        if left < moe.top_k:
            most = Fraction(moe.experts - moe.top_k, moe.experts)
            raise ColibriError(
                Code.ARGUMENT,
                f"--expert-prune-ratio {float(ratio):g} leaves {left} of {moe.experts} experts in layer {index}, "
                f"of which a token uses {moe.top_k}; give at most {float(most):g}",
            )
    scores = _scores(job, profile)
    kept = {index: kept_experts(scores[index], removed[index]) for index in removed}
    for index, moe in moe_layers(job.records):
        moe.experts -= removed[index]
    job.records = parse_records(encode_records(job.records))
    job.rows = selected_rows(job.rows, kept)
    job.importance = selected_importance(job.importance, kept)
    job.kept = kept
    ranked = "calibration counts" if profile is not None else "sum of squares of the weights"
    job.provenance["pruned"] = {"ratio": float(ratio), "ranked_by": ranked, "kept": [kept[i] for i in sorted(kept)]}
    lines = [f"pruning: every layer loses floor({float(ratio):g} x experts), ranked by {ranked}"]
    for index, ids in kept.items():
        if removed[index]:
            lost = sorted(set(range(len(ids) + removed[index])) - set(ids))
            lines.append(f"layer {index}: {len(ids)} experts stay, without {', '.join(map(str, lost))}")
    return lines
