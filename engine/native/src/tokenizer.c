/* SPDX-License-Identifier: MIT */
/*
 * BPE over the tokenizer section, of bytes or of characters (SentencePiece). The section is read in place:
 * opening checks every rule once (in the order of engine/colibri/tokenizer.py, so that both readers give one
 * code for one file), and then nothing below looks at a bound again. Merging keeps one entry per symbol in an
 * indexed heap, so a word of n bytes takes O(n log n) whatever the word is.
 */
#include "tokenizer.h"

#include <stdbool.h>
#include <string.h>

#include "common.h"
#include "error.h"

#define NO_MERGE UINT32_MAX /* no pair at this symbol; the section cannot hold so many merges */
#define NOT_IN_HEAP UINT32_MAX
#define NO_SYMBOL UINT32_MAX
#define BYTE_TOKENS 256u
#define FLAGS_KNOWN 63u
/* Bit n: the flags with the value n are built in. byte_bpe: add_bos, ignore_merges, both or none. */
#define BYTE_FLAGS 0xfu
/* sentencepiece_bpe: byte_fallback, and anything else but ignore_merges */
#define CHARACTER_FLAGS 0x3030303030303030u

_Static_assert(CB_TOKENIZER_FLAG_ADD_BOS == 1 && CB_TOKENIZER_FLAG_IGNORE_MERGES == 2 &&
                   CB_TOKENIZER_FLAG_BYTE_FALLBACK == 4 &&
                   CB_TOKENIZER_FLAG_CHAT_PREFIX_SPACE == 32,
               "the values that the two sets are made of");

#define MALFORMED(...) cb_deny(error, COLIBRI_ERR_TOKENIZER, __VA_ARGS__)

/* ---- the section ------------------------------------------------------------------------------ */

static bool of_characters(const struct cb_tokenizer *t)
{
    return t->head.kind == CB_TOKENIZER_SENTENCEPIECE_BPE;
}

/* `value` is one of 0..known; bit n of `built`: n is built in. */
static int check_choice(const struct cb_tokenizer *t, const char *name, uint32_t value,
                        uint32_t known, uint64_t built, colibri_error *error)
{
    if (value > known)
        return MALFORMED("tokenizer %s %u is unknown; known are 0..%u", name, value, known);
    if ((built >> value & 1u) == 0)
        return cb_deny(error, COLIBRI_ERR_UNSUPPORTED,
                       "tokenizer %s %u is not built in for kind %u (docs/format.md, section 6)",
                       name, value, t->head.kind);
    return 0;
}

static int check_kinds(const struct cb_tokenizer *t, colibri_error *error)
{
    const struct cb_tokenizer_header *h = &t->head;
    bool characters = of_characters(t);
    int code = check_choice(t, "kind", h->kind, CB_TOKENIZER_UNIGRAM,
                            1u << CB_TOKENIZER_BYTE_BPE | 1u << CB_TOKENIZER_SENTENCEPIECE_BPE,
                            error);

    if (code == 0)
        code = check_choice(t, "pre-tokenizer", h->pretokenizer, CB_PRETOKENIZER_DEEPSEEK_V3,
                            characters ? 1u << CB_PRETOKENIZER_NONE : UINT32_MAX, error);
    if (code == 0)
        code = check_choice(t, "normalizer", h->normalizer, CB_NORMALIZER_NFKC,
                            1u << CB_NORMALIZER_NONE, error);
    if (code == 0)
        code = check_choice(t, "flags", h->flags, FLAGS_KNOWN,
                            characters ? CHARACTER_FLAGS : BYTE_FLAGS, error);
    return code;
}

