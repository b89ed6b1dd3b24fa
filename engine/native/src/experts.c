/* SPDX-License-Identifier: MIT */
/*
 * Experts. The choices of a batch are grouped by expert, so that each expert's weights are read
 * once per batch: a choice (token, rank) gets a slot, the slots of one expert are neighbours.
 * Outputs are kept per slot and summed in rank order, whatever order they were computed in.
 */
#include <string.h>

#include "common.h"
#include "pass.h"
#include "verify.h"

int cb_mlp_quantizes(const struct cb_mlp *mlp)
{
    return cb_is_quantized(mlp->up.dtype) || (mlp->gated && cb_is_quantized(mlp->gate.dtype));
}

/* ---- slots ------------------------------------------------------------------------------------- */

static int is_skipped(const struct cb_block_moe *moe, float weight)
{
    return moe->threshold != 0.0f && weight < moe->threshold;
}

/* A counting sort of the choices by expert; equal experts keep the order of their tokens. */
static void assign_slots(struct cb_pass *p)
{
    const struct cb_block_moe *moe = &p->l->r.moe;
    const struct cb_scratch *s = &p->m->scratch;
    size_t choices = p->tokens * moe->top_k, i;
    uint32_t sum = 0, e;

    memset(s->starts, 0, (moe->experts + 1) * sizeof *s->starts);
    for (i = 0; i < choices; i++) {
        if (!is_skipped(moe, s->weights[i]))
            s->starts[s->ids[i]]++;
    }
    for (e = 0; e <= moe->experts; e++) {
        uint32_t n = s->starts[e];

        s->starts[e] = sum;
        sum += n;
    }
    for (i = 0; i < choices; i++) {
        s->slots[i] = CB_NONE_INDEX;
        if (is_skipped(moe, s->weights[i]))
            continue;
        s->slots[i] = s->starts[s->ids[i]]++;
        s->tokens[s->slots[i]] = (uint32_t)(i / moe->top_k);
    }
    /* Every start has moved to the next expert's: move them back. */
    for (e = moe->experts; e > 0; e--)
        s->starts[e] = s->starts[e - 1];
    s->starts[0] = 0;
}

/* The experts of this stage: of the layer, or (stream) the ones that the layer needs. */
struct part {
    uint32_t tokens, slot; /* the choices it computes: [slot, slot + tokens) */
    const uint8_t *base;   /* its extent; NULL for a dense FFN, whose matrices have addresses */
};

static uint32_t part_count(const struct cb_pass *p)
{
    if (p->dense)
        return 1;
    return cb_is_streamed(p->m) ? p->m->residency.need_count : p->l->r.moe.experts;
}

/* tokens 0: nothing to do. */
static struct part part_at(const struct cb_pass *p, uint32_t index)
{
    const struct cb_residency *r = &p->m->residency;
    struct part part = {(uint32_t)p->tokens, 0, NULL};

    if (p->dense)
        return part;
    if (cb_is_streamed(p->m)) {
        const struct cb_need *n = &r->needs[index];

        if (n->state != CB_NEED_RUNNING) {
            part.tokens = 0;
            return part;
        }
        part.base = r->slots + n->slot * r->slot_bytes;
        index = n->expert;
    } else {
        part.base = p->l->experts + index * p->l->expert_stride;
    }
    part.slot = p->m->scratch.starts[index];
    part.tokens = p->m->scratch.starts[index + 1] - part.slot;
    return part;
}

/* Inputs of experts that see several tokens, one after another: in the memory of the outputs, which
 * is free until `down` runs, or (stream, where one expert's `down` runs while the inputs of others
 * are still needed) quantised in memory of their own. Floats may stay: a slot's input and output
 * have the same place. */
static int step_group(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const struct cb_scratch *s = &p->m->scratch;
    size_t hidden = p->m->shape.hidden, groups = hidden / CB_GROUP_COLUMNS, slot, last;

    cb_share(s->starts[p->l->r.moe.experts], index, count, &slot, &last);
    for (; slot < last; slot++) {
        size_t token = s->tokens[slot];

        if (!cb_mlp_quantizes(p->mlp)) {
            memcpy(s->outputs + slot * hidden, p->input.x + token * p->input.stride,
                   hidden * sizeof(float));
            continue;
        }
        memcpy(p->slots.q.q + slot * hidden, p->input.q.q + token * hidden, hidden);
        memcpy(p->slots.q.d + slot * groups, p->input.q.d + token * groups, groups * sizeof(float));
        memcpy(p->slots.q.s + slot * groups, p->input.q.s + token * groups,
               groups * sizeof(int32_t));
    }
    return 0;
}

