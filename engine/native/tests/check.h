/* SPDX-License-Identifier: MIT */
/* The whole test framework: a failed check prints where and what, and the program exits with 1. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <string.h>

static int check_failures;

static inline int check_that(int holds, const char *file, int line, const char *what)
{
    if (!holds) {
        printf("%s:%d: %s\n", file, line, what);
        check_failures++;
    }
    return holds;
}

static inline int check_equal(long long found, long long wanted, const char *file, int line,
                              const char *what)
{
    if (found != wanted) {
        printf("%s:%d: %s is %lld, must be %lld\n", file, line, what, found, wanted);
        check_failures++;
    }
    return found == wanted;
}

#define CHECK(condition) check_that(!!(condition), __FILE__, __LINE__, #condition)
#define CHECK_EQUAL(found, wanted) \
    check_equal((long long)(found), (long long)(wanted), __FILE__, __LINE__, #found)

/* Run a test function and say so: the log shows which ran. */
#define RUN(test)                                                  \
    do {                                                           \
        int before = check_failures;                               \
        test();                                                    \
        printf("%s %s\n", check_failures == before ? "ok  " : "FAIL", #test); \
    } while (0)

/* Last line of main. */
#define RESULT() (check_failures != 0)

#endif
