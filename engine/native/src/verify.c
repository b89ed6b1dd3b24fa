/* SPDX-License-Identifier: MIT */
#include "verify.h"

#include <stdio.h>
#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"
#include "sha256.h"

/* An extent that is being looked at by all threads. */
struct check {
    const colibri_model *m;
    struct cb_extent extent;
    const uint8_t *data;
    uint64_t chunks;
    uint32_t first, count;             /* its tensors in the directory */
    uint64_t bad[CB_MAX_THREADS];      /* chunk, or offset in the extent, that a thread refused */
    uint32_t role[CB_MAX_THREADS];
    int code[CB_MAX_THREADS];
};

static const char *extent_name(const struct cb_extent *e)
{
    if (e->kind == CB_EXTENT_EXPERT)
        return "expert";
    return e->layer == CB_NONE_INDEX ? "global trunk" : "trunk";
}

int cb_verify_section(const struct cb_container *c, uint32_t kind, colibri_error *error)
{
    const struct cb_section *section = &c->sections[kind];
    const uint8_t *data = cb_container_at(c, section->offset);
    uint64_t left = section->size;
    struct cb_sha256 s;
    uint8_t hash[CB_HASH_BYTES];

    cb_sha256_init(&s);
    while (left > 0) {
        size_t part = (size_t)cb_min64(left, CB_CHUNK_BYTES);

        cb_sha256(data, part, hash);
        cb_sha256_update(&s, hash, sizeof hash);
        data += part;
        left -= part;
    }
    cb_sha256_final(&s, hash);
    if (memcmp(hash, section->hash, sizeof hash) != 0)
        return cb_fail(error, COLIBRI_ERR_CHUNK_MISMATCH, (int64_t)section->offset,
                       "section %s does not match its hash: the file is damaged or was changed; "
                       "copy it again",
                       cb_section_name(kind));
    return 0;
}

static int check_table(const struct check *c, struct cb_verdict *v)
{
    const uint8_t *table = c->data + c->extent.size;
    size_t used = (size_t)c->chunks * CB_HASH_BYTES;
    size_t all = (size_t)cb_chunk_table_bytes(c->extent.size), bad;
    uint8_t hash[CB_HASH_BYTES];

    cb_sha256(table, used, hash);
    bad = memcmp(hash, c->extent.hash, sizeof hash) != 0
              ? 0
              : used + cb_first_nonzero(table + used, all - used);
    v->offset = c->extent.size + bad;
    if (bad == 0)
        return COLIBRI_ERR_CHUNK_MISMATCH;
    return bad < all ? COLIBRI_ERR_PADDING : 0;
}

static int check_chunks(void *context, unsigned index, unsigned count)
{
    struct check *c = context;
    const uint8_t *table = c->data + c->extent.size;
    size_t chunk, last;

    cb_share((size_t)c->chunks, index, count, &chunk, &last);
    while (chunk < last) {
        uint64_t at = (uint64_t)chunk * CB_CHUNK_BYTES;
        const uint8_t *data = c->data + at;
        size_t size = (size_t)cb_min64(c->extent.size - at, CB_CHUNK_BYTES), done, i;
        uint8_t hash[2][CB_HASH_BYTES];

        done = chunk + 1 < last && c->extent.size - at >= 2 * (uint64_t)CB_CHUNK_BYTES ? 2 : 1;
        if (done == 2)
            cb_sha256_pair(data, data + size, size, hash);
        else
            cb_sha256(data, size, hash[0]);
        for (i = 0; i < done; i++, chunk++) {
            if (memcmp(hash[i], table + chunk * CB_HASH_BYTES, CB_HASH_BYTES) != 0) {
                c->bad[index] = chunk;
                return COLIBRI_ERR_CHUNK_MISMATCH;
            }
        }
    }
    return 0;
}

/* ---- values -------------------------------------------------------------------------------- */

/* Index of the first of n 16-bit floats whose exponent bits are all ones, or n. */
static size_t bad_16(const uint8_t *data, size_t n, uint16_t exponent)
{
    size_t i;

    for (i = 0; i < n; i++) {
        uint16_t bits;

        memcpy(&bits, data + 2 * i, sizeof bits);
        if ((bits & exponent) == exponent)
            break;
    }
    return i;
}

