/* SPDX-License-Identifier: MIT */
/* colibrictl test, installed as colibri_test: selftest, then three rounds on a model. */
#include <stdio.h>

#include "../src/spec.h"
#include "commands.h"
#include "generate.h"
#include "isas.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "signals.h"

#define NAME "test"
#define PROMPT_TOKENS 16u
#define ROUND_TOKENS 100u /* of the second round */
#define ROUNDS_1 5u       /* the first round takes the best and the worst of so many */

static const char test_notes[] =
    "Round 1: milliseconds from a prompt of 16 tokens to the first token, best and worst of 5.\n"
    "Round 2: tokens per second over 100 tokens. Round 3: VmRSS and VmHWM against the plan.\n"
    "\n"
    "Examples:\n"
    "  colibri_test model.colibri\n"
    "  colibrictl test model.colibri --threads 4\n";

static int generate(struct ctl_generation *g, uint32_t tokens)
{
    colibri_error error = { .offset = -1 };
    int code;

    colibri_session_reset(g->session);
    g->limit_tokens = tokens;
    code = ctl_generate(g, &error);
    return code == 0 ? 0 : ctl_fail(NAME, &error);
}

static int first_round(struct ctl_generation *g)
{
    double best = 0, worst = 0;

    for (unsigned i = 0; i < ROUNDS_1; i++) {
        int exit_code = generate(g, 1);

        if (exit_code != 0) {
            return exit_code;
        }
        best = i == 0 || g->first_token_seconds < best ? g->first_token_seconds : best;
        worst = g->first_token_seconds > worst ? g->first_token_seconds : worst;
    }
    (void)printf("round 1: first_token_ms=%.3f worst_ms=%.3f prompt_tokens=%zu\n", 1e3 * best,
                 1e3 * worst, g->prompt_tokens);
    return 0;
}

/* 100 tokens, or as many as the context has room for: the last one is not appended. */
static int second_round(struct ctl_generation *g)
{
    colibri_plan plan = { .struct_size = sizeof plan };
    uint32_t room, tokens;
    int exit_code;

    (void)colibri_model_plan(g->model, &plan);
    room = plan.context_tokens > PROMPT_TOKENS ? plan.context_tokens - PROMPT_TOKENS + 1 : 1;
    tokens = room < ROUND_TOKENS ? room : ROUND_TOKENS;
    exit_code = generate(g, tokens);
    if (exit_code == 0) {
        (void)printf("round 2: tok_s=%.2f generated=%u\n", ctl_tokens_per_second(g),
                     (unsigned)g->generated);
    }
    return exit_code;
}

static int third_round(const colibri_model *model)
{
    colibri_plan plan = { .struct_size = sizeof plan };
    uint64_t peak = ctl_status_bytes("VmHWM:");

    (void)colibri_model_plan(model, &plan);
    if (peak == 0) {
        (void)printf("round 3: vmrss_bytes=unknown (mount /proc) plan_bytes=%llu\n",
                     (unsigned long long)plan.total_bytes);
        return 0;
    }
    (void)printf("round 3: vmrss_bytes=%llu vmhwm_bytes=%llu plan_bytes=%llu\n",
                 (unsigned long long)ctl_status_bytes("VmRSS:"), (unsigned long long)peak,
                 (unsigned long long)plan.total_bytes);
    if (peak > plan.total_bytes) {
        return ctl_fail_message(NAME, COLIBRI_ERR_INTERNAL,
                                "peak memory of %llu bytes is above the plan of %llu",
                                (unsigned long long)peak, (unsigned long long)plan.total_bytes);
    }
    return 0;
}

static int three_rounds(colibri_model *model)
{
    int32_t prompt[PROMPT_TOKENS];
    colibri_model_info info = { .struct_size = sizeof info };
    colibri_error error = { .offset = -1 };
    struct ctl_generation g = { .model = model,
                                .prompt = prompt,
                                .prompt_tokens = PROMPT_TOKENS,
                                .ignore_end = true };
    int exit_code;

    (void)colibri_model_info_get(model, &info);
    for (uint32_t i = 0; i < PROMPT_TOKENS; i++) {
        /* any ids: the work does not depend on which; spread over the vocabulary */
        prompt[i] = (int32_t)((uint64_t)info.vocabulary * i / PROMPT_TOKENS);
    }
    if (colibri_session_create(model, &g.session, &error) != 0) {
        return ctl_fail(NAME, &error);
    }
    ctl_signals_watch(g.session);
    exit_code = first_round(&g);
    exit_code = exit_code != 0 ? exit_code : second_round(&g);
    exit_code = exit_code != 0 ? exit_code : third_round(model);
    ctl_signals_unwatch();
    colibri_session_free(g.session);
    return exit_code;
}

static int test_model(const char *path, struct ctl_model_values *values)
{
    colibri_model *model = NULL;
    int exit_code = ctl_selftest_operators(values->isa);

    if (exit_code == 0) {
        exit_code = ctl_model_open(NAME, path, values, &model);
    }
    if (exit_code == 0) {
        exit_code = three_rounds(model);
    }
    colibri_model_close(model);
    return exit_code;
}

int ctl_command_test(int argc, char *const *argv)
{
    struct ctl_model_values values = { 0 };
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
        return code == CTL_HELP_SHOWN ? ctl_finish_stdout() : colibri_exit_code(code);
    }
    exit_code = test_model(positionals[0], &values);
    finished = ctl_finish_stdout();
    return exit_code != 0 ? exit_code : finished;
}
