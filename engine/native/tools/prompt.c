/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include "prompt.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/common.h"
#include "../src/spec.h"
#include "options.h"
#include "output.h"

#define MAX_WORD_BYTES 12u /* "-2147483648" */

static int out_of_memory(const char *command, size_t bytes)
{
    return ctl_fail_message(command, COLIBRI_ERR_MEMORY,
                            "no memory for %zu bytes of prompt: shorten it or free memory", bytes);
}

static int too_long(const char *thing, size_t limit)
{
    return ctl_fail_message(thing, COLIBRI_ERR_TEXT_LONG,
                            "the prompt is longer than %zu bytes: shorten it or raise --max-text",
                            limit);
}

int ctl_prompt_from_text(const char *command, const char *text, size_t limit_bytes,
                         struct ctl_prompt *prompt)
{
    size_t length = strlen(text);

    if (length > limit_bytes) {
        return too_long(command, limit_bytes);
    }
    prompt->text = malloc(length + 1);
    if (prompt->text == NULL) {
        return out_of_memory(command, length);
    }
    memcpy(prompt->text, text, length);
    prompt->text_bytes = length;
    return 0;
}

/* Reads until the end of the file or one byte beyond the limit. */
static int read_all(int fd, const char *path, size_t limit_bytes, struct ctl_prompt *prompt)
{
    for (;;) {
        ssize_t done = read(fd, prompt->text + prompt->text_bytes,
                            limit_bytes + 1 - prompt->text_bytes);

        if (done < 0 && !ctl_wait(fd, POLLIN)) {
            return ctl_fail_message(path, COLIBRI_ERR_IO, "cannot read the prompt: %s",
                                    strerror(errno));
        }
        prompt->text_bytes += done > 0 ? (size_t)done : 0;
        if (prompt->text_bytes > limit_bytes) {
            return too_long(path, limit_bytes);
        }
        if (done == 0) {
            return 0;
        }
    }
}

int ctl_prompt_from_file(const char *command, const char *path, size_t limit_bytes,
                         struct ctl_prompt *prompt)
{
    bool standard_input = strcmp(path, "-") == 0;
    const char *thing = standard_input ? "standard input" : path;
    int fd = standard_input ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    int exit_code;

    if (fd < 0) {
        return ctl_fail_message(path, COLIBRI_ERR_OPEN, "cannot open the prompt file: %s",
                                strerror(errno));
    }
    prompt->text = malloc(limit_bytes + 1);
    exit_code = prompt->text == NULL ? out_of_memory(command, limit_bytes)
                                     : read_all(fd, thing, limit_bytes, prompt);
    if (!standard_input) {
        (void)close(fd);
    }
    return exit_code;
}

/* One word of a comma-separated list, terminated; false when it is longer than any number. */
static bool take_word(const char **at, char word[MAX_WORD_BYTES])
{
    size_t length = strcspn(*at, ",");

    if (length >= MAX_WORD_BYTES) {
        return false;
    }
    memcpy(word, *at, length);
    word[length] = '\0';
    *at += length;
    return true;
}

/* Any int32_t: which ids there are is for the model to say. */
static bool parse_id(const char *word, int32_t *id)
{
    bool negative = word[0] == '-';
    uint64_t number;

    if (!ctl_parse_u64(word + (negative ? 1 : 0), &number) ||
        number > (uint64_t)INT32_MAX + (negative ? 1u : 0u)) {
        return false;
    }
    *id = (int32_t)(negative ? -(int64_t)number : (int64_t)number);
    return true;
}

static size_t list_length(const char *list)
{
    size_t count = 1;

    for (; *list != '\0'; list++) {
        count += *list == ',' ? 1u : 0u;
    }
    return count;
}

int ctl_prompt_from_ids(const char *command, const char *list, struct ctl_prompt *prompt)
{
    size_t capacity = list_length(list);
    const char *at = list;

    prompt->is_ids = true;
    prompt->ids = malloc(capacity * sizeof *prompt->ids);
    if (prompt->ids == NULL) {
        return out_of_memory(command, capacity * sizeof *prompt->ids);
    }
    for (;;) {
        char word[MAX_WORD_BYTES];

        if (!take_word(&at, word) || !parse_id(word, &prompt->ids[prompt->count])) {
            return ctl_usage_error(command, "--ids: item %zu of '%.64s' is not a token id; "
                                         "give whole numbers with commas between: 1,2,3",
                                prompt->count + 1, list);
        }
        prompt->count++;
        if (*at == '\0') {
            return 0;
        }
        at++;
    }
}

