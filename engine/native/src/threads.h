/* SPDX-License-Identifier: MIT */
/*
 * A pool of N - 1 workers and the caller. A task is run by all N at once, each on its own static
 * share; cb_pool_run returns when all are done. Results never depend on N.
 */
#ifndef CB_THREADS_H
#define CB_THREADS_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "spec.h"

/* Thread `index` of `count`. 0, or an error code; the lowest index that failed is reported. */
typedef int cb_task(void *context, unsigned index, unsigned count);

struct cb_pool;

struct cb_worker {
    struct cb_pool *pool;
    pthread_t thread;
    unsigned index;
    int code;
};

struct cb_pool {
    unsigned threads; /* with the caller */
    unsigned started; /* workers that exist */
    unsigned spins;   /* before sleeping; 0 when there are more threads than CPUs */
    cb_task *task;
    void *context;
    atomic_uint generation; /* counts tasks; a worker runs when it changes */
    atomic_uint pending;    /* workers that have not finished the task */
    atomic_uint sleepers;   /* workers in the condition variable */
    atomic_int waiting;     /* the caller is in its condition variable */
    int stop;
    uint64_t barriers;      /* tasks that were run by more than one thread */
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;
    struct cb_worker workers[CB_MAX_THREADS];
};

/* Signals belong to the caller's threads: ours are created with all of them blocked, but for the
 * ones that an instruction raises. Those end the process when they are blocked, so the caller's
 * handler could not say that a mapped file shrank (SIGBUS). */
void cb_signals_block(sigset_t *saved);

int cb_pool_start(struct cb_pool *pool, unsigned threads, colibri_error *error);
/* units: independent pieces of work; with one, the caller runs the task alone. */
int cb_pool_run(struct cb_pool *pool, cb_task *task, void *context, size_t units);
void cb_pool_stop(struct cb_pool *pool);

#endif
