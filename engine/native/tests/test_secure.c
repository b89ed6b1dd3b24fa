/* SPDX-License-Identifier: MIT */
/*
 * secure_mode: what a sequence left in memory is gone when the session is freed, reset, or its model
 * closed. The whole writable memory of this process is searched for it: found before, not found after,
 * and found with secure_mode off.
 *
 *     test_secure           the tests, on small models built here
 *     test_secure MODEL     the tokenizer's memory too, with a model that has one
 *
 * What is searched for is kept in disguise, so that the search does not find its own list.
 */
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>

#include "check.h"
#include "common.h"
#include "model.h"
#include "snapshot.h"
#include "variants.h"

#define PROMPT 24
#define STEPS 5
#define DISGUISE 0x5a
#define NEEDLE_BYTES 48
#define SEED UINT64_C(0x0123456789abcdef)

static struct build_file file;
static colibri_model *model;
static colibri_session *session;

/* ---- the search ---------------------------------------------------------------------------------- */

struct needle {
    const char *name;
    size_t bytes;
    uint8_t disguised[NEEDLE_BYTES];
};

static struct needle needles[16];
static unsigned needle_count;

static void add_needle(const char *name, const void *memory, size_t bytes)
{
    struct needle *n = &needles[needle_count++];
    const uint8_t *from = memory;
    size_t i, values = 0;

    n->name = name;
    n->bytes = bytes < NEEDLE_BYTES ? bytes : NEEDLE_BYTES;
    for (i = 0; i < n->bytes; i++) {
        n->disguised[i] = from[i] ^ DISGUISE;
        values += from[i] != 0;
    }
    if (!CHECK(values >= 5)) /* else it would be found anywhere */
        printf("%s is not recognisable\n", name);
}

/* In place: a copy would be found as well. The memory belongs to other code, sanitizers included. */
#if defined(__has_attribute)
#if __has_attribute(no_sanitize)
__attribute__((no_sanitize("address", "thread", "undefined")))
#endif
#endif
static unsigned count_in(const uint8_t *from, const uint8_t *to, const struct needle *n)
{
    uint8_t first = n->disguised[0] ^ DISGUISE;
    unsigned found = 0;
    const volatile uint8_t *p;

    for (p = from; p + n->bytes <= to; p++) {
        size_t i = 1;

        if (*p != first)
            continue;
        while (i < n->bytes && (p[i] ^ DISGUISE) == n->disguised[i])
            i++;
        found += i == n->bytes;
    }
    return found;
}

#define MAX_RANGES 512
#define SHADOW_BYTES ((uintptr_t)1 << 26) /* larger than any memory of ours: a sanitizer's */

static struct range {
    const uint8_t *from, *to;
} ranges[MAX_RANGES];

/* Writable memory, as the kernel lists it. */
static unsigned list_ranges(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char row[512];
    unsigned count = 0;

    while (maps != NULL && count < MAX_RANGES && fgets(row, sizeof row, maps) != NULL) {
        unsigned long long from, to;
        char mode[5];

        if (sscanf(row, "%llx-%llx %4s", &from, &to, mode) == 3 && mode[0] == 'r' && mode[1] == 'w' &&
            to - from < SHADOW_BYTES) {
            ranges[count].from = (const uint8_t *)(uintptr_t)from;
            ranges[count++].to = (const uint8_t *)(uintptr_t)to;
        }
    }
    if (maps != NULL)
        (void)fclose(maps);
    CHECK(count > 0 && count < MAX_RANGES);
    return count;
}

/* wanted 0: no needle is anywhere; 1: each of them is somewhere. */
static void search(int wanted, const char *when)
{
    unsigned count = list_ranges(), i, r;

    for (i = 0; i < needle_count; i++) {
        unsigned found = 0;

        for (r = 0; r < count; r++)
            found += count_in(ranges[r].from, ranges[r].to, &needles[i]);
        if (!CHECK_EQUAL(found > 0, wanted))
            printf("%s: %s found %u times\n", when, needles[i].name, found);
    }
}

/* The arena is looked at when it is given back, behind which nobody can. */
static struct {
    int active;
    unsigned found;
} at_unmap;

int munmap(void *address, size_t bytes)
{
    unsigned i;

    for (i = 0; at_unmap.active && i < needle_count; i++) {
        uintptr_t base = (uintptr_t)address, arena = (uintptr_t)model;

        if (arena >= base && arena < base + bytes)
            at_unmap.found += count_in(address, (const uint8_t *)address + bytes, &needles[i]);
    }
    return (int)syscall(SYS_munmap, address, bytes);
}

/* ---- a sequence ---------------------------------------------------------------------------------- */

struct setting {
    uint32_t variant, kv, residency, threads, secure, debug, sessions;
};

