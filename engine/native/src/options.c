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

/* What check() looks at: numbers of 1..limit, for which 0 is the preset, and enumerations up to the limit. */
static const struct {
    uint16_t offset;
    uint16_t is_enum;
    uint32_t preset, limit;
} checks[] = {
#define RANGE(name, preset, limit) { offsetof(colibri_model_options, name), 0, preset, limit },
#define ENUM(name, highest) { offsetof(colibri_model_options, name), 1, 0, highest },
#define CHECKS                                                    \
    RANGE(threads, CB_DEFAULT_THREADS, CB_MAX_THREADS)            \
    RANGE(context_tokens, 0, CB_MAX_CONTEXT_TOKENS)               \
    RANGE(batch_tokens, CB_DEFAULT_BATCH_TOKENS, CB_MAX_BATCH_TOKENS) \
    RANGE(max_sessions, 1, CB_MAX_SESSIONS)                       \
    RANGE(max_text_bytes, CB_DEFAULT_TEXT_BYTES, CB_MAX_TEXT_BYTES) \
    ENUM(kv, COLIBRI_KV_F32)                                      \
    RANGE(expert_slots, 0, CB_MAX_EXTENTS)                        \
    RANGE(io_threads, CB_DEFAULT_IO_THREADS, CB_MAX_IO_THREADS)   \
    RANGE(prefetch_depth, 0, CB_MAX_TOP_K)                        \
    ENUM(residency, COLIBRI_RESIDENCY_MAPPED_GUARDED)             \
    ENUM(direct_io, COLIBRI_DIRECT_IO_OFF)                        \
    ENUM(verify, COLIBRI_VERIFY_ALWAYS)                           \
    ENUM(lock, COLIBRI_LOCK_OFF)                                  \
    ENUM(require_signature, 1)                                    \
    ENUM(debug_memory, 1)                                         \
    ENUM(secure_mode, 1)                                          \
    RANGE(stall_ms, DEFAULT_STALL_MS, MAX_STALL_MS)
    CHECKS
#undef RANGE
#undef ENUM
};

/* Parallel to them. */
static const char names[] =
#define RANGE(name, preset, limit) #name "\0"
#define ENUM(name, highest) #name "\0"
    CHECKS;
#undef RANGE
#undef ENUM

static int check(colibri_model_options *options, colibri_error *error)
{
    const char *name = names;

    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        uint32_t value, limit = checks[i].limit;
        char *at = (char *)options + checks[i].offset;

        memcpy(&value, at, sizeof value);
        if (value > limit)
            return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                           checks[i].is_enum ? "option %s is %u, the highest known value is %u"
                                             : "option %s is %u, must be 0 (default) or 1..%u",
                           name, value, limit);
        if (value == 0)
            memcpy(at, &checks[i].preset, sizeof value);
        name += strlen(name) + 1;
    }
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
            return cb_deny(error, COLIBRI_ERR_STRUCT_SIZE,
                           "colibri_model_options.struct_size is %u, this library knows %zu; begin "
                           "with colibri_model_options_default",
                           options->struct_size, sizeof *out);
        *out = *options;
    }
    if (out->threads == 0 && cpus < CB_DEFAULT_THREADS)
        out->threads = cpus;
    code = check(out, error);
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
