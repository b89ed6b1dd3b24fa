/* SPDX-License-Identifier: MIT */
/* The signals that a command handles; the library never touches them. */
#ifndef CTL_SIGNALS_H
#define CTL_SIGNALS_H

#include <stdbool.h>

#include "colibri.h"

/* Keeps descriptors 0..2 taken, so that a model file never becomes standard output; ignores
 * SIGPIPE (a closed reader is an error of write); reports SIGBUS. */
void ctl_signals_init(void);
/* From now on SIGINT and SIGTERM cancel this session; a second one ends the process. */
void ctl_signals_watch(colibri_session *session);
/* The other way: one of them asks for an end, a second one cancels the session too. */
void ctl_signals_drain(colibri_session *session);
/* Before the session is freed. */
void ctl_signals_unwatch(void);
/* The number of the signal that asked to stop, or 0. */
int ctl_signal_caught(void);
/* poll() for one descriptor, until it is ready: -1 and EINTR when a signal that asks to stop comes or has come
 * before, at whatever moment. */
int ctl_signals_poll(int fd, short events);
/* Whether a second one came. */
bool ctl_signals_insist(void);

#endif
