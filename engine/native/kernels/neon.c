/* SPDX-License-Identifier: MIT */
/*
 * NEON kernels for ARMv8.0 (aarch64): multiply-long and accumulate-long only, no dot product, no
 * fused multiply-add. The 8 rows of a panel are two registers of 4 lanes.
 *
 * 32-bit ARM gets the integer part of the quantised row products and the reference for the rest: its
 * NEON flushes subnormals, rounds in one mode only and has no division, so floats are VFP.
 */
#include "exact.h"

#include "neon.h"

#if defined(__aarch64__)

/* ---- quantised activations ---------------------------------------------------------------- */

int cb_quantize_neon(const float *x, size_t groups, int8_t *q, float *d, int32_t *s)
{
    for (size_t g = 0; g < groups; g++, x += COLUMNS, q += COLUMNS) {
        const uint32x4_t magnitude = vdupq_n_u32(CB_BITS_ABS);
        float32x4_t v[8];
        uint32x4_t m = vdupq_n_u32(0);
        CB_UNROLL
        for (size_t i = 0; i < 8; i++) {
            v[i] = vld1q_f32(x + 4 * i);
            m = vmaxq_u32(m, vandq_u32(vreinterpretq_u32_f32(v[i]), magnitude));
        }
        const uint32_t bits = vmaxvq_u32(m);
        if (bits >= CB_BITS_INFINITY)
            return COLIBRI_ERR_NON_FINITE;
        if (bits < CB_TINY_AMAX_BITS) {
            vst1q_s8(q, vdupq_n_s8(0));
            vst1q_s8(q + 16, vdupq_n_s8(0));
            d[g] = 0.0f;
            s[g] = 0;
            continue;
        }
        const float amax = cb_float(bits);
        const float inv = 127.0f / amax;
        int16x8_t n[4];
        CB_UNROLL
        for (size_t i = 0; i < 4; i++) {
            const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(v[2 * i], inv));
            const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(v[2 * i + 1], inv));
            n[i] = vcombine_s16(vmovn_s32(a), vmovn_s32(b));
        }
        vst1q_s8(q, vcombine_s8(vmovn_s16(n[0]), vmovn_s16(n[1])));
        vst1q_s8(q + 16, vcombine_s8(vmovn_s16(n[2]), vmovn_s16(n[3])));
        /* 4 * 127 fits 16 bits in every lane */
        const int16x8_t sum = vaddq_s16(vaddq_s16(n[0], n[1]), vaddq_s16(n[2], n[3]));
        d[g] = amax / 127.0f;
        s[g] = vaddlvq_s16(sum);
    }
    return 0;
}

/* ---- quantised row products --------------------------------------------------------------- */

/*
 * A vector of weights holds rows 0-3 (or 4-7) with 4 columns each; the 4 activations of those
 * columns are repeated for every row. The long multiply of a half gives two rows with 4 partial
 * sums each.
 */

/* One token, one group: repeated once for all panels. */
struct repeated {
    int8_t q[8][16];
    int32_t start[4]; /* CB_ROUND_MAGIC_BITS - 8 * S, repeated; what for: dotprod.c */
    float d;
    float unused[3];
};

_Static_assert(sizeof(struct repeated) == 160, "int4_piece counts on it");
_Static_assert(CB_INT4_BLOCK_BYTES == 144, "int4_piece counts on it");

#define PIECE 64 /* groups that are prepared at once: 10 KiB of stack */

static void repeat(struct repeated *to, const int8_t *q, const float *d, const int32_t *s,
                   size_t count)
{
    for (size_t g = 0; g < count; g++, q += COLUMNS) {
        for (size_t i = 0; i < 8; i++) {
            int32_t four;
            memcpy(&four, q + 4 * i, sizeof four);
            vst1q_s8(to[g].q[i], vreinterpretq_s8_s32(vdupq_n_s32(four)));
        }
        vst1q_s32(to[g].start, vdupq_n_s32((int32_t)CB_ROUND_MAGIC_BITS - 8 * s[g]));
        to[g].d = d[g];
    }
}

/* `lane` is a constant wherever this is inlined. */
INLINE int8x16_t repeat4(int8x16_t q, int lane)
{
    const int32x4_t v = vreinterpretq_s32_s8(q);
    int32x4_t r;
    switch (lane) {
    case 0:
        r = vdupq_laneq_s32(v, 0);
        break;
    case 1:
        r = vdupq_laneq_s32(v, 1);
        break;
    case 2:
        r = vdupq_laneq_s32(v, 2);
        break;
    default:
        r = vdupq_laneq_s32(v, 3);
        break;
    }
    __asm__("" : "+w"(r)); /* else clang sees equal halves and extracts those of the weights */
    return vreinterpretq_s8_s32(r);
}

/* acc (+) (float(isum) (*) (dw (*) d)) */
INLINE struct f8 add_group(struct f8 acc, int32x4_t lo, int32x4_t hi, struct f8 scales, float d)
{
    const struct f8 isum = {vcvtq_f32_s32(lo), vcvtq_f32_s32(hi)};
    const struct f8 scale = {vmulq_n_f32(scales.lo, d), vmulq_n_f32(scales.hi, d)};
    return add_product8(acc, isum, scale);
}

/* Two vectors of weights, 8 rows of 4 columns, times the activations of those columns. */
INLINE void multiply(int16x8_t sum[4], int8x16_t w0, int8x16_t w1, int8x16_t q, int start)
{
    if (start) {
        sum[0] = vmull_s8(vget_low_s8(w0), vget_low_s8(q));
        sum[1] = vmull_high_s8(w0, q);
        sum[2] = vmull_s8(vget_low_s8(w1), vget_low_s8(q));
        sum[3] = vmull_high_s8(w1, q);
    } else {
        sum[0] = vmlal_s8(sum[0], vget_low_s8(w0), vget_low_s8(q));
        sum[1] = vmlal_high_s8(sum[1], w0, q);
        sum[2] = vmlal_s8(sum[2], vget_low_s8(w1), vget_low_s8(q));
        sum[3] = vmlal_high_s8(sum[3], w1, q);
    }
}

