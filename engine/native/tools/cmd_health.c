/* SPDX-License-Identifier: MIT */
/*
 * colibrictl health: the gate of a boot. Everything that could keep this machine from giving the bits
 * that it must give, looked at once; one result file and one exit code for service managers and updaters.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commands.h"
#include "doctor.h"
#include "generate.h"
#include "golden.h"
#include "log.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "placing.h"
#include "sandbox.h"

#define NAME "health"
#define RESULT_BYTES 32768u /* 32 checks of two texts of 224 bytes, every byte escaped, and 96 around them */
#define EXIT_RUN 1
#define EXIT_USAGE 2
#define EXIT_TAMPERED 3
#define EXIT_BUDGET 4
#define EXIT_ENVIRONMENT 5
#define DEFAULT_OUTPUT "/run/colibri/health.json"
#define RESULT_START "{\"version\": 1, \"status\": \""

struct health_values {
    const char *golden, *output;
    bool no_golden, json;
    struct ctl_sandbox_values sandbox;
};

#define AT(field) offsetof(struct health_values, field)

static const struct ctl_option health_options[] = {
    { "golden", 'g', CTL_TEXT, AT(golden), 0, 0, "FILE", NULL, "default: MODEL.golden.json beside MODEL" },
    { "no-golden", 0, CTL_FLAG, AT(no_golden), 0, 0, NULL, NULL, "compare no golden results" },
    { "output", 'o', CTL_TEXT, AT(output), 0, 0, "FILE", DEFAULT_OUTPUT,
      "where the result goes, whole or not at all; - is stdout" },
    { "json", 'j', CTL_FLAG, AT(json), 0, 0, NULL, NULL, "the result on stdout too" },
};

static const char health_notes[] =
    "Run it as the user and with the options of the service. The exit code is that of the worst finding.\n"
    "docs/deploy.md explains it.\n";

static struct health {
    struct ctl_doctor doctor; /* its checks, and behind them those of this command */
    struct ctl_model_values values;
    const char *path;
    uint64_t plan_bytes, peak_bytes;
    double start; /* seconds of the monotonic clock */
    int exit_code; /* of the worst finding */
    char root[CTL_HEX_BYTES]; /* of the verified model; empty: there is none */
    struct ctl_golden golden;
    size_t right; /* of its cases */
    size_t wrong; /* the first one that is, counted from 1 */
    bool left_out; /* some of them: the budget does not hold their KV type */
    bool own_kv; /* one of them has the KV type of the service */
    const char *golden_path;
    char golden_beside[4096];
    char result[RESULT_BYTES];
    size_t result_bytes;
} health; /* not for a small stack */

/* ---- findings ---------------------------------------------------------------------------- */

/* Wrong bits are worse than what more memory or another unit heals. */
static void find(struct health *h, int exit_code)
{
    static const char order[] = { 0, EXIT_RUN, EXIT_USAGE, EXIT_ENVIRONMENT, EXIT_BUDGET, EXIT_TAMPERED };
    const char *found = memchr(order, exit_code, sizeof order);
    const char *worst = memchr(order, h->exit_code, sizeof order);

    h->exit_code = found > worst ? exit_code : h->exit_code;
}

static enum ctl_severity severity_of(struct health *h, int exit_code)
{
    find(h, exit_code);
    return exit_code != 0 ? CTL_ERROR : CTL_OK;
}

/* What doctor's errors mean here: memory that is missing is a budget that does not hold the plan, and
 * a lock that fails stops only those who require it. */
static void weigh(struct health *h)
{
    for (size_t i = 0; i < h->doctor.count; i++) {
        struct ctl_check *check = &h->doctor.checks[i];

        if (check->severity != CTL_ERROR) {
            continue;
        }
        if (strstr(check->name, "lock") != NULL && h->values.lock != COLIBRI_LOCK_REQUIRE) {
            check->severity = h->values.lock == COLIBRI_LOCK_OFF ? CTL_INFO : CTL_WARNING;
        } else {
            find(h, strcmp(check->name, "model") == 0          ? h->doctor.model_exit_code
                    : strncmp(check->name, "memory", 6) == 0 ? EXIT_BUDGET /* and memory-cgroup */
                                                             : EXIT_ENVIRONMENT);
        }
    }
}

/* ---- the model --------------------------------------------------------------------------- */

/* Opens it as the service does, and every byte is verified. When the machine has no room for that, with
 * the smallest plan: whether it is tampered with must be known all the same. */
