/* SPDX-License-Identifier: MIT */
/* The small API of programs that only want logits: one context, Q16.16 results. */
#include <stdatomic.h>
#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"

static _Thread_local colibri_error last_error;

/* Contexts that are open, for colibri_defrag_memory; a spin lock guards the few pointer writes. */
static colibri_ctx_t *contexts;
static atomic_flag contexts_lock = ATOMIC_FLAG_INIT;

static void lock_contexts(void)
{
    while (atomic_flag_test_and_set_explicit(&contexts_lock, memory_order_acquire))
        ;
}

static void unlock_contexts(void)
{
    atomic_flag_clear_explicit(&contexts_lock, memory_order_release);
}

const colibri_error *colibri_last_error(void)
{
    return &last_error;
}

static int check_flags(uint32_t flags)
{
    if ((flags & ~COLIBRI_ALL_POSITIONS) != 0)
        return cb_deny(&last_error, COLIBRI_ERR_ARGUMENT,
                       "flags are 0x%x, known: COLIBRI_ALL_POSITIONS (0x%x)", flags,
                       COLIBRI_ALL_POSITIONS);
    return 0;
}

colibri_ctx_t *colibri_init(const char *path, uint32_t flags)
{
    colibri_model_options options;
    colibri_model *model;
    colibri_session *session;
    colibri_ctx_t *ctx;

    if (check_flags(flags) != 0)
        return NULL;
    colibri_model_options_default(&options);
    options.threads = 1;
    if (colibri_model_open(path, &options, &model, &last_error) != 0)
        return NULL;
    if (colibri_session_create(model, &session, &last_error) != 0) {
        colibri_model_close(model);
        return NULL;
    }
    ctx = &model->compat;
    ctx->model = model;
    ctx->session = session;
    ctx->flags = flags;
    lock_contexts();
    ctx->next = contexts;
    contexts = ctx;
    unlock_contexts();
    return ctx;
}

int colibri_load_model(const char *path, uint32_t flags)
{
    colibri_model_options options;
    colibri_model *model;
    int code = check_flags(flags);

    if (code != 0)
        return code;
    colibri_model_options_default(&options);
    options.threads = 1;
    options.lock = COLIBRI_LOCK_OFF;
    options.verify = COLIBRI_VERIFY_OPEN;
    code = colibri_model_open(path, &options, &model, &last_error);
    if (code == 0)
        colibri_model_close(model);
    return code;
}

/* Round to nearest even, saturated. Adding 1.5 * 2^52 leaves the integer in the low bits. */
static int32_t to_q16(float x)
{
    double scaled = (double)x * 65536.0, rounded = scaled + 0x1.8p52;
    uint64_t bits;

    if (scaled >= 2147483647.0)
        return INT32_MAX;
    if (scaled <= -2147483648.0)
        return INT32_MIN;
    memcpy(&bits, &rounded, sizeof bits);
    return (int32_t)(uint32_t)bits;
}

/* logits of the current position to out (any alignment). */
static void write_logits(const colibri_ctx_t *ctx, char *out)
{
    const float *logits = colibri_session_logits(ctx->session);
    uint64_t fpu = cb_fpu_enter();
    uint32_t i;

    for (i = 0; i < ctx->model->block.vocabulary; i++) {
        int32_t q = to_q16(logits[i]);

        memcpy(out + 4 * (size_t)i, &q, sizeof q);
    }
    cb_fpu_leave(fpu);
}

int colibri_run_inference(colibri_ctx_t *ctx, const int32_t *input_ids, int32_t *output_logits,
                          size_t seq_len)
{
    char *out = (char *)output_logits;
    size_t step, done;
    uint32_t start;

    if (ctx == NULL || input_ids == NULL || output_logits == NULL || seq_len == 0)
        return cb_deny(&last_error, COLIBRI_ERR_ARGUMENT,
                       "colibri_run_inference: ctx, input_ids and output_logits must not be NULL, "
                       "seq_len must be at least 1");
    start = ctx->session->position;
    if (seq_len > ctx->model->plan.context_tokens - start) /* before any pass: they cost time */
        return cb_deny(&last_error, COLIBRI_ERR_CONTEXT_FULL,
                       "%zu tokens on top of %u do not fit the context of %u: call colibri_reset",
                       seq_len, start, ctx->model->plan.context_tokens);
    step = (ctx->flags & COLIBRI_ALL_POSITIONS) != 0 ? 1 : seq_len;
    for (done = 0; done < seq_len; done += step) {
        const char *ids = (const char *)input_ids + done * sizeof *input_ids;
        int code = colibri_session_append(ctx->session, (const int32_t *)(const void *)ids, step,
                                          &last_error);

        if (code != 0) {
            if (done > 0) /* else append left it as it was, and BUSY means that it is another call's */
                ctx->session->position = start;
            return code;
        }
        write_logits(ctx, out);
        out += 4 * (size_t)ctx->model->block.vocabulary;
    }
    return 0;
}

void colibri_reset(colibri_ctx_t *ctx)
{
    if (ctx != NULL)
        colibri_session_reset(ctx->session);
}

size_t colibri_vocabulary(const colibri_ctx_t *ctx)
{
    return ctx != NULL ? ctx->model->block.vocabulary : 0;
}

void colibri_free(colibri_ctx_t *ctx)
{
    colibri_ctx_t **link;

    if (ctx == NULL)
        return;
    lock_contexts();
    for (link = &contexts; *link != NULL; link = &(*link)->next) {
        if (*link == ctx) {
            *link = ctx->next;
            break;
        }
    }
    unlock_contexts();
    colibri_session_free(ctx->session);
    colibri_model_close(ctx->model);
}

int64_t colibri_defrag_memory(void)
{
    colibri_ctx_t *ctx;
    int64_t locked = 0;

    lock_contexts();
    for (ctx = contexts; ctx != NULL; ctx = ctx->next) {
        colibri_defrag_report report = {.struct_size = sizeof report};
        int code = colibri_model_defrag(ctx->model, &report, &last_error);

        if (code != 0) {
            locked = code;
            break;
        }
        locked += (int64_t)report.locked_bytes;
    }
    unlock_contexts();
    return locked;
}
