/* SPDX-License-Identifier: MIT */
/* colibrictl doctor: the model's plan, and the storage that it lies on. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "doctor.h"
#include "output.h"
#include "verity.h"

#define NAME "doctor"
#define DIRECT_BYTES 4096u       /* extents begin and end on multiples of this */
#define LARGE_READ_AHEAD_KIB 512 /* mapped modes read this much around every page they miss */

/* ---- the plan ---------------------------------------------------------------------------- */

static const char *const residencies[] = { "auto", "resident", "stream", "mapped", "mapped-guarded" };

/* The kernel locks and counts whole pages, which may be larger than those of the file format. */
static uint64_t whole_pages(uint64_t bytes)
{
    long page = sysconf(_SC_PAGESIZE);
    uint64_t unit = page > 0 ? (uint64_t)page : DIRECT_BYTES;

    return (bytes + unit - 1) / unit * unit;
}

void ctl_doctor_plan(struct ctl_doctor *d)
{
    colibri_plan plan = { .struct_size = sizeof plan };
    colibri_report report = { .struct_size = sizeof report };
    colibri_error error = { .offset = -1 };
    colibri_model *model = NULL;
    struct ctl_check *check;
    uint64_t evictable;

    d->need_bytes = d->model.budget_bytes;
    if (d->path == NULL) {
        return;
    }
    d->model.never_lock = true; /* locks are probed on their own */
    d->model_exit_code = ctl_model_try(NAME, d->path, &d->model, &model, &error);
    if (d->model_exit_code != 0) {
        check = ctl_check_add(d, "model", CTL_ERROR, "%s",
                              error.message[0] != '\0' ? error.message : "see the message above");
        if (error.code == COLIBRI_ERR_BUDGET) {
            ctl_check_fix(check, "raise --budget, or lower --context, --batch or --threads");
        } else {
            ctl_check_fix(check, "docs/cli.md has a row for error %d",
                          (int)error.code);
        }
        return;
    }
    (void)colibri_model_plan(model, &plan);
    (void)colibri_model_report(model, &report);
    colibri_model_close(model);
    d->plan = plan;
    d->extents = report.extents;
    /* The experts of the mapped modes come and go: neither locked nor needed all at once. */
    evictable = plan.residency == COLIBRI_RESIDENCY_MAPPED ||
                        plan.residency == COLIBRI_RESIDENCY_MAPPED_GUARDED
                    ? plan.mapped_bytes - plan.trunk_mapped_bytes
                    : 0;
    d->need_bytes = plan.total_bytes - evictable;
    d->lock_bytes = whole_pages(plan.mapped_bytes - evictable) + whole_pages(plan.arena_bytes);
    (void)ctl_check_add(d, "model", CTL_OK,
                        "%s: %" PRIu64 " bytes planned, %" PRIu64 " mapped and %" PRIu64
                        " arena; all experts in memory take %" PRIu64 ", the least is %" PRIu64,
                        residencies[plan.residency <= COLIBRI_RESIDENCY_MAPPED_GUARDED ? plan.residency
                                                                                       : 0],
                        plan.total_bytes, plan.mapped_bytes, plan.arena_bytes, plan.recommended_bytes,
                        plan.floor_bytes);
}

/* ---- file system ------------------------------------------------------------------------- */

struct file_system {
    unsigned long magic;
    const char *name;
    const char *worry; /* NULL: none */
};

static const struct file_system file_systems[] = {
    { 0xEF53, "ext2/3/4", NULL },
    { 0xE0F5E1E2, "erofs", NULL },
    { 0x73717368, "squashfs", "no direct reads; an uncompressed erofs has them" },
    { 0xF2F52010, "f2fs", NULL },
    { 0x9123683E, "btrfs", NULL },
    { 0x58465342, "xfs", NULL },
    { 0x24051905, "ubifs", NULL },
    { 0x2011BAB0, "exfat", NULL },
    { 0x4D44, "vfat", "files end at 4 GiB, and an interrupted write can damage it" },
    { 0x794C7630, "overlayfs", NULL },
    { 0x01021994, "tmpfs", "the model takes RAM that the plan does not count" },
    { 0x858458F6, "ramfs", "the model takes RAM that the plan does not count" },
    { 0x6969, "nfs", "a read can wait for the network" },
    { 0x01021997, "9p", "a read can wait for another machine" },
    { 0x65735546, "fuse", "a read waits for another process" },
};

static void check_file_system(struct ctl_doctor *d, int fd)
{
    struct statfs facts;
    const struct file_system *found = NULL;
    struct ctl_check *check;

    if (fstatfs(fd, &facts) != 0) {
        (void)ctl_check_add(d, "file-system", CTL_INFO, "unknown: statfs: %s", strerror(errno));
        return;
    }
    for (size_t i = 0; i < sizeof file_systems / sizeof file_systems[0]; i++) {
        if (((unsigned long)facts.f_type & 0xFFFFFFFFul) == file_systems[i].magic) {
            found = &file_systems[i];
        }
    }
    if (found == NULL) {
        (void)ctl_check_add(d, "file-system", CTL_INFO, "type 0x%lx, which this program does not know",
                            (unsigned long)facts.f_type & 0xFFFFFFFFul);
    } else if (found->worry == NULL) {
        (void)ctl_check_add(d, "file-system", CTL_OK, "%s", found->name);
    } else {
        check = ctl_check_add(d, "file-system", CTL_WARNING, "%s: %s", found->name, found->worry);
        ctl_check_fix(check, "put the model on ext4 or an uncompressed erofs of its own");
    }
}

