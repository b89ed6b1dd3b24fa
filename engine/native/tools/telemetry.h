/* SPDX-License-Identifier: MIT */
/* How experts were used, as JSON. */
#ifndef CTL_TELEMETRY_H
#define CTL_TELEMETRY_H

#include "colibri.h"

/* Writes `path` ("-": stdout) whole or not at all, and warns on stderr of experts above 300 % of the
 * mean. 0, or the exit code after printing why. */
int ctl_telemetry_write(const char *path, const colibri_model *model);

#endif
