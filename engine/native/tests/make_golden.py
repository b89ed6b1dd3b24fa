#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write the golden vectors of every operator: ``golden/*.txt`` and ``../src/selftest_vectors.h``.

docs/arithmetic.md is implemented here a second time, from its text, with exact rational numbers that
are rounded once per operation in integer arithmetic. Nothing here depends on the C sources, on numpy or
on the floating-point unit of the machine, so the C kernels and the numpy reference can both be checked
against the result.

``make_golden.py`` writes the files; ``make_golden.py --check`` fails when a file differs.

Line format of every ``golden/NAME.txt``: lines that begin with ``#`` are comments; every other line is
one case, fields separated by single spaces, inputs first, then ``->``, then outputs. Binary32 numbers
are C hexadecimal floats (exact), integers are decimal, binary16 numbers are 4 hexadecimal digits of
their bits and 64-bit integers are ``0x`` and 16 digits. ``name[n]`` in the header stands for n fields.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from math import isqrt
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden"
HEADER = HERE.parent / "src" / "selftest_vectors.h"

# ---- exact arithmetic, one rounding per operation ------------------------------------------------
#
# A number is a Python float that holds a binary32 (or binary64) value exactly; it is only a container:
# every operation goes through Fraction and `_round`.


def _round(value: Fraction, bits: int, low: int, high: int, negative_zero: bool) -> float:
    """The value rounded to nearest even with `bits` bits, exponents `low` (subnormal unit) to `high`."""
    if value == 0:
        return -0.0 if negative_zero else 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** max(exponent - bits + 1, low)
    scaled = magnitude / unit
    integer = scaled.numerator // scaled.denominator
    rest = scaled - integer
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and integer % 2 == 1):
        integer += 1
    rounded = integer * unit
    if rounded >= Fraction(2) ** (high + 1):
        raise OverflowError(f"{float(value)} overflows: choose another case")
    if integer == 0:
        return -0.0 if value < 0 else 0.0
    return float(-rounded if value < 0 else rounded)


def _r32(value: Fraction, negative_zero: bool = False) -> float:
    return _round(value, 24, -149, 127, negative_zero)


def _r64(value: Fraction, negative_zero: bool = False) -> float:
    return _round(value, 53, -1074, 1023, negative_zero)


def _negative(x: float) -> bool:
    return bool(struct.unpack("<q", struct.pack("<d", x))[0] < 0)


def add(a: float, b: float) -> float:
    """a (+) b in binary32."""
    return _r32(Fraction(a) + Fraction(b), _negative(a) and _negative(b))


def sub(a: float, b: float) -> float:
    """a - b in binary32."""
    return add(a, -b)


def mul(a: float, b: float) -> float:
    """a (*) b in binary32."""
    return _r32(Fraction(a) * Fraction(b), _negative(a) != _negative(b))


def div(a: float, b: float) -> float:
    """a / b in binary32."""
    return _r32(Fraction(a) / Fraction(b), _negative(a) != _negative(b))


def sqrt(a: float) -> float:
    """The binary32 square root: the root of the integer a * 2^(2k), a sticky bit, one rounding."""
    scaled = Fraction(a) * 4**180
    if scaled.denominator != 1:
        raise ValueError("not a binary32 number")
    root = isqrt(scaled.numerator)
    sticky = Fraction(0) if root * root == scaled.numerator else Fraction(1, 2)
    return _r32((root + sticky) / Fraction(2) ** 180)


def f32(x: float) -> float:
    """Any Python number, rounded to binary32."""
    return _r32(Fraction(x), _negative(float(x)))


def bits32(x: float) -> int:
    """The bits of a binary32 number."""
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def from_bits32(u: int) -> float:
    """The binary32 number with these bits."""
    return float(struct.unpack("<f", struct.pack("<I", u))[0])


def widen16(h: int) -> float:
    """A binary16 number, exactly."""
    exponent, mantissa = (h >> 10) & 31, h & 1023
    if exponent == 31:
        raise ValueError("not finite")
    value = Fraction(mantissa, 1 << 24)
    if exponent:
        value = Fraction(1024 + mantissa) * Fraction(2) ** (exponent - 25)
    return float(-value if h & 0x8000 else value) if value else (-0.0 if h & 0x8000 else 0.0)


def round16(x: float) -> int:
    """The bits of the nearest binary16 number, infinity on overflow."""
    sign = 0x8000 if _negative(x) else 0
    try:
        y = Fraction(abs(_round(Fraction(x), 11, -24, 15, False)))
    except OverflowError:
        return sign | 0x7C00
    if y < Fraction(1, 1 << 14):
        return sign | int(y * (1 << 24))
    exponent = 0
    while y >= 2:
        y, exponent = y / 2, exponent + 1
    while y < 1:
        y, exponent = y * 2, exponent - 1
    return sign | ((exponent + 15) << 10) | int((y - 1) * 1024)


