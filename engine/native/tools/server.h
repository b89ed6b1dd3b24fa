/* SPDX-License-Identifier: MIT */
/*
 * One request after another on one session: what serve does with a line, wherever it came from.
 * No heap: everything is there when the first line is.
 */
#ifndef CTL_SERVER_H
#define CTL_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "answer.h"
#include "colibri.h"
#include "generate.h"
#include "request.h"

#define CTL_REQUEST_FIXED_BYTES 4096u /* of a line, beside its prompt */

struct ctl_server {
    colibri_model *model;
    colibri_session *session;
    size_t text_limit, line_limit;        /* bytes */
    uint32_t context_tokens, batch_tokens;
    uint32_t token_limit;                 /* of a request's "tokens" */
    int32_t *ids;                         /* [text_limit + CTL_MAX_CHAT_IDS] */
    size_t used_ids;                      /* to be wiped */
};

/* Who reads the answers. */
struct ctl_link {
    int (*write)(void *context, const char *bytes, size_t length, colibri_error *error);
    /* Between two pieces of work: a negative code ends the request. NULL: the prompt is one piece, and
     * a signal ends it. */
    int (*between)(void *context, colibri_error *error);
    void *context;
};

struct ctl_job {
    struct ctl_request request;
    struct ctl_generation generation;
    colibri_error failure; /* its code: 0 when the request can run */
};

/* Bytes of ids for a server with such prompts. */
size_t ctl_server_ids_bytes(size_t text_limit);
/* Reads the request; its line is not needed any more. */
void ctl_server_begin(struct ctl_server *server, struct ctl_job *job, char *line, size_t length,
                      bool too_long);
/* Runs it and answers, then wipes what was made of it. 0, or a negative code when nobody reads. */
int ctl_server_finish(struct ctl_server *server, struct ctl_job *job, const struct ctl_link *link,
                      colibri_error *error);

/* Fills *error; returns the code. */
int ctl_refuse(colibri_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
