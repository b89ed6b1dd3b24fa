/* SPDX-License-Identifier: MIT */
#include "public_key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "colibri.h"
#include "output.h"

#define MAX_FILE_BYTES 4096u
#define PREFIX_BYTES 12u
#define DER_BYTES (PREFIX_BYTES + CTL_PUBLIC_KEY_BYTES)
#define FORMS                                                                                    \
    "give a public key of 32 raw bytes, 64 hexadecimal digits, or PEM as "                       \
    "'openssl pkey -in key.pem -pubout' writes it"

static const char pem_begin[] = "-----BEGIN PUBLIC KEY-----";
static const char pem_end[] = "-----END PUBLIC KEY-----";

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool from_hex(const char *text, size_t length, uint8_t key[CTL_PUBLIC_KEY_BYTES])
{
    if (length != 2 * CTL_PUBLIC_KEY_BYTES) {
        return false;
    }
    for (size_t i = 0; i < CTL_PUBLIC_KEY_BYTES; i++) {
        int high = hex_value(text[2 * i]), low = hex_value(text[2 * i + 1]);

        if (high < 0 || low < 0) {
            return false;
        }
        key[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static int base64_value(char c)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c != '\0' ? strchr(alphabet, c) : NULL;

    return at != NULL ? (int)(at - alphabet) : -1;
}

/* Exactly DER_BYTES bytes: 59 digits and one '='; white space between them. */
static bool from_base64(const char *text, size_t length, uint8_t der[DER_BYTES])
{
    uint32_t bits = 0;
    size_t digits = 0, written = 0, padding = 0;

    for (size_t i = 0; i < length; i++) {
        int value = base64_value(text[i]);

        if (is_space(text[i])) {
            continue;
        }
        if (text[i] == '=') {
            padding++;
            continue;
        }
        if (value < 0 || padding > 0) {
            return false;
        }
        bits = bits << 6 | (uint32_t)value;
        digits++;
        if (digits % 4 != 1) {
            if (written == DER_BYTES) {
                return false;
            }
            der[written++] = (uint8_t)(bits >> (6 - 2 * ((digits - 1) % 4)));
        }
    }
    return written == DER_BYTES && padding == 1 && digits % 4 == 3 && (bits & 3u) == 0;
}

/* SubjectPublicKeyInfo of RFC 8410 has one encoding, so comparing its beginning is parsing it. */
static bool from_pem(const char *text, size_t length, uint8_t key[CTL_PUBLIC_KEY_BYTES])
{
    static const uint8_t prefix[PREFIX_BYTES] = { 0x30, 0x2a, 0x30, 0x05, 0x06, 0x03,
                                                  0x2b, 0x65, 0x70, 0x03, 0x21, 0x00 };
    size_t begin = sizeof pem_begin - 1, end = sizeof pem_end - 1;
    uint8_t der[DER_BYTES];

    if (length < begin + end || memcmp(text, pem_begin, begin) != 0 ||
        memcmp(text + length - end, pem_end, end) != 0 ||
        !from_base64(text + begin, length - begin - end, der) ||
        memcmp(der, prefix, sizeof prefix) != 0) {
        return false;
    }
    memcpy(key, der + PREFIX_BYTES, CTL_PUBLIC_KEY_BYTES);
    return true;
}

/* The bytes of a regular file of at most MAX_FILE_BYTES; 0 or the exit code. */
static int read_file(const char *path, char *data, size_t *length)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status;
    ssize_t done = 1;
    int number = errno;

    *length = 0;
    if (fd < 0) {
        return ctl_fail_message(path, COLIBRI_ERR_OPEN, "cannot open the public key: %s",
                                strerror(number));
    }
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size > (off_t)MAX_FILE_BYTES) {
        (void)close(fd);
        return ctl_fail_message(path, COLIBRI_ERR_ARGUMENT,
                                "not a file of at most %u bytes; " FORMS, MAX_FILE_BYTES);
    }
    while (done > 0 && *length < MAX_FILE_BYTES) {
        done = read(fd, data + *length, MAX_FILE_BYTES - *length);
        *length += done > 0 ? (size_t)done : 0;
    }
    number = errno;
    (void)close(fd);
    return done < 0 ? ctl_fail_message(path, COLIBRI_ERR_IO, "cannot read the public key: %s",
                                       strerror(number))
                    : 0;
}

int ctl_public_key_load(const char *path, uint8_t key[CTL_PUBLIC_KEY_BYTES])
{
    char data[MAX_FILE_BYTES];
    const char *text = data;
    size_t length;
    int exit_code = read_file(path, data, &length);

    if (exit_code != 0) {
        return exit_code;
    }
    if (length == CTL_PUBLIC_KEY_BYTES) {
        memcpy(key, data, CTL_PUBLIC_KEY_BYTES);
        return 0;
    }
    for (; length > 0 && is_space(*text); length--) {
        text++;
    }
    for (; length > 0 && is_space(text[length - 1]); length--) {
    }
    if (from_hex(text, length, key) || from_pem(text, length, key)) {
        return 0;
    }
    return ctl_fail_message(path, COLIBRI_ERR_ARGUMENT, "holds no ed25519 public key; " FORMS);
}
