/* SPDX-License-Identifier: MIT */
/* Which experts a token goes to, and with what weight (docs/arithmetic.md, "Router"). */
#include <math.h>
#include <string.h>

#include "common.h"
#include "pass.h"

int cb_router_quantizes(const struct cb_layer *l)
{
    return l->r.layer.ffn_kind == CB_FFN_MOE && cb_is_quantized(l->router.dtype);
}

/* softmax over all experts; the chosen ones keep their share of the whole. */
static void weigh_all(const float *logits, uint32_t n, const int32_t *ids, uint32_t k, float *weights)
{
    float e[CB_MAX_EXPERTS];
    float highest = logits[0], sum;
    uint32_t i;

    for (i = 1; i < n; i++) {
        if (logits[i] > highest)
            highest = logits[i];
    }
    for (i = 0; i < n; i++)
        e[i] = cb_exp(logits[i] - highest);
    sum = cb_reduce8(e, n);
    for (i = 0; i < k; i++)
        weights[i] = e[ids[i]] / sum;
}

static void weigh_chosen(const float *logits, const int32_t *ids, uint32_t k, float *weights)
{
    float highest = logits[ids[0]], sum;
    uint32_t i;

    /* With a selection bias the first chosen need not have the highest logit. */
    for (i = 1; i < k; i++) {
        if (logits[ids[i]] > highest)
            highest = logits[ids[i]];
    }
    for (i = 0; i < k; i++)
        weights[i] = cb_exp(logits[ids[i]] - highest);
    sum = cb_reduce8(weights, k);
    for (i = 0; i < k; i++)
        weights[i] = weights[i] / sum;
}

static void normalise(const struct cb_block_moe *moe, float *weights)
{
    float sum;
    uint32_t i;

    if (moe->router_normalise != CB_NORMALISE_SUM)
        return;
    sum = cb_reduce8(weights, moe->top_k) + moe->router_normalise_eps;
    for (i = 0; i < moe->top_k; i++)
        weights[i] = weights[i] / sum;
}

static void weigh(const struct cb_block_moe *moe, const float *logits, const int32_t *ids,
                  float *weights)
{
    uint32_t k = moe->top_k, i;

    switch (moe->router_score) {
    case CB_SCORE_SOFTMAX_ALL:
        if (moe->router_normalise == CB_NORMALISE_NONE) {
            weigh_all(logits, moe->experts, ids, k, weights);
            break;
        }
        weigh_chosen(logits, ids, k, weights);
        break;
    case CB_SCORE_SOFTMAX_CHOSEN:
        weigh_chosen(logits, ids, k, weights);
        break;
    case CB_SCORE_SIGMOID:
        for (i = 0; i < k; i++)
            weights[i] = cb_sigmoid(logits[ids[i]]);
        normalise(moe, weights);
        break;
    default: /* logits */
        for (i = 0; i < k; i++)
            weights[i] = logits[ids[i]];
        normalise(moe, weights);
        break;
    }
    for (i = 0; i < k; i++)
        weights[i] = weights[i] * moe->routed_scale;
}

/* What a group is worth: its best score, or the sum of its two best. */
static float group_score(const struct cb_block_moe *moe, const float *scores, uint32_t size)
{
    float best = scores[0], second = -INFINITY;
    uint32_t i;

    for (i = 1; i < size; i++) {
        if (scores[i] > best) {
            second = best;
            best = scores[i];
        } else if (scores[i] > second) {
            second = scores[i];
        }
    }
    return moe->group_score == CB_GROUP_SCORE_TOP2_SUM && size > 1 ? best + second : best;
}

/* Experts of all but the best groups are out of the choice. */
static void keep_groups(const struct cb_block_moe *moe, float *scores)
{
    float worth[CB_MAX_EXPERTS];
    uint32_t size = moe->experts / moe->groups, g, other, i;

    for (g = 0; g < moe->groups; g++)
        worth[g] = group_score(moe, scores + g * size, size);
    for (g = 0; g < moe->groups; g++) {
        uint32_t ahead = 0;

        for (other = 0; other < moe->groups; other++)
            ahead += worth[other] > worth[g] || (worth[other] == worth[g] && other < g);
        for (i = 0; ahead >= moe->groups_chosen && i < size; i++)
            scores[g * size + i] = -INFINITY;
    }
}

int cb_router_choose(const struct cb_kernels *k, const struct cb_layer *l, const float *logits, int32_t *ids)
{
    const struct cb_block_moe *moe = &l->r.moe;
    float scores[CB_MAX_EXPERTS];
    uint32_t i;

    for (i = 0; i < moe->experts; i++) {
        if (!cb_is_finite(&logits[i]))
            return COLIBRI_ERR_NON_FINITE;
        scores[i] = moe->router_score == CB_SCORE_SIGMOID ? cb_sigmoid(logits[i]) : logits[i];
        if (l->selection_bias != NULL)
            scores[i] += l->selection_bias[i];
        if (!cb_is_finite(&scores[i]))
            return COLIBRI_ERR_NON_FINITE;
    }
    if (moe->groups_chosen != 0)
        keep_groups(moe, scores);
    k->top_k(scores, moe->experts, moe->top_k, ids);
    return 0;
}

/* One token: logits [experts] (padded rows behind them are not looked at). */
static int route_token(const struct cb_kernels *k, const struct cb_layer *l, const float *logits,
                       int32_t *ids, float *weights)
{
    const struct cb_block_moe *moe = &l->r.moe;
    int code = cb_router_choose(k, l, logits, ids);
    uint32_t i;

    if (code != 0)
        return code;
    weigh(moe, logits, ids, weights);
    for (i = 0; i < moe->top_k; i++) {
        if (!cb_is_finite(&weights[i]))
            return COLIBRI_ERR_NON_FINITE;
    }
    return 0;
}

static int step_route(void *context, unsigned index, unsigned count)
{
    struct cb_pass *p = context;
    const struct cb_scratch *s = &p->m->scratch;
    size_t stride = cb_up32(p->l->r.moe.experts, CB_PANEL_ROWS), k = p->l->r.moe.top_k, t, last;

    cb_share(p->tokens, index, count, &t, &last);
    for (; t < last; t++) {
        int code = route_token(p->k, p->l, s->router + t * stride, s->ids + t * k,
                               s->weights + t * k);

        if (code != 0)
            return code;
    }
    return 0;
}

int cb_route(struct cb_pass *p)
{
    const struct cb_block_moe *moe = &p->l->r.moe;
    const struct cb_scratch *s = &p->m->scratch;
    size_t choices = p->tokens * moe->top_k;
    int code;

    cb_pass_out(p, &p->l->router, s->router, cb_up32(moe->experts, CB_PANEL_ROWS));
    code = cb_pass_project(p, "router");
    if (code == 0)
        code = cb_pass_run(p, step_route, p->tokens, "router");
    if (code == 0)
        memcpy(p->session->routing +
                   (size_t)p->l->r.layer.index * p->m->plan.batch_tokens * p->m->shape.top_k,
               s->ids, choices * sizeof *s->ids);
    return code;
}
