/* SPDX-License-Identifier: MIT */
/* colibrictl doctor: is there memory, can it be locked, does anything move it out again. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../src/platform.h"
#include "doctor.h"
#include "output.h"

#define PROBE_BYTES (UINT64_C(1) << 20)
#define NO_LIMIT (INT64_C(1) << 56) /* version 1 writes "none" as a number of pages beyond every memory */
#define ONFAULT 1u /* MLOCK_ONFAULT: counts against the limit, takes no memory */

/* ---- memory ------------------------------------------------------------------------------ */

static void check_memory(struct ctl_doctor *d)
{
    char text[CTL_DOCTOR_TEXT];
    uint64_t total = 0, available = 0;
    struct ctl_check *check;
    int number = ctl_doctor_read(d, "/proc/meminfo", text);

    if (number != 0 || !ctl_doctor_number(text, "MemTotal:", &total) ||
        !ctl_doctor_number(text, "MemAvailable:", &available)) {
        (void)ctl_check_add(d, "memory", CTL_INFO, "unknown: /proc/meminfo: %s",
                            number != 0 ? strerror(number) : "no MemAvailable");
        return;
    }
    total *= 1024;
    available *= 1024;
    if (d->need_bytes > available) {
        check = ctl_check_add(d, "memory", CTL_ERROR,
                              "%" PRIu64 " bytes are needed, %" PRIu64 " are available of %" PRIu64,
                              d->need_bytes, available, total);
        ctl_check_fix(check, "free %" PRIu64 " bytes, lower --context or --batch, or give a --budget of %" PRIu64,
                      d->need_bytes - available, available);
        return;
    }
    (void)ctl_check_add(d, "memory", CTL_OK, "%" PRIu64 " bytes available of %" PRIu64, available,
                        total);
}

static void check_commit(struct ctl_doctor *d)
{
    char text[CTL_DOCTOR_TEXT];
    uint64_t mode = 0, limit = 0, used = 0, arena = d->plan.struct_size != 0 ? d->plan.arena_bytes : 0;
    struct ctl_check *check;

    if (!ctl_doctor_read_number(d, "/proc/sys/vm/overcommit_memory", "", &mode)) {
        (void)ctl_check_add(d, "overcommit", CTL_INFO,
                            "unknown: /proc/sys/vm/overcommit_memory cannot be read");
        return;
    }
    if (mode == 2 && ctl_doctor_read(d, "/proc/meminfo", text) == 0 &&
        ctl_doctor_number(text, "CommitLimit:", &limit) &&
        ctl_doctor_number(text, "Committed_AS:", &used) &&
        (used > limit || arena > (limit - used) * 1024)) {
        check = ctl_check_add(d, "overcommit", CTL_ERROR,
                              "mode 2 leaves %" PRIu64 " bytes to commit, the arena needs %" PRIu64,
                              used > limit ? 0 : (limit - used) * 1024, arena);
        ctl_check_fix(check, "sysctl vm.overcommit_memory=0, or raise vm.overcommit_ratio");
        return;
    }
    (void)ctl_check_add(d, "overcommit", CTL_OK, "mode %" PRIu64, mode);
}

static void check_address_space(struct ctl_doctor *d)
{
    struct rlimit limit;
    struct ctl_check *check;

    if (getrlimit(RLIMIT_AS, &limit) != 0) {
        (void)ctl_check_add(d, "address-space", CTL_INFO, "unknown: getrlimit: %s", strerror(errno));
    } else if (limit.rlim_cur == RLIM_INFINITY) {
        (void)ctl_check_add(d, "address-space", CTL_OK, "unlimited");
    } else if (d->need_bytes > limit.rlim_cur) {
        check = ctl_check_add(d, "address-space", CTL_ERROR,
                              "RLIMIT_AS is %llu, %" PRIu64 " bytes are needed",
                              (unsigned long long)limit.rlim_cur, d->need_bytes);
        ctl_check_fix(check, "ulimit -v unlimited, or LimitAS=infinity in the unit");
    } else {
        (void)ctl_check_add(d, "address-space", CTL_OK, "RLIMIT_AS is %llu",
                            (unsigned long long)limit.rlim_cur);
    }
}

