# SPDX-License-Identifier: MIT
"""Recipes: models of random weights, settings for a checkpoint, experts made of a dense model."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from colibri._spec import Code, DType, Role, Scope
from colibri.cli import main
from colibri.errors import ColibriError
from colibri.format import open_model
from colibri.job import run_job
from colibri.recipe import byte_tokenizer, load_recipe
from colibri.tokenizer import TokenizerSpec
from test_convert import MODELS, checkpoint, mixtral_weights, stored


@pytest.mark.parametrize("name", sorted(path.stem for path in MODELS.glob("tiny*.toml")))
def test_tiny_recipes_are_odd_whole_and_repeatable(name: str, tmp_path: Path) -> None:
    roots = [
        run_job(load_recipe(MODELS / f"{name}.toml"), tmp_path / f"{i}.colibri", i, quiet=True).root for i in (1, 2)
    ]
    assert roots[0] == roots[1]
    with open_model(tmp_path / "1.colibri") as model:
        model.verify()
        block = model.records.model
        assert block.hidden % 32 != 0
        assert block.vocabulary % 8 != 0
        section = model.tokenizer_bytes()
        assert section is not None
        tokenizer = TokenizerSpec.from_section(section, block.vocabulary)
        text = "the cat sat: \u00e9\n1200"
        assert tokenizer.decode(tokenizer.encode(text)) == text.encode()
        assert len(tokenizer.encode(text)) < len(text.encode())
        assert tokenizer.has_chat


def test_experts_of_a_random_model_are_unrelated(tmp_path: Path) -> None:
    run_job(load_recipe(MODELS / "tiny-f32.toml"), tmp_path / "m.colibri", quiet=True)
    model = open_model(tmp_path / "m.colibri")
    flat = [stored(model, Role.EXPERT_GATE, layer, expert).ravel() for layer in range(3) for expert in range(5)]
    correlation = np.corrcoef(np.stack(flat)) - np.eye(15)
    assert np.abs(correlation).max() < 0.05


def recipe(folder: Path, old: str = "", new: str = "", name: str = "tiny") -> Path:
    """A changed copy of a recipe."""
    text = (MODELS / f"{name}.toml").read_text()
    assert old in text
    path = folder / "changed.toml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "random"', 'kind = "magic"', "kind is 'magic', known: random, upcycled, checkpoint"),
        ("hidden = 80", "hiden = 80", "model.hiden is unknown"),
        ("hidden = 80", "", "model.hidden is missing"),
        ("hidden = 80", "hidden = 80.5", "model.hidden is 80.5, must be a int"),
        ("top_k = 3", "top_k = 6", "layer 0: top_k 6 of 5 experts"),
        ('experts = "int4"', 'experts = "int5"', "experts dtype 'int5'"),
        ('"_ t", ', '"x th", ', "merge 'x th' uses a token that no earlier merge made"),
        ('end = "<|end|>"', 'end = "<|fin|>"', "tokenizer table"),
        ("[model]", "[model", "not TOML"),
        ("[dtypes]", "[dtype]", "dtype is unknown in a recipe of kind 'random'; known: kind, "),
        ('name = "tiny"', 'prune_by = "x"', "prune_by belongs to expert_prune_ratio"),
        ("vocabulary = 331", "vocabulary = 300", "the tokenizer has 321 tokens, the model's vocabulary 300"),
    ],
)
def test_recipes_with_mistakes_are_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ColibriError) as caught:
        load_recipe(recipe(tmp_path, old, new))
    assert message in caught.value.message


def test_a_recipe_gives_a_checkpoint_its_dtypes(tmp_path: Path) -> None:
    source, path = checkpoint(tmp_path / "hf"), tmp_path / "recipe.toml"
    path.write_text(
        'kind = "checkpoint"\nsource.path = "hf"\n[model]\ntokenizer = false\ncontext_tokens = 64\n'
        '[dtypes]\nexperts = "int8"\ntrunk = "f32"\n[overrides]\n"layer 1 expert_down" = "f32"\n'
    )
    run_job(load_recipe(path), tmp_path / "m.colibri", quiet=True)
    model = open_model(tmp_path / "m.colibri")
    assert model.records.model.context_tokens == 64
    weights, base = mixtral_weights(), "model.layers.1.block_sparse_moe.experts.2"
    assert np.array_equal(stored(model, Role.EXPERT_DOWN, 1, 2), weights[f"{base}.w2.weight"])
    assert not np.array_equal(stored(model, Role.EXPERT_UP, 1, 2), weights[f"{base}.w3.weight"])
    moved = source.rename(tmp_path / "elsewhere")
    run_job(load_recipe(path, source=moved), tmp_path / "n.colibri", quiet=True)
    assert (tmp_path / "n.colibri").read_bytes() == (tmp_path / "m.colibri").read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "source.path names no checkpoint"),
        ('source.path = "none"', "none: no such file or directory"),
        ('source.path = "hf"\nseed = 3', "seed is unknown in a recipe of kind 'checkpoint'"),
        ('source.file = "hf"', "source.file is unknown, known: path"),
        ('source.path = "hf"\nmodel.layers = 3', "model.layers is unknown"),
        ('source.path = "hf"\nmodel.tokenizer = false\nimportance = 3', "importance is 3, must be a text"),
        ('source.path = "hf"\nmodel.tokenizer = false\nexpert_prune_ratio = "0.7"', "leaves 1 of 3 experts"),
    ],
)
def test_checkpoint_recipes_with_mistakes_are_refused(tmp_path: Path, text: str, message: str) -> None:
    checkpoint(tmp_path / "hf")
    path = tmp_path / "recipe.toml"
    path.write_text(f'kind = "checkpoint"\n{text}\n')
    with pytest.raises(ColibriError) as caught:
        load_recipe(path)
    assert message in caught.value.message


@pytest.mark.parametrize("name", ["recipe.toml", "hf/model.safetensors", "importance.json", "profile.colibri"])
def test_an_output_that_a_recipe_reads_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    checkpoint(tmp_path / "hf")
    for other in ("importance.json", "profile.colibri"):
        (tmp_path / other).write_text("kept")
    (tmp_path / "recipe.toml").write_text(
        'kind = "checkpoint"\nsource.path = "hf"\nmodel.tokenizer = false\nimportance = "importance.json"\n'
        'prune_by = "profile.colibri"\nexpert_prune_ratio = "1/3"\n'
    )
    before = (tmp_path / name).read_bytes()
    assert main(["convert", str(tmp_path / "recipe.toml"), "-o", str(tmp_path / name), "-q"]) == 2
    assert "a file that is read" in capsys.readouterr().err
    assert (tmp_path / name).read_bytes() == before


def test_an_output_that_is_the_licence_or_source_of_a_recipe_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    license_file, source = tmp_path / "LICENSE", dense_gguf(tmp_path / "dense.gguf")
    license_file.write_text("kept")
    path = upcycled(tmp_path)
    path.write_text(path.read_text() + '[license]\nid = "x"\nfile = "LICENSE"\n')
    for output in (license_file, source):
        words = ["convert", str(path), "--recipe-source", str(source), "-o", str(output), "-q"]
        assert main(words) == 2
        assert "a file that is read" in capsys.readouterr().err
    assert license_file.read_text() == "kept"


def test_a_merge_that_makes_a_token_twice_is_refused() -> None:
    with pytest.raises(ColibriError, match="makes a token that exists"):
        byte_tokenizer(["<e>"], ["a b", "ab c", "b c", "a bc"], "<e>", "<e>", "<e>")


def test_options_replace_dtypes_of_a_recipe(tmp_path: Path) -> None:
    run_job(load_recipe(MODELS / "tiny.toml", {"experts": "int8"}), tmp_path / "m.colibri", quiet=True)
    entry = open_model(tmp_path / "m.colibri").tensor(Role.EXPERT_UP, 0, Scope.EXPERT)
    assert entry is not None
    assert entry.dtype == DType.INT8


def dense_gguf(path: Path) -> Path:
    """CONFIG as a dense GGUF file with a tokenizer of bytes, for upcycling."""
    weights = mixtral_weights()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("dense")
    for add_value, value in (
        (writer.add_embedding_length, 48), (writer.add_block_count, 1), (writer.add_context_length, 128),
        (writer.add_head_count, 4), (writer.add_head_count_kv, 2), (writer.add_key_length, 16),
        (writer.add_feed_forward_length, 40),
    ):  # fmt: skip
        add_value(value)
    writer.add_layer_norm_rms_eps(1e-6)
    alphabet = [c for c in map(chr, range(0x100, 0x200)) if c.isprintable()]
    printable = [chr(c) for c in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*printable, *alphabet[: 256 - len(printable)], "ab"])
    writer.add_token_merges(["a b"])
    rng = np.random.default_rng(5)
    writer.add_tensor("token_embd.weight", rng.standard_normal((260, 48)).astype(np.float32))
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    base = "model.layers.0"
    for name, source in (
        ("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"), ("attn_output", "self_attn.o_proj"),
        ("ffn_gate", "block_sparse_moe.experts.0.w1"), ("ffn_up", "block_sparse_moe.experts.0.w3"),
        ("ffn_down", "block_sparse_moe.experts.0.w2"),
    ):  # fmt: skip
        writer.add_tensor(f"blk.0.{name}.weight", weights[f"{base}.{source}.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def upcycled(folder: Path, extra: str = "") -> Path:
    path = folder / "up.toml"
    path.write_text(
        'kind = "upcycled"\nseed = 3\n[source]\npackage = "no_such_package_here"\nfile = "x.gguf"\n'
        f"{extra}[model]\ncontext_tokens = 64\nexperts = 4\ntop_k = 2\nperturbation = 0.05\nrouter_deviation = 0.1\n"
        '[dtypes]\nexperts = "f32"\ntrunk = "f32"\n'
    )
    return path


def test_upcycled_experts_are_perturbed_copies(tmp_path: Path) -> None:
    source = dense_gguf(tmp_path / "dense.gguf")
    run_job(load_recipe(upcycled(tmp_path), source=source), tmp_path / "m.colibri", quiet=True)
    model = open_model(tmp_path / "m.colibri")
    model.verify()
    weights = mixtral_weights()
    for role, name in ((Role.EXPERT_GATE, "w1"), (Role.EXPERT_UP, "w3"), (Role.EXPERT_DOWN, "w2")):
        dense = weights[f"model.layers.0.block_sparse_moe.experts.0.{name}.weight"]
        noise = [stored(model, role, 0, expert) / dense - 1 for expert in range(4)]
        for part in noise:
            assert part.std() == pytest.approx(0.05, rel=0.1)
            assert np.abs(part).max() < 0.18
        flat = np.corrcoef(np.stack([part.ravel() for part in noise])) - np.eye(4)
        assert np.abs(flat).max() < 0.12
    assert stored(model, Role.ROUTER, 0).std() == pytest.approx(0.1, rel=0.2)
    assert model.records.model.context_tokens == 64
    assert model.provenance()["source"]["kind"] == "upcycled"


def test_an_upcycled_recipe_says_how_to_get_its_source(tmp_path: Path) -> None:
    with pytest.raises(ColibriError, match="pip install no-such-package-here, or give the file") as caught:
        load_recipe(upcycled(tmp_path))
    assert caught.value.code == Code.OPEN
    source = dense_gguf(tmp_path / "dense.gguf")
    with pytest.raises(ColibriError, match="its SHA-256 is not 00"):
        load_recipe(upcycled(tmp_path, 'sha256 = "00"\n'), source=source)


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    peaks = []
    for layers in (1, 4):
        path = recipe(tmp_path, "layers = 3", f"layers = {layers}")
        text = path.read_text().replace("hidden = 80", "hidden = 512")
        path.write_text(text.replace("intermediate = 104", "intermediate = 1024"))
        job = load_recipe(path)
        tracemalloc.start()
        run_job(job, tmp_path / "m.colibri", threads=1, quiet=True)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]
    assert peaks[1] < 4 * 5 * 3 * 512 * 1024 * 4 / 3  # a third of the f32 weights
