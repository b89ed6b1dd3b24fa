/* SPDX-License-Identifier: MIT */
/*
 * A program that keeps one model and one session open and does what lines of its input say, so that a
 * test can take the storage away between two of them and give it back:
 *
 *   open PATH [residency=N] [slots=N] [threads=N] [io=N] [prefetch=N] [verify=N] [lock=N] [direct=N]
 *        [context=N] [batch=N] [stall=MS] [guards=N]
 *   append 1,2,3     reset     defrag     stats     close     quit
 *
 * Every line gets one line back: the command, the code, and what is known. Numbers are those of
 * colibri.h.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"

#define MAX_LINE 4096
#define MAX_IDS 256

static colibri_model *model;
static colibri_session *session;

static void answer(const char *command, int code, const colibri_error *error)
{
    printf("%s %d offset=%lld %s\n", command, code, code != 0 ? (long long)error->offset : -1LL,
           code != 0 ? error->message : "ok");
}

static void set_option(colibri_model_options *options, const char *word)
{
    static const struct {
        const char *name;
        size_t offset;
    } names[] = {
        {"residency=", offsetof(colibri_model_options, residency)},
        {"slots=", offsetof(colibri_model_options, expert_slots)},
        {"threads=", offsetof(colibri_model_options, threads)},
        {"io=", offsetof(colibri_model_options, io_threads)},
        {"prefetch=", offsetof(colibri_model_options, prefetch_depth)},
        {"verify=", offsetof(colibri_model_options, verify)},
        {"lock=", offsetof(colibri_model_options, lock)},
        {"direct=", offsetof(colibri_model_options, direct_io)},
        {"context=", offsetof(colibri_model_options, context_tokens)},
        {"batch=", offsetof(colibri_model_options, batch_tokens)},
        {"stall=", offsetof(colibri_model_options, stall_ms)},
        {"guards=", offsetof(colibri_model_options, debug_memory)},
    };
    size_t i;

    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t length = strlen(names[i].name);

        if (strncmp(word, names[i].name, length) == 0) {
            uint32_t value = (uint32_t)strtoul(word + length, NULL, 10);

            memcpy((char *)options + names[i].offset, &value, sizeof value);
            return;
        }
    }
    printf("unknown option %s\n", word);
    exit(2);
}

static void close_model(void)
{
    colibri_session_free(session);
    colibri_model_close(model);
    session = NULL;
    model = NULL;
}

static void open_model(char *rest)
{
    colibri_model_options options;
    colibri_report report = {.struct_size = sizeof report};
    colibri_error error = {.offset = -1};
    const char *path = strtok(rest, " ");
    const char *word;
    int code;

    close_model();
    colibri_model_options_default(&options);
    while ((word = strtok(NULL, " ")) != NULL)
        set_option(&options, word);
    code = colibri_model_open(path != NULL ? path : "", &options, &model, &error);
    if (code == 0)
        code = colibri_session_create(model, &session, &error);
    if (code != 0) {
        answer("open", code, &error);
        return;
    }
    (void)colibri_model_report(model, &report);
    printf("open 0 direct_io=%u direct_io_errno=%d locked=%" PRIu64 " unlocked=%" PRIu64 "\n",
           report.direct_io, report.direct_io_errno, report.locked_bytes, report.unlocked_bytes);
}

static void append(const char *rest)
{
    colibri_error error = {.offset = -1};
    colibri_model_info info = {.struct_size = sizeof info};
    colibri_sha256 state;
    int32_t ids[MAX_IDS];
    uint8_t hash[32];
    size_t count = 0;
    char *end;
    int code, i;

    for (; *rest != '\0' && count < MAX_IDS; rest = *end == ',' ? end + 1 : end) {
        ids[count++] = (int32_t)strtol(rest, &end, 10);
        if (end == rest)
            break;
    }
    code = colibri_session_append(session, ids, count, &error);
    if (code != 0) {
        answer("append", code, &error);
        return;
    }
    (void)colibri_model_info_get(model, &info);
    colibri_sha256_init(&state);
    colibri_sha256_update(&state, colibri_session_logits(session), 4 * (size_t)info.vocabulary);
    colibri_sha256_final(&state, hash);
    printf("append 0 position=%u logits=", colibri_session_position(session));
    for (i = 0; i < 32; i++)
        printf("%02x", hash[i]);
    printf("\n");
}

static void print_stats(void)
{
    colibri_residency_stats stats = {.struct_size = sizeof stats};
    int code = colibri_model_residency(model, &stats);

    printf("stats %d hits=%" PRIu64 " misses=%" PRIu64 " reads=%" PRIu64 " failed_reads=%" PRIu64
           " slots_used=%u\n",
           code, stats.hits, stats.misses, stats.reads, stats.failed_reads, stats.slots_used);
}

static void defrag(void)
{
    colibri_defrag_report report = {.struct_size = sizeof report};
    colibri_error error = {.offset = -1};
    int code = colibri_model_defrag(model, &report, &error);

    if (code != 0)
        answer("defrag", code, &error);
    else
        printf("defrag 0 moved_slots=%u used_slots=%u moved_bytes=%" PRIu64 " locked=%" PRIu64
               " unlocked=%" PRIu64 " relocked=%" PRIu64 "\n",
               report.moved_slots, report.used_slots, report.moved_bytes, report.locked_bytes,
               report.unlocked_bytes, report.relocked_bytes);
}

static void obey(char *line)
{
    char *rest = strchr(line, ' ');

    if (rest != NULL)
        *rest++ = '\0';
    if (strcmp(line, "open") == 0 && rest != NULL) {
        open_model(rest);
    } else if (strcmp(line, "close") == 0) {
        close_model();
        printf("close 0\n");
    } else if (session == NULL) {
        printf("%s -1 no model is open\n", line);
    } else if (strcmp(line, "append") == 0 && rest != NULL) {
        append(rest);
    } else if (strcmp(line, "reset") == 0) {
        colibri_session_reset(session);
        printf("reset 0\n");
    } else if (strcmp(line, "defrag") == 0) {
        defrag();
    } else if (strcmp(line, "stats") == 0) {
        print_stats();
    } else {
        printf("unknown command %s\n", line);
        exit(2);
    }
}

int main(void)
{
    char line[MAX_LINE];

    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "quit") == 0)
            break;
        if (line[0] != '\0')
            obey(line);
    }
    close_model();
    return 0;
}
