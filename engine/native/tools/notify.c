/* SPDX-License-Identifier: MIT */
#include "notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "colibri.h"
#include "options.h"
#include "output.h"

/* A watchdog for another process is not ours to feed. */
static int read_watchdog(struct ctl_notify *notify, const char *command)
{
    const char *period = getenv("WATCHDOG_USEC"), *owner = getenv("WATCHDOG_PID");
    uint64_t number = 0;

    if (period == NULL ||
        (owner != NULL && (!ctl_parse_u64(owner, &number) || number != (uint64_t)getpid()))) {
        return 0;
    }
    if (!ctl_parse_u64(period, &number) || number == 0) {
        return ctl_environment_error(command, "WATCHDOG_USEC", period, "microseconds");
    }
    notify->feed_seconds = 0.5e-6 * (double)number;
    return 0;
}

int ctl_notify_open(struct ctl_notify *notify, const char *command)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length = path != NULL ? strlen(path) : 0;

    *notify = (struct ctl_notify){ .fd = -1 };
    if (length == 0) {
        return 0;
    }
    if ((path[0] != '/' && path[0] != '@') || length > sizeof address.sun_path - 1) {
        return ctl_fail_message(command, COLIBRI_ERR_ARGUMENT,
                                "environment variable NOTIFY_SOCKET is '%s', no path from / or @ of "
                                "less than %zu bytes: unset it",
                                path, sizeof address.sun_path);
    }
    memcpy(address.sun_path, path, length);
    address.sun_path[0] = path[0] == '@' ? '\0' : path[0]; /* a name without a file */
    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (notify->fd < 0 ||
        connect(notify->fd, (const struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length)) != 0) {
        return ctl_fail_message(path, COLIBRI_ERR_OPEN,
                                "cannot reach the service manager (NOTIFY_SOCKET): %s", strerror(errno));
    }
    return read_watchdog(notify, command);
}

bool ctl_notify_send(const struct ctl_notify *notify, const char *state)
{
    return notify->fd < 0 ||
           sendto(notify->fd, state, strlen(state), MSG_NOSIGNAL, NULL, 0) == (ssize_t)strlen(state);
}

double ctl_notify_feed(struct ctl_notify *notify)
{
    double now;

    if (notify->feed_seconds <= 0) {
        return -1;
    }
    now = ctl_seconds();
    if (now >= notify->next_feed) {
        (void)ctl_notify_send(notify, "WATCHDOG=1");
        notify->next_feed = now + notify->feed_seconds;
    }
    return notify->next_feed - now;
}
