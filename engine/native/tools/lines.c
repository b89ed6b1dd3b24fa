/* SPDX-License-Identifier: MIT */
#include "lines.h"

#include <string.h>

#include "prompt.h"

char *ctl_lines_room(struct ctl_lines *l, size_t *space)
{
    size_t kept = l->held - l->start;

    if (l->held == l->limit && l->start > 0) {
        memmove(l->bytes, l->bytes + l->start, kept);
        ctl_wipe(l->bytes + kept, l->start);
        l->searched -= l->start;
        l->start = 0;
        l->held = kept;
    }
    *space = l->limit - l->held;
    return l->bytes + l->held;
}

void ctl_lines_add(struct ctl_lines *l, size_t count)
{
    l->held += count;
}

char *ctl_lines_text(const struct ctl_lines *l)
{
    return l->bytes + l->start;
}

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') {
            return false;
        }
    }
    return true;
}

bool ctl_lines_next(struct ctl_lines *l)
{
    while (!l->ready) {
        const char *end = memchr(l->bytes + l->searched, '\n', l->held - l->searched);
        const char *line = ctl_lines_text(l);

        if (end == NULL && l->held - l->start == l->limit) {
            bool ended = l->ended;

            ctl_lines_clear(l);
            l->skipping = true;
            l->ended = ended;
            continue;
        }
        if (end == NULL && !l->ended) {
            l->searched = l->held;
            return false;
        }
        l->length = end != NULL ? (size_t)(end - line) : l->held - l->start;
        l->taken = l->length + (end != NULL);
        if (l->taken == 0 && !l->skipping) {
            return false; /* the end of the stream */
        }
        l->too_long = l->skipping;
        l->ready = true;
        if (!l->too_long && is_blank(line, l->length)) {
            ctl_lines_drop(l);
        }
    }
    return true;
}

void ctl_lines_drop(struct ctl_lines *l)
{
    ctl_wipe(l->bytes + l->start, l->taken);
    l->start += l->taken;
    if (l->start == l->held) {
        l->start = 0;
        l->held = 0;
    }
    l->searched = l->start;
    l->ready = false;
    l->too_long = false;
    l->skipping = false;
}

void ctl_lines_clear(struct ctl_lines *l)
{
    char *bytes = l->bytes;
    size_t limit = l->limit;

    ctl_wipe(bytes, l->held);
    *l = (struct ctl_lines){ .bytes = bytes, .limit = limit };
}
