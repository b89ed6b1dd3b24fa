/* SPDX-License-Identifier: MIT */
/* Generated from configs/seccomp/colibri.json by configs/seccomp/generate.py; do not edit. */
#ifndef CB_SANDBOX_FILTERS_H
#define CB_SANDBOX_FILTERS_H

#include <stdint.h>

/* As the kernel has it: code, jump if true, if false, operand. */
struct cb_bpf {
    uint16_t code;
    uint8_t jt, jf;
    uint32_t k;
};

/* The return that the action replaces. */
#define CB_BPF_RETURN 0x06u
#define CB_BPF_REFUSE 0u

#if defined(__aarch64__) && defined(__LP64__)

/* aarch64 */
#define CB_SANDBOX_FILTERS 1
#define CB_SANDBOX_START_CALLS 68u
#define CB_SANDBOX_STEADY_CALLS 20u

static const struct cb_bpf start_filter[] = {
    {0x20, 0, 0, 0x00000004}, /* architecture */
    {0x15, 0, 107, 0xc00000b7},
    {0x20, 0, 0, 0x00000000}, /* number */
    {0x15, 106, 0, 0x00000062}, /* futex */
    {0x15, 105, 0, 0x00000043}, /* pread64 */
    {0x15, 104, 0, 0x0000003f}, /* read */
    {0x15, 103, 0, 0x00000040}, /* write */
    {0x15, 102, 0, 0x00000042}, /* writev */
    {0x15, 101, 0, 0x00000039}, /* close */
    {0x15, 100, 0, 0x000000e9}, /* madvise */
    {0x15, 99, 0, 0x000000df}, /* fadvise64 */
    {0x15, 98, 0, 0x00000071}, /* clock_gettime */
    {0x15, 97, 0, 0x00000049}, /* ppoll */
    {0x15, 96, 0, 0x000000f2}, /* accept4 */
    {0x15, 57, 0, 0x000000ce}, /* sendto */
    {0x15, 60, 0, 0x000000e2}, /* mprotect */
    {0x15, 93, 0, 0x000000d7}, /* munmap */
    {0x15, 92, 0, 0x0000008b}, /* rt_sigreturn */
    {0x15, 91, 0, 0x00000087}, /* rt_sigprocmask */
    {0x15, 90, 0, 0x00000086}, /* rt_sigaction */
    {0x15, 89, 0, 0x00000080}, /* restart_syscall */
    {0x15, 88, 0, 0x0000005d}, /* exit */
    {0x15, 87, 0, 0x0000005e}, /* exit_group */
    {0x15, 87, 0, 0x000001b3}, /* clone3 */
    {0x15, 55, 0, 0x000000dc}, /* clone */
    {0x15, 84, 0, 0x00000063}, /* set_robust_list */
    {0x15, 83, 0, 0x00000125}, /* rseq */
    {0x15, 82, 0, 0x000000b2}, /* gettid */
    {0x15, 81, 0, 0x0000007b}, /* sched_getaffinity */
    {0x15, 80, 0, 0x0000007c}, /* sched_yield */
    {0x15, 54, 0, 0x000000de}, /* mmap */
    {0x15, 78, 0, 0x000000d6}, /* brk */
    {0x15, 77, 0, 0x000000d8}, /* mremap */
    {0x15, 76, 0, 0x000000e4}, /* mlock */
    {0x15, 75, 0, 0x000000e5}, /* munlock */
    {0x15, 74, 0, 0x00000038}, /* openat */
    {0x15, 73, 0, 0x0000004f}, /* newfstatat */
    {0x15, 72, 0, 0x00000050}, /* fstat */
    {0x15, 71, 0, 0x00000123}, /* statx */
    {0x15, 70, 0, 0x0000003e}, /* lseek */
    {0x15, 69, 0, 0x00000041}, /* readv */
    {0x15, 68, 0, 0x0000004e}, /* readlinkat */
    {0x15, 67, 0, 0x00000030}, /* faccessat */
    {0x15, 66, 0, 0x000001b7}, /* faccessat2 */
    {0x15, 65, 0, 0x00000023}, /* unlinkat */
    {0x15, 64, 0, 0x00000026}, /* renameat */
    {0x15, 63, 0, 0x00000114}, /* renameat2 */
    {0x15, 62, 0, 0x00000052}, /* fsync */
    {0x15, 61, 0, 0x00000034}, /* fchmod */
    {0x15, 60, 0, 0x00000035}, /* fchmodat */
    {0x15, 59, 0, 0x00000019}, /* fcntl */
    {0x15, 58, 0, 0x00000018}, /* dup3 */
    {0x15, 57, 0, 0x0000003b}, /* pipe2 */
    {0x15, 35, 0, 0x0000001d}, /* ioctl */
    {0x15, 55, 0, 0x000000ac}, /* getpid */
    {0x15, 54, 0, 0x000000a0}, /* uname */
    {0x15, 53, 0, 0x000000b3}, /* sysinfo */
    {0x15, 52, 0, 0x00000116}, /* getrandom */
    {0x15, 51, 0, 0x00000105}, /* prlimit64 */
    {0x15, 50, 0, 0x000000a3}, /* getrlimit */
    {0x15, 36, 0, 0x000000c6}, /* socket */
    {0x15, 48, 0, 0x000000c8}, /* bind */
    {0x15, 47, 0, 0x000000c9}, /* listen */
    {0x15, 46, 0, 0x000000cb}, /* connect */
    {0x15, 45, 0, 0x000000cc}, /* getsockname */
    {0x15, 44, 0, 0x000000d1}, /* getsockopt */
    {0x15, 43, 0, 0x000000d0}, /* setsockopt */
    {0x15, 33, 0, 0x000000a7}, /* prctl */
    {0x15, 41, 0, 0x00000115}, /* seccomp */
    {0x15, 40, 0, 0x000001bc}, /* landlock_create_ruleset */
    {0x15, 39, 0, 0x000001bd}, /* landlock_add_rule */
    {0x15, 38, 37, 0x000001be}, /* landlock_restrict_self */
    {0x20, 0, 0, 0x00000034}, /* argument 4, upper half */
    {0x15, 0, 35, 0x00000000},
    {0x20, 0, 0, 0x00000030}, /* argument 4 */
    {0x15, 34, 33, 0x00000000},
    {0x20, 0, 0, 0x00000024}, /* argument 2, upper half */
    {0x15, 0, 31, 0x00000000},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 29, 30, 0xfffffffc},
    {0x20, 0, 0, 0x00000014}, /* argument 0, upper half */
    {0x15, 0, 27, 0x00000000},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x54, 0, 0, 0xffbfffff},
    {0x15, 25, 24, 0x003d0f00},
    {0x20, 0, 0, 0x00000024}, /* argument 2, upper half */
    {0x15, 0, 22, 0x00000000},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 20, 21, 0xfffffffc},
    {0x20, 0, 0, 0x0000001c}, /* argument 1, upper half */
    {0x15, 0, 2, 0x00000000},
    {0x20, 0, 0, 0x00000018}, /* argument 1 */
    {0x15, 17, 0, 0x00005401},
    {0x20, 0, 0, 0x0000001c}, /* argument 1, upper half */
    {0x15, 0, 14, 0x00000000},
    {0x20, 0, 0, 0x00000018}, /* argument 1 */
    {0x15, 13, 12, 0x00005413},
    {0x20, 0, 0, 0x00000014}, /* argument 0, upper half */
    {0x15, 0, 10, 0x00000000},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 9, 8, 0x00000001},
    {0x20, 0, 0, 0x00000014}, /* argument 0, upper half */
    {0x15, 0, 2, 0x00000000},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 5, 0, 0x00000026},
    {0x20, 0, 0, 0x00000014}, /* argument 0, upper half */
    {0x15, 0, 2, 0x00000000},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 1, 0, 0x00000027},
    {0x06, 0, 0, 0x00000000}, /* refuse */
    {0x06, 0, 0, 0x7fff0000}, /* allow */
    {0x06, 0, 0, 0x00050026}, /* errno 38 */
};

