/* SPDX-License-Identifier: MIT */
/*
 * Tests of the sampler.
 *
 *     test_sampler            the tests of this file, and golden/random.txt in $COLIBRI_GOLDEN
 *     test_sampler CASES...   files of cases written by the Python oracle (tests/unit/test_sampler.py), one
 *                             per line; floats are the 8 hexadecimal digits of their bits:
 *                             TEMPERATURE TOP_K TOP_P MIN_P SEED COUNTER VOCABULARY LOGITS... ID
 */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sampler.h"

static unsigned checks, failures;

static void check(int ok, const char *what, int line)
{
    checks++;
    if (ok)
        return;
    failures++;
    fprintf(stderr, "test_sampler.c:%d: %s\n", line, what);
}

#define CHECK(condition) check(!!(condition), #condition, __LINE__)

static void test_random(void)
{
    const char *folder = getenv("COLIBRI_GOLDEN");
    char path[512], line[256];
    unsigned cases = 0;
    FILE *file;

    /* the first outputs of SplitMix64 with seed 0 */
    CHECK(cb_random(0, 0) == UINT64_C(0xe220a8397b1dcdaf));
    CHECK(cb_random(0, 1) == UINT64_C(0x6e789e6aa1b965f4));
    if (folder == NULL) {
        printf("test_sampler: COLIBRI_GOLDEN is not set: golden/random.txt was not read\n");
        return;
    }
    (void)snprintf(path, sizeof path, "%s/random.txt", folder);
    file = fopen(path, "r");
    CHECK(file != NULL);
    while (file != NULL && fgets(line, sizeof line, file)) {
        unsigned long long seed, counter, value;

        if (line[0] == '#')
            continue;
        CHECK(sscanf(line, "%llx %llu -> %llx", &seed, &counter, &value) == 3);
        CHECK(cb_random(seed, counter) == value);
        cases++;
    }
    CHECK(cases >= 10);
    if (file != NULL)
        fclose(file);
}

