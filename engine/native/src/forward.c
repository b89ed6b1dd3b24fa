/* SPDX-License-Identifier: MIT */
/* The layers of a batch, from token ids to the logits of its last token. */
#include <string.h>

#include "common.h"
#include "error.h"
#include "pass.h"
#include "sampler.h"
#include "verify.h"

int cb_pass_run(struct cb_pass *p, cb_task *task, size_t units, const char *step)
{
    int code;

    code = cb_pool_run(&p->m->pool, task, p, units);
    if (code == 0)
        return 0;
    if (p->l != NULL)
        return cb_deny(p->error, code,
                       "layer %u, %s: a value is not finite; the model's weights or recipe are "
                       "broken",
                       p->l->r.layer.index, step);
    return cb_deny(p->error, code,
                   "%s: a value is not finite; the model's weights or recipe are broken", step);
}

/* ---- embedding and angles -------------------------------------------------------------------- */

static int step_embed(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const colibri_model *m = p->m;
    float multiplier = m->block.embedding_multiplier;
    size_t t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        float *x = m->scratch.x + t * m->shape.hidden;
        uint32_t i, table, pairs = 0;

        cb_panel_row(m->embedding.data, (int)m->embedding.dtype, (size_t)p->ids[t], m->block.hidden,
                     x);
        for (i = 0; i < m->block.hidden; i++)
            x[i] *= multiplier;
        if (m->positions.data != NULL) {
            float *row = m->scratch.normed + t * m->shape.hidden;

            cb_panel_row(m->positions.data, (int)m->positions.dtype,
                         (size_t)m->block.position_offset + p->position + t, m->block.hidden, row);
            p->k->add_scaled(x, 1.0f, row, m->block.hidden);
        }
        for (table = 0; table < m->ropes; table++) {
            const struct cb_rope_table *r = &m->rope[table];
            size_t at = t * m->shape.pairs + pairs;

            cb_rope_angles(p->position + (uint32_t)t, r->inv_freq, r->block.pairs,
                           r->block.attention_factor, m->scratch.cos + at, m->scratch.sin + at);
            pairs += r->block.pairs;
        }
    }
    return 0;
}

/* ---- norms and projections -------------------------------------------------------------------- */

void cb_norm(const struct cb_kernels *k, const struct cb_norm *norm, const float *x, size_t n, float *y)
{
    size_t i;

    if (norm == NULL || norm->weight == NULL) {
        if (y != x)
            memcpy(y, x, n * sizeof *y);
        return;
    }
    if (norm->kind == CB_NORM_LAYER) { /* RMSNorm of what lies around the mean */
        float mean = cb_reduce8(x, n) / (float)n;

        for (i = 0; i < n; i++)
            y[i] = x[i] - mean;
        x = y;
    }
    k->rmsnorm(x, norm->weight, n, norm->eps, y);
    if (norm->bias != NULL)
        k->add_scaled(y, 1.0f, norm->bias, n);
}

static int step_norm(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    struct cb_quantized *q = &p->input.q;
    size_t stride = p->input.stride, groups = stride / CB_GROUP_COLUMNS, t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        float *y = p->to + t * stride;
        int code;

        cb_norm(p->k, p->norm, p->source + t * p->source_stride, p->channels, y);
        memset(y + p->channels, 0, (stride - p->channels) * sizeof *y);
        if (!p->quantize)
            continue;
        code = p->k->quantize(y, groups, q->q + t * stride, q->d + t * groups, q->s + t * groups);
        if (code != 0)
            return code;
    }
    return 0;
}

/* `to` (and the quantised input) become the input of the next projection. */
int cb_pass_norm_rows(struct cb_pass *p, const struct cb_norm *norm, const float *source, size_t stride,
                      size_t channels, float *to, int quantize, const char *step)
{
    p->norm = norm;
    p->source = source;
    p->source_stride = stride;
    p->channels = channels;
    p->to = to;
    p->quantize = quantize;
    p->input.x = to;
    p->input.stride = (size_t)cb_up(channels, CB_GROUP_COLUMNS);
    p->input.q = p->m->scratch.input;
    return cb_pass_run(p, step_norm, p->tokens, step);
}

int cb_pass_norm(struct cb_pass *p, const struct cb_norm *norm, int quantize, const char *step)
{
    const colibri_model *m = p->m;

    return cb_pass_norm_rows(p, norm, m->scratch.x, m->shape.hidden, m->block.hidden, m->scratch.normed,
                             quantize, step);
}

