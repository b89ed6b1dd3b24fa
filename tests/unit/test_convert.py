# SPDX-License-Identifier: MIT
"""Conversion: what is accepted, what is stored, and what is refused by name."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
from colibri._families import FAMILIES
from colibri._spec import (
    Activation,
    AttentionBlock,
    Code,
    DType,
    Family,
    MoeBlock,
    Role,
    RouterNormalise,
    RouterScore,
    Scope,
)
from colibri.cli import main
from colibri.convert import convert
from colibri.errors import ColibriError
from colibri.files import create_temporary, remove_stale, write_file
from colibri.format import ModelFile, open_model
from colibri.gguf_reader import Gguf
from colibri.job import Precision, run_job
from colibri.layout import F32, unpack
from colibri.recipe import load_recipe
from colibri.tokenizer import TokenizerSpec
from safetensors.numpy import save_file

MODELS = Path(__file__).resolve().parents[2] / "configs" / "models"
FLOAT = Precision(DType.F32, DType.F32, DType.F32)
CONFIG: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 48,
    "vocab_size": 61,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 40,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
Weights = dict[str, F32]


def mixtral_weights() -> Weights:
    """Tensors of CONFIG under the names of transformers, all different."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (61, 48),
        "model.norm.weight": (48,),
        "lm_head.weight": (61, 48),
    }
    for layer in range(2):
        base = f"model.layers.{layer}"
        shapes |= {
            f"{base}.input_layernorm.weight": (48,),
            f"{base}.post_attention_layernorm.weight": (48,),
            f"{base}.self_attn.q_proj.weight": (64, 48),
            f"{base}.self_attn.k_proj.weight": (32, 48),
            f"{base}.self_attn.v_proj.weight": (32, 48),
            f"{base}.self_attn.o_proj.weight": (48, 64),
            f"{base}.block_sparse_moe.gate.weight": (3, 48),
        }
        for expert in range(3):
            name = f"{base}.block_sparse_moe.experts.{expert}"
            shapes |= {f"{name}.w1.weight": (40, 48), f"{name}.w2.weight": (48, 40), f"{name}.w3.weight": (40, 48)}
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def checkpoint(folder: Path, weights: Weights | None = None, **config: Any) -> Path:
    """A Hugging Face directory; a config value of ... removes the key."""
    folder.mkdir(parents=True, exist_ok=True)
    merged = {key: value for key, value in {**CONFIG, **config}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(merged))
    save_file(mixtral_weights() if weights is None else weights, folder / "model.safetensors")
    return folder


def converted(source: Path, precision: Precision = FLOAT, **options: Any) -> ModelFile:
    output = source.parent / "out.colibri"
    convert(source, output, precision, tokenizer=False, quiet=True, **options)
    return open_model(output)


def stored(model: ModelFile, role: Role, layer: int | None = None, expert: int | None = None) -> F32:
    entry = model.tensor(role, layer, Scope.TRUNK if expert is None else Scope.EXPERT)
    assert entry is not None
    return unpack(model.tensor_bytes(entry, expert), entry.dtype, entry.layout, entry.rows, entry.columns)


def refusal(source: Path, **options: Any) -> ColibriError:
    output = source.parent / "out.colibri"
    with pytest.raises(ColibriError) as caught:
        convert(source, output, FLOAT, quiet=True, **{"tokenizer": False, **options})
    assert not output.exists()
    return caught.value


# ---- Mixtral ------------------------------------------------------------------------------------


def check_against(model: ModelFile, weights: Weights) -> None:
    """Every tensor of the file is the tensor of the checkpoint, bit by bit."""
    assert np.array_equal(stored(model, Role.EMBEDDING), weights["model.embed_tokens.weight"])
    assert np.array_equal(stored(model, Role.FINAL_NORM)[0], weights["model.norm.weight"])
    for layer in range(2):
        base = f"model.layers.{layer}"
        for role, name in (
            (Role.Q, "self_attn.q_proj"),
            (Role.K, "self_attn.k_proj"),
            (Role.V, "self_attn.v_proj"),
            (Role.O, "self_attn.o_proj"),
            (Role.ROUTER, "block_sparse_moe.gate"),
        ):
            assert np.array_equal(stored(model, role, layer), weights[f"{base}.{name}.weight"]), name
        assert np.array_equal(stored(model, Role.PRE_MIXER_NORM, layer)[0], weights[f"{base}.input_layernorm.weight"])
        assert np.array_equal(
            stored(model, Role.PRE_FFN_NORM, layer)[0], weights[f"{base}.post_attention_layernorm.weight"]
        )
        for expert in range(3):
            for role, name in ((Role.EXPERT_GATE, "w1"), (Role.EXPERT_UP, "w3"), (Role.EXPERT_DOWN, "w2")):
                full = f"{base}.block_sparse_moe.experts.{expert}.{name}.weight"
                assert np.array_equal(stored(model, role, layer, expert), weights[full]), full


def test_every_tensor_of_a_mixtral_checkpoint_is_stored_bit_by_bit(tmp_path: Path) -> None:
    model = converted(checkpoint(tmp_path / "hf"))
    check_against(model, mixtral_weights())
    assert np.array_equal(stored(model, Role.HEAD), mixtral_weights()["lm_head.weight"])
    model.verify()


