/* SPDX-License-Identifier: MIT */
/* Grouped-query attention over the KV cache, [kv_head][position][dim] per layer. */
#include <string.h>

#include "common.h"
#include "pass.h"

/* Bytes of one KV head's rows before `position`. */
static size_t kv_bytes(const colibri_model *m, size_t head, size_t position, size_t dim)
{
    return (head * m->plan.context_tokens + position) * dim * cb_kv_element_bytes(m->plan.kv);
}

static void clip(float *x, float limit, size_t n)
{
    size_t i;

    if (limit == 0.0f)
        return;
    for (i = 0; i < n; i++) {
        if (x[i] > limit)
            x[i] = limit;
        else if (x[i] < -limit)
            x[i] = -limit;
    }
}

/* Clip, QK norm (or these two the other way), RoPE: what happens to q and k between projection and use. */
static void shape_heads(const struct cb_pass *p, float *x, size_t heads, const float *norm,
                        size_t token)
{
    const struct cb_block_attention *a = &p->l->r.attention;
    const colibri_model *m = p->m;
    size_t dim = a->head_dim, h;
    uint32_t table, pairs = 0;

    if (a->qk_norm_kind != CB_QK_NORM_FULL_WIDTH_THEN_CLIP)
        clip(x, a->clip_qkv, heads * dim);
    if (a->qk_norm_kind >= CB_QK_NORM_FULL_WIDTH)
        p->k->rmsnorm(x, norm, heads * dim, a->qk_norm_eps, x);
    if (a->qk_norm_kind == CB_QK_NORM_FULL_WIDTH_THEN_CLIP)
        clip(x, a->clip_qkv, heads * dim);
    for (table = 0; table < m->ropes && table < a->rope_table; table++)
        pairs += m->rope[table].block.pairs;
    for (h = 0; h < heads; h++) {
        if (a->qk_norm_kind == CB_QK_NORM_PER_HEAD)
            p->k->rmsnorm(x + h * dim, norm, dim, a->qk_norm_eps, x + h * dim);
        if (a->rope_table != CB_NONE_INDEX) {
            const struct cb_rope_table *r = &m->rope[a->rope_table];
            size_t at = token * m->shape.pairs + pairs;

            p->k->rope(x + h * dim, m->scratch.cos + at, m->scratch.sin + at, r->block.pairs,
                       (int)r->block.style);
        }
    }
}

/* One head's row into the cache, checked finite. */
static int store(const struct cb_pass *p, uint8_t *to, const float *x, size_t n)
{
    size_t i;

    if (p->m->plan.kv == COLIBRI_KV_F16)
        return p->k->store_f16(x, n, (uint16_t *)(void *)to);
    for (i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof bits);
        if ((bits & 0x7f800000u) == 0x7f800000u)
            return COLIBRI_ERR_NON_FINITE;
    }
    memcpy(to, x, n * sizeof *x);
    return 0;
}

static size_t q_stride(const struct cb_block_attention *a)
{
    return cb_up32(a->heads * a->head_dim, CB_GROUP_COLUMNS);
}

static size_t k_stride(const struct cb_block_attention *a)
{
    return cb_up32(a->kv_heads * a->head_dim, CB_GROUP_COLUMNS);
}

static size_t v_stride(const struct cb_block_attention *a)
{
    return cb_up32(a->kv_heads * a->value_dim, CB_GROUP_COLUMNS);
}

static size_t o_stride(const struct cb_block_attention *a)
{
    return cb_up32(a->heads * a->value_dim, CB_GROUP_COLUMNS);
}

static float *v_rows(const struct cb_pass *p)
{
    return p->m->scratch.kv + p->tokens * k_stride(&p->l->r.attention);
}

static int step_heads(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const struct cb_layer *l = p->l;
    const struct cb_block_attention *a = &l->r.attention;
    const colibri_model *m = p->m;
    size_t t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        float *k = m->scratch.kv + t * k_stride(a), *v = v_rows(p) + t * v_stride(a);
        size_t position = p->position + t, h;

        shape_heads(p, m->scratch.q + t * q_stride(a), a->heads, l->q_norm, t);
        shape_heads(p, k, a->kv_heads, l->k_norm, t);
        clip(v, a->clip_qkv, (size_t)a->kv_heads * a->value_dim);
        for (h = 0; h < a->kv_heads; h++) {
            uint8_t *cache = p->session->kv;
            int code = store(p, cache + l->k_offset + kv_bytes(m, h, position, a->head_dim),
                             k + h * a->head_dim, a->head_dim);

            if (code == 0)
                code = store(p, cache + l->v_offset + kv_bytes(m, h, position, a->value_dim),
                             v + h * a->value_dim, a->value_dim);
            if (code != 0)
                return code;
        }
    }
    return 0;
}

