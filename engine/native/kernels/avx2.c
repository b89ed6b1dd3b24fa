/* SPDX-License-Identifier: MIT */
/*
 * AVX2 + F16C kernels for x86-64, built with -mavx2 -mf16c and without -mfma: the contract has no
 * fused multiply-add. The 8 rows of a panel are the 8 lanes of a register.
 *
 * Inner functions take the number of tokens (and panels) as a constant and are always inlined: one
 * text, unrolled for 1, 2 and 4 tokens. A weight vector is loaded and unpacked once for all of them.
 */
#include "exact.h"

#include <immintrin.h>

#include "colibri.h"
#include "kernels.h"
#include "spec.h"

#if defined(__FMA__)
#error "build avx2.c without -mfma: products are rounded before they are added"
#endif

#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
#define ROWS CB_PANEL_ROWS
#define COLUMNS CB_GROUP_COLUMNS
#define BATCH 4 /* tokens that share a load of weights */

INLINE __m256i load_bytes(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* 4 activation bytes, the same for every row. */
INLINE __m256i broadcast4(const int8_t *q)
{
    int32_t v;
    memcpy(&v, q, sizeof v);
    return _mm256_set1_epi32(v);
}

/* A value that the compiler must have here: without it, sums of integers are rearranged into trees
 * whose leaves do not fit into the registers. */
INLINE __m256i pinned(__m256i v)
{
    __asm__("" : "+x"(v));
    return v;
}

INLINE __m256 load_f16(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE __m256 load_bf16(const void *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/* ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)) */
INLINE float combine8(__m256 p)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    s = _mm_add_ss(s, _mm_movehdup_ps(s));
    return _mm_cvtss_f32(s);
}

/* Lanes below n: what is left of a row. */
INLINE __m256i first_lanes(size_t n)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lanes);
}

/* ---- quantised activations ---------------------------------------------------------------- */

int cb_quantize_avx2(const float *x, size_t groups, int8_t *q, float *d, int32_t *s)
{
    const __m256i abs_mask = _mm256_set1_epi32((int)CB_BITS_ABS);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);

    for (size_t g = 0; g < groups; g++, x += COLUMNS, q += COLUMNS) {
        const __m256 x0 = _mm256_loadu_ps(x), x1 = _mm256_loadu_ps(x + 8);
        const __m256 x2 = _mm256_loadu_ps(x + 16), x3 = _mm256_loadu_ps(x + 24);
        __m256i m0 = _mm256_and_si256(_mm256_castps_si256(x0), abs_mask);
        __m256i m1 = _mm256_and_si256(_mm256_castps_si256(x1), abs_mask);
        __m256i m2 = _mm256_and_si256(_mm256_castps_si256(x2), abs_mask);
        __m256i m3 = _mm256_and_si256(_mm256_castps_si256(x3), abs_mask);
        m0 = _mm256_max_epu32(_mm256_max_epu32(m0, m1), _mm256_max_epu32(m2, m3));
        __m128i m = _mm_max_epu32(_mm256_castsi256_si128(m0), _mm256_extracti128_si256(m0, 1));
        m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
        m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
        const uint32_t bits = (uint32_t)_mm_cvtsi128_si32(m);

        if (bits >= CB_BITS_INFINITY)
            return COLIBRI_ERR_NON_FINITE;
        if (bits < CB_TINY_AMAX_BITS) {
            _mm256_storeu_si256((__m256i *)q, _mm256_setzero_si256());
            d[g] = 0.0f;
            s[g] = 0;
            continue;
        }
        const float amax = cb_float(bits);
        const __m256 inv = _mm256_set1_ps(127.0f / amax);
        const __m256i i0 = _mm256_cvtps_epi32(_mm256_mul_ps(x0, inv));
        const __m256i i1 = _mm256_cvtps_epi32(_mm256_mul_ps(x1, inv));
        const __m256i i2 = _mm256_cvtps_epi32(_mm256_mul_ps(x2, inv));
        const __m256i i3 = _mm256_cvtps_epi32(_mm256_mul_ps(x3, inv));
        const __m256i lo = _mm256_packs_epi32(i0, i1), hi = _mm256_packs_epi32(i2, i3);
        const __m256i bytes = _mm256_packs_epi16(lo, hi);
        _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(bytes, order));

        __m256i sum =
            _mm256_add_epi32(_mm256_add_epi32(i0, i1), _mm256_add_epi32(i2, i3));
        m = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
        m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1));
        d[g] = amax / 127.0f;
        s[g] = _mm_cvtsi128_si32(m);
    }
    return 0;
}