static colibri_model *verify(struct health *h)
{
    colibri_error error = { .offset = -1 };
    colibri_report report = { .struct_size = sizeof report };
    colibri_model_info info = { .struct_size = sizeof info };
    struct ctl_model_values least;
    colibri_model *model = NULL;
    bool room = h->exit_code != EXIT_BUDGET;
    int exit_code;

    ctl_model_values_for_verifying(&least);
    least.public_key_file = h->values.public_key_file;
    least.signed_only = h->values.signed_only;
    h->values.verify = COLIBRI_VERIFY_OPEN;
    exit_code = ctl_model_try(NAME, h->path, room ? &h->values : &least, &model, &error);
    if (exit_code != 0) {
        (void)ctl_check_add(&h->doctor, "verify", severity_of(h, exit_code), "%s",
                            error.code != 0 ? error.message : "see the message above");
        return NULL;
    }
    (void)colibri_model_info_get(model, &info);
    (void)colibri_model_report(model, &report);
    ctl_hex(info.root, h->root);
    (void)ctl_check_add(&h->doctor, "verify", CTL_OK, "%llu bytes, root %s",
                        (unsigned long long)info.file_bytes, h->root);
    (void)ctl_check_add(&h->doctor, "signature",
                        report.signature == COLIBRI_SIGNATURE_UNCHECKED ? CTL_WARNING : CTL_OK, "%s",
                        ctl_signature_name(report.signature));
    if (!room) {
        colibri_model_close(model);
        return NULL;
    }
    (void)ctl_check_add(&h->doctor, "locked",
                        h->values.lock == COLIBRI_LOCK_OFF ? CTL_INFO
                        : report.unlocked_bytes != 0       ? CTL_WARNING
                                                           : CTL_OK,
                        "%llu bytes; not locked: %llu", (unsigned long long)report.locked_bytes,
                        (unsigned long long)report.unlocked_bytes);
    return model;
}

/* ---- golden results ---------------------------------------------------------------------- */

struct comparison {
    const struct ctl_golden_case *expected;
    uint32_t at;
    bool differs;
};

static int compare_id(void *context, int32_t id, colibri_error *error)
{
    struct comparison *c = context;
    const struct ctl_golden_case *expected = c->expected;
    const bool at_end = c->at == expected->id_count;

    c->differs = at_end || expected->ids[c->at] != id;
    if (!c->differs) {
        c->at++;
        return 0;
    }
    error->code = COLIBRI_ERR_INTERNAL;
    (void)snprintf(error->message, sizeof error->message, "token %u is %d, expected %d%s",
                   (unsigned)c->at + 1, (int)id, at_end ? -1 : (int)expected->ids[c->at], at_end ? " (none)" : "");
    return error->code;
}

/* 0, or the exit code with *error filled. */
static int run_case(colibri_model *model, const struct ctl_golden_case *expected, colibri_error *error)
{
    struct comparison c = { .expected = expected };
    struct ctl_generation g = { .model = model,
                                .prompt = expected->prompt,
                                .prompt_tokens = expected->prompt_tokens,
                                .limit_tokens = expected->limit_tokens,
                                .hash_logits = true,
                                .emit = compare_id,
                                .emit_context = &c };
    char hash[CTL_HEX_BYTES];
    int code = colibri_session_create(model, &g.session, error);

    if (code != 0) {
        return colibri_exit_code(code);
    }
    code = ctl_generate(&g, error);
    colibri_session_free(g.session);
    ctl_hex(g.logits_sha256, hash);
    if (code == 0 &&
        (c.at != expected->id_count || memcmp(hash, expected->logits_sha256, CTL_GOLDEN_DIGITS) != 0)) {
        c.differs = true;
        (void)snprintf(error->message, sizeof error->message, "%u of %u tokens are right, but other logits chose them",
                       (unsigned)c.at, (unsigned)expected->id_count);
    }
    code = code != 0 ? colibri_exit_code(code) : 0;
    return c.differs || code == EXIT_USAGE ? EXIT_TAMPERED : code; /* ids that the model has not: a forged file */
}

/* The cases of the KV type of the service, then, with another plan, where it fits the budget, those of
 * the other one. */
