/* SPDX-License-Identifier: MIT */
/*
 * Threads that read expert extents into slots, one pread each, and verify them. Reads go before
 * hashes: storage is what is scarce. The bytes of a slot may be computed on from `loaded` on, while
 * they are verified; what comes of it counts for nothing until cb_reader_take has returned the slot
 * with verdict 0. From cb_reader_submit until then the slot belongs to the reader.
 */
#ifndef CB_READER_H
#define CB_READER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "plan.h"
#include "spec.h"
#include "verify.h"

enum cb_read_cause {
    CB_READ_DATA,     /* the verdict says what is wrong with the bytes */
    CB_READ_ERRNO,    /* `number` of the system call */
    CB_READ_END,      /* the file ends inside the extent */
    CB_READ_CANCELLED /* was never begun */
};

struct cb_read {
    uint8_t *to;             /* page-aligned */
    uint64_t offset, bytes;  /* in the file: an extent and its chunk table */
    struct cb_verdict verdict; /* code 0: all is well; offset: where it stopped */
    uint32_t extent;
    uint32_t next;           /* slot in the same list */
    int32_t number;
    uint8_t verify;          /* CB_VERIFY_HASHES, CB_VERIFY_VALUES */
    uint8_t cause;           /* enum cb_read_cause */
    uint8_t ahead;           /* begun before it was needed, and not needed yet */
    uint8_t busy;            /* the reader has it; only the compute thread looks, as at `wanted` */
    uint8_t wanted;          /* the batch that is computed needs it */
    atomic_uchar loaded;     /* the bytes are there */
};
_Static_assert(sizeof(struct cb_read) <= CB_PLAN_READ_BYTES, "the plan holds a read");

struct cb_read_list {
    uint32_t first, last; /* slots */
};

#define CB_READER_PATH_BYTES 2048u

struct cb_reader {
    const colibri_model *model;
    struct cb_read *reads;  /* [slots] */
    int file, direct;       /* descriptors; direct -1: not to be had */
    uint32_t threads, started, alive; /* alive: those that have begun */
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    struct cb_read_list urgent, ahead, loaded, finished;
    atomic_uint finished_count; /* a hint that spares the lock */
    int stop, waiting;
    int news;               /* a slot was loaded or finished since the last wait */
    uint32_t reading;       /* threads inside pread */
    uint32_t verifying;     /* threads that hash: one is kept for reads */
    uint64_t idle_since_ns; /* when `reading` became 0 */
    uint64_t reads_done, read_bytes, failed, idle_ns, read_ns, hash_ns;
    int advice_errno;       /* of posix_fadvise */
    pthread_t thread[CB_MAX_IO_THREADS];
    char path[CB_READER_PATH_BYTES]; /* empty: too long to be opened again */
};
_Static_assert(sizeof(struct cb_reader) <= CB_PLAN_READER_BYTES, "the plan holds a reader");

/* fd becomes the reader's. A read that O_DIRECT refuses goes through the page cache; this tries
 * one into `slot`. *direct_errno: why, or 0. */
int cb_reader_start(struct cb_reader *r, const colibri_model *m, int fd, const char *path,
                    uint32_t direct_io, uint32_t threads, uint64_t probe_offset, uint8_t *slot,
                    int *direct_errno, colibri_error *error);
void cb_reader_stop(struct cb_reader *r);
/* The fields of the read but `next`, `busy` and the result are set. */
void cb_reader_submit(struct cb_reader *r, uint32_t slot);
/* A slot whose read is over, or CB_NONE_INDEX. */
uint32_t cb_reader_take(struct cb_reader *r);
void cb_reader_read_stats(struct cb_reader *r, colibri_residency_stats *stats);
/* Until a slot is loaded or finished, at most this long. */
void cb_reader_wait(struct cb_reader *r, uint32_t timeout_ms);
/* Reads ahead that have not begun come back as cancelled. */
void cb_reader_cancel_ahead(struct cb_reader *r);
/* When nothing is in flight: look whether the path has the file with this root again. 1: it is read
 * from now on. */
int cb_reader_reopen(struct cb_reader *r, uint64_t bytes, const uint8_t root[CB_HASH_BYTES]);

#endif
