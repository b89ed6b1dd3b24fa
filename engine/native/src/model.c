/* SPDX-License-Identifier: MIT */
/* Opening a model: map, check, plan, allocate, bind, verify, lock, start threads. */
#include "model.h"

#include <string.h>

#include "common.h"
#include "error.h"
#include "verify.h"

/* What is known before there is an arena to keep it in. */
struct opening {
    colibri_model_options options;
    struct cb_trust trust;
    struct cb_signed signature;
    const struct cb_kernels *kernels;
    int fd;
    uint64_t file_bytes;
    struct cb_mapping file, tail;
    struct cb_container container;
    struct cb_shape shape;
    struct cb_directory directory;
    colibri_plan plan;
};

static int select_kernels(struct opening *o, colibri_error *error)
{
    o->kernels = cb_kernels_select(o->options.isa);
    if (o->kernels == NULL)
        return cb_deny(error, COLIBRI_ERR_ISA,
                       "instruction set %.32s is not available; this build and CPU run: %s",
                       o->options.isa != NULL ? o->options.isa : "(best)",
                       cb_kernels_available());
    return 0;
}

/* Root, signature, records and directory; on the mapping first, then again on the arena's own
 * copies, so that a file that changes meanwhile cannot show one content to the checks and another to
 * us. */
static int check_tables(const struct cb_container *c, const struct cb_trust *trust,
                        struct cb_signed *signature, const uint8_t *records,
                        const uint8_t *directory, struct cb_shape *shape, struct cb_directory *d,
                        colibri_error *error)
{
    const struct cb_section *r = &c->sections[CB_SECTION_RECORDS];
    const struct cb_section *s = &c->sections[CB_SECTION_DIRECTORY];
    int code = cb_container_check_root(c, records, directory, error);

    if (code == 0) /* before anything of a stranger's file is parsed */
        code = cb_signature_check(c, trust, signature, error);
    if (code == 0)
        code = cb_shape_measure(shape, records, (size_t)r->size, r->offset, error);
    if (code == 0)
        code = cb_directory_open(d, directory, (size_t)s->size, s->offset, error);
    if (code == 0)
        code = cb_directory_check(d, c, records, error);
    if (code == 0)
        cb_shape_measure_slots(shape, d);
    return code;
}

/* The file without its experts: up to them, and what lies behind them. */
static int map_trunk(struct opening *o, colibri_error *error)
{
    struct cb_container *c = &o->container;
    const struct cb_section *experts = &c->sections[CB_SECTION_EXPERTS];
    uint64_t end = experts->offset + experts->size, start = end / cb_page_bytes() * cb_page_bytes();
    int code;

    cb_unmap(&o->file);
    code = cb_map_range(&o->file, o->fd, 0, experts->offset, error);
    if (code == 0 && end < o->file_bytes)
        code = cb_map_range(&o->tail, o->fd, start, o->file_bytes - start, error);
    if (code != 0)
        return code;
    c->map = o->file.base;
    c->tail = o->tail.base != NULL ? o->tail.base + (size_t)(end - start) : NULL;
    c->tail_offset = end;
    return 0;
}

/* All of it. */
static int map_whole(struct opening *o, colibri_error *error)
{
    cb_unmap(&o->file);
    cb_unmap(&o->tail);
    o->container.tail_offset = UINT64_MAX;
    if (cb_map_range(&o->file, o->fd, 0, o->file_bytes, error) != 0)
        return COLIBRI_ERR_MEMORY;
    o->container.map = o->file.base;
    return 0;
}

