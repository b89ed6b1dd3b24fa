/* SPDX-License-Identifier: MIT */
/*
 * What a command says beside its results: lines on stderr, or messages to the system's log and
 * nothing on stderr. Never pass the text or the ids of a prompt or an answer.
 */
#ifndef CTL_LOG_H
#define CTL_LOG_H

#include <stdbool.h>
#include <syslog.h> /* LOG_ERR, LOG_WARNING, LOG_NOTICE, LOG_INFO */

/*
 * syslog_only: from here on descriptor 2 is a datagram socket that is connected to /dev/log, so that
 * nothing, libc's last words included, reaches the old stderr, and a sandbox that allows write() alone
 * lets messages through. It is never opened again: when nobody listens now or later, or the log is
 * full, messages are dropped and exit codes stay. Once on, it stays on. `command`: the messages' tag.
 */
void ctl_log_open(const char *command, bool syslog_only);
/* COLIBRI_NO_LOGGING of the build or of the environment: 0, or the exit code for a word that is
 * neither "1" nor "0". The first thing that main does. */
int ctl_log_environment(void);
bool ctl_log_is_syslog(void);

/* One line, control characters replaced. On stderr LOG_ERR begins with "colibrictl: " and LOG_WARNING
 * with "warning: ". */
void ctl_log(int priority, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for a text, from signal handlers too. */
void ctl_log_text(int priority, const char *text);

#endif
