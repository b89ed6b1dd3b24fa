/* SPDX-License-Identifier: MIT */
/*
 * What the sandbox refuses, tried from the inside: every system call that is not on its list, one by one,
 * from the main thread and from a thread that was there before; what ends the process; and that a model
 * still gives its bits behind it.
 *
 *     sandbox_probe [MODEL [IDS [TOKENS [LOGITS_SHA256]]]]
 *
 * Without MODEL it writes a small one itself (to /tmp). LOGITS_SHA256 is that of a golden case with KV cache
 * f16; without it a run outside of the sandbox says what is right. Lines of `key=value` words, the last one
 * is `sandbox_probe: ok checks=N` or `sandbox_probe: FAILED checks=N failed=M`.
 * Exit code: 0 ok, 1 failed, 2 wrong usage, 77 no seccomp here (an emulator of programs, a sanitizer).
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../src/sandbox_filters.h"
#include "check.h"
#include "variants.h"

#define SKIPPED 77
#define RETURNED 99 /* exit code of a child whose forbidden call came back */
#define LAST_NUMBER 600L
#define CLONE3 435L
#define X32_BIT 0x40000000L
#define ARM_PRIVATE 0xf0000L
#define MAX_IDS 256u
#define CHILD_SECONDS 120u
#define GENERATE_SECONDS 900u /* in an emulator */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

#ifdef CB_SANDBOX_FILTERS

static int checks;

static void check_one(int holds, const char *what, long number, long found)
{
    checks++;
    if (!holds) {
        printf("FAILED %s: number=%ld found=%ld\n", what, number, found);
        check_failures++;
    }
}

/* Written by children behind the sandbox, where nothing can be printed. */
static struct shared {
    long refused[2][2], listed[2][2]; /* [START, STEADY][main thread, worker] */
    long wrong_number, wrong_errno, wrong_count;
    uint32_t allowed[2], abi[2];
    uint8_t sha256[32];
    int tokens, code;
    char message[256];
} *shared;

/* ---- numbers ------------------------------------------------------------------------------------- */

/* The comparisons of the number come before everything that looks at arguments. */
static int is_listed(const uint32_t *filter, size_t count, long number)
{
    for (size_t i = 3; i < count && CB_BPF_WORD(filter[i]) == CB_BPF_EQUAL; i++)
        if ((long)CB_BPF_OPERAND(filter[i]) == number)
            return 1;
    return 0;
}

static int is_on_list(int steady, long number)
{
    return steady ? is_listed(steady_filter, sizeof steady_filter / sizeof steady_filter[0], number)
                  : is_listed(start_filter, sizeof start_filter / sizeof start_filter[0], number);
}

/* uretprobe and uprobe of x86-64: kernels that have them let them past every filter, and kill who calls
 * them outside of a probe. */
static int is_past_filters(long number)
{
#if defined(__x86_64__)
    return number == 335 || number == 336;
#else
    return number < 0;
#endif
}

/* -1 is no descriptor, address, process, user or flag that any call accepts. */
static void try_number(int steady, int worker, long number)
{
    long result;

    if (is_on_list(steady, number)) {
        shared->listed[steady][worker]++;
        return;
    }
    if (is_past_filters(number))
        return;
    errno = 0;
    result = syscall(number, -1L, -1L, -1L, -1L, -1L, -1L);
    if (result == -1 && errno == EPERM) {
        shared->refused[steady][worker]++;
    } else if (shared->wrong_count++ == 0) {
        shared->wrong_number = number;
        shared->wrong_errno = result == -1 ? errno : 0;
    }
}

