/* SPDX-License-Identifier: MIT */
/*
 * The expert cache's bookkeeping: one expert in one slot, pins hold, nothing is lost.
 * With --trace FILE SLOTS: replay a routing trace (colibri/traces.py) and print the hits, which
 * tests/unit compares with the simulator.
 */
#include <errno.h>
#include <stdlib.h>

#include "check.h"
#include "expert_cache.h"

static uint64_t memory[4096];
static struct cb_cache cache;

static void start(uint32_t layers, uint32_t experts, uint32_t slots)
{
    CHECK(cb_cache_bytes(layers, experts, slots) <= sizeof memory);
    memset(memory, 0xa5, sizeof memory);
    cb_cache_init(&cache, memory, layers, experts, slots);
}

/* What a layer does with an expert. */
static uint32_t need(uint32_t layer, uint32_t expert, int *hit)
{
    uint32_t slot = cb_cache_find(&cache, layer, expert);

    *hit = slot != CB_NONE_INDEX;
    if (!*hit)
        slot = cb_cache_assign(&cache, layer, expert);
    if (slot != CB_NONE_INDEX)
        cb_cache_used(&cache, slot);
    return slot;
}

static void test_an_empty_cache_finds_nothing(void)
{
    uint32_t layer, expert;

    start(3, 5, 4);
    for (layer = 0; layer < 3; layer++) {
        for (expert = 0; expert < 5; expert++)
            CHECK_EQUAL(cb_cache_find(&cache, layer, expert), CB_NONE_INDEX);
    }
}

static void test_an_expert_is_found_where_it_was_put(void)
{
    int hit;
    uint32_t slot;

    start(3, 5, 4);
    slot = need(2, 4, &hit);
    CHECK(!hit && slot < 4);
    CHECK_EQUAL(need(2, 4, &hit), slot);
    CHECK(hit);
    CHECK_EQUAL(cb_cache_find(&cache, 2, 3), CB_NONE_INDEX);
}

static void test_all_slots_are_filled_before_one_is_reused(void)
{
    uint32_t i, seen = 0;
    int hit;

    start(2, 8, 6);
    for (i = 0; i < 6; i++)
        seen |= 1u << need(i % 2, i, &hit);
    CHECK_EQUAL(seen, 0x3f);
    for (i = 0; i < 6; i++)
        CHECK(cb_cache_find(&cache, i % 2, i) != CB_NONE_INDEX);
}

static void test_a_pinned_slot_is_never_a_victim(void)
{
    uint32_t kept, i;
    int hit;

    start(1, 64, 3);
    kept = need(0, 0, &hit);
    cb_cache_pin(&cache, kept);
    for (i = 1; i < 64; i++)
        CHECK(need(0, i, &hit) != kept);
    CHECK_EQUAL(cb_cache_find(&cache, 0, 0), kept);
    cb_cache_unpin(&cache, kept);
}

static void test_no_slot_is_left_when_all_are_pinned(void)
{
    uint32_t i, slot = 0;
    int hit;

    start(1, 8, 3);
    for (i = 0; i < 3; i++) {
        slot = need(0, i, &hit);
        cb_cache_pin(&cache, slot);
    }
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 7), CB_NONE_INDEX);
    cb_cache_pin(&cache, slot); /* pins count */
    cb_cache_unpin(&cache, slot);
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 7), CB_NONE_INDEX);
    cb_cache_unpin(&cache, slot);
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 7), slot);
    CHECK_EQUAL(cb_cache_find(&cache, 0, 2), CB_NONE_INDEX);
}

static void test_a_dropped_expert_is_gone_and_its_slot_is_next(void)
{
    uint32_t slot;
    int hit;

    start(1, 8, 3);
    (void)need(0, 0, &hit);
    slot = need(0, 1, &hit);
    (void)need(0, 2, &hit);
    cb_cache_drop(&cache, slot);
    CHECK_EQUAL(cb_cache_find(&cache, 0, 1), CB_NONE_INDEX);
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 5), slot);
    CHECK(cb_cache_find(&cache, 0, 0) != CB_NONE_INDEX);
    CHECK(cb_cache_find(&cache, 0, 2) != CB_NONE_INDEX);
}

