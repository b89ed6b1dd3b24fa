/* SPDX-License-Identifier: MIT */
/* Files that break one rule each: the error code and, where it is one place, its offset. */
#include <stddef.h>

#include "builder.h"
#include "check.h"

static struct build_recipe recipe;
static struct build_file file;

static void fresh(void)
{
    free(file.bytes);
    build_defaults(&recipe);
    build(&file, &recipe);
}

static int open_now(int verify, colibri_error *error)
{
    colibri_model_options options;
    colibri_model *model = NULL;
    int code;

    memset(error, 0, sizeof *error);
    colibri_model_options_default(&options);
    options.threads = 2;
    options.lock = COLIBRI_LOCK_OFF;
    options.verify = (uint32_t)verify;
    code = build_open(&file, file.size, &options, &model, error);
    CHECK((code == 0) == (model != NULL));
    CHECK_EQUAL(error->code, code);
    if (code != 0)
        CHECK(error->message[0] != '\0');
    colibri_model_close(model);
    return code;
}

/* Put `value` of `bytes` bytes at `offset`, make the root match, open. */
static void expect(uint64_t offset, size_t bytes, uint64_t value, int wanted, int line)
{
    colibri_error error;
    int code;

    memcpy(file.bytes + offset, &value, bytes);
    build_seal_root(&file);
    code = open_now(COLIBRI_VERIFY_OPEN, &error);
    if (code != wanted)
        printf("line %d, offset %llu: %d (%s), must be %d\n", line, (unsigned long long)offset, code,
               error.message, wanted);
    CHECK(code == wanted);
}
/* On a fresh file, which the arguments may look into. */
#define EXPECT(offset, bytes, value, wanted) \
    (fresh(), expect(offset, bytes, value, wanted, __LINE__))

static void test_the_unchanged_file_opens(void)
{
    colibri_error error;

    fresh();
    CHECK_EQUAL(open_now(COLIBRI_VERIFY_OPEN, &error), 0);
}

static void test_every_cut_of_the_file_is_refused(void)
{
    static const size_t near[] = {0, 1, 7, 8, 9, 127, 4095, 4096};
    size_t i, cut;

    fresh();
    for (i = 0; i < sizeof near / sizeof near[0]; i++) {
        colibri_model *model;
        int wanted = near[i] == 0 ? COLIBRI_ERR_EMPTY : COLIBRI_ERR_TRUNCATED;

        CHECK_EQUAL(build_open(&file, near[i], NULL, &model, NULL), wanted);
    }
    for (i = CB_SECTION_RECORDS; i < CB_SECTION_KINDS; i++) {
        for (cut = 0; file.section[i] != 0 && cut < 2; cut++) {
            colibri_model *model;
            size_t size = (size_t)(file.section[i] + (cut ? file.section_size[i] : 0));

            if (size < file.size)
                CHECK_EQUAL(build_open(&file, size, NULL, &model, NULL), COLIBRI_ERR_TRUNCATED);
        }
    }
    CHECK_EQUAL(file.size % 4096, 0);
}

static void test_a_longer_file_is_refused(void)
{
    uint64_t size;

    fresh();
    size = file.size - 4096;
    EXPECT(32, 8, size, COLIBRI_ERR_HEADER);
}

