/* SPDX-License-Identifier: MIT */
/*
 * A writer of small random model files for tests, independent of the reader: canonical places,
 * hashes, padding. Change bytes of the result and seal it again to play a hostile author.
 */
#ifndef BUILDER_H
#define BUILDER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "colibri.h"
#include "directory.h"
#include "sha256.h"
#include "spec.h"

#define BUILD_LAYERS 4
#define BUILD_TENSORS 256
#define BUILD_EXTENTS 2112

struct build_layer {
    struct cb_block_layer layer;
    struct cb_block_attention attention;
    struct cb_block_mla mla;
    struct cb_block_short_conv conv;
    struct cb_block_ffn ffn;
    struct cb_block_moe moe;
    struct cb_block_shared shared;
    int has_shared;
};

/* What to build; build_defaults gives a small Mixtral. */
struct build_recipe {
    uint64_t seed;
    struct cb_block_model model;
    uint32_t rope_style, rope_pairs;
    struct build_layer layers[BUILD_LAYERS];
    uint32_t trunk_dtype, expert_dtype, router_dtype, embedding_dtype;
};

struct build_file {
    uint8_t *bytes;
    size_t size;
    struct cb_tensor tensors[BUILD_TENSORS];
    uint32_t tensor_count;
    struct cb_extent extents[BUILD_EXTENTS];
    uint32_t extent_count;
    uint64_t section[CB_SECTION_SIGNATURE + 1]; /* offset, 0: none */
    uint64_t section_size[CB_SECTION_SIGNATURE + 1];
};

static inline uint64_t build_up(uint64_t x, uint64_t a)
{
    return (x + a - 1) / a * a;
}

static inline uint64_t build_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- recipe ---------------------------------------------------------------------------------- */

static inline void build_defaults(struct build_recipe *r)
{
    uint32_t i;

    memset(r, 0, sizeof *r);
    r->seed = 88172645463325252u;
    r->model = (struct cb_block_model){.family = CB_FAMILY_MIXTRAL, .hidden = 40, .vocabulary = 61,
                                       .layers = 2, .context_tokens = 64,
                                       .position_kind = CB_POSITION_ROPE,
                                       .embedding_multiplier = 1.0f, .logits_multiplier = 1.0f,
                                       .norm_kind = CB_NORM_RMS, .norm_eps = 1e-5f};
    r->rope_pairs = 4;
    r->trunk_dtype = CB_DTYPE_INT8;
    r->expert_dtype = CB_DTYPE_INT4;
    r->router_dtype = CB_DTYPE_F32;
    r->embedding_dtype = CB_DTYPE_INT8;
    for (i = 0; i < BUILD_LAYERS; i++) {
        struct build_layer *l = &r->layers[i];

        l->layer = (struct cb_block_layer){.index = i, .mixer_kind = CB_MIXER_ATTENTION,
                                           .ffn_kind = CB_FFN_MOE, .norm_kind = CB_NORM_RMS,
                                           .norm_eps = 1e-5f,
                                           .norm_places = CB_NORM_AT_PRE_MIXER | CB_NORM_AT_PRE_FFN,
                                           .residual_multiplier = 1.0f};
        l->attention = (struct cb_block_attention){.heads = 4, .kv_heads = 2, .head_dim = 10,
                                                   .value_dim = 10, .scale = 0.3162f,
                                                   .qk_norm_eps = 1e-6f};
        l->mla = (struct cb_block_mla){.heads = 3, .q_rank = 24, .kv_rank = 20, .nope_dim = 12,
                                       .rope_dim = 8, .value_dim = 10, .scale = 0.2236f,
                                       .norm_eps = 1e-6f};
        l->conv = (struct cb_block_short_conv){.width = 36, .taps = 3, .bias = 1};
        l->ffn = (struct cb_block_ffn){.intermediate = 52, .gated = 1};
        l->moe = (struct cb_block_moe){.experts = 5, .top_k = 2, .intermediate = 36, .gated = 1,
                                       .router_normalise = CB_NORMALISE_SUM, .routed_scale = 1.0f};
        l->shared = (struct cb_block_shared){.intermediate = 44, .gated = 1};
    }
}

