/* SPDX-License-Identifier: MIT */
#include "signature.h"

#include <string.h>

#ifdef CB_HAVE_SIGNATURES
#include <sodium/crypto_sign_ed25519.h>
#endif

#include "common.h"
#include "error.h"
#include "sha256.h"

#if !defined(CB_HAVE_SIGNATURES) && (defined(COLIBRI_SIGNED_ONLY) || defined(CB_PUBLIC_KEY))
#error "COLIBRI_SIGNED_ONLY and -Dpublic_key need a build that checks signatures: -Dsignatures=enabled"
#endif

/* Offsets in the section. */
enum {
    AT_RESERVED = 4,
    AT_KEY_ID = 8,
    AT_GOLDEN = 40,
    AT_SIGNATURE = 72,
    AT_CHECKSUM = 136
};
_Static_assert(AT_CHECKSUM + CB_HASH_BYTES == CB_SIGNATURE_SECTION_BYTES, "the checksum is last");

#ifdef CB_PUBLIC_KEY
static const uint8_t built_in[32] = {CB_PUBLIC_KEY};
#endif

#ifdef CB_HAVE_SIGNATURES
#define ID_CHARACTERS 16 /* of a key id in messages: enough to tell keys apart */

static void id_text(const uint8_t *id, char text[ID_CHARACTERS + 1])
{
    static const char digits[] = "0123456789abcdef";
    int i;

    for (i = 0; i < ID_CHARACTERS; i++)
        text[i] = digits[id[i / 2] >> (i % 2 != 0 ? 0 : 4) & 15];
    text[ID_CHARACTERS] = '\0';
}
#endif

int colibri_signature_support(uint8_t *key_id)
{
#ifdef CB_PUBLIC_KEY
    if (key_id != NULL)
        cb_sha256(built_in, sizeof built_in, key_id);
    return 2;
#else
    if (key_id != NULL)
        memset(key_id, 0, CB_HASH_BYTES);
#ifdef CB_HAVE_SIGNATURES
    return 1;
#else
    return 0;
#endif
#endif
}

int cb_trust_resolve(struct cb_trust *trust, const colibri_model_options *options,
                     colibri_error *error)
{
    memset(trust, 0, sizeof *trust);
    trust->key = options->public_key;
    /* Who names a key wants its signature: an attacker must not get round it by removing one. */
    trust->required = options->require_signature != 0 || options->public_key != NULL;
#ifdef CB_PUBLIC_KEY
    if (options->public_key != NULL && memcmp(options->public_key, built_in, sizeof built_in) != 0)
        return cb_deny(error, COLIBRI_ERR_SIGNATURE,
                       "option public_key differs from the key that this build trusts and no "
                       "option can replace; leave it out");
    trust->key = built_in;
#endif
#ifdef COLIBRI_SIGNED_ONLY
    trust->required = 1;
#endif
#ifndef CB_HAVE_SIGNATURES
    if (trust->required)
        return cb_deny(error, COLIBRI_ERR_SIGNATURE,
                       "a signature is asked for, but this build was made without libsodium and "
                       "cannot check one; build with -Dsignatures=enabled");
#endif
    if (trust->required && trust->key == NULL)
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "option require_signature needs a public_key: give one, or build with "
                       "-Dpublic_key");
    return 0;
}

#ifdef CB_HAVE_SIGNATURES
/*
 * sodium_init is not called: verifying takes neither random numbers nor an implementation chosen at
 * run time, and sodium_init waits for the kernel's random numbers, which a board may not have when it
 * starts.
 */
