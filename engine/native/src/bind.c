/* SPDX-License-Identifier: MIT */
/* Pointing the layer descriptors at the tensors of a directory that has been checked. */
#include <stddef.h>

#include "common.h"
#include "model.h"

static const uint8_t *tensor_data(const colibri_model *m, const struct cb_tensor *t, uint32_t extent)
{
    struct cb_extent e;

    cb_directory_extent(&m->directory, extent, &e);
    return m->file.base + e.offset + t->offset;
}

static const float *as_floats(const uint8_t *data)
{
    return (const float *)(const void *)data;
}

static void bind_matrix(struct cb_matrix *w, const struct cb_tensor *t, const uint8_t *data)
{
    w->data = data;
    w->offset = (size_t)t->offset;
    w->rows = t->rows;
    w->columns = t->columns;
    w->dtype = t->dtype;
}

static void bind_global(colibri_model *m, const struct cb_tensor *t)
{
    const uint8_t *data = tensor_data(m, t, 0);

    m->global_tensors++;
    switch (t->role) {
    case CB_ROLE_EMBEDDING:
        bind_matrix(&m->embedding, t, data);
        if (m->block.tied_head)
            m->head = m->embedding;
        break;
    case CB_ROLE_POSITION_EMBEDDING:
        bind_matrix(&m->positions, t, data);
        break;
    case CB_ROLE_HEAD:
        bind_matrix(&m->head, t, data);
        break;
    case CB_ROLE_FINAL_NORM:
        m->final_norm.weight = as_floats(data);
        break;
    case CB_ROLE_FINAL_NORM_BIAS:
        m->final_norm.bias = as_floats(data);
        break;
    default: /* of kinds that cb_model_check_support refuses */
        break;
    }
}

/* Where a layer keeps its tensors: matrices, then vectors. */
#define PLACE(role, member) {CB_ROLE_##role, offsetof(struct cb_layer, member)}
static const struct place {
    uint16_t role, offset;
} places[] = {
    PLACE(Q, q),
    PLACE(K, k),
    PLACE(V, v),
    PLACE(O, o),
    PLACE(MLA_Q_A, q_a),
    PLACE(MLA_Q_B, q),
    PLACE(MLA_KV_A, kv_a),
    PLACE(MLA_K_B, k),
    PLACE(MLA_V_B, v),
    PLACE(CONV_IN, q),
    PLACE(CONV_OUT, o),
    PLACE(ROUTER, router),
    PLACE(SHARED_ROUTER, shared_router),
    PLACE(FFN_GATE, mlp.gate),
    PLACE(FFN_UP, mlp.up),
    PLACE(FFN_DOWN, mlp.down),
    PLACE(EXPERT_GATE, mlp.gate),
    PLACE(EXPERT_UP, mlp.up),
    PLACE(EXPERT_DOWN, mlp.down),
    PLACE(SHARED_GATE, shared.gate),
    PLACE(SHARED_UP, shared.up),
    PLACE(SHARED_DOWN, shared.down),
#define MATRICES 22u
    PLACE(Q_NORM, q_norm),
    PLACE(K_NORM, k_norm),
    PLACE(MLA_Q_A_NORM, q_norm),
    PLACE(MLA_KV_A_NORM, k_norm),
    PLACE(SINKS, sinks),
    PLACE(CONV_WEIGHT, conv_weight),
    PLACE(CONV_BIAS, conv_bias),
    PLACE(ROUTER_SELECTION_BIAS, selection_bias),
};
_Static_assert(sizeof(places) / sizeof(places[0]) == MATRICES + 8u, "vectors stand behind the matrices");

/* NULL where the role has no place among [first, end). */
static void *find(struct cb_layer *l, uint32_t role, size_t first, size_t end)
{
    for (; first < end; first++) {
        if (places[first].role == role)
            return (uint8_t *)l + places[first].offset;
    }
    return NULL;
}

