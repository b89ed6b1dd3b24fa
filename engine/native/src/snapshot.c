/* SPDX-License-Identifier: MIT */
/*
 * A prepared prefix is saved once and restored before the first token. A snapshot is as hostile as
 * a model file: everything is checked before the session changes.
 */
#include "snapshot.h"

#include <string.h>

#include "common.h"
#include "error.h"
#include "model.h"
#include "sha256.h"

static uint32_t kv_kind(const colibri_model *m)
{
    return m->plan.kv == COLIBRI_KV_F32 ? CB_KV_F32 : CB_KV_F16;
}

/* ---- the KV cache ------------------------------------------------------------------------------ */

/* The same of one plane [heads][context][dim]. */
static uint64_t move_plane(const colibri_session *s, uint8_t *plane, uint64_t heads, uint64_t dim,
                           uint32_t positions, uint8_t *out, const uint8_t *in, int fill)
{
    uint64_t row = dim * cb_kv_element_bytes(s->model->plan.kv), used = positions * row, head;

    for (head = 0; head < heads; head++) {
        uint8_t *at = plane + (size_t)(head * s->model->plan.context_tokens * row);

        if (out != NULL)
            memcpy(out + (size_t)(head * used), at, (size_t)used);
        if (in != NULL)
            memcpy(at, in + (size_t)(head * used), (size_t)used);
        if (fill >= 0)
            cb_fill(at, fill, (size_t)used);
    }
    return heads * used;
}

uint64_t cb_session_cache(const colibri_session *s, uint32_t positions, uint8_t *out, const uint8_t *in,
                          int fill)
{
    const colibri_model *m = s->model;
    uint64_t bytes = m->shape.states;
    uint32_t layer;

    if (out != NULL)
        memcpy(out, s->states, (size_t)bytes);
    if (in != NULL)
        memcpy(s->states, in, (size_t)bytes);
    if (fill >= 0) {
        cb_fill(s->states, fill, (size_t)bytes);
        cb_fill(s->kept, fill, (size_t)bytes);
    }
    for (layer = 0; layer < m->block.layers; layer++) {
        const struct cb_layer *l = cb_model_layer(m, layer);
        const struct cb_block_attention *a = &l->r.attention;

        /* Heads and widths of a layer without attention are 0. */
        bytes += move_plane(s, s->kv + l->k_offset, a->kv_heads, a->head_dim, positions,
                            out == NULL ? NULL : out + (size_t)bytes,
                            in == NULL ? NULL : in + (size_t)bytes, fill);
        bytes += move_plane(s, s->kv + l->v_offset, a->kv_heads, a->value_dim, positions,
                            out == NULL ? NULL : out + (size_t)bytes,
                            in == NULL ? NULL : in + (size_t)bytes, fill);
    }
    return bytes;
}

static uint64_t total_bytes(const colibri_session *s, uint32_t position)
{
    return CB_SNAPSHOT_HEADER_BYTES + 4 * (uint64_t)position + 4 * (uint64_t)s->model->block.vocabulary +
           cb_session_cache(s, position, NULL, NULL, -1);
}

static void hash_snapshot(const uint8_t *data, size_t bytes, uint8_t hash[CB_HASH_BYTES])
{
    static const uint8_t zeros[CB_HASH_BYTES];
    size_t at = offsetof(struct cb_snapshot_header, hash);
    struct cb_sha256 h;

    cb_sha256_init(&h);
    cb_sha256_update(&h, data, at);
    cb_sha256_update(&h, zeros, sizeof zeros);
    cb_sha256_update(&h, data + at + sizeof zeros, bytes - at - sizeof zeros);
    cb_sha256_final(&h, hash);
}

/* ---- save ---------------------------------------------------------------------------------------- */

uint64_t colibri_session_snapshot_bytes(const colibri_session *s)
{
    return s->has_logits ? total_bytes(s, s->position) : 0;
}

