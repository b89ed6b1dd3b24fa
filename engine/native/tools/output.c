/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include "output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h> /* POLLOUT */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../src/spec.h"
#include "log.h"
#include "options.h"
#include "signals.h"

#define STATUS_BYTES 8192u /* /proc/self/status is about 1.5 KiB */

const char *ctl_code_name(int code)
{
    switch (code) {
#define CASE(number, exit_code, name, text) \
    case number:                            \
        return name;
        CB_ERROR_TABLE(CASE)
#undef CASE
    default:
        return "unknown";
    }
}

/* What an option of the library is called here, which is never longer. */
static const char options[] = "context_tokens\0--context\0"
                              "batch_tokens\0--batch\0"
                              "max_text_bytes\0--max-text\0"
                              "expert_slots\0--slots\0"
                              "budget_bytes\0--budget\0"
                              "require_signature\0--signed-only\0";

void ctl_name_options(colibri_error *error)
{
    /* those of a damaged file are fields of its records */
    for (const char *name = options; *name != '\0' && error->code <= COLIBRI_ERR_ARGUMENT;) {
        const char *option = name + strlen(name) + 1;
        size_t length = strlen(option);
        char *at = strstr(error->message, name);

        if (at != NULL) {
            const char *rest = at + strlen(name);

            memcpy(at, option, length);
            memmove(at + length, rest, strlen(rest) + 1);
        }
        name = option + length + 1;
    }
}

int ctl_fail(const char *thing, colibri_error *error)
{
    char offset[40] = "";

    ctl_name_options(error);
    if (error->offset >= 0) {
        (void)snprintf(offset, sizeof offset, ", file offset %lld", (long long)error->offset);
    }
    ctl_log(LOG_ERR, "%s: %s (error %d %s%s)", thing,
            error->message[0] != '\0' ? error->message : colibri_strerror(error->code),
            (int)error->code, ctl_code_name(error->code), offset);
    return colibri_exit_code(error->code);
}

int ctl_fail_message(const char *thing, int code, const char *format, ...)
{
    colibri_error error = { .code = code, .offset = -1 };
    va_list args;

    va_start(args, format);
    (void)vsnprintf(error.message, sizeof error.message, format, args);
    va_end(args);
    return ctl_fail(thing, &error);
}

void ctl_print_exit_codes(void)
{
    (void)printf("\nExit codes: 0 ok, 1 failed while running, 2 wrong usage, 3 model file damaged or "
                 "not verified,\n            4 memory budget too small, 5 environment (memory, "
                 "locks, threads, instruction set).\n");
}

bool ctl_wait(int fd, short events)
{
    return errno == EINTR || (errno == EAGAIN && (ctl_signals_poll(fd, events) >= 0 || errno == EINTR));
}

int ctl_write(int fd, const char *bytes, size_t length, colibri_error *error)
{
    while (length > 0) {
        ssize_t done = write(fd, bytes, length);

        if (done >= 0) {
            bytes += done;
            length -= (size_t)done;
        } else if ((errno == EINTR || errno == EAGAIN) && ctl_signal_caught() != 0) {
            error->code = COLIBRI_ERR_CANCELLED;
            error->offset = -1;
            (void)snprintf(error->message, sizeof error->message, "interrupted by signal %d",
                           ctl_signal_caught());
            return error->code;
        } else if (!ctl_wait(fd, POLLOUT)) {
            error->code = COLIBRI_ERR_IO;
            error->offset = -1;
            (void)snprintf(error->message, sizeof error->message, "%s: %s%s",
                           fd == STDOUT_FILENO ? "standard output" : "cannot write", strerror(errno), errno == EPIPE ? ": the reader closed it" : "");
            return error->code;
        }
    }
    return 0;
}

int ctl_finish_stdout(void)
{
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        return ctl_fail_message("standard output", COLIBRI_ERR_IO, "%s", strerror(errno));
    }
    return 0;
}

void ctl_hex(const uint8_t hash[32], char text[CTL_HEX_BYTES])
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < 32; i++) {
        text[2 * i] = digits[hash[i] >> 4];
        text[2 * i + 1] = digits[hash[i] & 15];
    }
    text[CTL_HEX_BYTES - 1] = '\0';
}

static void print_json_byte(char byte)
{
    unsigned char c = (unsigned char)byte;

    if (c == '"' || c == '\\') {
        (void)printf("\\%c", c);
    } else if (c < 0x20) {
        (void)printf("\\u%04x", (unsigned)c);
    } else {
        (void)putchar(c);
    }
}

void ctl_print_json_text(const char *text)
{
    colibri_utf8 state = { .held_bytes = 0 };
    char out[32];
    size_t length = 0;

    (void)putchar('"');
    for (; *text != '\0'; text++) {
        (void)colibri_utf8_feed(&state, text, 1, out, sizeof out, &length);
        for (size_t i = 0; i < length; i++) {
            print_json_byte(out[i]);
        }
    }
    length = colibri_utf8_flush(&state, out, sizeof out);
    for (size_t i = 0; i < length; i++) {
        print_json_byte(out[i]);
    }
    (void)putchar('"');
}

static int status_file = -1;

void ctl_status_keep(void)
{
    if (status_file < 0) {
        status_file = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    }
}

static size_t read_status(char *text, size_t capacity)
{
    bool kept = status_file >= 0;
    size_t length = 0;
    ssize_t done = 1;

    ctl_status_keep();
    if (status_file < 0) {
        return 0;
    }
    while (done > 0 && length < capacity - 1) {
        done = pread(status_file, text + length, capacity - 1 - length, (off_t)length);
        length += done > 0 ? (size_t)done : 0;
    }
    if (!kept) {
        (void)close(status_file);
        status_file = -1;
    }
    text[length] = '\0';
    return length;
}

uint64_t ctl_status_bytes(const char *row)
{
    char text[STATUS_BYTES];
    const char *at = read_status(text, sizeof text) > 0 ? strstr(text, row) : NULL;
    uint64_t kib = 0;

    if (at == NULL) {
        return 0;
    }
    at += strlen(row);
    at += strspn(at, " \t");
    for (; *at >= '0' && *at <= '9'; at++) {
        kib = kib * 10 + (uint64_t)(*at - '0');
    }
    return kib * 1024;
}

double ctl_seconds(void)
{
    struct timespec now = { 0 };

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