static int run_cases(struct health *h, colibri_model **model, colibri_error *error)
{
    colibri_error later = { .offset = -1 }; /* than the first wrong case, which is reported */
    int exit_code = 0, worst = 0;

    for (uint32_t pass = 0; pass < 2; pass++) {
        bool open = pass == 0;

        h->values.kv ^= pass;
        for (size_t i = 0; i < h->golden.count && exit_code == 0; i++) {
            colibri_plan plan = { .struct_size = sizeof plan };
            colibri_error *reported = worst == 0 ? error : &later;

            if (h->golden.cases[i].kv != h->values.kv) {
                continue;
            }
            h->own_kv = h->own_kv || pass == 0;
            if (!open) {
                colibri_model_close(*model);
                *model = NULL;
                open = true;
                h->values.verify = COLIBRI_VERIFY_AUTO; /* every byte was verified */
                exit_code = ctl_model_try(NAME, h->path, &h->values, model, reported);
                if (exit_code == EXIT_BUDGET && h->right > 0) {
                    h->left_out = true; /* the service has no memory for them, and was right about its own */
                    return worst;
                }
            }
            if (exit_code == 0) {
                (void)colibri_model_plan(*model, &plan);
                h->plan_bytes = plan.total_bytes > h->plan_bytes ? plan.total_bytes : h->plan_bytes;
                exit_code = run_case(*model, &h->golden.cases[i], reported);
                h->right += exit_code == 0;
            }
            if (exit_code == EXIT_TAMPERED) {
                h->wrong = worst == 0 ? i + 1 : h->wrong;
                worst = exit_code;
                exit_code = 0;
            }
        }
    }
    return worst != 0 ? worst : exit_code;
}

static int read_golden(struct health *h, const colibri_model *model, char **text, int32_t **ids, colibri_error *error)
{
    colibri_report report = { .struct_size = sizeof report };
    size_t bytes;

    if (ctl_golden_read(h->golden_path, text, &bytes, error) != 0) {
        return error->code == COLIBRI_ERR_ARGUMENT ? EXIT_TAMPERED : EXIT_RUN;
    }
    *ids = malloc(bytes / 2 * sizeof **ids + 1);
    if (*text == NULL || *ids == NULL) {
        (void)snprintf(error->message, sizeof error->message,
                       "there are no golden results: make them with `colibri golden`, or give --no-golden");
        return EXIT_RUN;
    }
    (void)colibri_model_report(model, &report);
    if (ctl_golden_parse(&h->golden, *text, bytes, *ids, error) != 0) {
        return EXIT_TAMPERED;
    }
    if (memcmp(h->golden.root, h->root, CTL_GOLDEN_DIGITS) != 0 ||
        !ctl_golden_is_signed(*text, bytes, &report)) {
        (void)snprintf(error->message, sizeof error->message,
                       "they are of another model, or not those that were signed with it");
        return EXIT_TAMPERED;
    }
    return 0;
}

/* A gate that has not compared everything does not look like one that has. */
static void compare(struct health *h, colibri_model **model)
{
    colibri_error error = { .offset = -1 };
    char *text = NULL;
    int32_t *ids = NULL;
    int exit_code = read_golden(h, *model, &text, &ids, &error);
    bool known = exit_code == 0;
    enum ctl_severity severity;

    if (known) {
        exit_code = run_cases(h, model, &error);
    }
    severity = severity_of(h, exit_code);
    if (!known) {
        (void)ctl_check_add(&h->doctor, "golden", severity, "%.96s: %s", h->golden_path, error.message);
    } else if (h->wrong != 0) {
        (void)ctl_check_add(&h->doctor, "golden", severity, "%zu of %zu cases are right; case %zu: %s", h->right,
                            h->golden.count, h->wrong, error.message);
    } else {
        (void)ctl_check_add(&h->doctor, "golden",
                            severity == CTL_OK && (h->left_out || !h->own_kv) ? CTL_WARNING : severity,
                            "%zu of %zu cases are right%s%s", h->right, h->golden.count,
                            exit_code != 0 ? ": "
                            : h->left_out  ? "; the budget does not hold the KV type of the others"
                            : !h->own_kv   ? "; none has the KV type of the service"
                                           : "",
                            exit_code != 0 ? error.message : "");
    }
    free(ids);
    free(text);
}

/* ---- memory ------------------------------------------------------------------------------ */

static void check_peak(struct health *h)
{
    struct ctl_check *check;

    h->peak_bytes = ctl_status_bytes("VmHWM:");
    check = ctl_check_add(&h->doctor, "peak",
                          h->peak_bytes == 0 || h->plan_bytes == 0
                              ? CTL_INFO /* no /proc, or no plan */
                              : severity_of(h, h->peak_bytes > h->plan_bytes ? EXIT_BUDGET : 0),
                          h->plan_bytes == 0 ? "%llu bytes; nothing is planned" : "%llu bytes of %llu planned",
                          (unsigned long long)h->peak_bytes, (unsigned long long)h->plan_bytes);
    if (check->severity == CTL_ERROR) {
        ctl_check_fix(check, "start it without preloaded libraries and with a small environment: the plan has no room "
                             "for them");
    }
}

