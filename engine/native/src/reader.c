/* SPDX-License-Identifier: MIT */
#include "reader.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "error.h"
#include "model.h"
#include "platform.h"
#include "threads.h"

/* ---- lists of slots ------------------------------------------------------------------------------ */

static void push(struct cb_reader *r, struct cb_read_list *list, uint32_t slot)
{
    r->reads[slot].next = CB_NONE_INDEX;
    if (list->first == CB_NONE_INDEX)
        list->first = slot;
    else
        r->reads[list->last].next = slot;
    list->last = slot;
}

static uint32_t pop(struct cb_reader *r, struct cb_read_list *list)
{
    uint32_t slot = list->first;

    if (slot != CB_NONE_INDEX)
        list->first = r->reads[slot].next;
    return slot;
}

/* ---- one read ------------------------------------------------------------------------------------ */

/* Until `bytes` are there, the file ends, or an error: 0 or errno. A short read is no error. */
static int read_from(int fd, const struct cb_read *read, uint64_t *have)
{
    while (*have < read->bytes) {
        ssize_t n = pread(fd, read->to + *have, (size_t)(read->bytes - *have),
                          (off_t)(read->offset + *have));

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno;
        if (n == 0)
            return 0;
        *have += (uint64_t)n;
        if (*have % CB_EXTENT_ALIGN_BYTES != 0)
            return 0; /* O_DIRECT cannot go on from here */
    }
    return 0;
}

/* Bring the bytes in: past the page cache as far as that goes, the rest through it. */
static void fetch(struct cb_reader *r, struct cb_read *read)
{
    uint64_t have = 0;
    int number = 0, fd = r->direct >= 0 ? r->direct : r->file;

    read->verdict.code = 0;
    read->verdict.role = CB_NONE_INDEX;
    number = read_from(fd, read, &have);
    if (fd == r->direct && (number == EINVAL || (number == 0 && have % CB_EXTENT_ALIGN_BYTES != 0))) {
        fd = r->file;
        number = 0;
    }
    while (number == 0 && have < read->bytes && fd == r->file) {
        uint64_t before = have;

        number = read_from(fd, read, &have);
        if (have == before)
            break;
    }
    if (fd == r->file) {
        int refused = posix_fadvise(fd, (off_t)read->offset, (off_t)read->bytes, POSIX_FADV_DONTNEED);

        (void)refused; /* was reported when the reader started */
    }
    read->verdict.offset = have;
    if (number != 0 || have < read->bytes) {
        read->verdict.code = number != 0 ? COLIBRI_ERR_IO : COLIBRI_ERR_TRUNCATED;
        read->cause = number != 0 ? CB_READ_ERRNO : CB_READ_END;
        read->number = number;
    }
}

/* ---- threads ------------------------------------------------------------------------------------- */

static void begin_reading(struct cb_reader *r, uint64_t now)
{
    if (r->reading++ == 0)
        r->idle_ns += now - r->idle_since_ns;
}

static void end_reading(struct cb_reader *r, uint64_t now)
{
    if (--r->reading == 0)
        r->idle_since_ns = now;
}

static void tell(struct cb_reader *r)
{
    r->news = 1;
    if (r->waiting)
        (void)pthread_cond_signal(&r->done);
}

static void finish(struct cb_reader *r, uint32_t slot)
{
    r->failed += r->reads[slot].verdict.code != 0 && r->reads[slot].cause != CB_READ_CANCELLED;
    push(r, &r->finished, slot);
    atomic_fetch_add_explicit(&r->finished_count, 1, memory_order_relaxed);
    tell(r);
}

/* The lock is held but while storage or the hash is busy. */
static void read_slot(struct cb_reader *r, uint32_t slot)
{
    struct cb_read *read = &r->reads[slot];
    uint64_t start = cb_now_ns(), end;

    begin_reading(r, start);
    (void)pthread_mutex_unlock(&r->mutex);
    fetch(r, read);
    end = cb_now_ns();
    (void)pthread_mutex_lock(&r->mutex);
    end_reading(r, end);
    r->reads_done++;
    r->read_ns += end - start;
    if (read->verdict.code != 0) {
        finish(r, slot);
        return;
    }
    r->read_bytes += read->bytes;
    atomic_store_explicit(&read->loaded, 1, memory_order_release);
    if (read->verify == 0) {
        finish(r, slot);
        return;
    }
    push(r, &r->loaded, slot);
    (void)pthread_cond_signal(&r->work);
    tell(r);
}

