/* SPDX-License-Identifier: MIT */
/* Generated from configs/seccomp/colibri.json by configs/seccomp/generate.py; do not edit. */
#ifndef CB_SANDBOX_FILTERS_H
#define CB_SANDBOX_FILTERS_H

#include <stdint.h>

/*
 * Instructions of classic BPF, packed: which, jump if true, if false, operand. RETURN of 0 stands for the
 * action. Filters are linear: architecture, number, then arguments, then the returns.
 */
#define CB_BPF(word, jt, jf, k) (CB_BPF_##word << 29 | (uint32_t)(jt) << 21 | (uint32_t)(jf) << 13 | (uint32_t)(k))
#define CB_BPF_LARGE(index) (CB_BPF_SMALL + (index))
#define CB_BPF_SMALL 4096u
#define CB_BPF_WORD(packed) ((packed) >> 29)
#define CB_BPF_JT(packed) ((uint8_t)((packed) >> 21))
#define CB_BPF_JF(packed) ((uint8_t)((packed) >> 13))
#define CB_BPF_OPERAND(packed) ((packed) & 0x1fffu)

#define CB_BPF_LOAD 0u
#define CB_BPF_AND 1u
#define CB_BPF_RETURN 2u
#define CB_BPF_EQUAL 3u
#define CB_BPF_SET 4u
#define CB_BPF_CODES {0x20, 0x54, 0x06, 0x15, 0x45} /* as the kernel has them */

#if defined(__aarch64__) && defined(__LP64__)

/* aarch64 */
#define CB_SANDBOX_FILTERS 1
#define CB_SANDBOX_START_CALLS 59u
#define CB_SANDBOX_STEADY_CALLS 20u

