/* SPDX-License-Identifier: MIT */
/*
 * Snapshots of sessions: what is restored continues with the same bits, and every rule of
 * docs/format.md, 11, is broken once: the code is right and the session is as before.
 */
#include <stddef.h>
#include <stdlib.h>

#include "check.h"
#include "sha256.h"
#include "snapshot.h"
#include "variants.h"

#define PREFIX 11
#define STEPS 6
#define AT(field) offsetof(struct cb_snapshot_header, field)

static struct build_file file;
static uint8_t snapshot[1 << 20], copy[1 << 20];
static colibri_model *model;
static colibri_session *session;

static void open_session(uint32_t variant, uint32_t kv, uint32_t context, uint32_t threads,
                         uint32_t residency)
{
    colibri_model_options o;
    colibri_error error = {0};

    build_variant(&file, &variants[variant]);
    colibri_model_options_default(&o);
    o.kv = kv;
    o.context_tokens = context;
    o.threads = threads;
    o.residency = residency;
    o.lock = COLIBRI_LOCK_OFF;
    if (build_open(&file, file.size, &o, &model, &error) != 0 ||
        colibri_session_create(model, &session, &error) != 0) {
        printf("cannot open: %s\n", error.message);
        exit(1);
    }
}

static void close_session(void)
{
    colibri_session_free(session);
    colibri_model_close(model);
    free(file.bytes);
}

static uint32_t vocabulary(void)
{
    colibri_model_info info = {.struct_size = sizeof info};

    CHECK_EQUAL(colibri_model_info_get(model, &info), 0);
    return info.vocabulary;
}

static void append_prefix(void)
{
    int32_t ids[PREFIX];
    int i;

    for (i = 0; i < PREFIX; i++)
        ids[i] = (i * 31 + 3) % (int32_t)vocabulary();
    CHECK_EQUAL(colibri_session_append(session, ids, PREFIX, NULL), 0);
}

/* The logits now and behind each of some sampled tokens. */
static void hash_rest(uint8_t hash[32])
{
    colibri_sha256 sha;
    int32_t id;
    int i;

    colibri_sha256_init(&sha);
    for (i = 0; i < STEPS; i++) {
        const float *logits = colibri_session_logits(session);

        if (!CHECK(logits != NULL))
            return;
        colibri_sha256_update(&sha, logits, 4 * (size_t)vocabulary());
        CHECK_EQUAL(colibri_session_sample(session, &id, NULL), 0);
        CHECK_EQUAL(colibri_session_append(session, &id, 1, NULL), 0);
    }
    colibri_sha256_final(&sha, hash);
}

static size_t save(void)
{
    size_t bytes = (size_t)colibri_session_snapshot_bytes(session);

    CHECK(bytes > 0 && bytes <= sizeof snapshot);
    CHECK_EQUAL(colibri_session_save(session, snapshot, bytes, NULL), 0);
    return bytes;
}

static void set_sampler(void)
{
    colibri_sampler sampler;

    colibri_sampler_default(&sampler);
    sampler.temperature = 1.0f;
    sampler.seed = 7;
    CHECK_EQUAL(colibri_session_set_sampler(session, &sampler, NULL), 0);
}

