/* SPDX-License-Identifier: MIT */
/* Options, plan, budget, errors of calls, cancelling, and one call at a time. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sched.h>
#include <sys/stat.h>
#include <time.h>

#include "check.h"
#include "kernels.h"
#include "platform.h"
#include "variants.h"

static struct build_file file;

static int open_with(const colibri_model_options *options, colibri_model **model, colibri_error *error)
{
    return build_open(&file, file.size, options, model, error);
}

static void quiet(colibri_model_options *options)
{
    colibri_model_options_default(options);
    options->threads = 1;
    options->lock = COLIBRI_LOCK_OFF;
}

static void refuse(const colibri_model_options *options, int wanted, const char *word)
{
    colibri_model *model;
    colibri_error error;

    CHECK_EQUAL(open_with(options, &model, &error), wanted);
    CHECK(model == NULL);
    if (strstr(error.message, word) == NULL)
        printf("\"%s\" does not name %s\n", error.message, word);
    CHECK(strstr(error.message, word) != NULL);
}

static void test_options_out_of_range_are_named(void)
{
    colibri_model_options o;

    quiet(&o);
    o.struct_size--;
    refuse(&o, COLIBRI_ERR_STRUCT_SIZE, "struct_size");
    quiet(&o);
    o.threads = 65;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "threads is 65");
    quiet(&o);
    o.batch_tokens = 513;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "batch_tokens is 513");
    quiet(&o);
    o.context_tokens = 65; /* the model has 64 */
    refuse(&o, COLIBRI_ERR_ARGUMENT, "at most 64");
    quiet(&o);
    o.max_sessions = 65;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "max_sessions is 65");
    quiet(&o);
    o.kv = 3;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "kv is 3");
    quiet(&o);
    o.verify = 9;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "verify is 9");
    quiet(&o);
    o.lock = 3;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "lock is 3");
    quiet(&o);
    o.residency = 5;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "residency is 5");
    quiet(&o);
    o.io_threads = 17;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "io_threads is 17");
    quiet(&o);
    o.prefetch_depth = 33;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "prefetch_depth is 33");
    quiet(&o);
    o.expert_slots = 524802;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "expert_slots is 524802");
    quiet(&o);
    o.direct_io = 2;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "direct_io is 2");
    quiet(&o);
    o.secure_mode = 2;
    refuse(&o, COLIBRI_ERR_ARGUMENT, "secure_mode is 2");
    quiet(&o);
    o.isa = "mmx";
    refuse(&o, COLIBRI_ERR_ISA, "mmx");
}

static void test_the_budget_is_a_floor(void)
{
    colibri_model_options o;
    colibri_model *model;
    colibri_plan plan = {.struct_size = sizeof plan};
    char number[32];

    quiet(&o);
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_plan(model, &plan), 0);
    colibri_model_close(model);
    CHECK_EQUAL(plan.context_tokens, 64);
    CHECK_EQUAL(plan.batch_tokens, 32);
    CHECK_EQUAL(plan.mapped_bytes, file.size);
    CHECK_EQUAL(plan.total_bytes,
                plan.mapped_bytes + plan.arena_bytes + plan.stack_bytes + plan.process_bytes +
                    plan.kernel_bytes);
    o.budget_bytes = plan.total_bytes;
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    colibri_model_close(model);
    o.budget_bytes--;
    (void)snprintf(number, sizeof number, "%llu", (unsigned long long)plan.total_bytes);
    refuse(&o, COLIBRI_ERR_BUDGET, number);
    o.max_text_bytes = 1000;
    o.budget_bytes = 1;
    refuse(&o, COLIBRI_ERR_BUDGET, "max_text_bytes (1000)");
}

static void test_the_plan_grows_with_what_it_is_asked_for(void)
{
    colibri_model_options o;
    colibri_model *model;
    colibri_plan small = {.struct_size = sizeof small}, large = {.struct_size = sizeof large};

    quiet(&o);
    o.context_tokens = 16;
    o.batch_tokens = 1;
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_plan(model, &small), 0);
    colibri_model_close(model);
    o.context_tokens = 32;
    o.batch_tokens = 8;
    o.max_sessions = 3;
    o.threads = 3;
    o.kv = COLIBRI_KV_F32;
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_plan(model, &large), 0);
    colibri_model_close(model);
    /* 2 layers of 2 KV heads of 10 channels, keys and values; each buffer 64-aligned plus 128 */
    CHECK_EQUAL(small.kv_bytes, 2 * 2 * (2 * 16 * 10 * 2 + 128));
    CHECK_EQUAL(large.kv_bytes, 3 * 2 * 2 * (2 * 32 * 10 * 4 + 128));
    CHECK_EQUAL(large.stack_bytes, 2 * 262144);
    CHECK(large.activation_bytes > small.activation_bytes);
    large.struct_size = 1;
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_plan(model, &large), COLIBRI_ERR_STRUCT_SIZE);
    colibri_model_close(model);
}

