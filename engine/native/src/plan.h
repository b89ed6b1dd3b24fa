/* SPDX-License-Identifier: MIT */
/* The memory plan (docs/format.md, 8): computed before anything is allocated, to the byte. */
#ifndef CB_PLAN_H
#define CB_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "directory.h"
#include "records.h"

#define CB_PLAN_MODEL_BYTES 16384u
#define CB_PLAN_SESSION_BYTES 512u
#define CB_PLAN_LAYER_BYTES 1024u
#define CB_PLAN_STACK_BYTES 262144u
#define CB_PLAN_PROCESS_BYTES 4194304u
#define CB_PLAN_KERNEL_BYTES 2097152u /* and one page table entry of 8 bytes for each 4 KiB */
#define CB_PLAN_TABLE_SPAN 2097152u   /* what one page of page table maps */
#define CB_PLAN_MERGE_BYTES 24u
#define CB_PLAN_READER_BYTES 4096u
#define CB_PLAN_READ_BYTES 64u /* what is known of a slot's read */
#define CB_PLAN_NEED_BYTES 16u /* an expert that a layer of a batch needs */

/* The maxima that buffers are sized by; names as in docs/format.md. Padded to groups of 32. */
struct cb_shape {
    uint32_t hidden;       /* H */
    uint32_t q, o, kv;     /* Q, O, K */
    uint32_t sinks;        /* 1: a score more than there are positions */
    uint64_t states;       /* of all convolutions, in bytes */
    uint32_t pairs;        /* P: all tables */
    uint32_t inner;        /* F: hidden channels of all experts of a token, or of an FFN */
    uint32_t experts;      /* X */
    uint32_t top_k;        /* R, at least 1 */
    uint32_t logits;       /* V */
    uint32_t layers;       /* L */
    uint32_t input;        /* D = max(H, O) */
    uint64_t extents;
    uint32_t context_tokens; /* of the model */
    uint32_t slots;        /* A: experts of all layers */
    uint64_t slot_bytes;   /* of the largest expert extent and its chunk table */
};

/* Sizes in the file that the plan depends on. */
struct cb_file_sizes {
    uint64_t file, records, directory, experts;
    int has_tokenizer;
};

/* Walk the records (all rules are checked on the way). */
int cb_shape_measure(struct cb_shape *shape, const uint8_t *records, size_t bytes,
                     uint64_t file_offset, colibri_error *error);
/* The slots, of a directory that has been checked. */
void cb_shape_measure_slots(struct cb_shape *shape, const struct cb_directory *directory);
/*
 * plan: context_tokens, batch_tokens, threads, max_sessions, kv, residency, expert_slots and
 * io_threads are set by the caller. Chooses the mode (AUTO) and the slots (0) by the budget;
 * UINT64_MAX: none. BUDGET when the plan exceeds it.
 */
int cb_plan_compute(colibri_plan *plan, const struct cb_shape *shape,
                    const struct cb_file_sizes *sizes, const uint8_t *records,
                    uint32_t max_text_bytes, uint64_t budget, colibri_error *error);
/* Bytes of one position's element in the KV cache. */
uint32_t cb_kv_element_bytes(uint32_t kv);

#endif