static const struct cb_bpf steady_filter[] = {
    {0x20, 0, 0, 0x00000004}, /* architecture */
    {0x15, 0, 29, 0xc00000b7},
    {0x20, 0, 0, 0x00000000}, /* number */
    {0x15, 28, 0, 0x00000062}, /* futex */
    {0x15, 27, 0, 0x00000043}, /* pread64 */
    {0x15, 26, 0, 0x0000003f}, /* read */
    {0x15, 25, 0, 0x00000040}, /* write */
    {0x15, 24, 0, 0x00000042}, /* writev */
    {0x15, 23, 0, 0x00000039}, /* close */
    {0x15, 22, 0, 0x000000e9}, /* madvise */
    {0x15, 21, 0, 0x000000df}, /* fadvise64 */
    {0x15, 20, 0, 0x00000071}, /* clock_gettime */
    {0x15, 19, 0, 0x00000049}, /* ppoll */
    {0x15, 18, 0, 0x000000f2}, /* accept4 */
    {0x15, 8, 0, 0x000000ce}, /* sendto */
    {0x15, 11, 0, 0x000000e2}, /* mprotect */
    {0x15, 15, 0, 0x000000d7}, /* munmap */
    {0x15, 14, 0, 0x0000008b}, /* rt_sigreturn */
    {0x15, 13, 0, 0x00000087}, /* rt_sigprocmask */
    {0x15, 12, 0, 0x00000086}, /* rt_sigaction */
    {0x15, 11, 0, 0x00000080}, /* restart_syscall */
    {0x15, 10, 0, 0x0000005d}, /* exit */
    {0x15, 9, 8, 0x0000005e}, /* exit_group */
    {0x20, 0, 0, 0x00000034}, /* argument 4, upper half */
    {0x15, 0, 6, 0x00000000},
    {0x20, 0, 0, 0x00000030}, /* argument 4 */
    {0x15, 5, 4, 0x00000000},
    {0x20, 0, 0, 0x00000024}, /* argument 2, upper half */
    {0x15, 0, 2, 0x00000000},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 0, 1, 0xfffffffc},
    {0x06, 0, 0, 0x00000000}, /* refuse */
    {0x06, 0, 0, 0x7fff0000}, /* allow */
};

