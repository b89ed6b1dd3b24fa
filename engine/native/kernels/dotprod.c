/* SPDX-License-Identifier: MIT */
/*
 * Quantised row products with the dot product instructions of ARMv8.2 (Cortex-A55, A76 and later);
 * everything else is neon.c.
 *
 * sdot multiplies nibbles 0..15 as they are, and the correction -8 * S starts the sum instead of
 * ending it. The start also holds the bits of 1.5 * 2^23: an integer below 2^22 added to them is
 * that number as a float, so subtracting 12582912.0 gives float(isum) exactly and saves converting.
 */
#include "exact.h"

#include "neon.h"

/* One token, int4: what the products of a pair of groups start from, scale and read. */
struct pair {
    int8_t q[2 * COLUMNS];
    int32_t start[2][4]; /* CB_ROUND_MAGIC_BITS - 8 * S, repeated */
    float d[2];
    float unused[2];
};

#define PAIRS 64 /* of a piece: what is prepared at once, 7 KiB of stack */

_Static_assert(sizeof(struct pair) == 112, "int4_pairs counts on it");
_Static_assert(CB_INT4_BLOCK_BYTES == 144, "int4_pairs counts on it");

INLINE int32x4_t magic_bits(void)
{
    return vdupq_n_s32((int32_t)CB_ROUND_MAGIC_BITS);
}

/* ---- one block, any number of tokens -------------------------------------------------------- */

/* `lane` is a constant wherever this is inlined. */
INLINE int32x4_t dot_lane(int32x4_t sum, int8x16_t w, int8x16_t q, int lane)
{
    switch (lane) {
    case 0:
        return vdotq_laneq_s32(sum, w, q, 0);
    case 1:
        return vdotq_laneq_s32(sum, w, q, 1);
    case 2:
        return vdotq_laneq_s32(sum, w, q, 2);
    default:
        return vdotq_laneq_s32(sum, w, q, 3);
    }
}

/* acc (+) (float(isum) (*) (dw (*) d)); sum: CB_ROUND_MAGIC_BITS + isum */
INLINE struct f8 add_group(struct f8 acc, int32x4_t lo, int32x4_t hi, struct f8 scales, float d)
{
    const float32x4_t magic = vdupq_n_f32(CB_ROUND_MAGIC);
    const struct f8 isum = {vsubq_f32(vreinterpretq_f32_s32(lo), magic),
                            vsubq_f32(vreinterpretq_f32_s32(hi), magic)};
    const struct f8 scale = {vmulq_n_f32(scales.lo, d), vmulq_n_f32(scales.hi, d)};
    return add_product8(acc, isum, scale);
}

/* The activations, scales and sums of `tokens` tokens are `stride` groups apart. */
INLINE void int4_block(struct f8 acc[BATCH], const uint8_t *w, const int8_t *q, const float *d,
                       const int32_t *s, size_t stride, size_t tokens)
{
    int32x4_t lo[BATCH], hi[BATCH];
    int8x16_t low[BATCH], high[BATCH];
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++) {
        const int32x4_t sum = vld1q_dup_s32(s + t * stride);
        lo[t] = hi[t] = vsubq_s32(magic_bits(), vshlq_n_s32(sum, 3));
        low[t] = load_activations(q + t * stride * COLUMNS);
        high[t] = load_activations(q + t * stride * COLUMNS + 16);
    }
    CB_UNROLL
    for (int i = 0; i < 4; i++) {
        if (tokens > 1)
            __asm__ volatile("" ::: "memory"); /* loading ahead would spill */
        const uint8x16_t b0 = vld1q_u8(w + 32 * i), b1 = vld1q_u8(w + 32 * i + 16);
        const int8x16_t l0 = vreinterpretq_s8_u8(vandq_u8(b0, vdupq_n_u8(15)));
        const int8x16_t l1 = vreinterpretq_s8_u8(vandq_u8(b1, vdupq_n_u8(15)));
        const int8x16_t h0 = vreinterpretq_s8_u8(vshrq_n_u8(b0, 4));
        const int8x16_t h1 = vreinterpretq_s8_u8(vshrq_n_u8(b1, 4));
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++) {
            lo[t] = dot_lane(lo[t], l0, low[t], i);
            hi[t] = dot_lane(hi[t], l1, low[t], i);
            lo[t] = dot_lane(lo[t], h0, high[t], i);
            hi[t] = dot_lane(hi[t], h1, high[t], i);
        }
    }
    const struct f8 scales = load_scales(w + 128);
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        acc[t] = add_group(acc[t], lo[t], hi[t], scales, d[t * stride]);
}

