/* SPDX-License-Identifier: MIT */
/*
 * Quantised row products of several tokens with the matrix instructions of ARMv8.6 (Cortex-A510,
 * A710, Neoverse N2 and later): smmla multiplies 2 tokens x 8 columns by 8 columns x 2 rows. One
 * token, and all else, is dotprod.c.
 *
 * A register holds a tile: (token 0, row 0), (0, 1), (1, 0), (1, 1). Activations, scales and the
 * starts of the sums are laid out that way once for all panels, in pieces that fit the stack;
 * between pieces the sums wait in y. How the sums start is explained in dotprod.c.
 */
#include "exact.h"

#include "neon.h"

#define PAIRS 2         /* of tokens that share a load of weights */
#define PIECE_PAIRS 4   /* of tokens that are laid out at once: 12 KiB of stack */
#define PIECE_GROUPS 32

/* Two tokens, one group. */
struct tile {
    int32_t start[4];
    float d[4];
    int8_t q[4][16]; /* [8 columns][token 0, token 1] */
};

static void lay_out(struct tile *to, const struct cb_quantized *x, size_t token, size_t first,
                    size_t count, int correction)
{
    for (size_t g = 0; g < count; g++)
        for (size_t t = 0; t < 2; t++) {
            const size_t at = (token + t) * x->groups + first + g;
            const int32_t start = (int32_t)CB_ROUND_MAGIC_BITS - correction * x->s[at];
            for (size_t i = 0; i < 2; i++) {
                to[g].start[2 * t + i] = start;
                to[g].d[2 * t + i] = x->d[at];
            }
            for (size_t j = 0; j < 4; j++)
                memcpy(to[g].q[j] + 8 * t, x->q + at * COLUMNS + 8 * j, 8);
        }
}

INLINE int8x16_t signed_bytes(uint8x16_t v)
{
    return vreinterpretq_s8_u8(v);
}

/* 8 columns of 8 rows, stored as two steps of 4: to[n] is 8 columns of rows 2 * n and 2 * n + 1. */
INLINE void load_rows(uint8x16_t to[4], const uint8_t *w)
{
    const uint32x4_t a = vreinterpretq_u32_u8(vld1q_u8(w));
    const uint32x4_t b = vreinterpretq_u32_u8(vld1q_u8(w + 32));
    const uint32x4_t c = vreinterpretq_u32_u8(vld1q_u8(w + 16));
    const uint32x4_t d = vreinterpretq_u32_u8(vld1q_u8(w + 48));
    to[0] = vreinterpretq_u8_u32(vzip1q_u32(a, b));
    to[1] = vreinterpretq_u8_u32(vzip2q_u32(a, b));
    to[2] = vreinterpretq_u8_u32(vzip1q_u32(c, d));
    to[3] = vreinterpretq_u8_u32(vzip2q_u32(c, d));
}

/* The low, then the high halves of two registers. */
INLINE float32x4_t low_halves(float32x4_t a, float32x4_t b)
{
    return vcombine_f32(vget_low_f32(a), vget_low_f32(b));
}

INLINE float32x4_t high_halves(float32x4_t a, float32x4_t b)
{
    return vcombine_f32(vget_high_f32(a), vget_high_f32(b));
}

/* One block: acc[p][n] is pair p of tokens, rows 2 * n and 2 * n + 1. Pair p reads x[p * stride] */
INLINE void block(float32x4_t acc[PAIRS][4], const uint8_t *w, int int8, const struct tile *x,
                  size_t stride, size_t pairs)
{
    const float32x4_t magic = vdupq_n_f32(CB_ROUND_MAGIC);
    int32x4_t sum[PAIRS][4];
    CB_UNROLL
    for (size_t p = 0; p < pairs; p++)
        CB_UNROLL
        for (size_t n = 0; n < 4; n++)
            sum[p][n] = vld1q_s32(x[p * stride].start);
    CB_UNROLL
    for (size_t j = 0; j < 2; j++) { /* columns 8 * j and 16 + 8 * j */
        if (pairs > 1)
            __asm__ volatile("" ::: "memory"); /* loading ahead would spill */
        uint8x16_t rows[4], more[4];
        load_rows(rows, w + 64 * j);
        if (int8)
            load_rows(more, w + 128 + 64 * j);
        CB_UNROLL
        for (size_t n = 0; n < 4; n++) {
            const uint8x16_t a = int8 ? rows[n] : vandq_u8(rows[n], vdupq_n_u8(15));
            const uint8x16_t b = int8 ? more[n] : vshrq_n_u8(rows[n], 4);
            CB_UNROLL
            for (size_t p = 0; p < pairs; p++) {
                const struct tile *tile = x + p * stride;
                sum[p][n] = vmmlaq_s32(sum[p][n], vld1q_s8(tile->q[j]), signed_bytes(a));
                sum[p][n] = vmmlaq_s32(sum[p][n], vld1q_s8(tile->q[2 + j]), signed_bytes(b));
            }
        }
    }
    const struct f8 scales = load_scales(w + (int8 ? 256 : 128));
    const float32x4_t scale[4] = {
        low_halves(scales.lo, scales.lo), high_halves(scales.lo, scales.lo),
        low_halves(scales.hi, scales.hi), high_halves(scales.hi, scales.hi)};
    CB_UNROLL
    for (size_t p = 0; p < pairs; p++) {
        const float32x4_t d = vld1q_f32(x[p * stride].d);
        CB_UNROLL
        for (size_t n = 0; n < 4; n++) {
            const float32x4_t isum = vsubq_f32(vreinterpretq_f32_s32(sum[p][n]), magic);
            acc[p][n] = vaddq_f32(acc[p][n], vmulq_f32(isum, vmulq_f32(scale[n], d)));
        }
    }
}

