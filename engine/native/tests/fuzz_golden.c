/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target of the reader of golden results: any text is refused with a filled error, or gives cases
 * whose numbers are in their ranges and whose ids lie in the room that was given.
 *
 * With libFuzzer:
 *     clang -fsanitize=fuzzer,address,undefined -DCOLIBRI_LIBFUZZER fuzz_golden.c golden.c ...
 * Without: the program reads files that are named and prints what each gives, for comparison with
 * another reader, or runs over seeded mutations of a text of its own:
 *     fuzz_golden FILE... | --mutations N [--seed S]
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../tools/golden.h"
#include "spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops at once: a fuzzer keeps the input of an abort. */
static void need(int ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "fuzz_golden: broken: %s\n", what);
    abort();
}

static void need_hash(const char *hash, const char *text, size_t size)
{
    need(hash >= text && hash + CTL_GOLDEN_DIGITS <= text + size, "a hash is elsewhere");
}

static void need_ids(const int32_t *ids, uint32_t count, const int32_t *room, size_t capacity)
{
    need(ids >= room && ids + count <= room + capacity, "ids are elsewhere");
    for (uint32_t i = 0; i < count; i++)
        need(ids[i] >= 0 && (uint32_t)ids[i] < CB_MAX_VOCABULARY, "an id is out of range");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct ctl_golden golden;
    colibri_error error = { .code = 1 };
    char *text = malloc(size + (size == 0)); /* a bound that a sanitizer watches */
    int32_t *ids = malloc(size / 2 * sizeof *ids + (size < 2));
    int code;

    need(text != NULL && ids != NULL, "no memory");
    if (size > 0)
        memcpy(text, data, size);
    code = ctl_golden_parse(&golden, text, size, ids, &error);
    need(code == error.code && golden.count <= CB_MAX_GOLDEN_CASES, "code or count");
    if (code != 0) {
        need(code == COLIBRI_ERR_ARGUMENT && error.message[0] != '\0', "the error is not filled");
    } else {
        need(golden.count > 0, "no cases");
        need_hash(golden.root, text, size);
        for (size_t i = 0; i < golden.count; i++) {
            const struct ctl_golden_case *c = &golden.cases[i];

            need(c->prompt_tokens > 0 && c->id_count > 0 && c->id_count <= c->limit_tokens &&
                     c->limit_tokens <= CB_MAX_CONTEXT_TOKENS && c->kv <= COLIBRI_KV_F32,
                 "a number is out of range");
            need_hash(c->logits_sha256, text, size);
            need_ids(c->prompt, c->prompt_tokens, ids, size / 2);
            need_ids(c->ids, c->id_count, ids, size / 2);
        }
    }
    free(ids);
    free(text);
    return 0;
}

/* ---- without libFuzzer -------------------------------------------------------------------------- */

#ifndef COLIBRI_LIBFUZZER

#include "fuzz_text.h"

#define HASH "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static const char seed_text[] =
    "{\"format\": 1, \"root\": \"" HASH "\",\n \"cases\": [{\"name\": \"a\\u00e9\\n\", \"prompt\": \"\", \"chat\": false,"
    " \"prompt_ids\": [1, 20, 1048575], \"kv\": \"f16\", \"n\": 3, \"ids\": [0, 7], \"text\": \"\xc3\xa9\","
    " \"logits_sha256\": \"" HASH "\"}]}\n";

static void mutate(unsigned long count, uint64_t seed)
{
    static const char alphabet[] = "{}[]\":,\\u0123456789abdefnrt.+-eE \n\x01\x7f\x80\xff";
    uint8_t text[2 * sizeof seed_text];
    uint64_t counter = 0;

    for (unsigned long n = 0; n < count; n++) {
        size_t size = sizeof seed_text - 1;

        memcpy(text, seed_text, size);
        size = fuzz_edit_text(text, size, alphabet, sizeof alphabet - 1, seed, &counter);
        (void)LLVMFuzzerTestOneInput(text, size);
    }
    printf("fuzz_golden: %lu inputs, none crashed\n", count);
}

static void print_ids(const int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        printf("%c%d", i > 0 ? ',' : ' ', (int)ids[i]);
}

static void print_hash(const char *hash)
{
    printf(" %.*s", (int)CTL_GOLDEN_DIGITS, hash);
}

/* One line per file: refused, or the root and the cases. */
static void answer(const char *path)
{
    static struct ctl_golden golden;
    colibri_error error = { .offset = -1 };
    size_t bytes;
    char *text;
    int32_t *ids = NULL;
    int code = ctl_golden_read(path, &text, &bytes, &error);

    if (code == 0 && text != NULL) {
        ids = malloc(bytes / 2 * sizeof *ids + 1);
        need(ids != NULL, "no memory");
        code = ctl_golden_parse(&golden, text, bytes, ids, &error);
    }
    if (code != 0 || text == NULL) {
        printf("refused: %s\n", error.message);
    } else {
        printf("read");
        print_hash(golden.root);
        for (size_t i = 0; i < golden.count; i++) {
            const struct ctl_golden_case *c = &golden.cases[i];

            printf(" | %u %u", (unsigned)c->kv, (unsigned)c->limit_tokens);
            print_hash(c->logits_sha256);
            print_ids(c->prompt, c->prompt_tokens);
            print_ids(c->ids, c->id_count);
        }
        putchar('\n');
    }
    free(ids);
    free(text);
}

int main(int argc, char **argv)
{
    unsigned long mutations = 0;
    uint64_t seed = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mutations") == 0 && i + 1 < argc)
            mutations = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else
            answer(argv[i]);
    }
    if (mutations > 0)
        mutate(mutations, seed);
    return 0;
}

#endif
