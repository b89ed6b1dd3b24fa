/* SPDX-License-Identifier: MIT */
/*
 * Only in builds with use_builtin_memcpy: the four functions a compiler may call by itself, so that
 * the library takes none of them from a C library whose versions are slow or missing. Hidden: the
 * rest of a process keeps its own. Compiled with -fno-builtin and without loop-to-call
 * transformation, which would make each of them call itself.
 */
#include <stddef.h>
#include <stdint.h>

#define HIDDEN __attribute__((visibility("hidden"), used))

typedef uint64_t __attribute__((may_alias, aligned(1))) word;

HIDDEN void *memcpy(void *restrict to, const void *restrict from, size_t n);
HIDDEN void *memmove(void *to, const void *from, size_t n);
HIDDEN void *memset(void *to, int value, size_t n);
HIDDEN int memcmp(const void *a, const void *b, size_t n);

void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    size_t i = 0;
    for (; n - i >= sizeof(word); i += sizeof(word))
        *(word *)(t + i) = *(const word *)(f + i);
    for (; i < n; i++)
        t[i] = f[i];
    return to;
}

void *memmove(void *to, const void *from, size_t n)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    if ((uintptr_t)t - (uintptr_t)f >= n) { /* also when t lies before f: the difference wraps */
        for (size_t i = 0; i < n; i++)
            t[i] = f[i];
    } else {
        for (size_t i = n; i > 0; i--)
            t[i - 1] = f[i - 1];
    }
    return to;
}

void *memset(void *to, int value, size_t n)
{
    unsigned char *t = to;
    const uint64_t pattern = UINT64_C(0x0101010101010101) * (unsigned char)value;
    size_t i = 0;
    for (; n - i >= sizeof(word); i += sizeof(word))
        *(word *)(t + i) = pattern;
    for (; i < n; i++)
        t[i] = (unsigned char)value;
    return to;
}

int memcmp(const void *a, const void *b, size_t n)
{
    const unsigned char *x = a, *y = b;
    for (size_t i = 0; i < n; i++)
        if (x[i] != y[i])
            return x[i] < y[i] ? -1 : 1;
    return 0;
}
