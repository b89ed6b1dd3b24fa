/* SPDX-License-Identifier: MIT */
/*
 * Fuzz target of the model reader: any bytes must be refused with a pinned code or be a model that
 * opens, takes a token and closes; never a crash, a hang or memory beyond the budget.
 *
 * With libFuzzer: clang -fsanitize=fuzzer,address,undefined -DCOLIBRI_LIBFUZZER fuzz_model.c ...
 * Without: the program runs over corpus files and seeded mutations of them, for sanitizer builds
 * and emulators:
 *
 *     fuzz_model [--mutations N] [--seed S] FILE-OR-FOLDER...
 *
 * Hashes refuse nearly every change, so each input runs up to three times: as it is, with the root
 * computed anew, and with the hashes of sections and extents as well, as a hostile author would.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../src/spec.h"
#include "colibri.h"

#define BUDGET_BYTES (UINT64_C(256) << 20)
#define ROOT_OFFSET 48u
#define SECTION_COUNT_OFFSET 40u
#define TEXT_BYTES 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- one input --------------------------------------------------------------------------- */

/* What is accepted must also work: tokens of a text, one step, one sample. */
static void use_model(colibri_model *model)
{
    static const char text[] = "a \xc3\xa9\xff 12\n";
    static const int32_t first[3]; /* the first id, which every model has; with the next, what is behind a window */
    colibri_session *session = NULL;
    int32_t ids[TEXT_BYTES];
    int32_t id = 0;
    size_t count = TEXT_BYTES;

    (void)colibri_tokenize(model, text, sizeof text - 1, COLIBRI_TEXT_CHAT, ids, &count, NULL);
    if (colibri_session_create(model, &session, NULL) == 0) {
        if (colibri_session_append(session, first, 3, NULL) == 0 &&
            colibri_session_sample(session, &id, NULL) == 0) {
            (void)colibri_token_bytes(model, id, &count);
            (void)colibri_session_append(session, &id, 1, NULL);
        }
        colibri_session_free(session);
    }
}

static void check_error(int code, const colibri_error *error)
{
    /* a refusal without a pinned code or without a reason is a bug too */
    if (code >= 0 || error->code != code || error->message[0] == '\0' ||
        strcmp(colibri_strerror(code), "unknown error code") == 0) {
        (void)fprintf(stderr, "fuzz_model: open returned %d with code %d and message '%s'\n", code,
                      (int)error->code, error->message);
        abort();
    }
}

static void open_file(int fd)
{
    char path[64];
    colibri_model_options options;
    colibri_model *model = NULL;
    colibri_error error = { .offset = -1 };
    int code;

    colibri_model_options_default(&options);
    options.threads = 1;
    options.context_tokens = 8;
    options.batch_tokens = 2;
    options.verify = COLIBRI_VERIFY_OPEN;
    options.lock = COLIBRI_LOCK_OFF;
    options.budget_bytes = BUDGET_BYTES;
    options.max_text_bytes = TEXT_BYTES;
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    code = colibri_model_open(path, &options, &model, &error);
    if (code == 0) {
        use_model(model);
        colibri_model_close(model);
    } else {
        check_error(code, &error);
    }
}

static void run_bytes(const uint8_t *data, size_t size)
{
    int fd = memfd_create("fuzz_model", MFD_CLOEXEC);
    size_t done = 0;

    if (fd < 0) {
        perror("fuzz_model: memfd_create");
        exit(2);
    }
    while (done < size) {
        ssize_t part = write(fd, data + done, size - done);

        if (part <= 0) {
            perror("fuzz_model: write");
            exit(2);
        }
        done += (size_t)part;
    }
    open_file(fd);
    (void)close(fd);
}

/* ---- the root of a changed file ---------------------------------------------------------- */

static uint32_t get_u32(const uint8_t *data)
{
    uint32_t value;

    memcpy(&value, data, sizeof value);
    return value;
}

static uint64_t get_u64(const uint8_t *data)
{
    uint64_t value;

    memcpy(&value, data, sizeof value);
    return value;
}

/* Hashes the section of this kind when the table has one inside the file. */
static void hash_section(colibri_sha256 *state, const uint8_t *data, size_t size, uint32_t kind)
{
    uint32_t count = get_u32(data + SECTION_COUNT_OFFSET);

    for (uint32_t i = 0; i < count && i < CB_MAX_SECTIONS; i++) {
        const uint8_t *entry = data + CB_SECTION_TABLE_OFFSET + CB_SECTION_ENTRY_BYTES * (size_t)i;
        uint64_t offset = get_u64(entry + 8), bytes = get_u64(entry + 16);

        if (get_u32(entry) == kind && offset <= size && bytes <= size - offset) {
            colibri_sha256_update(state, data + offset, (size_t)bytes);
            return;
        }
    }
}