def test_records_say_what_the_configuration_says(tmp_path: Path) -> None:
    records = converted(checkpoint(tmp_path / "hf", sliding_window=9)).records
    block, rope, layer = records.model, records.ropes[0], records.layers[1]
    assert (block.family, block.hidden, block.vocabulary, block.layers) == (Family.MIXTRAL, 48, 61, 2)
    assert (block.context_tokens, block.tied_head) == (128, 0)
    assert block.norm_eps == float(np.float32(1e-6))
    assert (block.embedding_multiplier, block.logits_multiplier) == (1.0, 1.0)
    assert (rope.pairs, rope.attention_factor) == (8, 1.0)
    assert np.array_equal(rope.inv_freq, (10000.0 ** (-np.arange(0, 16, 2) / 16)).astype(np.float32))
    mixer, moe = layer.mixer, layer.ffn
    assert isinstance(mixer, AttentionBlock)
    assert isinstance(moe, MoeBlock)
    assert (mixer.heads, mixer.kv_heads, mixer.head_dim, mixer.value_dim) == (4, 2, 16, 16)
    assert (mixer.scale, mixer.window_tokens, mixer.rope_table) == (0.25, 9, 0)
    assert (moe.experts, moe.top_k, moe.intermediate, moe.gated) == (3, 2, 40, 1)
    assert (moe.router_score, moe.router_normalise) == (RouterScore.SOFTMAX_ALL, RouterNormalise.SUM)
    assert (moe.activation, moe.routed_scale) == (Activation.SILU, 1.0)


def test_rope_parameters_of_newer_checkpoints_are_read(tmp_path: Path) -> None:
    parameters = {"rope_type": "default", "rope_theta": 500.0}
    model = converted(checkpoint(tmp_path / "hf", rope_theta=..., rope_parameters=parameters))
    assert model.records.ropes[0].inv_freq[1] == float(np.float32(500.0 ** (-1 / 8)))


LINEAR = {"rope_type": "linear", "factor": 4.0}


@pytest.mark.parametrize(
    ("scaling", "parameters", "theta", "factor"),
    [
        (LINEAR, {"rope_type": "default", "rope_theta": 500.0}, 100.0, 4.0),
        ({"rope_type": "default"}, LINEAR, 100.0, 1.0),
        (LINEAR | {"rope_theta": 700.0}, {"rope_theta": 500.0}, 700.0, 4.0),
        ({}, LINEAR | {"rope_theta": 500.0}, 500.0, 4.0),
        ({"rope_type": None, "type": "linear", "factor": 4.0}, None, 100.0, 4.0),
        (None, {"rope_theta": 500.0}, 500.0, 1.0),
        (None, None, 100.0, 1.0),
    ],
)
def test_one_table_of_rope_counts_and_it_is_that_of_transformers(
    tmp_path: Path, scaling: Any, parameters: Any, theta: float, factor: float
) -> None:
    model = converted(
        checkpoint(tmp_path / "hf", rope_theta=100.0, rope_scaling=scaling, rope_parameters=parameters)
    )
    assert model.records.ropes[0].inv_freq[1] == float(np.float32(theta ** (-1 / 8) / factor))


def test_head_dim_follows_from_hidden_where_it_is_absent(tmp_path: Path) -> None:
    weights = mixtral_weights()
    for layer in range(2):
        base = f"model.layers.{layer}.self_attn"
        for name, rows in (("q", 48), ("k", 24), ("v", 24)):
            weights[f"{base}.{name}_proj.weight"] = weights[f"{base}.{name}_proj.weight"][:rows].copy()
        weights[f"{base}.o_proj.weight"] = weights[f"{base}.o_proj.weight"][:, :48].copy()
    model = converted(checkpoint(tmp_path / "hf", weights, head_dim=None))
    mixer = model.records.layers[0].mixer
    assert isinstance(mixer, AttentionBlock)
    assert mixer.head_dim == 12


def test_a_tied_head_is_not_stored_and_may_be_in_the_checkpoint(tmp_path: Path) -> None:
    model = converted(checkpoint(tmp_path / "hf", tie_word_embeddings=True))
    assert model.records.model.tied_head == 1
    assert model.tensor(Role.HEAD) is None
    weights = mixtral_weights()
    del weights["lm_head.weight"]
    assert converted(checkpoint(tmp_path / "hf2", weights, tie_word_embeddings=True)).tensor(Role.HEAD) is None


def test_each_kind_of_matrix_has_the_dtype_that_was_asked_for(tmp_path: Path) -> None:
    precision = Precision.from_names(
        {"experts": "int8", "trunk": "f16", "router": "bf16", "head": "int4", "embeddings": "f32"}
    )
    model = converted(checkpoint(tmp_path / "hf"), precision)
    found = {tensor.role: tensor.dtype for tensor in model.tensors}
    assert {found[role] for role in (Role.EXPERT_GATE, Role.EXPERT_UP, Role.EXPERT_DOWN)} == {DType.INT8}
    assert {found[role] for role in (Role.Q, Role.K, Role.V, Role.O)} == {DType.F16}
    assert (found[Role.ROUTER], found[Role.HEAD], found[Role.EMBEDDING]) == (DType.BF16, DType.INT4, DType.F32)
    assert (found[Role.FINAL_NORM], found[Role.PRE_FFN_NORM]) == (DType.F32, DType.F32)
    default = {tensor.role: tensor.dtype for tensor in converted(tmp_path / "hf", Precision()).tensors}
    assert (default[Role.EXPERT_UP], default[Role.Q], default[Role.HEAD]) == (DType.INT4, DType.INT8, DType.INT8)
    assert default[Role.ROUTER] == DType.F32


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"experts": "int3"}, "experts dtype 'int3', known: int4, int8, f16, bf16, f32"),
        ({"attention": "int4"}, "dtype of 'attention' asked for, known: experts, trunk"),
        ({"int4_method": "best"}, "int4_method 'best', known: mse, absmax"),
    ],
)
def test_dtypes_that_do_not_exist_are_refused(names: dict[str, str], message: str) -> None:
    with pytest.raises(ColibriError, match=message):
        Precision.from_names(names)


