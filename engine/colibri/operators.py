# SPDX-License-Identifier: MIT
"""Every operator of docs/arithmetic.md in numpy, operation by operation.

The oracle of the test suite: slow where it has to be, never different in a bit. What keeps it
exact, and what therefore must not be "simplified":

- ``np.sum`` adds pairwise and BLAS fuses products, so neither may see values that round. BLAS is
  used for one thing only: products of small integers in float32, whose sums stay below 2**24 and
  are exact in any order, fused or not.
- An accumulation is a Python loop over the reduced index with vector operations across the others
  (rows, tokens, heads), one accumulator per result, in the order the contract gives.
- Python floats are binary64: every constant is a ``np.float32`` before it meets an array.

Arrays are float32 unless a docstring says otherwise. Leading axes are independent (tokens, heads).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from colibri._spec import Activation, Code, GroupScore, RopeStyle, RouterNormalise, RouterScore
from colibri.errors import ColibriError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I8 = npt.NDArray[np.int8]
I32 = npt.NDArray[np.int32]
U16 = npt.NDArray[np.uint16]
AnyArray = npt.NDArray[Any]

GROUP = 32
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)
_EXPONENT = np.uint32(0x7F800000)
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_TINY = np.float32(2.0**-64)
_ROUNDER = np.float32(12582912.0)  # 1.5 * 2**23: adding it rounds to the nearest integer

_INV_LN2 = np.float32(float.fromhex("0x1.715476p+0"))
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_EXP_FLOOR = np.float32(-40.0)
_EXP_COEFFICIENTS = tuple(  # e6 … e2, the order Horner's scheme needs
    np.float32(float.fromhex(text))
    for text in (
        "0x1.6a23cep-10",
        "0x1.123a2p-7",
        "0x1.5558f2p-5",
        "0x1.555492p-3",
        "0x1.fffffcp-2",
    )
)
_GELU_OUTER = np.float32(float.fromhex("0x1.988454p-1"))
_GELU_INNER = np.float32(float.fromhex("0x1.6e4e26p-5"))
_GELU_ERF_SLOPE = np.float32(0.34375)
_GELU_ERF_COEFFICIENTS = tuple(  # g7 … g1
    np.float32(float.fromhex(text))
    for text in (
        "0x1.81ec96p-5",
        "-0x1.a1f422p-3",
        "0x1.09cc3p-2",
        "-0x1.d5206cp-6",
        "0x1.427c9p-3",
        "0x1.0c4b16p-3",
        "0x1.19bd08p-3",
    )
)

_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_ROUNDER_64 = float.fromhex("0x1.8p52")
_HALF_PI = tuple(
    float.fromhex(text) for text in ("0x1.921fb54400000p+0", "0x1.0b4611a600000p-34", "0x1.3198a2e037073p-69")
)
_SIN = tuple(  # s7 … s1
    float.fromhex(text)
    for text in (
        "-0x1.ae7f3e733b81fp-41",
        "0x1.6124613a86d09p-33",
        "-0x1.ae64567f544e4p-26",
        "0x1.71de3a556c734p-19",
        "-0x1.a01a01a01a01ap-13",
        "0x1.1111111111111p-7",
        "-0x1.5555555555555p-3",
    )
)
_COS = tuple(  # c8 … c1
    float.fromhex(text)
    for text in (
        "0x1.ae7f3e733b81fp-45",
        "-0x1.93974a8c07c9dp-37",
        "0x1.1eed8eff8d898p-29",
        "-0x1.27e4fb7789f5cp-22",
        "0x1.a01a01a01a01ap-16",
        "-0x1.6c16c16c16c17p-10",
        "0x1.5555555555555p-5",
        "-0x1.0000000000000p-1",
    )
)


class NonFiniteError(ColibriError):
    """A value is infinite or not a number where the contract allows none."""

    def __init__(self, what: str) -> None:
        super().__init__(
            Code.NON_FINITE,
            f"{what}: infinite or not a number; the limit is any finite value; check the weights and the input ids",
        )


class UnsupportedError(ColibriError):
    """A record asks for an operator that this version of the contract does not define."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.UNSUPPORTED, message)


