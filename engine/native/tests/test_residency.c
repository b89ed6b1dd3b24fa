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

/* 1,024 experts, 32 of them per token: more than the slots, in a batch more than any slots. */
static void test_1024_experts_and_top_32_run_in_few_slots(void)
{
    static const uint32_t slots[] = {1, 31, 33, 300, 2048};
    struct build_recipe recipe;
    struct build_file f;
    uint8_t wanted[32];
    size_t i;

    build_defaults(&recipe);
    for (i = 0; i < 2; i++) {
        recipe.layers[i].moe.experts = 1024;
        recipe.layers[i].moe.top_k = 32;
    }
    build(&f, &recipe);
    hash_run(&f, &resident, wanted);
    for (i = 0; i < sizeof slots / sizeof slots[0]; i++) {
        struct run r = {COLIBRI_RESIDENCY_STREAM, slots[i], 4, 3, 2, 20, 0, 0, 0};

        compare(&f, &r, wanted, "1024 experts");
    }
    free(f.bytes);
}

static colibri_model *open_run(const char *path, const struct run *r, colibri_session **session)
{
    colibri_model_options options;
    colibri_model *model;
    colibri_error error;

    set_options(&options, r);
    check_code(colibri_model_open(path, &options, &model, &error), &error, "open");
    check_code(colibri_session_create(model, session, &error), &error, "session");
    return model;
}

static void put_bytes(const char *path, uint64_t offset, const uint8_t *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);

    CHECK_EQUAL(pwrite(fd, bytes, size, (off_t)offset), (ssize_t)size);
    (void)close(fd);
}

static void test_wrong_bytes_are_an_error_with_the_chunk_and_never_a_token(void)
{
    static const struct run r = {COLIBRI_RESIDENCY_STREAM, 1, 2, 3, 1, 0, 0, 0, 0};
    struct build_file f;
    char path[64];
    colibri_model *model;
    colibri_session *s;
    colibri_error error;
    uint8_t wanted[32], hash[32], bad[4] = {0xa5, 0x5a, 0xa5, 0x5a};
    uint32_t i, e;

    build_variant(&f, &variants[0]);
    hash_run(&f, &resident, wanted);
    (void)snprintf(path, sizeof path, "%s", build_write(&f, f.size));
    model = open_run(path, &r, &s);
    CHECK_EQUAL(hash_session(s, 61, 0, hash, &error), 0);
    for (i = 0; i < 40; i++) {
        for (e = 3; e < f.extent_count; e++)
            put_bytes(path, f.extents[e].offset + 100, bad, sizeof bad);
        colibri_session_reset(s);
        CHECK_EQUAL(hash_session(s, 61, 1 + i % 3, hash, &error), COLIBRI_ERR_CHUNK_MISMATCH);
        CHECK(strstr(error.message, "chunk 0") != NULL);
        CHECK(strstr(error.message, "layer 0, expert") != NULL);
        CHECK_EQUAL(error.offset % 4096, 0);
        CHECK(error.offset >= (int64_t)f.extents[3].offset);
        for (e = 3; e < f.extent_count; e++)
            put_bytes(path, f.extents[e].offset, f.bytes + f.extents[e].offset, 4096);
        colibri_session_reset(s);
        CHECK_EQUAL(hash_session(s, 61, 0, hash, &error), 0);
        CHECK(memcmp(hash, wanted, 32) == 0);
    }
    colibri_model_close(model);
    (void)unlink(path);
    free(f.bytes);
}

/* Large experts are computed sooner than hashed: the batch must wait for the verdict. */
static void test_no_logits_are_shown_before_their_experts_are_verified(void)
{
    static const struct run r = {COLIBRI_RESIDENCY_STREAM, 10, 1, 0, 1, 1, 0, 0, 0};
    static const int32_t id = 7;
    struct build_recipe recipe;
    struct build_file f;
    char path[64];
    colibri_model *model;
    colibri_session *s;
    colibri_error error;
    uint32_t e;

    build_defaults(&recipe);
    recipe.layers[0].moe.intermediate = recipe.layers[1].moe.intermediate = 16384;
    build(&f, &recipe);
    for (e = 8; e < f.extent_count; e++) /* layer 1: the last chunk */
        f.bytes[f.extents[e].offset + f.extents[e].size - 20000] ^= 1;
    (void)snprintf(path, sizeof path, "%s", build_write(&f, f.size));
    model = open_run(path, &r, &s);
    CHECK_EQUAL(colibri_session_append(s, &id, 1, &error), COLIBRI_ERR_CHUNK_MISMATCH);
    CHECK(strstr(error.message, "layer 1") != NULL);
    CHECK(colibri_session_logits(s) == NULL);
    colibri_model_close(model);
    (void)unlink(path);
    free(f.bytes);
}

