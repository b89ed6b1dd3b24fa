/* SPDX-License-Identifier: MIT */
#include "directory.h"

#include <string.h>

#include "common.h"
#include "error.h"

#define ROLES (CB_ROLE_STATE_SPACE_LAST + 1)

uint64_t cb_chunk_count(uint64_t size)
{
    return size / CB_CHUNK_BYTES + (size % CB_CHUNK_BYTES != 0);
}

uint64_t cb_chunk_table_bytes(uint64_t size)
{
    return cb_up(cb_chunk_count(size) * CB_HASH_BYTES, CB_EXTENT_ALIGN_BYTES);
}

size_t cb_panel_bytes(uint32_t dtype, uint32_t columns)
{
    size_t groups = cb_up32(columns, CB_GROUP_COLUMNS) / CB_GROUP_COLUMNS;

    switch (dtype) {
    case CB_DTYPE_INT4:
        return groups * CB_INT4_BLOCK_BYTES;
    case CB_DTYPE_INT8:
        return groups * CB_INT8_BLOCK_BYTES;
    case CB_DTYPE_MXFP4:
        return groups * CB_MXFP4_BLOCK_BYTES;
    case CB_DTYPE_F16:
    case CB_DTYPE_BF16:
        return groups * CB_GROUP_COLUMNS * CB_PANEL_ROWS * 2;
    case CB_DTYPE_F32:
        return groups * CB_GROUP_COLUMNS * CB_PANEL_ROWS * 4;
    default:
        return 0;
    }
}

uint64_t cb_tensor_bytes(uint32_t dtype, uint32_t layout, uint32_t rows, uint32_t columns)
{
    if (layout == CB_LAYOUT_ROWS)
        return dtype == CB_DTYPE_F32 ? (uint64_t)rows * cb_up(columns, CB_GROUP_COLUMNS) * 4 : 0;
    return cb_up(rows, CB_PANEL_ROWS) / CB_PANEL_ROWS * cb_panel_bytes(dtype, columns);
}

void cb_directory_extent(const struct cb_directory *d, uint32_t index, struct cb_extent *extent)
{
    memcpy(extent, d->extents + (size_t)index * sizeof *extent, sizeof *extent);
}

void cb_directory_tensor(const struct cb_directory *d, uint32_t index, struct cb_tensor *tensor)
{
    memcpy(tensor, d->tensors + (size_t)index * sizeof *tensor, sizeof *tensor);
}

static int64_t extent_at(const struct cb_directory *d, uint32_t index)
{
    return (int64_t)(d->file_offset + CB_DIRECTORY_HEADER_BYTES +
                     (uint64_t)index * CB_EXTENT_ENTRY_BYTES);
}

static int64_t tensor_at(const struct cb_directory *d, uint32_t index)
{
    return extent_at(d, d->extent_count) + (int64_t)index * CB_TENSOR_ENTRY_BYTES;
}

int cb_directory_open(struct cb_directory *d, const uint8_t *bytes, size_t size,
                      uint64_t file_offset, colibri_error *error)
{
    struct cb_cursor c;
    uint64_t reserved, expected;

    memset(d, 0, sizeof *d);
    d->file_offset = file_offset;
    cb_cursor_init(&c, bytes, size, file_offset);
    d->extent_count = cb_cursor_u32(&c);
    d->tensor_count = cb_cursor_u32(&c);
    reserved = cb_cursor_u64(&c);
    if (c.failed)
        return cb_fail(error, COLIBRI_ERR_DIRECTORY, (int64_t)file_offset,
                       "the directory has %zu bytes, its header alone has %u", size,
                       CB_DIRECTORY_HEADER_BYTES);
    if (d->extent_count > CB_MAX_EXTENTS)
        return cb_fail(error, COLIBRI_ERR_LIMIT, (int64_t)file_offset,
                       "%u extents, the limit is %u", d->extent_count, CB_MAX_EXTENTS);
    if (d->tensor_count > CB_MAX_TENSORS)
        return cb_fail(error, COLIBRI_ERR_LIMIT, (int64_t)file_offset + 4,
                       "%u tensors, the limit is %u", d->tensor_count, CB_MAX_TENSORS);
    if (reserved != 0)
        return cb_fail(error, COLIBRI_ERR_DIRECTORY, (int64_t)file_offset + 8,
                       "reserved field of the directory is not 0");
    expected = CB_DIRECTORY_HEADER_BYTES + (uint64_t)d->extent_count * CB_EXTENT_ENTRY_BYTES +
               (uint64_t)d->tensor_count * CB_TENSOR_ENTRY_BYTES;
    if (expected != size)
        return cb_fail(error, COLIBRI_ERR_DIRECTORY, (int64_t)file_offset,
                       "%u extents and %u tensors need %llu bytes, the directory has %zu",
                       d->extent_count, d->tensor_count, (unsigned long long)expected, size);
    d->extents = bytes + CB_DIRECTORY_HEADER_BYTES;
    d->tensors = d->extents + (size_t)d->extent_count * CB_EXTENT_ENTRY_BYTES;
    return 0;
}