static int check_key(const uint8_t *section, const uint8_t *root, const uint8_t *key, uint64_t offset,
                     colibri_error *error)
{
    static const char domain[] = CB_SIGNATURE_DOMAIN;
    uint8_t message[sizeof domain + AT_SIGNATURE + CB_HASH_BYTES];
    uint8_t id[CB_HASH_BYTES];
    char theirs[ID_CHARACTERS + 1], ours[ID_CHARACTERS + 1];

    cb_sha256(key, 32, id);
    if (memcmp(id, section + AT_KEY_ID, sizeof id) != 0) {
        id_text(section + AT_KEY_ID, theirs);
        id_text(id, ours);
        return cb_fail(error, COLIBRI_ERR_SIGNATURE, (int64_t)(offset + AT_KEY_ID),
                       "signed by the key with id %s..., the trusted key has id %s...; sign the "
                       "model with that one",
                       theirs, ours);
    }
    memcpy(message, domain, sizeof domain);
    memcpy(message + sizeof domain, section, AT_SIGNATURE);
    memcpy(message + sizeof domain + AT_SIGNATURE, root, CB_HASH_BYTES);
    if (crypto_sign_ed25519_verify_detached(section + AT_SIGNATURE, message, sizeof message, key) != 0)
        return cb_fail(error, COLIBRI_ERR_SIGNATURE, (int64_t)(offset + AT_SIGNATURE),
                       "the signature is not one of the trusted key over this model's root: the "
                       "model was changed or signed wrongly; fetch it again from a source you trust");
    return 0;
}
#endif

int cb_signature_check(const struct cb_container *c, const struct cb_trust *trust,
                       struct cb_signed *out, colibri_error *error)
{
    const struct cb_section *s = &c->sections[CB_SECTION_SIGNATURE];
    uint8_t section[CB_SIGNATURE_SECTION_BYTES], checksum[CB_HASH_BYTES];
    uint32_t head[2]; /* algorithm, reserved */

    memset(out, 0, sizeof *out);
    if (((c->optional & CB_OPTIONAL_SIGNED) != 0) != (s->present != 0))
        return cb_fail(error, COLIBRI_ERR_SIGNATURE, 24,
                       "the optional feature `signed` and the signature section go together, only "
                       "one is there");
    if (!s->present) {
        if (trust->required)
            return cb_deny(error, COLIBRI_ERR_SIGNATURE,
                           "the model is not signed and only signed ones are accepted; sign it with "
                           "`colibri sign`");
        return 0;
    }
    if (s->size != sizeof section)
        return cb_fail(error, COLIBRI_ERR_SIGNATURE, (int64_t)s->offset,
                       "section signature has %llu bytes, must be %u", (unsigned long long)s->size,
                       CB_SIGNATURE_SECTION_BYTES);
    memcpy(section, cb_container_at(c, s->offset), sizeof section); /* what is checked cannot change any more */
    memcpy(head, section, sizeof head);
    if (head[0] != CB_SIGNATURE_ED25519)
        return cb_fail(error, COLIBRI_ERR_SIGNATURE, (int64_t)s->offset,
                       "signature algorithm %u is unknown, must be %u (ed25519)", head[0],
                       CB_SIGNATURE_ED25519);
    if (head[1] != 0)
        return cb_fail(error, COLIBRI_ERR_SIGNATURE, (int64_t)(s->offset + AT_RESERVED),
                       "the reserved field of the signature is %u, must be 0", head[1]);
    cb_sha256(section, AT_CHECKSUM, checksum);
    if (memcmp(checksum, section + AT_CHECKSUM, sizeof checksum) != 0)
        return cb_fail(error, COLIBRI_ERR_SIGNATURE, (int64_t)s->offset,
                       "section signature does not match its checksum: the file is damaged or was "
                       "changed; copy it again");
    out->state = COLIBRI_SIGNATURE_UNCHECKED;
    memcpy(out->key_id, section + AT_KEY_ID, sizeof out->key_id);
    memcpy(out->golden, section + AT_GOLDEN, sizeof out->golden);
#ifdef CB_HAVE_SIGNATURES
    if (trust->key != NULL) {
        int code = check_key(section, c->root, trust->key, s->offset, error);

        if (code != 0)
            return code;
        out->state = COLIBRI_SIGNATURE_VERIFIED;
    }
#endif
    return 0;
}
