/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target of the tokenizer: any section must be refused with a pinned code, or encode any text to ids
 * that are in range, hold no special token that the flags do not ask for, and decode to the text.
 *
 * An input is: u16 length of the text, the text, the section. With libFuzzer:
 *     clang -fsanitize=fuzzer,address,undefined -DCOLIBRI_LIBFUZZER fuzz_tokenizer.c ...
 * Without: the program runs over files and seeded mutations of them:
 *     fuzz_tokenizer [--mutations N] [--seed S] FILE...
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"
#include "common.h"
#include "tokenizer.h"

#define FIXED_IDS 4096u /* room for BOS, chat prefix and suffix; longer ones must be refused */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stops at once: a fuzzer keeps the input of an abort. */
static void need(int ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "fuzz_tokenizer: broken: %s\n", what);
    abort();
}

static void check_refusal(int code, const colibri_error *error)
{
    need(code == COLIBRI_ERR_TOKENIZER || code == COLIBRI_ERR_LIMIT ||
             code == COLIBRI_ERR_UNSUPPORTED,
         "open gives another code");
    need(error->code == code && error->message[0] != '\0', "the error is not filled");
}

/* Of kind sentencepiece_bpe: decoded ids are the text, U+2581 as a space, behind `lead` spaces. */
static int is_written_out(const struct cb_tokenizer *t, const char *text, size_t length,
                          const int32_t *ids, size_t count, size_t lead)
{
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *token = cb_tokenizer_bytes(t, ids[i], &bytes);

        need(token != NULL, "an id has no text");
        need(!cb_tokenizer_is_special(t, ids[i]), "plain text gives a special token");
        for (size_t b = 0; b < bytes; b++) {
            if (lead > 0 && token[b] == ' ')
                lead--;
            else if (lead == 0 && at < length && token[b] == text[at])
                at++;
            else if (lead == 0 && length - at > 2 && token[b] == ' ' &&
                     memcmp(text + at, "\xe2\x96\x81", 3) == 0)
                at += 3;
            else
                return 0;
        }
    }
    return lead == 0 && at == length;
}

static void check_characters(const struct cb_tokenizer *t, const char *text, size_t length,
                             const int32_t *ids, size_t count)
{
    int may_lead = length > 0 && (t->head.flags & CB_TOKENIZER_FLAG_ADD_PREFIX_SPACE) &&
                   t->space != UINT32_MAX;
    int must_lead = may_lead && !(t->head.flags & CB_TOKENIZER_FLAG_KEEP_PREFIX_SPACE);

    need((!must_lead && is_written_out(t, text, length, ids, count, 0)) ||
             (may_lead && is_written_out(t, text, length, ids, count, 1)),
         "ids of characters do not decode to the text");
}

/* Decoded ids are the text without the bytes that have no token. */
static void check_round_trip(const struct cb_tokenizer *t, const char *text, size_t length,
                             const int32_t *ids, size_t count)
{
    size_t at = 0;

    if (t->head.kind == CB_TOKENIZER_SENTENCEPIECE_BPE) {
        check_characters(t, text, length, ids, count);
        return;
    }
    if (t->head.unk_id != CB_NONE_INDEX)
        return;
    /* a whole word that is a token and a literal keep bytes that are left out elsewhere: not told apart here */
    for (size_t i = 0; i < 256; i++)
        if ((t->by_text != NULL || t->head.literals > 0) && t->byte_ids[i] == UINT32_MAX)
            return;
    for (size_t i = 0; i < count; i++) {
        size_t bytes;
        const char *token = cb_tokenizer_bytes(t, ids[i], &bytes);

        need(token != NULL, "an id has no text");
        need(!cb_tokenizer_is_special(t, ids[i]), "plain text gives a special token");
        for (size_t b = 0; b < bytes; b++, at++) {
            while (at < length && t->byte_ids[(uint8_t)text[at]] == UINT32_MAX)
                at++;
            need(at < length && token[b] == text[at], "ids do not decode to the text");
        }
    }
}

static void encode(const struct cb_tokenizer *t, const char *text, size_t length,
                   enum colibri_text form)
{
    size_t scratch_bytes = cb_tokenizer_scratch_bytes(length + (size_t)cb_min64(t->around, FIXED_IDS));
    size_t count = length + FIXED_IDS;
    void *scratch = malloc(scratch_bytes + 1);
    int32_t *ids = malloc(count * sizeof *ids);
    size_t first = form == COLIBRI_TEXT_PLAIN && (t->head.flags & CB_TOKENIZER_FLAG_ADD_BOS);
    int code;

