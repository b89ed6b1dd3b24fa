/* SPDX-License-Identifier: MIT */
/*
 * The victim is the expert that is least likely to be needed when its layer's turn comes. Layers
 * have their turns in a circle, so time is counted in turns of the expert's own layer: an order of
 * use (LRU) would throw out what is needed next. The chance is learned while running: experts of
 * the same age and rate are counted together. Of equal ones the farthest turn goes first.
 */
#include "expert_cache.h"

#include <string.h>

#include "common.h"

#define ONE (1u << 24)        /* a chance of 1 */
#define RATE_SHIFT 5u         /* a rate forgets half in 22 turns */
#define PRIOR 8u              /* a cell's rate counts like so many observations */
#define MEMORY (1u << 15)     /* observations after which old ones count half */
#define DISTANCE_SHARE 307u   /* of 1024: how much less worth the farthest turn is than the next */
#define UNKNOWN (CB_NONE_INDEX - 1) /* of lowest[]: look again */

static uint64_t expert_bytes(uint32_t layers, uint32_t experts)
{
    return sizeof(struct cb_cache_expert) * (uint64_t)layers * experts;
}

uint64_t cb_cache_bytes(uint32_t layers, uint32_t experts, uint32_t slots)
{
    return expert_bytes(layers, experts) + 4 * (uint64_t)layers +
           sizeof(struct cb_cache_slot) * (uint64_t)slots;
}

static uint32_t log2_floor(uint32_t x)
{
    return 31u - (uint32_t)__builtin_clz(x);
}

/* Ages 0, 1, 2, 3-4, 5-8, 9-16, 17-32, more; rates by half octaves from 2^-8 up. */
static uint8_t cell_of(uint32_t age, uint32_t rate)
{
    uint32_t row = age < 2 ? age : 2 + log2_floor(age - 1), column = 0;

    if (row >= CB_CACHE_AGES)
        row = CB_CACHE_AGES - 1;
    if (rate >= 1u << 16) {
        uint32_t octave = log2_floor(rate);

        column = 2 * (octave - 16) + (rate >> (octave - 1) & 1u);
        if (column >= CB_CACHE_RATES)
            column = CB_CACHE_RATES - 1;
    }
    return (uint8_t)(row * CB_CACHE_RATES + column);
}

/* What was observed, and the middle of the cell's rates as long as little was. */
static void learn(struct cb_cache *c)
{
    uint32_t i;

    for (i = 0; i < CB_CACHE_AGES * CB_CACHE_RATES; i++) {
        uint32_t column = i % CB_CACHE_RATES, middle = (column % 2 == 0 ? 5u : 7u) << (14 + column / 2);

        c->worth[i] = (uint32_t)(((uint64_t)c->needed[i] * ONE + (uint64_t)PRIOR * middle) /
                                 (c->seen[i] + PRIOR));
    }
    if (c->observed <= MEMORY)
        return;
    c->observed = 0;
    for (i = 0; i < CB_CACHE_AGES * CB_CACHE_RATES; i++) {
        c->needed[i] /= 2;
        c->seen[i] /= 2;
        c->observed += c->seen[i];
    }
}

void cb_cache_step(struct cb_cache *c)
{
    uint32_t layer;

    c->turn = CB_NONE_INDEX;
    learn(c);
    for (layer = 0; layer < c->layers; layer++)
        c->lowest[layer] = UNKNOWN;
}

/* All experts of a layer grow older, before those that are needed are young again. */
static void begin_turn(struct cb_cache *c, uint32_t layer)
{
    struct cb_cache_expert *x = c->expert + (size_t)layer * c->experts, *end = x + c->experts;

    if (c->turn != CB_NONE_INDEX && layer < c->turn)
        cb_cache_step(c);
    c->turn = layer;
    for (; x < end; x++) {
        c->seen[x->cell]++;
        x->was = x->cell;
        x->rate -= x->rate >> RATE_SHIFT;
        x->age = (uint8_t)(x->age + (x->age < 255));
        x->cell = cell_of(x->age, x->rate);
    }
    c->observed += c->experts;
    c->lowest[layer] = UNKNOWN;
}

static void make_free(struct cb_cache *c, uint32_t slot)
{
    c->slot[slot].key = CB_NONE_INDEX;
    c->slot[slot].next = c->free;
    c->free = slot;
}

void cb_cache_init(struct cb_cache *c, void *memory, uint32_t layers, uint32_t experts,
                   uint32_t slots)
{
    uint32_t i;

    memset(c, 0, sizeof *c);
    c->layers = layers;
    c->experts = experts;
    c->slots = slots;
    c->free = CB_NONE_INDEX;
    c->expert = memory;
    c->lowest = (void *)((uint8_t *)memory + expert_bytes(layers, experts));
    c->slot = (void *)(c->lowest + layers);
    for (i = 0; i < layers * experts; i++) {
        struct cb_cache_expert x = {CB_NONE_INDEX, 0, 255, cell_of(255, 0), 0, 0};

        c->expert[i] = x;
    }
    for (i = slots; i > 0; i--) {
        c->slot[i - 1].pins = 0;
        make_free(c, i - 1);
    }
    cb_cache_step(c);
}

