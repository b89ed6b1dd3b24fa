/* SPDX-License-Identifier: MIT */
/* Seeded edits of a text, for fuzz targets of text formats that run without a fuzzer. */
#ifndef FUZZ_TEXT_H
#define FUZZ_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "sampler.h"

/*
 * Up to five insertions, deletions, cuts and replacements with characters of alphabet[letters]; text has
 * room for five more than `size`. Draws from (seed, *counter) on. The new size.
 */
static inline size_t fuzz_edit_text(uint8_t *text, size_t size, const char *alphabet, size_t letters,
                                    uint64_t seed, uint64_t *counter)
{
    for (uint64_t edits = cb_random(seed, (*counter)++) % 6; edits > 0 && size > 0; edits--) {
        size_t at = (size_t)(cb_random(seed, (*counter)++) % size);
        char c = alphabet[cb_random(seed, (*counter)++) % letters];

        switch (cb_random(seed, (*counter)++) % 4) {
        case 0: /* insert */
            memmove(text + at + 1, text + at, size - at);
            size++;
            text[at] = (uint8_t)c;
            break;
        case 1: /* delete */
            memmove(text + at, text + at + 1, size - at - 1);
            size--;
            break;
        case 2: /* cut */
            size = cb_random(seed, (*counter)++) % 8 == 0 ? at : size;
            break;
        default:
            text[at] = (uint8_t)c;
            break;
        }
    }
    return size;
}

#endif