def check_finite(x: AnyArray, what: str) -> None:
    """Raise NonFiniteError when an element of a float32 array has an exponent of all ones."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    if bool(np.any((bits & _EXPONENT) == _EXPONENT)):
        raise NonFiniteError(what)


def minimum(a: F32 | np.float32, b: F32 | np.float32) -> F32:
    """a < b ? a : b, which decides the sign of a zero; np.minimum does not."""
    return np.where(a < b, a, b)


def maximum(a: F32 | np.float32, b: F32 | np.float32) -> F32:
    """a > b ? a : b."""
    return np.where(a > b, a, b)


# ---- reductions ---------------------------------------------------------------------------


def reduce8(v: F32) -> F32:
    """Sum over the last axis with eight partial sums, element i in sum i mod 8.

    v: (…, n). Returns (…).
    """
    n = v.shape[-1]
    partial = np.zeros((*v.shape[:-1], 8), dtype=np.float32)
    for first in range(0, n, 8):
        width = min(8, n - first)
        partial[..., :width] += v[..., first : first + width]
    p0, p1, p2, p3, p4, p5, p6, p7 = (partial[..., lane] for lane in range(8))
    result: F32 = ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7))
    return result


# ---- row products -------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantized:
    """Activations in int8, one scale per token and group of 32 channels."""

    q: I8  # (tokens, groups, 32)
    d: F32  # (tokens, groups)
    s: I32  # (tokens, groups), sum of the q of a group

    def take(self, tokens: AnyArray) -> Quantized:
        """The same activations for some tokens only."""
        return Quantized(self.q[tokens], self.d[tokens], self.s[tokens])


def quantize(x: F32) -> Quantized:
    """Quantise activations per token and group of 32 channels; the last group is padded with +0.

    x: (tokens, channels). Raises NonFiniteError.
    """
    tokens, channels = x.shape
    groups = -(-channels // GROUP)
    padded = np.zeros((tokens, groups * GROUP), dtype=np.float32)
    padded[:, :channels] = x
    grouped = padded.reshape(tokens, groups, GROUP)
    bits = (grouped.view(np.uint32) & _MAGNITUDE).max(axis=2)
    if bool(np.any(bits >= _EXPONENT)):
        raise NonFiniteError("activations to quantise")
    amax = bits.view(np.float32)
    tiny = amax < _TINY
    safe = np.where(tiny, _ONE, amax)
    d = np.where(tiny, _ZERO, safe / np.float32(127.0))
    inverse = np.where(tiny, _ZERO, np.float32(127.0) / safe)
    q = np.rint(grouped * inverse[:, :, None]).astype(np.int8)
    return Quantized(q, d, q.sum(axis=2, dtype=np.int32))


def matmul_quantized(values: I8, scales: F32, x: Quantized) -> F32:
    """Quantised row product of an int4 or int8 matrix.

    values: int8 (groups, rows, 32), int4 weights as value - 8. scales: (groups, rows), widened.
    Returns (tokens, rows).
    """
    groups, rows, _ = values.shape
    tokens = x.q.shape[0]
    acc = np.zeros((tokens, rows), dtype=np.float32)
    for g in range(groups):
        # Integers of at most 32 * 127 * 127 < 2**24: float32 holds them, and every partial sum.
        isum = x.q[:, g, :].astype(np.float32) @ values[g].astype(np.float32).T
        acc += isum * (scales[g][None, :] * x.d[:, g][:, None])
    return acc


def matmul_float(weights: F32, x: F32) -> F32:
    """Float row product, one accumulator per row, columns ascending.

    weights: (columns, rows), transposed so that one column of the matrix is contiguous.
    x: (tokens, columns). Returns (tokens, rows).
    """
    columns, rows = weights.shape
    acc = np.zeros((x.shape[0], rows), dtype=np.float32)
    for k in range(columns):
        acc += weights[k][None, :] * x[:, k][:, None]
    return acc


# ---- norms --------------------------------------------------------------------------------


def rmsnorm(x: F32, weight: F32, eps: float) -> F32:
    """RMSNorm over the last axis. x: (…, n), weight: (n)."""
    n = np.float32(x.shape[-1])
    r = _ONE / np.sqrt(reduce8(x * x) / n + np.float32(eps))
    result: F32 = (x * r[..., None]) * weight
    return result


def layernorm(x: F32, weight: F32, bias: F32 | None, eps: float) -> F32:
    """LayerNorm over the last axis. x: (…, n), weight and bias: (n)."""
    n = np.float32(x.shape[-1])
    mean = reduce8(x) / n
    centred = x - mean[..., None]
    variance = reduce8(centred * centred) / n
    r = _ONE / np.sqrt(variance + np.float32(eps))
    result: F32 = (centred * r[..., None]) * weight
    return result if bias is None else result + bias


# ---- positions ----------------------------------------------------------------------------


def rope_angles(positions: AnyArray, inv_freq: F32, factor: float) -> tuple[F32, F32]:
    """(cos, sin) of position * inv_freq, times the attention factor.

    positions: integers (tokens). inv_freq: (pairs). Returns two (tokens, pairs).
    """
    a: F64 = positions.astype(np.float64)[:, None] * inv_freq.astype(np.float64)[None, :]
    n = (a * _TWO_OVER_PI + _ROUNDER_64) - _ROUNDER_64
    r = ((a - n * _HALF_PI[0]) - n * _HALF_PI[1]) - n * _HALF_PI[2]
    z = r * r
    sin_sum = np.full_like(z, _SIN[0])
    for coefficient in _SIN[1:]:
        sin_sum = coefficient + z * sin_sum
    sn = r + r * (z * sin_sum)
    cos_sum = np.full_like(z, _COS[0])
    for coefficient in _COS[1:]:
        cos_sum = coefficient + z * cos_sum
    cs = 1.0 + z * cos_sum
    quadrant = n.astype(np.int64) & 3
    cos = np.choose(quadrant, (cs, -sn, -cs, sn))
    sin = np.choose(quadrant, (sn, cs, -sn, -cs))
    scale = np.float32(factor)
    return cos.astype(np.float32) * scale, sin.astype(np.float32) * scale


def rope(x: F32, cos: F32, sin: F32, style: int) -> F32:
    """Rotate the first 2 * pairs channels of every head.

    x: (tokens, heads, head_dim). cos, sin: (tokens, pairs).
    """
    pairs = cos.shape[1]
    out = x.copy()
    if style == RopeStyle.HALF:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    else:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    x0, x1 = x[..., first], x[..., second]
    c, s = cos[:, None, :], sin[:, None, :]
    out[..., first] = x0 * c - x1 * s
    out[..., second] = x0 * s + x1 * c
    return out


# ---- exponential and activations ----------------------------------------------------------


def exp(x: F32) -> F32:
    """The contract's exponential; x <= 0, finite. Below -40 it is +0."""
    inside = np.maximum(x, _EXP_FLOOR)
    n = (inside * _INV_LN2 + _ROUNDER) - _ROUNDER
    r = (inside - n * _LN2_HIGH) - n * _LN2_LOW
    p = np.broadcast_to(_EXP_COEFFICIENTS[0], r.shape)
    for coefficient in _EXP_COEFFICIENTS[1:]:
        p = p * r + coefficient
    y = ((r * r) * p + r) + _ONE
    exponent = (n.astype(np.int32) + np.int32(127)) << np.int32(23)
    power = np.asarray(exponent, dtype=np.int32).view(np.float32)
    return np.where(x < _EXP_FLOOR, _ZERO, y * power)


