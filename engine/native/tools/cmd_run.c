/* SPDX-License-Identifier: MIT */
/* colibrictl run: text in, text out. */
#define _POSIX_C_SOURCE 200809L

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/spec.h"
#include "commands.h"
#include "generate.h"
#include "log.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "placing.h"
#include "prefix.h"
#include "prompt.h"
#include "sampling.h"
#include "sandbox.h"
#include "signals.h"
#include "telemetry.h"

#define NAME "run"

struct run_values {
    char *prompt, *ids;
    const char *prompt_file, *batch_split, *prefix, *telemetry;
    bool chat, print_ids, logits_sha256, quiet;
    struct ctl_sandbox_values sandbox;
    struct ctl_sampling sampling;
};

#define AT(field) offsetof(struct run_values, field)

static const struct ctl_option run_options[] = {
    { "prompt", 'p', CTL_TEXT, AT(prompt), 0, 0, "TEXT", NULL, "the prompt" },
    { "prompt-file", 'f', CTL_TEXT, AT(prompt_file), 0, 0, "FILE", NULL,
      "read the prompt from a file, byte for byte; - is standard input" },
    { "ids", 0, CTL_TEXT, AT(ids), 0, 0, "1,2,3", NULL, "token ids instead of a text" },
    { "prefix", 0, CTL_TEXT, AT(prefix), 0, 0, "FILE", NULL,
      "go on from a snapshot (colibrictl snapshot); the prompt is what follows it, if any" },
    { "chat", 0, CTL_FLAG, AT(chat), 0, 0, NULL, NULL,
      "wrap the prompt in the model's chat form" },
    { "print-ids", 0, CTL_FLAG, AT(print_ids), 0, 0, NULL, NULL,
      "print the prompt's and the generated ids on stderr (--log syslog: behind the text)" },
    { "logits-sha256", 0, CTL_FLAG, AT(logits_sha256), 0, 0, NULL, NULL,
      "print the hash of the logits that chose each token, likewise" },
    { "batch-split", 0, CTL_TEXT, AT(batch_split), 0, 0, "5,3|each", NULL,
      "append the prompt in pieces of these sizes, then the rest, or token by token (a test aid)" },
    { "telemetry", 0, CTL_TEXT, AT(telemetry), 0, 0, "FILE", NULL,
      "write how experts were used as JSON; - is stdout, behind the text" },
    { "quiet", 'q', CTL_FLAG, AT(quiet), 0, 0, NULL, NULL, "no timing and memory lines" },
};

static const char run_notes[] =
    "The prompt comes from one of --prompt, --prompt-file, --ids, or a '-' behind MODEL (standard\n"
    "input). The text goes to stdout as it is generated, only whole UTF-8 characters, without\n"
    "special tokens; everything else goes to stderr.\n"
    "COLIBRI_VERIFY_MODEL_HASH=1 in the environment acts as --verify open, COLIBRI_LOCK=require as\n"
    "--lock require, whatever the options say.\n"
    "\n"
    "Examples:\n"
    "  colibrictl run model.colibri -p \"The capital of France is\" -n 16\n"
    "  colibrictl run model.colibri --chat --temp 0.7 --top-p 0.9 --seed 7 -f question.txt\n"
    "  echo -n Hello | colibrictl run model.colibri - --threads 2 --context 512\n";

/* ---- the stream of text ------------------------------------------------------------------ */

struct stream {
    const colibri_model *model;
    colibri_utf8 utf8;
    int32_t *ids; /* [limit] when they are printed at the end, else NULL */
    uint32_t count;
    struct ctl_text text;
};

static int emit(void *context, int32_t id, colibri_error *error)
{
    struct stream *stream = context;
    char text[CTL_TOKEN_TEXT_BYTES];
    size_t length;
    int code;

    if (stream->ids != NULL) {
        stream->ids[stream->count] = id;
    }
    stream->count++;
    code = ctl_token_text(stream->model, &stream->utf8, id, text, &length, error);
    return code != 0 ? code : ctl_text_write(&stream->text, text, length, error);
}

