/* SPDX-License-Identifier: MIT */
/*
 * What a token costs the kernel: page faults and system calls, counted by tracing the program. A
 * resident model with one thread needs none of either; threads sleep on futexes; the other modes
 * make the calls they are made of and nothing else. Memory calls (mmap, brk, munmap) are never
 * among them.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "variants.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif

#define SKIPPED 77 /* of meson */
#define WARM_TOKENS 24
#define COUNTED_TOKENS 24
#define MARK_CALL SYS_prctl /* with this option the kernel answers EINVAL: nothing happens */
#define MARK_BEGIN 0x6365626cul
#define MARK_END 0x6365626dul
#define MAX_NUMBER 1024u

#ifndef SYS_fadvise64 /* 32-bit ARM has its own, with the arguments in another order */
#define SYS_fadvise64 SYS_arm_fadvise64_64
#endif

/* From linux/ptrace.h, which C libraries disagree with. */
#define GET_SYSCALL_INFO 0x420e
#define INFO_ENTRY 1
struct call_info {
    uint8_t op, padding[3];
    uint32_t arch;
    uint64_t instruction_pointer, stack_pointer, number, arguments[6], more[2];
};

struct counts {
    long calls[MAX_NUMBER];
    long all, minor, major;
};

struct way {
    const char *name;
    uint32_t residency, threads, slots;
    long allowed[6]; /* numbers of calls, -1: no more */
    long faults;     /* page faults that belong to the mode: -1 any, else at most */
};

static struct build_file file;

/* ---- the traced program --------------------------------------------------------------------- */

static void step(colibri_session *session)
{
    colibri_error error;
    int32_t id = 0;

    if (colibri_session_sample(session, &id, &error) != 0 ||
        colibri_session_append(session, &id, 1, &error) != 0) {
        printf("%s\n", error.message);
        _exit(2);
    }
}

/* Faults go to the parent through the arguments of the closing mark. */
static void traced(const char *path, const struct way *way)
{
    colibri_model_options options;
    colibri_model *model;
    colibri_session *session;
    colibri_error error;
    struct rusage before, after;
    int32_t first = 1;
    int i;

    (void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    (void)raise(SIGSTOP);
    colibri_model_options_default(&options);
    options.threads = way->threads;
    options.residency = way->residency;
    options.expert_slots = way->slots;
    options.context_tokens = WARM_TOKENS + COUNTED_TOKENS + 2;
    if (colibri_model_open(path, &options, &model, &error) != 0 ||
        colibri_session_create(model, &session, &error) != 0 ||
        colibri_session_append(session, &first, 1, &error) != 0) {
        printf("%s\n", error.message);
        _exit(2);
    }
    for (i = 0; i < WARM_TOKENS; i++)
        step(session);
    /* A first call of either may touch a page of its own, e.g. of a shared libc's code. */
    (void)syscall(MARK_CALL, 0, 0, 0, 0, 0);
    (void)getrusage(RUSAGE_SELF, &before);
    (void)getrusage(RUSAGE_SELF, &before);
    (void)syscall(MARK_CALL, MARK_BEGIN, 0, 0, 0, 0);
    for (i = 0; i < COUNTED_TOKENS; i++)
        step(session);
    (void)syscall(MARK_CALL, 0, 0, 0, 0, 0); /* stops counting at the exit of step; rusage is not ours */
    (void)getrusage(RUSAGE_SELF, &after);
    (void)syscall(MARK_CALL, MARK_END, after.ru_minflt - before.ru_minflt,
                  after.ru_majflt - before.ru_majflt, 0, 0);
    colibri_session_free(session);
    colibri_model_close(model);
    _exit(0);
}

/* ---- the tracer ----------------------------------------------------------------------------- */

/* One stop of a system call; *counting is between the marks. */
static void count_call(pid_t thread, struct counts *counts, int *counting)
{
    struct call_info info;

    memset(&info, 0, sizeof info);
    if (ptrace(GET_SYSCALL_INFO, thread, (void *)sizeof info, &info) <= 0 || info.op != INFO_ENTRY)
        return;
    if (info.number == MARK_CALL && info.arguments[0] == MARK_BEGIN) {
        *counting = 1;
    } else if (info.number == MARK_CALL && info.arguments[0] == MARK_END) {
        counts->minor = (long)info.arguments[1];
        counts->major = (long)info.arguments[2];
    } else if (info.number == MARK_CALL && info.arguments[0] == 0) {
        *counting = 0;
    } else if (*counting) {
        counts->calls[info.number < MAX_NUMBER ? info.number : 0]++;
        counts->all++;
    }
}

/* 0, or the wait status of a program that failed. */
static int trace(pid_t child, struct counts *counts)
{
    int status, counting = 0;
    pid_t thread;

    memset(counts, 0, sizeof *counts);
    if (waitpid(child, &status, 0) != child || !WIFSTOPPED(status))
        return 1;
    if (ptrace(PTRACE_SETOPTIONS, child, NULL,
               (void *)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)) != 0)
        return 1;
    (void)ptrace(PTRACE_SYSCALL, child, NULL, NULL);
    while ((thread = waitpid(-1, &status, __WALL)) > 0) {
        int sig = 0;

        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (thread == child)
                return status;
            continue;
        }
        if (WSTOPSIG(status) == (SIGTRAP | 0x80))
            count_call(thread, counts, &counting);
        else if (WSTOPSIG(status) != SIGTRAP && WSTOPSIG(status) != SIGSTOP)
            sig = WSTOPSIG(status);
        (void)ptrace(PTRACE_SYSCALL, thread, NULL, (void *)(uintptr_t)sig);
    }
    return 1;
}

