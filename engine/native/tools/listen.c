/* SPDX-License-Identifier: MIT */
#include "listen.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "colibri.h"
#include "options.h"
#include "output.h"

#define FIRST_PASSED_FD 3u /* of socket activation */
#define BACKLOG 64         /* connections that wait until the server looks */

/* ---- a socket that was given ---------------------------------------------------------------- */

bool ctl_listen_wanted(struct ctl_listen_values *values)
{
    const char *count = getenv("LISTEN_FDS"), *owner = getenv("LISTEN_PID");
    uint64_t number;

    if (values->path == NULL && values->fd == 0 && count != NULL && owner != NULL &&
        ctl_parse_u64(owner, &number) && number == (uint64_t)getpid() &&
        ctl_parse_u64(count, &number) && number > 0) {
        values->fd = FIRST_PASSED_FD;
    }
    return values->path != NULL || values->fd != 0;
}

static int take(int fd)
{
    struct sockaddr_un address = { .sun_family = 0 };
    socklen_t length = sizeof address, size = sizeof(int);
    int type = 0, listening = 0, flags = fcntl(fd, F_GETFL);

    if (flags < 0 || getsockname(fd, (struct sockaddr *)&address, &length) != 0 ||
        address.sun_family != AF_UNIX || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
        type != SOCK_STREAM || getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 ||
        listening == 0) {
        return ctl_fail_message("serve", COLIBRI_ERR_ARGUMENT,
                                "descriptor %d is no listening unix stream socket: give another "
                                "--socket-fd, or a socket unit with ListenStream=/PATH and Accept=no",
                                fd);
    }
    if (fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
        return ctl_fail_message("serve", COLIBRI_ERR_IO, "descriptor %d: %s", fd, strerror(errno));
    }
    return 0;
}

/* ---- a socket of our own -------------------------------------------------------------------- */

static int parse_mode(const char *text, mode_t *mode)
{
    unsigned value = 0;
    size_t length = strspn(text, "01234567");

    for (size_t i = 0; i < length && value <= 0777; i++) {
        value = value * 8 + (unsigned)(text[i] - '0');
    }
    if (length < 3 || text[length] != '\0' || value > 0777) {
        return ctl_usage_error(
            "serve", "--socket-mode: '%s' is no octal number in 000..777", text);
    }
    *mode = (mode_t)value;
    return 0;
}

#define SUFFIX_BYTES 5u /* of the names beside a path, with the longest of them */

/* PATH.suffix, for files that are not there yet and for the lock. */
static const char *beside(const char *path, const char *suffix, char out[PATH_MAX])
{
    int length = snprintf(out, PATH_MAX, "%s.%s", path, suffix);

    return length >= 0 && length < PATH_MAX ? out : NULL;
}

static int refuse_busy(const char *path)
{
    return ctl_fail_message(path, COLIBRI_ERR_BUSY,
                            "another server answers there, or will: stop it or give another --socket");
}

static int refuse_place(const char *path, const char *kind, const char *option)
{
    return ctl_fail_message(path, COLIBRI_ERR_ARGUMENT,
                            "there is something that is no %s: remove it or give another %s", kind, option);
}

/* The lock file, for reading: enough to lock it, and nothing that takes over the server can write there. */
static int open_lock(const char *name)
{
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int fd = open(name, flags);

    if (fd < 0 && errno == ENOENT) {
        fd = open(name, flags | O_CREAT | O_EXCL, 0600);
        if (fd >= 0) {
            (void)fchmod(fd, 0600); /* whatever the umask is: the next server opens it, too */
        } else if (errno == EEXIST) {
            fd = open(name, flags); /* another one was faster */
        }
    }
    return fd;
}

/* From here to the end of the process no other server touches that name. The lock file stays: who removes
 * one may remove that of the next. */
static int lock(const char *path)
{
    char name[PATH_MAX];
    struct stat found;
    int fd = open_lock(beside(path, "lock", name));

    if (fd < 0) {
        return ctl_fail_message(name, COLIBRI_ERR_OPEN,
                                "cannot make it: %s; its folder must exist and belong to this user", strerror(errno));
    }
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode) || found.st_size != 0) {
        return refuse_place(name, "empty file", "--socket");
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        return 0;
    }
    return errno == EWOULDBLOCK
               ? refuse_busy(path)
               : ctl_fail_message(name, COLIBRI_ERR_OPEN,
                                  "cannot lock it: %s; give a --socket in a folder of a local file system",
                                  strerror(errno));
}