/*
 * One int4 block and BATCH tokens, `stride` groups apart. A lane sums 8 products of a nibble (0..15)
 * and an activation, at most 8 * 15 * 127 = 15240. With the correction, or when lanes are added, it
 * may wrap, and in the end that is taken back: the true sum of a group is at most 8 * 127 * 32 = 32512.
 */
INLINE void int4_block(struct f8 acc[BATCH], const uint8_t *w, const int8_t *q, const float *d,
                       const int32_t *s, size_t stride)
{
    int16x8_t sum[BATCH][4];
    CB_UNROLL
    for (int i = 0; i < 4; i++) {
        const uint8x16_t b0 = vld1q_u8(w + 32 * i), b1 = vld1q_u8(w + 32 * i + 16);
        const int8x16_t l0 = vreinterpretq_s8_u8(vandq_u8(b0, vdupq_n_u8(15)));
        const int8x16_t l1 = vreinterpretq_s8_u8(vandq_u8(b1, vdupq_n_u8(15)));
        const int8x16_t h0 = vreinterpretq_s8_u8(vshrq_n_u8(b0, 4));
        const int8x16_t h1 = vreinterpretq_s8_u8(vshrq_n_u8(b1, 4));
        CB_UNROLL
        for (size_t t = 0; t < BATCH; t++) {
            const int8_t *qt = q + t * stride * COLUMNS;
            multiply(sum[t], l0, l1, repeat4(load_activations(qt), i), i == 0);
            multiply(sum[t], h0, h1, repeat4(load_activations(qt + 16), i), 0);
        }
    }
    const struct f8 scales = load_scales(w + 128);
    CB_UNROLL
    for (size_t t = 0; t < BATCH; t++) {
        const int16x8_t a = vpaddq_s16(sum[t][0], sum[t][1]), b = vpaddq_s16(sum[t][2], sum[t][3]);
        const int16x8_t correction = vdupq_n_s16((int16_t)(8 * s[t * stride]));
        const int16x8_t isum = vsubq_s16(vpaddq_s16(a, b), correction);
        acc[t] = add_group(acc[t], vmovl_s16(vget_low_s16(isum)), vmovl_high_s16(isum), scales,
                           d[t * stride]);
    }
}

/*
 * One int8 block. Two products reach 2 * 128 * 127 = 32512 and fit 16 bits; they are then added to
 * 32-bit sums, two to a row.
 */
INLINE void int8_block(struct f8 acc[BATCH], const uint8_t *w, const struct repeated *one,
                       const int8_t *q, const float *d, size_t stride, size_t tokens)
{
    int32x4_t sum[BATCH][4];
    CB_UNROLL
    for (int i = 0; i < 4; i++) { /* 8 columns at a time */
        const int8_t *rows = (const int8_t *)w + 64 * i;
        const int8x16_t w0 = vld1q_s8(rows), w1 = vld1q_s8(rows + 16);
        const int8x16_t v0 = vld1q_s8(rows + 32), v1 = vld1q_s8(rows + 48);
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++) {
            int16x8_t pair[4];
            if (tokens == 1) {
                multiply(pair, w0, w1, load_activations(one->q[2 * i]), 1);
                multiply(pair, v0, v1, load_activations(one->q[2 * i + 1]), 0);
            } else {
                __asm__ volatile("" ::: "memory"); /* loading ahead would spill */
                const int8x16_t half = load_activations(q + t * stride * COLUMNS + 16 * (i / 2));
                multiply(pair, w0, w1, repeat4(half, 2 * (i % 2)), 1);
                multiply(pair, v0, v1, repeat4(half, 2 * (i % 2) + 1), 0);
            }
            CB_UNROLL
            for (size_t j = 0; j < 4; j++)
                sum[t][j] = i == 0 ? vpaddlq_s16(pair[j]) : vpadalq_s16(sum[t][j], pair[j]);
        }
    }
    const struct f8 scales = load_scales(w + 256);
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        acc[t] = add_group(acc[t], vpaddq_s32(sum[t][0], sum[t][1]),
                           vpaddq_s32(sum[t][2], sum[t][3]), scales,
                           tokens == 1 ? one->d : d[t * stride]);
}

/*
 * One panel, one token: `count` >= 1 groups are added to y. The order is what a search found with
 * llvm-mca's models of Cortex-A53, which issues in order, and A72 (117 and 39 cycles a group; as gcc
 * orders the same steps in C, 131 and 39, with 10 instructions more). Two lanes of a row add up to
 * at most 2 * 15240, which fits 16 bits; the four are added to the start in 32.
 *
 * v2..v5 sums, of two rows each; v6 v7 of rows 0-3 and 4-7 with their start; v8..v15 activations;
 * v16..v23 bytes, then high nibbles; v24..v27 low nibbles, then scales; v28 d; v29 scales as stored;
 * v30 15 in every byte, v31 CB_ROUND_MAGIC.
 */
#define LOAD2(from, a, b, at) "ldp q" #a ", q" #b ", [%[" #from "], #" #at "]\n"
#define LOW(to, from) "and v" #to ".16b, v" #from ".16b, v30.16b\n"
#define HIGH(v) "ushr v" #v ".16b, v" #v ".16b, #4\n"
#define MUL(sum, w, q) "smull v" #sum ".8h, v" #w ".8b, v" #q ".8b\n"
#define MUL2(sum, w, q) "smull2 v" #sum ".8h, v" #w ".16b, v" #q ".16b\n"
#define MLA(sum, w, q) "smlal v" #sum ".8h, v" #w ".8b, v" #q ".8b\n"
#define MLA2(sum, w, q) "smlal2 v" #sum ".8h, v" #w ".16b, v" #q ".16b\n"

