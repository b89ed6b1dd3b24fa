/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include "sampling.h"

#include <unistd.h>

#include "../src/spec.h"
#include "output.h"

#define AT(field) offsetof(struct ctl_sampling, field)

const struct ctl_option ctl_sampling_options[] = {
    { "tokens", 'n', CTL_U32, AT(tokens), 1, CB_MAX_CONTEXT_TOKENS, "N", "128",
      "generate at most N tokens" },
    { "ignore-end", 0, CTL_FLAG, AT(ignore_end), 0, 0, NULL, NULL,
      "go on behind the token that ends a text" },
    { "temp", 0, CTL_FLOAT, AT(temperature), 0, 100, "T", "0",
      "temperature of the sampler; 0 = always the likeliest token" },
    { "top-k", 0, CTL_U32, AT(top_k), 0, CB_MAX_VOCABULARY, "K", "0",
      "choose among the K likeliest; 0 = all" },
    { "top-p", 0, CTL_FLOAT, AT(top_p), 0, 1, "P", "1",
      "choose among the likeliest whose sum reaches P; 1 = all" },
    { "min-p", 0, CTL_FLOAT, AT(min_p), 0, 1, "P", "0",
      "drop tokens below P times the likeliest; 0 = none" },
    { "seed", 's', CTL_U64, AT(seed), 0, 0, "S", "0",
      "same seed, same text; any number of 64 bits" },
};
const size_t ctl_sampling_option_count = sizeof ctl_sampling_options / sizeof ctl_sampling_options[0];

void ctl_text_begin(struct ctl_text *text)
{
    text->terminal = isatty(STDOUT_FILENO) != 0;
    text->newline_last = true;
}

/* Bytes of the control character that starts whole UTF-8 at `text`, or 0. Newline and tab are text. */
static size_t control_bytes(const char *text, size_t length)
{
    unsigned char c = (unsigned char)text[0];

    if (c < 0x20 || c == 0x7F) {
        return c == '\n' || c == '\t' ? 0 : 1;
    }
    return c == 0xC2 && length > 1 && (unsigned char)text[1] < 0xA0 ? 2 : 0;
}

/* The text with U+FFFD for control characters, written in runs. */
static int write_tame(const char *text, size_t length, colibri_error *error)
{
    size_t start = 0;
    size_t at = 0;
    int code = 0;

    while (code == 0 && at < length) {
        size_t skip = control_bytes(text + at, length - at);

        if (skip > 0) {
            code = ctl_write(STDOUT_FILENO, text + start, at - start, error);
            code = code != 0 ? code : ctl_write(STDOUT_FILENO, "\xEF\xBF\xBD", 3, error);
            start = at + skip;
        }
        at += skip > 0 ? skip : 1;
    }
    return code != 0 ? code : ctl_write(STDOUT_FILENO, text + start, length - start, error);
}

int ctl_text_write(struct ctl_text *text, const char *bytes, size_t length, colibri_error *error)
{
    if (length > 0) {
        text->newline_last = bytes[length - 1] == '\n';
    }
    return text->terminal ? write_tame(bytes, length, error)
                          : ctl_write(STDOUT_FILENO, bytes, length, error);
}

int ctl_text_end(struct ctl_text *text, colibri_error *error)
{
    return text->terminal && !text->newline_last ? ctl_write(STDOUT_FILENO, "\n", 1, error) : 0;
}