static int check_file(struct opening *o, const char *path, colibri_error *error)
{
    const struct cb_section *sections = o->container.sections;
    int code = cb_open_file(path, &o->fd, &o->file_bytes, error);

    if (code == 0)
        code = cb_map_range(&o->file, o->fd, 0, cb_min64(o->file_bytes, CB_HEADER_BYTES), error);
    if (code == 0)
        code = cb_container_open(&o->container, o->file.base, o->file_bytes, error);
    if (code == 0)
        code = map_trunk(o, error);
    if (code == 0)
        code = check_tables(&o->container, &o->trust, &o->signature,
                            o->file.base + sections[CB_SECTION_RECORDS].offset,
                            o->file.base + sections[CB_SECTION_DIRECTORY].offset, &o->shape,
                            &o->directory, error);
    if (code == 0)
        code = cb_container_check_padding(&o->container, error);
    return code;
}

/* A choice that is left to the library keeps within what the system has; what was asked for by name
 * keeps within the budget that was given. */
static uint64_t choose_budget(const colibri_model_options *o)
{
    int open_choice = o->residency == COLIBRI_RESIDENCY_AUTO ||
                      (o->residency == COLIBRI_RESIDENCY_STREAM && o->expert_slots == 0);

    if (o->budget_bytes != 0)
        return o->budget_bytes;
    return open_choice ? cb_system_budget() : UINT64_MAX;
}

static int make_plan(struct opening *o, colibri_error *error)
{
    const struct cb_section *sections = o->container.sections;
    struct cb_file_sizes sizes = {o->container.bytes, sections[CB_SECTION_RECORDS].size,
                                  sections[CB_SECTION_DIRECTORY].size,
                                  sections[CB_SECTION_EXPERTS].size,
                                  sections[CB_SECTION_TOKENIZER].present != 0};
    uint32_t limit = o->shape.context_tokens;

    if (o->options.context_tokens > limit)
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "option context_tokens is %u, the model was made for at most %u",
                       o->options.context_tokens, limit);
    o->plan.context_tokens = o->options.context_tokens;
    if (o->plan.context_tokens == 0)
        o->plan.context_tokens = limit < 2048 ? limit : 2048;
    o->plan.batch_tokens = o->options.batch_tokens;
    o->plan.threads = o->options.threads;
    o->plan.max_sessions = o->options.max_sessions;
    o->plan.kv = o->options.kv;
    o->plan.residency = o->options.residency;
    o->plan.expert_slots = o->options.expert_slots;
    o->plan.io_threads = o->options.io_threads;
    return cb_plan_compute(&o->plan, &o->shape, &sizes,
                           o->file.base + sections[CB_SECTION_RECORDS].offset,
                           o->options.max_text_bytes, choose_budget(&o->options), error);
}

/* ---- the arena ------------------------------------------------------------------------------------ */

void cb_take_quantized(struct cb_arena *a, struct cb_quantized *q, uint64_t tokens, uint64_t columns)
{
    q->q = cb_take(a, "q", tokens * columns);
    q->d = cb_take(a, "d", 4 * tokens * (columns / CB_GROUP_COLUMNS));
    q->s = cb_take(a, "s", 4 * tokens * (columns / CB_GROUP_COLUMNS));
    q->groups = (size_t)(columns / CB_GROUP_COLUMNS);
}