void cb_pass_out(struct cb_pass *p, const struct cb_matrix *w, float *y, size_t stride)
{
    p->out[p->outs].w = w;
    p->out[p->outs].y = y;
    p->out[p->outs].stride = stride;
    p->outs++;
}

static int step_project(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    size_t panels = 0, first, last;
    unsigned i;

    for (i = 0; i < p->outs; i++)
        panels += cb_matrix_panels(p->out[i].w);
    cb_share(panels, index, count, &first, &last);
    for (i = 0; i < p->outs && last > 0; i++) {
        size_t here = cb_matrix_panels(p->out[i].w);
        size_t end = last < here ? last : here;

        if (first < end)
            cb_matmul(p->k, p->out[i].w, first, end, &p->input, 0, p->tokens, p->out[i].y,
                      p->out[i].stride);
        first = first > here ? first - here : 0;
        last -= end;
    }
    return 0;
}

int cb_pass_project(struct cb_pass *p, const char *step)
{
    size_t panels = 0;
    unsigned i;

    int code;

    for (i = 0; i < p->outs; i++)
        panels += cb_matrix_panels(p->out[i].w);
    code = cb_pass_run(p, step_project, panels, step);
    p->outs = 0;
    return code;
}

int cb_pass_mixed(struct cb_pass *p, const struct cb_matrix *w, float *x, size_t n)
{
    int code = cb_pass_norm_rows(p, NULL, x, (size_t)cb_up(n, CB_GROUP_COLUMNS), n, x,
                                 cb_is_quantized(w->dtype), "mixer output");

    if (code != 0)
        return code;
    cb_pass_out(p, w, p->m->scratch.accumulator, p->m->shape.hidden);
    return cb_pass_project(p, "mixer projection");
}

/* ---- residual --------------------------------------------------------------------------------- */

static int step_residual(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const colibri_model *m = p->m;
    size_t t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        float *out = p->residual + t * m->shape.hidden;

        if (p->residual_norm->weight != NULL)
            cb_norm(p->k, p->residual_norm, out, m->block.hidden, out);
        p->k->add_scaled(m->scratch.x + t * m->shape.hidden, p->l->r.layer.residual_multiplier, out,
                         m->block.hidden);
    }
    return 0;
}

static int add_residual(struct cb_pass *p, float *out, const struct cb_norm *norm)
{
    p->residual = out;
    p->residual_norm = norm;
    return cb_pass_run(p, step_residual, p->tokens, "residual");
}

/* ---- layers ------------------------------------------------------------------------------------ */

/* The router of a MoE layer, when it reads x as it is now. */
static int route_residual(struct cb_pass *p, uint32_t input)
{
    int code;

    if (p->l->r.layer.ffn_kind != CB_FFN_MOE || p->l->r.moe.router_input != input)
        return 0;
    code = cb_pass_norm(p, NULL, cb_router_quantizes(p->l), "router input");
    if (code == 0)
        code = cb_route(p);
    return code;
}

static int run_mixer(struct cb_pass *p)
{
    struct cb_layer *l = p->l;
    int convolution = l->r.layer.mixer_kind == CB_MIXER_SHORT_CONV;
    int quantize, code;

    if (l->r.layer.mixer_kind == CB_MIXER_NONE)
        return 0;
    /* Matrices that are not there are f32. */
    quantize = cb_is_quantized(l->q.dtype) || cb_is_quantized(l->k.dtype) || cb_is_quantized(l->v.dtype) ||
               cb_is_quantized(l->q_a.dtype) || cb_is_quantized(l->kv_a.dtype);
    code = cb_pass_norm(p, &l->norms[CB_PRE_MIXER], quantize, "norm before the mixer");
    if (code == 0)
        code = convolution ? cb_short_conv(p) : cb_attention(p);
    if (code == 0)
        code = add_residual(p, p->m->scratch.accumulator, &l->norms[CB_POST_MIXER]);
    return code;
}

