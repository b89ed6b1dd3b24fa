/* SPDX-License-Identifier: MIT */
/* The answers of docs/protocol.md: flat JSON objects, one per line. */
#ifndef CTL_ANSWER_H
#define CTL_ANSWER_H

#include <stdbool.h>

#include "colibri.h"
#include "generate.h"
#include "request.h"

/* The longest line: every byte of a piece and of an id may become \u00xx, beside fixed words. */
#define CTL_ANSWER_LINE_BYTES (6u * (CTL_TOKEN_TEXT_BYTES + CTL_REQUEST_ID_BYTES) + 512u)

struct ctl_answer {
    int (*write)(void *context, const char *bytes, size_t length, colibri_error *error);
    void *context;
    const colibri_model *model;
    const char *id; /* of the request; empty: it had none */
    colibri_utf8 utf8;
    bool broken;    /* a write failed: nobody reads */
};

/* emit of struct ctl_generation: the text of one token, when it completes characters. */
int ctl_answer_token(void *answer, int32_t id, colibri_error *error);
/* Text that is still held, and the last line. Each returns 0 or a negative code: nobody reads. */
int ctl_answer_done(struct ctl_answer *answer, const struct ctl_generation *g, colibri_error *error);
int ctl_answer_error(struct ctl_answer *answer, const colibri_error *failure, colibri_error *error);

#endif
