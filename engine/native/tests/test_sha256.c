/* SPDX-License-Identifier: MIT */
#include <stdint.h>

#include "check.h"
#include "colibri.h"
#include "sha256.h"

static void check_hex(const uint8_t hash[32], const char *wanted)
{
    char text[65];
    int i;

    for (i = 0; i < 32; i++)
        (void)snprintf(text + 2 * i, 3, "%02x", hash[i]);
    if (strcmp(text, wanted) != 0)
        printf("%s, must be %s\n", text, wanted);
    CHECK(strcmp(text, wanted) == 0);
}

static void test_published_examples_match(void)
{
    uint8_t hash[32];

    cb_sha256("", 0, hash);
    check_hex(hash, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    cb_sha256("abc", 3, hash);
    check_hex(hash, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    cb_sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hash);
    check_hex(hash, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void test_a_million_bytes_in_any_pieces_give_one_hash(void)
{
    static char a[1000];
    static const size_t pieces[] = {1, 3, 55, 56, 63, 64, 65, 127, 128, 1000};
    size_t i;

    memset(a, 'a', sizeof a);
    for (i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
        colibri_sha256 s;
        uint8_t hash[32];
        size_t left = 1000000;

        colibri_sha256_init(&s);
        while (left > 0) {
            size_t n = pieces[i] < left ? pieces[i] : left;

            colibri_sha256_update(&s, a, n);
            left -= n;
        }
        colibri_sha256_final(&s, hash);
        check_hex(hash, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
}

static void test_plain_c_and_sha_instructions_agree(void)
{
    static uint8_t data[64 * 9];
    cb_sha256_compress *accelerated = cb_sha256_accelerated();
    uint32_t a[8], b[8];
    size_t blocks, i;

    printf("     sha instructions: %s\n", accelerated != NULL ? "yes" : "none");
    for (i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * i * 7 + 3 * i);
    for (blocks = 0; accelerated != NULL && blocks < 9; blocks++) {
        for (i = 0; i < 8; i++)
            a[i] = b[i] = (uint32_t)(0x9e3779b9u * (i + blocks + 1));
        cb_sha256_portable(a, data + 1, blocks); /* any alignment */
        accelerated(b, data + 1, blocks);
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
}

static void test_a_pair_hashes_as_its_messages_do(void)
{
    static uint8_t data[2][64 * 5 + 63];
    size_t size, i;

    for (i = 0; i < sizeof data[0]; i++) {
        data[0][i] = (uint8_t)(i * i * 5 + i);
        data[1][i] = (uint8_t)(i * 77 + 13);
    }
    for (size = 0; size <= sizeof data[0] - 1; size++) {
        uint8_t pair[2][32], one[2][32];

        cb_sha256_pair(data[0] + 1, data[1] + 1, size, pair); /* any alignment */
        cb_sha256(data[0] + 1, size, one[0]);
        cb_sha256(data[1] + 1, size, one[1]);
        CHECK(memcmp(pair, one, sizeof one) == 0);
    }
}

int main(void)
{
    RUN(test_published_examples_match);
    RUN(test_plain_c_and_sha_instructions_agree);
    RUN(test_a_pair_hashes_as_its_messages_do);
    RUN(test_a_million_bytes_in_any_pieces_give_one_hash);
    return RESULT();
}
