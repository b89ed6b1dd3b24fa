# SPDX-License-Identifier: MIT
"""Models larger than memory, start-up, and the tail of token times (make bench-memory).

    build/venv/bin/python tests/bench/memory.py [start] [capped] [flash] [peer] [tail]

start   resident: peak memory against the file, seconds to the first call, warm page cache
capped  shape b in a control group of 1, 1.5 and 2 GiB: peak against the plan, page faults, OOM kills
flash   the same with storage limited to 1 GiB/s: share of that, bytes read against misses
peer    the same cap, storage as it is, against llama.cpp's mmap with a read-ahead of 8 MB and 128 KB
tail    p99 over p50 of a token against work of a fixed size between the tokens

Needs root, for control groups and for the read-ahead. Files are dropped from the page cache before
each command, so that every page is charged to the group that uses it. Where the disk is slower than
the rate that is asked for, the files of the streaming parts are put on a disk in memory.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cgroups import Group, GroupError, ReadAhead
from isolation import CommandError, evict, read_whole, run
from peer import Peer, PeerError, wanted
from ramdisk import RamDisk, RamDiskError, direct_rate
from results import Results, figure, options, spread
from shapes import SHAPES, colibri_file, gguf_file

GIB = 1 << 30
PARTS = ("start", "capped", "flash", "peer", "tail")
CAPS = {"1 GiB": GIB, "1.5 GiB": 3 * GIB // 2, "2 GiB": 2 * GIB}
STREAM = ["--residency", "stream"]


class Bench:
    """What all parts need."""

    def __init__(self, arguments: Any, stack: ExitStack) -> None:
        self.arguments = arguments
        self.results = Results(arguments.results, arguments.again)
        self.shape: str = arguments.shape
        self._stack = stack
        self._disk: RamDisk | None = None
        self._storage = ""

    def stored(self, *files: Path) -> list[Path]:
        """The files where their reads are fast enough: where they are, or on a disk in memory."""
        if not self._storage:
            rate = direct_rate(files[0])
            fast = rate > 1.2 * self.arguments.rate
            choice = self.arguments.storage
            self._storage = ("disk" if fast else "ram") if choice == "auto" else choice
            print(f"memory: the disk reads {rate / 1e9:.2f} GB/s; streaming from {self._storage}", flush=True)
        if self._storage == "disk":
            return list(files)
        if self._disk is None:
            both = [colibri_file(self.shape), *([] if self.arguments.no_peer else [gguf_file(self.shape)])]
            self._disk = self._stack.enter_context(RamDisk(both))
        return [self._disk.path(file) for file in files]

    @property
    def storage(self) -> str:
        """For notes."""
        return {"ram": "disk in memory", "disk": "the machine's disk", "": ""}[self._storage]

    def ours(self, model: Path, *options: str, group: Group | None = None) -> dict[str, Any]:
        """One run of colibrictl bench, with the whole time it took."""
        command = [str(self.arguments.colibrictl), "bench", str(model), "--json", *options]
        begin = time.monotonic()
        result: dict[str, Any] = json.loads(run(command, group))
        result["seconds"] = time.monotonic() - begin
        return result

    def put(self, name: str, row: dict[str, Any]) -> None:
        """A row of the table of this program."""
        self.results.put("memory", name, row)

    def wanted(self, name: str) -> bool:
        """Whether a row is still to be measured."""
        return self.results.wanted("memory", name)


# --------------------------------------------------------------------------- resident


def start(bench: Bench) -> None:
    """Goals P4 and P5."""
    for name, goal_ms in (("a", 50), ("b", 100)):
        rows = [f"open {name}, warm page cache", f"peak {name}, resident", f"anonymous {name}, resident"]
        if not any(bench.wanted(row) for row in rows):
            continue
        model = colibri_file(name)
        read_whole(model)
        options = ["--rounds", "1", "--tokens", "8", "--prompt", "64", "--context", "512"]
        runs = [bench.ours(model, *options) for _ in range(5)]
        best = min(runs, key=lambda result: float(result["open_ms"]))
        peer: dict[str, Any] = {}
        if not bench.arguments.no_peer:
            read_whole(gguf_file(name))
            with Peer(gguf_file(name), context=512) as process:
                process.ask(op="decode", tokens=2, threads=1)
                peer = {**process.ask(op="status"), "load_ms": 1e3 * process.load_seconds}
        spent = [result["open_ms"] for result in runs]
        row = {"goal": goal_ms, "ours": best["open_ms"], "peer": peer.get("load_ms"), "unit": "ms"}
        bench.put(rows[0], {**row, "spread": spread(spent), "samples": {"ours": spent}})
        ratio = (best["vmhwm_bytes"] - best["kv_bytes"]) / best["file_bytes"]
        # The peer's KV cache has the same size: f16, as many positions.
        other = (peer["VmHWM"] - best["kv_bytes"]) / gguf_file(name).stat().st_size if peer else None
        row = {"goal": 1.05, "ours": ratio, "peer": other, "unit": "of the file, without the KV cache"}
        bench.put(rows[1], {**row, "note": f"KV cache {figure(best['kv_bytes'] / 1e6)} MB"})
        anonymous = (best["rss_anon_bytes"] - best["kv_bytes"]) / (1 << 20)
        bench.put(rows[2], {"goal": 64, "ours": anonymous, "unit": "MiB besides KV"})


# --------------------------------------------------------------------------- streaming


def stream(bench: Bench, cap: int, tokens: int, rate: int = 0, *options: str) -> dict[str, Any]:
    """Run shape b in a group of `cap` bytes; what the group saw beside what the program says."""
    (model,) = bench.stored(colibri_file(bench.shape))
    evict(model)
    with Group(memory_bytes=cap, read_bytes_per_s=rate, device_of=model) as group:
        result = bench.ours(
            model, *STREAM, "--budget", str(cap), "--tokens", str(tokens), "--warm", "16", "--rounds", "1",
            "--context", "512", *options, group=group,
        )  # fmt: skip
        result["group_peak_bytes"] = group.peak_bytes()
        result["oom_kills"] = group.oom_kills()
        result["group_read_bytes"] = group.read_bytes()
        result["group_usage"] = group.usage()
    result["tok_s"] = 1e3 / result["token_ms"]["mean"]
    total = result["hits"] + result["misses"]
    result["hit_rate"] = result["hits"] / total if total else 0.0
    result["needed"] = result["misses"] + result["prefetch_hits"]  # a read ahead that was right counts as a hit
    result["extent_bytes"] = result["read_bytes"] / max(1, result["reads"])
    return result


def capped(bench: Bench) -> None:
    """The plan holds, and nothing else happens in steady state."""
    for title, cap in CAPS.items():
        name = f"{bench.shape} in {title}: peak"
        if not bench.wanted(name):
            continue
        tokens = bench.arguments.tokens
        result = stream(bench, cap, tokens)
        peak = max(result["vmhwm_bytes"], result["group_peak_bytes"])
        note = (
            f"{tokens} tokens; VmHWM {figure(result['vmhwm_bytes'])}, group {figure(result['group_peak_bytes'])}; "
            f"{result['oom_kills']} OOM kills, {result['major_faults']} major and {result['minor_faults']} minor "
            f"faults; {result['expert_slots']} slots, hit rate {result['hit_rate']:.3f}, {result['tok_s']:.2f} tok/s, "
            f"{bench.storage}"
        )
        row = {"goal": result["plan_bytes"], "ours": peak, "unit": "bytes", "note": note, "detail": result}
        bench.put(name, row)


def flash(bench: Bench) -> None:
    """Share of a known storage bandwidth that arrives in slots."""
    rate = bench.arguments.rate
    for title, cap in CAPS.items():
        name = f"{bench.shape} in {title}, storage {rate / GIB:.2g} GiB/s"
        if not bench.wanted(f"{name}: share of the bound"):
            continue
        result = stream(bench, cap, bench.arguments.flash_tokens, rate)
        seconds = result["tokens"] * result["token_ms"]["mean"] / 1e3
        bound = rate / (result["needed"] * result["extent_bytes"] / result["tokens"])
        note = (
            f"{result['tok_s']:.2f} tok/s, bound {bound:.2f}; hit rate {result['hit_rate']:.3f}, "
            f"{result['expert_slots']} slots, {result['reads']} reads of {figure(result['extent_bytes'])} bytes, "
            f"storage busy {result['read_bytes'] / rate / seconds:.3f}; {bench.storage}"
        )
        row = {"goal": 0.95, "ours": result["tok_s"] / bound, "unit": "of the flash bound", "note": note}
        bench.put(f"{name}: share of the bound", {**row, "detail": result})
        ratio = result["read_bytes"] / (result["needed"] * result["extent_bytes"])
        bench.put(f"{name}: bytes read", {"goal": 1.02, "ours": ratio, "unit": "of the misses"})


def peer(bench: Bench) -> None:
    """Same cap, same device, storage as fast as it is."""
    cap = CAPS["1.5 GiB"]
    for kib, goal in ((8192, 8.0), (128, 1.8)):
        name = f"{bench.shape} in 1.5 GiB against mmap, read-ahead {kib} KiB"
        if not bench.wanted(name):
            continue
        ours: list[float] = []
        theirs: list[float] = []
        detail: list[dict[str, Any]] = []
        (file,) = bench.stored(gguf_file(bench.shape))
        with ReadAhead(file, kib):
            for _ in range(bench.arguments.pairs):
                ours.append(stream(bench, cap, bench.arguments.flash_tokens)["tok_s"])
                evict(file)
                with Group(memory_bytes=cap, device_of=file) as group:
                    with Peer(file, repack=False, context=512, group=group) as process:
                        before = group.read_bytes()
                        times = process.ask(op="decode", tokens=bench.arguments.peer_tokens, threads=2, warm=2)["times"]
                        read = group.read_bytes() - before
                        detail.append({**process.ask(op="status"), "read_bytes": read, "times": times})
                    theirs.append(len(times) / sum(times))
        per_token = detail[-1]["read_bytes"] / (bench.arguments.peer_tokens + 2)
        row = {
            "goal": goal,
            "ours": max(ours),
            "peer": max(theirs),
            "ratio": sorted(a / b for a, b in zip(ours, theirs, strict=True))[len(ours) // 2],
            "unit": "tok/s",
            "note": f"the peer read {figure(per_token / 1e6)} MB per token; {bench.storage}",
            "samples": {"ours": ours, "peer": theirs},
            "detail": detail,
        }
        bench.put(name, row)


# --------------------------------------------------------------------------- tail


def tail(bench: Bench) -> None:
    """p99 over p50 of tokens, and of the control loop between them."""

    def put(name: str, goal: float, result: dict[str, Any]) -> None:
        token, control = result["token_ms"], result["control_ms"]
        ours, other = token["p99"] / token["p50"], control["p99"] / control["p50"]
        note = (
            f"token p50 {figure(token['p50'])} p99 {figure(token['p99'])} ms, control p50 {figure(control['p50'])} "
            f"p99 {figure(control['p99'])} ms; {result['minor_faults']}+{result['major_faults']} faults, "
            f"{result['waits']} waits in {result['tokens']} tokens"
        )
        if result["misses"]:
            rate = result["hits"] / (result["hits"] + result["misses"])
            note += f"; hit rate {rate:.3f}, {result['expert_slots']} slots"
        bench.put(name, {"goal": goal, "ours": ours / other, "unit": "of the control's", "note": note})

    for threads in (1, 2):
        name = f"tail a, resident, {threads} thread{'s' * (threads > 1)}"
        if bench.wanted(name):
            model = colibri_file("a")
            read_whole(model)
            options = ["--threads", str(threads), "--tokens", "1000", "--warm", "64", "--rounds", "1", "--control"]
            put(name, 1.3, bench.ours(model, *options))
    name = "tail a, streaming"
    if bench.wanted(name):
        model = colibri_file("a")
        slots = bench.arguments.tail_slots or int(0.85 * SHAPES["a"].layers * SHAPES["a"].experts)
        options = ["--slots", str(slots), "--tokens", "1000", "--warm", "64", "--rounds", "1", "--control"]
        put(name, 3.0, bench.ours(model, *STREAM, *options))


def main() -> int:
    """Command line."""
    parser = options(__doc__ or "")
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=" ".join(PARTS))
    parser.add_argument("--shape", default="b", choices=sorted(SHAPES))
    parser.add_argument("--tokens", type=int, default=2000, help="of the runs whose peak counts")
    parser.add_argument("--flash-tokens", type=int, default=100)
    parser.add_argument("--peer-tokens", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rate", type=int, default=GIB, help="bytes per second of storage")
    parser.add_argument("--storage", default="auto", choices=("auto", "disk", "ram"))
    parser.add_argument("--tail-slots", type=int, default=0)
    arguments = parser.parse_args()
    functions = {"start": start, "capped": capped, "flash": flash, "peer": peer, "tail": tail}
    unknown = [part for part in arguments.parts if part not in functions]
    if unknown:
        parser.error(f"no part {unknown[0]!r}, known: {', '.join(PARTS)}")
    arguments.no_peer = not wanted(arguments.no_peer)
    try:
        with ExitStack() as stack:
            bench = Bench(arguments, stack)
            for part in arguments.parts:
                if not (part == "peer" and arguments.no_peer):
                    functions[part](bench)
    except (GroupError, PeerError, CommandError, RamDiskError) as error:
        print(f"memory: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
