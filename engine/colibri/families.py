# SPDX-License-Identifier: MIT
"""From a family's configuration to the records of a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from colibri import _spec as spec
from colibri._families import FAMILIES
from colibri._spec import (
    Activation,
    AttentionBlock,
    Code,
    Family,
    LayerBlock,
    ModelBlock,
    MoeBlock,
    NormKind,
    NormPlace,
    PositionKind,
    RopeBlock,
    RopeStyle,
    RouterNormalise,
    RouterScore,
)
from colibri.errors import ColibriError
from colibri.numbers import attention_scale, inverse_frequencies
from colibri.records import LayerRecords, Records, encode_records, parse_records


@dataclass
class DecoderShape:
    """Dimensions and kinds of a decoder whose layers are all alike: grouped-query attention and MoE."""

    family: Family
    hidden: int
    vocabulary: int
    layers: int
    context_tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    experts: int
    top_k: int
    rope_theta: float
    norm_eps: float
    tied_head: bool
    window_tokens: int = 0
    rotary_dim: int = 0  # 0: the whole head
    activation: Activation = Activation.SILU
    router_score: RouterScore = RouterScore.SOFTMAX_ALL
    router_normalise: RouterNormalise = RouterNormalise.SUM
    rope_style: RopeStyle = RopeStyle.HALF


def decoder_records(shape: DecoderShape) -> Records:
    """Records of the decoder; refused when a dimension is outside the format's limits."""
    rotary = shape.rotary_dim or shape.head_dim
    model = ModelBlock(
        family=shape.family,
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        layers=shape.layers,
        context_tokens=shape.context_tokens,
        position_kind=PositionKind.ROPE,
        tied_head=int(shape.tied_head),
        embedding_multiplier=1.0,
        logits_multiplier=1.0,
        norm_kind=NormKind.RMS,
        norm_eps=shape.norm_eps,
    )
    rope = RopeBlock(
        style=shape.rope_style,
        pairs=rotary // 2,
        attention_factor=1.0,
        inv_freq=inverse_frequencies(shape.rope_theta, rotary),
    )
    layers = []
    for index in range(shape.layers):
        layer = LayerBlock(
            index=index,
            mixer_kind=spec.MixerKind.ATTENTION,
            ffn_kind=spec.FfnKind.MOE,
            norm_kind=NormKind.RMS,
            norm_eps=shape.norm_eps,
            norm_places=NormPlace.PRE_MIXER | NormPlace.PRE_FFN,
            residual_multiplier=1.0,
        )
        attention = AttentionBlock(
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            value_dim=shape.head_dim,
            scale=attention_scale(shape.head_dim),
            window_tokens=shape.window_tokens,
            rope_table=0,
        )
        moe = MoeBlock(
            experts=shape.experts,
            top_k=shape.top_k,
            intermediate=shape.intermediate,
            activation=shape.activation,
            gated=1,
            router_score=shape.router_score,
            router_normalise=shape.router_normalise,
            routed_scale=1.0,
        )
        layers.append(LayerRecords(layer, attention, moe))
    records = Records(model, [rope], layers)
    # Through the parser: the reader's own rules name the dimension that is out of range.
    return parse_records(encode_records(records))


def family_of(architectures: list[str], model_type: str) -> str:
    """Key of families.toml for what config.json says; dense and unknown models are refused by name."""
    found = ", ".join(architectures) or model_type or "nothing"
    ready = [name for family in FAMILIES.values() if family["converter"] for name in family["architectures"]]
    for key, family in FAMILIES.items():
        known = any(name in family["architectures"] for name in architectures)
        if not known and (architectures or model_type not in family["model_types"]):
            continue
        if family["converter"]:
            return key
        raise ColibriError(
            Code.UNSUPPORTED,
            f"the checkpoint is {found} (router: {family['router']}), a family that this version "
            f"does not convert; supported: {', '.join(ready)}",
        )
    raise ColibriError(
        Code.UNSUPPORTED,
        f"the checkpoint is {found}, not a Mixture-of-Experts family that is known here; supported: {', '.join(ready)}",
    )


_REQUIRED = object()


def _lookup(config: dict[str, Any], path: str) -> Any:
    value: Any = config
    for part in path.split("."):
        if not isinstance(value, dict) or value.get(part) is None:
            return None
        value = value[part]
    return value


def _number(field: str, value: Any, kind: type) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
        raise ColibriError(Code.ARGUMENT, f"config.json: {field} is {value!r}, not a number")
    return kind(value)


def shape_from_config(key: str, config: dict[str, Any]) -> DecoderShape:
    """Dimensions of a family's config.json."""
    family = FAMILIES[key]
    values: dict[str, Any] = {}
    for name, paths in family["config"].items():
        default = family["defaults"].get(name, _REQUIRED)
        found = [value for value in (_lookup(config, path) for path in paths) if value is not None]
        if not found and default is _REQUIRED:
            raise ColibriError(Code.ARGUMENT, f"config.json has no {' or '.join(paths)}")
        value = found[0] if found else default
        if name == "activation":
            known = family["activations"]
            if value not in known:
                raise ColibriError(
                    Code.UNSUPPORTED, f"config.json: activation {value!r}, supported: {', '.join(known)}"
                )
            values[name] = Activation[known[value].upper()]
        elif name == "tied_head":
            values[name] = bool(value)
        else:
            values[name] = _number(name, value, float if name in ("norm_eps", "rope_theta") else int)
    refuse_rope_scaling(config)
    if not values["head_dim"]:
        if values["hidden"] % values["heads"]:
            raise ColibriError(
                Code.ARGUMENT,
                f"config.json: hidden_size {values['hidden']} is no multiple of {values['heads']} heads and "
                "there is no head_dim",
            )
        values["head_dim"] = values["hidden"] // values["heads"]
    kinds = family["layer"]
    return DecoderShape(
        family=Family[key.upper()],
        router_score=RouterScore[kinds["router_score"].upper()],
        router_normalise=RouterNormalise[kinds["router_normalise"].upper()],
        rope_style=RopeStyle[kinds["rope_style"].upper()],
        **values,
    )


def refuse_rope_scaling(config: dict[str, Any]) -> None:
    """Only plain RoPE is converted; every scaling is refused by its name."""
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get(key)
        if not isinstance(table, dict):
            continue
        kind = table.get("rope_type", table.get("type", "default"))
        if kind not in (None, "default"):
            raise ColibriError(
                Code.UNSUPPORTED, f"config.json: {key} of type {kind!r}; supported: default (no scaling)"
            )
        if table.get("partial_rotary_factor", 1.0) != 1.0:
            raise ColibriError(
                Code.UNSUPPORTED,
                f"config.json: {key}.partial_rotary_factor {table['partial_rotary_factor']}, supported: 1",
            )
