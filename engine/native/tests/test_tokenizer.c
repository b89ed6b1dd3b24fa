/* SPDX-License-Identifier: MIT */
/*
 * Tests of the tokenizer, the pre-tokenizers and the streaming detokenizer.
 *
 *     test_tokenizer            the tests of this file, on a small tokenizer built here
 *     test_tokenizer CASES...   files of cases written by the Python oracle (tests/unit/test_tokenizer.py):
 *
 * One case per line, words separated by spaces; bytes are hexadecimal, "-" is none.
 *     section PATH VOCABULARY CODE           open it; the cases below use it
 *     encode plain|chat BYTES CODE IDS...    ids of a text
 *     utf8 CHUNK,CHUNK,... BYTES             what feeding the chunks, then flushing, gives
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer.h"

static unsigned checks, failures;
static const char *where = "";

static void check(int ok, const char *what, int line)
{
    checks++;
    if (ok)
        return;
    failures++;
    fprintf(stderr, "test_tokenizer.c:%d: %s: %s\n", line, where, what);
}

#define CHECK(condition) check(!!(condition), #condition, __LINE__)

static void *need(void *memory)
{
    if (memory == NULL) {
        fprintf(stderr, "test_tokenizer: out of memory\n");
        exit(1);
    }
    return memory;
}

/* ---- a small tokenizer -------------------------------------------------------------------------- */

enum { AB = 256, BC, ABC, AA, AAAA, SPECIAL, END_ID, XYZ, TOKENS };
static const char *const texts[TOKENS - 256] = { "ab", "bc", "abc", "aa", "aaaa", "<s>", "</s>", "xyz" };

/* Indices of 32-bit words in the head. */
enum {
    KIND, PRETOKENIZER, NORMALIZER, FLAGS, UNICODE, N_TOKENS, N_MERGES, N_SPECIALS, N_ENDS, N_RANGES,
    N_PREFIX, N_SUFFIX, TEXT_BYTES, BOS, UNK, N_LITERALS, HEAD_WORDS
};

struct image {
    uint32_t words[1200];
    size_t bytes;
    size_t offsets, merges, specials, ends, ranges, prefix, suffix, by_text; /* first words */
};

static size_t add(struct image *m, size_t at, const uint32_t *values, size_t count)
{
    memcpy(m->words + at, values, count * sizeof *values);
    return at + count;
}

static int by_text_order(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    char one[2] = { (char)x, 0 }, two[2] = { (char)y, 0 };
    const char *s = x < 256 ? one : texts[x - 256], *t = y < 256 ? two : texts[y - 256];
    size_t s_bytes = x < 256 ? 1 : strlen(s), t_bytes = y < 256 ? 1 : strlen(t);
    int order = memcmp(s, t, s_bytes < t_bytes ? s_bytes : t_bytes);

    return order != 0 ? order : (s_bytes > t_bytes) - (s_bytes < t_bytes);
}

#define CLASS(first, last, kind) (first) | (uint32_t)(kind) << 24, last

static const uint32_t plain_ranges[] = {
    CLASS(0x09, 0x0d, 3), CLASS(0x20, 0x20, 3), CLASS('0', '9', 2), CLASS('A', 'Z', 1),
    CLASS('a', 'z', 1), CLASS(0xa0, 0xa0, 3), CLASS(0xe0, 0xff, 1), CLASS(0x17f, 0x17f, 1),
    CLASS(0x663, 0x663, 2), CLASS(0x4e00, 0x9fff, 1), CLASS(0x10400, 0x1044f, 1),
};
static const uint32_t o200k_ranges[] = {
    CLASS(0x09, 0x0d, 3), CLASS(0x20, 0x20, 3), CLASS('0', '9', 2), CLASS('A', 'Z', 5),
    CLASS('a', 'z', 6), CLASS(0xa0, 0xa0, 3), CLASS(0xc0, 0xde, 5), CLASS(0xe0, 0xff, 6),
    CLASS(0x17f, 0x17f, 6), CLASS(0x300, 0x36f, 4), CLASS(0x4e00, 0x9fff, 1),
};
/* 7: signs; 8 is added in the ranges of Asian characters, 16 as docs/format.md says */
static const uint32_t v2_ranges[] = {
    CLASS(0x09, 0x0d, 3), CLASS(0x20, 0x20, 3), CLASS('!', '.', 7), CLASS('/', '/', 7),
    CLASS('0', '9', 2), CLASS(':', '@', 7), CLASS('A', 'Z', 17), CLASS('[', '`', 7),
    CLASS('a', 'z', 17), CLASS('{', '~', 7), CLASS(0xa0, 0xa0, 3), CLASS(0xe0, 0xff, 1),
    CLASS(0x966, 0x96f, 10), CLASS(0x2003, 0x2003, 11), CLASS(0x2018, 0x2019, 15),
    CLASS(0x3000, 0x3000, 27), CLASS(0x4e00, 0x9fa5, 8),
};
static const uint32_t v3_ranges[] = {
    CLASS(0x09, 0x0d, 3), CLASS(0x20, 0x20, 3), CLASS('!', '/', 23), CLASS('0', '9', 2),
    CLASS(':', '@', 23), CLASS('A', 'Z', 17), CLASS('[', '`', 23), CLASS('a', 'z', 17),
    CLASS('{', '~', 23), CLASS(0xa0, 0xa0, 3), CLASS(0xd7, 0xd7, 7), CLASS(0xe0, 0xff, 1),
    CLASS(0x300, 0x36f, 1), CLASS(0x3040, 0x3040, 8), CLASS(0x3041, 0x3096, 9),
    CLASS(0x30fb, 0x30fb, 15), CLASS(0x4e00, 0x9fa5, 9),
};