static void test_a_dropped_slot_that_is_pinned_is_given_out_when_it_is_released(void)
{
    uint32_t slot, other;
    int hit;

    start(1, 8, 2);
    slot = need(0, 0, &hit);
    other = need(0, 1, &hit);
    cb_cache_pin(&cache, slot);
    cb_cache_pin(&cache, other);
    cb_cache_drop(&cache, slot);
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 5), CB_NONE_INDEX);
    cb_cache_unpin(&cache, slot);
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 5), slot);
    cb_cache_drop(&cache, slot);
    cb_cache_drop(&cache, slot); /* nothing is there: nothing happens */
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 6), slot);
    cb_cache_pin(&cache, slot);
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 7), CB_NONE_INDEX);
}

static void test_a_moved_expert_is_found_in_its_new_slot(void)
{
    uint32_t slots[3], i;
    int hit;

    start(1, 8, 3);
    for (i = 0; i < 3; i++)
        slots[i] = need(0, i, &hit);
    cb_cache_drop(&cache, slots[1]);
    cb_cache_drop(&cache, slots[0]);
    CHECK(!cb_cache_is_used(&cache, slots[1]) && cb_cache_is_used(&cache, slots[2]));
    cb_cache_move(&cache, slots[2], slots[1]);
    CHECK_EQUAL(cb_cache_find(&cache, 0, 2), slots[1]);
    CHECK(cb_cache_is_used(&cache, slots[1]) && !cb_cache_is_used(&cache, slots[2]));
    cb_cache_pin(&cache, slots[1]);
    /* Both empty slots are given out, and then there is no other. */
    for (i = 3; i < 5; i++) {
        uint32_t slot = cb_cache_assign(&cache, 0, i);

        CHECK(slot == slots[0] || slot == slots[2]);
        cb_cache_pin(&cache, slot);
    }
    CHECK_EQUAL(cb_cache_assign(&cache, 0, 5), CB_NONE_INDEX);
}

/* The two tables describe the same thing, whatever is asked of the cache. */
static void check_tables(void)
{
    uint32_t layer, expert, slot, held = 0, full = 0;

    for (layer = 0; layer < cache.layers; layer++) {
        for (expert = 0; expert < cache.experts; expert++) {
            slot = cb_cache_find(&cache, layer, expert);
            if (slot == CB_NONE_INDEX)
                continue;
            held++;
            CHECK(slot < cache.slots);
            CHECK_EQUAL(cache.slot[slot].key, layer * cache.experts + expert);
        }
    }
    for (slot = 0; slot < cache.slots; slot++)
        full += cache.slot[slot].key != CB_NONE_INDEX;
    CHECK_EQUAL(held, full);
}

static void test_tables_agree_after_any_sequence_of_calls(void)
{
    uint64_t state = 1;
    uint32_t i, pinned[5], pins = 0;

    start(4, 16, 9);
    for (i = 0; i < 20000; i++) {
        uint32_t r, slot, what;
        int hit;

        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        r = (uint32_t)(state >> 33);
        what = r % 16;
        slot = need(i / 8 % 4, r / 16 % 16, &hit);
        if (!CHECK(slot != CB_NONE_INDEX))
            return;
        if (what == 0)
            cb_cache_step(&cache);
        if (what < 4 && pins < 5)
            cb_cache_pin(&cache, pinned[pins++] = slot);
        else if (what < 8 && pins > 0)
            cb_cache_unpin(&cache, pinned[--pins]);
        else if (what == 8 && cache.slot[slot].pins == 0)
            cb_cache_drop(&cache, slot);
        check_tables();
    }
}

