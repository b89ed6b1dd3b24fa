/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target of the request parser: any line is refused with a filled error, or gives values in
 * their ranges and strings of valid UTF-8 that lie in the line.
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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ctl_request request;
    colibri_error error = { .offset = 0 };
    char *line = malloc(size + 1); /* a bound that a sanitizer watches */
    int code;

    need(line != NULL, "no memory");
    memcpy(line, data, size);
    line[size] = 'x';
    code = ctl_request_parse(&request, line, size, &error);
    need(line[size] == 'x', "writes behind the line");
    need_utf8(request.id, strlen(request.id));
    if (code != 0) {
        need(code == COLIBRI_ERR_ARGUMENT && error.code == code && error.message[0] != '\0' &&
                 strlen(error.message) < sizeof error.message,
             "the error is not filled");
    } else {
        const colibri_sampler *s = &request.sampler;

        need(request.prompt >= line && request.prompt + request.prompt_bytes <= line + size,
             "the prompt is elsewhere");
        need_utf8(request.prompt, request.prompt_bytes);
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

#include "sampler.h"

#define MAX_LINE_BYTES 4096u

static const char *const seeds[] = {
    "{\"id\":\"7\",\"prompt\":\"The capital of France is\",\"tokens\":16}",
    "{ \"prompt\" : \"a\\u00e9\\ud83d\\ude00\\n\\\"\\\\\" , \"chat\" : true, \"ignore_end\":false }",
    ("{\"prompt\":\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\",\"temperature\":0.7,\"top_k\":40,\"top_p\":9e-1,"
     "\"min_p\":0.05,\"seed\":18446744073709551615}"),
};

static void mutate(unsigned long count, uint64_t seed)
{
    static const char alphabet[] = "{}[]\":,\\u0123456789abdefADF.+-eE tnrl\x01\x7f\x80\xbf\xc3\xe0\xed\xf0\xf4\xff";
    uint8_t line[MAX_LINE_BYTES];
    uint64_t counter = 0;

    for (unsigned long n = 0; n < count; n++) {
        const char *from = seeds[n % (sizeof seeds / sizeof *seeds)];
        size_t size = strlen(from);

        memcpy(line, from, size);
        for (uint64_t edits = cb_random(seed, counter++) % 6; edits > 0 && size > 0; edits--) {
            size_t at = (size_t)(cb_random(seed, counter++) % size);
            char c = alphabet[cb_random(seed, counter++) % (sizeof alphabet - 1)];

            switch (cb_random(seed, counter++) % 4) {
            case 0: /* insert */
                memmove(line + at + 1, line + at, size - at);
                size++;
                line[at] = (uint8_t)c;
                break;
            case 1: /* delete */
                memmove(line + at, line + at + 1, size - at - 1);
                size--;
                break;
            case 2: /* cut */
                size = cb_random(seed, counter++) % 8 == 0 ? at : size;
                break;
            default:
                line[at] = (uint8_t)c;
                break;
            }
        }
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
        print_hex(r.prompt, r.prompt_bytes);
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
