/* SPDX-License-Identifier: MIT */
#include "format.h"

#include <string.h>

#include "common.h"
#include "cursor.h"
#include "error.h"
#include "sha256.h"

static const struct {
    const char *name;
    uint64_t limit;
    int mandatory;
    int hashed; /* the table holds its hash: the others are bound by the root or by extents */
} kinds[CB_SECTION_KINDS] = {
    [CB_SECTION_RECORDS] = {"records", CB_MAX_RECORDS_BYTES, 1, 0},
    [CB_SECTION_DIRECTORY] = {"directory",
                              CB_DIRECTORY_HEADER_BYTES +
                                  (uint64_t)CB_MAX_EXTENTS * CB_EXTENT_ENTRY_BYTES +
                                  (uint64_t)CB_MAX_TENSORS * CB_TENSOR_ENTRY_BYTES,
                              1, 0},
    [CB_SECTION_TOKENIZER] = {"tokenizer", CB_MAX_TOKENIZER_BYTES, 0, 1},
    [CB_SECTION_PROVENANCE] = {"provenance", CB_MAX_PROVENANCE_BYTES, 1, 1},
    [CB_SECTION_CALIBRATION] = {"calibration", CB_MAX_CALIBRATION_BYTES, 0, 1},
    [CB_SECTION_TRUNK] = {"trunk", CB_MAX_FILE_BYTES, 1, 0},
    [CB_SECTION_EXPERTS] = {"experts", CB_MAX_FILE_BYTES, 1, 0},
    [CB_SECTION_SIGNATURE] = {"signature", CB_MAX_SIGNATURE_BYTES, 0, 0},
};

const char *cb_section_name(uint32_t kind)
{
    return kind < CB_SECTION_KINDS && kinds[kind].name != NULL ? kinds[kind].name : "unknown";
}

static uint64_t section_align(uint32_t kind)
{
    return kind == CB_SECTION_TRUNK ? CB_TRUNK_ALIGN_BYTES : CB_SECTION_ALIGN_BYTES;
}

/* Length and magic: what a caller who picked the wrong file wants to hear first. */
static int check_magic(const uint8_t *map, uint64_t bytes, colibri_error *error)
{
    static const uint8_t magic[8] = CB_MAGIC_BYTES;
    size_t n = bytes < sizeof magic ? (size_t)bytes : sizeof magic;

    if (bytes == 0)
        return cb_fail(error, COLIBRI_ERR_EMPTY, 0, "the file is empty");
    if (memcmp(map, magic, n) != 0)
        return cb_fail(error, COLIBRI_ERR_BAD_MAGIC, 0,
                       "not a .colibri file: it does not begin with COLIBRI and 0x1a");
    if (bytes < CB_HEADER_BYTES)
        return cb_fail(error, COLIBRI_ERR_TRUNCATED, (int64_t)bytes,
                       "the file has %llu bytes, its header alone has %u",
                       (unsigned long long)bytes, CB_HEADER_BYTES);
    return 0;
}

