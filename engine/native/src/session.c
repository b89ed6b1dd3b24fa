/* SPDX-License-Identifier: MIT */
/* A sequence: append, logits, sample, reset, cancel. And the text calls of its model. */
#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"
#include "pass.h"
#include "snapshot.h"
#include "telemetry.h"

int colibri_session_create(colibri_model *m, colibri_session **session, colibri_error *error)
{
    uint32_t i;
    int code;

    if (m == NULL || session == NULL)
        return cb_deny_null(error, "colibri_session_create", "model and session");
    *session = NULL;
    code = cb_model_enter(m, "colibri_session_create", error);
    if (code != 0)
        return code;
    for (i = 0; i < m->plan.max_sessions && *session == NULL; i++) {
        colibri_session *s = cb_model_session(m, i);

        if (s->in_use)
            continue;
        s->in_use = 1;
        colibri_sampler_default(&s->sampler);
        atomic_init(&s->cancel, 0);
        colibri_session_reset(s);
        *session = s;
    }
    cb_model_leave(m);
    if (*session == NULL)
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "all %u sessions of the plan are in use; free one or raise max_sessions",
                       m->plan.max_sessions);
    return 0;
}

#define STACK_BYTES 12288u /* more than the frames of any step together */

/* What the steps left below this frame. */
static int wipe_stack(void *context, unsigned index, unsigned count)
{
    uint8_t below[STACK_BYTES];

    (void)context;
    (void)index;
    (void)count;
    cb_wipe(below, sizeof below);
    return 0;
}

/* secure_mode: zero what the sequence left in its buffers and in those that all sessions share. */
static void wipe_session(colibri_session *s)
{
    colibri_model *m = s->model;
    const struct cb_guards *g = &m->arena.guards;

    if (m->secure_mode == 0 || s->written == 0)
        return;
    (void)cb_session_cache(s, s->written, NULL, NULL, 0);
    cb_guards_wipe(g, s->logits, s->ids + m->plan.context_tokens);
    cb_guards_wipe(g, m->scratch.x, m->sessions);
    if (cb_is_streamed(m))
        cb_guards_wipe(g, m->residency.grouped.q, m->residency.ahead.ids);
    (void)cb_pool_run(&m->pool, wipe_stack, NULL, CB_MAX_THREADS);
    s->written = 0;
}

void colibri_session_free(colibri_session *s)
{
    if (s == NULL)
        return;
    wipe_session(s);
    memset(&s->sampler, 0, sizeof s->sampler);
    s->sampled = 0;
    s->position = 0;
    s->in_use = 0;
}

void colibri_session_reset(colibri_session *s)
{
    struct cb_guards *g;

    if (s == NULL)
        return;
    wipe_session(s);
    g = &s->model->arena.guards;
    if (g->table.base != NULL) /* a position that is read before it was written is not a number */
        g->poisoned_bytes += cb_session_cache(s, s->model->plan.context_tokens, NULL, NULL, CB_POISON);
    s->position = 0;
    s->batch = 0;
    s->sampled = 0;
    s->has_logits = 0;
    atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
}

void colibri_session_cancel(colibri_session *s)
{
    atomic_store_explicit(&s->cancel, 1, memory_order_relaxed);
}

uint32_t colibri_session_position(const colibri_session *s)
{
    return s->position;
}

const float *colibri_session_logits(const colibri_session *s)
{
    return s->has_logits ? s->logits : NULL;
}

/* ---- append --------------------------------------------------------------------------------------- */

/* ids: int32_t of any alignment, hence never dereferenced. */
static int check_ids(const colibri_session *s, const void *ids, size_t count, colibri_error *error)
{
    const colibri_model *m = s->model;
    size_t i;

    if (count == 0 || ids == NULL)
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "colibri_session_append: there must be at least one token id");
    if (count > m->plan.context_tokens - s->position)
        return cb_deny(error, COLIBRI_ERR_CONTEXT_FULL,
                       "%zu more tokens at position %u exceed the context of %u tokens (the model allows %u): "
                       "ask for fewer, reset the session%s",
                       count, s->position, m->plan.context_tokens, m->block.context_tokens,
                       m->plan.context_tokens < m->block.context_tokens ? " or raise context_tokens" : "");
    for (i = 0; i < count; i++) {
        int32_t id;

        memcpy(&id, (const char *)ids + i * sizeof id, sizeof id);
        if (id < 0 || (uint32_t)id >= m->block.vocabulary)
            return cb_deny(error, COLIBRI_ERR_TOKEN_RANGE,
                           "token %zu has id %ld, must be 0..%u", i, (long)id,
                           m->block.vocabulary - 1);
    }
    return 0;
}

static int append_batches(colibri_session *s, const void *ids, size_t count, colibri_error *error)
{
    int32_t batch[CB_MAX_BATCH_TOKENS];
    uint32_t start = s->position;
    int code = 0;

    memcpy(s->kept, s->states, (size_t)s->model->shape.states);
    while (count > 0 && code == 0) {
        struct cb_pass pass;
        size_t tokens = (size_t)cb_min64(count, s->model->plan.batch_tokens);

        memcpy(batch, ids, tokens * sizeof batch[0]);
        memset(&pass, 0, sizeof pass);
        pass.m = s->model;
        pass.session = s;
        pass.k = s->model->kernels;
        pass.ids = batch;
        pass.tokens = tokens;
        pass.position = s->position;
        pass.error = error;
        s->written = (uint32_t)cb_max64(s->written, s->position + tokens);
        code = cb_forward(&pass, tokens == count);
        if (code != 0)
            break;
        cb_telemetry_count(s, (uint32_t)tokens);
        s->batch = (uint32_t)tokens;
        memcpy(s->ids + s->position, batch, tokens * sizeof batch[0]);
        s->position += (uint32_t)tokens;
        ids = (const char *)ids + tokens * sizeof batch[0];
        count -= tokens;
    }
    if (code == 0)
        code = cb_model_check_guards(s->model, error);
    if (code == 0) {
        s->has_logits = 1;
        return 0;
    }
    s->position = start; /* what was written behind it in the cache is written again */
    memcpy(s->states, s->kept, (size_t)s->model->shape.states);
    s->batch = 0;        /* the routing of a failed batch is nobody's */
    if (code == COLIBRI_ERR_CANCELLED)
        atomic_store_explicit(&s->cancel, 0, memory_order_relaxed);
    return code;
}

