/* SPDX-License-Identifier: MIT */
#include "residency.h"

#include <stdio.h>
#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"
#include "pass.h"
#include "platform.h"
#include "reader.h"
#include "verify.h"

#define WAIT_MS 50u /* a cancel is seen within */

/* ---- buffers ------------------------------------------------------------------------------------- */

void cb_residency_take(colibri_model *m)
{
    const struct cb_shape *s = &m->shape;
    struct cb_residency *r = &m->residency;
    struct cb_arena *a = &m->arena;
    uint32_t slots = m->plan.expert_slots;
    void *cache;

    if (!cb_is_streamed(m))
        return;
    cb_take_quantized(a, &r->grouped, (uint64_t)m->plan.batch_tokens * s->top_k, s->hidden);
    r->needs = cb_take(a, "needs", CB_PLAN_NEED_BYTES * (uint64_t)s->experts);
    r->ahead.normed = cb_take(a, "normed", 4 * (uint64_t)s->hidden);
    cb_take_quantized(a, &r->ahead.input, 1, s->hidden);
    r->ahead.logits = cb_take(a, "logits", 4 * cb_up(s->experts, 8));
    r->ahead.ids = cb_take(a, "ids", 4 * (uint64_t)s->top_k);
    r->reader = cb_take(a, "reader", CB_PLAN_READER_BYTES);
    r->reads = cb_take(a, "reads", CB_PLAN_READ_BYTES * (uint64_t)slots);
    cache = cb_take(a, "expert cache", cb_cache_bytes(s->layers, s->experts, slots));
    if (!a->overflow)
        cb_cache_init(&r->cache, cache, s->layers, s->experts, slots);
}

/* ---- reads --------------------------------------------------------------------------------------- */

/* Fill a slot with an expert; pinned until the read is taken back. */
static void submit(colibri_model *m, uint32_t slot, uint32_t layer, uint32_t expert, int ahead)
{
    const struct cb_layer *l = cb_model_layer(m, layer);
    struct cb_residency *r = &m->residency;
    struct cb_read *read = &r->reads[slot];

    if (read->ahead)
        r->stats.prefetch_wasted++; /* the tenant that goes was never needed */
    read->to = r->slots + slot * r->slot_bytes;
    read->extent = l->expert_extent + expert;
    read->offset = l->expert_offset + expert * l->expert_stride;
    read->bytes = l->expert_stride;
    cb_guards_poison(&m->arena.guards, read->to, r->slot_bytes);
    read->ahead = ahead != 0;
    read->wanted = !ahead;
    r->unsettled += read->wanted;
    read->verify = 0;
    if (!m->verified[read->extent])
        read->verify = CB_VERIFY_HASHES | CB_VERIFY_VALUES;
    else if (r->verify != COLIBRI_VERIFY_FIRST)
        read->verify = CB_VERIFY_HASHES; /* what was hashed holds the values that were looked at */
    cb_cache_pin(&r->cache, slot);
    r->in_flight++;
    r->events++;
    if (ahead)
        r->stats.prefetch_reads++;
    cb_reader_submit(r->reader, slot);
}

/* Take back what is over. A slot whose read failed is empty; its `verdict` stays. */
static void collect(colibri_model *m)
{
    struct cb_residency *r = &m->residency;
    uint32_t slot;

    while ((slot = cb_reader_take(r->reader)) != CB_NONE_INDEX) {
        struct cb_read *read = &r->reads[slot];

        r->in_flight--;
        r->events++;
        r->unsettled -= read->wanted;
        cb_cache_unpin(&r->cache, slot);
        if (read->verdict.code == 0) {
            read->wanted = 0;
            cb_verify_mark(m, read->extent);
            continue;
        }
        if (read->cause == CB_READ_CANCELLED) {
            r->stats.prefetch_reads--;
        } else {
            r->suspect = 1;
            if (read->wanted && (r->bad.verdict.code == 0 || read->extent < r->bad.extent))
                memcpy(&r->bad, read, sizeof r->bad);
        }
        read->ahead = 0;
        read->wanted = 0;
        cb_cache_drop(&r->cache, slot);
    }
}

