/* SPDX-License-Identifier: MIT */
#include "options.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "colibri.h"
#include "log.h"
#include "output.h"

#define MAX_NAME_BYTES 32u /* longer words are compared by their beginning only */
#define MAX_OPTIONS 64u    /* of one command, for the search of the closest name */

static uint32_t log_choice;

static const struct ctl_option common_options[] = {
    { "log", 0, CTL_CHOICE, 0, 0, 0, "stderr|syslog", NULL,
      "syslog: only results on stdout, messages to /dev/log, nothing on stderr" },
};
static const struct ctl_group common_group = { "Messages", common_options, 1, &log_choice };

/* ---- numbers ----------------------------------------------------------------------------- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool parse_digits(const char *text, size_t length, uint64_t *value)
{
    uint64_t sum = 0;

    if (length == 0) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        uint64_t digit;

        if (!is_digit(text[i])) {
            return false;
        }
        digit = (uint64_t)(text[i] - '0');
        if (sum > (UINT64_MAX - digit) / 10) {
            return false;
        }
        sum = sum * 10 + digit;
    }
    *value = sum;
    return true;
}

bool ctl_parse_u64(const char *text, uint64_t *value)
{
    return parse_digits(text, strlen(text), value);
}

static bool parse_size(const char *text, uint64_t *value)
{
    static const char suffixes[] = "KMG";
    size_t length = strlen(text);
    const char *suffix = length > 0 ? strchr(suffixes, text[length - 1]) : NULL;
    unsigned shift = 0;
    uint64_t number;

    if (suffix != NULL && *suffix != '\0') {
        shift = 10u * (unsigned)(suffix - suffixes + 1);
        length--;
    }
    if (!parse_digits(text, length, &number) || number > (UINT64_MAX >> shift)) {
        return false;
    }
    *value = number << shift;
    return true;
}

#define MAX_DIGITS 18 /* of a mantissa; more change nothing that a float can show */
#define MAX_EXPONENT 64

/* Digits into *mantissa, its power of ten into *exponent: that of the last digit that was taken. */
static const char *take_mantissa(const char *text, uint64_t *mantissa, int *exponent, int *digits)
{
    bool fraction = false;
    int taken = 0;

    for (*digits = 0;; text++) {
        if (*text == '.' && !fraction) {
            fraction = true;
            continue;
        }
        if (!is_digit(*text)) {
            return text;
        }
        ++*digits;
        if (taken < MAX_DIGITS) {
            *mantissa = *mantissa * 10 + (uint64_t)(*text - '0');
            taken += *mantissa != 0;
            *exponent -= fraction;
        } else {
            *exponent += !fraction;
        }
    }
}

/* Own arithmetic: strtof takes "inf", "nan", hexadecimal and space, follows the locale, and is large.
 * Exact to the last bit of a float for up to 15 digits with a power of ten in -22..22. */
bool ctl_parse_float(const char *text, float *value)
{
    bool negative = *text == '-';
    uint64_t mantissa = 0, power = 0;
    int exponent = 0, digits;
    double number;

    text += *text == '-' || *text == '+';
    text = take_mantissa(text, &mantissa, &exponent, &digits);
    if (digits == 0) {
        return false;
    }
    if (*text == 'e' || *text == 'E') {
        bool down = *++text == '-';

        text += *text == '-' || *text == '+';
        if (!ctl_parse_u64(text, &power)) {
            return false;
        }
        power = power < 1000 ? power : 1000;
        exponent += down ? -(int)power : (int)power;
    } else if (*text != '\0') {
        return false;
    }
    number = (double)mantissa;
    exponent = mantissa == 0 ? 0 : exponent;
    if (exponent > MAX_EXPONENT) {
        return false;
    }
    if (exponent < -MAX_EXPONENT - MAX_DIGITS) {
        exponent = 0;
        number = 0;
    }
    while (exponent != 0) {
        int magnitude = exponent < 0 ? -exponent : exponent;
        int steps = magnitude >= 22 ? 22 : magnitude;
        double scale = 1;

        for (int i = 0; i < steps; i++) {
            scale *= 10; /* exact up to 10^22 */
        }
        number = exponent < 0 ? number / scale : number * scale;
        exponent += exponent < 0 ? steps : -steps;
    }
    if (number > 3.0e38) {
        return false;
    }
    *value = (float)(negative ? -number : number);
    return true;
}

/* ---- the closest name -------------------------------------------------------------------- */

