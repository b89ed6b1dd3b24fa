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
from colibri.errors import ColibriError, shown
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


# Smallest and largest value. The layers come first: everything else is done once for each of them.
_RANGES = {
    "layers": (1, spec.MAX_LAYERS),
    "hidden": (1, spec.MAX_HIDDEN),
    "vocabulary": (1, spec.MAX_VOCABULARY),
    "context_tokens": (1, spec.MAX_CONTEXT_TOKENS),
    "heads": (1, spec.MAX_HEADS),
    "kv_heads": (1, spec.MAX_HEADS),
    "head_dim": (1, spec.MAX_HEAD_DIM),
    "intermediate": (1, spec.MAX_INTERMEDIATE),
    "experts": (1, spec.MAX_EXPERTS),
    "top_k": (1, spec.MAX_TOP_K),
    "window_tokens": (0, spec.MAX_CONTEXT_TOKENS),
    "rotary_dim": (0, spec.MAX_HEAD_DIM),
}
_MAX_ROPE_THETA = 1e30  # theta ** -1 stays a normal binary32 value


def check_dimension(name: str, value: object, prefix: str = "") -> int:
    """`value` when it is an integer in the range of `name`."""
    low, high = _RANGES[name]
    if type(value) is not int:
        raise ColibriError(Code.ARGUMENT, f"{prefix}{name} is {_shown(value)}, not a whole number")
    if not low <= value <= high:
        raise ColibriError(Code.LIMIT, f"{prefix}{name} is {_shown(value)}, must be {low}..{high}")
    return value


def _shown(value: object) -> str:
    """A value in a message, cut where it would fill the screen."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def check_shape(shape: DecoderShape, prefix: str = "") -> None:
    """Refuse what cannot be computed with, before anything is computed with it."""
    for name in _RANGES:
        check_dimension(name, getattr(shape, name), prefix)
    if not 0 < shape.norm_eps < 1:  # NaN is not
        raise ColibriError(Code.ARGUMENT, f"{prefix}norm_eps is {shape.norm_eps}, must be above 0 and below 1")
    if not 1 <= shape.rope_theta <= _MAX_ROPE_THETA:
        raise ColibriError(
            Code.ARGUMENT, f"{prefix}rope_theta is {shape.rope_theta}, must be 1..{_MAX_ROPE_THETA:g}"
        )


def decoder_records(shape: DecoderShape) -> Records:
    """Records of the decoder; refused when a dimension is outside the format's limits."""
    check_shape(shape)
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
    found = shown(", ".join(architectures) or model_type or "nothing")
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


def _real(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ColibriError(Code.ARGUMENT, f"config.json: {name} is {_shown(value)}, not a number")
    try:
        return float(value)
    except OverflowError as error:
        raise ColibriError(Code.ARGUMENT, f"config.json: {name} is {_shown(value)}, beyond any float") from error


def architectures_of(config: dict[str, Any]) -> list[str]:
    """The list of class names of a config.json; empty where there is none."""
    value = config.get("architectures")
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ColibriError(
            Code.ARGUMENT, f'config.json: architectures is {_shown(value)}, must be a list of names: ["..."]'
        )
    return value


def model_type_of(config: dict[str, Any]) -> str:
    """The model_type of a config.json; empty where there is none."""
    value = config.get("model_type") or ""
    if not isinstance(value, str):
        raise ColibriError(Code.ARGUMENT, f"config.json: model_type is {_shown(value)}, must be a name")
    return value


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
            if not isinstance(value, str) or value not in known:
                raise ColibriError(
                    Code.UNSUPPORTED, f"config.json: activation {_shown(value)}, supported: {', '.join(known)}"
                )
            values[name] = Activation[known[value].upper()]
        elif name == "tied_head":
            if not isinstance(value, bool):
                raise ColibriError(
                    Code.ARGUMENT, f"config.json: {paths[0]} is {_shown(value)}, must be true or false"
                )
            values[name] = value
        elif name in ("norm_eps", "rope_theta"):
            values[name] = _real(name, value)
        elif name == "head_dim" and not found:
            values[name] = 0  # computed below
        else:
            values[name] = check_dimension(name, value, "config.json: ")
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
    shape = DecoderShape(
        family=Family[key.upper()],
        router_score=RouterScore[kinds["router_score"].upper()],
        router_normalise=RouterNormalise[kinds["router_normalise"].upper()],
        rope_style=RopeStyle[kinds["rope_style"].upper()],
        **values,
    )
    check_shape(shape, "config.json: ")
    return shape


def refuse_rope_scaling(config: dict[str, Any]) -> None:
    """Only plain RoPE is converted; every scaling is refused by its name."""
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get(key)
        if table is None:
            continue
        if not isinstance(table, dict):
            raise ColibriError(Code.ARGUMENT, f"config.json: {key} is {_shown(table)}, must be null or an object")
        kind = table.get("rope_type", table.get("type", "default"))
        if kind not in (None, "default"):
            raise ColibriError(
                Code.UNSUPPORTED, f"config.json: {key} of type {_shown(kind)}; supported: default (no scaling)"
            )
        if table.get("partial_rotary_factor", 1.0) != 1.0:
            raise ColibriError(
                Code.UNSUPPORTED,
                f"config.json: {key}.partial_rotary_factor {_shown(table['partial_rotary_factor'])}, supported: 1",
            )
