/* SPDX-License-Identifier: MIT */
/*
 * Proves in the guest what the kernel options promise: memory locks, advice, seccomp. Linked without
 * a C library, so that it is small enough to be typed into the guest over the console:
 *
 *   probe lock BYTES [LIMIT]   map and lock BYTES; with LIMIT as an ordinary user whose
 *                              RLIMIT_MEMLOCK it is; prints "lock: OK|ERRNO" and the VmLck line
 *   probe advise               madvise and fadvise; prints "madvise: OK|ERRNO" and "fadvise: ..."
 *   probe seccomp [log]        installs an allow-all filter (log: one that has every call logged); prints
 *                              the Seccomp and NoNewPrivs lines
 *
 * AArch64 only: the numbers are those of its system call table.
 */
#include "freestanding.h"

#define SYS_openat 56
#define SYS_read 63
#define SYS_exit_group 94
#define SYS_setgid 144
#define SYS_setuid 146
#define SYS_setrlimit 164
#define SYS_prctl 167
#define SYS_mmap 222
#define SYS_fadvise64 223
#define SYS_mlock 228
#define SYS_madvise 233

#define ORDINARY_ID 1000
#define AT_FDCWD -100
#define RLIMIT_MEMLOCK 8
#define PROT_READ 1
#define PROT_READ_WRITE 3
#define MAP_PRIVATE 2
#define MAP_PRIVATE_ANONYMOUS 0x22
#define MADV_WILLNEED 3
#define POSIX_FADV_DONTNEED 4
#define PR_SET_SECCOMP 22
#define PR_SET_NO_NEW_PRIVS 38
#define SECCOMP_MODE_FILTER 2
#define BPF_RETURN_CONSTANT 0x06
#define SECCOMP_RET_ALLOW 0x7fff0000u
#define SECCOMP_RET_LOG 0x7ffc0000u

/* result: what a system call returned; a negative one is an error number. */
static void print_result(const char *name, long result)
{
    print(name);
    if (result < 0) {
        print_number((unsigned long)-result);
    } else {
        print("OK");
    }
    print("\n");
}

/* The line of /proc/self/status that begins with `name`. */
static void print_status(const char *name)
{
    static char text[4096];
    long file = call(SYS_openat, AT_FDCWD, (long)"/proc/self/status", 0, 0, 0, 0);
    long size = call(SYS_read, file, (long)text, (long)sizeof text - 1, 0, 0, 0);
    unsigned long wanted = length(name);

    for (long at = 0; at < size; at++) {
        unsigned long same = 0;

        if (at > 0 && text[at - 1] != '\n') {
            continue;
        }
        while (same < wanted && text[at + (long)same] == name[same]) {
            same++;
        }
        if (same == wanted) {
            char *end = &text[at];

            while (*end != '\n' && *end != '\0') {
                end++;
            }
            *end = '\0';
            print(&text[at]);
            print("\n");
            return;
        }
    }
}

static void probe_lock(long bytes, const char *limit)
{
    long memory;

    if (limit != 0) {
        unsigned long bytes_allowed = take_number(&limit), both[2] = { bytes_allowed, bytes_allowed };

        (void)call(SYS_setrlimit, RLIMIT_MEMLOCK, (long)both, 0, 0, 0, 0);
        /* leaving id 0 drops the capabilities, CAP_IPC_LOCK among them */
        (void)call(SYS_setgid, ORDINARY_ID, 0, 0, 0, 0, 0);
        (void)call(SYS_setuid, ORDINARY_ID, 0, 0, 0, 0, 0);
    }
    memory = call(SYS_mmap, 0, bytes, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0);
    print_result("lock: ", call(SYS_mlock, memory, bytes, 0, 0, 0, 0));
    print_status("VmLck:");
}

static void probe_advise(void)
{
    long file = call(SYS_openat, AT_FDCWD, (long)"/proc/self/exe", 0, 0, 0, 0);
    long memory = call(SYS_mmap, 0, 1, PROT_READ, MAP_PRIVATE, file, 0);

    print_result("madvise: ", call(SYS_madvise, memory, 1, MADV_WILLNEED, 0, 0, 0));
    print_result("fadvise: ", call(SYS_fadvise64, file, 0, 0, POSIX_FADV_DONTNEED, 0, 0));
}

static void probe_seccomp(unsigned action)
{
    struct {
        unsigned short code;
        unsigned char jump_true, jump_false;
        unsigned constant;
    } filter = { BPF_RETURN_CONSTANT, 0, 0, action };
    struct {
        unsigned short instructions;
        void *first;
    } program = { 1, &filter };

    (void)call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0);
    print_result("seccomp: ",
                 call(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0, 0));
    print_status("NoNewPrivs:");
    print_status("Seccomp:");
}

/* stack: argc, then the argument pointers */
__attribute__((used)) static void probe(long *stack)
{
    long argc = stack[0];
    char **argv = (char **)&stack[1];

    if (argc >= 3 && equal(argv[1], "lock")) {
        const char *bytes = argv[2];

        probe_lock((long)take_number(&bytes), argc > 3 ? argv[3] : 0);
    } else if (argc == 2 && equal(argv[1], "advise")) {
        probe_advise();
    } else if (argc >= 2 && equal(argv[1], "seccomp")) {
        probe_seccomp(argc > 2 && equal(argv[2], "log") ? SECCOMP_RET_LOG : SECCOMP_RET_ALLOW);
    } else {
        print("usage: probe lock BYTES [LIMIT] | advise | seccomp [log]\n");
        (void)call(SYS_exit_group, 2, 0, 0, 0, 0, 0);
    }
    (void)call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

START(probe);
