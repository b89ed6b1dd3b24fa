/* SPDX-License-Identifier: MIT */
/* A session's state in memory (docs/format.md, 11): the public calls are in colibri.h. */
#ifndef CB_SNAPSHOT_H
#define CB_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "spec.h"

#define CB_SNAPSHOT_MAGIC { 'C', 'O', 'L', 'I', 'S', 'N', 'P', 0x1a }

/* Behind it: ids[position], logits[vocabulary], states of convolutions, then the KV cache. */
struct cb_snapshot_header {
    uint8_t magic[8];
    uint32_t version, header_bytes;
    uint8_t root[CB_HASH_BYTES]; /* of the model */
    uint32_t kv;                 /* kv_dtypes of format.toml */
    uint32_t position, vocabulary, reserved;
    uint64_t sampled;            /* tokens sampled: the counter of the sampler's generator */
    uint64_t total_bytes;
    uint8_t hash[CB_HASH_BYTES]; /* of everything, with this field zeroed */
};
_Static_assert(sizeof(struct cb_snapshot_header) == CB_SNAPSHOT_HEADER_BYTES, "no padding");

/* The states of all convolutions, then the first `positions` rows of every head of the KV cache: to `out`,
 * or from `in`, or filled with a byte (fill >= 0), or none of them. Their bytes. */
uint64_t cb_session_cache(const colibri_session *s, uint32_t positions, uint8_t *out, const uint8_t *in,
                          int fill);

#endif
