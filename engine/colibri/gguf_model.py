# SPDX-License-Identifier: MIT
"""From the metadata of a GGUF file to the shape of its decoder.

What an architecture calls things, and what it fixes without saying so, is in families.toml. What a file
says and the records do not get is refused by its key.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

from colibri._families import FAMILIES, GGUF
from colibri._spec import MAX_CONTEXT_TOKENS, Code, Family, RouterNormalise, RouterScore
from colibri.errors import ColibriError, shown
from colibri.families import DecoderShape, TensorName, check_dimension, fixed_kinds, group_kinds
from colibri.gguf_reader import Gguf
from colibri.job import RowSource
from colibri.layout import F32
from colibri.records import Records
from colibri.rope import MAX_FACTOR, Scaling
from colibri.writer import Slot

_MULTIPLIERS = (
    *("attention_scale", "embedding_multiplier", "residual_multiplier", "logits_divisor"),
    *("clip_qkv", "routed_scale"),
)
# Keys of layers with a window -> the key of all layers that must say the same.
_SAME = {
    "rope.freq_base_swa": "rope.freq_base",
    "rope.dimension_count_swa": "rope.dimension_count",
    "attention.key_length_swa": "attention.key_length",
    "attention.value_length_swa": "attention.value_length",
}


class _Metadata:
    """The values of one file under the names that its architecture's table has for them."""

    def __init__(self, source: Gguf) -> None:
        architecture = source.value("general.architecture")
        if not isinstance(architecture, str) or architecture not in GGUF:
            raise ColibriError(
                Code.UNSUPPORTED,
                f"{source.path}: GGUF architecture {shown(repr(architecture))}, supported: {', '.join(GGUF)}",
            )
        self.source, self.architecture = source, architecture
        self.table: dict[str, Any] = GGUF[architecture]
        self.keys: dict[str, str] = self.table["config"]
        self.prefix = f"{source.path}: "

    def under(self, key: str) -> Any:
        """The value of a key of the architecture, None where it is absent."""
        return self.source.value(f"{self.architecture}.{key}")

    def refusal(self, key: str, found: Any, supported: Any, code: Code = Code.UNSUPPORTED) -> ColibriError:
        # What is supported may be another value of the file.
        text = f"{self.prefix}{self.architecture}.{key} is {shown(repr(found))}, supported: {shown(str(supported))}"
        return ColibriError(code, text)

    def value(self, name: str, default: Any = None) -> Any:
        """The value called `name`; without a default it must be there."""
        found = self.source.value(self.keys[name]) if name in self.keys else None
        if found is None and default is None:
            raise ColibriError(Code.ARGUMENT, f"{self.source.path} has no {self.keys[name]}")
        return default if found is None else found

    def dimension(self, name: str, default: int | None = None) -> int:
        return check_dimension(name, self.value(name, default), self.prefix)

    def real(self, name: str, default: float | None = None) -> float:
        found = self.value(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ColibriError(Code.ARGUMENT, f"{self.prefix}{self.keys[name]} is {shown(repr(found))}, not a number")
        return float(found)

    def scaling_number(self, key: str, default: float | None = None, low: float = 1e-6) -> float:
        """A number of the RoPE scaling."""
        found = self.under(f"rope.scaling.{key}")
        found = default if found is None else found
        if isinstance(found, bool) or not isinstance(found, int | float) or not low <= found <= MAX_FACTOR:
            raise ColibriError(
                Code.ARGUMENT,
                f"{self.prefix}{self.architecture}.rope.scaling.{key} is {shown(repr(found))}, must be "
                f"{low:g}..{MAX_FACTOR:g}",
            )
        return float(found)


def _scaling(data: _Metadata) -> Scaling:
    """What the file says about longer contexts. As in llama.cpp, a factor without a type is linear."""
    kind = data.under("rope.scaling.type")
    if kind is None:
        kind = "none" if data.under("rope.scaling.factor") in (None, 0.0, 1.0) else "linear"
    if "rope_freqs.weight" in data.source.shapes():
        kind = "rope_freqs.weight"
    if kind not in ("none", "linear", "yarn"):
        raise ColibriError(
            Code.UNSUPPORTED, f"{data.prefix}RoPE scaling {shown(str(kind))}, supported: none, linear, yarn"
        )
    if kind == "none":
        return Scaling()
    factor = data.scaling_number("factor", low=1)
    extent = 1.0 if kind == "yarn" else 0.0
    found = data.under("rope.scaling.yarn_ext_factor")
    if found not in (None, extent):
        raise data.refusal("rope.scaling.yarn_ext_factor", found, extent)
    if kind == "linear":
        found = data.under("rope.scaling.yarn_log_multiplier")
        if found not in (None, 0.0):
            raise data.refusal("rope.scaling.yarn_log_multiplier", found, "0.0 where the scaling is linear")
        return Scaling(kind, factor)
    trained = data.under("rope.scaling.original_context_length")
    if type(trained) is not int or not 1 <= trained <= MAX_CONTEXT_TOKENS:
        raise data.refusal(
            "rope.scaling.original_context_length", trained, f"1..{MAX_CONTEXT_TOKENS}", Code.ARGUMENT
        )
    low, high = data.scaling_number("yarn_beta_slow", 1.0), data.scaling_number("yarn_beta_fast", 32.0)
    mscale = 0.0
    if "log_multiplier" in data.keys:
        # A tenth of mscale_all_dim, rounded to f32: ten times the shortest number that rounds to it is what was meant.
        # mscale, of which the files say nothing, is the same number in all published models.
        tenth = np.float32(data.scaling_number("yarn_log_multiplier"))
        mscale = float(Decimal(str(tenth)) * 10)
    return Scaling(kind, factor, trained, low, high, 0.0, data.table.get("truncate", True), mscale, mscale)


def _check_keys(data: _Metadata, context_tokens: int) -> None:
    """Refuse what the file asks for and this architecture's table does not read."""
    for key, accepted in data.table["refused"].items():
        found = data.under(key)
        if found is not None and found not in accepted and f"{data.architecture}.{key}" not in data.keys.values():
            raise data.refusal(key, found, ", ".join(map(str, accepted)) or "none")
    for key, other in _SAME.items():
        found = data.under(key)
        if found is not None and found != data.under(other):
            raise data.refusal(key, found, f"that of {other}, {data.under(other)}")
    window = data.under("attention.sliding_window")
    if "window_tokens" not in data.keys and window and not (type(window) is int and window >= context_tokens):
        raise data.refusal("attention.sliding_window", window, "none")


def _repeated(pattern: list[int], layers: int) -> frozenset[int]:
    """The layers that have a 1 where `pattern` is repeated."""
    return frozenset(index for index in range(layers) if pattern[index % len(pattern)])


def _windows(data: _Metadata, layers: int) -> dict[str, Any]:
    """Sliding windows, and positions of the layers that have one, in architectures that fix where they are."""
    if "slides" not in data.table:
        return {}
    rotates = data.table.get("rotates_where_it_slides", False)
    tokens = data.dimension("window_tokens", 0 if rotates else None)
    if not tokens:
        return {}
    slides = _repeated(data.table["slides"], layers)
    key, period = "attention.sliding_window_pattern", len(data.table["slides"])
    said = data.under(key)  # the period, or a flag of each layer
    if said is not None and said not in (period, [index in slides for index in range(layers)]):
        raise data.refusal(key, said, period)
    rotated = {"rope_layers": slides} if rotates else {}
    return {"window_tokens": tokens, "window_layers": slides, **rotated}


def _kv_heads(data: _Metadata, heads: int, layers: int) -> dict[str, Any]:
    """KV heads, and the layers that have none: those of a convolution, where the architecture has them."""
    found = data.value("kv_heads", heads)
    if "conv_taps" not in data.keys:
        return {"kv_heads": found}
    counts = {count for count in found if count} if isinstance(found, list) and len(found) == layers else set()
    if len(counts) != 1 or not all(type(count) is int for count in found):
        raise data.refusal("attention.head_count_kv", found, f"0 or one number for each of {layers} layers")
    convolutions = frozenset(index for index, count in enumerate(found) if not count)
    return {"kv_heads": counts.pop(), "conv_layers": convolutions, "conv_taps": data.dimension("conv_taps")}


def _latent(data: _Metadata) -> dict[str, Any]:
    """Sizes of latent attention. Files that store k_b and v_b apart describe one wide head, and each under `_mla`."""
    if "kv_rank" not in data.keys:
        return {}
    rope = data.dimension("rope_dim")
    whole = data.dimension("head_dim")
    if data.under("attention.key_length_mla") is not None:
        whole = check_dimension("head_dim", data.under("attention.key_length_mla"), data.prefix)
    value = data.under("attention.value_length_mla")
    value = data.under("attention.value_length") if value is None else value
    if whole <= rope:
        raise data.refusal("rope.dimension_count", rope, f"below {whole}, the channels of a head", Code.ARGUMENT)
    return {
        "kv_rank": data.dimension("kv_rank"),
        "q_rank": data.dimension("q_rank", 0),
        "nope_dim": whole - rope,
        "rope_dim": rope,
        "value_dim": check_dimension("value_dim", value, data.prefix),
    }


def _router(data: _Metadata) -> dict[str, Any]:
    """What the architecture and the file say of the router; `family` is among it."""
    gating = data.under("expert_gating_func")
    known: dict[str, Any] = data.table["gating"]
    name = "none" if gating is None else str(gating)
    if name not in known:
        supported = ", ".join(number for number in known if number.isdigit() and number != "0")
        raise data.refusal("expert_gating_func", gating, supported)
    chosen = {"family": data.table.get("family", ""), **known[name]}
    family = chosen.pop("family")
    kinds = fixed_kinds(FAMILIES[family]["layer"] | data.table["layer"] | chosen)
    if "normalise" in data.keys:
        normalised = data.value("normalise", False)
        accepted = data.table["normalised"].get(family, [True, False])
        if normalised not in accepted:
            raise data.refusal("expert_weights_norm", normalised, ", ".join(map(str, accepted)))
        kinds["router_normalise"] = RouterNormalise.SUM if normalised else RouterNormalise.NONE
    sums_to_one = (
        kinds["router_score"] == RouterScore.SOFTMAX_CHOSEN
        or kinds.get("router_normalise", RouterNormalise.SUM) == RouterNormalise.SUM
    )
    for key, name, expected in (("norm", "normalise", sums_to_one), ("scale", "routed_scale", 1.0)):
        found = data.under(f"expert_weights_{key}")
        if name not in data.keys and found is not None and found != expected:
            raise data.refusal(f"expert_weights_{key}", found, expected)
    return {"family": family, **kinds}


def gguf_shape(source: Gguf, experts: int | None = None, top_k: int | None = None) -> DecoderShape:
    """Dimensions of a GGUF file; a recipe gives `experts` and `top_k` for a dense one."""
    data = _Metadata(source)
    keys, names, shapes = data.keys, data.table["tensors"], source.shapes()
    if experts is None and not source.value(keys["experts"]):
        name = shown(str(source.value("general.name")))
        raise ColibriError(
            Code.UNSUPPORTED,
            f"{source.path} is a dense model ({name}): it has no {keys['experts']}; "
            "only Mixture-of-Experts models are converted (a recipe can make one of it)",
        )
    if experts is not None and not data.table.get("dense"):
        raise ColibriError(
            Code.UNSUPPORTED,
            f"{source.path}: GGUF architecture {data.architecture} is no dense model for a recipe, supported: llama",
        )
    context_tokens = data.dimension("context_tokens")
    _check_keys(data, context_tokens)
    heads, hidden, layers = (data.dimension(name) for name in ("heads", "hidden", "layers"))
    kinds = _router(data)
    family = kinds.pop("family")
    latent = _latent(data)
    head_dim = latent["nope_dim"] + latent["rope_dim"] if latent else data.value("head_dim", hidden // heads)
    if not latent and data.under("attention.value_length") not in (None, head_dim):
        raise data.refusal("attention.value_length", data.under("attention.value_length"), head_dim)
    kinds |= {name: data.real(name) for name in _MULTIPLIERS if name in keys and source.value(keys[name]) is not None}
    kinds |= {"kv_heads": heads} if latent else _kv_heads(data, heads, layers)
    kinds |= _windows(data, layers)
    intermediate = data.dimension("intermediate")
    if "leading_dense" in keys:
        kinds["dense_layers"] = frozenset(range(data.dimension("leading_dense", 0)))
        kinds["dense_intermediate"] = data.value("dense_intermediate") if kinds["dense_layers"] else 0
    if "shared_experts" in keys:
        kinds["shared_intermediate"] = data.dimension("shared_experts", 0) * intermediate
    elif "shared_intermediate" in keys:
        kinds["shared_intermediate"] = data.value("shared_intermediate", 0)
    experts, top_k = experts or data.dimension("experts"), top_k or data.dimension("top_k")
    if "groups" in keys:
        groups = {name: data.dimension(name) for name in ("groups", "groups_chosen")}
        groups |= {"experts": experts, "top_k": top_k}
        kinds |= group_kinds(groups, data.prefix)
        kinds |= {name: groups[name] for name in ("groups", "groups_chosen")}
    return DecoderShape(
        **{**kinds, **latent},
        family=Family[family.upper()],
        hidden=hidden,
        vocabulary=shapes[names["embedding"]][0] if names["embedding"] in shapes else data.value("vocabulary"),
        layers=layers,
        context_tokens=context_tokens,
        heads=heads,
        head_dim=head_dim,
        intermediate=intermediate,
        experts=experts,
        top_k=top_k,
        rope_theta=data.real("rope_theta", 10000.0),
        norm_eps=data.real("norm_eps"),
        tied_head=names["head"] not in shapes,
        rotary_dim=0 if latent else data.value("rotary_dim", head_dim),
        scaling=_scaling(data),
        qkv_bias=names["q_bias"].format(layer=0) in shapes,
        o_bias=names["o_bias"].format(layer=0) in shapes,
    )


def gguf_names(source: Gguf, shape: DecoderShape) -> dict[str, str]:
    """What the tensors of the file are called: names as those of families.toml."""
    table = GGUF[source.value("general.architecture")]
    names: dict[str, str] = dict(table["tensors"])
    if shape.kv_rank and not shape.q_rank:
        names["mla_q_b"] = names["q"]
    split: dict[str, str] = table.get("split", {})
    if any(TensorName.parse(name).template.format(layer=0) in source.shapes() for name in split.values()):
        names |= split
    return names


def unpermuted(rows: RowSource, records: Records) -> RowSource:
    """Undo the order of Q and K rows, and of their biases, in the GGUF files of some architectures.

    There the two channels of a rotation pair are neighbours; here (style half) they are half a
    rotation apart, as in the original checkpoint.
    """

    def reordered(slot: Slot, first: int, end: int) -> F32:
        role = slot.tensor.role.name
        if role not in ("Q", "K", "Q_BIAS", "K_BIAS"):
            return rows(slot, first, end)
        layer = slot.tensor.layer
        mixer: Any = records.layers[layer or 0].mixer
        dim, pairs = mixer.head_dim, records.ropes[mixer.rope_table].pairs
        bias = role.endswith("_BIAS")
        wanted = np.arange(slot.tensor.columns) if bias else np.arange(first, end)
        head, channel = wanted // dim, wanted % dim
        stored = np.where(channel < pairs, 2 * channel, 2 * (channel - pairs) + 1)
        stored = head * dim + np.where(channel < 2 * pairs, stored, channel)
        if bias:
            return np.ascontiguousarray(rows(slot, first, end)[:, stored])
        low, high = int(head[0]) * dim, (int(head[-1]) + 1) * dim
        return np.ascontiguousarray(rows(slot, low, high)[stored - low])

    return reordered
