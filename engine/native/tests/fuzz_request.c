/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target of what reads the bytes of a client and of a server: any line is refused with a filled
 * error, or gives values in their ranges and strings of valid UTF-8 that lie in the line; and the lines
 * that come out of a stream do not depend on how its bytes arrive.
 *
 * With libFuzzer:
 *     clang -fsanitize=fuzzer,address,undefined -DCOLIBRI_LIBFUZZER fuzz_request.c request.c ...
 * Without: the program reads lines from standard input and prints what each gives, for comparison
 * with another parser, or runs over seeded mutations of requests of its own:
 *     fuzz_request [--mutations N] [--seed S]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tools/lines.h"
#include "../tools/request.h"
#include "spec.h"
#include "utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops at once: a fuzzer keeps the input of an abort. */
static void need(int ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "fuzz_request: broken: %s\n", what);
    abort();
}

/* U+FFFD comes out of invalid bytes only, and a valid text comes out as it is. */
static void need_utf8(const char *text, size_t length)
{
    colibri_utf8 state = { .held_bytes = 0 };
    char out[3 + 16];

    for (size_t i = 0, same = 0; i < length; i++) {
        size_t written;

        need(colibri_utf8_feed(&state, text + i, 1, out, sizeof out, &written) == 0, "feed refuses");
        need(same + written <= i + 1 && memcmp(out, text + same, written) == 0, "invalid UTF-8");
        same += written;
    }
    need(state.held_bytes == 0, "the text ends inside a character");
}

/* A copy with a bound that a sanitizer watches. */
static char *copy_line(const uint8_t *data, size_t size)
{
    char *line = malloc(size + 1);

    need(line != NULL, "no memory");
    memcpy(line, data, size);
    line[size] = 'x';
    return line;
}

static void need_refusal(int code, const colibri_error *error)
{
    need(code == COLIBRI_ERR_ARGUMENT && error->code == code && error->message[0] != '\0' &&
             strlen(error->message) < sizeof error->message,
         "the error is not filled");
}

static void need_span(const struct ctl_span *span, const char *line, size_t size)
{
    if (span->at == NULL)
        return;
    need(span->at >= line && span->at + span->bytes <= line + size, "a text is elsewhere");
    need_utf8(span->at, span->bytes);
}

static void try_reply(const uint8_t *data, size_t size)
{
    struct ctl_reply reply;
    colibri_error error = { .offset = 0 };
    char *line = copy_line(data, size);
    int code = ctl_reply_parse(&reply, line, size, &error);

    need(line[size] == 'x', "writes behind the line");
    need_utf8(reply.id, strlen(reply.id));
    if (code != 0) {
        need_refusal(code, &error);
    } else {
        need((reply.text.at != NULL) + (reply.done.at != NULL) + (reply.error < 0) == 1 && reply.error <= 0,
             "neither or both");
        need_span(&reply.text, line, size);
        need_span(&reply.done, line, size);
        need_span(&reply.name, line, size);
        need_span(&reply.message, line, size);
        need_span(&reply.logits_sha256, line, size);
    }
    free(line);
}

/* ---- lines -------------------------------------------------------------------------------------- */

#define LINE_LIMIT 24u

/* What the stream must give at *at: its next line that is not blank. 0 at its end. */
static int next_expected(const uint8_t *data, size_t size, size_t *at, size_t *length)
{
    while (*at < size) {
        const uint8_t *start = data + *at;
        const uint8_t *end = memchr(start, '\n', size - *at);
        int blank = 1;

        *length = end != NULL ? (size_t)(end - start) : size - *at;
        *at += *length + (end != NULL);
        for (size_t i = 0; i < *length; i++)
            blank &= start[i] == ' ' || start[i] == '\t' || start[i] == '\r';
        if (!blank || *length >= LINE_LIMIT)
            return 1;
    }
    return 0;
}

/* step: how the bytes arrive, and after how many of them somebody has time for a line. */
static void try_lines(const uint8_t *data, size_t size, size_t step)
{
    char *bytes = calloc(1, LINE_LIMIT);
    struct ctl_lines lines = { .bytes = bytes, .limit = LINE_LIMIT };
    size_t sent = 0, at = 0, length = 0, turns = 0;

    need(bytes != NULL, "no memory");
    while (!lines.ended || ctl_lines_next(&lines)) {
        size_t space, count = sent + step < size ? step : size - sent;
        char *room = ctl_lines_room(&lines, &space);

        count = count < space ? count : space;
        need(room >= bytes && room + space <= bytes + LINE_LIMIT, "room elsewhere");
        memcpy(room, data + sent, count);
        ctl_lines_add(&lines, count);
        sent += count;
        lines.ended = lines.ended || sent == size;
        if (++turns % 3 != 0 && space > 0 && !lines.ended)
            (void)ctl_lines_next(&lines); /* it waits for its turn while more comes in */
        else if (ctl_lines_next(&lines)) {
            need(next_expected(data, size, &at, &length), "a line too many");
            need(lines.too_long == (length >= LINE_LIMIT), "too long, or not");
            need(lines.too_long || (lines.length == length &&
                                    memcmp(ctl_lines_text(&lines), data + at - lines.taken, length) == 0),
                 "another line");
            ctl_lines_drop(&lines);
        }
    }
    need(!next_expected(data, size, &at, &length), "a line is missing");
    for (size_t i = 0; i < LINE_LIMIT; i++)
        need(bytes[i] == '\0', "what was dropped is still there");
    free(bytes);
}