def test_the_context_can_be_smaller_and_never_larger(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    assert converted(source, context_tokens=100).records.model.context_tokens == 100
    (tmp_path / "out.colibri").unlink()
    for context in (0, 129):
        error = refusal(source, context_tokens=context)
        assert error.message == f"context of {context} tokens, the checkpoint was trained for 128"


def test_provenance_names_the_files_and_no_path(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    (source / "LICENSE").write_text("terms")
    data = converted(source).provenance()
    assert set(data["source"]["sha256"]) == {"LICENSE", "config.json", "model.safetensors"}
    assert data["source"]["format"] == "safetensors"
    assert data["license"] == {"text": "terms"}
    assert data["options"] == {"context_tokens": 128, "tokenizer": False, "chat": False}
    assert data["dtypes"]["experts"] == "f32"
    assert str(tmp_path) not in json.dumps(data)


def test_equal_checkpoints_give_equal_files(tmp_path: Path) -> None:
    one = converted(checkpoint(tmp_path / "a" / "hf"), Precision())
    two = converted(checkpoint(tmp_path / "b" / "hf"), Precision(), threads=1)
    assert one.path.read_bytes() == two.path.read_bytes()


def test_the_report_has_every_tensor(tmp_path: Path) -> None:
    report = convert(checkpoint(tmp_path / "hf"), tmp_path / "m.colibri", tokenizer=False, quiet=True)
    model = open_model(tmp_path / "m.colibri")
    assert len(report.errors) == 3 + 2 * 7 + 2 * 3 * 3
    assert report.root == model.root.hex()
    dtype, stats = report.errors["layer 1 expert 2 expert_down"]
    assert (dtype, stats.elements) == (DType.INT4, 48 * 40)
    expected = mixtral_weights()["model.layers.1.block_sparse_moe.experts.2.w2.weight"]
    error = np.abs(stored(model, Role.EXPERT_DOWN, 1, 2) - expected).max()
    assert stats.largest == pytest.approx(float(error))
    assert 0.05 < stats.relative < 0.1
    assert report.by_role()["expert_down", DType.INT4][0] == 6
    assert any("expert_down" in line and "int4" in line for line in report.lines())


# ---- other containers of the same weights -------------------------------------------------------


def torch_checkpoint(folder: Path, shards: int = 1, zipped: bool = True) -> Path:
    """CONFIG with its weights as pytorch_model.bin, or in shards with an index."""
    import torch

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {name: torch.from_numpy(array) for name, array in mixtral_weights().items()}
    index: dict[str, str] = {}
    for i in range(shards):
        name = "pytorch_model.bin" if shards == 1 else f"pytorch_model-{i:05}-of-{shards:05}.bin"
        part = dict(list(tensors.items())[i::shards])
        torch.save(part, folder / name, _use_new_zipfile_serialization=zipped)
        index |= dict.fromkeys(part, name)
    if shards > 1:
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_weights_give_the_tensors_of_safetensors(shards: int, zipped: bool, tmp_path: Path) -> None:
    model = converted(torch_checkpoint(tmp_path / "hf", shards, zipped))
    check_against(model, mixtral_weights())
    data = model.provenance()["source"]
    assert data["format"] == "torch"
    assert len(data["sha256"]) == 1 + shards + (shards > 1)


def test_safetensors_are_preferred_to_pickles(tmp_path: Path) -> None:
    source = torch_checkpoint(tmp_path / "hf")
    save_file(mixtral_weights(), source / "model.safetensors")
    (source / "pytorch_model.bin").write_bytes(b"not read")
    assert converted(source).provenance()["source"]["format"] == "safetensors"


def test_a_folder_without_weights_says_what_is_missing(tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    (source / "model.safetensors").unlink()
    error = refusal(source)
    assert "has neither model.safetensors nor pytorch_model.bin, nor an index of one" in error.message
    assert error.code == Code.OPEN


def test_a_pickle_that_is_no_state_dict_ends_with_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = torch_checkpoint(tmp_path / "hf")
    (source / "pytorch_model.bin").write_bytes(b"\x80\x02cos\nsystem\n(tR.")
    assert main(["convert", str(source), "-o", str(tmp_path / "m.colibri"), "-q", "--no-tokenizer"]) == 3
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "colibri: use state_dict only: pytorch_model.bin holds the name os.system; save model.state_dict()\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_exit_codes_tell_a_wrong_command_from_a_wrong_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def code(source: Path) -> int:
        return main(["convert", str(source), "-o", str(tmp_path / "m.colibri"), "-q", "--no-tokenizer"])

    assert code(checkpoint(tmp_path / "good")) == 0
    assert code(tmp_path / "none") == 1
    assert code(checkpoint(tmp_path / "config", hidden_size="48")) == 2
    assert code(checkpoint(tmp_path / "family", architectures=["LlamaForCausalLM"])) == 3
    broken = checkpoint(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\xff" * 100)
    assert code(broken) == 3
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + b"\xff" * 100)
    assert code(tmp_path / "m.gguf") == 3
    capsys.readouterr()


# ---- whole or not at all ------------------------------------------------------------------------


def command(source: Path, output: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "colibri", "convert", str(source), "-o", str(output), "-q", *more]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(MODELS.parents[1] / "engine")}


def test_the_number_of_threads_does_not_change_a_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.job.part_rows", lambda columns: 8)  # many parts in flight
    files = []
    for threads in (1, 2, 3, 8):
        run_job(load_recipe(MODELS / "tiny.toml"), tmp_path / "m.colibri", threads, quiet=True)
        files.append((tmp_path / "m.colibri").read_bytes())
    monkeypatch.undo()
    run_job(load_recipe(MODELS / "tiny.toml"), tmp_path / "m.colibri", 1, quiet=True)
    assert set(files) == {(tmp_path / "m.colibri").read_bytes()}


# Runs a conversion again and again, each in a process of its own that kills itself around one of the
# system calls that make the file: at the N-th, before it (0) or after it (1). Prints how each ended.
KILLED = """
import hashlib, json, os, random, signal, sys
from pathlib import Path
import colibri.convert, colibri.recipe
from colibri.cli import main

output, arguments = Path(sys.argv[1]), ["convert", sys.argv[2], "-o", sys.argv[1], "-q", "-j", "1"]

def convert(moment, after):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = moment

    def dying(call):
        def wrapper(*arguments, **named):
            nonlocal left
            left -= 1
            if left < 0 and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*arguments, **named)
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapper

    for name in ("open", "ftruncate", "pwrite", "fsync", "replace", "unlink", "close"):
        setattr(os, name, dying(getattr(os, name)))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    main(arguments)
    os._exit(min(moment - left, 250) if moment >= 10 ** 6 else 0)  # calls that there were

calls = convert(10 ** 6, 0)
dice = random.Random(1)
moments = [*range(6), *(dice.randrange(6, calls - 8) for _ in range(14)), *range(calls - 8, calls)]
rounds = []
for i, moment in enumerate(moments):
    output.unlink(missing_ok=True)
    if i % 3:
        output.write_bytes(b"an old file")
    status = convert(moment, i % 2)
    found = hashlib.sha256(output.read_bytes()).hexdigest() if output.exists() else None
    others = [path.name for path in output.parent.iterdir() if path != output]
    rounds.append([moment, status, bool(i % 3), found, others])
print(json.dumps([calls, rounds]))
"""


def test_a_killed_conversion_leaves_the_old_file_or_none_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    source, output = MODELS / "tiny-f32.toml", tmp_path / "m.colibri"
    run_job(load_recipe(source), output, 1, quiet=True)
    digest = hashlib.sha256(output.read_bytes()).hexdigest()
    old = hashlib.sha256(b"an old file").hexdigest()
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(output), str(source)],
        env=environment(), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    calls, rounds = json.loads(done.stdout)
    assert 30 < calls < 250
    assert len(rounds) == 28
    ends, killed = set(), 0
    for moment, status, was_there, found, others in rounds:
        assert status in (0, -signal.SIGKILL), moment
        killed += status != 0
        assert found in ((digest, old if was_there else None) if status else (digest,)), moment
        assert len(others) <= 1, moment  # each run removes what the one before left
        ends.add((found == digest, bool(others)))
    assert killed >= 22
    assert ends >= {(False, True), (False, False), (True, False)}
    run_job(load_recipe(source), output, 1, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m.colibri"]


def test_conversions_killed_at_random_times_leave_the_old_file(tmp_path: Path) -> None:
    text = (MODELS / "tiny.toml").read_text().replace("hidden = 80", "hidden = 512").replace("layers = 3", "layers = 9")
    (tmp_path / "big.toml").write_text(text.replace("intermediate = 104", "intermediate = 1024"))
    output = tmp_path / "m.colibri"
    output.write_bytes(b"an old file")
    for delay in np.random.default_rng(2).uniform(0, 0.4, 6):
        process = subprocess.Popen(
            command(tmp_path / "big.toml", output), env=environment(),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        deadline = time.monotonic() + 60
        while process.poll() is None and not list(tmp_path.glob(".m.colibri.*.tmp")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(delay)
        process.kill()
        process.wait()
        assert process.returncode == -signal.SIGKILL, "the conversion is too short to be killed"
        assert output.read_bytes() == b"an old file"
        # Each run removes what the one before left, before it has a file of its own: one leftover at most.
        assert len(list(tmp_path.iterdir())) <= 3


def test_temporary_files_of_others_stay(tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    stale = tmp_path / ".m.colibri.0123456789abcdef.tmp"
    kept = [
        tmp_path / name
        for name in (".m.colibri.0123456789abcde.tmp", ".n.colibri.0123456789abcdef.tmp", ".m.colibri.tmp", "m.tmp")
    ]
    for path in (stale, *kept):
        path.write_bytes(b"x")
    living, path = create_temporary(output)  # as a run that is at work
    link = tmp_path / ".m.colibri.aaaaaaaaaaaaaaaa.tmp"
    link.symlink_to(kept[0])
    os.mkfifo(tmp_path / ".m.colibri.bbbbbbbbbbbbbbbb.tmp")
    try:
        run_job(load_recipe(MODELS / "tiny.toml"), output, quiet=True)
        assert path.exists()
        assert not stale.exists()
        assert all(other.exists() for other in kept)
        assert link.is_symlink()
    finally:
        os.close(living)
    remove_stale(output)
    assert not path.exists()


def test_two_conversions_to_one_name_do_not_disturb_each_other(tmp_path: Path) -> None:
    output = tmp_path / "m.colibri"
    processes = [
        subprocess.Popen(command(MODELS / f"{name}.toml", output), env=environment(), stderr=subprocess.PIPE)
        for name in ("tiny", "tiny-f32", "tiny")
    ]
    for process in processes:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    open_model(output).verify()
    assert [path.name for path in tmp_path.iterdir()] == ["m.colibri"]


def failing(monkeypatch: pytest.MonkeyPatch, call: str, number: int, after: int = 0) -> None:
    """The system call fails, from its `after`-th use on."""
    real = getattr(os, call)
    left = after

    def fails(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            return real(*arguments, **named)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fails)


@pytest.mark.parametrize(
    ("call", "number", "after", "code", "message"),
    [
        ("pwrite", errno.ENOSPC, 0, Code.IO, "No space left on device"),
        ("pwrite", errno.ENOSPC, 5, Code.IO, "No space left on device"),
        ("pwrite", errno.EDQUOT, 5, Code.IO, "Disk quota exceeded"),
        ("ftruncate", errno.EFBIG, 0, Code.OPEN, "File too large"),
        ("fsync", errno.EIO, 0, Code.IO, "Input/output error"),
        ("replace", errno.EROFS, 0, Code.IO, "Read-only file system"),
    ],
)
def test_a_full_or_broken_disk_is_an_error_that_names_the_file(
    call: str, number: int, after: int, code: Code, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load_recipe(MODELS / "tiny.toml")
    output = tmp_path / "m.colibri"
    output.write_bytes(b"an old file")
    failing(monkeypatch, call, number, after)
    with pytest.raises(ColibriError) as caught:
        run_job(job, output, 1, quiet=True)
    monkeypatch.undo()
    assert str(caught.value).startswith(f"cannot write {output}: {message}")
    assert caught.value.code == code
    assert output.read_bytes() == b"an old file"
    assert [path.name for path in tmp_path.iterdir()] == ["m.colibri"]


def test_a_limit_of_the_file_size_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    done = subprocess.run(
        command(MODELS / "tiny.toml", tmp_path / "m.colibri"),
        env=environment(), capture_output=True, text=True, check=False, timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"colibri: cannot write {tmp_path}/m.colibri: File too large; raise the limit of file sizes (ulimit -f), or "
        "give a path on another file system\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_file() -> None:
    job = load_recipe(MODELS / "tiny.toml")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "m.colibri").write_bytes(b"an old file")
        folder.chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)  # permissions do not bind root
        try:
            with pytest.raises(ColibriError, match=r"m\.colibri: Permission denied") as caught:
                run_job(job, folder / "m.colibri", quiet=True)
        finally:
            if root:
                os.seteuid(0)
        folder.chmod(0o755)
        assert caught.value.code == Code.OPEN
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("m.colibri", b"an old file")]


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match=r"none/m\.colibri: No such file") as caught:
        run_job(load_recipe(MODELS / "tiny.toml"), tmp_path / "none" / "m.colibri", quiet=True)
    assert caught.value.code == Code.OPEN


def test_small_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.json"
    write_file(target, b"one")
    failing(monkeypatch, "fsync", errno.ENOSPC)
    with pytest.raises(ColibriError, match=rf"^cannot write {target}: No space left on device; free space, or"):
        write_file(target, b"two")
    monkeypatch.undo()
    assert target.read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


# ---- refused ------------------------------------------------------------------------------------


def drop(name: str) -> Callable[[Weights], None]:
    return lambda weights: weights.__delitem__(name)


def add(name: str) -> Callable[[Weights], None]:
    return lambda weights: weights.__setitem__(name, np.zeros((2, 2), np.float32))


GATE = "model.layers.1.block_sparse_moe.gate.weight"


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (drop(GATE), Code.MISSING_TENSOR, f"the checkpoint has no {GATE}"),
        (
            add("model.layers.0.self_attn.q_proj.bias"),
            Code.UNSUPPORTED,
            "the checkpoint has model.layers.0.self_attn.q_proj.bias, which the architecture has no use for",
        ),
        (
            add("model.layers.2.input_layernorm.weight"),
            Code.UNSUPPORTED,
            "the checkpoint has model.layers.2.input_layernorm.weight",
        ),
        (
            add(GATE),
            Code.TENSOR,
            f"{GATE} has the shape [2, 2], the configuration says [3, 48]",
        ),
        (
            lambda weights: weights.update({GATE: np.zeros((3, 1, 48), np.float32)}),
            Code.TENSOR,
            f"{GATE} has the shape [3, 1, 48], the configuration says [3, 48]",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    change: Callable[[Weights], None], code: Code, message: str, tmp_path: Path
) -> None:
    weights = mixtral_weights()
    change(weights)
    error = refusal(checkpoint(tmp_path / "hf", weights))
    assert error.code == code
    assert error.message.startswith(message)


QWEN2: dict[str, Any] = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "moe_intermediate_size": 24,
    "num_experts": 4,
    "sliding_window": 9,
}


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        ({"mlp_only_layers": [0, 1]}, Code.UNSUPPORTED, "config.json: all 2 layers are dense; only models with exp"),
        ({"decoder_sparse_step": 3}, Code.UNSUPPORTED, "config.json: all 2 layers are dense"),
        ({"decoder_sparse_step": 0}, Code.LIMIT, "config.json: sparse_step is 0, must be 1..512"),
        ({"mlp_only_layers": [2]}, Code.ARGUMENT, "config.json: dense layers are [2], must be numbers of layers, 0..1"),
        ({"mlp_only_layers": 0}, Code.ARGUMENT, "config.json: mlp_only_layers is 0, must be a list"),
        ({"use_sliding_window": True}, Code.ARGUMENT, "config.json: layer_types is [], with use_sliding_window it mu"),
        (
            {"use_sliding_window": True, "layer_types": ["full_attention", "linear_attention"]},
            Code.ARGUMENT,
            "config.json: layer_types is ['full_attention', 'linear_attention'], with use_sliding_window it must say",
        ),
        ({"qkv_bias": 1}, Code.ARGUMENT, "config.json: qkv_bias is 1, must be true or false"),
        ({"norm_topk_prob": None, "num_experts": ...}, Code.ARGUMENT, "config.json has no num_experts"),
        (
            {"architectures": ["GraniteMoeForCausalLM"], "num_local_experts": 4, "logits_scaling": 0},
            Code.ARGUMENT,
            "config.json: logits_divisor is 0.0, must be above 1e-06..1e+06",
        ),
        (
            {"architectures": ["OlmoeForCausalLM"], "clip_qkv": -1},
            Code.ARGUMENT,
            "config.json: clip_qkv is -1.0, must be 0..1e+06",
        ),
    ],
)
def test_configurations_of_other_families_are_refused_by_name(
    config: dict[str, Any], code: Code, message: str, tmp_path: Path
) -> None:
    error = refusal(checkpoint(tmp_path / "hf", **{**QWEN2, **config}))
    assert error.message.startswith(message)
    assert error.code == code


