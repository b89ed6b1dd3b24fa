/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE

#include "clients.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "output.h"
#include "signals.h"

#define ACCEPTS_AT_ONCE 16  /* a flood of connections does not keep a request waiting */
#define DEAF_SECONDS 1.0    /* when the system has no descriptor left */
#define ROOM_SECONDS 0.1    /* a socket takes bytes before it says that there is room */

size_t ctl_clients_bytes(uint32_t count, size_t line_limit)
{
    return sizeof(struct pollfd) +
           count * (sizeof(struct ctl_client) + sizeof(struct pollfd) + line_limit);
}

void ctl_clients_init(struct ctl_clients *c, uint32_t count, size_t line_limit, void *memory)
{
    char *lines;

    c->clients = memory;
    c->polled = (struct pollfd *)(void *)(c->clients + count);
    lines = (char *)(c->polled + 1 + count);
    c->count = count;
    for (uint32_t i = 0; i < count; i++) {
        c->clients[i].fd = -1;
        c->clients[i].lines = (struct ctl_lines){ .bytes = lines + i * line_limit,
                                                  .limit = line_limit };
    }
}

/* ---- clients come and go ------------------------------------------------------------------ */

static void leave(struct ctl_client *client)
{
    (void)close(client->fd);
    client->fd = -1;
    client->ticket = 0;
    ctl_lines_clear(&client->lines);
}

/* The next line queues up; a client that will send no more goes when the last one is answered. */
static void settle(struct ctl_clients *c, struct ctl_client *client)
{
    if (client->fd < 0 || client->ticket != 0) {
        return;
    }
    if (ctl_lines_next(&client->lines)) {
        client->ticket = ++c->tickets;
    } else if (client->lines.ended && client != c->running) {
        leave(client);
    }
}

static int write_once(void *context, const char *bytes, size_t length, colibri_error *error)
{
    const int *fd = context;

    (void)error;
    (void)sendto(*fd, bytes, length, MSG_NOSIGNAL, NULL, 0);
    return 0;
}

static void turn_away(const struct ctl_clients *c, int fd)
{
    struct ctl_answer answer = { .write = write_once, .context = &fd, .id = "" };
    colibri_error busy;

    (void)ctl_refuse(&busy, COLIBRI_ERR_BUSY,
                     "there are %u clients already: try again later, or raise --clients",
                     (unsigned)c->count);
    (void)ctl_answer_error(&answer, &busy, &busy);
    (void)close(fd);
}

/* A place for one more: a free one, else that of the client who has been without a request for longest,
 * and for long enough. */
static struct ctl_client *find_place(struct ctl_clients *c)
{
    struct ctl_client *idle = NULL;

    for (uint32_t i = 0; i < c->count; i++) {
        struct ctl_client *client = &c->clients[i];

        if (client == c->running || client->ticket != 0) {
            continue;
        }
        if (client->fd < 0) {
            return client;
        }
        if (idle == NULL || client->idle_since < idle->idle_since) {
            idle = client;
        }
    }
    return idle != NULL && ctl_seconds() - idle->idle_since >= (double)c->idle_seconds ? idle : NULL;
}

/* Nobody is turned away while a place is about to be free: that of a client who left, whose request has
 * not ended, or that of one who left since poll looked. */
static void accept_clients(struct ctl_clients *c)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        struct ctl_client *place = find_place(c);
        int fd;

        if (place == NULL && (i > 0 || (c->running != NULL && c->running->fd < 0))) {
            return;
        }
        fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
                c->deaf_until = ctl_seconds() + DEAF_SECONDS;
                if (!c->deaf) {
                    ctl_log(LOG_WARNING, "serve: no connection can be accepted: %s", strerror(errno));
                }
                c->deaf = true;
            }
            return;
        }
        c->deaf = false;
        if (place == NULL) {
            turn_away(c, fd);
            continue;
        }
        if (place->fd >= 0) {
            leave(place);
        }
        place->fd = fd;
        place->idle_since = ctl_seconds();
    }
}