static const uint32_t start_filter[] = {
    CB_BPF(LOAD, 0, 0, 4), /* architecture */
    CB_BPF(EQUAL, 0, 106, CB_BPF_LARGE(0)),
    CB_BPF(LOAD, 0, 0, 0), /* number */
    CB_BPF(EQUAL, 105, 0, 98), /* futex */
    CB_BPF(EQUAL, 104, 0, 67), /* pread64 */
    CB_BPF(EQUAL, 103, 0, 63), /* read */
    CB_BPF(EQUAL, 102, 0, 64), /* write */
    CB_BPF(EQUAL, 101, 0, 66), /* writev */
    CB_BPF(EQUAL, 100, 0, 57), /* close */
    CB_BPF(EQUAL, 99, 0, 233), /* madvise */
    CB_BPF(EQUAL, 98, 0, 223), /* fadvise64 */
    CB_BPF(EQUAL, 97, 0, 113), /* clock_gettime */
    CB_BPF(EQUAL, 96, 0, 73), /* ppoll */
    CB_BPF(EQUAL, 95, 0, 242), /* accept4 */
    CB_BPF(EQUAL, 48, 0, 206), /* sendto */
    CB_BPF(EQUAL, 51, 0, 226), /* mprotect */
    CB_BPF(EQUAL, 92, 0, 215), /* munmap */
    CB_BPF(EQUAL, 91, 0, 139), /* rt_sigreturn */
    CB_BPF(EQUAL, 90, 0, 135), /* rt_sigprocmask */
    CB_BPF(EQUAL, 89, 0, 134), /* rt_sigaction */
    CB_BPF(EQUAL, 88, 0, 128), /* restart_syscall */
    CB_BPF(EQUAL, 87, 0, 93), /* exit */
    CB_BPF(EQUAL, 86, 0, 94), /* exit_group */
    CB_BPF(EQUAL, 86, 0, 435), /* clone3 */
    CB_BPF(EQUAL, 46, 0, 220), /* clone */
    CB_BPF(EQUAL, 50, 0, 283), /* membarrier */
    CB_BPF(EQUAL, 82, 0, 99), /* set_robust_list */
    CB_BPF(EQUAL, 81, 0, 293), /* rseq */
    CB_BPF(EQUAL, 80, 0, 178), /* gettid */
    CB_BPF(EQUAL, 79, 0, 123), /* sched_getaffinity */
    CB_BPF(EQUAL, 78, 0, 122), /* sched_setaffinity */
    CB_BPF(EQUAL, 77, 0, 124), /* sched_yield */
    CB_BPF(EQUAL, 47, 0, 222), /* mmap */
    CB_BPF(EQUAL, 75, 0, 214), /* brk */
    CB_BPF(EQUAL, 74, 0, 216), /* mremap */
    CB_BPF(EQUAL, 73, 0, 228), /* mlock */
    CB_BPF(EQUAL, 72, 0, 229), /* munlock */
    CB_BPF(EQUAL, 71, 0, 56), /* openat */
    CB_BPF(EQUAL, 70, 0, 79), /* newfstatat */
    CB_BPF(EQUAL, 69, 0, 80), /* fstat */
    CB_BPF(EQUAL, 68, 0, 291), /* statx */
    CB_BPF(EQUAL, 67, 0, 62), /* lseek */
    CB_BPF(EQUAL, 66, 0, 65), /* readv */
    CB_BPF(EQUAL, 65, 0, 78), /* readlinkat */
    CB_BPF(EQUAL, 64, 0, 48), /* faccessat */
    CB_BPF(EQUAL, 63, 0, 439), /* faccessat2 */
    CB_BPF(EQUAL, 62, 0, 35), /* unlinkat */
    CB_BPF(EQUAL, 61, 0, 38), /* renameat */
    CB_BPF(EQUAL, 60, 0, 276), /* renameat2 */
    CB_BPF(EQUAL, 59, 0, 82), /* fsync */
    CB_BPF(EQUAL, 58, 0, 25), /* fcntl */
    CB_BPF(EQUAL, 32, 0, 29), /* ioctl */
    CB_BPF(EQUAL, 56, 0, 172), /* getpid */
    CB_BPF(EQUAL, 55, 0, 160), /* uname */
    CB_BPF(EQUAL, 54, 0, 179), /* sysinfo */
    CB_BPF(EQUAL, 53, 0, 278), /* getrandom */
    CB_BPF(EQUAL, 52, 0, 163), /* getrlimit */
    CB_BPF(EQUAL, 38, 0, 261), /* prlimit64 */
    CB_BPF(EQUAL, 41, 0, 167), /* prctl */
    CB_BPF(EQUAL, 49, 0, 277), /* seccomp */
    CB_BPF(EQUAL, 48, 0, 444), /* landlock_create_ruleset */
    CB_BPF(EQUAL, 47, 0, 445), /* landlock_add_rule */
    CB_BPF(EQUAL, 46, 45, 446), /* landlock_restrict_self */
    CB_BPF(LOAD, 0, 0, 52), /* argument 4, upper half */
    CB_BPF(EQUAL, 0, 43, 0),
    CB_BPF(LOAD, 0, 0, 48), /* argument 4 */
    CB_BPF(EQUAL, 42, 41, 0),
    CB_BPF(LOAD, 0, 0, 36), /* argument 2, upper half */
    CB_BPF(EQUAL, 0, 39, 0),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 37, 38, CB_BPF_LARGE(1)),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 35, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(AND, 0, 0, CB_BPF_LARGE(2)),
    CB_BPF(EQUAL, 33, 32, CB_BPF_LARGE(3)),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 30, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 29, 28, 16),
    CB_BPF(LOAD, 0, 0, 36), /* argument 2, upper half */
    CB_BPF(EQUAL, 0, 26, 0),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 24, 25, CB_BPF_LARGE(1)),
    CB_BPF(LOAD, 0, 0, 28), /* argument 1, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 21, 0, CB_BPF_LARGE(4)),
    CB_BPF(LOAD, 0, 0, 28), /* argument 1, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 17, 0, CB_BPF_LARGE(5)),
    CB_BPF(LOAD, 0, 0, 28), /* argument 1, upper half */
    CB_BPF(EQUAL, 0, 14, 0),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 13, 12, CB_BPF_LARGE(6)),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 10, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 9, 8, 0),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 5, 0, 38),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 1, 0, 39),
    CB_BPF(RETURN, 0, 0, 0), /* refuse */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(7)), /* allow */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(8)), /* errno 38 */
};

