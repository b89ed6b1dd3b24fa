/* SPDX-License-Identifier: MIT */
#include "placing.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "colibri.h"
#include "log.h"
#include "output.h"

#define PERMISSION_BITS 0666u /* neither execution nor set-user-id: a model is data */

/* ---- signals ----------------------------------------------------------------------------- */

/* What a handler removes: set while the folder is locked and the names are ours. */
static struct {
    volatile sig_atomic_t active;
    int folder;
    const char *names[2];
} watched;

static const int stop_signals[] = { SIGINT, SIGTERM, SIGHUP };
#define STOP_SIGNALS (sizeof stop_signals / sizeof stop_signals[0])

/* Only async-signal-safe calls. Verifying a large model inside the library takes long and cannot be
 * cancelled, so the process ends here. */
static void on_stop(int number)
{
    if (watched.active) {
        (void)unlinkat(watched.folder, watched.names[0], 0);
        (void)unlinkat(watched.folder, watched.names[1], 0);
        ctl_log_text(LOG_ERR, "interrupted; nothing was changed (error -62 cancelled)");
    }
    (void)number;
    _exit(1);
}

static void watch(const struct ctl_place *place)
{
    struct sigaction action;

    watched.folder = place->folder;
    watched.names[0] = place->temporary;
    watched.names[1] = place->golden_temporary;
    watched.active = 1;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_stop;
    (void)sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < STOP_SIGNALS; i++) {
        (void)sigaction(stop_signals[i], &action, NULL);
    }
    action.sa_handler = SIG_IGN; /* a file size limit is an error of write, not the end */
    (void)sigaction(SIGXFSZ, &action, NULL);
}

static void hold_signals(int how)
{
    sigset_t set;

    (void)sigemptyset(&set);
    for (size_t i = 0; i < STOP_SIGNALS; i++) {
        (void)sigaddset(&set, stop_signals[i]);
    }
    (void)sigprocmask(how, &set, NULL);
}

/* ---- names ------------------------------------------------------------------------------- */

void ctl_golden_name(const char *name, char *out)
{
    const char *dot = strrchr(name, '.');
    size_t length = dot != NULL && dot != name ? (size_t)(dot - name) : strlen(name);

    (void)snprintf(out, CTL_NAME_BYTES, "%.*s%s", (int)length, name, CTL_GOLDEN_SUFFIX);
}

bool ctl_join(const char *folder, const char *name, char *out, size_t capacity)
{
    int length = snprintf(out, capacity, "%s/%s", folder, name);

    return length >= 0 && (size_t)length < capacity;
}

static int split(struct ctl_place *place, const char *target, bool has_golden)
{
    const char *slash = strrchr(target, '/');
    const char *name = slash != NULL ? slash + 1 : target;
    size_t folder = slash != NULL ? (size_t)(slash - target) : 1;

    if (*name == '\0' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return ctl_fail_message(target, COLIBRI_ERR_ARGUMENT,
                                "names a folder; give the name of the file in it too");
    }
    if (strlen(name) > CTL_MAX_NAME || folder >= sizeof place->folder_path) {
        return ctl_fail_message(target, COLIBRI_ERR_ARGUMENT,
                                "the name has %zu bytes, its folder %zu; the limits are %u and %zu",
                                strlen(name), folder, CTL_MAX_NAME, sizeof place->folder_path - 1);
    }
    if (slash == NULL) {
        (void)strcpy(place->folder_path, ".");
    } else if (slash == target) {
        (void)strcpy(place->folder_path, "/");
    } else {
        memcpy(place->folder_path, target, folder);
        place->folder_path[folder] = '\0';
    }
    (void)strcpy(place->name, name);
    (void)snprintf(place->temporary, CTL_NAME_BYTES, ".%.*s.installing", (int)CTL_MAX_NAME, name);
    if (!has_golden) {
        return 0;
    }
    ctl_golden_name(name, place->golden);
    (void)snprintf(place->golden_temporary, CTL_NAME_BYTES, ".%.*s.golden.installing",
                   (int)CTL_MAX_NAME, name);
    (void)snprintf(place->golden_replaced, CTL_NAME_BYTES, ".%.*s.golden.replaced", (int)CTL_MAX_NAME, name);
    return 0;
}

/* ---- the folder -------------------------------------------------------------------------- */

