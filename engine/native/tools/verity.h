/* SPDX-License-Identifier: MIT */
/*
 * fs-verity: the kernel hashes a file once, makes it read-only for good, and checks every block that
 * anyone reads from then on against that hash tree. It protects a model between our own checks; whom
 * the model comes from it does not know.
 */
#ifndef CTL_VERITY_H
#define CTL_VERITY_H

#include <stdbool.h>
#include <stdint.h>

enum cb_verity {
    CB_VERITY_ON,          /* the kernel verifies every read of this file */
    CB_VERITY_OFF,         /* the file system could, this file is not sealed */
    CB_VERITY_UNSUPPORTED, /* no fs-verity in this kernel or on this file system */
    CB_VERITY_ERROR        /* the kernel's answer is in `error` */
};

struct cb_verity_digest {
    const char *algorithm; /* "sha256", "sha512", "unknown" */
    uint32_t bytes;
    uint8_t digest[64];
    int error; /* errno of CB_VERITY_ERROR */
};

/* `digest` may be NULL; it is filled when the answer is CB_VERITY_ON. */
enum cb_verity cb_verity_state(int fd, struct cb_verity_digest *digest);
enum cb_verity cb_verity_of_path(const char *path, struct cb_verity_digest *digest);
/* Seals a file that nobody has open for writing (SHA-256, blocks of one page): 0 or errno. fd is
 * read-only. Takes as long as reading the file. */
int cb_verity_enable(int fd);
/* Whether an errno says that kernel or file system lack it (ENOPKG: the kernel's SHA-256), not that it
 * failed. */
bool cb_verity_is_missing(int error);
/* "on", "off", "unsupported", "error" */
const char *cb_verity_name(enum cb_verity state);

/* Room for the text of a digest: algorithm, colon, hexadecimal, zero. */
#define CB_VERITY_TEXT_BYTES 144u
/* "sha256:<hex>", as fs-verity's own tools print it. */
void cb_verity_text(const struct cb_verity_digest *digest, char text[CB_VERITY_TEXT_BYTES]);

#endif