static void test_one_slot_serves_every_expert(void)
{
    uint32_t i;
    int hit;

    start(2, 4, 1);
    for (i = 0; i < 100; i++)
        CHECK_EQUAL(need(i % 2, i % 4, &hit), 0);
}

/* ---- the policy --------------------------------------------------------------------------------- */

/* One turn of a layer that needs `count` experts from `first` on; hits out. */
static uint32_t use(uint32_t layer, uint32_t first, uint32_t count)
{
    uint32_t i, hits = 0, slots[8];
    int hit;

    for (i = 0; i < count; i++) {
        slots[i] = need(layer, first + i, &hit);
        cb_cache_pin(&cache, slots[i]);
        hits += hit != 0;
    }
    for (i = 0; i < count; i++)
        cb_cache_unpin(&cache, slots[i]);
    return hits;
}

static void test_fewer_slots_than_a_token_needs_still_hit(void)
{
    uint32_t step, layer, hits = 0;

    start(4, 8, 7); /* a token needs 8: in order of use, every one would be thrown out in time */
    for (step = 0; step < 50; step++) {
        cb_cache_step(&cache);
        for (layer = 0; layer < 4; layer++)
            hits += use(layer, 0, 2);
    }
    CHECK(hits >= 50 * 5);
}

static void test_an_expert_that_is_needed_often_outlives_one_that_was_needed_once(void)
{
    uint32_t step;

    start(1, 64, 4);
    for (step = 0; step < 63; step++) {
        cb_cache_step(&cache);
        CHECK_EQUAL(use(0, 0, 1), step > 0);
        (void)use(0, 1 + step, 1);
    }
    CHECK(cb_cache_find(&cache, 0, 0) != CB_NONE_INDEX);
}

static void test_the_farthest_turn_goes_first_among_equals(void)
{
    uint32_t layer;

    start(3, 4, 3);
    cb_cache_step(&cache);
    for (layer = 0; layer < 3; layer++)
        (void)use(layer, 0, 1);
    cb_cache_step(&cache);
    (void)use(0, 1, 1); /* expert 0 of layer 0 had its turn now and was not needed */
    CHECK_EQUAL(cb_cache_find(&cache, 0, 0), CB_NONE_INDEX);
    CHECK(cb_cache_find(&cache, 1, 0) != CB_NONE_INDEX);
    CHECK(cb_cache_find(&cache, 2, 0) != CB_NONE_INDEX);
}

static void test_a_profile_decides_before_anything_was_seen(void)
{
    static const uint32_t counts[4] = {5, 60, 30, 0};
    uint32_t i;

    start(1, 4, 3);
    cb_cache_profile(&cache, 0, counts, 4, 95);
    for (i = 0; i < 3; i++)
        CHECK(cb_cache_assign(&cache, 0, i) != CB_NONE_INDEX); /* read ahead, not used */
    CHECK(cb_cache_assign(&cache, 0, 3) != CB_NONE_INDEX);
    CHECK_EQUAL(cb_cache_find(&cache, 0, 0), CB_NONE_INDEX);
    CHECK(cb_cache_find(&cache, 0, 1) != CB_NONE_INDEX);
    CHECK(cb_cache_find(&cache, 0, 2) != CB_NONE_INDEX);
}

static void test_a_turn_begins_with_the_layer_when_no_step_is_told(void)
{
    uint32_t i;

    start(2, 4, 4);
    for (i = 0; i < 10; i++) {
        (void)use(0, 0, 1);
        (void)use(1, 0, 1);
    }
    CHECK_EQUAL(cache.expert[0].age, 0);
    CHECK_EQUAL(cache.expert[1].age, 255); /* never */
    (void)use(0, 1, 1);
    CHECK_EQUAL(cache.expert[0].age, 1);
    CHECK_EQUAL(cache.seen[cache.expert[1].was] > 0, 1);
}

/* ---- replay ------------------------------------------------------------------------------------- */

static uint32_t number(FILE *file)
{
    unsigned long value;

    if (fscanf(file, "%lu", &value) != 1 || value > UINT32_MAX) {
        printf("the trace is malformed\n");
        exit(2);
    }
    return (uint32_t)value;
}

