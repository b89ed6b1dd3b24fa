/* SPDX-License-Identifier: MIT */
/*
 * Command-line options from one table per command: the parser, the range checks, the defaults and
 * the help text all read the same rows, so they cannot disagree.
 */
#ifndef CTL_OPTIONS_H
#define CTL_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CTL_MAX_POSITIONALS 2u
#define CTL_HELP_SHOWN 1 /* ctl_parse printed the help: the command ends with success */
#define CTL_EXIT_USAGE 2 /* the exit code of COLIBRI_ERR_ARGUMENT */

enum ctl_kind {
    CTL_FLAG,   /* bool: takes no value */
    CTL_U32,    /* uint32_t in low..high */
    CTL_U64,    /* uint64_t, the whole range */
    CTL_SIZE,   /* uint64_t bytes in low..high, with an optional K, M or G (powers of 1024) */
    CTL_FLOAT,  /* float in low..high, decimal notation */
    CTL_TEXT,   /* const char *: any text */
    CTL_CHOICE  /* uint32_t: index in `value`, which lists the words: "f16|f32" */
};

struct ctl_option {
    const char *name;     /* without the dashes */
    char letter;          /* one-letter form, or 0 */
    uint8_t kind;         /* enum ctl_kind */
    uint16_t offset;      /* of the value in the struct of its group */
    float low, high;      /* inclusive; whole numbers are exact: below 2^24 or a power of two; not for CTL_U64 */
    const char *value;    /* what the help calls the value; the words of CTL_CHOICE */
    const char *fallback; /* parsed before the command line is; NULL: zero */
    const char *help;
};

struct ctl_group {
    const char *title;
    const struct ctl_option *options;
    size_t count;
    void *values; /* struct that the offsets count from */
};

struct ctl_command {
    const char *name;
    const char *synopsis; /* what follows the name in the usage line */
    const char *summary;
    const char *notes;    /* examples and rules, printed behind the options; may be NULL */
    const struct ctl_group *groups;
    size_t group_count;
    const char *positional_names[CTL_MAX_POSITIONALS];
    size_t positionals_min, positionals_max;
};

/* Fills the groups' structs and positionals[CTL_MAX_POSITIONALS] (NULL = not given).
 * argv[0] is the first argument behind the command's name.
 * 0, CTL_HELP_SHOWN, or CTL_EXIT_USAGE after printing the reason to stderr. */
int ctl_parse(const struct ctl_command *command, int argc, char *const *argv,
              const char **positionals);
/* What ctl_parse returned as the exit code of the command. */
int ctl_parsed(int code);

/* Strict numbers: digits only, no sign, no space, no overflow; false when the text is anything else. */
bool ctl_parse_u64(const char *text, uint64_t *value);
/* Decimal notation with an optional sign, fraction and exponent; finite. */
bool ctl_parse_float(const char *text, float *value);

/* Index of `text` among the words of "a|b|c", or -1. */
int ctl_choice_index(const char *words, const char *text);

/* Which of the words "a|b|c" a variable of the environment has; 0 when it is empty or absent. A variable
 * may only tighten, and a misspelt one must not pass for one that is on. 0, or the exit code. */
int ctl_environment_word(const char *command, const char *name, const char *words, int *index);
/* Prints what a variable should be; returns the exit code. */
int ctl_environment_error(const char *command, const char *name, const char *value, const char *wanted);

/* The word of `count` names that needs the fewest edits to become `text`; the first one when all need many. */
const char *ctl_closest(const char *text, const char *const *names, size_t count);

/* Prints `colibrictl: command: message (error -40 argument)` and where the help is; returns
 * CTL_EXIT_USAGE. */
int ctl_usage_error(const char *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