/* Levenshtein distance over one row; words are cut at MAX_NAME_BYTES. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[MAX_NAME_BYTES + 1];
    size_t a_length = strlen(a) < MAX_NAME_BYTES ? strlen(a) : MAX_NAME_BYTES;
    size_t b_length = strlen(b) < MAX_NAME_BYTES ? strlen(b) : MAX_NAME_BYTES;

    for (size_t j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = diagonal + (a[i - 1] == b[j - 1] ? 0u : 1u);

            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[b_length];
}

const char *ctl_closest(const char *text, const char *const *names, size_t count)
{
    const char *closest = names[0];
    size_t best = strlen(text) * 2 / 3 + 1; /* with fewer letters in common it is a guess */

    for (size_t i = 0; i < count; i++) {
        size_t distance = edit_distance(text, names[i]);

        if (distance < best) {
            best = distance;
            closest = names[i];
        }
    }
    return closest;
}

/* The groups of a command, and the one that all have. */
static const struct ctl_group *group_at(const struct ctl_command *command, size_t g)
{
    return g < command->group_count ? &command->groups[g] : &common_group;
}

static const char *closest_option(const struct ctl_command *command, const char *text)
{
    const char *names[MAX_OPTIONS] = { "help" };
    size_t count = 1;

    for (size_t g = 0; g <= command->group_count; g++) {
        const struct ctl_group *group = group_at(command, g);

        for (size_t i = 0; i < group->count && count < MAX_OPTIONS; i++) {
            names[count++] = group->options[i].name;
        }
    }
    return ctl_closest(text, names, count);
}

/* ---- errors ------------------------------------------------------------------------------ */

/* Words of a command line may be those of a prompt, which no log may hold. */
static void hide_words(char *text)
{
    char *first = strchr(text, '\''), *last = strrchr(text, '\'');

    if (first != NULL) {
        memmove(first + 1, last > first ? last : "", last > first ? strlen(last) + 1 : 1);
    }
}