static void test_bad_calls_are_refused_and_change_nothing(void)
{
    colibri_model_options o;
    colibri_model *model;
    colibri_session *s;
    colibri_error error;
    int32_t ids[64], id;
    size_t count = 64, length;
    float before[61];
    int i;

    quiet(&o);
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &s, NULL), 0);
    CHECK_EQUAL(colibri_session_sample(s, &id, &error), COLIBRI_ERR_ARGUMENT);
    for (i = 0; i < 64; i++)
        ids[i] = i % 61;
    CHECK_EQUAL(colibri_session_append(s, ids, 60, NULL), 0);
    memcpy(before, colibri_session_logits(s), sizeof before);
    CHECK_EQUAL(colibri_session_append(s, ids, 5, &error), COLIBRI_ERR_CONTEXT_FULL);
    CHECK(strstr(error.message, "64") != NULL);
    CHECK_EQUAL(colibri_session_append(s, ids, SIZE_MAX, &error), COLIBRI_ERR_CONTEXT_FULL);
    CHECK_EQUAL(colibri_session_append(s, ids, 0, &error), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(colibri_session_append(s, NULL, 1, &error), COLIBRI_ERR_ARGUMENT);
    ids[1] = 61;
    CHECK_EQUAL(colibri_session_append(s, ids, 2, &error), COLIBRI_ERR_TOKEN_RANGE);
    CHECK(strstr(error.message, "61") != NULL);
    ids[1] = -1;
    CHECK_EQUAL(colibri_session_append(s, ids, 2, &error), COLIBRI_ERR_TOKEN_RANGE);
    CHECK_EQUAL(colibri_session_position(s), 60);
    CHECK(memcmp(before, colibri_session_logits(s), sizeof before) == 0);
    CHECK_EQUAL(colibri_session_append(s, ids, 1, NULL), 0);
    CHECK_EQUAL(colibri_tokenize(model, "a", 1, COLIBRI_TEXT_PLAIN, ids, &count, &error),
                COLIBRI_ERR_NO_TOKENIZER);
    CHECK(colibri_token_bytes(model, 1, &length) == NULL);
    CHECK_EQUAL(colibri_token_is_end(model, 1), 0);
    colibri_model_close(model);
}

/* Ids at an odd address are read like any others. */
static void test_ids_of_any_alignment_are_taken(void)
{
    colibri_model_options o;
    colibri_model *model;
    colibri_session *s;
    char bytes[4 * 6 + 1];
    int32_t ids[6] = {3, 1, 4, 1, 5, 9};
    float aligned[61];

    quiet(&o);
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &s, NULL), 0);
    CHECK_EQUAL(colibri_session_append(s, ids, 6, NULL), 0);
    memcpy(aligned, colibri_session_logits(s), sizeof aligned);
    colibri_session_reset(s);
    memcpy(bytes + 1, ids, sizeof ids);
    CHECK_EQUAL(colibri_session_append(s, (const int32_t *)(const void *)(bytes + 1), 6, NULL), 0);
    CHECK(memcmp(aligned, colibri_session_logits(s), sizeof aligned) == 0);
    colibri_model_close(model);
}