/* ---- records ----------------------------------------------------------------------------------- */

static inline void build_block(uint8_t *out, size_t *at, uint16_t type, const void *data, size_t size)
{
    uint16_t flags = 0;
    uint32_t bytes = (uint32_t)size;

    memcpy(out + *at, &type, 2);
    memcpy(out + *at + 2, &flags, 2);
    memcpy(out + *at + 4, &bytes, 4);
    memcpy(out + *at + 8, data, size);
    *at += 8 + size;
}

static inline size_t build_records(const struct build_recipe *r, uint8_t *out)
{
    struct {
        struct cb_block_rope block;
        float inv_freq[CB_MAX_HEAD_DIM / 2];
    } rope = {{r->rope_style, r->rope_pairs, 1.0f, 0}, {0}};
    size_t at = 0;
    uint32_t i;

    build_block(out, &at, CB_BLOCK_MODEL, &r->model, sizeof r->model);
    for (i = 0; i < r->rope_pairs; i++)
        rope.inv_freq[i] = 1.0f / (float)(1u << (2 * i));
    if (r->rope_pairs > 0)
        build_block(out, &at, CB_BLOCK_ROPE, &rope, sizeof rope.block + 4 * r->rope_pairs);
    for (i = 0; i < r->model.layers; i++) {
        const struct build_layer *l = &r->layers[i];

        build_block(out, &at, CB_BLOCK_LAYER, &l->layer, sizeof l->layer);
        if (l->layer.mixer_kind == CB_MIXER_ATTENTION)
            build_block(out, &at, CB_BLOCK_ATTENTION, &l->attention, sizeof l->attention);
        if (l->layer.mixer_kind == CB_MIXER_MLA)
            build_block(out, &at, CB_BLOCK_MLA, &l->mla, sizeof l->mla);
        if (l->layer.mixer_kind == CB_MIXER_SHORT_CONV)
            build_block(out, &at, CB_BLOCK_SHORT_CONV, &l->conv, sizeof l->conv);
        if (l->layer.ffn_kind == CB_FFN_DENSE)
            build_block(out, &at, CB_BLOCK_FFN, &l->ffn, sizeof l->ffn);
        if (l->layer.ffn_kind == CB_FFN_MOE)
            build_block(out, &at, CB_BLOCK_MOE, &l->moe, sizeof l->moe);
        if (l->layer.ffn_kind == CB_FFN_MOE && l->has_shared)
            build_block(out, &at, CB_BLOCK_SHARED, &l->shared, sizeof l->shared);
    }
    return at;
}

/* ---- directory ----------------------------------------------------------------------------------- */

static inline uint64_t build_tensor_bytes(const struct cb_tensor *t)
{
    uint64_t rows = build_up(t->rows, 8), columns = build_up(t->columns, 32);

    if (t->layout == CB_LAYOUT_ROWS)
        return t->rows * columns * 4;
    switch (t->dtype) {
    case CB_DTYPE_INT4:
        return rows / 8 * (columns / 32) * 144;
    case CB_DTYPE_INT8:
        return rows / 8 * (columns / 32) * 272;
    case CB_DTYPE_F32:
        return rows * columns * 4;
    default:
        return rows * columns * 2;
    }
}

/* The group of tensors that is being written: all have this layer and scope. */
struct build_group {
    struct build_file *file;
    uint32_t layer, scope;
    uint64_t end;
};

static inline void build_tensor(struct build_group *g, uint32_t role, uint32_t dtype, uint32_t layout,
                                uint32_t rows, uint32_t columns)
{
    struct cb_tensor *t = &g->file->tensors[g->file->tensor_count++];

    memset(t, 0, sizeof *t);
    t->role = role;
    t->layer = g->layer;
    t->dtype = dtype;
    t->layout = layout;
    t->rows = rows;
    t->columns = columns;
    t->offset = build_up(g->end, 64);
    t->size = build_tensor_bytes(t);
    t->scope = g->scope;
    g->end = t->offset + t->size;
}

static inline void build_matrix(struct build_group *g, uint32_t role, uint32_t dtype, uint32_t rows,
                                uint32_t columns)
{
    build_tensor(g, role, dtype, CB_LAYOUT_PANEL8, rows, columns);
}