/* ranks: bc 0, ab 1, a+bc 2, aa 3, aaaa 4, ab+c 5 */
static void build(struct image *m, uint32_t pretokenizer, uint32_t flags)
{
    static const uint32_t merges[] = {
        'a', 'a', 3, AA, 'a', 'b', 1, AB, 'a', BC, 2, ABC, 'b', 'c', 0, BC,
        AB,  'c', 5, ABC, AA, AA, 4, AAAA,
    };
    static const uint32_t specials[] = { SPECIAL, END_ID }, ends[] = { END_ID };
    static const uint32_t prefix[] = { SPECIAL, 'u', '\n' }, suffix[] = { END_ID };
    const uint32_t *ranges = plain_ranges;
    size_t range_words = sizeof plain_ranges / 4;
    size_t at = HEAD_WORDS, text_bytes = 256;
    uint32_t offset = 0;
    char *text;

    if (pretokenizer == CB_PRETOKENIZER_O200K) {
        ranges = o200k_ranges;
        range_words = sizeof o200k_ranges / 4;
    } else if (pretokenizer == CB_PRETOKENIZER_DEEPSEEK_V2) {
        ranges = v2_ranges;
        range_words = sizeof v2_ranges / 4;
    } else if (pretokenizer == CB_PRETOKENIZER_DEEPSEEK_V3) {
        ranges = v3_ranges;
        range_words = sizeof v3_ranges / 4;
    }
    memset(m, 0, sizeof *m);
    m->offsets = at;
    for (uint32_t i = 0; i < TOKENS; i++) {
        m->words[at++] = offset;
        offset += i < 256 ? 1u : (uint32_t)strlen(texts[i - 256]);
    }
    m->words[at++] = offset;
    text_bytes = offset;
    m->merges = at;
    at = add(m, at, merges, sizeof merges / 4);
    m->specials = at;
    at = add(m, at, specials, 2);
    m->ends = at;
    at = add(m, at, ends, 1);
    m->ranges = at;
    at = add(m, at, ranges, range_words);
    m->prefix = at;
    at = add(m, at, prefix, 3);
    m->suffix = at;
    at = add(m, at, suffix, 1);
    m->by_text = at;
    if (flags & CB_TOKENIZER_FLAG_IGNORE_MERGES) {
        for (uint32_t i = 0; i < TOKENS; i++)
            if (i != SPECIAL && i != END_ID)
                m->words[at++] = i;
        qsort(m->words + m->by_text, at - m->by_text, 4, by_text_order);
    }
    text = (char *)(m->words + at);
    for (uint32_t i = 0; i < 256; i++)
        *text++ = (char)i;
    for (uint32_t i = 0; i < TOKENS - 256; i++) {
        size_t length = strlen(texts[i]);

        memcpy(text, texts[i], length);
        text += length;
    }
    m->bytes = 4 * at + text_bytes;
    m->words[KIND] = CB_TOKENIZER_BYTE_BPE;
    m->words[PRETOKENIZER] = pretokenizer;
    m->words[FLAGS] = flags;
    m->words[UNICODE] = 0x0e0000;
    m->words[N_TOKENS] = TOKENS;
    m->words[N_MERGES] = sizeof merges / 16;
    m->words[N_SPECIALS] = 2;
    m->words[N_ENDS] = 1;
    m->words[N_RANGES] = (uint32_t)range_words / 2;
    m->words[N_PREFIX] = 3;
    m->words[N_SUFFIX] = 1;
    m->words[TEXT_BYTES] = (uint32_t)text_bytes;
    m->words[BOS] = SPECIAL;
    m->words[UNK] = CB_NONE_INDEX;
}

static int open_image(struct cb_tokenizer *t, const struct image *m, colibri_error *error)
{
    return cb_tokenizer_open(t, (const uint8_t *)m->words, m->bytes, TOKENS, error);
}

/* ---- encoding ------------------------------------------------------------------------------------- */

/* Encode and compare with ids that end in -1. */
static int gives(const struct cb_tokenizer *t, const char *text, enum colibri_text form,
                 const int32_t *expected)
{
    _Alignas(8) uint8_t scratch[24 * 256];
    int32_t ids[64];
    size_t count = 64, n = 0;
    colibri_error error;

    if (cb_tokenizer_encode(t, text, strlen(text), form, scratch, sizeof scratch, ids, &count,
                            &error) != 0) {
        fprintf(stderr, "%s\n", error.message);
        return 0;
    }
    while (expected[n] >= 0)
        n++;
    return count == n && memcmp(ids, expected, n * sizeof *ids) == 0;
}

#define IDS(...) ((const int32_t[]){ __VA_ARGS__, -1 })
#define PLAIN(text, ...) CHECK(gives(&t, text, COLIBRI_TEXT_PLAIN, IDS(__VA_ARGS__)))