static const uint32_t steady_filter[] = {
    CB_BPF(LOAD, 0, 0, 4), /* architecture */
    CB_BPF(EQUAL, 0, 29, CB_BPF_LARGE(0)),
    CB_BPF(LOAD, 0, 0, 0), /* number */
    CB_BPF(EQUAL, 28, 0, 98), /* futex */
    CB_BPF(EQUAL, 27, 0, 67), /* pread64 */
    CB_BPF(EQUAL, 26, 0, 63), /* read */
    CB_BPF(EQUAL, 25, 0, 64), /* write */
    CB_BPF(EQUAL, 24, 0, 66), /* writev */
    CB_BPF(EQUAL, 23, 0, 57), /* close */
    CB_BPF(EQUAL, 22, 0, 233), /* madvise */
    CB_BPF(EQUAL, 21, 0, 223), /* fadvise64 */
    CB_BPF(EQUAL, 20, 0, 113), /* clock_gettime */
    CB_BPF(EQUAL, 19, 0, 73), /* ppoll */
    CB_BPF(EQUAL, 18, 0, 242), /* accept4 */
    CB_BPF(EQUAL, 8, 0, 206), /* sendto */
    CB_BPF(EQUAL, 11, 0, 226), /* mprotect */
    CB_BPF(EQUAL, 15, 0, 215), /* munmap */
    CB_BPF(EQUAL, 14, 0, 139), /* rt_sigreturn */
    CB_BPF(EQUAL, 13, 0, 135), /* rt_sigprocmask */
    CB_BPF(EQUAL, 12, 0, 134), /* rt_sigaction */
    CB_BPF(EQUAL, 11, 0, 128), /* restart_syscall */
    CB_BPF(EQUAL, 10, 0, 93), /* exit */
    CB_BPF(EQUAL, 9, 8, 94), /* exit_group */
    CB_BPF(LOAD, 0, 0, 52), /* argument 4, upper half */
    CB_BPF(EQUAL, 0, 6, 0),
    CB_BPF(LOAD, 0, 0, 48), /* argument 4 */
    CB_BPF(EQUAL, 5, 4, 0),
    CB_BPF(LOAD, 0, 0, 36), /* argument 2, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 0, 1, CB_BPF_LARGE(1)),
    CB_BPF(RETURN, 0, 0, 0), /* refuse */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(7)), /* allow */
};

static const uint32_t large_operands[] = {0xc00000b7, 0xfffffffc, 0xffbfffff, 0x003d0f00, 0x00005401, 0x802c542a, 0x00005413, 0x7fff0000, 0x00050026};

#elif defined(__arm__) && defined(__ARM_EABI__)

/* arm */
#define CB_SANDBOX_FILTERS 1
#define CB_SANDBOX_START_CALLS 74u
#define CB_SANDBOX_STEADY_CALLS 25u