    need(scratch != NULL && ids != NULL, "no memory");
    code = cb_tokenizer_encode(t, text, length, form, scratch, scratch_bytes, ids, &count, NULL);
    need(code == 0 || code == COLIBRI_ERR_NO_CHAT || code == COLIBRI_ERR_TEXT_LONG,
         "encode gives another code");
    for (size_t i = 0; i < count; i++)
        need(ids[i] >= 0 && (uint32_t)ids[i] < t->head.tokens, "an id is out of range");
    if (code == 0 && form == COLIBRI_TEXT_PLAIN)
        check_round_trip(t, text, length, ids + first, count - first);
    free(scratch);
    free(ids);
}

static void detokenize(const char *text, size_t length)
{
    colibri_utf8 state = { .held_bytes = 0 };
    char out[3 * 7 + 16];

    for (size_t at = 0; at < length;) {
        size_t bytes = length - at < 7 ? length - at : 7, written;

        need(colibri_utf8_feed(&state, text + at, bytes, out, sizeof out, &written) == 0,
             "feed refuses bytes");
        need(written <= sizeof out, "feed writes too much");
        at += bytes;
    }
    need(colibri_utf8_flush(&state, out, sizeof out) <= 3, "flush writes too much");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cb_tokenizer tokenizer;
    colibri_error error = { .code = 0 };
    const char *text = (const char *)data + 2;
    uint8_t *section;
    size_t length, section_bytes;
    int code;

    if (size < 2)
        return 0;
    length = (size_t)data[0] | (size_t)data[1] << 8;
    if (length > size - 2)
        length = size - 2;
    section_bytes = size - 2 - length;
    section = malloc(section_bytes + 1); /* aligned, and a bound that a sanitizer watches */
    need(section != NULL, "no memory");
    memcpy(section, data + 2 + length, section_bytes);
    code = cb_tokenizer_open(&tokenizer, section, section_bytes, CB_MAX_VOCABULARY, &error);
    if (code == 0) {
        encode(&tokenizer, text, length, COLIBRI_TEXT_PLAIN);
        encode(&tokenizer, text, length, COLIBRI_TEXT_CHAT);
    } else {
        check_refusal(code, &error);
    }
    detokenize(text, length);
    free(section);
    return 0;
}

/* ---- without libFuzzer -------------------------------------------------------------------------- */

#ifndef COLIBRI_LIBFUZZER

#include "sampler.h"

#define MAX_FILE_BYTES (8u << 20)
#define MAX_EDITS 3u

static uint64_t seed, counter;

static uint64_t next(uint64_t bound)
{
    return cb_random(seed, counter++) % bound;
}

static void edit(uint8_t *data, size_t size)
{
    static const uint32_t values[] = { 0, 1, 2, 3, 255, 256, 1025, 0x10ffff, 0x110000, 0x7fffffff,
                                       0x80000000, 0xffffffff };
    uint32_t value = values[next(sizeof values / sizeof *values)];
    size_t text = ((size_t)data[0] | (size_t)data[1] << 8) + 2, at = (size_t)next(size);

    switch (next(4)) {
    case 0: /* a word of the section */
    case 1: /* a word of its head */
        if (text + 64 <= size) {
            at = text + 4 * (size_t)next(next(2) ? 16 : (size - text) / 4);
            memcpy(data + at, &value, at + 4 <= size ? 4 : size - at);
        }
        break;
    case 2:
        data[at] ^= (uint8_t)(1u << next(8));
        break;
    default: /* text */
        data[2 + next(text - 2 > 0 && text <= size ? text - 2 : 1)] = (uint8_t)next(256);
        break;
    }
}

static unsigned long run_file(const char *path, unsigned long mutations)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(MAX_FILE_BYTES), *copy = malloc(MAX_FILE_BYTES);
    size_t size;

    if (file == NULL || data == NULL || copy == NULL) {
        perror(path);
        exit(2);
    }
    size = fread(data, 1, MAX_FILE_BYTES, file);
    fclose(file);
    (void)LLVMFuzzerTestOneInput(data, size);
    for (unsigned long n = 0; n < mutations && size > 2; n++) {
        size_t bytes = next(8) ? size : (size_t)next(size) + 1;

        memcpy(copy, data, size);
        for (uint64_t edits = next(MAX_EDITS) + 1; edits > 0; edits--)
            edit(copy, size);
        (void)LLVMFuzzerTestOneInput(copy, bytes);
    }
    free(data);
    free(copy);
    return 1 + mutations;
}

int main(int argc, char **argv)
{
    unsigned long mutations = 0, inputs = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mutations") == 0 && i + 1 < argc)
            mutations = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else
            inputs += run_file(argv[i], mutations);
    }
    if (inputs == 0) {
        (void)fprintf(stderr, "usage: fuzz_tokenizer [--mutations N] [--seed S] FILE...\n");
        return 2;
    }
    printf("fuzz_tokenizer: %lu inputs\n", inputs);
    return 0;
}

#endif