INLINE void int8_block(struct f8 acc[BATCH], const uint8_t *w, const int8_t *q, const float *d,
                       size_t stride, size_t tokens)
{
    int32x4_t lo[BATCH], hi[BATCH];
    int8x16_t low[BATCH], high[BATCH];
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++) {
        lo[t] = hi[t] = magic_bits();
        low[t] = load_activations(q + t * stride * COLUMNS);
        high[t] = load_activations(q + t * stride * COLUMNS + 16);
    }
    CB_UNROLL
    for (int i = 0; i < 8; i++) {
        if (tokens > 1)
            __asm__ volatile("" ::: "memory"); /* loading ahead would spill */
        const int8_t *rows = (const int8_t *)w + 32 * i;
        const int8x16_t w0 = vld1q_s8(rows), w1 = vld1q_s8(rows + 16);
        CB_UNROLL
        for (size_t t = 0; t < tokens; t++) {
            const int8x16_t half = i < 4 ? low[t] : high[t];
            lo[t] = dot_lane(lo[t], w0, half, i % 4);
            hi[t] = dot_lane(hi[t], w1, half, i % 4);
        }
    }
    const struct f8 scales = load_scales(w + 256);
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        acc[t] = add_group(acc[t], lo[t], hi[t], scales, d[t * stride]);
}

/* One panel, `tokens` tokens from `first` on. */
INLINE void quantised_panel(const uint8_t *w, int int8, const struct cb_quantized *x, size_t first,
                            size_t tokens, float *y, size_t y_stride)
{
    const size_t groups = x->groups;
    const int8_t *q = x->q + first * groups * COLUMNS;
    const float *d = x->d + first * groups;
    const int32_t *s = x->s + first * groups;
    struct f8 acc[BATCH];

    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        acc[t] = zero8();
    for (size_t g = 0; g < groups; g++, q += COLUMNS) {
        if (int8)
            int8_block(acc, w, q, d + g, groups, tokens);
        else
            int4_block(acc, w, q, d + g, s + g, groups, tokens);
        w += int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    }
    CB_UNROLL
    for (size_t t = 0; t < tokens; t++)
        store8(y + (first + t) * y_stride, acc[t]);
}

/* 64 bytes with one instruction, which no compiler makes of loads that follow each other. */
#define FOUR(a, b, c, d) \
    "ld1 {v" #a ".16b, v" #b ".16b, v" #c ".16b, v" #d ".16b}, [%[w]], #64\n"
#define ROWS8(a, b, q, lane)                                             \
    "sdot %[lo].4s, v" #a ".16b, %[" #q "].4b[" #lane "]\n"             \
    "sdot %[hi].4s, v" #b ".16b, %[" #q "].4b[" #lane "]\n"

