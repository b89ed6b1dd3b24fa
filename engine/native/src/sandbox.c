/* SPDX-License-Identifier: MIT */
/*
 * The sandbox: a seccomp filter for every thread, Landlock for files. Numbers and structs are our own,
 * so that the kernel headers of a build machine decide nothing. configs/seccomp/colibri.json is the
 * policy, sandbox_filters.h what was made from it.
 */
#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common.h"
#include "error.h"
#include "sandbox_filters.h"

#define SET_NO_NEW_PRIVS 38
#define SET_MODE_FILTER 1
#define FLAG_TSYNC 1u
#define FLAG_LOG 2u

#define NR_CREATE_RULESET 444
#define NR_ADD_RULE 445
#define NR_RESTRICT_SELF 446
#define GET_VERSION 1
#define PATH_BENEATH 1

/* Rights on files that version 1, 2, 3 to 4, and 5 of Landlock handle. */
#define RIGHTS_1 0x1fffu
#define RIGHTS_2 0x3fffu
#define RIGHTS_3 0x7fffu
#define RIGHTS_5 0xffffu
#define ON_FILES 0xc007u /* those that a path which is no folder can have */
#define READ 0x000cu     /* files and folders */
#define WRITE 0x4322u    /* write, truncate; make and remove files, make sockets */
#define NET_TCP 3u       /* bind, connect; from version 4 on */
#define SCOPES 3u        /* abstract sockets and signals of others; from version 6 on */

struct instruction {
    uint16_t code;
    uint8_t jt, jf;
    uint32_t k;
};

struct program {
    unsigned short count;
    const struct instruction *code;
};

struct ruleset {
    uint64_t files, net, scopes;
};

struct __attribute__((packed)) beneath {
    uint64_t rights;
    int32_t fd;
};

static atomic_int phase_now;

int cb_sandbox_closed(void)
{
    return atomic_load_explicit(&phase_now, memory_order_relaxed) == COLIBRI_SANDBOX_STEADY;
}

static int fail(colibri_error *error, const char *what, const char *fix)
{
    return cb_deny(error, COLIBRI_ERR_SANDBOX, "%s: %s; %s", what, strerror(errno), fix);
}

/* ---- Landlock ------------------------------------------------------------------------------------ */

static int add_path(int ruleset, uint64_t handled, uint64_t rights, const char *path, colibri_error *error)
{
    struct beneath rule = {rights & handled, open(path, O_PATH | O_CLOEXEC)};
    long result = -1;

    if (rule.fd >= 0) {
        result = syscall(NR_ADD_RULE, ruleset, PATH_BENEATH, &rule, 0);
        if (result != 0 && errno == EINVAL) {
            rule.rights &= ON_FILES;
            result = syscall(NR_ADD_RULE, ruleset, PATH_BENEATH, &rule, 0);
        }
        (void)close(rule.fd);
    } else if (errno == ENOENT) {
        return 0; /* nothing to allow */
    }
    return result == 0 ? 0 : fail(error, path, "name a path that can be opened");
}

static int add_paths(int ruleset, uint64_t handled, const colibri_sandbox *o, colibri_error *error)
{
    int code = 0;
    size_t i;

    for (i = 0; code == 0 && i < o->read_path_count; i++)
        code = add_path(ruleset, handled, READ, o->read_paths[i], error);
    for (i = 0; code == 0 && i < o->write_path_count; i++)
        code = add_path(ruleset, handled, READ | WRITE, o->write_paths[i], error);
    return code;
}

/* *abi: version in force, 0 when the kernel has none. */
static int close_files(const colibri_sandbox *o, uint32_t *abi, colibri_error *error)
{
    struct ruleset rules = {RIGHTS_1, NET_TCP, o->phase == COLIBRI_SANDBOX_STEADY ? SCOPES : 0};
    long version = syscall(NR_CREATE_RULESET, NULL, 0, GET_VERSION);
    size_t bytes = version >= 6 ? 24 : version >= 4 ? 16 : 8;
    int fd, code;

    *abi = 0;
    if (version < 1)
        return 0;
    if (version > 1)
        rules.files = version >= 5 ? RIGHTS_5 : version >= 3 ? RIGHTS_3 : RIGHTS_2;
    fd = (int)syscall(NR_CREATE_RULESET, &rules, bytes, 0);
    if (fd < 0)
        return fail(error, "Landlock: no rules", "raise the limit of open files");
    code = add_paths(fd, rules.files, o, error);
    if (code == 0 && syscall(NR_RESTRICT_SELF, fd, 0) != 0)
        code = fail(error, "Landlock: not entered", "a process has 16 layers at most");
    (void)close(fd);
    if (code == 0)
        *abi = (uint32_t)version;
    return code;
}

/* ---- the filter ---------------------------------------------------------------------------------- */

#ifdef CB_SANDBOX_FILTERS

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

_Static_assert(COUNT(start_filter) >= COUNT(steady_filter), "room for both");

static uint32_t result_of(uint32_t action)
{
    return action == COLIBRI_SANDBOX_KILL    ? 0x80000000u            /* SECCOMP_RET_KILL_PROCESS */
           : action == COLIBRI_SANDBOX_ERRNO ? 0x00050000u | EPERM /* SECCOMP_RET_ERRNO */
                                             : 0x7ffc0000u;        /* SECCOMP_RET_LOG */
}

