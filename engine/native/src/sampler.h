/* SPDX-License-Identifier: MIT */
/* Sampler: docs/arithmetic.md, "Logits and sampler". No state but a counter. */
#ifndef CB_SAMPLER_H
#define CB_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "colibri.h"

/* One sampling candidate; the scratch holds [vocabulary] of them. */
struct cb_candidate {
    float weight;
    uint32_t id;
};

uint64_t cb_random(uint64_t seed, uint64_t counter);

/* COLIBRI_ERR_ARGUMENT when a field is out of its range (temperature finite and >= 0, top_p in
 * (0, 1], min_p in [0, 1]), STRUCT_SIZE when struct_size is unknown. */
int cb_sampler_check(const colibri_sampler *sampler, colibri_error *error);

/* logits [count] times the multiplier; COLIBRI_ERR_NON_FINITE when one is not finite then. count: a
 * multiple of 4. */
int cb_logits_scale(float *logits, size_t count, float multiplier);

/* logits f32 [vocabulary], finite. scratch [vocabulary]. Returns the chosen id. */
int32_t cb_sampler_choose(const colibri_sampler *sampler, uint64_t counter, const float *logits,
                          uint32_t vocabulary, struct cb_candidate *scratch);

#endif
