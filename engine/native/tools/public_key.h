/* SPDX-License-Identifier: MIT */
/* An ed25519 public key from a file: 32 raw bytes, 64 hexadecimal digits, or PEM as openssl writes it. */
#ifndef CTL_PUBLIC_KEY_H
#define CTL_PUBLIC_KEY_H

#include <stdint.h>

#define CTL_PUBLIC_KEY_BYTES 32u

/* 0, or the exit code after printing why. */
int ctl_public_key_load(const char *path, uint8_t key[CTL_PUBLIC_KEY_BYTES]);

#endif
