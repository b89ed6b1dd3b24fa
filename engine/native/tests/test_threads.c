/* SPDX-License-Identifier: MIT */
#include <signal.h>

#include "check.h"
#include "colibri.h"
#include "common.h"
#include "threads.h"

#define ELEMENTS 1000

struct work {
    unsigned touched[ELEMENTS];
    unsigned failing; /* thread index that fails, or above all */
    int blocked[CB_MAX_THREADS];
};

static int touch(void *context, unsigned index, unsigned count)
{
    struct work *w = context;
    size_t i, last;
    sigset_t set;

    cb_share(ELEMENTS, index, count, &i, &last);
    for (; i < last; i++)
        w->touched[i]++;
    (void)pthread_sigmask(SIG_BLOCK, NULL, &set);
    w->blocked[index] = sigismember(&set, SIGTERM) && sigismember(&set, SIGUSR1);
    return index >= w->failing ? -100 - (int)index : 0;
}

static void run_on(unsigned threads, unsigned rounds)
{
    static struct cb_pool pool;
    static struct work w;
    unsigned i, r;

    memset(&w, 0, sizeof w);
    w.failing = threads;
    CHECK_EQUAL(cb_pool_start(&pool, threads, NULL), 0);
    for (r = 0; r < rounds; r++)
        CHECK_EQUAL(cb_pool_run(&pool, touch, &w, ELEMENTS), 0);
    for (i = 0; i < ELEMENTS; i++) {
        if (w.touched[i] != rounds)
            break;
    }
    CHECK_EQUAL(i, ELEMENTS);
    CHECK_EQUAL(pool.barriers, threads > 1 ? rounds : 0);
    for (i = 1; i < threads; i++)
        CHECK(w.blocked[i]);
    CHECK(!w.blocked[0]);
    cb_pool_stop(&pool);
}

static void test_every_element_is_touched_once_per_round(void)
{
    run_on(1, 10);
    run_on(2, 2000);
    run_on(3, 500);
}

static void test_more_threads_than_cpus_make_progress(void)
{
    run_on(64, 20);
}

static void test_the_lowest_failing_thread_is_reported(void)
{
    static struct cb_pool pool;
    static struct work w;

    memset(&w, 0, sizeof w);
    w.failing = 2;
    CHECK_EQUAL(cb_pool_start(&pool, 4, NULL), 0);
    CHECK_EQUAL(cb_pool_run(&pool, touch, &w, ELEMENTS), -102);
    w.failing = 4;
    CHECK_EQUAL(cb_pool_run(&pool, touch, &w, ELEMENTS), 0);
    cb_pool_stop(&pool);
}

static void test_one_unit_runs_on_the_caller(void)
{
    static struct cb_pool pool;
    static struct work w;

    memset(&w, 0, sizeof w);
    w.failing = 1;
    CHECK_EQUAL(cb_pool_start(&pool, 4, NULL), 0);
    CHECK_EQUAL(cb_pool_run(&pool, touch, &w, 1), 0); /* thread 1 would have failed */
    CHECK_EQUAL(pool.barriers, 0);
    cb_pool_stop(&pool);
}

static void test_shares_cover_without_overlap(void)
{
    size_t total;
    unsigned count, i;

    for (total = 0; total < 40; total++) {
        for (count = 1; count < 9; count++) {
            size_t next = 0, first, last;

            for (i = 0; i < count; i++) {
                cb_share(total, i, count, &first, &last);
                CHECK(first == next && last >= first);
                next = last;
            }
            CHECK_EQUAL(next, total);
        }
    }
}

int main(void)
{
    RUN(test_every_element_is_touched_once_per_round);
    RUN(test_more_threads_than_cpus_make_progress);
    RUN(test_the_lowest_failing_thread_is_reported);
    RUN(test_one_unit_runs_on_the_caller);
    RUN(test_shares_cover_without_overlap);
    return RESULT();
}