APART void int8_one(const uint8_t *w, const struct cb_quantized *x, size_t first, float *y,
                    size_t y_stride)
{
    const int8_t *q = x->q + first * x->groups * COLUMNS;
    const float *d = x->d + first * x->groups, *end = d + x->groups;
    struct f8 acc = zero8();
    for (; d < end; d++, w += 16) {
        int8x16_t low, high;
        int32x4_t lo = magic_bits(), hi = magic_bits();
        __asm__ volatile(
            "ldp %q[low], %q[high], [%[q]], #32\n"
            FOUR(16, 17, 18, 19) FOUR(20, 21, 22, 23)
            ROWS8(16, 17, low, 0) ROWS8(18, 19, low, 1) FOUR(16, 17, 18, 19)
            ROWS8(20, 21, low, 2) ROWS8(22, 23, low, 3) FOUR(20, 21, 22, 23)
            ROWS8(16, 17, high, 0) ROWS8(18, 19, high, 1)
            ROWS8(20, 21, high, 2) ROWS8(22, 23, high, 3)
            : [lo] "+w"(lo), [hi] "+w"(hi), [low] "=&w"(low), [high] "=&w"(high), [w] "+r"(w),
              [q] "+r"(q)
            :
            : "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "memory");
        acc = add_group(acc, lo, hi, load_scales(w), *d);
    }
    store8(y + first * y_stride, acc);
}

/* 16 columns at a time: half of the activations, and half of the code. */
APART void int8_four(const uint8_t *w, const struct cb_quantized *x, size_t first, float *y,
                     size_t y_stride)
{
    const size_t groups = x->groups;
    const int8_t *q = x->q + first * groups * COLUMNS;
    const float *d = x->d + first * groups;
    struct f8 acc[BATCH];
    CB_UNROLL
    for (size_t t = 0; t < BATCH; t++)
        acc[t] = zero8();
    for (size_t g = 0; g < groups; g++, w += 16) {
        int32x4_t lo[BATCH], hi[BATCH];
        CB_UNROLL
        for (size_t t = 0; t < BATCH; t++)
            lo[t] = hi[t] = magic_bits();
        for (int half = 0; half < 2; half++, w += 128, q += 16) {
            int8x16_t columns[BATCH];
            CB_UNROLL
            for (size_t t = 0; t < BATCH; t++)
                columns[t] = load_activations(q + t * groups * COLUMNS);
            CB_UNROLL
            for (int i = 0; i < 4; i++) {
                const int8_t *rows = (const int8_t *)w + 32 * i;
                const int8x16_t w0 = vld1q_s8(rows), w1 = vld1q_s8(rows + 16);
                CB_UNROLL
                for (size_t t = 0; t < BATCH; t++) {
                    lo[t] = dot_lane(lo[t], w0, columns[t], i);
                    hi[t] = dot_lane(hi[t], w1, columns[t], i);
                }
            }
        }
        const struct f8 scales = load_scales(w);
        CB_UNROLL
        for (size_t t = 0; t < BATCH; t++)
            acc[t] = add_group(acc[t], lo[t], hi[t], scales, d[t * groups + g]);
    }
    CB_UNROLL
    for (size_t t = 0; t < BATCH; t++)
        store8(y + (first + t) * y_stride, acc[t]);
}

APART void int4_two(const uint8_t *w, const struct cb_quantized *x, size_t first, float *y,
                    size_t y_stride)
{
    quantised_panel(w, 0, x, first, 2, y, y_stride);
}

APART void int4_four(const uint8_t *w, const struct cb_quantized *x, size_t first, float *y,
                     size_t y_stride)
{
    quantised_panel(w, 0, x, first, 4, y, y_stride);
}

/* ---- one token, int4 ------------------------------------------------------------------------ */

/*
 * The loop decoding spends its time in. Two groups make four independent sums, and what the next two
 * begin with is loaded beside the sums of these. The order is what a search found that moved one
 * instruction at a time and kept what llvm-mca's model of Cortex-A55, which issues in order, thinks no
 * slower (63 cycles a group; as one would write it, 66); wider cores reorder it anyway.
 *
 * v0..v1 are free for acc; v2 v3 (v4 v5) sums of rows 0-3 and 4-7 of the first (second) group;
 * v28 v29 (v30 v31) its activations; v8..v15 and v25 bytes, then high nibbles; v16..v23 low nibbles,
 * then scales; v24 v26 v27 what scales are made of; v6 15 in every byte, v7 CB_ROUND_MAGIC. Two blocks
 * are nine pairs of registers: the scales come with the bytes beside them.
 */
#define LOAD1(from, a, at) "ldr " #a ", [%[" #from "], #" #at "]\n"
#define LOAD2(from, a, b, at) "ldp q" #a ", q" #b ", [%[" #from "], #" #at "]\n"
#define NEXT2(from, a, b, at) "ldp q" #a ", q" #b ", [%[" #from "], #" #at "]!\n"
#define LAST2(from, a, b, at) "ldp q" #a ", q" #b ", [%[" #from "]], #" #at "\n"
#define LOAD_Q "ld1 {v28.16b, v29.16b, v30.16b, v31.16b}, [%[x]], #64\n"
#define LOW(to, from) "and v" #to ".16b, v" #from ".16b, v6.16b\n"
#define HIGH(v) "ushr v" #v ".16b, v" #v ".16b, #4\n"
#define DOT(sum, w, q, lane) "sdot v" #sum ".4s, v" #w ".16b, v" #q ".4b[" #lane "]\n"
#define WIDEN_LOW(to, from) "fcvtl v" #to ".4s, v" #from ".4h\n"
#define WIDEN_HIGH(to, from) "fcvtl2 v" #to ".4s, v" #from ".8h\n"
#define FLOAT(sum) "fsub v" #sum ".4s, v" #sum ".4s, v7.4s\n"
#define TIMES_D(v, lane) "fmul v" #v ".4s, v" #v ".4s, v27.s[" #lane "]\n"
#define TIMES(v, a) "fmul v" #v ".4s, v" #v ".4s, v" #a ".4s\n"
#define ADD(acc, v) "fadd %[" #acc "].4s, %[" #acc "].4s, v" #v ".4s\n"
#define COUNT_DOWN "subs %[pairs], %[pairs], #1\n"

/* `pairs` >= 1 pairs of groups; 224 bytes of w and one struct pair beyond them are read too. */
APART struct f8 int4_pairs(struct f8 acc, const uint8_t *w, const struct pair *x, size_t pairs)
{
    __asm__ volatile(
        "movi v6.16b, #15\n"
        "dup v7.4s, %w[magic]\n"
        LOAD_Q LOAD2(x, 2, 4, 0) LAST2(x, 3, 5, 48)
        LOAD2(w, 8, 9, 0) LOAD2(w, 12, 13, 32) LOAD2(w, 24, 10, 128) LOAD2(w, 11, 14, 160)
        LOAD2(w, 15, 25, 192)
        "1:\n"
        LOW(20, 12) HIGH(12) LOW(16, 8) HIGH(8) LOW(21, 13) HIGH(13) LOW(19, 11) LOW(22, 14)
        LOW(18, 10) DOT(2, 16, 28, 0) HIGH(14) HIGH(11) LOW(17, 9) HIGH(9) HIGH(10) LOW(23, 15)
        HIGH(15) DOT(3, 17, 28, 0) DOT(4, 18, 30, 0) DOT(5, 19, 30, 0) DOT(2, 8, 29, 0)
        DOT(3, 9, 29, 0) DOT(4, 10, 31, 0) DOT(5, 11, 31, 0) DOT(3, 21, 28, 1) DOT(2, 20, 28, 1)
        DOT(5, 23, 30, 1) LOAD2(w, 8, 9, 64) DOT(4, 22, 30, 1) DOT(5, 15, 31, 1) DOT(2, 12, 29, 1)
        LOW(16, 8) LOW(18, 25) DOT(3, 13, 29, 1) LOAD2(w, 12, 13, 96) DOT(4, 14, 31, 1) HIGH(8)
        LOW(20, 12) HIGH(12) LOAD2(w, 11, 14, 224) HIGH(25) LOW(21, 13) LOAD2(w, 15, 26, 256)
        DOT(2, 16, 28, 2) LOW(17, 9) HIGH(9) LOW(23, 15) LOW(22, 14) LOW(19, 11) DOT(2, 8, 29, 2)
        HIGH(14) HIGH(15) HIGH(11) HIGH(13) DOT(3, 17, 28, 2) DOT(4, 18, 30, 2) DOT(5, 19, 30, 2)
        LOAD1(x, d27, -16) DOT(3, 9, 29, 2) WIDEN_LOW(16, 24) DOT(4, 25, 31, 2) NEXT2(w, 8, 9, 288)
        DOT(5, 11, 31, 2) DOT(2, 20, 28, 3) DOT(4, 22, 30, 3) DOT(5, 23, 30, 3) WIDEN_HIGH(17, 24)
        LOAD2(w, 24, 10, 128) WIDEN_HIGH(19, 26) TIMES_D(16, 0) DOT(3, 21, 28, 3) WIDEN_LOW(18, 26)
        DOT(5, 15, 31, 3) LOAD2(w, 15, 25, 192) DOT(2, 12, 29, 3) DOT(3, 13, 29, 3)
        DOT(4, 14, 31, 3) FLOAT(2) TIMES_D(17, 0) LOAD2(w, 11, 14, 160) TIMES_D(19, 1) FLOAT(4)
        FLOAT(3) TIMES_D(18, 1) FLOAT(5) TIMES(16, 2) LOAD2(w, 12, 13, 32) TIMES(17, 3) LOAD_Q
        TIMES(18, 4) ADD(hi, 17) ADD(lo, 16) LOAD2(x, 2, 4, 0) TIMES(19, 5) LAST2(x, 3, 5, 48)
        ADD(lo, 18) ADD(hi, 19) COUNT_DOWN
        "b.ne 1b\n"
        : [lo] "+w"(acc.lo), [hi] "+w"(acc.hi), [w] "+r"(w), [x] "+r"(x), [pairs] "+r"(pairs)
        : [magic] "r"(CB_ROUND_MAGIC_BITS)
        : "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",
          "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
          "v29", "v30", "v31", "cc", "memory");
    return acc;
}

/* `count` groups; what an odd one is paired with counts for nothing. */
static void prepare(struct pair *to, const int8_t *q, const float *d, const int32_t *s,
                    size_t count)
{
    for (size_t g = 0; g < count + count % 2; g++) {
        struct pair *pair = to + g / 2;
        const size_t from = g < count ? g : count - 1, half = g % 2;
        const int32_t start = (int32_t)CB_ROUND_MAGIC_BITS - 8 * s[from];
        vst1q_s32(pair->start[half], vdupq_n_s32(start));
        vst1q_s8(pair->q + half * COLUMNS, vld1q_s8(q + from * COLUMNS));
        vst1q_s8(pair->q + half * COLUMNS + 16, vld1q_s8(q + from * COLUMNS + 16));
        pair->d[half] = g < count ? d[g] : 0.0f;
    }
}

/* All panels, one token: groups [first, first + count) of every row after the other. */
static void int4_piece(const uint8_t *w, size_t panels, const struct cb_quantized *x, size_t token,
                       size_t first, size_t count, float *y)
{
    const size_t groups = x->groups, at = token * groups + first, pairs = (count + 1) / 2;
    struct pair prepared[PAIRS + 1]; /* the last one is read ahead and not used */
    size_t blocks = panels * groups - first; /* from this row's first to the end of w */

    prepare(prepared, x->q + at * COLUMNS, x->d + at, x->s + at, count);
    w += first * CB_INT4_BLOCK_BYTES;
    for (size_t p = 0; p < panels; p++, y += ROWS, blocks -= groups) {
        /* two blocks behind the last pair are read, too: at the end of w a copy has them */
        const size_t safe = blocks / 2 - (blocks > 1), inside = pairs < safe ? pairs : safe;
        struct f8 acc = first == 0 ? zero8() : load8(y);
        if (inside > 0)
            acc = int4_pairs(acc, w, prepared, inside);
        if (inside < pairs) {
            uint8_t copy[6 * CB_INT4_BLOCK_BYTES] = {0};
            memcpy(copy, w + 2 * inside * CB_INT4_BLOCK_BYTES,
                   (count - 2 * inside) * CB_INT4_BLOCK_BYTES);
            acc = int4_pairs(acc, copy, prepared + inside, pairs - inside);
        }
        store8(y, acc);
        w += groups * CB_INT4_BLOCK_BYTES;
    }
}

static void int4_token(const uint8_t *w, size_t panels, const struct cb_quantized *x, size_t token,
                       float *y)
{
    for (size_t first = 0, count; first < x->groups; first += count) {
        count = x->groups - first < 2 * PAIRS ? x->groups - first : 2 * PAIRS;
        int4_piece(w, panels, x, token, first, count, y);
    }
}

/* ---- the table ------------------------------------------------------------------------------ */

void cb_matmul_int4_dotprod(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                            size_t tokens, float *y, size_t y_stride)
{
    const size_t bytes = x->groups * CB_INT4_BLOCK_BYTES, batched = tokens - tokens % 2;
    for (size_t p = 0; p < panels && tokens > 1; p++) {
        size_t t = 0;
        for (; t + BATCH <= tokens; t += BATCH)
            int4_four(w + p * bytes, x, t, y + p * ROWS, y_stride);
        if (t < batched)
            int4_two(w + p * bytes, x, t, y + p * ROWS, y_stride);
    }
    if (batched < tokens)
        int4_token(w, panels, x, batched, y + batched * y_stride);
}

void cb_matmul_int8_dotprod(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                            size_t tokens, float *y, size_t y_stride)
{
    const size_t bytes = x->groups * CB_INT8_BLOCK_BYTES;
    for (size_t p = 0; p < panels; p++, w += bytes, y += ROWS) {
        size_t t = 0;
        for (; t + BATCH <= tokens; t += BATCH)
            int8_four(w, x, t, y, y_stride);
        for (; t < tokens; t++) /* two at once would save 7 % of these */
            int8_one(w, x, t, y, y_stride);
    }
}

const struct cb_kernels cb_kernels_dotprod = {
    .isa = "dotprod",
    .quantize = cb_quantize_neon,
    .matmul_int4 = cb_matmul_int4_dotprod,
    .matmul_int8 = cb_matmul_int8_dotprod,
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
