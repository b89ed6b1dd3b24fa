# SPDX-License-Identifier: MIT
"""Convert a checkpoint with the layers of a 30B model, kill it in the middle, go on, and say what it took.

    python tests/parity/convert_large.py FOLDER [layers …] [--once]

The checkpoint is that of a Qwen3-MoE with 128 experts, hidden 2,048 and 48 layers, of which the first
`layers` are made: a shard per layer, the first with random weights, the others sparse files of zeros, so
it takes 1.2 GB of disk and the result 1.1 GB and 0.34 GB a layer. What grows with the layers is measured
with two numbers of them; 48 are the whole model (18 GB, 20 minutes of a processor a conversion). With
--once the conversion that nobody disturbs, and with it the comparison, is left out; the file is verified
instead. FOLDER is emptied of everything this makes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "vocab_size": 151936,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}
PUBLISHED_LAYERS = 48


def layer_shapes(layer: int) -> dict[str, tuple[int, ...]]:
    """Tensors of one layer."""
    hidden, width, kv, inner = 2048, 4096, 512, 768
    base = f"model.layers.{layer}."
    shapes: dict[str, tuple[int, ...]] = {
        f"{base}input_layernorm.weight": (hidden,),
        f"{base}post_attention_layernorm.weight": (hidden,),
        f"{base}self_attn.q_proj.weight": (width, hidden),
        f"{base}self_attn.k_proj.weight": (kv, hidden),
        f"{base}self_attn.v_proj.weight": (kv, hidden),
        f"{base}self_attn.o_proj.weight": (hidden, width),
        f"{base}self_attn.q_norm.weight": (128,),
        f"{base}self_attn.k_norm.weight": (128,),
        f"{base}mlp.gate.weight": (128, hidden),
    }
    for expert in range(128):
        for name, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            shapes[f"{base}mlp.experts.{expert}.{name}_proj.weight"] = (rows, columns)
    return shapes


def write_shard(path: Path, shapes: dict[str, tuple[int, ...]], seed: int | None) -> int:
    """A safetensors file in bf16: random, or sparse when there is no seed; its number of weights."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        size = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if seed is None:
            file.truncate(8 + len(text) + end)
            return end // 2
        rng = np.random.default_rng(seed)
        for shape in shapes.values():
            values = rng.standard_normal(int(np.prod(shape)), dtype=np.float32) * np.float32(0.02)
            file.write((values.view(np.uint32) >> np.uint32(16)).astype(np.uint16).tobytes())
    return end // 2


def make(folder: Path, layers: int) -> int:
    """The checkpoint; its number of weights."""
    shards = {"trunk.safetensors": {
        "model.embed_tokens.weight": (151936, 2048), "model.norm.weight": (2048,), "lm_head.weight": (151936, 2048),
    }}  # fmt: skip
    shards |= {f"layer-{layer:02}.safetensors": layer_shapes(layer) for layer in range(layers)}
    index = {name: file for file, shapes in shards.items() for name in shapes}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    made = 0
    for file, shapes in shards.items():
        made += write_shard(folder / file, dict(shapes), 1 if file == "layer-00.safetensors" else None)
    return made


def run(folder: Path, output: Path, kill_at: float | None = None) -> dict[str, Any]:
    """A conversion in a process of its own, killed when `output` has that part of its extents, if asked for."""
    command = [sys.executable, "-m", "colibri", "convert", str(folder), "-o", str(output), "--no-tokenizer", "--resume"]
    begin = time.monotonic()
    process = subprocess.Popen([*command, "-q"])
    journal = output.with_name(output.name + ".partial.journal")
    killed = False
    peak = 0
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                peak = max(peak, int(line.split()[1]))
        if kill_at is not None and not killed and journal.exists():
            killed = journal.read_bytes().count(b"\n") >= kill_at
            if killed:
                os.kill(process.pid, signal.SIGKILL)
        time.sleep(0.2)
    return {
        "status": os.waitstatus_to_exitcode(status),
        "seconds": time.monotonic() - begin,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": max(peak, usage.ru_maxrss) / 1024,
    }


def root_of(path: Path) -> str:
    """Root hash of a model, which covers every byte."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "engine"))
    from colibri.format import open_model

    with open_model(path) as model:
        return model.root.hex()


def measure(folder: Path, layers: int, once: bool) -> dict[str, Any]:
    """Make, convert, kill and go on, compare (or, once, verify), remove."""
    weights = make(folder, layers)
    output = folder / "large.colibri"
    runs: dict[str, Any] = {}
    root = None
    try:
        if not once:
            runs["whole"] = run(folder, output)
            assert runs["whole"]["status"] == 0, runs["whole"]
            root = root_of(output)
            output.unlink()
        first = run(folder, output, 1 + 1 + layers + 128 * layers / 2)
        assert first["status"] == -signal.SIGKILL, first
        second = run(folder, output)
        assert second["status"] == 0, second
        size = output.stat().st_size
        if root is None:
            subprocess.run([sys.executable, "-m", "colibri", "verify", str(output)], check=True, stdout=sys.stderr)
        else:
            assert root_of(output) == root, "other bytes after a kill"
    finally:
        for path in folder.glob("*"):
            if path.suffix in (".safetensors", ".json", ".colibri", ".partial", ".journal"):
                path.unlink()
    runs |= {"killed": first, "resumed": second}
    return {"layers": layers, "weights": weights, "file_bytes": size, **runs}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="an empty folder, or one that is not there yet")
    parser.add_argument("layers", type=int, nargs="*", default=[1, 3], help=f"1 to {PUBLISHED_LAYERS} (default: 1 3)")
    parser.add_argument("--once", action="store_true", help="without the conversion that nobody disturbs")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"{folder} is not empty; give a folder of its own", file=sys.stderr)
        return 2
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    found = []
    for layers in arguments.layers:
        found.append(measure(folder, layers, arguments.once))
        print(json.dumps(found[-1]), flush=True)
    if len(found) > 1:
        low, high = found[0], found[-1]
        peaks = [max(part["peak_mib"] for part in row.values() if isinstance(part, dict)) for row in (low, high)]
        each = (peaks[1] - peaks[0]) / (high["layers"] - low["layers"])
        all_layers = peaks[-1] + each * (PUBLISHED_LAYERS - high["layers"])
        print(f"peak {peaks[-1]:.0f} MiB; {PUBLISHED_LAYERS} layers: {all_layers:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