int ctl_usage_error(const char *command, const char *format, ...)
{
    char text[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (ctl_log_is_syslog()) {
        hide_words(text);
    }
    ctl_log(LOG_ERR, "%s%s%s (error %d %s)", command, *command != '\0' ? ": " : "", text,
            COLIBRI_ERR_ARGUMENT, ctl_code_name(COLIBRI_ERR_ARGUMENT));
    if (!ctl_log_is_syslog()) {
        ctl_log(LOG_INFO, "Try 'colibrictl %s%s--help'.", command, *command != '\0' ? " " : "");
    }
    return CTL_EXIT_USAGE;
}

/* ---- values ------------------------------------------------------------------------------ */

int ctl_choice_index(const char *words, const char *text)
{
    size_t length = strlen(text);
    int index = 0;

    for (const char *word = words;; index++) {
        size_t word_length = strcspn(word, "|");

        if (word_length == length && memcmp(word, text, length) == 0) {
            return index;
        }
        if (word[word_length] == '\0') {
            return -1;
        }
        word += word_length + 1;
    }
}

int ctl_environment_error(const char *command, const char *name, const char *value, const char *wanted)
{
    return ctl_fail_message(command, COLIBRI_ERR_ARGUMENT,
                            "environment variable %s is '%s': set it to %s, or unset it", name, value, wanted);
}

int ctl_environment_word(const char *command, const char *name, const char *words, int *index)
{
    const char *value = getenv(name);

    *index = value == NULL || *value == '\0' ? 0 : ctl_choice_index(words, value);
    return *index >= 0 ? 0 : ctl_environment_error(command, name, value, words);
}

static bool in_range(const struct ctl_option *option, double value)
{
    return value >= option->low && value <= option->high;
}

static int store_integer(const struct ctl_command *command, const struct ctl_option *option,
                         const char *text, char *target)
{
    bool size = option->kind == CTL_SIZE;
    uint64_t number;
    uint32_t narrow;

    char range[64] = "0..18446744073709551615"; /* of CTL_U64: no double holds it */

    if (option->kind != CTL_U64) {
        (void)snprintf(range, sizeof range, "%.0f..%.0f", option->low, option->high);
    }
    if (size ? !parse_size(text, &number) : !ctl_parse_u64(text, &number)) {
        return ctl_usage_error(command->name,
                               "--%s: '%s' is not a whole number %s; give one in %s",
                               option->name, text,
                               size ? "of bytes (an ending of K, M or G is allowed)"
                                    : "without sign that fits 64 bits",
                               range);
    }
    if (option->kind != CTL_U64 && !in_range(option, (double)number)) {
        return ctl_usage_error(command->name, "--%s: %s is outside %s", option->name, text, range);
    }
    if (option->kind == CTL_U32) {
        narrow = (uint32_t)number;
        memcpy(target, &narrow, sizeof narrow);
    } else {
        memcpy(target, &number, sizeof number);
    }
    return 0;
}

static int store_float(const struct ctl_command *command, const struct ctl_option *option,
                       const char *text, char *target)
{
    float number;

    if (!ctl_parse_float(text, &number)) {
        return ctl_usage_error(command->name,
                               "--%s: '%s' is not a decimal number; give one in %g..%g",
                               option->name, text, option->low, option->high);
    }
    if (!in_range(option, (double)number)) {
        return ctl_usage_error(command->name, "--%s: %s is outside %g..%g", option->name, text,
                               option->low, option->high);
    }
    memcpy(target, &number, sizeof number);
    return 0;
}

static int store_choice(const struct ctl_command *command, const struct ctl_option *option,
                        const char *text, char *target)
{
    int index = ctl_choice_index(option->value, text);
    uint32_t number;

    if (index < 0) {
        return ctl_usage_error(command->name, "--%s: '%s' is not one of %s", option->name, text,
                               option->value);
    }
    number = (uint32_t)index;
    memcpy(target, &number, sizeof number);
    return 0;
}

static int store(const struct ctl_command *command, const struct ctl_group *group,
                 const struct ctl_option *option, const char *text)
{
    char *target = (char *)group->values + option->offset;
    bool on = true;

    switch (option->kind) {
    case CTL_FLAG:
        memcpy(target, &on, sizeof on);
        return 0;
    case CTL_TEXT:
        memcpy(target, &text, sizeof text);
        return 0;
    case CTL_FLOAT:
        return store_float(command, option, text, target);
    case CTL_CHOICE:
        return store_choice(command, option, text, target);
    case CTL_U32:
    case CTL_U64:
    case CTL_SIZE:
        break;
    }
    return store_integer(command, option, text, target);
}

static int store_defaults(const struct ctl_command *command)
{
    for (size_t g = 0; g < command->group_count; g++) {
        const struct ctl_group *group = &command->groups[g];

        for (size_t i = 0; i < group->count; i++) {
            const struct ctl_option *option = &group->options[i];
            int code = option->fallback == NULL
                           ? 0
                           : store(command, group, option, option->fallback);

            if (code != 0) {
                return code;
            }
        }
    }
    return 0;
}

/* ---- help -------------------------------------------------------------------------------- */

static void print_range(const struct ctl_option *option)
{
    if (option->kind == CTL_U32 || option->kind == CTL_SIZE) {
        (void)printf(" [%.0f..%.0f%s]", option->low, option->high,
                     option->kind == CTL_SIZE ? "; K, M, G" : "");
    } else if (option->kind == CTL_FLOAT) {
        (void)printf(" [%g..%g]", option->low, option->high);
    }
    if (option->fallback != NULL) {
        (void)printf(" (default %s)", option->fallback);
    }
}

static void print_option(const struct ctl_option *option)
{
    char left[64];
    char letter[5] = "    ";

    if (option->letter != '\0') {
        (void)snprintf(letter, sizeof letter, "-%c, ", option->letter);
    }
    (void)snprintf(left, sizeof left, "%s--%s%s%s", letter, option->name,
                   option->kind == CTL_FLAG ? "" : " ", option->kind == CTL_FLAG ? "" : option->value);
    (void)printf("  %-30s %s", left, option->help);
    print_range(option);
    (void)printf("\n");
}

static void print_help(const struct ctl_command *command)
{
    (void)printf("usage: colibrictl %s %s\n\n%s\n", command->name, command->synopsis,
                 command->summary);
    for (size_t g = 0; g <= command->group_count; g++) {
        const struct ctl_group *group = group_at(command, g);

        (void)printf("\n%s:\n", group->title);
        for (size_t i = 0; i < group->count; i++) {
            print_option(&group->options[i]);
        }
    }
    (void)printf("\n  -h, --help                     this text\n");
    if (command->notes != NULL) {
        (void)printf("\n%s", command->notes);
    }
    ctl_print_exit_codes();
}

/* ---- the parser -------------------------------------------------------------------------- */

struct cursor {
    const struct ctl_command *command;
    int argc;
    char *const *argv;
    int next; /* index of the argument that is read next */
};

/* A long name (length bytes) when letter is 0, else a short one. */
static const struct ctl_option *find_option(const struct ctl_command *command, const char *name,
                                            size_t length, char letter,
                                            const struct ctl_group **group)
{
    for (size_t g = 0; g <= command->group_count; g++) {
        *group = group_at(command, g);
        for (size_t i = 0; i < (*group)->count; i++) {
            const struct ctl_option *option = &(*group)->options[i];
            bool equal = letter != '\0' ? option->letter == letter
                                        : strlen(option->name) == length &&
                                              memcmp(option->name, name, length) == 0;

            if (equal) {
                return option;
            }
        }
    }
    return NULL;
}

/* attached: text behind "=" or behind a one-letter option; NULL when there is none. */
static int take_option(struct cursor *at, const struct ctl_group *group,
                       const struct ctl_option *option, const char *attached)
{
    int code;

    if (option->kind == CTL_FLAG) {
        if (attached != NULL) {
            return ctl_usage_error(at->command->name, "--%s takes no value, got '%s'", option->name,
                                   attached);
        }
        return store(at->command, group, option, NULL);
    }
    if (attached == NULL) {
        if (at->next >= at->argc) {
            return ctl_usage_error(at->command->name, "--%s needs a value: %s", option->name,
                                   option->value);
        }
        attached = at->argv[at->next++];
    }
    code = store(at->command, group, option, attached);
    ctl_log_open("colibrictl", log_choice != 0);
    return code;
}

static int take_long(struct cursor *at, const char *argument)
{
    const char *name = argument + 2;
    size_t length = strcspn(name, "=");
    const struct ctl_group *group = NULL;
    const struct ctl_option *option = find_option(at->command, name, length, '\0', &group);

    if (option == NULL) {
        char word[MAX_NAME_BYTES + 1];

        (void)snprintf(word, sizeof word, "%.*s", length > MAX_NAME_BYTES ? (int)MAX_NAME_BYTES
                                                                         : (int)length, name);
        return ctl_usage_error(at->command->name, "unknown option '--%s'; the closest one is --%s",
                               word, closest_option(at->command, word));
    }
    return take_option(at, group, option, name[length] == '=' ? name + length + 1 : NULL);
}

static int take_short(struct cursor *at, const char *argument)
{
    const struct ctl_group *group = NULL;
    const struct ctl_option *option = find_option(at->command, NULL, 0, argument[1], &group);

    if (option == NULL) {
        return ctl_usage_error(at->command->name, "unknown option '%s'; the closest one is --%s",
                               argument, closest_option(at->command, argument + 1));
    }
    return take_option(at, group, option, argument[2] != '\0' ? argument + 2 : NULL);
}

static int take_positional(const struct ctl_command *command, const char *argument, size_t *count,
                           const char **positionals)
{
    if (*count >= command->positionals_max) {
        return ctl_usage_error(command->name,
                               "unexpected argument '%s'; quote texts that contain spaces", argument);
    }
    positionals[(*count)++] = argument;
    return 0;
}

static bool is_help(const char *argument)
{
    return strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0;
}

static int take_argument(struct cursor *at, const char *argument, bool literal, size_t *count,
                         const char **positionals)
{
    /* "-" alone is standard input, never an option */
    if (literal || argument[0] != '-' || argument[1] == '\0') {
        return take_positional(at->command, argument, count, positionals);
    }
    if (is_help(argument)) {
        print_help(at->command);
        return CTL_HELP_SHOWN;
    }
    return argument[1] == '-' ? take_long(at, argument) : take_short(at, argument);
}

int ctl_parsed(int code)
{
    return code == CTL_HELP_SHOWN ? ctl_finish_stdout() : code;
}

int ctl_parse(const struct ctl_command *command, int argc, char *const *argv,
              const char **positionals)
{
    struct cursor at = { .command = command, .argc = argc, .argv = argv, .next = 0 };
    size_t count = 0;
    bool literal = false;
    int code = store_defaults(command);

    for (size_t i = 0; i < CTL_MAX_POSITIONALS; i++) {
        positionals[i] = NULL;
    }
    while (code == 0 && at.next < argc) {
        const char *argument = argv[at.next++];

        if (!literal && strcmp(argument, "--") == 0) {
            literal = true;
        } else {
            code = take_argument(&at, argument, literal, &count, positionals);
        }
    }
    if (code == 0 && count < command->positionals_min) {
        return ctl_usage_error(command->name, "%s is missing; usage: colibrictl %s %s",
                               command->positional_names[count], command->name, command->synopsis);
    }
    return code;
}
