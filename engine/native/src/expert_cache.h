/* SPDX-License-Identifier: MIT */
/*
 * Which expert lies in which slot, and which slot the next one takes. Bookkeeping only: no I/O, no
 * locks, no heap; the compute thread alone calls it. Results of inference never depend on it.
 */
#ifndef CB_EXPERT_CACHE_H
#define CB_EXPERT_CACHE_H

#include <stdint.h>

#include "spec.h"

struct cb_cache_slot {
    uint32_t key;        /* layer * experts + expert, or CB_NONE_INDEX: empty */
    uint32_t pins;       /* above 0: being read or computed on, never a victim */
    uint32_t prev, next; /* least recently used first */
};

struct cb_cache {
    uint32_t layers, experts, slots;
    uint32_t oldest, newest;     /* ends of the list of slots */
    uint32_t *where;             /* [layers][experts] slot or CB_NONE_INDEX */
    struct cb_cache_slot *slot;  /* [slots] */
};

/* Bytes that cb_cache_init needs at `memory`, which is 8-byte aligned. */
uint64_t cb_cache_bytes(uint32_t layers, uint32_t experts, uint32_t slots);
void cb_cache_init(struct cb_cache *c, void *memory, uint32_t layers, uint32_t experts,
                   uint32_t slots);
/* Optional, after init: how often each expert of a layer was chosen on a calibration text. */
void cb_cache_profile(struct cb_cache *c, uint32_t layer, const uint32_t *counts);
/* A batch begins. */
void cb_cache_step(struct cb_cache *c);
/* The slot that holds an expert, or CB_NONE_INDEX. Changes nothing. */
uint32_t cb_cache_find(const struct cb_cache *c, uint32_t layer, uint32_t expert);
/* A slot for an expert that is in none; its former tenant is forgotten. CB_NONE_INDEX: all slots
 * are pinned. */
uint32_t cb_cache_assign(struct cb_cache *c, uint32_t layer, uint32_t expert);
void cb_cache_pin(struct cb_cache *c, uint32_t slot);
void cb_cache_unpin(struct cb_cache *c, uint32_t slot);
/* The expert in the slot was needed now (not when it is read ahead). */
void cb_cache_used(struct cb_cache *c, uint32_t slot);
/* The slot's read failed: it is empty. Pins stay. */
void cb_cache_drop(struct cb_cache *c, uint32_t slot);

#endif