static void try_numbers(int steady, int worker)
{
    try_number(steady, worker, SYS_getppid);
    if (shared->refused[steady][worker]-- == 0)
        return; /* not closed in at all: calls like pause() would be made */
    for (long number = 0; number <= LAST_NUMBER; number++)
        try_number(steady, worker, number);
#if defined(__x86_64__)
    for (long number = 0; number <= LAST_NUMBER; number++)
        try_number(steady, worker, X32_BIT | number);
#elif defined(__arm__)
    for (long number = 0; number <= 32; number++)
        try_number(steady, worker, ARM_PRIVATE + number);
#endif
}

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int asked, done; /* phases */
} order = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0};

static void *worker_main(void *argument)
{
    (void)argument;
    (void)pthread_mutex_lock(&order.mutex);
    while (order.done < 2) {
        while (order.asked == order.done)
            (void)pthread_cond_wait(&order.changed, &order.mutex);
        try_numbers(order.done, 1);
        order.done++;
        (void)pthread_cond_signal(&order.changed);
    }
    (void)pthread_mutex_unlock(&order.mutex);
    return NULL;
}

static void ask_worker(void)
{
    (void)pthread_mutex_lock(&order.mutex);
    order.asked++;
    (void)pthread_cond_signal(&order.changed);
    while (order.done != order.asked)
        (void)pthread_cond_wait(&order.changed, &order.mutex);
    (void)pthread_mutex_unlock(&order.mutex);
}

static int enter(uint32_t phase, uint32_t action, const char *path)
{
    const char *const paths[] = {path, "/proc", "/sys"};
    colibri_sandbox options = COLIBRI_SANDBOX_DEFAULT;
    colibri_sandbox_report report = {.struct_size = sizeof report};
    colibri_error error = {.code = 0};

    options.phase = phase;
    options.action = action;
    if (path != NULL && phase == COLIBRI_SANDBOX_START) {
        options.read_paths = paths;
        options.read_path_count = 3;
    }
    shared->code = colibri_sandbox_enter(&options, &report, &error);
    memcpy(shared->message, error.message, sizeof shared->message);
    shared->allowed[phase - 1] = report.allowed_calls;
    shared->abi[phase - 1] = report.landlock_abi;
    return shared->code == 0 && report.filter == 1 && report.threads_synced == 1 && report.no_new_privs == 1;
}

static int child_numbers(const void *argument)
{
    pthread_t thread;

    (void)argument;
    if (pthread_create(&thread, NULL, worker_main, NULL) != 0)
        return 1;
    for (int steady = 0; steady < 2; steady++) {
        if (!enter(steady ? COLIBRI_SANDBOX_STEADY : COLIBRI_SANDBOX_START, COLIBRI_SANDBOX_ERRNO, NULL))
            return 2;
        try_numbers(steady, 0);
        ask_worker();
    }
    (void)pthread_join(thread, NULL);
    return 0;
}

/* ---- children ------------------------------------------------------------------------------------ */

/* The wait status of a child that runs `main`. */
static int run_child(int (*child_main)(const void *), const void *argument)
{
    int status = -1;
    pid_t child;

    (void)fflush(stdout);
    child = fork();
    if (child == 0) {
        (void)alarm(CHILD_SECONDS);
        _exit(child_main(argument));
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return status;
}

static void check_numbers(void)
{
    int status = run_child(child_numbers, NULL);

    check_one(status == 0, "child that tries every number ends well", 0, status);
    check_one(shared->wrong_count == 0, "a call that is not on the list was not refused", shared->wrong_number,
              shared->wrong_errno);
    for (int steady = 0; steady < 2; steady++) {
        long *refused = shared->refused[steady], *listed = shared->listed[steady];

        printf("numbers phase=%s allowed_calls=%u refused=%ld listed=%ld worker_refused=%ld landlock_abi=%u\n",
               steady ? "steady" : "start", (unsigned)shared->allowed[steady], refused[0], listed[0], refused[1],
               (unsigned)shared->abi[steady]);
        check_one(refused[0] > LAST_NUMBER / 2 && refused[0] == refused[1] && listed[0] == listed[1],
                  "both threads were refused the same", refused[0], refused[1]);
        checks += (int)refused[0] + (int)refused[1];
    }
    check_one(shared->allowed[1] >= 10 && shared->allowed[1] <= 25, "calls in phase steady", 25,
              (long)shared->allowed[1]);
}

/* ---- what ends the process ----------------------------------------------------------------------- */

static void *page;

static void do_fork(void)
{
#ifdef SYS_fork
    (void)syscall(SYS_fork);
#else
    (void)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L);
#endif
}

