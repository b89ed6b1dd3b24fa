/* SPDX-License-Identifier: MIT */
#include "answer.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "output.h"
#include "prompt.h"

struct line {
    char text[CTL_ANSWER_LINE_BYTES];
    size_t length;
};

static void put_bytes(struct line *line, const char *bytes, size_t count)
{
    if (count <= sizeof line->text - line->length) {
        memcpy(line->text + line->length, bytes, count);
        line->length += count;
    }
}

static void put(struct line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct line *line, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put_bytes(line, text, strlen(text));
}

/* The bytes are UTF-8: of a token they come through colibri_utf8_feed, of an id through the parser. */
static void put_string(struct line *line, const char *text, size_t length)
{
    put_bytes(line, "\"", 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];

        if (c == '"' || c == '\\') {
            put(line, "\\%c", c);
        } else if (c < 0x20 || c == 0x7F) {
            put(line, "\\u%04x", (unsigned)c);
        } else {
            put_bytes(line, text + i, 1);
        }
    }
    put_bytes(line, "\"", 1);
}

static void begin(struct line *line, const struct ctl_answer *answer)
{
    line->length = 0;
    put(line, "{\"id\":");
    put_string(line, answer->id, strlen(answer->id));
}

static int finish(struct line *line, struct ctl_answer *answer, colibri_error *error)
{
    int code;

    put(line, "}\n");
    code = answer->write(answer->context, line->text, line->length, error);
    ctl_wipe(line->text, line->length);
    answer->broken = code != 0;
    return code;
}

static int write_piece(struct ctl_answer *answer, const char *text, size_t length,
                       colibri_error *error)
{
    struct line line;

    if (length == 0) {
        return 0;
    }
    begin(&line, answer);
    put(&line, ",\"text\":");
    put_string(&line, text, length);
    return finish(&line, answer, error);
}

int ctl_answer_token(void *context, int32_t id, colibri_error *error)
{
    struct ctl_answer *answer = context;
    char text[CTL_TOKEN_TEXT_BYTES];
    size_t length;
    int code = ctl_token_text(answer->model, &answer->utf8, id, text, &length, error);

    return code != 0 ? code : write_piece(answer, text, length, error);
}

int ctl_answer_done(struct ctl_answer *answer, const struct ctl_generation *g, colibri_error *error)
{
    struct line line;
    char held[16], hex[CTL_HEX_BYTES];
    size_t length = colibri_utf8_flush(&answer->utf8, held, sizeof held);
    int code = write_piece(answer, held, length, error);

    if (code != 0) {
        return code;
    }
    begin(&line, answer);
    put(&line, ",\"done\":\"%s\",\"prompt_tokens\":%zu,\"tokens\":%u", g->ended ? "end" : "length",
        g->prompt_tokens, (unsigned)g->generated);
    ctl_hex(g->logits_sha256, hex);
    put(&line, ",\"logits_sha256\":\"%s\"", hex);
    return finish(&line, answer, error);
}

int ctl_answer_error(struct ctl_answer *answer, const colibri_error *failure, colibri_error *error)
{
    const char *message = failure->message[0] != '\0' ? failure->message
                                                      : colibri_strerror(failure->code);
    struct line line;

    begin(&line, answer);
    put(&line, ",\"error\":%d,\"name\":\"%s\",\"message\":", (int)failure->code,
        ctl_code_name(failure->code));
    put_string(&line, message, strlen(message));
    return finish(&line, answer, error);
}
