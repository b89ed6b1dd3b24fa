/* SPDX-License-Identifier: MIT */
/*
 * Byte-level BPE over the tokenizer section. The section is read in place: opening checks every rule once
 * (in the order of engine/colibri/tokenizer.py, so that both readers give one code for one file), and then
 * nothing below looks at a bound again. Merging keeps one entry per symbol in an indexed heap, so a word of
 * n bytes takes O(n log n) whatever the word is.
 */
#include "tokenizer.h"

#include <stdbool.h>
#include <string.h>

#include "common.h"
#include "error.h"

#define NO_MERGE UINT32_MAX /* no pair at this symbol; the section cannot hold so many merges */
#define NOT_IN_HEAP UINT32_MAX
#define NO_SYMBOL UINT32_MAX
#define SCRATCH_WORDS 6u /* arrays of struct word: 24 bytes per byte of text */
#define FLAGS_BUILT ((uint32_t)(CB_TOKENIZER_FLAG_ADD_BOS | CB_TOKENIZER_FLAG_IGNORE_MERGES))
#define FLAGS_KNOWN \
    (FLAGS_BUILT | CB_TOKENIZER_FLAG_BYTE_FALLBACK | CB_TOKENIZER_FLAG_ADD_PREFIX_SPACE)

#define MALFORMED(...) cb_fail(error, COLIBRI_ERR_TOKENIZER, CB_NO_OFFSET, __VA_ARGS__)

/* ---- the section ------------------------------------------------------------------------------ */

static int check_kinds(const struct cb_tokenizer_header *h, colibri_error *error)
{
    if (h->kind != CB_TOKENIZER_BYTE_BPE) {
        if (h->kind == CB_TOKENIZER_SENTENCEPIECE_BPE || h->kind == CB_TOKENIZER_UNIGRAM)
            return cb_fail(error, COLIBRI_ERR_UNSUPPORTED, CB_NO_OFFSET,
                           "tokenizer kind %u is not built in: this build runs byte-level BPE (%d)",
                           h->kind, CB_TOKENIZER_BYTE_BPE);
        return MALFORMED("tokenizer kind %u is unknown", h->kind);
    }
    if (h->pretokenizer > CB_PRETOKENIZER_O200K)
        return MALFORMED("pre-tokenizer %u is unknown", h->pretokenizer);
    if (h->pretokenizer == CB_PRETOKENIZER_O200K)
        return cb_fail(error, COLIBRI_ERR_UNSUPPORTED, CB_NO_OFFSET,
                       "pre-tokenizer %u is not built in: this build runs 0..%d", h->pretokenizer,
                       CB_PRETOKENIZER_QWEN2);
    if (h->normalizer > CB_NORMALIZER_NFKC)
        return MALFORMED("normalizer %u is unknown", h->normalizer);
    if (h->normalizer != CB_NORMALIZER_NONE)
        return cb_fail(error, COLIBRI_ERR_UNSUPPORTED, CB_NO_OFFSET,
                       "normalizer %u is not built in: this build has none (0)", h->normalizer);
    if (h->flags & ~FLAGS_KNOWN)
        return MALFORMED("tokenizer flags 0x%x have unknown bits; known are 0x%x", h->flags,
                         FLAGS_KNOWN);
    if (h->flags & ~FLAGS_BUILT)
        return cb_fail(error, COLIBRI_ERR_UNSUPPORTED, CB_NO_OFFSET,
                       "tokenizer flags 0x%x are not built in: this build has 0x%x", h->flags,
                       FLAGS_BUILT);
    return 0;
}