static inline void build_vector(struct build_group *g, uint32_t role, uint32_t columns)
{
    build_tensor(g, role, CB_DTYPE_F32, CB_LAYOUT_ROWS, 1, columns);
}

static inline void build_extent(struct build_file *f, uint32_t kind, uint32_t layer, uint32_t expert,
                                uint64_t end)
{
    struct cb_extent *e = &f->extents[f->extent_count++];

    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->layer = layer;
    e->expert = expert;
    e->size = build_up(end, 4096);
}

static inline void build_mlp(struct build_group *g, uint32_t gate, uint32_t dtype, uint32_t hidden,
                             uint32_t intermediate, uint32_t gated)
{
    if (gated)
        build_matrix(g, gate, dtype, intermediate, hidden);
    build_matrix(g, gate + 2, dtype, intermediate, hidden);
    build_matrix(g, gate + 4, dtype, hidden, intermediate);
}

static inline void build_attention(const struct build_recipe *r, const struct build_layer *l,
                                   struct build_group *g)
{
    const struct cb_block_attention *a = &l->attention;
    uint32_t h = r->model.hidden, q = a->heads * a->head_dim, k = a->kv_heads * a->head_dim;
    uint32_t v = a->kv_heads * a->value_dim, full = a->qk_norm_kind >= CB_QK_NORM_FULL_WIDTH;

    build_matrix(g, CB_ROLE_Q, r->trunk_dtype, q, h);
    if (a->q_bias)
        build_vector(g, CB_ROLE_Q_BIAS, q);
    build_matrix(g, CB_ROLE_K, r->trunk_dtype, k, h);
    if (a->kv_bias)
        build_vector(g, CB_ROLE_K_BIAS, k);
    build_matrix(g, CB_ROLE_V, r->trunk_dtype, v, h);
    if (a->kv_bias)
        build_vector(g, CB_ROLE_V_BIAS, v);
    build_matrix(g, CB_ROLE_O, r->trunk_dtype, h, a->heads * a->value_dim);
    if (a->o_bias)
        build_vector(g, CB_ROLE_O_BIAS, h);
    if (a->qk_norm_kind != CB_QK_NORM_NONE) {
        build_vector(g, CB_ROLE_Q_NORM, full ? q : a->head_dim);
        build_vector(g, CB_ROLE_K_NORM, full ? k : a->head_dim);
    }
    if (a->sinks)
        build_vector(g, CB_ROLE_SINKS, a->heads);
}

static inline void build_mla(const struct build_recipe *r, const struct cb_block_mla *a,
                             struct build_group *g)
{
    uint32_t h = r->model.hidden;

    build_matrix(g, CB_ROLE_O, r->trunk_dtype, h, a->heads * a->value_dim);
    if (a->q_rank != 0) {
        build_matrix(g, CB_ROLE_MLA_Q_A, r->trunk_dtype, a->q_rank, h);
        build_vector(g, CB_ROLE_MLA_Q_A_NORM, a->q_rank);
    }
    build_matrix(g, CB_ROLE_MLA_Q_B, r->trunk_dtype, a->heads * (a->nope_dim + a->rope_dim),
                 a->q_rank != 0 ? a->q_rank : h);
    build_matrix(g, CB_ROLE_MLA_KV_A, r->trunk_dtype, a->kv_rank + a->rope_dim, h);
    build_vector(g, CB_ROLE_MLA_KV_A_NORM, a->kv_rank);
    build_matrix(g, CB_ROLE_MLA_K_B, r->trunk_dtype, a->heads * a->nope_dim, a->kv_rank);
    build_matrix(g, CB_ROLE_MLA_V_B, r->trunk_dtype, a->heads * a->value_dim, a->kv_rank);
}

