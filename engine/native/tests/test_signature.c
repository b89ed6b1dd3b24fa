/* SPDX-License-Identifier: MIT */
/* The signature section: structure in every build, ed25519 where libsodium is there. */
#include <stddef.h>

#include "builder.h"
#include "check.h"
#include "signature.h"

#ifdef CB_HAVE_SIGNATURES
#include <sodium/crypto_sign_ed25519.h>
#endif

#define SECTION CB_SIGNATURE_SECTION_BYTES
#define SIGNED_PART 72 /* algorithm, reserved, key id, golden hash */

static struct build_file file;
static uint8_t public_key[32];
#ifdef CB_HAVE_SIGNATURES
static uint8_t secret_key[64];
#endif

/* ---- making signed files ------------------------------------------------------------------------- */

static void make_key(uint8_t fill)
{
#ifdef CB_HAVE_SIGNATURES
    uint8_t seed[32];

    memset(seed, fill, sizeof seed);
    (void)crypto_sign_ed25519_seed_keypair(public_key, secret_key, seed);
#else
    memset(public_key, fill, sizeof public_key);
#endif
}

static void put_u64(size_t at, uint64_t value)
{
    memcpy(file.bytes + at, &value, sizeof value);
}

/* An unsigned file with room for a signature. */
static void fresh(void)
{
    struct build_recipe recipe;
    uint8_t *bytes;

    free(file.bytes);
    build_defaults(&recipe);
    build(&file, &recipe);
    bytes = realloc(file.bytes, file.size + 4096);
    if (bytes == NULL)
        abort();
    memset(bytes + file.size, 0, 4096);
    file.bytes = bytes;
}

/* The message of docs/format.md, section 7, over the root that stands in the header. */
static void sign(uint8_t *section)
{
    static const uint8_t zero[64];
    uint8_t message[128];

    memcpy(message, "colibri model signature", 24);
    memcpy(message + 24, section, SIGNED_PART);
    memcpy(message + 96, file.bytes + 48, 32);
#ifdef CB_HAVE_SIGNATURES
    (void)crypto_sign_ed25519_detached(section + 72, NULL, message, sizeof message, secret_key);
    (void)zero;
#else
    (void)message;
    memcpy(section + 72, zero, sizeof zero);
#endif
    cb_sha256(section, 136, section + 136);
}

/* fresh(), then a signature by the current key that covers golden results. */
static uint8_t *fresh_signed(void)
{
    uint32_t sections = 6, algorithm = 1;
    uint8_t *section;

    fresh();
    build_section(&file, 5, CB_SECTION_SIGNATURE, file.size, SECTION);
    section = file.bytes + file.size;
    file.size += 4096;
    put_u64(24, CB_OPTIONAL_SIGNED);
    put_u64(32, file.size);
    memcpy(file.bytes + 40, &sections, 4);
    memcpy(section, &algorithm, 4);
    cb_sha256(public_key, sizeof public_key, section + 8);
    memset(section + 40, 0x5a, 32);
    build_seal_root(&file);
    sign(section);
    return section;
}

static int open_with(const uint8_t *key, uint32_t required, colibri_report *report,
                     colibri_error *error)
{
    colibri_model_options options;
    colibri_model *model = NULL;
    int code;

    memset(error, 0, sizeof *error);
    colibri_model_options_default(&options);
    options.threads = 1;
    options.lock = COLIBRI_LOCK_OFF;
    options.public_key = key;
    options.require_signature = required;
    code = build_open(&file, file.size, &options, &model, error);
    CHECK((code == 0) == (model != NULL));
    if (code == 0) {
        report->struct_size = sizeof *report;
        CHECK_EQUAL(colibri_model_report(model, report), 0);
    }
    colibri_model_close(model);
    return code;
}

static void refuse(const uint8_t *key, uint32_t required, int wanted, const char *word)
{
    colibri_report report;
    colibri_error error;

    CHECK_EQUAL(open_with(key, required, &report, &error), wanted);
    if (strstr(error.message, word) == NULL)
        printf("\"%s\" does not say %s\n", error.message, word);
    CHECK(strstr(error.message, word) != NULL);
}

/* ---- every build --------------------------------------------------------------------------------- */

