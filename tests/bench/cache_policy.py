# SPDX-License-Identifier: MIT
"""Which expert leaves when one must come: replacement policies on routing traces (`make bench-cache`).

    python tests/bench/cache_policy.py [--models FOLDER] [--program test_cache] [--quick]

Every policy is played over the same traces as the streaming mode plays them: in a layer's turn the
experts that are there are pinned first, then the missing ones take slots one by one. `engine` is what
the C code does (tests/unit/test_cache_policy.py compares it with `Learned`, hit by hit); `opt` knows
the future (Belady). Printed is the share of needed experts that were there, in percent.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from colibri.traces import Draws, Trace, record, synthetic, write_trace

REPOSITORY = Path(__file__).resolve().parents[2]
PERCENTS = (5, 10, 25, 50, 75)
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# --------------------------------------------------------------------------- policies


class Policy:
    """Bookkeeping that all share: what is in a slot, what is pinned, and the least valuable goes."""

    def __init__(self, trace: Trace, slots: int) -> None:
        self.layers, self.experts, self.slots = trace.layers, trace.experts, slots
        self.size = trace.layers * trace.experts
        self.present = np.zeros(self.size, dtype=bool)
        self.pinned = np.zeros(self.size, dtype=bool)
        self.layer_of: Ints = np.arange(self.size, dtype=np.int64) // trace.experts
        self.filled = 0
        turns = np.arange(trace.layers, dtype=np.int64)
        self.distances: list[Ints] = [
            np.repeat((turns - layer - 1) % trace.layers, trace.experts) for layer in range(trace.layers)
        ]

    def step(self) -> None:
        """A batch begins."""

    def used(self, key: int) -> None:
        """An expert is needed now."""

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert while `layer` has its turn: the lowest leaves, the first one of equals."""
        raise AssertionError(f"{type(self).__name__} of {self.layers} layers has no value for layer {layer}")

    def distance(self, layer: int) -> Ints:
        """Turns until the layer of an expert comes, from the end of this turn: 0 is the next layer."""
        return self.distances[layer]

    def victim(self, layer: int) -> int | None:
        """The expert that leaves, or None when all are pinned."""
        there = np.flatnonzero(self.present & ~self.pinned)
        return int(there[self.value(layer)[there].argmin()]) if len(there) else None

    def turn(self, layer: int, ids: Iterable[int]) -> int:
        """One layer's turn; the hits."""
        keys = [layer * self.experts + expert for expert in ids]
        held = [key for key in keys if self.present[key]]
        missing = [key for key in keys if not self.present[key]]
        for key in held:
            self.pinned[key] = True
            self.used(key)
        hits = len(held)
        for key in missing:
            if self.filled < self.slots:
                self.filled += 1
            else:
                victim = self.victim(layer)
                while victim is None:
                    self.pinned[held.pop(0)] = False
                    victim = self.victim(layer)
                self.present[victim] = False
            self.present[key] = self.pinned[key] = True
            held.append(key)
            self.used(key)
        self.pinned[held] = False
        return hits

    def play(self, trace: Trace) -> int:
        """Hits over a trace."""
        hits = 0
        for step in trace.steps:
            self.step()
            hits += sum(self.turn(layer, ids) for layer, ids in enumerate(step))
        return hits


class Lru(Policy):
    """Least recently used, over all layers."""

    def __init__(self, trace: Trace, slots: int) -> None:
        super().__init__(trace, slots)
        self.clock = 0
        self.last: Ints = np.zeros(self.size, dtype=np.int64)

    def used(self, key: int) -> None:
        """An expert is needed now."""
        self.clock += 1
        self.last[key] = self.clock

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert; the lowest leaves."""
        return self.last


class Lfu(Lru):
    """Least frequently used, nothing forgotten; the older one of equals."""

    def __init__(self, trace: Trace, slots: int) -> None:
        super().__init__(trace, slots)
        self.uses: Ints = np.zeros(self.size, dtype=np.int64)

    def used(self, key: int) -> None:
        """An expert is needed now."""
        super().used(key)
        self.uses[key] += 1

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert; the lowest leaves."""
        return self.uses * 1_000_000 + self.last


