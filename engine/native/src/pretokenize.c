/* SPDX-License-Identifier: MIT */
/*
 * Pre-tokenizers (docs/format.md, 6): where the next piece of a text ends. The patterns are tables of a few
 * bytes per alternative, run by one matcher; no regular expression, and no list of characters, is on the device.
 *
 * The time is linear in the text. An alternative scans a run once and never tries another length: while it goes
 * through the first run it keeps the last place from which the second could go on, which is where backing off
 * would end. What was scanned in vain is at most a run that the next alternatives take, or that is left at once.
 */
#include "tokenizer.h"

#include <stdbool.h>

#include "utf8.h"

#define NO_PLACE SIZE_MAX

/* ---- patterns ----------------------------------------------------------------------------------- */

/* A set of kinds, kind n is bit n. CB_CLASS_ASIAN and _BASIC are added to the others. */
#define KIND(kind) (1u << (kind))
#define WITH_ADDED(kind)                                                                           \
    (KIND(kind) | KIND((kind) + CB_CLASS_ASIAN) | KIND((kind) + CB_CLASS_BASIC) |                  \
     KIND((kind) + CB_CLASS_ASIAN + CB_CLASS_BASIC))
#define NEWLINE_KIND KIND(CB_KIND_NEWLINE)
#define SLASH_KIND KIND(CB_KIND_SLASH)
#define SPACES_OF_ALL (WITH_ADDED(CB_CLASS_SPACE) | KIND(CB_KIND_BLANK) | NEWLINE_KIND)
#define LETTERS_OF_ALL (WITH_ADDED(CB_CLASS_LETTER) | KIND(CB_CLASS_UPPER) | KIND(CB_CLASS_LOWER))
#define NUMBERS_OF_ALL (KIND(CB_CLASS_NUMBER) | KIND(CB_CLASS_NUMBER + CB_CLASS_ASIAN))
#define SIGNS                                                                                      \
    (KIND(CB_CLASS_PUNCTUATION) | KIND(CB_CLASS_PUNCTUATION + CB_CLASS_ASIAN) |                    \
     KIND(CB_CLASS_PUNCTUATION + CB_CLASS_BASIC) | SLASH_KIND)
#define NOT(set) (~((set) | KIND(CB_KIND_END)))

enum {
    NOTHING, BLANK, NEWLINE, NEWLINE_OR_SLASH, SPACE, LETTER, NUMBER, OTHER, LEAD, BIG, SMALL, SIGN,
    BASIC_SIGN, BASIC_LETTER, V3_LEAD, V2_SIGN, ASIAN
};

static const uint32_t sets[] = {
    [BLANK] = KIND(CB_KIND_BLANK),
    [NEWLINE] = NEWLINE_KIND,
    [NEWLINE_OR_SLASH] = NEWLINE_KIND | SLASH_KIND,
    [SPACE] = SPACES_OF_ALL,
    [LETTER] = LETTERS_OF_ALL,
    [NUMBER] = NUMBERS_OF_ALL,
    [OTHER] = NOT(SPACES_OF_ALL | LETTERS_OF_ALL | NUMBERS_OF_ALL),
    [LEAD] = NOT(NEWLINE_KIND | LETTERS_OF_ALL | NUMBERS_OF_ALL),
    [BIG] = KIND(CB_CLASS_UPPER) | KIND(CB_CLASS_LETTER) | KIND(CB_CLASS_MARK),
    [SMALL] = KIND(CB_CLASS_LOWER) | KIND(CB_CLASS_LETTER) | KIND(CB_CLASS_MARK),
    [SIGN] = SIGNS,
    [BASIC_SIGN] = KIND(CB_CLASS_PUNCTUATION + CB_CLASS_BASIC) | SLASH_KIND,
    [BASIC_LETTER] = KIND(CB_CLASS_LETTER + CB_CLASS_BASIC),
    /* Marks are letters to deepseek_v3: one in front of letters belongs to them either way. */
    [V3_LEAD] = NOT(NEWLINE_KIND | LETTERS_OF_ALL | SIGNS),
    [V2_SIGN] = SIGNS | KIND(CB_CLASS_LETTER + CB_CLASS_BASIC) |
                KIND(CB_CLASS_SPACE + CB_CLASS_ASIAN + CB_CLASS_BASIC),
    /* every kind with CB_CLASS_ASIAN in it, but those of tokenizer.h */
    [ASIAN] = 0x0f00ff00u,
};

/*
 * One alternative of a pattern, greedy as patterns are: a character of `lead` if that leads to a match, else none;
 * any number of `first`; of `second` at most `most` (0: any number); a contraction. Each is a set; absent: NOTHING.
 */
struct alternative {
    unsigned lead : 5;
    unsigned first : 5;
    unsigned second : 5;
    unsigned must : 1;       /* there is a lead */
    unsigned first_min : 1;  /* at least one of first */
    unsigned second_min : 1; /* at least one of second */
    unsigned most : 2;
    unsigned ahead : 1;   /* the end of the piece, else a second, must follow; it is not taken */
    unsigned ignore : 1;  /* case, in the contraction */
    unsigned shorten : 1; /* 's 't 're 've 'm 'll 'd may follow */
    unsigned last : 1;    /* of its step */
};

