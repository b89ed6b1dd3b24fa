/* SPDX-License-Identifier: MIT */
#include "expert_cache.h"

#include <string.h>

#include "common.h"

static uint64_t where_bytes(uint32_t layers, uint32_t experts)
{
    return cb_up(4 * (uint64_t)layers * experts, 8);
}

uint64_t cb_cache_bytes(uint32_t layers, uint32_t experts, uint32_t slots)
{
    return where_bytes(layers, experts) + sizeof(struct cb_cache_slot) * (uint64_t)slots;
}

static void unlink_slot(struct cb_cache *c, uint32_t i)
{
    const struct cb_cache_slot *s = &c->slot[i];

    if (s->prev == CB_NONE_INDEX)
        c->oldest = s->next;
    else
        c->slot[s->prev].next = s->next;
    if (s->next == CB_NONE_INDEX)
        c->newest = s->prev;
    else
        c->slot[s->next].prev = s->prev;
}

static void link_newest(struct cb_cache *c, uint32_t i)
{
    c->slot[i].prev = c->newest;
    c->slot[i].next = CB_NONE_INDEX;
    if (c->newest == CB_NONE_INDEX)
        c->oldest = i;
    else
        c->slot[c->newest].next = i;
    c->newest = i;
}

static void link_oldest(struct cb_cache *c, uint32_t i)
{
    c->slot[i].next = c->oldest;
    c->slot[i].prev = CB_NONE_INDEX;
    if (c->oldest == CB_NONE_INDEX)
        c->newest = i;
    else
        c->slot[c->oldest].prev = i;
    c->oldest = i;
}

void cb_cache_init(struct cb_cache *c, void *memory, uint32_t layers, uint32_t experts,
                   uint32_t slots)
{
    uint32_t i;

    c->layers = layers;
    c->experts = experts;
    c->slots = slots;
    c->oldest = CB_NONE_INDEX;
    c->newest = CB_NONE_INDEX;
    c->where = memory;
    c->slot = (void *)((uint8_t *)memory + where_bytes(layers, experts));
    memset(c->where, 0xff, 4 * (size_t)layers * experts);
    for (i = 0; i < slots; i++) {
        c->slot[i].key = CB_NONE_INDEX;
        c->slot[i].pins = 0;
        link_newest(c, i);
    }
}

void cb_cache_profile(struct cb_cache *c, uint32_t layer, const uint32_t *counts)
{
    (void)c;
    (void)layer;
    (void)counts;
}

void cb_cache_step(struct cb_cache *c)
{
    (void)c;
}

uint32_t cb_cache_find(const struct cb_cache *c, uint32_t layer, uint32_t expert)
{
    return c->where[(size_t)layer * c->experts + expert];
}

uint32_t cb_cache_assign(struct cb_cache *c, uint32_t layer, uint32_t expert)
{
    uint32_t i = c->oldest, key = layer * c->experts + expert;

    while (i != CB_NONE_INDEX && c->slot[i].pins > 0)
        i = c->slot[i].next;
    if (i == CB_NONE_INDEX)
        return i;
    if (c->slot[i].key != CB_NONE_INDEX)
        c->where[c->slot[i].key] = CB_NONE_INDEX;
    c->slot[i].key = key;
    c->where[key] = i;
    unlink_slot(c, i);
    link_newest(c, i);
    return i;
}

void cb_cache_pin(struct cb_cache *c, uint32_t slot)
{
    c->slot[slot].pins++;
}

void cb_cache_unpin(struct cb_cache *c, uint32_t slot)
{
    c->slot[slot].pins--;
}

void cb_cache_used(struct cb_cache *c, uint32_t slot)
{
    unlink_slot(c, slot);
    link_newest(c, slot);
}

void cb_cache_drop(struct cb_cache *c, uint32_t slot)
{
    if (c->slot[slot].key != CB_NONE_INDEX)
        c->where[c->slot[slot].key] = CB_NONE_INDEX;
    c->slot[slot].key = CB_NONE_INDEX;
    unlink_slot(c, slot);
    link_oldest(c, slot);
}