/* ---- everything --------------------------------------------------------------------------------- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ctl_request request;
    colibri_error error = { .offset = 0 };
    char *line = copy_line(data, size);
    int code;

    try_reply(data, size);
    try_lines(data, size, 1);
    try_lines(data, size, 1 + (size > 0 ? data[0] % 40u : 0));
    code = ctl_request_parse(&request, line, size, &error);
    need(line[size] == 'x', "writes behind the line");
    need_utf8(request.id, strlen(request.id));
    if (code != 0) {
        need_refusal(code, &error);
    } else {
        const colibri_sampler *s = &request.sampler;

        need(request.prompt.at != NULL, "no prompt");
        need_span(&request.prompt, line, size);
        need(request.tokens >= 1 && request.tokens <= CB_MAX_CONTEXT_TOKENS, "tokens");
        need(s->temperature >= 0 && s->temperature <= 100 && s->top_p >= 0 && s->top_p <= 1 &&
                 s->min_p >= 0 && s->min_p <= 1 && s->top_k <= CB_MAX_VOCABULARY,
             "sampler");
    }
    free(line);
    return 0;
}

/* ---- without libFuzzer -------------------------------------------------------------------------- */

#ifndef COLIBRI_LIBFUZZER

#include "fuzz_text.h"

#define MAX_LINE_BYTES 4096u

static const char *const seeds[] = {
    "{\"id\":\"7\",\"prompt\":\"The capital of France is\",\"tokens\":16}",
    "{ \"prompt\" : \"a\\u00e9\\ud83d\\ude00\\n\\\"\\\\\" , \"chat\" : true, \"ignore_end\":false }",
    ("{\"prompt\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\",\"temperature\":0.7,\"top_k\":40,\"top_p\":9e-1,"
     "\"min_p\":0.05,\"seed\":18446744073709551615}"),
    "{\"id\":\"7\",\"text\":\" Paris\"}",
    "{\"id\":\"7\",\"done\":\"end\",\"prompt_tokens\":5,\"tokens\":3,\"logits_sha256\":\"00ff\"}",
    "{\"id\":\"\",\"error\":-61,\"name\":\"busy\",\"message\":\"try again\"}",
};

static void mutate(unsigned long count, uint64_t seed)
{
    static const char alphabet[] = "{}[]\":,\\u0123456789abdefADF.+-eE tnrl\n\n\x01\x7f\x80\xbf\xc3\xe0\xed\xf0\xf4\xff";
    uint8_t line[MAX_LINE_BYTES];
    uint64_t counter = 0;

    for (unsigned long n = 0; n < count; n++) {
        const char *from = seeds[n % (sizeof seeds / sizeof *seeds)];
        size_t size = strlen(from);

        memcpy(line, from, size);
        size = fuzz_edit_text(line, size, alphabet, sizeof alphabet - 1, seed, &counter);
        (void)LLVMFuzzerTestOneInput(line, size);
    }
    printf("fuzz_request: %lu inputs, none crashed\n", count);
}

static void print_hex(const char *text, size_t length)
{
    putchar(' ');
    putchar('x');
    for (size_t i = 0; i < length; i++)
        printf("%02x", (unsigned)(unsigned char)text[i]);
}

static void answer_lines(void)
{
    static char line[MAX_LINE_BYTES];

    while (fgets(line, sizeof line, stdin) != NULL) {
        struct ctl_request r;
        colibri_error error = { .offset = 0 };
        int code = ctl_request_parse(&r, line, strcspn(line, "\n"), &error);

        if (code != 0) {
            printf("refused: %s\n", error.message);
            continue;
        }
        printf("%u %d %d %u %llu %.9g %.9g %.9g", (unsigned)r.tokens, r.chat, r.ignore_end,
               (unsigned)r.sampler.top_k, (unsigned long long)r.sampler.seed,
               (double)r.sampler.temperature, (double)r.sampler.top_p, (double)r.sampler.min_p);
        print_hex(r.id, strlen(r.id));
        print_hex(r.prompt.at, r.prompt.bytes);
        putchar('\n');
    }
}

int main(int argc, char **argv)
{
    unsigned long mutations = 0;
    uint64_t seed = 0;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--mutations") == 0)
            mutations = strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], NULL, 10);
    }
    if (mutations > 0)
        mutate(mutations, seed);
    else
        answer_lines();
    return 0;
}

#endif
