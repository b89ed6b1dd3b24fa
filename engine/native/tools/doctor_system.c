/* SPDX-License-Identifier: MIT */
/* colibrictl doctor: kernel, pages, mappings, kernel configuration, CPUs, sandbox. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "../src/platform.h"
#include "doctor.h"
#include "isas.h"

#define OLDEST_MAJOR 5 /* readahead of MADV_WILLNEED on files is dependable from here on */
#define OLDEST_MINOR 10
#define OTHER_MAPPINGS 256u /* of the program itself: C library, stacks, arena */

/* ---- kernel ------------------------------------------------------------------------------ */

static void release_of(const struct ctl_doctor *d, char release[CTL_DOCTOR_TEXT])
{
    struct utsname name;

    release[0] = '\0';
    if (ctl_doctor_read(d, "/proc/sys/kernel/osrelease", release) != 0 && uname(&name) == 0) {
        (void)snprintf(release, CTL_DOCTOR_TEXT, "%s", name.release);
    }
}

static void check_kernel(struct ctl_doctor *d)
{
    char release[CTL_DOCTOR_TEXT];
    uint64_t major = 0, minor = 0;
    struct ctl_check *check;
    const char *dot;

    release_of(d, release);
    dot = strchr(release, '.');
    if (!ctl_doctor_number(release, "", &major) || dot == NULL ||
        !ctl_doctor_number(dot + 1, "", &minor)) {
        (void)ctl_check_add(d, "kernel", CTL_INFO, "unknown version '%.64s'", release);
        return;
    }
    if (major > OLDEST_MAJOR || (major == OLDEST_MAJOR && minor >= OLDEST_MINOR)) {
        (void)ctl_check_add(d, "kernel", CTL_OK, "Linux %.64s", release);
        return;
    }
    check = ctl_check_add(d, "kernel", CTL_WARNING, "Linux %.64s is older than %d.%d", release,
                          OLDEST_MAJOR, OLDEST_MINOR);
    ctl_check_fix(check, "update the kernel; until then trust the probes of lock, advice and direct-io "
                         "and measure with colibrictl test");
}

static void check_pages(struct ctl_doctor *d)
{
    size_t bytes = cb_page_bytes();

    (void)ctl_check_add(d, "page-size", bytes == 4096 ? CTL_OK : CTL_INFO, "%zu bytes%s", bytes,
                        bytes == 4096 ? "" : "; what is mapped or locked is rounded up to it");
}

static void check_mappings(struct ctl_doctor *d)
{
    uint64_t limit = 0, need = (uint64_t)d->extents + OTHER_MAPPINGS;
    struct ctl_check *check;

    if (!ctl_doctor_read_number(d, "/proc/sys/vm/max_map_count", "", &limit)) {
        (void)ctl_check_add(d, "max-map-count", CTL_INFO,
                            "unknown: /proc/sys/vm/max_map_count cannot be read");
    } else if (need > limit) {
        check = ctl_check_add(d, "max-map-count", CTL_WARNING,
                              "%" PRIu64 "; --residency mapped-guarded needs %" PRIu64, limit, need);
        ctl_check_fix(check, "sysctl vm.max_map_count=%" PRIu64 ", or another residency", need);
    } else {
        (void)ctl_check_add(d, "max-map-count", CTL_OK, "%" PRIu64, limit);
    }
}

static void check_huge_pages(struct ctl_doctor *d)
{
    char text[CTL_DOCTOR_TEXT];
    int number = ctl_doctor_read(d, "/sys/kernel/mm/transparent_hugepage/enabled", text);
    char *begin = number == 0 ? strchr(text, '[') : NULL;
    char *end = begin != NULL ? strchr(begin, ']') : NULL;

    if (end == NULL) {
        (void)ctl_check_add(d, "huge-pages", CTL_INFO, "not available (%s)",
                            number != 0 ? strerror(number) : "no choice in [brackets]");
        return;
    }
    *end = '\0';
    (void)ctl_check_add(d, "huge-pages", strcmp(begin + 1, "never") == 0 ? CTL_INFO : CTL_OK,
                        "transparent huge pages: %.32s", begin + 1);
}

/* ---- kernel configuration ------------------------------------------------------------------ */

static const char *const wanted_options[] = { "CONFIG_MMU", "CONFIG_ADVISE_SYSCALLS",
                                              "CONFIG_SECCOMP_FILTER", "CONFIG_MEMCG" };

#define WANTED (sizeof wanted_options / sizeof wanted_options[0])

static void scan_config(FILE *file, bool found[WANTED])
{
    char line[256];

    while (fgets(line, sizeof line, file) != NULL) {
        for (size_t i = 0; i < WANTED; i++) {
            size_t length = strlen(wanted_options[i]);

            if (strncmp(line, wanted_options[i], length) == 0 && strcmp(line + length, "=y\n") == 0) {
                found[i] = true;
            }
        }
    }
}

