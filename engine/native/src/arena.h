/* SPDX-License-Identifier: MIT */
/*
 * The arena: one anonymous mapping, cut into buffers that begin on a cache line and have 128 bytes
 * behind them that nobody uses: zeros, or a pattern that is checked (debug_memory.h). Its size is
 * planned; nothing is ever given back before the model is closed.
 */
#ifndef CB_ARENA_H
#define CB_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "debug_memory.h"
#include "platform.h"

#define CB_BUFFER_ALIGN 64u
#define CB_BUFFER_GUARD 128u

struct cb_arena {
    struct cb_mapping mapping;
    size_t used;
    int overflow; /* a buffer did not fit: the plan and the allocations differ */
    const char *name; /* of the next buffers, for reports of overruns */
    struct cb_guards guards;
};

/* Bytes that a buffer of `bytes` takes: buf(x) of docs/format.md, 8. */
uint64_t cb_buffer_bytes(uint64_t bytes);
/* Zeroed, 64-byte aligned; NULL (and overflow) when the plan has no room for it. */
void *cb_arena_take(struct cb_arena *a, uint64_t bytes);
/* The same with a name for reports of overruns, a constant; it stays for the next ones. */
void *cb_take(struct cb_arena *a, const char *name, uint64_t bytes);

#endif
