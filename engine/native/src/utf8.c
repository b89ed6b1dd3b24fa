/* SPDX-License-Identifier: MIT */
/*
 * Streaming detokenizer: tokens are bytes and may end inside a character. Only whole characters come out;
 * what can never become one comes out as U+FFFD, one per maximal subpart (Unicode 3.9, "U+FFFD
 * Substitution of Maximal Subparts"), wherever the text was cut.
 */
#include "utf8.h"

#include <string.h>

#include "colibri.h"

static const char replacement[3] = { (char)0xef, (char)0xbf, (char)0xbd };

static size_t put_replacement(char *out)
{
    memcpy(out, replacement, sizeof replacement);
    return sizeof replacement;
}

int colibri_utf8_feed(colibri_utf8 *state, const char *bytes, size_t length, char *out,
                      size_t capacity, size_t *written)
{
    size_t at = 0;

    if (written == NULL)
        return COLIBRI_ERR_ARGUMENT;
    *written = 0;
    if (state == NULL || out == NULL || (bytes == NULL && length > 0) || state->held_bytes > 3)
        return COLIBRI_ERR_ARGUMENT;
    if (capacity < 16 || length > (capacity - 16) / 3)
        return COLIBRI_ERR_ARGUMENT;
    for (size_t i = 0; i < length; i++) {
        uint8_t byte = (uint8_t)bytes[i];

        if (state->held_bytes > 0 &&
            !cb_utf8_continues(state->held[0], state->held_bytes, byte)) {
            at += put_replacement(out + at);
            state->held_bytes = 0;
        }
        if (state->held_bytes == 0 && cb_utf8_bytes(byte) == 0) {
            at += put_replacement(out + at);
            continue;
        }
        state->held[state->held_bytes++] = byte;
        if (state->held_bytes == cb_utf8_bytes(state->held[0])) {
            memcpy(out + at, state->held, state->held_bytes);
            at += state->held_bytes;
            state->held_bytes = 0;
        } else if (state->held_bytes > 3) { /* only a state that did not come from here */
            state->held_bytes = 0;
            *written = 0;
            return COLIBRI_ERR_ARGUMENT;
        }
    }
    *written = at;
    return 0;
}

size_t colibri_utf8_flush(colibri_utf8 *state, char *out, size_t capacity)
{
    if (state == NULL || out == NULL || state->held_bytes == 0 || capacity < sizeof replacement)
        return 0;
    state->held_bytes = 0;
    return put_replacement(out);
}
