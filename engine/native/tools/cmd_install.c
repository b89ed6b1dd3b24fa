/* SPDX-License-Identifier: MIT */
/* colibrictl install: replace a model file so that there is always an old or a new one, verified. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../src/spec.h"
#include "commands.h"
#include "golden.h"
#include "log.h"
#include "model.h"
#include "options.h"
#include "output.h"
#include "placing.h"
#include "verity.h"

#define NAME "install"
#define COPY_BYTES 262144u
#define MODEL_MODE 0644u /* of a new one */
#define PROGRESS_SECONDS 2.0
#define ROOT_BYTES 32u
#define HEX_DIGITS 64u

enum verity_wish { VERITY_AUTO, VERITY_REQUIRE, VERITY_OFF };

struct install_values {
    const char *public_key;
    bool signed_only, no_golden, json, quiet;
    uint32_t verity; /* enum verity_wish */
};

#define AT(field) offsetof(struct install_values, field)

static const struct ctl_option install_options[] = {
    { "public-key", 'k', CTL_TEXT, AT(public_key), 0, 0, "FILE", NULL,
      "ed25519 key to trust: a model that it did not sign is refused" },
    { "signed-only", 0, CTL_FLAG, AT(signed_only), 0, 0, NULL, NULL,
      "refuse a model without a signature of the trusted key" },
    { "fs-verity", 0, CTL_CHOICE, AT(verity), 0, 0, "auto|require|off", "auto",
      "let the kernel verify every later read: where it can, or refuse, or not" },
    { "no-golden", 0, CTL_FLAG, AT(no_golden), 0, 0, NULL, NULL,
      "leave out the golden results that lie beside SRC" },
    { "json", 'j', CTL_FLAG, AT(json), 0, 0, NULL, NULL, "one JSON object on stdout" },
    { "quiet", 'q', CTL_FLAG, AT(quiet), 0, 0, NULL, NULL, "no progress on stderr" },
};

static const char install_notes[] =
    "Copies SRC beside DST, verifies every byte of the copy as read back, brings it to the disk and\n"
    "renames it to DST. Killed or cut off at any point, DST is the old model or the new one; what is\n"
    "left over goes with the next install. Golden results (SRC's name with .golden.json) come along.\n"
    "DST names a file; its owner, group and permissions are kept, a new one gets 0644.\n"
    "\n"
    "Examples:\n"
    "  colibrictl install /media/usb/new.colibri /data/models/model.colibri\n"
    "  colibrictl install new.colibri /data/model.colibri --public-key /etc/colibri/key.pem\n";

struct job {
    const char *source, *target;
    struct install_values values;
    struct ctl_model_values model_values;
    struct ctl_place place;
    int in;
    struct stat in_state;
    uint8_t root[ROOT_BYTES];   /* as read from SRC */
    uint8_t sha256[ROOT_BYTES]; /* of the whole file */
    char *golden;               /* text of the golden results, or NULL */
    size_t golden_bytes;
    bool golden_stays; /* the same ones are there, and SRC or another model has them too */
    colibri_report report;
    enum cb_verity verity;
    struct cb_verity_digest verity_digest;
    double last_progress;
};

static void progress(struct job *job, const char *what, uint64_t done)
{
    double now = ctl_seconds();

    if (!job->values.quiet && now - job->last_progress >= PROGRESS_SECONDS) {
        job->last_progress = now;
        ctl_log(LOG_INFO, "install: %s %llu of %llu MiB", what, (unsigned long long)(done >> 20),
                      (unsigned long long)((uint64_t)job->in_state.st_size >> 20));
    }
}

/* ---- the source -------------------------------------------------------------------------- */

