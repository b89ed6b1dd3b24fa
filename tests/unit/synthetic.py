# SPDX-License-Identifier: MIT
"""Small models with random weights, one per combination of records that an engine must run.

They are written by the same job and writer as converted checkpoints. Sizes are odd on purpose:
hidden sizes that are no multiple of 32, vocabularies that are no multiple of 8, five experts.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from colibri import _spec as spec
from colibri._spec import (
    Activation,
    AttentionBlock,
    DType,
    Family,
    FfnBlock,
    FfnKind,
    GroupScore,
    LayerBlock,
    MixerKind,
    MlaBlock,
    ModelBlock,
    MoeBlock,
    NormKind,
    NormPlace,
    PositionKind,
    QkNormKind,
    Role,
    RopeBlock,
    RopeStyle,
    RouterInput,
    RouterNormalise,
    RouterScore,
    SharedBlock,
    SharedGate,
    ShortConvBlock,
)
from colibri.job import Job, Precision, run_job
from colibri.layout import F32
from colibri.records import LayerRecords, Records
from colibri.writer import Slot

PRE = NormPlace.PRE_MIXER | NormPlace.PRE_FFN
INTEGER = Precision(DType.INT4, DType.INT8, DType.F32)
FLOAT = Precision(DType.F32, DType.F32, DType.F32)


@dataclass
class Shape:
    """A model in few words; every field has the value of a plain Mixtral."""

    hidden: int = 72
    vocabulary: int = 101
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    value_dim: int = 16
    intermediate: int = 88
    experts: int = 5
    top_k: int = 2
    context: int = 128
    theta: float = 1e4
    rope_style: RopeStyle = RopeStyle.HALF
    rope_pairs: int = 8
    no_rope_layers: tuple[int, ...] = ()
    dense_layers: tuple[int, ...] = ()
    precision: Precision = INTEGER
    model: dict[str, Any] = field(default_factory=dict)
    layer: dict[str, Any] = field(default_factory=dict)
    attention: dict[str, Any] = field(default_factory=dict)
    moe: dict[str, Any] = field(default_factory=dict)
    ffn: dict[str, Any] = field(default_factory=dict)
    shared: dict[str, Any] | None = None
    mixers: dict[int, MlaBlock | ShortConvBlock] = field(default_factory=dict)  # layers without plain attention


SHAPES: dict[str, Shape] = {
    "mixtral": Shape(),
    "mixtral_f32": Shape(precision=FLOAT),
    "window_tied": Shape(
        hidden=64, heads=6, kv_heads=1, experts=8, top_k=3, rope_style=RopeStyle.INTERLEAVED,
        model={"tied_head": 1}, attention={"window_tokens": 7},
    ),
    "one_expert_wide": Shape(hidden=96, vocabulary=257, experts=1, top_k=1, kv_heads=4, layers=2),
    "small_experts": Shape(hidden=136, intermediate=24, layers=2, experts=8, top_k=3),
    "f16_trunk": Shape(precision=Precision(DType.INT8, DType.F16, DType.BF16), hidden=40),
    "granite": Shape(
        model={"embedding_multiplier": 12.0, "logits_multiplier": 1 / 6, "tied_head": 1},
        layer={"residual_multiplier": 0.22}, attention={"scale": 1 / 64},
        moe={"router_score": RouterScore.SOFTMAX_CHOSEN, "router_normalise": RouterNormalise.NONE},
    ),
    "small_thinker": Shape(
        no_rope_layers=(1,), experts=12, top_k=4,
        moe={"router_input": RouterInput.RESIDUAL_BEFORE_MIXER, "activation": Activation.RELU,
             "router_score": RouterScore.SIGMOID},
    ),
    "olmoe": Shape(
        experts=16, top_k=8, kv_heads=4,
        attention={"qk_norm_kind": QkNormKind.FULL_WIDTH, "qk_norm_eps": 1e-5, "clip_qkv": 0.5},
        moe={"router_normalise": RouterNormalise.NONE},
    ),
    "qwen2": Shape(
        dense_layers=(1,), attention={"q_bias": 1, "kv_bias": 1},
        moe={"router_normalise": RouterNormalise.NONE},
        shared={"intermediate": 56, "gate": SharedGate.SIGMOID},
    ),
    "qwen3": Shape(
        attention={"qk_norm_kind": QkNormKind.PER_HEAD, "qk_norm_eps": 1e-6}, experts=16, top_k=8
    ),
    "lfm2": Shape(
        dense_layers=(0,), attention={"qk_norm_kind": QkNormKind.PER_HEAD, "qk_norm_eps": 1e-5},
        moe={"router_score": RouterScore.SIGMOID, "selection_bias": 1, "router_normalise_eps": 1e-6,
             "routed_scale": 1.5},
    ),
    "partial_rope": Shape(rope_pairs=4, value_dim=24, shared={"intermediate": 40}),
    "deepspeed": Shape(
        dense_layers=(0, 2), no_rope_layers=(0, 1, 2), top_k=1,
        model={"norm_kind": NormKind.LAYER, "position_kind": PositionKind.LEARNED, "position_offset": 2},
        layer={"norm_kind": NormKind.LAYER, "norm_bias": 1},
        attention={"q_bias": 1, "kv_bias": 1, "o_bias": 1},
        moe={"gated": 0, "bias": 1, "activation": Activation.GELU_TANH, "threshold": 0.3,
             "router_normalise": RouterNormalise.NONE, "router_bias": 1},
        ffn={"gated": 0, "bias": 1, "activation": Activation.GELU_ERF},
    ),
    "biased_gates": Shape(
        dense_layers=(0,), experts=6, shared={"intermediate": 40, "bias": 1, "activation": Activation.GELU_ERF},
        layer={"norm_kind": NormKind.LAYER, "norm_places": 15},
        moe={"bias": 1, "activation": Activation.GELU_ERF, "router_score": RouterScore.SOFTMAX_CHOSEN},
        ffn={"bias": 1},
    ),
    "plain_experts": Shape(
        dense_layers=(0, 2), no_rope_layers=(0, 1, 2), top_k=1, rope_pairs=0, attention={"o_bias": 1},
        moe={"gated": 0, "activation": Activation.GELU_TANH, "threshold": 0.3,
             "router_normalise": RouterNormalise.NONE, "router_bias": 1},
        ffn={"gated": 0, "activation": Activation.RELU},
    ),
    "clamped": Shape(
        attention={"q_bias": 1, "kv_bias": 1, "o_bias": 1, "window_tokens": 9},
        moe={"router_score": RouterScore.SOFTMAX_CHOSEN, "router_bias": 1,
             "activation": Activation.SWIGLU_CLAMPED, "clamp": 0.7, "alpha": 1.702},
    ),
    "gpt_oss": Shape(
        attention={"q_bias": 1, "kv_bias": 1, "o_bias": 1, "window_tokens": 9, "sinks": 1},
        moe={"router_score": RouterScore.SOFTMAX_CHOSEN, "router_bias": 1, "bias": 1,
             "activation": Activation.SWIGLU_CLAMPED, "clamp": 7.0, "alpha": 1.702},
    ),
    "short_conv": Shape(
        layers=4, mixers={0: ShortConvBlock(width=72, taps=3), 2: ShortConvBlock(width=40, taps=6, bias=1),
                          3: ShortConvBlock(width=200, taps=1)},
    ),
    "latent": Shape(
        rope_pairs=4, rope_style=RopeStyle.INTERLEAVED, experts=12, top_k=3,
        mixers={
            0: MlaBlock(heads=4, q_rank=40, kv_rank=24, nope_dim=12, rope_dim=8, value_dim=20, scale=0.25,
                        norm_eps=1e-6),
            1: MlaBlock(heads=3, kv_rank=72, nope_dim=16, rope_dim=16, value_dim=16, scale=0.2, norm_eps=1e-6,
                        rope_table=spec.NONE_INDEX, window_tokens=5),
        },
        moe={"router_score": RouterScore.SIGMOID, "selection_bias": 1, "groups": 4, "groups_chosen": 2,
             "group_score": GroupScore.TOP2_SUM},
        shared={"intermediate": 40},
    ),
    "groups": Shape(
        experts=12, top_k=4, precision=FLOAT, mixers={2: ShortConvBlock(width=72, taps=2)},
        moe={"router_normalise": RouterNormalise.NONE, "groups": 6, "groups_chosen": 3, "group_score": GroupScore.MAX},
    ),
    "face_moe": Shape(
        experts=4, moe={"router_score": RouterScore.LOGITS, "router_normalise": RouterNormalise.NONE}
    ),
    "post_norms": Shape(layer={"norm_places": 15}),
    "parallel": Shape(layer={"norm_places": int(NormPlace.PRE_MIXER), "parallel": 1}),
}  # fmt: skip
# Valid records that the C engine of this version refuses; the numpy reference runs them.
REFERENCE_ONLY = ("parallel",)
MIXTRALS = ("mixtral", "mixtral_f32", "window_tied", "one_expert_wide", "f16_trunk")


def records_of(shape: Shape) -> Records:
    """The records of a shape."""
    rope = shape.rope_pairs > 0
    model = ModelBlock(
        family=Family.MIXTRAL,
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        layers=shape.layers,
        context_tokens=shape.context,
        position_kind=PositionKind.ROPE if rope else PositionKind.NONE,
        embedding_multiplier=1.0,
        logits_multiplier=1.0,
        norm_kind=NormKind.RMS,
        norm_eps=1e-5,
    )
    model = replace(model, **shape.model)
    ropes = []
    if rope and model.position_kind == PositionKind.ROPE:
        width = 2 * shape.rope_pairs
        inverse = [float(np.float32(shape.theta ** (-2 * i / width))) for i in range(shape.rope_pairs)]
        ropes.append(RopeBlock(shape.rope_style, shape.rope_pairs, 1.0, 0, inverse))
    layers = [_layer(shape, index, bool(ropes)) for index in range(shape.layers)]
    return Records(model, ropes, layers)


def _layer(shape: Shape, index: int, rope: bool) -> LayerRecords:
    dense = index in shape.dense_layers
    block = LayerBlock(
        index=index,
        mixer_kind={MlaBlock: MixerKind.MLA, ShortConvBlock: MixerKind.SHORT_CONV, type(None): MixerKind.ATTENTION}[
            type(shape.mixers.get(index))
        ],
        ffn_kind=FfnKind.DENSE if dense else FfnKind.MOE,
        norm_kind=NormKind.RMS,
        norm_eps=1e-5,
        norm_places=int(PRE),
        residual_multiplier=1.0,
    )
    attention = AttentionBlock(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        value_dim=shape.value_dim,
        scale=float(np.float32(1 / math.sqrt(shape.head_dim))),
        rope_table=0 if rope and index not in shape.no_rope_layers else spec.NONE_INDEX,
    )
    ffn = FfnBlock(shape.intermediate + 32, Activation.SILU, 1)
    moe = MoeBlock(
        experts=shape.experts,
        top_k=shape.top_k,
        intermediate=shape.intermediate,
        activation=Activation.SILU,
        gated=1,
        router_score=RouterScore.SOFTMAX_ALL,
        router_normalise=RouterNormalise.SUM,
        routed_scale=1.0,
    )
    shared = None
    if shape.shared is not None and not dense:
        shared = replace(SharedBlock(activation=Activation.SILU, gated=1), **shape.shared)
    return LayerRecords(
        replace(block, **shape.layer),
        shape.mixers.get(index) or replace(attention, **shape.attention),
        replace(ffn, **shape.ffn) if dense else replace(moe, **shape.moe),
        shared,
    )


def tensor_values(slot: Slot, seed: int) -> F32:
    """Random values of a tensor: (rows, columns), the same for every run."""
    tensor = slot.tensor
    rng = np.random.default_rng([seed, zlib.crc32(slot.name.encode())])
    values = rng.standard_normal((tensor.rows, tensor.columns)).astype(np.float32)
    if tensor.role.name.endswith("NORM"):
        return (1 + np.float32(0.1) * values).astype(np.float32)
    if tensor.rows == 1 and tensor.role != Role.SHARED_ROUTER:  # a bias or sinks
        return (np.float32(0.2) * values).astype(np.float32)
    if tensor.role == Role.EMBEDDING:
        return values
    if tensor.role == Role.CONV_WEIGHT:
        return values * np.float32(0.6)
    gain = 2.0 if tensor.role in (Role.ROUTER, Role.HEAD) else 1.0
    return (values * np.float32(gain / math.sqrt(tensor.columns))).astype(np.float32)


def write_model(path: Path, shape: Shape, seed: int = 1) -> Path:
    """Write the model of a shape; it has no tokenizer."""

    def rows(slot: Slot, first: int, end: int) -> F32:
        return tensor_values(slot, seed)[first:end]

    run_job(Job(records_of(shape), rows, shape.precision), path, threads=1, quiet=True)
    return path
