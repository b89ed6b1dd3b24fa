/* SPDX-License-Identifier: MIT */
/*
 * The compression function exists in plain C and with the SHA instructions of x86-64 and AArch64,
 * which hash five to ten times faster: the difference between verifying a model and not bothering.
 * COLIBRI_SHA256_PORTABLE leaves them out: what a CPU without them does, measured on one that has them.
 */
#include "sha256.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

#include "colibri.h"
#include "common.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 2")
#endif

static const uint32_t K[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u,
    0xab1c5ed5u, 0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu,
    0x9bdc06a7u, 0xc19bf174u, 0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu,
    0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau, 0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u,
    0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u, 0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu,
    0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u, 0xa2bfe8a1u, 0xa81a664bu,
    0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u, 0x19a4c116u,
    0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u,
    0xc67178f2u};

static inline uint32_t rotate(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static inline uint32_t load_be(const uint8_t *p)
{
    uint32_t x;

    memcpy(&x, p, sizeof x);
    return __builtin_bswap32(x);
}

/* One round; the caller rotates the roles of the eight variables instead of moving them. */
#define ROUND(a, b, c, d, e, f, g, h, i)                                                       \
    do {                                                                                       \
        uint32_t t = (h) + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +                    \
                     ((g) ^ ((e) & ((f) ^ (g)))) + K[i] + w[(i) & 15];                         \
        (d) += t;                                                                              \
        (h) = t + (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +                             \
              (((a) & (b)) | ((c) & ((a) | (b))));                                             \
    } while (0)

#define EXTEND(i)                                                                              \
    (w[(i) & 15] += (rotate(w[((i) + 1) & 15], 7) ^ rotate(w[((i) + 1) & 15], 18) ^            \
                     w[((i) + 1) & 15] >> 3) +                                                 \
                    w[((i) + 9) & 15] +                                                        \
                    (rotate(w[((i) + 14) & 15], 17) ^ rotate(w[((i) + 14) & 15], 19) ^         \
                     w[((i) + 14) & 15] >> 10))

void cb_sha256_portable(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    for (; blocks > 0; blocks--, data += 64) {
        uint32_t w[16];
        uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        unsigned i;

        for (i = 0; i < 16; i++)
            w[i] = load_be(data + 4 * i);
        for (i = 0; i < 64; i += 8) {
            if (i >= 16) {
                unsigned j;

                for (j = i; j < i + 8; j++)
                    EXTEND(j);
            }
            ROUND(a, b, c, d, e, f, g, h, i);
            ROUND(h, a, b, c, d, e, f, g, i + 1);
            ROUND(g, h, a, b, c, d, e, f, i + 2);
            ROUND(f, g, h, a, b, c, d, e, i + 3);
            ROUND(e, f, g, h, a, b, c, d, i + 4);
            ROUND(d, e, f, g, h, a, b, c, i + 5);
            ROUND(c, d, e, f, g, h, a, b, i + 6);
            ROUND(b, c, d, e, f, g, h, a, i + 7);
        }
        state[0] += a;
        state[1] += b;
        state[2] += c;
        state[3] += d;
        state[4] += e;
        state[5] += f;
        state[6] += g;
        state[7] += h;
    }
}

/*
 * With SHA instructions a message is one chain of rounds that each wait for the one before. Two
 * messages side by side fill those waits: together they take little longer than one alone. One text,
 * for one or two lanes; the words of a lane move through w[0..3] by name, so they stay in registers.
 */
#if defined(COLIBRI_SHA256_PORTABLE)
/* plain C only */
#elif defined(__x86_64__)
#define SHA_TARGET __attribute__((target("sha,sse4.1,ssse3")))
#define SHA_INLINE SHA_TARGET static inline __attribute__((always_inline))

typedef __m128i sha_words;

/* The instructions keep the state as (f, e, b, a) and (h, g, d, c), lowest lane first. */
SHA_INLINE void load_state(const uint32_t state[8], sha_words *first, sha_words *second)
{
    __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)state), 0xb1);
    __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(const void *)(state + 4)), 0x1b);

    *first = _mm_alignr_epi8(abcd, efgh, 8);
    *second = _mm_blend_epi16(efgh, abcd, 0xf0);
}

SHA_INLINE void store_state(uint32_t state[8], sha_words first, sha_words second)
{
    __m128i abcd = _mm_shuffle_epi32(first, 0x1b), efgh = _mm_shuffle_epi32(second, 0xb1);

    _mm_storeu_si128((__m128i *)(void *)state, _mm_blend_epi16(abcd, efgh, 0xf0));
    _mm_storeu_si128((__m128i *)(void *)(state + 4), _mm_alignr_epi8(efgh, abcd, 8));
}

SHA_INLINE sha_words add(sha_words x, sha_words y)
{
    return _mm_add_epi32(x, y);
}

SHA_INLINE sha_words load_words(const uint8_t *data)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);

    return _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(const void *)data), swap);
}

