/* SPDX-License-Identifier: MIT */
#include "debug_memory.h"

#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"

/* Differs from byte to byte, so that a shifted copy does not pass. */
static uint8_t pattern(uint32_t i)
{
    return (uint8_t)(0xc5u ^ (i * 0x3bu));
}

int cb_guards_begin(struct cb_guards *g, uint64_t arena_bytes, colibri_error *error)
{
    /* no buffer takes less than this */
    uint64_t most = arena_bytes / (CB_BUFFER_ALIGN + CB_BUFFER_GUARD) + 1;

    memset(g, 0, sizeof *g);
    return cb_map_anonymous(&g->table, most * sizeof(struct cb_guard), error);
}

void cb_guards_end(struct cb_guards *g)
{
    cb_unmap(&g->table);
}

static struct cb_guard *guard_of(const struct cb_guards *g, uint32_t i)
{
    return (struct cb_guard *)(void *)g->table.base + i;
}

void cb_guards_add(struct cb_guards *g, const char *name, uint8_t *buffer, uint64_t size,
                   uint64_t taken)
{
    struct cb_guard *guard;
    uint32_t i;

    if (g->table.base == NULL)
        return;
    guard = guard_of(g, g->count);
    guard->at = buffer + size;
    guard->name = name;
    guard->bytes = (uint32_t)(taken - size);
    guard->number = 0;
    for (i = 0; i < g->count; i++)
        guard->number += strcmp(guard_of(g, i)->name, name) == 0;
    guard->size = size;
    for (i = 0; i < guard->bytes; i++)
        guard->at[i] = pattern(i);
    g->count++;
    g->bytes += guard->bytes;
}

int cb_guards_check(struct cb_guards *g, const uint8_t *base, colibri_error *error)
{
    uint64_t start;
    uint32_t i, k;

    if (g->table.base == NULL)
        return 0;
    start = cb_now_ns();
    for (i = 0; i < g->count; i++) {
        const struct cb_guard *guard = guard_of(g, i);

        for (k = 0; k < guard->bytes && guard->at[k] == pattern(k); k++)
            ;
        if (k < guard->bytes)
            return cb_deny(error, COLIBRI_ERR_INTERNAL,
                           "buffer '%s' number %u (%llu bytes at offset %llu of the arena) was overrun: "
                           "byte %u behind its end changed",
                           guard->name, guard->number, (unsigned long long)guard->size,
                           (unsigned long long)(guard->at - guard->size - base), k);
    }
    g->checks++;
    g->check_ns += cb_now_ns() - start;
    return 0;
}

void cb_guards_wipe(const struct cb_guards *g, void *from, void *to)
{
    uint32_t i;

    if (g->table.base == NULL)
        cb_wipe(from, (size_t)((uint8_t *)to - (uint8_t *)from));
    for (i = 0; i < g->count; i++) {
        const struct cb_guard *guard = guard_of(g, i);
        uint8_t *buffer = guard->at - guard->size;

        if (buffer >= (uint8_t *)from && buffer < (uint8_t *)to)
            cb_wipe(buffer, (size_t)guard->size);
    }
}

void cb_guards_poison(struct cb_guards *g, void *memory, uint64_t bytes)
{
    if (g->table.base == NULL)
        return;
    memset(memory, CB_POISON, (size_t)bytes);
    g->poisoned_bytes += bytes;
}

int cb_model_check_guards(colibri_model *m, colibri_error *error)
{
    return cb_guards_check(&m->arena.guards, m->arena.mapping.base, error);
}

int colibri_model_memory(const colibri_model *m, colibri_memory_report *report)
{
    const struct cb_guards *g;
    uint32_t i;

    if (m == NULL || report == NULL)
        return COLIBRI_ERR_ARGUMENT;
    if (report->struct_size != sizeof *report)
        return COLIBRI_ERR_STRUCT_SIZE;
    g = &m->arena.guards;
    memset(report, 0, sizeof *report);
    report->struct_size = sizeof *report;
    report->secure_mode = m->secure_mode;
    report->guards = g->count;
    report->guard_bytes = g->bytes;
    report->checks = g->checks;
    report->check_ns = g->check_ns;
    report->poisoned_bytes = g->poisoned_bytes;
    for (i = 0; i < m->plan.max_sessions; i++)
        report->sessions_in_use += cb_model_session(m, i)->in_use != 0;
    return 0;
}
