/* SPDX-License-Identifier: MIT */
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "../src/spec.h"
#include "log.h"
#include "output.h"
#include "public_key.h"

/* CB_MAX_COMMAND_TEXT_BYTES: the text and its ids are on the heap of the command: 5 bytes per byte, which must fit beside its
 * own pages into the process_bytes of the plan (4 MiB). Programs may go further (colibri.h). */
#define MAX_BUDGET_BYTES 1125899906842624.0 /* 1 PiB: exact as a double */

#ifdef COLIBRI_SECURE_MODE
#define SECURE_FORCED true
#else
#define SECURE_FORCED false
#endif

#define AT(field) offsetof(struct ctl_model_values, field)

const struct ctl_option ctl_model_options[] = {
    { "threads", 't', CTL_U32, AT(threads), 0, CB_MAX_THREADS, "N", "0",
      "threads that compute; 0 = CPUs this process may use, at most 4" },
    { "big-cores", 0, CTL_FLAG, AT(big_cores), 0, 0, NULL, NULL,
      "keep all threads on the CPUs of large cpu_capacity, or refuse" },
    { "context", 'c', CTL_U32, AT(context_tokens), 0, CB_MAX_CONTEXT_TOKENS, "N", "0",
      "tokens the KV cache holds; 0 = the model's own, at most 2048" },
    { "batch", 'b', CTL_U32, AT(batch_tokens), 0, CB_MAX_BATCH_TOKENS, "N", "0",
      "prompt tokens per batch; 0 = 32" },
    { "kv", 0, CTL_CHOICE, AT(kv), 0, 0, "f16|f32", "f16", "type of the KV cache" },
    { "isa", 0, CTL_TEXT, AT(isa), 0, 0, "NAME", NULL,
      "kernels to use (see info); an error when this CPU lacks them; default: the best" },
    { "verify", 0, CTL_CHOICE, AT(verify), 0, 0, "auto|open|first|always", "auto",
      "check weights before starting, when first touched, or whenever they come from storage" },
    { "lock", 0, CTL_CHOICE, AT(lock), 0, 0, "try|require|off", "try",
      "lock the model in memory: warn when it fails, refuse, or do not try" },
    { "budget", 0, CTL_SIZE, AT(budget_bytes), 0, MAX_BUDGET_BYTES, "BYTES", "0",
      "memory to keep within, or refuse; 0 = what cgroup and system leave" },
    { "residency", 0, CTL_CHOICE, AT(residency), 0, 0, "auto|resident|stream|mapped|mapped-guarded",
      "auto", "all experts in memory, or read into slots as they are needed" },
    { "slots", 0, CTL_U32, AT(expert_slots), 0, CB_MAX_EXTENTS, "N", "0",
      "experts in memory when streaming; 0 = as many as the budget holds" },
    { "io-threads", 0, CTL_U32, AT(io_threads), 0, CB_MAX_IO_THREADS, "N", "0",
      "threads that read experts; 0 = 4" },
    { "prefetch", 0, CTL_U32, AT(prefetch_depth), 0, CB_MAX_TOP_K, "N", "3",
      "experts of the next layer read ahead when storage is idle; 0 = none" },
    { "direct-io", 0, CTL_CHOICE, AT(direct_io), 0, 0, "auto|off", "auto",
      "read past the page cache where the file system can" },
    { "public-key", 0, CTL_TEXT, AT(public_key_file), 0, 0, "FILE", NULL,
      "ed25519 key to trust: a model that it did not sign is refused" },
    { "signed-only", 0, CTL_FLAG, AT(signed_only), 0, 0, NULL, NULL,
      "refuse a model without a signature of the trusted key" },
    { "stall", 0, CTL_U32, AT(stall_ms), 0, 3600000, "MS", "0",
      "give up on storage that does not answer; 0 = 30000" },
    { "debug-memory", 0, CTL_FLAG, AT(debug_memory), 0, 0, NULL, NULL,
      "check guards between all buffers after every call" },
    { "secure", 0, CTL_FLAG, AT(secure), 0, 0, NULL, NULL,
      "wipe what a prompt left in memory; no core dumps" },
    { "max-text", 0, CTL_SIZE, AT(max_text_bytes), 1, CB_MAX_COMMAND_TEXT_BYTES, "BYTES", "64K",
      "longest prompt text; memory for it is planned" },
};
const size_t ctl_model_option_count = sizeof ctl_model_options / sizeof ctl_model_options[0];

/* Lowers the depth, never raises it. */
static int environment_prefetch(const char *command, uint32_t *depth)
{
    static const char name[] = "COLIBRI_PREFETCH_DEPTH";
    const char *text = getenv(name);
    uint64_t number;

    if (text == NULL || *text == '\0') {
        return 0;
    }
    if (!ctl_parse_u64(text, &number)) {
        return ctl_environment_error(command, name, text, "a number of experts");
    }
    if (number < *depth) {
        *depth = (uint32_t)number;
    }
    return 0;
}

