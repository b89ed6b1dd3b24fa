/* SPDX-License-Identifier: MIT */
/*
 * One bit pattern: whatever the split of the prompt, the batch, the number of threads or the
 * instruction set, the logits are the same.
 *
 *     test_forward            run the tests
 *     test_forward FOLDER     write FOLDER/NAME.colibri of each variant and print the hashes of its
 *                             logits, to be compared with the numpy reference
 */
#include "check.h"
#include "variants.h"

#define PROMPT 20
#define STEPS 12

struct run {
    uint32_t threads, batch, kv;
    size_t split; /* ids per call; 0: all at once */
    const char *isa;
};

static void check_code(int code, const colibri_error *error, const char *what)
{
    if (code != 0)
        printf("%s: %d %s\n", what, code, error->message);
    CHECK(code == 0);
}

static void append_split(colibri_session *s, const int32_t *ids, size_t count, size_t split)
{
    colibri_error error;
    size_t done, n;

    for (done = 0; done < count; done += n) {
        n = split != 0 && split < count - done ? split : count - done;
        check_code(colibri_session_append(s, ids + done, n, &error), &error, "append");
    }
}

/* Logits after the prompt and after each of STEPS greedy tokens. */
static void hash_session(colibri_session *s, uint32_t vocabulary, size_t split, uint8_t hash[32])
{
    colibri_sha256 sha;
    int32_t ids[PROMPT], id;
    int i;

    for (i = 0; i < PROMPT; i++)
        ids[i] = (i * 37 + 5) % (int32_t)vocabulary;
    append_split(s, ids, PROMPT, split);
    colibri_sha256_init(&sha);
    for (i = 0; i < STEPS; i++) {
        colibri_sha256_update(&sha, colibri_session_logits(s), 4 * (size_t)vocabulary);
        CHECK_EQUAL(colibri_session_sample(s, &id, NULL), 0);
        append_split(s, &id, 1, 1);
    }
    colibri_sha256_final(&sha, hash);
}

static void hash_run(const struct build_file *f, const struct run *r, uint8_t hash[32])
{
    colibri_model_options options;
    colibri_model *model;
    colibri_session *session;
    colibri_model_info info = {.struct_size = sizeof info};
    colibri_error error;

    memset(hash, 0, 32);
    colibri_model_options_default(&options);
    options.threads = r->threads;
    options.batch_tokens = r->batch;
    options.kv = r->kv;
    options.isa = r->isa;
    options.lock = COLIBRI_LOCK_OFF;
    check_code(build_open(f, f->size, &options, &model, &error), &error, "open");
    if (model == NULL)
        return;
    CHECK_EQUAL(colibri_model_info_get(model, &info), 0);
    check_code(colibri_session_create(model, &session, &error), &error, "session");
    hash_session(session, info.vocabulary, r->split, hash);
    colibri_session_free(session);
    colibri_model_close(model);
}

static void compare(const struct build_file *f, const struct run *r, const uint8_t wanted[32],
                    const char *name)
{
    uint8_t hash[32];

    hash_run(f, r, hash);
    if (memcmp(hash, wanted, 32) != 0)
        printf("%s: %u threads, batch %u, kv %u, split %zu, %s differ\n", name, r->threads, r->batch,
               r->kv, r->split, r->isa);
    CHECK(memcmp(hash, wanted, 32) == 0);
}

static void test_splits_batches_and_threads_give_the_same_bits(void)
{
    static const struct run runs[] = {
        {1, 1, 0, 0, "ref"},  {1, 32, 0, 1, "ref"}, {2, 32, 0, 0, "ref"}, {2, 7, 0, 3, "ref"},
        {3, 5, 0, 0, "ref"},  {4, 32, 0, 0, "ref"}, {4, 3, 0, 11, "ref"}, {8, 20, 0, 0, "ref"},
    };
    size_t v, i;

    for (v = 0; v < VARIANTS; v++) {
        static const struct run base = {1, 32, 0, 0, "ref"};
        struct build_file f;
        uint8_t wanted[32];

        build_variant(&f, &variants[v]);
        hash_run(&f, &base, wanted);
        for (i = 0; i < sizeof runs / sizeof runs[0]; i++)
            compare(&f, &runs[i], wanted, variants[v].name);
        free(f.bytes);
    }
}

