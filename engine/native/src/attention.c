/* SPDX-License-Identifier: MIT */
/* Grouped-query attention over the KV cache, [kv_head][position][dim] per layer. Latent attention makes
 * plain heads of its latent vectors first: the cache holds those. */
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

/* RoPE of the channels from x on. */
static void rotate(const struct cb_pass *p, float *x, size_t token)
{
    uint32_t index = p->l->r.attention.rope_table, table;
    const colibri_model *m = p->m;
    size_t at = token * m->shape.pairs;

    if (index == CB_NONE_INDEX)
        return;
    for (table = 0; table < index; table++)
        at += m->rope[table].block.pairs;
    p->k->rope(x, m->scratch.cos + at, m->scratch.sin + at, m->rope[index].block.pairs,
               (int)m->rope[index].block.style);
}

/* Clip, QK norm (or these two the other way), RoPE: what happens to q and k between projection and use. */
static void shape_heads(const struct cb_pass *p, float *x, size_t heads, const float *norm,
                        size_t token)
{
    const struct cb_block_attention *a = &p->l->r.attention;
    size_t dim = a->head_dim, h;

    if (a->qk_norm_kind != CB_QK_NORM_FULL_WIDTH_THEN_CLIP)
        clip(x, a->clip_qkv, heads * dim);
    if (a->qk_norm_kind >= CB_QK_NORM_FULL_WIDTH)
        p->k->rmsnorm(x, norm, heads * dim, a->qk_norm_eps, x);
    if (a->qk_norm_kind == CB_QK_NORM_FULL_WIDTH_THEN_CLIP)
        clip(x, a->clip_qkv, heads * dim);
    for (h = 0; h < heads; h++, x += dim) {
        if (a->qk_norm_kind == CB_QK_NORM_PER_HEAD)
            p->k->rmsnorm(x, norm, dim, a->qk_norm_eps, x);
        rotate(p, x + p->l->r.mla.nope_dim, token); /* 0 where attention is not latent */
    }
}

/* One head's row into the cache, checked finite. */
static int store(const struct cb_pass *p, uint8_t *to, const float *x, size_t n)
{
    size_t i;

    if (p->m->plan.kv == COLIBRI_KV_F16)
        return p->k->store_f16(x, n, (uint16_t *)(void *)to);
    for (i = 0; i < n; i++) {
        if (!cb_is_finite(&x[i]))
            return COLIBRI_ERR_NON_FINITE;
    }
    memcpy(to, x, n * sizeof *x);
    return 0;
}

static size_t q_stride(const struct cb_layer *l)
{
    return cb_up32(l->r.attention.heads * l->r.attention.head_dim, CB_GROUP_COLUMNS);
}

/* Channels of a key that its projection gives: of latent attention, those without RoPE. */
static size_t key_dim(const struct cb_layer *l)
{
    return l->r.mla.heads != 0 ? l->r.mla.nope_dim : l->r.attention.head_dim;
}

static size_t k_stride(const struct cb_layer *l)
{
    return (size_t)cb_up(l->r.attention.kv_heads * key_dim(l), CB_GROUP_COLUMNS);
}

static size_t v_stride(const struct cb_layer *l)
{
    return cb_up32(l->r.attention.kv_heads * l->r.attention.value_dim, CB_GROUP_COLUMNS);
}

static size_t o_stride(const struct cb_layer *l)
{
    return cb_up32(l->r.attention.heads * l->r.attention.value_dim, CB_GROUP_COLUMNS);
}

static float *v_rows(const struct cb_pass *p)
{
    return p->m->scratch.kv + p->tokens * k_stride(p->l);
}

/* What latent attention has before it has heads, in the memory of their outputs: [tokens][q_rank], then
 * [tokens][kv_rank + rope_dim], then [tokens][kv_rank], rows padded to groups. */
static float *latent_rows(const struct cb_pass *p)
{
    return p->m->scratch.o + p->tokens * cb_up32(p->l->r.mla.q_rank, CB_GROUP_COLUMNS);
}

static size_t latent_stride(const struct cb_block_mla *mla)
{
    return cb_up32(mla->kv_rank + mla->rope_dim, CB_GROUP_COLUMNS);
}

