# SPDX-License-Identifier: MIT
"""Constants of a model that need a power or a root, computed without libm.

libm's pow may differ in the last bit between machines; stored bytes must not. Decimal arithmetic
of 60 digits is the same everywhere, and is then rounded once to binary32.
"""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction

_CONTEXT = Context(prec=60)


def round_to_f32(value: Fraction) -> float:
    """The binary32 value nearest to a fraction of normal range, ties to even."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - 24
    scaled = magnitude / Fraction(2) ** exponent
    while scaled >= 1 << 24:
        scaled, exponent = scaled / 2, exponent + 1
    while scaled < 1 << 23:
        scaled, exponent = scaled * 2, exponent - 1
    rounded = float(round(scaled) * Fraction(2) ** exponent)  # round() is to nearest, ties to even
    return rounded if value > 0 else -rounded


def power(base: float, exponent: Fraction) -> float:
    """base ** exponent for a positive base, rounded to binary32."""
    digits = _CONTEXT.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
    return round_to_f32(Fraction(_CONTEXT.power(Decimal(base), digits)))


def inverse_frequencies(theta: float, rotary_dim: int) -> list[float]:
    """theta ** (-2 i / rotary_dim) for each pair i, in binary32."""
    return [power(theta, Fraction(-2 * i, rotary_dim)) for i in range(rotary_dim // 2)]


def attention_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim), rounded once to binary32."""
    return power(float(head_dim), Fraction(-1, 2))