static void check_memory_group(struct ctl_doctor *d)
{
    char membership[512], mount[512], text[CTL_DOCTOR_TEXT];
    int64_t limit, left;
    const char *version;
    struct ctl_check *check;
    int number = ctl_doctor_read(d, "/proc/self/cgroup", text);

    if (number != 0) {
        (void)ctl_check_add(d, "memory-cgroup", CTL_INFO, "unknown: /proc/self/cgroup: %s",
                            strerror(number));
        return;
    }
    version = strstr(text, ":memory:") != NULL ? "version 1"
              : strstr(text, "0::") != NULL    ? "version 2"
                                               : "no";
    (void)snprintf(membership, sizeof membership, "%s/proc/self/cgroup", d->root);
    (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", d->root);
    left = cb_group_available(membership, mount, &limit);
    if (left < 0 || limit >= NO_LIMIT) {
        (void)ctl_check_add(d, "memory-cgroup", CTL_OK, "%s groups, no limit", version);
    } else if (d->need_bytes > (uint64_t)left) {
        check = ctl_check_add(d, "memory-cgroup", CTL_ERROR,
                              "%s: the limit of %lld leaves %lld bytes, %" PRIu64 " are needed",
                              version, (long long)limit, (long long)left, d->need_bytes);
        ctl_check_fix(check, "MemoryMax=%" PRIu64 " in the unit (memory.max of the group), or --budget %lld",
                      d->need_bytes + (uint64_t)(limit - left), (long long)left);
    } else {
        (void)ctl_check_add(d, "memory-cgroup", CTL_OK, "%s: the limit of %lld leaves %lld bytes",
                            version, (long long)limit, (long long)left);
    }
}

/* ---- locks ------------------------------------------------------------------------------- */

/* Asked of the kernel itself: /proc may be hidden. */
static bool may_lock_anything(void)
{
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = { { 0 } };

    return syscall(SYS_capget, &header, data) == 0 &&
           (data[0].effective & (1u << CAP_IPC_LOCK)) != 0;
}

/* For a shell, a service and an account; the first two may be out of reach for this user. */
static void fix_limit(struct ctl_check *check, uint64_t bytes)
{
    if (bytes == 0) {
        ctl_check_fix(check, "LimitMEMLOCK=infinity in the unit, `ulimit -l unlimited` as root before "
                             "the command, or `setcap cap_ipc_lock+ep` on colibrictl");
        return;
    }
    ctl_check_fix(check,
                  "`ulimit -l %" PRIu64 "` before the command (as root, or up to the hard limit), "
                  "LimitMEMLOCK=%" PRIu64 " in the unit, or `setcap cap_ipc_lock+ep` on colibrictl",
                  (bytes + 1023) / 1024, bytes);
}

static void check_lock_limit(struct ctl_doctor *d)
{
    bool capable = may_lock_anything();
    struct rlimit limit;
    struct ctl_check *check;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        (void)ctl_check_add(d, "memlock", CTL_INFO, "unknown: getrlimit: %s", strerror(errno));
    } else if (capable || limit.rlim_cur == RLIM_INFINITY) {
        (void)ctl_check_add(d, "memlock", CTL_OK, "RLIMIT_MEMLOCK is %s, CAP_IPC_LOCK: %s",
                            limit.rlim_cur == RLIM_INFINITY ? "unlimited" : "limited",
                            capable ? "yes" : "no");
    } else if (d->lock_bytes > limit.rlim_cur) {
        check = ctl_check_add(d, "memlock", CTL_ERROR,
                              "RLIMIT_MEMLOCK is %llu (hard limit %lld), CAP_IPC_LOCK: no; %" PRIu64
                              " bytes must be locked, %" PRIu64 " too many",
                              (unsigned long long)limit.rlim_cur, (long long)limit.rlim_max,
                              d->lock_bytes, d->lock_bytes - (uint64_t)limit.rlim_cur);
        fix_limit(check, d->lock_bytes);
    } else if (d->lock_bytes == 0 && limit.rlim_cur < PROBE_BYTES) {
        check = ctl_check_add(d, "memlock", CTL_ERROR,
                              "RLIMIT_MEMLOCK is %llu (hard limit %lld), CAP_IPC_LOCK: no; no model "
                              "fits into that",
                              (unsigned long long)limit.rlim_cur, (long long)limit.rlim_max);
        fix_limit(check, 0);
    } else if (d->lock_bytes == 0) {
        check = ctl_check_add(d, "memlock", CTL_INFO,
                              "RLIMIT_MEMLOCK is %llu, CAP_IPC_LOCK: no; give MODEL to compare",
                              (unsigned long long)limit.rlim_cur);
        fix_limit(check, 0);
    } else {
        (void)ctl_check_add(d, "memlock", CTL_OK,
                            "RLIMIT_MEMLOCK is %llu, %" PRIu64 " bytes must be locked",
                            (unsigned long long)limit.rlim_cur, d->lock_bytes);
    }
}