static int check_header(struct cb_container *c, struct cb_cursor *h, uint32_t *sections,
                        colibri_error *error)
{
    uint32_t value;
    uint64_t size, unknown;
    size_t bad;

    c->version_major = cb_cursor_u16(h);
    c->version_minor = cb_cursor_u16(h);
    if (c->version_major < CB_VERSION_OLDEST || c->version_major > CB_VERSION_MAJOR)
        return cb_fail(error, COLIBRI_ERR_VERSION, 8,
                       "format version %u.%u, this build reads %u..%u; convert the model again or "
                       "update the library",
                       c->version_major, c->version_minor, CB_VERSION_OLDEST, CB_VERSION_MAJOR);
    value = cb_cursor_u32(h);
    if (value != CB_HEADER_BYTES)
        return cb_fail(error, COLIBRI_ERR_HEADER, 12, "header size is %u, must be %u", value,
                       CB_HEADER_BYTES);
    c->required = cb_cursor_u64(h);
    c->optional = cb_cursor_u64(h);
    unknown = c->required & ~CB_REQUIRED_KNOWN;
    if (unknown != 0)
        return cb_fail(error, COLIBRI_ERR_FEATURE, 16,
                       "required features 0x%llx are unknown to this build; update the library",
                       (unsigned long long)unknown);
    size = cb_cursor_u64(h);
    if (size > CB_MAX_FILE_BYTES)
        return cb_fail(error, COLIBRI_ERR_LIMIT, 32, "file size is %llu, the limit is %llu",
                       (unsigned long long)size, (unsigned long long)CB_MAX_FILE_BYTES);
    if (c->bytes < size)
        return cb_fail(error, COLIBRI_ERR_TRUNCATED, (int64_t)c->bytes,
                       "the file has %llu bytes, its header says %llu; copy it again",
                       (unsigned long long)c->bytes, (unsigned long long)size);
    if (c->bytes > size)
        return cb_fail(error, COLIBRI_ERR_HEADER, (int64_t)size,
                       "the file has %llu bytes, its header says %llu",
                       (unsigned long long)c->bytes, (unsigned long long)size);
    *sections = cb_cursor_u32(h);
    if (*sections < CB_MIN_SECTIONS || *sections > CB_MAX_SECTIONS)
        return cb_fail(error, COLIBRI_ERR_SECTION, 40, "%u sections, must be %u..%u", *sections,
                       CB_MIN_SECTIONS, CB_MAX_SECTIONS);
    value = cb_cursor_u32(h);
    if (value != CB_CHUNK_BYTES)
        return cb_fail(error, COLIBRI_ERR_HEADER, 44, "chunk size is %u, must be %u", value,
                       CB_CHUNK_BYTES);
    cb_cursor_read(h, c->root, sizeof c->root);
    bad = cb_first_nonzero(c->map + CB_HEADER_RESERVED_OFFSET,
                           CB_SECTION_TABLE_OFFSET - CB_HEADER_RESERVED_OFFSET);
    if (bad < CB_SECTION_TABLE_OFFSET - CB_HEADER_RESERVED_OFFSET)
        return cb_fail(error, COLIBRI_ERR_HEADER, (int64_t)(CB_HEADER_RESERVED_OFFSET + bad),
                       "reserved byte of the header is not 0");
    return 0;
}

/* `end` moves from the end of the previous section to the end of this one. */
static int read_section(struct cb_container *c, struct cb_cursor *t, uint32_t *previous,
                        uint64_t *end, colibri_error *error)
{
    int64_t at = cb_cursor_offset(t);
    uint32_t kind = cb_cursor_u32(t), flags = cb_cursor_u32(t);
    uint64_t offset = cb_cursor_u64(t), size = cb_cursor_u64(t), reserved = cb_cursor_u64(t);
    uint64_t place;
    struct cb_section *s;
    const char *name;

    if (kind == 0 || kind >= CB_SECTION_KINDS)
        return cb_fail(error, COLIBRI_ERR_SECTION, at, "section kind %u is unknown", kind);
    name = kinds[kind].name;
    if (kind <= *previous)
        return cb_fail(error, COLIBRI_ERR_SECTION, at, "section %s stands behind section %s",
                       name, kinds[*previous].name);
    if (flags != 0 || reserved != 0)
        return cb_fail(error, COLIBRI_ERR_SECTION, at,
                       "section %s: flags and the reserved field must be 0", name);
    if (size > kinds[kind].limit)
        return cb_fail(error, COLIBRI_ERR_LIMIT, at + 16, "section %s has %llu bytes, limit %llu",
                       name, (unsigned long long)size,
                       (unsigned long long)kinds[kind].limit);
    place = cb_up(*end, section_align(kind));
    if (offset != place)
        return cb_fail(error, COLIBRI_ERR_SECTION, at + 8,
                       "section %s is at offset %llu, its place is %llu", name,
                       (unsigned long long)offset, (unsigned long long)place);
    if (offset > c->bytes || size > c->bytes - offset)
        return cb_fail(error, COLIBRI_ERR_SECTION, at + 16,
                       "section %s (offset %llu, %llu bytes) leaves the file of %llu bytes",
                       name, (unsigned long long)offset, (unsigned long long)size,
                       (unsigned long long)c->bytes);
    s = &c->sections[kind];
    s->present = 1;
    s->offset = offset;
    s->size = size;
    cb_cursor_read(t, s->hash, sizeof s->hash);
    if (!kinds[kind].hashed && cb_first_nonzero(s->hash, sizeof s->hash) < sizeof s->hash)
        return cb_fail(error, COLIBRI_ERR_SECTION, at + 32,
                       "section %s has a hash in the table, must be zero bytes", name);
    *previous = kind;
    *end = offset + size;
    return 0;
}