/* One layer turn, as the streaming mode does it: what is there is pinned before the rest is asked
 * for; when every slot is pinned, the first ones are released. Hits out. */
static uint32_t turn(struct cb_cache *c, uint32_t layer, uint32_t *ids, uint32_t count,
                     uint32_t *held)
{
    uint32_t hits, pinned = 0, released = 0, i;

    for (i = 0; i < count; i++) {
        uint32_t slot = cb_cache_find(c, layer, ids[i]);

        if (slot == CB_NONE_INDEX)
            continue;
        cb_cache_pin(c, slot);
        cb_cache_used(c, slot);
        held[pinned++] = slot;
        ids[i] = CB_NONE_INDEX; /* done, even when it has to leave in this turn */
    }
    hits = pinned;
    for (i = 0; i < count; i++) {
        uint32_t slot;

        if (ids[i] == CB_NONE_INDEX)
            continue;
        while ((slot = cb_cache_assign(c, layer, ids[i])) == CB_NONE_INDEX)
            cb_cache_unpin(c, held[released++]);
        cb_cache_pin(c, slot);
        cb_cache_used(c, slot);
        held[pinned++] = slot;
    }
    while (released < pinned)
        cb_cache_unpin(c, held[released++]);
    return hits;
}

static int replay(const char *path, const char *slots_text)
{
    static uint32_t ids[CB_MAX_EXPERTS], held[CB_MAX_EXPERTS];
    FILE *file = fopen(path, "r");
    uint32_t slots = (uint32_t)strtoul(slots_text, NULL, 10), layers, experts, steps, step, layer, i;
    uint64_t hits = 0, needs = 0;
    void *space;

    if (file == NULL || slots == 0) {
        printf("cannot replay %s with %s slots: %s\n", path, slots_text, strerror(errno));
        return 2;
    }
    layers = number(file);
    experts = number(file);
    steps = number(file);
    space = malloc((size_t)cb_cache_bytes(layers, experts, slots));
    if (space == NULL || experts > CB_MAX_EXPERTS)
        return 2;
    cb_cache_init(&cache, space, layers, experts, slots);
    for (step = 0; step < steps; step++) {
        cb_cache_step(&cache);
        for (layer = 0; layer < layers; layer++) {
            uint32_t count = number(file);

            if (count > experts)
                return 2;
            for (i = 0; i < count; i++) {
                ids[i] = number(file);
                if (ids[i] >= experts)
                    return 2;
            }
            hits += turn(&cache, layer, ids, count, held);
            needs += count;
        }
    }
    printf("%llu hits of %llu\n", (unsigned long long)hits, (unsigned long long)needs);
    free(space);
    fclose(file);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--trace") == 0)
        return replay(argv[2], argv[3]);
    RUN(test_an_empty_cache_finds_nothing);
    RUN(test_an_expert_is_found_where_it_was_put);
    RUN(test_all_slots_are_filled_before_one_is_reused);
    RUN(test_a_pinned_slot_is_never_a_victim);
    RUN(test_no_slot_is_left_when_all_are_pinned);
    RUN(test_a_dropped_expert_is_gone_and_its_slot_is_next);
    RUN(test_a_dropped_slot_that_is_pinned_is_given_out_when_it_is_released);
    RUN(test_a_moved_expert_is_found_in_its_new_slot);
    RUN(test_tables_agree_after_any_sequence_of_calls);
    RUN(test_one_slot_serves_every_expert);
    RUN(test_fewer_slots_than_a_token_needs_still_hit);
    RUN(test_an_expert_that_is_needed_often_outlives_one_that_was_needed_once);
    RUN(test_the_farthest_turn_goes_first_among_equals);
    RUN(test_a_profile_decides_before_anything_was_seen);
    RUN(test_a_turn_begins_with_the_layer_when_no_step_is_told);
    return RESULT();
}