static void test_header_rules(void)
{
    EXPECT(0, 1, 'X', COLIBRI_ERR_BAD_MAGIC);
    EXPECT(7, 1, 0, COLIBRI_ERR_BAD_MAGIC);
    EXPECT(8, 2, CB_VERSION_MAJOR + 1, COLIBRI_ERR_VERSION);
    EXPECT(10, 2, 999, 0); /* minor versions only add optional things */
    EXPECT(12, 4, 8192, COLIBRI_ERR_HEADER);
    EXPECT(16, 8, UINT64_C(1) << 40, COLIBRI_ERR_FEATURE);
    EXPECT(24, 8, UINT64_C(1) << 63, 0);
    EXPECT(32, 8, UINT64_MAX, COLIBRI_ERR_LIMIT);
    EXPECT(32, 8, UINT64_C(1) << 40, COLIBRI_ERR_TRUNCATED);
    EXPECT(40, 4, 4, COLIBRI_ERR_SECTION);
    EXPECT(40, 4, 17, COLIBRI_ERR_SECTION);
    EXPECT(40, 4, 6, COLIBRI_ERR_SECTION);
    EXPECT(44, 4, 4096, COLIBRI_ERR_HEADER);
    EXPECT(80, 1, 1, COLIBRI_ERR_HEADER);
    EXPECT(127, 1, 1, COLIBRI_ERR_HEADER);
    EXPECT(128 + 5 * 64, 1, 1, COLIBRI_ERR_HEADER);
    EXPECT(4095, 1, 1, COLIBRI_ERR_HEADER);
}

static void test_section_table_rules(void)
{
    uint64_t entry;
    uint32_t i;

    EXPECT(128, 4, 9, COLIBRI_ERR_SECTION);
    EXPECT(128, 4, 0, COLIBRI_ERR_SECTION);
    EXPECT(128 + 64, 4, CB_SECTION_RECORDS, COLIBRI_ERR_SECTION);
    EXPECT(128 + 2 * 64, 4, CB_SECTION_TOKENIZER, COLIBRI_ERR_SECTION); /* provenance is missing */
    for (i = 0; i < 5; i++) {
        entry = 128 + 64 * (uint64_t)i;
        EXPECT(entry + 4, 4, 1, COLIBRI_ERR_SECTION);
        EXPECT(entry + 24, 8, 1, COLIBRI_ERR_SECTION);
        EXPECT(entry + 8, 8, 64, COLIBRI_ERR_SECTION);
        EXPECT(entry + 8, 8, UINT64_MAX, COLIBRI_ERR_SECTION);
        EXPECT(entry + 16, 8, UINT64_MAX, COLIBRI_ERR_LIMIT);
        EXPECT(entry + 32, 1, 0xff, i == 2 ? COLIBRI_ERR_CHUNK_MISMATCH : COLIBRI_ERR_SECTION);
    }
    EXPECT(128 + 4 * 64 + 16, 8, 4096, COLIBRI_ERR_SECTION);
    EXPECT(128 + 4 * 64 + 16, 8, UINT64_C(1) << 61, COLIBRI_ERR_SECTION);
}

static void test_a_wrong_root_is_refused(void)
{
    colibri_error error;
    size_t places[3], i;

    fresh();
    places[0] = 48;
    places[1] = (size_t)file.section[CB_SECTION_RECORDS] + 8;
    places[2] = (size_t)(file.section[CB_SECTION_DIRECTORY] + file.section_size[CB_SECTION_DIRECTORY] - 1);
    for (i = 0; i < 3; i++) {
        fresh();
        file.bytes[places[i]] ^= 1;
        CHECK_EQUAL(open_now(COLIBRI_VERIFY_FIRST, &error), COLIBRI_ERR_ROOT_MISMATCH);
    }
}

/* Offset in the file of a field of the n-th block of a type. */
static uint64_t block(uint32_t type, uint32_t n, size_t field)
{
    const uint8_t *records = file.bytes + file.section[CB_SECTION_RECORDS];
    size_t at = 0;

    for (;;) {
        uint16_t found;
        uint32_t size;

        memcpy(&found, records + at, 2);
        memcpy(&size, records + at + 4, 4);
        if (found == type && n-- == 0)
            return file.section[CB_SECTION_RECORDS] + at + 8 + field;
        at += 8 + size;
    }
}
#define MODEL(name) block(CB_BLOCK_MODEL, 0, offsetof(struct cb_block_model, name))
#define LAYER(name) block(CB_BLOCK_LAYER, 1, offsetof(struct cb_block_layer, name))
#define ATTENTION(name) block(CB_BLOCK_ATTENTION, 1, offsetof(struct cb_block_attention, name))
#define MOE(name) block(CB_BLOCK_MOE, 0, offsetof(struct cb_block_moe, name))
#define NOT_A_NUMBER 0x7fc00000u
#define INFINITE 0xff800000u