static void verify_slot(struct cb_reader *r, uint32_t slot)
{
    struct cb_read *read = &r->reads[slot];
    uint64_t start = cb_now_ns();

    r->verifying++;
    (void)pthread_mutex_unlock(&r->mutex);
    read->cause = CB_READ_DATA;
    (void)cb_verify_data(r->model, NULL, read->extent, read->to, read->verify, &read->verdict);
    (void)pthread_mutex_lock(&r->mutex);
    r->verifying--;
    r->hash_ns += cb_now_ns() - start;
    finish(r, slot);
}

static void *reader_main(void *argument)
{
    struct cb_reader *r = argument;

    (void)pthread_mutex_lock(&r->mutex);
    r->alive++;
    (void)pthread_cond_signal(&r->done);
    while (!r->stop) {
        uint32_t slot = pop(r, &r->urgent);

        if (slot == CB_NONE_INDEX)
            slot = pop(r, &r->ahead);
        if (slot != CB_NONE_INDEX) {
            read_slot(r, slot);
            continue;
        }
        if (r->verifying == 0 || r->verifying + 1 < r->threads)
            slot = pop(r, &r->loaded);
        if (slot != CB_NONE_INDEX)
            verify_slot(r, slot);
        else
            (void)pthread_cond_wait(&r->work, &r->mutex);
    }
    (void)pthread_mutex_unlock(&r->mutex);
    return NULL;
}

/* ---- the compute thread's side ------------------------------------------------------------------- */

void cb_reader_submit(struct cb_reader *r, uint32_t slot)
{
    struct cb_read *read = &r->reads[slot];

    read->busy = 1;
    read->verdict.code = 0;
    atomic_store_explicit(&read->loaded, 0, memory_order_relaxed);
    (void)pthread_mutex_lock(&r->mutex);
    push(r, read->ahead ? &r->ahead : &r->urgent, slot);
    (void)pthread_cond_signal(&r->work);
    (void)pthread_mutex_unlock(&r->mutex);
}

uint32_t cb_reader_take(struct cb_reader *r)
{
    uint32_t slot;

    if (atomic_load_explicit(&r->finished_count, memory_order_relaxed) == 0)
        return CB_NONE_INDEX;
    (void)pthread_mutex_lock(&r->mutex);
    slot = pop(r, &r->finished);
    if (slot != CB_NONE_INDEX) {
        atomic_fetch_sub_explicit(&r->finished_count, 1, memory_order_relaxed);
        r->reads[slot].busy = 0;
    }
    (void)pthread_mutex_unlock(&r->mutex);
    return slot;
}

void cb_reader_wait(struct cb_reader *r, uint32_t timeout_ms)
{
    uint64_t until = cb_now_ns() + (uint64_t)timeout_ms * 1000000u;
    struct timespec t = {.tv_sec = (time_t)(until / 1000000000u),
                         .tv_nsec = (long)(until % 1000000000u)};

    (void)pthread_mutex_lock(&r->mutex);
    r->waiting = 1;
    while (!r->news) {
        if (pthread_cond_timedwait(&r->done, &r->mutex, &t) != 0)
            break;
    }
    r->waiting = 0;
    r->news = 0;
    (void)pthread_mutex_unlock(&r->mutex);
}

void cb_reader_cancel_ahead(struct cb_reader *r)
{
    uint32_t slot;

    (void)pthread_mutex_lock(&r->mutex);
    while ((slot = pop(r, &r->ahead)) != CB_NONE_INDEX) {
        r->reads[slot].verdict.code = COLIBRI_ERR_CANCELLED;
        r->reads[slot].cause = CB_READ_CANCELLED;
        finish(r, slot);
    }
    (void)pthread_mutex_unlock(&r->mutex);
}

void cb_reader_read_stats(struct cb_reader *r, colibri_residency_stats *stats)
{
    (void)pthread_mutex_lock(&r->mutex);
    stats->reads = r->reads_done;
    stats->read_bytes = r->read_bytes;
    stats->failed_reads = r->failed;
    stats->read_ns = r->read_ns;
    stats->hash_ns = r->hash_ns;
    stats->io_idle_ns = r->idle_ns + (r->reading == 0 ? cb_now_ns() - r->idle_since_ns : 0);
    (void)pthread_mutex_unlock(&r->mutex);
}

/* ---- start and stop ------------------------------------------------------------------------------ */

/* The page cache must not eat what the plan leaves: no read-ahead, and nothing is kept. */
static void advise(struct cb_reader *r)
{
    r->advice_errno = posix_fadvise(r->file, 0, 0, POSIX_FADV_RANDOM);
}

