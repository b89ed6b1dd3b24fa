/* SPDX-License-Identifier: MIT */
/*
 * What the library says of many files that differ from a good one in a few bytes. The files live in
 * memory, and every one goes through colibri_model_open as a file on disk would.
 *
 *     judge FILE < cases        a line for each case: code, largest allocation, microseconds of CPU
 *     judge --flips N/OF FILE   part N of OF of every single-bit flip: each must be refused at open
 *     judge --first N/OF FILE   in mode first: refused, or the logits of a run over everything are
 *                               the bits of the good file; one bit of each byte
 *     judge --always N/OF FILE  the same in mode always while experts are streamed; one bit of each
 *                               seventh byte
 *     judge --sample N SEED FILE   flips of a large file, in private mappings of it: in front of the
 *                               weights by opens in mode first, the rest by the check that an extent
 *                               gets when it is touched
 *     judge --sha               speed of the hash with and without instructions for it
 *
 * A case: u64 bytes of the file, u32 patches, then each patch: u64 offset, u32 bytes, the bytes.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create, syscall */
#endif
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common.h"
#include "model.h"
#include "sha256.h"
#include "verify.h"

#define MAX_CASE_BYTES (UINT64_C(64) << 20)

static struct {
    uint8_t *good;   /* the file as it should be */
    uint8_t *shared; /* the same bytes in the file that the library opens */
    uint64_t bytes;
    int fd;
    char path[32];
} file;

static void die(const char *what)
{
    perror(what);
    exit(2);
}

/* ---- allocations --------------------------------------------------------------------------- */

static size_t largest; /* bytes of the largest mapping since the last case */
static int writable;   /* map files so that their bytes can be flipped in memory */
static uint64_t flip_at = UINT64_MAX; /* of the file that is mapped next */
static uint8_t flip_bit;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define COUNTS 0
#else
#define COUNTS 1
#endif
#else
#define COUNTS 1
#endif

#if COUNTS && defined(SYS_mmap) && UINTPTR_MAX > UINT32_MAX
#define OWN_MMAP 1
#else
#define OWN_MMAP 0
#endif

#if OWN_MMAP
/* The library takes all memory with mmap: this one counts, and under both names that libc has. */
static void *map(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    long result;

    if (bytes > largest)
        largest = bytes;
    if (fd >= 0 && writable) {
        protection |= PROT_WRITE;
        flags = (flags & ~MAP_SHARED) | MAP_PRIVATE;
    }
    result = syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
    if (fd >= 0 && writable && result != -1 && flip_at >= (uint64_t)offset && flip_at - (uint64_t)offset < bytes)
        ((uint8_t *)(uintptr_t)result)[flip_at - (uint64_t)offset] ^= flip_bit;
    return (void *)(uintptr_t)result; /* -1 is MAP_FAILED */
}

void *counting_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) __asm__("mmap");
void *counting_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) __asm__("mmap64");

void *counting_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map(at, bytes, protection, flags, fd, offset);
}

void *counting_mmap64(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return map(at, bytes, protection, flags, fd, offset);
}
#endif

/* ---- the file ------------------------------------------------------------------------------ */

