/* SPDX-License-Identifier: MIT */
/* What is well-formed UTF-8 (Unicode, table 3-7), shared by the pre-tokenizer and the detokenizer. */
#ifndef CB_UTF8_H
#define CB_UTF8_H

#include <stdint.h>

/* Bytes of the character that `lead` begins; 0 when no character begins with it. */
static inline uint32_t cb_utf8_bytes(uint8_t lead)
{
    if (lead < 0x80)
        return 1;
    if (lead < 0xc2 || lead > 0xf4)
        return 0;
    return lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

/* Whether `byte` may stand at `index` (1..3) of the character that `lead` begins. */
static inline int cb_utf8_continues(uint8_t lead, uint32_t index, uint8_t byte)
{
    uint8_t low = 0x80, high = 0xbf;

    if (index == 1) {
        if (lead == 0xe0) /* shorter forms exist */
            low = 0xa0;
        else if (lead == 0xed) /* surrogates */
            high = 0x9f;
        else if (lead == 0xf0) /* shorter forms exist */
            low = 0x90;
        else if (lead == 0xf4) /* above U+10FFFF */
            high = 0x8f;
    }
    return byte >= low && byte <= high;
}

#endif
