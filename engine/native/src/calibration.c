/* SPDX-License-Identifier: MIT */
#include "calibration.h"

#include "common.h"
#include "error.h"
#include "model.h"

struct reading {
    const struct cb_calibration *c;
    const uint8_t *base;
    uint64_t file_offset;
    colibri_error *error;
};

/* Every rule has the same code; the message names the place and the two values that differ. */
static int refuse(const struct reading *r, const void *at, const char *what, uint64_t found,
                  uint64_t limit)
{
    return cb_fail(r->error, COLIBRI_ERR_CALIBRATION,
                   (int64_t)(r->file_offset + (uint64_t)((const uint8_t *)at - r->base)),
                   "calibration profile: %s: %llu against %llu; run colibri calibrate again", what,
                   (unsigned long long)found, (unsigned long long)limit);
}

/* Each layer with experts has an entry that says what its record says. */
static int check_layers(const struct reading *r, const colibri_model *m, uint64_t *experts,
                        uint64_t *pairs)
{
    const struct cb_calibration_layer *l = r->c->layers;
    uint32_t layer, n = 0;

    for (layer = 0; layer < m->block.layers; layer++) {
        const struct cb_layer_records *record = &cb_model_layer(m, layer)->r;

        if (record->layer.ffn_kind != CB_FFN_MOE)
            continue;
        if (n == r->c->layer_count)
            return refuse(r, r->base, "layers are missing", n, (uint64_t)n + 1);
        if (l[n].layer != layer)
            return refuse(r, &l[n].layer, "layer", l[n].layer, layer);
        if (l[n].experts != record->moe.experts)
            return refuse(r, &l[n].experts, "experts", l[n].experts, record->moe.experts);
        if (l[n].top_k != record->moe.top_k)
            return refuse(r, &l[n].top_k, "top_k", l[n].top_k, record->moe.top_k);
        *experts += l[n].experts;
        *pairs += l[n].pairs;
        n++;
    }
    return n == r->c->layer_count ? 0 : refuse(r, r->base, "layers", r->c->layer_count, n);
}

static int check_counts(const struct reading *r, const struct cb_calibration_layer *l,
                        const uint32_t *counts)
{
    uint64_t sum = 0, wanted = (uint64_t)r->c->tokens * l->top_k;
    uint32_t e;

    for (e = 0; e < l->experts; e++) {
        if (counts[e] > r->c->tokens)
            return refuse(r, &counts[e], "count above the tokens", counts[e], r->c->tokens);
        sum += counts[e];
    }
    return sum == wanted ? 0 : refuse(r, counts, "sum of counts, tokens x top_k", sum, wanted);
}

/* pairs: [l->pairs][2], expert << 16 | expert of the next layer, and how often. next NULL: none. */
static int check_pairs(const struct reading *r, const struct cb_calibration_layer *l,
                       const struct cb_calibration_layer *next, const uint32_t *counts,
                       const uint32_t *pairs)
{
    uint32_t i, row = 0;

    if (next == NULL && l->pairs > 0)
        return refuse(r, &l->pairs, "pairs of the last layer", l->pairs, 0);
    for (i = 0; i < l->pairs; i++, pairs += 2) {
        uint32_t from = pairs[0] >> 16, to = pairs[0] & 0xffffu, limit;

        if (from >= l->experts)
            return refuse(r, pairs, "expert of a pair", from, l->experts);
        if (to >= next->experts)
            return refuse(r, pairs, "next expert of a pair", to, next->experts);
        if (i > 0 && pairs[0] <= pairs[-2])
            return refuse(r, pairs, "pairs must ascend", pairs[0], pairs[-2]);
        row = i > 0 && pairs[-2] >> 16 == from ? row + 1 : 1;
        if (row > CB_MAX_CALIBRATION_FOLLOWERS)
            return refuse(r, pairs, "pairs of an expert", row, CB_MAX_CALIBRATION_FOLLOWERS);
        limit = (uint32_t)cb_min64(counts[from], counts[l->experts + to]);
        if (pairs[1] == 0 || pairs[1] > limit)
            return refuse(r, pairs + 1, "count of a pair", pairs[1], limit);
    }
    return 0;
}

int cb_calibration_open(struct cb_calibration *c, const void *data, size_t bytes,
                        uint64_t file_offset, const colibri_model *m, colibri_error *error)
{
    const struct cb_calibration_header *h = data;
    struct reading r = {c, data, file_offset, error};
    const uint32_t *counts, *pairs;
    uint64_t experts = 0, all = 0, wanted;
    uint32_t i;
    int code;

    if (bytes < sizeof *h)
        return refuse(&r, data, "bytes", bytes, sizeof *h);
    if (h->tokens == 0)
        return refuse(&r, &h->tokens, "tokens", 0, 1);
    if (h->reserved != 0)
        return refuse(&r, &h->reserved, "reserved field", h->reserved, 0);
    if (h->layers > (bytes - sizeof *h) / sizeof *c->layers)
        return refuse(&r, h, "layers", h->layers, (bytes - sizeof *h) / sizeof *c->layers);
    c->layers = (const void *)(h + 1);
    c->layer_count = h->layers;
    c->tokens = h->tokens;
    code = check_layers(&r, m, &experts, &all);
    if (code != 0)
        return code;
    if (all != h->pairs)
        return refuse(&r, &h->pairs, "pairs", h->pairs, all);
    wanted = sizeof *h + sizeof *c->layers * (uint64_t)h->layers + 4 * experts + 8 * all;
    if (bytes != wanted)
        return refuse(&r, data, "bytes", bytes, wanted);
    c->counts = (const void *)(c->layers + h->layers);
    counts = c->counts;
    for (i = 0; i < h->layers && code == 0; i++) {
        code = check_counts(&r, &c->layers[i], counts);
        counts += c->layers[i].experts;
    }
    pairs = counts;
    counts = c->counts;
    for (i = 0; i < h->layers && code == 0; i++) {
        code = check_pairs(&r, &c->layers[i], i + 1 < h->layers ? &c->layers[i + 1] : NULL, counts,
                           pairs);
        counts += c->layers[i].experts;
        pairs += 2 * (size_t)c->layers[i].pairs;
    }
    return code;
}

const uint32_t *cb_calibration_counts(const struct cb_calibration *c, uint32_t layer)
{
    const uint32_t *counts = c->counts;
    uint32_t i;

    for (i = 0; i < c->layer_count; i++) {
        if (c->layers[i].layer == layer)
            return counts;
        counts += c->layers[i].experts;
    }
    return NULL;
}
