/* SPDX-License-Identifier: MIT */
/*
 * colibrictl bench: first-token latency, throughput with the times of single tokens, memory.
 *
 * The ids that are fed come from a generator: text that a model writes by itself falls into loops,
 * and a loop asks for the same experts over and over. The control loop is work of a fixed size on
 * as many threads, done between tokens: what the machine adds to its times, it adds to the tokens'.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "../src/spec.h"
#include "../src/threads.h"
#include "bench.h"
#include "commands.h"
#include "options.h"
#include "output.h"
#include "signals.h"

#define NAME "bench"
#define MAX_PROMPT 4096
#define MAX_TOKENS 1000000
#define MAX_ROUNDS 1000
#define LOAD_BYTES ((size_t)256 << 20) /* above any cache of a small machine */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define LOAD_STRIDE 64u                /* the control loop's pieces: one cache line */
#define BANDWIDTH_PASSES 3u

#define AT(field) offsetof(struct ctl_bench_values, field)

static const struct ctl_option bench_options[] = {
    { "prompt", 'p', CTL_U32, AT(prompt_tokens), 1, MAX_PROMPT, "N", CTL_BENCH_PROMPT,
      "tokens of the prompt" },
    { "tokens", 'n', CTL_U32, AT(tokens), 1, MAX_TOKENS, "N", CTL_BENCH_TOKENS,
      "tokens to decode; at the end of the context the sequence starts again" },
    { "rounds", 0, CTL_U32, AT(rounds), 1, MAX_ROUNDS, "N", CTL_BENCH_ROUNDS,
      "times the prompt is measured" },
    { "warm", 0, CTL_U32, AT(warm_tokens), 0, MAX_TOKENS, "N", "0",
      "tokens to decode before those that count" },
    { "feed", 0, CTL_CHOICE, AT(feed), 0, 0, "random|greedy", "random",
      "decode pseudo-random ids, or the best of each step" },
    { "control", 0, CTL_FLAG, AT(control), 0, 0, NULL, NULL,
      "time work of a fixed size between tokens (takes 256 MB more than the plan)" },
    { "bandwidth", 0, CTL_FLAG, AT(bandwidth), 0, 0, NULL, NULL,
      "measure how fast the threads read memory, at the end (256 MB)" },
    { "json", 0, CTL_FLAG, AT(json), 0, 0, NULL, NULL, "print one JSON object" },
};

static const char bench_notes[] =
    "Round 1: milliseconds from the prompt to the first token, best and worst of --rounds.\n"
    "Round 2: tokens per second, times of single tokens, page faults. Round 3: memory and its plan.\n"
    "\n"
    "Examples:\n"
    "  colibrictl bench model.colibri --prompt 512 --batch 128\n"
    "  colibrictl bench model.colibri --budget 1G -n 2000 --control --json\n";

enum { ROW_RSS, ROW_PEAK, ROW_ANONYMOUS, ROW_FILE, ROW_LOCKED, MEMORY_ROWS };

static const struct {
    const char *row, *name;
} memory_rows[MEMORY_ROWS] = {
    { "VmRSS:", "vmrss_bytes" },     { "VmHWM:", "vmhwm_bytes" }, { "RssAnon:", "rss_anon_bytes" },
    { "RssFile:", "rss_file_bytes" }, { "VmLck:", "locked_bytes" },
};

/* Milliseconds. */
struct spread {
    double best, p50, p99, worst, mean;
};

struct bench {
    const char *command;
    const struct ctl_bench_values *values;
    colibri_model *model;
    colibri_session *session;
    colibri_plan plan;
    uint32_t vocabulary, prompt_tokens;
    uint64_t random;
    int32_t prompt[MAX_PROMPT];
    double *times, *control_times; /* seconds, [tokens] */
    struct cb_pool pool;           /* of the control loop and the bandwidth */
    const uint64_t *load;          /* LOAD_BYTES */
    size_t control_bytes;          /* read by one turn of the control loop */
    size_t load_at;
    /* results */
    double open_ms, bandwidth;
    uint64_t memory[MEMORY_ROWS]; /* before the bandwidth was measured */
    struct spread first, token, control;
    struct rusage before, after;
    colibri_residency_stats io_before, io_after;
};