static void test_merges(void)
{
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;

    where = "merges";
    build(&m, CB_PRETOKENIZER_GPT2, 0);
    CHECK(open_image(&t, &m, &error) == 0);
    PLAIN("abc", ABC);              /* bc (0) before ab (1), then a+bc (2) */
    PLAIN("abab", AB, AB);
    PLAIN("aaa", AA, 'a');          /* equal ranks: the leftmost */
    PLAIN("aaaaaaa", AAAA, AA, 'a');
    PLAIN("cab abc", 'c', AB, ' ', ABC);
    PLAIN("xyz", 'x', 'y', 'z');    /* no merge leads to it */
    PLAIN("<s>", '<', 's', '>');    /* special tokens in plain text are characters */
    CHECK(gives(&t, "", COLIBRI_TEXT_PLAIN, (const int32_t[]){ -1 }));
    CHECK(gives(&t, "ab", COLIBRI_TEXT_CHAT, IDS(SPECIAL, 'u', '\n', AB, END_ID)));
    CHECK(gives(&t, "</s>", COLIBRI_TEXT_CHAT,
                IDS(SPECIAL, 'u', '\n', '<', '/', 's', '>', END_ID)));
}

static void test_flags(void)
{
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;

    where = "flags";
    build(&m, CB_PRETOKENIZER_GPT2,
          CB_TOKENIZER_FLAG_ADD_BOS | CB_TOKENIZER_FLAG_IGNORE_MERGES);
    CHECK(open_image(&t, &m, &error) == 0);
    PLAIN("ab", SPECIAL, AB);
    PLAIN("xyz", SPECIAL, XYZ);     /* a whole word that is a token */
    PLAIN("xyzx", SPECIAL, 'x', 'y', 'z', 'x');
    CHECK(gives(&t, "ab", COLIBRI_TEXT_CHAT, IDS(SPECIAL, 'u', '\n', AB, END_ID)));
}

/* A byte that no token stands for is left out, or becomes unk. */
static void test_missing_bytes(void)
{
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;

    where = "missing bytes";
    build(&m, CB_PRETOKENIZER_GPT2, 0);
    ((char *)m.words)[m.bytes - m.words[TEXT_BYTES] + 'q'] = 'r';
    CHECK(open_image(&t, &m, &error) == 0);
    PLAIN("aqb", AB);
    PLAIN("q r", ' ', 'q');         /* two tokens of one text: the lower id */
    m.words[UNK] = '?';
    CHECK(open_image(&t, &m, &error) == 0);
    PLAIN("aqb", 'a', '?', 'b');
}

static void test_lookups(void)
{
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;
    size_t length = 9;

    where = "lookups";
    build(&m, CB_PRETOKENIZER_GPT2, 0);
    CHECK(open_image(&t, &m, &error) == 0);
    CHECK(memcmp(cb_tokenizer_bytes(&t, ABC, &length), "abc", 3) == 0 && length == 3);
    CHECK(cb_tokenizer_bytes(&t, -1, &length) == NULL && length == 0);
    CHECK(cb_tokenizer_bytes(&t, TOKENS, &length) == NULL);
    CHECK(cb_tokenizer_is_end(&t, END_ID) && !cb_tokenizer_is_end(&t, SPECIAL));
    CHECK(!cb_tokenizer_is_end(&t, -1) && !cb_tokenizer_is_special(&t, -1));
    CHECK(cb_tokenizer_is_special(&t, SPECIAL) && !cb_tokenizer_is_special(&t, ABC));
}

static void test_limits(void)
{
    _Alignas(8) uint8_t scratch[24 * 4];
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;
    int32_t ids[5] = { 7, 7, 7, 7, 7 };
    size_t count = 5;

    where = "limits";
    build(&m, CB_PRETOKENIZER_GPT2, 0);
    CHECK(open_image(&t, &m, &error) == 0);
    CHECK(cb_tokenizer_scratch_bytes(4) == sizeof scratch);
    CHECK(cb_tokenizer_encode(&t, "abcde", 5, COLIBRI_TEXT_PLAIN, scratch, sizeof scratch, ids,
                              &count, &error) == COLIBRI_ERR_TEXT_LONG);
    CHECK(count == 0 && strstr(error.message, "5 bytes") && strstr(error.message, "limit is 4"));
    count = 3;
    CHECK(cb_tokenizer_encode(&t, "wxyz", 4, COLIBRI_TEXT_PLAIN, scratch, sizeof scratch, ids,
                              &count, &error) == COLIBRI_ERR_TEXT_LONG);
    CHECK(count == 0 && strstr(error.message, "4 ids") && strstr(error.message, "room for 3"));
    CHECK(ids[2] == 'y' && ids[3] == 7); /* nothing behind the capacity */
    count = 5;
    CHECK(cb_tokenizer_encode(&t, "w", 1, (enum colibri_text)2, scratch, sizeof scratch, ids,
                              &count, &error) == COLIBRI_ERR_ARGUMENT);
    m.words[N_PREFIX] = m.words[N_SUFFIX] = 0;
    memmove(m.words + m.prefix, m.words + m.prefix + 4, m.words[TEXT_BYTES]);
    m.bytes -= 16;
    CHECK(open_image(&t, &m, &error) == 0);
    count = 5;
    CHECK(cb_tokenizer_encode(&t, "w", 1, COLIBRI_TEXT_CHAT, scratch, sizeof scratch, ids, &count,
                              &error) == COLIBRI_ERR_NO_CHAT);
}

