/* SPDX-License-Identifier: MIT */
/* The socket that clients come to, and the file that says which process serves it. */
#ifndef CTL_LISTEN_H
#define CTL_LISTEN_H

#include <stdbool.h>
#include <stdint.h>

#define CTL_LISTEN_PATH_BYTES 256u

struct ctl_listen_values {
    const char *path, *mode; /* of a socket to make */
    const char *pid_file;
    uint32_t fd;             /* that was given; 0: none */
};

/* Takes LISTEN_FDS of the environment for an fd when there is no other word. Whether there is a socket. */
bool ctl_listen_wanted(struct ctl_listen_values *values);
/* A listening socket in *fd, and the pid file: 0, or the exit code after printing why. A socket that is
 * made has another name at first. */
int ctl_listen_open(const char *command, const struct ctl_listen_values *values, int *fd);
/* Gives it its name, in the place of one that a dead server left: from here on clients find it. */
int ctl_listen_publish(const struct ctl_listen_values *values);
/* The folder where files are made, for the sandbox; NULL: none, or it has a long name. */
const char *ctl_listen_folder(const struct ctl_listen_values *values, char folder[CTL_LISTEN_PATH_BYTES]);
/* Removes what was made, as far as that is allowed. */
void ctl_listen_remove(const struct ctl_listen_values *values);

#endif