# ---- operators, from the text of docs/arithmetic.md ----------------------------------------------


def reduce8(v: Sequence[float]) -> float:
    """The sum in 8 partial sums."""
    p = [0.0] * 8
    for i, x in enumerate(v):
        p[i % 8] = add(p[i % 8], x)
    return add(add(add(p[0], p[4]), add(p[2], p[6])), add(add(p[1], p[5]), add(p[3], p[7])))


E2, E3, E4, E5, E6 = (
    float.fromhex(h) for h in ("0x1.fffffcp-2", "0x1.555492p-3", "0x1.5558f2p-5", "0x1.123a2p-7", "0x1.6a23cep-10")
)
MAGIC = 12582912.0


def exp(x: float) -> float:
    """exp for x <= 0."""
    if x < -40:
        return 0.0
    t = add(mul(x, float.fromhex("0x1.715476p+0")), MAGIC)
    n = sub(t, MAGIC)
    r = sub(sub(x, mul(n, 0.693359375)), mul(n, float.fromhex("-0x1.bd0106p-13")))
    p = add(mul(E6, r), E5)
    p = add(mul(p, r), E4)
    p = add(mul(p, r), E3)
    p = add(mul(p, r), E2)
    y = add(add(mul(mul(r, r), p), r), 1.0)
    return mul(y, float(Fraction(2) ** int(n)))


def sigmoid(x: float) -> float:
    """e = exp(-|x|); (x >= 0 ? 1 : e) / (1 + e)."""
    e = exp(-abs(x))
    return div(1.0 if x >= 0 else e, add(1.0, e))


def silu(x: float) -> float:
    """x * sigmoid(x)."""
    return mul(x, sigmoid(x))


def gelu_tanh(x: float) -> float:
    """The tanh form of GELU."""
    cube = mul(mul(x, x), x)
    u = mul(float.fromhex("0x1.988454p-1"), add(x, mul(float.fromhex("0x1.6e4e26p-5"), cube)))
    return mul(x, sigmoid(mul(2.0, u)))


def gelu_erf(x: float) -> float:
    """GELU as defined; below zero the tail of the normal distribution, above it what is left of 1."""
    t = div(1.0, add(1.0, mul(0.34375, abs(x))))
    p = 0.0
    for coefficient in GELU_ERF:
        p = mul(add(p, coefficient), t)
    tail = mul(p, exp(mul(-0.5, mul(x, x))))
    return mul(x, tail if x < 0 else sub(1.0, tail))


def relu(x: float) -> float:
    """x > 0 ? x : +0."""
    return x if x > 0 else 0.0


def swiglu_clamped(gate: float, up: float, clamp: float, alpha: float) -> float:
    """The clamped gated activation, up included."""
    g = gate if gate < clamp else clamp
    u = up if up < clamp else clamp
    u = -clamp if -clamp > u else u
    return mul(mul(g, sigmoid(mul(alpha, g))), add(u, 1.0))


def rmsnorm(x: Sequence[float], w: Sequence[float], eps: float) -> list[float]:
    """RMSNorm over all of x."""
    ss = reduce8([mul(v, v) for v in x])
    r = div(1.0, sqrt(add(div(ss, float(len(x))), eps)))
    return [mul(mul(v, r), s) for v, s in zip(x, w, strict=True)]


def layernorm(x: Sequence[float], w: Sequence[float], b: Sequence[float], eps: float) -> list[float]:
    """LayerNorm over all of x, with a bias."""
    n = float(len(x))
    mean = div(reduce8(x), n)
    c = [sub(v, mean) for v in x]
    r = div(1.0, sqrt(add(div(reduce8([mul(v, v) for v in c]), n), eps)))
    return [add(mul(mul(v, r), s), o) for v, s, o in zip(c, w, b, strict=True)]


def quantize(x: Sequence[float]) -> tuple[float, int, list[int]]:
    """One group of 32: scale, sum, integers."""
    amax = max(abs(v) for v in x)
    if Fraction(amax) < Fraction(1, 1 << 64):
        return 0.0, 0, [0] * 32
    inv = div(127.0, amax)
    q = [int(_round(Fraction(mul(v, inv)), 200, 0, 60, False)) for v in x]
    return div(amax, 127.0), sum(q), q


def accumulate(acc: float, isum: int, dw: float, d: float) -> float:
    """acc (+) (float(isum) (*) (dw (*) d))."""
    return add(acc, mul(f32(float(isum)), mul(dw, d)))