/* docs/format.md, section 5 */
static void write_root(uint8_t *data, size_t size)
{
    colibri_sha256 state;

    if (size < CB_HEADER_BYTES) {
        return;
    }
    memset(data + ROOT_OFFSET, 0, CB_HASH_BYTES);
    colibri_sha256_init(&state);
    colibri_sha256_update(&state, data, CB_HEADER_BYTES);
    hash_section(&state, data, size, CB_SECTION_RECORDS);
    hash_section(&state, data, size, CB_SECTION_DIRECTORY);
    colibri_sha256_final(&state, data + ROOT_OFFSET);
}

static void hash(const uint8_t *data, size_t size, uint8_t out[CB_HASH_BYTES])
{
    colibri_sha256 state;

    colibri_sha256_init(&state);
    colibri_sha256_update(&state, data, size);
    colibri_sha256_final(&state, out);
}

/* Hash of the chunk hashes of some bytes; the chunk hashes go to `table` where there is one. */
static void hash_chunks(const uint8_t *data, size_t size, uint8_t *table, uint8_t out[CB_HASH_BYTES])
{
    colibri_sha256 state;

    colibri_sha256_init(&state);
    for (size_t at = 0; at < size; at += CB_CHUNK_BYTES) {
        uint8_t chunk[CB_HASH_BYTES];

        hash(data + at, size - at < CB_CHUNK_BYTES ? size - at : CB_CHUNK_BYTES, chunk);
        colibri_sha256_update(&state, chunk, sizeof chunk);
        if (table != NULL) {
            memcpy(table + at / CB_CHUNK_BYTES * CB_HASH_BYTES, chunk, sizeof chunk);
        }
    }
    colibri_sha256_final(&state, out);
}

/* Every extent that the directory at `offset` names and the file holds. */
static void seal_extents(uint8_t *data, size_t size, uint64_t offset, uint64_t bytes)
{
    uint64_t count = bytes >= CB_DIRECTORY_HEADER_BYTES ? get_u32(data + offset) : 0;

    if (count > (bytes - CB_DIRECTORY_HEADER_BYTES) / CB_EXTENT_ENTRY_BYTES) {
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *entry = data + offset + CB_DIRECTORY_HEADER_BYTES + i * CB_EXTENT_ENTRY_BYTES;
        uint64_t first = get_u64(entry + 16), length = get_u64(entry + 24), table;

        if (first > size || length > size - first) {
            continue;
        }
        table = (length + CB_CHUNK_BYTES - 1) / CB_CHUNK_BYTES * CB_HASH_BYTES;
        if (table <= size - first - length && (first >= offset + bytes || first + length + table <= offset)) {
            hash_chunks(data + first, (size_t)length, data + first + length, entry + 32);
        }
    }
}

/* Sections whose hash is in the table, then the extents. */
static void seal(uint8_t *data, size_t size)
{
    uint32_t count = size >= CB_HEADER_BYTES ? get_u32(data + SECTION_COUNT_OFFSET) : 0;

    for (uint32_t i = 0; i < count && i < CB_MAX_SECTIONS; i++) {
        uint8_t *entry = data + CB_SECTION_TABLE_OFFSET + CB_SECTION_ENTRY_BYTES * (size_t)i;
        uint64_t offset = get_u64(entry + 8), bytes = get_u64(entry + 16);
        uint32_t kind = get_u32(entry);

        if (offset < CB_HEADER_BYTES || offset > size || bytes > size - offset) {
            continue;
        }
        if (kind == CB_SECTION_TOKENIZER || kind == CB_SECTION_PROVENANCE || kind == CB_SECTION_CALIBRATION) {
            hash_chunks(data + offset, (size_t)bytes, NULL, entry + 32);
        } else if (kind == CB_SECTION_DIRECTORY) {
            seal_extents(data, size, offset, bytes);
        }
    }
    write_root(data, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size > 0 ? size : 1);

    if (copy == NULL) {
        return 0;
    }
    run_bytes(data, size);
    memcpy(copy, data, size);
    write_root(copy, size);
    if (size >= CB_HEADER_BYTES && memcmp(copy, data, CB_HEADER_BYTES) != 0) {
        run_bytes(copy, size);
    }
    memcpy(copy, data, size);
    seal(copy, size);
    if (memcmp(copy, data, size) != 0) {
        run_bytes(copy, size);
    }
    free(copy);
    return 0;
}

/* ---- without libFuzzer ------------------------------------------------------------------- */

#ifndef COLIBRI_LIBFUZZER

#include <dirent.h>

#define MAX_PATH_BYTES 4096u
#define MAX_CORPUS_BYTES (UINT64_C(64) << 20)
#define MAX_EDITS 4u

