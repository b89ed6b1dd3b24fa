/* SPDX-License-Identifier: MIT */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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