/* Norms and their biases take turns, place by place. */
static const float **norm_vector(struct cb_layer *l, uint32_t role)
{
    uint32_t at = role - CB_ROLE_PRE_MIXER_NORM; /* lower roles wrap */

    if (at >= 2 * CB_NORM_PLACES)
        return find(l, role, MATRICES, sizeof places / sizeof places[0]);
    return at % 2 != 0 ? &l->norms[at / 2].bias : &l->norms[at / 2].weight;
}
_Static_assert(CB_ROLE_POST_MIXER_NORM == CB_ROLE_PRE_MIXER_NORM + 2 * CB_POST_MIXER &&
                   CB_ROLE_PRE_FFN_NORM == CB_ROLE_PRE_MIXER_NORM + 2 * CB_PRE_FFN &&
                   CB_ROLE_POST_FFN_NORM == CB_ROLE_PRE_MIXER_NORM + 2 * CB_POST_FFN,
               "roles of norms stand in one order");

static void bind_tensor(const colibri_model *m, struct cb_layer *l, const struct cb_tensor *t,
                        uint32_t index)
{
    int expert = t->scope == CB_SCOPE_EXPERT;
    uint32_t *range = expert ? l->expert_tensors : l->trunk_tensors;
    const uint8_t *data = expert ? NULL : tensor_data(m, t, l->trunk_extent);
    struct cb_matrix *matrix = find(l, t->role, 0, MATRICES), *biased = find(l, t->role - 1, 0, MATRICES);
    const float **vector = norm_vector(l, t->role);

    if (range[1]++ == 0)
        range[0] = index;
    if (matrix != NULL)
        bind_matrix(matrix, t, data);
    else if (vector != NULL)
        *vector = as_floats(data);
    else if (biased != NULL) /* every *_bias role follows its matrix, in the same extent */
        biased->bias = (uint32_t)((t->offset - biased->offset) / CB_TENSOR_ALIGN_BYTES);
}

static void bind_mlp(struct cb_mlp *mlp, uint32_t intermediate, uint32_t activation, uint32_t gated,
                     float clamp, float alpha)
{
    mlp->intermediate = intermediate;
    mlp->activation = activation;
    mlp->gated = gated;
    mlp->clamp = clamp;
    mlp->alpha = alpha;
}

static void bind_layer(const colibri_model *m, struct cb_layer *l, uint32_t *extent)
{
    const struct cb_block_ffn *ffn = &l->r.ffn;
    const struct cb_block_moe *moe = &l->r.moe;
    const struct cb_block_shared *shared = &l->r.shared;

    uint32_t place;

    l->trunk_extent = 1 + l->r.layer.index;
    for (place = 0; place < CB_NORM_PLACES; place++) {
        l->norms[place].kind = l->r.layer.norm_kind;
        l->norms[place].eps = l->r.layer.norm_eps;
    }
    if (l->r.layer.ffn_kind == CB_FFN_DENSE)
        bind_mlp(&l->mlp, ffn->intermediate, ffn->activation, ffn->gated, ffn->clamp, ffn->alpha);
    if (l->r.has_shared)
        bind_mlp(&l->shared, shared->intermediate, shared->activation, shared->gated, shared->clamp,
                 shared->alpha);
    if (l->r.layer.ffn_kind == CB_FFN_MOE) {
        struct cb_extent e;

        bind_mlp(&l->mlp, moe->intermediate, moe->activation, moe->gated, moe->clamp, moe->alpha);
        l->expert_extent = *extent;
        *extent += moe->experts;
        cb_directory_extent(&m->directory, l->expert_extent, &e);
        l->expert_stride = e.size + cb_chunk_table_bytes(e.size);
        l->expert_offset = e.offset;
        l->experts = cb_is_streamed(m) ? NULL : m->file.base + e.offset;
    }
}

void cb_model_bind(colibri_model *m)
{
    uint32_t extent = 1 + m->block.layers, i;

    m->final_norm.kind = m->block.norm_kind;
    m->final_norm.eps = m->block.norm_eps;
    for (i = 0; i < m->block.layers; i++)
        bind_layer(m, cb_model_layer(m, i), &extent);
    for (i = 0; i < m->directory.tensor_count; i++) {
        struct cb_tensor t;
        uint64_t copies = 1;

        cb_directory_tensor(&m->directory, i, &t);
        if (t.layer == CB_NONE_INDEX) {
            bind_global(m, &t);
        } else {
            struct cb_layer *l = cb_model_layer(m, t.layer);

            bind_tensor(m, l, &t, i);
            if (t.scope == CB_SCOPE_EXPERT)
                copies = l->r.moe.experts;
        }
        m->parameters += copies * t.rows * t.columns;
    }
}
