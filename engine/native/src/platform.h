/* SPDX-License-Identifier: MIT */
/* The operating system: files, mappings, locks, CPUs. Nothing else calls it, but threads.c. */
#ifndef CB_PLATFORM_H
#define CB_PLATFORM_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"

struct cb_mapping {
    uint8_t *base;
    size_t bytes;
};

/* Map a regular file read-only. An empty file gives base NULL and bytes 0. OPEN, IO, MEMORY. */
int cb_map_file(struct cb_mapping *m, const char *path, colibri_error *error);
/* One zeroed anonymous mapping. */
int cb_map_anonymous(struct cb_mapping *m, uint64_t bytes, colibri_error *error);
void cb_unmap(struct cb_mapping *m);

/* CPUs this process may use, at least 1. */
unsigned cb_cpu_count(void);

/* What locking achieved. */
struct cb_lock_state {
    uint64_t locked, unlocked;
    int number;        /* errno of the first refusal, 0 when none */
    char message[192]; /* empty, or what to do */
};

size_t cb_page_bytes(void);
/* Lock a range (page-aligned base); adds to the state, keeps going after a refusal. */
void cb_lock(struct cb_lock_state *s, const void *base, size_t bytes);
void cb_unlock(const void *base, size_t bytes);
/* Compare with what the kernel says it locked (VmLck), and write the message. `before` is
 * cb_locked_now() before the first cb_lock. */
void cb_lock_finish(struct cb_lock_state *s, int64_t before);
/* Bytes this process has locked (VmLck), or -1 when /proc does not say. */
int64_t cb_locked_now(void);

#endif
