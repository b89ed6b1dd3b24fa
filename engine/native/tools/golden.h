/* SPDX-License-Identifier: MIT */
/*
 * MODEL.golden.json: what every engine must answer (docs/format.md, section 7). The file is as hostile
 * as a model: its size, the number of cases and every number are bounded, nesting is fixed, and what
 * the format does not name is refused.
 */
#ifndef CTL_GOLDEN_H
#define CTL_GOLDEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../src/spec.h"
#include "colibri.h"

#define CTL_GOLDEN_DIGITS 64u /* of a SHA-256, as the file has it: lower case */

struct ctl_golden_case {
    const int32_t *prompt; /* [prompt_tokens] */
    const int32_t *ids;    /* [id_count], greedy: what must be generated */
    uint32_t prompt_tokens, id_count;
    uint32_t limit_tokens; /* n: id_count, or more when an end token came */
    uint32_t kv;           /* enum colibri_kv */
    const char *logits_sha256; /* [CTL_GOLDEN_DIGITS], in the text */
};

struct ctl_golden {
    const char *root; /* [CTL_GOLDEN_DIGITS], in the text: of the model that the results belong to */
    size_t count;
    struct ctl_golden_case cases[CB_MAX_GOLDEN_CASES];
};

/* The golden file beside a model; false when the name is too long. */
bool ctl_golden_path(const char *model, char *path, size_t capacity);

/* The whole text of a file, which the caller frees. 0 and NULL when there is none. Otherwise 0, or a
 * code with *error filled. */
int ctl_golden_read(const char *path, char **text, size_t *bytes, colibri_error *error);

/* Whether the text is what the signature of the model covers; true when it covers none. */
bool ctl_golden_is_signed(const char *text, size_t bytes, const colibri_report *report);

/* Parses text[bytes], which the result points to; `ids`, [bytes / 2], holds those of the cases. 0, or COLIBRI_ERR_ARGUMENT
 * with a message that names the byte. */
int ctl_golden_parse(struct ctl_golden *golden, const char *text, size_t bytes, int32_t *ids,
                     colibri_error *error);

#endif