/* ---- the result -------------------------------------------------------------------------- */

static void put(struct health *h, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void put(struct health *h, const char *format, ...)
{
    va_list args;
    int length;

    va_start(args, format);
    length = vsnprintf(h->result + h->result_bytes, RESULT_BYTES - h->result_bytes, format, args);
    va_end(args);
    h->result_bytes += length > 0 && (size_t)length < RESULT_BYTES - h->result_bytes ? (size_t)length : 0;
}

/* A text from anywhere, as a JSON string of plain ASCII. */
static void put_text(struct health *h, const char *text)
{
    put(h, "\"");
    for (; *text != '\0'; text++) {
        put(h, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text < 0x20 || *text > 0x7E ? '?' : *text);
    }
    put(h, "\"");
}

static void make_result(struct health *h)
{
    static const char *const statuses[] = {
        [CTL_OK] = "ok", [CTL_INFO] = "skipped", [CTL_WARNING] = "warn", [CTL_ERROR] = "fail"
    };

    put(h, RESULT_START "%s\", \"exit_code\": %d, \"root\": \"%s\", \"build\": \"%s\", "
           "\"plan_bytes\": %llu, \"peak_bytes\": %llu, \"seconds\": %.3f, \"checks\": [",
        ctl_doctor_status(&h->doctor, h->exit_code), h->exit_code, h->root,
        colibri_build_info(), (unsigned long long)h->plan_bytes, (unsigned long long)h->peak_bytes, ctl_seconds() - h->start);
    for (size_t i = 0; i < h->doctor.count; i++) {
        const struct ctl_check *check = &h->doctor.checks[i];

        put(h, "%s\n {\"name\": \"%s\", \"status\": \"%s\", \"detail\": ", i > 0 ? "," : "", check->name,
            statuses[check->severity]);
        put_text(h, check->value);
        put(h, ", \"fix\": ");
        put_text(h, check->fix);
        put(h, "}");
    }
    put(h, "\n]}\n");
}

static int open_output(const struct health *h, const char *path, struct ctl_place *place, int *fd)
{
    const char *const inputs[] = { h->path, h->golden_path, h->values.public_key_file };
    const char *slash = strrchr(path, '/');
    char folder[4096];
    int exit_code = ctl_output_differs(NAME, path, inputs, sizeof inputs / sizeof inputs[0]);

    if (exit_code == 0 && slash != NULL &&
        (size_t)snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path) < sizeof folder) {
        (void)mkdir(folder, 0755); /* /run is empty after a start; what is wrong with it, opening it says */
    }
    exit_code = exit_code != 0 ? exit_code : ctl_place_open(place, path, false, 0644);
    exit_code = exit_code != 0 ? exit_code : ctl_place_create(place, place->temporary, 0, fd);
    exit_code = exit_code != 0 ? exit_code : ctl_place_own(place, path, *fd);
    /* whatever ends this check, nobody takes the result of an earlier one for its own */
    if (exit_code == 0 && unlinkat(place->folder, place->name, 0) != 0 && errno != ENOENT) {
        exit_code = ctl_fail_message(path, COLIBRI_ERR_IO, "cannot remove the result of an earlier check: %s",
                                     strerror(errno));
    }
    if (exit_code != 0) {
        ctl_log(LOG_INFO, "--output FILE puts the result elsewhere");
    }
    return exit_code;
}

/* The result into its file, and to people or programs that look at stdout. */
static void finish(struct health *h, const struct health_values *values, const struct ctl_place *place, int fd)
{
    colibri_error error = { .offset = -1 };
    int exit_code = 0;

    make_result(h);
    if (fd != STDOUT_FILENO) {
        exit_code = ctl_write(fd, h->result, h->result_bytes, &error) != 0
                        ? ctl_fail(values->output, &error)
                        : ctl_place_sync(values->output, fd);
        exit_code = exit_code != 0 ? exit_code : ctl_place_commit(place, false);
        (void)close(fd);
    }
    find(h, exit_code);
    if (fd == STDOUT_FILENO || values->json) {
        (void)fwrite(h->result, 1, h->result_bytes, stdout);
    } else {
        ctl_doctor_print(&h->doctor, h->exit_code);
    }
    find(h, ctl_finish_stdout());
}