static void test_a_model_that_is_cut_and_put_back_by_rename_goes_on(void)
{
    static const struct run r = {COLIBRI_RESIDENCY_STREAM, 2, 2, 3, 2, 0, 0, 0, 0};
    struct build_file f;
    char path[64], other[64];
    colibri_model *model;
    colibri_session *s;
    colibri_error error;
    uint8_t wanted[32], hash[32];

    build_variant(&f, &variants[0]);
    hash_run(&f, &resident, wanted);
    (void)snprintf(path, sizeof path, "%s", build_write(&f, f.size));
    (void)snprintf(other, sizeof other, "%s", build_write(&f, f.size));
    model = open_run(path, &r, &s);
    CHECK_EQUAL(truncate(path, (off_t)f.extents[3].offset), 0);
    CHECK_EQUAL(hash_session(s, 61, 0, hash, &error), COLIBRI_ERR_TRUNCATED);
    CHECK(strstr(error.message, "Prefetch failed: invalid chunk offset") != NULL);
    CHECK(strstr(error.message, "layer 0, expert") != NULL);
    CHECK_EQUAL(colibri_session_position(s), 0);
    CHECK_EQUAL(rename(other, path), 0);
    CHECK_EQUAL(hash_session(s, 61, 0, hash, &error), 0);
    CHECK(memcmp(hash, wanted, 32) == 0);
    colibri_model_close(model);
    (void)unlink(path);
    free(f.bytes);
}

/* 0 when a byte can be read; a signal number otherwise. */
static int touch(const uint8_t *byte)
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        volatile uint8_t sink;

        (void)signal(SIGSEGV, SIG_DFL);
        sink = *byte;
        (void)sink;
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_a_guarded_expert_cannot_be_read_while_it_is_not_used(void)
{
    static const struct run r = {COLIBRI_RESIDENCY_MAPPED_GUARDED, 0, 0, 3, 2, 0, COLIBRI_VERIFY_OPEN, 0, 0};
    struct build_file f;
    char path[64];
    colibri_model *model;
    colibri_session *s;
    colibri_error error;
    uint8_t hash[32];
    uint32_t e;

    build_variant(&f, &variants[0]);
    (void)snprintf(path, sizeof path, "%s", build_write(&f, f.size));
    model = open_run(path, &r, &s);
    CHECK_EQUAL(hash_session(s, 61, 0, hash, &error), 0);
    CHECK_EQUAL(touch(model->file.base + f.extents[2].offset), 0); /* trunk */
    for (e = 4; e + 1 < f.extent_count; e++)
        CHECK(touch(model->file.base + f.extents[e].offset) == SIGSEGV || cb_page_bytes() > 4096);
    colibri_model_close(model);
    (void)unlink(path);
    free(f.bytes);
}

