/* SPDX-License-Identifier: MIT */
/* The records section (docs/format.md, 3): read block by block, every rule checked, no memory. */
#ifndef CB_RECORDS_H
#define CB_RECORDS_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "cursor.h"
#include "spec.h"

struct cb_rope_table {
    struct cb_block_rope block;
    const float *inv_freq; /* [pairs], inside the records section */
};

/* The blocks of one layer; only those that the kinds in `layer` name are meaningful, the others are
 * zero. Latent attention has both its own block and, in `attention`, the plain heads that it becomes. */
struct cb_layer_records {
    struct cb_block_layer layer;
    struct cb_block_attention attention;
    struct cb_block_mla mla;
    struct cb_block_short_conv short_conv;
    struct cb_block_ffn ffn;
    struct cb_block_moe moe;
    struct cb_block_shared shared;
    uint32_t has_shared;
};

/* The inputs of a short convolution that the next token needs: f32 [taps - 1][width]. */
static inline uint64_t cb_conv_state_bytes(const struct cb_block_short_conv *c)
{
    return 4 * (uint64_t)(c->taps - 1) * c->width; /* 0 of a layer without */
}

struct cb_records {
    struct cb_block_model model;
    struct cb_rope_table rope[CB_MAX_ROPE_TABLES];
    uint32_t ropes;
    uint32_t layer; /* index of the layer that cb_records_next reads */
    struct cb_cursor cursor;
    /* the block in front of the reader; type 0: the end */
    uint32_t type;
    const uint8_t *payload;
    size_t payload_bytes;
    int64_t offset;
};

/* bytes: 4-byte aligned, must outlive the reader. Reads the model and rope blocks. */
int cb_records_begin(struct cb_records *r, const uint8_t *bytes, size_t size, uint64_t file_offset,
                     colibri_error *error);
/* Read one layer; call it model.layers times. The last call checks that nothing follows. */
int cb_records_next(struct cb_records *r, struct cb_layer_records *layer, colibri_error *error);

#endif