static void test_a_model_without_signature_opens_and_says_so(void)
{
    static const uint8_t zero[32];
    colibri_report report;
    colibri_error error;

    fresh();
    CHECK_EQUAL(open_with(NULL, 0, &report, &error), 0);
    CHECK_EQUAL(report.signature, COLIBRI_SIGNATURE_NONE);
    CHECK(memcmp(report.key_id, zero, 32) == 0);
    CHECK(memcmp(report.golden_sha256, zero, 32) == 0);
}

static void test_a_signature_that_nobody_checks_is_reported_as_unchecked(void)
{
    colibri_report report;
    colibri_error error;
    const uint8_t *section = fresh_signed();

    CHECK_EQUAL(open_with(NULL, 0, &report, &error), 0);
    CHECK_EQUAL(report.signature, COLIBRI_SIGNATURE_UNCHECKED);
    CHECK(memcmp(report.key_id, section + 8, 32) == 0);
    CHECK_EQUAL(report.golden_sha256[0], 0x5a);
}

static void test_every_flipped_bit_of_the_section_is_reported_without_a_key(void)
{
    struct cb_container container;
    struct cb_trust trust = {0};
    struct cb_signed result;
    colibri_error error;
    uint8_t *section = fresh_signed();
    size_t bit;

    CHECK_EQUAL(cb_container_open(&container, file.bytes, file.size, &error), 0);
    CHECK_EQUAL(cb_signature_check(&container, &trust, &result, &error), 0);
    for (bit = 0; bit < SECTION * 8; bit++) {
        section[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_EQUAL(cb_signature_check(&container, &trust, &result, &error), COLIBRI_ERR_SIGNATURE);
        CHECK_EQUAL(result.state, COLIBRI_SIGNATURE_NONE);
        section[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_padding_behind_the_section_is_checked(void)
{
    uint8_t *section = fresh_signed();

    section[SECTION] = 1;
    refuse(NULL, 0, COLIBRI_ERR_PADDING, "not 0");
    section[SECTION] = 0;
    section[4095] = 1;
    refuse(NULL, 0, COLIBRI_ERR_PADDING, "not 0");
}

static void test_a_section_of_another_size_is_refused(void)
{
    static const uint64_t sizes[] = {0, 1, SECTION - 1, SECTION + 1, 4096};
    size_t i;

    for (i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        (void)fresh_signed();
        put_u64(128 + 5 * 64 + 16, sizes[i]);
        if (sizes[i] == 0)
            file.size -= 4096; /* an empty section takes no room */
        put_u64(32, file.size);
        build_seal_root(&file);
        refuse(NULL, 0, COLIBRI_ERR_SIGNATURE, "must be 168");
    }
}

static void test_feature_bit_and_section_go_together(void)
{
    fresh();
    put_u64(24, CB_OPTIONAL_SIGNED);
    build_seal_root(&file);
    refuse(NULL, 0, COLIBRI_ERR_SIGNATURE, "go together");
    (void)fresh_signed();
    put_u64(24, 0);
    build_seal_root(&file);
    refuse(NULL, 0, COLIBRI_ERR_SIGNATURE, "go together");
}

static void test_unknown_algorithms_and_reserved_bits_are_named(void)
{
    uint8_t *section = fresh_signed();

    section[0] = 2;
    sign(section);
    refuse(NULL, 0, COLIBRI_ERR_SIGNATURE, "algorithm 2");
    section[0] = 1;
    section[5] = 1;
    sign(section);
    refuse(NULL, 0, COLIBRI_ERR_SIGNATURE, "reserved field");
}

static void test_the_build_says_whether_it_checks_signatures(void)
{
    uint8_t id[32];

#ifdef CB_HAVE_SIGNATURES
    CHECK_EQUAL(colibri_signature_support(id), 1);
#else
    CHECK_EQUAL(colibri_signature_support(id), 0);
#endif
    CHECK_EQUAL(id[0], 0);
    CHECK_EQUAL(colibri_signature_support(NULL), colibri_signature_support(id));
}

#ifndef CB_HAVE_SIGNATURES

static void test_a_check_that_this_build_cannot_make_is_an_error(void)
{
    (void)fresh_signed();
    refuse(public_key, 0, COLIBRI_ERR_SIGNATURE, "without libsodium");
    refuse(NULL, 1, COLIBRI_ERR_SIGNATURE, "without libsodium");
    fresh();
    refuse(public_key, 1, COLIBRI_ERR_SIGNATURE, "without libsodium");
}

#else

/* ---- with libsodium ------------------------------------------------------------------------------ */

static void test_a_signature_of_the_trusted_key_is_accepted(void)
{
    colibri_report report;
    colibri_error error;

    (void)fresh_signed();
    CHECK_EQUAL(open_with(public_key, 0, &report, &error), 0);
    CHECK_EQUAL(report.signature, COLIBRI_SIGNATURE_VERIFIED);
    CHECK_EQUAL(open_with(public_key, 1, &report, &error), 0);
    CHECK_EQUAL(report.signature, COLIBRI_SIGNATURE_VERIFIED);
}

static void test_naming_a_key_asks_for_a_signature(void)
{
    fresh();
    refuse(public_key, 0, COLIBRI_ERR_SIGNATURE, "not signed");
    refuse(public_key, 1, COLIBRI_ERR_SIGNATURE, "not signed");
}

static void test_requiring_a_signature_needs_a_key(void)
{
    (void)fresh_signed();
    refuse(NULL, 1, COLIBRI_ERR_ARGUMENT, "public_key");
    refuse(public_key, 2, COLIBRI_ERR_ARGUMENT, "require_signature is 2");
}

static void test_another_key_is_refused_by_its_id(void)
{
    (void)fresh_signed();
    make_key(8);
    refuse(public_key, 0, COLIBRI_ERR_SIGNATURE, "signed by the key with id");
    make_key(7);
}

/* Someone else's signature under the trusted key's id. */
static void test_a_forged_key_id_does_not_help(void)
{
    uint8_t trusted[32];
    uint8_t *section = fresh_signed();

    memcpy(trusted, public_key, sizeof trusted);
    make_key(8);
    sign(section);
    refuse(trusted, 0, COLIBRI_ERR_SIGNATURE, "not one of the trusted key");
    make_key(7);
}

static void test_the_signature_of_another_model_is_refused(void)
{
    uint8_t other[SECTION];
    uint8_t *section = fresh_signed();

    memcpy(other, section, sizeof other);
    /* another provenance: the smallest change of a model */
    file.bytes[file.section[CB_SECTION_PROVENANCE] + 3] ^= 1;
    build_seal(&file);
    memcpy(section, other, sizeof other);
    refuse(public_key, 0, COLIBRI_ERR_SIGNATURE, "not one of the trusted key");
}

static void test_a_signature_of_the_unsigned_root_is_refused(void)
{
    uint8_t unsigned_root[32], signed_root[32];
    uint8_t *section;

    fresh();
    memcpy(unsigned_root, file.bytes + 48, 32);
    section = fresh_signed();
    memcpy(signed_root, file.bytes + 48, 32);
    CHECK(memcmp(unsigned_root, signed_root, 32) != 0);
    memcpy(file.bytes + 48, unsigned_root, 32);
    sign(section);
    memcpy(file.bytes + 48, signed_root, 32);
    refuse(public_key, 0, COLIBRI_ERR_SIGNATURE, "not one of the trusted key");
}

static void test_a_signature_without_the_domain_is_refused(void)
{
    uint8_t *section = fresh_signed();

    (void)crypto_sign_ed25519_detached(section + 72, NULL, file.bytes + 48, 32, secret_key);
    cb_sha256(section, 136, section + 136);
    refuse(public_key, 0, COLIBRI_ERR_SIGNATURE, "not one of the trusted key");
}

/* An attacker makes the checksum right: only the key's owner can make the signature right. */
static void test_every_flipped_bit_under_a_right_checksum_is_reported_with_a_key(void)
{
    struct cb_container container;
    struct cb_trust trust = {.key = public_key, .required = 1};
    struct cb_signed result;
    colibri_error error;
    uint8_t *section = fresh_signed();
    size_t bit;

    CHECK_EQUAL(cb_container_open(&container, file.bytes, file.size, &error), 0);
    CHECK_EQUAL(cb_signature_check(&container, &trust, &result, &error), 0);
    for (bit = 0; bit < 136 * 8; bit++) {
        section[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cb_sha256(section, 136, section + 136);
        CHECK_EQUAL(cb_signature_check(&container, &trust, &result, &error), COLIBRI_ERR_SIGNATURE);
        section[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

static void test_records_of_a_stranger_are_not_parsed(void)
{
    /* a record that is malformed under a right root: the signature is looked at first */
    (void)fresh_signed();
    file.bytes[file.section[CB_SECTION_RECORDS] + 9] ^= 0xff;
    build_seal_root(&file);
    refuse(public_key, 0, COLIBRI_ERR_SIGNATURE, "not one of the trusted key");
    refuse(NULL, 0, COLIBRI_ERR_RECORD, "");
}

static void from_hex(const char *text, uint8_t *out)
{
    size_t i;

    for (i = 0; text[2 * i] != '\0'; i++) {
        unsigned byte;

        CHECK_EQUAL(sscanf(text + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
}

/* RFC 8032, section 7.1, tests 1 to 3. */
static void test_ed25519_gives_the_vectors_of_rfc_8032(void)
{
    static const struct {
        const char *key, *message, *signature;
    } vectors[] = {
        {"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
         "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
         "d25bf5f0595bbe24655141438e7a100b"},
        {"3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
         "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
         "387b2eaeb4302aeeb00d291612bb0c00"},
        {"fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
         "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
         "4a7c15e9716ed28dc027beceea1ec40a"},
    };
    size_t i;

    for (i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        uint8_t key[32], message[2], value[64];
        size_t length = strlen(vectors[i].message) / 2;

        from_hex(vectors[i].key, key);
        from_hex(vectors[i].message, message);
        from_hex(vectors[i].signature, value);
        CHECK_EQUAL(crypto_sign_ed25519_verify_detached(value, message, length, key), 0);
        value[0] ^= 1;
        CHECK_EQUAL(crypto_sign_ed25519_verify_detached(value, message, length, key), -1);
    }
}

/* y coordinates of the points whose order divides 8, and encodings with y >= p: under such a key a
 * signature holds for messages that nobody signed. */
static void test_keys_of_small_order_and_odd_encodings_are_refused(void)
{
    static const char *const keys[] = {
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    };
    static const char message[] = "anything";
    size_t i;

    for (i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint8_t key[32], value[64] = {1}; /* R = the neutral point, s = 0 */

        from_hex(keys[i], key);
        CHECK_EQUAL(crypto_sign_ed25519_verify_detached(value, (const uint8_t *)message, 8, key), -1);
    }
}

/* s + L verifies in lax implementations: the same signature would have two encodings. */
static void test_an_s_above_the_group_order_is_refused(void)
{
    static const uint8_t order[32] = {0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7,
                                      0xa2, 0xde, 0xf9, 0xde, 0x14, 0,    0,    0,    0,    0,    0,
                                      0,    0,    0,    0,    0,    0,    0,    0,    0,    0x10};
    uint8_t *section = fresh_signed();
    unsigned carry = 0;
    size_t i;

    for (i = 0; i < 32; i++) {
        carry += (unsigned)section[104 + i] + order[i];
        section[104 + i] = (uint8_t)carry;
        carry >>= 8;
    }
    cb_sha256(section, 136, section + 136);
    refuse(public_key, 0, COLIBRI_ERR_SIGNATURE, "not one of the trusted key");
}

#endif

int main(void)
{
    make_key(7);
    RUN(test_a_model_without_signature_opens_and_says_so);
    RUN(test_a_signature_that_nobody_checks_is_reported_as_unchecked);
    RUN(test_every_flipped_bit_of_the_section_is_reported_without_a_key);
    RUN(test_padding_behind_the_section_is_checked);
    RUN(test_a_section_of_another_size_is_refused);
    RUN(test_feature_bit_and_section_go_together);
    RUN(test_unknown_algorithms_and_reserved_bits_are_named);
    RUN(test_the_build_says_whether_it_checks_signatures);
#ifndef CB_HAVE_SIGNATURES
    RUN(test_a_check_that_this_build_cannot_make_is_an_error);
#else
    RUN(test_a_signature_of_the_trusted_key_is_accepted);
    RUN(test_naming_a_key_asks_for_a_signature);
    RUN(test_requiring_a_signature_needs_a_key);
    RUN(test_another_key_is_refused_by_its_id);
    RUN(test_a_forged_key_id_does_not_help);
    RUN(test_the_signature_of_another_model_is_refused);
    RUN(test_a_signature_of_the_unsigned_root_is_refused);
    RUN(test_a_signature_without_the_domain_is_refused);
    RUN(test_every_flipped_bit_under_a_right_checksum_is_reported_with_a_key);
    RUN(test_records_of_a_stranger_are_not_parsed);
    RUN(test_ed25519_gives_the_vectors_of_rfc_8032);
    RUN(test_keys_of_small_order_and_odd_encodings_are_refused);
    RUN(test_an_s_above_the_group_order_is_refused);
#endif
    free(file.bytes);
    return RESULT();
}
