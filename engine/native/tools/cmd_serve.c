/* SPDX-License-Identifier: MIT */
/*
 * colibrictl serve: answers requests of docs/protocol.md, one after another, from standard input to
 * standard output. A supervisor that owns a socket (inetd, systemd with Accept=yes) connects it to both.
 */
#define _POSIX_C_SOURCE 200809L

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/spec.h"
#include "answer.h"
#include "commands.h"
#include "generate.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "prompt.h"
#include "request.h"
#include "signals.h"

#define NAME "serve"
#define FIXED_LINE_BYTES 4096u /* of a request, beside its prompt */

static const char serve_notes[] =
    "Each line of standard input is a request, a flat JSON object; the answer is one line per piece of\n"
    "text and a last one with \"done\" or \"error\". A request that cannot be understood is answered by\n"
    "an error, and the next one is read. Ends with the input. See docs/protocol.md.\n"
    "\n"
    "Example:\n"
    "  echo '{\"id\":\"1\",\"prompt\":\"The capital of France is\",\"tokens\":16}' | colibrictl serve "
    "model.colibri\n";

struct server {
    colibri_model *model;
    colibri_session *session;
    size_t text_limit;
    uint32_t context_tokens;
    char *line;          /* [line_limit] */
    size_t line_limit;
    size_t held, taken;  /* bytes in the line buffer; of those, the ones of the current line */
    bool ended;          /* standard input */
    int32_t *ids;        /* [text_limit + CTL_MAX_CHAT_IDS] */
    size_t used_ids;     /* to be wiped */
};

/* ---- lines ------------------------------------------------------------------------------- */

/* More bytes into the buffer; 0 at the end of the input, or an exit code below zero. */
static int fill(struct server *s)
{
    for (;;) {
        ssize_t done = read(STDIN_FILENO, s->line + s->held, s->line_limit - s->held);

        if (done > 0) {
            s->held += (size_t)done;
            return 0;
        }
        if (done == 0) {
            s->ended = true;
            return 0;
        }
        if (errno != EINTR) {
            return ctl_fail_message("standard input", COLIBRI_ERR_IO, "cannot read a request: %s",
                                    strerror(errno));
        }
        if (ctl_signal_caught() != 0) {
            s->ended = true;
            s->held = 0;
            return 0;
        }
    }
}

/* Forgets the line that was answered. */
static void drop_line(struct server *s)
{
    size_t left = s->held - s->taken;

    memmove(s->line, s->line + s->taken, left);
    ctl_wipe(s->line + left, s->taken);
    s->held = left;
    s->taken = 0;
}

/* The next line, without its end: *length, or *too_long when it does not fit (it is skipped whole).
 * *have false: there is none. 0 or the exit code. */
static int next_line(struct server *s, size_t *length, bool *too_long, bool *have)
{
    size_t searched = 0;

    *too_long = false;
    for (;;) {
        const char *end = memchr(s->line + searched, '\n', s->held - searched);
        int exit_code;

        if (end != NULL || s->ended) {
            *length = end != NULL ? (size_t)(end - s->line) : s->held;
            s->taken = *length + (end != NULL);
            *have = s->taken > 0 || *too_long;
            return 0;
        }
        searched = s->held;
        if (s->held == s->line_limit) {
            *too_long = true;
            ctl_wipe(s->line, s->held);
            s->held = 0;
            searched = 0;
        }
        exit_code = fill(s);
        if (exit_code != 0) {
            return exit_code;
        }
    }
}

static bool is_blank(const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r') {
            return false;
        }
    }
    return true;
}

/* ---- requests ---------------------------------------------------------------------------- */