def dot_float(w: Sequence[float], x: Sequence[float]) -> float:
    """One accumulator, ascending."""
    acc = 0.0
    for a, b in zip(w, x, strict=True):
        acc = add(acc, mul(a, b))
    return acc


GELU_ERF = [  # g7 … g1
    float.fromhex(h)
    for h in (
        "0x1.81ec96p-5",
        "-0x1.a1f422p-3",
        "0x1.09cc3p-2",
        "-0x1.d5206cp-6",
        "0x1.427c9p-3",
        "0x1.0c4b16p-3",
        "0x1.19bd08p-3",
    )
]

SINE = [
    float.fromhex(h)
    for h in (
        "-0x1.5555555555555p-3",
        "0x1.1111111111111p-7",
        "-0x1.a01a01a01a01ap-13",
        "0x1.71de3a556c734p-19",
        "-0x1.ae64567f544e4p-26",
        "0x1.6124613a86d09p-33",
        "-0x1.ae7f3e733b81fp-41",
    )
]
COSINE = [
    float.fromhex(h)
    for h in (
        "-0x1.0000000000000p-1",
        "0x1.5555555555555p-5",
        "-0x1.6c16c16c16c17p-10",
        "0x1.a01a01a01a01ap-16",
        "-0x1.27e4fb7789f5cp-22",
        "0x1.1eed8eff8d898p-29",
        "-0x1.93974a8c07c9dp-37",
        "0x1.ae7f3e733b81fp-45",
    )
]


def _add64(a: float, b: float) -> float:
    return _r64(Fraction(a) + Fraction(b), _negative(a) and _negative(b))


def _mul64(a: float, b: float) -> float:
    return _r64(Fraction(a) * Fraction(b), _negative(a) != _negative(b))


def _polynomial64(z: float, coefficients: Sequence[float]) -> float:
    """c1 + z * (c2 + z * (...)), each operation rounded."""
    acc = coefficients[-1]
    for c in reversed(coefficients[:-1]):
        acc = _add64(c, _mul64(z, acc))
    return acc


def rope_angle(position: int, inv_freq: float, factor: float) -> tuple[float, float]:
    """(cos, sin) of position * inv_freq, times factor."""
    a = _mul64(float(position), inv_freq)
    magic = float(3 << 51)
    n = _add64(_add64(_mul64(a, float.fromhex("0x1.45f306dc9c883p-1")), magic), -magic)
    r = _add64(a, -_mul64(n, float.fromhex("0x1.921fb54400000p+0")))
    r = _add64(r, -_mul64(n, float.fromhex("0x1.0b4611a600000p-34")))
    r = _add64(r, -_mul64(n, float.fromhex("0x1.3198a2e037073p-69")))
    z = _mul64(r, r)
    sn = _add64(r, _mul64(r, _mul64(z, _polynomial64(z, SINE))))
    cs = _add64(1.0, _mul64(z, _polynomial64(z, COSINE)))
    c, s = ((cs, sn), (-sn, cs), (-cs, -sn), (sn, -cs))[int(n) % 4]
    return mul(f32(c), factor), mul(f32(s), factor)


def rope(x: Sequence[float], c: Sequence[float], s: Sequence[float], interleaved: bool) -> list[float]:
    """Rotate one head."""
    pairs = len(c)
    y = list(x)
    for i in range(pairs):
        j, k = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        y[j] = sub(mul(x[j], c[i]), mul(x[k], s[i]))
        y[k] = add(mul(x[j], s[i]), mul(x[k], c[i]))
    return y


def attend(q: Sequence[float], k: Sequence[Sequence[float]], v: Sequence[Sequence[float]], scale: float) -> list[float]:
    """One query head over the positions of k and v."""
    s = [mul(reduce8([mul(a, b) for a, b in zip(q, row, strict=True)]), scale) for row in k]
    m = max(s)
    e = [exp(sub(x, m)) for x in s]
    total = reduce8(e)
    out = []
    for c in range(len(v[0])):
        o = 0.0
        for weight, row in zip(e, v, strict=True):
            o = add(o, mul(weight, row[c]))
        out.append(div(o, total))
    return out


def random64(seed: int, counter: int) -> int:
    """random(seed, counter) of the sampler."""
    mask = (1 << 64) - 1
    z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


# ---- packing -------------------------------------------------------------------------------------