/* The character that is still held, and a line end for a person at a terminal. */
static int finish_text(struct stream *stream, colibri_error *error)
{
    char text[16];
    size_t length = colibri_utf8_flush(&stream->utf8, text, sizeof text);
    int code = ctl_text_write(&stream->text, text, length, error);

    return code == 0 ? ctl_text_end(&stream->text, error) : code;
}

/* ---- what is said at the end ------------------------------------------------------------- */

/* Results that were asked for beside the text: no log may have them. Not through stdio: its first look
 * at stdout makes system calls that the sandbox refuses. */
__attribute__((format(printf, 1, 2))) static void say(const char *format, ...)
{
    char text[CTL_HEX_BYTES + 32];
    colibri_error error;
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)ctl_write(ctl_log_is_syslog() ? STDOUT_FILENO : STDERR_FILENO, text, (size_t)length, &error);
}

static void print_ids(const char *label, const int32_t *ids, size_t count)
{
    say("%s:", label);
    for (size_t i = 0; i < count; i++) {
        say(" %d", (int)ids[i]);
    }
    say("\n");
}

static void print_memory(const colibri_model *model)
{
    colibri_plan plan = { .struct_size = sizeof plan };
    colibri_report report = { .struct_size = sizeof report };
    uint64_t peak = ctl_status_bytes("VmHWM:");
    char text[24] = "unknown"; /* a kernel without /proc mounted */

    (void)colibri_model_plan(model, &plan);
    (void)colibri_model_report(model, &report);
    if (peak > 0) {
        (void)snprintf(text, sizeof text, "%llu", (unsigned long long)peak);
    }
    ctl_log(LOG_INFO, "memory: plan_bytes=%llu vmhwm_bytes=%s locked_bytes=%llu",
            (unsigned long long)plan.total_bytes, text, (unsigned long long)report.locked_bytes);
}

static void print_residency(const colibri_model *model)
{
    colibri_plan plan = { .struct_size = sizeof plan };
    colibri_residency_stats s = { .struct_size = sizeof s };

    (void)colibri_model_plan(model, &plan);
    if (plan.residency != COLIBRI_RESIDENCY_STREAM || colibri_model_residency(model, &s) != 0) {
        return;
    }
    ctl_log(LOG_INFO,
            "experts: slots=%u hits=%llu misses=%llu reads=%llu read_bytes=%llu ahead=%llu "
            "ahead_used=%llu wait_ms=%.1f idle_ms=%.1f",
            (unsigned)plan.expert_slots, (unsigned long long)s.hits, (unsigned long long)s.misses,
            (unsigned long long)s.reads, (unsigned long long)s.read_bytes,
            (unsigned long long)s.prefetch_reads, (unsigned long long)s.prefetch_hits,
            1e-6 * (double)s.io_wait_ns, 1e-6 * (double)s.io_idle_ns);
}

static void print_end(const struct run_values *values, const struct ctl_generation *g,
                      const struct stream *stream)
{
    char hex[CTL_HEX_BYTES];

    if (ctl_log_is_syslog() && !stream->text.newline_last && (values->print_ids || values->logits_sha256)) {
        say("\n");
    }
    if (values->print_ids) {
        print_ids("prompt-ids", g->prompt, g->prompt_tokens);
        print_ids("ids", stream->ids, stream->count);
    }
    if (values->logits_sha256) {
        ctl_hex(g->logits_sha256, hex);
        say("logits-sha256: %s\n", hex);
    }
    if (!values->quiet) {
        ctl_log(LOG_INFO,
                "timing: prompt_tokens=%zu prompt_s=%.6f first_token_ms=%.3f generated=%u tok_s=%.2f",
                g->prompt_tokens, g->prompt_seconds, 1e3 * g->first_token_seconds,
                (unsigned)g->generated, ctl_tokens_per_second(g));
        print_memory(g->model);
        print_residency(g->model);
    }
}

/* ---- the command ------------------------------------------------------------------------- */

static int read_prompt(const struct run_values *values, size_t limit_bytes,
                       struct ctl_prompt *prompt)
{
    int sources = (values->prompt != NULL) + (values->prompt_file != NULL) + (values->ids != NULL);