/* clang-format off */
#define RUN(set) .second = set, .second_min = 1
#define UP_TO_NEWLINE { .first = SPACE, RUN(NEWLINE) } /* s*[rn]+ */
#define SPACES { .first = SPACE, .first_min = 1, .second = SPACE, .ahead = 1 }, \
               { RUN(SPACE), .last = 1 } /* s+(?!S)|s+ */

enum { SMOLLM = 0, GPT2 = 1, LLAMA3 = 7, QWEN2 = 14, O200K = 21, DEEPSEEK_V2 = 28, DEEPSEEK_V3 = 34, ALL = 42 };

static const struct alternative patterns[] = {
    [SMOLLM] = { RUN(NUMBER), .most = 1, .last = 1 },
    [GPT2] = { .shorten = 1 },
    { .lead = BLANK, RUN(LETTER) },
    { .lead = BLANK, RUN(NUMBER) },
    { .lead = BLANK, RUN(OTHER) },
    SPACES,
    [LLAMA3] = { .shorten = 1, .ignore = 1 },
    { .lead = LEAD, RUN(LETTER) },
    { RUN(NUMBER), .most = 3 },
    { .lead = BLANK, .first = OTHER, .first_min = 1, .second = NEWLINE },
    UP_TO_NEWLINE,
    SPACES,
    [QWEN2] = { .shorten = 1, .ignore = 1 },
    { .lead = LEAD, RUN(LETTER) },
    { RUN(NUMBER), .most = 1 },
    { .lead = BLANK, .first = OTHER, .first_min = 1, .second = NEWLINE },
    UP_TO_NEWLINE,
    SPACES,
    [O200K] = { .lead = LEAD, .first = BIG, RUN(SMALL), .shorten = 1, .ignore = 1 },
    { .lead = LEAD, .first = BIG, .first_min = 1, .second = SMALL, .shorten = 1, .ignore = 1 },
    { RUN(NUMBER), .most = 3 },
    { .lead = BLANK, .first = OTHER, .first_min = 1, .second = NEWLINE_OR_SLASH },
    UP_TO_NEWLINE,
    SPACES,
    [DEEPSEEK_V2] = { RUN(NEWLINE), .most = 1, .last = 1 },
    { .lead = SPACE, RUN(LETTER), .last = 1 },
    { .lead = SPACE, RUN(V2_SIGN), .last = 1 },
    { .first = SPACE, .first_min = 1, .ahead = 1, .last = 1 }, /* s+$ */
    { RUN(ASIAN), .last = 1 },
    { RUN(NUMBER), .most = 1, .last = 1 },
    [DEEPSEEK_V3] = { RUN(NUMBER), .most = 3, .last = 1 },
    { RUN(ASIAN), .last = 1 },
    { .lead = BASIC_SIGN, .must = 1, RUN(BASIC_LETTER) },
    { .lead = V3_LEAD, RUN(LETTER) },
    { .lead = BLANK, .first = SIGN, .first_min = 1, .second = NEWLINE },
    UP_TO_NEWLINE,
    SPACES,
};
/* clang-format on */
_Static_assert(sizeof patterns / sizeof *patterns == ALL, "the places of the patterns");

/* Of each pre-tokenizer: its first alternative, and its steps. */
static const uint8_t places[][2] = {
    [CB_PRETOKENIZER_NONE] = { 0, 0 },
    [CB_PRETOKENIZER_GPT2] = { GPT2, 1 },
    [CB_PRETOKENIZER_SMOLLM] = { SMOLLM, 2 },
    [CB_PRETOKENIZER_LLAMA3] = { LLAMA3, 1 },
    [CB_PRETOKENIZER_QWEN2] = { QWEN2, 1 },
    [CB_PRETOKENIZER_O200K] = { O200K, 1 },
    [CB_PRETOKENIZER_DEEPSEEK_V2] = { DEEPSEEK_V2, CB_PRETOKENIZER_STEPS },
    [CB_PRETOKENIZER_DEEPSEEK_V3] = { DEEPSEEK_V3, 3 },
};

/* ---- characters --------------------------------------------------------------------------------- */

/* One character of the text. At its end bytes is 0 and kind CB_KIND_END. */
struct character {
    uint32_t bytes;
    uint32_t kind; /* CB_KIND_*, CB_CLASS_* */
};

/* The text up to where the piece of the step before ends. */
struct view {
    const struct cb_tokenizer *t;
    const char *text;
    size_t length;
    struct character first; /* that of the place where alternatives are tried */
};

