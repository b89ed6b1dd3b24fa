/* SPDX-License-Identifier: MIT */
/*
 * Pre-tokenizers (docs/format.md, 6): where the next piece of a text ends. The patterns are written out
 * as matchers, one branch per alternative in the order of the pattern, so no regular expressions run on
 * the device and the time is linear in the text: only runs of spaces are looked at twice.
 */
#include "tokenizer.h"

#include <stdbool.h>

#include "utf8.h"

#define LONG_S 0x17fu /* the other character that equals 's' when case is ignored */

/* One character of the text. At the end of the text bytes is 0 and kind END. */
struct character {
    uint32_t code; /* an invalid byte has a code no pattern names */
    uint32_t bytes;
    int kind; /* CB_CLASS_LETTER, _NUMBER, _SPACE, _OTHER */
};

enum { END = -1, INVALID_BYTE = 0x110000 };

static int class_of(const struct cb_tokenizer *t, uint32_t code)
{
    uint32_t low = 0, high = t->head.class_ranges;

    if (code < 128)
        return t->ascii[code];
    while (low < high) { /* the first range that ends at code or behind it */
        uint32_t middle = low + (high - low) / 2;

        if (t->classes[2 * middle + 1] < code)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == t->head.class_ranges || (t->classes[2 * (size_t)low] & 0xffffffu) > code)
        return CB_CLASS_OTHER;
    return (int)(t->classes[2 * (size_t)low] >> 24);
}

static struct character character_at(const struct cb_tokenizer *t, const char *text, size_t length,
                                     size_t at)
{
    struct character c = { .code = INVALID_BYTE, .bytes = 1, .kind = CB_CLASS_OTHER };
    uint8_t lead;
    uint32_t code, bytes;

    if (at >= length)
        return (struct character){ .code = INVALID_BYTE, .bytes = 0, .kind = END };
    lead = (uint8_t)text[at];
    if (lead < 0x80) {
        c.code = lead;
        c.kind = t->ascii[lead];
        return c;
    }
    bytes = cb_utf8_bytes(lead);
    if (bytes == 0 || bytes > length - at)
        return c;
    code = lead & (0x7fu >> bytes);
    for (uint32_t i = 1; i < bytes; i++) {
        uint8_t byte = (uint8_t)text[at + i];

        if (!cb_utf8_continues(lead, i, byte))
            return c;
        code = code << 6 | (byte & 0x3fu);
    }
    c.code = code;
    c.bytes = bytes;
    c.kind = class_of(t, code);
    return c;
}

/* End of the run of characters of one kind that starts at `at`. */
static size_t run_end(const struct cb_tokenizer *t, const char *text, size_t length, size_t at,
                      int kind)
{
    for (;;) {
        struct character c = character_at(t, text, length, at);

        if (c.kind != kind)
            return at;
        at += c.bytes;
    }
}

static bool is_newline(const struct character *c)
{
    return c->code == '\r' || c->code == '\n';
}

/* `s+(?!S)|s+`: the whole run of spaces at the end of the text (stops: also before a number), else
 * the run without its last character, unless that is all there is. */
static size_t match_spaces(const struct cb_tokenizer *t, const char *text, size_t length,
                           bool stops_at_number)
{
    size_t at = 0, last = 0;
    struct character c = character_at(t, text, length, 0);

    while (c.kind == CB_CLASS_SPACE) {
        last = at;
        at += c.bytes;
        c = character_at(t, text, length, at);
    }
    if (c.kind == END || last == 0 || (stops_at_number && c.kind == CB_CLASS_NUMBER))
        return at;
    return last;
}

static uint32_t folded(const struct character *c)
{
    if (c->code >= 'A' && c->code <= 'Z')
        return c->code + ('a' - 'A');
    return c->code == LONG_S ? 's' : c->code;
}

