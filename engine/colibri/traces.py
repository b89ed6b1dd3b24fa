# SPDX-License-Identifier: MIT
"""Routing traces: which experts each layer needed, step by step, recorded or made up.

A step is one batch through all layers: one token when decoding, a piece of the prompt before. What
counts for the expert cache is the set of experts that the batch needs in a layer. Standard library
only; everything is deterministic (counter-based noise, integer arithmetic for the draws).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colibri._spec import Code
from colibri.errors import ColibriError

if TYPE_CHECKING:
    from colibri.engine import Engine

Step = list[list[int]]  # [MoE layers][ids needed, ascending]

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Trace:
    """Steps of one run, or of several one after another."""

    name: str
    layers: int  # that have experts
    experts: int
    top_k: int
    steps: list[Step]

    @property
    def needs(self) -> int:
        """Expert uses: what hits and misses add up to."""
        return sum(len(ids) for step in self.steps for ids in step)


class Draws:
    """Uniform integers from a counter: the same on every machine."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, limit: int) -> int:
        """An integer in [0, limit), limit < 2^32 (the bias of limit / 2^32 does not matter here)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ z >> 27) * 0x94D049BB133111EB) & _MASK
        return ((z ^ z >> 31) >> 32) * limit >> 32


def record(engine: Engine, name: str, prompts: Sequence[Sequence[int]], tokens: int, batch: int) -> Trace:
    """Run prompts through the engine, `tokens` greedy ids behind each, and note the routing.

    `batch`: tokens of a prompt step; the engine must have been opened with at least as many.
    """
    if batch < 1 or tokens < 0:
        raise ColibriError(Code.ARGUMENT, f"batch {batch}, tokens {tokens}; give a batch of at least 1 token")
    layers = [i for i in range(engine.info.layers) if engine.expert_counts(i)]
    if not layers:
        raise ColibriError(Code.ARGUMENT, "the model has no experts, so there is nothing to record")
    steps: list[Step] = []
    experts = max(len(engine.expert_counts(i)) for i in layers)
    session = engine.session()
    for prompt in prompts:
        session.reset()
        pieces = [list(prompt[i : i + batch]) for i in range(0, len(prompt), batch)]
        for piece in pieces:
            session.append(piece)
            steps.append([sorted({e for row in session.routing(i) for e in row}) for i in layers])
        for _ in range(tokens):
            session.append([session.sample()])
            steps.append([sorted(session.routing(i)[0]) for i in layers])
    session.close()
    return Trace(name, len(layers), experts, engine.info.top_k, steps)


def zipf_weights(experts: int, exponent: float) -> list[int]:
    """Integer weights ~ 1 / rank^exponent, 2^16 for the first."""
    return [max(1, round(65536 / (rank + 1) ** exponent)) for rank in range(experts)]


def synthetic(
    name: str,
    layers: int,
    experts: int,
    top_k: int,
    tokens: int,
    exponent: float = 0.0,
    repeat_percent: int = 0,
    topic_tokens: int = 0,
    seed: int = 1,
) -> Trace:
    """Made-up decoding: popularity, repetition, and topics.

    exponent: popularity of an expert of a layer ~ 1 / rank^exponent, ranks shuffled per layer.
    repeat_percent: chance that a token takes over a choice of the token before it in that layer.
    topic_tokens: every so many tokens the ranks are shuffled anew (0: never).
    """
    draws = Draws(seed)
    weights = zipf_weights(experts, exponent)
    total = sum(weights)
    orders: list[list[int]] = []
    previous: list[list[int]] = [[] for _ in range(layers)]
    steps: list[Step] = []
    for token in range(tokens):
        if token == 0 or (topic_tokens and token % topic_tokens == 0):
            orders = [_shuffled(experts, draws) for _ in range(layers)]
        step: Step = []
        for layer in range(layers):
            chosen: set[int] = set()
            for e in previous[layer]:
                if draws.below(100) < repeat_percent:
                    chosen.add(e)
            while len(chosen) < top_k:
                chosen.add(orders[layer][_weighted(weights, total, draws)])
            previous[layer] = sorted(chosen)
            step.append(previous[layer])
        steps.append(step)
    return Trace(name, layers, experts, top_k, steps)


def _shuffled(count: int, draws: Draws) -> list[int]:
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = draws.below(i + 1)
        order[i], order[j] = order[j], order[i]
    return order


def _weighted(weights: Sequence[int], total: int, draws: Draws) -> int:
    at = draws.below(total)
    for i, weight in enumerate(weights):
        at -= weight
        if at < 0:
            return i
    return len(weights) - 1


def write_trace(path: Path, trace: Trace) -> None:
    """The text form that the C test reads: a head, then for each layer turn a count and the ids."""
    lines = [f"{trace.layers} {trace.experts} {len(trace.steps)}"]
    lines += [f"{len(ids)} {' '.join(map(str, ids))}" for step in trace.steps for ids in step]
    path.write_text("\n".join(lines) + "\n")
