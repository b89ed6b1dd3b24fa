/* SPDX-License-Identifier: MIT */
/*
 * Sampler (docs/arithmetic.md, "Logits and sampler"). Candidates whose weight is +0 are left out first; the
 * others become a heap in the caller's scratch, and only as many are taken from it as the rules keep.
 */
#include "sampler.h"

#include <float.h>
#include <stdbool.h>
#include <string.h>

#include "error.h"
#include "exact.h"
#include "kernels.h"

uint64_t cb_random(uint64_t seed, uint64_t counter)
{
    uint64_t z = seed + (counter + 1) * UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void colibri_sampler_default(colibri_sampler *sampler)
{
    *sampler = (colibri_sampler){
        .struct_size = sizeof *sampler,
        .top_p = 1.0f, /* everything else 0: greedy */
    };
}

int cb_sampler_check(const colibri_sampler *s, colibri_error *error)
{
    if (s->struct_size != sizeof *s)
        return cb_deny(error, COLIBRI_ERR_STRUCT_SIZE,
                       "colibri_sampler has struct_size %u, this library knows %zu: start from "
                       "colibri_sampler_default",
                       s->struct_size, sizeof *s);
    /* written so that a NaN fails */
    if (!(s->temperature >= 0.0f && s->temperature <= FLT_MAX))
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "sampler: temperature is %g, must be finite and 0 (greedy) or more",
                       (double)s->temperature);
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "sampler: top_p is %g, must be above 0 and at most 1 (all)",
                       (double)s->top_p);
    if (!(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "sampler: min_p is %g, must be in 0 (all) to 1", (double)s->min_p);
    if (s->reserved != 0)
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "sampler: reserved is %u, must be 0: start from colibri_sampler_default",
                       s->reserved);
    return 0;
}

/* Every logit of every token passes these two loops: vectors of the compiler's own, which are registers
 * where there are any and the same arithmetic one by one elsewhere. */
#define LANES 4
typedef float float_vector __attribute__((vector_size(4 * LANES)));
typedef int32_t int_vector __attribute__((vector_size(4 * LANES)));

static inline float_vector load(const float *p)
{
    float_vector v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline int_vector choose(int_vector mask, int_vector a, int_vector b)
{
    return (a & mask) | (b & ~mask);
}

int cb_logits_scale(float *logits, size_t count, float multiplier)
{
    const float *end = logits + count;
    int_vector bad = {0};

    if (count == 0) /* more threads than panels */
        return 0;
    do {
        float_vector v = load(logits) * multiplier;

        memcpy(logits, &v, sizeof v);
        bad |= (int_vector)(v - v); /* +0 of a finite one, else not a number */
        logits += LANES;
    } while (logits < end);
    return (bad[0] | bad[1] | bad[2] | bad[3]) != 0 ? COLIBRI_ERR_NON_FINITE : 0;
}

/* The lowest id of those with the highest logit: each lane's own first, then the best of these. */
static uint32_t highest(const float *logits, uint32_t vocabulary)
{
    const uint32_t whole = vocabulary - vocabulary % LANES;
    float_vector top = (float_vector){0} + cb_float(CB_BITS_INFINITY | 0x80000000u);
    int_vector id = {0}, at = {0, 1, 2, 3};
    uint32_t best = 0;

    for (uint32_t i = 0; i < whole; i += LANES, at += LANES) {
        float_vector v = load(logits + i);
        int_vector higher = v > top;

        top = (float_vector)choose(higher, (int_vector)v, (int_vector)top);
        id = choose(higher, at, id);
    }
    for (uint32_t i = 0; i < LANES; i++) {
        uint32_t one = (uint32_t)id[i];

        if (logits[one] > logits[best] || (logits[one] >= logits[best] && one < best))
            best = one;
    }
    for (uint32_t i = whole; i < vocabulary; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Higher logit first, lower id on equality. weight holds the logit here. */
static bool precedes(struct cb_candidate a, struct cb_candidate b)
{
    return a.weight > b.weight || (a.weight >= b.weight && a.id < b.id);
}

static void sift_down(struct cb_candidate *heap, uint32_t count, uint32_t at)
{
    struct cb_candidate moving = heap[at];

    for (;;) {
        size_t child = 2 * (size_t)at + 1;

        if (child >= count)
            break;
        if (child + 1 < count && precedes(heap[child + 1], heap[child]))
            child++;
        if (!precedes(heap[child], moving))
            break;
        heap[at] = heap[child];
        at = (uint32_t)child;
    }
    heap[at] = moving;
}

/* x of exp(x) for a logit: at most 0. */
static float exponent(const colibri_sampler *sampler, float logit, float top)
{
    return (logit - top) / sampler->temperature;
}

int32_t cb_sampler_choose(const colibri_sampler *sampler, uint64_t counter, const float *logits,
                          uint32_t vocabulary, struct cb_candidate *scratch)
{
    uint32_t best = highest(logits, vocabulary), count = 0, kept = 0, limit;
    struct cb_candidate *list;
    float sum = 0.0f, running = 0.0f, target;

    if (!(sampler->temperature > 0.0f))
        return (int32_t)best;
    for (uint32_t i = 0; i < vocabulary; i++)
        if (exponent(sampler, logits[i], logits[best]) >= CB_EXP_LOWEST)
            scratch[count++] = (struct cb_candidate){ .weight = logits[i], .id = i };
    for (uint32_t i = count / 2; i-- > 0;)
        sift_down(scratch, count, i);

    /* Taken candidates pile up behind the shrinking heap: candidate i of the order is list[-i]. */
    list = scratch + (count - 1);
    limit = sampler->top_k > 0 && sampler->top_k < count ? sampler->top_k : count;
    while (kept < limit) {
        struct cb_candidate taken = scratch[0];

        taken.weight = cb_exp(exponent(sampler, taken.weight, logits[best]));
        if (taken.weight < sampler->min_p)
            break;
        scratch[0] = scratch[count - 1 - kept];
        *(list - kept) = taken;
        kept++;
        sift_down(scratch, count - kept, 0);
        sum += taken.weight;
    }

    if (sampler->top_p < 1.0f) {
        float enough = sampler->top_p * sum;

        sum = 0.0f;
        for (uint32_t i = 0; i < kept; i++) {
            sum += (list - i)->weight;
            if (sum >= enough)
                kept = i + 1;
        }
    }
    target = (float)(cb_random(sampler->seed, counter) >> 40) * 0x1p-24f * sum;
    for (uint32_t i = 0; i < kept; i++) {
        running += (list - i)->weight;
        if (running > target)
            return (int32_t)(list - i)->id;
    }
    return (int32_t)(list - (kept - 1))->id;
}