static struct instruction unpack(uint32_t packed, uint32_t action)
{
    static const uint8_t codes[] = CB_BPF_CODES;
    uint32_t word = CB_BPF_WORD(packed), k = CB_BPF_OPERAND(packed);
    struct instruction one = {codes[word], CB_BPF_JT(packed), CB_BPF_JF(packed), k};

    if (k >= CB_BPF_SMALL)
        one.k = large_operands[k - CB_BPF_SMALL];
    if (word == CB_BPF_RETURN && k == 0)
        one.k = result_of(action);
    return one;
}

static int install(uint32_t phase, uint32_t action, colibri_error *error)
{
    struct instruction code[COUNT(start_filter)];
    int steady = phase == COLIBRI_SANDBOX_STEADY;
    struct program program = {steady ? COUNT(steady_filter) : COUNT(start_filter), code};
    long result;
    size_t i;

    for (i = 0; i < program.count; i++)
        code[i] = unpack(steady ? steady_filter[i] : start_filter[i], action);
    result = syscall(SYS_seccomp, SET_MODE_FILTER,
                     action == COLIBRI_SANDBOX_KILL ? FLAG_TSYNC : FLAG_TSYNC | FLAG_LOG, &program);
    if (result > 0)
        return cb_deny(error, COLIBRI_ERR_SANDBOX,
                       "thread %ld has a seccomp filter of its own: enter the sandbox before it installs one",
                       result);
    if (result < 0)
        return fail(error, "seccomp",
                    "needs CONFIG_SECCOMP_FILTER and Linux 4.14, no emulator of programs (qemu-user), and "
                    "no other filter that forbids it");
    return 0;
}

#else

#define CB_SANDBOX_START_CALLS 0u
#define CB_SANDBOX_STEADY_CALLS 0u

static int install(uint32_t phase, uint32_t action, colibri_error *error)
{
    (void)phase;
    (void)action;
    return cb_deny(error, COLIBRI_ERR_SANDBOX,
                   "there is no filter for this architecture: aarch64, arm and x86-64 have one");
}

#endif

/* ---- entering ------------------------------------------------------------------------------------ */

static int check_size(size_t found, size_t known, const char *name, colibri_error *error)
{
    return found == known ? 0
                          : cb_deny(error, COLIBRI_ERR_STRUCT_SIZE,
                                    "%s.struct_size is %zu, this library knows %zu: set it to the sizeof",
                                    name, found, known);
}

static int check_options(const colibri_sandbox *o, colibri_error *error)
{
    size_t paths = o->read_path_count + o->write_path_count;

    if (o->phase < COLIBRI_SANDBOX_START || o->phase > COLIBRI_SANDBOX_STEADY ||
        o->action > COLIBRI_SANDBOX_LOG || (o->phase == COLIBRI_SANDBOX_STEADY && paths > 0) ||
        (o->read_paths == NULL && o->read_path_count > 0) ||
        (o->write_paths == NULL && o->write_path_count > 0))
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "sandbox phase %u, action %u, %zu paths: phase 1 or 2 (without paths), action 0..2",
                       o->phase, o->action, paths);
    if (cb_sandbox_closed())
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "the sandbox is in its last phase already: enter it once");
    return 0;
}

static int enter(const colibri_sandbox *o, uint32_t action, uint32_t *abi, colibri_error *error)
{
    int files = o->phase == COLIBRI_SANDBOX_STEADY || o->read_paths != NULL || o->write_paths != NULL;
    int code = 0;

    if (syscall(SYS_prctl, SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L) != 0)
        return fail(error, "no_new_privs", "needs Linux 3.5, or another filter forbids it");
    if (files && action != COLIBRI_SANDBOX_LOG)
        code = close_files(o, abi, error);
    return code != 0 ? code : install(o->phase, action, error);
}

int colibri_sandbox_enter(const colibri_sandbox *options, colibri_sandbox_report *report, colibri_error *error)
{
    uint32_t abi = 0, action = options->action;
    int code = check_size(options->struct_size, sizeof *options, "colibri_sandbox", error);

    if (code == 0)
        code = check_options(options, error);
    if (code == 0 && report != NULL)
        code = check_size(report->struct_size, sizeof *report, "colibri_sandbox_report", error);
#ifdef COLIBRI_RESTRICTED_SYSCALLS
    action = COLIBRI_SANDBOX_KILL;
#endif
    if (code == 0)
        code = enter(options, action, &abi, error);
    if (code != 0)
        return code;
    atomic_store(&phase_now, (int)options->phase);
    if (report != NULL) {
        memset(report, 0, sizeof *report);
        report->struct_size = sizeof *report;
        report->filter = report->threads_synced = report->no_new_privs = 1;
        report->landlock_abi = abi;
        report->allowed_calls = options->phase == COLIBRI_SANDBOX_STEADY ? CB_SANDBOX_STEADY_CALLS
                                                                         : CB_SANDBOX_START_CALLS;
    }
    return 0;
}