#elif defined(__arm__) && defined(__ARM_EABI__)

/* arm */
#define CB_SANDBOX_FILTERS 1
#define CB_SANDBOX_START_CALLS 86u
#define CB_SANDBOX_STEADY_CALLS 25u

static const struct cb_bpf start_filter[] = {
    {0x20, 0, 0, 0x00000004}, /* architecture */
    {0x15, 0, 107, 0x40000028},
    {0x20, 0, 0, 0x00000000}, /* number */
    {0x15, 106, 0, 0x000000f0}, /* futex */
    {0x15, 105, 0, 0x000001a6}, /* futex_time64 */
    {0x15, 104, 0, 0x000000b4}, /* pread64 */
    {0x15, 103, 0, 0x00000003}, /* read */
    {0x15, 102, 0, 0x00000004}, /* write */
    {0x15, 101, 0, 0x00000092}, /* writev */
    {0x15, 100, 0, 0x00000006}, /* close */
    {0x15, 99, 0, 0x000000dc}, /* madvise */
    {0x15, 98, 0, 0x0000010e}, /* arm_fadvise64_64 */
    {0x15, 97, 0, 0x00000107}, /* clock_gettime */
    {0x15, 96, 0, 0x00000193}, /* clock_gettime64 */
    {0x15, 95, 0, 0x000000a8}, /* poll */
    {0x15, 94, 0, 0x00000150}, /* ppoll */
    {0x15, 93, 0, 0x0000019e}, /* ppoll_time64 */
    {0x15, 92, 0, 0x0000016e}, /* accept4 */
    {0x15, 71, 0, 0x00000122}, /* sendto */
    {0x15, 72, 0, 0x0000007d}, /* mprotect */
    {0x15, 89, 0, 0x0000005b}, /* munmap */
    {0x15, 88, 0, 0x000000ad}, /* rt_sigreturn */
    {0x15, 87, 0, 0x00000077}, /* sigreturn */
    {0x15, 86, 0, 0x000000af}, /* rt_sigprocmask */
    {0x15, 85, 0, 0x000000ae}, /* rt_sigaction */
    {0x15, 84, 0, 0x00000000}, /* restart_syscall */
    {0x15, 83, 0, 0x00000001}, /* exit */
    {0x15, 82, 0, 0x000000f8}, /* exit_group */
    {0x15, 82, 0, 0x000001b3}, /* clone3 */
    {0x15, 64, 0, 0x00000078}, /* clone */
    {0x15, 79, 0, 0x00000152}, /* set_robust_list */
    {0x15, 78, 0, 0x0000018e}, /* rseq */
    {0x15, 77, 0, 0x000000e0}, /* gettid */
    {0x15, 76, 0, 0x000000f2}, /* sched_getaffinity */
    {0x15, 75, 0, 0x0000009e}, /* sched_yield */
    {0x15, 61, 0, 0x000000c0}, /* mmap2 */
    {0x15, 73, 0, 0x0000002d}, /* brk */
    {0x15, 72, 0, 0x000000a3}, /* mremap */
    {0x15, 71, 0, 0x00000096}, /* mlock */
    {0x15, 70, 0, 0x00000097}, /* munlock */
    {0x15, 69, 0, 0x00000142}, /* openat */
    {0x15, 68, 0, 0x00000005}, /* open */
    {0x15, 67, 0, 0x00000147}, /* fstatat64 */
    {0x15, 66, 0, 0x0000006c}, /* fstat */
    {0x15, 65, 0, 0x000000c5}, /* fstat64 */
    {0x15, 64, 0, 0x0000006a}, /* stat */
    {0x15, 63, 0, 0x000000c3}, /* stat64 */
    {0x15, 62, 0, 0x0000018d}, /* statx */
    {0x15, 61, 0, 0x00000013}, /* lseek */
    {0x15, 60, 0, 0x0000008c}, /* _llseek */
    {0x15, 59, 0, 0x00000091}, /* readv */
    {0x15, 58, 0, 0x00000055}, /* readlink */
    {0x15, 57, 0, 0x0000014c}, /* readlinkat */
    {0x15, 56, 0, 0x00000021}, /* access */
    {0x15, 55, 0, 0x0000014e}, /* faccessat */
    {0x15, 54, 0, 0x000001b7}, /* faccessat2 */
    {0x15, 53, 0, 0x0000000a}, /* unlink */
    {0x15, 52, 0, 0x00000148}, /* unlinkat */
    {0x15, 51, 0, 0x00000026}, /* rename */
    {0x15, 50, 0, 0x00000149}, /* renameat */
    {0x15, 49, 0, 0x0000017e}, /* renameat2 */
    {0x15, 48, 0, 0x00000076}, /* fsync */
    {0x15, 47, 0, 0x0000005e}, /* fchmod */
    {0x15, 46, 0, 0x0000014d}, /* fchmodat */
    {0x15, 45, 0, 0x0000000f}, /* chmod */
    {0x15, 44, 0, 0x00000037}, /* fcntl */
    {0x15, 43, 0, 0x000000dd}, /* fcntl64 */
    {0x15, 42, 0, 0x0000003f}, /* dup2 */
    {0x15, 41, 0, 0x00000166}, /* dup3 */
    {0x15, 40, 0, 0x0000002a}, /* pipe */
    {0x15, 39, 0, 0x00000167}, /* pipe2 */
    {0x15, 27, 0, 0x00000036}, /* ioctl */
    {0x15, 37, 0, 0x00000014}, /* getpid */
    {0x15, 36, 0, 0x0000007a}, /* uname */
    {0x15, 35, 0, 0x00000074}, /* sysinfo */
    {0x15, 34, 0, 0x00000180}, /* getrandom */
    {0x15, 33, 0, 0x00000171}, /* prlimit64 */
    {0x15, 32, 0, 0x000000bf}, /* ugetrlimit */
    {0x15, 24, 0, 0x00000119}, /* socket */
    {0x15, 30, 0, 0x0000011a}, /* bind */
    {0x15, 29, 0, 0x0000011c}, /* listen */
    {0x15, 28, 0, 0x0000011b}, /* connect */
    {0x15, 27, 0, 0x0000011e}, /* getsockname */
    {0x15, 26, 0, 0x00000127}, /* getsockopt */
    {0x15, 25, 0, 0x00000126}, /* setsockopt */
    {0x15, 19, 0, 0x000000ac}, /* prctl */
    {0x15, 23, 0, 0x0000017f}, /* seccomp */
    {0x15, 22, 0, 0x000001bc}, /* landlock_create_ruleset */
    {0x15, 21, 0, 0x000001bd}, /* landlock_add_rule */
    {0x15, 20, 19, 0x000001be}, /* landlock_restrict_self */
    {0x20, 0, 0, 0x00000030}, /* argument 4 */
    {0x15, 18, 17, 0x00000000},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 15, 16, 0xfffffffc},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x54, 0, 0, 0xffbfffff},
    {0x15, 13, 12, 0x003d0f00},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 10, 11, 0xfffffffc},
    {0x20, 0, 0, 0x00000018}, /* argument 1 */
    {0x15, 9, 0, 0x00005401},
    {0x20, 0, 0, 0x00000018}, /* argument 1 */
    {0x15, 7, 6, 0x00005413},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 5, 4, 0x00000001},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 3, 0, 0x00000026},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 1, 0, 0x00000027},
    {0x06, 0, 0, 0x00000000}, /* refuse */
    {0x06, 0, 0, 0x7fff0000}, /* allow */
    {0x06, 0, 0, 0x00050026}, /* errno 38 */
};

