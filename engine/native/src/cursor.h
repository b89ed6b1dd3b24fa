/* SPDX-License-Identifier: MIT */
/*
 * Reading untrusted bytes: a cursor whose first failure sticks, so that a parser reads a whole
 * struct and asks once. A failed cursor yields zeros and never moves.
 */
#ifndef CB_CURSOR_H
#define CB_CURSOR_H

#include <stddef.h>
#include <stdint.h>

struct cb_cursor {
    const uint8_t *base;
    uint64_t file_offset; /* of base[0], for messages */
    size_t size;
    size_t at;
    int failed;
};

void cb_cursor_init(struct cb_cursor *c, const uint8_t *base, size_t size, uint64_t file_offset);
size_t cb_cursor_left(const struct cb_cursor *c);
/* Offset in the file of the next byte. */
int64_t cb_cursor_offset(const struct cb_cursor *c);
/* `size` bytes in place, or NULL. */
const uint8_t *cb_cursor_take(struct cb_cursor *c, size_t size);
/* Copies `size` bytes to out; zeros when there are not that many. */
void cb_cursor_read(struct cb_cursor *c, void *out, size_t size);
uint16_t cb_cursor_u16(struct cb_cursor *c);
uint32_t cb_cursor_u32(struct cb_cursor *c);
uint64_t cb_cursor_u64(struct cb_cursor *c);

/* Index of the first byte that is not zero, or `size`. */
size_t cb_first_nonzero(const uint8_t *bytes, size_t size);

#endif
