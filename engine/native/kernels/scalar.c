/* SPDX-License-Identifier: MIT */
/* Scalar pieces of the arithmetic contract, shared by the tables, the router and the sampler. */
#include "exact.h"

#include "kernels.h"
#include "spec.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

/*
 * Correctly rounded square root without libm. The hardware instruction where there is one (the C
 * library's sqrtf sets errno and needs -lm); bit by bit in integers otherwise.
 */
#if defined(__SSE__) && !defined(CB_PORTABLE_SQRT)
float cb_sqrt(float x)
{
    return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)));
}
#elif defined(__aarch64__) && !defined(CB_PORTABLE_SQRT)
float cb_sqrt(float x)
{
    return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0);
}
#elif defined(__arm__) && defined(__ARM_FP) && (__ARM_FP & 4) && !defined(CB_PORTABLE_SQRT)
float cb_sqrt(float x)
{
    float y;
    __asm__("vsqrt.f32 %0, %1" : "=t"(y) : "t"(x));
    return y;
}
#else
float cb_sqrt(float x)
{
    uint32_t u = cb_bits(x);
    if ((u & CB_BITS_ABS) == 0 || u == CB_BITS_INFINITY || (u & CB_BITS_ABS) > CB_BITS_INFINITY)
        return x;
    if (u >> 31)
        return cb_float(0x7fc00000u);
    int exponent = (int)(u >> 23);
    uint64_t m = u & 0x7fffffu;
    if (exponent == 0) {
        exponent = 1;
        while (m < 0x800000u) {
            m <<= 1;
            exponent--;
        }
    } else {
        m |= 0x800000u;
    }
    exponent -= 127;
    if (exponent & 1) {
        m <<= 1;
        exponent--;
    }
    /* x = m * 2^(exponent - 23), m in [2^23, 2^25): the root of m * 2^25 has 25 bits. */
    m <<= 25;
    uint64_t root = 0;
    for (uint64_t bit = UINT64_C(1) << 24; bit; bit >>= 1)
        if ((root | bit) * (root | bit) <= m)
            root |= bit;
    /* Round the last bit to nearest; an exact tie cannot happen: an odd root of 25 bits has an odd
     * square, and m is even. */
    uint32_t y = (uint32_t)((root >> 1) + (root & 1));
    return cb_float((uint32_t)((exponent / 2 + 127 - 1) << 23) + y);
}
#endif

__attribute__((noinline)) float cb_exp(float x)
{
    if (x < CB_EXP_LOWEST)
        return 0.0f;
    float scaled = x * CB_EXP_LOG2E;
    float t = scaled + CB_ROUND_MAGIC; /* the low bits of t are n, also when t is not finite */
    float n = t - CB_ROUND_MAGIC;
    float high = n * CB_EXP_LN2_HIGH;
    float low = n * CB_EXP_LN2_LOW;
    float r = (x - high) - low;
    float p = CB_EXP_E6 * r;
    p = p + CB_EXP_E5;
    p = p * r;
    p = p + CB_EXP_E4;
    p = p * r;
    p = p + CB_EXP_E3;
    p = p * r;
    p = p + CB_EXP_E2;
    float y = r * r;
    y = y * p;
    y = y + r;
    y = y + 1.0f;
    return y * cb_float((cb_bits(t) + 127u) << 23);
}

float cb_sigmoid(float x)
{
    float e = cb_exp(cb_float(cb_bits(x) | 0x80000000u));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

float cb_reduce8(const float *v, size_t n)
{
    float p[8] = {0};
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        for (size_t j = 0; j < 8; j++)
            p[j] = p[j] + v[i + j];
    for (size_t j = 0; i + j < n; j++)
        p[j] = p[j] + v[i + j];
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

float cb_f16_to_f32(uint16_t h)
{
    return cb_f16(h);
}

uint16_t cb_f16_from_f32(float x)
{
    uint32_t u = cb_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= CB_BITS_ABS;
    if (u > CB_BITS_INFINITY)
        return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477ff000u) /* 65520 and up rounds to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x33000001u) /* up to 2^-25 rounds to zero */
        return (uint16_t)sign;
    uint32_t mantissa, shift;
    if (u < 0x38800000u) { /* below 2^-14: subnormal, unit 2^-24 */
        mantissa = (u & 0x7fffffu) | 0x800000u;
        shift = 126u - (u >> 23);
    } else {
        mantissa = u - 0x38000000u;
        shift = 13;
    }
    uint32_t half = UINT32_C(1) << (shift - 1);
    uint32_t odd = (mantissa >> shift) & 1u;
    return (uint16_t)(sign | ((mantissa + half - 1u + odd) >> shift));
}

float cb_bf16_to_f32(uint16_t h)
{
    return cb_bf16(h);
}

static uint16_t load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | (p[1] << 8));
}

