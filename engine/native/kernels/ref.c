/* SPDX-License-Identifier: MIT */
/*
 * The reference kernels: docs/arithmetic.md as plain C. Every product is a statement of its own, so
 * that the order of rounding can be read off; rows of a panel are the inner loop, so that compilers
 * may vectorise over them without changing a bit.
 */
#include "exact.h"

#include "colibri.h"
#include "kernels.h"
#include "spec.h"

#define ROWS CB_PANEL_ROWS
#define COLUMNS CB_GROUP_COLUMNS

int cb_quantize_ref(const float *x, size_t groups, int8_t *q, float *d, int32_t *s)
{
    for (size_t g = 0; g < groups; g++, x += COLUMNS, q += COLUMNS) {
        uint32_t bits = 0;
        for (size_t i = 0; i < COLUMNS; i++) {
            uint32_t magnitude = cb_bits(x[i]) & CB_BITS_ABS;
            if (magnitude > bits)
                bits = magnitude;
        }
        if (bits >= CB_BITS_INFINITY)
            return COLIBRI_ERR_NON_FINITE;
        if (bits < CB_TINY_AMAX_BITS) {
            memset(q, 0, COLUMNS);
            d[g] = 0.0f;
            s[g] = 0;
            continue;
        }
        const float amax = cb_float(bits);
        const float inv = 127.0f / amax;
        int32_t sum = 0;
        for (size_t i = 0; i < COLUMNS; i++) {
            float scaled = x[i] * inv;
            float t = scaled + CB_ROUND_MAGIC; /* rounds; the integer is in the low bits */
            int32_t value = (int32_t)cb_bits(t) - (int32_t)CB_ROUND_MAGIC_BITS;
            q[i] = (int8_t)value;
            sum += value;
        }
        d[g] = amax / 127.0f;
        s[g] = sum;
    }
    return 0;
}

/* One group of one row: 32 products of 8-bit integers. */
static int32_t dot(const int8_t *w, const int8_t *q)
{
    int32_t sum = 0;
    for (size_t i = 0; i < COLUMNS; i++)
        sum += w[i] * q[i];
    return sum;
}

/* A block as rows of 32; byte 4 * r + b of every 32 bytes belongs to row r. */
static void unpack_int4(const uint8_t *block, int8_t w[ROWS][COLUMNS])
{
    for (size_t i = 0; i < 4; i++)
        for (size_t r = 0; r < ROWS; r++)
            for (size_t b = 0; b < 4; b++) {
                const int byte = block[32 * i + 4 * r + b];
                w[r][4 * i + b] = (int8_t)((byte & 15) - 8);
                w[r][16 + 4 * i + b] = (int8_t)((byte >> 4) - 8);
            }
}

static void unpack_int8(const uint8_t *block, int8_t w[ROWS][COLUMNS])
{
    for (size_t i = 0; i < 8; i++)
        for (size_t r = 0; r < ROWS; r++)
            memcpy(&w[r][4 * i], block + 32 * i + 4 * r, 4);
}

/* acc[r] = acc[r] (+) (float(isum[r]) (*) (dw[r] (*) d)); scales: 8 f16. */
__attribute__((noinline)) static void accumulate(float acc[ROWS], int8_t w[ROWS][COLUMNS],
                                                 const int8_t *q, const uint8_t *scales, float d)
{
    for (size_t r = 0; r < ROWS; r++) {
        uint16_t h = (uint16_t)(scales[2 * r] | (scales[2 * r + 1] << 8));
        float scale = cb_f16(h) * d;
        float product = (float)dot(w[r], q) * scale;
        acc[r] = acc[r] + product;
    }
}

/* A panel is unpacked block by block, for all tokens at once when there are at most BATCH. */
#define BATCH 8

static void quantised_rows(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                           size_t tokens, float *y, size_t y_stride, int int8)
{
    const size_t groups = x->groups, bytes = int8 ? CB_INT8_BLOCK_BYTES : CB_INT4_BLOCK_BYTES;
    for (size_t p = 0; p < panels; p++, w += groups * bytes, y += ROWS)
        for (size_t first = 0; first < tokens; first += BATCH) {
            const size_t count = tokens - first < BATCH ? tokens - first : BATCH;
            float acc[BATCH][ROWS] = {{0}};
            for (size_t g = 0; g < groups; g++) {
                const uint8_t *block = w + g * bytes;
                int8_t rows[ROWS][COLUMNS];
                if (int8)
                    unpack_int8(block, rows);
                else
                    unpack_int4(block, rows);
                for (size_t t = 0; t < count; t++) {
                    const size_t at = (first + t) * groups + g;
                    accumulate(acc[t], rows, x->q + at * COLUMNS, block + bytes - 2 * ROWS,
                               x->d[at]);
                }
            }
            for (size_t t = 0; t < count; t++)
                memcpy(y + (first + t) * y_stride, acc[t], sizeof acc[t]);
        }
}