SHA_INLINE sha_words load_constants(unsigned i)
{
    return _mm_loadu_si128((const __m128i *)(const void *)&K[i]);
}

SHA_INLINE sha_words schedule(sha_words w0, sha_words w1, sha_words w2, sha_words w3)
{
    w0 = _mm_add_epi32(_mm_sha256msg1_epu32(w0, w1), _mm_alignr_epi8(w3, w2, 4));
    return _mm_sha256msg2_epu32(w0, w3);
}

/* Four rounds. */
SHA_INLINE void rounds(sha_words *first, sha_words *second, sha_words wk)
{
    *second = _mm_sha256rnds2_epu32(*second, *first, wk);
    *first = _mm_sha256rnds2_epu32(*first, *second, _mm_shuffle_epi32(wk, 0x0e));
}

static int has_instructions(void)
{
    unsigned a, b, c, d;

    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & bit_SSSE3) == 0 || (c & bit_SSE4_1) == 0)
        return 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & 1u << 29) != 0;
}

#elif defined(__aarch64__)
#define HWCAP_BIT_SHA2 (1ul << 6)
#define SHA_TARGET
#define SHA_INLINE static inline __attribute__((always_inline))
/* In assembly, so that the file needs no compiler flags of its own. */
#define EXTENSION ".arch_extension sha2\n\t"

typedef uint32x4_t sha_words;

SHA_INLINE void load_state(const uint32_t state[8], sha_words *first, sha_words *second)
{
    *first = vld1q_u32(state);
    *second = vld1q_u32(state + 4);
}

SHA_INLINE void store_state(uint32_t state[8], sha_words first, sha_words second)
{
    vst1q_u32(state, first);
    vst1q_u32(state + 4, second);
}

SHA_INLINE sha_words add(sha_words x, sha_words y)
{
    return vaddq_u32(x, y);
}

SHA_INLINE sha_words load_words(const uint8_t *data)
{
    return vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data)));
}

SHA_INLINE sha_words load_constants(unsigned i)
{
    return vld1q_u32(&K[i]);
}

SHA_INLINE sha_words schedule(sha_words w0, sha_words w1, sha_words w2, sha_words w3)
{
    __asm__(EXTENSION "sha256su0 %0.4s, %1.4s" : "+w"(w0) : "w"(w1));
    __asm__(EXTENSION "sha256su1 %0.4s, %1.4s, %2.4s" : "+w"(w0) : "w"(w2), "w"(w3));
    return w0;
}

SHA_INLINE void rounds(sha_words *first, sha_words *second, sha_words wk)
{
    sha_words abcd = *first;

    __asm__(EXTENSION "sha256h %q0, %q1, %2.4s" : "+w"(*first) : "w"(*second), "w"(wk));
    __asm__(EXTENSION "sha256h2 %q0, %q1, %2.4s" : "+w"(*second) : "w"(abcd), "w"(wk));
}

static int has_instructions(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_BIT_SHA2) != 0;
}
#endif

#if defined(SHA_TARGET)
#define LANES 2u

struct lane {
    uint32_t *state;
    const uint8_t *data;
    sha_words first, second, w[4];
};

/* Four words of each lane, taken from the block or made from those before, and their rounds. */
#define QUARTER(n, from_block)                                                                 \
    UNROLL                                                                                  \
    for (j = 0; j < lanes; j++) {                                                              \
        sha_words *w = l[j].w;                                                                 \
        w[n] = (from_block) ? load_words(l[j].data + 16 * (n))                                 \
                            : schedule(w[n], w[((n) + 1) & 3], w[((n) + 2) & 3], w[((n) + 3) & 3]); \
        rounds(&l[j].first, &l[j].second, add(w[n], load_constants(i + 4 * (n))));             \
    }
#define SIXTEEN(from_block)                                                                    \
    QUARTER(0, from_block)                                                                     \
    QUARTER(1, from_block)                                                                     \
    QUARTER(2, from_block)                                                                     \
    QUARTER(3, from_block)

SHA_INLINE void compress_lanes(struct lane l[LANES], size_t blocks, unsigned lanes)
{
    unsigned i, j;

    for (j = 0; j < lanes; j++)
        load_state(l[j].state, &l[j].first, &l[j].second);
    for (; blocks > 0; blocks--) {
        sha_words first[LANES], second[LANES];

        UNROLL
        for (j = 0; j < lanes; j++) {
            first[j] = l[j].first;
            second[j] = l[j].second;
        }
        i = 0;
        SIXTEEN(1)
        for (i = 16; i < 64; i += 16) {
            SIXTEEN(0)
        }
        UNROLL
        for (j = 0; j < lanes; j++) {
            l[j].first = add(l[j].first, first[j]);
            l[j].second = add(l[j].second, second[j]);
            l[j].data += 64;
        }
    }
    for (j = 0; j < lanes; j++)
        store_state(l[j].state, l[j].first, l[j].second);
}