static inline void build_conv(const struct build_recipe *r, const struct cb_block_short_conv *c,
                              struct build_group *g)
{
    build_matrix(g, CB_ROLE_CONV_IN, r->trunk_dtype, 3 * c->width, r->model.hidden);
    if (c->bias)
        build_vector(g, CB_ROLE_CONV_IN_BIAS, 3 * c->width);
    build_tensor(g, CB_ROLE_CONV_WEIGHT, CB_DTYPE_F32, CB_LAYOUT_ROWS, c->taps, c->width);
    if (c->bias)
        build_vector(g, CB_ROLE_CONV_BIAS, c->width);
    build_matrix(g, CB_ROLE_CONV_OUT, r->trunk_dtype, r->model.hidden, c->width);
    if (c->bias)
        build_vector(g, CB_ROLE_CONV_OUT_BIAS, r->model.hidden);
}

static inline void build_trunk_layer(const struct build_recipe *r, struct build_file *f, uint32_t index)
{
    const struct build_layer *l = &r->layers[index];
    struct build_group g = {f, index, CB_SCOPE_TRUNK, 0};
    uint32_t h = r->model.hidden, place;

    for (place = 0; place < 4; place++) {
        if (l->layer.norm_places & 1u << place)
            build_vector(&g, CB_ROLE_PRE_MIXER_NORM + 2 * place, h);
    }
    if (l->layer.mixer_kind == CB_MIXER_ATTENTION)
        build_attention(r, l, &g);
    if (l->layer.mixer_kind == CB_MIXER_MLA)
        build_mla(r, &l->mla, &g);
    if (l->layer.mixer_kind == CB_MIXER_SHORT_CONV)
        build_conv(r, &l->conv, &g);
    if (l->layer.ffn_kind == CB_FFN_DENSE)
        build_mlp(&g, CB_ROLE_FFN_GATE, r->trunk_dtype, h, l->ffn.intermediate, l->ffn.gated);
    if (l->layer.ffn_kind == CB_FFN_MOE) {
        if (l->has_shared)
            build_mlp(&g, CB_ROLE_SHARED_GATE, r->trunk_dtype, h, l->shared.intermediate,
                      l->shared.gated);
        if (l->has_shared && l->shared.gate)
            build_matrix(&g, CB_ROLE_SHARED_ROUTER, CB_DTYPE_F32, 1, h);
        build_matrix(&g, CB_ROLE_ROUTER, r->router_dtype, l->moe.experts, h);
        if (l->moe.router_bias)
            build_vector(&g, CB_ROLE_ROUTER_BIAS, l->moe.experts);
        if (l->moe.selection_bias)
            build_vector(&g, CB_ROLE_ROUTER_SELECTION_BIAS, l->moe.experts);
    }
    build_extent(f, CB_EXTENT_TRUNK, index, CB_NONE_INDEX, g.end);
}

static inline void build_tables(const struct build_recipe *r, struct build_file *f)
{
    struct build_group g = {f, CB_NONE_INDEX, CB_SCOPE_TRUNK, 0};
    uint32_t i, e;

    build_matrix(&g, CB_ROLE_EMBEDDING, r->embedding_dtype, r->model.vocabulary, r->model.hidden);
    if (r->model.norm_kind == CB_NORM_RMS)
        build_vector(&g, CB_ROLE_FINAL_NORM, r->model.hidden);
    if (!r->model.tied_head)
        build_matrix(&g, CB_ROLE_HEAD, r->trunk_dtype, r->model.vocabulary, r->model.hidden);
    build_extent(f, CB_EXTENT_TRUNK, CB_NONE_INDEX, CB_NONE_INDEX, g.end);
    for (i = 0; i < r->model.layers; i++)
        build_trunk_layer(r, f, i);
    for (i = 0; i < r->model.layers; i++) {
        const struct build_layer *l = &r->layers[i];
        struct build_group x = {f, i, CB_SCOPE_EXPERT, 0};

        if (l->layer.ffn_kind != CB_FFN_MOE)
            continue;
        build_mlp(&x, CB_ROLE_EXPERT_GATE, r->expert_dtype, r->model.hidden, l->moe.intermediate,
                  l->moe.gated);
        for (e = 0; e < l->moe.experts; e++)
            build_extent(f, CB_EXTENT_EXPERT, i, e, x.end);
    }
}

/* ---- weights --------------------------------------------------------------------------------------- */