static int step_heads(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const struct cb_layer *l = p->l;
    const struct cb_block_attention *a = &l->r.attention;
    const struct cb_block_mla *mla = &l->r.mla;
    const colibri_model *m = p->m;
    size_t dim = key_dim(l), rest = a->head_dim - dim, t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        float *k = m->scratch.kv + t * k_stride(l), *v = v_rows(p) + t * v_stride(l);
        float *rotated = latent_rows(p) + t * latent_stride(mla) + mla->kv_rank;
        size_t position = p->position + t, h;

        shape_heads(p, m->scratch.q + t * q_stride(l), a->heads, l->q_norm, t);
        if (rest > 0)
            rotate(p, rotated, t);
        else
            shape_heads(p, k, a->kv_heads, l->k_norm, t);
        clip(v, a->clip_qkv, (size_t)a->kv_heads * a->value_dim);
        for (h = 0; h < a->kv_heads; h++) {
            uint8_t *cache = p->session->kv;
            uint8_t *key = cache + l->k_offset + kv_bytes(m, h, position, a->head_dim);
            int code = store(p, key, k + h * dim, dim);

            if (code == 0 && rest > 0) /* the same for all heads */
                code = store(p, key + dim * cb_kv_element_bytes(m->plan.kv), rotated, rest);
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
    const float *q = m->scratch.q + token * q_stride(l) + head * a->head_dim;
    const float *sink = l->sinks == NULL ? NULL : l->sinks + head;
    float *out = m->scratch.o + token * o_stride(l) + head * a->value_dim;
    const void *k, *v;

    if (a->window_tokens != 0 && position + 1 > a->window_tokens)
        from = position + 1 - a->window_tokens;
    n = position + 1 - from;
    k = p->session->kv + l->k_offset + kv_bytes(m, kv_head, from, a->head_dim);
    v = p->session->kv + l->v_offset + kv_bytes(m, kv_head, from, a->value_dim);
    if (m->plan.kv == COLIBRI_KV_F16)
        p->k->attend_f16(q, k, v, n, a->head_dim, a->value_dim, a->scale, sink, scores, out);
    else
        p->k->attend_f32(q, k, v, n, a->head_dim, a->value_dim, a->scale, sink, scores, out);
}

/* Heads outside, tokens inside: a thread stays with its heads' part of the cache, and later
 * tokens, which see more positions, are spread evenly. */
static int step_attend(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    size_t unit, last;

    cb_share(p->l->r.attention.heads * p->tokens, index, count, &unit, &last);
    for (; unit < last; unit++)
        attend(p, unit / p->tokens, unit % p->tokens, p->m->scratch.scores[index]);
    return 0;
}

/* q, k and v of latent attention: two products with a norm between them. */
static int project_latent(struct cb_pass *p)
{
    struct cb_layer *l = p->l;
    const struct cb_block_mla *mla = &l->r.mla;
    const struct cb_scratch *s = &p->m->scratch;
    struct cb_norm norm = {l->q_norm, NULL, CB_NORM_RMS, mla->norm_eps};
    size_t stride = latent_stride(mla);
    float *latent = latent_rows(p);
    int code;

    cb_pass_out(p, &l->kv_a, latent, stride);
    if (mla->q_rank == 0)
        cb_pass_out(p, &l->q, s->q, q_stride(l));
    else
        cb_pass_out(p, &l->q_a, s->o, cb_up32(mla->q_rank, CB_GROUP_COLUMNS));
    code = cb_pass_project(p, "latent");
    if (code == 0 && mla->q_rank != 0) {
        code = cb_pass_norm_rows(p, &norm, s->o, cb_up32(mla->q_rank, CB_GROUP_COLUMNS), mla->q_rank, s->o,
                                 cb_is_quantized(l->q.dtype), "latent");
        cb_pass_out(p, &l->q, s->q, q_stride(l));
        if (code == 0)
            code = cb_pass_project(p, "q");
    }
    norm.weight = l->k_norm;
    if (code == 0)
        code = cb_pass_norm_rows(p, &norm, latent, stride, mla->kv_rank, latent + p->tokens * stride,
                                 cb_is_quantized(l->k.dtype) || cb_is_quantized(l->v.dtype), "latent");
    return code;
}

int cb_attention(struct cb_pass *p)
{
    struct cb_layer *l = p->l;
    const struct cb_block_attention *a = &l->r.attention;
    const struct cb_scratch *s = &p->m->scratch;
    int code = 0;

    if (l->r.mla.heads != 0)
        code = project_latent(p);
    else
        cb_pass_out(p, &l->q, s->q, q_stride(l));
    if (code != 0)
        return code;
    cb_pass_out(p, &l->k, s->kv, k_stride(l));
    cb_pass_out(p, &l->v, v_rows(p), v_stride(l));
    code = cb_pass_project(p, "q, k, v");
    if (code == 0)
        code = cb_pass_run(p, step_heads, p->tokens, "keys and values");
    if (code == 0)
        code = cb_pass_run(p, step_attend, a->heads * p->tokens, "attention");
    if (code == 0)
        code = cb_pass_mixed(p, &l->o, s->o, (size_t)a->heads * a->value_dim);
    return code;
}