int ctl_model_environment(const char *command, struct ctl_model_values *values)
{
    enum { VERIFY, CHUNKS, SIGNED_ONLY, LOCK, DEBUG_MEMORY, SECURE, WORDS };
    static const char names[] = "COLIBRI_VERIFY_MODEL_HASH\0COLIBRI_VERIFY_CHUNKS\0COLIBRI_SIGNED_ONLY\0"
                                "COLIBRI_LOCK\0COLIBRI_DEBUG_MEMORY\0COLIBRI_SECURE_MODE";
    const char *name = names;
    int on[WORDS];
    int exit_code = 0;

    for (int i = 0; i < WORDS && exit_code == 0; i++, name += strlen(name) + 1) {
        exit_code = ctl_environment_word(command, name, i == LOCK ? "try|require" : "0|1", &on[i]);
    }
    if (exit_code == 0) {
        exit_code = environment_prefetch(command, &values->prefetch_depth);
    }
    if (exit_code != 0) {
        return exit_code;
    }
    if (on[CHUNKS] != 0 && values->verify != COLIBRI_VERIFY_OPEN) {
        values->verify = COLIBRI_VERIFY_ALWAYS;
    }
    if (on[VERIFY] != 0) {
        values->verify = COLIBRI_VERIFY_OPEN;
    }
    values->signed_only = values->signed_only || on[SIGNED_ONLY] != 0;
    values->debug_memory = values->debug_memory || on[DEBUG_MEMORY] != 0;
    values->secure = values->secure || on[SECURE] != 0 || SECURE_FORCED;
    if (on[LOCK] != 0) {
        values->lock = COLIBRI_LOCK_REQUIRE;
    }
    if (values->never_lock) {
        values->lock = COLIBRI_LOCK_OFF;
    }
    return 0;
}

void ctl_model_values_for_verifying(struct ctl_model_values *values)
{
    memset(values, 0, sizeof *values);
    values->context_tokens = 1;
    values->batch_tokens = 1;
    values->max_text_bytes = 1;
    values->verify = COLIBRI_VERIFY_OPEN;
    values->never_lock = true;
}

const char *ctl_signature_name(uint32_t signature)
{
    return signature == COLIBRI_SIGNATURE_VERIFIED ? "verified"
           : signature == COLIBRI_SIGNATURE_NONE   ? "none"
                                                   : "unchecked";
}

static void warn_about_report(const colibri_model *model)
{
    colibri_report report = { .struct_size = sizeof report };

    if (colibri_model_report(model, &report) != 0) {
        return;
    }
    if (report.lock_message[0] != '\0') {
        ctl_log(LOG_WARNING, "%s", report.lock_message);
    }
    if (report.residency_message[0] != '\0') {
        ctl_log(LOG_WARNING, "%s", report.residency_message);
    }
}

void ctl_model_print_memory(const colibri_model *model, double seconds)
{
    colibri_memory_report report = { .struct_size = sizeof report };

    if (colibri_model_memory(model, &report) != 0 || report.guards == 0) {
        return;
    }
    ctl_log(LOG_INFO,
            "debug-memory: guards=%u guard_bytes=%llu checks=%llu overhead_percent=%.2f "
            "poisoned_bytes=%llu sessions_in_use=%u",
            (unsigned)report.guards, (unsigned long long)report.guard_bytes,
            (unsigned long long)report.checks,
            seconds > 0 ? 1e-7 * (double)report.check_ns / seconds : 0.0,
            (unsigned long long)report.poisoned_bytes, (unsigned)report.sessions_in_use);
}

int ctl_model_try(const char *command, const char *path, struct ctl_model_values *values,
                  colibri_model **model, colibri_error *error)
{
    colibri_model_options options;
    uint8_t key[CTL_PUBLIC_KEY_BYTES];
    int exit_code = ctl_model_environment(command, values);

    if (exit_code != 0) {
        return exit_code;
    }
    if (colibri_abi_version() != COLIBRI_ABI_VERSION) {
        return ctl_fail_message(command, COLIBRI_ERR_ABI,
                                "libcolibri has ABI version %u, this command was built for %d: "
                                "install both from the same build",
                                (unsigned)colibri_abi_version(), COLIBRI_ABI_VERSION);
    }
    colibri_model_options_default(&options);
    options.threads = values->threads;
    options.context_tokens = values->context_tokens;
    options.batch_tokens = values->batch_tokens;
    options.kv = values->kv;
    options.verify = values->verify;
    options.lock = values->lock;
    options.budget_bytes = values->budget_bytes;
    options.max_text_bytes = (uint32_t)values->max_text_bytes;
    options.isa = values->isa;
    options.residency = values->residency;
    options.expert_slots = values->expert_slots;
    options.io_threads = values->io_threads;
    options.prefetch_depth = values->prefetch_depth;
    options.direct_io = values->direct_io;
    options.require_signature = values->signed_only;
    options.stall_ms = values->stall_ms;
    options.debug_memory = values->debug_memory;
    options.secure_mode = values->secure;
    if (values->secure) { /* the file is parsed with the prompt in memory: before that */
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 }); /* lowering is always allowed */
    }
    if (values->public_key_file != NULL) {
        exit_code = ctl_public_key_load(values->public_key_file, key);
        if (exit_code != 0) {
            return exit_code;
        }
        options.public_key = key;
    }
    if (values->big_cores && colibri_bind_big_cores(values->threads, error) != 0) {
        return colibri_exit_code(error->code);
    }
    exit_code = colibri_exit_code(colibri_model_open(path, &options, model, error));
    if (exit_code != 0) {
        ctl_name_options(error);
    }
    return exit_code;
}

int ctl_model_open(const char *command, const char *path, struct ctl_model_values *values,
                   colibri_model **model)
{
    colibri_error error = { .offset = -1 };
    int exit_code = ctl_model_try(command, path, values, model, &error);

    if (exit_code != 0) {
        return error.code != 0 ? ctl_fail(path, &error) : exit_code;
    }
    warn_about_report(*model);
    return 0;
}
