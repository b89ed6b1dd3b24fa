/* SPDX-License-Identifier: MIT */
#include "threads.h"

#include <string.h>

#include "common.h"
#include "error.h"
#include "kernels.h"
#include "plan.h"
#include "platform.h"

/* About 50 us, longer than the serial work between two tasks of a layer and much shorter than a
 * scheduler tick; x86's pause takes some ten times as long as ARM's yield. Between tokens threads
 * sleep. */
#if defined(__x86_64__) || defined(__i386__)
#define SPINS 3000u
#else
#define SPINS 20000u
#endif

static inline void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || (defined(__arm__) && __ARM_ARCH >= 7)
    __asm__ volatile("yield");
#endif
}

static void wait_for_task(struct cb_pool *pool, unsigned seen)
{
    unsigned i;

    for (i = 0; i < pool->spins; i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen)
            return;
        relax();
    }
    (void)pthread_mutex_lock(&pool->mutex);
    /* The count goes up before the check, the caller bumps the generation before it reads the
     * count (both sequentially consistent): one of the two sees the other. */
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->generation) == seen)
        (void)pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    (void)pthread_mutex_unlock(&pool->mutex);
}

static void *worker_main(void *argument)
{
    struct cb_worker *worker = argument;
    struct cb_pool *pool = worker->pool;
    unsigned seen = 0;

    (void)cb_fpu_enter(); /* the thread is ours: nothing to restore */
    for (;;) {
        wait_for_task(pool, seen);
        seen++;
        if (pool->stop)
            return NULL;
        worker->code = pool->task(pool->context, worker->index, pool->threads);
        if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->waiting)) {
            (void)pthread_mutex_lock(&pool->mutex);
            (void)pthread_cond_signal(&pool->done);
            (void)pthread_mutex_unlock(&pool->mutex);
        }
    }
}

static void wake_workers(struct cb_pool *pool)
{
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        (void)pthread_mutex_lock(&pool->mutex);
        (void)pthread_cond_broadcast(&pool->wake);
        (void)pthread_mutex_unlock(&pool->mutex);
    }
}

static void wait_for_workers(struct cb_pool *pool)
{
    unsigned i;

    for (i = 0; i < pool->spins; i++) {
        if (atomic_load_explicit(&pool->pending, memory_order_acquire) == 0)
            return;
        relax();
    }
    (void)pthread_mutex_lock(&pool->mutex);
    /* Exchanged, not stored: the load of `pending` must not pass it. AArch64 orders the two instructions that
     * a store and a load would be; QEMU on x86-64 (7.2) does not, and the signal of the last worker is lost. */
    (void)atomic_exchange(&pool->waiting, 1);
    while (atomic_load(&pool->pending) != 0)
        (void)pthread_cond_wait(&pool->done, &pool->mutex);
    atomic_store(&pool->waiting, 0);
    (void)pthread_mutex_unlock(&pool->mutex);
}

int cb_pool_run(struct cb_pool *pool, cb_task *task, void *context, size_t units)
{
    unsigned i;
    int code;

    if (units <= 1 || pool->started == 0)
        return task(context, 0, 1);
    pool->task = task;
    pool->context = context;
    pool->barriers++;
    atomic_store(&pool->pending, pool->started);
    wake_workers(pool);
    code = task(context, 0, pool->threads);
    wait_for_workers(pool);
    for (i = 0; i < pool->started && code == 0; i++)
        code = pool->workers[i].code;
    return code;
}

void cb_signals_block(sigset_t *saved)
{
    sigset_t all;

    (void)sigfillset(&all);
    (void)sigdelset(&all, SIGBUS);
    (void)sigdelset(&all, SIGSEGV);
    (void)sigdelset(&all, SIGFPE);
    (void)sigdelset(&all, SIGILL);
    (void)pthread_sigmask(SIG_SETMASK, &all, saved);
}

static int create_workers(struct cb_pool *pool, const pthread_attr_t *attributes)
{
    sigset_t saved;
    int result = 0;

    cb_signals_block(&saved);
    while (result == 0 && pool->started + 1 < pool->threads) {
        struct cb_worker *worker = &pool->workers[pool->started];

        worker->pool = pool;
        worker->index = pool->started + 1;
        result = pthread_create(&worker->thread, attributes, worker_main, worker);
        if (result == 0)
            pool->started++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &saved, NULL);
    return result;
}

static int do_nothing(void *context, unsigned index, unsigned count)
{
    (void)context;
    (void)index;
    (void)count;
    return 0;
}

int cb_pool_start(struct cb_pool *pool, unsigned threads, colibri_error *error)
{
    pthread_attr_t attributes;
    int result;

    memset(pool, 0, sizeof *pool);
    pool->threads = threads;
    pool->spins = threads <= cb_cpu_count() ? SPINS : 0;
    atomic_init(&pool->generation, 0);
    atomic_init(&pool->pending, 0);
    atomic_init(&pool->sleepers, 0);
    atomic_init(&pool->waiting, 0);
    (void)pthread_mutex_init(&pool->mutex, NULL);
    (void)pthread_cond_init(&pool->wake, NULL);
    (void)pthread_cond_init(&pool->done, NULL);
    if (threads <= 1)
        return 0;
    result = pthread_attr_init(&attributes);
    if (result == 0) {
        result = pthread_attr_setstacksize(&attributes, CB_PLAN_STACK_BYTES);
        if (result == 0)
            result = create_workers(pool, &attributes);
        (void)pthread_attr_destroy(&attributes);
    }
    if (result != 0) {
        unsigned got = pool->started + 1;

        cb_pool_stop(pool);
        return cb_deny(error, COLIBRI_ERR_THREAD,
                       "only %u of %u threads could be started: %s; lower `threads` or raise the "
                       "process limit",
                       got, threads, strerror(result));
    }
    /* A new thread makes system calls of libc's (rseq, robust lists) that a sandbox entered right after
     * this would refuse: every worker has made them when it has done a task. */
    (void)cb_pool_run(pool, do_nothing, NULL, threads);
    pool->barriers = 0;
    return 0;
}

void cb_pool_stop(struct cb_pool *pool)
{
    if (pool->threads == 0)
        return;
    pool->stop = 1;
    wake_workers(pool);
    while (pool->started > 0) {
        pool->started--;
        (void)pthread_join(pool->workers[pool->started].thread, NULL);
    }
    (void)pthread_cond_destroy(&pool->done);
    (void)pthread_cond_destroy(&pool->wake);
    (void)pthread_mutex_destroy(&pool->mutex);
    pool->threads = 0;
}
