/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include "prefix.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "output.h"
#include "placing.h"

static int no_memory(const char *path, uint64_t bytes)
{
    return ctl_fail_message(path, COLIBRI_ERR_MEMORY, "no memory for a snapshot of %llu bytes: free some",
                            (unsigned long long)bytes);
}

/* What a session of this model cannot exceed, whatever a file says. */
static uint64_t most_bytes(const colibri_model *model)
{
    colibri_plan plan = { .struct_size = sizeof plan };

    (void)colibri_model_plan(model, &plan);
    return plan.kv_bytes + plan.activation_bytes;
}

/* ---- save -------------------------------------------------------------------------------- */

static int write_place(const struct ctl_place *place, const char *path, const void *bytes, size_t size)
{
    colibri_error error = { .offset = -1 };
    int fd = -1;
    int exit_code = ctl_place_create(place, place->temporary, size, &fd);

    if (exit_code != 0) {
        return exit_code;
    }
    if (ctl_write(fd, bytes, size, &error) != 0) {
        exit_code = ctl_fail(path, &error);
    } else {
        exit_code = ctl_place_settle(place, path, fd);
    }
    (void)close(fd);
    return exit_code == 0 ? ctl_place_commit(place, false) : exit_code;
}

int ctl_prefix_save(const char *path, colibri_session *session)
{
    uint64_t size = colibri_session_snapshot_bytes(session);
    colibri_error error = { .offset = -1 };
    struct ctl_place place;
    void *bytes = size <= SIZE_MAX ? malloc((size_t)size) : NULL;
    int exit_code;

    if (bytes == NULL) {
        return no_memory(path, size);
    }
    if (colibri_session_save(session, bytes, (size_t)size, &error) != 0) {
        exit_code = ctl_fail(path, &error);
    } else {
        exit_code = ctl_place_open(&place, path, false, 0600); /* what was said is in it */
        if (exit_code == 0) {
            exit_code = write_place(&place, path, bytes, (size_t)size);
            ctl_place_close(&place);
        }
    }
    ctl_wipe(bytes, (size_t)size);
    free(bytes);
    return exit_code;
}

/* ---- restore ----------------------------------------------------------------------------- */

static int read_exactly(const char *path, int fd, uint8_t *bytes, size_t size)
{
    size_t done = 0;

    while (done < size) {
        ssize_t part = read(fd, bytes + done, size - done);

        if (part == 0 || (part < 0 && errno != EINTR)) {
            return ctl_fail_message(path, COLIBRI_ERR_IO, "cannot read the snapshot: %s",
                                    part == 0 ? "it became shorter" : strerror(errno));
        }
        done += part > 0 ? (size_t)part : 0;
    }
    return 0;
}

static int restore_from(const char *path, int fd, const colibri_model *model, colibri_session *session)
{
    colibri_error error = { .offset = -1 };
    struct stat state;
    uint8_t *bytes;
    int exit_code;

    if (fstat(fd, &state) != 0 || !S_ISREG(state.st_mode)) {
        return ctl_fail_message(path, COLIBRI_ERR_OPEN, "not a regular file");
    }
    if ((uint64_t)state.st_size > most_bytes(model)) {
        return ctl_fail_message(path, COLIBRI_ERR_SNAPSHOT,
                                "has %llu bytes, more than a session of this model and context can "
                                "have (%llu): is it a snapshot? else raise --context",
                                (unsigned long long)state.st_size,
                                (unsigned long long)most_bytes(model));
    }
    bytes = malloc((size_t)state.st_size + 1);
    if (bytes == NULL) {
        return no_memory(path, (uint64_t)state.st_size);
    }
    exit_code = read_exactly(path, fd, bytes, (size_t)state.st_size);
    if (exit_code == 0 &&
        colibri_session_restore(session, bytes, (size_t)state.st_size, &error) != 0) {
        exit_code = ctl_fail(path, &error);
    }
    ctl_wipe(bytes, (size_t)state.st_size);
    free(bytes);
    return exit_code;
}

int ctl_prefix_restore(const char *path, const colibri_model *model, colibri_session *session)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    int exit_code;

    if (fd < 0) {
        return ctl_fail_message(path, COLIBRI_ERR_OPEN, "cannot open the snapshot: %s", strerror(errno));
    }
    exit_code = restore_from(path, fd, model, session);
    (void)close(fd);
    return exit_code;
}

int ctl_prefix_fit(const char *command, colibri_model *model, const colibri_session *session,
                   bool plain, struct ctl_prompt *prompt)
{
    colibri_plan plan = { .struct_size = sizeof plan };
    uint32_t position = colibri_session_position(session);
    int32_t ids[8];
    size_t skip = sizeof ids / sizeof ids[0];

    (void)colibri_model_plan(model, &plan);
    if (plain && !prompt->is_ids && prompt->count > 0 &&
        colibri_tokenize(model, "", 0, COLIBRI_TEXT_PLAIN, ids, &skip, NULL) == 0 &&
        skip <= prompt->count) {
        prompt->count -= skip;
        memmove(prompt->ids, prompt->ids + skip, prompt->count * sizeof *prompt->ids);
    }
    if (prompt->count > plan.context_tokens - position) {
        return ctl_fail_message(command, COLIBRI_ERR_PROMPT_LONG,
                                "the prefix has %u tokens, the prompt %zu, the context holds %u: "
                                "shorten the prompt or raise --context",
                                (unsigned)position, prompt->count, (unsigned)plan.context_tokens);
    }
    return 0;
}