/* ---- quantised row products --------------------------------------------------------------- */

/*
 * One token reads each weight once, so memory decides. The processor's own prefetcher stops at each
 * 4 KiB, and the instructions in flight reach a few blocks ahead: the lines of a block are asked for
 * when the one AHEAD bytes before it is used. 768 to 2048 are alike; behind the end it asks in vain.
 */
#define AHEAD 1536u

INLINE void fetch_ahead(const uint8_t *w, size_t bytes)
{
    CB_UNROLL
    for (size_t i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)w + AHEAD + i, _MM_HINT_T0);
}

/* acc (+) (float(isum) (*) (dw (*) d)) */
INLINE __m256 add_group(__m256 acc, __m256i isum, __m256 scales, float d)
{
    __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(d));
    return _mm256_add_ps(acc, _mm256_mul_ps(_mm256_cvtepi32_ps(isum), scale));
}

/*
 * One panel, `tokens` tokens. Each row has two 16-bit sums of 8 pairs; a pair is at most
 * 2 * 15 * 127 = 3810, so neither maddubs nor the sums saturate.
 */
INLINE void int4_panel(const uint8_t *w, const struct cb_quantized *x, size_t first, size_t tokens,
                       float *y, size_t y_stride)
{
    const size_t groups = x->groups;
    const __m256i low = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    const int8_t *q = x->q + first * groups * COLUMNS;
    const float *d = x->d + first * groups;
    const int32_t *s = x->s + first * groups;
    __m256 acc[BATCH];

    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        acc[t] = _mm256_setzero_ps();
    for (size_t g = 0; g < groups; g++, w += CB_INT4_BLOCK_BYTES, q += COLUMNS) {
        __m256i sum[BATCH];
        CB_UNROLL
        for (size_t i = 0; i < 4; i++) {
            const __m256i both = load_bytes(w + 32 * i);
            const __m256i lo = _mm256_and_si256(both, low);
            const __m256i hi = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
            CB_UNROLL
            for (size_t t = 0; t < tokens; t++) {
                const int8_t *qt = q + t * groups * COLUMNS;
                __m256i a = _mm256_maddubs_epi16(lo, broadcast4(qt + 4 * i));
                __m256i b = _mm256_maddubs_epi16(hi, broadcast4(qt + 16 + 4 * i));
                a = _mm256_add_epi16(a, b);
                sum[t] = pinned(i == 0 ? a : _mm256_add_epi16(sum[t], a));
            }
        }
        if (tokens == 1)
            fetch_ahead(w, CB_INT4_BLOCK_BYTES);
        const __m256 scales = load_f16(w + 128);
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++) {
            __m256i correction = _mm256_slli_epi32(_mm256_set1_epi32(s[t * groups + g]), 3);
            __m256i isum = _mm256_sub_epi32(_mm256_madd_epi16(sum[t], ones), correction);
            acc[t] = add_group(acc[t], isum, scales, d[t * groups + g]);
        }
    }
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        _mm256_storeu_ps(y + (first + t) * y_stride, acc[t]);
}

/*
 * 4 columns. maddubs wants one unsigned side: |w| * (q with the sign of w). A pair is at most
 * 2 * 128 * 127 = 32512 and does not saturate, whatever byte the weight is.
 */