static void test_record_rules(void)
{
    fresh();
    EXPECT(MODEL(hidden), 4, 0, COLIBRI_ERR_RECORD);
    EXPECT(MODEL(hidden), 4, CB_MAX_HIDDEN + 1, COLIBRI_ERR_LIMIT);
    EXPECT(MODEL(layers), 4, CB_MAX_LAYERS + 1, COLIBRI_ERR_LIMIT);
    EXPECT(MODEL(layers), 4, 1, COLIBRI_ERR_RECORD);
    EXPECT(MODEL(layers), 4, 3, COLIBRI_ERR_RECORD);
    EXPECT(MODEL(vocabulary), 4, UINT32_MAX, COLIBRI_ERR_LIMIT);
    EXPECT(MODEL(tied_head), 4, 2, COLIBRI_ERR_RECORD);
    EXPECT(MODEL(norm_eps), 4, NOT_A_NUMBER, COLIBRI_ERR_RECORD);
    EXPECT(MODEL(logits_multiplier), 4, INFINITE, COLIBRI_ERR_RECORD);
    EXPECT(MODEL(reserved), 4, 1, COLIBRI_ERR_RECORD);
    EXPECT(MODEL(family), 4, 1000, COLIBRI_ERR_RECORD);
    EXPECT(LAYER(index), 4, 0, COLIBRI_ERR_RECORD);
    EXPECT(LAYER(mixer_kind), 4, CB_MIXER_MLA, COLIBRI_ERR_RECORD);
    EXPECT(LAYER(mixer_kind), 4, CB_MIXER_STATE_SPACE, COLIBRI_ERR_UNSUPPORTED);
    EXPECT(LAYER(mixer_kind), 4, 77, COLIBRI_ERR_RECORD);
    EXPECT(LAYER(norm_places), 4, 16, COLIBRI_ERR_RECORD);
    EXPECT(LAYER(ffn_kind), 4, CB_FFN_DENSE, COLIBRI_ERR_RECORD);
    EXPECT(ATTENTION(kv_heads), 4, 3, COLIBRI_ERR_RECORD);
    EXPECT(ATTENTION(heads), 4, CB_MAX_HEADS + 1, COLIBRI_ERR_LIMIT);
    EXPECT(ATTENTION(rope_table), 4, 1, COLIBRI_ERR_RECORD);
    EXPECT(ATTENTION(head_dim), 4, 7, COLIBRI_ERR_RECORD); /* the table rotates 8 */
    EXPECT(ATTENTION(window_tokens), 4, CB_MAX_CONTEXT_TOKENS + 1, COLIBRI_ERR_LIMIT);
    EXPECT(MOE(top_k), 4, 6, COLIBRI_ERR_RECORD);
    EXPECT(MOE(top_k), 4, CB_MAX_TOP_K + 1, COLIBRI_ERR_LIMIT);
    EXPECT(MOE(experts), 4, CB_MAX_EXPERTS + 1, COLIBRI_ERR_LIMIT);
    EXPECT(MOE(groups), 4, 2, COLIBRI_ERR_RECORD);
    EXPECT(MOE(routed_scale), 4, NOT_A_NUMBER, COLIBRI_ERR_RECORD);
    EXPECT(block(CB_BLOCK_ROPE, 0, 4), 4, 5, COLIBRI_ERR_RECORD);
    EXPECT(block(CB_BLOCK_ROPE, 0, 16), 4, 0x3f800001, COLIBRI_ERR_RECORD); /* above 1 */
    EXPECT(block(CB_BLOCK_ROPE, 0, 16), 4, NOT_A_NUMBER, COLIBRI_ERR_RECORD);
}

