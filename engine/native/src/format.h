/* SPDX-License-Identifier: MIT */
/* The container (docs/format.md, 2 and 5): header page, section table, root hash, padding. */
#ifndef CB_FORMAT_H
#define CB_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "spec.h"

#define CB_SECTION_KINDS (CB_SECTION_SIGNATURE + 1)

struct cb_section {
    uint64_t offset;
    uint64_t size;
    uint8_t hash[CB_HASH_BYTES];
    uint32_t present;
};

/* A mapped file whose header and section table hold every rule: offsets and sizes are in bounds. */
struct cb_container {
    const uint8_t *map;
    const uint8_t *tail;  /* what lies at tail_offset: behind the experts, when they are not mapped */
    uint64_t tail_offset;
    uint64_t bytes;
    uint32_t version_major, version_minor;
    uint64_t required, optional;
    uint8_t root[CB_HASH_BYTES];
    struct cb_section sections[CB_SECTION_KINDS]; /* by kind */
};

/* A mapped byte of the file. */
static inline const uint8_t *cb_container_at(const struct cb_container *c, uint64_t offset)
{
    return offset >= c->tail_offset ? c->tail + (size_t)(offset - c->tail_offset)
                                    : c->map + (size_t)offset;
}

/* Reads the first page only. map may be NULL when bytes is 0. */
int cb_container_open(struct cb_container *c, const uint8_t *map, uint64_t bytes,
                      colibri_error *error);
/* Compare the root hash with the header page and these copies of records and directory. */
int cb_container_check_root(const struct cb_container *c, const uint8_t *records,
                            const uint8_t *directory, colibri_error *error);
/* The bytes between sections and behind the last one are zero. */
int cb_container_check_padding(const struct cb_container *c, colibri_error *error);
/* Name of a section kind, for messages. */
const char *cb_section_name(uint32_t kind);

#endif
