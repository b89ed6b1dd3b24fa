/* SPDX-License-Identifier: MIT */
/* What a command tells its caller: texts on stdout, errors and figures on stderr, exit codes. */
#ifndef CTL_OUTPUT_H
#define CTL_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "colibri.h"

#define CTL_HEX_BYTES 65u /* a SHA-256 in hexadecimal, terminated */

/* The pinned name of an error code ("chunk_mismatch"), as engine/spec/format.toml spells it. */
const char *ctl_code_name(int code);

/* `colibrictl: thing: message (error -14 chunk_mismatch, file offset 65536)` on stderr.
 * Returns the exit code. */
int ctl_fail(const char *thing, colibri_error *error);
/* In its message, the options of the library by the names that they have here: --context for context_tokens. */
void ctl_name_options(colibri_error *error);
/* The same for an error that the command found itself. */
int ctl_fail_message(const char *thing, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void ctl_print_exit_codes(void);

/* Behind a read or write that failed: whether to try again. When the descriptor does not block (it may be
 * shared with somebody who wants that), sleeps until poll() finds these events or a signal comes. */
bool ctl_wait(int fd, short events);
/* Writes everything to a file descriptor; COLIBRI_ERR_IO when it is closed, and
 * COLIBRI_ERR_CANCELLED when a signal asked to stop. */
int ctl_write(int fd, const char *bytes, size_t length, colibri_error *error);
/* Flushes stdout: 0 or the exit code, after printing why. */
int ctl_finish_stdout(void);

/* A JSON string on stdout. A path is any bytes, JSON is UTF-8: what is no character comes out as
 * U+FFFD. */
void ctl_print_json_text(const char *text);

void ctl_hex(const uint8_t hash[32], char text[CTL_HEX_BYTES]);

/* Keeps /proc/self/status open: the sandbox lets nothing be opened. */
void ctl_status_keep(void);
/* A row of /proc/self/status in bytes, e.g. "VmHWM:"; 0 when there is no such row. */
uint64_t ctl_status_bytes(const char *row);

/* Seconds of the monotonic clock. */
double ctl_seconds(void);

#endif