INLINE void int8_step(const uint8_t *w, const int8_t *q, size_t q_stride, size_t tokens,
                      __m256i sum[BATCH])
{
    const __m256i weights = load_bytes(w), magnitude = _mm256_abs_epi8(weights);

    CB_UNROLL
    for (size_t t = 0; t < tokens; t++) {
        __m256i v = broadcast4(q + t * q_stride);
        v = _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(v, weights));
        v = _mm256_madd_epi16(v, _mm256_set1_epi16(1));
        sum[t] = pinned(_mm256_add_epi32(sum[t], v));
    }
}

INLINE void int8_panel(const uint8_t *w, const struct cb_quantized *x, size_t first, size_t tokens,
                       float *y, size_t y_stride)
{
    const size_t groups = x->groups;
    const int8_t *q = x->q + first * groups * COLUMNS;
    const float *d = x->d + first * groups;
    __m256 acc[BATCH];

    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        acc[t] = _mm256_setzero_ps();
    for (size_t g = 0; g < groups; g++, w += CB_INT8_BLOCK_BYTES, q += COLUMNS) {
        __m256i sum[BATCH];
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++)
            sum[t] = _mm256_setzero_si256();
        if (tokens == 1) {
            CB_UNROLL
            for (size_t i = 0; i < 8; i++)
                int8_step(w + 32 * i, q + 4 * i, 0, 1, sum);
        } else { /* several tokens are enough of a loop */
            for (size_t i = 0; i < 8; i++)
                int8_step(w + 32 * i, q + 4 * i, groups * COLUMNS, tokens, sum);
        }
        if (tokens == 1)
            fetch_ahead(w, CB_INT8_BLOCK_BYTES);
        const __m256 scales = load_f16(w + 256);
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++)
            acc[t] = add_group(acc[t], sum[t], scales, d[t * groups + g]);
    }
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        _mm256_storeu_ps(y + (first + t) * y_stride, acc[t]);
}

#define QUANTISED_ROWS(PANEL, BLOCK_BYTES)                                                         \
    for (size_t p = 0; p < panels; p++, w += x->groups * (BLOCK_BYTES), y += ROWS) {               \
        size_t t = 0;                                                                              \
        for (; t + BATCH <= tokens; t += BATCH)                                                    \
            PANEL(w, x, t, BATCH, y, y_stride);                                                    \
        if (t + BATCH / 2 <= tokens) {                                                             \
            PANEL(w, x, t, BATCH / 2, y, y_stride);                                                \
            t += BATCH / 2;                                                                        \
        }                                                                                          \
        if (t < tokens)                                                                            \
            PANEL(w, x, t, 1, y, y_stride);                                                        \
    }

void cb_matmul_int4_avx2(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                         size_t tokens, float *y, size_t y_stride)
{
    QUANTISED_ROWS(int4_panel, CB_INT4_BLOCK_BYTES)
}

void cb_matmul_int8_avx2(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                         size_t tokens, float *y, size_t y_stride)
{
    QUANTISED_ROWS(int8_panel, CB_INT8_BLOCK_BYTES)
}

/* ---- float row products ------------------------------------------------------------------- */

enum { ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16 };

/* 8 elements, widened; index counts elements; `kind` is a constant where it counts. */
INLINE __m256 load_elements(const void *w, size_t index, int kind)
{
    if (kind == ELEMENT_F16)
        return load_f16((const uint16_t *)w + index);
    if (kind == ELEMENT_BF16)
        return load_bf16((const uint16_t *)w + index);
    return _mm256_loadu_ps((const float *)w + index);
}

/* A sum over k is one chain of additions: several panels or tokens at once hide its latency. */
INLINE void float_panels(const void *w, size_t first_panel, size_t panels, size_t columns, int kind,
                         const float *x, size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    __m256 acc[BATCH][BATCH];
    CB_UNROLL
    for (size_t p = 0; p < panels; p++)
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++)
            acc[p][t] = _mm256_setzero_ps();
    for (size_t k = 0; k < columns; k++)
        CB_UNROLL
        for (size_t p = 0; p < panels; p++) {
            const __m256 v = load_elements(w, ((first_panel + p) * columns + k) * ROWS, kind);
            CB_UNROLL
            for (size_t t = 0; t < tokens; t++) {
                __m256 product = _mm256_mul_ps(v, _mm256_set1_ps(x[t * x_stride + k]));
                acc[p][t] = _mm256_add_ps(acc[p][t], product);
            }
        }
    CB_UNROLL
    for (size_t p = 0; p < panels; p++)
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++)
            _mm256_storeu_ps(y + t * y_stride + (first_panel + p) * ROWS, acc[p][t]);
}

