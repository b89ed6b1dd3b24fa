/* SPDX-License-Identifier: MIT */
/* The signature section (docs/format.md, 7): ed25519 over the root, by a key that the device trusts.
 * The structure is checked by every build; the signature itself only with libsodium. */
#ifndef CB_SIGNATURE_H
#define CB_SIGNATURE_H

#include <stdint.h>

#include "colibri.h"
#include "format.h"

/* What an opener insists on: from the options and from what the build forces. */
struct cb_trust {
    const uint8_t *key; /* [32], NULL: signatures are not checked */
    uint32_t required;  /* a model without a signature is refused */
    uint32_t reserved;
};

/* What a file carries; zero bytes where it is not signed. */
struct cb_signed {
    uint32_t state; /* enum colibri_signature */
    uint8_t key_id[CB_HASH_BYTES];
    uint8_t golden[CB_HASH_BYTES]; /* SHA-256 of MODEL.golden.json; zero: not covered */
};

/* Option values win over nothing that the build forces; a check that this build cannot make is an error. */
int cb_trust_resolve(struct cb_trust *trust, const colibri_model_options *options,
                     colibri_error *error);
/* Behind the root check, in front of every parser: c->root is what was signed. */
int cb_signature_check(const struct cb_container *c, const struct cb_trust *trust,
                       struct cb_signed *out, colibri_error *error);

#endif
