/* SPDX-License-Identifier: MIT */
/* Hashes, padding and values of sections and extents (docs/format.md, 4 and 5). */
#ifndef CB_VERIFY_H
#define CB_VERIFY_H

#include "colibri.h"
#include "format.h"
#include "threads.h"

/* Hash of a section that the table binds: tokenizer, provenance, calibration. */
int cb_verify_section(const struct cb_container *c, uint32_t kind, colibri_error *error);
enum { CB_VERIFY_HASHES = 1, CB_VERIFY_VALUES = 2 };

/* What was wrong with an extent: enough for a message, without its text. */
struct cb_verdict {
    int32_t code;
    uint32_t role;   /* of the tensor; CB_NONE_INDEX: a chunk, or the chunk table behind the data */
    uint64_t offset; /* in the extent */
};

/* Look at an extent and its chunk table at `data`, on the pool's threads or (NULL) this one. */
int cb_verify_data(const colibri_model *m, struct cb_pool *pool, uint32_t index,
                   const uint8_t *data, unsigned what, struct cb_verdict *v);
int cb_verify_fail(const colibri_model *m, uint32_t index, const struct cb_verdict *v,
                   colibri_error *error);
void cb_verify_mark(colibri_model *m, uint32_t index);
/* An extent in the mapped file, on all threads; remembered, so that it is done once. */
int cb_verify_extent(colibri_model *m, uint32_t index, colibri_error *error);
/* The same where its pages may have been read anew: every time. */
int cb_verify_again(colibri_model *m, uint32_t index, colibri_error *error);
/* Every section, and the first `extents` extents, which are mapped. */
int cb_verify_all(colibri_model *m, uint32_t extents, colibri_error *error);

#endif
