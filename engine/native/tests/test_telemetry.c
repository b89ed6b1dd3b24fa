/* SPDX-License-Identifier: MIT */
/* What expert counts say: entropy, drift, experts above 300 % of the mean. Integers, exact. */
#include <stdlib.h>

#include "check.h"
#include "telemetry.h"
#include "model.h"
#include "variants.h"

static void test_logarithms_of_powers_of_two_are_exact(void)
{
    uint32_t i;

    for (i = 0; i < 64; i++)
        CHECK_EQUAL(cb_log2_q16(UINT64_C(1) << i), i << 16);
}

static void test_logarithms_are_rounded_down(void)
{
    /* floor(log2(x) * 65536), computed with 50 digits */
    CHECK_EQUAL(cb_log2_q16(3), 103872);
    CHECK_EQUAL(cb_log2_q16(10), 217705);
    CHECK_EQUAL(cb_log2_q16(1000), 653117);
    CHECK_EQUAL(cb_log2_q16(UINT64_MAX), (64 << 16) - 1);
}

static void test_entropy_of_known_distributions(void)
{
    static const uint64_t even[8] = {5, 5, 5, 5, 5, 5, 5, 5}, one[4] = {0, 9, 0, 0},
                          halves[4] = {1, 1, 2, 0}, none[4] = {0, 0, 0, 0},
                          huge[2] = {UINT64_MAX / 2, UINT64_MAX / 2}, skewed[3] = {7, 2, 1};

    CHECK_EQUAL(cb_entropy_millibits(even, 8), 3000);
    CHECK_EQUAL(cb_entropy_millibits(one, 4), 0);
    CHECK_EQUAL(cb_entropy_millibits(halves, 4), 1500);
    CHECK_EQUAL(cb_entropy_millibits(none, 4), 0);
    CHECK_EQUAL(cb_entropy_millibits(huge, 2), 1000);
    CHECK_EQUAL(cb_entropy_millibits(skewed, 3), 1157); /* 1.15678 */
}

static void test_drift_of_known_distributions(void)
{
    static const uint64_t now[4] = {3, 1, 0, 0}, moved[4] = {0, 0, 1, 3}, none[4] = {0, 0, 0, 0},
                          huge[2] = {UINT64_MAX / 2, UINT64_MAX / 2};
    static const uint32_t same[4] = {600, 200, 0, 0}, half[4] = {500, 500, 0, 0},
                          zeros[4] = {0, 0, 0, 0}, even[2] = {UINT32_MAX, UINT32_MAX};

    CHECK_EQUAL(cb_drift_permille(now, same, 4), 0);
    CHECK_EQUAL(cb_drift_permille(moved, same, 4), 1000);
    CHECK_EQUAL(cb_drift_permille(now, half, 4), 250);
    CHECK_EQUAL(cb_drift_permille(none, same, 4), 0);
    CHECK_EQUAL(cb_drift_permille(now, zeros, 4), 0);
    CHECK_EQUAL(cb_drift_permille(huge, even, 2), 0);
}

static void test_counts_of_a_run_are_what_its_routing_was(void)
{
    static struct build_file f;
    colibri_model_options o;
    colibri_model *m;
    colibri_session *s;
    colibri_layer_telemetry t = {.struct_size = sizeof t};
    uint64_t counts[8] = {0}, sum = 0;
    uint32_t experts, tokens, k, i, step;

    build_variant(&f, &variants[3]); /* its layer 0 is dense */
    colibri_model_options_default(&o);
    o.threads = 1;
    o.lock = COLIBRI_LOCK_OFF;
    if (!CHECK_EQUAL(build_open(&f, f.size, &o, &m, NULL), 0) ||
        !CHECK_EQUAL(colibri_session_create(m, &s, NULL), 0))
        return;
    for (step = 0; step < 20; step++) {
        int32_t id = (int32_t)step;
        const int32_t *ids;

        CHECK_EQUAL(colibri_session_append(s, &id, 1, NULL), 0);
        ids = colibri_session_routing(s, 1, &tokens, &k);
        for (i = 0; i < tokens * k; i++)
            counts[ids[i]]++;
    }
    (void)colibri_expert_counts(m, 1, &experts);
    for (i = 0; i < experts; i++) {
        CHECK_EQUAL(colibri_expert_call_count(m, 1, i), counts[i]);
        sum += counts[i];
    }
    CHECK_EQUAL(colibri_layer_telemetry_get(m, 1, &t), 0);
    CHECK_EQUAL(t.choices, sum);
    CHECK_EQUAL(t.choices, 20 * t.top_k);
    CHECK_EQUAL(t.experts, experts);
    CHECK_EQUAL(t.entropy_millibits, cb_entropy_millibits(counts, experts));
    CHECK_EQUAL(t.hottest_percent, counts[t.hottest] * 100 * experts / sum);
    CHECK_EQUAL(t.has_profile, 0);
    CHECK_EQUAL(t.hot, 0); /* 20 * 2 choices: fewer than 8 per expert would be needed */
    CHECK_EQUAL(colibri_expert_call_count(m, 1, experts), 0);
    CHECK_EQUAL(colibri_expert_call_count(m, 99, 0), 0);
    CHECK_EQUAL(colibri_layer_telemetry_get(m, 0, &t), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(colibri_layer_telemetry_get(m, 99, &t), COLIBRI_ERR_ARGUMENT);
    t.struct_size = 4;
    CHECK_EQUAL(colibri_layer_telemetry_get(m, 1, &t), COLIBRI_ERR_STRUCT_SIZE);
    colibri_session_free(s);
    colibri_model_close(m);
}

static void test_an_expert_above_300_percent_of_the_mean_is_hot(void)
{
    static struct build_file f;
    colibri_model_options o;
    colibri_model *m;
    colibri_layer_telemetry t = {.struct_size = sizeof t};
    uint64_t *counts;
    uint32_t i;

    build_variant(&f, &variants[0]);
    colibri_model_options_default(&o);
    o.threads = 1;
    o.lock = COLIBRI_LOCK_OFF;
    if (!CHECK_EQUAL(build_open(&f, f.size, &o, &m, NULL), 0))
        return;
    counts = m->counts;
    for (i = 0; i < 5; i++)
        counts[i] = 10;
    counts[3] = 60; /* 100 choices of 5 experts: the mean is 20, 300 % of it 60 */
    CHECK_EQUAL(colibri_layer_telemetry_get(m, 0, &t), 0);
    CHECK(t.hot == 0 && t.hottest == 3 && t.hottest_percent == 300);
    counts[3] = 61;
    CHECK_EQUAL(colibri_layer_telemetry_get(m, 0, &t), 0);
    CHECK_EQUAL(t.hot, 1);
    for (i = 0; i < 5; i++)
        counts[i] = 0;
    counts[2] = 39; /* all of them, but fewer than 8 per expert */
    CHECK_EQUAL(colibri_layer_telemetry_get(m, 0, &t), 0);
    CHECK(t.hot == 0 && t.hottest_percent == 500);
    counts[2] = 40;
    CHECK_EQUAL(colibri_layer_telemetry_get(m, 0, &t), 0);
    CHECK_EQUAL(t.hot, 1);
    colibri_model_close(m);
}

int main(void)
{
    RUN(test_logarithms_of_powers_of_two_are_exact);
    RUN(test_logarithms_are_rounded_down);
    RUN(test_entropy_of_known_distributions);
    RUN(test_drift_of_known_distributions);
    RUN(test_counts_of_a_run_are_what_its_routing_was);
    RUN(test_an_expert_above_300_percent_of_the_mean_is_hot);
    return RESULT();
}