/* Kind sentencepiece_bpe: what the chat form puts around a text is merged with it. */
static void test_characters(void)
{
    _Alignas(8) uint8_t scratch[24 * 16];
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;
    int32_t ids[16];
    size_t count = 16;

    where = "characters";
    build(&m, CB_PRETOKENIZER_NONE, CB_TOKENIZER_FLAG_BYTE_FALLBACK);
    m.words[KIND] = CB_TOKENIZER_SENTENCEPIECE_BPE;
    m.words[UNK] = 0; /* the tokens 0 to 255 are those of the bytes */
    m.words[m.prefix + 2] = 'a';
    CHECK(open_image(&t, &m, &error) == 0);
    CHECK(t.around == 14 && t.space == UINT32_MAX);
    CHECK(gives(&t, "xabc", COLIBRI_TEXT_PLAIN, (const int32_t[]){ 'x', ABC, -1 }));
    CHECK(gives(&t, "bc", COLIBRI_TEXT_CHAT, (const int32_t[]){ SPECIAL, 'u', ABC, END_ID, -1 }));
    CHECK(gives(&t, "", COLIBRI_TEXT_CHAT, (const int32_t[]){ SPECIAL, 'u', 'a', END_ID, -1 }));
    CHECK(gives(&t, "", COLIBRI_TEXT_PLAIN, (const int32_t[]){ -1 }));
    CHECK(gives(&t, "\xe2\x96\x81", COLIBRI_TEXT_PLAIN, (const int32_t[]){ 0xe2, 0x96, 0x81, -1 }));
    CHECK(cb_tokenizer_encode(&t, NULL, 0, COLIBRI_TEXT_CHAT, scratch, sizeof scratch, ids, &count,
                              &error) == 0);
    CHECK(count == 4);
    count = 16;
    CHECK(cb_tokenizer_encode(&t, "abc", 3, COLIBRI_TEXT_PLAIN, scratch, sizeof scratch, ids, &count,
                              &error) == COLIBRI_ERR_TEXT_LONG);
    CHECK(count == 0 && strstr(error.message, "3 bytes, and 14 around it, the limit is 16"));
    m.words[UNK] = 1;
    CHECK(open_image(&t, &m, &error) == COLIBRI_ERR_TOKENIZER);
    CHECK(strstr(error.message, "id 1 is not the token of byte 0") != NULL);
}

static void test_long_words(void)
{
    enum { LENGTH = 1 << 20 };
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;
    char *text = need(malloc(LENGTH));
    void *scratch = need(malloc(cb_tokenizer_scratch_bytes(LENGTH)));
    int32_t *ids = need(malloc(LENGTH * sizeof *ids));
    size_t count = LENGTH;
    clock_t start = clock();

    where = "long words";
    build(&m, CB_PRETOKENIZER_GPT2, 0);
    CHECK(open_image(&t, &m, &error) == 0);
    memset(text, 'a', LENGTH);
    CHECK(cb_tokenizer_encode(&t, text, LENGTH, COLIBRI_TEXT_PLAIN, scratch,
                              cb_tokenizer_scratch_bytes(LENGTH), ids, &count, &error) == 0);
    CHECK(count == LENGTH / 4 && ids[0] == AAAA && ids[count - 1] == AAAA);
    /* A quadratic merge would take hours; a megabyte of one word takes about a second. */
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 60.0);
    free(text);
    free(scratch);
    free(ids);
}

/* ---- pre-tokenizers --------------------------------------------------------------------------------- */

/* `pieces` is the text with bars where it is split. */
static int splits(uint32_t pretokenizer, const char *pieces)
{
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;
    char text[256], got[256];
    size_t length = 0, at = 0, used = 0, ends[CB_PRETOKENIZER_STEPS] = { 0 };

    build(&m, pretokenizer, 0);
    if (open_image(&t, &m, &error) != 0)
        return 0;
    for (const char *p = pieces; *p; p++)
        if (*p != '|')
            text[length++] = *p;
    while (at < length) {
        size_t end = cb_pretokenize_next(&t, text, at, length, ends);

        if (end <= at || end > length)
            return 0;
        if (at > 0)
            got[used++] = '|';
        memcpy(got + used, text + at, end - at);
        used += end - at;
        at = end;
    }
    got[used] = 0;
    if (strcmp(got, pieces) == 0)
        return 1;
    fprintf(stderr, "  expected [%s]\n  got      [%s]\n", pieces, got);
    return 0;
}