static void test_instruction_sets_give_the_same_bits(void)
{
    size_t v;
    uint32_t kv;

    for (v = 0; v < VARIANTS; v++) {
        struct build_file f;

        build_variant(&f, &variants[v]);
        for (kv = 0; kv < 2; kv++) {
            struct run r = {1, 32, kv, 0, "ref"};
            char names[128], *isa;
            uint8_t wanted[32];

            hash_run(&f, &r, wanted);
            (void)snprintf(names, sizeof names, "%s", colibri_isas_available());
            for (isa = strtok(names, " "); isa != NULL; isa = strtok(NULL, " ")) {
                r.isa = isa;
                r.threads = 2;
                compare(&f, &r, wanted, variants[v].name);
                r.batch = 6;
                compare(&f, &r, wanted, variants[v].name);
            }
        }
        free(f.bytes);
    }
    printf("     isas: %s\n", colibri_isas_available());
}

static void test_the_kv_type_and_the_seed_change_the_bits(void)
{
    struct build_recipe recipe;
    struct build_file f;
    struct run r = {1, 32, 0, 0, "ref"};
    uint8_t first[32], other[32];

    build_defaults(&recipe);
    build(&f, &recipe);
    hash_run(&f, &r, first);
    r.kv = COLIBRI_KV_F32;
    hash_run(&f, &r, other);
    CHECK(memcmp(first, other, 32) != 0);
    free(f.bytes);
    recipe.seed++;
    build(&f, &recipe);
    r.kv = COLIBRI_KV_F16;
    hash_run(&f, &r, other);
    CHECK(memcmp(first, other, 32) != 0);
    free(f.bytes);
}

static void test_sessions_do_not_see_each_other(void)
{
    struct build_file f;
    colibri_model_options options;
    colibri_model *model;
    colibri_session *s[3], *extra;
    uint8_t alone[32], hash[32];
    colibri_error error;
    static const int32_t noise[] = {9, 8, 7, 6, 5};
    int i;

    build_variant(&f, &variants[0]);
    colibri_model_options_default(&options);
    options.threads = 2;
    options.max_sessions = 3;
    options.lock = COLIBRI_LOCK_OFF;
    check_code(build_open(&f, f.size, &options, &model, &error), &error, "open");
    for (i = 0; i < 3; i++)
        CHECK_EQUAL(colibri_session_create(model, &s[i], NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &extra, &error), COLIBRI_ERR_ARGUMENT);
    CHECK(extra == NULL);
    hash_session(s[0], 61, 0, alone);
    append_split(s[1], noise, 5, 0);
    hash_session(s[2], 61, 4, hash);
    CHECK(memcmp(alone, hash, 32) == 0);
    /* A reset session, and one created in a freed place, begin anew. */
    colibri_session_reset(s[1]);
    hash_session(s[1], 61, 0, hash);
    CHECK(memcmp(alone, hash, 32) == 0);
    colibri_session_free(s[0]);
    CHECK_EQUAL(colibri_session_create(model, &s[0], NULL), 0);
    CHECK_EQUAL(colibri_session_position(s[0]), 0);
    CHECK(colibri_session_logits(s[0]) == NULL);
    hash_session(s[0], 61, 0, hash);
    CHECK(memcmp(alone, hash, 32) == 0);
    colibri_model_close(model);
    free(f.bytes);
}