static void test_sampling_depends_on_seed_and_count_alone(void)
{
    colibri_model_options o;
    colibri_model *model;
    colibri_session *s;
    colibri_sampler sampler;
    int32_t first[8], id, ids[] = {1, 2, 3};
    int i, same = 0;

    quiet(&o);
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &s, NULL), 0);
    colibri_sampler_default(&sampler);
    sampler.temperature = 2.0f;
    sampler.seed = 5;
    CHECK_EQUAL(colibri_session_set_sampler(s, &sampler, NULL), 0);
    CHECK_EQUAL(colibri_session_append(s, ids, 3, NULL), 0);
    for (i = 0; i < 8; i++)
        CHECK_EQUAL(colibri_session_sample(s, &first[i], NULL), 0);
    for (i = 1; i < 8; i++)
        same += first[i] == first[0];
    CHECK(same < 7);
    colibri_session_reset(s); /* the count begins anew, the sampler stays */
    CHECK_EQUAL(colibri_session_append(s, ids, 3, NULL), 0);
    for (i = 0; i < 8; i++) {
        CHECK_EQUAL(colibri_session_sample(s, &id, NULL), 0);
        CHECK_EQUAL(id, first[i]);
    }
    sampler.top_p = 2.0f;
    CHECK_EQUAL(colibri_session_set_sampler(s, &sampler, NULL), COLIBRI_ERR_ARGUMENT);
    colibri_model_close(model);
}

/* ---- a call that is running ------------------------------------------------------------------ */

struct other {
    colibri_session *session;
    atomic_int go, done;
    int cancelled, busy;
};

static void pause_a_little(void)
{
    struct timespec t = {0, 200000};

    (void)nanosleep(&t, NULL);
}

/* Another thread: calls into the same model, then cancels what runs there. */
static void *interfere(void *argument)
{
    struct other *o = argument;
    int32_t id = 1;

    while (!atomic_load(&o->go))
        pause_a_little();
    while (!atomic_load(&o->done)) {
        int code = colibri_session_append(o->session, &id, 0, NULL);

        o->busy += code == COLIBRI_ERR_BUSY;
        colibri_session_cancel(o->session);
    }
    return NULL;
}

static void test_a_running_call_makes_others_busy_and_can_be_cancelled(void)
{
    colibri_model_options options;
    colibri_model *model;
    struct other o;
    pthread_t thread;
    int32_t ids[60];
    int i, code;

    memset(&o, 0, sizeof o);
    quiet(&options);
    options.batch_tokens = 1; /* many chances to see the flag */
    options.threads = 2;
    CHECK_EQUAL(open_with(&options, &model, NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &o.session, NULL), 0);
    for (i = 0; i < 60; i++)
        ids[i] = i;
    CHECK_EQUAL(pthread_create(&thread, NULL, interfere, &o), 0);
    atomic_store(&o.go, 1);
    for (i = 0; i < 2000 && (o.cancelled == 0 || i < 20); i++) {
        code = colibri_session_append(o.session, ids, 60, NULL);
        CHECK(code == 0 || code == COLIBRI_ERR_CANCELLED || code == COLIBRI_ERR_BUSY);
        if (code == COLIBRI_ERR_CANCELLED) {
            o.cancelled++;
            CHECK_EQUAL(colibri_session_position(o.session), 0);
        }
        colibri_session_reset(o.session);
    }
    atomic_store(&o.done, 1);
    (void)pthread_join(thread, NULL);
    CHECK(o.cancelled > 0);
    printf("     %d cancelled, %d busy\n", o.cancelled, o.busy);
    colibri_session_reset(o.session); /* forgets a flag that came after the last call */
    CHECK_EQUAL(colibri_session_append(o.session, ids, 60, NULL), 0);
    colibri_model_close(model);
}

/* A flag that is set between two calls stops the next one, once. */
static void test_a_cancel_between_calls_stops_the_next_one(void)
{
    colibri_model_options options;
    colibri_model *model;
    colibri_session *s;
    int32_t ids[] = {1, 2, 3};

    quiet(&options);
    CHECK_EQUAL(open_with(&options, &model, NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &s, NULL), 0);
    CHECK_EQUAL(colibri_session_append(s, ids, 3, NULL), 0);
    colibri_session_cancel(s);
    CHECK_EQUAL(colibri_session_append(s, ids, 3, NULL), COLIBRI_ERR_CANCELLED);
    CHECK_EQUAL(colibri_session_position(s), 3);
    CHECK_EQUAL(colibri_session_append(s, ids, 3, NULL), 0);
    colibri_session_cancel(s);
    colibri_session_reset(s);
    CHECK_EQUAL(colibri_session_append(s, ids, 3, NULL), 0);
    colibri_model_close(model);
}