static int open_source(struct job *job)
{
    job->in = open(job->source, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (job->in < 0) {
        return ctl_fail_message(job->source, COLIBRI_ERR_OPEN, "cannot open: %s", strerror(errno));
    }
    if (fstat(job->in, &job->in_state) != 0 || !S_ISREG(job->in_state.st_mode)) {
        return ctl_fail_message(job->source, COLIBRI_ERR_OPEN, "not a regular file");
    }
    if (job->in_state.st_size < (off_t)CB_HEADER_BYTES) {
        return ctl_fail_message(job->source,
                                job->in_state.st_size == 0 ? COLIBRI_ERR_EMPTY : COLIBRI_ERR_TRUNCATED,
                                "has %lld bytes, the header of a model alone has %u",
                                (long long)job->in_state.st_size, CB_HEADER_BYTES);
    }
    return 0;
}

/* The whole text of the golden file of SRC, if there is one. */
static int read_golden(struct job *job)
{
    char path[4096 + CTL_NAME_BYTES];
    const char *const inputs[] = { path };
    colibri_error error = { .offset = -1 };
    int exit_code;

    if (!ctl_golden_path(job->source, path, sizeof path)) {
        return 0;
    }
    exit_code = ctl_output_differs(NAME, job->target, inputs, 1);
    if (exit_code != 0 || job->values.no_golden) {
        return exit_code;
    }
    return ctl_golden_read(path, &job->golden, &job->golden_bytes, &error) == 0 ? 0 : ctl_fail(path, &error);
}

/* The value of "root" in golden results: written first by their writer, looked for as text. */
static bool names_root(const char *golden, size_t bytes, const uint8_t root[ROOT_BYTES])
{
    static const char key[] = "\"root\"";
    char hex[CTL_HEX_BYTES];
    const char *at = memmem(golden, bytes, key, sizeof key - 1);
    const char *end = golden + bytes;

    if (at == NULL) {
        return false;
    }
    for (at += sizeof key - 1; at < end && strchr(" \t\r\n:", *at) != NULL; at++) {
    }
    ctl_hex(root, hex);
    return (size_t)(end - at) > HEX_DIGITS + 1 && *at == '"' && memcmp(at + 1, hex, HEX_DIGITS) == 0 &&
           at[1 + HEX_DIGITS] == '"';
}

/* ---- golden results of two models ---------------------------------------------------------- */

static int cannot_tell(const struct job *job, const char *name)
{
    return ctl_fail_message(job->target, COLIBRI_ERR_OPEN,
                            "cannot read %s to see which model the golden results there belong to: %s; let this "
                            "user read it, or give another folder",
                            name, strerror(errno));
}

/* Whether the golden results are those of the file `name` of the folder, by the root in its header. */
static int are_of(const struct job *job, const char *name, const char *golden, size_t bytes, bool *are)
{
    int fd = openat(job->place.folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    uint8_t root[ROOT_BYTES];

    *are = fd >= 0 && pread(fd, root, sizeof root, CB_ROOT_OFFSET) == (ssize_t)sizeof root &&
           names_root(golden, bytes, root);
    if (fd < 0) { /* nothing, a socket, a link that leads nowhere: no model */
        return errno == ENOENT || errno == ENXIO || errno == ELOOP ? 0 : cannot_tell(job, name);
    }
    (void)close(fd);
    return 0;
}

/* Names that differ in their last suffix alone have the same golden file. The one that is there goes with
 * the model that is replaced, and is not taken from another one, be it a copy of that model. */
static int check_owner(struct job *job, const char *golden, size_t bytes)
{
    bool theirs = false;
    int exit_code = 0;
    DIR *folder = opendir(job->place.folder_path);
    const struct dirent *entry;
    char beside[CTL_NAME_BYTES], name[CTL_NAME_BYTES] = "";

    if (folder == NULL) {
        return cannot_tell(job, job->place.folder_path);
    }
    while (exit_code == 0 && !theirs && (entry = readdir(folder)) != NULL) {
        ctl_golden_name(entry->d_name, beside);
        if (strcmp(beside, job->place.golden) == 0 && strcmp(entry->d_name, job->place.name) != 0) {
            exit_code = are_of(job, entry->d_name, golden, bytes, &theirs);
            (void)snprintf(name, sizeof name, "%s", entry->d_name);
        }
    }
    (void)closedir(folder);
    if (exit_code != 0) {
        return exit_code;
    }
    job->golden_stays = theirs && job->golden != NULL && job->golden_bytes == bytes &&
                        memcmp(job->golden, golden, bytes) == 0;
    if (job->golden_stays) {
        job->place.golden[0] = '\0'; /* whatever happens, they are not touched */
    }
    return !theirs || job->golden_stays
               ? 0
               : ctl_fail_message(job->target, COLIBRI_ERR_ARGUMENT,
                                  "its golden results would replace %s, those of %s, which lies beside it: give a "
                                  "name that differs before its last suffix, or another folder",
                                  job->place.golden, name);
}

/* The text of the golden file `name` of the folder, which the caller frees. */
static int read_there(const struct job *job, const char *name, char **golden, size_t *bytes)
{
    char path[sizeof job->place.folder_path + CTL_NAME_BYTES];
    colibri_error error = { .offset = -1 };

    (void)ctl_join(job->place.folder_path, name, path, sizeof path);
    if (ctl_golden_read(path, golden, bytes, &error) != 0 && error.code != COLIBRI_ERR_ARGUMENT) {
        return cannot_tell(job, name);
    }
    return 0; /* what is too large, too: of no model, as any other text */
}

/* A cut between the two renames leaves the golden results of the old model under another name. */
static int settle_replaced(struct job *job)
{
    char *golden = NULL;
    size_t bytes = 0;
    bool theirs = false;
    int exit_code = job->place.has_replaced ? read_there(job, job->place.golden_replaced, &golden, &bytes) : 0;

    if (exit_code == 0 && golden != NULL && job->place.replaces) {
        exit_code = are_of(job, job->place.name, golden, bytes, &theirs);
    }
    if (exit_code == 0 && job->place.has_replaced) {
        exit_code = ctl_place_settle_replaced(&job->place, job->target, theirs);
    }
    free(golden);
    return exit_code;
}

static int check_golden_there(struct job *job)
{
    char *golden = NULL;
    size_t bytes = 0;
    int exit_code = read_there(job, job->place.golden, &golden, &bytes);

    if (exit_code == 0 && golden != NULL && bytes <= CB_MAX_GOLDEN_BYTES) { /* others are of no model */
        exit_code = check_owner(job, golden, bytes);
    }
    free(golden);
    return exit_code;
}

/* ---- the copy ---------------------------------------------------------------------------- */

static int write_all(const char *thing, int fd, const char *data, size_t length)
{
    colibri_error error;

    return ctl_write(fd, data, length, &error) == 0 ? 0 : ctl_fail(thing, &error);
}

static bool source_changed(const struct job *job)
{
    struct stat now;

    return fstat(job->in, &now) != 0 || now.st_size != job->in_state.st_size ||
           now.st_mtim.tv_sec != job->in_state.st_mtim.tv_sec ||
           now.st_mtim.tv_nsec != job->in_state.st_mtim.tv_nsec ||
           now.st_ctim.tv_sec != job->in_state.st_ctim.tv_sec ||
           now.st_ctim.tv_nsec != job->in_state.st_ctim.tv_nsec;
}

static int copy_bytes(struct job *job, int out)
{
    static char buffer[COPY_BYTES];
    uint64_t done = 0, size = (uint64_t)job->in_state.st_size;
    colibri_sha256 hash;
    int exit_code = 0;

    colibri_sha256_init(&hash);
    while (exit_code == 0 && done < size) {
        size_t wanted = size - done < COPY_BYTES ? (size_t)(size - done) : COPY_BYTES;
        ssize_t got = pread(job->in, buffer, wanted, (off_t)done);

        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return ctl_fail_message(job->source, COLIBRI_ERR_IO, "cannot read: %s", strerror(errno));
        }
        if (got == 0) {
            break;
        }
        if (done <= CB_ROOT_OFFSET && done + (uint64_t)got >= CB_ROOT_OFFSET + ROOT_BYTES) {
            memcpy(job->root, buffer + (CB_ROOT_OFFSET - done), ROOT_BYTES);
        }
        colibri_sha256_update(&hash, buffer, (size_t)got);
        exit_code = write_all(job->target, out, buffer, (size_t)got);
        done += (uint64_t)got;
        progress(job, "copied", done);
    }
    colibri_sha256_final(&hash, job->sha256);
    if (exit_code == 0 && (done != size || source_changed(job))) {
        exit_code = ctl_fail_message(job->source, COLIBRI_ERR_IO,
                                     "changed while it was read; install it when nobody writes it any more");
    }
    return exit_code;
}

static int copy_model(struct job *job)
{
    int out = -1;
    int exit_code = ctl_place_create(&job->place, job->place.temporary, (uint64_t)job->in_state.st_size, &out);

    if (exit_code == 0) {
        (void)posix_fadvise(job->in, 0, 0, POSIX_FADV_SEQUENTIAL);
        exit_code = copy_bytes(job, out);
    }
    if (exit_code == 0) {
        exit_code = ctl_place_settle(&job->place, job->target, out);
    }
    if (out >= 0) {
        /* What is verified comes from the disk, not from the memory it was written from. */
        (void)posix_fadvise(out, 0, 0, POSIX_FADV_DONTNEED);
        (void)posix_fadvise(job->in, 0, 0, POSIX_FADV_DONTNEED);
        if (close(out) != 0 && exit_code == 0) {
            exit_code = ctl_fail_message(job->target, COLIBRI_ERR_IO, "cannot close the copy: %s", strerror(errno));
        }
    }
    return exit_code;
}

static int verify_copy(struct job *job)
{
    char path[sizeof job->place.folder_path + CTL_NAME_BYTES];
    colibri_model_info info = { .struct_size = sizeof info };
    colibri_error error = { .offset = -1 };
    colibri_model *model = NULL;
    int exit_code;

    if (!ctl_join(job->place.folder_path, job->place.temporary, path, sizeof path)) {
        return ctl_fail_message(job->target, COLIBRI_ERR_ARGUMENT, "the path is too long");
    }
    if (!job->values.quiet && job->in_state.st_size >= 64 << 20) {
        ctl_log(LOG_INFO, "install: verifying %lld MiB", (long long)job->in_state.st_size >> 20);
    }
    exit_code = ctl_model_try(NAME, path, &job->model_values, &model, &error);
    if (error.code != 0) { /* the copy is what was read */
        exit_code = ctl_fail(job->source, &error);
    }
    if (exit_code == 0) {
        (void)colibri_model_info_get(model, &info);
        job->report.struct_size = sizeof job->report;
        (void)colibri_model_report(model, &job->report);
        if (memcmp(info.root, job->root, sizeof info.root) != 0) {
            exit_code = ctl_fail_message(job->target, COLIBRI_ERR_IO, "the copy is not what was read from %s",
                                         job->source);
        }
    }
    colibri_model_close(model);
    return exit_code;
}

/* Golden results of this very model, and, when its signature covers them, unchanged. */
static int check_golden(const struct job *job)
{
    if (job->golden == NULL) {
        return 0;
    }
    if (!names_root(job->golden, job->golden_bytes, job->root)) {
        return ctl_fail_message(job->source, COLIBRI_ERR_ARGUMENT,
                                "the golden results beside it are of another model; fetch both again, or leave "
                                "them out with --no-golden");
    }
    if (!ctl_golden_is_signed(job->golden, job->golden_bytes, &job->report)) {
        return ctl_fail_message(job->source, COLIBRI_ERR_SIGNATURE,
                                "the golden results beside it are not those that were signed with it; fetch both "
                                "again");
    }
    return 0;
}

static int copy_golden(struct job *job)
{
    int out = -1;
    int exit_code;

    if (job->golden == NULL || job->golden_stays) {
        return 0;
    }
    exit_code = ctl_place_create(&job->place, job->place.golden_temporary, 0, &out);
    if (exit_code == 0) {
        exit_code = write_all(job->place.golden, out, job->golden, job->golden_bytes);
    }
    if (exit_code == 0) {
        exit_code = ctl_place_settle(&job->place, job->place.golden, out);
    }
    if (out >= 0) {
        (void)close(out);
    }
    return exit_code;
}

/* The copy is sealed before it gets its name: no reader ever sees it unsealed. */
static int seal(struct job *job)
{
    struct stat st;
    int fd, number;

    job->verity = CB_VERITY_UNSUPPORTED;
    fd = openat(job->place.folder, job->place.temporary, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return ctl_fail_message(job->target, COLIBRI_ERR_OPEN, "cannot open the copy: %s", strerror(errno));
    }
    number = 0;
    if (job->values.verity != VERITY_OFF) {
        /* the kernel asks for a file that may be written, also when the model is 0444 */
        bool opened = fstat(fd, &st) == 0 && (st.st_mode & S_IWUSR) == 0 &&
                      fchmod(fd, (st.st_mode & 07777) | S_IWUSR) == 0;

        number = cb_verity_enable(fd);
        if (opened && fchmod(fd, st.st_mode & 07777) != 0 && number == 0) {
            number = errno;
        }
    }
    if (number == 0 && job->values.verity != VERITY_OFF && fsync(fd) != 0) {
        number = errno;
    }
    job->verity = cb_verity_state(fd, &job->verity_digest);
    (void)close(fd);
    if (number != 0 && (job->values.verity == VERITY_REQUIRE ||
                        !cb_verity_is_missing(number))) {
        return ctl_fail_message(job->target, COLIBRI_ERR_IO,
                                "fs-verity cannot be enabled: %s; it needs CONFIG_FS_VERITY, CRYPTO_SHA256 and "
                                "a file system made for it (mkfs.ext4 -O verity), or give --fs-verity off",
                                strerror(number));
    }
    return 0;
}

/* ---- the command ------------------------------------------------------------------------- */

static void print_result(const struct job *job)
{
    char root[CTL_HEX_BYTES], sha256[CTL_HEX_BYTES], key[CTL_HEX_BYTES];
    char digest[CB_VERITY_TEXT_BYTES] = "";
    const char *golden = job->golden != NULL ? "installed" : "none";
    const char *signature = ctl_signature_name(job->report.signature);
    bool is_signed = job->report.signature != COLIBRI_SIGNATURE_NONE;

    ctl_hex(job->root, root);
    ctl_hex(job->sha256, sha256);
    ctl_hex(job->report.key_id, key);
    if (job->verity == CB_VERITY_ON) {
        cb_verity_text(&job->verity_digest, digest);
    }
    if (job->values.json) {
        (void)printf("{\"installed\": ");
        ctl_print_json_text(job->target);
        (void)printf(", \"bytes\": %lld, \"root\": \"%s\", \"sha256\": \"%s\", \"signature\": \"%s\", "
                     "\"key_id\": \"%s\", \"golden\": \"%s\", \"fs_verity\": \"%s\", \"fs_verity_digest\": "
                     "\"%s\"}\n",
                     (long long)job->in_state.st_size, root, sha256, signature, is_signed ? key : "", golden,
                     cb_verity_name(job->verity), digest);
        return;
    }
    (void)printf("%s: installed\nbytes: %lld\nroot: %s\nsha256: %s\nsignature: %s%s%s\ngolden: %s\n"
                 "fs_verity: %s%s%s\n",
                 job->target, (long long)job->in_state.st_size, root, sha256, signature,
                 is_signed ? " key_id=" : "", is_signed ? key : "", golden, cb_verity_name(job->verity),
                 *digest != '\0' ? " " : "", digest);
}

static int check_target(struct job *job)
{
    uint64_t bytes = (uint64_t)job->in_state.st_size;
    uint64_t tree = job->values.verity == VERITY_OFF ? 0 : bytes / 100; /* fs-verity: 1 hash per block */
    int exit_code;

    if (job->place.replaces && job->place.old.st_dev == job->in_state.st_dev &&
        job->place.old.st_ino == job->in_state.st_ino) {
        return ctl_fail_message(job->target, COLIBRI_ERR_ARGUMENT,
                                "is the same file as %s; give the name that the copy shall have", job->source);
    }
    exit_code = settle_replaced(job);
    exit_code = exit_code != 0 ? exit_code : check_golden_there(job);
    return exit_code != 0 ? exit_code
                          : ctl_place_check_space(&job->place, job->target, bytes + job->golden_bytes + tree);
}

static int install(struct job *job)
{
    int exit_code = open_source(job);

    job->last_progress = ctl_seconds();
    if (exit_code == 0) {
        exit_code = read_golden(job);
    }
    if (exit_code == 0) {
        exit_code = ctl_place_open(&job->place, job->target, true, MODEL_MODE);
    }
    if (exit_code != 0) {
        return exit_code;
    }
    exit_code = check_target(job);
    if (exit_code == 0) {
        exit_code = copy_model(job);
    }
    if (exit_code == 0) {
        exit_code = verify_copy(job);
    }
    if (exit_code == 0) {
        exit_code = check_golden(job);
    }
    if (exit_code == 0) {
        exit_code = copy_golden(job);
    }
    if (exit_code == 0) {
        exit_code = seal(job);
    }
    if (exit_code == 0) {
        exit_code = ctl_place_commit(&job->place, job->golden != NULL && !job->golden_stays);
    }
    ctl_place_close(&job->place);
    if (exit_code == 0) {
        print_result(job);
        exit_code = ctl_finish_stdout();
    }
    return exit_code;
}

int ctl_command_install(int argc, char *const *argv)
{
    struct job job = { .in = -1 };
    const struct ctl_group groups[] = {
        { "Options", install_options, sizeof install_options / sizeof install_options[0], &job.values },
    };
    const struct ctl_command command = {
        .name = NAME,
        .synopsis = "SRC DST [options]",
        .summary = "Replace a model file: copy, verify, bring to the disk, rename.",
        .notes = install_notes,
        .groups = groups,
        .group_count = 1,
        .positional_names = { "SRC", "DST" },
        .positionals_min = 2,
        .positionals_max = 2,
    };
    const char *positionals[CTL_MAX_POSITIONALS];
    int code = ctl_parse(&command, argc, argv, positionals);
    int exit_code;

    if (code != 0) {
        return ctl_parsed(code);
    }
    ctl_model_values_for_verifying(&job.model_values);
    job.model_values.public_key_file = job.values.public_key;
    job.model_values.signed_only = job.values.signed_only;
    job.source = positionals[0];
    job.target = positionals[1];
    exit_code = install(&job);
    if (job.in >= 0) {
        (void)close(job.in);
    }
    free(job.golden);
    return exit_code;
}
