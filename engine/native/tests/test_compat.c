/* SPDX-License-Identifier: MIT */
/* The small API: fixed-point logits of a continuing sequence. */
#include "check.h"
#include "variants.h"

static struct build_file file;
static char path[64];

/* Round half to even, in integers: the independent form of what the library does with doubles. */
static int32_t q16(float x)
{
    double scaled = (double)x * 65536.0;
    long long whole = (long long)scaled;
    double rest = scaled - (double)whole;

    if (rest > 0.5 || (rest == 0.5 && (whole & 1)))
        whole++;
    if (rest < -0.5 || (rest == -0.5 && (whole & 1)))
        whole--;
    return (int32_t)whole;
}

static void test_logits_are_those_of_the_session_api(void)
{
    colibri_ctx_t *ctx = colibri_init(path, 0);
    colibri_model *model;
    colibri_session *s;
    int32_t ids[] = {5, 6, 7, 8}, out[61];
    int i, step;

    CHECK(ctx != NULL);
    if (ctx == NULL)
        return;
    CHECK_EQUAL(colibri_vocabulary(ctx), 61);
    CHECK_EQUAL(build_open(&file, file.size, NULL, &model, NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &s, NULL), 0);
    for (step = 0; step < 3; step++) { /* calls continue the sequence */
        CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 4), 0);
        CHECK_EQUAL(colibri_session_append(s, ids, 4, NULL), 0);
        for (i = 0; i < 61; i++)
            CHECK_EQUAL(out[i], q16(colibri_session_logits(s)[i]));
    }
    colibri_reset(ctx);
    colibri_session_reset(s);
    CHECK_EQUAL(colibri_run_inference(ctx, ids + 1, out, 1), 0);
    CHECK_EQUAL(colibri_session_append(s, ids + 1, 1, NULL), 0);
    CHECK_EQUAL(out[60], q16(colibri_session_logits(s)[60]));
    colibri_model_close(model);
    colibri_free(ctx);
}

static void test_all_positions_are_those_of_single_steps(void)
{
    colibri_ctx_t *all = colibri_init(path, COLIBRI_ALL_POSITIONS), *one = colibri_init(path, 0);
    int32_t ids[] = {9, 60, 0, 9, 9}, each[5 * 61], last[61];
    int i;

    CHECK(all != NULL && one != NULL);
    CHECK_EQUAL(colibri_run_inference(all, ids, each, 5), 0);
    for (i = 0; i < 5; i++) {
        CHECK_EQUAL(colibri_run_inference(one, ids + i, last, 1), 0);
        CHECK(memcmp(each + 61 * i, last, sizeof last) == 0);
    }
    colibri_free(one);
    colibri_free(all);
}

static void test_unaligned_buffers_work(void)
{
    colibri_ctx_t *ctx = colibri_init(path, 0);
    char in[4 * 3 + 3], out[4 * 61 + 1];
    int32_t ids[] = {5, 6, 7}, wanted[61];

    CHECK_EQUAL(colibri_run_inference(ctx, ids, wanted, 3), 0);
    colibri_reset(ctx);
    memcpy(in + 3, ids, sizeof ids);
    CHECK_EQUAL(colibri_run_inference(ctx, (const int32_t *)(const void *)(in + 3),
                                      (int32_t *)(void *)(out + 1), 3), 0);
    CHECK(memcmp(out + 1, wanted, sizeof wanted) == 0);
    colibri_free(ctx);
}

static void test_errors_have_codes_and_reasons(void)
{
    colibri_ctx_t *ctx;
    int32_t ids[65] = {0}, out[61];

    CHECK(colibri_init("/nonexistent", 0) == NULL);
    CHECK_EQUAL(colibri_last_error()->code, COLIBRI_ERR_OPEN);
    CHECK_EQUAL(colibri_load_model("/nonexistent", 0), -1);
    CHECK(strstr(colibri_last_error()->message, "/nonexistent") != NULL);
    CHECK_EQUAL(colibri_load_model(path, 0), 0);
    CHECK_EQUAL(colibri_load_model(path, 2), COLIBRI_ERR_ARGUMENT);
    CHECK(colibri_init(path, 4) == NULL);
    ctx = colibri_init(path, 0);
    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 65), COLIBRI_ERR_CONTEXT_FULL);
    ids[3] = 61;
    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 4), COLIBRI_ERR_TOKEN_RANGE);
    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 0), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(colibri_run_inference(ctx, NULL, out, 1), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(colibri_run_inference(NULL, ids, out, 1), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 3), 0);
    colibri_free(ctx);
    colibri_free(NULL);
}

static void test_all_positions_that_do_not_fit_start_no_pass(void)
{
    colibri_ctx_t *ctx = colibri_init(path, COLIBRI_ALL_POSITIONS);
    static int32_t ids[64], out[64 * 61];

    out[0] = 12345; /* the first pass would write here */
    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 65), COLIBRI_ERR_CONTEXT_FULL);
    CHECK(strstr(colibri_last_error()->message, "context of 64") != NULL);
    CHECK_EQUAL(out[0], 12345);
    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 64), 0);
    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 1), COLIBRI_ERR_CONTEXT_FULL);
    colibri_free(ctx);
}

static void test_a_failed_call_leaves_the_sequence_alone(void)
{
    colibri_ctx_t *ctx = colibri_init(path, COLIBRI_ALL_POSITIONS);
    int32_t ids[] = {1, 2, 99}, out[3 * 61], again[61];

    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 3), COLIBRI_ERR_TOKEN_RANGE);
    CHECK_EQUAL(colibri_run_inference(ctx, ids, out, 1), 0);
    colibri_reset(ctx);
    CHECK_EQUAL(colibri_run_inference(ctx, ids, again, 1), 0);
    CHECK(memcmp(out, again, sizeof again) == 0);
    colibri_free(ctx);
}

static void test_defragmenting_locks_what_is_open(void)
{
    colibri_ctx_t *a, *b;
    int64_t one, two;

    CHECK_EQUAL(colibri_defrag_memory(), 0);
    a = colibri_init(path, 0);
    one = colibri_defrag_memory();
    CHECK(one >= 0);
    b = colibri_init(path, 0);
    two = colibri_defrag_memory();
    CHECK(two >= one);
    colibri_free(a);
    colibri_free(b);
    CHECK_EQUAL(colibri_defrag_memory(), 0);
}

static void test_versions_and_build_info_have_their_form(void)
{
    char start[64];

    CHECK_EQUAL(colibri_abi_version(), COLIBRI_ABI_VERSION);
    (void)snprintf(start, sizeof start, "colibri_v%s_", colibri_version());
    CHECK(strncmp(colibri_build_info(), start, strlen(start)) == 0);
    CHECK(strchr(colibri_build_info(), '/') == NULL);
    CHECK(strstr(colibri_isas_compiled(), "ref") != NULL);
}

int main(void)
{
    build_variant(&file, &variants[0]);
    (void)snprintf(path, sizeof path, "%s", build_write(&file, file.size));
    RUN(test_logits_are_those_of_the_session_api);
    RUN(test_all_positions_are_those_of_single_steps);
    RUN(test_unaligned_buffers_work);
    RUN(test_errors_have_codes_and_reasons);
    RUN(test_all_positions_that_do_not_fit_start_no_pass);
    RUN(test_a_failed_call_leaves_the_sequence_alone);
    RUN(test_defragmenting_locks_what_is_open);
    RUN(test_versions_and_build_info_have_their_form);
    (void)unlink(path);
    free(file.bytes);
    return RESULT();
}
