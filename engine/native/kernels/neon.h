/* SPDX-License-Identifier: MIT */
/* What the ARM kernel files share: the 8 rows of a panel as two registers of 4 lanes. */
#ifndef CB_NEON_H
#define CB_NEON_H

#include <arm_neon.h>

#include "exact.h"

#include "colibri.h"
#include "kernels.h"
#include "spec.h"

#define INLINE static inline __attribute__((always_inline))
/* A loop of its own: inlined, the compiler spends more on moving what surrounds it out of the way. */
#define APART static __attribute__((noinline))
#define ROWS CB_PANEL_ROWS
#define COLUMNS CB_GROUP_COLUMNS
#define BATCH 4 /* tokens that share a load of weights */

#if defined(__aarch64__)

/* 8 lanes, one for each row of a panel (or partial sum of reduce8). */
struct f8 {
    float32x4_t lo, hi;
};

INLINE struct f8 zero8(void)
{
    return (struct f8){vdupq_n_f32(0.0f), vdupq_n_f32(0.0f)};
}

INLINE struct f8 load8(const float *p)
{
    return (struct f8){vld1q_f32(p), vld1q_f32(p + 4)};
}

INLINE void store8(float *p, struct f8 v)
{
    vst1q_f32(p, v.lo);
    vst1q_f32(p + 4, v.hi);
}

INLINE struct f8 widen_f16(uint16x8_t h)
{
    const float16x8_t v = vreinterpretq_f16_u16(h);
    return (struct f8){vcvt_f32_f16(vget_low_f16(v)), vcvt_high_f32_f16(v)};
}

INLINE struct f8 widen_bf16(uint16x8_t h)
{
    return (struct f8){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)),
                       vreinterpretq_f32_u32(vshll_high_n_u16(h, 16))};
}

/* acc (+) (a (*) b) */
INLINE struct f8 add_product8(struct f8 acc, struct f8 a, struct f8 b)
{
    return (struct f8){vaddq_f32(acc.lo, vmulq_f32(a.lo, b.lo)),
                       vaddq_f32(acc.hi, vmulq_f32(a.hi, b.hi))};
}

INLINE struct f8 add_scaled8(struct f8 acc, struct f8 a, float b)
{
    return (struct f8){vaddq_f32(acc.lo, vmulq_n_f32(a.lo, b)),
                       vaddq_f32(acc.hi, vmulq_n_f32(a.hi, b))};
}

/* ((p0 + p4) + (p2 + p6)) + ((p1 + p5) + (p3 + p7)) */
INLINE float combine8(struct f8 p)
{
    const float32x4_t s = vaddq_f32(p.lo, p.hi);
    const float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}

INLINE int8x16_t load_activations(const int8_t *q)
{
    int8x16_t v = vld1q_s8(q);
    __asm__("" : "+w"(v)); /* else gcc turns each lane into a scalar load of its own */
    return v;
}

/* The 8 f16 scales of a block. */
INLINE struct f8 load_scales(const uint8_t *p)
{
    return widen_f16(vld1q_u16((const uint16_t *)(const void *)p));
}

#endif
#endif