static void attend(const struct cb_pass *p, size_t head, size_t token, float *scores)
{
    const struct cb_layer *l = p->l;
    const struct cb_block_attention *a = &l->r.attention;
    const colibri_model *m = p->m;
    size_t position = p->position + token, kv_head = head / (a->heads / a->kv_heads);
    size_t from = 0, n;
    const float *q = m->scratch.q + token * q_stride(a) + head * a->head_dim;
    float *out = m->scratch.o + token * o_stride(a) + head * a->value_dim;
    const void *k, *v;

    if (a->window_tokens != 0 && position + 1 > a->window_tokens)
        from = position + 1 - a->window_tokens;
    n = position + 1 - from;
    k = p->session->kv + l->k_offset + kv_bytes(m, kv_head, from, a->head_dim);
    v = p->session->kv + l->v_offset + kv_bytes(m, kv_head, from, a->value_dim);
    if (m->plan.kv == COLIBRI_KV_F16)
        p->k->attend_f16(q, k, v, n, a->head_dim, a->value_dim, a->scale, scores, out);
    else
        p->k->attend_f32(q, k, v, n, a->head_dim, a->value_dim, a->scale, scores, out);
}

/* Heads outside, tokens inside: a thread stays with its heads' part of the cache, and later
 * tokens, which see more positions, are spread evenly. */
static int step_attend(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const struct cb_block_attention *a = &p->l->r.attention;
    size_t used = (size_t)a->heads * a->value_dim, padding = o_stride(a) - used;
    size_t unit, last;

    cb_share(a->heads * p->tokens, index, count, &unit, &last);
    for (; unit < last; unit++) {
        size_t head = unit / p->tokens, token = unit % p->tokens;

        attend(p, head, token, p->m->scratch.scores[index]);
        if (head + 1 == a->heads && padding > 0)
            memset(p->m->scratch.o + token * o_stride(a) + used, 0, padding * sizeof(float));
    }
    return 0;
}

static int step_quantize(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const struct cb_quantized *q = &p->m->scratch.input;
    size_t stride = o_stride(&p->l->r.attention), groups = stride / CB_GROUP_COLUMNS, t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        int code = p->k->quantize(p->m->scratch.o + t * stride, groups, q->q + t * stride,
                                  q->d + t * groups, q->s + t * groups);

        if (code != 0)
            return code;
    }
    return 0;
}

static void set_out(struct cb_pass *p, unsigned i, const struct cb_matrix *w, float *y, size_t stride)
{
    p->out[i].w = w;
    p->out[i].y = y;
    p->out[i].stride = stride;
}

int cb_attention(struct cb_pass *p)
{
    struct cb_layer *l = p->l;
    const struct cb_block_attention *a = &l->r.attention;
    const struct cb_scratch *s = &p->m->scratch;
    int code;

    set_out(p, 0, &l->q, s->q, q_stride(a));
    set_out(p, 1, &l->k, s->kv, k_stride(a));
    set_out(p, 2, &l->v, v_rows(p), v_stride(a));
    p->outs = 3;
    code = cb_pass_project(p, "q, k, v");
    if (code == 0)
        code = cb_pass_run(p, step_heads, p->tokens, "keys and values");
    if (code == 0)
        code = cb_pass_run(p, step_attend, a->heads * p->tokens, "attention");
    if (code == 0 && cb_is_quantized(l->o.dtype))
        code = cb_pass_run(p, step_quantize, p->tokens, "attention output");
    if (code != 0)
        return code;
    p->input.x = s->o;
    p->input.stride = o_stride(a);
    p->input.q = s->input;
    set_out(p, 0, &l->o, s->accumulator, p->m->shape.hidden);
    p->outs = 1;
    return cb_pass_project(p, "attention projection");
}
