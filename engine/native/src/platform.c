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
#include <unistd.h>

#include "common.h"
#include "error.h"

/* Half of what a 32-bit process can address is not ours, and the rest is fragmented. */
#define MAPPING_LIMIT_32 (UINT64_C(1) << 30)

static int map_descriptor(struct cb_mapping *m, int fd, const char *path, colibri_error *error)
{
    struct stat st;
    uint64_t bytes;
    void *base;

    if (fstat(fd, &st) != 0)
        return cb_fail(error, COLIBRI_ERR_IO, CB_NO_OFFSET, "cannot stat %s: %s", path,
                       strerror(errno));
    if (!S_ISREG(st.st_mode))
        return cb_fail(error, COLIBRI_ERR_OPEN, CB_NO_OFFSET,
                       "cannot open %s: it is not a regular file", path);
    bytes = (uint64_t)st.st_size;
    if (bytes == 0)
        return 0;
    if (bytes > (sizeof(void *) == 4 ? MAPPING_LIMIT_32 : (uint64_t)SIZE_MAX / 2))
        return cb_fail(error, COLIBRI_ERR_MEMORY, CB_NO_OFFSET,
                       "%s has %llu bytes; a 32-bit process maps at most %llu: use a smaller model "
                       "or a 64-bit system",
                       path, (unsigned long long)bytes, (unsigned long long)MAPPING_LIMIT_32);
    base = mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return cb_fail(error, COLIBRI_ERR_MEMORY, CB_NO_OFFSET, "cannot map %s (%llu bytes): %s",
                       path, (unsigned long long)bytes, strerror(errno));
    m->base = base;
    m->bytes = (size_t)bytes;
    return 0;
}

int cb_map_file(struct cb_mapping *m, const char *path, colibri_error *error)
{
    int fd, code;

    memset(m, 0, sizeof *m);
    /* Non-blocking: a path that is a pipe must not hang the caller. */
    do {
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return cb_fail(error, COLIBRI_ERR_OPEN, CB_NO_OFFSET, "cannot open %s: %s", path,
                       strerror(errno));
    code = map_descriptor(m, fd, path, error);
    (void)close(fd);
    return code;
}

int cb_map_anonymous(struct cb_mapping *m, uint64_t bytes, colibri_error *error)
{
    void *base;

    memset(m, 0, sizeof *m);
    if (bytes > SIZE_MAX / 2)
        return cb_fail(error, COLIBRI_ERR_MEMORY, CB_NO_OFFSET,
                       "the arena needs %llu bytes, more than this process can address: lower "
                       "context_tokens or batch_tokens",
                       (unsigned long long)bytes);
    base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return cb_fail(error, COLIBRI_ERR_MEMORY, CB_NO_OFFSET,
                       "cannot map the arena (%llu bytes): %s; lower context_tokens, batch_tokens "
                       "or max_sessions",
                       (unsigned long long)bytes, strerror(errno));
    m->base = base;
    m->bytes = (size_t)bytes;
    return 0;
}

void cb_unmap(struct cb_mapping *m)
{
    if (m->base != NULL)
        (void)munmap(m->base, m->bytes);
    m->base = NULL;
    m->bytes = 0;
}

unsigned cb_cpu_count(void)
{
    cpu_set_t set;
    long online;

    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int n = CPU_COUNT(&set);

        if (n > 0)
            return (unsigned)n;
    }
    online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (unsigned)online : 1;
}

/* Bytes of a "Name:   123 kB" line of a file of /proc, or -1. */
static int64_t proc_bytes(const char *path, const char *name)
{
    char text[4096];
    size_t have = 0;
    const char *line;
    int64_t kib = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return -1;
    while (have < sizeof text - 1) {
        ssize_t n = read(fd, text + have, sizeof text - 1 - have);

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        have += (size_t)n;
    }
    (void)close(fd);
    text[have] = '\0';
    line = strstr(text, name);
    if (line == NULL)
        return -1;
    for (line += strlen(name); *line == ' ' || *line == '\t'; line++)
        ;
    for (; *line >= '0' && *line <= '9'; line++)
        kib = kib * 10 + (*line - '0');
    return kib * 1024;
}

static int64_t locked_now(void)
{
    return proc_bytes("/proc/self/status", "VmLck:");
}

void cb_lock_begin(struct cb_lock_state *s)
{
    memset(s, 0, sizeof *s);
    s->before = locked_now();
    s->available = proc_bytes("/proc/meminfo", "MemAvailable:");
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
    int64_t now = locked_now(), before = s->before;
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
                       (unsigned long long)limit.rlim_cur, need, (unsigned long long)s->unlocked,
                       (need + 1023) / 1024);
        return;
    }
    (void)snprintf(s->message, sizeof s->message,
                   "mlock: %s; %llu of %llu bytes are not locked; free memory or give the process "
                   "CAP_IPC_LOCK",
                   strerror(s->number), (unsigned long long)s->unlocked, need);
}