/* ---- extents ----------------------------------------------------------------------------- */

/* A walk over the extents of one section, which they cover without gaps. */
struct extent_walk {
    const struct cb_directory *d;
    uint32_t index;  /* of the next extent */
    uint64_t offset; /* its place in the file */
    uint64_t end;    /* of the section */
};

static int next_extent(struct extent_walk *w, uint32_t kind, uint32_t layer, uint32_t expert,
                       uint64_t *size, colibri_error *error)
{
    int64_t at = extent_at(w->d, w->index);
    struct cb_extent e;
    uint64_t table;

    if (w->index == w->d->extent_count)
        return cb_fail(error, COLIBRI_ERR_EXTENT, at,
                       "%u extents, the records ask for more (layer %d, expert %d)", w->index,
                       (int)layer, (int)expert);
    cb_directory_extent(w->d, w->index, &e);
    if (e.kind != kind || e.layer != layer || e.expert != expert)
        return cb_fail(error, COLIBRI_ERR_EXTENT, at,
                       "extent %u is kind %u layer %d expert %d, its place asks for kind %u layer "
                       "%d expert %d",
                       w->index, e.kind, (int)e.layer, (int)e.expert, kind, (int)layer,
                       (int)expert);
    if (e.reserved != 0)
        return cb_fail(error, COLIBRI_ERR_EXTENT, at + 12, "extent %u: reserved field is not 0",
                       w->index);
    if (e.offset % CB_EXTENT_ALIGN_BYTES != 0)
        return cb_fail(error, COLIBRI_ERR_EXTENT, at + 16,
                       "weight chunk offset misaligned: 0x%llx; extent %u must be at %llu",
                       (unsigned long long)e.offset, w->index, (unsigned long long)w->offset);
    if (e.offset != w->offset)
        return cb_fail(error, COLIBRI_ERR_EXTENT, at + 16,
                       "extent %u is at offset %llu, its place is %llu", w->index,
                       (unsigned long long)e.offset, (unsigned long long)w->offset);
    if (e.size % CB_EXTENT_ALIGN_BYTES != 0)
        return cb_fail(error, COLIBRI_ERR_EXTENT, at + 24,
                       "extent %u has %llu bytes, not a multiple of %u", w->index,
                       (unsigned long long)e.size, CB_EXTENT_ALIGN_BYTES);
    if (e.size > w->end - w->offset)
        return cb_fail(error, COLIBRI_ERR_EXTENT, at + 24,
                       "extent %u of %llu bytes leaves its section, which has %llu bytes left",
                       w->index, (unsigned long long)e.size,
                       (unsigned long long)(w->end - w->offset));
    table = cb_chunk_table_bytes(e.size);
    if (table > w->end - w->offset - e.size)
        return cb_fail(error, COLIBRI_ERR_EXTENT, at + 24,
                       "the chunk table of extent %u (%llu bytes) leaves its section", w->index,
                       (unsigned long long)table);
    w->offset += e.size + table;
    w->index++;
    *size = e.size;
    return 0;
}

static int end_section(const struct extent_walk *w, const char *name, colibri_error *error)
{
    if (w->offset != w->end)
        return cb_fail(error, COLIBRI_ERR_EXTENT, (int64_t)w->offset,
                       "the extents of section %s end at %llu, the section at %llu", name,
                       (unsigned long long)w->offset, (unsigned long long)w->end);
    return 0;
}

