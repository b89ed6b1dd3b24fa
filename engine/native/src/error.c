/* SPDX-License-Identifier: MIT */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

#include "spec.h"

int cb_fail(colibri_error *error, int code, int64_t offset, const char *format, ...)
{
    if (error != NULL) {
        va_list args;

        error->code = code;
        error->reserved = 0;
        error->offset = offset;
        va_start(args, format);
        (void)vsnprintf(error->message, sizeof error->message, format, args);
        va_end(args);
    }
    return code;
}

const char *colibri_strerror(int code)
{
    switch (code) {
    case COLIBRI_OK:
        return "ok";
#define CASE(number, exit_code, name, text) \
    case number:                            \
        return text;
        CB_ERROR_TABLE(CASE)
#undef CASE
    default:
        return "unknown error code";
    }
}

int colibri_exit_code(int code)
{
    switch (code) {
    case COLIBRI_OK:
        return 0;
#define CASE(number, exit_code, name, text) \
    case number:                            \
        return exit_code;
        CB_ERROR_TABLE(CASE)
#undef CASE
    default:
        return 1;
    }
}
