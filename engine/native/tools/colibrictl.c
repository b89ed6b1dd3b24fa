/* SPDX-License-Identifier: MIT */
/* colibrictl: the command of a device. Also installed as colibri_test, which is `colibrictl test`. */
#define _POSIX_C_SOURCE 200809L

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "commands.h"
#include "log.h"
#include "options.h"
#include "output.h"
#include "signals.h"

#define MIN_STACK_BYTES 131072u /* four times what a request needs */

struct entry {
    const char *name;
    int (*run)(int argc, char *const *argv);
    const char *summary;
};

static const struct entry entries[] = {
    { "run", ctl_command_run, "generate text with a model" },
    { "snapshot", ctl_command_snapshot, "compute a prompt prefix once, for run --prefix" },
    { "serve", ctl_command_serve, "answer requests, a JSON object per line, on a socket or stdin" },
    { "ask", ctl_command_ask, "ask a server at its socket" },
    { "info", ctl_command_info, "facts of a model, its memory plan, this build" },
    { "verify", ctl_command_verify, "verify every byte of a model file" },
    { "install", ctl_command_install, "replace a model file: verified, and never half of it" },
    { "doctor", ctl_command_doctor, "check whether this machine lets the engine keep its promises" },
    { "health", ctl_command_health, "gate a start: doctor, every byte, golden results, memory" },
    { "selftest", ctl_command_selftest, "check every operator and kernel on this machine" },
    { "bench", ctl_command_bench, "measure a model: first token, tokens per second, memory" },
    { "test", ctl_command_test, "selftest, then measure a model in three rounds" },
};

#define ENTRY_COUNT (sizeof entries / sizeof entries[0])

static int print_help(void)
{
    (void)printf("usage: colibrictl COMMAND [arguments]\n\n"
                 "Mixture-of-Experts inference on small Linux boards.\n\nCommands:\n");
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        (void)printf("  %-10s %s\n", entries[i].name, entries[i].summary);
    }
    (void)printf("\n'colibrictl COMMAND --help' lists the options of a command with their ranges and\n"
                 "defaults; 'colibrictl --version' names the build. 'colibri_test' is another name of\n"
                 "'colibrictl test'.\n");
    ctl_print_exit_codes();
    return ctl_finish_stdout();
}

static int unknown_command(const char *name)
{
    const char *names[ENTRY_COUNT + 1] = { "help" };

    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        names[i + 1] = entries[i].name;
    }
    return ctl_usage_error("", "unknown command '%s'; the closest one is '%s'", name,
                                             ctl_closest(name, names, ENTRY_COUNT + 1));
}

/* `colibrictl help` and `colibrictl help COMMAND` */
static int help(int argc, char *const *argv)
{
    static char word[] = "--help";
    char *const arguments[] = { word, NULL };

    if (argc == 0) {
        return print_help();
    }
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (strcmp(argv[0], entries[i].name) == 0) {
            return entries[i].run(1, arguments);
        }
    }
    return unknown_command(argv[0]);
}

static int dispatch(int argc, char *const *argv)
{
    const char *name = argv[0];

    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        return print_help();
    }
    if (strcmp(name, "help") == 0) {
        return help(argc - 1, argv + 1);
    }
    if (strcmp(name, "--version") == 0) {
        (void)printf("colibrictl %s\n%s\n", colibri_version(), colibri_build_info());
        return ctl_finish_stdout();
    }
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (strcmp(name, entries[i].name) == 0) {
            return entries[i].run(argc - 1, argv + 1);
        }
    }
    return unknown_command(name);
}

static bool is_test_name(const char *program)
{
    const char *slash = strrchr(program, '/');

    return strcmp(slash != NULL ? slash + 1 : program, "colibri_test") == 0;
}

/* What a parent may have left that no command can work with. Every thread of the library has a stack of
 * its own size (CB_PLAN_STACK_BYTES); the first thread has that of the limit. */
static int check_inherited(void)
{
    struct rlimit limit;
    sigset_t stopping;

    (void)sigemptyset(&stopping);
    (void)sigaddset(&stopping, SIGINT);
    (void)sigaddset(&stopping, SIGTERM);
    (void)sigaddset(&stopping, SIGHUP);
    (void)sigprocmask(SIG_UNBLOCK, &stopping, NULL); /* a blocked one could not stop us */
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= MIN_STACK_BYTES) {
        return 0;
    }
    return ctl_fail_message("environment", COLIBRI_ERR_MEMORY,
                            "RLIMIT_STACK is %llu, a command needs %u: `ulimit -s %u`, or LimitSTACK= in the unit",
                            (unsigned long long)limit.rlim_cur, MIN_STACK_BYTES, MIN_STACK_BYTES / 1024);
}

int main(int argc, char **argv)
{
    int exit_code;

    ctl_signals_init();
    if (argc > 1 && strcmp(argv[1], "health") == 0) {
        ctl_health_forget(argc - 2, argv + 2);
    }
    exit_code = ctl_log_environment();
    exit_code = exit_code != 0 ? exit_code : check_inherited();
    if (exit_code != 0) {
        return exit_code;
    }
    if (argc > 0 && is_test_name(argv[0])) {
        return ctl_command_test(argc - 1, argv + 1);
    }
    if (argc < 2) {
        return ctl_usage_error("", "a command is missing: run, snapshot, serve, ask, info, "
                                                     "verify, install, doctor, health, selftest, bench or test");
    }
    return dispatch(argc - 1, argv + 1);
}