static int check_expert_extents(struct extent_walk *w, const struct cb_layer_records *l,
                                colibri_error *error)
{
    uint64_t first = 0, size;
    uint32_t expert;

    if (l->layer.ffn_kind != CB_FFN_MOE)
        return 0;
    for (expert = 0; expert < l->moe.experts; expert++) {
        int code = next_extent(w, CB_EXTENT_EXPERT, l->layer.index, expert, &size, error);

        if (code != 0)
            return code;
        if (expert == 0)
            first = size;
        if (size != first)
            return cb_fail(error, COLIBRI_ERR_EXTENT, extent_at(w->d, w->index - 1) + 24,
                           "layer %u: expert %u has %llu bytes, expert 0 has %llu",
                           l->layer.index, expert, (unsigned long long)size,
                           (unsigned long long)first);
    }
    return 0;
}

/* What a reader must know to run the mixer of a layer: bits in the order of the kinds from MLA on, and sinks. */
static uint32_t mixer_features(const struct cb_layer_records *l)
{
    return (1u << l->layer.mixer_kind >> CB_MIXER_MLA) |
           l->attention.sinks * (uint32_t)CB_REQUIRED_ATTENTION_SINKS;
}
_Static_assert(CB_REQUIRED_MLA == 1u << CB_MIXER_MLA >> CB_MIXER_MLA &&
                   CB_REQUIRED_SHORT_CONV == 1u << CB_MIXER_SHORT_CONV >> CB_MIXER_MLA,
               "features of mixers are in the order of their kinds");

static int check_extents(const struct cb_directory *d, const struct cb_container *c,
                         struct cb_records *r, uint32_t *used, colibri_error *error)
{
    const struct cb_section *trunk = &c->sections[CB_SECTION_TRUNK];
    const struct cb_section *experts = &c->sections[CB_SECTION_EXPERTS];
    struct extent_walk w = {d, 0, trunk->offset, trunk->offset + trunk->size};
    struct cb_layer_records l;
    uint64_t size;
    uint32_t i;
    int code = next_extent(&w, CB_EXTENT_TRUNK, CB_NONE_INDEX, CB_NONE_INDEX, &size, error);

    for (i = 0; code == 0 && i < r->model.layers; i++)
        code = next_extent(&w, CB_EXTENT_TRUNK, i, CB_NONE_INDEX, &size, error);
    if (code == 0)
        code = end_section(&w, "trunk", error);
    w.offset = experts->offset;
    w.end = experts->offset + experts->size;
    for (i = 0; code == 0 && i < r->model.layers; i++) {
        code = cb_records_next(r, &l, error);
        *used |= mixer_features(&l);
        if (code == 0)
            code = check_expert_extents(&w, &l, error);
    }
    if (code == 0)
        code = end_section(&w, "experts", error);
    if (code == 0 && w.index != d->extent_count)
        return cb_fail(error, COLIBRI_ERR_EXTENT, extent_at(d, w.index),
                       "%u extents, the records ask for %u", d->extent_count, w.index);
    return code;
}

/* ---- what the records ask for -------------------------------------------------------------- */

/* Shape that a role must have in the extent at hand; rows 0: the role must not be there. */
struct need {
    uint32_t rows, columns;
    uint32_t layout;
};

static void matrix(struct need *needs, uint32_t role, uint64_t rows, uint64_t columns)
{
    needs[role].rows = (uint32_t)rows;
    needs[role].columns = (uint32_t)columns;
    needs[role].layout = CB_LAYOUT_PANEL8;
}

static void vector(struct need *needs, uint32_t role, uint64_t columns)
{
    needs[role].rows = 1;
    needs[role].columns = (uint32_t)columns;
    needs[role].layout = CB_LAYOUT_ROWS;
}

static void biased(struct need *needs, uint32_t role, uint64_t rows, uint64_t columns,
                   uint32_t bias)
{
    matrix(needs, role, rows, columns);
    if (bias)
        vector(needs, role + 1, rows); /* every *_bias id follows its matrix */
}

static void need_mlp(struct need *needs, uint32_t gate, uint32_t hidden, uint32_t intermediate,
                     uint32_t gated, uint32_t bias)
{
    if (gated)
        biased(needs, gate, intermediate, hidden, bias);
    biased(needs, gate + 2, intermediate, hidden, bias);
    biased(needs, gate + 4, hidden, intermediate, bias);
}
_Static_assert(CB_ROLE_FFN_UP == CB_ROLE_FFN_GATE + 2 && CB_ROLE_FFN_DOWN == CB_ROLE_FFN_GATE + 4 &&
                   CB_ROLE_SHARED_UP == CB_ROLE_SHARED_GATE + 2 &&
                   CB_ROLE_SHARED_DOWN == CB_ROLE_SHARED_GATE + 4 &&
                   CB_ROLE_EXPERT_UP == CB_ROLE_EXPERT_GATE + 2 &&
                   CB_ROLE_EXPERT_DOWN == CB_ROLE_EXPERT_GATE + 4,
               "roles of an MLP stand in one order");