int colibri_session_append(colibri_session *s, const int32_t *ids, size_t count,
                           colibri_error *error)
{
    uint64_t fpu;
    int code;

    if (s == NULL)
        return cb_deny_null(error, "colibri_session_append", "the session");
    code = cb_model_enter(s->model, "colibri_session_append", error);
    if (code != 0)
        return code;
    code = check_ids(s, ids, count, error);
    if (code == 0) {
        fpu = cb_fpu_enter();
        code = append_batches(s, ids, count, error);
        cb_fpu_leave(fpu);
    }
    cb_model_leave(s->model);
    return code;
}

const int32_t *colibri_session_routing(const colibri_session *s, uint32_t layer, uint32_t *tokens,
                                       uint32_t *top_k)
{
    const colibri_model *m = s->model;
    const struct cb_layer_records *r;

    *tokens = 0;
    *top_k = 0;
    if (layer >= m->block.layers || s->batch == 0)
        return NULL;
    r = &cb_model_layer(m, layer)->r;
    if (r->layer.ffn_kind != CB_FFN_MOE)
        return NULL;
    *tokens = s->batch;
    *top_k = r->moe.top_k;
    return s->routing + (size_t)layer * m->plan.batch_tokens * m->shape.top_k;
}

/* ---- sampling --------------------------------------------------------------------------------------- */

int colibri_session_set_sampler(colibri_session *s, const colibri_sampler *sampler,
                                colibri_error *error)
{
    uint64_t fpu;
    int code;

    if (s == NULL || sampler == NULL)
        return cb_deny_null(error, "colibri_session_set_sampler", "session and sampler");
    code = cb_model_enter(s->model, "colibri_session_set_sampler", error);
    if (code != 0)
        return code;
    fpu = cb_fpu_enter();
    code = cb_sampler_check(sampler, error);
    cb_fpu_leave(fpu);
    if (code == 0)
        s->sampler = *sampler;
    cb_model_leave(s->model);
    return code;
}

int colibri_session_sample(colibri_session *s, int32_t *id, colibri_error *error)
{
    uint64_t fpu;
    int code;

    if (s == NULL || id == NULL)
        return cb_deny_null(error, "colibri_session_sample", "session and id");
    code = cb_model_enter(s->model, "colibri_session_sample", error);
    if (code != 0)
        return code;
    if (!s->has_logits) {
        cb_model_leave(s->model);
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "there are no logits to sample from: append at least one token first");
    }
    fpu = cb_fpu_enter();
    *id = cb_sampler_choose(&s->sampler, s->sampled, s->logits, s->model->block.vocabulary,
                            s->candidates);
    cb_fpu_leave(fpu);
    s->sampled++;
    code = cb_model_check_guards(s->model, error);
    cb_model_leave(s->model);
    return code;
}

/* ---- text --------------------------------------------------------------------------------------------- */

int colibri_tokenize(colibri_model *m, const char *text, size_t length, enum colibri_text form,
                     int32_t *ids, size_t *count, colibri_error *error)
{
    int code;

    if (m == NULL || count == NULL || (text == NULL && length > 0) || (ids == NULL && *count > 0))
        return cb_deny_null(error, "colibri_tokenize", "model, text, ids and count");
    if (!m->has_tokenizer)
        return cb_deny(error, COLIBRI_ERR_NO_TOKENIZER,
                       "the model has no tokenizer section; give it token ids");
    if (length > m->max_text_bytes)
        return cb_deny(error, COLIBRI_ERR_TEXT_LONG,
                       "the text has %zu bytes, the limit is %u; raise max_text_bytes", length,
                       m->max_text_bytes);
    code = cb_model_enter(m, "colibri_tokenize", error);
    if (code != 0)
        return code;
    code = cb_tokenizer_encode(&m->tokenizer, text, length, form, m->merge_scratch,
                               (size_t)CB_PLAN_MERGE_BYTES * m->max_text_bytes, ids, count, error);
    if (m->secure_mode != 0)
        cb_wipe(m->merge_scratch,
                (size_t)(CB_PLAN_MERGE_BYTES *
                         cb_min64(length + m->tokenizer.around, m->max_text_bytes)));
    if (code == 0)
        code = cb_model_check_guards(m, error);
    cb_model_leave(m);
    return code;
}

const char *colibri_token_bytes(const colibri_model *m, int32_t id, size_t *length)
{
    *length = 0;
    return m->has_tokenizer ? cb_tokenizer_bytes(&m->tokenizer, id, length) : NULL;
}

int colibri_token_is_end(const colibri_model *m, int32_t id)
{
    return m->has_tokenizer ? cb_tokenizer_is_end(&m->tokenizer, id) : 0;
}

int colibri_token_is_special(const colibri_model *m, int32_t id)
{
    return m->has_tokenizer ? cb_tokenizer_is_special(&m->tokenizer, id) : 0;
}