void cb_matmul_f32_avx2(const float *w, size_t panels, size_t columns, const float *x,
                        size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    const size_t batched = tokens - tokens % BATCH, paired = panels - panels % 2;
    for (size_t t = 0; t < batched; t += BATCH)
        for (size_t p = 0; p < paired; p += 2)
            float_panels(w, p, 2, columns, ELEMENT_F32, x + t * x_stride, x_stride, BATCH,
                         y + t * y_stride, y_stride);
    for (size_t t = 0; t < tokens; t++, x += x_stride, y += y_stride) {
        size_t p = t < batched ? paired : 0;
        for (; p + 4 <= panels; p += 4)
            float_panels(w, p, 4, columns, ELEMENT_F32, x, x_stride, 1, y, y_stride);
        for (; p < panels; p++)
            float_panels(w, p, 1, columns, ELEMENT_F32, x, x_stride, 1, y, y_stride);
    }
}

/* Half precision is for tests and small matrices: one panel of one token at a time. */
APART void half_rows(const uint16_t *w, size_t panels, size_t columns, const float *x,
                     size_t x_stride, size_t tokens, float *y, size_t y_stride, int kind)
{
    for (size_t t = 0; t < tokens; t++, x += x_stride, y += y_stride)
        for (size_t p = 0; p < panels; p++)
            float_panels(w, p, 1, columns, kind, x, x_stride, 1, y, y_stride);
}

void cb_matmul_f16_avx2(const uint16_t *w, size_t panels, size_t columns, const float *x,
                        size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    half_rows(w, panels, columns, x, x_stride, tokens, y, y_stride, ELEMENT_F16);
}

void cb_matmul_bf16_avx2(const uint16_t *w, size_t panels, size_t columns, const float *x,
                         size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    half_rows(w, panels, columns, x, x_stride, tokens, y, y_stride, ELEMENT_BF16);
}

/* ---- norm, rotation ----------------------------------------------------------------------- */

void cb_rmsnorm_avx2(const float *x, const float *w, size_t n, float eps, float *y)
{
    if (n % 8) {
        cb_rmsnorm_ref(x, w, n, eps, y);
        return;
    }
    __m256 p = _mm256_setzero_ps();
    for (size_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        p = _mm256_add_ps(p, _mm256_mul_ps(v, v));
    }
    const float mean = combine8(p) / (float)n;
    const __m256 factor = _mm256_set1_ps(1.0f / cb_sqrt(mean + eps));
    for (size_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor);
        _mm256_storeu_ps(y + i, _mm256_mul_ps(v, _mm256_loadu_ps(w + i)));
    }
}