static int fail_read(const colibri_model *m, const struct cb_read *read, colibri_error *error)
{
    struct cb_extent e;
    int64_t at = (int64_t)(read->offset + read->verdict.offset);

    cb_directory_extent(&m->directory, read->extent, &e);
    if (read->cause == CB_READ_DATA)
        return cb_verify_fail(m, read->extent, &read->verdict, error);
    if (read->cause == CB_READ_END)
        return cb_fail(error, COLIBRI_ERR_TRUNCATED, at,
                       "Prefetch failed: invalid chunk offset 0x%llx: the file ends inside the expert "
                       "extent of layer %d, expert %d; put the file back and try again",
                       (unsigned long long)at, (int)e.layer, (int)e.expert);
    return cb_fail(error, COLIBRI_ERR_IO, at,
                   "cannot read offset %lld, in the expert extent of layer %d, expert %d: %s; check "
                   "the storage and try again",
                   (long long)at, (int)e.layer, (int)e.expert, strerror(read->number));
}

/* Once nothing is in flight: the file that failed may have been replaced by a good one. */
static void recover(colibri_model *m)
{
    struct cb_residency *r = &m->residency;
    uint32_t i;

    if (!r->suspect || r->in_flight > 0)
        return;
    r->suspect = 0;
    if (!cb_reader_reopen(r->reader, m->container.bytes, m->container.root))
        return;
    /* Its root is the same, its experts may not be: what was verified is verified again. */
    for (i = 1 + m->block.layers; i < m->directory.extent_count; i++) {
        m->verified_count -= m->verified[i];
        m->verified[i] = 0;
    }
}

static void wait_for_storage(colibri_model *m)
{
    uint64_t start = cb_now_ns();

    cb_reader_wait(m->residency.reader, WAIT_MS);
    m->residency.stats.io_wait_ns += cb_now_ns() - start;
}

/* Patience with storage: begins again with every read that ends or begins. */
struct patience {
    uint64_t since;
    uint32_t events;
};

/* IO, naming the first extent whose read is not over, when nothing happened for too long. */
static int wait_in_time(colibri_model *m, struct patience *patience, colibri_error *error)
{
    struct cb_residency *r = &m->residency;
    const struct cb_read *read = NULL;
    struct cb_extent e;
    uint32_t i;

    if (patience->since == 0 || patience->events != r->events) {
        patience->since = cb_now_ns();
        patience->events = r->events;
    }
    wait_for_storage(m);
    if (r->in_flight == 0 || cb_now_ns() - patience->since <= r->stall_ns)
        return 0;
    for (i = 0; i < m->plan.expert_slots; i++) {
        if (r->reads[i].busy && (read == NULL || r->reads[i].extent < read->extent))
            read = &r->reads[i];
    }
    if (read == NULL)
        return 0;
    cb_directory_extent(&m->directory, read->extent, &e);
    return cb_fail(error, COLIBRI_ERR_IO, (int64_t)read->offset,
                   "storage does not answer for %llu ms, in the expert extent of layer %d, expert %d; "
                   "check it and try again",
                   (unsigned long long)(r->stall_ns / 1000000u), (int)e.layer, (int)e.expert);
}

int cb_residency_quiet(colibri_model *m, colibri_error *error)
{
    struct patience patience = {0, 0};
    int code = 0;

    cb_reader_cancel_ahead(m->residency.reader);
    collect(m);
    while (code == 0 && m->residency.in_flight > 0) {
        code = wait_in_time(m, &patience, error);
        collect(m);
    }
    return code;
}

/* ---- look-ahead ---------------------------------------------------------------------------------- */

#define ONE 65536u      /* of cb_look_value.accuracy */
#define SAMPLING 16u    /* reads ahead that do not pay are thought of again every so many layers */
#define CREDIT_LAYERS 256u

static void average(uint64_t *value, uint64_t sample)
{
    *value = *value == 0 ? sample : *value - *value / 8 + sample / 8;
}

static struct cb_look_value *look_value(struct cb_pass *p)
{
    return &p->m->residency.ahead.value[p->tokens > 1];
}

/* A layer begins: were the guesses right? Guesses that were not read count as well. */
static void learn(struct cb_pass *p)
{
    struct cb_look_ahead *a = &p->m->residency.ahead;
    const uint32_t *starts = p->m->scratch.starts;
    struct cb_look_value *v = look_value(p);
    uint32_t right = 0, i;

    if (a->layer == p->l->r.layer.index && a->guesses > 0) {
        for (i = 0; i < a->guesses; i++)
            right += starts[a->ids[i] + 1] > starts[a->ids[i]];
        v->accuracy = v->accuracy - v->accuracy / 16 + right * (ONE / 16) / a->guesses;
    }
    a->layer = CB_NONE_INDEX;
}

