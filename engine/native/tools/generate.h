/* SPDX-License-Identifier: MIT */
/* Prompt in, tokens out: the loop that run, selftest and test share. */
#ifndef CTL_GENERATE_H
#define CTL_GENERATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../src/spec.h"
#include "colibri.h"

/* colibri_utf8_feed asks for three bytes per byte of a token, and 16 */
#define CTL_TOKEN_TEXT_BYTES (3u * CB_MAX_TOKEN_BYTES + 16u)
#define CTL_MAX_PIECES 64u /* of a prompt that --batch-split cuts */

struct ctl_pieces {
    uint32_t sizes[CTL_MAX_PIECES]; /* the prompt is appended in pieces of these sizes, the rest at once */
    size_t count;
    bool each; /* token by token; sizes are not used */
};

struct ctl_generation {
    /* what to do */
    colibri_model *model;
    colibri_session *session;
    const int32_t *prompt; /* [prompt_tokens] */
    size_t prompt_tokens;
    struct ctl_pieces pieces;
    uint32_t step_tokens; /* else in pieces of so many; 0: at once */
    uint32_t limit_tokens; /* generate at most this many, at least 1 */
    bool ignore_end;
    bool hash_logits;
    /* Called with each generated id; a negative code stops. May be NULL. */
    int (*emit)(void *context, int32_t id, colibri_error *error);
    void *emit_context;
    /* Called behind each piece and token that was computed; a negative code stops. NULL: a signal does. */
    int (*between)(void *context, colibri_error *error);
    void *between_context;
    /* what happened; also filled as far as it came on an error */
    uint32_t generated;
    bool ended; /* by an end token */
    double prompt_seconds, first_token_seconds, decode_seconds;
    uint8_t logits_sha256[32]; /* of the logits that chose each token */
};

/* 0, or a negative code with *error filled. */
int ctl_generate(struct ctl_generation *g, colibri_error *error);

/* The characters that this token completes; none for one that is special or ends a text. 0, or a negative
 * code with *error filled. */
int ctl_token_text(const colibri_model *model, colibri_utf8 *utf8, int32_t id,
                   char text[CTL_TOKEN_TEXT_BYTES], size_t *length, colibri_error *error);

/* Tokens per second of the steps behind the first token; 0 when there were none. */
double ctl_tokens_per_second(const struct ctl_generation *g);

#endif
