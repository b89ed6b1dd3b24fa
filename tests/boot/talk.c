/* SPDX-License-Identifier: MIT */
/*
 * A client of a unix socket that keeps no rules, for tests of the server in the guest. Linked without a
 * C library, like probe.c:
 *
 *   talk SOCKET           sends its input, says that nothing follows, prints what comes back
 *   talk SOCKET hangup    sends its input and is gone
 *
 * Exit code 1 when the server cannot be reached; a server that closes early is not an error. AArch64 only.
 */
#include "freestanding.h"

#define SYS_read 63
#define SYS_write 64
#define SYS_exit_group 94
#define SYS_socket 198
#define SYS_connect 203
#define SYS_sendto 206
#define SYS_shutdown 210
#define AF_UNIX 1
#define SOCK_STREAM 1
#define SHUT_WR 1
#define MSG_NOSIGNAL 0x4000
#define PATH_BYTES 108u

static char buffer[16384];

static void leave(long code)
{
    (void)call(SYS_exit_group, code, 0, 0, 0, 0, 0);
}

/* The socket, or a negative error number. */
static long reach(const char *path)
{
    static struct { /* zeros; on the stack it would need memset */
        unsigned short family;
        char path[PATH_BYTES];
    } address;
    long file = call(SYS_socket, AF_UNIX, SOCK_STREAM, 0, 0, 0, 0);
    unsigned length = 0;
    long result;

    address.family = AF_UNIX;
    for (; path[length] != '\0' && length < PATH_BYTES - 1; length++) {
        address.path[length] = path[length];
    }
    result = call(SYS_connect, file, (long)&address, (long)sizeof address, 0, 0, 0);
    return result < 0 ? result : file;
}

/* Everything from standard input; stops when the server takes no more. */
static void send_input(long file)
{
    long got;

    while ((got = call(SYS_read, 0, (long)buffer, (long)sizeof buffer, 0, 0, 0)) > 0) {
        for (long at = 0; at < got;) {
            long sent = call(SYS_sendto, file, (long)(buffer + at), got - at, MSG_NOSIGNAL, 0, 0);

            if (sent <= 0) {
                return;
            }
            at += sent;
        }
    }
}

/* stack: argc, then the argument pointers */
__attribute__((used)) static void talk(long *stack)
{
    long argc = stack[0];
    char **argv = (char **)&stack[1];
    long file, got;

    if (argc < 2) {
        leave(2);
    }
    file = reach(argv[1]);
    if (file < 0) {
        leave(1);
    }
    send_input(file);
    if (argc > 2) {
        leave(0);
    }
    (void)call(SYS_shutdown, file, SHUT_WR, 0, 0, 0, 0);
    while ((got = call(SYS_read, file, (long)buffer, (long)sizeof buffer, 0, 0, 0)) > 0) {
        (void)call(SYS_write, 1, (long)buffer, got, 0, 0, 0);
    }
    leave(0);
}

START(talk);