static void take_scratch(colibri_model *m)
{
    const struct cb_shape *shape = &m->shape;
    struct cb_scratch *s = &m->scratch;
    struct cb_arena *a = &m->arena;
    uint64_t b = m->plan.batch_tokens, choices = b * shape->top_k;
    uint32_t i;

    s->x = cb_take(a, "x", 4 * b * shape->hidden);
    s->normed = cb_take(a, "normed", 4 * b * shape->hidden);
    s->q = cb_take(a, "q", 4 * b * shape->q);
    s->kv = cb_take(a, "kv", 4 * b * shape->kv);
    s->o = cb_take(a, "o", 4 * b * shape->o);
    s->cos = cb_take(a, "cos", 4 * b * shape->pairs);
    s->sin = cb_take(a, "sin", 4 * b * shape->pairs);
    cb_take_quantized(a, &s->input, b, shape->input);
    for (i = 0; i < m->plan.threads; i++)
        s->scores[i] = cb_take(a, "scores", 4 * (m->plan.context_tokens + (uint64_t)shape->sinks));
    s->router = cb_take(a, "router", 4 * b * cb_up(shape->experts, 8));
    s->ids = cb_take(a, "ids", 4 * choices);
    s->weights = cb_take(a, "weights", 4 * choices);
    s->slots = cb_take(a, "slots", 4 * choices);
    s->tokens = cb_take(a, "tokens", 4 * choices);
    s->starts = cb_take(a, "starts", 4 * ((uint64_t)shape->experts + 1));
    s->gate = cb_take(a, "gate", 4 * b * shape->inner);
    s->up = cb_take(a, "up", 4 * b * shape->inner);
    cb_take_quantized(a, &s->inner, b, shape->inner);
    s->outputs = cb_take(a, "outputs", 4 * choices * shape->hidden);
    s->accumulator = cb_take(a, "accumulator", 4 * b * shape->hidden);
}

/* `count` buffers of the same size, one after another: the first one. */
static uint8_t *take_array(struct cb_arena *a, const char *name, uint32_t count, uint64_t bytes)
{
    uint8_t *first = cb_take(a, name, bytes);

    while (--count > 0)
        (void)cb_take(a, name, bytes);
    return first;
}

static void take_sessions(colibri_model *m)
{
    uint32_t i, layer;

    m->sessions = take_array(&m->arena, "session", m->plan.max_sessions, CB_PLAN_SESSION_BYTES);
    for (i = 0; i < m->plan.max_sessions; i++) {
        colibri_session *s = cb_model_session(m, i);
        size_t start = m->arena.used;
        uint64_t state = 0;

        if (m->arena.overflow)
            return;
        s->model = m;
        s->kv = s->states = s->kept = m->arena.mapping.base + start;
        if (m->shape.states != 0) {
            s->states = cb_take(&m->arena, "states", m->shape.states);
            s->kept = cb_take(&m->arena, "states", m->shape.states);
        }
        for (layer = 0; layer < m->block.layers; layer++) {
            struct cb_layer *l = cb_model_layer(m, layer);
            const struct cb_block_attention *a = &l->r.attention;
            uint64_t row = (uint64_t)m->plan.context_tokens * cb_kv_element_bytes(m->plan.kv);


            if (a->heads == 0) {
                l->k_offset = (size_t)state;
                state += cb_conv_state_bytes(&l->r.short_conv);
                continue;
            }
            l->k_offset = m->arena.used - start; /* the same in every session */
            (void)cb_take(&m->arena, "keys", a->kv_heads * a->head_dim * row);
            l->v_offset = m->arena.used - start;
            (void)cb_take(&m->arena, "values", a->kv_heads * a->value_dim * row);
        }
        s->logits = cb_take(&m->arena, "logits", 4 * (uint64_t)m->shape.logits);
        s->candidates = cb_take(&m->arena, "candidates", 8 * (uint64_t)m->shape.logits);
        s->routing = cb_take(&m->arena, "routing", 4 * (uint64_t)m->block.layers *
                                                       m->plan.batch_tokens * m->shape.top_k);
        s->ids = cb_take(&m->arena, "ids", 4 * (uint64_t)m->plan.context_tokens);
    }
}