APART void int4_piece(const uint8_t *w, const struct repeated *piece, size_t count, float *y)
{
    const uint8_t *scales = w + 128;
    const int32_t *start = piece->start;
    struct f8 acc = load8(y);
    __asm__ volatile(
        "movi v30.16b, #15\n"
        "dup v31.4s, %w[magic]\n"
        "1:\n"
        LOAD2(w, 16, 17, -128) LOAD2(x, 8, 9, -128) LOAD2(x, 12, 13, -64) LOW(24, 16) HIGH(16)
        LOW(25, 17) LOAD2(w, 20, 21, -64) LOAD2(x, 10, 11, -96) MUL(2, 24, 8) HIGH(17)
        MUL2(3, 24, 8) LOAD2(x, 14, 15, -32) MUL(4, 25, 8) MUL2(5, 25, 8) LOAD2(w, 18, 19, -96)
        MLA(2, 16, 12) MLA2(3, 16, 12) MLA(4, 17, 12) LOW(26, 18) LOW(27, 19) MLA2(5, 17, 12)
        HIGH(18) LOW(25, 21) HIGH(19) MLA(2, 26, 9) MLA2(3, 26, 9) MLA(4, 27, 9) MLA2(5, 27, 9)
        LOW(24, 20) HIGH(20) MLA(2, 18, 13) MLA2(3, 18, 13) MLA(4, 19, 13) MLA2(5, 19, 13) HIGH(21)
        MLA(2, 24, 10) MLA2(3, 24, 10) MLA(4, 25, 10) MLA2(5, 25, 10) LOAD2(w, 22, 23, -32)
        MLA(2, 20, 14) MLA2(3, 20, 14) MLA(4, 21, 14) LOW(26, 22) HIGH(22) MLA2(5, 21, 14)
        LOW(27, 23) HIGH(23) MLA(2, 26, 11) MLA2(3, 26, 11) MLA(4, 27, 11) MLA2(5, 27, 11)
        "ldr q29, [%[w]], #144\n" MLA(2, 22, 15) MLA2(3, 22, 15) "ldp q6, q28, [%[x]], #160\n"
        "fcvtl2 v25.4s, v29.8h\n" MLA(4, 23, 15) MLA2(5, 23, 15) "fcvtl v24.4s, v29.4h\n"
        "mov v7.16b, v6.16b\n" "addp v2.8h, v2.8h, v3.8h\n" "subs %[count], %[count], #1\n"
        "fmul v25.4s, v25.4s, v28.s[0]\n" "addp v4.8h, v4.8h, v5.8h\n"
        "fmul v24.4s, v24.4s, v28.s[0]\n" "sadalp v6.4s, v2.8h\n" "sadalp v7.4s, v4.8h\n"
        "fsub v7.4s, v7.4s, v31.4s\n" "fsub v6.4s, v6.4s, v31.4s\n" "fmul v24.4s, v24.4s, v6.4s\n"
        "fmul v25.4s, v25.4s, v7.4s\n" "fadd %[lo].4s, %[lo].4s, v24.4s\n"
        "fadd %[hi].4s, %[hi].4s, v25.4s\n"
        "b.ne 1b\n"
        : [lo] "+w"(acc.lo), [hi] "+w"(acc.hi), [w] "+r"(scales), [x] "+r"(start),
          [count] "+r"(count)
        : [magic] "r"(CB_ROUND_MAGIC_BITS)
        : "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",
          "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
          "v29", "v30", "v31", "cc", "memory");
    store8(y, acc);
}

APART void int8_piece(const uint8_t *w, const struct repeated *piece, size_t count, float *y)
{
    struct f8 acc[BATCH] = {load8(y)};
    for (size_t g = 0; g < count; g++, w += CB_INT8_BLOCK_BYTES)
        int8_block(acc, w, piece + g, NULL, NULL, 0, 1);
    store8(y, acc[0]);
}

/* All panels, one token: a piece of every row after the other; sums wait in y between pieces. */
static void one_token(const uint8_t *w, int int8, size_t panels, const struct cb_quantized *x,
                      size_t token, float *y)
{
    const size_t groups = x->groups, block = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    struct repeated piece[PIECE];
    memset(y, 0, panels * ROWS * sizeof *y);
    for (size_t first = 0, count; first < groups; first += count) {
        const size_t at = token * groups + first;
        count = groups - first < PIECE ? groups - first : PIECE;
        repeat(piece, x->q + at * COLUMNS, x->d + at, x->s + at, count);
        for (size_t p = 0; p < panels; p++) {
            const uint8_t *row = w + (p * groups + first) * block;
            if (int8)
                int8_piece(row, piece, count, y + p * ROWS);
            else
                int4_piece(row, piece, count, y + p * ROWS);
        }
    }
}

/* One panel, BATCH tokens from `first` on. */
INLINE void batch(const uint8_t *w, int int8, const struct cb_quantized *x, size_t first, float *y,
                  size_t y_stride)
{
    const size_t groups = x->groups;
    const int8_t *q = x->q + first * groups * COLUMNS;
    const float *d = x->d + first * groups;
    const int32_t *s = x->s + first * groups;
    struct f8 acc[BATCH];
    CB_UNROLL
    for (size_t t = 0; t < BATCH; t++)
        acc[t] = zero8();
    for (size_t g = 0; g < groups; g++, q += COLUMNS) {
        if (int8)
            int8_block(acc, w, NULL, q, d + g, groups, BATCH);
        else
            int4_block(acc, w, q, d + g, s + g, groups);
        w += int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    }
    CB_UNROLL
    for (size_t t = 0; t < BATCH; t++)
        store8(y + (first + t) * y_stride, acc[t]);
}

