/* SPDX-License-Identifier: MIT */
#include "request.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../src/spec.h"
#include "options.h"

#define DEFAULT_TOKENS 128u
#define MAX_NUMBER_BYTES 32u /* longer than any number that a field can hold */
#define MAX_KEY_BYTES 16u

struct reader {
    char *line;
    size_t at, end;
    uint32_t seen; /* bit per field */
    const char *what; /* is read */
    colibri_error *error;
};

enum kind { KIND_ID, KIND_TEXT, KIND_BOOL, KIND_U32, KIND_U64, KIND_FLOAT, KIND_CODE };

struct field {
    const char *name;
    uint8_t kind;    /* enum kind */
    uint16_t offset;
    float low, high; /* of KIND_U32 and KIND_FLOAT, inclusive; exact */
};

#define AT(member) offsetof(struct ctl_request, member)

static const struct field request_fields[] = {
    { "id", KIND_ID, AT(id), 0, 0 },
    { "tokens", KIND_U32, AT(tokens), 1, CB_MAX_CONTEXT_TOKENS },
    { "prompt", KIND_TEXT, AT(prompt), 0, 0 },
    { "chat", KIND_BOOL, AT(chat), 0, 0 },
    { "ignore_end", KIND_BOOL, AT(ignore_end), 0, 0 },
    { "temperature", KIND_FLOAT, AT(sampler.temperature), 0, 100 },
    { "top_k", KIND_U32, AT(sampler.top_k), 0, CB_MAX_VOCABULARY },
    { "top_p", KIND_FLOAT, AT(sampler.top_p), 0, 1 },
    { "min_p", KIND_FLOAT, AT(sampler.min_p), 0, 1 },
    { "seed", KIND_U64, AT(sampler.seed), 0, 0 },
};

#define SEEN_TOKENS 2u /* bit of its row */

#undef AT
#define AT(member) offsetof(struct ctl_reply, member)

static const struct field reply_fields[] = {
    { "id", KIND_ID, AT(id), 0, 0 },
    { "text", KIND_TEXT, AT(text), 0, 0 },
    { "done", KIND_TEXT, AT(done), 0, 0 },
    { "prompt_tokens", KIND_U32, AT(prompt_tokens), 0, CB_MAX_CONTEXT_TOKENS },
    { "tokens", KIND_U32, AT(tokens), 0, CB_MAX_CONTEXT_TOKENS },
    { "logits_sha256", KIND_TEXT, AT(logits_sha256), 0, 0 },
    { "error", KIND_CODE, AT(error), 0, 0 },
    { "name", KIND_TEXT, AT(name), 0, 0 },
    { "message", KIND_TEXT, AT(message), 0, 0 },
};

#define COUNT(rows) (sizeof(rows) / sizeof(rows)[0])

