/* SPDX-License-Identifier: MIT */
#include "golden.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "placing.h"

#define HASH_BYTES 32u

/* ---- the file ---------------------------------------------------------------------------- */

_Static_assert(CB_MAX_GOLDEN_BYTES == 1 << 20, "a message below says so");

bool ctl_golden_path(const char *model, char *path, size_t capacity)
{
    const char *slash = strrchr(model, '/');
    size_t folder = slash != NULL ? (size_t)(slash - model) + 1 : 0;
    char name[CTL_NAME_BYTES];
    int length;

    ctl_golden_name(model + folder, name);
    length = snprintf(path, capacity, "%.*s%s", (int)folder, model, name);
    return length >= 0 && (size_t)length < capacity;
}

int ctl_golden_read(const char *path, char **text, size_t *bytes, colibri_error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t done = -1;
    int number = errno;

    *text = NULL;
    *bytes = 0;
    error->offset = -1;
    error->code = 0;
    if (fd < 0) {
        error->code = errno == ENOENT ? 0 : COLIBRI_ERR_OPEN;
    } else {
        *text = malloc(CB_MAX_GOLDEN_BYTES + 1); /* pages are taken as they are filled */
        do { /* a pipe that nobody writes is empty, a folder cannot be read, a device is too large */
            done = *text != NULL ? read(fd, *text + *bytes, CB_MAX_GOLDEN_BYTES + 1 - *bytes) : -1;
            *bytes += done > 0 ? (size_t)done : 0;
        } while (done > 0);
        number = errno;
        error->code = done < 0 ? COLIBRI_ERR_IO : *bytes > CB_MAX_GOLDEN_BYTES ? COLIBRI_ERR_ARGUMENT : 0;
    }
    if (error->code != 0) {
        (void)snprintf(error->message, sizeof error->message,
                       "cannot read the golden results: %s; leave them out with --no-golden",
                       error->code == COLIBRI_ERR_ARGUMENT ? "they have more than 1 MiB" : strerror(number));
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    errno = number;
    return error->code;
}

bool ctl_golden_is_signed(const char *text, size_t bytes, const colibri_report *report)
{
    static const uint8_t none[HASH_BYTES];
    uint8_t found[HASH_BYTES];
    colibri_sha256 hash;

    colibri_sha256_init(&hash);
    colibri_sha256_update(&hash, text, bytes);
    colibri_sha256_final(&hash, found);
    return memcmp(report->golden_sha256, none, HASH_BYTES) == 0 ||
           memcmp(report->golden_sha256, found, HASH_BYTES) == 0;
}

/* ---- JSON -------------------------------------------------------------------------------- */

/* After the first refusal the text ends where it stands: nothing more is taken, every loop ends. */
struct reader {
    const char *text;
    size_t at, end;
    int32_t *ids; /* where the next one goes */
    colibri_error *error;
};

static void refuse(struct reader *r, const char *what)
{
    if (r->error->code == 0) {
        r->error->code = COLIBRI_ERR_ARGUMENT;
        (void)snprintf(r->error->message, sizeof r->error->message, "golden results, byte %zu: %s", r->at, what);
    }
    r->end = r->at;
}

/* Takes the character behind white space, or leaves it. */
static bool take(struct reader *r, char wanted)
{
    while (r->at < r->end && memchr(" \t\r\n", r->text[r->at], 4) != NULL) {
        r->at++;
    }
    if (r->at == r->end || r->text[r->at] != wanted) {
        return false;
    }
    r->at++;
    return true;
}

static void expect(struct reader *r, char wanted)
{
    char what[] = "' ' should stand here";

    what[1] = wanted;
    if (!take(r, wanted)) {
        refuse(r, what);
    }
}

/* A string as it is written: nobody needs those that have escapes. Its length; 0 after a refusal. */
static size_t take_string(struct reader *r, const char **string)
{
    static const char letters[] = "0123456789abcdefABCDEF";
    size_t start, hex = 0; /* digits that an escape still needs */

    expect(r, '"');
    start = r->at;
    *string = r->text + start;
    while (r->at < r->end) {
        char c = r->text[r->at++];
        bool escaped = hex == 0 && c == '\\' && r->at < r->end;

        if (hex == 0 && c == '"') {
            return r->at - 1 - start;
        }
        if (hex > 0 ? memchr(letters, c, sizeof letters - 1) == NULL : (unsigned char)c < 0x20) {
            break;
        }
        hex -= hex > 0;
        if (escaped) {
            c = r->text[r->at++];
            hex = c == 'u' ? 4 : 0;
            if (memchr("\"\\/bfnrtu", c, 9) == NULL) {
                break;
            }
        }
    }
    refuse(r, "no JSON string");
    return 0;
}

/* Digits only; who asks for it expects a separator behind them. 0 after a refusal. */
static uint32_t take_number(struct reader *r, uint32_t low, uint32_t high)
{
    uint64_t number = 0;
    size_t start;

    (void)take(r, ' '); /* which is white space: nothing is taken but that */
    for (start = r->at; r->at < r->end && r->at - start < 10; r->at++) {
        char c = r->text[r->at];

        if (c < '0' || c > '9') {
            break;
        }
        number = number * 10 + (uint64_t)(c - '0');
    }
    if (r->at == start || (r->text[start] == '0' && r->at - start > 1) || number < low || number > high) {
        refuse(r, "no whole number in its range");
        return 0;
    }
    return (uint32_t)number;
}

static const int32_t *take_ids(struct reader *r, uint32_t *count)
{
    const int32_t *ids = r->ids;

    expect(r, '[');
    do {
        int32_t id = (int32_t)take_number(r, 0, CB_MAX_VOCABULARY - 1);

        if (r->error->code == 0) {
            *r->ids++ = id;
        }
    } while (take(r, ','));
    expect(r, ']');
    *count = (uint32_t)(r->ids - ids);
    return ids;
}

static const char *take_hash(struct reader *r)
{
    const char *string;

    /* behind the digits there is at least the quote that ends the string */
    if (take_string(r, &string) != CTL_GOLDEN_DIGITS || strspn(string, "0123456789abcdef") != CTL_GOLDEN_DIGITS) {
        refuse(r, "no hash of 64 digits 0-9a-f");
    }
    return string;
}

static void take_bool(struct reader *r)
{
    const char *rest = take(r, 't') ? "rue" : "alse";

    if (*rest == 'a') {
        expect(r, 'f');
    }
    for (; *rest != '\0'; rest++, r->at++) {
        if (r->at == r->end || r->text[r->at] != *rest) {
            refuse(r, "neither true nor false");
            return;
        }
    }
}

/* ---- objects ----------------------------------------------------------------------------- */

/* One of `count` words; when `seen` is given, each may be taken once. `count` after a refusal. */
static size_t take_word(struct reader *r, const char *const *words, size_t count, uint32_t *seen)
{
    const char *string;
    size_t length = take_string(r, &string);

    for (size_t i = 0; i < count; i++) {
        if (strlen(words[i]) == length && memcmp(words[i], string, length) == 0 && (*seen >> i & 1u) == 0) {
            *seen |= 1u << i;
            return i;
        }
    }
    refuse(r, "a word that is not known here, or stands twice");
    return count;
}

static size_t take_key(struct reader *r, const char *const *names, size_t count, uint32_t *seen)
{
    size_t which = take_word(r, names, count, seen);

    expect(r, ':');
    return which;
}

static void end_object(struct reader *r, size_t count, uint32_t seen)
{
    if (seen != (1u << count) - 1) {
        refuse(r, "a key is missing");
    }
    expect(r, '}');
}

#define COUNT(names) (sizeof names / sizeof names[0])

static void parse_case(struct reader *r, struct ctl_golden_case *c)
{
    static const char *const names[] = { "prompt_ids", "ids", "kv", "n", "logits_sha256", "chat", "name", "prompt",
                                         "text" };
    static const char *const kvs[] = { [COLIBRI_KV_F16] = "f16", [COLIBRI_KV_F32] = "f32" };
    const char *string;
    uint32_t seen = 0, none = 0;

    expect(r, '{');
    do {
        switch (take_key(r, names, COUNT(names), &seen)) {
        case 0:
            c->prompt = take_ids(r, &c->prompt_tokens);
            break;
        case 1:
            c->ids = take_ids(r, &c->id_count);
            break;
        case 2:
            c->kv = (uint32_t)take_word(r, kvs, COUNT(kvs), &none);
            break;
        case 3:
            c->limit_tokens = take_number(r, 1, CB_MAX_CONTEXT_TOKENS);
            break;
        case 4:
            c->logits_sha256 = take_hash(r);
            break;
        case 5:
            take_bool(r);
            break;
        default:
            (void)take_string(r, &string);
        }
    } while (take(r, ','));
    end_object(r, COUNT(names), seen);
    if (c->id_count > c->limit_tokens) {
        refuse(r, "more ids than n");
    }
}

int ctl_golden_parse(struct ctl_golden *golden, const char *text, size_t bytes, int32_t *ids,
                     colibri_error *error)
{
    static const char *const names[] = { "format", "root", "cases" };
    struct reader r = { .text = text, .end = bytes, .ids = ids, .error = error };
    uint32_t seen = 0;

    memset(golden, 0, sizeof *golden);
    error->code = 0;
    error->offset = -1;
    expect(&r, '{');
    do {
        switch (take_key(&r, names, COUNT(names), &seen)) {
        case 0:
            (void)take_number(&r, CB_GOLDEN_VERSION, CB_GOLDEN_VERSION);
            break;
        case 1:
            golden->root = take_hash(&r);
            break;
        default:
            expect(&r, '[');
            if (take(&r, ']')) {
                refuse(&r, "there is no case");
            }
            do {
                if (golden->count == CB_MAX_GOLDEN_CASES) {
                    refuse(&r, "too many cases");
                } else {
                    parse_case(&r, &golden->cases[golden->count++]);
                }
            } while (take(&r, ','));
            expect(&r, ']');
        }
    } while (take(&r, ','));
    end_object(&r, COUNT(names), seen);
    (void)take(&r, ' ');
    if (r.at != r.end) {
        refuse(&r, "something behind the object");
    }
    return error->code;
}