static void open_model(const struct setting *w)
{
    colibri_model_options o;
    colibri_error error = {0};

    build_variant(&file, &variants[w->variant]);
    colibri_model_options_default(&o);
    o.kv = w->kv;
    o.residency = w->residency;
    o.threads = w->threads;
    o.secure_mode = w->secure;
    o.debug_memory = w->debug;
    o.max_sessions = w->sessions;
    o.lock = COLIBRI_LOCK_OFF;
    if (build_open(&file, file.size, &o, &model, &error) != 0 ||
        colibri_session_create(model, &session, &error) != 0) {
        printf("cannot open: %s\n", error.message);
        exit(1);
    }
    needle_count = 0;
}

static void append_prompt(colibri_session *s, int first)
{
    int32_t ids[PROMPT];
    int i;

    for (i = 0; i < PROMPT; i++)
        ids[i] = (i * 37 + first) % (int32_t)model->block.vocabulary;
    CHECK_EQUAL(colibri_session_append(s, ids, PROMPT, NULL), 0);
    cb_wipe(ids, sizeof ids);
}

#define MARK_WORDS 512 /* deep enough that the threads' waiting does not write over the needle in it */

/* Leaves a mark below the frames of a step, as any step may. */
static int leave_mark(void *context, unsigned index, unsigned count)
{
    uint64_t mark[MARK_WORDS];
    unsigned i;

    for (i = 0; i < MARK_WORDS; i++)
        mark[i] = *(const uint64_t *)context * (i + 3);
    __asm__ volatile("" : : "r"(mark) : "memory");
    (void)index;
    (void)count;
    return 0;
}

__attribute__((unused)) static void add_mark(void)
{
    uint64_t seed = SEED, mark[6];
    unsigned i;

    (void)cb_pool_run(&model->pool, leave_mark, &seed, CB_MAX_THREADS);
    for (i = 0; i < 6; i++)
        mark[i] = seed * (i + 23);
    add_needle("what a step left on a stack", mark, sizeof mark);
    cb_wipe(mark, sizeof mark);
}

/* Prompt, sampled tokens; what they leave becomes the needles. */
static void run(void)
{
    const struct cb_layer *l = cb_model_layer(model, 0);
    size_t row = l->r.attention.head_dim * cb_kv_element_bytes(model->plan.kv);
    colibri_sampler sampler;
    int32_t id = 0;
    int i;

    colibri_sampler_default(&sampler);
    sampler.temperature = 0.9f;
    sampler.seed = SEED;
    CHECK_EQUAL(colibri_session_set_sampler(session, &sampler, NULL), 0);
    add_needle("the seed of the sampler", &sampler.seed, sizeof sampler.seed);
    cb_wipe(&sampler, sizeof sampler);
    append_prompt(session, 5);
    for (i = 0; i < STEPS; i++) {
        CHECK_EQUAL(colibri_session_sample(session, &id, NULL), 0);
        CHECK_EQUAL(colibri_session_append(session, &id, 1, NULL), 0);
    }
    add_needle("token ids", session->ids + 2, NEEDLE_BYTES);
    add_needle("ids that were sampled", session->ids + PROMPT, STEPS * sizeof *session->ids);
    add_needle("logits", session->logits + 7, NEEDLE_BYTES);
    add_needle("candidates of the sampler", session->candidates, NEEDLE_BYTES);
    add_needle("keys", session->kv + l->k_offset + 3 * row, row);
    add_needle("values", session->kv + l->v_offset + 4 * row, row);
    add_needle("keys of the last position", session->kv + l->k_offset + (PROMPT + STEPS - 1) * row, row);
    add_needle("the hidden state", model->scratch.x, NEEDLE_BYTES);
    add_needle("the projections", model->scratch.q, NEEDLE_BYTES);
    add_needle("quantised activations", model->scratch.input.q, 32);
    add_needle("what the experts computed", model->scratch.outputs, NEEDLE_BYTES);
#ifndef __SANITIZE_THREAD__ /* whose run time uses the stack of a thread that waits */
    if (model->plan.threads > 1) /* what is below main's frames is overwritten all the time */
        add_mark();
#endif
}

static void close_model(void)
{
    colibri_model_close(model);
    model = NULL;
    free(file.bytes);
}

/* ---- tests --------------------------------------------------------------------------------------- */