static void read_file(const char *path)
{
    FILE *in = fopen(path, "rb");
    struct stat status;

    if (in == NULL || fstat(fileno(in), &status) != 0)
        die(path);
    file.bytes = (uint64_t)status.st_size;
    file.good = malloc((size_t)file.bytes);
    file.fd = memfd_create("judge", MFD_CLOEXEC);
    if (file.good == NULL || file.fd < 0 || ftruncate(file.fd, status.st_size) != 0)
        die("judge: memory");
    if (fread(file.good, 1, (size_t)file.bytes, in) != file.bytes ||
        pwrite(file.fd, file.good, (size_t)file.bytes, 0) != status.st_size)
        die(path);
    (void)fclose(in);
    file.shared = mmap(NULL, (size_t)file.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
    if (file.shared == MAP_FAILED)
        die("judge: mmap");
    (void)snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
}

static uint32_t residency = COLIBRI_RESIDENCY_RESIDENT;

static int open_model(const char *path, uint32_t verify, colibri_model **model, colibri_error *error)
{
    colibri_model_options options;

    colibri_model_options_default(&options);
    options.threads = 1;
    options.context_tokens = 8;
    options.batch_tokens = 2;
    options.max_text_bytes = 64;
    options.lock = COLIBRI_LOCK_OFF;
    options.residency = residency;
    options.io_threads = 1;
    options.verify = verify;
    *model = NULL;
    memset(error, 0, sizeof *error);
    return colibri_model_open(path, &options, model, error);
}

/* Open, close; the code. */
static int judge(uint32_t verify)
{
    colibri_model *model;
    colibri_error error;
    int code = open_model(file.path, verify, &model, &error);

    if (code != error.code || (code != 0) != (error.message[0] != '\0') || (code != 0) != (model == NULL)) {
        printf("broken: %d with error %d '%s'\n", code, (int)error.code, error.message);
        exit(1);
    }
    colibri_model_close(model);
    return code;
}

/* ---- cases --------------------------------------------------------------------------------- */

static int get(void *out, size_t bytes)
{
    return fread(out, 1, bytes, stdin) == bytes;
}

static uint64_t cpu_microseconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void write_patch(uint64_t offset, const void *data, size_t bytes)
{
    if (pwrite(file.fd, data, bytes, (off_t)offset) != (ssize_t)bytes)
        die("judge: pwrite");
}

/* Put the good bytes back where a patch was, as far as the good file goes. */
static void restore(uint64_t offset, size_t bytes)
{
    if (offset < file.bytes)
        write_patch(offset, file.good + offset, (size_t)cb_min64(bytes, file.bytes - offset));
}

static int run_case(void)
{
    static struct {
        uint64_t offset;
        size_t bytes;
    } places[4096];
    static uint8_t data[1 << 20];
    uint64_t size, start;
    uint32_t patches, i;
    int code;

    if (!get(&size, sizeof size))
        return 0;
    if (!get(&patches, sizeof patches) || patches > sizeof places / sizeof places[0] || size > MAX_CASE_BYTES) {
        printf("broken: a case of %" PRIu64 " bytes with %u patches\n", size, patches);
        exit(2);
    }
    for (i = 0; i < patches; i++) {
        uint32_t bytes;

        if (!get(&places[i].offset, 8) || !get(&bytes, 4) || bytes > sizeof data || !get(data, bytes)) {
            printf("broken: patch %u\n", i);
            exit(2);
        }
        places[i].bytes = bytes;
        write_patch(places[i].offset, data, bytes);
    }
    if (ftruncate(file.fd, (off_t)size) != 0)
        die("judge: ftruncate");
    largest = 0;
    start = cpu_microseconds();
    code = judge(COLIBRI_VERIFY_OPEN);
    printf("%d %zu %" PRIu64 "\n", code, largest, cpu_microseconds() - start);
    if (size < file.bytes)
        write_patch(size, file.good + size, (size_t)(file.bytes - size));
    else if (ftruncate(file.fd, (off_t)file.bytes) != 0)
        die("judge: ftruncate");
    for (i = 0; i < patches; i++)
        restore(places[i].offset, places[i].bytes);
    if (ftruncate(file.fd, (off_t)file.bytes) != 0) /* a patch behind the end of a shorter good file */
        die("judge: ftruncate");
    return 1;
}

/* ---- flips of a tiny file ------------------------------------------------------------------ */

static int all_flips(uint64_t part, uint64_t parts)
{
    uint64_t at, found = 0, missed = 0;
    unsigned bit;

    for (at = file.bytes * part / parts; at < file.bytes * (part + 1) / parts; at++) {
        for (bit = 0; bit < 8; bit++) {
            file.shared[at] ^= (uint8_t)(1u << bit);
            if (judge(COLIBRI_VERIFY_OPEN) != 0)
                found++;
            else if (missed++ < 20)
                printf("missed: bit %u of byte %" PRIu64 "\n", bit, at);
            file.shared[at] ^= (uint8_t)(1u << bit);
        }
    }
    printf("flips found %" PRIu64 " missed %" PRIu64 "\n", found, missed);
    return missed != 0;
}

/* Open and run every token once: the code, and the logits' bits in a hash. */
static int run_all(uint32_t verify, uint8_t hash[32], uint32_t *touched)
{
    colibri_model *model;
    colibri_session *session;
    colibri_error error;
    colibri_report report = {.struct_size = sizeof report};
    struct cb_sha256 s;
    int code = open_model(file.path, verify, &model, &error);
    uint32_t vocabulary, id;

    if (code != 0)
        return code;
    vocabulary = model->block.vocabulary;
    if (colibri_session_create(model, &session, &error) != 0)
        die("judge: session");
    cb_sha256_init(&s);
    for (id = 0; code == 0 && id < vocabulary; id++) {
        int32_t token = (int32_t)id;

        if (id % 8 == 0)
            colibri_session_reset(session);
        code = colibri_session_append(session, &token, 1, &error);
        if (code == 0)
            cb_sha256_update(&s, colibri_session_logits(session), 4 * (size_t)vocabulary);
    }
    cb_sha256_final(&s, hash);
    (void)colibri_model_report(model, &report);
    *touched = report.verified_extents == report.extents;
    colibri_session_free(session);
    colibri_model_close(model);
    return code;
}

static int run_flips(uint32_t verify, uint64_t step, uint64_t part, uint64_t parts)
{
    uint8_t good[32], hash[32];
    uint64_t at, found = 0, harmless = 0, wrong = 0;
    uint32_t touched;

    if (run_all(verify, good, &touched) != 0 || !touched) {
        printf("broken: the good file does not run, or a run does not touch all of it\n");
        return 1;
    }
    for (at = file.bytes * part / parts; at < file.bytes * (part + 1) / parts; at += step) {
        uint8_t flip = (uint8_t)(1u << (at * 5 % 8));

        file.shared[at] ^= flip;
        if (run_all(verify, hash, &touched) != 0)
            found++;
        else if (memcmp(hash, good, sizeof hash) == 0)
            harmless++; /* no token depends on this byte */
        else if (wrong++ < 20)
            printf("wrong token: byte %" PRIu64 "\n", at);
        file.shared[at] ^= flip;
    }
    printf("run found %" PRIu64 " harmless %" PRIu64 " wrong %" PRIu64 "\n", found, harmless, wrong);
    return wrong != 0;
}

/* ---- flips of a large file ------------------------------------------------------------------ */

static uint64_t random_seed, random_count;

static uint64_t next_random(uint64_t bound)
{
    return cb_random(random_seed, random_count++) % bound;
}

static uint32_t extent_of(const colibri_model *m, uint64_t offset)
{
    struct cb_extent e;
    uint32_t i;

    for (i = 0; i < m->directory.extent_count; i++) {
        cb_directory_extent(&m->directory, i, &e);
        if (offset >= e.offset && offset - e.offset < e.size + cb_chunk_table_bytes(e.size))
            return i;
    }
    return CB_NONE_INDEX;
}


static int sample(const char *path, uint64_t count, uint64_t seed)
{
    colibri_model *model;
    colibri_error error;
    uint64_t i, found = 0, head = 0, sections = 0, bytes;

    if (!OWN_MMAP) {
        printf("judge: --sample needs a 64-bit build without sanitizers\n");
        return 2;
    }
    random_seed = seed;
    writable = 1;
    if (open_model(path, COLIBRI_VERIFY_FIRST, &model, &error) != 0) {
        printf("broken: %s\n", error.message);
        return 1;
    }
    bytes = model->container.bytes;
    for (i = 0; i < count; i++) {
        /* a tenth of them before the trunk, which is small and holds all structure */
        uint64_t bound = i % 10 == 0 ? model->container.sections[CB_SECTION_TRUNK].offset : bytes;
        uint64_t at = next_random(bound);
        uint8_t bit = (uint8_t)(1u << next_random(8));
        uint32_t extent = extent_of(model, at);
        uint8_t *base = model->file.base;
        int code;

        if (extent == CB_NONE_INDEX) {
            colibri_model *other;

            flip_at = at;
            flip_bit = bit;
            code = open_model(path, COLIBRI_VERIFY_FIRST, &other, &error);
            flip_at = UINT64_MAX;
            if (code == 0) { /* no token depends on it: what mode open would look at as well */
                code = cb_verify_section(&other->container, CB_SECTION_PROVENANCE, &error);
                sections += code != 0;
            }
            colibri_model_close(other);
            head++;
        } else {
            base[at] ^= bit;
            model->verified[extent] = 0;
            code = cb_verify_extent(model, extent, &error);
            base[at] ^= bit;
        }
        if (code != 0)
            found++;
        else
            printf("missed: byte %" PRIu64 ", mask %u\n", at, bit);
    }
    colibri_model_close(model);
    printf("sampled %" PRIu64 " found %" PRIu64 ", before the weights %" PRIu64 " (provenance %" PRIu64 ")\n",
           count, found, head, sections);
    return found != count;
}

/* ---- speed of the hash ----------------------------------------------------------------------- */

static void measure(const char *name, cb_sha256_compress *compress, const uint8_t *data, size_t bytes)
{
    uint32_t h[8] = {0};
    uint64_t start = cpu_microseconds(), used;
    unsigned rounds = 0;

    do {
        compress(h, data, bytes / 64);
        rounds++;
        used = cpu_microseconds() - start;
    } while (used < 300000);
    printf("sha-256 %s: %.0f MB/s\n", name, (double)rounds * (double)bytes / (double)used);
}

static int sha_speed(void)
{
    static uint8_t data[CB_CHUNK_BYTES]; /* as it is used: a chunk that is in the cache */

    if (cb_sha256_accelerated() != NULL)
        measure("with instructions", cb_sha256_accelerated(), data, sizeof data);
    else
        printf("sha-256 with instructions: this CPU has none\n");
    measure("portable", cb_sha256_portable, data, sizeof data);
    return 0;
}

int main(int argc, char **argv)
{
    uint64_t part, parts;

    if (argc == 5 && strcmp(argv[1], "--sample") == 0)
        return sample(argv[4], strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    if (argc == 4 && sscanf(argv[2], "%" SCNu64 "/%" SCNu64, &part, &parts) == 2) {
        read_file(argv[3]);
        if (strcmp(argv[1], "--flips") == 0)
            return all_flips(part, parts);
        if (strcmp(argv[1], "--first") == 0)
            return run_flips(COLIBRI_VERIFY_FIRST, 1, part, parts);
        if (strcmp(argv[1], "--always") == 0) {
            residency = COLIBRI_RESIDENCY_STREAM;
            return run_flips(COLIBRI_VERIFY_ALWAYS, 7, part, parts);
        }
    }
    if (argc == 2 && strcmp(argv[1], "--sha") == 0)
        return sha_speed();
    if (argc != 2) {
        (void)fprintf(stderr, "usage: judge [--flips|--first|--always N/OF | --sample N SEED] FILE, or judge --sha\n");
        return 2;
    }
    read_file(argv[1]);
    while (run_case())
        (void)fflush(stdout);
    return 0;
}