/* splitmix64 */
static uint64_t next_random(struct bench *b)
{
    uint64_t z = b->random += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int32_t random_id(struct bench *b)
{
    return (int32_t)(next_random(b) % b->vocabulary);
}

/* The largest of times[root] and what hangs below it, among n, moves up to root. */
static void sift(double *times, size_t root, size_t n)
{
    while (2 * root + 1 < n) {
        size_t child = 2 * root + 1;
        double moved = times[root];

        child += child + 1 < n && times[child + 1] > times[child];
        if (!(times[child] > moved)) {
            return;
        }
        times[root] = times[child];
        times[child] = moved;
        root = child;
    }
}

/* Heap sort: a quarter of the size of a libc's qsort. */
static void sort(double *times, size_t n)
{
    for (size_t i = n / 2; i-- > 0;) {
        sift(times, i, n);
    }
    for (size_t i = n; i-- > 1;) {
        double last = times[i];

        times[i] = times[0];
        times[0] = last;
        sift(times, 0, i);
    }
}

/* Sorts the times. */
static struct spread spread_of(double *times, size_t n)
{
    struct spread s = { 0 };

    sort(times, n);
    for (size_t i = 0; i < n; i++) {
        s.mean += 1e3 * times[i] / (double)n;
    }
    s.best = 1e3 * times[0];
    s.p50 = 1e3 * times[(n - 1) / 2];
    s.p99 = 1e3 * times[(99 * n + 99) / 100 - 1];
    s.worst = 1e3 * times[n - 1];
    return s;
}

/* ---- reading memory ---------------------------------------------------------------------------- */

struct reading {
    const uint64_t *load;
    size_t begin, bytes; /* multiples of LOAD_STRIDE; wraps at LOAD_BYTES */
    volatile uint64_t sink;
};

static uint64_t sum_lines(const uint64_t *at, size_t bytes)
{
    typedef uint64_t pair __attribute__((vector_size(16)));
    const pair *p = (const pair *)(const void *)at;
    pair a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

    for (size_t i = 0; i < bytes / sizeof *p; i += LOAD_STRIDE / sizeof *p) {
        a += p[i];
        b += p[i + 1];
        c += p[i + 2];
        d += p[i + 3];
    }
    a = (a + b) + (c + d);
    return a[0] + a[1];
}

static int read_share(void *context, unsigned index, unsigned count)
{
    struct reading *r = context;
    size_t lines = r->bytes / LOAD_STRIDE;
    size_t at = lines * index / count * LOAD_STRIDE, end = lines * (index + 1) / count * LOAD_STRIDE;
    uint64_t sum = 0;

    while (at < end) {
        size_t from = (r->begin + at) % LOAD_BYTES, piece = end - at;

        piece = piece < LOAD_BYTES - from ? piece : LOAD_BYTES - from;
        sum += sum_lines(r->load + from / sizeof *r->load, piece);
        at += piece;
    }
    r->sink = sum;
    return 0;
}

/* Seconds to read the next `bytes` of the load. */
static double read_load(struct bench *b, size_t bytes)
{
    struct reading r = { .load = b->load, .begin = b->load_at, .bytes = bytes };
    double start = ctl_seconds();

    (void)cb_pool_run(&b->pool, read_share, &r, SIZE_MAX);
    b->load_at = (b->load_at + bytes) % LOAD_BYTES;
    return ctl_seconds() - start;
}

static int start_load(struct bench *b)
{
    colibri_error error = { .offset = -1 };
    void *memory = NULL;

    if (b->load != NULL) {
        return 0;
    }
    if (posix_memalign(&memory, HUGE_PAGE_BYTES, LOAD_BYTES) != 0) {
        return ctl_fail_message(b->command, COLIBRI_ERR_MEMORY,
                                "%zu bytes for the control loop could not be had; measure without it",
                                LOAD_BYTES);
    }
    (void)madvise(memory, LOAD_BYTES, MADV_HUGEPAGE); /* else page tables are measured */
    memset(memory, 1, LOAD_BYTES);
    b->load = memory;
    if (cb_pool_start(&b->pool, b->plan.threads, &error) != 0) {
        return ctl_fail(b->command, &error);
    }
    return 0;
}

static int measure_bandwidth(struct bench *b)
{
    int exit_code = start_load(b);

    for (unsigned i = 0; i < BANDWIDTH_PASSES && exit_code == 0; i++) {
        double rate = (double)LOAD_BYTES / read_load(b, LOAD_BYTES);

        b->bandwidth = rate > b->bandwidth ? rate : b->bandwidth;
    }
    return exit_code;
}

/* ---- rounds -------------------------------------------------------------------------------------- */

static int append(struct bench *b, const int32_t *ids, size_t count, int32_t *next)
{
    colibri_error error = { .offset = -1 };
    int code = colibri_session_append(b->session, ids, count, &error);

    if (code == 0) {
        code = colibri_session_sample(b->session, next, &error);
    }
    if (code == 0) {
        return 0;
    }
    if (code == COLIBRI_ERR_CANCELLED && ctl_signal_caught() != 0) {
        return ctl_fail_message(b->command, code, "interrupted by signal %d", ctl_signal_caught());
    }
    return ctl_fail(b->command, &error);
}

static int first_round(struct bench *b)
{
    for (uint32_t i = 0; i < b->values->rounds; i++) {
        double start = ctl_seconds();
        int32_t next;
        int exit_code;

        colibri_session_reset(b->session);
        exit_code = append(b, b->prompt, b->prompt_tokens, &next);
        if (exit_code != 0) {
            return exit_code;
        }
        b->times[i] = ctl_seconds() - start;
    }
    b->first = spread_of(b->times, b->values->rounds);
    return 0;
}

/* Decodes one token; *id in: the one to append, out: the next. Seconds in *time. */
static int one_token(struct bench *b, int32_t *id, double *time)
{
    double start;
    int32_t next;
    int exit_code;

    if (colibri_session_position(b->session) >= b->plan.context_tokens) {
        colibri_session_reset(b->session);
    }
    start = ctl_seconds();
    exit_code = append(b, id, 1, &next);
    *time = ctl_seconds() - start;
    *id = b->values->feed == CTL_FEED_GREEDY ? next : random_id(b);
    return exit_code;
}

/* As much work as takes about as long as a token: the best of a few of both. */
static int size_control(struct bench *b, int32_t *id)
{
    double token = 0, pass = 0;

    for (unsigned i = 0; i < 8; i++) {
        double time, here = read_load(b, LOAD_BYTES);
        int exit_code = one_token(b, id, &time);

        if (exit_code != 0) {
            return exit_code;
        }
        token = i == 0 || time < token ? time : token;
        pass = i == 0 || here < pass ? here : pass;
    }
    b->control_bytes = ((size_t)((double)LOAD_BYTES * token / pass) / LOAD_STRIDE + 1) * LOAD_STRIDE;
    return 0;
}

static int second_round(struct bench *b)
{
    const struct ctl_bench_values *v = b->values;
    int32_t id = b->prompt[0];
    double ignored;
    int exit_code = 0;

    for (uint32_t i = 0; i < v->warm_tokens && exit_code == 0; i++) {
        exit_code = one_token(b, &id, &ignored);
    }
    if (exit_code == 0 && v->control) {
        exit_code = start_load(b);
        exit_code = exit_code != 0 ? exit_code : size_control(b, &id);
    }
    (void)colibri_model_residency(b->model, &b->io_before);
    (void)getrusage(RUSAGE_SELF, &b->before);
    for (uint32_t i = 0; i < v->tokens && exit_code == 0; i++) {
        if (v->control) {
            b->control_times[i] = read_load(b, b->control_bytes);
        }
        exit_code = one_token(b, &id, &b->times[i]);
    }
    (void)getrusage(RUSAGE_SELF, &b->after);
    (void)colibri_model_residency(b->model, &b->io_after);
    if (exit_code == 0) {
        b->token = spread_of(b->times, v->tokens);
        if (v->control) {
            b->control = spread_of(b->control_times, v->tokens);
        }
    }
    return exit_code;
}

/* ---- output -------------------------------------------------------------------------------------- */

#define DELTA(field) ((unsigned long long)(b->io_after.field - b->io_before.field))

static void print_json_spread(const char *name, const struct spread *s)
{
    (void)printf(",\"%s\":{\"best\":%.4f,\"p50\":%.4f,\"p99\":%.4f,\"worst\":%.4f,\"mean\":%.4f}", name,
                 s->best, s->p50, s->p99, s->worst, s->mean);
}

static void print_json_number(const char *name, unsigned long long value)
{
    (void)printf(",\"%s\":%llu", name, value);
}

static void print_json(const struct bench *b, const char *path)
{
    colibri_report report = { .struct_size = sizeof report };
    colibri_model_info info = { .struct_size = sizeof info };

    (void)colibri_model_report(b->model, &report);
    (void)colibri_model_info_get(b->model, &info);
    (void)printf("{\"build\":\"%s\",\"isa\":\"%s\",\"model\":", colibri_build_info(), report.isa);
    ctl_print_json_text(path);
    print_json_number("file_bytes", info.file_bytes);
    print_json_number("threads", b->plan.threads);
    print_json_number("context_tokens", b->plan.context_tokens);
    print_json_number("batch_tokens", b->plan.batch_tokens);
    print_json_number("prompt_tokens", b->prompt_tokens);
    print_json_number("tokens", b->values->tokens);
    (void)printf(",\"open_ms\":%.3f", b->open_ms);
    print_json_spread("first_token_ms", &b->first);
    print_json_spread("token_ms", &b->token);
    if (b->values->control) {
        print_json_spread("control_ms", &b->control);
    }
    print_json_number("bandwidth_bytes_per_s", (unsigned long long)b->bandwidth);
    print_json_number("minor_faults", (unsigned long long)(b->after.ru_minflt - b->before.ru_minflt));
    print_json_number("major_faults", (unsigned long long)(b->after.ru_majflt - b->before.ru_majflt));
    print_json_number("waits", (unsigned long long)(b->after.ru_nvcsw - b->before.ru_nvcsw));
    print_json_number("preemptions", (unsigned long long)(b->after.ru_nivcsw - b->before.ru_nivcsw));
    for (size_t i = 0; i < MEMORY_ROWS; i++) {
        print_json_number(memory_rows[i].name, (unsigned long long)b->memory[i]);
    }
    print_json_number("plan_bytes", b->plan.total_bytes);
    print_json_number("kv_bytes", b->plan.kv_bytes);
    print_json_number("residency", b->plan.residency);
    print_json_number("expert_slots", b->plan.expert_slots);
    print_json_number("slot_bytes", b->plan.slot_bytes);
    print_json_number("direct_io", report.direct_io);
    print_json_number("hits", DELTA(hits));
    print_json_number("misses", DELTA(misses));
    print_json_number("reads", DELTA(reads));
    print_json_number("read_bytes", DELTA(read_bytes));
    print_json_number("prefetch_reads", DELTA(prefetch_reads));
    print_json_number("prefetch_hits", DELTA(prefetch_hits));
    print_json_number("io_wait_ns", DELTA(io_wait_ns));
    print_json_number("io_idle_ns", DELTA(io_idle_ns));
    print_json_number("read_ns", DELTA(read_ns));
    print_json_number("hash_ns", DELTA(hash_ns));
    print_json_number("barriers", DELTA(barriers));
    (void)printf("}\n");
}

static void print_text(const struct bench *b)
{
    (void)printf("round 1: first_token_ms=%.3f worst_ms=%.3f prompt_tokens=%u prompt_tok_s=%.2f\n",
                 b->first.best, b->first.worst, (unsigned)b->prompt_tokens,
                 1e3 * b->prompt_tokens / b->first.best);
    (void)printf("round 2: tok_s=%.2f generated=%u p50_ms=%.3f p99_ms=%.3f worst_ms=%.3f "
                 "barriers=%.1f minor_faults=%ld major_faults=%ld\n",
                 1e3 / b->token.mean, (unsigned)b->values->tokens, b->token.p50, b->token.p99,
                 b->token.worst, (double)DELTA(barriers) / b->values->tokens,
                 b->after.ru_minflt - b->before.ru_minflt, b->after.ru_majflt - b->before.ru_majflt);
    if (b->values->control) {
        (void)printf("control: p50_ms=%.3f p99_ms=%.3f worst_ms=%.3f\n", b->control.p50,
                     b->control.p99, b->control.worst);
    }
    if (DELTA(misses) != 0) {
        (void)printf("stream: hit_rate=%.4f read_bytes=%llu slots=%u\n",
                     (double)DELTA(hits) / (double)(DELTA(hits) + DELTA(misses)), DELTA(read_bytes),
                     (unsigned)b->plan.expert_slots);
    }
    (void)printf("round 3: vmrss_bytes=%llu vmhwm_bytes=%llu plan_bytes=%llu open_ms=%.1f\n",
                 (unsigned long long)b->memory[ROW_RSS], (unsigned long long)b->memory[ROW_PEAK],
                 (unsigned long long)b->plan.total_bytes, b->open_ms);
    if (b->bandwidth > 0) {
        (void)printf("memory: read_bytes_per_s=%.0f\n", b->bandwidth);
    }
}

/* The peak must be within the plan, which does not know of the control loop's memory. */
static int check_peak(const struct bench *b)
{
    uint64_t peak = b->memory[ROW_PEAK];

    if (b->values->control || peak <= b->plan.total_bytes) {
        return 0;
    }
    return ctl_fail_message(b->command, COLIBRI_ERR_INTERNAL,
                            "peak memory of %llu bytes is above the plan of %llu",
                            (unsigned long long)peak, (unsigned long long)b->plan.total_bytes);
}

static int run_rounds(struct bench *b, const char *path)
{
    int exit_code = first_round(b);

    exit_code = exit_code != 0 ? exit_code : second_round(b);
    for (size_t i = 0; i < MEMORY_ROWS; i++) {
        b->memory[i] = ctl_status_bytes(memory_rows[i].row);
    }
    if (exit_code == 0 && b->values->bandwidth) {
        exit_code = measure_bandwidth(b);
    }
    if (exit_code != 0) {
        return exit_code;
    }
    if (b->values->json) {
        print_json(b, path);
    } else {
        print_text(b);
    }
    return check_peak(b);
}

static int prepare(struct bench *b)
{
    const struct ctl_bench_values *v = b->values;
    colibri_model_info info = { .struct_size = sizeof info };
    uint32_t times = v->tokens > v->rounds ? v->tokens : v->rounds;

    (void)colibri_model_plan(b->model, &b->plan);
    (void)colibri_model_info_get(b->model, &info);
    b->vocabulary = info.vocabulary;
    b->prompt_tokens = v->prompt_tokens;
    if (b->prompt_tokens > b->plan.context_tokens) {
        b->prompt_tokens = b->plan.context_tokens;
    }
    for (uint32_t i = 0; i < b->prompt_tokens; i++) {
        b->prompt[i] = random_id(b);
    }
    b->times = malloc(2 * (size_t)times * sizeof *b->times);
    if (b->times == NULL) {
        return ctl_fail_message(b->command, COLIBRI_ERR_MEMORY,
                                "the times of %u tokens do not fit in memory; lower --tokens", times);
    }
    memset(b->times, 0, 2 * (size_t)times * sizeof *b->times); /* touched now, not while measuring */
    b->control_times = b->times + times;
    return 0;
}

int ctl_bench(const char *command, const char *path, struct ctl_model_values *model,
              const struct ctl_bench_values *values)
{
    struct bench b = { .command = command,
                       .values = values,
                       .plan = { .struct_size = sizeof b.plan },
                       .io_before = { .struct_size = sizeof b.io_before },
                       .io_after = { .struct_size = sizeof b.io_after } };
    colibri_error error = { .offset = -1 };
    double start = ctl_seconds();
    int exit_code = ctl_model_open(command, path, model, &b.model);

    if (exit_code == 0 && colibri_session_create(b.model, &b.session, &error) != 0) {
        exit_code = ctl_fail(command, &error);
    }
    b.open_ms = 1e3 * (ctl_seconds() - start);
    if (exit_code == 0) {
        exit_code = prepare(&b);
    }
    if (exit_code == 0) {
        ctl_signals_watch(b.session);
        exit_code = run_rounds(&b, path);
        ctl_signals_unwatch();
    }
    cb_pool_stop(&b.pool);
    free(b.times);
    colibri_session_free(b.session);
    colibri_model_close(b.model);
    return exit_code;
}

int ctl_command_bench(int argc, char *const *argv)
{
    struct ctl_model_values model = { 0 };
    struct ctl_bench_values values = { 0 };
    const struct ctl_group groups[] = {
        { "Measurement", bench_options, sizeof bench_options / sizeof bench_options[0], &values },
        { "Model", ctl_model_options, ctl_model_option_count, &model },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL [options]",
        .summary = "Measure a model: first token, tokens per second, memory.",
        .notes = bench_notes,
        .groups = groups,
        .group_count = 2,
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code, finished;

    if (code != 0) {
        return ctl_parsed(code);
    }
    exit_code = ctl_bench(NAME, positionals[0], &model, &values);
    finished = ctl_finish_stdout();
    return exit_code != 0 ? exit_code : finished;
}
