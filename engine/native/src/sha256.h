/* SPDX-License-Identifier: MIT */
/* SHA-256 (FIPS 180-4). */
#ifndef CB_SHA256_H
#define CB_SHA256_H

#include <stddef.h>
#include <stdint.h>

struct cb_sha256 {
    uint32_t h[8];
    uint64_t bytes;    /* hashed so far */
    uint8_t block[64]; /* the tail that does not fill a block yet: bytes % 64 of it */
};

/* Compress `blocks` blocks of 64 bytes; the one function that an instruction set replaces. */
typedef void cb_sha256_compress(uint32_t h[8], const uint8_t *data, size_t blocks);

void cb_sha256_portable(uint32_t h[8], const uint8_t *data, size_t blocks);
/* With the SHA instructions of this CPU; NULL when it has none. */
cb_sha256_compress *cb_sha256_accelerated(void);

/* Two messages of as many blocks at once. */
typedef void cb_sha256_compress_pair(uint32_t *const h[2], const uint8_t *const data[2], size_t blocks);
cb_sha256_compress_pair *cb_sha256_accelerated_pair(void);

void cb_sha256_init(struct cb_sha256 *s);
void cb_sha256_update(struct cb_sha256 *s, const void *data, size_t size);
void cb_sha256_final(struct cb_sha256 *s, uint8_t out[32]);
void cb_sha256(const void *data, size_t size, uint8_t out[32]);
/* Hashes of two messages of one size: with SHA instructions in little more than the time of one. */
void cb_sha256_pair(const void *first, const void *second, size_t size, uint8_t out[2][32]);

#endif