static size_t bad_f32(const uint8_t *data, size_t n)
{
    size_t i = 0;

    while (i < n && cb_is_finite(data + 4 * i))
        i++;
    return i;
}

/* Byte offset of the first value of a panel that is not finite, or `bytes`. */
static size_t bad_value(uint32_t dtype, const uint8_t *panel, size_t bytes)
{
    size_t block = dtype == CB_DTYPE_INT4 ? CB_INT4_BLOCK_BYTES : CB_INT8_BLOCK_BYTES, at;

    switch (dtype) {
    case CB_DTYPE_F32:
        return 4 * bad_f32(panel, bytes / 4);
    case CB_DTYPE_F16:
        return 2 * bad_16(panel, bytes / 2, 0x7c00);
    case CB_DTYPE_BF16:
        return 2 * bad_16(panel, bytes / 2, 0x7f80);
    default:
        for (at = block - 2 * CB_PANEL_ROWS; at < bytes; at += block) {
            size_t bad = bad_16(panel + at, CB_PANEL_ROWS, 0x7c00);

            if (bad < CB_PANEL_ROWS)
                return at + 2 * bad;
        }
        return bytes;
    }
}

/* Is element (row, column) of a block or panel stored as zero? */
static int is_zero(uint32_t dtype, const uint8_t *panel, uint32_t row, uint32_t column)
{
    static const uint8_t zeros[4];
    uint32_t group = column / CB_GROUP_COLUMNS, k = column % CB_GROUP_COLUMNS;
    uint32_t within = k % 16;
    size_t width = dtype == CB_DTYPE_F32 ? 4 : 2;
    uint8_t byte;

    switch (dtype) {
    case CB_DTYPE_INT4:
        byte = panel[(size_t)group * CB_INT4_BLOCK_BYTES + 32 * (within / 4) + 4 * row + within % 4];
        return (k < 16 ? byte & 15 : byte >> 4) == 8;
    case CB_DTYPE_INT8:
        return panel[(size_t)group * CB_INT8_BLOCK_BYTES + 32 * (k / 4) + 4 * row + k % 4] == 0;
    default:
        return memcmp(panel + ((size_t)column * CB_PANEL_ROWS + row) * width, zeros, width) == 0;
    }
}

static int padded_row_is_zero(uint32_t dtype, const uint8_t *panel, uint32_t row, uint32_t columns)
{
    uint32_t padded = cb_up32(columns, CB_GROUP_COLUMNS), i;
    size_t block = dtype == CB_DTYPE_INT4 ? CB_INT4_BLOCK_BYTES : CB_INT8_BLOCK_BYTES;

    for (i = 0; i < padded; i++) {
        if (!is_zero(dtype, panel, row, i))
            return 0;
    }
    if (dtype != CB_DTYPE_INT4 && dtype != CB_DTYPE_INT8)
        return 1;
    for (i = 1; i <= padded / CB_GROUP_COLUMNS; i++) {
        const uint8_t *scale = panel + i * block - 2 * CB_PANEL_ROWS + 2 * (size_t)row;

        if (scale[0] != 0 || scale[1] != 0)
            return 0;
    }
    return 1;
}

/* The padding of a panel whose first `rows` rows are real. */
static int padding_is_zero(uint32_t dtype, const uint8_t *panel, uint32_t rows, uint32_t columns)
{
    uint32_t padded = cb_up32(columns, CB_GROUP_COLUMNS), row, column;

    for (row = 0; row < CB_PANEL_ROWS; row++) {
        if (row >= rows && !padded_row_is_zero(dtype, panel, row, columns))
            return 0;
        for (column = columns; column < padded; column++) {
            if (!is_zero(dtype, panel, row, column))
                return 0;
        }
    }
    return 1;
}