static int open_folder(struct ctl_place *place, const char *target)
{
    place->folder = open(place->folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (place->folder < 0 || access(place->folder_path, W_OK) != 0) {
        return ctl_fail_message(target, COLIBRI_ERR_OPEN, "cannot write into its folder: %s", strerror(errno));
    }
    if (flock(place->folder, LOCK_EX | LOCK_NB) != 0) {
        int number = errno;

        return ctl_fail_message(target, number == EWOULDBLOCK ? COLIBRI_ERR_BUSY : COLIBRI_ERR_IO,
                                number == EWOULDBLOCK ? "another colibrictl writes into this folder (%s); wait for it"
                                                      : "the folder cannot be locked (%s); use a local file system",
                                strerror(number));
    }
    return 0;
}

/* What is at `name` may be replaced when it is nothing or an ordinary file. */
static int check_replaced(const struct ctl_place *place, const char *target, const char *name,
                          struct stat *found, bool *exists)
{
    *exists = false;
    if (fstatat(place->folder, name, found, AT_SYMLINK_NOFOLLOW) != 0) {
        return errno == ENOENT ? 0
                               : ctl_fail_message(target, COLIBRI_ERR_OPEN, "cannot look at %s: %s", name,
                                                  strerror(errno));
    }
    *exists = true;
    if (!S_ISREG(found->st_mode)) {
        return ctl_fail_message(target, COLIBRI_ERR_ARGUMENT,
                                "%s is there and is a %s; only an ordinary file is replaced", name,
                                S_ISDIR(found->st_mode)   ? "folder"
                                : S_ISLNK(found->st_mode) ? "symbolic link"
                                                          : "device or the like");
    }
    return 0;
}

/* Under the lock such a file belongs to nobody. Only an ordinary one is removed: nothing else was made
 * by an install. */
static int remove_leftover(const struct ctl_place *place, const char *target, const char *name)
{
    struct stat found;
    bool exists;
    int exit_code = check_replaced(place, target, name, &found, &exists);

    if (exit_code != 0 || !exists) {
        return exit_code;
    }
    if (unlinkat(place->folder, name, 0) != 0) {
        return ctl_fail_message(target, COLIBRI_ERR_IO, "cannot remove %s, left by an interrupted run: %s",
                                name, strerror(errno));
    }
    ctl_log(LOG_NOTICE, "removed %s (%lld bytes), left by an interrupted run", name,
            (long long)found.st_size);
    return 0;
}

int ctl_output_differs(const char *command, const char *output, const char *const *inputs, size_t count)
{
    struct stat out, in;

    if (output == NULL || stat(output, &out) != 0) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (inputs[i] != NULL && strcmp(inputs[i], "-") != 0 && stat(inputs[i], &in) == 0 &&
            in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
            return ctl_fail_message(command, COLIBRI_ERR_ARGUMENT,
                                    "the output %s is the same file as %s, which is read; give another name",
                                    output, inputs[i]);
        }
    }
    return 0;
}

static int look(struct ctl_place *place, const char *target, bool has_golden)
{
    int exit_code;

    memset(place, 0, sizeof *place);
    place->folder = -1;
    place->target = target;
    exit_code = split(place, target, has_golden);
    if (exit_code == 0) {
        exit_code = open_folder(place, target);
    }
    if (exit_code == 0) {
        exit_code = check_replaced(place, target, place->name, &place->old, &place->replaces);
    }
    return exit_code;
}

int ctl_place_check(const char *target)
{
    struct ctl_place place = { .folder = -1 };
    int exit_code = target == NULL || strcmp(target, "-") == 0 ? 0 : look(&place, target, false);

    if (place.folder >= 0) {
        (void)close(place.folder);
    }
    return exit_code;
}

int ctl_place_open(struct ctl_place *place, const char *target, bool has_golden, mode_t mode)
{
    struct stat golden;
    int exit_code = look(place, target, has_golden);

    place->mode = mode;
    if (exit_code == 0 && has_golden) {
        exit_code = check_replaced(place, target, place->golden, &golden, &place->has_golden);
    }
    if (exit_code == 0) {
        exit_code = remove_leftover(place, target, place->temporary);
    }
    if (exit_code == 0 && has_golden) {
        exit_code = remove_leftover(place, target, place->golden_temporary);
    }
    if (exit_code == 0 && has_golden) {
        exit_code = check_replaced(place, target, place->golden_replaced, &golden, &place->has_replaced);
    }
    if (exit_code == 0) {
        watch(place);
    } else if (place->folder >= 0) {
        (void)close(place->folder);
        place->folder = -1;
    }
    return exit_code;
}

int ctl_place_check_space(const struct ctl_place *place, const char *target, uint64_t bytes)
{
    struct statvfs system;
    uint64_t unused;

    if (fstatvfs(place->folder, &system) != 0) {
        return ctl_fail_message(target, COLIBRI_ERR_IO, "cannot ask for free space: %s", strerror(errno));
    }
    if ((system.f_flag & ST_RDONLY) != 0) {
        return ctl_fail_message(target, COLIBRI_ERR_IO, "its file system is mounted read-only");
    }
    unused = (uint64_t)system.f_bavail * system.f_frsize;
    if (unused < bytes) {
        return ctl_fail_message(target, COLIBRI_ERR_IO,
                                "%llu bytes are free, installing needs %llu (the old model stays until the "
                                "new one is verified); free %llu more",
                                (unsigned long long)unused, (unsigned long long)bytes,
                                (unsigned long long)(bytes - unused));
    }
    return 0;
}

