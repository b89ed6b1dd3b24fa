/* SPDX-License-Identifier: MIT */
/*
 * Which tables this build has and this CPU runs. The ISAs of one architecture form a chain: each
 * level needs all levels below it, so "available" is always a prefix of "compiled".
 */
#include "exact.h"

#include "kernels.h"

#if defined(CB_HAVE_NEON) && (defined(__aarch64__) || defined(__arm__))
#include <sys/auxv.h>
#endif
#if defined(CB_HAVE_AVX2)
#include <cpuid.h>
#endif

static int has_ref(void)
{
    return 1;
}

#if defined(CB_HAVE_NEON)
#if defined(__aarch64__)
#define HWCAP_BIT_NEON (1ul << 1) /* Advanced SIMD */
#else
#define HWCAP_BIT_NEON (1ul << 12)
#endif

static int has_neon(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_BIT_NEON) != 0;
}
#define NAME_NEON " neon"
#else
#define NAME_NEON ""
#endif

#if defined(CB_HAVE_DOTPROD)
static int has_dotprod(void)
{
    return (getauxval(AT_HWCAP) & (1ul << 20)) != 0; /* HWCAP_ASIMDDP */
}
#define NAME_DOTPROD " dotprod"
#else
#define NAME_DOTPROD ""
#endif

#if defined(CB_HAVE_I8MM)
static int has_i8mm(void)
{
    return (getauxval(AT_HWCAP2) & (1ul << 13)) != 0; /* HWCAP2_I8MM */
}
#define NAME_I8MM " i8mm"
#else
#define NAME_I8MM ""
#endif

#if defined(CB_HAVE_AVX2)
static int has_avx2(void)
{
    unsigned eax, ebx, ecx, edx;
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2")) /* also asks whether the kernel saves the registers */
        return 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#define NAME_AVX2 " avx2"
#else
#define NAME_AVX2 ""
#endif

#if defined(CB_HAVE_AVX512)
static int has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#define NAME_AVX512 " avx512"
#else
#define NAME_AVX512 ""
#endif

/* names: this level and all below it. */
static const struct level {
    const struct cb_kernels *table;
    int (*runs)(void);
    const char *names;
} levels[] = {
    {&cb_kernels_ref, has_ref, "ref"},
#if defined(CB_HAVE_NEON)
    {&cb_kernels_neon, has_neon, "ref" NAME_NEON},
#endif
#if defined(CB_HAVE_DOTPROD)
    {&cb_kernels_dotprod, has_dotprod, "ref" NAME_NEON NAME_DOTPROD},
#endif
#if defined(CB_HAVE_I8MM)
    {&cb_kernels_i8mm, has_i8mm, "ref" NAME_NEON NAME_DOTPROD NAME_I8MM},
#endif
#if defined(CB_HAVE_AVX2)
    {&cb_kernels_avx2, has_avx2, "ref" NAME_AVX2},
#endif
#if defined(CB_HAVE_AVX512)
    {&cb_kernels_avx512, has_avx512, "ref" NAME_AVX2 NAME_AVX512},
#endif
};

#define LEVELS (sizeof levels / sizeof levels[0])

static size_t available_levels(void)
{
    size_t n = 1;
    while (n < LEVELS && levels[n].runs())
        n++;
    return n;
}

const struct cb_kernels *cb_kernels_select(const char *isa)
{
    const size_t n = available_levels();
    if (isa == NULL)
        return levels[n - 1].table;
    for (size_t i = 0; i < n; i++)
        if (strcmp(levels[i].table->isa, isa) == 0)
            return levels[i].table;
    return NULL;
}

const char *cb_kernels_compiled(void)
{
    return levels[LEVELS - 1].names;
}

const char *cb_kernels_available(void)
{
    return levels[available_levels() - 1].names;
}