void cb_rope_avx2(float *x, const float *c, const float *s, size_t pairs, int style)
{
    size_t i = 0;
    if (style == CB_ROPE_INTERLEAVED) {
        const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
        for (; i + 4 <= pairs; i += 4) {
            const __m256 v = _mm256_loadu_ps(x + 2 * i);
            const __m256 swapped = _mm256_permute_ps(v, 0xb1);
            const __m256 cc = _mm256_permutevar8x32_ps(
                _mm256_castps128_ps256(_mm_loadu_ps(c + i)), twice);
            const __m256 ss = _mm256_permutevar8x32_ps(
                _mm256_castps128_ps256(_mm_loadu_ps(s + i)), twice);
            /* even lanes subtract, odd lanes add */
            _mm256_storeu_ps(
                x + 2 * i, _mm256_addsub_ps(_mm256_mul_ps(v, cc), _mm256_mul_ps(swapped, ss)));
        }
        cb_rope_ref(x + 2 * i, c + i, s + i, pairs - i, style);
        return;
    }
    for (; i + 8 <= pairs; i += 8) {
        const __m256 x0 = _mm256_loadu_ps(x + i), x1 = _mm256_loadu_ps(x + pairs + i);
        const __m256 cc = _mm256_loadu_ps(c + i), ss = _mm256_loadu_ps(s + i);
        _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(x0, cc), _mm256_mul_ps(x1, ss)));
        _mm256_storeu_ps(x + pairs + i,
                         _mm256_add_ps(_mm256_mul_ps(x0, ss), _mm256_mul_ps(x1, cc)));
    }
    for (; i < pairs; i++) {
        const float a = x[i] * c[i], b = x[pairs + i] * s[i];
        const float e = x[i] * s[i], f = x[pairs + i] * c[i];
        x[i] = a - b;
        x[pairs + i] = e + f;
    }
}

/* ---- exponential and activations ---------------------------------------------------------- */

INLINE __m256 exp8(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(CB_ROUND_MAGIC);
    const __m256 t = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(CB_EXP_LOG2E)), magic);
    const __m256 n = _mm256_sub_ps(t, magic);
    __m256 r = _mm256_sub_ps(x, _mm256_mul_ps(n, _mm256_set1_ps(CB_EXP_LN2_HIGH)));
    r = _mm256_sub_ps(r, _mm256_mul_ps(n, _mm256_set1_ps(CB_EXP_LN2_LOW)));
    __m256 p = _mm256_mul_ps(_mm256_set1_ps(CB_EXP_E6), r);
    p = _mm256_mul_ps(_mm256_add_ps(p, _mm256_set1_ps(CB_EXP_E5)), r);
    p = _mm256_mul_ps(_mm256_add_ps(p, _mm256_set1_ps(CB_EXP_E4)), r);
    p = _mm256_mul_ps(_mm256_add_ps(p, _mm256_set1_ps(CB_EXP_E3)), r);
    p = _mm256_add_ps(p, _mm256_set1_ps(CB_EXP_E2));
    __m256 y = _mm256_mul_ps(_mm256_mul_ps(r, r), p);
    y = _mm256_add_ps(_mm256_add_ps(y, r), _mm256_set1_ps(1.0f));
    __m256i power = _mm256_add_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(127));
    y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
    const __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(CB_EXP_LOWEST), _CMP_LT_OQ);
    return _mm256_andnot_ps(tiny, y);
}

INLINE __m256 sigmoid8(__m256 x)
{
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 e = exp8(_mm256_or_ps(x, _mm256_set1_ps(-0.0f)));
    const __m256 positive = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GE_OQ);
    return _mm256_div_ps(_mm256_blendv_ps(e, one, positive), _mm256_add_ps(one, e));
}

/* gelu_tanh(x) = x * sigmoid of this */
INLINE __m256 gelu_argument8(__m256 x)
{
    const __m256 cube = _mm256_mul_ps(_mm256_mul_ps(x, x), x);
    const __m256 inner = _mm256_add_ps(x, _mm256_mul_ps(_mm256_set1_ps(CB_GELU_B), cube));
    const __m256 u = _mm256_mul_ps(_mm256_set1_ps(CB_GELU_A), inner);
    return _mm256_mul_ps(_mm256_set1_ps(2.0f), u);
}