int cb_container_open(struct cb_container *c, const uint8_t *map, uint64_t bytes,
                      colibri_error *error)
{
    struct cb_cursor cursor;
    uint32_t sections = 0, previous = 0, i, kind;
    uint64_t end = CB_HEADER_BYTES;
    size_t rest, bad;
    int code;

    memset(c, 0, sizeof *c);
    c->map = map;
    c->tail_offset = UINT64_MAX;
    c->bytes = bytes;
    code = check_magic(map, bytes, error);
    if (code != 0)
        return code;
    cb_cursor_init(&cursor, map, CB_HEADER_BYTES, 0);
    (void)cb_cursor_take(&cursor, 8);
    code = check_header(c, &cursor, &sections, error);
    if (code != 0)
        return code;
    (void)cb_cursor_take(&cursor, CB_SECTION_TABLE_OFFSET - cursor.at);
    for (i = 0; i < sections; i++) {
        code = read_section(c, &cursor, &previous, &end, error);
        if (code != 0)
            return code;
    }
    rest = cb_cursor_left(&cursor);
    bad = cb_first_nonzero(map + cursor.at, rest);
    if (bad < rest)
        return cb_fail(error, COLIBRI_ERR_HEADER, (int64_t)(cursor.at + bad),
                       "byte behind the section table is not 0");
    for (kind = 1; kind < CB_SECTION_KINDS; kind++) {
        if (kinds[kind].mandatory && !c->sections[kind].present)
            return cb_fail(error, COLIBRI_ERR_SECTION, CB_SECTION_TABLE_OFFSET,
                           "section %s is missing", kinds[kind].name);
    }
    if (cb_up(end, CB_SECTION_ALIGN_BYTES) != bytes)
        return cb_fail(error, COLIBRI_ERR_SECTION, (int64_t)end,
                       "the last section ends at %llu, so the file must have %llu bytes, not %llu",
                       (unsigned long long)end,
                       (unsigned long long)cb_up(end, CB_SECTION_ALIGN_BYTES),
                       (unsigned long long)bytes);
    return 0;
}

int cb_container_check_root(const struct cb_container *c, const uint8_t *records,
                            const uint8_t *directory, colibri_error *error)
{
    static const uint8_t zeros[CB_HASH_BYTES];
    struct cb_sha256 s;
    uint8_t root[CB_HASH_BYTES];

    cb_sha256_init(&s);
    cb_sha256_update(&s, c->map, CB_ROOT_OFFSET);
    cb_sha256_update(&s, zeros, sizeof zeros);
    cb_sha256_update(&s, c->map + CB_HEADER_RESERVED_OFFSET,
                     CB_HEADER_BYTES - CB_HEADER_RESERVED_OFFSET);
    cb_sha256_update(&s, records, (size_t)c->sections[CB_SECTION_RECORDS].size);
    cb_sha256_update(&s, directory, (size_t)c->sections[CB_SECTION_DIRECTORY].size);
    cb_sha256_final(&s, root);
    if (memcmp(root, c->root, sizeof root) != 0)
        return cb_fail(error, COLIBRI_ERR_ROOT_MISMATCH, CB_ROOT_OFFSET,
                       "the root hash does not match header, records and directory: the file is "
                       "damaged or was changed; copy it again");
    return 0;
}

int cb_container_check_padding(const struct cb_container *c, colibri_error *error)
{
    uint64_t end = CB_HEADER_BYTES;
    uint32_t kind;

    /* One step more than there are kinds: from the last section to the end of the file. */
    for (kind = 1; kind <= CB_SECTION_KINDS; kind++) {
        uint64_t next = c->bytes;
        size_t gap, bad;

        if (kind < CB_SECTION_KINDS) {
            if (!c->sections[kind].present)
                continue;
            next = c->sections[kind].offset;
        }
        gap = (size_t)(next - end);
        bad = gap == 0 ? 0 : cb_first_nonzero(cb_container_at(c, end), gap);
        if (bad < gap)
            return cb_fail(error, COLIBRI_ERR_PADDING, (int64_t)(end + bad),
                           "byte between sections is not 0 (before %s)",
                           kind < CB_SECTION_KINDS ? kinds[kind].name : "the end of the file");
        if (kind < CB_SECTION_KINDS)
            end = c->sections[kind].offset + c->sections[kind].size;
    }
    return 0;
}
