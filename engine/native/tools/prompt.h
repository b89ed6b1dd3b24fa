/* SPDX-License-Identifier: MIT */
/* Where a prompt comes from: text, a file, standard input, or a list of ids. */
#ifndef CTL_PROMPT_H
#define CTL_PROMPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "generate.h"

/* Room for the chat prefix and suffix beside the ids of a text. */
#define CTL_MAX_CHAT_IDS 4096u

struct ctl_prompt {
    char *text;      /* [text_bytes], any bytes */
    size_t text_bytes;
    int32_t *ids;    /* [count]; filled from a list, or from text by ctl_prompt_tokenize */
    size_t count;
    size_t touched;  /* ids of the buffer that may hold something: all are wiped */
    bool is_ids;
};

/* Each returns 0, or the exit code after printing why. ctl_prompt_free takes any state. */
int ctl_prompt_from_text(const char *command, const char *text, size_t limit_bytes,
                         struct ctl_prompt *prompt);
/* path "-": standard input */
int ctl_prompt_from_file(const char *command, const char *path, size_t limit_bytes,
                         struct ctl_prompt *prompt);
/* "1,2,3"; the model checks the range */
int ctl_prompt_from_ids(const char *command, const char *list, struct ctl_prompt *prompt);
/* Fills ids from text when there are none yet, drops the text, and checks that they fit the
 * context. */
int ctl_prompt_tokenize(const char *command, colibri_model *model, enum colibri_text form,
                        struct ctl_prompt *prompt);
/* Zeroes bytes that nobody reads any more, which a compiler would otherwise leave out. */
void ctl_wipe(void *bytes, size_t count);
/* The same for a word of the command line, which other processes can read; may be NULL. */
void ctl_wipe_argument(char *text);
/* Wipes text and ids, which are the user's. */
void ctl_prompt_free(struct ctl_prompt *prompt);

/* "5,3" or "each" (also "1*"). */
int ctl_pieces_parse(const char *command, const char *text, struct ctl_pieces *pieces);

#endif
