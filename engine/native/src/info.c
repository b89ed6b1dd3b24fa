/* SPDX-License-Identifier: MIT */
/* What this build is. */
#include "colibri.h"
#include "common.h"
#include "kernels.h"

#ifndef CB_VERSION
#error "the build defines CB_VERSION from engine/VERSION"
#endif

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

#if defined(__aarch64__)
#define ARCH "arm64"
#elif defined(__arm__)
#define ARCH "arm"
#elif defined(__x86_64__)
#define ARCH "x86_64"
#elif defined(__riscv)
#define ARCH "riscv"
#elif defined(__i386__)
#define ARCH "x86"
#else
#define ARCH "unknown"
#endif

#if defined(__clang__)
#define COMPILER "clang" TEXT(__clang_major__) "." TEXT(__clang_minor__)
#elif defined(__GNUC__)
#define COMPILER "gcc" TEXT(__GNUC__) "." TEXT(__GNUC_MINOR__)
#else
#define COMPILER "cc0.0"
#endif

uint32_t colibri_abi_version(void)
{
    return COLIBRI_ABI_VERSION;
}

const char *colibri_version(void)
{
    return CB_VERSION;
}

const char *colibri_build_info(void)
{
    return "colibri_v" CB_VERSION "_" ARCH "_" COMPILER;
}

const char *colibri_build_forced(void)
{
    static const char words[] = ""
#ifdef COLIBRI_DEBUG_MEMORY
        " COLIBRI_DEBUG_MEMORY"
#endif
#ifdef COLIBRI_NO_LOGGING
        " COLIBRI_NO_LOGGING"
#endif
#ifdef COLIBRI_PREFETCH_DEPTH
        " COLIBRI_PREFETCH_DEPTH"
#endif
#ifdef COLIBRI_RESTRICTED_SYSCALLS
        " COLIBRI_RESTRICTED_SYSCALLS"
#endif
#ifdef COLIBRI_SECURE_MODE
        " COLIBRI_SECURE_MODE"
#endif
#ifdef COLIBRI_SIGNED_ONLY
        " COLIBRI_SIGNED_ONLY"
#endif
#ifdef COLIBRI_VERIFY_CHUNKS
        " COLIBRI_VERIFY_CHUNKS"
#endif
#ifdef COLIBRI_VERIFY_MODEL_HASH
        " COLIBRI_VERIFY_MODEL_HASH"
#endif
        ;

    return words[0] == '\0' ? words : words + 1;
}

const char *colibri_isas_compiled(void)
{
    return cb_kernels_compiled();
}

const char *colibri_isas_available(void)
{
    return cb_kernels_available();
}
