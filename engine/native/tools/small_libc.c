/* SPDX-License-Identifier: MIT */
/* Plain versions of what the commands and the library take from libc besides stdio, for static
 * programs (small_stdio.c says why). None is called often: a libc's versions are fast where it does
 * not matter here, and large. memcpy, memset, memcmp, memchr and strlen stay libc's.
 *
 * Memory: each allocation is a mapping of its own. The commands make a dozen, for whole texts. */
#include <errno.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- texts ------------------------------------------------------------------------------- */

char *strchr(const char *text, int c)
{
    for (;; text++) {
        if (*text == (char)c) {
            return (char *)(uintptr_t)text;
        }
        if (*text == '\0') {
            return NULL;
        }
    }
}

char *strrchr(const char *text, int c)
{
    const char *found = NULL;

    do {
        found = *text == (char)c ? text : found;
    } while (*text++ != '\0');
    return (char *)(uintptr_t)found;
}

int strncmp(const char *a, const char *b, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (a[i] != b[i] || a[i] == '\0') {
            return (unsigned char)a[i] - (unsigned char)b[i];
        }
    }
    return 0;
}

int strcmp(const char *a, const char *b)
{
    return strncmp(a, b, SIZE_MAX);
}

/* Length of the beginning of text whose bytes all are (wanted) or are not in set. */
static size_t span(const char *text, const char *set, _Bool wanted)
{
    size_t length = 0;

    while (text[length] != '\0' && (strchr(set, text[length]) != NULL) == wanted) {
        length++;
    }
    return length;
}

size_t strspn(const char *text, const char *set)
{
    return span(text, set, 1);
}

size_t strcspn(const char *text, const char *set)
{
    return span(text, set, 0);
}

void *memmem(const void *bytes, size_t size, const void *wanted, size_t length)
{
    const char *at = bytes;

    for (; size >= length; size--, at++) {
        if (memcmp(at, wanted, length) == 0) {
            return (void *)(uintptr_t)at;
        }
    }
    return NULL;
}

char *strstr(const char *text, const char *wanted)
{
    return memmem(text, strlen(text), wanted, strlen(wanted));
}

char *getenv(const char *name)
{
    size_t length = strlen(name);

    for (char **at = environ; at != NULL && *at != NULL; at++) {
        if (strncmp(*at, name, length) == 0 && (*at)[length] == '=') {
            return *at + length + 1;
        }
    }
    return NULL;
}

/* ---- numbers of the system ----------------------------------------------------------------- */

long sysconf(int name)
{
    cpu_set_t set;

    switch (name) {
    case _SC_PAGESIZE:
        return (long)getauxval(AT_PAGESZ);
    case _SC_NPROCESSORS_ONLN: /* as musl counts them */
        return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    default:
        errno = EINVAL;
        return -1;
    }
}

/* musl's asks every thread on kernels before 2.6.36. rlim_t has 64 bits there on every target. */
int setrlimit(int resource, const struct rlimit *limit)
{
    return (int)syscall(SYS_prlimit64, 0, resource, limit, NULL);
}

/* ---- memory ------------------------------------------------------------------------------ */

/* Right before what the caller gets. */
struct header {
    void *base;
    size_t mapped, size;
};

#define HEADER_BYTES 64u /* and the alignment that callers may count on */

static struct header *header_of(void *memory)
{
    return (struct header *)(void *)((char *)memory - HEADER_BYTES);
}

static void *allocate(size_t size, size_t align)
{
    size_t mapped = size + align + HEADER_BYTES;
    char *base, *memory;

    if (size > PTRDIFF_MAX || align > PTRDIFF_MAX / 2 || mapped > PTRDIFF_MAX) {
        errno = ENOMEM;
        return NULL;
    }
    base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        return NULL;
    }
    memory = base + HEADER_BYTES;
    memory += (0 - (uintptr_t)memory) & (align - 1);
    *header_of(memory) = (struct header){ .base = base, .mapped = mapped, .size = size };
    return memory;
}

void *malloc(size_t size)
{
    return allocate(size, HEADER_BYTES);
}

void free(void *memory)
{
    int number = errno;

    if (memory != NULL) {
        (void)munmap(header_of(memory)->base, header_of(memory)->mapped);
    }
    errno = number;
}

void *calloc(size_t count, size_t size)
{
    return size != 0 && count > PTRDIFF_MAX / size ? malloc(SIZE_MAX) : malloc(count * size);
}

void *realloc(void *memory, size_t size)
{
    void *moved = malloc(size);

    if (moved != NULL && memory != NULL) {
        size_t old = header_of(memory)->size;

        memcpy(moved, memory, old < size ? old : size);
        free(memory);
    }
    return moved;
}

void *aligned_alloc(size_t align, size_t size)
{
    return allocate(size, align);
}

int posix_memalign(void **memory, size_t align, size_t size)
{
    *memory = allocate(size, align);
    return *memory != NULL ? 0 : ENOMEM;
}
