# SPDX-License-Identifier: MIT
"""Checkpoints of every family, converted by us, against the family's own code in float32.

The figures that these tests measure are in results.json; docs/models.md is made of it. A change of
the figures that is meant is recorded with `tests/parity/record.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import copy, deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import CASES, PROMPT_TOKENS, Case, Oracle, make_checkpoint
from colibri._spec import (
    NONE_INDEX,
    Activation,
    AttentionBlock,
    FfnBlock,
    GroupScore,
    MlaBlock,
    MoeBlock,
    NormKind,
    PositionKind,
    QkNormKind,
    Role,
    RopeStyle,
    RouterInput,
    RouterNormalise,
    RouterScore,
    ShortConvBlock,
)
from colibri.convert import convert
from colibri.engine import isas_available
from colibri.errors import ColibriError
from colibri.records import Records
from colibri.reference import ReferenceModel
from figures import (
    FLOAT,
    INT4,
    INT8,
    LIMIT,
    Figures,
    converted,
    float_error,
    measure,
    recorded,
    run_engine,
    run_reference,
)
from safetensors.torch import load_file, save_file


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.id.replace(" ", "_"))
def case(request: pytest.FixtureRequest) -> Case:
    """One configuration of a family."""
    chosen: Case = request.param
    return chosen


@pytest.fixture(scope="module")
def checkpoint(case: Case, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Oracle]:
    """The folder of the checkpoint, and what the family's own code says."""
    folder = tmp_path_factory.mktemp("checkpoint")
    oracle = make_checkpoint(case, folder)
    assert oracle.logits.std() >= 1
    assert all(len(np.unique(layer)) > 1 for layer in oracle.routing)
    return folder, oracle


