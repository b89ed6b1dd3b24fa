/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target of the snapshot reader: any bytes must be refused with a pinned code and leave the
 * session as it was, or give a session that computes.
 *
 * An input is the bytes of a snapshot; when its first byte is '#', the rest is one whose hash is to
 * be made right; '$' says the same of a model with latent attention, convolutions and sinks. Behind
 * '%' and a byte for the model stand words for a good snapshot: a place (u16), a value (u32), and so
 * on; a fuzzer that finds its own inputs gets behind the head with them. With libFuzzer:
 *     clang -fsanitize=fuzzer,address,undefined -DCOLIBRI_LIBFUZZER fuzz_snapshot.c ...
 * Without: the program runs over seeded mutations of a good snapshot, which it makes itself:
 *     fuzz_snapshot [--mutations N] [--seed S]
 */
#include <stddef.h>
#include <stdlib.h>

#include "sha256.h"
#include "snapshot.h"
#include "variants.h"

#define MAX_BYTES ((size_t)1 << 20)
#define PREFIX 9

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Two models, each with a session and a good snapshot of it. */
#define MODELS 2
static struct subject {
    colibri_model *model;
    colibri_session *session;
    uint8_t good[MAX_BYTES];
    size_t good_bytes;
} subjects[MODELS];
static uint8_t copy[MAX_BYTES + 1];
static const char sealed[MODELS + 1] = "#$";

/* Stops at once: a fuzzer keeps the input of an abort. */
static void need(int ok, const char *what)
{
    if (ok)
        return;
    (void)fprintf(stderr, "fuzz_snapshot: broken: %s\n", what);
    abort();
}

static void start(struct subject *s, const struct variant *v)
{
    static struct build_file file;
    colibri_model_options o;
    int32_t ids[PREFIX] = {1, 2, 3, 5, 8, 13, 21, 34, 55};

    build_variant(&file, v);
    colibri_model_options_default(&o);
    o.threads = 1;
    o.context_tokens = 16;
    o.lock = COLIBRI_LOCK_OFF;
    need(build_open(&file, file.size, &o, &s->model, NULL) == 0, "open");
    free(file.bytes);
    need(colibri_session_create(s->model, &s->session, NULL) == 0, "create");
    need(colibri_session_append(s->session, ids, PREFIX, NULL) == 0, "append");
    s->good_bytes = (size_t)colibri_session_snapshot_bytes(s->session);
    need(s->good_bytes <= MAX_BYTES, "size");
    need(colibri_session_save(s->session, s->good, s->good_bytes, NULL) == 0, "save");
}

static void start_all(void)
{
    start(&subjects[0], &variants[0]);
    start(&subjects[1], &variants[VARIANTS - 1]);
}

static void seal(uint8_t *data, size_t size)
{
    size_t at = offsetof(struct cb_snapshot_header, hash);
    uint8_t hash[32];

    if (size < sizeof(struct cb_snapshot_header))
        return;
    memset(data + at, 0, sizeof hash);
    cb_sha256(data, size, hash);
    memcpy(data + at, hash, sizeof hash);
}

static void check_restored(colibri_session *session)
{
    int32_t id = -1;
    uint32_t position = colibri_session_position(session), count;
    const int32_t *ids = colibri_session_ids(session, &count);
    int code;

    need(position > 0 && position <= 16 && count == position, "position");
    need(ids[0] >= 0 && ids[position - 1] >= 0, "ids");
    need(colibri_session_sample(session, &id, NULL) == 0 && id >= 0, "sample");
    code = colibri_session_append(session, &id, 1, NULL);
    /* finite keys, values and states may be so large that squares overflow: both codes say so */
    need(code == 0 || code == COLIBRI_ERR_NON_FINITE || code == COLIBRI_ERR_ZERO_LOGITS ||
             code == COLIBRI_ERR_CONTEXT_FULL,
         "append");
}