/* `count` groups of one panel are added to y: token 0 of the first pair. */
INLINE void tiles(const uint8_t *w, int int8, const struct tile *x, size_t count, size_t pairs,
                  float *y, size_t y_stride)
{
    float32x4_t acc[PAIRS][4];
    CB_UNROLL
    for (size_t p = 0; p < pairs; p++)
        CB_UNROLL
        for (size_t n = 0; n < 4; n++) {
            const float *at = y + 2 * p * y_stride + 2 * n;
            acc[p][n] = vcombine_f32(vld1_f32(at), vld1_f32(at + y_stride));
        }
    for (size_t g = 0; g < count; g++, w += int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES)
        block(acc, w, int8, x + g, PIECE_GROUPS, pairs);
    CB_UNROLL
    for (size_t p = 0; p < pairs; p++)
        CB_UNROLL
        for (size_t n = 0; n < 4; n++) {
            float *at = y + 2 * p * y_stride + 2 * n;
            vst1_f32(at, vget_low_f32(acc[p][n]));
            vst1_f32(at + y_stride, vget_high_f32(acc[p][n]));
        }
}

typedef void tiles_function(const uint8_t *w, const struct tile *x, size_t count, float *y,
                            size_t y_stride);

APART void int4_pair(const uint8_t *w, const struct tile *x, size_t count, float *y,
                     size_t y_stride)
{
    tiles(w, 0, x, count, 1, y, y_stride);
}

APART void int4_pairs(const uint8_t *w, const struct tile *x, size_t count, float *y,
                      size_t y_stride)
{
    tiles(w, 0, x, count, PAIRS, y, y_stride);
}

APART void int8_pair(const uint8_t *w, const struct tile *x, size_t count, float *y,
                     size_t y_stride)
{
    tiles(w, 1, x, count, 1, y, y_stride);
}

APART void int8_pairs(const uint8_t *w, const struct tile *x, size_t count, float *y,
                      size_t y_stride)
{
    tiles(w, 1, x, count, PAIRS, y, y_stride);
}

static void quantised_rows(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                           size_t tokens, float *y, size_t y_stride, int int8)
{
    const size_t groups = x->groups, bytes = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    tiles_function *const one = int8 ? int8_pair : int4_pair;
    tiles_function *const several = int8 ? int8_pairs : int4_pairs;
    struct tile piece[PIECE_PAIRS][PIECE_GROUPS];
    if (tokens % 2) { /* an odd token is left to the kernels for one */
        const size_t last = --tokens, at = last * groups;
        const struct cb_quantized from = {x->q + at * COLUMNS, x->d + at, x->s + at, groups};
        (int8 ? cb_matmul_int8_dotprod : cb_matmul_int4_dotprod)(w, panels, &from, 1,
                                                                 y + last * y_stride, y_stride);
    }
    for (size_t t = 0; t < tokens; t++)
        memset(y + t * y_stride, 0, panels * ROWS * sizeof *y);
    for (size_t token = 0, pairs; token < tokens; token += 2 * pairs) {
        pairs = (tokens - token) / 2;
        if (pairs > PIECE_PAIRS)
            pairs = PIECE_PAIRS;
        for (size_t first = 0, count; first < groups; first += count) {
            count = groups - first < PIECE_GROUPS ? groups - first : PIECE_GROUPS;
            for (size_t p = 0; p < pairs; p++)
                lay_out(piece[p], x, token + 2 * p, first, count, int8 ? 0 : 8);
            for (size_t panel = 0; panel < panels; panel++) {
                const uint8_t *row = w + (panel * groups + first) * bytes;
                float *to = y + token * y_stride + panel * ROWS;
                for (size_t p = 0; p < pairs; p += PAIRS, to += 2 * PAIRS * y_stride)
                    (p + PAIRS <= pairs ? several : one)(row, piece[p], count, to, y_stride);
            }
        }
    }
}

void cb_matmul_int4_i8mm(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                         size_t tokens, float *y, size_t y_stride)
{
    quantised_rows(w, panels, x, tokens, y, y_stride, 0);
}

void cb_matmul_int8_i8mm(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                         size_t tokens, float *y, size_t y_stride)
{
    quantised_rows(w, panels, x, tokens, y, y_stride, 1);
}

const struct cb_kernels cb_kernels_i8mm = {
    .isa = "i8mm",
    .quantize = cb_quantize_neon,
    .matmul_int4 = cb_matmul_int4_i8mm,
    .matmul_int8 = cb_matmul_int8_i8mm,
    .matmul_f32 = cb_matmul_f32_neon,
    .matmul_f16 = cb_matmul_f16_neon,
    .matmul_bf16 = cb_matmul_bf16_neon,
    .rmsnorm = cb_rmsnorm_neon,
    .rope = cb_rope_neon,
    .attend_f16 = cb_attend_f16_neon,
    .attend_f32 = cb_attend_f32_neon,
    .store_f16 = cb_store_f16_neon,
    .activate = cb_activate_neon,
    .add_scaled = cb_add_scaled_neon,
    .top_k = cb_top_k_neon,
};