struct run {
    unsigned long mutations; /* of each file */
    uint64_t random;
    unsigned long inputs;
};

/* SplitMix64 */
static uint64_t next_random(struct run *run)
{
    uint64_t z = run->random += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Where the structure is: the header, or a section that comes before the weights. */
static size_t pick_offset(struct run *run, const uint8_t *data, size_t size)
{
    uint64_t random = next_random(run);
    uint64_t first = 0, bytes = CB_HEADER_BYTES;

    if (size < CB_HEADER_BYTES) {
        return (size_t)(random % size);
    }
    if ((random & 3) != 0) {
        const uint8_t *entry = data + CB_SECTION_TABLE_OFFSET + CB_SECTION_ENTRY_BYTES * (random >> 2 & 3);

        first = get_u64(entry + 8);
        bytes = get_u64(entry + 16);
    } else if ((random & 4) != 0) {
        bytes = CB_SECTION_TABLE_OFFSET + 8u * CB_SECTION_ENTRY_BYTES; /* the part that is in use */
    }
    if (first >= size || bytes == 0 || bytes > size - first) {
        first = 0;
        bytes = size;
    }
    return (size_t)(first + next_random(run) % bytes);
}

static void edit(struct run *run, uint8_t *data, size_t size)
{
    static const uint32_t values[] = { 0, 1, 2, 31, 32, 33, 4096, 0x7fffffff, 0x80000000, 0xfffffff8,
                                       0xffffffff, 0x7f800000, 0x7fc00000 };
    size_t at = pick_offset(run, data, size);
    uint64_t random = next_random(run);

    if ((random & 1) != 0 && size >= 4) {
        uint32_t value = values[(random >> 1) % (sizeof values / sizeof values[0])];

        at &= ~(size_t)3;
        memcpy(data + (at <= size - 4 ? at : 0), &value, sizeof value);
    } else if ((random & 2) != 0) {
        data[at] = (uint8_t)(random >> 8);
    } else {
        data[at] ^= (uint8_t)(1u << (random >> 8 & 7));
    }
}

static void mutate_and_run(struct run *run, const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size);
    size_t length = size;

    if (copy == NULL) {
        return;
    }
    memcpy(copy, data, size);
    for (uint64_t edits = 1 + next_random(run) % MAX_EDITS; edits > 0; edits--) {
        edit(run, copy, size);
    }
    if (next_random(run) % 16 == 0) {
        length = (size_t)(next_random(run) % size); /* cut off */
    }
    (void)LLVMFuzzerTestOneInput(copy, length);
    run->inputs++;
    free(copy);
}

static void run_file(struct run *run, const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = NULL;
    struct stat status;
    size_t size;

    if (file == NULL || fstat(fileno(file), &status) != 0 ||
        (uint64_t)status.st_size > MAX_CORPUS_BYTES) {
        (void)fprintf(stderr, "fuzz_model: %s: cannot be read, or is larger than %llu bytes\n", path,
                      (unsigned long long)MAX_CORPUS_BYTES);
        exit(2);
    }
    data = malloc((size_t)status.st_size + 1);
    size = data != NULL ? fread(data, 1, (size_t)status.st_size, file) : 0;
    (void)fclose(file);
    if (data != NULL) {
        (void)LLVMFuzzerTestOneInput(data, size);
        run->inputs++;
        for (unsigned long i = 0; size > 0 && i < run->mutations; i++) {
            mutate_and_run(run, data, size);
        }
    }
    free(data);
}

/* Files of the folder itself; folders inside it are not entered. */
static void run_path(struct run *run, const char *path)
{
    DIR *folder = opendir(path);
    const struct dirent *entry;

    if (folder == NULL) {
        run_file(run, path);
        return;
    }
    while ((entry = readdir(folder)) != NULL) {
        char name[MAX_PATH_BYTES];
        struct stat status;

        if (snprintf(name, sizeof name, "%s/%s", path, entry->d_name) < (int)sizeof name &&
            stat(name, &status) == 0 && S_ISREG(status.st_mode)) {
            run_file(run, name);
        }
    }
    (void)closedir(folder);
}

int main(int argc, char **argv)
{
    struct run run = { .mutations = 0, .random = 1 };

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--mutations") == 0 && i + 1 < argc) {
            run.mutations = strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            run.random = strtoull(argv[++i], NULL, 10);
        } else {
            run_path(&run, argv[i]);
        }
    }
    if (run.inputs == 0) {
        (void)fprintf(stderr, "usage: fuzz_model [--mutations N] [--seed S] FILE-OR-FOLDER...\n");
        return 2;
    }
    (void)printf("fuzz_model: %lu inputs, none crashed\n", run.inputs);
    return 0;
}

#endif