    if (sources == 0 && values->prefix != NULL) {
        prompt->is_ids = true; /* none */
        return 0;
    }
    if (sources != 1) {
        return ctl_usage_error(
            NAME, sources == 0 ? "there is no prompt: give --prompt, --prompt-file, --ids or -"
                               : "there are %d prompts: give one of --prompt, --prompt-file, --ids, -",
            sources);
    }
    if (values->ids != NULL && values->chat) {
        return ctl_usage_error(
            NAME, "--chat wraps a text, --ids gives ids: use --prompt or leave out --chat");
    }
    if (values->ids != NULL) {
        return ctl_prompt_from_ids(NAME, values->ids, prompt);
    }
    if (values->prompt_file != NULL) {
        return ctl_prompt_from_file(NAME, values->prompt_file, limit_bytes, prompt);
    }
    return ctl_prompt_from_text(NAME, values->prompt, limit_bytes, prompt);
}

static int set_sampler(colibri_session *session, const struct ctl_sampling *values,
                       colibri_error *error)
{
    colibri_sampler sampler;

    colibri_sampler_default(&sampler);
    sampler.temperature = values->temperature;
    sampler.top_k = values->top_k;
    sampler.top_p = values->top_p;
    sampler.min_p = values->min_p;
    sampler.seed = values->seed;
    return colibri_session_set_sampler(session, &sampler, error);
}

/* Generates and prints; what was generated before an error is reported too. */
static int generate(const struct run_values *values, struct ctl_generation *g,
                    struct stream *stream)
{
    colibri_error error = { .offset = -1 };
    int code = set_sampler(g->session, &values->sampling, &error);

    if (code == 0) {
        colibri_error text_error = { .offset = -1 };
        int text_code;

        code = ctl_generate(g, &error);
        if (code == COLIBRI_ERR_IO || code == COLIBRI_ERR_CANCELLED) {
            text_code = 0; /* nobody reads: another write could wait for ever */
        } else {
            text_code = finish_text(stream, &text_error);
        }
        if (code == 0 && text_code != 0) {
            code = text_code;
            error = text_error;
        }
        if (code == 0 || g->generated > 0) {
            print_end(values, g, stream);
        }
    }
    return code == 0 ? 0 : ctl_fail(NAME, &error);
}

/* The session goes on from the snapshot; the prompt must fit behind it. */
static int take_prefix(const struct run_values *values, struct ctl_generation *g,
                       struct ctl_prompt *prompt)
{
    int exit_code = 0;

    if (values->prefix != NULL) {
        exit_code = ctl_prefix_restore(values->prefix, g->model, g->session);
        if (exit_code == 0) {
            exit_code = ctl_prefix_fit(NAME, g->model, g->session, !values->chat, prompt);
        }
    }
    g->prompt = prompt->ids;
    g->prompt_tokens = prompt->count;
    return exit_code;
}

static int run_session(const struct run_values *values, colibri_model *model,
                       struct ctl_prompt *prompt, const struct ctl_pieces *pieces)
{
    struct ctl_generation g = { .model = model,
                                .pieces = *pieces,
                                .limit_tokens = values->sampling.tokens,
                                .ignore_end = values->sampling.ignore_end,
                                .hash_logits = values->logits_sha256,
                                .emit = emit };
    struct stream stream = { .model = model };
    colibri_error error = { .offset = -1 };
    int exit_code;

    if (values->print_ids) {
        stream.ids = malloc(values->sampling.tokens * sizeof *stream.ids);
        if (stream.ids == NULL) {
            return ctl_fail_message(NAME, COLIBRI_ERR_MEMORY,
                                    "no memory for %u ids: lower --tokens",
                                    (unsigned)values->sampling.tokens);
        }
    }
    ctl_text_begin(&stream.text);
    g.emit_context = &stream;
    if (colibri_session_create(model, &g.session, &error) != 0) {
        exit_code = ctl_fail(NAME, &error);
    } else {
        ctl_signals_watch(g.session);
        exit_code = take_prefix(values, &g, prompt);
        if (exit_code == 0) {
            exit_code = ctl_sandbox_enter(NAME, &values->sandbox, COLIBRI_SANDBOX_STEADY, NULL, 0, NULL);
        }
        if (exit_code == 0) {
            exit_code = generate(values, &g, &stream);
        }
        ctl_signals_unwatch();
        if (exit_code == 0 && values->telemetry != NULL) {
            exit_code = ctl_telemetry_write(values->telemetry, model);
        }
        colibri_session_free(g.session);
    }
    if (stream.ids != NULL) {
        ctl_wipe(stream.ids, stream.count * sizeof *stream.ids);
    }
    free(stream.ids);
    return exit_code;
}

