/* SPDX-License-Identifier: MIT */
/*
 * Many clients, one thread, one request at a time: who is connected, whose line came first, who reads.
 * Between two pieces of a computation everybody is looked after. Nothing is allocated, all is bounded.
 */
#ifndef CTL_CLIENTS_H
#define CTL_CLIENTS_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lines.h"
#include "notify.h"
#include "server.h"

struct ctl_client {
    int fd;                 /* -1: the place is free */
    uint64_t ticket;        /* of the line that is ready; 0: there is none. The lowest is next */
    double idle_since;      /* came, or was answered */
    struct ctl_lines lines;
};

struct ctl_clients {
    /* what there is */
    struct ctl_server *server;
    struct ctl_notify *notify;
    int listener;               /* -1 when no more clients are wanted */
    struct ctl_client *clients; /* [count] */
    struct pollfd *polled;      /* [1 + count]: the listener, then one for each place */
    uint32_t count;
    uint32_t write_seconds, idle_seconds, drain_seconds, request_seconds; /* the last: 0 = no limit */
    /* what goes on */
    struct ctl_client *running; /* whose request it is; its place is not given away */
    double running_since;
    uint64_t tickets;
    double deaf_until; /* no connection could be accepted: not before then */
    bool deaf;         /* and that was said */
    double stop_at;    /* 0 until a signal came */
    bool failed;       /* nobody can be looked after any more */
    int exit_code;     /* 0 until something failed, which was said */
};

/* Bytes for so many clients with such lines. */
size_t ctl_clients_bytes(uint32_t count, size_t line_limit);
/* memory: zeros, of ctl_clients_bytes. */
void ctl_clients_init(struct ctl_clients *clients, uint32_t count, size_t line_limit, void *memory);
/* Serves until a signal asks to stop and what waits is answered or the time for that is over: 0, or the
 * exit code of what ended it before, after saying why. */
int ctl_clients_serve(struct ctl_clients *clients);

#endif