void cb_cache_profile(struct cb_cache *c, uint32_t layer, const uint32_t *counts, uint32_t experts,
                      uint32_t tokens)
{
    struct cb_cache_expert *x = c->expert + (size_t)layer * c->experts;
    uint32_t i;

    for (i = 0; i < experts; i++) {
        x[i].rate = (uint32_t)((uint64_t)counts[i] * ONE / tokens);
        x[i].cell = cell_of(x[i].age, x[i].rate);
    }
}

uint32_t cb_cache_find(const struct cb_cache *c, uint32_t layer, uint32_t expert)
{
    return c->expert[(size_t)layer * c->experts + expert].slot;
}

/* The least worthy expert of a layer that is in a slot and not pinned, or CB_NONE_INDEX. */
static uint32_t layer_lowest(struct cb_cache *c, uint32_t layer)
{
    uint32_t key = layer * c->experts, end = key + c->experts, best = CB_NONE_INDEX;

    if (c->lowest[layer] != UNKNOWN)
        return c->lowest[layer];
    for (; key < end; key++) {
        const struct cb_cache_expert *x = &c->expert[key];

        if (x->slot == CB_NONE_INDEX || c->slot[x->slot].pins > 0)
            continue;
        if (best == CB_NONE_INDEX || c->worth[x->cell] < c->worth[c->expert[best].cell])
            best = key;
    }
    c->lowest[layer] = best;
    return best;
}

/* Layers from the farthest turn (that of `layer` itself) to the next: the first of equals wins. */
static uint32_t find_victim(struct cb_cache *c, uint32_t layer)
{
    uint32_t best = CB_NONE_INDEX, distance;
    uint64_t least = UINT64_MAX;

    for (distance = c->layers; distance-- > 0;) {
        uint32_t key = layer_lowest(c, (layer + 1 + distance) % c->layers);
        uint64_t worth;

        if (key == CB_NONE_INDEX)
            continue;
        worth = (uint64_t)c->worth[c->expert[key].cell] *
                (1024 - DISTANCE_SHARE * distance / c->layers);
        if (worth < least) {
            least = worth;
            best = key;
        }
    }
    return best;
}

static uint32_t layer_of(const struct cb_cache *c, uint32_t slot)
{
    return c->slot[slot].key / c->experts;
}

uint32_t cb_cache_assign(struct cb_cache *c, uint32_t layer, uint32_t expert)
{
    uint32_t key = layer * c->experts + expert, slot = c->free, victim;

    if (slot != CB_NONE_INDEX) {
        c->free = c->slot[slot].next;
    } else {
        victim = find_victim(c, layer);
        if (victim == CB_NONE_INDEX)
            return CB_NONE_INDEX;
        slot = c->expert[victim].slot;
        c->expert[victim].slot = CB_NONE_INDEX;
        c->lowest[victim / c->experts] = UNKNOWN;
    }
    c->slot[slot].key = key;
    c->expert[key].slot = slot;
    c->lowest[layer] = UNKNOWN;
    return slot;
}

void cb_cache_pin(struct cb_cache *c, uint32_t slot)
{
    if (c->slot[slot].pins++ == 0 && c->slot[slot].key != CB_NONE_INDEX)
        c->lowest[layer_of(c, slot)] = UNKNOWN;
}

void cb_cache_unpin(struct cb_cache *c, uint32_t slot)
{
    if (--c->slot[slot].pins > 0)
        return;
    if (c->slot[slot].key == CB_NONE_INDEX)
        make_free(c, slot);
    else
        c->lowest[layer_of(c, slot)] = UNKNOWN;
}

void cb_cache_used(struct cb_cache *c, uint32_t slot)
{
    uint32_t layer = layer_of(c, slot);
    struct cb_cache_expert *x = &c->expert[c->slot[slot].key];

    if (c->turn != layer)
        begin_turn(c, layer);
    c->needed[x->was]++;
    x->age = 0;
    x->rate += ONE >> RATE_SHIFT;
    x->cell = cell_of(0, x->rate);
    c->lowest[layer] = UNKNOWN;
}

void cb_cache_drop(struct cb_cache *c, uint32_t slot)
{
    if (c->slot[slot].key == CB_NONE_INDEX)
        return;
    c->lowest[layer_of(c, slot)] = UNKNOWN;
    c->expert[c->slot[slot].key].slot = CB_NONE_INDEX;
    c->slot[slot].key = CB_NONE_INDEX;
    if (c->slot[slot].pins == 0)
        make_free(c, slot);
}

int cb_cache_is_used(const struct cb_cache *c, uint32_t slot)
{
    return c->slot[slot].key != CB_NONE_INDEX;
}

void cb_cache_move(struct cb_cache *c, uint32_t from, uint32_t to)
{
    uint32_t *link = &c->free;

    while (*link != to)
        link = &c->slot[*link].next;
    *link = c->slot[to].next;
    c->slot[to].key = c->slot[from].key;
    c->expert[c->slot[to].key].slot = to;
    make_free(c, from);
}
