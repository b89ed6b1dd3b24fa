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

/* A regular file and its size. OPEN, IO; *fd may be open after a failure. */
int cb_open_file(const char *path, int *fd, uint64_t *bytes, colibri_error *error);
void cb_close_file(int *fd);
/* The file of `fd` once more, past the page cache: a descriptor, or an errno below 0. */
int cb_open_direct(int fd, const char *path);
/* Map a part of a file read-only; offset: on a page. 0 bytes give base NULL. MEMORY. */
int cb_map_range(struct cb_mapping *m, int fd, uint64_t offset, uint64_t bytes, colibri_error *error);
/* 0, or errno. Whole pages. */
int cb_protect(uint8_t *base, size_t bytes, int readable);
/* Mappings that a process may have. */
uint64_t cb_map_count_limit(void);
uint64_t cb_now_ns(void);
/* The largest file that is mapped as a whole. */
uint64_t cb_mapping_limit(void);
/* One zeroed anonymous mapping. */
int cb_map_anonymous(struct cb_mapping *m, uint64_t bytes, colibri_error *error);
void cb_unmap(struct cb_mapping *m);
/* Core dumps leave a mapping out. */
void cb_keep_from_dumps(const struct cb_mapping *m);

/* CPUs this process may use, at least 1: those of its mask, or the whole ones that its control groups
 * grant time for when these are fewer. */
unsigned cb_cpu_count(void);
/* Thousandths of a CPU that the control groups of this process grant, as `membership`
 * (/proc/self/cgroup) names them below `mount` (/sys/fs/cgroup); -1 when none has a quota. */
int64_t cb_group_cpus(const char *membership, const char *mount);
/* Of `count` CPUs: a thread more than is granted would be throttled while the others wait in the barrier. */
static inline unsigned cb_granted_cpus(long count, int64_t granted)
{
    if (granted >= 0 && granted / 1000 < count)
        count = (long)(granted / 1000);
    return count > 0 ? (unsigned)count : 1;
}

/* colibri_bind_big_cores with another /sys/devices/system/cpu. */
int cb_bind_big_cores(const char *folder, uint32_t threads, colibri_error *error);

/* What locking achieved. */
struct cb_lock_state {
    uint64_t locked, unlocked;
    int64_t before;    /* VmLck when locking began, -1: unknown */
    int64_t available; /* bytes that could still be had then, -1: unknown */
    int64_t limit;     /* of the memory cgroup, when that is what `available` comes from; else -1 */
    int short_memory;  /* a range was left alone because it would not fit */
    int number;        /* errno of the first refusal, 0 when none */
    char message[192]; /* empty, or what to do */
};

/* Bytes of this process that the kernel counts as locked (VmLck), -1: unknown. */
int64_t cb_locked_bytes(void);
void cb_lock_begin(struct cb_lock_state *s);

/* What the memory cgroups of this process, as `membership` (/proc/self/cgroup) names them below
 * `mount` (/sys/fs/cgroup), leave it; -1 when none has a limit. *limit: that of the tightest. */
int64_t cb_group_available(const char *membership, const char *mount, int64_t *limit);

/* What a model may take when nobody said: the memory cgroup's rest or 15/16 of MemAvailable, the
 * smaller one; UINT64_MAX when the system does not say. */
uint64_t cb_system_budget(void);

size_t cb_page_bytes(void);
/* Lock a range (page-aligned base); adds to the state, keeps going after a refusal. A range that is
 * larger than the memory that is left is not tried: the kernel would end the process, not the call. */
void cb_lock(struct cb_lock_state *s, const void *base, size_t bytes);
void cb_unlock(const void *base, size_t bytes);
/* Compare with what the kernel says it locked (VmLck), and write the message. */
void cb_lock_finish(struct cb_lock_state *s);

#endif
