/* SPDX-License-Identifier: MIT */
/* What every file of the library relies on: target checks and size arithmetic. */
#ifndef CB_COMMON_H
#define CB_COMMON_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model files are little-endian and read in place: big-endian targets are not supported"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math breaks the arithmetic contract (docs/arithmetic.md)"
#endif

/* value rounded up to a multiple of align; callers keep value far below 2^63. */
static inline uint64_t cb_up(uint64_t value, uint64_t align)
{
    return (value + align - 1) / align * align;
}

static inline uint32_t cb_up32(uint32_t value, uint32_t align)
{
    return (uint32_t)cb_up(value, align);
}

static inline uint64_t cb_max64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static inline uint64_t cb_min64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Fills for good: for all that a compiler knows, the barrier reads the bytes. Any memset will do. */
static inline void cb_fill(void *memory, int value, size_t bytes)
{
    memset(memory, value, bytes);
    __asm__ volatile("" : : "r"(memory) : "memory");
}

static inline void cb_wipe(void *memory, size_t bytes)
{
    cb_fill(memory, 0, bytes);
}

/* Whether a float32 is finite, wherever it lies: neither infinite nor not a number. */
static inline int cb_is_finite(const void *value)
{
    uint32_t bits;

    memcpy(&bits, value, sizeof bits);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

/* Part `index` of `count` of [0, total): every element belongs to exactly one part. */
static inline void cb_share(size_t total, unsigned index, unsigned count, size_t *first,
                            size_t *last)
{
    *first = (size_t)((uint64_t)total * index / count);
    *last = (size_t)((uint64_t)total * (index + 1u) / count);
}

#endif