void cb_activate_avx2(int activation, float clamp, float alpha, const float *gate, const float *up,
                      size_t n, float *h)
{
    const __m256 high = _mm256_set1_ps(clamp), low = _mm256_set1_ps(-clamp);
    int smooth = activation == CB_ACT_SILU || activation == CB_ACT_GELU_TANH ||
                 activation == CB_ACT_SWIGLU_CLAMPED;
    __asm__("" : "+r"(smooth)); /* else gcc makes a copy of the exponential for each of them */
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 g = _mm256_loadu_ps(gate + i), argument = g;
        __m256 u = up ? _mm256_loadu_ps(up + i) : _mm256_set1_ps(1.0f);
        switch (activation) {
        case CB_ACT_SILU:
            break;
        case CB_ACT_GELU_TANH:
            argument = gelu_argument8(g);
            break;
        case CB_ACT_RELU: /* the second operand is the answer when they are equal */
            g = _mm256_max_ps(g, _mm256_setzero_ps());
            break;
        case CB_ACT_SWIGLU_CLAMPED:
            g = _mm256_min_ps(g, high);
            argument = _mm256_mul_ps(_mm256_set1_ps(alpha), g);
            if (up) {
                u = _mm256_max_ps(low, _mm256_min_ps(u, high));
                u = _mm256_add_ps(u, _mm256_set1_ps(1.0f));
            }
            break;
        case CB_ACT_IDENTITY:
            break;
        default: /* see cb_activate_ref */
            g = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
            break;
        }
        if (smooth)
            g = _mm256_mul_ps(g, sigmoid8(argument));
        _mm256_storeu_ps(h + i, _mm256_mul_ps(g, u));
    }
    cb_activate_ref(activation, clamp, alpha, gate + i, up ? up + i : NULL, n - i, h + i);
}

void cb_add_scaled_avx2(float *acc, float scale, const float *x, size_t n)
{
    const __m256 factor = _mm256_set1_ps(scale);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 product = _mm256_mul_ps(factor, _mm256_loadu_ps(x + i));
        _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), product));
    }
    cb_add_scaled_ref(acc + i, scale, x + i, n - i);
}

/* ---- KV cache and attention --------------------------------------------------------------- */

int cb_store_f16_avx2(const float *x, size_t n, uint16_t *out)
{
    const __m128i abs_mask = _mm_set1_epi16(0x7fff);
    __m128i highest = _mm_setzero_si128();
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        highest = _mm_max_epi16(highest, _mm_and_si128(h, abs_mask));
        _mm_storeu_si128((__m128i *)(out + i), h);
    }
    const int error = cb_store_f16_ref(x + i, n - i, out + i);
    if (_mm_movemask_epi8(_mm_cmpgt_epi16(highest, _mm_set1_epi16(0x7bff))))
        return COLIBRI_ERR_NON_FINITE;
    return error;
}

/* q.k of `rows` positions, scaled. */
INLINE void score_rows(const float *q, const void *k, size_t first, size_t rows, size_t dim,
                       int kind, float scale, float *scores)
{
    __m256 p[BATCH];
    CB_UNROLL
    for (size_t j = 0; j < rows; j++)
        p[j] = _mm256_setzero_ps();
    for (size_t i = 0; i < dim; i += 8) {
        const __m256 v = _mm256_loadu_ps(q + i);
        CB_UNROLL
        for (size_t j = 0; j < rows; j++) {
            const __m256 key = load_elements(k, (first + j) * dim + i, kind);
            p[j] = _mm256_add_ps(p[j], _mm256_mul_ps(v, key));
        }
    }
    CB_UNROLL
    for (size_t j = 0; j < rows; j++)
        scores[first + j] = combine8(p[j]) * scale;
}

/* scores[j] become exp(scores[j] - max); returns their sum. */
APART float softmax_terms(float *scores, size_t n)
{
    const size_t whole = n - n % 8;
    const __m256i left = first_lanes(n % 8);
    /* The missing scores are -inf: no maximum, and their term is the +0 that changes no sum. */
    __m256 last = _mm256_set1_ps(cb_float(0xff800000u));
    if (n % 8)
        last = _mm256_blendv_ps(last, _mm256_maskload_ps(scores + whole, left),
                                _mm256_castsi256_ps(left));
    __m256 m = last;
    for (size_t j = 0; j < whole; j += 8)
        m = _mm256_max_ps(m, _mm256_loadu_ps(scores + j));
    m = _mm256_max_ps(m, _mm256_permute2f128_ps(m, m, 1));
    m = _mm256_max_ps(m, _mm256_permute_ps(m, 0x4e));
    const __m256 shift = _mm256_max_ps(m, _mm256_permute_ps(m, 0xb1));
    __m256 p = _mm256_setzero_ps();
    for (size_t j = 0; j < n; j += 8) {
        const __m256 s = j < whole ? _mm256_loadu_ps(scores + j) : last;
        const __m256 e = exp8(_mm256_sub_ps(s, shift));
        if (j < whole)
            _mm256_storeu_ps(scores + j, e);
        else
            _mm256_maskstore_ps(scores + j, left, e);
        p = _mm256_add_ps(p, e);
    }
    return combine8(p);
}

