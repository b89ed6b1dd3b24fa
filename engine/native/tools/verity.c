/* SPDX-License-Identifier: MIT */
#include "verity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* The kernel's interface, written out: cross tool chains with older headers lack linux/fsverity.h. */
#define ALGORITHM_SHA256 1u
#define ALGORITHM_SHA512 2u

struct enable_arguments {
    uint32_t version; /* 1 */
    uint32_t hash_algorithm;
    uint32_t block_size;
    uint32_t salt_size;
    uint64_t salt;
    uint32_t signature_size;
    uint32_t reserved1;
    uint64_t signature;
    uint64_t reserved2[11];
};
_Static_assert(sizeof(struct enable_arguments) == 128, "as the kernel has it");

struct measure_arguments {
    uint16_t algorithm;
    uint16_t size; /* in: room; out: bytes of the digest */
    uint8_t digest[64];
};

#define ENABLE_VERITY _IOW('f', 133, struct enable_arguments)
/* The kernel's struct ends in a flexible array: the room does not count in the number. */
#define MEASURE_VERITY _IOC(_IOC_READ | _IOC_WRITE, 'f', 134, 4)

bool cb_verity_is_missing(int error)
{
    /* EINVAL: blocks of another size than a page, before Linux 6.3 */
    return error == ENOTTY || error == EOPNOTSUPP || error == ENOSYS || error == ENOPKG ||
           error == EINVAL;
}

enum cb_verity cb_verity_state(int fd, struct cb_verity_digest *digest)
{
    struct measure_arguments arguments = { .size = sizeof arguments.digest };

    if (digest != NULL) {
        memset(digest, 0, sizeof *digest);
        digest->algorithm = "unknown";
    }
    if (ioctl(fd, MEASURE_VERITY, &arguments) != 0) {
        int error = errno;

        if (digest != NULL) {
            digest->error = error;
        }
        if (error == ENODATA) {
            return CB_VERITY_OFF;
        }
        return cb_verity_is_missing(error) ? CB_VERITY_UNSUPPORTED : CB_VERITY_ERROR;
    }
    if (digest != NULL && arguments.size <= sizeof digest->digest) {
        digest->algorithm = arguments.algorithm == ALGORITHM_SHA256   ? "sha256"
                            : arguments.algorithm == ALGORITHM_SHA512 ? "sha512"
                                                                      : "unknown";
        digest->bytes = arguments.size;
        memcpy(digest->digest, arguments.digest, arguments.size);
    }
    return CB_VERITY_ON;
}

enum cb_verity cb_verity_of_path(const char *path, struct cb_verity_digest *digest)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    enum cb_verity state = CB_VERITY_ERROR;

    *digest = (struct cb_verity_digest){ .error = errno, .algorithm = "unknown" };
    if (fd >= 0) {
        state = cb_verity_state(fd, digest);
        (void)close(fd);
    }
    return state;
}

int cb_verity_enable(int fd)
{
    struct enable_arguments arguments = { .version = 1, .hash_algorithm = ALGORITHM_SHA256 };
    long page = sysconf(_SC_PAGESIZE);

    arguments.block_size = page > 0 ? (uint32_t)page : 4096u; /* every kernel takes its own page size */
    return ioctl(fd, ENABLE_VERITY, &arguments) == 0 ? 0 : errno;
}

const char *cb_verity_name(enum cb_verity state)
{
    static const char *const names[] = { "on", "off", "unsupported", "error" };

    return names[state];
}

void cb_verity_text(const struct cb_verity_digest *digest, char text[CB_VERITY_TEXT_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    size_t at = (size_t)snprintf(text, CB_VERITY_TEXT_BYTES, "%s:", digest->algorithm);

    for (uint32_t i = 0; i < digest->bytes; i++) {
        text[at++] = digits[digest->digest[i] >> 4];
        text[at++] = digits[digest->digest[i] & 15];
    }
    text[at] = '\0';
}