static void test_block_rules(void)
{
    fresh();
    EXPECT(MODEL(family) - 8, 2, 200, COLIBRI_ERR_RECORD); /* unknown, required */
    EXPECT(LAYER(index) - 6, 2, 2, COLIBRI_ERR_RECORD);    /* unknown flag */
    EXPECT(LAYER(index) - 4, 4, 36, COLIBRI_ERR_RECORD);
    EXPECT(LAYER(index) - 4, 4, 41, COLIBRI_ERR_RECORD);
    EXPECT(LAYER(index) - 4, 4, UINT32_MAX - 3, COLIBRI_ERR_RECORD);
    EXPECT(block(CB_BLOCK_MOE, 1, 0) - 8, 2, CB_BLOCK_SHARED, COLIBRI_ERR_RECORD);
}

static uint64_t extent_entry(uint32_t index, size_t field)
{
    return file.section[CB_SECTION_DIRECTORY] + 16 + 64 * (uint64_t)index + field;
}

static uint64_t tensor_entry(uint32_t index, size_t field)
{
    return extent_entry(file.extent_count, 0) + 48 * (uint64_t)index + field;
}

static void test_directory_rules(void)
{
    uint64_t at;

    fresh();
    at = file.section[CB_SECTION_DIRECTORY];
    EXPECT(at, 4, file.extent_count + 1, COLIBRI_ERR_DIRECTORY);
    EXPECT(at, 4, CB_MAX_EXTENTS + 1, COLIBRI_ERR_LIMIT);
    EXPECT(at + 4, 4, file.tensor_count - 1, COLIBRI_ERR_DIRECTORY);
    EXPECT(at + 4, 4, CB_MAX_TENSORS + 1, COLIBRI_ERR_LIMIT);
    EXPECT(at + 8, 8, 1, COLIBRI_ERR_DIRECTORY);
}

static void test_extent_rules(void)
{
    uint32_t i;

    fresh();
    for (i = 0; i < file.extent_count; i += 2) {
        EXPECT(extent_entry(i, offsetof(struct cb_extent, kind)), 4, 3, COLIBRI_ERR_EXTENT);
        EXPECT(extent_entry(i, offsetof(struct cb_extent, layer)), 4, 7, COLIBRI_ERR_EXTENT);
        EXPECT(extent_entry(i, offsetof(struct cb_extent, expert)), 4, 9, COLIBRI_ERR_EXTENT);
        EXPECT(extent_entry(i, offsetof(struct cb_extent, reserved)), 4, 1, COLIBRI_ERR_EXTENT);
        EXPECT(extent_entry(i, offsetof(struct cb_extent, offset)), 8, 4096, COLIBRI_ERR_EXTENT);
        EXPECT(extent_entry(i, offsetof(struct cb_extent, size)), 8, 1, COLIBRI_ERR_EXTENT);
        EXPECT(extent_entry(i, offsetof(struct cb_extent, size)), 8, UINT64_C(1) << 63,
               COLIBRI_ERR_EXTENT);
        EXPECT(extent_entry(i, offsetof(struct cb_extent, size)), 8, 0, COLIBRI_ERR_EXTENT);
        EXPECT(extent_entry(i, offsetof(struct cb_extent, hash)), 1, 0xa5, COLIBRI_ERR_CHUNK_MISMATCH);
    }
}

