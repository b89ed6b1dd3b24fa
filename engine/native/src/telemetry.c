/* SPDX-License-Identifier: MIT */
#include "telemetry.h"

#include <string.h>

#include "common.h"
#include "model.h"

#define SHARE (UINT64_C(1) << 24) /* fixed point of a share */

void cb_telemetry_count(const colibri_session *s, uint32_t tokens)
{
    const colibri_model *m = s->model;
    uint32_t layer;

    for (layer = 0; layer < m->block.layers; layer++) {
        const struct cb_layer_records *r = &cb_model_layer(m, layer)->r;
        const int32_t *ids = s->routing + (size_t)layer * m->plan.batch_tokens * m->shape.top_k;
        uint64_t *counts = m->counts + (size_t)layer * m->shape.experts;
        uint32_t i;

        if (r->layer.ffn_kind != CB_FFN_MOE)
            continue;
        for (i = 0; i < tokens * r->moe.top_k; i++)
            counts[ids[i]]++;
    }
}

uint32_t cb_log2_q16(uint64_t x)
{
    uint32_t whole = 63u - (uint32_t)__builtin_clzll(x), result = whole << 16, bit;
    uint64_t y = x << (63 - whole) >> 32; /* 1 <= y / 2^31 < 2 */

    /* Squaring doubles the logarithm: its next bit is whether the square reaches 2. */
    for (bit = 1u << 15; bit != 0; bit >>= 1) {
        y = y * y >> 31;
        if (y >> 32 != 0) {
            y >>= 1;
            result += bit;
        }
    }
    return result;
}

/* Sum of the counts; *shift: how far right they go so that the sum stays below 2^39. */
static uint64_t sum_of(const uint64_t *counts, uint32_t n, uint32_t *shift)
{
    uint64_t sum = 0, high = 0;
    uint32_t i;

    for (i = 0; i < n; i++)
        high |= counts[i];
    for (*shift = 0; high >> *shift >= UINT64_C(1) << 29;)
        ++*shift;
    for (i = 0; i < n; i++)
        sum += counts[i] >> *shift;
    return sum;
}

uint32_t cb_entropy_millibits(const uint64_t *counts, uint32_t n)
{
    uint32_t shift, i;
    uint64_t sum = sum_of(counts, n, &shift), inner = 0, entropy;

    if (sum == 0)
        return 0;
    /* log2(sum) - (sum of count * log2(count)) / sum */
    for (i = 0; i < n; i++) {
        uint64_t count = counts[i] >> shift;

        if (count > 1)
            inner += count * cb_log2_q16(count);
    }
    inner /= sum;
    entropy = cb_log2_q16(sum);
    entropy = entropy > inner ? entropy - inner : 0;
    return (uint32_t)((entropy * 1000 + 32768) >> 16);
}

uint32_t cb_drift_permille(const uint64_t *counts, const uint32_t *profile, uint32_t n)
{
    uint32_t shift, i;
    uint64_t sum = sum_of(counts, n, &shift), all = 0, apart = 0;

    for (i = 0; i < n; i++)
        all += profile[i];
    if (sum == 0 || all == 0)
        return 0;
    for (i = 0; i < n; i++) {
        uint64_t now = (counts[i] >> shift) * SHARE / sum, then = profile[i] * SHARE / all;

        apart += now > then ? now - then : then - now;
    }
    return (uint32_t)((apart * 1000 / 2 + SHARE / 2) / SHARE);
}

int colibri_layer_telemetry_get(const colibri_model *m, uint32_t layer, colibri_layer_telemetry *t)
{
    colibri_layer_telemetry out;
    const uint64_t *counts;
    const uint32_t *profile = NULL;
    uint32_t e;

    if (m == NULL || t == NULL)
        return COLIBRI_ERR_ARGUMENT;
    if (t->struct_size != sizeof *t)
        return COLIBRI_ERR_STRUCT_SIZE;
    memset(&out, 0, sizeof out);
    counts = colibri_expert_counts(m, layer, &out.experts);
    if (counts == NULL)
        return COLIBRI_ERR_ARGUMENT;
    out.struct_size = sizeof out;
    out.layer = layer;
    out.top_k = cb_model_layer(m, layer)->r.moe.top_k;
    for (e = 0; e < out.experts; e++) {
        out.choices += counts[e];
        if (counts[e] > counts[out.hottest])
            out.hottest = e;
    }
    if (out.choices > 0)
        out.hottest_percent = (uint32_t)(counts[out.hottest] * 100 * out.experts / out.choices);
    for (e = 0; e < out.experts && out.choices >= (uint64_t)CB_HOT_MEAN * out.experts; e++)
        out.hot += counts[e] * 100 * out.experts > CB_HOT_PERCENT * out.choices;
    out.entropy_millibits = cb_entropy_millibits(counts, out.experts);
    if (m->calibration.layer_count > 0)
        profile = cb_calibration_counts(&m->calibration, layer);
    if (profile != NULL) {
        out.has_profile = 1;
        out.drift_permille = cb_drift_permille(counts, profile, out.experts);
    }
    *t = out;
    return 0;
}

uint64_t colibri_expert_call_count(const colibri_model *m, uint32_t layer, uint32_t expert)
{
    uint32_t experts = 0;
    const uint64_t *counts = colibri_expert_counts(m, layer, &experts);

    return counts != NULL && expert < experts ? counts[expert] : 0;
}