static int refuse(struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int refuse(struct reader *r, const char *format, ...)
{
    char text[160];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->error->code = COLIBRI_ERR_ARGUMENT;
    r->error->offset = -1;
    (void)snprintf(r->error->message, sizeof r->error->message, "%s, byte %zu: %s", r->what, r->at,
                   text);
    return COLIBRI_ERR_ARGUMENT;
}

static void skip_space(struct reader *r)
{
    while (r->at < r->end &&
           (r->line[r->at] == ' ' || r->line[r->at] == '\t' || r->line[r->at] == '\r')) {
        r->at++;
    }
}

/* The next character behind spaces, or '\n', which no line holds. */
static char peek(struct reader *r)
{
    skip_space(r);
    return r->at < r->end ? r->line[r->at] : '\n';
}

static int expect(struct reader *r, char wanted)
{
    char found = peek(r);

    if (found != wanted) {
        return refuse(r, found == '\n' ? "the line ends where '%c' should stand"
                                       : "another character where '%c' should stand",
                      wanted);
    }
    r->at++;
    return 0;
}

/* ---- strings ----------------------------------------------------------------------------- */

/* Length of the well-formed UTF-8 character at text, or 0 (Unicode standard, table 3-7). */
static size_t character_bytes(const char *text, size_t left)
{
    const unsigned char *c = (const unsigned char *)text;
    unsigned char low = 0x80, high = 0xBF;
    size_t length = c[0] < 0x80 ? 1 : c[0] < 0xE0 ? 2 : c[0] < 0xF0 ? 3 : 4;

    if ((c[0] >= 0x80 && c[0] < 0xC2) || c[0] > 0xF4 || length > left) {
        return 0;
    }
    low = c[0] == 0xE0 ? 0xA0 : c[0] == 0xF0 ? 0x90 : low;
    high = c[0] == 0xED ? 0x9F : c[0] == 0xF4 ? 0x8F : high;
    for (size_t i = 1; i < length; i++) {
        if (c[i] < low || c[i] > high) {
            return 0;
        }
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

static bool hex4(struct reader *r, uint32_t *value)
{
    *value = 0;
    if (r->end - r->at < 4) {
        return false;
    }
    for (size_t i = 0; i < 4; i++) {
        char c = r->line[r->at + i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a') + 10
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A') + 10
                                                : 16;

        if (digit > 15) {
            return false;
        }
        *value = *value * 16 + digit;
    }
    r->at += 4;
    return true;
}

/* Writes at line[*out], which is never beyond what has been read: an escape is longer than its
 * character. */
static void put_character(struct reader *r, size_t *out, uint32_t code)
{
    unsigned char bytes[4];
    size_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char first[] = { 0, 0, 0xC0, 0xE0, 0xF0 };

    for (size_t i = length; i-- > 1;) {
        bytes[i] = (unsigned char)(0x80u | (code & 0x3Fu));
        code >>= 6;
    }
    bytes[0] = (unsigned char)(first[length] | code);
    memcpy(r->line + *out, bytes, length);
    *out += length;
}

/* Behind "\u": one code unit, or a pair of surrogates. */
static int take_unicode(struct reader *r, size_t *out)
{
    uint32_t code, low;

    if (!hex4(r, &code)) {
        return refuse(r, "\\u needs four hexadecimal digits");
    }
    if (code >= 0xD800 && code < 0xE000) {
        bool pair = code < 0xDC00 && r->end - r->at >= 2 && r->line[r->at] == '\\' &&
                    r->line[r->at + 1] == 'u';

        r->at += pair ? 2 : 0;
        if (!pair || !hex4(r, &low) || low < 0xDC00 || low > 0xDFFF) {
            return refuse(r, "\\u%04x is half of a surrogate pair", (unsigned)code);
        }
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    put_character(r, out, code);
    return 0;
}

static int take_escape(struct reader *r, size_t *out)
{
    static const char names[] = "\"\\/bfnrt";
    static const char values[] = "\"\\/\b\f\n\r\t";
    const char *name;

    if (r->at == r->end) {
        return refuse(r, "the line ends inside a string");
    }
    if (r->line[r->at] == 'u') {
        r->at++;
        return take_unicode(r, out);
    }
    name = r->line[r->at] != '\0' ? strchr(names, r->line[r->at]) : NULL;
    if (name == NULL) {
        return refuse(r, "unknown escape; JSON has \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
    }
    r->at++;
    r->line[(*out)++] = values[name - names];
    return 0;
}

/* A string, unescaped in place: text[bytes]. */
static int take_string(struct reader *r, char **text, size_t *bytes)
{
    size_t out;
    int code = expect(r, '"');

    out = r->at;
    *text = r->line + r->at;
    while (code == 0) {
        size_t length;

        if (r->at == r->end) {
            return refuse(r, "the line ends inside a string");
        }
        if (r->line[r->at] == '"') {
            r->at++;
            *bytes = (size_t)(r->line + out - *text);
            return 0;
        }
        if (r->line[r->at] == '\\') {
            r->at++;
            code = take_escape(r, &out);
            continue;
        }
        if ((unsigned char)r->line[r->at] < 0x20) {
            return refuse(r, "a control character in a string: escape it");
        }
        length = character_bytes(r->line + r->at, r->end - r->at);
        if (length == 0) {
            return refuse(r, "invalid UTF-8");
        }
        memmove(r->line + out, r->line + r->at, length);
        out += length;
        r->at += length;
    }
    return code;
}

/* ---- other values ------------------------------------------------------------------------ */

/* The characters of a JSON number: -?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)? */
static int take_number(struct reader *r, const struct field *field, char text[MAX_NUMBER_BYTES])
{
    size_t length = 0, digits;
    const char *c = text;

    (void)peek(r);
    while (r->at + length < r->end && length < MAX_NUMBER_BYTES - 1 &&
           memchr("0123456789.eE+-", r->line[r->at + length], 15) != NULL) {
        text[length] = r->line[r->at + length];
        length++;
    }
    text[length] = '\0';
    c += *c == '-';
    digits = strspn(c, "0123456789");
    if (digits == 0 || (digits > 1 && *c == '0')) {
        return refuse(r, "%s must be a number", field->name);
    }
    c += digits;
    if (*c == '.') {
        digits = strspn(c + 1, "0123456789");
        c += digits > 0 ? digits + 1 : 0;
    }
    if (*c == 'e' || *c == 'E') {
        size_t sign = c[1] == '+' || c[1] == '-';

        digits = strspn(c + 1 + sign, "0123456789");
        c += digits > 0 ? digits + sign + 1 : 0;
    }
    if (*c != '\0' || length == MAX_NUMBER_BYTES - 1) {
        return refuse(r, "%s is no number of less than %u characters", field->name,
                      MAX_NUMBER_BYTES - 1);
    }
    r->at += length;
    return 0;
}

static int take_integer(struct reader *r, const struct field *field, void *target)
{
    char text[MAX_NUMBER_BYTES];
    uint64_t value = 0;
    uint32_t narrow;
    int code = take_number(r, field, text);

    if (code != 0) {
        return code;
    }
    r->at -= strlen(text); /* a refusal names where the number begins */
    if (field->kind == KIND_CODE) { /* all of them are negative */
        int32_t number;

        if (text[0] != '-' || !ctl_parse_u64(text + 1, &value) || value == 0 || value > INT32_MAX) {
            return refuse(r, "%s is %s, not a negative code", field->name, text);
        }
        number = -(int32_t)value;
        memcpy(target, &number, sizeof number);
        r->at += strlen(text);
        return 0;
    }
    if (field->kind == KIND_U64) {
        if (!ctl_parse_u64(text, &value)) {
            return refuse(r, "%s is %s, not a whole number that fits 64 bits", field->name, text);
        }
        memcpy(target, &value, sizeof value);
        r->at += strlen(text);
        return 0;
    }
    if (!ctl_parse_u64(text, &value) || value > UINT32_MAX || (double)value < field->low ||
        (double)value > field->high) {
        return refuse(r, "%s is %s, not a whole number in %.0f..%.0f", field->name, text, field->low,
                      field->high);
    }
    narrow = (uint32_t)value;
    memcpy(target, &narrow, sizeof narrow);
    r->at += strlen(text);
    return 0;
}

static int take_float(struct reader *r, const struct field *field, void *target)
{
    char text[MAX_NUMBER_BYTES];
    float value = 0;
    int code = take_number(r, field, text);

    if (code == 0 && (!ctl_parse_float(text, &value) || (double)value < field->low ||
                      (double)value > field->high)) {
        return refuse(r, "%s is %s, not a number in %g..%g", field->name, text, field->low,
                      field->high);
    }
    if (code == 0) {
        memcpy(target, &value, sizeof value);
    }
    return code;
}

static int take_bool(struct reader *r, const struct field *field, bool *target)
{
    size_t left;

    (void)peek(r);
    left = r->end - r->at;
    if (left >= 4 && memcmp(r->line + r->at, "true", 4) == 0) {
        *target = true;
        r->at += 4;
        return 0;
    }
    if (left >= 5 && memcmp(r->line + r->at, "false", 5) == 0) {
        *target = false;
        r->at += 5;
        return 0;
    }
    return refuse(r, "%s must be true or false", field->name);
}

static int take_id(struct reader *r, char id[CTL_REQUEST_ID_BYTES + 1])
{
    char *text;
    size_t bytes;
    int code = take_string(r, &text, &bytes);

    if (code != 0) {
        return code;
    }
    if (bytes > CTL_REQUEST_ID_BYTES || memchr(text, '\0', bytes) != NULL) {
        return refuse(r, "id must be at most %u bytes without NUL", CTL_REQUEST_ID_BYTES);
    }
    memcpy(id, text, bytes);
    id[bytes] = '\0';
    return 0;
}

static int take_text(struct reader *r, struct ctl_span *span)
{
    char *text;
    int code = take_string(r, &text, &span->bytes);

    span->at = code == 0 ? text : NULL;
    return code;
}

static int take_value(struct reader *r, void *object, const struct field *field)
{
    char *target = (char *)object + field->offset;

    switch (field->kind) {
    case KIND_ID:
        return take_id(r, target);
    case KIND_TEXT:
        return take_text(r, (struct ctl_span *)(void *)target);
    case KIND_BOOL:
        return take_bool(r, field, (bool *)(void *)target);
    case KIND_FLOAT:
        return take_float(r, field, target);
    case KIND_U32:
    case KIND_U64:
    case KIND_CODE:
        break;
    }
    return take_integer(r, field, target);
}

/* ---- the object -------------------------------------------------------------------------- */

static int take_member(struct reader *r, const struct field *fields, size_t count, void *object)
{
    char *key, name[MAX_KEY_BYTES + 1];
    size_t bytes;
    int code = take_string(r, &key, &bytes);

    if (code != 0) {
        return code;
    }
    for (size_t i = 0; i < count; i++) {
        if (strlen(fields[i].name) != bytes || memcmp(fields[i].name, key, bytes) != 0) {
            continue;
        }
        if ((r->seen >> i & 1u) != 0) {
            return refuse(r, "%s stands twice", fields[i].name);
        }
        r->seen |= 1u << i;
        code = expect(r, ':');
        return code != 0 ? code : take_value(r, object, &fields[i]);
    }
    bytes = bytes < MAX_KEY_BYTES ? bytes : MAX_KEY_BYTES;
    for (size_t i = 0; i < bytes; i++) { /* the message is shown to people */
        name[i] = key[i] >= 0x20 && key[i] < 0x7F ? key[i] : '?';
    }
    name[bytes] = '\0';
    return refuse(r, "unknown key '%s'%s", name,
                  fields == request_fields ? "; known: id, prompt, chat, ignore_end, tokens, "
                                             "temperature, top_k, top_p, min_p, seed"
                                           : "");
}

/* The whole line: an object with any of these fields. */
static int take_object(struct reader *r, const struct field *fields, size_t count, void *object)
{
    int code = expect(r, '{');

    if (code == 0 && peek(r) == '}') {
        r->at++;
    } else {
        while (code == 0) {
            char next;

            code = take_member(r, fields, count, object);
            next = code == 0 ? peek(r) : '\n';
            if (code == 0 && next != ',' && next != '}') {
                code = refuse(r, "',' or '}' should stand here");
            }
            r->at += code == 0;
            if (next == '}') {
                break;
            }
        }
    }
    if (code == 0 && peek(r) != '\n') {
        code = refuse(r, "characters behind the object");
    }
    return code;
}

int ctl_request_parse(struct ctl_request *request, char *line, size_t length, colibri_error *error)
{
    struct reader r = { .line = line, .end = length, .what = "request", .error = error };
    int code;

    memset(request, 0, sizeof *request);
    request->tokens = DEFAULT_TOKENS;
    colibri_sampler_default(&request->sampler);
    code = take_object(&r, request_fields, COUNT(request_fields), request);
    if (code == 0 && request->prompt.at == NULL) {
        code = refuse(&r, "there is no prompt");
    }
    request->tokens_given = (r.seen & SEEN_TOKENS) != 0;
    return code;
}

int ctl_reply_parse(struct ctl_reply *reply, char *line, size_t length, colibri_error *error)
{
    struct reader r = { .line = line, .end = length, .what = "answer", .error = error };
    int code, kinds;

    memset(reply, 0, sizeof *reply);
    code = take_object(&r, reply_fields, COUNT(reply_fields), reply);
    kinds = (reply->text.at != NULL) + (reply->done.at != NULL) + (reply->error != 0);
    if (code == 0 && kinds != 1) {
        code = refuse(&r, "one of text, done and error must be there");
    }
    return code;
}
