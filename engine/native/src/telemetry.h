/* SPDX-License-Identifier: MIT */
/* What expert counts say. Integers only: no libm, the same numbers everywhere. */
#ifndef CB_TELEMETRY_H
#define CB_TELEMETRY_H

#include <stdint.h>

#include "colibri.h"

#define CB_HOT_PERCENT 300u  /* of the mean: requirement F2 */
#define CB_HOT_MEAN 8u       /* uses per expert before it is said: few tokens say nothing */

/* Count the routed choices of a batch that went well: all that telemetry does while tokens are
 * computed. `make bench-telemetry` shows its share. */
void cb_telemetry_count(const colibri_session *s, uint32_t tokens);

/* log2(x) * 65536, rounded down, x > 0: less than 2^-16 too low. */
uint32_t cb_log2_q16(uint64_t x);
/* Entropy of a distribution of counts [n] in 1/1000 bit; within 1 of the exact value. */
uint32_t cb_entropy_millibits(const uint64_t *counts, uint32_t n);
/* Half the sum of the differences of the shares, in 1/1000: 0 the same, 1000 disjoint. Within 1 of
 * the exact value up to n = 1024. 0 when one of them is all zeros. */
uint32_t cb_drift_permille(const uint64_t *counts, const uint32_t *profile, uint32_t n);

#endif
