/* SPDX-License-Identifier: MIT */
/* colibrictl verify: every byte of a model file against its root hash, and who signed it. */
#include <stdio.h>

#include "commands.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "verity.h"

#define NAME "verify"

struct verify_values {
    const char *public_key;
    bool signed_only, json;
};

#define AT(field) offsetof(struct verify_values, field)

static const struct ctl_option verify_options[] = {
    { "public-key", 'k', CTL_TEXT, AT(public_key), 0, 0, "FILE", NULL,
      "ed25519 key to trust: a model that it did not sign is refused" },
    { "signed-only", 0, CTL_FLAG, AT(signed_only), 0, 0, NULL, NULL,
      "refuse a model without a signature of the trusted key" },
    { "json", 'j', CTL_FLAG, AT(json), 0, 0, NULL, NULL, "one JSON object on stdout" },
};

static const char verify_notes[] =
    "Reads the whole file, compares every chunk with the hashes under the root, checks that padding\n"
    "is zero and weights are finite, and prints the root hash. A damaged file ends with exit code 3;\n"
    "the message names the chunk and the file offset. `signature: unchecked` means that the file\n"
    "carries one and no key was given; with a key, a model without its signature is refused.\n"
    "\n"
    "Examples:\n"
    "  colibrictl verify model.colibri\n"
    "  colibrictl verify model.colibri --public-key key.pub.pem --json\n";

static int print_verified(const char *path, const colibri_model *model, bool json)
{
    colibri_model_info info = { .struct_size = sizeof info };
    colibri_report report = { .struct_size = sizeof report };
    struct cb_verity_digest verity;
    enum cb_verity state = cb_verity_of_path(path, &verity);
    char root[CTL_HEX_BYTES], key[CTL_HEX_BYTES];
    char digest[CB_VERITY_TEXT_BYTES] = "";
    bool is_signed;

    (void)colibri_model_info_get(model, &info);
    (void)colibri_model_report(model, &report);
    if (report.verified_extents != report.extents) {
        return ctl_fail_message(path, COLIBRI_ERR_INTERNAL, "verified %u of %u extents",
                                (unsigned)report.verified_extents, (unsigned)report.extents);
    }
    is_signed = report.signature != COLIBRI_SIGNATURE_NONE;
    ctl_hex(info.root, root);
    ctl_hex(report.key_id, key);
    if (state == CB_VERITY_ON) {
        cb_verity_text(&verity, digest);
    }
    if (json) {
        (void)printf("{\"file\": ");
        ctl_print_json_text(path);
        (void)printf(", \"ok\": true, \"root\": \"%s\", \"verified_bytes\": %llu, \"verified_extents\": %u, "
                     "\"signature\": \"%s\", \"key_id\": \"%s\", \"fs_verity\": \"%s\", \"fs_verity_digest\": "
                     "\"%s\"}\n",
                     root, (unsigned long long)info.file_bytes, (unsigned)report.verified_extents,
                     ctl_signature_name(report.signature), is_signed ? key : "", cb_verity_name(state), digest);
    } else {
        (void)printf("%s: ok\nroot: %s\nverified_bytes: %llu\nverified_extents: %u\nsignature: %s%s%s\n"
                     "fs_verity: %s%s%s\n",
                     path, root, (unsigned long long)info.file_bytes, (unsigned)report.verified_extents,
                     ctl_signature_name(report.signature), is_signed ? " key_id=" : "", is_signed ? key : "",
                     cb_verity_name(state), *digest != '\0' ? " " : "", digest);
    }
    return ctl_finish_stdout();
}

int ctl_command_verify(int argc, char *const *argv)
{
    struct verify_values values = { 0 };
    struct ctl_model_values model_values;
    const struct ctl_group groups[] = {
        { "Options", verify_options, sizeof verify_options / sizeof verify_options[0], &values },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL [options]",
        .summary = "Verify every byte of a model file.",
        .notes = verify_notes,
        .groups = groups,
        .group_count = 1,
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    colibri_model *model = NULL;
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code;

    if (code != 0) {
        return ctl_parsed(code);
    }
    ctl_model_values_for_verifying(&model_values);
    model_values.public_key_file = values.public_key;
    model_values.signed_only = values.signed_only;
    exit_code = ctl_model_open(NAME, positionals[0], &model_values, &model);
    if (exit_code == 0) {
        exit_code = print_verified(positionals[0], model, values.json);
    }
    colibri_model_close(model);
    return exit_code;
}