/* A server that died leaves its socket behind, and only that is replaced. */
static int check_stale(const char *path, const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int failure = connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 ? 0 : errno;

    if (fd >= 0) {
        (void)close(fd);
    }
    if (failure == 0 || failure == EAGAIN) {
        return refuse_busy(path);
    }
    return failure == ECONNREFUSED || failure == ENOENT
               ? 0
               : ctl_fail_message(path, COLIBRI_ERR_OPEN, "cannot replace the socket of an earlier server: %s",
                                  strerror(failure));
}

static int check_name(const char *path, const struct sockaddr_un *address)
{
    struct stat found;
    bool exists = lstat(path, &found) == 0;
    int exit_code;

    if (exists ? !S_ISSOCK(found.st_mode) : errno != ENOENT) {
        return exists ? refuse_place(path, "socket", "--socket")
                      : ctl_fail_message(path, COLIBRI_ERR_OPEN, "%s", strerror(errno));
    }
    exit_code = lock(path);
    return exit_code == 0 && exists ? check_stale(path, address) : exit_code;
}

/* PATH.new, of a server that died before it was ready. The lock is ours: nobody else makes one now. */
static int remove_leftover(const struct sockaddr_un *address)
{
    const char *name = address->sun_path;
    struct stat found;
    int exit_code;

    if (lstat(name, &found) != 0) {
        return 0; /* else bind says why not */
    }
    if (!S_ISSOCK(found.st_mode)) {
        return refuse_place(name, "socket", "--socket");
    }
    exit_code = check_stale(name, address); /* it may be the --socket of another server */
    if (exit_code == 0) {
        (void)unlink(name);
    }
    return exit_code;
}

static int bind_with_mode(int fd, const struct sockaddr_un *address, mode_t mode)
{
    mode_t before = umask(0777 & ~mode); /* never wider than wanted, not for a moment */
    int result = bind(fd, (const struct sockaddr *)address, sizeof *address);
    int failure = errno;

    (void)umask(before);
    errno = failure;
    return result;
}

/* Under another name until requests are answered: see ctl_listen_publish. */
static int make(const char *path, mode_t mode, int *made)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length = strlen(path), limit = sizeof address.sun_path - SUFFIX_BYTES;
    int fd, exit_code;

    if (length == 0 || length > limit) {
        return ctl_fail_message(path, COLIBRI_ERR_ARGUMENT,
                                "a socket's path has 1..%zu bytes, this one %zu: give another --socket",
                                limit, length);
    }
    memcpy(address.sun_path, path, length);
    exit_code = check_name(path, &address);
    memcpy(address.sun_path + length, ".new", sizeof ".new");
    exit_code = exit_code != 0 ? exit_code : remove_leftover(&address);
    if (exit_code != 0) {
        return exit_code;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind_with_mode(fd, &address, mode) != 0 || listen(fd, BACKLOG) != 0) {
        exit_code = ctl_fail_message(path, COLIBRI_ERR_OPEN, "cannot make the socket: %s", strerror(errno));
        if (fd >= 0) {
            (void)close(fd);
        }
        return exit_code;
    }
    *made = fd;
    return 0;
}

int ctl_listen_publish(const struct ctl_listen_values *values)
{
    char name[PATH_MAX];

    if (values->path == NULL || rename(beside(values->path, "new", name), values->path) == 0) {
        return 0;
    }
    return ctl_fail_message(values->path, COLIBRI_ERR_OPEN, "cannot put the socket in place: %s", strerror(errno));
}

/* ---- the pid file --------------------------------------------------------------------------- */

#define PID_BYTES 24u /* of what such a file holds, with room to see that it holds more */

/* The folder of a path, or NULL when its name is too long. */
static const char *folder_of(const char *path, char *folder, size_t capacity)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash != NULL ? (size_t)(slash - path) : 0;

    if (length >= capacity) {
        return NULL;
    }
    memcpy(folder, path, length);
    folder[length] = '\0';
    return slash == NULL ? "." : length == 0 ? "/" : folder;
}

static const char *name_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