static uint32_t class_of(const struct cb_tokenizer *t, uint32_t code)
{
    uint32_t low = 0, high = t->head.class_ranges;

    while (low < high) { /* the first range that ends at code or behind it */
        uint32_t middle = low + (high - low) / 2;

        if (t->classes[2 * (size_t)middle + 1] < code)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == t->head.class_ranges || (t->classes[2 * (size_t)low] & 0xffffffu) > code)
        return CB_CLASS_OTHER;
    return t->classes[2 * (size_t)low] >> 24;
}

static struct character character_at(const struct view *v, size_t at)
{
    struct character c = { .bytes = 1, .kind = CB_CLASS_OTHER }; /* as an invalid byte is */
    uint8_t lead;
    uint32_t code, bytes;

    if (at >= v->length)
        return (struct character){ .bytes = 0, .kind = CB_KIND_END };
    lead = (uint8_t)v->text[at];
    if (lead < 0x80) {
        c.kind = v->t->ascii[lead];
        return c;
    }
    bytes = cb_utf8_bytes(lead);
    if (bytes == 0 || bytes > v->length - at)
        return c;
    code = lead & (0x7fu >> bytes);
    for (uint32_t i = 1; i < bytes; i++) {
        uint8_t byte = (uint8_t)v->text[at + i];

        if (!cb_utf8_continues(lead, i, byte))
            return c;
        code = code << 6 | (byte & 0x3fu);
    }
    c.bytes = bytes;
    c.kind = class_of(v->t, code);
    return c;
}

/* ---- matching ----------------------------------------------------------------------------------- */

static bool is_in(const struct character *c, unsigned set)
{
    return (sets[set] >> c->kind & 1u) != 0;
}

/* Behind 's 't 're 've 'm 'll 'd, or `at` where none of them stands. */
static size_t contraction_end(const struct view *v, size_t at, bool ignore)
{
    uint8_t byte[3] = { 0 }, first, second;

    for (size_t i = 0; i < sizeof byte && i < v->length - at; i++)
        byte[i] = (uint8_t)v->text[at + i];
    if (byte[0] != '\'')
        return at;
    if (ignore && byte[1] == 0xc5 && byte[2] == 0xbf)
        return at + 3; /* U+017F, the other s when case is ignored */
    first = byte[1] | (ignore ? 0x20 : 0); /* of two bytes one is a small letter, and the other the large one */
    second = byte[2] | (ignore ? 0x20 : 0);
    if (first == 's' || first == 't' || first == 'm' || first == 'd')
        return at + 2;
    if ((second == 'e' && (first == 'r' || first == 'v')) || (first == 'l' && second == 'l'))
        return at + 3;
    return at;
}

/* Where an alternative that begins at `start` ends; `start` where it does not match. *next may become a place
 * before which the step matches nowhere. */
static size_t match(const struct view *v, const struct alternative *a, size_t start, bool lead,
                    size_t *next)
{
    size_t at = start, back = NO_PLACE;
    struct character c = v->first;

    if (lead) {
        if (!is_in(&c, a->lead))
            return start;
        at += c.bytes;
        c = character_at(v, at);
    }
    for (unsigned taken = 0;; taken = 1) {
        if (taken >= a->first_min && is_in(&c, a->second))
            back = at;
        if (!is_in(&c, a->first)) {
            if (taken < a->first_min)
                return start;
            break;
        }
        at += c.bytes;
        c = character_at(v, at);
    }
    if (a->ahead && c.kind != CB_KIND_END) {
        *next = at; /* a run that does not reach the end does not from its middle */
        at = back;
    }
    if (a->second_min)
        at = back;
    if (at == NO_PLACE)
        return start;
    for (unsigned taken = 0; !a->ahead && (a->most == 0 || taken < a->most); taken++) {
        c = character_at(v, at);
        if (!is_in(&c, a->second))
            break;
        at += c.bytes;
    }
    return a->shorten ? contraction_end(v, at, a->ignore) : at;
}

/* Where the piece ends that begins at `at`: a match of the step, or what lies before the next one. */
static size_t piece_end(struct view *v, const struct alternative *step, size_t start)
{
    size_t at = start;

    while (at < v->length) {
        size_t next;

        v->first = character_at(v, at);
        next = at + v->first.bytes;
        for (const struct alternative *a = step;; a++) {
            for (int lead = a->lead != NOTHING; lead >= (int)a->must; lead--) {
                size_t end = match(v, a, at, lead != 0, &next);

                if (end > at)
                    return at > start ? at : end;
            }
            if (a->last)
                break;
        }
        at = next;
    }
    return at;
}

size_t cb_pretokenize_next(const struct cb_tokenizer *t, const char *text, size_t at, size_t length,
                           size_t ends[CB_PRETOKENIZER_STEPS])
{
    const struct alternative *step = patterns + places[t->head.pretokenizer][0];
    struct view v = { .t = t, .text = text, .length = length };

    for (unsigned n = 0; n < places[t->head.pretokenizer][1]; n++) {
        if (ends[n] <= at)
            ends[n] = piece_end(&v, step, at);
        v.length = ends[n];
        while (!(step++)->last)
            continue;
    }
    return v.length;
}