def sigmoid(x: F32) -> F32:
    """1 / (1 + exp(-x)) without an exponential of a positive number."""
    e = exp(-np.abs(x))
    numerator: F32 = np.where(x >= _ZERO, _ONE, e)
    result: F32 = numerator / (_ONE + e)
    return result


def silu(x: F32) -> F32:
    """x * sigmoid(x)."""
    result: F32 = x * sigmoid(x)
    return result


def gelu_tanh(x: F32) -> F32:
    """The tanh form of GELU, as x * sigmoid(2 u)."""
    u = _GELU_OUTER * (x + _GELU_INNER * ((x * x) * x))
    result: F32 = x * sigmoid(np.float32(2.0) * u)
    return result


def gelu_erf(x: F32) -> F32:
    """GELU as defined, x * Phi(x): the tail of the normal distribution is a polynomial in t times exp(-x*x/2)."""
    t = _ONE / (_ONE + _GELU_ERF_SLOPE * np.abs(x))
    p = _GELU_ERF_COEFFICIENTS[0] * t
    for coefficient in _GELU_ERF_COEFFICIENTS[1:]:
        p = (p + coefficient) * t
    tail = p * exp(np.float32(-0.5) * (x * x))
    result: F32 = x * np.where(x < _ZERO, tail, _ONE - tail)
    return result


