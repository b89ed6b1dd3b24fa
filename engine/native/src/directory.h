/* SPDX-License-Identifier: MIT */
/* The directory section (docs/format.md, 4): extents, tensors, and what the records ask for. */
#ifndef CB_DIRECTORY_H
#define CB_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "format.h"
#include "records.h"
#include "spec.h"

/* Entries as they are stored. */
struct cb_extent {
    uint32_t kind, layer, expert, reserved;
    uint64_t offset, size;
    uint8_t hash[CB_HASH_BYTES];
};
_Static_assert(sizeof(struct cb_extent) == CB_EXTENT_ENTRY_BYTES, "extent entry: no padding");
_Static_assert(offsetof(struct cb_extent, hash) == 32, "extent entry: hash at 32");

struct cb_tensor {
    uint32_t role, layer, dtype, layout, rows, columns;
    uint64_t offset, size;
    uint32_t scope, reserved;
};
_Static_assert(sizeof(struct cb_tensor) == CB_TENSOR_ENTRY_BYTES, "tensor entry: no padding");
_Static_assert(offsetof(struct cb_tensor, scope) == 40, "tensor entry: scope at 40");

struct cb_directory {
    const uint8_t *extents; /* [extent_count] entries */
    const uint8_t *tensors; /* [tensor_count] entries */
    uint32_t extent_count, tensor_count;
    uint64_t file_offset;   /* of the section */
};

/* bytes: 8-byte aligned, outlives the struct. Checks the counts against the size. */
int cb_directory_open(struct cb_directory *d, const uint8_t *bytes, size_t size,
                      uint64_t file_offset, colibri_error *error);
/* Every rule for every entry. records: the section that cb_records_begin takes. */
int cb_directory_check(const struct cb_directory *d, const struct cb_container *c,
                       const uint8_t *records, colibri_error *error);
void cb_directory_extent(const struct cb_directory *d, uint32_t index, struct cb_extent *extent);
void cb_directory_tensor(const struct cb_directory *d, uint32_t index, struct cb_tensor *tensor);

/* Chunks of a section or extent of `size` bytes, and the bytes of an extent's chunk table. */
uint64_t cb_chunk_count(uint64_t size);
uint64_t cb_chunk_table_bytes(uint64_t size);
/* Stored size of a tensor; 0 when this dtype does not exist in this layout. */
uint64_t cb_tensor_bytes(uint32_t dtype, uint32_t layout, uint32_t rows, uint32_t columns);
/* Bytes of one panel of 8 rows. */
size_t cb_panel_bytes(uint32_t dtype, uint32_t columns);

#endif