static int check_fits(const char *command, const colibri_model *model,
                      const struct ctl_prompt *prompt)
{
    colibri_plan plan = { .struct_size = sizeof plan };
    colibri_model_info info = { .struct_size = sizeof info };

    (void)colibri_model_plan(model, &plan);
    (void)colibri_model_info_get(model, &info);
    if (prompt->count == 0) {
        return ctl_fail_message(command, COLIBRI_ERR_ARGUMENT,
                                "the prompt has no tokens: give some text with -p");
    }
    if (prompt->count > plan.context_tokens) {
        return ctl_fail_message(command, COLIBRI_ERR_PROMPT_LONG,
                                "the prompt has %zu tokens, the context holds %u: shorten it or "
                                "raise --context (this model was trained for %u)",
                                prompt->count, (unsigned)plan.context_tokens,
                                (unsigned)info.context_tokens);
    }
    return 0;
}

void ctl_wipe(void *bytes, size_t count)
{
    cb_wipe(bytes, count);
}

void ctl_wipe_argument(char *text)
{
    if (text != NULL) {
        ctl_wipe(text, strlen(text));
    }
}

static void free_text(struct ctl_prompt *prompt)
{
    if (prompt->text != NULL) {
        ctl_wipe(prompt->text, prompt->text_bytes);
    }
    free(prompt->text);
    prompt->text = NULL;
    prompt->text_bytes = 0;
}

int ctl_prompt_tokenize(const char *command, colibri_model *model, enum colibri_text form,
                        struct ctl_prompt *prompt)
{
    colibri_error error = { .offset = -1 };

    if (!prompt->is_ids) {
        /* no token is shorter than a byte, so this always suffices */
        prompt->count = prompt->text_bytes + CTL_MAX_CHAT_IDS; /* pages are taken as they are filled */
        prompt->touched = prompt->count;
        prompt->ids = malloc(prompt->count * sizeof *prompt->ids);
        if (prompt->ids == NULL) {
            return out_of_memory(command, prompt->count * sizeof *prompt->ids);
        }
        if (colibri_tokenize(model, prompt->text, prompt->text_bytes, form, prompt->ids,
                             &prompt->count, &error) != 0) {
            prompt->count = 0;
            return ctl_fail(command, &error);
        }
        prompt->touched = prompt->count;
        free_text(prompt);
    }
    return check_fits(command, model, prompt);
}

void ctl_prompt_free(struct ctl_prompt *prompt)
{
    free_text(prompt);
    if (prompt->ids != NULL) {
        ctl_wipe(prompt->ids, (prompt->touched > prompt->count ? prompt->touched : prompt->count) *
                                  sizeof *prompt->ids);
    }
    free(prompt->ids);
    memset(prompt, 0, sizeof *prompt);
}

int ctl_pieces_parse(const char *command, const char *text, struct ctl_pieces *pieces)
{
    const char *at = text;

    pieces->each = strcmp(text, "each") == 0 || strcmp(text, "1*") == 0;
    pieces->count = 0;
    while (!pieces->each) {
        char word[MAX_WORD_BYTES];
        uint64_t size = 0;

        if (pieces->count == CTL_MAX_PIECES || !take_word(&at, word) ||
            !ctl_parse_u64(word, &size) || size < 1 || size > CB_MAX_CONTEXT_TOKENS) {
            return ctl_usage_error(
                command, "--batch-split: item %zu of '%.64s' is not a size; give 'each', or at most "
                         "%u sizes in 1..%u with commas between: 5,3",
                pieces->count + 1, text, CTL_MAX_PIECES, CB_MAX_CONTEXT_TOKENS);
        }
        pieces->sizes[pieces->count++] = (uint32_t)size;
        if (*at == '\0') {
            return 0;
        }
        at++;
    }
    return 0;
}
