/* SPDX-License-Identifier: MIT */
/* Errors: the caller owns the struct; the first failure fills it, later ones leave it alone. */
#ifndef CB_ERROR_H
#define CB_ERROR_H

#include <stdint.h>

#include "colibri.h"

#define CB_NO_OFFSET ((int64_t)-1)

/* Fill *error (may be NULL) and return `code`, so that callers write `return cb_fail(...)`.
 * The message names the thing, the value, the limit and the fix. */
int cb_fail(colibri_error *error, int code, int64_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The same where there is no place in a file. A function of its own: the argument took 4 bytes a call. */
int cb_deny(colibri_error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* ARGUMENT: `what` of the call must not be NULL. */
int cb_deny_null(colibri_error *error, const char *call, const char *what);

#endif
