/* SPDX-License-Identifier: MIT */
/* The signals that a command handles; the library never touches them. */
#ifndef CTL_SIGNALS_H
#define CTL_SIGNALS_H

#include "colibri.h"

/* Keeps descriptors 0..2 taken, so that a model file never becomes standard output; ignores
 * SIGPIPE (a closed reader is an error of write); reports SIGBUS. */
void ctl_signals_init(void);
/* From now on SIGINT and SIGTERM cancel this session; a second one ends the process. */
void ctl_signals_watch(colibri_session *session);
/* Before the session is freed. */
void ctl_signals_unwatch(void);
/* The number of the signal that asked to stop, or 0. */
int ctl_signal_caught(void);

#endif
