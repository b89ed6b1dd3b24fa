/* SPDX-License-Identifier: MIT */
/*
 * Quantised row products with AVX-512 VNNI; everything else is avx2.c. Built with -mavx512f
 * -mavx512vl -mavx512vnni -mf16c.
 *
 * vpdpbusd multiplies unsigned by signed bytes and adds four products to 32 bits, without
 * saturation: nibbles 0..15 as they are, int8 weights plus 128. The corrections -8 * S and
 * -128 * S start the sum.
 *
 * Few tokens use registers of one panel: decoding is one ascending stream of weights. From 4 tokens
 * on two panels fill a wide register, and the weights are unpacked once for up to 8 tokens.
 */
#include "exact.h"

#include <immintrin.h>

#include "kernels.h"
#include "spec.h"

#define INLINE static inline __attribute__((always_inline))
#define ROWS CB_PANEL_ROWS
#define COLUMNS CB_GROUP_COLUMNS
#define FEW 2   /* tokens of one panel */
#define BATCH 8 /* tokens of two panels */

INLINE int32_t load4(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return v;
}

/* ---- one panel ------------------------------------------------------------------------------ */

INLINE __m256i load_bytes(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

INLINE __m128i load_scales(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

INLINE void one_panel(const uint8_t *w, int int8, const struct cb_quantized *x, size_t first,
                      size_t tokens, float *y, size_t y_stride)
{
    const size_t groups = x->groups, block = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    const __m256i low = _mm256_set1_epi8(15), flip = _mm256_set1_epi8(-128);
    const int8_t *q = x->q + first * groups * COLUMNS;
    const float *d = x->d + first * groups;
    const int32_t *s = x->s + first * groups;
    __m256 acc[FEW];

    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        acc[t] = _mm256_setzero_ps();
    for (size_t g = 0; g < groups; g++, w += block, q += COLUMNS) {
        __m256i sum[FEW];
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++)
            sum[t] = _mm256_set1_epi32((int8 ? -128 : -8) * s[t * groups + g]);
        CB_UNROLL
        for (size_t i = 0; i < 4; i++) { /* columns 4 * i and 16 + 4 * i */
            __m256i a = load_bytes(w + 32 * i), b;
            if (int8) {
                b = _mm256_xor_si256(load_bytes(w + 128 + 32 * i), flip);
                a = _mm256_xor_si256(a, flip);
            } else {
                b = _mm256_and_si256(_mm256_srli_epi32(a, 4), low);
                a = _mm256_and_si256(a, low);
            }
            CB_UNROLL
            for (size_t t = 0; t < tokens; t++) {
                const int8_t *qt = q + t * groups * COLUMNS + 4 * i;
                sum[t] = _mm256_dpbusd_epi32(sum[t], a, _mm256_set1_epi32(load4(qt)));
                sum[t] = _mm256_dpbusd_epi32(sum[t], b, _mm256_set1_epi32(load4(qt + 16)));
            }
        }
        const __m256 scales = _mm256_cvtph_ps(load_scales(w + block - 16));
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++) {
            const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(d[t * groups + g]));
            const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(sum[t]), scale);
            acc[t] = _mm256_add_ps(acc[t], product);
        }
    }
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        _mm256_storeu_ps(y + (first + t) * y_stride, acc[t]);
}

/* ---- two panels ----------------------------------------------------------------------------- */

/* The same 32 bytes of two panels. */
INLINE __m512i load_both(const uint8_t *p, size_t panel_bytes)
{
    const __m512i low = _mm512_castsi256_si512(load_bytes(p));
    return _mm512_inserti64x4(low, load_bytes(p + panel_bytes), 1);
}

INLINE __m512 load_both_scales(const uint8_t *p, size_t panel_bytes)
{
    const __m128i a = load_scales(p), b = load_scales(p + panel_bytes);
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
}

