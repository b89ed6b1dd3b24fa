/* SPDX-License-Identifier: MIT */
/* Instruction sets by name, and the operator test that two commands share. */
#ifndef CTL_ISAS_H
#define CTL_ISAS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#define CTL_ISA_BYTES 16u /* the longest name is "dotprod" */

/* Takes the next word of a space-separated list; false at its end. */
static inline bool ctl_next_isa(const char **at, char isa[CTL_ISA_BYTES])
{
    size_t length;

    *at += strspn(*at, " ");
    length = strcspn(*at, " ");
    if (length == 0 || length >= CTL_ISA_BYTES) {
        return false;
    }
    memcpy(isa, *at, length);
    isa[length] = '\0';
    *at += length;
    return true;
}

/* Runs the operator vectors on `only`, or on every available instruction set, and prints a line for
 * each: 0, or the exit code after printing why. */
int ctl_selftest_operators(const char *only);

#endif