static void do_vfork(void)
{
#ifdef SYS_vfork
    (void)syscall(SYS_vfork);
#else
    (void)syscall(SYS_clone, (long)(CLONE_VM | CLONE_VFORK | SIGCHLD), 0L, 0L, 0L, 0L);
#endif
}

static void do_libc_fork(void) { (void)!fork(); }
static void do_clone(void) { (void)syscall(SYS_clone, (long)SIGCHLD, 0L, 0L, 0L, 0L); }

/* A namespace; and a thread that is one more bit than a thread. */
static void do_clone_namespace(void) { (void)syscall(SYS_clone, (long)(CLONE_NEWUSER | SIGCHLD), 0L, 0L, 0L, 0L); }
static void do_clone_odd_thread(void) { (void)syscall(SYS_clone, 0x3d0f00L | CLONE_NEWNS, 0L, 0L, 0L, 0L); }

static void do_clone3(void)
{
    uint64_t arguments[11] = {0};

    arguments[4] = SIGCHLD; /* exit_signal: a process */
    (void)syscall(CLONE3, arguments, sizeof arguments);
}

static void do_execve(void)
{
    char *const words[] = {NULL};

    (void)syscall(SYS_execve, "/proc/self/exe", words, words);
}

static void do_execveat(void)
{
    char *const words[] = {NULL};

    (void)syscall(SYS_execveat, -100L, "/proc/self/exe", words, words, 0L);
}

static void do_ptrace(void) { (void)syscall(SYS_ptrace, 0L, 0L, 0L, 0L); }
static void do_socket_unix(void) { (void)syscall(SYS_socket, (long)AF_UNIX, (long)SOCK_STREAM, 0L); }
static void do_socket_inet(void) { (void)syscall(SYS_socket, (long)AF_INET, (long)SOCK_STREAM, 0L); }
static void do_socket_netlink(void) { (void)syscall(SYS_socket, (long)AF_NETLINK, (long)SOCK_RAW, 0L); }
static void do_openat(void) { (void)syscall(SYS_openat, -100L, "/dev/null", (long)O_RDONLY, 0L); }
static void do_mprotect(void) { (void)syscall(SYS_mprotect, page, 4096L, (long)(PROT_READ | PROT_EXEC)); }

static void do_mmap(void)
{
#ifdef SYS_mmap2
    long number = SYS_mmap2;
#else
    long number = SYS_mmap;
#endif
    (void)syscall(number, 0L, 4096L, (long)(PROT_READ | PROT_EXEC), (long)(MAP_PRIVATE | MAP_ANONYMOUS), -1L, 0L);
}

static void do_prctl(void) { (void)syscall(SYS_prctl, 4L, 1L, 0L, 0L, 0L); /* PR_SET_DUMPABLE */ }
static void do_ioctl(void) { (void)syscall(SYS_ioctl, 0L, 0x5412L, "x"); /* TIOCSTI */ }
static void do_sendto(void) { (void)syscall(SYS_sendto, 1L, "x", 1L, 0L, page, 16L); /* with an address */ }
static void do_kill(void) { (void)syscall(SYS_kill, (long)getppid(), 0L); }

static void *kill_main(void *argument)
{
    (void)argument;
    (void)syscall(SYS_getppid);
    return NULL;
}

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void *gated_main(void *argument)
{
    (void)pthread_mutex_lock(&gate);
    return kill_main(argument);
}

struct attempt {
    const char *name;
    void (*call)(void);
    int in_start; /* 0: START allows it */
};

