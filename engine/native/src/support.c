/* SPDX-License-Identifier: MIT */
/* What this version runs. A file may be valid and still ask for more: the error names the kind. */
#include "common.h"
#include "error.h"
#include "model.h"

static int refuse(uint32_t layer, const char *what, colibri_error *error)
{
    if (layer == CB_NONE_INDEX)
        return cb_deny(error, COLIBRI_ERR_UNSUPPORTED,
                       "this version does not run models with %s", what);
    return cb_deny(error, COLIBRI_ERR_UNSUPPORTED,
                   "this version does not run %s (layer %u)", what, layer);
}

/* A condition that is not supported, and its name. */
struct rule {
    int broken;
    const char *what;
};

static int check_rules(const struct rule *rules, size_t count, uint32_t layer, colibri_error *error)
{
    size_t i;

    for (i = 0; i < count; i++) {
        if (rules[i].broken)
            return refuse(layer, rules[i].what, error);
    }
    return 0;
}

#define CHECK(rules, layer, error) check_rules(rules, sizeof rules / sizeof rules[0], layer, error)

static int check_model(const struct cb_block_model *b, colibri_error *error)
{
    const struct rule rules[] = {
        {b->logits_softcap != 0.0f, "a logits softcap"},
        {b->embedding_norm_kind != CB_NORM_NONE, "an embedding norm"},
        {b->head_bias != 0, "a head bias"},
    };

    return CHECK(rules, CB_NONE_INDEX, error);
}

static int check_attention(const struct cb_block_attention *a, uint32_t layer, colibri_error *error)
{
    const struct rule rules[] = {
        {a->softcap != 0.0f, "attention with a softcap"},
        {a->output_gate != 0, "attention with an output gate"},
    };

    return CHECK(rules, layer, error);
}

static int check_mlp(uint32_t activation, uint32_t gated, uint32_t layer, colibri_error *error)
{
    const struct rule rules[] = {
        {activation == CB_ACT_IDENTITY, "activation identity"},
        {activation == CB_ACT_SWIGLU_CLAMPED && !gated, "swiglu_clamped without a gate"},
    };

    return CHECK(rules, layer, error);
}

static int check_layer(const struct cb_layer_records *l, colibri_error *error)
{
    const struct cb_block_layer *b = &l->layer;
    const struct rule rules[] = {
        {b->norm_kind == CB_NORM_NONE && b->norm_places != 0, "norm places without a norm kind"},
        {b->parallel != 0, "mixer and feed-forward network in parallel"},
    };
    int code = CHECK(rules, b->index, error);

    if (code == 0)
        code = check_attention(&l->attention, b->index, error);
    if (code == 0 && b->ffn_kind == CB_FFN_DENSE)
        code = check_mlp(l->ffn.activation, l->ffn.gated, b->index, error);
    if (code == 0 && b->ffn_kind == CB_FFN_MOE)
        code = check_mlp(l->moe.activation, l->moe.gated, b->index, error);
    if (code == 0 && l->has_shared)
        code = check_mlp(l->shared.activation, l->shared.gated, b->index, error);
    return code;
}

int cb_model_check_support(const colibri_model *m, colibri_error *error)
{
    int code = check_model(&m->block, error);
    uint32_t i;

    for (i = 0; code == 0 && i < m->block.layers; i++)
        code = check_layer(&cb_model_layer(m, i)->r, error);
    for (i = 0; code == 0 && i < m->directory.tensor_count; i++) {
        struct cb_tensor t;

        cb_directory_tensor(&m->directory, i, &t);
        if (t.dtype == CB_DTYPE_MXFP4)
            code = refuse(t.layer, "dtype mxfp4", error);
    }
    return code;
}