/* Locks `bytes` of new memory and reads VmLck before and after. 0, an errno, or -1: the lock was
 * accepted, but the kernel counts fewer bytes, *counted. *counted is -1 without /proc. */
static int probe_lock(uint64_t bytes, bool on_fault, int64_t *counted)
{
    bool counts = access("/proc/self/status", R_OK) == 0;
    uint64_t before = ctl_status_bytes("VmLck:"), after;
    void *memory;
    int number = 0;

    *counted = -1;
    if (bytes > SIZE_MAX / 2) {
        return ENOMEM;
    }
    memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return errno;
    }
    if (on_fault ? syscall(SYS_mlock2, memory, (size_t)bytes, ONFAULT) != 0
                 : mlock(memory, (size_t)bytes) != 0) {
        number = errno;
    }
    after = ctl_status_bytes("VmLck:");
    (void)munmap(memory, (size_t)bytes);
    if (number == 0 && counts) {
        *counted = after > before ? (int64_t)(after - before) : 0;
        number = (uint64_t)*counted < bytes ? -1 : 0;
    }
    return number;
}

static void check_lock(struct ctl_doctor *d)
{
    uint64_t bytes = d->lock_bytes > PROBE_BYTES ? d->lock_bytes : PROBE_BYTES;
    int64_t counted;
    struct ctl_check *check;
    int number = probe_lock(PROBE_BYTES, false, &counted);

    if (number == 0 && bytes > PROBE_BYTES) { /* the whole, without taking the memory */
        number = probe_lock(bytes, true, &counted);
        if (number == ENOSYS || number == EINVAL) { /* before Linux 4.4 */
            number = 0;
            bytes = PROBE_BYTES;
        }
    } else {
        bytes = PROBE_BYTES;
    }
    if (number > 0) {
        check = ctl_check_add(d, "lock", CTL_ERROR, "mlock of %" PRIu64 " bytes: %s", bytes,
                              strerror(number));
        if (number == ENOSYS) {
            ctl_check_fix(check, "use a kernel with CONFIG_MMU, or a sandbox that allows mlock");
        } else {
            fix_limit(check, d->lock_bytes);
        }
    } else if (number < 0) {
        check = ctl_check_add(d, "lock", CTL_ERROR,
                              "mlock of %" PRIu64 " bytes succeeds, but VmLck counts %lld: nothing is "
                              "locked",
                              bytes, (long long)counted);
        ctl_check_fix(check, "run outside this sandbox or emulator; its kernel does not lock memory");
    } else if (counted < 0) {
        (void)ctl_check_add(d, "lock", CTL_INFO,
                            "mlock of %" PRIu64 " bytes succeeds; without /proc nobody can verify it",
                            bytes);
    } else {
        (void)ctl_check_add(d, "lock", CTL_OK, "%" PRIu64 " bytes locked, VmLck counts them", bytes);
    }
}