static int check_counts(const struct cb_tokenizer_header *h, size_t bytes, uint32_t vocabulary,
                        colibri_error *error)
{
    uint64_t words, size;

    if (h->tokens == 0)
        return MALFORMED("tokenizer has no tokens");
    if (h->tokens > CB_MAX_VOCABULARY)
        return cb_deny(error, COLIBRI_ERR_LIMIT,
                       "tokenizer has %u tokens, the limit is %u", h->tokens, CB_MAX_VOCABULARY);
    if (h->tokens > vocabulary)
        return MALFORMED("tokenizer has %u tokens, the model's vocabulary is %u", h->tokens,
                         vocabulary);
    if (h->specials > h->tokens || h->ends > h->tokens || h->literals > h->tokens)
        return MALFORMED("tokenizer has %u specials, %u ends and %u literals of %u tokens",
                         h->specials, h->ends, h->literals, h->tokens);
    /* eleven u32 counts times at most 4: far below 2^64 */
    words = (uint64_t)h->tokens + 1 + 4 * (uint64_t)h->merges + h->specials + h->ends +
            h->literals + 2 * (uint64_t)h->class_ranges + h->chat_prefix + h->chat_suffix;
    if (h->flags & CB_TOKENIZER_FLAG_IGNORE_MERGES)
        words += h->tokens - h->specials;
    size = sizeof *h + 4 * words + h->text_bytes;
    if (size != bytes)
        return MALFORMED("tokenizer section is %zu bytes, its head asks for %llu", bytes,
                         (unsigned long long)size);
    return 0;
}

/* Point the arrays into the section; their sizes add up (check_counts). */
static void set_views(struct cb_tokenizer *t, const uint8_t *section)
{
    const struct cb_tokenizer_header *h = &t->head;
    const uint32_t *at = (const uint32_t *)(const void *)(section + sizeof *h);

    t->offsets = at;
    at += (size_t)h->tokens + 1;
    t->merges = at;
    at += 4 * (size_t)h->merges;
    t->specials = at;
    at += h->specials;
    t->ends = at;
    at += h->ends;
    t->literals = at;
    at += h->literals;
    t->classes = at;
    at += 2 * (size_t)h->class_ranges;
    t->chat_prefix = at;
    at += h->chat_prefix;
    t->chat_suffix = at;
    at += h->chat_suffix;
    t->by_text = NULL;
    if (h->flags & CB_TOKENIZER_FLAG_IGNORE_MERGES) {
        t->by_text = at;
        at += h->tokens - h->specials;
    }
    t->text = (const char *)at;
}

static int check_offsets(const struct cb_tokenizer *t, colibri_error *error)
{
    const uint32_t *o = t->offsets;

    if (o[0] != 0)
        return MALFORMED("token 0 starts at text byte %u, must be 0", o[0]);
    for (uint32_t i = 0; i < t->head.tokens; i++) {
        if (o[i + 1] < o[i])
            return MALFORMED("token %u ends at text byte %u, before its start %u", i, o[i + 1],
                             o[i]);
        if (o[i + 1] - o[i] > CB_MAX_TOKEN_BYTES)
            return cb_deny(error, COLIBRI_ERR_LIMIT,
                           "token %u has %u bytes, the limit is %u", i, o[i + 1] - o[i],
                           CB_MAX_TOKEN_BYTES);
    }
    if (o[t->head.tokens] != t->head.text_bytes)
        return MALFORMED("the last token ends at text byte %u, the text has %u",
                         o[t->head.tokens], t->head.text_bytes);
    return 0;
}

static int check_ids(const struct cb_tokenizer *t, const uint32_t *ids, uint32_t count,
                     const char *name, bool ascending, colibri_error *error)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] >= t->head.tokens)
            return MALFORMED("%s id %u is out of range: the tokenizer has %u tokens", name,
                             ids[i], t->head.tokens);
    for (uint32_t i = 1; ascending && i < count; i++)
        if (ids[i] <= ids[i - 1])
            return MALFORMED("%s ids do not ascend: %u follows %u", name, ids[i], ids[i - 1]);
    return 0;
}