/* A packed configuration is for kconfig_check.py: this program carries no decompressor. */
static void check_kernel_config(struct ctl_doctor *d)
{
    char release[CTL_DOCTOR_TEXT], path[512], missing[128] = "";
    bool found[WANTED] = { false };
    struct ctl_check *check;
    size_t used = 0;
    FILE *file;

    release_of(d, release);
    (void)snprintf(path, sizeof path, "%s/boot/config-%.128s", d->root, release);
    file = fopen(path, "re");
    if (file == NULL) {
        (void)snprintf(path, sizeof path, "%s/proc/config.gz", d->root);
        (void)ctl_check_add(d, "kernel-config", CTL_INFO,
                            access(path, R_OK) == 0
                                ? "packed in /proc/config.gz; configs/kernel/kconfig_check.py reads it"
                                : "not readable; the probes of this report tell what works");
        return;
    }
    scan_config(file, found);
    (void)fclose(file);
    for (size_t i = 0; i < WANTED; i++) {
        if (!found[i]) {
            used += (size_t)snprintf(missing + used, sizeof missing - used, " %s", wanted_options[i]);
        }
    }
    if (used == 0) {
        (void)ctl_check_add(d, "kernel-config", CTL_OK, "/boot/config-%.64s has what is needed", release);
        return;
    }
    check = ctl_check_add(d, "kernel-config", CTL_WARNING, "/boot/config-%.64s lacks%s", release,
                          missing);
    ctl_check_fix(check, "set them to y; configs/kernel/colibri.cfg has the reason of each");
}

/* ---- CPUs -------------------------------------------------------------------------------- */

static void check_isa(struct ctl_doctor *d)
{
    const char *available = colibri_isas_available(), *at = available;
    char isa[CTL_ISA_BYTES], best[CTL_ISA_BYTES] = "none";
    struct ctl_check *check;
    bool wanted = d->model.isa == NULL;

    while (ctl_next_isa(&at, isa)) {
        wanted = wanted || strcmp(isa, d->model.isa) == 0;
        memcpy(best, isa, sizeof best);
    }
    if (!wanted) {
        check = ctl_check_add(d, "isa", CTL_ERROR, "%.32s is not available; compiled: %.64s; available: %.64s",
                              d->model.isa, colibri_isas_compiled(), available);
        ctl_check_fix(check, "leave out --isa, or give one that is available");
        return;
    }
    (void)ctl_check_add(d, "isa", strcmp(best, "ref") == 0 ? CTL_WARNING : CTL_OK,
                        "compiled: %.64s; available: %.64s; selected: %.32s", colibri_isas_compiled(),
                        available, d->model.isa != NULL ? d->model.isa : best);
}

static void check_cpus(struct ctl_doctor *d)
{
    unsigned cpus = cb_cpu_count();
    unsigned threads = d->model.threads != 0 ? d->model.threads : cpus < 4 ? cpus : 4;
    char membership[512], mount[512];
    struct ctl_check *check;
    int64_t grant;

    if (d->plan.struct_size != 0) {
        threads = d->plan.threads;
    }
    (void)snprintf(membership, sizeof membership, "%s/proc/self/cgroup", d->root);
    (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", d->root);
    grant = cb_group_cpus(membership, mount);
    if (threads > cpus) {
        check = ctl_check_add(d, "cpus", CTL_WARNING, "%u threads on %u CPUs wait for each other", threads,
                              cpus);
        ctl_check_fix(check, "--threads %u", cpus);
    } else if (grant >= 0 && grant < (int64_t)threads * 1000) {
        check = ctl_check_add(d, "cpus", CTL_WARNING,
                              "a control group grants %" PRId64 ".%" PRId64 " CPUs to %u threads", grant / 1000,
                              grant % 1000 / 100, threads);
        ctl_check_fix(check, "--threads %" PRId64 ", or CPUQuota=%u%% in the unit",
                      grant < 1000 ? 1 : grant / 1000, threads * 100);
    } else {
        (void)ctl_check_add(d, "cpus", CTL_OK, "%u CPUs for %u threads", cpus, threads);
    }
}

static void check_governor(struct ctl_doctor *d)
{
    char text[CTL_DOCTOR_TEXT];
    struct ctl_check *check;

    if (ctl_doctor_read(d, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", text) != 0) {
        (void)ctl_check_add(d, "cpu-governor", CTL_INFO, "none: the speed is fixed or hidden");
    } else if (strcmp(text, "powersave") == 0) {
        check = ctl_check_add(d, "cpu-governor", CTL_WARNING, "powersave: the lowest speed");
        ctl_check_fix(check, "echo schedutil >/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    } else {
        (void)ctl_check_add(d, "cpu-governor", CTL_OK, "%.32s", text);
    }
}

/* ---- sandbox ----------------------------------------------------------------------------- */

static void check_sandbox(struct ctl_doctor *d)
{
    static const char *const modes[] = { "off", "strict", "filter" };
    int seccomp = prctl(PR_GET_SECCOMP, 0, 0, 0, 0), privileges;

    if (seccomp < 0 || seccomp > 2) {
        (void)ctl_check_add(d, "seccomp", CTL_INFO, "not in this kernel: the sandbox cannot be closed");
    } else {
        (void)ctl_check_add(d, "seccomp", CTL_OK, "supported; this process: %s", modes[seccomp]);
    }
    privileges = prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0);
    (void)ctl_check_add(d, "no-new-privs", privileges < 0 ? CTL_INFO : CTL_OK, "%s",
                        privileges < 0 ? strerror(errno) : privileges > 0 ? "on" : "off");
}

void ctl_doctor_system(struct ctl_doctor *d)
{
    check_kernel(d);
    check_kernel_config(d);
    check_pages(d);
    check_mappings(d);
    check_huge_pages(d);
    check_isa(d);
    check_cpus(d);
    check_governor(d);
    check_sandbox(d);
}
