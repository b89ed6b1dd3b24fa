/* SPDX-License-Identifier: MIT */
/*
 * colibrictl serve: answers requests of docs/protocol.md, one after another: those of the clients of a
 * unix socket, or those of standard input.
 */
#define _GNU_SOURCE

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../src/spec.h"
#include "clients.h"
#include "commands.h"
#include "lines.h"
#include "listen.h"
#include "log.h"
#include "model.h"
#include "notify.h"
#include "options.h"
#include "output.h"
#include "sandbox.h"
#include "server.h"
#include "signals.h"

#define NAME "serve"
/* Beside its own pages in the process_bytes of the plan. */
#define MAX_BUFFER_BYTES 2097152u
/* Socket, lock, pid file, service manager, model (twice), /proc/self/status, a client who is turned away. */
#define OWN_DESCRIPTORS 8u
#define NOT_LOCKED                                                                                      \
    "%zu bytes for requests are not locked beside the %llu that are: %s: raise RLIMIT_MEMLOCK to the sum " \
    "(LimitMEMLOCK=infinity), or lower --clients or --max-text"

struct serve_values {
    struct ctl_listen_values listen;
    uint32_t clients, tokens, request_seconds, write_seconds, idle_seconds, drain_seconds;
};

#define AT(field) offsetof(struct serve_values, field)

static const struct ctl_option serve_options[] = {
    { "socket", 0, CTL_TEXT, AT(listen.path), 0, 0, "PATH", NULL,
      "make this unix socket and answer those who connect; without: standard input" },
    { "socket-mode", 0, CTL_TEXT, AT(listen.mode), 0, 0, "MODE", "0660", "its permissions, octal" },
    { "socket-fd", 0, CTL_U32, AT(listen.fd), 3, 1023, "N", NULL,
      "a listening unix socket that was passed; socket activation needs no option" },
    { "pid-file", 0, CTL_TEXT, AT(listen.pid_file), 0, 0, "FILE", NULL,
      "write the process id there, for init scripts" },
    { "clients", 0, CTL_U32, AT(clients), 1, 64, "N", "8", "connections at a time" },
    { "max-tokens", 0, CTL_U32, AT(tokens), 0, CB_MAX_CONTEXT_TOKENS, "N", "0",
      "largest \"tokens\" of a request; 0 = the context" },
    { "request-seconds", 0, CTL_U32, AT(request_seconds), 0, 86400, "S", "0",
      "cancel a request that runs longer; 0 = never" },
    { "write-seconds", 0, CTL_U32, AT(write_seconds), 1, 3600, "S", "10",
      "drop a client that does not read for so long" },
    { "idle-seconds", 0, CTL_U32, AT(idle_seconds), 1, 86400, "S", "60",
      "one that asked nothing for so long makes room for another" },
    { "drain-seconds", 0, CTL_U32, AT(drain_seconds), 0, 3600, "S", "10",
      "time to finish what waits when a signal asks to stop" },
};

static const char serve_notes[] =
    "Each line is a request, a flat JSON object; the answer is one line per piece of text and a last one\n"
    "with \"done\" or \"error\". A request that cannot be understood is answered by an error, and the\n"
    "next one is read. Standard input ends the command, SIGTERM the server. See docs/protocol.md.\n"
    "Weights are verified when first used; --verify open refuses a changed model at the start.\n"
    "--sandbox auto is kill for a socket.\n"
    "\n"
    "Examples:\n"
    "  colibrictl serve model.colibri --socket /run/colibri/colibri.sock\n"
    "  echo '{\"id\":\"1\",\"prompt\":\"The capital of France is\",\"tokens\":16}' | colibrictl serve "
    "model.colibri\n";

/* What is made before the sandbox closes, and what it is made from. */
struct service {
    struct serve_values values;
    struct ctl_model_values model_values;
    struct ctl_sandbox_values sandbox;
    bool sockets;
    struct ctl_server server;
    struct ctl_notify notify;
    struct ctl_clients clients; /* of sockets */
    struct ctl_lines lines;     /* of standard input */
    void *memory;               /* [memory_bytes]: ids and lines */
    size_t memory_bytes;
};

/* ---- standard input ---------------------------------------------------------------------- */

/* More bytes of requests: 0, or the exit code. */
static int fill(struct ctl_lines *lines)
{
    size_t space;
    char *room = ctl_lines_room(lines, &space);
    ssize_t done = -1;

    /* a stop signal in front of the read ends the wait, too */
    if (ctl_signals_poll(STDIN_FILENO, POLLIN) >= 0) {
        done = read(STDIN_FILENO, room, space);
    }
    if (done > 0) {
        ctl_lines_add(lines, (size_t)done);
    } else if (done == 0) {
        lines->ended = true;
    } else if (!ctl_wait(STDIN_FILENO, POLLIN)) {
        return ctl_fail_message("standard input", COLIBRI_ERR_IO, "cannot read a request: %s",
                                strerror(errno));
    }
    return 0;
}

static int write_stdout(void *context, const char *bytes, size_t length, colibri_error *error)
{
    (void)context;
    return ctl_write(STDOUT_FILENO, bytes, length, error);
}