static int check_panels(const struct cb_tensor *t, const uint8_t *data, size_t panel, size_t last,
                        uint64_t *bad)
{
    size_t bytes = cb_panel_bytes(t->dtype, t->columns);

    for (; panel < last; panel++) {
        const uint8_t *p = data + panel * bytes;
        uint32_t rows = (uint32_t)cb_min64(t->rows - panel * CB_PANEL_ROWS, CB_PANEL_ROWS);
        size_t at = bad_value(t->dtype, p, bytes);

        *bad = panel * bytes + at;
        if (at < bytes)
            return COLIBRI_ERR_WEIGHTS;
        *bad = panel * bytes;
        if ((rows < CB_PANEL_ROWS || t->columns % CB_GROUP_COLUMNS != 0) &&
            !padding_is_zero(t->dtype, p, rows, t->columns))
            return COLIBRI_ERR_PADDING;
    }
    return 0;
}

static int check_rows(const struct cb_tensor *t, const uint8_t *data, uint64_t *bad)
{
    size_t stride = 4 * (size_t)cb_up32(t->columns, CB_GROUP_COLUMNS), used = 4 * (size_t)t->columns;
    uint32_t row;

    for (row = 0; row < t->rows; row++) {
        const uint8_t *p = data + row * stride;
        size_t at = 4 * bad_f32(p, stride / 4);

        *bad = row * stride + at;
        if (at < stride)
            return COLIBRI_ERR_WEIGHTS;
        at = cb_first_nonzero(p + used, stride - used);
        *bad = row * stride + used + at;
        if (at < stride - used)
            return COLIBRI_ERR_PADDING;
    }
    return 0;
}

static int check_values(void *context, unsigned index, unsigned count)
{
    struct check *c = context;
    uint32_t i;

    for (i = 0; i < c->count; i++) {
        struct cb_tensor t, next;
        uint64_t end = c->extent.size, bad = 0;
        int code = 0;

        cb_directory_tensor(&c->m->directory, c->first + i, &t);
        if (i + 1 < c->count) {
            cb_directory_tensor(&c->m->directory, c->first + i + 1, &next);
            end = next.offset;
        }
        if (t.layout == CB_LAYOUT_PANEL8) {
            size_t panel, last;

            cb_share((size_t)cb_up32(t.rows, CB_PANEL_ROWS) / CB_PANEL_ROWS, index, count, &panel,
                     &last);
            code = check_panels(&t, c->data + t.offset, panel, last, &bad);
        } else if (index == 0) {
            code = check_rows(&t, c->data + t.offset, &bad);
        }
        if (code == 0 && index == 0) {
            size_t gap = (size_t)(end - t.offset - t.size);

            bad = t.size + cb_first_nonzero(c->data + t.offset + t.size, gap);
            if (bad < t.size + gap)
                code = COLIBRI_ERR_PADDING;
        }
        if (code != 0) {
            c->bad[index] = t.offset + bad;
            c->role[index] = t.role;
            c->code[index] = code;
            return code;
        }
    }
    return 0;
}

/* ---- an extent ------------------------------------------------------------------------------ */

static void begin_check(struct check *c, const colibri_model *m, uint32_t index, const uint8_t *data)
{
    memset(c, 0, sizeof *c);
    memset(c->bad, 0xff, sizeof c->bad);
    c->m = m;
    cb_directory_extent(&m->directory, index, &c->extent);
    c->data = data;
    c->chunks = cb_chunk_count(c->extent.size);
    if (c->extent.layer == CB_NONE_INDEX) {
        c->count = m->global_tensors;
    } else {
        const struct cb_layer *l = cb_model_layer(m, c->extent.layer);
        const uint32_t *range = c->extent.kind == CB_EXTENT_EXPERT ? l->expert_tensors : l->trunk_tensors;

        c->first = range[0];
        c->count = range[1];
    }
}

/* Run a step on all threads of the pool, or on the caller's alone. The lowest place that a thread
 * refused is the same place for every number of threads. */
