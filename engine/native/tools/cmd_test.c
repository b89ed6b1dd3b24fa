/* SPDX-License-Identifier: MIT */
/* colibrictl test, installed as colibri_test: selftest, then the rounds of bench as they come. */
#include <stdio.h>

#include "../src/spec.h"
#include "bench.h"
#include "commands.h"
#include "isas.h"
#include "model.h"
#include "options.h"
#include "output.h"

#define NAME "test"

static const char test_notes[] =
    "Round 1: milliseconds from a prompt of " CTL_BENCH_PROMPT " tokens to the first token, best and worst of "
    CTL_BENCH_ROUNDS ".\n"
    "Round 2: tokens per second over " CTL_BENCH_TOKENS " tokens. Round 3: VmRSS and VmHWM against the plan.\n"
    "colibrictl bench has options for all of these.\n"
    "\n"
    "Examples:\n"
    "  colibri_test model.colibri\n"
    "  colibrictl test model.colibri --threads 4\n";

int ctl_command_test(int argc, char *const *argv)
{
    struct ctl_model_values values = { 0 };
    struct ctl_bench_values bench = { .prompt_tokens = 16, .tokens = 100, .rounds = 5 };
    const struct ctl_group groups[] = {
        { "Model", ctl_model_options, ctl_model_option_count, &values },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL [options]",
        .summary = "Check the kernels, then measure a model in three rounds.",
        .notes = test_notes,
        .groups = groups,
        .group_count = 1,
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code, finished;

    if (code != 0) {
        return ctl_parsed(code);
    }
    exit_code = ctl_selftest_operators(values.isa);
    if (exit_code == 0) {
        exit_code = ctl_bench(NAME, positionals[0], &values, &bench);
    }
    finished = ctl_finish_stdout();
    return exit_code != 0 ? exit_code : finished;
}