INLINE void two_panels(const uint8_t *w, int int8, const struct cb_quantized *x, size_t first,
                       size_t tokens, float *y, size_t y_stride)
{
    const size_t groups = x->groups, block = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    const __m512i low = _mm512_set1_epi32(0x0f0f0f0f), flip = _mm512_set1_epi32((int)0x80808080u);
    const int8_t *q = x->q + first * groups * COLUMNS;
    const float *d = x->d + first * groups;
    const int32_t *s = x->s + first * groups;
    __m512 acc[BATCH];

    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        acc[t] = _mm512_setzero_ps();
    for (size_t g = 0; g < groups; g++, w += block, q += COLUMNS) {
        __m512i sum[BATCH];
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++)
            sum[t] = _mm512_set1_epi32((int8 ? -128 : -8) * s[t * groups + g]);
        for (size_t i = 0; i < 4; i++) { /* 16 products a token are enough of a loop */
            __m512i a = load_both(w + 32 * i, groups * block), b;
            if (int8) {
                b = _mm512_xor_si512(load_both(w + 128 + 32 * i, groups * block), flip);
                a = _mm512_xor_si512(a, flip);
            } else {
                b = _mm512_and_si512(_mm512_srli_epi32(a, 4), low);
                a = _mm512_and_si512(a, low);
            }
            CB_UNROLL
            for (size_t t = 0; t < tokens; t++) {
                const int8_t *qt = q + t * groups * COLUMNS + 4 * i;
                sum[t] = _mm512_dpbusd_epi32(sum[t], a, _mm512_set1_epi32(load4(qt)));
                sum[t] = _mm512_dpbusd_epi32(sum[t], b, _mm512_set1_epi32(load4(qt + 16)));
            }
        }
        const __m512 scales = load_both_scales(w + block - 16, groups * block);
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++) {
            const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(d[t * groups + g]));
            const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[t]), scale);
            acc[t] = _mm512_add_ps(acc[t], product);
        }
    }
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        _mm512_storeu_ps(y + (first + t) * y_stride, acc[t]);
}

/* ---- the table ------------------------------------------------------------------------------ */

/* Tokens [first, tokens) of one panel. */
INLINE void few_tokens(const uint8_t *w, int int8, const struct cb_quantized *x, size_t first,
                       size_t tokens, float *y, size_t y_stride)
{
    for (; first + FEW <= tokens; first += FEW)
        one_panel(w, int8, x, first, FEW, y, y_stride);
    if (first < tokens)
        one_panel(w, int8, x, first, 1, y, y_stride);
}

/* Not inlined: each is called in two places. */
__attribute__((noinline)) static void few_int4(const uint8_t *w, const struct cb_quantized *x,
                                               size_t first, size_t tokens, float *y,
                                               size_t y_stride)
{
    few_tokens(w, 0, x, first, tokens, y, y_stride);
}

__attribute__((noinline)) static void few_int8(const uint8_t *w, const struct cb_quantized *x,
                                               size_t first, size_t tokens, float *y,
                                               size_t y_stride)
{
    few_tokens(w, 1, x, first, tokens, y, y_stride);
}

INLINE void quantised_rows(const uint8_t *w, int int8, size_t panels, const struct cb_quantized *x,
                           size_t tokens, float *y, size_t y_stride)
{
    const size_t bytes = x->groups * (int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES);
    size_t p = 0;
    for (; p < panels; p++, w += bytes, y += ROWS) {
        size_t t = 0;
        if (tokens >= BATCH / 2 && p + 1 < panels) {
            for (; t + BATCH <= tokens; t += BATCH)
                two_panels(w, int8, x, t, BATCH, y, y_stride);
            if (t + BATCH / 2 <= tokens) {
                two_panels(w, int8, x, t, BATCH / 2, y, y_stride);
                t += BATCH / 2;
            }
            if (t < tokens)
                (int8 ? few_int8 : few_int4)(w, x, t, tokens, y, y_stride);
            p++;
            w += bytes;
            y += ROWS;
        }
        if (t < tokens)
            (int8 ? few_int8 : few_int4)(w, x, t, tokens, y, y_stride);
    }
}

void cb_matmul_int4_avx512(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                           size_t tokens, float *y, size_t y_stride)
{
    quantised_rows(w, 0, panels, x, tokens, y, y_stride);
}

void cb_matmul_int8_avx512(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                           size_t tokens, float *y, size_t y_stride)
{
    quantised_rows(w, 1, panels, x, tokens, y, y_stride);
}

const struct cb_kernels cb_kernels_avx512 = {
    .isa = "avx512",
    .quantize = cb_quantize_avx2,
    .matmul_int4 = cb_matmul_int4_avx512,
    .matmul_int8 = cb_matmul_int8_avx512,
    .matmul_f32 = cb_matmul_f32_avx2,
    .matmul_f16 = cb_matmul_f16_avx2,
    .matmul_bf16 = cb_matmul_bf16_avx2,
    .rmsnorm = cb_rmsnorm_avx2,
    .rope = cb_rope_avx2,
    .attend_f16 = cb_attend_f16_avx2,
    .attend_f32 = cb_attend_f32_avx2,
    .store_f16 = cb_store_f16_avx2,
    .activate = cb_activate_avx2,
    .add_scaled = cb_add_scaled_avx2,
    .top_k = cb_top_k_avx2,
};