static int take_tables(colibri_model *m, struct opening *o, colibri_error *error)
{
    const struct cb_section *rs = &m->container.sections[CB_SECTION_RECORDS];
    const struct cb_section *ds = &m->container.sections[CB_SECTION_DIRECTORY];
    uint8_t *records = cb_take(&m->arena, "records", rs->size);
    uint8_t *directory = cb_take(&m->arena, "directory", ds->size);
    struct cb_records r;
    uint32_t i;
    int code;

    m->layers = take_array(&m->arena, "layer", o->shape.layers, CB_PLAN_LAYER_BYTES);
    m->verified = cb_take(&m->arena, "verified", o->shape.extents);
    m->counts = cb_take(&m->arena, "counts",
                        8 * (uint64_t)o->shape.layers * o->shape.experts);
    if (m->has_tokenizer)
        m->merge_scratch = cb_take(&m->arena, "merge_scratch",
                                   (uint64_t)CB_PLAN_MERGE_BYTES * m->max_text_bytes);
    if (m->arena.overflow)
        return 0; /* reported when all is taken */
    memcpy(records, m->file.base + rs->offset, (size_t)rs->size);
    memcpy(directory, m->file.base + ds->offset, (size_t)ds->size);
    code = check_tables(&m->container, &o->trust, &m->signature, records, directory, &m->shape,
                        &m->directory, error);
    if (code == 0 && memcmp(&m->shape, &o->shape, sizeof m->shape) != 0)
        code = cb_deny(error, COLIBRI_ERR_IO,
                       "the file changed while it was opened; replace files by rename");
    if (code == 0)
        code = cb_records_begin(&r, records, (size_t)rs->size, rs->offset, error);
    if (code != 0)
        return code;
    m->block = r.model;
    m->ropes = r.ropes;
    memcpy(m->rope, r.rope, sizeof m->rope);
    for (i = 0; code == 0 && i < m->block.layers; i++)
        code = cb_records_next(&r, &cb_model_layer(m, i)->r, error);
    return code;
}

/* Everything the plan lists, from one mapping. On success *model owns the file mapping. */
static int allocate(struct opening *o, colibri_model **model, colibri_error *error)
{
    struct cb_arena arena;
    colibri_model *m;
    int code;

    memset(&arena, 0, sizeof arena);
    code = cb_map_anonymous(&arena.mapping, o->plan.arena_bytes, error);
    if (code == 0 && o->options.debug_memory != 0)
        code = cb_guards_begin(&arena.guards, o->plan.arena_bytes, error);
    if (code != 0) {
        cb_unmap(&arena.mapping);
        return code;
    }
    m = cb_take(&arena, "model", CB_PLAN_MODEL_BYTES);
    if (m == NULL) {
        cb_guards_end(&arena.guards);
        cb_unmap(&arena.mapping);
        return cb_deny(error, COLIBRI_ERR_INTERNAL, "the plan has no room for a model");
    }
    m->arena = arena;
    m->container = o->container;
    m->plan = o->plan;
    m->kernels = o->kernels;
    m->lock_policy = o->options.lock;
    m->secure_mode = o->options.secure_mode;
    if (m->secure_mode != 0)
        cb_keep_from_dumps(&arena.mapping);
    m->max_text_bytes = o->options.max_text_bytes;
    m->has_tokenizer = o->container.sections[CB_SECTION_TOKENIZER].present;
    m->file = o->file;
    m->tail = o->tail;
    atomic_flag_clear(&m->busy);
    code = take_tables(m, o, error);
    if (code == 0 && !m->arena.overflow) {
        take_scratch(m);
        take_sessions(m);
        cb_residency_take(m);
    }
    if (code == 0 && (m->arena.overflow || cb_up(m->arena.used, 4096) + m->plan.slots_bytes !=
                                               m->plan.arena_bytes))
        code = cb_deny(error, COLIBRI_ERR_INTERNAL,
                       "the buffers take %zu bytes of a planned arena of %llu", m->arena.used,
                       (unsigned long long)m->plan.arena_bytes);
    if (code != 0) {
        arena = m->arena;
        cb_guards_end(&arena.guards);
        cb_unmap(&arena.mapping);
        return code;
    }
    memset(&o->file, 0, sizeof o->file);
    memset(&o->tail, 0, sizeof o->tail);
    *model = m;
    return 0;
}

/* ---- locking ---------------------------------------------------------------------------------------- */

/* In the mapped modes the kernel decides which pages of the file stay. */
static int is_file_locked(const colibri_model *m)
{
    return m->plan.residency == COLIBRI_RESIDENCY_RESIDENT || cb_is_streamed(m);
}