static void need_global(struct need *needs, const struct cb_block_model *m)
{
    matrix(needs, CB_ROLE_EMBEDDING, m->vocabulary, m->hidden);
    if (m->position_kind == CB_POSITION_LEARNED)
        matrix(needs, CB_ROLE_POSITION_EMBEDDING,
               (uint64_t)m->context_tokens + m->position_offset, m->hidden);
    if (m->embedding_norm_kind != CB_NORM_NONE)
        vector(needs, CB_ROLE_EMBEDDING_NORM, m->hidden);
    if (m->embedding_norm_kind == CB_NORM_LAYER)
        vector(needs, CB_ROLE_EMBEDDING_NORM_BIAS, m->hidden);
    if (!m->tied_head)
        matrix(needs, CB_ROLE_HEAD, m->vocabulary, m->hidden);
    if (m->head_bias)
        vector(needs, CB_ROLE_HEAD_BIAS, m->vocabulary);
    if (m->norm_kind != CB_NORM_NONE)
        vector(needs, CB_ROLE_FINAL_NORM, m->hidden);
    if (m->norm_kind == CB_NORM_LAYER)
        vector(needs, CB_ROLE_FINAL_NORM_BIAS, m->hidden);
}

static void need_attention(struct need *needs, uint32_t hidden, const struct cb_block_attention *a)
{
    uint32_t q = a->heads * a->head_dim, k = a->kv_heads * a->head_dim;

    biased(needs, CB_ROLE_Q, q, hidden, a->q_bias);
    biased(needs, CB_ROLE_K, k, hidden, a->kv_bias);
    biased(needs, CB_ROLE_V, a->kv_heads * a->value_dim, hidden, a->kv_bias);
    biased(needs, CB_ROLE_O, hidden, a->heads * a->value_dim, a->o_bias);
    if (a->qk_norm_kind != CB_QK_NORM_NONE) {
        int per_head = a->qk_norm_kind == CB_QK_NORM_PER_HEAD;

        vector(needs, CB_ROLE_Q_NORM, per_head ? a->head_dim : q);
        vector(needs, CB_ROLE_K_NORM, per_head ? a->head_dim : k);
    }
    if (a->sinks)
        vector(needs, CB_ROLE_SINKS, a->heads);
    if (a->output_gate)
        matrix(needs, CB_ROLE_ATTENTION_GATE, (uint64_t)a->heads * a->value_dim, hidden);
}

static void need_mla(struct need *needs, uint32_t hidden, const struct cb_block_mla *m)
{
    if (m->q_rank != 0) {
        matrix(needs, CB_ROLE_MLA_Q_A, m->q_rank, hidden);
        vector(needs, CB_ROLE_MLA_Q_A_NORM, m->q_rank);
    }
    matrix(needs, CB_ROLE_MLA_Q_B, (uint64_t)m->heads * (m->nope_dim + m->rope_dim),
           m->q_rank != 0 ? m->q_rank : hidden);
    matrix(needs, CB_ROLE_MLA_KV_A, m->kv_rank + m->rope_dim, hidden);
    vector(needs, CB_ROLE_MLA_KV_A_NORM, m->kv_rank);
    matrix(needs, CB_ROLE_MLA_K_B, (uint64_t)m->heads * m->nope_dim, m->kv_rank);
    matrix(needs, CB_ROLE_MLA_V_B, (uint64_t)m->heads * m->value_dim, m->kv_rank);
    matrix(needs, CB_ROLE_O, hidden, (uint64_t)m->heads * m->value_dim);
}

static void need_short_conv(struct need *needs, uint32_t hidden, const struct cb_block_short_conv *s)
{
    biased(needs, CB_ROLE_CONV_IN, 3 * (uint64_t)s->width, hidden, s->bias);
    biased(needs, CB_ROLE_CONV_OUT, hidden, s->width, s->bias);
    needs[CB_ROLE_CONV_WEIGHT].rows = s->taps;
    needs[CB_ROLE_CONV_WEIGHT].columns = s->width;
    needs[CB_ROLE_CONV_WEIGHT].layout = CB_LAYOUT_ROWS;
    if (s->bias)
        vector(needs, CB_ROLE_CONV_BIAS, s->width);
}

