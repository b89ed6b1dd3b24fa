/* SPDX-License-Identifier: MIT */
/*
 * The floating-point control word: round to nearest even, no flush to zero, no traps, IEEE half
 * precision. Entered at every API call and in the workers, left on the way out.
 */
#include "exact.h"

#include "kernels.h"

#if defined(__aarch64__)
/* FPCR: rounding, FZ, FZ16, DN, AHP and traps are all off when it is zero. */
uint64_t cb_fpu_enter(void)
{
    uint64_t saved;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved) : : "memory");
    if (saved != 0)
        __asm__ volatile("msr fpcr, %0" : : "r"(UINT64_C(0)) : "memory");
    return saved;
}

void cb_fpu_leave(uint64_t saved)
{
    if (saved != 0)
        __asm__ volatile("msr fpcr, %0" : : "r"(saved) : "memory");
}

#elif defined(__x86_64__) || defined(__SSE__)
#include <xmmintrin.h>

#define MXCSR_CONTROL 0xffc0u /* DAZ, masks, rounding, FTZ; the rest are sticky flags */
#define MXCSR_DEFAULT 0x1f80u /* all exceptions masked, nearest even */

uint64_t cb_fpu_enter(void)
{
    uint32_t saved = _mm_getcsr();
    if ((saved & MXCSR_CONTROL) != MXCSR_DEFAULT)
        _mm_setcsr(MXCSR_DEFAULT);
    return saved;
}

void cb_fpu_leave(uint64_t saved)
{
    if (((uint32_t)saved & MXCSR_CONTROL) != MXCSR_DEFAULT)
        _mm_setcsr((uint32_t)saved);
}

#elif defined(__arm__) && defined(__ARM_FP)
/* FPSCR: AHP, DN, FZ, rounding, length and stride, traps; the rest are flags. */
#define FPSCR_CONTROL 0x07f79f00u

uint64_t cb_fpu_enter(void)
{
    uint32_t saved;
    __asm__ volatile("vmrs %0, fpscr" : "=r"(saved) : : "memory");
    if (saved & FPSCR_CONTROL)
        __asm__ volatile("vmsr fpscr, %0" : : "r"(saved & ~FPSCR_CONTROL) : "memory");
    return saved;
}

void cb_fpu_leave(uint64_t saved)
{
    if ((uint32_t)saved & FPSCR_CONTROL)
        __asm__ volatile("vmsr fpscr, %0" : : "r"((uint32_t)saved) : "memory");
}

#elif defined(__riscv_flen)
/* frm: 0 is nearest even; RISC-V has no flush-to-zero. */
uint64_t cb_fpu_enter(void)
{
    unsigned long saved;
    __asm__ volatile("fsrm %0, zero" : "=r"(saved) : : "memory");
    return saved;
}

void cb_fpu_leave(uint64_t saved)
{
    __asm__ volatile("fsrm %0" : : "r"((unsigned long)saved) : "memory");
}

#elif defined(__SOFTFP__) || defined(__riscv)
/* Floating point in software: always nearest even, nothing to set. */
uint64_t cb_fpu_enter(void)
{
    return 0;
}

void cb_fpu_leave(uint64_t saved)
{
    (void)saved;
}

#else
#error "this architecture's floating-point control word is unknown: add it here"
#endif
