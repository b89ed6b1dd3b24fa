/* SPDX-License-Identifier: MIT */
/*
 * Which expert lies in which slot, and which slot the next one takes. Bookkeeping only: no I/O, no
 * locks, no heap, integers only; the compute thread alone calls it. Results of inference never
 * depend on it. How the policy was chosen, and what lost: docs/routing.md.
 */
#ifndef CB_EXPERT_CACHE_H
#define CB_EXPERT_CACHE_H

#include <stdint.h>

#include "spec.h"

#define CB_CACHE_AGES 8u
#define CB_CACHE_RATES 16u

struct cb_cache_expert {
    uint32_t slot;      /* that holds it, or CB_NONE_INDEX */
    uint32_t rate;      /* share of its layer's turns that needed it, recent ones count more: of 2^24 */
    uint8_t age;        /* turns of its layer since it was needed, 255: long ago or never */
    uint8_t cell, was;  /* of the table of worths: now, and before this turn */
    uint8_t reserved;
};

struct cb_cache_slot {
    uint32_t key;  /* layer * experts + expert, or CB_NONE_INDEX: empty */
    uint32_t pins; /* above 0: being read or computed on, never a victim */
    uint32_t next; /* empty slots are a list */
};

struct cb_cache {
    uint32_t layers, experts, slots;
    uint32_t free;     /* first of the empty slots that are not pinned */
    uint32_t turn;     /* layer whose turn it is, or CB_NONE_INDEX */
    uint32_t observed; /* sum of seen[] */
    struct cb_cache_expert *expert; /* [layers][experts] */
    uint32_t *lowest;               /* [layers] key of the layer's least worthy, or what is known of it */
    struct cb_cache_slot *slot;     /* [slots] */
    /* How often an expert of such an age and rate was needed at its layer's next turn. */
    uint32_t seen[CB_CACHE_AGES * CB_CACHE_RATES], needed[CB_CACHE_AGES * CB_CACHE_RATES];
    uint32_t worth[CB_CACHE_AGES * CB_CACHE_RATES]; /* that chance, of 2^24; fixed during a step */
};

/* Bytes that cb_cache_init needs at `memory`, which is 8-byte aligned. */
uint64_t cb_cache_bytes(uint32_t layers, uint32_t experts, uint32_t slots);
void cb_cache_init(struct cb_cache *c, void *memory, uint32_t layers, uint32_t experts,
                   uint32_t slots);
/* Optional, after init: how often each of a layer's experts was chosen by `tokens` tokens. */
void cb_cache_profile(struct cb_cache *c, uint32_t layer, const uint32_t *counts, uint32_t experts,
                      uint32_t tokens);
/* A batch begins. */
void cb_cache_step(struct cb_cache *c);
/* The slot that holds an expert, or CB_NONE_INDEX. Changes nothing. */
uint32_t cb_cache_find(const struct cb_cache *c, uint32_t layer, uint32_t expert);
/* A slot for an expert that is in none; its former tenant is forgotten. CB_NONE_INDEX: all slots
 * are pinned. Pin the experts that the layer needs and has before asking for others. */
uint32_t cb_cache_assign(struct cb_cache *c, uint32_t layer, uint32_t expert);
void cb_cache_pin(struct cb_cache *c, uint32_t slot);
void cb_cache_unpin(struct cb_cache *c, uint32_t slot);
/* The expert in the slot was needed now (not when it is read ahead), once per turn of its layer. */
void cb_cache_used(struct cb_cache *c, uint32_t slot);
/* The slot's read failed: it is empty. Pins stay. */
void cb_cache_drop(struct cb_cache *c, uint32_t slot);
/* Whether the slot holds an expert. */
int cb_cache_is_used(const struct cb_cache *c, uint32_t slot);
/* The expert in `from` is in `to` now, which was empty; neither is pinned. */
void cb_cache_move(struct cb_cache *c, uint32_t from, uint32_t to);

#endif