/* ---- the command ------------------------------------------------------------------------- */

/* The file that --output names, whatever else is wrong with the command line; NULL when help is wanted. */
static const char *output_of(int argc, char *const *argv)
{
    static const char name[] = "--output";
    const char *path = DEFAULT_OUTPUT;

    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return NULL;
        }
        if (strcmp(argv[i], name) == 0 || strcmp(argv[i], "-o") == 0) {
            i++;
            path = i < argc ? argv[i] : path;
        } else if (strncmp(argv[i], name, sizeof name - 1) == 0 && argv[i][sizeof name - 1] == '=') {
            path = argv[i] + sizeof name;
        } else if (strncmp(argv[i], "-o", 2) == 0) {
            path = argv[i] + 2;
        }
    }
    return path;
}

void ctl_health_forget(int argc, char *const *argv)
{
    const char *path = output_of(argc, argv);
    int fd = path != NULL ? open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    char start[sizeof RESULT_START - 1];

    if (fd < 0) {
        return;
    }
    /* what the options name is not known yet: nothing but a result is removed */
    if (read(fd, start, sizeof start) == (ssize_t)sizeof start && memcmp(start, RESULT_START, sizeof start) == 0) {
        (void)unlink(path);
    }
    (void)close(fd);
}

/* doctor asks the kernel what no sandbox allows. Behind it nothing but the start phase is needed: what is
 * in the files is read, run and reported there; the temporary file is open. */
static int check_all(struct health *h, const struct health_values *values, const struct ctl_place *place)
{
    const char *const reads[] = { h->path, h->golden_path, h->values.public_key_file };
    colibri_model *model;
    int exit_code;

    h->start = ctl_seconds();
    h->doctor.root = "";
    h->doctor.path = h->path;
    h->doctor.model = h->values;
    ctl_doctor_check(&h->doctor);
    weigh(h);
    h->plan_bytes = h->doctor.plan.total_bytes;
    exit_code = ctl_sandbox_enter(NAME, &values->sandbox, COLIBRI_SANDBOX_START, reads, sizeof reads / sizeof reads[0],
                                  place->folder >= 0 ? place->folder_path : NULL);
    if (exit_code != 0) {
        return exit_code;
    }
    model = verify(h);
    if (model != NULL && !values->no_golden) {
        compare(h, &model);
    } else {
        (void)ctl_check_add(&h->doctor, "golden", CTL_INFO, "not %s", values->no_golden ? "asked for" : "run");
    }
    colibri_model_close(model);
    check_peak(h);
    return 0;
}

int ctl_command_health(int argc, char *const *argv)
{
    struct health *h = &health;
    struct health_values values = { 0 };
    const struct ctl_group groups[] = {
        { "Options", health_options, sizeof health_options / sizeof health_options[0], &values },
        { "Sandbox", ctl_sandbox_options, CTL_SANDBOX_OPTION_COUNT, &values.sandbox },
        { "Model (those of the service)", ctl_model_options, ctl_model_option_count, &h->values },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL [options]",
        .summary = "Gate a start: doctor, every byte, golden results, memory.",
        .notes = health_notes,
        .groups = groups,
        .group_count = 3,
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    struct ctl_place place = { .folder = -1 };
    int code = ctl_parse(&command, argc, argv, positionals);
    int fd = STDOUT_FILENO;

    if (code != 0) {
        return ctl_parsed(code);
    }
    if (values.no_golden && values.golden != NULL) {
        return ctl_usage_error(NAME, "give --golden or --no-golden");
    }
    h->path = positionals[0];
    (void)ctl_golden_path(h->path, h->golden_beside, sizeof h->golden_beside);
    h->golden_path = values.golden != NULL ? values.golden : h->golden_beside;
    h->exit_code = ctl_model_environment(NAME, &h->values);
    if (h->exit_code == 0) {
        h->exit_code = ctl_sandbox_resolve(NAME, &values.sandbox, CTL_SANDBOX_KILL);
    }
    if (h->exit_code == 0 && strcmp(values.output, "-") != 0) {
        h->exit_code = open_output(h, values.output, &place, &fd);
    }
    if (h->exit_code == 0) {
        code = check_all(h, &values, &place);
        if (code == 0) {
            finish(h, &values, &place, fd);
        }
    }
    ctl_place_close(&place);
    return code != 0 ? code : h->exit_code;
}
