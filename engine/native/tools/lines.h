/* SPDX-License-Identifier: MIT */
/* Lines out of a stream of bytes, in a buffer that never grows: a line that does not fit is skipped. */
#ifndef CTL_LINES_H
#define CTL_LINES_H

#include <stdbool.h>
#include <stddef.h>

struct ctl_lines {
    char *bytes;            /* [limit] */
    size_t limit;           /* of a line with its end */
    size_t start, held;     /* bytes[start..held) came and was not dropped yet */
    size_t searched;        /* there is no line end before it */
    size_t length, taken;   /* of the line at start when it is ready: without and with its end */
    bool ready, too_long;   /* too_long: the line was skipped; what is at start is its last part */
    bool skipping;          /* inside such a line */
    bool ended;             /* nothing will follow: a last line needs no end */
};

/* Where the next bytes go, *space of them; none when the buffer is full of what is not dropped yet. */
char *ctl_lines_room(struct ctl_lines *lines, size_t *space);
/* So many bytes were put there. */
void ctl_lines_add(struct ctl_lines *lines, size_t count);
/* Whether a line is ready: lines->length bytes at ctl_lines_text, or too_long. Blank ones are passed over. */
bool ctl_lines_next(struct ctl_lines *lines);
char *ctl_lines_text(const struct ctl_lines *lines);
/* Wipes the line that is ready; the next one may follow. */
void ctl_lines_drop(struct ctl_lines *lines);
/* Wipes everything: the buffer serves another stream. */
void ctl_lines_clear(struct ctl_lines *lines);

#endif
