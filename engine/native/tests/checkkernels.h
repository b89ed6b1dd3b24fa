/* SPDX-License-Identifier: MIT */
/* What the two files of checkkernels share. */
#ifndef CB_CHECKKERNELS_H
#define CB_CHECKKERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels.h"

/* One more case was checked. */
void check_count(void);
/* A case failed: print why (the first ones) and go on. */
void check_fail(const char *isa, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Equality of bits; 1 when equal. */
int check_floats(const char *isa, const char *what, const char *shape, const float *expected,
                 const float *got, size_t n);

/* checkkernels_golden.c: the operators of one table against every file of the golden folder. */
void check_golden(const struct cb_kernels *k, const char *folder);

/* emulated_avx512.c: what kernels/avx512.c computes, for CPUs with AVX2 only. */
extern const struct cb_kernels check_emulated_avx512;

#endif