static void test_tensor_rules(void)
{
    uint32_t i;

    fresh();
    for (i = 0; i < file.tensor_count; i++) {
        EXPECT(tensor_entry(i, offsetof(struct cb_tensor, dtype)), 4, 6, COLIBRI_ERR_TENSOR);
        EXPECT(tensor_entry(i, offsetof(struct cb_tensor, layout)), 4, 2, COLIBRI_ERR_TENSOR);
        EXPECT(tensor_entry(i, offsetof(struct cb_tensor, rows)), 4, 0, COLIBRI_ERR_TENSOR);
        EXPECT(tensor_entry(i, offsetof(struct cb_tensor, columns)), 4, UINT32_MAX, COLIBRI_ERR_TENSOR);
        EXPECT(tensor_entry(i, offsetof(struct cb_tensor, offset)), 8, UINT64_MAX - 63, COLIBRI_ERR_TENSOR);
        EXPECT(tensor_entry(i, offsetof(struct cb_tensor, size)), 8, 64, COLIBRI_ERR_TENSOR);
        EXPECT(tensor_entry(i, offsetof(struct cb_tensor, reserved)), 4, 1, COLIBRI_ERR_TENSOR);
    }
    EXPECT(tensor_entry(0, offsetof(struct cb_tensor, role)), 4, 5000, COLIBRI_ERR_TENSOR);
    EXPECT(tensor_entry(1, offsetof(struct cb_tensor, role)), 4, CB_ROLE_EMBEDDING, COLIBRI_ERR_TENSOR);
    /* another layer: what is left of its own is missing */
    EXPECT(tensor_entry(4, offsetof(struct cb_tensor, layer)), 4, 1, COLIBRI_ERR_MISSING_TENSOR);
    EXPECT(tensor_entry(file.tensor_count - 1, offsetof(struct cb_tensor, scope)), 4, 0,
           COLIBRI_ERR_MISSING_TENSOR);
}

static void test_padding_between_sections_is_checked(void)
{
    fresh();
    EXPECT(file.section[CB_SECTION_RECORDS] + file.section_size[CB_SECTION_RECORDS], 1, 1,
           COLIBRI_ERR_PADDING);
    EXPECT(file.section[CB_SECTION_TRUNK] - 1, 1, 1, COLIBRI_ERR_PADDING);
}

static void test_a_changed_weight_is_found_at_open(void)
{
    colibri_error error;
    uint32_t i;

    for (i = 0; i < file.extent_count; i++) {
        fresh();
        file.bytes[file.extents[i].offset + 40] ^= 4;
        CHECK_EQUAL(open_now(COLIBRI_VERIFY_OPEN, &error), COLIBRI_ERR_CHUNK_MISMATCH);
        CHECK_EQUAL(error.offset, file.extents[i].offset);
    }
}

static void test_a_changed_weight_is_found_at_first_touch(void)
{
    uint32_t i;

    for (i = 0; i < file.extent_count; i++) {
        colibri_model *model;
        colibri_session *session;
        int32_t ids[60];
        int code, id;

        fresh();
        file.bytes[file.extents[i].offset + 40] ^= 4;
        CHECK_EQUAL(build_open(&file, file.size, NULL, &model, NULL), 0);
        CHECK_EQUAL(colibri_session_create(model, &session, NULL), 0);
        for (id = 0; id < 60; id++) /* enough tokens that every expert is asked */
            ids[id] = id;
        code = colibri_session_append(session, ids, 60, NULL);
        CHECK_EQUAL(code, COLIBRI_ERR_CHUNK_MISMATCH);
        CHECK_EQUAL(colibri_session_position(session), 0);
        colibri_session_free(session);
        colibri_model_close(model);
    }
}

/* Change a byte of an extent and make every hash match. */
static void expect_sealed(uint64_t offset, uint8_t value, int wanted, int line)
{
    colibri_error error;
    int code;

    file.bytes[offset] = value;
    build_seal(&file);
    code = open_now(COLIBRI_VERIFY_OPEN, &error);
    if (code != wanted)
        printf("line %d: %d (%s), must be %d\n", line, code, error.message, wanted);
    CHECK(code == wanted);
    if (wanted != 0)
        CHECK(error.offset <= (int64_t)offset && error.offset + 4096 > (int64_t)offset);
}
#define EXPECT_SEALED(offset, value, wanted) (fresh(), expect_sealed(offset, value, wanted, __LINE__))