/* ---- reading ----------------------------------------------------------------------------- */

static int read_directly(const char *path, bool *short_read)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT), number = 0;
    void *memory;
    ssize_t got;

    *short_read = false;
    if (fd < 0) {
        return errno;
    }
    memory = mmap(NULL, DIRECT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        number = errno;
    } else {
        got = pread(fd, memory, DIRECT_BYTES, 0);
        number = got < 0 ? errno : 0;
        *short_read = got >= 0 && got < (ssize_t)DIRECT_BYTES;
        (void)munmap(memory, DIRECT_BYTES);
    }
    (void)close(fd);
    return number;
}

static void check_direct(struct ctl_doctor *d)
{
    bool short_read;
    int number = read_directly(d->path, &short_read);
    struct ctl_check *check;

    if (number == 0) {
        (void)ctl_check_add(d, "direct-io", CTL_OK, "works in pieces of %u bytes%s", DIRECT_BYTES,
                            short_read ? " (the file is shorter)" : "");
        return;
    }
    check = ctl_check_add(d, "direct-io", d->advice ? CTL_INFO : CTL_WARNING, "%s: streaming reads through "
                          "the page cache%s", strerror(number),
                          d->advice ? " and drops it behind itself" : ", and nothing can drop it");
    if (!d->advice) {
        ctl_check_fix(check, "put the model on ext4 or an uncompressed erofs, or see the advice check");
    }
}

static void check_read_ahead(struct ctl_doctor *d, int fd)
{
    struct stat facts;
    char path[128], text[CTL_DOCTOR_TEXT], name[64] = "?";
    const char *at;
    uint64_t kib;
    struct ctl_check *check;
    unsigned major, minor;

    if (fstat(fd, &facts) != 0) {
        (void)ctl_check_add(d, "read-ahead", CTL_INFO, "unknown: stat: %s", strerror(errno));
        return;
    }
    major = major(facts.st_dev);
    minor = minor(facts.st_dev);
    (void)snprintf(path, sizeof path, "/sys/dev/block/%u:%u/uevent", major, minor);
    if (ctl_doctor_read(d, path, text) == 0 && (at = strstr(text, "DEVNAME=")) != NULL) {
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at + 8, "\n") & 63, at + 8);
    }
    (void)snprintf(path, sizeof path, "/sys/dev/block/%u:%u/queue/read_ahead_kb", major, minor);
    if (!ctl_doctor_read_number(d, path, "", &kib)) { /* a partition has its disk's */
        (void)snprintf(path, sizeof path, "/sys/dev/block/%u:%u/../queue/read_ahead_kb", major, minor);
        if (!ctl_doctor_read_number(d, path, "", &kib)) {
            (void)ctl_check_add(d, "read-ahead", CTL_INFO, "unknown: device %u:%u has no queue in /sys",
                                major, minor);
            return;
        }
    }
    if (kib <= LARGE_READ_AHEAD_KIB) {
        (void)ctl_check_add(d, "read-ahead", CTL_OK, "%" PRIu64 " KiB on %s", kib, name);
        return;
    }
    check = ctl_check_add(d, "read-ahead", CTL_WARNING,
                          "%" PRIu64 " KiB on %s: --residency mapped reads that much around every page it "
                          "misses (resident and stream do not care)",
                          kib, name);
    ctl_check_fix(check, "echo 128 >%s%s", d->root, path);
}

/* ---- fs-verity --------------------------------------------------------------------------- */

static void check_verity(struct ctl_doctor *d, int fd)
{
    struct cb_verity_digest digest = { .algorithm = "unknown" };
    char text[CB_VERITY_TEXT_BYTES];

    switch (cb_verity_state(fd, &digest)) {
    case CB_VERITY_ON:
        cb_verity_text(&digest, text);
        (void)ctl_check_add(d, "fs-verity", CTL_OK, "%s", text);
        break;
    case CB_VERITY_OFF:
        (void)ctl_check_add(d, "fs-verity", CTL_INFO,
                            "this file is not sealed (colibrictl install --fs-verity): the engine's own "
                            "hashes guard it");
        break;
    case CB_VERITY_UNSUPPORTED:
        (void)ctl_check_add(d, "fs-verity", CTL_INFO,
                            "not in this kernel or file system: the engine's own hashes guard it");
        break;
    case CB_VERITY_ERROR:
        (void)ctl_check_add(d, "fs-verity", CTL_INFO, "unknown: %s", strerror(digest.error));
        break;
    }
}

void ctl_doctor_storage(struct ctl_doctor *d)
{
    int fd;

    if (d->path == NULL) {
        return;
    }
    fd = open(d->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        (void)ctl_check_add(d, "file-system", CTL_INFO, "unknown: open: %s", strerror(errno));
        return;
    }
    check_file_system(d, fd);
    check_direct(d);
    check_read_ahead(d, fd);
    check_verity(d, fd);
    (void)close(fd);
}
