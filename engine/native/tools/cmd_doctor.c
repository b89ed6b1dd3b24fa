/* SPDX-License-Identifier: MIT */
/* colibrictl doctor: whether this machine lets the engine keep its promises, and the line that puts
 * right what is missing. */
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "commands.h"
#include "options.h"
#include "output.h"

#define NAME "doctor"
#define EXIT_ENVIRONMENT 5

struct doctor_values {
    bool json;
    const char *root;
};

#define AT(field) offsetof(struct doctor_values, field)

static const struct ctl_option doctor_options[] = {
    { "json", 'j', CTL_FLAG, AT(json), 0, 0, NULL, NULL, "one JSON object on stdout" },
    { "root", 0, CTL_TEXT, AT(root), 0, 0, "DIR", NULL,
      "read /proc, /sys and /boot below DIR; what is probed is still this machine" },
};

static const char doctor_notes[] =
    "Each check is ok, info, warning or error; an error is what the engine would refuse, or a promise\n"
    "that it could not keep. docs/doctor.md explains every check. Run it as the user and in the unit\n"
    "that will run the engine: limits differ. With MODEL its plan and its storage are checked too.\n"
    "\n"
    "Examples:\n"
    "  colibrictl doctor\n"
    "  colibrictl doctor model.colibri --context 512\n"
    "  colibrictl doctor model.colibri --budget 1G --json\n";

static const char *const severities[] = {
    [CTL_OK] = "ok", [CTL_INFO] = "info", [CTL_WARNING] = "warning", [CTL_ERROR] = "error"
};

/* ---- rows -------------------------------------------------------------------------------- */

struct ctl_check *ctl_check_add(struct ctl_doctor *d, const char *name, enum ctl_severity severity,
                                const char *format, ...)
{
    struct ctl_check *check = &d->checks[d->count < CTL_MAX_CHECKS ? d->count++ : CTL_MAX_CHECKS - 1];
    va_list args;

    check->name = name;
    check->severity = severity;
    check->fix[0] = '\0';
    va_start(args, format);
    (void)vsnprintf(check->value, sizeof check->value, format, args);
    va_end(args);
    return check;
}

void ctl_check_fix(struct ctl_check *check, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(check->fix, sizeof check->fix, format, args);
    va_end(args);
}

/* ---- small files of the kernel -------------------------------------------------------------- */

int ctl_doctor_read(const struct ctl_doctor *d, const char *path, char text[CTL_DOCTOR_TEXT])
{
    char whole[1024];
    size_t length = 0;
    int fd, number = 0;

    text[0] = '\0';
    if ((size_t)snprintf(whole, sizeof whole, "%s%s", d->root, path) >= sizeof whole) {
        return ENAMETOOLONG;
    }
    fd = open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return errno;
    }
    while (number == 0 && length < CTL_DOCTOR_TEXT - 1) {
        ssize_t got = read(fd, text + length, CTL_DOCTOR_TEXT - 1 - length);

        if (got > 0) {
            length += (size_t)got;
        } else if (got == 0) {
            break;
        } else if (errno != EINTR) {
            number = errno;
        }
    }
    (void)close(fd);
    length -= length > 0 && text[length - 1] == '\n' ? 1 : 0;
    text[length] = '\0';
    return number;
}

bool ctl_doctor_number(const char *text, const char *name, uint64_t *number)
{
    const char *at = strstr(text, name);
    uint64_t value = 0;

    if (at == NULL) {
        return false;
    }
    at += strlen(name);
    at += strspn(at, " \t");
    if (*at < '0' || *at > '9') {
        return false;
    }
    for (; *at >= '0' && *at <= '9' && value < UINT64_MAX / 16; at++) {
        value = value * 10 + (uint64_t)(*at - '0');
    }
    *number = value;
    return true;
}

bool ctl_doctor_read_number(const struct ctl_doctor *d, const char *path, const char *name,
                            uint64_t *number)
{
    char text[CTL_DOCTOR_TEXT];

    return ctl_doctor_read(d, path, text) == 0 && ctl_doctor_number(text, name, number);
}