static const struct setting settings[] = {
    {0, COLIBRI_KV_F16, COLIBRI_RESIDENCY_RESIDENT, 1, 1, 0, 1},
    {0, COLIBRI_KV_F32, COLIBRI_RESIDENCY_RESIDENT, 3, 1, 0, 1},
    {4, COLIBRI_KV_F16, COLIBRI_RESIDENCY_MAPPED, 2, 1, 0, 1},
    {3, COLIBRI_KV_F16, COLIBRI_RESIDENCY_STREAM, 3, 1, 0, 1},
    {5, COLIBRI_KV_F32, COLIBRI_RESIDENCY_STREAM, 1, 1, 1, 2},
};
#define SETTINGS (sizeof settings / sizeof settings[0])

static void test_nothing_of_a_sequence_stays_behind_free(void)
{
    unsigned i;

    for (i = 0; i < SETTINGS; i++) {
        open_model(&settings[i]);
        run();
        search(1, "before free");
        colibri_session_free(session);
        search(0, "after free");
        close_model();
        search(0, "after close");
    }
}

static void test_the_search_finds_what_is_not_wiped(void)
{
#ifndef COLIBRI_SECURE_MODE
    struct setting open = settings[0];

    open.secure = 0;
    open_model(&open);
    run();
    colibri_session_free(session);
    needles[0] = needles[--needle_count]; /* the seed: free always takes it away */
    search(1, "without secure_mode");
    close_model();
#endif
}

static void test_a_reset_wipes_and_the_session_goes_on(void)
{
    unsigned i;

    for (i = 0; i < SETTINGS; i++) {
        uint8_t first[32], again[32];
        colibri_sha256 sha;
        unsigned round;

        open_model(&settings[i]);
        for (round = 0; round < 2; round++) {
            append_prompt(session, 11);
            colibri_sha256_init(&sha);
            colibri_sha256_update(&sha, colibri_session_logits(session), 4 * (size_t)model->block.vocabulary);
            colibri_sha256_final(&sha, round == 0 ? first : again);
            colibri_session_reset(session);
        }
        CHECK(memcmp(first, again, sizeof first) == 0);
        run();
        colibri_session_reset(session);
        needles[0] = needles[--needle_count]; /* the sampler stays */
        search(0, "after reset");
        CHECK(colibri_session_logits(session) == NULL);
        colibri_session_free(session);
        close_model();
    }
}

static void test_the_logits_do_not_depend_on_it(void)
{
    float logits[2][64];
    unsigned secure;

    for (secure = 0; secure < 2; secure++) {
        struct setting w = settings[3];

        w.secure = secure;
        w.sessions = 2;
        open_model(&w);
        append_prompt(session, 3);
        if (secure == 1) { /* freeing one session leaves the other's alone */
            colibri_session *other = NULL;

            CHECK_EQUAL(colibri_session_create(model, &other, NULL), 0);
            append_prompt(other, 8);
            colibri_session_free(other);
        }
        append_prompt(session, 4);
        memcpy(logits[secure], colibri_session_logits(session), 4 * (size_t)model->block.vocabulary);
        colibri_session_free(session);
        close_model();
    }
    CHECK(memcmp(logits[0], logits[1], 4 * 61) == 0);
}

static void test_closing_wipes_sessions_that_nobody_freed(void)
{
    unsigned secure;

    for (secure = 0; secure < 2; secure++) {
        struct setting w = settings[0];

        w.secure = secure;
        open_model(&w);
        run();
        at_unmap.active = 1;
        at_unmap.found = 0;
        close_model();
        at_unmap.active = 0;
#ifdef COLIBRI_SECURE_MODE
        CHECK_EQUAL(at_unmap.found > 0, 0);
#else
        CHECK_EQUAL(at_unmap.found > 0, secure == 0);
#endif
    }
}

static void test_an_append_that_failed_is_wiped_too(void)
{
    open_model(&settings[0]);
    run();
    colibri_session_cancel(session);
    {
        int32_t ids[PROMPT] = {1, 2, 3};

        CHECK_EQUAL(colibri_session_append(session, ids, PROMPT, NULL), COLIBRI_ERR_CANCELLED);
    }
    CHECK(session->written > session->position); /* its rows may hold something */
    colibri_session_free(session);
    search(0, "after an append that failed");
    close_model();
}

static void test_a_restored_session_is_wiped_too(void)
{
    size_t bytes;
    void *memory;

    open_model(&settings[0]);
    run();
    bytes = (size_t)colibri_session_snapshot_bytes(session);
    memory = malloc(bytes);
    CHECK(memory != NULL);
    CHECK_EQUAL(colibri_session_save(session, memory, bytes, NULL), 0);
    colibri_session_reset(session);
    CHECK_EQUAL(colibri_session_restore(session, memory, bytes, NULL), 0);
    cb_wipe(memory, bytes);
    free(memory);
    CHECK_EQUAL(session->written, PROMPT + STEPS);
    colibri_session_free(session);
    search(0, "after a restored session was freed");
    close_model();
}