int colibri_session_save(colibri_session *s, void *memory, size_t capacity, colibri_error *error)
{
    struct cb_snapshot_header h = {.magic = CB_SNAPSHOT_MAGIC};
    uint8_t *out = memory;
    int code;

    if (s == NULL || memory == NULL)
        return cb_deny_null(error, "colibri_session_save", "session and memory");
    code = cb_model_enter(s->model, "colibri_session_save", error);
    if (code != 0)
        return code;
    h.total_bytes = colibri_session_snapshot_bytes(s);
    if (h.total_bytes == 0 || h.total_bytes > capacity) {
        cb_model_leave(s->model);
        return cb_deny(error, COLIBRI_ERR_ARGUMENT,
                       "a snapshot of position %u needs %llu bytes, there are %zu; append at least "
                       "one token, and ask colibri_session_snapshot_bytes",
                       s->position, (unsigned long long)h.total_bytes, capacity);
    }
    h.version = CB_SNAPSHOT_VERSION;
    h.header_bytes = sizeof h;
    memcpy(h.root, s->model->container.root, sizeof h.root);
    h.kv = kv_kind(s->model);
    h.position = s->position;
    h.vocabulary = s->model->block.vocabulary;
    h.sampled = s->sampled;
    memcpy(out, &h, sizeof h);
    out += sizeof h;
    memcpy(out, s->ids, 4 * (size_t)h.position);
    out += 4 * (size_t)h.position;
    memcpy(out, s->logits, 4 * (size_t)h.vocabulary);
    out += 4 * (size_t)h.vocabulary;
    (void)cb_session_cache(s, h.position, out, NULL, -1);
    hash_snapshot(memory, (size_t)h.total_bytes, h.hash);
    memcpy(memory, &h, sizeof h);
    cb_model_leave(s->model);
    return 0;
}

/* ---- restore ------------------------------------------------------------------------------------- */

static int refuse(colibri_error *error, size_t offset, const char *what, uint64_t found,
                  uint64_t wanted)
{
    return cb_fail(error, COLIBRI_ERR_SNAPSHOT, (int64_t)offset,
                   "snapshot: %s is %llu, must be %llu; make the snapshot again", what,
                   (unsigned long long)found, (unsigned long long)wanted);
}

#define AT(field) offsetof(struct cb_snapshot_header, field)

/* What says whose snapshot it is; h: a copy of the header. */
static int check_header(const colibri_session *s, const struct cb_snapshot_header *h,
                        const uint8_t *data, size_t bytes, colibri_error *error)
{
    static const uint8_t magic[8] = CB_SNAPSHOT_MAGIC;
    const colibri_model *m = s->model;
    uint8_t hash[CB_HASH_BYTES];

    if (memcmp(h->magic, magic, sizeof magic) != 0)
        return cb_fail(error, COLIBRI_ERR_SNAPSHOT, 0,
                       "not a snapshot: it does not begin with COLISNP and 0x1a");
    if (h->version != CB_SNAPSHOT_VERSION)
        return refuse(error, AT(version), "version", h->version, CB_SNAPSHOT_VERSION);
    if (h->header_bytes != sizeof *h)
        return refuse(error, AT(header_bytes), "header size", h->header_bytes, sizeof *h);
    if (h->total_bytes != bytes)
        return refuse(error, AT(total_bytes), "size", bytes, h->total_bytes);
    hash_snapshot(data, bytes, hash);
    if (memcmp(hash, h->hash, sizeof hash) != 0)
        return cb_fail(error, COLIBRI_ERR_SNAPSHOT, AT(hash),
                       "the snapshot does not match its hash: it is damaged; make it again");
    if (h->reserved != 0)
        return refuse(error, AT(reserved), "reserved field", h->reserved, 0);
    if (memcmp(h->root, m->container.root, sizeof h->root) != 0)
        return cb_fail(error, COLIBRI_ERR_SNAPSHOT_OTHER, AT(root),
                       "the snapshot is of another model (root %02x%02x%02x%02x..., this one "
                       "%02x%02x%02x%02x...); make it with this model",
                       h->root[0], h->root[1], h->root[2], h->root[3], m->container.root[0],
                       m->container.root[1], m->container.root[2], m->container.root[3]);
    if (h->kv != kv_kind(m))
        return cb_fail(error, COLIBRI_ERR_SNAPSHOT_OTHER, AT(kv),
                       "the snapshot's KV cache is of type %u, the session's of %u (0 f32, 1 f16, "
                       "3 int8); open the model with the type of the snapshot",
                       h->kv, kv_kind(m));
    if (h->vocabulary != m->block.vocabulary)
        return refuse(error, AT(vocabulary), "vocabulary", h->vocabulary, m->block.vocabulary);
    if (h->position > m->plan.context_tokens)
        return cb_fail(error, COLIBRI_ERR_CONTEXT_FULL, AT(position),
                       "the snapshot has %u tokens, the context %u; raise context_tokens (the model "
                       "allows %u)",
                       h->position, m->plan.context_tokens, m->block.context_tokens);
    if (h->position == 0)
        return refuse(error, AT(position), "position", 0, 1);
    if (total_bytes(s, h->position) != bytes)
        return refuse(error, AT(total_bytes), "size", bytes, total_bytes(s, h->position));
    return 0;
}
#undef AT

