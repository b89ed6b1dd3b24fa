/* SPDX-License-Identifier: MIT */
/*
 * kernels/avx512.c for CPUs without AVX-512: its wide registers are two of AVX2, its dot product is
 * C. checkkernels compares the table made here like any other, so the arithmetic, the order and the
 * bounds of that file are checked on every x86-64 machine with AVX2; the instructions themselves
 * only where they exist. Built with -mavx2 -mf16c.
 */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "checkkernels.h"

typedef struct {
    __m256i lo, hi;
} wide_int;
typedef struct {
    __m256 lo, hi;
} wide_float;

/* Four products of unsigned and signed bytes a lane, added to it modulo 2^32. */
static inline __m256i dot(__m256i sum, __m256i a, __m256i b)
{
    uint32_t s[8];
    uint8_t u[32];
    int8_t v[32];
    memcpy(s, &sum, sizeof s);
    memcpy(u, &a, sizeof u);
    memcpy(v, &b, sizeof v);
    for (size_t i = 0; i < 32; i++)
        s[i / 4] += (uint32_t)(u[i] * v[i]);
    memcpy(&sum, s, sizeof sum);
    return sum;
}

static inline wide_int dot_wide(wide_int sum, wide_int a, wide_int b)
{
    return (wide_int){dot(sum.lo, a.lo, b.lo), dot(sum.hi, a.hi, b.hi)};
}

static inline wide_int broadcast(int32_t x)
{
    return (wide_int){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

static inline wide_int insert_high(wide_int a, __m256i b)
{
    return (wide_int){a.lo, b};
}

static inline wide_float convert(wide_int a)
{
    return (wide_float){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

static inline wide_float widen(__m256i a)
{
    return (wide_float){_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                        _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
}

static inline void store(float *p, wide_float a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

#define BOTH(type, function, a, b) ((type){function((a).lo, (b).lo), function((a).hi, (b).hi)})

static inline wide_int and_wide(wide_int a, wide_int b)
{
    return BOTH(wide_int, _mm256_and_si256, a, b);
}

static inline wide_int xor_wide(wide_int a, wide_int b)
{
    return BOTH(wide_int, _mm256_xor_si256, a, b);
}

static inline wide_float add_wide(wide_float a, wide_float b)
{
    return BOTH(wide_float, _mm256_add_ps, a, b);
}

static inline wide_float multiply_wide(wide_float a, wide_float b)
{
    return BOTH(wide_float, _mm256_mul_ps, a, b);
}

#define __m512i wide_int
#define __m512 wide_float
/* Some of these are macros of the compiler's header. */
#undef _mm256_dpbusd_epi32
#undef _mm512_inserti64x4
#undef _mm512_srli_epi32
#define _mm256_dpbusd_epi32 dot
#define _mm512_dpbusd_epi32 dot_wide
#define _mm512_set1_epi32 broadcast
#define _mm512_castsi256_si512(a) ((wide_int){(a), (a)})
#define _mm512_inserti64x4(a, b, half) insert_high(a, b)
#define _mm512_and_si512 and_wide
#define _mm512_xor_si512 xor_wide
#define _mm512_srli_epi32(a, n)                                                                    \
    ((wide_int){_mm256_srli_epi32((a).lo, n), _mm256_srli_epi32((a).hi, n)})
#define _mm512_cvtph_ps widen
#define _mm512_cvtepi32_ps convert
#define _mm512_setzero_ps() ((wide_float){_mm256_setzero_ps(), _mm256_setzero_ps()})
#define _mm512_set1_ps(x) ((wide_float){_mm256_set1_ps(x), _mm256_set1_ps(x)})
#define _mm512_add_ps add_wide
#define _mm512_mul_ps multiply_wide
#define _mm512_storeu_ps store

/* The library may hold the real ones. */
#define cb_matmul_int4_avx512 cb_matmul_int4_emulated
#define cb_matmul_int8_avx512 cb_matmul_int8_emulated
#define cb_kernels_avx512 check_emulated_avx512
CB_KERNEL_PRODUCTS(emulated);

#include "../kernels/avx512.c"