/* The first read of a layer begins: storage was idle until now. */
static void measure_window(struct cb_pass *p)
{
    struct cb_look_ahead *a = &p->m->residency.ahead;
    uint64_t now = p->m->residency.burst_ns;

    a->credit = CREDIT_LAYERS;
    if (a->idle_from_ns != 0 && now > a->idle_from_ns)
        average(&look_value(p)->window_ns, now - a->idle_from_ns);
    a->idle_from_ns = 0;
}

/* The last read of a layer is over. */
static void measure_reads(struct cb_pass *p)
{
    struct cb_residency *r = &p->m->residency;
    uint64_t now;

    if (r->burst_reads == 0)
        return;
    now = cb_now_ns();
    average(&look_value(p)->read_ns, (now - r->burst_ns) / r->burst_reads);
    r->ahead.idle_from_ns = now;
    r->burst_reads = 0;
}

/*
 * How many guesses are worth a read. A right one saves the part of its read that storage would have
 * idled through; a wrong one delays the reads that are needed by the part that it would not.
 */
static uint32_t worthwhile(const struct cb_look_ahead *a, const struct cb_look_value *v)
{
    uint64_t right = v->accuracy, wrong = ONE - right, left = v->window_ns;
    uint32_t n;

    for (n = 0; n < a->depth && left > 0 && v->read_ns > 0; n++) {
        uint64_t part = cb_min64(left, v->read_ns);

        if (4 * right * part <= 5 * wrong * (v->read_ns - part))
            break;
        left -= part;
    }
    return n;
}

struct look {
    const struct cb_pass *p;
    const struct cb_layer *l;
    struct cb_input input;
};

static int step_look(void *context, unsigned index, unsigned count)
{
    struct look *k = context;
    size_t first, last;

    cb_share(cb_matrix_panels(&k->l->router), index, count, &first, &last);
    cb_matmul(k->p->k, &k->l->router, first, last, &k->input, 0, 1,
              k->p->m->residency.ahead.logits, 0);
    return 0;
}

/* The experts that the next layer's router would choose for the batch's last token as it is now.
 * 0 when a value is not finite: the layers that are computed will say so. */
static int guess(struct cb_pass *p, const struct cb_layer *l)
{
    struct cb_look_ahead *a = &p->m->residency.ahead;
    const struct cb_block_moe *moe = &l->r.moe;
    const struct cb_norm *norm =
        moe->router_input == CB_ROUTER_INPUT_FFN_INPUT ? &l->norms[CB_PRE_FFN] : NULL;
    size_t hidden = p->m->shape.hidden;
    struct look look = {p, l, {a->normed, hidden, a->input}};

    cb_norm(p->k, norm, p->m->scratch.x + (p->tokens - 1) * hidden, p->m->block.hidden, a->normed);
    if (cb_router_quantizes(l) &&
        p->k->quantize(a->normed, hidden / CB_GROUP_COLUMNS, a->input.q, a->input.d, a->input.s) != 0)
        return 0;
    (void)cb_pool_run(&p->m->pool, step_look, &look, cb_matrix_panels(&l->router));
    return cb_router_choose(p->k, l, a->logits, a->ids) == 0;
}

/* Nothing is being read any more and the last experts of this layer are about to be computed. */
static void look_ahead(struct cb_pass *p)
{
    struct cb_residency *r = &p->m->residency;
    struct cb_look_ahead *a = &r->ahead;
    uint32_t next = p->l->r.layer.index + 1, worth, i, n = 0;
    const struct cb_layer *l;

    if (a->depth == 0 || a->credit == 0 || next == p->m->block.layers)
        return;
    l = cb_model_layer(p->m, next);
    worth = worthwhile(a, look_value(p));
    if (l->r.layer.ffn_kind != CB_FFN_MOE || (worth == 0 && a->visits++ % SAMPLING != 0))
        return;
    a->credit--;
    if (!guess(p, l))
        return;
    for (i = 0; i < l->r.moe.top_k && n < a->depth; i++) {
        uint32_t expert = (uint32_t)a->ids[i], slot;

        if (cb_cache_find(&r->cache, next, expert) != CB_NONE_INDEX)
            continue;
        a->ids[n++] = a->ids[i];
        if (n > worth)
            continue;
        slot = cb_cache_assign(&r->cache, next, expert);
        if (slot != CB_NONE_INDEX)
            submit(p->m, slot, next, expert, 1);
    }
    a->layer = next;
    a->guesses = n;
}