APART void int4_batch(const uint8_t *w, const struct cb_quantized *x, size_t first, float *y,
                      size_t y_stride)
{
    batch(w, 0, x, first, y, y_stride);
}

APART void int8_batch(const uint8_t *w, const struct cb_quantized *x, size_t first, float *y,
                      size_t y_stride)
{
    batch(w, 1, x, first, y, y_stride);
}

APART void quantised_rows(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                          size_t tokens, float *y, size_t y_stride, int int8)
{
    const size_t bytes = x->groups * (int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES);
    const size_t batched = tokens - tokens % BATCH;
    for (size_t p = 0; p < panels; p++)
        for (size_t t = 0; t < batched; t += BATCH) {
            if (int8)
                int8_batch(w + p * bytes, x, t, y + p * ROWS, y_stride);
            else
                int4_batch(w + p * bytes, x, t, y + p * ROWS, y_stride);
        }
    for (size_t t = batched; t < tokens; t++)
        one_token(w, int8, panels, x, t, y + t * y_stride);
}

void cb_matmul_int4_neon(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                         size_t tokens, float *y, size_t y_stride)
{
    quantised_rows(w, panels, x, tokens, y, y_stride, 0);
}

void cb_matmul_int8_neon(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                         size_t tokens, float *y, size_t y_stride)
{
    quantised_rows(w, panels, x, tokens, y, y_stride, 1);
}

/* ---- float row products ------------------------------------------------------------------- */

enum { ELEMENT_F32, ELEMENT_F16, ELEMENT_BF16 };

/* 8 elements, widened; index counts elements; `kind` is a constant where it counts. */
INLINE struct f8 load_elements(const void *w, size_t index, int kind)
{
    if (kind == ELEMENT_F32)
        return load8((const float *)w + index);
    const uint16x8_t h = vld1q_u16((const uint16_t *)w + index);
    return kind == ELEMENT_F16 ? widen_f16(h) : widen_bf16(h);
}

/* A sum over k is one chain of additions: several panels or tokens at once hide its latency. */
INLINE void add_panels(const float *w, size_t panels, size_t columns, const float *x,
                       size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    struct f8 acc[BATCH][BATCH];
    CB_UNROLL
    for (size_t p = 0; p < panels; p++)
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++)
            acc[p][t] = load8(y + t * y_stride + p * ROWS);
    for (size_t k = 0; k < columns; k++)
        CB_UNROLL
        for (size_t p = 0; p < panels; p++) {
            const struct f8 v = load8(w + (p * columns + k) * ROWS);
            CB_UNROLL
            for (size_t t = 0; t < tokens; t++)
                acc[p][t] = add_scaled8(acc[p][t], v, x[t * x_stride + k]);
        }
    CB_UNROLL
    for (size_t p = 0; p < panels; p++)
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++)
            store8(y + t * y_stride + p * ROWS, acc[p][t]);
}

/* y += w x */
APART void add_rows(const float *w, size_t panels, size_t columns, const float *x, size_t x_stride,
                    size_t tokens, float *y, size_t y_stride)
{
    size_t t = 0;
    for (; t + 4 <= tokens; t += 4, x += 4 * x_stride, y += 4 * y_stride)
        for (size_t p = 0; p < panels; p++)
            add_panels(w + p * columns * ROWS, 1, columns, x, x_stride, 4, y + p * ROWS, y_stride);
    for (; t < tokens; t++, x += x_stride, y += y_stride) {
        size_t p = 0;
        for (; p + 4 <= panels; p += 4)
            add_panels(w + p * columns * ROWS, 4, columns, x, x_stride, 1, y + p * ROWS, y_stride);
        for (; p < panels; p++)
            add_panels(w + p * columns * ROWS, 1, columns, x, x_stride, 1, y + p * ROWS, y_stride);
    }
}

APART void clear_rows(size_t panels, size_t tokens, float *y, size_t y_stride)
{
    for (size_t t = 0; t < tokens; t++)
        memset(y + t * y_stride, 0, panels * ROWS * sizeof *y);
}

void cb_matmul_f32_neon(const float *w, size_t panels, size_t columns, const float *x,
                        size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    clear_rows(panels, tokens, y, y_stride);
    add_rows(w, panels, columns, x, x_stride, tokens, y, y_stride);
}

/* Half precision is widened in pieces of 32 columns, once for all tokens: 4 KiB of stack. */
APART void half_rows(const uint16_t *w, size_t panels, size_t columns, const float *x,
                     size_t x_stride, size_t tokens, float *y, size_t y_stride, int kind)
{
    float wide[BATCH * COLUMNS * ROWS];
    clear_rows(panels, tokens, y, y_stride);
    for (size_t p = 0, count; p < panels; p += count) {
        count = panels - p < BATCH ? panels - p : BATCH;
        for (size_t k = 0; k < columns; k += COLUMNS) { /* a multiple of them */
            float *to = wide;
            for (size_t i = 0; i < count; i++) {
                const uint16_t *from = w + ((p + i) * columns + k) * ROWS;
                for (size_t c = 0; c < COLUMNS; c++, from += ROWS, to += ROWS)
                    store8(to, load_elements(from, 0, kind));
            }
            add_rows(wide, count, COLUMNS, x + k, x_stride, tokens, y + p * ROWS, y_stride);
        }
    }
}

void cb_matmul_f16_neon(const uint16_t *w, size_t panels, size_t columns, const float *x,
                        size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    half_rows(w, panels, columns, x, x_stride, tokens, y, y_stride, ELEMENT_F16);
}