static int run_ffn(struct cb_pass *p)
{
    struct cb_layer *l = p->l;
    int moe = l->r.layer.ffn_kind == CB_FFN_MOE;
    int routed = moe && l->r.moe.router_input == CB_ROUTER_INPUT_FFN_INPUT;
    int quantize, code;

    if (l->r.layer.ffn_kind == CB_FFN_NONE)
        return 0;
    quantize = cb_mlp_quantizes(&l->mlp) || (routed && cb_router_quantizes(l));
    if (l->r.has_shared)
        quantize |= cb_mlp_quantizes(&l->shared) || cb_is_quantized(l->shared_router.dtype);
    code = cb_pass_norm(p, &l->norms[CB_PRE_FFN], quantize, "norm before the experts");
    if (code == 0 && routed)
        code = cb_route(p);
    if (code == 0)
        code = moe ? cb_moe(p) : cb_dense(p, &l->mlp);
    if (code == 0)
        code = add_residual(p, moe ? p->m->scratch.accumulator : p->m->scratch.outputs,
                            &l->norms[CB_POST_FFN]);
    return code;
}

static int run_layer(struct cb_pass *p, uint32_t index)
{
    int code;

    if (atomic_load_explicit(&p->session->cancel, memory_order_relaxed) != 0)
        return cb_deny(p->error, COLIBRI_ERR_CANCELLED,
                       "cancelled in layer %u of %u; the sequence is as before the call", index,
                       p->m->block.layers);
    p->l = cb_model_layer(p->m, index);
    code = cb_verify_extent(p->m, p->l->trunk_extent, p->error);
    if (code == 0)
        code = route_residual(p, CB_ROUTER_INPUT_RESIDUAL_BEFORE_MIXER);
    if (code == 0)
        code = run_mixer(p);
    if (code == 0)
        code = route_residual(p, CB_ROUTER_INPUT_FFN_RESIDUAL);
    if (code == 0)
        code = run_ffn(p);
    return code;
}

/* ---- logits ------------------------------------------------------------------------------------ */

/* The last token's logits, into the sampler's scratch: the session keeps its own until all is well. */
static int step_head(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const colibri_model *m = p->m;
    float *logits = (float *)(void *)p->session->candidates;
    size_t first, last;

    cb_share(cb_matrix_panels(&m->head), index, count, &first, &last);
    cb_matmul(p->k, &m->head, first, last, &p->input, 0, 1, logits, m->shape.logits);
    return cb_logits_scale(logits + first * CB_PANEL_ROWS, (last - first) * CB_PANEL_ROWS,
                           m->block.logits_multiplier);
}

/* What a head or norm of zeros gives, and nothing that was trained: an answer would be made up. A
 * token whose embedding is zero (padding) may have such logits. */
static int check_logits(struct cb_pass *p, size_t id)
{
    const colibri_model *m = p->m;
    const float *logits = (const float *)(const void *)p->session->candidates;
    float *row = m->scratch.normed;
    uint32_t i;

    for (i = 0; i < m->block.vocabulary; i++) {
        if (logits[i] != 0.0f)
            return 0;
    }
    cb_panel_row(m->embedding.data, (int)m->embedding.dtype, id, m->block.hidden, row);
    for (i = 0; i < m->block.hidden; i++) {
        if (row[i] != 0.0f)
            return cb_deny(p->error, COLIBRI_ERR_ZERO_LOGITS,
                           "output logits all zero: the head or a norm before it is zero; convert "
                           "the model again");
    }
    return 0;
}

static int compute_logits(struct cb_pass *p)
{
    const colibri_model *m = p->m;
    size_t hidden = m->shape.hidden, id = (size_t)p->ids[p->tokens - 1];
    int code;

    /* Only the last token of the batch is looked at. */
    if (p->tokens > 1)
        memcpy(m->scratch.x, m->scratch.x + (p->tokens - 1) * hidden, hidden * sizeof(float));
    p->tokens = 1;
    p->l = NULL;
    code = cb_pass_norm(p, &m->final_norm, cb_is_quantized(m->head.dtype), "final norm");
    if (code == 0)
        code = cb_pass_run(p, step_head, cb_matrix_panels(&m->head), "logits");
    code = cb_experts_settle(p, code);
    if (code == 0)
        code = check_logits(p, id);
    if (code == 0)
        memcpy(p->session->logits, p->session->candidates, m->block.vocabulary * sizeof(float));
    return code;
}

int cb_forward(struct cb_pass *p, int want_logits)
{
    uint32_t i;
    int code;

    p->l = NULL;
    cb_experts_begin(p);
    code = cb_verify_extent(p->m, 0, p->error);
    if (code == 0)
        code = cb_pass_run(p, step_embed, p->tokens, "embedding");
    for (i = 0; code == 0 && i < p->m->block.layers; i++)
        code = run_layer(p, i);
    if (code == 0 && want_logits)
        return compute_logits(p);
    return cb_experts_settle(p, code);
}