/* ---- a batch ------------------------------------------------------------------------------------- */

void cb_experts_begin(struct cb_pass *p)
{
    struct cb_residency *r = &p->m->residency;
    uint32_t i;

    if (!cb_is_streamed(p->m))
        return;
    cb_cache_step(&r->cache);
    /* Reads of the call that failed may still be under way in the old file. */
    if (r->suspect && cb_residency_quiet(p->m, NULL) == 0)
        recover(p->m);
    r->bad.verdict.code = 0;
    /* What a call that was cancelled left behind is of no concern to this one, until it asks. */
    for (i = 0; r->unsettled > 0 && i < p->m->plan.expert_slots; i++) {
        r->unsettled -= r->reads[i].wanted && r->reads[i].busy;
        r->reads[i].wanted = 0;
    }
}

int cb_experts_settle(struct cb_pass *p, int code)
{
    struct cb_residency *r = &p->m->residency;
    struct patience patience = {0, 0};

    /* Values that are not finite may come from bytes that are about to be refused. */
    if (!cb_is_streamed(p->m) || (code != 0 && code != COLIBRI_ERR_NON_FINITE))
        return code;
    collect(p->m);
    while (r->unsettled > 0) {
        int late = wait_in_time(p->m, &patience, p->error);

        if (late != 0)
            return late;
        collect(p->m);
    }
    return r->bad.verdict.code != 0 ? fail_read(p->m, &r->bad, p->error) : code;
}

/* ---- the experts of a layer ---------------------------------------------------------------------- */

/* Give slots to missing experts, as far as there are slots that nothing holds. */
static void submit_missing(struct cb_pass *p)
{
    struct cb_residency *r = &p->m->residency;
    uint32_t layer = p->l->r.layer.index, i;

    for (i = 0; i < r->need_count; i++) {
        struct cb_need *n = &r->needs[i];

        if (n->state != CB_NEED_MISSING)
            continue;
        n->slot = cb_cache_assign(&r->cache, layer, n->expert);
        if (n->slot == CB_NONE_INDEX)
            return;
        cb_cache_pin(&r->cache, n->slot);
        cb_cache_used(&r->cache, n->slot);
        submit(p->m, n->slot, layer, n->expert, 0);
        n->state = CB_NEED_LOADING;
        r->burst_reads++;
    }
}

void cb_experts_need(struct cb_pass *p)
{
    struct cb_residency *r = &p->m->residency;
    const uint32_t *starts = p->m->scratch.starts;
    uint32_t layer = p->l->r.layer.index, e;

    collect(p->m);
    learn(p);
    if (r->in_flight > 0)
        cb_reader_cancel_ahead(r->reader);
    collect(p->m);
    recover(p->m);
    r->need_count = 0;
    for (e = 0; e < p->l->r.moe.experts; e++) {
        struct cb_need *n = &r->needs[r->need_count];
        struct cb_read *read;

        if (starts[e + 1] == starts[e])
            continue;
        r->need_count++;
        n->expert = e;
        n->state = CB_NEED_MISSING;
        n->slot = cb_cache_find(&r->cache, layer, e);
        if (n->slot == CB_NONE_INDEX) {
            r->stats.misses++;
            continue;
        }
        read = &r->reads[n->slot];
        r->stats.hits++;
        r->stats.prefetch_hits += read->ahead;
        read->ahead = 0;
        cb_cache_pin(&r->cache, n->slot);
        cb_cache_used(&r->cache, n->slot);
        n->state = read->busy ? CB_NEED_LOADING : CB_NEED_READY;
        if (read->busy && !read->wanted) {
            read->wanted = 1;
            r->unsettled++;
        }
    }
    r->burst_reads = 0;
    r->burst_ns = cb_now_ns();
    submit_missing(p);
    if (r->burst_reads > 0)
        measure_window(p);
}

/* Experts whose reads are over become ready. */
static int look_at_reads(struct cb_pass *p, uint32_t *ready, uint32_t *left)
{
    struct cb_residency *r = &p->m->residency;
    uint32_t i;

    if (r->bad.verdict.code != 0)
        return fail_read(p->m, &r->bad, p->error);
    *ready = 0;
    *left = 0;
    for (i = 0; i < r->need_count; i++) {
        struct cb_need *n = &r->needs[i];

        if (n->state == CB_NEED_LOADING &&
            atomic_load_explicit(&r->reads[n->slot].loaded, memory_order_acquire))
            n->state = CB_NEED_READY;
        *ready += n->state == CB_NEED_READY;
        *left += n->state != CB_NEED_DONE;
    }
    return 0;
}