@pytest.mark.parametrize(
    ("config", "code", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, Code.UNSUPPORTED, "the checkpoint is LlamaForCausalLM, not a"),
        ({"architectures": ["AfmoeForCausalLM"]}, Code.UNSUPPORTED, "the checkpoint is AfmoeForCausalLM (router: si"),
        ({"architectures": ..., "model_type": "gpt2"}, Code.UNSUPPORTED, "the checkpoint is gpt2, not"),
        ({"architectures": ..., "model_type": ...}, Code.UNSUPPORTED, "the checkpoint is nothing, not"),
        ({"hidden_size": ...}, Code.ARGUMENT, "config.json has no hidden_size"),
        ({"hidden_size": "48"}, Code.ARGUMENT, "config.json: hidden is '48', not a whole number"),
        ({"hidden_size": 48.0}, Code.ARGUMENT, "config.json: hidden is 48.0, not a whole number"),
        ({"hidden_act": "mish"}, Code.UNSUPPORTED, "config.json: activation 'mish', supported: silu"),
        ({"head_dim": None, "hidden_size": 50}, Code.ARGUMENT, "config.json: hidden_size 50 is no multiple of 4 heads"),
        ({"num_local_experts": 2000}, Code.LIMIT, "config.json: experts is 2000, must be 1..1024"),
        ({"num_experts_per_tok": 4}, Code.RECORD, "layer 0: top_k 4 of 3 experts"),
        ({"num_key_value_heads": 3}, Code.RECORD, "layer 0: 4 heads are no multiple of 3 KV heads"),
        ({"vocab_size": 0}, Code.LIMIT, "config.json: vocabulary is 0, must be 1..1048576"),
        ({"num_hidden_layers": 1 << 40}, Code.LIMIT, "config.json: layers is 1099511627776, must be 1..512"),
        ({"num_attention_heads": 0}, Code.LIMIT, "config.json: heads is 0, must be 1..512"),
        ({"num_attention_heads": True}, Code.ARGUMENT, "config.json: heads is True, not a whole number"),
        ({"head_dim": 10**400}, Code.LIMIT, "config.json: head_dim is a number of 1329 bits, must be 1..1024"),
        ({"head_dim": [16]}, Code.ARGUMENT, "config.json: head_dim is [16], not a whole number"),
        ({"sliding_window": -1}, Code.LIMIT, "config.json: window_tokens is -1, must be 0..1048576"),
        ({"max_position_embeddings": {}}, Code.ARGUMENT, "config.json: context_tokens is {}, not a whole number"),
        ({"rms_norm_eps": float("nan")}, Code.ARGUMENT, "config.json: norm_eps is nan, must be above 0 and below 1"),
        ({"rms_norm_eps": 0}, Code.ARGUMENT, "config.json: norm_eps is 0.0, must be above 0 and below 1"),
        ({"rms_norm_eps": 1}, Code.ARGUMENT, "config.json: norm_eps is 1.0, must be above 0 and below 1"),
        ({"rms_norm_eps": 10**400}, Code.ARGUMENT, "config.json: norm_eps is a number of 1329 bits, beyond any float"),
        ({"rope_theta": float("inf")}, Code.ARGUMENT, "config.json: rope_theta is inf, must be 1..1e+30"),
        ({"rope_theta": -1e4}, Code.ARGUMENT, "config.json: rope_theta is -10000.0, must be 1..1e+30"),
        ({"rope_theta": 1e-300}, Code.ARGUMENT, "config.json: rope_theta is 1e-300, must be 1..1e+30"),
        ({"rope_scaling": "linear"}, Code.ARGUMENT, "config.json: rope_scaling is 'linear', must be null or an obj"),
        ({"tie_word_embeddings": "false"}, Code.ARGUMENT, "config.json: tie_word_embeddings is 'false', must be true"),
        ({"hidden_act": ["silu"]}, Code.UNSUPPORTED, "config.json: activation ['silu'], supported: silu"),
        ({"architectures": "MixtralForCausalLM"}, Code.ARGUMENT, "config.json: architectures is 'MixtralForCausalLM'"),
        ({"architectures": [["Mixtral"]]}, Code.ARGUMENT, "config.json: architectures is [['Mixtral']], must be a li"),
        ({"architectures": ..., "model_type": 7}, Code.ARGUMENT, "config.json: model_type is 7, must be a name"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, Code.UNSUPPORTED, "config.json: rope_scaling of type 'd"),
        ({"rope_parameters": {"rope_type": "longrope"}}, Code.UNSUPPORTED, "config.json: rope_parameters of type 'lon"),
        ({"rope_scaling": {"type": "linear"}}, Code.ARGUMENT, "config.json: rope_scaling.factor is None, must be 1.."),
        ({"rope_scaling": {"type": "yarn", "factor": 0.5}}, Code.ARGUMENT, "config.json: rope_scaling.factor is 0.5"),
        (
            {"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1.0}},
            Code.UNSUPPORTED,
            "config.json: rope_scaling.mscale is 1.0, supported: 0 or none",
        ),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
            Code.ARGUMENT,
            "config.json: rope_scaling.low_freq_factor is 4.0, must be below high_freq_factor, 1.0",
        ),
        ({"partial_rotary_factor": 0.5}, Code.UNSUPPORTED, "config.json: partial_rotary_factor 0.5, supported: 1"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}},
            Code.UNSUPPORTED,
            "config.json: rope_parameters of each kind of layer, supported: one for all",
        ),
        (
            {"rope_theta": 1, "rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            Code.ARGUMENT,
            "config.json: rope_theta is 1: every pair turns alike",
        ),
        (
            {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            Code.UNSUPPORTED,
            "config.json: rope_parameters.partial_rotary_factor 0.5",
        ),
    ],
)
def test_configurations_that_cannot_be_run_are_refused_by_name(
    config: dict[str, Any], code: Code, message: str, tmp_path: Path
) -> None:
    error = refusal(checkpoint(tmp_path / "hf", **config))
    assert error.message.startswith(message)
    assert error.code == code


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "notes.txt"])
def test_an_output_that_is_a_file_of_the_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    source = checkpoint(tmp_path / "hf")
    (source / "notes.txt").write_text("kept")
    before = (source / name).read_bytes()
    (tmp_path / "link").symlink_to(source / name)
    for output in (source / name, tmp_path / "link"):
        with pytest.raises(ColibriError, match="a file that is read") as caught:
            convert(source, output, tokenizer=False, quiet=True)
        assert caught.value.code == Code.ARGUMENT
    assert (source / name).read_bytes() == before


