/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE

#include "sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "log.h"
#include "output.h"

#define WORDS "auto|kill|errno|log|off"
#define MAX_READ_PATHS 16u /* the first three are always there; commands have three more at most */

static bool closed;

const struct ctl_option ctl_sandbox_options[] = {
    { "sandbox", 0, CTL_CHOICE, offsetof(struct ctl_sandbox_values, mode), 0, 0, WORDS, "auto",
      "a system call that is not allowed ends the process, fails, or is logged (audit)" },
};

int ctl_sandbox_resolve(const char *command, struct ctl_sandbox_values *values, enum ctl_sandbox_mode usual)
{
    int mode, restricted = 0;
    int exit_code = ctl_environment_word(command, "COLIBRI_SANDBOX", WORDS, &mode);

    if (exit_code == 0) {
        exit_code = ctl_environment_word(command, "COLIBRI_RESTRICTED_SYSCALLS", "0|1", &restricted);
    }
    if (values->mode == CTL_SANDBOX_AUTO) {
        values->mode = (uint32_t)usual;
    }
    if (mode > CTL_SANDBOX_AUTO && (uint32_t)mode < values->mode) {
        values->mode = (uint32_t)mode;
    }
#ifdef COLIBRI_RESTRICTED_SYSCALLS
    restricted = 1;
#endif
    if (restricted > 0) {
        values->mode = CTL_SANDBOX_KILL;
    }
    return exit_code;
}

static void say(const colibri_sandbox *options, const colibri_sandbox_report *report)
{
    static const char *const actions[] = { "kill", "errno", "log" };

    ctl_log(options->action == COLIBRI_SANDBOX_LOG ? LOG_WARNING : LOG_INFO,
            "sandbox: phase=steady action=%s allowed_calls=%u landlock_abi=%u%s", actions[options->action],
            (unsigned)report->allowed_calls, (unsigned)report->landlock_abi,
            options->action == COLIBRI_SANDBOX_LOG ? ": nothing is refused, the kernel's log names it" : "");
}

/* What cannot be opened anyway needs no permission: only those whom a caller names must be there. */
static bool is_closed(const char *path)
{
    int fd = open(path, O_PATH | O_CLOEXEC);

    if (fd >= 0) {
        (void)close(fd);
    }
    return fd < 0 && errno == EACCES;
}

/* Landlock allows what is below a folder: below this one is everything. */
static int check_write_path(const char *command, const char *path)
{
    struct stat root, found;

    if (path == NULL || stat("/", &root) != 0 || stat(path, &found) != 0 || root.st_dev != found.st_dev ||
        root.st_ino != found.st_ino) {
        return 0;
    }
    return ctl_fail_message(command, COLIBRI_ERR_ARGUMENT,
                            "a file would be made in /, so the sandbox would have to allow all files to be written: "
                            "give a path in another folder");
}

int ctl_sandbox_enter(const char *command, const struct ctl_sandbox_values *values,
                      enum colibri_sandbox_phase phase, const char *const *read_paths, size_t read_count,
                      const char *write_path)
{
    static const char *const always[] = { "/proc", "/sys/fs/cgroup", "/sys/devices/system" };
    const char *paths[MAX_READ_PATHS];
    colibri_sandbox options = COLIBRI_SANDBOX_DEFAULT;
    colibri_sandbox_report report = { .struct_size = sizeof report };
    colibri_error error = { .offset = -1 };
    size_t count = 0;
    int exit_code;

    if (!ctl_sandbox_on(values)) {
        return 0;
    }
    options.phase = phase;
    options.action = values->mode - CTL_SANDBOX_KILL;
    if (phase == COLIBRI_SANDBOX_START) {
        exit_code = check_write_path(command, write_path);
        if (exit_code != 0) {
            return exit_code;
        }
        for (size_t i = 0; i < sizeof always / sizeof always[0]; i++) {
            paths[count] = always[i];
            count += !is_closed(always[i]);
        }
        for (size_t i = 0; i < read_count && count < MAX_READ_PATHS; i++) {
            paths[count] = read_paths[i];
            count += read_paths[i] != NULL;
        }
        options.read_paths = paths;
        options.read_path_count = count;
        options.write_paths = &write_path;
        options.write_path_count = write_path != NULL;
    } else {
        ctl_status_keep();
    }
    if (colibri_sandbox_enter(&options, &report, &error) != 0) {
        return ctl_fail(command, &error);
    }
    if (phase == COLIBRI_SANDBOX_STEADY) {
        closed = true;
        say(&options, &report);
    }
    return 0;
}

bool ctl_sandbox_closed(void)
{
    return closed;
}