def pack_int4(w: Sequence[Sequence[int]], scales: Sequence[int]) -> bytes:
    """A block: w[row][column] in -8..7, 8 rows of 32; scales: f16 bits of the 8 rows."""
    block = bytearray(144)
    for row in range(8):
        for column in range(32):
            i, b = column % 16 // 4, column % 4
            block[32 * i + 4 * row + b] |= (w[row][column] + 8) << (4 if column >= 16 else 0)
        block[128 + 2 * row : 130 + 2 * row] = scales[row].to_bytes(2, "little")
    return bytes(block)


def pack_int8(w: Sequence[Sequence[int]], scales: Sequence[int]) -> bytes:
    """A block: w[row][column] in -127..127, 8 rows of 32; scales: f16 bits of the 8 rows."""
    block = bytearray(272)
    for row in range(8):
        for column in range(32):
            block[32 * (column // 4) + 4 * row + column % 4] = w[row][column] & 255
        block[256 + 2 * row : 258 + 2 * row] = scales[row].to_bytes(2, "little")
    return bytes(block)


# ---- cases ---------------------------------------------------------------------------------------

RNG = random.Random(20240229)


def normal(scale: float = 1.0) -> float:
    """A binary32 number, roughly normally distributed; from integers, so the same on every host."""
    total = sum(RNG.getrandbits(20) for _ in range(4)) - (1 << 21)
    return f32((total + 0.5) * 2.0**-19 * scale)


def power(low: int, high: int) -> float:
    """A power of two, 2^low to 2^high."""
    return 2.0 ** RNG.randint(low, high)


def normals(n: int, scale: float = 1.0) -> list[float]:
    """n of them."""
    return [normal(scale) for _ in range(n)]


def hex32(x: float) -> str:
    """A binary32 number as a C hexadecimal float without trailing zeros."""
    mantissa, exponent = x.hex().split("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}p{exponent}"


def case(inputs: Iterable[object], outputs: Iterable[object]) -> str:
    """One line."""
    text = [hex32(f) if isinstance(f, float) else str(f) for f in [*inputs, "->", *outputs]]
    return " ".join(text)


EXP_INPUTS = [
    0.0,
    -0.0,
    -40.0,
    from_bits32(bits32(-40.0) + 1),
    from_bits32(bits32(-40.0) - 1),
    -41.0,
    -1000.0,
    -1.0,
    -0.5,
    f32(-(2.0**-30)),
    f32(-0.34657359),
    f32(-0.69314718),
    f32(-1.03972077),
    f32(-(2.0**-140)),
    -39.5,
]
SIGNED_INPUTS = [*EXP_INPUTS, *(-x for x in EXP_INPUTS), f32(1e10), f32(-1e10), f32(1e20), f32(-1e20)]


def unary(function: Callable[[float], float], inputs: Sequence[float]) -> list[str]:
    """One line per input."""
    return [case([x], [function(x)]) for x in inputs]


def quantize_group(kind: int) -> list[float]:
    """Inputs of one group of 32."""
    if kind == 0:
        return [0.0] * 32
    if kind == 1:  # just below the zero rule
        return [from_bits32(0x1F7FFFFF - i) for i in range(32)]
    if kind == 2:  # at the zero rule
        return [from_bits32(0x1F800000 - 3 * i) * (-1) ** i for i in range(32)]
    if kind == 3:  # ties: amax 127 makes inv 1
        return [127.0] + [f32(i - 15.5) for i in range(31)]
    if kind == 4:  # the largest binary32 number
        return [from_bits32(0x7F7FFFFF), *normals(31, 5e37)]
    if kind == 5:  # one outlier
        return [normal(0.01) for _ in range(31)] + [-37.25]
    return normals(32, power(-10, 10))


def quantize_case(kinds: Sequence[int]) -> tuple[list[float], list[float], list[int], list[int]]:
    """x, d, s, q of some groups."""
    x: list[float] = []
    d: list[float] = []
    s: list[int] = []
    q: list[int] = []
    for kind in kinds:
        group = quantize_group(kind)
        scale, total, integers = quantize(group)
        x += group
        d.append(scale)
        s.append(total)
        q += integers
    return x, d, s, q


def weight_scale() -> int:
    """f16 bits of an ordinary weight scale, now and then negative or subnormal."""
    value = RNG.uniform(0.002, 0.05) if RNG.random() < 0.9 else RNG.uniform(1e-7, 5e-5)
    return round16(f32(value if RNG.random() < 0.8 else -value))


def quantised_case(groups: int, int8: bool, extreme: bool) -> tuple[bytes, list[int], list[float], list[float]]:
    """Weight bytes of a panel, q, d and the 8 results."""
    low, high = (-127, 127) if int8 else (-8, 7)
    data = b""
    q: list[int] = []
    d: list[float] = []
    y = [0.0] * 8
    for _ in range(groups):
        w = [[RNG.randint(low, high) for _ in range(32)] for _ in range(8)]
        a = [RNG.randint(-127, 127) for _ in range(32)]
        if extreme:
            w = [[low if row % 2 else high] * 32 for row in range(8)]
            a = [127] * 32
        scales = [weight_scale() for _ in range(8)]
        scale = f32(RNG.uniform(0.001, 0.1))
        data += (pack_int8 if int8 else pack_int4)(w, scales)
        q += a
        d.append(scale)
        for row in range(8):
            isum = sum(m * n for m, n in zip(w[row], a, strict=True))
            y[row] = accumulate(y[row], isum, widen16(scales[row]), scale)
    return data, q, d, y


def attend_case(
    positions: int, dim: int, value_dim: int, size: float
) -> tuple[float, list[float], list[int], list[int], list[float]]:
    """scale, q, k and v (f16 bits), out."""
    scale = f32(dim**-0.5)
    q = normals(dim, size)
    k = [[round16(normal()) for _ in range(dim)] for _ in range(positions)]
    v = [[round16(normal()) for _ in range(value_dim)] for _ in range(positions)]
    out = attend(q, [[widen16(h) for h in row] for row in k], [[widen16(h) for h in row] for row in v], scale)
    return scale, q, [h for row in k for h in row], [h for row in v for h in row], out


def f16_round_inputs() -> list[float]:
    """Around ties, the subnormal range and the overflow."""
    x = [0.0, -0.0, 65504.0, 65519.0, from_bits32(0x477FEFFF), 65520.0, -65520.0, 1e6, 2.0**-14, 2.0**-24]
    x += [2.0**-25, from_bits32(bits32(2.0**-25) + 1), 3 * 2.0**-25, 5 * 2.0**-25, 2.0**-149, f32(1e-30)]
    for h in (0x3C00, 0x3C01, 0x0400, 0x03FF, 0x0001, 0x7BFE, 0x8001, 0xC000, 0x83FF):
        tie = from_bits32(bits32((Fraction(widen16(h)) + Fraction(widen16(h + 1))) / 2 + 0.0))
        x += [tie, from_bits32(bits32(tie) + 1), from_bits32(bits32(tie) - 1)]
    return x + normals(20) + normals(10, 1e-5) + normals(10, 1e4)


def golden_files() -> dict[str, tuple[str, list[str]]]:
    """name -> (fields, cases)."""
    files: dict[str, tuple[str, list[str]]] = {}
    exp_inputs = EXP_INPUTS + [f32(-RNG.uniform(0, 40)) for _ in range(80)]
    exp_inputs += [f32(-RNG.uniform(0, 2)) for _ in range(80)]
    files["exp"] = ("x -> exp(x)", unary(exp, exp_inputs))
    signed = SIGNED_INPUTS + normals(60, 4.0) + normals(20, 15.0)
    files["sigmoid"] = ("x -> sigmoid(x)", unary(sigmoid, signed))
    files["silu"] = ("x -> silu(x)", unary(silu, signed))
    gelu = [x for x in signed if abs(x) < 1e12] + normals(20, 2.0)
    files["gelu_tanh"] = ("x -> gelu_tanh(x)", unary(gelu_tanh, gelu))
    files["gelu_erf"] = ("x -> gelu_erf(x)", unary(gelu_erf, gelu))
    files["relu"] = ("x -> relu(x)", unary(relu, [0.0, -0.0, 1.5, -1.5, f32(1e30), f32(-1e30)]))
    pairs = [(normal(5.0), normal(5.0)) for _ in range(30)] + [(7.0, -7.0), (8.0, -9.0), (0.0, -0.0)]
    clamp, alpha = 7.0, f32(1.702)
    files["swiglu_clamped"] = (
        "clamp alpha gate up -> h",
        [case([clamp, alpha, g, u], [swiglu_clamped(g, u, clamp, alpha)]) for g, u in pairs],
    )

    lines = []
    for n in [1, 2, 7, 8, 9, 15, 16, 17, 31, 40, 67]:
        v = normals(n, power(-7, 7))
        lines.append(case([n, *v], [reduce8(v)]))
    files["reduce8"] = ("n v[n] -> sum", lines)

    lines = []
    for n in [1, 5, 8, 12, 19, 32, 48]:
        x, w, eps = normals(n), normals(n), f32(1e-5 if n % 2 else 1e-6)
        lines.append(case([n, eps, *x, *w], rmsnorm(x, w, eps)))
    w = normals(9)
    lines.append(case([9, f32(1e-6), *[0.0] * 9, *w], rmsnorm([0.0] * 9, w, f32(1e-6))))
    files["rmsnorm"] = ("n eps x[n] w[n] -> y[n]", lines)

    lines = []
    for n in [5, 8, 19, 32]:
        x, w, b, eps = normals(n), normals(n), normals(n), f32(1e-5)
        lines.append(case([n, eps, *x, *w, *b], layernorm(x, w, b, eps)))
    files["layernorm"] = ("n eps x[n] w[n] b[n] -> y[n]", lines)

    lines = []
    for kinds in ([0], [1], [2], [3], [4], [5], [6, 0, 6], [6, 6, 3, 1]):
        x, d, s, q = quantize_case(kinds)
        lines.append(case([len(kinds), *x], [*d, *s, *q]))
    files["quantize"] = ("groups x[32*groups] -> d[groups] s[groups] q[32*groups]", lines)

    for name, int8 in (("dot_int4", False), ("dot_int8", True)):
        lines = []
        for groups, extreme in ((1, False), (1, True), (2, False), (3, False), (5, False), (8, False)):
            data, q, d, y = quantised_case(groups, int8, extreme)
            lines.append(case([groups, data.hex(), *q, *d], y))
        size = 272 if int8 else 144
        files[name] = (
            f"groups w q[32*groups] d[groups] -> y[8]   (w: the {size}*groups bytes of one panel of 8 rows, "
            "2 hexadecimal digits each)",
            lines,
        )

    lines = []
    for columns in (32, 64):
        w, x = normals(columns * 8), normals(columns)
        y = [dot_float(w[row::8], x) for row in range(8)]
        lines.append(case([columns, *w, *x], y))
    files["dot_f32"] = ("columns w[columns*8] x[columns] -> y[8]   (w[k*8 + row])", lines)
    for name, widen, bits in (
        ("dot_f16", widen16, round16),
        ("dot_bf16", lambda h: from_bits32(h << 16), lambda x: bits32(x) >> 16),
    ):
        stored, x = [bits(v) for v in normals(32 * 8)], normals(32)
        y = [dot_float([widen(h) for h in stored[row::8]], x) for row in range(8)]
        lines = [case([32, *(f"{h:04x}" for h in stored), *x], y)]
        files[name] = ("columns w[columns*8] x[columns] -> y[8]   (w[k*8 + row], 4 hexadecimal digits)", lines)

    halves = [0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0xBC00, 0x7BFF, 0xFBFF, 0x3555, 0x2E66]
    files["f16_widen"] = ("h -> x", [case([f"{h:04x}"], [widen16(h)]) for h in halves])
    files["f16_round"] = (
        "x -> h   (7c00 and fc00: overflow)",
        [case([x], [f"{round16(x):04x}"]) for x in f16_round_inputs()],
    )

    lines = []
    for position in (0, 1, 2, 3, 17, 100, 511, 2047, 4096, 131071, 1048575):
        for i in (0, 1, 7, 31):
            inv_freq, factor = f32(10000.0 ** (-i / 32)), f32(1.0 if i != 7 else 1.25)
            lines.append(case([position, inv_freq, factor], rope_angle(position, inv_freq, factor)))
    for _ in range(30):
        position, inv_freq = RNG.randrange(1 << 20), f32(RNG.random())
        lines.append(case([position, inv_freq, 1.0], rope_angle(position, inv_freq, 1.0)))
    files["rope_angles"] = ("position inv_freq factor -> cos sin", lines)

    lines = []
    for style in (0, 1):
        for n in (1, 4, 9, 16):
            x, angles = normals(2 * n), [rope_angle(77, f32(10000.0 ** (-i / n)), 1.0) for i in range(n)]
            cosines, sines = [a[0] for a in angles], [a[1] for a in angles]
            lines.append(case([style, n, *x, *cosines, *sines], rope(x, cosines, sines, style == 1)))
    files["rope"] = ("style pairs x[2*pairs] c[pairs] s[pairs] -> y[2*pairs]   (style 0 half, 1 interleaved)", lines)

    lines = []
    for positions, dim, value_dim, spread in ((1, 8, 8, 1.0), (3, 5, 7, 1.0), (9, 16, 16, 1.0), (17, 24, 12, 30.0)):
        scale, query, keys, values, out = attend_case(positions, dim, value_dim, spread)
        halves_text = [f"{h:04x}" for h in (*keys, *values)]
        lines.append(case([positions, dim, value_dim, scale, *query, *halves_text], out))
    files["attend"] = (
        "positions dim value_dim scale q[dim] k[positions*dim] v[positions*value_dim] -> out[value_dim]   "
        "(k and v: binary16)",
        lines,
    )

    lines = []
    for seed in (0, 1, 42, (1 << 64) - 1, 0x0123456789ABCDEF):
        for counter in (0, 1, 2, 1000, (1 << 32)):
            value = random64(seed, counter)
            lines.append(case([f"0x{seed:016x}", counter], [f"0x{value:016x}"]))
    files["random"] = ("seed counter -> value", lines)
    return files


def golden_text(name: str, fields: str, lines: Sequence[str]) -> str:
    """The text of one file."""
    return (
        f"# {name}: golden vectors of docs/arithmetic.md, written by make_golden.py; do not edit.\n"
        "# One case per line, fields separated by spaces. Binary32: C hexadecimal float; integers: decimal;\n"
        "# binary16: 4 hexadecimal digits of the bits; 64 bits: 0x and 16 digits.\n"
        f"# {fields}\n" + "".join(line + "\n" for line in lines)
    )


# ---- the subset compiled into the library --------------------------------------------------------


def c_array(kind: str, name: str, dims: str, values: Sequence[int], width: int) -> str:
    """A C array of integers."""
    per_line = {16: 4, 8: 8, 4: 12}.get(width, 16)
    text = [f"static const {kind} {name}{dims} = {{"]
    for i in range(0, len(values), per_line):
        items = (f"0x{v:0{width}x}" if width else str(v) for v in values[i : i + per_line])
        text.append("    " + ", ".join(items) + ",")
    return "\n".join([*text, "};"])


SEEDS = {"int4": 1, "int8": 2, "inputs": 3, "rows": 4, "keys": 5, "values": 6, "scales": 7}


def drawn_halves(name: str, count: int) -> list[int]:
    """Bits of binary16 numbers of either sign in 1/16..1."""
    return [random64(SEEDS[name], i) & 0x8FFF | 0x2C00 for i in range(count)]


def drawn_rows(name: str, d: Sequence[float], *, int8: bool) -> list[float]:
    """The 8 results of a panel of drawn blocks and drawn activations."""
    size = 256 if int8 else 128
    scales = drawn_halves("scales", 8 * len(d))
    y = [0.0] * 8
    for g, scale in enumerate(d):
        block = [random64(SEEDS[name], g * (size + 16) + i) & 255 for i in range(size)]
        a = [random64(SEEDS["inputs"], 32 * g + i) % 255 - 127 for i in range(32)]
        for row in range(8):
            if int8:
                w = [(block[32 * (k // 4) + 4 * row + k % 4] ^ 128) - 128 for k in range(32)]
            else:
                at = [32 * (k % 16 // 4) + 4 * row + k % 4 for k in range(32)]
                w = [(block[i] >> 4 if k >= 16 else block[i] & 15) - 8 for k, i in enumerate(at)]
            isum = sum(m * n for m, n in zip(w, a, strict=True))
            y[row] = accumulate(y[row], isum, widen16(scales[8 * g + row]), scale)
    return y


def selftest_text() -> str:
    """src/selftest_vectors.h: floats as their bits, so that no compiler's parser is trusted."""

    def floats(name: str, values: Sequence[float]) -> str:
        return c_array("uint32_t", name, f"[{len(values)}]", [bits32(v) for v in values], 8)

    def integers(kind: str, name: str, values: Sequence[int]) -> str:
        return c_array(kind, name, f"[{len(values)}]", values, 0)

    def halves(name: str, values: Sequence[int]) -> str:
        return c_array("uint16_t", name, f"[{len(values)}]", values, 4)

    parts: list[str] = []
    gate = [0.0, -0.0, -40.0, 41.0, -41.0, *normals(8, 3.0)]
    up = normals(len(gate))
    parts += ["/* activations: gate and up -> act(gate) * up; 13 values: a vector and a rest */"]
    parts += [floats("vector_gate", gate), floats("vector_up", up)]
    for name, function in (("silu", silu), ("gelu_tanh", gelu_tanh), ("relu", relu)):
        parts.append(floats(f"vector_{name}", [mul(function(g), u) for g, u in zip(gate, up, strict=True)]))
    clamp, alpha = 7.0, f32(1.702)
    pairs = zip(gate, up, strict=True)
    parts.append(floats("vector_swiglu_clamped", [swiglu_clamped(g, u, clamp, alpha) for g, u in pairs]))

    x, d, s, q = quantize_case([6, 3, 2, 1])
    parts += ["/* quantisation: 4 groups */", floats("vector_quantize_x", x), floats("vector_quantize_d", d)]
    parts += [integers("int32_t", "vector_quantize_s", s), integers("int8_t", "vector_quantize_q", q)]

    parts += ["/* What is long is drawn: value i of a vector from random(its seed below, i) */"]
    parts.append("enum { " + ", ".join(f"SEED_{name.upper()} = {seed}" for name, seed in SEEDS.items()) + " };")
    scales = [f32(RNG.uniform(0.001, 0.1)) for _ in range(3)]
    parts += ["/* matmul_int4, matmul_int8: one panel, 3 groups */", floats("vector_groups_d", scales)]
    for name, int8 in (("int4", False), ("int8", True)):
        parts.append(floats(f"vector_{name}_y", drawn_rows(name, scales, int8=int8)))

    stored, x = drawn_halves("rows", 32 * 8), normals(32)
    y = [dot_float([widen16(h) for h in stored[row::8]], x) for row in range(8)]
    parts += ["/* float rows: one panel, 32 columns; f32 and f16 from the same drawn values */"]
    parts += [floats("vector_rows_x", x), floats("vector_rows_y", y)]

    x, w = normals(19), normals(19)
    parts += ["/* RMSNorm, eps 2^-17 */", floats("vector_norm_x", x), floats("vector_norm_w", w)]
    parts.append(floats("vector_norm_y", rmsnorm(x, w, 2.0**-17)))

    position, frequencies = 1234, [f32(10000.0 ** (-i / 9)) for i in range(9)]
    angles = [rope_angle(position, f, 1.0) for f in frequencies]
    c, s32 = [a[0] for a in angles], [a[1] for a in angles]
    x = normals(18)
    parts += [f"/* RoPE: 9 pairs at position {position}, both styles */", floats("vector_rope_frequency", frequencies)]
    parts += [floats("vector_rope_c", c), floats("vector_rope_s", s32), floats("vector_rope_x", x)]
    parts += [floats("vector_rope_half", rope(x, c, s32, False))]
    parts += [floats("vector_rope_interleaved", rope(x, c, s32, True))]

    positions, dim, value_dim = 9, 11, 10
    scale, q32 = f32(dim**-0.5), normals(dim, 2.0)
    keys, values = (
        [[widen16(h) for h in halves_[i * n : (i + 1) * n]] for i in range(positions)]
        for halves_, n in (
            (drawn_halves("keys", positions * dim), dim),
            (drawn_halves("values", positions * value_dim), value_dim),
        )
    )
    parts += [f"/* attention: {positions} positions, {dim} key and {value_dim} value channels, drawn */"]
    parts += [f"enum {{ ATTEND_POSITIONS = {positions} }};", floats("vector_attend_scale", [scale])]
    parts += [floats("vector_attend_q", q32), floats("vector_attend_out", attend(q32, keys, values, scale))]

    x = [0.0, -0.0, 2.0**-25, 3 * 2.0**-25, from_bits32(0x477FEFFF), *normals(8)]
    parts += ["/* f32 -> f16 */", floats("vector_f16_x", x), halves("vector_f16_h", [round16(v) for v in x])]

    acc, x, scale = normals(11), normals(11), normal()
    parts += ["/* acc + scale * x */", floats("vector_add_scale", [scale]), floats("vector_add_acc", acc)]
    parts += [
        floats("vector_add_x", x),
        floats("vector_add_y", [add(a, mul(scale, b)) for a, b in zip(acc, x, strict=True)]),
    ]

    values = [random64(42, i) for i in range(3)]
    parts += ["/* random(42, 0..2) */", c_array("uint64_t", "vector_random", "[3]", values, 16)]
    return (
        "/* SPDX-License-Identifier: MIT */\n"
        "/* Generated by native/tests/make_golden.py; do not edit. Binary32 numbers are their bits. */\n"
        "#ifndef CB_SELFTEST_VECTORS_H\n#define CB_SELFTEST_VECTORS_H\n\n#include <stdint.h>\n\n"
        + "\n".join(parts)
        + "\n\n#endif\n"
    )


def main() -> int:
    """Write or check all files."""
    parser = argparse.ArgumentParser(description="write the golden vectors")
    parser.add_argument("--check", action="store_true", help="fail when a file differs")
    check = parser.parse_args().check
    texts = {GOLDEN / f"{name}.txt": golden_text(name, *content) for name, content in golden_files().items()}
    texts[HEADER] = selftest_text()
    stale = [p for p, text in texts.items() if not p.is_file() or p.read_text(encoding="ascii") != text]
    if check:
        for path in stale:
            print(f"{path.name} is not what make_golden.py writes: run it", file=sys.stderr)
        return 1 if stale else 0
    GOLDEN.mkdir(exist_ok=True)
    for path in stale:
        path.write_text(texts[path], encoding="ascii")
    return 0


if __name__ == "__main__":
    sys.exit(main())
