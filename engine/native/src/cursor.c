/* SPDX-License-Identifier: MIT */
#include "cursor.h"

#include <string.h>

#include "common.h"

void cb_cursor_init(struct cb_cursor *c, const uint8_t *base, size_t size, uint64_t file_offset)
{
    c->base = base;
    c->file_offset = file_offset;
    c->size = size;
    c->at = 0;
    c->failed = 0;
}

size_t cb_cursor_left(const struct cb_cursor *c)
{
    return c->size - c->at;
}

int64_t cb_cursor_offset(const struct cb_cursor *c)
{
    return (int64_t)(c->file_offset + c->at);
}

const uint8_t *cb_cursor_take(struct cb_cursor *c, size_t size)
{
    const uint8_t *bytes;

    if (c->failed || size > c->size - c->at) {
        c->failed = 1;
        return NULL;
    }
    bytes = c->base + c->at;
    c->at += size;
    return bytes;
}

void cb_cursor_read(struct cb_cursor *c, void *out, size_t size)
{
    const uint8_t *bytes = cb_cursor_take(c, size);

    if (bytes == NULL)
        memset(out, 0, size);
    else
        memcpy(out, bytes, size);
}

uint16_t cb_cursor_u16(struct cb_cursor *c)
{
    uint16_t value;

    cb_cursor_read(c, &value, sizeof value);
    return value;
}

uint32_t cb_cursor_u32(struct cb_cursor *c)
{
    uint32_t value;

    cb_cursor_read(c, &value, sizeof value);
    return value;
}

uint64_t cb_cursor_u64(struct cb_cursor *c)
{
    uint64_t value;

    cb_cursor_read(c, &value, sizeof value);
    return value;
}

size_t cb_first_nonzero(const uint8_t *bytes, size_t size)
{
    size_t i = 0;

    for (; size - i >= 8; i += 8) {
        uint64_t word;

        memcpy(&word, bytes + i, sizeof word);
        if (word != 0)
            break;
    }
    while (i < size && bytes[i] == 0)
        i++;
    return i;
}