void cb_matmul_int4_ref(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                        size_t tokens, float *y, size_t y_stride)
{
    quantised_rows(w, panels, x, tokens, y, y_stride, 0);
}

void cb_matmul_int8_ref(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                        size_t tokens, float *y, size_t y_stride)
{
    quantised_rows(w, panels, x, tokens, y, y_stride, 1);
}

/* `n` elements from index `at` on, widened. */
static void widen(float *to, const void *from, size_t at, size_t n, int dtype)
{
    if (dtype == CB_DTYPE_F32) {
        memcpy(to, (const float *)from + at, n * sizeof *to);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = ((const uint16_t *)from)[at + i];
        to[i] = dtype == CB_DTYPE_F16 ? cb_f16(h) : cb_bf16(h);
    }
}

/* One float row product per panel and token. */
static void float_rows(const void *w, size_t panels, size_t columns, const float *x,
                       size_t x_stride, size_t tokens, float *y, size_t y_stride, int dtype)
{
    for (size_t p = 0; p < panels; p++, y += ROWS)
        for (size_t t = 0; t < tokens; t++) {
            float acc[ROWS] = {0};
            for (size_t k = 0; k < columns; k++) {
                float wide[ROWS];
                widen(wide, w, (p * columns + k) * ROWS, ROWS, dtype);
                cb_add_scaled_ref(acc, x[t * x_stride + k], wide, ROWS);
            }
            memcpy(y + t * y_stride, acc, sizeof acc);
        }
}

void cb_matmul_f32_ref(const float *w, size_t panels, size_t columns, const float *x,
                       size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    float_rows(w, panels, columns, x, x_stride, tokens, y, y_stride, CB_DTYPE_F32);
}

void cb_matmul_f16_ref(const uint16_t *w, size_t panels, size_t columns, const float *x,
                       size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    float_rows(w, panels, columns, x, x_stride, tokens, y, y_stride, CB_DTYPE_F16);
}

void cb_matmul_bf16_ref(const uint16_t *w, size_t panels, size_t columns, const float *x,
                        size_t x_stride, size_t tokens, float *y, size_t y_stride)
{
    float_rows(w, panels, columns, x, x_stride, tokens, y, y_stride, CB_DTYPE_BF16);
}

static float combine8(const float p[8])
{
    return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
}

void cb_rmsnorm_ref(const float *x, const float *w, size_t n, float eps, float *y)
{
    float p[8] = {0};
    for (size_t i = 0; i < n; i++) {
        float square = x[i] * x[i];
        p[i % 8] = p[i % 8] + square;
    }
    const float mean = combine8(p) / (float)n;
    const float r = 1.0f / cb_sqrt(mean + eps);
    for (size_t i = 0; i < n; i++) {
        float scaled = x[i] * r;
        y[i] = scaled * w[i];
    }
}

void cb_rope_ref(float *x, const float *c, const float *s, size_t pairs, int style)
{
    for (size_t i = 0; i < pairs; i++) {
        float *x0 = style == CB_ROPE_INTERLEAVED ? x + 2 * i : x + i;
        float *x1 = style == CB_ROPE_INTERLEAVED ? x + 2 * i + 1 : x + i + pairs;
        float a = *x0 * c[i], b = *x1 * s[i];
        float e = *x0 * s[i], f = *x1 * c[i];
        *x0 = a - b;
        *x1 = e + f;
    }
}

/* scores[j] become exp(scores[j] - max); returns their sum. */
static float softmax_terms(float *scores, size_t n)
{
    float highest = scores[0];
    for (size_t j = 1; j < n; j++)
        if (scores[j] > highest)
            highest = scores[j];
    for (size_t j = 0; j < n; j++)
        scores[j] = cb_exp(scores[j] - highest);
    return cb_reduce8(scores, n);
}