static const struct cb_bpf steady_filter[] = {
    {0x20, 0, 0, 0x00000004}, /* architecture */
    {0x15, 0, 30, 0x40000028},
    {0x20, 0, 0, 0x00000000}, /* number */
    {0x15, 29, 0, 0x000000f0}, /* futex */
    {0x15, 28, 0, 0x000001a6}, /* futex_time64 */
    {0x15, 27, 0, 0x000000b4}, /* pread64 */
    {0x15, 26, 0, 0x00000003}, /* read */
    {0x15, 25, 0, 0x00000004}, /* write */
    {0x15, 24, 0, 0x00000092}, /* writev */
    {0x15, 23, 0, 0x00000006}, /* close */
    {0x15, 22, 0, 0x000000dc}, /* madvise */
    {0x15, 21, 0, 0x0000010e}, /* arm_fadvise64_64 */
    {0x15, 20, 0, 0x00000107}, /* clock_gettime */
    {0x15, 19, 0, 0x00000193}, /* clock_gettime64 */
    {0x15, 18, 0, 0x000000a8}, /* poll */
    {0x15, 17, 0, 0x00000150}, /* ppoll */
    {0x15, 16, 0, 0x0000019e}, /* ppoll_time64 */
    {0x15, 15, 0, 0x0000016e}, /* accept4 */
    {0x15, 9, 0, 0x00000122}, /* sendto */
    {0x15, 10, 0, 0x0000007d}, /* mprotect */
    {0x15, 12, 0, 0x0000005b}, /* munmap */
    {0x15, 11, 0, 0x000000ad}, /* rt_sigreturn */
    {0x15, 10, 0, 0x00000077}, /* sigreturn */
    {0x15, 9, 0, 0x000000af}, /* rt_sigprocmask */
    {0x15, 8, 0, 0x000000ae}, /* rt_sigaction */
    {0x15, 7, 0, 0x00000000}, /* restart_syscall */
    {0x15, 6, 0, 0x00000001}, /* exit */
    {0x15, 5, 4, 0x000000f8}, /* exit_group */
    {0x20, 0, 0, 0x00000030}, /* argument 4 */
    {0x15, 3, 2, 0x00000000},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 0, 1, 0xfffffffc},
    {0x06, 0, 0, 0x00000000}, /* refuse */
    {0x06, 0, 0, 0x7fff0000}, /* allow */
};