void cb_model_lock(colibri_model *m)
{
    size_t page = cb_page_bytes();
    size_t trunk = (size_t)cb_min64(m->file.bytes, m->container.sections[CB_SECTION_EXPERTS].offset);
    int held = m->lock.locked >= m->arena.mapping.bytes; /* the arena, which is locked first */

    /* Unlock first: what the kernel counts must be what this call locks. */
    cb_unlock(m->arena.mapping.base, m->arena.mapping.bytes);
    cb_unlock(m->file.base, m->file.bytes);
    cb_unlock(m->tail.base, m->tail.bytes);
    cb_lock_begin(&m->lock);
    if (held && m->lock.available >= 0) /* its pages are here and need no free memory */
        m->lock.available += (int64_t)m->arena.mapping.bytes;
    cb_lock(&m->lock, m->arena.mapping.base, m->arena.mapping.bytes);
    if (is_file_locked(m)) {
        if (trunk < m->file.bytes)
            trunk = trunk / page * page;
        cb_lock(&m->lock, m->file.base, trunk);
        cb_lock(&m->lock, m->file.base + trunk, m->file.bytes - trunk);
        cb_lock(&m->lock, m->tail.base, m->tail.bytes);
    }
    cb_lock_finish(&m->lock);
}

static int apply_lock(colibri_model *m, uint32_t policy, colibri_error *error)
{
    if (policy == COLIBRI_LOCK_OFF) {
        m->lock.unlocked = (uint64_t)m->arena.mapping.bytes;
        if (is_file_locked(m))
            m->lock.unlocked += (uint64_t)m->file.bytes + m->tail.bytes;
        return 0;
    }
    cb_model_lock(m);
    if (policy == COLIBRI_LOCK_REQUIRE && m->lock.unlocked > 0)
        return cb_deny(error, COLIBRI_ERR_LOCK, "%s", m->lock.message);
    return 0;
}

/* ---- open and close --------------------------------------------------------------------------------- */

static int open_tokenizer(colibri_model *m, colibri_error *error)
{
    const struct cb_section *s = &m->container.sections[CB_SECTION_TOKENIZER];
    int code;

    if (!m->has_tokenizer)
        return 0;
    code = cb_verify_section(&m->container, CB_SECTION_TOKENIZER, error);
    if (code == 0)
        code = cb_tokenizer_open(&m->tokenizer, m->file.base + s->offset, (size_t)s->size,
                                 m->block.vocabulary, error);
    return code;
}

static int open_calibration(colibri_model *m, colibri_error *error)
{
    const struct cb_section *s = &m->container.sections[CB_SECTION_CALIBRATION];
    uint32_t i;
    int code;

    if (!s->present)
        return 0;
    code = cb_verify_section(&m->container, CB_SECTION_CALIBRATION, error);
    if (code == 0)
        code = cb_calibration_open(&m->calibration, m->file.base + s->offset, (size_t)s->size,
                                   s->offset, m, error);
    for (i = 0; code == 0 && cb_is_streamed(m) && i < m->block.layers; i++) {
        const uint32_t *counts = cb_calibration_counts(&m->calibration, i);

        if (counts != NULL)
            cb_cache_profile(&m->residency.cache, i, counts, cb_model_layer(m, i)->r.moe.experts,
                             m->calibration.tokens);
    }
    return code;
}

static int verify_now(colibri_model *m, colibri_error *error)
{
    int stream = cb_is_streamed(m);
    int code = cb_verify_all(m, stream ? 1 + m->block.layers : m->directory.extent_count, error);

    return code == 0 && stream ? cb_residency_verify(m, error) : code;
}

