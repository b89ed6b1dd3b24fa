/* SPDX-License-Identifier: MIT */
#include "plan.h"

#include <string.h>

#include "arena.h"
#include "common.h"
#include "error.h"
#include "expert_cache.h"
#include "platform.h"

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
    const struct cb_block_attention *a = &l->attention; /* zero where there is none, as the others */
    const struct cb_block_mla *mla = &l->mla;

    s->q = max32(s->q, groups(a->heads * a->head_dim));
    s->o = max32(s->o, groups(a->heads * a->value_dim));
    s->o = max32(s->o, groups(mla->q_rank) + groups(mla->kv_rank) + groups(mla->kv_rank + mla->rope_dim));
    s->o = max32(s->o, groups(l->short_conv.width));
    s->kv = max32(s->kv, groups(a->kv_heads * a->head_dim) + groups(a->kv_heads * a->value_dim));
    s->kv = max32(s->kv, groups(3 * l->short_conv.width));
    s->sinks |= a->sinks;
    s->states += cb_conv_state_bytes(&l->short_conv);
    if (l->layer.ffn_kind == CB_FFN_DENSE)
        s->inner = max32(s->inner, groups(l->ffn.intermediate));
    if (l->layer.ffn_kind == CB_FFN_MOE) {
        s->inner = max32(s->inner, l->moe.top_k * groups(l->moe.intermediate));
        s->experts = max32(s->experts, l->moe.experts);
        s->top_k = max32(s->top_k, l->moe.top_k);
        s->extents += l->moe.experts;
        s->slots += l->moe.experts;
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

void cb_shape_measure_slots(struct cb_shape *s, const struct cb_directory *d)
{
    uint32_t i;

    s->slot_bytes = 0;
    for (i = 0; i < d->extent_count; i++) {
        struct cb_extent e;

        cb_directory_extent(d, i, &e);
        if (e.kind == CB_EXTENT_EXPERT)
            s->slot_bytes = cb_max64(s->slot_bytes, e.size + cb_chunk_table_bytes(e.size));
    }
}

static int plan_kv(colibri_plan *p, const struct cb_shape *s, const struct cb_file_sizes *sizes,
                   const uint8_t *records, colibri_error *error)
{
    uint64_t row = (uint64_t)p->context_tokens * cb_kv_element_bytes(p->kv);
    struct cb_records r;
    struct cb_layer_records l;
    uint32_t i;
    int code = cb_records_begin(&r, records, (size_t)sizes->records, 0, error);

    p->kv_bytes = s->states == 0 ? 0 : 2 * cb_buffer_bytes(s->states);
    for (i = 0; code == 0 && i < r.model.layers; i++) {
        code = cb_records_next(&r, &l, error);
        if (code == 0 && l.attention.heads != 0)
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
                       cb_buffer_bytes(4 * s->layers * choices) + /* routing */
                       cb_buffer_bytes(4 * (uint64_t)p->context_tokens); /* ids */

    p->activation_bytes =
        p->max_sessions * session +
        2 * cb_buffer_bytes(4 * b * s->hidden) +          /* x, normed */
        cb_buffer_bytes(4 * b * s->q) +                   /* q */
        cb_buffer_bytes(4 * b * s->kv) +                  /* k, v */
        cb_buffer_bytes(4 * b * s->o) +                   /* heads' outputs */
        2 * cb_buffer_bytes(4 * b * s->pairs) +           /* cos, sin */
        cb_buffer_bytes(b * s->input) +                   /* quantised input: values */
        2 * cb_buffer_bytes(4 * b * (s->input / g)) +     /* scales, sums */
        p->threads * cb_buffer_bytes(4 * (p->context_tokens + (uint64_t)s->sinks)) + /* scores */
        cb_buffer_bytes(4 * b * cb_up(s->experts, 8)) +   /* router logits */
        4 * cb_buffer_bytes(4 * choices) +                /* ids, weights, slots, tokens */
        cb_buffer_bytes(4 * ((uint64_t)s->experts + 1)) + /* first slot of an expert */
        2 * cb_buffer_bytes(4 * b * s->inner) +           /* gate, up */
        cb_buffer_bytes(b * s->inner) +                   /* quantised hidden: values */
        2 * cb_buffer_bytes(4 * b * (s->inner / g)) +     /* scales, sums */
        cb_buffer_bytes(4 * choices * s->hidden) +        /* grouped inputs, expert outputs */
        cb_buffer_bytes(4 * b * s->hidden);               /* accumulator */
}

/* What experts in slots add to the row `activation`. */
static uint64_t stream_activation(const colibri_plan *p, const struct cb_shape *s)
{
    uint64_t choices = (uint64_t)p->batch_tokens * s->top_k, g = s->hidden / CB_GROUP_COLUMNS;

    return cb_buffer_bytes(choices * s->hidden) +                    /* grouped inputs: values */
           2 * cb_buffer_bytes(4 * choices * g) +                    /* scales, sums */
           cb_buffer_bytes(CB_PLAN_NEED_BYTES * (uint64_t)s->experts) + /* experts of a layer */
           cb_buffer_bytes(4 * (uint64_t)s->hidden) +                /* look-ahead: normed */
           cb_buffer_bytes(s->hidden) + 2 * cb_buffer_bytes(4 * g) + /* quantised */
           cb_buffer_bytes(4 * cb_up(s->experts, 8)) +               /* router logits */
           cb_buffer_bytes(4 * (uint64_t)s->top_k);                  /* ids */
}

static uint64_t stream_tables(const colibri_plan *p, const struct cb_shape *s)
{
    return cb_buffer_bytes(CB_PLAN_READER_BYTES) +
           cb_buffer_bytes(CB_PLAN_READ_BYTES * (uint64_t)p->expert_slots) +
           cb_buffer_bytes(cb_cache_bytes(s->layers, s->experts, p->expert_slots));
}

/* The rows that depend on the residency mode, which is not AUTO, and their sum. */
static uint64_t plan_rows(colibri_plan *p, const struct cb_shape *s,
                          const struct cb_file_sizes *sizes, const colibri_plan *common)
{
    int stream = p->residency == COLIBRI_RESIDENCY_STREAM;

    p->activation_bytes = common->activation_bytes + (stream ? stream_activation(p, s) : 0);
    p->table_bytes = common->table_bytes + (stream ? stream_tables(p, s) : 0);
    p->mapped_bytes = stream ? p->trunk_mapped_bytes : cb_up(sizes->file, PAGE);
    p->slots_bytes = p->expert_slots * s->slot_bytes;
    p->io_stack_bytes = (uint64_t)p->io_threads * CB_PLAN_STACK_BYTES;
    p->arena_bytes = cb_up(p->kv_bytes + p->activation_bytes + p->table_bytes, PAGE) + p->slots_bytes;
    p->total_bytes = p->mapped_bytes + p->arena_bytes + p->stack_bytes + p->io_stack_bytes;
    p->kernel_bytes = cb_up(p->total_bytes, CB_PLAN_TABLE_SPAN) / 512 + CB_PLAN_KERNEL_BYTES;
    p->total_bytes += p->process_bytes + p->kernel_bytes;
    return p->total_bytes;
}

static uint64_t total_with(const colibri_plan *p, const struct cb_shape *s,
                           const struct cb_file_sizes *sizes, uint32_t residency, uint32_t slots)
{
    colibri_plan other = *p;

    other.residency = residency;
    other.expert_slots = slots;
    if (residency != COLIBRI_RESIDENCY_STREAM)
        other.io_threads = 0;
    return plan_rows(&other, s, sizes, p);
}

/* As many slots as the budget holds, at least one: the total grows with every slot. */
static uint32_t slots_within(const colibri_plan *p, const struct cb_shape *s,
                             const struct cb_file_sizes *sizes, uint64_t budget)
{
    uint32_t low = 1, high = s->slots;

    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;

        if (total_with(p, s, sizes, COLIBRI_RESIDENCY_STREAM, middle) <= budget)
            low = middle;
        else
            high = middle - 1;
    }
    return s->slots == 0 ? 0 : low;
}

/* The mode and the slots that the caller left open. */
static void choose(colibri_plan *p, const struct cb_shape *s, const struct cb_file_sizes *sizes,
                   uint64_t budget)
{
    uint64_t least = total_with(p, s, sizes, COLIBRI_RESIDENCY_STREAM, s->slots > 0);

    p->max_expert_slots = s->slots;
    p->slot_bytes = s->slot_bytes;
    p->recommended_bytes = total_with(p, s, sizes, COLIBRI_RESIDENCY_RESIDENT, 0);
    p->floor_bytes = cb_min64(least, p->recommended_bytes);
    if (p->residency == COLIBRI_RESIDENCY_AUTO) {
        /* A dense model has nothing to stream. */
        int whole = least >= p->recommended_bytes ||
                    (p->expert_slots == 0 && p->recommended_bytes <= budget);

        p->residency = whole && sizes->file <= cb_mapping_limit() ? COLIBRI_RESIDENCY_RESIDENT
                                                                   : COLIBRI_RESIDENCY_STREAM;
    }
    if (p->residency != COLIBRI_RESIDENCY_STREAM) {
        p->expert_slots = 0;
        p->io_threads = 0;
    } else if (p->expert_slots == 0) {
        p->expert_slots = slots_within(p, s, sizes, budget);
    } else if (p->expert_slots > s->slots) {
        p->expert_slots = s->slots;
    }
}

static int refuse(const colibri_plan *p, uint64_t budget, uint32_t text, colibri_error *error)
{
    return cb_deny(error, COLIBRI_ERR_BUDGET,
                   "the plan needs %llu bytes, the budget is %llu, the floor %llu; lower "
                   "context_tokens (%u), batch_tokens (%u), max_text_bytes (%u)%s or raise "
                   "budget_bytes to %llu, if that much is free",
                   (unsigned long long)p->total_bytes, (unsigned long long)budget,
                   (unsigned long long)p->floor_bytes, p->context_tokens, p->batch_tokens, text,
                   p->expert_slots > 1 ? ", expert_slots" : "", (unsigned long long)p->total_bytes);
}

int cb_plan_compute(colibri_plan *p, const struct cb_shape *s, const struct cb_file_sizes *sizes,
                    const uint8_t *records, uint32_t max_text_bytes, uint64_t budget,
                    colibri_error *error)
{
    colibri_plan common;
    int code = plan_kv(p, s, sizes, records, error);

    if (code != 0)
        return code;
    plan_activation(p, s);
    p->struct_size = sizeof *p;
    p->trunk_mapped_bytes = cb_up(sizes->file, PAGE) - sizes->experts;
    p->table_bytes = cb_buffer_bytes(CB_PLAN_MODEL_BYTES) +
                     p->max_sessions * cb_buffer_bytes(CB_PLAN_SESSION_BYTES) +
                     cb_buffer_bytes(sizes->records) + cb_buffer_bytes(sizes->directory) +
                     s->layers * cb_buffer_bytes(CB_PLAN_LAYER_BYTES) +
                     cb_buffer_bytes(s->extents) +
                     cb_buffer_bytes(8 * (uint64_t)s->layers * s->experts);
    if (sizes->has_tokenizer)
        p->table_bytes += cb_buffer_bytes((uint64_t)CB_PLAN_MERGE_BYTES * max_text_bytes);
    p->stack_bytes = (uint64_t)(p->threads - 1) * CB_PLAN_STACK_BYTES;
    p->process_bytes = CB_PLAN_PROCESS_BYTES;
    choose(p, s, sizes, budget);
    common = *p;
    return plan_rows(p, s, sizes, &common) > budget ? refuse(p, budget, max_text_bytes, error) : 0;
}