static void need_layer(struct need *needs, uint32_t hidden, const struct cb_layer_records *l)
{
    uint32_t place;

    for (place = 0; place < 4; place++) {
        if ((l->layer.norm_places & 1u << place) == 0)
            continue;
        vector(needs, CB_ROLE_PRE_MIXER_NORM + 2 * place, hidden);
        if (l->layer.norm_bias)
            vector(needs, CB_ROLE_PRE_MIXER_NORM_BIAS + 2 * place, hidden);
    }
    if (l->layer.mixer_kind == CB_MIXER_ATTENTION)
        need_attention(needs, hidden, &l->attention);
    if (l->layer.mixer_kind == CB_MIXER_MLA)
        need_mla(needs, hidden, &l->mla);
    if (l->layer.mixer_kind == CB_MIXER_SHORT_CONV)
        need_short_conv(needs, hidden, &l->short_conv);
    if (l->layer.ffn_kind == CB_FFN_DENSE)
        need_mlp(needs, CB_ROLE_FFN_GATE, hidden, l->ffn.intermediate, l->ffn.gated, l->ffn.bias);
    if (l->layer.ffn_kind == CB_FFN_MOE) {
        biased(needs, CB_ROLE_ROUTER, l->moe.experts, hidden, l->moe.router_bias);
        if (l->moe.selection_bias)
            vector(needs, CB_ROLE_ROUTER_SELECTION_BIAS, l->moe.experts);
    }
    if (l->has_shared) {
        need_mlp(needs, CB_ROLE_SHARED_GATE, hidden, l->shared.intermediate, l->shared.gated,
                 l->shared.bias);
        if (l->shared.gate == CB_SHARED_GATE_SIGMOID)
            matrix(needs, CB_ROLE_SHARED_ROUTER, 1, hidden);
    }
}

/* ---- tensors ------------------------------------------------------------------------------- */

static int check_tensor(const struct cb_directory *d, uint32_t index, const struct cb_tensor *t,
                        struct need *needs, uint64_t place, colibri_error *error)
{
    int64_t at = tensor_at(d, index);
    struct need *need;
    uint64_t size;

    if (t->role >= ROLES || needs[t->role].rows == 0)
        return cb_fail(error, COLIBRI_ERR_TENSOR, at,
                       "tensor %u: role %u of layer %d is not asked for by the records",
                       index, t->role, (int)t->layer);
    need = &needs[t->role];
    if (t->dtype > CB_DTYPE_MXFP4)
        return cb_fail(error, COLIBRI_ERR_TENSOR, at + 8, "tensor %u: dtype %u is unknown", index,
                       t->dtype);
    if (t->layout != need->layout)
        return cb_fail(error, COLIBRI_ERR_TENSOR, at + 12,
                       "tensor %u: layout is %u, role %u has layout %u", index, t->layout, t->role,
                       need->layout);
    if (t->rows != need->rows || t->columns != need->columns)
        return cb_fail(error, COLIBRI_ERR_TENSOR, at + 16,
                       "tensor %u: role %u of layer %d is %u x %u, the records ask for %u x %u",
                       index, t->role, (int)t->layer, t->rows, t->columns, need->rows,
                       need->columns);
    size = cb_tensor_bytes(t->dtype, t->layout, t->rows, t->columns);
    if (size == 0)
        return cb_fail(error, COLIBRI_ERR_TENSOR, at + 8,
                       "tensor %u: role %u must be f32 in layout rows", index, t->role);
    if (t->offset != place)
        return cb_fail(error, COLIBRI_ERR_TENSOR, at + 24,
                       "tensor %u is at offset %llu, its place is %llu", index,
                       (unsigned long long)t->offset, (unsigned long long)place);
    if (t->size != size)
        return cb_fail(error, COLIBRI_ERR_TENSOR, at + 32,
                       "tensor %u has %llu bytes, its shape has %llu", index,
                       (unsigned long long)t->size, (unsigned long long)size);
    if (t->reserved != 0)
        return cb_fail(error, COLIBRI_ERR_TENSOR, at + 44, "tensor %u: reserved field is not 0",
                       index);
    need->rows = 0; /* met: a second one is refused */
    return 0;
}