static void test_every_miss_is_one_read_and_is_counted(void)
{
    static const struct run r = {COLIBRI_RESIDENCY_STREAM, 4, 2, 0, 1, 0, 0, 0, 1};
    struct build_file f;
    char path[64];
    colibri_model *model;
    colibri_session *s;
    colibri_error error;
    colibri_residency_stats stats = {.struct_size = sizeof stats};
    colibri_plan plan = {.struct_size = sizeof plan};
    colibri_report report = {.struct_size = sizeof report};
    uint8_t hash[32];

    build_variant(&f, &variants[0]);
    (void)snprintf(path, sizeof path, "%s", build_write(&f, f.size));
    model = open_run(path, &r, &s);
    CHECK_EQUAL(hash_session(s, 61, 1, hash, &error), 0);
    CHECK_EQUAL(colibri_model_residency(model, &stats), 0);
    CHECK_EQUAL(colibri_model_plan(model, &plan), 0);
    CHECK_EQUAL(colibri_model_report(model, &report), 0);
    CHECK_EQUAL(stats.hits + stats.misses, (PROMPT + STEPS) * 2 * 2);
    CHECK(stats.misses > 10);
    CHECK_EQUAL(stats.reads, stats.misses);
    CHECK_EQUAL(stats.read_bytes, stats.misses * plan.slot_bytes);
    CHECK_EQUAL(stats.failed_reads, 0);
    CHECK_EQUAL(stats.prefetch_reads, 0);
    CHECK_EQUAL(plan.expert_slots, 4);
    CHECK_EQUAL(plan.max_expert_slots, 10);
    CHECK_EQUAL(plan.slots_bytes, 4 * plan.slot_bytes);
    CHECK_EQUAL(plan.total_bytes, plan.mapped_bytes + plan.arena_bytes + plan.stack_bytes +
                                      plan.io_stack_bytes + plan.process_bytes + plan.kernel_bytes);
    CHECK(report.direct_io == 1 || report.direct_io_errno != 0);
    stats.struct_size = 1;
    CHECK_EQUAL(colibri_model_residency(model, &stats), COLIBRI_ERR_STRUCT_SIZE);
    colibri_model_close(model);
    (void)unlink(path);
    free(f.bytes);
}

/* Experts of 1.2 MB: small enough for a test, large enough that the threads that read pay off. */
static void test_the_budget_picks_the_mode_and_the_slots(void)
{
    struct build_recipe recipe;
    struct build_file f;
    struct run r = {COLIBRI_RESIDENCY_AUTO, 0, 1, 0, 1, 1, 0, 0, 0};
    colibri_model_options o;
    colibri_model *model;
    colibri_error error;
    colibri_plan whole = {.struct_size = sizeof whole}, plan = {.struct_size = sizeof plan};

    build_defaults(&recipe);
    recipe.layers[0].moe.intermediate = recipe.layers[1].moe.intermediate = 16384;
    build(&f, &recipe);
    set_options(&o, &r);
    CHECK_EQUAL(build_open(&f, f.size, &o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_plan(model, &whole), 0);
    colibri_model_close(model);
    CHECK_EQUAL(whole.residency, COLIBRI_RESIDENCY_RESIDENT);
    CHECK_EQUAL(whole.total_bytes, whole.recommended_bytes);
    o.budget_bytes = whole.total_bytes;
    CHECK_EQUAL(build_open(&f, f.size, &o, &model, NULL), 0);
    colibri_model_close(model);
    o.budget_bytes--;
    CHECK_EQUAL(build_open(&f, f.size, &o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_plan(model, &plan), 0);
    colibri_model_close(model);
    CHECK_EQUAL(plan.residency, COLIBRI_RESIDENCY_STREAM);
    CHECK(plan.total_bytes <= o.budget_bytes && plan.expert_slots < 10);
    CHECK(plan.total_bytes + plan.slot_bytes > o.budget_bytes);
    o.budget_bytes = plan.floor_bytes;
    CHECK_EQUAL(build_open(&f, f.size, &o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_plan(model, &plan), 0);
    colibri_model_close(model);
    CHECK_EQUAL(plan.expert_slots, 1);
    CHECK_EQUAL(plan.total_bytes, plan.floor_bytes);
    o.budget_bytes--;
    CHECK_EQUAL(build_open(&f, f.size, &o, &model, &error), COLIBRI_ERR_BUDGET);
    CHECK(strstr(error.message, "the floor") != NULL);
    free(f.bytes);
}

int main(void)
{
    RUN(test_every_mode_gives_the_same_bits);
    RUN(test_every_number_of_slots_gives_the_same_bits);
    RUN(test_threads_batches_and_reads_ahead_change_no_bit);
    RUN(test_1024_experts_and_top_32_run_in_few_slots);
    RUN(test_wrong_bytes_are_an_error_with_the_chunk_and_never_a_token);
    RUN(test_no_logits_are_shown_before_their_experts_are_verified);
    RUN(test_a_model_that_is_cut_and_put_back_by_rename_goes_on);
    RUN(test_a_guarded_expert_cannot_be_read_while_it_is_not_used);
    RUN(test_every_miss_is_one_read_and_is_counted);
    RUN(test_the_budget_picks_the_mode_and_the_slots);
    return RESULT();
}