static int is_allowed(const struct way *way, long number)
{
    int i;

    for (i = 0; i < 6 && way->allowed[i] >= 0; i++)
        if (way->allowed[i] == number)
            return 1;
    return 0;
}

static void count_way(const struct way *way)
{
    const char *path = build_write(&file, file.size);
    struct counts counts;
    pid_t child;
    long number;

    (void)fflush(stdout);
    child = fork();
    if (child == 0)
        traced(path, way);
    if (!CHECK_EQUAL(trace(child, &counts), 0)) {
        (void)unlink(path);
        return;
    }
    (void)unlink(path);
    printf("note: %s, %u threads, %d tokens: %ld system calls, %ld minor and %ld major faults", way->name,
           way->threads, COUNTED_TOKENS, counts.all, counts.minor, counts.major);
    for (number = 0; number < (long)MAX_NUMBER; number++) {
        if (counts.calls[number] > 0)
            printf("; call %ld: %ld", number, counts.calls[number]);
        if (counts.calls[number] > 0 && !is_allowed(way, number))
            CHECK_EQUAL(counts.calls[number], 0);
    }
    printf("\n");
    CHECK_EQUAL(counts.major, 0);
    if (way->faults >= 0)
        CHECK(counts.minor <= way->faults);
}

/* Reading an expert is one pread; threads hand it over on a futex. What is read through the page cache
 * is dropped there (fadvise64). Experts of a mapping are faulted in when they are first needed. */
static const struct way ways[] = {
    {"resident", COLIBRI_RESIDENCY_RESIDENT, 1, 0, {-1}, 0},
    {"resident", COLIBRI_RESIDENCY_RESIDENT, 4, 0, {SYS_futex, -1}, 0},
    {"stream", COLIBRI_RESIDENCY_STREAM, 1, 3, {SYS_futex, SYS_pread64, SYS_fadvise64, -1}, 0},
    {"stream", COLIBRI_RESIDENCY_STREAM, 3, 3, {SYS_futex, SYS_pread64, SYS_fadvise64, -1}, 0},
    {"mapped", COLIBRI_RESIDENCY_MAPPED, 1, 0, {-1}, -1},
    {"mapped-guarded", COLIBRI_RESIDENCY_MAPPED_GUARDED, 1, 0, {SYS_mprotect, -1}, -1},
};

static void test_a_resident_token_with_one_thread_makes_no_system_call_and_no_page_fault(void)
{
    count_way(&ways[0]);
}

static void test_a_resident_token_with_four_threads_makes_only_futex_calls_and_no_page_fault(void)
{
    count_way(&ways[1]);
}

static void test_a_streamed_token_reads_and_waits_and_does_nothing_else(void)
{
    count_way(&ways[2]);
    count_way(&ways[3]);
}

static void test_a_mapped_token_makes_no_system_call(void)
{
    count_way(&ways[4]);
}

static void test_a_guarded_token_opens_and_closes_experts_and_does_nothing_else(void)
{
    count_way(&ways[5]);
}

/* The tracer must see what it is there for: a call and a fault in the middle of a token. */
static void test_the_counter_counts(void)
{
    struct counts counts;
    pid_t child;

    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        (void)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        (void)raise(SIGSTOP);
        (void)syscall(MARK_CALL, MARK_BEGIN, 0, 0, 0, 0);
        (void)syscall(SYS_getpid);
        (void)syscall(SYS_getpid);
        (void)syscall(MARK_CALL, 0, 0, 0, 0, 0);
        (void)syscall(MARK_CALL, MARK_END, 5, 6, 0, 0);
        _exit(0);
    }
    CHECK_EQUAL(trace(child, &counts), 0);
    CHECK_EQUAL(counts.all, 2);
    CHECK_EQUAL(counts.calls[SYS_getpid], 2);
    CHECK_EQUAL(counts.minor, 5);
    CHECK_EQUAL(counts.major, 6);
}

/* Emulators of single programs and some sandboxes cannot trace. */
static int can_trace(void)
{
    struct counts counts;
    pid_t child = fork();

    if (child == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(3);
        (void)raise(SIGSTOP);
        (void)syscall(MARK_CALL, MARK_BEGIN, 0, 0, 0, 0);
        (void)syscall(SYS_getpid);
        _exit(0);
    }
    return trace(child, &counts) == 0 && counts.all > 0;
}

int main(void)
{
#ifdef SANITIZED
    printf("skip: the sanitizer makes system calls of its own\n");
    return SKIPPED;
#endif
    if (!can_trace()) {
        printf("skip: this system does not let a program trace its child (%s)\n", strerror(errno));
        return SKIPPED;
    }
    build_variant(&file, &variants[3]);
    RUN(test_the_counter_counts);
    RUN(test_a_resident_token_with_one_thread_makes_no_system_call_and_no_page_fault);
    RUN(test_a_resident_token_with_four_threads_makes_only_futex_calls_and_no_page_fault);
    RUN(test_a_streamed_token_reads_and_waits_and_does_nothing_else);
    RUN(test_a_mapped_token_makes_no_system_call);
    RUN(test_a_guarded_token_opens_and_closes_experts_and_does_nothing_else);
    free(file.bytes);
    return RESULT();
}
