/* SPDX-License-Identifier: MIT */
/*
 * The library asks for memory once, when a model is opened, and not from the heap. This program
 * brings its own malloc, which counts; it works with every C library, static ones included.
 */
#if defined(__clang__)
#pragma clang optimize off /* it takes a program's own malloc for undefined behaviour */
#endif
#include "check.h"
#include "variants.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS 0
#else
#define COUNTS 1
#endif
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#undef COUNTS
#define COUNTS 0
#endif
#endif

static volatile long heap_calls;

#if COUNTS
#include <stdatomic.h>

/* Memory is never reused: 16 bytes with the size, then the block. */
#define HEAP_BYTES (UINT64_C(48) << 20)
static _Alignas(64) unsigned char heap[HEAP_BYTES];
static atomic_size_t heap_used;

static void *take(size_t align, size_t bytes)
{
    size_t all = (bytes + 16 + align + 15) / 16 * 16, at;
    unsigned char *block;

    heap_calls++;
    if (bytes > HEAP_BYTES / 2)
        return NULL;
    at = atomic_fetch_add(&heap_used, all);
    if (at + all > HEAP_BYTES)
        return NULL;
    block = heap + at + 16;
    block += (align - (uintptr_t)block % align) % align;
    memcpy(block - 16, &bytes, sizeof bytes);
    return block;
}

/* Under other names in C: compilers believe to know what functions called malloc do. */
void *heap_malloc(size_t bytes) __asm__("malloc");
void heap_free(void *block) __asm__("free");
void *heap_calloc(size_t count, size_t bytes) __asm__("calloc");
void *heap_realloc(void *old, size_t bytes) __asm__("realloc");
void *heap_aligned_alloc(size_t align, size_t bytes) __asm__("aligned_alloc");
void *heap_memalign(size_t align, size_t bytes) __asm__("memalign");
int heap_posix_memalign(void **block, size_t align, size_t bytes) __asm__("posix_memalign");

void *heap_malloc(size_t bytes)
{
    return take(16, bytes);
}

void heap_free(void *block)
{
    (void)block;
}

void *heap_calloc(size_t count, size_t bytes)
{
    return bytes != 0 && count > HEAP_BYTES / bytes ? NULL : take(16, count * bytes);
}

void *heap_realloc(void *old, size_t bytes)
{
    void *block = take(16, bytes);
    size_t had;

    if (old != NULL && block != NULL) {
        memcpy(&had, (unsigned char *)old - 16, sizeof had);
        memcpy(block, old, had < bytes ? had : bytes);
    }
    return block;
}

void *heap_aligned_alloc(size_t align, size_t bytes)
{
    return take(align < 16 ? 16 : align, bytes);
}

void *heap_memalign(size_t align, size_t bytes)
{
    return take(align < 16 ? 16 : align, bytes);
}

int heap_posix_memalign(void **block, size_t align, size_t bytes)
{
    *block = take(align < 16 ? 16 : align, bytes);
    return *block == NULL;
}
#endif

static struct build_file file;

/* Everything a program does with a model; returns the heap calls after `from` (0 open, 1 opened). */
static long use(const char *path, uint32_t threads, uint32_t residency, int from_open)
{
    colibri_model_options options;
    colibri_model *model;
    colibri_session *session;
    colibri_sampler sampler;
    colibri_error error;
    int32_t ids[40], id = 0;
    long start = heap_calls;
    int i;

    colibri_model_options_default(&options);
    options.threads = threads;
    options.residency = residency;
    options.expert_slots = residency == COLIBRI_RESIDENCY_STREAM ? 3 : 0;
    options.verify = from_open ? COLIBRI_VERIFY_OPEN : COLIBRI_VERIFY_FIRST;
    for (i = 0; i < 40; i++)
        ids[i] = i;
    CHECK_EQUAL(colibri_model_open(path, &options, &model, &error), 0);
    if (!from_open)
        start = heap_calls; /* pthread_create takes memory for the thread's own data */
    CHECK_EQUAL(colibri_session_create(model, &session, &error), 0);
    colibri_sampler_default(&sampler);
    sampler.temperature = 1.0f;
    sampler.top_p = 0.9f;
    CHECK_EQUAL(colibri_session_set_sampler(session, &sampler, &error), 0);
    CHECK_EQUAL(colibri_session_append(session, ids, 40, &error), 0);
    for (i = 0; i < 10; i++) {
        CHECK_EQUAL(colibri_session_sample(session, &id, &error), 0);
        CHECK_EQUAL(colibri_session_append(session, &id, 1, &error), 0);
    }
    CHECK(colibri_session_append(session, ids, 40, &error) == COLIBRI_ERR_CONTEXT_FULL);
    colibri_session_free(session);
    colibri_model_close(model);
    return heap_calls - start;
}

static void test_no_heap_call_with_one_thread(void)
{
    const char *path = build_write(&file, file.size);

    CHECK_EQUAL(use(path, 1, COLIBRI_RESIDENCY_RESIDENT, 1), 0);
    CHECK_EQUAL(use(path, 1, COLIBRI_RESIDENCY_MAPPED, 1), 0);
    CHECK_EQUAL(use(path, 1, COLIBRI_RESIDENCY_MAPPED_GUARDED, 1), 0);
    (void)unlink(path);
}

static void test_no_heap_call_after_open_with_four_threads_in_any_residency(void)
{
    const char *path = build_write(&file, file.size);
    uint32_t residency;

    for (residency = COLIBRI_RESIDENCY_RESIDENT; residency <= COLIBRI_RESIDENCY_MAPPED_GUARDED; residency++)
        CHECK_EQUAL(use(path, 4, residency, 0), 0);
    (void)unlink(path);
}

static void test_the_counter_counts(void)
{
    long before = heap_calls;
    void *volatile p = malloc(100);

    free(p);
    CHECK(heap_calls > before);
}

int main(void)
{
    build_variant(&file, &variants[3]);
    if (!COUNTS) {
        printf("skip: the sanitizer has a malloc of its own\n");
        free(file.bytes);
        return 0;
    }
    RUN(test_the_counter_counts);
    RUN(test_no_heap_call_with_one_thread);
    RUN(test_no_heap_call_after_open_with_four_threads_in_any_residency);
    free(file.bytes);
    return RESULT();
}
