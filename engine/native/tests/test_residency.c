/* SPDX-License-Identifier: MIT */
/*
 * Experts in slots: whatever the mode, the number of slots, of reading threads, of experts read
 * ahead, the logits are the same; and what storage does wrong is an error, never a wrong token.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "check.h"
#include "common.h"
#include "model.h"
#include "variants.h"

#define PROMPT 20
#define STEPS 10

struct run {
    uint32_t residency, slots, io_threads, prefetch, threads, batch, verify, direct_io;
    size_t split; /* ids per call; 0: all at once */
};

static void check_code(int code, const colibri_error *error, const char *what)
{
    if (code != 0)
        printf("%s: %d %s\n", what, code, error->message);
    CHECK(code == 0);
}

static void set_options(colibri_model_options *o, const struct run *r)
{
    colibri_model_options_default(o);
    o->residency = r->residency;
    o->expert_slots = r->slots;
    o->io_threads = r->io_threads;
    o->prefetch_depth = r->prefetch;
    o->threads = r->threads;
    o->batch_tokens = r->batch;
    o->verify = r->verify;
    o->direct_io = r->direct_io;
    o->lock = COLIBRI_LOCK_OFF;
}

static int append_split(colibri_session *s, const int32_t *ids, size_t count, size_t split,
                        colibri_error *error)
{
    size_t done, n;
    int code = 0;

    for (done = 0; done < count && code == 0; done += n) {
        n = split != 0 && split < count - done ? split : count - done;
        code = colibri_session_append(s, ids + done, n, error);
    }
    return code;
}

/* Logits after a prompt and after each of STEPS greedy tokens. */
static int hash_session(colibri_session *s, uint32_t vocabulary, size_t split, uint8_t hash[32],
                        colibri_error *error)
{
    colibri_sha256 sha;
    int32_t ids[PROMPT], id;
    int i, code;

    memset(hash, 0, 32);
    for (i = 0; i < PROMPT; i++)
        ids[i] = (i * 37 + 5) % (int32_t)vocabulary;
    code = append_split(s, ids, PROMPT, split, error);
    colibri_sha256_init(&sha);
    for (i = 0; i < STEPS && code == 0; i++) {
        colibri_sha256_update(&sha, colibri_session_logits(s), 4 * (size_t)vocabulary);
        CHECK_EQUAL(colibri_session_sample(s, &id, NULL), 0);
        code = append_split(s, &id, 1, 1, error);
    }
    if (code == 0)
        colibri_sha256_final(&sha, hash);
    return code;
}

static void hash_run(const struct build_file *f, const struct run *r, uint8_t hash[32])
{
    colibri_model_options options;
    colibri_model_info info = {.struct_size = sizeof info};
    colibri_model *model;
    colibri_session *session;
    colibri_error error;

    memset(hash, 0, 32);
    set_options(&options, r);
    check_code(build_open(f, f->size, &options, &model, &error), &error, "open");
    if (model == NULL)
        return;
    CHECK_EQUAL(colibri_model_info_get(model, &info), 0);
    check_code(colibri_session_create(model, &session, &error), &error, "session");
    check_code(hash_session(session, info.vocabulary, r->split, hash, &error), &error, "run");
    colibri_model_close(model);
}

static void compare(const struct build_file *f, const struct run *r, const uint8_t wanted[32],
                    const char *name)
{
    uint8_t hash[32];

    hash_run(f, r, hash);
    if (memcmp(hash, wanted, 32) != 0)
        printf("%s: mode %u, %u slots, %u io threads, prefetch %u, %u threads, batch %u, verify %u, "
               "direct %u, split %zu differ\n",
               name, r->residency, r->slots, r->io_threads, r->prefetch, r->threads, r->batch,
               r->verify, r->direct_io, r->split);
    CHECK(memcmp(hash, wanted, 32) == 0);
}

static const struct run resident = {COLIBRI_RESIDENCY_RESIDENT, 0, 0, 3, 1, 0, 0, 0, 0};

static void test_every_mode_gives_the_same_bits(void)
{
    size_t v;
    uint32_t mode;

    for (v = 0; v < VARIANTS; v++) {
        struct build_file f;
        uint8_t wanted[32];

        build_variant(&f, &variants[v]);
        hash_run(&f, &resident, wanted);
        for (mode = COLIBRI_RESIDENCY_AUTO; mode <= COLIBRI_RESIDENCY_MAPPED_GUARDED; mode++) {
            struct run r = {mode, 0, 0, 3, 2, 7, 0, 0, 3};

            compare(&f, &r, wanted, variants[v].name);
        }
        free(f.bytes);
    }
}

static void test_every_number_of_slots_gives_the_same_bits(void)
{
    size_t v;
    uint32_t slots;

    for (v = 0; v < VARIANTS; v++) {
        struct build_file f;
        uint8_t wanted[32];

        build_variant(&f, &variants[v]);
        hash_run(&f, &resident, wanted);
        for (slots = 1; slots <= 16; slots++) {
            struct run r = {COLIBRI_RESIDENCY_STREAM, slots, 1 + slots % 4, slots % 5, 1 + slots % 3,
                            slots % 2 ? 1 : 32, slots % 4, slots % 2, slots % 7};

            compare(&f, &r, wanted, variants[v].name);
        }
        free(f.bytes);
    }
}

static void test_threads_batches_and_reads_ahead_change_no_bit(void)
{
    struct build_file f;
    uint8_t wanted[32];
    uint32_t io, prefetch, threads, verify;

    build_variant(&f, &variants[0]);
    hash_run(&f, &resident, wanted);
    for (io = 1; io <= 4; io++) {
        for (prefetch = 0; prefetch <= 4; prefetch += 2) {
            for (threads = 1; threads <= 3; threads++) {
                for (verify = 0; verify < 4; verify++) {
                    struct run r = {COLIBRI_RESIDENCY_STREAM, 3, io, prefetch, threads, 1 + 9 * prefetch,
                                    verify, 0, threads};

                    compare(&f, &r, wanted, "mixtral");
                }
            }
        }
    }
    free(f.bytes);
}

int main(void)
{
    RUN(test_every_mode_gives_the_same_bits);
    RUN(test_every_number_of_slots_gives_the_same_bits);
    RUN(test_threads_batches_and_reads_ahead_change_no_bit);
    return RESULT();
}