@pytest.fixture(scope="module")
def floats(checkpoint: tuple[Path, Oracle], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint with float32 weights as a .colibri file."""
    return converted(checkpoint[0], tmp_path_factory.mktemp("floats"), FLOAT)


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("run", [run_reference, run_engine])
def test_float_weights_give_the_logits_and_the_routing_of_the_family(
    case: Case, checkpoint: tuple[Path, Oracle], floats: Path, run: Any, note: Callable[[str], None]
) -> None:
    oracle = checkpoint[1]
    found = run(floats, oracle.ids, "f32")
    error = float_error(found, oracle)
    note(f"{case.id}, f32 weights, {run.__name__}: largest error {error:.1e} of the largest logit")
    assert error <= LIMIT
    assert len(found.routing) == len(oracle.routing)
    for layer, expected in zip(sorted(found.routing), oracle.routing, strict=True):
        np.testing.assert_array_equal(found.routing[layer], expected)


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize("precision", [INT8, INT4], ids=["int8", "int4"])
def test_quantised_weights_give_equal_bits_on_every_instruction_set_and_the_recorded_error(
    case: Case,
    checkpoint: tuple[Path, Oracle],
    tmp_path: Path,
    precision: Any,
    note: Callable[[str], None],
    ran: dict[str, set[str]],
) -> None:
    folder, oracle = checkpoint
    path = converted(folder, tmp_path, precision)
    reference = run_reference(path, oracle.ids, "f16")
    for isa in isas_available():
        engine = run_engine(path, oracle.ids, "f16", isa)
        np.testing.assert_array_equal(reference.logits.view(np.uint32), engine.logits.view(np.uint32))
        for layer, expected in reference.routing.items():
            np.testing.assert_array_equal(engine.routing[layer], expected)
        ran.setdefault("this machine, families", set()).add(isa)
    figures = measure(reference, oracle)
    kind = precision.experts.name.lower()
    note(f"{case.id}, {kind} experts: {figures}")
    known = recorded()[case.id][kind]
    assert figures.rms == pytest.approx(known["rms"], rel=0.1, abs=0.005)


# ---- planted faults -----------------------------------------------------------------------------


def _mixers(records: Records) -> list[AttentionBlock]:
    return [layer.mixer for layer in records.layers if isinstance(layer.mixer, AttentionBlock)]


def _latents(records: Records) -> list[MlaBlock]:
    return [layer.mixer for layer in records.layers if isinstance(layer.mixer, MlaBlock)]


def _mixtures(records: Records) -> list[MoeBlock]:
    return [layer.ffn for layer in records.layers if isinstance(layer.ffn, MoeBlock)]


def _wrong_rope(records: Records) -> bool:
    if not records.ropes:
        return False
    records.ropes[0].inv_freq[1] *= 1.05
    return True


def _wrong_rope_factor(records: Records) -> bool:
    if not records.ropes:
        return False
    records.ropes[0].attention_factor *= 1.02
    return True


def _no_rope(records: Records) -> bool:
    mixers: list[AttentionBlock | MlaBlock] = [*_mixers(records), *_latents(records)]
    found = [mixer for mixer in mixers if mixer.rope_table != NONE_INDEX]
    for mixer in found[:1]:
        mixer.rope_table = NONE_INDEX
    return bool(found)


def _other_rope_style(records: Records) -> bool:
    for rope in records.ropes:
        rope.style = RopeStyle(1 - rope.style)
    return bool(records.ropes)


def _wrong_eps(records: Records) -> bool:
    records.layers[0].layer.norm_eps += 1e-2
    return True


def _wrong_last_eps(records: Records) -> bool:
    records.model.norm_eps += 1e-2
    return True


def _wrong_scale(records: Records) -> bool:
    mixers: list[AttentionBlock | MlaBlock] = [*_mixers(records), *_latents(records)]
    mixers[0].scale *= 1.05
    return True


def _wrong_latent_eps(records: Records) -> bool:
    for mixer in _latents(records):
        mixer.norm_eps += 1e-2
    return bool(_latents(records))


def _no_sinks(records: Records) -> bool:
    found = [mixer for mixer in _mixers(records) if mixer.sinks]
    for mixer in found[:1]:
        mixer.sinks = 0
    return bool(found)


def _no_clamp(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.clamp == 1.0]  # one that is met, unlike the published 7
    for moe in found:
        moe.clamp = 100.0
    return bool(found)


def _wrong_alpha(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.alpha]
    for moe in found:
        moe.alpha *= 1.02
    return bool(found)


def _no_groups(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.groups]
    for moe in found:
        moe.groups_chosen = moe.groups
    return bool(found)


def _other_group_score(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.groups]
    for moe in found:
        moe.group_score = GroupScore.MAX if moe.group_score == GroupScore.TOP2_SUM else GroupScore.TOP2_SUM
    return bool(found)


def _wrong_normalise_eps(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.router_normalise_eps and moe.router_normalise]
    for moe in found:
        moe.router_normalise_eps += 1e-2
    return bool(found)


def _late_router(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.router_input != RouterInput.FFN_INPUT]
    for moe in found:
        moe.router_input = RouterInput.FFN_INPUT
    return bool(found)


def _rope_on_every_layer(records: Records) -> bool:
    found = [mixer for mixer in _mixers(records) if mixer.rope_table == NONE_INDEX and records.ropes]
    for mixer in found:
        mixer.rope_table = 0
    return bool(found)


def _rms_norm_for_layer_norm(records: Records) -> bool:
    found = [layer.layer for layer in records.layers if layer.layer.norm_kind == NormKind.LAYER]
    for block in found:
        block.norm_kind = NormKind.RMS
    return bool(found)


def _last_rms_norm_for_layer_norm(records: Records) -> bool:
    layer_norm = records.model.norm_kind == NormKind.LAYER
    records.model.norm_kind = NormKind.RMS
    return layer_norm


def _positions_off_by_one(records: Records) -> bool:
    records.model.position_offset += 1
    return records.model.position_kind == PositionKind.LEARNED


def _no_positions(records: Records) -> bool:
    learned = records.model.position_kind == PositionKind.LEARNED
    records.model.position_kind = PositionKind.NONE if learned else records.model.position_kind
    return learned


def _other_gelu(records: Records) -> bool:
    blocks = [layer.ffn for layer in records.layers if isinstance(layer.ffn, FfnBlock | MoeBlock)]
    other = {Activation.GELU_TANH: Activation.GELU_ERF, Activation.GELU_ERF: Activation.GELU_TANH}
    found = [block for block in blocks if block.activation in other]
    for block in found:
        block.activation = other[Activation(block.activation)]
    return bool(found)


def _wrong_routed_scale(records: Records) -> bool:
    for moe in _mixtures(records):
        moe.routed_scale *= 1.02
    return True


def _no_threshold(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.threshold]
    for moe in found:
        moe.threshold = 0.0
    return bool(found)


def _no_residual_multiplier(records: Records) -> bool:
    records.layers[-1].layer.residual_multiplier *= 1.02
    return True


def _wrong_embedding_multiplier(records: Records) -> bool:
    records.model.embedding_multiplier *= 1.05
    return True


def _wrong_logits_multiplier(records: Records) -> bool:
    records.model.logits_multiplier *= 1.001
    return True


def _window_off_by_one(records: Records) -> bool:
    found = [mixer for mixer in _mixers(records) if mixer.window_tokens]
    for mixer in found:
        mixer.window_tokens += 1
    return bool(found)


def _clip_in_front_of_the_norm(records: Records) -> bool:
    found = [m for m in _mixers(records) if m.clip_qkv and m.qk_norm_kind == QkNormKind.FULL_WIDTH_THEN_CLIP]
    for mixer in found:
        mixer.qk_norm_kind = QkNormKind.FULL_WIDTH
    return bool(found)


def _wrong_qk_eps(records: Records) -> bool:
    found = [mixer for mixer in _mixers(records) if mixer.qk_norm_kind]
    for mixer in found:
        mixer.qk_norm_eps += 1e-2
    return bool(found)


def _no_qk_norm(records: Records) -> bool:
    found = [mixer for mixer in _mixers(records) if mixer.qk_norm_kind]
    for mixer in found:
        mixer.qk_norm_kind = QkNormKind.NONE
    return bool(found)


def _other_router_score(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.router_score != RouterScore.SIGMOID and moe.top_k > 1]
    for moe in found:
        moe.router_score = RouterScore.SIGMOID
    return bool(found)


def _other_normalisation(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.router_score == RouterScore.SOFTMAX_ALL]
    for moe in found:
        moe.router_normalise = RouterNormalise(1 - moe.router_normalise)
    return bool(found)


def _one_expert_less(records: Records) -> bool:
    found = [moe for moe in _mixtures(records) if moe.top_k > 1]
    for moe in found:
        moe.top_k -= 1
    return bool(found)


def _other_activation(records: Records) -> bool:
    blocks = [layer.ffn for layer in records.layers if isinstance(layer.ffn, FfnBlock | MoeBlock)]
    for block in blocks:
        silu = block.activation == Activation.SILU
        block.activation = Activation.GELU_TANH if silu else Activation.SILU
    return bool(blocks)


def _other_shared_gate(records: Records) -> bool:
    found = [layer.shared for layer in records.layers if layer.shared is not None and layer.shared.gate]
    for block in found:
        block.gate = 0
    return bool(found)


FAULT_TOKENS = 24  # behind the shortest window
FAULTS: dict[str, Callable[[Records], bool]] = {
    name.removeprefix("_"): function
    for name, function in list(globals().items())
    if function in (
        _wrong_rope, _wrong_rope_factor, _no_rope, _wrong_eps, _wrong_last_eps, _wrong_scale,
        _no_residual_multiplier, _wrong_embedding_multiplier, _wrong_logits_multiplier, _window_off_by_one,
        _clip_in_front_of_the_norm, _wrong_qk_eps, _no_qk_norm, _other_router_score, _other_normalisation,
        _one_expert_less, _other_activation, _other_shared_gate, _late_router, _rope_on_every_layer,
        _wrong_routed_scale, _no_threshold, _rms_norm_for_layer_norm, _last_rms_norm_for_layer_norm,
        _positions_off_by_one, _no_positions, _other_gelu, _other_rope_style, _wrong_latent_eps, _no_sinks, _no_clamp,
        _wrong_alpha, _no_groups, _other_group_score, _wrong_normalise_eps,
    )
}  # fmt: skip


def copied(model: ReferenceModel) -> ReferenceModel:
    """The model with records of its own, and the weights that are unpacked already."""
    other = copy(model)
    other.records, other.weights = deepcopy(model.records), copy(model.weights)
    return other


def test_every_planted_fault_of_the_records_is_seen(checkpoint: tuple[Path, Oracle], floats: Path) -> None:
    """A comparison that lets one of these pass would let a broken converter pass."""
    ids, logits = checkpoint[1].ids[:FAULT_TOKENS], checkpoint[1].logits[:FAULT_TOKENS]
    planted, sound = [], ReferenceModel(floats)
    for name, plant in FAULTS.items():
        model = copied(sound)
        if not plant(model.records):
            continue
        planted.append(name)
        error = float_error(model.session("f32").append(ids), Oracle(ids, logits, []))
        assert error > 1e-4, name
    assert len(planted) >= 10


BIASES = [role for role in Role if role.name.endswith("_BIAS")]


def test_every_bias_that_is_left_out_is_seen(checkpoint: tuple[Path, Oracle], floats: Path) -> None:
    """Except that of the keys: it adds the same to every score of a query, which a softmax does not see."""
    ids, logits = checkpoint[1].ids[:FAULT_TOKENS], checkpoint[1].logits[:FAULT_TOKENS]
    sound = ReferenceModel(floats)
    there = {tensor.role for tensor in sound.file.tensors}
    for role in [role for role in BIASES if role in there]:
        model = copied(sound)
        vector = model.weights.vector
        model.weights.vector = partial(_without, vector, role)  # type: ignore[method-assign]
        error = float_error(model.session("f32").append(ids), Oracle(ids, logits, []))
        plain_keys = role == Role.K_BIAS and not any(mixer.rope_table != NONE_INDEX for mixer in _mixers(model.records))
        assert (error > 1e-4) != plain_keys, role.name


def test_taps_of_a_convolution_in_the_other_order_are_seen(checkpoint: tuple[Path, Oracle], floats: Path) -> None:
    ids, logits = checkpoint[1].ids[:FAULT_TOKENS], checkpoint[1].logits[:FAULT_TOKENS]
    model = ReferenceModel(floats)
    if not any(isinstance(layer.mixer, ShortConvBlock) for layer in model.records.layers):
        return
    model.weights.vector = partial(_reversed_taps, model.weights.vector)  # type: ignore[method-assign]
    assert float_error(model.session("f32").append(ids), Oracle(ids, logits, [])) > 1e-4


def _reversed_taps(vector: Callable[..., Any], role: Role, *at: Any) -> Any:
    found = vector(role, *at)
    return found[::-1] if role == Role.CONV_WEIGHT else found


def _without(vector: Callable[..., Any], left_out: Role, role: Role, *at: Any) -> Any:
    return None if role == left_out else vector(role, *at)


def test_the_recorded_figures_are_those_of_these_cases() -> None:
    assert list(recorded()) == [case.id for case in CASES]
    for figures in recorded().values():
        assert figures["f32"]["error"] <= LIMIT
        assert Figures(**figures["int8"]).rms <= Figures(**figures["int4"]).rms


def test_older_names_and_a_shorter_context_of_deepspeed_give_the_same_bits(tmp_path: Path) -> None:
    chosen = next(case for case in CASES if case.family == "deepspeed_moe")
    oracle = make_checkpoint(chosen, tmp_path)
    long = run_reference(converted(tmp_path, tmp_path, INT8), oracle.ids, "f16")
    tensors = load_file(tmp_path / "model.safetensors")
    older = {
        name.replace(".encoder.", ".transformer.").replace(".self_attention.", ".attention."): tensor
        for name, tensor in tensors.items()
    }
    save_file(older, tmp_path / "model.safetensors")
    path = tmp_path / "short.colibri"
    convert(tmp_path, path, INT8, PROMPT_TOKENS, tokenizer=False, quiet=True)
    short = run_reference(path, oracle.ids, "f16")
    np.testing.assert_array_equal(long.logits, short.logits)
    (entry,) = [tensor for tensor in ReferenceModel(path).file.tensors if tensor.role == Role.POSITION_EMBEDDING]
    assert entry.rows == PROMPT_TOKENS


def test_a_tensor_under_both_of_its_names_is_refused(tmp_path: Path) -> None:
    chosen = next(case for case in CASES if case.family == "deepspeed_moe")
    make_checkpoint(chosen, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "language_model.encoder.final_layernorm.bias"
    tensors[name.replace("encoder", "transformer")] = tensors[name].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ColibriError, match="are names of one tensor; keep one"):
        converted(tmp_path, tmp_path, INT8)


def test_only_a_layer_that_predicts_a_second_token_is_left_out(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.family == "deepseek_v3")
    make_checkpoint(case, tmp_path)
    config, weights = tmp_path / "config.json", tmp_path / "model.safetensors"
    said = json.loads(config.read_text())
    tensors = load_file(weights)
    layer = f"model.layers.{said['num_hidden_layers']}."
    save_file({**tensors, f"{layer}eh_proj.weight": tensors["model.norm.weight"].clone()}, weights)
    with pytest.raises(ColibriError, match=r"eh_proj\.weight, which the architecture has no use for"):
        convert(tmp_path, tmp_path / "b.colibri", FLOAT, tokenizer=False, quiet=True)
    config.write_text(json.dumps(said | {"num_nextn_predict_layers": 1}))
    convert(tmp_path, tmp_path / "b.colibri", FLOAT, tokenizer=False, quiet=True)