static const uint32_t start_filter[] = {
    CB_BPF(LOAD, 0, 0, 4), /* architecture */
    CB_BPF(EQUAL, 0, 99, CB_BPF_LARGE(0)),
    CB_BPF(LOAD, 0, 0, 0), /* number */
    CB_BPF(EQUAL, 98, 0, 240), /* futex */
    CB_BPF(EQUAL, 97, 0, 422), /* futex_time64 */
    CB_BPF(EQUAL, 96, 0, 180), /* pread64 */
    CB_BPF(EQUAL, 95, 0, 3), /* read */
    CB_BPF(EQUAL, 94, 0, 4), /* write */
    CB_BPF(EQUAL, 93, 0, 146), /* writev */
    CB_BPF(EQUAL, 92, 0, 6), /* close */
    CB_BPF(EQUAL, 91, 0, 220), /* madvise */
    CB_BPF(EQUAL, 90, 0, 270), /* arm_fadvise64_64 */
    CB_BPF(EQUAL, 89, 0, 263), /* clock_gettime */
    CB_BPF(EQUAL, 88, 0, 403), /* clock_gettime64 */
    CB_BPF(EQUAL, 87, 0, 168), /* poll */
    CB_BPF(EQUAL, 86, 0, 336), /* ppoll */
    CB_BPF(EQUAL, 85, 0, 414), /* ppoll_time64 */
    CB_BPF(EQUAL, 84, 0, 366), /* accept4 */
    CB_BPF(EQUAL, 59, 0, 290), /* sendto */
    CB_BPF(EQUAL, 60, 0, 125), /* mprotect */
    CB_BPF(EQUAL, 81, 0, 91), /* munmap */
    CB_BPF(EQUAL, 80, 0, 173), /* rt_sigreturn */
    CB_BPF(EQUAL, 79, 0, 119), /* sigreturn */
    CB_BPF(EQUAL, 78, 0, 175), /* rt_sigprocmask */
    CB_BPF(EQUAL, 77, 0, 174), /* rt_sigaction */
    CB_BPF(EQUAL, 76, 0, 0), /* restart_syscall */
    CB_BPF(EQUAL, 75, 0, 1), /* exit */
    CB_BPF(EQUAL, 74, 0, 248), /* exit_group */
    CB_BPF(EQUAL, 74, 0, 435), /* clone3 */
    CB_BPF(EQUAL, 52, 0, 120), /* clone */
    CB_BPF(EQUAL, 54, 0, 389), /* membarrier */
    CB_BPF(EQUAL, 70, 0, 338), /* set_robust_list */
    CB_BPF(EQUAL, 69, 0, 398), /* rseq */
    CB_BPF(EQUAL, 68, 0, 224), /* gettid */
    CB_BPF(EQUAL, 67, 0, 242), /* sched_getaffinity */
    CB_BPF(EQUAL, 66, 0, 241), /* sched_setaffinity */
    CB_BPF(EQUAL, 65, 0, 158), /* sched_yield */
    CB_BPF(EQUAL, 49, 0, 192), /* mmap2 */
    CB_BPF(EQUAL, 63, 0, 45), /* brk */
    CB_BPF(EQUAL, 62, 0, 163), /* mremap */
    CB_BPF(EQUAL, 61, 0, 150), /* mlock */
    CB_BPF(EQUAL, 60, 0, 151), /* munlock */
    CB_BPF(EQUAL, 59, 0, 322), /* openat */
    CB_BPF(EQUAL, 58, 0, 5), /* open */
    CB_BPF(EQUAL, 57, 0, 327), /* fstatat64 */
    CB_BPF(EQUAL, 56, 0, 108), /* fstat */
    CB_BPF(EQUAL, 55, 0, 197), /* fstat64 */
    CB_BPF(EQUAL, 54, 0, 106), /* stat */
    CB_BPF(EQUAL, 53, 0, 195), /* stat64 */
    CB_BPF(EQUAL, 52, 0, 397), /* statx */
    CB_BPF(EQUAL, 51, 0, 19), /* lseek */
    CB_BPF(EQUAL, 50, 0, 140), /* _llseek */
    CB_BPF(EQUAL, 49, 0, 145), /* readv */
    CB_BPF(EQUAL, 48, 0, 85), /* readlink */
    CB_BPF(EQUAL, 47, 0, 332), /* readlinkat */
    CB_BPF(EQUAL, 46, 0, 33), /* access */
    CB_BPF(EQUAL, 45, 0, 334), /* faccessat */
    CB_BPF(EQUAL, 44, 0, 439), /* faccessat2 */
    CB_BPF(EQUAL, 43, 0, 10), /* unlink */
    CB_BPF(EQUAL, 42, 0, 328), /* unlinkat */
    CB_BPF(EQUAL, 41, 0, 38), /* rename */
    CB_BPF(EQUAL, 40, 0, 329), /* renameat */
    CB_BPF(EQUAL, 39, 0, 382), /* renameat2 */
    CB_BPF(EQUAL, 38, 0, 118), /* fsync */
    CB_BPF(EQUAL, 37, 0, 55), /* fcntl */
    CB_BPF(EQUAL, 36, 0, 221), /* fcntl64 */
    CB_BPF(EQUAL, 22, 0, 54), /* ioctl */
    CB_BPF(EQUAL, 34, 0, 20), /* getpid */
    CB_BPF(EQUAL, 33, 0, 122), /* uname */
    CB_BPF(EQUAL, 32, 0, 116), /* sysinfo */
    CB_BPF(EQUAL, 31, 0, 384), /* getrandom */
    CB_BPF(EQUAL, 30, 0, 191), /* ugetrlimit */
    CB_BPF(EQUAL, 22, 0, 369), /* prlimit64 */
    CB_BPF(EQUAL, 23, 0, 172), /* prctl */
    CB_BPF(EQUAL, 27, 0, 383), /* seccomp */
    CB_BPF(EQUAL, 26, 0, 444), /* landlock_create_ruleset */
    CB_BPF(EQUAL, 25, 0, 445), /* landlock_add_rule */
    CB_BPF(EQUAL, 24, 23, 446), /* landlock_restrict_self */
    CB_BPF(LOAD, 0, 0, 48), /* argument 4 */
    CB_BPF(EQUAL, 22, 21, 0),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 19, 20, CB_BPF_LARGE(1)),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(AND, 0, 0, CB_BPF_LARGE(2)),
    CB_BPF(EQUAL, 17, 16, CB_BPF_LARGE(3)),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 15, 14, 16),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 12, 13, CB_BPF_LARGE(1)),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 11, 0, CB_BPF_LARGE(4)),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 9, 0, CB_BPF_LARGE(5)),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 7, 6, CB_BPF_LARGE(6)),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 5, 4, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 3, 0, 38),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 1, 0, 39),
    CB_BPF(RETURN, 0, 0, 0), /* refuse */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(7)), /* allow */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(8)), /* errno 38 */
};