int cb_experts_wave(struct cb_pass *p, uint32_t *running)
{
    struct cb_residency *r = &p->m->residency;
    struct patience patience = {0, 0};
    uint32_t left = 0, i;

    for (;;) {
        int code;

        collect(p->m);
        code = look_at_reads(p, running, &left);
        if (code != 0)
            return code;
        if (*running > 0 || left == 0)
            break;
        if (atomic_load_explicit(&p->session->cancel, memory_order_relaxed) != 0)
            return cb_deny(p->error, COLIBRI_ERR_CANCELLED,
                           "cancelled in layer %u, waiting for storage; the sequence is as before "
                           "the call",
                           p->l->r.layer.index);
        submit_missing(p);
        code = wait_in_time(p->m, &patience, p->error);
        if (code != 0)
            return code;
    }
    for (i = 0; i < r->need_count; i++) {
        if (r->needs[i].state == CB_NEED_READY)
            r->needs[i].state = CB_NEED_RUNNING;
    }
    if (*running == left && left > 0) {
        measure_reads(p);
        look_ahead(p);
    }
    return 0;
}

void cb_experts_release(struct cb_pass *p, int failed)
{
    struct cb_residency *r = &p->m->residency;
    uint32_t i;

    for (i = 0; i < r->need_count; i++) {
        struct cb_need *n = &r->needs[i];

        if (n->state == CB_NEED_DONE || (!failed && n->state != CB_NEED_RUNNING))
            continue;
        if (n->state != CB_NEED_MISSING)
            cb_cache_unpin(&r->cache, n->slot);
        n->state = CB_NEED_DONE;
    }
    if (failed)
        r->need_count = 0;
    else
        submit_missing(p);
}

/* ---- guards -------------------------------------------------------------------------------------- */

/* mprotect splits a mapping in three at most; only one layer is open at a time. */
#define GUARD_SPARE_MAPPINGS 128u

int cb_residency_guard(colibri_model *m, colibri_error *error)
{
    const struct cb_section *experts = &m->container.sections[CB_SECTION_EXPERTS];
    struct cb_residency *r = &m->residency;
    size_t page = cb_page_bytes();
    uint64_t first = cb_up(experts->offset, page), last = (experts->offset + experts->size) / page * page;
    uint64_t need = 2 * (uint64_t)m->shape.experts + GUARD_SPARE_MAPPINGS, limit = cb_map_count_limit();
    int number;

    if (m->plan.residency != COLIBRI_RESIDENCY_MAPPED_GUARDED || first >= last)
        return 0;
    r->guard_first = m->file.base + first;
    r->guard_last = m->file.base + last;
    r->guard_layers = limit < need;
    if (r->guard_layers)
        (void)snprintf(r->message, sizeof r->message,
                       "vm.max_map_count is %llu, a guard for each expert needs %llu: the experts of "
                       "a layer are opened together",
                       (unsigned long long)limit, (unsigned long long)need);
    number = cb_protect(r->guard_first, (size_t)(last - first), 0);
    if (number != 0)
        return cb_deny(error, COLIBRI_ERR_MEMORY, "cannot guard the experts: mprotect: %s",
                       strerror(number));
    return 0;
}

/* Experts [first, last) of a layer, and what shares their pages. */
static int protect_range(const struct cb_pass *p, uint32_t first, uint32_t last, int readable)
{
    const struct cb_residency *r = &p->m->residency;
    size_t page = cb_page_bytes();
    uint64_t from = (p->l->expert_offset + first * p->l->expert_stride) / page * page;
    uint64_t to = cb_up(p->l->expert_offset + last * p->l->expert_stride, page);

    from = cb_max64(from, (uint64_t)(r->guard_first - p->m->file.base));
    to = cb_min64(to, (uint64_t)(r->guard_last - p->m->file.base));
    return from < to ? cb_protect(p->m->file.base + from, (size_t)(to - from), readable) : 0;
}