void cb_matmul_bf16_neon(const uint16_t *w, size_t panels, size_t columns, const float *x,
                         size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    half_rows(w, panels, columns, x, x_stride, tokens, y, y_stride, ELEMENT_BF16);
}

/* ---- norm, rotation ----------------------------------------------------------------------- */

void cb_rmsnorm_neon(const float *x, const float *w, size_t n, float eps, float *y)
{
    if (n % 8) {
        cb_rmsnorm_ref(x, w, n, eps, y);
        return;
    }
    struct f8 p = zero8();
    for (size_t i = 0; i < n; i += 8) {
        const struct f8 v = load8(x + i);
        p = add_product8(p, v, v);
    }
    const float mean = combine8(p) / (float)n;
    const float r = 1.0f / cb_sqrt(mean + eps);
    for (size_t i = 0; i < n; i += 8) {
        const struct f8 v = load8(x + i), weight = load8(w + i);
        store8(y + i, (struct f8){vmulq_f32(vmulq_n_f32(v.lo, r), weight.lo),
                                  vmulq_f32(vmulq_n_f32(v.hi, r), weight.hi)});
    }
}

void cb_rope_neon(float *x, const float *c, const float *s, size_t pairs, int style)
{
    size_t i = 0;
    if (style == CB_ROPE_INTERLEAVED) {
        for (; i + 4 <= pairs; i += 4) {
            const float32x4x2_t v = vld2q_f32(x + 2 * i);
            const float32x4_t cc = vld1q_f32(c + i), ss = vld1q_f32(s + i);
            float32x4x2_t y;
            y.val[0] = vsubq_f32(vmulq_f32(v.val[0], cc), vmulq_f32(v.val[1], ss));
            y.val[1] = vaddq_f32(vmulq_f32(v.val[0], ss), vmulq_f32(v.val[1], cc));
            vst2q_f32(x + 2 * i, y);
        }
        cb_rope_ref(x + 2 * i, c + i, s + i, pairs - i, style);
        return;
    }
    for (; i + 4 <= pairs; i += 4) {
        const float32x4_t x0 = vld1q_f32(x + i), x1 = vld1q_f32(x + pairs + i);
        const float32x4_t cc = vld1q_f32(c + i), ss = vld1q_f32(s + i);
        vst1q_f32(x + i, vsubq_f32(vmulq_f32(x0, cc), vmulq_f32(x1, ss)));
        vst1q_f32(x + pairs + i, vaddq_f32(vmulq_f32(x0, ss), vmulq_f32(x1, cc)));
    }
    for (; i < pairs; i++) {
        const float a = x[i] * c[i], b = x[pairs + i] * s[i];
        const float e = x[i] * s[i], f = x[pairs + i] * c[i];
        x[i] = a - b;
        x[pairs + i] = e + f;
    }
}

/* ---- exponential and activations ---------------------------------------------------------- */

INLINE float32x4_t exp4(float32x4_t x)
{
    const float32x4_t magic = vdupq_n_f32(CB_ROUND_MAGIC);
    const float32x4_t t = vaddq_f32(vmulq_n_f32(x, CB_EXP_LOG2E), magic);
    const float32x4_t n = vsubq_f32(t, magic);
    float32x4_t r = vsubq_f32(x, vmulq_n_f32(n, CB_EXP_LN2_HIGH));
    r = vsubq_f32(r, vmulq_n_f32(n, CB_EXP_LN2_LOW));
    float32x4_t p = vmulq_n_f32(r, CB_EXP_E6);
    p = vmulq_f32(vaddq_f32(p, vdupq_n_f32(CB_EXP_E5)), r);
    p = vmulq_f32(vaddq_f32(p, vdupq_n_f32(CB_EXP_E4)), r);
    p = vmulq_f32(vaddq_f32(p, vdupq_n_f32(CB_EXP_E3)), r);
    p = vaddq_f32(p, vdupq_n_f32(CB_EXP_E2));
    float32x4_t y = vmulq_f32(vmulq_f32(r, r), p);
    y = vaddq_f32(vaddq_f32(y, r), vdupq_n_f32(1.0f));
    const int32x4_t power = vaddq_s32(vreinterpretq_s32_f32(t), vdupq_n_s32(127));
    y = vmulq_f32(y, vreinterpretq_f32_s32(vshlq_n_s32(power, 23)));
    const uint32x4_t tiny = vcltq_f32(x, vdupq_n_f32(CB_EXP_LOWEST));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(y), tiny));
}

INLINE float32x4_t sigmoid4(float32x4_t x)
{
    const float32x4_t one = vdupq_n_f32(1.0f);
    const float32x4_t e = exp4(vnegq_f32(vabsq_f32(x)));
    return vdivq_f32(vbslq_f32(vcgezq_f32(x), one, e), vaddq_f32(one, e));
}

/* gelu_tanh(x) = x * sigmoid of this */
INLINE float32x4_t gelu_argument4(float32x4_t x)
{
    const float32x4_t cube = vmulq_f32(vmulq_f32(x, x), x);
    const float32x4_t inner = vaddq_f32(x, vmulq_n_f32(cube, CB_GELU_B));
    const float32x4_t u = vmulq_n_f32(inner, CB_GELU_A);
    return vmulq_n_f32(u, 2.0f);
}

/* a < b ? a : b and a > b ? a : b, also for zeros of different sign */
INLINE float32x4_t lower4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

