/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* ppoll() */

#include "signals.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"

#define EXIT_TAMPERED 3 /* exit code of [exit_codes] tampered in engine/spec/format.toml */

/* The one global of the commands: a handler has no other way to its session. */
static struct {
    volatile sig_atomic_t caught, insisted;
    colibri_session *volatile session;
} watched;

/* A page of the mapped file that is no longer there. Only async-signal-safe calls; the process
 * cannot go on, because the instruction that failed would run again. */
static void on_bus_error(int number)
{
    ctl_log_text(LOG_ERR, "model file shrank while mapped (or its storage failed): replace model files "
                          "by rename, never in place (error -4 truncated)");
    (void)number;
    _exit(EXIT_TAMPERED);
}

static void on_stop(int number)
{
    colibri_session *session = watched.session;

    watched.caught = number;
    if (session != NULL) {
        colibri_session_cancel(session);
    }
}

static void on_drain(int number)
{
    colibri_session *session = watched.session;

    watched.insisted = watched.caught != 0;
    watched.caught = number;
    if (watched.insisted && session != NULL) {
        colibri_session_cancel(session);
    }
}

static void handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action;

    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    (void)sigfillset(&action.sa_mask); /* one handler at a time */
    (void)sigaction(number, &action, NULL);
}

void ctl_signals_init(void)
{
    /* A closed standard output stays an error: this descriptor cannot be written to. */
    static const int modes[3] = { O_WRONLY, O_RDONLY, O_WRONLY };

    for (int fd = 0; fd < 3; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            int opened = open("/dev/null", modes[fd]);

            /* Where there is no /dev: a stream socket without a peer cannot be read or written either (one of
             * datagrams would wait for some), and no file that is opened later gets this number. */
            opened = opened >= 0 ? opened : socket(AF_UNIX, SOCK_STREAM, 0);
            (void)opened;
        }
    }
    handle(SIGPIPE, SIG_IGN, 0);
    handle(SIGBUS, on_bus_error, 0);
}

void ctl_signals_watch(colibri_session *session)
{
    watched.session = session;
    /* no SA_RESTART: a blocked write must return; SA_RESETHAND: the second signal ends it */
    handle(SIGINT, on_stop, (int)SA_RESETHAND);
    handle(SIGTERM, on_stop, (int)SA_RESETHAND);
}

void ctl_signals_drain(colibri_session *session)
{
    watched.session = session;
    handle(SIGINT, on_drain, 0);
    handle(SIGTERM, on_drain, 0);
}

void ctl_signals_unwatch(void)
{
    handle(SIGINT, SIG_DFL, 0);
    handle(SIGTERM, SIG_DFL, 0);
    watched.session = NULL;
}

int ctl_signal_caught(void)
{
    return (int)watched.caught;
}

int ctl_signals_poll(int fd, short events)
{
    struct pollfd polled = { .fd = fd, .events = events };
    sigset_t stop, before;
    int ready = -1, number = EINTR;

    (void)sigemptyset(&stop);
    (void)sigaddset(&stop, SIGINT);
    (void)sigaddset(&stop, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &stop, &before);
    if (watched.caught == 0) {
        ready = ppoll(&polled, 1, NULL, &before);
        number = errno;
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    errno = number;
    return ready;
}

bool ctl_signals_insist(void)
{
    return watched.insisted != 0;
}
