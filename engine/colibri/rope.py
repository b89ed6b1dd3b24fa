# SPDX-License-Identifier: MIT
"""RoPE frequencies of a checkpoint, after the scaling that its configuration asks for.

The device computes no power and no logarithm: what is stored is final. Everything is decimal
arithmetic of 60 digits, rounded once to binary32, so that stored bytes are the same everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

from colibri._spec import MAX_CONTEXT_TOKENS, Code
from colibri.errors import ColibriError, shown
from colibri.numbers import round_to_f32

MAX_THETA = 1e30  # theta ** -1 stays a normal binary32 value
MAX_FACTOR = 1e6
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494")
_CONTEXT = Context(prec=60)
KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class Scaling:
    """What a configuration says about longer contexts; `kind` is one of KINDS."""

    kind: str = "default"
    factor: float = 1.0
    trained_tokens: int = 1  # original_max_position_embeddings
    low: float = 1.0  # low_freq_factor, beta_slow
    high: float = 4.0  # high_freq_factor, beta_fast
    attention_factor: float = 0.0  # 0: what the kind says
    truncate: bool = True
    mscale: float = 0.0  # 0: none; the factor is then that of mscale, divided by that of mscale_all
    mscale_all: float = 0.0  # ... and what q.k is multiplied with grows by the square of its own


def _rounded(value: Decimal) -> float:
    return round_to_f32(Fraction(value))


def _ramp(index: int, low: Decimal, high: Decimal) -> Decimal:
    """0 up to `low`, 1 from `high` on, straight between them."""
    if low == high:
        high += Decimal("0.001")  # as published: no division by zero
    return min(max((index - low) / (high - low), Decimal(0)), Decimal(1))


def _yarn_range(theta: Decimal, rotary_dim: int, scaling: Scaling) -> tuple[Decimal, Decimal]:
    """The first and last pair between those that keep their frequency and those that are divided."""

    if theta == 1:
        raise ColibriError(Code.ARGUMENT, "config.json: rope_theta is 1: every pair turns alike, YaRN has no range")

    def pair_of(rotations: float) -> Decimal:
        turns = Decimal(scaling.trained_tokens) / (Decimal(rotations) * 2 * _PI)
        return rotary_dim * turns.ln() / (2 * theta.ln())

    low, high = pair_of(scaling.high), pair_of(scaling.low)
    if scaling.truncate:
        low, high = low.to_integral_value(ROUND_FLOOR), high.to_integral_value(ROUND_CEILING)
    return max(low, Decimal(0)), min(high, Decimal(rotary_dim - 1))


def _scaled(index: int, plain: Decimal, theta: Decimal, rotary_dim: int, scaling: Scaling) -> Decimal:
    """The frequency of pair `index` after scaling."""
    factor = Decimal(scaling.factor)
    if scaling.kind == "linear":
        return plain / factor
    if scaling.kind == "llama3":
        turns = scaling.trained_tokens * plain / (2 * _PI)  # of the trained context
        low, high = Decimal(scaling.low), Decimal(scaling.high)
        if turns < low:
            return plain / factor
        if turns > high:
            return plain
        smooth = (turns - low) / (high - low)
        return (1 - smooth) * plain / factor + smooth * plain
    if scaling.kind == "yarn":
        divided = _ramp(index, *_yarn_range(theta, rotary_dim, scaling))
        return plain / factor * divided + plain * (1 - divided)
    return plain


def frequencies(theta: float, rotary_dim: int, scaling: Scaling) -> tuple[list[float], float]:
    """Inverse frequency of each pair, and what cosine and sine are multiplied with."""
    with localcontext(_CONTEXT):
        base = Decimal(theta)
        found = []
        for index in range(rotary_dim // 2):
            plain = base ** (Decimal(-2 * index) / Decimal(rotary_dim))
            found.append(_rounded(_scaled(index, plain, base, rotary_dim, scaling)))
        factor = 1.0
        if scaling.kind == "yarn":
            factor = scaling.attention_factor or _rounded(_yarn_factor(scaling))
        return found, factor


def _yarn_growth(scaling: Scaling, mscale: float) -> Decimal:
    return Decimal("0.1") * Decimal(mscale) * Decimal(scaling.factor).ln() + 1


def _yarn_factor(scaling: Scaling) -> Decimal:
    if scaling.mscale and scaling.mscale_all:
        return _yarn_growth(scaling, scaling.mscale) / _yarn_growth(scaling, scaling.mscale_all)
    return _yarn_growth(scaling, 1.0)


def score_growth(scaling: Scaling) -> float:
    """What `mscale_all` multiplies the scale of q.k with."""
    if scaling.kind != "yarn" or not scaling.mscale_all:
        return 1.0
    with localcontext(_CONTEXT):
        return float(_yarn_growth(scaling, scaling.mscale_all) ** 2)


def _number(key: str, table: dict[str, Any], name: str, default: float | None, low: float, high: float) -> float:
    value = table.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ColibriError(
            Code.ARGUMENT, f"config.json: {key}.{name} is {shown(repr(value))}, must be {low:g}..{high:g}"
        )
    return float(value)


def _refuse_part(name: str, table: dict[str, Any]) -> None:
    """Rotation of a part of the channels; name: that of the key for the message."""
    part = table.get("partial_rotary_factor", 1.0)
    if part != 1.0:
        raise ColibriError(Code.UNSUPPORTED, f"config.json: {name} {shown(repr(part))}, supported: 1")


def rope_table(config: dict[str, Any], default: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and content of the one table of a configuration that counts; `default` where it has none.

    As in transformers: `rope_scaling`, unless it is empty, stands for all of `rope_parameters`; empty it is as if it
    were not there, while empty `rope_parameters` are a table without scaling.
    """
    found: tuple[str, dict[str, Any]] | None = None
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get(key)
        if table is not None and not isinstance(table, dict):
            raise ColibriError(
                Code.ARGUMENT, f"config.json: {key} is {shown(repr(table))}, must be null or an object"
            )
        if found is None and table is not None and (table or key == "rope_parameters"):
            found = key, table
    return found or ("rope_parameters", default)


