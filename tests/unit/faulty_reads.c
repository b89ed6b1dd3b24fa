/* SPDX-License-Identifier: MIT */
/*
 * Preloaded into a program under test (LD_PRELOAD): its reads fail, come short, are interrupted, take
 * long or do not come at all, as a file that the test writes says. $FAULTY_READS names the file: five int64 in
 * this order. faulty_reads.py is the other side.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum mode { HEALTHY, FAIL, SHORT, INTERRUPT, STALL, SLOW };

struct control {
    volatile int64_t mode;
    volatile int64_t number;     /* FAIL: errno; SHORT: most bytes per read; SLOW: ms */
    volatile int64_t from, to;   /* reads that touch these bytes of a file; elsewhere all is well */
    volatile int64_t hits;       /* counted here, read by the test */
};

static struct control *control;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("FAULTY_READS");
    int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *memory = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (memory == MAP_FAILED)
        abort();
    control = memory;
    (void)close(fd);
}

static void sleep_ms(int64_t ms)
{
    const struct timespec pause = {(time_t)(ms / 1000), (long)(ms % 1000 * 1000000)};

    (void)ppoll(NULL, 0, &pause, NULL); /* which the sandbox lets through */
}

static void sleep_while_stalled(void)
{
    while (control->mode == STALL)
        sleep_ms(10);
}

static int touches(size_t bytes, off64_t at)
{
    return at + (off64_t)bytes > control->from && at < control->to;
}

static ssize_t fault_or(ssize_t (*read_at)(int, void *, size_t, off64_t), int fd, void *to, size_t bytes, off64_t at)
{
    static __thread int interrupted;

    if (!touches(bytes, at) || control->mode == HEALTHY)
        return read_at(fd, to, bytes, at);
    (void)__atomic_add_fetch(&control->hits, 1, __ATOMIC_RELAXED);
    switch (control->mode) {
    case FAIL:
        errno = (int)control->number;
        return -1;
    case SHORT:
        return read_at(fd, to, bytes < (size_t)control->number ? bytes : (size_t)control->number, at);
    case INTERRUPT: /* every other one */
        interrupted = !interrupted;
        errno = EINTR;
        return interrupted ? -1 : read_at(fd, to, bytes, at);
    case STALL:
        sleep_while_stalled();
        break;
    case SLOW:
        sleep_ms(control->number);
        break;
    default:
        break;
    }
    return read_at(fd, to, bytes, at);
}

ssize_t pread64(int fd, void *to, size_t bytes, off64_t at)
{
    static ssize_t (*real)(int, void *, size_t, off64_t);

    if (real == NULL)
        real = (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
    return fault_or(real, fd, to, bytes, at);
}

ssize_t pread(int fd, void *to, size_t bytes, off_t at)
{
    return pread64(fd, to, bytes, at);
}

/* A mapping reads too: it waits as long as reads do. */
void *mmap64(void *address, size_t bytes, int protection, int flags, int fd, off64_t at)
{
    static void *(*real)(void *, size_t, int, int, int, off64_t);

    if (real == NULL)
        real = (void *(*)(void *, size_t, int, int, int, off64_t))dlsym(RTLD_NEXT, "mmap64");
    if (fd >= 0 && control != NULL && control->mode == STALL && touches(bytes, at)) {
        (void)__atomic_add_fetch(&control->hits, 1, __ATOMIC_RELAXED);
        sleep_while_stalled();
    }
    return real(address, bytes, protection, flags, fd, at);
}