static int group_inputs(struct cb_pass *p)
{
    const struct cb_scratch *s = &p->m->scratch;
    const struct cb_mlp *mlp = p->mlp;
    size_t hidden = p->m->shape.hidden, slots = s->starts[p->l->r.moe.experts];
    int8_t *q = (int8_t *)(void *)s->outputs;

    p->slots.x = s->outputs;
    p->slots.stride = hidden;
    p->slots.q.q = q;
    p->slots.q.d = (float *)(void *)(q + slots * hidden);
    p->slots.q.s = (int32_t *)(void *)(p->slots.q.d + slots * (hidden / CB_GROUP_COLUMNS));
    if (cb_is_streamed(p->m))
        p->slots.q = p->m->residency.grouped;
    /* One token needs no copy; a gate and an up of different kinds would need two. */
    p->grouped = p->tokens > 1 &&
                 (!mlp->gated || cb_is_quantized(mlp->gate.dtype) == cb_is_quantized(mlp->up.dtype));
    return p->grouped ? cb_pass_run(p, step_group, slots, "expert inputs") : 0;
}

/* ---- the two halves of an expert ---------------------------------------------------------------- */

static struct cb_matrix of_part(const struct part *part, const struct cb_matrix *w)
{
    struct cb_matrix result = *w;

    if (part->base != NULL)
        result.data = part->base + w->offset;
    return result;
}

/* Panels of one of the matrices that read the layer's input, for the slots of one expert. */
static void read_input(const struct cb_pass *p, const struct cb_matrix *w, size_t first, size_t last,
                       size_t slot, size_t count, float *y, size_t stride)
{
    size_t i;

    if (p->grouped && count > 1) {
        cb_matmul(p->k, w, first, last, &p->slots, slot, count, y + slot * stride, stride);
        return;
    }
    for (i = slot; i < slot + count; i++) {
        size_t token = p->dense ? i : p->m->scratch.tokens[i];

        cb_matmul(p->k, w, first, last, &p->input, token, 1, y + i * stride, stride);
    }
}

/* gelu_erf of docs/arithmetic.md, one channel after the other: few families have it. */
static void gelu_erf(float *x, size_t n)
{
    static const float c[] = {0x1.81ec96p-5f, -0x1.a1f422p-3f, 0x1.09cc3p-2f, -0x1.d5206cp-6f,
                              0x1.427c9p-3f,  0x1.0c4b16p-3f,  0x1.19bd08p-3f};
    size_t i, j;

    for (i = 0; i < n; i++) {
        float t = 0.34375f * (x[i] < 0.0f ? -x[i] : x[i]), p = 0.0f, square = x[i] * x[i];

        t = 1.0f / (1.0f + t);
        for (j = 0; j < sizeof c / sizeof c[0]; j++) {
            p = p + c[j];
            p = p * t;
        }
        p = p * cb_exp(-0.5f * square);
        x[i] = x[i] * (x[i] < 0.0f ? p : 1.0f - p);
    }
}