static void test_the_report_says_what_was_locked(void)
{
    colibri_model_options o;
    colibri_model *model;
    colibri_error error;
    colibri_report report = {.struct_size = sizeof report};
    colibri_plan plan = {.struct_size = sizeof plan};
    int code;

    quiet(&o);
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_report(model, &report), 0);
    CHECK_EQUAL(colibri_model_plan(model, &plan), 0);
    CHECK_EQUAL(report.locked_bytes, 0);
    CHECK_EQUAL(report.unlocked_bytes, plan.arena_bytes + file.size);
    CHECK_EQUAL(report.verified_extents, 0);
    CHECK_EQUAL(report.extents, file.extent_count);
    colibri_model_close(model);
    o.lock = COLIBRI_LOCK_TRY;
    o.verify = COLIBRI_VERIFY_OPEN;
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_model_report(model, &report), 0);
    CHECK_EQUAL(report.locked_bytes + report.unlocked_bytes, plan.arena_bytes + file.size);
    CHECK_EQUAL(report.verified_extents, file.extent_count);
    CHECK((report.unlocked_bytes > 0) == (report.lock_message[0] != '\0'));
    colibri_model_close(model);
    o.lock = COLIBRI_LOCK_REQUIRE;
    code = open_with(&o, &model, &error);
    CHECK_EQUAL(code, report.unlocked_bytes > 0 ? COLIBRI_ERR_LOCK : 0);
    colibri_model_close(model);
}

/* The caller's rounding mode neither changes results nor is changed. */
static void put_text(const char *folder, const char *name, const char *text)
{
    char where[256];
    FILE *stream;

    (void)snprintf(where, sizeof where, "%s/%s", folder, name);
    stream = fopen(where, "w");
    CHECK(stream != NULL);
    if (stream != NULL) {
        CHECK(fputs(text, stream) >= 0);
        CHECK_EQUAL(fclose(stream), 0);
    }
}

/* What a group of `left` bytes has for locks: 2 MiB and 1/512 stay for the rest of the process. */
static int64_t lockable(int64_t left)
{
    return left - (2 << 20) - left / 512;
}

static void test_the_tightest_memory_cgroup_bounds_what_is_locked(void)
{
    static const char *const names[] = {
        "g/s/memory.max", "g/s/memory.current", "g/s/memory.stat", "g/memory.max", "g/memory.current",
        "memory/b/memory.limit_in_bytes", "memory/b/memory.usage_in_bytes", "membership",
        "g/s", "g", "memory/b", "memory", "",
    };
    char folder[] = "/tmp/colibri-groups-XXXXXX", membership[64], where[256];
    int64_t limit = 0;
    size_t i;

    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(membership, sizeof membership, "%s/membership", folder);
    CHECK_EQUAL(cb_group_available(membership, folder, &limit), -1); /* no such file */
    put_text(folder, "membership", "0::/g/s\n");
    CHECK_EQUAL(cb_group_available(membership, folder, &limit), -1); /* no such group */
    CHECK_EQUAL(limit, -1);
    for (i = 12; i-- > 8;) {
        (void)snprintf(where, sizeof where, "%s/%s", folder, names[i]);
        CHECK_EQUAL(mkdir(where, 0700), 0);
    }
    put_text(folder, names[0], "max\n");
    put_text(folder, names[1], "1048576\n");
    CHECK_EQUAL(cb_group_available(membership, folder, &limit), -1); /* no limit */
    put_text(folder, names[0], "104857600\n");
    CHECK_EQUAL(cb_group_available(membership, folder, &limit), lockable(103809024));
    CHECK_EQUAL(limit, 104857600);
    put_text(folder, names[2], "anon 4096\ninactive_file 500000\nactive_file 48576\n");
    CHECK_EQUAL(cb_group_available(membership, folder, &limit), lockable(104357600));
    put_text(folder, names[3], "62914560\n"); /* the parent is tighter */
    put_text(folder, names[4], "2097152\n");
    CHECK_EQUAL(cb_group_available(membership, folder, &limit), lockable(60817408));
    CHECK_EQUAL(limit, 62914560);
    put_text(folder, names[4], "62914000\n"); /* nothing left */
    CHECK_EQUAL(cb_group_available(membership, folder, &limit), 0);
    put_text(folder, "membership", "5:cpu:/g/s\n4:memory:/b\n0::/\n"); /* version 1 */
    put_text(folder, names[5], "9223372036854771712\n");
    put_text(folder, names[6], "1048576\n");
    CHECK(cb_group_available(membership, folder, &limit) > INT64_C(1) << 50);
    put_text(folder, names[5], "33554432\n");
    CHECK_EQUAL(cb_group_available(membership, folder, &limit), lockable(32505856));
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(where, sizeof where, "%s/%s", folder, names[i]);
        CHECK_EQUAL(remove(where), 0);
    }
}

