/* SPDX-License-Identifier: MIT */
/*
 * One request of docs/protocol.md: a flat JSON object on a line. The parser is strict (unknown and
 * repeated keys, nesting, invalid UTF-8, lone surrogates are errors), bounded, and works in place.
 */
#ifndef CTL_REQUEST_H
#define CTL_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri.h"

#define CTL_REQUEST_ID_BYTES 64u /* longest id, unescaped */

struct ctl_request {
    char id[CTL_REQUEST_ID_BYTES + 1]; /* terminated; empty when there was none. Has no NUL inside */
    const char *prompt;                /* [prompt_bytes] in the line, unescaped: any characters */
    size_t prompt_bytes;
    uint32_t tokens;                   /* generate at most this many */
    bool chat, ignore_end;
    colibri_sampler sampler;
};

/*
 * Parses line[length], which it overwrites; the line must outlive the request. 0, or
 * COLIBRI_ERR_ARGUMENT with a message that names the byte, what was found and what may stand there.
 * After an error the id is what was read before it, so that the answer can name the request.
 */
int ctl_request_parse(struct ctl_request *request, char *line, size_t length, colibri_error *error);

#endif