/* Groups [first, last) of 32 inner channels of one expert: gate, up, activation, quantisation. */
static int run_inner(const struct cb_pass *p, const struct part *part, size_t first, size_t last)
{
    const struct cb_mlp *mlp = p->mlp;
    const struct cb_scratch *s = &p->m->scratch;
    struct cb_matrix gate = of_part(part, &mlp->gate), up = of_part(part, &mlp->up);
    size_t width = cb_up32(mlp->intermediate, CB_GROUP_COLUMNS), groups = width / CB_GROUP_COLUMNS;
    size_t panels = cb_matrix_panels(&mlp->up), per_group = CB_GROUP_COLUMNS / CB_PANEL_ROWS;
    size_t from = first * per_group, to = (size_t)cb_min64(last * per_group, panels);
    size_t rows = (size_t)cb_min64(last * CB_GROUP_COLUMNS, panels * CB_PANEL_ROWS) -
                  first * CB_GROUP_COLUMNS;
    size_t all = (last - first) * CB_GROUP_COLUMNS;
    size_t slot = part->slot, end = slot + part->tokens;
    float *hidden = mlp->gated ? s->gate : s->up;
    int kind = (int)mlp->activation;

    if (mlp->gated)
        read_input(p, &gate, from, to, slot, end - slot, s->gate, width);
    read_input(p, &up, from, to, slot, end - slot, s->up, width);
    for (; slot < end; slot++) {
        size_t at = slot * width + first * CB_GROUP_COLUMNS;
        int code;

        if (kind == CB_ACT_GELU_ERF)
            gelu_erf(hidden + at, rows);
        p->k->activate(kind == CB_ACT_GELU_ERF ? CB_ACT_IDENTITY : kind, mlp->clamp, mlp->alpha, hidden + at,
                       mlp->gated ? s->up + at : NULL, rows, hidden + at);
        memset(hidden + at + rows, 0, (all - rows) * sizeof *hidden);
        if (!cb_is_quantized(mlp->down.dtype))
            continue;
        code = p->k->quantize(hidden + at, last - first, s->inner.q + at,
                              s->inner.d + slot * groups + first, s->inner.s + slot * groups + first);
        if (code != 0)
            return code;
    }
    return 0;
}

static void run_outer(const struct cb_pass *p, const struct part *part, size_t first, size_t last)
{
    struct cb_matrix down = of_part(part, &p->mlp->down);
    size_t stride = p->m->shape.hidden;

    cb_matmul(p->k, &down, first, last, &p->inner, part->slot, part->tokens,
              p->m->scratch.outputs + part->slot * stride, stride);
}

/* What one unit (a group of inner rows, or an output panel) of an expert costs: its weights are
 * streamed from memory once, then every token computes on them. */
static uint64_t unit_cost(const struct part *part)
{
    return part->tokens == 0 ? 0 : 2 + (uint64_t)part->tokens;
}

/* Units of this stage per expert. */
static size_t stage_units(const struct cb_pass *p)
{
    if (p->stage == CB_MOE_INNER)
        return cb_up32(p->mlp->intermediate, CB_GROUP_COLUMNS) / CB_GROUP_COLUMNS;
    return cb_matrix_panels(&p->mlp->down);
}

/*
 * Thread `index` of `count`: a contiguous share, by cost, of all units of all experts, ascending,
 * so that each thread reads one ascending stream per expert.
 */
int colibri_moe_forward(void *pass, unsigned index, unsigned count)
{
    struct cb_pass *p = pass;
    size_t units = stage_units(p);
    uint64_t total = 0, begin, end, at = 0;
    uint32_t parts = part_count(p), e;

    for (e = 0; e < parts; e++) {
        struct part part = part_at(p, e);

        total += unit_cost(&part) * units;
    }
    begin = total * index / count;
    end = total * (index + 1) / count;
    for (e = 0; e < parts && at < end; e++) {
        struct part part = part_at(p, e);
        uint64_t cost = unit_cost(&part), next = at + cost * units;
        size_t first, last;
        int code = 0;

        if (cost != 0 && next > begin) {
            /* Units whose first cost unit lies in [begin, end). */
            first = at >= begin ? 0 : (size_t)((begin - at + cost - 1) / cost);
            last = next <= end ? units : (size_t)((end - at + cost - 1) / cost);
            if (first < last && p->stage == CB_MOE_INNER)
                code = run_inner(p, &part, first, last);
            else if (first < last)
                run_outer(p, &part, first, last);
        }
        if (code != 0)
            return code;
        at = next;
    }
    return 0;
}

static int run_mlp(struct cb_pass *p)
{
    const struct cb_scratch *s = &p->m->scratch;
    const struct cb_mlp *mlp = p->mlp;
    int code;

    p->inner.x = mlp->gated ? s->gate : s->up;
    p->inner.stride = cb_up32(mlp->intermediate, CB_GROUP_COLUMNS);
    p->inner.q = s->inner;
    p->stage = CB_MOE_INNER;
    code = cb_pass_run(p, colibri_moe_forward, SIZE_MAX, "experts");
    if (code != 0)
        return code;
    p->stage = CB_MOE_OUTER;
    return cb_pass_run(p, colibri_moe_forward, SIZE_MAX, "experts");
}