static void test_pretokenizers(void)
{
    const uint32_t gpt2 = CB_PRETOKENIZER_GPT2, smollm = CB_PRETOKENIZER_SMOLLM;
    const uint32_t llama3 = CB_PRETOKENIZER_LLAMA3, qwen2 = CB_PRETOKENIZER_QWEN2;

    where = "pre-tokenizers";
    CHECK(splits(CB_PRETOKENIZER_NONE, "one  two 3"));
    CHECK(splits(gpt2, "Hello| world|,| it|'s|  | 12345|!"));
    CHECK(splits(gpt2, "a|  | b|\n|\n|c|   "));
    CHECK(splits(gpt2, "it|'|S|'| we|'ve|'ll|'d|'re|'m|'t"));
    CHECK(splits(gpt2, "\xc3\xa9t\xc3\xa9| \xe4\xb8\xad\xe6\x96\x87| \xf0\x90\x90\x80"));
    CHECK(splits(gpt2, "a|\xcc\x81|b| \xff\xfe|x")); /* a mark and invalid bytes are other */
    CHECK(splits(gpt2, "a|\xc2\xa0|\xc2\xa0|b|\xc2\xa0"));
    CHECK(splits(smollm, "in| |2|0|2|4|  |7| x|\xd9\xa3|y"));
    CHECK(splits(smollm, "a|   |1|  | b"));
    CHECK(splits(llama3, "it|'S| we|'VE|'\xc5\xbf|ab| '|x| (|abc|)\r\n\n| |123|45\xd9\xa3|  \n"));
    CHECK(splits(llama3, "a| \n \n|  | b|\t|\tc|!!\xff|y| \xff\xff|z"));
    CHECK(splits(llama3, "\r|a|\n\n|b"));
    CHECK(splits(qwen2, "a|1|2|3| |4"));
}

static void test_pretokenizers_of_cases_and_steps(void)
{
    const uint32_t o200k = CB_PRETOKENIZER_O200K, v2 = CB_PRETOKENIZER_DEEPSEEK_V2;
    const uint32_t v3 = CB_PRETOKENIZER_DEEPSEEK_V3;

    where = "pre-tokenizers of cases and steps";
    CHECK(splits(o200k, "Hello| World|Camel|Case| ABC'd|x| it's| IT'LL| a'\xc5\xbf|123|45"));
    CHECK(splits(o200k, "\xe4\xb8\xad" "A\xe4\xb8\xad|AB")); /* the last letter that may be small */
    CHECK(splits(o200k, "\xcc\x81|AB|!\xcc\x81|ABC| x\xcc\x81|Y\xcc\x81|ZZ"));
    CHECK(splits(o200k, "A\xcc\x81" "Bc|D")); /* a mark between large letters */
    CHECK(splits(o200k, "a|//\n/| \n|  | b|\xff\xcc\xcc\x81"));
    CHECK(splits(v2, "Hello| world|,| w|\xc3\xa9|b| |1|2|\n|\r| |\xe4\xb8\xad|\xe0\xa5\xa6|  | x"));
    CHECK(splits(v2, "  | a| |\xe3\x80\x80|\xc2\xa0|\xe3\x80\x80|!")); /* a space that is a sign too */
    CHECK(splits(v2, "\xe3\x80\x80|\xe4\xb8\xad"));
    CHECK(splits(v2, "\xc2\xa0" "a|\t!|\t| b"));
    CHECK(splits(v2, "\xe2\x80\x83\xe2\x80\x98|\xe0\xa5\xa6|\xff\xff|\xe2\x80\x83"));
    CHECK(splits(v3, "def| f|(x|):\n|\t| return| x|_y| =| |123|4|.\n\n| | \xc3\x97!|\xc3\xa9"));
    CHECK(splits(v3, " |\xe4\xb8\xad\xe3\x81\x82|\xe3\x83\xbb|\xe4\xb8\xad|a|\xe3\x81\x80|b\xcc\x81"));
    CHECK(splits(v3, "/ab|/|\xc3\xa9| /|a|//\n|b|\n|c"));
    CHECK(splits(v3, "\x01\x02|\x01" "a|\xff\xff| |\x7f| |\x7f"));
}

/* How many pieces a text has. */
static size_t pieces_of(const struct cb_tokenizer *t, const char *text, size_t length)
{
    size_t ends[CB_PRETOKENIZER_STEPS] = { 0 }, at = 0, pieces = 0;

    for (; at < length; pieces++)
        at = cb_pretokenize_next(t, text, at, length, ends);
    return pieces;
}

/* Runs that make a matcher look far ahead before it fails, each as long as the text, in every pre-tokenizer. */
static void test_no_text_takes_long(void)
{
    enum { LENGTH = 1 << 16 };
    static const char *const units[] = {
        " ", "\n", "\r\n", " \n", "  x", " \n x", "A", "a", "aA", "Aa", "1", "1a", "!", "!a", "/", "'", "'s",
        "\xe4\xb8\xad", "\xe4\xb8\xad" "A", "\xcc\x81", "\xcc\x81" "A", "\xc3\x97", "\xe3\x80\x80",
        "\xe3\x80\x80 ", "\xe2\x80\x83", "\xff", "\xff ", "\xe4\xb8", "\x01", "\x01 ", "\x01" "a",
        "\xe3\x83\xbb\xe3\x81\x82", "\xe3\x81\x80",
    };
    char *text = need(malloc(LENGTH));
    clock_t slowest = 0;
    size_t pieces = 0;

    where = "no text takes long";
    for (uint32_t kind = CB_PRETOKENIZER_NONE; kind <= CB_PRETOKENIZER_DEEPSEEK_V3; kind++) {
        struct image m;
        struct cb_tokenizer t;
        colibri_error error;

        build(&m, kind, 0);
        CHECK(open_image(&t, &m, &error) == 0);
        for (size_t unit = 0; unit < sizeof units / sizeof *units; unit++) {
            size_t bytes = strlen(units[unit]);
            clock_t start = clock();

            for (size_t at = 0; at < LENGTH; at++)
                text[at] = units[unit][at % bytes];
            pieces += pieces_of(&t, text, LENGTH);
            memcpy(text + LENGTH - 3, "A.x", 3); /* what a run waits for in vain */
            pieces += pieces_of(&t, text, LENGTH);
            memcpy(text, "A.x", 3);
            pieces += pieces_of(&t, text, LENGTH);
            if (clock() - start > slowest)
                slowest = clock() - start;
        }
    }
    CHECK(pieces > LENGTH);
    /* The slowest takes some 20 ms; one scan of the rest per character takes over 10 s. */
    CHECK((double)slowest / CLOCKS_PER_SEC < 3.0);
    free(text);
}

