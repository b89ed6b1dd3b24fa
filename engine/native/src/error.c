/* SPDX-License-Identifier: MIT */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "spec.h"

static int fill(colibri_error *error, int code, int64_t offset, const char *format, va_list args)
{
    if (error != NULL) {
        error->code = code;
        error->reserved = 0;
        error->offset = offset;
        (void)vsnprintf(error->message, sizeof error->message, format, args);
    }
    return code;
}

int cb_fail(colibri_error *error, int code, int64_t offset, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    code = fill(error, code, offset, format, args);
    va_end(args);
    return code;
}

int cb_deny(colibri_error *error, int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    code = fill(error, code, CB_NO_OFFSET, format, args);
    va_end(args);
    return code;
}

int cb_deny_null(colibri_error *error, const char *call, const char *what)
{
    return cb_deny(error, COLIBRI_ERR_ARGUMENT, "%s: %s must not be NULL", call, what);
}

/* Parallel to each other, in the order of the table. */
static const char texts[] =
#define TEXT(number, exit_code, name, text) text "\0"
    CB_ERROR_TABLE(TEXT);
#undef TEXT

static const struct {
    int8_t code;
    uint8_t exit_code;
} codes[] = {
#define CODES(number, exit_code, name, text) {number, exit_code},
    CB_ERROR_TABLE(CODES)
#undef CODES
};

#define COUNT (sizeof codes / sizeof codes[0])

const char *colibri_strerror(int code)
{
    const char *text = texts;

    if (code == COLIBRI_OK)
        return "ok";
    for (size_t i = 0; i < COUNT; i++) {
        if (codes[i].code == code)
            return text;
        text += strlen(text) + 1;
    }
    return "unknown error code";
}

int colibri_exit_code(int code)
{
    for (size_t i = 0; i < COUNT; i++)
        if (codes[i].code == code)
            return codes[i].exit_code;
    return code == COLIBRI_OK ? 0 : 1;
}
