/* SPDX-License-Identifier: MIT */
/* colibrictl selftest: the operators on every instruction set; with a model, one bit pattern. */
#include <stdio.h>
#include <string.h>

#include "../src/spec.h"
#include "commands.h"
#include "generate.h"
#include "isas.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "prompt.h"
#include "sandbox.h"

#define NAME "selftest"
#define DEFAULT_PROMPT "1,2,3,4,5,6,7,8,9,10,11,12"

struct selftest_values {
    const char *isa, *ids, *expect;
    uint32_t tokens, kv;
    struct ctl_sandbox_values sandbox;
};

#define AT(field) offsetof(struct selftest_values, field)

static const struct ctl_option selftest_options[] = {
    { "isa", 0, CTL_TEXT, AT(isa), 0, 0, "NAME", NULL, "only these kernels; default: all available" },
    { "ids", 0, CTL_TEXT, AT(ids), 0, 0, "1,2,3", DEFAULT_PROMPT, "prompt for MODEL" },
    { "tokens", 'n', CTL_U32, AT(tokens), 1, CB_MAX_CONTEXT_TOKENS, "N", "8",
      "tokens to generate with MODEL" },
    { "kv", 0, CTL_CHOICE, AT(kv), 0, 0, "f16|f32", "f16", "type of the KV cache" },
    { "expect-sha256", 0, CTL_TEXT, AT(expect), 0, 0, "HEX", NULL,
      "the logits hash that MODEL must give; default: that of the first run" },
};

static const char selftest_notes[] =
    "Without MODEL the built-in vectors of every operator run on each instruction set. With MODEL the\n"
    "same prompt runs on each instruction set, with 1 to 4 threads, in one call and token by token: all\n"
    "logits must have one hash. The hashes of MODEL.golden.json can be given as --expect-sha256\n"
    "(with its ids, n and kv). With --sandbox all of it runs in phase start, and phase steady is\n"
    "entered at the end: both must be possible here.\n"
    "\n"
    "Examples:\n"
    "  colibrictl selftest\n"
    "  colibrictl selftest model.colibri --ids 1,2,3 -n 16\n";

/* ---- operators --------------------------------------------------------------------------- */

static int test_operators(const char *isa)
{
    colibri_error error = { .offset = -1 };

    if (colibri_selftest(isa, &error) != 0) {
        char thing[CTL_ISA_BYTES + 16];

        (void)snprintf(thing, sizeof thing, "selftest: %s", isa);
        return ctl_fail(thing, &error);
    }
    (void)printf("selftest: %s ok\n", isa);
    return 0;
}

int ctl_selftest_operators(const char *only)
{
    const char *at = colibri_isas_available();
    char isa[CTL_ISA_BYTES];
    int exit_code = 0;

    if (only != NULL) {
        return test_operators(only);
    }
    while (exit_code == 0 && ctl_next_isa(&at, isa)) {
        exit_code = test_operators(isa);
    }
    return exit_code;
}

/* ---- a model ----------------------------------------------------------------------------- */

struct expected {
    char hex[CTL_HEX_BYTES]; /* empty: the first run fills it */
};

static int compare(const char *path, const char *isa, uint32_t threads, bool each,
                   const uint8_t sha256[32], struct expected *expected)
{
    char hex[CTL_HEX_BYTES];

    ctl_hex(sha256, hex);
    if (expected->hex[0] == '\0') {
        memcpy(expected->hex, hex, sizeof hex);
    }
    if (strcmp(expected->hex, hex) != 0) {
        return ctl_fail_message(path, COLIBRI_ERR_INTERNAL,
                                "isa %s, %u threads%s: logits-sha256 is %s, expected %s", isa,
                                (unsigned)threads, each ? ", token by token" : "", hex,
                                expected->hex);
    }
    (void)printf("selftest: %s threads=%u prompt=%s logits-sha256=%s ok\n", isa, (unsigned)threads,
                 each ? "each" : "whole", hex);
    return 0;
}

static int run_once(colibri_model *model, const struct selftest_values *values,
                    const struct ctl_prompt *prompt, bool each, uint8_t sha256[32])
{
    struct ctl_generation g = { .model = model,
                                .prompt = prompt->ids,
                                .prompt_tokens = prompt->count,
                                .pieces = { .each = each },
                                .limit_tokens = values->tokens,
                                .ignore_end = false,
                                .hash_logits = true };
    colibri_error error = { .offset = -1 };
    int code = colibri_session_create(model, &g.session, &error);

    if (code == 0) {
        code = ctl_generate(&g, &error);
        memcpy(sha256, g.logits_sha256, sizeof g.logits_sha256);
        colibri_session_free(g.session);
    }
    return code == 0 ? 0 : ctl_fail(NAME, &error);
}