static int open_and_run(const struct run_values *values, const char *path,
                        struct ctl_model_values *model_values, struct ctl_prompt *prompt,
                        const struct ctl_pieces *pieces)
{
    const char *const inputs[] = { path, values->prefix, model_values->public_key_file };
    colibri_model *model = NULL;
    int exit_code = ctl_sandbox_enter(NAME, &values->sandbox, COLIBRI_SANDBOX_START, inputs, 3, NULL);

    if (exit_code == 0) {
        exit_code = ctl_model_open(NAME, path, model_values, &model);
    }
    if (exit_code == 0 && !(prompt->is_ids && prompt->count == 0)) {
        exit_code = ctl_prompt_tokenize(NAME, model,
                                        values->chat ? COLIBRI_TEXT_CHAT : COLIBRI_TEXT_PLAIN,
                                        prompt);
    }
    if (exit_code == 0) {
        double start = ctl_seconds();

        exit_code = run_session(values, model, prompt, pieces);
        ctl_model_print_memory(model, ctl_seconds() - start);
    }
    colibri_model_close(model);
    return exit_code;
}

/* The "-" behind MODEL. */
static int take_stdin_word(struct run_values *values, const char *word)
{
    if (word == NULL) {
        return 0;
    }
    if (strcmp(word, "-") != 0 || values->prompt_file != NULL) {
        return ctl_usage_error(
            NAME, "unexpected argument '%s': the prompt is given by -p TEXT (quote it)", word);
    }
    values->prompt_file = word;
    return 0;
}

int ctl_command_run(int argc, char *const *argv)
{
    struct run_values values = { 0 };
    struct ctl_model_values model_values = { 0 };
    const struct ctl_group groups[] = {
        { "Generation", ctl_sampling_options, ctl_sampling_option_count, &values.sampling },
        { "Prompt and text", run_options, sizeof run_options / sizeof run_options[0], &values },
        { "Model", ctl_model_options, ctl_model_option_count, &model_values },
        { "Sandbox", ctl_sandbox_options, CTL_SANDBOX_OPTION_COUNT, &values.sandbox },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL (-p TEXT | -f FILE | --ids 1,2,3 | - | --prefix FILE) [options]",
        .summary = "Generate text with a model.",
        .notes = run_notes,
        .groups = groups,
        .group_count = 4,
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 2,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    struct ctl_prompt prompt = { 0 };
    struct ctl_pieces pieces = { 0 };
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code;

    if (code != 0) {
        return ctl_parsed(code);
    }
    exit_code = take_stdin_word(&values, positionals[1]);
    if (exit_code == 0 && values.batch_split != NULL) {
        exit_code = ctl_pieces_parse(NAME, values.batch_split, &pieces);
    }
    if (exit_code == 0) {
        exit_code = ctl_sandbox_resolve(NAME, &values.sandbox, CTL_SANDBOX_OFF);
    }
    if (exit_code == 0 && ctl_sandbox_on(&values.sandbox) && values.telemetry != NULL) {
        exit_code = ctl_usage_error(
            NAME, "--telemetry writes a file at the end, which the sandbox does not let be opened: use "
                  "--sandbox off where nothing forces it, or leave it out");
    }
    if (exit_code == 0) {
        const char *const inputs[] = { positionals[0], values.prefix, values.prompt_file };

        exit_code = ctl_output_differs(NAME, values.telemetry, inputs, 3);
    }
    if (exit_code == 0) {
        exit_code = ctl_place_check(values.telemetry);
    }
    if (exit_code == 0) {
        exit_code = read_prompt(&values, (size_t)model_values.max_text_bytes, &prompt);
    }
    ctl_wipe_argument(values.prompt);
    ctl_wipe_argument(values.ids);
    if (exit_code == 0) {
        exit_code = open_and_run(&values, positionals[0], &model_values, &prompt, &pieces);
    }
    ctl_prompt_free(&prompt);
    return exit_code;
}
