/* SPDX-License-Identifier: MIT */
/*
 * What the checks of `colibrictl doctor` share. A check adds one row; one that cannot find out says
 * so and is never an error: a sandbox that hides /proc does not make a machine unfit.
 */
#ifndef CTL_DOCTOR_H
#define CTL_DOCTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model.h"

#define CTL_MAX_CHECKS 32u
#define CTL_DOCTOR_TEXT 4096u /* of a small file of /proc or /sys that is looked at */

enum ctl_severity {
    CTL_OK,      /* as it should be */
    CTL_INFO,    /* worth knowing, or cannot be known here */
    CTL_WARNING, /* works, slower or with a promise that nobody can check */
    CTL_ERROR    /* the engine would refuse, or could not keep what it promises */
};

struct ctl_check {
    const char *name;
    enum ctl_severity severity;
    char value[224];
    char fix[224]; /* empty, or the line that puts it right */
};

struct ctl_doctor {
    const char *root;              /* before /proc, /sys and /boot; "" on a real machine */
    const char *path;              /* of the model; NULL: none */
    struct ctl_model_values model; /* its options */
    colibri_plan plan;             /* struct_size 0: no model, or one that does not open */
    uint32_t extents;              /* mappings that mapped-guarded needs */
    uint64_t need_bytes;           /* the plan's total, else --budget, else 0 */
    uint64_t lock_bytes;           /* what of it must be locked; 0: not known */
    bool advice;                   /* madvise and posix_fadvise work */
    int model_exit_code;           /* of a model that does not open */
    struct ctl_check checks[CTL_MAX_CHECKS];
    size_t count;
};

/* Adds a row; the pointer is valid until the next one. */
struct ctl_check *ctl_check_add(struct ctl_doctor *d, const char *name, enum ctl_severity severity,
                                const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Sets the line that puts it right. */
void ctl_check_fix(struct ctl_check *check, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The beginning of ROOT/path, terminated, without a line end at its end; 0 or an errno. */
int ctl_doctor_read(const struct ctl_doctor *d, const char *path, char text[CTL_DOCTOR_TEXT]);
/* The number behind the first `name` ("" = at the start); false when there is none ("max"). */
bool ctl_doctor_number(const char *text, const char *name, uint64_t *number);
/* Both in one. */
bool ctl_doctor_read_number(const struct ctl_doctor *d, const char *path, const char *name,
                            uint64_t *number);

/* Every check of `root`, `path` and `model`, which are set. */
void ctl_doctor_check(struct ctl_doctor *d);
/* "fail" (exit_code is not 0), "warn" or "ok". */
const char *ctl_doctor_status(const struct ctl_doctor *d, int exit_code);
/* The checks as a table on stdout, and the verdict. */
void ctl_doctor_print(const struct ctl_doctor *d, int exit_code);

/* doctor_system.c: kernel, page size, mappings, huge pages, kernel configuration, CPUs, sandbox */
void ctl_doctor_system(struct ctl_doctor *d);
/* doctor_memory.c: memory and its control groups, locks (limit, capability, a real lock), swap, advice */
void ctl_doctor_memory(struct ctl_doctor *d);
/* doctor_model.c: opens the model for its plan; fills plan, extents, need_bytes, lock_bytes */
void ctl_doctor_plan(struct ctl_doctor *d);
/* doctor_model.c: file system, direct reads, read-ahead, fs-verity of the model */
void ctl_doctor_storage(struct ctl_doctor *d);

#endif