def relu(x: F32) -> F32:
    """x where positive, else +0."""
    return np.where(x > _ZERO, x, _ZERO)


def activate(activation: int, clamp: float, alpha: float, gate: F32, up: F32 | None) -> F32:
    """The hidden vector of an FFN: act(gate) * up, or act(gate) for a plain FFN (up is None)."""
    if activation == Activation.SWIGLU_CLAMPED:
        if up is None:
            raise UnsupportedError("activation swiglu_clamped needs a gated FFN (gated = 1)")
        limit = np.float32(clamp)
        g = minimum(gate, limit)
        u = maximum(-limit, minimum(up, limit))
        slope = np.float32(alpha)
        clamped: F32 = (g * sigmoid(slope * g)) * (u + _ONE)
        return clamped
    acted: AnyArray
    if activation == Activation.SILU:
        acted = silu(gate)
    elif activation == Activation.GELU_TANH:
        acted = gelu_tanh(gate)
    elif activation == Activation.GELU_ERF:
        acted = gelu_erf(gate)
    elif activation == Activation.RELU:
        acted = relu(gate)
    elif activation == Activation.IDENTITY:
        acted = gate
    else:
        raise UnsupportedError(
            f"activation {activation} is not defined by docs/arithmetic.md; "
            "use silu, gelu_tanh, gelu_erf, relu, identity or swiglu_clamped"
        )
    result: F32 = acted if up is None else acted * up
    return result


# ---- attention ----------------------------------------------------------------------------


def store_f16(x: F32) -> U16:
    """float32 to f16 bits, nearest even. Raises NonFiniteError when a result is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        half = x.astype(np.float16)
    bits = half.view(np.uint16)
    if bool(np.any((bits & np.uint16(0x7C00)) == np.uint16(0x7C00))):
        raise NonFiniteError("value to store as f16")
    return bits


def widen_f16(bits: U16) -> F32:
    """f16 bits to float32, exactly."""
    return bits.view(np.float16).astype(np.float32)


def widen_bf16(bits: U16) -> F32:
    """bf16 bits to float32, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def attend(q: F32, k: F32, v: F32, scale: float, sinks: F32 | None = None) -> F32:
    """One query position of all heads over a list of cached positions, oldest first.

    q: (heads, dim). k: (kv_heads, positions, dim). v: (kv_heads, positions, value_dim).
    sinks: (heads) or None. Returns (heads, value_dim).
    """
    heads = q.shape[0]
    kv_heads, positions, value_dim = v.shape
    ratio = heads // kv_heads
    grouped = q.reshape(kv_heads, ratio, 1, q.shape[1])
    s = reduce8(grouped * k[:, None, :, :]) * np.float32(scale)
    if sinks is not None:
        extra = sinks.reshape(kv_heads, ratio, 1)
        s = np.concatenate([s, extra], axis=2)
    e = exp(s - s.max(axis=2, keepdims=True))
    total = reduce8(e)
    out: F32 = np.zeros((kv_heads, ratio, value_dim), dtype=np.float32)
    for j in range(positions):
        out += e[:, :, j, None] * v[:, None, j, :]
    mean: F32 = out / total[:, :, None]
    return mean.reshape(heads, value_dim)