/* VmFlags of the arena in /proc/self/smaps: dd = do not dump. */
static void test_core_dumps_leave_the_arena_out(void)
{
    FILE *maps;
    char row[512];
    int inside = 0, flagged = -1;

    open_model(&settings[0]);
    maps = fopen("/proc/self/smaps", "r");
    while (maps != NULL && flagged < 0 && fgets(row, sizeof row, maps) != NULL) {
        unsigned long long from, to;

        if (sscanf(row, "%llx-%llx %*s", &from, &to) == 2)
            inside = (uintptr_t)model >= from && (uintptr_t)model < to;
        else if (inside && strncmp(row, "VmFlags:", 8) == 0)
            flagged = strstr(row, " dd") != NULL;
    }
    if (maps != NULL)
        (void)fclose(maps);
    if (flagged < 0 || prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0)
        printf("note test_core_dumps_leave_the_arena_out: no VmFlags here (an emulator of programs)\n");
    else
        CHECK_EQUAL(flagged, 1);
    colibri_session_free(session);
    close_model();
}

static void test_the_report_says_whether_memory_is_wiped(void)
{
    colibri_memory_report report = {.struct_size = sizeof report};
    struct setting w = settings[0];
    uint32_t secure;

    for (secure = 0; secure < 2; secure++) {
        w.secure = secure;
        open_model(&w);
        CHECK_EQUAL(colibri_model_memory(model, &report), 0);
#ifdef COLIBRI_SECURE_MODE
        CHECK_EQUAL(report.secure_mode, 1);
#else
        CHECK_EQUAL(report.secure_mode, secure);
#endif
        colibri_session_free(session);
        close_model();
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void print_cost(void)
{
    uint64_t start, best = UINT64_MAX;
    int i;

    open_model(&settings[1]);
    for (i = 0; i < 10; i++) {
        append_prompt(session, i);
        start = now_ns();
        colibri_session_reset(session);
        start = now_ns() - start;
        best = start < best ? start : best;
    }
    printf("note wiping a session of %u tokens: %llu bytes of cache, %llu of the rest in the plan, %.1f us\n",
           PROMPT, (unsigned long long)cb_session_cache(session, PROMPT, NULL, NULL, -1),
           (unsigned long long)model->plan.activation_bytes, 1e-3 * (double)best);
    colibri_session_free(session);
    close_model();
}

/* ---- with a tokenizer ---------------------------------------------------------------------------- */

static size_t used_bytes(const uint8_t *memory, size_t bytes)
{
    size_t used = 0, i;

    for (i = 0; i < bytes; i++)
        used += memory[i] != 0;
    return used;
}

static int test_text(const char *path, uint32_t secure)
{
    static const char text[] = "the second quick brown fox";
    colibri_model_options o;
    colibri_error error = {0};
    int32_t ids[64];
    size_t count = 64;

    colibri_model_options_default(&o);
    o.threads = 1;
    o.secure_mode = secure;
    if (colibri_model_open(path, &o, &model, &error) != 0) {
        printf("cannot open %s: %s\n", path, error.message);
        return 1;
    }
    CHECK_EQUAL(colibri_tokenize(model, text, sizeof text - 1, COLIBRI_TEXT_PLAIN, ids, &count, &error), 0);
#ifndef COLIBRI_SECURE_MODE
    CHECK_EQUAL(used_bytes(model->merge_scratch, CB_PLAN_MERGE_BYTES * sizeof text) > 0, secure == 0);
#endif
    count = 1; /* too small a room: an error path */
    CHECK_EQUAL(colibri_tokenize(model, text, sizeof text - 1, COLIBRI_TEXT_PLAIN, ids, &count, &error),
                COLIBRI_ERR_TEXT_LONG);
    if (secure == 1)
        CHECK_EQUAL(used_bytes(model->merge_scratch, CB_PLAN_MERGE_BYTES * sizeof text), 0);
    colibri_model_close(model);
    return 0;
}

int main(int argc, char **argv)
{
    RUN(test_nothing_of_a_sequence_stays_behind_free);
    RUN(test_the_search_finds_what_is_not_wiped);
    RUN(test_a_reset_wipes_and_the_session_goes_on);
    RUN(test_the_logits_do_not_depend_on_it);
    RUN(test_closing_wipes_sessions_that_nobody_freed);
    RUN(test_an_append_that_failed_is_wiped_too);
    RUN(test_a_restored_session_is_wiped_too);
    RUN(test_core_dumps_leave_the_arena_out);
    RUN(test_the_report_says_whether_memory_is_wiped);
    print_cost();
    if (argc > 1 && (test_text(argv[1], 0) != 0 || test_text(argv[1], 1) != 0))
        return 1;
    return RESULT();
}