static int test_model_once(const char *path, const struct selftest_values *values, const char *isa,
                           uint32_t threads, struct ctl_prompt *prompt, struct expected *expected)
{
    struct ctl_model_values model_values = { .threads = threads,
                                             .kv = values->kv,
                                             .max_text_bytes = 1,
                                             .isa = isa,
                                             .never_lock = true };
    colibri_model *model = NULL;
    uint8_t sha256[32];
    int exit_code = ctl_model_open(NAME, path, &model_values, &model);

    if (exit_code == 0) {
        exit_code = ctl_prompt_tokenize(NAME, model, COLIBRI_TEXT_PLAIN, prompt);
    }
    for (int each = 0; exit_code == 0 && each < 2; each++) {
        exit_code = run_once(model, values, prompt, each == 1, sha256);
        if (exit_code == 0) {
            exit_code = compare(path, isa, threads, each == 1, sha256, expected);
        }
    }
    colibri_model_close(model);
    return exit_code;
}

static int test_isa(const char *path, const struct selftest_values *values, const char *isa,
                    struct ctl_prompt *prompt, struct expected *expected)
{
    static const uint32_t threads[] = { 1, 2, 3, 4 };
    int exit_code = 0;

    for (size_t i = 0; exit_code == 0 && i < sizeof threads / sizeof threads[0]; i++) {
        exit_code = test_model_once(path, values, isa, threads[i], prompt, expected);
    }
    return exit_code;
}

static int test_model(const char *path, const struct selftest_values *values,
                      struct expected *expected)
{
    const char *at = colibri_isas_available();
    char isa[CTL_ISA_BYTES];
    struct ctl_prompt prompt = { 0 };
    int exit_code = ctl_prompt_from_ids(NAME, values->ids, &prompt);

    if (exit_code == 0 && values->isa != NULL) {
        exit_code = test_isa(path, values, values->isa, &prompt, expected);
    }
    while (exit_code == 0 && values->isa == NULL && ctl_next_isa(&at, isa)) {
        exit_code = test_isa(path, values, isa, &prompt, expected);
    }
    ctl_prompt_free(&prompt);
    return exit_code;
}

/* ---- the command ------------------------------------------------------------------------- */

static int check_expected(const struct selftest_values *values, const char *path,
                          struct expected *expected)
{
    const char *hex = values->expect;

    if (hex == NULL) {
        return 0;
    }
    if (path == NULL) {
        return ctl_usage_error(NAME, "--expect-sha256 needs MODEL");
    }
    if (strlen(hex) != CTL_HEX_BYTES - 1 || hex[strspn(hex, "0123456789abcdef")] != '\0') {
        return ctl_usage_error(
            NAME, "--expect-sha256: '%.80s' is not a hash of 64 digits 0-9a-f", hex);
    }
    memcpy(expected->hex, hex, CTL_HEX_BYTES);
    return 0;
}

int ctl_command_selftest(int argc, char *const *argv)
{
    struct selftest_values values = { 0 };
    const struct ctl_group groups[] = {
        { "Options", selftest_options, sizeof selftest_options / sizeof selftest_options[0], &values },
        { "Sandbox", ctl_sandbox_options, CTL_SANDBOX_OPTION_COUNT, &values.sandbox },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "[MODEL] [options]",
        .summary = "Check every operator and kernel on this machine, and that a model gives one bit "
                   "pattern.",
        .notes = selftest_notes,
        .groups = groups,
        .group_count = 2,
        .positional_names = { "MODEL" },
        .positionals_min = 0,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    struct expected expected = { "" };
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code, finished;

    if (code != 0) {
        return ctl_parsed(code);
    }
    exit_code = check_expected(&values, positionals[0], &expected);
    if (exit_code == 0) {
        exit_code = ctl_sandbox_resolve(NAME, &values.sandbox, CTL_SANDBOX_OFF);
    }
    if (exit_code == 0) {
        exit_code = ctl_sandbox_enter(NAME, &values.sandbox, COLIBRI_SANDBOX_START, positionals, 1, NULL);
    }
    if (exit_code == 0) {
        exit_code = ctl_selftest_operators(values.isa);
    }
    if (exit_code == 0 && positionals[0] != NULL) {
        exit_code = test_model(positionals[0], &values, &expected);
    }
    finished = ctl_finish_stdout();
    exit_code = exit_code != 0 ? exit_code : finished;
    return exit_code != 0 ? exit_code
                          : ctl_sandbox_enter(NAME, &values.sandbox, COLIBRI_SANDBOX_STEADY, NULL, 0, NULL);
}