/* In mode stream the descriptor becomes the model's. */
static int finish(colibri_model *m, struct opening *o, const char *path, colibri_error *error)
{
    int code;

    cb_model_bind(m);
    code = cb_model_check_support(m, error);
    if (code == 0)
        code = open_tokenizer(m, error);
    if (code == 0)
        code = open_calibration(m, error);
    if (code == 0)
        code = cb_pool_start(&m->pool, m->plan.threads, error);
    if (code == 0)
        code = apply_lock(m, o->options.lock, error);
    if (code == 0)
        code = cb_residency_start(m, &o->fd, path, &o->options, error);
    if (code == 0 && o->options.verify == COLIBRI_VERIFY_OPEN)
        code = verify_now(m, error);
    if (code == 0)
        code = cb_residency_guard(m, error);
    return code;
}

int colibri_model_open(const char *path, const colibri_model_options *options,
                       colibri_model **model, colibri_error *error)
{
    struct opening o;
    colibri_model *m = NULL;
    uint64_t fpu;
    int code;

    if (path == NULL || model == NULL)
        return cb_deny_null(error, "colibri_model_open", "path and model");
    *model = NULL;
    memset(&o, 0, sizeof o);
    o.fd = -1;
    fpu = cb_fpu_enter(); /* records hold floats that are compared */
    code = cb_options_resolve(&o.options, options, error);
    if (code == 0)
        code = cb_trust_resolve(&o.trust, &o.options, error);
    if (code == 0)
        code = select_kernels(&o, error);
    if (code == 0)
        code = check_file(&o, path, error);
    if (code == 0)
        code = make_plan(&o, error);
    if (code == 0 && o.plan.residency != COLIBRI_RESIDENCY_STREAM)
        code = map_whole(&o, error);
    if (code == 0)
        code = allocate(&o, &m, error);
    if (code == 0)
        code = finish(m, &o, path, error);
    cb_fpu_leave(fpu);
    cb_close_file(&o.fd);
    if (code != 0) {
        colibri_model_close(m);
        cb_unmap(&o.file);
        cb_unmap(&o.tail);
        return code;
    }
    *model = m;
    return 0;
}

void colibri_model_close(colibri_model *m)
{
    struct cb_mapping file, tail, arena;
    struct cb_guards guards;
    uint32_t i;

    if (m == NULL)
        return;
    cb_residency_stop(m);
    for (i = 0; i < m->plan.max_sessions; i++) /* those that nobody freed */
        colibri_session_free(cb_model_session(m, i));
    cb_pool_stop(&m->pool);
    file = m->file;
    tail = m->tail;
    arena = m->arena.mapping; /* the model itself lives in it */
    guards = m->arena.guards;
    cb_unmap(&file);
    cb_unmap(&tail);
    cb_guards_end(&guards);
    cb_unmap(&arena);
}

int cb_model_enter(colibri_model *m, const char *call, colibri_error *error)
{
    if (atomic_flag_test_and_set_explicit(&m->busy, memory_order_acquire))
        return cb_deny(error, COLIBRI_ERR_BUSY,
                       "%s: another call on this model is running; one call per model at a time",
                       call);
    return 0;
}

void cb_model_leave(colibri_model *m)
{
    atomic_flag_clear_explicit(&m->busy, memory_order_release);
}

/* ---- information -------------------------------------------------------------------------------------- */

int colibri_model_plan(const colibri_model *m, colibri_plan *plan)
{
    if (m == NULL || plan == NULL)
        return COLIBRI_ERR_ARGUMENT;
    if (plan->struct_size != sizeof *plan)
        return COLIBRI_ERR_STRUCT_SIZE;
    *plan = m->plan;
    return 0;
}