static int refuse(colibri_error *error, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse(colibri_error *error, int code, const char *format, ...)
{
    va_list args;

    error->code = code;
    error->offset = -1;
    va_start(args, format);
    (void)vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return code;
}

static int tokenize(struct server *s, const struct ctl_request *request, size_t *count,
                    colibri_error *error)
{
    int code;

    if (request->prompt_bytes > s->text_limit) {
        return refuse(error, COLIBRI_ERR_TEXT_LONG,
                      "the prompt has %zu bytes, more than %zu: shorten it or raise --max-text",
                      request->prompt_bytes, s->text_limit);
    }
    *count = s->text_limit + CTL_MAX_CHAT_IDS;
    code = colibri_tokenize(s->model, request->prompt, request->prompt_bytes,
                            request->chat ? COLIBRI_TEXT_CHAT : COLIBRI_TEXT_PLAIN, s->ids, count,
                            error);
    s->used_ids = code == 0 ? *count : 0;
    if (code == 0 && *count == 0) {
        code = refuse(error, COLIBRI_ERR_ARGUMENT, "the prompt has no tokens: give some text");
    }
    if (code == 0 && *count > s->context_tokens) {
        code = refuse(error, COLIBRI_ERR_PROMPT_LONG,
                      "the prompt has %zu tokens, the context holds %u: shorten it or raise --context",
                      *count, (unsigned)s->context_tokens);
    }
    return code;
}

static int generate(struct server *s, const struct ctl_request *request, struct ctl_answer *answer,
                    struct ctl_generation *g, colibri_error *error)
{
    int code;

    colibri_session_reset(s->session);
    g->model = s->model;
    g->session = s->session;
    g->prompt = s->ids;
    g->limit_tokens = request->tokens;
    g->ignore_end = request->ignore_end;
    g->hash_logits = true;
    g->emit = ctl_answer_token;
    g->emit_context = answer;
    code = tokenize(s, request, &g->prompt_tokens, error);
    if (code == 0) {
        code = colibri_session_set_sampler(s->session, &request->sampler, error);
    }
    return code == 0 ? ctl_generate(g, error) : code;
}

/* Answers one line. 0, or a negative code when nobody reads the answer. */
static int answer_line(struct server *s, size_t length, bool too_long, colibri_error *error)
{
    struct ctl_request request = { .id = "" };
    struct ctl_generation g = { 0 };
    struct ctl_answer answer = { .fd = STDOUT_FILENO, .model = s->model, .id = request.id };
    colibri_error failure = { .offset = -1 };
    int code;

    if (too_long) {
        code = refuse(&failure, COLIBRI_ERR_TEXT_LONG,
                      "the request is longer than %zu bytes: shorten it or raise --max-text (%zu)",
                      s->line_limit, s->text_limit);
    } else {
        code = ctl_request_parse(&request, s->line, length, &failure);
    }
    if (code == 0) {
        code = generate(s, &request, &answer, &g, &failure);
    }
    if (code == 0) {
        return ctl_answer_done(&answer, &g, error);
    }
    if (answer.broken) { /* it cannot be told to the one who does not read */
        *error = failure;
        return code;
    }
    return ctl_answer_error(&answer, &failure, error);
}

static int serve(struct server *s)
{
    bool have = true;

    while (ctl_signal_caught() == 0) {
        colibri_error error = { .offset = -1 };
        size_t length = 0;
        bool too_long = false;
        int exit_code = next_line(s, &length, &too_long, &have);

        if (exit_code != 0 || !have) {
            return exit_code;
        }
        if (!too_long && is_blank(s->line, length)) {
            drop_line(s);
            continue;
        }
        if (answer_line(s, length, too_long, &error) != 0) {
            return ctl_fail(NAME, &error);
        }
        drop_line(s);
        ctl_wipe(s->ids, s->used_ids * sizeof *s->ids);
        s->used_ids = 0;
        colibri_session_reset(s->session); /* secure mode wipes now, not with the next request */
    }
    return 0;
}

static int open_server(struct server *s, size_t max_text)
{
    colibri_plan plan = { .struct_size = sizeof plan };
    colibri_error error = { .offset = -1 };

    s->text_limit = max_text;
    s->line_limit = 2 * max_text + FIXED_LINE_BYTES;
    (void)colibri_model_plan(s->model, &plan);
    s->context_tokens = plan.context_tokens;
    s->line = malloc(s->line_limit);
    s->ids = malloc((max_text + CTL_MAX_CHAT_IDS) * sizeof *s->ids);
    if (s->line == NULL || s->ids == NULL) {
        return ctl_fail_message(NAME, COLIBRI_ERR_MEMORY,
                                "no memory for requests of %zu bytes: lower --max-text", max_text);
    }
    return colibri_session_create(s->model, &s->session, &error) == 0 ? 0 : ctl_fail(NAME, &error);
}

int ctl_command_serve(int argc, char *const *argv)
{
    struct ctl_model_values model_values = { 0 };
    const struct ctl_group groups[] = {
        { "Model", ctl_model_options, ctl_model_option_count, &model_values },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL [options]",
        .summary = "Answer requests, a JSON object per line, from standard input to standard output.",
        .notes = serve_notes,
        .groups = groups,
        .group_count = 1,
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    struct server server = { 0 };
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code;

    if (code != 0) {
        return code == CTL_HELP_SHOWN ? ctl_finish_stdout() : colibri_exit_code(code);
    }
    exit_code = ctl_model_open(NAME, positionals[0], &model_values, &server.model);
    if (exit_code == 0) {
        exit_code = open_server(&server, (size_t)model_values.max_text_bytes);
    }
    if (exit_code == 0) {
        ctl_signals_watch(server.session);
        exit_code = serve(&server);
        ctl_signals_unwatch();
    }
    colibri_session_free(server.session);
    free(server.ids);
    free(server.line);
    colibri_model_close(server.model);
    return exit_code;
}
