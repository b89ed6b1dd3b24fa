/* SPDX-License-Identifier: MIT */
/* Opening a model from the options that several commands share. */
#ifndef CTL_MODEL_H
#define CTL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "options.h"

struct ctl_model_values {
    uint32_t threads, context_tokens, batch_tokens;
    uint32_t kv, verify, lock; /* enum colibri_kv, colibri_verify, colibri_lock */
    uint32_t residency, direct_io; /* enum colibri_residency, colibri_direct_io */
    uint32_t expert_slots, io_threads, prefetch_depth;
    uint64_t budget_bytes, max_text_bytes;
    const char *isa;
    const char *public_key_file;
    bool signed_only;
    uint32_t stall_ms;
    bool debug_memory;
    bool secure;
    bool big_cores;
    bool never_lock; /* commands that compute nothing, whatever the options say */
};

extern const struct ctl_option ctl_model_options[];
extern const size_t ctl_model_option_count;

/* For commands that read every byte and compute nothing: the smallest plan, nothing locked. */
void ctl_model_values_for_verifying(struct ctl_model_values *values);
/* "none", "unchecked" or "verified": enum colibri_signature. */
const char *ctl_signature_name(uint32_t signature);

/* Tightens *values as the environment asks: COLIBRI_VERIFY_MODEL_HASH=1, COLIBRI_VERIFY_CHUNKS=1,
 * COLIBRI_SIGNED_ONLY=1, COLIBRI_SECURE_MODE=1, COLIBRI_LOCK=require; and as the build forces.
 * 0, or the exit code after printing why. */
int ctl_model_environment(const char *command, struct ctl_model_values *values);

/* 0, or the exit code. error->code tells a failure of the library, which is not printed, from one that
 * was: an environment that cannot be understood. */
int ctl_model_try(const char *command, const char *path, struct ctl_model_values *values,
                  colibri_model **model, colibri_error *error);
/* 0, or the exit code after printing the failure. Prints what could not be locked as a warning. */
int ctl_model_open(const char *command, const char *path, struct ctl_model_values *values,
                   colibri_model **model);

/* With debug memory: what was checked, what it cost of `seconds`, sessions that were not freed. */
void ctl_model_print_memory(const colibri_model *model, double seconds);

#endif