/* Bit n: the pre-tokenizer has class n. */
static const uint32_t classes_built[] = {
    [CB_PRETOKENIZER_NONE] = 0xe,
    [CB_PRETOKENIZER_GPT2] = 0xe,
    [CB_PRETOKENIZER_SMOLLM] = 0xe,
    [CB_PRETOKENIZER_LLAMA3] = 0xe,
    [CB_PRETOKENIZER_QWEN2] = 0xe,
    [CB_PRETOKENIZER_O200K] = 0x7e,
    [CB_PRETOKENIZER_DEEPSEEK_V2] = 0x8028f8e,
    [CB_PRETOKENIZER_DEEPSEEK_V3] = 0x82838e,
};

static int check_classes(const struct cb_tokenizer *t, colibri_error *error)
{
    for (uint32_t i = 0; i < t->head.class_ranges; i++) {
        uint32_t first = t->classes[2 * (size_t)i] & 0xffffffu;
        uint32_t kind = t->classes[2 * (size_t)i] >> 24;
        uint32_t last = t->classes[2 * (size_t)i + 1];

        if (kind > 31 || (classes_built[t->head.pretokenizer] >> kind & 1u) == 0)
            return MALFORMED("class range %u has class %u, which its pre-tokenizer lacks", i, kind);
        if (first > last || last > CB_MAX_CODE_POINT)
            return MALFORMED("class range %u is U+%04X..U+%04X, not a range of code points", i,
                             first, last);
        if (i > 0 && first <= t->classes[2 * (size_t)i - 1])
            return MALFORMED("class range %u starts at U+%04X, inside the previous one", i, first);
    }
    return 0;
}

static uint32_t token_length(const struct cb_tokenizer *t, uint32_t id)
{
    return t->offsets[id + 1] - t->offsets[id];
}

/* Whether `id` is in a list of ascending ids. */
static bool contains(const uint32_t *ids, uint32_t count, uint32_t id)
{
    uint32_t low = 0, high = count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;

        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ids[low] == id;
}

static bool is_special(const struct cb_tokenizer *t, uint32_t id)
{
    return contains(t->specials, t->head.specials, id);
}

/* With byte_fallback, unk_id is the token of byte 0, and those of the other bytes follow it. */
static int check_byte_tokens(const struct cb_tokenizer *t, colibri_error *error)
{
    for (uint32_t byte = 0; of_characters(t) && byte < BYTE_TOKENS; byte++) {
        uint64_t id = (uint64_t)t->head.unk_id + byte;

        if (id >= t->head.tokens || is_special(t, (uint32_t)id) ||
            token_length(t, (uint32_t)id) != 1 || (uint8_t)t->text[t->offsets[id]] != byte)
            return MALFORMED("id %llu is not the token of byte %u: byte_fallback has 256 of them",
                             (unsigned long long)id, byte);
    }
    return 0;
}

static int check_single_ids(const struct cb_tokenizer *t, colibri_error *error)
{
    const struct cb_tokenizer_header *h = &t->head;
    int code = 0;

    if (h->bos_id != CB_NONE_INDEX)
        code = check_ids(t, &h->bos_id, 1, "bos", false, error);
    if (code == 0 && h->unk_id != CB_NONE_INDEX)
        code = check_ids(t, &h->unk_id, 1, "unk", false, error);
    if (code == 0 && (h->flags & CB_TOKENIZER_FLAG_ADD_BOS) && h->bos_id == CB_NONE_INDEX)
        return MALFORMED("flag add_bos is set and there is no bos_id: give one or clear the flag");
    return code != 0 ? code : check_byte_tokens(t, error);
}