#elif defined(__x86_64__) && defined(__LP64__)

/* x86-64 */
#define CB_SANDBOX_FILTERS 1
#define CB_SANDBOX_START_CALLS 78u
#define CB_SANDBOX_STEADY_CALLS 21u

static const struct cb_bpf start_filter[] = {
    {0x20, 0, 0, 0x00000004}, /* architecture */
    {0x15, 0, 117, 0xc000003e},
    {0x20, 0, 0, 0x00000000}, /* number */
    {0x15, 116, 0, 0x000000ca}, /* futex */
    {0x15, 115, 0, 0x00000011}, /* pread64 */
    {0x15, 114, 0, 0x00000000}, /* read */
    {0x15, 113, 0, 0x00000001}, /* write */
    {0x15, 112, 0, 0x00000014}, /* writev */
    {0x15, 111, 0, 0x00000003}, /* close */
    {0x15, 110, 0, 0x0000001c}, /* madvise */
    {0x15, 109, 0, 0x000000dd}, /* fadvise64 */
    {0x15, 108, 0, 0x000000e4}, /* clock_gettime */
    {0x15, 107, 0, 0x00000007}, /* poll */
    {0x15, 106, 0, 0x0000010f}, /* ppoll */
    {0x15, 105, 0, 0x00000120}, /* accept4 */
    {0x15, 66, 0, 0x0000002c}, /* sendto */
    {0x15, 69, 0, 0x0000000a}, /* mprotect */
    {0x15, 102, 0, 0x0000000b}, /* munmap */
    {0x15, 101, 0, 0x0000000f}, /* rt_sigreturn */
    {0x15, 100, 0, 0x0000000e}, /* rt_sigprocmask */
    {0x15, 99, 0, 0x0000000d}, /* rt_sigaction */
    {0x15, 98, 0, 0x000000db}, /* restart_syscall */
    {0x15, 97, 0, 0x0000003c}, /* exit */
    {0x15, 96, 0, 0x000000e7}, /* exit_group */
    {0x15, 96, 0, 0x000001b3}, /* clone3 */
    {0x15, 64, 0, 0x00000038}, /* clone */
    {0x15, 93, 0, 0x00000111}, /* set_robust_list */
    {0x15, 92, 0, 0x0000014e}, /* rseq */
    {0x15, 91, 0, 0x000000ba}, /* gettid */
    {0x15, 90, 0, 0x000000cc}, /* sched_getaffinity */
    {0x15, 89, 0, 0x00000018}, /* sched_yield */
    {0x15, 63, 0, 0x00000009}, /* mmap */
    {0x15, 87, 0, 0x0000000c}, /* brk */
    {0x15, 86, 0, 0x00000019}, /* mremap */
    {0x15, 85, 0, 0x00000095}, /* mlock */
    {0x15, 84, 0, 0x00000096}, /* munlock */
    {0x15, 83, 0, 0x00000101}, /* openat */
    {0x15, 82, 0, 0x00000002}, /* open */
    {0x15, 81, 0, 0x00000106}, /* newfstatat */
    {0x15, 80, 0, 0x00000005}, /* fstat */
    {0x15, 79, 0, 0x00000004}, /* stat */
    {0x15, 78, 0, 0x0000014c}, /* statx */
    {0x15, 77, 0, 0x00000008}, /* lseek */
    {0x15, 76, 0, 0x00000013}, /* readv */
    {0x15, 75, 0, 0x00000059}, /* readlink */
    {0x15, 74, 0, 0x0000010b}, /* readlinkat */
    {0x15, 73, 0, 0x00000015}, /* access */
    {0x15, 72, 0, 0x0000010d}, /* faccessat */
    {0x15, 71, 0, 0x000001b7}, /* faccessat2 */
    {0x15, 70, 0, 0x00000057}, /* unlink */
    {0x15, 69, 0, 0x00000107}, /* unlinkat */
    {0x15, 68, 0, 0x00000052}, /* rename */
    {0x15, 67, 0, 0x00000108}, /* renameat */
    {0x15, 66, 0, 0x0000013c}, /* renameat2 */
    {0x15, 65, 0, 0x0000004a}, /* fsync */
    {0x15, 64, 0, 0x0000005b}, /* fchmod */
    {0x15, 63, 0, 0x0000010c}, /* fchmodat */
    {0x15, 62, 0, 0x0000005a}, /* chmod */
    {0x15, 61, 0, 0x00000048}, /* fcntl */
    {0x15, 60, 0, 0x00000021}, /* dup2 */
    {0x15, 59, 0, 0x00000124}, /* dup3 */
    {0x15, 58, 0, 0x00000016}, /* pipe */
    {0x15, 57, 0, 0x00000125}, /* pipe2 */
    {0x15, 35, 0, 0x00000010}, /* ioctl */
    {0x15, 55, 0, 0x00000027}, /* getpid */
    {0x15, 54, 0, 0x0000003f}, /* uname */
    {0x15, 53, 0, 0x00000063}, /* sysinfo */
    {0x15, 52, 0, 0x0000013e}, /* getrandom */
    {0x15, 51, 0, 0x0000012e}, /* prlimit64 */
    {0x15, 50, 0, 0x00000061}, /* getrlimit */
    {0x15, 36, 0, 0x00000029}, /* socket */
    {0x15, 48, 0, 0x00000031}, /* bind */
    {0x15, 47, 0, 0x00000032}, /* listen */
    {0x15, 46, 0, 0x0000002a}, /* connect */
    {0x15, 45, 0, 0x00000033}, /* getsockname */
    {0x15, 44, 0, 0x00000037}, /* getsockopt */
    {0x15, 43, 0, 0x00000036}, /* setsockopt */
    {0x15, 33, 0, 0x0000009d}, /* prctl */
    {0x15, 41, 0, 0x0000013d}, /* seccomp */
    {0x15, 40, 0, 0x000001bc}, /* landlock_create_ruleset */
    {0x15, 39, 0, 0x000001bd}, /* landlock_add_rule */
    {0x15, 38, 37, 0x000001be}, /* landlock_restrict_self */
    {0x20, 0, 0, 0x00000034}, /* argument 4, upper half */
    {0x15, 0, 35, 0x00000000},
    {0x20, 0, 0, 0x00000030}, /* argument 4 */
    {0x15, 34, 33, 0x00000000},
    {0x20, 0, 0, 0x00000024}, /* argument 2, upper half */
    {0x15, 0, 31, 0x00000000},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 29, 30, 0xfffffffc},
    {0x20, 0, 0, 0x00000014}, /* argument 0, upper half */
    {0x15, 0, 27, 0x00000000},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x54, 0, 0, 0xffbfffff},
    {0x15, 25, 24, 0x003d0f00},
    {0x20, 0, 0, 0x00000024}, /* argument 2, upper half */
    {0x15, 0, 22, 0x00000000},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 20, 21, 0xfffffffc},
    {0x20, 0, 0, 0x0000001c}, /* argument 1, upper half */
    {0x15, 0, 2, 0x00000000},
    {0x20, 0, 0, 0x00000018}, /* argument 1 */
    {0x15, 17, 0, 0x00005401},
    {0x20, 0, 0, 0x0000001c}, /* argument 1, upper half */
    {0x15, 0, 14, 0x00000000},
    {0x20, 0, 0, 0x00000018}, /* argument 1 */
    {0x15, 13, 12, 0x00005413},
    {0x20, 0, 0, 0x00000014}, /* argument 0, upper half */
    {0x15, 0, 10, 0x00000000},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 9, 8, 0x00000001},
    {0x20, 0, 0, 0x00000014}, /* argument 0, upper half */
    {0x15, 0, 2, 0x00000000},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 5, 0, 0x00000026},
    {0x20, 0, 0, 0x00000014}, /* argument 0, upper half */
    {0x15, 0, 2, 0x00000000},
    {0x20, 0, 0, 0x00000010}, /* argument 0 */
    {0x15, 1, 0, 0x00000027},
    {0x06, 0, 0, 0x00000000}, /* refuse */
    {0x06, 0, 0, 0x7fff0000}, /* allow */
    {0x06, 0, 0, 0x00050026}, /* errno 38 */
};

