/* SPDX-License-Identifier: MIT */
/*
 * What the arithmetic contract asks of a compiler, and the bit casts every kernel uses.
 * Include this before anything that computes. `-ffp-contract=off` cannot be tested by the
 * preprocessor under gcc; the golden vectors hold cases that a fused multiply-add gets wrong.
 */
#ifndef CB_EXACT_H
#define CB_EXACT_H

#include <float.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__)
#error "-ffast-math breaks the arithmetic contract: build without it"
#endif
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "-ffinite-math-only removes the non-finite checks: build without it"
#endif
#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "weights are stored little endian and read in place: this target is not supported"
#endif
/* 16 is FLT_EVAL_METHOD with native binary16: float is still evaluated as float. */
#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "float must be evaluated as binary32 (x87: use -msse2 -mfpmath=sse)"
#endif
#if FLT_MANT_DIG != 24 || FLT_MAX_EXP != 128 || DBL_MANT_DIG != 53
#error "float and double must be IEEE-754 binary32 and binary64"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#define CB_BITS_ABS 0x7fffffffu      /* all but the sign */
#define CB_BITS_INFINITY 0x7f800000u /* |bits| from here on: not finite */
#define CB_ROUND_MAGIC 12582912.0f   /* 1.5 * 2^23: adding it rounds to an integer */
#define CB_ROUND_MAGIC_BITS 0x4b400000u
#define CB_TINY_AMAX_BITS 0x1f800000u /* 2^-64: groups below it quantise to zero */

static inline uint32_t cb_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float cb_float(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* binary16 and bfloat16, widened exactly; inline because rows of f16 weights and keys are made of them. */
static inline float cb_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 31u;
    uint32_t mantissa = h & 0x3ffu;
    if (exponent == 0) /* zero or subnormal: mantissa * 2^-24 is exact */
        return cb_float(cb_bits((float)mantissa * 0x1p-24f) | sign);
    if (exponent == 31)
        return cb_float(sign | CB_BITS_INFINITY | (mantissa << 13));
    return cb_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

static inline float cb_bf16(uint16_t h)
{
    return cb_float((uint32_t)h << 16);
}

/* Before a loop of constant length over accumulators: unrolled, they stay in registers. */
#if defined(__clang__)
#define CB_UNROLL _Pragma("clang loop unroll(full)")
#else
#define CB_UNROLL _Pragma("GCC unroll 8")
#endif

/* Coefficients of exp, docs/arithmetic.md. */
#define CB_EXP_LOG2E 0x1.715476p+0f
#define CB_EXP_LN2_HIGH 0.693359375f
#define CB_EXP_LN2_LOW (-0x1.bd0106p-13f)
#define CB_EXP_E2 0x1.fffffcp-2f
#define CB_EXP_E3 0x1.555492p-3f
#define CB_EXP_E4 0x1.5558f2p-5f
#define CB_EXP_E5 0x1.123a2p-7f
#define CB_EXP_E6 0x1.6a23cep-10f
#define CB_EXP_LOWEST (-40.0f) /* below: +0 */

/* gelu_tanh: sqrt(2/pi) and 0.044715 */
#define CB_GELU_A 0x1.988454p-1f
#define CB_GELU_B 0x1.6e4e26p-5f

#endif