static int run_step(struct cb_pool *pool, cb_task *task, struct check *c, unsigned *who)
{
    int code = pool != NULL ? cb_pool_run(pool, task, c, (size_t)c->chunks) : task(c, 0, 1);
    unsigned i;

    *who = 0;
    for (i = 1; pool != NULL && i < pool->threads; i++) {
        if (c->bad[i] < c->bad[*who])
            *who = i;
    }
    return code;
}

int cb_verify_data(const colibri_model *m, struct cb_pool *pool, uint32_t index,
                   const uint8_t *data, unsigned what, struct cb_verdict *v)
{
    struct check c;
    unsigned who;

    begin_check(&c, m, index, data);
    v->role = CB_NONE_INDEX;
    v->code = 0;
    if (what & CB_VERIFY_HASHES) {
        v->code = check_table(&c, v);
        if (v->code != 0)
            return v->code;
        v->code = run_step(pool, check_chunks, &c, &who);
        v->offset = c.bad[who] * CB_CHUNK_BYTES;
    }
    if (v->code == 0 && what & CB_VERIFY_VALUES) {
        memset(c.bad, 0xff, sizeof c.bad);
        v->code = run_step(pool, check_values, &c, &who);
        if (v->code != 0) {
            v->code = c.code[who];
            v->offset = c.bad[who];
            v->role = c.role[who];
        }
    }
    return v->code;
}

int cb_verify_fail(const colibri_model *m, uint32_t index, const struct cb_verdict *v,
                   colibri_error *error)
{
    struct cb_extent e;
    char what[96];

    cb_directory_extent(&m->directory, index, &e);
    if (v->role != CB_NONE_INDEX)
        (void)snprintf(what, sizeof what, "tensor role %u holds %s; convert the model again", v->role,
                       v->code == COLIBRI_ERR_WEIGHTS ? "a value that is not finite"
                                                      : "padding that is not zero");
    else if (v->code == COLIBRI_ERR_PADDING)
        (void)snprintf(what, sizeof what, "byte behind its chunk hashes is not 0");
    else if (v->offset >= e.size)
        (void)snprintf(what, sizeof what, "its chunk hashes do not match the directory");
    else
        (void)snprintf(what, sizeof what, "chunk %llu does not match its hash",
                       (unsigned long long)(v->offset / CB_CHUNK_BYTES));
    return cb_fail(error, v->code, (int64_t)(e.offset + v->offset),
                   "%s extent of layer %d, expert %d: %s%s", extent_name(&e), (int)e.layer,
                   (int)e.expert, what,
                   v->code == COLIBRI_ERR_CHUNK_MISMATCH
                       ? ": the file is damaged or was changed; copy it again"
                       : "");
}

void cb_verify_mark(colibri_model *m, uint32_t index)
{
    m->verified_count += !m->verified[index];
    m->verified[index] = 1;
}

int cb_verify_again(colibri_model *m, uint32_t index, colibri_error *error)
{
    unsigned what = m->verified[index] ? CB_VERIFY_HASHES : CB_VERIFY_HASHES | CB_VERIFY_VALUES;
    struct cb_verdict v;
    struct cb_extent e;

    cb_directory_extent(&m->directory, index, &e);
    if (cb_verify_data(m, &m->pool, index, m->file.base + e.offset, what, &v) != 0)
        return cb_verify_fail(m, index, &v, error);
    cb_verify_mark(m, index);
    return 0;
}

int cb_verify_extent(colibri_model *m, uint32_t index, colibri_error *error)
{
    return m->verified[index] ? 0 : cb_verify_again(m, index, error);
}

int cb_verify_all(colibri_model *m, uint32_t extents, colibri_error *error)
{
    static const uint32_t hashed[] = {CB_SECTION_TOKENIZER, CB_SECTION_PROVENANCE,
                                      CB_SECTION_CALIBRATION};
    uint32_t i;
    int code = 0;

    for (i = 0; code == 0 && i < sizeof hashed / sizeof hashed[0]; i++) {
        if (m->container.sections[hashed[i]].present)
            code = cb_verify_section(&m->container, hashed[i], error);
    }
    for (i = 0; code == 0 && i < extents; i++)
        code = cb_verify_extent(m, i, error);
    return code;
}
