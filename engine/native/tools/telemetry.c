/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L

#include "telemetry.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "output.h"
#include "placing.h"

static void print_layer(FILE *out, const colibri_model *model, const colibri_layer_telemetry *t)
{
    uint32_t experts = 0;
    const uint64_t *counts = colibri_expert_counts(model, t->layer, &experts);

    (void)fprintf(out, "{\"layer\": %u, \"experts\": %u, \"top_k\": %u, \"choices\": %llu, ",
                  (unsigned)t->layer, (unsigned)t->experts, (unsigned)t->top_k,
                  (unsigned long long)t->choices);
    (void)fprintf(out, "\"entropy_bits\": %u.%03u, \"drift\": ",
                  (unsigned)(t->entropy_millibits / 1000), (unsigned)(t->entropy_millibits % 1000));
    if (t->has_profile != 0) {
        (void)fprintf(out, "%u.%03u", (unsigned)(t->drift_permille / 1000),
                      (unsigned)(t->drift_permille % 1000));
    } else {
        (void)fprintf(out, "null");
    }
    (void)fprintf(out, ", \"hottest\": %u, \"hottest_percent\": %u, \"hot\": %u, \"counts\": [",
                  (unsigned)t->hottest, (unsigned)t->hottest_percent, (unsigned)t->hot);
    for (uint32_t e = 0; e < experts; e++) {
        (void)fprintf(out, "%s%llu", e > 0 ? ", " : "", (unsigned long long)counts[e]);
    }
    (void)fprintf(out, "]}");
}

static void print_json(FILE *out, const colibri_model *model)
{
    colibri_model_info info = { .struct_size = sizeof info };
    colibri_layer_telemetry worst = { 0 };
    char root[CTL_HEX_BYTES];
    uint32_t hot = 0;
    bool first = true;

    (void)colibri_model_info_get(model, &info);
    ctl_hex(info.root, root);
    (void)fprintf(out, "{\"format\": 1, \"root\": \"%s\", \"layers\": [", root);
    for (uint32_t layer = 0; layer < info.layers; layer++) {
        colibri_layer_telemetry t = { .struct_size = sizeof t };

        if (colibri_layer_telemetry_get(model, layer, &t) != 0) {
            continue; /* a layer without experts */
        }
        (void)fprintf(out, first ? "\n " : ",\n ");
        first = false;
        print_layer(out, model, &t);
        hot += t.hot;
        if (t.hot > 0 && t.hottest_percent > worst.hottest_percent) {
            worst = t;
        }
    }
    (void)fprintf(out, "\n], \"hot\": %u}\n", (unsigned)hot);
    if (hot > 0) {
        ctl_log(LOG_WARNING,
                "experts used above 300 %% of the mean: %u, most of all layer %u expert %u at %u %%; "
                "run colibri calibrate on a text of today",
                (unsigned)hot, (unsigned)worst.layer, (unsigned)worst.hottest,
                (unsigned)worst.hottest_percent);
    }
}

static int write_failed(const char *path)
{
    return ctl_fail_message(path, COLIBRI_ERR_IO, "cannot write the telemetry: %s", strerror(errno));
}

static int write_file(const struct ctl_place *place, const char *path, const colibri_model *model)
{
    FILE *out;
    int fd = -1;
    int exit_code = ctl_place_create(place, place->temporary, 0, &fd);

    if (exit_code != 0) {
        return exit_code;
    }
    out = fdopen(fd, "w");
    if (out == NULL) {
        exit_code = write_failed(path);
        (void)close(fd);
        return exit_code;
    }
    print_json(out, model);
    if (fflush(out) != 0) {
        exit_code = write_failed(path);
    } else {
        exit_code = ctl_place_settle(place, path, fd);
    }
    (void)fclose(out);
    return exit_code == 0 ? ctl_place_commit(place, false) : exit_code;
}

int ctl_telemetry_write(const char *path, const colibri_model *model)
{
    struct ctl_place place;
    int exit_code;

    if (strcmp(path, "-") == 0) {
        print_json(stdout, model);
        return ctl_finish_stdout();
    }
    exit_code = ctl_place_open(&place, path, false, 0644);
    if (exit_code == 0) {
        exit_code = write_file(&place, path, model);
        ctl_place_close(&place);
    }
    return exit_code;
}
