/* SPDX-License-Identifier: MIT */
#include "arena.h"

#include "common.h"

uint64_t cb_buffer_bytes(uint64_t bytes)
{
    return cb_up(bytes, CB_BUFFER_ALIGN) + CB_BUFFER_GUARD;
}

void *cb_arena_take(struct cb_arena *a, uint64_t bytes)
{
    uint64_t need = cb_buffer_bytes(bytes);
    uint8_t *buffer;

    if (need > a->mapping.bytes - a->used) {
        a->overflow = 1;
        return NULL;
    }
    buffer = a->mapping.base + a->used;
    a->used += (size_t)need;
    cb_guards_add(&a->guards, a->name, buffer, bytes, need);
    return buffer;
}

void *cb_take(struct cb_arena *a, const char *name, uint64_t bytes)
{
    a->name = name;
    return cb_arena_take(a, bytes);
}
