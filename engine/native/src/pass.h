/* SPDX-License-Identifier: MIT */
/*
 * One forward pass: a batch of tokens of one session through all layers. The caller runs the
 * steps of a layer in order; a step is a task that all threads run on their static shares.
 * With one token the small steps run on the caller alone and cost no barrier.
 */
#ifndef CB_PASS_H
#define CB_PASS_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "model.h"

/* What a matrix reads: the same vectors as floats and quantised; a matrix's dtype picks one. */
struct cb_input {
    const float *x;
    size_t stride; /* of x */
    struct cb_quantized q;
};

struct cb_pass {
    colibri_model *m;
    colibri_session *session;
    const struct cb_kernels *k;
    const int32_t *ids;   /* [tokens] */
    size_t tokens;
    uint32_t position;    /* of the first token */
    struct cb_layer *l;
    colibri_error *error;
    const char *step;     /* for messages */

    /* step_norm: `channels` of each row of `source`, normed, to `to`; when `quantize`, quantised too */
    const struct cb_norm *norm;
    const float *source;
    size_t source_stride, channels;
    float *to;
    int quantize;

    /* step_project: up to three matrices that read `input` */
    struct cb_input input;
    struct {
        const struct cb_matrix *w;
        float *y;
        size_t stride;
    } out[3];
    unsigned outs;

    /* cb_step_residual: x += multiplier * (out, after norm) */
    float *residual;
    const struct cb_norm *residual_norm;

    /* colibri_moe_forward */
    const struct cb_mlp *mlp;
    int dense;               /* one "expert" that sees all tokens in order: slot = token */
    int grouped;             /* `slots` holds the inputs of experts with several tokens */
    struct cb_input slots;   /* inputs by slot */
    struct cb_input inner;   /* activated vectors by slot, what `down` reads */
    enum { CB_MOE_INNER, CB_MOE_OUTER } stage;
};

static inline int cb_is_quantized(uint32_t dtype)
{
    return dtype == CB_DTYPE_INT4 || dtype == CB_DTYPE_INT8;
}

/* Panels [first, last) of w and its bias for `tokens` inputs from `token` on. y: row 0 of that token. */
void cb_matmul(const struct cb_kernels *k, const struct cb_matrix *w, size_t first, size_t last,
               const struct cb_input *in, size_t token, size_t tokens, float *y, size_t stride);
size_t cb_matrix_panels(const struct cb_matrix *w);

/* Run a task; a failure is named after `step` and the layer. */
int cb_pass_run(struct cb_pass *p, cb_task *task, size_t units, const char *step);

/* forward.c */
/* One token of n channels; norm NULL or without weights: a copy. y may be x. */
void cb_norm(const struct cb_kernels *k, const struct cb_norm *norm, const float *x, size_t n, float *y);
/* The residual. */
int cb_pass_norm(struct cb_pass *p, const struct cb_norm *norm, int quantize, const char *step);
/* `channels` of rows of `source`, their norm to `to`: rows of `channels` rounded up to a group. */
int cb_pass_norm_rows(struct cb_pass *p, const struct cb_norm *norm, const float *source, size_t stride,
                      size_t channels, float *to, int quantize, const char *step);
/* w of rows of n channels (padded; their padding is set) to the accumulator. */
int cb_pass_mixed(struct cb_pass *p, const struct cb_matrix *w, float *x, size_t n);
void cb_pass_out(struct cb_pass *p, const struct cb_matrix *w, float *y, size_t stride);
int cb_pass_project(struct cb_pass *p, const char *step);
int cb_forward(struct cb_pass *p, int want_logits);

/* attention.c, convolution.c: normed -> accumulator (the projection behind them) */
int cb_attention(struct cb_pass *p);
int cb_short_conv(struct cb_pass *p);

/* router.c: logits from normed -> ids, weights */
int cb_route(struct cb_pass *p);
/* The top_k experts of one token; NON_FINITE when a logit is not. */
int cb_router_choose(const struct cb_kernels *k, const struct cb_layer *l, const float *logits, int32_t *ids);
int cb_router_quantizes(const struct cb_layer *l);

/* experts.c */
int cb_moe(struct cb_pass *p);   /* normed, ids, weights -> accumulator */
int cb_dense(struct cb_pass *p, const struct cb_mlp *mlp); /* normed -> outputs, stride H */
int cb_mlp_quantizes(const struct cb_mlp *mlp);
/* The function that runs the experts, on every thread; profilers find it by this name. */
int colibri_moe_forward(void *pass, unsigned index, unsigned count);

#endif
