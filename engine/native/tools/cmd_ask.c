/* SPDX-License-Identifier: MIT */
/* colibrictl ask: one request to a server of docs/protocol.md. */
#define _GNU_SOURCE

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "../src/spec.h"
#include "answer.h"
#include "commands.h"
#include "lines.h"
#include "options.h"
#include "output.h"
#include "prompt.h"
#include "request.h"
#include "sampling.h"
#include "server.h"

#define NAME "ask"
#define FIXED_BYTES 256u /* of a request, beside its prompt */

struct ask_values {
    char *prompt;
    const char *prompt_file;
    bool chat, json;
    uint32_t timeout_seconds;
    struct ctl_sampling sampling;
};

#define AT(field) offsetof(struct ask_values, field)

static const struct ctl_option ask_options[] = {
    { "prompt", 'p', CTL_TEXT, AT(prompt), 0, 0, "TEXT", NULL, "the prompt" },
    { "prompt-file", 'f', CTL_TEXT, AT(prompt_file), 0, 0, "FILE", NULL,
      "read the prompt from a file; - is standard input" },
    { "chat", 0, CTL_FLAG, AT(chat), 0, 0, NULL, NULL,
      "wrap the prompt in the model's chat form" },
    { "json", 0, CTL_FLAG, AT(json), 0, 0, NULL, NULL, "print the lines of the answer as they come" },
    { "timeout-seconds", 0, CTL_U32, AT(timeout_seconds), 0, 86400, "S", "0",
      "give up when the answer is not complete by then; 0 = never" },
};

static const char ask_notes[] =
    "SOCKET is the one of colibrictl serve --socket. The text goes to stdout as it comes. The exit code\n"
    "is that of the answer's error, if it has one.\n"
    "\n"
    "Example:\n"
    "  colibrictl ask /run/colibri/colibri.sock -p \"The capital of France is\" -n 16\n";

struct conversation {
    const char *path;
    int fd;
    double give_up; /* time of ctl_seconds; 0: never */
    const struct ask_values *values;
    struct ctl_text text;
};

/* ---- the request ------------------------------------------------------------------------- */

static int connect_to(struct conversation *c)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    const struct timeval limit = { .tv_sec = (time_t)c->values->timeout_seconds }; /* 0: none */
    size_t length = strlen(c->path);

    if (length == 0 || length >= sizeof address.sun_path) {
        return ctl_fail_message(c->path, COLIBRI_ERR_ARGUMENT, "a socket's path has 1..%zu bytes",
                                sizeof address.sun_path - 1);
    }
    memcpy(address.sun_path, c->path, length);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
        connect(c->fd, (const struct sockaddr *)&address, sizeof address) != 0) {
        return ctl_fail_message(c->path, COLIBRI_ERR_OPEN, "cannot connect: %s; %s", strerror(errno),
                                errno == EACCES   ? "is this user in the group of the socket?"
                                : errno == EAGAIN ? "the server takes no clients: raise --timeout-seconds"
                                                  : "does colibrictl serve --socket run?");
    }
    return 0;
}

/* The characters of a JSON string, each as short as JSON has it: a server counts the bytes of a line. What
 * is no UTF-8 is for the server to refuse. */
static size_t escape(char *out, const char *text, size_t length)
{
    static const char shorts[] = { ['\b'] = 'b', ['\t'] = 't', ['\n'] = 'n', ['\f'] = 'f', ['\r'] = 'r',
                                   ['"'] = '"',  ['\\'] = '\\' };
    char *at = out;

    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        char letter = c < sizeof shorts ? shorts[c] : '\0';

        if (c < 0x20 && letter == '\0') {
            at += snprintf(at, 7, "\\u%04x", (unsigned)c);
            continue;
        }
        if (letter != '\0') {
            *at++ = '\\';
        }
        *at++ = letter != '\0' ? letter : (char)c;
    }
    return (size_t)(at - out);
}

static int send_request(struct conversation *c, const struct ctl_prompt *prompt)
{
    const struct ctl_sampling *s = &c->values->sampling;
    size_t capacity = 6 * prompt->text_bytes + FIXED_BYTES, length, done = 0;
    char *line = malloc(capacity);

    if (line == NULL) {
        return ctl_fail_message(NAME, COLIBRI_ERR_MEMORY, "no memory for %zu bytes of request", capacity);
    }
    length = (size_t)snprintf(line, FIXED_BYTES,
                              "{\"tokens\":%u,\"top_k\":%u,\"temperature\":%.9g,\"top_p\":%.9g,"
                              "\"min_p\":%.9g,\"seed\":%llu,\"chat\":%s,\"ignore_end\":%s,\"prompt\":\"",
                              (unsigned)s->tokens, (unsigned)s->top_k, (double)s->temperature,
                              (double)s->top_p, (double)s->min_p, (unsigned long long)s->seed,
                              c->values->chat ? "true" : "false", s->ignore_end ? "true" : "false");
    length += escape(line + length, prompt->text, prompt->text_bytes);
    memcpy(line + length, "\"}\n", 3);
    length += 3;
    while (done < length) {
        ssize_t part = send(c->fd, line + done, length - done, MSG_NOSIGNAL);

        if (part < 0 && errno != EINTR) {
            break; /* the server may have said why before it hung up */
        }
        done += part > 0 ? (size_t)part : 0;
    }
    ctl_wipe(line, length);
    free(line);
    (void)shutdown(c->fd, SHUT_WR);
    return 0;
}

/* ---- the answer -------------------------------------------------------------------------- */

