/* SPDX-License-Identifier: MIT */
/*
 * The kernel table: every operator whose speed depends on the instruction set. One file per ISA
 * defines one table, constant and complete: an operator it has no faster form of is the function
 * of the next lower ISA, named in its initialiser. Semantics are docs/arithmetic.md; every table
 * gives the same bits.
 *
 * Shapes: `panels` counts panels of 8 rows; `groups` counts groups of 32 input columns; row r of
 * the whole matrix is panel r / 8, lane r % 8. Outputs of padded rows are written (as +0 rows).
 * Pointers to weights are 64-byte aligned at the start of a matrix; a panel starts where the
 * previous one ends, so a panel pointer is 16-byte aligned only.
 */
#ifndef CB_KERNELS_H
#define CB_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* Quantised activations of some tokens; token t uses q + t*32*groups, d + t*groups, s + t*groups. */
struct cb_quantized {
    int8_t *q;   /* [tokens][groups][32] */
    float *d;    /* [tokens][groups], scale */
    int32_t *s;  /* [tokens][groups], sum of the q of the group */
    size_t groups;
};

/* Bytes of one panel: int4 groups * 144, int8 groups * 272, f16/bf16 columns * 16, f32 columns * 32. */

struct cb_kernels {
    const char *isa;

    /* One token: x f32 [groups*32] (padding zero). 0, or COLIBRI_ERR_NON_FINITE (q, d and s are
     * then unspecified). */
    int (*quantize)(const float *x, size_t groups, int8_t *q, float *d, int32_t *s);

    /* y[t*y_stride + row] for row < panels*8, t < tokens. */
    void (*matmul_int4)(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                        size_t tokens, float *y, size_t y_stride);
    void (*matmul_int8)(const uint8_t *w, size_t panels, const struct cb_quantized *x,
                        size_t tokens, float *y, size_t y_stride);

    /* Float rows: element (k, lane) of a panel at [k*8 + lane]; x f32 [tokens][x_stride],
     * columns is the padded count (a multiple of 32, padding of x zero). */
    void (*matmul_f32)(const float *w, size_t panels, size_t columns, const float *x,
                       size_t x_stride, size_t tokens, float *y, size_t y_stride);
    void (*matmul_f16)(const uint16_t *w, size_t panels, size_t columns, const float *x,
                       size_t x_stride, size_t tokens, float *y, size_t y_stride);
    void (*matmul_bf16)(const uint16_t *w, size_t panels, size_t columns, const float *x,
                        size_t x_stride, size_t tokens, float *y, size_t y_stride);

    /* y = RMSNorm(x) * w over n channels; y may be x. */
    void (*rmsnorm)(const float *x, const float *w, size_t n, float eps, float *y);

    /* Rotate one head in place: c, s [pairs]; style CB_ROPE_*. */
    void (*rope)(float *x, const float *c, const float *s, size_t pairs, int style);

    /* One query head over `positions` cached positions, oldest first:
     * k [positions][dim], v [positions][value_dim]; positions >= 1; sink NULL, or a score more that
     * has no value; scores is scratch [positions], one more with a sink; out [value_dim]. */
    void (*attend_f16)(const float *q, const uint16_t *k, const uint16_t *v, size_t positions,
                       size_t dim, size_t value_dim, float scale, const float *sink, float *scores,
                       float *out);
    void (*attend_f32)(const float *q, const float *k, const float *v, size_t positions,
                       size_t dim, size_t value_dim, float scale, const float *sink, float *scores,
                       float *out);

    /* f32 -> f16, nearest even. 0, or COLIBRI_ERR_NON_FINITE when an input is not finite or a
     * result overflows (out is then unspecified). */
    int (*store_f16)(const float *x, size_t n, uint16_t *out);

    /* h[i] = act(gate[i]) * up[i]; with up == NULL h[i] = act(gate[i]). h may be gate or up.
     * An activation docs/arithmetic.md does not define gives NaN: the reader refuses it before. */
    void (*activate)(int activation, float clamp, float alpha, const float *gate, const float *up,
                     size_t n, float *h);

    /* acc[i] = acc[i] + (scale * x[i]) */
    void (*add_scaled)(float *acc, float scale, const float *x, size_t n);

    /* ids[0..k): the highest of n scores in descending order, the lower id first on equal ones.
     * 1 <= k <= CB_MAX_TOP_K, k <= n; no NaN. The scores are used up. */
    void (*top_k)(float *scores, size_t n, size_t k, int32_t *ids);
};

/*
 * The best table of this CPU (isa == NULL), or the one asked for by name. NULL when the name is
 * unknown or this build or CPU lacks it. Tables are complete (no NULL entries) and constant.
 */
const struct cb_kernels *cb_kernels_select(const char *isa);
/* Space-separated names, ascending; compiled into this build / runnable on this CPU. */
const char *cb_kernels_compiled(void);
const char *cb_kernels_available(void);