/* One query head. Rows are widened 8 elements at a time: element i goes to partial sum i % 8. */
static void attend(const float *q, const void *k, const void *v, size_t positions, size_t dim,
                   size_t value_dim, float scale, const float *sink, float *scores, float *out, int dtype)
{
    float wide[8];
    for (size_t j = 0; j < positions; j++) {
        float p[8] = {0};
        for (size_t i = 0, n; i < dim; i += n) {
            n = dim - i < 8 ? dim - i : 8;
            widen(wide, k, j * dim + i, n, dtype);
            for (size_t c = 0; c < n; c++) {
                float product = q[i + c] * wide[c];
                p[c] = p[c] + product;
            }
        }
        scores[j] = combine8(p) * scale;
    }
    if (sink != NULL)
        scores[positions] = *sink;
    const float sum = softmax_terms(scores, positions + (sink != NULL));
    for (size_t i = 0; i < value_dim; i++)
        out[i] = 0.0f;
    for (size_t j = 0; j < positions; j++)
        for (size_t i = 0, n; i < value_dim; i += n) {
            n = value_dim - i < 8 ? value_dim - i : 8;
            widen(wide, v, j * value_dim + i, n, dtype);
            cb_add_scaled_ref(out + i, scores[j], wide, n);
        }
    for (size_t i = 0; i < value_dim; i++)
        out[i] = out[i] / sum;
}

void cb_attend_f16_ref(const float *q, const uint16_t *k, const uint16_t *v, size_t positions,
                       size_t dim, size_t value_dim, float scale, const float *sink, float *scores, float *out)
{
    attend(q, k, v, positions, dim, value_dim, scale, sink, scores, out, CB_DTYPE_F16);
}

void cb_attend_f32_ref(const float *q, const float *k, const float *v, size_t positions, size_t dim,
                       size_t value_dim, float scale, const float *sink, float *scores, float *out)
{
    attend(q, k, v, positions, dim, value_dim, scale, sink, scores, out, CB_DTYPE_F32);
}

int cb_store_f16_ref(const float *x, size_t n, uint16_t *out)
{
    int finite = 1;
    for (size_t i = 0; i < n; i++) {
        out[i] = cb_f16_from_f32(x[i]);
        if ((out[i] & 0x7c00u) == 0x7c00u)
            finite = 0;
    }
    return finite ? 0 : COLIBRI_ERR_NON_FINITE;
}

static float gelu_tanh(float x)
{
    float cube = x * x;
    cube = cube * x;
    float inner = CB_GELU_B * cube;
    inner = x + inner;
    float u = CB_GELU_A * inner;
    return x * cb_sigmoid(2.0f * u);
}

void cb_activate_ref(int activation, float clamp, float alpha, const float *gate, const float *up,
                     size_t n, float *h)
{
    for (size_t i = 0; i < n; i++) {
        float g = gate[i];
        float u = up ? up[i] : 1.0f; /* a product with 1 changes nothing */
        switch (activation) {
        case CB_ACT_SILU:
            g = g * cb_sigmoid(g);
            break;
        case CB_ACT_GELU_TANH:
            g = gelu_tanh(g);
            break;
        case CB_ACT_RELU:
            g = g > 0.0f ? g : 0.0f;
            break;
        case CB_ACT_SWIGLU_CLAMPED:
            g = g < clamp ? g : clamp;
            g = g * cb_sigmoid(alpha * g);
            if (up) {
                u = u < clamp ? u : clamp;
                u = -clamp > u ? -clamp : u;
                u = u + 1.0f;
            }
            break;
        case CB_ACT_IDENTITY:
            break;
        default: /* refused when the records are read; not finite here, so that it cannot pass */
            g = cb_float(0x7fc00000u);
            break;
        }
        h[i] = g * u;
    }
}

void cb_add_scaled_ref(float *acc, float scale, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float product = scale * x[i];
        acc[i] = acc[i] + product;
    }
}

void cb_top_k_ref(float *scores, size_t n, size_t k, int32_t *ids)
{
    float best[CB_MAX_TOP_K];
    size_t held = 0;
    for (size_t i = 0; i < n; i++) {
        if (held == k && !(scores[i] > best[k - 1]))
            continue;
        size_t at = held < k ? held++ : k - 1;
        for (; at > 0 && scores[i] > best[at - 1]; at--) {
            best[at] = best[at - 1];
            ids[at] = ids[at - 1];
        }
        best[at] = scores[i];
        ids[at] = (int32_t)i;
    }
}

const struct cb_kernels cb_kernels_ref = CB_KERNEL_TABLE(ref);
