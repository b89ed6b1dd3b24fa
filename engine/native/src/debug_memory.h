/* SPDX-License-Identifier: MIT */
/*
 * COLIBRI_DEBUG_MEMORY: what lies between the buffers of the arena is filled with a pattern and looked
 * at after every call, memory that holds nothing is filled with NaNs, and what was never given back is
 * counted. Off, none of it costs anything.
 */
#ifndef CB_DEBUG_MEMORY_H
#define CB_DEBUG_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "platform.h"

/* A build with -DCOLIBRI_DEBUG_MEMORY has it on whatever the options say. */
#ifdef COLIBRI_DEBUG_MEMORY
#define CB_DEBUG_MEMORY_FORCED 1
#else
#define CB_DEBUG_MEMORY_FORCED 0
#endif

struct cb_guard {
    uint8_t *at;        /* first byte behind the buffer */
    const char *name;
    uint32_t bytes;     /* up to the next buffer */
    uint32_t number;    /* of the buffers of this name, from 0 */
    uint64_t size;      /* of the buffer */
};

struct cb_guards {
    struct cb_mapping table; /* of struct cb_guard, outside the arena: an overrun cannot reach it;
                                base NULL: off */
    uint32_t count;
    uint64_t bytes;          /* of all guards */
    uint64_t checks, check_ns, poisoned_bytes;
};

/* Room for the guards of an arena of so many bytes, taken as it is touched. */
int cb_guards_begin(struct cb_guards *g, uint64_t arena_bytes, colibri_error *error);
void cb_guards_end(struct cb_guards *g);
/* A buffer of `size` bytes begins at `buffer`; the next one `taken` bytes behind that. */
void cb_guards_add(struct cb_guards *g, const char *name, uint8_t *buffer, uint64_t size,
                   uint64_t taken);
/* INTERNAL, naming the first buffer that was overrun; `base` is where the arena begins. */
int cb_guards_check(struct cb_guards *g, const uint8_t *base, colibri_error *error);
/* Wipes the buffers that begin in [from, to) of the arena; not what lies between them, when that is guarded. */
void cb_guards_wipe(const struct cb_guards *g, void *from, void *to);
/* NaN as f16, bf16, f32; as int8 a value the format does not have is next to it. */
#define CB_POISON 0xff
/* Bytes that nobody may read before writing them. */
void cb_guards_poison(struct cb_guards *g, void *memory, uint64_t bytes);

#endif