static void test_values_and_padding_of_extents_are_checked(void)
{
    const struct cb_extent *expert;
    const struct cb_tensor *embedding, *norm, *gate;
    uint64_t at;

    fresh();
    embedding = &file.tensors[0];
    norm = &file.tensors[1];
    gate = &file.tensors[file.tensor_count - 3];
    at = file.extents[0].offset;
    EXPECT_SEALED(at + embedding->offset + 257, 0x7c, COLIBRI_ERR_WEIGHTS);  /* scale of row 0 */
    EXPECT_SEALED(at + embedding->offset + 272 + 96, 1, COLIBRI_ERR_PADDING); /* column 44 of 40 */
    EXPECT_SEALED(at + embedding->offset + 7 * 544 + 20, 1, COLIBRI_ERR_PADDING); /* row 61 of 61 */
    EXPECT_SEALED(at + embedding->offset + 7 * 544 + 266, 1, COLIBRI_ERR_PADDING); /* its scale */
    EXPECT_SEALED(at + norm->offset + 4 * 40, 1, COLIBRI_ERR_PADDING);
    EXPECT_SEALED(at + norm->offset + 3, 0x7f, 0);
    fresh();
    file.bytes[at + norm->offset + 2] |= 0x80; /* with 0x7f behind it: all exponent bits */
    expect_sealed(at + norm->offset + 3, 0x7f, COLIBRI_ERR_WEIGHTS, __LINE__);
    EXPECT_SEALED(at + norm->offset + norm->size + (64 - norm->size % 64) % 64 - 1, 1, COLIBRI_ERR_PADDING);
    EXPECT_SEALED(at + file.extents[0].size - 1, 1, COLIBRI_ERR_PADDING);
    expert = &file.extents[file.extent_count - 1];
    EXPECT_SEALED(expert->offset + gate->offset + 129, 0xfc, COLIBRI_ERR_WEIGHTS);
    EXPECT_SEALED(expert->offset + expert->size + 4095, 1, COLIBRI_ERR_PADDING); /* chunk table */
}

static void test_what_is_not_a_file_is_refused(void)
{
    colibri_model *model;
    colibri_error error;

    CHECK_EQUAL(colibri_model_open("/nonexistent/model.colibri", NULL, &model, &error), COLIBRI_ERR_OPEN);
    CHECK(strstr(error.message, "/nonexistent/model.colibri") != NULL);
    CHECK_EQUAL(colibri_model_open("/tmp", NULL, &model, &error), COLIBRI_ERR_OPEN);
    CHECK_EQUAL(colibri_model_open("/dev/null", NULL, &model, &error), COLIBRI_ERR_OPEN);
    CHECK_EQUAL(colibri_model_open(NULL, NULL, &model, &error), COLIBRI_ERR_ARGUMENT);
}

static void test_unsupported_kinds_are_named(void)
{
    colibri_error error;
    colibri_model *model;

    build_defaults(&recipe);
    recipe.layers[1].attention.softcap = 30.0f;
    free(file.bytes);
    build(&file, &recipe);
    CHECK_EQUAL(build_open(&file, file.size, NULL, &model, &error), COLIBRI_ERR_UNSUPPORTED);
    CHECK(strstr(error.message, "softcap") != NULL && strstr(error.message, "layer 1") != NULL);
    build_defaults(&recipe);
    recipe.layers[0].layer.parallel = 1;
    free(file.bytes);
    build(&file, &recipe);
    CHECK_EQUAL(build_open(&file, file.size, NULL, &model, &error), COLIBRI_ERR_UNSUPPORTED);
    CHECK(strstr(error.message, "parallel") != NULL);
}

int main(void)
{
    fresh();
    RUN(test_the_unchanged_file_opens);
    RUN(test_every_cut_of_the_file_is_refused);
    RUN(test_a_longer_file_is_refused);
    RUN(test_header_rules);
    RUN(test_section_table_rules);
    RUN(test_a_wrong_root_is_refused);
    RUN(test_record_rules);
    RUN(test_block_rules);
    RUN(test_directory_rules);
    RUN(test_extent_rules);
    RUN(test_tensor_rules);
    RUN(test_padding_between_sections_is_checked);
    RUN(test_a_changed_weight_is_found_at_open);
    RUN(test_a_changed_weight_is_found_at_first_touch);
    RUN(test_values_and_padding_of_extents_are_checked);
    RUN(test_what_is_not_a_file_is_refused);
    RUN(test_unsupported_kinds_are_named);
    free(file.bytes);
    return RESULT();
}