SHA_TARGET static void compress_one(uint32_t state[8], const uint8_t *data, size_t blocks)
{
    struct lane l[LANES] = {{.state = state, .data = data}};

    compress_lanes(l, blocks, 1);
}

SHA_TARGET static void compress_two(uint32_t *const state[2], const uint8_t *const data[2],
                                    size_t blocks)
{
    struct lane l[LANES] = {{.state = state[0], .data = data[0]}, {.state = state[1], .data = data[1]}};

    compress_lanes(l, blocks, 2);
}

cb_sha256_compress *cb_sha256_accelerated(void)
{
    return has_instructions() ? compress_one : NULL;
}

cb_sha256_compress_pair *cb_sha256_accelerated_pair(void)
{
    return has_instructions() ? compress_two : NULL;
}

#else

cb_sha256_compress *cb_sha256_accelerated(void)
{
    return NULL;
}

cb_sha256_compress_pair *cb_sha256_accelerated_pair(void)
{
    return NULL;
}

#endif

/* Asked once; two threads that ask at the same time find the same answer. */
static void compress(uint32_t h[8], const uint8_t *data, size_t blocks)
{
    static _Atomic(cb_sha256_compress *) chosen;
    cb_sha256_compress *function = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (function == NULL) {
        function = cb_sha256_accelerated();
        if (function == NULL)
            function = cb_sha256_portable;
        atomic_store_explicit(&chosen, function, memory_order_relaxed);
    }
    function(h, data, blocks);
}

void cb_sha256_init(struct cb_sha256 *s)
{
    static const uint32_t start[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                      0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};

    memset(s, 0, sizeof *s);
    memcpy(s->h, start, sizeof start);
}

void cb_sha256_update(struct cb_sha256 *s, const void *data, size_t size)
{
    const uint8_t *p = data;
    size_t held = (size_t)(s->bytes % 64);

    if (size == 0)
        return;
    s->bytes += size;
    if (held > 0) {
        size_t part = 64 - held < size ? 64 - held : size;

        memcpy(s->block + held, p, part);
        p += part;
        size -= part;
        if (held + part < 64)
            return;
        compress(s->h, s->block, 1);
    }
    compress(s->h, p, size / 64);
    memcpy(s->block, p + size / 64 * 64, size % 64);
}

void cb_sha256_final(struct cb_sha256 *s, uint8_t out[32])
{
    uint64_t bits = __builtin_bswap64(s->bytes * 8);
    size_t held = (size_t)(s->bytes % 64);
    unsigned i;

    s->block[held++] = 0x80;
    if (held > 56) {
        memset(s->block + held, 0, 64 - held);
        compress(s->h, s->block, 1);
        held = 0;
    }
    memset(s->block + held, 0, 56 - held);
    memcpy(s->block + 56, &bits, sizeof bits);
    compress(s->h, s->block, 1);
    for (i = 0; i < 8; i++) {
        uint32_t word = __builtin_bswap32(s->h[i]);

        memcpy(out + 4 * i, &word, sizeof word);
    }
}

void cb_sha256(const void *data, size_t size, uint8_t out[32])
{
    struct cb_sha256 s;

    cb_sha256_init(&s);
    cb_sha256_update(&s, data, size);
    cb_sha256_final(&s, out);
}

void cb_sha256_pair(const void *first, const void *second, size_t size, uint8_t out[2][32])
{
    cb_sha256_compress_pair *function = cb_sha256_accelerated_pair();
    const uint8_t *const data[2] = {first, second};
    struct cb_sha256 s[2];
    uint32_t *const state[2] = {s[0].h, s[1].h};
    size_t whole = function != NULL ? size / 64 * 64 : 0;
    unsigned i;

    cb_sha256_init(&s[0]);
    cb_sha256_init(&s[1]);
    if (whole > 0)
        function(state, data, whole / 64);
    for (i = 0; i < 2; i++) {
        s[i].bytes = whole;
        cb_sha256_update(&s[i], data[i] + whole, size - whole);
        cb_sha256_final(&s[i], out[i]);
    }
}

/* The public state is opaque and larger; it is copied in and out, so no type is punned. */
_Static_assert(sizeof(struct cb_sha256) <= sizeof(colibri_sha256), "colibri_sha256 holds the state");

void colibri_sha256_init(colibri_sha256 *state)
{
    struct cb_sha256 s;

    cb_sha256_init(&s);
    memset(state, 0, sizeof *state);
    memcpy(state, &s, sizeof s);
}

void colibri_sha256_update(colibri_sha256 *state, const void *data, size_t length)
{
    struct cb_sha256 s;

    memcpy(&s, state, sizeof s);
    cb_sha256_update(&s, data, length);
    memcpy(state, &s, sizeof s);
}

void colibri_sha256_final(colibri_sha256 *state, uint8_t out[32])
{
    struct cb_sha256 s;

    memcpy(&s, state, sizeof s);
    cb_sha256_final(&s, out);
    memset(state, 0, sizeof *state);
}
