/* SPDX-License-Identifier: MIT */
/* --sandbox: the option of the commands that close themselves in, and what the environment adds. */
#ifndef CTL_SANDBOX_H
#define CTL_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri.h"
#include "options.h"

enum ctl_sandbox_mode { /* the words of the option; from KILL to OFF less and less strict */
    CTL_SANDBOX_AUTO = 0,
    CTL_SANDBOX_KILL = 1,
    CTL_SANDBOX_ERRNO = 2,
    CTL_SANDBOX_LOG = 3,
    CTL_SANDBOX_OFF = 4
};

struct ctl_sandbox_values {
    uint32_t mode; /* enum ctl_sandbox_mode; never AUTO behind ctl_sandbox_resolve */
};

extern const struct ctl_option ctl_sandbox_options[];
#define CTL_SANDBOX_OPTION_COUNT 1u

/* What holds: AUTO becomes `usual`; COLIBRI_SANDBOX and COLIBRI_RESTRICTED_SYSCALLS of the environment
 * and of the build only tighten it. 0, or the exit code after saying why. */
int ctl_sandbox_resolve(const char *command, struct ctl_sandbox_values *values, enum ctl_sandbox_mode usual);

static inline bool ctl_sandbox_on(const struct ctl_sandbox_values *values)
{
    return values->mode != CTL_SANDBOX_OFF;
}

/*
 * Enters a phase unless the sandbox is off. read_paths: [read_count], files and folders that will be read
 * in START, NULL ones are left out; /proc, /sys and /dev are added. write_path: a folder where files are
 * made in START, or NULL. Both are ignored in STEADY, which also says in the log what holds.
 * 0, or the exit code after saying why; then the command must end.
 */
int ctl_sandbox_enter(const char *command, const struct ctl_sandbox_values *values,
                      enum colibri_sandbox_phase phase, const char *const *read_paths, size_t read_count,
                      const char *write_path);

/* Whether STEADY was entered: no file can be opened any more. */
bool ctl_sandbox_closed(void);

#endif