def test_an_architecture_name_that_is_half_a_character_is_kept_as_an_escape(tmp_path: Path) -> None:
    model = converted(checkpoint(tmp_path / "hf", architectures=["MixtralForCausalLM", "\ud800"]))
    assert model.provenance()["source"]["architecture"] == ["MixtralForCausalLM", "\ud800"]


def test_a_family_is_found_by_its_model_type_alone(tmp_path: Path) -> None:
    check_against(converted(checkpoint(tmp_path / "hf", architectures=...)), mixtral_weights())


def test_a_value_that_is_not_finite_stops_the_conversion(tmp_path: Path) -> None:
    weights = mixtral_weights()
    weights["model.layers.1.block_sparse_moe.experts.2.w3.weight"][39, 47] = np.nan
    error = refusal(checkpoint(tmp_path / "hf", weights))
    assert error.message == "layer 1 expert 2 expert_up: the value at [39][47] is nan"
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_sources_that_are_no_checkpoint_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none").code == Code.OPEN
    (tmp_path / "file.bin").write_bytes(b"x")
    assert refusal(tmp_path / "file.bin").code == Code.ARGUMENT
    (tmp_path / "empty").mkdir()
    assert "empty has no config.json; give the folder of a checkpoint" in refusal(tmp_path / "empty").message


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_named_as_one(name: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "hf")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4096\n")
    error = refusal(folder)
    assert error.code == Code.BAD_MAGIC
    assert error.message == f"{folder / name} is a pointer of git-lfs, not the file; run `git lfs pull` in its folder"


