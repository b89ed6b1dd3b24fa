/* SPDX-License-Identifier: MIT */
#include "server.h"

#include <stdarg.h>
#include <stdio.h>

#include "output.h"
#include "prompt.h"

int ctl_refuse(colibri_error *error, int code, const char *format, ...)
{
    va_list args;

    error->code = code;
    error->offset = -1;
    va_start(args, format);
    (void)vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    return code;
}

size_t ctl_server_ids_bytes(size_t text_limit)
{
    return (text_limit + CTL_MAX_CHAT_IDS) * sizeof(int32_t);
}

static int check_tokens(const struct ctl_server *s, struct ctl_request *request, colibri_error *error)
{
    if (request->tokens <= s->token_limit) {
        return 0;
    }
    if (request->tokens_given) {
        return ctl_refuse(error, COLIBRI_ERR_ARGUMENT,
                          "tokens is %u, more than %u: ask for fewer, or raise %s",
                          (unsigned)request->tokens, (unsigned)s->token_limit,
                          s->token_limit < s->context_tokens ? "--max-tokens" : "--context");
    }
    request->tokens = s->token_limit;
    return 0;
}

static int tokenize(struct ctl_server *s, const struct ctl_request *request, size_t *count,
                    colibri_error *error)
{
    int code;

    if (request->prompt.bytes > s->text_limit) {
        return ctl_refuse(error, COLIBRI_ERR_TEXT_LONG,
                          "the prompt has %zu bytes, more than %zu: shorten it or raise --max-text",
                          request->prompt.bytes, s->text_limit);
    }
    *count = s->text_limit + CTL_MAX_CHAT_IDS;
    s->used_ids = *count;
    code = colibri_tokenize(s->model, request->prompt.at, request->prompt.bytes,
                            request->chat ? COLIBRI_TEXT_CHAT : COLIBRI_TEXT_PLAIN, s->ids, count,
                            error);
    s->used_ids = code == 0 ? *count : s->used_ids;
    if (code == 0 && *count == 0) {
        code = ctl_refuse(error, COLIBRI_ERR_ARGUMENT, "the prompt has no tokens: give some text");
    }
    if (code == 0 && *count > s->context_tokens) {
        code = ctl_refuse(error, COLIBRI_ERR_PROMPT_LONG,
                          "the prompt has %zu tokens, the context holds %u: shorten it or raise "
                          "--context",
                          *count, (unsigned)s->context_tokens);
    }
    return code;
}

void ctl_server_begin(struct ctl_server *s, struct ctl_job *job, char *line, size_t length,
                      bool too_long)
{
    struct ctl_generation *g = &job->generation;
    colibri_error *failure = &job->failure;
    int code;

    *job = (struct ctl_job){ .failure = { .offset = -1 } };
    if (too_long) {
        (void)ctl_refuse(failure, COLIBRI_ERR_TEXT_LONG,
                         "the request is longer than %zu bytes: shorten it or raise --max-text (%zu)",
                         s->line_limit, s->text_limit);
        return;
    }
    code = ctl_request_parse(&job->request, line, length, failure);
    if (code == 0) {
        code = check_tokens(s, &job->request, failure);
    }
    if (code == 0) {
        code = tokenize(s, &job->request, &g->prompt_tokens, failure);
    }
    if (code == 0) {
        code = colibri_session_set_sampler(s->session, &job->request.sampler, failure);
    }
    job->request.prompt.at = NULL; /* the line goes */
    g->model = s->model;
    g->session = s->session;
    g->prompt = s->ids;
    g->limit_tokens = job->request.tokens;
    g->ignore_end = job->request.ignore_end;
    g->hash_logits = true;
    g->emit = ctl_answer_token;
}

static int answer(struct ctl_server *s, struct ctl_job *job, const struct ctl_link *link,
                  colibri_error *error)
{
    struct ctl_answer answer = { .write = link->write, .context = link->context, .model = s->model,
                                 .id = job->request.id };
    struct ctl_generation *g = &job->generation;
    int code = job->failure.code;

    g->emit_context = &answer;
    g->between = link->between;
    g->between_context = link->context;
    g->step_tokens = link->between != NULL ? s->batch_tokens : 0;
    if (code == 0) {
        code = ctl_generate(g, &job->failure);
    }
    if (answer.broken) { /* it cannot be told to the one who does not read */
        *error = job->failure;
        return code;
    }
    return code == 0 ? ctl_answer_done(&answer, g, error)
                     : ctl_answer_error(&answer, &job->failure, error);
}

#define STACK_BYTES 40960u /* more than the frames of reading a request and writing its answer together */

/* What they left below this frame: pieces of a request that was refused, lines of the answer. */
static void __attribute__((noinline)) wipe_stack(void)
{
    char below[STACK_BYTES];

    ctl_wipe(below, sizeof below);
}

int ctl_server_finish(struct ctl_server *s, struct ctl_job *job, const struct ctl_link *link,
                      colibri_error *error)
{
    int code = answer(s, job, link, error);

    colibri_session_reset(s->session);
    ctl_wipe(s->ids, s->used_ids * sizeof *s->ids);
    s->used_ids = 0;
    ctl_wipe(job, sizeof *job);
    wipe_stack();
    return code;
}