static const uint32_t steady_filter[] = {
    CB_BPF(LOAD, 0, 0, 4), /* architecture */
    CB_BPF(EQUAL, 0, 30, CB_BPF_LARGE(0)),
    CB_BPF(LOAD, 0, 0, 0), /* number */
    CB_BPF(EQUAL, 29, 0, 240), /* futex */
    CB_BPF(EQUAL, 28, 0, 422), /* futex_time64 */
    CB_BPF(EQUAL, 27, 0, 180), /* pread64 */
    CB_BPF(EQUAL, 26, 0, 3), /* read */
    CB_BPF(EQUAL, 25, 0, 4), /* write */
    CB_BPF(EQUAL, 24, 0, 146), /* writev */
    CB_BPF(EQUAL, 23, 0, 6), /* close */
    CB_BPF(EQUAL, 22, 0, 220), /* madvise */
    CB_BPF(EQUAL, 21, 0, 270), /* arm_fadvise64_64 */
    CB_BPF(EQUAL, 20, 0, 263), /* clock_gettime */
    CB_BPF(EQUAL, 19, 0, 403), /* clock_gettime64 */
    CB_BPF(EQUAL, 18, 0, 168), /* poll */
    CB_BPF(EQUAL, 17, 0, 336), /* ppoll */
    CB_BPF(EQUAL, 16, 0, 414), /* ppoll_time64 */
    CB_BPF(EQUAL, 15, 0, 366), /* accept4 */
    CB_BPF(EQUAL, 9, 0, 290), /* sendto */
    CB_BPF(EQUAL, 10, 0, 125), /* mprotect */
    CB_BPF(EQUAL, 12, 0, 91), /* munmap */
    CB_BPF(EQUAL, 11, 0, 173), /* rt_sigreturn */
    CB_BPF(EQUAL, 10, 0, 119), /* sigreturn */
    CB_BPF(EQUAL, 9, 0, 175), /* rt_sigprocmask */
    CB_BPF(EQUAL, 8, 0, 174), /* rt_sigaction */
    CB_BPF(EQUAL, 7, 0, 0), /* restart_syscall */
    CB_BPF(EQUAL, 6, 0, 1), /* exit */
    CB_BPF(EQUAL, 5, 4, 248), /* exit_group */
    CB_BPF(LOAD, 0, 0, 48), /* argument 4 */
    CB_BPF(EQUAL, 3, 2, 0),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 0, 1, CB_BPF_LARGE(1)),
    CB_BPF(RETURN, 0, 0, 0), /* refuse */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(7)), /* allow */
};

