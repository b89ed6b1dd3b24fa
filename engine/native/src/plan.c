/* SPDX-License-Identifier: MIT */
#include "plan.h"

#include <string.h>

#include "arena.h"
#include "common.h"
#include "error.h"

#define PAGE 4096u

uint32_t cb_kv_element_bytes(uint32_t kv)
{
    return kv == COLIBRI_KV_F32 ? 4 : 2;
}

static uint32_t max32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t groups(uint32_t columns)
{
    return cb_up32(columns, CB_GROUP_COLUMNS);
}

static void measure_layer(struct cb_shape *s, const struct cb_layer_records *l)
{
    const struct cb_block_attention *a = &l->attention;

    if (l->layer.mixer_kind == CB_MIXER_ATTENTION) {
        s->q = max32(s->q, groups(a->heads * a->head_dim));
        s->o = max32(s->o, groups(a->heads * a->value_dim));
        s->kv = max32(s->kv, groups(a->kv_heads * a->head_dim) + groups(a->kv_heads * a->value_dim));
    }
    if (l->layer.ffn_kind == CB_FFN_DENSE)
        s->inner = max32(s->inner, groups(l->ffn.intermediate));
    if (l->layer.ffn_kind == CB_FFN_MOE) {
        s->inner = max32(s->inner, l->moe.top_k * groups(l->moe.intermediate));
        s->experts = max32(s->experts, l->moe.experts);
        s->top_k = max32(s->top_k, l->moe.top_k);
        s->extents += l->moe.experts;
    }
    if (l->has_shared)
        s->inner = max32(s->inner, groups(l->shared.intermediate));
}

int cb_shape_measure(struct cb_shape *s, const uint8_t *records, size_t bytes, uint64_t file_offset,
                     colibri_error *error)
{
    struct cb_records r;
    struct cb_layer_records l;
    uint32_t i;
    int code = cb_records_begin(&r, records, bytes, file_offset, error);

    memset(s, 0, sizeof *s);
    if (code != 0)
        return code;
    s->hidden = groups(r.model.hidden);
    s->logits = cb_up32(r.model.vocabulary, CB_PANEL_ROWS);
    s->layers = r.model.layers;
    s->context_tokens = r.model.context_tokens;
    s->top_k = 1;
    s->extents = 1 + (uint64_t)r.model.layers;
    for (i = 0; i < r.ropes; i++)
        s->pairs += r.rope[i].block.pairs;
    for (i = 0; i < r.model.layers; i++) {
        code = cb_records_next(&r, &l, error);
        if (code != 0)
            return code;
        measure_layer(s, &l);
    }
    s->input = max32(s->hidden, s->o);
    return 0;
}

static int plan_kv(colibri_plan *p, const struct cb_file_sizes *sizes, const uint8_t *records,
                   colibri_error *error)
{
    uint64_t row = (uint64_t)p->context_tokens * cb_kv_element_bytes(p->kv);
    struct cb_records r;
    struct cb_layer_records l;
    uint32_t i;
    int code = cb_records_begin(&r, records, (size_t)sizes->records, 0, error);

    p->kv_bytes = 0;
    for (i = 0; code == 0 && i < r.model.layers; i++) {
        code = cb_records_next(&r, &l, error);
        if (code == 0 && l.layer.mixer_kind == CB_MIXER_ATTENTION)
            p->kv_bytes += cb_buffer_bytes(l.attention.kv_heads * l.attention.head_dim * row) +
                           cb_buffer_bytes(l.attention.kv_heads * l.attention.value_dim * row);
    }
    p->kv_bytes *= p->max_sessions;
    return code;
}

static void plan_activation(colibri_plan *p, const struct cb_shape *s)
{
    uint64_t b = p->batch_tokens, choices = b * s->top_k, g = CB_GROUP_COLUMNS;
    uint64_t session = cb_buffer_bytes(4 * (uint64_t)s->logits) + /* logits */
                       cb_buffer_bytes(8 * (uint64_t)s->logits) + /* sampler: weight and id */
                       cb_buffer_bytes(4 * s->layers * choices);  /* routing */

    p->activation_bytes =
        p->max_sessions * session +
        2 * cb_buffer_bytes(4 * b * s->hidden) +          /* x, normed */
        cb_buffer_bytes(4 * b * s->q) +                   /* q */
        cb_buffer_bytes(4 * b * s->kv) +                  /* k, v */
        cb_buffer_bytes(4 * b * s->o) +                   /* heads' outputs */
        2 * cb_buffer_bytes(4 * b * s->pairs) +           /* cos, sin */
        cb_buffer_bytes(b * s->input) +                   /* quantised input: values */
        2 * cb_buffer_bytes(4 * b * (s->input / g)) +     /* scales, sums */
        p->threads * cb_buffer_bytes(4 * (uint64_t)p->context_tokens) + /* scores */
        cb_buffer_bytes(4 * b * cb_up(s->experts, 8)) +   /* router logits */
        4 * cb_buffer_bytes(4 * choices) +                /* ids, weights, slots, tokens */
        cb_buffer_bytes(4 * ((uint64_t)s->experts + 1)) + /* first slot of an expert */
        2 * cb_buffer_bytes(4 * b * s->inner) +           /* gate, up */
        cb_buffer_bytes(b * s->inner) +                   /* quantised hidden: values */
        2 * cb_buffer_bytes(4 * b * (s->inner / g)) +     /* scales, sums */
        cb_buffer_bytes(4 * choices * s->hidden) +        /* grouped inputs, expert outputs */
        cb_buffer_bytes(4 * b * s->hidden);               /* accumulator */
}

int cb_plan_compute(colibri_plan *p, const struct cb_shape *s, const struct cb_file_sizes *sizes,
                    const uint8_t *records, uint32_t max_text_bytes, colibri_error *error)
{
    int code = plan_kv(p, sizes, records, error);

    if (code != 0)
        return code;
    plan_activation(p, s);
    p->struct_size = sizeof *p;
    p->mapped_bytes = cb_up(sizes->file, PAGE);
    p->table_bytes = cb_buffer_bytes(CB_PLAN_MODEL_BYTES) +
                     p->max_sessions * cb_buffer_bytes(CB_PLAN_SESSION_BYTES) +
                     cb_buffer_bytes(sizes->records) + cb_buffer_bytes(sizes->directory) +
                     s->layers * cb_buffer_bytes(CB_PLAN_LAYER_BYTES) +
                     cb_buffer_bytes(s->extents) +
                     cb_buffer_bytes(8 * (uint64_t)s->layers * s->experts);
    if (sizes->has_tokenizer)
        p->table_bytes += cb_buffer_bytes((uint64_t)CB_PLAN_MERGE_BYTES * max_text_bytes);
    p->stack_bytes = (uint64_t)(p->threads - 1) * CB_PLAN_STACK_BYTES;
    p->arena_bytes = cb_up(p->kv_bytes + p->activation_bytes + p->table_bytes, PAGE);
    p->process_bytes = CB_PLAN_PROCESS_BYTES;
    p->total_bytes = p->mapped_bytes + p->arena_bytes + p->stack_bytes + p->process_bytes;
    return 0;
}