/* Index of the first of n values of `size` bytes whose exponent bits are all ones, or n. */
static size_t first_not_finite(const uint8_t *data, size_t n, size_t size)
{
    uint32_t exponent = size == 4 ? 0x7f800000u : 0x7c00u;
    size_t i;

    for (i = 0; i < n; i++) {
        uint32_t bits = 0;

        memcpy(&bits, data + i * size, size);
        if ((bits & exponent) == exponent)
            break;
    }
    return i;
}

/* Ids that exist, numbers that are finite. data: what lies behind the header. */
static int check_values(const colibri_session *s, const struct cb_snapshot_header *h,
                        const uint8_t *data, size_t bytes, colibri_error *error)
{
    size_t floats = h->vocabulary + (size_t)s->model->shape.states / 4;
    size_t ids = 4 * (size_t)h->position, logits = 4 * floats, i, bad, n;
    size_t size = cb_kv_element_bytes(s->model->plan.kv);

    for (i = 0; i < h->position; i++) {
        uint32_t id;

        memcpy(&id, data + 4 * i, sizeof id);
        if (id >= h->vocabulary)
            return refuse(error, sizeof *h + 4 * i, "token id", id, h->vocabulary - 1);
    }
    bad = first_not_finite(data + ids, floats, 4);
    if (bad < floats)
        return refuse(error, sizeof *h + ids + 4 * bad, "number of finite logits and states", bad, floats);
    data += ids + logits;
    n = (bytes - ids - logits) / size;
    bad = first_not_finite(data, n, size);
    if (bad < n)
        return refuse(error, sizeof *h + ids + logits + size * bad, "number of finite keys and values",
                      bad, n);
    return 0;
}

static int restore(colibri_session *s, const uint8_t *data, size_t bytes, colibri_error *error)
{
    struct cb_snapshot_header h;
    size_t ids, logits;
    int code;

    if (bytes < sizeof h)
        return cb_fail(error, COLIBRI_ERR_SNAPSHOT, (int64_t)bytes,
                       "the snapshot has %zu bytes, its header alone has %zu; make it again", bytes,
                       sizeof h);
    memcpy(&h, data, sizeof h);
    code = check_header(s, &h, data, bytes, error);
    if (code != 0)
        return code;
    data += sizeof h;
    bytes -= sizeof h;
    code = check_values(s, &h, data, bytes, error);
    if (code != 0)
        return code;
    ids = 4 * (size_t)h.position;
    logits = 4 * (size_t)h.vocabulary;
    colibri_session_reset(s);
    memcpy(s->ids, data, ids);
    memcpy(s->logits, data + ids, logits);
    (void)cb_session_cache(s, h.position, NULL, data + ids + logits, -1);
    s->position = s->written = h.position;
    s->sampled = h.sampled;
    s->has_logits = 1;
    return 0;
}

int colibri_session_restore(colibri_session *s, const void *memory, size_t bytes,
                            colibri_error *error)
{
    int code;

    if (s == NULL || memory == NULL)
        return cb_deny_null(error, "colibri_session_restore", "session and memory");
    code = cb_model_enter(s->model, "colibri_session_restore", error);
    if (code != 0)
        return code;
    code = restore(s, memory, bytes, error);
    cb_model_leave(s->model);
    return code;
}

const int32_t *colibri_session_ids(const colibri_session *s, uint32_t *count)
{
    *count = s->position;
    return s->ids;
}