/* 8 * `vectors` channels of the output from channel c. */
INLINE void weigh_values(const float *e, const void *v, size_t positions, size_t value_dim,
                         size_t c, size_t vectors, int kind, float sum, float *out)
{
    __m256 o[8];
    CB_UNROLL
    for (size_t i = 0; i < vectors; i++)
        o[i] = _mm256_setzero_ps();
    for (size_t j = 0; j < positions; j++) {
        const __m256 weight = _mm256_set1_ps(e[j]);
        CB_UNROLL
        for (size_t i = 0; i < vectors; i++) {
            const __m256 value = load_elements(v, j * value_dim + c + 8 * i, kind);
            o[i] = _mm256_add_ps(o[i], _mm256_mul_ps(weight, value));
        }
    }
    CB_UNROLL
    for (size_t i = 0; i < vectors; i++)
        _mm256_storeu_ps(out + c + 8 * i, _mm256_div_ps(o[i], _mm256_set1_ps(sum)));
}

/* For dimensions that are multiples of 8. What several positions or channels leave over shares a
 * text with f32. */
APART void attend(const float *q, const void *k, const void *v, size_t positions, size_t dim,
                  size_t value_dim, float scale, const float *sink, float *scores, float *out, int kind)
{
    size_t j = 0, c = 0;
    for (; kind == ELEMENT_F16 && j + BATCH <= positions; j += BATCH)
        score_rows(q, k, j, BATCH, dim, ELEMENT_F16, scale, scores);
    for (; j < positions; j++)
        score_rows(q, k, j, 1, dim, kind, scale, scores);

    if (sink != NULL)
        scores[positions] = *sink;
    const float sum = softmax_terms(scores, positions + (sink != NULL));

    for (; kind == ELEMENT_F16 && c + 64 <= value_dim; c += 64)
        weigh_values(scores, v, positions, value_dim, c, 8, ELEMENT_F16, sum, out);
    for (; c < value_dim; c += 8)
        weigh_values(scores, v, positions, value_dim, c, 1, kind, sum, out);
}

void cb_attend_f16_avx2(const float *q, const uint16_t *k, const uint16_t *v, size_t positions,
                        size_t dim, size_t value_dim, float scale, const float *sink, float *scores, float *out)
{
    if ((dim | value_dim) % 8)
        cb_attend_f16_ref(q, k, v, positions, dim, value_dim, scale, sink, scores, out);
    else
        attend(q, k, v, positions, dim, value_dim, scale, sink, scores, out, ELEMENT_F16);
}

void cb_attend_f32_avx2(const float *q, const float *k, const float *v, size_t positions, size_t dim,
                        size_t value_dim, float scale, const float *sink, float *scores, float *out)
{
    if ((dim | value_dim) % 8)
        cb_attend_f32_ref(q, k, v, positions, dim, value_dim, scale, sink, scores, out);
    else
        attend(q, k, v, positions, dim, value_dim, scale, sink, scores, out, ELEMENT_F32);
}

/* A few hundred scalar instructions a layer: not worth more here. */
void cb_top_k_avx2(float *scores, size_t n, size_t k, int32_t *ids)
{
    cb_top_k_ref(scores, n, k, ids);
}

const struct cb_kernels cb_kernels_avx2 = CB_KERNEL_TABLE(avx2);
