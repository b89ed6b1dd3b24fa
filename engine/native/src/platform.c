/* SPDX-License-Identifier: MIT */
#include "platform.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "error.h"
#include "sandbox.h"

/* Half of what a 32-bit process can address is not ours, and the rest is fragmented. */
#define MAPPING_LIMIT_32 (UINT64_C(1) << 30)
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

uint64_t cb_mapping_limit(void)
{
    return sizeof(void *) == 4 ? MAPPING_LIMIT_32 : (uint64_t)SIZE_MAX / 2;
}

/* The sandbox would end the process. */
static int open_unless_closed(const char *path, int flags)
{
    if (!cb_sandbox_closed())
        return open(path, flags);
    errno = EPERM;
    return -1;
}

int cb_open_file(const char *path, int *fd, uint64_t *bytes, colibri_error *error)
{
    struct stat st;

    /* Non-blocking: a path that is a pipe must not hang the caller. */
    do {
        *fd = open_unless_closed(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (*fd < 0 && errno == EINTR);
    if (*fd < 0)
        return cb_deny(error, COLIBRI_ERR_OPEN, "cannot open %s: %s", path,
                       strerror(errno));
    if (fstat(*fd, &st) != 0)
        return cb_deny(error, COLIBRI_ERR_IO, "cannot stat %s: %s", path,
                       strerror(errno));
    if (!S_ISREG(st.st_mode))
        return cb_deny(error, COLIBRI_ERR_OPEN,
                       "cannot open %s: it is not a regular file", path);
    *bytes = (uint64_t)st.st_size;
    return 0;
}

void cb_close_file(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

int cb_open_direct(int fd, const char *path)
{
    struct stat a, b;
    int direct, number;

    direct = open_unless_closed(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
    if (direct < 0)
        return -errno;
    if (fstat(fd, &a) != 0 || fstat(direct, &b) != 0)
        number = errno;
    else if (a.st_dev == b.st_dev && a.st_ino == b.st_ino)
        return direct;
    else
        number = ESTALE; /* the path names another file by now */
    (void)close(direct);
    return -number;
}

int cb_map_range(struct cb_mapping *m, int fd, uint64_t offset, uint64_t bytes, colibri_error *error)
{
    void *base;

    memset(m, 0, sizeof *m);
    if (bytes == 0)
        return 0;
    if (bytes > cb_mapping_limit())
        return cb_deny(error, COLIBRI_ERR_MEMORY,
                       "%llu bytes of the file are to be mapped; a 32-bit process maps at most %llu: "
                       "use residency stream, a smaller model or a 64-bit system",
                       (unsigned long long)bytes, (unsigned long long)cb_mapping_limit());
    base = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    if (base == MAP_FAILED)
        return cb_deny(error, COLIBRI_ERR_MEMORY, "cannot map %llu bytes of the file: %s",
                       (unsigned long long)bytes, strerror(errno));
    m->base = base;
    m->bytes = (size_t)bytes;
    /* A wish, as for the arena: file systems that can (ext4 of Linux 6.16, XFS) read pages of 2 MiB then,
     * and do so ahead; so the header's page must ask for it as well. Else of whole ones: the last would
     * hold more than the range. */
    if (offset == 0)
        (void)madvise(base, m->bytes < HUGE_PAGE_BYTES ? m->bytes : m->bytes & ~(HUGE_PAGE_BYTES - 1),
                      MADV_HUGEPAGE);
    return 0;
}

int cb_protect(uint8_t *base, size_t bytes, int readable)
{
    return mprotect(base, bytes, readable ? PROT_READ : PROT_NONE) == 0 ? 0 : errno;
}

uint64_t cb_now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int cb_map_anonymous(struct cb_mapping *m, uint64_t bytes, colibri_error *error)
{
    void *base;

    memset(m, 0, sizeof *m);
    if (bytes > SIZE_MAX / 2)
        return cb_deny(error, COLIBRI_ERR_MEMORY,
                       "the arena needs %llu bytes, more than this process can address: lower "
                       "context_tokens, batch_tokens or max_text_bytes",
                       (unsigned long long)bytes);
    base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return cb_deny(error, COLIBRI_ERR_MEMORY,
                       "cannot map the arena (%llu bytes): %s; lower context_tokens, batch_tokens, "
                       "max_sessions or max_text_bytes",
                       (unsigned long long)bytes, strerror(errno));
    /* A wish: pages of 2 MiB save the waits for page tables when experts are read from slots. They
     * lie inside the mapping, so they take no more than it does. */
    (void)madvise(base, (size_t)bytes, MADV_HUGEPAGE);
    m->base = base;
    m->bytes = (size_t)bytes;
    return 0;
}

void cb_keep_from_dumps(const struct cb_mapping *m)
{
    (void)madvise(m->base, m->bytes, MADV_DONTDUMP); /* cannot fail: the range is one mapping */
}

void cb_unmap(struct cb_mapping *m)
{
    if (m->base != NULL)
        (void)munmap(m->base, m->bytes);
    m->base = NULL;
    m->bytes = 0;
}

#define TEXT_BYTES 4096u

/* The beginning of a small file, terminated; empty when there is none. */
static void read_text(const char *path, char text[TEXT_BYTES])
{
    size_t have = 0;
    int fd = open_unless_closed(path, O_RDONLY | O_CLOEXEC);

    text[0] = '\0';
    if (fd < 0)
        return;
    while (have < TEXT_BYTES - 1) {
        ssize_t n = read(fd, text + have, TEXT_BYTES - 1 - have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    (void)close(fd);
    text[have] = '\0';
}

/* The number behind the first `name` in a text file, or -1. */
static int64_t number_in(const char *path, const char *name)
{
    char text[TEXT_BYTES];
    const char *at;
    int64_t number = 0;

    read_text(path, text);
    at = strstr(text, name);
    if (at == NULL)
        return -1;
    for (at += strlen(name); *at == ' ' || *at == '\t'; at++)
        ;
    if (*at < '0' || *at > '9')
        return -1; /* "max" */
    for (; *at >= '0' && *at <= '9' && number < INT64_MAX / 16; at++)
        number = number * 10 + (*at - '0');
    return number;
}

/* Bytes of a "Name:   123 kB" line of a file of /proc, or -1. */
static int64_t proc_bytes(const char *path, const char *name)
{
    int64_t kib = number_in(path, name);

    return kib < 0 ? -1 : kib * 1024;
}

uint64_t cb_map_count_limit(void)
{
    int64_t limit = number_in("/proc/sys/vm/max_map_count", "");

    return limit > 0 ? (uint64_t)limit : 65530;
}

/* ---- control groups ------------------------------------------------------------------------------- */

#define GROUP_BYTES 512u /* of the path of a group; a longer one is cut to an ancestor */
/* Held back for what comes behind the locks: stacks, the ids of a prompt; tables are 1/512. */
#define GROUP_RESERVE_BYTES (INT64_C(2) << 20)

/* line: what stands before the path in "number:controllers:path"; folder: below the mount. */
struct group_version {
    const char *line, *folder, *limit, *usage, *active, *inactive;
};

static const struct group_version memory_groups[] = {
    {"0::", "", "memory.max", "memory.current", "\nactive_file ", "\ninactive_file "},
    {":memory:", "/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "\ntotal_active_file ", "\ntotal_inactive_file "},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

/* usage: the period, behind `active`. */
static const struct group_version cpu_groups[] = {
    {"0::", "", "cpu.max", "cpu.max", " ", NULL},
    {":cpu:", "/cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us", "", NULL},
    {"cpu,cpuacct:", "/cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us", "", NULL},
    {",cpu:", "/cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us", "", NULL},
    {NULL, NULL, NULL, NULL, NULL, NULL},
};

/* A group: what its files are called, and where they are. */
struct group {
    const struct group_version *version;
    const char *mount;
    char path[GROUP_BYTES];
};

static int64_t group_number(const struct group *g, const char *file, const char *name)
{
    char path[GROUP_BYTES + 128];

    (void)snprintf(path, sizeof path, "%s%s%s/%s", g->mount, g->version->folder, g->path, file);
    return number_in(path, name);
}

/* What one group leaves, or -1. Like MemAvailable it counts page cache that is not locked as free:
 * the part of the model that is resident already is in `usage`, and locking does not charge it
 * again. */
static int64_t memory_left(const struct group *g, int64_t limit)
{
    int64_t usage = group_number(g, g->version->usage, ""), active, inactive;

    if (usage < 0)
        return -1;
    active = group_number(g, "memory.stat", g->version->active);
    inactive = group_number(g, "memory.stat", g->version->inactive);
    usage -= (active > 0 ? active : 0) + (inactive > 0 ? inactive : 0);
    usage = limit - (usage > 0 ? usage : 0);
    usage -= GROUP_RESERVE_BYTES + usage / 512;
    return usage > 0 ? usage : 0;
}

/* Thousandths of a CPU that one group grants, or -1. */
static int64_t cpu_share(const struct group *g, int64_t quota)
{
    int64_t period = group_number(g, g->version->usage, g->version->active);

    return period <= 0 || quota > INT64_MAX / 1000 ? -1 : quota * 1000 / period;
}

/* The least that `left` says of the groups of this process and their parents, or -1. */
static int64_t tightest_group(const struct group_version *version, const char *membership,
                              const char *mount, int64_t (*left)(const struct group *, int64_t),
                              int64_t *limit)
{
    char text[TEXT_BYTES];
    struct group g;
    int64_t least = -1;
    size_t length;

    *limit = -1;
    g.mount = mount;
    read_text(membership, text);
    for (; version->line != NULL; version++) {
        const char *at = strstr(text, version->line);

        if (at == NULL)
            continue;
        g.version = version;
        at += strlen(version->line);
        for (length = 0; length < GROUP_BYTES - 1 && at[length] != '\0' && at[length] != '\n';)
            length++;
        memcpy(g.path, at, length);
        if (length == GROUP_BYTES - 1)
            g.path[length - 1] = '/'; /* cut below */
        for (;;) { /* the group, then each of its parents */
            int64_t one, rest;

            while (length > 0 && g.path[length - 1] == '/')
                length--;
            g.path[length] = '\0';
            one = group_number(&g, version->limit, "");
            rest = one < 0 ? -1 : left(&g, one);
            if (rest >= 0 && (least < 0 || rest < least)) {
                least = rest;
                *limit = one;
            }
            if (length == 0)
                break;
            while (length > 0 && g.path[length - 1] != '/')
                length--;
        }
    }
    return least;
}

int64_t cb_group_available(const char *membership, const char *mount, int64_t *limit)
{
    return tightest_group(memory_groups, membership, mount, memory_left, limit);
}

int64_t cb_group_cpus(const char *membership, const char *mount)
{
    int64_t quota;

    return tightest_group(cpu_groups, membership, mount, cpu_share, &quota);
}

/* ---- processors ------------------------------------------------------------------------------------- */

unsigned cb_cpu_count(void)
{
    cpu_set_t set;
    long count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;

    if (count <= 0)
        count = sysconf(_SC_NPROCESSORS_ONLN);
    return cb_granted_cpus(count, cb_group_cpus("/proc/self/cgroup", "/sys/fs/cgroup"));
}

static int cannot_bind(colibri_error *error)
{
    return cb_deny(error, COLIBRI_ERR_THREAD,
                   "threads cannot be bound to CPUs: %s; do not ask for big cores", strerror(errno));
}

int cb_bind_big_cores(const char *folder, uint32_t threads, colibri_error *error)
{
    char path[128];
    cpu_set_t set, big;
    int64_t capacity, largest = 0;
    unsigned cpu, count = 0, pass;

    CPU_ZERO(&big);
    if (sched_getaffinity(0, sizeof set, &set) != 0) /* more CPUs than it holds */
        return cannot_bind(error);
    for (pass = 0; pass < 2; pass++) {
        for (cpu = 0; cpu < CPU_SETSIZE; cpu++) {
            if (!CPU_ISSET(cpu, &set))
                continue;
            (void)snprintf(path, sizeof path, "%s/cpu%u/cpu_capacity", folder, cpu);
            capacity = number_in(path, "");
            if (capacity < 0)
                return cb_deny(error, COLIBRI_ERR_THREAD,
                               "big cores are not known: %s has no number; the device tree gives capacity-dmips-mhz, "
                               "or do not ask for big cores", path);
            if (pass == 0) {
                largest = capacity > largest ? capacity : largest;
            } else if (capacity >= largest - largest / 4) {
                CPU_SET(cpu, &big);
                count++;
            }
        }
    }
    if (threads > count)
        return cb_deny(error, COLIBRI_ERR_THREAD,
                       "%u threads are asked for, but there are %u big cores: lower threads", threads, count);
    return sched_setaffinity(0, sizeof big, &big) != 0 ? cannot_bind(error) : 0;
}

int colibri_bind_big_cores(uint32_t threads, colibri_error *error)
{
    return cb_bind_big_cores("/sys/devices/system/cpu", threads, error);
}

uint64_t cb_system_budget(void)
{
    int64_t limit, group = cb_group_available("/proc/self/cgroup", "/sys/fs/cgroup", &limit);
    int64_t available = proc_bytes("/proc/meminfo", "MemAvailable:");
    uint64_t budget = UINT64_MAX;

    if (available >= 0)
        budget = (uint64_t)(available - available / 16);
    if (group >= 0)
        budget = cb_min64(budget, (uint64_t)group);
    return budget;
}

int64_t cb_locked_bytes(void)
{
    return proc_bytes("/proc/self/status", "VmLck:");
}

void cb_lock_begin(struct cb_lock_state *s)
{
    int64_t group, limit;

    memset(s, 0, sizeof *s);
    s->before = cb_locked_bytes();
    s->available = proc_bytes("/proc/meminfo", "MemAvailable:");
    group = cb_group_available("/proc/self/cgroup", "/sys/fs/cgroup", &limit);
    s->limit = -1;
    if (group >= 0 && (s->available < 0 || group < s->available)) {
        s->available = group;
        s->limit = limit;
    }
}

void cb_lock(struct cb_lock_state *s, const void *base, size_t bytes)
{
    int number = ENOMEM;

    if (bytes == 0)
        return;
    if (s->available >= 0 && s->locked + bytes > (uint64_t)s->available) {
        s->short_memory = 1;
    } else if (mlock(base, bytes) == 0) {
        s->locked += bytes;
        return;
    } else {
        number = errno;
    }
    if (s->number == 0)
        s->number = number;
    s->unlocked += bytes;
}

void cb_unlock(const void *base, size_t bytes)
{
    if (bytes > 0)
        (void)munlock(base, bytes);
}

size_t cb_page_bytes(void)
{
    long bytes = sysconf(_SC_PAGESIZE);

    return bytes > 0 ? (size_t)bytes : 4096;
}

void cb_lock_finish(struct cb_lock_state *s)
{
    int64_t now = cb_locked_bytes(), before = s->before;
    unsigned long long need = (unsigned long long)(s->locked + s->unlocked);
    struct rlimit limit;

    /* Some kernels and sandboxes accept mlock and lock nothing. */
    if (s->number == 0 && before >= 0 && now >= 0 && (uint64_t)(now - before) < s->locked) {
        s->unlocked += s->locked - (uint64_t)(now - before);
        s->locked = (uint64_t)(now - before);
        s->number = ENOTSUP;
        (void)snprintf(s->message, sizeof s->message,
                       "mlock succeeded but VmLck shows %lld of %llu bytes: this kernel or sandbox "
                       "does not lock memory",
                       (long long)(now - before), need);
        return;
    }
    if (s->number == 0)
        return;
    if (s->short_memory && s->limit >= 0) {
        (void)snprintf(s->message, sizeof s->message,
                       "%llu of %llu bytes are not locked: the memory cgroup's limit of %lld leaves "
                       "%lld; raise it, lower context_tokens or use a smaller model",
                       (unsigned long long)s->unlocked, need, (long long)s->limit,
                       (long long)s->available);
        return;
    }
    if (s->short_memory) {
        (void)snprintf(s->message, sizeof s->message,
                       "%llu of %llu bytes are not locked: MemAvailable is %lld; free memory, lower "
                       "context_tokens or use a smaller model",
                       (unsigned long long)s->unlocked, need, (long long)s->available);
        return;
    }
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        (void)snprintf(s->message, sizeof s->message,
                       "RLIMIT_MEMLOCK is %llu, needs %llu (short by %llu): `ulimit -l %llu`, "
                       "LimitMEMLOCK=infinity in the unit, or CAP_IPC_LOCK",
                       (unsigned long long)limit.rlim_cur, need,
                       need > limit.rlim_cur ? need - (unsigned long long)limit.rlim_cur : 0,
                       (need + 1023) / 1024);
        return;
    }
    (void)snprintf(s->message, sizeof s->message,
                   "mlock: %s; %llu of %llu bytes are not locked; free memory or give the process "
                   "CAP_IPC_LOCK",
                   strerror(s->number), (unsigned long long)s->unlocked, need);
}
