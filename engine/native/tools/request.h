/* SPDX-License-Identifier: MIT */
/*
 * The lines of docs/protocol.md, flat JSON objects: a request, and one line of an answer. The parser is
 * strict (unknown and repeated keys, nesting, invalid UTF-8, lone surrogates are errors), bounded, and
 * works in place.
 */
#ifndef CTL_REQUEST_H
#define CTL_REQUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri.h"

#define CTL_REQUEST_ID_BYTES 64u /* longest id, unescaped */

/* Characters in the line, unescaped, any of them; at: NULL when there are none. */
struct ctl_span {
    const char *at;
    size_t bytes;
};

struct ctl_request {
    char id[CTL_REQUEST_ID_BYTES + 1]; /* terminated; empty when there was none. Has no NUL inside */
    struct ctl_span prompt;
    uint32_t tokens;                   /* generate at most this many */
    bool tokens_given;                 /* else it is the default */
    bool chat, ignore_end;
    colibri_sampler sampler;
};

/*
 * Parses line[length], which it overwrites; the line must outlive the request. 0, or
 * COLIBRI_ERR_ARGUMENT with a message that names the byte, what was found and what may stand there.
 * After an error the id is what was read before it, so that the answer can name the request.
 */
int ctl_request_parse(struct ctl_request *request, char *line, size_t length, colibri_error *error);

/* One line of an answer: text, or done, or error. */
struct ctl_reply {
    char id[CTL_REQUEST_ID_BYTES + 1];
    struct ctl_span text, done, logits_sha256, name, message;
    uint32_t prompt_tokens, tokens;
    int32_t error; /* below zero, or 0: no error */
};

/* As ctl_request_parse. */
int ctl_reply_parse(struct ctl_reply *reply, char *line, size_t length, colibri_error *error);

#endif
