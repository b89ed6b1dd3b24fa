/* SPDX-License-Identifier: MIT */
/* Options of colibri_model_open: defaults, ranges, and the floors that the build forces. */
#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"

#define MAX_SESSIONS 64u
#define MAX_DEFAULT_THREADS 4u
#define DEFAULT_BATCH_TOKENS 32u
#define DEFAULT_TEXT_BYTES 65536u
#define MAX_TEXT_BYTES (UINT32_C(1) << 28)

void colibri_model_options_default(colibri_model_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_size = sizeof *options;
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
    if (out->reserved != 0)
        return cb_fail(error, COLIBRI_ERR_ARGUMENT, CB_NO_OFFSET,
                       "option reserved is %u, must be 0", out->reserved);
    code = check_range(&out->threads, cpus < MAX_DEFAULT_THREADS ? cpus : MAX_DEFAULT_THREADS,
                       CB_MAX_THREADS, "threads", error);
    if (code == 0)
        code = check_range(&out->context_tokens, 0, CB_MAX_CONTEXT_TOKENS, "context_tokens", error);
    if (code == 0)
        code = check_range(&out->batch_tokens, DEFAULT_BATCH_TOKENS, CB_MAX_BATCH_TOKENS,
                           "batch_tokens", error);
    if (code == 0)
        code = check_range(&out->max_sessions, 1, MAX_SESSIONS, "max_sessions", error);
    if (code == 0)
        code = check_range(&out->max_text_bytes, DEFAULT_TEXT_BYTES, MAX_TEXT_BYTES,
                           "max_text_bytes", error);
    if (code == 0)
        code = check_enum(out->kv, COLIBRI_KV_F32, "kv", error);
    if (code == 0)
        code = check_enum(out->verify, COLIBRI_VERIFY_OPEN, "verify", error);
    if (code == 0)
        code = check_enum(out->lock, COLIBRI_LOCK_OFF, "lock", error);
#ifdef COLIBRI_VERIFY_MODEL_HASH
    out->verify = COLIBRI_VERIFY_OPEN; /* forced by the build: options may only tighten */
#endif
    return code;
}