/* ---- hostile sections --------------------------------------------------------------------------------- */

struct change {
    const char *what;
    size_t word;
    uint32_t value;
    int code;
};

static void test_rejections(void)
{
    struct image m;
    struct cb_tokenizer t;
    colibri_error error;

    build(&m, CB_PRETOKENIZER_GPT2, CB_TOKENIZER_FLAG_IGNORE_MERGES);
    const struct change changes[] = {
        { "kind none", KIND, 0, COLIBRI_ERR_UNSUPPORTED },
        { "kind sentencepiece", KIND, CB_TOKENIZER_SENTENCEPIECE_BPE, COLIBRI_ERR_UNSUPPORTED },
        { "kind unigram", KIND, CB_TOKENIZER_UNIGRAM, COLIBRI_ERR_UNSUPPORTED },
        { "unknown kind", KIND, 4, COLIBRI_ERR_TOKENIZER },
        { "unknown pre-tokenizer", PRETOKENIZER, 8, COLIBRI_ERR_TOKENIZER },
        { "normalizer nfc", NORMALIZER, 1, COLIBRI_ERR_UNSUPPORTED },
        { "unknown normalizer", NORMALIZER, 3, COLIBRI_ERR_TOKENIZER },
        { "unknown flag", FLAGS, 2 | 64, COLIBRI_ERR_TOKENIZER },
        { "byte fallback", FLAGS, 2 | 4, COLIBRI_ERR_UNSUPPORTED },
        { "prefix space", FLAGS, 2 | 8, COLIBRI_ERR_UNSUPPORTED },
        { "a literal that is not there", N_LITERALS, 1, COLIBRI_ERR_TOKENIZER },
        { "no tokens", N_TOKENS, 0, COLIBRI_ERR_TOKENIZER },
        { "tokens above the limit", N_TOKENS, CB_MAX_VOCABULARY + 1, COLIBRI_ERR_LIMIT },
        { "tokens above the vocabulary", N_TOKENS, TOKENS + 1, COLIBRI_ERR_TOKENIZER },
        { "more specials than tokens", N_SPECIALS, TOKENS + 1, COLIBRI_ERR_TOKENIZER },
        { "more ends than tokens", N_ENDS, TOKENS + 1, COLIBRI_ERR_TOKENIZER },
        { "merges beyond the end", N_MERGES, UINT32_MAX, COLIBRI_ERR_TOKENIZER },
        { "one range too many", N_RANGES, m.words[N_RANGES] + 1, COLIBRI_ERR_TOKENIZER },
        { "text too short", TEXT_BYTES, m.words[TEXT_BYTES] - 1, COLIBRI_ERR_TOKENIZER },
        { "bos out of range", BOS, TOKENS, COLIBRI_ERR_TOKENIZER },
        { "unk out of range", UNK, TOKENS, COLIBRI_ERR_TOKENIZER },
        { "first offset", m.offsets, 1, COLIBRI_ERR_TOKENIZER },
        { "offsets descend", m.offsets + 5, 1, COLIBRI_ERR_TOKENIZER },
        { "long token", m.offsets + 5, 2000, COLIBRI_ERR_LIMIT },
        { "last offset", m.offsets + TOKENS, m.words[TEXT_BYTES] - 1, COLIBRI_ERR_TOKENIZER },
        { "special out of range", m.specials + 1, TOKENS, COLIBRI_ERR_TOKENIZER },
        { "specials descend", m.specials + 1, 4, COLIBRI_ERR_TOKENIZER },
        { "specials repeat", m.specials + 1, SPECIAL, COLIBRI_ERR_TOKENIZER },
        { "end out of range", m.ends, UINT32_MAX, COLIBRI_ERR_TOKENIZER },
        { "class other", m.ranges, 0x09, COLIBRI_ERR_TOKENIZER },
        { "class mark", m.ranges, 0x09 | 4u << 24, COLIBRI_ERR_TOKENIZER },
        { "range descends", m.ranges + 1, 0x08, COLIBRI_ERR_TOKENIZER },
        { "range beyond Unicode", m.ranges + 2 * m.words[N_RANGES] - 1, 0x110000,
          COLIBRI_ERR_TOKENIZER },
        { "ranges overlap", m.ranges + 2, 0x0d | 3u << 24, COLIBRI_ERR_TOKENIZER },
        { "prefix out of range", m.prefix + 2, TOKENS, COLIBRI_ERR_TOKENIZER },
        { "suffix out of range", m.suffix, TOKENS, COLIBRI_ERR_TOKENIZER },
        { "merge part out of range", m.merges + 4 * 5, TOKENS, COLIBRI_ERR_TOKENIZER },
        { "merge result out of range", m.merges + 3, TOKENS, COLIBRI_ERR_TOKENIZER },
        { "rank out of range", m.merges + 2, 6, COLIBRI_ERR_TOKENIZER },
        { "merges not sorted", m.merges + 4, 'A', COLIBRI_ERR_TOKENIZER },
        { "merge repeats", m.merges + 5, 'a', COLIBRI_ERR_TOKENIZER },
        { "merge of other bytes", m.merges + 3, AB, COLIBRI_ERR_TOKENIZER },
        { "merge of other length", m.merges + 3, AAAA, COLIBRI_ERR_TOKENIZER },
        { "sorted id out of range", m.by_text, TOKENS, COLIBRI_ERR_TOKENIZER },
        { "sorted id is special", m.by_text + '<', SPECIAL, COLIBRI_ERR_TOKENIZER },
        { "sorted ids not in order", m.by_text + 1, 0, COLIBRI_ERR_TOKENIZER },
    };

    where = "unchanged";
    CHECK(open_image(&t, &m, &error) == 0);
    CHECK(cb_tokenizer_open(&t, (const uint8_t *)m.words, 63, TOKENS, &error) ==
          COLIBRI_ERR_TOKENIZER);
    CHECK(cb_tokenizer_open(&t, (const uint8_t *)m.words, m.bytes - 1, TOKENS, &error) ==
          COLIBRI_ERR_TOKENIZER);
    CHECK(cb_tokenizer_open(&t, (const uint8_t *)m.words, (size_t)CB_MAX_TOKENIZER_BYTES + 1,
                            TOKENS, &error) == COLIBRI_ERR_LIMIT);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        uint32_t kept = m.words[changes[i].word];

        where = changes[i].what;
        m.words[changes[i].word] = changes[i].value;
        CHECK(open_image(&t, &m, &error) == changes[i].code);
        CHECK(open_image(&t, &m, NULL) == changes[i].code);
        m.words[changes[i].word] = kept;
    }

    where = "plain text must not give a special token";
    m.words[m.specials] = ABC;
    m.words[m.specials + 1] = END_ID;
    CHECK(open_image(&t, &m, &error) == COLIBRI_ERR_TOKENIZER);
    CHECK(strstr(error.message, "special token 258"));
    where = "add_bos without bos";
    build(&m, CB_PRETOKENIZER_GPT2, CB_TOKENIZER_FLAG_ADD_BOS);
    m.words[BOS] = CB_NONE_INDEX;
    CHECK(open_image(&t, &m, &error) == COLIBRI_ERR_TOKENIZER);
}