# ---- router -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RouterRule:
    """What a router does with its logits (the fields of the moe record)."""

    top_k: int
    score: int
    normalise: int
    normalise_eps: float = 0.0
    routed_scale: float = 1.0
    groups: int = 0
    groups_chosen: int = 0  # 0: all experts may be chosen
    group_score: int = GroupScore.NONE


def _best_groups(selection: F32, rule: RouterRule) -> F32:
    """Selection scores, -inf outside the groups that are worth most; (tokens, experts)."""
    grouped = selection.reshape(len(selection), rule.groups, -1)
    ordered = np.sort(grouped, axis=2)
    worth = ordered[:, :, -1]
    if rule.group_score == GroupScore.TOP2_SUM and grouped.shape[2] > 1:
        worth = worth + ordered[:, :, -2]
    kept = np.zeros(worth.shape, dtype=bool)
    np.put_along_axis(kept, top_k(worth, rule.groups_chosen), True, axis=1)
    return np.where(kept[:, :, None], grouped, np.float32(-np.inf)).reshape(selection.shape)


def top_k(scores: F32, k: int) -> I32:
    """Indices of the k highest scores, descending, lower index first on equality.

    scores: (tokens, experts). Returns int32 (tokens, k).
    """
    return np.argsort(-scores, axis=1, kind="stable")[:, :k].astype(np.int32)


def route(logits: F32, rule: RouterRule, selection_bias: F32 | None = None) -> tuple[I32, F32]:
    """Chosen experts and their weights, by rank.

    logits: (tokens, experts), finite (checked). selection_bias: (experts) or None.
    Returns ids int32 (tokens, top_k) and weights (tokens, top_k).
    """
    check_finite(logits, "router logits")
    selection = sigmoid(logits) if rule.score == RouterScore.SIGMOID else logits
    if selection_bias is not None:
        selection = selection + selection_bias
        check_finite(selection, "selection scores")
    if rule.groups_chosen:
        selection = _best_groups(selection, rule)
    ids = top_k(selection, rule.top_k)
    weights: AnyArray
    chosen = np.take_along_axis(logits, ids, axis=1)
    by_sum = rule.normalise == RouterNormalise.SUM
    if rule.score == RouterScore.SOFTMAX_CHOSEN or (rule.score == RouterScore.SOFTMAX_ALL and by_sum):
        # The first has the highest logit, unless a selection bias chose otherwise.
        e = exp(chosen - chosen.max(axis=1, keepdims=True))
        weights = e / reduce8(e)[:, None]
    elif rule.score == RouterScore.SOFTMAX_ALL:
        e = exp(logits - logits.max(axis=1, keepdims=True))
        weights = np.take_along_axis(e, ids, axis=1) / reduce8(e)[:, None]
    else:
        weights = sigmoid(chosen) if rule.score == RouterScore.SIGMOID else chosen
        if by_sum:
            weights = weights / (reduce8(weights) + np.float32(rule.normalise_eps))[:, None]
    weights = weights * np.float32(rule.routed_scale)
    check_finite(weights, "router weights")
    return ids, weights


def add_scaled(acc: F32, scale: F32 | np.float32, x: F32) -> F32:
    """acc + scale * x, the product rounded first."""
    result: F32 = acc + scale * x
    return result