static uint64_t pair_key(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

static int check_merges(const struct cb_tokenizer *t, colibri_error *error)
{
    uint64_t previous = 0;

    for (uint32_t n = 0; n < t->head.merges; n++) {
        const uint32_t *m = t->merges + 4 * (size_t)n;
        uint32_t left = m[0], right = m[1], merged = m[3];

        if (left >= t->head.tokens || right >= t->head.tokens || merged >= t->head.tokens)
            return MALFORMED("merge %u has ids %u %u %u: the tokenizer has %u tokens", n, left,
                             right, merged, t->head.tokens);
        if (m[2] >= t->head.merges)
            return MALFORMED("merge %u has rank %u: there are %u merges", n, m[2],
                             t->head.merges);
        if (n > 0 && pair_key(left, right) <= previous)
            return MALFORMED("merge %u is not in ascending order of its pair", n);
        if (is_special(t, merged))
            return MALFORMED("merge %u gives special token %u: plain text must not", n, merged);
        if (token_length(t, merged) != token_length(t, left) + token_length(t, right) ||
            memcmp(t->text + t->offsets[merged], t->text + t->offsets[left],
                   token_length(t, left)) != 0 ||
            memcmp(t->text + t->offsets[merged] + token_length(t, left),
                   t->text + t->offsets[right], token_length(t, right)) != 0)
            return MALFORMED("merge %u: the bytes of token %u are not those of %u and %u", n,
                             merged, left, right);
        previous = pair_key(left, right);
    }
    return 0;
}

/* Order of the texts of two tokens: bytes, then length. */
static int compare_tokens(const struct cb_tokenizer *t, uint32_t a, uint32_t b)
{
    uint32_t a_bytes = token_length(t, a), b_bytes = token_length(t, b);
    int order = memcmp(t->text + t->offsets[a], t->text + t->offsets[b],
                       a_bytes < b_bytes ? a_bytes : b_bytes);

    if (order != 0)
        return order;
    return a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

/* A list of ids in ascending order of (text, id), none special. A list of literals (they are matched before
 * the pre-tokenizer, or are what a text of characters is made of) has no text twice, and none that is empty;
 * by_text is as long as the ids that are not special, so it holds them all. */
static int check_sorted(const struct cb_tokenizer *t, const uint32_t *ids, uint32_t count,
                        const char *name, bool literals, colibri_error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = ids[i], last;
        int order;

        if (id >= t->head.tokens || is_special(t, id) || (literals && token_length(t, id) == 0))
            return MALFORMED("%s %u has id %u, which is out of range, special or empty", name, i, id);
        if (i == 0)
            continue;
        last = ids[i - 1];
        order = compare_tokens(t, last, id);
        if (order > 0 || (order == 0 && (literals || last >= id)))
            return MALFORMED("%s is not in ascending order of texts: %u follows %u", name, id, last);
    }
    return 0;
}

/* Of tokens [low, high) that share their first `at` bytes: the first one whose next byte is at least
 * `wanted`. */
static uint32_t first_token(const struct cb_tokenizer *t, const uint32_t *ids, uint32_t low,
                            uint32_t high, size_t at, uint32_t wanted)
{
    while (low < high) {
        uint32_t middle = low + (high - low) / 2, token = ids[middle];

        if (token_length(t, token) <= at || (uint8_t)t->text[t->offsets[token] + at] < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/*
 * The longest of `high` tokens, sorted by their texts, that a text begins with: its length, or 0; *id is
 * the first such token. [low, high) are those that share the first `length` bytes with the text; one that
 * ends there is the first of them.
 */
static size_t match(const struct cb_tokenizer *t, const uint32_t *ids, uint32_t high,
                    const char *text, size_t left, uint32_t *id)
{
    uint32_t low = 0;
    size_t length = 0, best = 0;

    while (low < high && length < left) {
        uint8_t wanted = (uint8_t)text[length];

        low = first_token(t, ids, low, high, length, wanted);
        high = first_token(t, ids, low, high, length, wanted + 1u);
        length++;
        if (low < high && token_length(t, ids[low]) == length) {
            *id = ids[low];
            best = length;
        }
    }
    return best;
}

static size_t match_literal(const struct cb_tokenizer *t, const char *text, size_t left,
                            uint32_t *id)
{
    return match(t, t->literals, t->head.literals, text, left, id);
}

/* The answers to the most frequent questions. */
static void fill_tables(struct cb_tokenizer *t)
{
    memset(t->ascii, CB_CLASS_OTHER, sizeof t->ascii);
    for (uint32_t i = 0; i < t->head.class_ranges; i++) {
        uint32_t first = t->classes[2 * (size_t)i] & 0xffffffu;

        for (uint32_t code = first; code <= t->classes[2 * (size_t)i + 1] && code < 128; code++)
            t->ascii[code] = (uint8_t)(t->classes[2 * (size_t)i] >> 24);
    }
    t->ascii[' '] = CB_KIND_BLANK;
    t->ascii['\r'] = t->ascii['\n'] = CB_KIND_NEWLINE;
    t->ascii['/'] = CB_KIND_SLASH;
    t->space = NO_SYMBOL;
    for (uint32_t i = 0; i < BYTE_TOKENS; i++)
        t->byte_ids[i] = of_characters(t) ? t->head.unk_id + i : t->head.unk_id;
    if (of_characters(t)) {
        (void)match_literal(t, " ", 1, &t->space);
        t->around = 1; /* the space in front */
        for (size_t i = 0; i < (size_t)t->head.chat_prefix + t->head.chat_suffix; i++)
            t->around += 1 + token_length(t, t->chat_prefix[i]); /* the suffix lies behind it */
        return;
    }
    for (uint32_t id = t->head.tokens; id-- > 0;) /* downwards: the lowest id stays */
        if (token_length(t, id) == 1 && !is_special(t, id))
            t->byte_ids[(uint8_t)t->text[t->offsets[id]]] = id;
}

int cb_tokenizer_open(struct cb_tokenizer *t, const uint8_t *section, size_t bytes,
                      uint32_t vocabulary, colibri_error *error)
{
    int code;

    memset(t, 0, sizeof *t);
    if (bytes < sizeof t->head)
        return MALFORMED("tokenizer section is %zu bytes, its head alone is %zu", bytes,
                         sizeof t->head);
    if (bytes > CB_MAX_TOKENIZER_BYTES)
        return cb_deny(error, COLIBRI_ERR_LIMIT,
                       "tokenizer section is %zu bytes, the limit is %u", bytes,
                       CB_MAX_TOKENIZER_BYTES);
    memcpy(&t->head, section, sizeof t->head);
    code = check_kinds(t, error);
    if (code == 0)
        code = check_counts(&t->head, bytes, vocabulary, error);
    if (code != 0)
        return code;
    set_views(t, section);
    code = check_offsets(t, error);
    if (code == 0)
        code = check_ids(t, t->specials, t->head.specials, "special", true, error);
    if (code == 0)
        code = check_ids(t, t->ends, t->head.ends, "end", true, error);
    if (code == 0)
        code = check_sorted(t, t->literals, t->head.literals, "literal", true, error);
    if (code == 0)
        code = check_single_ids(t, error);
    if (code == 0)
        code = check_classes(t, error);
    if (code == 0)
        code = check_ids(t, t->chat_prefix, t->head.chat_prefix, "chat prefix", false, error);
    if (code == 0)
        code = check_ids(t, t->chat_suffix, t->head.chat_suffix, "chat suffix", false, error);
    if (code == 0)
        code = check_merges(t, error);
    if (code == 0)
        code = check_sorted(t, t->by_text,
                            t->by_text == NULL ? 0 : t->head.tokens - t->head.specials,
                            "the list by text", false, error);
    if (code == 0)
        fill_tables(t);
    return code;
}

/* ---- merging one word --------------------------------------------------------------------------- */

/* Ids behind the capacity are counted, not written, so that the error can say how many there are. */
struct output {
    int32_t *ids;
    size_t capacity, count;
};

static void emit(struct output *out, uint32_t id)
{
    if (out->count < out->capacity)
        out->ids[out->count] = (int32_t)id;
    out->count++;
}

static void emit_all(struct output *out, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        emit(out, ids[i]);
}

/*
 * The symbols of a word are a linked list; symbol i may merge with next by rule merge. The field heap of
 * the first in_heap ones holds the symbols that have a rule, best first; place is where a symbol is in it.
 */
struct symbol {
    uint32_t id, previous, next, merge, heap, place;
};

_Static_assert(sizeof(struct symbol) == 24, "the scratch per byte of text that docs and plan name");

struct word {
    struct symbol *symbols; /* one per byte, of the text around it too */
    const uint32_t *merges;
    uint32_t count, in_heap;
    uint32_t lead; /* not 0: a space comes in front of the next text */
};

static uint32_t find_merge(const struct cb_tokenizer *t, uint32_t left, uint32_t right)
{
    uint64_t key = pair_key(left, right);
    uint32_t low = 0, high = t->head.merges;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const uint32_t *m = t->merges + 4 * (size_t)middle;

        if (pair_key(m[0], m[1]) < key)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < t->head.merges) {
        const uint32_t *m = t->merges + 4 * (size_t)low;

        if (pair_key(m[0], m[1]) == key)
            return low;
    }
    return NO_MERGE;
}

/* Lower rank first, the leftmost of equals: symbols keep the index of their first byte. */
static bool before(const struct word *w, uint32_t a, uint32_t b)
{
    uint32_t rank_a = w->merges[4 * (size_t)w->symbols[a].merge + 2];
    uint32_t rank_b = w->merges[4 * (size_t)w->symbols[b].merge + 2];

    return rank_a != rank_b ? rank_a < rank_b : a < b;
}

static void put(struct word *w, uint32_t place, uint32_t symbol)
{
    w->symbols[place].heap = symbol;
    w->symbols[symbol].place = place;
}

/* Restore the order around the symbol at `place`, whose rule is new. */
static void settle(struct word *w, uint32_t place)
{
    uint32_t symbol = w->symbols[place].heap;

    while (place > 0 && before(w, symbol, w->symbols[(place - 1) / 2].heap)) {
        put(w, place, w->symbols[(place - 1) / 2].heap);
        place = (place - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * place + 1;

        if (child >= w->in_heap)
            break;
        if (child + 1 < w->in_heap && before(w, w->symbols[child + 1].heap, w->symbols[child].heap))
            child++;
        if (!before(w, w->symbols[child].heap, symbol))
            break;
        put(w, place, w->symbols[child].heap);
        place = child;
    }
    put(w, place, symbol);
}

static void leave_heap(struct word *w, uint32_t symbol)
{
    uint32_t place = w->symbols[symbol].place;

    if (place == NOT_IN_HEAP)
        return;
    w->symbols[symbol].place = NOT_IN_HEAP;
    w->in_heap--;
    if (place < w->in_heap) {
        put(w, place, w->symbols[w->in_heap].heap);
        settle(w, place);
    }
}

/* The pair that starts at `symbol` changed: find its rule and its place. */
static void update_pair(const struct cb_tokenizer *t, struct word *w, uint32_t symbol)
{
    uint32_t rule = NO_MERGE;

    if (w->symbols[symbol].next != NO_SYMBOL)
        rule = find_merge(t, w->symbols[symbol].id, w->symbols[w->symbols[symbol].next].id);
    if (rule == NO_MERGE) {
        leave_heap(w, symbol);
        return;
    }
    w->symbols[symbol].merge = rule;
    if (w->symbols[symbol].place == NOT_IN_HEAP)
        put(w, w->in_heap++, symbol);
    settle(w, w->symbols[symbol].place);
}

/* Append a symbol; a byte that has no token is left out. */
static void add_symbol(struct word *w, uint32_t id)
{
    if (id == NO_SYMBOL)
        return;
    w->symbols[w->count].id = id;
    w->symbols[w->count].previous = w->count - 1; /* NO_SYMBOL in front of the first */
    w->symbols[w->count].next = w->count + 1;
    w->symbols[w->count].place = NOT_IN_HEAP;
    w->count++;
}

/* Merge the symbols, and give out what is left of them. */
static void merge_all(const struct cb_tokenizer *t, struct word *w, struct output *out)
{
    if (w->count == 0)
        return;
    w->symbols[w->count - 1].next = NO_SYMBOL;
    for (uint32_t i = 0; i < w->count; i++)
        update_pair(t, w, i);
    while (w->in_heap > 0) {
        uint32_t symbol = w->symbols[0].heap;
        uint32_t eaten = w->symbols[symbol].next;

        w->symbols[symbol].id = t->merges[4 * (size_t)w->symbols[symbol].merge + 3];
        leave_heap(w, eaten);
        w->symbols[symbol].next = w->symbols[eaten].next;
        if (w->symbols[symbol].next != NO_SYMBOL)
            w->symbols[w->symbols[symbol].next].previous = symbol;
        update_pair(t, w, symbol);
        if (w->symbols[symbol].previous != NO_SYMBOL)
            update_pair(t, w, w->symbols[symbol].previous);
    }
    for (uint32_t i = 0; i != NO_SYMBOL; i = w->symbols[i].next)
        emit(out, w->symbols[i].id);
}

/* ---- texts -------------------------------------------------------------------------------------- */

/* Append the symbols of a text: literals (of byte_bpe a word has none), else bytes. */
static void add_text(const struct cb_tokenizer *t, struct word *w, const char *text, size_t length)
{
    while (length > 0) {
        uint32_t id = t->byte_ids[(uint8_t)*text];
        size_t bytes = match_literal(t, text, length, &id);

        if (bytes == 0) {
            bytes = 1;
            if (t->space != NO_SYMBOL && length > 2 && memcmp(text, "\xe2\x96\x81", 3) == 0) {
                id = t->space; /* as vocabularies write it: U+2581 */
                bytes = 3;
            }
        }
        if (w->lead != 0 &&
            !((t->head.flags & CB_TOKENIZER_FLAG_KEEP_PREFIX_SPACE) && id == t->space))
            add_symbol(w, t->space);
        w->lead = 0;
        add_symbol(w, id);
        text += bytes;
        length -= bytes;
    }
}

/* Append what the chat form puts around a text: special tokens as such, others as text. */
static void add_tokens(const struct cb_tokenizer *t, struct word *w, const uint32_t *ids,
                       uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (is_special(t, ids[i])) {
            add_symbol(w, ids[i]);
            w->lead = 0;
        } else {
            add_text(t, w, t->text + t->offsets[ids[i]], token_length(t, ids[i]));
        }
    }
}

/* chat: of kind sentencepiece_bpe, with what stands around the text; it is one word with it. */
static void encode_word(const struct cb_tokenizer *t, const char *text, size_t length, bool chat,
                        struct symbol *scratch, struct output *out)
{
    struct word w = { .symbols = scratch, .merges = t->merges };
    uint32_t whole;

    if (t->by_text != NULL && length > 0 &&
        match(t, t->by_text, t->head.tokens - t->head.specials, text, length, &whole) == length) {
        emit(out, whole);
        return;
    }
    if (chat)
        add_tokens(t, &w, t->chat_prefix, t->head.chat_prefix);
    w.lead = t->head.flags & (chat ? CB_TOKENIZER_FLAG_CHAT_PREFIX_SPACE
                                   : CB_TOKENIZER_FLAG_ADD_PREFIX_SPACE);
    add_text(t, &w, text, length);
    if (chat)
        add_tokens(t, &w, t->chat_suffix, t->head.chat_suffix);
    merge_all(t, &w, out);
}

size_t cb_tokenizer_scratch_bytes(size_t text_bytes)
{
    return sizeof(struct symbol) * text_bytes;
}

int cb_tokenizer_encode(const struct cb_tokenizer *t, const char *text, size_t length,
                        enum colibri_text form, void *scratch, size_t scratch_bytes, int32_t *ids,
                        size_t *count, colibri_error *error)
{
    struct output out = { .ids = ids, .capacity = *count };
    uint64_t limit = scratch_bytes / sizeof(struct symbol);
    bool chat = form == COLIBRI_TEXT_CHAT, characters = of_characters(t);
    size_t at = 0, ends[CB_PRETOKENIZER_STEPS] = { 0 }; /* in the text */

    *count = 0;
    if (form != COLIBRI_TEXT_PLAIN && form != COLIBRI_TEXT_CHAT)
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "text form %d is unknown: give COLIBRI_TEXT_PLAIN or COLIBRI_TEXT_CHAT",
                       (int)form);
    if (limit > NO_SYMBOL - 1)
        limit = NO_SYMBOL - 1;
    if (length > limit || t->around > limit - length)
        return cb_deny(error, COLIBRI_ERR_TEXT_LONG,
                       "text has %zu bytes, and %llu around it, the limit is %llu: shorten it or raise "
                       "max_text_bytes",
                       length, (unsigned long long)t->around, (unsigned long long)limit);
    if (chat && t->head.chat_prefix == 0 && t->head.chat_suffix == 0)
        return cb_deny(error, COLIBRI_ERR_NO_CHAT,
                       "the model has no chat form: give the text as it is (COLIBRI_TEXT_PLAIN)");
    if (length == 0)
        text = ""; /* it may be NULL */
    if (chat && !characters)
        emit_all(&out, t->chat_prefix, t->head.chat_prefix);
    if (!chat)
        emit_all(&out, &t->head.bos_id, t->head.flags & CB_TOKENIZER_FLAG_ADD_BOS);
    do { /* once for an empty text too: there may be text around it */
        uint32_t literal = 0;
        size_t stop = t->head.literals > 0 && !characters ? at : length, bytes = 0;

        while (stop < length && (bytes = match_literal(t, text + stop, length - stop, &literal)) == 0)
            stop++;
        do {
            size_t end = at < stop ? cb_pretokenize_next(t, text, at, stop, ends) : at;

            encode_word(t, text + at, end - at, chat && characters, scratch, &out);
            at = end;
        } while (at < stop);
        emit_all(&out, &literal, bytes > 0);
        at += bytes;
    } while (at < length);
    if (chat && !characters)
        emit_all(&out, t->chat_suffix, t->head.chat_suffix);
    if (out.count > out.capacity)
        return cb_deny(error, COLIBRI_ERR_TEXT_LONG,
                       "text of %zu bytes has %zu ids, there is room for %zu: shorten it or give "
                       "more room",
                       length, out.count, out.capacity);
    *count = out.count;
    return 0;
}

const char *cb_tokenizer_bytes(const struct cb_tokenizer *t, int32_t id, size_t *length)
{
    uint32_t start, end;

    *length = 0;
    if (id < 0 || (uint32_t)id >= t->head.tokens)
        return NULL;
    /* Checked at open; again here, because a rewritten file must not lead outside the section. */
    start = t->offsets[id];
    end = t->offsets[id + 1];
    if (start > end || end > t->head.text_bytes)
        return NULL;
    *length = end - start;
    return t->text + start;
}

int cb_tokenizer_is_end(const struct cb_tokenizer *t, int32_t id)
{
    return id >= 0 && contains(t->ends, t->head.ends, (uint32_t)id);
}

int cb_tokenizer_is_special(const struct cb_tokenizer *t, int32_t id)
{
    return id >= 0 && is_special(t, (uint32_t)id);
}