static const struct attempt attempts[] = {
    {"fork", do_fork, 1},
    {"fork_of_libc", do_libc_fork, 1},
    {"vfork", do_vfork, 1},
    {"clone", do_clone, 1},
    {"clone_namespace", do_clone_namespace, 1},
    {"clone_odd_thread", do_clone_odd_thread, 1},
    {"clone3", do_clone3, 0},
    {"execve", do_execve, 1},
    {"execveat", do_execveat, 1},
    {"ptrace", do_ptrace, 1},
    {"socket_unix", do_socket_unix, 1},
    {"socket_inet", do_socket_inet, 1},
    {"socket_netlink", do_socket_netlink, 1},
    {"openat", do_openat, 0},
    {"mprotect_exec", do_mprotect, 1},
    {"mmap_exec", do_mmap, 1},
    {"prctl_dumpable", do_prctl, 1},
    {"ioctl_tiocsti", do_ioctl, 1},
    {"sendto_address", do_sendto, 1},
    {"kill", do_kill, 1},
};

struct order {
    const struct attempt *attempt;
    uint32_t phase;
};

static int child_attempt(const void *argument)
{
    const struct order *o = argument;

    if (!enter(COLIBRI_SANDBOX_START, COLIBRI_SANDBOX_KILL, NULL))
        return 2;
    if (o->phase == COLIBRI_SANDBOX_STEADY && !enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_KILL, NULL))
        return 3;
    o->attempt->call();
    return RETURNED;
}

static int child_worker(const void *argument)
{
    pthread_t thread;

    (void)argument;
    (void)pthread_mutex_lock(&gate);
    if (pthread_create(&thread, NULL, gated_main, NULL) != 0 ||
        !enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_KILL, NULL))
        return 2;
    (void)pthread_mutex_unlock(&gate);
    (void)pthread_join(thread, NULL);
    return RETURNED;
}

/* START lets a libc make threads, and clone3 is as if it did not exist. */
static int child_thread(const void *argument)
{
    pthread_t thread;

    (void)argument;
    if (!enter(COLIBRI_SANDBOX_START, COLIBRI_SANDBOX_KILL, NULL))
        return 2;
    errno = 0;
    if (syscall(CLONE3, 0L, 0L) != -1 || errno != ENOSYS)
        return 3;
    (void)pthread_mutex_lock(&gate);
    if (pthread_create(&thread, NULL, gated_main, NULL) != 0)
        return 4;
    return 0;
}

/* A thread that has put a filter on itself alone. */
static void *foreign_main(void *argument)
{
    const struct {
        uint16_t code;
        uint8_t jt, jf;
        uint32_t k;
    } allow = {0x06, 0, 0, 0x7fff0000};
    const struct {
        unsigned short count;
        const void *code;
    } program = {1, &allow};

    *(long *)argument = syscall(SYS_prctl, 38L, 1L, 0L, 0L, 0L) != 0 ? -1 : syscall(SYS_seccomp, 1L, 0L, &program);
    (void)pthread_mutex_unlock(&gate);
    (void)pause();
    return NULL;
}

/* No thread may be left out: the sandbox is refused, and the message names the thread. */
static int child_foreign_filter(const void *argument)
{
    pthread_t thread;
    long installed = -1;

    (void)argument;
    (void)pthread_mutex_lock(&gate);
    if (pthread_create(&thread, NULL, foreign_main, &installed) != 0)
        return 1;
    (void)pthread_mutex_lock(&gate); /* the thread opens it */
    if (installed != 0)
        return 2;
    if (enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_KILL, NULL))
        return 3;
    return shared->code == COLIBRI_ERR_SANDBOX && strstr(shared->message, "thread ") == shared->message ? 0 : 4;
}