/* ---- what moves memory out ---------------------------------------------------------------- */

/* Whether every swap area is compressed memory, which costs time but no flash. */
static bool only_compressed(const struct ctl_doctor *d)
{
    char text[CTL_DOCTOR_TEXT];
    const char *line;

    if (ctl_doctor_read(d, "/proc/swaps", text) != 0) {
        return false;
    }
    line = strchr(text, '\n');
    while (line != NULL && line[1] != '\0') {
        if (strncmp(line + 1, "/dev/zram", 9) != 0) {
            return false;
        }
        line = strchr(line + 1, '\n');
    }
    return true;
}

static void check_swap(struct ctl_doctor *d)
{
    uint64_t kib = 0, swappiness = 0;
    char how[32] = "unknown";
    struct ctl_check *check;

    if (!ctl_doctor_read_number(d, "/proc/meminfo", "SwapTotal:", &kib)) {
        (void)ctl_check_add(d, "swap", CTL_INFO, "unknown: /proc/meminfo has no SwapTotal");
        return;
    }
    if (kib == 0) {
        (void)ctl_check_add(d, "swap", CTL_OK, "none");
        return;
    }
    if (ctl_doctor_read_number(d, "/proc/sys/vm/swappiness", "", &swappiness)) {
        (void)snprintf(how, sizeof how, "%" PRIu64, swappiness);
    }
    if (only_compressed(d)) {
        (void)ctl_check_add(d, "swap", CTL_INFO, "%" PRIu64 " bytes, compressed memory only; swappiness %s",
                            kib * 1024, how);
        return;
    }
    check = ctl_check_add(d, "swap", CTL_WARNING,
                          "%" PRIu64 " bytes on a disk, swappiness %s: what is not locked can be moved "
                          "out, and swapping competes with reads of the model",
                          kib * 1024, how);
    ctl_check_fix(check, "swapoff -a, or MemorySwapMax=0 in the unit");
}

static const char *result_name(int number, char text[64])
{
    if (number == 0) {
        return "works";
    }
    (void)snprintf(text, 64, "%s", number == ENOSYS ? "ENOSYS" : strerror(number));
    return text;
}

/* What advice about a page of a file gives; without a file, about a page of memory. */
static int try_madvise(int fd)
{
    size_t page = cb_page_bytes();
    void *memory = fd >= 0 ? mmap(NULL, page, PROT_READ, MAP_PRIVATE, fd, 0)
                           : mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int number = 0;

    if (memory == MAP_FAILED) {
        return errno;
    }
    if (madvise(memory, page, fd >= 0 ? MADV_WILLNEED : MADV_NORMAL) != 0) {
        number = errno;
    }
    (void)munmap(memory, page);
    return number;
}

static void check_advice(struct ctl_doctor *d)
{
    char first[64], second[64];
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), mapping, file = EBADF;
    struct ctl_check *check;

    if (fd < 0 && d->path != NULL) {
        fd = open(d->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    }
    mapping = try_madvise(fd);
    if (fd >= 0) {
        file = posix_fadvise(fd, 0, 0, POSIX_FADV_NORMAL);
        (void)close(fd);
    }
    /* without /proc and MODEL there is no file at hand; the two come and go together */
    d->advice = mapping == 0 && (file == 0 || file == EBADF);
    check = ctl_check_add(d, "advice", d->advice ? CTL_OK : CTL_WARNING,
                          "madvise: %s, posix_fadvise: %s", result_name(mapping, first),
                          file == EBADF ? "no file to try" : result_name(file, second));
    if (!d->advice) {
        ctl_check_fix(check, "CONFIG_ADVISE_SYSCALLS=y in the kernel; until then reads start later, and "
                             "without direct reads the page cache keeps what was streamed");
    }
}

void ctl_doctor_memory(struct ctl_doctor *d)
{
    check_memory(d);
    check_memory_group(d);
    check_commit(d);
    check_address_space(d);
    check_lock_limit(d);
    check_lock(d);
    check_swap(d);
    check_advice(d);
}