def test_a_checkpoint_without_a_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    error = refusal(checkpoint(tmp_path / "hf"), tokenizer=True)
    assert error.code == Code.TOKENIZER
    assert "--no-tokenizer" in error.message


def test_the_tokenizer_of_the_checkpoint_travels_with_it(tmp_path: Path) -> None:
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    trained.train_from_iterator(["the cat sat on the mat, and that is that"] * 9, trainer)
    weights = mixtral_weights()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.ones((300, 48), np.float32)
    source = checkpoint(tmp_path / "hf", weights, vocab_size=300)
    trained.save(str(source / "tokenizer.json"))
    output = tmp_path / "m.colibri"
    convert(source, output, quiet=True)
    section = open_model(output).tokenizer_bytes()
    assert section is not None
    found = TokenizerSpec.from_section(section, 300)
    text = "that cat is on\n the  mat \u00e9"
    assert found.encode(text) == trained.encode(text).ids
    weights["model.embed_tokens.weight"] = weights["lm_head.weight"] = np.ones((257, 48), np.float32)
    small = checkpoint(tmp_path / "small", weights, vocab_size=257)
    trained.save(str(small / "tokenizer.json"))
    (tmp_path / "m.colibri").unlink()
    error = refusal(small, tokenizer=True)
    assert error.message == f"the tokenizer has {trained.get_vocab_size()} tokens, the model's vocabulary 257"


