/* SPDX-License-Identifier: MIT */
/* Snapshots of sessions in files. */
#ifndef CTL_PREFIX_H
#define CTL_PREFIX_H

#include "colibri.h"
#include "prompt.h"

/* Each returns 0, or the exit code after printing why. */

/* Writes the session to `path`, whole or not at all. */
int ctl_prefix_save(const char *path, colibri_session *session);
/* Reads `path` into the session. */
int ctl_prefix_restore(const char *path, const colibri_model *model, colibri_session *session);
/* A plain text that goes on behind a prefix does not begin with BOS: drops what an empty text has.
 * Then the ids must fit behind the prefix; there may be none. */
int ctl_prefix_fit(const char *command, colibri_model *model, const colibri_session *session,
                   bool plain, struct ctl_prompt *prompt);

#endif