/* Per-ISA entry points, present when the build has the ISA. */
extern const struct cb_kernels cb_kernels_ref;
extern const struct cb_kernels cb_kernels_neon;
extern const struct cb_kernels cb_kernels_dotprod;
extern const struct cb_kernels cb_kernels_i8mm;
extern const struct cb_kernels cb_kernels_avx2;
extern const struct cb_kernels cb_kernels_avx512;

/* The functions of one ISA, so that a higher one can name those it inherits. */
#define CB_KERNEL_PRODUCTS(isa)                                                                    \
    void cb_matmul_int4_##isa(const uint8_t *, size_t, const struct cb_quantized *, size_t,        \
                              float *, size_t);                                                    \
    void cb_matmul_int8_##isa(const uint8_t *, size_t, const struct cb_quantized *, size_t,        \
                              float *, size_t)

#define CB_KERNEL_FUNCTIONS(isa)                                                                   \
    CB_KERNEL_PRODUCTS(isa);                                                                       \
    int cb_quantize_##isa(const float *, size_t, int8_t *, float *, int32_t *);                    \
    void cb_matmul_f32_##isa(const float *, size_t, size_t, const float *, size_t, size_t,         \
                             float *, size_t);                                                     \
    void cb_matmul_f16_##isa(const uint16_t *, size_t, size_t, const float *, size_t, size_t,      \
                             float *, size_t);                                                     \
    void cb_matmul_bf16_##isa(const uint16_t *, size_t, size_t, const float *, size_t, size_t,     \
                              float *, size_t);                                                    \
    void cb_rmsnorm_##isa(const float *, const float *, size_t, float, float *);                   \
    void cb_rope_##isa(float *, const float *, const float *, size_t, int);                        \
    void cb_attend_f16_##isa(const float *, const uint16_t *, const uint16_t *, size_t, size_t,    \
                             size_t, float, const float *, float *, float *);                      \
    void cb_attend_f32_##isa(const float *, const float *, const float *, size_t, size_t, size_t,  \
                             float, const float *, float *, float *);                              \
    int cb_store_f16_##isa(const float *, size_t, uint16_t *);                                     \
    void cb_activate_##isa(int, float, float, const float *, const float *, size_t, float *);      \
    void cb_add_scaled_##isa(float *, float, const float *, size_t);                               \
    void cb_top_k_##isa(float *, size_t, size_t, int32_t *)

CB_KERNEL_FUNCTIONS(ref);
CB_KERNEL_FUNCTIONS(neon);
CB_KERNEL_FUNCTIONS(avx2);
/* These have only the quantised row products. */
CB_KERNEL_PRODUCTS(dotprod);
CB_KERNEL_PRODUCTS(i8mm);
CB_KERNEL_PRODUCTS(avx512);

/* The table of an ISA that defines all of them. */
#define CB_KERNEL_TABLE(name)                                                                      \
    {                                                                                              \
        .isa = #name, .quantize = cb_quantize_##name, .matmul_int4 = cb_matmul_int4_##name,        \
        .matmul_int8 = cb_matmul_int8_##name, .matmul_f32 = cb_matmul_f32_##name,                  \
        .matmul_f16 = cb_matmul_f16_##name, .matmul_bf16 = cb_matmul_bf16_##name,                  \
        .rmsnorm = cb_rmsnorm_##name, .rope = cb_rope_##name, .attend_f16 = cb_attend_f16_##name,  \
        .attend_f32 = cb_attend_f32_##name, .store_f16 = cb_store_f16_##name,                      \
        .activate = cb_activate_##name, .add_scaled = cb_add_scaled_##name,                        \
        .top_k = cb_top_k_##name,                                                                  \
    }

/* Scalar pieces of the contract, shared by tables, router and sampler. */
float cb_exp(float x);                           /* x <= 0 */
float cb_sqrt(float x);                          /* correctly rounded, no libm */
float cb_sigmoid(float x);
float cb_reduce8(const float *v, size_t n);
float cb_f16_to_f32(uint16_t h);
uint16_t cb_f16_from_f32(float x);               /* nearest even; overflow gives infinity */
float cb_bf16_to_f32(uint16_t h);
/* Dequantise columns [0, columns) of one row of a panel8 matrix; dtype CB_DTYPE_*. */
void cb_panel_row(const uint8_t *w, int dtype, size_t row, size_t columns, float *out);
/* cos and sin of position * inv_freq, times factor. c, s: [pairs] */
void cb_rope_angles(uint32_t position, const float *inv_freq, size_t pairs, float factor,
                    float *c, float *s);

/* Floating-point control word: save, set nearest-even without flushing; restore. */
uint64_t cb_fpu_enter(void);
void cb_fpu_leave(uint64_t saved);

#endif