static inline uint16_t build_half(uint64_t *state, int large)
{
    /* +-2^-6 .. 2^-4, or around 1 */
    uint16_t exponent = (uint16_t)((large ? 14 : 9) + build_random(state) % 2);

    return (uint16_t)((build_random(state) & 1) << 15 | (uint64_t)exponent << 10 |
                      (build_random(state) & 1023));
}

static inline float build_float(uint64_t *state, float scale)
{
    return ((float)(build_random(state) >> 40) / 8388608.0f - 1.0f) * scale;
}

static inline void build_element(const struct cb_tensor *t, uint8_t *data, uint32_t row,
                                 uint32_t column, uint64_t *state)
{
    uint64_t panel = row / 8, lane = row % 8, group = column / 32, k = column % 32;
    uint64_t groups = build_up(t->columns, 32) / 32;
    float x = build_float(state, t->role == CB_ROLE_EMBEDDING ? 1.0f : 0.3f);
    uint16_t half;
    uint8_t *p;

    switch (t->dtype) {
    case CB_DTYPE_INT4:
        p = data + (panel * groups + group) * 144 + 32 * (k % 16 / 4) + 4 * lane + k % 4;
        *p = (uint8_t)(k < 16 ? (*p & 0xf0) | (build_random(state) & 15)
                              : (*p & 15) | (build_random(state) & 15) << 4);
        break;
    case CB_DTYPE_INT8:
        p = data + (panel * groups + group) * 272 + 32 * (k / 4) + 4 * lane + k % 4;
        *p = (uint8_t)(int8_t)((int)(build_random(state) % 255) - 127);
        break;
    case CB_DTYPE_F32:
        memcpy(data + ((panel * groups * 32 + column) * 8 + lane) * 4, &x, 4);
        break;
    case CB_DTYPE_BF16:
        memcpy(data + ((panel * groups * 32 + column) * 8 + lane) * 2, (char *)&x + 2, 2);
        break;
    default:
        half = build_half(state, 0);
        memcpy(data + ((panel * groups * 32 + column) * 8 + lane) * 2, &half, 2);
        break;
    }
}

static inline void build_weights(const struct cb_tensor *t, uint8_t *data, uint64_t *state)
{
    uint64_t block = t->dtype == CB_DTYPE_INT4 ? 144 : 272, at;
    int quantized = t->dtype == CB_DTYPE_INT4 || t->dtype == CB_DTYPE_INT8;
    uint32_t row, column;

    if (t->layout == CB_LAYOUT_ROWS) {
        for (row = 0; row < t->rows; row++) {
            for (column = 0; column < t->columns; column++) {
                float x = 1.0f + build_float(state, 0.2f);

                memcpy(data + 4 * (row * build_up(t->columns, 32) + column), &x, 4);
            }
        }
        return;
    }
    if (t->dtype == CB_DTYPE_INT4) {
        for (at = 0; at < t->size; at += 144)
            memset(data + at, 0x88, 128);
    }
    for (row = 0; row < t->rows; row++) {
        for (column = 0; column < t->columns; column++)
            build_element(t, data, row, column, state);
        for (at = 0; quantized && at < build_up(t->columns, 32) / 32; at++) {
            uint16_t scale = build_half(state, 0);

            if (t->dtype == CB_DTYPE_INT8) /* 127 steps instead of 8 */
                scale = (uint16_t)(scale - (4 << 10));
            memcpy(data + (row / 8 * (build_up(t->columns, 32) / 32) + at + 1) * block - 16 +
                       2 * (row % 8),
                   &scale, 2);
        }
    }
}

/* ---- file -------------------------------------------------------------------------------------------- */

static inline void build_hash_section(const struct build_file *f, uint32_t kind, uint8_t out[32])
{
    const uint8_t *data = f->bytes + f->section[kind];
    uint64_t at, left;
    struct cb_sha256 s;
    uint8_t hash[32];

    cb_sha256_init(&s);
    for (at = 0; at < f->section_size[kind]; at += CB_CHUNK_BYTES) {
        left = f->section_size[kind] - at;
        cb_sha256(data + at, (size_t)(left < CB_CHUNK_BYTES ? left : CB_CHUNK_BYTES), hash);
        cb_sha256_update(&s, hash, 32);
    }
    cb_sha256_final(&s, out);
}