/* Makes the folders and files of a tree, or removes them: in the other order. */
static void put_tree(const char *root, const char *const names[], size_t count, int remove_them)
{
    char where[256];
    size_t i;

    for (i = 0; i < count; i++) {
        (void)snprintf(where, sizeof where, "%s/%s", root, names[remove_them ? count - 1 - i : i]);
        if (remove_them)
            CHECK_EQUAL(remove(where), 0);
        else
            CHECK_EQUAL(mkdir(where, 0700), 0);
    }
}

static void test_the_tightest_cpu_cgroup_bounds_the_threads(void)
{
    static const char *const folders[] = {"", "g", "g/s", "cpu", "cpu/b", "cpu/b/c"};
    static const char *const files[] = {
        "membership", "g/cpu.max", "g/s/cpu.max", "cpu/b/cpu.cfs_quota_us", "cpu/b/cpu.cfs_period_us",
        "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us",
    };
    char folder[] = "/tmp/colibri-cpus-XXXXXX", membership[64];

    CHECK_EQUAL(cb_granted_cpus(4, -1), 4);
    CHECK_EQUAL(cb_granted_cpus(4, 4000), 4);
    CHECK_EQUAL(cb_granted_cpus(4, 3999), 3);
    CHECK_EQUAL(cb_granted_cpus(2, 8000), 2);
    CHECK_EQUAL(cb_granted_cpus(4, 500), 1);
    CHECK_EQUAL(cb_granted_cpus(0, -1), 1);
    CHECK(mkdtemp(folder) != NULL);
    (void)snprintf(membership, sizeof membership, "%s/membership", folder);
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1); /* no such file */
    put_tree(folder, folders + 1, 5, 0);
    put_text(folder, files[0], "0::/g/s\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1); /* no such group */
    put_text(folder, files[2], "max 100000\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1);
    put_text(folder, files[2], "350000 100000\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), 3500);
    put_text(folder, files[1], "20000 10000\n"); /* the parent is tighter */
    CHECK_EQUAL(cb_group_cpus(membership, folder), 2000);
    put_text(folder, files[1], "400000 100000\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), 3500);
    put_text(folder, files[1], "400000\n"); /* no period: not understood, no limit */
    put_text(folder, files[2], "400000 0\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1);
    put_text(folder, files[0], "7:cpuset:/g/s\n5:cpu,cpuacct:/b/c\n1:name=systemd:/\n"); /* version 1 */
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1);
    put_text(folder, files[3], "-1\n");
    put_text(folder, files[4], "100000\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1);
    put_text(folder, files[3], "50000\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), 500);
    put_text(folder, files[0], "5:cpuacct,cpu:/b\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), 500);
    put_text(folder, files[0], "5:cpu:/\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1);
    put_text(folder, files[5], "9223372036854775807\n"); /* more than it can multiply */
    put_text(folder, files[6], "100000\n");
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1);
    put_text(folder, files[0], "5:cpuset:/b\n"); /* another controller */
    CHECK_EQUAL(cb_group_cpus(membership, folder), -1);
    put_tree(folder, files, sizeof files / sizeof files[0], 1);
    put_tree(folder, folders, sizeof folders / sizeof folders[0], 1);
}

/* Capacities of the CPUs of this process, in a tree of ours. */
static void put_capacities(const char *root, const cpu_set_t *set, long first, long others)
{
    char name[64], text[32];
    size_t cpu, seen = 0;

    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, set))
            continue;
        (void)snprintf(name, sizeof name, "%s/cpu%zu", root, cpu);
        (void)mkdir(name, 0700);
        (void)snprintf(name, sizeof name, "cpu%zu/cpu_capacity", cpu);
        (void)snprintf(text, sizeof text, "%ld\n", seen++ == 0 ? first : others);
        put_text(root, name, text);
    }
}

static void test_threads_are_bound_to_big_cores_or_not_at_all(void)
{
    char folder[] = "/tmp/colibri-cores-XXXXXX", name[128];
    cpu_set_t all, now;
    colibri_error error;
    size_t cpu, first = 0;
    int count;

    CHECK(mkdtemp(folder) != NULL);
    CHECK_EQUAL(sched_getaffinity(0, sizeof all, &all), 0);
    count = CPU_COUNT(&all);
    for (cpu = CPU_SETSIZE; cpu-- > 0;)
        first = CPU_ISSET(cpu, &all) ? cpu : first;
    CHECK_EQUAL(cb_bind_big_cores(folder, 0, &error), COLIBRI_ERR_THREAD); /* no capacities */
    CHECK(strstr(error.message, "cpu_capacity") != NULL);
    put_capacities(folder, &all, 768, 1024); /* 3/4 is big: all of them are */
    CHECK_EQUAL(cb_bind_big_cores(folder, (uint32_t)count, &error), 0);
    CHECK_EQUAL(sched_getaffinity(0, sizeof now, &now), 0);
    CHECK(CPU_EQUAL(&now, &all));
    put_capacities(folder, &all, 1024, 767);
    CHECK_EQUAL(cb_bind_big_cores(folder, 2, &error), COLIBRI_ERR_THREAD); /* only one is */
    CHECK(strstr(error.message, "2 threads are asked for, but there are 1 big cores") != NULL);
    CHECK_EQUAL(sched_getaffinity(0, sizeof now, &now), 0);
    CHECK(CPU_EQUAL(&now, &all)); /* nothing has changed */
    CHECK_EQUAL(cb_bind_big_cores(folder, 1, &error), 0);
    CHECK_EQUAL(sched_getaffinity(0, sizeof now, &now), 0);
    CHECK(CPU_COUNT(&now) == 1 && CPU_ISSET(first, &now));
    CHECK_EQUAL(cb_cpu_count(), 1); /* and what is chosen by default follows */
    CHECK_EQUAL(sched_setaffinity(0, sizeof all, &all), 0);
    for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        (void)snprintf(name, sizeof name, "%s/cpu%zu/cpu_capacity", folder, cpu);
        CHECK_EQUAL(remove(name), 0);
        (void)snprintf(name, sizeof name, "%s/cpu%zu", folder, cpu);
        CHECK_EQUAL(remove(name), 0);
    }
    CHECK_EQUAL(remove(folder), 0);
}

static void test_the_floating_point_state_of_the_caller_stays(void)
{
    colibri_model_options o;
    colibri_model *model;
    colibri_session *s;
    int32_t ids[] = {1, 2, 3};
    float before[61];
    uint64_t saved = cb_fpu_enter(), strange = 0;

    quiet(&o);
    CHECK_EQUAL(open_with(&o, &model, NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &s, NULL), 0);
    CHECK_EQUAL(colibri_session_append(s, ids, 3, NULL), 0);
    memcpy(before, colibri_session_logits(s), sizeof before);
#if defined(__x86_64__)
    strange = 0x1f80u | 0x6000u | 0x8040u; /* toward zero, flushing */
#elif defined(__aarch64__)
    strange = 3u << 22 | 1u << 24;
#endif
    if (strange != 0) {
        cb_fpu_leave(strange);
        colibri_session_reset(s);
        CHECK_EQUAL(colibri_session_append(s, ids, 3, NULL), 0);
        CHECK(memcmp(before, colibri_session_logits(s), sizeof before) == 0);
        CHECK((cb_fpu_enter() & strange) == strange);
    }
    cb_fpu_leave(saved);
    colibri_model_close(model);
}

int main(void)
{
    build_variant(&file, &variants[1]);
    RUN(test_bad_calls_are_refused_and_change_nothing);
    RUN(test_options_out_of_range_are_named);
    RUN(test_the_budget_is_a_floor);
    RUN(test_the_plan_grows_with_what_it_is_asked_for);
    RUN(test_ids_of_any_alignment_are_taken);
    RUN(test_sampling_depends_on_seed_and_count_alone);
    RUN(test_a_running_call_makes_others_busy_and_can_be_cancelled);
    RUN(test_a_cancel_between_calls_stops_the_next_one);
    RUN(test_the_report_says_what_was_locked);
    RUN(test_the_tightest_memory_cgroup_bounds_what_is_locked);
    RUN(test_the_tightest_cpu_cgroup_bounds_the_threads);
    RUN(test_threads_are_bound_to_big_cores_or_not_at_all);
    RUN(test_the_floating_point_state_of_the_caller_stays);
    free(file.bytes);
    return RESULT();
}
