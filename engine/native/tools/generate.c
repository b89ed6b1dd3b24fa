/* SPDX-License-Identifier: MIT */
#include "generate.h"

#include <stdio.h>

#include "output.h"
#include "signals.h"

struct hash {
    colibri_sha256 state;
    size_t bytes; /* of one row of logits */
};

static int check_interrupted(const struct ctl_generation *g, colibri_error *error)
{
    if (g->between != NULL) {
        return g->between(g->between_context, error);
    }
    if (ctl_signal_caught() == 0) {
        return 0;
    }
    error->code = COLIBRI_ERR_CANCELLED;
    error->offset = -1;
    (void)snprintf(error->message, sizeof error->message, "interrupted by signal %d",
                   ctl_signal_caught());
    return error->code;
}

/* A cancelled append says "cancelled"; why is what the user wants to know. */
static int append(struct ctl_generation *g, const int32_t *ids, size_t count, colibri_error *error)
{
    int code = colibri_session_append(g->session, ids, count, error);

    if (code == 0 || code == COLIBRI_ERR_CANCELLED) {
        int interrupted = check_interrupted(g, error);

        return interrupted != 0 ? interrupted : code;
    }
    return code;
}

static int append_prompt(struct ctl_generation *g, colibri_error *error)
{
    size_t done = 0;
    size_t piece = 0;

    while (done < g->prompt_tokens) {
        size_t left = g->prompt_tokens - done;
        size_t count = left;
        int code;

        if (g->pieces.each) {
            count = 1;
        } else if (piece < g->pieces.count && g->pieces.sizes[piece] < left) {
            count = g->pieces.sizes[piece];
        } else if (g->step_tokens > 0 && g->step_tokens < left) {
            count = g->step_tokens;
        }
        piece++;
        code = append(g, g->prompt + done, count, error);
        if (code != 0) {
            return code;
        }
        done += count;
    }
    return 0;
}

static int next_token(struct ctl_generation *g, struct hash *hash, int32_t *id,
                      colibri_error *error)
{
    int code;

    if (g->hash_logits) {
        /* f32, little-endian (the engine supports no other), the real vocabulary */
        colibri_sha256_update(&hash->state, colibri_session_logits(g->session), hash->bytes);
    }
    code = colibri_session_sample(g->session, id, error);
    if (code != 0) {
        return code;
    }
    g->generated++;
    g->ended = !g->ignore_end && colibri_token_is_end(g->model, *id) != 0;
    return g->emit != NULL ? g->emit(g->emit_context, *id, error) : 0;
}

static int decode(struct ctl_generation *g, struct hash *hash, double start, colibri_error *error)
{
    double first = 0;

    for (;;) {
        int32_t id = 0;
        int code = next_token(g, hash, &id, error);

        if (g->generated == 1) {
            first = ctl_seconds();
            g->first_token_seconds = first - start;
        } else {
            g->decode_seconds = ctl_seconds() - first;
        }
        if (code != 0 || g->ended || g->generated >= g->limit_tokens) {
            return code;
        }
        code = append(g, &id, 1, error);
        if (code != 0) {
            return code;
        }
    }
}

int ctl_generate(struct ctl_generation *g, colibri_error *error)
{
    colibri_model_info info = { .struct_size = sizeof info };
    struct hash hash;
    double start = ctl_seconds();
    int code = colibri_model_info_get(g->model, &info);

    g->generated = 0;
    g->ended = false;
    hash.bytes = sizeof(float) * (size_t)info.vocabulary;
    colibri_sha256_init(&hash.state);
    if (code == 0) {
        code = append_prompt(g, error);
        g->prompt_seconds = ctl_seconds() - start;
    }
    if (code == 0) {
        code = decode(g, &hash, start, error);
    }
    colibri_sha256_final(&hash.state, g->logits_sha256);
    return code;
}

int ctl_token_text(const colibri_model *model, colibri_utf8 *utf8, int32_t id,
                   char text[CTL_TOKEN_TEXT_BYTES], size_t *length, colibri_error *error)
{
    size_t bytes_length = 0;
    const char *bytes = colibri_token_bytes(model, id, &bytes_length);

    *length = 0;
    if (bytes == NULL || colibri_token_is_end(model, id) != 0 ||
        colibri_token_is_special(model, id) != 0) {
        return 0;
    }
    if (colibri_utf8_feed(utf8, bytes, bytes_length, text, CTL_TOKEN_TEXT_BYTES, length) != 0) {
        error->code = COLIBRI_ERR_INTERNAL;
        error->offset = -1;
        (void)snprintf(error->message, sizeof error->message, "token %d has %zu bytes, more than %u",
                       (int)id, bytes_length, CB_MAX_TOKEN_BYTES);
        return error->code;
    }
    return 0;
}

double ctl_tokens_per_second(const struct ctl_generation *g)
{
    return g->generated > 1 && g->decode_seconds > 0
               ? (double)(g->generated - 1) / g->decode_seconds
               : 0;
}
