/* SPDX-License-Identifier: MIT */
/* How a text goes on: the options that run and ask share, and the text on its way out. */
#ifndef CTL_SAMPLING_H
#define CTL_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "options.h"

struct ctl_sampling {
    uint32_t tokens, top_k;
    float temperature, top_p, min_p;
    uint64_t seed;
    bool ignore_end;
};

extern const struct ctl_option ctl_sampling_options[];
extern const size_t ctl_sampling_option_count;

/* Standard output. Begin with ctl_text_begin. */
struct ctl_text {
    bool terminal; /* a person reads: no byte of the text may steer what shows it */
    bool newline_last;
};

void ctl_text_begin(struct ctl_text *text);
/* Whole characters. 0, or a negative code with *error filled. */
int ctl_text_write(struct ctl_text *text, const char *bytes, size_t length, colibri_error *error);
/* A line end for a person at a terminal. */
int ctl_text_end(struct ctl_text *text, colibri_error *error);

#endif