# ---- GGUF ---------------------------------------------------------------------------------------


def permuted(w: F32, heads: int) -> F32:
    """The order of Q and K rows in llama GGUF files: pairs (i, i + half) become neighbours."""
    rows, columns = w.shape
    return w.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, experts: int = 3, scaling: str | None = None, more: dict[str, float] | None = None) -> Path:
    """CONFIG as a GGUF file; `experts` 0 makes a dense model; more: numbers of the RoPE scaling."""
    weights = mixtral_weights()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_embedding_length(48)
    writer.add_block_count(2)
    writer.add_context_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(16)
    writer.add_rope_dimension_count(16)
    writer.add_feed_forward_length(40)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(2)
    if scaling:
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling))
    for key, value in (more or {}).items():
        writer.add_float32(f"llama.rope.scaling.{key}", value)
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    writer.add_tensor("output.weight", weights["lm_head.weight"])
    for layer in range(2):
        base, to = f"model.layers.{layer}", f"blk.{layer}"
        names = {
            "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "ffn_gate_inp": "block_sparse_moe.gate",
        }  # fmt: skip
        for name, source in names.items():
            writer.add_tensor(f"{to}.{name}.weight", weights[f"{base}.{source}.weight"])
        for name, heads in (("q", 4), ("k", 2)):
            w = permuted(weights[f"{base}.self_attn.{name}_proj.weight"], heads)
            writer.add_tensor(f"{to}.attn_{name}.weight", np.ascontiguousarray(w))
        for name, source in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            parts = [weights[f"{base}.block_sparse_moe.experts.{e}.{source}.weight"] for e in range(3)]
            writer.add_tensor(f"{to}.ffn_{name}_exps.weight", np.stack(parts))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_gives_the_tensors_of_the_original_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colibri.job.part_rows", lambda columns: 24)  # parts that cut heads in two
    model = converted(write_gguf(tmp_path / "m.gguf"))
    check_against(model, mixtral_weights())
    assert np.array_equal(stored(model, Role.HEAD), mixtral_weights()["lm_head.weight"])
    original = converted(checkpoint(tmp_path / "hf"))
    assert list(model.records.blocks()) == list(original.records.blocks())


@pytest.mark.parametrize(
    ("scaling", "more", "factor"),
    [
        (None, {}, 1.0),
        (None, {"factor": 4.0}, 4.0),  # linear is what llama.cpp takes an absent type for
        (None, {"factor": 0.0}, 1.0),
        ("linear", {"factor": 4.0, "attn_factor": 1.0, "yarn_ext_factor": 0.0}, 4.0),
        ("none", {"factor": 4.0}, 1.0),
    ],
)
def test_the_rope_scaling_of_a_gguf_file_is_what_llama_cpp_makes_of_it(
    tmp_path: Path, scaling: str | None, more: dict[str, float], factor: float
) -> None:
    model = converted(write_gguf(tmp_path / "m.gguf", scaling=scaling, more=more))
    assert model.records.ropes[0].inv_freq[1] == float(np.float32(10000.0 ** (-1 / 8) / factor))