static int serve_input(struct ctl_server *server, struct ctl_lines *lines)
{
    const struct ctl_link link = { .write = write_stdout };

    while (ctl_signal_caught() == 0) {
        bool done = lines->ended;
        colibri_error error = { .offset = -1 };
        struct ctl_job job;

        if (!ctl_lines_next(lines)) {
            int exit_code = done ? 0 : fill(lines);

            if (exit_code != 0 || done) {
                return exit_code;
            }
            continue;
        }
        ctl_server_begin(server, &job, ctl_lines_text(lines), lines->length, lines->too_long);
        ctl_lines_drop(lines);
        if (ctl_server_finish(server, &job, &link, &error) != 0) {
            return ctl_fail(NAME, &error);
        }
    }
    return 0;
}

/* ---- set-up ------------------------------------------------------------------------------ */

/* Each client takes a descriptor, and poll() fails for more places than the limit has. */
static int check_descriptors(uint32_t clients)
{
    const uint32_t need = clients + OWN_DESCRIPTORS;
    struct rlimit limit;
    uint32_t spare = 0;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 0;
    }
    for (rlim_t fd = 0; fd < limit.rlim_cur && spare < need; fd++) { /* as many as were inherited, and need */
        spare += fcntl((int)fd, F_GETFD) < 0;
    }
    return spare == need
               ? 0
               : ctl_fail_message(NAME, COLIBRI_ERR_MEMORY,
                                  "RLIMIT_NOFILE is %llu, %u clients need %llu: `ulimit -n %llu`, LimitNOFILE= in the "
                                  "unit, or lower --clients",
                                  (unsigned long long)limit.rlim_cur, (unsigned)clients,
                                  (unsigned long long)limit.rlim_cur + need - spare,
                                  (unsigned long long)limit.rlim_cur + need - spare);
}

/* Everything that a request needs, in one mapping; unless it is locked, only what is used takes memory. */
static int take_memory(struct service *s)
{
    size_t ids = (ctl_server_ids_bytes(s->server.text_limit) + 15) / 16 * 16;
    size_t lines = s->sockets ? ctl_clients_bytes(s->values.clients, s->server.line_limit)
                              : s->server.line_limit;

    s->memory_bytes = ids + lines;
    if (s->memory_bytes > MAX_BUFFER_BYTES) {
        return ctl_fail_message(NAME, COLIBRI_ERR_ARGUMENT,
                                "%u clients with prompts of %zu bytes need %zu bytes, the memory plan "
                                "leaves %u: lower --clients to %zu, or --max-text",
                                (unsigned)s->values.clients, s->server.text_limit, s->memory_bytes,
                                MAX_BUFFER_BYTES,
                                (MAX_BUFFER_BYTES - ids - ctl_clients_bytes(0, 0)) /
                                    (ctl_clients_bytes(1, s->server.line_limit) - ctl_clients_bytes(0, 0)));
    }
    s->memory = mmap(NULL, s->memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s->memory == MAP_FAILED) {
        s->memory = NULL;
        return ctl_fail_message(NAME, COLIBRI_ERR_MEMORY,
                                "no memory for requests of %zu bytes: lower --max-text",
                                s->server.text_limit);
    }
    s->server.ids = s->memory;
    if (s->sockets) {
        ctl_clients_init(&s->clients, s->values.clients, s->server.line_limit, (char *)s->memory + ids);
    } else {
        s->lines = (struct ctl_lines){ .bytes = (char *)s->memory + ids,
                                       .limit = s->server.line_limit };
    }
    return 0;
}

/* As the arena of the model: locked by the same option, and in secure mode not in core dumps. */
static int guard_memory(const struct service *s)
{
    const struct ctl_model_values *values = &s->model_values;
    uint64_t before = ctl_status_bytes("VmLck:");
    const char *reason = NULL;

    if (values->secure) {
        (void)madvise(s->memory, s->memory_bytes, MADV_DONTDUMP); /* cannot fail: it is one mapping */
    }
    if (values->lock == COLIBRI_LOCK_OFF) {
        return 0;
    }
    if (mlock(s->memory, s->memory_bytes) != 0) {
        reason = strerror(errno);
    } else if (ctl_status_bytes("VmLck:") < before + s->memory_bytes) {
        reason = "this kernel or sandbox does not lock memory";
    }
    if (reason != NULL && values->lock == COLIBRI_LOCK_REQUIRE) {
        return ctl_fail_message(NAME, COLIBRI_ERR_LOCK, NOT_LOCKED, s->memory_bytes, (unsigned long long)before,
                                reason);
    }
    if (reason != NULL) {
        ctl_log(LOG_WARNING, NOT_LOCKED, s->memory_bytes, (unsigned long long)before, reason);
    }
    return 0;
}