/* ---- detokenizer ---------------------------------------------------------------------------------------- */

#define FFFD "\xef\xbf\xbd"

/* Feed the bytes one at a time, then all at once. */
static int comes_out(const char *bytes, const char *expected)
{
    for (int one = 0; one < 2; one++) {
        colibri_utf8 state = { .held_bytes = 0 };
        char out[256];
        size_t length = strlen(bytes), at = 0, written;

        for (size_t i = 0; i < length; i += one ? 1 : length) {
            if (colibri_utf8_feed(&state, bytes + i, one ? 1 : length, out + at, sizeof out - at,
                                  &written) != 0)
                return 0;
            at += written;
        }
        at += colibri_utf8_flush(&state, out + at, sizeof out - at);
        if (state.held_bytes != 0 || at != strlen(expected) || memcmp(out, expected, at) != 0)
            return 0;
    }
    return 1;
}

static void test_utf8(void)
{
    colibri_utf8 state = { .held_bytes = 0 };
    char out[64];
    size_t written = 9;

    where = "utf8";
    CHECK(comes_out("a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x90\xa6!", "a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x90\xa6!"));
    CHECK(comes_out("\xff\xfe", FFFD FFFD));
    CHECK(comes_out("\xe4\xb8", FFFD));             /* cut off: one for the whole beginning */
    CHECK(comes_out("\xf0\x9f\x90" "a", FFFD "a"));
    CHECK(comes_out("\xe0\x80\x80", FFFD FFFD FFFD)); /* never well-formed: one for each byte */
    CHECK(comes_out("\xed\xa0\x80", FFFD FFFD FFFD));
    CHECK(comes_out("\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD));
    CHECK(comes_out("\xc3\xc3\xa9", FFFD "\xc3\xa9"));
    CHECK(colibri_utf8_feed(&state, "\xe4\xb8", 2, out, sizeof out, &written) == 0 && written == 0);
    CHECK(colibri_utf8_flush(&state, out, 2) == 0 && state.held_bytes == 2);
    CHECK(colibri_utf8_feed(&state, "\xad", 1, out, sizeof out, &written) == 0 && written == 3);
    CHECK(colibri_utf8_feed(&state, "abcd", 4, out, 27, &written) == COLIBRI_ERR_ARGUMENT);
    CHECK(colibri_utf8_feed(&state, "abcd", 4, out, 28, &written) == 0 && written == 4);
    CHECK(colibri_utf8_feed(NULL, "a", 1, out, sizeof out, &written) == COLIBRI_ERR_ARGUMENT);
    state = (colibri_utf8){ .held = { 'a' }, .held_bytes = 4 };
    CHECK(colibri_utf8_feed(&state, "a", 1, out, sizeof out, &written) == COLIBRI_ERR_ARGUMENT);
    state = (colibri_utf8){ .held = { 'a', 'b', 'c' }, .held_bytes = 3 };
    CHECK(colibri_utf8_feed(&state, "\x80", 1, out, sizeof out, &written) == COLIBRI_ERR_ARGUMENT);
}

/* ---- files of cases --------------------------------------------------------------------------------------- */

struct cases {
    struct cb_tokenizer tokenizer;
    uint8_t *section;
    int open;
};

static int nibble(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Decodes in place; "-" and "" are no bytes. */
static size_t unhex(char *text)
{
    size_t length = 0;

    if (strcmp(text, "-") == 0)
        return 0;
    for (const char *p = text; p[0] && p[1]; p += 2) {
        int high = nibble(p[0]), low = nibble(p[1]);

        CHECK(high >= 0 && low >= 0);
        text[length++] = (char)(high * 16 + low);
    }
    return length;
}

static char *word(char **rest)
{
    static char nothing[] = "-";
    char *found = strtok_r(NULL, " \n", rest);

    CHECK(found != NULL);
    return found ? found : nothing;
}

static void case_section(struct cases *c, char **rest)
{
    const char *path = word(rest);
    uint32_t vocabulary = (uint32_t)strtoul(word(rest), NULL, 10);
    int code = atoi(word(rest));
    FILE *file = fopen(path, "rb");
    colibri_error error = { .code = 0 };
    long size;

    CHECK(file != NULL);
    if (file == NULL)
        return;
    (void)fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    free(c->section);
    c->section = need(malloc((size_t)size + 1));
    CHECK(fread(c->section, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    c->open = cb_tokenizer_open(&c->tokenizer, c->section, (size_t)size, vocabulary, &error);
    if (c->open != code)
        fprintf(stderr, "  code %d, expected %d: %s\n", c->open, code, error.message);
    CHECK(c->open == code);
}

static void case_encode(struct cases *c, char **rest)
{
    enum colibri_text form = strcmp(word(rest), "chat") == 0 ? COLIBRI_TEXT_CHAT : COLIBRI_TEXT_PLAIN;
    char *text = word(rest);
    int code = atoi(word(rest)), got;
    size_t length = unhex(text), count = length + 4096, n = 0;
    size_t scratch_bytes = cb_tokenizer_scratch_bytes(length + (size_t)c->tokenizer.around);
    void *scratch = need(malloc(scratch_bytes + 1));
    int32_t *ids = need(malloc(count * sizeof *ids));
    const char *id;

    CHECK(c->section != NULL && c->open == 0);
    if (c->section == NULL || c->open != 0)
        exit(1);
    got = cb_tokenizer_encode(&c->tokenizer, text, length, form, scratch, scratch_bytes, ids,
                              &count, NULL);
    CHECK(got == code);
    for (; (id = strtok_r(NULL, " \n", rest)) != NULL; n++)
        if (n >= count || ids[n] != atoi(id))
            break;
    if (id != NULL || n != count)
        fprintf(stderr, "  id %zu of %zu differs (expected %s)\n", n, count, id ? id : "no more");
    CHECK(id == NULL && n == count);
    free(scratch);
    free(ids);
}

static void case_utf8(char **rest)
{
    char *chunks = word(rest), *expected = word(rest), *inner = NULL;
    size_t room = strlen(chunks) * 3 + 64, at = 0, length = unhex(expected), written;
    char *out = need(malloc(room));
    colibri_utf8 state = { .held_bytes = 0 };

    for (char *chunk = strtok_r(chunks, ",", &inner); chunk; chunk = strtok_r(NULL, ",", &inner)) {
        size_t bytes = unhex(chunk);

        CHECK(colibri_utf8_feed(&state, chunk, bytes, out + at, 3 * bytes + 16, &written) == 0);
        at += written;
    }
    at += colibri_utf8_flush(&state, out + at, room - at);
    CHECK(at == length && memcmp(out, expected, at) == 0);
    free(out);
}

static void run_file(const char *path)
{
    FILE *file = fopen(path, "r");
    struct cases c = { .section = NULL, .open = -1 };
    char *line = NULL, place[300];
    size_t room = 0, number = 0, cases = 0;

    if (file == NULL) {
        perror(path);
        exit(1);
    }
    while (getline(&line, &room, file) > 0) {
        char *rest = NULL, *kind;

        (void)snprintf(place, sizeof place, "%s:%zu", path, ++number);
        where = place;
        kind = strtok_r(line, " \n", &rest);
        if (kind == NULL || kind[0] == '#')
            continue;
        cases++;
        if (strcmp(kind, "section") == 0)
            case_section(&c, &rest);
        else if (strcmp(kind, "encode") == 0)
            case_encode(&c, &rest);
        else if (strcmp(kind, "utf8") == 0)
            case_utf8(&rest);
        else
            check(0, "unknown kind of case", __LINE__);
    }
    CHECK(cases > 0);
    free(line);
    free(c.section);
    fclose(file);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        for (int i = 1; i < argc; i++)
            run_file(argv[i]);
    } else {
        test_merges();
        test_flags();
        test_missing_bytes();
        test_lookups();
        test_limits();
        test_characters();
        test_long_words();
        test_pretokenizers();
        test_pretokenizers_of_cases_and_steps();
        test_no_text_takes_long();
        test_rejections();
        test_utf8();
    }
    printf("test_tokenizer: %u checks, %u failures\n", checks, failures);
    return failures ? 1 : 0;
}