/* ---- the report -------------------------------------------------------------------------- */

static size_t count(const struct ctl_doctor *d, enum ctl_severity severity)
{
    size_t sum = 0;

    for (size_t i = 0; i < d->count; i++) {
        sum += d->checks[i].severity == severity ? 1 : 0;
    }
    return sum;
}

/* Texts hold paths and names from anywhere: no byte of them may steer the terminal. */
static void print_text(const char *text)
{
    for (; *text != '\0'; text++) {
        (void)putchar((unsigned char)*text < 0x20 || *text == 0x7F ? '?' : *text);
    }
}

const char *ctl_doctor_status(const struct ctl_doctor *d, int exit_code)
{
    return exit_code != 0 ? "fail" : count(d, CTL_WARNING) != 0 ? "warn" : "ok";
}

void ctl_doctor_print(const struct ctl_doctor *d, int exit_code)
{
    for (size_t i = 0; i < d->count; i++) {
        const struct ctl_check *check = &d->checks[i];

        (void)printf("%-8s %-14s ", severities[check->severity], check->name);
        print_text(check->value);
        if (check->fix[0] != '\0') {
            (void)printf("\n%-24sfix: ", "");
            print_text(check->fix);
        }
        (void)printf("\n");
    }
    (void)printf("%s (exit code %d): ok %zu, info %zu, warning %zu, error %zu\n", ctl_doctor_status(d, exit_code),
                 exit_code, count(d, CTL_OK), count(d, CTL_INFO), count(d, CTL_WARNING), count(d, CTL_ERROR));
}

static void print_json(const struct ctl_doctor *d, int exit_code)
{
    (void)printf("{\"exit_code\": %d, \"warnings\": %zu, \"errors\": %zu, \"checks\": [", exit_code,
                 count(d, CTL_WARNING), count(d, CTL_ERROR));
    for (size_t i = 0; i < d->count; i++) {
        const struct ctl_check *check = &d->checks[i];

        (void)printf("%s\n {\"name\": \"%s\", \"severity\": \"%s\", \"value\": ", i == 0 ? "" : ",",
                     check->name, severities[check->severity]);
        ctl_print_json_text(check->value);
        (void)printf(", \"fix\": ");
        ctl_print_json_text(check->fix);
        (void)printf("}");
    }
    (void)printf("\n]}\n");
}

void ctl_doctor_check(struct ctl_doctor *d)
{
    ctl_doctor_plan(d);
    ctl_doctor_memory(d);
    ctl_doctor_storage(d);
    ctl_doctor_system(d);
}

/* ---- the command ------------------------------------------------------------------------- */

int ctl_command_doctor(int argc, char *const *argv)
{
    static struct ctl_doctor d; /* 15 KiB: not for a small stack */
    struct doctor_values values = { .root = "" };
    const struct ctl_group groups[] = {
        { "Output", doctor_options, sizeof doctor_options / sizeof doctor_options[0], &values },
        { "Model (as in run: the plan depends on them)", ctl_model_options, ctl_model_option_count,
          &d.model },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "[MODEL] [options]",
        .summary = "Check whether this machine lets the engine keep its promises.",
        .notes = doctor_notes,
        .groups = groups,
        .group_count = 2,
        .positional_names = { "MODEL" },
        .positionals_min = 0,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code, finished;

    if (code != 0) {
        return ctl_parsed(code);
    }
    d.root = values.root;
    d.path = positionals[0];
    ctl_doctor_check(&d);
    exit_code = d.model_exit_code != 0       ? d.model_exit_code
                : count(&d, CTL_ERROR) > 0 ? EXIT_ENVIRONMENT
                                           : 0;
    if (values.json) {
        print_json(&d, exit_code);
    } else {
        ctl_doctor_print(&d, exit_code);
    }
    finished = ctl_finish_stdout();
    return exit_code != 0 ? exit_code : finished;
}
