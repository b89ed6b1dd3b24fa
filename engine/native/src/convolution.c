/* SPDX-License-Identifier: MIT */
/*
 * A gated causal convolution over the last few tokens, channel by channel: of B, C and x, which one
 * matrix gives, the inputs are B * x and the outputs C * (their weighted sum). What the next tokens need
 * of the inputs is the state of the session.
 */
#include "common.h"
#include "pass.h"

static size_t in_stride(const struct cb_block_short_conv *c)
{
    return cb_up32(3 * c->width, CB_GROUP_COLUMNS);
}

/* A channel of all tokens in order. state: of the channel, its rows `width` apart. */
static int run_channel(const struct cb_pass *p, float *state, size_t channel)
{
    const struct cb_layer *l = p->l;
    const struct cb_block_short_conv *c = &l->r.short_conv;
    size_t stride = in_stride(c), width = c->width, before = c->taps - 1, t, j;
    size_t w_stride = cb_up32(c->width, CB_GROUP_COLUMNS);
    const float *weight = l->conv_weight + channel;
    float *in = p->m->scratch.kv + channel, *out = p->m->scratch.o + channel;

    for (t = 0; t < p->tokens; t++) {
        float *row = in + t * stride, sum = 0.0f;

        row[0] = row[0] * row[2 * width];
        if (!cb_is_finite(row))
            return COLIBRI_ERR_NON_FINITE;
        for (j = 0; j <= before; j++) { /* oldest first: token t + j - before */
            float x = t + j < before ? state[(t + j) * width] : in[(t + j - before) * stride];
            float product = weight[j * w_stride] * x;

            sum = sum + product;
        }
        if (l->conv_bias != NULL)
            sum = sum + l->conv_bias[channel];
        out[t * w_stride] = row[width] * sum;
    }
    for (j = 0; j < before; j++) {
        t = p->tokens + j; /* ascending: a row is read before it is written */
        state[j * width] = t < before ? state[t * width] : in[(t - before) * stride];
    }
    return 0;
}

/* Threads share the channels: every token reads what the ones before it gave. */
static int step_convolve(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const struct cb_block_short_conv *c = &p->l->r.short_conv;
    float *state = (float *)(void *)(p->session->states + p->l->k_offset);
    size_t channel, last, j;

    cb_share(c->width, index, count, &channel, &last);
    for (; channel < last; channel++) {
        int code;

        for (j = 0; p->position == 0 && j + 1 < c->taps; j++)
            state[j * c->width + channel] = 0.0f;
        code = run_channel(p, state + channel, channel);
        if (code != 0)
            return code;
    }
    return 0;
}

int cb_short_conv(struct cb_pass *p)
{
    const struct cb_layer *l = p->l;
    const struct cb_block_short_conv *c = &l->r.short_conv;
    int code;

    cb_pass_out(p, &l->q, p->m->scratch.kv, in_stride(c));
    code = cb_pass_project(p, "convolution input");
    if (code == 0)
        code = cb_pass_run(p, step_convolve, p->tokens * 3, "convolution");
    if (code == 0)
        code = cb_pass_mixed(p, &l->o, p->m->scratch.o, c->width);
    return code;
}