INLINE float32x4_t higher4(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

void cb_activate_neon(int activation, float clamp, float alpha, const float *gate, const float *up,
                      size_t n, float *h)
{
    const float32x4_t high = vdupq_n_f32(clamp), low = vdupq_n_f32(-clamp);
    const int smooth = activation == CB_ACT_SILU || activation == CB_ACT_GELU_TANH ||
                       activation == CB_ACT_SWIGLU_CLAMPED;
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t g = vld1q_f32(gate + i), argument = g;
        float32x4_t u = up ? vld1q_f32(up + i) : vdupq_n_f32(1.0f);
        switch (activation) {
        case CB_ACT_SILU:
            break;
        case CB_ACT_GELU_TANH:
            argument = gelu_argument4(g);
            break;
        case CB_ACT_RELU:
            g = higher4(g, vdupq_n_f32(0.0f));
            break;
        case CB_ACT_SWIGLU_CLAMPED:
            g = lower4(g, high);
            argument = vmulq_n_f32(g, alpha);
            if (up) {
                u = higher4(low, lower4(u, high));
                u = vaddq_f32(u, vdupq_n_f32(1.0f));
            }
            break;
        case CB_ACT_IDENTITY:
            break;
        default: /* see cb_activate_ref */
            g = vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000u));
            break;
        }
        if (smooth)
            g = vmulq_f32(g, sigmoid4(argument));
        vst1q_f32(h + i, vmulq_f32(g, u));
    }
    cb_activate_ref(activation, clamp, alpha, gate + i, up ? up + i : NULL, n - i, h + i);
}

void cb_add_scaled_neon(float *acc, float scale, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        store8(acc + i, add_scaled8(load8(acc + i), load8(x + i), scale));
    cb_add_scaled_ref(acc + i, scale, x + i, n - i);
}

/* ---- KV cache and attention --------------------------------------------------------------- */

int cb_store_f16_neon(const float *x, size_t n, uint16_t *out)
{
    uint16x8_t highest = vdupq_n_u16(0);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const struct f8 v = load8(x + i);
        const uint16x8_t h =
            vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(v.lo), v.hi));
        highest = vmaxq_u16(highest, vbicq_u16(h, vdupq_n_u16(0x8000)));
        vst1q_u16(out + i, h);
    }
    const int error = cb_store_f16_ref(x + i, n - i, out + i);
    return vmaxvq_u16(highest) >= 0x7c00 ? COLIBRI_ERR_NON_FINITE : error;
}

/* q.k of `rows` positions, scaled. */
INLINE void score_rows(const float *q, const void *k, size_t first, size_t rows, size_t dim,
                       int kind, float scale, float *scores)
{
    struct f8 p[BATCH];
    CB_UNROLL
    for (size_t j = 0; j < rows; j++)
        p[j] = zero8();
    size_t i = 0;
    do {
        const struct f8 v = load8(q + i);
        CB_UNROLL
        for (size_t j = 0; j < rows; j++)
            p[j] = add_product8(p[j], v, load_elements(k, (first + j) * dim + i, kind));
        i += 8;
    } while (i < dim);
    CB_UNROLL
    for (size_t j = 0; j < rows; j++)
        scores[first + j] = combine8(p[j]) * scale;
}

/* scores[j] become exp(scores[j] - max); returns their sum. */
APART float softmax_terms(float *scores, size_t n)
{
    const size_t whole = n - n % 8;
    /* The missing scores are -inf: no maximum, and their term is the +0 that changes no sum. */
    float left[8];
    vst1q_f32(left, vdupq_n_f32(cb_float(0xff800000u)));
    vst1q_f32(left + 4, vdupq_n_f32(cb_float(0xff800000u)));
    memcpy(left, scores + whole, n % 8 * sizeof left[0]);
    float32x4_t m = higher4(vld1q_f32(left), vld1q_f32(left + 4));
    for (size_t j = 0; j < whole; j += 4)
        m = higher4(vld1q_f32(scores + j), m);
    const float32x4_t shift = vdupq_n_f32(vmaxvq_f32(m));
    struct f8 p = zero8();
    for (size_t j = 0; j < n; j += 8) {
        float *at = j < whole ? scores + j : left;
        const struct f8 s = load8(at);
        const struct f8 e = {exp4(vsubq_f32(s.lo, shift)), exp4(vsubq_f32(s.hi, shift))};
        store8(at, e);
        p.lo = vaddq_f32(p.lo, e.lo);
        p.hi = vaddq_f32(p.hi, e.hi);
    }
    memcpy(scores + whole, left, n % 8 * sizeof left[0]);
    return combine8(p);
}

/* 8 * `blocks` channels of the output from channel c. */
INLINE void weigh_values(const float *e, const void *v, size_t positions, size_t value_dim,
                         size_t c, size_t blocks, int kind, float sum, float *out)
{
    struct f8 o[BATCH];
    CB_UNROLL
    for (size_t i = 0; i < blocks; i++)
        o[i] = zero8();
    size_t j = 0;
    do {
        CB_UNROLL
        for (size_t i = 0; i < blocks; i++)
            o[i] = add_scaled8(o[i], load_elements(v, j * value_dim + c + 8 * i, kind), e[j]);
    } while (++j < positions);
    CB_UNROLL
    for (size_t i = 0; i < blocks; i++) {
        const float32x4_t divisor = vdupq_n_f32(sum);
        o[i] = (struct f8){vdivq_f32(o[i].lo, divisor), vdivq_f32(o[i].hi, divisor)};
        store8(out + c + 8 * i, o[i]);
    }
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

    for (; kind == ELEMENT_F16 && c + 8 * BATCH <= value_dim; c += 8 * BATCH)
        weigh_values(scores, v, positions, value_dim, c, BATCH, ELEMENT_F16, sum, out);
    for (; c < value_dim; c += 8)
        weigh_values(scores, v, positions, value_dim, c, 1, kind, sum, out);
}

