/* SPDX-License-Identifier: MIT */
/* colibrictl snapshot: compute a prompt prefix once, for `run --prefix`. */
#include <stdio.h>

#include "commands.h"
#include "log.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "placing.h"
#include "prefix.h"
#include "prompt.h"
#include "signals.h"

#define NAME "snapshot"

struct snapshot_values {
    char *prompt, *ids;
    const char *prompt_file, *output;
    bool chat, quiet;
};

#define AT(field) offsetof(struct snapshot_values, field)

static const struct ctl_option snapshot_options[] = {
    { "prompt", 'p', CTL_TEXT, AT(prompt), 0, 0, "TEXT", NULL, "the prefix" },
    { "prompt-file", 'f', CTL_TEXT, AT(prompt_file), 0, 0, "FILE", NULL,
      "read the prefix from a file, byte for byte; - is standard input" },
    { "ids", 0, CTL_TEXT, AT(ids), 0, 0, "1,2,3", NULL, "token ids instead of a text" },
    { "chat", 0, CTL_FLAG, AT(chat), 0, 0, NULL, NULL, "wrap the prefix in the model's chat form" },
    { "output", 'o', CTL_TEXT, AT(output), 0, 0, "FILE", NULL, "the snapshot to write" },
    { "quiet", 'q', CTL_FLAG, AT(quiet), 0, 0, NULL, NULL, "no line about what was written" },
};

static const char snapshot_notes[] =
    "`colibrictl run MODEL --prefix FILE` goes on from the snapshot with the same bits as if it had\n"
    "computed the prefix. It belongs to this model file and --kv; context, threads and residency may\n"
    "differ. The file appears whole or not at all, readable by its owner only. Its bytes come on top\n"
    "of the memory plan while it is written or read.\n"
    "\n"
    "Example:\n"
    "  colibrictl snapshot model.colibri -f system.txt -o system.snapshot\n"
    "  colibrictl run model.colibri --prefix system.snapshot -p \"What is the time?\"\n";

static int read_prompt(const struct snapshot_values *values, size_t limit, struct ctl_prompt *prompt)
{
    if ((values->prompt != NULL) + (values->prompt_file != NULL) + (values->ids != NULL) != 1) {
        return ctl_usage_error(NAME, "give one of --prompt, --prompt-file and --ids");
    }
    if (values->output == NULL) {
        return ctl_usage_error(NAME, "--output FILE is missing");
    }
    if (values->ids != NULL) {
        return ctl_prompt_from_ids(NAME, values->ids, prompt);
    }
    return values->prompt_file != NULL
               ? ctl_prompt_from_file(NAME, values->prompt_file, limit, prompt)
               : ctl_prompt_from_text(NAME, values->prompt, limit, prompt);
}

static int compute_and_save(const struct snapshot_values *values, colibri_model *model,
                            const struct ctl_prompt *prompt)
{
    colibri_error error = { .offset = -1 };
    colibri_session *session = NULL;
    int exit_code = 0;

    if (colibri_session_create(model, &session, &error) != 0) {
        return ctl_fail(NAME, &error);
    }
    ctl_signals_watch(session);
    if (colibri_session_append(session, prompt->ids, prompt->count, &error) != 0) {
        exit_code = ctl_fail(NAME, &error);
    }
    ctl_signals_unwatch();
    if (exit_code == 0) {
        exit_code = ctl_prefix_save(values->output, session);
    }
    if (exit_code == 0 && !values->quiet) {
        ctl_log(LOG_INFO, "snapshot: tokens=%u bytes=%llu",
                (unsigned)colibri_session_position(session),
                (unsigned long long)colibri_session_snapshot_bytes(session));
    }
    colibri_session_free(session);
    return exit_code;
}

int ctl_command_snapshot(int argc, char *const *argv)
{
    struct snapshot_values values = { 0 };
    struct ctl_model_values model_values = { 0 };
    const struct ctl_group groups[] = {
        { "Prefix", snapshot_options, sizeof snapshot_options / sizeof snapshot_options[0], &values },
        { "Model", ctl_model_options, ctl_model_option_count, &model_values },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL (-p TEXT | -f FILE | --ids 1,2,3) -o FILE [options]",
        .summary = "Compute a prompt prefix once and keep the session's state in a file.",
        .notes = snapshot_notes,
        .groups = groups,
        .group_count = 2,
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    struct ctl_prompt prompt = { 0 };
    colibri_model *model = NULL;
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code;

    if (code != 0) {
        return ctl_parsed(code);
    }
    exit_code = ctl_output_differs(NAME, values.output,
                                   (const char *const[]){ positionals[0], values.prompt_file }, 2);
    if (exit_code == 0) {
        exit_code = ctl_place_check(values.output);
    }
    if (exit_code == 0) {
        exit_code = read_prompt(&values, (size_t)model_values.max_text_bytes, &prompt);
    }
    ctl_wipe_argument(values.prompt);
    ctl_wipe_argument(values.ids);
    if (exit_code == 0) {
        exit_code = ctl_model_open(NAME, positionals[0], &model_values, &model);
    }
    if (exit_code == 0) {
        exit_code = ctl_prompt_tokenize(NAME, model,
                                        values.chat ? COLIBRI_TEXT_CHAT : COLIBRI_TEXT_PLAIN, &prompt);
    }
    if (exit_code == 0) {
        exit_code = compute_and_save(&values, model, &prompt);
    }
    colibri_model_close(model);
    ctl_prompt_free(&prompt);
    return exit_code;
}
