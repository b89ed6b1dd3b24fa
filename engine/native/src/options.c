/* SPDX-License-Identifier: MIT */
/* Options of colibri_model_open: defaults, ranges, and the floors that the build forces. */
#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"

/* The kernel gives up on a disk command after 30 s and tries again. */
#define DEFAULT_STALL_MS 30000u
#define MAX_STALL_MS 3600000u

void colibri_model_options_default(colibri_model_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
    options->prefetch_depth = CB_DEFAULT_PREFETCH_DEPTH;
}

static int check_range(uint32_t *value, uint32_t preset, uint32_t limit, const char *name,
                       colibri_error *error)
{
    if (*value > limit)
        return cb_fail(error, COLIBRI_ERR_ARGUMENT, CB_NO_OFFSET,
                       "option %s is %u, must be 0 (default) or 1..%u", name, *value, limit);
    if (*value == 0)
        *value = preset;
    return 0;
}

static int check_enum(uint32_t value, uint32_t highest, const char *name, colibri_error *error)
{
    if (value > highest)
        return cb_fail(error, COLIBRI_ERR_ARGUMENT, CB_NO_OFFSET,
                       "option %s is %u, the highest known value is %u", name, value, highest);
    return 0;
}

int cb_options_resolve(colibri_model_options *out, const colibri_model_options *options,
                       colibri_error *error)
{
    unsigned cpus = cb_cpu_count();
    int code;

    if (options == NULL) {
        colibri_model_options_default(out);
    } else {
        if (options->struct_size != sizeof *out)
            return cb_fail(error, COLIBRI_ERR_STRUCT_SIZE, CB_NO_OFFSET,
                           "colibri_model_options.struct_size is %u, this library knows %zu; begin "
                           "with colibri_model_options_default",
                           options->struct_size, sizeof *out);
        *out = *options;
    }
    code = check_range(&out->threads, cpus < CB_DEFAULT_THREADS ? cpus : CB_DEFAULT_THREADS,
                       CB_MAX_THREADS, "threads", error);
    if (code == 0)
        code = check_range(&out->context_tokens, 0, CB_MAX_CONTEXT_TOKENS, "context_tokens", error);
    if (code == 0)
        code = check_range(&out->batch_tokens, CB_DEFAULT_BATCH_TOKENS, CB_MAX_BATCH_TOKENS,
                           "batch_tokens", error);
    if (code == 0)
        code = check_range(&out->max_sessions, 1, CB_MAX_SESSIONS, "max_sessions", error);
    if (code == 0)
        code = check_range(&out->max_text_bytes, CB_DEFAULT_TEXT_BYTES, CB_MAX_TEXT_BYTES,
                           "max_text_bytes", error);
    if (code == 0)
        code = check_enum(out->kv, COLIBRI_KV_F32, "kv", error);
    if (code == 0)
        code = check_range(&out->expert_slots, 0, CB_MAX_EXTENTS, "expert_slots", error);
    if (code == 0)
        code = check_range(&out->io_threads, CB_DEFAULT_IO_THREADS, CB_MAX_IO_THREADS, "io_threads",
                           error);
    if (code == 0)
        code = check_range(&out->prefetch_depth, 0, CB_MAX_TOP_K, "prefetch_depth", error);
    if (code == 0)
        code = check_enum(out->residency, COLIBRI_RESIDENCY_MAPPED_GUARDED, "residency", error);
    if (code == 0)
        code = check_enum(out->direct_io, COLIBRI_DIRECT_IO_OFF, "direct_io", error);
    if (code == 0)
        code = check_enum(out->verify, COLIBRI_VERIFY_ALWAYS, "verify", error);
    if (code == 0)
        code = check_enum(out->lock, COLIBRI_LOCK_OFF, "lock", error);
    if (code == 0)
        code = check_enum(out->require_signature, 1, "require_signature", error);
    if (code == 0)
        code = check_enum(out->debug_memory, 1, "debug_memory", error);
    if (code == 0)
        code = check_enum(out->secure_mode, 1, "secure_mode", error);
    if (code == 0)
        code = check_range(&out->stall_ms, DEFAULT_STALL_MS, MAX_STALL_MS, "stall_ms", error);
    out->debug_memory |= CB_DEBUG_MEMORY_FORCED;
    /* Forced by the build: options may only tighten. */
#ifdef COLIBRI_PREFETCH_DEPTH
    out->prefetch_depth = (uint32_t)cb_min64(out->prefetch_depth, COLIBRI_PREFETCH_DEPTH);
#endif
#ifdef COLIBRI_SECURE_MODE
    out->secure_mode = 1;
#endif
#ifdef COLIBRI_VERIFY_CHUNKS
    if (out->verify != COLIBRI_VERIFY_OPEN)
        out->verify = COLIBRI_VERIFY_ALWAYS;
#endif
#ifdef COLIBRI_VERIFY_MODEL_HASH
    out->verify = COLIBRI_VERIFY_OPEN;
#endif
    return code;
}