/* A NaN cannot be stored, but an embedding times its multiplier can overflow. */
static void test_an_overflow_is_an_error_and_leaves_the_sequence_alone(void)
{
    struct build_recipe recipe;
    struct build_file f;
    colibri_model *model;
    colibri_session *s;
    colibri_error error;
    static const int32_t good[] = {1, 2, 3}, bad[] = {4, 60};
    float before[61];
    uint32_t k;

    build_defaults(&recipe);
    recipe.embedding_dtype = CB_DTYPE_F32;
    recipe.model.embedding_multiplier = 1e10f;
    build(&f, &recipe);
    for (k = 0; k < 40; k++) { /* row 60: panel 7, lane 4 */
        float huge = 3e38f;

        memcpy(f.bytes + f.extents[0].offset + f.tensors[0].offset + ((7 * 64 + k) * 8 + 4) * 4, &huge, 4);
    }
    build_seal(&f);
    check_code(build_open(&f, f.size, NULL, &model, &error), &error, "open");
    CHECK_EQUAL(colibri_session_create(model, &s, NULL), 0);
    append_split(s, good, 3, 0);
    memcpy(before, colibri_session_logits(s), sizeof before);
    CHECK_EQUAL(colibri_session_append(s, bad, 2, &error), COLIBRI_ERR_NON_FINITE);
    CHECK(strstr(error.message, "layer 0") != NULL);
    CHECK_EQUAL(colibri_session_position(s), 3);
    CHECK(memcmp(before, colibri_session_logits(s), sizeof before) == 0);
    append_split(s, bad, 1, 0);
    memcpy(before, colibri_session_logits(s), sizeof before);
    colibri_session_reset(s);
    append_split(s, good, 3, 0);
    append_split(s, bad, 1, 0);
    CHECK(memcmp(before, colibri_session_logits(s), sizeof before) == 0);
    colibri_model_close(model);
    free(f.bytes);
}

static void test_experts_are_counted(void)
{
    struct build_file f;
    colibri_model *model;
    colibri_session *s;
    const int32_t *ids;
    const uint64_t *counts;
    uint32_t tokens, top_k, experts, i;
    uint64_t seen[5] = {0};
    static const int32_t prompt[] = {1, 2, 3, 4, 5, 6};

    build_variant(&f, &variants[3]); /* layer 0 is dense */
    CHECK_EQUAL(build_open(&f, f.size, NULL, &model, NULL), 0);
    CHECK_EQUAL(colibri_session_create(model, &s, NULL), 0);
    CHECK(colibri_session_routing(s, 1, &tokens, &top_k) == NULL);
    append_split(s, prompt, 6, 0);
    CHECK(colibri_session_routing(s, 0, &tokens, &top_k) == NULL);
    CHECK(colibri_session_routing(s, 9, &tokens, &top_k) == NULL);
    CHECK(colibri_expert_counts(model, 0, &experts) == NULL);
    CHECK(colibri_expert_counts(model, 9, &experts) == NULL);
    ids = colibri_session_routing(s, 1, &tokens, &top_k);
    CHECK_EQUAL(tokens, 6);
    CHECK_EQUAL(top_k, 2);
    for (i = 0; i < tokens * top_k; i++)
        seen[ids[i]]++;
    counts = colibri_expert_counts(model, 1, &experts);
    CHECK_EQUAL(experts, 5);
    for (i = 0; i < experts; i++)
        CHECK_EQUAL(counts[i], seen[i]);
    colibri_model_close(model);
    free(f.bytes);
}

static int write_variants(const char *folder)
{
    size_t v, i;
    uint32_t kv;

    for (v = 0; v < VARIANTS; v++) {
        struct build_file f;
        char path[512];
        FILE *out;

        build_variant(&f, &variants[v]);
        (void)snprintf(path, sizeof path, "%s/%s.colibri", folder, variants[v].name);
        out = fopen(path, "wb");
        if (out == NULL || fwrite(f.bytes, 1, f.size, out) != f.size || fclose(out) != 0) {
            printf("cannot write %s\n", path);
            return 1;
        }
        for (kv = 0; kv < 2; kv++) {
            struct run r = {1, 32, kv, 0, NULL};
            uint8_t hash[32];

            hash_run(&f, &r, hash);
            printf("%s %s ", variants[v].name, kv ? "f32" : "f16");
            for (i = 0; i < 32; i++)
                printf("%02x", hash[i]);
            printf("\n");
        }
        free(f.bytes);
    }
    return RESULT();
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return write_variants(argv[1]);
    RUN(test_splits_batches_and_threads_give_the_same_bits);
    RUN(test_instruction_sets_give_the_same_bits);
    RUN(test_the_kv_type_and_the_seed_change_the_bits);
    RUN(test_sessions_do_not_see_each_other);
    RUN(test_an_overflow_is_an_error_and_leaves_the_sequence_alone);
    RUN(test_experts_are_counted);
    return RESULT();
}