/* More of it: 0 (also at its end), or the exit code. */
static int receive(struct conversation *c, struct ctl_lines *lines)
{
    struct pollfd polled = { .fd = c->fd, .events = POLLIN };
    double left = c->give_up > 0 ? c->give_up - ctl_seconds() : -1;
    int ready = 0;
    size_t space;
    char *room = ctl_lines_room(lines, &space);
    ssize_t done;

    if (c->give_up <= 0 || left > 0) {
        ready = poll(&polled, 1, left < 0 ? -1 : (int)(1e3 * left) + 1);
    }
    if (ready == 0) {
        return ctl_fail_message(c->path, COLIBRI_ERR_CANCELLED,
                                "the answer was not complete after %u seconds: ask for fewer tokens, or "
                                "raise --timeout-seconds",
                                (unsigned)c->values->timeout_seconds);
    }
    done = ready > 0 ? read(c->fd, room, space) : -1;
    if (done > 0) {
        ctl_lines_add(lines, (size_t)done);
    } else if (done == 0 || errno != EINTR) {
        return ctl_fail_message(c->path, COLIBRI_ERR_IO,
                                "the server hung up before the answer was complete: %s",
                                done == 0 ? "did it stop?" : strerror(errno));
    }
    return 0;
}

/* One line; *last: nothing follows. 0 or the exit code. */
static int take_line(struct conversation *c, struct ctl_lines *lines, bool *last)
{
    char *line = ctl_lines_text(lines);
    colibri_error error = { .offset = -1 };
    struct ctl_reply reply;
    int code = 0;

    if (c->values->json) { /* with its end: the parser changes it. Whatever it is: a terminal is not steered by it */
        code = ctl_text_write(&c->text, line, lines->taken, &error);
    }
    if (code == 0) {
        code = lines->too_long ? ctl_refuse(&error, COLIBRI_ERR_TEXT_LONG, "a line is too long")
                               : ctl_reply_parse(&reply, line, lines->length, &error);
        if (code != 0) {
            return ctl_fail_message(c->path, COLIBRI_ERR_IO, "no answer of colibrictl serve: %.200s",
                                    error.message);
        }
    }
    *last = code != 0 || reply.text.at == NULL;
    if (code == 0 && reply.text.at != NULL && !c->values->json) {
        code = ctl_text_write(&c->text, reply.text.at, reply.text.bytes, &error);
    }
    if (code == 0 && *last && !c->values->json) {
        code = ctl_text_end(&c->text, &error);
    }
    if (code != 0) {
        return ctl_fail("standard output", &error);
    }
    if (reply.error == 0) {
        return 0;
    }
    return c->values->json ? colibri_exit_code(reply.error)
                           : ctl_fail_message(c->path, reply.error, "%.*s", (int)reply.message.bytes,
                                              reply.message.at);
}

static int converse(struct conversation *c, const struct ctl_prompt *prompt)
{
    static char bytes[CTL_ANSWER_LINE_BYTES];
    struct ctl_lines lines = { .bytes = bytes, .limit = sizeof bytes };
    bool last = false;
    int exit_code = connect_to(c);

    if (exit_code == 0) {
        exit_code = send_request(c, prompt);
    }
    while (exit_code == 0 && !last) {
        if (ctl_lines_next(&lines)) {
            exit_code = take_line(c, &lines, &last);
            ctl_lines_drop(&lines);
        } else {
            exit_code = receive(c, &lines);
        }
    }
    ctl_lines_clear(&lines); /* it holds what the model said */
    if (c->fd >= 0) {
        (void)close(c->fd);
    }
    return exit_code;
}

/* ---- the command ------------------------------------------------------------------------- */

static int read_prompt(const struct ask_values *values, const char *word, struct ctl_prompt *prompt)
{
    bool dash = word != NULL && strcmp(word, "-") == 0;
    const char *file = dash ? "-" : values->prompt_file;

    if ((word != NULL && !dash) || (values->prompt != NULL) + (values->prompt_file != NULL) + dash != 1) {
        return ctl_usage_error(NAME, "give one prompt: --prompt TEXT (quote it), --prompt-file FILE or -");
    }
    return file != NULL ? ctl_prompt_from_file(NAME, file, CB_MAX_COMMAND_TEXT_BYTES, prompt)
                        : ctl_prompt_from_text(NAME, values->prompt, CB_MAX_COMMAND_TEXT_BYTES, prompt);
}

int ctl_command_ask(int argc, char *const *argv)
{
    struct ask_values values = { 0 };
    const struct ctl_group groups[] = {
        { "Prompt and answer", ask_options, sizeof ask_options / sizeof ask_options[0], &values },
        { "Generation", ctl_sampling_options, ctl_sampling_option_count, &values.sampling },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "SOCKET (-p TEXT | -f FILE | -) [options]",
        .summary = "Ask the server at a socket.",
        .notes = ask_notes,
        .groups = groups,
        .group_count = sizeof groups / sizeof groups[0],
        .positional_names = { "SOCKET" },
        .positionals_min = 1,
        .positionals_max = 2,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    struct ctl_prompt prompt = { 0 };
    struct conversation c = { .fd = -1, .values = &values };
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code;

    if (code != 0) {
        return ctl_parsed(code);
    }
    c.path = positionals[0];
    ctl_text_begin(&c.text);
    exit_code = read_prompt(&values, positionals[1], &prompt);
    ctl_wipe_argument(values.prompt);
    if (exit_code == 0) {
        c.give_up = values.timeout_seconds > 0 ? ctl_seconds() + (double)values.timeout_seconds : 0;
        exit_code = converse(&c, &prompt);
    }
    ctl_prompt_free(&prompt);
    return exit_code;
}