/* A good snapshot with words changed, and the right hash: its size. */
static size_t patched(const struct subject *s, const uint8_t *words, size_t size, uint8_t *out)
{
    memcpy(out, s->good, s->good_bytes);
    for (; size >= 6; words += 6, size -= 6) {
        size_t at = 4 * ((size_t)words[0] | (size_t)words[1] << 8);

        if (at + 4 <= s->good_bytes)
            memcpy(out + at, words + 2, 4);
    }
    seal(out, s->good_bytes);
    return s->good_bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t input[MAX_BYTES], before[32], after[MAX_BYTES];
    struct subject *s = &subjects[0];
    colibri_error error = {0};
    uint64_t bytes;
    int code;

    if (subjects[0].model == NULL)
        start_all();
    if (size > 0 && size <= MAX_BYTES && (data[0] == sealed[0] || data[0] == sealed[1])) {
        s = &subjects[data[0] == sealed[1]];
        memcpy(input, data + 1, size - 1);
        seal(input, size - 1);
        data = input;
        size--;
    } else if (size > 1 && data[0] == '%') {
        s = &subjects[data[1] % MODELS];
        size = patched(s, data + 2, size - 2, input);
        data = input;
    }
    need(colibri_session_restore(s->session, s->good, s->good_bytes, NULL) == 0,
         "a good snapshot is refused");
    bytes = colibri_session_snapshot_bytes(s->session);
    memcpy(before, s->good + offsetof(struct cb_snapshot_header, hash), sizeof before);
    code = colibri_session_restore(s->session, data, size, &error);
    if (code == 0) {
        check_restored(s->session);
        return 0;
    }
    need(code == COLIBRI_ERR_SNAPSHOT || code == COLIBRI_ERR_SNAPSHOT_OTHER ||
             code == COLIBRI_ERR_CONTEXT_FULL,
         "restore gives another code");
    need(error.code == code && error.message[0] != '\0', "the error is not filled");
    need(colibri_session_snapshot_bytes(s->session) == bytes, "the session changed");
    need(colibri_session_save(s->session, after, (size_t)bytes, NULL) == 0, "save");
    need(memcmp(after + offsetof(struct cb_snapshot_header, hash), before, sizeof before) == 0,
         "the session changed");
    return 0;
}

#ifndef COLIBRI_LIBFUZZER

static uint64_t seed = 1;

static uint64_t next(uint64_t limit)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (seed >> 33) % limit;
}

static void edit(uint8_t *data, size_t size)
{
    static const uint32_t values[] = {0, 1, 2, 8, 9, 10, 16, 17, 255, 0x7c00, 0x7fffffff, 0x80000000,
                                      0xffffffff};
    uint32_t value = values[next(sizeof values / sizeof *values)];
    size_t at;

    switch (next(3)) {
    case 0: /* a word of the head */
        at = 4 * (size_t)next(28);
        break;
    case 1: /* a word anywhere */
        at = 4 * (size_t)next(size / 4 + 1);
        break;
    default:
        at = (size_t)next(size);
        data[at] ^= (uint8_t)(1u << next(8));
        return;
    }
    if (at + 4 <= size)
        memcpy(data + at, &value, 4);
}

int main(int argc, char **argv)
{
    unsigned long mutations = 1000, n;
    int i;

    for (i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mutations") == 0 && i + 1 < argc)
            mutations = strtoul(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            seed = strtoull(argv[++i], NULL, 10);
        else {
            (void)fprintf(stderr, "usage: fuzz_snapshot [--mutations N] [--seed S]\n");
            return 2;
        }
    }
    start_all();
    for (n = 0; n < mutations; n++) {
        const struct subject *s = &subjects[n % MODELS];
        size_t size = next(8) ? s->good_bytes : (size_t)next(s->good_bytes) + 1;
        uint64_t edits;

        copy[0] = (uint8_t)sealed[n % MODELS];
        memcpy(copy + 1, s->good, size);
        for (edits = next(3); edits > 0; edits--)
            edit(copy + 1, size);
        if (next(4) == 0)
            (void)LLVMFuzzerTestOneInput(copy + 1, size);
        else
            (void)LLVMFuzzerTestOneInput(copy, size + 1);
    }
    for (i = 0; i < MODELS; i++) {
        colibri_session_free(subjects[i].session);
        colibri_model_close(subjects[i].model);
    }
    printf("fuzz_snapshot: %lu inputs\n", n);
    return 0;
}

#endif