/* Widths of the first layer that has them. */
static void describe_layers(const colibri_model *m, colibri_model_info *info)
{
    uint32_t i;

    for (i = 0; i < m->block.layers; i++) {
        const struct cb_layer_records *r = &cb_model_layer(m, i)->r;

        if (info->heads == 0) {
            info->heads = r->attention.heads;
            info->kv_heads = r->attention.kv_heads;
            info->head_dim = r->attention.head_dim;
        }
        if (r->layer.ffn_kind == CB_FFN_MOE && info->experts == 0) {
            info->experts = r->moe.experts;
            info->top_k = r->moe.top_k;
            info->intermediate = r->moe.intermediate;
        }
    }
    for (i = 0; i < m->block.layers && info->intermediate == 0; i++) {
        const struct cb_layer_records *r = &cb_model_layer(m, i)->r;

        if (r->layer.ffn_kind == CB_FFN_DENSE)
            info->intermediate = r->ffn.intermediate;
    }
}

int colibri_model_info_get(const colibri_model *m, colibri_model_info *info)
{
    if (m == NULL || info == NULL)
        return COLIBRI_ERR_ARGUMENT;
    if (info->struct_size != sizeof *info)
        return COLIBRI_ERR_STRUCT_SIZE;
    memset(info, 0, sizeof *info);
    info->struct_size = sizeof *info;
    info->family = m->block.family;
    info->layers = m->block.layers;
    info->hidden = m->block.hidden;
    info->vocabulary = m->block.vocabulary;
    info->context_tokens = m->block.context_tokens;
    describe_layers(m, info);
    info->has_tokenizer = m->has_tokenizer;
    info->has_chat = m->has_tokenizer && m->tokenizer.head.chat_prefix != 0;
    info->parameters = m->parameters;
    info->file_bytes = m->container.bytes;
    info->trunk_bytes = m->container.sections[CB_SECTION_TRUNK].size;
    info->expert_bytes = m->container.sections[CB_SECTION_EXPERTS].size;
    memcpy(info->root, m->container.root, sizeof info->root);
    return 0;
}

int colibri_model_report(const colibri_model *m, colibri_report *report)
{
    if (m == NULL || report == NULL)
        return COLIBRI_ERR_ARGUMENT;
    if (report->struct_size != sizeof *report)
        return COLIBRI_ERR_STRUCT_SIZE;
    memset(report, 0, sizeof *report);
    report->struct_size = sizeof *report;
    report->threads = m->pool.threads;
    report->locked_bytes = m->lock.locked;
    report->unlocked_bytes = m->lock.unlocked;
    report->lock_errno = m->lock.number;
    report->verified_extents = m->verified_count;
    report->extents = m->directory.extent_count;
    report->signature = m->signature.state;
    memcpy(report->key_id, m->signature.key_id, sizeof report->key_id);
    memcpy(report->golden_sha256, m->signature.golden, sizeof report->golden_sha256);
    report->isa = m->kernels->isa;
    memcpy(report->lock_message, m->lock.message, sizeof report->lock_message);
    report->direct_io = m->residency.reader != NULL && m->residency.reader->direct >= 0;
    report->direct_io_errno = m->residency.direct_errno;
    memcpy(report->residency_message, m->residency.message, sizeof report->residency_message);
    return 0;
}
_Static_assert(sizeof((colibri_report *)0)->lock_message == sizeof((struct cb_lock_state *)0)->message,
               "the lock message fits the report");

int colibri_model_residency(const colibri_model *m, colibri_residency_stats *stats)
{
    if (m == NULL || stats == NULL)
        return COLIBRI_ERR_ARGUMENT;
    if (stats->struct_size != sizeof *stats)
        return COLIBRI_ERR_STRUCT_SIZE;
    cb_residency_read_stats(m, stats);
    return 0;
}

const uint64_t *colibri_expert_counts(const colibri_model *m, uint32_t layer, uint32_t *experts)
{
    const struct cb_layer_records *r;

    *experts = 0;
    if (layer >= m->block.layers)
        return NULL;
    r = &cb_model_layer(m, layer)->r;
    if (r->layer.ffn_kind != CB_FFN_MOE)
        return NULL;
    *experts = r->moe.experts;
    return m->counts + (size_t)layer * m->shape.experts;
}