void cb_panel_row(const uint8_t *w, int dtype, size_t row, size_t columns, float *out)
{
    const size_t groups = (columns + CB_GROUP_COLUMNS - 1) / CB_GROUP_COLUMNS;
    const size_t panel = row / CB_PANEL_ROWS, r = row % CB_PANEL_ROWS;
    const size_t padded = groups * CB_GROUP_COLUMNS;

    for (size_t k = 0; k < columns; k++) {
        const size_t g = k / CB_GROUP_COLUMNS, j = k % CB_GROUP_COLUMNS;
        const size_t element = panel * padded * CB_PANEL_ROWS + k * CB_PANEL_ROWS + r;
        if (dtype == CB_DTYPE_INT4) {
            const uint8_t *block = w + (panel * groups + g) * CB_INT4_BLOCK_BYTES;
            uint8_t byte = block[32 * (j % 16 / 4) + 4 * r + j % 4];
            int value = (j < 16 ? byte & 15 : byte >> 4) - 8;
            out[k] = (float)value * cb_f16_to_f32(load_u16(block + 128 + 2 * r));
        } else if (dtype == CB_DTYPE_INT8) {
            const uint8_t *block = w + (panel * groups + g) * CB_INT8_BLOCK_BYTES;
            int value = (int8_t)block[32 * (j / 4) + 4 * r + j % 4];
            out[k] = (float)value * cb_f16_to_f32(load_u16(block + 256 + 2 * r));
        } else if (dtype == CB_DTYPE_F16) {
            out[k] = cb_f16_to_f32(load_u16(w + 2 * element));
        } else if (dtype == CB_DTYPE_BF16) {
            out[k] = cb_bf16_to_f32(load_u16(w + 2 * element));
        } else {
            memcpy(&out[k], w + 4 * element, 4);
        }
    }
}

void cb_rope_angles(uint32_t position, const float *inv_freq, size_t pairs, float factor,
                    float *c, float *s)
{
    for (size_t i = 0; i < pairs; i++) {
        const double a = (double)position * (double)inv_freq[i];
        const double t = a * 0x1.45f306dc9c883p-1 + 0x1.8p52;
        const double n = t - 0x1.8p52;
        const double r =
            ((a - n * 0x1.921fb54400000p+0) - n * 0x1.0b4611a600000p-34) - n * 0x1.3198a2e037073p-69;
        const double z = r * r;
        double p = -0x1.ae7f3e733b81fp-41;
        p = p * z + 0x1.6124613a86d09p-33;
        p = p * z + -0x1.ae64567f544e4p-26;
        p = p * z + 0x1.71de3a556c734p-19;
        p = p * z + -0x1.a01a01a01a01ap-13;
        p = p * z + 0x1.1111111111111p-7;
        p = p * z + -0x1.5555555555555p-3;
        const double sine = r + r * (z * p);
        p = 0x1.ae7f3e733b81fp-45;
        p = p * z + -0x1.93974a8c07c9dp-37;
        p = p * z + 0x1.1eed8eff8d898p-29;
        p = p * z + -0x1.27e4fb7789f5cp-22;
        p = p * z + 0x1.a01a01a01a01ap-16;
        p = p * z + -0x1.6c16c16c16c17p-10;
        p = p * z + 0x1.5555555555555p-5;
        p = p * z + -0x1.0000000000000p-1;
        const double cosine = 1.0 + z * p;
        uint64_t quadrant; /* the low bits of t are n */
        memcpy(&quadrant, &t, sizeof quadrant);
        double cs = quadrant & 1 ? sine : cosine;
        double sn = quadrant & 1 ? cosine : sine;
        if ((quadrant + 1) & 2)
            cs = -cs;
        if (quadrant & 2)
            sn = -sn;
        c[i] = (float)cs * factor;
        s[i] = (float)sn * factor;
    }
}