static int check_counts(const struct cb_tokenizer_header *h, size_t bytes, uint32_t vocabulary,
                        colibri_error *error)
{
    uint64_t words, size;

    if (h->tokens == 0)
        return MALFORMED("tokenizer has no tokens");
    if (h->tokens > CB_MAX_VOCABULARY)
        return cb_fail(error, COLIBRI_ERR_LIMIT, CB_NO_OFFSET,
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
            return cb_fail(error, COLIBRI_ERR_LIMIT, CB_NO_OFFSET,
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
    return code;
}

static int check_classes(const struct cb_tokenizer *t, colibri_error *error)
{
    for (uint32_t i = 0; i < t->head.class_ranges; i++) {
        uint32_t first = t->classes[2 * (size_t)i] & 0xffffffu;
        uint32_t kind = t->classes[2 * (size_t)i] >> 24;
        uint32_t last = t->classes[2 * (size_t)i + 1];

        if (kind != CB_CLASS_LETTER && kind != CB_CLASS_NUMBER && kind != CB_CLASS_SPACE)
            return MALFORMED("class range %u has class %u; letter, number and space are supported",
                             i, kind);
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

/* Order of two texts: bytes, then length. */
static int compare_text(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int order = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);

    if (order != 0)
        return order;
    return a_bytes < b_bytes ? -1 : a_bytes > b_bytes;
}

/* A list as long as the ids that are not special, of such ids, in strictly ascending order, is all of
 * them. */
static int check_by_text(const struct cb_tokenizer *t, colibri_error *error)
{
    uint32_t count = t->by_text == NULL ? 0 : t->head.tokens - t->head.specials;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = t->by_text[i], last;
        int order;

        if (id >= t->head.tokens || is_special(t, id))
            return MALFORMED("id %u of the list sorted by text is out of range or special", id);
        if (i == 0)
            continue;
        last = t->by_text[i - 1];
        order = compare_text(t->text + t->offsets[last], token_length(t, last),
                             t->text + t->offsets[id], token_length(t, id));
        if (order > 0 || (order == 0 && last >= id))
            return MALFORMED("the list sorted by text is not in order: %u follows %u", id, last);
    }
    return 0;
}

/* Texts that are matched before the pre-tokenizer: in strictly ascending order, so that no text
 * stands twice, never empty and never special. */
static int check_literals(const struct cb_tokenizer *t, colibri_error *error)
{
    for (uint32_t i = 0; i < t->head.literals; i++) {
        uint32_t id = t->literals[i], last;

        if (id >= t->head.tokens || is_special(t, id) || token_length(t, id) == 0)
            return MALFORMED("literal %u has id %u, which is out of range, special or empty", i, id);
        if (i == 0)
            continue;
        last = t->literals[i - 1];
        if (compare_text(t->text + t->offsets[last], token_length(t, last),
                         t->text + t->offsets[id], token_length(t, id)) >= 0)
            return MALFORMED("literals are not in ascending order of their texts: %u follows %u", id,
                             last);
    }
    return 0;
}

/* The two tables that save a search for the most frequent questions. */
static void fill_tables(struct cb_tokenizer *t)
{
    memset(t->ascii, CB_CLASS_OTHER, sizeof t->ascii);
    for (uint32_t i = 0; i < t->head.class_ranges; i++) {
        uint32_t first = t->classes[2 * (size_t)i] & 0xffffffu;

        for (uint32_t code = first; code <= t->classes[2 * (size_t)i + 1] && code < 128; code++)
            t->ascii[code] = (uint8_t)(t->classes[2 * (size_t)i] >> 24);
    }
    for (size_t i = 0; i < 256; i++)
        t->byte_ids[i] = t->head.unk_id == CB_NONE_INDEX ? -1 : (int32_t)t->head.unk_id;
    for (uint32_t id = t->head.tokens; id-- > 0;) /* downwards: the lowest id stays */
        if (token_length(t, id) == 1 && !is_special(t, id))
            t->byte_ids[(uint8_t)t->text[t->offsets[id]]] = (int32_t)id;
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
        return cb_fail(error, COLIBRI_ERR_LIMIT, CB_NO_OFFSET,
                       "tokenizer section is %zu bytes, the limit is %u", bytes,
                       CB_MAX_TOKENIZER_BYTES);
    memcpy(&t->head, section, sizeof t->head);
    code = check_kinds(&t->head, error);
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
        code = check_literals(t, error);
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
        code = check_by_text(t, error);
    if (code == 0)
        fill_tables(t);
    return code;
}

/* ---- merging one word --------------------------------------------------------------------------- */

/*
 * The symbols of a word are a linked list; symbol i may merge with next[i] by rule merge[i]. heap holds
 * the symbols that have a rule, best first; place[i] is where symbol i is in it. Every array has one
 * element per byte of the word.
 */
struct word {
    const uint32_t *merges;
    uint32_t *id, *previous, *next, *merge, *heap, *place;
    uint32_t in_heap;
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
    uint32_t rank_a = w->merges[4 * (size_t)w->merge[a] + 2];
    uint32_t rank_b = w->merges[4 * (size_t)w->merge[b] + 2];

    return rank_a != rank_b ? rank_a < rank_b : a < b;
}

static void put(struct word *w, uint32_t place, uint32_t symbol)
{
    w->heap[place] = symbol;
    w->place[symbol] = place;
}

/* Restore the order around the symbol at `place`, whose rule is new. */
static void settle(struct word *w, uint32_t place)
{
    uint32_t symbol = w->heap[place];

    while (place > 0 && before(w, symbol, w->heap[(place - 1) / 2])) {
        put(w, place, w->heap[(place - 1) / 2]);
        place = (place - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * place + 1;

        if (child >= w->in_heap)
            break;
        if (child + 1 < w->in_heap && before(w, w->heap[child + 1], w->heap[child]))
            child++;
        if (!before(w, w->heap[child], symbol))
            break;
        put(w, place, w->heap[child]);
        place = child;
    }
    put(w, place, symbol);
}

static void leave_heap(struct word *w, uint32_t symbol)
{
    uint32_t place = w->place[symbol];

    if (place == NOT_IN_HEAP)
        return;
    w->place[symbol] = NOT_IN_HEAP;
    w->in_heap--;
    if (place < w->in_heap) {
        put(w, place, w->heap[w->in_heap]);
        settle(w, place);
    }
}

/* The pair that starts at `symbol` changed: find its rule and its place. */
static void update_pair(const struct cb_tokenizer *t, struct word *w, uint32_t symbol)
{
    uint32_t rule = NO_MERGE;

    if (w->next[symbol] != NO_SYMBOL)
        rule = find_merge(t, w->id[symbol], w->id[w->next[symbol]]);
    if (rule == NO_MERGE) {
        leave_heap(w, symbol);
        return;
    }
    w->merge[symbol] = rule;
    if (w->place[symbol] == NOT_IN_HEAP)
        put(w, w->in_heap++, symbol);
    settle(w, w->place[symbol]);
}

/* Lay out the symbols of the word's bytes; returns how many there are. */
static uint32_t set_symbols(const struct cb_tokenizer *t, struct word *w, const char *text,
                            size_t length)
{
    uint32_t count = 0;

    for (size_t i = 0; i < length; i++) {
        int32_t id = t->byte_ids[(uint8_t)text[i]];

        if (id < 0)
            continue;
        w->id[count] = (uint32_t)id;
        w->previous[count] = count - 1; /* NO_SYMBOL in front of the first */
        w->next[count] = count + 1;
        w->place[count] = NOT_IN_HEAP;
        count++;
    }
    if (count > 0)
        w->next[count - 1] = NO_SYMBOL;
    return count;
}

static void merge_all(const struct cb_tokenizer *t, struct word *w, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        update_pair(t, w, i);
    while (w->in_heap > 0) {
        uint32_t symbol = w->heap[0];
        uint32_t eaten = w->next[symbol];

        w->id[symbol] = t->merges[4 * (size_t)w->merge[symbol] + 3];
        leave_heap(w, eaten);
        w->next[symbol] = w->next[eaten];
        if (w->next[symbol] != NO_SYMBOL)
            w->previous[w->next[symbol]] = symbol;
        update_pair(t, w, symbol);
        if (w->previous[symbol] != NO_SYMBOL)
            update_pair(t, w, w->previous[symbol]);
    }
}

/* Lowest id of a text among those that are not special; -1 when there is none. */
static int32_t find_text(const struct cb_tokenizer *t, const char *text, size_t length)
{
    uint32_t count = t->head.tokens - t->head.specials;
    uint32_t low = 0, high = count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t id = t->by_text[middle];

        if (compare_text(t->text + t->offsets[id], token_length(t, id), text, length) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < count) {
        uint32_t id = t->by_text[low];

        if (token_length(t, id) == length && memcmp(t->text + t->offsets[id], text, length) == 0)
            return (int32_t)id;
    }
    return -1;
}

/*
 * The longest literal that the text begins with: its length, or 0. [low, high) are the literals
 * that share the first `length` bytes with the text; they are sorted, so one that ends there is the
 * first of them.
 */
static size_t match_literal(const struct cb_tokenizer *t, const char *text, size_t left,
                            uint32_t *id)
{
    uint32_t low = 0, high = t->head.literals;
    size_t length = 0, best = 0;

    while (low < high && length < left) {
        uint8_t wanted = (uint8_t)text[length];
        uint32_t ends[2];

        for (unsigned side = 0; side < 2; side++) { /* where the byte begins, and where it ends */
            uint32_t a = low, b = high;

            while (a < b) {
                uint32_t middle = a + (b - a) / 2, token = t->literals[middle];

                if (token_length(t, token) <= length ||
                    (uint8_t)t->text[t->offsets[token] + length] < wanted + side)
                    a = middle + 1;
                else
                    b = middle;
            }
            ends[side] = a;
        }
        low = ends[0];
        high = ends[1];
        length++;
        if (low < high && token_length(t, t->literals[low]) == length) {
            *id = t->literals[low];
            best = length;
        }
    }
    return best;
}

/* ---- texts -------------------------------------------------------------------------------------- */

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

static void encode_word(const struct cb_tokenizer *t, const char *text, size_t length,
                        uint32_t *scratch, struct output *out)
{
    struct word w = {
        .merges = t->merges,
        .id = scratch,
        .previous = scratch + length,
        .next = scratch + 2 * length,
        .merge = scratch + 3 * length,
        .heap = scratch + 4 * length,
        .place = scratch + 5 * length,
    };

    if (t->by_text != NULL) {
        int32_t whole = find_text(t, text, length);

        if (whole >= 0) {
            emit(out, (uint32_t)whole);
            return;
        }
    }
    uint32_t count = set_symbols(t, &w, text, length);
    if (count == 0)
        return;
    merge_all(t, &w, count);
    for (uint32_t i = 0; i != NO_SYMBOL; i = w.next[i])
        emit(out, w.id[i]);
}

size_t cb_tokenizer_scratch_bytes(size_t text_bytes)
{
    return SCRATCH_WORDS * sizeof(uint32_t) * text_bytes;
}

int cb_tokenizer_encode(const struct cb_tokenizer *t, const char *text, size_t length,
                        enum colibri_text form, void *scratch, size_t scratch_bytes, int32_t *ids,
                        size_t *count, colibri_error *error)
{
    struct output out = { .ids = ids, .capacity = *count };
    size_t limit = scratch_bytes / (SCRATCH_WORDS * sizeof(uint32_t));
    bool chat = form == COLIBRI_TEXT_CHAT;

    *count = 0;
    if (form != COLIBRI_TEXT_PLAIN && form != COLIBRI_TEXT_CHAT)
        return cb_fail(error, COLIBRI_ERR_ARGUMENT, CB_NO_OFFSET,
                       "text form %d is unknown: give COLIBRI_TEXT_PLAIN or COLIBRI_TEXT_CHAT",
                       (int)form);
    if (limit > NO_SYMBOL - 1)
        limit = NO_SYMBOL - 1;
    if (length > limit)
        return cb_fail(error, COLIBRI_ERR_TEXT_LONG, CB_NO_OFFSET,
                       "text has %zu bytes, the limit is %zu: shorten it or raise max_text_bytes",
                       length, limit);
    if (chat && t->head.chat_prefix == 0 && t->head.chat_suffix == 0)
        return cb_fail(error, COLIBRI_ERR_NO_CHAT, CB_NO_OFFSET,
                       "the model has no chat form: give the text as it is (COLIBRI_TEXT_PLAIN)");
    for (uint32_t i = 0; chat && i < t->head.chat_prefix; i++)
        emit(&out, t->chat_prefix[i]);
    if (!chat && (t->head.flags & CB_TOKENIZER_FLAG_ADD_BOS))
        emit(&out, t->head.bos_id);
    for (size_t at = 0; at < length;) {
        uint32_t literal = 0;
        size_t stop = t->head.literals > 0 ? at : length, bytes = 0;

        while (stop < length && (bytes = match_literal(t, text + stop, length - stop, &literal)) == 0)
            stop++;
        while (at < stop) {
            size_t word = cb_pretokenize_next(t, text + at, stop - at);

            encode_word(t, text + at, word, scratch, &out);
            at += word;
        }
        if (bytes > 0)
            emit(&out, literal);
        at += bytes;
    }
    for (uint32_t i = 0; chat && i < t->head.chat_suffix; i++)
        emit(&out, t->chat_suffix[i]);
    if (out.count > out.capacity)
        return cb_fail(error, COLIBRI_ERR_TEXT_LONG, CB_NO_OFFSET,
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