/* Whether both are the same entry of the same folder, which need not be there yet. */
static bool same_place(const char *a, const char *b)
{
    char folder[PATH_MAX];
    struct stat of_a, of_b;
    const char *at = folder_of(a, folder, sizeof folder);
    bool found = strcmp(name_of(a), name_of(b)) == 0 && at != NULL && stat(at, &of_a) == 0;

    at = folder_of(b, folder, sizeof folder);
    return found && at != NULL && stat(at, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* What is replaced or removed there holds a number, or nothing: no file of another kind is lost because
 * its name was given. `ours`: it belongs to this user, too. */
static int check_pid_file(const char *path, bool ours)
{
    char text[PID_BYTES + 1];
    struct stat found;
    ssize_t length = -1;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT) {
        return 0;
    }
    if (fd >= 0 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && (!ours || found.st_uid == geteuid())) {
        length = read(fd, text, PID_BYTES);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    text[length > 0 ? length : 0] = '\0';
    return length >= 0 && length < (ssize_t)PID_BYTES && strspn(text, " 0123456789\n") == (size_t)length
               ? 0
               : refuse_place(path, ours ? "pid file of this user" : "pid file", "--pid-file");
}

/* Before anything is written. */
static int check_pid_places(const char *path, const char *socket_path)
{
    char name[PATH_MAX], other[PATH_MAX];
    bool same = false;
    int exit_code;

    if (beside(path, "new", name) == NULL) {
        return ctl_fail_message(path, COLIBRI_ERR_ARGUMENT, "the path is too long");
    }
    if (socket_path != NULL) {
        same = same_place(path, socket_path) || same_place(name, socket_path) ||
               (beside(socket_path, "lock", other) != NULL && same_place(path, other)) ||
               (beside(socket_path, "new", other) != NULL && same_place(path, other));
    }
    if (same) {
        return ctl_fail_message(path, COLIBRI_ERR_ARGUMENT,
                                "that name is taken by the socket %s or what is made beside it: give another "
                                "--pid-file",
                                socket_path);
    }
    exit_code = check_pid_file(path, false);
    return exit_code != 0 ? exit_code : check_pid_file(name, true);
}

static int write_pid(const char *path)
{
    char name[PATH_MAX], text[PID_BYTES];
    int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
    int fd, exit_code;
    bool done;

    (void)unlink(beside(path, "new", name)); /* of a server that died; see check_pid_places */
    fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    done = fd >= 0 && fchmod(fd, 0644) == 0 && write(fd, text, (size_t)length) == length; /* whatever the umask is */
    done = fd >= 0 && close(fd) == 0 && done;
    if (done && rename(name, path) == 0) {
        return 0;
    }
    exit_code = ctl_fail_message(path, COLIBRI_ERR_IO, "cannot write the pid file: %s", strerror(errno));
    (void)unlink(name);
    return exit_code;
}

int ctl_listen_open(const char *command, const struct ctl_listen_values *values, int *fd)
{
    mode_t mode = 0;
    int exit_code = parse_mode(values->mode, &mode);

    if (exit_code == 0 && values->path != NULL && values->fd != 0) {
        exit_code = ctl_usage_error(command, "--socket and --socket-fd: give one of them");
    }
    if (exit_code == 0 && values->pid_file != NULL) {
        exit_code = check_pid_places(values->pid_file, values->path);
    }
    if (exit_code == 0) {
        *fd = (int)values->fd;
        exit_code = values->path != NULL ? make(values->path, mode, fd) : take(*fd);
    }
    if (exit_code == 0 && values->pid_file != NULL) {
        exit_code = write_pid(values->pid_file);
        if (exit_code != 0) {
            ctl_listen_remove(values);
        }
    }
    return exit_code;
}

const char *ctl_listen_folder(const struct ctl_listen_values *values, char folder[CTL_LISTEN_PATH_BYTES])
{
    const char *path = values->path != NULL ? values->path : values->pid_file;

    return path != NULL ? folder_of(path, folder, CTL_LISTEN_PATH_BYTES) : NULL;
}

void ctl_listen_remove(const struct ctl_listen_values *values)
{
    char name[PATH_MAX];

    if (values->path != NULL) {
        (void)unlink(beside(values->path, "new", name));
        (void)unlink(values->path);
    }
    if (values->pid_file != NULL) {
        (void)unlink(values->pid_file);
    }
}