/* Phases are not left: neither back to the first nor once more into the last. */
static int child_again(const void *argument)
{
    (void)argument;
    if (!enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_KILL, NULL))
        return 1;
    for (uint32_t phase = COLIBRI_SANDBOX_START; phase <= COLIBRI_SANDBOX_STEADY; phase++)
        if (enter(phase, COLIBRI_SANDBOX_LOG, NULL) || shared->code != COLIBRI_ERR_ARGUMENT)
            return 2;
    return 0;
}

#if defined(__x86_64__)
/* getpid of the 32-bit table: the architecture is not the one of the filter. */
static int child_other_architecture(const void *argument)
{
    long result = 20;

    (void)argument;
    if (!enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_KILL, NULL))
        return 2;
    __asm__ volatile("int $0x80" : "+a"(result) : : "memory", "r8", "r9", "r10", "r11");
    return RETURNED;
}
#endif

static void check_kill(const char *name, const char *phase, int status)
{
    int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;

    printf("kill call=%s phase=%s signal=%d\n", name, phase, number);
    check_one(number == SIGSYS, name, SIGSYS, number != 0 ? number : -WEXITSTATUS(status));
}

static void check_kills(void)
{
    int status;

    for (size_t i = 0; i < sizeof attempts / sizeof attempts[0]; i++) {
        struct order o = {&attempts[i], COLIBRI_SANDBOX_STEADY};

        check_kill(attempts[i].name, "steady", run_child(child_attempt, &o));
        o.phase = COLIBRI_SANDBOX_START;
        if (attempts[i].in_start)
            check_kill(attempts[i].name, "start", run_child(child_attempt, &o));
    }
    check_kill("getppid_of_a_worker", "steady", run_child(child_worker, NULL));
    status = run_child(child_thread, NULL);
    check_one(status == 0, "a thread can be made in phase start", 0, status);
    status = run_child(child_foreign_filter, NULL);
    check_one(status == 0, "a thread that cannot be closed in is an error", 0, status);
    status = run_child(child_again, NULL);
    check_one(status == 0, "phases are entered once", 0, status);
#if defined(__x86_64__)
    status = run_child(child_other_architecture, NULL);
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV)
        printf("kill call=other_architecture phase=steady: this kernel has no 32-bit calls\n");
    else
        check_kill("other_architecture", "steady", status);
#endif
}

/* ---- Landlock ------------------------------------------------------------------------------------ */

/* 0: only the files that were named can be opened, or the kernel has no Landlock. */
static int child_files(const void *path)
{
    if (!enter(COLIBRI_SANDBOX_START, COLIBRI_SANDBOX_KILL, path))
        return 2;
    if (open(path, O_RDONLY) < 0 || open("/proc/self/status", O_RDONLY) < 0)
        return 3;
    if (shared->abi[0] == 0)
        return 0;
    errno = 0;
    if (open("/", O_RDONLY) >= 0 || errno != EACCES)
        return 4;
    /* a file system that is mounted read-only says so first */
    return open(path, O_WRONLY) >= 0 || (errno != EACCES && errno != EROFS) ? 5 : 0;
}

static void check_files(const char *path)
{
    int status = run_child(child_files, path);

    printf("files landlock_abi=%u\n", (unsigned)shared->abi[0]);
    check_one(status == 0, "files that were not named stay closed", 0, status);
}

/* ---- inference ----------------------------------------------------------------------------------- */

struct task {
    const char *path;
    uint32_t residency;
    int sandbox, tokens;
    int32_t ids[MAX_IDS];
    size_t count;
};

static int generate(const struct task *t, colibri_model *model, colibri_session *session, colibri_error *error)
{
    colibri_model_info info = {.struct_size = sizeof info};
    colibri_sha256 state;
    int code = colibri_model_info_get(model, &info);
    int32_t id = 0;

    colibri_sha256_init(&state);
    if (code == 0)
        code = colibri_session_append(session, t->ids, t->count, error);
    for (shared->tokens = 0; code == 0 && shared->tokens < t->tokens;) {
        colibri_sha256_update(&state, colibri_session_logits(session), sizeof(float) * (size_t)info.vocabulary);
        code = colibri_session_sample(session, &id, error);
        if (++shared->tokens == t->tokens || colibri_token_is_end(model, id) != 0)
            break;
        if (code == 0)
            code = colibri_session_append(session, &id, 1, error);
    }
    colibri_sha256_final(&state, shared->sha256);
    return code;
}

