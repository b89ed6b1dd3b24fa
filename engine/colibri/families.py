# SPDX-License-Identifier: MIT
"""From a family's configuration to the records of a decoder."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from colibri import _spec as spec
from colibri._families import ACTIVATIONS, FAMILIES
from colibri._spec import (
    Activation,
    AttentionBlock,
    Code,
    Family,
    FfnBlock,
    GroupScore,
    LayerBlock,
    MlaBlock,
    ModelBlock,
    MoeBlock,
    NormKind,
    NormPlace,
    PositionKind,
    QkNormKind,
    RopeBlock,
    RopeStyle,
    RouterInput,
    RouterNormalise,
    RouterScore,
    SharedBlock,
    SharedGate,
    ShortConvBlock,
)
from colibri.errors import ColibriError, shown
from colibri.numbers import attention_scale
from colibri.records import LayerRecords, Mixer, Records, encode_records, parse_records
from colibri.rope import MAX_THETA, Scaling, frequencies, rope_table, scaling_from_config, score_growth


@dataclass
class DecoderShape:
    """Dimensions and kinds of a decoder of attention and MoE layers, some of them dense."""

    family: Family
    hidden: int
    vocabulary: int
    layers: int
    context_tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int  # of an expert
    experts: int
    top_k: int
    rope_theta: float
    norm_eps: float
    tied_head: bool
    window_tokens: int = 0
    window_layers: frozenset[int] | None = None  # None: all
    rope_layers: frozenset[int] | None = None  # None: all; the others have no positions
    rotary_dim: int = 0  # 0: the whole head
    scaling: Scaling = field(default_factory=Scaling)
    activation: Activation = Activation.SILU
    router_score: RouterScore = RouterScore.SOFTMAX_ALL
    router_normalise: RouterNormalise = RouterNormalise.SUM
    router_input: RouterInput = RouterInput.FFN_INPUT
    routed_scale: float = 1.0
    threshold: float = 0.0  # 0: none; below it a chosen expert is left out
    gated: bool = True
    norm: NormKind = NormKind.RMS  # LAYER: with a bias
    positions: PositionKind = PositionKind.ROPE
    ffn_bias: bool = False
    rope_style: RopeStyle = RopeStyle.HALF
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: QkNormKind = QkNormKind.NONE
    clip_qkv: float = 0.0  # 0: none
    attention_scale: float = 0.0  # 0: 1 / sqrt(head_dim)
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_divisor: float = 1.0
    shared_intermediate: int = 0  # 0: no shared expert
    shared_gate: SharedGate = SharedGate.NONE
    dense_layers: frozenset[int] = frozenset()
    dense_intermediate: int = 0
    clamp: float = 0.0  # of swiglu_clamped
    alpha: float = 0.0
    router_bias: bool = False
    selection_bias: bool = False
    normalise_eps: float = 0.0
    groups: int = 0  # 0: none
    groups_chosen: int = 0
    group_score: GroupScore = GroupScore.NONE
    sinks: bool = False
    conv_layers: frozenset[int] = frozenset()  # those with a short convolution instead of attention
    conv_taps: int = 0
    conv_bias: bool = False
    kv_rank: int = 0  # 0: no latent attention; then head_dim is what the channels below add up to
    q_rank: int = 0  # 0: queries without a latent vector
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0  # 0: head_dim
    latent_eps: float = 0.0

    @property
    def part_rows(self) -> dict[str, int]:
        """Rows of one head that names of families.toml speak of."""
        return {"head": self.head_dim, "nope": self.nope_dim, "value": self.value_dim}


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
    "shared_intermediate": (0, spec.MAX_INTERMEDIATE),
    "dense_intermediate": (0, spec.MAX_INTERMEDIATE),
    "groups": (0, spec.MAX_EXPERTS),
    "groups_chosen": (0, spec.MAX_EXPERTS),
    "conv_taps": (0, spec.MAX_HEAD_DIM),
    "kv_rank": (0, spec.MAX_HIDDEN),
    "q_rank": (0, spec.MAX_HIDDEN),
    "nope_dim": (0, spec.MAX_HEAD_DIM),
    "rope_dim": (0, spec.MAX_HEAD_DIM),
    "value_dim": (0, spec.MAX_HEAD_DIM),
    "leading_dense": (0, spec.MAX_LAYERS),  # of a configuration, as the rest
    "shared_experts": (0, spec.MAX_EXPERTS),
    "intermediate_of_all": (1, spec.MAX_INTERMEDIATE * spec.MAX_EXPERTS),  # of a configuration, as is
    "sparse_step": (1, spec.MAX_LAYERS),  # this
}
# Numbers that are above 0 and at most this; those of the second group may be 0, which is "none".
_MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "logits_divisor", "routed_scale")
_OPTIONAL_REALS = ("clip_qkv", "attention_scale", "threshold", "clamp", "alpha")
_MAX_REAL = 1e6


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
        if hasattr(shape, name):
            check_dimension(name, getattr(shape, name), prefix)
    if not 0 < shape.norm_eps < 1:  # NaN is not
        raise ColibriError(Code.ARGUMENT, f"{prefix}norm_eps is {shape.norm_eps}, must be above 0 and below 1")
    if not 1 <= shape.rope_theta <= MAX_THETA:
        raise ColibriError(Code.ARGUMENT, f"{prefix}rope_theta is {shape.rope_theta}, must be 1..{MAX_THETA:g}")
    for name in (*_MULTIPLIERS, *_OPTIONAL_REALS):
        value = getattr(shape, name)
        low = "0" if name in _OPTIONAL_REALS else f"above {1 / _MAX_REAL:g}"
        if not (value == 0 and name in _OPTIONAL_REALS) and not 1 / _MAX_REAL <= value <= _MAX_REAL:
            raise ColibriError(Code.ARGUMENT, f"{prefix}{name} is {value}, must be {low}..{_MAX_REAL:g}")
    if len(shape.dense_layers) >= shape.layers:
        raise ColibriError(
            Code.UNSUPPORTED,
            f"{prefix}all {shape.layers} layers are dense; only models with experts are converted",
        )
    if shape.dense_layers:
        check_dimension("intermediate", shape.dense_intermediate, f"{prefix}dense ")


def decoder_records(shape: DecoderShape) -> Records:
    """Records of the decoder; refused when a dimension is outside the format's limits."""
    check_shape(shape)
    rotary = shape.rope_dim or shape.rotary_dim or shape.head_dim
    model = ModelBlock(
        family=shape.family,
        hidden=shape.hidden,
        vocabulary=shape.vocabulary,
        layers=shape.layers,
        context_tokens=shape.context_tokens,
        position_kind=shape.positions,
        tied_head=int(shape.tied_head),
        embedding_multiplier=shape.embedding_multiplier,
        logits_multiplier=1 / shape.logits_divisor,
        norm_kind=shape.norm,
        norm_eps=shape.norm_eps,
    )
    ropes = []
    if shape.positions == PositionKind.ROPE:
        inv_freq, factor = frequencies(shape.rope_theta, rotary, shape.scaling)
        ropes = [RopeBlock(style=shape.rope_style, pairs=rotary // 2, attention_factor=factor, inv_freq=inv_freq)]
    records = Records(model, ropes, [_layer_records(shape, index) for index in range(shape.layers)])
    # Through the parser: the reader's own rules name the dimension that is out of range.
    return parse_records(encode_records(records))


def _layer_records(shape: DecoderShape, index: int) -> LayerRecords:
    dense = index in shape.dense_layers
    layer = LayerBlock(
        index=index,
        mixer_kind=spec.MixerKind.ATTENTION,
        ffn_kind=spec.FfnKind.DENSE if dense else spec.FfnKind.MOE,
        norm_kind=shape.norm,
        norm_bias=int(shape.norm == NormKind.LAYER),
        norm_eps=shape.norm_eps,
        norm_places=NormPlace.PRE_MIXER | NormPlace.PRE_FFN,
        residual_multiplier=shape.residual_multiplier,
    )
    mixer = _mixer(shape, index)
    if isinstance(mixer, ShortConvBlock):
        layer.mixer_kind = spec.MixerKind.SHORT_CONV
    elif isinstance(mixer, MlaBlock):
        layer.mixer_kind = spec.MixerKind.MLA
    if dense:
        ffn = FfnBlock(
            intermediate=shape.dense_intermediate,
            activation=shape.activation,
            gated=int(shape.gated),
            bias=int(shape.ffn_bias),
            clamp=shape.clamp,
            alpha=shape.alpha,
        )
        return LayerRecords(layer, mixer, ffn)
    moe = MoeBlock(
        experts=shape.experts,
        top_k=shape.top_k,
        intermediate=shape.intermediate,
        activation=shape.activation,
        gated=int(shape.gated),
        bias=int(shape.ffn_bias),
        clamp=shape.clamp,
        alpha=shape.alpha,
        router_score=shape.router_score,
        router_normalise=shape.router_normalise,
        router_normalise_eps=shape.normalise_eps,
        router_input=shape.router_input,
        router_bias=int(shape.router_bias),
        selection_bias=int(shape.selection_bias),
        groups=shape.groups,
        groups_chosen=shape.groups_chosen,
        group_score=shape.group_score,
        routed_scale=shape.routed_scale,
        threshold=shape.threshold,
    )
    shared = None
    if shape.shared_intermediate:
        shared = SharedBlock(
            intermediate=shape.shared_intermediate,
            activation=shape.activation,
            gated=1,
            bias=int(shape.ffn_bias),
            gate=shape.shared_gate,
        )
    return LayerRecords(layer, mixer, moe, shared)


def _mixer(shape: DecoderShape, index: int) -> Mixer:
    """What mixes tokens in layer `index`."""
    if index in shape.conv_layers:
        return ShortConvBlock(width=shape.hidden, taps=shape.conv_taps, bias=int(shape.conv_bias))
    rotated = shape.positions == PositionKind.ROPE and (shape.rope_layers is None or index in shape.rope_layers)
    windowed = shape.window_layers is None or index in shape.window_layers
    table = 0 if rotated else spec.NONE_INDEX
    if shape.kv_rank:
        plain = attention_scale(shape.nope_dim + shape.rope_dim)
        return MlaBlock(
            heads=shape.heads,
            q_rank=shape.q_rank,
            kv_rank=shape.kv_rank,
            nope_dim=shape.nope_dim,
            rope_dim=shape.rope_dim,
            value_dim=shape.value_dim,
            scale=plain * score_growth(shape.scaling),
            rope_table=table,
            norm_eps=shape.latent_eps,
            window_tokens=shape.window_tokens if windowed else 0,
        )
    return AttentionBlock(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        value_dim=shape.head_dim,
        scale=shape.attention_scale or attention_scale(shape.head_dim),
        window_tokens=shape.window_tokens if windowed else 0,
        rope_table=table,
        qk_norm_kind=shape.qk_norm,
        qk_norm_eps=shape.norm_eps if shape.qk_norm else 0.0,
        clip_qkv=shape.clip_qkv,
        q_bias=int(shape.qkv_bias),
        kv_bias=int(shape.qkv_bias),
        o_bias=int(shape.o_bias),
        sinks=int(shape.sinks),
    )


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


# Keys of the configuration that no forward pass reads.
_TRAINING_ONLY = ("expert_capacity", "router_jitter")


def config_notes(config: dict[str, Any], version: str) -> list[str]:
    """What of a config.json is ignored; `version` is that of this package."""
    notes = [
        f"config.json: {key} {_shown(config[key])} is for training; ignored" for key in _TRAINING_ONLY if key in config
    ]
    asked = config.get("colibri_version")
    if asked is not None:
        found = re.fullmatch(r"(\d{1,9})(\.\d{1,9})*", asked) if isinstance(asked, str) else None
        if found is None:
            raise ColibriError(
                Code.ARGUMENT, f'config.json: colibri_version is {_shown(asked)}, must be a version: "{version}"'
            )
        if found[1] != version.split(".")[0]:
            notes.append(f"config.json was written for colibri {asked}, this is {version}: compare the results")
    return notes


_REALS = ("norm_eps", "rope_theta", *_MULTIPLIERS, *_OPTIONAL_REALS)
_BOOLEANS = (
    *("tied_head", "normalise", "qkv_bias", "o_bias", "windowed", "early_router", "softmax_router", "selection_bias"),
    *("conv_bias", "interleaved"),
)
_WORDS = ("grouping",)
_LISTS = ("dense_layers", "layer_types", "rope_layout", "window_layout", "sparse_layout")
# What a family may fix by name of the format: field of DecoderShape -> its enum.
_KINDS: dict[str, Any] = {
    "router_score": RouterScore,
    "router_normalise": RouterNormalise,
    "router_input": RouterInput,
    "rope_style": RopeStyle,
    "qk_norm": QkNormKind,
    "shared_gate": SharedGate,
    "activation": Activation,
    "norm": NormKind,
    "positions": PositionKind,
    "group_score": GroupScore,
}


def _value(name: str, key: str, value: Any) -> Any:
    """A value of config.json, checked by what `name` is; `key` is what the file calls it."""
    if name == "activation":
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise ColibriError(
                Code.UNSUPPORTED, f"config.json: activation {_shown(value)}, supported: {', '.join(ACTIVATIONS)}"
            )
        return Activation[ACTIVATIONS[value].upper()]
    if name in _BOOLEANS:
        if not isinstance(value, bool):
            raise ColibriError(Code.ARGUMENT, f"config.json: {key} is {_shown(value)}, must be true or false")
        return value
    if name in _REALS:
        return _real(name, value)
    if name in _WORDS:
        return str(value)
    if name in _LISTS:
        if not isinstance(value, list):
            raise ColibriError(Code.ARGUMENT, f"config.json: {key} is {_shown(value)}, must be a list")
        return value
    return check_dimension(name, value, "config.json: ")


def _config_values(family: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Every field of the family's table `config`; an absent key has its default."""
    values: dict[str, Any] = {}
    for name, paths in family["config"].items():
        default = family["defaults"].get(name, _REQUIRED)
        found = [(path, value) for path in paths if (value := _lookup(config, path)) is not None]
        if not found and default is _REQUIRED:
            raise ColibriError(Code.ARGUMENT, f"config.json has no {' or '.join(paths)}")
        if found:
            values[name] = _value(name, *found[0])
        elif name == "window_tokens" and any(path in config for path in paths):
            values[name] = 0  # null is no window, whatever an absent key means
        else:
            values[name] = Activation[default.upper()] if name == "activation" else default
    for key, accepted in family.get("refused", {}).items():
        value = _lookup(config, key)
        if value is not None and value not in accepted:
            known = ", ".join(_shown(item) for item in accepted)
            raise ColibriError(Code.UNSUPPORTED, f"config.json: {key} is {_shown(value)}, supported: {known}")
    return values


def _dense_layers(values: dict[str, Any]) -> frozenset[int]:
    """The layers without experts: those that are listed, and those between two of every `sparse_step`."""
    layers, step = values["layers"], values.pop("sparse_step", 1)
    listed = [*values.pop("dense_layers", []), *range(min(layers, values.pop("leading_dense", 0)))]
    if not all(type(index) is int and 0 <= index < layers for index in listed):
        raise ColibriError(
            Code.ARGUMENT, f"config.json: dense layers are {_shown(listed)}, must be numbers of layers, 0..{layers - 1}"
        )
    sparse = _layout(values, "sparse_layout")
    unlisted = frozenset[int]() if sparse is None else frozenset(range(layers)) - sparse
    return frozenset(listed) | unlisted | {index for index in range(layers) if (index + 1) % step}


def _layout(values: dict[str, Any], name: str) -> frozenset[int] | None:
    """The layers with a 1 in a list of 0 and 1; None where there is no list."""
    listed = values.pop(name, [])
    if not listed:
        return None
    if len(listed) != values["layers"] or not all(type(flag) is int and flag in (0, 1) for flag in listed):
        raise ColibriError(
            Code.ARGUMENT,
            f"config.json: {name} is {_shown(listed)}, must be 0 or 1 for each of {values['layers']} layers",
        )
    return frozenset(index for index, flag in enumerate(listed) if flag)


def _router_kinds(values: dict[str, Any]) -> dict[str, Any]:
    """What booleans of the configuration say of the router."""
    kinds: dict[str, Any] = {}
    if "normalise" in values:
        kinds["router_normalise"] = RouterNormalise.SUM if values.pop("normalise") else RouterNormalise.NONE
    if "softmax_router" in values:
        softmax = values.pop("softmax_router")
        kinds["router_score"] = RouterScore.SOFTMAX_CHOSEN if softmax else RouterScore.SIGMOID
    if "early_router" in values:
        early = values.pop("early_router")
        kinds["router_input"] = RouterInput.RESIDUAL_BEFORE_MIXER if early else RouterInput.FFN_INPUT
    return kinds


def group_kinds(values: dict[str, Any], prefix: str = "config.json: ") -> dict[str, Any]:
    """Groups of experts, where the configuration chooses some of them first."""
    if "groups" not in values:
        return {}
    if values.pop("grouping", "") == "greedy" or values["groups"] <= 1:  # none, whatever the numbers say
        values["groups"] = values["groups_chosen"] = 0
        return {"group_score": GroupScore.NONE}
    groups, chosen, experts = values["groups"], values["groups_chosen"], values["experts"]
    if experts % groups or not 1 <= chosen <= groups or values["top_k"] > chosen * (experts // groups):
        raise ColibriError(
            Code.ARGUMENT,
            f"{prefix}{chosen} of {groups} groups of {experts} experts, {values['top_k']} for a token, do not go "
            "together: groups are of one size, and those that are chosen hold the experts of a token",
        )
    return {}


def _conv_layers(values: dict[str, Any]) -> frozenset[int]:
    """The layers that `layer_types` calls conv; it is used up where the family has such layers."""
    if "conv_taps" not in values:
        return frozenset()
    types, layers = values.pop("layer_types"), values["layers"]
    if len(types) != layers or not all(kind in ("conv", "full_attention") for kind in types):
        raise ColibriError(
            Code.ARGUMENT,
            f"config.json: layer_types is {_shown(types)}, must be conv or full_attention for each of {layers} layers",
        )
    return frozenset(index for index, kind in enumerate(types) if kind == "conv")


def _window_layers(values: dict[str, Any], family: dict[str, Any]) -> frozenset[int] | None:
    """The layers with a sliding window, None for all; without any, window_tokens becomes 0."""
    windowed, types = values.pop("windowed", True), values.pop("layer_types", [])
    layers = values["layers"]
    layout = _layout(values, "window_layout")
    if not windowed or ("window_layout" in family["config"] and not layout):
        values["window_tokens"] = 0
    if layout:
        return layout
    if not values.get("window_tokens") or "layer_types" not in family["config"]:
        if windowed and "sliding_attention" in types:
            raise ColibriError(
                Code.ARGUMENT,
                "config.json: layer_types has sliding_attention, and sliding_window is null or 0; give it",
            )
        return None
    known = ("full_attention", "sliding_attention")
    if len(types) != layers or not all(kind in known for kind in types):
        raise ColibriError(
            Code.ARGUMENT,
            f"config.json: layer_types is {_shown(types)}, with use_sliding_window it must say "
            f"{' or '.join(known)} for each of {layers} layers; save the checkpoint with a newer transformers",
        )
    return frozenset(index for index, kind in enumerate(types) if kind == "sliding_attention")


def _split_experts(values: dict[str, Any]) -> None:
    """The size of an expert where the configuration gives that of all together."""
    total = values.pop("intermediate_of_all", None)
    if total is None:
        return
    if total % values["experts"]:
        raise ColibriError(
            Code.UNSUPPORTED,
            f"config.json: intermediate_size {total} is no multiple of {values['experts']} experts; "
            "only experts of one size are converted",
        )
    values["intermediate"] = total // values["experts"]


def fixed_kinds(layer: dict[str, Any]) -> dict[str, Any]:
    """What a table `layer` of families.toml fixes: names of the format as their kinds."""
    return {name: _KINDS[name][value.upper()] if name in _KINDS else value for name, value in layer.items()}


def shape_from_config(key: str, config: dict[str, Any]) -> DecoderShape:
    """Dimensions of a family's config.json."""
    family = FAMILIES[key]
    rope_key, rope = rope_table(config, family.get("rope_parameters", {}))
    if rope.get("rope_theta") is not None:
        config = {**config, "rope_theta": rope["rope_theta"]}
    values = _config_values(family, config)
    dense = _dense_layers(values)
    convolutions = _conv_layers(values)
    windows = _window_layers(values, family)
    rope_layers = _layout(values, "rope_layout")
    latent = "kv_rank" in values
    scaling = scaling_from_config(config, rope_key, rope, values["context_tokens"], latent)
    if latent:
        values["head_dim"] = values["nope_dim"] + values["rope_dim"]
    if not values["head_dim"]:
        if values["hidden"] % values["heads"]:
            raise ColibriError(
                Code.ARGUMENT,
                f"config.json: hidden_size {values['hidden']} is no multiple of {values['heads']} heads and "
                "there is no head_dim",
            )
        values["head_dim"] = values["hidden"] // values["heads"]
    values["kv_heads"] = values.get("kv_heads") or values["heads"]
    kinds = fixed_kinds(family["layer"])
    kinds |= _router_kinds(values)
    kinds |= group_kinds(values)
    if "interleaved" in values:
        kinds["rope_style"] = RopeStyle.INTERLEAVED if values.pop("interleaved") else RopeStyle.HALF
    if "shared_experts" in values:
        values["shared_intermediate"] = values.pop("shared_experts") * values["intermediate"]
    if kinds.pop("one_keeps_its_share", False) and values["top_k"] == 1:
        kinds["router_normalise"] = RouterNormalise.NONE
    _split_experts(values)
    shape = DecoderShape(
        family=Family[key.upper()],
        dense_layers=dense,
        window_layers=windows,
        conv_layers=convolutions,
        rope_layers=rope_layers,
        scaling=scaling,
        **kinds,
        **values,
    )
    check_shape(shape, "config.json: ")
    return shape


# --------------------------------------------------------------------------- names of tensors

_PART = re.compile(
    r"(?P<name>.*)\[(?P<kernels>kernels)?(?P<transposed>transposed)?(, )?"
    r"(heads of (?P<heads>\w+)|(?P<part>\d+)/(?P<parts>\d+)(?P<how> of every head| alternating)?"
    r"|(?P<run>\w+) of (?P<all>\w+(\+\w+)*))?\]"
)


@dataclass(frozen=True)
class TensorName:
    """A name of families.toml, and which rows of that tensor of the checkpoint are meant.

    period: names of the runs of rows that repeat, or how many equal ones; of each period, `part` is meant.
    An equal run has the rows of the whole tensor (`run` is all), of a head (head), or one (row).
    """

    template: str
    part: int = 0
    period: tuple[str, ...] = ("all",)
    transposed: bool = False  # stored [columns][rows]
    kernels: bool = False  # stored [columns][1][rows]: those of a convolution of each channel
    heads: str = ""  # stored as a stack of heads of the rows with this name

    @classmethod
    def parse(cls, text: str) -> TensorName:
        """From `name`, or with `[kernels]` behind it, or one of these, where `transposed, ` may stand first in each:
        `[1/3]`: the second third of the rows; `[1/3 of every head]`; `[1/2 alternating]`: every second row;
        `[value of nope+value]`: the rows called value where runs of nope rows and of value rows take turns;
        `[heads of value]`: of a stack [head][row][column] with value rows to a head.
        """
        found = _PART.fullmatch(text)
        if found is None:
            return cls(text)
        name, transposed = found["name"], found["transposed"] is not None
        if found["heads"]:
            return cls(name, transposed=transposed, heads=found["heads"])
        if found["all"]:
            period = tuple(found["all"].split("+"))
            return cls(name, period.index(found["run"]), period, transposed)
        if not found["parts"]:
            return cls(name, transposed=transposed, kernels=found["kernels"] is not None)
        kinds = {" of every head": "head", " alternating": "row", None: "all"}
        return cls(name, int(found["part"]), (kinds[found["how"]],) * int(found["parts"]), transposed)

    def _lengths(self, rows: int, sizes: dict[str, int]) -> list[int]:
        """Rows of each run of the period; rows: of this part in all."""
        return [{"all": rows, "row": 1}.get(name, sizes.get(name, 0)) for name in self.period]

    def stored_rows(self, rows: int, sizes: dict[str, int]) -> int:
        """Rows of the tensor of which this part has `rows`."""
        lengths = self._lengths(rows, sizes)
        return rows // max(1, lengths[self.part]) * sum(lengths)

    def runs(self, first: int, end: int, rows: int, sizes: dict[str, int]) -> list[tuple[int, int]]:
        """Where rows first..end of this part, which has `rows`, lie in the tensor: (first, end) of each run."""
        lengths = self._lengths(rows, sizes)
        length, period, skipped = lengths[self.part], sum(lengths), sum(lengths[: self.part])
        found = []
        for run in range(first // length, -(-end // length)):
            start = run * period + skipped - run * length
            found.append((start + max(first, run * length), start + min(end, (run + 1) * length)))
        return found

    @property
    def stacked(self) -> bool:
        """Whether the name of an expert's tensor is that of a stack of all experts."""
        return "{expert}" not in self.template