/* Root only: what a hostile author of tables computes anew. */
static inline void build_seal_root(struct build_file *f)
{
    struct cb_sha256 s;
    uint8_t root[32];

    memset(f->bytes + 48, 0, 32);
    cb_sha256_init(&s);
    cb_sha256_update(&s, f->bytes, CB_HEADER_BYTES);
    cb_sha256_update(&s, f->bytes + f->section[CB_SECTION_RECORDS],
                     (size_t)f->section_size[CB_SECTION_RECORDS]);
    cb_sha256_update(&s, f->bytes + f->section[CB_SECTION_DIRECTORY],
                     (size_t)f->section_size[CB_SECTION_DIRECTORY]);
    cb_sha256_final(&s, root);
    memcpy(f->bytes + 48, root, 32);
}

/* Every hash: chunk tables, extents, sections, root. */
static inline void build_seal(struct build_file *f)
{
    uint8_t *directory = f->bytes + f->section[CB_SECTION_DIRECTORY];
    uint32_t i;

    for (i = 0; i < f->extent_count; i++) {
        struct cb_extent *e = &f->extents[i];
        uint8_t *data = f->bytes + e->offset, *table = data + e->size;
        uint64_t at;

        for (at = 0; at < e->size; at += CB_CHUNK_BYTES) {
            uint64_t left = e->size - at;

            cb_sha256(data + at, (size_t)(left < CB_CHUNK_BYTES ? left : CB_CHUNK_BYTES),
                      table + at / CB_CHUNK_BYTES * 32);
        }
        cb_sha256(table, (size_t)(build_up(e->size, CB_CHUNK_BYTES) / CB_CHUNK_BYTES * 32), e->hash);
        memcpy(directory + 16 + 64 * (size_t)i, e, sizeof *e);
    }
    for (i = 0; i < 5; i++) { /* the builder writes five sections; provenance is the third */
        uint8_t *entry = f->bytes + CB_SECTION_TABLE_OFFSET + 64 * (size_t)i;
        uint32_t kind;

        memcpy(&kind, entry, 4);
        if (kind == CB_SECTION_PROVENANCE)
            build_hash_section(f, kind, entry + 32);
    }
    build_seal_root(f);
}

static inline void build_section(struct build_file *f, uint32_t slot, uint32_t kind, uint64_t offset,
                                 uint64_t size)
{
    uint8_t *entry = f->bytes + CB_SECTION_TABLE_OFFSET + 64 * (size_t)slot;

    f->section[kind] = offset;
    f->section_size[kind] = size;
    memcpy(entry, &kind, 4);
    memcpy(entry + 8, &offset, 8);
    memcpy(entry + 16, &size, 8);
}

static inline void build_header(struct build_file *f, const struct build_recipe *r)
{
    static const uint8_t magic[8] = CB_MAGIC_BYTES;
    uint32_t header = CB_HEADER_BYTES, sections = 5, chunk = CB_CHUNK_BYTES, i;
    uint16_t major = CB_VERSION_MAJOR;
    uint64_t size = f->size, required = 0;

    for (i = 0; i < r->model.layers; i++) {
        uint32_t kind = r->layers[i].layer.mixer_kind;

        required |= kind == CB_MIXER_MLA ? CB_REQUIRED_MLA : 0;
        required |= kind == CB_MIXER_SHORT_CONV ? CB_REQUIRED_SHORT_CONV : 0;
        required |= kind == CB_MIXER_ATTENTION && r->layers[i].attention.sinks
                        ? CB_REQUIRED_ATTENTION_SINKS : 0;
    }
    memcpy(f->bytes + 16, &required, 8);
    memcpy(f->bytes, magic, 8);
    memcpy(f->bytes + 8, &major, 2);
    memcpy(f->bytes + 12, &header, 4);
    memcpy(f->bytes + 32, &size, 8);
    memcpy(f->bytes + 40, &sections, 4);
    memcpy(f->bytes + 44, &chunk, 4);
}