static const uint32_t large_operands[] = {0x40000028, 0xfffffffc, 0xffbfffff, 0x003d0f00, 0x00005401, 0x802c542a, 0x00005413, 0x7fff0000, 0x00050026};

#elif defined(__x86_64__) && defined(__LP64__)

/* x86-64 */
#define CB_SANDBOX_FILTERS 1
#define CB_SANDBOX_START_CALLS 66u
#define CB_SANDBOX_STEADY_CALLS 21u

static const uint32_t start_filter[] = {
    CB_BPF(LOAD, 0, 0, 4), /* architecture */
    CB_BPF(EQUAL, 0, 113, CB_BPF_LARGE(0)),
    CB_BPF(LOAD, 0, 0, 0), /* number */
    CB_BPF(EQUAL, 112, 0, 202), /* futex */
    CB_BPF(EQUAL, 111, 0, 17), /* pread64 */
    CB_BPF(EQUAL, 110, 0, 0), /* read */
    CB_BPF(EQUAL, 109, 0, 1), /* write */
    CB_BPF(EQUAL, 108, 0, 20), /* writev */
    CB_BPF(EQUAL, 107, 0, 3), /* close */
    CB_BPF(EQUAL, 106, 0, 28), /* madvise */
    CB_BPF(EQUAL, 105, 0, 221), /* fadvise64 */
    CB_BPF(EQUAL, 104, 0, 228), /* clock_gettime */
    CB_BPF(EQUAL, 103, 0, 7), /* poll */
    CB_BPF(EQUAL, 102, 0, 271), /* ppoll */
    CB_BPF(EQUAL, 101, 0, 288), /* accept4 */
    CB_BPF(EQUAL, 54, 0, 44), /* sendto */
    CB_BPF(EQUAL, 57, 0, 10), /* mprotect */
    CB_BPF(EQUAL, 98, 0, 11), /* munmap */
    CB_BPF(EQUAL, 97, 0, 15), /* rt_sigreturn */
    CB_BPF(EQUAL, 96, 0, 14), /* rt_sigprocmask */
    CB_BPF(EQUAL, 95, 0, 13), /* rt_sigaction */
    CB_BPF(EQUAL, 94, 0, 219), /* restart_syscall */
    CB_BPF(EQUAL, 93, 0, 60), /* exit */
    CB_BPF(EQUAL, 92, 0, 231), /* exit_group */
    CB_BPF(EQUAL, 92, 0, 435), /* clone3 */
    CB_BPF(EQUAL, 52, 0, 56), /* clone */
    CB_BPF(EQUAL, 56, 0, 324), /* membarrier */
    CB_BPF(EQUAL, 88, 0, 273), /* set_robust_list */
    CB_BPF(EQUAL, 87, 0, 334), /* rseq */
    CB_BPF(EQUAL, 86, 0, 186), /* gettid */
    CB_BPF(EQUAL, 85, 0, 204), /* sched_getaffinity */
    CB_BPF(EQUAL, 84, 0, 203), /* sched_setaffinity */
    CB_BPF(EQUAL, 83, 0, 24), /* sched_yield */
    CB_BPF(EQUAL, 53, 0, 9), /* mmap */
    CB_BPF(EQUAL, 81, 0, 12), /* brk */
    CB_BPF(EQUAL, 80, 0, 25), /* mremap */
    CB_BPF(EQUAL, 79, 0, 149), /* mlock */
    CB_BPF(EQUAL, 78, 0, 150), /* munlock */
    CB_BPF(EQUAL, 77, 0, 257), /* openat */
    CB_BPF(EQUAL, 76, 0, 2), /* open */
    CB_BPF(EQUAL, 75, 0, 262), /* newfstatat */
    CB_BPF(EQUAL, 74, 0, 5), /* fstat */
    CB_BPF(EQUAL, 73, 0, 4), /* stat */
    CB_BPF(EQUAL, 72, 0, 332), /* statx */
    CB_BPF(EQUAL, 71, 0, 8), /* lseek */
    CB_BPF(EQUAL, 70, 0, 19), /* readv */
    CB_BPF(EQUAL, 69, 0, 89), /* readlink */
    CB_BPF(EQUAL, 68, 0, 267), /* readlinkat */
    CB_BPF(EQUAL, 67, 0, 21), /* access */
    CB_BPF(EQUAL, 66, 0, 269), /* faccessat */
    CB_BPF(EQUAL, 65, 0, 439), /* faccessat2 */
    CB_BPF(EQUAL, 64, 0, 87), /* unlink */
    CB_BPF(EQUAL, 63, 0, 263), /* unlinkat */
    CB_BPF(EQUAL, 62, 0, 82), /* rename */
    CB_BPF(EQUAL, 61, 0, 264), /* renameat */
    CB_BPF(EQUAL, 60, 0, 316), /* renameat2 */
    CB_BPF(EQUAL, 59, 0, 74), /* fsync */
    CB_BPF(EQUAL, 58, 0, 72), /* fcntl */
    CB_BPF(EQUAL, 32, 0, 16), /* ioctl */
    CB_BPF(EQUAL, 56, 0, 39), /* getpid */
    CB_BPF(EQUAL, 55, 0, 63), /* uname */
    CB_BPF(EQUAL, 54, 0, 99), /* sysinfo */
    CB_BPF(EQUAL, 53, 0, 318), /* getrandom */
    CB_BPF(EQUAL, 52, 0, 97), /* getrlimit */
    CB_BPF(EQUAL, 38, 0, 302), /* prlimit64 */
    CB_BPF(EQUAL, 41, 0, 157), /* prctl */
    CB_BPF(EQUAL, 49, 0, 317), /* seccomp */
    CB_BPF(EQUAL, 48, 0, 444), /* landlock_create_ruleset */
    CB_BPF(EQUAL, 47, 0, 445), /* landlock_add_rule */
    CB_BPF(EQUAL, 46, 45, 446), /* landlock_restrict_self */
    CB_BPF(LOAD, 0, 0, 52), /* argument 4, upper half */
    CB_BPF(EQUAL, 0, 43, 0),
    CB_BPF(LOAD, 0, 0, 48), /* argument 4 */
    CB_BPF(EQUAL, 42, 41, 0),
    CB_BPF(LOAD, 0, 0, 36), /* argument 2, upper half */
    CB_BPF(EQUAL, 0, 39, 0),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 37, 38, CB_BPF_LARGE(1)),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 35, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(AND, 0, 0, CB_BPF_LARGE(2)),
    CB_BPF(EQUAL, 33, 32, CB_BPF_LARGE(3)),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 30, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 29, 28, 16),
    CB_BPF(LOAD, 0, 0, 36), /* argument 2, upper half */
    CB_BPF(EQUAL, 0, 26, 0),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 24, 25, CB_BPF_LARGE(1)),
    CB_BPF(LOAD, 0, 0, 28), /* argument 1, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 21, 0, CB_BPF_LARGE(4)),
    CB_BPF(LOAD, 0, 0, 28), /* argument 1, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 17, 0, CB_BPF_LARGE(5)),
    CB_BPF(LOAD, 0, 0, 28), /* argument 1, upper half */
    CB_BPF(EQUAL, 0, 14, 0),
    CB_BPF(LOAD, 0, 0, 24), /* argument 1 */
    CB_BPF(EQUAL, 13, 12, CB_BPF_LARGE(6)),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 10, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 9, 8, 0),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 5, 0, 38),
    CB_BPF(LOAD, 0, 0, 20), /* argument 0, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 16), /* argument 0 */
    CB_BPF(EQUAL, 1, 0, 39),
    CB_BPF(RETURN, 0, 0, 0), /* refuse */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(7)), /* allow */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(8)), /* errno 38 */
};

