/* SPDX-License-Identifier: MIT */
/*
 * Disks that fail on demand, in the guest: the few device mapper requests that the tests need, so that
 * the image carries no dmsetup. Linked without a C library, like probe.c:
 *
 *   dm create NAME TARGET...   makes the device and prints its number ("254:0")
 *   dm load NAME TARGET...     exchanges its table while it is in use
 *   dm remove NAME
 *
 * TARGET is one line of a table: "START SECTORS TYPE PARAMETERS", e.g. "0 2048 linear /dev/vda 0".
 * Errors are printed as "dm: REQUEST: ERRNO", exit code 1. AArch64 only.
 */
#include <linux/ioctl.h> /* before its user */

#include <linux/dm-ioctl.h>

#include "freestanding.h"

#define SYS_ioctl 29
#define SYS_openat 56
#define SYS_exit_group 94
#define AT_FDCWD -100
#define O_RDWR 2
#define BUFFER_BYTES 4096

static char buffer[BUFFER_BYTES] __attribute__((aligned(8)));
static long control;

static void fail(const char *what, long number)
{
    print("dm: ");
    print(what);
    print(": ");
    print_number((unsigned long)-number);
    print("\n");
    (void)call(SYS_exit_group, 1, 0, 0, 0, 0, 0);
}

static void copy(char *to, const char *from, unsigned long size)
{
    while (size-- > 0) {
        *to++ = *from++;
    }
}

/* A fresh request about a device. */
static struct dm_ioctl *request(const char *name, unsigned flags)
{
    struct dm_ioctl *head = (struct dm_ioctl *)(void *)buffer;

    for (unsigned i = 0; i < BUFFER_BYTES; i++) {
        buffer[i] = 0;
    }
    head->version[0] = DM_VERSION_MAJOR;
    head->data_size = BUFFER_BYTES;
    head->data_start = sizeof *head;
    head->flags = flags;
    if (length(name) >= sizeof head->name) {
        fail("name", -36); /* ENAMETOOLONG */
    }
    copy(head->name, name, length(name));
    return head;
}

static void send(unsigned long code, const char *what)
{
    long result = call(SYS_ioctl, control, (long)code, (long)buffer, 0, 0, 0);

    if (result < 0) {
        fail(what, result);
    }
}

static const char *skip_spaces(const char *text)
{
    while (*text == ' ') {
        text++;
    }
    return text;
}

/* Loads a table of `count` lines, then makes it the live one. */
static void load(const char *name, char **lines, long count)
{
    struct dm_ioctl *head = request(name, DM_READONLY_FLAG);
    unsigned long at = sizeof *head;

    head->target_count = (unsigned)count;
    for (long i = 0; i < count; i++) {
        struct dm_target_spec *target = (struct dm_target_spec *)(void *)&buffer[at];
        const char *text = skip_spaces(lines[i]);
        unsigned long type = 0;

        if (at + sizeof *target + length(text) + 16 > BUFFER_BYTES) {
            fail("table", -7); /* E2BIG */
        }
        target->sector_start = take_number(&text);
        text = skip_spaces(text);
        target->length = take_number(&text);
        text = skip_spaces(text);
        for (; text[type] != '\0' && text[type] != ' ' && type < sizeof target->target_type - 1; type++) {
            target->target_type[type] = text[type];
        }
        text = skip_spaces(text + type);
        copy(&buffer[at + sizeof *target], text, length(text));
        target->next = (unsigned)((sizeof *target + length(text) + 8) / 8 * 8);
        at += target->next;
    }
    send(DM_TABLE_LOAD, "load");
    /* Reads that wait in the old table need not end first: the new one takes them. */
    (void)request(name, DM_SUSPEND_FLAG | DM_SKIP_LOCKFS_FLAG | DM_NOFLUSH_FLAG);
    send(DM_DEV_SUSPEND, "suspend");
    (void)request(name, 0);
    send(DM_DEV_SUSPEND, "resume");
}

/* stack: argc, then the argument pointers */
__attribute__((used)) static void dm(long *stack)
{
    long argc = stack[0];
    char **argv = (char **)&stack[1];
    struct dm_ioctl *head;

    control = call(SYS_openat, AT_FDCWD, (long)"/dev/mapper/control", O_RDWR, 0, 0, 0);
    if (control < 0) {
        fail("/dev/mapper/control", control);
    }
    if (argc >= 4 && equal(argv[1], "create")) {
        head = request(argv[2], 0);
        send(DM_DEV_CREATE, "create");
        print_number(head->dev >> 8 & 0xfff);
        print(":");
        print_number((head->dev & 0xff) | (head->dev >> 12 & 0xfff00));
        print("\n");
        load(argv[2], argv + 3, argc - 3);
    } else if (argc >= 4 && equal(argv[1], "load")) {
        load(argv[2], argv + 3, argc - 3);
    } else if (argc == 3 && equal(argv[1], "remove")) {
        (void)request(argv[2], 0);
        send(DM_DEV_REMOVE, "remove");
    } else {
        print("usage: dm create|load NAME TARGET... | remove NAME\n");
        (void)call(SYS_exit_group, 2, 0, 0, 0, 0, 0);
    }
    (void)call(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

START(dm);