/* A file system that takes the flag may still refuse to read: only a read tells. */
static int try_direct(struct cb_reader *r, uint64_t offset, uint8_t *slot)
{
    int fd = cb_open_direct(r->file, r->path);
    ssize_t n;

    if (fd < 0)
        return -fd;
    do {
        n = pread(fd, slot, CB_EXTENT_ALIGN_BYTES, (off_t)offset);
    } while (n < 0 && errno == EINTR);
    if (n == (ssize_t)CB_EXTENT_ALIGN_BYTES) {
        r->direct = fd;
        return 0;
    }
    n = n < 0 ? errno : EIO;
    cb_close_file(&fd);
    return (int)n;
}

static int create_threads(struct cb_reader *r, uint32_t threads)
{
    pthread_attr_t attributes;
    sigset_t saved;
    int result = pthread_attr_init(&attributes);

    if (result != 0)
        return result;
    result = pthread_attr_setstacksize(&attributes, CB_PLAN_STACK_BYTES);
    cb_signals_block(&saved);
    while (result == 0 && r->started < threads) {
        result = pthread_create(&r->thread[r->started], &attributes, reader_main, r);
        if (result == 0)
            r->started++;
    }
    (void)pthread_sigmask(SIG_SETMASK, &saved, NULL);
    (void)pthread_attr_destroy(&attributes);
    return result;
}

int cb_reader_start(struct cb_reader *r, const colibri_model *m, int fd, const char *path,
                    uint32_t direct_io, uint32_t threads, uint64_t probe_offset, uint8_t *slot,
                    int *direct_errno, colibri_error *error)
{
    static const struct cb_read_list empty = {CB_NONE_INDEX, CB_NONE_INDEX};
    pthread_condattr_t clock;
    int result;

    r->model = m;
    r->file = fd;
    r->direct = -1;
    r->urgent = empty;
    r->ahead = empty;
    r->loaded = empty;
    r->finished = empty;
    atomic_init(&r->finished_count, 0);
    if (strlen(path) < sizeof r->path)
        memcpy(r->path, path, strlen(path) + 1);
    *direct_errno = 0;
    if (direct_io == COLIBRI_DIRECT_IO_AUTO)
        *direct_errno = r->path[0] != '\0' ? try_direct(r, probe_offset, slot) : ENAMETOOLONG;
    if (r->direct < 0)
        advise(r);
    (void)pthread_mutex_init(&r->mutex, NULL);
    (void)pthread_cond_init(&r->work, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&r->done, &clock);
    (void)pthread_condattr_destroy(&clock);
    r->idle_since_ns = cb_now_ns();
    r->threads = threads;
    result = create_threads(r, threads);
    if (result != 0)
        return cb_deny(error, COLIBRI_ERR_THREAD,
                       "only %u of %u reading threads could be started: %s; lower io_threads or "
                       "raise the process limit",
                       r->started, threads, strerror(result));
    (void)pthread_mutex_lock(&r->mutex); /* as cb_pool_start: a sandbox may close now */
    while (r->alive < threads)
        (void)pthread_cond_wait(&r->done, &r->mutex);
    (void)pthread_mutex_unlock(&r->mutex);
    return 0;
}

void cb_reader_stop(struct cb_reader *r)
{
    if (r->threads == 0)
        return;
    (void)pthread_mutex_lock(&r->mutex);
    r->stop = 1;
    (void)pthread_cond_broadcast(&r->work);
    (void)pthread_mutex_unlock(&r->mutex);
    while (r->started > 0)
        (void)pthread_join(r->thread[--r->started], NULL);
    (void)pthread_cond_destroy(&r->done);
    (void)pthread_cond_destroy(&r->work);
    (void)pthread_mutex_destroy(&r->mutex);
    cb_close_file(&r->direct);
    cb_close_file(&r->file);
    r->threads = 0;
}

/* Is the file of this descriptor the model that is open? */
static int holds_root(int fd, const uint8_t root[CB_HASH_BYTES])
{
    uint8_t found[CB_HASH_BYTES];

    return pread(fd, found, sizeof found, CB_ROOT_OFFSET) == (ssize_t)sizeof found &&
           memcmp(found, root, sizeof found) == 0;
}

int cb_reader_reopen(struct cb_reader *r, uint64_t bytes, const uint8_t root[CB_HASH_BYTES])
{
    uint64_t found;
    int fd = -1, direct;

    if (r->path[0] == '\0' || cb_open_file(r->path, &fd, &found, NULL) != 0 || found != bytes ||
        !holds_root(fd, root)) {
        cb_close_file(&fd);
        return 0;
    }
    if (r->direct >= 0) {
        direct = cb_open_direct(fd, r->path);
        cb_close_file(&r->direct);
        r->direct = direct >= 0 ? direct : -1;
    }
    cb_close_file(&r->file);
    r->file = fd;
    if (r->direct < 0)
        advise(r);
    return 1;
}