static const uint32_t steady_filter[] = {
    CB_BPF(LOAD, 0, 0, 4), /* architecture */
    CB_BPF(EQUAL, 0, 30, CB_BPF_LARGE(0)),
    CB_BPF(LOAD, 0, 0, 0), /* number */
    CB_BPF(EQUAL, 29, 0, 202), /* futex */
    CB_BPF(EQUAL, 28, 0, 17), /* pread64 */
    CB_BPF(EQUAL, 27, 0, 0), /* read */
    CB_BPF(EQUAL, 26, 0, 1), /* write */
    CB_BPF(EQUAL, 25, 0, 20), /* writev */
    CB_BPF(EQUAL, 24, 0, 3), /* close */
    CB_BPF(EQUAL, 23, 0, 28), /* madvise */
    CB_BPF(EQUAL, 22, 0, 221), /* fadvise64 */
    CB_BPF(EQUAL, 21, 0, 228), /* clock_gettime */
    CB_BPF(EQUAL, 20, 0, 7), /* poll */
    CB_BPF(EQUAL, 19, 0, 271), /* ppoll */
    CB_BPF(EQUAL, 18, 0, 288), /* accept4 */
    CB_BPF(EQUAL, 8, 0, 44), /* sendto */
    CB_BPF(EQUAL, 11, 0, 10), /* mprotect */
    CB_BPF(EQUAL, 15, 0, 11), /* munmap */
    CB_BPF(EQUAL, 14, 0, 15), /* rt_sigreturn */
    CB_BPF(EQUAL, 13, 0, 14), /* rt_sigprocmask */
    CB_BPF(EQUAL, 12, 0, 13), /* rt_sigaction */
    CB_BPF(EQUAL, 11, 0, 219), /* restart_syscall */
    CB_BPF(EQUAL, 10, 0, 60), /* exit */
    CB_BPF(EQUAL, 9, 8, 231), /* exit_group */
    CB_BPF(LOAD, 0, 0, 52), /* argument 4, upper half */
    CB_BPF(EQUAL, 0, 6, 0),
    CB_BPF(LOAD, 0, 0, 48), /* argument 4 */
    CB_BPF(EQUAL, 5, 4, 0),
    CB_BPF(LOAD, 0, 0, 36), /* argument 2, upper half */
    CB_BPF(EQUAL, 0, 2, 0),
    CB_BPF(LOAD, 0, 0, 32), /* argument 2 */
    CB_BPF(SET, 0, 1, CB_BPF_LARGE(1)),
    CB_BPF(RETURN, 0, 0, 0), /* refuse */
    CB_BPF(RETURN, 0, 0, CB_BPF_LARGE(7)), /* allow */
};

static const uint32_t large_operands[] = {0xc000003e, 0xfffffffc, 0xffbfffff, 0x003d0f00, 0x00005401, 0x802c542a, 0x00005413, 0x7fff0000, 0x00050026};

#endif

#endif
