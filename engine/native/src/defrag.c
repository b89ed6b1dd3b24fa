/* SPDX-License-Identifier: MIT */
/*
 * colibri_model_defrag: experts in the lowest slots of the pool, everything locked again. One slot is
 * copied into another at a time, so no memory is needed for it; nothing that a result depends on
 * moves, and nothing is read from storage.
 */
#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"
#include "sandbox.h"

/* Each expert that lies behind an empty slot moves into the lowest of them. */
static void compact(colibri_model *m, colibri_defrag_report *report)
{
    struct cb_residency *r = &m->residency;
    uint32_t low = 0, end = m->plan.expert_slots;

    for (;;) {
        struct cb_read *to, *from;

        while (low < end && cb_cache_is_used(&r->cache, low))
            low++;
        while (low < end && !cb_cache_is_used(&r->cache, end - 1))
            end--;
        if (low >= end)
            break;
        to = &r->reads[low];
        from = &r->reads[end - 1];
        memcpy(r->slots + low * r->slot_bytes, r->slots + (end - 1) * r->slot_bytes,
               (size_t)r->slot_bytes);
        *to = *from; /* whether it was read ahead, and of what */
        to->to = r->slots + low * r->slot_bytes;
        from->ahead = 0;
        cb_cache_move(&r->cache, end - 1, low);
        cb_guards_poison(&m->arena.guards, r->slots + (end - 1) * r->slot_bytes, r->slot_bytes);
        report->moved_slots++;
        report->moved_bytes += r->slot_bytes;
    }
    report->used_slots = low;
}

static int defrag(colibri_model *m, colibri_defrag_report *report, colibri_error *error)
{
    int64_t before = cb_locked_bytes(), after;
    int code = 0;

    if (cb_is_streamed(m)) {
        code = cb_residency_quiet(m, error);
        if (code == 0)
            compact(m, report);
    }
    if (m->lock_policy != COLIBRI_LOCK_OFF && !cb_sandbox_closed())
        cb_model_lock(m); /* verifies with VmLck */
    after = cb_locked_bytes();
    report->locked_bytes = m->lock.locked;
    report->unlocked_bytes = m->lock.unlocked;
    report->relocked_bytes = before >= 0 && after > before ? (uint64_t)(after - before) : 0;
    if (code == 0 && m->lock_policy == COLIBRI_LOCK_REQUIRE && m->lock.unlocked > 0)
        code = cb_deny(error, COLIBRI_ERR_LOCK, "%s", m->lock.message);
    return code;
}

int colibri_model_defrag(colibri_model *m, colibri_defrag_report *report, colibri_error *error)
{
    colibri_defrag_report done;
    int code;

    if (m == NULL || (report != NULL && report->struct_size != sizeof *report))
        return cb_deny(error, m == NULL ? COLIBRI_ERR_ARGUMENT : COLIBRI_ERR_STRUCT_SIZE,
                       "colibri_model_defrag: the model must not be NULL, struct_size must be %zu",
                       sizeof *report);
    code = cb_model_enter(m, "colibri_model_defrag", error);
    if (code != 0)
        return code;
    memset(&done, 0, sizeof done);
    done.struct_size = sizeof done;
    code = defrag(m, &done, error);
    if (code == 0)
        code = cb_model_check_guards(m, error);
    cb_model_leave(m);
    if (report != NULL)
        *report = done;
    return code;
}
