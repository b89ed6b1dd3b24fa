/* SPDX-License-Identifier: MIT */
/* What the service manager hears: a datagram socket named by NOTIFY_SOCKET, fed by WATCHDOG_USEC. */
#ifndef CTL_NOTIFY_H
#define CTL_NOTIFY_H

#include <stdbool.h>

struct ctl_notify {
    int fd;              /* connected, or -1: nobody wants to hear */
    double feed_seconds; /* between two signs of life; 0: none are wanted */
    double next_feed;    /* time of ctl_seconds */
};

/* Reads the environment and connects: 0, or the exit code after printing why. */
int ctl_notify_open(struct ctl_notify *notify, const char *command);
/* "READY=1", ...; false: it did not arrive. Never waits. */
bool ctl_notify_send(const struct ctl_notify *notify, const char *state);
/* A sign of life when one is due. Seconds until the next one is, or -1. */
double ctl_notify_feed(struct ctl_notify *notify);

#endif
