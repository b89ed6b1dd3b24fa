/* SPDX-License-Identifier: MIT */
/*
 * Where the experts are: in the mapped file, or (stream) in slots of the arena that are filled from
 * storage while the experts that are there already are computed. Results never depend on it.
 */
#ifndef CB_RESIDENCY_H
#define CB_RESIDENCY_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "expert_cache.h"
#include "kernels.h"
#include "plan.h"
#include "reader.h"

struct cb_pass;

enum cb_need_state {
    CB_NEED_MISSING, /* in no slot, no slot for it yet */
    CB_NEED_LOADING,
    CB_NEED_READY,
    CB_NEED_RUNNING, /* part of the wave that is computed now */
    CB_NEED_DONE
};

/* An expert that this layer of this batch needs. */
struct cb_need {
    uint32_t expert, slot, state, reserved;
};
_Static_assert(sizeof(struct cb_need) == CB_PLAN_NEED_BYTES, "the plan holds a need");

/* What reads ahead are worth, for single tokens and for batches. */
struct cb_look_value {
    uint32_t accuracy;  /* share of guesses that were right, of 65536 */
    uint64_t window_ns; /* storage idles between the reads of two layers */
    uint64_t read_ns;   /* one expert takes */
};

struct cb_look_ahead {
    float *normed, *logits;      /* [H], [up(X, 8)] */
    struct cb_quantized input;   /* [H] */
    int32_t *ids;                /* [R] */
    uint32_t depth;              /* at most, of the options */
    uint32_t layer, guesses;     /* ids[guesses] of this layer were missing; CB_NONE_INDEX: none */
    uint32_t visits;
    uint32_t credit;             /* layers until misses are a thing of the past */
    uint64_t idle_from_ns;       /* the last read of a layer was over; 0: not known */
    struct cb_look_value value[2];
};

struct cb_residency {
    uint32_t mode;               /* enum colibri_residency */
    uint32_t verify;             /* enum colibri_verify, never AUTO */
    /* stream */
    uint8_t *slots;              /* [n], slot_bytes apart */
    uint64_t slot_bytes;
    uint64_t stall_ns;           /* storage that does not answer for so long has failed */
    struct cb_cache cache;
    struct cb_reader *reader;
    struct cb_read *reads;       /* [n] */
    struct cb_need *needs;       /* [X] */
    uint32_t need_count;
    uint32_t in_flight;          /* reads of any layer, until they are verified */
    uint32_t events;             /* reads that began or ended so far: storage is alive while it grows */
    uint32_t unsettled;          /* ... that this batch computes or computed on */
    uint32_t suspect;            /* a read failed: the file may have been replaced */
    struct cb_read bad;          /* the failed read of this batch, of the lowest extent */
    uint64_t burst_ns;           /* the reads of this layer began */
    uint32_t burst_reads;
    struct cb_quantized grouped; /* [B * R][H] */
    struct cb_look_ahead ahead;
    colibri_residency_stats stats;
    /* mapped-guarded */
    uint8_t *guard_first, *guard_last; /* whole pages of experts alone; NULL: nothing is guarded */
    uint32_t guard_layers;       /* a layer is opened as a whole: too few mappings are allowed */
    int32_t direct_errno;
    char message[192];           /* of the report */
};

/* Take the buffers of the plan, slots aside. */
void cb_residency_take(colibri_model *m);
/* Begin to stream; in mode stream *fd becomes the residency's. Behind cb_model_bind. */
int cb_residency_start(colibri_model *m, int *fd, const char *path,
                       const colibri_model_options *options, colibri_error *error);
/* mapped-guarded: from now on no expert can be read but while it is used. */
int cb_residency_guard(colibri_model *m, colibri_error *error);
void cb_residency_stop(colibri_model *m);
/* Wait until no read is in flight. IO when storage does not answer. */
int cb_residency_quiet(colibri_model *m, colibri_error *error);
/* Verify the experts now (mode stream). */
int cb_residency_verify(colibri_model *m, colibri_error *error);
void cb_residency_read_stats(const colibri_model *m, colibri_residency_stats *stats);

/* A batch begins. */
void cb_experts_begin(struct cb_pass *p);
/* A batch ends with `code`: what it computed on must be verified before anything of it is shown. */
int cb_experts_settle(struct cb_pass *p, int code);
/* The experts of p->l that have tokens are needed; begins to read the ones that are missing. */
void cb_experts_need(struct cb_pass *p);
/* The next experts that can be computed are RUNNING; waits for storage when there is none.
 * *running: how many; 0: all are done. */
int cb_experts_wave(struct cb_pass *p, uint32_t *running);
/* Experts that were RUNNING are done; and, on the way out of a failed layer, all of them. */
void cb_experts_release(struct cb_pass *p, int failed);

/* mapped-guarded: make the experts that have tokens readable, or unreadable again. */
int cb_experts_guard(struct cb_pass *p, int readable);

#endif