/* 's 't 're 've 'm 'll 'd behind an apostrophe at text[0]: its end, or 0. */
static size_t match_contraction(const struct cb_tokenizer *t, const char *text, size_t length,
                                bool ignore_case)
{
    struct character a = character_at(t, text, length, 1);
    struct character b = character_at(t, text, length, 1u + a.bytes);
    uint32_t first = ignore_case ? folded(&a) : a.code;
    uint32_t second = ignore_case ? folded(&b) : b.code;

    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return 1u + a.bytes;
    if ((first == 'r' && second == 'e') || (first == 'v' && second == 'e') ||
        (first == 'l' && second == 'l'))
        return 1u + a.bytes + b.bytes;
    return 0;
}

/* gpt2, and smollm, where every number stands alone and ends the text before it. */
static size_t next_gpt2(const struct cb_tokenizer *t, const char *text, size_t length, bool alone)
{
    struct character first = character_at(t, text, length, 0);
    struct character c = first;
    size_t at = 0;

    if (alone && first.kind == CB_CLASS_NUMBER)
        return first.bytes;
    if (first.code == '\'') {
        size_t end = match_contraction(t, text, length, false);

        if (end > 0)
            return end;
    }
    if (first.code == ' ') {
        at = 1;
        c = character_at(t, text, length, 1);
    }
    if (c.kind == CB_CLASS_LETTER || c.kind == CB_CLASS_OTHER ||
        (c.kind == CB_CLASS_NUMBER && !alone))
        return run_end(t, text, length, at, c.kind);
    return match_spaces(t, text, length, alone);
}

/* llama3 and qwen2, which differ in how many numbers go together. */
static size_t next_modern(const struct cb_tokenizer *t, const char *text, size_t length,
                          unsigned numbers)
{
    struct character first = character_at(t, text, length, 0);
    struct character c;
    size_t at, newline = 0;

    if (first.code == '\'') {
        size_t end = match_contraction(t, text, length, true);

        if (end > 0)
            return end;
    }
    if (first.kind == CB_CLASS_LETTER)
        return run_end(t, text, length, 0, CB_CLASS_LETTER);
    if (first.kind == CB_CLASS_NUMBER) {
        at = first.bytes;
        for (unsigned n = 1; n < numbers; n++) {
            c = character_at(t, text, length, at);
            if (c.kind != CB_CLASS_NUMBER)
                break;
            at += c.bytes;
        }
        return at;
    }
    c = character_at(t, text, length, first.bytes);
    if (c.kind == CB_CLASS_LETTER && !is_newline(&first))
        return run_end(t, text, length, first.bytes, CB_CLASS_LETTER);
    if (first.kind == CB_CLASS_OTHER || (first.code == ' ' && c.kind == CB_CLASS_OTHER)) {
        at = run_end(t, text, length, first.bytes, CB_CLASS_OTHER);
        while (at < length && (text[at] == '\r' || text[at] == '\n'))
            at++;
        return at;
    }
    /* `s*[\r\n]+`: up to the last newline of the run of spaces */
    for (at = 0, c = first; c.kind == CB_CLASS_SPACE; c = character_at(t, text, length, at)) {
        at += c.bytes;
        if (is_newline(&c))
            newline = at;
    }
    return newline > 0 ? newline : match_spaces(t, text, length, false);
}

size_t cb_pretokenize_next(const struct cb_tokenizer *t, const char *text, size_t length)
{
    size_t end;

    switch (t->head.pretokenizer) {
    case CB_PRETOKENIZER_GPT2:
        end = next_gpt2(t, text, length, false);
        break;
    case CB_PRETOKENIZER_SMOLLM:
        end = next_gpt2(t, text, length, true);
        break;
    case CB_PRETOKENIZER_LLAMA3:
        end = next_modern(t, text, length, 3);
        break;
    case CB_PRETOKENIZER_QWEN2:
        end = next_modern(t, text, length, 1);
        break;
    default: /* none: the text is one word */
        return length;
    }
    /* A table that calls no character what its pattern expects must not stop the progress. */
    return end > 0 ? end : 1;
}