@pytest.mark.parametrize(
    ("scaling", "more", "message"),
    [
        (None, {"attn_factor": 2.0}, "rope.scaling.attn_factor is 2.0, supported: 1.0"),
        ("linear", {"factor": 4.0, "yarn_attn_factor": 0.5}, "rope.scaling.yarn_attn_factor is 0.5, supported: 1.0"),
        ("linear", {"factor": 4.0, "yarn_ext_factor": 1.0}, "rope.scaling.yarn_ext_factor is 1.0, supported: 0.0"),
        ("linear", {"factor": 4.0, "yarn_log_multiplier": 0.5}, "yarn_log_multiplier is 0.5, supported: 0.0"),
        (None, {"alpha": 1000.0}, "rope.scaling.alpha is 1000.0, supported: 0.0"),
    ],
)
def test_numbers_of_the_rope_scaling_that_the_records_do_not_get_are_refused(
    tmp_path: Path, scaling: str | None, more: dict[str, float], message: str
) -> None:
    error = refusal(write_gguf(tmp_path / "m.gguf", scaling=scaling, more=more))
    assert error.code == Code.UNSUPPORTED
    assert message in error.message


@pytest.mark.parametrize(
    ("key", "other"), [("rope.freq_base_swa", "rope.freq_base"), ("attention.value_length", "attention.key_length")]
)
def test_a_value_that_a_terminal_would_obey_is_not_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, other: str
) -> None:
    path, ask = write_gguf(tmp_path / "m.gguf"), Gguf.value
    hostile = {f"llama.{key}": 1.0, f"llama.{other}": "\x1b[2J" + 500 * "x"}
    monkeypatch.setattr(Gguf, "value", lambda source, asked: hostile.get(asked, ask(source, asked)))
    error = refusal(path)
    assert f"llama.{key} is 1.0, supported: " in error.message
    assert "\x1b" not in error.message
    assert len(error.message) < 200 + len(str(path))


def test_gguf_files_that_cannot_be_run_are_refused_by_name(tmp_path: Path) -> None:
    error = refusal(write_gguf(tmp_path / "dense.gguf", experts=0))
    assert "is a dense model (tiny): it has no llama.expert_count" in error.message
    error = refusal(write_gguf(tmp_path / "longrope.gguf", scaling="longrope"))
    assert "RoPE scaling longrope, supported: none, linear, yarn" in error.message
    writer = gguf.GGUFWriter(tmp_path / "gpt2.gguf", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    error = refusal(tmp_path / "gpt2.gguf")
    assert "GGUF architecture 'gpt2', supported: llama" in error.message
    assert error.code == Code.UNSUPPORTED


def test_drop_nfc_is_refused_where_no_normaliser_can_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_gguf(tmp_path / "m.gguf")
    assert main(["convert", str(source), "-o", str(tmp_path / "m.colibri"), "--no-tokenizer", "--drop-nfc"]) == 2
    assert "--drop-nfc is for a tokenizer.json" in capsys.readouterr().err
    assert not (tmp_path / "m.colibri").exists()


def test_gguf_values_of_the_wrong_type_are_refused_by_their_key(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "m.gguf").read_bytes()
    key = b"llama.rope.freq_base" + (6).to_bytes(4, "little")
    assert data.count(key) == 1
    # An f32 read as a u32 is a number all the same; as a bool, a byte and what follows are not.
    for name, kind in (("rope.freq_base", b"\x07"), ("attention.layer_norm_rms_epsilon", b"\x07")):
        at = data.index(f"llama.{name}".encode()) + len(f"llama.{name}")
        changed = data[:at] + kind + data[at + 1 : at + 4] + b"\x01" + data[at + 8 :] + bytes(64)
        (tmp_path / "changed.gguf").write_bytes(changed)
        assert f"llama.{name} is True, not a number" in refusal(tmp_path / "changed.gguf").message
    at = data.index(b"general.architecture") + len(b"general.architecture")
    listed = b"\x09\0\0\0" + b"\x08\0\0\0" + b"\x01\0\0\0\0\0\0\0"  # a list of one text
    changed = data[:at] + listed + data[at + 4 :] + bytes(64)
    (tmp_path / "changed.gguf").write_bytes(changed)
    assert "GGUF architecture ['llama'], supported: llama" in refusal(tmp_path / "changed.gguf").message


def test_names_of_a_checkpoint_cannot_write_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = checkpoint(tmp_path / "hf", architectures=["\x1b[2J\nLlama" + "x" * 1000])
    assert main(["convert", str(source), "-o", str(tmp_path / "m.colibri"), "-q"]) == 3
    error = capsys.readouterr().err
    assert error.startswith("colibri: the checkpoint is \\x1b[2J\\nLlamaxxx")
    assert error.count("\n") == 1
    assert len(error) < 600  # the families that are supported are named
    weights = mixtral_weights()
    weights["\x1b[31m"] = np.zeros(1, np.float32)
    error = refusal(checkpoint(tmp_path / "hf2", weights)).message
    assert error.startswith("the checkpoint has \\x1b[31m, which the architecture has no use for")


# ---- families -----------------------------------------------------------------------------------


def test_families_have_ids_of_the_format_and_architectures_of_their_own() -> None:
    seen: set[str] = set()
    for key, family in FAMILIES.items():
        assert not family["converter"] or key.upper() in Family.__members__
        names = [*family["architectures"], *family["model_types"]]
        assert not seen & set(names)
        seen |= set(names)
        if family["converter"]:
            assert {name.upper() for name in family["tensors"]} <= set(Role.__members__)


def test_the_generated_table_is_what_families_toml_says() -> None:
    script = MODELS.parents[1] / "engine" / "spec" / "generate_families.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