/* Free f->bytes. */
static inline void build(struct build_file *f, const struct build_recipe *r)
{
    static uint8_t records[65536];
    static const char provenance[] = "{\"source\": \"random\"}";
    size_t records_bytes = build_records(r, records), directory_bytes;
    uint64_t trunk, at, experts = 0, state = r->seed;
    uint64_t provenance_at;
    uint32_t i, j;

    memset(f, 0, sizeof *f);
    build_tables(r, f);
    directory_bytes = 16 + 64 * (size_t)f->extent_count + 48 * (size_t)f->tensor_count;
    at = build_up(CB_HEADER_BYTES + records_bytes, 4096);
    provenance_at = build_up(at + directory_bytes, 4096);
    trunk = build_up(provenance_at + sizeof provenance - 1, 65536);
    for (i = 0, at = trunk; i < f->extent_count; i++) {
        if (f->extents[i].kind == CB_EXTENT_EXPERT && experts == 0)
            experts = at;
        f->extents[i].offset = at;
        at += f->extents[i].size +
              build_up(build_up(f->extents[i].size, CB_CHUNK_BYTES) / CB_CHUNK_BYTES * 32, 4096);
    }
    if (experts == 0)
        experts = at;
    f->size = (size_t)at;
    f->bytes = calloc(1, f->size);
    if (f->bytes == NULL)
        abort();
    build_header(f, r);
    build_section(f, 0, CB_SECTION_RECORDS, CB_HEADER_BYTES, records_bytes);
    build_section(f, 1, CB_SECTION_DIRECTORY, build_up(CB_HEADER_BYTES + records_bytes, 4096),
                  directory_bytes);
    build_section(f, 2, CB_SECTION_PROVENANCE, provenance_at, sizeof provenance - 1);
    build_section(f, 3, CB_SECTION_TRUNK, trunk, experts - trunk);
    build_section(f, 4, CB_SECTION_EXPERTS, experts, at - experts);
    memcpy(f->bytes + CB_HEADER_BYTES, records, records_bytes);
    memcpy(f->bytes + provenance_at, provenance, sizeof provenance - 1);
    memcpy(f->bytes + f->section[CB_SECTION_DIRECTORY], &f->extent_count, 4);
    memcpy(f->bytes + f->section[CB_SECTION_DIRECTORY] + 4, &f->tensor_count, 4);
    memcpy(f->bytes + f->section[CB_SECTION_DIRECTORY] + 16 + 64 * (size_t)f->extent_count, f->tensors,
           48 * (size_t)f->tensor_count);
    for (i = 0; i < f->extent_count; i++) {
        const struct cb_extent *e = &f->extents[i];

        for (j = 0; j < f->tensor_count; j++) {
            const struct cb_tensor *t = &f->tensors[j];

            if (t->layer == e->layer && (t->scope == CB_SCOPE_EXPERT) == (e->kind == CB_EXTENT_EXPERT))
                build_weights(t, f->bytes + e->offset + t->offset, &state);
        }
    }
    build_seal(f);
}

/* Write `size` bytes of the file to a temporary path; the caller unlinks it. */
static inline const char *build_write(const struct build_file *f, size_t size)
{
    static char path[64];
    const uint8_t *p = f->bytes;
    int fd;

    (void)snprintf(path, sizeof path, "/tmp/colibri-test-XXXXXX");
    fd = mkstemp(path);
    if (fd < 0)
        abort();
    while (size > 0) {
        ssize_t n = write(fd, p, size);

        if (n <= 0)
            abort();
        p += n;
        size -= (size_t)n;
    }
    (void)close(fd);
    return path;
}

/* Open `size` bytes of the file; options NULL: one thread, no lock. */
static inline int build_open(const struct build_file *f, size_t size,
                             const colibri_model_options *options, colibri_model **model,
                             colibri_error *error)
{
    const char *path = build_write(f, size);
    colibri_model_options own;
    int code;

    colibri_model_options_default(&own);
    own.threads = 1;
    own.lock = COLIBRI_LOCK_OFF;
    code = colibri_model_open(path, options != NULL ? options : &own, model, error);
    (void)unlink(path);
    return code;
}

#endif