void cb_attend_f16_neon(const float *q, const uint16_t *k, const uint16_t *v, size_t positions,
                        size_t dim, size_t value_dim, float scale, const float *sink, float *scores, float *out)
{
    if ((dim | value_dim) % 8)
        cb_attend_f16_ref(q, k, v, positions, dim, value_dim, scale, sink, scores, out);
    else
        attend(q, k, v, positions, dim, value_dim, scale, sink, scores, out, ELEMENT_F16);
}

void cb_attend_f32_neon(const float *q, const float *k, const float *v, size_t positions, size_t dim,
                        size_t value_dim, float scale, const float *sink, float *scores, float *out)
{
    if ((dim | value_dim) % 8)
        cb_attend_f32_ref(q, k, v, positions, dim, value_dim, scale, sink, scores, out);
    else
        attend(q, k, v, positions, dim, value_dim, scale, sink, scores, out, ELEMENT_F32);
}

/* ---- choice of experts -------------------------------------------------------------------- */

#define SIXTEEN 16

/* 16 scores; what is not a number takes no part. */
struct f16x {
    float32x4_t v[4];
};

INLINE struct f16x load16(const float *p)
{
    return (struct f16x){{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

INLINE float32x4_t highest4(struct f16x s)
{
    return vmaxnmq_f32(vmaxnmq_f32(s.v[0], s.v[1]), vmaxnmq_f32(s.v[2], s.v[3]));
}

INLINE float highest16(struct f16x s)
{
    return vmaxnmvq_f32(highest4(s));
}

/* The first of 16 that equals x; there is one. */
INLINE size_t find16(struct f16x s, float x)
{
    const float32x4_t all = vdupq_n_f32(x);
    uint16x8_t e[4];
    CB_UNROLL
    for (size_t i = 0; i < 4; i++)
        e[i] = vreinterpretq_u16_u32(vceqq_f32(s.v[i], all));
    const uint8x16_t bytes = vuzp1q_u8(vreinterpretq_u8_u16(vuzp1q_u16(e[0], e[1])),
                                       vreinterpretq_u8_u16(vuzp1q_u16(e[2], e[3])));
    /* 4 bits for each of them */
    const uint8x8_t bits = vshrn_n_u16(vreinterpretq_u16_u8(bytes), 4);
    return (size_t)__builtin_ctzll(vget_lane_u64(vreinterpret_u64_u8(bits), 0)) / 4;
}

/* Element `at` becomes x. */
INLINE struct f16x replace16(struct f16x s, size_t at, float x)
{
    static const uint32_t places[SIXTEEN] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const uint32x4_t place = vdupq_n_u32((uint32_t)at);
    const float32x4_t all = vdupq_n_f32(x);
    CB_UNROLL
    for (size_t i = 0; i < 4; i++)
        s.v[i] = vbslq_f32(vceqq_u32(vld1q_u32(places + 4 * i), place), all, s.v[i]);
    return s;
}

/*
 * Without a branch that depends on a score: the highest of each 16 first; then, k times, the group
 * of the highest, its place there, and what is the highest of that group without it.
 */
void cb_top_k_neon(float *scores, size_t n, size_t k, int32_t *ids)
{
    const float none = cb_float(0x7fc00000u);
    const size_t whole = n / SIXTEEN;
    float highest[SIXTEEN], last[SIXTEEN];
    if (n < SIXTEEN || n > SIXTEEN * SIXTEEN) {
        cb_top_k_ref(scores, n, k, ids);
        return;
    }
    CB_UNROLL
    for (size_t i = 0; i < SIXTEEN; i++)
        highest[i] = none;
    size_t g = 0;
    for (; g + 4 <= whole; g += 4) {
        struct f16x pieces;
        CB_UNROLL
        for (size_t i = 0; i < 4; i++)
            pieces.v[i] = highest4(load16(scores + SIXTEEN * (g + i)));
        vst1q_f32(highest + g, vpmaxnmq_f32(vpmaxnmq_f32(pieces.v[0], pieces.v[1]),
                                            vpmaxnmq_f32(pieces.v[2], pieces.v[3])));
    }
    for (; g < whole; g++)
        highest[g] = highest16(load16(scores + SIXTEEN * g));
    if (n % SIXTEEN) {
        CB_UNROLL
        for (size_t i = 0; i < SIXTEEN; i++)
            last[i] = none;
        memcpy(last, scores + SIXTEEN * whole, n % SIXTEEN * sizeof last[0]);
        highest[whole] = highest16(load16(last));
    }
    struct f16x groups = load16(highest);
    for (size_t r = 0;;) {
        const float x = highest16(groups);
        g = find16(groups, x);
        float *group = g == whole ? last : scores + SIXTEEN * g;
        struct f16x s = load16(group);
        const size_t at = find16(s, x);
        ids[r] = (int32_t)(SIXTEEN * g + at);
        if (++r == k)
            return;
        s = replace16(s, at, none);
        CB_UNROLL
        for (size_t i = 0; i < 4; i++)
            vst1q_f32(group + 4 * i, s.v[i]);
        groups = replace16(groups, g, highest16(s));
    }
}

const struct cb_kernels cb_kernels_neon = CB_KERNEL_TABLE(neon);

#else /* ---- 32-bit ARM ------------------------------------------------------------------------ */

/* Two vectors of weights, 8 rows of 4 columns, times 4 activations that are repeated. */
INLINE void multiply(int16x8_t sum[4], int8x16_t w0, int8x16_t w1, const int8_t *q, int start)
{
    const int8x8_t a =
        vreinterpret_s8_s32(vld1_dup_s32((const int32_t *)(const void *)q));
    if (start) {
        sum[0] = vmull_s8(vget_low_s8(w0), a);
        sum[1] = vmull_s8(vget_high_s8(w0), a);
        sum[2] = vmull_s8(vget_low_s8(w1), a);
        sum[3] = vmull_s8(vget_high_s8(w1), a);
    } else {
        sum[0] = vmlal_s8(sum[0], vget_low_s8(w0), a);
        sum[1] = vmlal_s8(sum[1], vget_high_s8(w0), a);
        sum[2] = vmlal_s8(sum[2], vget_low_s8(w1), a);
        sum[3] = vmlal_s8(sum[3], vget_high_s8(w1), a);
    }
}

/* acc[r] = acc[r] (+) (float(isum[r]) (*) (dw[r] (*) d)) in VFP */
INLINE void add_group(float acc[ROWS], int32x4_t lo, int32x4_t hi, const uint8_t *scales, float d)
{
    int32_t isum[ROWS];
    uint16_t h[ROWS];
    vst1q_s32(isum, lo);
    vst1q_s32(isum + 4, hi);
    memcpy(h, scales, sizeof h);
    CB_UNROLL
    for (size_t r = 0; r < ROWS; r++) {
        const float scale = cb_f16(h[r]) * d;
        const float product = (float)isum[r] * scale;
        acc[r] = acc[r] + product;
    }
}

/* Pairs of neighbours, as vpaddq_s16 of aarch64. */
INLINE int16x8_t add_pairs(int16x8_t a, int16x8_t b)
{
    return vcombine_s16(vpadd_s16(vget_low_s16(a), vget_high_s16(a)),
                        vpadd_s16(vget_low_s16(b), vget_high_s16(b)));
}

/* The bounds are those of int4_block above. */
void cb_matmul_int4_neon(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                         size_t tokens, float *y, size_t y_stride)
{
    const size_t groups = x->groups;
    for (size_t p = 0; p < panels; p++, w += groups * CB_INT4_BLOCK_BYTES, y += ROWS)
        for (size_t t = 0; t < tokens; t++) {
            float acc[ROWS] = {0};
            for (size_t g = 0; g < groups; g++) {
                const uint8_t *block = w + g * CB_INT4_BLOCK_BYTES;
                const size_t at = t * groups + g;
                int16x8_t sum[4];
                CB_UNROLL
                for (size_t i = 0; i < 4; i++) {
                    const uint8x16_t b0 = vld1q_u8(block + 32 * i);
                    const uint8x16_t b1 = vld1q_u8(block + 32 * i + 16);
                    const int8_t *q = x->q + at * COLUMNS + 4 * i;
                    multiply(sum, vreinterpretq_s8_u8(vandq_u8(b0, vdupq_n_u8(15))),
                             vreinterpretq_s8_u8(vandq_u8(b1, vdupq_n_u8(15))), q, i == 0);
                    multiply(sum, vreinterpretq_s8_u8(vshrq_n_u8(b0, 4)),
                             vreinterpretq_s8_u8(vshrq_n_u8(b1, 4)), q + 16, 0);
                }
                int16x8_t isum = add_pairs(add_pairs(sum[0], sum[1]), add_pairs(sum[2], sum[3]));
                isum = vmlsq_n_s16(isum, vdupq_n_s16((int16_t)x->s[at]), 8);
                add_group(acc, vmovl_s16(vget_low_s16(isum)), vmovl_s16(vget_high_s16(isum)),
                          block + 128, x->d[at]);
            }
            memcpy(y + t * y_stride, acc, sizeof acc);
        }
}

void cb_matmul_int8_neon(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                         size_t tokens, float *y, size_t y_stride)
{
    const size_t groups = x->groups;
    for (size_t p = 0; p < panels; p++, w += groups * CB_INT8_BLOCK_BYTES, y += ROWS)
        for (size_t t = 0; t < tokens; t++) {
            float acc[ROWS] = {0};
            for (size_t g = 0; g < groups; g++) {
                const int8_t *rows = (const int8_t *)w + g * CB_INT8_BLOCK_BYTES;
                const size_t at = t * groups + g;
                int32x4_t sum[4];
                CB_UNROLL
                for (size_t i = 0; i < 4; i++, rows += 64) {
                    const int8_t *q = x->q + at * COLUMNS + 8 * i;
                    int16x8_t pair[4];
                    multiply(pair, vld1q_s8(rows), vld1q_s8(rows + 16), q, 1);
                    multiply(pair, vld1q_s8(rows + 32), vld1q_s8(rows + 48), q + 4, 0);
                    CB_UNROLL
                    for (size_t j = 0; j < 4; j++)
                        sum[j] = i == 0 ? vpaddlq_s16(pair[j]) : vpadalq_s16(sum[j], pair[j]);
                }
                int32x2_t row[4];
                CB_UNROLL
                for (size_t j = 0; j < 4; j++)
                    row[j] = vpadd_s32(vget_low_s32(sum[j]), vget_high_s32(sum[j]));
                add_group(acc, vcombine_s32(row[0], row[1]), vcombine_s32(row[2], row[3]),
                          (const uint8_t *)rows, x->d[at]);
            }
            memcpy(y + t * y_stride, acc, sizeof acc);
        }
}

const struct cb_kernels cb_kernels_neon = {
    .isa = "neon",
    .quantize = cb_quantize_ref,
    .matmul_int4 = cb_matmul_int4_neon,
    .matmul_int8 = cb_matmul_int8_neon,
    .matmul_f32 = cb_matmul_f32_ref,
    .matmul_f16 = cb_matmul_f16_ref,
    .matmul_bf16 = cb_matmul_bf16_ref,
    .rmsnorm = cb_rmsnorm_ref,
    .rope = cb_rope_ref,
    .attend_f16 = cb_attend_f16_ref,
    .attend_f32 = cb_attend_f32_ref,
    .store_f16 = cb_store_f16_ref,
    .activate = cb_activate_ref,
    .add_scaled = cb_add_scaled_ref,
    .top_k = cb_top_k_ref,
};

#endif