static void read_client(struct ctl_client *client)
{
    size_t space;
    char *room = ctl_lines_room(&client->lines, &space);
    ssize_t done = read(client->fd, room, space);

    if (done > 0) {
        ctl_lines_add(&client->lines, (size_t)done);
    } else if (done == 0) {
        client->lines.ended = true;
    } else if (errno != EAGAIN && errno != EINTR) {
        leave(client);
    }
}

/* ---- waiting ------------------------------------------------------------------------------ */

/* No more clients and no more lines; what is there has some time. */
static void stop(struct ctl_clients *c)
{
    c->stop_at = ctl_seconds() + (double)c->drain_seconds;
    (void)ctl_notify_send(c->notify, "STOPPING=1");
    (void)close(c->listener);
    c->listener = -1;
}

static void heed_signals(struct ctl_clients *c)
{
    if (ctl_signal_caught() != 0 && c->stop_at <= 0) {
        stop(c);
    }
}

static bool time_is_over(const struct ctl_clients *c)
{
    return c->failed || (c->stop_at > 0 && (ctl_signals_insist() || ctl_seconds() >= c->stop_at));
}

/* A negative number is for ever. */
static double sooner(double a, double b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

/* What to wait for. Returns seconds until something else is due. */
static double prepare(struct ctl_clients *c, double seconds, bool room)
{
    double now = ctl_seconds();
    bool deaf = c->deaf_until > now;

    if (deaf) {
        seconds = sooner(seconds, c->deaf_until - now);
    }
    if (c->stop_at > 0) { /* from now on only an answer is waited for */
        seconds = room && c->stop_at > now ? sooner(seconds, c->stop_at - now) : 0;
    }
    c->polled[0] = (struct pollfd){ .fd = deaf ? -1 : c->listener, .events = POLLIN | POLLRDHUP };
    for (uint32_t i = 0; i < c->count; i++) {
        struct ctl_client *client = &c->clients[i];
        size_t space = 0;

        if (client->fd >= 0 && !client->lines.ended && c->stop_at <= 0) {
            (void)ctl_lines_room(&client->lines, &space);
        }
        c->polled[1 + i] = (struct pollfd){
            .fd = client->fd,
            .events = (short)((space > 0 ? POLLIN : 0) | (room && client == c->running ? POLLOUT : 0)),
        };
    }
    return seconds;
}

/* Signals are let in by ppoll alone, so none comes between looking for one and going to sleep. */
static int sleep_in_poll(struct ctl_clients *c, double seconds)
{
    struct timespec time = { 0 };
    sigset_t stopping, before;
    int found = 0;

    if (seconds > 0) {
        time.tv_sec = (time_t)seconds;
        time.tv_nsec = (long)(1e9 * (seconds - (double)time.tv_sec));
    }
    (void)sigemptyset(&stopping);
    (void)sigaddset(&stopping, SIGINT);
    (void)sigaddset(&stopping, SIGTERM);
    (void)sigprocmask(SIG_BLOCK, &stopping, &before);
    if (c->stop_at > 0 ? !time_is_over(c) : ctl_signal_caught() == 0) {
        found = ppoll(c->polled, 1 + c->count, seconds < 0 ? NULL : &time, &before);
    }
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    return found;
}

/*
 * Looks after everybody; waits at most so many seconds (below 0: for ever) until somebody wants
 * something, or with `room` until the one whose request runs takes more of its answer.
 */
static void look_after(struct ctl_clients *c, double seconds, bool room)
{
    int found;

    heed_signals(c);
    seconds = prepare(c, sooner(seconds, ctl_notify_feed(c->notify)), room);
    found = seconds == 0 ? poll(c->polled, 1 + c->count, 0) : sleep_in_poll(c, seconds);
    if (found < 0 && errno != EINTR) { /* and it would go on failing: the watchdog must not be fed by that */
        c->exit_code = ctl_fail_message("serve", COLIBRI_ERR_IO, "cannot wait for %u clients: %s: is RLIMIT_NOFILE "
                                        "too low?", (unsigned)c->count, strerror(errno));
        c->failed = true;
    }
    heed_signals(c);
    if (found <= 0) {
        return;
    }
    for (uint32_t i = 0; i < c->count; i++) {
        struct ctl_client *client = &c->clients[i];
        short events = c->polled[1 + i].revents;

        if ((events & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
            leave(client); /* both ways are closed: nobody reads an answer */
        } else if ((events & POLLIN) != 0) {
            read_client(client);
        }
        settle(c, client);
    }
    if ((c->polled[0].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0 && c->listener >= 0) {
        /* accept4() would say that nobody is there, and poll() that it is ready, for ever */
        c->exit_code = ctl_fail_message("serve", COLIBRI_ERR_IO,
                                        "somebody shut down the listening socket: no client can come; start the "
                                        "server with a new one");
        stop(c);
    } else if (c->polled[0].revents != 0 && c->listener >= 0) {
        accept_clients(c);
    }
}

/* ---- requests ----------------------------------------------------------------------------- */

static int between(void *context, colibri_error *error)
{
    struct ctl_clients *c = context;

    look_after(c, 0, false);
    if (c->running->fd < 0) {
        return ctl_refuse(error, COLIBRI_ERR_CANCELLED, "the client left");
    }
    if (time_is_over(c)) {
        return ctl_refuse(error, COLIBRI_ERR_CANCELLED, "the server stops: ask again when it is back");
    }
    if (c->request_seconds > 0 && ctl_seconds() - c->running_since >= (double)c->request_seconds) {
        return ctl_refuse(error, COLIBRI_ERR_CANCELLED,
                          "the request took %u seconds: shorten it, or raise --request-seconds",
                          (unsigned)c->request_seconds);
    }
    return 0;
}

/* One line of an answer. A client that does not make room for it in time is dropped. */
static int write_line(void *context, const char *bytes, size_t length, colibri_error *error)
{
    struct ctl_clients *c = context;
    double deadline = ctl_seconds() + (double)c->write_seconds;

    while (length > 0 && c->running->fd >= 0) {
        double left = deadline - ctl_seconds();
        ssize_t done = sendto(c->running->fd, bytes, length, MSG_NOSIGNAL, NULL, 0);

        if (done >= 0) {
            bytes += done;
            length -= (size_t)done;
        } else if (errno != EINTR && (errno != EAGAIN || left <= 0 || time_is_over(c))) {
            leave(c->running);
        } else {
            look_after(c, sooner(ROOM_SECONDS, left > 0 ? left : 0), true);
        }
    }
    return length == 0 ? 0 : ctl_refuse(error, COLIBRI_ERR_CANCELLED, "the client does not read");
}

static void answer(struct ctl_clients *c, struct ctl_client *client)
{
    const struct ctl_link link = { .write = write_line, .between = between, .context = c };
    struct ctl_lines *lines = &client->lines;
    colibri_error error = { .offset = -1 };
    struct ctl_job job;

    c->running = client;
    c->running_since = ctl_seconds();
    ctl_server_begin(c->server, &job, ctl_lines_text(lines), lines->length, lines->too_long);
    ctl_lines_drop(lines);
    client->ticket = 0;
    settle(c, client); /* its next line may queue up while this one runs */
    if (job.failure.code == 0) {
        (void)between(c, &job.failure);
    }
    (void)ctl_server_finish(c->server, &job, &link, &error);
    c->running = NULL;
    client->idle_since = ctl_seconds();
    settle(c, client);
}

static struct ctl_client *first_in_line(struct ctl_clients *c)
{
    struct ctl_client *first = NULL;

    for (uint32_t i = 0; i < c->count; i++) {
        struct ctl_client *client = &c->clients[i];

        if (client->ticket != 0 && (first == NULL || client->ticket < first->ticket)) {
            first = client;
        }
    }
    return first;
}

int ctl_clients_serve(struct ctl_clients *c)
{
    while (!c->failed) {
        struct ctl_client *next = first_in_line(c);

        look_after(c, next != NULL ? 0 : -1, false);
        next = first_in_line(c);
        if (next != NULL) {
            answer(c, next);
        } else if (c->stop_at > 0) {
            break;
        }
    }
    for (uint32_t i = 0; i < c->count; i++) {
        if (c->clients[i].fd >= 0) {
            leave(&c->clients[i]);
        }
    }
    return c->exit_code;
}
