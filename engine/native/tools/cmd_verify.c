/* SPDX-License-Identifier: MIT */
/* colibrictl verify: every byte of a model file against its root hash. */
#include <stdio.h>

#include "commands.h"
#include "model.h"
#include "options.h"
#include "output.h"

#define NAME "verify"

static const char verify_notes[] =
    "Reads the whole file, compares every chunk with the hashes under the root, checks that padding\n"
    "is zero and weights are finite, and prints the root hash. A damaged file ends with exit code 3;\n"
    "the message names the chunk and the file offset.\n"
    "\n"
    "Example:\n"
    "  colibrictl verify model.colibri\n";

static int print_verified(const char *path, const colibri_model *model)
{
    colibri_model_info info = { .struct_size = sizeof info };
    colibri_report report = { .struct_size = sizeof report };
    char hex[CTL_HEX_BYTES];

    (void)colibri_model_info_get(model, &info);
    (void)colibri_model_report(model, &report);
    if (report.verified_extents != report.extents) {
        return ctl_fail_message(path, COLIBRI_ERR_INTERNAL, "verified %u of %u extents",
                                (unsigned)report.verified_extents, (unsigned)report.extents);
    }
    ctl_hex(info.root, hex);
    (void)printf("%s: ok\nroot: %s\nverified_bytes: %llu\nverified_extents: %u\n", path, hex,
                 (unsigned long long)info.file_bytes, (unsigned)report.verified_extents);
    return ctl_finish_stdout();
}

int ctl_command_verify(int argc, char *const *argv)
{
    /* the smallest plan: nothing is computed, nothing needs to stay */
    struct ctl_model_values values = { .threads = 1,
                                       .context_tokens = 1,
                                       .batch_tokens = 1,
                                       .verify = COLIBRI_VERIFY_OPEN,
                                       .max_text_bytes = 1,
                                       .never_lock = true };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL",
        .summary = "Verify every byte of a model file.",
        .notes = verify_notes,
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    colibri_model *model = NULL;
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code;

    if (code != 0) {
        return code == CTL_HELP_SHOWN ? ctl_finish_stdout() : colibri_exit_code(code);
    }
    exit_code = ctl_model_open(NAME, positionals[0], &values, &model);
    if (exit_code == 0) {
        exit_code = print_verified(positionals[0], model);
    }
    colibri_model_close(model);
    return exit_code;
}