static int child_generate(const void *argument)
{
    const struct task *t = argument;
    colibri_model_options options;
    colibri_model *model = NULL;
    colibri_session *session = NULL;
    colibri_error error = {.code = 0};
    int code;

    (void)alarm(GENERATE_SECONDS);
    if (t->sandbox && !enter(COLIBRI_SANDBOX_START, COLIBRI_SANDBOX_KILL, t->path))
        return 2;
    colibri_model_options_default(&options);
    options.threads = 3;
    options.residency = t->residency;
    options.expert_slots = t->residency == COLIBRI_RESIDENCY_STREAM ? 3 : 0;
    code = colibri_model_open(t->path, &options, &model, &error);
    if (code == COLIBRI_ERR_ARGUMENT || code == COLIBRI_ERR_BUDGET) { /* 3 slots are fewer than top_k */
        options.expert_slots = 0;
        code = colibri_model_open(t->path, &options, &model, &error);
    }
    if (code == 0)
        code = colibri_session_create(model, &session, &error);
    if (code == 0 && t->sandbox && !enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_KILL, NULL))
        return 3;
    if (code == 0)
        code = generate(t, model, session, &error);
    if (code == 0)
        code = colibri_model_defrag(model, NULL, &error);
    colibri_session_free(session);
    colibri_model_close(model);
    shared->code = code;
    memcpy(shared->message, error.message, sizeof shared->message);
    return code != 0;
}

/* An expert that storage spoiled is an error, and so is the next try: the library does not open the file
 * again, which would end the process. Only on a file of our own. */
static int child_failed_read(const void *argument)
{
    const struct task *t = argument;
    static const uint8_t junk[65536] = {1};
    colibri_model_options options;
    colibri_model *model = NULL;
    colibri_session *session = NULL;
    colibri_error error = {.code = 0};
    int code = 0, fd = open(t->path, O_WRONLY);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0, at = lseek(fd, end / 2, SEEK_SET);

    colibri_model_options_default(&options);
    options.threads = 2;
    options.residency = COLIBRI_RESIDENCY_STREAM;
    options.expert_slots = 3;
    if (at <= 0 || colibri_model_open(t->path, &options, &model, &error) != 0 ||
        colibri_session_create(model, &session, &error) != 0)
        return 1;
    if (!enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_KILL, NULL))
        return 2;
    for (; at < end; at += (off_t)sizeof junk)
        if (write(fd, junk, (size_t)(end - at) < sizeof junk ? (size_t)(end - at) : sizeof junk) < 0)
            return 3;
    for (int i = 0; code == 0 && i < 64; i++)
        code = colibri_session_append(session, &t->ids[(size_t)i % t->count], 1, &error);
    shared->code = code;
    for (int i = 0; code != 0 && i < 3; i++)
        code = colibri_session_append(session, &t->ids[(size_t)i % t->count], 1, &error);
    return code == 0 || shared->code != COLIBRI_ERR_CHUNK_MISMATCH ? 4 : 0;
}