static void test_a_restored_session_continues_with_the_same_bits(void)
{
    uint8_t computed[32], restored[32];
    uint32_t v, kv;

    for (v = 0; v < VARIANTS; v++) {
        for (kv = 0; kv < 2; kv++) {
            size_t bytes;
            uint32_t position = 0;
            int32_t id, again;

            open_session(v, kv, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
            set_sampler();
            append_prefix();
            CHECK_EQUAL(colibri_session_sample(session, &id, NULL), 0);
            bytes = save();
            hash_rest(computed);
            close_session();
            /* another context, other threads, experts in slots */
            open_session(v, kv, 20, 3, v % 2 ? COLIBRI_RESIDENCY_STREAM : COLIBRI_RESIDENCY_RESIDENT);
            set_sampler();
            CHECK_EQUAL(colibri_session_restore(session, snapshot, bytes, NULL), 0);
            CHECK_EQUAL(colibri_session_position(session), PREFIX);
            CHECK_EQUAL(colibri_session_ids(session, &position)[PREFIX - 1],
                        (10 * 31 + 3) % (int32_t)vocabulary());
            CHECK_EQUAL(position, PREFIX);
            hash_rest(restored);
            CHECK(memcmp(computed, restored, sizeof restored) == 0);
            /* and once more, over a longer sequence; the sampler's counter is part of it */
            CHECK_EQUAL(colibri_session_restore(session, snapshot, bytes, NULL), 0);
            CHECK_EQUAL(colibri_session_sample(session, &id, NULL), 0);
            CHECK_EQUAL(colibri_session_restore(session, snapshot, bytes, NULL), 0);
            CHECK_EQUAL(colibri_session_sample(session, &again, NULL), 0);
            CHECK_EQUAL(again, id);
            close_session();
        }
    }
}

static void test_saving_twice_gives_the_same_bytes(void)
{
    size_t bytes;

    open_session(0, COLIBRI_KV_F16, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
    append_prefix();
    bytes = save();
    memcpy(copy, snapshot, bytes);
    memset(snapshot, 0xa5, sizeof snapshot);
    CHECK_EQUAL(save(), bytes);
    CHECK(memcmp(copy, snapshot, bytes) == 0);
    CHECK_EQUAL(snapshot[bytes], 0xa5);
    close_session();
}

static void test_there_is_nothing_to_save_without_logits(void)
{
    colibri_error error;
    size_t bytes;

    open_session(0, COLIBRI_KV_F16, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
    CHECK_EQUAL(colibri_session_snapshot_bytes(session), 0);
    CHECK_EQUAL(colibri_session_save(session, snapshot, sizeof snapshot, &error),
                COLIBRI_ERR_ARGUMENT);
    append_prefix();
    bytes = save();
    memset(snapshot, 0xa5, bytes);
    CHECK_EQUAL(colibri_session_save(session, snapshot, bytes - 1, &error), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(snapshot[0], 0xa5);
    close_session();
}

static void seal(uint8_t *data, size_t bytes)
{
    uint8_t hash[32];

    memset(data + AT(hash), 0, sizeof hash);
    cb_sha256(data, bytes, hash);
    memcpy(data + AT(hash), hash, sizeof hash);
}

/* Restoring `bytes` of `copy` fails with `code`, and the session does not notice. */
static void check_refused(size_t bytes, int code, const char *what)
{
    colibri_error error = {0};
    uint8_t before[32], after[32];
    size_t saved;
    static uint8_t own[1 << 20];

    append_prefix();
    saved = (size_t)colibri_session_snapshot_bytes(session);
    CHECK_EQUAL(colibri_session_save(session, own, saved, NULL), 0);
    memcpy(before, own + AT(hash), sizeof before);
    if (!CHECK_EQUAL(colibri_session_restore(session, copy, bytes, &error), code))
        printf("%s: %s\n", what, error.message);
    CHECK_EQUAL(error.code, code);
    CHECK_EQUAL(colibri_session_snapshot_bytes(session), saved);
    CHECK_EQUAL(colibri_session_save(session, own, saved, NULL), 0);
    memcpy(after, own + AT(hash), sizeof after);
    CHECK(memcmp(before, after, sizeof after) == 0);
    colibri_session_reset(session);
}

static void test_every_rule_has_its_code(void)
{
    static const struct {
        const char *what;
        size_t at;
        uint32_t value;
        int code;
    } rules[] = {
        {"magic", 0, 0, COLIBRI_ERR_SNAPSHOT},
        {"version", AT(version), 2, COLIBRI_ERR_SNAPSHOT},
        {"header size", AT(header_bytes), 128, COLIBRI_ERR_SNAPSHOT},
        {"root", AT(root) + 8, 1, COLIBRI_ERR_SNAPSHOT_OTHER},
        {"KV type f32", AT(kv), CB_KV_F32, COLIBRI_ERR_SNAPSHOT_OTHER},
        {"KV type int8", AT(kv), CB_KV_INT8, COLIBRI_ERR_SNAPSHOT_OTHER},
        {"KV type unknown", AT(kv), 99, COLIBRI_ERR_SNAPSHOT_OTHER},
        {"vocabulary", AT(vocabulary), 5, COLIBRI_ERR_SNAPSHOT},
        {"reserved", AT(reserved), 1, COLIBRI_ERR_SNAPSHOT},
        {"no tokens", AT(position), 0, COLIBRI_ERR_SNAPSHOT},
        {"fewer tokens", AT(position), PREFIX - 1, COLIBRI_ERR_SNAPSHOT},
        {"more tokens than the context", AT(position), 0xffffffff, COLIBRI_ERR_CONTEXT_FULL},
        {"size", AT(total_bytes), 112, COLIBRI_ERR_SNAPSHOT},
        {"size beyond 2^32", AT(total_bytes) + 4, 1, COLIBRI_ERR_SNAPSHOT},
        {"id", CB_SNAPSHOT_HEADER_BYTES + 4, 0x7fffffff, COLIBRI_ERR_SNAPSHOT},
        {"negative id", CB_SNAPSHOT_HEADER_BYTES + 8, 0xffffffff, COLIBRI_ERR_SNAPSHOT},
        {"logit not a number", CB_SNAPSHOT_HEADER_BYTES + 4 * PREFIX + 4, 0x7fc00000,
         COLIBRI_ERR_SNAPSHOT},
    };
    size_t bytes, i;

    open_session(0, COLIBRI_KV_F16, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
    append_prefix();
    bytes = save();
    colibri_session_reset(session);
    for (i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        memcpy(copy, snapshot, bytes);
        memcpy(copy + rules[i].at, &rules[i].value, 4);
        seal(copy, bytes);
        check_refused(bytes, rules[i].code, rules[i].what);
    }
    memcpy(copy, snapshot, bytes);
    copy[bytes - 1] = 0x7c; /* the last f16 becomes an infinity */
    copy[bytes - 2] = 0;
    seal(copy, bytes);
    check_refused(bytes, COLIBRI_ERR_SNAPSHOT, "value not finite");
    memcpy(copy, snapshot, bytes);
    check_refused(0, COLIBRI_ERR_SNAPSHOT, "empty");
    check_refused(CB_SNAPSHOT_HEADER_BYTES - 1, COLIBRI_ERR_SNAPSHOT, "cut header");
    check_refused(CB_SNAPSHOT_HEADER_BYTES, COLIBRI_ERR_SNAPSHOT, "header alone");
    check_refused(bytes - 1, COLIBRI_ERR_SNAPSHOT, "cut");
    check_refused(bytes + 1, COLIBRI_ERR_SNAPSHOT, "longer");
    CHECK_EQUAL(colibri_session_restore(session, snapshot, bytes, NULL), 0);
    close_session();
}

static void test_every_flipped_bit_is_found(void)
{
    size_t bytes, at;

    open_session(0, COLIBRI_KV_F16, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
    append_prefix();
    bytes = save();
    for (at = 0; at < bytes; at += at < 256 ? 1 : 37) {
        memcpy(copy, snapshot, bytes);
        copy[at] ^= (uint8_t)(1u << at % 8);
        CHECK_EQUAL(colibri_session_restore(session, copy, bytes, NULL), COLIBRI_ERR_SNAPSHOT);
    }
    close_session();
}

static void test_snapshots_of_other_models_and_types_are_told_apart(void)
{
    size_t bytes;

    open_session(1, COLIBRI_KV_F16, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
    append_prefix();
    bytes = save();
    memcpy(copy, snapshot, bytes);
    close_session();
    open_session(0, COLIBRI_KV_F16, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
    check_refused(bytes, COLIBRI_ERR_SNAPSHOT_OTHER, "another model");
    append_prefix();
    bytes = save();
    memcpy(copy, snapshot, bytes);
    close_session();
    open_session(0, COLIBRI_KV_F32, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
    check_refused(bytes, COLIBRI_ERR_SNAPSHOT_OTHER, "another KV type");
    close_session();
    open_session(0, COLIBRI_KV_F16, PREFIX - 1, 1, COLIBRI_RESIDENCY_RESIDENT);
    CHECK_EQUAL(colibri_session_restore(session, snapshot, bytes, NULL), COLIBRI_ERR_CONTEXT_FULL);
    CHECK_EQUAL(colibri_session_position(session), 0);
    close_session();
}

static void test_pointers_are_checked(void)
{
    open_session(0, COLIBRI_KV_F16, 40, 1, COLIBRI_RESIDENCY_RESIDENT);
    CHECK_EQUAL(colibri_session_save(NULL, snapshot, 1, NULL), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(colibri_session_save(session, NULL, 1, NULL), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(colibri_session_restore(NULL, snapshot, 1, NULL), COLIBRI_ERR_ARGUMENT);
    CHECK_EQUAL(colibri_session_restore(session, NULL, 1, NULL), COLIBRI_ERR_ARGUMENT);
    close_session();
}

int main(void)
{
    RUN(test_a_restored_session_continues_with_the_same_bits);
    RUN(test_saving_twice_gives_the_same_bytes);
    RUN(test_there_is_nothing_to_save_without_logits);
    RUN(test_every_rule_has_its_code);
    RUN(test_every_flipped_bit_is_found);
    RUN(test_snapshots_of_other_models_and_types_are_told_apart);
    RUN(test_pointers_are_checked);
    return RESULT();
}