static const struct cb_bpf steady_filter[] = {
    {0x20, 0, 0, 0x00000004}, /* architecture */
    {0x15, 0, 30, 0xc000003e},
    {0x20, 0, 0, 0x00000000}, /* number */
    {0x15, 29, 0, 0x000000ca}, /* futex */
    {0x15, 28, 0, 0x00000011}, /* pread64 */
    {0x15, 27, 0, 0x00000000}, /* read */
    {0x15, 26, 0, 0x00000001}, /* write */
    {0x15, 25, 0, 0x00000014}, /* writev */
    {0x15, 24, 0, 0x00000003}, /* close */
    {0x15, 23, 0, 0x0000001c}, /* madvise */
    {0x15, 22, 0, 0x000000dd}, /* fadvise64 */
    {0x15, 21, 0, 0x000000e4}, /* clock_gettime */
    {0x15, 20, 0, 0x00000007}, /* poll */
    {0x15, 19, 0, 0x0000010f}, /* ppoll */
    {0x15, 18, 0, 0x00000120}, /* accept4 */
    {0x15, 8, 0, 0x0000002c}, /* sendto */
    {0x15, 11, 0, 0x0000000a}, /* mprotect */
    {0x15, 15, 0, 0x0000000b}, /* munmap */
    {0x15, 14, 0, 0x0000000f}, /* rt_sigreturn */
    {0x15, 13, 0, 0x0000000e}, /* rt_sigprocmask */
    {0x15, 12, 0, 0x0000000d}, /* rt_sigaction */
    {0x15, 11, 0, 0x000000db}, /* restart_syscall */
    {0x15, 10, 0, 0x0000003c}, /* exit */
    {0x15, 9, 8, 0x000000e7}, /* exit_group */
    {0x20, 0, 0, 0x00000034}, /* argument 4, upper half */
    {0x15, 0, 6, 0x00000000},
    {0x20, 0, 0, 0x00000030}, /* argument 4 */
    {0x15, 5, 4, 0x00000000},
    {0x20, 0, 0, 0x00000024}, /* argument 2, upper half */
    {0x15, 0, 2, 0x00000000},
    {0x20, 0, 0, 0x00000020}, /* argument 2 */
    {0x45, 0, 1, 0xfffffffc},
    {0x06, 0, 0, 0x00000000}, /* refuse */
    {0x06, 0, 0, 0x7fff0000}, /* allow */
};

#endif

#endif