/* The tensors of one (scope, layer): from *index on, as many as belong to it. */
static int check_group(const struct cb_directory *d, uint32_t *index, uint32_t scope,
                       uint32_t layer, uint32_t extent, struct need *needs, uint32_t *used,
                       colibri_error *error)
{
    struct cb_extent e;
    uint64_t end = 0;
    uint32_t role, next_role = 0;

    for (; *index < d->tensor_count; ++*index) {
        struct cb_tensor t;
        int code;

        cb_directory_tensor(d, *index, &t);
        if (t.scope != scope || t.layer != layer)
            break;
        if (t.role < next_role)
            return cb_fail(error, COLIBRI_ERR_TENSOR, tensor_at(d, *index),
                           "tensor %u: role %u of layer %d stands behind role %u; roles ascend",
                           *index, t.role, (int)layer, next_role - 1);
        code = check_tensor(d, *index, &t, needs, cb_up(end, CB_TENSOR_ALIGN_BYTES), error);
        if (code != 0)
            return code;
        *used |= (t.dtype == CB_DTYPE_MXFP4) * (uint32_t)CB_REQUIRED_MXFP4;
        end = t.offset + t.size;
        next_role = t.role + 1;
    }
    for (role = 0; role < ROLES; role++) {
        if (needs[role].rows != 0)
            return cb_fail(error, COLIBRI_ERR_MISSING_TENSOR, tensor_at(d, *index),
                           "layer %d: tensor with role %u (%u x %u) is missing", (int)layer, role,
                           needs[role].rows, needs[role].columns);
    }
    cb_directory_extent(d, extent, &e);
    if (e.size != cb_up(end, CB_EXTENT_ALIGN_BYTES))
        return cb_fail(error, COLIBRI_ERR_EXTENT, extent_at(d, extent) + 24,
                       "extent %u has %llu bytes, its tensors ask for %llu", extent,
                       (unsigned long long)e.size,
                       (unsigned long long)cb_up(end, CB_EXTENT_ALIGN_BYTES));
    return 0;
}

static int check_tensors(const struct cb_directory *d, const struct cb_records *start,
                         uint32_t *used, colibri_error *error)
{
    struct need needs[ROLES];
    struct cb_records r = *start;
    struct cb_layer_records l;
    uint32_t index = 0, extent, i;
    int code;

    memset(needs, 0, sizeof needs);
    need_global(needs, &r.model);
    code = check_group(d, &index, CB_SCOPE_TRUNK, CB_NONE_INDEX, 0, needs, used, error);
    for (i = 0; code == 0 && i < start->model.layers; i++) {
        code = cb_records_next(&r, &l, error);
        if (code != 0)
            return code;
        memset(needs, 0, sizeof needs);
        need_layer(needs, r.model.hidden, &l);
        code = check_group(d, &index, CB_SCOPE_TRUNK, i, 1 + i, needs, used, error);
    }
    r = *start;
    extent = 1 + r.model.layers;
    for (i = 0; code == 0 && i < start->model.layers; i++) {
        code = cb_records_next(&r, &l, error);
        if (code != 0)
            return code;
        if (l.layer.ffn_kind != CB_FFN_MOE)
            continue;
        memset(needs, 0, sizeof needs);
        need_mlp(needs, CB_ROLE_EXPERT_GATE, r.model.hidden, l.moe.intermediate, l.moe.gated,
                 l.moe.bias);
        code = check_group(d, &index, CB_SCOPE_EXPERT, i, extent, needs, used, error);
        extent += l.moe.experts;
    }
    if (code == 0 && index != d->tensor_count)
        return cb_fail(error, COLIBRI_ERR_TENSOR, tensor_at(d, index),
                       "tensor %u stands out of order, or belongs to no layer of the records",
                       index);
    return code;
}

int cb_directory_check(const struct cb_directory *d, const struct cb_container *c,
                       const uint8_t *records, colibri_error *error)
{
    const struct cb_section *s = &c->sections[CB_SECTION_RECORDS];
    struct cb_records start, r;
    uint32_t used = 0;
    int code = cb_records_begin(&start, records, (size_t)s->size, s->offset, error);

    if (code != 0)
        return code;
    r = start;
    code = check_extents(d, c, &r, &used, error);
    if (code == 0)
        code = check_tensors(d, &start, &used, error);
    if (code == 0 && c->required != used)
        return cb_fail(error, COLIBRI_ERR_FEATURE, 16,
                       "required features 0x%x, must be 0x%x", (uint32_t)c->required,
                       used);
    return code;
}