int cb_dense(struct cb_pass *p, const struct cb_mlp *mlp)
{
    p->mlp = mlp;
    p->dense = 1;
    p->grouped = 1; /* slots are tokens: the layer's input is in order already */
    p->slots = p->input;
    return run_mlp(p);
}

/* ---- mixture -------------------------------------------------------------------------------------- */

static int step_combine(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const colibri_model *m = p->m;
    const struct cb_scratch *s = &m->scratch;
    size_t stride = m->shape.hidden, hidden = m->block.hidden, k = p->l->r.moe.top_k, t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        float *sum = s->accumulator + t * stride;
        size_t r;

        memset(sum, 0, hidden * sizeof *sum);
        for (r = t * k; r < (t + 1) * k; r++) {
            if (s->slots[r] != CB_NONE_INDEX)
                p->k->add_scaled(sum, s->weights[r], s->outputs + s->slots[r] * stride, hidden);
        }
    }
    return 0;
}

static int step_add_shared(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const colibri_model *m = p->m;
    const struct cb_scratch *s = &m->scratch;
    size_t stride = m->shape.hidden, t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        float g = 1.0f;

        if (p->l->r.shared.gate == CB_SHARED_GATE_SIGMOID)
            g = cb_sigmoid(s->router[t * CB_PANEL_ROWS]);
        p->k->add_scaled(s->accumulator + t * stride, g, s->outputs + t * stride, m->block.hidden);
    }
    return 0;
}

static int add_shared(struct cb_pass *p)
{
    int code;

    if (!p->l->r.has_shared)
        return 0;
    code = cb_dense(p, &p->l->shared);
    if (code == 0 && p->l->r.shared.gate == CB_SHARED_GATE_SIGMOID) {
        cb_pass_out(p, &p->l->shared_router, p->m->scratch.router, CB_PANEL_ROWS);
        code = cb_pass_project(p, "shared router");
    }
    if (code == 0)
        code = cb_pass_run(p, step_add_shared, p->tokens, "shared expert");
    return code;
}

static int verify_chosen(struct cb_pass *p)
{
    const uint32_t *starts = p->m->scratch.starts;
    int again = p->m->residency.verify != COLIBRI_VERIFY_FIRST &&
                p->m->plan.residency != COLIBRI_RESIDENCY_RESIDENT;
    uint32_t e;

    for (e = 0; e < p->l->r.moe.experts; e++) {
        int code;

        if (starts[e + 1] == starts[e])
            continue;
        code = again ? cb_verify_again(p->m, p->l->expert_extent + e, p->error)
                     : cb_verify_extent(p->m, p->l->expert_extent + e, p->error);
        if (code != 0)
            return code;
    }
    return 0;
}

/* Experts in the mapped file: all at once. */
static int run_mapped(struct cb_pass *p)
{
    int code = cb_experts_guard(p, 1), closed;

    if (code == 0)
        code = verify_chosen(p);
    if (code == 0)
        code = group_inputs(p);
    if (code == 0)
        code = run_mlp(p);
    closed = cb_experts_guard(p, 0);
    return code != 0 ? code : closed;
}

/* Experts in slots: the ones that are there while the others load. */
static int run_streamed(struct cb_pass *p)
{
    uint32_t running = 0;
    int code;

    cb_experts_need(p);
    code = group_inputs(p);
    while (code == 0) {
        code = cb_experts_wave(p, &running);
        if (code != 0 || running == 0)
            break;
        code = run_mlp(p);
        if (code == 0)
            cb_experts_release(p, 0);
    }
    if (code != 0)
        cb_experts_release(p, 1);
    return code;
}

int cb_moe(struct cb_pass *p)
{
    int code;

    p->mlp = &p->l->mlp;
    p->dense = 0;
    assign_slots(p);
    code = cb_is_streamed(p->m) ? run_streamed(p) : run_mapped(p);
    if (code == 0)
        code = cb_pass_run(p, step_combine, p->tokens, "expert sum");
    if (code == 0)
        code = add_shared(p);
    return code;
}