int cb_experts_guard(struct cb_pass *p, int readable)
{
    const struct cb_residency *r = &p->m->residency;
    const uint32_t *starts = p->m->scratch.starts;
    uint32_t experts = p->l->r.moe.experts, e, first;
    int number = 0;

    if (r->guard_first == NULL)
        return 0;
    for (e = 0; e < experts && number == 0; e++) {
        if (starts[e + 1] == starts[e] && !r->guard_layers)
            continue;
        for (first = e; e < experts && (starts[e + 1] > starts[e] || r->guard_layers); e++)
            ;
        number = protect_range(p, first, e, readable);
    }
    if (number != 0)
        return cb_deny(p->error, COLIBRI_ERR_MEMORY,
                       "layer %u: mprotect of its experts: %s; raise vm.max_map_count or use another "
                       "residency",
                       p->l->r.layer.index, strerror(number));
    return 0;
}

/* ---- open ---------------------------------------------------------------------------------------- */

static void describe_reader(struct cb_residency *r)
{
    if (r->direct_errno != 0)
        (void)snprintf(r->message, sizeof r->message,
                       "O_DIRECT is not to be had (%s): experts are read through the page cache%s%s",
                       strerror(r->direct_errno),
                       r->reader->advice_errno != 0 ? ", which cannot be told to forget them: " : "",
                       r->reader->advice_errno != 0 ? strerror(r->reader->advice_errno) : "");
    else if (r->reader->direct < 0 && r->reader->advice_errno != 0)
        (void)snprintf(r->message, sizeof r->message,
                       "the page cache cannot be told to forget experts that were read: %s",
                       strerror(r->reader->advice_errno));
}

static int start_stream(colibri_model *m, int *fd, const char *path,
                        const colibri_model_options *options, colibri_error *error)
{
    struct cb_residency *r = &m->residency;
    int code;

    r->slots = m->arena.mapping.base + m->arena.mapping.bytes - (size_t)m->plan.slots_bytes;
    r->slot_bytes = m->plan.slot_bytes;
    r->stall_ns = (uint64_t)options->stall_ms * 1000000u;
    r->ahead.depth = options->prefetch_depth;
    r->ahead.layer = CB_NONE_INDEX;
    r->reader->reads = r->reads;
    code = cb_reader_start(r->reader, m, *fd, path, options->direct_io, m->plan.io_threads,
                           m->container.sections[CB_SECTION_EXPERTS].offset, r->slots,
                           &r->direct_errno, error);
    *fd = -1;
    describe_reader(r);
    return code;
}

int cb_residency_start(colibri_model *m, int *fd, const char *path,
                       const colibri_model_options *options, colibri_error *error)
{
    struct cb_residency *r = &m->residency;

    r->mode = m->plan.residency;
    r->verify = options->verify;
    if (r->verify == COLIBRI_VERIFY_AUTO)
        r->verify = cb_is_streamed(m) ? COLIBRI_VERIFY_ALWAYS : COLIBRI_VERIFY_FIRST;
    return cb_is_streamed(m) ? start_stream(m, fd, path, options, error) : 0;
}

void cb_residency_stop(colibri_model *m)
{
    if (m->residency.reader != NULL)
        cb_reader_stop(m->residency.reader);
}

/* Every expert passes through the slots once. Reads are begun in the order of the file, and all that
 * were begun are waited for, so the extent that is named is the first bad one. */
int cb_residency_verify(colibri_model *m, colibri_error *error)
{
    struct cb_residency *r = &m->residency;
    struct patience patience = {0, 0};
    uint32_t layer = 0, expert = 0;
    int code = 0;

    while (code == 0 && layer < m->block.layers && r->bad.verdict.code == 0) {
        const struct cb_layer_records *l = &cb_model_layer(m, layer)->r;
        uint32_t slot;

        if (l->layer.ffn_kind != CB_FFN_MOE || expert == l->moe.experts) {
            layer++;
            expert = 0;
            continue;
        }
        slot = cb_cache_assign(&r->cache, layer, expert);
        if (slot == CB_NONE_INDEX)
            code = wait_in_time(m, &patience, error);
        else
            submit(m, slot, layer, expert++, 0);
        collect(m);
    }
    if (code == 0)
        code = cb_residency_quiet(m, error);
    if (code != 0)
        return code;
    return r->bad.verdict.code != 0 ? fail_read(m, &r->bad, error) : 0;
}

void cb_residency_read_stats(const colibri_model *m, colibri_residency_stats *stats)
{
    const struct cb_residency *r = &m->residency;

    *stats = r->stats;
    stats->struct_size = sizeof *stats;
    stats->barriers = m->pool.barriers;
    if (r->reader != NULL)
        cb_reader_read_stats(r->reader, stats);
}
