/* SPDX-License-Identifier: MIT */
/*
 * Tokenizer: BPE of bytes or characters over the tokenizer section of a model file (docs/format.md, 6).
 * The struct holds views into the mapped section; nothing is allocated.
 */
#ifndef CB_TOKENIZER_H
#define CB_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "spec.h"

/* Characters that patterns name, and the end of the text: kinds beside the classes, none of which has these
 * numbers. */
enum { CB_KIND_BLANK = 28, CB_KIND_NEWLINE = 29, CB_KIND_SLASH = 30, CB_KIND_END = 31 };

#define CB_PRETOKENIZER_STEPS 6 /* at most; each splits the pieces of the one before */

struct cb_tokenizer {
    struct cb_tokenizer_header head;
    const uint32_t *offsets;     /* [tokens + 1] into text */
    const uint32_t *merges;      /* [merges][4] left, right, rank, merged; sorted */
    const uint32_t *specials;    /* [specials] */
    const uint32_t *ends;        /* [ends] */
    const uint32_t *literals;    /* [literals] ids by text */
    const uint32_t *classes;     /* [class_ranges][2] */
    const uint32_t *chat_prefix; /* [chat_prefix] */
    const uint32_t *chat_suffix; /* [chat_suffix] */
    const uint32_t *by_text;     /* [tokens - specials] ids by (text, id); NULL without ignore_merges */
    const char *text;            /* [text_bytes] */
    uint32_t byte_ids[256];      /* token of each single byte; UINT32_MAX: left out of the ids */
    uint8_t ascii[128];          /* CB_CLASS_* and CB_KIND_* of the first code points */
    uint32_t space;              /* of sentencepiece_bpe, the token of a space; UINT32_MAX: there is none */
    uint64_t around;             /* of it, symbols at most that come to those of a text; else 0 */
};

/* section: 4-byte aligned, lives as long as the struct. vocabulary: of the model.
 * Checks every rule of docs/format.md section 6: COLIBRI_ERR_TOKENIZER, _LIMIT, _UNSUPPORTED. */
int cb_tokenizer_open(struct cb_tokenizer *t, const uint8_t *section, size_t bytes,
                      uint32_t vocabulary, colibri_error *error);

/* Scratch that cb_tokenizer_encode needs for texts of at most `text_bytes`, `around` among them:
 * 24 * text_bytes. */
size_t cb_tokenizer_scratch_bytes(size_t text_bytes);

/* text: any bytes. *count: capacity in, ids out (0 on error). scratch is 8-byte aligned.
 * COLIBRI_ERR_TEXT_LONG when scratch or ids are too small, _NO_CHAT without a chat form. */
int cb_tokenizer_encode(const struct cb_tokenizer *t, const char *text, size_t length,
                        enum colibri_text form, void *scratch, size_t scratch_bytes, int32_t *ids,
                        size_t *count, colibri_error *error);

/* Where the pre-token ends that starts at text[at]; at < length. ends: zeros at first, then kept from call to
 * call while `at` goes through the text, and through stretches of it one after another. */
size_t cb_pretokenize_next(const struct cb_tokenizer *t, const char *text, size_t at, size_t length,
                           size_t ends[CB_PRETOKENIZER_STEPS]);

/* NULL for an id without text. */
const char *cb_tokenizer_bytes(const struct cb_tokenizer *t, int32_t id, size_t *length);
int cb_tokenizer_is_end(const struct cb_tokenizer *t, int32_t id);
int cb_tokenizer_is_special(const struct cb_tokenizer *t, int32_t id);

#endif