class RandomVictim(Policy):
    """Any one."""

    def __init__(self, trace: Trace, slots: int) -> None:
        super().__init__(trace, slots)
        self.draws = Draws(7)

    def victim(self, layer: int) -> int | None:
        """The expert that leaves."""
        free = np.flatnonzero(self.present & ~self.pinned)
        return int(free[self.draws.below(len(free))]) if len(free) else None


class FarthestTurn(Lru):
    """The layer whose turn is farthest away, in it the least recently used: no order of use over layers."""

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert; the lowest leaves."""
        return self.last - self.distance(layer) * 1_000_000


class Quota(Lru):
    """Each layer has its share of the slots, least recently used in it; who is above its share goes first."""

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert; the lowest leaves."""
        held = np.bincount(self.layer_of[self.present], minlength=self.layers)
        above = (held[self.layer_of] >= -(-self.slots // self.layers)) | (self.layer_of == layer)
        return self.last - np.where(above, 1_000_000_000 + self.distance(layer) * 1_000_000, 0)


class Decayed(Policy):
    """Frequency that is forgotten by turns of the own layer; half of it in 22 turns."""

    shift, fast_weight, distance_share = 5, 0.0, 0.0

    def __init__(self, trace: Trace, slots: int) -> None:
        super().__init__(trace, slots)
        self.rate: Floats = np.zeros(self.size)
        self.fast: Floats = np.zeros(self.size)

    def turn(self, layer: int, ids: Iterable[int]) -> int:
        """One layer's turn; the hits."""
        of_layer = slice(layer * self.experts, (layer + 1) * self.experts)
        self.rate[of_layer] *= 1 - 2.0**-self.shift
        self.fast[of_layer] *= 0.5
        return super().turn(layer, ids)

    def used(self, key: int) -> None:
        """An expert is needed now."""
        self.rate[key] += 2.0**-self.shift
        self.fast[key] += 0.5

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert; the lowest leaves."""
        worth = self.rate + self.fast_weight * self.fast
        distance = self.distance(layer) / self.layers
        return np.asarray(worth * (1 - self.distance_share * distance) - 1e-9 * distance)


class Mixed(Decayed):
    """The same, and being needed at the last turn counts too, and the distance of the layer's turn."""

    fast_weight, distance_share = 0.5, 0.3


class Pinned(Policy):
    """Fixed: most needed over the first half of the trace, as a calibration would know it."""

    def __init__(self, trace: Trace, slots: int) -> None:
        super().__init__(trace, slots)
        self.uses: Ints = np.zeros(self.size, dtype=np.int64)
        for step in trace.steps[: len(trace.steps) // 2]:
            for layer, ids in enumerate(step):
                for expert in ids:
                    self.uses[layer * trace.experts + expert] += 1

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert; the lowest leaves."""
        return self.uses * 1024 - self.distance(layer)


class Learned(Policy):
    """What engine/native/src/expert_cache.c does, with the same integers."""

    one, shift, prior, memory, share = 1 << 24, 5, 8, 1 << 15, 307
    ages, rates = 8, 16

    def __init__(self, trace: Trace, slots: int) -> None:
        super().__init__(trace, slots)
        self.rate: Ints = np.zeros(self.size, dtype=np.int64)
        self.age: Ints = np.full(self.size, 255, dtype=np.int64)
        self.cell: Ints = self.cells(self.age, self.rate)
        self.was: Ints = np.zeros(self.size, dtype=np.int64)
        self.seen: Ints = np.zeros(self.ages * self.rates, dtype=np.int64)
        self.needed: Ints = np.zeros_like(self.seen)
        column = np.arange(self.ages * self.rates, dtype=np.int64) % self.rates
        self.middle: Ints = np.where(column % 2 == 0, 5, 7) << (14 + column // 2)
        self.worth: Ints = np.zeros_like(self.seen)
        self.current: int | None = None
        self.learn()

    def cells(self, age: Ints, rate: Ints) -> Ints:
        """Rows: ages 0, 1, 2, 3-4, 5-8 and so on; columns: rates by half octaves from 2^-8 up."""
        bounds = np.array([1, 2, 3, 5, 9, 17, 33])
        row = np.searchsorted(bounds, age, side="right")
        halves = [(2 + half) << octave for octave in range(15, 24) for half in (0, 1)][1:]
        column = np.minimum(np.searchsorted(np.array(halves), rate, side="right"), self.rates - 1)
        return np.asarray(row * self.rates + column, dtype=np.int64)

    def learn(self) -> None:
        """Chances from what was observed; of much that was, half is forgotten."""
        self.worth = (self.needed * self.one + self.prior * self.middle) // (self.seen + self.prior)
        if int(self.seen.sum()) > self.memory:
            self.needed //= 2
            self.seen //= 2

    def step(self) -> None:
        """A batch begins."""
        self.current = None
        self.learn()

    def begin_turn(self, layer: int) -> None:
        """All experts of the layer grow older."""
        of_layer = slice(layer * self.experts, (layer + 1) * self.experts)
        self.seen += np.bincount(self.cell[of_layer], minlength=len(self.seen))
        self.was[of_layer] = self.cell[of_layer]
        self.rate[of_layer] -= self.rate[of_layer] >> self.shift
        self.age[of_layer] = np.minimum(self.age[of_layer] + 1, 255)
        self.cell[of_layer] = self.cells(self.age[of_layer], self.rate[of_layer])
        self.current = layer

    def used(self, key: int) -> None:
        """An expert is needed now."""
        if self.current != key // self.experts:
            self.begin_turn(key // self.experts)
        self.needed[self.was[key]] += 1
        self.age[key] = 0
        self.rate[key] += self.one >> self.shift
        self.cell[key] = self.cells(self.age[key : key + 1], self.rate[key : key + 1])[0]

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert; the lowest leaves."""
        distance = self.distance(layer)
        worth = self.worth[self.cell] * (1024 - self.share * distance // self.layers)
        return np.asarray(worth * self.layers - distance)


class Opt(Policy):
    """Belady: whose next need is farthest leaves. No policy that does not know the future can do it."""

    def __init__(self, trace: Trace, slots: int) -> None:
        super().__init__(trace, slots)
        self.next: Ints = np.zeros(self.size, dtype=np.int64)
        self.clock = -1
        self.coming: list[dict[int, int]] = []
        following: dict[int, int] = {}
        turns = [(layer, ids) for step in trace.steps for layer, ids in enumerate(step)]
        for at in range(len(turns) - 1, -1, -1):
            layer, ids = turns[at]
            keys = [layer * trace.experts + expert for expert in ids]
            self.coming.append({key: following.get(key, 1 << 40) for key in keys})
            following.update(dict.fromkeys(keys, at))
        self.coming.reverse()

    def turn(self, layer: int, ids: Iterable[int]) -> int:
        """One layer's turn; the hits."""
        self.clock += 1
        return super().turn(layer, ids)

    def used(self, key: int) -> None:
        """An expert is needed now."""
        self.next[key] = self.coming[self.clock][key]

    def value(self, layer: int) -> Floats | Ints:
        """Worth of every expert; the lowest leaves."""
        return -self.next


POLICIES: dict[str, type[Policy]] = {
    "lru": Lru,
    "lfu": Lfu,
    "random": RandomVictim,
    "farthest": FarthestTurn,
    "quota": Quota,
    "decayed": Decayed,
    "mixed": Mixed,
    "pinned": Pinned,
}

# --------------------------------------------------------------------------- traces

PROMPTS = (
    "Once upon a time there was a small bird that lived near the river, and every morning it",
    "The history of the Roman Empire begins with the founding of the city and",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Question: what does a hummingbird eat, and how often must it feed? Answer:",
)


def synthetic_traces(tokens: int) -> list[Trace]:
    """Granite's shape (24 layers of 32, top 8) and Mixtral's (32 of 8, top 2)."""
    granite, mixtral = (24, 32, 8, tokens), (32, 8, 2, 3 * tokens)
    return [
        synthetic("uniform", *granite),
        synthetic("zipf 0.6", *granite, exponent=0.6),
        synthetic("zipf 1.0", *granite, exponent=1.0),
        synthetic("local", *granite, exponent=0.5, repeat_percent=40),
        synthetic("topics", *granite, exponent=0.8, repeat_percent=30, topic_tokens=50),
        synthetic("mixtral-like", *mixtral, exponent=0.6, repeat_percent=30, topic_tokens=200),
    ]


def recorded_traces(folder: Path, tokens: int) -> list[Trace]:
    """Prompts in batches of 32, then decoding, by the C engine: the demo and a tiny model."""
    from colibri.engine import Engine

    found = []
    for name, file in (("demo", "smollm2-moe.colibri"), ("tiny", "tiny.colibri")):
        if (folder / file).is_file():
            with Engine(folder / file, batch_tokens=32, context_tokens=256) as engine:
                prompts = [engine.tokenize(text) for text in PROMPTS]
                found.append(record(engine, name, prompts, tokens, 32))
    return found


# --------------------------------------------------------------------------- the table


def engine_hits(program: Path, trace: Trace, slots: int, folder: Path) -> int:
    """What the C code does with a trace."""
    path = folder / "trace"
    write_trace(path, trace)
    done = subprocess.run([program, "--trace", path, str(slots)], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[0])


def slots_of(trace: Trace, percent: int) -> int:
    """Slots that hold a share of all experts, at least one turn's."""
    return max(trace.top_k, trace.layers * trace.experts * percent // 100)


def table(traces: list[Trace], program: Path | None, say: Callable[[str], None]) -> bool:
    """Print the rows; False when the engine falls below LRU or, where LRU falls to nothing, with it."""
    names = list(POLICIES)
    say("| trace | cached | " + " | ".join(names) + " | engine | opt | of the gap |")
    say("|---|---:|" + "---:|" * (len(names) + 3))
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for trace in traces:
            for percent in PERCENTS:
                slots = slots_of(trace, percent)
                if slots == trace.top_k and percent > PERCENTS[0]:
                    continue
                hits = {name: POLICIES[name](trace, slots).play(trace) for name in names}
                if program is None:
                    engine = Learned(trace, slots).play(trace)
                else:
                    engine = engine_hits(program, trace, slots, Path(folder))
                opt = Opt(trace, slots).play(trace)
                gap = f"{100 * (engine - hits['lru']) / (opt - hits['lru']):.0f} %" if opt > hits["lru"] else "-"
                mark = "*" if slots < trace.layers * trace.top_k else ""
                cells = [f"{100 * n / trace.needs:.1f}" for n in (*hits.values(), engine, opt)]
                say(f"| {trace.name} | {percent} %{mark} | " + " | ".join(cells) + f" | {gap} |")
                good = good and engine >= hits["lru"] - trace.needs // 100
    return good


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, default=REPOSITORY / "build" / "models", help="recorded traces")
    parser.add_argument("--program", type=Path, default=REPOSITORY / "build" / "host" / "test_cache")
    parser.add_argument("--quick", action="store_true", help="short traces")
    args = parser.parse_args()
    tokens = 40 if args.quick else 100
    traces = recorded_traces(args.models, tokens) + synthetic_traces(tokens)
    for trace in traces:
        print(
            f"{trace.name}: {trace.layers} layers of {trace.experts} experts, top {trace.top_k}, "
            f"{len(trace.steps)} steps, {trace.needs:,} needs",
            file=sys.stderr,
        )
    program = args.program if args.program.is_file() else None
    good = table(traces, program, lambda line: print(line, flush=True))
    print("\n* fewer slots than one token needs; engine is " + ("the C code" if program else "its simulation"))
    if not good:
        print("the engine is more than 1 % of all needs below LRU somewhere", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