static int open_service(struct service *s, const char *path)
{
    struct ctl_server *server = &s->server;
    colibri_plan plan = { .struct_size = sizeof plan };
    colibri_error error = { .offset = -1 };
    uint32_t limit = s->values.tokens;
    int exit_code;

    server->text_limit = (size_t)s->model_values.max_text_bytes;
    server->line_limit = 2 * server->text_limit + CTL_REQUEST_FIXED_BYTES;
    exit_code = take_memory(s);
    if (exit_code == 0) {
        exit_code = ctl_model_open(NAME, path, &s->model_values, &server->model);
    }
    if (exit_code == 0) { /* the environment was read by then */
        exit_code = guard_memory(s);
    }
    if (exit_code != 0) {
        return exit_code;
    }
    (void)colibri_model_plan(server->model, &plan);
    server->context_tokens = plan.context_tokens;
    server->batch_tokens = plan.batch_tokens;
    server->token_limit = limit > 0 && limit < plan.context_tokens ? limit : plan.context_tokens;
    if (colibri_session_create(server->model, &server->session, &error) != 0) {
        return ctl_fail(NAME, &error);
    }
    if (s->sockets) {
        ctl_log(LOG_INFO, "serve: clients=%u line_bytes=%zu buffer_bytes=%zu plan_bytes=%llu",
                (unsigned)s->values.clients, server->line_limit, s->memory_bytes,
                (unsigned long long)plan.total_bytes);
    }
    return 0;
}

static int serve_clients(struct service *s)
{
    struct ctl_clients *clients = &s->clients;

    clients->server = &s->server;
    clients->notify = &s->notify;
    clients->write_seconds = s->values.write_seconds;
    clients->idle_seconds = s->values.idle_seconds;
    clients->drain_seconds = s->values.drain_seconds;
    clients->request_seconds = s->values.request_seconds;
    ctl_signals_drain(s->server.session);
    if (!ctl_notify_send(&s->notify, "READY=1\nSTATUS=answers requests")) {
        ctl_log(LOG_WARNING, "serve: the service manager could not be told that the server is ready");
    }
    return ctl_clients_serve(clients);
}

static void close_service(struct service *s)
{
    colibri_session_free(s->server.session);
    colibri_model_close(s->server.model);
    if (s->memory != NULL) {
        if (!s->sockets) {
            ctl_lines_clear(&s->lines); /* requests that were not begun */
        }
        (void)munmap(s->memory, s->memory_bytes);
    }
}

/* Opens the model inside the first sandbox, shows the socket, then closes the second one. */
static int close_in(struct service *s, const char *model)
{
    const char *const reads[] = { model, s->model_values.public_key_file };
    char folder[CTL_LISTEN_PATH_BYTES];
    int exit_code = ctl_sandbox_enter(NAME, &s->sandbox, COLIBRI_SANDBOX_START, reads, 2,
                                      ctl_listen_folder(&s->values.listen, folder));

    if (exit_code == 0) {
        exit_code = open_service(s, model);
    }
    exit_code = exit_code != 0 ? exit_code : ctl_listen_publish(&s->values.listen);
    return exit_code != 0 ? exit_code
                          : ctl_sandbox_enter(NAME, &s->sandbox, COLIBRI_SANDBOX_STEADY, NULL, 0, NULL);
}

static int serve(struct service *s, const char *model)
{
    int exit_code = close_in(s, model);

    if (exit_code != 0) {
        return exit_code;
    }
    if (s->sockets) {
        exit_code = serve_clients(s);
    } else {
        ctl_signals_watch(s->server.session);
        exit_code = serve_input(&s->server, &s->lines);
    }
    ctl_signals_unwatch();
    return exit_code;
}

int ctl_command_serve(int argc, char *const *argv)
{
    struct service s = { .clients = { .listener = -1 } };
    const struct ctl_group groups[] = {
        { "Service", serve_options, sizeof serve_options / sizeof serve_options[0], &s.values },
        { "Sandbox", ctl_sandbox_options, CTL_SANDBOX_OPTION_COUNT, &s.sandbox },
        { "Model", ctl_model_options, ctl_model_option_count, &s.model_values },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "MODEL [--socket PATH | --socket-fd N] [options]",
        .summary = "Answer requests, a JSON object per line, of a socket's clients or of standard input.",
        .notes = serve_notes,
        .groups = groups,
        .group_count = sizeof groups / sizeof groups[0],
        .positional_names = { "MODEL" },
        .positionals_min = 1,
        .positionals_max = 1,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code;

    if (code != 0) {
        return ctl_parsed(code);
    }
    s.sockets = ctl_listen_wanted(&s.values.listen);
    exit_code = ctl_sandbox_resolve(NAME, &s.sandbox, s.sockets ? CTL_SANDBOX_KILL : CTL_SANDBOX_OFF);
    if (exit_code == 0 && s.sockets) {
        exit_code = check_descriptors(s.values.clients);
        if (exit_code == 0) {
            exit_code = ctl_notify_open(&s.notify, NAME);
        }
        if (exit_code == 0) {
            exit_code = ctl_listen_open(NAME, &s.values.listen, &s.clients.listener);
        }
    }
    if (exit_code != 0) {
        return exit_code;
    }
    exit_code = serve(&s, positionals[0]);
    close_service(&s);
    if (s.sockets && !ctl_sandbox_closed()) { /* else the next server replaces what is left */
        ctl_listen_remove(&s.values.listen);
    }
    return exit_code;
}