def scaling_from_config(
    config: dict[str, Any], key: str, table: dict[str, Any], context_tokens: int, latent: bool = False
) -> Scaling:
    """The scaling of what `rope_table` found; kinds that are not built in are refused by name."""
    if config.get("partial_rotary_factor") is not None:
        _refuse_part("partial_rotary_factor", config)
    if any(isinstance(value, dict) for value in table.values()):
        raise ColibriError(Code.UNSUPPORTED, f"config.json: {key} of each kind of layer, supported: one for all")
    kind = table.get("rope_type") or table.get("type") or "default"
    if kind not in KINDS:
        raise ColibriError(
            Code.UNSUPPORTED, f"config.json: {key} of type {shown(repr(kind))}; supported: {', '.join(KINDS)}"
        )
    _refuse_part(f"{key}.partial_rotary_factor", table)
    return Scaling() if kind == "default" else _scaling(key, table, kind, config, context_tokens, latent)


def _scaling(
    key: str, table: dict[str, Any], kind: str, config: dict[str, Any], context_tokens: int, latent: bool
) -> Scaling:
    factor = _number(key, table, "factor", None, 1, MAX_FACTOR)
    if kind == "linear":
        return Scaling(kind, factor)
    name = "original_max_position_embeddings"
    said = config if config.get(name) is not None else table  # as in transformers: beside the table it counts first
    trained = _number(key, {name: said.get(name, context_tokens)}, name, None, 1, MAX_CONTEXT_TOKENS)
    if kind == "llama3":
        low = _number(key, table, "low_freq_factor", None, 1e-6, MAX_FACTOR)
        high = _number(key, table, "high_freq_factor", None, 1e-6, MAX_FACTOR)
        if low >= high:
            raise ColibriError(
                Code.ARGUMENT, f"config.json: {key}.low_freq_factor is {low}, must be below high_freq_factor, {high}"
            )
        return Scaling(kind, factor, int(trained), low, high)
    for name in ("mscale", "mscale_all_dim"):
        if table.get(name) and not latent:
            raise ColibriError(
                Code.UNSUPPORTED, f"config.json: {key}.{name} is {shown(repr(table[name]))}, supported: 0 or none"
            )
    mscale, mscale_all = (
        _number(key, {name: table.get(name) or 0}, name, None, 0, MAX_FACTOR) for name in ("mscale", "mscale_all_dim")
    )
    low = _number(key, table, "beta_slow", 1.0, 1e-6, MAX_FACTOR)
    high = _number(key, table, "beta_fast", 32.0, 1e-6, MAX_FACTOR)
    given = table.get("attention_factor") is not None
    attention = _number(key, table, "attention_factor", None, 1e-6, MAX_FACTOR) if given else 0.0
    truncate = table.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ColibriError(
            Code.ARGUMENT, f"config.json: {key}.truncate is {shown(repr(truncate))}, must be true or false"
        )
    return Scaling(kind, factor, int(trained), low, high, attention, truncate, mscale, mscale_all)