static void to_hex(char hex[65])
{
    for (size_t i = 0; i < 32; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", shared->sha256[i]);
}

static void check_model(struct task *t, const char *wanted)
{
    static const struct {
        const char *name;
        uint32_t residency;
    } modes[] = {
        {"resident", COLIBRI_RESIDENCY_RESIDENT},
        {"stream", COLIBRI_RESIDENCY_STREAM},
        {"mapped", COLIBRI_RESIDENCY_MAPPED},
        {"mapped-guarded", COLIBRI_RESIDENCY_MAPPED_GUARDED},
    };
    char expected[65], hex[65];
    int status;

    t->residency = COLIBRI_RESIDENCY_RESIDENT;
    if (wanted == NULL) {
        status = run_child(child_generate, t);
        check_one(status == 0, "the model runs outside of the sandbox", 0, status);
        to_hex(expected);
        wanted = expected;
    }
    t->sandbox = 1;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        t->residency = modes[i].residency;
        memset(shared->sha256, 0, sizeof shared->sha256);
        status = run_child(child_generate, t);
        to_hex(hex);
        printf("model residency=%s tokens=%d logits_sha256=%s landlock_abi=%u %s\n", modes[i].name,
               shared->tokens, hex, (unsigned)shared->abi[0], strcmp(hex, wanted) == 0 ? "ok" : "WRONG");
        if (status != 0)
            printf("%s\n", shared->message);
        check_one(status == 0, modes[i].name, 0, status);
        check_one(strcmp(hex, wanted) == 0, "the bits behind the sandbox", shared->tokens, shared->code);
    }
}

/* ---- the program --------------------------------------------------------------------------------- */

/* An emulator of programs, a kernel without filters. */
static int child_can_enter(const void *argument)
{
    (void)argument;
    return enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_ERRNO, NULL) ? 0 : 1;
}

/* A call that is on no list, under the action that only logs: it is made, and the kernel's log names it. */
static int child_audit(const void *argument)
{
    (void)argument;
    if (!enter(COLIBRI_SANDBOX_STEADY, COLIBRI_SANDBOX_LOG, NULL))
        return 1;
    return syscall(SYS_getppid) > 0 ? 0 : 2;
}

static int read_ids(struct task *t, const char *text)
{
    char *end;

    for (t->count = 0; t->count < MAX_IDS; text = end + 1) {
        t->ids[t->count++] = (int32_t)strtol(text, &end, 10);
        if (*end != ',')
            return *end == '\0';
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct build_file file;
    static struct task task = {.tokens = 12, .ids = {1, 2, 3, 4, 5, 6, 7, 8}, .count = 8};

    task.path = argc > 1 ? argv[1] : NULL;
    if (argc > 5 || (argc > 2 && !read_ids(&task, argv[2])) || (argc > 3 && (task.tokens = atoi(argv[3])) < 1)) {
        printf("usage: sandbox_probe [MODEL [1,2,3 [TOKENS [LOGITS_SHA256]]] | audit]\n");
        return 2;
    }
#ifdef SANITIZED
    printf("skip: the sanitizer makes system calls of its own\n");
    return SKIPPED;
#endif
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || page == MAP_FAILED)
        return 1;
    if (run_child(child_can_enter, NULL) != 0) {
        printf("skip: %s\n", shared->message);
        return SKIPPED;
    }
    memset(shared, 0, sizeof *shared);
    if (task.path != NULL && strcmp(task.path, "audit") == 0)
        return run_child(child_audit, NULL);
    printf("sandbox_probe: %s\n", colibri_build_info());
    if (task.path == NULL) {
        build_variant(&file, &variants[3]);
        task.path = build_write(&file, file.size);
    }
    check_numbers();
    check_kills();
    check_files(task.path);
    check_model(&task, argc > 4 ? argv[4] : NULL);
    if (file.size > 0) {
        int status = run_child(child_failed_read, &task);

        check_one(status == 0, "a read that fails stays an error", shared->code, status);
        (void)unlink(task.path);
    }
    if (check_failures > 0)
        printf("sandbox_probe: FAILED checks=%d failed=%d\n", checks, check_failures);
    else
        printf("sandbox_probe: ok checks=%d\n", checks);
    return RESULT();
}

#else

int main(void)
{
    printf("skip: there is no filter for this architecture\n");
    return SKIPPED;
}

#endif