int ctl_place_create(const struct ctl_place *place, const char *temporary, uint64_t bytes, int *fd)
{
    *fd = openat(place->folder, temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (*fd < 0) {
        return ctl_fail_message(place->target, COLIBRI_ERR_OPEN, "cannot make a file beside it: %s", strerror(errno));
    }
    /* Reserve the space at once where the file system can: a full disk shows now, not at the end. */
    if (bytes > 0 && fallocate(*fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS) {
        return ctl_fail_message(place->target, COLIBRI_ERR_IO, "cannot reserve %llu bytes: %s",
                                (unsigned long long)bytes, strerror(errno));
    }
    return 0;
}

int ctl_place_own(const struct ctl_place *place, const char *thing, int fd)
{
    mode_t mode = place->replaces ? place->old.st_mode & PERMISSION_BITS : place->mode;
    struct stat now;

    if (place->replaces && fstat(fd, &now) == 0 &&
        (now.st_uid != place->old.st_uid || now.st_gid != place->old.st_gid) &&
        fchown(fd, place->old.st_uid, place->old.st_gid) != 0) {
        ctl_log(LOG_WARNING, "%s: cannot keep owner %u and group %u of the old file: %s", thing,
                (unsigned)place->old.st_uid, (unsigned)place->old.st_gid, strerror(errno));
    }
    if (fchmod(fd, mode) != 0) {
        return ctl_fail_message(thing, COLIBRI_ERR_IO, "cannot set permissions %03o: %s", (unsigned)mode,
                                strerror(errno));
    }
    return 0;
}

int ctl_place_sync(const char *thing, int fd)
{
    return fsync(fd) != 0 ? ctl_fail_message(thing, COLIBRI_ERR_IO, "cannot bring it to the disk: %s", strerror(errno))
                          : 0;
}

int ctl_place_settle(const struct ctl_place *place, const char *thing, int fd)
{
    int exit_code = ctl_place_own(place, thing, fd);

    return exit_code != 0 ? exit_code : ctl_place_sync(thing, fd);
}

static int move(const struct ctl_place *place, const char *from, const char *to)
{
    return renameat(place->folder, from, place->folder, to) == 0 && fsync(place->folder) == 0 ? 0 : errno;
}

int ctl_place_settle_replaced(struct ctl_place *place, const char *target, bool theirs)
{
    int number;

    place->has_replaced = false;
    if (!theirs || place->has_golden) {
        return remove_leftover(place, target, place->golden_replaced);
    }
    number = move(place, place->golden_replaced, place->golden);
    if (number != 0) {
        return ctl_fail_message(target, COLIBRI_ERR_IO, "cannot name %s %s again: %s", place->golden_replaced,
                                place->golden, strerror(number));
    }
    place->has_golden = true;
    ctl_log(LOG_NOTICE, "named %s %s again, set aside by an interrupted run", place->golden_replaced, place->golden);
    return 0;
}

enum placed { AS_BEFORE, WITHOUT_GOLDEN, PLACED };

/* Until the model is replaced the old golden results wait under another name. */
static int put_model(const struct ctl_place *place, enum placed *placed)
{
    bool moved = place->golden[0] != '\0' &&
                 renameat(place->folder, place->golden, place->folder, place->golden_replaced) == 0;
    bool none = !moved && (place->golden[0] == '\0' || errno == ENOENT);
    int number = none || (moved && fsync(place->folder) == 0) ? 0 : errno;

    if (number == 0 && renameat(place->folder, place->temporary, place->folder, place->name) != 0) {
        number = errno;
    }
    *placed = number == 0                                                     ? PLACED
              : !moved || move(place, place->golden_replaced, place->golden) == 0 ? AS_BEFORE
                                                                              : WITHOUT_GOLDEN;
    return number;
}

/* The model is there, whatever becomes of its golden results. */
static int put_golden(const struct ctl_place *place, bool with_golden)
{
    int number = fsync(place->folder) == 0 ? 0 : errno;

    if (place->golden[0] != '\0' && unlinkat(place->folder, place->golden_replaced, 0) != 0 && errno != ENOENT) {
        number = errno;
    }
    return number == 0 && with_golden ? move(place, place->golden_temporary, place->golden) : number;
}

int ctl_place_commit(const struct ctl_place *place, bool with_golden)
{
    static const char *const now[] = { "nothing was changed; try again",
                                       "the old golden results have another name now, with .replaced at its end",
                                       "the new file has its name; run the command again" };
    enum placed placed;
    int number;

    hold_signals(SIG_BLOCK);
    number = put_model(place, &placed);
    if (number == 0) {
        number = put_golden(place, with_golden);
    }
    watched.active = 0;
    hold_signals(SIG_UNBLOCK);
    return number == 0 ? 0
                       : ctl_fail_message(place->target, COLIBRI_ERR_IO, "cannot put the new files in place: %s: %s",
                                          strerror(number), now[placed]);
}

void ctl_place_close(struct ctl_place *place)
{
    if (place->folder < 0) {
        return;
    }
    (void)unlinkat(place->folder, place->temporary, 0);
    (void)unlinkat(place->folder, place->golden_temporary, 0); /* without a name: nothing */
    watched.active = 0;
    (void)close(place->folder); /* unlocks */
    place->folder = -1;
}
