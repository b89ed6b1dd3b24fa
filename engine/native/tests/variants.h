/* SPDX-License-Identifier: MIT */
/* Small models that between them use every block and field the forward pass knows. */
#ifndef VARIANTS_H
#define VARIANTS_H

#include "builder.h"

static inline void vary_mixtral(struct build_recipe *r)
{
    r->layers[1].attention.window_tokens = 7;
}

static inline void vary_floats(struct build_recipe *r)
{
    r->trunk_dtype = CB_DTYPE_F32;
    r->expert_dtype = CB_DTYPE_BF16;
    r->embedding_dtype = CB_DTYPE_F16;
    r->model.tied_head = 1;
}

static inline void vary_quantized_router(struct build_recipe *r)
{
    r->router_dtype = CB_DTYPE_INT8;
    r->trunk_dtype = CB_DTYPE_F16;
    r->expert_dtype = CB_DTYPE_INT8;
    r->rope_style = CB_ROPE_INTERLEAVED;
    r->layers[0].moe.top_k = 5;
}

/* Qwen2-MoE: biases, a shared expert with a gate, weights that are not normalised, a dense layer. */
static inline void vary_shared(struct build_recipe *r)
{
    uint32_t i;

    r->model.layers = 3;
    r->layers[0].layer.ffn_kind = CB_FFN_DENSE;
    for (i = 0; i < 3; i++) {
        r->layers[i].attention.q_bias = r->layers[i].attention.kv_bias = 1;
        r->layers[i].attention.o_bias = i == 1;
        r->layers[i].moe.router_normalise = CB_NORMALISE_NONE;
        r->layers[i].has_shared = 1;
        r->layers[i].shared.gate = i == 1 ? CB_SHARED_GATE_SIGMOID : CB_SHARED_GATE_NONE;
    }
}

/* Multipliers, norms behind the blocks, per-head QK norm, router in front of the mixer. */
static inline void vary_small_thinker(struct build_recipe *r)
{
    uint32_t i;

    r->model.embedding_multiplier = 1.5f;
    r->model.logits_multiplier = 0.25f;
    for (i = 0; i < 2; i++) {
        r->layers[i].layer.residual_multiplier = 0.22f;
        r->layers[i].layer.norm_places = 15;
        r->layers[i].attention.qk_norm_kind = CB_QK_NORM_PER_HEAD;
        r->layers[i].attention.rope_table = i == 0 ? 0 : CB_NONE_INDEX;
        r->layers[i].moe.router_input = i == 0 ? CB_ROUTER_INPUT_RESIDUAL_BEFORE_MIXER
                                               : CB_ROUTER_INPUT_FFN_RESIDUAL;
        r->layers[i].moe.activation = CB_ACT_RELU;
        r->layers[i].moe.router_score = CB_SCORE_SOFTMAX_CHOSEN;
    }
}

/* OLMoE: full-width QK norm and clipping, in both orders; sigmoid scores with a selection bias. */
static inline void vary_sigmoid(struct build_recipe *r)
{
    uint32_t i;

    for (i = 0; i < 2; i++) {
        r->layers[i].attention.qk_norm_kind =
            i == 0 ? CB_QK_NORM_FULL_WIDTH : CB_QK_NORM_FULL_WIDTH_THEN_CLIP;
        r->layers[i].attention.clip_qkv = 0.75f;
        r->layers[i].attention.value_dim = 14;
        r->layers[i].moe.router_score = i == 0 ? CB_SCORE_SIGMOID : CB_SCORE_LOGITS;
        r->layers[i].moe.router_normalise = i == 0;
        r->layers[i].moe.router_normalise_eps = 1e-6f;
        r->layers[i].moe.selection_bias = i == 0;
        r->layers[i].moe.router_bias = 1;
        r->layers[i].moe.routed_scale = 0.5f;
        r->layers[i].moe.activation = CB_ACT_GELU_TANH;
        r->layers[i].moe.gated = i;
    }
}

/* Switch: one expert, skipped below a threshold; then clamped gates; mixer-only and FFN-only layers. */
static inline void vary_switch(struct build_recipe *r)
{
    r->model.layers = 4;
    r->layers[0].moe.top_k = 1;
    r->layers[0].moe.router_normalise = CB_NORMALISE_NONE;
    r->layers[0].moe.threshold = 0.4f;
    r->layers[0].moe.gated = 0;
    r->layers[1].moe.activation = CB_ACT_SWIGLU_CLAMPED;
    r->layers[1].moe.clamp = 0.5f;
    r->layers[1].moe.alpha = 1.702f;
    r->layers[2].layer.ffn_kind = CB_FFN_NONE;
    r->layers[3].layer.mixer_kind = CB_MIXER_NONE;
    r->layers[3].layer.ffn_kind = CB_FFN_DENSE;
    r->layers[3].layer.norm_places = CB_NORM_AT_PRE_FFN;
}

/* Latent attention, a short convolution, sinks with a window; experts in groups, of which two are chosen. */
static inline void vary_mixers(struct build_recipe *r)
{
    uint32_t i;

    r->model.layers = 4;
    r->rope_style = CB_ROPE_INTERLEAVED;
    r->layers[0].layer.mixer_kind = CB_MIXER_MLA;
    r->layers[1].layer.mixer_kind = CB_MIXER_SHORT_CONV;
    r->layers[2].attention.sinks = 1;
    r->layers[2].attention.window_tokens = 7;
    r->layers[3].layer.mixer_kind = CB_MIXER_MLA;
    r->layers[3].mla.q_rank = 0;
    r->layers[3].mla.rope_table = CB_NONE_INDEX;
    r->layers[3].mla.window_tokens = 5;
    for (i = 0; i < 4; i++) {
        r->layers[i].moe.experts = 8;
        r->layers[i].moe.top_k = 3;
        r->layers[i].moe.groups = 4;
        r->layers[i].moe.groups_chosen = 2;
        r->layers[i].moe.group_score = i % 2 ? CB_GROUP_SCORE_MAX : CB_GROUP_SCORE_TOP2_SUM;
        r->layers[i].moe.router_score = CB_SCORE_SIGMOID;
        r->layers[i].moe.selection_bias = 1;
    }
}

static const struct variant {
    const char *name;
    void (*vary)(struct build_recipe *recipe);
} variants[] = {
    {"mixtral", vary_mixtral},
    {"floats", vary_floats},
    {"quantized-router", vary_quantized_router},
    {"shared", vary_shared},
    {"small-thinker", vary_small_thinker},
    {"sigmoid", vary_sigmoid},
    {"switch", vary_switch},
    {"mixers", vary_mixers},
};
#define VARIANTS (sizeof variants / sizeof variants[0])

static inline void build_variant(struct build_file *f, const struct variant *v)
{
    struct build_recipe recipe;

    build_defaults(&recipe);
    v->vary(&recipe);
    build(f, &recipe);
}

#endif