static void test_ranges(void)
{
    const float nan = strtof("nan", NULL), infinity = strtof("inf", NULL);
    colibri_sampler good, s;
    colibri_error error;

    colibri_sampler_default(&good);
    CHECK(good.temperature <= 0.0f && good.top_k == 0 && good.top_p >= 1.0f && good.min_p <= 0.0f);
    CHECK(cb_sampler_check(&good, &error) == 0);
    s = good;
    s.struct_size = 0;
    CHECK(cb_sampler_check(&s, &error) == COLIBRI_ERR_STRUCT_SIZE);
    CHECK(strstr(error.message, "struct_size 0"));
#define REJECTED(member, value)                                                      \
    do {                                                                             \
        s = good;                                                                    \
        s.member = (value);                                                          \
        CHECK(cb_sampler_check(&s, &error) == COLIBRI_ERR_ARGUMENT);                 \
        CHECK(strstr(error.message, #member));                                       \
        CHECK(cb_sampler_check(&s, NULL) == COLIBRI_ERR_ARGUMENT);                   \
    } while (0)
#define ACCEPTED(member, value)                                                      \
    do {                                                                             \
        s = good;                                                                    \
        s.member = (value);                                                          \
        CHECK(cb_sampler_check(&s, &error) == 0);                                    \
    } while (0)
    REJECTED(temperature, -0.5f);
    REJECTED(temperature, nan);
    REJECTED(temperature, infinity);
    ACCEPTED(temperature, FLT_MAX);
    REJECTED(top_p, 0.0f);
    REJECTED(top_p, 1.0001f);
    REJECTED(top_p, nan);
    ACCEPTED(top_p, 0.0001f);
    REJECTED(min_p, -0.1f);
    REJECTED(min_p, 1.5f);
    REJECTED(min_p, nan);
    ACCEPTED(min_p, 1.0f);
    REJECTED(reserved, 1);
}

/* How often each of the ids 0..3 is chosen in 1000 draws. */
static void draw(const colibri_sampler *s, const float *logits, unsigned times[4])
{
    struct cb_candidate scratch[4];

    memset(times, 0, 4 * sizeof *times);
    for (uint64_t counter = 0; counter < 1000; counter++) {
        int32_t id = cb_sampler_choose(s, counter, logits, 4, scratch);

        CHECK(id >= 0 && id < 4);
        times[id & 3]++;
    }
}

/* Vectors and what is left over, many equal logits, zeros of both signs. */
static void test_the_lowest_id_of_the_highest_logit_wins(void)
{
    const colibri_sampler greedy = { .struct_size = sizeof greedy, .top_p = 1.0f };
    struct cb_candidate scratch[40];
    float logits[40];

    for (uint64_t round = 0; round < 4000; round++) {
        uint32_t vocabulary = 1 + (uint32_t)(cb_random(round, 0) % 40), best = 0;

        for (uint32_t i = 0; i < vocabulary; i++) {
            logits[i] = (float)(cb_random(round, i + 1) % 5) - (round % 2 ? 2.0f : 7.0f);
            if (logits[i] >= 0.0f && logits[i] <= 0.0f && cb_random(round, i + 50) % 2)
                logits[i] = -0.0f;
            if (logits[i] > logits[best])
                best = i;
        }
        CHECK(cb_sampler_choose(&greedy, 0, logits, vocabulary, scratch) == (int32_t)best);
    }
}

static void test_a_logit_that_is_not_finite_is_found_in_every_place(void)
{
    const float bad[] = { FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN };
    float logits[24], before[24];

    for (size_t i = 0; i < 24; i++)
        before[i] = (float)i * 0.37f - 3.0f;
    memcpy(logits, before, sizeof logits);
    CHECK(cb_logits_scale(logits, 24, 1.7f) == 0);
    for (size_t i = 0; i < 24; i++) {
        float product = before[i] * 1.7f;

        CHECK(memcmp(&logits[i], &product, sizeof product) == 0);
    }
    CHECK(cb_logits_scale(logits, 0, 1.7f) == 0);
    for (size_t i = 0; i < 24; i++)
        for (size_t j = 0; j < sizeof bad / sizeof bad[0]; j++) {
            memcpy(logits, before, sizeof logits);
            logits[i] = bad[j];
            CHECK(cb_logits_scale(logits, 24, 1.7f) == COLIBRI_ERR_NON_FINITE);
            if (j < 2) {
                logits[i] = bad[j];
                CHECK(cb_logits_scale(logits + i / 4 * 4, 4, 1.0f) == 0);
            }
        }
}

static void test_choices(void)
{
    const float logits[4] = { 1.0f, 3.0f, 2.0f, 3.0f }, far[4] = { -60.0f, 0.0f, -45.0f, -FLT_MAX };
    struct cb_candidate scratch[4];
    colibri_sampler s;
    unsigned times[4];

    colibri_sampler_default(&s);
    CHECK(cb_sampler_choose(&s, 0, logits, 4, scratch) == 1); /* the lower id of equals */
    CHECK(cb_sampler_choose(&s, 0, logits + 3, 1, scratch) == 0);

    s.temperature = 1.0f;
    draw(&s, logits, times); /* 0.0541 0.3995 0.147 0.3995 of 1000 */
    CHECK(times[0] > 30 && times[0] < 75 && times[1] > 350 && times[1] < 450);
    CHECK(times[2] > 110 && times[2] < 170 && times[3] > 350 && times[3] < 450);
    s.top_k = 1;
    draw(&s, logits, times);
    CHECK(times[1] == 1000); /* equals: the lower id is first */
    s.top_k = 3;
    draw(&s, logits, times);
    CHECK(times[0] == 0 && times[2] > 0);
    s.top_k = 0;
    s.top_p = 0.5f;
    draw(&s, logits, times);
    CHECK(times[0] == 0 && times[2] == 0 && times[1] > 0 && times[3] > 0);
    s.top_p = 0.3f;
    draw(&s, logits, times);
    CHECK(times[1] == 1000);
    s.top_p = 1.0f;
    s.min_p = 0.2f; /* exp(-1) stays, exp(-2) goes */
    draw(&s, logits, times);
    CHECK(times[0] == 0 && times[2] > 0);
    s.min_p = 1.0f;
    draw(&s, logits, times);
    CHECK(times[1] > 0 && times[3] > 0 && times[1] + times[3] == 1000);
    s.min_p = 0.0f;
    draw(&s, far, times);
    CHECK(times[1] == 1000); /* weights below exp(-40) are +0 */
    s.temperature = 1e-30f;
    draw(&s, far, times);
    CHECK(times[1] == 1000);
}

static float bits(const char *word)
{
    uint32_t u = (uint32_t)strtoul(word, NULL, 16);
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static char *next(char **rest)
{
    char *found = strtok_r(NULL, " \n", rest);

    if (found == NULL) {
        fprintf(stderr, "test_sampler: a case is too short\n");
        exit(1);
    }
    return found;
}

static void run_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = NULL;
    size_t room = 0, number = 0, cases = 0;

    if (file == NULL) {
        perror(path);
        exit(1);
    }
    while (getline(&line, &room, file) > 0) {
        char *rest = NULL, *first = strtok_r(line, " \n", &rest);
        colibri_sampler s;
        uint64_t counter;
        uint32_t vocabulary;
        struct cb_candidate *scratch;
        float *logits;
        int32_t expected, got;

        number++;
        if (first == NULL || first[0] == '#')
            continue;
        cases++;
        colibri_sampler_default(&s);
        s.temperature = bits(first);
        s.top_k = (uint32_t)strtoul(next(&rest), NULL, 10);
        s.top_p = bits(next(&rest));
        s.min_p = bits(next(&rest));
        s.seed = strtoull(next(&rest), NULL, 10);
        counter = strtoull(next(&rest), NULL, 10);
        vocabulary = (uint32_t)strtoul(next(&rest), NULL, 10);
        logits = malloc(vocabulary * sizeof *logits);
        scratch = malloc(vocabulary * sizeof *scratch);
        if (logits == NULL || scratch == NULL)
            exit(1);
        for (uint32_t i = 0; i < vocabulary; i++)
            logits[i] = bits(next(&rest));
        expected = (int32_t)strtol(next(&rest), NULL, 10);
        CHECK(cb_sampler_check(&s, NULL) == 0);
        got = cb_sampler_choose(&s, counter, logits, vocabulary, scratch);
        if (got != expected)
            fprintf(stderr, "%s:%zu: chose %d, expected %d\n", path, number, got, expected);
        CHECK(got == expected);
        free(logits);
        free(scratch);
    }
    CHECK(cases > 0);
    free(line);
    fclose(file);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        for (int i = 1; i < argc; i++)
            run_file(argv[i]);
    } else {
        test_random();
        test_ranges();
        test_choices();
        test_the_lowest_id_of_the_highest_logit_wins();
        test_a_logit_that_is_not_finite_is_found_in_every_place();
    }
    printf("test_sampler: %u checks, %u failures\n", checks, failures);
    return failures ? 1 : 0;
}
