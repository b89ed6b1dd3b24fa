/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE

#include "log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "colibri.h"
#include "options.h"

#define TEXT_BYTES 4608u /* a path and a message */
#define LINE_BYTES (TEXT_BYTES + 64u)
#define FORCED_NAME "COLIBRI_NO_LOGGING"

static struct {
    bool syslog;
    char tag[40]; /* "colibrictl[123]: " */
} state;

bool ctl_log_is_syslog(void)
{
    return state.syslog;
}

void ctl_log_open(const char *command, bool syslog_only)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "/dev/log" };
    int fd;

    if (state.syslog || !syslog_only) {
        return;
    }
    state.syslog = true;
    (void)snprintf(state.tag, sizeof state.tag, "%.16s[%ld]: ", command, (long)getpid());
    /* Not connected, a write fails: the socket keeps number 2 from a file that is opened later. */
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)connect(fd, (const struct sockaddr *)&address, sizeof address);
    fd = fd >= 0 ? fd : open("/dev/null", O_WRONLY | O_CLOEXEC); /* a kernel without such sockets */
    if (fd >= 0) {
        (void)dup2(fd, STDERR_FILENO);
        (void)close(fd);
    }
}

int ctl_log_environment(void)
{
    const char *word = getenv(FORCED_NAME);
    int on;

#ifdef COLIBRI_NO_LOGGING
    (void)word;
    ctl_log_open("colibrictl", true);
#else
    ctl_log_open("colibrictl", word != NULL && strcmp(word, "1") == 0);
#endif
    return ctl_environment_word("log", FORCED_NAME, "0|1", &on);
}

/* The beginning of a line: an RFC 3164 header without the time, which the receiver knows better, or
 * the word that people look for. Async-signal-safe. */
static size_t begin(int priority, char *line)
{
    const char *word = state.syslog             ? state.tag
                       : priority == LOG_ERR     ? "colibrictl: "
                       : priority == LOG_WARNING ? "warning: "
                                                 : "";
    size_t at = 0, length = strlen(word);

    if (state.syslog) {
        int number = LOG_DAEMON | priority; /* 24..31 */

        line[at++] = '<';
        line[at++] = (char)('0' + number / 10);
        line[at++] = (char)('0' + number % 10);
        line[at++] = '>';
    }
    memcpy(line + at, word, length);
    return at + length;
}

void ctl_log_text(int priority, const char *text)
{
    char line[LINE_BYTES];
    size_t at = begin(priority, line), done = 0;
    ssize_t part = 1;

    /* File names come from anywhere: no byte of them may steer a terminal or end a line. */
    for (; *text != '\0' && at < LINE_BYTES - 1; text++) {
        unsigned char c = (unsigned char)*text;
        bool c1 = c == 0xC2 && (unsigned char)text[1] >= 0x80 && (unsigned char)text[1] < 0xA0;

        text += c1;
        line[at++] = c1 || c < 0x20 || c == 0x7F ? '?' : (char)c;
    }
    line[at] = '\n';
    at += !state.syslog;
    for (; done < at && part > 0; done += (size_t)part) {
        part = write(STDERR_FILENO, line + done, at - done);
        part = part < 0 ? 0 : part; /* nobody reads */
    }
}

void ctl_log(int priority, const char *format, ...)
{
    char text[TEXT_BYTES];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    ctl_log_text(priority, text);
}
